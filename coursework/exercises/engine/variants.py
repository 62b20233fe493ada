"""Inputs that a check tries beside an exercise's cases: draws from its `sample`, and named variants of them.

`Exercise.tries` names the variants that the exercise promises. A proof in `tests/exercises/test_variants.py` shows that
the solution, the model and all alternatives agree on every input that is tried, well within the tolerance.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coursework.exercises import tensors
from coursework.exercises.draw import Draw
from coursework.exercises.engine.run import arguments
from coursework.exercises.spec import Case, Exercise

DRAWS, DRAWS_OF_A_CLASS = 25, 10
"""Inputs drawn for each check; a module is built anew for each."""

Values = dict[str, Any]
"""The arguments of a call, by name."""


@dataclass(frozen=True)
class Variant:
    """A change of a drawn input.

    Args:
        words: what the changed input has, as the learner reads it: in the prompt and in the name of the case.
        change: from the arguments to changed ones, None where it does not apply.
        kind: an input has one of a kind; each is a kind of its own unless given.
    """

    words: str
    change: Callable[[Values], Values | None]
    kind: str = ""


@functools.lru_cache(maxsize=128)
def probes(exercise: Exercise) -> tuple[Case, ...]:
    """The inputs that are tried beside the cases, small ones first: as cases, the same at every call."""
    return (*(drawn(exercise, seed) for seed in _seeds(exercise)), *crossed(exercise))


def draws(exercise: Exercise) -> int:
    """So many inputs are drawn for a check."""
    return DRAWS_OF_A_CLASS if exercise.blank else DRAWS


def drawn(exercise: Exercise, seed: int) -> Case:
    """One input that is drawn, the same for a seed."""
    return Case("an input drawn at random", lambda: exercise.sample(Draw.seeded(seed)))


def promised(exercise: Exercise) -> list[str]:
    """The variants that may come: those that the exercise names, and those that any argument may have."""
    return [name for name in VARIANTS if name in exercise.tries or name in ALWAYS]


def crossed(exercise: Exercise) -> list[Case]:
    """The inputs on which variants are tried."""
    return [_case(exercise, seed, names) for seed, names in covering(exercise)]


@functools.lru_cache(maxsize=128)
def covering(exercise: Exercise) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Each variant twice, then a covering array: every two that can meet in one input do. With the seeds of draws."""
    seeds = itertools.cycle(_large(exercise))
    names = promised(exercise)
    alone = (_first_that_applies(exercise, (name,), seeds) for name in (*names, *names, *ALWAYS, *ALWAYS))
    wanted = [frozenset(pair) for pair in itertools.combinations(names, 2) if may_meet(*pair)]
    rows = [one for one in alone if one is not None]
    while wanted:
        first = _first_that_applies(exercise, tuple(wanted[0]), seeds)
        if first is None:
            wanted.pop(0)
            continue
        seed, row = first
        for name in names:
            new = {frozenset((name, other)) for other in row} & set(wanted)
            fits = name not in row and new and all(may_meet(name, other) for other in row)
            if fits and changed(exercise, seed, (*row, name)) is not None:
                row = (*row, name)
        rows.append((seed, row))
        wanted = [pair for pair in wanted if not pair <= set(row)]
    return tuple(rows)


def _first_that_applies(
    exercise: Exercise, names: tuple[str, ...], seeds: Iterator[int]
) -> tuple[int, tuple[str, ...]] | None:
    tried = itertools.islice(seeds, len(_large(exercise)))
    return next(((seed, names) for seed in tried if changed(exercise, seed, names) is not None), None)


def _case(exercise: Exercise, seed: int, names: tuple[str, ...]) -> Case:
    words = [VARIANTS[name].words for name in VARIANTS if name in names]
    told = ", ".join(words[:-1]) + (" and " if words[1:] else "") + words[-1]
    return Case(f"an input drawn at random, with {told}", lambda: changed(exercise, seed, names))


def may_meet(one: str, other: str) -> bool:
    """Whether two variants can be had at once: no two of one kind, and none that leaves the other no digits."""
    kinds = {VARIANTS[name].kind or name for name in (one, other)}
    return len(kinds) == 2 and not any(unlike <= {*kinds, one, other} for unlike in UNLIKE)


@functools.lru_cache(maxsize=128)
def _seeds(exercise: Exercise) -> list[int]:
    """The seeds of the draws, by the size of what they give."""
    return sorted(range(draws(exercise)), key=lambda seed: _size(exercise.sample(Draw.seeded(seed))))


