"""Llama: the decoder alone, with rotary positions, RMSNorm, a gated feed-forward, grouped heads and no biases.

Mistral is the same with a window. Sources: Touvron et al. 2023, section 2.2; Dubey et al. 2024, section 3.2 (Llama 3);
Jiang et al. 2023 (Mistral), section 2.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from course_lib.config import TransformerConfig
from course_lib.rotary_scaling import DynamicNTKScaling, LinearScaling, Llama3Scaling, NTKScaling
from course_lib.transformer import LanguageModel
from course_lib.variants.checkpoint import Weights
from course_lib.variants.names import NameMap
from course_lib.variants.published_model import PublishedModel, activation_here, activation_there, pad_id_of, refuse


class Llama(PublishedModel, LanguageModel):
    """Llama 1 to 3, and Mistral with `window`; `Llama(Llama.configure(d_model=..., ...))` builds one with new weights.

    Called as `LanguageModel` is. `config.max_length` is the trained length, which only `DynamicNTKScaling` looks at.
    """

    model_types = ("llama", "mistral")
    switches: ClassVar[Mapping[str, Any]] = {
        "n_encoder_layers": 0,
        "positions": "rotary",
        "activation": "silu",
        "gated": True,
        "norm": "rms",
        "norm_place": "pre",
        "norm_eps": 1e-6,
        "bias": False,
        "scale_embeddings": False,
        "tie_embeddings": False,
        "dropout": 0.0,
        "init": "normal",
    }
    free = frozenset(
        {"d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "n_decoder_layers", "vocab_size", "max_length"}
        | {"rotary_base", "rotary_scaling", "window", "activation", "norm_eps", "attention_bias", "feed_forward_bias"}
        | {"tie_embeddings", "pad_id"}
    )
    names = NameMap(
        prefix="model.",
        top={
            "embedding.tokens": "model.embed_tokens",
            "decoder.final_norm": "model.norm",
            "head": "lm_head",
        },
        layers={
            "decoder": (
                "model.layers.{}",
                {
                    "self_attention_residual.norm": "input_layernorm",
                    "self_attention.query": "self_attn.q_proj",
                    "self_attention.key": "self_attn.k_proj",
                    "self_attention.value": "self_attn.v_proj",
                    "self_attention.output": "self_attn.o_proj",
                    "feed_forward_residual.norm": "post_attention_layernorm",
                    "feed_forward.gate": "mlp.gate_proj",
                    "feed_forward.up": "mlp.up_proj",
                    "feed_forward.down": "mlp.down_proj",
                },
            )
        },
        ignored=(r"\.rotary_emb\.inv_freq$",),
        ties={"lm_head.weight": "model.embed_tokens.weight"},
    )

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`; no arguments."""
        length = found.get("max_position_embeddings", 2048)
        base, scaling = _read_rotary(found, length)
        changes = {
            "d_model": found["hidden_size"],
            "n_heads": found["num_attention_heads"],
            "n_kv_heads": found.get("num_key_value_heads"),
            "d_head": found.get("head_dim"),
            "d_ff": found["intermediate_size"],
            "n_decoder_layers": found["num_hidden_layers"],
            "vocab_size": found["vocab_size"],
            "pad_id": pad_id_of(found),
            "max_length": length,
            "rotary_base": base,
            "rotary_scaling": scaling,
            "window": found.get("sliding_window") if found["model_type"] == "mistral" else None,
            "activation": activation_here(found.get("hidden_act", "silu")),
            "norm_eps": found.get("rms_norm_eps", 1e-6),
            "attention_bias": found.get("attention_bias", False),
            "feed_forward_bias": found.get("mlp_bias", False),
            "tie_embeddings": found.get("tie_word_embeddings", False),
            "attention_dropout": found.get("attention_dropout", 0.0),
            "init_std": found.get("initializer_range", 0.02),
        }
        return changes, {}

    def write(self) -> dict[str, Any]:
        """The published config; its entries for rotary positions in the old form and in the new one."""
        config = self.config
        mistral = config.window is not None
        if mistral and (config.attention_bias or config.feed_forward_bias):
            raise ValueError("window: expected None with biases, Mistral has none")
        base, scaling = _write_rotary(config)
        return {
            "model_type": "mistral" if mistral else "llama",
            "architectures": ["MistralForCausalLM" if mistral else "LlamaForCausalLM"],
            "hidden_size": config.d_model,
            "num_attention_heads": config.n_heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_width,
            "intermediate_size": config.ff_width,
            "num_hidden_layers": config.n_decoder_layers,
            "vocab_size": config.vocab_size,
            "pad_token_id": self.metadata.get("pad_token_id", config.pad_id),
            "max_position_embeddings": config.max_length,
            "rope_theta": base,
            "rope_scaling": scaling,
            "rope_parameters": {"rope_theta": base, **(scaling or {"rope_type": "default"})},
            "sliding_window": config.window,
            "hidden_act": activation_there(config.activation),
            "rms_norm_eps": config.norm_eps,
            "attention_bias": bool(config.attention_bias),
            "mlp_bias": bool(config.feed_forward_bias),
            "tie_word_embeddings": config.tie_embeddings,
            "attention_dropout": config.attention_drop,
            "initializer_range": config.init_std,
        }


def _read_rotary(found: Mapping[str, Any], length: int) -> tuple[float, Any]:
    """Base and scaling, in the form of `rope_parameters` or the older `rope_theta` and `rope_scaling`."""
    said = found.get("rope_parameters") or found.get("rope_scaling") or {}
    base = said.get("rope_theta", found.get("rope_theta", 10000.0))
    kind = said.get("rope_type", said.get("type", "default"))
    refuse(said, partial_rotary_factor=1.0)
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, LinearScaling(said["factor"])
    if kind == "dynamic":
        return base, DynamicNTKScaling(said["factor"], length)
    if kind == "llama3":
        return base, Llama3Scaling(
            factor=said["factor"],
            low_turns=said["low_freq_factor"],
            high_turns=said["high_freq_factor"],
            original_length=said.get("original_max_position_embeddings", length),
        )
    raise ValueError(f"rope_type: expected 'default', 'linear', 'dynamic' or 'llama3', got {kind!r}")


def _write_rotary(config: TransformerConfig) -> tuple[float, dict[str, Any] | None]:
    scaling, base = config.rotary_scaling, config.rotary_base
    if scaling is None:
        return base, None
    if isinstance(scaling, NTKScaling):  # nothing but a larger base
        width = config.head_width
        return base * scaling.factor ** (width / (width - 2)), None
    if isinstance(scaling, LinearScaling):
        return base, {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, DynamicNTKScaling) and scaling.original_length == config.max_length:
        return base, {"rope_type": "dynamic", "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        return base, {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_turns,
            "high_freq_factor": scaling.high_turns,
            "original_max_position_embeddings": scaling.original_length,
        }
    raise ValueError(
        "rotary_scaling: expected LinearScaling, NTKScaling, Llama3Scaling, or DynamicNTKScaling of "
        f"original_length={config.max_length} like max_length, got {scaling!r}"
    )
