"""Masks put together from their parts: who may see whom, in the words of both torch interfaces."""

from collections.abc import Sequence
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.checks import check_integer
from course_lib.masks import causal_mask, combine_masks, length_mask, sliding_window_mask
from coursework.explorers.explorer import Explorer, Table
from coursework.pictures.arrays import LONGEST, Array, labels, plain, shorten
from coursework.pictures.style import palette, styled

MAX_SIZE = 12  # positions: what a hand can follow cell by cell


class MaskComposer(Explorer):
    """Combine causal, padding and window masks; see the cells, both polarities, empty rows, and the expression to type.

    Args:
        T, S: numbers of queries and keys, 1 to 12; S = T unless given.
        tokens: S labels of the keys; the queries are the last T of them, as with a cache. Positions unless given.
        lengths: the B real lengths of padded examples, each 0 to S; two examples, S and about half of it, unless given.
        causal, padding, window: which parts are on at first; `window` is a size from 1 to S, or None for off.
            `padding` is on if `lengths` are given, unless said otherwise.
        example: the example shown at first, the first padded one unless given.
        alt, caption: computed from the mask unless given.

    Raises:
        ValueError: a size, length, window or example outside its range, or labels that do not fit.
    """

    script: ClassVar[str] = "mask"

    def __init__(
        self,
        T: int,
        S: int | None = None,
        *,
        tokens: Sequence[Any] | None = None,
        lengths: Any = None,
        causal: bool = True,
        padding: bool | None = None,
        window: int | None = None,
        example: int | None = None,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        check_integer("T", T, 1, MAX_SIZE)
        check_integer("S", S, 1, MAX_SIZE, or_none=True)
        self.T, self.S = T, T if S is None else S
        self.key_tokens = labels("tokens", tokens, self.S)
        self.tokens = [
            self.key_tokens[i + self.S - self.T] if i + self.S - self.T >= 0 else f"{i}" for i in range(self.T)
        ]
        given = [self.S, (self.S + 1) // 2] if lengths is None else plain("lengths", lengths).tolist()
        if not isinstance(given, list) or not 1 <= len(given) <= 8:
            raise ValueError(f"lengths: expected 1 to 8 lengths, one an example, got {lengths!r}")
        for length in given:
            check_integer("lengths", length, 0, self.S)
        self.lengths = given
        self.causal = causal
        self.padding = lengths is not None if padding is None else padding
        check_integer("window", window, 1, self.S, or_none=True)
        self.window = window
        padded = [number for number, length in enumerate(self.lengths) if length < self.S]
        self.example = (padded or [0])[0] if example is None else example
        check_integer("example", self.example, 0, len(self.lengths) - 1)
        self.labelled = tokens is not None
        super().__init__(alt=alt, caption=caption)

    def parts(self) -> list[tuple[str, Array]]:
        """Return the masks that are on, each with its name, for the chosen example: bool (T, S), True = may attend."""
        parts = []
        if self.causal:
            parts.append(("causal", causal_mask(self.T, self.S)))
        if self.window is not None:
            window = sliding_window_mask(self.T, self.S, window=self.window, causal=False)
            parts.append((f"window {self.window}", window))
        if self.padding:
            padding = length_mask(self.lengths, self.S)[self.example, 0].expand(self.T, self.S)  # (1, S) -> (T, S)
            parts.append((f"padding, example {self.example}", padding))
        return [(name, mask.numpy()) for name, mask in parts]

    def mask(self) -> Array:
        """Return the combined mask of the chosen example: bool (T, S), True = may attend."""
        combined = combine_masks(*[torch.from_numpy(mask.copy()) for _, mask in self.parts()])
        return np.ones((self.T, self.S), dtype=bool) if combined is None else combined.numpy()

    def state(self) -> dict[str, Any]:
        """Return sizes, lengths, labels and where the switches stand."""
        return {
            "T": self.T,
            "S": self.S,
            "max": MAX_SIZE,
            "lengths": self.lengths,
            "tokens": self.key_tokens if self.labelled else None,
            "causal": self.causal,
            "padding": self.padding,
            "side": 0,
            "windowed": self.window is not None,
            "window": min(3, self.S) if self.window is None else self.window,
            "example": self.example,
            "alignment": 0,
        }

    def figure(self) -> Figure:
        """Draw the parts side by side, and what they leave together."""
        panels = [*self.parts(), ("together", self.mask())]
        longest = min(LONGEST, max(map(len, self.key_tokens)))
        names = 0.15 + 0.075 * longest
        gap, cell = 0.25, 0.3
        cell = min(cell, (7.4 - names - gap * len(panels)) / (self.S * len(panels)))
        foot = 0.15 + (0.075 * longest if self.labelled else 0.05)
        width, height = names + len(panels) * (self.S * cell + gap), self.T * cell + 0.4 + foot
        with styled():
            fig = plt.figure(figsize=(max(width, 3.0), height), layout="none")
            for number, (title, mask) in enumerate(panels):
                x = names + number * (self.S * cell + gap)
                box = (x / max(width, 3.0), foot / height, self.S * cell / max(width, 3.0), self.T * cell / height)
                self._draw(fig.add_axes(box), title, mask, named=number == 0, inches=cell)
        return fig

    def _draw(self, ax: Axes, title: str, mask: Array, *, named: bool, inches: float) -> None:
        for (i, j), visible in np.ndenumerate(mask):
            face, edge, hatch = (palette.query, "white", "") if visible else ("#F4F4F4", "#8A8A8A", "////")
            ax.add_patch(Rectangle((j, i), 1, 1, facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0.8))
            if inches >= 0.2 and visible:
                ax.text(j + 0.5, i + 0.5, "1", color="white", ha="center", va="center", fontsize=8.5)
        ax.set(xlim=(0, self.S), ylim=(self.T, 0))
        ax.grid(False)
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        ax.set_yticks(
            np.arange(self.T) + 0.5, [shorten(name) if named else "" for name in self.tokens], parse_math=False
        )
        ax.set_xticks(np.arange(self.S) + 0.5, list(map(shorten, self.key_tokens)), parse_math=False)
        ax.tick_params(axis="x", labelrotation=90 if self.labelled else 0)
        ax.set_title(title, fontsize=9)

    def table(self) -> Table:
        """Return the combined mask of the chosen example, 1 for True."""
        rows = [
            [name, *("1" if cell else "0" for cell in row)] for name, row in zip(self.tokens, self.mask(), strict=True)
        ]
        return Table("the combined mask, 1 = may attend, one row per query", ["query", *self.key_tokens], rows)

    def default_alt(self) -> str:
        """Say which masks are combined and what each query may see."""
        names = " and ".join(name for name, _ in self.parts()) or "no mask"
        seen = ", ".join(str(count) for count in self.mask().sum(axis=1))
        return (
            f"Mask of {self.T} queries by {self.S} keys from {names}. From the first query to the last, "
            f"the queries may attend to {seen} keys."
        )

    def default_caption(self) -> str:
        """Say how much stays visible, and whether a query is left with nothing."""
        mask = self.mask()
        empty = [name for name, row in zip(self.tokens, mask, strict=True) if not row.any()]
        left = f"{int(mask.sum())} of {mask.size} cells stay visible"
        parts = self.parts()
        text = (
            f"A cell is visible, 1, only if every mask allows it: {left}."
            if len(parts) > 1
            else f"{left.capitalize()}."
        )
        if not empty:
            return f"{text} Every query sees at least one key."
        listed = ", ".join(f"“{name}”" for name in empty)
        return f"{text} Nothing is left for {listed}: a plain softmax there is 0/0, so such a row must be set to zero."
