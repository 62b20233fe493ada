"""Norms: bring each vector to one size, so that what a layer reads does not grow with depth.

Shapes: D model width; any axes before it.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from course_lib.checks import Count, NotNegative, check_width, checked

NormKind = Literal["layer", "rms", "rms_offset", "unit", "none"]


class LayerNorm(nn.Module):
    """Each vector minus its mean, over its standard deviation, times a trained weight, plus a trained bias.

    The layers of this package use `torch.nn.LayerNorm`, which computes the same in one kernel; this is the formula to
    read. The variance divides by D, not D - 1, and eps stands under the root.

    Source: Ba et al. 2016, equations 3 and 4.
    """

    @checked
    def __init__(self, d_model: Count, *, eps: NotNegative = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis: (..., D) -> (..., D)."""
        check_width("x", x, self.weight.size(0))
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)  # (..., 1)
        normed = centred * torch.rsqrt(variance + self.eps) * self.weight
        return normed if self.bias is None else normed + self.bias


class RMSNorm(nn.Module):
    """Each vector over its root mean square, times a trained weight; computed in float32 or better.

    No mean is subtracted and nothing added: cheaper than LayerNorm. With `offset` the weight is kept as its difference
    from 1, which small numbers hold more exactly, and multiplies before the result is rounded, as Gemma publishes it.

    Source: Zhang and Sennrich 2019, equation 4.
    """

    @checked
    def __init__(self, d_model: Count, *, eps: NotNegative = 1e-6, offset: bool = False) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.zeros(d_model) if offset else torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis: (..., D) -> (..., D)."""
        check_width("x", x, self.weight.size(0))
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        if self.offset:
            return (normed * (1 + self.weight.to(normed.dtype))).to(x.dtype)
        return self.weight * normed.to(x.dtype)


class UnitNorm(nn.Module):
    """Each vector to root mean square 1; nothing is trained. Source: Henry et al. 2020, for queries and keys."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis: (..., E) -> (..., E)."""
        wide = x.float() if x.dtype == torch.float16 else x  # squares must not overflow
        return (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + 1e-6)).to(x.dtype)


@checked
def build_norm(kind: NormKind, d_model: Count, *, eps: NotNegative = 1e-5, bias: bool = True) -> nn.Module:
    """Return a norm over vectors of width D; `bias` is for LayerNorm, "none" changes nothing, "unit" trains nothing."""
    if kind == "layer":
        return nn.LayerNorm(d_model, eps=eps, bias=bias)
    if kind in ("rms", "rms_offset"):
        return RMSNorm(d_model, eps=eps, offset=kind == "rms_offset")
    return UnitNorm() if kind == "unit" else nn.Identity()
