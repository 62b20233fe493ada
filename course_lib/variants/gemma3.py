"""Gemma 3, for text: five local layers to each global one, norms before and after each sublayer, gated GELU.

Local layers see a window and turn queries and keys by a faster rotary base; only the global ones are stretched by a
scaling. The norms keep their weight as its difference from 1, those of queries and keys too.

Source: Gemma Team 2025, "Gemma 3 Technical Report", section 2.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from course_lib.config import TransformerConfig
from course_lib.transformer import LanguageModel
from course_lib.variants.config_entries import ACTIVATIONS, Entry, read_scaling, refuse, write_scaling
from course_lib.variants.folders import Weights
from course_lib.variants.llama import DECODER_ENTRIES, DECODER_NAMES, Llama
from course_lib.variants.names import NameTable, layer_names
from course_lib.variants.published_model import Published, PublishedModel, register

_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS}  # the first name of several is written


class TwoRotaryEntries:
    """Base and scaling of the global layers, base of the local ones; in the form of one `rope_parameters` or older."""

    fields = ("rotary_base", "rotary_scaling", "local_rotary_base")

    def read(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """From a published config to the fields."""
        said = found.get("rope_parameters") or {}
        everywhere = said.get("full_attention") or found.get("rope_scaling") or {}
        local = said.get("sliding_attention") or {}
        refuse(local, rope_type="default")
        return {
            "rotary_base": everywhere.get("rope_theta", found.get("rope_theta", 1e6)),
            "rotary_scaling": read_scaling(everywhere, found.get("max_position_embeddings", 131_072)),
            "local_rotary_base": local.get("rope_theta", found.get("rope_local_base_freq", 10_000.0)),
        }

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """From our config to the entries."""
        if config.local_rotary_base is None and config.rotary_scaling is not None:
            raise ValueError("local_rotary_base: expected a number beside rotary_scaling, local layers are not scaled")
        base, scaling = write_scaling(config)
        local = config.rotary_base if config.local_rotary_base is None else config.local_rotary_base
        return {
            "rope_theta": base,
            "rope_scaling": scaling,
            "rope_local_base_freq": local,
            "rope_parameters": {
                "full_attention": {"rope_theta": base, **(scaling or {"rope_type": "default"})},
                "sliding_attention": {"rope_theta": local, "rope_type": "default"},
            },
        }


class Gemma3(PublishedModel, LanguageModel):
    """Gemma 3; `Gemma3(Gemma3.configure(d_model=..., ...))` builds one with new weights. Called as `LanguageModel`."""

    model_types = ("gemma3_text",)
    architecture = "Gemma3ForCausalLM"
    switches: ClassVar[Mapping[str, Any]] = {
        **Llama.switches,
        "rotary_base": 1e6,
        "window": 1024,
        "local_layers": (True, True, True, True, True, False),
        "local_rotary_base": 10_000.0,
        "activation": "gelu_tanh",
        "norm": "rms_offset",
        "norm_place": "both",
        "qk_norm": "rms_offset",
        "scale_embeddings": True,
        "tie_embeddings": True,
    }
    entries = (
        *DECODER_ENTRIES,
        Entry("sliding_window", "window"),
        Entry("hidden_activation", "activation", "gelu_pytorch_tanh", _ACTIVATIONS),
        Entry("tie_word_embeddings", "tie_embeddings", True),
        TwoRotaryEntries(),
    )
    more_fields = ("local_layers", "attention_scale")
    refused: ClassVar[Mapping[str, Any]] = {
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
        "use_bidirectional_attention": False,
    }
    names = NameTable(
        {
            **DECODER_NAMES,
            **layer_names(
                "decoder",
                "model.layers.{}",
                {
                    "self_attention.query_norm": "self_attn.q_norm",
                    "self_attention.key_norm": "self_attn.k_norm",
                    "self_attention_residual.norm_after": "post_attention_layernorm",
                    "feed_forward_residual.norm": "pre_feedforward_layernorm",
                    "feed_forward_residual.norm_after": "post_feedforward_layernorm",
                },
            ),
        },
        prefix="model.",
        ties={"lm_head.weight": "model.embed_tokens.weight"},
    )

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`; no arguments."""
        changes, arguments = super().read(found, weights)
        every, n_layers = found.get("sliding_window_pattern", 6), found["num_hidden_layers"]
        kinds = found.get("layer_types") or [
            "sliding_attention" if (number + 1) % every else "full_attention" for number in range(n_layers)
        ]
        scalar = found.get("query_pre_attn_scalar", 256)
        changes["local_layers"] = tuple(kind == "sliding_attention" for kind in kinds)
        changes["attention_scale"] = None if scalar == found.get("head_dim", 256) else scalar**-0.5
        return changes, arguments

    def write(self) -> dict[str, Any]:
        """The published config."""
        config = self.config
        windows = [config.window_of(layer) for layer in range(config.n_decoder_layers)]
        scale = config.setting("d_head") ** -0.5 if config.attention_scale is None else config.attention_scale
        if abs(round(scale**-2) ** -0.5 - scale) > 1e-9:
            raise ValueError(f"attention_scale: expected 1 over the root of an integer, got {scale!r}")
        return {
            **super().write(),
            "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
            "query_pre_attn_scalar": round(scale**-2),
        }


def _gemma3(D: int, F: int, layers: int, stated: float, source: str) -> Published:
    sizes = {"d_model": D, "d_ff": F, "n_heads": 4, "n_kv_heads": 1, "d_head": 256, "n_decoder_layers": layers}
    others = {"vocab_size": 262_144, "max_length": 32_768, "window": 512}
    return Published(Gemma3, {**sizes, **others}, stated, source)


register(
    Gemma3,
    {
        "gemma-3-270m": _gemma3(640, 2048, 18, 270e6, "model card of Gemma 3"),
        "gemma-3-1b": _gemma3(1152, 6912, 26, 302e6 + 698e6, "Gemma Team 2025 (Gemma 3), table 1"),
    },
)
