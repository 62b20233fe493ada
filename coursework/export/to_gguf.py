"""Write the GGUF file that llama.cpp opens: the architecture there that computes what the config says, and weights.

llama.cpp has a program for each architecture, so a model fits where all its switches are those of one. Whatever a
weight can take up is put into it: factors of embeddings, scores and logits, and the order of rotary pairs. None of them
has a window; a model with one is written with a context as long as that, within which all is seen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.config import TransformerConfig
from course_lib.files import replace_together
from course_lib.positions import RotaryEmbedding, frequencies
from course_lib.rotary_scaling import DynamicNTKScaling
from course_lib.transformer import LanguageModel
from coursework.export.parts import array, before_norm, check_plain, norm_eps, norm_weight, package, projections, unfit
from coursework.export.vocabulary import Vocabulary

FILE = "model.gguf"
_ANY: dict[str, tuple[Any, ...]] = {
    "norm_place": ("pre",),
    "final_norm": (True,),
    "residual": (True,),
    "embedding_norm": (False,),
    "head_bias": (False,),
    "n_token_types": (0,),
    "local_layers": (None,),
}
_LAYER: dict[str, tuple[Any, ...]] = {**_ANY, "norm": ("layer",), "qk_norm": ("none",), "gated": (False,)}
_RMS: dict[str, tuple[Any, ...]] = {**_ANY, "norm": ("rms", "rms_offset", "unit"), "positions": ("rotary",)}
_NO_BIAS: dict[str, tuple[Any, ...]] = {"attention_bias": (False,), "qkv_bias": (False,), "feed_forward_bias": (False,)}
_SWIGLU: dict[str, tuple[Any, ...]] = {"activation": ("silu",), "gated": (True,)}
_UNSCALED: dict[str, tuple[Any, ...]] = {"positions": ("rotary",), "rotary_scaling": (None,)}
# What each architecture of llama.cpp computes, as fields of the config.
ARCHITECTURES: dict[str, Mapping[str, tuple[Any, ...]]] = {
    "gpt2": {**_LAYER, "positions": ("learned", "sinusoidal"), "activation": ("gelu_tanh",)},
    "llama": {**_RMS, **_SWIGLU, "qk_norm": ("none",)},
    "qwen3": {**_RMS, **_UNSCALED, **_NO_BIAS, **_SWIGLU, "qk_norm": ("rms", "rms_offset", "unit")},
    "arcee": {**_RMS, **_NO_BIAS, "qk_norm": ("none",), "activation": ("relu2",), "gated": (False,)},
    "starcoder2": {**_LAYER, **_UNSCALED, "activation": ("gelu_tanh",)},
    "nemotron": {**_LAYER, **_UNSCALED, "activation": ("relu2",)},
}
_WITH_LAYER_NORM = ("gpt2", "starcoder2", "nemotron")  # these have all biases
_NEIGHBOURS = ("llama", "arcee")  # in these, rotary pairs are neighbours; in the others, half a head apart
_TYPES = {"float32": "F32", "float16": "F16", "int8": "Q8_0"}


def architecture(config: TransformerConfig) -> str:
    """The architecture of llama.cpp that computes what the config says. Raises ValueError if there is none."""
    problems = {name: unfit(config, expected) for name, expected in ARCHITECTURES.items()}
    nearest = min(problems, key=lambda name: len(problems[name]))
    if problems[nearest]:
        raise ValueError(
            f"llama.cpp has no architecture for this config. The nearest is {nearest}: "
            f"{'; '.join(problems[nearest])}. CTranslate2 and ONNX take more"
        )
    width = config.setting("d_head")
    if nearest in _WITH_LAYER_NORM and width * config.n_heads != config.d_model:
        raise ValueError(f"d_head: expected {config.d_model // config.n_heads} for {nearest}, got {width}")
    if isinstance(config.rotary_scaling, DynamicNTKScaling) and config.positions == "rotary":
        raise ValueError("rotary_scaling: expected one that does not depend on the length, got a DynamicNTKScaling")
    return nearest


def write(model: LanguageModel, vocabulary: Vocabulary, out: Path, dtype: str) -> Path:
    """Write the file; see `coursework.export.export`."""
    gguf = package("gguf")
    config = check_plain(model)
    name = architecture(config)
    with replace_together(out) as staged:
        writer = gguf.GGUFWriter(str(staged / FILE), name)
        _sizes(gguf, writer, config, name, dtype)
        _tokens(gguf, writer, vocabulary)
        for tensor, numbers in _tensors(model, config, name).items():
            kind = gguf.GGMLQuantizationType[_kind(tensor, numbers, dtype)]
            rounded = gguf.quants.quantize(np.ascontiguousarray(numbers, dtype=np.float32), kind)
            writer.add_tensor(tensor, rounded, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return out / FILE


def _kind(tensor: str, numbers: np.ndarray, dtype: str) -> str:
    """Norms, biases and tables of positions stay whole; Q8_0 rounds 32 numbers of a row together."""
    if numbers.ndim < 2 or tensor.startswith("position_embd"):
        return "F32"
    return "F16" if dtype == "int8" and numbers.shape[-1] % 32 else _TYPES[dtype]


def _sizes(gguf: Any, writer: Any, config: TransformerConfig, name: str, dtype: str) -> None:
    writer.add_context_length(min(config.max_length, config.window or config.max_length))
    writer.add_embedding_length(config.d_model)
    writer.add_block_count(config.n_decoder_layers)
    writer.add_feed_forward_length(config.setting("d_ff"))
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.setting("n_kv_heads"))
    writer.add_key_length(config.setting("d_head"))
    writer.add_value_length(config.setting("d_head"))
    writer.add_vocab_size(config.setting("target_vocab_size"))
    writer.add_file_type(gguf.LlamaFileType[{"F32": "ALL_F32"}.get(_TYPES[dtype], f"MOSTLY_{_TYPES[dtype]}")])
    if name in _WITH_LAYER_NORM:
        writer.add_layer_norm_eps(config.norm_eps)
    else:
        writer.add_layer_norm_rms_eps(norm_eps(config))
    if config.positions == "rotary":
        writer.add_rope_dimension_count(config.setting("d_head"))
        writer.add_rope_freq_base(config.rotary_base)


def _tokens(gguf: Any, writer: Any, vocabulary: Vocabulary) -> None:
    """The tokenizer, as llama.cpp knows it: byte-pair encoding, or pieces of which none is longer than a character."""
    tokens, kinds = vocabulary.tokens, gguf.TokenType
    if vocabulary.kind == "other":
        raise ValueError(
            "tokenizer: expected one of the course, or byte-pair encoding of bytes as in GPT-2, Llama 3 or Qwen; "
            "llama.cpp's own convert_hf_to_gguf.py knows more"
        )
    types = [kinds.CONTROL if id in vocabulary.special else kinds.NORMAL for id in range(len(tokens))]
    ids = {name: getattr(vocabulary, name) for name in ("bos", "eos", "unk", "pad")}
    if vocabulary.kind == "bytes":
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(vocabulary.words)
        writer.add_token_merges(list(vocabulary.merges))
    elif vocabulary.kind == "characters":
        if "▁" in tokens:
            raise ValueError("tokenizer: llama.cpp writes the blank as '▁', which is a character of this vocabulary")
        tokens = ["▁" if token == " " else token for token in tokens]
        types[vocabulary.unk or 0] = kinds.UNKNOWN
        writer.add_tokenizer_model("t5")
        writer.add_add_space_prefix(False)
        writer.add_remove_extra_whitespaces(False)
        writer.add_token_scores([-1.0] * len(tokens))
    else:
        # Of the tokenizers there, BERT's alone gets by without an end; what is not known must be an id all the same.
        writer.add_tokenizer_model("bert")
        writer.add_sep_token_id(0)
        writer.add_mask_token_id(0)
        ids |= {name: ids[name] or 0 for name in ("bos", "unk", "pad")}
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, id in ids.items():
        if id is not None:
            getattr(writer, f"add_{name}_token_id")(id)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_add_sep_token(False)


def _tensors(model: LanguageModel, config: TransformerConfig, name: str) -> dict[str, np.ndarray]:
    """All weights by their names in GGUF."""
    tokens, positions = model.embedding.tokens, model.embedding.positions
    if tokens is None:
        raise ValueError("vocab_size: expected a model of tokens, got one of vectors")
    found = {"token_embd.weight": array(tokens.weight) * tokens.factor}
    head = array(model.head.weight) * config.logit_scale  # type: ignore[arg-type]
    if name == "nemotron" or not np.array_equal(head, found["token_embd.weight"]):
        found["output.weight"] = head
    if positions is not None:
        with torch.no_grad():
            where = torch.arange(config.max_length, device=tokens.weight.device)
            found["position_embd.weight"] = array(positions(where))
    rotary = model.decoder.positions
    stretch = rotary.stretch if isinstance(rotary, RotaryEmbedding) else 1.0
    if isinstance(rotary, RotaryEmbedding) and config.rotary_scaling is not None:
        # llama.cpp divides its own frequencies by these.
        plain = frequencies(config.setting("d_head"), config.rotary_base)
        found["rope_freqs.weight"] = array(plain / rotary.values.cpu())
    found |= _normed("output_norm", model.decoder.final_norm, config, name)
    layers: Any = model.decoder.layers
    for number, layer in enumerate(layers):
        parts = _normed("attn_norm", layer.self_attention_residual.norm, config, name)
        parts |= _attention(layer.self_attention, config, name, stretch)
        parts |= _normed("ffn_norm", layer.feed_forward_residual.norm, config, name)
        maps = {"ffn_up": layer.feed_forward.up, "ffn_gate": layer.feed_forward.gate}
        for part, linear in {**maps, "ffn_down": layer.feed_forward.down}.items():
            if linear is not None:
                parts |= _linear(part, array(linear.weight), linear.bias, name)
        found |= {f"blk.{number}.{part}": numbers for part, numbers in parts.items()}
    return found


def _normed(part: str, norm: Any, config: TransformerConfig, name: str) -> dict[str, np.ndarray]:
    found = {f"{part}.weight": norm_weight(norm, config.d_model)}
    return found | _bias(part, norm.bias if name in _WITH_LAYER_NORM else None, config.d_model, name)


def _linear(part: str, weight: np.ndarray, bias: Tensor | None, name: str) -> dict[str, np.ndarray]:
    return {f"{part}.weight": weight, **_bias(part, bias, len(weight), name)}


def _bias(part: str, bias: Tensor | None, size: int, name: str) -> dict[str, np.ndarray]:
    """A bias, zero where the architecture has one and the model has none."""
    if bias is None:
        return {f"{part}.bias": np.zeros(size, np.float32)} if name in _WITH_LAYER_NORM else {}
    return {f"{part}.bias": array(bias)}


def _attention(attention: Any, config: TransformerConfig, name: str, stretch: float) -> dict[str, np.ndarray]:
    """The maps of attention: llama.cpp scales scores by 1 / sqrt(E) and turns pairs as the architecture says."""
    E = config.setting("d_head")
    scale = 1.0 if config.attention_scale is None else config.attention_scale * E**0.5
    factors = (scale * stretch, stretch, 1.0)  # of queries, keys and values
    normed = config.qk_norm != "none"  # a norm after the map would undo a factor, so it takes the factor itself
    found: dict[str, np.ndarray] = {}
    rows: dict[str, list[np.ndarray]] = {}
    for kind in ("weight", "bias"):
        parts = projections(attention, kind, before_norm(config) if normed else factors)
        if parts is not None:
            rows[kind] = [*(_pairs(part, config, name) for part in parts[:2]), parts[2]]
    if name in _WITH_LAYER_NORM and "bias" not in rows:
        rows["bias"] = [np.zeros(len(part), np.float32) for part in rows["weight"]]
    for kind, parts in rows.items():
        if name == "gpt2":
            found[f"attn_qkv.{kind}"] = np.concatenate(parts)
        else:
            found |= {f"attn_{part}.{kind}": numbers for part, numbers in zip("qkv", parts, strict=True)}
    if normed:
        for part, norm, factor in zip("qk", (attention.query_norm, attention.key_norm), factors, strict=False):
            found[f"attn_{part}_norm.weight"] = _pairs(norm_weight(norm, E), config, name) * np.float32(factor)
    return found | _linear("attn_output", array(attention.output.weight), attention.output.bias, name)


def _pairs(rows: np.ndarray, config: TransformerConfig, name: str) -> np.ndarray:
    """Rows (heads * E, ...) in the order in which the architecture pairs them: neighbours, or half a head apart."""
    wanted = "interleaved" if name in _NEIGHBOURS else "half"
    if config.positions != "rotary" or config.rotary_layout == wanted:
        return rows
    E, rest = config.setting("d_head"), rows.shape[1:]
    shape = (-1, 2, E // 2) if wanted == "interleaved" else (-1, E // 2, 2)
    return rows.reshape(*shape, *rest).swapaxes(1, 2).reshape(rows.shape)
