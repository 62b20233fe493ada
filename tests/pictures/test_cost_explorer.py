"""The explorer of costs has the numbers of the formulas, for every preset and switch, and refuses other sizes."""

import itertools
import random

import pytest
import torch
from explorer_samples import cost

from course_lib.config import TransformerConfig
from course_lib.scaling import count_flops, count_parameters, training_memory
from course_lib.variants import PUBLISHED
from coursework.explorers import CostExplorer
from coursework.explorers.cost import BATCHES, HEAD_WIDTHS, LENGTHS, PRESETS, PROCESSES, SHARED

NAMES = {"GPT-2": "gpt2", "GPT-2 XL": "gpt2-xl", "Llama 2 7B": "llama-2-7b", "Llama 3 8B": "llama-3-8b",
         "Llama 3 70B": "llama-3-70b", "Llama 3 405B": "llama-3-405b"}  # fmt: skip


def config_of(explorer):
    """The config that stands for the explorer's sizes, and the architecture."""
    preset, H = explorer.preset, explorer.heads
    D, shared = H * explorer.head_width, explorer.kv_heads
    sizes = {"d_model": D, "d_ff": int(preset.inner * D + 0.5), "n_heads": H, "n_decoder_layers": explorer.layers}
    sizes |= {"vocab_size": preset.vocab, "n_kv_heads": shared if shared and H % shared == 0 else None}
    if preset.family == "paper":
        sizes |= {"n_encoder_layers": explorer.layers, "share_vocabulary": True}
        return TransformerConfig(**sizes), "encoder-decoder"
    if preset.family == "GPT":
        sizes |= {"positions": "learned", "max_length": preset.max_length}
        return TransformerConfig(**sizes, activation="gelu_tanh", norm_place="pre"), "decoder"
    sizes |= {"positions": "rotary", "activation": "silu", "gated": True, "norm": "rms", "norm_place": "pre"}
    return TransformerConfig(**sizes, bias=False, tie_embeddings=False), "decoder"


def check(explorer):
    config, architecture = config_of(explorer)
    B, T = explorer.batch, explorer.length
    named = {"architecture": architecture, "recompute": explorer.recompute}
    dtype = {4: torch.float32, 2: torch.bfloat16}[explorer.number_bytes]
    assert explorer.architecture == architecture
    assert explorer.parameters() == count_parameters(config, architecture)
    assert explorer.operations() == count_flops(config, B, T, backward=True, **named)
    for stage in range(4):
        expected = training_memory(config, B, T, dtype=dtype, ranks=explorer.processes, sharding=stage, **named)
        assert explorer.memory(stage) == expected


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset.name)
def test_every_preset_has_the_numbers_of_the_formulas(preset):
    for n_bytes, recompute, batch in itertools.product((2, 4), (False, True), (1, 4)):
        check(cost(model=preset.name, number_bytes=n_bytes, recompute=recompute, batch=batch))


def test_random_sizes_have_the_numbers_of_the_formulas():
    draw = random.Random(0)
    for _ in range(300):
        sizes = {"heads": draw.randint(1, 128), "layers": draw.randint(1, 128)}
        sizes |= {"head_width": draw.choice(HEAD_WIDTHS), "kv_heads": draw.choice(SHARED)}
        preset = draw.choice(PRESETS).name
        sizes |= {"length": draw.choice(LENGTHS), "batch": draw.choice(BATCHES), "processes": draw.choice(PROCESSES)}
        explorer = cost(model=preset, **sizes, number_bytes=draw.choice((2, 4)), recompute=draw.random() < 0.5)
        check(explorer)


def test_presets_are_the_published_models():
    for name, published in NAMES.items():
        built = sum(weight.numel() for weight in PUBLISHED[published].build("meta").parameters())
        assert sum(CostExplorer(model=name).parameters().values()) == built
    totals = [sum(CostExplorer(model=name).parameters().values()) for name in ("the paper, base", "the paper, big")]
    assert [round(total / 1e6) for total in totals] == [63, 214]
    assert round(sum(CostExplorer(model="GPT-3").parameters().values()) / 1e9, 1) == 174.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "GPT-5"}, "model: expected one of the paper, base"),
        ({"layers": 0}, "layers: expected an integer from 1 to 128, got 0"),
        ({"heads": 129}, "heads: expected an integer from 1 to 128, got 129"),
        ({"head_width": 63}, "head_width: expected one of"),
        ({"kv_heads": 3}, "kv_heads: expected one of"),
        ({"length": 1000}, "length: expected one of"),
        ({"batch": 3}, "batch: expected one of"),
        ({"number_bytes": 8}, "number_bytes: expected one of"),
        ({"processes": 3}, "processes: expected one of"),
    ],
)
def test_other_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CostExplorer(**options)
