"""Bring a new edition of the course into the learner's copies; an answer goes with an exercise that moved."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from course_lib.files import write_atomic
from coursework.desk import answers
from coursework.desk import merge as merging
from coursework.desk.copies import base_for, keep_base, left_over, new_backup, sweep
from coursework.desk.finding import course_notebooks, name_in, notebooks
from coursework.desk.notebooks import (
    Cell,
    DamagedNotebook,
    Notebook,
    edition_of,
    exercise_of,
    fresh_id,
    parse_notebook,
    read_notebook,
    stamp_of,
    stamped,
    strip,
    validate,
    write_notebook,
)
from coursework.desk.store import Desk, DeskError, reason
from coursework.desk.tutor import NAME as CONTRACT_NAME
from coursework.desk.tutor import keep_contract

UP_TO_DATE = "up to date"
UPDATED = "updated"
NEW = "new"


@dataclass
class Updated:
    """What `update` did to one notebook."""

    name: str
    outcome: str
    merge: merging.Merge | None = None
    backup: Path | None = None
    note: str = ""


class Moved(NamedTuple):
    """An exercise that the course now has in another notebook, `home`, and what the learner wrote for it.

    That is the answer, "" where there is only the stub, and by notebook the cells of their own directly below it.
    `left` names the notebooks that the course took it out of.
    """

    home: str
    answer: str
    notes: Mapping[str, Sequence[Cell]] = {}
    left: frozenset[str] = frozenset()


def update(desk: Desk) -> list[Updated]:
    """Merge the course's present edition into every notebook of the desk; one with a problem is left as it is."""
    source = course_notebooks()
    reports: dict[str, Updated] = {}
    try:
        with desk.lock():
            sweep(desk)
            trouble = keep_contract(desk)
            backup = new_backup(desk, "update")
            course = {name_in(source, path): _read(path) for path in notebooks(source)}
            moved = _moved(desk, course)
            homes = {one.home for one in moved.values()}
            for name in sorted(course, key=lambda name: name not in homes):  # an answer arrives before it leaves
                reports[name] = _update_one(desk, name, course[name], moved, backup)
                mine = _read_copy(desk, name)
                moved = {key: one for key, one in moved.items() if one.home != name or _arrived(key, one, mine)}
            _take_out(desk, reports, moved)
            _say_where(reports, course)
    except OSError as problem:
        done = ", ".join(report.name for report in reports.values()) or "none"
        raise DeskError(
            f"The update stopped: {reason(problem)}. Chapters already updated: {done}; the others are as they were. "
            "Run `course update` again afterwards."
        ) from problem
    if trouble:
        reports[CONTRACT_NAME] = Updated(CONTRACT_NAME, "failed", note=trouble)
    for name in left_over(desk):
        reports[name] = Updated(f"{name}.ipynb", "kept", note="no longer in the course; your copy was left as it is")
    return [reports[name] for name in (*course, *(name for name in reports if name not in course))]


def _read(path: Path) -> Notebook | DamagedNotebook:
    try:
        return read_notebook(path)
    except DamagedNotebook as problem:
        return problem


def _read_copy(desk: Desk, name: str) -> Notebook | None:
    """The learner's copy as it is now, or None if there is none that can be read."""
    try:
        return read_notebook(desk.folder / f"{name}.ipynb")
    except (OSError, DamagedNotebook):
        return None


def _update_one(
    desk: Desk, name: str, theirs: Notebook | DamagedNotebook, moved: Mapping[str, Moved], backup: Path
) -> Updated:
    file = f"{name}.ipynb"
    target = desk.folder / file
    if isinstance(theirs, DamagedNotebook):
        return Updated(file, "failed", note=f"the course's {theirs}; your copy was left as it is")
    edition = edition_of(theirs)
    keep_base(desk, name, theirs, edition)
    for _ in range(5):  # again if an editor saves the notebook meanwhile
        if not target.exists():
            fresh = merging.Merge(stamped(theirs, edition))
            _carry(desk, fresh, name, moved)
            write_notebook(target, fresh.notebook)
            answerable = any(_exercises(theirs))
            return Updated(file, NEW, note="`course rescue` puts saved answers into it" if answerable else "")
        try:
            before = target.read_bytes()
        except OSError as problem:
            return Updated(file, "failed", note=f"your {target.name} cannot be read: {reason(problem)}")
        try:
            mine = parse_notebook(before, target.name)
            if stamp_of(mine) == edition:
                return Updated(file, UP_TO_DATE)
            base = base_for(desk, name, mine)
            result = merging.merge(base, mine, strip(theirs))
            _carry(desk, result, name, moved)
            result.notebook["metadata"]["course"] = {"edition": edition}
            _validate_merge(result.notebook, mine)
        except DamagedNotebook as problem:
            return Updated(file, "failed", note=f"your {problem}; it was left as it is, `course rescue` repairs it")
        write_atomic(backup / file, before)
        if target.read_bytes() == before:
            write_notebook(target, result.notebook)
            unknown = "" if base else "the edition it came from is not known, so every difference counts as yours"
            return Updated(file, UPDATED, result, backup / file, unknown)
    return Updated(file, "failed", note="it is being saved all the time; close it in JupyterLab and try again")


