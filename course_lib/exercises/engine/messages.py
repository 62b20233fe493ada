"""What a check says: plain text, the same on every run, and never the fix."""

from __future__ import annotations

import inspect
import textwrap
import traceback
from typing import Any

from torch import Tensor

from course_lib.exercises.engine import guard, show
from course_lib.exercises.engine.cells import edition
from course_lib.exercises.engine.compare import equal_elements
from course_lib.exercises.engine.diagnose import NOT_ATTEMPTED, RIGHT, Failure, Finding, examiner
from course_lib.exercises.engine.guard import OutOfMemory, RanAway
from course_lib.exercises.engine.run import PRINTED_COLUMNS, PRINTED_LINES, arguments
from course_lib.exercises.engine.source import code_of, source_of
from course_lib.exercises.spec import Exercise

FULL = 24
"""Largest tensor, in elements, that a message prints in full."""

SMALL = 8
"""Largest argument that is printed in full even where the misconception is known."""

CLEAR = ("error", "type", "shape", "dtype", "device", "mutation")
"""What needs no numbers to be understood, and nobody's help to be named."""


def message(exercise: Exercise, finding: Finding, candidate: Any, keep: bool) -> str:
    """The whole text for a finding."""
    failure = finding.failure
    if finding.verdict == RIGHT:
        return _right(exercise)
    if finding.verdict == NOT_ATTEMPTED:
        return (
            f"Not attempted yet: {exercise.id}. The course's own version stands in, so the cells below run.\n"
            f"A first hint: ex.{exercise.id}.hint()"
        )
    parts = [f"Not yet: {exercise.id}.", *_diagnosis(finding, candidate)]
    if failure is not None:
        parts += ["", *_case(exercise, failure, candidate, known=bool(finding.fits))]
    parts += ["", *_way_on(exercise, finding, keep)]
    if failure is not None and not finding.fits and failure.difference.aspect not in CLEAR:
        parts += ["", *_issue_text(exercise, failure, candidate)]
    return "\n".join(parts)


def _right(exercise: Exercise) -> str:
    what = ["values"]
    if exercise.gradients:
        what.append("gradients")
    if exercise.dtypes:
        what.append("dtypes")
    what.append("a second call")
    cases = f"all {len(exercise.cases)} cases" if len(exercise.cases) > 1 else "the case"
    return (
        f"Right: {exercise.id}. It agrees with the course's version on {cases} ({', '.join(what)}).\n"
        f"How the course writes it, and other right ways: ex.{exercise.id}.solution()"
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
    if finding.law is not None and finding.failure is not None and finding.failure.difference.aspect not in CLEAR:
        return [f"It breaks this law: {finding.law[0]}", finding.law[1]]
    return []


def _case(exercise: Exercise, failure: Failure, candidate: Any, known: bool) -> list[str]:
    """The smallest failing case: its arguments, what is expected, what came.

    Fewer of the numbers are shown where a misconception is named, none where the difference is clear without.
    """
    printed = failure.outcome.printed.rstrip().splitlines()
    case = examiner(exercise).cases[failure.case]
    lines = [f"The smallest case that shows it: {case.name}.", f"  {_sentence(failure, candidate)}"]
    full = 0 if failure.difference.aspect in CLEAR else SMALL if known else FULL
    args, kwargs, names = arguments(case, exercise)
    named = zip(names, [*args, *kwargs.values()], strict=True)
    lines += [f"  {line}" for line in show.arguments_of(named, full)]
    lines += [f"  {line}" for line in _both(exercise, failure)]
    if printed:
        lines.append("  It printed:")
        lines += [f"      {show.without_addresses(line[:PRINTED_COLUMNS])}" for line in printed[:PRINTED_LINES]]
        if len(printed) > PRINTED_LINES:
            lines.append(f"      ... and {len(printed) - PRINTED_LINES} more lines")
    return lines


def _sentence(failure: Failure, candidate: Any) -> str:
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
    line = _failing_line(error, candidate)
    where = f" In the line: {line}" if line else ""
    if "in-place operation" in told and "leaf" in told:
        return f"It changes one of its arguments in place.{where}"
    known = difference.sentence if "expected" in difference.sentence else f"It raises {type(error).__name__}"
    return f"{known.rstrip('.')}{told.rstrip('.')}.{where}"


def _failing_line(error: BaseException, candidate: Any) -> str:
    """The learner's own line in which the error arose, "" if unknown."""
    code = code_of(candidate)
    frames = traceback.extract_tb(error.__traceback__) if code is not None else []
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    return (own[-1].line or "") if own else ""


def _both(exercise: Exercise, failure: Failure) -> list[str]:
    """Expected and actual values, in full if small, else where they differ first."""
    difference, outcome, right = failure.difference, failure.outcome, failure.expected
    if exercise.kind == "predict":  # what is expected would be the answer
        return show.lines_of("yours", difference.actual, FULL) if difference.actual is not None else []
    if difference.aspect in CLEAR and right.error is None:
        lines = show.lines_of("expected", right.value, 0)
        return lines if outcome.error is not None else lines + show.lines_of("yours", outcome.value, 0)
    expected, actual = difference.expected, difference.actual
    rules = examiner(exercise).rules
    if expected is None and actual is None:
        return []
    if isinstance(expected, Tensor) and isinstance(actual, Tensor) and expected.numel() > FULL:
        return [show.first_difference(expected, actual, equal_elements(expected, actual, rules))]
    what = ("expected gradient", "your gradient") if difference.aspect == "gradient" else ("expected", "yours")
    wanted = show.lines_of(what[0], expected, FULL) if expected is not None else []
    got = show.lines_of(what[1], actual, FULL)
    if isinstance(expected, Tensor) and isinstance(actual, Tensor) and wanted[1:] == got[1:]:  # equal to four digits
        return [show.first_difference(expected, actual, equal_elements(expected, actual, rules))]
    return wanted + got


def _way_on(exercise: Exercise, finding: Finding, keep: bool) -> list[str]:
    hint = f"ex.{exercise.id}.hint()"
    first = f"A question that leads out of it: {hint}" if finding.fits else f"A hint: {hint}"
    going_on = (
        "Your own version goes on below, as you asked."
        if keep
        else "The course's own version goes on below; check(..., keep=True) goes on with yours."
    )
    return [first, f"All cases with their numbers: ex.{exercise.id}.cases()", going_on]


def _issue_text(exercise: Exercise, failure: Failure, candidate: Any) -> list[str]:
    """Text that a learner can hand in when no misconception fits."""
    case = examiner(exercise).cases[failure.case].name
    source = source_of(candidate).rstrip().splitlines() or ["(source not available)"]
    return [
        "No mistake that the course knows behaves like this. If you think your answer is right, or that its mistake",
        "deserves a name, please open an issue with this text:",
        f"  Exercise {exercise.id}, edition {edition(exercise)}, case: {case}. {failure.difference.sentence}",
        *(f"  | {line}".rstrip() for line in source[:80]),
    ]
