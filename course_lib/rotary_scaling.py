"""Rotary frequencies beyond the trained length: what maps those of the training to those of a longer text.

Each takes angular frequencies (E / 2,), E the width of a head, and returns as many.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearScaling:
    """Positions squeezed by `factor`, so that a longer text spans the trained angles. Source: Chen et al. 2023."""

    factor: float

    def __call__(self, values: Tensor) -> Tensor:
        """Divide each frequency by the factor."""
        return values / self.factor


@dataclass(frozen=True)
class NTKScaling:
    """The slowest frequency divided by `factor`, the fastest kept, geometric between: the base grows instead."""

    factor: float

    def __call__(self, values: Tensor) -> Tensor:
        """Return the frequencies (E / 2,) of the larger base."""
        return values * self.factor ** -torch.linspace(0, 1, len(values), device=values.device)


@dataclass(frozen=True)
class DynamicNTKScaling:
    """`NTKScaling` that grows with the sequence: none up to `original_length`, factor + 1 at twice that.

    Keys in a cache keep the turn of the length at which they came, so that beyond `original_length` a cached step
    differs a little from a full pass. Source: the code of `transformers`.
    """

    factor: float
    original_length: int

    def __call__(self, values: Tensor, length: int = 0) -> Tensor:
        """Return the frequencies (E / 2,) for a sequence of `length` positions."""
        if length <= self.original_length:
            return values
        return NTKScaling(self.factor * length / self.original_length - (self.factor - 1))(values)


@dataclass(frozen=True)
class Llama3Scaling:
    """Slow frequencies divided by `factor`, fast ones kept, a ramp between. Source: Llama 3.1, Dubey et al. 2024.

    A frequency is slow if it turns fewer than `low_turns` times in the `original_length`, fast above `high_turns`.
    """

    factor: float = 8.0
    low_turns: float = 1.0
    high_turns: float = 4.0
    original_length: int = 8192

    def __call__(self, values: Tensor) -> Tensor:
        """Return the scaled frequencies (E / 2,)."""
        turns = self.original_length * values / (2 * math.pi)
        keep = ((turns - self.low_turns) / (self.high_turns - self.low_turns)).clamp(0, 1)
        return (1 - keep) * values / self.factor + keep * values
