"""Imports of what the course moved follow in every cell and every kept answer; nothing else in them changes."""

from pathlib import Path

import pytest
from desk_simulation import course_cell, notebook_of
from desk_tools import load, save, snapshot, texts

from coursework.desk import merge, rescue, updates
from coursework.desk.code import follow, with_imports_of
from coursework.desk.notebooks import read_notebook
from coursework.desk.store import RIGHT, Desk

ONE = "01_attention.ipynb"

CELLS = {
    "from course_lib import exercises as ex": "from coursework import exercises as ex",
    "from course_lib import masks, exercises as ex  # both": (
        "from course_lib import masks\nfrom coursework import exercises as ex  # both"
    ),
    "from course_lib.viz import (  # why\n    palette,\n    show,  # this\n)": (
        "from coursework.pictures import (  # why\n    palette,\n    show,  # this\n)"
    ),
    "from course_lib import viz": "from coursework import pictures as viz",
    "import course_lib.viz.style as st; x=1": "import coursework.pictures.style as st; x=1",
    "def f( ):\n  from course_lib.data import (pad_batch,  # a\n     number_pairs)\n  return 'é'": (
        "def f( ):\n  # a\n  from course_lib.data import pad_batch\n  from coursework.corpora import number_pairs\n"
        "  return 'é'"
    ),
    "if ü: from course_lib import masks, exercises as ex; y  =  2": (
        "if ü: from course_lib import masks; from coursework import exercises as ex; y  =  2"
    ),
    "%%time\n!ls\nfrom course_lib.data.sentences import ENGLISH\nfoo?": (
        "%%time\n!ls\nfrom coursework.corpora.sentences import ENGLISH\nfoo?"
    ),
    "x = [\nfrom course_lib import exercises as ex\n  from course_lib.data import (pad_batch,\n  number_pairs)\n": (
        "x = [\nfrom coursework import exercises as ex\n"
        "  from course_lib.data import pad_batch\n  from coursework.corpora import number_pairs\n"
    ),
    "import course_lib.viz\ncourse_lib.viz.show( course_lib.masks)\n# course_lib.viz": (
        "import course_lib, coursework.pictures\ncoursework.pictures.show( course_lib.masks)\n# course_lib.viz"
    ),
    "from course_lib.exercises.small_tasks import reverse\r\nx = 1\r\n": (
        "from coursework.exercises.small_tasks import reverse\r\nx = 1\r\n"
    ),
}


@pytest.mark.parametrize("cell", CELLS)
def test_an_import_follows_and_the_rest_stays(cell):
    assert follow([cell]) == [CELLS[cell]]
    assert follow([CELLS[cell]]) == [CELLS[cell]]


@pytest.mark.parametrize(
    "cell",
    [
        "from course_lib import masks, testing\nfrom course_lib.data.bpe import split_words",
        'text = """\nfrom course_lib import exercises as ex\n"""  # from course_lib import viz',
        "course_lib.viz.show(1)",
        "from course_lib import (exercises",
        "course_lib = " + "(" * 3000,
        "from course_lib import viz \ud800",
    ],
)
def test_what_imports_nothing_that_moved_stays(cell):
    assert follow([cell]) == [cell]


def test_a_dotted_name_changes_in_all_cells_of_the_notebook():
    assert follow(["import course_lib.viz", "course_lib.viz.show(1)", "x = ( course_lib.viz.show"]) == [
        "import coursework.pictures",
        "coursework.pictures.show(1)",
        "x = ( coursework.pictures.show",
    ]


def test_what_the_course_imports_newly_comes_into_an_edited_cell():
    base, theirs = (
        "from coursework import exercises as ex\nx = 1",
        "import math\nfrom coursework import exercises as ex\n\nx = 1",
    )
    assert with_imports_of("import json\nfrom coursework import exercises as ex\nx = 2", base, theirs) == (
        "import json\nfrom coursework import exercises as ex\nimport math\nx = 2"
    )
    assert with_imports_of("x = 2", base, theirs) is None  # nowhere to put it
    assert with_imports_of("import json\nx = 2", base, theirs.replace("1", "3")) is None
    assert with_imports_of("import json\nx = 2", "import os; x = 1", "import math; x = 3") is None


# Through an update ----------------------------------------------------------------------------------------------------

