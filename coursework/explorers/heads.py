"""All heads of a layer at once, then one of them, then one token of it: who reads whom."""

from collections.abc import Sequence
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.checks import check_integer
from coursework.explorers.explorer import Explorer, Table
from coursework.pictures.arrays import Array, labels, number, plain, shorten
from coursework.pictures.style import palette, styled


class HeadExplorer(Explorer):
    """See the maps of several heads side by side; choose a head and a query, and follow its lines to the keys.

    Args:
        weights: (H, T, S), numbers from 0 to 1, of one example; at most 16 heads. Shown with three decimals.
        tokens: T labels of the queries.
        key_tokens: S labels of the keys; `tokens` if T = S, else positions, unless given.
        names: H names of the heads, "head 0" and so on unless given.
        selected: index of the head shown at first, the one with the lowest entropy unless given.
        query: index of the query shown at first, the last one unless given.
        averages: also show what each head does on average: entropy, distance and so on.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: weights, labels or indices that do not fit each other, or too many numbers for one output.
    """

    script: ClassVar[str] = "heads"

    def __init__(
        self,
        weights: Any,
        tokens: Sequence[Any],
        *,
        key_tokens: Sequence[Any] | None = None,
        names: Sequence[Any] | None = None,
        selected: int | None = None,
        query: int | None = None,
        averages: bool = True,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        self.weights = head_weights("weights", weights)
        H, T, S = self.weights.shape
        if H > 16:
            raise ValueError(f"weights: expected at most 16 heads, got {H}")
        self.tokens = labels("tokens", tokens, T)
        self.key_tokens = labels("key_tokens", self.tokens if key_tokens is None and T == S else key_tokens, S)
        self.names = labels("names", names, H, prefix="head ")
        entropy = [float(row[0]) for row in self.measures()]
        self.selected = int(np.argmin(entropy)) if selected is None else selected
        self.query = T - 1 if query is None else query
        check_integer("selected", self.selected, 0, H - 1)
        check_integer("query", self.query, 0, T - 1)
        self.averages = averages
        super().__init__(alt=alt, caption=caption)

    def measures(self) -> Array:
        """Return for each head: mean entropy in nats, mean largest weight and, if T = S, mean distance, mean weight on
        the previous token (of all queries but the first) and mean weight on the first token (of the same queries)."""
        w = self.weights
        logs = np.log(np.where(w > 0, w, 1.0))
        columns = [-(w * logs).sum(-1).mean(-1), w.max(-1).mean(-1)]
        T, S = w.shape[1:]
        if T == S:
            distance = np.abs(np.arange(T)[:, None] - np.arange(S)[None, :])
            before = np.arange(1, T)
            columns.append((w * distance).sum(-1).mean(-1))
            columns.append(w[:, before, before - 1].mean(-1) if T > 1 else np.zeros(len(w)))
            columns.append(w[:, 1:, 0].mean(-1) if T > 1 else np.zeros(len(w)))
        found: Array = np.stack(columns, axis=1)
        return found

    def state(self) -> dict[str, Any]:
        """Return the weights in thousandths, the labels, the measures as text and where the controls stand."""
        return {
            "weights": [[[int(f"{x:.3f}".replace(".", "")) for x in row] for row in head] for head in self.weights],
            "tokens": self.tokens,
            "keyTokens": self.key_tokens,
            "names": self.names,
            "head": list(self.table().head[1:]) if self.averages else [],
            "measures": [list(row[1:]) for row in self.table().rows] if self.averages else [],
            "selected": self.selected,
            "query": self.query,
            "least": 0,
        }

    def figure(self) -> Figure:
        """Draw all maps, the chosen one framed, and the lines of the chosen query in it."""
        H, T, S = self.weights.shape
        columns = min(H, 2 if H <= 4 else 4)
        lines = -(-H // columns)
        with styled():
            fig = plt.figure(figsize=(7.2, min(6.0, max(2.6, 1.35 * lines + 0.4, 0.19 * max(T, S) + 0.5))))
            left, right = np.asarray(fig.subfigures(1, 2, width_ratios=[1.45, 1]))
            axes = np.atleast_1d(left.subplots(lines, columns)).ravel()
            for h, ax in enumerate(axes):
                ax.axis("off")
                if h < H:
                    ax.imshow(self.weights[h], cmap=palette.sequential, vmin=0, vmax=1)
                    ax.set_title(shorten(self.names[h]), fontsize=8.5, parse_math=False)
                    ax.add_patch(Rectangle((-0.5, -0.5), S, T, fill=False, edgecolor="#8A8A8A", linewidth=0.6))
            axes[self.selected].add_patch(
                Rectangle((-0.5, -0.5), S, T, fill=False, edgecolor="#E69F00", linewidth=2.5, clip_on=False)
            )
            self._lines(right.subplots())
        return fig

    def _lines(self, ax: Axes) -> None:
        """Queries at the left, keys at the right, a line for each weight, those of the chosen query in colour."""
        head = self.weights[self.selected]
        T, S = head.shape
        tall = max(T, S)
        size = 8.5 if tall <= 16 else 8.0 if tall <= 24 else 0.0
        for i, j in np.argwhere(head >= 0.02):
            chosen = i == self.query
            ax.plot(
                (0, 1), (i, j), color=palette.query if chosen else palette.residual,
                alpha=float(head[i, j]) if chosen else 0.25 * float(head[i, j]), linewidth=2.5 if chosen else 1.2,
                zorder=3 if chosen else 2,
            )  # fmt: skip
        for side, names in ((0, self.tokens), (1, self.key_tokens)):
            for row, name in enumerate(names if size else []):
                bold = side == 0 and row == self.query
                ax.text(
                    side + (0.04 if side else -0.04), row, shorten(name), ha="left" if side else "right", va="center",
                    fontsize=size, fontweight="bold" if bold else "normal", parse_math=False,
                )  # fmt: skip
        ax.set(xlim=(-0.6, 1.6), ylim=(tall - 0.5, -0.5))
        ax.set_title(f"{shorten(self.names[self.selected])}: query to key", fontsize=9, parse_math=False)
        ax.axis("off")

    def table(self) -> Table:
        """Return the measures of every head or, without averages, what the chosen query reads."""
        if not self.averages:
            read = [
                [key, number(weight, 3)]
                for key, weight in zip(self.key_tokens, self.weights[self.selected, self.query], strict=True)
            ]
            return Table(
                f"{self.names[self.selected]}: what “{self.tokens[self.query]}” reads", ["key", "weight"], read
            )
        head = ["head", "entropy", "largest"]
        if self.weights.shape[1] == self.weights.shape[2]:
            head += ["distance", "previous", "first"]
        rows = [[name, *map(number, row)] for name, row in zip(self.names, self.measures(), strict=True)]
        return Table("measures of each head, mean over its queries", head, rows)

    def default_alt(self) -> str:
        """Say which head is chosen and what its chosen query reads."""
        H, T, S = self.weights.shape
        row = self.weights[self.selected, self.query]
        order = np.argsort(-row, kind="stable")[:3]
        parts = ", ".join(f"{number(row[j], 2)} on “{self.key_tokens[j]}”" for j in order)
        return (
            f"Maps of {H} heads, {T} queries by {S} keys. In {self.names[self.selected]} the query "
            f"“{self.tokens[self.query]}” puts {parts}."
        )

    def default_caption(self) -> str:
        """Say how different the heads are."""
        found = self.measures()
        low, high = int(found[:, 0].argmin()), int(found[:, 0].argmax())
        text = (
            f"The sharpest of the {len(found)} heads is {self.names[low]}, entropy {number(found[low, 0], 2)} nats; "
            f"the most even is {self.names[high]}, {number(found[high, 0], 2)}."
        )
        if found.shape[1] == 2:
            return text
        near = int(found[:, 3].argmax())
        name = self.names[near][:1].upper() + self.names[near][1:]
        return f"{text} {name} reads the previous token most: {number(found[near, 3], 2)} of its weight."


def head_weights(name: str, values: Any, shape: tuple[int, int, int] | None = None) -> Array:
    """Return weights of one example as float64 (H, T, S), of the given shape.

    Raises ValueError or TypeError naming the argument if they are not weights of heads.
    """
    array = plain(name, values)
    if array.ndim != 3 or 0 in array.shape or (shape is not None and array.shape != shape):
        hint = "; take one example, for instance weights[0]" if array.ndim == 4 else ""
        raise ValueError(f"{name}: expected {shape or '(H, T, S)'}, got shape {array.shape}{hint}")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, got {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all() or array.min() < -1e-6 or array.max() > 1 + 1e-6:
        raise ValueError(f"{name}: expected numbers from 0 to 1")
    clipped: Array = array.clip(0.0, 1.0)
    return clipped
