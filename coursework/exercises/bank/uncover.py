"""Exercise: the loop by which a masked diffusion model writes. Judged by the text, and by what the model read."""

import math

import torch

from coursework.exercises.bank.diffusion_loss import Reader
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers, normal


@torch.no_grad()
def uncover(model, ids, per_pass, choose, mask_id):
    """a model, ids (B, T), a number, a function, an id -> ids (B, T), nothing hidden"""
    while (hidden := ids == mask_id).any():
        words, certainty = choose(model(ids))  # (B, T) each
        certainty = certainty.masked_fill(~hidden, -math.inf)  # visible words come last
        best = certainty.topk(per_pass).indices  # (B, per_pass)
        new = torch.zeros_like(hidden).scatter(1, best, True) & hidden
        ids = torch.where(new, words, ids)
    return ids


def _choose(logits):
    """The likeliest words, and their probabilities, made different at each position."""
    best = logits.softmax(dim=-1).max(dim=-1)
    return best.indices, best.values / (1 + 0.0171 * torch.arange(logits.size(1)))


def _run(uncover, ids, per_pass, table):
    """The text, and the ids that the model read in each pass."""
    reader = Reader(table)
    return {"text": uncover(reader, ids, per_pass, _choose, table.size(1)), "read": reader.read}


def _model(rank="certain", scope="text", known="kept", reads="each"):
    """The loop whose settings are the misconceptions."""

    def loop(model, ids, per_pass, choose, mask_id):
        first = None
        for _ in range(ids.numel()):  # enough, and an end even if asked for 0 words in each pass
            hidden = ids == mask_id
            if not hidden.any():
                break
            first = choose(model(ids)) if first is None or reads == "each" else first
            words, certainty = first
            if rank == "least":
                certainty = 1 - certainty
            elif rank == "left":
                certainty = (1 - torch.arange(ids.size(1)) / 1000).expand_as(certainty)
            certainty = certainty.masked_fill(~hidden, -1)
            size = (1, -1) if scope == "batch" else ids.shape
            best = certainty.reshape(size).argsort(dim=1, descending=True, stable=True)[:, :per_pass]
            new = torch.zeros_like(hidden).reshape(size).scatter(1, best, True).reshape(ids.shape)
            ids = torch.where(new & hidden if known == "kept" else new, words, ids)
        return ids

    return loop


@torch.no_grad()
def _by_rank(model, ids, per_pass, choose, mask_id):
    hidden = ids == mask_id
    while hidden.any():
        words, certainty = choose(model(ids))
        order = torch.where(hidden, certainty, certainty - 2).argsort(dim=1, descending=True)
        rank = order.argsort(dim=1)  # 0 for the most certain word of each text
        ids = torch.where(hidden & (rank < per_pass), words, ids)
        hidden = ids == mask_id
    return ids


def _text_by_text(model, ids, per_pass, choose, mask_id):
    ids = ids.clone()
    while bool((ids == mask_id).any()):
        with torch.no_grad():
            words, certainty = choose(model(ids))
        for text, word, sure in zip(ids, words, certainty, strict=True):
            (places,) = torch.where(text == mask_id)
            places = places[sure[places].argsort(descending=True)][:per_pass]
            text[places] = word[places]
    return ids


def _with_counted_passes(model, ids, per_pass, choose, mask_id):
    ids = ids.clone()
    most = int((ids == mask_id).sum(dim=1).max())
    for _ in range(math.ceil(most / per_pass)):
        with torch.no_grad():
            words, certainty = choose(model(ids))
        hidden = ids.eq(mask_id)
        least = certainty.where(hidden, certainty.new_tensor(-1.0)).sort(dim=1, descending=True).values
        new = hidden & (certainty >= least[:, per_pass - 1 : per_pass])
        ids[new] = words[new]
    return ids


@maker
def _case(B, T, V, per_pass, seed, hidden=1.0):
    ids, chance = integers(B, T, low=0, high=V - 1, seed=seed), integers(B, T, low=0, high=99, seed=seed + 1)
    return {
        "ids": ids.masked_fill(chance < 100 * hidden, V),
        "per_pass": per_pass,
        "table": normal(V + 4, V, seed=seed + 2, grad=False),
    }


