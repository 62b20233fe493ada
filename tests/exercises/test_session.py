"""Around a check: hints, solutions, cells, cases, saved answers and their sources, questions, the registry."""

import functools
import inspect
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from proofs import run_cell
from small_exercise import center, make, model, sums_to_zero
from torch import nn

from coursework import exercises as ex
from coursework.desk.finding import find_desk
from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.engine.diagnose import RIGHT, WRONG, diagnose
from coursework.exercises.engine.question import judge
from coursework.exercises.engine.source import same_code, source_of
from coursework.exercises.handle import ExerciseHandle, QuestionHandle
from coursework.exercises.learner import Progress
from coursework.exercises.spec import Question, WrongAnswer, misconceptions


@pytest.fixture(autouse=True)
def _fresh_session(monkeypatch):
    ex._learner.cache_clear()
    ex._handle.cache_clear()
    monkeypatch.setenv("CI", "true")  # no desk


own_center = types.FunctionType(center.__code__, center.__globals__, "center", center.__defaults__)


@pytest.fixture
def exercise():
    return ExerciseHandle(make(), Progress(find_desk))


# Hints and solution ------------------------------------------------------------------------------------------------


def test_hints_escalate_and_begin_with_the_recognised_misconception(exercise, capsys):
    exercise.check(model(sign=1.0, power=2.0))
    capsys.readouterr()
    said = []
    for _ in range(6):
        exercise.hint()
        said.append(capsys.readouterr().out)
    assert "Which sign?" in said[0]
    assert "How large?" in said[1]
    assert "Hint 1 of 3, a question:\nWhere does the mean lie?" in said[2]
    assert "Hint 2 of 3" in said[3]
    assert "The check also looks at float64" in said[3]
    assert "return x - ____" in said[4]
    assert said[5] == said[4]  # no fourth
    exercise.check(model(along="all"))
    capsys.readouterr()
    exercise.hint()
    assert "Whose mean?" in capsys.readouterr().out


def test_the_solution_comes_after_an_attempt_and_more_after_success(exercise, capsys):
    exercise.solution()
    assert "Try center once first" in capsys.readouterr().out
    exercise.solution(reveal=True)
    assert "mean = x.mean" in capsys.readouterr().out
    exercise.check(model(sign=1.0))
    capsys.readouterr()
    exercise.solution()
    first = capsys.readouterr().out
    assert "# A comment of the author." in first
    assert "Another right way" not in first
    exercise.check(own_center)
    capsys.readouterr()
    exercise.solution()
    assert "# Another right way: by hand." in capsys.readouterr().out


def test_cells_hold_stub_and_solution(exercise):
    assert cells.cell_source(exercise.spec) == (
        "def center(x, dim=-1):\n"
        '    """(..., E) -> the same shape, with mean zero along dim"""\n'
        "    raise NotImplementedError  # your code here\n\n\n"
        "center = ex.center.check(center)\n"
    )
    assert "# A comment of the author." in cells.solved_cell_source(exercise.spec)
    with_extras = make(helpers=(sums_to_zero,))
    source = cells.cell_source(with_extras)
    assert source.startswith("def sums_to_zero(f):")


def test_cases_can_be_looked_at_and_taken(exercise):
    cases = exercise.cases()
    assert len(cases) == 4
    assert "1. along the first axis" in repr(cases)
    assert "dim = 0" in repr(cases)
    assert torch.equal(center(**cases[1].arguments), cases[1].expected)
    assert cases[0].arguments["x"].requires_grad
    assert [case.name for case in cases][2] == "float64, not contiguous"


def test_reset_and_restore_give_cells_back(exercise, capsys, tmp_path, monkeypatch):
    exercise.reset()
    assert "raise NotImplementedError  # your code here" in capsys.readouterr().out
    exercise.restore()
    assert "There is no saved answer to center." in capsys.readouterr().out
    (tmp_path / ".course").mkdir()
    monkeypatch.delenv("CI")
    monkeypatch.setenv("COURSE_DESK", str(tmp_path))
    exercise.check(own_center)
    capsys.readouterr()
    exercise.restore()
    restored = capsys.readouterr().out
    assert "# A comment of the author." in restored
    assert restored.rstrip().endswith("center = ex.center.check(center)")


# Saving ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path, monkeypatch):
    (tmp_path / ".course").mkdir()
    monkeypatch.delenv("CI")
    monkeypatch.setenv("COURSE_DESK", str(tmp_path))
    return tmp_path


