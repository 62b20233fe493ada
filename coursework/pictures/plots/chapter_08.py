"""Figures of chapter 8: laws fitted to small models, and what they miss."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from coursework.pictures.style import palette


def _panels(height: float, sizes: Sequence[float]) -> tuple[Figure, Axes, Axes, torch.Tensor]:
    """Two panels by size, losses and what a law leaves over, and the sizes at which to draw the law."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, height))
    left.set(xscale="log", xlabel="parameters", ylabel="loss (nats a character)")
    right.set(xscale="log", xlabel="parameters", ylabel="residual (%)")
    right.axhline(0, color=palette.residual, linewidth=0.8)
    return fig, left, right, torch.logspace(math.log10(sizes[0] / 1.2), math.log10(sizes[-1] * 1.2), 60)


def law_and_residuals(losses: Mapping[int, Sequence[float]], law: Any) -> Figure:
    """The losses of each seed by size, the law of all but the last size, and what it leaves over."""
    smallest, *_, largest = losses
    fig, left, right, grid = _panels(3.0, (smallest, largest))
    left.plot(grid, law.predict(grid), color=palette.residual, label="fit to the small ones")
    for size, found in losses.items():
        style: dict[str, Any] = {"color": palette.query, "marker": "o", "linestyle": "", "markersize": 4}
        style |= {"color": palette.key, "marker": "s"} if size == largest else {}
        label = {smallest: "measured, five seeds", largest: "held out"}.get(size)
        left.plot([size] * len(found), found, label=label, **style)
        predicted = law.predict(size).item()
        right.plot([size] * len(found), [100 * math.log(loss / predicted) for loss in found], **style)
    left.legend()
    right.xaxis.set_minor_formatter(NullFormatter())
    return fig


def budgets_and_residuals(rows: Sequence[Mapping[str, float]], reading: Any) -> Figure:
    """The losses for each budget of tokens by size, the laws of one budget and of all, and what they leave over."""
    held_out = reading.held_out_size
    fig, left, right, grid = _panels(3.2, (reading.sizes[0], held_out))
    budgets = sorted({row["tokens"] for row in rows})
    for budget, shade in zip(budgets, (0.35, 0.55, 0.75, 1.0), strict=True):
        points = sorted((row["parameters"], row["loss"]) for row in rows if row["tokens"] == budget)
        left.plot(*zip(*points, strict=True), "o", color=palette.query, alpha=shade, markersize=3.5)
        if budget < budgets[-1]:
            name = f"{budget / 1e6:.1f} M tokens"
            left.annotate(name, points[-1], (5, 2), textcoords="offset points", fontsize=8)
    left.plot(grid, reading.fit.law.predict(grid), color=palette.residual, label="fit to 1.6 M tokens")
    surface = reading.surface.predict(grid, budgets[-1])
    left.plot(grid, surface, "--", color=palette.residual, label="fit to all budgets")
    largest = [row["loss"] for row in rows if row["parameters"] == held_out]
    left.plot([held_out] * len(largest), largest, "s", color=palette.key, label="held out")
    left.legend(loc="lower left")
    right.plot(reading.sizes, 100 * reading.fit.residuals, "o", color=palette.query)
    for miss, fill in ((reading.error, "full"), (reading.surface_error, "none")):
        right.plot(held_out, -100 * miss, "s", color=palette.key, fillstyle=fill)
    place = (held_out, -100 * reading.surface_error)
    right.annotate("from all budgets", place, (-78, -3), textcoords="offset points", fontsize=8)
    return fig
