"""What the attentions by blocks share: each block of queries attends to a short list of blocks of keys.

Shapes: B batch, H heads, n positions, b positions in a block, N blocks, M keys that a block sees, E width of a head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.attention import Options, fused_attention


def to_blocks(x: Tensor, size: int) -> Tensor:
    """Cut the positions into blocks, the last filled with zeros: (B, H, n, E) -> (B * H, N, b, E)."""
    x = F.pad(x, (0, 0, 0, -x.size(-2) % size))
    return x.flatten(0, 1).unflatten(1, (-1, size))  # (B, H, N * b, E) -> (B * H, N, b, E)


def gather_blocks(blocks: Tensor, index: Tensor) -> Tensor:
    """Each list of blocks, side by side: blocks (B * H, N, b, E), index (N', m) -> (B * H, N', m * b, E)."""
    # index_select: its backward pass is a sum by rows, many times faster on a CPU than that of indexing
    picked = blocks.index_select(1, index.flatten())
    return picked.unflatten(1, index.shape).flatten(2, 3)  # (B * H, N' * m, b, E) -> (B * H, N', m * b, E)


def attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, dropout: float, bias: Tensor | None
) -> Tensor:
    """Attend within each block: query (B * H, N, b, E), key, value (B * H, N, M, .) -> (B * H, N, b, E').

    `visible` is bool and broadcasts to (B * H, N, b, M); a query that sees nothing gets zero.
    """
    empty = ~visible.any(dim=-1, keepdim=True)  # (..., b, 1)
    # As numbers: torch's kernel would turn a boolean mask into numbers at its full, broadcast size.
    hidden = torch.zeros(visible.shape, dtype=query.dtype, device=query.device)
    hidden = hidden.masked_fill(~(visible | empty), -torch.inf)
    scores_bias = hidden if bias is None else hidden + bias
    output = fused_attention(query, key, value, Options(None, False, scale, dropout, scores_bias))
    return output.masked_fill(empty, 0.0)


def from_blocks(blocks: Tensor, batch: int, n: int) -> Tensor:
    """Undo `to_blocks`: (B * H, N, b, E) -> (B, H, n, E)."""
    return blocks.flatten(1, 2)[:, :n].unflatten(0, (batch, -1))
