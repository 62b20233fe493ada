"""When results are alike, and where and how they are not: what relations are tested with."""

# mypy: disable-error-code=misc
# (mypy infers no type for a lambda whose default arguments bind the variables of a loop)

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coursework.exercises.engine.compare import Rules

ROWS = 32
"""Longest axis along which rows are looked for in another order."""

Test = Callable[[Tensor, Tensor], bool]
"""Whether a relation holds between an expected and an actual tensor."""


@dataclass(frozen=True)
class Seen:
    """One input with what is right and what the answer gave."""

    names: tuple[str, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: Any
    actual: Any
    wrong: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return dict(zip(self.names, [*self.args, *self.kwargs.values()], strict=True))

    def call(self, function: Callable[..., Any], changed: dict[str, Any]) -> Any:
        """The function's value with some of the arguments exchanged for others."""
        values = [copied(value) for value in (self.arguments | changed).values()]
        count = len(self.args)
        return function(*values[:count], **dict(zip(self.kwargs, values[count:], strict=True)))


@dataclass(frozen=True)
class Likeness:
    """Compares results up to what `rules` count as equal, and says where they differ."""

    rules: Rules

    # Where and how a result is wrong ---------------------------------------------------------------------------

    def _where(self, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, Test]]:
        if a.shape != e.shape or e.dim() == 0:
            return
        for axis in range(-1, -e.dim() - 1, -1):
            for index, word in ((-1, "last"), (0, "first")):
                if e.size(axis) >= 2:
                    yield (
                        f"only the {word}",
                        f"Only the {word} place along {name_of_axis(axis, e.dim())} is wrong.",
                        lambda e, a, d=axis, i=index: e.size(d) < 2 or self._only(e, a, places_at(e, d, i)),
                    )
        if e.dim() >= 2 and min(e.shape[-2:]) >= 2:
            ones = torch.ones_like
            for word, cut in (
                ("on the diagonal of the last two axes", lambda e: ones(e).tril().triu()),
                ("above the diagonal of the last two axes", lambda e: ones(e).triu(1)),
                ("below the diagonal of the last two axes", lambda e: ones(e).tril(-1)),
            ):
                yield (
                    f"only {word.split()[0]} the diagonal",
                    f"Only entries {word} are wrong.",
                    lambda e, a, c=cut: self._only(e, a, c(e).bool()),
                )
        if e.is_floating_point():
            for word, at in (
                ("minus infinity", lambda e: e == -math.inf),
                ("zero", lambda e: e == 0),
            ):
                yield (
                    f"only where {word}",
                    f"Only entries that should be {word} are wrong.",
                    lambda e, a, t=at: self._only(e, a, t(e)),
                )

    def _of_rows(self, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, Test]]:
        if a.shape != e.shape or not e.is_floating_point():
            return
        yield (
            "nearly right",
            "The result agrees with the right one to about two digits or more.",
            lambda e, a: a.shape == e.shape and bool(torch.isclose(real(a), real(e), rtol=5e-3, atol=0).all()),
        )
        yield (
            "below zero",
            "The result has negative numbers where the right one has none.",
            lambda e, a: a.shape == e.shape and bool((a < -1e-3).any()) and bool((e >= 0).all()),
        )
        axes = [axis for axis in range(-1, -e.dim() - 1, -1) if e.size(axis) >= 2]
        for axis in axes:
            yield (
                "the same everywhere",
                f"The result is the same all along {name_of_axis(axis, e.dim())}; the right one is not.",
                lambda e, a, d=axis: (
                    a.shape == e.shape
                    and e.size(d) >= 2
                    and self.equal(a.select(d, 0).unsqueeze(d).expand_as(a), a)
                    and not self.equal(e.select(d, 0).unsqueeze(d).expand_as(e), e)
                ),
            )
        for axis in axes:
            yield (
                "sums to one",
                f"The numbers of the result sum to one along {name_of_axis(axis, e.dim())}.",
                lambda e, a, d=axis: sums_to_one(a, d) and not sums_to_one(e, d),
            )
        for by_factor, word in ((True, "factor"), (False, "difference")):  # the same everywhere, before one of each row
            yield (
                f"{word} of the result",
                f"All numbers of a result are off by one common {word}.",
                lambda e, a, f=by_factor: self._rows(e.flatten(), a.flatten(), -1, by_factor=f),
            )
        for axis in axes:
            where = name_of_axis(axis, e.dim())
            yield (
                "factor of a row",
                f"Along {where} all numbers are off by one common factor, another one elsewhere.",
                lambda e, a, d=axis: self._rows(e, a, d, by_factor=True),
            )
            yield (
                "difference of a row",
                f"Along {where} all numbers are off by one common difference, another one elsewhere.",
                lambda e, a, d=axis: self._rows(e, a, d, by_factor=False),
            )

    # Tests -----------------------------------------------------------------------------------------------------

    def equal(self, wanted: Tensor, got: Tensor, like: Tensor | None = None) -> bool:
        """Equal in shape and, up to the rounding of the expected dtype, in value."""
        return wanted.shape == got.shape and bool(self.agree(wanted, got, like).all())

    def agree(self, wanted: Tensor, got: Tensor, like: Tensor | None = None) -> Tensor:
        """Where two tensors agree, up to the rounding of the less exact dtype."""
        dtypes = [one.dtype for one in (like if like is not None else wanted, got) if one.is_floating_point()]
        limits = [self.rules.limits(dtype) for dtype in dtypes] or [(0.0, 0.0)]
        relative, absolute = max(limits)
        w, g = real(wanted), real(got)
        return torch.isclose(g, w, rtol=max(relative, 1e-6), atol=absolute, equal_nan=True)

    def same(self, wanted: Any, got: Any) -> bool:
        """Whether two results are equal, in all their parts."""
        e, a = as_tensor(wanted), as_tensor(got)
        if e is not None and a is not None:
            return self.equal(e, a)
        if isinstance(wanted, tuple | list) and isinstance(got, tuple | list):
            return len(wanted) == len(got) and all(map(self.same, wanted, got))
        if isinstance(wanted, dict) and isinstance(got, dict):
            return wanted.keys() == got.keys() and all(self.same(wanted[key], got[key]) for key in wanted)
        return e is None and a is None and type(wanted) is type(got) and bool(wanted == got)

    def _as(self, change: Callable[[Tensor], Tensor]) -> Test:
        return lambda e, a: self.equal(change(e), a, e)

    def _shifted(self, e: Tensor, a: Tensor, axis: int, step: int) -> bool:
        if a.shape != e.shape or e.size(axis) < 2:
            return bool(a.shape == e.shape and e.size(axis) < 2)
        kept = e.size(axis) - 1
        source = e.narrow(axis, 0 if step > 0 else 1, kept)
        target = a.narrow(axis, 1 if step > 0 else 0, kept)
        own = e.narrow(axis, 1 if step > 0 else 0, kept)
        return self.equal(source, target) and (not self.equal(own, target) or kept < 2)

    def _reordered(self, e: Tensor, a: Tensor, axis: int) -> bool:
        if a.shape != e.shape or e.size(axis) > ROWS:
            return False
        rows, left = list(a.unbind(axis)), list(e.unbind(axis))
        if any(self.equal(x, y) for x, y in itertools.combinations(left, 2)):
            return False  # rows that cannot be told apart
        for row in rows:
            place = next((i for i, other in enumerate(left) if self.equal(other, row)), None)
            if place is None:
                return False
            del left[place]
        return True

    def _only(self, e: Tensor, a: Tensor, places: Tensor) -> bool:
        if a.shape != e.shape:
            return False
        wrong = ~self.agree(e, a)
        return bool(wrong.any()) and not bool((wrong & ~places).any()) and not bool(places.all())

    def _rows(self, e: Tensor, a: Tensor, axis: int, *, by_factor: bool) -> bool:
        if a.shape != e.shape or e.size(axis) < 2:
            return False
        x, y = real(e).movedim(axis, -1), real(a).movedim(axis, -1)
        if not bool(x.isfinite().all()) or not bool(y.isfinite().all()):
            return False
        if by_factor:
            factor = (x * y).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True)
            fits = not bool(factor.isnan().any()) and bool((factor.abs() > 1e-3).all())
            return fits and x.size(-1) >= 3 and self.equal(x * factor, y, e)
        return x.size(-1) >= 3 and self.equal(x + (y - x).mean(-1, keepdim=True), y, e)


