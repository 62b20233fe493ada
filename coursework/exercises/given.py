"""The parts of a model that chapters give, for the exercises in which learners write the whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2, each token alone: (B, T, D) -> (B, T, D)"""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        return self.down(self.up(x).relu())


class Attention(nn.Module):
    """Attention with H heads, which keeps its last weights: (B, T, D) and a mask, True: may be read -> (B, T, D)"""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        maps = [nn.Linear(d_model, d_model) for _ in range(4)]
        self.query, self.key, self.value, self.output = maps

    def split(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, H, T, E)"""
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D), a mask that broadcasts to (B, H, T, T) -> (B, T, D)"""
        q, k, v = (self.split(m(x)) for m in (self.query, self.key, self.value))
        scores = q @ k.mT / q.size(-1) ** 0.5  # (B, H, T, T)
        self.weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.output((self.weights @ v).transpose(1, 2).flatten(2))


class Embedding(nn.Module):
    """A vector for each word plus one for each position: ids (B, T) -> (B, T, D)"""

    def __init__(self, n_words: int, max_length: int, d_model: int) -> None:
        super().__init__()
        self.word = nn.Embedding(n_words, d_model)
        self.position = nn.Embedding(max_length, d_model)
        for table in (self.word, self.position):
            nn.init.normal_(table.weight, std=d_model**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, D)"""
        where = torch.arange(ids.size(1), device=ids.device)
        return self.word(ids) + self.position(where)
