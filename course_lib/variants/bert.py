"""BERT: the encoder alone, with learned positions, token types, norms after the sublayers, and a pooler.

Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from course_lib.variants.checkpoint import Weights
from course_lib.variants.encoder_model import EncoderModel
from course_lib.variants.names import NameMap
from course_lib.variants.published_model import PublishedModel, activation_here, activation_there, pad_id_of, refuse

_HEADS = {
    "BertModel": "none",
    "BertForMaskedLM": "masked_lm",
    "BertForPreTraining": "masked_lm",
    "BertForSequenceClassification": "classifier",
}


class BERT(PublishedModel, EncoderModel):
    """BERT and the sentence encoders built like it; `BERT(BERT.configure(d_model=..., ...))` has new weights.

    Called as `EncoderModel` is, with its heads. `metadata["id2label"]` names the classes, where the folder does.
    """

    model_types = ("bert",)
    switches: ClassVar[Mapping[str, Any]] = {
        "n_decoder_layers": 0,
        "max_length": 512,
        "pad_id": 0,
        "positions": "learned",
        "activation": "gelu",
        "norm_eps": 1e-12,
        "scale_embeddings": False,
        "embedding_norm": True,
        "n_token_types": 2,
        "activation_dropout": 0.0,
        "init": "normal",
    }
    free = frozenset(
        {"d_model", "n_heads", "d_ff", "n_encoder_layers", "vocab_size", "max_length", "pad_id", "activation"}
        | {"norm_eps", "n_token_types", "tie_embeddings"}
    )
    names = NameMap(
        prefix="bert.",
        top={
            "embedding.tokens": "bert.embeddings.word_embeddings",
            "embedding.positions": "bert.embeddings.position_embeddings",
            "embedding.token_types": "bert.embeddings.token_type_embeddings",
            "embedding.norm": "bert.embeddings.LayerNorm",
            "pooler": "bert.pooler.dense",
            "classifier": "classifier",
            "masked_lm.transform": "cls.predictions.transform.dense",
            "masked_lm.norm": "cls.predictions.transform.LayerNorm",
            "masked_lm.output.weight": "cls.predictions.decoder.weight",
            "masked_lm.output.bias": "cls.predictions.decoder.bias",
        },
        layers={
            "encoder": (
                "bert.encoder.layer.{}",
                {
                    "self_attention.query": "attention.self.query",
                    "self_attention.key": "attention.self.key",
                    "self_attention.value": "attention.self.value",
                    "self_attention.output": "attention.output.dense",
                    "self_attention_residual.norm": "attention.output.LayerNorm",
                    "feed_forward.up": "intermediate.dense",
                    "feed_forward.down": "output.dense",
                    "feed_forward_residual.norm": "output.LayerNorm",
                },
            )
        },
        # Numbers 0, 1, 2, ...; and whether the second sentence follows the first, which nothing here is trained on.
        heads=("cls.", "classifier.", "bert.pooler."),
        ignored=(r"embeddings\.position_ids$", r"^cls\.seq_relationship\."),
        ties={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.bias": "cls.predictions.decoder.bias",
        },
        spare=("cls.predictions.bias",),
    )
    heads = ("pooler.", "classifier.", "masked_lm.")

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`, and the head."""
        refuse(found, is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
        dropout = found.get("hidden_dropout_prob", 0.1)
        changes = {
            "d_model": found["hidden_size"],
            "n_heads": found["num_attention_heads"],
            "d_ff": found["intermediate_size"],
            "n_encoder_layers": found["num_hidden_layers"],
            "vocab_size": found["vocab_size"],
            "max_length": found.get("max_position_embeddings", 512),
            "pad_id": pad_id_of({"pad_token_id": 0, **found}),
            "activation": activation_here(found.get("hidden_act", "gelu")),
            "norm_eps": found.get("layer_norm_eps", 1e-12),
            "n_token_types": found.get("type_vocab_size", 2),
            "tie_embeddings": found.get("tie_word_embeddings", True),
            "dropout": dropout,
            "attention_dropout": found.get("attention_probs_dropout_prob", 0.1),
            "init_std": found.get("initializer_range", 0.02),
        }
        kind = (found.get("architectures") or ["BertModel"])[0]
        if kind not in _HEADS:
            raise ValueError(f"architectures: expected one of {tuple(_HEADS)}, got {kind!r}")
        pooler = any(name.endswith("pooler.dense.weight") for name in weights.file_of)
        arguments: dict[str, Any] = {"head": _HEADS[kind], "pooler": pooler}
        if arguments["head"] == "classifier" and "classifier.weight" in weights.file_of:
            arguments["n_classes"] = weights.shape("classifier.weight")[0]
        return changes, arguments

    @classmethod
    def load(cls, folder: Path, found: Mapping[str, Any], dtype: torch.dtype | None, **options: Any) -> "BERT":
        """Load a folder whose `config.json` holds `found`; see `from_pretrained`."""
        if options.get("head", "classifier") != "classifier":
            options.setdefault("n_classes", None)
        return super().load(folder, found, dtype, **options)

    @property
    def is_body(self) -> bool:
        """Whether there is no head, so that published names have no prefix."""
        return self.head == "none"

    def published_tensors(self) -> dict[str, Tensor]:
        """The parameters under their published names; the bias of masked tokens has two, one of them spare."""
        found = super().published_tensors()
        if self.head == "masked_lm":
            found["cls.predictions.bias"] = found["cls.predictions.decoder.bias"]
            if self.config.tie_embeddings:
                del found["cls.predictions.decoder.bias"]
        return found

    def write(self) -> dict[str, Any]:
        """The published config."""
        config = self.config
        kind = {"none": "BertModel", "masked_lm": "BertForMaskedLM", "classifier": "BertForSequenceClassification"}
        content: dict[str, Any] = {
            "model_type": "bert",
            "architectures": [kind[self.head]],
            "hidden_size": config.d_model,
            "num_attention_heads": config.n_heads,
            "intermediate_size": config.ff_width,
            "num_hidden_layers": config.n_encoder_layers,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_length,
            "pad_token_id": config.pad_id,
            "hidden_act": activation_there(config.activation),
            "layer_norm_eps": config.norm_eps,
            "type_vocab_size": config.n_token_types,
            "tie_word_embeddings": config.tie_embeddings,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_drop,
            "initializer_range": config.init_std,
        }
        if self.n_classes is not None and "id2label" not in self.metadata:
            content["id2label"] = {str(number): f"LABEL_{number}" for number in range(self.n_classes)}
            content["label2id"] = {label: int(number) for number, label in content["id2label"].items()}
        return content
