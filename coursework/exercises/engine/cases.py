"""The cases of an exercise with what a right answer gives, to look at and to take apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from coursework.exercises.engine import show
from coursework.exercises.engine.diagnose import examiner
from coursework.exercises.engine.run import arguments
from coursework.exercises.engine.state import own_settings
from coursework.exercises.spec import Exercise

FULL = 40
"""Largest tensor, in elements, that is printed in full."""


PREDICTED = "to be predicted"
"""Stands for the expected value of an exercise that asks for a prediction: showing it would give the answer away."""


@dataclass(frozen=True)
class ShownCase:
    """One case: its name, the arguments by name, and what a right answer returns (or the error that it raises)."""

    name: str
    arguments: dict[str, Any]
    expected: Any

    def __repr__(self) -> str:
        """The case as text, with every small tensor in full."""
        lines = [self.name]
        lines += [f"  {line}" for line in show.arguments_of(self.arguments.items(), FULL)]
        if self.expected is PREDICTED:
            return "\n".join(lines)
        if isinstance(self.expected, BaseException):
            lines.append(f"  expected: raises {type(self.expected).__name__}")
        else:
            lines += [f"  {line}" for line in show.lines_of("expected", self.expected, FULL)]
        return "\n".join(lines)


class Cases(Sequence[ShownCase]):
    """The cases of an exercise in the order in which the check tries them."""

    def __init__(self, exercise: Exercise) -> None:
        self._cases = []
        for number, case in enumerate(exercise.cases):
            with own_settings():
                args, kwargs, names = arguments(case, exercise)
            right = examiner(exercise).outcome((), number)
            named = dict(zip(names, [*args, *kwargs.values()], strict=True))
            expected = right.error if right.error is not None else right.value
            self._cases.append(ShownCase(case.name, named, PREDICTED if exercise.kind == "predict" else expected))

    @overload
    def __getitem__(self, index: int) -> ShownCase: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[ShownCase]: ...

    def __getitem__(self, index: int | slice) -> ShownCase | Sequence[ShownCase]:
        """A case by its number."""
        return self._cases[index]

    def __len__(self) -> int:
        """The number of cases."""
        return len(self._cases)

    def __repr__(self) -> str:
        """All cases as text."""
        return "\n\n".join(f"{number}. {case!r}" for number, case in enumerate(self._cases))
