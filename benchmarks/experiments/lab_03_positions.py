"""What the lab on positions says about training: how large the vectors of words and places should be."""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.config import TransformerConfig
from course_lib.layers import TokenEmbedding
from course_lib.positions import LearnedPositionalEmbedding
from course_lib.transformer import LanguageModel
from coursework.records import Claim
from experiments import experiment

WIDTH = 64


def _factor_needs_a_small_table(record: Claim) -> bool:
    """With each seed words that are much too large hide the places; the other starts learn the task."""
    drowned = "std 1, times √d"
    others = [record.range(arm, "accuracy")[0] for arm in record.arms if arm != drowned]
    return record.range(drowned, "accuracy")[1] < 0.5 and min(others) > 0.95


@experiment(
    claim="Multiplying the vectors of words by the root of their width before sinusoids are added does no harm to a "
    "table that starts at one over that root; one that starts at 1 then hides the places, which no other start does.",
    arms={
        "std 1, times √d": {"std": 1.0, "scaled": True},
        "std 1": {"std": 1.0, "scaled": False},
        "std 1/√d, times √d": {"std": WIDTH**-0.5, "scaled": True},
        "std 1/√d": {"std": WIDTH**-0.5, "scaled": False},
        "std 0.02, times √d": {"std": 0.02, "scaled": True},
        "std 0.02": {"std": 0.02, "scaled": False},
    },
    rates=(1e-3, 3e-3, 1e-2),
    better="max accuracy, step 100",
    holds=_factor_needs_a_small_table,
)
def embedding_scale(seed: int, rate: float, std: float, scaled: bool) -> dict[str, float]:
    """Name the token three places back of 16, one layer with sinusoids, for one start of the table of tokens."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        vocab_size=11, d_model=WIDTH, n_heads=4, d_ff=64, n_encoder_layers=0, n_decoder_layers=1, norm_place="pre",
        dropout=0.0, tie_embeddings=False, scale_embeddings=scaled,
    )  # fmt: skip
    model, generator = LanguageModel(config), torch.Generator().manual_seed(1000 + seed)
    (table,) = (part for part in model.modules() if isinstance(part, TokenEmbedding))
    nn.init.normal_(table.weight, std=std)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    found = {}
    for step in range(1, 301):
        tokens = torch.randint(11, (32, 16), generator=generator)  # (B, T)
        scores = model(tokens)[:, 3:]  # (B, T - 3, V)
        loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, :-3].flatten())
        if step in (100, 300):
            found[f"accuracy, step {step}"] = (scores.argmax(-1) == tokens[:, :-3]).float().mean().item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        tokens = torch.randint(11, (400, 16), generator=torch.Generator().manual_seed(99))
        found["accuracy"] = (model(tokens)[:, 3:].argmax(-1) == tokens[:, :-3]).float().mean().item()
    return found


def _distances_leave_a_rule(record: Claim) -> bool:
    """With each seed the table of the task with distances gets a rule, that of the control gets none."""
    rule, none = "three places back", "the same place"
    pairs = zip(record.values(rule, "before"), record.values(rule, "after"), strict=True)
    return all(after < before - 0.1 for before, after in pairs) and record.range(none, "after")[0] > 0.9


@experiment(
    claim="Naming the token three places back makes the rows of a learned table follow from each other, roughly, by "
    "one matrix; naming the token of the same place does not.",
    arms={"three places back": {"back": 3}, "the same place": {"back": 0}},
    rates=(3e-3, 1e-2),
    better="max accuracy",
    holds=_distances_leave_a_rule,
)
def learned_shift(seed: int, rate: float, back: int) -> dict[str, float]:
    """Fit a matrix to the first 96 rows of a table of 128, before and after training, and test it on the others."""
    torch.manual_seed(seed)
    config = TransformerConfig(
        vocab_size=11, positions="learned", max_length=128, d_model=16, n_heads=2, d_ff=32, n_encoder_layers=0,
        n_decoder_layers=1, norm_place="pre", dropout=0.0, tie_embeddings=False,
    )  # fmt: skip
    model, generator = LanguageModel(config), torch.Generator().manual_seed(1000 + seed)
    (table,) = (part.weight for part in model.modules() if isinstance(part, LearnedPositionalEmbedding))
    before = _unseen_error(table.detach())
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(300):
        tokens = torch.randint(11, (16, 128), generator=generator)  # (B, T)
        scores, right = model(tokens)[:, back:], tokens[:, : 128 - back]
        loss = F.cross_entropy(scores.flatten(0, 1), right.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (scores.argmax(-1) == right).float().mean().item()
    return {"accuracy": accuracy, "before": before, "after": _unseen_error(table.detach())}


def _unseen_error(table: torch.Tensor, k: int = 3, seen: int = 96) -> float:
    matrix = torch.linalg.lstsq(table[: seen - k], table[k:seen]).solution
    wrong = table[seen:-k] @ matrix - table[seen + k :]
    return float(wrong.norm() / table[seen + k :].norm())
