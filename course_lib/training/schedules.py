"""Learning rates as functions of the step.

Steps count updates from 1, and a schedule gives the rate *of* that update: it is asked before the optimizer steps, so
no update runs at the rate of another. No update runs at rate 0, neither the first of a warm-up nor the last of a decay.
A schedule has no state, so there is nothing to save.
"""

import math

from course_lib.checks import Count, CountOrZero, Finite, checked

__all__ = ["cosine_schedule", "linear_schedule", "noam_schedule", "warmup_stable_decay_schedule"]


@checked
def noam_schedule(step: Count, d_model: Count, warmup: Count = 4000, factor: Finite = 1.0) -> float:
    """Return the rate of the paper: up in a line for `warmup` updates, then down with the square root of the step.

    factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5); the maximum, factor / sqrt(d_model * warmup), is reached
    at step `warmup`, and half of it again at step 4 * warmup.

    Source: Vaswani et al. 2017, equation 3.
    """
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


@checked
def linear_schedule(
    step: Count, steps: Count, *, peak: Finite = 1.0, warmup: CountOrZero = 0, final: Finite = 0.0
) -> float:
    """Return a rate that rises in a line to `peak` at step `warmup`, then falls in a line towards `final`.

    `final` is where the line would be one update after the last of `steps`.
    """
    share = _share(step, steps, warmup)
    return peak * step / warmup if share is None else peak + (final - peak) * share


@checked
def cosine_schedule(
    step: Count, steps: Count, *, peak: Finite = 1.0, warmup: CountOrZero = 0, final: Finite = 0.0
) -> float:
    """Return a rate that rises in a line to `peak` at step `warmup`, then falls as half a cosine towards `final`.

    Without warm-up this is `torch.optim.lr_scheduler.CosineAnnealingLR`.
    Source: Loshchilov and Hutter 2017, equation 5.
    """
    share = _share(step, steps, warmup)
    if share is None:
        return peak * step / warmup
    return final + (peak - final) * (1.0 + math.cos(math.pi * share)) / 2.0


@checked
def warmup_stable_decay_schedule(
    step: Count, steps: Count, *, decay: CountOrZero, peak: Finite = 1.0, warmup: CountOrZero = 0, final: Finite = 0.0
) -> float:
    """Return a rate that rises to `peak`, stays there, and falls in a line towards `final` in the last `decay` updates.

    A run can go on from the stable part without having known its length. Source: Hu et al. 2024 (MiniCPM), section 4.
    """
    if _share(step, steps, warmup) is None:
        return peak * step / warmup
    if max(warmup, 1) + decay > steps:
        raise ValueError(f"decay: expected at most {steps - max(warmup, 1)}, what warm-up and peak leave, got {decay}")
    late = min(max(0, step - (steps - decay)), decay + 1)
    return peak + (final - peak) * late / (decay + 1)


def _share(step: int, steps: int, warmup: int) -> float | None:
    """How much of the way down is done before this update, from 0 to below 1; None while it still warms up."""
    if warmup >= steps and warmup > 0:
        raise ValueError(f"warmup: expected fewer than steps={steps}, got {warmup}")
    if step < warmup:
        return None
    begin = max(warmup, 1)
    return min(1.0, (step - begin) / (steps - begin + 1))
