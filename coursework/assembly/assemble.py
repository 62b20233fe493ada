"""Put the learner's right answers together to `my_transformer.py` on their desk, and have the module checked."""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.files import write_atomic
from coursework.assembly.compose import Part, compose
from coursework.assembly.extract import Extract, Unusable, extract
from coursework.assembly.parts import FUNCTIONS, PARTS
from coursework.desk import answers, code, isolated
from coursework.desk.copies import new_backup
from coursework.desk.store import RIGHT, Desk, DeskError, reason

NAME = "my_transformer.py"
SECONDS = 120.0
TRIES = 3
"""So many right answers to one exercise are tried, the latest first."""


@dataclass
class Assembled:
    """What was done: where the module is, who wrote each part, and what the check of the module said."""

    path: Path
    own: list[str] = field(default_factory=list)
    filled: dict[str, str] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    backup: Path | None = None
    checks: list[list[str]] = field(default_factory=list)


def assemble(desk: Desk, *, fill: bool = False, seconds: float = SECONDS) -> Assembled:
    """Write the module from the latest right answers, and check it; `fill` takes the course's version of the others.

    Raises DeskError if there is nothing to write, or no place to write it.
    """
    done = Assembled(desk.folder / NAME)
    taken, why, solutions = _right_answers(desk, fill, seconds)
    if not taken and not fill:
        raise DeskError(
            f"there is no right answer yet to any of the {len(PARTS)} exercises that {NAME} is made of. "
            "`course next` names one; `course assemble --fill` writes the module with the course's own versions."
        )
    parts = {}
    for one in PARTS:
        if one in taken:
            done.own.append(one)
            parts[one] = taken[one]
        elif fill:
            done.filled[one] = why[one]
            remark = f"THE COURSE'S OWN VERSION of {one}, not yours: {why[one]}."
            parts[one] = Part(remark, _extract(one, solutions[one]))
        else:
            done.open[one] = why[one]
            parts[one] = Part(f"solve {one}, then run `course assemble` again ({why[one]})", None)
    done.backup = _write(desk, compose(parts))
    done.checks = _check(done, seconds)
    return done


# -- the answers -------------------------------------------------------------------------------------------------------


def _right_answers(desk: Desk, fill: bool, seconds: float) -> tuple[dict[str, Part], dict[str, str], dict[str, str]]:
    """By exercise: the newest right answer that passes today, why there is none, and the course's version if asked."""
    places, progress = answers.places(desk), desk.progress()
    waiting = {one: _candidates(desk, one, places.get(one)) for one in PARTS}
    why = {one: _standing(progress.get(one)) for one in PARTS}
    taken: dict[str, Part] = {}
    solutions: dict[str, str] = {}
    wanted = list(waiting) if fill else []
    for _ in range(TRIES):
        tried: dict[str, Part] = {}
        for one in [one for one in waiting if one not in taken]:
            for part in waiting[one]:
                if isinstance(part, Part):
                    tried[one] = part
                    break
                why[one] = part
        if not tried and not wanted:
            break
        texts = {one: _alone(part) for one, part in tried.items()}
        verdicts = _judge(texts, wanted, solutions, seconds)
        wanted = []
        for one, part in tried.items():
            if verdicts[one]:
                why[one] = f"your right answer cannot be taken: {verdicts[one]}"
            else:
                taken[one] = part
    return taken, why, solutions


def _candidates(desk: Desk, exercise_id: str, place: answers.Place | None) -> Iterator[Part | str]:
    """The right answers, the latest first; in place of one that cannot stand alone, why."""
    for header, body in reversed(desk.history(exercise_id)):
        if header.get("verdict") != RIGHT:
            continue
        when = header.get("saved", "").replace("T", " ")[:16] or "at an unknown time"
        try:
            found = _extract(exercise_id, body, place)
        except Unusable as problem:
            yield f"your right answer of {when} cannot be taken: {problem}"
        else:
            yield Part(f"Your answer to {exercise_id}, saved {when}, right.", found)


def _extract(exercise_id: str, body: str, place: answers.Place | None = None) -> Extract:
    before = code.prelude(place.above, body)[0] if place else ""
    return extract(body, FUNCTIONS[exercise_id], exercise_id, set(FUNCTIONS.values()), before)


def _alone(part: Part) -> str:
    if part.extract is None:
        return ""
    return "\n".join([*part.extract.imports.values(), part.extract.source])


def _standing(kept: Mapping[str, Any] | None) -> str:
    if kept is None or not kept["attempts"]:
        return "not tried yet"
    if not kept["solved"]:
        return f"no right answer yet, {kept['attempts']} tried"
    return "the right answer cannot be read any more"


# -- processes of their own --------------------------------------------------------------------------------------------


def _judge(texts: dict[str, str], wanted: list[str], solutions: dict[str, str], seconds: float) -> dict[str, str]:
    """By exercise, "" for a right answer, else why not. One that ends its process does not stop the others."""
    verdicts: dict[str, str] = {}
    while wanted or texts.keys() - verdicts.keys():
        left = {one: text for one, text in texts.items() if one not in verdicts}
        with tempfile.TemporaryDirectory(prefix="course-assemble-") as folder:
            request, report = Path(folder) / "request.json", Path(folder) / "report.json"
            write_atomic(request, json.dumps({"answers": left, "solutions": wanted}))
            command = [sys.executable, "-P", "-m", "coursework.assembly.judge", str(request), str(report)]
            ended, printed = isolated.run(command, seconds)
            said = _read(report, printed)
        solutions |= said["solutions"]
        wanted = []
        verdicts |= said["judged"]
        if said["now"]:
            verdicts[said["now"]] = "it does not come to an end" if ended is None else "it ends the whole process"
    return verdicts


def _check(done: Assembled, seconds: float) -> list[list[str]]:
    """What the check of the module says: a list of [state, claim, remark]."""
    with tempfile.TemporaryDirectory(prefix="course-assemble-") as folder:
        report = Path(folder) / "report.json"
        own = json.dumps([*done.own, *done.filled])
        command = [sys.executable, "-P", "-m", "coursework.assembly.laws", str(done.path), own, str(report)]
        ended, printed = isolated.run(command, seconds)
        said = _read(report, printed)
    if said["now"]:
        how = "did not come to an end" if ended is None else "ended the whole process"
        said["lines"].append(["broken", said["now"], f"the check {how}"])
    return said["lines"]


def _read(report: Path, printed: str) -> dict[str, Any]:
    try:
        return json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = (printed.strip().splitlines() or ["it said nothing"])[-1]
        raise DeskError(f"the process that judges the answers could not begin: {last}") from None


# -- writing -----------------------------------------------------------------------------------------------------------


def _write(desk: Desk, text: str) -> Path | None:
    """Write the module; one that the learner edited is kept, and its backup returned."""
    path, written = desk.folder / NAME, desk.private / NAME
    try:
        with desk.lock():
            before = path.read_bytes() if path.exists() else None
            backup = None
            if before not in (None, text.encode()) and before != (written.read_bytes() if written.exists() else None):
                backup = new_backup(desk, "assemble") / NAME
                write_atomic(backup, before or b"")
            write_atomic(path, text)
            write_atomic(written, text)  # how the course wrote it: whatever differs from it is the learner's
    except OSError as problem:
        raise DeskError(f"{path} could not be written: {reason(problem)}. It is as it was before.") from None
    return backup
