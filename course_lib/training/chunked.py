"""Cross-entropy through the head of a model, a few rows of logits at a time.

The logits (N, V) of a large vocabulary are often the largest tensor of a training step, and their gradient and softmax
are as large. Here each chunk of rows goes through the head, its loss and its gradient are computed at once, and its
logits are forgotten.

Shapes: N rows, D model width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks import check_integer, check_width
from course_lib.training.losses import label_smoothed_cross_entropy

__all__ = ["chunked_cross_entropy"]


def chunked_cross_entropy(
    vectors: Tensor, head: nn.Module, targets: Tensor, *, rows: int, smoothing: float = 0.0, ignore: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return what `label_smoothed_cross_entropy(head(vectors), targets, ...)` returns, without all logits at once.

    Args:
        vectors: (..., D), what the head reads.
        head: an `nn.Linear` to V logits.
        targets: integer ids (...).
        rows: logits of so many targets are held at a time.
        smoothing, ignore: as in `label_smoothed_cross_entropy`.

    The gradient is computed in the forward pass, so it costs no more operations than the plain form. There is no
    gradient of the gradient. Source: the idea is that of Hsu et al. 2024 (Liger Kernel), section 3.2.
    """
    check_integer("rows", rows)
    if not isinstance(head, nn.Linear):
        raise TypeError(f"head: expected an nn.Linear, got {type(head).__name__}")
    if vectors.shape[:-1] != targets.shape:
        raise ValueError(f"targets: expected {tuple(vectors.shape[:-1])} like vectors, got {tuple(targets.shape)}")
    check_width("vectors", vectors, head.weight.size(1))
    kind = vectors.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else vectors.dtype
    with torch.autocast(kind, enabled=False):
        total = _Chunked.apply(
            vectors.flatten(0, -2), head.weight, head.bias, targets.flatten(), (rows, smoothing, ignore, dtype)
        )
    real = targets.numel() if ignore is None else (targets != ignore).sum()
    return total, torch.as_tensor(real, device=targets.device)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, options: Any
    ) -> Tensor:
        rows, smoothing, ignore, dtype = options
        wanted = any(ctx.needs_input_grad)
        tables = weight.to(dtype), None if bias is None else bias.to(dtype)
        parts = [torch.zeros_like(part) if wanted and part is not None else None for part in (vectors, weight, bias)]
        total = vectors.new_zeros((), dtype=torch.float32 if dtype != torch.float64 else dtype)
        for start in range(0, len(targets), rows):
            x, wanted_ids = vectors[start : start + rows].to(dtype), targets[start : start + rows]
            logits = F.linear(x, *tables)  # (n, V)
            with torch.enable_grad():
                seen = logits.detach().requires_grad_(wanted)
                loss, _ = label_smoothed_cross_entropy(seen, wanted_ids, smoothing, ignore=ignore)
            total += loss.detach()
            if not wanted:
                continue
            (gradient,) = torch.autograd.grad(loss, seen)  # (n, V)
            _accumulate(parts, start, gradient, x, tables[0])
        ctx.save_for_backward(*parts)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outside: Tensor) -> Any:  # type: ignore[override]
        vectors, weight, bias = (None if part is None else part * outside for part in ctx.saved_tensors)
        return vectors, weight, bias, None, None


def _accumulate(parts: list[Tensor | None], start: int, gradient: Tensor, x: Tensor, table: Tensor) -> None:
    """Add what the gradient (n, V) of some rows of logits gives for vectors, weight and bias."""
    vectors, weight, bias = parts
    if vectors is not None:
        vectors[start : start + len(x)] = gradient @ table
    if weight is not None and weight.dtype == x.dtype:
        weight.addmm_(gradient.T, x)
    elif weight is not None:
        weight += gradient.T @ x  # sums over chunks in the weights' own precision
    if bias is not None:
        bias += gradient.sum(dim=0)
