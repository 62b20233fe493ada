"""The syllabus: every topic the course was asked to teach, and where it is taught; no place is made up."""

import ast
import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SYLLABUS = ROOT / "docs" / "syllabus.csv"
OPEN = "open"


def asked_for() -> list[str]:
    """The ids of all topics, by the five documents they come from."""
    counts = {"S0": (41, 2), "S1": (63, 2), "S2": (32, 2), "S3": (26, 2), "S4": (145, 3)}
    asked = [f"{source}-{i:0{digits}}" for source, (count, digits) in counts.items() for i in range(1, count + 1)]
    return asked + [f"X-{i:02}" for i in range(1, 11)]  # added after a second reading of the documents


def rows() -> list[dict[str, str]]:
    with SYLLABUS.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_every_topic_stands_in_the_syllabus_once_and_in_order():
    assert [row["id"] for row in rows()] == asked_for()


def test_every_topic_is_described_and_has_a_chapter():
    assert list(rows()[0]) == ["id", "topic", "chapter", "place"]
    for row in rows():
        assert row["chapter"] in set("012345678"), row
        assert 2 <= len(row["topic"].split()) <= 25, row


def test_every_place_exists():
    wrong = {row["id"]: problem for row in rows() if (problem := problem_of(row["place"]))}
    assert wrong == {}


def test_how_much_is_placed(note):
    placed = [row["chapter"] for row in rows() if row["place"] != OPEN]
    chapters = [row["chapter"] for row in rows()]
    each = ", ".join(f"{c}: {placed.count(c)} of {chapters.count(c)}" for c in sorted(set(chapters)))
    note(f"syllabus: {len(placed)} of {len(chapters)} topics have their place (chapter {each})")


def test_no_topic_of_a_shipped_chapter_is_open():
    """A chapter whose notebook exists teaches all that the syllabus gives it."""
    shipped = {str(int(path.name[:2])) for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    still = [row for row in rows() if row["chapter"] in shipped and row["place"] == OPEN]
    assert [row["id"] for row in still] == []


def problem_of(place: str, root: Path = ROOT) -> str:
    """Say what is wrong with a place (or several, apart by blanks); empty if nothing is."""
    if place == OPEN:
        return ""
    if not place.strip():
        return "no place"
    return "; ".join(filter(None, (_problem_of_one(one, root) for one in place.split())))


def _problem_of_one(place: str, root: Path) -> str:
    if match := re.fullmatch(r"(notebooks/(?:labs/)?\d\d_\w+\.ipynb)#([a-z0-9-]+)", place):
        return _cell_problem(root / match[1], match[2])
    if match := re.fullmatch(r"(course_lib/[\w/]+\.py):([\w.]+)", place):
        return "" if match[2] in _names(root / match[1]) else f"{place}: no such name"
    if match := re.fullmatch(r"(tests/[\w/]+\.py)::(test_\w+)", place):
        return "" if match[2] in _names(root / match[1]) else f"{place}: no such test"
    kinds = "notebooks/NN_name.ipynb#cell-id, course_lib/module.py:name, tests/file.py::test_name or open"
    return f"{place}: expected {kinds}"


def _cell_problem(notebook: Path, cell_id: str) -> str:
    if not notebook.exists():
        return f"{notebook.name}: no such notebook"
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    cell = next((cell for cell in cells if cell.get("id") == cell_id), None)
    if cell is None:
        return f"{notebook.name}#{cell_id}: no such cell"
    if cell["cell_type"] == "code" and cell["execution_count"] is None:
        return f"{notebook.name}#{cell_id}: not executed"
    return ""


def _names(module: Path) -> set[str]:
    """Return the functions, classes, methods and assigned names of a module, without importing it; empty if missing."""
    return set(_walk(ast.parse(module.read_text(encoding="utf-8")).body)) if module.exists() else set()


def _walk(statements: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + statement.name
            if isinstance(statement, ast.ClassDef):
                yield from _walk(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("notebooks/99_none.ipynb#title", "no such notebook"),
        ("notebooks/01_a.ipynb#none", "no such cell"),
        ("notebooks/01_a.ipynb#idle", "not executed"),
        ("course_lib/a.py:missing", "no such name"),
        ("course_lib/none.py:f", "no such name"),
        ("course_lib/a.py:C.missing", "no such name"),
        ("tests/test_a.py::test_missing", "no such test"),
        ("somewhere", "expected"),
        ("", "no place"),
        ("course_lib/a.py:f somewhere", "expected"),
    ],
)
def test_a_made_up_place_is_found(tmp_path, place, problem):
    _write_example(tmp_path)
    assert problem in problem_of(place, tmp_path)


@pytest.mark.parametrize(
    "place",
    [
        "open",
        "notebooks/01_a.ipynb#run",
        "notebooks/01_a.ipynb#prose",
        "course_lib/a.py:f",
        "course_lib/a.py:C.method course_lib/a.py:LIMIT",
        "tests/test_a.py::test_f",
    ],
)
def test_a_real_place_is_accepted(tmp_path, place):
    _write_example(tmp_path)
    assert problem_of(place, tmp_path) == ""


def _write_example(root: Path) -> None:
    cells = [
        {"id": "prose", "cell_type": "markdown"},
        {"id": "run", "cell_type": "code", "execution_count": 1},
        {"id": "idle", "cell_type": "code", "execution_count": None},
    ]
    for folder in ("notebooks", "course_lib", "tests"):
        (root / folder).mkdir()
    (root / "notebooks" / "01_a.ipynb").write_text(json.dumps({"cells": cells}))
    (root / "course_lib" / "a.py").write_text("LIMIT = 3\ndef f(): ...\nclass C:\n    def method(self): ...\n")
    (root / "tests" / "test_a.py").write_text("def test_f(): ...\n")
