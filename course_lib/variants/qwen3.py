"""Qwen3: Llama's decoder with a trained norm on the queries and keys of each head.

Source: Yang et al. 2025, "Qwen3 Technical Report", section 2.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from course_lib.transformer import LanguageModel
from course_lib.variants.config_entries import ACTIVATIONS, Entry, RotaryEntries, refuse
from course_lib.variants.folders import Weights
from course_lib.variants.llama import DECODER_ENTRIES, DECODER_NAMES, Llama
from course_lib.variants.names import NameTable, layer_names
from course_lib.variants.published_model import Published, PublishedModel, register


class Qwen3(PublishedModel, LanguageModel):
    """Qwen3, dense; `Qwen3(Qwen3.configure(d_model=..., ...))` builds one with new weights.

    Called as `LanguageModel` is. The width of a head is a size of its own, 128 in all published ones.
    """

    model_types = ("qwen3",)
    architecture = "Qwen3ForCausalLM"
    switches: ClassVar[Mapping[str, Any]] = {**Llama.switches, "qk_norm": "rms"}
    entries = (
        *DECODER_ENTRIES,
        Entry("hidden_act", "activation", "silu", ACTIVATIONS),
        Entry("tie_word_embeddings", "tie_embeddings", False),
        RotaryEntries(),
    )
    more_fields = ("window",)
    names = NameTable(
        {
            **DECODER_NAMES,
            **layer_names(
                "decoder",
                "model.layers.{}",
                {"self_attention.query_norm": "self_attn.q_norm", "self_attention.key_norm": "self_attn.k_norm"},
            ),
        },
        prefix="model.",
        ties={"lm_head.weight": "model.embed_tokens.weight"},
    )

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`; no arguments."""
        changes, arguments = super().read(found, weights)
        if found.get("use_sliding_window"):
            refuse(found, layer_types=["sliding_attention"] * changes["n_decoder_layers"])
            changes["window"] = found.get("sliding_window")
        return changes, arguments

    def write(self) -> dict[str, Any]:
        """The published config."""
        content, window = super().write(), self.config.window
        if window is None:
            return content
        kinds = ["sliding_attention"] * self.config.n_decoder_layers
        return {**content, "use_sliding_window": True, "sliding_window": window, "layer_types": kinds}


def _qwen3(D: int, F: int, H: int, layers: int, stated: float, *, tied: bool = False) -> Published:
    sizes = {"d_model": D, "d_ff": F, "n_heads": H, "n_kv_heads": 8, "d_head": 128, "n_decoder_layers": layers}
    others = {"vocab_size": 151_936, "max_length": 40_960, "rotary_base": 1e6, "tie_embeddings": tied}
    return Published(Qwen3, {**sizes, **others}, stated, "model cards of Qwen3")


register(
    Qwen3,
    {
        "qwen3-0.6b": _qwen3(1024, 3072, 16, 28, 0.6e9, tied=True),
        "qwen3-1.7b": _qwen3(2048, 6144, 16, 28, 1.7e9, tied=True),
        "qwen3-4b": _qwen3(2560, 9728, 32, 36, 4.0e9, tied=True),
        "qwen3-8b": _qwen3(4096, 12_288, 32, 36, 8.2e9),
        "qwen3-14b": _qwen3(5120, 17_408, 40, 40, 14.8e9),
        "qwen3-32b": _qwen3(5120, 25_600, 64, 64, 32.8e9),
    },
)
