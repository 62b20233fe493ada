"""The laws of numbers bite: outputs, gradients, finite values, counts; right implementations pass."""

import math

import pytest
import torch
import torch.nn.functional as F
from recorded import recorded
from test_laws import caught
from torch import nn

from course_lib import testing as laws
from course_lib.attention import CausalSelfAttention, SelfAttention, scaled_dot_product_attention
from course_lib.masks import causal_mask, length_mask

D = 8


@pytest.fixture
def x():
    return torch.randn(3, 7, D, generator=torch.Generator().manual_seed(2))


# ------------------------------------------------------------------------------------------------------ equivalent


def rotate(x, interleaved):
    angles = torch.arange(x.size(-2))[:, None] * 100.0 ** -torch.linspace(0, 1, x.size(-1) // 2)
    cos, sin = angles.cos(), angles.sin()
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def norm(x, *, unbiased=False, outside=False, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, unbiased=unbiased)
    return x / (variance.sqrt() + eps if outside else (variance + eps).sqrt())


DIFFERENT = {
    "scale forgotten": (lambda x: (x @ x.mT).softmax(-1) @ x, lambda x: scaled_dot_product_attention(x, x, x), 1.0),
    "softmax over the queries": (
        lambda x: (x @ x.mT / math.sqrt(D)).softmax(-2) @ x,
        lambda x: scaled_dot_product_attention(x, x, x),
        1.0,
    ),
    "unbiased variance": (lambda x: norm(x, unbiased=True), lambda x: F.layer_norm(x, (D,)), 1.0),
    "eps outside the root": (lambda x: norm(x, outside=True), lambda x: F.layer_norm(x, (D,)), 1e-3),
    "rotary layouts mixed": (lambda x: rotate(x, True), lambda x: rotate(x, False), 1.0),
    "tanh for erf": (lambda x: F.gelu(x, approximate="tanh"), F.gelu, 1.0),
    "causal aligned top-left": (
        lambda x: F.scaled_dot_product_attention(x[:, 4:], x, x, is_causal=True),
        lambda x: scaled_dot_product_attention(x[:, 4:], x, x, causal=True),
        1.0,
    ),
    "one value is NaN": (lambda x: x.clone().index_fill(1, torch.tensor(2), math.nan), lambda x: x + 0, 1.0),
}


@pytest.mark.parametrize("bug", DIFFERENT)
def test_equivalent_catches_other_outputs(bug, x):
    first, second, size = DIFFERENT[bug]
    caught(
        r"the outputs differ by (\d|inf).*first .*, second .* at \(", laws.assert_equivalent, first, second, x * size
    )


def test_equivalent_catches_other_gradients(x):
    right = lambda q, k, v: scaled_dot_product_attention(q, k, v)  # noqa: E731
    wrong = {
        "key": lambda q, k, v: right(q, k.detach(), v),
        "query": lambda q, k, v: right(q.detach(), k, v),
        "value": lambda q, k, v: right(q, k, 2 * v - v.detach()),
    }
    for name, fn in wrong.items():
        message = rf"the gradients for {name} differ by \d"
        caught(message, laws.assert_equivalent, fn, right, x, x + 1, -x, names=("query", "key", "value"))
        laws.assert_equivalent(fn, right, x, x + 1, -x, gradients=False)

    class Frozen(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.detach(), self.bias)

    fed, other = nn.Linear(D, D), Frozen(D, D)
    other.load_state_dict(fed.state_dict())
    caught("the gradients for weight differ", laws.assert_equivalent, other, fed, x)
    caught(
        "the gradients for parameter pair 0 differ",
        laws.assert_equivalent,
        lambda x: other(x),
        fed,
        x,
        parameters=[(other.weight, fed.weight)],
    )


def test_equivalent_catches_maps_that_are_not_those_of_the_pass(x):
    """Weights shown beside an output must explain it: weights @ value is the output."""
    mask = causal_mask(7)

    def explained(weights_of):
        return lambda x: (scaled_dot_product_attention(x, x, x, mask=mask), weights_of(x) @ x)

    def twice(x):
        output = scaled_dot_product_attention(x, x, x, mask=mask)
        return output, output

    honest = lambda x: scaled_dot_product_attention(x, x, x, mask=mask, return_weights=True)[1]  # noqa: E731
    recomputed = lambda x: (x @ x.mT / math.sqrt(D)).softmax(-1)  # noqa: E731
    dropped = lambda x: F.dropout(honest(x), 0.5)  # noqa: E731
    laws.assert_equivalent(explained(honest), twice, x)
    caught("the outputs number 1 differ", laws.assert_equivalent, explained(recomputed), twice, x)
    caught("the outputs number 1 differ", laws.assert_equivalent, explained(dropped), twice, x)


def test_equivalent_returns_the_largest_differences(x):
    shifted = laws.assert_equivalent(lambda x: x + 1e-3, lambda x: x * 1.0, x, tolerance=1.0)
    assert shifted.output == pytest.approx(1e-3, rel=1e-3)
    assert shifted.gradient == 0.0
    caught("in shape: first", laws.assert_equivalent, lambda x: x[:, :1], lambda x: x, x)
    caught("returned 1 tensors, the second 2", laws.assert_equivalent, lambda x: x, lambda x: (x, x), x)


# ---------------------------------------------------------------------------------------------------------- finite


def masked_softmax(query, key, value, mask, *, how):
    scores = query @ key.mT / math.sqrt(D)
    if how == "minus infinity alone":
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    elif how == "NaN replaced after the softmax":
        weights = (scores + torch.where(mask, 0.0, -math.inf)).softmax(-1)
        weights = torch.where(weights.isnan(), 0.0, weights)
    elif how == "sentinel of another dtype":
        hidden = torch.where(mask, 0.0, torch.finfo(torch.float32).min).to(scores.dtype)
        weights = (scores + hidden).softmax(-1)
    elif how == "sentinel that overflows":
        hidden = torch.where(mask, 0.0, -1e9).to(scores.dtype)
        weights = (scores + hidden).softmax(-1)
    elif how == "finite sentinel":
        weights = scores.masked_fill(~mask, -1e9).softmax(-1)
    elif how == "exponential without subtracting the largest":
        weights = scores.exp() * mask
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    return weights @ value


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("minus infinity alone", "the output in torch.float32 at scale 0 with the mask 'empty rows' holds"),
        ("NaN replaced after the softmax", "the gradient for input 0 in torch.float32 .* with the mask 'empty rows'"),
        ("sentinel of another dtype", "in torch.bfloat16 at scale .* with the mask 'empty rows' holds"),
        ("sentinel that overflows", "in torch.float16 at scale .* with the mask 'empty rows' holds"),
        ("finite sentinel", r"'empty rows' is up to .* for the query at \(0, 0\), which may attend to nothing"),
        ("exponential without subtracting the largest", "at scale 10000 with the mask"),
    ],
)
def test_finite_catches(how, message, x):
    masks = {"causal": causal_mask(7), "empty rows": causal_mask(7).tril(-1)}
    fn = lambda q, k, v, mask: masked_softmax(q, k, v, mask, how=how)  # noqa: E731
    more = {"dtypes": [torch.float16], "scales": [1.0]} if how == "sentinel that overflows" else {}
    caught(message, laws.assert_finite, fn, x, x, x, masks=masks, empty_rows_zero=how == "finite sentinel", **more)


