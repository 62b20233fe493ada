"""Generation: greedy, sampling, beam search and speculative decoding.

A model is a `LanguageModel`, a `Transformer` (with its `source`), or any function from tokens (B, T) to logits
(B, T, V). Prompts of different lengths are padded on the left: see `pad_left`.

Shapes: B batch, T prompt positions, N new tokens, K beams, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.beam import BeamOutput, beam_search
from course_lib.decoding import Model, Session, pad_left, stop_tokens
from course_lib.sampling import (
    Sampling,
    is_usable,
    min_p_filter,
    penalise_repetition,
    top_k_filter,
    top_p_filter,
)
from course_lib.speculative import SpeculativeOutput, speculative_generate

__all__ = [
    "BeamOutput",
    "Sampling",
    "SpeculativeOutput",
    "beam_search",
    "generate",
    "min_p_filter",
    "pad_left",
    "penalise_repetition",
    "speculative_generate",
    "stream",
    "top_k_filter",
    "top_p_filter",
]

_LOOK_EVERY = 16  # off the CPU, a look at results makes the host wait: one in so many tokens is enough


def generate(
    model: Model,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    stop: int | Sequence[int] | None = None,
    pad_id: int | None = None,
    prompt_mask: Tensor | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
    **sampling: Any,
) -> Tensor:
    """Continue the prompts token by token.

    Args:
        model: see the head of this module; dropout is off while it runs.
        prompt: token ids (B, T); for a `Transformer`, the start of the target, usually one start token.
        max_new_tokens: N, at most.
        stop: a token, or several, after which an example is finished; the others go on.
        pad_id: fills the places after a stop token; the first stop token unless given.
        prompt_mask: bool (B, T), True = real, for prompts padded on the left.
        source, source_mask: for a `Transformer`; see its `forward`.
        generator: draws the samples, on the device of the logits; torch's global one unless given.
        use_cache: False computes everything again at each step: the same tokens, slower.
        sampling: fields of `Sampling`: temperature (0 for greedy), top_k, top_p, min_p, repetition_penalty.

    Returns:
        int64 (B, T + N), the prompts included; shorter if all examples stopped before.
    """
    steps = stream(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        stop=stop,
        pad_id=pad_id,
        prompt_mask=prompt_mask,
        source=source,
        source_mask=source_mask,
        generator=generator,
        use_cache=use_cache,
        **sampling,
    )
    new = torch.stack(list(steps), dim=1)  # N times (B,) -> (B, N)
    if stop is not None:
        stopped = torch.isin(new, stop_tokens(stop, prompt))
        new = new[:, : int((stopped.cumsum(dim=1) == 0).any(dim=0).sum()) + 1]  # up to the last first stop
    return torch.cat([prompt, new], dim=1)


def stream(
    model: Model,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    stop: int | Sequence[int] | None = None,
    pad_id: int | None = None,
    prompt_mask: Tensor | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
    **sampling: Any,
) -> Iterator[Tensor]:
    """Yield the new tokens as they are chosen, int64 (B,) at a time; arguments as `generate`.

    Ends when all examples have stopped; off the CPU it may yield some padding before it notices.
    """
    settings = Sampling(**sampling)
    with torch.no_grad():
        session = Session(
            model,
            prompt,
            max_new_tokens,
            prompt_mask=prompt_mask,
            source=source,
            source_mask=source_mask,
            use_cache=use_cache,
        )
    stop_ids = None if stop is None else stop_tokens(stop, prompt)
    return _steps(session, prompt, prompt_mask, max_new_tokens, stop_ids, pad_id, generator, settings)


@torch.no_grad()
def _steps(
    session: Session,
    prompt: Tensor,
    prompt_mask: Tensor | None,
    max_new_tokens: int,
    stop_ids: Tensor | None,
    pad_id: int | None,
    generator: torch.Generator | None,
    settings: Sampling,
) -> Iterator[Tensor]:
    look_every = 1 if prompt.device.type == "cpu" else _LOOK_EVERY
    usable = torch.ones((), dtype=torch.bool, device=prompt.device)
    finished = torch.zeros(prompt.size(0), dtype=torch.bool, device=prompt.device)
    seen: Tensor | None = None
    new = prompt
    for step in range(max_new_tokens):
        logits = session.feed(new)[:, -1]  # (B, 1, V) -> (B, V)
        look = (step + 1) % look_every == 0 or step + 1 == max_new_tokens
        usable = usable & is_usable(logits).all()
        if look and not usable:
            raise ValueError(f"model: its logits hold NaN, infinity, or no allowed token at or before step {step}")
        if settings.repetition_penalty != 1.0:
            seen = _mark(seen, new, prompt_mask, logits)
            logits = penalise_repetition(logits, seen, settings.repetition_penalty)
        chosen = settings.choose(logits, generator)  # (B,)
        if stop_ids is not None:
            chosen = chosen.where(~finished, stop_ids[0] if pad_id is None else pad_id)
            finished = finished | torch.isin(chosen, stop_ids)
        yield chosen
        if stop_ids is not None and look and finished.all():
            return
        new = chosen[:, None]


def _mark(seen: Tensor | None, new: Tensor, prompt_mask: Tensor | None, logits: Tensor) -> Tensor:
    """Add new tokens (B, n) to those seen, bool (B, V); padding of the prompt does not count."""
    if seen is None:
        seen = torch.zeros_like(logits, dtype=torch.bool)
        if prompt_mask is not None:
            new = torch.where(prompt_mask, new, new[:, -1:])  # the last token is real
    return seen.scatter_(1, new, True)
