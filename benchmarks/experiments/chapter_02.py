"""What chapter 2 and its lab say about trained heads: two places, English, characters, induction."""

import itertools
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.attention import record_weights
from course_lib.config import TransformerConfig
from course_lib.multi_head import MultiHeadAttention, merge_heads, split_heads
from course_lib.transformer import LanguageModel
from coursework.corpora import reference_text
from coursework.corpora.sentences import ENGLISH, REFLEXIVE_OF, REFLEXIVES, english_sentence
from coursework.records import Claim
from experiments import experiment

# One head cannot look at two places at once --------------------------------------------------------------------------

PLACES = (1, 3)  # how far back the two answers stand


class TwoPlaces(nn.Module):
    """Names the letters one and three places back: (B, T) -> scores (B, T, 2, letters), weights (1, H, T, T)."""

    def __init__(self, n_heads: int, network: bool, letters: int = 12, T: int = 16, D: int = 32) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.letter, self.place = nn.Embedding(letters, D), nn.Parameter(torch.randn(1, T, D))
        self.query, self.key, self.value, self.output = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.network = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, D)) if network else nn.Identity()
        self.answer = nn.Linear(D, 2 * letters)

    def weights(self) -> Tensor:
        """Where each place looks: it depends on the places alone."""
        query, key = split_heads(self.query(self.place), self.n_heads), split_heads(self.key(self.place), self.n_heads)
        return (query @ key.mT / math.sqrt(query.size(-1))).softmax(dim=-1)  # (1, H, T, T)

    def forward(self, letters: Tensor) -> Tensor:
        found = self.weights() @ split_heads(self.value(self.letter(letters)), self.n_heads)  # (B, H, T, E)
        return self.answer(self.network(self.output(merge_heads(found)))).unflatten(-1, (2, -1))


