"""Linformer: keys and values compressed along the length by trained maps, so that each query sees `rank` of them.

Shapes: B batch, H heads, T query positions, S key positions, E width of a head.
"""

import torch
from torch import Tensor, nn

from course_lib.attention import Options
from course_lib.checks import Count, checked
from course_lib.variants.efficient.base import EfficientAttention, softmax_weights


class LinformerAttention(EfficientAttention):
    """Plain attention to `rank` trained mixtures of the keys, and of the values.

    The mixtures reach over all positions, so nothing can be causal, and the length is bounded. The maps are trained:
    before that they approximate nothing. Both are shared by the heads.

    Args:
        max_length: the longest S; shorter sequences use the first columns of the maps.
        rank: mixtures of each kind.

    Source: Wang et al. 2020, "Linformer", section 4, equation 7.
    """

    takes_causal = False
    takes_bias = False
    takes_any_mask = False

    @checked
    def __init__(self, max_length: Count, rank: Count) -> None:
        super().__init__()
        self.key_map = nn.Parameter(torch.empty(rank, max_length))
        self.value_map = nn.Parameter(torch.empty(rank, max_length))
        for parameter in (self.key_map, self.value_map):
            nn.init.normal_(parameter, std=max_length**-0.5)  # mixtures about as long as what they mix

    def form(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Compress, then attend."""
        key_map, value_map = self._maps(key, options.mask)
        weights = softmax_weights(query, key_map @ key, options._replace(mask=None))
        weights = torch.dropout(weights, options.dropout, True)
        return weights @ (value_map @ value)  # (B, H, T, rank) @ (B, H, rank, E')

    def weights(self, query: Tensor, key: Tensor, options: Options) -> Tensor:
        """Softmax over the mixtures, times the mixtures of the values; the rows do not sum to one."""
        key_map, value_map = self._maps(key, options.mask)
        return softmax_weights(query, key_map @ key, options._replace(mask=None)) @ value_map

    def _maps(self, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The maps for these keys, (rank, S) or (B, H or 1, rank, S), zero at hidden ones."""
        S, limit = key.size(-2), self.key_map.size(-1)
        if limit < S:
            raise ValueError(f"key: expected at most max_length={limit} positions, got {S}")
        maps = self.key_map[:, :S].to(key.dtype), self.value_map[:, :S].to(key.dtype)
        return maps if mask is None else (maps[0] * mask, maps[1] * mask)
