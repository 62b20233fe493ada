"""What the lab on experts says about training: what balances them, what that costs, and when more experts pay."""

import inspect
import math
import statistics
from collections.abc import Callable

import torch
import torch.nn.functional as F
import variants
from torch import Tensor, nn

from course_lib.layers import FeedForward
from course_lib.variants.balanced_experts import BalancedExperts, BiasRouter
from course_lib.variants.experts import load_balancing_loss
from coursework.records import Claim
from experiments import experiment
from experiments.chapter_07 import letters

SUBJECTS, RELATIONS, ANSWERS, WIDTH = 512, 16, 64, 32


class Watched(BiasRouter):
    """A router that keeps its balance loss, its last load, and the entropy of its scores."""

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, D) -> (N, n_experts)"""
        weights = super().forward(tokens)
        scores = self.scores(tokens).sigmoid()
        shares = scores / scores.sum(-1, keepdim=True)
        self.loss = load_balancing_loss(shares, weights.topk(self.top_k).indices)
        self.load = (weights > 0).float().mean(0) / self.top_k
        self.entropy = -(shares * shares.log()).sum(-1).mean().item()
        return weights

    def measures(self) -> dict[str, float]:
        """Of the last pass: the busiest expert against an even share, the idle ones, and e to the entropy."""
        M = len(self.load)
        idle = int((self.load < 0.1 / M).sum())
        return {"busiest": M * self.load.max().item(), "idle": idle, "considered": math.exp(self.entropy)}


def middle(D: int, d_ff: int, n_experts: int, top_k: int, n_shared: int) -> nn.Module:
    """Experts, or with none of them one gated feed-forward."""
    if not n_experts:
        return FeedForward(D, d_ff, activation="silu", gated=True, bias=False)
    router = Watched(D, n_experts, top_k)
    return BalancedExperts(D, d_ff, n_experts=n_experts, top_k=top_k, n_shared=n_shared, router=router)


def train(
    model: nn.Module, loss_of: Callable[[], Tensor], steps: int, rate: float, balance: float, update: float
) -> dict[str, float]:
    """AdamW with a warm-up and a cosine; what the router does after a quarter, and at the end of training.

    A plain feed-forward counts as one expert.
    """
    routers = [part for part in model.modules() if isinstance(part, Watched)]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    measures = {"busiest": 1.0, "idle": 0, "considered": 1.0}
    early = measures
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = (
            rate * min(1, 10 * step / steps) * 0.5 * (1 + math.cos(math.pi * step / steps))
        )
        loss = loss_of()
        for router in routers:
            loss = loss + balance * router.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for router in routers:
            router.update(update)
            measures = router.measures()
        if step == steps // 4:
            early = measures
    model.eval()
    return measures | {f"{name}, early": value for name, value in early.items()}


class Facts(nn.Module):
    """A subject and a relation to scores for the answer, through one feed-forward on a residual connection."""

    def __init__(self, feed_forward: nn.Module) -> None:
        super().__init__()
        self.subject, self.relation = nn.Embedding(SUBJECTS, WIDTH), nn.Embedding(RELATIONS, WIDTH)
        with torch.no_grad():
            self.subject.weight += 2 * torch.randn(WIDTH)  # what all have in common, as a trained stream has
        self.norm, self.feed_forward, self.last = nn.RMSNorm(WIDTH), feed_forward, nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, ANSWERS, bias=False)

    def forward(self, subject: Tensor, relation: Tensor) -> Tensor:
        """(N,), (N,) -> (N, ANSWERS)"""
        x = self.subject(subject) + self.relation(relation)
        return self.output(self.last(x + self.feed_forward(self.norm(x))))


def facts_hold(record: Claim) -> bool:
    """Each remedy is above nothing with every seed, which is near the small layer; finer ones win some."""
    small, wide, nothing, loss, bias, fine, shared = (record.values(arm, "known") for arm in record.arms)
    better = all(one > other for way in (loss, bias) for one, other in zip(way, nothing, strict=True))
    mean = statistics.mean
    return (
        better
        and abs(mean(nothing) - mean(small)) < 0.1
        and min(mean(loss), mean(bias)) > mean(nothing) + 0.1
        and mean(wide) > max(mean(loss), mean(bias)) + 0.05
        and all(0 < sum(a > b for a, b in zip(way, bias, strict=True)) < 5 for way in (fine, shared))
        and record.range("nothing", "busiest")[0] > max(record.range(way, "busiest")[1] for way in ("loss", "bias"))
    )


EIGHT = {"d_ff": 32, "n_experts": 8, "top_k": 2, "n_shared": 0}


@experiment(
    claim="Experts that a balance loss or a bias keeps at work store far more facts than experts that are left alone, "
    "which store little more than one layer of their active width. Finer experts and shared ones are ahead of those "
    "with some seeds and behind with others.",
    arms={
        "one layer, active width": {**EIGHT, "d_ff": 64, "n_experts": 0, "balance": 0.0, "update": 0.0},
        "one layer, total width": {**EIGHT, "d_ff": 256, "n_experts": 0, "balance": 0.0, "update": 0.0},
        "nothing": {**EIGHT, "balance": 0.0, "update": 0.0},
        "loss": {**EIGHT, "balance": 0.01, "update": 0.0},
        "bias": {**EIGHT, "balance": 0.0, "update": 0.01},
        "bias, 8 of 32": {**EIGHT, "d_ff": 8, "n_experts": 32, "top_k": 8, "balance": 0.0, "update": 0.01},
        "bias, 6 of 30 and 2 shared": {"d_ff": 8, "n_experts": 30, "top_k": 6, "n_shared": 2, "balance": 0.0,
                                       "update": 0.01},
    },
    rates=(3e-2, 6e-2),
    better="max known",
    holds=facts_hold,
)  # fmt: skip
def experts_store_facts(
    seed: int, rate: float, d_ff: int, n_experts: int, top_k: int, n_shared: int, balance: float, update: float
) -> dict[str, float]:
    """8,192 facts, 400 steps of 512: the share that the model knows afterwards."""
    torch.manual_seed(seed)
    table = torch.randint(ANSWERS, (SUBJECTS, RELATIONS))
    model = Facts(middle(WIDTH, d_ff, n_experts, top_k, n_shared))

    def loss_of() -> Tensor:
        subject, relation = torch.randint(SUBJECTS, (512,)), torch.randint(RELATIONS, (512,))
        return F.cross_entropy(model(subject, relation), table[subject, relation])

    found = train(model, loss_of, 400, rate, balance, update)
    with torch.no_grad():
        asked = torch.cartesian_prod(torch.arange(SUBJECTS), torch.arange(RELATIONS))
        known = model(*asked.T).argmax(-1) == table.flatten()
    return {"known": known.float().mean().item(), **found}


def letters_hold(record: Claim) -> bool:
    """With each seed the loss costs more than the bias, is no more even, and leaves the router less decided."""
    nothing, loss, bias = record.arms
    idle = [record.range(arm, "idle") for arm in record.arms]
    return (
        idle[0][0] > 0
        and idle[1:] == [(0, 0), (0, 0)]
        and record.range(nothing, "busiest")[0] > record.range(loss, "busiest")[1]
        and all(
            one > other
            for arm in (nothing, bias)
            for measure in ("loss", "considered")
            for one, other in zip(record.values(loss, measure), record.values(arm, measure), strict=True)
        )
        and statistics.mean(record.values(loss, "busiest")) > statistics.mean(record.values(bias, "busiest"))
    )


@experiment(
    claim="In a letter model a balance loss and a bias both keep all experts at work. The loss costs more in "
    "held-out loss than the bias and leaves the router less decided, with every seed.",
    arms={
        "nothing": {"d_ff": 32, "n_experts": 8, "balance": 0.0, "update": 0.0},
        "loss": {"d_ff": 32, "n_experts": 8, "balance": 0.01, "update": 0.0},
        "bias": {"d_ff": 32, "n_experts": 8, "balance": 0.0, "update": 0.01},
    },
    rates=(2e-3, 4e-3),
    better="min loss",
    holds=letters_hold,
    sources=lambda: "".join(map(inspect.getsource, (variants.gpt, variants.text_loss, variants.held_out, letters))),
)
def balance_in_letters(
    seed: int, rate: float, d_ff: int, n_experts: int, balance: float, update: float
) -> dict[str, float]:
    """A letter model of one layer, two of eight experts, 400 steps; held-out nats per letter."""
    ids, generator = letters(400_000), torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    feed_forward = lambda config: middle(config.d_model, d_ff, n_experts, 2, 0)  # noqa: E731
    model = variants.gpt(n_decoder_layers=1, feed_forward=feed_forward)
    model.train()
    loss_of = lambda: variants.text_loss(model, ids[:360_000], 16, generator)  # noqa: E731
    found = train(model, loss_of, 400, rate, balance, update)
    return {"loss": variants.held_out(model, ids[360_000:]), **found}
