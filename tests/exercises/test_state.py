"""What an answer changes beyond its result is put back, so that the rest of the notebook is as it was."""

import math
import os
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from coursework.exercises import registry
from coursework.exercises.engine.diagnose import RIGHT, WRONG, diagnose

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
    assert isinstance(finding.failure.outcome.error, Odd)


def test_what_is_printed_without_end_takes_no_memory():
    def causal_mask(T, S):
        print("x" * 10_000_000)
        return torch.ones(T, S, dtype=torch.bool)

    finding = diagnose(SPEC, causal_mask)
    assert finding.verdict == WRONG
    assert finding.names == ("sees-everything",)
    assert len(finding.failure.outcome.printed) < 200_000
