"""The learner's copies: making them, the editions that they came from, their backups."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from course_lib import files
from coursework.desk.code import followed
from coursework.desk.finding import course_notebooks, name_in, notebooks
from coursework.desk.notebooks import (
    DamagedNotebook,
    Notebook,
    edition_of,
    parse_notebook,
    read_notebook,
    stamp_of,
    stamped,
    strip,
    write_notebook,
)
from coursework.desk.store import Desk, DeskError, content, reason
from coursework.desk.tutor import keep_contract


@dataclass
class Started:
    """What `create` did: notebooks by outcome, and problems as lines."""

    desk: Desk
    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def create(folder: Path) -> Started:
    """Make `folder` a desk and add every notebook that it lacks; nothing that exists is changed.

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
            for path in notebooks(source):
                _create_copy(report, path, name_in(source, path))
            if trouble := keep_contract(desk):
                report.problems.append(trouble)
    except OSError as problem:
        raise DeskError(f"Your folder {folder} could not be written: {reason(problem)}.") from problem
    return report


def _create_copy(report: Started, path: Path, name: str) -> None:
    target = report.desk.folder / f"{name}.ipynb"
    try:
        notebook = read_notebook(path)
    except DamagedNotebook as problem:
        report.problems.append(f"The course's {problem}; restore it with `git checkout -- notebooks/{name}.ipynb`.")
        return
    edition = edition_of(notebook)
    if target.exists():
        try:
            current = stamp_of(read_notebook(target)) == edition
            (report.present if current else report.older).append(f"{name}.ipynb")
        except (DamagedNotebook, OSError) as problem:
            report.problems.append(f"Your {_told(problem, target)}; `course rescue` repairs it.")
        return
    known = bool(bases(report.desk, name))
    keep_base(report.desk, name, notebook, edition)
    write_notebook(target, stamped(notebook, edition))
    (report.replaced if known else report.added).append(f"{name}.ipynb")


def _told(problem: DamagedNotebook | OSError, path: Path) -> str:
    return str(problem) if isinstance(problem, DamagedNotebook) else f"{path.name} cannot be read: {reason(problem)}"


def left_over(desk: Desk) -> list[str]:
    """Return the names of the learner's copies of notebooks that the course no longer has; what they hold is kept."""
    source = course_notebooks()
    course = {name_in(source, path) for path in notebooks(source)}
    mine = (name_in(desk.folder, path) for path in notebooks(desk.folder))
    return [name for name in mine if name not in course and bases(desk, name)]


# -- reading -----------------------------------------------------------------------------------------------------------


@dataclass
class Copy:
    """One notebook as an update finds it: what the course has, what the learner has, and the edition that came from.

    `listed` says whether the course has it; `course` is None where that cannot be read. `mine` and `base` name what
    moved by its present name, and `followed` holds the texts of the learner's cells that this changed.
    """

    name: str
    listed: bool
    course: Notebook | None = None
    edition: str = ""
    data: bytes = b""
    mine: Notebook | None = None
    base: Notebook | None = None
    followed: frozenset[str] = frozenset()
    problem: str = ""


def read_copies(desk: Desk, source: Path) -> dict[str, Copy]:
    """Read the course's notebooks and the learner's, also those that the course no longer has, by name."""
    found = {}
    for path in notebooks(source):
        copy = found[name_in(source, path)] = Copy(name_in(source, path), listed=True)
        try:
            copy.course = strip(read_notebook(path))
            copy.edition = edition_of(copy.course)
        except DamagedNotebook as problem:
            copy.problem = f"the course's {problem}; your copy was left as it is"
    for path in notebooks(desk.folder):
        found.setdefault(name_in(desk.folder, path), Copy(name_in(desk.folder, path), listed=False))
    return {name: read_copy(desk, copy) for name, copy in found.items()}


def read_copy(desk: Desk, copy: Copy) -> Copy:
    """Read the learner's side of it, again if it was read before."""
    path = desk.folder / f"{copy.name}.ipynb"
    try:
        data = content(path)
        raw = parse_notebook(data, path.name)
    except FileNotFoundError:
        return replace(copy, data=b"", mine=None, base=None)
    except OSError as problem:
        return replace(copy, mine=None, problem=copy.problem or f"your {path.name} cannot be read: {reason(problem)}")
    except DamagedNotebook as problem:
        said = f"your {problem}; it was left as it is, `course rescue` repairs it"
        return replace(copy, mine=None, problem=copy.problem or said)
    mine, base = followed(raw), base_for(desk, copy.name, raw)
    changed = {new["source"] for new, old in zip(mine["cells"], raw["cells"], strict=True) if new != old}
    return replace(copy, data=data, mine=mine, base=base and followed(base), followed=frozenset(changed))


# -- base copies and backups -------------------------------------------------------------------------------------------


def bases(desk: Desk, name: str) -> list[Path]:
    """Return the base copies kept for one notebook, oldest first."""
    return sorted((desk.private / "base").glob(f"{name}-*.ipynb"), key=lambda path: (path.stat().st_mtime, path.name))


def keep_base(desk: Desk, name: str, notebook: Notebook, edition: str) -> None:
    """Keep what the course wrote in this edition, unless it is kept already and undamaged."""
    path = desk.private / "base" / f"{name}-{edition}.ipynb"
    if _read_base(path) is None:
        write_notebook(path, strip(notebook))


def base_for(desk: Desk, name: str, mine: Notebook) -> Notebook | None:
    """Return the edition that a copy came from, or None if it is not kept here.

    Where an editor dropped the stamp, that is the kept edition whose texts are most like the copy's.
    """
    edition = stamp_of(mine)
    if edition is not None:
        return _read_base(desk.private / "base" / f"{name}-{edition}.ipynb")
    texts = {cell["source"] for cell in mine["cells"]}
    others = [notebook for notebook in map(_read_base, bases(desk, name)) if notebook is not None]
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
    """Remove temporary files of killed processes; the learner's own folders are not looked into."""
    ours = [path for root in (desk.private, desk.answers) for path in (root, *root.rglob("*"))]
    for folder in (*ours, desk.folder, desk.folder / "labs"):
        if folder.is_dir():
            files.sweep(folder)
