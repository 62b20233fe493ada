"""Recorded weights are those of the pass that ran, under the name of their module, and leave nothing behind."""

import pytest
import torch
from torch import nn

from course_lib.attention import Attention, SelfAttention, record_weights
from course_lib.generation import generate
from course_lib.multi_head import MultiHeadAttention
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from course_lib.variants.efficient import LinearAttention

B, T, D, H, V = 2, 5, 8, 2, 11
SIZES = {"d_model": D, "n_heads": H, "n_encoder_layers": 1, "n_decoder_layers": 2, "vocab_size": V, "dropout": 0.0}


def model(kind=LanguageModel, **changes):
    torch.manual_seed(0)
    return kind(TransformerConfig(**{**SIZES, **changes})).eval()


def records(module):
    return [part.records for part in module.modules() if isinstance(part, Attention)]


def test_names_in_the_order_of_the_pass():
    translator, tokens = model(Transformer), torch.randint(V, (B, T))
    with record_weights(translator) as maps:
        translator(tokens, tokens)
    own = [f"decoder.layers.{n}.{kind}_attention" for n in range(2) for kind in ("self", "cross")]
    assert list(maps) == ["encoder.layers.0.self_attention", *own]
    assert {weights.shape for weights in maps.values()} == {(B, H, T, T)}
    head = SelfAttention(D)
    with record_weights(head) as maps:
        head(torch.randn(B, T, D))
    assert {name: weights.shape for name, weights in maps.items()} == {"": (B, T, T)}


def test_nothing_is_left_behind():
    llm, tokens = model(), torch.randint(V, (B, T))
    with pytest.raises(ValueError, match="tokens"), record_weights(llm):
        llm(tokens + V)
    assert records(llm) == [(), ()]
    with record_weights(llm) as maps:
        pass
    llm(tokens)
    assert maps == {}


def test_a_block_inside_a_block():
    llm, tokens = model(), torch.randint(V, (B, T))
    with record_weights(llm) as outer:
        with record_weights(llm.decoder.layers[1]) as inner:
            llm(tokens)
        assert list(inner) == ["self_attention"]
        assert inner["self_attention"] is outer["decoder.layers.1.self_attention"]
        llm(tokens[:, :3])
    assert outer["decoder.layers.1.self_attention"].shape == (B, H, 3, 3)
    assert inner["self_attention"].shape == (B, H, T, T)
    assert records(llm) == [(), ()]


def test_the_last_step_of_generation_stays():
    llm, prompt = model(n_kv_heads=1, positions="rotary"), torch.randint(V, (B, T))
    torch.manual_seed(1)
    plain = generate(llm, prompt, max_new_tokens=3)
    torch.manual_seed(1)
    with record_weights(llm) as maps:
        recorded = generate(llm, prompt, max_new_tokens=3)
    assert torch.equal(recorded, plain)
    for weights in maps.values():
        assert weights.shape == (B, H, 1, T + 2)
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, 1))


def test_gradients_flow_through_recorded_weights():
    attention, x = MultiHeadAttention(D, H), torch.randn(B, T, D)
    with record_weights(attention) as maps:
        attention(x)
    maps[""].square().sum().backward()
    assert attention.query.weight.grad.abs().max() > 0


def test_what_attends_inside_reports_under_the_outer_name():
    llm = model(inner_attention=LinearAttention)
    with record_weights(llm) as maps:
        llm(torch.randint(V, (B, T)))
    assert list(maps) == ["decoder.layers.0.self_attention", "decoder.layers.1.self_attention"]
    with record_weights(llm.decoder.layers[0].self_attention) as maps:
        llm(torch.randint(V, (B, T)))
    assert list(maps) == [""]
    winner = nn.ModuleDict({"winner": SelfAttention(D), "inner": SelfAttention(D)})
    with record_weights(winner) as maps:
        for head in winner.values():
            head(torch.randn(B, T, D))
    assert list(maps) == ["winner", "inner"]


def test_a_compiled_model():
    llm, tokens = model(), torch.randint(V, (B, T))
    compiled = torch.compile(llm, backend="eager", fullgraph=True)
    expected = compiled(tokens)
    with record_weights(llm) as maps:
        torch.testing.assert_close(torch.compile(llm, backend="eager")(tokens), expected)
    assert len(maps) == 2
    torch.testing.assert_close(compiled(tokens), expected)


class Fused(nn.Module):
    """What attends and never forms the weights."""

    def forward(self, query, key, value, **options):
        return value


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(2, 2), "module: expected one with attention inside, got Linear"),
        (nn.ModuleList([MultiHeadAttention(D, H, inner=Fused())]), "module: 0.inner is a Fused, not an `Attention`"),
    ],
)
def test_modules_without_weights(module, message):
    with pytest.raises(ValueError, match=message), record_weights(module):
        pass
    assert set(records(module)) <= {()}