# -- exercises that moved ----------------------------------------------------------------------------------------------


def _exercises(notebook: Notebook) -> Iterator[str]:
    return (name for cell in notebook["cells"] if (name := exercise_of(cell)) is not None)


def _stubs(exercise_id: str, *editions: Notebook | None) -> set[str]:
    cells = (cell for one in editions if one is not None for cell in one["cells"])
    return {cell["source"].strip() for cell in cells if exercise_of(cell) == exercise_id}


def _moved(desk: Desk, course: Mapping[str, Notebook | DamagedNotebook]) -> dict[str, Moved]:
    """Return, by exercise, what must go to another notebook; each answer is in the history from here on."""
    readable = {name: theirs for name, theirs in course.items() if not isinstance(theirs, DamagedNotebook)}
    homes = {exercise_id: name for name, theirs in readable.items() for exercise_id in _exercises(theirs)}
    there = {(exercise_id, place.name): place for exercise_id, place in answers.all_places(desk)}
    found: dict[str, Moved] = {}
    for (exercise_id, name), place in there.items():
        home = homes.get(exercise_id, name)
        if home == name:
            continue
        arrived = there.get((exercise_id, home))
        base = base_for(desk, name, place.notebook)
        was = found.get(exercise_id, Moved(home, ""))
        taken_out = base is not None and name in course and exercise_id in _exercises(base)
        notes = {name: _notes_below(place, base, readable.get(name))} if taken_out else {}
        one = Moved(home, place.source, {**was.notes, **notes}, was.left | notes.keys())
        if place.source.strip() in _stubs(exercise_id, readable[home], base):
            if notes.get(name):
                found[exercise_id] = one._replace(answer=was.answer)
        elif arrived is None:
            answers.keep(desk, exercise_id, place.source)
            found[exercise_id] = one
        elif place.source.strip() in arrived.source:  # an interrupted update
            found[exercise_id] = one
    # An update that was interrupted between two notebooks that exchange exercises leaves an answer in neither.
    for exercise_id in homes.keys() - {exercise_id for exercise_id, _ in there}:
        kept = desk.latest_answer(exercise_id)
        if kept is not None and _is_new_in(desk, homes[exercise_id], exercise_id):
            found[exercise_id] = Moved(homes[exercise_id], kept)
    return found


def _notes_below(place: answers.Place, base: Notebook | None, theirs: Notebook | None) -> list[Cell]:
    """The learner's own cells that stand directly below an exercise: they belong to it."""
    if base is None:
        return []
    courses = {cell["id"] for one in (base, theirs) if one is not None for cell in one["cells"]}
    name, below = exercise_of(place.notebook["cells"][place.numbers[0]]), False
    found: list[Cell] = []
    for cell in place.notebook["cells"]:
        own = cell["id"] not in courses and exercise_of(cell) is None and "course" not in cell["metadata"]
        below = exercise_of(cell) == name or (below and own)
        if below and own:
            found.append(cell)
    return found


def _is_new_in(desk: Desk, name: str, exercise_id: str) -> bool:
    """Whether the learner's copy comes from an edition without the exercise: else they took it out themselves."""
    target = desk.folder / f"{name}.ipynb"
    mine = _read(target) if target.exists() else None
    if mine is None or isinstance(mine, DamagedNotebook):
        return False
    base = base_for(desk, name, mine)
    return base is not None and exercise_id not in _exercises(base)


