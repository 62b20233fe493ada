"""The command `course`, on the real exercises."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from desk_simulation import course_cell, notebook_of
from desk_tools import edit, load, save, texts
from typer.testing import CliRunner

from coursework import cli
from coursework.commands import answers as commands
from coursework.desk import isolated
from coursework.desk.chapters import PLAYING, WORDS_PER_MINUTE, reading_minutes, total_minutes
from coursework.desk.doctor import Finding, examine
from coursework.desk.pen import Limits, Pen
from coursework.desk.store import Desk
from coursework.desk.tables import duration
from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.handle import ExerciseHandle
from coursework.exercises.learner import Progress

ONE = "01_attention.ipynb"
BUILD, QUESTION = "causal_mask", "permuted_tokens"
WRONG_MASK = """\
def causal_mask(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril()


causal_mask = ex.causal_mask.check(causal_mask)"""
RIGHT_MASK = WRONG_MASK.replace("tril()", "tril(S - T)")


@pytest.fixture
def chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A course of one chapter with two of the real exercises."""
    folder = tmp_path / "le cours ñ" / "notebooks"
    folder.mkdir(parents=True)
    found = [
        course_cell("markdown", "title", "# Attention"),
        course_cell("code", "imports", "import torch\nfrom coursework import exercises as ex"),
        course_cell("code", "loud", "print('this cell must not run')\nscores = torch.rand(3)"),
    ]
    for name in (BUILD, QUESTION):
        handle = name.replace("_", "-")
        entry = registry.get(name)
        found.append(course_cell("markdown", f"exercise-{handle}-prompt", cells.prompt_markdown(entry)))
        found.append(course_cell("code", f"exercise-{handle}", cells.cell_source(entry), exercise=name))
    save(folder / ONE, notebook_of(found))
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(folder))
    monkeypatch.chdir(folder.parent)
    return folder.parent


