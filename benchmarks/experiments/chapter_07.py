"""What chapter 07 says about training: experts, images cut into patches, what a loss asks, rates of the families."""

import inspect
import statistics
from functools import partial

import numpy as np
import small_families
import torch
import torch.nn.functional as F
import variants
from torch import Tensor, nn

from course_lib.variants import BERT, GPT, ViT
from course_lib.variants.experts import MixtureOfExperts, balance_loss
from coursework.corpora import reference_text
from coursework.records import Claim
from experiments import experiment


class Undamped(MixtureOfExperts):
    """The gate's weight, which starts at 1 / n_experts, multiplied back."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return self.n_experts * super().forward(x)


MIXTURES: dict[str, type[MixtureOfExperts]] = {"as published": MixtureOfExperts, "times 8": Undamped}


def letters(n: int) -> Tensor:
    """Text as ids."""
    return torch.tensor(small_families.encode(reference_text()[:n], n))


def experts_hold(record: Claim) -> bool:
    """One large expert is behind with every seed; with its gate undone it is ahead of that, and level with dense."""
    dense, one = record.range("dense", "loss"), record.range("one large expert of eight", "loss")
    label = "the same, its output times 8"
    undone = record.range(label, "loss")
    level = statistics.mean(record.values(label, "loss")) - statistics.mean(record.values("dense", "loss"))
    return one[0] > dense[1] + 0.05 and one[0] > undone[1] + 0.05 and abs(level) < 0.05


@experiment(
    claim="One large expert of eight does worse than the dense layer because its gate damps its output: with the "
    "gate's factor at the start, 1/8, taken out again it is level.",
    arms={
        "dense": {"gate": "", "top_k": 0, "d_ff": 256, "balance": 0.0},
        "two small experts of eight": {"gate": "as published", "top_k": 2, "d_ff": 128, "balance": 0.01},
        "two small experts, not balanced": {"gate": "as published", "top_k": 2, "d_ff": 128, "balance": 0.0},
        "one large expert of eight": {"gate": "as published", "top_k": 1, "d_ff": 256, "balance": 0.01},
        "the same, its output times 8": {"gate": "times 8", "top_k": 1, "d_ff": 256, "balance": 0.01},
    },
    rates=(1e-3, 2e-3, 4e-3),
    better="min loss",
    holds=experts_hold,
    sources=lambda: "".join(map(inspect.getsource, (variants.train, variants.gpt, variants.text_loss))),
)
def one_large_expert(seed: int, rate: float, *, gate: str, top_k: int, d_ff: int, balance: float) -> dict[str, float]:
    """A letter model of two layers, 150 steps; held-out nats per letter, and the share of the busiest expert."""
    ids = letters(400_000)
    torch.manual_seed(seed)
    feed_forward = partial(MIXTURES[gate].from_config, n_experts=8, top_k=top_k) if gate else None
    model = variants.gpt(d_ff=d_ff, feed_forward=feed_forward)

    def loss_of(generator: torch.Generator) -> Tensor:
        plain = variants.text_loss(model, ids[:360_000], 16, generator)
        return plain + balance * balance_loss(model) if balance else plain

    variants.train(loss_of, model, 150, rate, seed)
    loss = variants.held_out(model, ids[360_000:])
    loads = [part.load.max().item() for part in model.modules() if isinstance(part, MixtureOfExperts)]
    return {"loss": loss, "largest load": sum(loads) / len(loads) if loads else 1.0}


def pixels_hold(record: Claim) -> bool:
    """The linear map is the same to one image in 397 and the ViT worse, with every seed; and it is behind the map."""
    order, mixed = "pixels in order", "pixels mixed"
    pairs = zip(record.values(order, "linear"), record.values(mixed, "linear"), strict=True)
    same = all(abs(first - second) < 1.5 / 397 for first, second in pairs)
    worse = [a - b for a, b in zip(record.values(order, "ViT"), record.values(mixed, "ViT"), strict=True)]
    behind = [a - b for a, b in zip(record.values(order, "linear"), record.values(order, "ViT"), strict=True)]
    return same and min(worse) > 0 and statistics.mean(worse) > 0.02 and min(behind) > 0


@experiment(
    claim="Pixels in another order, the same for all images, cost a linear map nothing and a ViT some of its accuracy.",
    arms={
        "pixels in order": {"mixed": False, "steps": 300},
        "pixels mixed": {"mixed": True, "steps": 300},
        "pixels in order, twice the steps": {"mixed": False, "steps": 600},
    },
    rates=(3e-3, 1e-2),
    better="max ViT",
    holds=pixels_hold,
)
def mixed_pixels(seed: int, rate: float, *, mixed: bool, steps: int) -> dict[str, float]:
    """The ViT of the chapter and logistic regression on the digits; mixed: one order of the pixels for all images."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    digits = load_digits()
    order = np.random.RandomState(seed).permutation(len(digits.target))
    pixels = torch.tensor(digits.images[order] / 8 - 1, dtype=torch.float32).flatten(1)  # (N, 64)
    labels = torch.tensor(digits.target[order])
    if mixed:
        pixels = pixels[:, torch.randperm(64, generator=torch.Generator().manual_seed(1000 + seed))]
    images = pixels.view(-1, 1, 8, 8)
    torch.manual_seed(seed)
    config = ViT.configure(d_model=32, n_heads=4, d_ff=64, n_encoder_layers=3, image_size=8, patch_size=2)
    model = ViT(config, image_size=8, patch_size=2, n_channels=1, n_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        rows = torch.randint(1400, (64,), generator=generator)
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 30, (steps - step) / steps)
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        right = model.eval()(images[1400:]).argmax(-1) == labels[1400:]
    linear = LogisticRegression(max_iter=2000).fit(pixels[:1400].numpy(), labels[:1400].numpy())
    return {
        "ViT": right.float().mean().item(),
        "linear": float(linear.score(pixels[1400:].numpy(), labels[1400:].numpy())),
    }


