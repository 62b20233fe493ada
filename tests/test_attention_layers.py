"""The single-head layers, and bad input to all of attention: each error names the argument."""

import math

import pytest
import torch
import torch.nn.functional as F
from recorded import recorded

from course_lib.attention import (
    CausalSelfAttention,
    CrossAttention,
    QKVProjection,
    SelfAttention,
    scaled_dot_product_attention,
)
from course_lib.masks import causal_mask
from course_lib.testing import (
    assert_causal,
    assert_counts,
    assert_equivalent,
    assert_finite,
    assert_gradients_flow,
    assert_padding_invariant,
    assert_permutation_equivariant,
)

B, H, T, S, E = 2, 3, 5, 7, 11


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_parity_with_torchs_single_head_layer():
    """SelfAttention is nn.MultiheadAttention with one head and an identity for its output projection."""
    ours, theirs = SelfAttention(E, bias=True), torch.nn.MultiheadAttention(E, 1, batch_first=True)
    parts = [ours.projection.query, ours.projection.key, ours.projection.value]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(torch.eye(E))
        theirs.out_proj.bias.zero_()
    mask = causal_mask(T)
    assert_equivalent(
        lambda x: recorded(ours, x, mask=mask),
        lambda x: theirs(x, x, x, attn_mask=~mask),  # the other polarity
        torch.randn(B, T, E, generator=generator()),
        names=["x"],
    )


def test_layers_drop_only_in_training():
    x = torch.randn(B, T, E, generator=generator())
    head = CausalSelfAttention(E, dropout=0.5)
    plain = CausalSelfAttention(E)
    plain.load_state_dict(head.state_dict())
    assert not torch.equal(head(x), head(x))
    assert torch.equal(head.eval()(x), plain(x))
    assert torch.equal(head(x), head(x))


def test_projection_is_three_linear_maps():
    projection = QKVProjection(E, 4, 6, bias=True)
    x, context = torch.randn(B, T, E), torch.randn(B, S, E)
    query, key, value = projection(x, context)
    torch.testing.assert_close(query, x @ projection.query.weight.T + projection.query.bias)
    torch.testing.assert_close(key, context @ projection.key.weight.T + projection.key.bias)
    torch.testing.assert_close(value, context @ projection.value.weight.T + projection.value.bias)
    assert [tuple(part.shape) for part in (query, key, value)] == [(B, T, 4), (B, S, 4), (B, S, 6)]
    assert_counts(projection, parameters=(E + 1) * (4 + 4 + 6))


@pytest.mark.parametrize("layer", [SelfAttention, CausalSelfAttention])
def test_self_attention_layers(layer):
    torch.manual_seed(0)
    head, x = layer(E, 4, 6), torch.randn(B, T, E)
    output, weights = recorded(head, x)
    assert output.shape == (B, T, 6)
    assert weights.shape == (B, T, T)
    torch.testing.assert_close(head(x), output)
    torch.testing.assert_close(head(x[0]), output[0])  # without a batch
    assert_padding_invariant(lambda x, real: head(x, mask=real[:, None]), x)
    assert_gradients_flow(head, x)
    assert_finite(head, x)
    if layer is CausalSelfAttention:
        assert_causal(head, x)
    else:
        assert_permutation_equivariant(head, x)


def test_cross_attention():
    torch.manual_seed(0)
    head, x, context = CrossAttention(E, 4, 6), torch.randn(B, T, E), torch.randn(B, S, E)
    output, weights = recorded(head, x, context)
    assert output.shape == (B, T, 6)
    assert weights.shape == (B, T, S)
    query, key, value = head.projection(x, context)
    torch.testing.assert_close(F.scaled_dot_product_attention(query, key, value), output)
    assert_permutation_equivariant(lambda x: head(x, context), x)  # in the queries
    torch.testing.assert_close(head(x, context.flip(1)), output)  # and invariant in the context
    assert_padding_invariant(
        lambda context, real: head(x[:1].expand(len(context), -1, -1), context, mask=real[:, None]),
        context,
        per_token=False,
    )
    assert_gradients_flow(head, x, context)


@pytest.mark.parametrize("layer", [SelfAttention, CausalSelfAttention])
def test_layers_under_autocast(layer, device):
    head, x = layer(E).to(device), torch.randn(B, T, E, device=device)
    with torch.autocast(device, torch.bfloat16):
        output = head(x)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), head(x), atol=3e-2, rtol=3e-2)


# ----------------------------------------------------------------------------------------------------- bad input

