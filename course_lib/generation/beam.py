"""Beam search: follow the K most likely continuations at once.

Shapes: B batch, T prompt positions, N new tokens, K beams, V vocabulary.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from course_lib.checks import Count, CountOrZero, Finite, Within, check_integer, checked
from course_lib.generation.incremental import IncrementalModel, Model, stop_tokens
from course_lib.generation.sampling import is_usable

EarlyStopping = Literal[True, False, "never"]


class BeamOutput(NamedTuple):
    """What `beam_search` found, best first."""

    tokens: Tensor  # int64 (B, n_best, T + N), the prompts included; the padding id after the end of each
    scores: Tensor  # float32 (B, n_best), sum of log-probabilities / number of new tokens ^ length_penalty


@torch.no_grad()
@checked
def beam_search(
    model: Model,
    prompt: Tensor,
    *,
    n_beams: Annotated[int, Within(1, 1_000_000)],
    max_new_tokens: int,
    n_best: Count = 1,
    length_penalty: Finite = 1.0,
    early_stopping: EarlyStopping = False,
    stop: int | Sequence[int] | None = None,
    pad_id: CountOrZero | None = None,
    prompt_mask: Tensor | None = None,
    source: Tensor | None = None,
    source_mask: Tensor | None = None,
    use_cache: bool = True,
) -> BeamOutput:
    """Keep the K most likely continuations at each step, and return the best finished ones.

    Args:
        n_beams: K. 1 is greedy; as many as there are sequences is an exhaustive search.
        n_best: how many to return for each prompt, at most K.
        length_penalty: exponent of the length by which scores are divided; with 0 short continuations are favoured,
            larger values favour longer ones. The stop token counts.
        early_stopping: when to end before N tokens. True: as soon as K continuations are finished. False: when no
            unfinished one, at its present length, would beat the K finished ones. "never": when none could at any
            length.

    The other arguments are those of `generate`. A place that no continuation reached has score -inf.

    Source: Wu et al. 2016, section 7, with the rules of `transformers`, whose tokens it reproduces.
    """
    check_integer("n_best", n_best, 1, n_beams)
    incremental = IncrementalModel(
        model,
        prompt,
        max_new_tokens,
        prompt_mask=prompt_mask,
        source=source,
        source_mask=source_mask,
        use_cache=use_cache,
    )
    stops = prompt.new_empty(0) if stop is None else stop_tokens(stop, prompt)
    fill = pad_id if pad_id is not None else 0 if stop is None else int(stops[0])
    beams = _Beams(prompt, n_beams, max_new_tokens, fill)
    logits = incremental.feed(prompt)[:, -1].repeat_interleave(n_beams, dim=0)  # (B, V) -> (B * K, V)
    incremental.repeat(n_beams)
    while True:
        usable = is_usable(logits).all()
        rows, go_on = beams.advance(logits, stops, length_penalty, early_stopping)
        readable, unfinished = torch.stack([usable, go_on]).tolist()  # one look at the device
        if not readable:
            raise ValueError(f"model: its logits hold NaN, infinity, or no allowed token at step {beams.length - 1}")
        if not unfinished:
            return beams.best(n_best)
        incremental.reorder(rows)
        logits = incremental.feed(beams.last_tokens())[:, -1]  # (B * K, V)


class _Beams:
    """The K running and the K best finished continuations of each prompt; a score of -inf marks an empty place."""

    def __init__(self, prompt: Tensor, K: int, max_new_tokens: int, fill: int) -> None:
        B, T = prompt.shape
        self.T, self.K, self.max_new_tokens = T, K, max_new_tokens
        self.length = 0  # new tokens so far
        self.running = prompt.new_full((B, K, T + max_new_tokens), fill)
        self.running[:, :, :T] = prompt[:, None]  # (B, T) -> (B, 1, T), into all K
        self.running_scores = torch.full((B, K), -torch.inf, device=prompt.device)
        self.running_scores[:, 0] = 0.0  # all are alike at first: follow one
        self.finished = self.running.clone()
        self.scores = torch.full((B, K), -torch.inf, device=prompt.device)
        self.lengths = torch.zeros_like(self.scores, dtype=torch.int64)
        self.hopeful = torch.ones(B, 1, dtype=torch.bool, device=prompt.device)  # may a running one still finish well?

    def last_tokens(self) -> Tensor:
        """The tokens to feed next, (B * K, 1)."""
        return self.running[:, :, self.T + self.length - 1].reshape(-1, 1)

    def best(self, n_best: int) -> BeamOutput:
        """The best finished continuations, cut to the longest of them."""
        length = int(self.lengths[:, :n_best].max())
        return BeamOutput(self.finished[:, :n_best, : self.T + length], self.scores[:, :n_best])

    def advance(
        self, logits: Tensor, stops: Tensor, length_penalty: float, early_stopping: EarlyStopping
    ) -> tuple[Tensor, Tensor]:
        """Add one token; return where each running beam came from, rows (B * K,), and whether to go on, bool ()."""
        (B, K), V = self.running_scores.shape, logits.size(-1)
        scores = logits.float().log_softmax(dim=-1).view(B, K, V) + self.running_scores[:, :, None]
        # So many candidates that K of them go on even if all that are better stop.
        count = min((1 + max(1, len(stops))) * K, K * V)
        scores, flat = scores.flatten(1).topk(count)  # (B, K, V) -> (B, K * V) -> (B, count)
        parents, tokens = flat // V, flat % V
        candidates = _take(self.running, parents)  # (B, count, T + N)
        candidates[:, :, self.T + self.length] = tokens
        self.length += 1
        ended = torch.isin(tokens, stops) | (self.length == self.max_new_tokens)

        self._finish(candidates, scores, ended, length_penalty, early_stopping)
        self.running_scores, order = scores.masked_fill(ended, -torch.inf).topk(K)
        self.running = _take(candidates, order)

        reach = self.max_new_tokens if early_stopping == "never" and length_penalty > 0 else self.length
        best = self.running_scores[:, :1] / reach**length_penalty  # what the best running one might get
        self.hopeful = self.hopeful & (best > self.scores.amin(dim=1, keepdim=True))
        go_on = self.hopeful.any() & ~ended.all()
        if early_stopping is True:
            go_on = go_on & ~self.scores.isfinite().all()
        first = torch.arange(B, device=flat.device)[:, None] * K
        return (first + parents.gather(1, order)).flatten(), go_on  # (B, K) -> (B * K,)

    def _finish(
        self, candidates: Tensor, scores: Tensor, ended: Tensor, length_penalty: float, early_stopping: EarlyStopping
    ) -> None:
        """Let candidates that ended, and are among the K best, take the places of worse finished ones."""
        enters = ended & self.hopeful
        enters[:, self.K :] = False
        if early_stopping is True:
            enters = enters & ~self.scores.isfinite().all(dim=1, keepdim=True)
        new = (scores / self.length**length_penalty).masked_fill(~enters, -torch.inf)
        lengths = torch.full_like(new, self.length, dtype=torch.int64)
        self.scores, order = torch.cat([self.scores, new], dim=1).topk(self.K)  # (B, K + count) -> (B, K)
        self.finished = _take(torch.cat([self.finished, candidates], dim=1), order)
        self.lengths = torch.cat([self.lengths, lengths], dim=1).gather(1, order)


def _take(sequences: Tensor, order: Tensor) -> Tensor:
    """Choose sequences: (B, n, L) by order (B, m) -> (B, m, L)."""
    return sequences.gather(1, order[:, :, None].expand(-1, -1, sequences.size(2)))
