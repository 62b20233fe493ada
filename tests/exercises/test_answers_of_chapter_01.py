"""Wrong answers to chapter 01 as learners write them, independent of the models: each gets its name."""

import math

import pytest
import torch
import torch.nn.functional as F

from coursework.exercises import registry
from coursework.exercises.engine.diagnose import RIGHT, WRONG, examiner

ANSWERS = []


def wrong(exercise_id, *names):
    """Register an answer with the names of the mistakes it makes; no name: wrong in a way that nobody has named."""

    def register(function):
        ANSWERS.append(pytest.param(exercise_id, function, names, id=f"{exercise_id}-{function.__name__}"))
        return function

    return register


@wrong("soft_lookup", "best-key-only")
def takes_the_maximum(query, keys, values):
    return values[torch.argmax(keys @ query)]


@wrong("soft_lookup", "scaled")
def remembers_the_paper(query, keys, values):
    weights = F.softmax(query @ keys.T / query.shape[-1] ** 0.5, dim=-1)
    return weights @ values


@wrong("soft_lookup", "mean-of-weighted-values")
def averages_twice(query, keys, values):
    weights = torch.softmax((keys * query).sum(1), 0)
    return torch.mean(weights.unsqueeze(1) * values, dim=0)


@wrong("soft_lookup", "share-of-scores")
def normalises_by_the_sum(query, keys, values):
    scores = torch.einsum("se,e->s", keys, query)
    return (scores / scores.sum()) @ values


@wrong("soft_lookup", "cosine")
def compares_angles(query, keys, values):
    scores = keys @ query / (keys.norm(dim=1) * query.norm())
    return scores.softmax(0) @ values


@wrong("stable_softmax", "plain-exponential")
def book_formula(scores, dim=-1):
    return torch.exp(scores) / torch.exp(scores).sum(dim=dim, keepdim=True)


@wrong("stable_softmax", "one-maximum-for-all")
def one_maximum(scores, dim=-1):
    e = torch.exp(scores - torch.max(scores))
    return e / e.sum(dim, keepdim=True)


@wrong("stable_softmax", "always-last-axis")
def forgets_dim(scores, dim=-1):
    shifted = scores - scores.max(-1, keepdim=True).values
    return shifted.exp() / shifted.exp().sum(-1, keepdim=True)


@wrong("stable_softmax", "cut-above")
def clamps(scores, dim=-1):
    e = scores.clamp(max=60).exp()
    return e / e.sum(dim, keepdim=True)


@wrong("stable_softmax", "nan-replaced")
def hides_nan(scores, dim=-1):
    e = scores.exp()
    return torch.nan_to_num(e / e.sum(dim, keepdim=True))


@wrong("stable_softmax", "sum-loses-its-axis")
def loses_an_axis(scores, dim=-1):
    e = (scores - scores.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim)


@wrong("batched_attention", "turns-all-axes")
def still_reverses(query, key, value):
    return (query @ key.permute(*range(key.dim() - 1, -1, -1)) / math.sqrt(query.shape[-1])).softmax(-1) @ value


@wrong("batched_attention", "insists-on-three-axes")
def for_three_axes(query, key, value):
    _, _, E = query.shape
    scores = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(E)
    return torch.bmm(scores.softmax(dim=2), value)


@wrong("batched_attention", "width-from-axis-one")
def scale_from_axis_one(query, key, value):
    return torch.softmax(query @ key.mT / math.sqrt(query.size(1)), dim=-1) @ value


@wrong("batched_attention", "softmax-over-axis-one")
def softmax_from_axis_one(query, key, value):
    return torch.softmax(query @ key.mT / math.sqrt(query.size(-1)), dim=1) @ value


@wrong("attention_entropy", "nan-at-zero")
def plain_entropy(weights):
    return -(weights * weights.log()).sum(-1)


@wrong("attention_entropy", "bits")
def entropy_in_bits(weights):
    safe = weights.clamp(min=1e-12)
    return -(weights * safe.log2()).sum(-1)


@wrong("attention_entropy", "one-number-for-all")
def mean_entropy(weights):
    return -(weights * (weights + 1e-12).log()).sum(-1).mean()


@wrong("dependency_map", "changes-its-input")
def changes_x(layer, x):
    before, rows = layer(x), []
    for t in range(len(x)):
        x[t] = torch.randn(x.size(1))
        rows.append(((layer(x) - before).abs() > 1e-5).any(1))
    return torch.stack(rows, 1)


@wrong("dependency_map", "gradient-only")
def by_gradient(layer, x):
    x = x.clone().requires_grad_()
    y = layer(x)
    rows = []
    for t in range(len(x)):
        total = torch.zeros(len(x))
        for component in range(y.size(1)):
            (g,) = torch.autograd.grad(y[t, component], x, retain_graph=True)
            total += g.abs().sum(1)
        rows.append(total > 1e-5)
    return torch.stack(rows)


