"""What the lab of bugs on chapter 8 says of a run that was stopped before its rate had fallen."""

import itertools
import statistics

import torch

from course_lib.config import TransformerConfig
from course_lib.training import cosine_schedule
from course_lib.transformer import LanguageModel
from coursework.corpora import tiny_shakespeare
from coursework.records import Claim
from experiments import experiment, source_of
from experiments.chapter_07_switches import ascii_ids, held_out_loss, loss_of

SIZES = {"vocab_size": 128, "d_model": 32, "n_heads": 4, "d_ff": 128, "n_decoder_layers": 2, "n_encoder_layers": 0}
SIZES |= {"norm_place": "pre", "norm": "rms", "positions": "rotary", "activation": "gelu", "bias": False}
SIZES |= {"scale_embeddings": False, "dropout": 0.0, "init": "normal", "init_std": 0.05}
FINISHED, STOPPED = "planned for 2,000 steps", "planned for 20,000, stopped"
MARKS = range(2000, 3001, 200)


def factor(record: Claim) -> float:
    """How many times the steps of the finished run the stopped one needs for the same loss, means over the seeds.

    The losses after 2,200 steps and more are in the rows of the stopped run alone.
    """
    wanted, rate = statistics.mean(record.values(FINISHED, "loss after 2000")), record.best_rate(STOPPED)
    rows = [row for row in record.rows if row["arm"] == STOPPED and row["rate"] == rate]
    losses = {step: statistics.mean(row[f"loss after {step}"] for row in rows) for step in MARKS}
    for before, after in itertools.pairwise(MARKS):
        if losses[after] <= wanted:
            share = (losses[before] - wanted) / (losses[before] - losses[after])
            return (before + share * (after - before)) / MARKS[0]
    return MARKS[-1] / MARKS[0]


def stopped_is_worse(record: Claim) -> bool:
    """With every seed, each arm at its best rate, and the stopped run needs at least a tenth more steps."""
    pairs = zip(*(record.values(arm, "loss after 2000") for arm in (FINISHED, STOPPED)), strict=True)
    return all(finished < stopped for finished, stopped in pairs) and factor(record) > 1.1


@experiment(
    claim="A run that is stopped while its rate is still high has a larger loss than one of as many steps whose rate "
    "fell to zero, and needs more steps for the same loss.",
    arms={FINISHED: {"planned": 2000}, STOPPED: {"planned": 20_000}},
    rates=(6e-3, 1.2e-2),
    better="min loss after 2000",
    holds=stopped_is_worse,
    sources=lambda: source_of(loss_of) + source_of(held_out_loss),
)
def cut_short(seed: int, rate: float, *, planned: int) -> dict[str, float]:
    """Characters of the plays, 128 a step, a cosine over the steps that were planned; nats on held-out text."""
    ids = ascii_ids(tiny_shakespeare())
    torch.manual_seed(seed)
    model = LanguageModel(TransformerConfig(**SIZES))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
    found = {"parameters": float(sum(p.numel() for p in model.parameters()))}
    for step in range(1, min(planned, MARKS[-1]) + 1):
        optimizer.param_groups[0]["lr"] = rate * cosine_schedule(step, planned, warmup=20)
        optimizer.zero_grad()
        loss_of(model.train(), ids[:1_000_000], 2, generator).backward()
        optimizer.step()
        if step in MARKS:
            found[f"loss after {step}"] = held_out_loss(model, ids[-100_000:])
    return found
