"""Where a learner stands: attempts, hints and answers of this session, together with those that a keeper holds.

Whatever needs to know asks a `Progress`: the exercises in a notebook, `ex.progress()`, the command `course`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from coursework.exercises import registry
from coursework.exercises.engine.cells import edition
from coursework.exercises.engine.finding import RIGHT
from coursework.exercises.spec import Entry, Misconception, WrongAnswer

R = TypeVar("R")
Named = Misconception | WrongAnswer
"""What a wrong answer was recognised as."""


class Keeper(Protocol):
    """What keeps answers from one session to the next; a learner's folder is one."""

    def save_answer(self, exercise_id: str, source: str, verdict: str, edition: str) -> None:
        """Keep the source of an answer with its verdict and the edition of the exercise."""

    def record_hint(self, exercise_id: str) -> None:
        """Count one more hint."""

    def progress(self) -> Mapping[str, Mapping[str, Any]]:
        """By exercise id: attempts, hints, solved, solved_edition and more."""

    def latest_answer(self, exercise_id: str) -> str | None:
        """The source of the latest answer, or None."""

    def save_prediction(self, name: str, guess: str) -> bool:
        """Keep a guess of one line; whether it is kept now."""

    def predictions(self) -> Mapping[str, str]:
        """By name, the latest guess of each prediction, in the order of the first ones."""


@dataclass
class State:
    """One exercise in this session: attempts, whether solved, hints given, and misconceptions not yet asked about."""

    attempts: int = 0
    solved: bool = False
    hints: int = 0
    next_hint: int = 0
    misconceptions: list[Named] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Standing:
    """How far the learner is with one exercise; `place` is its chapter or lab, `state` is in words."""

    entry: Entry
    place: str
    state: str
    attempts: int
    hints: int

    @property
    def solved(self) -> bool:
        """Whether a right answer was given, also if to an older edition."""
        return self.state.startswith("solved")


class Progress:
    """A learner's progress.

    Args:
        find_keeper: returns the keeper, or None where nothing is kept. It is asked anew each time, for a learner may
            change the working directory; if it or the keeper fails, one line says so and the session goes on.
        run_answer: runs the latest right answer that a keeper has to the exercise of a handle. It returns what the
            answer defines and when it was saved, or None and why there is none.
    """

    def __init__(
        self,
        find_keeper: Callable[[], Keeper | None] = lambda: None,
        run_answer: Callable[[Any, Any], tuple[Any, str]] = lambda handle, keeper: (None, ""),
    ) -> None:
        self.find_keeper, self.run_answer = find_keeper, run_answer
        self.states: dict[str, State] = {}
        self.guesses: dict[str, str] = {}

    def state(self, exercise_id: str) -> State:
        """The state of an exercise in this session, made when first asked for."""
        return self.states.setdefault(exercise_id, State())

    def record(self, entry: Entry, source: str, verdict: str, misconceptions: Sequence[Named]) -> None:
        """Count an attempt, remember its misconceptions for the next hint, and have the answer kept."""
        own = self.state(entry.id)
        own.attempts += 1
        own.solved = own.solved or verdict == RIGHT
        own.misconceptions = list(misconceptions)
        self._kept(
            lambda keeper: keeper.save_answer(entry.id, source, verdict, edition(entry)),
            "Your answer could not be saved",
        )

    def record_hint(self, entry: Entry) -> State:
        """Count a hint; return the state that says which one it is."""
        own = self.state(entry.id)
        own.hints += 1
        self._kept(lambda keeper: keeper.record_hint(entry.id), "The hint could not be counted")
        return own

    def latest_answer(self, entry: Entry) -> str | None:
        """The latest answer that was kept."""
        return self._kept(lambda keeper: keeper.latest_answer(entry.id), "Your saved answer could not be read")

    def right_answer(self, handle: Any) -> tuple[Any, str]:
        """What the latest right answer defines and when it was saved, or None and why; None and "" without a keeper."""
        found = self._kept(lambda keeper: self.run_answer(handle, keeper), "Your answer could not be run")
        return found or (None, "")

    def predict(self, name: str, guess: str) -> bool:
        """Have a guess kept, or note it for this session; whether it is kept."""
        kept = self._kept(lambda keeper: keeper.save_prediction(name, guess), "Your guess could not be saved")
        if kept:
            self.guesses.pop(name, None)
            return True
        self.guesses[name] = guess
        return False

    def predictions(self) -> dict[str, str]:
        """The latest guess of each prediction, of this session and before."""
        saved = self._kept(lambda keeper: keeper.predictions(), "Your predictions could not be read") or {}
        return {**saved, **self.guesses}

    def standings(self, entries: Iterable[Entry]) -> list[Standing]:
        """Where the learner stands with each of the exercises, in this session and before."""
        saved = self._kept(lambda keeper: keeper.progress(), "Your progress could not be read") or {}
        return [self._standing(entry, saved.get(entry.id)) for entry in entries]

    def standing(self, entry: Entry) -> Standing:
        """Where the learner stands with one exercise."""
        return self.standings([entry])[0]

    def _standing(self, entry: Entry, saved: Mapping[str, Any] | None) -> Standing:
        own = self.state(entry.id)
        attempts = max(own.attempts, saved["attempts"] if saved else 0)
        hints = max(own.hints, saved["hints"] if saved else 0)
        if own.solved:
            state = "solved"
        elif saved is not None and saved["attempts"]:
            state = state_of(saved, edition(entry))
        else:
            state = "tried" if attempts else "not tried"
        return Standing(entry, registry.label(entry.id), state, attempts, hints)

    def _kept(self, action: Callable[[Keeper], R], trouble: str) -> R | None:
        try:
            keeper = self.find_keeper()
            return action(keeper) if keeper is not None else None
        except Exception as problem:
            print(f"{trouble} ({str(problem).splitlines()[0] if str(problem) else type(problem).__name__}).")
            return None


def state_of(kept: Mapping[str, Any] | None, edition: str | None = None) -> str:
    """In words: "not tried", "tried", "solved" or, against another edition than the one solved, "… an older edition".

    `kept` is one entry of what `Keeper.progress` returns.
    """
    if kept is None or not kept["attempts"]:
        return "not tried"
    if not kept["solved"]:
        return "tried"
    if edition is not None and kept["solved_edition"] != edition:
        return "solved against an older edition"
    return "solved"


HEADINGS = ("chapter", "exercise", "kind", "difficulty", "state", "attempts", "hints")


def print_progress(standings: Iterable[Standing], *, by_chapter: bool = False) -> None:
    """Print one line for each exercise, or for each chapter and its labs, and the sum, as plain text."""
    every = list(standings)
    if by_chapter:
        chapters: dict[str, tuple[list[Standing], list[Standing]]] = {}
        for one in every:
            is_lab = one.place.startswith("labs/")
            chapters.setdefault(one.place.removeprefix("labs/")[:2], ([], []))[is_lab].append(one)
        table: list[tuple[str, ...]] = [("chapter", "solved", "in its labs")]
        table += [(chapter or "nowhere yet", *map(_solved, parts)) for chapter, parts in chapters.items()]
    else:
        table = [HEADINGS, *(_row(one) for one in every)]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"{sum(one.solved for one in every)} of {len(every)} solved.")


def _solved(part: Sequence[Standing]) -> str:
    return f"{sum(one.solved for one in part)} of {len(part)}" if part else ""


def _row(one: Standing) -> tuple[str, ...]:
    first = (one.place, one.entry.id, one.entry.kind, str(one.entry.difficulty))
    return (*first, one.state, str(one.attempts), str(one.hints))
