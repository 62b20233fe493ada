"""What chapter 4 says about fresh stacks of encoder layers, and about those that are trained."""

import functools
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from num2words import num2words
from torch import nn

from course_lib.attention import record_weights
from course_lib.encoder import EncoderLayer, TransformerEncoder
from course_lib.masks import padding_mask
from course_lib.transformer import Embedding, TransformerConfig
from coursework.records import Claim
from experiments import experiment


def torch_own(encoder: TransformerEncoder, d_ff: int) -> TransformerEncoder:
    """The same stack with layers as `torch.nn.TransformerEncoderLayer` draws them."""
    d_model, n_heads = encoder.config.d_model, encoder.config.n_heads
    for number in range(len(encoder.layers)):
        theirs = nn.TransformerEncoderLayer(d_model, n_heads, d_ff, dropout=0.0, batch_first=True)
        encoder.layers[number] = EncoderLayer.from_torch(theirs)
    return encoder


def all_alike(record: Claim) -> bool:
    """Without residuals: alike tokens, an input gradient of usual size, and none for W_q and W_k beyond the start."""
    bare, torch_layers = "no residual, norm", "post-norm, torch's own weights"
    last = "gradient of W_q and W_k, layer 12"
    return (
        record.range(bare, "similarity")[0] > 0.99
        and record.range(bare, "gradient at the input")[0] > 0.1
        and record.range(bare, last)[1] < 1e-4
        and record.range(bare, "gradient of the feed-forward, layer 12")[0] > 1
        and record.range("post-norm", "similarity")[0] > 0.95
        and record.range("post-norm", last)[1] < 0.1
        and record.range("pre-norm", last)[0] > 0.1
        and record.range(torch_layers, "similarity")[1] < 0.8
        and record.range(torch_layers, last)[0] > 0.3
    )


@experiment(
    claim="Without residuals tokens become alike and gradients of W_q and W_k vanish, with norms or without.",
    arms={
        "post-norm": {},
        "pre-norm": {"norm_place": "pre"},
        "no residual, norm": {"residual": False},
        "neither": {"residual": False, "norm": "none"},
        "post-norm, torch's own weights": {"own": True},
        "post-norm, small weights": {"init": "normal"},
    },
    better="min similarity",
    holds=all_alike,
)
def fresh_stacks(seed: int, rate: None, own: bool = False, **switches: object) -> dict[str, float]:
    """Twelve layers that were never trained, eleven random tokens, one random direction at the output."""
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 12}
    encoder = TransformerEncoder(TransformerConfig(**sizes, positions="none", dropout=0.0, **switches))
    encoder = torch_own(encoder, 256) if own else encoder
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(1, 11, 64, generator=generator).requires_grad_()
    end = encoder(x)
    direction = torch.randn(end.shape, generator=generator)
    (end * direction).sum().backward()

    def size(gradient: torch.Tensor) -> float:
        return (gradient.norm() / direction.norm()).item()

    found = {"gradient at the input": size(x.grad)}
    for number in (1, 2, 4, 12):
        layer = encoder.layers[number - 1]
        queries_and_keys = layer.self_attention.qkv.weight.grad[:128]  # (3 D, D) -> (2 D, D)
        found[f"gradient of W_q and W_k, layer {number}"] = size(queries_and_keys)
    found["gradient of the feed-forward, layer 12"] = size(layer.feed_forward.up.weight.grad)
    units = F.normalize(end[0].detach(), dim=-1)
    found["similarity"] = ((units @ units.T).sum().item() - 11) / (11 * 10)
    return found


