"""Notebook files as plain dictionaries: reading, cleaning, identity of cells and editions.

Only JSON is used here: importing nbformat takes more than a second, because of the address grammar its schema checker
loads, so that is left to `validate`, which only an update that changed something calls.
"""

import copy
import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from course_lib.files import write_atomic
from course_lib.reading import Unreadable, one_line, parse_json
from coursework.desk.store import content

Notebook = dict[str, Any]
Cell = dict[str, Any]

_CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_VOLATILE_CELL = ("execution", "ExecuteTime")  # clocks that editors write
_VOLATILE_NOTEBOOK = ("widgets", "course")


class DamagedNotebook(Unreadable):
    """A file is not a readable notebook; the message says which and why, in one line."""

    def __init__(self, name: str, got: str) -> None:
        super().__init__(name, "a notebook", got)


def read_notebook(path: str | os.PathLike[str]) -> Notebook:
    """Read a notebook; every cell has a text `source`, a metadata dictionary and a unique id afterwards.

    Raises DamagedNotebook if the file is not one, OSError if it cannot be read.
    """
    return parse_notebook(content(Path(path)), Path(path).name)


def parse_notebook(data: bytes, name: str) -> Notebook:
    """Like `read_notebook`, from the bytes of a file called `name`."""
    try:
        notebook = parse_json(data, name, object)
    except Unreadable as problem:
        raise DamagedNotebook(name, problem.got) from None
    if isinstance(notebook, dict) and isinstance(notebook.get("worksheets"), list):
        notebook = _from_old_format(notebook, name)
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise DamagedNotebook(name, "no list of cells")
    notebook["metadata"] = notebook["metadata"] if isinstance(notebook.get("metadata"), dict) else {}
    for number, cell in enumerate(notebook["cells"], start=1):
        if not isinstance(cell, dict) or cell.get("cell_type") not in ("code", "markdown", "raw"):
            raise DamagedNotebook(name, f"something else as cell {number}")
        source = cell.get("source", "")
        cell["source"] = "".join(map(str, source)) if isinstance(source, list) else str(source)
        cell["metadata"] = cell["metadata"] if isinstance(cell.get("metadata"), dict) else {}
        if cell["cell_type"] == "code":
            cell["outputs"] = cell["outputs"] if isinstance(cell.get("outputs"), list) else []
            cell.setdefault("execution_count", None)
    notebook["nbformat"] = 4
    minor = notebook.get("nbformat_minor")
    notebook["nbformat_minor"] = minor if type(minor) is int and minor > 5 else 5
    give_ids(notebook["cells"])
    return notebook


def _from_old_format(notebook: Notebook, name: str) -> Notebook:
    import nbformat

    try:
        return json.loads(nbformat.writes(nbformat.convert(nbformat.from_dict(notebook), 4)))
    except Exception as problem:
        raise DamagedNotebook(name, f"an old format that cannot be read ({one_line(problem)})") from None


def give_ids(cells: Iterable[Cell]) -> None:
    """Give every cell a valid unique id, in place: the first holder of an id keeps it."""
    taken: set[str] = set()
    for cell in cells:
        known = cell.get("id") or cell["metadata"].get("id")  # some editors keep it in the metadata
        if not isinstance(known, str) or not _CELL_ID.match(known) or known in taken:
            known = fresh_id(cell["source"], taken)
        cell["id"] = known
        taken.add(known)


def fresh_id(text: str, taken: Iterable[str]) -> str:
    """Return an id that is not in `taken`; the same text gives the same id, so that a repeated merge repeats it."""
    number = 0
    while (new := "cell-" + digest(f"{number}:{text}", 10)) in taken:
        number += 1
    return new


def dump_notebook(notebook: Notebook) -> str:
    """Return the file's text, laid out as Jupyter does so that its next save changes nothing else."""
    document = dict(notebook)
    document["cells"] = [{**cell, "source": cell["source"].splitlines(keepends=True)} for cell in notebook["cells"]]
    return json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def write_notebook(path: Path, notebook: Notebook) -> None:
    """Write the notebook in one step; OSError leaves the old file as it was."""
    write_atomic(path, dump_notebook(notebook).encode("utf-8", "backslashreplace"))


