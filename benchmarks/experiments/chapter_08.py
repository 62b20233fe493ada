"""What chapter 08 says about training: the law of size of its own small models, each at its best rate."""

import statistics

import torch
import torch.nn.functional as F

from course_lib import scaling
from course_lib.config import TransformerConfig
from course_lib.data import CharTokenizer
from course_lib.transformer import LanguageModel
from coursework.corpora import reference_text
from coursework.records import Claim
from experiments import experiment

WIDTHS = (8, 12, 16, 24, 32, 72)


def fitted(record: Claim, rate: float | None = None) -> scaling.PowerLaw:
    """The law through the small models, each at `rate` or at its best one."""
    points = []
    for label in list(record.arms)[:-1]:
        sizes, losses = (record.values(label, measure, rate) for measure in ("parameters", "held-out loss"))
        points += zip(sizes, losses, strict=True)
    return scaling.fit_power_law(*zip(*points, strict=True), n_resamples=0).law


def law_holds(record: Claim) -> bool:
    """The exponent doubles with the rates, the larger model is below the floor, and a simple guess is as good."""
    largest, held_out = list(record.arms)[-2:]
    measured, guess = (statistics.mean(record.values(label, "held-out loss")) for label in (held_out, largest))
    sizes = {label: record.values(label, "parameters")[0] for label in record.arms}
    if len(set(sizes.values())) < len(sizes):
        return False
    law = fitted(record)
    miss = law.predict(sizes[held_out]).item() - measured
    doubled = law.exponent > 2 * fitted(record, 0.02).exponent
    return doubled and measured < law.floor and (guess - measured) / 2 < miss < guess - measured


@experiment(
    claim="When each of five small models gets its best rate the exponent of the law of size doubles; the law's floor "
    "then lies above the loss of a larger model, predicted hardly better than by the largest small one's.",
    arms={f"width {width}": {"width": width} for width in WIDTHS},
    rates=(0.01, 0.02, 0.04, 0.08, 0.16),
    better="min training loss",
    holds=law_holds,
)
def law_of_size(seed: int, rate: float, *, width: int) -> dict[str, float]:
    """The chapter's model of one layer, 500 steps; beyond width 32 the rate falls as 1 / width."""
    text = reference_text()
    cut = len(text) - len(text) // 10
    tokenizer = CharTokenizer.train([text[:cut]])
    train = torch.tensor(tokenizer.encode(text[:cut]))
    held_out = torch.tensor(tokenizer.encode(text[cut : cut + 32_500])).view(-1, 65)  # (500, T + 1)
    sizes = {"d_model": width, "n_heads": 2, "n_decoder_layers": 1, "vocab_size": tokenizer.vocab_size}
    switches = {"positions": "rotary", "norm": "rms", "norm_place": "pre", "activation": "gelu", "bias": False}
    config = TransformerConfig(**sizes, **switches, scale_embeddings=False, tie_embeddings=False, dropout=0.0)
    torch.manual_seed(seed)
    model = LanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    generator, curve, steps = torch.Generator().manual_seed(seed), [], 500
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:  # up in a line, down in a line
            group["lr"] = rate * min(1, 32 / width) * min(10 * step / steps, (steps + 1 - step) / (0.9 * steps + 1))
        start = torch.randint(len(train) - 65, (8, 1), generator=generator)
        batch = train[start + torch.arange(65)]  # (B, T + 1)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    with torch.no_grad():
        held = F.cross_entropy(model(held_out[:, :-1]).flatten(0, 1), held_out[:, 1:].flatten()).item()
    return {
        "held-out loss": held,
        "training loss": statistics.mean(curve[-100:]),
        "parameters": scaling.count_parameters(config).total(),
    }