def test_finite_catches_norms(x):
    caught("the output in torch.float32 at scale 0", laws.assert_finite, lambda x: x / x.std(-1, keepdim=True), x)
    guarded = lambda x: x / (x.var(-1, keepdim=True).sqrt() + 1e-5)  # noqa: E731
    caught("the gradient for input 0 in torch.float32 at scale 0", laws.assert_finite, guarded, x)

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return x * self.gain.sqrt()

    caught("the gradient for gain in torch.float32", laws.assert_finite, Root(), x)


@pytest.mark.parametrize("backend", ["explicit", "fused"])
def test_finite_passes_what_is_right(backend, x):
    masks = {
        "empty rows": causal_mask(7).tril(-1),
        "empty examples": length_mask([0, 3, 7], 7)[:, 0],
        "nothing at all": torch.zeros(7, 7, dtype=torch.bool),
    }
    fn = lambda q, k, v, mask: scaled_dot_product_attention(q, k, v, mask=mask, backend=backend)  # noqa: E731
    laws.assert_finite(fn, x, x, x, masks=masks, empty_rows_zero=True)
    laws.assert_finite(CausalSelfAttention(D), x)


# ------------------------------------------------------------------------------------------------------- gradients


def test_gradients_flow_catches(x):
    law, names = laws.assert_gradients_flow, ("query", "key", "value")

    def detached(q, k, v):
        return scaled_dot_product_attention(q, k, v, return_weights=True)[1].detach() @ v

    def hard(q, k, v):
        return F.one_hot((q @ k.mT).argmax(-1), k.size(-2)).float() @ v

    caught("no gradient reaches query", law, detached, x, x, x, names=names)
    caught("no gradient reaches query", law, hard, x, x, x, names=names)
    caught("no gradient reaches input 0, it is exactly 0", law, lambda x: F.relu(-x.abs()), x)
    caught("no gradient reaches input 0", law, lambda x: x.detach() * 1.0, x)
    caught("the gradient for input 0 holds", law, lambda x: (x * 0).sqrt(), x)

    class Forgetful(SelfAttention):
        def __init__(self):
            super().__init__(D)
            self.unused = nn.Linear(D, D)

    caught("no gradient reaches unused.weight", law, Forgetful(), x)


