"""`ex.<id>.part()`: what a learner solved comes back in a later chapter, and else the course's own stands in."""

from pathlib import Path

import nbformat
import pytest
import torch

from coursework import exercises as ex
from coursework.desk.store import Desk
from coursework.exercises import registry
from coursework.exercises.engine.cells import edition

OWN = "def causal_mask(T, S):\n    return torch.ones(T, S, dtype=torch.bool).tril(S - T)\n"
SPEC = registry.get("causal_mask")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    found = Desk(tmp_path / "my")
    found.private.mkdir(parents=True)
    monkeypatch.setenv("COURSE_DESK", str(found.folder))
    ex._learner.cache_clear()
    ex._handle.cache_clear()
    return found


def solve(desk: Desk, source: str, verdict: str = "right", of: str | None = None) -> None:
    desk.save_answer("causal_mask", source, verdict, of or edition(SPEC))


def test_the_latest_right_answer_comes_back(desk, capsys):
    solve(desk, "def causal_mask(T, S): return 'an older one'")
    solve(desk, f"print('loud')\n{OWN}\ncausal_mask = ex.causal_mask.check(causal_mask)\n")
    solve(desk, "def causal_mask(T, S): return None", "wrong")
    part = ex.causal_mask.part()
    assert part is not SPEC.reference
    assert torch.equal(part(2, 3), SPEC.reference(2, 3))
    said = capsys.readouterr().out
    assert said.startswith("causal_mask: yours (saved 20")
    assert said.count("\n") == 1


def test_an_answer_finds_what_its_notebook_defines(desk, capsys):
    cells = [
        nbformat.v4.new_code_cell("def lower(T, S): return torch.ones(T, S, dtype=torch.bool).tril(S - T)"),
        nbformat.v4.new_code_cell("pass", metadata={"exercise": "causal_mask"}),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), desk.folder / "01_attention.ipynb")
    solve(desk, "def causal_mask(T, S): return lower(T, S)")
    assert torch.equal(ex.causal_mask.part()(2, 3), SPEC.reference(2, 3))
    assert "causal_mask: yours (" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "of", "says"),
    [
        (None, None, "you have not solved it yet"),
        ("def causal_mask(", None, "not Python"),
        ("raise SystemExit", None, "running it raised SystemExit"),
        ("def other(): pass", None, "defines no `causal_mask`"),
        ("def causal_mask(T, S): return table[T]", None, "uses `table`, which it does not define"),
        ("def causal_mask(T, S): return 1", "0", "was right in an older edition, and is not today"),
    ],
    ids=["none", "no Python", "exits", "another", "a name", "an older edition"],
)
def test_the_courses_own_stands_in_and_says_why(desk, capsys, source, of, says):
    if source:
        solve(desk, source, of=of)
    assert ex.causal_mask.part() is SPEC.reference
    said = capsys.readouterr().out
    assert said.startswith("causal_mask: the course's own (")
    assert says in said


def test_an_answer_to_an_older_edition_that_still_holds_is_taken(desk):
    solve(desk, OWN, of="0")
    assert ex.causal_mask.part() is not SPEC.reference


def test_where_nothing_is_kept_the_line_is_always_the_same(desk, monkeypatch, capsys):
    solve(desk, OWN)
    monkeypatch.setenv("CI", "true")
    assert ex.scaled_dot_product_attention.part() is registry.get("scaled_dot_product_attention").reference
    assert ex.causal_mask.part() is SPEC.reference
    assert capsys.readouterr().out == "attention: the course's own\ncausal_mask: the course's own\n"
