"""The curve of a run as a picture with alternative text."""

import base64
import html
import io
from typing import Any

__all__ = ["curve_html"]

Record = dict[str, Any]


def curve_html(history: list[Record]) -> str:
    """Draw the training loss and, where there is one, the held-out loss over the steps.

    Returns "" for fewer than two records, and where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    trained = [(r["step"], r["loss"]) for r in history if "loss" in r]
    held_out = [(r["step"], r["evaluation"]) for r in history if "evaluation" in r]
    if len(trained) < 2:
        return ""
    figure = Figure(figsize=(6.5, 2.6), layout="constrained")
    axes = figure.subplots()
    for points, name, colour, marker in ((trained, "training", "0.43", ""), (held_out, "held out", "C0", ".")):
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, linewidth=1.2)
            axes.annotate(name, points[-1], xytext=(4, 4), textcoords="offset points", color=colour)
    axes.set(xlabel="step", ylabel="loss in nats a token")
    axes.margins(x=0.12, y=0.15)  # room for the words
    png = io.BytesIO()
    figure.savefig(png, dpi=144)
    alt, caption = (html.escape(text) for text in _words(trained, held_out))
    source = f"data:image/png;base64,{base64.b64encode(png.getvalue()).decode('ascii')}"
    style = "max-width:100%;height:auto;background:#fff"
    return f'<img alt="{alt}" width="624" style="{style}" src="{source}"><figcaption>{caption}</figcaption>'


def _words(trained: list[tuple[int, float]], held_out: list[tuple[int, float]]) -> tuple[str, str]:
    """Alternative text and caption."""
    steps, first, last = trained[-1][0], trained[0][1], trained[-1][1]
    alt = f"Training loss over {steps} steps: {first:.3f} in the first record, {last:.3f} in the last."
    if not held_out:
        return alt, f"The training loss went from {first:.2f} to {last:.2f} in {steps} steps."
    best, where = min((loss, step) for step, loss in held_out)
    alt += f" The held-out loss ends at {held_out[-1][1]:.3f}; its lowest is {best:.3f} at step {where}."
    return alt, f"The lowest held-out loss of {steps} steps is {best:.3f}, at step {where}."
