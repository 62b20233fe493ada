"""Position schemes: equal to published implementations, exact where the mathematics is, clear past their ends."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.distilbert.modeling_distilbert import create_sinusoidal_embeddings
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama
from transformers.models.t5.modeling_t5 import T5Attention

from course_lib import positions
from course_lib import testing as laws
from course_lib.positions import (
    SCHEMES,
    ALiBi,
    LearnedPositionalEmbedding,
    PositionScheme,
    RelativePositionBias,
    RotaryEmbedding,
    SinusoidalPositionalEncoding,
    alibi_slopes,
    apply_rotary,
    frequencies,
    position_shift_matrix,
    relative_bucket,
)
from course_lib.rotary_scaling import LinearScaling, Llama3Scaling, NTKScaling, YarnScaling

B, H, T, E, D = 2, 3, 11, 8, 12


def test_every_scheme_that_is_written_is_registered():
    written = {one for one in vars(positions).values() if isinstance(one, type) and issubclass(one, PositionScheme)}
    assert {one for one in written if not one.__name__.startswith("_")} == set(SCHEMES.values())


def test_sinusoids_equal_distilbert(parity):
    table = nn.Parameter(torch.empty(50, D))
    create_sinusoidal_embeddings(50, D, table)
    ours = SinusoidalPositionalEncoding(D)(torch.arange(50))
    found = (ours - table).abs().max().item()
    assert found < 1e-5
    parity("SinusoidalPositionalEncoding", "transformers DistilBERT", (found, math.nan))


def test_sinusoid_formula_entry_by_entry():
    encoding = SinusoidalPositionalEncoding(D)(torch.tensor([[0, 7], [3, 500]]))
    assert encoding.shape == (2, 2, D)
    for i in range(D // 2):
        angle = 500 / 10000 ** (2 * i / D)
        assert encoding[1, 1, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-4)
        assert encoding[1, 1, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-4)


@given(shift=st.integers(-300, 300), position=st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_shift_matrix_moves_any_position(shift, position):
    encode = SinusoidalPositionalEncoding(D)
    moved = position_shift_matrix(shift, D) @ encode(torch.tensor(position))
    torch.testing.assert_close(moved, encode(torch.tensor(position + shift)), rtol=0, atol=2e-4)


def test_learned_table_is_an_embedding(parity):
    ours, theirs = LearnedPositionalEmbedding(T, D), nn.Embedding(T, D)
    theirs.weight.data.copy_(ours.weight)
    positions = torch.tensor([[0, 3, 3], [10, 1, 0]])
    found = laws.assert_equivalent(
        lambda: ours(positions), lambda: theirs(positions), parameters=[(ours.weight, theirs.weight)]
    )
    parity("LearnedPositionalEmbedding", "torch.nn.Embedding", found)


def turn_like_llama(x, positions, config):
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config)(x, positions)
    return modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)[0]


def llama(**parameters):
    rope = {"rope_type": "default", "rope_theta": 500.0, **parameters}
    return LlamaConfig(hidden_size=H * E, num_attention_heads=H, max_position_embeddings=64, rope_parameters=rope)


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("parameters", "scaling"),
    [
        ({}, None),
        ({"rope_type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        ({"rope_type": "llama3", "factor": 8.0, **LLAMA3}, Llama3Scaling(8.0, original_length=64)),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, YarnScaling(4.0, 64)),
    ],
    ids=["plain", "linear", "llama3", "yarn"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_half_equals_llama(parameters, scaling, dtype, parity):
    ours = RotaryEmbedding(E, base=500.0, scaling=scaling)
    positions = torch.randint(0, 60, (B, T))
    found = laws.assert_equivalent(
        lambda x: apply_rotary(x, ours(positions)),
        lambda x: turn_like_llama(x, positions, llama(**parameters)),
        torch.randn(B, H, T, E, dtype=dtype),
    )
    name = "RotaryEmbedding, half" + ("" if scaling is None else f", {type(scaling).__name__}")
    parity(name, "transformers Llama", found, dtype)


def test_rotary_interleaved_equals_gptj(parity):
    def theirs(x):
        sin, cos = modeling_gptj.create_sinusoidal_positions(T, E).chunk(2, dim=-1)  # (T, E / 2)
        turned = modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin[None], cos[None])
        return turned.transpose(1, 2)

    rotation = RotaryEmbedding(E, layout="interleaved")(torch.arange(T))
    found = laws.assert_equivalent(lambda x: apply_rotary(x, rotation), theirs, torch.randn(B, H, T, E))
    parity("RotaryEmbedding, interleaved", "transformers GPT-J", found)


def test_rotary_interleaved_is_a_complex_product():
    x, rotation = torch.randn(B, H, T, E), RotaryEmbedding(E, layout="interleaved")(torch.arange(T))
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2))) * torch.complex(rotation.cos, rotation.sin)
    torch.testing.assert_close(apply_rotary(x, rotation), torch.view_as_real(turned).flatten(-2))


def test_layouts_are_a_permutation_of_each_other_and_not_the_same():
    x = torch.randn(B, H, T, E)
    half, interleaved = (
        apply_rotary(x, RotaryEmbedding(E, layout=k)(torch.arange(T))) for k in ("half", "interleaved")
    )
    assert not torch.allclose(half, interleaved, atol=0.1)
    order = torch.arange(E).view(2, -1).t().flatten()  # 0, E/2, 1, E/2 + 1, ...
    again = apply_rotary(x[..., order], RotaryEmbedding(E, layout="interleaved")(torch.arange(T)))
    torch.testing.assert_close(again, half[..., order])


@given(shift=st.integers(0, 500), layout=st.sampled_from(["half", "interleaved"]))
@settings(deadline=None, max_examples=25)
def test_rotated_products_depend_on_the_distance_only(shift, layout):
    rotary, query, key = RotaryEmbedding(E, layout=layout), torch.randn(T, E), torch.randn(T, E)

    def products(start):
        rotation = rotary(torch.arange(start, start + T))
        return apply_rotary(query, rotation) @ apply_rotary(key, rotation).T

    torch.testing.assert_close(products(shift), products(0), rtol=0, atol=1e-3)


def test_rotary_keeps_lengths_and_the_first_position():
    x = torch.randn(B, H, T, E)
    turned = apply_rotary(x, RotaryEmbedding(E)(torch.arange(T)))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])


def test_frequencies_survive_a_cast_to_bfloat16():
    module, positions = RotaryEmbedding(E), torch.arange(3000, 3004)
    before = module(positions)
    after = module.bfloat16()(positions)
    assert after.cos.dtype == torch.float32
    assert torch.equal(after.cos, before.cos)
    assert not list(module.state_dict())


def test_ntk_scaling_is_a_larger_base():
    factor = 4.0
    base = 10000.0 * factor ** (E / (E - 2))
    torch.testing.assert_close(RotaryEmbedding(E, scaling=NTKScaling(factor)).values, frequencies(E, base))


@pytest.mark.parametrize("factor", [1.0, 2.0, 40.0])
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (4.0, 1.0), (2.0, 2.0), (1e6, 1e-6)])
@pytest.mark.parametrize("length", [7, 64, 4096])
@pytest.mark.parametrize("rounded", [True, False])
@pytest.mark.parametrize("width", [4, 64])
def test_yarn_equals_transformers(factor, fast, slow, length, rounded, width):
    rope = {"rope_type": "yarn", "rope_theta": 500.0, "factor": factor, "beta_fast": fast, "beta_slow": slow}
    rope |= {"original_max_position_embeddings": length, "truncate": rounded}
    config = LlamaConfig(hidden_size=2 * width, num_attention_heads=2, max_position_embeddings=64, rope_parameters=rope)
    theirs, stretch = ROPE_INIT_FUNCTIONS["yarn"](config)
    ours = YarnScaling(factor, length, fast_turns=fast, slow_turns=slow, rounded=rounded)
    torch.testing.assert_close(ours(frequencies(width, 500.0)), theirs, rtol=1e-5, atol=1e-8)
    assert ours.stretch == pytest.approx(stretch)


def test_yarn_keeps_the_fast_squeezes_the_slow_and_stretches_the_scores():
    plain, scaled = RotaryEmbedding(64), RotaryEmbedding(64, scaling=YarnScaling(4.0, 4096))
    ratio = scaled.values / plain.values
    assert ratio[0] == 1
    assert ratio[-1] == 0.25
    assert (ratio.diff() <= 0).all()
    x = torch.randn(1, 1, 1, 64)
    turned = apply_rotary(x, scaled(torch.tensor([0])))
    torch.testing.assert_close(turned, x * (0.1 * math.log(4) + 1))


@pytest.mark.parametrize("n_heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_alibi_equals_bloom(n_heads, parity):
    theirs = build_alibi_tensor(torch.ones(1, T), n_heads, torch.float32).view(n_heads, 1, T)
    scores = torch.randn(n_heads, T, T)
    hidden = torch.ones(T, T).triu(1).bool()
    ours = (scores + ALiBi(n_heads)(T)[0]).masked_fill(hidden, -torch.inf).softmax(-1)
    # Theirs grows with the key's position; within a row that differs by a constant, which a softmax ignores.
    found = (ours - (scores + theirs).masked_fill(hidden, -torch.inf).softmax(-1)).abs().max().item()
    assert found < 1e-6
    parity("ALiBi", "transformers BLOOM", (found, math.nan))


def test_alibi_slopes_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-k for k in range(1, 9)]


def test_alibi_of_later_queries_is_the_end_of_the_whole():
    bias = ALiBi(H)
    assert torch.equal(bias(2, T), bias(T)[:, :, -2:])


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (16, 40)])
def test_buckets_equal_t5(bidirectional, n_buckets, max_distance):
    distance = torch.arange(-400, 401)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional, n_buckets, max_distance)
    ours = relative_bucket(distance, n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_equals_t5(bidirectional, parity):
    from transformers import T5Config

    config = T5Config(num_heads=H, relative_attention_num_buckets=8, relative_attention_max_distance=20)
    config.is_decoder = not bidirectional
    theirs = T5Attention(config, has_relative_attention_bias=True)
    ours = RelativePositionBias(H, n_buckets=8, max_distance=20, bidirectional=bidirectional)
    ours.weight.data.copy_(theirs.relative_attention_bias.weight)
    found = laws.assert_equivalent(
        lambda: ours(30),
        lambda: theirs.compute_bias(30, 30),
        parameters=[(ours.weight, theirs.relative_attention_bias.weight)],
    )
    parity("RelativePositionBias", "transformers T5", found)
    assert torch.equal(ours(2, 30), ours(30)[:, :, -2:])


def test_parameters():
    laws.assert_counts(LearnedPositionalEmbedding(T, D), parameters=T * D)
    laws.assert_counts(RelativePositionBias(H, n_buckets=8), parameters=8 * H)
    for module in (SinusoidalPositionalEncoding(D), RotaryEmbedding(E), ALiBi(H)):
        laws.assert_counts(module, parameters=0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: RotaryEmbedding(7), ValueError, "width: expected an even integer of at least 2.*got 7"),
        (lambda: SinusoidalPositionalEncoding(7), ValueError, "d_model: expected an even integer.*got 7"),
        (lambda: position_shift_matrix(1, 0), ValueError, "d_model: expected an even integer.*got 0"),
        (lambda: RotaryEmbedding(8, base=0.5), ValueError, "base: expected a number above 1, got 0.5"),
        (
            lambda: RotaryEmbedding(8, layout="split"),
            ValueError,
            "layout: expected one of half, interleaved, got 'split'",
        ),
        (
            lambda: RotaryEmbedding(8)(torch.rand(3)),
            TypeError,
            "positions: expected a tensor of integers, got torch.float32",
        ),
        (
            lambda: LearnedPositionalEmbedding(4, D)(torch.arange(5)),
            ValueError,
            "positions: expected 0 to 3.*got 0 to 4",
        ),
        (lambda: LearnedPositionalEmbedding(4, D)(torch.tensor([-1])), ValueError, "positions: .*got -1 to -1"),
        (lambda: LearnedPositionalEmbedding(0, D), ValueError, "max_length: expected an integer of at least 1, got 0"),
        (lambda: ALiBi(0), ValueError, "n_heads: expected an integer of at least 1, got 0"),
        (lambda: RelativePositionBias(2, n_buckets=6), ValueError, "n_buckets: expected a multiple of 4, got 6"),
        (lambda: RelativePositionBias(2, max_distance=8), ValueError, "max_distance: expected more than 8, got 8"),
        (
            lambda: apply_rotary(torch.randn(1, 1, 3, 8), RotaryEmbedding(8)(torch.arange(4))),
            ValueError,
            r"rotation: made for \(T, E\)=\(4, 8\), got queries or keys \(1, 1, 3, 8\)",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
