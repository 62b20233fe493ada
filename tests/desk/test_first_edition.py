"""Learners of earlier editions come to the present one: every answer, note, edit and guess is there afterwards."""

import copy
from pathlib import Path

import pytest
from desk_simulation import course_cell, notebook_of
from desk_tools import load, save, texts
from editions import NAMES, earlier
from histories import History, present_edition
from thorough import rounds

from coursework.desk import copies, updates
from coursework.desk.store import Desk
from coursework.exercises import registry

HISTORIES = rounds(3, 16)  # `python tests/desk/histories.py 200` lives through more
ONE, LAB = "01_attention.ipynb", "labs/01_a_closer_look.ipynb"


@pytest.fixture(scope="module")
def present():
    return present_edition()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_nothing_is_lost(seed, present, tmp_path, monkeypatch):
    counted = History(seed, tmp_path, copy.deepcopy(present)).live()
    assert counted["histories"] == 1
    assert counted["answers"] > 0


@pytest.mark.parametrize(("name", "number"), [*zip(NAMES, (85, 96), strict=True)])
def test_every_exercise_of_an_earlier_edition_has_a_place(present, name, number):
    every = [
        cell["metadata"]["exercise"]
        for one in present.values()
        for cell in one["cells"]
        if "exercise" in cell["metadata"]
    ]
    now = set(every)
    assert len(every) == len(now), "an exercise stands in two notebooks"
    old = earlier(name).values()
    before = {cell["metadata"]["exercise"] for one in old for cell in one["cells"] if "exercise" in cell["metadata"]}
    assert len(before) == number
    assert before <= now
    assert before <= registry.places().keys()


# What becomes of a learner's own cell when the cell above it leaves ---------------------------------------------------

STUB = "def moving(x):\n    raise NotImplementedError\n\n\nmoving = ex.moving.check(moving)"
NOTE = course_cell("markdown", "note", "A note on moving.")
TRIAL = course_cell("code", "trial", "moving(2)")


def edition(course: Path, *, moved: bool) -> None:
    title, task = course_cell("markdown", "title", "# One"), course_cell("code", "moving", STUB, exercise="moving")
    closer = course_cell("markdown", "closer", "# A closer look")
    old = [course_cell("markdown", "old", "An old thought.")]
    end = course_cell("markdown", "end", "The end.")
    (course / "labs").mkdir(exist_ok=True)
    save(course / ONE, notebook_of([title, *([] if moved else [*old, task]), end]))
    save(course / LAB, notebook_of([closer, *([task] if moved else [])]))


@pytest.fixture
def worked(course: Path, desk: Desk) -> Desk:
    """Notes below an answer, and one below a text that the next edition lacks."""
    edition(course, moved=False)
    updates.update(desk)
    (desk.folder / ONE).unlink()
    copies.create(desk.folder)
    notebook = load(desk.folder / ONE)
    notebook["cells"][3:3] = [NOTE, TRIAL]
    notebook["cells"].insert(2, course_cell("markdown", "stray", "What I thought of the old thought, at some length."))
    save(desk.folder / ONE, notebook)
    edition(course, moved=True)
    return desk


@pytest.mark.parametrize("answer", [STUB, STUB.replace("raise NotImplementedError", "return 2 * x")])
def test_notes_go_with_the_exercise_that_they_stand_below(worked: Desk, answer: str) -> None:
    notebook = load(worked.folder / ONE)
    notebook["cells"][3]["source"] = answer
    save(worked.folder / ONE, notebook)
    reports = {report.name: report for report in updates.update(worked)}
    assert list(texts(worked.folder / LAB).items()) == [
        ("closer", "# A closer look"), ("moving", answer), ("note", NOTE["source"]), ("trial", TRIAL["source"])
    ]  # fmt: skip
    assert list(texts(worked.folder / ONE)) == ["title", "stray", "end"]
    events = dict(reports[ONE].merge.events)
    home = "labs/01_a_closer_look"
    assert events["note"] == f"yours (“A note on moving.”): moved to {home}, with the exercise above it"
    assert "“What I thought of the old thought, at s…”" in events["stray"]
    assert events["stray"].endswith("the cell above it is no longer in the course; it stands below title now")
    assert {report.outcome for report in updates.update(worked)} == {updates.UP_TO_DATE}


def test_notes_stay_where_their_exercise_cannot_arrive(worked: Desk) -> None:
    (worked.folder / LAB).write_text("{")
    updates.update(worked)
    assert {"note", "trial"} <= texts(worked.folder / ONE).keys()


def test_an_older_piece_of_an_answer_does_not_replace_the_newer_whole(course: Path, worked: Desk) -> None:
    """Half of an answer that lies in another notebook is no reason to overwrite the whole one."""
    edition(course, moved=False)
    updates.update(worked)
    whole = "# first\n# second\n" + STUB.replace("raise NotImplementedError", "return 2 * x")
    notebook = load(worked.folder / ONE)
    notebook["cells"][3]["source"] = whole
    save(worked.folder / ONE, notebook)
    lab = load(worked.folder / LAB)
    lab["cells"].append(course_cell("code", "left", "# second", exercise="moving"))
    save(worked.folder / LAB, lab)
    save(course / ONE, notebook_of([*load(course / ONE)["cells"], course_cell("markdown", "new", "New.")]))
    updates.update(worked)
    assert texts(worked.folder / ONE)["moving"] == whole
    assert texts(worked.folder / ONE)["new"] == "New."


def test_an_edited_text_that_the_course_moved_is_said_to_be_elsewhere(worked: Desk, course: Path) -> None:
    notebook = load(worked.folder / ONE)
    notebook["cells"][1]["source"] = "An old thought, and my own."
    save(worked.folder / ONE, notebook)
    lab = load(course / LAB)
    lab["cells"].append(course_cell("markdown", "old", "An old thought."))
    save(course / LAB, lab)
    reports = {report.name: report for report in updates.update(worked)}
    assert texts(worked.folder / ONE)["old"] == "An old thought, and my own."
    assert "the course has it in labs/01_a_closer_look now" in dict(reports[ONE].merge.events)["old"]
