"""A model that is fed token by token: one interface to models with a cache, without one, and with a source."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import Count, CountOrZero, check_declared, check_kind, check_token_ids, checked, id_tensor
from course_lib.generation.compiled import compile_step, dtype_to_keep
from course_lib.generation.slots import evaluating
from course_lib.transformer import LanguageModel, Transformer

Model = LanguageModel | Transformer | Callable[[Tensor], Tensor]


@checked
def pad_left(
    prompts: Sequence[Sequence[int]], pad_id: CountOrZero, *, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor]:
    """Pad prompts of different lengths on the left: token ids int64 (B, T) and mask bool (B, T), True = real."""
    if not prompts or not all(prompts):
        raise ValueError("prompts: expected at least one, each of at least one token")
    T = max(map(len, prompts))
    padded = [[pad_id] * (T - len(prompt)) + list(prompt) for prompt in prompts]
    tokens = id_tensor("prompts", padded, device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    return tokens, torch.arange(T, device=device) >= T - lengths[:, None]


class IncrementalModel:
    """A model and what it was fed so far: takes tokens, returns logits.

    It knows the cache, where padding stands, and the encoded source.

    Args:
        model: a `LanguageModel`, a `Transformer`, or a function from tokens (B, T) to logits (B, T, V).
        prompt: token ids (B, T); not fed yet. For a `Transformer`, those that the target begins with.
        n_new: how many tokens will be added.
        prompt_mask: bool (B, T), True = real; padding on the left only.
        source, source_mask: as in `Transformer.forward`.
        use_cache: False feeds everything again at each step.
        sliding: False keeps all keys in the cache even if attention has a window, so that `truncate` works.
        compile: let a compiled step do what feeds one token to each example; see `course_lib.generation.compiled`.
    """

    def __init__(
        self,
        model: Model,
        prompt: Tensor,
        n_new: int,
        *,
        prompt_mask: Tensor | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        use_cache: bool = True,
        sliding: bool = True,
        compile: bool = False,
    ) -> None:
        _check_prompt(prompt, prompt_mask, n_new)
        self.model = model
        self.length = 0  # tokens fed so far
        self._tokens = prompt.new_empty(prompt.size(0), 0)  # they themselves, if there is no cache
        self._cache = self._real = self._first = self._step = None
        self._options: dict[str, Any] = {}
        if not isinstance(model, LanguageModel | Transformer):
            for name, value in (("prompt_mask", prompt_mask), ("source", source)):
                if value is not None:
                    raise ValueError(f"{name}: expected None for a model that is a plain function")
            return
        capacity = prompt.size(1) + n_new
        max_length = model.embedding.max_length
        if max_length is not None and capacity - 1 > max_length:
            raise ValueError(
                f"max_new_tokens: {prompt.size(1)} + {n_new} tokens need {capacity - 1} positions, "
                f"the table has max_length={max_length}"
            )
        if use_cache:
            self._cache = model.new_cache(capacity, sliding=sliding and not compile, dtype=dtype_to_keep(model))
        if prompt_mask is not None and not prompt_mask.all():
            self._first = (~prompt_mask).sum(dim=1, keepdim=True)  # (B, 1), where the real tokens begin
            self._real = torch.arange(capacity, device=prompt.device) >= self._first  # (B, capacity)
        if compile and self._cache is not None and n_new > 1 and not torch.is_autocast_enabled(prompt.device.type):
            self._step = compile_step(model, rows=prompt.size(0), padded=self._first is not None)
        self._encode(model, prompt, source, source_mask)

    def _encode(
        self, model: LanguageModel | Transformer, prompt: Tensor, source: Tensor | None, source_mask: Tensor | None
    ) -> None:
        if (source is None) == isinstance(model, Transformer):
            expected = "token ids (B, S), the model has an encoder" if source is None else "None, there is no encoder"
            raise ValueError(f"source: expected {expected}")
        if isinstance(model, Transformer) and source is not None:
            if source.size(0) != prompt.size(0):
                raise ValueError(f"source: expected batch B={prompt.size(0)} like prompt, got {source.size(0)}")
            with evaluating(model):
                mask = model.mask_of(source, source_mask)
                self._options = {"context": model.encode(source, source_mask=mask), "context_mask": mask}

    def feed(self, tokens: Tensor, last: int = 1) -> Tensor:
        """Feed the next tokens (B, n); return the logits of the last positions, (B, last, V)."""
        start, self.length = self.length, self.length + tokens.size(1)
        if self._step is not None and self._cache is not None and start > 0 and tokens.size(1) == last == 1:
            return self._step(tokens, self._cache, self._first)
        if self._cache is None:
            self._tokens = torch.cat([self._tokens, tokens], dim=1)
            tokens, start = self._tokens, 0
        with evaluating(self.model):
            if not isinstance(self.model, LanguageModel | Transformer):
                logits = self.model(tokens)
                if getattr(logits, "ndim", 0) != 3:
                    got = getattr(logits, "shape", type(logits).__name__)
                    raise ValueError(f"model: expected one that returns logits (B, T, V), got {got}")
                return logits[:, -last:]
            padding: dict[str, Any] = {}
            if self._real is not None and self._first is not None:
                padding["mask"] = self._real[:, None, None, : self.length]  # (B, 1, 1, all so far)
                places = torch.arange(start, self.length, device=tokens.device) - self._first  # (B, n)
                padding["positions"] = places.clamp(min=0)
            return self.model.decode(tokens, **self._options, **padding, cache=self._cache, last=last)

    def repeat(self, times: int) -> None:
        """Give each example `times` copies, next to each other."""
        rows = torch.arange(self._tokens.size(0), device=self._tokens.device).repeat_interleave(times)
        self._real = None if self._real is None else self._real[rows]
        self._first = None if self._first is None else self._first[rows]
        self._options = {name: None if t is None else t[rows] for name, t in self._options.items()}
        self.reorder(rows, source=True)

    def reorder(self, rows: Tensor, *, source: bool = False) -> None:
        """Go on with the examples `rows` in place of the present ones, each a copy of the same prompt as before.

        What belongs to the source is the same in all copies and stays, unless `source` is True.
        """
        self._tokens = self._tokens[rows]
        if self._cache is not None:
            self._cache.reorder(rows, cross=source)

    def truncate(self, length: int) -> None:
        """Take back all but the first `length` tokens fed."""
        self.length = length
        self._tokens = self._tokens[:, :length]
        if self._cache is not None:
            self._cache.truncate(length)


def stop_tokens(stop: int | Sequence[int], prompt: Tensor) -> Tensor:
    """Return the stop tokens as int64 (n,) on the device of the prompt."""
    check_declared("stop", stop, int | Sequence[int])
    ids = id_tensor("stop", [stop] if isinstance(stop, int) else list(stop), device=prompt.device)
    if ids.dim() != 1 or ids.numel() == 0 or (ids < 0).any():
        raise ValueError(f"stop: expected a token id or several, got {stop!r}")
    return ids


def _check_prompt(prompt: Tensor, prompt_mask: Tensor | None, n_new: int) -> None:
    check_token_ids("prompt", prompt)
    if prompt.dim() != 2 or prompt.size(1) == 0 or prompt.size(0) == 0:
        raise ValueError(f"prompt: expected (B, T) with at least one token each, got {tuple(prompt.shape)}")
    check_declared("max_new_tokens", n_new, Count)
    if prompt_mask is None:
        return
    check_kind("prompt_mask", prompt_mask, Tensor)
    if prompt_mask.dtype != torch.bool or prompt_mask.shape != prompt.shape:
        raise ValueError(
            f"prompt_mask: expected bool {tuple(prompt.shape)} like prompt, "
            f"got {prompt_mask.dtype} {tuple(prompt_mask.shape)}"
        )
    if not prompt_mask[:, -1].all() or (prompt_mask[:, :-1] & ~prompt_mask[:, 1:]).any():
        raise ValueError("prompt_mask: expected padding on the left only, then at least one real token; see pad_left")
