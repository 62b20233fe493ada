"""Attention against torch, numpy and Hugging Face: outputs and gradients, each path, dtype, device and mask kind."""

import itertools
import math
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import rounds
from torch.nn.attention.bias import causal_lower_right

from course_lib.attention import (
    scaled_dot_product_attention,
)
from course_lib.masks import causal_mask, combine_masks, length_mask, prefix_mask, sliding_window_mask
from course_lib.testing import (
    assert_cache_consistent,
    assert_causal,
    assert_counts,
    assert_equivalent,
    assert_finite,
    assert_gradients_flow,
    assert_padding_invariant,
    assert_permutation_equivariant,
)

B, H, T, S, E = 2, 3, 5, 7, 11
BACKENDS = ("explicit", "fused")
NAMES = ("query", "key", "value")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def inputs(T=T, S=S, *, dtype=torch.float32, device="cpu", lead=(B, H), width=E, seed=0):
    draw = generator(seed)
    shapes = [(*lead, T, E), (*lead, S, E), (*lead, S, width)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype).to(device) for shape in shapes]


def random_mask(*shape, seed=0):
    """Bool mask with about half the keys hidden, and none of its rows empty."""
    mask = torch.rand(shape, generator=generator(seed)) < 0.5
    mask[..., 0] |= ~mask.any(-1)
    return mask


# What to ask of the library, and the same in torch's words: (T, S, arguments, arguments of torch).
KINDS = {
    "no mask": (T, S, {}, {}),
    "causal": (S, S, {"causal": True}, {"is_causal": True}),
    "causal, T < S": (T, S, {"causal": True}, {"attn_mask": causal_lower_right(T, S)}),
    "mask (T, S)": (T, S, {"mask": random_mask(T, S)}, {"attn_mask": random_mask(T, S)}),
    "padding (B, 1, 1, S)": (T, S, {"mask": length_mask([4, 7], S)}, {"attn_mask": length_mask([4, 7], S)}),
    "per head (1, H, T, S)": (T, S, {"mask": random_mask(1, H, T, S)}, {"attn_mask": random_mask(1, H, T, S)}),
    "sliding window": (
        T,
        S,
        {"mask": sliding_window_mask(T, S, window=3)},
        {"attn_mask": sliding_window_mask(T, S, window=3)},
    ),
    "prefix": (S, S, {"mask": prefix_mask(S, prefix=3)}, {"attn_mask": prefix_mask(S, prefix=3)}),
    "causal and padding": (
        T,
        S,
        {"mask": length_mask([4, 7], S), "causal": True},
        {"attn_mask": causal_mask(T, S) & length_mask([4, 7], S)},
    ),
    "scale": (T, S, {"scale": 0.5}, {"scale": 0.5}),
    "bias": (T, S, {"bias": "bias"}, {"attn_mask": "bias"}),
    "bias, causal": (S, S, {"bias": "bias", "causal": True}, {"attn_mask": "bias", "hidden": ~causal_mask(S)}),
    "bias, causal, padding": (
        T,
        S,
        {"bias": "bias", "mask": length_mask([4, 7], S), "causal": True},
        {"attn_mask": "bias", "hidden": ~(causal_mask(T, S) & length_mask([4, 7], S))},
    ),
}


def to_device(arguments, bias, device):
    values = {name: bias if value == "bias" else value for name, value in arguments.items() if isinstance(value, str)}
    moved = {name: value.to(device) for name, value in arguments.items() if type(value) is torch.Tensor}
    return arguments | moved | values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
def test_parity_with_torch(kind, backend, dtype, device, record_parity):
    if device == "mps" and dtype == torch.float64:
        pytest.skip("this device has no float64")
    T, S, ours, theirs = KINDS[kind]
    bias = torch.randn(1, H, T, S, generator=generator(3)).to(dtype).to(device)

    def library(query, key, value, bias):
        return scaled_dot_product_attention(query, key, value, backend=backend, **to_device(ours, bias, device))

    def torchs(query, key, value, bias):
        arguments = to_device(theirs, bias, device)
        hidden = arguments.pop("hidden", None)
        if hidden is not None:
            arguments["attn_mask"] = arguments["attn_mask"].masked_fill(hidden, -math.inf)
        return F.scaled_dot_product_attention(query, key, value, **arguments)

    given = [*inputs(T, S, dtype=dtype, device=device), bias]
    found = assert_equivalent(library, torchs, *given, names=(*NAMES, "bias"))
    record_parity(kind, f"{device} {str(dtype)[6:]} {backend}", found)


