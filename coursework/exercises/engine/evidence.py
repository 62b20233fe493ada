"""What cases have in common, which arguments lack a gradient, and whether a law contradicts itself."""

from __future__ import annotations

import itertools
import linecache
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from coursework.exercises.engine.compare import Rules, compare_gradients
from coursework.exercises.engine.guard import Guard
from coursework.exercises.engine.likeness import has_nan, ratio_of, snapped, times
from coursework.exercises.engine.relations import Relation
from coursework.exercises.engine.run import Beginning, Outcome, quiet
from coursework.exercises.spec import Misconception, Property

LOOSE, LOOSE_HALF, SMALL = 0.1, 0.5, 1e-2
"""A gradient that is right in float64 may be off by this share of its largest entry in float32, by the second in half
precision, where what cancels leaves little; and by this much.
"""


NAMED = 4
"""So many arguments are named."""

Gradients = list[Tensor | None]


def gradient_relation(
    cases: Sequence[tuple[list[str], Gradients | None, Gradients | None]], rules: Rules
) -> Relation | None:
    """Which arguments get no gradient, and which a wrong one, where the values are right.

    Args:
        cases: of each case whose gradients are wrong, the names, what is right and what came.
        rules: what counts as equal.
    """
    none: dict[str, bool] = {}  # whether none arrives wherever it should
    factors: dict[str, set[float | None]] = {}
    for names, wanted, got in cases:
        if wanted is None or got is None:
            return None
        for name, e, a in zip(names, wanted, got, strict=True):
            if compare_gradients([e], [a], [name], rules) is None:
                continue
            missing = a is None or not bool(a.any())
            none[name] = missing and none.get(name, True)
            factor = None if e is None or a is None or missing else ratio_of(e, a)
            factors.setdefault(name, set()).add(None if factor is None else snapped(factor))
    if not none:
        return None
    lost = [f"`{name}`" for name, missing in none.items() if missing]
    wrong = [f"`{name}`" for name, missing in none.items() if not missing]
    every = "all of them" if not wrong and len(lost) == len(set(cases[0][0])) > 1 else _listed(lost)
    said = [f"no gradient reaches {every}"] if lost else []
    if wrong:
        of = f"the gradient of {_listed(wrong)} is"
        all_factors = set().union(*(factors[name.strip("`")] for name in wrong))
        factor = next(iter(all_factors)) if len(all_factors) == 1 else None
        said.append(f"{of} {times(factor)} the right one" if factor is not None else f"{of} wrong")
    name = "no gradient" if lost else "wrong gradient"
    return Relation(name, f"The values are right, but {', and '.join(said)}.", lambda seen: True, exact=False)


def _listed(names: list[str]) -> str:
    """The first of these names, where there are many."""
    return " and ".join(names) if len(names) <= NAMED else f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"


def within(wanted: Gradients | None, got: Gradients | None) -> bool:
    """Whether gradients are finite and so near to the right ones that rounding may be all that separates them."""
    if wanted is None or got is None or len(wanted) != len(got):
        return False
    for e, a in zip(wanted, got, strict=True):
        e = torch.zeros_like(a) if e is None and a is not None else e
        a = torch.zeros_like(e) if a is None and e is not None else a
        if e is None or a is None or not e.numel():
            continue
        if e.dtype == torch.float64 or not bool(a.isfinite().all()) or not bool(e.isfinite().all()):
            return False
        share = LOOSE if e.dtype == torch.float32 else LOOSE_HALF
        if float((a - e).abs().max()) > share * float(e.abs().max()) + SMALL:
            return False
    return True


def exclude_each_other(misconceptions: Sequence[Misconception]) -> bool:
    """Whether one of two mistakes, as it is put, may deny the other: then they are not said together."""
    words = r"\b((and|but) not|only|alone|except|unless)\b"
    return len(misconceptions) > 1 and any(re.search(words, one.statement) for one in misconceptions)


def what_fails(cases: Sequence[tuple[dict[str, Any], bool]]) -> str:
    """What the failing cases have in common and no other has, in one sentence, or "" if nothing tells them apart.

    Args:
        cases: the arguments of each case, and whether the answer fails on it.
    """
    failing = [fails for _, fails in cases]
    if failing.count(False) < 2 or failing.count(True) < 1:
        return ""
    names = list(dict.fromkeys(name for arguments, _ in cases for name in arguments))
    optional = [name for name in names if any(arguments.get(name) is None for arguments, _ in cases)]
    features = [_features(arguments, optional) for arguments, _ in cases]
    words = list(dict.fromkeys(word for one in features for word in one))
    telling = [word for word in words if [word in one for one in features] == failing]
    if not telling or (failing.count(True) == 1 and len(telling) > 1):
        return ""
    return f"It fails on exactly those cases in which {telling[0]}."


