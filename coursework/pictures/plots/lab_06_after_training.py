"""Figures of the lab on what comes after training: preferences, rewards, samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from coursework.pictures.plots.common import curves
from coursework.pictures.style import palette


def earned_by_ratio() -> Figure:
    """What a token earns by its ratio, clipped and dashed without clipping; dots are the numbers by hand."""
    ratios = torch.linspace(0.4, 1.8, 200)
    fig, panels = plt.subplots(1, 2, figsize=(7.2, 2.6))
    for ax, sign, by_hand in zip(panels, (1, -1), (1.2, -1.5), strict=True):
        ax.axvspan(0.8, 1.2, color="#EDEDED", zorder=0)
        ax.plot(ratios, sign * ratios, color="#8A8A8A", linestyle="--", linewidth=1.2)
        ax.plot(ratios, torch.minimum(sign * ratios, sign * ratios.clamp(0.8, 1.2)), linewidth=2.2)
        ax.scatter([1.5], [by_hand], color=palette.key, zorder=3)
        ax.set(title=f"advantage {sign:+d}", xlabel="ratio", ylabel="earned")
    return fig


def right_within(ks: Sequence[int], lines: Mapping[str, Any], recorded: Mapping[str, Mapping[int, Any]]) -> Figure:
    """The share of questions with a right answer among k, a curve for each model, pale dots for the recorded runs."""
    axes: dict[str, Any] = {"xscale": "log", "xticks": ks, "xticklabels": ks, "ylim": (0, 1)}
    fig = curves(
        ks, lines, size=(6.4, 3.0), styles=("o-",), xlabel="k, samples for each question", ylabel="pass@k", **axes
    )
    for runs, color in zip(recorded.values(), palette.series, strict=False):
        for k, found in runs.items():
            fig.axes[0].scatter([k] * len(found), found, color=color, alpha=0.35, s=18)
    return fig


def from_the_start(start: Any, means: Mapping[str, Any]) -> Figure:
    """pass@1 and pass@64: an arrow from the start to what each kind of training made of it."""
    looks: dict[str, tuple[str, tuple[float, float]]] = {
        "DPO, with SFT": (palette.value, (7, -3)),
        "SFT, same 200 answers": (palette.residual, (7, 2)),
        "GRPO": (palette.key, (6, -11)),
        "SFT, own right answers": (palette.query, (7, 2)),
        "SFT, 1120 written answers": (palette.output, (7, 2)),
    }
    fig, ax = plt.subplots(figsize=(6.6, 3.4))
    for label, (color, beside) in looks.items():
        arrow = {"arrowstyle": "-|>", "color": color, "linewidth": 1.8}
        ax.annotate("", means[label], start, arrowprops=arrow)
        ax.annotate(label, means[label], beside, textcoords="offset points", color=color, va="center")
    ax.scatter(*start, color="#555555", zorder=3)
    ax.annotate("SFT, the start", start, (-8, 0), textcoords="offset points", ha="right", va="center", color="#555555")
    ax.set(
        xlim=(0.2, 0.68), ylim=(0.7, 0.95), xlabel="pass@1, mean over the seeds", ylabel="pass@64, mean over the seeds"
    )
    return fig
