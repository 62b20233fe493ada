"""Figures of the first chapter's labs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from coursework.pictures.plots.common import curves
from coursework.pictures.plots.maps import heat
from coursework.pictures.style import palette


def marked_curve(x: Any, y: Any, marks: Mapping[str, tuple[float, float]], *, left: float = 0, **how: Any) -> Figure:
    """A curve, drawn by `curves`, and points of it by name; up to x = `left` the name stands on the left."""
    fig = curves(x, {"": y}, styles=("-",), **how)
    for name, point in marks.items():
        fig.axes[0].plot(*point, "o", color=palette.key)
        side: dict[str, Any] = {"xytext": (7, 5)}
        if point[0] <= left:  # below a curve that falls, above one that rises
            falls = y[0] > y[-1]
            side = {"xytext": (-7, -5 if falls else 5), "ha": "right", "va": "top" if falls else "bottom"}
        fig.axes[0].annotate(name, point, textcoords="offset points", color=palette.key, **side)
    return fig


def pairs_of_words(lengths: Sequence[int]) -> Figure:
    """The pairs of so many words, a cell each."""
    fig, axes = plt.subplots(1, len(lengths), figsize=(5.4, 3.4), width_ratios=lengths)
    for ax, n in zip(axes, lengths, strict=True):
        ax.imshow(np.ones((n, n)), cmap=palette.sequential, vmin=0, vmax=1.6)
        lines = np.arange(n + 1) - 0.5
        ax.set(xticks=lines, yticks=lines, xticklabels=[], yticklabels=[], xlabel=f"{n} words,\n{n * n} pairs")
        ax.grid(color="white", linewidth=1)
        ax.tick_params(length=0)
    return fig


def weight_on_hidden(found: Mapping[tuple[str, str], Any]) -> Figure:
    """The weight on hidden keys for each fill and each situation, coloured where it is not zero."""
    fills, situations = (list(dict.fromkeys(part)) for part in zip(*found, strict=True))
    fig, ax = plt.subplots(figsize=(6.5, 2.8))
    bad = [[not isinstance(found[f, s], float) or not found[f, s] < 1e-20 for s in situations] for f in fills]
    heat(bad, ax=ax, cmap="Oranges", reach=(0, 2.5), columns=situations, rows=fills, aspect="auto", ylabel="fill")
    for (fill, situation), share in found.items():
        text = share if isinstance(share, str) else "NaN" if math.isnan(share) else f"{share:.2g}"
        ax.text(situations.index(situation), fills.index(fill), text, ha="center", va="center")
    return fig
