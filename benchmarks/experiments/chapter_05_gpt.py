"""What chapter 5 says about its GPT on real text, beside a table of pairs."""

import functools

import torch
import torch.nn.functional as F

from course_lib.transformer import LanguageModel, TransformerConfig
from coursework.corpora import reference_text
from coursework.records import Claim
from experiments import experiment
from experiments.chapter_05 import windows


def text() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """The chapter's text as ids, each paragraph once: the first nine tenths, the last one, and the alphabet."""
    whole = reference_text(each_once=True)[:300_000]
    alphabet = sorted(set(whole))
    ids = torch.tensor([alphabet.index(character) for character in whole])
    return ids[:270_000], ids[270_000:], alphabet


def context_wins(record: Claim) -> bool:
    """Every GPT is far below the bigram; one that sees a single character is not."""
    with_context, without = (record.range(arm, "below the bigram") for arm in record.arms)
    return with_context[0] > 0.6 and abs(without[0]) < 0.1 and abs(without[1]) < 0.1


@functools.cache
def bigram_floor() -> float:
    """Held-out loss of a table of pairs."""
    training, held_out, alphabet = text()
    V = len(alphabet)
    counts = 1.0 + torch.bincount(V * training[:-1] + training[1:], minlength=V * V).view(V, V)
    chances = (counts / counts.sum(dim=1, keepdim=True)).log()
    return -chances[held_out[:-1], held_out[1:]].mean().item()


@experiment(
    claim="A small GPT beats the bigram on real text by far; the same one that sees a single character does not.",
    arms={"all characters before": {"window": None}, "only the newest character": {"window": 1}},
    rates=(3e-3, 6e-3),
    better="min held-out loss",
    holds=context_wins,
)
def gpt_and_bigram(seed: int, rate: float, *, window: int | None, steps: int = 600) -> dict[str, float]:
    """Train the chapter's GPT in the library's form on 600 batches of 6 windows; held-out loss in nats."""
    training, held_out, alphabet = text()
    torch.manual_seed(seed)
    model = LanguageModel(
        TransformerConfig(
            vocab_size=len(alphabet), d_model=64, n_heads=4, n_decoder_layers=2, n_encoder_layers=0, positions="rotary",
            norm_place="pre", activation="gelu", scale_embeddings=False, tie_embeddings=False, head_bias=True,
            dropout=0.0, init="normal", init_std=0.05, window=window,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 20) * (1 - step / steps)
        inputs, targets = windows(training, 6, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inputs, targets = windows(held_out, 100, torch.Generator().manual_seed(9))
    with torch.no_grad():
        found = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
    return {"held-out loss": found, "below the bigram": bigram_floor() - found}
