"""GPT-2: the decoder alone, with norms before the sublayers, learned positions and a tied head.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from course_lib.transformer import LanguageModel
from course_lib.variants.config_entries import ACTIVATIONS, Entry
from course_lib.variants.names import NameTable, layer_names
from course_lib.variants.published_model import Published, PublishedModel, register


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
        "activation_dropout": 0.0,
    }
    entries = (
        Entry("n_embd", "d_model"),
        Entry("n_head", "n_heads"),
        Entry("n_inner", "d_ff", None),
        Entry("n_layer", "n_decoder_layers"),
        Entry("vocab_size", "vocab_size"),
        Entry("n_positions", "max_length"),
        Entry("activation_function", "activation", "gelu_new", {"gelu_new": "gelu_tanh", **ACTIVATIONS}),
        Entry("layer_norm_epsilon", "norm_eps", 1e-5),
        Entry("scale_attn_weights", "attention_scale", True, {True: None, False: 1.0}),
        Entry("tie_word_embeddings", "tie_embeddings", True),
        Entry("resid_pdrop", "dropout", 0.1),
        Entry("embd_pdrop", "embedding_dropout", 0.1),
        Entry("attn_pdrop", "attention_dropout", 0.1),
        Entry("initializer_range", "init_std", 0.02),
    )
    refused: ClassVar[Mapping[str, Any]] = {"add_cross_attention": False, "scale_attn_by_inverse_layer_idx": False}
    names = NameTable(
        {
            "embedding.tokens": "transformer.wte",
            "embedding.positions": "transformer.wpe",
            "decoder.final_norm": "transformer.ln_f",
            "head": "lm_head",
            **layer_names(
                "decoder",
                "transformer.h.{}",
                {
                    "self_attention_residual.norm": "ln_1",
                    "self_attention.qkv": "attn.c_attn",
                    "self_attention.output": "attn.c_proj",
                    "feed_forward_residual.norm": "ln_2",
                    "feed_forward.up": "mlp.c_fc",
                    "feed_forward.down": "mlp.c_proj",
                },
            ),
        },
        prefix="transformer.",
        # Published as Conv1D modules, whose weights are (in, out).
        transposed=frozenset({"self_attention.qkv", "self_attention.output", "feed_forward.up", "feed_forward.down"}),
        ignored=(r"\.attn\.(masked_)?bias$",),  # the causal mask
        ties={"lm_head.weight": "transformer.wte.weight"},
    )
    architecture = "GPT2LMHeadModel"

    def write(self) -> dict[str, Any]:
        """The published config."""
        return {**super().write(), "n_inner": self.config.d_ff}  # may be None there too


def _gpt2(D: int, H: int, layers: int, stated: float) -> Published:
    sizes = {"d_model": D, "n_heads": H, "n_decoder_layers": layers, "vocab_size": 50_257, "max_length": 1024}
    # Table 2 of the paper says 117M, 345M, 762M, 1542M; its repository corrects that.
    return Published(GPT, sizes, stated, "openai/gpt-2, DEVELOPERS.md")


register(
    GPT,
    {
        "gpt2": _gpt2(768, 12, 12, 124e6),
        "gpt2-medium": _gpt2(1024, 16, 24, 355e6),
        "gpt2-large": _gpt2(1280, 20, 36, 774e6),
        "gpt2-xl": _gpt2(1600, 25, 48, 1558e6),
    },
)
