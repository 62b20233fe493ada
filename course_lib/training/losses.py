"""Losses over tokens, as a sum and a count, so that the mean is right over any split of a batch.

The mean over tokens of a large batch is not the mean of its parts' means when the parts hold different numbers of real
tokens. Sums and counts add up: over accumulation, over processes, over a held-out set.

Shapes: B batch, T positions, V vocabulary.
"""

import torch
from torch import Tensor

__all__ = ["cross_entropy", "label_smoothed_cross_entropy"]


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
    real = torch.ones_like(targets, dtype=torch.bool) if ignore is None else targets != ignore
    index = targets.long() if ignore is None else targets.long().where(real, 0)
    try:
        right = logits.gather(-1, index[..., None])[..., 0]  # (..., V) -> (..., 1) -> (...)
    except RuntimeError as error:
        if "out of bounds" not in str(error):
            raise
        raise ValueError(
            f"targets: expected ids 0 to {logits.size(-1) - 1} for V={logits.size(-1)}, "
            f"got {int(targets.min())} to {int(targets.max())}"
        ) from None
    costs = logits.logsumexp(dim=-1) - (1.0 - smoothing) * right
    if smoothing > 0.0:
        costs = costs - smoothing * logits.mean(dim=-1)
    return costs.where(real, 0.0).sum(), real.sum()


def _check(logits: Tensor, targets: Tensor, smoothing: float) -> None:
    if not logits.is_floating_point():
        raise TypeError(f"logits: expected floating point, got {logits.dtype}")
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise TypeError(f"targets: expected integer token ids, got {targets.dtype}")
    if logits.dim() < 1 or logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"targets: expected {tuple(logits.shape[:-1])}, the shape of logits without V, got {tuple(targets.shape)}"
        )
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing: expected a probability in [0, 1), got {smoothing!r}")
