"""What an answer has to do with the right one, found without its author's help: transposed, negated, off by a factor.

A relation is a hypothesis made on the first failing case. It is said only if it holds on every case, or on every
failing one, and on inputs drawn for it: then what is said is true of the answer, whatever its author thought.
"""

# mypy: disable-error-code=misc
# (mypy infers no type for a lambda whose default arguments bind the variables of a loop)

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from course_lib.exercises.engine.compare import Rules, compare_gradients, kind_of

ROWS = 32
"""Longest axis along which rows are looked for in another order."""

WRONG_ENOUGH = 5
"""So many wrong inputs must confirm a relation that does not hold everywhere."""

EVIDENCE, EVIDENCE_OF_BOOLS = 4, 12
"""So many entries must confirm a relation; True and False agree more easily by chance."""


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
class Relation:
    """Something that is true of an answer.

    Args:
        name: short and stable: "transposed".
        statement: one sentence for the learner, with capital and full stop.
        holds: whether it is true of what was seen on one input.
        exact: it says what every number is, and not only where or how the result is wrong.
    """

    name: str
    statement: str
    holds: Callable[[Seen], bool] = field(repr=False, compare=False)
    exact: bool = True


Test = Callable[[Tensor, Tensor], bool]
"""Whether a relation holds between an expected and an actual tensor."""


