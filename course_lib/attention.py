"""Scaled dot-product attention and the single-head layers built on it.

Shapes: B batch, H heads, T query positions, S key positions, D model width, E head width.
Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks import (
    check_choice,
    check_flag,
    check_floating,
    check_integer,
    check_mask,
    check_number,
    check_probability,
    kind,
)
from course_lib.masks import causal_mask, combine_masks

Backend = Literal["auto", "explicit", "fused"]
Form = Callable[[Tensor, Tensor, Tensor, "Options"], Any]  # the output, or the output and the weights
_SHORT = 512  # positions up to which `short_attention` is the faster one


class Options(NamedTuple):
    """What a call of attention says beside its inputs, once it is checked; see `scaled_dot_product_attention`."""

    mask: Tensor | None
    causal: bool
    scale: float
    dropout: float = 0.0
    bias: Tensor | None = None


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
        bias: finite numbers of the inputs' dtype added to the scaled scores, (T, S) or broadcastable as a mask is.
        return_weights: also return the weights (..., T, S) of this very pass, before dropout: each row sums to one.
        backend: "explicit" computes the scores and weights as tensors; "fused" calls torch's kernel, whose memory is
            linear in S; "auto" takes "explicit" if weights are asked for, else what is fastest.

    Returns:
        The output (..., T, E'), or (output, weights); zero, with finite gradients, for a query that may see nothing.

    Raises:
        ValueError: shapes or devices that do not fit, an unknown backend, a dropout outside [0, 1), a scale that is
            not finite or beyond 1e30, weights of the fused backend.
        TypeError: a mask or `causal` that is not boolean, inputs that are not floating-point tensors of one dtype.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.
    """
    check_inputs(query, key, value, mask, bias)
    check_flag("causal", causal)
    check_probability("dropout", dropout)
    check_number("scale", scale, least=-1e30, most=1e30, or_none=True)
    check_choice("backend", backend, ("auto", "explicit", "fused"))
    if backend == "fused" and return_weights:
        raise ValueError("return_weights: the fused backend never forms the weights; use backend='explicit'")
    options = Options(mask, causal, 1 / math.sqrt(query.size(-1)) if scale is None else scale, dropout, bias)
    output, weights = attend(query, key, value, options, "explicit" if return_weights else backend)
    return (output, weights) if return_weights else output


def attend(
    query: Tensor, key: Tensor, value: Tensor, options: Options, by: Backend | Form = "auto"
) -> tuple[Tensor, Any]:
    """Attend, inputs were checked: the output, and the weights (..., T, S), None unless they were formed.

    The one place that decides who computes attention. `by` is a backend, or a function that stands in for them all,
    such as the form of an efficient attention, or that of a compiled step.
    """
    if by == "auto":
        by = short_attention if _trains_short(query, key, options) else fused_attention
    elif isinstance(by, str):
        by = explicit_attention if by == "explicit" else fused_attention
    found = by(query, key, value, options)
    return found if isinstance(found, tuple) else (found, None)


def explicit_attention(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """The formula, step by step, of inputs that were checked: the output (..., T, E') and the weights (..., T, S)."""
    mask, causal, scale, dropout, bias = options
    if query.dtype == torch.float16:  # its largest number is 65,504, which a score may pass
        query, key = query.float(), key.float()
    scores = (query * scale) @ key.transpose(-2, -1)  # (..., T, E) @ (..., E, S) -> (..., T, S)
    if bias is not None:
        scores = scores + bias
    mask = combine_masks(mask, causal_mask(*scores.shape[-2:], device=query.device) if causal else None)
    if mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # A row without any visible key would be softmax of all -inf, which is NaN: leave it open, then zero it.
        empty = ~mask.any(dim=-1, keepdim=True)  # (..., T, 1)
        weights = scores.masked_fill(~(mask | empty), -math.inf).softmax(dim=-1).masked_fill(empty, 0.0)
    weights = weights.to(value.dtype)
    return F.dropout(weights, dropout) @ value, weights  # (..., T, S) @ (..., S, E') -> (..., T, E')


def fused_attention(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """The output alone, by torch's kernel, which picks the fastest implementation for the device."""
    mask, causal, scale, dropout, bias = options
    T, S = query.size(-2), key.size(-2)
    if scale < 1e-30:  # the kernel hides keys before it scales, and 0 * -inf is NaN
        query, scale = query * scale, 1.0
    causal = causal and T > 1  # an only query stands on the last key and sees all
    if causal and T == S and mask is None and bias is None:
        # Only here: for T != S the kernel's own flag aligns top-left, which is wrong with a cache.
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True, scale=scale)
    mask = combine_masks(mask, causal_mask(T, S, device=query.device) if causal else None)
    attn_mask, empty = bias, None
    if mask is not None:
        # Kernels differ on rows without any visible key (zero, NaN or a mean): open them, then zero their output.
        empty = ~mask.any(dim=-1, keepdim=True)  # (..., T, 1)
        visible = mask | empty
        attn_mask = visible if bias is None else bias.masked_fill(~visible, -math.inf)
    if attn_mask is not None and not query.is_cpu:
        # The full shape: not every kernel broadcasts by itself. Those of a CPU do, and a mask stays as small as it is.
        attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))  # -> (..., T, S)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p=dropout, scale=scale)
    return output if empty is None else output.masked_fill(empty, 0.0)