def course(*arguments: str, code: int = 0) -> str:
    """Run the command in this process; return everything it printed."""
    environment, folder = dict(os.environ), Path.cwd()
    try:
        result = CliRunner().invoke(cli.app, list(arguments), terminal_width=120)
    finally:  # each run of the command is a process of its own
        os.chdir(folder)
        changed = {name for name, value in os.environ.items() if environment.get(name) != value}
        for name in changed:
            del os.environ[name]
        os.environ.update(environment)
    assert changed <= {"MPLBACKEND"}, "a desk is passed as an argument, not through the environment"
    assert result.exit_code == code, (result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.output


def process(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coursework.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def answering() -> Iterator[Pen]:
    with Pen(Limits()) as pen:
        yield pen


@pytest.fixture
def quick(answering: Pen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers run in processes that are forked from one, where they can be, so that torch is loaded once."""

    def judged(exercise_id: str, desk: Desk | None, file: Path | None, seconds: float) -> dict[str, Any]:
        return isolated.report(exercise_id, desk, file, answering)

    monkeypatch.setattr(isolated, "judged", judged)


def test_start_copies_without_outputs_and_keeps_work(chapter: Path) -> None:
    notebook = load(chapter / "notebooks" / ONE)
    notebook["cells"][2]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "printed\n"}]
    notebook["cells"][2]["execution_count"] = 3
    notebook["cells"][2]["metadata"]["tags"] = ["tol:0.001"]
    save(chapter / "notebooks" / ONE, notebook)
    assert "Added to" in course("start")
    copy = load(chapter / "my" / ONE)
    assert copy["cells"][2]["outputs"] == []
    assert copy["cells"][2]["execution_count"] is None
    assert [cell["id"] for cell in copy["cells"]] == [cell["id"] for cell in notebook["cells"]]
    assert [cell["metadata"] for cell in copy["cells"]] == [cell["metadata"] for cell in notebook["cells"]]

    edit(chapter / "my" / ONE, "title", "my own title")
    before = (chapter / "my" / ONE).read_bytes()
    assert "ready" in course("start")
    assert (chapter / "my" / ONE).read_bytes() == before
    save(chapter / "notebooks" / "02_heads.ipynb", notebook)
    assert "02_heads.ipynb" in course("start")
    assert (chapter / "my" / ONE).read_bytes() == before


def test_start_elsewhere_and_its_errors(chapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start", "--folder", str(tmp_path / "là bas"))
    assert (tmp_path / "là bas" / ONE).exists()
    (tmp_path / "file").write_text("")
    assert "is a file" in course("start", "--folder", str(tmp_path / "file"), code=2)
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(tmp_path / "nothing"))
    assert "no chapter" in course("start", code=2)
    monkeypatch.delenv("COURSE_NOTEBOOKS")
    monkeypatch.setattr("coursework.desk.finding.repository", lambda: tmp_path)
    assert "pip install -e '.[course]'" in course("start", code=2)


def test_inside_the_repository_the_desk_is_at_its_root(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coursework.desk.finding.repository", lambda: chapter)
    monkeypatch.chdir(chapter / "notebooks")
    course("start")
    assert (chapter / "my" / ONE).exists()
    assert "causal_mask" in course("status", "--chapter", "1")  # and is found from there


@pytest.mark.parametrize(
    "arguments", [["status"], ["next"], ["check", BUILD], ["hint", BUILD], ["update"], ["reset", "x"]]
)
def test_without_a_desk_every_command_says_what_to_do(chapter: Path, arguments: list[str]) -> None:
    output = course(*arguments, code=2)
    assert "course start" in output
    assert len(output.strip().splitlines()) == 1


@pytest.mark.usefixtures("quick")
def test_status_and_next(chapter: Path) -> None:
    course("start")
    output = course("status", "--chapter", "1")
    assert re.search(r"01\W+causal_mask\W+build\W+2\W+\d+\W+not tried\W+0\W+0", output)
    total = len(registry.all_exercises())
    assert f"0 of {total} solved" in course("status")
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    course("check", BUILD)
    assert re.search(r"causal_mask.*solved.*1 ", course("status", "--chapter", "1"))
    assert f"1 of {total} solved" in course("status")
    assert "--chapter: expected the number or name" in course("status", "--chapter", "99", code=2)
    assert course("next").splitlines()[0].startswith(registry.all_exercises()[0].id)


def row(name: str) -> list[str]:
    """The cells of a chapter's row in `course status`."""
    line = next(line for line in course("status").splitlines() if name in line)
    return [cell.strip() for cell in line.strip("│").split("│")]


@pytest.mark.usefixtures("quick")
def test_status_has_a_line_for_each_chapter_with_the_time_of_a_person(chapter: Path) -> None:
    """The text of the fixture is shorter than a minute: the time is the exercises' own, and less when one is solved."""
    course("start")
    cards = [registry.card(name) for name, place in registry.places().items() if place == "01_attention"]
    labs = [registry.card(name) for name, place in registry.places().items() if place.startswith("labs/01_")]
    minutes, rest = sum(card.minutes for card in cards), duration(sum(card.minutes for card in labs))
    own = [f"0 of {len(cards)}", duration(minutes + PLAYING), f"0 of {len(labs)}", rest, "you are here"]
    assert row("01 attention") == ["01 attention", *own]
    long = "# Attention\n\n" + "word " * (WORDS_PER_MINUTE * 30)
    edit(chapter / "my" / ONE, "title", long)
    assert row("01 attention")[2] == duration(minutes + 30 + PLAYING)
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    course("check", BUILD)
    solved = minutes - registry.card(BUILD).minutes
    assert row("01 attention")[1:3] == [f"1 of {len(cards)}", duration(solved)]  # and the text above it is read
    save(chapter / "my" / "02_heads.ipynb", notebook_of([course_cell("markdown", "title", long)]))
    assert row("02 heads")[2] == duration(30 + PLAYING)
    assert (
        len([line for line in course("status").splitlines() if line.startswith("│ 0")]) == 9
    )  # 01 to 08, and 02 heads


def test_a_person_reads_100_words_or_10_lines_of_code_a_minute_and_a_picture_in_one_and_a_half() -> None:
    text = course_cell(
        "markdown", "text", "word " * 500 + "<details><summary>More</summary>" + "word " * 600 + "</details>"
    )
    prompt = course_cell("markdown", "prompt", cells.prompt_markdown(registry.get(BUILD)))
    code = course_cell("code", "code", "x = 1\n" * 20)
    folded = course_cell("code", "folded", "x = 1\n" * 20)
    folded["metadata"]["jupyter"] = {"source_hidden": True}
    found = [text, prompt, code, folded]
    assert reading_minutes(found) == pytest.approx(8.5, abs=0.1)
    assert total_minutes([text]) == pytest.approx(5 + PLAYING, abs=0.1)
    assert [duration(minutes) for minutes in (0, 59, 60, 125)] == ["0 min", "59 min", "1 h", "2 h 5 min"]


def test_status_names_copies_that_the_course_no_longer_has(chapter: Path) -> None:
    other = chapter / "notebooks" / "09_other.ipynb"
    other.write_bytes((chapter / "notebooks" / ONE).read_bytes())
    course("start")
    assert "No longer in the course" not in course("status")
    other.unlink()
    assert "No longer in the course, kept as you left them: 09_other.ipynb" in course("status")


def test_next_says_where_an_exercise_stands(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start")
    edit(chapter / "my" / ONE, "imports", "import torch")
    other = load(chapter / "my" / ONE)
    other["cells"].insert(
        1, course_cell("markdown", "section", "## 4 Masks\n\n```\n# no heading\n```\n\n### 4.2 Causal")
    )
    save(chapter / "my" / ONE, other)
    for where, first in [
        ("01_attention", "Chapter 1, build"),
        ("labs/01_reach", "Lab 01_reach, build"),
        ("", "In no notebook yet, build"),
    ]:
        monkeypatch.setattr(registry, "places", lambda where=where: {BUILD: where})
        name, what, place, how = course("next").splitlines()
        assert name.startswith(BUILD)
        assert what.startswith(first)
        title = registry.get(BUILD).title
        assert place == (
            f"Where: 01_attention.ipynb, “Attention”, section “4.2 Causal”, under the heading “Exercise: {title}”."
        )
        assert how == "Open it with `course lab --chapter 1`."
    (chapter / "my" / ONE).unlink()
    assert course("next").splitlines()[2].startswith("Where: nowhere; `course check causal_mask --file")
    monkeypatch.setattr(registry, "places", lambda: {BUILD: "01_attention"})
    assert "`course update` adds what is new" in course("next").splitlines()[2]


@pytest.mark.usefixtures("quick")
def test_an_answer_to_an_older_edition_is_named(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start")
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    course("check", BUILD)
    monkeypatch.setattr("coursework.exercises.learner.edition", lambda entry: "00000000")
    assert "solved against an older edition" in course("status", "--chapter", "1")
    monkeypatch.setattr(registry, "places", lambda: {BUILD: "01_attention"})
    assert course("next").splitlines()[1].endswith("solved against an older edition.")


def test_check_says_the_same_as_the_notebook(
    chapter: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    course("start")
    assert "Not attempted" in course("check", BUILD, code=1)
    edit(chapter / "my" / ONE, "exercise-causal-mask", WRONG_MASK)
    output = course("check", "causal-mask", code=1)
    assert "must not run" not in output
    import torch

    ExerciseHandle(registry.get(BUILD), Progress()).check(lambda T, S: torch.ones(T, S, dtype=torch.bool).tril())
    assert output.splitlines()[:3] == ["Checking causal-mask …", *capsys.readouterr().out.splitlines()[:2]]
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    assert "Right" in course("check", BUILD)
    assert (chapter / "my" / "answers" / "causal_mask.py").read_text().endswith(RIGHT_MASK + "\n")
    assert len(list((chapter / "my" / "answers" / "history" / BUILD).iterdir())) == 2


@pytest.mark.usefixtures("quick")
def test_check_a_question_and_a_file(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start")
    right = cells.solved_cell_source(registry.get(QUESTION))
    assert "Not answered" in course("check", QUESTION, code=1)
    edit(chapter / "my" / ONE, "exercise-permuted-tokens", right)
    assert "Right" in course("check", QUESTION)
    (chapter / "mine.py").write_text(WRONG_MASK.replace("import torch\n", ""))
    course("check", BUILD, "--file", "mine.py", code=1)
    (chapter / "mine.py").write_text(RIGHT_MASK)
    course("check", BUILD, "--file", "mine.py")
    assert "cannot be read" in course("check", BUILD, "--file", "none.py", code=2)
    history = chapter / "my" / "answers" / "history" / BUILD
    kept = sorted(history.iterdir())
    monkeypatch.setenv("CI", "true")  # where nothing more is kept
    edit(chapter / "my" / ONE, "exercise-causal-mask", WRONG_MASK)
    course("check", BUILD, code=1)
    assert sorted(history.iterdir()) == kept


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("source", "says", "code"),
    [
        ("def causal_mask(T, S:\n    pass", "line 1: this is not Python yet", 2),
        ("def another(T, S):\n    pass", "defines no `causal_mask`", 2),
        ("x = 1 / 0\ndef causal_mask(T, S):\n    pass", "line 1: running it raised ZeroDivisionError", 2),
        ("x = nowhere\ndef causal_mask(T, S):\n    pass", "'nowhere' is not defined", 2),
        ("x = scores + 1\ndef causal_mask(T, S):\n    pass", "`scores` (set in cell loud)", 2),
        ("def causal_mask(T, S):\n    return scores", "`scores` (set in cell loud)", 1),
        ("raise SystemExit\ndef causal_mask(T, S):\n    pass", "SystemExit", 2),
    ],
)
def test_an_answer_that_does_not_run(chapter: Path, source: str, says: str, code: int) -> None:
    course("start")
    edit(chapter / "my" / ONE, "exercise-causal-mask", source)
    output = course("check", BUILD, code=code)
    assert says in output
    assert "Traceback" not in output
    if code == 2:
        assert output.splitlines()[0] == f"Checking {BUILD} …"
        assert len(output.strip().splitlines()) == 2


def test_unknown_exercises(chapter: Path) -> None:
    course("start")
    for command in ("check", "hint", "solution", "reset"):
        assert "causal_mask" in course(command, "causal_msk", code=2)


@pytest.mark.usefixtures("quick")
def test_hints_go_on_from_one_process_to_the_next(chapter: Path) -> None:
    course("start")
    seen = [course("hint", BUILD) for _ in range(2)]
    assert seen[0].startswith("Hint 1 of 3")
    assert seen[1].startswith("Hint 2 of 3")
    edit(chapter / "my" / ONE, "exercise-causal-mask", WRONG_MASK)
    course("check", BUILD, code=1)
    assert course("hint", BUILD).startswith("A question about your last answer")
    assert course("hint", BUILD).startswith("Hint 3 of 3")
    assert re.search(r"tried\W+1\W+4", course("status", "--chapter", "1"))


def test_solution(chapter: Path) -> None:
    course("start")
    assert "def causal_mask" not in course("solution", BUILD)
    assert "def causal_mask" in course("solution", BUILD, "--reveal")


def test_reset(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start")
    before = texts(chapter / "my" / ONE)
    assert "Nothing to reset" in course("reset", BUILD)
    edit(chapter / "my" / ONE, "exercise-causal-mask", WRONG_MASK)
    assert "kept in" in course("reset", BUILD)
    assert texts(chapter / "my" / ONE) == before
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    assert "--yes" in course("reset", "--all", code=2)
    assert texts(chapter / "my" / ONE)["exercise-causal-mask"] == RIGHT_MASK
    assert "kept in" in course("reset", "--all", "--yes")
    assert texts(chapter / "my" / ONE) == before
    assert "name the exercises" in course("reset", code=2)


def test_update_reports_and_keeps(chapter: Path) -> None:
    course("start")
    assert course("update").strip() == f"{ONE}: up to date"
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    edit(chapter / "my" / ONE, "title", "my title")
    for cell, text in (("title", "# New"), ("imports", "import torch, math\nfrom coursework import exercises as ex")):
        edit(chapter / "notebooks" / ONE, cell, text)
    output = course("update")
    assert "1 cell: follows the new edition" in output
    assert "title: changed by you and by the course" in output
    assert "backup" in output
    after = texts(chapter / "my" / ONE)
    assert after["title"] == "my title"
    assert any("# New" in text for text in after.values())
    assert after["exercise-causal-mask"] == RIGHT_MASK
    assert "up to date" in course("update")


@pytest.mark.usefixtures("quick")
def test_rescue_without_git(chapter: Path) -> None:
    course("start")
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    course("check", BUILD)
    course("reset", BUILD)
    assert "Answers put back into their cells: causal_mask" in course("rescue")
    assert texts(chapter / "my" / ONE)["exercise-causal-mask"] == RIGHT_MASK
    assert "Nothing to rescue" in course("rescue")


def test_the_desk_can_be_named(chapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start", "--folder", str(tmp_path / "other"))
    assert "01 attention" in course("--folder", str(tmp_path / "other"), "status")
    assert "holds no copies" in course("--folder", str(tmp_path), "status", code=2)
    monkeypatch.setenv("COURSE_DESK", str(tmp_path / "other"))
    assert "01 attention" in course("status")
    monkeypatch.setenv("COURSE_DESK", str(tmp_path))
    assert "COURSE_DESK" in course("status", code=2)


def test_lab_passes_arguments_on_and_opens_the_last_chapter(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = load(chapter / "notebooks" / ONE)
    other = notebook_of([course_cell("code", "exercise-x", notebook["cells"][4]["source"], exercise="padding_mask")])
    save(chapter / "notebooks" / "02_heads.ipynb", other)
    ran: list[list[str]] = []
    policies: list[str | None] = []

    def become(command: list[str], folder: Path, environment: dict[str, str]) -> int:
        ran.append(command)
        policies.append(environment.get("OMP_WAIT_POLICY"))
        assert folder == chapter / "my"
        assert environment["COURSE_DESK"] == str(folder)
        assert "COURSE_DESK" not in os.environ  # it crosses the border of a process, and no other
        return 0

    monkeypatch.setattr("coursework.desk.launch.become", become)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    course("lab", "--no-browser", "--port", "8899")  # makes the desk, too
    desk = chapter / "my"
    assert ran[-1][1:4] == ["-P", "-m", "jupyterlab"]
    assert ran[-1][-4:] == ["--no-browser", "--port", "8899", f"--LabApp.default_url=/lab/tree/{ONE}"]
    assert f"--ServerApp.root_dir={desk}" in ran[-1]
    assert policies == ["PASSIVE"]
    from coursework.desk.store import Desk

    Desk(desk).save_answer("padding_mask", "x", "wrong", "e")
    course("lab")
    assert ran[-1][-1].endswith("/02_heads.ipynb")
    course("lab", "--chapter", "1")
    assert ran[-1][-1].endswith(f"/{ONE}")
    assert "no chapter 7" in course("lab", "--chapter", "7", code=2)
    course("lab", "mine.ipynb")
    assert ran[-1][-1] == "mine.ipynb"


def test_doctor(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start")
    output = course("doctor")
    for what in ("Python", "torch", "device", "memory", "threads", "disk space", "write test", "kernel", "network"):
        assert what in output
    assert "Everything the course needs is here" in output

    def full(path: Path, data: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(total=100, used=100, free=0))
    monkeypatch.setattr("coursework.desk.doctor.write_atomic", full)
    monkeypatch.setattr("coursework.desk.doctor._kernel", lambda: iter(()))
    output = course("doctor", code=1)
    assert "Free at least 0.5 GiB" in output
    assert "2 things to repair" in output


def test_the_doctor_reads_the_ranges_of_the_dependencies(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = [
        "numpy>=999",
        "no-such-package>=1",
        "pytest>=1",
        "torch>=999; extra == 'test'",
        "rich<1; python_version < '3'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: declared)
    (found,) = [one for one in examine(None, network_seconds=0.01, kernel=False) if one.what == "packages"]
    assert not found.ok
    assert re.fullmatch(r"numpy [\d.]+ is not >=999; no-such-package is missing", found.value)


def test_the_doctor_survives_a_broken_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise ImportError("libtorch is gone")

    monkeypatch.setattr("coursework.desk.doctor._torch", broken)
    found = list(examine(None, network_seconds=0.01, kernel=False))
    assert Finding("torch", False, "ImportError: libtorch is gone", "Run `make setup` again.") in found
    assert len(found) > 8


def test_help_has_an_example_for_every_command(chapter: Path) -> None:
    commands = cli.app.registered_commands
    assert len(commands) == 21
    for command in commands:
        name = command.name or command.callback.__name__  # type: ignore[union-attr]
        assert "Example" in course(name, "--help"), name
    assert "no such command" in course("nonsense", code=2).lower()


def test_bench_lists_runs_and_passes_on(chapter: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    listed = course("bench")
    assert re.search(r"^training_step +One step of training", listed, re.MULTILINE)
    assert "harness" not in listed
    assert "expected one of attention" in course("bench", "nonsense", code=2)
    folder = tmp_path / "checkout" / "benchmarks"
    folder.mkdir(parents=True)
    program = '"""Says what it got."""\nimport pathlib, sys\nif __name__ == "__main__":\n'
    program += '    pathlib.Path("got").write_text(" ".join(sys.argv[1:]))\n    sys.exit(3)\n'
    (folder / "some_thing.py").write_text(program)
    module = sys.modules["coursework.commands.bench"]  # `coursework.commands.bench` is the function
    monkeypatch.setattr(module, "__file__", str(tmp_path / "checkout" / "coursework" / "commands" / "bench.py"))
    assert course("bench").split(maxsplit=1) == ["some_thing", "Says what it got.\n"]
    course("bench", "some-thing", "--quick", "--help", code=3)
    assert (tmp_path / "checkout" / "got").read_text() == "--quick --help"
    (folder / "some_thing.py").unlink()
    output = course("bench", code=2)
    assert "come with a checkout" in output
    assert len(output.strip().splitlines()) == 1


# -- as processes ------------------------------------------------------------------------------------------------------


def test_the_quick_commands_load_no_torch_and_some_nothing_slow(chapter: Path) -> None:
    script = """
import sys
from coursework.cli import app
for command in sys.argv[1:]:
    try:
        app([command])
    except SystemExit:
        print("loaded", sorted({"torch", "numpy", "nbformat", "jsonschema"} & set(sys.modules)))
"""
    commands = ["--help", "start", "start", "status", "next"]
    run = subprocess.run([sys.executable, "-c", script, *commands], capture_output=True, text=True, cwd=chapter)
    loaded = [line for line in run.stdout.splitlines() if line.startswith("loaded")]
    assert loaded[:3] == ["loaded []"] * 3, run.stdout + run.stderr
    assert len(loaded) == 5
    assert "torch" not in loaded[-1]


def test_in_a_process_of_its_own(chapter: Path) -> None:
    assert process("start", cwd=chapter).returncode == 0
    edit(chapter / "my" / ONE, "exercise-causal-mask", WRONG_MASK)
    wrong = process("check", BUILD, cwd=chapter / "my")
    assert wrong.returncode == 1
    assert "Not yet" in wrong.stdout
    assert wrong.stderr == f"Checking {BUILD} …\nLoading PyTorch …\n"
    hint = process("hint", BUILD, cwd=chapter / "my")
    assert (hint.returncode, hint.stderr) == (0, "Loading PyTorch …\n")
    assert "PyTorch" not in hint.stdout
    none = process("status", cwd=chapter.parent)
    assert none.returncode == 2
    assert none.stdout == ""
    assert len(none.stderr.strip().splitlines()) == 1
    assert len(list((chapter / "my" / "answers" / "history" / BUILD).iterdir())) == 1


@pytest.mark.skipif(os.name != "posix", reason="uses a pipe that closes early")
def test_a_reader_that_stops_early(chapter: Path) -> None:
    course("start")
    for words in ("status", "train lm --settings"):
        pipe = f"{sys.executable} -u -m coursework.cli {words} | true"
        run = subprocess.run(pipe, shell=True, cwd=chapter, capture_output=True, text=True)
        assert "course:" not in run.stderr
        assert "Traceback" not in run.stderr


@pytest.mark.skipif(os.name != "posix", reason="sends SIGTERM")
def test_lab_serves_the_chapter(chapter: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {f"JUPYTER_{what}_DIR": str(tmp_path / what) for what in ("CONFIG", "DATA", "RUNTIME")}
    arguments = ["lab", "--no-browser", "--port", str(port), "--ServerApp.port_retries=0", "--IdentityProvider.token=t"]
    server = subprocess.Popen(
        [sys.executable, "-m", "coursework.cli", *arguments],
        cwd=chapter,
        env={**os.environ, **own},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        found, deadline = b"", time.monotonic() + 60
        while not found and time.monotonic() < deadline and server.poll() is None:
            try:
                address = f"http://127.0.0.1:{port}/api/contents/{ONE}?token=t"
                found = urllib.request.urlopen(address, timeout=5).read()
            except OSError:
                time.sleep(0.2)
        assert b"exercise-causal-mask" in found
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/lab/tree/{ONE}?token=t", timeout=10)
        assert page.status == 200
        settings = f"http://127.0.0.1:{port}/lab/api/settings/@jupyterlab/notebook-extension:tracker?token=t"
        schema = json.load(urllib.request.urlopen(settings, timeout=10))["schema"]
        assert schema["properties"]["codeCellConfig"]["default"]["lineWrap"] is True  # no cell has a scroll bar
    finally:
        server.send_signal(signal.SIGTERM)
        _, err = server.communicate(timeout=30)
    assert f"/lab/tree/{ONE}" in err  # the address that it prints is the chapter's


@pytest.mark.usefixtures("quick")
def test_without_an_id_it_is_the_next(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start")
    monkeypatch.setattr(registry, "places", lambda: {BUILD: "01_attention", QUESTION: "01_attention"})
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    assert course("next").startswith(BUILD)
    assert course("hint").startswith("Hint 1 of 3")
    assert f"Checking {BUILD} …" in course("check", "--file", "none.py", code=2)
    Desk(chapter / "my").save_answer(BUILD, "x", "right", "e")
    assert f"Checking {QUESTION} …" in course("check", code=1)


def test_a_chapter_in_one_process(chapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    course("start")
    monkeypatch.setattr(registry, "places", lambda: {BUILD: "01_attention", QUESTION: "01_attention"})
    edit(chapter / "my" / ONE, "exercise-causal-mask", WRONG_MASK)
    began: list[Any] = []
    start = Pen._open
    monkeypatch.setattr(Pen, "_open", lambda pen: began.append(pen) or start(pen))
    output = course("check", "--chapter", "1", code=1)
    assert re.search(rf"^{BUILD}: wrong \(.+\)$", output, re.MULTILINE)
    assert f"{QUESTION}: not attempted\n" in output
    assert output.endswith("1 wrong, 1 not attempted.\n")
    assert len(began) == (sys.platform == "linux")
    assert Desk(chapter / "my").attempts(BUILD) == 1  # kept, as by a check of one
    assert "def causal_mask" in course("solution", "--chapter", "1", "--reveal")
    assert "expected the number or name of a chapter" in course("check", "--chapter", "77", code=2)
    assert "name no exercise" in course("check", BUILD, "--chapter", "1", code=2)


@pytest.mark.usefixtures("quick")
def test_a_terminal_is_told_in_commands(chapter: Path) -> None:
    course("start")
    said = course("check", BUILD, code=1)
    assert f"A first hint: `course hint {BUILD}`" in said
    said += course("solution", BUILD)
    edit(chapter / "my" / ONE, "exercise-causal-mask", WRONG_MASK)
    said += course("check", BUILD, code=1)
    edit(chapter / "my" / ONE, "exercise-causal-mask", RIGHT_MASK)
    said += course("check", BUILD)
    said += "".join(course("hint", BUILD) for _ in range(4))
    for words in ("new cell", f"ex.{BUILD}.hint", f"ex.{BUILD}.solution", "below"):
        assert words not in said
    assert f"`course solution {BUILD} --reveal`" in said


def test_capstones_are_known(chapter: Path) -> None:
    from coursework.exercises.capstones import TASKS

    assert tuple(TASKS) == registry.CAPSTONES
    course("start")
    assert f"0 of {len(TASKS)} hold." in course("status")
    Desk(chapter / "my").save_answer("capstone_sizes", "x", "right", "1")
    assert f"1 of {len(TASKS)} hold: sizes." in course("status", "--chapter", "labs/06")
    assert "sizes is a capstone" in course("check", "sizes", code=2)


def test_an_exercise_that_a_capstone_is_called_like_is_the_exercise() -> None:
    for name in set(registry.CAPSTONES) & set(registry.places()):
        assert commands._named(name, None) == name


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(chapter: Path, quick: None) -> None:
    course("start")
    for path in (chapter / "my" / ONE, chapter / "my" / "my_transformer.py"):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    began = time.monotonic()
    for arguments, code in ((["update"], 1), (["rescue"], 1), (["check", BUILD], 2), (["assemble"], 2), (["start"], 1)):
        said = course(*arguments, code=code)
        assert "expected a file, got a pipe that nothing is written to" in said, arguments
    course("status")
    course("next")
    assert time.monotonic() - began < 60  # each would wait for ever


def test_one_too_many_is_named(chapter: Path) -> None:
    course("start")
    assert f"alone, got {BUILD} and --chapter 1" in course("solution", BUILD, "--chapter", "1", code=2)
    assert f"alone, got {BUILD} and --all" in course("reset", BUILD, "--all", code=2)