def _carry(desk: Desk, result: merging.Merge, name: str, moved: Mapping[str, Moved]) -> None:
    """Put what moved here beside its exercise, and take out what has arrived elsewhere."""
    kept: list[Cell] = []
    taken = {cell["id"] for cell in result.notebook["cells"]}
    for cell in result.notebook["cells"]:
        if (event := _gone(desk, name, cell, moved)) is not None:
            _say(result, cell, event)
            continue
        kept.append(cell)
        exercise_id = exercise_of(cell) or ""
        one = moved.get(exercise_id)
        if one is None or one.home != name:
            continue
        if one.answer and one.answer.strip() not in cell["source"]:
            cell["source"] = answers.with_check(one.answer, cell["source"], exercise_id)
            result.events.append((cell["id"], "moved here, with your answer"))
        for note in (note for notes in one.notes.values() for note in notes if not _has(result.notebook, note)):
            new_id = fresh_id(note["source"], taken) if note["id"] in taken else note["id"]
            taken.add(new_id)
            kept.append({**note, "id": new_id})
            result.events.append((new_id, f"yours ({merging.beginning(note)}): came here with the exercise above it"))
    result.notebook["cells"] = kept


def _take_out(desk: Desk, reports: Mapping[str, Updated], moved: Mapping[str, Moved]) -> None:
    """Take out what had not arrived yet when its notebook was merged: two notebooks may exchange exercises.

    What an interrupt before this leaves in both places stays in both.
    """
    for name in {name for one in moved.values() for name in one.left}:
        mine, report = _read_copy(desk, name), reports.get(name)
        if mine is None or report is None or report.merge is None:
            continue
        events = [(cell, _gone(desk, name, cell, moved)) for cell in mine["cells"]]
        for cell, event in events:
            if event is not None:
                _say(report.merge, cell, event)
        if any(event is not None for _, event in events):
            mine["cells"] = [cell for cell, event in events if event is None]
            write_notebook(desk.folder / f"{name}.ipynb", mine)


def _gone(desk: Desk, name: str, cell: Cell, moved: Mapping[str, Moved]) -> str | None:
    """Say where a cell went, if it belongs to an exercise that left this notebook and has arrived there."""
    one = moved.get(exercise_of(cell) or "")
    if one is not None and one.home != name and name in one.left and cell["source"].strip() in one.answer:
        there = _read_copy(desk, one.home)
        inside = there is not None and any(
            exercise_of(other) == exercise_of(cell) and cell["source"].strip() in other["source"]
            for other in there["cells"]
        )
        return f"moved to {one.home}, and your answer with it" if inside else None
    if exercise_of(cell) is not None:
        return None
    for one in moved.values():
        if one.home != name and (cell["id"], cell["source"]) in [
            (n["id"], n["source"]) for n in one.notes.get(name, ())
        ]:
            start = merging.beginning(cell)
            arrived = _has(_read_copy(desk, one.home), cell)
            return f"yours ({start}): moved to {one.home}, with the exercise above it" if arrived else None
    return None


def _say(result: merging.Merge, cell: Cell, event: str) -> None:
    result.events = [(cell_id, what) for cell_id, what in result.events if cell_id != cell["id"]]
    result.events.append((cell["id"], event))


def _has(notebook: Notebook | None, note: Cell) -> bool:
    """Whether a notebook has a cell with this text."""
    wanted = (note["cell_type"], note["source"])
    return notebook is not None and wanted in [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]]


def _arrived(exercise_id: str, one: Moved, mine: Notebook | None) -> bool:
    """Whether a learner's copy has what moved there."""
    if mine is None:
        return False
    text = "\n".join(cell["source"] for cell in mine["cells"] if exercise_of(cell) == exercise_id)
    return one.answer.strip() in text and all(_has(mine, note) for notes in one.notes.values() for note in notes)


def _say_where(reports: Mapping[str, Updated], course: Mapping[str, Notebook | DamagedNotebook]) -> None:
    """Where the learner changed a cell that the course has in another notebook now, name that notebook."""
    now: dict[str, list[str]] = {}
    for name, theirs in course.items():
        for cell in () if isinstance(theirs, DamagedNotebook) else theirs["cells"]:
            now.setdefault(cell["id"], []).append(name)
    for report in reports.values():
        events = report.merge.events if report.merge else []
        for number, (cell_id, event) in enumerate(events):
            if event == merging.KEPT_REMOVED and len(now.get(cell_id, ())) == 1:
                events[number] = (cell_id, merging.KEPT_MOVED.format(home=now[cell_id][0]))


def _validate_merge(merged: Notebook, mine: Notebook) -> None:
    try:
        validate(merged)
    except DamagedNotebook:
        try:
            validate(mine)
        except DamagedNotebook:
            return  # some editors write what the schema does not allow; the merge did not make it worse
        raise
