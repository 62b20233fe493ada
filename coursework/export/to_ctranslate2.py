"""Write the folder that CTranslate2 opens: its specification of a Transformer, filled with our weights.

CTranslate2 has the original, GPT-2, T5 and Llama as switches of one specification, as this package has, so that a model
is translated switch by switch, whatever its family.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from course_lib.config import TransformerConfig
from course_lib.files import replace_together
from course_lib.layers import FeedForward, Residual
from course_lib.multi_head import MultiHeadAttention
from course_lib.positions import RotaryEmbedding, frequencies
from course_lib.rotary_scaling import DynamicNTKScaling
from course_lib.transformer import Embedding, LanguageModel, Transformer
from course_lib.variants import T5
from coursework.export.parts import array, before_norm, check_plain, norm_eps, norm_weight, package, projections, unfit
from coursework.export.vocabulary import Vocabulary

LONGEST = 4096  # positions written of a scheme that has any number
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "relu2": "RELU"}
_EXPECTED: dict[str, tuple[Any, ...]] = {
    "norm": ("layer", "rms", "rms_offset", "unit"),
    "norm_place": ("pre", "post"),
    "qk_norm": ("none", "rms", "rms_offset", "unit"),
    "residual": (True,),
    "n_token_types": (0,),
    "local_layers": (None,),
    "local_rotary_base": (None,),
}


def write(model: LanguageModel | Transformer, vocabulary: Vocabulary, out: Path, dtype: str) -> Path:
    """Write the folder; see `coursework.export.export`."""
    engine = package("ctranslate2")
    config = check_plain(model)
    _check(model, config)
    decoder = _stack(engine, model, config, model.decoder.layers, encoder=False)
    decoder.projection.weight = array(model.head.weight)  # type: ignore[arg-type]
    if model.head.bias is not None:
        decoder.projection.bias = array(model.head.bias)  # type: ignore[arg-type]
    if config.logit_scale != 1.0:
        decoder.scale_outputs = np.float32(config.logit_scale)
    if isinstance(model, Transformer):
        encoder = _stack(engine, model, config, model.encoder.layers, encoder=True)
        spec = engine.specs.TransformerSpec(encoder, decoder)
        source = vocabulary.tokens if config.vocab_size == len(vocabulary.tokens) else _numbers(config.vocab_size)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(vocabulary.tokens)
        start = model.metadata.get("decoder_start_token_id", config.pad_id) if isinstance(model, T5) else vocabulary.bos
        spec.config.decoder_start_token = vocabulary.name_of(start)
        # Sources end so in training; tokenizers of `transformers` put the end there themselves.
        ended = vocabulary.content is not None and vocabulary.content.get("post_processor") is not None
        spec.config.add_source_eos = vocabulary.eos is not None and not ended
    else:
        spec = engine.specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(vocabulary.tokens)
    spec.config.layer_norm_epsilon = norm_eps(config)
    for name in ("bos", "eos", "unk"):
        setattr(spec.config, f"{name}_token", vocabulary.name_of(getattr(vocabulary, name)))
    spec.validate()
    spec.optimize(quantization=dtype)
    with replace_together(out) as staged:
        spec.save(str(staged))
        if vocabulary.json is not None:
            (staged / "tokenizer.json").write_text(vocabulary.json, encoding="utf-8")
    return out


def _numbers(size: int | None) -> list[str]:
    return [f"<{id}>" for id in range(size or 0)]


def _check(model: nn.Module, config: TransformerConfig) -> None:
    """Refuse what CTranslate2 has no switch for."""
    problems = unfit(config, _EXPECTED)
    if config.gated and config.activation == "relu2":
        problems.append("activation: expected another than 'relu2' in a gated feed-forward")
    if config.norm_place == "post" and config.setting("final_norm"):
        problems.append("final_norm: expected False with norm_place='post', got True")
    pair = isinstance(model, Transformer)
    if pair:
        alone: dict[str, tuple[Any, ...]] = {"qk_norm": ("none",), "rotary_scaling": (None,), "window": (None,)}
        problems += [f"{problem} with an encoder" for problem in unfit(config, alone)]
    # It has ALiBi for decoders only, and relative positions for one query at a time, not for a prompt.
    wrong, place = ("alibi", "with an encoder") if pair else ("relative", "without an encoder")
    if config.positions == wrong:
        problems.append(f"positions: expected others than {wrong!r} {place}")
    if isinstance(config.rotary_scaling, DynamicNTKScaling):
        problems.append("rotary_scaling: expected one that does not depend on the length, got a DynamicNTKScaling")
    if problems:
        raise ValueError(f"CTranslate2 cannot run this model. {'; '.join(problems)}. ONNX takes any config")


def _stack(engine: Any, model: Any, config: TransformerConfig, layers: Any, *, encoder: bool) -> Any:
    """The specification of the encoder or the decoder, with weights."""
    stack = model.encoder if encoder else model.decoder
    options = {
        "pre_norm": config.norm_place == "pre",
        "no_final_norm": not config.setting("final_norm"),
        "activation": engine.specs.Activation[_ACTIVATIONS[config.activation]],
        "layernorm_embedding": config.embedding_norm,
        "relative_attention_bias": config.positions == "relative",
        "ffn_glu": config.gated or config.activation == "relu2",
        "rms_norm": config.norm != "layer",
        "num_heads_kv": None if config.setting("n_kv_heads") == config.n_heads else config.setting("n_kv_heads"),
        "head_dim": config.setting("d_head"),
        "qk_norm": config.qk_norm != "none",
        "sliding_window": config.window,
        **_rotary(engine, config),
    }
    if encoder:
        spec = engine.specs.TransformerEncoderSpec(len(layers), config.n_heads, **options)
        _embed(spec, spec.embeddings[0], model.source_embedding, config)
    else:
        cross = isinstance(model, Transformer)
        options |= {"with_encoder_attention": cross, "alibi": config.positions == "alibi"}
        spec = engine.specs.TransformerDecoderSpec(len(layers), config.n_heads, **options)
        _embed(spec, spec.embeddings, model.embedding, config)
    if config.setting("final_norm"):
        _norm(spec.layer_norm, stack.final_norm, config.d_model)
    table = array(stack.positions.weight) if config.positions == "relative" else None
    for into, layer in zip(spec.layer, layers, strict=True):
        _attention(into.self_attention, layer.self_attention, layer.self_attention_residual, config)
        if isinstance(stack.positions, RotaryEmbedding) and config.rotary_scaling is not None:
            _scaled_rotary(into.self_attention, stack.positions, config)
        if table is not None:
            into.self_attention.relative_attention_bias = table
            into.self_attention.relative_attention_max_distance = np.int32(config.relative_max_distance)
        if not encoder and layer.cross_attention is not None:
            _attention(into.attention, layer.cross_attention, layer.cross_attention_residual, config)
        _feed_forward(into.ffn, layer.feed_forward, layer.feed_forward_residual, config)
    return spec


def _rotary(engine: Any, config: TransformerConfig) -> dict[str, Any]:
    if config.positions != "rotary":
        return {}
    options: dict[str, Any] = {
        "rotary_dim": config.setting("d_head"),
        "rotary_interleave": config.rotary_layout == "interleaved",
        "rotary_base": config.rotary_base,
    }
    if config.rotary_scaling is not None:
        # Of the scalings there, this one takes a divisor for each frequency, and with equal lengths no other factor.
        options["rotary_scaling_type"] = engine.specs.RotaryScalingType.Su
        options |= dict.fromkeys(("original_max_position_embeddings", "max_position_embeddings"), config.max_length)
    return options


def _embed(spec: Any, into: Any, embedding: Embedding, config: TransformerConfig) -> None:
    into.weight = array(embedding.tokens.weight)  # type: ignore[union-attr]
    spec.scale_embeddings = config.scale_embeddings
    if embedding.positions is not None:
        with torch.no_grad():
            count = embedding.max_length or max(LONGEST, config.max_length)
            positions = embedding.positions(torch.arange(count, device=embedding.tokens.weight.device))  # type: ignore[union-attr]
        spec.position_encodings.encodings = array(positions)  # (positions, D)
    elif config.positions == "none":
        spec.position_encodings.encodings = np.zeros((max(LONGEST, config.max_length), config.d_model), np.float32)
    if config.embedding_norm:
        _norm(spec.layernorm_embedding, embedding.norm, config.d_model)


def _norm(into: Any, norm: nn.Module, width: int) -> None:
    into.gamma = norm_weight(norm, width)
    if hasattr(into, "beta"):
        bias = getattr(norm, "bias", None)
        into.beta = np.zeros(width, np.float32) if bias is None else array(bias)


def _linear(into: Any, weight: np.ndarray, bias: np.ndarray | None) -> None:
    into.weight = weight
    if bias is not None:
        into.bias = bias


def _attention(into: Any, attention: MultiHeadAttention, residual: Residual, config: TransformerConfig) -> None:
    """Self-attention has one map of queries, keys and values; cross-attention one of queries and one of the rest."""
    _norm(into.layer_norm, residual.norm, config.d_model)
    weights, biases = (projections(attention, kind, before_norm(config)) for kind in ("weight", "bias"))
    starts = [0] if len(into.linear) == 2 else [0, 1]
    for linear, start, end in zip(into.linear, starts, [*starts[1:], 3], strict=False):
        bias = None if biases is None else np.concatenate(biases[start:end])
        _linear(linear, np.concatenate(weights[start:end]), bias)  # type: ignore[index]
    output = attention.output
    _linear(into.linear[-1], array(output.weight), None if output.bias is None else array(output.bias))
    if config.attention_scale is not None:
        into.queries_scale = np.float32(config.attention_scale)
    if attention.query_norm is not None and attention.key_norm is not None:
        _norm(into.q_norm, attention.query_norm, config.setting("d_head"))
        _norm(into.k_norm, attention.key_norm, config.setting("d_head"))


def _scaled_rotary(into: Any, rotary: RotaryEmbedding, config: TransformerConfig) -> None:
    divisors = array(frequencies(config.setting("d_head"), config.rotary_base) / rotary.values.cpu())
    into.rotary_scaling_long_factor = into.rotary_scaling_short_factor = divisors
    scale = 1 / config.setting("d_head") ** 0.5 if config.attention_scale is None else config.attention_scale
    into.queries_scale = np.float32(scale * rotary.stretch**2)  # of queries and keys both


def _feed_forward(into: Any, part: FeedForward, residual: Residual, config: TransformerConfig) -> None:
    _norm(into.layer_norm, residual.norm, config.d_model)
    maps = {"linear_0": part.up if part.gate is None else part.gate, "linear_1": part.down}
    if hasattr(into, "linear_0_noact"):
        maps["linear_0_noact"] = part.up  # relu(x) squared is relu(x) * x: a gate that is its own input
    for name, linear in maps.items():
        _linear(getattr(into, name), array(linear.weight), None if linear.bias is None else array(linear.bias))
