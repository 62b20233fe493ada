"""What the labs on chapter 1 say about trained models: reach, bottleneck, leaks, narrow heads, sharpness by layer."""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import masks
from course_lib.attention import CausalSelfAttention, CrossAttention, SelfAttention, record_weights
from coursework.corpora import associative_recall, noise_floor, noise_tokens, reference_text
from coursework.records import Claim
from experiments import experiment

SYMBOLS = 16
LEAK_VOCABULARY, LEAK_LENGTH = 11, 13


def learn(model: nn.Module, draw: Any, steps: int, rate: float) -> None:
    """Adam on fresh random examples; `draw` returns inputs and targets, targets last."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        *inputs, targets = draw(64)
        scores = model(*inputs)
        loss = F.cross_entropy(scores.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def right(model: nn.Module, examples: tuple[Tensor, ...]) -> float:
    """Return the share of right answers."""
    *inputs, targets = examples
    return float((model(*inputs).argmax(dim=-1) == targets).float().mean())


# How far back can learning reach? ------------------------------------------------------------------------------------


class FirstToken(nn.Module):
    """Reads T tokens and reports the first at the end, through one layer of some kind."""

    def __init__(self, kind: str, length: int, width: int = 32) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(SYMBOLS, width), nn.Embedding(length, width)
        lstm = nn.LSTM(width, width, batch_first=True)
        if kind == "open LSTM":
            for name, bias in (("bias_ih_l0", 5.0), ("bias_hh_l0", 0.0)):
                nn.init.constant_(lstm.get_parameter(name)[width : 2 * width], bias)
        self.read = SelfAttention(width) if kind == "attention" else lstm
        self.answer = nn.Linear(width, SYMBOLS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) -> scores of the first one, (B, 1, V)."""
        x = self.token(tokens) + self.position.weight  # (B, T, width)
        read = self.read(x)
        read = read[0] if isinstance(read, tuple) else read
        return self.answer(read[:, -1:])  # (B, 1, V)


def reach_holds(record: Claim) -> bool:
    """The ordinary LSTM never learns far places; the open one does at its better rate, not always at the other."""
    learned = ("LSTM, 5", "open LSTM, 5", "attention, 5", "attention, 50")
    nothing = ("LSTM, 20", "LSTM, 50", "LSTM, 50, three times as long")
    return (
        all(record.range(arm, "accuracy")[0] > 0.95 for arm in learned)
        and all(record.range(arm, "accuracy")[1] < 0.12 for arm in nothing)
        and record.range("open LSTM, 50", "accuracy")[0] > 0.8
        and record.range("open LSTM, 50", "accuracy", 1e-2)[0] < 0.12
        and min(record.range("attention, 50", "accuracy", rate)[0] for rate in record.rates) > 0.95
    )


@experiment(
    claim="An ordinary LSTM learns nothing fifty places back; an open forget gate does, less surely than attention.",
    arms={
        **{
            f"{kind}, {distance}": {"kind": kind, "distance": distance}
            for kind in ("LSTM", "open LSTM", "attention")
            for distance in (5, 50)
        },
        "LSTM, 20": {"kind": "LSTM", "distance": 20},
        "LSTM, 50, three times as long": {"kind": "LSTM", "distance": 50, "steps": 1200},
    },
    rates=(3e-3, 1e-2),
    better="max accuracy",
    holds=reach_holds,
)
def reach_learned(seed: int, rate: float, *, kind: str, distance: int, steps: int = 400) -> dict[str, float]:
    """Train to report the first of distance + 1 tokens."""
    torch.manual_seed(seed)
    model, generator = FirstToken(kind, distance + 1), torch.Generator().manual_seed(seed)

    def draw(B: int) -> tuple[Tensor, ...]:
        tokens = torch.randint(SYMBOLS, (B, distance + 1), generator=generator)
        return tokens, tokens[:, :1]

    learn(model, draw, steps, rate)
    return {"accuracy": right(model, draw(1000))}


# The bottleneck ------------------------------------------------------------------------------------------------------


