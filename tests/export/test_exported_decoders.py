"""Decoders in the engines that serve: each family in each format writes the tokens that it writes here."""

import numpy as np
import pytest
import torch
from exported import DECODE, FAMILIES, PRE, RMS, SIZES, counting, decoder, in_llama_cpp, in_transformers, ours, shaken
from torch import nn

from course_lib.rotary_scaling import DynamicNTKScaling, LinearScaling, Llama3Scaling, YarnScaling
from course_lib.variants import GPT
from course_lib.variants.packed import pack_
from coursework.export import FORMATS, export

SWIGLU = {**RMS, "activation": "silu", "gated": True}
# Decoders of the course by what they add to the families, and the formats that have it.
BOTH = {
    "norms and squared relu": {**RMS, "activation": "relu2"},
    "as course train lm": {**SWIGLU, "norm": "unit", "qk_norm": "unit", "rotary_base": 100.0, "window": 28},
    "unit norms, squared relu": {**RMS, "activation": "relu2", "norm": "unit", "rotary_base": 100.0},
    "factors": {**RMS, "activation": "relu2", "scale_embeddings": True, "logit_scale": 0.5, "attention_scale": 0.3},
    "rotary, layer norm, gelu": {**PRE, "activation": "gelu_tanh"},
    "rotary, layer norm, squared relu, no bias": {**PRE, "activation": "relu2", "bias": False},
    "sinusoids": {**PRE, "activation": "gelu_tanh", "positions": "sinusoidal"},
    "neighbours turned, one key head": {
        **SWIGLU, "bias": True, "norm": "rms_offset", "rotary_layout": "interleaved", "n_kv_heads": 1, "d_head": 24
    },
    "neighbours turned, heads normed": {**SWIGLU, "qk_norm": "rms", "rotary_layout": "interleaved"},
    "heads of unit size": {**SWIGLU, "qk_norm": "unit", "norm_eps": 1e-3, "attention_scale": 0.4},
    "all norms of unit size": {**SWIGLU, "norm": "unit", "qk_norm": "unit"},
    "positions divided": {**SWIGLU, "rotary_scaling": LinearScaling(2.0)},
    "Llama 3's scaling": {**SWIGLU, "rotary_scaling": Llama3Scaling(4.0, original_length=16)},
    "YaRN": {**SWIGLU, "rotary_scaling": YarnScaling(4.0, original_length=16)},
}  # fmt: skip
CTRANSLATE2 = {
    "gelu": {**RMS, "activation": "gelu"},
    "unit norms of heads, squared relu": {
        **RMS,
        "norm": "unit",
        "qk_norm": "unit",
        "activation": "relu2",
        "rotary_base": 100.0,
    },
    "a window": {**RMS, "activation": "relu2", "window": 6},
    "the paper's": {"n_encoder_layers": 0},
    "ALiBi and a norm of embeddings": {**PRE, "activation": "gelu_tanh", "positions": "alibi", "embedding_norm": True},
    "no positions, a bias in the head": {**PRE, "activation": "gelu", "positions": "none", "head_bias": True},
}
MODELS = {
    **FAMILIES,
    **{name: lambda switches=switches: decoder(**switches) for name, switches in {**BOTH, **CTRANSLATE2}.items()},
}
CASES = [(name, to) for name in MODELS for to in DECODE if to == "ctranslate2" or name not in CTRANSLATE2]
MODELS |= {
    "heads of unit size, another eps": lambda: decoder(**SWIGLU, qk_norm="unit", norm_eps=1e-3, d_head=24),
    "norms by their difference from 1": lambda: decoder(**{**SWIGLU, "norm": "rms_offset"}, qk_norm="rms_offset"),
    "a short window": lambda: decoder(**SWIGLU, qk_norm="rms", window=6),
}
OPENED = [*FAMILIES, "as course train lm", "all norms of unit size", *list(MODELS)[-3:]]
CASES += [(name, "transformers") for name in OPENED]


@pytest.mark.parametrize(("name", "to"), CASES)
def test_the_engine_writes_the_same_tokens(name, to, tmp_path):
    model = shaken(MODELS[name])
    expected, written = (
        ours(model),
        (DECODE | {"transformers": in_transformers})[to](export(model, to=to, out=tmp_path)),
    )
    print(f"{to:<12} {name:<42} {len(expected)} tokens compared")
    assert written == expected