def validate(notebook: Notebook) -> None:
    """Raise DamagedNotebook if Jupyter would not accept this notebook."""
    import nbformat

    try:
        nbformat.validate(nbformat.from_dict(copy.deepcopy(notebook)))
    except Exception as problem:  # its checker stumbles over some of what it should refuse
        first = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise DamagedNotebook("the merged notebook", f"one that Jupyter refuses ({first})") from None


def strip(notebook: Notebook) -> Notebook:
    """Return a copy without outputs, counters, widget state and clocks."""
    clean = copy.deepcopy(notebook)
    for key in _VOLATILE_NOTEBOOK:
        clean["metadata"].pop(key, None)
    for cell in clean["cells"]:
        for key in _VOLATILE_CELL:
            cell["metadata"].pop(key, None)
        if cell["cell_type"] == "code":
            cell["outputs"] = []
            cell["execution_count"] = None
    return clean


def edition_of(notebook: Notebook) -> str:
    """Return a short hash of what the course wrote: it changes with any text, order or metadata, not with outputs."""
    return digest(dump_notebook(strip(notebook)), 12)


def stamped(notebook: Notebook, edition: str) -> Notebook:
    """Return the stripped copy that a learner gets, saying which edition it came from.

    The stamp lies in the notebook itself, so that a copy put back by hand is still merged from its own edition.
    """
    clean = strip(notebook)
    clean["metadata"]["course"] = {"edition": edition}
    return clean


def stamp_of(notebook: Notebook) -> str | None:
    """Return the edition that a learner's copy says it came from."""
    stamp = notebook["metadata"].get("course")
    edition = stamp.get("edition") if isinstance(stamp, dict) else None
    return edition if isinstance(edition, str) and re.fullmatch(r"[0-9a-f]{6,64}", edition) else None


def exercise_of(cell: Cell) -> str | None:
    """Return the id of the exercise that a code cell answers, or None."""
    name = cell["metadata"].get("exercise")
    return name if cell["cell_type"] == "code" and isinstance(name, str) else None


def answers_in(notebook: Notebook) -> dict[str, list[int]]:
    """Return by exercise the numbers of the cells that answer it: several if the learner split one."""
    found: dict[str, list[int]] = {}
    for number, cell in enumerate(notebook["cells"]):
        if (exercise_id := exercise_of(cell)) is not None:
            found.setdefault(exercise_id, []).append(number)
    for exercise_id, numbers in found.items():
        # A copied cell beside the answer is no part of it.
        whole = [number for number in numbers if is_whole(notebook["cells"][number], exercise_id)]
        found[exercise_id] = whole[:1] or numbers
    return found


def text_of(notebook: Notebook, numbers: Iterable[int]) -> str:
    """Return the text of some of its cells."""
    return "\n\n".join(notebook["cells"][number]["source"] for number in numbers)


def is_whole(cell: Cell, exercise_id: str) -> bool:
    """Whether a cell holds a definition or value and the call of its check: an answer by itself."""
    text = cell["source"]
    return f"ex.{exercise_id}." in text and ("def " in text or "class " in text or "answer" in text)


def with_check(answer: str, blank: str, exercise_id: str) -> str:
    """Return a whole cell: the answer and, if it lacks it, the line of the stub that checks it."""
    call = f"ex.{exercise_id}."
    if call in answer:
        return answer.rstrip()
    lines = blank.rstrip().split("\n")
    first = next((n for n, line in enumerate(lines) if call in line), None)
    return answer.rstrip() if first is None else answer.rstrip() + "\n\n\n" + "\n".join(lines[first:])


def headings(cells: Iterable[Cell]) -> tuple[str, str]:
    """Return the title and the last heading of a section above the end of these cells; "" where there is none."""
    text = "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    found = re.findall(r"^(#{1,3}) +(.+?) *$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.M)
    titles = [heading for level, heading in found if level == "#"]
    sections = [heading for level, heading in found if level != "#" and not heading.startswith("Exercise:")]
    return (titles or [""])[0], (sections or [""])[-1]


def digest(text: str, length: int) -> str:
    """Return the first `length` hexadecimal digits of the SHA-256 of `text`."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:length]
