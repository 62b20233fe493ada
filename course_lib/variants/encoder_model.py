"""The encoder alone, with a head: for classes, for masked tokens, or for the meaning of a sentence.

Shapes: B batch, T positions, D model width, V vocabulary.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from course_lib.checks import check_choice, check_integer, check_mask
from course_lib.config import TransformerConfig
from course_lib.encoder import TransformerEncoder
from course_lib.layers import ACTIVATIONS, init_weights
from course_lib.masks import padding_mask
from course_lib.norms import build_norm
from course_lib.transformer import Embedding

Head = Literal["none", "classifier", "masked_lm"]


class EncoderModel(nn.Module):
    """Token ids through embedding and encoder to vectors, and through a head to logits.

    Args:
        config: any; `pad_id` hides padding unless a mask is given.
        head: "none" returns the vectors (B, T, D); "classifier" returns (B, n_classes); "masked_lm" returns (B, T, V)
            from a head tied to the token table if the config ties.
        n_classes: of the classifier.
        pooler: whether there is one, a map and tanh on the first token; unless given, with a classifier only, which
            reads it, as BERT's does. A classifier without reads the mean of the real tokens.

    Source: Devlin et al. 2019 (BERT), sections 3 and 3.1.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        head: Head = "none",
        n_classes: int | None = None,
        pooler: bool | None = None,
    ) -> None:
        super().__init__()
        check_choice("head", head, get_args(Head))
        if (n_classes is None) == (head == "classifier"):
            raise ValueError(f"n_classes: expected a number with head='classifier' only, got {n_classes!r}")
        check_integer("n_classes", n_classes, or_none=True)
        if config.vocab_size is None:
            raise ValueError("config: expected a vocab_size")
        self.config, self.head, self.n_classes = config, head, n_classes
        self.embedding = Embedding(config, config.vocab_size)
        self.encoder = TransformerEncoder(config)
        pooled = head == "classifier" if pooler is None else pooler
        self.pooler = nn.Linear(config.d_model, config.d_model) if pooled else None
        self.classifier = None if n_classes is None else nn.Linear(config.d_model, n_classes)
        self.masked_lm = MaskedTokenHead(config) if head == "masked_lm" else None
        for part in (self.pooler, self.classifier):
            if part is not None:
                init_weights(part, config, n_residuals=1)
        if self.masked_lm is not None and config.tie_embeddings and self.embedding.tokens is not None:
            self.masked_lm.output.weight = self.embedding.tokens.weight
        self.dropout = nn.Dropout(config.dropout)  # before the classifier

    def options(self) -> dict[str, Any]:
        """The arguments beside the config."""
        return {"head": self.head, "n_classes": self.n_classes, "pooler": self.pooler is not None}

    def mask_of(self, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the mask that hides padding: the given one, else by `config.pad_id`, else None."""
        return mask if mask is not None or self.config.pad_id is None else padding_mask(tokens, self.config.pad_id)

    def encode(self, tokens: Tensor, *, mask: Tensor | None = None, token_types: Tensor | None = None) -> Tensor:
        """Token ids (B, T) to vectors (B, T, D).

        Args:
            tokens: ids (B, T).
            mask: boolean, True = may attend, broadcastable to (B, H, T, T), so (B, 1, 1, T) for padding.
            token_types: which sentence each token is of, ids (B, T) below `config.n_token_types`; 0 unless given.
        """
        x = self.embedding(tokens, token_types=token_types)
        return self.encoder(x, mask=self.mask_of(tokens, mask))

    def pool(self, vectors: Tensor) -> Tensor:
        """The pooled first token: vectors (B, T, D) -> (B, D). Raises ValueError without a pooler."""
        if self.pooler is None:
            raise ValueError("pooler: this model has none; build it with pooler=True")
        return torch.tanh(self.pooler(vectors[:, 0]))

    def classify(self, vectors: Tensor, real: Tensor | None = None) -> Tensor:
        """Encoded tokens (B, T, D), and which are real, bool (B, T), to the logits of the classes (B, n_classes)."""
        read = mean_of_real(vectors, real) if self.pooler is None else self.pool(vectors)
        return self.classifier(self.dropout(read))  # type: ignore[misc]

    def forward(self, tokens: Tensor, *, mask: Tensor | None = None, token_types: Tensor | None = None) -> Tensor:
        """Token ids (B, T) to what the head gives; arguments as `encode`."""
        vectors = self.encode(tokens, mask=mask, token_types=token_types)
        if self.classifier is not None:
            return self.classify(vectors, None if self.config.pad_id is None else tokens != self.config.pad_id)
        return vectors if self.masked_lm is None else self.masked_lm(vectors)

    def embed_sentences(
        self, tokens: Tensor, *, mask: Tensor | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """One vector of length 1 for each sentence: the mean over its real tokens, (B, T) -> (B, D).

        `mask` is bool (B, T), True = real; by `config.pad_id` unless given. Two sentences are as alike as the product
        of their vectors says. Source: Reimers and Gurevych 2019 (Sentence-BERT), section 3.
        """
        if mask is None and self.config.pad_id is not None:
            mask = tokens != self.config.pad_id
        if mask is not None and (mask.dtype != torch.bool or mask.shape != tokens.shape):
            raise ValueError(
                f"mask: expected bool {tuple(tokens.shape)} like tokens, got {mask.dtype} {tuple(mask.shape)}"
            )
        keys = None if mask is None else mask[:, None, None]  # (B, T) -> (B, 1, 1, T)
        vectors = self.encode(tokens, mask=keys, token_types=token_types)
        return nn.functional.normalize(mean_of_real(vectors, mask), dim=-1)


def mean_of_real(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    """The mean of the real vectors of each sentence: (B, T, D), bool (B, T) -> (B, D)."""
    if mask is None:
        return vectors.mean(dim=1)
    check_mask("mask", mask)
    if mask.shape != vectors.shape[:2]:
        raise ValueError(f"mask: expected {tuple(vectors.shape[:2])} like vectors, got {tuple(mask.shape)}")
    real = mask[:, :, None].to(vectors.dtype)  # (B, T) -> (B, T, 1)
    return (vectors * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


class MaskedTokenHead(nn.Module):
    """Vectors (B, T, D) to logits (B, T, V): a map, the activation, a norm, then the table of tokens and a bias."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.transform = nn.Linear(config.d_model, config.d_model)
        self.norm = build_norm(config.norm, config.d_model, eps=config.norm_eps, bias=config.bias)
        self.output = nn.Linear(config.d_model, config.vocab_size or 1)
        init_weights(self, config, n_residuals=1)

    def forward(self, vectors: Tensor) -> Tensor:
        """Transform and compare with each token's vector: (B, T, D) -> (B, T, V)."""
        return self.output(self.norm(ACTIVATIONS[self.activation](self.transform(vectors))))
