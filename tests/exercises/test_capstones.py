"""The checks of the capstones accept different right answers, and name what is wrong with others."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from coursework.desk.store import Desk
from coursework.exercises import capstones
from coursework.exercises.capstones import check
from coursework.exercises.learner import Progress
from coursework.exercises.small_tasks import fill_in, reverse, three_back

TABLE = 20.0 * torch.eye(10)  # id -> sure scores


def verdict(capsys, name, *answers) -> str:
    """Return "" if everything holds, else the lines that do not."""
    holds = check(Progress(), name, *answers)
    said = capsys.readouterr().out
    wrong = "\n".join(line for line in said.splitlines() if line.startswith("no"))
    assert holds == (not wrong), said
    return wrong


# -- answers -----------------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """With torch's layers; the settings are the mistakes."""

    def __init__(self, layers=2, classes=7, positions="learned", pool="mean", masked=True, blocked=False):
        super().__init__()
        self.table = nn.Embedding(5000, 64)
        self.places = nn.Parameter(torch.randn(64, 64)) if positions == "learned" else None
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=positions == "waves")
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head, self.positions, self.pool, self.masked = nn.Linear(64, classes), positions, pool, masked
        self.blocked = blocked

    def forward(self, ids):
        x, real = self.table(ids), ids != 0
        T = ids.size(1)
        if self.positions == "learned":
            x = x + self.places[:T]
        elif self.positions == "waves":
            angle = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, 64, 2) / 64)
            x = x + torch.cat([angle.sin(), angle.cos()], dim=-1)
        x = x.detach() if self.blocked else x
        x = self.layers(x, src_key_padding_mask=~real if self.masked else None)
        if self.pool == "first":
            return self.head(x[:, 0])
        if self.pool == "all":
            return self.head(x.mean(1))
        return self.head((x * real[..., None]).sum(1) / real.sum(1, keepdim=True))


def uniform(T, H=4):
    return torch.full((H, T, T), 1 / T)


def heads(seed=0, scale=1.0, H=4):
    x = torch.randn(10, 64, generator=torch.Generator().manual_seed(seed))
    stream = torch.Generator().manual_seed(seed + 1)
    query, key = (torch.randn(H, 64, 16, generator=stream) * 64**-0.5 * 0.5 for _ in range(2))
    return (scale * (x @ query) @ (x @ key).mT / 4).softmax(-1)


def entropies(weights):
    return [-(one * one.log()).sum(-1).mean().item() for one in weights]


CAUSAL = torch.ones(10, 10, dtype=torch.bool).tril()


def markov(n, seed, V=8):
    """A text in which two characters tell much of the next, and one tells little."""
    stream = torch.Generator().manual_seed(seed)
    ids = [1, 2]
    noise = torch.rand(n, generator=stream).tolist()
    free = torch.randint(0, V, (n,), generator=stream).tolist()
    for i in range(n - 2):
        ids.append((3 * ids[-1] + 5 * ids[-2] + 1) % V if noise[i] < 0.5 else (ids[-1] + free[i] % 3) % V)
    return torch.tensor(ids)


TEXT, NEW = markov(6000, 0), markov(900, 1)


def counted(order, V=8):
    """A model that counts what follows `order` characters in the text."""
    counts = torch.full((V,) * (order + 1), 0.05)
    for i in range(order, len(TEXT)):
        counts[tuple(TEXT[i - order : i + 1].tolist())] += 1
    table = (counts / counts.sum(-1, keepdim=True)).log()

    def predict(ids):
        padded = torch.cat([ids.new_zeros(len(ids), order - 1), ids], dim=1)
        rows = [padded[:, i : i + ids.size(1)] for i in range(order)]
        return table[tuple(rows)]

    return predict


def peeks(ids):
    return 9.0 * F.one_hot(ids.roll(-1, 1), 8).float()


def back(ids, k=3):
    return TABLE[F.pad(ids, (k, 0))[:, : ids.size(1)]]


def by_weights(ids):
    """The same by attention: weights that look three places back, times the tokens."""
    T = ids.size(1)
    scores = torch.full((T, T), -30.0).triu(1) * 10
    scores = scores + 20.0 * torch.eye(T).roll(-3, 1).tril(-3).roll(0) + 20 * torch.diag(torch.ones(T - 3), -3)
    return scores.softmax(-1) @ TABLE[ids]


