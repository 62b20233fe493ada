"""The efficient attentions: each equal to its own definition written out, lawful, and at home in MultiHeadAttention."""

import copy
import math
import shutil

import pytest
import torch
from recorded import recorded
from torch import nn

from course_lib import testing as laws
from course_lib.attention import scaled_dot_product_attention
from course_lib.decoder import TransformerDecoder
from course_lib.masks import causal_mask, length_mask, sliding_window_mask
from course_lib.multi_head import MultiHeadAttention
from course_lib.transformer import LanguageModel, TransformerConfig
from course_lib.variants.efficient import (
    BigBirdAttention,
    HierarchicalAttention,
    LinearAttention,
    LinformerAttention,
    PerformerAttention,
    SlidingWindowAttention,
    TiledAttention,
    tiled_attention,
)
from course_lib.variants.efficient.flex import _block_mask

B, H, n, E = 2, 3, 53, 8

MAKERS = {
    "tiled": lambda: TiledAttention(tile=16),
    "window": lambda: SlidingWindowAttention(5, backend="auto"),
    "window and global": lambda: SlidingWindowAttention(7, n_global=3),
    "random blocks": lambda: BigBirdAttention(4, n_random=2, n_global=4),
    "hierarchical": lambda: HierarchicalAttention(block=4, cells=2),
    "performer": lambda: PerformerAttention(E, 32),
    "linear": LinearAttention,
    "linformer": lambda: LinformerAttention(64, 8),
}
CAUSAL = [name for name in MAKERS if name != "linformer"]
SPARSE = ["window", "window and global", "random blocks"]


def inputs(T=n, S=n, dtype=torch.float32, E_value=E):
    return [torch.randn(B, H, size, width, dtype=dtype) for size, width in ((T, E), (S, E), (S, E_value))]


def written_out(inner, **options):
    """The same attention by its weights."""
    return lambda q, k, v: recorded(inner, q, k, v, **options)[0]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("length", [1, 16, n])
