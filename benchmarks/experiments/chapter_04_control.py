"""What chapter 4 says about reading without labels, against a text of the same words that lacks one thing."""

import copy
import functools

import torch

from experiments import experiment, source_of
from experiments.chapter_04_judge import LABELLED, PAD, Judge, ids, judged, read_first, right_share, train_judge


def dealt_anew(text: torch.Tensor, seed: int) -> torch.Tensor:
    """The same sentences (N, T), their last words dealt out among them at random: they fit the subject by chance."""
    rows, last = torch.arange(len(text)), (text != PAD).sum(dim=1) - 1
    order = torch.randperm(len(text), generator=torch.Generator().manual_seed(seed))
    dealt = text.clone()
    dealt[rows, last] = text[rows, last][order]
    return dealt


@functools.cache
def reader(seed: int, text: str) -> Judge:
    """A judge that has filled in hidden words for 1000 steps, in right sentences or in those dealt anew."""
    sentences, right, _, _ = judged(seed)
    torch.manual_seed(seed)
    model, x = Judge(), ids(sentences)[LABELLED:][right[LABELLED:] == 1]  # none that gets a label
    if text != "nothing":
        x = dealt_anew(x, seed) if "dealt" in text else x
        train_judge(model, x, None, 1000, 3e-3, seed)
    return model


@experiment(
    claim="With 100 labels a judge that has filled in hidden words of right sentences is ahead, seed by seed and by "
    "more than 0.15, of one that has read the same sentences with their last words dealt out anew, and of one that has "
    "read nothing.",
    arms={name: {"text": name} for name in ("nothing", "right sentences", "the same, last words dealt anew")},
    rates=(1e-3, 3e-3),
    better="max accuracy",
    holds=lambda record: all(
        right > other + 0.15
        for arm in ("nothing", "the same, last words dealt anew")
        for right, other in zip(
            record.values("right sentences", "accuracy"), record.values(arm, "accuracy"), strict=True
        )
    ),
    sources=lambda: source_of(read_first),
)
def read_first_dealt(seed: int, rate: float, *, text: str) -> dict[str, float]:
    """Then learn from 100 labelled sentences, 150 steps; accuracy on 1000 others."""
    sentences, right, test, answers = judged(seed)
    x, model = ids(sentences), copy.deepcopy(reader(seed, text))
    train_judge(model, x[:LABELLED], right[:LABELLED], 150, rate, seed, size=32)
    return {"accuracy": right_share(model, ids(test), answers)}
