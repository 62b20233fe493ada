"""Hierarchical attention: what is near position by position, what is far as the mean of ever larger cells.

Shapes: B batch, H heads, n positions, b in a block, N blocks, r cells in a group, M keys or cells that a block sees.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.attention import Options
from course_lib.checks import Count, checked
from course_lib.variants.efficient.base import EfficientAttention
from course_lib.variants.efficient.blocks import attend_in_blocks, from_blocks, gather_blocks, to_blocks


class _Far(NamedTuple):
    """One level: groups of the blocks, and which of them each block of queries sees."""

    group: int  # positions in a group
    groups: Tensor  # (N, 3), their numbers
    used: Tensor  # (N, 3)


class HierarchicalAttention(EfficientAttention):
    """Plain attention to the own block and its neighbours; farther groups, twice as large each level, as r cell means.

    A cell of c keys counts as c keys that all are its mean: its score gets + ln c. Every key is seen exactly once, so
    where the keys of each cell are equal the result is that of plain attention, and otherwise it is an approximation
    that blurs with distance. A query sees about 3 b + 3 r log2(n / b) keys and cells. A causal call drops what is
    later; every far group then lies wholly in the past.

    Args:
        block: b, positions in a block.
        cells: r, a divisor of b.

    Source: Zhu and Soricut 2021, "H-Transformer-1D", section 4; the lists are those of the fast multipole method, and
    queries stay exact.
    """

    takes_bias = False
    takes_any_mask = False

    @checked
    def __init__(self, block: Count = 32, cells: Count = 4) -> None:
        super().__init__()
        if block % cells:
            raise ValueError(f"cells: expected a divisor of block={block}, got {cells}")
        self.block, self.cells = block, cells

    def form(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Near keys and far cells in one softmax."""
        mask, causal, scale, dropout, _ = options
        B, T, S = query.size(0), query.size(-2), key.size(-2)
        dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)  # counts are sums of ones
        query, key, value = self._from_the_end(query, S).to(wide), key.to(wide), value.to(wide)
        sums = torch.cat([key, value, torch.ones_like(key[..., :1])], dim=-1)  # (B, H, S, E + E' + 1)
        sums = sums if mask is None else sums * mask.mT
        lists, counts, visible = self._lists(sums, causal)
        means, counts = lists[..., :-1] / counts.clamp(min=1)[..., None], counts[..., None, :]  # (B * H, N, 1, M)
        keys, values = means.split([key.size(-1), value.size(-1)], dim=-1)
        visible = visible & (counts > 0)
        weight = counts.clamp(min=1).log().expand(-1, -1, self.block, -1)
        output = attend_in_blocks(to_blocks(query, self.block), keys, values, visible, scale, dropout, weight)
        return from_blocks(output, B, S)[..., S - T :, :].to(dtype)

    def weights(self, query: Tensor, key: Tensor, options: Options) -> Tensor:
        """Each key's share of its cell's weight: the output for values that are the unit vectors."""
        S = key.size(-2)
        units = torch.eye(S, dtype=key.dtype, device=key.device).expand(*key.shape[:-2], S, S)
        return self.form(query, key, units, options._replace(dropout=0.0))

    def _from_the_end(self, query: Tensor, S: int) -> Tensor:
        """The queries at the last positions of S, zeros before."""
        if query.size(-2) > S:
            raise ValueError(f"query: expected at most as many queries as keys, S={S}, got {query.size(-2)}")
        return F.pad(query, (0, 0, S - query.size(-2), 0))

    def _lists(self, sums: Tensor, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
        """What each block sees: sums (B * H, N, M, .), how many keys each holds (B * H, N, M), visible (1, N, b, M)."""
        b, n = self.block, sums.size(-2)
        blocks = to_blocks(sums, b)
        N = blocks.size(1)
        numbers = torch.arange(N, device=sums.device)
        index = numbers[:, None] + torch.tensor([-1, 0] if causal else [-1, 0, 1], device=sums.device)
        used = (index >= 0) & (index < N)
        index = index.clamp(0, N - 1)
        queries = torch.arange(N * b, device=sums.device).view(N, b, 1)
        keys = (index[..., None] * b + torch.arange(b, device=sums.device)).view(N, 1, -1)  # -> (N, 1, m * b)
        visible = used.repeat_interleave(b, dim=-1)[:, None] & (keys < n) & (queries < n)
        parts, seen = [gather_blocks(blocks, index)], [visible & (keys <= queries) if causal else visible]
        for far in self._levels(numbers, causal):
            padded = F.pad(blocks.flatten(1, 2), (0, 0, 0, -(N * b) % far.group))
            cells = padded.unflatten(1, (-1, self.cells, far.group // self.cells)).sum(3)  # (B * H, groups, r, .)
            parts.append(gather_blocks(cells, far.groups))
            seen.append(far.used.repeat_interleave(self.cells, dim=-1)[:, None].expand(-1, b, -1) & (queries < n))
        lists = torch.cat(parts, dim=2)
        return lists, lists[..., -1].detach(), torch.cat(seen, dim=-1)[None]

    def _levels(self, numbers: Tensor, causal: bool) -> list[_Far]:
        """At each level: groups that are no neighbours, but whose parents are; so each pair meets at one level."""
        N, levels, size = len(numbers), [], 1
        while -(-N // size) > 2:  # with two groups left, all are neighbours
            own = numbers // size
            odd = own % 2
            # The children of the parent's neighbours, without own - 1, own and own + 1.
            index = torch.stack([own - 2, torch.where(odd == 1, own - 3, own + 3), own + 2], dim=-1)
            used = (index >= 0) & (index < -(-N // size))
            if causal:
                used = used & (index < own[:, None])
            levels.append(_Far(self.block * size, index.clamp(0, -(-N // size) - 1), used))
            size *= 2
        return levels
