"""The prompt or the second hint says every rule that its check tests: the author's words, or one generated line."""

import torch
from each import each
from proofs import EXERCISES, by_id
from small_exercise import center, make
from torch.utils._pytree import tree_leaves

from coursework.exercises import registry
from coursework.exercises.engine import rules
from coursework.exercises.engine.cells import edition, prompt_markdown
from coursework.exercises.engine.diagnose import RIGHT, WRONG, diagnose, examiner
from coursework.exercises.engine.messages import message
from coursework.exercises.spec import Case
from coursework.exercises.tensors import normal, strided


def says(text, *words):
    return any(word in text for word in words)


@each(EXERCISES, by_id)
def test_the_prompt_holds_every_rule_that_is_tested(exercise):
    """Worked out anew from the inputs and from what the right answer does with them."""
    said = f"{prompt_markdown(exercise)} {exercise.reference.__doc__} {rules.line(exercise)}"
    text = " ".join(said.split())
    own = examiner(exercise)
    for number, case in enumerate(own.cases):
        made = case.make()
        leaves = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        for leaf in leaves:
            name = str(leaf.dtype).removeprefix("torch.")
            assert name in ("float32", "int64", "bool") or says(text, name, "dtype of x"), (name, case.name)
            assert leaf.is_contiguous() or says(text, "contiguous", "result of a `transpose`"), case.name
            if leaf.is_floating_point():
                assert not leaf.isneginf().any() or says(text, "minus infinity"), case.name
                large = bool((leaf[leaf.isfinite()].abs() > 100).any())
                assert not large or says(text, "large", "any size", "several hundred"), case.name
        outcome = own.outcome((), number)
        if any(gradient is not None and bool(gradient.any()) for gradient in outcome.gradients or []):
            assert says(text, "gradient"), case.name
        if leaves:
            assert says(text, "unchanged", "not change", "Leave", "leave"), case.name
        mask = made.get("mask") if isinstance(made, dict) else next((x for x in made if _is_mask(x)), None)
        if mask is not None and exercise.id in ("scaled_dot_product_attention", "masked_softmax") and not mask.any():
            assert says(text, "hides everything"), case.name
    if exercise.flop_limit or exercise.element_limit:
        assert says(text, "operations", "eep only", "the cost")
    assert says(text, "a second call")


def _is_mask(value):
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool


def test_the_line_lists_what_the_author_did_not_say():
    cases = [
        Case("float64", lambda: (normal(2, 3, seed=1, dtype=torch.float64),)),
        Case("strided", lambda: (strided(normal(2, 3, seed=2)),)),
        Case("large", lambda: (normal(2, 3, seed=3, scale=1000.0),)),
        Case("from the end", lambda: {"x": normal(2, 3, seed=4), "dim": -2}),
    ]
    assert rules.line(make(cases=cases)) == (
        "*The check also looks at* float64, tensors that are not contiguous in memory, large numbers, an axis counted "
        "from the end, the gradients of x, the dtype of the result, a second call and unchanged arguments."
    )
    said = make(cases=cases, what="Numbers of any size, in float64, along any axis. Leave x as it is. Keep gradients.")
    assert rules.line(said) == (
        "*The check also looks at* tensors that are not contiguous in memory, the dtype of the result and a second "
        "call."
    )
    loose = make(cases=cases[:1], gradients=False)
    assert rules.line(loose) == (
        "*The check also looks at* float64, tensors that are not contiguous in memory, the dtype of the result, a "
        "second call and unchanged arguments."
    )
    assert "also looks at" not in prompt_markdown(loose)
    assert edition(loose) != edition(make(cases=cases[:1]))


def test_half_precision_is_a_rule_only_where_it_is_tried():
    assert "float16" not in rules.line(make(cases=[Case("a", lambda: (normal(2, 3, seed=1),))]))
    assert "float16" in rules.line(make(cases=[Case("a", lambda: (normal(2, 3, seed=1),))], tries=("float16",)))


def test_no_gradients_where_none_are_needed():
    for name in ("top_p_filter", "sampling_order", "beam_step", "kv_cache_step", "patchify", "alibi_bias"):
        assert not registry.get(name).gradients, name


def test_a_gradient_left_on_an_argument_is_a_mistake():
    def backward(x, dim=-1):
        center(x, dim).sum().backward()
        return center(x, dim)

    text = message(make(), diagnose(make(), backward), backward, keep=False)
    assert "It leaves a gradient in `.grad` of its argument x." in text


def test_a_table_of_weights_is_noticed_however_it_is_made():
    exercise = registry.get("linear_attention")

    def by_elements(query, key, value):
        query, key = torch.nn.functional.elu(query) + 1, torch.nn.functional.elu(key) + 1
        weights = sum(query[..., i, None] * key[..., None, :, i] for i in range(key.size(-1)))
        mixed = torch.stack([(weights * value[..., None, :, i]).sum(-1) for i in range(value.size(-1))], dim=-1)
        return mixed / weights.sum(-1, keepdim=True)

    finding = diagnose(exercise, by_elements)
    assert finding.verdict == WRONG
    assert finding.failure.difference.aspect == "cost"
    assert "elements in the largest tensor" in finding.failure.difference.sentence


def test_tiles_can_be_read_once_and_are_not_kept():
    exercise = registry.get("online_softmax")

    def twice(score_tiles, value_tiles):
        highest = max(tile.max() for tile in score_tiles)
        total = mixed = 0.0
        for scores, values in zip(score_tiles, value_tiles, strict=True):
            part = (scores - highest).exp()
            total, mixed = total + part.sum(-1, keepdim=True), mixed + part @ values
        return mixed / total

    def as_lists(score_tiles, value_tiles):
        score_tiles, value_tiles = list(score_tiles), list(value_tiles)
        highest = torch.stack([tile.amax(-1, keepdim=True) for tile in score_tiles]).amax(0)
        parts = [(tile - highest).exp() for tile in score_tiles]
        mixed = sum(part @ values for part, values in zip(parts, value_tiles, strict=True))
        return mixed / sum(part.sum(-1, keepdim=True) for part in parts)

    def joined(score_tiles, value_tiles):
        pairs = [(scores + 0, values + 0) for scores, values in zip(score_tiles, value_tiles, strict=True)]
        scores, values = torch.cat([pair[0] for pair in pairs], -1), torch.cat([pair[1] for pair in pairs])
        return scores.softmax(-1) @ values

    def writes(score_tiles, value_tiles):
        tiles = [(scores, values) for scores, values in zip(score_tiles, value_tiles, strict=True)]
        result = exercise.reference(*zip(*tiles, strict=True))
        tiles[0][0].data.mul_(2)
        return result

    assert "changes its argument score_tiles" in diagnose(exercise, writes).failure.difference.sentence
    assert diagnose(exercise, twice).verdict == WRONG
    finding = diagnose(exercise, as_lists)
    assert "tiles are kept at once" in message(exercise, finding, as_lists, keep=False)
    finding = diagnose(exercise, joined)
    assert "elements in the largest tensor" in message(exercise, finding, joined, keep=False)
    assert diagnose(exercise, exercise.reference).verdict == RIGHT


def test_tiles_that_are_indexed_are_said_to_come_from_an_iterator():
    def indexed(score_tiles, value_tiles):
        return score_tiles[0].softmax(-1) @ value_tiles[0]

    exercise = registry.get("online_softmax")
    text = message(exercise, examiner(exercise).examine(indexed), indexed, keep=False)
    assert "the tiles come from an iterator" in text