@dataclass(frozen=True)
class Finder:
    """Looks for relations.

    Args:
        rules: what counts as equal.
        right: the right function, called as the cases are.
        defaults: the default values of its arguments.
    """

    rules: Rules
    right: Callable[..., Any]
    defaults: dict[str, Any]

    def find(self, seen: Sequence[Seen], drawn: Callable[[], Sequence[Seen]], *, exact: bool) -> Relation | None:
        """The first relation that holds on all inputs, or on all on which the answer is wrong."""
        first = next(one for one in seen if one.wrong)
        for relation in self._hypotheses(first, exact):
            if not all(_true(relation, one) for one in seen if one.wrong):
                continue
            everything = [*seen, *drawn()]
            wrong = [one for one in everything if one.wrong]
            if not all(_true(relation, one) for one in wrong) or not _enough(wrong):
                continue
            if relation.exact and not all(_true(relation, one) for one in everything):
                if len(wrong) < WRONG_ENOUGH:
                    continue
                sentence = relation.statement[:1].lower() + relation.statement[1:]
                return replace(relation, statement=f"Where it is wrong, {sentence}")
            return relation
        return None

    def _hypotheses(self, first: Seen, exact: bool) -> Iterator[Relation]:
        wanted, got = first.expected, first.actual
        if exact:
            yield from self._of_structure(wanted, got)
        if isinstance(wanted, tuple | list | dict) and _tensor(wanted) is None:
            keys = list(wanted) if isinstance(wanted, dict) else list(range(len(wanted)))
            if not isinstance(got, type(wanted) if isinstance(wanted, dict) else tuple | list) or len(got) != len(keys):
                return
            wrong = [key for key in keys if not self._same(_part(wanted, key), _part(got, key))]
            for key in wrong:
                for relation in self._of_tensors(first, key, exact and len(wrong) == 1, exact):
                    yield replace(relation, statement=f"Of part {key!r} of the result: {relation.statement}")
        else:
            yield from self._of_tensors(first, None, exact, exact)
        if exact:
            yield from self._of_arguments(first)

    # The result as a whole ---------------------------------------------------------------------------------------

    def _of_structure(self, wanted: Any, got: Any) -> Iterator[Relation]:
        """Parts in another order, one part too few or too many."""
        several = isinstance(wanted, tuple | list) and isinstance(got, tuple | list) and _tensor(wanted) is None
        if several and len(wanted) == len(got) <= 4:
            for order in itertools.permutations(range(len(wanted))):
                if order != tuple(range(len(wanted))):
                    said = "The parts of the result are exchanged"
                    if len(order) > 2:
                        said = f"The parts of the result stand in the order {', '.join(map(str, order))}"
                    yield Relation(
                        "parts exchanged",
                        f"{said}; the parts themselves are right.",
                        lambda seen, o=order: (
                            isinstance(seen.actual, tuple | list)
                            and len(seen.actual) == len(o)
                            and all(self._same(seen.expected[i], seen.actual[n]) for n, i in enumerate(o))
                        ),
                    )
        if isinstance(wanted, tuple | list) and isinstance(got, Tensor | int | float):
            for index in range(len(wanted)):
                yield Relation(
                    "one part alone",
                    f"Only part {index} of the result is returned, not {len(wanted)} parts.",
                    lambda seen, i=index: self._same(seen.expected[i], seen.actual),
                )
        if isinstance(wanted, Tensor | int | float) and isinstance(got, tuple | list) and len(got) <= 4:
            for index in range(len(got)):
                yield Relation(
                    "more than asked",
                    f"It returns {kind_of(got)} of {len(got)} parts; part {index} is right, and it stands not alone.",
                    lambda seen, i=index: (
                        isinstance(seen.actual, tuple | list)
                        and len(seen.actual) > i
                        and self._same(seen.expected, seen.actual[i])
                    ),
                )
        if isinstance(wanted, Tensor) and isinstance(got, np.ndarray | tuple | list | int | float):
            yield Relation(
                "no tensor",
                f"The numbers are right, but they come as {kind_of(got)}.",
                lambda seen: not isinstance(seen.actual, Tensor) and self._same(seen.expected, seen.actual),
            )

    # One tensor or number ----------------------------------------------------------------------------------------

    def _of_tensors(self, first: Seen, key: Any, exact: bool, either: bool) -> Iterator[Relation]:
        e, a = _tensor(_part(first.expected, key)), _tensor(_part(first.actual, key))
        if e is None or a is None or e.numel() == 0 or a.numel() > 100_000 or e.is_complex() or a.is_complex():
            return
        made: Iterator[tuple[str, str, Test]]
        if either:
            made = itertools.chain(self._of_shape(e, a), self._of_values(e, a), self._of_places(e, a))
        else:
            made = itertools.chain(self._where(e, a), self._of_rows(e, a))
        for name, statement, test in made:
            yield Relation(name, statement, _on(test, key), exact)
        if either:
            for name, statement, of in (*self._equal_to_an_argument(first, e, a), *self._factors(first, e, a)):
                yield Relation(name, statement, _with_arguments(of, key), exact)

    def _of_shape(self, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, Test]]:
        """Axes that are exchanged, missing or too many; the numbers are right."""
        if a.dim() == e.dim() <= 5 and a.numel() == e.numel():
            for n, order in _orders(e.dim()):
                yield "transposed", f"The numbers are right, but {n}.", self._as(lambda e, o=order: _permuted(e, o))
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
                    lambda e, a, d=more: a.dim() - e.dim() == d and self._equal(e.flatten(), a.flatten()),
                )
            said = f"the result has {a.dim()} axes" if a.dim() != e.dim() else "they stand in another shape"
            yield (
                "another shape",
                f"The numbers are right and in the right order, but {said}.",
                lambda e, a: self._equal(e.flatten(), a.flatten()),
            )
        if a.dim() > e.dim() and a.numel() > e.numel():
            for extra in range(a.dim()):
                yield (
                    "axis too many",
                    f"The numbers are right, but repeated along {_axis(extra, a.dim())}, which is one too many.",
                    lambda e, a, x=extra: a.dim() == e.dim() + 1 and all(self._equal(e, part) for part in a.unbind(x)),
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
        for value, word in ((0.0, "zero"), (1.0, "one"), (math.inf, "infinite"), (-math.inf, "minus infinity")):
            if e.numel() > 1:
                yield (
                    f"only {word}",
                    f"Every entry of the result is {word}.",
                    lambda e, a, v=value: a.shape == e.shape and bool((a == v).all()) and not bool((e == v).all()),
                )
        for name, statement, function in _ENTRIES:
            yield name, f"Every number of the result is {statement}.", self._as(lambda e, f=function: f(_real(e)))
        if (e.dtype == torch.float64 and a.dtype != torch.float64) or not e.is_floating_point():
            return
        for axis in (-1, -2)[: e.dim()]:
            where = f"along {_axis(axis, e.dim())}"
            yield (
                "softmax twice",
                f"The result went through a softmax {where} once more.",
                self._as(lambda e, d=axis: _real(e).softmax(d)),
            )
            yield (
                "before the softmax",
                f"The result is what a softmax {where} would still have to turn into weights.",
                lambda e, a, d=axis: a.shape == e.shape and self._equal(e, _real(a).softmax(d)),
            )
            yield (
                "added up",
                f"The numbers of the result are added up {where}, each to those before.",
                self._as(lambda e, d=axis: _real(e).cumsum(d)),
            )

    def _of_places(self, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, Test]]:
        """The same numbers in other places."""
        if a.shape != e.shape:
            return
        for axis in range(-1, -e.dim() - 1, -1):
            where = _axis(axis, e.dim())
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
                    f"The result holds what is right along {_axis(axis, e.dim())}, in another order.",
                    lambda e, a, d=axis: self._reordered(e, a, d),
                )
        if e.numel() >= 6 and e.dtype != torch.bool:
            yield (
                "other places",
                "The result holds the right numbers, in other places.",
                lambda e, a: (
                    a.shape == e.shape
                    and len(e.unique()) >= min(5, e.numel())
                    and self._equal(e.flatten().sort().values, a.flatten().sort().values)
                ),
            )

    def _equal_to_an_argument(
        self, first: Seen, e: Tensor, a: Tensor
    ) -> Iterator[tuple[str, str, Callable[[Seen, Tensor, Tensor], bool]]]:
        for name, value in first.arguments.items():
            if isinstance(value, Tensor) and value.shape == a.shape and value.dtype != torch.bool:
                yield (
                    "unchanged",
                    f"The result is the argument `{name}`, unchanged.",
                    lambda seen, e, a, n=name: self._equal(_like(seen.arguments[n], a), a),
                )

    def _factors(
        self, first: Seen, e: Tensor, a: Tensor
    ) -> Iterator[tuple[str, str, Callable[[Seen, Tensor, Tensor], bool]]]:
        """One factor or one difference for the whole result: a number, or made from a size."""
        if a.shape != e.shape or e.dtype == torch.bool or a.dtype == torch.bool:
            return
        every = "Every number of the result" if e.numel() > 1 else "The result"
        factor = _ratio(e, a)
        if factor is not None:
            exact = _snapped(factor)
            yield (
                "factor",
                f"{every} is {_times(exact)} the right one.{_MEANINGS.get(round(exact, 4), '')}",
                lambda seen, e, a: self._equal(_real(e) * exact, a, e),
            )
            for label, size in _sizes(first).items():
                for name, words, function in _OF_A_SIZE:
                    if size < 2 or not math.isclose(function(size), factor, rel_tol=1e-3):
                        continue
                    meant = " A sum in the place of a mean does that." if name == "sum" and label[:1] != "`" else ""
                    yield (
                        name,
                        f"{every} is {words.format(f'{label} ({size} here)')}.{meant}",
                        lambda seen, e, a, n=label, f=function: (
                            _at_least_one(_sizes(seen).get(n)) and self._equal(_real(e) * f(_sizes(seen)[n]), a, e)
                        ),
                    )
        if (difference := _difference(e, a)) is not None:
            amount = _snapped(difference)
            size_of = f"{abs(amount):.6g}"
            way = "large" if amount > 0 else "small"
            off = "Off by one: " if abs(amount) == 1 else ""
            said = f"{every} is {size_of} too {way}."
            yield (
                "off by one" if abs(amount) == 1 else "difference",
                off + (said[:1].lower() + said[1:] if off else said),
                lambda seen, e, a: self._equal(_real(e) + amount, a, e),
            )
            for label, size in _sizes(first).items():
                if size >= 2 and math.isclose(abs(difference), size, rel_tol=1e-4):
                    sign = 1 if difference > 0 else -1
                    yield (
                        "difference",
                        f"{every} is too {way} by {label} ({size} here).",
                        lambda seen, e, a, n=label, s=sign: (
                            n in _sizes(seen) and self._equal(_real(e) + s * _sizes(seen)[n], a, e)
                        ),
                    )

    # The arguments ---------------------------------------------------------------------------------------------

    def _of_arguments(self, first: Seen) -> Iterator[Relation]:
        """What the right function gives for other arguments."""
        begin = "It behaves exactly as a right answer would if"
        for name, words, change in _changes(first.arguments, self.defaults):
            yield Relation(name, f"{begin} {words}.", lambda seen, c=change: self._like_right(seen, c))

    def _like_right(self, seen: Seen, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
        value = seen.call(self.right, change(seen.arguments))
        return self._same(value, seen.actual)

    # Where and how a result is wrong ---------------------------------------------------------------------------

    def _where(self, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, Test]]:
        if a.shape != e.shape or e.dim() == 0:
            return
        for axis in range(-1, -e.dim() - 1, -1):
            for index, word in ((-1, "last"), (0, "first")):
                if e.size(axis) >= 2:
                    yield (
                        f"only the {word}",
                        f"Only the {word} place along {_axis(axis, e.dim())} is wrong.",
                        lambda e, a, d=axis, i=index: e.size(d) < 2 or self._only(e, a, _at(e, d, i)),
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
        for axis in range(-1, -e.dim() - 1, -1):
            where = _axis(axis, e.dim())
            if e.size(axis) < 2:
                continue
            yield (
                "sums to one",
                f"The numbers of the result sum to one along {where}.",
                lambda e, a, d=axis: _sums_to_one(a, d) and not _sums_to_one(e, d),
            )
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

    def _equal(self, wanted: Tensor, got: Tensor, like: Tensor | None = None) -> bool:
        """Equal in shape and, up to the rounding of the expected dtype, in value."""
        return wanted.shape == got.shape and bool(self._agree(wanted, got, like).all())

    def _agree(self, wanted: Tensor, got: Tensor, like: Tensor | None = None) -> Tensor:
        dtypes = [one.dtype for one in (like if like is not None else wanted, got) if one.is_floating_point()]
        limits = [self.rules.limits(dtype) for dtype in dtypes] or [(0.0, 0.0)]
        relative, absolute = max(limits)
        w, g = _real(wanted), _real(got)
        return torch.isclose(g, w, rtol=max(relative, 1e-6), atol=absolute, equal_nan=True)

    def _same(self, wanted: Any, got: Any) -> bool:
        e, a = _tensor(wanted), _tensor(got)
        if e is not None and a is not None:
            return self._equal(e, a)
        if isinstance(wanted, tuple | list) and isinstance(got, tuple | list):
            return len(wanted) == len(got) and all(map(self._same, wanted, got))
        if isinstance(wanted, dict) and isinstance(got, dict):
            return wanted.keys() == got.keys() and all(self._same(wanted[key], got[key]) for key in wanted)
        return e is None and a is None and type(wanted) is type(got) and bool(wanted == got)

    def _as(self, change: Callable[[Tensor], Tensor]) -> Test:
        return lambda e, a: self._equal(change(e), a, e)

    def _shifted(self, e: Tensor, a: Tensor, axis: int, step: int) -> bool:
        if a.shape != e.shape or e.size(axis) < 2:
            return bool(a.shape == e.shape and e.size(axis) < 2)
        kept = e.size(axis) - 1
        source = e.narrow(axis, 0 if step > 0 else 1, kept)
        target = a.narrow(axis, 1 if step > 0 else 0, kept)
        own = e.narrow(axis, 1 if step > 0 else 0, kept)
        return self._equal(source, target) and (not self._equal(own, target) or kept < 2)

    def _reordered(self, e: Tensor, a: Tensor, axis: int) -> bool:
        if a.shape != e.shape or e.size(axis) > ROWS:
            return False
        rows, left = list(a.unbind(axis)), list(e.unbind(axis))
        if any(self._equal(x, y) for x, y in itertools.combinations(left, 2)):
            return False  # rows that cannot be told apart
        for row in rows:
            place = next((i for i, other in enumerate(left) if self._equal(other, row)), None)
            if place is None:
                return False
            del left[place]
        return True

    def _only(self, e: Tensor, a: Tensor, places: Tensor) -> bool:
        if a.shape != e.shape:
            return False
        wrong = ~self._agree(e, a)
        return bool(wrong.any()) and not bool((wrong & ~places).any()) and not bool(places.all())

    def _rows(self, e: Tensor, a: Tensor, axis: int, *, by_factor: bool) -> bool:
        if a.shape != e.shape or e.size(axis) < 2:
            return False
        x, y = _real(e).movedim(axis, -1), _real(a).movedim(axis, -1)
        if not bool(x.isfinite().all()) or not bool(y.isfinite().all()):
            return False
        if by_factor:
            factor = (x * y).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True)
            fits = not bool(factor.isnan().any()) and bool((factor.abs() > 1e-3).all())
            return fits and x.size(-1) >= 3 and self._equal(x * factor, y, e)
        return x.size(-1) >= 3 and self._equal(x + (y - x).mean(-1, keepdim=True), y, e)


