"""The engine on a small exercise: what it compares, what it says, and what it gives back to go on with."""

import random
import sys

import numpy as np
import pytest
import torch
from proofs import run_cell
from small_exercise import center, make, model
from torch import nn

from coursework.exercises.engine import cells
from coursework.exercises.engine.cases import Cases
from coursework.exercises.engine.diagnose import NOT_ATTEMPTED, RIGHT, WRONG, Examiner, diagnose, examiner
from coursework.exercises.engine.messages import message
from coursework.exercises.handle import ExerciseHandle
from coursework.exercises.learner import Progress
from coursework.exercises.spec import (
    Case,
    Misconception,
)
from coursework.exercises.tensors import integers, mask, normal, strided


@pytest.fixture
def exercise():
    return make()


def text_of(exercise, candidate, keep=False):
    return message(exercise, diagnose(exercise, candidate), candidate, keep)


def check(exercise, candidate, **options):
    return ExerciseHandle(exercise, Progress()).check(candidate, **options)


def aspect(exercise, candidate):
    finding = examiner(exercise).examine(candidate)
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
    assert diagnose(make(gradients=False), lambda x, dim=-1: center(x, dim).detach()).verdict == RIGHT
    loose = make(tolerance=(0.0, 0.5), cases=[Case("2 rows", lambda: (normal(2, 3, seed=1),))])
    assert diagnose(loose, lambda x, dim=-1: center(x, dim) + 0.1).verdict == RIGHT


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
        cases=[Case("one", lambda: (1,)), Case("minus one", lambda: (-1,))],
    )
    assert diagnose(spec, model()).verdict == RIGHT
    assert "It returns normally; a ValueError is expected." in text_of(spec, lambda x: x)
    assert "It raises ZeroDivisionError; a ValueError is expected: " in text_of(spec, lambda x: x if x > 0 else 1 // 0)
    assert "expected: raises ValueError" in repr(Cases(spec))


def test_cost_is_counted_not_timed():
    def product(x, y):
        """(A, B), (B,) -> (A,)"""
        return x @ y

    def slowly(x, y):
        return (x @ y[:, None].expand(-1, 50))[:, 0]

    cases = [Case("3 by 4", lambda: (normal(3, 4, seed=1), normal(4, seed=2)))]
    fields = {"reference": product, "model": lambda: product, "misconceptions": [], "cases": cases}
    limited = make(**fields, flop_limit=lambda x, y: 2 * x.numel())
    assert diagnose(limited, lambda x, y: x @ y).verdict == RIGHT
    assert diagnose(limited, slowly).verdict == WRONG
    assert "at 1200 floating-point operations" in text_of(limited, slowly)
    narrow = make(**fields, element_limit=lambda x, y: x.numel())
    assert diagnose(narrow, lambda x, y: (x * y).sum(-1)).verdict == RIGHT
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
        cases=[Case("2 by 3", lambda: ((3,), {"weight": normal(3, seed=1)}, normal(2, 3, seed=2)))],
        run=run_module,
        blank=("forward",),
    )
    assert diagnose(spec, Scale).verdict == RIGHT
    assert diagnose(spec, Stub).verdict == NOT_ATTEMPTED
    assert "Your class behaves exactly like one that squares." in text_of(spec, Squared)
    assert "the module has no parameter 'weight'; it has scale" in text_of(spec, Renamed)
    stub = cells.cell_source(spec)
    assert "self.weight = nn.Parameter(torch.randn(width))" in stub
    assert "raise NotImplementedError  # your code here" in stub
    assert "return x * self.weight" not in stub
    assert "gradient with respect to weight" in text_of(
        spec, type("Cut", (Scale,), {"forward": lambda self, x: x * self.weight.detach()})
    ) or "no gradient reaches weight" in text_of(
        spec, type("Cut", (Scale,), {"forward": lambda self, x: x * self.weight.detach()})
    )


def run_module(candidate, config, state, x):
    """Run a module with declared weights, so that gradients reach them."""
    module = candidate(*config)
    for name in state:
        if name not in module.state_dict():
            raise ValueError(f"the module has no parameter {name!r}; it has {', '.join(module.state_dict())}")
    return torch.func.functional_call(module, state, (x,))


def test_the_random_state_and_the_grad_mode_outside_are_left_alone(exercise):
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    before = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    with torch.no_grad():
        assert diagnose(exercise, center).verdict == RIGHT
        assert not torch.is_grad_enabled()
    assert (torch.rand(1), random.random(), np.random.rand()) == before


# What is said ------------------------------------------------------------------------------------------------------


