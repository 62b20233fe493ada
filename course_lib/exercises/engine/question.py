"""Is the answer to a question right, and if not, which known wrong answer is it."""

from __future__ import annotations

from typing import Any

from course_lib.exercises.engine import cells
from course_lib.exercises.engine.compare import kind_of, plain
from course_lib.exercises.engine.diagnose import NOT_ATTEMPTED, RIGHT, WRONG
from course_lib.exercises.spec import Question, WrongAnswer


def judge(question: Question, value: Any) -> tuple[str, WrongAnswer | None, str]:
    """The verdict, the known wrong answer if it is one, and what is to be said."""
    if value is None or value is Ellipsis:
        what = f"Not answered yet: {question.id}. Put {cells.form(question)} in place of None."
        return NOT_ATTEMPTED, None, f"{what}\nA first hint: ex.{question.id}.hint()"
    given = normal(question, value)
    if misfit := _misfit(question, given):
        return WRONG, None, f"{misfit} {question.id} expects {cells.form(question)}."
    if equal(question, question.right, given):
        return RIGHT, None, f"Right: {question.id}.\n{question.explanation.strip()}"
    hint = f"A hint: ex.{question.id}.hint()"
    for wrong in question.wrong:
        if equal(question, wrong.value, given):
            hint = f"A question that leads out of it: ex.{question.id}.hint()"
            return WRONG, wrong, f"Not yet: {question.id}. That is {wrong.statement}.\n{hint}"
    return WRONG, None, f"Not yet: {question.id}. No mistake that the course knows leads to this answer.\n{hint}"


def normal(question: Question, value: Any) -> Any:
    """The value as plain Python: numbers, tuples of numbers, choices without spaces and in the case of their key."""
    value = plain(value)
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
    return wanted == given or abs(wanted - given) <= question.tolerance * abs(wanted)


def _misfit(question: Question, given: Any) -> str:
    """Why a value cannot be an answer at all, or ""."""
    right = question.right
    if question.choices is not None:
        return "" if isinstance(given, str) and given in question.choices else f"{_shown(given)} is not a choice."
    if isinstance(right, bool):
        return "" if isinstance(given, bool) else f"That is {kind_of(given)}."
    if isinstance(right, tuple):
        return "" if isinstance(given, tuple) else f"That is {kind_of(given)}."
    if isinstance(right, str):
        return "" if isinstance(given, str) else f"That is {kind_of(given)}."
    if isinstance(given, bool) or not isinstance(given, int | float):
        return f"That is {kind_of(given)}."
    return "That is not a number (NaN)." if given != given else ""


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) and len(value) < 40 else "That"
