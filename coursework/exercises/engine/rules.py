"""Every rule that a check tests, in words: what the learner must know before it can be held against them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from coursework.exercises.engine.run import arguments, leaf_names
from coursework.exercises.engine.variants import VARIANTS, probes
from coursework.exercises.spec import Exercise

LARGE = 100.0
"""From this size on, numbers are called large."""


@dataclass(frozen=True)
class Rule:
    """One thing that is tested.

    Args:
        words: how the generated line says it.
        stated: a regular expression that finds it in the author's own words.
    """

    words: str
    stated: str


FLOAT = r"{0}|any dtype|dtype of x"
INPUTS = {
    "strided": Rule("tensors that are not contiguous in memory", r"contiguous|result of a `transpose`"),
    "infinite": Rule("minus infinity", r"minus infinity"),
    "large": Rule("large numbers", r"any size|as large as|large scores|several hundred|far above"),
    "empty": Rule("empty input", r"empty|may be 0|no sentences|nothing else is given|none\b"),
    "negative dim": Rule("an axis counted from the end", r"any axis|negative"),
    "empty row": Rule("a row that may see nothing", r"attend to nothing|see nothing|padding alone|\bempty row"),
    "empty mask": Rule("a mask that hides everything", r"hides everything|a query that may attend to nothing"),
    "masks": Rule("masks of two to four axes", r"broadcasts? to"),
    "shifted": Rule(VARIANTS["shifted"].words, r"far from zero|however large|any numbers"),
}


def tested(exercise: Exercise) -> list[Rule]:
    """The rules that the cases, the inputs tried beside them and the comparisons test."""
    found: dict[str, Rule] = {}
    gradients: list[str] = []
    changeable = False
    for case in [*exercise.cases, *probes(exercise)]:
        args, kwargs, names = arguments(case, exercise)
        values = dict(zip(names, [*args, *kwargs.values()], strict=True))
        for key in _inputs(values):
            rule = INPUTS.get(key, Rule(key, FLOAT.format(key)))
            found[key] = rule
        gradients += [name for name in leaf_names(case, exercise) if name not in gradients]
        changeable |= any(isinstance(value, Tensor | list | dict) for value in values.values())
    for name in exercise.tries:
        if name in INPUTS:
            found[name] = INPUTS[name]
        elif name.startswith("mask "):
            found["masks"] = INPUTS["masks"]
    rules = [found[key] for key in [*DTYPES, *INPUTS] if key in found]
    if exercise.gradients and gradients:
        rules.append(
            Rule(f"the gradients of {_listed(gradients) if len(gradients) < 4 else 'all tensors'}", r"gradient")
        )
    if any(key in found for key in DTYPES):
        rules.append(Rule("the dtype of the result", r"dtype"))
    if exercise.flop_limit is not None or exercise.element_limit is not None:
        rules.append(Rule("the cost", r"counts operations|[Kk]eep only|largest tensor"))
    rules.append(Rule("a second call", r"second call"))
    if changeable:
        stated = r"[Ll]eave[^.]*as (they are|it is)|(must|[Dd]o) not change"
        rules.append(Rule("unchanged arguments", stated))
    return rules


def unstated(exercise: Exercise) -> list[Rule]:
    """The rules that the author's words do not hold."""
    text = " ".join(f"{exercise.what} {exercise.reference.__doc__ or ''}".split())
    return [rule for rule in tested(exercise) if not re.search(rule.stated, text)]


@functools.lru_cache(maxsize=128)
def line(exercise: Exercise) -> str:
    """One line with every rule that the author's words do not hold, "" if there is none: it comes with a hint."""
    rules = unstated(exercise)
    return f"*The check also looks at* {_listed([rule.words for rule in rules])}." if rules else ""


DTYPES = ("float64", "bfloat16", "float16", "int32")


def _inputs(values: dict[str, Any]) -> Iterator[str]:
    """What is special about an input: keys of `INPUTS`, and dtypes."""
    dim = values.get("dim")
    if type(dim) is int and dim < 0:
        yield "negative dim"
    if any(isinstance(value, list | dict) and not value for value in values.values()):
        yield "empty"
    for leaf in tree_leaves(values):
        if not isinstance(leaf, Tensor):
            continue
        kind = str(leaf.dtype).removeprefix("torch.")
        if kind in DTYPES:
            yield kind
        if not leaf.numel():
            yield "empty"
        elif not leaf.is_contiguous():
            yield "strided"
        if leaf.is_floating_point():
            if bool(leaf.isneginf().any()):
                yield "infinite"
            if bool((leaf[leaf.isfinite()].abs() >= LARGE).any()):
                yield "large"
    mask = values.get("mask")
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.numel() and not bool(mask.any(dim=-1).all()):
        yield "empty row"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
