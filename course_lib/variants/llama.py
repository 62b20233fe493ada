"""Llama: the decoder alone, with rotary positions, RMSNorm, a gated feed-forward, grouped heads and no biases.

Mistral is the same with a window. Sources: Touvron et al. 2023, section 2.2; Dubey et al. 2024, section 3.2 (Llama 3);
Jiang et al. 2023 (Mistral), section 2.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from course_lib.transformer import LanguageModel
from course_lib.variants.config_entries import ACTIVATIONS, Entry, RotaryEntries
from course_lib.variants.folders import Weights
from course_lib.variants.names import NameTable, layer_names
from course_lib.variants.published_model import Published, PublishedModel, register

# What decoders of this kind have in common: entries of their configs and names of their tensors.
DECODER_ENTRIES = (
    Entry("hidden_size", "d_model"),
    Entry("num_attention_heads", "n_heads"),
    Entry("num_key_value_heads", "n_kv_heads", None),
    Entry("head_dim", "d_head", None),
    Entry("intermediate_size", "d_ff"),
    Entry("num_hidden_layers", "n_decoder_layers"),
    Entry("vocab_size", "vocab_size"),
    Entry("max_position_embeddings", "max_length", 2048),
    Entry("rms_norm_eps", "norm_eps", 1e-6),
    Entry("attention_bias", "attention_bias", False),
    Entry("attention_dropout", "attention_dropout", 0.0),
    Entry("initializer_range", "init_std", 0.02),
)
DECODER_NAMES = {
    "embedding.tokens": "model.embed_tokens",
    "decoder.final_norm": "model.norm",
    "head": "lm_head",
    **layer_names(
        "decoder",
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
    ),
}


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
    entries = (
        *DECODER_ENTRIES,
        Entry("hidden_act", "activation", "silu", ACTIVATIONS),
        Entry("mlp_bias", "feed_forward_bias", False),
        Entry("tie_word_embeddings", "tie_embeddings", False),
        RotaryEntries(),
    )
    more_fields = ("window",)
    names = NameTable(
        DECODER_NAMES,
        prefix="model.",
        ignored=(r"\.rotary_emb\.inv_freq$",),
        ties={"lm_head.weight": "model.embed_tokens.weight"},
    )

    @property
    def architecture(self) -> str:
        """The class of `transformers` that reads what is written."""
        return "LlamaForCausalLM" if self.config.window is None else "MistralForCausalLM"

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`; no arguments."""
        changes, arguments = super().read(found, weights)
        if found["model_type"] == "mistral":
            changes["window"] = found.get("sliding_window")
        return changes, arguments

    def write(self) -> dict[str, Any]:
        """The published config."""
        config, content = self.config, super().write()
        if config.window is None:
            return content
        if config.attention_bias or config.feed_forward_bias:
            raise ValueError("window: expected None with biases, Mistral has none")
        return {**content, "model_type": "mistral", "sliding_window": config.window}


def _llama(D: int, F: int, H: int, layers: int, stated: float, source: str, **changes: Any) -> Published:
    sizes = {"d_model": D, "d_ff": F, "n_heads": H, "n_decoder_layers": layers, "norm_eps": 1e-5}
    return Published(Llama, {**sizes, "vocab_size": 32_000, "max_length": 4096, **changes}, stated, source)


_LLAMA_2 = "Touvron et al. 2023 (Llama 2), table 1"
_LLAMA_3 = "Dubey et al. 2024, section 1"
_LLAMA_3_2 = "model card of Llama 3.2"
_THREE = {"vocab_size": 128_256, "rotary_base": 500_000.0, "n_kv_heads": 8, "max_length": 8192}

register(
    Llama,
    {
        "llama-2-7b": _llama(4096, 11_008, 32, 32, 7e9, _LLAMA_2),
        "llama-2-13b": _llama(5120, 13_824, 40, 40, 13e9, _LLAMA_2),
        "llama-2-70b": _llama(8192, 28_672, 64, 80, 70e9, _LLAMA_2, n_kv_heads=8),
        "llama-3-8b": _llama(4096, 14_336, 32, 32, 8e9, _LLAMA_3, **_THREE),
        "llama-3-70b": _llama(8192, 28_672, 64, 80, 70e9, _LLAMA_3, **_THREE),
        "llama-3-405b": _llama(16_384, 53_248, 128, 126, 405e9, _LLAMA_3, **_THREE),
        "llama-3.2-1b": _llama(2048, 8192, 32, 16, 1.23e9, _LLAMA_3_2, **_THREE, d_head=64, tie_embeddings=True),
        "llama-3.2-3b": _llama(3072, 8192, 24, 28, 3.21e9, _LLAMA_3_2, **_THREE, d_head=128, tie_embeddings=True),
    },
)