# What relations are made of ----------------------------------------------------------------------------------------

_ENTRIES: tuple[tuple[str, str, Callable[[Tensor], Tensor]], ...] = (
    ("negated", "the right one with the opposite sign", lambda e: -e),
    ("complement", "one minus the right one", lambda e: 1 - e),
    ("reciprocal", "one divided by the right one", lambda e: 1 / e),
    ("squared", "the square of the right one", lambda e: e**2),
    ("root", "the square root of the right one", lambda e: e.sqrt()),
    ("exponential", "the exponential of the right one", lambda e: e.exp()),
    ("logarithm", "the logarithm of the right one", lambda e: e.log()),
    ("size alone", "the right one without its sign", lambda e: e.abs()),
    ("cut to whole numbers", "the right one cut to a whole number, as an integer division does", lambda e: e.floor()),
    ("rounded", "the right one rounded to a whole number", lambda e: e.round()),
    ("rounded up", "the right one rounded up to a whole number", lambda e: e.ceil()),
    ("below zero cut", "the right one with everything below zero cut off", lambda e: e.clamp(min=0)),
)

_OF_A_SIZE: tuple[tuple[str, str, Callable[[float], float]], ...] = (
    ("sum", "the right one times {}", lambda n: n),
    ("divided by a size", "the right one divided by {}", lambda n: 1 / n),
    ("root of a size", "the right one times the square root of {}", lambda n: n**0.5),
    ("divided by a root", "the right one divided by the square root of {}", lambda n: n**-0.5),
    ("one too few", "the right one times n / (n - 1), where n is {}", lambda n: n / (n - 1)),
    ("one too many", "the right one times (n - 1) / n, where n is {}", lambda n: (n - 1) / n),
    ("squared size", "the right one times the square of {}", lambda n: n**2),
    ("divided by a square", "the right one divided by the square of {}", lambda n: n**-2),
)

