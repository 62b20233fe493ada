"""What a check says: plain text, the same on every run, and never the fix."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from torch import Tensor

from coursework.exercises.engine import guard, show
from coursework.exercises.engine.cells import edition
from coursework.exercises.engine.compare import NOTHING, equal_elements
from coursework.exercises.engine.diagnose import examiner
from coursework.exercises.engine.finding import NOT_ATTEMPTED, RIGHT, Failure, Finding
from coursework.exercises.engine.guard import OutOfMemory, RanAway
from coursework.exercises.engine.run import PRINTED_COLUMNS, PRINTED_LINES, arguments
from coursework.exercises.engine.source import failing_line, source_of
from coursework.exercises.modules import Unfit
from coursework.exercises.spec import Case, Exercise

FULL = 24
"""Largest result, in elements, that a message prints in full."""

SMALL = 8
"""Largest argument, in elements, that a message prints in full."""

CLEAR = ("error", "type", "shape", "dtype", "device", "mutation")
"""What needs no numbers to be understood, and nobody's help to be named."""


def message(exercise: Exercise, finding: Finding, candidate: Any, keep: bool) -> str:
    """The whole text for a finding: the failing case, what explains it, and what to do next."""
    failure = finding.failure
    if finding.verdict == RIGHT:
        return _right(exercise)
    if finding.verdict == NOT_ATTEMPTED:
        return (
            f"Not attempted yet: {exercise.id}. The course's own version stands in, so the cells below run.\n"
            f"A first hint: ex.{exercise.id}.hint()"
        )
    parts = [f"Not yet: {exercise.id}."]
    if failure is not None:
        among_cases = failure.case < len(exercise.cases)  # which `cases()` shows; a drawn input is seen here only
        parts += [*_case(exercise, failure, candidate, named=bool(finding.names) and among_cases), ""]
    if diagnosis := _diagnosis(finding, candidate):
        parts += [*diagnosis, ""]
    return "\n".join([*parts, way_on(exercise, keep, known=bool(finding.fits))])


def _right(exercise: Exercise) -> str:
    what = f"values, {'gradients, ' if exercise.gradients else ''}dtypes, a second call"
    more = len(examiner(exercise).cases) - len(exercise.cases)
    cases = f"all {len(exercise.cases)} cases" if len(exercise.cases) > 1 else "the case"
    cases += f" and on {more} further inputs"
    return (
        f"Right: {exercise.id}. It agrees with the course's version on {cases} ({what}).\n"
        f"In a new cell, ex.{exercise.id}.solution() shows how the course writes it, and other right ways."
    )


def _diagnosis(finding: Finding, candidate: Any) -> list[str]:
    if finding.misuse:
        return [finding.misuse]
    thing = "class" if inspect.isclass(candidate) else "function"
    if len(finding.misconceptions) == 1:
        return [f"Your {thing} behaves exactly like one that {finding.misconceptions[0].statement}."]
    if len(finding.misconceptions) == 2:
        first, second = finding.misconceptions
        return [
            f"Your {thing} behaves exactly like one with two mistakes at once:",
            f"- it {first.statement};",
            f"- it {second.statement}.",
        ]
    failure = finding.failure  # a law whose input is shown is said in any case
    clear = failure is not None and failure.difference.aspect in CLEAR and failure.law_input is None
    place = [finding.relation.statement] if finding.relation is not None else []
    law = [f"It breaks this law: {finding.law[0]}", finding.law[1]] if finding.law is not None and not clear else []
    return [*place, *law, *([finding.pattern] if finding.pattern else [])]


def _case(exercise: Exercise, failure: Failure, candidate: Any, named: bool) -> list[str]:
    """The smallest failing case in three lines: what differs, what is expected, what came.

    Its arguments follow where the mistake has no name, and what the answer printed.
    """
    case = case_of(exercise, failure)
    lines = [f"The smallest case that shows it: {case.name}. {sentence_of(failure, candidate)}"]
    if failure.law_input is not None:
        lines = [f"An input of the law below shows it. {sentence_of(failure, candidate)}"]
    lines += [f"  {line}" for line in _both(exercise, failure)]
    if not named and failure.difference is not NOTHING:
        full = 0 if failure.difference.aspect in CLEAR else SMALL
        args, kwargs, names = arguments(case, exercise)
        values = zip(names, [*args, *kwargs.values()], strict=True)
        lines += [f"  {line}" for line in show.arguments_of(values, full)]
    printed = failure.outcome.printed.rstrip().splitlines()
    if printed:
        lines.append("  It printed:")
        lines += [f"      {show.without_addresses(line[:PRINTED_COLUMNS])}" for line in printed[:PRINTED_LINES]]
        if len(printed) > PRINTED_LINES:
            lines.append(f"      ... and {len(printed) - PRINTED_LINES} more lines")
    return lines