def test_efficient_form_equals_the_definition(name, causal, padded, length, parity):
    if causal and name not in CAUSAL:
        pytest.skip("has no causal form")
    inner = MAKERS[name]()
    mask = length_mask([length, max(1, length - 9)], length) if padded else None
    options = {"causal": causal, "mask": mask}
    found = laws.assert_equivalent(
        lambda q, k, v: inner(q, k, v, **options),
        written_out(inner, **options),
        *inputs(length, length, E_value=5),
        names=["query", "key", "value"],
    )
    parity(f"efficient: {name}", "its weights written out", found)


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_fewer_queries_than_keys_are_the_last_ones(name, causal):
    inner, (query, key, value) = MAKERS[name](), inputs()
    full = inner(query, key, value, causal=causal)
    torch.testing.assert_close(inner(query[..., -9:, :], key, value, causal=causal), full[..., -9:, :])
    weights = recorded(inner, query[..., -9:, :], key, value, causal=causal)[1]
    torch.testing.assert_close(weights @ value, full[..., -9:, :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("T", [1, 37, n])
@pytest.mark.parametrize("tile", [1, 16, 64])
def test_tiled_is_plain_attention(dtype, causal, T, tile, parity):
    mask = torch.rand(B, 1, T, n) < 0.7
    mask[0, :, 0] = False  # a query that sees nothing
    bias = torch.randn(1, H, T, n, dtype=dtype)
    for extra in ({}, {"mask": mask}, {"mask": length_mask([n, 9], n), "scale": 0.3}):
        found = laws.assert_equivalent(
            lambda q, k, v, b, extra=extra: tiled_attention(q, k, v, bias=b, causal=causal, tile=tile, **extra),
            lambda q, k, v, b, extra=extra: scaled_dot_product_attention(
                q, k, v, bias=b, causal=causal, backend="explicit", **extra
            ),
            *inputs(T, n, dtype),
            bias,
            names=["query", "key", "value", "bias"],
        )
        parity("efficient: tiled", "scaled_dot_product_attention, bias too", found, dtype)


def test_tiled_backward_is_the_derivative():
    query, key, value = (t[:1, :1].requires_grad_() for t in inputs(7, 9, torch.float64))
    assert torch.autograd.gradcheck(lambda *t: tiled_attention(*t, causal=True, tile=4), (query, key, value))


def test_tiled_keeps_memory_that_grows_with_the_length():
    saved = {}
    for length in (128, 256, 512):
        tensors: list[torch.Tensor] = []

        def pack(tensor, tensors=tensors):
            tensors.append(tensor)
            return tensor

        query, key, value = (t.requires_grad_() for t in inputs(length, length))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            tiled_attention(query, key, value)
        saved[length] = sum(t.numel() for t in tensors)
    assert saved[256] == 2 * saved[128]
    assert saved[512] == 4 * saved[128]


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_blocks_equal_the_pattern_as_a_mask(name, causal, parity):
    inner = MAKERS[name]()
    inner.backend = "blocks"
    pattern = inner.pattern(n, causal=causal)
    mask = (torch.rand(B, H, n, n) < 0.8) | torch.eye(n, dtype=torch.bool)
    bias = torch.randn(H, n, n)[None]
    found = laws.assert_equivalent(
        lambda q, k, v, b: inner(q, k, v, mask=mask, causal=causal, bias=b),
        lambda q, k, v, b: scaled_dot_product_attention(q, k, v, mask=mask & pattern, bias=b),
        *inputs(),
        bias,
        names=["query", "key", "value", "bias"],
    )
    parity(f"efficient: {name}, blocks", "the pattern as a mask", found)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_window_pattern(causal):
    plain = SlidingWindowAttention(5).pattern(n, causal=causal)
    assert torch.equal(plain, sliding_window_mask(n, window=5, causal=causal))
    both = SlidingWindowAttention(5, n_global=2).pattern(n, causal=causal)
    expected = plain.clone()
    expected[:, :2] = expected[:2] = True
    assert torch.equal(both, expected & causal_mask(n) if causal else expected)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_random_pattern(causal):
    inner = BigBirdAttention(4, n_random=2, n_global=4)
    pattern = inner.pattern(64, causal=causal)
    blocks = pattern.view(16, 4, 16, 4).amax((1, 3)).int()
    if causal:  # a block sees the first, the one before, itself, and two random ones once there are so many
        assert blocks.sum(1).tolist() == [1, 2, 3, 4] + [5] * 12
        assert torch.equal(pattern[:32, :32], inner.pattern(32, causal=True))  # the draw depends on the place only
    else:
        assert blocks[1:, 0].all()
        assert blocks[0].all()  # the global block
        assert blocks[2:-1].sum(1).tolist() == [4 + 2] * 13
    assert not torch.equal(pattern, BigBirdAttention(4, n_random=2, n_global=4, seed=1).pattern(64, causal=causal))


def test_hierarchical_sees_every_key_once():
    """With equal keys every visible key weighs the same, so the output is the mean of the values."""
    inner, (query, key, value) = HierarchicalAttention(block=4, cells=2), inputs(61, 61)
    key = key[..., :1, :].expand_as(key)
    mask = length_mask([61, 30], 61)
    weights = recorded(inner, query, key, value, mask=mask)[1]
    torch.testing.assert_close(weights, (mask / mask.sum(-1, keepdim=True)).expand_as(weights))
    weights = recorded(inner, query, key, value, causal=True)[1]
    expected = causal_mask(61) / causal_mask(61).sum(-1, keepdim=True)
    torch.testing.assert_close(weights, expected.expand_as(weights))


def test_hierarchical_is_exact_while_two_groups_suffice():
    inner, tensors = HierarchicalAttention(block=16), inputs(32, 32)
    for causal in (False, True):
        torch.testing.assert_close(
            inner(*tensors, causal=causal), scaled_dot_product_attention(*tensors, causal=causal)
        )


@pytest.mark.parametrize("name", ["linear", "performer"])
def test_recurrent_form_equals_the_parallel_form(name, parity):
    inner, (query, key, value) = MAKERS[name](), inputs()

    def recurrent(query, key, value):
        outputs, state = [], None
        for t in range(n):
            output, state = inner.step(*(x[..., t : t + 1, :] for x in (query, key, value)), state)
            outputs.append(output)
        return torch.cat(outputs, dim=-2)

    found = laws.assert_equivalent(recurrent, lambda *t: inner(*t, causal=True), query, key, value)
    parity(f"efficient: {name}", "its recurrent form", found)


def test_performer_estimates_softmax_without_bias():
    """The mean over draws converges as one over the root of their number; and more features err less."""
    query, key, value = (t * 0.4 for t in inputs(31, 31))  # small: few draws, and a lognormal's tail is long
    exact = torch.exp(query @ key.mT / math.sqrt(E))
    draws = 400
    inner = PerformerAttention(E, 64)
    total, squares = torch.zeros_like(exact), torch.zeros_like(exact)
    for seed in range(draws):
        inner.redraw(seed)
        estimate = inner.features(query, E**-0.5) @ inner.features(key, E**-0.5).mT
        total, squares = total + estimate, squares + estimate.square()
    mean = total / draws
    spread = (squares / draws - mean.square()).clamp(min=0).sqrt() / math.sqrt(draws)
    deviations = (mean - exact) / spread
    assert deviations.mean().abs() < 0.3
    assert 0.8 < deviations.std() < 1.5
    assert deviations.abs().max() < 6
    plain = scaled_dot_product_attention(query, key, value)
    errors = [
        torch.stack([(PerformerAttention(E, m, seed=s)(query, key, value) - plain).norm() for s in range(8)]).mean()
        for m in (16, 256)
    ]
    assert errors[1] < errors[0] / 3  # one over the root would be a quarter


def test_performer_directions_are_orthogonal_in_blocks():
    rows = PerformerAttention(E, 2 * E).directions[:E]
    products = nn.functional.normalize(rows) @ nn.functional.normalize(rows).T
    torch.testing.assert_close(products, torch.eye(E), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", MAKERS)
def test_laws(name, obeys):
    inner, (query, key, value) = MAKERS[name](), inputs(24, 24)
    block = f"efficient: {name}"
    laws.assert_gradients_flow(inner, query, key, value, names=["query", "key", "value"])
    masks = {"padding": length_mask([24, 5], 24), "empty rows": length_mask([0, 24], 24)}
    laws.assert_finite(inner, query, key, value, masks=masks, empty_rows_zero=True)
    obeys(block, "finite")
    attention = MultiHeadAttention(24, 3, inner=inner)
    x = torch.randn(B, 24, 24)
    if name in CAUSAL:
        laws.assert_causal(lambda x: attention(x, causal=True), x, module=attention)
        obeys(block, "causal")
    laws.assert_padding_invariant(
        lambda x, real: attention(x, mask=real[:, None, None, :]), x, module=attention, alone=name != "random blocks"
    )
    obeys(block, "padding")


@pytest.mark.parametrize("name", CAUSAL)
def test_cached_decoding_equals_the_full_pass(name, obeys):
    makers = MAKERS | {"performer": lambda: PerformerAttention(6, 32)}
    config = TransformerConfig(
        d_model=24, n_heads=4, n_kv_heads=2, n_decoder_layers=2, vocab_size=11, dropout=0.0,
        positions="learned", inner_attention=makers[name],
    )  # fmt: skip
    model = LanguageModel(config).eval()
    assert isinstance(model.decoder, TransformerDecoder)

    def step(new, cache):
        cache = model.decoder.new_cache() if cache is None else cache
        return model(new, cache=cache), cache

    laws.assert_cache_consistent(model, step, torch.randint(11, (2, 21)), tolerance=1e-5)
    obeys(f"efficient: {name}", "cache")


@pytest.mark.parametrize("name", MAKERS)
def test_survives_copying_and_saving(name):
    first, tensors = MAKERS[name](), inputs()
    second = MAKERS[name]()
    second.load_state_dict(first.state_dict())
    expected = first(*tensors)
    torch.testing.assert_close(second(*tensors), expected, rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(first)(*tensors), expected, rtol=0, atol=0)


def test_flex_is_the_same_pattern_forward():
    inner, tensors = SlidingWindowAttention(5, n_global=2, backend="flex"), inputs()
    if shutil.which("g++") is not None:
        with torch.no_grad():
            expected = SlidingWindowAttention(5, n_global=2, backend="dense")(*tensors, causal=True)
            torch.testing.assert_close(inner(*tensors, causal=True), expected)
            known = _block_mask.cache_info()
            torch.testing.assert_close(inner(*tensors, causal=True), expected)  # from the same map of blocks
            assert _block_mask.cache_info().hits == known.hits + 1
            assert _block_mask.cache_info().misses == known.misses
    with pytest.raises(ValueError, match="no backward pass on a CPU"):
        inner(*(t.requires_grad_() for t in tensors))
    with pytest.raises(ValueError, match="without mask"):
        inner(*tensors, mask=length_mask([5, n], n))


@pytest.mark.parametrize(
    ("make", "call", "message"),
    [
        (lambda: LinformerAttention(64, 8), {"causal": True}, "causal: LinformerAttention"),
        (lambda: LinformerAttention(n - 1, 8), {}, "key: expected at most max_length=52"),
        (lambda: LinformerAttention(64, 0), {}, "rank: expected an integer of at least 1, got 0"),
        (LinearAttention, {"scale": 1.0}, "scale: LinearAttention"),
        (LinearAttention, {"bias": torch.zeros(n, n)}, "bias: LinearAttention"),
        (LinearAttention, {"dropout": 0.1}, "dropout: LinearAttention"),
        (LinearAttention, {"mask": causal_mask(n)}, "mask: LinearAttention hides keys"),
        (lambda: PerformerAttention(E + 1), {}, "query: expected heads of width d_head=9, got 8"),
        (lambda: HierarchicalAttention(8, 3), {}, "cells: expected a divisor of block=8, got 3"),
        (lambda: SlidingWindowAttention(0), {}, "window: expected an integer of at least 1, got 0"),
        (lambda: BigBirdAttention(4, n_random=-1), {}, "n_random: expected an integer of at least 0, got -1"),
        (lambda: SlidingWindowAttention(4, backend="fast"), {}, "backend: expected one of"),
        (lambda: TiledAttention(tile=0), {}, "tile: expected an integer of at least 1, got 0"),
        (TiledAttention, {"mask": torch.ones(n, n)}, "mask: expected a boolean mask"),
    ],
)
def test_bad_input_names_the_argument(make, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()(*inputs(), **call)
