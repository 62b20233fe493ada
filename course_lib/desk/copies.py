"""Create the desk and bring new editions into it: which notebooks there are, their base copies, backups, updates."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from course_lib.desk import merge as merging
from course_lib.desk.finding import chapters, course_notebooks
from course_lib.desk.notebooks import (
    DamagedNotebook,
    Notebook,
    edition_of,
    parse_notebook,
    read_notebook,
    stamp_of,
    stamped,
    strip,
    validate,
    write_notebook,
)
from course_lib.desk.store import Desk, DeskError, reason
from course_lib.files import write_atomic

UP_TO_DATE = "up to date"
UPDATED = "updated"
NEW = "new"
_LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp\Z")  # what write_atomic leaves when its process is killed


@dataclass
class Started:
    """What `create` did: chapter names by outcome, and problems as lines."""

    desk: Desk
    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def create(folder: Path) -> Started:
    """Make `folder` a desk and add every chapter that it lacks; nothing that exists is changed.

    It may be interrupted and run again at any moment. Raises DeskError with one clear line if it cannot be done.
    """
    source = course_notebooks()
    if folder.exists() and not folder.is_dir():
        raise DeskError(f"{folder} is a file; choose another folder with --folder.")
    desk = Desk(folder)
    try:
        desk.private.mkdir(parents=True, exist_ok=True)
        with desk.lock():
            sweep(desk)
            report = Started(desk)
            for path in chapters(source):
                _create_chapter(report, path)
    except OSError as problem:
        raise DeskError(f"The desk in {folder} could not be written: {reason(problem)}.") from problem
    return report


def _create_chapter(report: Started, path: Path) -> None:
    target = report.desk.folder / path.name
    try:
        notebook = read_notebook(path)
    except DamagedNotebook as problem:
        report.problems.append(f"The course's {problem}; restore it with `git checkout -- notebooks/{path.name}`.")
        return
    edition = edition_of(notebook)
    if target.exists():
        try:
            current = stamp_of(read_notebook(target)) == edition
            (report.present if current else report.older).append(path.name)
        except DamagedNotebook as problem:
            report.problems.append(f"Your {problem}; `course rescue` repairs it.")
        return
    known = bool(bases(report.desk, path.stem))
    keep_base(report.desk, path.stem, notebook, edition)
    write_notebook(target, stamped(notebook, edition))
    (report.replaced if known else report.added).append(path.name)


# -- base copies and backups -------------------------------------------------------------------------------------------


def bases(desk: Desk, stem: str) -> list[Path]:
    """Return the base copies kept for one chapter, oldest first."""
    return sorted((desk.private / "base").glob(f"{stem}-*.ipynb"), key=lambda path: (path.stat().st_mtime, path.name))


def keep_base(desk: Desk, stem: str, notebook: Notebook, edition: str) -> None:
    """Keep what the course wrote in this edition, unless it is kept already and undamaged."""
    path = desk.private / "base" / f"{stem}-{edition}.ipynb"
    if _read_base(path) is None:
        write_notebook(path, strip(notebook))


def base_for(desk: Desk, stem: str, mine: Notebook) -> Notebook | None:
    """Return the edition that a copy came from, or None if it is not kept here.

    Where an editor dropped the stamp, that is the kept edition whose texts are most like the copy's.
    """
    edition = stamp_of(mine)
    if edition is not None:
        return _read_base(desk.private / "base" / f"{stem}-{edition}.ipynb")
    texts = {cell["source"] for cell in mine["cells"]}
    others = [notebook for notebook in map(_read_base, bases(desk, stem)) if notebook is not None]
    # Any edition is safe as a base, because what equals the course's own text is not the learner's work.
    return max(others, key=lambda one: sum(cell["source"] in texts for cell in one["cells"]), default=None)


def _read_base(path: Path) -> Notebook | None:
    """Read a base copy; a damaged one (its text no longer gives the hash in its name) counts as missing."""
    try:
        notebook = read_notebook(path)
    except (OSError, DamagedNotebook):
        return None
    return notebook if path.stem.endswith("-" + edition_of(notebook)) else None


def new_backup(desk: Desk, why: str) -> Path:
    """Return a folder, not made yet, for backups of one command."""
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    folder, number = desk.private / "backup" / f"{stamp}-{why}", 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{stamp}-{why}-{number}")
    return folder


def sweep(desk: Desk) -> None:
    """Remove temporary files of killed processes; the lock must be held, so nobody is writing now."""
    for folder in (desk.folder, desk.private, desk.private / "base", desk.answers):
        if folder.is_dir():
            for path in folder.iterdir():
                if _LEFTOVER.match(path.name) and path.is_file():
                    path.unlink(missing_ok=True)


# -- new editions ------------------------------------------------------------------------------------------------------


@dataclass
class Updated:
    """What `update` did to one chapter."""

    name: str
    outcome: str
    merge: merging.Merge | None = None
    backup: Path | None = None
    note: str = ""


def update(desk: Desk) -> list[Updated]:
    """Merge the course's present edition into every chapter of the desk; a chapter with a problem is left as it is."""
    source = course_notebooks()
    reports: list[Updated] = []
    try:
        with desk.lock():
            sweep(desk)
            backup = new_backup(desk, "update")
            for path in chapters(source):
                reports.append(_update_chapter(desk, path, backup))
    except OSError as problem:
        done = ", ".join(report.name for report in reports) or "none"
        raise DeskError(
            f"The update stopped: {reason(problem)}. Chapters already updated: {done}; the others are as they were. "
            "Run `course update` again afterwards."
        ) from problem
    names = {path.name for path in chapters(source)}
    for path in chapters(desk.folder):
        if path.name not in names and bases(desk, path.stem):
            reports.append(Updated(path.name, "kept", note="no longer in the course; your copy was left as it is"))
    return reports


def _update_chapter(desk: Desk, path: Path, backup: Path) -> Updated:
    target = desk.folder / path.name
    try:
        theirs = read_notebook(path)
    except DamagedNotebook as problem:
        return Updated(path.name, "failed", note=f"the course's {problem}; your copy was left as it is")
    edition = edition_of(theirs)
    keep_base(desk, path.stem, theirs, edition)
    for _ in range(5):  # again if an editor saves the notebook meanwhile
        if not target.exists():
            write_notebook(target, stamped(theirs, edition))
            return Updated(path.name, NEW, note="`course rescue` puts saved answers into it")
        before = target.read_bytes()
        try:
            mine = parse_notebook(before, path.name)
            if stamp_of(mine) == edition:
                return Updated(path.name, UP_TO_DATE)
            base = base_for(desk, path.stem, mine)
            result = merging.merge(base, mine, strip(theirs))
            result.notebook["metadata"]["course"] = {"edition": edition}
            _validate_merge(result.notebook, mine)
        except DamagedNotebook as problem:
            return Updated(
                path.name, "failed", note=f"your {problem}; it was left as it is, `course rescue` repairs it"
            )
        write_atomic(backup / path.name, before)
        if target.read_bytes() == before:
            write_notebook(target, result.notebook)
            unknown = "" if base else "the edition it came from is not known, so every difference counts as yours"
            return Updated(path.name, UPDATED, result, backup / path.name, unknown)
    return Updated(path.name, "failed", note="it is being saved all the time; close it in JupyterLab and try again")


def _validate_merge(merged: Notebook, mine: Notebook) -> None:
    try:
        validate(merged)
    except DamagedNotebook:
        try:
            validate(mine)
        except DamagedNotebook:
            return  # some editors write what the schema does not allow; the merge did not make it worse
        raise
