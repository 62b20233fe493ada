"""What a result should depend on and does not, found by calling the answer with one argument changed."""

# mypy: disable-error-code=misc
# (mypy infers no type for a lambda whose default arguments bind the variables of a loop)

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.exercises.engine.compare import Rules, compare
from course_lib.exercises.engine.likeness import Seen, name_of_axis
from course_lib.exercises.engine.relations import Relation

WITNESSES = 4
"""So many failing inputs are tried; two must show it and none deny it."""

Value = Callable[[Seen, dict[str, Any]], Any]


def indifferent(wrong: Sequence[Seen], right: Value, answer: Value, rules: Rules) -> Relation | None:
    """The first argument, or end of an argument, that changes the right result and never the answer's.

    Args:
        wrong: failing inputs.
        right, answer: what each of the two returns on an input with some arguments changed; may raise.
        rules: what counts as equal.
    """
    if len(wrong) < 2:
        return None
    for name, statement, change in _changes(wrong[0]):
        shown = 0
        for one in wrong:
            try:
                new = change(one.arguments)
                matters = compare(one.expected, right(one, new), rules) is not None
            except Exception:  # it has no meaning here
                continue
            if not matters:
                continue
            try:
                same = compare(one.actual, answer(one, new), Rules()) is None
            except Exception:
                same = False
            if not same:
                break
            shown += 1
        else:
            if shown >= 2:
                return Relation(name, statement, lambda seen: True, exact=False)
    return None


def _changes(first: Seen) -> Iterator[tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]]]:
    for x, value in first.arguments.items():
        if not isinstance(value, Tensor | int | float):
            continue
        said = f"The result does not change with the argument `{x}`."
        yield "argument unused", said, lambda v, x=x: {x: _other(v[x])}
        if isinstance(value, Tensor) and value.is_floating_point():
            for axis in range(value.dim()):
                said = (
                    f"The result does not change with the last place of `{x}` along {name_of_axis(axis, value.dim())}."
                )
                yield "end unused", said, lambda v, x=x, d=axis: {x: _other_end(v[x], d)}


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
