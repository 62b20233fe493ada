"""What the laws share: repeatable runs, train and eval modes, differences that NaN cannot hide."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# Relative to the largest magnitude of what is compared. SAME is for two runs of the same shapes on the same kernels,
# where nothing but the planted change can move a number; ROUNDING for two ways to compute one thing.
SAME = 1e-6
ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def rounding(dtype: torch.dtype) -> float:
    """Return the relative difference that reordering a sum may cause in `dtype`."""
    return ROUNDING.get(dtype, 1e-5)


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Run with torch's generators at `seed`, so that dropout repeats; restore them afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def run(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
    """Call `fn` without gradients, always with the same random numbers, and insist on one floating-point tensor."""
    with seeded(), torch.no_grad():
        output = fn(*args, **kwargs)
    return as_output(output)


def as_output(output: Any) -> Tensor:
    """Insist on one tensor of floating-point numbers."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        kind = str(output.dtype) if isinstance(output, Tensor) else type(output).__name__
        raise TypeError(f"fn: expected a function that returns one floating-point tensor, got {kind}")
    return output


@contextmanager
def mode(module: Any, name: str) -> Iterator[None]:
    """Put `module`, if it is one, into "train" or "eval" mode; restore the mode of each of its parts afterwards."""
    if not isinstance(module, nn.Module):
        yield
        return
    before = [(part, part.training) for part in module.modules()]
    try:
        module.train(name == "train")
        yield
    finally:
        for part, training in before:
            part.training = training


def modes_of(fn: Callable[..., Any], module: nn.Module | None) -> tuple[nn.Module | None, list[tuple[str, str]]]:
    """Return the module to switch and (mode, words for the message); a plain function runs only as it is."""
    module = fn if module is None and isinstance(fn, nn.Module) else module
    if module is None:
        return None, [("as is", "")]
    return module, [("train", " in train mode"), ("eval", " in eval mode")]


def wide(tensor: Tensor) -> Tensor:
    """Return the values as float64 on the CPU: not every device has that dtype."""
    return tensor.detach().cpu().double()


def apart(first: Tensor, second: Tensor) -> Tensor:
    """Return the absolute differences, as float64 on the CPU, infinite where one holds NaN."""
    gap = (wide(first) - wide(second)).abs()
    return torch.where(gap.isnan(), torch.inf, gap)


def differences(before: Tensor, after: Tensor, dim: int) -> Tensor:
    """Return the largest absolute difference at each position of axis `dim`: (T,)."""
    gap = apart(before, after)
    others = [axis for axis in range(gap.dim()) if axis != dim]
    return gap.amax(dim=others) if others else gap


def largest(first: Tensor, second: Tensor) -> float:
    """Return the largest absolute difference, 0 for empty tensors."""
    return apart(first, second).max().item() if first.numel() else 0.0


def magnitude(tensor: Tensor) -> float:
    """Return the largest absolute value, 0 for an empty tensor."""
    return wide(tensor).abs().max().item() if tensor.numel() else 0.0


def insist_finite(output: Tensor, what: str) -> None:
    """Raise AssertionError that says where the first NaN or infinity stands."""
    wrong = ~output.detach().isfinite()
    if wrong.any():
        place = tuple(int(i) for i in wrong.nonzero()[0])
        count, value = int(wrong.sum()), output.detach()[place].item()
        raise AssertionError(f"{what} holds {count} value(s) that are not finite, the first is {value} at {place}")


def changed(x: Tensor, where: Tensor, generator: torch.Generator, vocab_size: int | None, scale: float = 3.0) -> Tensor:
    """Return a copy of x with other content at the places `where`, a bool tensor over the leading axes of x.

    Numbers become normal noise of `scale`; a token id becomes another id below `vocab_size` (largest id + 1 if None).
    """
    x = x.detach().clone()
    if x.is_floating_point():
        noise = torch.randn(x.shape, generator=generator, dtype=torch.float64) * scale
        x[where] = noise.to(x.dtype).to(x.device)[where]  # in this order: not every device has float64
        return x
    size = int(x.max()) + 1 if vocab_size is None else vocab_size
    if size < 2:
        raise ValueError(
            "vocab_size: expected at least 2 so that a token can become another; give it if x holds one id"
        )
    step = torch.randint(1, size, x.shape, generator=generator).to(x.dtype).to(x.device)
    x[where] = ((x + step) % size)[where]
    return x


def insist_axis(x: Tensor, dim: int, name: str = "x") -> None:
    """Refuse a position axis that x does not have."""
    if not 0 <= dim < x.dim():
        raise ValueError(f"dim: expected the axis of the positions, 0 to {x.dim() - 1} for {name}, got {dim}")
