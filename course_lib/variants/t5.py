"""T5: encoder and decoder with relative positions, RMSNorm before the sublayers, and no biases.

Attention is not scaled: the published initial weights of the queries are smaller instead. The numbers of the relative
buckets are trained once a stack, published in its layer 0, and used by all its layers. Version 1.1 has a gated
feed-forward and a head of its own; before it, head and table are one and the head's input is scaled by D^-0.5.

Sources: Raffel et al. 2020, section 2.1 and its code; Shazeer 2020 for version 1.1.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from course_lib.config import TransformerConfig
from course_lib.multi_head import MultiHeadAttention
from course_lib.transformer import Transformer
from course_lib.variants.config_entries import ACTIVATIONS, Entry
from course_lib.variants.folders import Weights
from course_lib.variants.names import NameTable, layer_names
from course_lib.variants.published_model import Published, PublishedModel, register

_ACTIVATION = Entry("feed_forward_proj", "activation", "relu", ACTIVATIONS)  # without what says that it is gated
_ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}
_SELF = {f"self_attention.{ours}": f"layer.0.SelfAttention.{theirs}" for ours, theirs in _ATTENTION.items()}
_CROSS = {f"cross_attention.{ours}": f"layer.1.EncDecAttention.{theirs}" for ours, theirs in _ATTENTION.items()}


def _feed_forward(number: int, gated: bool) -> dict[str, str]:
    maps = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    found = {f"feed_forward.{ours}": f"layer.{number}.DenseReluDense.{theirs}" for ours, theirs in maps.items()}
    return {**found, "feed_forward_residual.norm": f"layer.{number}.layer_norm"}


def _names(gated: bool) -> NameTable:
    first = {**_SELF, "self_attention_residual.norm": "layer.0.layer_norm"}
    cross = {**_CROSS, "cross_attention_residual.norm": "layer.1.layer_norm"}
    bias = ".block.0.layer.0.SelfAttention.relative_attention_bias"
    return NameTable(
        {
            "embedding.tokens": "shared",
            "encoder.positions": f"encoder{bias}",
            "decoder.positions": f"decoder{bias}",
            "encoder.final_norm": "encoder.final_layer_norm",
            "decoder.final_norm": "decoder.final_layer_norm",
            "head": "lm_head",
            **layer_names("encoder", "encoder.block.{}", {**first, **_feed_forward(1, gated)}),
            **layer_names("decoder", "decoder.block.{}", {**first, **cross, **_feed_forward(2, gated)}),
        },
        ignored=(r"EncDecAttention\.relative_attention_bias",),  # published by mistake, never used
        ties={
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
            "lm_head.weight": "shared.weight",
        },
    )


class T5(PublishedModel, Transformer):
    """T5; `T5(T5.configure(...))` builds one as first published, `T5.configure(**T5.version_1_1, ...)` version 1.1.

    Called as `Transformer` is. Decoding starts from the padding id.
    """

    model_types = ("t5",)
    switches: ClassVar[Mapping[str, Any]] = {
        "positions": "relative",
        "norm": "rms",
        "norm_place": "pre",
        "norm_eps": 1e-6,
        "bias": False,
        "attention_scale": 1.0,
        "scale_embeddings": False,
        "share_vocabulary": True,
        "pad_id": 0,
    }
    version_1_1: ClassVar[Mapping[str, Any]] = {
        "activation": "gelu_tanh",
        "gated": True,
        "tie_embeddings": False,
        "logit_scale": 1.0,
    }
    entries = (
        Entry("d_model", "d_model"),
        Entry("num_heads", "n_heads"),
        Entry("d_kv", "d_head"),
        Entry("d_ff", "d_ff"),
        Entry("num_layers", "n_encoder_layers"),
        Entry("vocab_size", "vocab_size"),
        Entry("relative_attention_num_buckets", "relative_buckets", 32),
        Entry("relative_attention_max_distance", "relative_max_distance", 128),
        Entry("layer_norm_epsilon", "norm_eps", 1e-6),
        Entry("dropout_rate", "dropout", 0.1),
    )
    more_fields = ("n_decoder_layers", "activation", "gated", "tie_embeddings", "logit_scale", "max_length")
    refused: ClassVar[Mapping[str, Any]] = {"is_encoder_decoder": True}
    names = _names(gated=False)
    architecture = "T5ForConditionalGeneration"

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        # As published: queries start smaller by sqrt(E), as nothing divides their scores; tables have unit variance.
        with torch.no_grad():
            for part in self.modules():
                if isinstance(part, MultiHeadAttention):
                    part.projection_weights()[0].mul_(config.setting("d_head") ** -0.5)
            for embedding in (self.embedding, self.source_embedding):
                if embedding.tokens is not None:
                    nn.init.normal_(embedding.tokens.weight)
        self.names = _names(config.gated)  # type: ignore[misc]  # the two versions name the feed-forward differently

    @classmethod
    def configure(cls, **changes: Any) -> TransformerConfig:
        """Return the row of switches with sizes filled in; the head's input is scaled by D^-0.5 unless changed."""
        scale = changes.get("d_model", TransformerConfig.d_model) ** -0.5
        return super().configure(**{"logit_scale": scale, **changes})

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`; no arguments."""
        changes, arguments = super().read(found, weights)
        kind = found.get("feed_forward_proj", "relu")
        # What is tied is read off the tensors: configs of version 1.1 differ in what they say.
        scaled = found.get("scale_decoder_outputs", found.get("tie_word_embeddings") is not False)
        head = "lm_head.weight" in weights.file_of and not weights.same("lm_head.weight", "shared.weight")
        changes |= {
            "n_decoder_layers": found.get("num_decoder_layers") or found["num_layers"],
            "gated": kind.startswith("gated-"),
            "tie_embeddings": not head,
            "logit_scale": found["d_model"] ** -0.5 if scaled else 1.0,
        }
        activation = "gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")
        return changes | _ACTIVATION.read({_ACTIVATION.key: activation}), arguments

    def write(self) -> dict[str, Any]:
        """The published config."""
        config = self.config
        scaled = config.logit_scale == config.d_model**-0.5
        if not scaled and config.logit_scale != 1.0:
            raise ValueError(f"logit_scale: T5 has D^-0.5={config.d_model**-0.5} or 1.0, got {config.logit_scale!r}")
        activation = _ACTIVATION.write(config)[_ACTIVATION.key]
        if config.gated:
            activation = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
        return {
            **super().write(),
            "is_encoder_decoder": True,
            "num_decoder_layers": config.n_decoder_layers,
            "feed_forward_proj": activation,
            "tie_word_embeddings": scaled,
            "scale_decoder_outputs": scaled,
            "decoder_start_token_id": self.metadata.get("decoder_start_token_id", config.pad_id),
        }


def _t5(D: int, F: int, H: int, layers: int, stated: float, E: int = 64) -> Published:
    sizes = {"d_model": D, "d_ff": F, "n_heads": H, "d_head": E, "vocab_size": 32_128}
    stacks = {"n_encoder_layers": layers, "n_decoder_layers": layers}
    return Published(T5, {**sizes, **stacks}, stated, "Raffel et al. 2020, section 3.7")


register(
    T5,
    {
        "t5-small": _t5(512, 2048, 8, 6, 60e6),
        "t5-base": _t5(768, 3072, 12, 12, 220e6),
        "t5-large": _t5(1024, 4096, 16, 24, 770e6),
        "t5-3b": _t5(1024, 16_384, 32, 24, 2.8e9, E=128),
        "t5-11b": _t5(1024, 65_536, 128, 24, 11e9, E=128),
    },
)
