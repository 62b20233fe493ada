"""What chapter 3 says about trained models: which positions carry over to longer texts, and what repairs them."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.attention import record_weights
from course_lib.config import TransformerConfig
from course_lib.encoder import TransformerEncoder
from course_lib.layers import TokenEmbedding
from course_lib.masks import causal_mask, sliding_window_mask
from course_lib.positions import frequencies
from course_lib.transformer import LanguageModel
from coursework.corpora import reference_text
from coursework.records import Claim
from experiments import experiment

SCHEMES = {
    "none": {"scheme": "none"},
    "sinusoidal": {"scheme": "sinusoidal"},
    "sinusoidal, shifted": {"scheme": "sinusoidal", "shifted": True},
    "learned": {"scheme": "learned"},
    "rotary": {"scheme": "rotary"},
    "ALiBi": {"scheme": "alibi"},
    "T5 buckets": {"scheme": "relative"},
}
RATES = (3e-3, 1e-2, 3e-2)
SYMBOLS = " abcdefghijklmnopqrstuvwxyz.,\n"


def small_gpt(scheme: str, vocab_size: int, longest: int) -> LanguageModel:
    """One layer with four heads; only its positions differ."""
    return LanguageModel(
        TransformerConfig(
            vocab_size=vocab_size, positions=scheme, max_length=longest, d_model=32, n_heads=4, d_ff=64,
            n_encoder_layers=0, n_decoder_layers=1, norm_place="pre", dropout=0.0, tie_embeddings=False,
            relative_buckets=16, relative_max_distance=32,
        )
    )  # fmt: skip


def trained(
    seed: int, rate: float, steps: int, shape: tuple[str, int, int, bool], loss_of: Callable[..., Tensor], read: int
) -> LanguageModel:
    """Train a small GPT on texts of `read` tokens; shifted, each batch begins at a random place."""
    scheme, vocab_size, longest, shifted = shape
    torch.manual_seed(seed)
    model, generator = small_gpt(scheme, vocab_size, longest), torch.Generator().manual_seed(1000 + seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        start = int(torch.randint(longest - read + 1, (), generator=generator)) if shifted else 0
        loss = loss_of(model, generator, torch.arange(start, start + read) if shifted else None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def _three_back_loss(model: LanguageModel, generator: torch.Generator, places: Tensor | None) -> Tensor:
    tokens = torch.randint(11, (32, 16), generator=generator)  # (B, T)
    scores = model(tokens, positions=places)
    return F.cross_entropy(scores[:, 3:].flatten(0, 1), tokens[:, :-3].flatten())  # (B, T, V) -> (B T, V)


def _far_needs_hiding(record: Claim) -> bool:
    """Beyond 16 rotary is often wrong, and with the far keys hidden always right; untrained rows stay wrong."""
    return (
        record.range("rotary", "inside")[0] > 0.97
        and record.range("rotary", "beyond")[1] < 0.9
        and record.range("rotary", "beyond, far hidden")[0] > 0.98
        and record.range("T5 buckets", "beyond, far hidden")[0] > 0.95
        and record.range("sinusoidal, shifted", "beyond")[0] > 0.85
        and record.range("sinusoidal", "beyond, far hidden")[1] < 0.8
        and record.range("learned", "beyond, far hidden")[1] < 0.3
        and record.range("sinusoidal", "beyond")[1] < 0.5
    )


@experiment(
    claim="Trained on 16 tokens and tested on 64, rotary positions often miss the third token back; with the far keys "
    "hidden at test they find it always, and so do T5's buckets, while plain sinusoids and learned tables do not.",
    arms=SCHEMES,
    rates=RATES,
    better="max inside",
    holds=_far_needs_hiding,
)
def three_back(seed: int, rate: float, scheme: str, shifted: bool = False) -> dict[str, float]:
    """Name the token that stood three places back: trained on 16 tokens, tested on 64."""
    model = trained(seed, rate, 300, (scheme, 11, 64, shifted), _three_back_loss, 16)
    tokens = torch.randint(11, (400, 64), generator=torch.Generator().manual_seed(99))
    found = {}
    with torch.no_grad():
        for name, mask in (("", None), (", far hidden", sliding_window_mask(64, 64, window=16))):
            right = (model(tokens, mask=mask)[:, 3:].argmax(-1) == tokens[:, :-3]).float().mean(0)  # (T - 3,)
            found["inside" + name] = right[:13].mean().item()
            found["beyond" + name] = right[13:].mean().item()
    return found


def _again(seed: int, rate: float, steps: int, scheme: str, farthest: int) -> dict[str, float]:
    """The task of `three_back` with another number of steps, or with the last bucket of T5 beginning earlier."""
    config = replace(small_gpt(scheme, 11, 64).config, relative_max_distance=farthest)
    torch.manual_seed(seed)
    model, generator = LanguageModel(config), torch.Generator().manual_seed(1000 + seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        loss = _three_back_loss(model, generator, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens = torch.randint(11, (400, 64), generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        right = (model.eval()(tokens)[:, 3:].argmax(-1) == tokens[:, :-3]).float().mean(0)  # (T - 3,)
    return {"inside": right[:13].mean().item(), "beyond": right[13:].mean().item()}


def _heads_together(record: Claim) -> bool:
    """With every seed ALiBi gets past half inside, and the model without positions does not get near."""
    return record.range("ALiBi", "inside")[0] > 0.5 and record.range("none", "inside")[1] < 0.4


@experiment(
    claim="With 2000 steps instead of 300, ALiBi finds the third token back more often than not inside the 16 tokens "
    "of training; a model without positions does not.",
    arms={"none": {"scheme": "none"}, "ALiBi": {"scheme": "alibi"}},
    rates=RATES,
    better="max inside",
    holds=_heads_together,
)
def three_back_longer(seed: int, rate: float, scheme: str) -> dict[str, float]:
    """The task of `three_back` with 2000 steps."""
    return _again(seed, rate, 2000, scheme, 32)


def _last_bucket_matters(record: Claim) -> bool:
    return record.range("begins at 12", "beyond")[0] > 0.9 and record.range("begins at 27", "beyond")[1] < 0.7


@experiment(
    claim="Trained on 16 tokens and tested on 64, T5's buckets find the third token back nearly as well as inside if "
    "training reached the last bucket, into which all far keys fall, and often miss it if training did not.",
    arms={"begins at 27": {"farthest": 32}, "begins at 12": {"farthest": 12}},
    rates=RATES,
    better="max inside",
    holds=_last_bucket_matters,
)
def three_back_buckets(seed: int, rate: float, farthest: int) -> dict[str, float]:
    """The task of `three_back` with T5's buckets; the last one begins where training reaches it, or farther."""
    return _again(seed, rate, 300, "relative", farthest)


