"""Deciding whether an answer is right and, if not, which misconception it shows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from course_lib.exercises.engine.compare import Difference, Rules, compare, compare_gradients, kind_of
from course_lib.exercises.engine.evidence import (
    KEEPS,
    NAN,
    RANDOM,
    broken,
    contradicts_itself,
    exclude_each_other,
    gradient_relation,
    is_stub,
    made_again,
    off_by,
    what_fails,
    within,
)
from course_lib.exercises.engine.finding import NOT_ATTEMPTED, RIGHT, WRONG, Failure, Finding
from course_lib.exercises.engine.guard import Guard
from course_lib.exercises.engine.indifference import WITNESSES, indifferent
from course_lib.exercises.engine.likeness import Seen, copied, defaults_of, has_nan
from course_lib.exercises.engine.relations import Finder, Relation
from course_lib.exercises.engine.run import Outcome, all_arguments, arguments, bind, in_float64, leaf_names, observe
from course_lib.exercises.engine.source import same_code
from course_lib.exercises.engine.variants import DRAWS, probes
from course_lib.exercises.spec import Case, Exercise, Misconception

SLIPS = (NameError, AttributeError, TypeError, SyntaxError, ImportError, NotImplementedError, RecursionError)
"""Errors of writing, not of thought: no misconception is recognised by them."""


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
    def right(self) -> Any:
        """The right function, called as the cases are."""
        return bind(self.exercise, self.exercise.model())

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
        if outcome.graded != expected.graded:
            left = " and ".join(outcome.graded)
            return Difference("mutation", f"It leaves a gradient in `.grad` of its argument {left}.")
        if outcome.gradients is not None and expected.gradients is not None:
            names = self._leaf_names[case]
            found = compare_gradients(expected.gradients, outcome.gradients, names, self.rules)
            if found and compare_gradients(
                expected.gradients, outcome.gradients, names, self.rules, self._rounding(case)
            ):
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

    def _rounding(self, case: int) -> list[float]:
        """By how much each right gradient in float32 is off, seen from float64; zeros where that is not to be had."""
        expected = self.outcome((), case).gradients or []
        exact = observe(self.exercise, self.right, in_float64(self.cases[case])).gradients
        return off_by(exact, expected)

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
                if number == 0 and is_stub(outcome):
                    return Finding(NOT_ATTEMPTED)
                outcomes.append(outcome)
                if difference := self._beyond_rounding(number, outcome, call, guard):
                    failures.append(Failure(number, difference, outcome, self.outcome((), number)))
                    if failures[-1].stopped:  # matters more than what failed before
                        return Finding(WRONG, failures[-1])
            if not failures:
                return self._probed(outcomes, call, guard)
            # Of a wrong gradient it is said that the values are right: no case may show otherwise.
            shown = next((one for one in failures if one.difference.aspect != "gradient"), failures[0])
            finding = Finding(WRONG, shown)
            self._explain(finding, shown, outcomes, call, guard, skip, pairs)
        return finding

    def _beyond_rounding(self, number: int, outcome: Outcome, call: Any, guard: Guard) -> Difference | None:
        """The difference, if it is more than the rounding of a gradient that is right in float64.

        Where it is no more, the gradients recorded become the right ones, so that nothing is concluded from the rest.
        """
        found = self.difference(number, outcome)
        expected = self.outcome((), number)
        if found is None or found.aspect != "gradient" or not within(expected.gradients, outcome.gradients):
            return found
        case = in_float64(self.cases[number])
        right, again = observe(self.exercise, self.right, case), observe(self.exercise, call, case, guard)
        if right.error is not None or again.error is not None or right.gradients is None or again.gradients is None:
            return found
        if compare(right.value, again.value, self.rules) is not None:
            return found
        if compare_gradients(right.gradients, again.gradients, self._leaf_names[number], self.rules) is not None:
            return found
        outcome.gradients = expected.gradients
        return self.difference(number, outcome)

    def _probed(self, outcomes: list[Outcome], call: Any, guard: Guard) -> Finding:
        """The finding on an answer that is right on all cases: no known misconception is."""
        for number in range(len(self.exercise.cases), len(self.cases)):
            outcomes.append(observe(self.exercise, call, self.cases[number], guard))
            if difference := self._beyond_rounding(number, outcomes[-1], call, guard):
                failure = Failure(number, difference, outcomes[-1], self.outcome((), number))
                finding = Finding(WRONG, failure)
                if not failure.stopped:
                    self._explain(finding, failure, outcomes, call, guard, (), pairs=False)
                return finding
        return Finding(RIGHT)

    def _explain(
        self,
        finding: Finding,
        failure: Failure,
        outcomes: list[Outcome],
        call: Any,
        guard: Guard,
        skip: Collection[str],
        pairs: bool,
    ) -> None:
        """Fill in what explains the failure, the best explanation first.

        One misconception; chance or memory; an exact relation; two misconceptions; NaN; a relation that says where the
        result is wrong; a broken law.
        """
        if failure.case < len(self.exercise.cases):
            finding.fits = self.fits(outcomes, failure.case, skip, pairs=False)
            if finding.fits:
                return
        aspect = failure.difference.aspect
        if aspect == "device":  # there may be no numbers to look at
            return
        finding.relation = self._unsteady(outcomes, call, guard)
        differences = [self.difference(number, outcome) for number, outcome in enumerate(outcomes)]
        seen = self._seen(enumerate(outcomes))
        observed = functools.cache(lambda: self._observed(call, guard))
        drawn = functools.cache(lambda: self._seen(observed().items()))
        if finding.relation is None and aspect == "gradient" and not any(one.wrong for one in [*seen, *drawn()]):
            finding.relation = gradient_relation(
                [
                    (self._leaf_names[number], self.outcome((), number).gradients, outcomes[number].gradients)
                    for number, difference in enumerate(differences)
                    if difference is not None and difference.aspect == "gradient"
                ],
                self.rules,
            )
        finder = Finder(self.rules, self.right, defaults_of(self.exercise.reference))
        compared = aspect in ("type", "shape", "dtype", "value") and any(one.wrong for one in seen)
        turned = any(has_nan(one.actual) and not has_nan(one.expected) for one in seen)
        if finding.relation is None and compared and not turned:
            finding.relation = finder.find(seen, drawn, exact=True)
        if finding.relation is not None:
            return
        finding.pattern = self._pattern(differences, observed)
        if pairs and (fits := self.fits(outcomes, failure.case, skip)) and not exclude_each_other(fits[0]):
            finding.fits = fits
        elif aspect == "nan":
            finding.relation = Relation("not a number", NAN, lambda seen: True, exact=False)
        elif (compared and (relation := self._indifference(seen, call, guard)) is not None) or (
            compared and (relation := finder.find(seen, drawn, exact=False)) is not None
        ):
            finding.relation = relation
        else:
            self._break_law(finding, failure, call, guard)

    def _pattern(self, differences: list[Difference | None], observed: Callable[[], dict[int, Outcome]]) -> str:
        """On which cases the answer is wrong, if this is so on the drawn inputs too."""
        cases = [(self._arguments(number), found is not None) for number, found in enumerate(differences)]
        if not what_fails(cases):
            return ""
        new = {number: one for number, one in observed().items() if number >= len(differences)}
        return what_fails(
            [*cases, *((self._arguments(n), self.difference(n, one) is not None) for n, one in new.items())]
        )

    def _arguments(self, number: int) -> dict[str, Any]:
        args, kwargs, names = all_arguments(self.cases[number], self.exercise)
        return dict(zip(names, [*args, *kwargs.values()], strict=True))

    def as_seen(self, case: Case, outcome: Outcome, expected: Outcome) -> Seen:
        """An input with what is right and what came, an error too, as relations look at it."""
        args, kwargs, names = all_arguments(case, self.exercise)
        actual = outcome.value if outcome.error is None else outcome.error
        wrong = compare(expected.value, actual, self.rules) is not None
        return Seen(tuple(names), args, kwargs, expected.value, actual, wrong)

    def _seen(self, outcomes: Iterable[tuple[int, Outcome]]) -> list[Seen]:
        """The cases of these numbers on which the right function returns something."""
        return [
            self.as_seen(self.cases[number], outcome, self.outcome((), number))
            for number, outcome in outcomes
            if self.outcome((), number).error is None
        ]

    def _observed(self, call: Any, guard: Guard) -> dict[int, Outcome]:
        """What the answer does on the drawn inputs, by their numbers."""
        first = len(self.exercise.cases)
        numbers = range(first, first + DRAWS)
        return {number: observe(self.exercise, call, self.cases[number], guard) for number in numbers}

    def _indifference(self, seen: list[Seen], call: Any, guard: Guard) -> Relation | None:
        """An argument with which the result should change and does not."""

        def value(function: Any, one: Seen, changed: dict[str, Any]) -> Any:
            values = one.arguments | changed
            case = Case("", lambda: copied(values if one.kwargs else tuple(values.values())))
            outcome = observe(self.exercise, function, case, guard if function is call else None)
            if outcome.error is not None:
                raise outcome.error
            return outcome.value

        wrong = [one for one in seen if one.wrong and not isinstance(one.actual, BaseException)][:WITNESSES]
        return indifferent(
            wrong, lambda one, new: value(self.right, one, new), lambda one, new: value(call, one, new), self.rules
        )

    def _unsteady(self, outcomes: list[Outcome], call: Any, guard: Guard) -> Relation | None:
        """Whether the answer depends on chance, or on what was called before."""
        number = next((index for index, outcome in enumerate(outcomes) if not outcome.repeats), None)
        if number is None:
            return None
        # The same seed, another one, the same, the other again: only chance gives a, b, a, b.
        calls = [observe(self.exercise, call, self.cases[number], guard, seed) for seed in (1234, 4321, 1234, 4321)]
        a, b, again, other = (one.value for one in calls)
        steady = (
            all(one.error is None for one in calls)
            and not compare(a, again, Rules())
            and not compare(b, other, Rules())
        )
        chance = steady and compare(a, b, Rules()) is not None
        name, statement = ("random", RANDOM) if chance else ("keeps something", KEEPS)
        return Relation(name, statement, lambda seen: True, exact=False)

    def _break_law(self, finding: Finding, failure: Failure, call: Any, guard: Guard) -> None:
        """Find the first broken law, and show the input on which it is broken."""
        for law in self.exercise.properties:
            calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

            def noting(*args: Any, calls: list[Any] = calls, **kwargs: Any) -> Any:
                calls.append((copied(args), copied(kwargs)))
                return call(*args, **kwargs)

            sentence = broken(law, noting, guard)
            if not sentence or contradicts_itself(law.law, sentence):
                continue
            for args, kwargs in calls:
                case = Case("the input of a law", functools.partial(made_again, self.exercise, args, kwargs))
                expected, outcome = observe(self.exercise, self.right, case), observe(self.exercise, call, case, guard)
                if expected.error is not None or outcome.error is not None:
                    continue
                if difference := compare(expected.value, outcome.value, self.rules):
                    finding.law = law.law, sentence
                    finding.failure = Failure(failure.case, difference, outcome, expected, case)
                    return
            if failure.difference.aspect == "gradient":  # the values of the law's calls are right
                finding.law = law.law, sentence
                return


@functools.lru_cache(maxsize=128)
def examiner(exercise: Exercise) -> Examiner:
    """The examiner of an exercise, the same at every call."""
    return Examiner(exercise)


def diagnose(exercise: Exercise, candidate: Any) -> Finding:
    """What is to be said about an answer; an unchanged stub or broken function is not attempted."""
    if exercise.given is not None and same_code(candidate, exercise.given):
        return Finding(NOT_ATTEMPTED)
    return examiner(exercise).examine(candidate)
