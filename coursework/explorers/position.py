"""Sinusoidal and rotary positions: frequencies, the turn that a shift makes, and how similarity depends on distance."""

import math
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from course_lib.checks import check_integer
from course_lib.positions import sines_and_cosines
from coursework.explorers.explorer import Explorer, Table, floats
from coursework.pictures.arrays import Array, matrix, number
from coursework.pictures.style import palette, styled

MOST_PAIRS = 16


class PositionExplorer(Explorer):
    """Choose a position and a shift; see each pair of dimensions turn, and the similarity of the two codes.

    Args:
        frequencies: radians a position, one a pair of dimensions (D / 2,), such as `positions.frequencies(16)`; at
            most 16. Shown as float32.
        position: where the first code stands.
        shift: how far on the second one is.
        length: positions in the picture, and distances of the curve.
        pair: the pair of dimensions whose turn is written out at first.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: numbers that are not positive, or a position, shift or pair outside the picture.
    """

    script: ClassVar[str] = "position"

    def __init__(
        self,
        frequencies: Any,
        *,
        position: int = 5,
        shift: int = 3,
        length: int = 48,
        pair: int = 0,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        row = frequencies[None] if hasattr(frequencies, "detach") else [frequencies]
        rates = matrix("frequencies", row)[0].astype(np.float32).astype(np.float64)
        if len(rates) > MOST_PAIRS or rates.min() <= 0:
            raise ValueError(f"frequencies: expected at most {MOST_PAIRS} positive numbers, got {frequencies!r}")
        check_integer("length", length, 2, 96)
        check_integer("position", position, 0, length - 1)
        check_integer("shift", shift, 0, length - 1)
        check_integer("pair", pair, 0, len(rates) - 1)
        self.frequencies, self.position, self.shift, self.length, self.pair = rates, position, shift, length, pair
        super().__init__(alt=alt, caption=caption)

    def codes(self) -> Array:
        """Return sine and cosine of each pair side by side (length, D)."""
        angles = np.arange(self.length)[:, None] * self.frequencies  # (length, D / 2)
        return sines_and_cosines(torch.from_numpy(angles)).numpy()

    def similarity(self) -> Array:
        """Return the dot product of two codes at each distance, over that at distance 0: (length,)."""
        codes = self.codes()
        return codes @ codes[0] / (codes[0] @ codes[0])

    def state(self) -> dict[str, Any]:
        """Return the frequencies and where the controls stand."""
        return {
            "frequencies": floats(self.frequencies[None])[0],
            "position": self.position,
            "shift": self.shift,
            "pair": self.pair,
            "length": self.length,
        }

    def figure(self) -> Figure:
        """Draw the table of codes with the two positions marked, and similarity against distance."""
        with styled():
            fig = plt.figure(figsize=(7.2, 2.9))
            left, right = fig.subplots(1, 2, width_ratios=[1.25, 1])
            left.imshow(self.codes(), aspect="auto", cmap=palette.signed, vmin=-1, vmax=1, interpolation="nearest")
            left.grid(visible=False)
            left.set(title="Sines and cosines by position", xlabel="dimension", ylabel="position")
            for place in (self.position, self.position + self.shift):
                if place < self.length:
                    left.axhline(place, color="#111111", linewidth=1.2)
            similar = self.similarity()
            right.plot(similar, color=palette.query)
            right.plot([self.shift], [similar[self.shift]], "o", color=palette.key)
            right.set(title="Similarity of two codes", xlabel="distance", ylim=(min(-0.2, similar.min() - 0.05), 1.05))
        return fig

    def table(self) -> Table:
        """Return frequency, wavelength and the turn of each pair."""
        rows = [
            [str(i), number(rate, 4), number(2 * math.pi / rate, 1), number(math.degrees(self.shift * rate), 1)]
            for i, rate in enumerate(self.frequencies)
        ]
        head = ["pair", "radians a position", "wavelength", f"turn of shift {self.shift}, degrees"]
        return Table("the pairs of dimensions", head, rows)

    def default_alt(self) -> str:
        """Say what the two pictures show."""
        similar = self.similarity()
        return (
            f"Left: sines and cosines of {self.length} positions, one row each, in {2 * len(self.frequencies)} "
            f"columns, fast at the left, slow at the right. Right: similarity of two codes against distance, 1 at "
            f"distance 0 and {number(similar[self.shift], 2)} at the marked distance {self.shift}."
        )

    def default_caption(self) -> str:
        """Say how far the similarity falls before it rises."""
        similar = self.similarity()
        text = (
            f"Similarity depends on the distance alone: {number(similar[self.shift], 2)} at {self.shift}, wherever the "
            f"two positions stand."
        )
        rises = np.nonzero(np.diff(similar) > 0)[0]
        if len(rises) == 0:
            return f"{text} Within {self.length} positions it only falls."
        return f"{text} It does not fall for ever: at distance {rises[0] + 1} it rises for the first time."
