"""Encoder layer and stack: equal to torch, lawful with every position scheme and both norm places."""

import itertools

import pytest
import torch
from recorded import recorded
from torch import nn
from torch_masks import KINDS, for_torch, make_mask

from course_lib import testing as laws
from course_lib.config import TransformerConfig
from course_lib.encoder import EncoderLayer, TransformerEncoder
from course_lib.positions import SCHEMES, RotaryEmbedding

B, T, H, D, F = 3, 7, 3, 12, 20
INSIDE = [name for name, scheme in SCHEMES.items() if scheme.acts_on != "input"]


def config(**changes):
    return TransformerConfig(**{"d_model": D, "n_heads": H, "d_ff": F, "n_encoder_layers": 2, **changes})


def torch_layer(**options):
    layer = nn.TransformerEncoderLayer(D, H, F, dropout=0.0, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)  # biases are born zero, weights of norms one
    return layer


def pairs(ours, theirs):
    """Parameters that must get the same gradients."""
    found = [
        (ours.self_attention.qkv.weight, theirs.self_attn.in_proj_weight),
        (ours.self_attention.output.weight, theirs.self_attn.out_proj.weight),
        (ours.self_attention_residual.norm.weight, theirs.norm1.weight),
        (ours.feed_forward.up.weight, theirs.linear1.weight),
        (ours.feed_forward.down.weight, theirs.linear2.weight),
        (ours.feed_forward_residual.norm.weight, theirs.norm2.weight),
    ]
    if theirs.linear1.bias is not None:
        found += [(ours.self_attention.qkv.bias, theirs.self_attn.in_proj_bias)]
        found += [(ours.feed_forward.up.bias, theirs.linear1.bias)]
        found += [(ours.feed_forward_residual.norm.bias, theirs.norm2.bias)]
    return found