OLD = """import torch
from course_lib import exercises as ex
from course_lib import masks
from course_lib.viz import show

x = 1"""
NEW = """import torch

from course_lib import masks
from coursework import exercises as ex
from coursework.pictures import show

x = 1"""
STUB = (
    "from course_lib.viz import show\n\n\ndef task(x):\n    raise NotImplementedError\n\n\ntask = ex.task.check(task)"
)


def edition(course: Path, *, new: bool) -> None:
    names = follow([STUB]) if new else [STUB]
    cells = [
        course_cell("code", "imports", NEW if new else OLD),
        course_cell("code", "task", names[0], exercise="task"),
    ]
    save(course / ONE, notebook_of(cells))


@pytest.fixture
def worked(course: Path, desk: Desk) -> Desk:
    """A desk of the edition before the move; each test edits it, publishes the next, and updates."""
    (desk.folder / ONE).unlink()
    edition(course, new=False)
    updates.update(desk)
    return desk


def updated(desk: Desk, course: Path) -> dict[str, str]:
    """Update; return what was said of each cell. A second update changes nothing."""
    edition(course, new=True)
    report = {one.name: one for one in updates.update(desk)}[ONE]
    content = snapshot(desk.folder)
    assert {one.outcome for one in updates.update(desk)} == {updates.UP_TO_DATE}
    assert snapshot(desk.folder) == content
    return dict(report.merge.events)


def rewrite(desk: Desk, number: int, old: str, new: str) -> None:
    notebook = load(desk.folder / ONE)
    source = "".join(notebook["cells"][number]["source"])
    assert old in source
    notebook["cells"][number]["source"] = source.replace(old, new)
    save(desk.folder / ONE, notebook)


def test_an_untouched_cell_follows(worked: Desk, course: Path) -> None:
    assert updated(worked, course) == {"imports": merge.FOLLOWED, "task": merge.IMPORTS}
    assert texts(worked.folder / ONE) == texts(course / ONE)


def test_an_edited_cell_keeps_its_edits_without_a_note(worked: Desk, course: Path) -> None:
    rewrite(worked, 0, "x = 1", "import json  # mine\nx  =  2")
    rewrite(worked, 1, "raise NotImplementedError", "return 2 * x")
    assert set(updated(worked, course).values()) == {merge.IMPORTS}
    now = texts(worked.folder / ONE)
    assert list(now) == ["imports", "task"]
    assert now["imports"] == follow([OLD])[0].replace("x = 1", "import json  # mine\nx  =  2")
    assert now["task"] == follow([STUB])[0].replace("raise NotImplementedError", "return 2 * x")


def test_a_cell_of_the_learners_own_follows(worked: Desk, course: Path) -> None:
    notebook = load(worked.folder / ONE)
    notebook["cells"].append(course_cell("code", "own", "from course_lib.viz import palette\npalette  # mine"))
    save(worked.folder / ONE, notebook)
    assert updated(worked, course)["own"] == merge.IMPORTS
    assert texts(worked.folder / ONE)["own"] == "from coursework.pictures import palette\npalette  # mine"


def test_kept_answers_follow_and_count_as_before(worked: Desk, course: Path) -> None:
    answer = STUB.replace("raise NotImplementedError", "return 2 * x")
    worked.save_answer("task", answer, RIGHT, "first")
    before = worked.progress()
    edition(course, new=True)
    reports = {one.name: one for one in updates.update(worked)}
    assert reports[updates.ANSWERS].outcome == updates.UPDATED
    assert worked.progress() == before
    assert worked.latest_answer("task").rstrip() == worked.history("task")[-1][1].rstrip() == follow([answer])[0]
    assert worked.history("task")[-1][0]["verdict"] == RIGHT
    (kept,) = (worked.private / "backup").rglob("history/task/0001.py")
    assert answer in kept.read_text()


def test_a_rescued_answer_follows(worked: Desk, course: Path) -> None:
    edition(course, new=True)
    updates.update(worked)
    answer = STUB.replace("raise NotImplementedError", "return 2 * x")
    worked.save_answer("task", answer, RIGHT, "first")
    assert "task" in rescue.rescue(worked).filled
    assert texts(worked.folder / ONE)["task"] == follow([answer])[0]
    read_notebook(worked.folder / ONE)
