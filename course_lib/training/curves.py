"""The curve of a run as a figure with alternative text."""

from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from course_lib.viz.display import Picture, render
from course_lib.viz.style import palette

__all__ = ["curve_figure", "curve_picture", "curve_words"]

Record = dict[str, Any]


def curve_figure(history: list[Record]) -> Figure:
    """Draw the training loss and, where there is one, the held-out loss over the steps."""
    figure, axes = plt.subplots(figsize=(6.5, 2.6))
    trained = [(r["step"], r["loss"]) for r in history if "loss" in r]
    held_out = [(r["step"], r["evaluation"]) for r in history if "evaluation" in r]
    if trained:
        axes.plot(*zip(*trained, strict=True), color=palette.residual, linewidth=1.2)
        axes.annotate("training", trained[-1], xytext=(4, 4), textcoords="offset points", color=palette.residual)
    if held_out:
        axes.plot(*zip(*held_out, strict=True), color=palette.query, marker="o", markersize=3)
        axes.annotate("held out", held_out[-1], xytext=(4, -10), textcoords="offset points", color=palette.query)
    axes.set(xlabel="step", ylabel="loss in nats a token")
    axes.margins(x=0.12, y=0.15)  # room for the words
    return figure


def curve_words(history: list[Record]) -> tuple[str, str]:
    """Return alternative text and caption of the curve."""
    losses = [r["loss"] for r in history if "loss" in r]
    steps = history[-1]["step"]
    held_out = [(r["evaluation"], r["step"]) for r in history if "evaluation" in r]
    alt = f"Training loss over {steps} steps: {losses[0]:.3f} in the first record, {losses[-1]:.3f} in the last."
    if not held_out:
        return alt, f"The training loss went from {losses[0]:.2f} to {losses[-1]:.2f} in {steps} steps."
    best, where = min(held_out)
    alt += f" The held-out loss ends at {held_out[-1][0]:.3f}; its lowest is {best:.3f} at step {where}."
    return alt, f"The lowest held-out loss of {steps} steps is {best:.3f}, at step {where}."


def curve_picture(history: list[Record]) -> Picture | None:
    """Return the curve ready for display, or None if there is not enough to draw."""
    if sum("loss" in record for record in history) < 2:
        return None
    alt, caption = curve_words(history)
    figure = curve_figure(history)
    try:
        return render(figure, alt=alt, caption=caption)
    finally:
        plt.close(figure)
