"""Figures of chapter 5: what a language model writes."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from coursework.pictures.style import palette


def written_text(text: str, chances: Sequence[float], n_prompt: int) -> Figure:
    """A text in rows of 48 characters, each as dark as it was probable; the prompt is orange."""
    fig, ax = plt.subplots(figsize=(7.2, 1.6))
    style: dict[str, Any] = {"ha": "center", "va": "center", "family": "DejaVu Sans Mono", "fontsize": 10}
    for place, (character, chance) in enumerate(zip(text, chances, strict=True)):
        row, column = divmod(place, 48)
        shade = plt.get_cmap(palette.sequential)(0.7 * chance if place >= n_prompt else 0.0)
        ax.add_patch(plt.Rectangle((column, -row), 1, 1, facecolor=shade, edgecolor="none"))
        shown, color = "↵" if character == "\n" else character, "#000000" if place >= n_prompt else palette.key
        ax.text(column + 0.5, -row + 0.5, shown, color=color, parse_math=False, **style)
    ax.set(xlim=(0, 48), ylim=(-math.ceil(len(text) / 48) + 1, 1))
    ax.axis("off")
    return fig
