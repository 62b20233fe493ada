"""Attention over short sequences by plain matrix products, for training in bfloat16 on a CPU.

There torch's fused kernel takes most of its time in the backward pass, which does not use the processor's bfloat16
products well; `benchmarks/training_step.py` has the difference it makes. Shapes as `course_lib.attention`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.attention import scaled_dot_product_attention

__all__ = ["ShortAttention"]


class ShortAttention(nn.Module):
    """Causal attention by two batched products, where that is faster than torch's fused kernel.

    That is in half precision on a CPU, up to `longest` positions: the weights (B, H, T, T) are held for the backward
    pass. Scores are rounded to the inputs' precision before the softmax, which the fused kernel does not do. Everything
    else, masks and other devices among it, goes to `scaled_dot_product_attention`. For
    `TransformerConfig(inner_attention=ShortAttention)`.
    """

    def __init__(self, longest: int = 512) -> None:
        super().__init__()
        if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
            raise ValueError(f"longest: expected an integer of at least 1, got {longest!r}")
        self.longest = longest
        self._hidden: Tensor | None = None  # (T, T): 0 where a query may look, else minus infinity

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        scale: float | None = None,
        **others: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend: (B, H, T, E) to (B, H, T, E'); arguments and results as `scaled_dot_product_attention`."""
        T, E = query.shape[-2:]
        half = query.dtype in (torch.bfloat16, torch.float16)
        special = others.get("dropout") or others.get("return_weights")
        special = special or any(others.get(name) is not None for name in ("mask", "bias"))
        if special or not (half and query.is_cpu and causal and T == key.size(-2) <= self.longest):
            return scaled_dot_product_attention(query, key, value, causal=causal, scale=scale, **others)
        if self._hidden is None or self._hidden.size(0) != T or self._hidden.dtype != query.dtype:
            self._hidden = torch.full((T, T), -math.inf, dtype=query.dtype).triu(1)
        q, k, v = (x.flatten(0, -3) for x in (query, key, value))  # (B, H, T, E) -> (B H, T, E)
        scores = torch.baddbmm(self._hidden, q, k.mT, alpha=E**-0.5 if scale is None else scale)  # (B H, T, T)
        return (scores.softmax(dim=-1) @ v).unflatten(0, query.shape[:-2])  # (B H, T, E') -> (B, H, T, E')
