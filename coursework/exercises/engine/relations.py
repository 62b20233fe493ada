"""What an answer has to do with the right one, found without its author's help: transposed, negated, off by a factor.

A relation is a hypothesis made on the first failing case. It is said only if it holds on every case, or on every
failing one, and on inputs drawn for it: then what is said is true of the answer, whatever its author thought.
"""

# mypy: disable-error-code=misc
# (mypy infers no type for a lambda whose default arguments bind the variables of a loop)

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from coursework.exercises.engine.changes import MEANINGS, OF_A_SIZE, changes_of
from coursework.exercises.engine.compare import kind_of
from coursework.exercises.engine.forms import Forms
from coursework.exercises.engine.likeness import (
    Seen,
    Test,
    as_tensor,
    difference_of,
    in_dtype_of,
    part_of,
    ratio_of,
    real,
    sizes_of,
    snapped,
    times,
)

WRONG_ENOUGH = 5
"""So many wrong inputs must confirm a relation that does not hold everywhere."""

EVIDENCE, EVIDENCE_OF_BOOLS = 4, 12
"""So many entries must confirm a relation; True and False agree more easily by chance."""


TestOfArguments = Callable[[Seen, Tensor, Tensor], bool]
"""A test that looks at the arguments too."""


@dataclass(frozen=True)
class Relation:
    """Something that is true of an answer.

    Args:
        name: short and stable: "transposed".
        statement: one sentence for the learner, with capital and full stop.
        holds: whether it is true of what was seen on one input.
        exact: it says what every number is, and not only where or how the result is wrong.
        places: it says where the result is wrong.
    """

    name: str
    statement: str
    holds: Callable[[Seen], bool] = field(repr=False, compare=False)
    exact: bool = True
    places: bool = False


