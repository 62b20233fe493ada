"""Comparing what two functions return: structure, type, shape, dtype, device, values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-5),
    torch.bfloat16: (4e-2, 4e-2),
    torch.float16: (4e-3, 4e-3),
}
"""dtype -> (relative, absolute): wide enough for another order of summation, narrow enough for any other formula."""


@dataclass(frozen=True)
class Difference:
    """The first thing in which an answer differs from the right one.

    Args:
        aspect: "error", "type", "shape", "dtype", "device", "nan", "value", "mutation", "gradient", "repeat" or "cost".
        sentence: what differs, in one sentence.
        expected, actual: the values to show, or None where the sentence says it all.
    """

    aspect: str
    sentence: str
    expected: Any = None
    actual: Any = None

    def is_plain(self) -> bool:
        """Whether a look at the numbers shows it: some differ by a hundredth of the largest."""
        e, a = self.expected, self.actual
        if not isinstance(e, Tensor) or not isinstance(a, Tensor) or not e.is_floating_point():
            return True
        gap = (a.double() - e.double()).abs().nan_to_num(nan=math.inf)
        size = e.double()[e.isfinite()].abs()
        return bool((gap > 0.01 * (size.max() if size.numel() else 0)).any())


NOTHING = Difference("type", "It returns nothing (None). Is the return missing?")


@dataclass(frozen=True)
class Rules:
    """What counts as equal: `tolerance` replaces the usual one for float32."""

    tolerance: tuple[float, float] | None = None

    def limits(self, dtype: torch.dtype) -> tuple[float, float]:
        """(relative, absolute) for this dtype."""
        if dtype == torch.float32 and self.tolerance is not None:
            return self.tolerance
        return TOLERANCE.get(dtype, (0.0, 0.0))


def compare(expected: Any, actual: Any, rules: Rules, where: str = "the output") -> Difference | None:
    """The first difference between two returned values, or None. Tensors may lie in tuples, lists and dicts."""
    if isinstance(expected, Tensor):
        return _compare_tensors(expected, actual, rules, where)
    if isinstance(expected, tuple | list):
        if not isinstance(actual, tuple | list):
            sentence = f"{_capital(where)} is {kind_of(actual)}; {len(expected)} values are expected."
            return Difference("type", sentence)
        if all(isinstance(part, int | float) for part in expected):  # a shape, say, is shown whole
            pairs = zip(expected, plain(actual), strict=False)
            if len(actual) == len(expected) and all(compare(e, a, rules) is None for e, a in pairs):
                return None
            return Difference("value", f"{_capital(where)} differs.", tuple(expected), plain(actual))
        if len(actual) != len(expected):
            return Difference("type", f"{_capital(where)} has {len(actual)} parts; {len(expected)} are expected.")
        parts = [(f"part {index} of {where}", e, a) for index, (e, a) in enumerate(zip(expected, actual, strict=True))]
    elif isinstance(expected, dict):
        if not isinstance(actual, dict) or set(actual) != set(expected):
            got = sorted(map(str, actual)) if isinstance(actual, dict) else kind_of(actual)
            return Difference(
                "type", f"{_capital(where)} is {got}; the keys {sorted(map(str, expected))} are expected."
            )
        parts = [(f"part {key!r} of {where}", expected[key], actual[key]) for key in expected]
    else:
        return _compare_plain(expected, actual, rules, where)
    for name, wanted, got in parts:
        if difference := compare(wanted, got, rules, name):
            return difference
    return None


def _compare_tensors(expected: Tensor, actual: Any, rules: Rules, where: str) -> Difference | None:
    if actual is None:
        return NOTHING
    if not isinstance(actual, Tensor):
        return Difference("type", f"{_capital(where)} is {kind_of(actual)}; a tensor is expected.")
    if actual.shape != expected.shape:
        sentence = f"The shape of {where} is {tuple(actual.shape)}; {tuple(expected.shape)} is expected."
        return Difference("shape", sentence)
    if actual.dtype != expected.dtype:
        sentence = f"{_capital(where)} is {dtype_name(actual)}; {dtype_name(expected)} is expected."
        return Difference("dtype", sentence)
    if actual.device != expected.device:
        return Difference("device", f"{_capital(where)} lies on {actual.device}; {expected.device} is expected.")
    e, a = expected.detach(), actual.detach()
    same = equal_elements(e, a, rules)
    if bool(same.all()):
        return None
    if e.is_floating_point() and bool((a.isnan() & ~e.isnan()).any()):
        return Difference("nan", f"{_capital(where)} contains NaN (not a number).", e, a)
    count, total = int((~same).sum()), same.numel()
    sentence = "The entry differs." if total == 1 else f"{count} of {total} entries differ."
    return Difference("value", sentence, e, a)


def equal_elements(expected: Tensor, actual: Tensor, rules: Rules) -> Tensor:
    """Where two tensors of one dtype and shape agree: bool, same shape."""
    if not expected.is_floating_point():
        return expected == actual
    relative, absolute = rules.limits(expected.dtype)
    return torch.isclose(actual, expected, rtol=relative, atol=absolute, equal_nan=True)


def _compare_plain(expected: Any, actual: Any, rules: Rules, where: str) -> Difference | None:
    if actual is None and expected is not None:
        return NOTHING
    got = plain(actual)
    if isinstance(expected, bool) or not isinstance(expected, int | float):
        if type(got) is type(expected) and _equal(expected, got):
            return None
        if expected is None:
            return Difference("type", f"{_capital(where)} is {kind_of(actual)}; None is expected.")
        return Difference("value", f"{_capital(where)} differs.", expected, actual)
    if isinstance(got, bool) or not isinstance(got, int | float):
        return Difference("type", f"{_capital(where)} is {kind_of(actual)}; a number is expected.")
    if isinstance(expected, float) and isinstance(actual, Tensor):
        return Difference("dtype", f"{_capital(where)} is {kind_of(actual)}; a float is expected.", expected, got)
    if isinstance(expected, int) and isinstance(got, float):
        return Difference("dtype", f"{_capital(where)} is a float; an int is expected.", expected, got)
    relative, absolute = rules.tolerance or (1e-6, 1e-9)
    exact = isinstance(expected, int) and isinstance(got, int)
    if got == expected if exact else _close(as_float(expected), as_float(got), relative, absolute):
        return None
    return Difference("nan" if got != got else "value", "The number differs.", expected, got)


def _equal(expected: Any, actual: Any) -> bool:
    if isinstance(expected, np.ndarray):
        return np.array_equal(expected, actual, equal_nan=expected.dtype.kind in "fc")
    try:
        return bool(expected == actual)
    except Exception:  # a class may compare as it likes
        return False


def _close(expected: float, actual: float, relative: float, absolute: float) -> bool:
    if math.isnan(expected) or math.isnan(actual):
        return math.isnan(expected) and math.isnan(actual)
    return expected == actual or abs(expected - actual) <= absolute + relative * abs(expected)


def as_float(value: float) -> float:
    """The number as a float; one too large for that is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def compare_gradients(
    expected: list[Tensor | None],
    actual: list[Tensor | None],
    names: list[str],
    rules: Rules,
) -> Difference | None:
    """The first gradient that differs, or None. No gradient and a gradient of zeros are the same."""
    for name, wanted, got in zip(names, expected, actual, strict=True):
        wanted = torch.zeros_like(got) if wanted is None and got is not None else wanted
        got = torch.zeros_like(wanted) if got is None and wanted is not None else got
        if wanted is None or got is None:
            continue
        relative, absolute = rules.limits(wanted.dtype)
        size = float(wanted.abs().nan_to_num().max()) if wanted.numel() else 0.0
        # Gradients are sums that cancel: what rounding leaves is measured against the largest of them.
        if torch.allclose(got, wanted, rtol=relative, atol=absolute * max(size, 1.0), equal_nan=True):
            continue
        if not got.any():
            return Difference("gradient", f"The output is right, but no gradient reaches {name}.")
        if bool(got.isnan().any()) and not bool(wanted.isnan().any()):
            return Difference("gradient", f"The output is right, but the gradient with respect to {name} is NaN.")
        return Difference(
            "gradient", f"The output is right, but the gradient with respect to {name} differs.", wanted, got
        )
    return None


