"""What happens around a check: attempts, hints, solutions, saved answers.

Everything is kept for the running session; where the learner has a desk, answers and counts are saved there too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from course_lib.exercises.engine import cells

if TYPE_CHECKING:
    from course_lib.desk.store import Desk
    from course_lib.exercises.engine.entry import Entry
    from course_lib.exercises.engine.spec import Misconception, WrongAnswer

R = TypeVar("R")


@dataclass
class State:
    """One exercise in this session: attempts, whether solved, hints given, and mistakes not yet asked about."""

    attempts: int = 0
    solved: bool = False
    hints: int = 0
    next_hint: int = 0
    mistakes: list[Misconception | WrongAnswer] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)


STATES: dict[str, State] = {}


def state(entry: Entry) -> State:
    """The state of an exercise, made when first asked for."""
    return STATES.setdefault(entry.id, State())


def record(entry: Entry, source: str, verdict: str, mistakes: Sequence[Misconception | WrongAnswer]) -> None:
    """Count an attempt, remember its mistakes for the next hint, and save the answer."""
    own = state(entry)
    own.attempts += 1
    own.solved = own.solved or verdict == "right"
    own.mistakes = list(mistakes)
    on_desk(lambda desk: desk.save_answer(entry.id, source, verdict, entry.edition), "Your answer could not be saved")


def on_desk(action: Callable[[Desk], R], trouble: str) -> R | None:
    """Do something with the learner's desk, if there is one; a failure is told in one line and goes no further."""
    try:
        from course_lib.desk.store import find_desk

        desk = find_desk()
        return action(desk) if desk is not None else None
    except Exception as problem:
        print(f"{trouble} ({str(problem).splitlines()[0] if str(problem) else type(problem).__name__}).")
        return None


def attempts(entry: Entry) -> int:
    """How often the exercise was attempted, in this session or before."""
    saved = on_desk(lambda desk: desk.attempts(entry.id), "Your earlier attempts could not be read")
    return max(state(entry).attempts, saved or 0)


def solved(entry: Entry) -> bool:
    """Whether a right answer was given, in this session or before."""
    if state(entry).solved:
        return True
    saved: dict[str, Any] | None = on_desk(lambda desk: desk.progress(), "Your progress could not be read")
    return bool((saved or {}).get(entry.id, {}).get("solved"))


def hint(entry: Entry) -> None:
    """Print the next hint; a recognised mistake's question comes before the general ones."""
    own = state(entry)
    own.hints += 1
    on_desk(lambda desk: desk.record_hint(entry.id), "The hint could not be counted")
    for mistake in own.mistakes:
        if mistake.question not in own.asked:
            own.asked.add(mistake.question)
            print(f"A question about your last answer:\n{mistake.question}")
            return
    number = min(own.next_hint, len(entry.hints) - 1)
    own.next_hint = number + 1
    kind = ("a question", "where to look", f"a skeleton; fill in {cells.BLANK}")[number]
    print(f"Hint {number + 1} of {len(entry.hints)}, {kind}:\n{entry.hints[number].rstrip()}")
    if number == len(entry.hints) - 1:
        print(f"That was the last one. After an attempt, ex.{entry.id}.solution() shows the solution.")


def solution(entry: Entry, *, reveal: bool) -> None:
    """Print the solution, and after success the other right ways."""
    done = solved(entry)
    if not (reveal or done or attempts(entry)):
        print(
            f"Try {entry.id} once first; a wrong attempt is fine, and its message helps.\n"
            f"A hint: ex.{entry.id}.hint()   The solution all the same: ex.{entry.id}.solution(reveal=True)"
        )
        return
    print(cells.solution_text(entry, alternatives=done))


def reset(entry: Entry) -> None:
    """Give back the cell as it was at first. Saved answers stay."""
    _give_cell(entry.cell_source(), f"{entry.id} as it was at first (your saved answers stay):")


def restore(entry: Entry) -> None:
    """Give back the latest saved answer."""
    saved = on_desk(lambda desk: desk.latest_answer(entry.id), "Your saved answer could not be read")
    if saved is None:
        print(f"There is no saved answer to {entry.id}.")
        return
    if cells.last_line(entry) not in saved:
        saved = f"{saved.rstrip()}\n\n\n{cells.last_line(entry)}\n"
    _give_cell(saved, f"Your latest answer to {entry.id}:")


def _give_cell(source: str, heading: str) -> None:
    """In a notebook, replace the cell that asked; elsewhere, print."""
    try:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
    except ImportError:
        shell = None
    if shell is not None and hasattr(shell, "set_next_input") and hasattr(shell, "kernel"):
        shell.set_next_input(source.rstrip("\n"), replace=True)
        return
    print(f"{heading}\n\n{source.rstrip()}")
