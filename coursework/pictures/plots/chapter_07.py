"""Figures of chapter 7: what heads of a trained model do, and how families compare."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from coursework.pictures.plots.common import dots, panels


def habits_of_heads(heads: Sequence[Mapping[str, float]], kinds: Sequence[str]) -> Figure:
    """Which share of its attention each of 6 by 12 heads gives to each kind of token."""
    fig, axes = plt.subplots(1, len(kinds), figsize=(7.2, 2.6), sharey=True)
    for ax, kind in zip(axes, kinds, strict=True):
        shares = np.array([head[kind] for head in heads]).reshape(6, 12)  # (layers, heads)
        image = ax.imshow(shares, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        ax.set(title=f"{kind} token", xlabel="head", xticks=range(0, 12, 2))
        ax.grid(False)
    axes[0].set(ylabel="layer")
    fig.colorbar(image, ax=axes, label="share of attention")
    return fig


def scores_of_families(families: Sequence[str], scores: Mapping[str, Any], measures: Sequence[str]) -> Figure:
    """The scores of each family, a panel for each task, a mark for each seed at equal steps and at equal compute."""
    each = [{"ylabel": measure} for measure in measures]
    fig = panels(dots, families, scores, size=(7.4, 2.8), share="", each=each, apart=0.3)
    for ax in fig.axes:
        plt.setp(ax.get_xticklabels(), rotation=45, ha="right")
    return fig
