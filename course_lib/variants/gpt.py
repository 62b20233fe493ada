"""GPT-2: the decoder alone, with norms before the sublayers, learned positions and a tied head.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from course_lib.transformer import LanguageModel
from course_lib.variants.checkpoint import Weights
from course_lib.variants.names import NameMap
from course_lib.variants.published_model import PublishedModel, activation_here, activation_there, pad_id_of, refuse


class GPT(PublishedModel, LanguageModel):
    """GPT-2; `GPT(GPT.configure(d_model=..., ...))` builds one with new weights. Called as `LanguageModel` is."""

    model_types = ("gpt2",)
    switches: ClassVar[Mapping[str, Any]] = {
        "n_encoder_layers": 0,
        "positions": "learned",
        "activation": "gelu_tanh",
        "norm_place": "pre",
        "scale_embeddings": False,
        "init": "normal",
        "scale_residual_init": True,
    }
    free = frozenset(
        {"d_model", "n_heads", "d_ff", "n_decoder_layers", "vocab_size", "max_length", "activation", "norm_eps"}
        | {"attention_scale", "tie_embeddings", "pad_id"}
    )
    names = NameMap(
        prefix="transformer.",
        top={
            "embedding.tokens": "transformer.wte",
            "embedding.positions": "transformer.wpe",
            "decoder.final_norm": "transformer.ln_f",
            "head": "lm_head",
        },
        layers={
            "decoder": (
                "transformer.h.{}",
                {
                    "self_attention_residual.norm": "ln_1",
                    "self_attention.qkv": "attn.c_attn",
                    "self_attention.output": "attn.c_proj",
                    "feed_forward_residual.norm": "ln_2",
                    "feed_forward.up": "mlp.c_fc",
                    "feed_forward.down": "mlp.c_proj",
                },
            )
        },
        # Published as Conv1D modules, whose weights are (in, out).
        transposed=frozenset({"self_attention.qkv", "self_attention.output", "feed_forward.up", "feed_forward.down"}),
        ignored=(r"\.attn\.(masked_)?bias$",),  # the causal mask
        ties={"lm_head.weight": "transformer.wte.weight"},
    )

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`; no arguments."""
        refuse(found, add_cross_attention=False, scale_attn_by_inverse_layer_idx=False)
        changes = {
            "d_model": found["n_embd"],
            "n_heads": found["n_head"],
            "d_ff": found.get("n_inner"),
            "n_decoder_layers": found["n_layer"],
            "vocab_size": found["vocab_size"],
            "pad_id": pad_id_of(found),
            "max_length": found["n_positions"],
            "activation": activation_here(found.get("activation_function", "gelu_new")),
            "norm_eps": found.get("layer_norm_epsilon", 1e-5),
            "attention_scale": None if found.get("scale_attn_weights", True) else 1.0,
            "tie_embeddings": found.get("tie_word_embeddings", True),
            "dropout": found.get("resid_pdrop", 0.1),
            "embedding_dropout": found.get("embd_pdrop", 0.1),
            "attention_dropout": found.get("attn_pdrop", 0.1),
            "activation_dropout": 0.0,
            "init_std": found.get("initializer_range", 0.02),
        }
        return changes, {}

    def write(self) -> dict[str, Any]:
        """The published config."""
        config = self.config
        if config.attention_scale not in (None, 1.0):
            raise ValueError(f"attention_scale: GPT has None or 1.0, got {config.attention_scale!r}")
        return {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": config.d_model,
            "n_head": config.n_heads,
            "n_inner": config.d_ff,
            "n_layer": config.n_decoder_layers,
            "vocab_size": config.vocab_size,
            "pad_token_id": self.metadata.get("pad_token_id", config.pad_id),
            "n_positions": config.max_length,
            "activation_function": activation_there(config.activation),
            "layer_norm_epsilon": config.norm_eps,
            "scale_attn_weights": config.attention_scale is None,
            "tie_word_embeddings": config.tie_embeddings,
            "resid_pdrop": config.dropout,
            "embd_pdrop": config.embedding_drop,
            "attn_pdrop": config.attention_drop,
            "initializer_range": config.init_std,
        }
