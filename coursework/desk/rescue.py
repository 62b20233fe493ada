"""Bring work back: edits made in `notebooks/` by mistake, damaged notebooks of the desk, answers from the history."""

import contextlib
import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.files import write_atomic
from course_lib.reading import one_line
from coursework.desk import answers
from coursework.desk.code import followed
from coursework.desk.copies import base_for, bases, keep_base, new_backup, sweep
from coursework.desk.finding import course_notebooks, name_in, notebooks
from coursework.desk.merge import Wording, merge
from coursework.desk.notebooks import (
    Cell,
    DamagedNotebook,
    Notebook,
    edition_of,
    exercise_of,
    give_ids,
    parse_notebook,
    read_notebook,
    stamp_of,
    stamped,
    strip,
    write_notebook,
)
from coursework.desk.store import Desk, DeskError, NoFile, content, reason


@dataclass
class Rescued:
    """What a rescue did, as lines, and which tracked files may be put back to what the course wrote."""

    lines: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    restorable: list[Path] = field(default_factory=list)
    filled: list[str] = field(default_factory=list)


def rescue(desk: Desk) -> Rescued:
    """Repair the desk's notebooks, copy work out of the course's own notebooks, and put kept answers back.

    Everything replaced is backed up first; running it again changes nothing. DeskError if nothing can be written.
    """
    report = Rescued()
    try:
        with desk.lock():
            sweep(desk)
            backup = new_backup(desk, "rescue")
            for path in notebooks(desk.folder):
                with _goes_on(report, path.name):
                    _repair(desk, path, backup, report)
            _collect(desk, backup, report)
            with _goes_on(report, "Your kept answers"):
                report.filled = answers.fill(desk)
    except OSError as problem:
        raise DeskError(f"The rescue stopped: {reason(problem)}. Nothing was lost; run it again.") from problem
    return report


@contextlib.contextmanager
def _goes_on(report: Rescued, what: str) -> Iterator[None]:
    """Report whatever one file makes fail, and go on with the others; a disk that cannot be written stops it all."""
    try:
        yield
    except OSError as problem:
        if not isinstance(problem, FileNotFoundError | IsADirectoryError | PermissionError | NoFile):
            raise
        report.problems.append(f"{what}: {reason(problem)}; it was left as it is.")
    except Exception as problem:
        said = one_line(problem)
        report.problems.append(f"{what}: left as it is, the rescue stumbled over it ({type(problem).__name__}: {said})")


# -- damaged notebooks of the desk -------------------------------------------------------------------------------------


def _repair(desk: Desk, path: Path, backup: Path, report: Rescued) -> None:
    """Rebuild an unreadable notebook from what can be read of it, Jupyter's checkpoint and the latest backup."""
    try:
        read_notebook(path)
        return
    except OSError:
        raise
    except Exception as problem:  # also where the reader itself stumbles: what follows does without it
        damage = str(problem) if isinstance(problem, DamagedNotebook) else f"{path.name}: {one_line(problem)}"
    data, known_as = content(path), name_in(desk.folder, path)
    parts: list[tuple[str, Notebook | None]] = [("the damaged file", salvage(data))]
    checkpoint = path.parent / ".ipynb_checkpoints" / f"{path.stem}-checkpoint.ipynb"
    older = sorted((desk.private / "backup").glob(f"*/{known_as}.ipynb"), reverse=True)
    for candidate in (checkpoint, *older):
        try:
            parts.append((candidate.parent.name, read_notebook(candidate)))
        except (OSError, DamagedNotebook):
            continue
        if candidate in older:
            break  # the newest readable backup is enough
    base = _latest_base(desk, known_as, [part for _, part in parts if part])
    result: Notebook | None = None
    sources: list[str] = []
    for name, part in parts:
        if part is None:
            continue
        sources.append(name)
        if result is None:
            result = stamped(base, edition_of(base)) if base else {**part, "cells": []}
        wording = Wording(f"An older copy ({name}) has another text here.", "This is that text:")
        result = merge(base, result, part, wording=wording, deletions=False).notebook
    if result is None and base is not None:
        result, sources = stamped(base, edition_of(base)), ["a fresh copy"]
    write_atomic(backup / f"{known_as}.damaged.ipynb", data)
    if result is None:
        report.problems.append(f"{damage}; nothing to rebuild it from. It is kept in {backup}.")
        return
    write_notebook(path, result)
    report.lines.append(f"{damage}. It was rebuilt from {', '.join(sources)}; the damaged file is kept in {backup}.")


def _latest_base(desk: Desk, name: str, parts: list[Notebook]) -> Notebook | None:
    for part in parts:
        if stamp_of(part) and (base := base_for(desk, name, part)) is not None:
            return base
    if parts and (base := base_for(desk, name, parts[0])) is not None:
        return base
    try:
        fresh = read_notebook(bases(desk, name)[-1])
    except (IndexError, OSError, DamagedNotebook):
        try:
            fresh = read_notebook(course_notebooks() / f"{name}.ipynb")
        except (OSError, DamagedNotebook, DeskError):
            return None
    keep_base(desk, name, fresh, edition_of(fresh))
    return strip(fresh)