def _by_the_fast_clock(record: Claim) -> bool:
    """Rotary with every seed: right up to place 30, at chance at 63, and there the weight lies where the clock says."""
    return (
        record.range("rotary", "to place 30")[0] > 0.97
        and record.range("rotary", "at place 63")[1] < 0.25
        and record.range("rotary", "weight at turns")[0] > 0.3
        and record.range("T5 buckets", "weight at turns")[1] < 0.15
    )


@experiment(
    claim="Trained on 16 tokens, rotary positions find the third token back up to place 30 and no longer at place 63. "
    "There the heads look 41, 47, 53 and 60 places back, where the fast clock stands as at 3; T5's heads do not.",
    arms={"rotary": {"scheme": "rotary"}, "T5 buckets": {"scheme": "relative"}},
    rates=RATES,
    better="max inside",
    holds=_by_the_fast_clock,
)
def three_back_where(seed: int, rate: float, scheme: str) -> dict[str, float]:
    """The task of `three_back`: how often right at which place, and where the heads look at the last one."""
    model = trained(seed, rate, 300, (scheme, 11, 64, False), _three_back_loss, 16)
    tokens = torch.randint(11, (400, 64), generator=torch.Generator().manual_seed(99))
    with torch.no_grad(), record_weights(model.decoder.layers[0]) as maps:
        right = (model(tokens)[:, 3:].argmax(-1) == tokens[:, :-3]).float().mean(0)  # (T - 3,)
    back = maps["self_attention"][:, :, -1].mean((0, 1)).flip(0)  # (S,), by distance
    found = {"inside": right[:13], "to place 30": right[13:28], "at place 63": right[60:]}
    return {name: part.mean().item() for name, part in found.items()} | {
        "weight at turns": back[[round(3 + 2 * math.pi * turns) for turns in (6, 7, 8, 9)]].sum().item()
    }