@functools.lru_cache(maxsize=128)
def _large(exercise: Exercise) -> list[int]:
    """Those of which variants are tried: the smallest show little, and in float64 little goes wrong."""
    large = _seeds(exercise)[draws(exercise) // 3 :]
    return sorted(large, key=lambda seed: _is_double(exercise.sample(Draw.seeded(seed))))


def changed(exercise: Exercise, seed: int, names: tuple[str, ...]) -> Any:
    """A drawn input with variants; None where one of them does not apply."""
    made = exercise.sample(Draw.seeded(seed))
    args, kwargs, known = arguments(Case("", lambda: made), exercise)
    values: Values | None = dict(zip(known, [*args, *kwargs.values()], strict=True))
    for name, variant in VARIANTS.items():
        if name in names and name in CALLS and not _is_called_plainly(exercise, made):
            return None
        if name in names and values is not None:
            values = variant.change(values) if name != "defaults" else _without_defaults(exercise, values)
    if values is None:
        return None
    return values if isinstance(made, dict) or "keywords" in names else tuple(values.values())


def _is_called_plainly(exercise: Exercise, made: Any) -> bool:
    parameters = inspect.signature(exercise.reference).parameters.values()
    plain = all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters)
    return plain and exercise.run is None and not isinstance(made, dict)


def _without_defaults(exercise: Exercise, values: Values) -> Values | None:
    parameters = inspect.signature(exercise.reference).parameters
    kept = {name: value for name, value in values.items() if parameters[name].default is inspect.Parameter.empty}
    return kept if len(kept) < len(values) else None


def _is_double(made: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in tree_leaves(made))


def _size(made: Any) -> int:
    return sum(leaf.numel() if isinstance(leaf, Tensor) else 1 for leaf in tree_leaves(made))


# The changes -------------------------------------------------------------------------------------------------------


def _each(values: Values, wanted: Callable[[Tensor], bool], change: Callable[[Tensor], Tensor]) -> Values | None:
    """Change every wanted tensor, wherever it lies; a new leaf that requires gradients where the old one did."""
    changed = []

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not wanted(leaf):
            return leaf
        new = change(leaf.detach().clone())
        changed.append(not new.equal(leaf) or new.dtype != leaf.dtype or new.stride() != leaf.stride())
        return new.requires_grad_(leaf.requires_grad)

    new = {name: tree_map(one, value) for name, value in values.items()}
    return new if any(changed) else None


def _floats(change: Callable[[Tensor], Tensor]) -> Callable[[Values], Values | None]:
    return lambda values: _each(values, torch.is_floating_point, change)


def _integers(change: Callable[[Tensor], Tensor]) -> Callable[[Values], Values | None]:
    return lambda values: _each(values, lambda leaf: leaf.dtype in (torch.int64, torch.int32), change)


def _named(names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Callable[[Values], Values | None]:
    """The change for the arguments of these names alone."""

    def changed(values: Values) -> Values | None:
        own = {name: value for name, value in values.items() if name in names}
        new = _each(own, torch.is_floating_point, change)
        return None if new is None else values | new

    return changed


def _shifted(values: Values) -> Values | None:
    """The first argument with a mean far larger than its spread, in float32, where that matters."""
    values = _floats(Tensor.float)(values) or values
    return _named(tuple(values)[:1], lambda x: x + 30 * x.abs().max())(values)


def _some(tensor: Tensor, share: float) -> Tensor:
    return torch.tensor(np.random.RandomState(5).random_sample(tuple(tensor.shape)) < share)


def _with_zeros(tensor: Tensor) -> Tensor:
    return tensor.masked_fill(_some(tensor, 0.3), 0.0)


def _with_infinities(tensor: Tensor) -> Tensor:
    """Minus infinity at some places, never at the first of any axis."""
    hidden = _some(tensor, 0.4)
    for axis in range(hidden.dim()):
        hidden.select(axis, 0).fill_(False)
    return tensor.masked_fill(hidden, -torch.inf)


def _very_low(tensor: Tensor) -> Tensor:
    """Scores near -100000 beside ones of minus infinity."""
    return _with_infinities(_low(tensor))


def _low(tensor: Tensor) -> Tensor:
    """Scores near -100000, so far apart that the rounding there decides nothing."""
    return tensor * 100 - 1e5


def _repeated(values: Values) -> Values | None:
    """The second token is the first once more: along the last axis of ids, the last but one of vectors."""

    def repeat(tensor: Tensor) -> Tensor:
        axis = -2 if tensor.is_floating_point() else -1
        if tensor.size(axis) > 1:
            tensor.narrow(axis, 1, 1).copy_(tensor.narrow(axis, 0, 1))
        return tensor

    return _each(values, lambda leaf: leaf.dim() >= (2 if leaf.is_floating_point() else 1), repeat)


def _negative_dim(values: Values) -> Values | None:
    x = next((leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)), None)
    dim = values.get("dim")
    if x is None or type(dim) is not int or dim < 0:
        return None
    return values | {"dim": dim - x.dim()}


