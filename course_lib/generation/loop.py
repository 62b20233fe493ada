"""The loop of generation: feed what is new, choose the next token, until all have stopped.

Shapes: B batch, T prompt positions, N new tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import CountOrZero, checked
from course_lib.generation.incremental import IncrementalModel, Model, stop_tokens
from course_lib.generation.sampling import Sampling, is_usable, penalise_repetition

_LOOK_EVERY = 16  # off the CPU, a look at results makes the host wait: one in so many tokens is enough


def generate(model: Model, prompt: Tensor, *, stop: int | Sequence[int] | None = None, **others: Any) -> Tensor:
    """Continue the prompts token by token; arguments as `stream`.

    Returns:
        int64 (B, T + N), the prompts included; shorter if all examples stopped before.
    """
    new = torch.stack(list(stream(model, prompt, stop=stop, **others)), dim=1)  # N times (B,) -> (B, N)
    if stop is not None:
        stopped = torch.isin(new, stop_tokens(stop, prompt))
        new = new[:, : int((stopped.cumsum(dim=1) == 0).any(dim=0).sum()) + 1]  # up to the last first stop
    return torch.cat([prompt, new], dim=1)


@checked
def stream(
    model: Model,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    stop: int | Sequence[int] | None = None,
    pad_id: CountOrZero | None = None,
    prompt_mask: Tensor | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
    compile: bool = False,
    **sampling: Any,
) -> Iterator[Tensor]:
    """Yield the new tokens as they are chosen, int64 (B,) at a time.

    Ends when all examples have stopped; off the CPU it may yield some padding before it notices.

    Args:
        model: see the head of `course_lib.generation`; dropout is off while it runs.
        prompt: token ids (B, T); for a `Transformer`, the start of the target, usually one start token.
        max_new_tokens: N, at most.
        stop: a token, or several, after which an example is finished; the others go on.
        pad_id: fills the places after a stop token; the first stop token unless given.
        prompt_mask: bool (B, T), True = real, for prompts padded on the left.
        source, source_mask: for a `Transformer`; see its `forward`.
        generator: draws the samples, on the device of the logits; torch's global one unless given.
        use_cache: False computes everything again at each step: the same tokens, slower.
        compile: compile the step that feeds one token, once for a model and a batch of this size, which takes half a
            minute the first time and seconds in a later process: for long texts and many of them. A CUDA device
            records the step instead, in about a second. The tokens are the same but for rounding. Where it cannot be
            compiled, a warning says why and the model works as it is.
        sampling: fields of `Sampling`: temperature (0 for greedy), top_k, top_p, min_p, repetition_penalty.
    """
    settings = Sampling(**sampling)
    with torch.no_grad():
        incremental = IncrementalModel(
            model,
            prompt,
            max_new_tokens,
            prompt_mask=prompt_mask,
            source=source,
            source_mask=source_mask,
            use_cache=use_cache,
            compile=compile,
        )
    stop_ids = None if stop is None else stop_tokens(stop, prompt)

    @torch.no_grad()
    def steps() -> Iterator[Tensor]:  # apart, so that bad arguments are refused by the call and not by the first step
        look_every = 1 if prompt.device.type == "cpu" else _LOOK_EVERY
        usable = torch.ones((), dtype=torch.bool, device=prompt.device)
        finished = torch.zeros(prompt.size(0), dtype=torch.bool, device=prompt.device)
        seen: Tensor | None = None
        new = prompt
        for step in range(max_new_tokens):
            logits = incremental.feed(new)[:, -1]  # (B, 1, V) -> (B, V)
            look = (step + 1) % look_every == 0 or step + 1 == max_new_tokens
            usable = usable & is_usable(logits).all()
            if look and not usable:
                raise ValueError(f"model: its logits hold NaN, infinity, or no allowed token at or before step {step}")
            if settings.repetition_penalty != 1.0:
                seen = _tokens_of(prompt, prompt_mask, logits) if seen is None else seen.scatter_(1, new, True)
                logits = penalise_repetition(logits, seen, settings.repetition_penalty)
            chosen = settings.choose(logits, generator)  # (B,)
            if stop_ids is not None:
                chosen = chosen.where(~finished, stop_ids[0] if pad_id is None else pad_id)
                finished = finished | torch.isin(chosen, stop_ids)
            yield chosen
            if stop_ids is not None and look and finished.all():
                return
            new = chosen[:, None]

    return steps()


def _tokens_of(prompt: Tensor, prompt_mask: Tensor | None, logits: Tensor) -> Tensor:
    """Which tokens of the vocabulary the prompt holds, bool (B, V) like the logits; padding does not count."""
    real = prompt if prompt_mask is None else torch.where(prompt_mask, prompt, prompt[:, -1:])  # the last is real
    return torch.zeros_like(logits, dtype=torch.bool).scatter_(1, real, True)
