"""The engine on a small exercise of its own: what it compares, what it says, what it keeps, what it gives back."""

import functools
import inspect
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from proofs import run_cell
from torch import nn

from course_lib import exercises as ex
from course_lib.exercises import registry
from course_lib.exercises.engine import session
from course_lib.exercises.engine.bench import NOT_ATTEMPTED, RIGHT, WRONG, Bench, bench
from course_lib.exercises.engine.check import examine
from course_lib.exercises.engine.messages import message
from course_lib.exercises.engine.question import judge
from course_lib.exercises.engine.run import run_module
from course_lib.exercises.engine.source import same_code, source_of
from course_lib.exercises.engine.spec import (
    Alternative,
    Exercise,
    Misconception,
    Probe,
    Property,
    Question,
    WrongAnswer,
)
from course_lib.exercises.engine.tensors import integers, mask, normal, strided


def center(x, dim=-1):
    """(..., E) -> the same shape, with mean zero along dim"""
    # A comment of the author.
    mean = x.mean(dim=dim, keepdim=True)
    return x - mean


def _model(along="dim", sign=-1.0, detached=False, power=1.0):
    def f(x, dim=-1):
        mean = x.mean() if along == "all" else x.mean(dim=0 if along == "first" else dim, keepdim=True)
        mean = mean.detach() if detached else mean
        return x * power + sign * mean

    return f


def _sums_to_zero(f):
    total = float(f(torch.tensor([[1.0, 2.0, 6.0]])).sum())
    return None if abs(total) < 1e-4 else f"The numbers of row 0 sum to {total:.2f}."


def make(**changes):
    fields = {
        "id": "center",
        "chapter": 1,
        "title": "Mean zero",
        "what": "Write `center(x, dim=-1)`.",
        "why": "Norms begin like this.",
        "difficulty": 1,
        "minutes": 2,
        "reference": center,
        "model": _model,
        "misconceptions": [
            Misconception(name="one-mean", knobs={"along": "all"}, statement="takes one mean", question="Whose mean?"),
            Misconception(name="first-axis", knobs={"along": "first"}, statement="uses axis 0", question="Which axis?"),
            Misconception(name="added", knobs={"sign": 1.0}, statement="adds the mean", question="Which sign?"),
            Misconception(name="cut", knobs={"detached": True}, statement="cuts the gradient", question="What moves?"),
            Misconception(name="twice", knobs={"power": 2.0}, statement="doubles x", question="How large?"),
        ],
        "probes": [
            Probe("2 rows, 3 columns", lambda: (normal(2, 3, seed=1),)),
            Probe("along the first axis", lambda: {"x": normal(3, 2, seed=2), "dim": 0}),
            Probe("float64, not contiguous", lambda: (strided(normal(3, 5, seed=3, dtype=torch.float64)),)),
            Probe("bfloat16", lambda: (normal(2, 7, seed=4, dtype=torch.bfloat16),)),
        ],
        "properties": [Property("Every row sums to zero.", _sums_to_zero)],
        "alternatives": [Alternative("by hand", lambda x, dim=-1: x - x.sum(dim, keepdim=True) / x.size(dim))],
        "hints": ("Where does the mean lie?", "It has as many entries as rows.", "return x - ____"),
        "sample": lambda draw: (draw.normal(2, 3),),
    }
    return Exercise(**(fields | changes))


@pytest.fixture(autouse=True)
def _fresh_session(monkeypatch):
    monkeypatch.setattr(session, "STATES", {})
    monkeypatch.setenv("CI", "true")  # no desk


@pytest.fixture
def exercise():
    return make()


def text_of(exercise, candidate, keep=False):
    return message(bench(exercise), examine(exercise, candidate), candidate, keep)


def aspect(exercise, candidate):
    finding = bench(exercise).examine(candidate)
    assert finding.verdict == WRONG
    return finding.failure.difference.aspect


# What is compared --------------------------------------------------------------------------------------------------


