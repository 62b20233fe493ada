"""What is said of wrong answers whose mistake nobody wrote down: relations that are true, and nothing else."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from small_exercise import center, make
from test_session import question

from coursework.exercises.engine.diagnose import examiner
from coursework.exercises.engine.evidence import contradicts_itself
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.question import judge
from coursework.exercises.engine.relations import Finder
from coursework.exercises.engine.run import observe
from coursework.exercises.spec import Alternative, Case, Misconception, Property
from coursework.exercises.tensors import normal


def attend(query, key, value, mask=None, scale=1.0):
    """(T, E), (S, E), (S, E), bool (T, S) -> (T, E)"""
    scores = scale * query @ key.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ value


def arguments(T, S, E, seed, *rest):
    mask = torch.ones(T, S, dtype=torch.bool).tril()
    return (*(normal(n, E, seed=seed + i) for i, n in enumerate((T, S, S))), mask, *rest)


ATTEND = make(
    id="attend",
    reference=attend,
    model=lambda zero=False: attend if not zero else lambda *a, **k: 0 * attend(*a, **k),
    misconceptions=[Misconception(name="z", knobs={"zero": True}, statement="gives zeros", question="Why?")],
    cases=[
        Case("2 queries, 3 keys", lambda: arguments(2, 3, 2, 1)),
        Case("3 queries, 4 keys", lambda: arguments(3, 4, 5, 5)),
        Case("twice the scale", lambda: arguments(2, 5, 3, 9, 2.0)),
    ],
    properties=[],
    alternatives=[Alternative("the same", attend)],
    sample=lambda draw: arguments(
        draw.integer(2, 4), draw.integer(2, 5), draw.integer(2, 5), draw.integer(0, 999), draw.choice([0.5, 2.0])
    ),
)


@pytest.fixture
def exercise():
    return make(
        misconceptions=[],
        sample=lambda draw: {"x": draw.normal(draw.integer(2, 4), draw.integer(2, 5)), "dim": draw.integer(-1, 0)},
    )


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda x, dim=-1: -center(x, dim), "negated"),
        (lambda x, dim=-1: center(x, dim).mT.contiguous(), "transposed"),
        (lambda x, dim=-1: center(x, dim).unsqueeze(0), "axis kept"),
        (lambda x, dim=-1: center(x, dim).flatten(), "another shape"),
        (lambda x, dim=-1: center(x, dim).flip(-1), "reversed"),
        (lambda x, dim=-1: 3 * center(x, dim), "factor"),
        (lambda x, dim=-1: center(x, dim) * x.size(-1), "sum"),
        (lambda x, dim=-1: center(x, dim) + 1, "off by one"),
        (lambda x, dim=-1: center(x, dim) - 0.5, "difference"),
        (lambda x, dim=-1: x, "unchanged"),
        (lambda x, dim=-1: 0 * x, "only zero"),
        (lambda x, dim=-1: center(x, dim) ** 2, "squared"),
        (lambda x, dim=-1: center(x, dim).softmax(-1), "softmax twice"),
        (lambda x, dim=-1: center(x, dim).cumsum(-1), "added up"),
        (lambda x, dim=-1: center(x), "argument ignored"),
        (lambda x, dim=-1: (center(x, dim), x), "more than asked"),
        (lambda x, dim=-1: center(x, dim) + torch.rand(()), "random"),
        (lambda x, dim=-1: center(x, dim) / 0 * 0, "not a number"),
        (lambda x, dim=-1: center(x, dim).detach(), "no gradient"),
        (lambda x, dim=-1: torch.cat([0 * x[:1], center(x, dim)[1:]]), "only the first"),
    ],
)
def test_a_relation_is_found_where_no_misconception_fits(exercise, change, name):
    finding = examiner(exercise).examine(change)
    assert finding.names == (name,), finding
    assert finding.statements[0].endswith(".")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q, k, v, m=None, scale=1.0: attend(q, v, k, m, scale), "`key` and `value` were exchanged"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, k, k, m, scale), "`key` stood in the place of `value`"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, k, v, None, scale), "`mask` were left out"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, k, v, m), "`scale` were left out"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, k, v, m.flip(-1), scale), "`mask` were reversed along the last"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, -k, v, m, scale), "had the opposite sign"),
    ],
)
def test_the_right_function_on_other_arguments_is_recognised(change, says):
    finding = examiner(ATTEND).examine(change)
    assert finding.relation is not None
    import re

    assert re.search(says, finding.relation.statement)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q, k, v, m=None, scale=1.0: attend(q / q.size(-1) ** 0.5, k, v, m, scale), "divided by the root"),
        (lambda q, k, v, m=None, scale=1.0: attend(q[:1].expand_as(q), k, v, m, scale), "held its first place"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, k.mT.reshape(k.shape), v, m, scale), "then reshaped"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, k, v, m, 2.0), "`scale` were always 2"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, k, v, m, scale).mT.reshape(len(q), -1), "is reshaped where axes"),
        (lambda q, k, v, m=None, scale=1.0: attend(q, k, v, m, scale) * (1 + 1e-3 * q.sin()), "about two digits"),
    ],
)
def test_more_of_what_an_answer_does_is_recognised(change, says):
    finding = examiner(ATTEND).examine(change)
    assert finding.relation is not None
    assert says in finding.relation.statement


def count(batch, length, width=4):
    return 6 * batch * length * width + 5 * width


def sizes(draw):
    return {name: draw.integer(2, 30) for name in ("batch", "length", "width")}


COUNT = make(
    reference=count,
    model=lambda: count,
    misconceptions=[],
    properties=[],
    alternatives=[],
    cases=[Case("small", lambda: (2, 3, 5)), Case("larger", lambda: (4, 7, 11)), Case("default", lambda: (3, 9))],
    sample=sizes,
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b, t, w=4: count(b, t, w) + 2 * b * t, "too large by 2 times `batch` times `length`."),
        (lambda batch, length, width=4: count(batch, length, width) - 5 * width, ""),
        (lambda batch, length, width=4: 5 * width + 6 * batch * length * 3 + width, ""),
        (lambda batch, length, width=4: count(batch, length, width) - width, "too small by `width`."),
        (lambda batch, length, width=4: count(batch, 9, width), "`length` were always 9"),
    ],
)
def test_a_term_too_many_or_too_few_is_named(change, says):
    def named(batch, length, width=4):
        return change(batch, length, width)

    finding = examiner(COUNT).examine(named)
    if says:
        assert finding.relation is not None
        assert says in finding.relation.statement
    else:
        assert finding.relation is None or not finding.relation.exact


def test_accidents_are_no_relations(exercise):
    for change in (
        lambda x, dim=-1: center(x, dim) * (1 + 0.3 * x.sin()),
        lambda x, dim=-1: -center(x, dim) if x.size(-1) == 3 else center(x, dim) * 0.7 + x,
    ):
        finding = examiner(exercise).examine(change)
        assert finding.relation is None or not finding.relation.exact, finding.relation


def test_a_relation_of_the_cases_that_fails_on_drawn_inputs_is_not_said(exercise):
    shapes = {(2, 3), (3, 2), (3, 5), (2, 7)}  # those of the cases

    def twice(x, dim=-1):
        return 2 * center(x, dim) if tuple(x.shape) in shapes else center(x, dim) + x

    finding = examiner(exercise).examine(twice)
    assert finding.relation is None or finding.relation.name != "factor"


# Nothing false ------------------------------------------------------------------------------------------------------


def test_results_that_are_all_nan_agree_with_nothing(exercise):
    own = examiner(exercise)
    seen = [own.as_seen(case, observe(exercise, lambda x, dim=-1: x * math.nan, case), own.outcome((), number))
            for number, case in enumerate(exercise.cases)]  # fmt: skip
    finder = Finder(own.rules, lambda x, dim=-1: center(x, dim) / (x - x), {})
    assert finder.find(seen, lambda: [], exact=True) is None
    finder = Finder(own.rules, lambda x, dim=-1: center(x, dim) / x.new_tensor(2.0), {})
    assert finder.find(seen, lambda: [], exact=False) is None


def test_a_gradient_is_called_wrong_only_where_no_value_is(exercise):
    def both(x, dim=-1):
        return (center(x, dim) * (1.3 if x.dtype == torch.float64 else 1)).detach()

    finding = examiner(exercise).examine(both)
    assert finding.failure.difference.aspect == "value"
    assert "values are right" not in " ".join(finding.statements)


class Noisy(torch.autograd.Function):
    """The identity, whose gradient is off by 0.1 % in float32."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1.001 if gradient.dtype == torch.float32 else 1)