def _strided(values: Values) -> Values | None:
    return _each(values, lambda leaf: leaf.dim() > 0, tensors.strided)


def _mask(shape: Callable[[int, int, int, int], tuple[int, ...]], empty: str = "") -> Callable[[Values], Values | None]:
    """Another mask for scores (B, H, T, S); `empty` leaves one query, or all, with nothing."""

    def changed(values: Values) -> Values | None:
        scores = _shape_of_scores(values)
        if "mask" not in values or scores is None or len(scores) != 4:
            return None
        if empty == "all":
            return values | {"mask": torch.zeros(shape(*scores), dtype=torch.bool)}
        mask = tensors.mask(*shape(*scores), seed=17)
        mask[..., 0] |= ~mask.any(dim=-1)  # each query sees something
        if empty == "one":
            mask[..., :1, :] = False
        return values | {"mask": mask}

    return changed


def _shape_of_scores(values: Values) -> tuple[int, ...] | None:
    """(B, H, T, S), as far as it follows from the arguments."""
    scores, query, key, x = (values.get(name) for name in ("scores", "query", "key", "x"))
    if isinstance(scores, Tensor):
        return tuple(scores.shape)
    if isinstance(query, Tensor) and isinstance(key, Tensor):
        return (*query.shape[:-1], key.shape[-2])
    if isinstance(x, Tensor) and x.dim() == 3 and isinstance(values.get("n_heads"), int):
        return x.size(0), values["n_heads"], x.size(1), x.size(1)
    return None


SCORES = ("scores", "logits")

VARIANTS = {
    "defaults": Variant("arguments left out that have a default", lambda values: values),
    "float32": Variant("float32", _floats(Tensor.float), "floats"),
    "float64": Variant("float64", _floats(Tensor.double), "floats"),
    "float16": Variant("float16", _floats(Tensor.half), "floats"),
    "bfloat16": Variant("bfloat16", _floats(Tensor.bfloat16), "floats"),
    "int32": Variant("int32", _integers(Tensor.int), "integers"),
    "int64": Variant("int64", _integers(Tensor.long), "integers"),
    "large": Variant("numbers a hundred times as large", _floats(lambda x: x * 100), "size"),
    "shifted": Variant("numbers far from zero that differ little", _shifted, "size"),
    "zeros": Variant("numbers that are exactly zero", _floats(_with_zeros)),
    "repeated": Variant("repeated tokens", _repeated),
    "infinite": Variant("scores of minus infinity", _named(SCORES, _with_infinities), "size"),
    "low": Variant("scores near -100000 beside minus infinity", _named(SCORES, _very_low), "size"),
    "low scores": Variant("scores near -100000", _named(SCORES, _low), "size"),
    "mask of two axes": Variant("a mask of two axes", _mask(lambda B, H, T, S: (T, S)), "mask"),
    "mask of three axes": Variant("a mask of three axes", _mask(lambda B, H, T, S: (H, T, S)), "mask"),
    "mask of four axes": Variant("a mask of four axes", _mask(lambda B, H, T, S: (B, H, T, S)), "mask"),
    "mask by head": Variant("a mask that differs by head", _mask(lambda B, H, T, S: (1, H, T, S)), "mask"),
    "mask by example": Variant("a mask that differs by example", _mask(lambda B, H, T, S: (B, 1, T, S)), "mask"),
    "empty row": Variant("a query that may attend to nothing", _mask(lambda B, H, T, S: (B, 1, T, S), "one"), "mask"),
    "empty mask": Variant("a mask that hides everything", _mask(lambda B, H, T, S: (T, S), "all"), "mask"),
    "far": Variant("positions and ids 200 higher", _integers(lambda x: x + 200)),
    "negative dim": Variant("an axis counted from the end", _negative_dim),
    "strided": Variant("tensors that are not contiguous in memory", _strided),
    "keywords": Variant("arguments given by their names", lambda values: values),
}
"""The variants by the name that `Exercise.tries` uses, in the order in which they are listed for a learner."""

CALLS = ("defaults", "keywords")
ALWAYS = (*CALLS, "strided")
"""What no prompt need promise: other calls that its stub allows, and tensors that lie in memory in another way."""

UNLIKE = ({"size", "float16"}, {"size", "bfloat16"}, {"size", "far"}, {"floats", "shifted"})
"""What has too few digits left together; and what is shifted comes in float32."""
