"""Whole models: the encoder-decoder of the paper, and the decoder alone as a language model.

Shapes: B batch, T target positions, S source positions, D model width, V vocabulary.
Source: Vaswani et al. 2017, "Attention Is All You Need", figure 1.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_lib.cache import DecoderCache
from course_lib.checks import check_integer, check_kind, check_positions, checked
from course_lib.config import TransformerConfig
from course_lib.decoder import TransformerDecoder
from course_lib.encoder import TransformerEncoder
from course_lib.layers import TokenEmbedding, config_from_torch, init_weights
from course_lib.masks import padding_mask
from course_lib.norms import build_norm
from course_lib.positions import build_scheme

__all__ = ["Embedding", "LanguageModel", "Readout", "Transformer", "TransformerConfig"]

Readout = Callable[[nn.Module, Tensor], Tensor]


class Embedding(nn.Module):
    """Token vectors plus, for the schemes that are added, positions; then a norm if the config says so, and dropout.

    With `vocab_size` None it takes vectors (B, T, D) in place of token ids.
    """

    @checked
    def __init__(self, config: TransformerConfig, vocab_size: int | None) -> None:
        super().__init__()
        self.tokens: TokenEmbedding | None = None
        if vocab_size is not None:
            self.tokens = TokenEmbedding(vocab_size, config.d_model, scale=config.scale_embeddings)
        self.positions = build_scheme(config, "input")
        self.max_length = None if self.positions is None else self.positions.max_length
        self.token_types: TokenEmbedding | None = None
        if config.n_token_types:
            self.token_types = TokenEmbedding(config.n_token_types, config.d_model, scale=False)
        kind = config.norm if config.embedding_norm else "none"
        self.norm = build_norm(kind, config.d_model, eps=config.norm_eps, bias=config.bias)
        self.dropout = nn.Dropout(config.setting("embedding_dropout"))
        init_weights(self, config, n_residuals=1)

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, *, offset: int = 0, token_types: Tensor | None = None
    ) -> Tensor:
        """Token ids (B, T) -> (B, T, D). Positions are offset, offset + 1, ... unless given as (T,) or (B, T).

        `token_types`, ids (B, T), are 0 unless given.
        """
        check_kind("tokens", tokens, Tensor)
        dim = 3 if self.tokens is None else 2
        if tokens.dim() != dim or tokens.size(1) == 0:
            what = "vectors (B, T, D)" if self.tokens is None else "ids (B, T)"
            raise ValueError(f"tokens: expected {what} with T of at least 1, got {tuple(tokens.shape)}")
        x = tokens if self.tokens is None else self.tokens(tokens)
        if self.positions is not None:
            if positions is None:
                end = offset + tokens.size(1)
                if self.max_length is not None and end > self.max_length:
                    raise ValueError(
                        f"tokens: {end} positions, the table of positions has max_length={self.max_length}"
                    )
                positions = torch.arange(offset, end, device=x.device)
            check_positions(positions, x.size(1))
            x = x + self.positions(positions).to(x.dtype)  # (B, T, D) + (T, D) or (B, T, D)
        if self.token_types is not None:
            types = torch.zeros(1, 1, dtype=torch.long, device=x.device) if token_types is None else token_types
            x = x + self.token_types(types)  # (B, T, D) + (1, 1, D) or (B, T, D)
        elif token_types is not None:
            raise ValueError("token_types: expected None, the config has n_token_types=0")
        return self.dropout(self.norm(x))


class _TokenDecoder(nn.Module):
    """What both models share: target tokens, through a decoder, to logits."""

    def __init__(self, config: TransformerConfig, *, cross: bool) -> None:
        super().__init__()
        vocab_size = config.setting("target_vocab_size")
        self.config = config
        self.vocab_size = vocab_size  # of the target; None if it takes and gives vectors
        self.embedding = Embedding(config, vocab_size)
        self.decoder = TransformerDecoder(config, cross=cross)
        self.head: nn.Module = nn.Identity()
        if vocab_size is not None:
            head = nn.Linear(config.d_model, vocab_size, bias=config.head_bias)
            init_weights(head, config, n_residuals=1)
            if config.tie_embeddings and self.embedding.tokens is not None:
                head.weight = self.embedding.tokens.weight
            self.head = head

    def decode(
        self,
        tokens: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
        last: int | None = None,
        readout: Readout | None = None,
    ) -> Tensor:
        """Target tokens to logits (B, T or last, V), those at position t predict token t + 1.

        Arguments as `TransformerDecoder`, and:

        Args:
            tokens: ids (B, T), the ones after those in the cache.
            last: compute logits for this many last positions only, all unless given.
            readout: called with the head and the vectors (B, T, D) it would read; what it returns stands in for the
                logits. A loss may so go through the head piece by piece.
        """
        check_integer("last", last, or_none=True)
        if not (cache is None or hasattr(cache, "layers")):
            raise TypeError(f"cache: expected a DecoderCache, got {type(cache).__name__}")
        x = self.embedding(tokens, positions, offset=0 if cache is None else cache.length)
        x = self.decoder(x, context, mask=mask, context_mask=context_mask, positions=positions, cache=cache)
        x = x if last is None else x[:, -last:]  # (B, T, D) -> (B, last, D)
        x = x if self.config.logit_scale == 1.0 else x * self.config.logit_scale
        return self.head(x) if readout is None else readout(self.head, x)

    def new_cache(
        self, capacity: int | None = None, *, sliding: bool = True, dtype: torch.dtype | None = None
    ) -> DecoderCache:
        """Return an empty cache for `decode`; see `TransformerDecoder.new_cache`."""
        return self.decoder.new_cache(capacity, sliding=sliding, dtype=dtype)


class LanguageModel(_TokenDecoder):
    """The decoder alone, without cross-attention: predicts each token from those before it.

    Source: Radford et al. 2019 (GPT-2), which is one row of the config's switches.
    """

    @checked
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, cross=False)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
        last: int | None = None,
        readout: Readout | None = None,
    ) -> Tensor:
        """Tokens (B, T) to logits (B, T, V); those at position t predict token t + 1. Arguments as `decode`.

        Padding on the right needs no mask, real tokens never see it; on the left it needs a mask and positions.
        """
        return self.decode(tokens, mask=mask, positions=positions, cache=cache, last=last, readout=readout)


class Transformer(_TokenDecoder):
    """The encoder-decoder: reads a source sequence, predicts a target sequence token by token."""

    @checked
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, cross=True)
        self.source_embedding = Embedding(config, config.vocab_size)
        if config.share_vocabulary and self.source_embedding.tokens is not None and self.embedding.tokens is not None:
            self.source_embedding.tokens.weight = self.embedding.tokens.weight
        self.encoder = TransformerEncoder(config)

    def encode(self, source: Tensor, *, source_mask: Tensor | None = None) -> Tensor:
        """Source tokens (B, S) to the context (B, S, D) that `decode` reads."""
        return self.encoder(self.source_embedding(source), mask=self.mask_of(source, source_mask))

    def mask_of(self, source: Tensor, source_mask: Tensor | None) -> Tensor | None:
        """Return the mask that hides source padding: the given one, else by `config.pad_id`, else None."""
        if source_mask is not None or self.config.pad_id is None:
            return source_mask
        return padding_mask(source, self.config.pad_id)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        readout: Readout | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of all target tokens at once, each predicted from those before it (teacher forcing).

        Args:
            source: token ids (B, S).
            target: token ids (B, T), the targets shifted right by one; see `decoder.shift_right`.
            source_mask: boolean, True = may attend, broadcastable to (B, H, S, S) and (B, H, T, S), so (B, 1, 1, S);
                hides `config.pad_id` unless given.
            target_mask: hides target positions beside the later ones; padding on the right needs none.
            readout: see `decode`.
        """
        for name, tokens in (("source", source), ("target", target)):
            check_kind(name, tokens, Tensor)
        if source.size(0) != target.size(0):
            raise ValueError(f"target: expected batch B={source.size(0)} like source, got {target.size(0)}")
        mask = self.mask_of(source, source_mask)
        context = self.encoder(self.source_embedding(source), mask=mask)
        return self.decode(target, context, mask=target_mask, context_mask=mask, readout=readout)

    @classmethod
    @checked
    def from_torch(cls, module: nn.Transformer) -> "Transformer":
        """Take over a `torch.nn.Transformer`, which has neither embeddings nor head: vectors in, vectors out.

        Ours is always batch-first, its masks have True = may attend, and its decoder is causal by itself.
        """
        encoder, decoder = TransformerEncoder.from_torch(module.encoder), TransformerDecoder.from_torch(module.decoder)
        first: nn.TransformerEncoderLayer = module.encoder.layers[0]
        config = config_from_torch(
            first,
            n_encoder_layers=len(encoder.layers),
            n_decoder_layers=len(decoder.layers),
            final_norm=encoder.config.final_norm,
            embedding_dropout=0.0,
        )
        model = cls(config)
        model.encoder, model.decoder = encoder, decoder
        return model.train(module.training)
