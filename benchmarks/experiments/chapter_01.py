"""What chapter 01 says about training: a head that finds the subject, and what the division by √d_k changes."""

import math
import random
import statistics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.attention import scaled_dot_product_attention
from coursework.corpora import associative_recall
from coursework.corpora.sentences import ENGLISH, REFLEXIVE_OF, REFLEXIVES, english_sentence
from coursework.records import Claim
from experiments import experiment

PAD = len(ENGLISH)
LIVE_RATE = 1e-2  # of the run in the chapter
NUMBER = {word: number for number, word in enumerate(ENGLISH)}


# A head that finds the subject --------------------------------------------------------------------------------------


def reflexive_sentences(count: int, draw: random.Random, known: frozenset[tuple[str, ...]] = frozenset()) -> list[list]:
    """Sentences that end with a reflexive and a full stop, none of them among the known."""
    found: list[list[str]] = []
    while len(found) < count:
        words = english_sentence(draw)
        if words[-2] in REFLEXIVES and tuple(words) not in known:
            found.append(words)
    return found


def as_tensors(sentences: list[list[str]]) -> tuple[Tensor, Tensor]:
    """The words before the reflexive, filled up with PAD (B, T), and which reflexive it is (B,)."""
    longest = max(map(len, sentences)) - 2
    rows = [[NUMBER[word] for word in words[:-2]] for words in sentences]
    tokens = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    return tokens, torch.tensor([REFLEXIVES.index(words[-2]) for words in sentences])