@wrong("dependency_map", "transposed")
def rows_are_tokens(layer, x):
    result = torch.zeros(len(x), len(x), dtype=torch.bool)
    for t in range(len(x)):
        y = x.clone()
        y[t] = torch.rand_like(y[t]) * 9
        result[t] = ((layer(y) - layer(x)).abs() > 1e-5).any(-1)
    return result


@wrong("dependency_map", "no-rounding")
def asks_for_equality(layer, x):
    before, columns = layer(x), []
    for t in range(len(x)):
        other = torch.cat([x[:t], torch.rand(1, x.size(1)), x[t + 1 :]])
        columns.append((layer(other) != before).any(1))
    return torch.stack(columns, 1)


@wrong("dependency_map", "set-to-zero")
def erases(layer, x):
    keep = ~torch.eye(len(x), dtype=torch.bool)
    moved = [(layer(x * k[:, None]) - layer(x)).norm(dim=1) > 1e-5 for k in keep]
    return torch.stack(moved, 1)


@wrong("dependency_map", "shifted")
def adds_one(layer, x):
    result = torch.zeros(len(x), len(x), dtype=torch.bool)
    for t in range(len(x)):
        y = x.clone()
        y[t] += 10
        result[:, t] = ((layer(y) - layer(x)).abs() > 1e-5).any(-1)
    return result


@wrong("leaky_attention", "aligned-top-left")
def torch_flag(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@wrong("leaky_attention", "hidden-after-softmax")
def moves_the_diagonal_only(query, key, value):
    T, S = query.size(-2), key.size(-2)
    weights = (query @ key.mT / math.sqrt(query.size(-1))).softmax(-1)
    return weights.tril(S - T) @ value


@wrong("leaky_attention", "shared-out-again")
def renormalises(query, key, value):
    T, S = query.size(-2), key.size(-2)
    weights = (query @ key.mT / math.sqrt(query.size(-1))).softmax(-1).tril(S - T)
    return weights / weights.sum(-1, keepdim=True) @ value


@wrong("leaky_attention", "one-ahead")
def off_by_one(query, key, value):
    T, S = query.size(-2), key.size(-2)
    hidden = torch.ones(T, S).triu(S - T + 2).bool()
    scores = query @ key.mT / math.sqrt(query.size(-1))
    return scores.masked_fill(hidden, -math.inf).softmax(-1) @ value


@wrong("leaky_attention", "hidden-after-softmax", "aligned-top-left")
def only_renamed(query, key, value):
    size = query.shape[-2], key.shape[-2]
    weights = torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, -1)
    return (weights * torch.tril(torch.ones(size, dtype=torch.bool))) @ value


@wrong("causal_mask", "aligned-top-left", "ones-and-zeros")
def lower_triangle(T, S):
    return torch.tril(torch.ones(T, S))


@wrong("causal_mask", "aligned-top-left", "true-is-hidden")
def upper_triangle(T, S):
    return torch.triu(torch.ones(T, S), diagonal=1).bool()


@wrong("causal_mask", "hides-itself")
def strictly_earlier(T, S):
    return torch.arange(S) < torch.arange(S - T, S).unsqueeze(1)


@wrong("causal_mask", "square-of-queries")
def square(T, S):
    return torch.ones(T, T).tril().bool()


@wrong("causal_mask", "aligned-top-left", "numbers-to-add")
def to_be_added(T, S):
    return torch.full((T, S), -math.inf).triu(1)


@wrong("cross_attention_shapes", "output-as-wide-as-model")
def with_a_last_map(B, T, S, D, E, E_value):
    return {
        "query": [B, T, E],
        "key": [B, S, E],
        "value": [B, S, E_value],
        "weights": torch.Size([B, T, S]),
        "output": (B, T, D),
    }


@wrong("scaled_dot_product_attention", "empty-row-average")
def as_in_most_tutorials(query, key, value, mask=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return torch.matmul(F.softmax(scores, dim=-1), value)


@wrong("scaled_dot_product_attention", "empty-row-nan", "no-scale")
def unscaled(query, key, value, mask=None):
    scores = query @ key.mT
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    return scores.softmax(-1) @ value


@wrong("scaled_dot_product_attention", "mask-inverted")
def hides_true(query, key, value, mask=None):
    scores = torch.einsum("bhte,bhse->bhts", query, key) / math.sqrt(key.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask, float("-inf"))
    return torch.einsum("bhts,bhse->bhte", scores.softmax(-1).nan_to_num(), value)


@wrong("scaled_dot_product_attention", "shared-out-safely")
def renormalises_with_care(query, key, value, mask=None):
    weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
    if mask is not None:
        weights = weights * mask
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    return weights @ value


@wrong("scaled_dot_product_attention", "gradient-nan")
def adds_a_mask(query, key, value, mask=None):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -math.inf)
    return scores.softmax(-1).nan_to_num() @ value


