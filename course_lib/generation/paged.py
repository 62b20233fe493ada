"""A paged cache: keys and values of many texts, each as long as it is by now, in blocks of one pool.

Shapes: B texts of a pass, G key/value heads, T new positions, S positions of the longest text, E head width.
Source: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.cache import DecoderCache, KVCache, LayerCache
from course_lib.checks import Count, check_kind, checked
from course_lib.transformer import LanguageModel


class PagedCache:
    """Keys and values of many texts in one pool of `n_blocks` blocks, each with room for `block` positions.

    The table of a text says in which block its first positions lie, in which the next. A text takes a free block only
    when its last one is full, so at most `block` - 1 of its positions are empty. Texts that begin alike can share
    blocks. One pass reads the next T tokens of any of them, however far each is:

        rows = cache.rows([3, 5], 1)
        logits = model(tokens, mask=rows.mask, positions=rows.positions, cache=rows)  # tokens (2, 1)

    It is meant for decoding without gradients: the pool is written in place. What a text sees is gathered anew in each
    pass; the kernels of serving engines read the blocks where they lie.

    Args:
        model: whose texts are kept.
        n_blocks: of the pool.
        block: positions in each, 16 as in vLLM.

    Raises ValueError for models with windows, or with positions that act on the scores.
    """

    @checked
    def __init__(self, model: LanguageModel, n_blocks: Count, block: Count = 16) -> None:
        check_kind("model", model, LanguageModel)
        layers = range(len(model.decoder.layers))
        if any(model.config.window_of(layer) is not None for layer in layers):
            raise ValueError("model: expected layers without a window, got one that forgets")
        if model.decoder.positions is not None and model.decoder.positions.acts_on == "scores":
            raise ValueError("model: expected positions on the input, or on queries and keys, got some on the scores")
        self.block, self.device = block, next(model.parameters()).device
        self.tables: dict[int, list[int]] = {}  # of each text, its blocks in order
        self.lengths: dict[int, int] = {}  # of each text, the positions read
        self.pools: list[list[Tensor]] = [[] for _ in layers]  # keys and values (N, G, E), made by the first pass
        self._users = [0] * n_blocks  # how many tables each block stands in
        self._next = 0

    @property
    def n_free(self) -> int:
        """How many blocks stand in no table."""
        return self._users.count(0)

    @checked
    def add(self, like: int | None = None, alike: Count | None = None) -> int:
        """Begin a text and return its number; it shares the blocks that are full of what it has in common with `like`.

        These are the first `alike` tokens of that text, or all unless given. `lengths` then says how many tokens of the
        new one need not be read any more.
        """
        if like is not None and like not in self.tables:
            raise ValueError(f"like: expected one of the texts {sorted(self.tables)}, got {like}")
        n = 0 if like is None else min(self.lengths[like], alike or self.lengths[like])
        shared = [] if like is None else self.tables[like][: n // self.block]
        for number in shared:
            self._users[number] += 1
        text, self._next = self._next, self._next + 1
        self.tables[text], self.lengths[text] = list(shared), len(shared) * self.block
        return text

    def drop(self, text: int) -> None:
        """Forget a text; blocks that no other text shares are free again."""
        for number in self.tables.pop(text):
            self._users[number] -= 1
        del self.lengths[text]

    @checked
    def rows(self, texts: Sequence[int], T: Count) -> "PagedRows":
        """Take the blocks for T more positions of each text; return what the pass that reads them gets as its cache.

        Raises ValueError if the pool has too few free blocks, and then takes none.
        """
        if len(set(texts)) != len(texts) or not texts or not self.tables.keys() >= set(texts):
            raise ValueError(f"texts: expected some of {sorted(self.tables)}, each once, got {list(texts)}")
        more = {text: -(-(self.lengths[text] + T) // self.block) - len(self.tables[text]) for text in texts}
        if sum(more.values()) > self.n_free:
            raise ValueError(f"texts: this pass takes {sum(more.values())} more blocks, {self.n_free} are free")
        for text in texts:
            for _ in range(more[text]):
                number = self._users.index(0)
                self._users[number] = 1
                self.tables[text].append(number)
            self.lengths[text] += T
        return PagedRows(self, texts, T)


class PagedRows(DecoderCache):
    """The texts of one pass, as its cache; made by `PagedCache.rows`, and good for that pass alone.

    `positions` (B, T) are those of the new tokens; `mask` (B, 1, T, S) hides what a shorter text does not have.
    """

    def __init__(self, cache: PagedCache, texts: Sequence[int], T: int) -> None:
        device = cache.device
        lengths = torch.tensor([cache.lengths[text] for text in texts], device=device)
        place = torch.arange(int(lengths.max()), device=device)  # (S,)
        self.positions = lengths[:, None] - T + torch.arange(T, device=device)  # (B, T)
        self.mask = (place <= self.positions[..., None])[:, None]  # (B, 1, T, S)
        blocks = [torch.tensor(cache.tables[text], device=device) for text in texts]
        tables = torch.nn.utils.rnn.pad_sequence(blocks, batch_first=True)
        slots = tables[:, place // cache.block] * cache.block + place % cache.block  # (B, S)
        new, n_slots = slots.gather(1, self.positions), len(cache._users) * cache.block
        self.layers = [LayerCache(_PagedLayer(pool, n_slots, slots, new), None) for pool in cache.pools]


class _PagedLayer(KVCache):
    """One layer in one pass: new positions have the slots `new` (B, T), all that are seen `seen` (B, S)."""

    def __init__(self, pool: list[Tensor], n_slots: int, seen: Tensor, new: Tensor) -> None:
        super().__init__()
        self.pool, self.n_slots, self.seen, self.new = pool, n_slots, seen, new

    def keys_after(self, T: int) -> int:
        """All positions of the longest text, the T new ones included."""
        return self.seen.size(1)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values (B, G, T, E); return those of all positions, (B, G, S, E)."""
        if not self.pool:  # zeros: weight 0 times a NaN that lay in the memory would be NaN
            self.pool += [x.new_zeros(self.n_slots, x.size(1), x.size(3)) for x in (key, value)]
        for stored, x in zip(self.pool, (key, value), strict=True):
            stored[self.new] = x.transpose(1, 2)  # (B, G, T, E) -> (B, T, G, E)
        keys, values = (stored[self.seen].transpose(1, 2) for stored in self.pool)  # (B, S, G, E) -> (B, G, S, E)
        return keys, values