def asked_hold(record: Claim) -> bool:
    """In this order with every seed, and no hidden letter better than by counting."""
    every, some, hidden = (record.values(label, "loss") for label in record.arms)
    counted = record.values("hidden letter, 15 in 100 asked", "counted letters")
    ordered = all(a < b for a, b in zip(every, some, strict=True)) and max(some) < min(hidden)
    return ordered and all(a > b for a, b in zip(hidden, counted, strict=True))


def hide(batch: Tensor, V: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """15 in 100 letters hidden as BERT does it: inputs, and labels with -100 where nothing is asked."""
    asked = torch.rand(batch.shape, generator=generator) < 0.15
    fate = torch.rand(batch.shape, generator=generator)
    others = torch.randint(V - 2, batch.shape, generator=generator)
    shown = torch.where(fate < 0.8, torch.full_like(batch, V - 1), torch.where(fate < 0.9, others, batch))
    return torch.where(asked, shown, batch), torch.where(asked, batch, -100)


@experiment(
    claim="A next-letter model that is asked for 15 letters in 100 learns more slowly than one that is asked for all, "
    "and still faster than one that fills in hidden letters, which after 150 steps is no better than counting letters.",
    arms={
        "next letter, all asked": {"kind": "next", "share": 1.0},
        "next letter, 15 in 100 asked": {"kind": "next", "share": 0.15},
        "hidden letter, 15 in 100 asked": {"kind": "hidden", "share": 0.15},
    },
    rates=(1e-3, 3e-3, 1e-2),
    better="min loss",
    holds=asked_hold,
)
def what_is_asked(seed: int, rate: float, *, kind: str, share: float) -> dict[str, float]:
    """150 steps on English prose; held-out nats for each letter asked, and those of counted letters."""
    text = reference_text()[:200_000]
    known = sorted(set(text))
    V = len(known) + 2
    ids = torch.tensor([known.index(letter) for letter in text])
    train, held_out = ids[:180_000], ids[180_000:]
    sizes = {"d_model": 64, "n_heads": 4, "d_ff": 256, "max_length": 64, "dropout": 0.0, "vocab_size": V}
    torch.manual_seed(seed)
    model: nn.Module
    if kind == "hidden":
        model = BERT(BERT.configure(**sizes, n_encoder_layers=2, pad_id=None), head="masked_lm")
    else:
        model = GPT(GPT.configure(**sizes, n_decoder_layers=2))

    def loss_of(batch: Tensor, part: float, generator: torch.Generator) -> Tensor:
        if kind == "hidden":
            inputs, labels = hide(batch[:, :48], V, generator)
        else:
            inputs, labels = batch[:, :-1], batch[:, 1:]
            labels = torch.where(torch.rand(labels.shape, generator=generator) < part, labels, -100)
        return F.cross_entropy(model(inputs).flatten(0, 1), labels.flatten(), ignore_index=-100)

    def windows(source: Tensor, size: int, generator: torch.Generator) -> Tensor:
        return source[torch.randint(len(source) - 49, (size,), generator=generator)[:, None] + torch.arange(49)]

    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(150):
        optimizer.param_groups[0]["lr"] = rate * min((step + 1) / 20, (150 - step) / 150)
        optimizer.zero_grad()
        loss_of(windows(train, 16, generator), share, generator).backward()
        optimizer.step()
    check = torch.Generator().manual_seed(9)
    with torch.no_grad():
        loss = loss_of(windows(held_out, 200, check), 1.0, check).item()
    chances = (torch.bincount(train, minlength=V) + 1.0) / (len(train) + V)
    return {"loss": loss, "counted letters": -chances[held_out].log().mean().item()}


def families_hold(record: Claim) -> bool:
    """The rates that suit them differ; BERT and T5 are behind with every seed, each family at its better rate."""
    higher = [family for family in record.arms if record.best_rate(family) == 0.005]
    ahead = min(record.range(family, "exact match")[0] for family in ("Transformer", "GPT-2", "Llama"))
    behind = max(record.range(family, "exact match")[1] for family in ("BERT", "T5"))
    return higher == ["Transformer"] and behind < ahead


@experiment(
    claim="Of two rates the higher suits the Transformer of 2017, and the lower BERT, GPT-2, T5 and Llama; with the "
    "better one for each, BERT and T5 translate fewer numbers after 300 steps than the other three.",
    arms={family: {"family": family} for family in ("Transformer", "BERT", "GPT-2", "T5", "Llama")},
    rates=(2e-3, 5e-3),
    better="max exact match",
    holds=families_hold,
    sources=lambda: inspect.getsource(small_families) + inspect.getsource(variants.train),
)
def families_and_rates(seed: int, rate: float, *, family: str) -> dict[str, float]:
    """German number words to digits: 300 steps of a model of 110,000 parameters."""
    task = small_families.Translate(seed)
    torch.manual_seed(seed)
    make = small_families.FAMILIES[family]
    model = make(small_families.equal_width(make))

    def loss_of(generator: torch.Generator) -> Tensor:
        source, target = task.batch(small_families.BATCH, generator)
        return variants.loss(model(source, target), target)

    variants.train(loss_of, model, 300, rate, seed)
    return {"exact match": variants.evaluate(model, task)}
