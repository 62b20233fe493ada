"""Judge one answer in the process that runs it, which counts only by the report that it leaves after the verdict.

`isolated.check` starts such a process for the answer in a learner's desk or file, `coursework.classroom` for each
answer of a class. The request comes through standard input, so that the answer does not find it in the command.
"""

import builtins
import contextlib
import io
import json
import math
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from course_lib.files import write_atomic
from coursework.desk import answers, running
from coursework.desk.notebooks import read_notebook
from coursework.desk.store import Desk, DeskError
from coursework.desk.tutor import SCHEMA
from coursework.exercises.engine import cells
from coursework.exercises.engine.finding import RIGHT, WRONG
from coursework.exercises.engine.guard import memory_cap
from coursework.exercises.handle import Handle
from coursework.exercises.spec import Exercise, Misconception, Question

MEMORY = 4 << 30
"""Bytes that the answer's cell may allocate before the check, which has limits of its own."""

_KINDS = ("question", "pointer", "skeleton")

NOT_RUN = "not run"
"""The verdict on an answer that gave nothing to judge."""

_OWN = ("course_lib", "coursework")
_LIBRARIES = (builtins, math, np, torch, torch.Tensor, torch.nn, torch.linalg, torch.autograd, F)


def main(request: dict[str, Any], report: Path) -> None:
    """Run the answer, judge it, and leave the report.

    `request` names the "exercise" and where its answer is: "file", a Python file; or "notebook" with the "numbers" of
    its cells, to be run in "folder"; or else the notebooks of "desk".
    """
    said: dict[str, Any] = {
        "secret": request.get("secret", ""),
        "exercise": request["exercise"],
        "verdict": NOT_RUN,
        "misconceptions": [],
        "case": None,
        "problem": "",
        "text": "",
        "facts": None,
    }
    desk, spec = None, None
    try:
        desk = Desk(request["desk"]) if request.get("desk") else None
        handle = running.handle(request["exercise"], desk)
        spec = handle.spec
        answer, folder = _answer(request, handle, desk)
        state = _State()
        with running.working_in(folder):
            with memory_cap(MEMORY):
                value = running.evaluate(handle, answer)
            state.put_back()
            judged = handle.examine(value)
        if state.changed():
            raise DeskError("the answer changes the check while it is checked, so its verdict does not count.")
        said["verdict"], said["text"] = judged.verdict, judged.text
        said["misconceptions"] = [
            {
                "name": one.name if isinstance(one, Misconception) else f"answers {one.value!r}",
                "statement": one.statement,
                "question": one.question,
            }
            for one in judged.misconceptions
        ]
        if any(judged.case):
            said["case"] = {"name": judged.case[0], "differs": judged.case[1]}
        trouble = io.StringIO()
        with contextlib.redirect_stdout(trouble):
            handle.record(judged)
        if judged.verdict == WRONG and answer.missing:
            print(running.explain_missing(answer.missing), file=trouble)
        said["text"] += "\n" + trouble.getvalue()
    except DeskError as problem:
        said["problem"] = str(problem)
    except Exception as problem:  # an answer strange enough to break what reads it
        said["problem"] = f"the answer could not be judged ({type(problem).__name__}: {str(problem)[:200]})."
    said["right"] = said["verdict"] == RIGHT
    if spec is not None and not request.get("notebook"):
        said["facts"] = facts(spec, said, desk)
    write_atomic(report, json.dumps(said))


def _answer(request: dict[str, Any], handle: Handle, desk: Desk | None) -> tuple[running.Answer, Path]:
    """The answer, and the folder to run it in."""
    if request.get("file"):
        return running.from_file(Path(request["file"])), Path.cwd()
    if request.get("notebook"):
        place = answers.Place(Path(request["notebook"]), "", read_notebook(request["notebook"]), request["numbers"])
        return running.from_place(place, whole=True), Path(request["folder"])
    if desk is None:
        raise DeskError(
            "your copies of the notebooks were not found: run `course start`, or name a file, `--file answer.py`."
        )
    return running.from_notebook(desk, handle.spec.id), desk.folder


class _State:
    """The course's modules and the libraries that judge: what the answer set over their names is put back, or seen."""

    def __init__(self) -> None:
        own = [module for name, module in sys.modules.items() if name.partition(".")[0] in _OWN and module is not None]
        classes = [one for module in own for one in vars(module).values() if isinstance(one, type)]
        self.own = self._names(*own, *(one for one in classes if one.__module__.partition(".")[0] in _OWN))
        self.libraries = self._names(*_LIBRARIES)

    @staticmethod
    def _names(*holders: types.ModuleType | type) -> list[tuple[Any, dict[str, Any]]]:
        return [(holder, dict(vars(holder))) for holder in dict.fromkeys(holders)]

    def put_back(self) -> None:
        """Undo what was set over a name."""
        for holder, before in (*self.own, *self.libraries):
            now = vars(holder)
            for name, value in before.items():
                if name not in now or now[name] is not value:
                    setattr(holder, name, value)
            if isinstance(holder, type):  # a method that a class inherits is not among its own names
                for name in [name for name in now if name not in before]:
                    delattr(holder, name)

    def changed(self) -> bool:
        """Whether a name of the course means something else than before."""
        return any(vars(holder).get(name) is not value for holder, before in self.own for name, value in before.items())


# -- what `course check --json` prints, for a tutor --------------------------------------------------------------------


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


if __name__ == "__main__":
    main(json.load(sys.stdin), Path(sys.argv[1]).absolute())
