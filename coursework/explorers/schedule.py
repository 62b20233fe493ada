"""Learning rates by step: four schedules at the same peak, with the code of the chosen one."""

from typing import Any, ClassVar

from matplotlib.figure import Figure

from course_lib.checks import check_choice, check_integer, check_number
from course_lib.training import TrainingConfig
from coursework.explorers.explorer import Explorer, Table
from coursework.pictures.style import palette, styled

KINDS = ("noam", "cosine", "warmup_stable_decay", "linear")
TITLES = {"noam": "inverse root (Noam)", "cosine": "cosine", "warmup_stable_decay": "warm-up, stable, decay",
          "linear": "linear"}  # fmt: skip
MOST_STEPS = 2000


class ScheduleExplorer(Explorer):
    """Choose a schedule, its warm-up, its decay and a step; see the rate of that step and the code that gives it.

    Steps count updates from 1, as in `course_lib.training`, whose schedules these are.

    Args:
        steps: of the run, at most 2000.
        peak: the highest rate.
        warmup: updates until the peak.
        decay: updates of the fall of "warmup_stable_decay".
        kind: the schedule that is chosen at first: "noam", "cosine", "warmup_stable_decay" or "linear".
        step: the step that is marked at first.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: numbers that do not fit each other.
    """

    script: ClassVar[str] = "schedule"

    def __init__(
        self,
        *,
        steps: int = 100,
        peak: float = 1e-3,
        warmup: int = 10,
        decay: int = 20,
        kind: str = "noam",
        step: int = 1,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        check_choice("kind", kind, KINDS)
        check_number("peak", peak, above=0)
        check_integer("steps", steps, 4, MOST_STEPS)
        check_integer("warmup", warmup, 1, steps // 2)
        check_integer("decay", decay, 1, steps // 2 - 1)
        check_integer("step", step, 1, steps)
        self.steps, self.peak, self.warmup, self.decay, self.kind, self.step = steps, peak, warmup, decay, kind, step
        super().__init__(alt=alt, caption=caption)

    def rate(self, step: int, kind: str | None = None) -> float:
        """Return the rate of an update under a schedule, the chosen one unless given."""
        kind = self.kind if kind is None else kind
        run: dict[str, Any] = {"schedule": kind, "warmup": self.warmup, "decay": self.decay}
        return TrainingConfig(steps=self.steps, learning_rate=self.peak, **run).rate(step)

    def state(self) -> dict[str, Any]:
        """Return the numbers and where the controls stand."""
        return {
            "steps": self.steps,
            "peak": self.peak,
            "warmup": self.warmup,
            "decay": self.decay,
            "kind": KINDS.index(self.kind),
            "step": self.step,
        }

    def figure(self) -> Figure:
        """Draw all four curves, the chosen one strong, and the marked step."""
        with styled():
            fig = Figure(figsize=(7.2, 3.2), layout="constrained")
            ax = fig.subplots()
            numbers = range(1, self.steps + 1)
            colors = [palette.query, palette.key, palette.value, palette.output]
            for kind, color in zip(KINDS, colors, strict=True):
                chosen = kind == self.kind
                rates = [self.rate(step, kind) for step in numbers]
                ax.plot(numbers, rates, color=color, linewidth=2.4 if chosen else 1.0, label=TITLES[kind])
            ax.plot([self.step], [self.rate(self.step)], "o", color="#111111")
            ax.axvline(self.warmup, color=palette.residual, linewidth=0.8, linestyle=":")
            ax.set(title="Learning rate by step", xlabel="step", ylabel="rate", ylim=(0, None))
            fig.legend(loc="outside lower center", ncols=4, frameon=False)
        return fig

    def table(self) -> Table:
        """Return the rates of all schedules at some steps."""
        at = sorted({1, self.warmup, self.step, self.steps // 4, self.steps // 2, 3 * self.steps // 4, self.steps})
        rows = [[str(step), *(f"{self.rate(step, kind):.3e}" for kind in KINDS)] for step in at]
        return Table("rates of the four schedules", ["step", *(TITLES[kind] for kind in KINDS)], rows)

    def default_alt(self) -> str:
        """Say what the curves show."""
        return (
            f"Four learning rates over {self.steps} steps. All rise in a line to {self.peak:g} at step {self.warmup}; "
            f"the inverse root then falls slowly, cosine and linear fall to almost 0 at the end, and warm-up, stable, "
            f"decay stays at its peak until the last {self.decay} steps."
        )

    def default_caption(self) -> str:
        """Say what differs: the end, not the beginning."""
        last = self.rate(self.steps, "noam") / self.peak
        return (
            f"The four schedules begin alike and end differently: after {self.steps} steps the inverse root still has "
            f"{100 * last:.0f} % of its peak, the others almost nothing. The rate of the "
            f"first step is {100 / self.warmup:.2g} % of the peak."
        )
