"""Capstones: tasks without a solution to compare with. A check says which laws and numbers hold, beside a baseline.

A task is asked for by name: `check(progress, "classifier", model)`. What is given are the reader's own models, as
functions of tensors, or the reader's own numbers. Nothing here knows how they were made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib.testing import assert_causal, assert_gradients_flow, assert_padding_invariant
from coursework.exercises.claims import Found, Missing, distributions, law, shape
from coursework.exercises.engine.finding import RIGHT, WRONG
from coursework.exercises.engine.source import source_of
from coursework.exercises.learner import Progress
from coursework.exercises.registry import CAPSTONES
from coursework.exercises.small_tasks import families, positions, trained_heads

EDITION = "1"


def check(progress: Progress, name: str, *answers: Any) -> bool:
    """Print what holds and what does not, keep the answer, and return whether everything holds."""
    if name not in TASKS:
        raise ValueError(f"name: expected one of {', '.join(TASKS)}, got {name!r}")
    if not answers or any(answer is None or answer is ... for answer in answers):
        print(f"{name}: not attempted yet.")
        return False
    holds = True
    try:
        for claim, against in _found(name, answers):
            holds = holds and not against
            print(f"{'no   ' if against else 'holds'} {claim}" + (f": {against}" if against else ""))
    except Missing as problem:
        holds = False
        print(f"no    {problem}")
    print(f"{name}: {'everything holds.' if holds else 'not yet.'}")
    source = next(filter(None, (source_of(answer) for answer in answers if callable(answer))), "")
    kept = source or f"# the numbers that were given\nanswers = {answers!r:.2000}\n"
    keeper = progress.find_keeper()
    if keeper is not None:
        keeper.save_answer(f"capstone_{name}", kept, RIGHT if holds else WRONG, EDITION)
    return holds


def _found(name: str, answers: tuple[Any, ...]) -> Found:
    try:
        yield from TASKS[name](*answers)
    except (Missing, KeyboardInterrupt):
        raise
    except Exception as problem:  # the reader's code may raise anything
        raise Missing(f"it stopped with {type(problem).__name__}: {str(problem)[:300]}") from None


# -- 1: an encoder that classifies -------------------------------------------------------------------------------------


def _classifier(make: Callable[[], nn.Module]) -> Found:
    model = make()
    if not isinstance(model, nn.Module):
        raise Missing(f"make(): expected a torch.nn.Module, got {type(model).__name__}")
    ids = torch.randint(1, 5000, (3, 12), generator=torch.Generator().manual_seed(0))
    shape("the scores of 3 texts", model(ids), (3, 7))
    yield "3 texts give the scores (3, 7)", ""
    count = sum(weight.numel() for weight in model.parameters())
    table, layer = 5000 * 64, 4 * 64 * 64 + 2 * 64 * 256
    low, high = table + 2 * layer, table + 3 * layer  # between two layers without biases, and three
    said = f"{count:,} weights; the table has {table:,}, two layers at least {2 * layer:,}"
    yield said, "" if low <= count < high else f"expected from {low:,} to {high:,} for these sizes"
    fn = lambda x, real: model(x.masked_fill(~real, 0))  # noqa: E731
    yield law("padding, id 0, moves no score", assert_padding_invariant, fn, ids, per_token=False, module=model)
    model.eval()
    with torch.no_grad():
        moved = (model(ids) - model(ids.flip(1))).abs().max().item()
    yield "the order of the words counts", "" if moved > 1e-4 else "a text read backwards has the same scores"
    model.train()
    weights = {name: weight for name, weight in model.named_parameters() if not _of_keys(name)}
    yield law("a gradient reaches the weights", assert_gradients_flow, lambda: model(ids), parameters=weights)
    yield _by_heart(model)


def _of_keys(name: str) -> bool:
    return name.endswith("bias")  # the softmax cancels that of the keys, and a padded place may get none


def _by_heart(model: nn.Module) -> tuple[str, str]:
    """Texts in pairs, each with the same words in two orders: no count of words tells their classes."""
    stream = torch.Generator().manual_seed(1)
    half = torch.randint(1, 5000, (7, 8), generator=stream)
    texts, classes = torch.cat([half, half.flip(1)]), torch.tensor([*range(7), 1, 2, 3, 4, 5, 6, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(60):
        loss = F.cross_entropy(model(texts), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    floor = math.log(2)  # the least loss of whoever counts words: each bag of words has two classes
    said = f"60 steps learn 14 texts by heart: loss {loss.item():.2f}, counting words stays above {floor:.2f}"
    return said, "" if loss.item() < floor / 2 else f"expected below {floor / 2:.2f}"


# -- 2: a causal mask, and heads that nobody trained -------------------------------------------------------------------


def _masks_and_heads(mask: Tensor, weights: Tensor, entropies: Sequence[float]) -> Found:
    shape("mask", mask, (10, 10))
    if mask.dtype != torch.bool:
        raise Missing(f"mask: expected booleans, True = may attend, got {mask.dtype}")
    seen = mask.sum(dim=1).tolist()
    yield "query i sees i + 1 keys", "" if seen == list(range(1, 11)) else f"the rows see {seen}"
    yield "no query sees a later key", "" if not mask.triu(1).any() else "there are some above the diagonal"
    if not isinstance(weights, Tensor) or weights.dim() != 3 or weights.shape[1:] != (10, 10) or len(weights) < 2:
        raise Missing("weights: expected (heads, 10, 10) with at least two heads")
    weights = weights.detach().float()
    yield distributions(weights)
    apart = (weights[0] - weights[1:]).abs().amax((1, 2)).min().item()
    yield "the heads differ", "" if apart > 1e-4 else "two of them have the same weights"
    own = -(weights * weights.clamp(min=1e-30).log()).sum(-1).mean(-1)  # (H,), nats
    given = torch.as_tensor(entropies, dtype=torch.float32)
    shape("entropies", given, (len(own),))
    gap = (given - own).abs().max().item()
    said = (
        f"the mean entropy of a head is {own.min():.2f} to {own.max():.2f} nats; even weights have {math.log(10):.2f}"
    )
    yield said, "" if gap < 0.01 else f"you gave {[round(x, 2) for x in given.tolist()]}"
    even = own.min().item() > 0.8 * math.log(10)
    yield "untrained heads look nearly everywhere", "" if even else "yours are sharp: hidden keys, or scores not scaled"


# -- 3 and 7: a model of characters ------------------------------------------------------------------------------------


def _characters(predict: Callable[[Tensor], Tensor], train: Tensor, held_out: Tensor, sample: Tensor) -> Found:
    for name, ids, least in (("train", train, 1000), ("held_out", held_out, 200), ("sample", sample, 100)):
        if not isinstance(ids, Tensor) or ids.dim() != 1 or len(ids) < least or ids.dtype != torch.long:
            raise Missing(f"{name}: expected at least {least} ids in one row, int64")
    T, windows = 32, held_out[: len(held_out) // 33 * 33][: 33 * 64].view(-1, 33)
    with torch.no_grad():
        logits = predict(windows[:, :-1])
    V = logits.size(-1)
    shape("predict(ids (B, 32))", logits, (len(windows), T, V))
    if int(max(part.max() for part in (train, held_out, sample))) >= V:
        raise Missing(f"there are ids of {V} and more, but predict scores {V} tokens only")
    yield law("no score depends on a later character", assert_causal, predict, windows[:2, :12], vocab_size=V)
    parts = {tuple(row) for row in train.unfold(0, 33, 1).tolist()}
    seen = sum(tuple(row) in parts for row in windows.tolist())
    yield (
        "the held-out text is new",
        "" if not seen else f"{seen} of its {len(windows)} pieces stand in the training text",
    )
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    single, pairs = _single(train, V), _pairs(train, V)
    unigram = -single[windows[:, 1:]].mean().item()
    bigram = -pairs[windows[:, :-1], windows[:, 1:]].mean().item()
    said = (
        f"held-out loss {loss:.3f} a character; pairs {bigram:.3f}, single ones {unigram:.3f}, even {math.log(V):.3f}"
    )
    yield said, "" if loss < 0.97 * bigram else "expected 3 % below that of counted pairs"
    liked = -pairs[sample[:-1], sample[1:]].mean().item()
    shuffled = sample[torch.randperm(len(sample), generator=torch.Generator().manual_seed(0))]
    chance = -pairs[shuffled[:-1], shuffled[1:]].mean().item()
    said = f"the sample's pairs cost {liked:.2f}, those of its characters shuffled {chance:.2f}"
    yield said, "" if liked < 0.9 * chance else "the sample has no more order than its characters by chance"
    text = {tuple(row) for row in train.unfold(0, 60, 1).tolist()}
    copied = sum(tuple(row) in text for row in sample.unfold(0, 60, 1).tolist()) / (len(sample) - 59)
    yield (
        "the sample is no copy",
        "" if copied < 0.2 else f"{copied:.0%} of it stands word for word in the training text",
    )


def _single(ids: Tensor, V: int) -> Tensor:
    counts = torch.bincount(ids, minlength=V) + 1.0
    return (counts / counts.sum()).log()


def _pairs(ids: Tensor, V: int) -> Tensor:
    counts = torch.bincount(ids[:-1] * V + ids[1:], minlength=V * V).view(V, V) + 0.1
    return (counts / counts.sum(1, keepdim=True)).log()


# -- 8: sizes ----------------------------------------------------------------------------------------------------------

SIZES = ("d_model", "n_heads", "n_layers")


def _sizes(runs: Sequence[Mapping[str, Any]], even: float) -> Found:
    wanted = {*SIZES, "seed", "parameters", "loss"}
    for run in runs:
        if not isinstance(run, Mapping) or not wanted <= set(run):
            raise Missing(f"runs: expected dicts with {', '.join(sorted(wanted))}, got {run!r:.200}")
    groups: dict[tuple[int, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        groups.setdefault(tuple(run[name] for name in SIZES), []).append(run)
    few = [key for key, found in groups.items() if len({run["seed"] for run in found}) < 3]
    yield "three seeds or more for each size", "" if not few else f"fewer for (d_model, n_heads, n_layers) = {few[0]}"
    odd = [key for key in groups if key[0] % key[1]]
    yield "the heads divide the width", "" if not odd else f"{odd[0][1]} heads do not divide {odd[0][0]}"
    same = [key for key, found in groups.items() if len(found) > 1 and len({run["loss"] for run in found}) == 1]
    yield "seeds differ in their loss", "" if not same else f"all runs of {same[0]} have the same; was the seed used?"
    high = [run for run in runs if not 0 < run["loss"] < even]
    yield f"each loss is below that of guessing evenly, {even:.2f}", "" if not high else f"one is {high[0]['loss']:.3g}"
    base = max(groups, key=lambda key: sum(sum(a != b for a, b in zip(key, k, strict=True)) == 1 for k in groups))
    for place, name in enumerate(SIZES):
        line = [
            key for key in groups if all(a == b for i, (a, b) in enumerate(zip(key, base, strict=True)) if i != place)
        ]
        line.sort()
        yield f"{name} is varied alone", "" if len(line) > 1 else f"no two sizes differ in {name} only"
        if len(line) < 2:
            continue
        counts = [groups[key][0]["parameters"] for key in line]
        if name == "n_heads":
            yield "more heads cost no weights", "" if len(set(counts)) == 1 else f"the counts are {counts}"
        else:
            yield f"a larger {name} costs weights", "" if counts == sorted(set(counts)) else f"the counts are {counts}"
        yield _spread(name, [[float(run["loss"]) for run in groups[key]] for key in line]), ""


def _spread(name: str, losses: list[list[float]]) -> str:
    means = [sum(one) / len(one) for one in losses]
    across, within = max(means) - min(means), max(max(one) - min(one) for one in losses)
    larger = "more than" if across > within else "no more than"
    return f"{name} moves the mean loss by {across:.3g}, {larger} seeds do ({within:.3g})"


# -- 9: an efficient variant -------------------------------------------------------------------------------------------


def _efficient(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Found:
    def drawn(T: int) -> list[Tensor]:
        stream = torch.Generator().manual_seed(T)
        return [torch.randn(1, 2, T, 8, generator=stream) for _ in range(3)]

    query, key, value = drawn(48)
    with torch.no_grad():
        shape("attend(query, key, value)", attend(query, key, value), (1, 2, 48, 8))
        ones = attend(query, key, torch.ones_like(value))
        by_query = (attend(query, key, value) - attend(query.flip(-1), key, value)).abs().max().item()
    for claim, part in (("keys", 1), ("values", 2)):

        def fn(x: Tensor, part: int = part) -> Tensor:
            given = [query, key, value]
            given[part] = x
            return attend(given[0], given[1], given[2])

        yield law(
            f"no output depends on later {claim}",
            assert_causal,
            fn,
            (query, key, value)[part],
            dim=2,
            sees_itself=part == 2,
        )
    said = "an output is a mean of the values: equal values come back"
    yield said, "" if (ones - 1).abs().max() < 1e-3 else f"ones come back as {ones.min():.3g} to {ones.max():.3g}"
    yield "the query counts", "" if by_query > 1e-4 else "another query gives the same output"
    small, large = _cost(attend, drawn(256)), _cost(attend, drawn(1024))
    ratio = large / small
    full = _cost(_whole, drawn(1024)) / _cost(_whole, drawn(256))
    said = f"4 times the tokens cost {ratio:.1f} times as much; with full attention {full:.1f} times"
    yield said, "" if ratio < 6 else "expected below 6, for a cost that grows with T and not with its square"


def _whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    T = query.size(-2)
    scores = (query @ key.mT).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ value


def _cost(attend: Callable[..., Tensor], given: list[Tensor]) -> float:
    """Operations of matrix products, and bytes that autograd keeps: both grow with the square in full attention."""
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    copies = [tensor.clone().requires_grad_() for tensor in given]
    counter = FlopCounterMode(display=False)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with counter, hooks, sdpa_kernel(SDPBackend.MATH):  # the fused kernels are not counted
        attend(*copies)
    return float(counter.get_total_flops() + sum(kept))


_CHECKS = (
    _classifier,
    _masks_and_heads,
    _characters,
    trained_heads,
    families,
    positions,
    _characters,
    _sizes,
    _efficient,
)
TASKS: dict[str, Callable[..., Found]] = dict(zip(CAPSTONES, _CHECKS, strict=True))
