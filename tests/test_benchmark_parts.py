"""The parts that benchmarks add to models: attention by products equals the fused kernel, and runs have their rows."""

import sys
from pathlib import Path

import pytest
import torch

from course_lib import testing as laws
from course_lib.attention import scaled_dot_product_attention
from course_lib.masks import length_mask
from course_lib.transformer import LanguageModel, TransformerConfig

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from parts import RunEmbedding, ShortAttention

V = 13


def inputs(T=17, S=17, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(2, 3, size, 8).to(dtype).requires_grad_() for size in (T, S, S)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_equal_to_the_fused_kernel(dtype, scale):
    ours = inputs(dtype=dtype)
    exact = [x.detach().double().requires_grad_() for x in ours]
    attend = ShortAttention()
    found = attend(*ours, causal=True, scale=scale)
    assert attend._hidden is not None  # it was not left to the fused kernel
    expected = scaled_dot_product_attention(*exact, causal=True, scale=scale)
    torch.testing.assert_close(found.double(), expected, atol=0.03, rtol=0.03)
    direction = torch.randn_like(expected)
    found.backward(direction.to(dtype))
    expected.backward(direction)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({"dtype": torch.float32}, {"causal": True}),
        ({}, {"causal": False}),
        ({"T": 5}, {"causal": True}),
        ({}, {"causal": True, "mask": length_mask([17, 9], 17)}),
        ({"T": 600, "S": 600}, {"causal": True}),
    ],
)
def test_all_else_is_left_to_the_usual_function(shape, options):
    tensors = inputs(**shape)
    found = ShortAttention()(*tensors, **options)
    expected = scaled_dot_product_attention(*tensors, **options)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_laws_in_a_model_in_bfloat16():
    sizes = {"d_model": 16, "n_heads": 2, "n_decoder_layers": 2, "n_encoder_layers": 0, "vocab_size": 11}
    model = LanguageModel(TransformerConfig(**sizes, dropout=0.0, inner_attention=ShortAttention)).bfloat16()
    assert model.decoder.layers[0].self_attention.inner is not None
    laws.assert_causal(model, torch.randint(11, (2, 9)))


def test_bad_length():
    with pytest.raises(ValueError, match="longest: expected an integer"):
        ShortAttention(0)


@pytest.mark.parametrize("n", [2, 3])
def test_runs_have_their_rows(n):
    table = RunEmbedding((n,), 3, V, n_rows=20)
    weight = table.tables[str(n)].weight
    assert (weight == 0).all()
    torch.nn.init.normal_(weight)
    tokens = torch.randint(V, (2, 9))
    found = table(tokens)
    assert (found[:, : n - 1] == 0).all()
    for b in range(2):
        for t in range(n - 1, 9):
            alone = table(tokens[b : b + 1, t - n + 1 : t + 1])[0, -1]
            assert torch.equal(found[b, t], alone)
    every = torch.cartesian_prod(*[torch.arange(V)] * n)
    distinct = len({tuple(row) for row in table(every)[:, -1].tolist()})
    assert distinct == (V * V if n == 2 else 20)


def test_runs_are_added_to_the_token_vectors():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "n_decoder_layers": 1, "vocab_size": V, "dropout": 0.0}
    model = LanguageModel(TransformerConfig(**sizes, scale_embeddings=False))
    tokens = torch.randint(V, (2, 7))
    plain, before = model.embedding(tokens), sum(p.numel() for p in model.parameters())
    runs = RunEmbedding((2, 3), 16, V)
    runs.join(model)
    assert torch.equal(model.embedding(tokens), plain)
    for parameter in runs.parameters():
        torch.nn.init.normal_(parameter)
    torch.testing.assert_close(model.embedding(tokens), plain + runs(tokens))
    laws.assert_causal(model, tokens)
    assert sum(p.numel() for p in model.parameters()) == before + (V * V + 8192) * 16
