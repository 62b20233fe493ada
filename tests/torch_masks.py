"""Masks of every kind, in our form and in that of `torch.nn`, for the parity tests of whole blocks."""

import torch

from course_lib.masks import causal_mask, length_mask, sliding_window_mask

KINDS = ("none", "causal", "padding", "window", "per-head")


def make_mask(kind: str, B: int, H: int, T: int, S: int) -> torch.Tensor | None:
    """Ours: bool, True = may attend; every query sees something, as torch gives NaN where none does."""
    generator = torch.Generator().manual_seed(0)
    lengths = [S - (row * S) // (2 * B) for row in range(B)]
    return {
        "none": None,
        "causal": causal_mask(T, S),
        "padding": length_mask(lengths, S),
        "window": sliding_window_mask(T, S, window=2),
        "per-head": (torch.rand(B, H, T, S, generator=generator) < 0.5) | torch.eye(T, S, dtype=torch.bool),
    }[kind]


def for_torch(mask: torch.Tensor | None, B: int, H: int, T: int, S: int) -> torch.Tensor | None:
    """The same for `torch.nn`: True = hidden, (T, S) or (B * H, T, S)."""
    if mask is None or mask.dim() == 2:
        return None if mask is None else ~mask
    return ~mask.expand(B, H, T, S).reshape(B * H, T, S)
