"""Exercise: the loss of masked diffusion. Judged by the loss, its gradient, and what the model was given to read."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers, normal


def diffusion_loss(model, ids, t, chance, mask_id):
    """a model, ids (B, T), t (B,), chance (B, T), an id -> nats of each text (B,)"""
    hidden = chance < t[:, None]  # (B, T): in text b, a share t[b] of the words
    logits = model(ids.masked_fill(hidden, mask_id))  # (B, T, V)
    losses = F.cross_entropy(logits.mT, ids, reduction="none")  # (B, T)
    return (losses * hidden).sum(dim=1) / t


class Reader:
    """Stands for a model: logits (B, T, V) that follow from the whole text; it notes what it reads."""

    def __init__(self, table):
        self.table, self.read = table, []

    def __call__(self, ids):
        """Ids (B, T) -> logits (B, T, V)."""
        self.read.append(ids.clone())
        where = 3 * torch.arange(ids.size(1)) + 2 * ids + (ids + 1).sum(dim=1, keepdim=True)  # (B, T)
        return self.table[where % len(self.table)]


def _run(diffusion_loss, ids, t, chance, mask_id, table):
    """The loss, and the ids that the model read."""
    reader = Reader(table)
    return {"loss": diffusion_loss(reader, ids, t, chance, mask_id), "read": reader.read}


def _model(over="t", counted="hidden", reads="hidden", side="below", words="sum"):
    """The loss whose settings are the misconceptions."""

    def loss(model, ids, t, chance, mask_id):
        t = t[:, None]
        hidden = chance < t if side == "below" else chance >= t
        logits = model(torch.where(hidden, mask_id, ids) if reads == "hidden" else ids)
        losses = -logits.log_softmax(dim=-1).gather(2, ids[:, :, None])[:, :, 0]  # (B, T)
        kept = losses * hidden if counted == "hidden" else losses
        divisor = {"t": t[:, 0], "one": 1 + 0 * t[:, 0], "first t": t[0, 0], "hidden": hidden.sum(1).clamp(min=1)}[over]
        return kept.sum(dim=1) / divisor / (ids.size(1) if words == "mean" else 1)

    return loss


def _by_picking_the_hidden(model, ids, t, chance, mask_id):
    hidden = chance < t.unsqueeze(1)
    logits = model(torch.where(hidden, mask_id, ids))
    losses = F.cross_entropy(logits[hidden], ids[hidden], reduction="none")  # (hidden words,)
    return torch.zeros_like(chance).masked_scatter(hidden, losses).sum(dim=1) / t


def _with_ignored_labels(model, ids, t, chance, mask_id):
    hidden = chance < t[:, None]
    labels = ids.masked_fill(~hidden, -100)
    losses = F.cross_entropy(model(ids.masked_fill(hidden, mask_id)).mT, labels, ignore_index=-100, reduction="none")
    return losses.sum(dim=1) / t


def _text_by_text(model, ids, t, chance, mask_id):
    hidden = torch.stack([row < share for row, share in zip(chance, t, strict=True)])
    log_probabilities = model(ids.masked_fill(hidden, mask_id)).log_softmax(dim=-1)
    found = []
    for b in range(len(ids)):
        right = log_probabilities[b].gather(1, ids[b][:, None])[:, 0]  # (T,)
        found.append(-right[hidden[b]].sum() / t[b])
    return torch.stack(found)


@maker
def _case(B, T, V, seed, t=None, dtype=torch.float32, scale=1.0):
    t = (integers(B, low=1, high=4, seed=seed + 1) / 5).tolist() if t is None else t
    return {
        "ids": integers(B, T, low=0, high=V - 1, seed=seed),
        "t": torch.tensor(t, dtype=dtype),
        "chance": (integers(B, T, low=0, high=99, seed=seed + 2).to(dtype) + 0.5) / 100,
        "mask_id": V,
        "table": normal(V + 3, V, seed=seed + 3, scale=scale, dtype=dtype),
    }


def _by_hand():
    made = _case(1, 4, 3, seed=1, t=[0.25])()
    return made | {"chance": torch.tensor([[0.9, 0.1, 0.6, 0.4]])}  # one of four words is hidden


def _sample(draw):
    B, T, V, dtype = draw.integer(1, 4), draw.integer(1, 6), draw.integer(2, 7), draw.dtype()
    t = draw.integers(B, low=1, high=20).to(dtype) / 20
    chance = (draw.integers(B, T, low=0, high=99).to(dtype) + 0.5) / 100
    chance[:, -1] = t  # which is not below t
    chance[:, 0] = 0.005  # something is hidden in each text
    return {
        "ids": draw.integers(B, T, low=0, high=V - 1),
        "t": t,
        "chance": chance,
        "mask_id": V,
        "table": draw.normal(V + 3, V, scale=draw.choice([1.0, 5.0]), dtype=dtype),
    }


def _ignorance_costs_the_same(call) -> str | None:
    """A model that knows nothing costs ln V for each word of a text on average, at any share."""
    T, V = 10, 5
    for share in (0.2, 0.5):
        chance = torch.arange(T)[None] / T + 0.05
        made = {"ids": torch.zeros(1, T, dtype=torch.long), "t": torch.tensor([share]), "chance": chance, "mask_id": V}
        found = float(call(**made, table=torch.zeros(V, V))["loss"][0])
        if not math.isclose(found, T * math.log(V), rel_tol=1e-4):
            return f"Guessing costs {found:.3f} at t = {share}; {T} words, each ln {V}, are {T * math.log(V):.3f}."
    return None


EXERCISE = Exercise(
    title="The loss of a model that writes in any order",
    what="""Write `diffusion_loss(model, ids, t, chance, mask_id)`. Text b has a share `t[b]` of its own, above 0 and at
