"""Tensors for cases: the same values on every machine and version, and short to print."""

import functools

import numpy as np
import torch
from torch import Tensor


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0, grad: bool = True) -> Tensor:
    """Normal numbers rounded to two decimals, times `scale`; requires gradients unless grad=False.

    They come from numpy's `RandomState`, whose stream is frozen, so messages that quote them never change.
    """
    return torch.tensor(_standard_normal(shape, seed) * scale, dtype=dtype, requires_grad=grad)


@functools.lru_cache(maxsize=1024)
def _standard_normal(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.RandomState(seed).standard_normal(shape).round(2)


def integers(*shape: int, low: int, high: int, seed: int) -> Tensor:
    """Whole numbers (int64) from low to high, both included."""
    return torch.tensor(np.random.RandomState(seed).randint(low, high + 1, shape), dtype=torch.int64)


def mask(*shape: int, seed: int, visible: float = 0.5) -> Tensor:
    """Booleans, each True with probability `visible`."""
    return torch.tensor(np.random.RandomState(seed).random_sample(shape) < visible)


def strided(tensor: Tensor) -> Tensor:
    """The same values as a new leaf, in memory from the second place on, with gaps, its axes in reverse order."""
    axes = tuple(reversed(range(tensor.dim())))
    with torch.no_grad():
        turned = tensor.permute(axes)
        spread = torch.stack([torch.full_like(turned, 7), turned], dim=-1)[..., 1].permute(axes)
    return spread.requires_grad_(tensor.requires_grad)
