"""Whether values that answers pass through are equal: but for dtype, rounding and layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

ROUNDING = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Where the numbers of a dtype have fewer than four digits."""

Sequences = list[list[Any]]
"""Values of one expression in turn, for each input."""


def flat(value: Any) -> tuple[tuple[int, ...], np.ndarray] | None:
    """The numbers of a value, and its shape without axes of size 1; None for what is no array of numbers."""
    array: np.ndarray | None
    if isinstance(value, Tensor | np.ndarray):
        array = (value.double() if isinstance(value, Tensor) else torch.from_numpy(value).double()).numpy()
    elif isinstance(value, bool | int | float):
        array = np.array(float(value)) if abs(value) < 1e300 or isinstance(value, float) else None
    elif isinstance(value, list | tuple) and value and all(type(part) in (int, float, bool) for part in value):
        array = np.array([float(part) for part in value]) if max(map(abs, value)) < 1e300 else None
    elif isinstance(value, list | tuple) and value and all(isinstance(part, Tensor) for part in value):
        same = len({part.shape for part in value}) == 1
        array = torch.stack([part.double() for part in value]).numpy() if same else None
    else:
        return None
    return None if array is None else (tuple(n for n in array.shape if n != 1), array.reshape(-1))


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal but for dtype, rounding and axes of size 1."""
    x, y = flat(a), flat(b)
    if x is not None and y is not None:
        return x[0] == y[0] and _close(x[1], y[1], max(_rounding(a), _rounding(b)))
    if x is not None or y is not None or a is None or b is None:
        return False
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and not isinstance(a, dict | list | tuple) and bool(a == b)


def is_filled(value: Any) -> bool:
    """Whether it is a tensor whose numbers are all the same, as a place to put results in is."""
    return isinstance(value, Tensor) and value.dim() > 0 and bool((value == value.flatten()[:1]).all())


def _rounding(value: Any) -> float:
    """How far values of this dtype may be apart, as a share."""
    return ROUNDING.get(value.dtype, 1e-4) if isinstance(value, Tensor) else 1e-4


def _close(x: np.ndarray, y: np.ndarray, rounding: float = 1e-4) -> bool:
    if x.size and x[0] != y[0] and abs(x[0] - y[0]) > rounding * (10 + 10 * abs(x[0])):
        return False  # most differ at once
    return bool(np.isclose(x, y, rtol=rounding, atol=rounding / 100, equal_nan=True).all())


def _forms(values: list[Any]) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """A tensor with its axes in other orders, as one array: the same numbers, laid out or taken in turn."""
    for value in values:
        if isinstance(value, Tensor) and 1 <= value.dim() <= 4:
            orders = itertools.permutations(range(value.dim()))
            yield from (one for order in orders if (one := flat(value.permute(order))) is not None)


def alike(own: list[Any], right: list[Any]) -> bool:
    """Whether values are those of a right way in another layout, or taken from them one by one."""
    if own and all(any(same(a, b) for b in right) for a in own):
        return True
    forms = list(_forms(right))
    if len(own) > 1:
        arrays = [flat(one) for one in own]
        if any(one is None for one in arrays):
            return False
        numbers = np.concatenate([one[1] for one in arrays if one is not None])
        return any(len(x) == len(numbers) and _close(numbers, x) for _, x in forms)
    one = flat(own[0]) if own else None
    return one is not None and any(shape == one[0] and _close(one[1], x) for shape, x in forms)


def kind_of_values(values: Sequences) -> str:
    """What an expression is worth: "float", "int", "bool", "text" or "", in tensors or not."""
    for value in (one for taken in values for one in taken):
        leaves = [leaf for leaf in tree_leaves(value) if leaf is not None]
        if not leaves or isinstance(value, torch.Size):
            return ""
        leaf = leaves[0]
        dtype = str(leaf.dtype) if isinstance(leaf, Tensor | np.ndarray) else type(leaf).__name__
        word = next((word for word in ("float", "bool", "int", "str") if word in dtype), "")
        return word + (" tensor" if any(isinstance(one, Tensor) and one.dim() for one in leaves) else "")
    return ""
