"""The decoder: each position reads what came before it and, in an encoder-decoder, the whole source.

Shapes: B batch, T positions, S source positions, H heads, D model width. Source: Vaswani et al. 2017, section 3.1.
"""

import torch
from torch import Tensor, nn

from course_lib.cache import DecoderCache, LayerCache
from course_lib.checks import check_integer, check_integers, check_vectors, checked
from course_lib.config import TransformerConfig
from course_lib.layers import (
    Residual,
    Stack,
    build_attention,
    build_feed_forward,
    build_residual,
    config_from_torch,
    init_weights,
)
from course_lib.multi_head import MultiHeadAttention
from course_lib.positions import Rotation


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention unless switched off, then a feed-forward.

    Without cross-attention this is the layer of GPT. Initial weights are those of the parts; a stack draws them as its
    config says.
    """

    @checked
    def __init__(self, config: TransformerConfig, number: int = 0, *, cross: bool = True) -> None:
        super().__init__()
        self.self_attention = build_attention(config, number)
        self.self_attention_residual = build_residual(config)
        self.cross_attention = build_attention(config, cross=True) if cross else None
        self.cross_attention_residual = build_residual(config) if cross else None
        self.feed_forward = build_feed_forward(config)
        self.feed_forward_residual = build_residual(config)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        rotation: Rotation | None = None,
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Decode one layer: (B, T, D) -> (B, T, D).

        Args:
            x: (B, T, D).
            context: the encoder's output (B, S, D); needed with cross-attention, refused without.
            mask: hides keys of the self-attention beside the later ones, which are always hidden.
            context_mask: hides keys of the context; padding is (B, 1, 1, S).
            rotation, bias: positions, for the self-attention.
            cache: keys and values of earlier positions; see `KVCache`.
        """
        if (context is None) != (self.cross_attention is None):
            expected = "none, this layer has no cross-attention" if context is not None else "a tensor (B, S, D)"
            raise ValueError(f"context: expected {expected}")
        own, others = (None, None) if cache is None else cache
        residual = self.self_attention_residual
        x = residual.add(
            x, self.self_attention(residual.read(x), mask=mask, causal=True, rotation=rotation, bias=bias, cache=own)
        )
        if self.cross_attention is not None and self.cross_attention_residual is not None:
            residual = self.cross_attention_residual
            x = residual.add(x, self.cross_attention(residual.read(x), context, mask=context_mask, cache=others))
        residual = self.feed_forward_residual
        return residual.add(x, self.feed_forward(residual.read(x)))

    @classmethod
    @checked
    def from_torch(cls, module: nn.TransformerDecoderLayer) -> "DecoderLayer":
        """Take over a `torch.nn.TransformerDecoderLayer`; ours is always batch-first and causal by itself."""
        layer = cls(config_from_torch(module)).to(module.linear1.weight)
        layer.self_attention = MultiHeadAttention.from_torch(module.self_attn, fused=True)
        layer.cross_attention = MultiHeadAttention.from_torch(module.multihead_attn)
        layer.feed_forward.up.load_state_dict(module.linear1.state_dict())
        layer.feed_forward.down.load_state_dict(module.linear2.state_dict())
        norms = [module.norm1, module.norm2, module.norm3]
        residuals = [part for part in layer.children() if isinstance(part, Residual)]  # in order of construction
        for residual, norm in zip(residuals, norms, strict=True):
            residual.norm.load_state_dict(norm.state_dict())
        return layer.train(module.training)


class TransformerDecoder(Stack):
    """A stack of decoder layers over vectors (B, T, D); `config.n_decoder_layers` of them.

    With cross=False it is the body of a GPT. It knows nothing of tokens: `Transformer` and `LanguageModel` do.
    """

    @checked
    def __init__(self, config: TransformerConfig, *, cross: bool = True) -> None:
        layers: list[nn.Module] = [
            DecoderLayer(config, number, cross=cross) for number in range(config.n_decoder_layers)
        ]
        super().__init__(config, layers, bidirectional=False)
        self.cross = cross
        init_weights(self, config, n_residuals=(3 if cross else 2) * len(layers))

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Decode, no position sees a later one: (B, T, D) -> (B, T, D).

        Args:
            x: (B, T, D), the positions after those in the cache.
            context: the encoder's output (B, S, D), with cross-attention.
            mask: boolean, True = may attend, (T, all) or broadcastable to (B, H, T, all), where "all" counts the
                positions in the cache and x; padding is (B, 1, 1, all).
            context_mask: the same for the context, broadcastable to (B, H, T, S).
            positions: integers (T,) or (B, T) for rotary positions; those after the cache unless given.
            cache: from `new_cache`; read and extended.
        """
        check_vectors("x", x, self.config.d_model)
        if cache is not None and len(cache.layers) != len(self.layers):
            raise ValueError(f"cache: expected {len(self.layers)} layers, got {len(cache.layers)}")
        T = x.size(1)
        offset, S = (0, T) if cache is None else (cache.length, cache.keys_after(T))
        rotations, bias = self.position_inputs(x, positions, offset, S)
        for number, layer in enumerate(self.layers):
            x = layer(
                x,
                context,
                mask=mask,
                context_mask=context_mask,
                rotation=rotations[number],
                bias=bias,
                cache=None if cache is None else cache.layers[number],
            )
        return self.final_norm(x)

    @checked
    def new_cache(
        self, capacity: int | None = None, *, sliding: bool = True, dtype: torch.dtype | None = None
    ) -> DecoderCache:
        """Return an empty cache: of fixed capacity if given, else growing; in the dtype of the keys unless given.

        Layers with a window get a sliding one, whatever the capacity, unless `sliding` is False.
        """
        windows = [self.config.window_of(layer) if sliding else None for layer in range(len(self.layers))]
        return DecoderCache(windows, cross=self.cross, capacity=capacity, dtype=dtype)

    @classmethod
    @checked
    def from_torch(cls, module: nn.TransformerDecoder) -> "TransformerDecoder":
        """Take over a `torch.nn.TransformerDecoder`; see `DecoderLayer.from_torch`."""
        others = {"n_decoder_layers": len(module.layers), "final_norm": module.norm is not None}
        first: nn.TransformerDecoderLayer = module.layers[0]  # type: ignore[assignment]
        decoder = cls(config_from_torch(first, **others)).to(first.linear1.weight)
        decoder.layers = nn.ModuleList(DecoderLayer.from_torch(layer) for layer in module.layers)  # type: ignore[arg-type]
        if module.norm is not None:
            decoder.final_norm.load_state_dict(module.norm.state_dict())
        return decoder.train(module.training)


def shift_right(tokens: Tensor, start_id: int) -> Tensor:
    """Turn targets into the decoder's input for teacher forcing: (B, T) -> (B, T), `start_id` first, the last dropped.

    Position t then holds target t - 1, so predicting target t there is no look at the answer.
    """
    check_integers("tokens", tokens, "integer token ids")
    check_integer("start_id", start_id, 0)
    if tokens.dim() != 2 or tokens.size(1) == 0:
        raise ValueError(f"tokens: expected (B, T) with T of at least 1, got {tuple(tokens.shape)}")
    return torch.cat([tokens.new_full((tokens.size(0), 1), start_id), tokens[:, :-1]], dim=1)
