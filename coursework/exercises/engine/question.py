"""Is the answer to a question right, and if not, which known wrong answer is it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from torch import Tensor

from coursework.exercises.engine import cells
from coursework.exercises.engine.compare import as_float, kind_of, plain
from coursework.exercises.engine.finding import NOT_ATTEMPTED, RIGHT, WRONG
from coursework.exercises.engine.formula import follows
from coursework.exercises.spec import Question, WrongAnswer


def judge(question: Question, value: Any) -> tuple[str, WrongAnswer | None, str]:
    """The verdict, the known wrong answer if it is one, and what is to be said."""
    if value is None or value is Ellipsis:
        what = f"Not answered yet: {question.id}. Put {cells.form(question)} in place of None."
        return NOT_ATTEMPTED, None, f"{what}\nA first hint: ex.{question.id}.hint()"
    given = normal(question, value)
    if misfit := _misfit(question, given, kind_of(value)):
        return WRONG, None, f"{misfit} {question.id} expects {cells.form(question)}."
    if equal(question, question.right, given):
        return RIGHT, None, f"Right: {question.id}.\n{question.explanation.strip()}"
    hint = f"In a new cell, ex.{question.id}.hint() gives a hint."
    for wrong in question.wrong:
        if equal(question, wrong.value, given):
            hint = f"In a new cell, ex.{question.id}.hint() gives a question that leads out of it."
            return WRONG, wrong, f"Not yet: {question.id}. That is {wrong.statement}.\n{hint}"
    said = relation(question, given) or size(question, given)
    return WRONG, None, f"Not yet: {question.id}. {said}\n{hint}"


def normal(question: Question, value: Any) -> Any:
    """The value as plain Python: numbers, tuples of numbers, choices without spaces and in the case of their key."""
    value = plain(value)
    if isinstance(value, Tensor | np.ndarray):
        several = isinstance(question.right, tuple) and value.ndim == 1
        value = tuple(value.tolist()) if several else value.item() if math.prod(value.shape) == 1 else value
    if isinstance(value, Decimal | Fraction):
        value = math.nan if isinstance(value, Decimal) and value.is_nan() else float(value)
    if isinstance(value, tuple) and len(value) == 1 and not isinstance(question.right, tuple):
        value = value[0]
    if isinstance(value, str) and question.choices is not None:
        text = value.strip()
        return next((key for key in question.choices if key.lower() == text.lower()), text)
    return value


def equal(question: Question, wanted: Any, given: Any) -> bool:
    """Whether two answers count as the same."""
    if isinstance(wanted, tuple | list):
        if not isinstance(given, tuple) or len(given) != len(wanted):
            return False
        return all(equal(question, w, g) for w, g in zip(wanted, given, strict=True))
    if isinstance(wanted, bool) or isinstance(given, bool) or isinstance(wanted, str) or isinstance(given, str):
        return type(wanted) is type(given) and wanted == given
    if wanted is None or given is None or not isinstance(given, int | float):
        return wanted is given
    far = math.isinf(as_float(given)) or math.isinf(as_float(wanted))  # a whole number may be too large for a float
    return wanted == given or (not far and abs(wanted - given) <= question.tolerance * abs(wanted))


def _misfit(question: Question, given: Any, kind: str) -> str:
    """Why a value cannot be an answer at all, or ""; `kind` is what the learner gave, in words."""
    right = question.right
    if question.choices is not None:
        return "" if isinstance(given, str) and given in question.choices else f"{_shown(given)} is not a choice."
    for wanted in (bool, tuple, str):
        if isinstance(right, wanted):
            return "" if isinstance(given, wanted) else f"That is {kind}."
    if isinstance(given, bool) or not isinstance(given, int | float):
        return f"That is {kind}."
    return "That is not a number (NaN)." if given != given else ""


def relation(question: Question, given: Any) -> str:
    """What a wrong answer has to do with the right one, in one sentence; "" if nothing, or more than one thing."""
    right = question.right
    if isinstance(right, tuple):
        return _relation_of_tuples(right, given) if isinstance(given, tuple) else ""
    if isinstance(right, bool | str) or not isinstance(right, int | float) or not math.isfinite(given) or not right:
        return ""
    tolerance = min(question.tolerance, 0.005) + 1e-9
    strict = min(tolerance, 5e-4)  # numbers of two digits are near to many curves
    if question.formula:
        slip = follows(question.formula, lambda value: math.isclose(value, given, rel_tol=strict))
        if slip:
            return f"That is what comes out if {slip}."
    beside = [(value, words, tolerance) for value, words in _numbers_beside(question, float(right))]
    beside += [(value, words, strict) for value, words in _numbers_on_curves(question, float(right))]
    fits = [
        words
        for value, words, limit in beside
        if math.isclose(value, given, rel_tol=limit) and not equal(question, right, value)
    ]
    return fits[0] if len(set(fits)) == 1 else ""


def size(question: Question, given: Any) -> str:
    """Whether a number is too large or too small, and how far off."""
    right = question.right
    if isinstance(right, bool | str | tuple) or not isinstance(given, int | float) or not math.isfinite(given):
        return "No mistake that the course knows leads to this answer."
    far = ", by more than a factor of ten" if min(abs(right), abs(given)) * 10 < max(abs(right), abs(given)) else ""
    return (
        f"The number is too {'large' if given > right else 'small'}{far}. No mistake that the course knows leads to it."
    )


def _numbers_beside(question: Question, right: float) -> Iterator[tuple[float, str]]:
    """Numbers that slips make of the right one, with what to say of them."""
    yield -right, "It has the right size and the wrong sign."
    if right != 1:
        yield 1 / right, "That is one divided by the right number."
    if 0 < right < 1:
        yield 1 - right, "That is what the right share leaves of the whole."
    for factor in (100.0, 0.01):
        yield right * factor, f"It is off by a factor of 100, as between a share and per cent{_way(factor)}."
    if isinstance(question.right, int) and abs(right) > 3:
        yield right + 1, "It is off by one."
        yield right - 1, "It is off by one."
    if not right.is_integer() and right > 0:
        yield right - 1, "That is a difference where a ratio is asked for, or counts one too few."
        yield right + 1, "It is one more than the right number."
        for digits in (0, 1, 2):
            rounded = round(right, digits)
            if rounded:
                yield rounded, "It is rounded too far."
    text = f"{question.form} {question.what}"
    if re.search(r"\b([kMG]i?B|bytes?|bits?)\b", text):
        yield right * 8, "It is off by a factor of 8, as between bits and bytes."
        yield right / 8, "It is off by a factor of 8, as between bits and bytes."
        for power, units in ((1, "B, kB and MB"), (2, "B and MB, or kB and GB"), (3, "B and GB")):
            for base, of in (
                (1000, units),
                (1024, units.replace("kB", "KiB").replace("MB", "MiB").replace("GB", "GiB")),
            ):
                for value in (right * base**power, right / base**power):
                    yield value, f"It is off by a factor of {base**power:,}, as between {of}.".replace(",000", " 000")
            for value in (right * 1.024**power, right / 1.024**power):
                yield value, f"It is off by {1.024**power:.4g}: a unit that counts by 1000 and one that counts by 1024."
    else:
        for factor in (10.0, 1000.0, 1e6, 1e9):
            for value in (right * factor, right / factor):
                yield value, f"It is off by a factor of {factor:.0f}."


def _numbers_on_curves(question: Question, right: float) -> Iterator[tuple[float, str]]:
    """Powers of the right number, and logarithms where the question is about such."""
    if right <= 0 or right == 1:
        return
    yield right**2, "That is the square of the right number."
    yield right**0.5, "That is the square root of the right number."
    about = r"\b(log\w*|nats?|bits?|entrop\w*|perplexit\w*|likelihoods?|exponent\w*)\b"
    if re.search(about, f"{question.form} {question.what}", re.IGNORECASE):
        yield math.log(right), "That is the natural logarithm of the right number."
        yield math.log2(right), "That is the logarithm of the right number to base 2."
        if right < 700:
            yield math.exp(right), "That is the exponential of the right number."
        for value in (right / math.log(2), right * math.log(2)):
            yield value, "It is off by the factor between natural logarithms and those to base 2."


def _way(factor: float) -> str:
    return ", too large" if factor > 1 else ", too small"


def _relation_of_tuples(right: tuple[Any, ...], given: tuple[Any, ...]) -> str:
    if len(given) != len(right):
        return f"It has {len(given)} entries; {len(right)} are expected."
    if given == right[::-1]:
        return "The entries are right, in the reverse order."
    if sorted(map(repr, given)) == sorted(map(repr, right)):
        return "The entries are right, in another order."
    wrong = [index for index, (r, g) in enumerate(zip(right, given, strict=True)) if r != g]
    return f"Only entry {wrong[0]} is wrong, counted from 0." if len(wrong) == 1 < len(right) else ""


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) and len(value) < 40 else "That"