def short_attention(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
    """Causal attention by two batched products, (..., T, E) to (..., T, E'), for short texts that train in bfloat16.

    It holds the weights (..., T, T) for the backward pass, in which torch's fused kernel for CPUs makes little use of
    the processor's bfloat16 products. Scores are rounded to bfloat16 before the softmax, which that kernel does not do.
    """
    T = query.size(-2)
    hidden = query.new_full((T, T), -math.inf).triu(1)  # 0 where a query may look
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (query, key, value))  # (..., T, E) -> (N, T, E)
    scores = torch.baddbmm(hidden, q, k.mT, alpha=options.scale)  # (N, T, T)
    return (scores.softmax(dim=-1) @ v).reshape(*query.shape[:-1], v.size(-1))  # (N, T, E') -> (..., T, E')


def _trains_short(query: Tensor, key: Tensor, options: Options) -> bool:
    """Whether `short_attention` is the fastest: causal training in bfloat16 on a CPU, and nothing beside."""
    mask, causal, _, dropout, bias = options
    trains = query.requires_grad and torch.is_grad_enabled()
    plain = causal and not dropout and mask is None and bias is None
    half = query.is_cpu and query.dtype == torch.bfloat16
    return trains and plain and half and 1 < query.size(-2) == key.size(-2) <= _SHORT


