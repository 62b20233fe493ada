"""Norms, feed-forward, embeddings and residuals: equal to torch and transformers, lawful, clear about bad input."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, T5Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, Gemma3TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5DenseGatedActDense, T5LayerNorm

from course_lib import testing as laws
from course_lib.config import TransformerConfig
from course_lib.layers import (
    FeedForward,
    Residual,
    TokenEmbedding,
    build_attention,
    config_from_torch,
    init_weights,
)
from course_lib.norms import LayerNorm, RMSNorm, build_norm

B, T, D, F, V = 3, 5, 12, 20, 17


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e3])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_by_hand_equals_torch(scale, bias, parity):
    """At scale 1e-3 the place of eps decides, at any scale the divisor of the variance."""
    ours, theirs = LayerNorm(D, bias=bias), nn.LayerNorm(D, bias=bias)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    found = laws.assert_equivalent(ours, theirs, torch.randn(B, T, D) * scale)
    if scale == 1.0:  # at others the size of the gradients hides what a difference means
        parity("LayerNorm by hand", "torch.nn.LayerNorm", found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("theirs", [nn.RMSNorm, LlamaRMSNorm, T5LayerNorm, Gemma3RMSNorm])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_rms_norm_equals_others(theirs, dtype, scale, parity):
    theirs, ours = theirs(D, eps=1e-6).to(dtype), RMSNorm(D, offset=theirs is Gemma3RMSNorm).to(dtype)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    found = laws.assert_equivalent(ours, theirs, torch.randn(B, T, D).to(dtype) * scale)
    if scale == 1.0:
        parity("RMSNorm", f"{type(theirs).__module__.split('.')[0]} {type(theirs).__name__}", found, dtype)


def test_scaled_embedding_in_bfloat16_equals_gemma():
    theirs = Gemma3TextScaledWordEmbedding(V, D, None, embed_scale=D**0.5).bfloat16()
    ours, ids = TokenEmbedding(V, D).bfloat16(), torch.arange(V)[None]
    ours.load_state_dict(theirs.state_dict())
    assert torch.equal(ours(ids), theirs(ids))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_feed_forward_equals_a_convolution_of_width_one(activation, parity):
    ours = FeedForward(D, F, activation=activation)
    functions = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh"), "silu": nn.SiLU()}
    up, down = nn.Conv1d(D, F, 1), nn.Conv1d(F, D, 1)
    for conv, linear in ((up, ours.up), (down, ours.down)):
        conv.weight.data.copy_(linear.weight[:, :, None])
        conv.bias.data.copy_(linear.bias)
    theirs = nn.Sequential(up, functions[activation], down)
    found = laws.assert_equivalent(ours, lambda x: theirs(x.transpose(1, 2)).transpose(1, 2), torch.randn(B, T, D))
    parity(f"FeedForward, {activation}", "torch.nn.Conv1d of width 1", found)


def test_swiglu_equals_llama(parity):
    ours = FeedForward(D, F, activation="silu", gated=True, bias=False)
    theirs = LlamaMLP(LlamaConfig(hidden_size=D, intermediate_size=F, num_attention_heads=2))
    theirs.load_state_dict({f"{name}_proj.weight": getattr(ours, name).weight for name in ("gate", "up", "down")})
    parity("FeedForward, gated silu", "transformers Llama", laws.assert_equivalent(ours, theirs, torch.randn(B, T, D)))


def test_gated_gelu_equals_t5(parity):
    ours = FeedForward(D, F, activation="gelu_tanh", gated=True, bias=False)
    theirs = T5DenseGatedActDense(T5Config(d_model=D, d_ff=F, feed_forward_proj="gated-gelu", dropout_rate=0.0))
    theirs.load_state_dict(
        {"wi_0.weight": ours.gate.weight, "wi_1.weight": ours.up.weight, "wo.weight": ours.down.weight}
    )
    parity(
        "FeedForward, gated gelu_tanh", "transformers T5", laws.assert_equivalent(ours, theirs, torch.randn(B, T, D))
    )


@pytest.mark.parametrize("gated", [True, False])
def test_feed_forward_laws(gated, obeys):
    block, x = FeedForward(D, F, gated=gated, dropout=0.1), torch.randn(B, T, D)
    laws.assert_causal(block, x)  # it touches one position: neither earlier ones
    laws.assert_causal(lambda x: block(x.flip(1)).flip(1), x, module=block)  # nor later ones
    obeys("FeedForward", "causal")
    laws.assert_permutation_equivariant(block, x)
    obeys("FeedForward", "permutation")
    laws.assert_finite(block, x)
    obeys("FeedForward", "finite")
    laws.assert_gradients_flow(block, x)
    obeys("FeedForward", "gradients")
    laws.assert_counts(block, parameters=(3 if gated else 2) * D * F + (2 if gated else 1) * F + D)


@pytest.mark.parametrize("kind", ["layer", "rms", "rms_offset", "unit"])
def test_norm_laws(kind, obeys):
    norm, x, name = build_norm(kind, D), torch.randn(B, T, D), f"norm, {kind}"
    laws.assert_finite(norm, x, scales=(0.0, 1e-6, 1.0, 1e4))
    obeys(name, "finite")
    laws.assert_permutation_equivariant(norm, x)
    obeys(name, "permutation")
    laws.assert_gradients_flow(norm, x)
    obeys(name, "gradients")
    torch.testing.assert_close(norm(x * 100), norm(x), rtol=1e-3, atol=1e-4)  # the scale of the input is gone
    assert isinstance(build_norm("none", D)(x), torch.Tensor)


def test_residual_places():
    x, update, norm = torch.randn(B, T, D), torch.randn(B, T, D), nn.LayerNorm(D)
    pre, post = Residual(norm, place="pre"), Residual(norm, place="post")
    both = Residual(norm, place="both", norm_after=nn.RMSNorm(D))
    assert torch.equal(pre.read(x), norm(x))
    assert torch.equal(pre.add(x, update), x + update)
    assert torch.equal(post.read(x), x)
    assert torch.equal(post.add(x, update), norm(x + update))
    assert torch.equal(both.read(x), norm(x))
    assert torch.equal(both.add(x, update), x + both.norm_after(update))
    assert torch.equal(Residual(norm, place="pre", residual=False).add(x, update), update)
    dropped = Residual(nn.Identity(), place="pre", dropout=0.5).add(torch.zeros_like(x), torch.ones_like(x))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_feed_forward_drops_activations_in_training_only():
    block, x = FeedForward(D, 1000, activation="relu", dropout=0.5), torch.randn(1, D)
    assert torch.equal(block.eval()(x), block(x))
    expected, found = block(x), torch.stack([block.train()(x) for _ in range(300)])
    assert found.std(dim=0).min() > 0
    torch.testing.assert_close(found.mean(dim=0), expected, rtol=0, atol=0.1)


def test_token_embedding_is_a_scaled_look_up(parity):
    ours, theirs = TokenEmbedding(V, D), nn.Embedding(V, D)
    theirs.weight.data.copy_(ours.weight)
    tokens = torch.randint(0, V, (B, T))
    found = laws.assert_equivalent(
        lambda: ours(tokens), lambda: theirs(tokens) * math.sqrt(D), parameters=[(ours.weight, theirs.weight)]
    )
    parity("TokenEmbedding", "torch.nn.Embedding times sqrt(D)", found)
    assert torch.equal(TokenEmbedding(V, D, scale=False)(tokens).std() < 1, torch.tensor(True))


def test_token_embedding_scale_gives_unit_vectors_and_unit_logits():
    table = TokenEmbedding(2000, 256)
    vectors = table(torch.arange(2000))
    assert vectors.std().item() == pytest.approx(1.0, abs=0.01)
    logits = nn.functional.layer_norm(torch.randn(500, 256), (256,)) @ table.weight.T
    assert logits.std().item() == pytest.approx(1.0, abs=0.02)
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 2000, (500,)))
    assert loss.item() == pytest.approx(math.log(2000) + 0.5, abs=0.15)  # + variance / 2 of the logits


@pytest.mark.parametrize(("init", "scaled"), list(itertools.product(["xavier", "normal"], [True, False])))
def test_init(init, scaled):
    config = TransformerConfig(d_model=256, n_heads=4, init=init, scale_residual_init=scaled, vocab_size=500)
    attention, table = build_attention(config), TokenEmbedding(500, 256)
    block = nn.ModuleList([attention, FeedForward(256, 1024), table])
    init_weights(block, config, n_residuals=16)
    xavier = math.sqrt(2 / (256 + 256)), math.sqrt(2 / (256 + 1024))
    square, wide = xavier if init == "xavier" else (0.02, 0.02)
    for weight in attention.projection_weights():
        assert weight.std().item() == pytest.approx(square, rel=0.03)
    smaller = 0.25 if scaled else 1.0
    assert attention.output.weight.std().item() == pytest.approx(square * smaller, rel=0.03)
    assert block[1].up.weight.std().item() == pytest.approx(wide, rel=0.03)
    assert block[1].down.weight.std().item() == pytest.approx(wide * smaller, rel=0.03)
    assert table.weight.std().item() == pytest.approx(1 / 16 if init == "xavier" else 0.02, rel=0.03)
    assert attention.qkv.bias.abs().max() == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FeedForward(D, activation="tanh"), ValueError, "activation: expected one of .*relu.*got 'tanh'"),
        (lambda: FeedForward(D, dropout=1.0), ValueError, r"dropout: expected a probability in \[0, 1\), got 1.0"),
        (lambda: Residual(nn.Identity(), place="mid"), ValueError, "place: expected one of pre, post, both, got 'mid'"),
        (lambda: FeedForward(0), ValueError, "d_model: expected an integer of at least 1, got 0"),
        (lambda: TokenEmbedding(0, D), ValueError, "vocab_size: expected an integer of at least 1, got 0"),
        (lambda: TokenEmbedding(V, D)(torch.tensor([[V]])), ValueError, "tokens: expected ids 0 to 16.*got 17 to 17"),
        (lambda: TokenEmbedding(V, D)(torch.tensor([[-1]])), ValueError, "tokens: expected ids 0 to 16.*got -1 to -1"),
        (lambda: TokenEmbedding(V, D)(torch.rand(1, 2)), TypeError, "tokens: expected a tensor of integer token ids"),
        (
            lambda: build_norm("batch", D),
            ValueError,
            "kind: expected one of layer, rms, .*none, got 'batch'",
        ),
        (
            lambda: config_from_torch(nn.TransformerEncoderLayer(D, 4, activation=torch.tanh)),
            ValueError,
            "layer: expected a ReLU, GELU or SiLU activation",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 0}, "d_model: expected an integer of at least 1, got 0"),
        ({"d_model": 510}, "d_model: expected a multiple of n_heads=8, got 510"),
        ({"n_kv_heads": 3}, "n_kv_heads: expected a divisor of n_heads=8, got 3"),
        ({"n_decoder_layers": -1}, "n_decoder_layers: expected an integer of at least 0, got -1"),
        ({"d_head": 7, "positions": "rotary"}, "d_head: rotary positions need an even width, got 7 with"),
        ({"d_model": 9, "n_heads": 3}, "d_model: sinusoidal positions need an even width, got 9"),
        ({"activation": "tanh"}, "activation: expected one of .*got 'tanh'"),
        ({"norm": "batch"}, "norm: expected one of .*got 'batch'"),
        ({"norm_place": "mid"}, "norm_place: expected one of .*got 'mid'"),
        ({"local_layers": (True,)}, r"local_layers: expected None without a window, got \(True,\)"),
        ({"window": 3, "local_layers": ()}, r"local_layers: expected True or False for each layer, got none"),
        ({"window": 3, "local_rotary_base": 10.0}, "local_rotary_base: expected None with positions 'sinusoidal'"),
        ({"positions": "rope"}, "positions: expected one of .*got 'rope'"),
        ({"rotary_layout": "split"}, "rotary_layout: expected one of .*got 'split'"),
        ({"init": "zeros"}, "init: expected one of .*got 'zeros'"),
        ({"dropout": 1.0}, r"dropout: expected a probability in \[0, 1\), got 1.0"),
        ({"attention_dropout": -0.1}, r"attention_dropout: expected a probability in \[0, 1\), got -0.1"),
        ({"norm_eps": 0.0}, "norm_eps: expected a positive number, got 0.0"),
        ({"window": 0}, "window: expected an integer of at least 1, got 0"),
        ({"vocab_size": 10, "pad_id": 10}, "pad_id: expected a token id below vocab_size=10, got 10"),
        ({"target_vocab_size": 10}, "target_vocab_size: expected None like vocab_size"),
        (
            {"vocab_size": 10, "target_vocab_size": 11, "share_vocabulary": True},
            "share_vocabulary: expected target_vocab_size=10, got 11",
        ),
    ],
)
def test_bad_config(fields, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        TransformerConfig(**fields)


def test_a_config_of_the_wrong_kind():
    with pytest.raises(TypeError, match="n_heads: expected an integer of at least 1, got True"):
        TransformerConfig(n_heads=True)


def test_fallbacks_follow_the_field_they_stand_for():
    config = TransformerConfig(d_model=64, n_heads=4, dropout=0.2, attention_dropout=0.0, vocab_size=10)
    sizes = ("d_head", "n_kv_heads", "d_ff", "target_vocab_size")
    dropouts = ("embedding_dropout", "attention_dropout", "activation_dropout")
    assert [config.setting(name) for name in (*sizes, *dropouts)] == [16, 4, 256, 10, 0.2, 0.0, 0.2]
    wider = dataclasses.replace(config, d_model=128, n_heads=2, dropout=0.1, vocab_size=20)
    assert [wider.setting(name) for name in (*sizes, *dropouts)] == [64, 2, 512, 20, 0.1, 0.0, 0.1]
