"""torch's flex attention for a pattern: one compiled kernel that skips the blocks without a visible pair."""

import functools
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def flex_attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Callable[[Tensor, Tensor], Tensor], scale: float
) -> Tensor:
    """Attend (B, H, n, E) -> (B, H, n, E) where `visible` says so of positions of queries and keys.

    The first call for a shape compiles, which takes seconds.

    Raises ValueError on a CPU where gradients are asked for: torch has no backward pass for it there; RuntimeError
    where there is no C++ compiler.
    """
    if query.device.type == "cpu":
        if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
            raise ValueError("backend: 'flex' has no backward pass on a CPU; use 'auto' or torch.no_grad()")
        if not any(shutil.which(name) for name in ("g++", "clang++", "c++", "cl")):
            raise RuntimeError("backend: 'flex' compiles a kernel and found no C++ compiler; use 'auto'")
    n = query.size(-2)

    def mask_mod(b: Tensor, h: Tensor, position: Tensor, other: Tensor) -> Tensor:
        return visible(position, other)

    block_mask = create_block_mask(mask_mod, None, None, n, n, device=query.device.type)
    return _compiled()(query, key, value, block_mask=block_mask, scale=scale)


@functools.cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False)
