"""torch's flex attention for a pattern: one compiled kernel that skips the blocks without a visible pair."""

import functools
import shutil
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention


class Pattern(Protocol):
    """What says which pairs of positions are visible; see `SparseAttention`."""

    def __hash__(self) -> int:
        """Block masks are kept for each pattern."""
        ...

    def visible(self, query: Tensor, key: Tensor, n: int, causal: bool) -> Tensor:
        """Whether positions `query` see positions `key`, of n positions in all."""
        ...


def flex_attend(query: Tensor, key: Tensor, value: Tensor, pattern: Pattern, *, causal: bool, scale: float) -> Tensor:
    """Attend (B, H, n, E) -> (B, H, n, E) under a pattern.

    The first call for a shape compiles, which takes seconds, and finds the blocks that hold a visible pair, for which
    it looks at all n * n pairs once; later calls of the same pattern use both again.

    Raises ValueError on a CPU where gradients are asked for: torch has no backward pass for it there; RuntimeError
    where there is no C++ compiler.
    """
    if query.device.type == "cpu":
        if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
            raise ValueError("backend: 'flex' has no backward pass on a CPU; use 'auto' or torch.no_grad()")
        if not any(shutil.which(name) for name in ("g++", "clang++", "c++", "cl")):
            raise RuntimeError("backend: 'flex' compiles a kernel and found no C++ compiler; use 'auto'")
    block_mask = _block_mask(pattern, query.size(-2), causal, query.device)
    return _compiled()(query, key, value, block_mask=block_mask, scale=scale)


@functools.lru_cache(maxsize=256)  # small: a number for each pair of blocks of 128 positions
def _block_mask(pattern: Pattern, n: int, causal: bool, device: torch.device) -> BlockMask:
    def mask_mod(b: Tensor, h: Tensor, position: Tensor, other: Tensor) -> Tensor:
        return pattern.visible(position, other, n, causal)

    return create_block_mask(mask_mod, None, None, n, n, device=device)


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)