def test_paths_agree_at_lengths_that_a_kernel_splits(device, record_parity):
    """Fused kernels work in blocks of queries and keys: lengths that are no multiple of any block, both masks."""
    mask = length_mask([611, 1], 611, device=device)

    def path(backend):
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, mask=mask, causal=True, backend=backend)

    found = assert_equivalent(
        path("explicit"), path("fused"), *inputs(307, 611, lead=(2, 1), device=device), names=NAMES
    )
    record_parity("length 611", f"{device} float32 explicit", found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16_is_as_near_the_truth_as_torch(backend, device):
    exact = inputs(64, 64)
    half = [x.to(torch.bfloat16).to(device) for x in exact]
    truth = scaled_dot_product_attention(*[x.double() for x in exact], causal=True)
    ours = scaled_dot_product_attention(*half, causal=True, backend=backend)
    torchs = F.scaled_dot_product_attention(*half, is_causal=True)
    error = (ours.cpu().double() - truth).pow(2).mean().sqrt()
    assert error <= 2 * (torchs.cpu().double() - truth).pow(2).mean().sqrt()


@pytest.mark.parametrize("backend", BACKENDS)
def test_float16_holds_scores_beyond_its_largest_number(backend, device):
    """A query times a key may pass 65,504; the weights are still those of the formula."""
    given = [(40 * x).half().to(device) for x in inputs(lead=(B, H))]
    given[0][..., 0, :], given[1][..., 0, :] = 300.0, 300.0  # their score is 90,000 times the root of the width
    output = scaled_dot_product_attention(*given, causal=True, backend=backend)
    truth = scaled_dot_product_attention(*[x.double() for x in given], causal=True)
    assert output.dtype == torch.float16
    torch.testing.assert_close(output.double(), truth, rtol=2e-3, atol=0.05)


# ------------------------------------------------------------------------------------- other implementations


def with_numpy(query, key, value, mask=None, scale=None):
    """Attention one query at a time, in numpy: an empty row gives zeros."""
    q, k, v = (x.detach().double().numpy() for x in (query, key, value))
    scale = 1 / np.sqrt(q.shape[-1]) if scale is None else scale
    lead, (T, S) = q.shape[:-2], (q.shape[-2], k.shape[-2])
    seen = np.ones((*lead, T, S), bool) if mask is None else np.broadcast_to(mask.numpy(), (*lead, T, S))
    output, weights = np.zeros((*lead, T, v.shape[-1])), np.zeros((*lead, T, S))
    for place in itertools.product(*map(range, lead), range(T)):
        keys = np.flatnonzero(seen[place])
        if len(keys):
            scores = k[place[:-1]][keys] @ q[place] * scale
            powers = np.exp(scores - scores.max())
            weights[place][keys] = powers / powers.sum()
            output[place] = weights[place] @ v[place[:-1]]
    return torch.from_numpy(output), torch.from_numpy(weights)


@given(
    lead=st.lists(st.integers(1, 3), max_size=3),
    T=st.integers(0, 6),
    S=st.integers(0, 6),
    E=st.integers(1, 5),
    width=st.integers(1, 5),
    causal=st.booleans(),
    hidden=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=rounds(40, 200))
def test_any_shape_against_numpy(lead, T, S, E, width, causal, hidden, seed):
    draw = generator(seed)
    query, key, value = (torch.randn(*lead, n, w, generator=draw) for n, w in ((T, E), (S, E), (S, width)))
    sides = [n if torch.rand((), generator=draw) < 0.7 else 1 for n in (*lead, T, S)]
    mask = torch.rand(sides, generator=draw) >= hidden
    expected, expected_weights = with_numpy(
        query, key, value, combine_masks(mask, causal_mask(T, S) if causal else None)
    )
    explicit, weights = scaled_dot_product_attention(query, key, value, mask=mask, causal=causal, return_weights=True)
    fused = scaled_dot_product_attention(query, key, value, mask=mask, causal=causal, backend="fused")
    for found in (explicit, fused):
        assert found.shape == (*lead, T, width)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weights.double(), expected_weights, rtol=1e-4, atol=1e-6)


