"""Figures that the course draws again and again, as functions of plain tensors.

Letters: T query positions, S key positions, E width of queries and keys, E' width of values.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from coursework.pictures.arrays import LONGEST, Array, labels, mask_matrix, matrix, number, shorten
from coursework.pictures.style import palette, styled

WIDEST = 7.5  # inches of a notebook's column: what is wider is shown smaller
LEAST_CELL = 0.42  # inches that a number of two decimals with its sign needs
NUMBERS_UP_TO = 10  # rows or columns: beyond, numbers in the cells are too small to read


def attention_map(
    weights: Any,
    *,
    queries: Sequence[Any] | None = None,
    keys: Sequence[Any] | None = None,
    mask: Any = None,
    ax: Axes | None = None,
    title: str | None = None,
    bar: bool = False,
) -> Axes:
    """Draw attention weights: a row per query, a column per key, white 0 to dark blue 1 whatever the data.

    Args:
        weights: (T, S), numbers from 0 to 1.
        queries: T labels of the rows, positions unless given.
        keys: S labels of the columns; like `queries` if there are as many, else positions, unless given.
        mask: boolean (T, S), True = may attend; the cells that may not are hatched.
        ax: where to draw; a figure of fitting size is made unless given.
        title: above the map.
        bar: whether a colour bar stands beside it.

    Returns:
        The axes; its figure is `axes.figure`. Up to 10 rows and columns the cells show their numbers.

    Raises:
        ValueError: weights outside 0..1 or not (T, S), labels or mask that do not fit.
    """
    array = matrix("weights", weights)
    if array.min() < -1e-6 or array.max() > 1 + 1e-6:
        raise ValueError(f"weights: expected numbers from 0 to 1, got {array.min():.3g} to {array.max():.3g}")
    T, S = array.shape
    row_names = labels("queries", queries, T)
    column_names = labels("keys", queries if keys is None and queries is not None and T == S else keys, S)
    visible = mask_matrix("mask", mask, (T, S))
    if ax is None:
        width = min(7.0, max(2.6, 1.2 + 0.52 * S))
        with styled():
            ax = plt.figure(figsize=(width, min(7.0, max(1.9, 0.9 + 0.42 * T)))).subplots()
    _heatmap(ax, array, visible, vmin=0.0, vmax=1.0, cmap=palette.sequential)
    _name_axes(ax, row_names, column_names)
    ax.set_xlabel("key")
    ax.set_ylabel("query")
    if title:
        ax.set_title(title)
    if bar:
        colour_bar(ax.figure, ax)
    return ax


def colour_bar(fig: Any, axes: Any) -> None:
    """Put the scale of weights, white 0 to dark blue 1, beside one map or several."""
    scale = ScalarMappable(Normalize(0.0, 1.0), palette.sequential)
    drawn = fig.colorbar(scale, ax=axes, fraction=0.05, aspect=14, pad=0.03, ticks=[0, 0.25, 0.5, 0.75, 1])
    drawn.set_label("weight")
    drawn.outline.set_visible(False)


def reading_rows(
    sentences: Sequence[Sequence[str]], weights: Sequence[Any], *, ax: Axes | None = None, title: str | None = None
) -> Axes:
    """Draw what one reader takes from each word of several sentences: a row a sentence, its words in the cells.

    Args:
        sentences: the words of each.
        weights: for each sentence one number from 0 to 1 for each word.
        ax: where to draw; a figure of fitting size is made unless given.
        title: above the rows.

    Raises:
        ValueError: numbers that do not fit the words.
    """
    longest = max(map(len, sentences))
    if ax is None:
        with styled():
            ax = plt.figure(figsize=(WIDEST, 0.75 + 0.36 * len(sentences))).subplots()
    colours = plt.get_cmap(palette.sequential)
    for row, (words, shares) in enumerate(zip(sentences, weights, strict=True)):
        for column, (word, share) in enumerate(zip(words, np.asarray(shares, dtype=float), strict=True)):
            colour = colours(share)
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="white", linewidth=1.5))
            ax.text(
                column + 0.5, row + 0.5, shorten(word), ha="center", va="center", fontsize=9, color=_ink(colour),
                parse_math=False,
            )  # fmt: skip
    ax.set(xlim=(0, longest), ylim=(len(sentences), 0), xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set_visible(False)
    if title:
        ax.set_title(title)
    return ax


def draw_matrix(
    ax: Axes, array: Array, *, rows: Sequence[str] = (), columns: Sequence[str] = (), numbers: bool = True
) -> None:
    """Draw a matrix of signed numbers, blue below zero and red above; no labels where none are given."""
    reach = max(float(np.abs(array).max()), 1e-9)
    _heatmap(ax, array, None, vmin=-reach, vmax=reach, cmap=palette.signed, numbers=numbers)
    _name_axes(ax, list(rows) or [""] * array.shape[0], list(columns) or [""] * array.shape[1])


def _heatmap(
    ax: Axes, array: Array, visible: Array | None, *, vmin: float, vmax: float, cmap: str, numbers: bool = True
) -> None:
    """Cells, their numbers where they can be read, and hatching where nothing may be seen."""
    import seaborn  # over a second to import: only who draws a heat map pays

    numbers = numbers and max(array.shape) <= NUMBERS_UP_TO
    hidden = None if visible is None else ~visible
    seaborn.heatmap(
        array, ax=ax, mask=hidden, vmin=vmin, vmax=vmax, cmap=cmap, cbar=False,
        annot=np.vectorize(number, otypes=[str])(array, 2) if numbers else None, fmt="", annot_kws={"fontsize": 8.5},
        linewidths=1.0 if numbers else 0.0, linecolor="white",
    )  # fmt: skip
    colours = plt.get_cmap(cmap)
    for text in ax.texts:  # one a cell, at its middle
        column, row = text.get_position()
        text.set_color(_ink(colours((array[int(row), int(column)] - vmin) / (vmax - vmin))))
    ax.grid(False)
    if hidden is not None:
        for row, column in np.argwhere(hidden):
            ax.add_patch(
                Rectangle((column, row), 1, 1, facecolor="#F4F4F4", edgecolor="#8A8A8A", hatch="////", linewidth=0.0)
            )


def _ink(background: Sequence[float]) -> str:
    """Black or white, whichever stands out more on the background (WCAG 2.2 contrast)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background[:3])
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "white" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "black"


