"""Decoder layer and stack: equal to torch, causal, and the same with a cache as without, for every position scheme."""

import itertools

import pytest
import torch
from tiny_models import places
from torch import nn
from torch_masks import KINDS, for_torch, make_mask

from course_lib import testing as laws
from course_lib.attention import record_weights
from course_lib.cache import DecoderCache
from course_lib.config import TransformerConfig
from course_lib.decoder import DecoderLayer, TransformerDecoder, shift_right
from course_lib.masks import causal_mask, length_mask
from course_lib.positions import SCHEMES
from course_lib.testing.common import rounding

B, T, S, H, D, F = 3, 7, 5, 3, 12, 20
INSIDE = [name for name, scheme in SCHEMES.items() if scheme.acts_on != "input"]


def config(**changes):
    return TransformerConfig(**{"d_model": D, "n_heads": H, "d_ff": F, "n_decoder_layers": 2, **changes})


def torch_layer(**options):
    layer = nn.TransformerDecoderLayer(D, H, F, dropout=0.0, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def pairs(ours, theirs):
    found = [
        (ours.self_attention.qkv.weight, theirs.self_attn.in_proj_weight),
        (ours.cross_attention.output.weight, theirs.multihead_attn.out_proj.weight),
        (ours.self_attention_residual.norm.weight, theirs.norm1.weight),
        (ours.cross_attention_residual.norm.weight, theirs.norm2.weight),
        (ours.feed_forward_residual.norm.weight, theirs.norm3.weight),
        (ours.feed_forward.up.weight, theirs.linear1.weight),
        (ours.feed_forward.down.weight, theirs.linear2.weight),
    ]
    return found + ([(ours.feed_forward.up.bias, theirs.linear1.bias)] if theirs.linear1.bias is not None else [])


def torch_run(theirs, batch_first, mask, context_mask):
    hidden = for_torch(causal_mask(T) if mask is None else mask & causal_mask(T), B, H, T, T)
    context_hidden = for_torch(context_mask, B, H, T, S)
    if batch_first:
        return lambda x, c: theirs(x, c, tgt_mask=hidden, memory_mask=context_hidden)
    return lambda x, c: theirs(
        x.transpose(0, 1), c.transpose(0, 1), tgt_mask=hidden, memory_mask=context_hidden
    ).transpose(0, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(("pre", "batch_first"), list(itertools.product([True, False], repeat=2)))
def test_layer_equals_torch(kind, activation, pre, batch_first, parity):
    theirs = torch_layer(activation=activation, norm_first=pre, batch_first=batch_first, bias=kind != "window")
    ours = DecoderLayer.from_torch(theirs)
    mask, context_mask = make_mask(kind, B, H, T, T), make_mask(kind, B, H, T, S)
    if kind == "causal":
        context_mask = None  # T > S: the first queries would see nothing, which torch answers with NaN
    if kind == "window":
        context_mask = length_mask([S, 1, 2], S)
    found = laws.assert_equivalent(
        lambda x, c: ours(x, c, mask=mask, context_mask=context_mask),
        torch_run(theirs, batch_first, mask, context_mask),
        torch.randn(B, T, D),
        torch.randn(B, S, D),
        names=["x", "context"],
        parameters=pairs(ours, theirs),
    )
    parity(f"DecoderLayer, {'pre' if pre else 'post'}-norm, {activation}", "torch.nn.TransformerDecoderLayer", found)


@pytest.mark.parametrize(("pre", "final"), list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stack_equals_torch(pre, final, dtype, parity):
    # In bfloat16, rounding alone decides on which side of relu's kink a unit lies, and so whether it has a gradient:
    # this implementation and torch's are then as far from float64 as from each other. Without a kink, a third of the
    # usual limit is enough.
    smooth = dtype == torch.bfloat16
    layer = torch_layer(norm_first=pre, batch_first=True, activation="gelu" if smooth else "relu")
    theirs = nn.TransformerDecoder(layer, 3, norm=nn.LayerNorm(D) if final else None).to(dtype)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours, context_mask = TransformerDecoder.from_torch(theirs), length_mask([S, 1, 2], S)
    found = laws.assert_equivalent(
        lambda x, c: ours(x, c, context_mask=context_mask),
        torch_run(theirs, True, None, context_mask),
        torch.randn(B, T, D, dtype=dtype),
        torch.randn(B, S, D, dtype=dtype),
        parameters=[p for a, b in zip(ours.layers, theirs.layers, strict=True) for p in pairs(a, b)],
        gradient_tolerance=rounding(dtype) if smooth else None,
    )
    parity("TransformerDecoder", "torch.nn.TransformerDecoder", found, dtype)


@pytest.mark.parametrize("cross", [True, False])
@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("positions", INSIDE)
def test_laws(positions, place, cross, obeys):
    decoder = TransformerDecoder(config(positions=positions, norm_place=place, n_kv_heads=1), cross=cross)
    x, context = torch.randn(B, T, D), torch.randn(1, S, D) if cross else None
    name = f"TransformerDecoder, {positions}"

    def run(x, mask=None, **options):
        return decoder(x, None if context is None else context.to(x.dtype).expand(len(x), S, D), mask=mask, **options)

    def after_prompt(prompt, rest):
        cache = decoder.new_cache()
        run(prompt, cache=cache)
        return run(rest, cache=cache)

    laws.assert_causal(run, x, cached=after_prompt, module=decoder)
    obeys(name, "causal")
    for side in ("right", "left"):
        laws.assert_padding_invariant(
            lambda x, real: run(x, real[:, None, None], positions=places(real)), x, side=side, module=decoder
        )
    obeys(name, "padding")
    laws.assert_finite(run, x, masks={"empty": torch.zeros(T, T, dtype=torch.bool)}, dtypes=[torch.float32])
    obeys(name, "finite")
    laws.assert_gradients_flow(decoder, *([x] if context is None else [x, context.expand(B, S, D)]))
    obeys(name, "gradients")


@pytest.mark.parametrize(("cross", "kv_heads", "local"), [(True, 3, None), (False, 1, None), (False, 1, (True, False))])
@pytest.mark.parametrize("positions", INSIDE)
def test_cache_law(positions, kv_heads, cross, local, obeys):
    """Growing and sliding; several prefills and chunks; padding on the left; windows short and long.

    The window is in all layers or, with `local`, in every other one, where rotary positions have a base of their own.
    """
    context = torch.randn(B, S, D) if cross else None
    context_mask = length_mask([S, 2, 3], S) if cross else None
    plain = TransformerDecoder(config(positions=positions, n_kv_heads=kv_heads), cross=cross).eval()

    def model(window):
        if window is None:
            return plain
        layers = {"window": window, "local_layers": local}
        if local and positions == "rotary":
            layers["local_rotary_base"] = 100.0
        other = TransformerDecoder(config(positions=positions, n_kv_heads=kv_heads, **layers), cross=cross)
        other.load_state_dict(plain.state_dict())
        return other.eval()

    def run(x, cache, real, window):
        padding = {} if real is None else {"mask": real[:, None, None], "positions": places(real)[:, -x.size(1) :]}
        return model(window)(x, context, context_mask=context_mask, cache=cache, **padding)

    def full(x, real=None, window=None):
        return run(x, None, real, window)

    for options in ({}, {"sliding": False}):

        def step(new, cache, real=None, window=None, options=options):
            cache = model(window).new_cache(**options) if cache is None else cache
            return run(new, cache, real, window), cache

        laws.assert_cache_consistent(
            full, step, torch.randn(B, T, D), prefills=[0, 1, 5, T - 1], left_padding=True, windows=True
        )
    obeys(f"TransformerDecoder, {positions}", "cache")


def test_weights_are_those_of_each_layer():
    decoder, x, context = TransformerDecoder(config()).eval(), torch.randn(B, T, D), torch.randn(B, S, D)
    with record_weights(decoder) as maps:
        y = decoder(x, context)
    torch.testing.assert_close(decoder(x, context), y, rtol=1e-4, atol=1e-5)
    assert list(maps) == [f"layers.{n}.{kind}_attention" for n in range(2) for kind in ("self", "cross")]
    for own, others in zip(list(maps.values())[::2], list(maps.values())[1::2], strict=True):
        assert own.shape == (B, H, T, T)
        assert others.shape == (B, H, T, S)
        assert own.triu(1).abs().max() == 0
        torch.testing.assert_close(others.sum(-1), torch.ones(B, H, T))
    decoder = TransformerDecoder(config(), cross=False)
    with record_weights(decoder) as maps:
        decoder(x)
    assert list(maps) == ["layers.0.self_attention", "layers.1.self_attention"]


def test_cache_bytes_by_formula():
    """2 (keys and values) x layers x B x G x capacity x E x bytes a number."""
    decoder = TransformerDecoder(config(n_kv_heads=1), cross=False)
    cache = decoder.new_cache(50)
    with torch.no_grad():
        decoder(torch.randn(B, T, D), cache=cache)
    assert cache.n_bytes == 2 * 2 * B * 1 * 50 * (D // H) * 4
    keys = [layer.self_attention.keys for layer in cache.layers]
    assert sum(key.nbytes for key in keys) * 2 == 2 * 2 * B * 1 * T * (D // H) * 4


def test_shift_right():
    tokens = torch.tensor([[5, 6, 7], [8, 9, 2]])
    assert shift_right(tokens, 1).tolist() == [[1, 5, 6], [1, 8, 9]]


def test_counts():
    attention, feed_forward = 4 * D * D + 4 * D, 2 * D * F + F + D
    laws.assert_counts(TransformerDecoder(config()), parameters=2 * (2 * attention + feed_forward + 6 * D))
    laws.assert_counts(TransformerDecoder(config(), cross=False), parameters=2 * (attention + feed_forward + 4 * D))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d, x, c: d(x), r"context: expected a tensor \(B, S, D\)"),
        (lambda d, x, c: d(x, c[:2]), "context: expected batch B=3 like x, got 2"),
        (lambda d, x, c: d(x, c[:, :0]), "context: .* S of at least 1"),
        (lambda d, x, c: d(x[:, :0], c), "x: expected .* T of at least 1"),
        (lambda d, x, c: d(x, c, context_mask=torch.ones(B, S).bool()), r"mask: expected shape \(T, S\)=\(7, 5\)"),
        (lambda d, x, c: d(x, c, cache=DecoderCache([None] * 3, cross=True)), "cache: expected 2 layers, got 3"),
        (lambda d, x, c: d(x, c, cache=d.new_cache(6)), "cache: 0 \\+ 7 positions exceed its capacity of 6"),
        (lambda d, x, c: TransformerDecoder(config(), cross=False)(x, c), "context: expected none"),
        (
            lambda d, x, c: shift_right(torch.zeros(2, 0).long(), 1),
            r"tokens: expected \(B, T\) with T of at least 1",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(TransformerDecoder(config()), torch.randn(B, T, D), torch.randn(B, S, D))


def test_a_mask_of_the_wrong_length_with_a_cache():
    decoder, x = TransformerDecoder(config(positions="none"), cross=False), torch.randn(B, T, D)
    cache = decoder.new_cache()
    with torch.no_grad():
        decoder(x, cache=cache)
        with pytest.raises(ValueError, match=r"mask: expected shape \(T, S\)=\(1, 8\)"):
            decoder(x[:, :1], cache=cache, mask=torch.ones(B, 1, 1, T, dtype=torch.bool))
