"""Work done in the tracked notebooks is found and brought to the desk."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from desk_tools import edit, exercise_cells, load, save, snapshot, texts

from coursework.desk import copies, rescue
from coursework.desk.store import Desk, DeskError

ONE = "01_attention.ipynb"
MINE = "def task(x):\n    return x  # by the learner"


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture
def checkout(course: Path) -> Path:
    """The folder of notebooks, tracked by git."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    git(course.parent, "init")
    (course.parent / ".gitignore").write_text("my/\n")
    git(course.parent, "add", ".")
    assert git(course.parent, "commit", "-m", "first").returncode == 0
    return course


@pytest.fixture
def desk(checkout: Path) -> Desk:
    return copies.create(checkout.parent / "my").desk


def first_exercise(path: Path) -> tuple[str, str]:
    return next(iter(exercise_cells(path).items()))


def test_nothing_to_rescue(desk: Desk) -> None:
    before = snapshot(desk.folder)
    report = rescue.rescue(desk)
    assert (report.lines, report.remarks, report.problems, report.restorable, report.filled) == ([], [], [], [], [])
    assert snapshot(desk.folder) == before


def test_edits_of_tracked_files_come_to_the_desk_and_are_undone(checkout: Path, desk: Desk) -> None:
    name, cell = first_exercise(checkout / ONE)
    original = (checkout / ONE).read_bytes()
    edit(checkout / ONE, cell, MINE)
    notebook = load(checkout / ONE)
    own = {"cell_type": "markdown", "id": "abcd1234", "metadata": {}, "source": "a note by the learner"}
    notebook["cells"].insert(2, own)
    del notebook["cells"][-1]
    save(checkout / ONE, notebook)

    report = rescue.rescue(desk)
    after = texts(desk.folder / ONE)
    assert after[cell] == MINE
    assert after["abcd1234"] == "a note by the learner"
    assert set(after) == {*texts(desk.folder / ONE)}
    assert len(after) == len(notebook["cells"]) + 1  # deleting there deletes nothing here
    assert [body for _, body in desk.history(name)] == [MINE + "\n"]
    assert report.restorable == [checkout / ONE]

    again = rescue.rescue(desk)
    assert texts(desk.folder / ONE) == after
    assert any("already" in line for line in again.lines)

    edited = (checkout / ONE).read_bytes()
    backup = rescue.restore_tracked(desk, report.restorable)
    assert (checkout / ONE).read_bytes() == original
    assert (backup / ONE).read_bytes() == edited
    assert git(checkout, "status", "--porcelain").stdout == ""
    assert rescue.rescue(desk).restorable == []


def test_where_both_were_edited_nothing_is_lost(checkout: Path, desk: Desk) -> None:
    _, cell = first_exercise(checkout / ONE)
    edit(desk.folder / ONE, cell, "in the desk")
    edit(checkout / ONE, cell, "in the course's folder")
    rescue.rescue(desk)
    after = texts(desk.folder / ONE)
    assert after[cell] == "in the desk"
    assert any("in the course's folder" in text and "Rescued" in text for text in after.values())
    content = (desk.folder / ONE).read_bytes()
    rescue.rescue(desk)
    assert (desk.folder / ONE).read_bytes() == content


def test_outputs_alone_are_no_edits(checkout: Path, desk: Desk) -> None:
    notebook = load(checkout / ONE)
    notebook["cells"][0]["execution_count"] = 7
    save(checkout / ONE, notebook)
    before = snapshot(desk.folder)
    report = rescue.rescue(desk)
    assert snapshot(desk.folder) == before
    assert report.restorable == [checkout / ONE]


def test_edits_that_were_committed(checkout: Path, desk: Desk, tmp_path: Path) -> None:
    git(checkout, "clone", "--bare", str(checkout.parent), str(tmp_path / "upstream.git"))
    git(checkout, "remote", "add", "origin", str(tmp_path / "upstream.git"))
    assert git(checkout, "fetch", "origin").returncode == 0
    assert git(checkout, "branch", "--set-upstream-to", "origin/main").returncode == 0
    _, cell = first_exercise(checkout / ONE)
    edit(checkout / ONE, cell, MINE)
    git(checkout, "commit", "-am", "my answers")
    report = rescue.rescue(desk)
    assert texts(desk.folder / ONE)[cell] == MINE
    assert report.restorable == []