def _name_axes(ax: Axes, row_names: list[str], column_names: list[str]) -> None:
    """Token labels, turned only if they would run into each other, thinned when there are too many to read."""
    for names, axis in ((row_names, ax.yaxis), (column_names, ax.xaxis)):
        step = math.ceil(len(names) / 24)
        shown = [shorten(name) for name in names[::step]]
        axis.set_ticks([position + 0.5 for position in range(0, len(names), step)], shown, parse_math=False)
        axis.set_tick_params(length=0)
    inches = ax.get_window_extent().width / ax.figure.dpi
    longest = min(max(map(len, column_names)), LONGEST)
    crowded = longest * 0.085 > inches / len(column_names[:: math.ceil(len(column_names) / 24)])
    ax.tick_params(axis="x", labelrotation=90 if crowded else 0)
    ax.tick_params(axis="y", labelrotation=0)


def attention_steps(
    query: Any,
    key: Any,
    value: Any,
    *,
    queries: Sequence[Any] | None = None,
    keys: Sequence[Any] | None = None,
    mask: Any = None,
) -> Figure:
    """Draw softmax(QK^T / sqrt(E)) V in five steps with all its numbers, for tensors small enough to print.

    Args:
        query: (T, E). key: (S, E). value: (S, E'). At most 6 rows and 6 columns each.
        queries, keys: labels of the T queries and S keys, positions unless given; `keys` like `queries` if as many.
        mask: boolean (T, S), True = may attend.

    Raises:
        ValueError: shapes that do not fit each other, or too many rows or columns to show.

    Source: Vaswani et al. 2017, figure 2 and equation 1.
    """
    q, k, v = matrix("query", query), matrix("key", key), matrix("value", value)
    for name, array in (("query", q), ("key", k), ("value", v)):
        if max(array.shape) > 6:
            raise ValueError(f"{name}: expected at most 6 rows and 6 columns, got shape {array.shape}")
    T, S, E = len(q), len(k), q.shape[1]
    if k.shape[1] != E:
        raise ValueError(f"key: expected width E={E} like query, got {k.shape[1]}")
    if len(v) != S:
        raise ValueError(f"value: expected length S={S} like key, got {len(v)}")
    rows = labels("queries", queries, T)
    columns = labels("keys", queries if keys is None and queries is not None and T == S else keys, S)
    visible = mask_matrix("mask", mask, (T, S))
    scores = q @ k.T
    weights = softmax(scores / math.sqrt(E), visible)
    step_3 = f"3  ÷ √{E} = ÷ {math.sqrt(E):.2f}"
    step_4 = "4  softmax" if visible is None else "4  mask, softmax"
    lines = [
        [_Panel("1  Q", q, rows, None, palette.query), _Panel("1  K", k, columns, None, palette.key),
         _Panel("1  V", v, columns, None, palette.value)],
        [_Panel("2  Q Kᵀ", scores, rows, columns), _Panel(step_3, scores / math.sqrt(E), rows, columns),
         _Panel(step_4, weights, rows, columns, weights=True, visible=visible)],
        [_Panel("5  weights · V", weights @ v, rows, None, palette.output)],
    ]  # fmt: skip
    return _draw_panels(lines)