def looks(H=2, k=3, head=1, sharp=9.0):
    def attend(ids):
        T = ids.size(1)
        scores = torch.zeros(len(ids), H, T, T)
        scores[:, head] += sharp * torch.diag(torch.ones(T - k), -k)
        return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf).softmax(-1)

    return attend


def fills(ids):
    nearby = torch.where(ids == 0, ids.roll(-1, 1), ids)
    return TABLE[nearby] + 0.01 * ids.sum(1)[:, None, None]


def turns(source, inputs):
    return TABLE[source.flip(1)]


def turns_step_by_step(source, inputs):
    return torch.stack([TABLE[source[:, -1 - t]] for t in range(inputs.size(1))], dim=1)


def knows(ids):
    return back(ids) + torch.arange(ids.size(1))[:, None] * 0.01


def frequent(ids):
    """Without positions: the most frequent token of the text, everywhere."""
    return F.one_hot(ids, 10).float().sum(1, keepdim=True).expand(-1, ids.size(1), -1)


def same_token(ids):
    return TABLE[ids]


def models(none=frequent, learned=back, sinusoidal=knows):
    return {"none": none, "learned": learned, "sinusoidal": sinusoidal}


def runs(**change):
    found = []
    for d, h, n in ((32, 4, 2), (64, 4, 2), (32, 2, 2), (32, 4, 1)):
        for seed in range(3):
            loss = 2.0 - d / 100 - n / 10 + 0.02 * seed
            found.append(
                {"d_model": d, "n_heads": h, "n_layers": n, "seed": seed, "parameters": 12 * n * d * d, "loss": loss}
            )
    for run in found:
        run.update({key: value(run) for key, value in change.items()})
    return found


def band(T, window=16):
    place = torch.arange(T)
    return (place[:, None] >= place) & (place[:, None] - place < window)


def windowed(query, key, value, window=16):
    """Each query attends to itself and the 15 keys before it, cut out of the row."""
    T = query.size(2)
    keys, values = (F.pad(x, (0, 0, window - 1, 0)).unfold(2, window, 1) for x in (key, value))  # (B, H, T, E, W)
    scores = (query[:, :, :, None] @ keys)[..., 0, :] / query.size(-1) ** 0.5
    hidden = torch.arange(T)[:, None] + torch.arange(window) < window - 1
    return (values @ scores.masked_fill(hidden, -math.inf).softmax(-1)[..., None])[..., 0]


def linear(query, key, value, normed=True):
    """Sums that grow along the text, in place of a softmax."""
    query, key = F.elu(query) + 1, F.elu(key) + 1
    sums = (key[..., :, None] * value[..., None, :]).cumsum(2)
    top = (query[..., None, :] @ sums)[..., 0, :]
    return top / (query * key.cumsum(2)).sum(-1, keepdim=True) if normed else top


