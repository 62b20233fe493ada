"""Progress in a terminal: one line that moves, and lines that stay."""

import sys
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from course_lib.training.progress import Lines, Progress, Shown, duration, estimate

__all__ = ["Terminal", "for_the_terminal"]


class Terminal:
    """A bar with elapsed and remaining time, tokens a second, loss and memory; evaluations stay as lines."""

    def __init__(self) -> None:
        self.console = Console()
        columns = (BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[numbers]}"))
        self.bar = Bar(*columns, console=self.console, refresh_per_second=5, transient=True)
        self.task: Any = None
        self._estimated = False

    def update(self, progress: Progress) -> None:
        """Move the bar."""
        if self.task is None:
            self.task = self.bar.add_task("", total=progress.steps, numbers="")
            self.bar.start()
        if not self._estimated and progress.remaining is not None:
            self._estimated = True
            self.say(estimate(progress))
        remaining = "…" if progress.remaining is None else duration(progress.remaining)
        age = "none" if progress.checkpoint_age is None else f"{duration(progress.checkpoint_age)} ago"
        numbers = (
            f"{duration(progress.seconds)}, {remaining} left  {progress.tokens_per_second:,.0f} tokens/s  "
            f"loss {progress.loss:.4f}  rate {progress.rate:.1e}  norm {progress.gradient_norm:.2f}  "
            f"{progress.memory:.2f} GB  checkpoint {age}"
        )
        self.bar.update(self.task, completed=progress.step, numbers=numbers)
        if progress.evaluation is not None:
            self.say(f"step {progress.step:,}: loss {progress.loss:.4f}, held-out loss {progress.evaluation:.4f}")
        if progress.step == progress.steps:
            self.bar.stop()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def end(self, history: list[dict[str, Any]]) -> None:
        """Take the bar away."""
        self.bar.stop()


def for_the_terminal() -> Shown:
    """Return a `Terminal` where there is one, else lines of text with clocks."""
    return Terminal() if sys.stdout.isatty() else Lines(clocks=True)
