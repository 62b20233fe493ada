"""Attention masks: boolean, True = may attend, broadcastable to (B, H, T, S).

The polarity is that of `torch.nn.functional.scaled_dot_product_attention`. `torch.nn.MultiheadAttention` and
`torch.nn.TransformerEncoder` use the opposite one: pass them `~mask`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.checks import check_device, check_integer, check_integers, check_mask


def causal_mask(T: int, S: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
    """Let each query see itself and what came before: bool (T, S), S = T unless given.

    Aligned bottom-right: the last query sees every key, so key j is visible to query i iff j <= i + (S - T). With a
    cache of S - T earlier keys this is the right mask for T new queries. With T > S the first T - S queries see
    nothing. Source: Vaswani et al. 2017, section 3.2.3.
    """
    return _offsets(T, S, device) >= 0


def sliding_window_mask(
    T: int, S: int | None = None, *, window: int, causal: bool = True, device: torch.device | str | None = None
) -> Tensor:
    """Let each query see the `window` latest keys, itself included: bool (T, S), aligned bottom-right.

    With causal=False the window reaches as far to the right: window - 1 keys on either side.
    Source: Beltagy et al. 2020 (Longformer), section 3.1.
    """
    check_integer("window", window)
    offsets = _offsets(T, S, device)
    return (offsets >= 0) & (offsets < window) if causal else offsets.abs() < window


def prefix_mask(T: int, S: int | None = None, *, prefix: int, device: torch.device | str | None = None) -> Tensor:
    """Let every query see the first `prefix` keys and, after them, be causal: bool (T, S), aligned bottom-right.

    Source: Raffel et al. 2020 (T5), section 3.2.1, figure 4.
    """
    offsets = _offsets(T, S, device)
    check_integer("prefix", prefix, 0, offsets.size(1))
    return (offsets >= 0) | (torch.arange(offsets.size(1), device=device) < prefix)


def padding_mask(tokens: Tensor, pad_id: int) -> Tensor:
    """Hide padding from every query: integer tokens (B, S) -> bool (B, 1, 1, S), True where tokens != pad_id.

    The two axes of length 1 stand for heads and queries. Without them, (B, S) would be read as (T, S) when B = T.
    """
    check_integers("tokens", tokens, "integer token ids")
    if tokens.dim() != 2:
        raise ValueError(f"tokens: expected shape (B, S), got {tuple(tokens.shape)}")
    if isinstance(pad_id, bool) or not isinstance(pad_id, int):
        raise TypeError(f"pad_id: expected an integer token id, got {type(pad_id).__name__}")
    return (tokens != pad_id)[:, None, None, :]  # (B, S) -> (B, 1, 1, S)


def length_mask(lengths: Tensor | Sequence[int], S: int, *, device: torch.device | str | None = None) -> Tensor:
    """Hide what lies beyond each example's length: lengths (B,) -> bool (B, 1, 1, S), True where position < length.

    Raises ValueError if a length given as plain integers is outside 0..S; a tensor of lengths is not read back.
    """
    check_integer("S", S, 0)
    if not isinstance(lengths, Tensor):
        for length in lengths:
            check_integer("lengths", length, 0, S)
        lengths = torch.tensor(list(lengths), dtype=torch.long, device=device)
    check_integers("lengths", lengths)
    if lengths.dim() != 1:
        raise ValueError(f"lengths: expected shape (B,), got {tuple(lengths.shape)}")
    mask = torch.arange(S, device=lengths.device) < lengths[:, None]  # (B, S)
    return mask[:, None, None, :]  # (B, S) -> (B, 1, 1, S)


def document_mask(documents: Tensor) -> Tensor:
    """Keep the documents of a packed row apart: integer numbers (B, T) -> bool (B, 1, T, T), True within a document.

    It hides nothing later: combine it with `causal`. Documents lie in one piece each; see `course_lib.data.pack`.
    """
    check_integers("documents", documents)
    if documents.dim() != 2:
        raise ValueError(f"documents: expected shape (B, T), got {tuple(documents.shape)}")
    return (documents[:, :, None] == documents[:, None, :])[:, None]  # (B, T, T) -> (B, 1, T, T)


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Allow what every mask allows: the logical and of the masks, broadcast; None stands for "all allowed".

    Returns None if every mask is None.
    """
    combined: Tensor | None = None
    for number, mask in enumerate(masks):
        if mask is None:
            continue
        check_mask(f"masks[{number}]", mask)
        if combined is None:
            combined = mask
            continue
        if mask.device != combined.device:
            raise ValueError(f"masks[{number}]: expected device {combined.device} like the others, got {mask.device}")
        try:
            combined = combined & mask
        except RuntimeError:
            raise ValueError(
                f"masks[{number}]: shape {tuple(mask.shape)} does not broadcast with {tuple(combined.shape)}"
            ) from None
    return combined


def _offsets(T: int, S: int | None, device: torch.device | str | None) -> Tensor:
    """How far each key lies before each query when the last query stands on the last key: int (T, S)."""
    check_device("device", device)
    S = T if S is None else S
    check_integer("T", T, 0)
    check_integer("S", S, 0)
    queries = torch.arange(T, device=device)[:, None] + (S - T)  # (T, 1)
    return queries - torch.arange(S, device=device)  # (T, S)
