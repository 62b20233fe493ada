"""What steps that feed one token have in common, and see of a cache: its buffers, written at a place in a tensor."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.cache import DecoderCache, LayerCache
from course_lib.transformer import LanguageModel


class Slots:
    """The buffers of a `KVCache` as a step sees them."""

    window = None

    def __init__(self, keys: Tensor, values: Tensor, place: Tensor, S: int) -> None:
        self.keys, self.values, self.place, self.S = keys, values, place, S

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write one position, key and value (B, G, 1, E); return all so far, (B, G, S, E)."""
        self.keys.index_copy_(2, self.place, key.to(self.keys.dtype))
        self.values.index_copy_(2, self.place, value.to(self.values.dtype))
        return self.keys[:, :, : self.S], self.values[:, :, : self.S]


class StepCache:
    """A `DecoderCache` as a step sees it, which gives the positions itself."""

    length = 0

    def __init__(self, slots: Sequence[tuple[Tensor, Tensor]], place: Tensor, S: int) -> None:
        self.S = S
        self.layers: list[Any] = [LayerCache(Slots(*pair, place, S), None) for pair in slots]  # type: ignore[arg-type]

    def keys_after(self, T: int) -> int:
        """S."""
        return self.S


class Step:
    """Feeds one token to each example of a model, for batches of one size, with the model's own weights and no copy."""

    seconds: float  # that making it took

    def __init__(self, model: LanguageModel, rows: int) -> None:
        tensors = [*model.parameters(), *model.buffers()]
        device = tensors[0].device
        self._model: LanguageModel = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors}).eval()
        self._token = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._current: Any = lambda: None  # the cache of the last step, weakly

    def __call__(self, tokens: Tensor, cache: DecoderCache, first: Tensor | None) -> Tensor:
        """Feed tokens (B, 1) after those in the cache, which has a capacity; return logits (B, 1, V).

        `first` (B, 1) is where each example begins; None if all begin with the cache.
        """
        raise NotImplementedError


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch dropout off for a moment: a model in training is left in training."""
    if not isinstance(model, nn.Module) or not model.training:
        yield
        return
    modes = [(part, part.training) for part in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for part, training in modes:
            part.training = training
