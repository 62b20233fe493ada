"""Deciding whether an answer is right and, if not, which misconception it shows."""

from __future__ import annotations

import functools
import io
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from course_lib.exercises.engine.compare import Difference, Rules, compare, compare_gradients, kind_of
from course_lib.exercises.engine.guard import Guard, OutOfMemory, RanAway
from course_lib.exercises.engine.run import Outcome, arguments, bind, leaf_names, observe, quiet
from course_lib.exercises.engine.source import same_code
from course_lib.exercises.engine.variants import probes
from course_lib.exercises.spec import Case, Exercise, Misconception

RIGHT, WRONG, NOT_ATTEMPTED = "right", "wrong", "not attempted"
SLIPS = (NameError, AttributeError, TypeError, SyntaxError, ImportError, NotImplementedError, RecursionError)
"""Errors of writing, not of thought: no misconception is recognised by them."""


@dataclass
class Failure:
    """A failing case: its number, what differs, what the answer did and what is right."""

    case: int
    difference: Difference
    outcome: Outcome
    expected: Outcome

    @property
    def stopped(self) -> bool:
        """Whether the answer ran into a limit."""
        return isinstance(self.outcome.error, RanAway | OutOfMemory)


@dataclass
class Finding:
    """What a check found out.

    Args:
        verdict: RIGHT, WRONG or NOT_ATTEMPTED.
        failure: the smallest failing case; None also for an answer that cannot be called.
        fits: every set of misconceptions that behaves exactly like the answer: one, or two at once.
        law: the first broken property as (law, concrete sentence).
        misuse: why the answer cannot be called.
    """

    verdict: str
    failure: Failure | None = None
    fits: list[tuple[Misconception, ...]] = field(default_factory=list)
    law: tuple[str, str] | None = None
    misuse: str = ""

    @property
    def misconceptions(self) -> tuple[Misconception, ...]:
        """The misconceptions to name; empty if none fits."""
        return self.fits[0] if self.fits else ()


