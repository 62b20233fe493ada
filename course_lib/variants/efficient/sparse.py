"""Sparse patterns: sliding window with global positions (Longformer), and random blocks beside them (BigBird).

A pattern is a mask. What makes it cheap is that only blocks that hold a visible pair are computed.

Shapes: B batch, H heads, T query positions, S key positions, n of both, E width of a head, N blocks, b in a block.
"""

from abc import abstractmethod
from typing import Literal, get_args

import torch
from torch import Tensor

from course_lib.attention import Options, fused_attention
from course_lib.checks import CountOrZero, check_choice, check_integer, checked
from course_lib.masks import combine_masks
from course_lib.variants.efficient.base import EfficientAttention, softmax_weights
from course_lib.variants.efficient.blocks import attend_in_blocks, from_blocks, gather_blocks, to_blocks
from course_lib.variants.efficient.flex import flex_attend

SparseBackend = Literal["auto", "blocks", "dense", "flex"]


class SparseAttention(EfficientAttention):
    """Plain attention under a fixed pattern; a mask given in a call hides more.

    The first `n_global` positions see all and are seen by all. Those of a causal call are only seen by all: what they
    see ends at themselves.

    Args:
        block: positions in a block, b.
        n_global: how many global positions.
        backend: "blocks" computes the blocks that hold a visible pair; "dense" computes all pairs under the mask;
            "flex" is torch's flex attention, compiled for the pattern, without mask, bias or dropout, and on a CPU
            without gradients. "auto" takes "blocks", or "dense" where that is no more work: short sequences, and
            queries that are fewer than the keys, as with a cache.
    """

    def __init__(self, *, block: int, n_global: int = 0, backend: SparseBackend = "auto") -> None:
        super().__init__()
        check_integer("block", block)
        check_integer("n_global", n_global, 0)
        check_choice("backend", backend, get_args(SparseBackend))
        self.block, self.n_global, self.backend = block, n_global, backend
        self._known: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}
        self._layouts: dict[tuple[int, bool], Tensor] = {}

    @abstractmethod
    def near(self, query: Tensor, key: Tensor, n: int, causal: bool) -> Tensor:
        """Whether the pattern, global positions and causality aside, lets positions `query` see positions `key`."""

    @abstractmethod
    def near_blocks(self, n_blocks: int, causal: bool) -> Tensor:
        """Which blocks of keys hold something that a block of queries sees by `near`: bool (N, N)."""

    def visible(self, query: Tensor, key: Tensor, n: int, causal: bool) -> Tensor:
        """Whether positions `query` see positions `key`, integer tensors that broadcast, of n positions in all."""
        seen = self.near(query, key, n, causal) | (key < self.n_global) | (query < self.n_global)
        return seen & (key <= query) if causal else seen

    def pattern(self, T: int, S: int | None = None, *, causal: bool, device: torch.device | None = None) -> Tensor:
        """The pattern as a mask: bool (T, S), S = T unless given, the last query on the last key."""
        S = T if S is None else S
        queries = torch.arange(S - T, S, device=device)[:, None]
        return self.visible(queries, torch.arange(S, device=device), S, causal)

    def weights(self, query: Tensor, key: Tensor, options: Options) -> Tensor:
        """Those of plain attention under the pattern."""
        mask = self._full_mask(query, key, options.mask, options.causal)
        return softmax_weights(query, key, options._replace(mask=mask, causal=False))

    def form(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """By the backend."""
        mask, causal, scale, dropout, bias = options
        T, S = query.size(-2), key.size(-2)
        if self.backend == "flex":
            if mask is not None or bias is not None or dropout > 0 or T != S:
                raise ValueError("backend: 'flex' is for T = S without mask, bias or dropout; use 'auto'")
            return flex_attend(query, key, value, self, causal=causal, scale=scale)
        index, used = self._lists(-(-S // self.block), causal)
        work = index.size(1) * self.block + self.n_global  # keys that a query is compared with
        if T != S and self.backend == "blocks":
            raise ValueError(f"query: expected as many queries as keys for backend 'blocks', got T={T}, S={S}")
        if self.backend == "dense" or T != S or (self.backend == "auto" and work >= S):
            mask = self._full_mask(query, key, mask, causal)
            return fused_attention(query, key, value, options._replace(mask=mask, causal=False))
        output = self._by_blocks(query, key, value, index, used, options)
        g = min(self.n_global, S)
        if g and not causal:  # global queries see everything: full rows
            some = options._replace(mask=_first_rows(mask, g), bias=_first_rows(bias, g))
            rows = fused_attention(query[..., :g, :], key, value, some)
            output = torch.cat([rows, output[..., g:, :]], dim=-2)
        return output

    def _full_mask(self, query: Tensor, key: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
        pattern = self.pattern(query.size(-2), key.size(-2), causal=causal, device=query.device)
        return combine_masks(mask, pattern)

    def _lists(self, n_blocks: int, causal: bool) -> tuple[Tensor, Tensor]:
        """The blocks of keys for each block of queries, (N, m), and which entries of the lists are used."""
        if (n_blocks, causal) not in self._known:
            layout = self.near_blocks(n_blocks, causal)
            index = layout.int().argsort(dim=-1, descending=True, stable=True)[:, : int(layout.sum(-1).max())]
            self._known[n_blocks, causal] = index, layout.gather(1, index)
        return self._known[n_blocks, causal]

    def _by_blocks(
        self, query: Tensor, key: Tensor, value: Tensor, index: Tensor, used: Tensor, options: Options
    ) -> Tensor:
        mask, causal, scale, dropout, bias = options
        B, H, n, _ = query.shape
        N, b, g = index.size(0), self.block, min(self.n_global, n)
        index, used = index.to(query.device), used.to(query.device)
        steps = torch.arange(b, device=query.device)
        queries = torch.arange(N * b, device=query.device).view(N, b, 1)  # positions
        keys = (index[..., None] * b + steps).view(N, 1, -1)  # (N, m, b) -> (N, 1, m * b)
        visible = self.near(queries, keys, n, causal) & (keys >= g) & (keys < n) & (queries < n)
        visible = visible & used.repeat_interleave(b, dim=-1)[:, None]
        key_blocks, value_blocks = (gather_blocks(to_blocks(t, b), index) for t in (key, value))
        if g:  # the global keys stand in front of every list
            first = torch.arange(g, device=query.device).expand(N, 1, g)
            keys = torch.cat([first, keys], dim=-1)
            visible = torch.cat([(queries < n).expand(N, b, g), visible], dim=-1)
            key_blocks, value_blocks = (
                torch.cat([t[..., :g, :].flatten(0, 1)[:, None].expand(-1, N, -1, -1), blocks], dim=2)
                for t, blocks in ((key, key_blocks), (value, value_blocks))
            )  # (B, H, g, E) -> (B * H, N, g, E)
        if causal:
            visible = visible & (keys <= queries)
        if mask is not None:
            visible = visible & _gathered(mask, queries, keys, B, H, n)
        bias = None if bias is None else _gathered(bias, queries, keys, B, H, n)
        query_blocks = to_blocks(query, b)
        visible = visible if visible.dim() == 4 else visible[None]  # (1 or B * H, N, b, M)
        output = attend_in_blocks(query_blocks, key_blocks, value_blocks, visible, scale, dropout, bias)
        return from_blocks(output, B, n)


class SlidingWindowAttention(SparseAttention):
    """Each position sees the `window` latest, itself included, and in a call that is not causal as many to the right.

    The same mask as `course_lib.masks.sliding_window_mask`, and `n_global` first positions that see all and are seen
    by all. Longformer has further projections for the global positions; here they share those of the rest.

    Source: Beltagy et al. 2020, "Longformer", section 3.1.
    """

    def __init__(self, window: int, *, n_global: int = 0, backend: SparseBackend = "auto") -> None:
        check_integer("window", window)
        super().__init__(block=max(16, -(-window // 2)), n_global=n_global, backend=backend)
        self.window = window

    def near(self, query: Tensor, key: Tensor, n: int, causal: bool) -> Tensor:
        """Closer than the window."""
        return (query - key).abs() < self.window

    def near_blocks(self, n_blocks: int, causal: bool) -> Tensor:
        """A band."""
        reach = -(-(self.window - 1) // self.block)
        offsets = torch.arange(n_blocks)[:, None] - torch.arange(n_blocks)
        return (offsets >= 0) & (offsets <= reach) if causal else offsets.abs() <= reach


class BigBirdAttention(SparseAttention):
    """Blocks: the own one and its neighbours, the first ones, and a few drawn at random for each block of queries.

    Without causality the draw depends on the length, so a sequence padded to another length has other random blocks;
    a causal draw for a block depends on its place only.

    Args:
        block: positions in a block.
        n_random: random blocks for each block of queries.
        n_global: first positions that see all and are seen by all.
        seed: of the draw.

    Source: Zaheer et al. 2020, "Big Bird", section 2.
    """

    @checked
    def __init__(
        self,
        block: int,
        *,
        n_random: CountOrZero = 2,
        n_global: int = 0,
        seed: int = 0,
        backend: SparseBackend = "auto",
    ) -> None:
        super().__init__(block=block, n_global=n_global, backend=backend)
        check_integer("n_random", n_random, 0)
        self.n_random, self.seed = n_random, seed

    def near(self, query: Tensor, key: Tensor, n: int, causal: bool) -> Tensor:
        """In a block that the block of the query sees."""
        layout = self._layout(-(-n // self.block), causal).to(query.device)
        return layout[query // self.block, key // self.block]

    def near_blocks(self, n_blocks: int, causal: bool) -> Tensor:
        """Neighbours and the drawn."""
        return self._layout(n_blocks, causal)

    def _layout(self, n_blocks: int, causal: bool) -> Tensor:
        if (n_blocks, causal) not in self._layouts:
            numbers = torch.arange(n_blocks)
            layout = (numbers[:, None] - numbers).abs() <= 1
            for row in range(n_blocks):
                others = (~layout[row] & (numbers * self.block >= self.n_global)).nonzero()[:, 0]
                others = others[others < row] if causal else others
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + row)
                layout[row, others[torch.randperm(len(others), generator=generator)[: self.n_random]]] = True
            self._layouts[n_blocks, causal] = layout.tril() if causal else layout
        return self._layouts[n_blocks, causal]


def _first_rows(scores_like: Tensor | None, count: int) -> Tensor | None:
    """A mask or bias for the first queries."""
    return scores_like if scores_like is None or scores_like.size(-2) == 1 else scores_like[..., :count, :]


def _gathered(scores_like: Tensor, queries: Tensor, keys: Tensor, B: int, H: int, n: int) -> Tensor:
    """A mask or bias at these positions: (n, n) or broadcastable to (B, H, n, n) -> (B * H or 1, N, b or 1, M)."""
    full = scores_like if scores_like.dim() == 4 else scores_like[None, None]
    rows = queries.clamp(max=n - 1) if full.size(-2) > 1 else queries[:, :1] * 0
    columns = keys.clamp(max=n - 1) if full.size(-1) > 1 else keys * 0
    picked = full[:, :, rows, columns]  # (B or 1, H or 1, N, b or 1, M)
    if picked.size(0) > 1 or picked.size(1) > 1:
        picked = picked.expand(B, H, *picked.shape[2:])
    return picked.flatten(0, 1)