def test_a_gradient_that_only_rounding_takes_from_the_right_one_is_right(exercise):
    assert examiner(exercise).examine(lambda x, dim=-1: center(Noisy.apply(x), dim)).verdict == "right"
    cut = examiner(exercise).examine(lambda x, dim=-1: x - x.mean(dim, keepdim=True).detach() * 1.0)
    assert cut.verdict == "wrong"


def test_a_factor_is_said_of_a_row_only_where_rows_have_factors_of_their_own(exercise):
    of_a_case = examiner(exercise).examine(lambda x, dim=-1: center(x, dim) * (1 + x.numel() / 7.3))
    assert of_a_case.names == ("factor of the result",)
    rows = make(misconceptions=[], cases=[Case(f"{n} columns", lambda n=n: (normal(2, n, seed=n),)) for n in (3, 5)])
    of_a_row = examiner(rows).examine(lambda x, dim=-1: center(x, dim) * (2 + x.sum(dim, keepdim=True).sin()))
    assert of_a_row.names == ("factor of a row",)


def test_one_wrong_place_of_one_input_is_an_accident(exercise):
    def once(x, dim=-1):
        right = center(x, dim)
        return torch.cat([0 * right[:1], right[1:]]) if tuple(x.shape) == (2, 7) else right

    finding = examiner(exercise).examine(once)
    assert finding.verdict == "wrong"
    assert "`0` in `0 * right[:1]`" in finding.relation.statement
    once.__code__ = once.__code__.replace(co_filename="<typed at a prompt>")  # without its text, no more can be said
    assert examiner(exercise).examine(once).relation is None