def _clocks_decide(record: Claim) -> bool:
    """With every seed: the first rival of rotary stands at 41, and shifted sinusoids need their many clocks."""
    return (
        record.range("rotary, 4 clocks", "first rival") == (41, 41)
        and record.range("shifted, 16 clocks", "beyond")[0] > 0.9
        and record.range("shifted, 4 clocks", "beyond")[1] < 0.85
        and min(record.range(arm, "inside")[0] for arm in record.arms) > 0.97
    )


@experiment(
    claim="Trained on 16 tokens, rotary positions with 4 clocks give the key 41 positions back, and none between, a "
    "higher mean score at position 63 than the key 3 positions back. Shifted sinusoids find the third token back "
    "beyond 16 with 16 clocks, and often miss it with 4.",
    arms={
        "rotary, 4 clocks": {"scheme": "rotary", "heads": 4},
        "rotary, 8 clocks": {"scheme": "rotary", "heads": 2},
        "rotary, 16 clocks": {"scheme": "rotary", "heads": 1},
        "shifted, 16 clocks": {"scheme": "sinusoidal"},
        "shifted, 4 clocks": {"scheme": "sinusoidal", "few": True},
    },
    rates=RATES,
    better="max inside",
    holds=_clocks_decide,
)
def three_back_clocks(seed: int, rate: float, scheme: str, heads: int = 4, few: bool = False) -> dict[str, float]:
    """The task of `three_back` with fewer heads, so more clocks for each; or sinusoids with four clocks, four times."""
    config = replace(small_gpt(scheme, 11, 64).config, n_heads=heads)
    torch.manual_seed(seed)
    model = LanguageModel(config)
    if few:
        model.embedding.positions.values = frequencies(8).repeat_interleave(4)
    generator, shifted = torch.Generator().manual_seed(1000 + seed), scheme == "sinusoidal"
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(300):
        start = int(torch.randint(49, (), generator=generator)) if shifted else 0
        loss = _three_back_loss(model, generator, torch.arange(start, start + 16) if shifted else None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens = torch.randint(11, (400, 64), generator=torch.Generator().manual_seed(99))
    with torch.no_grad(), record_weights(model.eval().decoder.layers[0]) as maps:
        right = (model(tokens)[:, 3:].argmax(-1) == tokens[:, :-3]).float().mean(0)  # (T - 3,)
    score = maps["self_attention"][:, :, -1].log().mean((0, 1)).flip(0)  # (S,), by distance, up to a constant
    rivals = [distance for distance in range(16, 64) if score[distance] > score[3]]
    return {
        "inside": right[:13].mean().item(),
        "beyond": right[13:].mean().item(),
        "first rival": float(min(rivals, default=64)),
    }


@functools.cache
def _text() -> Tensor:
    number = {symbol: i for i, symbol in enumerate(SYMBOLS)}
    return torch.tensor([number.get(symbol, 0) for symbol in reference_text(each_once=True)[:200_000].lower()])


def _pieces(data: Tensor, B: int, T: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - T - 1, (B, 1), generator=generator)
    piece = data[starts + torch.arange(T + 1)]  # (B, T + 1)
    return piece[:, :-1], piece[:, 1:]


def _text_loss(model: LanguageModel, generator: torch.Generator, places: Tensor | None) -> Tensor:
    tokens, following = _pieces(_text()[:180_000], 16, 32, generator)
    return F.cross_entropy(model(tokens, positions=places).flatten(0, 1), following.flatten())


def _text_is_repaired(record: Claim) -> bool:
    """Each seed: rotary reads worse far on, and with the far keys hidden as near the beginning, at least as ALiBi."""
    near, far = record.values("rotary", "near"), record.values("rotary", "far")
    hidden, alibi = record.values("rotary", "far, far hidden"), record.values("ALiBi", "far")
    return all(
        b > a + 0.2 and c < a + 0.05 and c < d + 0.02 for a, b, c, d in zip(near, far, hidden, alibi, strict=True)
    )


@experiment(
    claim="On text, trained on 32 characters, rotary positions read worse beyond; with the keys hidden that are "
    "farther back than any in training they read there as well as near the beginning, and no worse than ALiBi.",
    arms=SCHEMES,
    rates=RATES,
    better="min near",
    holds=_text_is_repaired,
)
def long_text(seed: int, rate: float, scheme: str, shifted: bool = False) -> dict[str, float]:
    """Predict the next character of English prose: trained on 32 characters, tested on 128. Loss in nats."""
    model = trained(seed, rate, 250, (scheme, len(SYMBOLS), 128, shifted), _text_loss, 32)
    tokens, following = _pieces(_text()[180_000:], 100, 128, torch.Generator().manual_seed(9))
    found = {}
    with torch.no_grad():
        for name, mask in (("", None), (", far hidden", sliding_window_mask(128, 128, window=32))):
            losses = F.cross_entropy(model(tokens, mask=mask).mT, following, reduction="none").mean(0)  # (T,)
            found["near" + name] = losses[8:32].mean().item()
            found["far" + name] = losses[64:].mean().item()
    return found


def _counts_with_a_mask(record: Claim) -> bool:
    return (
        record.range("no mask", "accuracy")[1] < 0.2
        and record.range("no mask, start token", "accuracy")[1] < 0.2
        and record.range("causal", "accuracy")[0] > 0.3
        and record.range("causal, start token", "accuracy")[0] > 0.9
    )


@experiment(
    claim="Without any positions a model with a causal mask learns to name the place of a token, best with a start "
    "token in front; without the mask it cannot.",
    arms={
        "no mask": {"causal": False, "start": False},
        "no mask, start token": {"causal": False, "start": True},
        "causal": {"causal": True, "start": False},
        "causal, start token": {"causal": True, "start": True},
    },
    rates=(2e-3, 5e-3, 1e-2),
    better="max accuracy",
    holds=_counts_with_a_mask,
)
def own_place(seed: int, rate: float, causal: bool, start: bool) -> dict[str, float]:
    """Name the place, 0 to 7, of each of eight random tokens, with no positions at all."""
    torch.manual_seed(seed)
    model, generator = PlaceNamer(causal, start), torch.Generator().manual_seed(1000 + seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(200):
        tokens = torch.randint(11, (32, 8), generator=generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), torch.arange(8).repeat(32))  # (B, T, T) -> (B T, T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        named = model(torch.randint(11, (1000, 8), generator=generator)).argmax(-1)  # (B, T)
    return {"accuracy": (named == torch.arange(8)).float().mean().item()}


class PlaceNamer(torch.nn.Module):
    """Names the place of each token, without being told any: tokens (B, T) -> scores (B, T, T)."""

    def __init__(self, causal: bool, start: bool, T: int = 8, V: int = 11, width: int = 32) -> None:
        super().__init__()
        config: dict[str, Any] = {"d_model": width, "n_heads": 2, "d_ff": 64, "n_encoder_layers": 1}
        self.token = TokenEmbedding(V + 1, width)
        self.stack = TransformerEncoder(TransformerConfig(**config, positions="none", dropout=0.0, norm_place="pre"))
        self.answer = torch.nn.Linear(width, T)
        self.causal, self.start, self.T, self.V = causal, start, T, V

    def forward(self, tokens: Tensor) -> Tensor:
        """Score each place for each token."""
        if self.start:
            tokens = F.pad(tokens, (1, 0), value=self.V)  # (B, T) -> (B, T + 1)
        mask = causal_mask(tokens.size(1)) if self.causal else None
        return self.answer(self.stack(self.token(tokens), mask=mask))[:, -self.T :]  # (B, T, T)