@pytest.mark.parametrize("to", DECODE)
def test_rounded_weights_take_less_and_write_the_same(to, tmp_path):
    model = counting()
    sizes, written = [], []
    for dtype in ("float32", "float16", "int8"):
        path = export(model, to=to, out=tmp_path / dtype, dtype=dtype)
        sizes.append((path if path.is_file() else path / "model.bin").stat().st_size)
        written.append(DECODE[to](path))
    assert sizes[0] > 1.7 * sizes[1] > 2.5 * sizes[2]
    assert ours(model) == written[0] == written[1] == written[2]


def test_weights_of_8_bits_are_those_of_the_model(tmp_path):
    import gguf

    model = shaken(FAMILIES["GPT"])
    reader = gguf.GGUFReader(export(model, to="gguf", out=tmp_path, dtype="int8"))
    stored = {tensor.name: tensor for tensor in reader.tensors}
    up = stored["blk.1.ffn_up.weight"]
    rounded = gguf.quants.dequantize(up.data, up.tensor_type)
    given = model.decoder.layers[1].feed_forward.up.weight.detach().numpy()
    assert up.tensor_type.name == "Q8_0"
    assert 0 < np.abs(rounded - given).max() <= np.abs(given).max() / 127
    assert stored["blk.1.ffn_norm.weight"].tensor_type.name == "F32"


@pytest.mark.parametrize(
    ("to", "switches", "expected"),
    [
        ("gguf", {**RMS, "activation": "gelu"}, r"nearest is arcee: activation: expected 'relu2', got 'gelu'"),
        ("gguf", {**SWIGLU, "window": 4, "local_layers": (True, False)}, r"is llama: local_layers: expected None, got"),
        ("transformers", {**SWIGLU, "logit_scale": 0.5}, r"nearest is Llama: logit_scale: expected 1.0, got 0.5"),
        ("gguf", {**PRE, "activation": "relu2", "d_head": 8}, r"d_head: expected 16 for nemotron, got 8"),
        ("gguf", {**SWIGLU, "rotary_scaling": DynamicNTKScaling(2.0, 16)}, r"rotary_scaling: .* DynamicNTKScaling"),
        ("ctranslate2", {**RMS, "window": 4, "local_layers": (True, False)}, r"local_layers: expected None"),
        ("ctranslate2", {**RMS, "positions": "relative"}, r"positions: expected others than 'relative' without an enc"),
        ("ctranslate2", {**SWIGLU, "activation": "relu2"}, r"activation: expected another than 'relu2'"),
    ],
)  # fmt: skip
def test_what_an_engine_lacks_is_named(to, switches, expected, tmp_path):
    with pytest.raises(ValueError, match=expected):
        export(decoder(**switches), to=to, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_bad_arguments_are_named(tmp_path, monkeypatch):
    model = GPT(GPT.configure(**SIZES))
    with pytest.raises(ValueError, match=r"to: expected one of transformers, .*got 'onx'"):
        export(model, to="onx", out=tmp_path)
    with pytest.raises(ValueError, match=r"dtype: expected one of float32, .*got 'int4'"):
        export(model, to="gguf", out=tmp_path, dtype="int4")
    with pytest.raises(ValueError, match=r"model: expected a LanguageModel for llama.cpp, got a Linear"):
        export(nn.Linear(2, 2), to="gguf", out=tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        export(tmp_path / "nowhere/at/all", to="gguf", out=tmp_path)
    monkeypatch.setattr("coursework.export.parts.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"gguf is missing; install it with: pip install 'course-lib\[engines\]'"):
        export(model, to="gguf", out=tmp_path)
    monkeypatch.undo()
    pack_(model)
    with pytest.raises(ValueError, match=r"expected a trained map, got a PackedLinear; export before"):
        export(model, to="gguf", out=tmp_path)


def test_tables_that_no_engine_has_are_named(tmp_path):
    model = decoder(**RMS, activation="relu2")
    model.embedding.pairs = nn.Embedding(4, 4)
    for to in FORMATS:
        with pytest.raises(ValueError, match=r"embedding\.pairs: expected tokens, positions and a norm alone"):
            export(model, to=to, out=tmp_path)


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    model = shaken(FAMILIES["GPT"])
    path = export(model, to="gguf", out=tmp_path)
    before = path.read_bytes()

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf.GGUFWriter.write_tensors_to_file", full)
    with pytest.raises(OSError, match="No space"):
        export(model, to="gguf", out=tmp_path)
    assert path.read_bytes() == before
    assert in_llama_cpp(path) == ours(model)
    assert torch.is_grad_enabled()