_CELL = re.compile(r'\{\s*"(?:attachments|cell_type)"\s*:')  # Jupyter sorts the keys: one of these comes first
_KIND = re.compile(r'"cell_type"\s*:\s*"(code|markdown|raw)"')
_METADATA = re.compile(r'"metadata"\s*:')
_TEXT = r'"(?:[^"\\]|\\.)*"'
_SOURCE = re.compile(rf'"source"\s*:\s*(\[\s*(?:{_TEXT}\s*,\s*)*(?:{_TEXT})?\s*\]|{_TEXT})', re.DOTALL)
_STRING = re.compile(_TEXT, re.DOTALL)


def salvage(data: bytes) -> Notebook | None:
    """Return a notebook of the cells of a damaged file whose text is whole, or None if there is none.

    It looks for cells and for their texts as they are written, and needs no file that can be parsed.
    """
    text = data.decode("utf-8-sig", errors="ignore")
    starts = [found.start() for found in _CELL.finditer(text)]
    cells = [_cell(text[start:end]) for start, end in itertools.pairwise([*starts, len(text)])]
    whole = [cell for cell in cells if cell is not None]
    if not whole:
        return None
    give_ids(whole)
    return {"cells": whole, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def _cell(text: str) -> Cell | None:
    """Return the cell at the start of a text, if need be without its outputs; None if its source is not whole."""
    whole = _decoded(text)
    if isinstance(whole, dict) and whole.get("cell_type") in ("code", "markdown", "raw"):
        document = json.dumps({"cells": [whole]})
        with contextlib.suppress(DamagedNotebook):
            return parse_notebook(document.encode(), "the damaged file")["cells"][0]
    kind, source = _KIND.search(text), _SOURCE.search(text)
    if kind is None or source is None:
        return None
    cell: Cell = {"cell_type": kind[1], "metadata": {}, "source": "".join(map(_unquoted, _STRING.findall(source[1])))}
    outside = text[: source.start()] + text[source.end() :]
    if (found := _METADATA.search(outside)) and isinstance(metadata := _decoded(outside[found.end() :]), dict):
        cell["metadata"] = metadata
    for place, key in ((cell, "id"), (cell["metadata"], "exercise")):
        if found := re.search(rf'"{key}"\s*:\s*"([\w-]{{1,64}})"', outside):
            place[key] = found[1]
    return {**cell, "outputs": [], "execution_count": None} if kind[1] == "code" else cell


def _decoded(text: str) -> Any:
    """Return the JSON at the start of a text, or None."""
    try:
        return json.JSONDecoder().raw_decode(text.lstrip())[0]
    except (ValueError, RecursionError):
        return None


def _unquoted(text: str) -> str:
    """Return what a JSON string stands for, or its characters where an escape in it is damaged."""
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return text[1:-1]


# -- work done in the course's own notebooks ---------------------------------------------------------------------------


def _collect(desk: Desk, backup: Path, report: Rescued) -> None:
    try:
        folder = course_notebooks()
    except DeskError as problem:
        report.problems.append(f"Edits of the course's own notebooks were not looked for: {problem}")
        return
    revision, remark = _base_revision(folder)
    if remark:
        report.remarks.append(remark)
    for path in notebooks(folder):
        with _goes_on(report, f"notebooks/{path.name}"):
            try:
                _collect_one(desk, path, name_in(folder, path), revision, backup, report)
            except DamagedNotebook as damage:
                report.problems.append(f"notebooks/{damage}; what is readable of it was not copied.")
    for path in sorted({*folder.glob("*.ipynb"), *folder.glob("labs/*.ipynb")} - set(notebooks(folder))):
        _copy_stray(desk, path, name_in(folder, path), report)


def _collect_one(desk: Desk, path: Path, name: str, revision: str | None, backup: Path, report: Rescued) -> None:
    """Merge the learner's edits of one tracked notebook into the desk's copy."""
    data = content(path)
    base, theirs, differs = _versions(desk, path, name, data, revision)
    if differs:
        report.restorable.append(path)
    if base is None:
        report.problems.append(f"notebooks/{name}.ipynb: no edition to compare it with, so no edits can be told apart.")
        return
    if _cells(base) == _cells(theirs) or (revision is None and not _edited_by_hand(base, theirs)):
        return
    _keep_answers(desk, base, theirs)
    target = desk.folder / f"{name}.ipynb"
    if target.exists():
        mine = read_notebook(target)
    else:
        keep_base(desk, name, base, edition_of(base))
        mine = stamped(base, edition_of(base))
    wording = Wording(f"Rescued from notebooks/{name}.ipynb, where you also wrote here.", "You wrote there:")
    mine = followed(mine)  # their editions may differ in where things are
    result = merge(followed(base), mine, followed(theirs), wording=wording, deletions=False)
    if target.exists() and _cells(result.notebook) == _cells(mine):
        report.lines.append(f"notebooks/{name}.ipynb: your edits are already in your copy.")
        return
    write_atomic(backup / f"{name}.notebooks.ipynb", data)
    if target.exists():
        write_atomic(backup / f"{name}.ipynb", content(target))
    write_notebook(target, result.notebook)
    report.lines.append(f"notebooks/{name}.ipynb: {len(result.events)} edited or added cells copied into {target}.")


def _versions(
    desk: Desk, path: Path, name: str, data: bytes, revision: str | None
) -> tuple[Notebook | None, Notebook, bool]:
    """Return what the course wrote, what stands in the file now, and whether git sees the file as changed.

    Raises DamagedNotebook if nothing of the file can be read.
    """
    at_head = git_file(path, "HEAD") if revision else None
    base_data = (git_file(path, revision) or at_head) if revision else None
    theirs: Notebook | None
    try:
        theirs = parse_notebook(data, path.name)
    except DamagedNotebook:
        ours = git_file(path, ":2") if revision else None  # in the middle of a pull that conflicted
        base_data = (git_file(path, ":1") if ours else None) or base_data
        theirs = parse_notebook(ours, path.name) if ours else salvage(data)
        if theirs is None:
            raise
    base = parse_notebook(base_data, path.name) if base_data else base_for(desk, name, theirs)
    return (strip(base) if base else None), strip(theirs), at_head is not None and data != at_head


def _keep_answers(desk: Desk, base: Notebook, theirs: Notebook) -> None:
    """Put the exercise cells that were edited there into the history."""
    before = {cell["id"]: cell["source"] for cell in base["cells"]}
    for cell in theirs["cells"]:
        name = exercise_of(cell)
        if name and name.isidentifier() and before.get(cell["id"]) != cell["source"]:
            answers.keep(desk, name, cell["source"])


def _cells(notebook: Notebook) -> list[tuple[str, str, str]]:
    return [(cell["id"], cell["cell_type"], cell["source"].rstrip()) for cell in notebook["cells"]]


def _edited_by_hand(base: Notebook, theirs: Notebook) -> bool:
    """Without git: another edition of the course is no edit of the learner's, an answered exercise or own cell is."""
    known = {cell["id"]: cell["source"] for cell in base["cells"]}
    answered = any(exercise_of(c) and known.get(c["id"], c["source"]) != c["source"] for c in theirs["cells"])
    return answered or any(cell["id"] not in known and not exercise_of(cell) for cell in theirs["cells"])


def _copy_stray(desk: Desk, path: Path, name: str, report: Rescued) -> None:
    """Copy a notebook that the learner made beside the chapters; it is left where it is."""
    data = content(path)
    target, number = desk.folder / f"{name}.ipynb", 1
    while target.exists():
        if content(target) == data:
            return
        number += 1
        target = desk.folder / f"{name}-{number}.ipynb"
    write_atomic(target, data)
    report.lines.append(f"notebooks/{name}.ipynb: copied to {target}.")


# -- git ---------------------------------------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _base_revision(folder: Path) -> tuple[str | None, str]:
    """Return the commit that the learner's edits started from, or None and why git cannot tell."""
    head = _git(folder, "rev-parse", "--verify", "HEAD")
    if head is None:
        return None, "git was not found: edits in notebooks/ are compared with the copies kept in your folder instead."
    if head.returncode:
        return None, f"{folder} is not in a git checkout: it is compared with the copies kept in your folder instead."
    tracked = _git(folder, "ls-files", "--", "*.ipynb")
    if tracked is None or not tracked.stdout.strip():
        return (
            None,
            f"git does not track the notebooks in {folder}: the copies kept in your folder are compared instead.",
        )
    upstream = _git(folder, "merge-base", "HEAD", "@{upstream}")  # edits may have been committed, too
    if upstream is not None and upstream.returncode == 0:
        return upstream.stdout.decode().strip(), ""
    return "HEAD", ""


def git_file(path: Path, revision: str) -> bytes | None:
    """Return a tracked file's content at a revision (`:1`, `:2` during a conflict), or None."""
    result = _git(path.parent, "show", f"{revision}:./{path.name}")
    return result.stdout if result is not None and result.returncode == 0 else None


def restore_tracked(desk: Desk, paths: list[Path]) -> Path:
    """Put tracked files back to the last commit, after backing them up; return the folder of the backups."""
    folder = course_notebooks()
    with desk.lock():
        backup = new_backup(desk, "restore")
        for path in paths:
            write_atomic(backup / path.relative_to(folder), content(path))
    result = _git(folder, "checkout", "HEAD", "--", *(str(path.relative_to(folder)) for path in paths))
    if result is None or result.returncode:
        why = result.stderr.decode(errors="replace").strip() if result else "git was not found"
        raise DeskError(f"git could not restore the tracked notebooks: {why}")
    return backup
