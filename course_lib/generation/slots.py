"""What a step that feeds one token sees of a cache: its buffers, written at a place that is a tensor."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.cache import LayerCache


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


def dtype_to_keep(model: nn.Module) -> torch.dtype | None:
    """Float32 for bfloat16 on a CPU, where attention of few queries in bfloat16 takes several times as long."""
    weight = next(model.parameters())
    return torch.float32 if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 else None


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