def test_each_aspect_is_compared(exercise):
    state = []

    def counting(x, dim=-1):
        state.append(1)
        return center(x, dim) + len(state)

    def forgetting(x, dim=-1):
        state.append(1)
        return center(x, dim) if len(state) % 2 else x

    def writing(x, dim=-1):
        result = center(x, dim)
        x.data.mul_(2)
        return result

    state.clear()
    assert aspect(exercise, forgetting) == "repeat"
    assert aspect(exercise, writing) == "mutation"
    assert aspect(exercise, lambda x, dim=-1: center(x, dim).double()) == "dtype"
    assert aspect(exercise, lambda x, dim=-1: center(x, dim).detach()) == "gradient"
    assert aspect(exercise, lambda x, dim=-1: center(x, dim)[0]) == "shape"
    assert aspect(exercise, lambda x, dim=-1: center(x, dim).tolist()) == "type"
    assert aspect(exercise, lambda x, dim=-1: (center(x, dim),)) == "type"
    assert aspect(exercise, lambda x, dim=-1: center(x, dim) * torch.nan) == "nan"
    assert aspect(exercise, lambda x, dim=-1: center(x, dim) + 1e-2) == "value"
    assert aspect(exercise, lambda x, dim=-1: center(x, dim).to("meta")) == "device"
    assert aspect(exercise, lambda x, dim=-1: center(x, dim) + 0 * torch.rand(1) + torch.rand(1)) == "value"
    assert aspect(exercise, lambda x: center(x)) == "error"


def test_switches_turn_comparisons_off():
    assert examine(make(gradients=False), lambda x, dim=-1: center(x, dim).detach()).verdict == RIGHT
    assert examine(make(dtypes=False), lambda x, dim=-1: center(x, dim).double()).verdict == RIGHT
    loose = make(tolerance=(0.0, 0.5), probes=[Probe("2 rows", lambda: (normal(2, 3, seed=1),))])
    assert examine(loose, lambda x, dim=-1: center(x, dim) + 0.1).verdict == RIGHT

    def writing(x, dim=-1):
        result = center(x, dim)
        x.data.mul_(2)
        return result

    assert examine(make(allow_mutation=True), writing).verdict == RIGHT