def train_reversal(
    seed: int, rate: float, *, depth: int, steps: int, warm_up: int = 0, D: int = 64, B: int = 24, **switches: object,
) -> float:  # fmt: skip
    """Train on writing six tokens of eight kinds backwards, as the chapter does; accuracy on new ones."""
    torch.manual_seed(seed)
    sizes = {"d_model": D, "n_heads": 4, "d_ff": D, "n_encoder_layers": depth, "vocab_size": 8}
    config = TransformerConfig(**sizes, dropout=0.0, **switches)
    model = nn.Sequential(Embedding(config, 8), TransformerEncoder(config), nn.Linear(D, 8))
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / max(warm_up, 1))
        tokens = torch.randint(8, (B, 6), generator=generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.03:
            break
    tokens = torch.randint(8, (500, 6), generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        return (model(tokens).argmax(-1) == tokens.flip(1)).float().mean().item()


@experiment(
    claim="Twelve layers learn if their tokens differ at the start: by pre-norm or small weights, not by a low rate.",
    arms={
        "no residual, 1 layer": {"depth": 1, "residual": False},
        "no residual, 2 layers": {"depth": 2, "residual": False},
        "no residual": {"depth": 12, "residual": False},
        "post-norm": {"depth": 12},
        "post-norm, 100 steps of warm-up": {"depth": 12, "warm_up": 100},
        "pre-norm": {"depth": 12, "norm_place": "pre"},
        "post-norm, small weights": {"depth": 12, "init": "normal"},
    },
    rates=(1e-3, 3e-3),
    better="max accuracy",
    holds=lambda record: (
        record.range("no residual, 1 layer", "accuracy")[0] > 0.9
        and record.range("no residual, 2 layers", "accuracy")[1] < 0.8
        and max(record.range(arm, "accuracy")[1] for arm in list(record.arms)[2:5]) < 0.5
        and min(record.range(arm, "accuracy")[0] for arm in ("pre-norm", "post-norm, small weights")) > 0.8
    ),
)
def deep_reversal(seed: int, rate: float, **settings: object) -> dict[str, float]:
    """Write six tokens backwards, after at most 300 steps."""
    return {"accuracy": train_reversal(seed, rate, steps=300, **settings)}


@experiment(
    claim="At a high rate warm-up decides whether six layers train, pre-norm or post-norm; at a quarter of it, not.",
    arms={
        "post-norm, no warm-up": {"init": "normal"},
        "post-norm, 50 steps": {"init": "normal", "warm_up": 50},
        "pre-norm, no warm-up": {"init": "normal", "norm_place": "pre"},
        "pre-norm, 50 steps": {"init": "normal", "norm_place": "pre", "warm_up": 50},
    },
    rates=(5e-3, 1e-2, 2e-2),
    better="max accuracy",
    holds=lambda record: (
        record.range("post-norm, no warm-up", "accuracy", 2e-2)[1] < 0.3
        and record.range("pre-norm, no warm-up", "accuracy", 2e-2)[0] < 0.5
        and record.range("post-norm, 50 steps", "accuracy", 2e-2)[0] > 0.85
        and record.range("pre-norm, 50 steps", "accuracy", 2e-2)[0] > 0.95
        and all(record.range(arm, "accuracy", 5e-3)[0] > 0.95 for arm in record.arms)
    ),
)
def warm_up_of_encoders(seed: int, rate: float, **settings: object) -> dict[str, float]:
    """Six layers of width 32, 150 steps; the accuracy is asked for at each rate."""
    return {"accuracy": train_reversal(seed, rate, depth=6, steps=150, D=32, B=32, **settings)}


LANGUAGES = [
    "ca", "cs", "da", "de", "en", "eo", "es", "fi", "fr", "hu",
    "id", "is", "it", "nl", "no", "pl", "pt", "ro", "sv", "tr",
]  # fmt: skip
PAD, CLS, MASK, UNKNOWN = range(4)


@functools.cache
def languages() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """The chapter's numbers in twenty languages: tokens and labels to learn from, the same held out, number of ids."""
    numbers = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))[:400].tolist()
    texts = [[num2words(n, lang=one) for n in part for one in LANGUAGES] for part in (numbers[:300], numbers[300:])]
    ids = {character: 4 + n for n, character in enumerate(sorted(set("".join(texts[0]))))}
    tokens = [
        nn.utils.rnn.pad_sequence(
            [torch.tensor([CLS] + [ids.get(character, UNKNOWN) for character in text]) for text in part],
            batch_first=True,
            padding_value=PAD,
        )
        for part in texts
    ]
    labels = [torch.arange(20).repeat(len(part) // 20) for part in texts]
    return tokens[0], labels[0], tokens[1], labels[1], 4 + len(ids)


class Classifier(nn.Module):
    """The chapter's encoder with a head at [CLS]."""

    def __init__(self, n_ids: int) -> None:
        super().__init__()
        sizes = {"d_model": 48, "n_heads": 4, "n_encoder_layers": 2, "vocab_size": n_ids, "max_length": 96}
        config = TransformerConfig(**sizes, positions="learned", norm_place="pre", activation="gelu", dropout=0.0)
        self.embedding, self.encoder = Embedding(config, n_ids), TransformerEncoder(config)
        self.head = nn.Linear(48, 20)

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """Ids (B, T) -> (B, 20); nobody attends to what is hidden (B, T)."""
        mask = padding_mask(tokens, PAD)
        mask = mask if hidden is None else mask & ~hidden[:, None, None]
        return self.head(self.encoder(self.embedding(tokens), mask=mask)[:, 0])


def batches(lengths: torch.Tensor, size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Endless row numbers; the texts of each batch are of about the same length."""
    while True:
        for pool in torch.randperm(len(lengths), generator=generator).split(8 * size):
            pool = pool[lengths[pool].argsort()]
            chunks = [chunk for chunk in pool.split(size) if len(chunk) == size]
            for n in torch.randperm(len(chunks), generator=generator):
                yield chunks[n]


@functools.cache  # the same for each way of hiding
def trained_classifier(seed: int, rate: float) -> Classifier:
    """150 steps, as in the chapter."""
    tokens, labels, _, _, n_ids = languages()
    torch.manual_seed(seed)
    model = Classifier(n_ids)
    generator, lengths = torch.Generator().manual_seed(seed), (tokens != PAD).sum(dim=1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=150)
    for _, rows in zip(range(150), batches(lengths, 64, generator), strict=False):
        loss = F.cross_entropy(model(tokens[rows, : lengths[rows].max()]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


@experiment(
    claim="Hiding the four characters that [CLS] reads most costs the classifier more than hiding four at random.",
    arms={name: {"which": name} for name in ("nothing hidden", "four at random", "the four read most")},
    rates=(3e-3,),
    better="max accuracy",
    holds=lambda record: (
        record.range("nothing hidden", "accuracy")[0] > 0.95
        and all(
            most < random - 0.05
            for most, random in zip(
                record.values("the four read most", "accuracy"),
                record.values("four at random", "accuracy"),
                strict=True,
            )
        )
    ),
)
def read_most(seed: int, rate: float, *, which: str) -> dict[str, float]:
    """Hide characters from the attention of all tokens; accuracy on 500 held-out texts."""
    _, _, tokens, labels, _ = languages()
    model, tokens, labels = trained_classifier(seed, rate), tokens[:500], labels[:500]
    with torch.no_grad(), record_weights(model) as maps:
        model(tokens)
    *_, last = maps.values()
    scores = last[:, :, 0].mean(dim=1)  # (B, H, T) -> (B, T)
    if which == "four at random":
        scores = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed))
    hidden = torch.zeros(tokens.shape, dtype=torch.bool)
    if which != "nothing hidden":
        hidden.scatter_(1, scores.masked_fill(tokens <= CLS, -1.0).topk(4, dim=1).indices, True)
    with torch.no_grad():
        return {"accuracy": (model(tokens, hidden).argmax(-1) == labels).float().mean().item()}