class PronounReader(nn.Module):
    """The last word reads the sentence with one head; from what it finds, a linear map chooses the reflexive."""

    def __init__(self, *, places: bool, even: bool, d_model: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(len(ENGLISH) + 1, d_model)
        self.places = nn.Embedding(16, d_model) if places else None
        self.query, self.key, self.value = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.answer = nn.Linear(d_model, len(REFLEXIVES))
        self.even = even
        self.weights = torch.empty(0)

    def forward(self, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Tokens (B, T), places that may not be looked at (B, T) -> scores of the reflexives (B, 3)."""
        x = self.words(tokens)
        if self.places is not None:
            x = x + self.places.weight[: tokens.size(1)]
        real = tokens != PAD
        last = x[torch.arange(len(x)), real.sum(dim=1) - 1]  # (B, d_model)
        query = self.query(last)[:, None] * (0.0 if self.even else 1.0)
        mask = real if hidden is None else real & ~hidden
        found, self.weights = scaled_dot_product_attention(
            query, self.key(x), self.value(x), mask=mask[:, None], return_weights=True
        )
        return self.answer(found[:, 0])


def head_finds_the_subject(record: Claim) -> bool:
    """The sentences of section 7, each for every seed."""
    head = {name: record.range("one head", name, LIVE_RATE) for name in record.measures}
    return (
        head["right"][0] >= 0.99
        and head["right, misleading person"][0] >= 0.99
        and head["weight on subject"][0] >= 0.95
        and head["weight on subject, plural verb"][1] <= 0.2
        and record.range("one head", "weight on subject, herself", 1e-3)[0] < 0.1
        and all(record.range("one head", "right", rate)[0] >= 0.99 for rate in record.rates if rate is not None)
        and head["subject hidden"][1] <= 0.8
        and head["subject hidden, themselves"][0] >= 0.99
        and head["subject hidden, worse"][1] <= 0.5
        and head["fronted, right"][1] <= 0.7
        and head["other person hidden"][0] >= 0.99
        and record.range("without places", "right, misleading person")[1] <= 0.93
        and record.range("even weights", "right, misleading person")[1] <= 0.8
    )


@experiment(
    claim="One trained head reads the subject, not the nearer person, and needs it; without places or with even "
    "weights it is misled more often.",
    arms={
        "one head": {"places": True, "even": False},
        "without places": {"places": False, "even": False},
        "even weights": {"places": True, "even": True},
    },
    rates=(1e-3, 3e-3, 1e-2),
    better="max right",
    holds=head_finds_the_subject,
)
def pronoun_head(seed: int, rate: float, *, places: bool, even: bool) -> dict[str, float]:
    """Train on 4000 sentences for 400 steps; measure on 1000 that it has never read."""
    torch.manual_seed(seed)
    train = reflexive_sentences(4000, random.Random(seed))
    test = reflexive_sentences(1000, random.Random(1000 + seed), frozenset(map(tuple, train)))
    model = PronounReader(places=places, even=even)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    tokens, answers = as_tensors(train)
    for _ in range(400):
        chosen = torch.randint(len(tokens), (64,))
        loss = F.cross_entropy(model(tokens[chosen]), answers[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return _measured(model, test)


@torch.no_grad()
def _measured(model: PronounReader, test: list[list[str]]) -> dict[str, float]:
    tokens, answers = as_tensors(test)
    people = [[place for place, word in enumerate(words[:-2]) if word in REFLEXIVE_OF] for words in test]
    rows = torch.arange(len(test))
    subject = torch.tensor([places[0] for places in people])
    last = [REFLEXIVE_OF[words[places[-1]]] for words, places in zip(test, people, strict=True)]
    misled = torch.tensor([person != words[-2] for words, person in zip(test, last, strict=True)])
    one = answers != REFLEXIVES.index("themselves")  # the verb alone does not say which reflexive it is
    hide_subject, hide_other = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
    hide_subject[rows, subject] = True
    for row, places in enumerate(people):
        hide_other[row, places[1:]] = True

    def right(hidden: Tensor | None = None) -> Tensor:
        return (model(tokens, hidden).argmax(dim=-1) == answers).float()

    found = right()
    weight = model.weights[rows, 0, subject]
    with_other = torch.tensor([len(places) > 1 for places in people])
    without = right(hide_subject)
    of_one = [without[answers == REFLEXIVES.index(word)].mean() for word in ("herself", "himself")]
    measures = {
        "right": found.mean(),
        "right, misleading person": found[misled].mean(),
        "weight on subject": weight[one].mean(),
        "weight on subject, herself": weight[answers == REFLEXIVES.index("herself")].mean(),
        "weight on subject, himself": weight[answers == REFLEXIVES.index("himself")].mean(),
        "weight on subject, plural verb": weight[~one].mean(),
        "subject hidden": without.mean(),
        "subject hidden, themselves": without[~one].mean(),
        "subject hidden, better": max(of_one),
        "subject hidden, worse": min(of_one),
        "other person hidden": right(hide_other)[with_other].mean(),
    }
    measures |= _fronted(model)
    return {name: round(value.item(), 4) for name, value in measures.items()}


def _fronted(model: PronounReader) -> dict[str, Tensor]:
    """Sentences turned round, in which the first person is not the subject: near the king the queen paints."""
    people = [person for person in REFLEXIVE_OF if REFLEXIVE_OF[person] != "themselves"]
    pairs = [(a, b) for a in people for b in people if REFLEXIVE_OF[a] != REFLEXIVE_OF[b]]
    tokens, answers = as_tensors(
        [["near", "the", first, "the", second, "paints", REFLEXIVE_OF[second], "."] for first, second in pairs]
    )
    found = (model(tokens).argmax(dim=-1) == answers).float()
    return {"fronted, right": found.mean(), "fronted, weight on first person": model.weights[:, 0, 2].mean()}


# The division by √d_k -----------------------------------------------------------------------------------------------


class RecallHead(nn.Module):
    """One head reads pairs of symbols and answers which value stood with a key; queries and keys have variance 1."""

    def __init__(self, d_head: int, *, scaled: bool, symbols: int = 16, d_model: int = 32) -> None:
        super().__init__()
        self.keys, self.values = nn.Embedding(symbols, d_model), nn.Embedding(symbols, d_model)
        self.query, self.key = (nn.Linear(d_model, d_head, bias=False) for _ in range(2))
        self.value, self.answer = nn.Linear(d_model, 16, bias=False), nn.Linear(16, symbols)
        self.scale = 1 / math.sqrt(d_head) if scaled else 1.0
        for linear in (self.query, self.key):
            nn.init.normal_(linear.weight, std=d_model**-0.5)
        self.scores = torch.empty(0)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Pairs (B, S), (B, S), questions (B,) -> scores of the symbols (B, 16)."""
        pairs = self.keys(keys) + self.values(values)  # (B, S, d_model)
        self.scores = (self.key(pairs) @ self.query(self.keys(asked))[..., None])[..., 0] * self.scale  # (B, S)
        if self.scores.requires_grad:
            self.scores.retain_grad()
        return self.answer((self.scores.softmax(dim=-1)[:, None] @ self.value(pairs))[:, 0])


def scaling_helps_when_wide(record: Claim) -> bool:
    """The sentences of section 3: at 16 it matters little, at 256 the gradient dies and learning is slower."""
    wide, raw = "d_k 256, divided", "d_k 256, not divided"
    return (
        record.range(wide, "gradient, median row")[0] > 10 * record.range(raw, "gradient, median row")[1]
        and record.range(wide, "gradient, all")[0] > record.range(raw, "gradient, all")[1]
        and record.range(wide, "right")[0] > record.range(raw, "right")[1]
        and statistics.mean(record.values(wide, "right")) > statistics.mean(record.values(raw, "right")) + 0.2
    )


@experiment(
    claim="At d_k 256 the gradient at undivided scores is near zero for most rows at the start, and the head learns "
    "less in 100 steps than with the division, at the best of five rates for each.",
    arms={
        "d_k 16, divided": {"d_head": 16, "scaled": True},
        "d_k 16, not divided": {"d_head": 16, "scaled": False},
        "d_k 256, divided": {"d_head": 256, "scaled": True},
        "d_k 256, not divided": {"d_head": 256, "scaled": False},
    },
    rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
    better="max right",
    holds=scaling_helps_when_wide,
)
def scaled_scores(seed: int, rate: float, *, d_head: int, scaled: bool) -> dict[str, float]:
    """The gradient of the first loss at the scores, and the share of right answers after 100 steps."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)

    def batch(count: int, split: str = "train") -> tuple[Tensor, ...]:
        task = associative_recall(count, n_pairs=7, n_keys=16, n_values=16, split=split, generator=generator)
        return task.keys, task.values, task.query, task.target

    model = RecallHead(d_head, scaled=scaled)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    at_start = None
    for _ in range(100):
        *inputs, answers = batch(64)
        loss = F.cross_entropy(model(*inputs), answers)
        optimizer.zero_grad()
        loss.backward()
        if at_start is None:
            assert model.scores.grad is not None
            at_start = model.scores.grad.clone() * len(answers)  # of each example's own loss
        optimizer.step()
    assert at_start is not None
    rows = at_start.norm(dim=-1)
    with torch.no_grad():
        *inputs, answers = batch(1000, "test")
        right = (model(*inputs).argmax(dim=-1) == answers).float().mean()
    return {
        "right": round(right.item(), 4),
        "gradient, all": at_start.div(len(at_start)).norm().item(),
        "gradient, median row": rows.median().item() / len(rows),
    }