_MEANINGS = {
    8.0: " Bits and bytes differ by this factor.",
    0.125: " Bits and bytes differ by this factor.",
    1.4427: " Logarithms to base 2 and natural ones differ by this factor.",
    0.6931: " Natural logarithms and those to base 2 differ by this factor.",
    100.0: " Per cent and shares differ by this factor.",
    0.01: " Per cent and shares differ by this factor.",
}


def _changes(
    arguments: dict[str, Any], defaults: dict[str, Any]
) -> Iterator[tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]]]:
    """Other arguments: (name of the relation, words after "if", from the arguments to those that change)."""
    for x, y in itertools.permutations(arguments, 2):
        a, b = arguments[x], arguments[y]
        if not _alike(a, b):
            continue
        if list(arguments).index(x) < list(arguments).index(y):
            yield "arguments exchanged", f"`{x}` and `{y}` were exchanged", lambda v, x=x, y=y: {x: v[y], y: v[x]}
        yield "argument for another", f"`{y}` stood in the place of `{x}`", lambda v, x=x, y=y: {x: v[y]}
    for x, value in arguments.items():
        if x in defaults and not _plainly_equal(value, defaults[x]):
            yield "argument ignored", f"`{x}` were left out", lambda v, x=x: {x: defaults[x]}
        if isinstance(value, bool):
            yield "argument inverted", f"`{x}` were the opposite", lambda v, x=x: {x: not v[x]}
        elif isinstance(value, Tensor):
            yield from _changes_of_a_tensor(x, value)
        elif isinstance(value, int | float):
            for words, function in _OF_A_NUMBER if isinstance(value, float) else _OF_A_COUNT:
                yield "argument changed", f"`{x}` were {words}", lambda v, x=x, f=function: {x: f(v[x])}


