"""Scaled dot-product attention and the single-head layers built on it.

Shapes: B batch, H heads, T query positions, S key positions, D model width, E head width.
Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
"""

import math
from typing import Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.masks import causal_mask, combine_masks

Backend = Literal["auto", "explicit", "fused"]


@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = ...,
    causal: bool = ...,
    scale: float | None = ...,
    dropout: float = ...,
    bias: Tensor | None = ...,
    return_weights: Literal[False] = ...,
    backend: Backend = ...,
) -> Tensor: ...


@overload
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = ...,
    causal: bool = ...,
    scale: float | None = ...,
    dropout: float = ...,
    bias: Tensor | None = ...,
    return_weights: Literal[True],
    backend: Backend = ...,
) -> tuple[Tensor, Tensor]: ...


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
    return_weights: bool = False,
    backend: Backend = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    """Average the values, weighted by how well each key answers each query: softmax(QK^T / sqrt(E)) V.

    Args:
        query: (..., T, E). The leading dimensions, usually (B, H), are the same in all three.
        key: (..., S, E).
        value: (..., S, E'), E' may differ from E.
        mask: boolean, True = may attend. (T, S), or as many dimensions as `query` and broadcastable to (..., T, S);
            a padding mask is (B, 1, 1, S), see `course_lib.masks`.
        causal: also hide later keys, aligned bottom-right: the last query sees every key.
        scale: factor on the scores, 1 / sqrt(E) unless given.
        dropout: probability of dropping a weight. The caller passes 0 outside training.
        bias: finite numbers added to the scaled scores, broadcastable to (..., T, S).
        return_weights: also return the weights (..., T, S) of this very pass, before dropout: each row sums to one.
        backend: "explicit" computes the scores and weights as tensors; "fused" calls torch's kernel, whose memory is
            linear in S; "auto" takes "explicit" if weights are asked for, else "fused".

    Returns:
        The output (..., T, E'), or (output, weights). A query that may attend to nothing gets output and weights zero,
        and finite gradients, on both backends.

    Raises:
        ValueError: shapes that do not fit, an unknown backend, a dropout outside 0..1, weights of the fused backend.
        TypeError: a mask that is not boolean, inputs of different dtypes.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    _check_inputs(query, key, value, mask, bias, dropout)
    if backend not in ("auto", "explicit", "fused"):
        raise ValueError(f"backend: expected 'auto', 'explicit' or 'fused', got {backend!r}")
    if backend == "fused" and return_weights:
        raise ValueError("return_weights: the fused backend never forms the weights; use backend='explicit'")
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale

    if backend == "explicit" or return_weights:
        output, weights = _explicit(query, key, value, mask, causal, scale, dropout, bias)
        return (output, weights) if return_weights else output
    return _fused(query, key, value, mask, causal, scale, dropout, bias)


def _explicit(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The formula, step by step."""
    scores = (query * scale) @ key.transpose(-2, -1)  # (..., T, E) @ (..., E, S) -> (..., T, S)
    if bias is not None:
        scores = scores + bias
    mask = combine_masks(mask, _causal(query, key) if causal else None)
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # A row without any visible key would be softmax of all -inf, which is NaN: leave it open, then zero it.
        empty = ~mask.any(dim=-1, keepdim=True)  # (..., T, 1)
        weights = scores.masked_fill(~(mask | empty), -math.inf).softmax(dim=-1).masked_fill(empty, 0.0)
    dropped = F.dropout(weights, dropout) if dropout > 0 else weights
    return dropped @ value, weights  # (..., T, S) @ (..., S, E') -> (..., T, E')


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
    bias: Tensor | None,
) -> Tensor:
    """The same through torch's kernel, which picks the fastest implementation for the device."""
    T, S = query.size(-2), key.size(-2)
    if causal and T == 1:
        causal = False  # the only query stands on the last key and sees all
    if causal and T == S and mask is None and bias is None:
        # Only here: for T != S the kernel's own flag aligns top-left, which is wrong with a cache.
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, scale=scale)
    mask = combine_masks(mask, _causal(query, key) if causal else None)
    attn_mask, empty = bias, None
    if mask is not None:
        # Kernels differ on rows without any visible key (zero, NaN or a mean): open them, then zero their output.
        empty = ~mask.any(dim=-1, keepdim=True)  # (..., T, 1)
        visible = mask | empty
        attn_mask = visible if bias is None else bias.masked_fill(~visible, -math.inf)
    if attn_mask is not None:
        # The full shape, without a copy: not every kernel broadcasts by itself.
        attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))  # -> (..., T, S)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p=dropout, scale=scale)
    return output if empty is None else output.masked_fill(empty, 0.0)


def _causal(query: Tensor, key: Tensor) -> Tensor:
    return causal_mask(query.size(-2), key.size(-2), device=query.device)


