"""What crosses between the judge and an answer: everything a check compares, and nothing else."""

import contextlib
import itertools
import json
import pickle
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thorough import rounds
from torch._subclasses.fake_tensor import FakeTensorMode

from coursework.desk import acting, frames, wire
from coursework.exercises import registry
from coursework.exercises.engine.compare import Rules, compare, kind_of
from coursework.exercises.engine.diagnose import examiner
from coursework.exercises.engine.run import Outcome, Terms, bind, observe
from coursework.exercises.spec import Case, Exercise

EXERCISES = [entry for entry in registry.all_exercises() if isinstance(entry, Exercise)]


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda one: one.id)
def test_what_is_right_is_right_beyond_the_wire(exercise):
    """Arguments there, outcomes back, and the reference run on what arrives, with no bank to look into."""
    own = examiner(exercise)
    terms, parts = pickle.loads(wire.ship((Terms.of(exercise), dict(exercise.parts))))
    assert set(parts) == set(exercise.parts)
    for number, case in itertools.islice(enumerate(own.cases), rounds(3, 10**6)):
        sent = wire.ship(case.make())
        assert b"coursework.exercises.bank" not in sent
        arrived = Case("", lambda sent=sent: pickle.loads(sent))
        outcome = observe(terms, bind(terms, exercise.reference), arrived, again=False)
        back = wire.unpack_outcome(frames.loads(frames.dumps(wire.pack_outcome(outcome))))
        assert own.difference(number, back) is None, case.name


def test_the_terms_hold_nothing_of_what_is_right():
    """Neither the reference nor the model nor another right way."""
    for exercise in EXERCISES:
        sent = wire.ship(Terms.of(exercise))
        for function in (exercise.reference, exercise.model, *(other.function for other in exercise.alternatives)):
            code = getattr(function, "__code__", None)
            assert code is None or code.co_code not in sent, exercise.id


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*wire._READ, "value", "error", "x"]), inner, max_size=2)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_plain_value_or_malformed(said):
    for read in (wire.unpack, wire.unpack_outcome, lambda said: wire.unpack_outcome(outcome_of(said))):
        with contextlib.suppress(frames.Malformed):
            read(json.loads(json.dumps(said)))


def outcome_of(said):
    plain = wire.pack_outcome(observe(Terms.of(EXERCISES[0]), lambda *a: 1, EXERCISES[0].cases[0], again=False))
    return plain | {random.Random(str(said)).choice(list(plain)): said}


class Odd(int):
    """An int that equals everything."""

    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    "value",
    [Odd(3), 10**10**4, [[[]]], {"a": (1, 2.0, None)}, torch.nn.Parameter(torch.ones(2)), torch.ones(1 << 23), Odd,
     torch.ones(2, 3).t(), torch.ones(3).to_sparse(), torch.ones(2, dtype=torch.complex64).conj(), {1, 2}],
    ids=lambda value: kind_of(value)[:20],
)  # fmt: skip
def test_only_exact_types_arrive(value):
    arrived = wire.unpack(frames.loads(frames.dumps(wire.pack(value))))
    assert not isinstance(arrived, Odd)
    assert type(arrived) in (int, list, dict, set, torch.Tensor) or not isinstance(arrived, type(value))


def without_values():
    yield torch.ones(2, device="meta")
    yield torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    yield torch._to_functional_tensor(torch.ones(2))
    yield FakeTensorMode().from_tensor(torch.ones(2))
    yield torch.ones(2).to_sparse()
    yield [0] * (wire.PARTS + 1)
    yield {0: chr(0xDC80)}


@pytest.mark.parametrize("value", list(without_values()), ids=lambda value: type(value).__name__)
def test_whatever_a_call_returns_can_be_said(value):
    said = frames.loads(frames.dumps(acting._observed(lambda: Outcome(value=value))))
    outcome = wire.unpack_outcome(said)
    assert outcome.error is None
    assert compare(torch.ones(2), outcome.value, Rules()) is not None


def test_what_is_too_large_or_cannot_be_looked_at_is_an_error_with_a_text(monkeypatch):
    def fail():
        raise TypeError

    assert "cannot be looked at (TypeError)" in str(wire.unpack_outcome(acting._observed(fail)).error)
    monkeypatch.setattr(frames, "LARGEST", 1000)
    assert "is too large" in str(wire.unpack_outcome(acting._observed(lambda: Outcome(value="x" * 2000))).error)


def test_what_holds_itself_is_cut():
    loop: list = []
    loop.append(loop)
    assert wire.unpack(wire.pack(loop)) is not None
