"""Kinds of figure that many notebooks draw: curves, bars, dots of seeds, histograms.

Each is drawn into `ax`, or into a figure of its own of `size` inches; `axes` is for `ax.set`; the figure is returned.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coursework.pictures.style import palette

MARKED = ("o-", "s-", "D-", "^-", "v-")
Size = tuple[float, float]


def curves(
    x: Any, lines: Mapping[str, Any], *, ax: Axes | None = None, size: Size = (6.4, 2.8),
    colours: Sequence[str] = palette.series, styles: Sequence[str] = MARKED, names: str = "best",
    levels: Mapping[str, float] | None = None, **axes: Any,
) -> Figure:  # fmt: skip
    """Draw named curves, or a thin one for each seed where the values have a row for each; dashed lines at `levels`.

    `x` may map each name to its places. `names` is where the legend stands, or "end" for a name beside the end of each
    curve, or "" for none.
    """
    ax = ax or plt.subplots(figsize=size)[1]
    for number, (name, values) in enumerate(lines.items()):
        rows, colour = np.atleast_2d(np.asarray(values)), colours[number % len(colours)]
        thin: dict[str, Any] = {"linewidth": 1.2, "alpha": 0.8} if np.ndim(values) > 1 else {}
        labels = [name, *["_"] * (len(rows) - 1)][: len(rows)]
        at = x[name] if isinstance(x, Mapping) else x
        ax.plot(at, rows.T, styles[number % len(styles)], color=colour, label=labels, **thin)
        if names == "end" and name:
            side: dict[str, Any] = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
            ax.annotate(name, (at[-1], rows[0, -1]), (6, 0), color=colour, **side)
    return _finish(ax, axes, "" if names == "end" else names, levels)


def bars(
    names: Sequence[Any], heights: Any, *, ax: Axes | None = None, size: Size = (6.4, 2.6),
    colours: Any = palette.series, width: float = 0.8, numbers: str = "", lying: bool = False,
    levels: Mapping[str, float] | None = None, **axes: Any,
) -> Figure:  # fmt: skip
    """Draw a bar for each name, or one for each kind where `heights` maps kinds to them; `numbers` is their format.

    `colours` is one for all bars or one for each; with kinds, one for each kind. The first of `lying` bars is on top.
    """
    ax = ax or plt.subplots(figsize=size)[1]
    kinds = heights if isinstance(heights, Mapping) else {"": heights}
    said = any(isinstance(name, str) for name in names)
    for number, (kind, values) in enumerate(kinds.items()):
        places = np.arange(len(names)) if said else np.asarray(names)
        places = places + width / len(kinds) * (number - (len(kinds) - 1) / 2)
        colour = colours[number] if kinds is heights else colours
        draw = ax.barh if lying else ax.bar
        drawn = draw(places, values, width / len(kinds), color=colour, label=kind)
        if numbers:
            ax.bar_label(drawn, fmt=numbers, padding=2)
    if said:
        (ax.set_yticks if lying else ax.set_xticks)(range(len(names)), names)
    if lying:
        ax.set_ylim(len(names) - 0.4, -0.6)
    return _finish(ax, axes, "best", levels, lying)


def dots(
    columns: Sequence[Any], groups: Mapping[str, Any], *, ax: Axes | None = None, size: Size = (6.6, 3.0),
    colours: Sequence[str] = palette.series, apart: float = 0.2, means: bool = False, names: str = "best", **axes: Any,
) -> Figure:  # fmt: skip
    """Draw a dot for each seed in columns, the groups side by side: each has a row of seeds for each column."""
    ax = ax or plt.subplots(figsize=size)[1]
    for number, (name, found) in enumerate(groups.items()):
        rows, colour = np.asarray(found), colours[number % len(colours)]
        at = np.arange(len(columns)) + apart * (number - (len(groups) - 1) / 2)
        labels = [name, *["_"] * (rows.shape[1] - 1)]
        ax.plot(at, rows, "osv^D"[number], color=colour, alpha=0.6, label=labels)
        if means:
            ax.plot(at, rows.mean(axis=1), color=colour)
    ax.set_xticks(range(len(columns)), columns)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    return _finish(ax, axes, names)


def dot_rows(
    rows: Mapping[str, Sequence[float]], *, ax: Axes | None = None, size: Size = (6.6, 2.8),
    colours: Any = palette.query, joined: bool = False, levels: Mapping[str, float] | None = None, **axes: Any,
) -> Figure:  # fmt: skip
    """Draw a dot for each seed in rows, the first on top; `joined`, a pale line for each seed from row to row."""
    ax = ax or plt.subplots(figsize=size)[1]
    for height, values in enumerate(rows.values()):
        colour = colours if isinstance(colours, str) else colours[height]
        ax.scatter(values, [height] * len(values), color=colour, alpha=0.75, zorder=2)
    if joined:
        ax.plot(np.array(list(rows.values())), range(len(rows)), color="#BBBBBB", linewidth=1, zorder=0)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.5)
    return _finish(ax, axes, "", levels, True)


def rows_by_rate(
    record: Any, measure: str, arms: Sequence[str] = (), *, mark: str = "", rate: str = "rate", **options: Any
) -> Figure:
    """Draw a record of training: a panel for each rate, a row for each arm, orange where its name lacks `mark`."""
    arms = arms or list(record.arms)
    found = {f"{rate} {each:g}": {arm: record.values(arm, measure, each) for arm in arms} for each in record.rates}
    options["colours"] = [palette.query if mark in arm else palette.key for arm in arms]
    return panels(dot_rows, found, xlim=(0, 1.05), xlabel=measure, **{"size": (7.4, 2.6), **options})


def histogram(bins: Any, values: Any, *, ax: Axes | None = None, size: Size = (6.4, 2.4), **axes: Any) -> Figure:
    """Draw how many of the values lie in each bin."""
    ax = ax or plt.subplots(figsize=size)[1]
    ax.hist(np.asarray(values), bins=bins, color=palette.query)
    return _finish(ax, axes)


def panels(
    draw: Callable[..., Any], *data: Any, size: Size, columns: int = 0, share: str = "xy",
    each: Sequence[Mapping[str, Any]] = (), **options: Any,
) -> Figure:  # fmt: skip
    """Draw a panel for each title of the last of `data` by one of the functions here, which takes the others first.

    They share the axes in `share`; `each` has what is said of one panel alone. A legend stands below, for all.
    """
    *first, found = data
    width = columns or len(found)
    fig, grid = plt.subplots(
        -(-len(found) // width), width, figsize=size, sharex="x" in share, sharey="y" in share, squeeze=False
    )
    for number, (ax, (title, what)) in enumerate(zip(grid.flat, found.items(), strict=True)):
        draw(*first, what, ax=ax, title=title, **options, **(each[number] if each else {}))
        if "y" in share:
            ax.label_outer()
    legends = [legend for ax in fig.axes if (legend := ax.get_legend())]
    for legend in legends:
        legend.remove()
    if legends:
        fig.legend(*fig.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig


def _finish(
    ax: Axes, axes: dict[str, Any], names: Any = "", levels: Mapping[str, float] | None = None, upright: bool = False
) -> Any:
    """Dashed lines at the levels, what the axes are called, and the legend where something has a name."""
    for name, level in (levels or {}).items():
        (ax.axvline if upright else ax.axhline)(level, color=palette.residual, linestyle="--", linewidth=1)
        if upright:
            ax.text(
                level, 0.98, " " + name.replace("\n", "\n "), transform=ax.get_xaxis_transform(), va="top", fontsize=8.5
            )
        else:
            ax.text(0.99, level, name, transform=ax.get_yaxis_transform(), ha="right", va="bottom", fontsize=8.5)
    ax.set(**axes)
    if axes.get("xscale") and "xticks" in axes:
        ax.xaxis.minorticks_off()
    if names and ax.get_legend_handles_labels()[0]:
        ax.legend(loc=names)
    return ax.figure