def test_the_tiers_of_messages(exercise):
    assert text_of(exercise, center).splitlines() == [
        "Right: center. It agrees with the course's version on all 4 cases and on 34 further inputs (values, "
        "gradients, dtypes, a second call).",
        "In a new cell, ex.center.solution() shows how the course writes it, and other right ways.",
    ]
    one = text_of(exercise, lambda x, dim=-1: x + x.mean(dim, keepdim=True))
    assert "Your function behaves exactly like one that adds the mean." in one
    assert "Which sign?" not in one  # that is for hint()
    two = text_of(exercise, lambda x, dim=-1: 2 * x + x.mean(dim, keepdim=True))
    assert "two mistakes at once:\n- it adds the mean;\n- it doubles x." in two
    other = text_of(exercise, lambda x, dim=-1: x - x.mean(dim, keepdim=True) / 2)
    assert "It breaks this law: Every row sums to zero.\nThe numbers of row 0 sum to 4.50." in other
    assert "An input of the law below shows it." in other
    assert "expected: float32 (1, 3)  [[-2, -1, 3]]\n  yours: float32 (1, 3)  [[-0.5, 0.5, 4.5]]" in other
    negated = text_of(exercise, lambda x, dim=-1: x.mean(dim, keepdim=True) - x)
    for text in (one, two, other, negated):
        assert "issue" not in text  # nothing is asked of the learner
        assert text.splitlines()[-2].startswith("In a new cell, ex.center.hint() gives ")
        assert text.index("yours: ") < text.index("\n\n")  # the case comes first
        assert text.count("\n\n") == 2
    for text in (one, two, negated):
        assert text.splitlines()[1].startswith("The smallest case that shows it: 2 rows, 3 columns.")
        assert text.splitlines()[2].startswith("  expected: float32 (2, 3)  [[")
        assert text.splitlines()[3].startswith("  yours: float32 (2, 3)  [[")
    for text in (one, two, other, negated):
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

    check(exercise, chatty)
    shown = capsys.readouterr()
    assert shown.out.count("shape (2, 3)") == 1
    assert shown.err == ""


def test_the_same_text_twice(exercise):
    def wrong(x, dim=-1):
        return x - x.mean(dim, keepdim=True) + torch.rand(()) * 1e-2

    for candidate in (wrong, model(sign=1.0), model(sign=1.0, power=2.0), center):
        assert text_of(exercise, candidate) == text_of(make(), candidate)


def test_things_that_are_no_functions(exercise):
    assert "check expects a function; it got a float32 tensor." in text_of(exercise, torch.ones(2))
    assert "it got None" in text_of(exercise, None)


def test_a_wrong_diagnosis_is_never_made_from_a_slip(exercise):
    def typo(x, dim=-1):
        return x - meen  # noqa: F821

    finding = examiner(exercise).examine(typo)
    assert not finding.fits
    assert "It uses `meen`, which is neither defined nor imported" in text_of(exercise, typo)
    assert "The smallest case" not in text_of(exercise, typo)


# What is returned --------------------------------------------------------------------------------------------------


def test_check_returns_what_lets_the_notebook_go_on(exercise, capsys):
    def right(x, dim=-1):
        return x - x.mean(dim=dim, keepdim=True)

    def wrong(x, dim=-1):
        return x

    def stub(x, dim=-1):
        raise NotImplementedError

    assert check(exercise, right) is right
    assert check(exercise, wrong) is center
    assert "The course's own version goes on below" in capsys.readouterr().out
    assert check(exercise, wrong, keep=True) is wrong
    assert "Your own version goes on below" in capsys.readouterr().out
    assert check(exercise, stub) is center
    assert check(exercise, stub, keep=True) is center
    assert capsys.readouterr().out.count("Not attempted yet: center.") == 2


def test_torch_errors_of_the_kind_of_a_stub_are_errors(exercise):
    def odd(x, dim=-1):
        raise NotImplementedError("\"mean\" not implemented for 'Bool'")

    assert diagnose(exercise, odd).verdict == WRONG


def test_unchanged_broken_code_is_not_attempted():
    def center(x, dim=-1):
        """(..., E) -> the same shape, with mean zero along dim"""
        return x + x.mean(dim=dim, keepdim=True)

    spec = make(kind="debug", given=center)
    names, _ = run_cell(cells.cell_source(spec).split("\n\n\n")[0])
    assert diagnose(spec, names["center"]).verdict == NOT_ATTEMPTED
    assert diagnose(spec, model(sign=1.0)).verdict == WRONG
    assert cells.solved_cell_source(spec).startswith("def center(x, dim=-1):")


# Cases -------------------------------------------------------------------------------------------------------------


def test_tensors_of_cases_are_the_same_everywhere():
    assert normal(3, seed=1).tolist() == pytest.approx([1.62, -0.61, -0.53], abs=1e-6)
    assert integers(4, low=0, high=3, seed=1).tolist() == [1, 3, 0, 0]
    assert mask(4, seed=1).tolist() == [True, False, True, True]
    x = strided(normal(2, 3, seed=1))
    assert not x.is_contiguous()
    assert x.is_leaf
    assert x.requires_grad
    assert torch.equal(x, normal(2, 3, seed=1))


def test_an_examiner_of_its_own_gives_the_same_finding(exercise):
    a, b = Examiner(exercise).examine(model(sign=1.0)), Examiner(make()).examine(model(sign=1.0))
    assert [m.name for m in a.misconceptions] == [m.name for m in b.misconceptions] == ["added"]


def test_an_answer_that_breaks_the_check_does_not_break_the_notebook(exercise, capsys):
    class Nameless(type):
        @property
        def __name__(cls):
            raise RuntimeError("no name here")

    class Odd(metaclass=Nameless):
        pass

    assert check(exercise, lambda x, dim=-1: Odd()) is center
    assert "could not judge this answer (RuntimeError: no name here)" in capsys.readouterr().out


def test_a_default_dtype_set_by_an_answer_is_taken_back(exercise):
    def sets(x, dim=-1):
        torch.set_default_dtype(torch.float64)
        return center(x, dim)

    assert diagnose(exercise, sets).verdict == RIGHT
    assert torch.get_default_dtype() == torch.float32
