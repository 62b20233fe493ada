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
from coursework.assembly.parts import FUNCTIONS, LAST, PARTS, up_to
from coursework.desk import answers, code, isolated
from coursework.desk.copies import new_backup
from coursework.desk.store import RIGHT, Desk, DeskError, content, reason
from coursework.exercises import registry
from coursework.exercises.engine.cells import edition, solved_cell_source
from coursework.exercises.spec import Exercise

NAME = "my_transformer.py"
SECONDS = 120.0
TRIES = 3
"""So many right answers to one exercise are tried, the latest first."""


@dataclass
class Assembled:
    """What was done: where the module is, how far it goes, who wrote each part, and what its check said.

    `own` are the exercises whose parts are the learner's; `open` those for which the course's stand in, and why.
    """

    path: Path
    chapter: int = LAST
    own: list[str] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)
    text: str = ""
    backup: Path | None = None
    checks: list[list[str]] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether the module goes to its end, where it is a program."""
        return self.chapter == LAST


def assemble(desk: Desk, chapter: int = 1, *, judged: bool = True, seconds: float = SECONDS) -> Assembled:
    """Write the module from the latest right answers, as far as they go or this chapter; the course's stand in.

    Args:
        desk: the learner's.
        chapter: the module goes at least to the end of this one.
        judged: try each answer again, and check the whole module; else only answers to older editions are tried.
        seconds: for each process that tries and checks.

    Raises DeskError if there is no place to write it.
    """
    taken, why = _right_answers(desk, judged, seconds)
    chapter = max([chapter, *(PARTS[one][0] for one in taken)])
    done = Assembled(desk.folder / NAME, chapter)
    parts = {}
    for one in up_to(chapter):
        if one in taken:
            done.own.append(one)
            parts[one] = taken[one]
        else:
            done.open[one] = why[one]
            parts[one] = stand_in(one, why[one])
    done.text = compose(parts, chapter)
    done.backup = _write(desk, done.text)
    done.checks = _check(done, seconds) if judged else []
    return done


def stand_in(exercise_id: str, why: str = "") -> Part:
    """The course's own part, marked as such."""
    remark = f"OPEN, the course's own stands in: {exercise_id}" + (f" ({why})" if why else "") + "."
    return Part(remark, _extract(exercise_id, solved_cell_source(registry.get(exercise_id))))


# -- the answers -------------------------------------------------------------------------------------------------------


def _right_answers(desk: Desk, judged: bool, seconds: float) -> tuple[dict[str, Part], dict[str, str]]:
    """By exercise: the newest right answer that passes today, and why there is none."""
    places, progress = answers.places(desk), desk.progress()
    waiting = {one: _candidates(desk, one, places.get(one)) for one in PARTS}
    why = {one: _standing(progress.get(one)) for one in PARTS}
    taken: dict[str, Part] = {}
    for _ in range(TRIES):
        tried: dict[str, Part] = {}
        for one in [one for one in waiting if one not in taken]:
            for part, of_today in waiting[one]:
                if isinstance(part, str):
                    why[one] = part
                elif of_today and not judged:
                    taken[one] = part
                    break
                else:
                    tried[one] = part
                    break
        if not tried:
            break
        verdicts = _judge({one: _alone(part) for one, part in tried.items()}, seconds)
        for one, part in tried.items():
            if verdicts[one]:
                why[one] = f"your right answer cannot be taken: {verdicts[one]}"
            else:
                taken[one] = part
    return taken, why


def _candidates(desk: Desk, exercise_id: str, place: answers.Place | None) -> Iterator[tuple[Part | str, bool]]:
    """The right answers, the latest first, or why one cannot stand alone; and whether it was right as asked today."""
    for header, body in reversed(desk.history(exercise_id)):
        if header.get("verdict") != RIGHT:
            continue
        when = header.get("saved", "").replace("T", " ")[:16] or "at an unknown time"
        try:
            found = _extract(exercise_id, body, place)
        except Unusable as problem:
            yield f"your right answer of {when} cannot be taken: {problem}", False
        else:
            of_today = header.get("edition") == edition(registry.get(exercise_id))
            yield Part(f"Your answer to {exercise_id}, saved {when}, right.", found), of_today


def _extract(exercise_id: str, body: str, place: answers.Place | None = None) -> Extract:
    before = code.needs(place.above, body).text if place else ""
    spec = registry.get(exercise_id)
    given = set(spec.parts) if isinstance(spec, Exercise) else set()
    return extract(body, FUNCTIONS[exercise_id], exercise_id, given | set(FUNCTIONS.values()), before)


def _alone(part: Part) -> str:
    return "\n".join([*part.extract.imports.values(), part.extract.source])


def _standing(kept: Mapping[str, Any] | None) -> str:
    if kept is None or not kept["attempts"]:
        return "not tried yet"
    if not kept["solved"]:
        return f"no right answer yet, {kept['attempts']} tried"
    return "the right answer cannot be read any more"


# -- processes of their own --------------------------------------------------------------------------------------------


def _judge(texts: dict[str, str], seconds: float) -> dict[str, str]:
    """By exercise, "" for a right answer, else why not. One that ends its process does not stop the others."""
    verdicts: dict[str, str] = {}
    while texts.keys() - verdicts.keys():
        left = {one: text for one, text in texts.items() if one not in verdicts}
        with tempfile.TemporaryDirectory(prefix="course-assemble-") as folder:
            request, report = Path(folder) / "request.json", Path(folder) / "report.json"
            write_atomic(request, json.dumps(left))
            command = [sys.executable, "-P", "-m", "coursework.assembly.judge", str(request), str(report)]
            ended, printed = isolated.run(command, seconds)
            said = _read(report, printed)
        verdicts |= said["judged"]
        if said["now"]:
            verdicts[said["now"]] = "it does not come to an end" if ended is None else "it ends the whole process"
    return verdicts


def _check(done: Assembled, seconds: float) -> list[list[str]]:
    """What the check of the module says: a list of [whether it holds, claim, remark]."""
    with tempfile.TemporaryDirectory(prefix="course-assemble-") as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-P",
            "-m",
            "coursework.assembly.laws",
            str(done.path),
            str(done.chapter),
            str(report),
        ]
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
            before = content(path) if path.exists() else None
            backup = None
            if before not in (None, text.encode()) and before != (content(written) if written.exists() else None):
                backup = new_backup(desk, "assemble") / NAME
                write_atomic(backup, before or b"")
            write_atomic(path, text)
            write_atomic(written, text)  # how the course wrote it: whatever differs from it is the learner's
    except OSError as problem:
        raise DeskError(f"{path} could not be written: {reason(problem)}. It is as it was before.") from None
    return backup
