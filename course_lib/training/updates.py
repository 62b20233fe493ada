"""One update of the weights, exact however the batch is cut: over accumulation, over processes, ragged or not."""

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from course_lib.checks import Positive, Several, checked, kind
from course_lib.training.config import Precision
from course_lib.training.distributed import Batch, Processes, gathered

__all__ = ["Update", "clip_gradients", "evaluate", "has_bfloat16", "update"]

Loss = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]


class Update(NamedTuple):
    """What one update saw, over all its batches and processes."""

    loss: float  # per token
    tokens: int
    gradient_norm: float  # before clipping
    stop: bool  # some process was asked to stop


@checked
def update(
    model: nn.Module,
    loss: Loss,
    batches: Annotated[Sequence[Batch], Several],
    optimizers: Sequence[torch.optim.Optimizer],
    *,
    clip: Positive | None = None,
    precision: Precision = "float32",
    processes: Processes | None = None,
    stop: Callable[[], bool] | None = None,
) -> Update:
    """Update the weights by the gradient of the mean loss over all real tokens of all batches and processes.

    Args:
        model: called by `loss`, and holds the gradients; what `Processes.wrap` returned if there are several processes.
        loss: (model, batch) -> sum of the losses and number of tokens.
        batches: for one update together; their gradients accumulate.
        optimizers: stepped once.
        clip: largest norm of the gradient, all parameters together.
        precision: "bfloat16" runs the loss under autocast; weights and gradients stay as they are.
        processes: those that share the work, each with its rows of the same batches; this one alone unless given.
        stop: asked in each process; any True is reported by all.

    Raises FloatingPointError if the loss or the gradient is not finite; the weights are then as before.
    """
    processes = Processes(device=next(model.parameters()).device) if processes is None else processes
    for optimizer in optimizers:
        optimizer.zero_grad()
    totals = _zeros(3, processes.device)  # loss, tokens, whether to stop
    for number, batch in enumerate(batches):
        rows, mine = processes.share(batch)
        with processes.accumulating(model, last=number == len(batches) - 1):
            with autocast(processes.device, precision):
                total, count = _sum_and_number(loss(model, rows))
            # Sums, not means: they are divided once, when the number of all tokens is known.
            (total if mine else total * 0.0).backward()
        if mine:
            totals[0] += total.detach()
            totals[1] += count
    totals[2] = float(stop is not None and stop())
    gradients = [p.grad for optimizer in optimizers for p in _parameters(optimizer) if p.grad is not None]
    # The only time that the host waits for the device.
    total_loss, tokens, stopped, norm = torch.cat([processes.sum(totals), _norm(gradients).to(totals)[None]]).tolist()
    share = processes.world / max(tokens, 1.0)  # wrapped models average over processes; undo that
    norm *= share
    if not math.isfinite(total_loss) or not math.isfinite(norm):
        raise FloatingPointError(f"the loss is {total_loss / max(tokens, 1.0)}, the gradient's norm {norm}")
    _scale(gradients, share * _clip_factor(norm, clip))
    for optimizer in optimizers:
        optimizer.step()
    return Update(total_loss / max(tokens, 1.0), round(tokens), norm, stopped > 0)


@checked
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: Positive) -> float:
    """Scale all gradients together so that their norm is at most `max_norm`, and return what it was.

    The direction of the gradient stays. Source: Pascanu et al. 2013, algorithm 1.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = float(_norm(gradients))
    if not math.isfinite(norm):
        raise ValueError(f"parameters: expected finite gradients, got a norm of {norm}")
    _scale(gradients, _clip_factor(norm, max_norm))
    return norm


@torch.no_grad()
@checked
def evaluate(
    model: nn.Module,
    loss: Loss,
    batches: Iterable[Batch],
    *,
    precision: Precision = "float32",
    processes: Processes | None = None,
    stop: Callable[[], bool] | None = None,
) -> float:
    """Return the mean loss per real token of held-out batches, without dropout; NaN if `stop` broke it off."""
    processes = Processes(device=next(model.parameters()).device) if processes is None else processes
    training = model.training
    model.eval()
    totals = _zeros(2, processes.device)  # loss, tokens
    try:
        for batch in batches:
            if stop is not None and processes.world == 1 and stop():
                return math.nan
            rows, mine = processes.share(batch)
            with autocast(processes.device, precision):
                total, count = _sum_and_number(loss(model, rows))
            if mine:
                totals[0] += total
                totals[1] += count
    finally:
        model.train(training)
    total_loss, tokens = processes.sum(totals).tolist()
    if tokens == 0:
        raise ValueError("batches: expected held-out batches with at least one real token")
    return total_loss / tokens


def autocast(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a forward pass of this precision runs."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device multiplies matrices in bfloat16 by instructions of its own, faster than in float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    known = [getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile")]
    return device.type == "cpu" and any(supported() for supported in known if supported is not None)


def _sum_and_number(found: object) -> tuple[Tensor, Tensor]:
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"loss: expected a function that returns the sum of losses and their number, got {kind(found)}")
    return found


def _zeros(n: int, device: torch.device) -> Tensor:
    """Sums to come, in double precision where the device has it."""
    return torch.zeros(n, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    return gathered(torch.nn.utils.get_total_norm(gradients))


def _clip_factor(norm: float, max_norm: float | None) -> float:
    return 1.0 if max_norm is None or norm <= max_norm else max_norm / norm


def _scale(gradients: Sequence[Tensor], factor: float) -> None:
    if factor != 1.0 and gradients:
        torch._foreach_mul_(list(gradients), factor)
