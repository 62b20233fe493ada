"""What a result should depend on and does not, or the other way round: found by calling it with changed arguments."""

# mypy: disable-error-code=misc
# (mypy infers no type for a lambda whose default arguments bind the variables of a loop)

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from coursework.exercises.engine.compare import Rules, compare, equal_elements
from coursework.exercises.engine.likeness import Seen, name_of_axis
from coursework.exercises.engine.relations import Relation

WITNESSES = 4
"""So many failing inputs are tried; two must show it and none deny it."""

PLAIN = 0.02
"""A result changes plainly by more than this share of the largest."""

Function = Callable[..., Any]
Change = Callable[[dict[str, Any]], dict[str, Any]]


def dependence(wrong: Sequence[Seen], right: Function, answer: Function, rules: Rules) -> Relation | None:
    """The first argument, place or end of an argument on which the result depends in the wrong way.

    Args:
        wrong: failing inputs.
        right, answer: the two functions; may raise.
        rules: what counts as equal.
    """
    if len(wrong) < 2:
        return None
    look = wrong, right, answer, rules
    return _unused(_arguments(wrong[0]), *look) or _mixed(*look) or _unused(_ends(wrong[0]), *look)


def _unused(
    changes: Iterator[tuple[str, str, Change]], wrong: Sequence[Seen], right: Function, answer: Function, rules: Rules
) -> Relation | None:
    """The first change of an argument that changes the right result and never the answer's."""
    for name, said, change in changes:
        shown = 0
        for one in wrong:
            try:
                new = change(one.arguments)
                matters = compare(one.expected, one.call(right, new), rules) is not None
            except Exception:  # it has no meaning here
                continue
            if not matters:
                continue
            try:
                same = compare(one.actual, one.call(answer, new), Rules()) is None
            except Exception:
                same = False
            if not same:
                break
            shown += 1
        else:
            if shown >= 2:
                return Relation(name, f"The result does not change with {said}.", lambda seen: True, exact=False)
    return None


def _arguments(first: Seen) -> Iterator[tuple[str, str, Change]]:
    for x, value in first.arguments.items():
        if isinstance(value, Tensor | int | float):
            yield "argument unused", f"the argument `{x}`", lambda v, x=x: {x: _other(v[x])}


def _ends(first: Seen) -> Iterator[tuple[str, str, Change]]:
    for x, axis, place in _axes(first):
        yield "end unused", place, lambda v, x=x, d=axis: {x: _other_end(v[x], d)}


def _axes(first: Seen) -> Iterator[tuple[str, int, str]]:
    """Each axis of each tensor of numbers, with words for its end."""
    for x, value in first.arguments.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            for axis in range(value.dim()):
                yield x, axis, f"the last place of `{x}` along {name_of_axis(axis, value.dim())}"


def _mixed(wrong: Sequence[Seen], right: Function, answer: Function, rules: Rules) -> Relation | None:
    """The first end of an argument that changes results of the answer which it should not change."""
    for x, axis, place in _axes(wrong[0]):
        shown = [_reaches_too_far(one, x, axis, right, answer, rules) for one in wrong]
        if shown.count(True) >= 2 and False not in shown:
            said = f"A change of {place} changes results that should not depend on it."
            return Relation("mixed", said, lambda seen: True, exact=False)
    return None


def _other(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else value * 0.5 + 0.125
    if value.dtype == torch.bool:
        return ~value
    new = value.detach().flatten().flip(0).view(value.shape)
    return (0.5 * new + 0.25).to(value.dtype).requires_grad_(value.requires_grad) if new.is_floating_point() else new


def _other_end(value: Tensor, axis: int) -> Tensor:
    new = value.detach().clone()
    if value.size(axis) < 2:
        raise ValueError("one place alone has no end")
    end = new.select(axis, -1)
    end.copy_(0.5 * end + 0.25)
    return new.requires_grad_(value.requires_grad)


def _reaches_too_far(one: Seen, x: str, axis: int, right: Function, answer: Function, rules: Rules) -> bool | None:
    """Whether more of the answer changes than the last place of an axis, where no more of the right result does."""
    try:
        new = {x: _other_end(one.arguments[x], axis)}
        wanted, got = one.call(right, new), one.call(answer, new)
        if not wanted.shape == got.shape == one.expected.shape == one.actual.shape:
            return None
        moves = ~equal_elements(one.expected, wanted.detach(), rules)
        moved = (one.actual - got.detach()).abs() > PLAIN * one.actual.abs().max()
    except Exception:  # it has no meaning here
        return None
    for other in range(moves.dim()):
        before = slice(0, moves.size(other) - 1)
        if moves.size(other) > 1 and not moves.transpose(0, other)[before].any():
            return bool(moved.transpose(0, other)[before].any())
    return None
