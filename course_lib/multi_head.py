"""Multi-head attention: several attentions side by side, each in its own subspace.

Shapes: B batch, T query positions, S key positions, H heads, G key/value heads, D model width, E head width.
Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.attention import Attention, Options, check_mask_and_bias
from course_lib.cache import KVCache
from course_lib.checks import Count, NotNegative, Scale, Share, check_flag, check_integer, check_vectors, checked
from course_lib.masks import combine_masks, sliding_window_mask
from course_lib.norms import NormKind, build_norm
from course_lib.positions import Rotation, apply_rotary


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Cut the width into heads: (B, T, H * E) -> (B, H, T, E)."""
    if x.dim() != 3 or x.size(-1) % n_heads != 0:
        raise ValueError(f"x: expected (B, T, width) with a width divisible by {n_heads} heads, got {tuple(x.shape)}")
    B, T, width = x.shape
    return x.view(B, T, n_heads, width // n_heads).transpose(1, 2)  # (B, T, H, E) -> (B, H, T, E)


def merge_heads(x: Tensor) -> Tensor:
    """Put the heads side by side again: (B, H, T, E) -> (B, T, H * E)."""
    return x.transpose(1, 2).flatten(2)  # (B, T, H, E) -> (B, T, H * E)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """Give each key/value head to `times` query heads in a row: (B, G, S, E) -> (B, G * times, S, E)."""
    check_integer("times", times)
    return x if times == 1 else x.repeat_interleave(times, dim=1)


class MultiHeadAttention(Attention):
    """H attentions on E-wide projections of the input, their outputs side by side, then a linear map.

    Args:
        d_model: width D of the input and the output.
        n_heads: H, heads of the queries.
        n_kv_heads: G, heads of keys and values; each serves H / G query heads in a row. H unless given; 1 is
            multi-query attention (Shazeer 2019), between is grouped-query attention (Ainslie et al. 2023).
        d_head: width E of a head, D / H unless given.
        d_context: width of the context in cross-attention, D unless given.
        bias: whether the linear maps add a bias.
        output_bias: whether the last of them does, `bias` unless given.
        dropout: probability of dropping an attention weight in training.
        scale: factor on the scores, 1 / sqrt(E) unless given (T5 uses 1).
        qk_norm: a norm over the width of each query and key, before they are turned, which bounds the scores: "unit"
            brings them to root mean square 1 (Henry et al. 2020), the others of `build_norm` have trained weights.
        norm_eps: of that norm.
        window: attend only to the `window` latest positions, the own one included; to window - 1 on either side in
            calls without `causal`. Self-attention only.
        fused: compute queries, keys and values of self-attention by one matrix product. A state dict of either form
            loads into the other.
        inner: attends in each head in place of `scaled_dot_product_attention`, whose arguments it takes, `backend`
            and `return_weights` aside; see `course_lib.variants.efficient`.

    Raises ValueError if the widths and heads do not fit each other.
    """

    @checked
    def __init__(
        self,
        d_model: Count,
        n_heads: Count,
        *,
        n_kv_heads: Count | None = None,
        d_head: Count | None = None,
        d_context: Count | None = None,
        bias: bool = True,
        dropout: Share = 0.0,
        scale: Scale | None = None,
        qk_norm: NormKind = "none",
        norm_eps: NotNegative = 1e-6,
        window: Count | None = None,
        fused: bool = False,
        inner: nn.Module | None = None,
        output_bias: bool | None = None,
    ) -> None:
        super().__init__()
        if d_head is None and d_model % n_heads != 0:
            raise ValueError(f"d_model: expected a multiple of n_heads={n_heads}, got {d_model}")
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        if n_heads % n_kv_heads != 0:
            raise ValueError(f"n_kv_heads: expected a divisor of n_heads={n_heads}, got {n_kv_heads}")
        d_context = d_model if d_context is None else d_context
        if fused and d_context != d_model:
            raise ValueError(f"fused: expected d_context equal to d_model={d_model}, got {d_context}")
        self.d_model, self.d_context = d_model, d_context
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.dropout, self.scale, self.window, self.fused = dropout, scale, window, fused
        self.inner = inner
        if inner is not None:
            self.form = self._by_inner

        d_query, d_key = n_heads * self.d_head, n_kv_heads * self.d_head
        self._widths = [d_query, d_key, d_key]
        if fused:
            self.qkv = nn.Linear(d_model, sum(self._widths), bias=bias)
        else:
            self.query = nn.Linear(d_model, d_query, bias=bias)
            self.key = nn.Linear(d_context, d_key, bias=bias)
            self.value = nn.Linear(d_context, d_key, bias=bias)
        self.output = nn.Linear(d_query, d_model, bias=bias if output_bias is None else output_bias)
        self.query_norm = self.key_norm = None
        if qk_norm != "none":
            self.query_norm = build_norm(qk_norm, self.d_head, eps=norm_eps, bias=False)
            self.key_norm = build_norm(qk_norm, self.d_head, eps=norm_eps, bias=False)
        self.register_load_state_dict_pre_hook(_fuse_or_separate)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw each projection from Xavier's uniform distribution, its own fan even when fused; biases are zero."""
        for weight in [*self.projection_weights(), self.output.weight]:
            nn.init.xavier_uniform_(weight)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def projection_weights(self) -> list[Tensor]:
        """The weights of queries (H * E, D), keys and values (G * E, D), as views if they are fused."""
        if self.fused:
            return self.separate(self.qkv.weight)
        return [self.query.weight, self.key.weight, self.value.weight]

    def separate(self, fused: Tensor) -> list[Tensor]:
        """Cut a weight or bias of the fused form into those of queries, keys and values, as views."""
        return list(fused.split(self._widths))

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Let x attend to `context`, or to itself if there is none: (B, T, D) -> (B, T, D).

        Args:
            x: (B, T, D).
            context: (B, S, d_context), for cross-attention.
            mask: boolean, True = may attend, (T, S) or broadcastable to (B, H, T, S). With a cache, S counts all
                positions so far.
            causal: also hide later positions.
            bias: numbers added to the scores, broadcastable to (B, H, T, S), such as `ALiBi` or
                `RelativePositionBias` gives.
            rotation: what `RotaryEmbedding` gives for the positions of x; turns queries and keys of self-attention.
            cache: earlier keys and values, which x also attends to and where its own are added. In cross-attention the
                first call fills it and later ones reuse it, without a look at `context`.
        """
        check_flag("causal", causal)
        if not (cache is None or hasattr(cache, "append")) or isinstance(cache, list):
            raise TypeError(f"cache: expected a KVCache, got {type(cache).__name__}")
        self._check(x, context, rotation, cache)
        query, key, value = self._project(x, context, rotation, cache)
        (B, H, T, E), S, dtype = query.shape, key.size(2), query.dtype
        if cache is not None and cache.window is not None:  # only the positions that the cache still has
            mask = mask[..., -S:] if mask is not None and mask.size(-1) == cache.length else mask
            bias = None if bias is None else bias[..., -S:]
        if self.window is not None and self.window < S:
            near = sliding_window_mask(T, S, window=self.window, causal=causal, device=x.device)
            mask, causal = combine_masks(mask, near), False
        query = query.to(key.dtype)  # a cache may keep another one
        if isinstance(bias, Tensor) and bias.is_floating_point():
            bias = bias.to(query.dtype)  # tables of positions stay float32 under autocast
        check_mask_and_bias(query, key, mask, bias)
        scale = 1 / math.sqrt(E) if self.scale is None else self.scale
        options = Options(mask, causal, scale, self.dropout if self.training else 0.0, bias)
        heads = self.attend(*self._grouped(query, key, value, options)).reshape(B, H, T, E)
        return self.output(merge_heads(heads.to(dtype)))

    def _project(
        self, x: Tensor, context: Tensor | None, rotation: Rotation | None, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, E) of x; keys and values (B, G, S, E) of the context and of the cache."""
        H, G = self.n_heads, self.n_kv_heads
        if context is None and self.fused:
            query, key, value = split_heads(self.qkv(x), H + 2 * G).split([H, G, G], dim=1)  # (B, H + 2 G, T, E), cut
        elif context is not None and cache is not None and cache.length > 0:
            query = split_heads(self._linear("query", x), H)
            return query if self.query_norm is None else self.query_norm(query), cache.keys, cache.values
        else:
            context = x if context is None else context
            query = split_heads(self._linear("query", x), H)
            key, value = split_heads(self._linear("key", context), G), split_heads(self._linear("value", context), G)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        if rotation is not None:
            # Keys are turned before they are stored: the turn depends on nothing but their own position.
            query, key = apply_rotary(query, rotation), apply_rotary(key, rotation)
        return (query, key, value) if cache is None else (query, *cache.append(key, value))

    def _linear(self, name: str, x: Tensor) -> Tensor:
        """One of the projections by itself: "query", "key" or "value"."""
        if not self.fused:
            return getattr(self, name)(x)
        which = _PARTS.index(name)
        bias = None if self.qkv.bias is None else self.separate(self.qkv.bias)[which]
        return F.linear(x, self.projection_weights()[which], bias)

    def _grouped(
        self, query: Tensor, key: Tensor, value: Tensor, options: Options
    ) -> tuple[Tensor, Tensor, Tensor, Options]:
        """The same with as many heads of keys and values as of queries."""
        (B, H, T, E), G = query.shape, key.size(1)
        share = H // G
        if share == 1 or self.form != "auto" or self.records or T > 1:  # recorded weights have a row for each head
            return query, repeat_heads(key, share), repeat_heads(value, share), options
        # In decoding, the heads of a group stand in as the queries of one: no copy of the cached keys.
        mask, bias = _fold(options.mask, G, share), _fold(options.bias, G, share)
        query = query.reshape(B, G, share, E)  # (B, H, 1, E) -> (B, G, H / G, E)
        return query, key, value, options._replace(mask=mask, bias=bias, causal=False)

    def _by_inner(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        return self.inner(query, key, value, **{**options._asdict(), "scale": self.scale})  # type: ignore[misc]

    def _check(self, x: Tensor, context: Tensor | None, rotation: Rotation | None, cache: KVCache | None) -> None:
        check_vectors("x", x, self.d_model)
        if context is not None:
            check_vectors("context", context, self.d_context, "S")
            if context.size(0) != x.size(0):
                raise ValueError(f"context: expected batch B={x.size(0)} like x, got {context.size(0)}")
            if self.window is not None:
                raise ValueError("context: attention with a window is for self-attention only")
            if rotation is not None:
                raise ValueError("rotation: positions of x and of context cannot be compared; for self-attention only")
        elif self.d_context != self.d_model:
            raise ValueError(f"context: needed, its width d_context={self.d_context} is not that of x")
        elif cache is not None and cache.window is not None and cache.window < (self.window or math.inf):
            raise ValueError(f"cache: forgets after {cache.window} positions, this attention has window={self.window}")

    @classmethod
    @checked
    def from_torch(cls, module: nn.MultiheadAttention, *, fused: bool = False) -> "MultiHeadAttention":
        """Take over a `torch.nn.MultiheadAttention`; ours is always batch-first and its masks have True = may attend.

        Raises ValueError for its options that no Transformer uses: kdim other than vdim, add_bias_kv, add_zero_attn.
        """
        if module.kdim != module.vdim:
            raise ValueError(f"module: expected kdim equal to vdim, got {module.kdim} and {module.vdim}")
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError("module: add_bias_kv and add_zero_attn have no counterpart here")
        if module.in_proj_weight is None:
            weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        else:
            weights = list(module.in_proj_weight.chunk(3))
        state = {f"{name}.weight": weight for name, weight in zip(_PARTS, weights, strict=True)}
        state["output.weight"] = module.out_proj.weight
        if module.in_proj_bias is not None:
            state.update({f"{name}.bias": b for name, b in zip(_PARTS, module.in_proj_bias.chunk(3), strict=True)})
            state["output.bias"] = module.out_proj.bias
        attention = cls(
            module.embed_dim,
            module.num_heads,
            d_context=module.kdim,
            bias=module.in_proj_bias is not None,
            dropout=module.dropout,
            fused=fused,
        ).to(module.out_proj.weight)
        attention.load_state_dict(state)
        return attention.train(module.training)


_PARTS = ("query", "key", "value")


def _fold(scores_like: Tensor | None, G: int, share: int) -> Tensor | None:
    """A mask or bias for one query, for the grouped form: (1 or B, H, 1, S) -> (1 or B, G, H / G, S)."""
    if scores_like is None or scores_like.dim() not in (2, 4):
        return scores_like
    scores_like = scores_like if scores_like.dim() == 4 else scores_like[None, None]  # (1, S) -> (1, 1, 1, S)
    return scores_like if scores_like.size(1) == 1 else scores_like.unflatten(1, (G, share)).squeeze(3)


def _fuse_or_separate(module: MultiHeadAttention, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before loading: join or cut the projections in the state dict if it has the other form."""
    for kind in ("weight", "bias"):
        whole, parts = f"{prefix}qkv.{kind}", [f"{prefix}{name}.{kind}" for name in _PARTS]
        if module.fused and all(part in state for part in parts):
            state[whole] = torch.cat([state.pop(part) for part in parts])
        elif not module.fused and whole in state and len(state[whole]) == sum(module._widths):
            state.update(zip(parts, module.separate(state.pop(whole)), strict=True))
