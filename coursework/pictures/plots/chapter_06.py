"""Figures of chapter 6: training runs, their losses, and how many of them learn."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn
from matplotlib.figure import Figure

from coursework.pictures.plots.common import curves, panels
from coursework.pictures.style import palette


def seeds_that_learn(found: Sequence[Sequence[Sequence[float]]], warm_ups: Sequence[str], rates: Any) -> Figure:
    """For each warm-up and rate, how many of ten seeds learn, and the range from the worst to the best."""
    learned = [[sum(value > 0.9 for value in values) for values in row] for row in found]
    ranges = [[f"{min(values):.2f} to {max(values):.2f}" for values in row] for row in found]
    words = np.char.add(np.char.add(np.array(learned, dtype=str), " of 10\n"), ranges)
    fig, ax = plt.subplots(figsize=(6.4, 2.9))
    seaborn.heatmap(
        learned, ax=ax, vmin=0, vmax=10, cmap=palette.sequential, cbar=False, annot=words, fmt="",
        annot_kws={"fontsize": 10}, xticklabels=[f"{rate:g}" for rate in rates], yticklabels=warm_ups,
    )  # fmt: skip
    ax.set(xlabel="rate after the warm-up", ylabel="warm-up")
    ax.tick_params(axis="y", rotation=0)
    return fig


def losses_and_norms(runs: Mapping[str, Sequence[tuple[float, float]]], vocabulary: int) -> Figure:
    """The loss of each run, and beside it the norm of its gradient before clipping at 1: a pair for each step."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.8))
    steps = range(1, 1 + max(map(len, runs.values())))
    losses, norms = ({name: [pair[part] for pair in log] for name, log in runs.items()} for part in (0, 1))
    look: dict[str, Any] = {"styles": "-", "xlabel": "step", "colours": (palette.key, palette.query)}
    curves(steps, losses, ax=left, title="Loss per token", ylim=(0, 5.4), **look)
    curves(steps, norms, ax=right, title="Norm of the gradient (limit 1 dotted)", yscale="log", names="", **look)
    for axis in (right.yaxis.set_major_formatter, right.yaxis.set_minor_formatter):
        axis(lambda value, _: f"{value:g}" if f"{value:g}".strip("0.")[0] in "125" else "")
    left.text(steps[-1], math.log(vocabulary) + 0.1, f"ln {vocabulary}", ha="right", color="#555555")
    for ax, level in ((left, math.log(vocabulary)), (right, 1.0)):
        ax.axhline(level, color=palette.residual, linestyle=":")
    return fig


def gallery_of_faults(
    losses: Mapping[str, Mapping[str, Any]], mended: Any, steps: Sequence[int], named: Sequence[tuple[str, int]] = ()
) -> Figure:
    """The losses of trainings, a letter each; pale in the last panel, those on held-out pairs once it is mended.

    `named` has letters and steps: there the panel says how high the held-out losses lie, on average.
    """
    options: dict[str, Any] = {
        "styles": ("-", "--"),
        "ylim": (0, 5.4),
        "xticks": (0, 150, 300),
        "xlabel": "step",
        "ylabel": "loss",
    }
    fig = panels(curves, steps, losses, size=(7.6, 4.9), columns=4, **options)
    curves(steps, {"": mended}, ax=fig.axes[-1], colours=["#BBBBBB"], styles="-", names="")
    fig.axes[-1].text(140, 0.08, "mended", fontsize=9, color="#666666", va="bottom")
    for letter, step in named:
        ax, mean = fig.axes[list(losses).index(letter)], losses[letter]["held out"][:, steps.index(step)].mean()
        ax.text(75, 1.0, f"step {step}: {mean:.2f}", fontsize=9, color="#555555")
    for ax in fig.axes:
        for line in ax.lines:
            line.set(marker="o", markersize=3, markevery=[0])  # where it begins
        ax.axhline(math.log(59), color=palette.residual, linestyle=":", linewidth=1.2)
    for ax in fig.axes[::4]:  # the first of each row
        ax.text(300, math.log(59) + 0.05, "ln 59", ha="right", va="bottom", fontsize=9, color="#555555")
    return fig