def test_an_expected_error_must_be_raised():
    def model(kind=ValueError):
        def f(x):
            if x < 0:
                raise kind("x: expected at least 0")
            return x

        return f

    spec = make(
        model=model,
        misconceptions=[
            Misconception(name="k", knobs={"kind": KeyError}, statement="raises KeyError", question="Which?")
        ],
        probes=[Probe("one", lambda: (1,)), Probe("minus one", lambda: (-1,))],
    )
    assert examine(spec, model()).verdict == RIGHT
    assert "It returns normally; a ValueError is expected." in text_of(spec, lambda x: x)
    assert "It raises ZeroDivisionError; a ValueError is expected: " in text_of(spec, lambda x: x if x > 0 else 1 // 0)
    assert "expected: raises ValueError" in repr(spec.cases())


def test_cost_is_counted_not_timed():
    def product(x, y):
        """(A, B), (B,) -> (A,)"""
        return x @ y

    def slowly(x, y):
        return (x @ y[:, None].expand(-1, 50))[:, 0]

    probes = [Probe("3 by 4", lambda: (normal(3, 4, seed=1), normal(4, seed=2)))]
    fields = {"reference": product, "model": lambda: product, "misconceptions": [], "probes": probes}
    limited = make(**fields, flop_limit=lambda x, y: 2 * x.numel())
    assert examine(limited, lambda x, y: x @ y).verdict == RIGHT
    assert examine(limited, slowly).verdict == WRONG
    assert "at 1200 floating-point operations" in text_of(limited, slowly)
    narrow = make(**fields, element_limit=lambda x, y: x.numel())
    assert examine(narrow, lambda x, y: (x * y).sum(-1)).verdict == RIGHT
    assert "150 elements in the largest tensor" in text_of(narrow, slowly)


def test_modules_run_with_declared_weights():
    class Scale(nn.Module):
        """x (T, D) -> (T, D), each component times its weight"""

        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width))

        def forward(self, x):
            """(T, D) -> (T, D)"""
            return x * self.weight

    class Renamed(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return x * self.scale

    class Stub(Scale):
        def forward(self, x):
            raise NotImplementedError

    class Squared(Scale):
        def forward(self, x):
            return x * self.weight**2

    spec = make(
        reference=Scale,
        model=lambda power=1: Scale if power == 1 else Squared,
        misconceptions=[Misconception(name="sq", knobs={"power": 2}, statement="squares", question="Why?")],
        probes=[Probe("2 by 3", lambda: ((3,), {"weight": normal(3, seed=1)}, normal(2, 3, seed=2)))],
        run=run_module,
        blank=("forward",),
    )
    assert examine(spec, Scale).verdict == RIGHT
    assert examine(spec, Stub).verdict == NOT_ATTEMPTED
    assert "Your class behaves exactly like one that squares." in text_of(spec, Squared)
    assert "the module has no parameter 'weight'; it has scale" in text_of(spec, Renamed)
    stub = spec.cell_source()
    assert "self.weight = nn.Parameter(torch.randn(width))" in stub
    assert "raise NotImplementedError  # your code here" in stub
    assert "return x * self.weight" not in stub
    assert "gradient with respect to weight" in text_of(
        spec, type("Cut", (Scale,), {"forward": lambda self, x: x * self.weight.detach()})
    ) or "no gradient reaches weight" in text_of(
        spec, type("Cut", (Scale,), {"forward": lambda self, x: x * self.weight.detach()})
    )


def test_the_random_state_and_the_grad_mode_outside_are_left_alone(exercise):
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    before = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    with torch.no_grad():
        assert examine(exercise, center).verdict == RIGHT
        assert not torch.is_grad_enabled()
    assert (torch.rand(1), random.random(), np.random.rand()) == before


# What is said ------------------------------------------------------------------------------------------------------


def test_the_tiers_of_messages(exercise):
    assert text_of(exercise, center).splitlines() == [
        "Right: center. It agrees with the course's version on all 4 cases (values, gradients, dtypes, a second call).",
        "How the course writes it, and other right ways: ex.center.solution()",
    ]
    one = text_of(exercise, lambda x, dim=-1: x + x.mean(dim, keepdim=True))
    assert "Your function behaves exactly like one that adds the mean." in one
    assert "Which sign?" not in one  # that is for hint()
    two = text_of(exercise, lambda x, dim=-1: 2 * x + x.mean(dim, keepdim=True))
    assert "two mistakes at once:\n- it adds the mean;\n- it doubles x." in two
    other = text_of(exercise, lambda x, dim=-1: x - x.mean(dim, keepdim=True) / 2)
    assert "It breaks this law: Every row sums to zero.\nThe numbers of row 0 sum to 4.50." in other
    assert "open an issue with this text" in other
    assert f"Exercise center, edition {exercise.edition}" in other
    for text in (one, two, other):
        assert "The smallest case that shows it: 2 rows, 3 columns." in text
        assert "expected: float32 (2, 3)" in text
        assert "yours: float32 (2, 3)" in text
        assert "x - mean" not in text
        assert max(map(len, text.splitlines())) < 130


def test_an_error_is_shown_with_its_line_and_without_addresses(exercise):
    def broken(x, dim=-1):
        thing = object()
        return x + {thing: 1}[repr(thing)]

    text = text_of(exercise, broken)
    assert "It raises KeyError" in text
    assert "In the line: return x + {thing: 1}[repr(thing)]" in text
    assert "0x" not in text
    assert "issue" not in text
    assert "Is the return missing?" in text_of(exercise, lambda x, dim=-1: None)


def test_writing_into_an_input_is_explained(exercise):
    def broken(x, dim=-1):
        x -= x.mean(dim, keepdim=True)
        return x

    assert "It changes one of its arguments in place. In the line: x -= x.mean(dim, keepdim=True)" in text_of(
        exercise, broken
    )


def test_what_the_answer_prints_is_shown_once_for_the_failing_case(exercise, capsys):
    def chatty(x, dim=-1):
        print("shape", tuple(x.shape))
        print("noise", file=sys.stderr)
        return x

    exercise.check(chatty)
    shown = capsys.readouterr()
    assert shown.out.count("shape (2, 3)") == 1
    assert shown.err == ""


def test_the_same_text_twice(exercise):
    def wrong(x, dim=-1):
        return x - x.mean(dim, keepdim=True) + torch.rand(()) * 1e-2

    for candidate in (wrong, _model(sign=1.0), _model(sign=1.0, power=2.0), center):
        assert text_of(exercise, candidate) == text_of(make(), candidate)


def test_things_that_are_no_functions(exercise):
    assert "check expects a function; it got a float32 tensor." in text_of(exercise, torch.ones(2))
    assert "it got None" in text_of(exercise, None)


def test_a_wrong_diagnosis_is_never_made_from_a_slip(exercise):
    def typo(x, dim=-1):
        return x - meen  # noqa: F821

    finding = bench(exercise).examine(typo)
    assert not finding.fits
    assert "NameError: name 'meen' is not defined" in text_of(exercise, typo)


# What is returned --------------------------------------------------------------------------------------------------


def test_check_returns_what_lets_the_notebook_go_on(exercise, capsys):
    def right(x, dim=-1):
        return x - x.mean(dim=dim, keepdim=True)

    def wrong(x, dim=-1):
        return x

    def stub(x, dim=-1):
        raise NotImplementedError

    assert exercise.check(right) is right
    assert exercise.check(wrong) is center
    assert "The course's own version goes on below" in capsys.readouterr().out
    assert exercise.check(wrong, keep=True) is wrong
    assert "Your own version goes on below" in capsys.readouterr().out
    assert exercise.check(stub) is center
    assert exercise.check(stub, keep=True) is center
    assert capsys.readouterr().out.count("Not attempted yet: center.") == 2


def test_torch_errors_of_the_kind_of_a_stub_are_errors(exercise):
    def odd(x, dim=-1):
        raise NotImplementedError("\"mean\" not implemented for 'Bool'")

    assert examine(exercise, odd).verdict == WRONG


def test_unchanged_broken_code_is_not_attempted():
    def center(x, dim=-1):
        """(..., E) -> the same shape, with mean zero along dim"""
        return x + x.mean(dim=dim, keepdim=True)

    spec = make(kind="debug", given=center)
    names, _ = run_cell(spec.cell_source().split("\n\n\n")[0])
    assert examine(spec, names["center"]).verdict == NOT_ATTEMPTED
    assert examine(spec, _model(sign=1.0)).verdict == WRONG
    assert spec.solved_cell_source().startswith("def center(x, dim=-1):")


# Hints and solution ------------------------------------------------------------------------------------------------


def test_hints_escalate_and_begin_with_the_recognised_mistake(exercise, capsys):
    exercise.check(_model(sign=1.0, power=2.0))
    capsys.readouterr()
    said = []
    for _ in range(6):
        exercise.hint()
        said.append(capsys.readouterr().out)
    assert "Which sign?" in said[0]
    assert "How large?" in said[1]
    assert "Hint 1 of 3, a question:\nWhere does the mean lie?" in said[2]
    assert "Hint 2 of 3" in said[3]
    assert "return x - ____" in said[4]
    assert said[5] == said[4]  # no fourth
    exercise.check(_model(along="all"))
    capsys.readouterr()
    exercise.hint()
    assert "Whose mean?" in capsys.readouterr().out


def test_the_solution_comes_after_an_attempt_and_more_after_success(exercise, capsys):
    exercise.solution()
    assert "Try center once first" in capsys.readouterr().out
    exercise.solution(reveal=True)
    assert "mean = x.mean" in capsys.readouterr().out
    exercise.check(_model(sign=1.0))
    capsys.readouterr()
    exercise.solution()
    first = capsys.readouterr().out
    assert "# A comment of the author." in first
    assert "Another right way" not in first
    exercise.check(center)
    capsys.readouterr()
    exercise.solution()
    assert "# Another right way: by hand." in capsys.readouterr().out


def test_cells_hold_stub_and_solution(exercise):
    assert exercise.cell_source() == (
        "def center(x, dim=-1):\n"
        '    """(..., E) -> the same shape, with mean zero along dim"""\n'
        "    raise NotImplementedError  # your code here\n\n\n"
        "center = ex.center.check(center)\n"
    )
    assert "# A comment of the author." in exercise.solved_cell_source()
    with_extras = make(setup="import itertools", helpers=(_sums_to_zero,), scaffold="# first the mean\n# then subtract")
    source = with_extras.cell_source()
    assert source.startswith("import itertools\n\n\ndef _sums_to_zero(f):")
    assert "    # first the mean\n    # then subtract\n    raise NotImplementedError" in source


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
    exercise.check(center)
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
    exercise.check(_model(sign=1.0))
    exercise.check(center)
    files = sorted((desk / "answers" / "history" / "center").glob("*.py"))
    assert [f"verdict: {verdict}" in file.read_text() for file, verdict in zip(files, ["wrong", "right"], strict=True)]
    assert f"edition: {exercise.edition}" in files[0].read_text()
    assert "mean = x.mean" in (desk / "answers" / "center.py").read_text()
    session.STATES.clear()  # another day
    capsys.readouterr()
    exercise.solution()
    assert "Another right way" in capsys.readouterr().out


def test_trouble_with_saving_is_one_line_and_no_more(exercise, desk, capsys, monkeypatch):
    from course_lib.desk import store

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.Desk, "save_answer", full)
    assert exercise.check(center) is center
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Right: center.")
    assert len(lines) == 3
    assert "No space left on device" in lines[2]


