"""What cases have in common, which arguments lack a gradient, and whether a law contradicts itself."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.exercises.engine.compare import Rules, compare_gradients
from course_lib.exercises.engine.guard import Guard
from course_lib.exercises.engine.likeness import copied, ratio_of, snapped, times
from course_lib.exercises.engine.relations import Relation
from course_lib.exercises.engine.run import Beginning, Outcome, argument_names, quiet
from course_lib.exercises.spec import Exercise, Property


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
            factors.add(None if e is None else ratio_of(e, a))
    if not none and not wrong:
        return None
    every = "all of them" if len(none) == len(names) > 1 else " and ".join(none)
    said = [f"no gradient reaches {every}"] if none else []
    if wrong:
        of = f"the gradient of {' and '.join(wrong)} is"
        factor = next(iter(factors)) if len(factors) == 1 else None
        said.append(f"{of} {times(snapped(factor))} the right one" if factor is not None else f"{of} wrong")
    name = "no gradient" if none else "wrong gradient"
    return Relation(name, f"The values are right, but {', and '.join(said)}.", lambda seen: True, exact=False)


def off_by(exact: list[Tensor | None] | None, rounded: list[Tensor | None]) -> list[float]:
    """The largest deviation of each gradient from the exact one; zeros where that is not to be had."""
    if exact is None or len(exact) != len(rounded):
        return [0.0] * len(rounded)
    return [
        0.0
        if one is None or other is None or not one.numel()
        else float((one - other.double()).abs().nan_to_num().max())
        for one, other in zip(exact, rounded, strict=True)
    ]


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


NAN = "It computes something that is not a number (NaN), as 0 / 0, inf - inf and 0 * inf do."
RANDOM = "Its result depends on chance: the same arguments give another result with another seed."
KEEPS = "It gives another result when it is called again with the same arguments: a call leaves something behind."


def contradicts_itself(law: str, sentence: str) -> bool:
    """Whether the numbers of a sentence, as rounded for reading, seem to obey the law that they should break."""
    number = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
    for a, b in re.findall(rf"{number}%?,? (?:and|not|instead of|in place of|where) {number}", sentence):
        if float(a) == float(b):
            return True
    for word, value in (("one", 1.0), ("zero", 0.0)):
        if re.search(rf"\bsums? (?:up )?to {word}\b", law):
            return any(float(found) == value for found in re.findall(rf"\bsums? (?:up )?to {number}", sentence))
    return False


def made_again(exercise: Exercise, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
    """The arguments of a call as a case makes them."""
    if not kwargs:
        return copied(args)
    names = argument_names(exercise, len(args))
    return copied({**dict(zip(names, args, strict=True)), **kwargs})


def broken(law: Property, call: Callable[..., Any], guard: Guard) -> str | None:
    """What a law says of a function that breaks it; None if it holds or cannot be tried."""
    try:
        with quiet(Beginning(), seed=1234):
            return guard.call(law.check, call)
    except AssertionError as problem:
        return str(problem)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def is_stub(outcome: Outcome) -> bool:
    """Whether the body is still `raise NotImplementedError`; torch raises that error too, with a text of its own."""
    if type(outcome.error) is not NotImplementedError:
        return False
    text = str(outcome.error)
    return "not implemented for" not in text and "Could not run" not in text
