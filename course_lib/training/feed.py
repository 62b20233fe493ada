"""Batches one by one from any iterable, epoch after epoch, with a place that can be saved."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

__all__ = ["Feed"]

Batch = dict[str, Tensor]


class Feed:
    """Hands out batches and knows where it is.

    Data with `state_dict` and `load_state_dict` keep their own place. For others, such as a list, batches are counted,
    and going on iterates past those that were handed out, which needs the same order at each iteration.
    """

    def __init__(self, data: Iterable[Batch]) -> None:
        self.data: Any = data
        self.keeps_place = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
        self._iterator: Iterator[Batch] | None = None
        self._epoch = self._done = 0

    def next(self) -> Batch:
        """Return the next batch; after the last, the first of the next epoch."""
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.data)
            batch = next(self._iterator, None)
            if batch is not None:
                self._done += 1
                return batch
            self._iterator = None
            self._epoch, self._done = self._epoch + 1, 0
        raise ValueError("data: expected at least one batch an epoch; an iterator that is used up cannot start again")

    def state(self) -> dict[str, Any]:
        """Return the place after the last batch, of JSON's kinds."""
        if self.keeps_place:
            return dict(self.data.state_dict())
        return {"epoch": self._epoch, "done": self._done}

    def load(self, state: dict[str, Any]) -> None:
        """Go on at a place that `state` returned."""
        self._iterator = None
        if self.keeps_place:
            self.data.load_state_dict(state)
            return
        self._epoch, self._done = state["epoch"], 0
        for _ in range(state["done"]):
            self.next()
