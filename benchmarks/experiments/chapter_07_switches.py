"""What chapter 07 says of the switches from GPT-2 to Llama, and of fine-tuning by thin matrices."""

import copy
import functools
import itertools
import statistics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import TransformerConfig
from course_lib.transformer import LanguageModel
from course_lib.variants import lora
from coursework.corpora import reference_text, tiny_shakespeare
from coursework.records import Claim
from experiments import experiment

SIZES = {"vocab_size": 128, "d_model": 64, "n_heads": 4, "n_decoder_layers": 2, "max_length": 96, "n_encoder_layers": 0}
GPT_2 = {"norm_place": "pre", "activation": "gelu", "positions": "learned", "scale_embeddings": False, "dropout": 0.0}
GPT_2 |= {"init": "normal", "init_std": 0.05, "d_ff": 256}


def ascii_ids(text: str) -> Tensor:
    """Characters as ids, those beyond ASCII as 127."""
    return torch.tensor([min(ord(character), 127) for character in text])


def windows(data: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random pieces of 64 characters, and what follows each of them: (size, 64) both."""
    piece = data[torch.randint(len(data) - 65, (size, 1), generator=generator) + torch.arange(65)]
    return piece[:, :-1], piece[:, 1:]


def loss_of(model: nn.Module, data: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Mean over characters, in nats."""
    inputs, targets = windows(data, size, generator)
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train(model: nn.Module, data: Tensor, steps: int, rate: float, seed: int) -> None:
    """AdamW on what is trainable, 8 windows a step, warm-up over 20 steps and a linear end."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], betas=(0.9, 0.95))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 20) * (1 - step / steps)
        optimizer.zero_grad()
        loss_of(model.train(), data, 8, generator).backward()
        optimizer.step()


def held_out_loss(model: nn.Module, data: Tensor) -> float:
    """Over 200 windows, the same for all."""
    with torch.no_grad():
        return loss_of(model.eval(), data, 200, torch.Generator().manual_seed(9)).item()


@functools.cache
def reference() -> Tensor:
    """The first 300,000 characters, each paragraph once."""
    return ascii_ids(reference_text(each_once=True)[:300_000])


def turned_wins(record: Claim) -> bool:
    """Rotary positions lower the loss with every seed, and by more than any other switch does on average."""
    means = [statistics.mean(record.values(arm, "held-out loss")) for arm in record.arms]
    gains = [before - after for before, after in itertools.pairwise(means)]
    learned, turned = (record.values(arm, "held-out loss") for arm in list(record.arms)[1:3])
    return max(gains) == gains[1] and all(a > b for a, b in zip(learned, turned, strict=True))


@experiment(
    claim="Of the switches from GPT-2 to Llama, in a small model of characters, the rotary positions lower the loss "
    "most, and with every seed.",
    arms={
        "GPT-2": {"switches": {}},
        "+ RMSNorm, no biases": {"switches": {"norm": "rms", "bias": False}},
        "+ rotary positions": {"switches": {"norm": "rms", "bias": False, "positions": "rotary"}},
        "+ gate, as many parameters": {
            "switches": {"norm": "rms", "bias": False, "positions": "rotary", "activation": "silu", "gated": True}
            | {"d_ff": 171}
        },
        "+ 2 heads of keys and values": {
            "switches": {"norm": "rms", "bias": False, "positions": "rotary", "activation": "silu", "gated": True}
            | {"d_ff": 171, "n_kv_heads": 2}
        },
    },
    rates=(3e-3, 6e-3),
    better="min held-out loss",
    holds=turned_wins,
)
def switch_by_switch(seed: int, rate: float, *, switches: dict) -> dict[str, float]:
    """300 steps on technical prose; held-out nats per character."""
    torch.manual_seed(seed)
    model = LanguageModel(TransformerConfig(**SIZES | GPT_2 | switches))
    train(model, reference()[:270_000], 300, rate, seed)
    n_parameters = sum(p.numel() for p in model.parameters())
    return {"held-out loss": held_out_loss(model, reference()[270_000:]), "parameters": n_parameters}


@functools.cache
def base_of(seed: int) -> LanguageModel:
    """A small Llama after 500 steps on technical prose."""
    torch.manual_seed(seed)
    switches = {"norm": "rms", "bias": False, "positions": "rotary", "activation": "silu", "gated": True, "d_ff": 171}
    model = LanguageModel(TransformerConfig(**SIZES | GPT_2 | switches))
    train(model, reference()[:270_000], 500, 6e-3, seed)
    return model


@functools.cache
def plays(n: int) -> tuple[Tensor, Tensor]:
    """The first n characters of the plays to learn from, and their last tenth to be judged by."""
    ids = ascii_ids(tiny_shakespeare())
    return ids[:n], ids[-110_000:]


EVERY = (*lora.ATTENTION, "gate", "up", "down")
WAYS = (("all weights", (), 0), ("every map", EVERY, 4), ("attention only", lora.ATTENTION, 11))


def thin_matches(record: Claim) -> bool:
    """With little data the update in every map is level or better; with much it is behind, with every seed."""
    full, thin = (record.values(f"{way}, little text", "held-out loss") for way in ("all weights", "every map"))
    long, behind = (record.values(f"{way}, much text", "held-out loss") for way in ("all weights", "every map"))
    near = statistics.mean(thin) < statistics.mean(full) + 0.05
    return near and all(a < b for a, b in zip(long, behind, strict=True))


@experiment(
    claim="An update of low rank in every map of a small model is level with training all weights on little text, and "
    "behind it on much.",
    arms={
        f"{way}, {much} text": {"targets": targets, "rank": rank, "n": n, "steps": steps}
        for much, n, steps in (("little", 4_000, 60), ("much", 400_000, 250))
        for way, targets, rank in (WAYS if much == "little" else WAYS[:2])
    },
    rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    better="min held-out loss",
    holds=thin_matches,
)
def thin_updates(seed: int, rate: float, *, targets: tuple, rank: int, n: int, steps: int) -> dict[str, float]:
    """A model of technical prose goes on with plays; held-out nats per character, and how many weights moved."""
    model = copy.deepcopy(base_of(seed))
    if targets:
        torch.manual_seed(seed)
        lora.add_lora(model, rank, alpha=rank, targets=targets)
    data, held_out = plays(n)
    train(model, data, steps, rate, seed)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {"held-out loss": held_out_loss(model, held_out), "trained": trained}
