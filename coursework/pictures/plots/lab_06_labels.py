"""Figures of the lab on labels that are smoothed."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from coursework.pictures.plots.common import curves, dots
from coursework.pictures.style import palette


def costs_by_score(scores: torch.Tensor, costs: Mapping[str, torch.Tensor]) -> Figure:
    """The plain and the smoothed loss by the score of the right token, a dot at the lowest smoothed one."""
    axes: dict[str, Any] = {"xlabel": "score of the right token, all others 0", "ylabel": "loss", "ylim": (-0.3, 7.2)}
    fig = curves(scores, costs, size=(6.4, 2.9), styles="-", names="end", **axes)
    *_, smoothed = costs.values()
    fig.axes[0].plot(scores[smoothed.argmin()], smoothed.min(), "o", color=palette.key)
    return fig


def measures_by_smoothing(found: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]) -> Figure:
    """A row for each measure, a column for each case: a dot for each net by its smoothing, and a line for the means."""
    fig, grid = plt.subplots(3, 3, figsize=(7.4, 6), sharex=True)
    for column, (case, measures) in zip(grid.T, found.items(), strict=True):
        column[0].set_title(case, fontsize=9)
        for ax, (measure, rows), color in zip(column, measures.items(), palette.series, strict=False):
            dots(["0", "0.1", "0.2"], {"": rows}, ax=ax, colours=[color], means=True)
            if ax in grid[:, 0]:
                ax.set_ylabel(names[measure])
        column[2].axhline(0, color=palette.residual, linewidth=1, linestyle="--")
    grid[2, 1].set_xlabel("smoothing")
    return fig
