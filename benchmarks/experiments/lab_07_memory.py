"""The lab on a memory of fixed size: facts that change, read by a state or by a cache, with keys that are learned."""

import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.masks import causal_mask
from course_lib.variants.efficient import delta, gated_delta_rule
from coursework.corpora import changing_facts
from coursework.records import Claim
from experiments import experiment

NAMES, ROOMS, LENGTH = 24, 16, 64
SHARP = 20.0  # what the cosine of query and key is multiplied by before the softmax


class Memory(nn.Module):
    """One layer of one head that keeps a state (sum, delta) or everything (cache)."""

    def __init__(self, kind: str, width: int, d_model: int) -> None:
        super().__init__()
        self.kind = kind
        self.query, self.key, self.value = (nn.Linear(d_model, width, bias=False) for _ in range(3))
        self.beta, self.out = nn.Linear(d_model, 1), nn.Linear(width, d_model)
        self.slope = nn.Parameter(torch.tensor(0.1))  # of the cache: what a score loses with each position of distance

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        query, key = (F.normalize(make(x), dim=-1) for make in (self.query, self.key))
        value, beta = self.value(x), self.beta(x)[..., 0].sigmoid()  # (B, T, E), (B, T)
        if self.kind == "delta":
            heads = [t[:, None] for t in (query, key, value, beta, torch.zeros_like(beta))]
            return self.out(gated_delta_rule(*heads)[0][:, 0])
        place = torch.arange(x.size(1))
        visible = causal_mask(len(place), len(place))
        if self.kind == "sum":
            weights = (query @ key.mT * beta[:, None]) * visible
        else:
            scores = SHARP * (query @ key.mT) + beta.log()[:, None] - self.slope * (place[:, None] - place)
            weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
        return self.out(weights @ value)


class Reader(nn.Module):
    """A token is a name and a room, or a name and a question; the answer is a room."""

    def __init__(self, kinds: list[str], width: int, d_model: int = 32) -> None:
        super().__init__()
        self.name, self.room = nn.Embedding(NAMES, d_model), nn.Embedding(ROOMS + 1, d_model)
        self.layers = nn.ModuleList(Memory(kind, width, d_model) for kind in kinds)
        self.answer = nn.Linear(d_model, ROOMS)

    def forward(self, names: Tensor, rooms: Tensor) -> Tensor:
        """(B, T) twice -> (B, T, rooms)"""
        x = self.name(names) + self.room(rooms)
        for layer in self.layers:
            x = x + layer(F.rms_norm(x, x.shape[-1:]))
        return self.answer(F.rms_norm(x, x.shape[-1:]))


def holds(record: Claim) -> bool:
    """Each sentence of the lab about these models."""
    right = {arm: record.range(arm, "right answers") for arm in record.arms}
    low = {arm: ends[0] for arm, ends in right.items()}
    high = {arm: ends[1] for arm, ends in right.items()}
    return (
        low["delta, width 32"] > 0.95
        and high["sum, width 32"] < 0.85
        and high["delta, width 8"] < 0.7
        and low["cache, width 8"] > 0.95
        and high["four delta, width 8"] < 0.85
        and low["three delta and a cache, width 8"] > 0.95
    )


@experiment(
    claim="With learned keys and values of 32 numbers a state with the delta rule keeps 24 people who move, and with 8 "
    "it does not; a cache does, a sum does not even with 32, and one cache after three small states finds them.",
    arms={
        "sum, width 32": {"kinds": ["sum"], "width": 32},
        "delta, width 32": {"kinds": ["delta"], "width": 32},
        "delta, width 8": {"kinds": ["delta"], "width": 8},
        "cache, width 8": {"kinds": ["cache"], "width": 8},
        "four delta, width 8": {"kinds": ["delta"] * 4, "width": 8},
        "three delta and a cache, width 8": {"kinds": ["delta"] * 3 + ["cache"], "width": 8},
    },
    rates=(1e-2, 2e-2),
    better="max right answers",
    holds=holds,
    sources=lambda: inspect.getsource(delta) + inspect.getsource(changing_facts),
)
def fixed_memory(seed: int, rate: float, kinds: list[str], width: int) -> dict[str, float]:
    """Train on fresh texts of 64 positions; the rate rises over 20 steps and then falls."""
    torch.manual_seed(seed)
    generator, steps = torch.Generator().manual_seed(seed + 100), 600
    model = Reader(kinds, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20) * (1 - 0.9 * s / steps))
    for _ in range(steps):
        drawn = changing_facts(16, LENGTH, n_names=NAMES, n_rooms=ROOMS, generator=generator)
        loss = F.cross_entropy(model(drawn.names, drawn.rooms).mT, drawn.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    test = torch.Generator().manual_seed(9)
    drawn = changing_facts(400, LENGTH, n_names=NAMES, n_rooms=ROOMS, generator=test)
    with torch.no_grad():
        found = model(drawn.names, drawn.rooms).argmax(-1)
    asked = drawn.targets >= 0
    return {"right answers": (found == drawn.targets)[asked].float().mean().item()}
