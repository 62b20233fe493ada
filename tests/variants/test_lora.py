"""Low-rank adaptation: starts as the model was, trains little, merges exactly, and travels alone."""

import copy

import pytest
import torch
from torch import nn

from course_lib import testing as laws
from course_lib.transformer import LanguageModel, TransformerConfig
from course_lib.variants.lora import (
    LoRALinear,
    add_lora,
    merge_lora,
    remove_lora,
    unmerge_lora,
)

TOKENS = torch.arange(12).view(2, 6)


def small_model(**changes):
    config = TransformerConfig(
        **{"d_model": 16, "n_heads": 2, "n_decoder_layers": 2, "vocab_size": 13, "dropout": 0.0, **changes}
    )
    return LanguageModel(config)


def trained(model, steps=5):
    """Move the trainable parameters away from their start."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten()).backward()
        optimizer.step()
    return model


def test_starts_as_the_model_was_and_trains_only_the_updates():
    model = small_model().eval()
    before, state = model(TOKENS), copy.deepcopy(model.state_dict())
    names = add_lora(model, 2, targets=("qkv", "output"))
    assert len(names) == 4
    assert torch.equal(model(TOKENS), before)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert {name.rpartition(".")[2] for name in trainable} == {"down", "up"}
    # per layer: qkv 16 -> 48 and output 16 -> 16, at rank 2
    laws.assert_counts(nn.ParameterList(trainable.values()), parameters=2 * (2 * (16 + 48) + 2 * (16 + 16)))
    trained(model)
    assert not torch.allclose(model(TOKENS), before)
    remove_lora(model, keep=False)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)
    assert all(p.requires_grad for p in model.parameters())


def test_is_the_linear_map_with_the_added_product():
    base = nn.Linear(5, 7)
    wrapped = LoRALinear(copy.deepcopy(base), 3, alpha=6.0)
    nn.init.normal_(wrapped.up)
    x = torch.randn(4, 5)
    expected = x @ (base.weight + 2.0 * wrapped.up @ wrapped.down).T + base.bias
    torch.testing.assert_close(wrapped(x), expected)
    torch.testing.assert_close(wrapped.weight, base.weight + 2.0 * wrapped.up @ wrapped.down)
    laws.assert_gradients_flow(wrapped, x)
    laws.assert_finite(wrapped, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_merging_changes_nothing_and_comes_undone(dtype):
    model = small_model().to(dtype).eval()
    weight = model.decoder.layers[0].self_attention.output.weight.clone()
    add_lora(model, 2, alpha=4.0)
    trained(model)
    expected = model(TOKENS)
    merge_lora(model)
    merge_lora(model)  # once only
    torch.testing.assert_close(model(TOKENS), expected)
    assert not torch.allclose(model.decoder.layers[0].self_attention.output.base.weight, weight)
    unmerge_lora(model)
    unmerge_lora(model)
    torch.testing.assert_close(model.decoder.layers[0].self_attention.output.base.weight, weight)
    torch.testing.assert_close(model(TOKENS), expected)
    remove_lora(model)
    assert not any(isinstance(part, LoRALinear) for part in model.modules())
    torch.testing.assert_close(model(TOKENS), expected)


def test_fine_tunes():
    """With the same data, the updates alone bring the loss far down."""
    model = small_model(tie_embeddings=False)
    trained(model, 1)
    with torch.no_grad():
        before = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())
        add_lora(model, 4, targets=("qkv", "output", "up", "down"))
        trained(model, 0)
    with torch.enable_grad():
        trained(model, 60)
    with torch.no_grad():
        after = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())
    assert after < before / 2


def test_bad_input_names_the_argument():
    with pytest.raises(TypeError, match=r"base: expected a Linear, got Identity"):
        LoRALinear(nn.Identity(), 2)
    with pytest.raises(ValueError, match="rank: expected an integer from 1 to 3, got 4"):
        LoRALinear(nn.Linear(3, 5), 4)
    with pytest.raises(ValueError, match="targets: no linear map of the model is called 'c_attn'"):
        add_lora(small_model(), 2, targets=["c_attn"])
    with pytest.raises(ValueError, match="targets: head shares its weight"):
        add_lora(small_model(), 2, targets=["head"])
    with pytest.raises(ValueError, match="model: has no updates"):
        merge_lora(small_model())
    model = small_model()
    add_lora(model, 2)
    with pytest.raises(ValueError, match="model: has updates already"):
        add_lora(model, 2)
