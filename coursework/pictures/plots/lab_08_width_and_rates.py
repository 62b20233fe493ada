"""Figures of the lab on width and rates."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

SHADES = ("#F89540", "#CC4778", "#7E03A8", "#0D0887")  # the wider, the darker
MARKS = "osD^"


def loss_by_rate(
    record: Any, rules: Mapping[str, str], widths: Sequence[int], factors: Mapping[str, float] | None = None
) -> Figure:
    """Loss against rate, a panel for each rule under its title: the mean of each width, its range, the best rate.

    A rule whose rates are a multiple of the record's has that multiple in `factors`.
    """
    fig, grid = plt.subplots(1, len(rules), figsize=(3.0 + 2.2 * len(rules), 3.0), sharey=True, squeeze=False)
    for ax, (rule, title) in zip(grid[0], rules.items(), strict=True):
        rates = np.array(record.rates) * (factors or {}).get(rule, 1)
        for width, shade, mark in zip(widths, SHADES, MARKS, strict=True):
            runs = np.array([record.values(f"{rule}, width {width}", "loss", rate) for rate in record.rates])
            means = runs.mean(axis=1)
            lowest = means.argmin()
            ax.fill_between(rates, runs.min(axis=1), runs.max(axis=1), color=shade, alpha=0.18, linewidth=0)
            ax.plot(rates, means, color=shade, label=f"width {width}")
            ax.plot(rates[lowest], means[lowest], mark, color=shade, markersize=8)
        ax.set(xscale="log", xlabel="rate", title=title, xticks=rates, xticklabels=[f"{rate:g}" for rate in rates])
        ax.minorticks_off()
    grid[0, 0].set_ylabel("loss")
    fig.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(widths))
    return fig
