"""The parts of a Llama that chapter 7 gives, for the exercises in which learners put them together."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x over the root of its mean square, times trained factors: (..., width) -> (..., width)"""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> (..., width)"""
        size = x.square().mean(dim=-1, keepdim=True) + self.eps
        return x * size.rsqrt() * self.weight


class Gated(nn.Module):
    """SwiGLU with its three maps, each token alone: (..., D) -> (..., D)"""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(d_model, d_ff, bias=False) for _ in range(2))
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class LlamaLayer(nn.Module):
    """A pre-norm layer with RMSNorm, rotary positions, grouped heads and a gate: (B, T, D) -> (B, T, D)"""

    def __init__(
        self, D: int, H: int, *, n_kv_heads: int, d_head: int, d_ff: int, eps: float, base: float, bias: bool,
        qk_norm: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.d_head, self.base = d_head, base
        self.query = nn.Linear(D, H * d_head, bias=bias)
        self.key = nn.Linear(D, n_kv_heads * d_head, bias=bias)
        self.value = nn.Linear(D, n_kv_heads * d_head, bias=bias)
        self.output = nn.Linear(H * d_head, D, bias=bias)
        self.query_norm = RMSNorm(d_head, eps) if qk_norm else nn.Identity()
        self.key_norm = RMSNorm(d_head, eps) if qk_norm else nn.Identity()
        self.feed_forward = Gated(D, d_ff)
        self.first_norm, self.second_norm = RMSNorm(D, eps), RMSNorm(D, eps)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """(B, H, T, E), (T,) -> (B, H, T, E); pairs are (i, i + E / 2)"""
        half = x.size(-1) // 2
        angle = positions[:, None] * self.base ** (-torch.arange(half, device=x.device) / half)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1).to(x.dtype)

    def attention(self, x: Tensor, positions: Tensor, mask: Tensor, cache: dict[str, Tensor] | None) -> Tensor:
        """(B, T, D), (T,), (T, S + T), a dict for keys and values (B, G, S, E) or None -> (B, T, D)"""
        maps = self.query, self.key, self.value
        q, k, v = (m(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2) for m in maps)
        q, k = self.rotate(self.query_norm(q), positions), self.rotate(self.key_norm(k), positions)
        if cache:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        if cache is not None:
            cache["k"], cache["v"] = k, v
        k, v = (one.repeat_interleave(q.size(1) // k.size(1), dim=1) for one in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        """(B, T, D), (T,), (T, S + T), None or a dict -> (B, T, D)"""
        x = x + self.attention(self.first_norm(x), positions, mask, cache)
        return x + self.feed_forward(self.second_norm(x))
