"""What the labs on chapter 1 say about trained models."""

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import masks
from course_lib.attention import CrossAttention, SelfAttention
from course_lib.data import associative_recall, noise_floor, noise_tokens
from course_lib.records import Claim
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