def test_a_missing_desk_module_is_tolerated(exercise, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "course_lib.desk.store", None)
    assert exercise.check(center) is center
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

    assert examine(exercise, Callable()).verdict == RIGHT
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
        "chapter": 1,
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


def test_questions_name_known_mistakes_and_lead_out(capsys):
    spec = question()
    spec.answer(None)
    spec.answer(12)
    said = capsys.readouterr().out
    assert "Not answered yet: how_many." in said
    assert "Not yet: how_many. That is the number for one head." in said
    spec.hint()
    assert "How many heads are there?" in capsys.readouterr().out
    spec.solution()
    assert "The answer is 96.\n8 heads of 12." in capsys.readouterr().out
    spec.answer(96)
    assert "Right: how_many.\n8 heads of 12." in capsys.readouterr().out
    assert spec.cell_source() == "answer = None  # your answer here: a whole number\nex.how_many.answer(answer)\n"
    assert spec.solved_cell_source() == "answer = 96\nex.how_many.answer(answer)\n"


# Registry ----------------------------------------------------------------------------------------------------------


def test_unknown_names_lead_to_the_closest_ones():
    with pytest.raises(AttributeError, match="Did you mean causal_mask"):
        _ = ex.casual_mask
    with pytest.raises(KeyError, match="Did you mean"):
        registry.get("scaled_dot_attention")
    assert not hasattr(ex, "__path_of_something__")


