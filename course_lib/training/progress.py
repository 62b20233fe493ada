"""What a run shows while it works: a panel in a notebook, stable lines of text elsewhere.

Text without a front end holds no clocks, so that a stored notebook can be compared with a new run of it.
"""

import html
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, Protocol

import psutil
import torch

from course_lib.training.curves import curve_html

__all__ = ["Lines", "Panel", "Progress", "Shown", "Silent", "duration", "for_this_place"]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run is after an update."""

    step: int
    steps: int
    loss: float  # per token, of this update
    rate: float
    gradient_norm: float
    tokens: int  # so far
    tokens_per_second: float
    seconds: float  # of training in this process
    remaining: float | None  # seconds, None until three steps were timed
    checkpoint_age: float | None  # seconds, None without one
    evaluation: float | None = None  # held-out loss, if it was just computed
    evaluates: bool = False  # this run looks at held-out data as it goes

    @property
    def memory(self) -> float:
        """Memory in use in GB: of the GPU if there is one, else of the process."""
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            return torch.cuda.max_memory_allocated() / 1e9
        return psutil.Process().memory_info().rss / 1e9


class Shown(Protocol):
    """What a `Run` reports to."""

    def update(self, progress: Progress) -> None:
        """Take in the state after an update; called after each."""

    def say(self, text: str) -> None:
        """Show a sentence: an estimate, an interrupt, a damaged checkpoint."""

    def end(self, history: list[dict[str, Any]]) -> None:
        """Show what stays."""


class Silent:
    """Shows nothing."""

    def update(self, *_: Any) -> None:
        """Show nothing."""

    say = end = update


class Lines:
    """A line of text for each evaluation, or, without evaluations, for each tenth of the run."""

    def __init__(self, *, clocks: bool = False) -> None:
        self.clocks = clocks
        self._estimated = False

    def update(self, progress: Progress) -> None:
        """Print a line if it is time for one."""
        if self.clocks and not self._estimated and progress.remaining is not None:
            self._estimated = True
            self.say(estimate(progress))
        tenth = max(1, progress.steps // 10)
        by_step = not progress.evaluates and (progress.step % tenth == 0 or progress.step == progress.steps)
        if by_step or progress.evaluation is not None:
            held_out = "" if progress.evaluation is None else f"  held-out {progress.evaluation:.4f}"
            clock = f"  {progress.tokens_per_second:,.0f} tokens/s  {duration(progress.seconds)}" if self.clocks else ""
            width = len(str(progress.steps))
            print(
                f"step {progress.step:>{width}} of {progress.steps}  loss {progress.loss:.4f}{held_out}{clock}",
                flush=True,
            )

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, flush=True)

    def end(self, history: list[dict[str, Any]]) -> None:
        """Leave the lines as they are."""


class Panel:
    """One HTML output in a notebook, at most five changes a second; at the end it freezes as a curve."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._last = 0.0
        self._text = "Timing the first three steps …"
        self._sentences: list[str] = []
        self._progress: Progress | None = None
        self._evaluation: float | None = None
        self._frozen = False
        self._handle: Any = display(HTML(self._draw()), display_id=True)

    def update(self, progress: Progress) -> None:
        """Draw again, unless it was drawn less than a fifth of a second ago."""
        self._progress = progress
        if progress.evaluation is not None:
            self._evaluation = progress.evaluation
        if progress.remaining is not None and progress.step <= progress.steps:
            self._text = estimate(progress)
        if time.monotonic() - self._last > 0.2 or progress.step == progress.steps:
            self._show()

    def say(self, text: str) -> None:
        """Show a sentence below the numbers."""
        self._sentences.append(text)
        self._show()

    def end(self, history: list[dict[str, Any]]) -> None:
        """Freeze: the last numbers and the curve."""
        self._text, self._frozen = "", True
        self._handle.update(self._html(self._draw() + curve_html(history)))

    def _show(self) -> None:
        self._last = time.monotonic()
        self._handle.update(self._html(self._draw()))

    def _draw(self) -> str:
        lines = [*([self._text] if self._text else []), *self._sentences]
        text = "".join(f"<div>{html.escape(line)}</div>" for line in lines)
        if self._progress is None:
            return f"<div role='status'>{text}</div>"
        p = self._progress
        age = "none yet" if p.checkpoint_age is None else f"{duration(p.checkpoint_age)} ago"
        cells = {
            "step": f"{p.step:,} of {p.steps:,}",
            "elapsed": duration(p.seconds),
            "remaining": "…" if p.remaining is None else duration(p.remaining),
            "tokens/s": f"{p.tokens_per_second:,.0f}",
            "loss": f"{p.loss:.4f}",
            "held-out loss": "…" if self._evaluation is None else f"{self._evaluation:.4f}",
            "learning rate": f"{p.rate:.2e}",
            "gradient norm": f"{p.gradient_norm:.3f}",
            "memory": f"{p.memory:.2f} GB",
            "last checkpoint": age,
        }
        passing = ("remaining", "last checkpoint") if self._frozen else ()  # no longer true when it is read
        items = "".join(
            f"<div><div style='opacity:.7;font-size:85%'>{name}</div>{value}</div>"
            for name, value in cells.items()
            if name not in passing
        )
        grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(10em,1fr));gap:4px 12px;margin:4px 0"
        return (
            f"<div><progress style='width:100%' max='{p.steps}' value='{p.step}' aria-label='steps done'></progress>"
            f"<div style='{grid}'>{items}</div>{text}</div>"
        )


def estimate(progress: Progress) -> str:
    """Say how long the rest will take."""
    left = progress.steps - progress.step
    return f"{left:,} more steps take about {duration(progress.remaining or 0.0)}."


def duration(seconds: float) -> str:
    """Return seconds in words that are short."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def for_this_place() -> Shown:
    """Return a `Panel` where a front end shows it, else `Lines`, with clocks outside notebooks."""
    shell: Any = sys.modules.get("IPython")
    if "ipykernel" not in sys.modules or shell is None or shell.get_ipython() is None:
        return Lines(clocks=True)
    served = any(name in os.environ for name in ("JPY_SESSION_NAME", "VSCODE_PID", "COLAB_RELEASE_TAG"))
    return Panel() if served else Lines()
