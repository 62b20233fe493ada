"""What `course check --json` prints of an answer, for a tutor: nothing in it is of the solution."""

import re
from collections.abc import Mapping
from typing import Any

from coursework.desk.store import Desk
from coursework.desk.tutor import SCHEMA
from coursework.exercises.engine import cells
from coursework.exercises.spec import Exercise, Question

_KINDS = ("question", "pointer", "skeleton")


def facts(entry: Exercise | Question, said: Mapping[str, Any], desk: Desk | None) -> dict[str, Any]:
    """Return what `course check --json` prints, from the report of `judge.main`; nothing in it is of the solution."""
    counted = desk.progress().get(entry.id) if desk is not None else None
    attempts = counted["attempts"] if counted else int(said["verdict"] in ("right", "wrong"))
    due = 0 if said["verdict"] == "right" else min(len(entry.hints), max(1, attempts))
    texts = [*entry.hints[:2], without_solution(entry)]
    return {
        "schema": SCHEMA,
        "exercise": entry.id,
        "title": entry.title,
        "verdict": said["verdict"],
        "misconceptions": said["misconceptions"],
        "case": said["case"],
        "problem": said["problem"],
        "attempts": attempts,
        "hints": [{"level": level + 1, "kind": _KINDS[level], "text": texts[level]} for level in range(due)],
        "next_level": due + 1 if 0 < due < len(entry.hints) else None,
    }


def without_solution(entry: Exercise | Question) -> str:
    """Return the last hint, the skeleton, with every line that stands so in the solution left open as well."""
    given = {plain(line) for line in cells.cell_source(entry).splitlines()}
    lines = {plain(line) for line in cells.solved_cell_source(entry).splitlines()} - given
    kept = []
    for line in entry.hints[2].rstrip().splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        known = any(one in plain(line) for one in lines if len(one) > 5)
        kept.append(f"{indent}{cells.BLANK}" if known else line)
    return "\n".join(kept)


def plain(line: str) -> str:
    """A line of code without space and comment."""
    return re.sub(r"\s+", "", line.partition("#")[0])