def test_parity_with_hugging_face():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    module = torch.nn.Module()
    module.num_key_value_groups = 1
    module.eval()
    hidden = torch.zeros(T, S).masked_fill(~causal_mask(T, S), torch.finfo(torch.float32).min)

    def hugging_face(query, key, value):
        output, weights = llama.eager_attention_forward(module, query, key, value, hidden[None, None], scaling=E**-0.5)
        return output.transpose(1, 2), weights  # (B, T, H, E) -> (B, H, T, E)

    def library(query, key, value):
        return scaled_dot_product_attention(query, key, value, causal=True, return_weights=True)

    assert_equivalent(library, hugging_face, *inputs(), names=NAMES)


# ------------------------------------------------------------------------------------------ what must hold


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_empty_rows_give_zero_and_finite_gradients(backend, dtype, bias, device):
    masks = {
        "strictly causal": causal_mask(T, S).roll(1, 0).tril(-3),
        "an example of padding only": length_mask([0, S], S),
        "nothing at all": torch.zeros(T, S, dtype=torch.bool),
        "one head blind": torch.tensor([True, False, True])[:, None, None].expand(1, H, T, S),
    }
    assert all((~mask.any(-1)).any() for mask in masks.values())
    extra = torch.randn(T, S, generator=generator(1)).to(device)

    def fn(query, key, value, mask):
        added = extra.to(query.dtype) if bias else None
        return scaled_dot_product_attention(query, key, value, mask=mask, bias=added, backend=backend)

    masks = {name: mask.to(device) for name, mask in masks.items()}
    assert_finite(fn, *inputs(device=device), masks=masks, dtypes=[dtype], empty_rows_zero=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_no_nan_arises_on_the_way_back_from_an_empty_row(backend):
    """Not even one that a later step would hide: torch's anomaly detection looks at each step of the backward pass."""
    query, key, value = (x.requires_grad_() for x in inputs())
    with torch.autograd.detect_anomaly(check_nan=True):
        output = scaled_dot_product_attention(query, key, value, mask=length_mask([0, S], S), backend=backend)
        output.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_queries_than_keys_when_causal(backend, device):
    """The first T - S queries stand before every key: they see nothing."""
    given = inputs(S, T, device=device)
    output = scaled_dot_product_attention(*given, causal=True, backend=backend)
    assert (output[:, :, : S - T] == 0).all()
    torch.testing.assert_close(
        output[:, :, S - T :], scaled_dot_product_attention(given[0][:, :, S - T :], *given[1:], causal=True)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_rows_that_see_something_ignore_empty_ones(backend):
    mask = causal_mask(S).tril(-1)  # the first query sees nothing

    def all_rows(query, key, value):
        return scaled_dot_product_attention(query, key, value, mask=mask, backend=backend)[:, :, 1:]

    def other_rows(query, key, value):
        return F.scaled_dot_product_attention(query[:, :, 1:], key, value, mask[1:])

    assert_equivalent(all_rows, other_rows, *inputs(S, S), names=NAMES)


@pytest.mark.parametrize("backend", BACKENDS)
def test_laws(backend):
    x = torch.randn(B, H, T, E, generator=generator())

    def attend(x, **more):
        return scaled_dot_product_attention(x, x, x, backend=backend, **more)

    assert_causal(lambda x: attend(x, causal=True), x, dim=2)
    assert_permutation_equivariant(attend, x, dim=2)
    assert_gradients_flow(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, backend=backend), *inputs(), names=NAMES
    )
    assert_padding_invariant(
        lambda x, real: attend(x[:, None], mask=real[:, None, None])[:, 0], torch.randn(3, T, E, generator=generator())
    )

    def step(new, cache, real=None, window=None):
        key = new if cache is None else torch.cat([cache, new], 1)
        mask = None if real is None else real[:, None, None]
        if window is not None:
            mask = combine_masks(mask, sliding_window_mask(new.size(1), key.size(1), window=window))
        query, kept = new[:, None], key[:, None]  # (B, T, E) -> (B, 1, T, E)
        return scaled_dot_product_attention(query, kept, kept, mask=mask, causal=True, backend=backend)[:, 0], key

    full = lambda x, **more: step(x, None, **more)[0]  # noqa: E731
    assert_cache_consistent(full, step, x[:, 0], left_padding=True, windows=True)


def test_vmap_over_the_batch_is_the_batch():
    query, key, value = inputs()
    one = lambda q, k, v: scaled_dot_product_attention(q, k, v, causal=True, backend="explicit")  # noqa: E731
    torch.testing.assert_close(torch.func.vmap(one)(query, key, value), one(query, key, value))


# --------------------------------------------------------------------------------------- weights and dropout


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_pass(kind):
    T, S, ours, _ = KINDS[kind]
    query, key, value = inputs(T, S)
    arguments = to_device(ours, torch.randn(1, H, T, S, generator=generator(3)), "cpu")
    output, weights = scaled_dot_product_attention(query, key, value, return_weights=True, **arguments)
    assert weights.shape == (B, H, T, S)
    torch.testing.assert_close(weights @ value, output)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T))
    hidden = combine_masks(arguments.get("mask"), causal_mask(T, S) if arguments.get("causal") else None)
    if hidden is not None:
        assert (weights.masked_select(~hidden.expand_as(weights)) == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["no mask", "causal", "padding (B, 1, 1, S)"])