@dataclass(frozen=True)
class _Panel:
    """One matrix of a worked example."""

    title: str
    array: Array
    rows: list[str]
    columns: list[str] | None
    color: str = "#111111"
    weights: bool = False
    visible: Array | None = None


def _draw_panels(lines: list[list[_Panel]]) -> Figure:
    """Place the matrices line by line, all cells of one size, all sizes in inches."""
    cell_height, above, between = 0.29, 0.36, 0.3
    names = [name for line in lines for panel in line for name in panel.rows]
    longest = min(max(map(len, names)), LONGEST)
    names_width = 0.15 + 0.075 * longest

    def spaces(line: list[_Panel]) -> list[float]:
        """What stands left of each panel: the names of its rows, unless the panel before has the same."""
        pairs = zip([None, *line], line, strict=False)
        return [between if before and before.rows == panel.rows else names_width for before, panel in pairs]

    def width_of(line: list[_Panel], cell: float) -> float:
        return sum(spaces(line)) + between + cell * sum(panel.array.shape[1] for panel in line)

    lines = [part for line in lines for part in _broken(line, lambda line: width_of(line, LEAST_CELL) <= WIDEST)]
    room = [(WIDEST - width_of(line, 0.0)) / (width_of(line, 1.0) - width_of(line, 0.0)) for line in lines]
    cell_width = min(max(0.55, min(0.09 * longest, 0.8)), *room)
    width = max(width_of(line, cell_width) for line in lines)
    below = 0.3 if longest * 0.085 <= cell_width else 0.2 + 0.066 * longest
    heights = [
        above
        + cell_height * max(len(panel.array) for panel in line)
        + (below if any(panel.columns for panel in line) else 0.15)
        for line in lines
    ]
    with styled():
        fig = plt.figure(figsize=(width, sum(heights)), layout="none")
        top = sum(heights)
        for line, height in zip(lines, heights, strict=True):
            x = 0.0
            for panel, names_left in zip(line, spaces(line), strict=True):
                rows, columns = panel.array.shape
                x += names_left
                size = (columns * cell_width / width, rows * cell_height / sum(heights))
                ax = fig.add_axes((x / width, (top - above) / sum(heights) - size[1], *size))
                _draw_panel(ax, panel, named=names_left == names_width)
                x += columns * cell_width
            top -= height
    return fig


def _broken(line: list[_Panel], fits: Callable[[list[_Panel]], bool]) -> list[list[_Panel]]:
    """Break a line of panels into as few as fit."""
    parts: list[list[_Panel]] = [[]]
    for panel in line:
        if parts[-1] and not fits([*parts[-1], panel]):
            parts.append([])
        parts[-1].append(panel)
    return parts


def _draw_panel(ax: Axes, panel: _Panel, *, named: bool) -> None:
    rows = panel.rows if named else [""] * len(panel.rows)
    if panel.weights:
        _heatmap(ax, panel.array, panel.visible, vmin=0.0, vmax=1.0, cmap=palette.sequential)
        _name_axes(ax, rows, panel.columns or [""] * panel.array.shape[1])
    else:
        draw_matrix(ax, panel.array, rows=rows, columns=panel.columns or ())
    ax.set_title(panel.title, color=panel.color)


def frame(corner: tuple[int, int], columns: int, rows: int) -> Rectangle:
    """Return a frame around cells of a matrix, from the cell (column, row) on."""
    return Rectangle(corner, columns, rows, fill=False, edgecolor="#E69F00", linewidth=2.5, clip_on=False)


def softmax(scores: Array, visible: Array | None) -> Array:
    """Return the weights (T, S) of finite scores; only visible keys take part, and a row that sees none is zero."""
    shown = scores if visible is None else np.where(visible, scores, -np.inf)
    top = np.where(np.isfinite(shown.max(axis=-1, keepdims=True)), shown.max(axis=-1, keepdims=True), 0.0)
    powers = np.exp(shown - top)
    total = powers.sum(axis=-1, keepdims=True)
    weights: Array = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)  # an empty row stays zero
    return weights


def shape_badge(ax: Axes, shape: str, xy: tuple[float, float], *, color: str = "#444444") -> None:
    """Write a tensor's shape in the code's letters, such as "B H T E", as a small badge at `xy` in data coordinates."""
    ax.text(
        *xy, f"({', '.join(shape.split())})", ha="center", va="center",
        family="DejaVu Sans Mono", fontsize=8, color=color,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": color, "linewidth": 0.8},
    )  # fmt: skip


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], *, color: str = "#6E6E6E") -> None:
    """Draw an arrow of a diagram between two points in data coordinates."""
    ax.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=10, shrinkA=2, shrinkB=2, color=color, linewidth=1.2
        )
    )
