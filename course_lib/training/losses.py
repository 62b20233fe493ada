"""Losses over tokens, as a sum and a count, so that the mean is right over any split of a batch.

The mean over tokens of a large batch is not the mean of its parts' means when the parts hold different numbers of real
tokens. Sums and counts add up: over accumulation, over processes, over a held-out set.

Shapes: B batch, T positions, V vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import check_floating, check_integers, check_probability

__all__ = ["cross_entropy", "label_smoothed_cross_entropy"]

_NOTHING = torch.iinfo(torch.int64).min  # an id that no target has


def cross_entropy(logits: Tensor, targets: Tensor, *, ignore: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy summed over real targets, in nats, and their number.

    Args:
        logits: (..., V), computed with in float32 or better.
        targets: integer ids (...), of the shape of logits without V.
        ignore: targets with this id, usually padding, count for nothing.

    Returns:
        Sum and number, both 0-dimensional; divide the one by the other for the mean. Without real targets both are 0.
    """
    return label_smoothed_cross_entropy(logits, targets, 0.0, ignore=ignore)


def label_smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, smoothing: float = 0.1, *, ignore: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy against smoothed targets summed over real ones, in nats, and their number.

    The right token gets probability 1 - smoothing, and `smoothing` is spread evenly over all V tokens, the right one
    included, as in torch. With Z the log of the sum of exp(logits), each target costs
    Z - (1 - smoothing) * logits[target] - smoothing * mean(logits). Arguments and result as `cross_entropy`.

    Source: Szegedy et al. 2016, section 7; Vaswani et al. 2017, section 5.4.
    """
    _check(logits, targets, smoothing)
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    nothing = _NOTHING if ignore is None else ignore
    try:  # torch's kernel passes over the logits half as often as the formula would
        total = F.cross_entropy(
            logits.flatten(0, -2) if logits.dim() > 1 else logits[None],  # (..., V) -> (N, V)
            targets.long().flatten(),
            ignore_index=nothing,
            label_smoothing=smoothing,
            reduction="sum",
        )
    except (IndexError, RuntimeError) as error:
        if "out of bounds" not in str(error):
            raise
        raise _outside(targets, logits.size(-1)) from None
    return total, (targets != nothing).sum()


def _outside(targets: Tensor, V: int) -> ValueError:
    return ValueError(f"targets: expected ids 0 to {V - 1} for V={V}, got {int(targets.min())} to {int(targets.max())}")


def _check(logits: Tensor, targets: Tensor, smoothing: float) -> None:
    check_floating("logits", logits)
    check_integers("targets", targets, "integer token ids")
    check_probability("smoothing", smoothing)
    if logits.dim() < 1 or logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets: expected {tuple(logits.shape[:-1])}, the shape of logits without V, got {tuple(targets.shape)}"
        )
