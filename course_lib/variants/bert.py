"""BERT: the encoder alone, with learned positions, token types, norms after the sublayers, and a pooler.

Source: Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", section 3.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from course_lib.checks import check_choice
from course_lib.variants.config_entries import ACTIVATIONS, Entry
from course_lib.variants.encoder_model import EncoderModel
from course_lib.variants.folders import Weights
from course_lib.variants.names import NameTable, layer_names
from course_lib.variants.published_model import Published, PublishedModel, has_pooler, register

# The class of `transformers` -> our head; the first of several is written.
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
    entries = (
        Entry("hidden_size", "d_model"),
        Entry("num_attention_heads", "n_heads"),
        Entry("intermediate_size", "d_ff"),
        Entry("num_hidden_layers", "n_encoder_layers"),
        Entry("vocab_size", "vocab_size"),
        Entry("max_position_embeddings", "max_length", 512),
        Entry("hidden_act", "activation", "gelu", ACTIVATIONS),
        Entry("layer_norm_eps", "norm_eps", 1e-12),
        Entry("type_vocab_size", "n_token_types", 2),
        Entry("tie_word_embeddings", "tie_embeddings", True),
        Entry("hidden_dropout_prob", "dropout", 0.1),
        Entry("attention_probs_dropout_prob", "attention_dropout", 0.1),
        Entry("initializer_range", "init_std", 0.02),
    )
    refused: ClassVar[Mapping[str, Any]] = {
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    }
    names = NameTable(
        {
            "embedding.tokens": "bert.embeddings.word_embeddings",
            "embedding.positions": "bert.embeddings.position_embeddings",
            "embedding.token_types": "bert.embeddings.token_type_embeddings",
            "embedding.norm": "bert.embeddings.LayerNorm",
            "pooler": "bert.pooler.dense",
            "classifier": "classifier",
            "masked_lm.transform": "cls.predictions.transform.dense",
            "masked_lm.norm": "cls.predictions.transform.LayerNorm",
            "masked_lm.output": "cls.predictions.decoder",
            **layer_names(
                "encoder",
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
            ),
        },
        prefix="bert.",
        heads=("cls.", "classifier.", "bert.pooler."),
        # The numbers 0, 1, 2, ...; and the head that says whether the second sentence follows the first.
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
        changes, arguments = super().read(found, weights)
        kind = (found.get("architectures") or ["BertModel"])[0]
        check_choice("architectures", kind, _HEADS)
        arguments = {"head": _HEADS[kind], "pooler": has_pooler(weights)}
        if _HEADS[kind] == "classifier" and "classifier.weight" in weights.file_of:
            arguments["n_classes"] = weights.shape("classifier.weight")[0]
        return changes, arguments

    @classmethod
    def load(cls, folder: Path, found: Mapping[str, Any], dtype: torch.dtype | None, **options: Any) -> Self:
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

    @property
    def architecture(self) -> str:
        """The class of `transformers` that reads what is written."""
        return next(kind for kind, head in _HEADS.items() if head == self.head)


def _bert(D: int, H: int, layers: int, stated: float) -> Published:
    sizes = {"d_model": D, "n_heads": H, "n_encoder_layers": layers, "vocab_size": 30_522}
    return Published(BERT, sizes, stated, "Devlin et al. 2019, section 3", {"pooler": True})


register(BERT, {"bert-base-uncased": _bert(768, 12, 12, 110e6), "bert-large-uncased": _bert(1024, 16, 24, 340e6)})
