"""Claims: a false one stops, a true one is remembered once; a complaint is what a law raises."""

import pytest
import torch

from course_lib import testing
from course_lib.testing import complaint, prove


@pytest.fixture
def proved(monkeypatch):
    monkeypatch.setattr(testing.claims, "proved", remembered := [])
    return remembered


@pytest.mark.parametrize("evidence", [False, "", torch.tensor(False)])
def test_a_false_claim_stops_with_its_own_words(proved, evidence):
    with pytest.raises(AssertionError, match=r"^two and two are five$"):
        prove("two and two are five", evidence)
    assert proved == []


@pytest.mark.parametrize("evidence", [True, "what was found", torch.tensor(True)])
def test_a_true_claim_is_remembered(proved, evidence):
    prove("first", evidence)
    prove("second", evidence)
    assert proved == ["first", "second"]


def test_a_cell_that_runs_again_adds_no_claim(proved):
    for claim in ("first", "second", "first", "second"):
        prove(claim, True)
    assert proved == ["first", "second"]


def test_a_complaint_is_what_a_law_raises_and_else_empty():
    def law(value, *, limit):
        if value >= limit:
            raise AssertionError(f"{value} is not below {limit}")

    assert complaint(law, 3, limit=2) == "3 is not below 2"
    assert complaint(law, 1, limit=2) == ""


def test_a_mistake_in_the_call_is_no_complaint():
    with pytest.raises(TypeError):
        complaint(testing.assert_finite)
