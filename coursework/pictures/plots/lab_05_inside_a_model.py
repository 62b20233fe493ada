"""Figures of the lab inside a model: where its heads look, and what its stream holds at each level."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import seaborn
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coursework.pictures.figures import attention_map, colour_bar
from coursework.pictures.plots.common import bars
from coursework.pictures.style import palette


def looks_of_heads(layers: Sequence[Any], letters: Sequence[str]) -> Figure:
    """Where two heads of each layer look; the weights of a layer are (B, H, T, T)."""
    fig, grid = plt.subplots(2, len(layers), figsize=(7.5, 5.2), sharex=True, sharey=True)
    for (head, layer), ax in np.ndenumerate(grid):
        title = f"head {layer + 1}.{head + 1}"
        attention_map(layers[layer][0, head], queries=letters, ax=ax, title=title)
        ax.set(xlabel="looked at" if layer == 1 else "", ylabel="looks")
        ax.label_outer()
    colour_bar(fig, grid)
    return fig


def shares_of_the_lead(shares: Mapping[str, torch.Tensor]) -> Figure:
    """What each part adds to the lead of the right answer: its mean, and a thin line for eight prompts of ten."""
    colours = [
        palette.key if "head" in name else palette.value if "feed" in name else palette.residual for name in shares
    ]
    means, label = [found.mean() for found in shares.values()], "added to the lead of the right answer"
    fig = bars(list(shares), means, size=(7.2, 3.6), lying=True, colours=colours, levels={"": 0.0}, xlabel=label)
    for height, found in enumerate(shares.values()):
        ends = found.quantile(torch.tensor([0.1, 0.9]))
        fig.axes[0].plot(ends, [height, height], color="#222222", linewidth=1.5)
    return fig


def _by_level(ax: Axes, table: Any, words: Any, places: Sequence[str], **colours: Any) -> None:
    """Draw a row for each level of the stream, level 0 at the bottom, with its words."""
    names = [f"level {level}" for level in range(len(table))]
    seaborn.heatmap(
        table, ax=ax, annot=np.array(words), fmt="", xticklabels=places, yticklabels=names, cbar=False, **colours
    )
    ax.invert_yaxis()
    ax.tick_params(rotation=0, length=0)


def letters_by_level(sure: Any, letters: Sequence[Sequence[str]], prompt: Sequence[str]) -> Figure:
    """The likeliest letter at each level and place of a prompt, darker if it is more probable."""
    fig, ax = plt.subplots(figsize=(7.5, 2.9))
    _by_level(ax, sure, letters, prompt, vmin=0, vmax=1, cmap=palette.sequential)
    ax.set_xlabel("prompt")
    fig.colorbar(ax.collections[0], ax=ax, label="probability")
    return fig


def lead_that_comes_back(tables: Mapping[str, torch.Tensor], places: Sequence[str]) -> Figure:
    """How much of the lead comes back by the vector of each level and place; a panel for each source of the vectors."""
    fig, panels = plt.subplots(len(tables), 1, figsize=(7.5, 5.0))
    for ax, (title, table) in zip(panels, tables.items(), strict=True):
        words = [["" if abs(share) < 0.05 else f"{share:.2f}" for share in row] for row in table]
        _by_level(ax, table, words, places, vmin=-1, vmax=1, cmap=palette.signed)
        ax.set_title(title)
    fig.colorbar(ax.collections[0], ax=panels, label="share of the lead that comes back", shrink=0.7)
    return fig