def _check_inputs(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, dropout: float
) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise ValueError(f"{name}: expected at least two dimensions (length, width), got {tuple(tensor.shape)}")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name}: expected {query.dtype} like query, got {tensor.dtype}")
        if tensor.shape[:-2] != query.shape[:-2]:
            raise ValueError(
                f"{name}: expected leading dimensions {tuple(query.shape[:-2])} like query, "
                f"got shape {tuple(tensor.shape)}"
            )
    if key.size(-1) != query.size(-1):
        raise ValueError(f"key: expected width E={query.size(-1)} like query, got {key.size(-1)}")
    if value.size(-2) != key.size(-2):
        raise ValueError(f"value: expected length S={key.size(-2)} like key, got {value.size(-2)}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout: expected a probability in [0, 1), got {dropout!r}")
    if mask is not None:
        if mask.dtype != torch.bool:
            raise TypeError(f"mask: expected a boolean mask (True = may attend), got {mask.dtype}")
        _check_scores_shape("mask", mask, query, key)
    if bias is not None:
        if not bias.is_floating_point():
            raise TypeError(f"bias: expected floating-point numbers to add to the scores, got {bias.dtype}")
        _check_scores_shape("bias", bias, query, key)


def _check_scores_shape(name: str, tensor: Tensor, query: Tensor, key: Tensor) -> None:
    """Refuse shapes that broadcasting would accept with another meaning, such as a (B, S) padding mask."""
    full = (*query.shape[:-1], key.size(-2))
    if tensor.dim() == 2 and tuple(tensor.shape) == full[-2:]:
        return
    fits = tensor.dim() == len(full) and all(size in (1, whole) for size, whole in zip(tensor.shape, full, strict=True))
    if not fits:
        raise ValueError(
            f"{name}: expected shape (T, S)={full[-2:]} or one that broadcasts to {full} with as many dimensions, "
            f"got {tuple(tensor.shape)}; a padding mask has shape (B, 1, 1, S)"
        )


class QKVProjection(nn.Module):
    """Three linear maps that turn each token into a query, a key and a value.

    Args:
        d_model: width D of the input.
        d_key: width E of queries and keys, D unless given.
        d_value: width E' of the values, E unless given.
        bias: whether the maps add a bias.

    Source: Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(
        self, d_model: int, d_key: int | None = None, d_value: int | None = None, *, bias: bool = False
    ) -> None:
        super().__init__()
        d_key = d_model if d_key is None else d_key
        d_value = d_key if d_value is None else d_value
        for name, width in (("d_model", d_model), ("d_key", d_key), ("d_value", d_value)):
            if not isinstance(width, int) or width < 1:
                raise ValueError(f"{name}: expected an integer of at least 1, got {width!r}")
        self.d_model = d_model
        self.query = nn.Linear(d_model, d_key, bias=bias)
        self.key = nn.Linear(d_model, d_key, bias=bias)
        self.value = nn.Linear(d_model, d_value, bias=bias)

    def forward(self, x: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project: x (..., T, D), context (..., S, D) -> query (..., T, E), key (..., S, E), value (..., S, E').

        Queries come from `x`; keys and values from `context`, which is `x` itself unless given.
        """
        context = x if context is None else context
        for name, tensor in (("x", x), ("context", context)):
            if tensor.dim() < 2 or tensor.size(-1) != self.d_model:
                raise ValueError(f"{name}: expected shape (..., length, D={self.d_model}), got {tuple(tensor.shape)}")
        return self.query(x), self.key(context), self.value(context)


class _SingleHead(nn.Module):
    """What the single-head layers share: three projections, then attention, and no output projection."""

    causal = False

    def __init__(
        self,
        d_model: int,
        d_key: int | None = None,
        d_value: int | None = None,
        *,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout: expected a probability in [0, 1), got {dropout!r}")
        self.projection = QKVProjection(d_model, d_key, d_value, bias=bias)
        self.dropout = dropout

    def _attend(
        self, x: Tensor, context: Tensor | None, mask: Tensor | None, return_weights: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        query, key, value = self.projection(x, context)
        dropout = self.dropout if self.training else 0.0
        if return_weights:
            return scaled_dot_product_attention(
                query, key, value, mask=mask, causal=self.causal, dropout=dropout, return_weights=True
            )
        return scaled_dot_product_attention(
            query, key, value, mask=mask, causal=self.causal, dropout=dropout, backend="auto"
        )


class SelfAttention(_SingleHead):
    """One head in which the tokens of a sequence attend to each other; the output is as wide as the values.

    Args: as `QKVProjection`, and `dropout`, the probability of dropping a weight in training.
    """

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend within x (B, T, D) -> (B, T, E'), or also the weights (B, T, T).

        `mask` is (T, T) or (B, 1 or T, T); there is no head dimension here.
        """
        return self._attend(x, None, mask, return_weights)


class CausalSelfAttention(SelfAttention):
    """`SelfAttention` in which no token sees a later one, for sequences of any length."""

    causal = True


class CrossAttention(_SingleHead):
    """One head in which the tokens of one sequence attend to those of another; arguments as `SelfAttention`."""

    def forward(
        self, x: Tensor, context: Tensor, *, mask: Tensor | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Queries of x (B, T, D) attend to context (B, S, D) -> (B, T, E'), or also the weights (B, T, S)."""
        return self._attend(x, context, mask, return_weights)
