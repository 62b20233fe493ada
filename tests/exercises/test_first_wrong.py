"""The first wrong value: the place where an answer leaves the right ways, in code of every form."""

import math

import pytest
import torch
from proofs import run_cell
from small_exercise import make
from torch import nn

from coursework.exercises.engine.diagnose import examiner
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.noting import noted
from coursework.exercises.spec import Alternative, Case, Misconception
from coursework.exercises.tensors import normal


def attend(query, key, value):
    """(T, E), (S, E), (S, E) -> (T, E)"""
    scores = query @ key.mT / math.sqrt(query.size(-1))
    weights = scores.softmax(-1)
    return weights @ value


def _by_hand(query, key, value):
    e = (query @ key.mT / query.size(-1) ** 0.5).exp()
    return (e @ value) / e.sum(-1, keepdim=True)


def smooth(numbers, share):
    """A list of numbers -> their running averages"""
    total, found = 0.0, []
    for n in numbers:
        total = share * total + (1 - share) * n
        found.append(total)
    return found


class Gate(nn.Module):
    """(N, D) -> (N, D)"""

    def __init__(self, D):
        super().__init__()
        self.up, self.gate = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        """(N, D) -> (N, D)"""
        opened = self.gate(x).sigmoid()
        return self.up(x) * opened + x


def _gated(candidate, x):
    torch.manual_seed(3)
    return candidate(x.size(-1))(x)


def exercise(reference, cases, **more):
    no = Misconception(name="none", knobs={"none": True}, statement="gives nothing", question="Why?")
    fields = {"properties": [], "misconceptions": [no], "gradients": False, "sample": lambda draw: cases[0].make()}
    return make(
        reference=reference, cases=cases, model=lambda none=False: reference if not none else (lambda *a: None),
        **(fields | {"alternatives": [Alternative("the same", reference)]} | more),
    )  # fmt: skip


ATTEND = exercise(
    attend,
    [Case(f"{T} queries", lambda T=T: tuple(normal(n, T + 3, seed=n + T) for n in (T, T + 1, T + 1))) for T in (2, 3)],
    alternatives=[Alternative("by hand", _by_hand)],
)
SMOOTH = exercise(
    smooth, [Case("3 numbers", lambda: ([1.0, 4.0, 2.5], 0.7)), Case("5", lambda: ([3.0, 1.5, 7.0, 2.0, 9.25], 0.4))]
)
GATE = exercise(Gate, [Case("2", lambda: (normal(2, 3, seed=2),))], run=_gated, blank=("forward",))


def said(exercise, source):
    name = exercise.function_name
    candidate = run_cell(source, exercise)[0][name]
    finding = examiner(exercise).examine(candidate)
    assert finding.verdict == "wrong"
    relation = finding.relation
    if relation is None or relation.name != "first wrong value":
        return ""
    assert relation.statement in message(exercise, finding, candidate, keep=False)
    return relation.statement


HEAD = "def attend(query, key, value):\n"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        # a helper of the learner's own
        ("def norm(s):\n    return s.exp() / s.exp().sum(-1, keepdim=True).sqrt() + 0.25\n" + HEAD +
         "    return norm(query @ key.mT / query.size(-1) ** 0.5) @ value", "(line 2)"),
        # an other way that is right up to its end
        (HEAD + "    e = (query * query.size(-1) ** -0.5 @ key.mT).exp()\n"
         "    return e @ value / e.sum(0).mean().square()", "e.sum(0)"),
        # a comprehension over rows
        (HEAD + "    rows = [(key @ q / q.numel() ** 0.5).sigmoid().square() for q in query]\n"
         "    return torch.stack(rows) @ value", ".sigmoid()"),
        # two things that no one change mends
        (HEAD + "    scores = query @ key.mT / math.sqrt(query.size(-1) + 3.5)\n"
         "    return scores.softmax(-1) @ value.clamp(min=0.125).cos()", "(line 2)"),
    ],
)  # fmt: skip
def test_the_place_is_named_in_code_of_every_form(body, place):
    assert place in said(ATTEND, body)


def test_loops_and_plain_numbers_are_followed_in_turn():
    source = """def smooth(numbers, share):
    total, found = 0.0, []
    for k, n in enumerate(numbers):
        total = share * total + (1 - share) * n / (1 + k // 2) ** 1.5 + k // 2 * 0.37
        found.append(total)
    return found
"""
    assert "for the 3rd time" in said(SMOOTH, source)


def test_the_forward_of_a_module_is_followed():
    source = """class Gate(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.up, self.gate = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x):
        opened = self.gate(x).sigmoid()
        mixed = self.up(x).tanh().exp() * opened
        return mixed.cos() + x.sin() * 0.3
"""
    text = said(GATE, source)
    assert "`self.up(x).tanh()" in text
    assert "(line 8)" in text


def test_an_answer_that_shares_nothing_with_right_ways_gets_no_sure_place():
    text = said(ATTEND, HEAD + "    return (query.sin().sum() + key.cos().sum()) * value[: len(query)].exp()")
    assert "the result would be right" not in text


def test_noting_changes_nothing():
    kept = noted(smooth, lambda other: False)
    value, record = kept.run(lambda f: f([1.0, 4.0], 0.5))
    assert value == smooth([1.0, 4.0], 0.5)
    assert any(taken == [0.5, 2.25] for taken in record.values.values())
    assert kept.run(lambda f: f(None, 0.5))[0].__class__ is TypeError