def test_chance_without_a_seed_is_not_called_chance_with_one(exercise):
    import os

    noise = lambda: int.from_bytes(os.urandom(4), "big") / 2**32  # noqa: E731
    finding = examiner(exercise).examine(lambda x, dim=-1: center(x, dim) + noise())
    assert "seed" not in finding.statements[0].split("the same seed")[0]


def test_two_mistakes_that_deny_each_other_are_not_named_together():
    def model(first=1.0, second=1.0):
        return lambda x, dim=-1: x * first - x.mean(dim, keepdim=True) * second

    def named(*statements):
        misconceptions = [
            Misconception(name="a", knobs={"first": 2.0}, statement=statements[0], question="Why?"),
            Misconception(name="b", knobs={"second": 3.0}, statement=statements[1], question="Why?"),
        ]
        return examiner(make(model=model, misconceptions=misconceptions)).examine(model(2.0, 3.0)).names

    assert named("doubles x", "takes the mean three times") == ("a", "b")
    assert named("scales x and not the mean", "scales the mean and not x") not in (("a", "b"), ("b", "a"))


def test_a_law_that_is_announced_is_said():
    def sums(f):
        total = f(torch.tensor([[1.0, 2.0, 6.0]])).sum()
        return None if abs(total) < 1e-4 else "The numbers of row 0 do not sum to zero."

    def in_a_dtype(x, dim=-1):
        return center(x, dim).double() + 0.1 * x.sin() if len(x) == 1 else center(x, dim) * (1 + 0.3 * x.sin())

    exercise = make(misconceptions=[], properties=[Property("Every row sums to zero.", sums)])
    finding = examiner(exercise).examine(in_a_dtype)
    text = message(exercise, finding, in_a_dtype, keep=False)
    assert ("the law below" in text) <= ("It breaks this law" in text)
    assert "It breaks this law" in text


def test_a_pattern_holds_on_drawn_inputs_too():
    def by_chance(x, dim=-1):
        return center(x, dim) * (1 + 0.3 * x.sin() if x.dtype == torch.bfloat16 or x.shape == (2, 4) else 1)

    exercise = make(misconceptions=[], sample=lambda draw: (draw.normal(2, draw.choice([4, 5])),))
    assert examiner(exercise).examine(by_chance).pattern == ""


def test_inputs_whose_gradients_are_not_compared_may_be_written_into():
    def in_place(x, dim=-1):
        out = x + 0
        for row in out.unbind(0):
            row -= 0
        return x - x.mean(dim, keepdim=True)

    assert examiner(make(gradients=False)).examine(in_place).verdict == "right"


def test_memory_from_call_to_call_is_called_that(exercise):
    calls = []

    def counting(x, dim=-1):
        calls.append(1)
        return center(x, dim) + len(calls)

    assert examiner(exercise).examine(counting).names == ("keeps something",)


