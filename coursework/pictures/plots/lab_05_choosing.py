"""Figures of the lab on choosing the next token."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from coursework.pictures.plots.common import bars, curves, dots
from coursework.pictures.style import palette


def words_and_repeats(judged: Mapping[str, tuple[float, float]]) -> Figure:
    """The share of known words against that of repeated pieces, a point for each way of choosing."""
    fig, ax = plt.subplots(figsize=(6.6, 3.6))
    for name, (words, repeated) in judged.items():
        color = palette.key if name == "real text" else palette.query
        ax.plot(repeated, words, "o", color=color)
        beside = (6, -9 if name == "top-k 5" else 3)
        ax.annotate(name, (repeated, words), beside, textcoords="offset points", fontsize=9, color=color)
    ax.set(xlabel="share of repeated pieces", ylabel="share of known words", xlim=(-0.02, 0.85), ylim=(0, 1.05))
    return fig


def known_words_by_stretch(stretches: Sequence[str], found: Mapping[str, Any], live: Mapping[str, Any]) -> Figure:
    """The share of known words in each stretch of a text: dots for the recorded models, crosses for the live one."""
    colours = (palette.key, palette.query)
    fig = dots(stretches, found, size=(6.6, 3.1), colours=colours, names="lower left", ylim=(0, 1))
    for shares, color, side in zip(live.values(), colours, (-0.1, 0.1), strict=True):
        fig.axes[0].plot([place + side for place in range(3)], shares, "x--", color=color, linewidth=1)
    fig.axes[0].set(ylabel="share of known words", xlabel="characters after the prompt")
    return fig


def guesses_kept_and_replaced(wanted: torch.Tensor, guessed: torch.Tensor) -> Figure:
    """What a draft proposes, with the refused part hatched; what is kept and put in its place; and what is wanted."""
    fig, (left, middle, right) = plt.subplots(1, 3, figsize=(7.2, 2.5), sharey=True)
    letters, kept = ["A", "B", "C"], torch.minimum(wanted, guessed)
    left.bar(letters, guessed, color="#FFFFFF", edgecolor=palette.key, hatch="///")
    middle.bar(letters, wanted, color=palette.output)
    for ax, title in ((left, "what the draft proposes"), (middle, "kept, and replaced")):
        bars(letters, kept, ax=ax, colours=palette.query, title=title)
    bars(letters, wanted, ax=right, colours=palette.value, title="what is wanted")
    left.set_ylabel("probability")
    return fig


def tokens_per_pass(measured: Mapping[int, float]) -> Figure:
    """Tokens per pass by the number of guesses: by formula for three shares of guesses kept, and as measured."""
    guesses = range(1, 9)
    lines = {f"kept with {share}": [sum(share**i for i in range(n + 1)) for n in guesses] for share in (0.5, 0.8, 0.9)}
    colours = (palette.key, palette.query, palette.value)
    axes: dict[str, Any] = {"xlabel": "guesses in a round", "ylabel": "tokens per pass", "ylim": (0, 7)}
    fig = curves(guesses, lines, size=(6.4, 3.0), colours=colours, styles="-", names="end", **axes)
    points = fig.axes[0].plot(*zip(*measured.items(), strict=True), "o", color=palette.residual)
    fig.axes[0].legend(points, ["table of followers, measured"], loc="upper left")
    return fig
