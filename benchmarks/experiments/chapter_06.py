"""What chapter 6 says about warm-up, where the norm is, and smoothed labels."""

import statistics

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.transformer import Transformer, TransformerConfig
from coursework.corpora import copy_task
from coursework.records import Claim
from experiments import experiment


def reversal(n: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Batches of 32 pairs: seven letters, and the same backwards between start and stop."""
    generator = torch.Generator().manual_seed(seed)
    source, target = copy_task(32 * n, 7, 14, reverse=True, first_id=3, generator=generator)
    ends = [torch.full((len(source), 1), id) for id in (1, 2)]
    target = torch.cat([ends[0], target, ends[1]], dim=1)
    return [{"source": s, "target": t} for s, t in zip(source.split(32), target.split(32), strict=True)]


def learn_to_reverse(seed: int, rate: float, *, layers: int = 2, norm: str = "post", **settings: object) -> float:
    """Train the chapter's small translator for 250 updates; share of right letters under teacher forcing."""
    torch.manual_seed(seed)
    sizes = {"d_model": 32, "n_heads": 4, "d_ff": 64, "n_encoder_layers": layers, "n_decoder_layers": layers}
    model = Transformer(TransformerConfig(**sizes, vocab_size=14, dropout=0.0, norm_place=norm))
    config = TrainingConfig(steps=250, log_every=250, learning_rate=rate, **settings)
    task, batches = tasks.Translation(pad_id=0, smoothing=0.0), reversal(250, 1000 + seed)
    run = Run(model, task, batches, config, shown=Silent()).train()
    if run.interrupted:
        raise KeyboardInterrupt
    with torch.no_grad():
        right = [run.model(b["source"], b["target"][:, :-1]).argmax(-1) == b["target"][:, 1:] for b in reversal(10, 99)]
    return torch.cat(right).float().mean().item()


def decay_and_peak(record: Claim) -> bool:
    """At the low peak, 5 steps fail with Noam and not with a fixed decay; at the high one 1000 steps learn, too."""

    def reached(arm: str, peak: float) -> tuple[float, float]:
        return record.range(arm, "right letters", peak)

    return (
        reached("Noam, 5 steps", 3e-3)[1] < reached("linear, 5 steps", 3e-3)[0]
        and reached("Noam, 1000 steps", 3e-3)[1] < 0.6
        and reached("Noam, 1000 steps", 1.2e-2)[0] > 0.85
        and reached("linear, 60 steps", 1.2e-2)[0] > 0.99
        and reached("linear, 5 steps", 1.2e-2)[0] < 0.8
    )


@experiment(
    claim="A warm-up too short or too long for Noam's schedule is mostly a rate too low: a higher peak mends both.",
    arms={
        "Noam, 1000 steps": {"schedule": "noam", "warmup": 1000},
        "Noam, 60 steps": {"schedule": "noam", "warmup": 60},
        "Noam, 5 steps": {"schedule": "noam", "warmup": 5},
        "linear, 5 steps": {"schedule": "linear", "warmup": 5},
        "linear, 60 steps": {"schedule": "linear", "warmup": 60},
    },
    rates=(3e-3, 1.2e-2),
    better="max right letters",
    holds=decay_and_peak,
)
def warm_up_length(seed: int, rate: float, **settings: object) -> dict[str, float]:
    """Two layers on each side, 250 updates; the rate is the peak, at the end of the warm-up."""
    return {"right letters": learn_to_reverse(seed, rate, **settings)}


def both_norms_need_it(record: Claim) -> bool:
    """Post-norm from the low peak on, pre-norm at the high one; there fifty steps no longer help post-norm."""

    def reached(arm: str, peak: float) -> tuple[float, float]:
        return record.range(arm, "right letters", peak)

    return (
        reached("post-norm, no warm-up", 6e-3)[1] < reached("post-norm, 50 steps", 6e-3)[0]
        and reached("pre-norm, no warm-up", 6e-3)[0] > 0.95
        and reached("pre-norm, no warm-up", 2e-2)[1] < 0.6
        and reached("pre-norm, 50 steps", 2e-2)[0] > 0.9
        and reached("post-norm, 50 steps", 2e-2)[1] < 0.5
    )


@experiment(
    claim="Warm-up lets four layers train at a higher rate, pre-norm as well as post-norm.",
    arms={
        f"{norm}-norm, {f'{steps} steps' if steps else 'no warm-up'}": {"norm": norm, "warmup": steps}
        for norm in ("post", "pre")
        for steps in (0, 50)
    },
    rates=(6e-3, 2e-2),
    better="max right letters",
    holds=both_norms_need_it,
)
def warm_up_and_norms(seed: int, rate: float, **settings: object) -> dict[str, float]:
    """Four layers on each side, 250 updates, the rate falling in a line after the warm-up."""
    return {"right letters": learn_to_reverse(seed, rate, layers=4, schedule="linear", **settings)}


def examples(n: int, seed: int, wrong: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of 20 numbers and one of 14 labels, a share of them wrong."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=generator)
    right = (x @ torch.randn(20, 14, generator=torch.Generator().manual_seed(7))).argmax(-1)
    spoiled = torch.rand(n, generator=generator) < wrong
    return x, right.where(~spoiled, torch.randint(14, (n,), generator=generator))


def smoothing_depends(record: Claim) -> bool:
    """At the high rate: repaired where over-fitted, less than by stopping; half a point of accuracy; harm if clean."""

    def values(case: str, smoothing: float, measure: str) -> list[float]:
        return record.values(f"{case}, smoothing {smoothing}", measure, 1e-2)

    long, short, clean = "noisy, 60 steps", "noisy, 20 steps", "clean, 60 steps"
    gains = [b - a for a, b in zip(values(short, 0.0, "accuracy"), values(short, 0.1, "accuracy"), strict=True)]
    return (
        max(values(long, 0.1, "loss")) < min(values(long, 0.0, "loss"))
        and max(values(short, 0.0, "loss")) < min(values(long, 0.1, "loss"))
        and statistics.mean(values(long, 0.1, "accuracy")) < statistics.mean(values(long, 0.0, "accuracy"))
        and 0 < statistics.mean(gains) < 0.02
        and min(values(clean, 0.1, "loss")) > max(values(clean, 0.0, "loss"))
        and statistics.mean(values(clean, 0.1, "accuracy")) < statistics.mean(values(clean, 0.0, "accuracy"))
    )


@experiment(
    claim="Smoothing repairs the likelihood of a net over-fitted to noisy labels, and spoils it with clean ones.",
    arms={
        f"{name}, smoothing {smoothing}": {"wrong": wrong, "steps": steps, "smoothing": smoothing}
        for name, wrong, steps in (
            ("noisy, 60 steps", 0.2, 60),
            ("noisy, 20 steps", 0.2, 20),
            ("clean, 60 steps", 0.0, 60),
        )
        for smoothing in (0.0, 0.1, 0.2)
    },
    seeds=10,
    rates=(3e-3, 1e-2),
    better="max accuracy",
    holds=smoothing_depends,
)
def label_smoothing(seed: int, rate: float, *, wrong: float, steps: int, smoothing: float) -> dict[str, float]:
    """A small classifier on 600 examples: plain loss, accuracy, and confidence minus accuracy on 4000 others."""
    torch.manual_seed(seed)
    (x, y), (new_x, new_y) = examples(600, 100 + seed, wrong), examples(4000, 200 + seed, wrong)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 14))
    optimizer = torch.optim.Adam(net.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y, label_smoothing=smoothing).backward()
        optimizer.step()
    chances = net(new_x).detach().softmax(-1)
    accuracy = (chances.argmax(-1) == new_y).float().mean().item()
    overconfident = chances.amax(-1).mean().item() - accuracy
    loss = F.nll_loss(chances.log(), new_y).item()
    return {"loss": loss, "accuracy": accuracy, "confidence minus accuracy": overconfident}