def _features(arguments: dict[str, Any], optional: Collection[str]) -> list[str]:
    """What may be special about arguments, in words, the most telling first."""
    found = []
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    for name, value in arguments.items():
        if value is not None and not isinstance(value, Tensor | bool | int | float | str):
            continue
        if value is None:
            found.append(f"`{name}` is None")
            continue
        if name in optional:
            found.append(f"`{name}` is given")
        if isinstance(value, Tensor):
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
    numbers = {name: one for name, one in arguments.items() if type(one) is int}
    for (x, m), (y, n) in itertools.permutations(numbers.items(), 2):
        if m > n:
            found.append(f"`{x}` is larger than `{y}`")
        if n > 1 and m % n:
            found.append(f"`{x}` is no multiple of `{y}`")
    return found


def _features_of_a_tensor(name: str, value: Tensor) -> Iterator[str]:
    if value.dtype in (torch.float16, torch.bfloat16, torch.float64):
        yield f"`{name}` has the dtype {str(value.dtype).removeprefix('torch.')}"
    if value.dtype == torch.bool and value.dim() and value.numel() and not bool(value.any(-1).all()):
        yield f"`{name}` has a row without a True"
    if value.dtype == torch.bool and not bool(value.all()):
        yield f"`{name}` has a False"
    if value.is_floating_point() and value.numel():
        if not bool(value.isfinite().all()):
            yield f"`{name}` contains infinite numbers"
        elif float(value.detach().abs().max()) > 50:
            yield f"`{name}` contains large numbers"
    if not value.is_contiguous():
        yield f"`{name}` is not contiguous in memory"
    if value.numel() == 0:
        yield f"`{name}` is empty"
    if value.dim() >= 2 and value.size(0) > 1:
        yield f"`{name}` has more than one entry along its first axis"
    if value.dim() >= 2 and value.size(-1) != value.size(-2):
        yield f"`{name}` is not square"
    if value.dim() >= 3 and value.size(0) != value.size(1):
        yield f"the first two axes of `{name}` differ in size"
    yield f"`{name}` has {value.dim()} axes"


NAN = "It computes something that is not a number (NaN), as 0 / 0, inf - inf and 0 * inf do."
DIGITS = "It overflows or loses digits: with the same numbers in float64 its result is right."
RANDOM = "Its result depends on chance: the same arguments give another result with another seed."
KEEPS = "It gives another result when it is called again with the same arguments and the same seed."


class NaNOrigins(TorchDispatchMode):
    """Notes the lines of a file in which something that is not a number comes out of numbers."""

    def __init__(self, filename: str) -> None:
        super().__init__()
        self.filename = filename
        self.lines: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        result = func(*args, **(kwargs or {}))
        if has_nan(result) and not has_nan([args, kwargs]):
            frame = sys._getframe()
            while frame is not None and frame.f_code.co_filename != self.filename:
                frame = frame.f_back  # type: ignore[assignment]
            if frame is not None:
                self.lines.add(linecache.getline(self.filename, frame.f_lineno).strip())
        return result

    @property
    def statement(self) -> str:
        """What is said of an answer whose result is not a number, with the line if there is but one."""
        said = textwrap.shorten(next(iter(self.lines)), 90) if len(self.lines) == 1 else ""
        return f"{NAN} It arises in the line `{said}`." if said else NAN


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


def broken(law: Property, call: Callable[..., Any], guard: Guard) -> str | None:
    """What a law says of a function that breaks it; None if it holds or cannot be tried."""
    try:
        with quiet(Beginning(), seed=1234):
            return guard.call(law.check, call)
    except AssertionError as problem:
        return str(problem)
    except Exception:
        return None


def is_stub(outcome: Outcome) -> bool:
    """Whether the body is still `raise NotImplementedError`; torch raises that error too, with a text of its own."""
    if type(outcome.error) is not NotImplementedError:
        return False
    text = str(outcome.error)
    return "not implemented for" not in text and "Could not run" not in text