def orders_of(axes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every other order of the axes, exchanges of two first, as (words, offsets from the end)."""
    usual = tuple(range(axes))
    for i, j in sorted(itertools.combinations(usual, 2), reverse=True):
        swapped = [*usual]
        swapped[i], swapped[j] = j, i
        last = (i, j) == (axes - 2, axes - 1)
        yield "the last two axes are exchanged" if last else f"axes {i} and {j} are exchanged", tuple(swapped)
    for order in itertools.permutations(usual):
        if sum(i != j for i, j in enumerate(order)) > 2:
            yield f"its axes stand in the order {', '.join(map(str, order))}", order


def permuted(e: Tensor, order: tuple[int, ...]) -> Tensor:
    """The axes in this order, counted from the end where there are more or fewer."""
    if e.dim() != len(order):
        raise ValueError("another number of axes")
    return e.permute(order)


def sizes_of(arguments: dict[str, Any]) -> dict[str, int]:
    """Sizes that a factor may come from: axes of arguments and plain counts, by the words for them."""
    found: dict[str, int] = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            for axis in range(-1, -value.dim() - 1, -1):
                found.setdefault(f"the size of {name_of_axis(axis, value.dim())} of `{name}`", value.size(axis))
        elif isinstance(value, int) and not isinstance(value, bool):
            found[f"`{name}`"] = value
    return found


def name_of_axis(axis: int, axes: int) -> str:
    """An axis in words."""
    axis = axis + axes if axis < 0 else axis
    if axes == 1:
        return "its only axis"
    return {axes - 1: "the last axis", axes - 2: "the last axis but one"}.get(axis, f"axis {axis}")


def ratio_of(e: Tensor, a: Tensor) -> float | None:
    """The one factor between two tensors, if there is one."""
    x, y = real(e).flatten(), real(a).flatten()
    usable = x.isfinite() & y.isfinite() & (x.abs() > 1e-3 * x[x.isfinite()].abs().max() if x.isfinite().any() else x)
    if not bool(usable.any()) or not bool((y[usable] != 0).all()):
        return None
    factors = y[usable] / x[usable]
    factor = float(factors.median())
    spread = float((factors - factor).abs().max())
    return factor if spread <= 0.05 * abs(factor) and factor not in (0.0, 1.0) and abs(factor - 1) > 1e-5 else None


def difference_of(e: Tensor, a: Tensor) -> float | None:
    """The one difference between two tensors, if there is one."""
    x, y = real(e).flatten(), real(a).flatten()
    usable = x.isfinite() & y.isfinite()
    if not bool(usable.any()):
        return None
    steps = (y - x)[usable]
    step = float(steps.median())
    return step if step != 0 and float((steps - step).abs().max()) <= 1e-2 * abs(step) else None


def snapped(number: float) -> float:
    """The number, without rounding errors where it is a simple fraction."""
    simple = Fraction(number).limit_denominator(64)
    return float(simple) if simple and math.isclose(float(simple), number, rel_tol=2e-4) else number


def times(factor: float) -> str:
    """How often, in words."""
    simple = Fraction(factor).limit_denominator(64)
    exact = math.isclose(float(simple), factor, rel_tol=1e-9)
    if factor == 2:
        return "twice"
    if factor == 0.5:
        return "half of"
    return f"{simple} times" if exact else f"{factor:.4g} times"


def places_at(e: Tensor, axis: int, index: int) -> Tensor:
    """True at one index along an axis, False elsewhere."""
    places = torch.zeros_like(e, dtype=torch.bool)
    places.select(axis, index).fill_(True)
    return places


def sums_to_one(x: Tensor, axis: int) -> bool:
    """Whether the numbers along an axis add up to one everywhere."""
    total = real(x).sum(axis)
    return bool(torch.isclose(total, torch.ones_like(total), rtol=1e-3).all())


def real(x: Tensor) -> Tensor:
    """The numbers in float64, without a graph."""
    return x.detach().double()


def in_dtype_of(value: Any, a: Tensor) -> Tensor:
    """A tensor in the dtype of another."""
    if not isinstance(value, Tensor):
        raise TypeError("no tensor here")
    return value.detach().to(a.dtype)


def as_tensor(value: Any) -> Tensor | None:
    """A tensor, a number or a plain tuple of numbers as a tensor; None for everything else."""
    if isinstance(value, Tensor):
        return None if value.is_sparse or value.device.type == "meta" else value.detach()
    if isinstance(value, np.ndarray | np.generic):
        return torch.from_numpy(np.asarray(value)) if value.dtype.kind in "bif" else None
    if isinstance(value, bool):
        return torch.tensor(value)
    if isinstance(value, int | float):
        return torch.tensor(float(value), dtype=torch.float64) if abs(value) < 2**900 else None
    numbers = isinstance(value, tuple | list) and len(value) > 0 and all(type(part) in (int, float) for part in value)
    return torch.tensor([float(part) for part in value], dtype=torch.float64) if numbers else None


def part_of(value: Any, key: Any) -> Any:
    """One part of a result; the whole for the key None."""
    return value if key is None else value[key]


def has_nan(value: Any) -> bool:
    """Whether some tensor in it contains NaN."""
    tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and leaf.is_floating_point())
    return any(bool(leaf.isnan().any()) for leaf in tensors)


def copied(value: Any) -> Any:
    """The value with a copy of every tensor in it, which requires a gradient if that one does."""
    return tree_map(
        lambda leaf: leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf,
        value,
    )


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The default values of a function's arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}