def plain(value: Any) -> Any:
    """Numbers of torch, numpy and own classes as Python's, shapes and lists as tuples; anything else as it is."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.item() if value.ndim == 0 and not (isinstance(value, Tensor) and unusual(value)) else value
    if type(value) not in (bool, int, float, str):  # a class of one's own may compare as it likes
        if isinstance(value, int):
            return int.__add__(value, 0)
        if isinstance(value, float):
            return float.__add__(value, 0.0)
        if isinstance(value, str):
            return str.__str__(value)
    if isinstance(value, tuple | list):
        return tuple(plain(part) for part in value)
    return value


def kind_of(value: Any) -> str:
    """The kind of a value in words that never contain an address."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a {unusual(value)}{dtype_name(value)} tensor"
    if isinstance(value, Strange):
        return value.kind
    if isinstance(value, np.ndarray):
        return "a numpy array"
    article = "an" if type(value).__name__[0].lower() in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


@dataclass(frozen=True)
class Strange:
    """Stands for a tensor whose numbers cannot be looked at as those of others."""

    kind: str

    def __repr__(self) -> str:
        """The kind, as a message says it."""
        return self.kind


def unusual(tensor: Tensor) -> str:
    """What sets it apart from a plain tensor, whose numbers can be looked at, followed by a space."""
    if tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        return "nested " if tensor.is_nested else "quantized " if tensor.is_quantized else "meta "
    return "" if tensor.layout == torch.strided else "sparse "


def dtype_name(tensor: Tensor) -> str:
    """float32 for torch.float32."""
    return str(tensor.dtype).removeprefix("torch.")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
