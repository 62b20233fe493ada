"""Heat maps: tables of numbers as colours, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coursework.pictures.arrays import plain
from coursework.pictures.plots.common import Size, panels
from coursework.pictures.style import palette


def heat(
    table: Any, *, ax: Axes, reach: tuple[float, float] | None = (0, 1), cmap: str = palette.sequential,
    columns: Sequence[Any] = (), rows: Sequence[Any] = (), every: int | tuple[int, int] = 1, digits: int | None = None,
    aspect: Literal["equal", "auto"] = "equal", **axes: Any,
) -> None:  # fmt: skip
    """Draw a table, with numbers of so many `digits` where asked for.

    `reach` is the least and the greatest number with a colour of its own, None as far as its numbers reach. `every` so
    many columns, or columns and rows, are named, as `columns` and `rows` say or else by number.
    """
    table = plain("table", table).astype(float)
    most = np.abs(table).max() if cmap == palette.signed else None
    low, high = reach or (most and -most, most)
    image = ax.imshow(table, cmap=cmap, vmin=low, vmax=high, aspect=aspect, interpolation="nearest")
    steps = (every, every) if isinstance(every, int) else every
    for axis, names, size, step in zip((ax.xaxis, ax.yaxis), (columns, rows), table.shape[::-1], steps, strict=True):
        axis.set_ticks(range(0, size, step), list(names or range(size))[::step])
    ax.grid(False)
    ax.set(**axes)
    for (row, column), value in np.ndenumerate(table) if digits is not None else ():
        if np.isfinite(value):
            ink = "white" if np.asarray(image.norm(value)) > 0.6 else "black"
            ax.text(column, row, f"{value:.{digits}f}", ha="center", va="center", fontsize=8, color=ink)


def heat_maps(
    tables: Mapping[str, Any], *, size: Size, bar: str = "", each: Sequence[Mapping[str, Any]] = (), **options: Any
) -> Figure:
    """Draw tables side by side by title, as `heat` does; `bar` names the scale, one for each if reach=None."""
    share = "y" if len({len(table) for table in tables.values()}) == 1 else ""
    said = {"xlabel": "looked at", "ylabel": "looks", **options}
    fig = panels(heat, tables, size=size, share=share, each=[{**said, **one} for one in each or [{}] * len(tables)])
    own = options.get("reach", ()) is None
    for axes in [[ax] for ax in fig.axes] if own else [fig.axes]:
        if bar:
            fig.colorbar(axes[-1].images[0], ax=axes, label=bar, shrink=0.8 if own else 1)
    return fig
