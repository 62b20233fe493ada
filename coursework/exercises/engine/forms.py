"""The right numbers in another shape, changed one by one, or in other places."""

# mypy: disable-error-code=misc
# (mypy infers no type for a lambda whose default arguments bind the variables of a loop)

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coursework.exercises.engine.changes import ENTRIES
from coursework.exercises.engine.likeness import ROWS, Likeness, Test, name_of_axis, orders_of, permuted, real


@dataclass(frozen=True)
class Forms(Likeness):
    """What one tensor has to do with another, seen from the two alone."""

    def _of_shape(self, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, Test]]:
        """Axes that are exchanged, missing or too many; the numbers are right."""
        if a.dim() == e.dim() <= 5 and a.numel() == e.numel():
            for n, order in orders_of(e.dim()):
                yield "transposed", f"The numbers are right, but {n}.", self._as(lambda e, o=order: permuted(e, o))
        if a.shape != e.shape and a.numel() == e.numel():
            if [size for size in a.shape if size > 1] == [size for size in e.shape if size > 1]:
                what = "an axis of size 1 too many" if a.dim() > e.dim() else "an axis of size 1 too few"
                name = "axis kept" if a.dim() > e.dim() else "axis lost"
                if a.dim() == e.dim():
                    name, what = "axis moved", "its axis of size 1 in another place"
                more = a.dim() - e.dim()
                yield (
                    name,
                    f"The numbers are right, but the result has {what}.",
                    lambda e, a, d=more: a.dim() - e.dim() == d and self.equal(e.flatten(), a.flatten()),
                )
            said = f"the result has {a.dim()} axes" if a.dim() != e.dim() else "they stand in another shape"
            yield (
                "another shape",
                f"The numbers are right and in the right order, but {said}.",
                lambda e, a: self.equal(e.flatten(), a.flatten()),
            )
        if a.dim() > e.dim() and a.numel() > e.numel():
            for extra in range(a.dim()):
                yield (
                    "axis too many",
                    f"The numbers are right, but repeated along {name_of_axis(extra, a.dim())}, which is one too many.",
                    lambda e, a, x=extra: a.dim() == e.dim() + 1 and all(self.equal(e, part) for part in a.unbind(x)),
                )

    def _of_values(self, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, Test]]:
        """Every entry by itself."""
        if a.shape != e.shape:
            return
        if e.dtype == torch.bool:
            yield "inverted", "True and False are exchanged in the result.", self._as(lambda e: ~e)
            for every in (True, False):
                yield (
                    f"only {every}",
                    f"Every entry of the result is {every}.",
                    lambda e, a, v=every: a.shape == e.shape and bool((a.bool() == v).all()),
                )
            return
        if e.numel() == 1:
            yield (
                "constant",
                f"The result is {float(a):.6g} whatever the arguments are.",
                lambda e, a, v=float(a): bool((a == v).all()),
            )
        for value, word in ((0.0, "zero"), (1.0, "one"), (math.inf, "infinite"), (-math.inf, "minus infinity")):
            if e.numel() > 1:
                yield (
                    f"only {word}",
                    f"Every entry of the result is {word}.",
                    lambda e, a, v=value: a.shape == e.shape and bool((a == v).all()) and not bool((e == v).all()),
                )
        for name, statement, function in ENTRIES:
            yield name, f"Every number of the result is {statement}.", self._as(lambda e, f=function: f(real(e)))
        if (e.dtype == torch.float64 and a.dtype != torch.float64) or not e.is_floating_point():
            return
        for axis in (-1, -2)[: e.dim()]:
            where = f"along {name_of_axis(axis, e.dim())}"
            yield (
                "softmax twice",
                f"The result went through a softmax {where} once more.",
                self._as(lambda e, d=axis: real(e).softmax(d)),
            )
            yield (
                "before the softmax",
                f"The result is what a softmax {where} would still have to turn into weights.",
                lambda e, a, d=axis: a.shape == e.shape and self.equal(e, real(a).softmax(d)),
            )
            yield (
                "added up",
                f"The numbers of the result are added up {where}, each to those before.",
                self._as(lambda e, d=axis: real(e).cumsum(d)),
            )

    def _of_places(self, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, Test]]:
        """The same numbers in other places."""
        if a.shape != e.shape:
            return
        for axis in range(-1, -e.dim() - 1, -1):
            where = name_of_axis(axis, e.dim())
            if e.size(axis) >= 2:
                yield (
                    "reversed",
                    f"The result is in the reverse order along {where}.",
                    self._as(lambda e, d=axis: e.flip(d)),
                )
            for step in (1, -1):
                if e.size(axis) >= 3:
                    way = "later" if step > 0 else "earlier"
                    yield (
                        "shifted",
                        f"Along {where} everything stands one place {way} than it should.",
                        lambda e, a, d=axis, s=step: self._shifted(e, a, d, s),
                    )
        for axis in range(-1, -e.dim() - 1, -1):
            if 2 <= e.size(axis) <= ROWS:
                yield (
                    "another order",
                    f"The result holds what is right along {name_of_axis(axis, e.dim())}, in another order.",
                    lambda e, a, d=axis: self._reordered(e, a, d),
                )
        for i, j in itertools.combinations(range(e.dim()), 2):
            if min(e.size(i), e.size(j)) >= 2:
                yield (
                    "reshaped",
                    f"The numbers are right, but the result is reshaped where axes {i} and {j} should be exchanged.",
                    self._as(lambda e, i=i, j=j: e.transpose(i, j).reshape(e.shape)),
                )
        if e.numel() >= 6 and e.dtype != torch.bool:
            yield (
                "other places",
                "The result holds the right numbers, in other places.",
                lambda e, a: (
                    a.shape == e.shape
                    and len(e.unique()) >= min(5, e.numel())
                    and self.equal(e.flatten().sort().values, a.flatten().sort().values)
                ),
            )
