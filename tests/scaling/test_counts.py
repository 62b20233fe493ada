"""Counts by formula equal what is measured: parameters, operations, bytes."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import rounds
from tiny_models import Loss
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib.config import TransformerConfig
from course_lib.encoder import TransformerEncoder
from course_lib.positions import SCHEMES
from course_lib.scaling import (
    activation_bytes,
    count_flops,
    count_parameters,
    kv_cache_bytes,
    ring_all_reduce_bytes,
    six_n_d,
    training_memory,
)
from course_lib.testing import assert_counts
from course_lib.transformer import Embedding, LanguageModel, Transformer

ARCHITECTURES = ("decoder", "encoder", "encoder-decoder")
B, T, S = 3, 7, 5


class Encoder(nn.Module):
    """Token ids to vectors."""

    def __init__(self, config):
        super().__init__()
        self.embedding = Embedding(config, config.vocab_size)
        self.encoder = TransformerEncoder(config)

    def forward(self, tokens):
        return self.encoder(self.embedding(tokens))


MODELS = {"decoder": LanguageModel, "encoder": Encoder, "encoder-decoder": Transformer}


@st.composite
def configs(draw, width=1):
    """Any sizes and switches that make a model; `width` makes all of them wider."""
    n_kv_heads = draw(st.sampled_from([1, 2, 3])) if width == 1 else 2
    n_heads = n_kv_heads * draw(st.sampled_from([1, 2]))
    d_head = 2 * width * draw(st.integers(1, 5))
    share = draw(st.booleans())
    window, positions = draw(st.sampled_from([None, 3, 30])), draw(st.sampled_from(list(SCHEMES)))
    bases = [None, 100.0] if window is not None and positions == "rotary" else [None]
    maybe = st.sampled_from([None, True, False])
    return TransformerConfig(
        d_model=n_heads * d_head if draw(st.booleans()) else 2 * width * n_heads * draw(st.integers(1, 6)),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        d_ff=draw(st.one_of(st.none(), st.integers(4 * width, 60 * width))),
        n_encoder_layers=draw(st.integers(1, 3)),
        n_decoder_layers=draw(st.integers(1, 3)),
        vocab_size=draw(st.integers(7, 40)),
        target_vocab_size=None if share else draw(st.one_of(st.none(), st.integers(7, 40))),
        max_length=draw(st.integers(T, 20)),
        positions=positions,
        relative_buckets=4 * draw(st.integers(2, 4)),
        window=window,
        local_layers=None if window is None else draw(st.sampled_from([None, (True, False), (False, False, True)])),
        local_rotary_base=draw(st.sampled_from(bases)),
        activation=draw(st.sampled_from(["relu", "gelu", "gelu_tanh", "silu", "relu2"])),
        gated=draw(st.booleans()),
        norm=draw(st.sampled_from(["layer", "rms", "rms_offset", "unit", "none"])),
        norm_place=draw(st.sampled_from(["pre", "post", "both"])),
        final_norm=draw(maybe),
        bias=draw(st.booleans()),
        attention_bias=draw(maybe),
        qkv_bias=draw(maybe),
        feed_forward_bias=draw(maybe),
        qk_norm=draw(st.sampled_from(["none", "unit", "rms", "layer", "rms_offset"])),
        embedding_norm=draw(st.booleans()),
        n_token_types=draw(st.sampled_from([0, 2])),
        share_vocabulary=share,
        tie_embeddings=draw(st.booleans()),
        head_bias=draw(st.booleans()),
        dropout=0.0,
    )


def tokens(architecture, vocab_size):
    target, source = torch.randint(7, (B, T)), torch.randint(7, (B, S))
    return (source, target) if architecture == "encoder-decoder" else (target,)


@settings(max_examples=rounds(40, 200), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(configs(), st.sampled_from(ARCHITECTURES))
def test_parameters_and_operations_of_any_config(config, architecture):
    with torch.device("meta"):
        model = MODELS[architecture](config)
        inputs = [x.to("meta") for x in tokens(architecture, config.vocab_size)]
    assert_counts(model, parameters=count_parameters(config, architecture).total())
    sizes = {"architecture": architecture, "source_length": S if architecture == "encoder-decoder" else None}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        output = model(*inputs)
        forward = counter.get_total_flops()
        output.sum().backward()
    assert forward == count_flops(config, B, T, **sizes).total()
    assert counter.get_total_flops() == count_flops(config, B, T, backward=True, **sizes).total()


@settings(max_examples=rounds(40, 200), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(configs(width=4), st.sampled_from(["decoder", "encoder-decoder"]))
def test_activations_of_any_config(config, architecture):
    model = MODELS[architecture](config)
    formula = activation_bytes(config, B, T, architecture=architecture, source_length=S)
    assert_counts(Loss(model), *tokens(architecture, 7), saved_bytes=formula, tolerance=0.02)


@pytest.mark.parametrize(
    "changes",
    [{}, {"n_kv_heads": 2}, {"window": 4}, {"window": 4, "local_layers": (True, False)}, {"positions": "rotary"}],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bytes_of_a_cache(changes, dtype):
    config = TransformerConfig(d_model=24, n_heads=4, n_decoder_layers=3, vocab_size=9, **changes)
    model = LanguageModel(config).to(dtype).eval()
    cache = model.new_cache(11)
    for _ in range(11):
        model(torch.zeros(2, 1, dtype=torch.long), cache=cache)
    assert cache.n_bytes == kv_cache_bytes(config, 2, 11, dtype=dtype)


def test_bytes_of_a_cache_with_cross_attention():
    config = TransformerConfig(d_model=24, n_heads=4, n_decoder_layers=3, vocab_size=9)
    model = Transformer(config).eval()
    context = model.encode(torch.zeros(2, 5, dtype=torch.long))
    cache = model.new_cache(11)
    model.decode(torch.zeros(2, 1, dtype=torch.long), context, cache=cache)
    assert cache.n_bytes == kv_cache_bytes(config, 2, 11, source_length=5)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adamw"])
def test_bytes_of_an_optimizer(name):
    config = TransformerConfig(d_model=24, n_heads=4, n_decoder_layers=2, vocab_size=29, dropout=0.0)
    model = LanguageModel(config)
    optimizers = {
        "sgd": torch.optim.SGD(model.parameters()),
        "momentum": torch.optim.SGD(model.parameters(), momentum=0.9),
        "adamw": torch.optim.AdamW(model.parameters()),
    }
    inputs = tokens("decoder", 29)
    Loss(model)(*inputs).backward()
    optimizers[name].step()
    states = [s for state in optimizers[name].state.values() for s in state.values() if torch.is_tensor(s) and s.dim()]
    formula = training_memory(config, B, T, optimizer=name)
    assert formula["weights"] == sum(p.nbytes for p in model.parameters())
    assert formula["gradients"] == sum(p.grad.nbytes for p in model.parameters())
    assert formula["optimizer"] == sum(s.nbytes for s in states)
    assert_counts(Loss(model), *inputs, saved_bytes=formula["activations"], tolerance=0.02)


def test_sharding_divides_what_its_stage_names():
    config = TransformerConfig(d_model=32, n_heads=4, n_decoder_layers=2, vocab_size=32)
    whole = training_memory(config, 1, 8)
    divided = {
        stage: {k for k, v in training_memory(config, 1, 8, ranks=4, sharding=stage).items() if 4 * v == whole[k]}
        for stage in (0, 1, 2, 3)
    }
    assert divided == {
        0: set(),
        1: {"optimizer"},
        2: {"optimizer", "gradients"},
        3: {"optimizer", "gradients", "weights"},
    }


def test_recomputation_keeps_less_and_computes_more():
    config = TransformerConfig(d_model=32, n_heads=4, n_decoder_layers=8, vocab_size=32)
    assert activation_bytes(config, 2, 16, recompute=True) < activation_bytes(config, 2, 16) / 3
    forward, twice = count_flops(config, 2, 16), count_flops(config, 2, 16, backward=True, recompute=True)
    assert twice["feed-forward"] == 4 * forward["feed-forward"]
    assert twice["head"] == 3 * forward["head"]


def test_causal_halving_counts_the_visible_pairs():
    config = TransformerConfig(d_model=32, n_heads=4, n_decoder_layers=1, vocab_size=32)
    full, half = count_flops(config, 1, 64), count_flops(config, 1, 64, halve_causal=True)
    assert half["scores and mixing"] / full["scores and mixing"] == 65 / 128
    assert half - full == {}


def test_six_n_d_leaves_out_the_score_table_alone():
    config = TransformerConfig(d_model=64, n_heads=4, n_decoder_layers=2, vocab_size=32, bias=False, norm="none")
    parameters = count_parameters(config)
    matrices = parameters["attention"] + parameters["feed-forward"] + parameters["token tables"]  # the head is tied
    flops = count_flops(config, 3, 16, backward=True)
    assert six_n_d(matrices, 3 * 16) == flops.total() - flops["scores and mixing"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_ring_sends_each_chunk_twice_round(ranks):
    """Walk the ring: in each of 2 (ranks - 1) steps every process passes one chunk on."""
    size = 24
    values = torch.arange(ranks * size, dtype=torch.float64).view(ranks, ranks, size // ranks)  # rank, chunk, numbers
    expected, sent = values.sum(0), 0
    for step in range(2 * (ranks - 1)):
        gathering = step >= ranks - 1  # first sums travel round, then whole sums
        before = values.clone()
        for rank in range(ranks):
            chunk, target = (rank - step) % ranks, (rank + 1) % ranks
            passed = before[rank, chunk]
            values[target, chunk] = passed if gathering else before[target, chunk] + passed
            sent += passed.nbytes if rank == 0 else 0
    assert all(torch.equal(values[rank], expected) for rank in range(ranks))
    assert sent == ring_all_reduce_bytes(8 * size, ranks)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda c: count_parameters(c, "gpt"), "architecture"),
        (lambda c: count_flops(c, 0, 4), "batch"),
        (lambda c: count_flops(c, None, 4), "batch"),
        (lambda c: count_flops(c, 1, 4.0), "length"),
        (lambda c: kv_cache_bytes(c, 1, -1), "length"),
        (lambda c: training_memory(c, 1, 4, optimizer="adam"), "optimizer"),
        (lambda c: training_memory(c, 1, 4, sharding=4), "sharding"),
        (lambda c: training_memory(c, 1, 4, ranks=0), "ranks"),
        (lambda c: ring_all_reduce_bytes(-1, 2), "n_bytes"),
        (lambda c: ring_all_reduce_bytes(8, 0), "ranks"),
    ],
)
def test_errors_name_the_argument(call, name):
    with pytest.raises((ValueError, TypeError), match=f"^{name}:"):
        call(TransformerConfig(d_model=32, n_heads=4, vocab_size=32))


def test_parts_made_by_functions_are_not_guessed():
    config = TransformerConfig(d_model=32, n_heads=4, vocab_size=32, feed_forward=lambda config: nn.Identity())
    with pytest.raises(ValueError, match="feed_forward"):
        count_parameters(config)