def test_answers_are_saved_with_their_verdict(exercise, desk, capsys):
    exercise.check(model(sign=1.0))
    exercise.check(own_center)
    files = sorted((desk / "answers" / "history" / "center").glob("*.py"))
    assert [f"verdict: {verdict}" in file.read_text() for file, verdict in zip(files, ["wrong", "right"], strict=True)]
    assert f"edition: {cells.edition(exercise.spec)}" in files[0].read_text()
    assert "mean = x.mean" in (desk / "answers" / "center.py").read_text()
    capsys.readouterr()
    ExerciseHandle(exercise.spec, Progress(find_desk)).solution()  # another day
    assert "Another right way" in capsys.readouterr().out


def test_the_version_of_the_course_is_no_answer(exercise, desk, capsys):
    stand_in = exercise.check(lambda x, dim=-1: None)
    exercise.check(stand_in)
    assert "is the course's own here, not yours" in capsys.readouterr().out
    assert not exercise.progress.standing(exercise.spec).solved


def test_trouble_with_saving_is_one_line_and_no_more(exercise, desk, capsys, monkeypatch):
    from coursework.desk import store

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.Desk, "save_answer", full)
    assert exercise.check(own_center) is own_center
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Right: center.")
    assert len(lines) == 3
    assert "No space left on device" in lines[2]


def test_a_missing_desk_module_is_tolerated(exercise, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "coursework.desk.finding", None)
    assert ExerciseHandle(make(), Progress(ex._find_desk)).check(center) is center
    assert capsys.readouterr().out.splitlines()[0].startswith("Right: center.")


def test_sources_are_found_or_their_absence_is_endured(exercise, desk, capsys):
    names = {}
    exec("def center(x, dim=-1):\n    return x - x.mean(dim, keepdim=True)", names)
    assert source_of(names["center"]) == ""
    assert exercise.check(names["center"]) is names["center"]
    assert "not available" in (desk / "answers" / "center.py").read_text()
    assert source_of(functools.partial(center, dim=0)) == inspect.getsource(center)
    assert source_of(nn.Linear(1, 1)).startswith("class Linear")
    assert source_of(len) == ""
    assert source_of(lambda x: x).strip()

    class Callable:
        def __call__(self, x, dim=-1):
            return helper(x, dim)

    def helper(x, dim):
        return x - x.mean(dim, keepdim=True)

    assert diagnose(exercise.spec, Callable()).verdict == RIGHT
    assert "class Callable" in source_of(Callable())


def test_a_notebook_cell_is_saved_whole():
    cell = "def helper(x):\n    return 2 * x\n\ndef f(x):\n    return helper(x)\n"
    names, _ = run_cell(cell)
    assert source_of(names["f"]) == cell


def test_same_code_ignores_where_it_stands():
    def one(x):
        return [y + 1 for y in x]

    names = {}
    exec("\n\n\ndef two(x):\n    return [y + 1 for y in x]", names)
    assert same_code(one, names["two"])
    assert not same_code(one, center)
    assert not same_code(one, None)


# Questions ---------------------------------------------------------------------------------------------------------


def question(**changes):
    fields = {
        "id": "how_many",
        "title": "How many",
        "what": "How many?",
        "why": "To know.",
        "difficulty": 1,
        "minutes": 1,
        "right": 96,
        "wrong": [WrongAnswer(12, "the number for one head", "How many heads are there?")],
        "hints": ("How many heads?", "Multiply.", "n = 12 * ____"),
        "explanation": "8 heads of 12.",
    }
    return Question(**(fields | changes))


def test_questions_accept_every_way_of_writing_the_answer():
    spec = question()
    for value in (96, 96.0, np.int64(96), torch.tensor(96), np.float32(96)):
        assert judge(spec, value)[0] == RIGHT
    shape = question(right=(2, 3, 5), wrong=[])
    for value in ((2, 3, 5), [2, 3, 5], torch.Size([2, 3, 5]), torch.empty(2, 3, 5).shape):
        assert judge(shape, value)[0] == RIGHT
    near = question(right=0.35, tolerance=0.05)
    assert judge(near, 0.36)[0] == RIGHT
    assert judge(near, 0.4)[0] == WRONG
    choice = question(right="b", choices={"a": "one", "b": "two"}, wrong=[WrongAnswer("a", "the first", "Why?")])
    assert judge(choice, " B ")[0] == RIGHT
    assert judge(choice, "c")[2] == "'c' is not a choice. how_many expects one of 'a', 'b'."
    assert judge(question(right=True, wrong=[]), True)[0] == RIGHT
    assert judge(question(right=True, wrong=[]), 1)[0] == WRONG


