"""Figures of chapter 8: a roofline with passes on it, losses at equal operations, and what they predict."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from coursework.pictures.arrays import power_of_ten
from coursework.pictures.style import palette


def roofline(machine: Any, passes: Mapping[str, tuple[float, float, float]]) -> Figure:
    """The roof of a machine, and passes under it: each with its operations, bytes and seconds."""
    fig, ax = plt.subplots(figsize=(6.6, 3.4))
    intensities = np.logspace(-1.3, 3.2, 200)
    roof = np.minimum(intensities * machine.bytes_per_second, machine.flops_per_second)
    ax.plot(intensities, roof, color=palette.residual)
    ax.plot([machine.ridge], [machine.flops_per_second], "D", color=palette.residual)
    ax.annotate(
        f"ridge: {machine.ridge:.1f}", (machine.ridge, machine.flops_per_second), (-6, 8),
        textcoords="offset points", ha="right",
    )  # fmt: skip
    for number, (name, (operations, n_bytes, seconds)) in enumerate(passes.items()):
        at = (operations / n_bytes, operations / seconds)
        ax.plot(*at, "o", color=palette.series[number], markersize=8)
        reached = at[1] / min(at[0] * machine.bytes_per_second, machine.flops_per_second)
        ax.annotate(
            f"{name}\n{100 * reached:.0f} %",
            at,
            (0, -8),
            textcoords="offset points",
            color=palette.series[number],
            ha="center",
            va="top",
        )
    ax.set(xscale="log", yscale="log", xlabel="operations for each byte", ylabel="operations per second")
    ax.set_ylim(roof.min() / 3, 3 * machine.flops_per_second)
    return fig


def equal_operations(
    points: Mapping[float, Mapping[float, Sequence[float]]], minima: Mapping[float, tuple[float, float]]
) -> Figure:
    """For each budget the losses of each size, a dot for each seed; with `minima`, also parabolas."""
    fig, ax = plt.subplots(figsize=(6.6, 3.8))
    for (budget, found), colour in zip(points.items(), palette.series, strict=False):
        for size, losses in found.items():
            ax.plot([size] * len(losses), losses, "o", color=colour, markersize=4, alpha=0.7)
        sizes = np.array(list(found))
        means = [float(np.mean(losses)) for losses in found.values()]
        if budget in minima:
            grid = np.geomspace(sizes.min(), sizes.max(), 80)
            ax.plot(grid, np.polyval(np.polyfit(np.log(sizes), means, 2), np.log(grid)), color=colour, linewidth=1.2)
            ax.plot(*minima[budget], "D", color=colour, markersize=9, markeredgecolor="white")
        side: dict[str, Any] = {"textcoords": "offset points", "va": "center", "color": colour}
        ax.annotate(f"{power_of_ten(budget)} operations", (sizes[-1], means[-1]), (8, 0), **side)
    ax.set(xscale="log", xlabel="parameters", ylabel="loss (nats per character)")
    ax.margins(0.05, 0.12)
    ax.set_xlim(right=3 * ax.get_xlim()[1])
    return fig


def floors(sizes: Sequence[float], losses: Sequence[float], laws: Mapping[str, tuple[float, float, float]]) -> Figure:
    """Losses against sizes, the last one held out, and laws (floor, scale, exponent) fitted to the others."""
    fig, ax = plt.subplots(figsize=(6.6, 3.2))
    grid = np.geomspace(sizes[0] / 1.2, sizes[-1] * 1.6, 80)
    for (name, (floor, scale, exponent)), colour in zip(laws.items(), palette.series, strict=False):
        ax.plot(grid, floor + scale * grid**-exponent, color=colour, label=name)
    ax.plot(sizes[:-1], losses[:-1], "o", color=palette.residual, label="fitted")
    ax.plot(sizes[-1:], losses[-1:], "D", color="#111111", label="not seen by the fits")
    ax.set(xscale="log", yscale="log", xlabel="parameters", ylabel="loss (nats per character)")
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.1f}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.legend()
    return fig


def extended(
    budgets: Sequence[float],
    sizes: Sequence[float],
    losses: Sequence[float],
    target: float,
) -> Figure:
    """The best sizes and their losses against the budget, and straight lines through their logarithms to the target."""
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.0))
    grid = np.geomspace(budgets[0] / 1.3, target * 1.3, 40)
    for ax, values, name in zip(axes, (sizes, losses), ("best size (parameters)", "its loss"), strict=True):
        line = np.polyfit(np.log(budgets), np.log(values), 1)
        ax.plot(grid, np.exp(np.polyval(line, np.log(grid))), "--", color=palette.residual, linewidth=1.2)
        ax.plot(budgets, values, "D", color=palette.query)
        ax.plot(
            [target], [np.exp(np.polyval(line, np.log(target)))], "o", color=palette.key, fillstyle="none", markersize=9
        )
        ax.set(xscale="log", yscale="log", xlabel="operations", ylabel=name)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if values is sizes else MaxNLocator(5))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value > 10 else f"{value:.2f}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
    return fig


def ways_to_predict(
    ways: Mapping[str, float], intervals: Mapping[str, tuple[float, float]], measured: Sequence[float], mine: float
) -> Figure:
    """What each way predicts, a row each, with its interval if it has one; upright: measured losses and `mine`."""
    fig, ax = plt.subplots(figsize=(6.8, 0.9 + 0.42 * len(ways)))
    for height, (name, value) in enumerate(ways.items()):
        colour = palette.query if name in intervals else palette.residual
        if name in intervals:
            ax.plot(intervals[name], [height] * 2, color=colour, linewidth=5, alpha=0.35, solid_capstyle="butt")
        ax.plot([value], [height], "o", color=colour, markersize=8)
    for loss in measured:
        ax.axvline(loss, color=palette.key, linewidth=1.2)
    ax.axvline(mine, color=palette.value, linewidth=2, linestyle="--")
    ax.set_yticks(range(len(ways)), list(ways))
    ax.set_ylim(len(ways) - 0.5, -0.5)
    ax.set_xlabel("loss (nats per character); upright lines: the record's runs, dashed: yours")
    return fig
