"""What a check found out about an answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from coursework.exercises.engine.compare import Difference
from coursework.exercises.engine.guard import OutOfMemory, RanAway
from coursework.exercises.engine.relations import Relation
from coursework.exercises.engine.run import Outcome
from coursework.exercises.spec import Case, Misconception

RIGHT, WRONG, NOT_ATTEMPTED, NOT_JUDGED = "right", "wrong", "not attempted", "not judged"


@dataclass
class Failure:
    """A failing case: its number, what differs, what the answer did and what is right.

    `law_input` is given in place of the case of that number where a law brought its own input.
    """

    case: int
    difference: Difference
    outcome: Outcome
    expected: Outcome
    law_input: Case | None = None

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
        relation: what the answer has to do with the right one, where no misconception fits.
        law: the first broken property as (law, concrete sentence).
        pattern: on which cases the answer is wrong, in one sentence, or "".
        misuse: why the answer cannot be called.
    """

    verdict: str
    failure: Failure | None = None
    fits: list[tuple[Misconception, ...]] = field(default_factory=list)
    relation: Relation | None = None
    law: tuple[str, str] | None = None
    pattern: str = ""
    misuse: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What the mistake is called: names of misconceptions, else of the relation; empty if it has none."""
        if self.fits:
            return tuple(misconception.name for misconception in self.fits[0])
        return (self.relation.name,) if self.relation is not None else ()

    @property
    def statements(self) -> tuple[str, ...]:
        """The same in sentences; the broken law or the misuse where the mistake has no name."""
        if self.fits:
            return tuple(f"It {misconception.statement}." for misconception in self.fits[0])
        if self.relation is not None:
            return (self.relation.statement,)
        return self.law or ((self.misuse,) if self.misuse else ())

    @property
    def misconceptions(self) -> tuple[Misconception, ...]:
        """The misconceptions to name; empty if none fits."""
        return self.fits[0] if self.fits else ()
