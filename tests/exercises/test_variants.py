"""What a check tries beside the cases: draws and variants on which all right answers agree, and what they find."""

import itertools

import pytest
import torch
from each import each
from proofs import EXERCISES, by_id, proof
from small_exercise import center, make
from torch.utils._pytree import tree_leaves

from coursework.exercises import registry
from coursework.exercises.engine.compare import Rules, compare, compare_gradients
from coursework.exercises.engine.diagnose import RIGHT, WRONG, Examiner, diagnose
from coursework.exercises.engine.evidence import within
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.run import bind, in_float64, leaf_names, observe
from coursework.exercises.engine.variants import (
    ALWAYS,
    DRAWS,
    VARIANTS,
    changed,
    covering,
    crossed,
    draws,
    may_meet,
    probes,
    promised,
)


class Strict(Rules):
    """A quarter of the tolerance: what all right answers meet does not rest on rounding."""

    def limits(self, dtype):
        relative, absolute = super().limits(dtype)
        return relative / 4, absolute / 4


@proof
def test_all_right_answers_agree_on_what_is_tried(exercise, record_property):
    answers = {"the solution": exercise.reference} | {other.name: other.function for other in exercise.alternatives}
    rules = Strict(exercise.tolerance)
    tried = probes(exercise)
    for case in tried:
        right = observe(exercise, bind(exercise, exercise.model()), case)
        assert right.error is None, f"{case.name}: {right.error!r}"
        found = [leaf for leaf in tree_leaves([right.value, right.gradients]) if isinstance(leaf, torch.Tensor)]
        assert not any(bool(leaf.isnan().any()) for leaf in found if leaf.is_floating_point()), case.name
        for name, function in answers.items():
            outcome = observe(exercise, bind(exercise, function), case)
            assert outcome.error is None, f"{name}, {case.name}: {outcome.error!r}"
            difference = compare(right.value, outcome.value, rules)
            if difference is None and right.gradients is not None:
                names = leaf_names(case, exercise)
                difference = compare_gradients(right.gradients, outcome.gradients, names, rules)
                if difference and within(right.gradients, outcome.gradients):  # rounding, if float64 agrees
                    exact = in_float64(case)
                    both = [observe(exercise, bind(exercise, one), exact) for one in (exercise.model(), function)]
                    difference = compare_gradients(both[0].gradients, both[1].gradients, names, rules)
            assert difference is None, f"{name}, {case.name}: {difference} on {case.make()}"
    record_property("exercise", [exercise.id, {"inputs tried": len(tried)}])


@each(EXERCISES, by_id)
def test_every_variant_named_applies(exercise):
    assert len(set(exercise.tries)) == len(exercise.tries)
    assert set(exercise.tries) <= set(VARIANTS) - set(ALWAYS)
    for name in exercise.tries:
        assert any(VARIANTS[name].words in case.name for case in crossed(exercise)), name


@each(EXERCISES, by_id)
def test_every_two_variants_that_meet_on_an_input_are_tried_together(exercise):
    tried = [set(names) for _, names in covering(exercise)]
    for pair in itertools.combinations(promised(exercise), 2):
        meet = may_meet(*pair) and any(changed(exercise, seed, pair) is not None for seed in range(draws(exercise)))
        assert any(set(pair) <= names for names in tried) or not meet, pair


def test_every_variant_is_used():
    assert {name for exercise in EXERCISES for name in exercise.tries} == set(VARIANTS) - set(ALWAYS)


# What they find ----------------------------------------------------------------------------------------------------


def test_what_only_a_drawn_input_shows_is_shown_with_its_numbers():
    exercise = make(sample=lambda draw: (draw.normal(draw.integer(1, 4), 3),))

    def wrong(x, dim=-1):
        return center(x, dim) if x.size(0) != 1 else center(x, dim) + 1

    finding = diagnose(exercise, wrong)
    text = message(exercise, finding, wrong, keep=False)
    assert finding.verdict == WRONG
    assert "The smallest case that shows it: an input drawn at random." in text
    assert "x: float32 (1, 3)" in text
    assert "expected: float32 (1, 3)" in text
    assert text == message(make(sample=exercise.sample), Examiner(exercise).examine(wrong), wrong, keep=False)
    assert diagnose(exercise, center).verdict == RIGHT


def test_a_variant_is_tried_only_where_it_is_named():
    def wrong(x, dim=-1):
        return center(x.contiguous().view(-1), dim).view(x.shape) if x.dtype == torch.float16 else center(x, dim)

    assert diagnose(make(), wrong).verdict == RIGHT
    named = make(tries=("float16",))
    finding = diagnose(named, wrong)
    assert finding.verdict == WRONG
    assert "an input drawn at random, with float16" in message(named, finding, wrong, keep=False)


def test_the_draws_are_the_same_at_every_call():
    exercise = make(sample=lambda draw: (draw.normal(draw.integer(1, 4), 3),), tries=("zeros", "large"))
    first, second = probes(exercise), probes(exercise)
    assert len(first) == DRAWS + len(covering(exercise))
    leaves = [tree_leaves([case.make() for case in cases]) for cases in (first, second)]
    assert all(map(torch.equal, *leaves))
    assert all(leaf.requires_grad for leaf in leaves[0])
    sizes = [case.make()[0].numel() for case in first[:DRAWS]]
    assert sizes == sorted(sizes)


def two_moments(x, weight, bias, eps=1e-5):
    variance = x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()
    return (x - x.mean(-1, keepdim=True)) / (variance.clamp(min=0) + eps).sqrt() * weight + bias


def one_mask_for_all_heads(query, key, value, mask=None):
    if mask is not None and mask.dim() == 4:
        mask = mask[:, :1]
    return registry.get("scaled_dot_product_attention").reference(query, key, value, mask)


def first_place_of_a_token(tokens, start_id):
    first = tokens[:, :1] * 0 + start_id
    rows = [[row.index(token) for token in row] for row in tokens.tolist()]
    places = torch.tensor(rows, dtype=torch.int64).reshape(tokens.shape)
    return torch.cat([first, tokens.gather(1, places.clamp(min=0))[:, :-1].int().to(tokens.dtype) % 128], dim=1)


@pytest.mark.parametrize(
    ("name", "wrong", "variant"),
    [
        ("layer_norm", two_moments, "shifted"),
        ("scaled_dot_product_attention", one_mask_for_all_heads, "mask by head"),
        ("shift_right", first_place_of_a_token, "far"),
    ],
)
def test_a_variant_finds_what_it_is_for(name, wrong, variant):
    exercise = registry.get(name)
    examiner = Examiner(exercise)
    tried = [n for n, case in enumerate(examiner.cases) if VARIANTS[variant].words in case.name]
    found = [examiner.difference(n, observe(exercise, wrong, examiner.cases[n])) for n in tried]
    assert any(found)
    assert diagnose(exercise, wrong).verdict == WRONG
