"""What chapter 6 says about the rate together with its warm-up."""

from coursework.records import Claim
from experiments import experiment, source_of
from experiments.chapter_04 import train_reversal

WARM_UPS = (0, 15, 50)


def higher_rates_need_it(record: Claim) -> bool:
    """Of ten seeds: at the lowest rate all learn; at 0.02 at most three without warm-up, and at least nine with 50."""

    def learned(steps: int, rate: float) -> int:
        return sum(value > 0.9 for value in record.values(f"{steps} steps", "right letters", rate))

    return all(learned(steps, 5e-3) == 10 for steps in WARM_UPS) and learned(0, 2e-2) <= 3 and learned(50, 2e-2) >= 9


@experiment(
    claim="At a low rate an encoder learns with and without warm-up; at a high one nearly only with it.",
    seeds=10,
    arms={f"{steps} steps": {"warm_up": steps} for steps in WARM_UPS},
    rates=(5e-3, 1e-2, 2e-2, 3e-2),
    better="max right letters",
    holds=higher_rates_need_it,
    sources=lambda: source_of(train_reversal),
)
def rate_and_warm_up(seed: int, rate: float, *, warm_up: int) -> dict[str, float]:
    """Four post-norm layers of width 32, six letters to be written backwards, 120 steps of Adam."""
    sizes = {"depth": 4, "steps": 120, "D": 32, "B": 32, "init": "normal"}
    return {"right letters": train_reversal(seed, rate, warm_up=warm_up, **sizes)}
