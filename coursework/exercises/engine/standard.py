"""What is right in an exercise, what each misconception does there, and how an answer compares with both."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coursework.exercises.engine.compare import Difference, Rules, compare, compare_gradients
from coursework.exercises.engine.evidence import within
from coursework.exercises.engine.guard import Guard
from coursework.exercises.engine.likeness import Seen
from coursework.exercises.engine.run import (
    Outcome,
    all_arguments,
    arguments,
    bind,
    in_float64,
    leaf_names,
    observe,
)
from coursework.exercises.engine.state import own_settings
from coursework.exercises.engine.variants import probes
from coursework.exercises.spec import Case, Exercise, Misconception

SLIPS = (NameError, AttributeError, TypeError, SyntaxError, ImportError, NotImplementedError, RecursionError)
"""Errors of writing, not of thought: no misconception is recognised by them."""


@dataclass
class Standard:
    """Of one exercise; what its model does under every setting is computed once, when first needed."""

    exercise: Exercise
    _outcomes: dict[tuple[tuple[str, ...], int], Outcome] = field(default_factory=dict)
    _functions: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @cached_property
    def rules(self) -> Rules:
        """What counts as equal here."""
        return Rules(self.exercise.tolerance)

    @cached_property
    @own_settings()
    def cases(self) -> list[Case]:
        """The cases, and after them the inputs that are tried before an answer is accepted."""
        return [*self.exercise.cases, *probes(self.exercise)]

    @cached_property
    def right(self) -> Any:
        """The right function, called as the cases are."""
        return bind(self.exercise, self.exercise.model())

    @cached_property
    def leaf_names(self) -> list[list[str]]:
        """Of each case, a name for each tensor whose gradient is compared."""
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
            with own_settings():
                self._outcomes[names, case] = observe(self.exercise, self._functions[names], self.cases[case])
        return self._outcomes[names, case]

    def observed(self, call: Any, case: Case, guard: Guard | None = None) -> Outcome:
        """What the answer does on a case."""
        return observe(self.exercise, call, case, guard)

    def difference(self, case: int, outcome: Outcome) -> Difference | None:
        """In what the outcome differs from what is right; None if in nothing."""
        expected = self.outcome((), case)
        if outcome.error is not None or expected.error is not None:
            return self._error_difference(expected, outcome)
        if found := compare(expected.value, outcome.value, self.rules):
            return found
        if outcome.changed != expected.changed:
            return Difference("mutation", f"It changes its argument {' and '.join(outcome.changed)} in place.")
        if outcome.graded != expected.graded:
            left = " and ".join(outcome.graded)
            return Difference("mutation", f"It leaves a gradient in `.grad` of its argument {left}.")
        if outcome.gradients is not None and expected.gradients is not None:
            names = self.leaf_names[case]
            if found := compare_gradients(expected.gradients, outcome.gradients, names, self.rules):
                return found
        if outcome.again:
            return Difference("repeat", f"Called a second time with the same arguments, it {outcome.again}.")
        return self._cost_difference(case, outcome)

    def judged(self, number: int, outcome: Outcome, call: Any, guard: Guard | None = None) -> Difference | None:
        """The difference of an answer, unless it is the rounding of a gradient that is right in float64.

        Where it is no more, the gradients recorded become the right ones, so that nothing is concluded from the rest.
        """
        found = self.difference(number, outcome)
        expected = self.outcome((), number)
        if found is None or found.aspect != "gradient" or not within(expected.gradients, outcome.gradients):
            return found
        both = self.agreed(in_float64(self.cases[number]), call, guard)
        if both is None or both[0].gradients is None or both[1].gradients is None:
            return found
        if compare_gradients(both[0].gradients, both[1].gradients, self.leaf_names[number], self.rules) is not None:
            return found
        outcome.gradients = expected.gradients
        return self.difference(number, outcome)

    def agreed(self, case: Case, call: Any, guard: Guard | None = None) -> tuple[Outcome, Outcome] | None:
        """What is right on a case and what an answer does there, if their values are equal; None if they are not."""
        right, answer = observe(self.exercise, self.right, case), self.observed(call, case, guard)
        if right.error is not None or answer.error is not None:
            return None
        return (right, answer) if compare(right.value, answer.value, self.rules) is None else None

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
            return type(model.error) is type(outcome.error) and not isinstance(outcome.error, SLIPS)
        if compare(model.value, outcome.value, self.rules) or model.changed != outcome.changed:
            return False
        if (self._cost_difference(case, model) is None) != (self._cost_difference(case, outcome) is None):
            return False
        if model.gradients is None or outcome.gradients is None:
            return True
        names = self.leaf_names[case]
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
                if len(misconceptions) == 2 and not self._shown_by_values(outcomes):
                    continue
                found.append(misconceptions)
                if len(misconceptions) == 2:
                    break
        return found

    def _shown_by_values(self, outcomes: list[Outcome]) -> bool:
        """Whether some wrong result was returned: errors alone are no evidence for two mistakes at once."""
        return any(
            outcome.error is None and self.difference(number, outcome) is not None
            for number, outcome in enumerate(outcomes)
        )

    def arguments_of(self, number: int) -> dict[str, Any]:
        """The arguments of a case by name, with the default values of those that it leaves out."""
        args, kwargs, names = all_arguments(self.cases[number], self.exercise)
        return dict(zip(names, [*args, *kwargs.values()], strict=True))

    def as_seen(self, case: Case, outcome: Outcome, expected: Outcome) -> Seen:
        """An input with what is right and what came, an error too, as relations look at it."""
        args, kwargs, names = all_arguments(case, self.exercise)
        actual = outcome.value if outcome.error is None else outcome.error
        wrong = compare(expected.value, actual, self.rules) is not None
        return Seen(tuple(names), args, kwargs, expected.value, actual, wrong)

    def seen(self, outcomes: Iterable[tuple[int, Outcome]]) -> list[Seen]:
        """The cases of these numbers on which the right function returns something."""
        return [
            self.as_seen(self.cases[number], outcome, self.outcome((), number))
            for number, outcome in outcomes
            if self.outcome((), number).error is None
        ]