def test_questions_name_known_wrong_answers_and_lead_out(capsys):
    spec = question()
    asked = QuestionHandle(spec, Progress())
    asked.answer(None)
    asked.answer(12)
    said = capsys.readouterr().out
    assert "Not answered yet: how_many." in said
    assert "Not yet: how_many. That is the number for one head." in said
    asked.hint()
    assert "How many heads are there?" in capsys.readouterr().out
    asked.solution()
    assert "The answer is 96.\n8 heads of 12." in capsys.readouterr().out
    asked.answer(96)
    assert "Right: how_many.\n8 heads of 12." in capsys.readouterr().out
    assert cells.cell_source(spec) == "answer = None  # your answer here: a whole number\nex.how_many.answer(answer)\n"
    assert cells.solved_cell_source(spec) == "answer = 96\nex.how_many.answer(answer)\n"


# Registry ----------------------------------------------------------------------------------------------------------


def test_unknown_names_lead_to_the_closest_ones():
    with pytest.raises(AttributeError, match="Did you mean causal_mask"):
        _ = ex.casual_mask
    with pytest.raises(KeyError, match="Did you mean"):
        registry.get("scaled_dot_attention")
    assert not hasattr(ex, "__path_of_something__")


def test_progress_is_a_plain_table(capsys):
    ex.causal_mask.check(registry.get("causal_mask").reference)
    capsys.readouterr()
    ex.progress()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["chapter", "exercise", "kind", "difficulty", "state", "attempts", "hints"]
    assert len(lines) == len(registry.places()) + 2
    assert any(line.split() == ["01", "causal_mask", "build", "2", "solved", "1", "0"] for line in lines)
    assert lines[-1] == f"1 of {len(registry.places())} solved."


def test_importing_the_exercises_loads_none_of_them():
    code = (
        "import sys, coursework.exercises as ex\n"
        "assert not any(name.startswith('coursework.exercises.') for name in sys.modules), sys.modules\n"
        "assert 'torch' not in sys.modules\n"
        "ex.causal_mask\n"
        "loaded = [n for n in sys.modules if n.startswith('coursework.exercises.bank.')]\n"
        "assert loaded == ['coursework.exercises.bank.causal_mask'], loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"kind": "guess"}, "kind"),
        ({"difficulty": 0}, "difficulty"),
        ({"minutes": 0}, "minutes"),
        ({"hints": ("one",)}, "hints"),
        ({"kind": "debug"}, "given"),
        ({"cases": []}, "cases"),
    ],
)
def test_a_specification_that_contradicts_itself_is_refused(changes, names):
    with pytest.raises(ValueError, match=f"^{names}: expected"):
        make(**changes)


def test_misconceptions_are_read_from_a_text():
    found = misconceptions("""
# A comment of the author.
added (sign=1.0, along="all"): adds the mean, in a sentence
        of two lines
    Which sign
        has it?
largest (pick=max): takes the largest
    How large?
""")
    assert [(one.name, one.knobs, one.statement, one.question) for one in found] == [
        ("added", {"sign": 1.0, "along": "all"}, "adds the mean, in a sentence of two lines", "Which sign has it?"),
        ("largest", {"pick": max}, "takes the largest", "How large?"),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("added: adds the mean\n    Which sign?", 1),
        ("added (sign=1.0) adds the mean\n    Which sign?", 1),
        ("added (sign=): adds the mean\n    Which sign?", 1),
        ("added (sign=1.0): adds the mean\nWhich sign?", 1),
        ("added (sign=1.0): adds the mean\n    Which sign.", 1),
        ("a (b=1): c\n    d?\n# e\nadded (sign=1.0): adds the mean", 4),
        ("a (b=1): c\n    d?\n    Which sign?\nadded (sign=1.0): adds", 3),
    ],
)
def test_an_ill_formed_misconception_is_named_by_its_line_and_exercise(text, line, monkeypatch):
    def load(name):
        misconceptions(f"\n{text}\n")

    monkeypatch.setattr(registry.importlib, "import_module", load)
    with pytest.raises(ValueError, match=f"^causal_mask: misconceptions, line {line}: expected"):
        registry.get.__wrapped__("causal_mask")
