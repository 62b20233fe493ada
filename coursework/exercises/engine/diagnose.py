"""Deciding whether an answer is right and, if not, which misconception it shows."""

from __future__ import annotations

import builtins
import functools
import inspect
import textwrap
from collections.abc import Collection
from typing import Any

from coursework.exercises.engine.compare import kind_of
from coursework.exercises.engine.evidence import is_stub
from coursework.exercises.engine.explain import Explanation
from coursework.exercises.engine.finding import NOT_ATTEMPTED, RIGHT, WRONG, Failure, Finding
from coursework.exercises.engine.guard import Guard
from coursework.exercises.engine.run import Outcome, bind, observe
from coursework.exercises.engine.source import failing_line, same_code
from coursework.exercises.engine.standard import Standard
from coursework.exercises.spec import Exercise


class Examiner(Standard):
    """Examines answers to one exercise."""

    def examine(self, candidate: Any, *, skip: Collection[str] = (), pairs: bool = True) -> Finding:
        """Run the candidate on the cases and find out what is to be said. `skip` names misconceptions to leave out."""
        exercise = self.exercise
        for number in range(len(self.cases)):
            self.outcome((), number)  # before the limits hold: first use of torch may load libraries
        if not callable(candidate) or (exercise.thing == "class" and not inspect.isclass(candidate)):
            return Finding(WRONG, misuse=f"check expects a {exercise.thing}; it got {kind_of(candidate)}.")
        call = bind(exercise, candidate)
        with Guard() as guard:
            outcomes: list[Outcome] = []
            failures: list[Failure] = []
            for number, case in enumerate(exercise.cases):
                outcome = observe(exercise, call, case, guard)
                if number == 0 and is_stub(outcome):
                    return Finding(NOT_ATTEMPTED)
                if name := unknown_name(outcome.error, candidate):
                    return Finding(WRONG, misuse=name)
                outcomes.append(outcome)
                if difference := self.judged(number, outcome, call, guard):
                    failures.append(Failure(number, difference, outcome, self.outcome((), number)))
                    if failures[-1].stopped:  # matters more than what failed before
                        return Finding(WRONG, failures[-1])
            if not failures:
                return self._probed(outcomes, candidate, guard)
            # Of a wrong gradient it is said that the values are right: no case may show otherwise.
            values = [one for one in failures if one.difference.aspect != "gradient"] or failures
            shown = next((one for one in values if one.difference.is_plain()), values[0])
            finding = Finding(WRONG, shown)
            Explanation(self, candidate, call, guard, outcomes, shown, skip, pairs).fill(finding)
        return finding

    def _probed(self, outcomes: list[Outcome], candidate: Any, guard: Guard) -> Finding:
        """The finding on an answer that is right on all cases: no known misconception is."""
        call = bind(self.exercise, candidate)
        for number in range(len(self.exercise.cases), len(self.cases)):
            outcomes.append(observe(self.exercise, call, self.cases[number], guard))
            if difference := self.judged(number, outcomes[-1], call, guard):
                failure = Failure(number, difference, outcomes[-1], self.outcome((), number))
                finding = Finding(WRONG, failure)
                if not failure.stopped:
                    Explanation(self, candidate, call, guard, outcomes, failure, pairs=False).fill(finding)
                return finding
        return Finding(RIGHT)


def unknown_name(error: BaseException | None, candidate: Any) -> str:
    """What is said of an answer that uses a name which nothing defines or imports; "" of any other."""
    names = getattr(inspect.unwrap(candidate), "__globals__", {})
    if type(error) is not NameError or not error.name or error.name in names or hasattr(builtins, error.name):
        return ""
    line = failing_line(error, candidate)
    where = f" In the line: {textwrap.shorten(line, 120)}" if line else ""
    return f"It uses `{error.name}`, which is neither defined nor imported in this notebook.{where}"


@functools.lru_cache(maxsize=128)
def examiner(exercise: Exercise) -> Examiner:
    """The examiner of an exercise, the same at every call."""
    return Examiner(exercise)


def diagnose(exercise: Exercise, candidate: Any) -> Finding:
    """What is to be said about an answer; an unchanged stub or broken function is not attempted."""
    if exercise.given is not None and same_code(candidate, exercise.given):
        return Finding(NOT_ATTEMPTED)
    return examiner(exercise).examine(candidate)
