"""A course with labs: their copies, and an exercise that moves from a chapter to a lab with the learner's answer."""

import contextlib
import random
import shutil
from pathlib import Path

import pytest
from desk_simulation import Course, course_cell, notebook_of
from desk_tools import Fault, edit, exercise_cells, load, save, texts

from coursework.desk import answers, copies, finding, launch, rescue, updates
from coursework.desk.store import Desk, DeskError

ONE, LAB = "01_attention.ipynb", "labs/01_a_closer_look.ipynb"
ANSWER = "def moving(x):\n    return 2 * x\n\n\nmoving = ex.moving.check(moving)"


def exercise(name: str) -> list:
    stub = f"def {name}(x):\n    raise NotImplementedError\n\n\n{name} = ex.{name}.check({name})"
    return [
        course_cell("markdown", f"exercise-{name}-prompt", f"### {name}"),
        course_cell("code", f"exercise-{name}", stub, exercise=name),
    ]


@pytest.fixture
def worked(course: Path, desk: Desk) -> Path:
    """A learner who answered `moving` in chapter 1, without a check."""
    first = [course_cell("markdown", "title", "# One"), *exercise("staying"), *exercise("moving")]
    save(course / ONE, notebook_of(first))
    updates.update(desk)
    (desk.folder / ONE).unlink()
    copies.create(desk.folder)
    notebook = load(desk.folder / ONE)
    notebook["cells"][4]["source"] = ANSWER
    save(desk.folder / ONE, notebook)
    return desk.folder


def move_to_lab(course: Path) -> None:
    (course / "labs").mkdir(exist_ok=True)
    save(course / ONE, notebook_of([course_cell("markdown", "title", "# One"), *exercise("staying")]))
    save(course / LAB, notebook_of([course_cell("markdown", "title", "# A lab"), *exercise("moving")]))


def test_labs_are_copied_found_and_opened(course: Path) -> None:
    (course / "labs").mkdir()
    save(course / LAB, Course(random.Random(3)).first())
    report = copies.create(course.parent / "my")
    assert report.added == [ONE, "02_heads.ipynb", LAB]
    assert (report.desk.folder / LAB).exists()
    assert copies.create(report.desk.folder).present == report.added
    (one, *_) = exercise_cells(course / LAB)
    assert answers.places(report.desk)[one].name in ("labs/01_a_closer_look", "01_attention")
    for wanted in ("labs/01_a_closer_look", "labs/01", "01_a_"):
        assert launch.to_open(report.desk, wanted) == "labs/01_a_closer_look"
    assert launch.to_open(report.desk, "1") == "01_attention"
    with pytest.raises(DeskError, match="there is no chapter 7"):
        launch.to_open(report.desk, "7")
    kept = course.parent / "my" / ".course" / "base" / "labs"
    assert len(list(kept.iterdir())) == 1
    (report.desk.folder / LAB).write_text("{")
    assert rescue.rescue(report.desk).lines
    assert texts(report.desk.folder / LAB) == texts(course / LAB)


def test_an_overview_without_exercises_is_copied_and_opened_first(course: Path) -> None:
    save(course / "00_overview.ipynb", notebook_of([course_cell("markdown", "title", "# The whole")]))
    desk = copies.create(course.parent / "my").desk
    assert launch.to_open(desk, None) == launch.to_open(desk, "0") == "00_overview"
    assert {report.outcome for report in updates.update(desk)} == {updates.UP_TO_DATE}
    (desk.folder / "00_overview.ipynb").unlink()
    (first, *_) = updates.update(desk)
    assert (first.outcome, first.note) == (updates.NEW, "")


def test_an_answer_goes_with_its_exercise(course: Path, desk: Desk, worked: Path) -> None:
    move_to_lab(course)
    reports = {report.name: report for report in updates.update(desk)}
    assert reports[ONE].outcome == updates.UPDATED
    assert reports[LAB].outcome == updates.NEW
    assert texts(worked / LAB)["exercise-moving"] == ANSWER
    assert set(texts(worked / ONE)) == {"title", "exercise-staying-prompt", "exercise-staying"}
    assert [body.strip() for _, body in desk.history("moving")] == [ANSWER]
    events = reports[ONE].merge.events
    assert ("exercise-moving", "moved to labs/01_a_closer_look, and your answer with it") in events
    assert {report.outcome for report in updates.update(desk)} == {updates.UP_TO_DATE}
    assert texts(worked / LAB)["exercise-moving"] == ANSWER


