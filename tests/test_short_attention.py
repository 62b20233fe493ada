"""Attention by two products, with which short texts train fast in bfloat16, equals the fused kernel."""

import pytest
import torch

from course_lib import attention
from course_lib.attention import scaled_dot_product_attention
from course_lib.masks import length_mask
from course_lib.transformer import LanguageModel, TransformerConfig

V = 13
SIZES = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "vocab_size": V, "dropout": 0.0}


def inputs(T=17, S=17, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(2, 3, size, 8).to(dtype).requires_grad_() for size in (T, S, S)]


@pytest.fixture
def short(monkeypatch):
    """How often attention went by two products."""
    calls = []
    products = attention.short_attention
    monkeypatch.setattr(attention, "short_attention", lambda *inputs: calls.append(1) or products(*inputs))
    return calls


@pytest.mark.parametrize("scale", [None, 0.5])
def test_attention_by_products_equals_the_fused_kernel(scale, short):
    ours = inputs()
    exact = [x.detach().double().requires_grad_() for x in ours]
    found = scaled_dot_product_attention(*ours, causal=True, scale=scale)
    assert short
    expected = scaled_dot_product_attention(*exact, causal=True, scale=scale)
    torch.testing.assert_close(found.double(), expected, atol=0.03, rtol=0.03)
    direction = torch.randn_like(expected)
    found.backward(direction.bfloat16())
    expected.backward(direction)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({"dtype": torch.float32}, {"causal": True}),
        ({"dtype": torch.float16}, {"causal": True}),
        ({}, {"causal": False}),
        ({"T": 5}, {"causal": True}),
        ({}, {"causal": True, "mask": length_mask([17, 9], 17)}),
        ({}, {"causal": True, "dropout": 0.1}),
        ({"T": 600, "S": 600}, {"causal": True}),
    ],
)
def test_all_else_goes_to_the_fused_kernel(shape, options, short):
    scaled_dot_product_attention(*inputs(**shape), **options)
    with torch.no_grad():
        scaled_dot_product_attention(*inputs(), causal=True)
    assert not short


def test_laws_in_a_model_in_bfloat16(short):
    model = LanguageModel(TransformerConfig(**SIZES)).bfloat16()
    tokens = torch.randint(V, (2, 9))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % V
    a, b = model(tokens), model(changed)
    assert short
    assert torch.equal(a[:, :6], b[:, :6])
    assert not torch.equal(a[:, 6:], b[:, 6:])
