"""Batches in a repeatable order: by token count with length bucketing, and windows of a long text.

Both kinds share one contract. A `for` loop runs to the end of the epoch, the next loop runs the next epoch, `forever`
never ends. The order follows from the seed alone. `state_dict` says how far it has come, as plain numbers for JSON.

Batches are dicts of int64 tensors: {"source" (B, S), "target" (B, T)}, {"tokens" (B, T)} or {"tokens" (B, T),
"labels" (B,)}.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from course_lib.checks import LONGEST, Count, check_declared, check_kind, checked, id_tensor

from .pairs import Pair
from .token_files import open_tokens
from .tokenizer import Tokenizer

Batch = dict[str, Tensor]
Example = Mapping[str, Sequence[int] | int]
POOL = 100  # batches: examples are sorted by length within pools of about so many


def encode_pairs(
    pairs: Sequence[Pair], source: Tokenizer, target: Tokenizer | None = None
) -> list[dict[str, list[int]]]:
    """Turn pairs of texts into examples for `TokenBatches`.

    "source" holds ids … eos, as `source.encode(text, eos=True)`, so that it is never empty; "target" holds bos … eos.
    One tokenizer serves both sides unless `target` is given.
    """
    check_declared("pairs", pairs, Sequence[Pair])
    target = source if target is None else target
    sources = source.encode_batch([pair.source for pair in pairs], eos=True)
    targets = target.encode_batch([pair.target for pair in pairs], bos=True, eos=True)
    return [{"source": s, "target": t} for s, t in zip(sources, targets, strict=True)]


def pad_batch(examples: Sequence[Example], pad_id: int = 0) -> Batch:
    """Stack examples: lists of ids, padded on the right to the longest, give (B, T), single numbers give (B,)."""
    if not examples:
        raise ValueError("examples: expected at least one")
    _check_keys(examples)
    batch: Batch = {}
    for key, first in examples[0].items():
        values = [example[key] for example in examples]
        if isinstance(first, int):
            batch[key] = id_tensor("examples", values)
            continue
        check_declared(f"examples: {key}", first, Sequence[int])
        rows = [list(cast(Sequence[int], value)) for value in values]
        width = max(map(len, rows))
        batch[key] = id_tensor("examples", [row + [pad_id] * (width - len(row)) for row in rows])  # (B, T)
    return batch


class Batches(ABC):
    """What every kind of batches offers; see the head of this module."""

    def __init__(self, *, seed: int, shuffle: bool) -> None:
        self.seed, self.shuffle = seed, shuffle
        self.epoch = 0
        self._done = 0  # batches of this epoch that were taken
        self._planned: tuple[int, list[list[int]]] | None = None  # an epoch and its plan

    @abstractmethod
    def _new_plan(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch as lists of example numbers."""

    def _plan(self, epoch: int) -> list[list[int]]:
        epoch = epoch if self.shuffle else 0
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self._new_plan(epoch)
        return self._planned[1]

    @abstractmethod
    def _load(self, numbers: Sequence[int], epoch: int) -> Batch:
        """Return one batch."""

    @abstractmethod
    def _identity(self) -> dict[str, int]:
        """Return what the order depends on; a state is refused where this differs."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches from here to the end of the epoch."""
        ended = False
        while not ended:
            epoch, plan = self.epoch, self._plan(self.epoch)
            numbers = plan[self._done]
            self._done += 1
            ended = self._done >= len(plan)
            if ended:
                self.epoch, self._done = epoch + 1, 0
            yield self._load(numbers, epoch)

    def forever(self) -> Iterator[Batch]:
        """Yield the batches, epoch after epoch, without end."""
        while True:
            yield from self

    def __len__(self) -> int:
        """Return the number of batches of the current epoch."""
        return len(self._plan(self.epoch))

    def state_dict(self) -> dict[str, int]:
        """Return the place in the order as plain numbers: after the batch that was yielded last."""
        return {"epoch": self.epoch, "done": self._done, **self._identity()}

    @checked
    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where `state` was taken.

        Raises ValueError where the state belongs to other data, another seed or other sizes.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(f"state: taken with {name}={state.get(name)}, these batches have {name}={value}")
        epoch, done = state["epoch"], state["done"]
        if epoch < 0 or not 0 <= done < len(self._plan(epoch)):
            raise ValueError(f"state: expected a place within an epoch, got batch {done} of epoch {epoch}")
        self.epoch, self._done = epoch, done


