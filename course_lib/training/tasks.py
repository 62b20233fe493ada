"""What a model is trained to do: from a batch to the sum of the losses and the number of tokens.

A task is an object with `loss(model, batch)`; any function of that form will do in its place. It knows the model
through `forward` only. Shapes: B batch, S source positions, T target positions, V vocabulary.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from course_lib.checks import Checked, Count, CountOrZero, Share, Within, check_integer, check_integers
from course_lib.masks import document_mask
from course_lib.positions import document_positions
from course_lib.training.chunked import chunked_cross_entropy
from course_lib.training.losses import cross_entropy, label_smoothed_cross_entropy

__all__ = ["Classification", "LanguageModelling", "MaskedLanguageModelling", "Translation"]

Batch = dict[str, Tensor]


def _of(batch: Batch, name: str) -> Tensor:
    if name not in batch:
        raise ValueError(f"data: expected batches with {name!r}, got {', '.join(map(repr, batch)) or 'nothing'}")
    return batch[name]


def _loss(
    forward: Callable[..., Tensor], targets: Tensor, *, rows: int = 0, smoothing: float = 0.0, ignore: int | None = None
) -> tuple[Tensor, Tensor]:
    """The loss of a model's logits; with `rows`, so many rows of them at a time."""
    if not rows:
        return label_smoothed_cross_entropy(forward(), targets, smoothing, ignore=ignore)
    counts: list[Tensor] = []

    def readout(head: nn.Module, vectors: Tensor) -> Tensor:
        total, count = chunked_cross_entropy(vectors, head, targets, rows=rows, smoothing=smoothing, ignore=ignore)
        counts.append(count)
        return total

    return forward(readout=readout), counts[0]


@dataclass(frozen=True)
class LanguageModelling(Checked):
    """Predict each token from those before it; a batch is {"tokens": (B, T + 1)}.

    With "documents" (B, T + 1) beside them, rows hold several documents, which do not see each other and whose
    positions start at 0; see `course_lib.data.pack`.
    `rows` is how many rows of logits are held at a time, all unless given; see `chunked_cross_entropy`.
    """

    pad_id: int | None = None
    rows: CountOrZero = 0

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum over real tokens of the cross-entropy in nats, and their number."""
        tokens = _of(batch, "tokens")
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        if "documents" not in batch:
            return _loss(functools.partial(model, inputs), targets, rows=self.rows, ignore=self.pad_id)
        here, following = batch["documents"][:, :-1], batch["documents"][:, 1:]
        inside = (here == following) & (following != 0)
        if self.pad_id is not None:
            inside &= targets != self.pad_id
        forward = functools.partial(model, inputs, mask=document_mask(here), positions=document_positions(here))
        return _loss(forward, targets.where(inside, -1), rows=self.rows, ignore=-1)


@dataclass(frozen=True)
class Translation(Checked):
    """Predict a target sequence from a source; a batch is {"source": (B, S), "target": (B, T)}.

    Target rows run from the start token to the end token, then padding. `smoothing` applies in training mode only, so
    that held-out losses are cross-entropies. `rows` as for `LanguageModelling`.
    """

    pad_id: int
    smoothing: Share = 0.1
    rows: CountOrZero = 0

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum over real target tokens of the loss in nats, and their number."""
        target = _of(batch, "target")
        forward = functools.partial(model, _of(batch, "source"), target[:, :-1])
        smoothing = self.smoothing if model.training else 0.0
        return _loss(forward, target[:, 1:], rows=self.rows, smoothing=smoothing, ignore=self.pad_id)


@dataclass(frozen=True)
class Classification(Checked):
    """Predict one label an example; a batch is {"tokens" or "images": (B, ...), "labels": (B,)}."""

    smoothing: Share = 0.0

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum over examples of the loss in nats, and their number."""
        inputs = batch["images"] if "images" in batch else _of(batch, "tokens")
        smoothing = self.smoothing if model.training else 0.0
        return label_smoothed_cross_entropy(model(inputs), _of(batch, "labels"), smoothing)


@dataclass(frozen=True)
class MaskedLanguageModelling(Checked):
    """Predict tokens that were hidden; a batch is {"tokens": (B, T)}.

    Of the real tokens a `share` is chosen; of those, 80 % become the mask token, 10 % a random token, 10 % stay.
    In evaluation mode the choice is the same in every call. Source: Devlin et al. 2019 (BERT), section 3.1.
    """

    mask_id: CountOrZero
    vocab_size: Count
    pad_id: int | None = None
    special_ids: tuple[int, ...] = ()  # never hidden
    share: Annotated[float, Within(above=0, below=1)] = 0.15

    def __post_init__(self) -> None:
        """Refuse what the fields do not allow."""
        super().__post_init__()
        check_integer("mask_id", self.mask_id, 0, self.vocab_size - 1)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum over hidden tokens of the cross-entropy in nats, and their number."""
        tokens = _of(batch, "tokens")
        hidden, chosen = self.hide(tokens, None if model.training else torch.Generator().manual_seed(0))
        ignored = -1
        return cross_entropy(model(hidden), tokens.where(chosen, ignored), ignore=ignored)

    def hide(self, tokens: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the tokens with some hidden, and which were chosen, both (B, T)."""
        check_integers("tokens", tokens, "integer token ids")
        kept = torch.tensor([*self.special_ids, *([] if self.pad_id is None else [self.pad_id])], dtype=tokens.dtype)
        allowed = ~torch.isin(tokens, kept.to(tokens.device))
        draws = torch.rand((2, *tokens.shape), generator=generator).to(tokens.device)
        random = torch.randint(self.vocab_size, tokens.shape, generator=generator).to(tokens.device)
        chosen = (draws[0] < self.share) & allowed
        hidden = tokens.where(~(chosen & (draws[1] < 0.8)), self.mask_id)
        hidden = hidden.where(~(chosen & (draws[1] >= 0.9)), random.to(tokens.dtype))
        return hidden, chosen
