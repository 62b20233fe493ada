"""Laws about positions: what may reach which place of the sequence."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from course_lib.checks import CountOrZero, Several, Tolerance, check_integer, checked, kind

from .common import (
    SAME,
    apart,
    changed,
    differences,
    insist_axis,
    insist_finite,
    magnitude,
    mode,
    modes_of,
    rounding,
    run,
)


@checked
def assert_causal(
    fn: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    dim: int = 1,
    positions: Annotated[Sequence[int], Several] | None = None,
    sees_itself: bool = True,
    cached: Callable[[Tensor, Tensor], Tensor] | None = None,
    module: nn.Module | None = None,
    vocab_size: int | None = None,
    tolerance: Tolerance = SAME,
) -> None:
    """Change token t: no output before t may move, in train mode, in eval mode and with a cache.

    Args:
        fn: x -> output with the same positions on axis `dim`. A module is run in both modes; so is `module` when `fn`
            is a function around it. Random numbers are the same in each run, so dropout may be on.
        x: numbers (B, T, D) or token ids (B, T); with `dim` other layouts, such as (T, D) at 0 or (B, H, T, E) at 2.
        positions: the tokens to change, all unless given.
        sees_itself: changing token t must also move output t, which a mask that hides too much fails.
        cached: (prompt, rest) -> the outputs of `rest`, computed in one call after `prompt` filled the cache.
        vocab_size: token ids are replaced by others below it, the largest id of x + 1 unless given.
        tolerance: allowed movement, relative to the largest output.

    Raises:
        AssertionError: "changing token 3 changed the output at position 1 by 0.24 in eval mode".
    """
    insist_axis(x, dim)
    T = x.size(dim)
    if T < 2:
        raise ValueError(f"x: expected at least 2 positions on axis {dim}, got {T}")
    tokens = range(T) if positions is None else positions
    for token in tokens:
        check_integer("positions", token, 0, T - 1)
    module, modes = modes_of(fn, module)
    seen: dict[int, float] = dict.fromkeys(tokens, 0.0)
    for name, words in modes:
        with mode(module, name):
            moved = _movements(fn, x, dim, tokens, 0, words, tolerance, vocab_size)
            seen = {t: max(seen[t], moved[t]) for t in tokens}
            if cached is not None:
                for prompt in sorted({1, T // 2}):
                    of_rest = functools.partial(cached, x.narrow(dim, 0, prompt))  # the prompt is held fixed
                    later = [t - prompt for t in tokens if t >= prompt]
                    rest, after = x.narrow(dim, prompt, T - prompt), f"{words} with a cache of {prompt}"
                    _movements(of_rest, rest, dim, later, prompt, after, tolerance, vocab_size)
    if sees_itself:
        for t, movement in seen.items():
            if movement == 0.0:
                raise AssertionError(
                    f"changing token {t} left the output at position {t} as it was: the token does not see itself"
                )


def _movements(
    fn: Callable[[Tensor], Tensor],
    x: Tensor,
    dim: int,
    tokens: Sequence[int],
    first: int,
    words: str,
    tolerance: float,
    vocab_size: int | None,
) -> dict[int, float]:
    """Change each token in turn, refuse movement before it, and return how far the output at the token moved."""
    generator = torch.Generator().manual_seed(0)
    before = run(fn, x)
    if before.dim() <= dim or before.size(dim) != x.size(dim):
        raise ValueError(
            f"fn: expected an output with the {x.size(dim)} positions of x on axis {dim}, got {tuple(before.shape)}"
        )
    insist_finite(before, f"the output{words}, before anything was changed,")
    allowed = tolerance * magnitude(before)
    own: dict[int, float] = {}
    for t in tokens:
        after = run(fn, changed(x, _at(x, dim, t), generator, vocab_size))
        moved = differences(before, after, dim)  # (T,)
        leaks = (moved[:t] > allowed).nonzero()
        if len(leaks):
            place = int(leaks[0])
            raise AssertionError(
                f"changing token {t + first} changed the output at position {place + first} "
                f"by {moved[place].item():.2g}{words}"
            )
        own[t] = moved[t].item()
    return own


def _at(x: Tensor, dim: int, position: int) -> Tensor:
    """Bool over the axes of x up to `dim`: true at one position."""
    where = torch.zeros(x.shape[: dim + 1], dtype=torch.bool, device=x.device)
    where.select(dim, position).fill_(True)
    return where


@checked
def assert_padding_invariant(
    fn: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    *,
    side: Literal["right", "left"] = "right",
    lengths: Sequence[int] | None = None,
    per_token: bool = True,
    alone: bool = True,
    module: nn.Module | None = None,
    vocab_size: int | None = None,
    tolerance: Tolerance | None = None,
) -> None:
    """Change the content of padding: no real token may move; and a padded example equals the example alone.

    The law runs the batch as given, a batch with B = T (where a (B, T) mask can be taken for a (T, T) one) and a batch
    with B != T, both made of the examples of x.

    Args:
        fn: (x, real) -> output, where `real` is bool (B, T), True at real tokens. Dropout must be off.
        x: numbers (B, T, D) or token ids (B, T).
        side: where the padding stands.
        lengths: real tokens of each example of x; spread from 1 to T unless given.
        per_token: the output has the positions of x on axis 1, and only those of real tokens are compared. With False
            (a pooled vector, or queries that attend to x) all of it is compared.
        alone: also compare with each example by itself, without padding; needs at least one real token in each.
        module: put into eval mode for the check; `fn` itself if that is a module.
        vocab_size: as in `assert_causal`.
        tolerance: allowed relative difference from the example alone, that of rounding in the dtype unless given.

    Raises:
        AssertionError: "changing the content of padding changed the output of example 0 at position 2 by 0.31".
    """
    if x.dim() < 2:
        raise ValueError(f"x: expected (B, T, D) or (B, T), got {tuple(x.shape)}")
    if side not in ("right", "left"):
        raise ValueError(f"side: expected 'right' or 'left', got {side!r}")
    B, T = x.shape[:2]
    if lengths is None:
        lengths = [1 + (row * (T - 1)) // max(B - 1, 1) for row in range(B)]  # 1, ..., T
        lengths = lengths if B > 1 else [max(T - 1, 1)]
    if len(lengths) != B or not all(0 <= length <= T for length in lengths):
        raise ValueError(f"lengths: expected {B} values from 0 to T={T}, got {list(lengths)}")
    with mode(fn if module is None else module, "eval"):
        for batch in sorted({B, T, T + 1}, key=lambda size: size != B):
            rows = torch.arange(batch) % B
            kept = [lengths[row] for row in rows.tolist()]
            _padding_in_one_batch(fn, x[rows.to(x.device)], kept, side, per_token, alone, vocab_size, tolerance)


def _padding_in_one_batch(
    fn: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    lengths: list[int],
    side: str,
    per_token: bool,
    alone: bool,
    vocab_size: int | None,
    tolerance: float | None,
) -> None:
    B, T = x.shape[:2]
    real = torch.arange(T) < torch.tensor(lengths)[:, None]  # (B, T)
    real = (real if side == "right" else real.flip(1)).to(x.device)
    where = f"in a batch of B={B}, T={T}, padded on the {side}"
    before = run(fn, x, real)
    if per_token and before.shape[:2] != x.shape[:2]:
        raise ValueError(f"fn: expected an output of shape ({B}, {T}, ...), got {tuple(before.shape)}")
    for row in range(B):
        insist_finite(before[row][real[row]] if per_token else before[row], f"the output of example {row} {where}")

    generator = torch.Generator().manual_seed(0)
    for scale in (1.0, 1000.0):
        after = run(fn, changed(x, ~real, generator, vocab_size, scale), real)
        what = "changing the content of padding changed"
        _same_at_real(before, after, real, per_token, SAME, what, where)
    if alone and min(lengths) > 0:
        for row in range(B):
            single = run(fn, x[row, real[row]][None], real[row, real[row]][None])
            padded = before[row : row + 1, real[row]] if per_token else before[row : row + 1]
            limit = rounding(before.dtype) if tolerance is None else tolerance
            gap, allowed = differences(padded, single, 1 if per_token else 0), limit * magnitude(before)
            if (gap > allowed).any():
                place = f" at its real token {int((gap > allowed).nonzero()[0])}" if per_token else ""
                raise AssertionError(
                    f"padding example {row} to T={T} changed its output{place} by {gap.max().item():.2g} "
                    f"against the example alone, {where}"
                )


def _same_at_real(
    before: Tensor, after: Tensor, real: Tensor, per_token: bool, limit: float, what: str, where: str
) -> None:
    allowed = limit * magnitude(before[real] if per_token else before)
    gap = apart(before, after)
    gap = gap.flatten(2).amax(-1) if per_token and gap.dim() > 2 else gap  # (B, T)
    wrong = (gap > allowed) & real.cpu() if per_token else gap > allowed
    if wrong.any():
        place = [int(i) for i in wrong.nonzero()[0]]
        position = f" at position {place[1]}" if per_token else ""
        raise AssertionError(
            f"{what} the output of example {place[0]}{position} by {gap[tuple(place)].item():.2g}, {where}"
        )


@checked
def assert_permutation_equivariant(
    fn: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    dim: int = 1,
    permutations: CountOrZero = 3,
    module: nn.Module | None = None,
    tolerance: Tolerance | None = None,
) -> None:
    """Reorder the tokens: the outputs must be reordered in the same way, and otherwise unchanged.

    Args:
        fn: x -> output with the same positions on axis `dim`. Modules are checked in eval mode.
        x: numbers (B, T, D) or token ids (B, T); `dim` as in `assert_causal`.
        permutations: how many random orders to try; the reversed order always comes first.
        tolerance: allowed relative difference, that of rounding in the dtype unless given.

    Raises:
        AssertionError: "after reordering the tokens, the one moved from position 0 to 4 has another output, by 0.2".
    """
    insist_axis(x, dim)
    T = x.size(dim)
    generator = torch.Generator().manual_seed(0)
    orders = [torch.arange(T).flip(0)] + [torch.randperm(T, generator=generator) for _ in range(permutations)]
    with mode(fn if module is None else module, "eval"):
        before = run(fn, x)
        insist_finite(before, "the output, before anything was reordered,")
        allowed = (rounding(before.dtype) if tolerance is None else tolerance) * magnitude(before)
        for order in orders:
            order = order.to(x.device)
            gap = differences(before.index_select(dim, order), run(fn, x.index_select(dim, order)), dim)  # (T,)
            if (gap > allowed).any():
                to = int((gap > allowed).nonzero()[0])
                raise AssertionError(
                    f"after reordering the tokens, the one moved from position {int(order[to])} to {to} "
                    f"has another output, by {gap[to].item():.2g}"
                )


@checked
def assert_cache_consistent(
    full: Callable[..., Tensor],
    step: Callable[..., tuple[Tensor, Any]],
    x: Tensor,
    *,
    prefills: Annotated[Sequence[int], Several] | None = None,
    chunks: Annotated[Sequence[int], Several] = (1, 3),
    left_padding: bool = False,
    windows: bool = False,
    module: nn.Module | None = None,
    tolerance: Tolerance | None = None,
) -> None:
    """Feed a sequence in pieces through a cache: each output must equal that of the full pass.

    Args:
        full: x -> output (B, T, ...), all positions at once.
        step: (new, cache) -> (outputs of the new positions, cache); the first cache is None.
        x: numbers (B, T, D) or token ids (B, T).
        prefills: how many positions the first call takes; 0 (straight to the steps), 1, half and all but one unless
            given.
        chunks: how many positions each later call takes; more than one shows masks that forget the cache.
        left_padding: run also with examples of different lengths padded on the left. Both functions then get the
            keyword `real`: bool (B, all positions so far), True at real tokens. Outputs at padding are not compared.
        windows: run also with a sliding window shorter than the prompt, and one longer than the sequence. Both
            functions then get the keyword `window`, the number of latest positions seen, the own one included.
        module: put into eval mode for the check; `full` itself if that is a module.
        tolerance: allowed relative difference, that of rounding in the dtype unless given.

    Raises:
        AssertionError: "with a cache (prefill 4, then 1 at a time) the output at position 5 differs by 0.3 ...".
    """
    if x.dim() < 2 or x.size(1) < 2:
        raise ValueError(f"x: expected (B, T, D) or (B, T) with T of at least 2, got {tuple(x.shape)}")
    B, T = x.shape[:2]
    prefills = sorted({0, 1, T // 2, T - 1}) if prefills is None else prefills
    if not all(0 <= prefill < T for prefill in prefills):
        raise ValueError(f"prefills: expected values from 0 to T-1={T - 1}, got {list(prefills)}")
    for chunk in chunks:
        check_integer("chunks", chunk)
    settings: list[tuple[str, dict[str, int], Tensor | None]] = [("", {}, None)]
    if windows:
        settings += [(f", window {w}", {"window": w}, None) for w in (max(1, T // 2 - 1), T + 3)]
    if left_padding:
        pads = torch.tensor([(row * (T // 2)) // max(B - 1, 1) if B > 1 else T // 3 for row in range(B)])
        real = (torch.arange(T) >= pads[:, None]).to(x.device)  # (B, T)
        settings += [(f"{words}, padded on the left", more, real) for words, more, _ in list(settings)]
    with mode(full if module is None else module, "eval"):
        for (words, more, mask), prefill, chunk in itertools.product(settings, prefills, chunks):
            _cache_in_one_setting(full, step, x, prefill, chunk, words, more, mask, tolerance)


def _cache_in_one_setting(
    full: Callable[..., Tensor],
    step: Callable[..., tuple[Tensor, Any]],
    x: Tensor,
    prefill: int,
    chunk: int,
    words: str,
    more: dict[str, int],
    real: Tensor | None,
    tolerance: float | None,
) -> None:
    T = x.size(1)
    expected = run(full, x, **more, **({} if real is None else {"real": real}))
    shown = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if real is None else real
    insist_finite(expected[shown], f"the output of the full pass{words}")
    allowed = (rounding(expected.dtype) if tolerance is None else tolerance) * magnitude(expected[shown])
    cache: Any = None
    edges = sorted({0, *range(prefill, T, chunk), T}) if prefill else [*range(0, T, chunk), T]
    for start, end in itertools.pairwise(edges):
        kept: list[Any] = [cache]

        def one(new: Tensor, kept: list[Any] = kept, end: int = end) -> Tensor:
            found = step(new, kept[0], **more, **({} if real is None else {"real": real[:, :end]}))
            if not isinstance(found, tuple) or len(found) != 2:
                raise TypeError(f"step: expected a function that returns (outputs, cache), got {kind(found)}")
            output, kept[0] = found
            return output

        output = run(one, x[:, start:end])
        cache = kept[0]
        if output.shape != expected[:, start:end].shape:
            raise AssertionError(
                f"the step for positions {start} to {end - 1} returned shape {tuple(output.shape)}, "
                f"expected {tuple(expected[:, start:end].shape)}{words}"
            )
        gap = apart(output, expected[:, start:end])
        gap = gap.flatten(2).amax(-1) if gap.dim() > 2 else gap  # (B, new)
        wrong = (gap > allowed) & shown[:, start:end].cpu()
        if wrong.any():
            row, place = (int(i) for i in wrong.nonzero()[0])
            raise AssertionError(
                f"with a cache (prefill {prefill}, then {chunk} at a time{words}) the output of example {row} at "
                f"position {start + place} differs from the full pass by {gap[row, place].item():.2g}"
            )
