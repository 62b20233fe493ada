"""Deciding whether an answer is right and, if not, which misconception it shows."""

from __future__ import annotations

import builtins
import functools
import inspect
import textwrap
from collections.abc import Callable, Collection
from typing import Any

from coursework.exercises.engine.compare import kind_of
from coursework.exercises.engine.evidence import is_stub
from coursework.exercises.engine.explain import Explanation
from coursework.exercises.engine.finding import NOT_ATTEMPTED, RIGHT, WRONG, Failure, Finding
from coursework.exercises.engine.guard import Guard, change_nothing_outside
from coursework.exercises.engine.run import Outcome, bind
from coursework.exercises.engine.source import failing_line, same_code
from coursework.exercises.engine.standard import Standard
from coursework.exercises.engine.state import own_settings
from coursework.exercises.spec import Exercise


class Examiner(Standard):
    """Examines answers to one exercise."""

    def examine(
        self,
        candidate: Any,
        *,
        skip: Collection[str] = (),
        pairs: bool = True,
        found: Callable[[Finding], None] = lambda finding: None,
    ) -> Finding:
        """Run the candidate on the cases and find out what is to be said.

        `skip` names misconceptions to leave out; `found` is called with a wrong answer's finding before it is
        explained.
        """
        with own_settings():
            return self._examined(candidate, skip, pairs, found)

    def _examined(
        self, candidate: Any, skip: Collection[str], pairs: bool, found: Callable[[Finding], None]
    ) -> Finding:
        exercise = self.exercise
        self.prepare()
        if not callable(candidate) or (exercise.thing == "class" and not inspect.isclass(candidate)):
            return Finding(WRONG, misuse=f"check expects a {exercise.thing}; it got {kind_of(candidate)}.")
        call = bind(exercise, candidate)
        with Guard() as guard:
            finding, outcomes = self.verdict(call, guard)
            for outcome in outcomes:
                if name := unknown_name(outcome.error, candidate):
                    return Finding(WRONG, misuse=name)
            failure = finding.failure
            if failure is not None and not failure.stopped:
                found(finding)
                change_nothing_outside()
                known = failure.case < len(exercise.cases)  # what is right on all cases shows no misconception
                skipped = skip if known else ()
                Explanation(self, candidate, call, guard, outcomes, failure, skipped, pairs and known).fill(finding)
        return finding

    def prepare(self) -> None:
        """Compute what is right, before limits hold: the first use of torch may load libraries."""
        for number in range(len(self.cases)):
            self.outcome((), number)

    def verdict(self, call: Any, guard: Guard | None = None) -> tuple[Finding, list[Outcome]]:
        """The finding without an explanation, and what the answer did on the cases that were tried."""
        outcomes: list[Outcome] = []
        failures: list[Failure] = []
        few = len(self.exercise.cases)
        for number, case in enumerate(self.cases):
            if number == few and failures:
                break
            outcome = self.observed(call, case, guard)
            if number == 0 and is_stub(outcome):
                return Finding(NOT_ATTEMPTED), []
            outcomes.append(outcome)
            if difference := self.judged(number, outcome, call, guard):
                failures.append(Failure(number, difference, outcome, self.outcome((), number)))
                if failures[-1].stopped or number >= few:  # what is stopped matters more than what failed before
                    return Finding(WRONG, failures[-1]), outcomes
        if not failures:
            return Finding(RIGHT), outcomes
        # Of a wrong gradient it is said that the values are right: no case may show otherwise.
        values = [one for one in failures if one.difference.aspect != "gradient"] or failures
        return Finding(WRONG, next((one for one in values if one.difference.is_plain()), values[0])), outcomes


def unknown_name(error: BaseException | None, candidate: Any) -> str:
    """What is said of an answer that uses a name which nothing defines or imports; "" of any other."""
    if type(error) is not NameError or not error.name or hasattr(builtins, error.name):
        return ""
    if error.name in getattr(candidate, "__globals__", {}):
        return ""
    line = failing_line(error, candidate)
    where = f" In the line: {textwrap.shorten(line, 120)}" if line else ""
    return f"It uses `{error.name}`, which is neither defined nor imported in this notebook.{where}"


@functools.lru_cache(maxsize=128)
def examiner(exercise: Exercise) -> Examiner:
    """The examiner of an exercise, the same at every call."""
    return Examiner(exercise)


def diagnose(exercise: Exercise, candidate: Any, found: Callable[[Finding], None] = lambda finding: None) -> Finding:
    """What is to be said about an answer; an unchanged stub or broken function is not attempted.

    `found` is called with a wrong answer's finding before it is explained.
    """
    if exercise.given is not None and same_code(candidate, exercise.given):
        return Finding(NOT_ATTEMPTED)
    return examiner(exercise).examine(candidate, found=found)
