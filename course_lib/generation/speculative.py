"""Speculative decoding: a small model guesses several tokens, the large one checks them in one pass.

Source: Leviathan et al. 2023, algorithm 1; Chen et al. 2023.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_lib.checks import Count, checked
from course_lib.generation.incremental import IncrementalModel, Model, stop_tokens
from course_lib.generation.sampling import Sampling, is_usable
from course_lib.transformer import Transformer


class SpeculativeOutput(NamedTuple):
    """What `speculative_generate` returns."""

    tokens: Tensor  # int64 (1, T + N), the prompt included
    guessed: int  # tokens that the draft model guessed
    accepted: int  # those that were kept
    passes: int  # passes of the target model, the one over the prompt included


@torch.no_grad()
@checked
def speculative_generate(
    model: Model,
    draft: Model,
    prompt: Tensor,
    *,
    max_new_tokens: int,
    n_guesses: Count = 4,
    stop: int | Sequence[int] | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
    **sampling: Any,
) -> SpeculativeOutput:
    """Continue one prompt with tokens distributed exactly as those of `model`, in fewer of its passes.

    `draft` guesses x from its distribution q; the guess is kept with probability min(1, p(x) / q(x)), p that of
    `model`; if it is refused, the token is drawn from what is left, max(0, p - q) normalised. Either way it has
    distribution p. With temperature 0 the tokens are those of greedy decoding.

    Args:
        model, draft: as in `generate`, over the same vocabulary; a `Transformer` draft gets the same source.
        prompt: token ids (1, T): one example, as accepted lengths would differ.
        n_guesses: tokens guessed before each check.
        others: as in `generate`, except repetition_penalty.
    """
    settings = Sampling(**sampling)
    if settings.repetition_penalty != 1.0:
        raise ValueError("repetition_penalty: not supported here, each guess would change the penalty of the next")
    if prompt.dim() == 2 and prompt.size(0) != 1:
        raise ValueError(f"prompt: expected one example (1, T), got {tuple(prompt.shape)}")
    sizes = [getattr(part, "vocab_size", None) for part in (model, draft)]
    if None not in sizes and sizes[0] != sizes[1]:
        raise ValueError(f"draft: expected a vocabulary of {sizes[0]} like model, got {sizes[1]}")
    options: dict[str, Any] = {"use_cache": use_cache, "sliding": False}  # guesses that are refused are taken back
    of_source: dict[str, Any] = {"source": source, "source_mask": source_mask}
    target = IncrementalModel(model, prompt, max_new_tokens, **of_source, **options)
    if not isinstance(draft, Transformer):
        of_source = {}
    guesser = IncrementalModel(draft, prompt, max_new_tokens, **of_source, **options)
    stops = None if stop is None else stop_tokens(stop, prompt)
    tokens, end = prompt, prompt.size(1) + max_new_tokens
    guessed = accepted = passes = 0
    while tokens.size(1) < end:
        known = tokens.size(1)
        guesses, q = _guess(guesser, tokens, min(n_guesses, end - known - 1), settings, generator)
        n = guesses.size(1)
        p = _probabilities(target, torch.cat([tokens, guesses], dim=1), n + 1, settings, "model")  # (n + 1, V)
        kept, following = _check(guesses[0], q, p, generator)
        tokens = torch.cat([tokens, guesses[:, :kept], following.view(1, 1)], dim=1)
        # The last token is fed next time; refused ones are taken back.
        target.truncate(min(target.length, known + kept))
        guesser.truncate(min(guesser.length, known + kept))
        guessed, accepted, passes = guessed + n, accepted + kept, passes + 1
        if stops is not None:
            hits = torch.isin(tokens[0, known:], stops).nonzero()
            if len(hits):
                tokens = tokens[:, : known + int(hits[0]) + 1]
                break
    return SpeculativeOutput(tokens, guessed, accepted, passes)


def _guess(
    incremental: IncrementalModel, tokens: Tensor, n: int, settings: Sampling, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Let the draft model continue tokens (1, T): guesses (1, n) and the distributions (n, V) they were drawn from."""
    distributions = []
    for _ in range(n):
        q = _probabilities(incremental, tokens, 1, settings, "draft")  # (1, V)
        distributions.append(q)
        tokens = torch.cat([tokens, torch.multinomial(q, 1, generator=generator)], dim=1)
    q = torch.cat(distributions) if n else tokens.new_empty(0, 0)
    return tokens[:, tokens.size(1) - n :], q


def _probabilities(incremental: IncrementalModel, tokens: Tensor, last: int, settings: Sampling, name: str) -> Tensor:
    """Feed what the model has not seen of tokens (1, T); return the distributions after the last ones, (last, V)."""
    logits = incremental.feed(tokens[:, incremental.length :], last=last)[0]
    if not is_usable(logits).all():
        raise ValueError(f"{name}: its logits hold NaN, infinity, or no allowed token")
    return settings.probabilities(logits)


def _check(guesses: Tensor, q: Tensor, p: Tensor, generator: torch.Generator | None) -> tuple[int, Tensor]:
    """Keep a run of the guesses (n,) drawn from q (n, V); return how many, and the token that follows them.

    p (n + 1, V) are the target's distributions at the same places and at one more.
    """
    n = len(guesses)
    if n:
        places = torch.arange(n, device=p.device)
        ratio = p[places, guesses] / q[places, guesses]
        draws = torch.rand(n, generator=generator, device=p.device)
        kept = int((draws < ratio).long().cumprod(dim=0).sum())  # up to the first refusal
    else:
        kept = 0
    if kept == n:
        return kept, torch.multinomial(p[n], 1, generator=generator)
    rest = (p[kept] - q[kept]).clamp(min=0)
    rest = torch.where(rest.sum() > 0, rest, p[kept])  # nothing is left only if p = q to rounding
    return kept, torch.multinomial(rest, 1, generator=generator)
