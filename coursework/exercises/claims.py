"""What the check of a capstone finds: claims, each with what is against it."""

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Found = Iterator[tuple[str, str]]
"""What a task finds: a claim, and what is against it; an empty text if it holds."""


class Missing(Exception):
    """An answer cannot be looked at; the message says what is missing."""


def law(claim: str, rule: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, str]:
    """Return the claim, and what the law has against it."""
    try:
        rule(*arguments, **options)
    except AssertionError as broken:
        return claim, str(broken)
    return claim, ""


def needs(claim: str, value: float, least: float, baseline: str) -> tuple[str, str]:
    """Return the claim that a number is large enough, with the number."""
    said = f"{claim}: {value:.3g}, needed {least:.3g}; {baseline}"
    return said, "" if value >= least else "too low"


def distributions(weights: Tensor) -> tuple[str, str]:
    """Return the claim that each row of weights is a distribution, and what is against it."""
    sums = weights.sum(-1)
    proper = (weights >= 0).all() and (sums - 1).abs().max() < 1e-3
    found = "" if proper else f"the sums run from {sums.min():.3g} to {sums.max():.3g}"
    return "each row of weights is a distribution", found


def shape(what: str, tensor: Any, shape: tuple[int, ...]) -> None:
    """Raise Missing unless it is a tensor of this shape."""
    if not isinstance(tensor, Tensor):
        raise Missing(f"{what}: expected a tensor of shape {shape}, got {type(tensor).__name__}")
    if tuple(tensor.shape) != shape:
        raise Missing(f"{what}: expected the shape {shape}, got {tuple(tensor.shape)}")
