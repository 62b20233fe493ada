"""Bring a new edition of the course into the learner's copies: read the desk, see what goes where, write.

An answer goes with an exercise that moved to another notebook, and so do the learner's own cells below it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.files import write_atomic
from coursework.desk import answers
from coursework.desk import merge as merging
from coursework.desk.copies import Copy, keep_base, left_over, new_backup, read_copies, read_copy, sweep
from coursework.desk.finding import course_notebooks
from coursework.desk.notebooks import (
    Cell,
    DamagedNotebook,
    Notebook,
    answers_in,
    exercise_of,
    fresh_id,
    stamp_of,
    stamped,
    text_of,
    validate,
    with_check,
    write_notebook,
)
from coursework.desk.store import Desk, DeskError, content, reason
from coursework.desk.tutor import NAME as CONTRACT_NAME
from coursework.desk.tutor import keep_contract

UP_TO_DATE = "up to date"
UPDATED = "updated"
NEW = "new"
ANSWERS = "answers"


@dataclass
class Updated:
    """What `update` did to one notebook."""

    name: str
    outcome: str
    merge: merging.Merge | None = None
    backup: Path | None = None
    note: str = ""


@dataclass
class Moved:
    """An exercise that the course now has in another notebook, `home`, and what the learner wrote for it.

    That is the answer, "" where there is only the stub, and by notebook that the course took it out of the cells of
    their own directly below it.
    """

    home: str
    answer: str = ""
    notes: dict[str, list[Cell]] = field(default_factory=dict)


def update(desk: Desk) -> list[Updated]:
    """Merge the course's present edition into every notebook of the desk; one with a problem is left as it is."""
    source = course_notebooks()
    reports: dict[str, Updated] = {}
    try:
        with desk.lock():
            sweep(desk)
            trouble = keep_contract(desk)
            backup = new_backup(desk, "update")
            followed = answers.follow_moves(desk, backup)
            copies = read_copies(desk, source)
            moved, written = _moved(copies, desk.latest_answer)
            for exercise_id, answer in written:  # before a notebook changes
                answers.keep(desk, exercise_id, answer)
            _write(desk, copies, moved, backup, reports)
    except OSError as problem:
        done = ", ".join(report.name for report in reports.values()) or "none"
        raise DeskError(
            f"The update stopped: {reason(problem)}. Chapters already updated: {done}; the others are as they were. "
            "Run `course update` again afterwards."
        ) from problem
    _say_where(reports, copies)
    listed = [reports[name] for name, copy in copies.items() if copy.listed]
    if followed:
        listed.append(Updated(ANSWERS, UPDATED, note=f"{followed} of them name what moved by its present name"))
    if trouble:
        listed.append(Updated(CONTRACT_NAME, "failed", note=trouble))
    gone = "no longer in the course; your copy was left as it is"
    return [*listed, *(Updated(f"{name}.ipynb", "kept", note=gone) for name in left_over(desk))]


def _write(
    desk: Desk, copies: Mapping[str, Copy], moved: Mapping[str, Moved], backup: Path, reports: dict[str, Updated]
) -> None:
    """Write the notebooks one by one, in an order in which nothing leaves one before it has arrived in another."""
    now = {name: copy.mine for name, copy in copies.items()}
    homes = {one.home for one in moved.values()}
    for name in sorted((name for name, copy in copies.items() if copy.listed), key=lambda name: name not in homes):
        reports[name] = _bring(desk, copies[name], moved, now, backup)
    # Two notebooks may exchange exercises. What an interrupt before this leaves in both stays in both.
    for name in {name for one in moved.values() for name in one.notes}:
        result = reports[name].merge if name in reports else None
        if result is not None and _leave(result, name, moved, now):
            write_notebook(desk.folder / f"{name}.ipynb", result.notebook)


