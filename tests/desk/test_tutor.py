"""What an assistant is told: never a line of the solution, and only the hints that are due."""

import json
import re

import pytest
from typer.testing import CliRunner

from coursework import cli
from coursework.desk import copies, judge, tutor, updates
from coursework.desk.store import Desk
from coursework.exercises import registry
from coursework.exercises.engine.cells import BLANK, cell_source, solved_cell_source
from coursework.exercises.spec import Exercise

WRONG = "import torch\n\ndef causal_mask(T, S):\n    return torch.ones(T, S, dtype=torch.bool).tril()\n"


def bare(text: str) -> str:
    return re.sub(r"\s+", "", re.sub(r"#.*", "", text))


def solution_lines(entry) -> set[str]:
    """The lines that the learner is to write, without space, and what explains the answer to a question."""
    given = {bare(line) for line in cell_source(entry).splitlines()}
    lines = {bare(line) for line in solved_cell_source(entry).splitlines()} - given
    if not isinstance(entry, Exercise):
        lines |= {bare(sentence) for sentence in re.split(r"(?<=[.;:])\s", entry.explanation)}
    return {line for line in lines if len(line) > 5}


def texts(entry):
    """Everything that the contract lets through on an exercise."""
    wrong = entry.misconceptions if isinstance(entry, Exercise) else entry.wrong
    for one in wrong:
        yield from (one.statement, one.question)
    if isinstance(entry, Exercise):
        yield from (case.name for case in entry.cases)
    said = {"verdict": "wrong", "misconceptions": [], "case": None, "problem": ""}
    yield from (hint["text"] for hint in judge.facts(entry, said, Tried())["hints"])


class Tried:
    """A desk at which every exercise was tried often."""

    def progress(self):
        return {name: {"attempts": 9} for name in registry.places()}


def test_no_line_of_a_solution_gets_through():
    leaks, seen = [], 0
    for entry in registry.all_exercises():
        lines = solution_lines(entry)
        assert lines, f"{entry.id}: nothing to look for"
        for text in texts(entry):
            seen += 1
            leaks += [f"{entry.id}: {line!r} in {text!r}" for line in lines if line in bare(text)]
    print(f"{len(registry.places())} exercises x {seen} texts: {len(leaks)} leaks")
    assert seen > 8 * len(registry.places())
    assert not leaks, "\n".join(leaks)


def test_the_search_for_leaks_finds_the_skeletons_as_they_are_written():
    """They hold every line but the decisive one, so they are what the filter is for."""
    entry = registry.get("causal_mask")
    assert any(line in bare(entry.hints[2]) for line in solution_lines(entry))
    assert BLANK in judge.without_solution(entry)


@pytest.mark.parametrize(("attempts", "levels"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_a_level_more_for_each_attempt(attempts, levels):
    class Counted:
        def progress(self):
            return {"causal_mask": {"attempts": attempts}}

    said = {"verdict": "wrong", "misconceptions": [], "case": None, "problem": ""}
    found = judge.facts(registry.get("causal_mask"), said, Counted())
    assert [hint["level"] for hint in found["hints"]] == list(range(1, levels + 1))
    assert found["next_level"] == (levels + 1 if levels < 3 else None)
    assert judge.facts(registry.get("causal_mask"), said | {"verdict": "right"}, Counted())["hints"] == []


def test_check_says_it_as_json(tmp_path):
    (tmp_path / "answer.py").write_text(WRONG)
    done = CliRunner().invoke(cli.app, ["check", "causal-mask", "--file", str(tmp_path / "answer.py"), "--json"])
    said = json.loads(done.stdout)
    assert done.exit_code == 1
    documented = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", tutor.CONTRACT, re.MULTILINE))))
    assert set(said) == documented - {"key"}
    assert (said["schema"], said["verdict"], said["exercise"]) == ("course-check/1", "wrong", "causal_mask")
    assert said["misconceptions"][0]["name"] == "aligned-top-left"
    assert said["case"]["name"]


def test_check_says_as_json_why_it_could_not_be_run(tmp_path):
    (tmp_path / "answer.py").write_text("def causal_mask(:\n")
    done = CliRunner().invoke(cli.app, ["check", "causal_mask", "--file", str(tmp_path / "answer.py"), "--json"])
    assert done.exit_code == 2
    said = json.loads(done.stdout)
    assert said["verdict"] == "not run"
    assert "not Python yet" in said["problem"]


def test_check_says_as_json_that_it_was_ended(tmp_path):
    (tmp_path / "answer.py").write_text("import os\nos._exit(0)\n")
    done = CliRunner().invoke(cli.app, ["check", "causal_mask", "--file", str(tmp_path / "answer.py"), "--json"])
    assert done.exit_code == 2
    assert "ended the whole process" in json.loads(done.stdout)["problem"]


def test_the_contract_is_renewed_unless_it_was_edited(desk: Desk, course, monkeypatch):
    path = desk.folder / tutor.NAME
    first = path.read_text(encoding="utf-8")
    assert tutor.CONTRACT in first
    monkeypatch.setattr(tutor, "CONTRACT", tutor.CONTRACT + "\nOne more rule.\n")
    updates.update(desk)
    renewed = path.read_text(encoding="utf-8")
    assert renewed.endswith("One more rule.\n")
    path.write_text(renewed + "mine", encoding="utf-8")
    monkeypatch.setattr(tutor, "CONTRACT", "all new\n")
    updates.update(desk)
    copies.create(desk.folder)
    assert path.read_text(encoding="utf-8") == renewed + "mine"


def test_a_contract_that_cannot_be_written_is_told(desk: Desk, course):
    path = desk.folder / tutor.NAME
    path.unlink()
    path.mkdir()
    (line,) = copies.create(desk.folder).problems
    (*_, report) = updates.update(desk)
    assert (report.name, report.outcome, report.note) == (tutor.NAME, "failed", line)
    assert str(path) in line
