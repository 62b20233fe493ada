"""What chapter 4 says about its judge of sentences: against methods that count, and after reading without labels."""

import copy
import functools
import random

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.encoder import TransformerEncoder
from course_lib.masks import padding_mask
from course_lib.transformer import Embedding, TransformerConfig
from coursework.corpora.sentences import JUDGED_WORDS, judged_sentences
from experiments import experiment

PAD, CLS, MASK, UNKNOWN = range(4)
HIDDEN, WORD_OF_ID = 2, ["[PAD]", "[CLS]", "[MASK]", *JUDGED_WORDS]
ID_OF_WORD = {word: number for number, word in enumerate(WORD_OF_ID)}


@functools.cache
def judged(seed: int) -> tuple[list[list[str]], torch.Tensor, list[list[str]], torch.Tensor]:
    """Sentences to learn from and whether they are right, 2000 pairs; the same for the test, 500 pairs, none seen."""
    sentences, right = judged_sentences(2000, random.Random(seed))
    seen, draw = {tuple(words) for words in sentences}, random.Random(1000 + seed)
    tests: list[list[str]] = []
    while len(tests) < 1000:
        pair, _ = judged_sentences(1, draw)
        if not seen & {tuple(words) for words in pair}:
            tests += pair
    return sentences, torch.tensor(right), tests, torch.tensor([1, 0] * 500)


def ids(sentences: list[list[str]]) -> torch.Tensor:
    """[CLS] and the words, filled up with padding: (B, T)."""
    rows = [torch.tensor([CLS, *(ID_OF_WORD[word] for word in words)]) for words in sentences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


class Judge(nn.Module):
    """The chapter's classifier, from the library's parts: two pre-norm layers of width 32, read at [CLS]."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"d_model": 32, "n_heads": 4, "n_encoder_layers": 2, "vocab_size": len(WORD_OF_ID), "max_length": 20}
        switches = {"norm_place": "pre", "dropout": 0.0, "scale_embeddings": False, "positions": "learned"}
        config = TransformerConfig(**sizes, **switches)
        self.embedding, self.encoder = Embedding(config, len(WORD_OF_ID)), TransformerEncoder(config)
        self.head, self.word_head = nn.Linear(32, 2), nn.Linear(32, len(WORD_OF_ID))

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        """Ids (B, T) -> (B, T, D)."""
        return self.encoder(self.embedding(tokens), mask=padding_mask(tokens, PAD))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Ids (B, T) -> scores (B, 2) for wrong and right."""
        return self.head(self.read(tokens)[:, 0])


def train_judge(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor | None, steps: int, rate: float, seed: int, size: int = 64
) -> None:
    """AdamW with a rate that rises and falls; without labels y, name a fifth of the words, which are hidden."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (size,), generator=generator)
        part = x[rows]
        if y is None:
            hidden = (torch.rand(part.shape, generator=generator) < 0.2) & (part > HIDDEN)
            vectors = model.read(part.masked_fill(hidden, HIDDEN))[hidden]
            loss = F.cross_entropy(model.word_head(vectors), part[hidden])
        else:
            loss = F.cross_entropy(model(part), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def right_share(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """How many answers are right."""
    with torch.no_grad():
        return (model(x).argmax(-1) == y).float().mean().item()


def counted(train: list[list[str]], test: list[list[str]], longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """How often each run of 1 to `longest` words stands in each sentence; the runs are those of `train`."""

    def runs(words: list[str]) -> list[tuple[str, ...]]:
        return [tuple(words[i : i + n]) for n in range(1, longest + 1) for i in range(len(words) - n + 1)]

    column = {run: n for n, run in enumerate(sorted({run for words in train for run in runs(words)}))}
    tables = []
    for part in (train, test):
        table = torch.zeros(len(part), len(column))
        for row, words in enumerate(part):
            for run in runs(words):
                if run in column:
                    table[row, column[run]] += 1
        tables.append(table)
    return tables[0], tables[1]


@functools.cache  # the same for each rate
def counted_runs(seed: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of `judged` sentences."""
    train, _, test, _ = judged(seed)
    return counted(train, test, longest)


@experiment(
    claim="An encoder judges whether the last word fits a far subject; networks that count words, pairs and triples of "
    "words do so less often, and linear maps of such counts hardly.",
    arms={
        "encoder": {},
        "pairs counted, linear": {"longest": 2, "linear": True},
        "pairs counted, network": {"longest": 2},
        "triples counted, linear": {"longest": 3, "linear": True},
        "triples counted, network": {"longest": 3},
    },
    rates=(1e-3, 3e-3),
    better="max accuracy",
    holds=lambda record: (
        record.range("encoder", "accuracy")[0] > 0.97
        and max(record.range(arm, "accuracy")[1] for arm in list(record.arms)[1:]) < 0.93
        and max(record.range(arm, "accuracy")[1] for arm in record.arms if "linear" in arm) < 0.7
    ),
)
def far_subject(seed: int, rate: float, *, longest: int = 0, linear: bool = False) -> dict[str, float]:
    """Train on 4000 sentences, test on 1000 others; counts of words, pairs and triples for the simple rivals."""
    train, right, test, answers = judged(seed)
    torch.manual_seed(seed)
    if not longest:
        model: nn.Module = Judge()
        train_judge(model, ids(train), right, 600, rate, seed)
        return {"accuracy": right_share(model, ids(test), answers)}
    x, tests = counted_runs(seed, longest)
    n = x.size(1)
    model = nn.Linear(n, 2) if linear else nn.Sequential(nn.Linear(n, 64), nn.ReLU(), nn.Linear(64, 2))
    train_judge(model, x, right, 800, rate, seed)
    return {"accuracy": right_share(model, tests, answers)}


LABELLED = 100


@functools.cache
def read_before(seed: int, text: str) -> Judge:
    """A judge that has filled in hidden words for 1000 steps, in right sentences or in a mixture."""
    sentences, right, _, _ = judged(seed)
    torch.manual_seed(seed)
    model, x, right = Judge(), ids(sentences)[LABELLED:], right[LABELLED:]  # none that gets a label
    if text != "nothing":
        train_judge(model, x[right == 1] if text == "right sentences" else x, None, 1000, 3e-3, seed)
    return model


@experiment(
    claim="With 100 labels a judge that has filled in hidden words is ahead of one that has read nothing; seed by seed "
    "it is farther ahead if it has read right sentences than if it has read right and wrong ones, mixed.",
    arms={name: {"text": name} for name in ("nothing", "right sentences", "right and wrong ones mixed")},
    rates=(1e-3, 3e-3),
    better="max accuracy",
    holds=lambda record: (
        record.range("right and wrong ones mixed", "accuracy")[0] > record.range("nothing", "accuracy")[1] + 0.05
        and all(
            right > mixed
            for right, mixed in zip(
                record.values("right sentences", "accuracy"),
                record.values("right and wrong ones mixed", "accuracy"),
                strict=True,
            )
        )
    ),
)
def read_first(seed: int, rate: float, *, text: str) -> dict[str, float]:
    """Then learn from 100 labelled sentences, 150 steps; accuracy on 1000 others."""
    sentences, right, test, answers = judged(seed)
    x, model = ids(sentences), copy.deepcopy(read_before(seed, text))
    train_judge(model, x[:LABELLED], right[:LABELLED], 150, rate, seed, size=32)
    return {"accuracy": right_share(model, ids(test), answers)}
