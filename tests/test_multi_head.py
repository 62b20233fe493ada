"""Multi-head attention: equal to torch, lawful, loadable both ways, and clear about bad input."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from recorded import recorded
from torch import nn

from course_lib import testing as laws
from course_lib.attention import scaled_dot_product_attention
from course_lib.cache import KVCache
from course_lib.masks import causal_mask, length_mask, sliding_window_mask
from course_lib.multi_head import MultiHeadAttention, merge_heads, repeat_heads, split_heads
from course_lib.positions import ALiBi, RotaryEmbedding

B, T, S, H, D = 3, 5, 7, 4, 12


def masks(T, S):
    """Every kind of mask, by name."""
    padding = length_mask([S, 2, S - 1], S)
    per_head = torch.rand(B, H, T, S) < 0.6
    return {
        "none": None,
        "causal": causal_mask(T, S),
        "padding": padding,
        "both": causal_mask(T, S) & padding if T <= S else padding,
        "window": sliding_window_mask(T, S, window=2),
        "per-head": per_head | torch.eye(T, S, dtype=torch.bool),
    }


def torch_mask(mask, T, S):
    """Ours as the mask of nn.MultiheadAttention: opposite polarity, (T, S) or (B * H, T, S)."""
    if mask is None or mask.dim() == 2:
        return None if mask is None else ~mask
    return ~mask.expand(B, H, T, S).reshape(B * H, T, S)


def test_split_then_merge_is_the_identity():
    x = torch.randn(B, T, D)
    heads = split_heads(x, H)
    assert heads.shape == (B, H, T, D // H)
    torch.testing.assert_close(heads[:, 1], x[:, :, D // H : 2 * D // H], rtol=0, atol=0)
    torch.testing.assert_close(merge_heads(heads), x, rtol=0, atol=0)


def test_equals_a_loop_over_heads():
    attention, x = MultiHeadAttention(D, H), torch.randn(B, T, D)
    query, key, value = attention.query(x), attention.key(x), attention.value(x)
    E = D // H
    heads = [
        scaled_dot_product_attention(*(t[..., h * E : (h + 1) * E] for t in (query, key, value))) for h in range(H)
    ]
    torch.testing.assert_close(attention(x), attention.output(torch.cat(heads, dim=-1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", masks(T, T))
@pytest.mark.parametrize(("batch_first", "bias", "fused"), list(itertools.product([True, False], repeat=3)))
def test_self_attention_equals_torch(kind, batch_first, bias, fused, parity):
    theirs = nn.MultiheadAttention(D, H, bias=bias, batch_first=batch_first)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases are born zero
    ours = MultiHeadAttention.from_torch(theirs, fused=fused)
    mask = masks(T, T)[kind]

    def run(x):
        x = x if batch_first else x.transpose(0, 1)
        y, weights = theirs(x, x, x, attn_mask=torch_mask(mask, T, T), average_attn_weights=False)
        return (y if batch_first else y.transpose(0, 1)), weights

    found = laws.assert_equivalent(
        lambda x: recorded(ours, x, mask=mask),
        run,
        torch.randn(B, T, D),
        names=["x"],
        parameters=[(ours.output.weight, theirs.out_proj.weight)]
        + ([(ours.qkv.weight, theirs.in_proj_weight)] if fused else []),
    )
    parity("MultiHeadAttention", "torch.nn.MultiheadAttention", found)


@pytest.mark.parametrize("kind", masks(T, S))
@pytest.mark.parametrize("d_context", [D, 10])
def test_cross_attention_equals_torch(kind, d_context, parity):
    theirs = nn.MultiheadAttention(D, H, batch_first=True, kdim=d_context, vdim=d_context)
    ours, mask = MultiHeadAttention.from_torch(theirs), masks(T, S)[kind]

    def run(x, context):
        return theirs(x, context, context, attn_mask=torch_mask(mask, T, S), need_weights=False)[0]

    found = laws.assert_equivalent(
        lambda x, context: ours(x, context, mask=mask), run, torch.randn(B, T, D), torch.randn(B, S, d_context)
    )
    parity("MultiHeadAttention, cross", "torch.nn.MultiheadAttention", found)


def test_bfloat16_equals_torch(parity):
    theirs = nn.MultiheadAttention(D, H, batch_first=True).bfloat16()
    ours, x = MultiHeadAttention.from_torch(theirs), torch.randn(B, T, D, dtype=torch.bfloat16)
    found = laws.assert_equivalent(ours, lambda x: theirs(x, x, x, need_weights=False)[0], x)
    assert ours(x).dtype == torch.bfloat16
    parity("MultiHeadAttention", "torch.nn.MultiheadAttention", found, torch.bfloat16)


@pytest.mark.parametrize("fused", [False, True])
def test_state_dicts_load_both_ways(fused):
    ours = MultiHeadAttention(D, H, n_kv_heads=2, fused=fused)
    other = MultiHeadAttention(D, H, n_kv_heads=2, fused=not fused)
    state = ours.state_dict()
    other.load_state_dict(state)
    assert state.keys() == ours.state_dict().keys()  # the caller's dict is left alone
    x, context = torch.randn(B, T, D), torch.randn(B, S, D)
    laws.assert_equivalent(ours, other, x)
    laws.assert_equivalent(ours, other, x, context)


def test_a_copy_loads_the_other_form_too():
    ours = copy.deepcopy(MultiHeadAttention(D, H, fused=True))
    other = MultiHeadAttention(D, H)
    ours.load_state_dict(other.state_dict())
    laws.assert_equivalent(ours, other, torch.randn(B, T, D))


def test_a_state_dict_of_another_width_is_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        MultiHeadAttention(D, H).load_state_dict(MultiHeadAttention(2 * D, H, fused=True).state_dict(), strict=False)


@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("queries", [1, T])
@pytest.mark.parametrize("kind", ["none", "padding", "per-head"])
def test_grouped_heads_equal_repeated_ones(G, queries, kind, parity):
    """Grouped attention is ordinary attention whose key and value projections repeat."""
    grouped, plain = MultiHeadAttention(D, H, n_kv_heads=G), MultiHeadAttention(D, H)
    state, E = grouped.state_dict(), D // H
    for name in ("key", "value"):
        state[f"{name}.weight"] = state[f"{name}.weight"].view(G, 1, E, D).expand(G, H // G, E, D).reshape(D, D)
        state[f"{name}.bias"] = state[f"{name}.bias"].view(G, 1, E).expand(G, H // G, E).reshape(D)
    plain.load_state_dict(state)
    mask, bias = masks(queries, S)[kind], ALiBi(H)(queries, S)
    found = laws.assert_equivalent(
        lambda x, c: recorded(grouped, x, c, mask=mask, bias=bias),
        lambda x, c: recorded(plain, x, c, mask=mask, bias=bias),
        torch.randn(B, queries, D),
        torch.randn(B, S, D),
    )
    parity("MultiHeadAttention, grouped", "the same with repeated projections", found)
    with torch.no_grad():
        x, context = torch.randn(B, queries, D), torch.randn(B, S, D)
        fast, (slow, weights) = grouped(x, context, mask=mask), recorded(grouped, x, context, mask=mask)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)
    assert weights.shape == (B, H, queries, S)


def test_grouped_heads_equal_torch_gqa(parity):
    G, ours = 2, MultiHeadAttention(D, H, n_kv_heads=2)

    def theirs(x):
        query, key, value = split_heads(ours.query(x), H), split_heads(ours.key(x), G), split_heads(ours.value(x), G)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return ours.output(merge_heads(heads))

    found = laws.assert_equivalent(lambda x: ours(x, causal=True), theirs, torch.randn(B, T, D))
    parity("MultiHeadAttention, grouped", "torch SDPA with enable_gqa", found)


def test_each_group_serves_neighbouring_heads():
    key = torch.arange(2.0).view(1, 2, 1, 1)
    assert repeat_heads(key, 3).flatten().tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("G", [None, 2])
def test_laws(G, obeys):
    attention = MultiHeadAttention(D, H, n_kv_heads=G, dropout=0.1)
    x = torch.randn(B, T, D)
    name = "MultiHeadAttention" if G is None else "MultiHeadAttention, grouped"

    laws.assert_causal(lambda x: attention(x, causal=True), x, module=attention)
    obeys(name, "causal")
    laws.assert_padding_invariant(lambda x, real: attention(x, mask=real[:, None, None]), x, module=attention)
    obeys(name, "padding")
    laws.assert_permutation_equivariant(attention, x)
    obeys(name, "permutation")
    laws.assert_finite(attention, x, masks={"empty": torch.zeros(T, T, dtype=torch.bool), "causal": causal_mask(T)})
    obeys(name, "finite")
    laws.assert_gradients_flow(attention, x)
    obeys(name, "gradients")


@pytest.mark.parametrize("G", [None, 2, 1])
@pytest.mark.parametrize("fused", [False, True])
def test_cache_law(G, fused, obeys):
    attention = MultiHeadAttention(D, H, n_kv_heads=G, fused=fused)

    def full(x, real=None, window=None):
        attention.window = window
        return attention(x, causal=True, mask=None if real is None else real[:, None, None])

    for make in (KVCache, lambda window: KVCache(40)), (KVCache, KVCache):
        kinds = {None: make[0], "window": make[1]}

        def step(new, cache, real=None, window=None, kinds=kinds):
            attention.window = window
            if cache is None:
                cache = kinds[None]() if window is None else kinds["window"](window=window)
            mask = None if real is None else real[:, None, None]
            return attention(new, causal=True, mask=mask, cache=cache), cache

        laws.assert_cache_consistent(
            full,
            step,
            torch.randn(B, 8, D),
            prefills=[0, 1, 5, 7],
            chunks=(1, 3),
            left_padding=True,
            windows=True,
            module=attention,
        )
    obeys("MultiHeadAttention" if G is None else "MultiHeadAttention, grouped", "cache")


def test_rotation_keeps_the_cache_law():
    attention, rotary = MultiHeadAttention(D, 2), RotaryEmbedding(D // 2)

    def step(new, cache):
        cache = KVCache() if cache is None else cache
        positions = torch.arange(cache.length, cache.length + new.size(1))
        return attention(new, causal=True, cache=cache, rotation=rotary(positions)), cache

    laws.assert_cache_consistent(lambda x: step(x, None)[0], step, torch.randn(B, 8, D), module=attention)


def test_rotated_weights_depend_on_distances_only():
    attention, rotary, x = MultiHeadAttention(D, 2), RotaryEmbedding(D // 2), torch.randn(B, T, D)
    plain, here, there, apart = (
        recorded(attention, x, rotation=rotation)[1]
        for rotation in [None, *(rotary(torch.arange(T) * step + start) for start, step in [(0, 1), (70, 1), (0, 2)])]
    )
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(here, plain, atol=1e-2)
    assert not torch.allclose(here, apart, atol=1e-2)


def test_cross_attention_fills_its_cache_once():
    attention, cache = MultiHeadAttention(D, H), KVCache()
    x, context = torch.randn(B, T, D), torch.randn(B, S, D)
    whole = attention(x, context)
    with torch.no_grad():
        steps = [attention(x[:, t : t + 1], context if t == 0 else context * 0, cache=cache) for t in range(T)]
    assert cache.length == S
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 3, 9])
def test_window_is_the_mask(window, causal):
    attention, x = MultiHeadAttention(D, H, window=window), torch.randn(B, 8, D)
    y, weights = recorded(attention, x, causal=causal)
    mask = sliding_window_mask(8, 8, window=window, causal=causal)
    assert torch.equal(weights[0, 0] > 0, mask)
    torch.testing.assert_close(attention(x, causal=causal), y, rtol=1e-5, atol=1e-6)


def test_weights_are_those_of_the_pass_before_dropout():
    attention, x = MultiHeadAttention(D, H, dropout=0.5), torch.randn(B, T, D)
    torch.manual_seed(1)
    dropped, weights = recorded(attention, x)
    kept = recorded(attention.eval(), x)
    torch.testing.assert_close(weights, kept[1], rtol=0, atol=0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))
    assert not torch.allclose(dropped, kept[0])


def test_counts():
    for G, E, fused in [(None, None, False), (2, None, True), (1, 5, False)]:
        attention = MultiHeadAttention(D, H, n_kv_heads=G, d_head=E, fused=fused)
        width, kv = H * (E or D // H), (G or H) * (E or D // H)
        laws.assert_counts(attention, parameters=2 * D * width + 2 * D * kv + width + 2 * kv + D)


def make(**changes):
    return MultiHeadAttention(**{"d_model": D, "n_heads": H, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_heads": 5}, r"d_model: expected a multiple of n_heads=5, got 12"),
        ({"n_kv_heads": 3}, r"n_kv_heads: expected a divisor of n_heads=4, got 3"),
        ({"n_heads": 0}, r"n_heads: expected an integer of at least 1, got 0"),
        ({"d_head": 0}, r"d_head: expected an integer of at least 1, got 0"),
        ({"dropout": 1.0}, r"dropout: expected a probability in \[0, 1\), got 1.0"),
        ({"fused": True, "d_context": 3}, r"fused: expected d_context equal to d_model=12, got 3"),
        ({"window": 0}, r"window: expected an integer of at least 1, got 0"),
        ({"scale": float("nan")}, r"scale: expected a number from -1e\+30 to 1e\+30, got nan"),
    ],
)
def test_bad_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, x: m(x[0]), ValueError, r"x: expected \(B, T, 12\) with T of at least 1, got \(5, 12\)"),
        (lambda m, x: m(x[:, :0]), ValueError, r"x: .* T of at least 1, got \(3, 0, 12\)"),
        (lambda m, x: m(x, x[:, :0]), ValueError, r"context: .* S of at least 1, got \(3, 0, 12\)"),
        (lambda m, x: m(x, x[:2]), ValueError, r"context: expected batch B=3 like x, got 2"),
        (lambda m, x: m(x, mask=torch.ones(B, T).bool()), ValueError, r"mask: expected shape \(T, S\)=\(5, 5\)"),
        (lambda m, x: m(x, mask=torch.ones(T, T)), TypeError, r"mask: expected a boolean mask .* got torch.float32"),
        (lambda m, x: m(x, bias=torch.ones(T, T).long()), TypeError, r"bias: expected a tensor of torch.float32"),
        (lambda m, x: m(x, rotation=RotaryEmbedding(4)(torch.arange(T))), ValueError, r"rotation: made for .*\(5, 4\)"),
        (
            lambda m, x: m(x, x, rotation=RotaryEmbedding(4)(torch.arange(T))),
            ValueError,
            r"rotation: .* self-attention only",
        ),
        (lambda m, x: m(x, cache=KVCache(4)), ValueError, r"cache: 0 \+ 5 positions exceed its capacity of 4"),
        (lambda m, x: m(x, cache=KVCache(window=4)), ValueError, r"cache: forgets after 4 positions"),
        (lambda m, x: make(d_context=3)(x), ValueError, r"context: needed, its width d_context=3"),
        (lambda m, x: make(window=2)(x, x), ValueError, r"context: attention with a window"),
        (lambda m, x: split_heads(x, 5), ValueError, r"x: expected .* divisible by 5 heads"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(make(), torch.randn(B, T, D))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kdim": 3}, "module: expected kdim equal to vdim, got 3 and 12"),
        ({"add_bias_kv": True}, "module: add_bias_kv and add_zero_attn"),
        ({"add_zero_attn": True}, "module: add_bias_kv and add_zero_attn"),
    ],
)
def test_options_of_torch_without_counterpart(options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention.from_torch(nn.MultiheadAttention(D, H, **options))
