"""What an answer changes beyond its result is put back, so that the rest of the notebook is as it was."""

import contextlib
import functools
import itertools
import math
import os
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from proofs import run_cell

from coursework.exercises import registry
from coursework.exercises.engine.apart import can_fork
from coursework.exercises.engine.diagnose import RIGHT, WRONG, Examiner, diagnose
from coursework.exercises.engine.variants import probes
from coursework.exercises.handle import ExerciseHandle, QuestionHandle
from coursework.exercises.learner import Progress

SPEC = registry.get("causal_mask")
CHANGES = {
    "folder": (lambda: os.chdir("/"), os.getcwd),
    "environment": (lambda: os.environ.update(HOME="nowhere", NEW_NAME="1"), lambda: dict(os.environ)),
    "numpy's errors": (lambda: np.seterr(all="raise"), np.geterr),
    "recursion": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    "anomaly": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "deterministic": (lambda: torch.use_deterministic_algorithms(True), torch.are_deterministic_algorithms_enabled),
    "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "device": (
        lambda: torch.set_default_device("meta"),
        lambda: (torch.get_default_device(), torch._C._len_torch_function_stack()),  # no mode is left that intercepts
    ),
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "threads": (lambda: torch.set_num_threads(7), torch.get_num_threads),
    "generators": (lambda: torch.manual_seed(99), lambda: torch.get_rng_state().tolist()),
    "a function of torch": (lambda: setattr(torch, "softmax", None), lambda: torch.softmax),
    "a function of F": (lambda: setattr(F, "relu", None), lambda: F.relu),
    "an inherited method": (lambda: setattr(torch.Tensor, "tril", None), lambda: torch.Tensor.tril),
    "a number of math": (lambda: setattr(math, "pi", 3), lambda: math.pi),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("right", [True, False])
def test_it_is_as_before(name, right):
    change, look = CHANGES[name]
    before = look()

    def causal_mask(T, S):
        visible = torch.ones(T, S, dtype=torch.bool, device="cpu").tril(S - T if right else 0)
        change()
        return visible

    assert diagnose(SPEC, causal_mask).verdict == (RIGHT if right else WRONG)
    assert look() == before


def test_any_error_is_an_answer_that_raises():
    class Odd(BaseException):
        pass

    def causal_mask(T, S):
        raise Odd("no")

    finding = diagnose(SPEC, causal_mask)
    assert finding.verdict == WRONG
    assert type(finding.failure.outcome.error).__name__ == "Odd"


def test_what_is_printed_without_end_takes_no_memory():
    def causal_mask(T, S):
        print("x" * 10_000_000)
        return torch.ones(T, S, dtype=torch.bool)

    finding = diagnose(SPEC, causal_mask)
    assert finding.verdict == WRONG
    assert finding.names == ("sees-everything",)
    assert len(finding.failure.outcome.printed) < 200_000


SETTINGS = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "another device": lambda: torch.device("meta"),
    "cast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@contextlib.contextmanager
def _in_float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("setting", [*SETTINGS.values(), _in_float64], ids=[*SETTINGS, "float64"])
def test_the_settings_of_the_notebook_reach_no_verdict(setting):
    lookup = registry.get("soft_lookup")
    right = lookup.reference

    def cut(query, keys, values):
        return right(query, keys, values).detach()

    own = Examiner(lookup)
    probes.cache_clear()  # the inputs are drawn under these settings, too
    with setting():
        assert own.examine(right).verdict == RIGHT
        assert own.examine(cut).failure.difference.aspect == "gradient"
    assert own.examine(right).verdict == RIGHT