@dataclass
class Examiner:
    """Examines answers to one exercise; what its model does under every setting is computed once, when first needed."""

    exercise: Exercise
    _outcomes: dict[tuple[tuple[str, ...], int], Outcome] = field(default_factory=dict)
    _functions: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @cached_property
    def rules(self) -> Rules:
        """What counts as equal here."""
        return Rules(self.exercise.dtypes, self.exercise.tolerance)

    @cached_property
    def cases(self) -> list[Case]:
        """The cases, and after them the inputs that are tried before an answer is accepted."""
        return [*self.exercise.cases, *probes(self.exercise)]

    @cached_property
    def _leaf_names(self) -> list[list[str]]:
        return [leaf_names(case, self.exercise) for case in self.cases]

    def outcome(self, misconceptions: tuple[Misconception, ...], case: int) -> Outcome:
        """What the model with these misconceptions does on a case; without any, what is right."""
        names = tuple(misconception.name for misconception in misconceptions)
        if (names, case) not in self._outcomes:
            if names not in self._functions:
                knobs: dict[str, Any] = {}
                for misconception in misconceptions:
                    knobs |= misconception.knobs
                self._functions[names] = bind(self.exercise, self.exercise.model(**knobs))
            call = self._functions[names]
            self._outcomes[names, case] = observe(self.exercise, call, self.cases[case])
        return self._outcomes[names, case]

    def difference(self, case: int, outcome: Outcome) -> Difference | None:
        """In what the outcome differs from what is right; None if in nothing."""
        expected = self.outcome((), case)
        if outcome.error is not None or expected.error is not None:
            return self._error_difference(expected, outcome)
        if found := compare(expected.value, outcome.value, self.rules):
            return found
        if outcome.changed != expected.changed:
            return Difference("mutation", f"It changes its argument {' and '.join(outcome.changed)} in place.")
        if outcome.gradients is not None and expected.gradients is not None:
            names = self._leaf_names[case]
            if found := compare_gradients(expected.gradients, outcome.gradients, names, self.rules):
                return found
        if not outcome.repeats:
            return Difference("repeat", "Called a second time with the same arguments, it returns something else.")
        return self._cost_difference(case, outcome)

    def _error_difference(self, expected: Outcome, outcome: Outcome) -> Difference | None:
        if expected.error is None:
            return Difference("error", "It raises an error.")
        wanted = type(expected.error).__name__
        if outcome.error is None:
            return Difference("error", f"It returns normally; a {wanted} is expected.", None, outcome.value)
        if isinstance(outcome.error, type(expected.error)):
            return None
        return Difference("error", f"It raises {type(outcome.error).__name__}; a {wanted} is expected.")

    def _cost_difference(self, case: int, outcome: Outcome) -> Difference | None:
        if self.exercise.flop_limit is None and self.exercise.element_limit is None:
            return None
        args, kwargs, _ = arguments(self.cases[case], self.exercise)
        for limit, spent, what in (
            (self.exercise.flop_limit, outcome.flops, "floating-point operations in its matrix products"),
            (self.exercise.element_limit, outcome.elements, "elements in the largest tensor that it makes"),
        ):
            if limit is not None and spent > limit(*args, **kwargs):
                allowed = limit(*args, **kwargs)
                return Difference("cost", f"The result is right, at {spent} {what}; {allowed} are enough.")
        return None

    def behaves_like(self, misconceptions: tuple[Misconception, ...], case: int, outcome: Outcome) -> bool:
        """Whether the model with these misconceptions does the same on this case."""
        model = self.outcome(misconceptions, case)
        if model.error is not None or outcome.error is not None:
            return model.error is not None and outcome.error is not None and not isinstance(outcome.error, SLIPS)
        if compare(model.value, outcome.value, self.rules) or model.changed != outcome.changed:
            return False
        if (self._cost_difference(case, model) is None) != (self._cost_difference(case, outcome) is None):
            return False
        if model.gradients is None or outcome.gradients is None:
            return True
        names = self._leaf_names[case]
        return compare_gradients(model.gradients, outcome.gradients, names, self.rules) is None

    def candidates(self, skip: Collection[str] = (), pairs: bool = True) -> Iterator[tuple[Misconception, ...]]:
        """Every single misconception, then every two that can occur together, in the author's order."""
        known = [misconception for misconception in self.exercise.misconceptions if misconception.name not in skip]
        yield from ((misconception,) for misconception in known)
        if pairs:
            for a, b in itertools.combinations(known, 2):
                if not set(a.knobs) & set(b.knobs):
                    yield a, b

    def fits(
        self, outcomes: list[Outcome], first: int, skip: Collection[str] = (), pairs: bool = True
    ) -> list[tuple[Misconception, ...]]:
        """The misconceptions that behave like the answer on every case: all singles, else the first pair."""
        order = [first, *(index for index in range(len(outcomes)) if index != first)]
        found: list[tuple[Misconception, ...]] = []
        for misconceptions in self.candidates(skip, pairs):
            if found and len(found[0]) < len(misconceptions):
                break
            if all(self.behaves_like(misconceptions, index, outcomes[index]) for index in order):
                found.append(misconceptions)
                if len(misconceptions) == 2:
                    break
        return found

    def examine(self, candidate: Any, *, skip: Collection[str] = (), pairs: bool = True) -> Finding:
        """Run the candidate on the cases and find out what is to be said. `skip` names misconceptions to leave out."""
        exercise = self.exercise
        for number in range(len(self.cases)):
            self.outcome((), number)  # before the limits hold: first use of torch may load libraries
        if not callable(candidate):
            return Finding(WRONG, misuse=f"check expects a function; it got {kind_of(candidate)}.")
        call = bind(exercise, candidate)
        with Guard() as guard:
            outcomes: list[Outcome] = []
            failures: list[Failure] = []
            for number, case in enumerate(exercise.cases):
                outcome = observe(exercise, call, case, guard)
                if number == 0 and _is_stub(outcome):
                    return Finding(NOT_ATTEMPTED)
                outcomes.append(outcome)
                if difference := self.difference(number, outcome):
                    failures.append(Failure(number, difference, outcome, self.outcome((), number)))
                    if failures[-1].stopped:  # matters more than what failed before
                        return Finding(WRONG, failures[-1])
            if not failures:
                return self._probed(call, guard)
            finding = Finding(WRONG, failures[0], fits=self.fits(outcomes, failures[0].case, skip, pairs))
            if not finding.fits:
                finding.law = self._broken_law(call, guard)
        return finding

    def _probed(self, call: Any, guard: Guard) -> Finding:
        """The finding on an answer that is right on all cases: no known misconception is."""
        for number in range(len(self.exercise.cases), len(self.cases)):
            outcome = observe(self.exercise, call, self.cases[number], guard)
            if difference := self.difference(number, outcome):
                failure = Failure(number, difference, outcome, self.outcome((), number))
                return Finding(WRONG, failure, law=None if failure.stopped else self._broken_law(call, guard))
        return Finding(RIGHT)

    def _broken_law(self, call: Any, guard: Guard) -> tuple[str, str] | None:
        for law in self.exercise.properties:
            try:
                with quiet(io.StringIO(), seed=1234):
                    sentence = guard.call(law.check, call)
            except AssertionError as problem:
                sentence = str(problem)
            except KeyboardInterrupt:
                raise
            except BaseException:
                continue
            if sentence:
                return law.law, sentence
        return None


@functools.lru_cache(maxsize=128)
def examiner(exercise: Exercise) -> Examiner:
    """The examiner of an exercise, the same at every call."""
    return Examiner(exercise)


def diagnose(exercise: Exercise, candidate: Any) -> Finding:
    """What is to be said about an answer; an unchanged stub or broken function is not attempted."""
    if exercise.given is not None and same_code(candidate, exercise.given):
        return Finding(NOT_ATTEMPTED)
    return examiner(exercise).examine(candidate)


def _is_stub(outcome: Outcome) -> bool:
    """Whether the body is still `raise NotImplementedError`; torch raises that error too, with a text of its own."""
    if type(outcome.error) is not NotImplementedError:
        return False
    text = str(outcome.error)
    return "not implemented for" not in text and "Could not run" not in text