class TokenBatches(Batches):
    """Batches of about equal token counts: examples of like length together, so that little is padded.

    Examples are shuffled, sorted by length within pools, cut so that rows times the longest row, the padding included,
    stays within `max_tokens` on each side, and the batches are shuffled. Every example comes once an epoch.

    Args:
        examples: dicts of id lists (and single numbers, such as labels), all with the same keys.
        max_tokens: ids of a batch at most, padding included; for pairs on each side.
        shuffle: False keeps one order by length for every epoch, for evaluation.
        bucket: False cuts batches in shuffled order without looking at lengths, to see what bucketing saves.
        pad_id: fills rows up to the longest.
        seed: of the order.

    Raises:
        ValueError: no examples, or one longer than `max_tokens`.
    """

    @checked
    def __init__(
        self,
        examples: Sequence[Example],
        *,
        max_tokens: Count,
        shuffle: bool = True,
        bucket: bool = True,
        pad_id: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed, shuffle=shuffle)
        if not examples:
            raise ValueError("examples: expected at least 1, got 0")
        self.examples, self.max_tokens, self.pad_id, self.bucket = examples, max_tokens, pad_id, bucket
        _check_keys(examples)
        sides = [_side_lengths(example) for example in examples]
        self.lengths = [max(lengths) for lengths in sides]
        self._order_key = [(longest, *lengths) for longest, lengths in zip(self.lengths, sides, strict=True)]
        if (longest := max(self.lengths)) > max_tokens:
            number = self.lengths.index(longest)
            raise ValueError(f"max_tokens: expected {longest} or more, as long as example {number}, got {max_tokens}")

    def padding_waste(self, epoch: int = 0) -> float:
        """Return the share of ids in the batches of an epoch that are padding, in [0, 1)."""
        real = padded = 0
        keys = [key for key, value in self.examples[0].items() if not isinstance(value, int)]
        for numbers in self._plan(epoch):
            for key in keys:
                lengths = [len(cast(Sequence[int], self.examples[number][key])) for number in numbers]
                real += sum(lengths)
                padded += len(lengths) * max(lengths)
        return 1 - real / padded if padded else 0.0

    def _identity(self) -> dict[str, int]:
        return {"seed": self.seed, "max_tokens": self.max_tokens, "examples": len(self.examples)}

    def _load(self, numbers: Sequence[int], epoch: int) -> Batch:
        return pad_batch([self.examples[number] for number in numbers], self.pad_id)

    def _new_plan(self, epoch: int) -> list[list[int]]:
        draw = epoch_generator(self.seed, epoch)
        n = len(self.examples)
        order = torch.randperm(n, generator=draw).tolist() if self.shuffle else list(range(n))
        if self.bucket:
            pool = max(1, POOL * self.max_tokens * n // max(1, sum(self.lengths))) if self.shuffle else n
            pools = [order[start : start + pool] for start in range(0, n, pool)]
            order = [number for part in pools for number in sorted(part, key=self._order_key.__getitem__)]
        batches = self._cut(order)
        if self.shuffle:
            batches = [batches[i] for i in torch.randperm(len(batches), generator=draw).tolist()]
        return batches

    def _cut(self, order: Sequence[int]) -> list[list[int]]:
        """Cut an order of examples wherever one more would break the limit."""
        batches: list[list[int]] = []
        current: list[int] = []
        longest = 0
        for number in order:
            longest = max(longest, self.lengths[number])
            if current and (len(current) + 1) * longest > self.max_tokens:
                batches.append(current)
                current, longest = [], self.lengths[number]
            current.append(number)
        return [*batches, current]


class TokenWindows(Batches):
    """Windows of a long sequence of ids that may lie in a file larger than memory: {"tokens" (B, length + 1)}.

    Each holds `length` predictions: tokens[:, :-1] to read, tokens[:, 1:] to predict. An epoch shows every window once,
    in shuffled order; in each epoch the windows begin elsewhere, so that every place is seen as a beginning.

    Args:
        tokens: ids (N,): a file of `write_tokens`, which is mapped and not loaded, or a tensor.
        length: predictions of a window.
        batch_size: windows of a batch.
        shuffle: False gives windows from the start of the text, in its order, in every epoch.
        seed: of the order.
    """

    @checked
    def __init__(
        self,
        tokens: str | Path | Tensor | Sequence[int],
        *,
        length: Count,
        batch_size: Count,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed, shuffle=shuffle)
        self.tokens = open_tokens(tokens) if isinstance(tokens, str | Path) else _plain(tokens)
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "ui":
            raise ValueError(f"tokens: expected ids (N,), got {self.tokens.dtype} {self.tokens.shape}")
        if self.tokens.dtype.kind == "i" and self.tokens.size and self.tokens.min() < 0:
            raise ValueError(f"tokens: expected ids of at least 0, got {self.tokens.min()}")
        self.length, self.batch_size = length, batch_size
        if len(self.tokens) < 2 * length:
            raise ValueError(f"tokens: expected at least {2 * length:,} for length={length}, got {len(self.tokens):,}")

    def _identity(self) -> dict[str, int]:
        return {"seed": self.seed, "length": self.length, "batch_size": self.batch_size, "tokens": len(self.tokens)}

    def _new_plan(self, epoch: int) -> list[list[int]]:
        draw = epoch_generator(self.seed, epoch)
        first = int(torch.randint(self.length, (), generator=draw)) if self.shuffle else 0
        count = (len(self.tokens) - 1 - first) // self.length
        numbers = torch.randperm(count, generator=draw) if self.shuffle else torch.arange(count)
        starts = (first + numbers * self.length).tolist()
        return [starts[i : i + self.batch_size] for i in range(0, count, self.batch_size)]

    def _load(self, numbers: Sequence[int], epoch: int) -> Batch:
        places = np.asarray(numbers)[:, None] + np.arange(self.length + 1)  # (B, 1) + (length + 1,) -> (B, length + 1)
        return {"tokens": torch.from_numpy(self.tokens[places].astype(np.int64))}


def _plain(tokens: Any) -> np.ndarray:
    return (id_tensor("tokens", tokens) if isinstance(tokens, list | tuple) else torch.as_tensor(tokens)).numpy()


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return the generator of an epoch: the same for the same seed and epoch, whatever was drawn before."""
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


def _check_keys(examples: Sequence[Example]) -> None:
    check_kind("examples", examples[0], Mapping)
    for example in examples:
        if not isinstance(example, Mapping) or example.keys() != examples[0].keys():
            raise ValueError(f"examples: expected all with {', '.join(examples[0])}, got {str(example)[:LONGEST]}")


def _side_lengths(example: Example) -> list[int]:
    lengths = [len(value) for value in example.values() if hasattr(value, "__len__")]
    if not lengths or not max(lengths):
        raise ValueError(f"examples: expected ids in each, got {dict(example)}")
    return lengths