def test_in_the_middle_of_a_pull_that_conflicted(checkout: Path, desk: Desk) -> None:
    _, cell = first_exercise(checkout / ONE)
    git(checkout, "checkout", "-b", "course")
    edit(checkout / ONE, cell, "the course's new stub")
    git(checkout, "commit", "-am", "new edition")
    git(checkout, "checkout", "main")
    edit(checkout / ONE, cell, MINE)
    git(checkout, "commit", "-am", "mine")
    assert git(checkout, "merge", "course").returncode != 0
    assert "<<<<<<<" in (checkout / ONE).read_text(encoding="utf-8")
    report = rescue.rescue(desk)
    assert report.problems == []
    assert texts(desk.folder / ONE)[cell] == MINE


def test_without_git(checkout: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    _, cell = first_exercise(checkout / ONE)
    edit(checkout / ONE, cell, MINE)
    report = rescue.rescue(desk)
    assert any("git was not found" in line for line in report.remarks)
    assert texts(desk.folder / ONE)[cell] == MINE
    assert report.restorable == []
    with pytest.raises(DeskError, match="git was not found"):
        rescue.restore_tracked(desk, [checkout / ONE])


def test_not_a_checkout(checkout: Path, desk: Desk) -> None:
    shutil.rmtree(checkout.parent / ".git")
    _, cell = first_exercise(checkout / ONE)
    edit(checkout / ONE, cell, MINE)
    report = rescue.rescue(desk)
    assert any("not in a git checkout" in line for line in report.remarks)
    assert texts(desk.folder / ONE)[cell] == MINE


def test_not_a_checkout_and_a_new_edition_is_no_edit(checkout: Path, desk: Desk) -> None:
    shutil.rmtree(checkout.parent / ".git")
    notebook = load(checkout / ONE)
    notebook["cells"][0]["source"] = "new text of the course"
    save(checkout / ONE, notebook)
    before = (desk.folder / ONE).read_bytes()
    rescue.rescue(desk)
    assert (desk.folder / ONE).read_bytes() == before


def test_a_notebook_of_ones_own_beside_the_chapters(checkout: Path, desk: Desk) -> None:
    shutil.copy(checkout / ONE, checkout / "Untitled.ipynb")
    rescue.rescue(desk)
    assert (desk.folder / "Untitled.ipynb").read_bytes() == (checkout / "Untitled.ipynb").read_bytes()
    edit(checkout / "Untitled.ipynb", "imports", "another")
    rescue.rescue(desk)
    assert texts(desk.folder / "Untitled-2.ipynb")["imports"] == "another"
    assert rescue.rescue(desk).lines == []


def test_answers_come_back_into_empty_cells_only(desk: Desk) -> None:
    cells = list(exercise_cells(desk.folder / ONE).items())
    (first, first_cell), (second, second_cell) = cells[:2]
    before = texts(desk.folder / ONE)
    desk.save_answer(first, "def wrong(x): ...", "wrong", "e")
    desk.save_answer(first, f"def {first}(x):\n    return 1", "right", "e")
    desk.save_answer(first, "def later(x): ...", "wrong", "e")
    desk.save_answer(second, "kept", "right", "e")
    edit(desk.folder / ONE, second_cell, "there is work here")
    report = rescue.rescue(desk)
    assert report.filled == [first]
    after = texts(desk.folder / ONE)
    assert after[first_cell] == f"def {first}(x):\n    return 1\n\n\n{first} = ex.{first}.check({first})"
    assert after[second_cell] == "there is work here"
    assert {k: v for k, v in after.items() if k not in (first_cell, second_cell)} == {
        k: v for k, v in before.items() if k not in (first_cell, second_cell)
    }
