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
from course_lib.variants.checkpoint import Weights
from course_lib.variants.names import NameMap
from course_lib.variants.published_model import PublishedModel, activation_here, activation_there, pad_id_of, refuse

_ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}
_SELF = {f"self_attention.{here}": f"layer.0.SelfAttention.{there}" for here, there in _ATTENTION.items()}
_CROSS = {f"cross_attention.{here}": f"layer.1.EncDecAttention.{there}" for here, there in _ATTENTION.items()}


def _feed_forward(number: int, gated: bool) -> dict[str, str]:
    place = f"layer.{number}.DenseReluDense"
    maps = {"gate": f"{place}.wi_0", "up": f"{place}.wi_1"} if gated else {"up": f"{place}.wi"}
    found = {f"feed_forward.{here}": there for here, there in {**maps, "down": f"{place}.wo"}.items()}
    return {**found, "feed_forward_residual.norm": f"layer.{number}.layer_norm"}


def _names(gated: bool) -> NameMap:
    first = {**_SELF, "self_attention_residual.norm": "layer.0.layer_norm"}
    cross = {**_CROSS, "cross_attention_residual.norm": "layer.1.layer_norm"}
    bias = ".block.0.layer.0.SelfAttention.relative_attention_bias"
    return NameMap(
        prefix="",
        top={
            "embedding.tokens": "shared",
            "encoder.positions": f"encoder{bias}",
            "decoder.positions": f"decoder{bias}",
            "encoder.final_norm": "encoder.final_layer_norm",
            "decoder.final_norm": "decoder.final_layer_norm",
            "head": "lm_head",
        },
        layers={
            "encoder": ("encoder.block.{}", {**first, **_feed_forward(1, gated)}),
            "decoder": ("decoder.block.{}", {**first, **cross, **_feed_forward(2, gated)}),
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
    free = frozenset(
        {"d_model", "n_heads", "d_head", "d_ff", "n_encoder_layers", "n_decoder_layers", "vocab_size", "pad_id"}
        | {"relative_buckets", "relative_max_distance", "activation", "gated", "norm_eps", "tie_embeddings"}
        | {"logit_scale", "max_length"}
    )
    names = _names(gated=False)

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        # As published: queries start smaller by sqrt(E), as nothing divides their scores; tables have unit variance.
        with torch.no_grad():
            for part in self.modules():
                if isinstance(part, MultiHeadAttention):
                    part.projection_weights()[0].mul_(config.head_width**-0.5)
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
        refuse(found, is_encoder_decoder=True)
        kind = found.get("feed_forward_proj", "relu")
        gated = kind.startswith("gated-")
        # What is tied is read off the tensors: configs of version 1.1 differ in what they say.
        scaled = found.get("scale_decoder_outputs", found.get("tie_word_embeddings") is not False)
        head = "lm_head.weight" in weights.file_of and not weights.same("lm_head.weight", "shared.weight")
        changes = {
            "d_model": found["d_model"],
            "n_heads": found["num_heads"],
            "d_head": found["d_kv"],
            "d_ff": found["d_ff"],
            "n_encoder_layers": found["num_layers"],
            "n_decoder_layers": found.get("num_decoder_layers") or found["num_layers"],
            "vocab_size": found["vocab_size"],
            "pad_id": pad_id_of({"pad_token_id": 0, **found}),
            "relative_buckets": found.get("relative_attention_num_buckets", 32),
            "relative_max_distance": found.get("relative_attention_max_distance", 128),
            "activation": "gelu_tanh" if kind == "gated-gelu" else activation_here(kind.removeprefix("gated-")),
            "gated": gated,
            "norm_eps": found.get("layer_norm_epsilon", 1e-6),
            "tie_embeddings": not head,
            "logit_scale": found["d_model"] ** -0.5 if scaled else 1.0,
            "dropout": found.get("dropout_rate", 0.1),
        }
        return changes, {}

    def write(self) -> dict[str, Any]:
        """The published config."""
        config = self.config
        scaled = config.logit_scale == config.d_model**-0.5
        if not scaled and config.logit_scale != 1.0:
            raise ValueError(f"logit_scale: T5 has D^-0.5={config.d_model**-0.5} or 1.0, got {config.logit_scale!r}")
        activation = activation_there(config.activation)
        kind = f"gated-{activation}" if config.gated else activation
        return {
            "model_type": "t5",
            "architectures": ["T5ForConditionalGeneration"],
            "is_encoder_decoder": True,
            "d_model": config.d_model,
            "num_heads": config.n_heads,
            "d_kv": config.head_width,
            "d_ff": config.ff_width,
            "num_layers": config.n_encoder_layers,
            "num_decoder_layers": config.n_decoder_layers,
            "vocab_size": config.vocab_size,
            "relative_attention_num_buckets": config.relative_buckets,
            "relative_attention_max_distance": config.relative_max_distance,
            "feed_forward_proj": "gated-gelu" if kind == "gated-gelu_new" else kind,
            "layer_norm_epsilon": config.norm_eps,
            "tie_word_embeddings": scaled,
            "scale_decoder_outputs": scaled,
            "dropout_rate": config.dropout,
            "pad_token_id": config.pad_id,
            "decoder_start_token_id": self.metadata.get("decoder_start_token_id", config.pad_id),
        }
