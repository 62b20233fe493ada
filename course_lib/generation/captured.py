"""One step of a decoder as a CUDA graph: recorded once for a cache, replayed for each token.

Shapes as in `course_lib.generation.compiled`. On a GPU a small model waits for Python, which launches some hundred
kernels for a token. Replayed, they start by one call. A graph launches the same kernels each time, so attention goes
over all slots of the cache, and those to come are masked. Nothing is compiled.
"""

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.attention import Options, fused_attention
from course_lib.cache import DecoderCache
from course_lib.generation.slots import Step, StepCache, evaluating
from course_lib.masks import combine_masks
from course_lib.multi_head import MultiHeadAttention
from course_lib.transformer import LanguageModel


class CapturedStep(Step):
    """The recorded step of one model for batches of one size.

    Args as in `CompiledStep`, whose place it takes where the model lies on a CUDA device. Raises what recording raises,
    and RuntimeError if what is replayed is not what the model computes.
    """

    def __init__(self, model: LanguageModel, rows: int, *, padded: bool = False) -> None:
        began = time.perf_counter()
        super().__init__(model, rows)
        self._step: Callable[[], Tensor]
        self._replay: Callable[[], Tensor]
        for part in self._model.modules():
            if isinstance(part, MultiHeadAttention) and part.window is not None:
                part.form, part.window = functools.partial(_attend_near, place=self._place, window=part.window), None
        self._try(model, padded)
        self.seconds = time.perf_counter() - began

    def __call__(self, tokens: Tensor, cache: DecoderCache, first: Tensor | None) -> Tensor:
        """See `Step`."""
        self._token.copy_(tokens)
        self._place.fill_(cache.length)
        if self._current() is not cache:
            self._step = self._step_with(cache, first)  # kept: a graph reads the memory of tensors, and holds none
            self._replay = _capture(self._step)
            self._current = weakref.ref(cache)
        logits = self._replay()
        cache.advance()
        return logits.clone()  # the next replay writes over it

    def _step_with(self, cache: DecoderCache, first: Tensor | None) -> Callable[[], Tensor]:
        slots = [layer.self_attention.slots for layer in cache.layers]
        for tensor in [tensor for pair in slots for tensor in pair]:
            tensor[:, :, cache.length :] = 0.0  # what is masked still is multiplied, by zero
        places = torch.arange(slots[0][0].size(2), device=self._place.device)

        @torch.no_grad()
        def step() -> Tensor:
            mask, positions = (places <= self._place)[None], self._place
            if first is not None:
                mask, positions = mask & (places >= first), (self._place - first).clamp(min=0)
            seen: Any = StepCache(slots, self._place, len(places))
            return self._model.decode(
                self._token, mask=mask[:, None, None, :], positions=positions, cache=seen, last=1
            )  # (1 or B, 1, 1, capacity)

        return step

    @torch.no_grad()
    def _try(self, model: LanguageModel, padded: bool) -> None:
        """Record a first time, and compare what comes with what the model computes."""
        rows, tokens, found = self._token.size(0), torch.arange(4, device=self._token.device), Tensor()
        cache = self._model.new_cache(8, sliding=False)
        self._model.decode(self._token.clone(), cache=cache)
        read = torch.cat([self._token * 0, (tokens % (model.vocab_size or 1)).expand(rows, -1)], dim=1)  # (B, 5)
        for n in range(1, read.size(1)):
            found = self(read[:, n : n + 1], cache, torch.zeros_like(self._token) if padded else None)
        plain = model.new_cache(8, sliding=False)
        with evaluating(model):
            expected = [model.decode(read[:, n : n + 1], cache=plain, last=1) for n in range(read.size(1))][-1]
        share = 1e-2 if found.dtype == torch.float32 else 0.1
        if not ((found - expected).abs().max() <= share * expected.abs().max()):
            raise RuntimeError("what is replayed is not what the model computes")


def _capture(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Record what a step launches; the function returned launches it again and returns the same tensor."""
    now, aside = torch.cuda.current_stream(), torch.cuda.Stream()
    aside.wait_stream(now)
    with torch.cuda.stream(aside):
        step()  # libraries choose their kernels, and reserve memory, at the first call
    now.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = step()

    def replay() -> Tensor:
        graph.replay()
        return found

    return replay


def _attend_near(query: Tensor, key: Tensor, value: Tensor, options: Options, *, place: Tensor, window: int) -> Tensor:
    """Attention of one query at `place` to the latest `window` of all slots."""
    near = (torch.arange(key.size(2), device=key.device) > place - window)[None]  # (1, S)
    return fused_attention(query, key, value, options._replace(mask=combine_masks(options.mask, near)))
