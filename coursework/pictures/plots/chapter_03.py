"""Figures of the chapter on positional encoding, and of its labs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from coursework.pictures.plots.common import bars, curves
from coursework.pictures.plots.maps import heat
from coursework.pictures.style import palette

PLACES = range(16, 256, 32)  # the middles of eight stretches of text


def digits_beside_clocks(digits: Any, sines: Any) -> Figure:
    """Numbers in binary, a row each, beside the sines of clocks."""
    fig, axes = plt.subplots(1, 2, figsize=(6.6, 3.2))
    look: dict[str, Any] = {"aspect": "auto", "every": (1, 3)}
    heat(digits, ax=axes[0], cmap="Greys", reach=(0, 1.4), digits=0, title="binary digits, back to front", **look)
    heat(sines, ax=axes[1], cmap=palette.signed, reach=(-1, 1), title="sines of four clocks", **look)
    axes[0].set(xlabel="digit, fastest first", ylabel="number")
    axes[1].set_xlabel("clock, fastest first")
    return fig


def right_and_looked_at(right: Any, weight: Any, turns: Collection[int]) -> Figure:
    """Where a model that was trained on 16 positions is right, and how far back its heads look at the last position."""
    fig, axes = plt.subplots(1, 2, figsize=(7.4, 2.9))
    curves(range(3, 64), {"": right}, ax=axes[0], styles=("-",), xlabel="place", ylabel="accuracy", ylim=(0, 1.05))
    axes[0].axvline(15.5, color=palette.residual, linestyle=":")
    axes[0].text(16.2, 0.03, "not trained", color=palette.residual)
    colours = [palette.output if back in turns else palette.residual for back in range(64)]
    bars(range(64), weight, ax=axes[1], colours=colours, xticks=(3, 9, 15, *turns))
    axes[1].set(xlabel="positions back from position 63", ylabel="weight")
    return fig


def beyond_training(text: Any, cut: Any, right: Any, guess: Any, names: Sequence[str]) -> Figure:
    """Loss by position, whole and `cut` into pieces; right answers by distance, and those of a guess."""
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.9), width_ratios=(3, 2))
    lines, colours = {"the whole text": text, "cut into pieces of 64": cut}, (palette.query, "#8A8A8A")
    curves(PLACES, lines, ax=axes[0], colours=colours, styles=("o-", "o--"), title="Text", ylabel="loss", xlim=(0, 256))
    axes[0].axvspan(0, 64, color="#EDEDED", zorder=0)
    axes[0].set_xlabel("position (grey: trained)")
    axes[1].bar(names, right, color=[palette.query, palette.query, palette.key, palette.key])
    axes[1].hlines(guess, np.arange(4) - 0.45, np.arange(4) + 0.45, color="#111111", linestyle="--")
    axes[1].set(title="Notes", xlabel="positions back", ylabel="right answers", ylim=(0, 1.05))
    return fig


def loss_by_place(methods: Mapping[str, Mapping[str, Any]], colours: Mapping[str, str]) -> Figure:
    """Loss on the text by position for each method: the mean of the seeds, and their range."""
    fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.4), sharey=True)
    for ax, (title, losses) in zip(axes, methods.items(), strict=True):
        for arm, seeds in losses.items():  # (positions, seeds)
            ax.plot(PLACES, seeds.mean(1), color=colours[arm], marker="o", markersize=3, label=arm)
            ax.fill_between(PLACES, seeds.amin(1), seeds.amax(1), color=colours[arm], alpha=0.1, linewidth=0)
        ax.axvspan(0, 64, color="#EDEDED", zorder=0)
        ax.set(title=title, xlabel="place", xlim=(0, 256))
    axes[0].set_ylabel("loss on the text")
    axes[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return fig
