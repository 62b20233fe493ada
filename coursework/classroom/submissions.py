"""Find the learners of a class in a folder, and their answers in their notebooks."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from coursework.desk.finding import is_desk
from coursework.desk.notebooks import DamagedNotebook, Notebook, exercise_of, is_whole, read_notebook
from coursework.desk.store import DeskError, reason
from coursework.exercises import registry
from coursework.exercises.engine import cells

# Downloads of all submissions: Moodle writes a folder (or the beginning of a file name) "Ada Lovelace_4711_assign…",
# Canvas files "lovelaceada_LATE_4711_815_01_attention.ipynb", with the ids of the person and of the submission.
_MOODLE = re.compile(r"(?P<name>.+)_(?P<id>\d+)_assignsubmission_(?:file|onlinetext)_?(?P<rest>.*)\Z")
_CANVAS = re.compile(r"(?P<name>[^_]+)_(?:LATE_)?(?P<id>\d+)_\d+_(?P<rest>.+\.ipynb)\Z")
_CALL = re.compile(r"\bex\.(\w+)\.(?:check|answer)\(")
_SKIPPED = ("answers", "__MACOSX", "node_modules")


@dataclass
class Learner:
    """Somebody who handed in: name, the number that Moodle or Canvas gave, and notebook files."""

    name: str
    identifier: str = ""
    files: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class Found:
    """The cells of one exercise in one notebook of a learner."""

    exercise: str
    path: Path
    notebook: Notebook
    numbers: list[int]

    @property
    def source(self) -> str:
        """The answer as it stands there."""
        return "\n\n".join(self.notebook["cells"][number]["source"] for number in self.numbers)


def learners(folder: Path) -> list[Learner]:
    """Return the learners of a class, by name.

    `folder` holds one folder or one notebook for each learner, or is what Moodle or Canvas gives as the download of all
    submissions, unpacked; or it is one learner's own, with the course's notebooks directly in it. Raises DeskError if
    it is no folder or nothing of that is in it.
    """
    if not folder.is_dir():
        raise DeskError(f"FOLDER must be a folder that holds one folder or notebook for each learner, got {folder}.")
    found: dict[tuple[str, str], Learner] = {}
    real = Path(os.path.realpath(folder))
    if _is_one(folder):
        one = found.setdefault((folder.resolve().name, ""), Learner(folder.resolve().name))
        _take(one, real, _notebooks(folder))
        return [one]
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")) or not (path.is_dir() or path.suffix in (".ipynb", ".zip")):
            continue
        match = _MOODLE.match(path.name) or (_CANVAS.match(path.name) if path.is_file() else None)
        name, number = (match["name"], match["id"]) if match else (path.stem if path.is_file() else path.name, "")
        one = found.setdefault((name, number), Learner(name, number))
        is_folder = path.is_dir() and not path.is_symlink()  # a link to one is somebody else's
        if path.suffix == ".zip":
            one.problems.append(f"{path.name} is not unpacked")
        else:
            _take(one, real / path.name, _notebooks(path) if is_folder else [path])
        if is_folder:
            one.problems += [f"{zipped.name} is not unpacked" for zipped in sorted(path.rglob("*.zip"))]
    if not found:
        raise DeskError(f"no learner in {folder}: expected one folder or one notebook for each.")
    return sorted(found.values(), key=lambda one: (one.name.casefold(), one.identifier))


def _is_one(folder: Path) -> bool:
    known = set(registry.places().values())
    return is_desk(folder) or any(path.stem in known for path in folder.glob("*.ipynb"))


def _take(learner: Learner, own: Path, found: Iterable[Path]) -> None:
    """Take the notebooks that lie in the learner's folder, or are the file, `own`; say why the others are not read."""
    for path in found:
        if not Path(os.path.realpath(path)).is_relative_to(own):
            learner.problems.append(f"{path.name} is a link out of the learner's folder, and is not read")
        elif path.is_file():
            learner.files.append(path)
        elif not path.is_dir():
            learner.problems.append(f"{path.name} is no file that can be read")


def _notebooks(folder: Path) -> list[Path]:
    """All notebooks below a folder, those of the course first; hidden folders, such as a desk's backups, are not."""
    known = set(registry.places().values())
    below = [path for path in folder.rglob("*.ipynb") if not _hidden(path.relative_to(folder))]
    return sorted(below, key=lambda path: (path.stem not in known, path.parent != folder, str(path)))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") or part in _SKIPPED for part in path.parts)


def read(path: Path) -> Notebook:
    """Return the notebook without outputs and pictures; DamagedNotebook says why it cannot be read."""
    try:
        notebook = read_notebook(path)
    except OSError as problem:
        raise DamagedNotebook(path.name, f"a file that cannot be read ({reason(problem)})") from None
    for cell in notebook["cells"]:
        cell.pop("attachments", None)
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    return notebook


def answers(path: Path, notebook: Notebook) -> Iterator[Found]:
    """Yield the exercises that a notebook holds cells of."""
    marked: dict[str, list[int]] = {}
    unmarked: dict[str, list[int]] = {}
    for number, cell in enumerate(notebook["cells"]):
        if (name := exercise_of(cell)) in registry.places():
            marked.setdefault(str(name), []).append(number)
        elif cell["cell_type"] == "code" and (match := _CALL.search(cell["source"])):  # an editor dropped the mark
            unmarked.setdefault(match[1], []).append(number)
    for name in registry.places():
        if numbers := marked.get(name) or unmarked.get(name):
            stub = cells.cell_source(registry.get(name)).strip()
            sources = {number: notebook["cells"][number]["source"].strip() for number in numbers}
            whole = [number for number in numbers if is_whole(notebook["cells"][number], name)]
            tried = [number for number in whole if sources[number] != stub]
            yield Found(name, path, notebook, tried[:1] or whole[:1] or numbers)


def is_called_like(file: str, notebook: str) -> bool:
    """Whether a file that cannot be read was, by its name, this notebook of the course."""
    return notebook.rpartition("/")[2] in file
