"""Figures that the course draws again and again, as functions of plain tensors.

Letters: T query positions, S key positions.
"""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from coursework.pictures.arrays import LONGEST, Array, labels, mask_matrix, matrix, number, shorten
from coursework.pictures.style import palette, styled

WIDEST = 7.5  # inches of a notebook's column: what is wider is shown smaller
LETTERS_IN_A_ROW = 80  # of words in cells: with more, columns are as wide as their words, and no longer alike
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
    _heatmap(ax, array, visible)
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

    Columns are as wide as each other while the words have room in them, else as their words need.

    Args:
        sentences: the words of each.
        weights: for each sentence one number from 0 to 1 for each word.
        ax: where to draw; a figure of fitting size is made unless given.
        title: above the rows.

    Raises:
        ValueError: numbers that do not fit the words.
    """
    longest = max(map(len, sentences))
    said = [[shorten(word) for word in words] for words in sentences]
    letters = [max(len(words[column]) for words in said if column < len(words)) for column in range(longest)]
    fits = longest * (max(letters) + 1) <= LETTERS_IN_A_ROW
    edges = np.cumsum([0.0, *([1.0] * longest if fits else [count + 2.0 for count in letters])])
    if ax is None:
        with styled():
            ax = plt.figure(figsize=(WIDEST, 0.75 + 0.36 * len(sentences))).subplots()
    colours = plt.get_cmap(palette.sequential)
    for row, (words, shares) in enumerate(zip(said, weights, strict=True)):
        for column, (word, share) in enumerate(zip(words, np.asarray(shares, dtype=float), strict=True)):
            colour, (left, right) = colours(share), edges[column : column + 2]
            cell = Rectangle((left, row), right - left, 1, facecolor=colour, edgecolor="white", linewidth=1.5)
            ax.add_patch(cell)
            ax.text(
                (left + right) / 2, row + 0.5, word, ha="center", va="center", fontsize=9, color=_ink(colour),
                parse_math=False,
            )  # fmt: skip
    ax.set(xlim=(0, edges[-1]), ylim=(len(sentences), 0), xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set_visible(False)
    if title:
        ax.set_title(title)
    return ax


def _heatmap(ax: Axes, array: Array, visible: Array | None) -> None:
    """Cells, their numbers where they can be read, and hatching where nothing may be seen."""
    import seaborn  # over a second to import: only who draws a heat map pays

    numbers = max(array.shape) <= NUMBERS_UP_TO
    hidden = None if visible is None else ~visible
    seaborn.heatmap(
        array, ax=ax, mask=hidden, vmin=0.0, vmax=1.0, cmap=palette.sequential, cbar=False,
        annot=np.vectorize(number, otypes=[str])(array, 2) if numbers else None, fmt="", annot_kws={"fontsize": 8.5},
        linewidths=1.0 if numbers else 0.0, linecolor="white",
    )  # fmt: skip
    colours = plt.get_cmap(palette.sequential)
    for text in ax.texts:  # one a cell, at its middle
        column, row = text.get_position()
        text.set_color(_ink(colours(array[int(row), int(column)])))
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


def frame(corner: tuple[int, int], columns: int, rows: int) -> Rectangle:
    """Return a frame around cells of a matrix, from the cell (column, row) on."""
    return Rectangle(corner, columns, rows, fill=False, edgecolor="#E69F00", linewidth=2.5, clip_on=False)


def softmax(scores: Array) -> Array:
    """Return the weights (T, S) of finite scores."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights: Array = powers / powers.sum(axis=-1, keepdims=True)
    return weights