def _bring(
    desk: Desk, copy: Copy, moved: Mapping[str, Moved], now: dict[str, Notebook | None], backup: Path
) -> Updated:
    """Bring the present edition into one copy, with what moved there and without what has arrived elsewhere.

    `now` is what the learner's notebooks hold.
    """
    file = f"{copy.name}.ipynb"
    target = desk.folder / file
    if copy.course is None:
        return Updated(file, "failed", note=copy.problem)
    keep_base(desk, copy.name, copy.course, copy.edition)
    for _ in range(5):  # again if an editor saves the notebook meanwhile
        if copy.problem:
            return Updated(file, "failed", note=copy.problem)
        if copy.mine is None:
            fresh = merging.Merge(stamped(copy.course, copy.edition))
            _arrive(fresh, copy.name, moved)
            write_notebook(target, fresh.notebook)
            now[copy.name] = fresh.notebook
            answerable = answers_in(copy.course)
            return Updated(file, NEW, note="`course rescue` puts saved answers into it" if answerable else "")
        if stamp_of(copy.mine) == copy.edition:
            return Updated(file, UP_TO_DATE)
        result = merging.merge(copy.base, copy.mine, copy.course)
        _arrive(result, copy.name, moved)
        _leave(result, copy.name, moved, now)
        result.events += [
            (cell["id"], merging.IMPORTS) for cell in result.notebook["cells"] if cell["source"] in copy.followed
        ]
        result.notebook["metadata"]["course"] = {"edition": copy.edition}
        try:
            _validate_merge(result.notebook, copy.mine)
        except DamagedNotebook as problem:
            return Updated(file, "failed", note=f"your {problem}; it was left as it is, `course rescue` repairs it")
        write_atomic(backup / file, copy.data)
        if content(target) == copy.data:
            write_notebook(target, result.notebook)
            now[copy.name] = result.notebook
            unknown = "" if copy.base else "the edition it came from is not known, so every difference counts as yours"
            return Updated(file, UPDATED, result, backup / file, unknown)
        copy = read_copy(desk, copy)
    return Updated(file, "failed", note="it is being saved all the time; close it in JupyterLab and try again")


def _validate_merge(merged: Notebook, mine: Notebook) -> None:
    try:
        validate(merged)
    except DamagedNotebook:
        try:
            validate(mine)
        except DamagedNotebook:
            return  # some editors write what the schema does not allow; the merge did not make it worse
        raise


# -- exercises that moved: nothing here reads or writes a file ---------------------------------------------------------


def _stubs(exercise_id: str, *editions: Notebook | None) -> set[str]:
    cells = (cell for one in editions if one is not None for cell in one["cells"])
    return {cell["source"].strip() for cell in cells if exercise_of(cell) == exercise_id}


def _moved(
    copies: Mapping[str, Copy], latest: Callable[[str], str | None]
) -> tuple[dict[str, Moved], list[tuple[str, str]]]:
    """Return, by exercise, what must go to another notebook, and the answers to keep before that begins.

    `latest` gives the latest kept answer to an exercise.
    """
    homes = {name: copy.name for copy in copies.values() if copy.course for name in answers_in(copy.course)}
    there = {
        (exercise_id, copy.name): text_of(copy.mine, numbers)
        for copy in copies.values()
        if copy.mine is not None
        for exercise_id, numbers in answers_in(copy.mine).items()
    }
    found: dict[str, Moved] = {}
    written = []
    for (exercise_id, name), text in there.items():
        home, copy = homes.get(exercise_id, name), copies[name]
        if home == name:
            continue
        was, arrived = found.get(exercise_id, Moved(home)), there.get((exercise_id, home))
        notes = dict(was.notes)
        if copy.base is not None and copy.listed and exercise_id in answers_in(copy.base):
            notes[name] = _notes_below(exercise_id, copy)
        if text.strip() in _stubs(exercise_id, copies[home].course, copy.base):
            if notes.get(name):
                found[exercise_id] = Moved(home, was.answer, notes)
        elif arrived is None:
            written.append((exercise_id, text))
            found[exercise_id] = Moved(home, text, notes)
        elif text.strip() in arrived:  # an interrupted update
            found[exercise_id] = Moved(home, text, notes)
    # An update that was interrupted between two notebooks that exchange exercises leaves an answer in neither.
    for name in homes.keys() - {name for name, _ in there}:
        base = copies[homes[name]].base  # with the exercise in it, the learner took it out
        if base is not None and name not in answers_in(base) and (kept := latest(name)) is not None:
            found[name] = Moved(homes[name], kept)
    return found, written