def _changes_of_a_tensor(
    x: str, value: Tensor
) -> Iterator[tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]]]:
    if value.dtype == torch.bool:
        yield "argument inverted", f"True and False in `{x}` were exchanged", lambda v: {x: ~v[x]}
        for every in (True, False):
            yield (
                "argument ignored",
                f"`{x}` were {every} everywhere",
                lambda v, f=every: {x: torch.full_like(v[x], f)},
            )
    else:
        yield "argument negated", f"`{x}` had the opposite sign", lambda v: {x: -v[x]}
        yield "argument ignored", f"`{x}` were zero", lambda v: {x: torch.zeros_like(v[x])}
    if not value.is_floating_point():
        for step, word in ((1, "larger"), (-1, "smaller")):
            if value.dtype != torch.bool:
                yield (
                    "argument off by one",
                    f"every number in `{x}` were one {word}",
                    lambda v, s=step: {x: v[x] + s},
                )
    if value.dim() >= 2 and value.size(-1) > 1 and value.size(-2) > 1:
        yield "argument transposed", f"the last two axes of `{x}` were exchanged", lambda v: {x: v[x].mT}
    for axis in {-1, -2, 0}:
        if -value.dim() <= axis < value.dim() and value.size(axis) > 1:
            where = _axis(axis, value.dim())
            yield "argument reversed", f"`{x}` were reversed along {where}", lambda v, d=axis: {x: v[x].flip(d)}
            for step, way in ((1, "later"), (-1, "earlier")):
                yield (
                    "argument shifted",
                    f"everything in `{x}` stood one place {way} along {where}, the end put to the beginning"
                    if step > 0
                    else f"everything in `{x}` stood one place {way} along {where}, the beginning put to the end",
                    lambda v, d=axis, s=step: {x: v[x].roll(s, d)},
                )


