"""A lab with an exercise, added to a copy of the repository by its source and the exercise's module alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "tests" / "exercises" / "small_exercise.py"

LAB = """
# %% [markdown] id="title"
# # A small lab

# %% id="imports"
import torch
from coursework import exercises as ex

# %% exercise="center"

# %% id="use"
center(torch.tensor([[1.0, 2.0, 6.0]]))
"""
CHAPTER = (
    LAB.replace("A small lab", "A chapter")
    .replace("center", "causal_mask")
    .replace("torch.tensor([[1.0, 2.0, 6.0]])", "2, 3")
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a Python program in the copy; return what it printed."""
    folder = tmp_path_factory.mktemp("repository")
    for package in ("course_lib", "coursework"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "notebooks" / "sources" / "labs").mkdir(parents=True)
    for name in ("build.py", "conftest.py"):
        shutil.copy(ROOT / "notebooks" / name, folder / "notebooks")
    (folder / "notebooks" / "sources" / "01_masks.py").write_text(CHAPTER.lstrip())
    (folder / "notebooks" / "sources" / "labs" / "01_center.py").write_text(LAB.lstrip())
    module = SMALL.read_text(encoding="utf-8") + "\n\nEXERCISE = make()\n"
    (folder / "coursework" / "exercises" / "bank" / "center.py").write_text(module, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "COURSE_DESK")}

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.folder = folder
    run("notebooks/build.py")
    return run


def test_it_is_built_and_its_outputs_are_compared(run):
    assert (run.folder / "notebooks" / "labs" / "01_center.ipynb").exists()
    assert "agree with their sources" in run("notebooks/build.py", "--check")
    compared = run("-m", "pytest", "--nbval", "-q", "-c", os.devnull, "-p", "no:cacheprovider", "notebooks")
    assert "10 passed" in compared  # three code cells each, one of them answered, and each notebook as a whole


def test_the_registry_knows_its_place(run):
    program = "from coursework.exercises import registry as r; print(list(r.places().items())[:2], r.label('center'))"
    places = [("causal_mask", "01_masks"), ("center", "labs/01_center")]
    assert run("-c", program) == f"{places} labs/01_center\n"
    rows = run("-c", "from coursework import exercises as ex; ex.progress()").splitlines()
    assert rows[2].split()[:2] == ["labs/01_center", "center"]


def test_the_learner_gets_it_works_in_it_and_finds_it_again(run):
    course = ("-m", "coursework.cli")
    assert "01_masks.ipynb, labs/01_center.ipynb" in run(*course, "start")
    copy = run.folder / "my" / "labs" / "01_center.ipynb"
    copy.write_text(
        copy.read_text().replace("raise NotImplementedError  # your code here", "return x - x.mean(dim, True)")
    )
    assert "Right: center." in run(*course, "check", "center")
    status = run(*course, "status", "--chapter", "labs/01")
    assert "1 of 1 solved" in status
    assert "labs/01_center" in status
    assert "Chapter 1, build" in run(*course, "next")  # causal_mask
    assert "labs/01_center.ipynb: up to date" in run(*course, "update")