def test_nothing_leaves_where_nothing_can_arrive(course: Path, desk: Desk, worked: Path) -> None:
    (worked / "labs").mkdir()
    (worked / LAB).write_text("{")
    move_to_lab(course)
    assert [report.outcome for report in updates.update(desk)] == [updates.UPDATED, updates.UP_TO_DATE, "failed"]
    assert texts(worked / ONE)["exercise-moving"] == ANSWER
    (worked / LAB).unlink()
    updates.update(desk)
    assert texts(worked / LAB)["exercise-moving"] == ANSWER


def test_it_comes_back_when_the_exercise_does(course: Path, desk: Desk, worked: Path) -> None:
    first = (course / ONE).read_bytes()
    move_to_lab(course)
    updates.update(desk)
    (course / ONE).write_bytes(first)
    save(course / LAB, notebook_of([course_cell("markdown", "title", "# A lab")]))
    updates.update(desk)
    assert texts(worked / ONE)["exercise-moving"] == ANSWER
    assert set(texts(worked / LAB)) == {"title"}


def test_a_stub_moves_as_a_stub_and_an_own_copy_stays(course: Path, desk: Desk, worked: Path) -> None:
    notebook = load(worked / ONE)
    notebook["cells"][4]["source"] = "".join(load(course / ONE)["cells"][4]["source"])
    notebook["cells"].append(course_cell("code", "mine", "x = 1  # by the learner", exercise="moving"))
    save(worked / ONE, notebook)
    move_to_lab(course)
    updates.update(desk)
    assert "raise NotImplementedError" in texts(worked / LAB)["exercise-moving"]
    assert texts(worked / ONE)["mine"] == "x = 1  # by the learner"


def test_an_answer_survives_an_update_that_is_interrupted_anywhere(
    course: Path, desk: Desk, worked: Path, tmp_path: Path
) -> None:
    move_to_lab(course)
    before = worked.rename(tmp_path / "before")
    at = 0
    while True:
        at += 1
        part = Desk(tmp_path / f"part-{at}")
        shutil.copytree(before, part.folder)
        with pytest.MonkeyPatch.context() as patch:
            fault = Fault(patch, at, KeyboardInterrupt)
            with contextlib.suppress(KeyboardInterrupt):
                updates.update(part)
        updates.update(part)
        assert texts(part.folder / LAB)["exercise-moving"] == ANSWER, at
        assert "exercise-moving" not in texts(part.folder / ONE)
        if not fault.happened:
            break
    assert at > 5
    assert finding.notebooks(part.folder)[-1] == part.folder / LAB


def test_the_new_place_counts_while_an_update_is_unfinished(
    course: Path, desk: Desk, worked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the two notebooks leaves the answer in both; the learner goes on in the new one."""
    left = (worked / ONE).read_bytes()
    move_to_lab(course)
    updates.update(desk)
    (worked / ONE).write_bytes(left)
    edit(worked / LAB, "exercise-moving", ANSWER.replace("2 * x", "3 * x"))
    monkeypatch.setattr(answers.registry, "places", lambda: {"moving": LAB.removesuffix(".ipynb")})
    assert answers.find(desk, "moving").path == worked / LAB
    assert "3 * x" in answers.places(desk)["moving"].source
    updates.update(desk)
    assert "3 * x" in texts(worked / LAB)["exercise-moving"]
    assert "3 * x" in answers.find(desk, "moving").source


def test_a_written_prediction_stays_in_its_cell(course: Path, desk: Desk) -> None:
    def edition(text: str, first: str, second: str) -> None:
        cells = [course_cell("markdown", "title", "# One"), course_cell("code", "guess", first)]
        cells += [course_cell("markdown", "text", text), course_cell("code", "guess-again", second)]
        save(course / ONE, notebook_of(cells))

    edition("Old.", 'ex.predict("moved", "")', 'ex.predict("masked", "")')
    updates.update(desk)
    (desk.folder / ONE).unlink()
    copies.create(desk.folder)
    notebook = load(desk.folder / ONE)
    notebook["cells"][1]["source"] = 'ex.predict("moved", "it moves")'
    notebook["cells"][3]["source"] = 'ex.predict("masked", "two of three")'
    save(desk.folder / ONE, notebook)
    edition("New.", 'ex.predict("moved", "")', 'ex.predict("hidden", "")')
    updates.update(desk)
    mine = texts(desk.folder / ONE)
    assert (mine["guess"], mine["text"]) == ('ex.predict("moved", "it moves")', "New.")
    assert mine["guess-again"] == 'ex.predict("masked", "two of three")'
    (beside,) = (text for cell_id, text in mine.items() if cell_id.startswith("guess-again-beside-"))
    assert 'ex.predict("hidden", "")' in beside  # the course's question changed, and is put beside
