import random
from pathlib import Path

import pytest
from desk_simulation import Course
from desk_tools import save

from coursework.desk import copies
from coursework.desk.store import Desk


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests save answers, also where CI is set, and never use the desk of whoever runs them."""
    for name in ("CI", "COURSE_DESK", "COURSE_NOTEBOOKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The course's notebooks, in a folder named as a learner might name it."""
    folder = tmp_path / "mon école ü" / "notebooks"
    folder.mkdir(parents=True)
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(folder))
    for number, name in ((1, "01_attention"), (2, "02_heads")):
        save(folder / f"{name}.ipynb", Course(random.Random(number)).first())
    return folder


@pytest.fixture
def desk(course: Path) -> Desk:
    return copies.create(course.parent / "my").desk
