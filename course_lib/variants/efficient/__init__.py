"""Attention that costs less than n squared, in time, memory or both, behind the interface of plain attention.

| class | what it is | exact | memory in n |
|---|---|---|---|
| `TiledAttention` | plain attention, computed in tiles (Flash) | yes | linear |
| `SlidingWindowAttention` | a band, and global positions (Longformer) | under its pattern | linear |
| `BigBirdAttention` | random, neighbouring and global blocks | under its pattern | linear |
| `HierarchicalAttention` | near exactly, far as means | no | n log n |
| `LinformerAttention` | keys and values compressed by trained maps | no | linear |
| `PerformerAttention` | random features of softmax | in expectation | linear |
| `LinearAttention` | another kernel than softmax | another function | linear |

`gated_delta_rule` is the memory of the hybrids of 2025. Besides queries, keys and values it takes a share and a decay
for each position, so it is a function of its own.
"""

from .base import EfficientAttention
from .delta import gated_delta_rule
from .hierarchical import HierarchicalAttention
from .kernels import KernelAttention, LinearAttention, PerformerAttention
from .linformer import LinformerAttention
from .sparse import BigBirdAttention, SlidingWindowAttention, SparseAttention
from .tiled import TiledAttention, tiled_attention

__all__ = [
    "BigBirdAttention",
    "EfficientAttention",
    "HierarchicalAttention",
    "KernelAttention",
    "LinearAttention",
    "LinformerAttention",
    "PerformerAttention",
    "SlidingWindowAttention",
    "SparseAttention",
    "TiledAttention",
    "gated_delta_rule",
    "tiled_attention",
]
