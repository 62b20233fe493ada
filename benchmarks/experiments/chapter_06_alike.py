"""What chapter 6 says about the first steps at a high rate: do the tokens become alike?"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.transformer import Embedding, TransformerConfig, TransformerEncoder
from coursework.records import Claim
from experiments import experiment

STEPS, WIDTH, ROWS = 120, 32, 32
LOOKS = (0, 1, 2, 5, 10, 20, 40, 80, 120)  # updates done


def alike(vectors: torch.Tensor) -> float:
    """Mean cosine of two different tokens of one text, of vectors (B, T, D)."""
    x = F.normalize(vectors.flatten(0, -3), dim=-1)
    T = x.size(1)
    cosines = x @ x.mT
    return ((cosines.sum((1, 2)) - T) / (T * (T - 1))).mean().item()


def stays_alike_without(record: Claim) -> bool:
    """After ten steps all without warm-up are alike, and more than any with; runs that do not learn end alike."""
    early = [record.range(arm, "alike after 10") for arm in record.arms]
    ends = [
        (right, end)
        for arm in record.arms
        for right, end in zip(record.values(arm, "right letters"), record.values(arm, "alike after 120"), strict=True)
    ]
    learned, stuck = [e for r, e in ends if r > 0.9], [e for r, e in ends if r < 0.5]
    return early[0][0] > 0.98 > early[1][1] and len(learned) >= 5 and len(stuck) >= 5 and max(learned) < min(stuck)


@experiment(
    claim="At a high rate without warm-up the tokens of a post-norm encoder become alike within ten steps; where they "
    "stay so, nothing is learned.",
    arms={"0 steps": {"warm_up": 0}, "50 steps": {"warm_up": 50}},
    seeds=10,
    rates=(2e-2,),
    better="max right letters",
    holds=stays_alike_without,
)
def alike_by_step(seed: int, rate: float, *, warm_up: int) -> dict[str, float]:
    """The training of `rate_and_warm_up`; how alike the tokens are at the end of the stack, after so many updates."""
    torch.manual_seed(seed)
    sizes = {"d_model": WIDTH, "n_heads": 4, "d_ff": WIDTH, "n_encoder_layers": 4, "vocab_size": 8}
    config = TransformerConfig(**sizes, dropout=0.0, init="normal")
    embedding, encoder, head = Embedding(config, 8), TransformerEncoder(config), nn.Linear(WIDTH, 8)
    model = nn.Sequential(embedding, encoder, head)
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), fused=True)
    held_out = torch.randint(8, (500, 6), generator=torch.Generator().manual_seed(99))
    found: dict[str, float] = {}
    for step in range(STEPS + 1):
        if step in LOOKS:
            with torch.no_grad():
                found[f"alike after {step}"] = alike(encoder(embedding(held_out)))
        if step == STEPS:
            break
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / max(warm_up, 1))
        tokens = torch.randint(8, (ROWS, 6), generator=generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(held_out).argmax(-1) == held_out.flip(1)).float().mean().item()
    return {**found, "right letters": right}
