"""Figures of the lab on one update."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from coursework.pictures.plots.common import bars, curves, histogram
from coursework.pictures.style import palette


def lengths_and_padding(lengths: Sequence[int], waste: Mapping[str, float]) -> Figure:
    """The lengths of the sentences, and the share of padding in each way of making batches."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.5))
    histogram(range(0, 75, 3), lengths, ax=left, xlabel="length of the target", ylabel="sentences")
    colours = (palette.key, palette.value)
    bars(list(waste), list(waste.values()), ax=right, colours=colours, ylabel="share of padding", ylim=(0, 0.6))
    return fig


def gradient_cut_in_two_ways() -> Figure:
    """The gradient (3, 4), shortened to length 1, and with each of its numbers cut at 1."""
    fig, ax = plt.subplots(figsize=(5.4, 3.4))
    for end, color, name, shift in (
        ((3, 4), palette.residual, "gradient (3, 4)", (6, -4)),
        ((1, 1), palette.key, "each cut at 1", (6, -6)),
        ((0.6, 0.8), palette.value, "clipped together", (-112, 8)),
    ):
        ax.annotate("", end, (0, 0), arrowprops={"arrowstyle": "-|>", "lw": 2, "mutation_scale": 14, "color": color})
        ax.annotate(name, end, shift, textcoords="offset points", color=color)
    ax.add_patch(Circle((0, 0), 1, fill=False, linestyle="--", color=palette.residual))
    ax.set(xlim=(-4, 5.5), ylim=(-1.3, 4.4), xlabel="first weight", ylabel="second weight", aspect="equal")
    return fig


def parts_forgotten(ends: Mapping[str, float], losses: Mapping[str, Sequence[float]]) -> Figure:
    """How far from the straight run one ends that forgot a part, and the losses of two such beside the straight one."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.9))
    bars(
        list(ends), list(ends.values()), ax=left, lying=True, colours=palette.key, xlabel="distance to the straight run"
    )
    left.set_ylabel("forgotten")
    shown = {name: losses[name] for name in ("straight on", "optimizer", "step")}
    colours = (palette.residual, palette.query, palette.key)
    curves(range(21, 41), shown, ax=right, colours=colours, styles=("-",), xlabel="step", ylabel="loss per token")
    right.set_ylim(2.2)
    right.legend(loc="lower left", ncols=3, fontsize=8)
    return fig
