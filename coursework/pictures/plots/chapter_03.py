"""Figures of the chapter on positional encoding, and of its labs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from coursework.pictures.plots.common import curves
from coursework.pictures.style import palette

PLACES = range(16, 256, 32)  # the middles of eight stretches of text


def right_and_scored(right: Any, score: Any, second: Any, turns: Collection[int]) -> Figure:
    """Where a model trained on 16 positions is right, and the score of each distance, minus that of distance 3.

    `second` is the part of the second clock; `turns` are the distances to be marked.
    """
    fig, axes = plt.subplots(1, 2, figsize=(7.4, 2.9), width_ratios=(2, 3))
    curves(range(3, 64), {"": right}, ax=axes[0], styles=("-",), xlabel="position", ylabel="accuracy", ylim=(0, 1.05))
    curves(range(64), {"": score}, ax=axes[1], styles=("-",), colours=(palette.query,))
    axes[1].plot(range(64), second, "--", color=palette.key, label="what the second clock adds")
    axes[1].plot(turns, [score[back] for back in turns], "o", color=palette.output, label="beats the correct key")
    axes[1].legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    axes[1].axhline(0, color=palette.residual, linewidth=1)
    axes[1].set_xticks((3, 9, 16, 22, 28, 34, *turns))
    axes[1].set(xlabel="positions back from position 63", ylabel="mean score, correct key at 0")
    axes[1].set_ylim(bottom=1.2 * min(score))
    for ax in axes:
        ax.axvline(15.5, color=palette.residual, linestyle=":")
        ax.text(16.2, 0.03, "not trained", color=palette.residual, transform=ax.get_xaxis_transform())
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
        ax.set(title=title, xlabel="position", xlim=(0, 256))
    axes[0].set_ylabel("loss on the text")
    axes[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return fig
