"""Tiled online softmax, the idea of FlashAttention: exact attention whose memory is linear in the length.

The scores are computed one tile of queries by one tile of keys at a time and never stored. A running maximum and a
running sum per query make the softmax come out right in one pass over the keys. Backward computes each tile again.

Shapes: T query positions, S key positions, E width of a head. Sources: Milakov and Gimelshein 2018 for the online
softmax; Dao et al. 2022 (FlashAttention), algorithms 1 and 4; Dao 2023 (FlashAttention-2) for the one saved number.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from course_lib.attention import Options, check_inputs
from course_lib.checks import check_integer
from course_lib.variants.efficient.base import EfficientAttention, softmax_weights


class TiledAttention(EfficientAttention):
    """`tiled_attention` as a module: equal to plain attention, outputs and gradients."""

    takes_dropout = False

    def __init__(self, tile: int = 128) -> None:
        super().__init__()
        check_integer("tile", tile)
        self.tile = tile

    def form(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Tile by tile."""
        mask, causal, scale, _, bias = options
        return _Tiled.apply(query, key, value, mask, bias, causal, scale, self.tile)

    def weights(self, query: Tensor, key: Tensor, options: Options) -> Tensor:
        """Those of plain attention."""
        return softmax_weights(query, key, options)


def tiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    bias: Tensor | None = None,
    tile: int = 128,
) -> Tensor:
    """Attend as `scaled_dot_product_attention` does, with no tensor larger than a tile of the scores.

    Args:
        query, key, value, mask, causal, scale, bias: as there.
        tile: queries and keys in a tile.

    Returns:
        (..., T, E'). Beside it, the forward pass keeps one number per query for the backward pass.
    """
    check_inputs(query, key, value, mask, bias)
    check_integer("tile", tile)
    scale = query.size(-1) ** -0.5 if scale is None else scale
    return _Tiled.apply(query, key, value, mask, bias, causal, scale, tile)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, *more):  # type: ignore[no-untyped-def,override]
        tiles = _Tiles(query, key, mask, bias, *more)
        output = query.new_empty(*query.shape[:-1], value.size(-1))
        log_sums = tiles.query.new_empty(query.shape[:-1])  # (..., T), one number per query
        for rows in tiles.rows():
            highest = tiles.query.new_full((*query.shape[:-2], rows.stop - rows.start, 1), -math.inf)
            total = torch.zeros_like(highest)
            mixed: Tensor | float = 0.0
            for columns in tiles.columns(rows):
                scores = tiles.scores(rows, columns)  # (..., tile, tile)
                new = torch.maximum(highest, scores.amax(-1, keepdim=True))
                shift = new.masked_fill(new == -math.inf, 0.0)  # nothing visible so far
                part = torch.exp(scores - shift)
                rescale = torch.exp(highest - shift)  # what was summed had the older maximum
                total = total * rescale + part.sum(-1, keepdim=True)
                mixed = mixed * rescale + part @ value[..., columns, :].to(part.dtype)
                highest = new
            empty = total == 0
            output[..., rows, :] = mixed / total.masked_fill(empty, 1.0)
            # exp(scores - this) are the weights; infinity makes them zero where nothing is visible
            log_sum = (highest + total.log()).masked_fill(empty, math.inf)
            log_sums[..., rows] = log_sum.squeeze(-1)
        ctx.save_for_backward(query, key, value, mask, bias, output, log_sums)
        ctx.more = more
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor):  # type: ignore[no-untyped-def,override]
        query, key, value, mask, bias, output, log_sums = ctx.saved_tensors
        tiles = _Tiles(query, key, mask, bias, *ctx.more)
        values, grad = value.to(tiles.query.dtype), grad.to(tiles.query.dtype)
        # The softmax pulls back to weights * (grad of weights - this), which needs no row of weights at once.
        correction = (grad * output).sum(-1, keepdim=True)  # (..., T, 1)
        grad_query, grad_key, grad_value = (torch.zeros_like(t) for t in (tiles.query, tiles.key, values))
        grad_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[4] else None
        for rows in tiles.rows():
            for columns in tiles.columns(rows):
                weights = torch.exp(tiles.scores(rows, columns) - log_sums[..., rows, None])
                grad_value[..., columns, :] += weights.mT @ grad[..., rows, :]
                grad_weights = grad[..., rows, :] @ values[..., columns, :].mT
                grad_scores = weights * (grad_weights - correction[..., rows, :])
                grad_query[..., rows, :] += grad_scores @ tiles.key[..., columns, :] * tiles.scale
                grad_key[..., columns, :] += grad_scores.mT @ tiles.query[..., rows, :]  # it holds the scale
                if grad_bias is not None:
                    part = _cut(grad_bias, rows, columns)
                    part += grad_scores.sum_to_size(part.shape)
        gradients = [g.to(query.dtype) for g in (grad_query, grad_key, grad_value)]
        return (*gradients, None, grad_bias, None, None, None)


class _Tiles:
    """Which tiles there are, and the scores of one, in float32 or better."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        causal: bool,
        scale: float,
        tile: int,
    ) -> None:
        wide = torch.promote_types(query.dtype, torch.float32)
        self.query, self.key = query.to(wide) * scale, key.to(wide)
        self.mask, self.bias, self.causal, self.scale, self.tile = mask, bias, causal, scale, tile
        self.T, self.S = query.size(-2), key.size(-2)

    def rows(self) -> Iterator[slice]:
        """Queries, tile by tile."""
        return (slice(start, min(start + self.tile, self.T)) for start in range(0, self.T, self.tile))

    def columns(self, rows: slice) -> Iterator[slice]:
        """Keys, tile by tile, without the tiles that lie after all these queries."""
        visible = min(self.S, rows.stop + self.S - self.T) if self.causal else self.S
        return (slice(start, min(start + self.tile, self.S)) for start in range(0, visible, self.tile))

    def scores(self, rows: slice, columns: slice) -> Tensor:
        """(..., tile, tile), -inf where hidden."""
        scores = self.query[..., rows, :] @ self.key[..., columns, :].mT
        if self.bias is not None:
            scores = scores + _cut(self.bias, rows, columns)
        if self.mask is not None:
            scores = scores.masked_fill(~_cut(self.mask, rows, columns), -math.inf)
        if self.causal and columns.stop - 1 > rows.start + self.S - self.T:
            places = torch.arange(rows.start, rows.stop, device=scores.device) + (self.S - self.T)
            later = torch.arange(columns.start, columns.stop, device=scores.device) > places[:, None]
            scores = scores.masked_fill(later, -math.inf)
        return scores


def _cut(scores_like: Tensor, rows: slice, columns: slice) -> Tensor:
    """A tile of a mask or bias, whose axes may have length 1."""
    everything = slice(None)
    return scores_like[
        ..., rows if scores_like.size(-2) > 1 else everything, columns if scores_like.size(-1) > 1 else everything
    ]