def check_inputs(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None) -> None:
    """Raise what `scaled_dot_product_attention` raises for tensors that do not fit each other."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        check_floating(name, tensor)
        if tensor.dim() < 2:
            raise ValueError(f"{name}: expected at least two dimensions (length, width), got {tuple(tensor.shape)}")
    for name, tensor in (("key", key), ("value", value)):
        if tensor.device != query.device:
            raise ValueError(f"{name}: expected device {query.device} like query, got {tensor.device}")
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name}: expected {query.dtype} like query, got {tensor.dtype}")
        if tensor.shape[:-2] != query.shape[:-2]:
            raise ValueError(
                f"{name}: expected leading dimensions {tuple(query.shape[:-2])} like query, "
                f"got shape {tuple(tensor.shape)}"
            )
    if query.size(-1) == 0:
        raise ValueError(f"query: expected a width E of at least 1, got shape {tuple(query.shape)}")
    if key.size(-1) != query.size(-1):
        raise ValueError(f"key: expected width E={query.size(-1)} like query, got {key.size(-1)}")
    if value.size(-2) != key.size(-2):
        raise ValueError(f"value: expected length S={key.size(-2)} like key, got {value.size(-2)}")
    check_mask_and_bias(query, key, mask, bias)


def check_mask_and_bias(query: Tensor, key: Tensor, mask: Tensor | None, bias: Tensor | None) -> None:
    """Refuse what does not fit the scores of query (..., T, E) on key (..., S, E).

    Broadcasting would accept some shapes with another meaning, such as a (B, S) padding mask.
    """
    if mask is not None:
        check_mask("mask", mask)
    if bias is not None and (not isinstance(bias, Tensor) or bias.dtype != query.dtype):
        raise TypeError(f"bias: expected a tensor of {query.dtype} like query, got {kind(bias)}")
    full = (*query.shape[:-1], key.size(-2))
    for name, tensor in (("mask", mask), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.device != query.device:
            raise ValueError(f"{name}: expected device {query.device} like query, got {tensor.device}")
        if tensor.dim() == 2 and tuple(tensor.shape) == full[-2:]:
            continue
        if tensor.dim() != len(full) or any(
            size not in (1, whole) for size, whole in zip(tensor.shape, full, strict=True)
        ):
            raise ValueError(
                f"{name}: expected shape (T, S)={full[-2:]} or one that broadcasts to {full} with as many dimensions, "
                f"got {tuple(tensor.shape)}; a padding mask has shape (B, 1, 1, S)"
            )


class Attention(nn.Module):
    """What every module that attends shares: it calls `attend`, of inputs that were checked.

    `form` says who computes, and `explicit` who does while `record_weights` keeps the weights.
    """

    form: Backend | Form = "auto"
    explicit: Backend | Form = "explicit"
    records: tuple[tuple[dict[str, Tensor], str], ...] = ()  # where the weights are kept, and under which name

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """The output (..., T, E')."""
        output, weights = attend(query, key, value, options, self.explicit if self.records else self.form)
        for maps, name in self.records:
            maps[name] = weights
        return output


@contextmanager
def record_weights(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the attention weights of the passes that `module` makes in a `with` block.

    `with record_weights(model) as maps: model(x)` fills `maps`: the name of each attention inside, such as
    "decoder.layers.0.self_attention", or "" for `module` itself -> its weights (B, H, T, S), before dropout, in the
    order in which they were formed. They are those of the pass that ran, by the explicit backend, and gradients flow
    through them. Of several passes, such as the steps of generation, the last one stays.

    Raises ValueError for a module without attention, or with one inside that cannot give its weights.
    """
    maps: dict[str, Tensor] = {}
    attentions = {name: part for name, part in module.named_modules() if isinstance(part, Attention)}
    if not attentions:
        raise ValueError(f"module: expected one with attention inside, got {type(module).__name__}")
    forming: dict[Attention, str] = {}  # what forms weights, and the name that they get
    for name, part in attentions.items():
        inner, outside = getattr(part, "inner", None), name.rpartition(".")[0]
        if inner is None:  # what attends inside a `MultiHeadAttention` reports under the latter's name
            forming[part] = outside if outside in attentions else name
        elif not isinstance(inner, Attention):
            raise ValueError(f"module: {f'{name}.inner'.lstrip('.')} is a {type(inner).__name__}, not an `Attention`")
    for part, name in forming.items():
        part.records = (*part.records, (maps, name))
    try:
        yield maps
    finally:
        for part in forming:
            part.records = tuple(record for record in part.records if record[0] is not maps)


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
            check_integer(name, width)
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
            check_floating(name, tensor)
            if tensor.dim() < 2 or tensor.size(-1) != self.d_model:
                raise ValueError(f"{name}: expected shape (..., length, D={self.d_model}), got {tuple(tensor.shape)}")
        if context.shape[:-2] != x.shape[:-2]:
            raise ValueError(
                f"context: expected leading dimensions {tuple(x.shape[:-2])} like x, got shape {tuple(context.shape)}"
            )
        return self.query(x), self.key(context), self.value(context)


class _SingleHead(Attention):
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
        check_probability("dropout", dropout)
        self.projection = QKVProjection(d_model, d_key, d_value, bias=bias)
        self.dropout = dropout

    def _project_and_attend(self, x: Tensor, context: Tensor | None, mask: Tensor | None) -> Tensor:
        query, key, value = self.projection(x, context)
        check_mask_and_bias(query, key, mask, None)
        dropout = self.dropout if self.training else 0.0
        return self.attend(query, key, value, Options(mask, self.causal, 1 / math.sqrt(query.size(-1)), dropout))


class SelfAttention(_SingleHead):
    """One head in which the tokens of a sequence attend to each other; the output is as wide as the values.

    Args: as `QKVProjection`, and `dropout`, the probability of dropping a weight in training.
    """

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Attend within x (B, T, D) -> (B, T, E').

        `mask` is (T, T) or (B, 1 or T, T); there is no head dimension here, nor in the recorded weights (B, T, T).
        """
        return self._project_and_attend(x, None, mask)


class CausalSelfAttention(SelfAttention):
    """`SelfAttention` in which no token sees a later one, for sequences of any length."""

    causal = True


class CrossAttention(_SingleHead):
    """One head in which the tokens of one sequence attend to those of another; arguments as `SelfAttention`."""

    def forward(self, x: Tensor, context: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Queries of x (B, T, D) attend to context (B, S, D) -> (B, T, E')."""
        return self._project_and_attend(x, context, mask)