def test_what_all_failing_cases_share_is_said(exercise):
    def by_dtype(x, dim=-1):
        return center(x, dim) * (1 + 0.3 * x.sin() if x.dtype == torch.float64 else 1)

    finding = examiner(exercise).examine(by_dtype)
    assert finding.pattern == "" or "float64" in finding.pattern


@pytest.mark.parametrize(
    ("law", "sentence", "contradicts"),
    [
        ("Every row sums to one.", "Row 0 sums to 1.000.", True),
        ("Every row sums to one.", "Row 0 sums to 1.002.", False),
        ("Order changes nothing.", "It gives 4.50 and 4.50.", True),
        ("Order changes nothing.", "It gives 4.50 and 4.51.", False),
        ("Twice is twice.", "With 1 and with 4 heads it gives 3 and 7 bytes.", False),
    ],
)
def test_a_law_is_not_printed_with_numbers_that_obey_it(law, sentence, contradicts):
    assert contradicts_itself(law, sentence) is contradicts


# Questions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "given", "says"),
    [
        (96, -96, "the wrong sign"),
        (96, 97, "off by one"),
        (96, 192, "No mistake that the course knows"),
        (12, Fraction(35, 2), "No mistake that the course knows"),
        (0.35, 35, "per cent"),
        (0.35, 0.65, "leaves of the whole"),
        (96, 1 / 96, "one divided by"),
        (1.75, 0.75, "difference where a ratio"),
        (0.3467, 0.35, "rounded too far"),
        (96, 41, "No mistake that the course knows"),
        ((2, 3, 5), (5, 3, 2), "reverse order"),
        ((2, 3, 5), (2, 5, 3), "another order"),
        ((2, 3, 5), (2, 3), "2 entries; 3 are expected"),
    ],
)
def test_slips_with_numbers_are_said(right, given, says):
    assert says in judge(question(right=right, wrong=[]), given)[2]


CACHE = """
layers = 3
query_heads = 8
key_heads = 2
head_width = 5
tokens = 7
bytes_a_number = 4
layers * (2 * key_heads * head_width * tokens + tokens) * bytes_a_number
"""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (147 * 4, "this factor is missing: layers"),
        (441, "this factor is missing: bytes a number"),
        (140 * 3 * 4, "this term is missing: tokens"),
        (154 * 3 * 4, "this is counted twice: tokens"),
        (567 * 3 * 4, "this is taken for the key heads: query heads"),
        (147 * 3 * 2, "a number takes 2 bytes"),
        (147, "this factor is missing: bytes a number and this factor is missing: layers"),
        (1764 * 8, "as between bits and bytes"),
        (1765, "off by one"),
        (1234, "No mistake that the course knows"),
    ],
)
def test_a_number_is_looked_up_among_what_follows_from_its_formula(given, says):
    asked = question(right=1764, wrong=[], formula=CACHE, form="a number of bytes")
    assert says in judge(asked, given)[2]


@pytest.mark.parametrize("right", [2.5, 10])
def test_numbers_of_every_kind_are_numbers(right):
    for kind in (Fraction, np.float32, torch.tensor, float):
        assert judge(question(right=right, wrong=[]), kind(right))[0] == "right"


def test_units_are_named_only_where_units_are_asked_for():
    asked = question(right=12_000_000, wrong=[], form="a number of bytes")
    assert "bits and bytes" in judge(asked, 96_000_000)[2]
    assert "as between B, kB and MB" in judge(asked, 12_000)[2]
    assert "1024" in judge(asked, 12_000_000 * 1.024**2)[2]
    assert "bits" not in judge(question(right=12_000_000, wrong=[]), 96_000_000)[2]


def test_logarithms_are_named_only_where_they_are_asked_for_and_to_four_digits():
    about = question(right=17.3, wrong=[], form="a number of nats", tolerance=0.02)
    assert "base 2" in judge(about, 24.9586)[2]
    assert "base 2" not in judge(about, 25)[2]
    assert "base 2" not in judge(question(right=17.3, wrong=[], tolerance=0.02), 24.9586)[2]


def test_what_is_no_answer_is_called_by_its_own_kind():
    assert judge(question(), [1, 2])[2].startswith("That is a list.")
    assert judge(question(), np.array([96]))[0] == judge(question(), torch.tensor([[96]]))[0] == "right"
    assert judge(question(right=(2, 3), wrong=[]), np.array([2, 3]))[0] == "right"
