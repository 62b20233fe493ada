"""What chapter 6 says about the cause of warm-up: are Adam's young averages to blame?"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.transformer import Embedding, TransformerConfig, TransformerEncoder
from coursework.records import Claim
from experiments import experiment

STEPS, WIDTH, ROWS = 120, 32, 32


def reversal_after_filling(seed: int, rate: float, *, warm_up: int, filled: int) -> float:
    """Write six tokens of eight kinds backwards; Adam first gathers its averages for some steps at a rate of 0."""
    torch.manual_seed(seed)
    sizes = {"d_model": WIDTH, "n_heads": 4, "d_ff": WIDTH, "n_encoder_layers": 4, "vocab_size": 8}
    config = TransformerConfig(**sizes, dropout=0.0, init="normal")
    model = nn.Sequential(Embedding(config, 8), TransformerEncoder(config), nn.Linear(WIDTH, 8))
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), fused=True)
    for step in range(-filled, STEPS):
        share = 0.0 if step < 0 else min(1.0, (step + 1) / max(warm_up, 1))
        optimizer.param_groups[0]["lr"] = rate * share
        tokens = torch.randint(8, (ROWS, 6), generator=generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.03:
            break
    tokens = torch.randint(8, (500, 6), generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        return (model(tokens).argmax(-1) == tokens.flip(1)).float().mean().item()


def filling_does_not_help(record: Claim) -> bool:
    """With averages filled before, and no warm-up, at most three of ten learn; with a warm-up alone at least eight."""

    def learned(arm: str) -> int:
        return sum(value > 0.9 for value in record.values(arm, "right letters"))

    return learned("averages filled, 0 steps") <= 3 and learned("15 steps") >= 8


@experiment(
    claim="Averages of Adam that are filled before the first step do not do what warm-up does.",
    arms={
        "0 steps": {"warm_up": 0, "filled": 0},
        "15 steps": {"warm_up": 15, "filled": 0},
        "averages filled, 0 steps": {"warm_up": 0, "filled": 50},
        "averages filled, 15 steps": {"warm_up": 15, "filled": 50},
    },
    seeds=10,
    rates=(2e-2,),
    better="max right letters",
    holds=filling_does_not_help,
)
def filled_averages(seed: int, rate: float, *, warm_up: int, filled: int) -> dict[str, float]:
    """The training of `rate_and_warm_up`, after 50 steps that only fill the averages or at once."""
    return {"right letters": reversal_after_filling(seed, rate, warm_up=warm_up, filled=filled)}