most 1. Hide each of its words where `chance < t[b]`: the model reads `mask_id` there. `model(ids)` makes logits
(B, T, V) of ids (B, T). The loss of a hidden word is the cross-entropy of the word that stood there, divided by the
text's `t`; visible words cost nothing. Return the sum for each text, (B,). `ids` stays as it is; `t`, `chance` and the
logits have one dtype.""",
    why="This is all that changes in the training when an encoder learns to write.",
    difficulty=3,
    minutes=12,
    reference=diffusion_loss,
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
not-weighted (over="one"): does not divide by t
    For how many words must one hidden word stand if only one in ten is hidden?
one-share-for-all (over="first t"): divides all texts by the share of the first
    How many different shares are there in your batch?
mean-of-the-hidden-words (over="hidden"): divides by the number of words that happened to be hidden
    By which number does the task divide, and is it always the number of hidden words?
counts-the-words-in-sight (counted="all"): counts the loss of the visible words, too
    What does a model learn from a word that it can read?
reads-the-whole-text (reads="all"): gives the model the text with nothing hidden
    What does the model read where it is asked?
hides-the-others (side="above"): hides a word where its chance is at least t
    With t = 1, which words should be hidden?
mean-of-the-words (words="mean"): returns nats per word
    How much should a text of twenty words cost, beside a text of ten?
"""),
    cases=[
        Case("one text of 4 words, one of them hidden, t = 0.25", _by_hand),
        Case("2 texts of 5 words, t = 0.2 and 0.8", _case(2, 5, 4, seed=11, t=[0.2, 0.8])),
        Case("3 texts of 7 words", _case(3, 7, 5, seed=21)),
        Case("all words hidden", _case(2, 3, 6, seed=31, t=[1.0, 1.0])),
        Case("float64", _case(4, 6, 3, seed=41, dtype=torch.float64)),
    ],
    properties=[Property("Guessing costs T ln V at any share.", _ignorance_costs_the_same)],
    alternatives=[
        Alternative("by picking the hidden words", _by_picking_the_hidden),
        Alternative("with labels that are ignored", _with_ignored_labels),
        Alternative("word by word", _text_by_text),
    ],
    hints=(
        "Which shape has `t`, which has `chance`, and how do you compare the two text by text?",
        '`F.cross_entropy` takes logits (B, V, T) and ids (B, T); with `reduction="none"` it gives one loss for each '
        "word. What is not hidden is multiplied away.",
        """hidden = chance < t[:, None]
logits = model(ids.masked_fill(hidden, mask_id))
losses = F.cross_entropy(logits.mT, ids, reduction="none")  # (B, T)
return ____  # (B,)""",
    ),
    sample=_sample,
    tries=("float64",),
)
