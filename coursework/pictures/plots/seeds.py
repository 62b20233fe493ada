"""What several trainings of the same gave: a dot for each seed."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from coursework.pictures.plots.common import Size
from coursework.pictures.style import palette


def seed_rows(
    rows: Mapping[str, Mapping[str, Sequence[float]]], *, ax: Axes | None = None, size: Size = (6.6, 3.0),
    colours: Sequence[str] | Mapping[str, str] = palette.series, levels: Mapping[str, float] | None = None, **axes: Any,
) -> Any:  # fmt: skip
    """Draw a row for each name, the first on top, and dashed lines at `levels`; several measures lie a little apart.

    `colours` go by measure, or are those of rows or measures by name.
    """
    ax = ax or plt.subplots(figsize=size)[1]
    for row, (name, measures) in enumerate(rows.items()):
        for number, (measure, values) in enumerate(measures.items()):
            height = row + 0.22 * (number - (len(measures) - 1) / 2)
            color = colours.get(name) or colours[measure] if isinstance(colours, Mapping) else colours[number]
            ax.plot([min(values), max(values)], [height] * 2, color="#BBBBBB", linewidth=1.2, zorder=1)
            said = measure if row == 0 and len(measures) > 1 else "_"
            ax.plot(values, [height] * len(values), "os^"[number], color=color, alpha=0.75, label=said)
    ax.set(yticks=range(len(rows)), yticklabels=list(rows), ylim=(len(rows) - 0.5, -0.5 - 0.4 * bool(levels)), **axes)
    for words, level in (levels or {}).items():
        ax.axvline(level, color=palette.residual, linestyle="--", linewidth=1, zorder=0)
        side = "right" if level > sum(ax.get_xlim()) / 2 else "left"
        ax.text(level, 1, f" {words} ", color="#555555", va="top", ha=side, transform=ax.get_xaxis_transform())
    if handles := ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(handles))
    return ax.figure