_OF_A_COUNT: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("one larger", lambda n: n + 1),
    ("one smaller", lambda n: n - 1),
    ("twice as large", lambda n: 2 * n),
    ("half as large", lambda n: n // 2),
    ("zero", lambda n: 0),
    ("one", lambda n: 1),
    ("negative", lambda n: -n),
)

_OF_A_NUMBER: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("zero", lambda n: 0.0),
    ("one", lambda n: 1.0),
    ("its opposite", lambda n: -n),
    ("one minus itself", lambda n: 1 - n),
    ("one divided by itself", lambda n: 1 / n),
    ("twice as large", lambda n: 2 * n),
    ("half as large", lambda n: n / 2),
    ("its square", lambda n: n * n),
    ("its square root", lambda n: n**0.5),
)


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dim() == b.dim() and a.dtype == b.dtype
    numbers = isinstance(a, int | float) and isinstance(b, int | float)
    return numbers and type(a) is type(b) and not isinstance(a, bool)


def _plainly_equal(a: Any, b: Any) -> bool:
    return a is b or (not isinstance(a, Tensor) and type(a) is type(b) and bool(a == b))


def _orders(axes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
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


def _permuted(e: Tensor, order: tuple[int, ...]) -> Tensor:
    """The axes in this order, counted from the end where there are more or fewer."""
    if e.dim() != len(order):
        raise ValueError("another number of axes")
    return e.permute(order)


def _sizes(seen: Seen) -> dict[str, int]:
    """Sizes that a factor may come from: axes of arguments and plain counts, by the words for them."""
    found: dict[str, int] = {}
    for name, value in seen.arguments.items():
        if isinstance(value, Tensor):
            for axis in range(-1, -value.dim() - 1, -1):
                found.setdefault(f"the size of {_axis(axis, value.dim())} of `{name}`", value.size(axis))
        elif isinstance(value, int) and not isinstance(value, bool):
            found[f"`{name}`"] = value
    return found


def _axis(axis: int, axes: int) -> str:
    axis = axis + axes if axis < 0 else axis
    if axes == 1:
        return "its only axis"
    return {axes - 1: "the last axis", axes - 2: "the last axis but one"}.get(axis, f"axis {axis}")


def _ratio(e: Tensor, a: Tensor) -> float | None:
    """The one factor between two tensors, if there is one."""
    x, y = _real(e).flatten(), _real(a).flatten()
    usable = x.isfinite() & y.isfinite() & (x.abs() > 1e-3 * x[x.isfinite()].abs().max() if x.isfinite().any() else x)
    if not bool(usable.any()) or not bool((y[usable] != 0).all()):
        return None
    factors = y[usable] / x[usable]
    factor = float(factors.median())
    spread = float((factors - factor).abs().max())
    return factor if spread <= 0.05 * abs(factor) and factor not in (0.0, 1.0) and abs(factor - 1) > 1e-5 else None


def _difference(e: Tensor, a: Tensor) -> float | None:
    x, y = _real(e).flatten(), _real(a).flatten()
    usable = x.isfinite() & y.isfinite()
    if not bool(usable.any()):
        return None
    steps = (y - x)[usable]
    step = float(steps.median())
    return step if step != 0 and float((steps - step).abs().max()) <= 1e-2 * abs(step) else None


def _snapped(number: float) -> float:
    """The number, without rounding errors where it is a simple fraction."""
    simple = Fraction(number).limit_denominator(64)
    return float(simple) if simple and math.isclose(float(simple), number, rel_tol=2e-4) else number


def _times(factor: float) -> str:
    simple = Fraction(factor).limit_denominator(64)
    exact = math.isclose(float(simple), factor, rel_tol=1e-9)
    if factor == 2:
        return "twice"
    if factor == 0.5:
        return "half of"
    return f"{simple} times" if exact else f"{factor:.4g} times"


def _at(e: Tensor, axis: int, index: int) -> Tensor:
    places = torch.zeros_like(e, dtype=torch.bool)
    places.select(axis, index).fill_(True)
    return places


def _sums_to_one(x: Tensor, axis: int) -> bool:
    total = _real(x).sum(axis)
    return bool(torch.isclose(total, torch.ones_like(total), rtol=1e-3).all())


def _at_least_one(size: int | None) -> bool:
    return size is not None and size >= 1


def _real(x: Tensor) -> Tensor:
    return x.detach().double()


def _like(value: Any, a: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError("no tensor here")
    return value.detach().to(a.dtype)


def _tensor(value: Any) -> Tensor | None:
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


def _part(value: Any, key: Any) -> Any:
    return value if key is None else value[key]


def _on(test: Test, key: Any) -> Callable[[Seen], bool]:
    def holds(seen: Seen) -> bool:
        e, a = _tensor(_part(seen.expected, key)), _tensor(_part(seen.actual, key))
        return e is not None and a is not None and test(e, a)

    return holds


def _with_arguments(test: Callable[[Seen, Tensor, Tensor], bool], key: Any) -> Callable[[Seen], bool]:
    def holds(seen: Seen) -> bool:
        e, a = _tensor(_part(seen.expected, key)), _tensor(_part(seen.actual, key))
        return e is not None and a is not None and a.shape == e.shape and test(seen, e, a)

    return holds


def _true(relation: Relation, seen: Seen) -> bool:
    try:
        return relation.holds(seen)
    except Exception:  # shapes, types or values for which it has no meaning
        return False


def _enough(wrong: Sequence[Seen]) -> bool:
    """Whether so much was seen that agreement is no accident."""
    count = 0
    for seen in wrong:
        parts = seen.expected if isinstance(seen.expected, tuple | list) and _tensor(seen.expected) is None else None
        tensors = [_tensor(part) for part in parts] if parts is not None else [_tensor(seen.expected)]
        for tensor in tensors:
            if tensor is not None:
                weight = EVIDENCE if tensor.dtype == torch.bool else EVIDENCE_OF_BOOLS
                count += min(tensor.numel(), EVIDENCE_OF_BOOLS) * weight
    return count >= EVIDENCE * EVIDENCE_OF_BOOLS


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


def gradient_relation(
    names: list[str], wanted: list[Tensor | None] | None, got: list[Tensor | None] | None, rules: Rules
) -> Relation | None:
    """Which arguments get no gradient, and which a wrong one, where the values are right."""
    if wanted is None or got is None:
        return None
    none, wrong, factors = [], [], set()
    for name, e, a in zip(names, wanted, got, strict=True):
        if compare_gradients([e], [a], [name], rules) is None:
            continue
        if a is None or not bool(a.any()):
            none.append(f"`{name}`")
        else:
            wrong.append(f"`{name}`")
            factors.add(None if e is None else _ratio(e, a))
    if not none and not wrong:
        return None
    every = "all of them" if len(none) == len(names) > 1 else " and ".join(none)
    said = [f"no gradient reaches {every}"] if none else []
    if wrong:
        of = f"the gradient of {' and '.join(wrong)} is"
        factor = next(iter(factors)) if len(factors) == 1 else None
        said.append(f"{of} {_times(_snapped(factor))} the right one" if factor is not None else f"{of} wrong")
    name = "no gradient" if none else "wrong gradient"
    return Relation(name, f"The values are right, but {', and '.join(said)}.", lambda seen: True, exact=False)


def what_fails(cases: Sequence[tuple[dict[str, Any], bool]]) -> str:
    """What the failing cases have in common and no other has, in one sentence, or "" if nothing tells them apart.

    Args:
        cases: the arguments of each case, and whether the answer fails on it.
    """
    failing = [fails for _, fails in cases]
    if failing.count(False) < 2 or failing.count(True) < 1:
        return ""
    features = [_features(arguments) for arguments, _ in cases]
    words = list(dict.fromkeys(word for one in features for word in one))
    telling = [word for word in words if [word in one for one in features] == failing]
    if not telling or (failing.count(True) == 1 and len(telling) > 1):
        return ""
    return f"It fails on exactly those cases in which {telling[0]}."


def _features(arguments: dict[str, Any]) -> list[str]:
    """What may be special about arguments, in words, the most telling first."""
    found = []
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    for name, value in arguments.items():
        if value is not None and not isinstance(value, Tensor | bool | int | float | str):
            continue
        if value is None:
            found.append(f"`{name}` is None")
        elif isinstance(value, Tensor):
            found += _features_of_a_tensor(name, value)
        elif isinstance(value, bool):
            found.append(f"`{name}` is {value}")
        elif isinstance(value, int | float):
            for word, is_so in (("zero", value == 0), ("negative", value < 0), ("larger than 1", value > 1)):
                if is_so:
                    found.append(f"`{name}` is {word}")
        else:
            found.append(f"`{name}` is {value!r}")
    for (x, a), (y, b) in itertools.combinations(tensors.items(), 2):
        for axis in (-2, -1):
            if min(a.dim(), b.dim()) >= -axis and a.size(axis) != b.size(axis):
                found.append(f"`{x}` and `{y}` differ in size along {'the last axis' + ' but one' * (axis == -2)}")
    return found


def _features_of_a_tensor(name: str, value: Tensor) -> Iterator[str]:
    if value.dtype in (torch.float16, torch.bfloat16, torch.float64):
        yield f"`{name}` has the dtype {str(value.dtype).removeprefix('torch.')}"
    if value.dim() >= 2 and value.size(0) > 1:
        yield f"`{name}` has more than one entry along its first axis"
    if value.dim() >= 2 and value.size(-1) != value.size(-2):
        yield f"`{name}` is not square"
    if value.dtype == torch.bool and value.dim() and value.numel() and not bool(value.any(-1).all()):
        yield f"`{name}` has a row without a True"
    if value.is_floating_point() and value.numel():
        if not bool(value.isfinite().all()):
            yield f"`{name}` contains infinite numbers"
        elif float(value.detach().abs().max()) > 50:
            yield f"`{name}` contains large numbers"
    if not value.is_contiguous():
        yield f"`{name}` is not contiguous in memory"
    if value.numel() == 0:
        yield f"`{name}` is empty"
    yield f"`{name}` has {value.dim()} axes"