def test_gradients_flow_passes_what_is_right(x):
    laws.assert_gradients_flow(SelfAttention(D), x)
    laws.assert_gradients_flow(nn.LayerNorm(D), x)
    laws.assert_gradients_flow(lambda x: x - x.roll(1, -1), x)  # the gradient of a plain sum is zero
    head = SelfAttention(D, bias=True)
    with pytest.raises(ValueError, match="without"):
        laws.assert_gradients_flow(head, x, without=["projection.keys.bias"])
    laws.assert_gradients_flow(head, x, without=["projection.key.bias"])
    assert all(parameter.grad is None for parameter in head.parameters())


# ---------------------------------------------------------------------------------------------------------- counts


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(13, D), nn.Linear(D, 13, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_counts_catch(x):
    law, head = laws.assert_counts, SelfAttention(D, bias=True)
    T, B = 7, 3
    caught(
        r"parameters: the formula gives 208, measured 104", law, Tied(), parameters=2 * 13 * D
    )  # tied, counted twice
    caught(r"gives 192, measured 216 \(projection 216\)", law, head, parameters=3 * D * D)  # biases forgotten
    projections, products = 3 * 2 * B * T * D * D, 2 * 2 * B * T * T * D
    explicit = lambda x: recorded(head, x)[0]  # noqa: E731
    caught("flops: the formula gives 8,064, measured 12,768", law, explicit, x, flops=projections)
    caught("flops", law, explicit, x, flops=(projections + products) // 2)  # one for a multiplication and addition
    assert law(explicit, x, flops=projections + products).flops == projections + products

    G, E = 2, 4

    def cache(shape, dtype=torch.float32):
        return lambda: {"keys": torch.zeros(shape, dtype=dtype), "values": [torch.zeros(shape, dtype=dtype)]}

    per_token = 2 * G * E * 4
    caught("output_bytes", law, cache((B, G, T, E)), output_bytes=B * T * per_token // G)  # without the heads
    caught("output_bytes", law, cache((B, 8, T, E)), output_bytes=B * T * per_token)  # kept once a query head
    caught("output_bytes", law, cache((B, G, T, E)), output_bytes=B * T * per_token // 2)  # half precision forgotten
    law(cache((B, G, T, E)), output_bytes=B * T * per_token)
    law(cache((B, G, T, E), torch.bfloat16), output_bytes=B * T * per_token // 2)

    caught("saved_bytes", law, lambda x: (x @ x.mT).softmax(-1) @ x, x, saved_bytes=0)
    caught("saved_bytes: the formula gives 100", law, lambda x: x.exp(), x, saved_bytes=100)


def test_counts_pass_what_is_right(x):
    laws.assert_counts(Tied(), parameters=13 * D)
    laws.assert_counts(SelfAttention(D, 3, 5), parameters=D * (3 + 3 + 5))
    # One n x n matrix is kept by a softmax, whatever its input was made of.
    counts = laws.assert_counts(lambda x: (x @ x.mT).softmax(-1), x, saved_bytes=3 * 7 * 7 * 4)
    assert counts == laws.Counts(saved_bytes=3 * 7 * 7 * 4)
    view = torch.zeros(10)
    assert laws.assert_counts(lambda: (view, view[2:]), output_bytes=40).output_bytes == 40
    laws.assert_counts(Tied(), parameters=100, tolerance=0.05)
    with pytest.raises(TypeError, match="fn"):
        laws.assert_counts(lambda: None, parameters=3)
