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
from coursework.exercises.engine.first_wrong import first_wrong_value
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
from coursework.exercises.spec import Case, Misconception

UNEXPLAINED = ("device", "cost", "mutation", "repeat")
"""Differences that say all there is to be said, so that no place is looked for."""


def strides_of(case: Case) -> list[tuple[int, ...]]:
    """How the tensors of a case lie in memory."""
    return [leaf.stride() for leaf in tree_leaves(case.make()) if isinstance(leaf, Tensor)]


INPUTS = 4
"""So many inputs are followed through the answer and the right ways."""


def _said(name: str, statement: str) -> Relation | None:
    """A statement that is true of the answer as it is."""
    return Relation(name, statement, lambda seen: True, exact=False) if statement else None


@dataclass
class Explanation:
    """Looks for what explains a failure.

    Args:
        standard: what is right.
        candidate: the answer, and `call`, the same called as the cases are.
        guard: the limits under which it runs.
        outcomes: what it did on the first cases.
        failure: the case to explain.
        skip: names of misconceptions to leave out.
        pairs: whether two misconceptions at once are looked for.
    """

    standard: Standard
    candidate: Any
    call: Callable[..., Any]
    guard: Guard
    outcomes: list[Outcome]
    failure: Failure
    skip: Collection[str] = ()
    pairs: bool = True

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

    def fill(self, finding: Finding) -> None:
        """Fill in what explains the failure: the first in this order that is true of the answer."""
        finding.fits = self._one_misconception()
        # Of a device or of nothing there may be no numbers to look at.
        if finding.fits or self._aspect == "device" or self.failure.difference is NOTHING:
            return
        for explain in (
            self._unsteady,
            self._gradients,
            self._exact_relation,
            self._pattern,
            self._loses_digits,
            self._one_place,
            self._two_misconceptions,
            self._first_wrong_value,
            self._origin_of_nan,
            self._vague_relation,
        ):
            found = explain()
            if isinstance(found, Relation):
                finding.relation = found
            elif isinstance(found, list):
                finding.fits = found
            else:
                finding.pattern = found or finding.pattern  # which goes with what follows
            if explain == self._first_wrong_value and finding.relation is not None:
                break
            if finding.fits or finding.relation is not None:
                return
        self._break_law(finding)  # which a place is said together with

    @property
    def _aspect(self) -> str:
        return self.failure.difference.aspect

    @cached_property
    def _compared(self) -> bool:
        """Whether there are results to compare."""
        return self._aspect in ("type", "shape", "dtype", "value") and any(one.wrong for one in self._seen)

    @cached_property
    def _finder(self) -> Finder:
        return Finder(self.standard.rules, self.standard.right, defaults_of(self.standard.exercise.reference))

    # Exactly what it is ----------------------------------------------------------------------------------------

    def _one_misconception(self) -> list[tuple[Misconception, ...]]:
        if self.failure.case >= len(self.standard.exercise.cases):
            return []
        return self.standard.fits(self.outcomes, self.failure.case, self.skip, pairs=False)

    def _two_misconceptions(self) -> list[tuple[Misconception, ...]]:
        fits = self.standard.fits(self.outcomes, self.failure.case, self.skip) if self.pairs else []
        return [] if fits and exclude_each_other(fits[0]) else fits

    def _exact_relation(self) -> Relation | None:
        turned = any(has_nan(one.actual) and not has_nan(one.expected) for one in self._seen)
        return None if turned or not self._compared else self._finder.find(self._seen, lambda: self._drawn, exact=True)

    def _vague_relation(self) -> Relation | None:
        return self._finder.find(self._seen, lambda: self._drawn, exact=False) if self._compared else None

    def _gradients(self) -> Relation | None:
        """What is wrong with the gradients alone."""
        if self.failure.difference.aspect != "gradient" or any(one.wrong for one in [*self._seen, *self._drawn]):
            return None
        standard = self.standard
        cases = [
            (standard.leaf_names[number], standard.outcome((), number).gradients, self.outcomes[number].gradients)
            for number, difference in enumerate(self._differences)
            if difference is not None and difference.aspect == "gradient"
        ]
        return gradient_relation(cases, standard.rules)

    def _one_place(self) -> Relation | None:
        """Where the answer is wrong, if that is one place whose text a small change mends."""
        if self._aspect in UNEXPLAINED:
            return None
        with quiet(Beginning(), seed=1234):
            exercise = self.standard.exercise
            return _said("one place", only_place(self.candidate, exercise.reference, self._mends, exercise.blank))

    def _first_wrong_value(self) -> Relation | None:
        """Where the answer leaves the values of right ways."""
        standard, exercise = self.standard, self.standard.exercise
        if self._aspect in (*UNEXPLAINED, "gradient"):
            return None
        failing = [number for number, found in enumerate(self._differences) if found is not None]
        order = dict.fromkeys([self.failure.case, *failing, *range(len(self.outcomes))])
        numbers = [number for number in order if standard.outcome((), number).error is None][:INPUTS]
        if not numbers or numbers[0] != self.failure.case:
            return None
        seen = [standard.as_seen(standard.cases[n], self.outcomes[n], standard.outcome((), n)) for n in numbers]

        def on(number: int) -> Callable[[Any], Any]:
            def called(candidate: Any) -> Any:
                args, kwargs, _ = arguments(standard.cases[number], exercise)
                with quiet(Beginning(), seed=1234):
                    return self.guard.call(bind(exercise, candidate), *args, **kwargs)

            return called

        rights = [exercise.reference, *(other.function for other in exercise.alternatives)]
        text = ""
        with contextlib.suppress(Exception):  # on its way an answer may hold anything
            text = first_wrong_value(self.candidate, rights, [on(number) for number in numbers], seen, self._finder)
        return _said("first wrong value", text)

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

    def _origin_of_nan(self) -> Relation | None:
        """What is said of NaN, with the line from which it comes."""
        if self._aspect != "nan":
            return None
        code = code_of(self.candidate)
        args, kwargs, _ = arguments(self.standard.cases[self.failure.case], self.standard.exercise)
        origins = NaNOrigins(code.co_filename if code is not None else "")
        with contextlib.suppress(Exception), origins, quiet(Beginning(), seed=1234):
            self.guard.call(self.call, *args, **kwargs)
        return _said("not a number", origins.statement)

    def _loses_digits(self) -> Relation | None:
        """Whether the answer is right in float64 wherever it is wrong in the dtype that it got."""
        standard = self.standard
        if self._aspect not in ("nan", "value"):
            return None
        wrong = [number for number, found in enumerate(self._differences) if found is not None]
        for number in wrong:
            case = in_float64(standard.cases[number])
            if strides_of(case) != strides_of(standard.cases[number]):
                return None
            if standard.agreed(case, self.call, self.guard) is None:
                return None
        return _said("loses digits", DIGITS if wrong else "")

    def _pattern(self) -> str:
        """On which cases the answer is wrong, if this is so on the drawn inputs too."""
        if isinstance(self.failure.outcome.error, Unfit):  # which says on what
            return ""
        standard = self.standard
        cases = [(standard.arguments_of(number), found is not None) for number, found in enumerate(self._differences)]
        if not what_fails(cases):
            return ""
        new = {number: one for number, one in self._observed.items() if number >= len(cases)}
        return what_fails(
            [*cases, *((standard.arguments_of(n), standard.difference(n, one) is not None) for n, one in new.items())]
        )

    def _unsteady(self) -> Relation | None:
        """Whether the answer depends on chance, or on what was called before."""
        number = next((index for index, outcome in enumerate(self.outcomes) if "else" in outcome.again), None)
        if number is None or self._aspect == "type":  # two objects differ, whatever they are
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
        return _said(name, statement)

    def _break_law(self, finding: Finding) -> None:
        """Find the first broken law, and show the input on which it is broken, unless a place is known."""
        standard, exercise = self.standard, self.standard.exercise
        for law in exercise.properties:
            calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

            def noting(*args: Any, calls: list[Any] = calls, **kwargs: Any) -> Any:
                calls.append((copied(args), copied(kwargs)))
                return self.call(*args, **kwargs)

            sentence = broken(law, noting, self.guard)
            if not sentence or contradicts_itself(law.law, sentence):
                continue
            if finding.relation is not None or self._aspect == "gradient":  # the values of a law's calls are right
                finding.law = law.law, sentence
                return
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