class LastState(nn.Module):
    """Reads pairs with an LSTM; answers from its last state alone."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(SYMBOLS, width), nn.Embedding(SYMBOLS, width)
        self.read: nn.Module = nn.LSTM(width, width, batch_first=True)
        self.answer = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, SYMBOLS))

    def memory(self, pairs: Tensor, asked: Tensor) -> Tensor:
        """Pairs (B, n, width), questions (B, T, width) -> what is known for each question, (B, T, width)."""
        states, _ = self.read(pairs)  # (B, S, width)
        return states[:, -1:].expand(-1, asked.size(1), -1)  # (B, T, width)

    def forward(self, keys: Tensor, values: Tensor, questions: Tensor) -> Tensor:
        """Keys (B, n), values (B, n), questions (B, T) -> scores (B, T, V)."""
        asked = self.key(questions)
        memory = self.memory(self.key(keys) + self.value(values), asked)
        return self.answer(torch.cat([memory, asked], dim=-1))  # (B, T, V)


class Attending(LastState):
    """The same, but each question attends to all pairs; no LSTM."""

    def __init__(self, width: int = 32) -> None:
        super().__init__(width)
        self.read = CrossAttention(width)

    def memory(self, pairs: Tensor, asked: Tensor) -> Tensor:
        """Pairs (B, n, width), questions (B, T, width) -> what is known for each question, (B, T, width)."""
        return self.read(asked, pairs)  # (B, T, width)


def recall(B: int, n: int, split: Any, generator: torch.Generator) -> tuple[Tensor, ...]:
    """B lists of n pairs: keys (B, n), values (B, n), the key asked for (B, 1), its value (B, 1)."""
    task = associative_recall(B, n_pairs=n, n_keys=SYMBOLS, n_values=SYMBOLS, split=split, generator=generator)
    return task.keys, task.values, task.query[:, None], task.target[:, None]


def learn_recall(model: nn.Module, n: int, steps: int, seed: int, rate: float) -> dict[str, float]:
    """Train on lists of n pairs; accuracy on new lists, and on combinations never asked for in training."""
    generator = torch.Generator().manual_seed(seed)
    learn(model, lambda B: recall(B, n, "train", generator), steps, rate)
    held = torch.Generator().manual_seed(999)
    return {
        "new lists": right(model, recall(1000, n, "train", held)),
        "never asked": right(model, recall(1000, n, "test", held)),
    }


def bottleneck_holds(record: Claim) -> bool:
    """Every run of attention looks up; the last state falls, gains by time and width, and never looks up."""
    falls = [record.range(f"state, {n}", "new lists") for n in (1, 2, 4, 8)]
    late, wide = (f"state, 8, six times as long{more}" for more in ("", ", 64 wide"))
    return (
        all(record.range(f"attention, {n}", "new lists")[0] > 0.95 for n in (1, 2, 4, 8))
        and all(record.range(f"attention, {n}", "never asked")[0] > 0.9 for n in (1, 2, 4, 8))
        and all(fewer[0] > more[1] for fewer, more in itertools.pairwise(falls))
        and record.range(late, "new lists")[0] > record.range("state, 8", "new lists")[1]
        and record.range(wide, "new lists")[0] > record.range(late, "new lists")[1]
        and all(record.range(arm, "never asked")[1] < 0.15 for arm in ("state, 2", "state, 4", "state, 8", late, wide))
    )


@experiment(
    claim="Attention recalls from lists of 1 to 8 pairs; the last state of an LSTM recalls less with each doubling.",
    arms={
        **{
            f"{name}, {n}": {"attends": name == "attention", "n": n}
            for name in ("state", "attention")
            for n in (1, 2, 4, 8)
        },
        "state, 8, six times as long": {"attends": False, "n": 8, "steps": 1200},
        "state, 8, six times as long, 64 wide": {"attends": False, "n": 8, "steps": 1200, "width": 64},
    },
    rates=(5e-3, 1e-2),
    better="max new lists",
    holds=bottleneck_holds,
)
def bottleneck(seed: int, rate: float, *, attends: bool, n: int, steps: int = 200, width: int = 32) -> dict[str, float]:
    """Train a reader of lists that keeps one state, or attends."""
    torch.manual_seed(seed)
    return learn_recall(Attending(width) if attends else LastState(width), n, steps, seed, rate)


# How narrow can a head be? -------------------------------------------------------------------------------------------


class RecallHead(nn.Module):
    """One head reads pairs and answers questions; only the width of queries and keys is limited."""

    def __init__(self, d_key: int, width: int = 32) -> None:
        super().__init__()
        self.key, self.value = nn.Embedding(SYMBOLS, width), nn.Embedding(SYMBOLS, width)
        self.read, self.answer = CrossAttention(width, d_key, 16), nn.Linear(16, SYMBOLS)
        for linear in (self.read.projection.query, self.read.projection.key):
            nn.init.normal_(linear.weight, std=width**-0.5)

    def forward(self, keys: Tensor, values: Tensor, questions: Tensor) -> Tensor:
        """Keys (B, n), values (B, n), questions (B, T) -> scores (B, T, V)."""
        return self.answer(self.read(self.key(questions), self.key(keys) + self.value(values)))  # (B, T, V)


def narrow_holds(record: Claim) -> bool:
    """What looks like a limit of width 2 after 150 steps is a matter of time; that of width 1 is not."""
    return (
        record.range("width 2, 3000 steps", "never asked")[0] > 0.97
        and record.range("width 2, 150 steps", "never asked")[1] < 0.97
        and record.range("width 1, 1000 steps", "never asked")[1] < 0.6
        and record.range("width 4, 150 steps", "never asked")[0] > 0.97
    )


@experiment(
    claim="A head of width 2 tells 16 keys apart, given enough steps; one of width 1 does not.",
    arms={
        f"width {d_key}, {steps} steps": {"d_key": d_key, "steps": steps}
        for d_key, steps in ((1, 150), (2, 150), (4, 150), (1, 1000), (2, 1000), (2, 3000))
    },
    rates=(5e-3, 1e-2),
    better="max never asked",
    holds=narrow_holds,
)
def narrow_head(seed: int, rate: float, *, d_key: int, steps: int) -> dict[str, float]:
    """Train one head whose queries and keys have few numbers."""
    torch.manual_seed(seed)
    return learn_recall(RecallHead(d_key), 7, steps, seed, rate)


# The leak detector ---------------------------------------------------------------------------------------------------


class NextToken(nn.Module):
    """Predicts the next token with one masked head."""

    def __init__(self, mask: Tensor | None, width: int = 32) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(LEAK_VOCABULARY, width), nn.Embedding(LEAK_LENGTH, width)
        self.attention, self.answer = SelfAttention(width), nn.Linear(width, LEAK_VOCABULARY)
        self.mask = mask

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) -> scores of the next one, (B, T, V)."""
        return self.answer(self.attention(self.token(tokens) + self.position.weight, mask=self.mask))  # (B, T, V)