def layout(fn, batch_first):
    """A function of batch-first tensors around one of torch's with either layout."""
    return fn if batch_first else lambda *args: fn(*(x.transpose(0, 1) for x in args)).transpose(0, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(("pre", "batch_first"), list(itertools.product([True, False], repeat=2)))
def test_layer_equals_torch(kind, activation, pre, batch_first, parity):
    theirs = torch_layer(activation=activation, norm_first=pre, batch_first=batch_first)
    ours, mask = EncoderLayer.from_torch(theirs), make_mask(kind, B, H, T, T)
    run = layout(lambda x: theirs(x, src_mask=for_torch(mask, B, H, T, T)), batch_first)
    found = laws.assert_equivalent(
        lambda x: ours(x, mask=mask), run, torch.randn(B, T, D), names=["x"], parameters=pairs(ours, theirs)
    )
    parity(f"EncoderLayer, {'pre' if pre else 'post'}-norm, {activation}", "torch.nn.TransformerEncoderLayer", found)


@pytest.mark.parametrize("options", [{"bias": False}, {"layer_norm_eps": 1e-2}, {"activation": nn.SiLU()}])
def test_layer_with_other_options_equals_torch(options, parity):
    theirs = torch_layer(batch_first=True, **options)
    ours = EncoderLayer.from_torch(theirs)
    found = laws.assert_equivalent(ours, theirs, torch.randn(B, T, D) / 10, parameters=pairs(ours, theirs))
    parity(f"EncoderLayer, {next(iter(options))} changed", "torch.nn.TransformerEncoderLayer", found)


@pytest.mark.parametrize(("pre", "final"), list(itertools.product([True, False], repeat=2)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stack_equals_torch(pre, final, dtype, parity):
    layer, norm = torch_layer(norm_first=pre, batch_first=True), nn.LayerNorm(D) if final else None
    theirs = nn.TransformerEncoder(layer, 3, norm=norm, enable_nested_tensor=False).to(dtype)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)  # torch copies the first layer: make them differ
    ours, mask = TransformerEncoder.from_torch(theirs), make_mask("padding", B, H, T, T)
    found = laws.assert_equivalent(
        lambda x: ours(x, mask=mask),
        lambda x: theirs(x, src_key_padding_mask=~mask[:, 0, 0]),
        torch.randn(B, T, D, dtype=dtype),
        parameters=[p for a, b in zip(ours.layers, theirs.layers, strict=True) for p in pairs(a, b)],
    )
    parity("TransformerEncoder", "torch.nn.TransformerEncoder", found, dtype)


def test_from_torch_keeps_the_mode_and_the_dropout():
    theirs = nn.TransformerEncoderLayer(D, H, F, dropout=0.3, batch_first=True).eval()
    ours = EncoderLayer.from_torch(theirs)
    assert not ours.training
    assert ours.self_attention.dropout == ours.self_attention_residual.dropout == ours.feed_forward.dropout == 0.3


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("positions", INSIDE)
def test_laws(positions, place, norm, obeys):
    encoder = TransformerEncoder(config(positions=positions, norm_place=place, norm=norm, n_kv_heads=1))
    x, name = torch.randn(B, T, D), f"TransformerEncoder, {positions}"

    def run(x, real):
        places = (real.long().cumsum(1) - 1).clamp(min=0)
        return encoder(x, mask=real[:, None, None], positions=places)

    for side in ("right", "left"):
        laws.assert_padding_invariant(run, x, side=side, module=encoder)
    obeys(name, "padding")
    causal = make_mask("causal", B, H, T, T)
    laws.assert_causal(lambda x: encoder(x, mask=causal), x, module=encoder)
    obeys(name, "causal")
    masks = {"empty": torch.zeros(T, T, dtype=torch.bool), "causal": causal}
    laws.assert_finite(encoder, x, masks=masks)
    obeys(name, "finite")
    laws.assert_gradients_flow(encoder, x)
    obeys(name, "gradients")
    if positions == "none":
        laws.assert_permutation_equivariant(encoder, x)
        obeys(name, "permutation")
    else:
        with pytest.raises(AssertionError, match="after reordering the tokens"):
            laws.assert_permutation_equivariant(encoder, x)


@pytest.mark.parametrize("positions", INSIDE)
def test_weights_are_those_of_each_layer(positions):
    encoder, x = TransformerEncoder(config(positions=positions)).eval(), torch.randn(B, T, D)
    mask = make_mask("padding", B, H, T, T)
    y, *weights = recorded(encoder, x, mask=mask)
    torch.testing.assert_close(encoder(x, mask=mask), y, rtol=1e-4, atol=1e-5)
    assert [w.shape for w in weights] == [(B, H, T, T)] * 2
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(B, H, T))
        assert w.masked_select(~mask.expand_as(w)).abs().max() == 0
    assert not torch.allclose(weights[0], weights[1])


def test_rotary_positions_may_be_shifted_together():
    encoder, x = TransformerEncoder(config(positions="rotary")).eval(), torch.randn(B, T, D)
    torch.testing.assert_close(encoder(x, positions=torch.arange(T) + 50), encoder(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(encoder(x, positions=torch.arange(T) * 2), encoder(x), atol=1e-2)


def test_a_window_hides_what_is_far():
    encoder, x = TransformerEncoder(config(window=2, positions="none", n_encoder_layers=1)).eval(), torch.randn(B, T, D)
    changed = x.clone()
    changed[:, 0] += 1
    moved = (encoder(changed) - encoder(x)).abs().amax(dim=(0, 2)) > 1e-6
    assert moved.tolist() == [True, True, False, False, False, False, False]


def test_without_residuals_the_sublayers_stand_alone():
    layer, x = EncoderLayer(config(residual=False, norm="none", dropout=0.0)), torch.randn(B, T, D)
    torch.testing.assert_close(layer(x), layer.feed_forward(layer.self_attention(x)))


def test_no_layers_is_the_identity():
    encoder, x = TransformerEncoder(config(n_encoder_layers=0)), torch.randn(B, T, D)
    assert torch.equal(encoder(x), x)


def test_counts_of_bert_base():
    """12 layers of 768 hold 85,054,464 parameters: Devlin et al. 2019, without embeddings and pooler."""
    bert = config(d_model=768, n_heads=12, d_ff=3072, n_encoder_layers=12, activation="gelu", positions="none")
    with torch.device("meta"):
        encoder = TransformerEncoder(bert)
    laws.assert_counts(encoder, parameters=12 * (4 * 768**2 + 4 * 768 + 2 * 768 * 3072 + 768 + 3072 + 4 * 768))
    assert sum(p.numel() for p in encoder.parameters()) == 85_054_464


def test_autocast_runs_in_bfloat16():
    for positions in INSIDE:
        encoder, x = TransformerEncoder(config(positions=positions)).eval(), torch.randn(B, T, D)
        with torch.autocast("cpu", torch.bfloat16):
            y = encoder(x, mask=make_mask("padding", B, H, T, T))
        torch.testing.assert_close(y.float(), encoder(x, mask=make_mask("padding", B, H, T, T)), rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda e, x: e(x[0]), ValueError, r"x: expected \(B, T, 12\) with T of at least 1, got \(7, 12\)"),
        (lambda e, x: e(x[:, :0]), ValueError, r"x: expected .* got \(3, 0, 12\)"),
        (lambda e, x: e(x[..., :5]), ValueError, r"x: expected .* got \(3, 7, 5\)"),
        (lambda e, x: e(x, mask=torch.ones(B, T).bool()), ValueError, r"mask: expected shape \(T, S\)=\(7, 7\)"),
        (lambda e, x: e(x, mask=torch.ones(T, T)), TypeError, r"mask: expected a boolean mask"),
        (
            lambda e, x: e(x, positions=torch.arange(T + 1)),
            ValueError,
            r"positions: expected .* T=7, got \(8,\)",
        ),
        (lambda e, x: e(x, positions=torch.rand(T)), TypeError, r"positions: expected a tensor of integers"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(TransformerEncoder(config(positions="rotary")), torch.randn(B, T, D))


def test_rotary_is_shared_by_the_layers():
    encoder = TransformerEncoder(config(positions="rotary"))
    assert sum(isinstance(part, RotaryEmbedding) for part in encoder.modules()) == 1
