"""Figures of chapter 4: what fresh layers do to tokens and to gradients."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from coursework.pictures.style import palette


def words_two_by_two(cosines: Mapping[str, Any]) -> Figure:
    """How alike the words are, two by two; a map for each title, dark is 1."""
    fig, panels = plt.subplots(1, len(cosines), figsize=(7.6, 2.3))
    for ax, (title, found) in zip(panels, cosines.items(), strict=True):
        ax.imshow(found, cmap=palette.sequential, vmin=0, vmax=1)
        ax.set_title(title, fontsize=9)
        ax.set(xticks=[], yticks=[])
    return fig


def gradients_by_layer(draws: Mapping[str, Sequence[Mapping[str, Any]]], colours: Mapping[str, str]) -> Figure:
    """The gradients of each kind of weights in each layer, median and range of the draws; a panel for each stack."""
    fig, grid = plt.subplots(1, len(draws), figsize=(7.6, 3.2), sharex=True, sharey=True)
    axes: dict[str, Any] = {"yscale": "log", "ylim": (5e-7, 300), "xticks": (1, 4, 8, 12)}
    for ax, (stack, found) in zip(grid, draws.items(), strict=True):
        for kind, colour in colours.items():
            sizes = torch.tensor([rows[kind] for rows in found]).clamp(min=1e-6)  # (draws, layers)
            ax.plot(range(1, 13), sizes.median(dim=0).values, "o-", color=colour, markersize=3, label=kind)
            ax.fill_between(range(1, 13), sizes.amin(0), sizes.amax(0), color=colour, alpha=0.2)
        ax.set(title=stack, xlabel="layer", ylabel="size of the gradient", **axes)
        ax.label_outer()
    fig.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return fig
