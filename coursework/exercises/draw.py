"""Random arguments for the proofs: one small interface over Hypothesis (which shrinks) and over `random.Random`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from coursework.exercises import tensors

T = TypeVar("T")


class Draw:
    """Draws sizes, choices and tensors; an exercise's `sample(draw)` builds one random case from it.

    Everything comes from `integer`, so the same integers give the same case.
    """

    def __init__(self, integer: Callable[[int, int], int]) -> None:
        """`integer(low, high)` returns a whole number from low to high, both included."""
        self.integer = integer

    @classmethod
    def seeded(cls, seed: int) -> Draw:
        """Draw from Python's own generator."""
        return cls(random.Random(seed).randint)

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.integer(0, len(options) - 1)]

    def boolean(self) -> bool:
        """True or False."""
        return self.integer(0, 1) == 1

    def dtype(self) -> torch.dtype:
        """Single or double precision."""
        return self.choice((torch.float32, torch.float64))

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, grad: bool = True) -> Tensor:
        """A tensor of normal numbers with two decimals; see `tensors.normal`."""
        return tensors.normal(*shape, seed=self.integer(0, 2**31 - 1), dtype=dtype, scale=scale, grad=grad)

    def mask(self, *shape: int) -> Tensor:
        """A boolean tensor, about half of it True; whole rows may be False."""
        return tensors.mask(*shape, seed=self.integer(0, 2**31 - 1))

    def integers(self, *shape: int, low: int, high: int) -> Tensor:
        """A tensor of whole numbers from low to high, both included."""
        return tensors.integers(*shape, low=low, high=high, seed=self.integer(0, 2**31 - 1))