def leak_mask(kind: str) -> Tensor | None:
    """Return one of the four masks of the lab."""
    mask = masks.causal_mask(LEAK_LENGTH)
    if kind == "one wrong cell":
        mask[0, 1] = True
    if kind == "off by one":
        mask = torch.ones_like(mask).tril(diagonal=1)
    return None if kind == "no mask" else mask


def leak_holds(record: Claim) -> bool:
    """The right mask stays at the floor; every other one goes below it, in every run."""
    leaks = {arm: record.range(arm, "below the floor")[0] for arm in record.arms if arm != "right"}
    return (
        record.range("right", "below the floor")[1] < 0.01
        and leaks["one wrong cell"] > 0.04
        and min(leaks["off by one"], leaks["no mask"]) > 1.5
    )


@experiment(
    claim="On noise a right causal mask does not beat ln V; a mask off by one, none, and one wrong cell do.",
    arms={name: {"mask": name} for name in ("right", "one wrong cell", "off by one", "no mask")},
    rates=(3e-3, 1e-2),
    better="min loss",
    holds=leak_holds,
)
def leak_detector(seed: int, rate: float, *, mask: str, steps: int = 100) -> dict[str, float]:
    """Train under a mask on tokens that nobody can predict; loss on new ones."""
    torch.manual_seed(seed)
    model, generator = NextToken(leak_mask(mask)), torch.Generator().manual_seed(seed)

    def draw(B: int) -> tuple[Tensor, ...]:
        tokens = noise_tokens(B, LEAK_LENGTH + 1, LEAK_VOCABULARY, generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    learn(model, draw, steps, rate)
    tokens, targets = draw(1000)
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()
    return {"loss": loss, "below the floor": noise_floor(LEAK_VOCABULARY) - loss}


# Do early layers attend evenly? --------------------------------------------------------------------------------------


class TwoLayers(nn.Module):
    """Next-character model: two causal heads, each followed by a small network on each position."""

    def __init__(self, symbols: int, length: int, width: int = 64) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.heads = nn.ModuleList(CausalSelfAttention(width) for _ in range(2))
        self.networks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norms, self.answer = nn.ModuleList(nn.LayerNorm(width) for _ in range(2)), nn.Linear(width, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) -> scores of the next one, (B, T, V)."""
        x = self.token(tokens) + self.position.weight  # (B, T, width)
        for head, think, norm in zip(self.heads, self.networks, self.norms, strict=True):
            x = x + head(norm(x))
            x = x + think(x)
        return self.answer(x)


def sharpness_holds(record: Claim) -> bool:
    """Against the rule that early layers attend evenly and late ones sharply."""
    even = record.range("fresh", "even rows")[0]
    return (
        min(record.range("fresh", name)[0] for name in ("layer 1", "layer 2")) > 0.95 * even
        and record.range("trained", "layer 1")[1] < record.range("trained", "layer 2")[0]
    )


@experiment(
    claim="Fresh, both layers of a small character model attend nearly evenly; trained, the first is the sharper one.",
    arms={"fresh": {"steps": 0}, "trained": {"steps": 200}},
    rates=(2e-3, 5e-3),
    better="min loss",
    holds=sharpness_holds,
)
def sharpness_by_layer(seed: int, rate: float, *, steps: int, length: int = 32) -> dict[str, float]:
    """Train a character model, or not; entropy of its two layers' weights in nats."""
    text = reference_text(each_once=True)[:300_000]
    number = {character: n for n, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([number[character] for character in text])
    torch.manual_seed(seed)
    model, generator = TwoLayers(len(number), length), torch.Generator().manual_seed(seed)

    def draw(B: int, low: int = 0, high: int = 270_000) -> tuple[Tensor, ...]:
        begin = torch.randint(low, high - length - 1, (B, 1), generator=generator)
        piece = ids[begin + torch.arange(length + 1)]
        return piece[:, :-1], piece[:, 1:]

    learn(model, draw, steps, rate)
    with torch.no_grad(), record_weights(model) as maps:
        tokens, targets = draw(200, 270_000, len(ids))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()
    first, second = (-torch.special.xlogy(w, w).sum(dim=-1).mean().item() for w in maps.values())
    even = sum(math.log(seen) for seen in range(1, length + 1)) / length
    return {"layer 1": first, "layer 2": second, "even rows": even, "loss": loss}