UNUSUAL = {
    "sparse": lambda x: x.to_sparse(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor([x]),
}


@pytest.mark.parametrize("kind", UNUSUAL)
def test_a_tensor_that_is_none_like_others_is_called_what_it_is(kind):
    lookup = registry.get("soft_lookup")
    answer = ExerciseHandle(lookup, Progress()).examine(lambda *args: UNUSUAL[kind](lookup.reference(*args)))
    assert answer.verdict == WRONG
    assert f"The output is a {kind} " in answer.text


def test_a_subclass_is_judged_by_its_numbers():
    class Agrees(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *args, **kwargs):
            return True

    lookup = registry.get("soft_lookup")
    for factor, verdict in ((1, RIGHT), (2, WRONG)):
        answer = functools.partial(_as, Agrees, lookup.reference, factor)
        assert diagnose(lookup, answer).verdict == verdict


def _as(kind, function, factor, *args, **kwargs):
    return (factor * function(*args, **kwargs)).as_subclass(kind)


def test_an_argument_that_needs_no_gradient_any_more_was_changed():
    lookup = registry.get("soft_lookup")

    def frozen(query, keys, values):
        query.requires_grad_(False)
        return lookup.reference(query, keys, values)

    assert diagnose(lookup, frozen).failure.difference.aspect == "mutation"


@pytest.mark.skipif(not can_fork(), reason="the search is confined in a copy of the process")
def test_what_stands_behind_a_condition_does_no_harm_while_a_mistake_is_looked_for(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    deeds = [
        f"open({str(victim)!r}, 'w').close()",
        f"os.remove({str(victim)!r})",
        f"shutil.rmtree({str(tmp_path)!r})",
        f"subprocess.run(['rm', {str(victim)!r}])",
    ]
    conditions = ["if save:", "if query.dim() > 9:", "if not True:", "for _ in range(0):"]
    for deed, condition in itertools.product(deeds, conditions):
        source = (
            "import os, shutil, subprocess\n\n\ndef soft_lookup(query, keys, values):\n    save = False\n"
            f"    {condition}\n        {deed}\n    return values.sum(0)\n"
        )
        names, _ = run_cell(source, registry.get("soft_lookup"))
        answer = ExerciseHandle(registry.get("soft_lookup"), Progress()).examine(names["soft_lookup"])
        assert answer.verdict == WRONG
        assert victim.read_text() == "mine", source


class _Everything(float):
    def __eq__(self, other):
        return True

    def __sub__(self, other):
        return 0.0

    __hash__ = None


@pytest.mark.parametrize(
    "value",
    [10**5000, Decimal("sNaN"), _Everything(3), torch.ones((), device="meta"), object()],
    ids=["huge", "no number", "equal to all", "meta", "object"],
)
def test_a_number_that_is_none_is_refused_in_words(value):
    answer = QuestionHandle(registry.get("score_spread"), Progress()).examine(value)
    assert answer.verdict == WRONG
    assert "Error" not in answer.text


@pytest.mark.skipif(not can_fork(), reason="a value is looked at in a copy of the process")
def test_looking_at_a_value_ends_nothing():
    class Ends(float):
        def __float__(self):
            os._exit(5)

        __eq__ = __add__ = __abs__ = __float__
        __hash__ = None

    class Grows:
        def __array__(self, *args):
            return [0 for _ in itertools.count()]

        __float__ = __repr__ = __array__

    for value in (Ends(3), Grows(), Fraction(3)):
        assert QuestionHandle(registry.get("score_spread"), Progress()).examine(value).verdict == WRONG


def test_a_second_call_leaves_the_first_result_alone_and_does_not_fail():
    lookup, kept, calls = registry.get("soft_lookup"), [], []

    def adds(*args, **kwargs):
        kept.append(lookup.reference(*args, **kwargs))
        if len(kept) > 1:
            kept[-2].detach().add_(1)
        return kept[-1]

    def fails(*args, **kwargs):
        calls.append(1)
        return lookup.reference(*args, **kwargs) if len(calls) % 2 else 1 / 0

    for answer, said in ((adds, "changes what it returned before"), (fails, "raises ZeroDivisionError")):
        assert said in diagnose(lookup, answer).failure.difference.sentence