@dataclass(frozen=True)
class Finder(Forms):
    """Looks for relations.

    Args:
        rules: what counts as equal.
        right: the right function, called as the cases are.
        defaults: the default values of its arguments.
    """

    right: Callable[..., Any]
    defaults: dict[str, Any]

    def find(self, seen: Sequence[Seen], drawn: Callable[[], Sequence[Seen]], *, exact: bool) -> Relation | None:
        """The first relation that holds on all inputs, or on all on which the answer is wrong."""
        first = next(one for one in seen if one.wrong)
        for relation in self._hypotheses(first, [one.arguments for one in seen], exact):
            if not all(_true(relation, one) for one in seen if one.wrong):
                continue
            everything = [*seen, *drawn()]
            wrong = [one for one in everything if one.wrong]
            if not all(_true(relation, one) for one in wrong) or not _enough(wrong):
                continue
            if relation.places and sum(self._partly_right(one) for one in wrong) < 2:
                continue  # one input may be an accident
            if relation.exact and not all(_true(relation, one) for one in everything):
                if len(wrong) < WRONG_ENOUGH:
                    continue
                sentence = relation.statement[:1].lower() + relation.statement[1:]
                return replace(relation, statement=f"Where it is wrong, {sentence}")
            return relation
        return None

    def of_values(self, first: Seen, exact: bool) -> Iterator[Relation]:
        """What one value may have to do with the right one, seen from the two and the arguments."""
        yield from self._of_tensors(first, None, exact, exact)

    def _partly_right(self, seen: Seen) -> bool:
        """Whether some of the result is right: only then could a place be found that is wrong by itself."""
        pairs = zip(tree_leaves(seen.expected), tree_leaves(seen.actual), strict=False)
        found = [(as_tensor(e), as_tensor(a)) for e, a in pairs]
        return any(
            e is not None
            and a is not None
            and e.shape == a.shape
            and bool((at := self.agree(e, a)).any())
            and not at.all()
            for e, a in found
        )

    def _hypotheses(self, first: Seen, others: Sequence[dict[str, Any]], exact: bool) -> Iterator[Relation]:
        wanted, got = first.expected, first.actual
        if exact:
            yield from self._of_structure(wanted, got)
        if self.same(wanted, got):  # only the dtype or the type is wrong
            return
        if isinstance(wanted, tuple | list | dict) and as_tensor(wanted) is None:
            keys = list(wanted) if isinstance(wanted, dict) else list(range(len(wanted)))
            if not isinstance(got, type(wanted) if isinstance(wanted, dict) else tuple | list) or len(got) != len(keys):
                return
            wrong = [key for key in keys if not self.same(part_of(wanted, key), part_of(got, key))]
            for key in wrong:
                for relation in self._of_tensors(first, key, exact and len(wrong) == 1, exact):
                    yield replace(relation, statement=f"Of part {key!r} of the result: {relation.statement}")
        else:
            yield from self._of_tensors(first, None, exact, exact)
        if exact:
            yield from self._of_arguments(first, others)

    # The result as a whole ---------------------------------------------------------------------------------------

    def _of_structure(self, wanted: Any, got: Any) -> Iterator[Relation]:
        """Parts in another order, one part too few or too many."""
        several = isinstance(wanted, tuple | list) and isinstance(got, tuple | list) and as_tensor(wanted) is None
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
                            and all(self.same(seen.expected[i], seen.actual[n]) for n, i in enumerate(o))
                        ),
                    )
        if isinstance(wanted, tuple | list) and isinstance(got, Tensor | int | float):
            for index in range(len(wanted)):
                yield Relation(
                    "one part alone",
                    f"Only part {index} of the result is returned, not {len(wanted)} parts.",
                    lambda seen, i=index: self.same(seen.expected[i], seen.actual),
                )
        if isinstance(wanted, Tensor | int | float) and isinstance(got, tuple | list) and len(got) <= 4:
            for index in range(len(got)):
                yield Relation(
                    "more than asked",
                    f"It returns {kind_of(got)} of {len(got)} parts; part {index} is right, and it stands not alone.",
                    lambda seen, i=index: (
                        isinstance(seen.actual, tuple | list)
                        and len(seen.actual) > i
                        and self.same(seen.expected, seen.actual[i])
                    ),
                )
        if isinstance(wanted, Tensor) and isinstance(got, np.ndarray | tuple | list | int | float):
            yield Relation(
                "no tensor",
                f"The numbers are right, but they come as {kind_of(got)}.",
                lambda seen: not isinstance(seen.actual, Tensor) and self.same(seen.expected, seen.actual),
            )

    # One tensor or number ----------------------------------------------------------------------------------------

    def _of_tensors(self, first: Seen, key: Any, exact: bool, either: bool) -> Iterator[Relation]:
        e, a = as_tensor(part_of(first.expected, key)), as_tensor(part_of(first.actual, key))
        if e is None or a is None or e.numel() == 0 or a.numel() > 100_000 or e.is_complex() or a.is_complex():
            return
        if not either:
            for name, statement, test in self._where(e, a):
                yield Relation(name, statement, _on(test, key), exact, places=True)
            for name, statement, test in self._of_rows(e, a):
                yield Relation(name, statement, _on(test, key), exact)
            return
        for name, statement, test in itertools.chain(
            self._of_shape(e, a), self._of_values(e, a), self._of_places(e, a)
        ):
            yield Relation(name, statement, _on(test, key), exact)
        for name, statement, of in (*self._equal_to_an_argument(first, e, a), *self._factors(first, e, a)):
            yield Relation(name, statement, _with_arguments(of, key), exact)

    def _equal_to_an_argument(self, first: Seen, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, TestOfArguments]]:
        for name, value in first.arguments.items():
            if isinstance(value, Tensor) and value.shape == a.shape and value.dtype != torch.bool:
                yield (
                    "unchanged",
                    f"The result is the argument `{name}`, unchanged.",
                    lambda seen, e, a, n=name: self.equal(in_dtype_of(seen.arguments[n], a), a),
                )

    def _factors(self, first: Seen, e: Tensor, a: Tensor) -> Iterator[tuple[str, str, TestOfArguments]]:
        """One factor or one difference for the whole result: a number, or made from a size."""
        if a.shape != e.shape or e.dtype == torch.bool or a.dtype == torch.bool:
            return
        every = "Every number of the result" if e.numel() > 1 else "The result"
        factor = ratio_of(e, a)
        if factor is not None:
            exact = snapped(factor)
            yield (
                "factor",
                f"{every} is {times(exact)} the right one.{MEANINGS.get(round(exact, 4), '')}",
                lambda seen, e, a: self.equal(real(e) * exact, a, e),
            )
            for label, size in sizes_of(first.arguments).items():
                for name, words, function in OF_A_SIZE:
                    if size < 2 or not math.isclose(function(size), factor, rel_tol=1e-3):
                        continue
                    meant = " A sum in the place of a mean does that." if name == "sum" and label[:1] != "`" else ""
                    yield (
                        name,
                        f"{every} is {words.format(f'{label} ({size} here)')}.{meant}",
                        lambda seen, e, a, n=label, f=function: (
                            n in sizes_of(seen.arguments) and self.equal(real(e) * f(sizes_of(seen.arguments)[n]), a, e)
                        ),
                    )
        if (difference := difference_of(e, a)) is not None:
            if e.numel() == 1:
                yield from self._terms(first, difference)
            amount = snapped(difference)
            size_of = f"{abs(amount):.6g}"
            way = "large" if amount > 0 else "small"
            off = "Off by one: " if abs(amount) == 1 else ""
            said = f"{every} is {size_of} too {way}."
            yield (
                "off by one" if abs(amount) == 1 else "difference",
                off + (said[:1].lower() + said[1:] if off else said),
                lambda seen, e, a: self.equal(real(e) + amount, a, e),
            )
            for label, size in sizes_of(first.arguments).items():
                if size >= 2 and math.isclose(abs(difference), size, rel_tol=1e-4):
                    sign = 1 if difference > 0 else -1
                    yield (
                        "difference",
                        f"{every} is too {way} by {label} ({size} here).",
                        lambda seen, e, a, n=label, s=sign: (
                            n in sizes_of(seen.arguments)
                            and self.equal(real(e) + s * sizes_of(seen.arguments)[n], a, e)
                        ),
                    )

    def _terms(self, first: Seen, difference: float) -> Iterator[tuple[str, str, TestOfArguments]]:
        """A count that is off by a product of arguments, a few times."""
        counts = {name: size for name, size in sizes_of(first.arguments).items() if name[:1] == "`" and size > 0}
        for length in range(1, min(len(counts), 5) + 1):
            for names in itertools.combinations(counts, length):
                often = abs(difference) / math.prod(counts[name] for name in names)
                if often not in (0.5, 1, 2, 3, 4, 6, 8):
                    continue
                sign, way = (1, "large") if difference > 0 else (-1, "small")
                said = "" if often == 1 else "half of " if often == 0.5 else f"{often:g} times "
                yield (
                    "a term",
                    f"The result is too {way} by {said}{' times '.join(names)}.",
                    lambda seen, e, a, n=names, s=sign * often: self.equal(
                        real(e) + s * math.prod(sizes_of(seen.arguments)[name] for name in n), a, e
                    ),
                )

    # The arguments ---------------------------------------------------------------------------------------------

    def _of_arguments(self, first: Seen, others: Sequence[dict[str, Any]]) -> Iterator[Relation]:
        """What the right function gives for other arguments."""
        begin = "It behaves exactly as a right answer would if"
        for name, words, change in changes_of(first.arguments, self.defaults, others):
            yield Relation(name, f"{begin} {words}.", lambda seen, c=change: self._like_right(seen, c))

    def _like_right(self, seen: Seen, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
        value = seen.call(self.right, change(seen.arguments))
        return self.same(value, seen.actual)


def _on(test: Test, key: Any) -> Callable[[Seen], bool]:
    def holds(seen: Seen) -> bool:
        e, a = as_tensor(part_of(seen.expected, key)), as_tensor(part_of(seen.actual, key))
        return e is not None and a is not None and test(e, a)

    return holds


def _with_arguments(test: TestOfArguments, key: Any) -> Callable[[Seen], bool]:
    def holds(seen: Seen) -> bool:
        e, a = as_tensor(part_of(seen.expected, key)), as_tensor(part_of(seen.actual, key))
        return e is not None and a is not None and a.shape == e.shape and test(seen, e, a)

    return holds


def _true(relation: Relation, seen: Seen) -> bool:
    try:
        return relation.holds(seen)
    except Exception:  # shapes, types or values for which it has no meaning
        return False


def _only_nan(value: Any) -> bool:
    """Whether no number in it is a number."""
    tensors = [one for one in map(as_tensor, tree_leaves(value)) if one is not None and one.numel()]
    return bool(tensors) and all(bool(one.isnan().all()) for one in tensors)


def _enough(wrong: Sequence[Seen]) -> bool:
    """Whether so much was seen that agreement is no accident."""
    count = 0
    for seen in wrong:
        if _only_nan(seen.actual):  # NaN agrees with every NaN, whatever it comes from
            continue
        parts = seen.expected if isinstance(seen.expected, tuple | list) and as_tensor(seen.expected) is None else None
        tensors = [as_tensor(part) for part in parts] if parts is not None else [as_tensor(seen.expected)]
        for tensor in tensors:
            if tensor is not None:
                weight = EVIDENCE if tensor.dtype == torch.bool else EVIDENCE_OF_BOOLS
                count += min(tensor.numel(), EVIDENCE_OF_BOOLS) * weight
    return count >= EVIDENCE * EVIDENCE_OF_BOOLS
