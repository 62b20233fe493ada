"""Figures of the lab on padding: who sees it, and what it changes."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from coursework.pictures.figures import attention_map
from coursework.pictures.plots.common import bars
from coursework.pictures.style import palette


def what_each_query_sees(masks: Mapping[str, torch.Tensor]) -> Figure:
    """What each query of a sentence may see, all alike; a map for each (T, S) mask."""
    fig, panels = plt.subplots(1, len(masks), figsize=(7.2, 3.4))
    for ax, (title, allowed) in zip(panels, masks.items(), strict=True):
        places = range(1, len(allowed) + 1)
        attention_map(allowed / allowed.sum(-1, keepdim=True), mask=allowed, queries=places, ax=ax, title=title)
    return fig


def weight_on_pads(weights: Mapping[str, torch.Tensor], tokens: Sequence[str]) -> Figure:
    """The weights of one query, a bar for each token, pads grey; a panel for each way."""
    fig, panels = plt.subplots(2, 1, figsize=(7.5, 2.8), sharex=True)
    pads = torch.tensor([token == "pad" for token in tokens])
    colours = [palette.residual if pad else palette.value for pad in pads]
    for ax, (name, found) in zip(panels, weights.items(), strict=True):
        title = f"{name}: {found[pads].sum():.2f} of the weight on the pads"
        bars(tokens, found, ax=ax, colours=colours, title=title, ylabel="weight")
    panels[-1].tick_params(axis="x", labelrotation=90, labelsize=8)
    return fig


def rows_moved(distances: Any, tokens: Sequence[str], marked: str) -> Figure:
    """How far training moved each row of the table of embeddings, one of them marked."""
    colours = [palette.output if token == marked else palette.query for token in tokens]
    fig = bars(tokens, distances, size=(7.5, 2.6), colours=colours, ylabel="distance moved")
    fig.axes[0].tick_params(axis="x", labelrotation=90, labelsize=8)
    return fig