def test_dropout_is_unbiased(backend, kind):
    T, S, arguments, _ = KINDS[kind]
    query, key, value = (x[:, :1].expand(B, 4000, -1, -1) for x in inputs(T, S, dtype=torch.float64))
    exact = scaled_dot_product_attention(query[:, :1], key[:, :1], value[:, :1], **arguments)
    torch.manual_seed(0)
    dropped = scaled_dot_product_attention(query, key, value, dropout=0.3, backend=backend, **arguments)
    error = dropped.std(1, keepdim=True) / math.sqrt(4000)  # of the mean over 4000 independent draws
    assert (dropped.mean(1, keepdim=True) - exact).abs().le(5 * error + 1e-12).all()
    assert (dropped[:, 0] - dropped[:, 1]).abs().max() > 0.01


def test_weights_are_returned_before_dropout():
    query, key, value = inputs(S, S)
    _, exact = scaled_dot_product_attention(query, key, value, causal=True, return_weights=True)
    torch.manual_seed(0)
    output, weights = scaled_dot_product_attention(query, key, value, causal=True, dropout=0.5, return_weights=True)
    assert torch.equal(weights, exact)
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, S))
    assert (weights @ value - output).abs().max() > 0.01
    torch.manual_seed(0)
    assert torch.equal(F.dropout(exact, 0.5) @ value, output)  # the very weights shown were those dropped


# ------------------------------------------------------------------------------------------ layout and compile


@pytest.mark.parametrize("backend", BACKENDS)
def test_layout_in_memory_does_not_matter(backend):
    query, key, value = inputs(S, S)
    expected = scaled_dot_product_attention(query, key, value, causal=True, backend=backend)
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]  # as after splitting heads
    strided = [torch.stack([x, -x], -1).flatten(-2)[..., ::2] for x in (query, key, value)]
    for laid_out in (moved, strided):
        assert not laid_out[0].is_contiguous()
        output = scaled_dot_product_attention(*laid_out, causal=True, backend=backend)
        torch.testing.assert_close(output, expected)
    shared = [x[:, :1].expand(B, H, S, E) for x in (key, value)]  # one key head for all, not copied
    torch.testing.assert_close(
        scaled_dot_product_attention(query, *shared, backend=backend),
        scaled_dot_product_attention(query, *[x.contiguous() for x in shared], backend=backend),
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU")
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.thorough)])
def test_compiled_equals_eager(compiler):
    mask = length_mask([4, 7], S)

    def both(query, key, value):
        return tuple(
            scaled_dot_product_attention(query, key, value, mask=mask, causal=True, backend=backend)
            for backend in BACKENDS
        )

    assert_equivalent(torch.compile(both, fullgraph=True, backend=compiler), both, *inputs(), names=NAMES)


def test_the_fused_path_never_forms_the_weights():
    """At T = S = 512 the weights of one head take 1 MiB; the fused kernel keeps a fraction of that for backward."""
    given = inputs(512, 512, lead=(1, 1))
    causal = lambda backend: lambda q, k, v: scaled_dot_product_attention(q, k, v, causal=True, backend=backend)  # noqa: E731
    with pytest.raises(AssertionError, match="saved_bytes") as explicit:
        assert_counts(causal("explicit"), *given, saved_bytes=0)
    measured = int(str(explicit.value).split("measured ")[1].replace(",", ""))
    assert measured >= 512 * 512 * 4
    assert_counts(causal("fused"), *given, saved_bytes=512 * E * 4, tolerance=1.0)  # output and one number a row
