"""A right answer in a worked copy of the notebooks is right at the terminal, too: whatever it uses is there."""

from pathlib import Path

import pytest
from desk_tools import load, save

from coursework.desk import copies, isolated
from coursework.desk.store import Desk
from coursework.exercises import registry
from coursework.exercises.engine.cells import solved_cell_source

CHAPTERS = [4, *(pytest.param(number, marks=pytest.mark.thorough) for number in (1, 2, 3, 5, 6, 7, 8))]
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A learner's copies of all notebooks, with the course's solution in each exercise's cell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_NOTEBOOKS", str(NOTEBOOKS))
        desk = copies.create(tmp_path_factory.mktemp("worked") / "my").desk
    for path in sorted({desk.folder / f"{name}.ipynb" for name in registry.places().values() if name}):
        notebook = load(path)
        for cell in notebook["cells"]:
            if "exercise" in cell["metadata"]:
                cell["source"] = solved_cell_source(registry.get(cell["metadata"]["exercise"]))
        save(path, notebook)
    return desk


def chapter(number: int) -> list[str]:
    return [name for name in registry.places() if registry.label(name) == f"{number:02}"]


@pytest.mark.parametrize("number", CHAPTERS)
def test_right_answers_are_right(worked: Desk, number: int) -> None:
    with isolated.pen(worked, None) as answering:
        said = {name: isolated.report(name, worked, None, answering) for name in chapter(number)}
    assert said
    wrong = {name: one["problem"] or one["text"] for name, one in said.items() if not one["right"]}
    assert not wrong
    assert not {name: one["printed"] for name, one in said.items() if "matplotlib" in one["printed"].lower()}
