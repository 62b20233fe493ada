"""`Exercise.check`: examine, say, save, and return a function to go on with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course_lib.exercises.engine import session
from course_lib.exercises.engine.bench import NOT_ATTEMPTED, RIGHT, Finding, bench
from course_lib.exercises.engine.messages import message
from course_lib.exercises.engine.source import same_code, source_of

if TYPE_CHECKING:
    from course_lib.exercises.engine.spec import Exercise


def examine(exercise: Exercise, candidate: Any) -> Finding:
    """What is to be said about an answer; an unchanged stub or broken function is not attempted."""
    if exercise.given is not None and same_code(candidate, exercise.given):
        return Finding(NOT_ATTEMPTED)
    return bench(exercise).examine(candidate)


def check_answer(exercise: Exercise, candidate: Any, *, keep: bool) -> Any:
    """Print what was found, save the answer, and return the learner's function or the course's."""
    try:
        finding = examine(exercise, candidate)
        kept = keep and finding.verdict != NOT_ATTEMPTED
        text = message(bench(exercise), finding, candidate, kept)
    except Exception as problem:  # an answer strange enough to break the check must not break the notebook
        print(
            f"The check of {exercise.id} could not judge this answer ({type(problem).__name__}: {problem}).\n"
            f"The course's own version goes on below; please open an issue with your answer."
        )
        return exercise.reference
    print(text)
    if finding.verdict != NOT_ATTEMPTED:
        source = source_of(candidate) or "# The source of this answer was not available.\n"
        session.record(exercise, source, finding.verdict, finding.mistakes)
    if finding.verdict == RIGHT or kept:
        return candidate
    return exercise.reference