def test_progress_is_a_plain_table(capsys):
    entry = registry.get("causal_mask")
    entry.check(entry.reference)
    capsys.readouterr()
    ex.progress()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["chapter", "exercise", "kind", "difficulty", "state", "attempts", "hints"]
    assert len(lines) == len(registry.chapters()) + 2
    assert any(line.split() == ["01", "causal_mask", "build", "2", "solved", "1", "0"] for line in lines)
    assert lines[-1] == f"1 of {len(registry.chapters())} solved."


def test_importing_the_exercises_loads_none_of_them():
    code = (
        "import sys, course_lib.exercises as ex\n"
        "assert not any(name.startswith('course_lib.exercises.') for name in sys.modules), sys.modules\n"
        "assert 'torch' not in sys.modules\n"
        "ex.causal_mask\n"
        "loaded = [n for n in sys.modules if n.startswith('course_lib.exercises.ch01.')]\n"
        "assert loaded == ['course_lib.exercises.ch01.causal_mask'], loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"id": "not an id"}, "id"),
        ({"kind": "guess"}, "kind"),
        ({"chapter": 9}, "chapter"),
        ({"difficulty": 0}, "difficulty"),
        ({"minutes": 0}, "minutes"),
        ({"hints": ("one",)}, "hints"),
        ({"kind": "debug"}, "given"),
        ({"probes": []}, "probes"),
    ],
)
def test_a_specification_that_contradicts_itself_is_refused(changes, names):
    with pytest.raises(ValueError, match=f"^{names}: expected"):
        make(**changes)


# Probes ------------------------------------------------------------------------------------------------------------


def test_probe_tensors_are_the_same_everywhere():
    assert normal(3, seed=1).tolist() == pytest.approx([1.62, -0.61, -0.53], abs=1e-6)
    assert integers(4, low=0, high=3, seed=1).tolist() == [1, 3, 0, 0]
    assert mask(4, seed=1).tolist() == [True, False, True, True]
    x = strided(normal(2, 3, seed=1))
    assert not x.is_contiguous()
    assert x.is_leaf
    assert x.requires_grad
    assert torch.equal(x, normal(2, 3, seed=1))


def test_a_bench_of_its_own_gives_the_same_finding(exercise):
    a, b = Bench(exercise).examine(_model(sign=1.0)), Bench(make()).examine(_model(sign=1.0))
    assert [m.name for m in a.mistakes] == [m.name for m in b.mistakes] == ["added"]
