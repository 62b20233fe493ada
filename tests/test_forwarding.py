"""What moved to `coursework` is found under its old name as well, for one edition, and one line says so."""

import os
import pickle
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from course_lib.forwarding import MOVED, new_name


def run(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **variables})


@pytest.mark.parametrize("old", MOVED)
def test_what_moved_is_there_under_both_names(old):
    new = MOVED[old]
    if find_spec(new) is not None:
        before = import_module(new).__spec__
        assert import_module(old) is import_module(new)
        assert import_module(new).__spec__ is before
        assert before.name == new
    else:
        home, _, name = old.rpartition(".")
        assert getattr(import_module(home), name) is getattr(import_module(new.rpartition(".")[0]), name)


def test_what_lies_in_a_module_moved_with_it():
    assert import_module("course_lib.viz.style") is import_module("coursework.pictures.style")
    assert new_name("course_lib.viz.style.palette") == "coursework.pictures.style.palette"
    assert new_name("course_lib.vizier") is None
    assert (
        pickle.loads(b"ccourse_lib.exercises.spec\nExercise\n.") is import_module("coursework.exercises.spec").Exercise
    )


@pytest.mark.parametrize(
    "code",
    [f"from course_lib{room} import nothing" for room in ("", ".viz", ".data")]
    + [f"import course_lib{room}.nothing" for room in ("", ".viz")],
)
def test_what_never_was_is_an_import_error(code):
    with pytest.raises(ImportError, match="nothing"):
        exec(code, {})


def test_one_line_says_so_once():
    done = run("from course_lib import exercises as ex; from course_lib.viz import palette; import course_lib.records")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("course_lib.exercises is coursework.exercises now")
    assert "`course update` rewrites" in line
    assert (
        run("import course_lib, course_lib.data; from course_lib import masks; from coursework import exercises").stderr
        == ""
    )


def test_a_module_that_moved_still_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "course_lib.cli", "--version"], capture_output=True, text=True)
    assert "No module" not in done.stderr
    assert "coursework.cli now" in done.stderr


def test_where_the_course_is_not_installed_the_error_says_what_to_type(tmp_path: Path):
    info = tmp_path / "course_lib-0.1.0.dist-info"
    info.mkdir()
    needs = 'Requires-Dist: torch\nRequires-Dist: surely-not-there[x]>=1; extra == "course"\n'
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: course-lib\nVersion: 0.1.0\n{needs}")
    path = f"sys.path.insert(0, {str(tmp_path)!r})"
    done = run(f"import sys; {path}\nfrom course_lib import exercises")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "course_lib.exercises is coursework.exercises now" in last
    assert last.endswith("(surely-not-there): pip install 'course-lib[course]'")
