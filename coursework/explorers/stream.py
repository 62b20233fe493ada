"""The residual stream from layer to layer: how long token vectors are, how alike, and what gradient comes back."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.checks import check_integer
from coursework.explorers.explorer import Explorer, Table
from coursework.pictures.arrays import Array, labels, number, plain, shorten
from coursework.pictures.style import palette, styled

MOST_TOKENS = 12
MOST_NUMBERS = 12_000


class StreamExplorer(Explorer):
    """Compare stacks layer by layer; choose a stack and a layer, and see which of its tokens have become alike.

    Args:
        streams: name of a stack -> its token vectors (T, D) before the first layer and after each one, of one example;
            the same T and number of layers in each. At most 12 tokens.
        tokens: T labels.
        gradients: name of a stack -> the size of the gradient at each of those places, in any unit; optional.
        stack: index of the stack shown at first, the one whose tokens end most alike unless given.
        layer: the layer shown at first, the last one unless given; 0 is the input.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: tensors, labels, names or indices that do not fit each other, or too many numbers for one output.
    """

    script: ClassVar[str] = "stream"

    def __init__(
        self,
        streams: Mapping[str, Sequence[Any]],
        tokens: Sequence[Any],
        *,
        gradients: Mapping[str, Sequence[float]] | None = None,
        stack: int | None = None,
        layer: int | None = None,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        vectors = _checked(streams)
        self.names = list(streams)
        self.lengths = np.stack([np.sqrt(np.square(stream).mean(axis=-1)).mean(axis=-1) for stream in vectors])
        units = [stream / np.maximum(np.linalg.norm(stream, axis=-1, keepdims=True), 1e-300) for stream in vectors]
        self.cosines: Array = np.stack([unit @ unit.swapaxes(-1, -2) for unit in units]).clip(-1, 1)
        N, places, T = self.cosines.shape[:3]
        self.tokens = labels("tokens", tokens, T)
        off = ~np.eye(T, dtype=bool)
        self.similarity: Array = self.cosines[:, :, off].mean(axis=-1)
        self.gradients = None if gradients is None else _checked_gradients(gradients, self.names, places)
        self.stack = int(np.argmax(self.similarity[:, -1])) if stack is None else stack
        self.layer = places - 1 if layer is None else layer
        check_integer("stack", self.stack, 0, N - 1)
        check_integer("layer", self.layer, 0, places - 1)
        super().__init__(alt=alt, caption=caption)

    def state(self) -> dict[str, Any]:
        """Return the cosines in thousandths, the measures of each layer as text and as heights of bars."""
        return {
            "names": self.names,
            "tokens": self.tokens,
            "cosines": [[[_thousandths(row) for row in place] for place in stack] for stack in self.cosines],
            "head": self._head(),
            "measures": [[self._row(n, place) for place in range(self._places)] for n in range(len(self.names))],
            "bars": [_heights(measure) for measure in self._measures()],
            "stack": self.stack,
            "layer": self.layer,
        }

    @property
    def _places(self) -> int:
        return int(self.similarity.shape[1])

    def _measures(self) -> list[Array]:
        found = [self.similarity, self.lengths]
        return found if self.gradients is None else [*found, self.gradients]

    def _head(self) -> list[str]:
        return ["similarity", "length", "gradient"][: len(self._measures())]

    def _row(self, stack: int, place: int) -> list[str]:
        return [
            number(float(measure[stack, place])) if kind == 0 else _short(float(measure[stack, place]))
            for kind, measure in enumerate(self._measures())
        ]

    def figure(self) -> Figure:
        """Draw each measure against the layer, a line for each stack, the chosen layer marked."""
        titles = ("Similarity of the tokens", "Length of a token", "Size of the gradient")
        measures = self._measures()
        with styled():
            fig = plt.figure(figsize=(7.2, 2.9))
            for kind, ax in enumerate(np.atleast_1d(fig.subplots(1, len(measures)))):
                self._lines(ax, measures[kind], title=titles[kind], log=kind > 0)
            handles, names = fig.axes[0].get_legend_handles_labels()
            fig.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)), frameon=False)
        return fig

    def _lines(self, ax: Axes, measure: Array, *, title: str, log: bool) -> None:
        for n, name in enumerate(self.names):
            ax.plot(measure[n], color=palette.series[n], label=shorten(name), linewidth=2.4 if n == self.stack else 1.4)
        ax.plot([self.layer], [measure[self.stack, self.layer]], "o", color=palette.series[self.stack])
        ax.set(title=title, xlabel="layer")
        if log and measure.min() > 0 and measure.max() / measure.min() > 20:
            ax.set_yscale("log")
        elif not log:
            ax.set_ylim(min(-0.05, measure.min() - 0.05), 1.05)

    def table(self) -> Table:
        """Return the measures of each stack at the input, in the middle and at the end."""
        places = sorted({0, (self._places - 1) // 2, self._places - 1})
        head = [f"{name}, layer {place}" for name in self._head() for place in places]
        rows = []
        for n, name in enumerate(self.names):
            found = [self._row(n, place) for place in places]
            rows.append([name, *(found[p][kind] for kind in range(len(self._head())) for p in range(len(places)))])
        return Table("each stack at its input, in the middle and at the end", ["stack", *head], rows)

    def default_alt(self) -> str:
        """Say how alike the tokens of each stack are at the end."""
        ends = ", ".join(
            f"{name} {number(end, 2)}" for name, end in zip(self.names, self.similarity[:, -1], strict=True)
        )
        return (
            f"Lines over {self._places - 1} layers for {len(self.names)} stacks. Mean cosine between different tokens "
            f"after the last layer: {ends}."
        )

    def default_caption(self) -> str:
        """Say in which stack tokens become alike, and from which layer on."""
        worst = int(np.argmax(self.similarity[:, -1]))
        same = np.nonzero(self.similarity[worst] > 0.99)[0]
        end = number(float(self.similarity[worst, -1]), 2)
        if len(same) == 0:
            return f"Tokens stay apart: even in “{self.names[worst]}” the mean cosine ends at {end}."
        name = self.names[worst]
        return f"In “{name}” all tokens are nearly one vector from layer {same[0]} on: a mean cosine over 0.99."


def _checked(streams: Mapping[str, Sequence[Any]]) -> list[Array]:
    """The vectors of each stack as float64 (layers + 1, T, D). Raises ValueError or TypeError naming what is wrong."""
    if not isinstance(streams, Mapping) or not 1 <= len(streams) <= 6:
        raise ValueError("streams: expected 1 to 6 stacks, name -> list of tensors (T, D)")
    found = []
    for name, stream in streams.items():
        arrays = [plain(f"streams[{name!r}]", place) for place in stream]
        if len(arrays) < 2 or any(a.ndim != 2 or a.shape != arrays[0].shape or 0 in a.shape for a in arrays):
            raise ValueError(
                f"streams[{name!r}]: expected at least two tensors of one shape (T, D), "
                f"got {[tuple(a.shape) for a in arrays]}"
            )
        array = np.stack(arrays)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"streams[{name!r}]: expected numbers, got {array.dtype}")
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            raise ValueError(f"streams[{name!r}]: expected finite numbers, got nan or inf")
        found.append(array)
    if len({array.shape[:2] for array in found}) > 1:
        sizes = {name: array.shape[:2] for name, array in zip(streams, found, strict=True)}
        raise ValueError(f"streams: expected the same layers and tokens in each stack, got {sizes}")
    places, T = found[0].shape[:2]
    if not 2 <= T <= MOST_TOKENS:
        raise ValueError(f"streams: expected 2 to {MOST_TOKENS} tokens, got {T}")
    if len(found) * places * T * T > MOST_NUMBERS:
        raise ValueError(f"streams: expected at most {MOST_NUMBERS:,} cosines, got {len(found) * places * T * T:,}")
    return found


def _checked_gradients(gradients: Mapping[str, Sequence[float]], names: list[str], places: int) -> Array:
    if set(gradients) != set(names):
        raise ValueError(f"gradients: expected one entry for each of {names}, got {sorted(gradients)}")
    rows = [plain(f"gradients[{name!r}]", gradients[name]).astype(np.float64) for name in names]
    if any(row.shape != (places,) or not np.isfinite(row).all() or row.min() < 0 for row in rows):
        raise ValueError(
            f"gradients: expected {places} finite sizes for each stack, one per layer and one at the input"
        )
    return np.stack(rows)


def _thousandths(row: Array) -> list[int]:
    return [int(f"{x:.3f}".replace(".", "")) for x in row]


def _short(value: float) -> str:
    """Fixed decimals where they say something, else powers of ten."""
    return number(value) if value == 0 or 0.01 <= value < 10_000 else f"{value:.1e}".replace("-", "−")


def _heights(measure: Array) -> list[list[int]]:
    """Heights of bars in percent over all stacks: linear, or logarithmic where sizes differ a lot."""
    low, high = float(measure.min()), float(measure.max())
    if low > 0 and high / low > 20:
        scaled = 4 + 96 * np.log(measure / low) / np.log(high / low)
    else:
        scaled = 100 * measure.clip(min=0) / max(high, 1e-300)
    return [[round(float(x)) for x in row] for row in scaled]
