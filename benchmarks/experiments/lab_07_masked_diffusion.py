"""The lab on masked diffusion: the same small encoder, trained to write in any order and from left to right."""

import functools
import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.masks import causal_mask
from course_lib.transformer import Embedding, TransformerConfig, TransformerEncoder
from coursework.corpora.sentences import ENGLISH, REFLEXIVE_OF, REFLEXIVES, english_sentence, is_english
from coursework.exercises.bank.diffusion_loss import diffusion_loss
from coursework.exercises.bank.uncover import uncover
from coursework.records import Claim
from experiments import experiment

LENGTH, MASK, STEPS, BATCH = 9, len(ENGLISH), 600, 64
NEAR, ADJECTIVES = ENGLISH.index("near"), ("clever", "old", "tall", "tired", "young")


@functools.cache
def texts(n: int, seed: int) -> Tensor:
    """Sentences without "that" that end with a reflexive, filled up with full stops: ids (N, LENGTH)."""
    draw, rows = random.Random(seed), []
    while len(rows) < n:
        words = english_sentence(draw)[:-1]
        if "that" not in words and words[-1] in REFLEXIVES:
            rows.append([ENGLISH.index(word) for word in words + ["."] * (LENGTH - len(words))])
    return torch.tensor(rows)


def right(row: list[int]) -> bool:
    """Whether a text is one that `texts` can draw."""
    words = [ENGLISH[word] for word in row if ENGLISH[word] != "."]
    stops = [ENGLISH[word] for word in row[len(words) :]]
    whole = stops == ["."] * len(stops) and words[-1:] and words[-1] in REFLEXIVES
    return bool(whole and "that" not in words and is_english([*words, "."]))


def source_nats(row: list[int]) -> float:
    """Minus the logarithm of the probability with which `texts` draws this text: what it costs the best model."""
    words = [ENGLISH[word] for word in row]
    persons, adjectives = words.count("the"), sum(word in ADJECTIVES for word in words)
    person = math.log(len(REFLEXIVE_OF)) + math.log(2)  # a noun, and whether an adjective stands before it
    return persons * person + adjectives * math.log(len(ADJECTIVES)) + math.log(6) + math.log(2)  # verb; near or not


class Writer(nn.Module):
    """An encoder of two layers with a head for the words; causal or not."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        config = TransformerConfig(
            d_model=48, n_heads=4, n_encoder_layers=2, vocab_size=MASK + 1, dropout=0.0, norm_place="pre",
            positions="learned", max_length=LENGTH,
        )  # fmt: skip
        self.causal = causal
        self.embedding, self.encoder = Embedding(config, MASK + 1), TransformerEncoder(config)
        self.head = nn.Linear(48, MASK)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, V)"""
        mask = causal_mask(ids.size(1)) if self.causal else None
        return self.head(self.encoder(self.embedding(ids), mask=mask))


def next_word_losses(model: nn.Module, ids: Tensor) -> Tensor:
    """What each word costs, (B, T); the model reads the ids shifted by one, behind the sign."""
    begun = torch.cat([torch.full_like(ids[:, :1], MASK), ids[:, :-1]], dim=1)
    return F.cross_entropy(model(begun).mT, ids, reduction="none")


