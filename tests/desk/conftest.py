import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from desk_simulation import Course, notebook_of

from course_lib.desk import copies
from course_lib.desk.store import Desk


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests save answers, also where CI is set."""
    for name in ("CI", "COURSE_DESK", "COURSE_NOTEBOOKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture()
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two chapters, called as a learner might call it."""
    folder = tmp_path / "mon école ü" / "notebooks"
    folder.mkdir(parents=True)
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(folder))
    for number, name in ((1, "01_attention"), (2, "02_heads")):
        save(folder / f"{name}.ipynb", Course(random.Random(number)).first())
    return folder


@pytest.fixture()
def desk(course: Path) -> Desk:
    return copies.create(course.parent / "my").desk


def save(path: Path, notebook: dict[str, Any]) -> None:
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture()
def edit() -> Callable[[Path, str, str], None]:
    """Replace one cell's source in a file."""

    def change(path: Path, cell_id: str, source: str) -> None:
        notebook = load(path)
        next(cell for cell in notebook["cells"] if cell["id"] == cell_id)["source"] = source
        save(path, notebook)

    return change


__all__ = ["load", "notebook_of", "save"]