def two_places_batch(B: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Letters (B, T), and for each place the two that are asked for (B, T, 2)."""
    letters = torch.randint(12, (B, 16), generator=generator)
    return letters, torch.stack([letters.roll(back, dims=1) for back in PLACES], dim=-1)


def apart(weights: Tensor) -> float:
    """How much two heads differ, mean over pairs and queries: half the sum of differences; 0 for one head."""
    pairs = list(itertools.combinations(weights[0, :, 3:], 2))
    return sum(0.5 * (a - b).abs().sum(-1).mean().item() for a, b in pairs) / max(1, len(pairs))


def _two_places_holds(record: Claim) -> bool:
    one = max(record.range(arm, "worse answer")[1] for arm in ("one head", "one head, 5 × steps"))
    two = min(record.range(arm, "worse answer")[0] for arm in ("two heads", "eight heads"))
    differ = record.range("eight heads", "apart")[0] > record.range("eight heads", "apart, fresh")[1]
    network = record.range("one head and a network", "worse answer")[0]
    return one < 0.5 and two > 0.98 and network > 0.9 and differ


@experiment(
    claim="With a linear read-out one head answers at most one of two questions well, two heads answer both.",
    arms={
        "one head": {"n_heads": 1},
        "one head, 5 × steps": {"n_heads": 1, "steps": 1500},
        "two heads": {"n_heads": 2},
        "eight heads": {"n_heads": 8},
        "one head and a network": {"n_heads": 1, "network": True},
    },
    rates=(3e-3, 1e-2, 3e-2),
    better="max worse answer",
    holds=_two_places_holds,
)
def two_places(seed: int, rate: float, n_heads: int, steps: int = 300, network: bool = False) -> dict[str, float]:
    """Train on the letters one and three places back, and test on new ones."""
    torch.manual_seed(seed)
    model, generator = TwoPlaces(n_heads, network), torch.Generator().manual_seed(seed)
    before = apart(model.weights().detach())
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        letters, wanted = two_places_batch(32, generator)
        loss = F.cross_entropy(model(letters)[:, 3:].flatten(0, 2), wanted[:, 3:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    letters, wanted = two_places_batch(500, torch.Generator().manual_seed(99))
    with torch.no_grad():
        right = (model(letters).argmax(-1) == wanted)[:, 3:].float().mean((0, 1))
        weights = model.weights()
    rows = torch.arange(3, 16)
    return {
        "worse answer": right.min().item(),
        "better answer": right.max().item(),
        "on one back": weights[0, :, rows, rows - 1].mean(-1).max().item(),
        "on three back": weights[0, :, rows, rows - 3].mean(-1).max().item(),
        "apart": apart(weights),
        "apart, fresh": before,
        "parameters": float(sum(p.numel() for p in model.parameters())),
    }


# Taking heads away ---------------------------------------------------------------------------------------------------

Head = tuple[int, int]  # layer, head


def without(layers: list[MultiHeadAttention], heads: Iterable[Head], measure: Callable[[], Any]) -> Any:
    """Measure while the output maps take nothing from these heads."""
    kept = [layer.output.weight.detach().clone() for layer in layers]
    for layer, head in heads:
        E = layers[layer].d_head
        layers[layer].output.weight.data[:, head * E : (head + 1) * E] = 0.0
    found = measure()
    for module, weight in zip(layers, kept, strict=True):
        module.output.weight.data.copy_(weight)
    return found


# English -------------------------------------------------------------------------------------------------------------

WORD = {word: number for number, word in enumerate(ENGLISH)}


def english_model(seed: int, rate: float, steps: int = 500) -> LanguageModel:
    """Two layers of four heads, trained on the small English."""
    draw = random.Random(seed)
    text = torch.tensor([WORD[word] for _ in range(10_000) for word in english_sentence(draw)])
    starts = (text == WORD["."]).nonzero()[:-20, 0]
    torch.manual_seed(seed)
    config = TransformerConfig(
        d_model=64, n_heads=4, n_decoder_layers=2, positions="learned", norm_place="pre", activation="gelu",
        scale_embeddings=False, tie_embeddings=False, dropout=0.0, vocab_size=len(ENGLISH), max_length=24,
    )  # fmt: skip
    model = LanguageModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        piece = text[starts[torch.randint(len(starts), (32,))][:, None] + torch.arange(25)]
        loss = F.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def reflexive_tests(how_many: int) -> list[list[str]]:
    """Sentences that end with a reflexive and have another person between the subject and the end."""
    draw, found = random.Random(-1), []
    while len(found) < how_many:
        words = english_sentence(draw)
        if words[-2] in REFLEXIVES and ("near" in words or "that" in words):
            found.append(words)
    return found


def _english_holds(record: Claim) -> bool:
    def least(measure: str) -> float:
        return record.range("trained", measure)[0]

    def most(measure: str) -> float:
        return record.range("trained", measure)[1]

    fresh = record.range("untrained", "best weight on the subject")[1]
    return (
        least("right") > 0.97
        and least("best weight on the subject") > fresh + 0.2
        and least("right without that head") > 0.95
        and most("right without the 3 that look most") < least("right without the 3 that look least")
    )


@experiment(
    claim="Some head looks from the last verb at its subject; it can be spared alone, three such heads cannot.",
    arms={"trained": {"steps": 500}, "untrained": {"steps": 0}},
    rates=(1e-3, 3e-3, 1e-2),
    better="max right",
    holds=_english_holds,
)
def english_heads(seed: int, rate: float, steps: int) -> dict[str, float]:
    """Look at the heads at the last verb, and take heads away: the one that looks at the subject, and the others."""
    model = english_model(seed, rate, steps)
    layers = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    tests = reflexive_tests(300)
    batches = [[words for words in tests if len(words) == n] for n in sorted({len(words) for words in tests})]
    answers = [WORD[word] for word in REFLEXIVES]

    def read(words: list[list[str]]) -> Tensor:
        return torch.tensor([[WORD["."], *(WORD[word] for word in each[:-2])] for each in words])

    def right() -> float:
        found = 0
        for words in batches:
            chosen = model(read(words))[:, -1, answers].argmax(-1).tolist()
            found += sum(REFLEXIVES[one] == each[-2] for one, each in zip(chosen, words, strict=True))
        return found / len(tests)

    on_subject, on_other = torch.zeros(2, 4), torch.zeros(2, 4)
    for words in batches:
        with record_weights(model) as maps:
            model(read(words))
        at_verb = torch.stack(list(maps.values()))[:, :, :, -1]  # (layers, B, H, S)
        for number, each in enumerate(words):
            nouns = [1 + place for place, word in enumerate(each) if word in REFLEXIVE_OF]
            on_subject += at_verb[:, number, :, nouns[0]] / len(tests)
            on_other += at_verb[:, number, :, nouns[1]] / len(tests)
    order = sorted(itertools.product(range(2), range(4)), key=lambda head: -on_subject[head].item())
    singles = [without(layers, [head], right) for head in order]
    return {
        "right": right(),
        "best weight on the subject": on_subject.max().item(),
        "weight on the other person": on_other.max().item(),
        "layer of that head": 1.0 + order[0][0],
        "number of that head": 1.0 + order[0][1],
        "right without that head": singles[0],
        "right without the worst single head": min(singles),
        "place of the worst single head": 1.0 + singles.index(min(singles)),
        "right without the 2nd and 3rd": without(layers, order[1:3], right),
        "right without the 3 that look most": without(layers, order[:3], right),
        "right without the 3 that look least": without(layers, order[-3:], right),
        "right without layer 2": without(layers, [(1, h) for h in range(4)], right),
    }


# Characters of English prose -----------------------------------------------------------------------------------------


class Characters(nn.Module):
    """Two layers of attention and a network each: tokens (B, T) -> scores (B, T, V)."""

    def __init__(self, symbols: int, n_heads: int, T: int = 32, D: int = 64) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(symbols, D), nn.Embedding(T, D)
        self.layers = nn.ModuleList(MultiHeadAttention(D, n_heads) for _ in range(2))
        self.networks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(3))
        self.answer = nn.Linear(D, symbols)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position.weight
        for layer, norm, network in zip(self.layers, self.norms[:2], self.networks, strict=True):
            x = x + layer(norm(x), causal=True)
            x = x + network(x)
        return self.answer(self.norms[2](x))


def _characters_hold(record: Claim) -> bool:
    def ratios(arm: str) -> list[float]:
        pair = [record.values(arm, f"all, {how}") for how in ("together", "one by one")]
        return [together / alone for together, alone in zip(*pair, strict=True)]

    return (
        record.range("16 heads", "held-out loss")[0] > record.range("4 heads", "held-out loss")[1]
        and record.range("16 heads", "held-out loss")[0] > record.range("1 head", "held-out loss")[1]
        and max(ratios("1 head")) < 1.1 < min(ratios("4 heads") + ratios("16 heads"))
        and record.range("4 heads", "heads that cost under 0.1 alone")[0] >= 7
    )


@experiment(
    claim="After 300 steps at equal width 16 heads are worse than 4; heads removed together cost more than one by one.",
    arms={"1 head": {"n_heads": 1}, "4 heads": {"n_heads": 4}, "16 heads": {"n_heads": 16}},
    rates=(5e-3, 1e-2),
    better="min held-out loss",
    holds=_characters_hold,
)
def character_heads(seed: int, rate: float, n_heads: int, steps: int = 300) -> dict[str, float]:
    """Train on English prose, character by character; remove heads one by one and several at once."""
    text = reference_text(each_once=True)[:300_000]
    number = {character: n for n, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([number[character] for character in text])
    cut, generator = 270_000, torch.Generator().manual_seed(seed)

    def windows(low: int, high: int, B: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        piece = ids[torch.randint(low, high - 33, (B, 1), generator=generator) + torch.arange(33)]
        return piece[:, :-1], piece[:, 1:]

    torch.manual_seed(seed)
    model = Characters(len(number), n_heads)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        tokens, targets = windows(0, cut, 16, generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens, targets = windows(cut, len(ids), 300, torch.Generator().manual_seed(9))
    model.requires_grad_(False)

    def held_out() -> float:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()

    with record_weights(model) as maps:
        whole = held_out()
    weights = torch.stack(list(maps.values()))  # (layers, B, H, T, T)
    previous = weights.diagonal(-1, -2, -1).mean((1, 3))
    layers = list(model.layers)
    heads = list(itertools.product(range(2), range(n_heads)))
    cost = {head: without(layers, [head], held_out) - whole for head in heads}
    order = sorted(heads, key=cost.__getitem__)
    half, most = order[: len(order) // 2], order[: 3 * len(order) // 4]
    return {
        "held-out loss": whole,
        "best previous-character weight": previous.max().item(),
        "most previous-character head is missed most": float(
            previous.flatten().argmax().item() == heads.index(order[-1])
        ),
        "greatest single cost": cost[order[-1]],
        "heads that cost under 0.1 alone": float(sum(each < 0.1 for each in cost.values())),
        "cheapest half, one by one": sum(cost[head] for head in half),
        "cheapest half, together": without(layers, half, held_out) - whole,
        "cheapest three quarters, one by one": sum(cost[head] for head in most),
        "cheapest three quarters, together": without(layers, most, held_out) - whole,
        "all, one by one": sum(cost.values()),
        "all, together": without(layers, heads, held_out) - whole,
    }


# Induction -----------------------------------------------------------------------------------------------------------

LETTERS, LENGTH, PEOPLE = 26, 24, 5


class AttentionOnly(nn.Module):
    """Causal attention layers, nothing between: letters (B, T) -> scores (B, T, letters)."""

    def __init__(self, n_layers: int, n_heads: int = 2, D: int = 64) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(LETTERS, D), nn.Parameter(torch.randn(LENGTH, D))
        self.layers = nn.ModuleList(MultiHeadAttention(D, n_heads, bias=False) for _ in range(n_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(n_layers + 1))
        self.answer = nn.Linear(D, LETTERS, bias=False)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.letter(letters) + self.place[: letters.size(1)]
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = x + layer(norm(x), causal=True)
        return self.answer(self.norms[-1](x))


def names(B: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts of first and family names (B, T), and where a family name can be known (B, T - 1).

    Each text has five people of its own, each a pair of letters; they come in random order, and some texts begin with a
    family name.
    """
    people = torch.rand(B, LETTERS, generator=generator).argsort(1)[:, : 2 * PEOPLE].view(B, PEOPLE, 2)
    who = torch.randint(PEOPLE, (B, LENGTH // 2 + 1), generator=generator)
    text = people[torch.arange(B)[:, None], who].flatten(1)  # (B, T + 2)
    shift = torch.randint(2, (B, 1), generator=generator)
    letters = text.gather(1, shift + torch.arange(LENGTH))
    first = (torch.arange(LENGTH) + shift) % 2 == 0
    met = (letters[:, :, None] == letters[:, None, :]).tril(-1).any(-1)  # seen before, in this text
    return letters, (first & met)[:, :-1]


def repeated(period: int, B: int = 300) -> Tensor:
    """Random letters that repeat after `period` places: (B, T)."""
    letters = torch.randint(LETTERS, (B, period), generator=torch.Generator().manual_seed(period))
    return letters[:, torch.arange(LENGTH) % period]


def copy_loss(scores: Tensor, letters: Tensor, where: Tensor) -> float:
    """Mean loss of the next letter at these places (B, T - 1)."""
    each = F.cross_entropy(scores[:, :-1].flatten(0, 1), letters[:, 1:].flatten(), reduction="none")
    return each.view_as(where)[where].mean().item()


def letter_counts(letters: Tensor) -> Tensor:
    """The rival: scores of the next letter by how often each has come so far, those not seen counting a tenth."""
    return (F.one_hot(letters, LETTERS).float().cumsum(1) + 0.1).log()


def read_after(maps: Tensor, letters: Tensor, where: Tensor) -> Tensor:
    """Weight on the places after earlier copies of the letter that asks: (layers, B, H, T, T) -> (layers, H)."""
    same = (letters[:, :, None] == letters[:, None, :]).tril(-1)
    after = F.pad(same, (1, 0))[:, :, :-1]  # (B, T, T): one place later
    on_copies = (maps * after[None, :, None]).sum(-1)[..., :-1]  # (layers, B, H, T - 1)
    return (on_copies * where[None, :, None]).sum((1, 3)) / where.sum()


def _induction_holds(record: Claim) -> bool:
    two, one = record.range("two layers", "loss"), record.range("one layer", "loss")
    steep = record.values("two layers", "steepest fifth"), record.values("one layer", "steepest fifth")
    return (
        two[1] < 0.9
        and one[0] > 1.8
        and record.range("two layers", "induction score")[0] > 0.6
        and record.range("two layers", "previous-token score")[0] > 0.4
        and record.range("one layer", "induction score")[1] < 0.3
        and record.range("two layers", "loss without the previous-token head")[0] > 1.0
        and sum(steep[1]) >= 0.8 * sum(steep[0])
    )


@experiment(
    claim="Two layers learn induction, one layer does not; a steep fall of the loss does not tell them apart.",
    arms={"two layers": {"n_layers": 2}, "one layer": {"n_layers": 1}},
    rates=(3e-3, 1e-2),
    better="min loss",
    holds=_induction_holds,
)
def induction(seed: int, rate: float, n_layers: int, steps: int = 500) -> dict[str, float]:
    """Train on names, measure the loss where a name can be known, both scores, and sequences of another kind."""
    torch.manual_seed(seed)
    model, generator = AttentionOnly(n_layers), torch.Generator().manual_seed(seed)
    letters, known = names(300, torch.Generator().manual_seed(99))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    history = []
    for step in range(steps + 1):
        if step % 25 == 0:
            with torch.no_grad():
                history.append(copy_loss(model(letters), letters, known))
        batch, _ = names(32, generator)
        loss = F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.requires_grad_(False)
    layers = list(model.layers)

    def measure() -> tuple[float, Tensor, Tensor]:
        with record_weights(model) as maps:
            found = copy_loss(model(letters), letters, known)
        weights = torch.stack(list(maps.values()))
        return found, weights.diagonal(-1, -2, -1).mean((1, 3)), read_after(weights, letters, known)

    fifth = (len(history) - 1) // 5
    falls = [history[i] - history[i + fifth] for i in range(len(history) - fifth)]
    whole, previous, induct = measure()
    writer = (0, int(previous[0].argmax()))
    cut_loss, _, cut_induct = without(layers, [writer], measure)
    second = [without(layers, [(n_layers - 1, h)], measure)[0] for h in range(2)]
    found = {
        "loss": whole,
        "loss of counting letters": copy_loss(letter_counts(letters), letters, known),
        "steepest fifth": max(falls) / (history[0] - min(history)),
        "previous-token score": previous[0].max().item(),
        "induction score": induct[-1].max().item(),
        "loss without the previous-token head": cut_loss,
        "induction score without it": cut_induct[-1].max().item(),
        "loss without one head of the last layer": max(second),
    }
    for period in (5, 7, 10):
        other = repeated(period)
        again = (torch.arange(LENGTH - 1) >= period).expand(len(other), -1)
        found[f"loss at period {period}"] = copy_loss(model(other), other, again)
        found[f"counting letters at period {period}"] = copy_loss(letter_counts(other), other, again)
    return found


# The circuit behind induction, read off the matrices ------------------------------------------------------------------


def circuits(model: AttentionOnly) -> tuple[Tensor, Tensor, Tensor]:
    """Tables (letters, letters) of a two-layer model, for its best previous-token head and its best induction head.

    Returns how well the query of letter a fits the note "after b", how well it fits the letter b itself, and how much
    reading letter c raises the score of letter d.
    """
    first, second = model.layers
    letters, known = names(300, torch.Generator().manual_seed(99))
    with record_weights(model) as maps:
        model(letters)
    weights = torch.stack(list(maps.values()))
    writer = int(weights.diagonal(-1, -2, -1).mean((1, 3))[0].argmax())
    reader = int(read_after(weights, letters, known)[1].argmax())
    E = first.d_head
    w, r = slice(writer * E, (writer + 1) * E), slice(reader * E, (reader + 1) * E)
    embedded = model.letter.weight  # (letters, D)
    read = F.layer_norm(embedded, embedded.shape[1:])
    note = read @ first.value.weight[w].T @ first.output.weight[:, w].T  # what the first head writes of each letter
    query, key = read @ second.query.weight[r].T, second.key.weight[r].T  # (letters, E), (D, E)
    written = read @ second.value.weight[r].T @ second.output.weight[:, r].T
    return query @ (note @ key).T, query @ (read @ key).T, written @ model.answer.weight.T


def own_is_largest(table: Tensor) -> float:
    """In how many rows the letter itself has the largest entry."""
    return (table.argmax(-1) == torch.arange(len(table))).float().mean().item()


def _circuits_hold(record: Claim) -> bool:
    fresh = max(record.range("untrained", name)[1] for name in record.measures)
    through = record.range("trained", "query fits the note of its own letter")[0]
    return (
        through > 0.8
        and record.range("trained", "reading a letter raises that letter")[0] > 0.8
        and fresh < 0.4
        and record.range("trained", "query fits its own letter")[1] < through
    )


@experiment(
    claim="In the matrices of two layers, a query fits the note of its own letter, and reading a letter raises it.",
    arms={"trained": {"steps": 500}, "untrained": {"steps": 0}},
    rates=(3e-3, 1e-2),
    better="max query fits the note of its own letter",
    holds=_circuits_hold,
)
def induction_circuits(seed: int, rate: float, steps: int) -> dict[str, float]:
    """Train two layers on names, and read the two circuits off their matrices."""
    torch.manual_seed(seed)
    model, generator = AttentionOnly(2), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        batch, _ = names(32, generator)
        loss = F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fits, directly, copies = circuits(model.requires_grad_(False))
    return {
        "query fits the note of its own letter": own_is_largest(fits),
        "query fits its own letter": own_is_largest(directly),
        "reading a letter raises that letter": own_is_largest(copies),
    }
