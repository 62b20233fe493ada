"""Changes that slips make: of every number, by a size, of the arguments."""

# mypy: disable-error-code=misc
# (mypy infers no type for a lambda whose default arguments bind the variables of a loop)

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from coursework.exercises.engine.likeness import name_of_axis

ENTRIES: tuple[tuple[str, str, Callable[[Tensor], Tensor]], ...] = (
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

OF_A_SIZE: tuple[tuple[str, str, Callable[[float], float]], ...] = (
    ("sum", "the right one times {}", lambda n: n),
    ("divided by a size", "the right one divided by {}", lambda n: 1 / n),
    ("root of a size", "the right one times the square root of {}", lambda n: n**0.5),
    ("divided by a root", "the right one divided by the square root of {}", lambda n: n**-0.5),
    ("one too few", "the right one times n / (n - 1), where n is {}", lambda n: n / (n - 1)),
    ("one too many", "the right one times (n - 1) / n, where n is {}", lambda n: (n - 1) / n),
    ("squared size", "the right one times the square of {}", lambda n: n**2),
    ("divided by a square", "the right one divided by the square of {}", lambda n: n**-2),
)

MEANINGS = {
    8.0: " Bits and bytes differ by this factor.",
    0.125: " Bits and bytes differ by this factor.",
    1.4427: " Logarithms to base 2 and natural ones differ by this factor.",
    0.6931: " Natural logarithms and those to base 2 differ by this factor.",
    100.0: " Per cent and shares differ by this factor.",
    0.01: " Per cent and shares differ by this factor.",
}


CONSTANTS = 6
"""So many values of a number, as they occur in the cases, are tried as constants."""


Change = tuple[str, str, Callable[[dict[str, Any]], dict[str, Any]]]
"""Other arguments: name of the relation, words after "if", from the arguments to those that change."""


def changes_of(
    arguments: dict[str, Any], defaults: dict[str, Any], others: Sequence[dict[str, Any]] = ()
) -> Iterator[Change]:
    """Other arguments that slips make of these.

    `others` are the arguments of other inputs, whose numbers an answer may have fixed.
    """
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
            values = [one[x] for one in others if x in one and type(one[x]) is type(value) and one[x] != value]
            for constant in list(dict.fromkeys(values))[:CONSTANTS]:
                yield "argument fixed", f"`{x}` were always {constant:g}", lambda v, x=x, c=constant: {x: c}


def _changes_of_a_tensor(x: str, value: Tensor) -> Iterator[Change]:
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
    for i, j in itertools.combinations(range(value.dim()), 2):
        if min(value.size(i), value.size(j)) > 1:
            yield (
                "argument reshaped",
                f"axes {i} and {j} of `{x}` were exchanged and it were then reshaped to what it was",
                lambda v, i=i, j=j: {x: v[x].transpose(i, j).reshape(v[x].shape)},
            )
    for axis in (-1, -2, 0):
        if axis == 0 and value.dim() <= 2:
            continue  # the same axis once more
        if -value.dim() <= axis < value.dim() and value.size(axis) > 1:
            where = name_of_axis(axis, value.dim())
            for place, word in ((0, "first"), (-1, "last")):
                yield (
                    "argument repeated",
                    f"`{x}` held its {word} place again and again along {where}",
                    lambda v, d=axis, i=place: {x: v[x].select(d, i).unsqueeze(d).expand_as(v[x])},
                )
            if value.is_floating_point():
                for words, power in (("divided by the size of", -1), ("divided by the root of the size of", -0.5)):
                    yield (
                        "argument divided",
                        f"`{x}` were {words} its {where.removeprefix('the ').removeprefix('its ')}",
                        lambda v, d=axis, p=power: {x: v[x] * v[x].size(d) ** p},
                    )
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