q, k, v = torch.zeros(B, H, T, E), torch.zeros(B, H, S, E), torch.zeros(B, H, S, E)
sdpa = scaled_dot_product_attention
BAD_INPUT = {
    "query of integers": (lambda: sdpa(q.long(), k, v), TypeError, "query: .* got torch.int64"),
    "query a list": (lambda: sdpa([1.0], k, v), TypeError, "query: .* got list"),
    "query of one dimension": (lambda: sdpa(q[0, 0, 0], k, v), ValueError, "query: expected at least two dimensions"),
    "query without width": (lambda: sdpa(q[..., :0], k[..., :0], v), ValueError, "query: expected a width E"),
    "key of another dtype": (lambda: sdpa(q, k.double(), v), TypeError, "key: expected torch.float32 like query"),
    "value of another dtype": (lambda: sdpa(q, k, v.half()), TypeError, "value: .* got torch.float16"),
    "key of another batch": (lambda: sdpa(q, k[:1], v), ValueError, r"key: expected leading dimensions \(2, 3\)"),
    "value of other heads": (lambda: sdpa(q, k, v[:, :1]), ValueError, "value: expected leading dimensions"),
    "key of another width": (lambda: sdpa(q, k[..., 1:], v), ValueError, "key: expected width E=11 like query, got 10"),
    "value of another length": (lambda: sdpa(q, k, v[:, :, 1:]), ValueError, "value: expected length S=7 like key"),
    "key on another device": (lambda: sdpa(q, k.to("meta"), v), ValueError, "key: expected device cpu .* got meta"),
    "mask on another device": (
        lambda: sdpa(q, k, v, mask=causal_mask(T, S, device="meta")),
        ValueError,
        "mask: expected device cpu",
    ),
    "mask of numbers": (lambda: sdpa(q, k, v, mask=torch.zeros(T, S)), TypeError, "mask: .* boolean .* torch.float32"),
    "mask of integers": (lambda: sdpa(q, k, v, mask=torch.ones(T, S).long()), TypeError, "mask: .* torch.int64"),
    "mask a list": (lambda: sdpa(q, k, v, mask=[True]), TypeError, "mask: .* got list"),
    "mask (B, S)": (
        lambda: sdpa(q, k, v, mask=torch.ones(B, S).bool()),
        ValueError,
        r"mask: .* got \(2, 7\); a padding mask",
    ),
    "mask (1, S)": (lambda: sdpa(q, k, v, mask=torch.ones(1, S).bool()), ValueError, r"mask: .* got \(1, 7\)"),
    "mask (B, T, S)": (
        lambda: sdpa(q, k, v, mask=torch.ones(B, T, S).bool()),
        ValueError,
        "mask: .* as many dimensions",
    ),
    "mask transposed": (
        lambda: sdpa(q, k, v, mask=torch.ones(S, T).bool()),
        ValueError,
        r"mask: expected shape \(T, S\)",
    ),
    "bias of integers": (lambda: sdpa(q, k, v, bias=torch.ones(T, S).long()), TypeError, "bias: .* got torch.int64"),
    "bias of another dtype": (
        lambda: sdpa(q, k, v, bias=torch.zeros(T, S).double()),
        TypeError,
        "bias: .* got torch.float64",
    ),
    "bias of another shape": (lambda: sdpa(q, k, v, bias=torch.zeros(S)), ValueError, "bias: .* got"),
    "dropout 1": (lambda: sdpa(q, k, v, dropout=1.0), ValueError, r"dropout: expected a probability in \[0, 1\)"),
    "dropout negative": (lambda: sdpa(q, k, v, dropout=-0.1), ValueError, "dropout: .* got -0.1"),
    "dropout NaN": (lambda: sdpa(q, k, v, dropout=math.nan), ValueError, "dropout: .* got nan"),
    "dropout a string": (lambda: sdpa(q, k, v, dropout="0.1"), TypeError, "dropout: expected a probability"),
    "scale infinite": (
        lambda: sdpa(q, k, v, scale=math.inf),
        ValueError,
        "scale: expected a number from .* got inf",
    ),
    "scale a string": (
        lambda: sdpa(q, k, v, scale="8"),
        TypeError,
        "scale: expected a number from .* got '8'",
    ),
    "backend unknown": (lambda: sdpa(q, k, v, backend="flash"), ValueError, "backend: .* got 'flash'"),
    "weights of the fused path": (
        lambda: sdpa(q, k, v, backend="fused", return_weights=True),
        ValueError,
        "return_weights: the fused backend never forms the weights",
    ),
    "layer of no width": (lambda: SelfAttention(0), ValueError, "d_model: expected an integer of at least 1, got 0"),
    "layer of odd width": (lambda: SelfAttention(4, 2.5), TypeError, "d_key: .* got 2.5"),
    "layer with too much dropout": (lambda: SelfAttention(4, dropout=1), ValueError, "dropout"),
    "x of another width": (lambda: SelfAttention(4)(torch.zeros(B, T, 5)), ValueError, r"x: .* D=4\), got \(2, 5, 5\)"),
    "x of token ids": (lambda: SelfAttention(4)(torch.zeros(B, 4).long()), TypeError, "x: .* got torch.int64"),
    "context of another batch": (
        lambda: CrossAttention(4)(torch.zeros(2, T, 4), torch.zeros(1, S, 4)),
        ValueError,
        r"context: expected leading dimensions \(2,\) like x",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_named(case):
    call, error, message = BAD_INPUT[case]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("scale", [0.0, 1e-46, -0.5, -1e30, 0.5, 1e30])
@pytest.mark.parametrize("shape", [(3, 3), (70, 70), (2, 5)])
def test_any_scale_is_the_same_on_every_path(scale, shape):
    draw = torch.Generator().manual_seed(0)
    T, S = shape
    query, key, value = (torch.randn(1, 2, n, 8, generator=draw) for n in (T, S, S))
    found = [
        sdpa(query, key, value, causal=True, scale=scale, backend=backend) for backend in ("explicit", "fused", "auto")
    ]
    seen = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    scores = (query * scale @ key.mT).masked_fill(~seen, -torch.inf)
    for output in found:
        torch.testing.assert_close(output, scores.softmax(dim=-1) @ value, rtol=1e-4, atol=1e-4)
