"""Switches of the config that make small models learn faster: what each does, and that the laws still hold."""

import pytest
import torch
import torch.nn.functional as F

from course_lib import testing as laws
from course_lib.attention import scaled_dot_product_attention
from course_lib.generation import generate
from course_lib.layers import FeedForward
from course_lib.multi_head import MultiHeadAttention, split_heads
from course_lib.transformer import LanguageModel, TransformerConfig

V = 13
SWITCHES = {"qk_norm": "unit", "activation": "relu2", "zero_residual_init": True}


def model(**switches):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "n_decoder_layers": 2, "vocab_size": V, "dropout": 0.0}
    return LanguageModel(TransformerConfig(**sizes, positions="rotary", norm_place="pre", **switches)).eval()


@pytest.mark.parametrize("name", SWITCHES)
def test_models_with_a_switch_are_causal_and_differ(name):
    tokens = torch.randint(V, (2, 7), generator=torch.Generator().manual_seed(0))
    changed = model(**{name: SWITCHES[name]})
    for parameter in changed.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    laws.assert_causal(changed, tokens)
    plain = model()
    plain.load_state_dict(changed.state_dict(), strict=False)
    assert not torch.allclose(plain(tokens), changed(tokens)) or name == "zero_residual_init"


def test_qk_norm_is_attention_of_normed_heads(device):
    torch.manual_seed(0)
    block = MultiHeadAttention(12, 3, qk_norm="unit").to(device)
    x = 5 * torch.randn(2, 5, 12, device=device)
    query, key, value = (split_heads(part(x), 3) for part in (block.query, block.key, block.value))
    query, key = (t / t.square().mean(-1, keepdim=True).sqrt() for t in (query, key))
    expected = scaled_dot_product_attention(query, key, value, causal=True)
    torch.testing.assert_close(block(x, causal=True), block.output(expected.transpose(1, 2).flatten(2)))
    assert torch.allclose(block(x), block(x.bfloat16().float()), atol=0.1)


@pytest.mark.parametrize("kind", ["unit", "rms", "rms_offset", "layer"])
def test_qk_norm_with_a_cache_is_without(kind):
    changed = model(qk_norm=kind)
    tokens = torch.randint(V, (2, 6))
    texts = [generate(changed, tokens, max_new_tokens=5, temperature=0, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*texts)


def test_relu2_is_the_square_of_relu():
    block = FeedForward(4, 8, activation="relu2")
    x = torch.randn(3, 4)
    torch.testing.assert_close(block(x), block.down(F.relu(block.up(x)) ** 2))


def test_zero_outputs_make_each_layer_the_identity():
    changed = model(zero_residual_init=True)
    x = torch.randn(2, 5, 16)
    rotations, _ = changed.decoder.position_inputs(x, None, 0, 5)
    for layer, rotation in zip(changed.decoder.layers, rotations, strict=True):
        torch.testing.assert_close(layer(x, rotation=rotation), x)
    assert any(p.abs().sum() > 0 for p in changed.decoder.layers.parameters())
