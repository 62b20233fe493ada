"""`ex.progress()`: a plain table of where the learner stands."""

from __future__ import annotations

from typing import Any

from course_lib.exercises import registry
from course_lib.exercises.engine import session
from course_lib.exercises.engine.entry import Entry

HEADINGS = ("chapter", "exercise", "kind", "difficulty", "state", "attempts", "hints")


def rows() -> list[tuple[str, ...]]:
    """One row for each exercise, in course order."""
    saved: dict[str, Any] = session.on_desk(lambda desk: desk.progress(), "Your progress could not be read") or {}
    return [_row(entry, saved.get(entry.id)) for entry in registry.all_exercises()]


def _row(entry: Entry, saved: dict[str, Any] | None) -> tuple[str, ...]:
    own = session.state(entry)
    attempts = max(own.attempts, saved["attempts"] if saved else 0)
    hints = max(own.hints, saved["hints"] if saved else 0)
    if own.solved:
        standing = "solved"
    elif saved is not None:
        from course_lib.desk.store import state_of

        standing = state_of(saved, entry.edition)
    else:
        standing = "tried" if attempts else "not tried"
    return (f"{entry.chapter:02d}", entry.id, entry.kind, str(entry.difficulty), standing, str(attempts), str(hints))


def print_progress() -> None:
    """Print the table and the sum."""
    table = [HEADINGS, *rows()]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    solved = sum(row[4].startswith("solved") for row in table[1:])
    print(f"{solved} of {len(table) - 1} solved.")