@wrong("padding_mask", "inverted")
def true_is_padding(tokens, pad_id):
    return (tokens == pad_id).unsqueeze(1).unsqueeze(2)


@wrong("padding_mask", "no-head-and-query-axes")
def two_axes(tokens, pad_id):
    return tokens != pad_id


@wrong("padding_mask", "hides-queries")
def axes_at_the_end(tokens, pad_id):
    return (tokens != pad_id)[:, None, :, None]


@wrong("padding_mask", "copied-for-each-query")
def expanded(tokens, pad_id):
    B, S = tokens.shape
    return (tokens != pad_id).view(B, 1, 1, S).expand(B, 1, S, S)


@wrong("padding_mask", "additive")
def for_adding(tokens, pad_id):
    mask = torch.zeros(tokens.shape)
    mask[tokens == pad_id] = -math.inf
    return mask[:, None, None]


@wrong("combine_masks", "either-is-enough")
def union(*masks):
    result = None
    for mask in masks:
        if mask is not None:
            result = mask if result is None else result | mask
    return result


@wrong("combine_masks", "changes-its-input")
def in_place(*masks):
    given = [m for m in masks if m is not None]
    if not given:
        return None
    result = given[0]
    for mask in given[1:]:
        result &= mask
    return result


@wrong("combine_masks", "true-for-nothing")
def starts_from_true(*masks):
    result = torch.tensor(True)
    for mask in masks:
        if mask is not None:
            result = result & mask
    return result


@wrong("combine_masks")
def forgets_none(*masks):
    result = masks[0]
    for mask in masks[1:]:
        result = result & mask
    return result


@wrong("masked_softmax", "fill-a-billion", "empty-row-forgotten")
def as_usually_copied(scores, mask):
    return scores.masked_fill(mask == 0, -1e9).softmax(dim=-1)


@wrong("masked_softmax", "empty-row-forgotten")
def minus_infinity(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)


@wrong("masked_softmax", "empty-row-uniform")
def lowest_number(scores, mask):
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


@wrong("masked_softmax", "gradient-nan")
def additive_mask(scores, mask):
    bias = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -math.inf)
    return torch.nan_to_num((scores + bias).softmax(-1))


@wrong("masked_softmax", "mask-after-softmax")
def multiplies_weights(scores, mask):
    return scores.softmax(-1) * mask


@wrong("masked_softmax", "scores-times-mask")
def multiplies_scores(scores, mask):
    weights = (scores * mask).softmax(-1)
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0)


@wrong("masked_softmax", "fill-ten-thousand")
def ten_thousand(scores, mask):
    weights = torch.where(mask, scores, torch.tensor(-1e4, dtype=scores.dtype)).softmax(-1)
    return torch.where(mask.any(-1, keepdim=True), weights, 0.0)


@pytest.mark.parametrize(("exercise_id", "function", "names"), ANSWERS)
def test_a_wrong_answer_gets_its_name(exercise_id, function, names):
    finding = examiner(registry.get(exercise_id)).examine(function)
    assert finding.verdict == WRONG
    assert {misconception.name for misconception in finding.misconceptions} == set(names)


def small_number_in_the_logarithm(weights):
    return -(weights * (weights + 1e-9).log()).sum(-1)


def two_unsqueezed_axes(tokens, pad_id):
    return torch.ne(tokens, pad_id).unsqueeze(-2).unsqueeze(-2)


def hidden_by_triu(query, key, value):
    T, S = query.shape[-2], key.shape[-2]
    hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=~hidden)


def lowest_number_then_mask(scores, mask):
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights * mask


def random_shift(layer, x):
    found = [
        (layer(x + torch.randn_like(x) * F.one_hot(torch.tensor(t), len(x))[:, None]) - layer(x)).abs().sum(1) > 1e-5
        for t in range(len(x))
    ]
    return torch.stack(found).mT


@pytest.mark.parametrize(
    ("exercise_id", "function"),
    [
        ("attention_entropy", small_number_in_the_logarithm),
        ("padding_mask", two_unsqueezed_axes),
        ("leaky_attention", hidden_by_triu),
        ("masked_softmax", lowest_number_then_mask),
        ("dependency_map", random_shift),
    ],
)
def test_an_unusual_right_answer_is_accepted(exercise_id, function):
    assert examiner(registry.get(exercise_id)).examine(function).verdict == RIGHT