def _notes_below(exercise_id: str, copy: Copy) -> list[Cell]:
    """The learner's own cells that stand directly below an exercise: they belong to it."""
    courses = {cell["id"] for one in (copy.base, copy.course) if one is not None for cell in one["cells"]}
    below, found = False, []
    for cell in copy.mine["cells"] if copy.mine else ():
        own = cell["id"] not in courses and exercise_of(cell) is None and "course" not in cell["metadata"]
        below = exercise_of(cell) == exercise_id or (below and own)
        if below and own:
            found.append(cell)
    return found


def _arrive(result: merging.Merge, name: str, moved: Mapping[str, Moved]) -> None:
    """Put what moved here beside its exercise."""
    cells: list[Cell] = []
    taken = {cell["id"] for cell in result.notebook["cells"]}
    for cell in result.notebook["cells"]:
        cells.append(cell)
        exercise_id = exercise_of(cell) or ""
        one = moved.get(exercise_id)
        if one is None or one.home != name:
            continue
        if one.answer and one.answer.strip() not in cell["source"]:
            cell["source"] = with_check(one.answer, cell["source"], exercise_id)
            result.events.append((cell["id"], "moved here, with your answer"))
        for note in (note for notes in one.notes.values() for note in notes if not _has(result.notebook, note)):
            new_id = fresh_id(note["source"], taken) if note["id"] in taken else note["id"]
            taken.add(new_id)
            cells.append({**note, "id": new_id})
            result.events.append((new_id, f"yours ({merging.beginning(note)}): came here with the exercise above it"))
    result.notebook["cells"] = cells


def _leave(result: merging.Merge, name: str, moved: Mapping[str, Moved], now: Mapping[str, Notebook | None]) -> bool:
    """Take out what has arrived elsewhere; whether there was something. `now` are the learner's notebooks."""
    gone = {cell["id"]: event for cell in result.notebook["cells"] if (event := _gone(cell, name, moved, now))}
    result.notebook["cells"] = [cell for cell in result.notebook["cells"] if cell["id"] not in gone]
    result.events = [*(event for event in result.events if event[0] not in gone), *gone.items()]
    return bool(gone)


def _gone(cell: Cell, name: str, moved: Mapping[str, Moved], now: Mapping[str, Notebook | None]) -> str | None:
    """Say where a cell went, if it belongs to an exercise that left this notebook and has arrived there."""
    exercise_id, text = exercise_of(cell), cell["source"].strip()
    if exercise_id is not None:
        one = moved.get(exercise_id)
        if one is None or name not in one.notes or text not in one.answer:
            return None
        there = now.get(one.home) or {"cells": ()}
        inside = any(exercise_of(other) == exercise_id and text in other["source"] for other in there["cells"])
        return f"moved to {one.home}, and your answer with it" if inside else None
    for one in moved.values():
        mine = [(note["id"], note["source"]) for note in one.notes.get(name, ())]
        if (cell["id"], cell["source"]) in mine and _has(now.get(one.home), cell):
            return f"yours ({merging.beginning(cell)}): moved to {one.home}, with the exercise above it"
    return None


def _has(notebook: Notebook | None, note: Cell) -> bool:
    """Whether a notebook has a cell with this text."""
    wanted = (note["cell_type"], note["source"])
    return notebook is not None and wanted in [(cell["cell_type"], cell["source"]) for cell in notebook["cells"]]


def _say_where(reports: Mapping[str, Updated], copies: Mapping[str, Copy]) -> None:
    """Where the learner changed a cell that the course has in another notebook now, name that notebook."""
    now: dict[str, list[str]] = {}
    for name, copy in copies.items():
        for cell in copy.course["cells"] if copy.course else ():
            now.setdefault(cell["id"], []).append(name)
    for report in reports.values():
        events = report.merge.events if report.merge else []
        for number, (cell_id, event) in enumerate(events):
            if event == merging.KEPT_REMOVED and len(now.get(cell_id, ())) == 1:
                events[number] = (cell_id, merging.KEPT_MOVED.format(home=now[cell_id][0]))
