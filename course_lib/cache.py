"""Caches of keys and values, so that a decoder computes each token's only once.

Shapes: B batch, G key/value heads, T new positions, S cached positions, E head width.
Source: Shazeer 2019, "Fast Transformer Decoding: One Write-Head is All You Need", section 2.3.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checks import Count, check_token_ids, checked


class KVCache:
    """The keys and values of one attention layer, for all positions so far.

    Three kinds: `KVCache(capacity)` reserves its memory at first use, writes in place and refuses further positions;
    `KVCache()` grows by doubling; `KVCache(window=w)` is for attention to the `w` latest positions and forgets the
    others, so that its memory does not depend on the length. Keys stay in the order of their positions and the last
    one belongs to the last new position, so bottom-right causal masks are right for all three.

    It is meant for decoding without gradients: the buffers are written in place. What it keeps has the dtype of the
    first keys, or `dtype`, and attention to it is computed in that one.
    """

    @checked
    def __init__(
        self, capacity: Count | None = None, *, window: Count | None = None, dtype: torch.dtype | None = None
    ) -> None:
        if capacity is not None and window is not None:
            raise ValueError("capacity: a sliding cache forgets instead of filling up; give capacity or window")
        self.capacity = capacity
        self.window = window
        self.dtype = dtype
        self.length = 0  # positions seen, forgotten ones included: the position of the next token
        self._start = self._end = 0  # the slots in use
        self._keys = self._values = torch.empty(0)

    @property
    def keys(self) -> Tensor:
        """The keys kept, (B, G, S, E)."""
        return self._keys[:, :, self._start : self._end]

    @property
    def values(self) -> Tensor:
        """The values kept, (B, G, S, E)."""
        return self._values[:, :, self._start : self._end]

    @property
    def slots(self) -> tuple[Tensor, Tensor]:
        """All slots of keys and values, free ones included, (B, G, capacity, E) each; see `advance`."""
        return self._keys, self._values

    def advance(self) -> None:
        """Count one more position, whose key and value were written into `slots` from outside."""
        self.length += 1
        self._end += 1

    @property
    def n_bytes(self) -> int:
        """Bytes reserved, those of free slots included."""
        return self._keys.nbytes + self._values.nbytes

    def keys_after(self, T: int) -> int:
        """How many keys S the next `append`, of T positions, will return."""
        kept = self._end - self._start
        return T + (kept if self.window is None else min(kept, self.window - 1))

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add T positions, key and value (B, G, T, E); return all that they may see, (B, G, S, E) each.

        Raises ValueError if key and value do not belong together, if the cache is full or holds another batch, number
        of heads or width, TypeError if it holds another dtype and was not told which to keep.
        """
        if key.dim() != 4 or value.dim() != 4 or value.shape[:3] != key.shape[:3]:
            raise ValueError(f"value: expected (B, G, T, E) as the key {tuple(key.shape)}, got {tuple(value.shape)}")
        T = key.size(2)
        if self.capacity is not None and self.length + T > self.capacity:
            raise ValueError(f"cache: {self.length} + {T} positions exceed its capacity of {self.capacity}")
        if self._keys.numel() == 0:
            if self.dtype is None and value.dtype != key.dtype:
                raise TypeError(f"value: expected {key.dtype} as the key, got {value.dtype}")
            self._reserve(key, value, self.capacity or (T if self.window is None else 2 * self.window))
        self._check("keys", key, self._keys)
        self._check("values", value, self._values)
        self.length += T
        if self.window is not None and self.window < T:
            return self._append_long(key, value, self.window)
        if self._end + T > self._keys.size(2):
            self._make_room(T)
        start, self._end = self._end, self._end + T
        self._keys[:, :, start : self._end] = key
        self._values[:, :, start : self._end] = value
        if self.window is not None:
            self._start = max(self._start, start - (self.window - 1))  # the oldest key that the first new query sees
        return self.keys, self.values

    def reorder(self, rows: Tensor) -> None:
        """Take the examples `rows` (B',) in place of the present ones: beams that fork and die."""
        check_token_ids("rows", rows)
        if self._end == 0:
            return
        try:
            keys, values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        except IndexError:
            raise ValueError(f"rows: expected 0 to {self._keys.size(0) - 1}, got {rows.tolist()}") from None
        if len(rows) != self._keys.size(0):
            self._reserve(keys, values, self._keys.size(2))
        self.keys.copy_(keys)
        self.values.copy_(values)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions, such as guesses that a check refused."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length: expected 0 to {self.length}, the positions cached, got {length!r}")
        if self.window is not None and length < self.length:
            raise ValueError("length: a sliding cache no longer has what came before; use one without a window")
        self.length = self._end = length

    def _reserve(self, key: Tensor, value: Tensor, room: int) -> None:
        B, G, _, E = key.shape
        self._keys = key.new_empty(B, G, room, E, dtype=self.dtype)
        self._values = value.new_empty(B, G, room, value.size(-1), dtype=self.dtype)

    def _make_room(self, T: int) -> None:
        """Double a growing cache; move what a sliding one still needs to the front."""
        if self.window is None:
            keys, values = self.keys, self.values
            self._reserve(keys, values, max(2 * self._keys.size(2), self._end + T))
        else:
            self._start = max(self._start, self._end - (self.window - 1))
            keys, values = self.keys.clone(), self.values.clone()  # the slots may overlap
        self._start, self._end = 0, keys.size(2)
        self.keys.copy_(keys)
        self.values.copy_(values)

    def _append_long(self, key: Tensor, value: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """Show more new positions than the window holds, and keep the latest of them."""
        self._start = max(self._start, self._end - (window - 1))
        keys = torch.cat([self.keys, key.to(self._keys.dtype)], dim=2)
        values = torch.cat([self.values, value.to(self._values.dtype)], dim=2)
        self._start, self._end = 0, window
        self.keys.copy_(keys[:, :, -window:])
        self.values.copy_(values[:, :, -window:])
        return keys, values

    def _check(self, name: str, new: Tensor, held: Tensor) -> None:
        if self.dtype is None and new.dtype != held.dtype:
            raise TypeError(f"cache: holds {name} of {held.dtype}, cannot take {new.dtype}")
        if new.device != held.device:
            raise ValueError(f"cache: holds {name} on {held.device}, cannot take {new.device}")
        expected, got = (*held.shape[:2], held.size(3)), (*new.shape[:2], new.size(3))
        if got != expected:
            raise ValueError(f"cache: holds {name} of batch, key heads and width {expected}, cannot take {got}")


class LayerCache(NamedTuple):
    """The caches of one decoder layer; that of cross-attention is filled once, from the encoder's output."""

    self_attention: KVCache
    cross_attention: KVCache | None


class DecoderCache:
    """The caches of all layers of a decoder; kinds as in `KVCache`.

    `windows` has an entry for each layer; those with a window slide, and have no capacity.
    """

    @checked
    def __init__(
        self,
        windows: Sequence[int | None],
        *,
        cross: bool = False,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.layers = [
            LayerCache(
                KVCache(capacity if window is None else None, window=window, dtype=dtype),
                KVCache(dtype=dtype) if cross else None,
            )
            for window in windows
        ]

    @property
    def length(self) -> int:
        """Positions seen so far: the position of the next token."""
        return self.layers[0].self_attention.length

    @property
    def n_bytes(self) -> int:
        """Bytes reserved in all layers."""
        return sum(cache.n_bytes for layer in self.layers for cache in layer if cache is not None)

    def keys_after(self, T: int) -> int:
        """How many keys the self-attention of the next T positions will see, in the layer that sees most."""
        return max(layer.self_attention.keys_after(T) for layer in self.layers)

    def advance(self) -> None:
        """Count one more position that was written into the slots of every layer; see `KVCache.advance`."""
        for layer in self.layers:
            layer.self_attention.advance()

    def reorder(self, rows: Tensor, *, cross: bool = True) -> None:
        """Take the examples `rows` (B',) in place of the present ones; the cross-attention's too unless told not to."""
        for layer in self.layers:
            layer.self_attention.reorder(rows)
            if cross and layer.cross_attention is not None:
                layer.cross_attention.reorder(rows)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions; the cross-attention keeps its keys."""
        for layer in self.layers:
            layer.self_attention.truncate(length)