def case_of(exercise: Exercise, failure: Failure) -> Case:
    """The case that failed, or the input of a law in its place."""
    return failure.law_input if failure.law_input is not None else examiner(exercise).cases[failure.case]


def sentence_of(failure: Failure, candidate: Any) -> str:
    """What differs, in one sentence; for an error with its text and the learner's line."""
    difference, error = failure.difference, failure.outcome.error
    if difference.aspect != "error" or error is None:
        return difference.sentence
    if isinstance(error, RanAway):
        return f"It was still running after {guard.SECONDS:g} seconds and was stopped."
    if isinstance(error, OutOfMemory):
        return "It asked for far more memory than these cases need and was stopped."
    text = show.without_addresses(str(error)).strip().splitlines()
    told = f": {textwrap.shorten(text[0], 200)}" if text else ""
    line = failing_line(error, candidate)
    where = f" In the line: {textwrap.shorten(line, 120)}" if line else ""
    if isinstance(error, Unfit):
        return f"{text[0]}{where}"
    if "in-place operation" in told and "leaf" in told:
        return f"It changes one of its arguments in place.{where}"
    known = difference.sentence if "expected" in difference.sentence else f"It raises {type(error).__name__}"
    return f"{known.rstrip('.')}{told.rstrip('.')}.{where}"


def _both(exercise: Exercise, failure: Failure) -> list[str]:
    """Expected and actual values on a line each: in full if that fits, else where they differ first."""
    difference, outcome, right = failure.difference, failure.outcome, failure.expected
    if exercise.kind == "predict":  # what is expected would be the answer
        return [show.line_of("yours", difference.actual, FULL)] if difference.actual is not None else []
    if difference.aspect in CLEAR and right.error is None:
        lines = [show.line_of("expected", right.value, 0)]
        return lines if outcome.error is not None else [*lines, show.line_of("yours", outcome.value, 0)]
    expected, actual = difference.expected, difference.actual
    if expected is None and actual is None:
        return []
    what = ("expected gradient", "your gradient") if difference.aspect == "gradient" else ("expected", "yours")
    wanted = [show.line_of(what[0], expected, FULL)] if expected is not None else []
    got = show.line_of(what[1], actual, FULL)
    if isinstance(expected, Tensor) and isinstance(actual, Tensor):
        shown = all("[" in line for line in (*wanted, got)) or expected.dim() == 0
        alike = wanted[0].partition(": ")[2] == got.partition(": ")[2]  # equal to four digits
        if alike or not shown:
            same = equal_elements(expected, actual, examiner(exercise).rules)
            place, first, second = show.first_difference(expected, actual, same)
            return [f"{what[0]} at {place}: {first}", f"{what[1]} at {place}: {second}"]
    return [*wanted, got]


def way_on(exercise: Exercise, keep: bool, known: bool = False) -> str:
    """How to go on after a wrong answer; `known`: its mistake has a name."""
    what = "a question that leads out of it" if known else "a hint"
    going_on = (
        "Your own version goes on below, as you asked."
        if keep
        else "The course's own version goes on below; check(..., keep=True) goes on with yours."
    )
    shown = f"In a new cell, ex.{exercise.id}.hint() gives {what}, and ex.{exercise.id}.cases() shows all cases."
    return f"{shown}\n{going_on}"


def report(exercise: Exercise, finding: Finding, candidate: Any) -> str:
    """Text that a learner can hand in who thinks that the answer is right, or that its mistake deserves a name."""
    said = " ".join(finding.statements) or "no known mistake"
    case = ""
    if finding.failure is not None:
        case = f", case: {case_of(exercise, finding.failure).name}. {finding.failure.difference.sentence}"
    source = source_of(candidate).rstrip().splitlines() or ["(source not available)"]
    return "\n".join(
        [
            f"Exercise {exercise.id}, edition {edition(exercise)}{case}",
            f"Said: {said}",
            *(f"| {line}".rstrip() for line in source[:80]),
        ]
    )
