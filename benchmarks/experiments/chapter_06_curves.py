"""What chapter 6 says about curves of the loss: a gallery of faults, over-fitting among them."""

import random

import torch
import torch.nn.functional as F

from course_lib.transformer import Transformer, TransformerConfig
from coursework.corpora import number_parts
from coursework.records import Claim
from experiments import experiment

STEPS = 300
SEEN = (1, 10, 20, 30, 40, 60, 80, 100, 130, 160, 200, 250, 300)  # steps at which a curve is written down
PAD, START, END = 0, 1, 2
PAIRS = [(number_parts(n, "de"), number_parts(n, "en")) for n in range(1000)]
CODE = {part: i + 3 for i, part in enumerate(sorted({part for pair in PAIRS for words in pair for part in words}))}


def encoded(texts: list[list[str]], start: tuple[int, ...] = ()) -> torch.Tensor:
    """Lists of parts as one tensor, filled up to the longest."""
    rows = [[*start, *(CODE[part] for part in parts), END] for parts in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def split(seed: int, size: int) -> tuple[list[int], list[int]]:
    """The numbers to train on, and 200 that are held out."""
    numbers = random.Random(seed).sample(range(1000), 1000)
    return numbers[200 : 200 + size], numbers[:200]


def batch(numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets of some numbers."""
    return encoded([PAIRS[n][0] for n in numbers]), encoded([PAIRS[n][1] for n in numbers], (START,))


def loss_of(
    model: Transformer, numbers: list[int], *, shift: bool = True, count_padding: bool = False, mixed: bool = False
) -> torch.Tensor:
    """The loss per token of a batch, with the fault that is asked for."""
    source, target = batch(numbers)
    if mixed:  # each source beside the target of another number
        source = source.roll(1, 0)
    if count_padding:  # as in code that fills every row up to one fixed length
        target = F.pad(target, (0, 33 - target.size(1)), value=PAD)
    reads, answers = (target[:, :-1], target[:, 1:]) if shift else (target, target)
    scores = model(source, reads)
    return F.cross_entropy(scores.flatten(0, 1), answers.flatten(), ignore_index=-1 if count_padding else PAD)


@torch.no_grad()
def written_right(model: Transformer, numbers: list[int]) -> float:
    """The share of numbers that are translated exactly when the model reads what it wrote itself."""
    source, target = batch(numbers)
    written = torch.full((len(source), 1), START)
    while written.size(1) < target.size(1):
        written = torch.cat([written, model(source, written)[:, -1:].argmax(-1)], dim=1)
    done = (written == END).cumsum(1) - (written == END).long()  # what stands behind the first end sign
    return (written.masked_fill(done > 0, PAD) == target).all(1).float().mean().item()


def train_numbers(
    seed: int, rate: float, *, size: int = 800, warmup: int = 30, norm: str = "pre", layers: int = 2, **fault: bool
) -> dict[str, float]:
    """Train a small translator of numbers below 1000, and write down its losses on the way."""
    torch.manual_seed(seed)
    sizes = {"d_model": 32, "n_heads": 4, "d_ff": 64, "n_encoder_layers": layers, "n_decoder_layers": layers}
    model = Transformer(TransformerConfig(**sizes, vocab_size=len(CODE) + 3, dropout=0.0, norm_place=norm, pad_id=PAD))
    numbers, held_out = split(seed, size)
    draw, optimizer = random.Random(seed), torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    measures: dict[str, float] = {}
    for step in range(1, STEPS + 1):
        share = step / warmup if step < warmup else (STEPS + 1 - step) / (STEPS + 1 - warmup)
        optimizer.param_groups[0]["lr"] = rate * share
        loss = loss_of(model, draw.sample(numbers, 32), **fault)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in SEEN:
            with torch.no_grad():
                measures[f"training {step}"] = loss_of(model, numbers[:200], **fault).item()
                measures[f"held out {step}"] = loss_of(model, held_out, **fault).item()
        if step == 40:
            with torch.no_grad():
                measures["plain 40"] = loss_of(model, held_out).item()  # without the fault
    return measures | {"exact": written_right(model, held_out)}


FAULTS: dict[str, dict[str, object]] = {
    "nothing wrong": {"peak": 3e-3},
    "targets not shifted": {"peak": 3e-3, "shift": False},
    "padding counted": {"peak": 3e-3, "count_padding": True},
    "pairs mixed up": {"peak": 3e-3, "mixed": True},
    "40 pairs": {"peak": 3e-3, "size": 40},
    "rate too low": {"peak": 3e-5},
    "rate too high": {"peak": 1e-1},
    "no warm-up": {"peak": 1e-2, "norm": "post", "layers": 3, "warmup": 1},
    "warm-up put back": {"peak": 1e-2, "norm": "post", "layers": 3, "warmup": 50},
}


def faults_can_be_told(record: Claim) -> bool:
    """Each fault has the curve that the chapter describes, with every seed, and nothing wrong has another."""

    def each(arm: str, measure: str) -> list[float]:
        return record.values(arm, measure)

    good, parted = "nothing wrong", "40 pairs"
    lowest = [min(row) for row in zip(*(each(parted, f"held out {step}") for step in SEEN), strict=True)]
    return (
        min(each(good, "exact")) > 0.85
        and min(each("rate too low", "held out 300")) > 2.0
        and min(each("rate too high", "held out 300")) > max(each(good, "held out 300")) + 0.2
        and max(each("rate too high", "held out 10")) < min(each(good, "held out 10"))
        and max(each("targets not shifted", "training 300")) < 0.05
        and max(each("targets not shifted", "exact")) < 0.02
        and max(each("padding counted", "held out 40")) < min(each(good, "held out 40")) / 2
        and min(each("pairs mixed up", "training 300")) > 1.0
        and max(each("pairs mixed up", "exact")) < 0.05
        and max(each(parted, "training 300")) < 0.05
        and all(last > low + 0.05 for last, low in zip(each(parted, "held out 300"), lowest, strict=True))
        and min(each("no warm-up", "held out 300")) > 3 * max(each("warm-up put back", "held out 300"))
    )


@experiment(
    claim="Seven faults of training each draw a curve of their own, with every seed.",
    arms=FAULTS,
    better="max exact",
    holds=faults_can_be_told,
)
def curves_of_faults(seed: int, rate: float | None, *, peak: float, **settings: object) -> dict[str, float]:
    """A translator of numbers below 1000, 300 updates, with one thing wrong."""
    return train_numbers(seed, peak, **settings)  # type: ignore[arg-type]