def full(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def full_banded(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=band(query.size(2)))


def means(query, key, value):
    count = torch.arange(1, value.size(2) + 1)[:, None]
    return value.cumsum(2) / count + 0 * (query.sum(-1, keepdim=True) + key.sum(-1, keepdim=True))


def two_sided(query, key, value):
    query, key = F.elu(query) + 1, F.elu(key) + 1
    return query @ (key.mT @ value) / (query * key.sum(2, keepdim=True)).sum(-1, keepdim=True)


TRIGRAM = counted(2)
RIGHT = {
    "classifier, learned positions, mean": ("classifier", lambda: Classifier()),
    "classifier, sinusoids, first": ("classifier", lambda: Classifier(positions="waves", pool="first")),
    "masks, four heads": ("masks_and_heads", CAUSAL, heads(), entropies(heads())),
    "masks, two heads": ("masks_and_heads", CAUSAL.clone(), heads(5, H=2), torch.tensor(entropies(heads(5, H=2)))),
    "characters, two before": ("characters", TRIGRAM, TEXT, NEW, markov(400, 2)),
    "characters, three before": ("own_text", counted(3), TEXT, NEW, markov(150, 3)),
    "heads, two": ("trained_heads", back, looks()),
    "heads, by weights": ("trained_heads", by_weights, looks(H=1, head=0, sharp=5.0)),
    "families": ("families", fills, back, turns),
    "families, other": ("families", fills, by_weights, turns_step_by_step),
    "positions": ("positions", models()),
    "positions, other": ("positions", models(none=same_token, learned=knows, sinusoidal=back)),
    "sizes": ("sizes", runs(), 4.6),
    "sizes, no effect": ("sizes", runs(loss=lambda run: 2.0 + 0.1 * run["seed"]), 4.6),
    "efficient, window": ("efficient", windowed),
    "efficient, linear": ("efficient", linear),
}
flat = Classifier(positions="none")
WRONG = {
    "classifier: no positions": ("the order of the words counts", "classifier", lambda: Classifier(positions="none")),
    "classifier: padding attended": ("padding, id 0", "classifier", lambda: Classifier(masked=False)),
    "classifier: padding in the mean": ("padding, id 0", "classifier", lambda: Classifier(pool="all")),
    "classifier: one layer": ("weights; the table", "classifier", lambda: Classifier(layers=1)),
    "classifier: ten classes": ("expected the shape (3, 7)", "classifier", lambda: Classifier(classes=10)),
    "classifier: cut gradient": ("no gradient reaches", "classifier", lambda: Classifier(blocked=True)),
    "masks: turned": ("above the diagonal", "masks_and_heads", CAUSAL.T, heads(), entropies(heads())),
    "masks: strict": ("the rows see [0, 1", "masks_and_heads", CAUSAL.tril(-1), heads(), entropies(heads())),
    "masks: numbers": ("expected booleans", "masks_and_heads", CAUSAL.float(), heads(), entropies(heads())),
    "masks: one head twice": ("heads differ", "masks_and_heads", CAUSAL, uniform(10), [math.log(10)] * 4),
    "masks: bits": ("you gave", "masks_and_heads", CAUSAL, heads(), [x / math.log(2) for x in entropies(heads())]),
    "masks: over queries": ("is a distribution", "masks_and_heads", CAUSAL, heads(scale=3).mT, [2.2] * 4),
    "masks: sharp": ("yours are sharp", "masks_and_heads", CAUSAL, heads(scale=60), entropies(heads(scale=60) + 1e-30)),
    "characters: peeks": ("no score depends on a later", "characters", peeks, TEXT, NEW, markov(400, 2)),
    "characters: pairs only": ("below that of counted pairs", "characters", counted(1), TEXT, NEW, markov(400, 2)),
    "characters: probabilities": (
        "below that of counted pairs",
        "characters",
        lambda ids: TRIGRAM(ids).exp(),
        TEXT,
        NEW,
        markov(400, 2),
    ),
    "characters: known text": (
        "stand in the training text",
        "characters",
        TRIGRAM,
        TEXT,
        TEXT[500:1400],
        markov(400, 2),
    ),
    "characters: shuffled sample": ("no more order", "characters", TRIGRAM, TEXT, NEW, NEW[torch.randperm(400)]),
    "characters: copied sample": ("word for word", "characters", TRIGRAM, TEXT, NEW, TEXT[:400]),
    "heads: two back": ("right on new texts", "trained_heads", lambda ids: back(ids, 2), looks()),
    "heads: even": ("weight three places back", "trained_heads", back, looks(sharp=0.0)),
    "heads: scores": ("is a distribution", "trained_heads", back, lambda ids: looks()(ids) * 5),
    "heads: elsewhere": ("weight three places back", "trained_heads", back, looks(k=2)),
    "heads: later": ("on a later token", "trained_heads", back, lambda ids: looks()(ids).flip(-1)),
    "heads: one text": ("expected weights", "trained_heads", back, lambda ids: looks()(ids)[0]),
    "families: encoder looks left": ("a change of the last", "families", back, back, turns),
    "families: decoder looks ahead": (
        "decoder: no score depends",
        "families",
        fills,
        lambda x: back(x) + fills(x),
        turns,
    ),
    "families: source unread": ("hidden tokens filled in", "families", same_token, back, turns),
    "families: target seen": (
        "does it read the source",
        "families",
        fills,
        back,
        lambda source, inputs: TABLE[F.pad(inputs, (0, 1))[:, 1:]],
    ),
    "families: not turned": ("texts turned round", "families", fills, back, lambda source, inputs: TABLE[source]),
    "positions: none knows": ("none: reordered", "positions", models(none=back)),
    "positions: learned does not": ("learned: the order counts", "positions", models(learned=same_token)),
    "positions: untrained": ("sinusoidal: right on new", "positions", models(sinusoidal=lambda ids: back(ids, 2))),
    "positions: one missing": ("expected a dict", "positions", {"none": frequent}),
    "sizes: two seeds": ("three seeds or more", "sizes", [run for run in runs() if run["seed"] < 2], 4.6),
    "sizes: seed unused": ("was the seed used", "sizes", runs(loss=lambda run: 2.0), 4.6),
    "sizes: not divided": ("do not divide", "sizes", runs(n_heads=lambda run: run["n_heads"] + 1), 4.6),
    "sizes: worse than guessing": ("guessing evenly", "sizes", runs(loss=lambda run: 5.0 + run["seed"]), 4.6),
    "sizes: heads cost": (
        "more heads cost no weights",
        "sizes",
        runs(parameters=lambda run: run["n_heads"] * run["n_layers"] * run["d_model"] ** 2),
        4.6,
    ),
    "sizes: layers fixed": ("n_layers differ in", "sizes", [run for run in runs() if run["n_layers"] == 2], 4.6),
    "efficient: full": ("expected below 6", "efficient", full),
    "efficient: masked full": ("expected below 6", "efficient", full_banded),
    "efficient: both sides": ("no output depends on later", "efficient", two_sided),
    "efficient: not normed": ("ones come back", "efficient", lambda q, k, v: linear(q, k, v, normed=False)),
    "efficient: plain mean": ("the query counts", "efficient", means),
}
WRONG["sizes: layers fixed"] = ("no two sizes differ in n_layers", *WRONG["sizes: layers fixed"][1:])


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_of_different_kinds_pass(capsys, name):
    torch.manual_seed(0)
    assert verdict(capsys, *RIGHT[name]) == ""


@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_are_named(capsys, name):
    torch.manual_seed(0)
    says, *answer = WRONG[name]
    assert says in verdict(capsys, *answer)


def test_each_task_has_two_right_and_four_wrong_answers():
    for task in capstones.TASKS:
        alike = {"own_text": "characters"}.get(task, task)
        right = [one for one in RIGHT.values() if {"own_text": "characters"}.get(one[0], one[0]) == alike]
        assert len(right) >= 2, task
        assert len([one for one in WRONG.values() if one[1] == alike]) >= 4, task


def test_an_empty_answer_is_not_attempted_and_strange_ones_get_a_line(capsys):
    assert not check(Progress(), "efficient", ...)
    assert capsys.readouterr().out == "efficient: not attempted yet.\n"
    assert not check(Progress(), "efficient")
    assert "not attempted" in capsys.readouterr().out
    assert "ValueError: odd" in verdict(capsys, "efficient", _raises)
    assert "TypeError" in verdict(capsys, "efficient", 3)
    with pytest.raises(ValueError, match="expected one of classifier"):
        check(Progress(), "nothing", 1)


def _raises(*given):
    raise ValueError("odd")


def test_the_answer_is_kept_at_the_desk(tmp_path, capsys):
    desk = Desk(tmp_path)
    desk.private.mkdir()
    check(Progress(lambda: desk), "efficient", windowed)
    check(Progress(lambda: desk), "sizes", runs(loss=lambda run: 2.0), 4.6)
    assert "def windowed" in desk.latest_answer("capstone_efficient", right=True)
    assert desk.progress()["capstone_sizes"]["verdict"] == "wrong"


def test_the_small_tasks_are_as_described():
    ids, labels = three_back(4, seed=1)
    assert torch.equal(labels[:, 3:], ids[:, :-3])
    hidden, filled = fill_in(5, seed=1)
    assert ((hidden == 0).sum(1) == 1).all()
    row, place = (filled != -100).nonzero(as_tuple=True)
    assert torch.equal(filled[row, place], hidden[row, place + 1])
    source, inputs, turned = reverse(3, seed=1)
    assert torch.equal(source.flip(1), turned)
    assert torch.equal(inputs[:, 1:], turned[:, :-1])