def _uneven():
    return _case(2, 5, 4, 2, seed=41)() | {"ids": torch.tensor([[4, 2, 4, 4, 1], [0, 3, 4, 1, 2]])}


def _sample(draw):
    B, T, V = draw.integer(1, 3), draw.integer(1, 6), draw.integer(2, 7)
    ids = draw.integers(B, T, low=0, high=V - 1)
    return {
        "ids": ids.masked_fill(draw.mask(B, T), V),
        "per_pass": draw.integer(1, T),
        "table": draw.normal(V + 4, V, grad=False),
    }


def _visible_words_stay(call) -> str | None:
    made = _uneven()
    text, known = call(**made)["text"], made["ids"] != 4
    if torch.equal(text[known], made["ids"][known]):
        return None
    return "A word that was visible from the start has been changed."


def _number_of_passes(call) -> str | None:
    made = _case(1, 6, 5, 2, seed=61)()
    passes = len(call(**made)["read"])
    if passes == 3:
        return None
    return f"For 6 hidden words, 2 in each pass, the model was called {passes} times."


EXERCISE = Exercise(
    title="Write in any order",
    what="""Write `uncover(model, ids, per_pass, choose, mask_id)`. In `ids` (B, T) some words are hidden, as `mask_id`.
In each pass the model reads the whole batch once, `model(ids)`, and `choose` makes of its logits two tensors (B, T):
a word for each position, never `mask_id`, and how certain it is, between 0 and 1, no two equal. In **each text** write
the `per_pass` most certain of the words that are still hidden, or all that are left. Visible words never change. Go
on until nothing is hidden, and return the new ids. `per_pass` is from 1 to T. The ids given stay as they are.""",
    why="The same loop writes a whole text, fills a gap in the middle, or goes on from a beginning.",
    difficulty=4,
    minutes=18,
    reference=uncover,
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
all-at-once (reads="once"): takes all words from the first reading, of a text in which they are still hidden
    What should the second pass know that the first one did not?
least-certain-first (rank="least"): writes the least certain words first
    Which words should later passes be able to read, the certain ones or the doubtful ones?
left-to-right (rank="left"): writes from left to right, whatever is certain
    What do you do with the second tensor that `choose` returns?
rewrites-known-words (known="rewritten"): also changes visible words, where fewer than `per_pass` are hidden
    If one word of a text is hidden and per_pass is 3, which positions does your code write?
shared-by-the-batch (scope="batch"): writes `per_pass` words in the whole batch
    Along which dimension do you compare certainties?
"""),
    cases=[
        Case("one text of 4 words, all hidden, one in each pass", _case(1, 4, 3, 1, seed=1)),
        Case("one text of 5 words, 2 in each pass", _case(1, 5, 4, 2, seed=11)),
        Case("2 texts of 7 words, some in sight, 2 in each pass", _case(2, 7, 5, 2, seed=21, hidden=0.6)),
        Case("3 texts of 6 words, 3 in each pass", _case(3, 6, 8, 3, seed=31)),
        Case("3 words hidden in one text, 1 in the other, 2 in each pass", _uneven),
        Case("nothing hidden", _case(2, 3, 4, 1, seed=51, hidden=0.0)),
        Case("all in one pass", _case(3, 4, 5, 4, seed=71)),
    ],
    properties=[
        Property("Visible words never change.", _visible_words_stay),
        Property("Each pass writes `per_pass` words.", _number_of_passes),
    ],
    alternatives=[
        Alternative("by rank", _by_rank),
        Alternative("text by text", _text_by_text),
        Alternative("with counted passes", _with_counted_passes),
    ],
    hints=(
        "Which positions may compete in a pass, and what happens in a text with fewer of them than `per_pass`?",
        "Give visible words a certainty below all others, take the `per_pass` largest of each row, and mark them in a "
        "tensor of booleans. Then leave out of it what was not hidden.",
        """while (hidden := ids == mask_id).any():
    words, certainty = choose(model(ids))
    best = ...  # (B, per_pass)
    new = ____  # (B, T), True: written in this pass
    ids = torch.where(new, words, ids)
return ids""",
    ),
    sample=_sample,
    gradients=False,
)
