"""Parts of models that only benchmarks use."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.attention import scaled_dot_product_attention


class ShortAttention(nn.Module):
    """Causal attention by two batched products, where that is faster than torch's fused kernel.

    That is for training in half precision on a CPU, up to `longest` positions: the weights (B, H, T, T) are held for
    the backward pass, in which the fused kernel does not use the processor's bfloat16 products well. Scores are rounded
    to the inputs' precision before the softmax, which the fused kernel does not do. Everything else, masks and other
    devices among it, goes to `scaled_dot_product_attention`. For `TransformerConfig(inner_attention=ShortAttention)`.
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
    ) -> Tensor:
        """Attend: (B, H, T, E) to (B, H, T, E'); arguments as `scaled_dot_product_attention`."""
        T, E = query.shape[-2:]
        half = query.dtype in (torch.bfloat16, torch.float16)
        special = others.get("dropout") or any(others.get(name) is not None for name in ("mask", "bias"))
        if special or not (half and query.is_cpu and causal and T == key.size(-2) <= self.longest):
            return scaled_dot_product_attention(query, key, value, causal=causal, scale=scale, **others)
        if self._hidden is None or self._hidden.size(0) != T or self._hidden.dtype != query.dtype:
            self._hidden = torch.full((T, T), -math.inf, dtype=query.dtype).triu(1)
        q, k, v = (x.flatten(0, -3) for x in (query, key, value))  # (B, H, T, E) -> (B H, T, E)
        scores = torch.baddbmm(self._hidden, q, k.mT, alpha=E**-0.5 if scale is None else scale)  # (B H, T, T)
        return (scores.softmax(dim=-1) @ v).unflatten(0, query.shape[:-2])  # (B H, T, E') -> (B, H, T, E')


class RunEmbedding(nn.Module):
    """Tables with a vector for each token and those before it, zero at the start: pairs, and longer runs, added up.

    Each pair has a row; longer runs share rows by a hash. The first tokens, which end no run, have the vector zero.

    Args:
        lengths: of the runs, 2 for pairs.
        d_model: width D.
        vocab_size: V.
        n_rows: of the tables of runs longer than pairs.
    """

    def __init__(self, lengths: tuple[int, ...], d_model: int, vocab_size: int, n_rows: int = 8192) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.tables = nn.ModuleDict(
            {str(n): nn.Embedding(vocab_size**2 if n == 2 else n_rows, d_model) for n in lengths}
        )
        for table in self.tables.values():
            nn.init.zeros_(table.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up the runs that end at each token: (B, T) -> (B, T, D)."""
        found: Any = 0
        for name, table in self.tables.items():
            n, row = int(name), torch.zeros_like(tokens[:, int(name) - 1 :])  # (B, T - n + 1)
            for i in range(n):
                row = row * self.vocab_size + tokens[:, i : tokens.size(1) - n + 1 + i]
            if n > 2:
                row = row * 2_654_435_761 % 2**32 % table.num_embeddings  # Knuth's multiplicative hash
            found = found + F.pad(table(row), (0, 0, n - 1, 0))
        return found

    def join(self, model: nn.Module) -> None:
        """Become a part of a model's embedding, added to its token vectors."""
        model.embedding.runs = self
        model.embedding.tokens.register_forward_hook(lambda part, tokens, vectors: vectors + self(*tokens))
