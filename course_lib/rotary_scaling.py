"""Rotary frequencies beyond the trained length: what maps those of the training to those of a longer text.

Each takes angular frequencies (E / 2,), E the width of a head, and returns as many.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from course_lib.checks import Checked, Count, Positive, check_number


@dataclass(frozen=True)
class LinearScaling(Checked):
    """Positions squeezed by `factor`, so that a longer text spans the trained angles. Source: Chen et al. 2023."""

    factor: Positive

    def __call__(self, values: Tensor) -> Tensor:
        """Divide each frequency by the factor."""
        return values / self.factor


@dataclass(frozen=True)
class NTKScaling(Checked):
    """The slowest frequency divided by `factor`, the fastest kept, geometric between: the base grows instead."""

    factor: Positive

    def __call__(self, values: Tensor) -> Tensor:
        """Return the frequencies (E / 2,) of the larger base."""
        return values * self.factor ** -torch.linspace(0, 1, len(values), device=values.device)


@dataclass(frozen=True)
class DynamicNTKScaling(Checked):
    """`NTKScaling` that grows with the sequence: none up to `original_length`, factor + 1 at twice that.

    Keys in a cache keep the turn of the length at which they came, so that beyond `original_length` a cached step
    differs a little from a full pass. Source: the code of `transformers`.
    """

    factor: Positive
    original_length: Count

    def __call__(self, values: Tensor, length: int = 0) -> Tensor:
        """Return the frequencies (E / 2,) for a sequence of `length` positions."""
        if length <= self.original_length:
            return values
        return NTKScaling(self.factor * length / self.original_length - (self.factor - 1))(values)


@dataclass(frozen=True)
class Llama3Scaling(Checked):
    """Slow frequencies divided by `factor`, fast ones kept, a ramp between. Source: Llama 3.1, Dubey et al. 2024.

    A frequency is slow if it turns fewer than `low_turns` times in the `original_length`, fast above `high_turns`.
    """

    factor: Positive = 8.0
    low_turns: Positive = 1.0
    high_turns: Positive = 4.0
    original_length: Count = 8192

    def __post_init__(self) -> None:
        """Refuse what makes no ramp."""
        super().__post_init__()
        check_number("high_turns", self.high_turns, above=self.low_turns)

    def __call__(self, values: Tensor) -> Tensor:
        """Return the scaled frequencies (E / 2,)."""
        turns = self.original_length * values / (2 * math.pi)
        keep = ((turns - self.low_turns) / (self.high_turns - self.low_turns)).clamp(0, 1)
        return (1 - keep) * values / self.factor + keep * values


@dataclass(frozen=True)
class YarnScaling(Checked):
    """Slow frequencies divided by `factor`, fast ones kept, a ramp over the pairs between; queries and keys stretched.

    A pair is slow if it turns fewer than `slow_turns` times in the `original_length`, fast above `fast_turns`. The
    ramp is that of the released code, straight in the number of the pair; `rounded` lets it begin and end at whole
    pairs. (In the paper's text it is straight in the number of turns, as in `Llama3Scaling`.)

    Source: Peng et al. 2023 (YaRN), section 3, and its code.
    """

    factor: Positive
    original_length: Count
    fast_turns: Positive = 32.0
    slow_turns: Positive = 1.0
    attention_factor: Positive | None = None  # of queries and of keys; 0.1 ln(factor) + 1 unless given
    rounded: bool = True

    def __post_init__(self) -> None:
        """Refuse what makes no ramp."""
        super().__post_init__()
        check_number("fast_turns", self.fast_turns, least=self.slow_turns)

    @property
    def stretch(self) -> float:
        """What queries and keys are multiplied by, so that the softmax over more keys stays as sharp as it was."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0

    def __call__(self, values: Tensor) -> Tensor:
        """Return the scaled frequencies (E / 2,)."""
        keep = self.kept_share(values)
        return (1 - keep) * values / self.factor + keep * values

    def kept_share(self, values: Tensor) -> Tensor:
        """How much of each frequency stays as it was, from 1 for the fast to 0 for the slow: (E / 2,)."""
        n_pairs = len(values)
        step = -math.log(float(values[-1])) / max(n_pairs - 1, 1)  # from one pair to the next, in logarithms
        first, last = (self._pair_that_turns(turns, step) for turns in (self.fast_turns, self.slow_turns))
        if self.rounded:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * n_pairs - 1)
        if first == last:
            last += 0.001
        pairs = torch.arange(n_pairs, dtype=torch.float32, device=values.device)
        return 1 - ((pairs - first) / (last - first)).clamp(0, 1)

    def _pair_that_turns(self, turns: float, step: float) -> float:
        """The number, with a fraction, of the pair that turns so often in the original length."""
        return math.log(self.original_length / (2 * math.pi * turns)) / step
