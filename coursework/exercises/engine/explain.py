"""What explains that an answer is wrong, the best explanation first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from coursework.exercises.engine.compare import NOTHING, Difference, Rules, compare
from coursework.exercises.engine.dependence import WITNESSES, dependence
from coursework.exercises.engine.evidence import (
    DIGITS,
    KEEPS,
    RANDOM,
    NaNOrigins,
    broken,
    contradicts_itself,
    exclude_each_other,
    gradient_relation,
    what_fails,
)
from coursework.exercises.engine.finding import Failure, Finding
from coursework.exercises.engine.guard import Guard
from coursework.exercises.engine.likeness import Seen, copied, defaults_of, has_nan
from coursework.exercises.engine.relations import Finder, Relation
from coursework.exercises.engine.repair import only_place
from coursework.exercises.engine.run import (
    Beginning,
    Outcome,
    arguments,
    bind,
    case_of_call,
    in_float64,
    observe,
    quiet,
)
from coursework.exercises.engine.source import code_of
from coursework.exercises.engine.standard import Standard
from coursework.exercises.engine.variants import draws
from coursework.exercises.modules import Unfit
from coursework.exercises.spec import Case

UNEXPLAINED = ("device", "cost", "mutation", "repeat")
"""Differences that say all there is to be said, so that no place is looked for."""


def strides_of(case: Case) -> list[tuple[int, ...]]:
    """How the tensors of a case lie in memory."""
    return [leaf.stride() for leaf in tree_leaves(case.make()) if isinstance(leaf, Tensor)]


@dataclass
class Explanation:
    """Looks for what explains a failure.

    Args:
        standard: what is right.
        candidate: the answer, and `call`, the same called as the cases are.
        guard: the limits under which it runs.
        outcomes: what it did on the first cases.
        failure: the case to explain.
    """

    standard: Standard
    candidate: Any
    call: Callable[..., Any]
    guard: Guard
    outcomes: list[Outcome]
    failure: Failure

    @cached_property
    def _seen(self) -> list[Seen]:
        return self.standard.seen(enumerate(self.outcomes))

    @cached_property
    def _observed(self) -> dict[int, Outcome]:
        """What the answer does on the drawn inputs, by their numbers."""
        first = len(self.standard.exercise.cases)
        return {number: self._observe(number) for number in range(first, first + draws(self.standard.exercise))}

    @cached_property
    def _drawn(self) -> list[Seen]:
        return self.standard.seen(self._observed.items())

    @cached_property
    def _differences(self) -> list[Difference | None]:
        return [self.standard.difference(number, outcome) for number, outcome in enumerate(self.outcomes)]

    def _observe(self, number: int, call: Callable[..., Any] | None = None, seed: int = 1234) -> Outcome:
        case = self.standard.cases[number]
        return observe(self.standard.exercise, call or self.call, case, self.guard, seed)

    def fill(self, finding: Finding, skip: Collection[str], pairs: bool) -> None:
        """Fill in what explains the failure.

        One misconception; chance or memory; an exact relation; the one place that is wrong; two misconceptions; NaN; a
        relation that says where the result is wrong; a broken law.
        """
        standard, case, aspect = self.standard, self.failure.case, self.failure.difference.aspect
        if case < len(standard.exercise.cases):
            finding.fits = standard.fits(self.outcomes, case, skip, pairs=False)
            if finding.fits:
                return
        if aspect == "device" or self.failure.difference is NOTHING:  # there may be no numbers to look at
            return
        finder = Finder(standard.rules, standard.right, defaults_of(standard.exercise.reference))
        compared = aspect in ("type", "shape", "dtype", "value") and any(one.wrong for one in self._seen)
        turned = any(has_nan(one.actual) and not has_nan(one.expected) for one in self._seen)
        finding.relation = self._unsteady()
        if finding.relation is None and aspect == "gradient":
            finding.relation = self._gradients()
        if finding.relation is None and compared and not turned:
            finding.relation = finder.find(self._seen, lambda: self._drawn, exact=True)
        if finding.relation is not None:
            return
        if not isinstance(self.failure.outcome.error, Unfit):  # which says on what
            finding.pattern = self._pattern()
        if aspect in ("nan", "value") and (digits := self._loses_digits()):
            finding.relation = digits
        elif aspect not in UNEXPLAINED and (text := self._only_place()):
            finding.relation = Relation("one place", text, lambda seen: True, exact=False)
        elif pairs and (fits := standard.fits(self.outcomes, case, skip)) and not exclude_each_other(fits[0]):
            finding.fits = fits
        elif aspect == "nan":
            finding.relation = Relation("not a number", self._origin_of_nan(), lambda seen: True, exact=False)
        elif compared and (found := self._dependence() or finder.find(self._seen, lambda: self._drawn, exact=False)):
            finding.relation = found
        else:
            self._break_law(finding)

    def _gradients(self) -> Relation | None:
        """What is wrong with the gradients alone."""
        if any(one.wrong for one in [*self._seen, *self._drawn]):
            return None
        standard = self.standard
        cases = [
            (standard.leaf_names[number], standard.outcome((), number).gradients, self.outcomes[number].gradients)
            for number, difference in enumerate(self._differences)
            if difference is not None and difference.aspect == "gradient"
        ]
        return gradient_relation(cases, standard.rules)

    def _only_place(self) -> str:
        """Where the answer is wrong, if that is one place."""
        with quiet(Beginning(), seed=1234):
            exercise = self.standard.exercise
            return only_place(self.candidate, exercise.reference, self._mends, exercise.blank)

    def _mends(self, changed: Any) -> bool:
        """Whether a changed answer is right on every input and breaks no law; tried first where this one was wrong."""
        standard = self.standard
        call = bind(standard.exercise, changed)
        seen = next((one for one in self._seen if one.wrong), None)
        if seen is not None and compare(seen.expected, self.guard.call(seen.call, call, {}), standard.rules):
            return False
        numbers = dict.fromkeys([self.failure.case, *range(len(standard.cases))])
        return all(
            standard.judged(number, self._observe(number, call), call, self.guard) is None for number in numbers
        ) and not any(broken(law, call, self.guard) for law in standard.exercise.properties)

    def _guarded(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*args: Any, **kwargs: Any) -> Any:
            with quiet(Beginning(), seed=1234):
                return self.guard.call(call, *args, **kwargs)

        return limited

    def _origin_of_nan(self) -> str:
        """What is said of NaN, with the line from which it comes."""
        code = code_of(self.candidate)
        args, kwargs, _ = arguments(self.standard.cases[self.failure.case], self.standard.exercise)
        with contextlib.suppress(Exception), NaNOrigins(code.co_filename if code is not None else "") as origins:
            self._guarded(self.call)(*args, **kwargs)
        return origins.statement

    def _loses_digits(self) -> Relation | None:
        """Whether the answer is right in float64 wherever it is wrong in the dtype that it got."""
        standard = self.standard
        wrong = [number for number, found in enumerate(self._differences) if found is not None]
        for number in wrong:
            case = in_float64(standard.cases[number])
            if strides_of(case) != strides_of(standard.cases[number]):
                return None
            if standard.agreed(case, self.call, self.guard) is None:
                return None
        return Relation("loses digits", DIGITS, lambda seen: True, exact=False) if wrong else None

    def _pattern(self) -> str:
        """On which cases the answer is wrong, if this is so on the drawn inputs too."""
        standard = self.standard
        cases = [(standard.arguments_of(number), found is not None) for number, found in enumerate(self._differences)]
        if not what_fails(cases):
            return ""
        new = {number: one for number, one in self._observed.items() if number >= len(cases)}
        return what_fails(
            [*cases, *((standard.arguments_of(n), standard.difference(n, one) is not None) for n, one in new.items())]
        )

    def _dependence(self) -> Relation | None:
        """What the result depends on and should not, or the other way round."""
        wrong = [one for one in self._seen if one.wrong and not isinstance(one.actual, BaseException)][:WITNESSES]
        return dependence(wrong, self.standard.right, self._guarded(self.call), self.standard.rules)

    def _unsteady(self) -> Relation | None:
        """Whether the answer depends on chance, or on what was called before."""
        number = next((index for index, outcome in enumerate(self.outcomes) if not outcome.repeats), None)
        if number is None:
            return None
        # The same seed, another one, the same, the other again: only chance gives a, b, a, b.
        calls = [self._observe(number, seed=seed) for seed in (1234, 4321, 1234, 4321)]
        a, b, again, other = (one.value for one in calls)
        steady = (
            all(one.error is None for one in calls)
            and not compare(a, again, Rules())
            and not compare(b, other, Rules())
        )
        chance = steady and compare(a, b, Rules()) is not None
        if chance and "random" in self.standard.exercise.what:  # the prompt asks for it
            return None
        name, statement = ("random", RANDOM) if chance else ("keeps something", KEEPS)
        return Relation(name, statement, lambda seen: True, exact=False)

    def _break_law(self, finding: Finding) -> None:
        """Find the first broken law, and show the input on which it is broken."""
        standard, exercise = self.standard, self.standard.exercise
        for law in exercise.properties:
            calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

            def noting(*args: Any, calls: list[Any] = calls, **kwargs: Any) -> Any:
                calls.append((copied(args), copied(kwargs)))
                return self.call(*args, **kwargs)

            sentence = broken(law, noting, self.guard)
            if not sentence or contradicts_itself(law.law, sentence):
                continue
            for args, kwargs in calls:
                case = case_of_call(exercise, args, kwargs)
                expected = observe(exercise, standard.right, case)
                outcome = observe(exercise, self.call, case, self.guard)
                if expected.error is not None or outcome.error is not None:
                    continue
                if difference := compare(expected.value, outcome.value, standard.rules):
                    finding.law = law.law, sentence
                    finding.failure = Failure(self.failure.case, difference, outcome, expected, case)
                    return
            if self.failure.difference.aspect == "gradient":  # the values of the law's calls are right
                finding.law = law.law, sentence
                return