def trained(seed: int, rate: float, causal: bool, share: float | None, weighted: bool) -> Writer:
    """AdamW with a linear warm-up and a linear decay."""
    torch.manual_seed(seed)
    model, data = Writer(causal), texts(10_000, 0)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, betas=(0.9, 0.98), fused=True)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 50) * (1 - 0.95 * step / STEPS)
        ids = data[torch.randint(len(data), (BATCH,))]
        t = torch.rand(BATCH).clamp(min=1e-3) if share is None else torch.full((BATCH,), share)
        chance = torch.rand(ids.shape)
        if causal:
            loss = next_word_losses(model, ids).sum(dim=1).mean()
        elif weighted:
            loss = diffusion_loss(model, ids, t, chance, MASK).mean()
        else:
            hidden = chance < t[:, None]
            loss = F.cross_entropy(model(ids.masked_fill(hidden, MASK))[hidden], ids[hidden])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def over_orders(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """What texts cost in nats: exactly, where each order is as likely, and by the mean over the orders; (N,) each.

    log_probs: (2^T, N, T), of each word where the positions are hidden that are the ones of the row's binary digits.
    """
    T = log_probs.size(2)
    exact, bound = torch.zeros(2**T, log_probs.size(1)), torch.zeros(2**T, log_probs.size(1))
    for hidden in range(1, 2**T):
        places = [i for i in range(T) if hidden >> i & 1]
        left = [hidden ^ 1 << i for i in places]  # what is hidden after the next word
        now = log_probs[hidden][:, places].T  # (places, N)
        exact[hidden] = (now + exact[left]).logsumexp(dim=0) - math.log(len(places))
        bound[hidden] = (now + bound[left]).mean(dim=0)
    return -exact[-1], -bound[-1]


@torch.no_grad()
def all_log_probs(model: nn.Module, ids: Tensor) -> Tensor:
    """For each set of hidden positions, the log-probability of each word: (2^T, N, T)."""
    T = ids.size(1)
    hidden = torch.tensor([[number >> i & 1 for i in range(T)] for number in range(2**T)]).bool()
    found = [model(ids.masked_fill(row, MASK)).log_softmax(-1).gather(2, ids[:, :, None])[:, :, 0] for row in hidden]
    return torch.stack(found)


def chooser(surest: bool, generator: torch.Generator):
    """Draw a word for each position; it is as certain as its probability, or the order is drawn, too."""

    def choose(logits: Tensor) -> tuple[Tensor, Tensor]:
        p = logits.softmax(dim=-1)
        words = torch.multinomial(p.flatten(0, 1), 1, generator=generator).view(p.shape[:2])
        certainty = p.gather(2, words[:, :, None])[:, :, 0]
        return words, certainty if surest else torch.rand(words.shape, generator=generator)

    return choose


@torch.no_grad()
def go_on(model: nn.Module, ids: Tensor, generator: torch.Generator) -> Tensor:
    """From left to right: ids (B, T) with at least one column, to (B, LENGTH + 1)."""
    while ids.size(1) <= LENGTH:
        words = torch.multinomial(model(ids)[:, -1].softmax(dim=-1), 1, generator=generator)
        ids = torch.cat([ids, words], dim=1)
    return ids


def share_right(ids: Tensor) -> float:
    """Of texts (N, LENGTH)."""
    return sum(map(right, ids.tolist())) / len(ids)


def share_near(ids: Tensor) -> float:
    """Of the right ones among texts, how many say whom the subject is near; 0 if none is right."""
    good = [NEAR in row for row in ids.tolist() if right(row)]
    return sum(good) / max(len(good), 1)


def with_a_gap(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The texts with the subject hidden, and where it stands (N,)."""
    nouns = torch.tensor([ENGLISH.index(word) for word in REFLEXIVE_OF])
    where = torch.isin(ids, nouns).int().argmax(dim=1)  # the first noun
    return ids.scatter(1, where[:, None], MASK), where


def orders_differ(record: Claim) -> bool:
    """What the lab says, in each of the five seeds."""
    value = record.values
    one, two, three, all_ = (value("any order", f"right, {k}") for k in (1, 2, 3, 9))
    pairs = (
        (value("left to right", "excess"), value("any order", "excess")),  # its loss is smaller
        (one, value("left to right", "right, 1")),  # it writes more right sentences
        (value("left to right", "gap"), [share - 0.4 for share in value("any order", "gap")]),  # but fills no gaps
        (two, one), (three, two), (all_, three),  # more words in a pass, fewer right sentences
        (one, value("any order", "surest right")),  # the surest words first: more are right
        (value("any order", "surest near"), [share / 2 for share in value("any order", "near")]),  # and they say less
        (value("any order", "bound"), [bound - 0.5 for bound in value("one word in five", "bound")]),
    )  # fmt: skip
    return all(a < b for smaller, larger in pairs for a, b in itertools.zip_longest(smaller, larger))


@experiment(
    claim="A masked diffusion model fills gaps, and pays for it: in nats, in passes, or in what it says.",
    arms={
        "left to right": {"causal": True},
        "any order": {},
        "one word in five": {"share": 0.2},
    },
    rates=(5e-3, 1e-2),
    better="min excess",
    holds=orders_differ,
)
def writing_order(
    seed: int, rate: float, *, causal: bool = False, share: float | None = None, weighted: bool = True
) -> dict[str, float]:
    """Train one writer; its nats above the source on 32 new texts, and what is right of 300 that it writes or mends.

    From left to right it writes one word in each pass and in no other order: what would need these is 0 for it.
    """
    model = trained(seed, rate, causal, share, weighted)
    generator, new = torch.Generator().manual_seed(seed), texts(300, 99)
    gaps, where = with_a_gap(new)
    floor = sum(map(source_nats, new[:32].tolist())) / 32
    if causal:
        with torch.no_grad():
            nats = next_word_losses(model, new[:32]).sum(dim=1).mean().item()
        begun = torch.full((300, 1), MASK)
        written = go_on(model, begun, generator)[:, 1:]
        continued = gaps.clone()
        for place in where.unique().tolist():  # it reads what stands before the gap, and nothing else
            rows = where == place
            read = torch.cat([begun[rows], gaps[rows, :place]], dim=1)
            p = model(read)[:, -1].softmax(dim=-1)
            continued[rows, place] = torch.multinomial(p, 1, generator=generator)[:, 0]
        cannot = dict.fromkeys(["right, 2", "right, 3", "right, 9", "surest right", "surest near"], 0.0)
        found = {"right, 1": share_right(written), "near": share_near(written), "gap": share_right(continued)}
        return {"excess": nats - floor, "bound": nats - floor} | found | cannot
    exact, bound = over_orders(all_log_probs(model, new[:32]))
    empty = torch.full((300, LENGTH), MASK)
    found = {"excess": exact.mean().item() - floor, "bound": bound.mean().item() - floor}
    for per_pass in (1, 2, 3, 9):
        written = uncover(model, empty, per_pass, chooser(False, generator), MASK)
        found[f"right, {per_pass}"] = share_right(written)
        if per_pass == 1:
            found["near"] = share_near(written)
    surest = uncover(model, empty, 1, chooser(True, generator), MASK)
    mended = uncover(model, gaps, 1, chooser(False, generator), MASK)
    return found | {
        "surest right": share_right(surest), "surest near": share_near(surest), "gap": share_right(mended)
    }  # fmt: skip
