"""Exercise: the nucleus filter."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def top_p_filter(logits, p):
    """(B, V), number in (0, 1] -> (B, V): the logits, -inf for tokens that are cut"""
    ordered, order = logits.sort(descending=True)
    probability = ordered.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability  # of the more likely tokens together
    cut = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= p)  # back to the order of logits
    return logits.masked_fill(cut, -math.inf)


def _model(crossing="kept", order="restored", rank="descending", sums="probabilities", fill="minus-infinity",
           kind="sum", rows="each"):  # fmt: skip
    """A filter whose settings are the misconceptions."""

    def nucleus(logits, p):
        ordered, places = logits.sort(dim=-1, descending=rank == "descending")
        if sums == "logits":
            probability = ordered
        elif rows == "batch":
            probability = ordered.softmax(dim=0)
        else:
            probability = ordered.softmax(dim=-1)
        total = probability.cumsum(dim=-1)
        if crossing == "kept":
            drop = total - probability >= p
        elif crossing == "dropped-but-one":
            drop = total > p
            drop[..., 0] = False
        elif crossing == "one-too-many":
            drop = total - probability >= p
            drop = torch.cat([torch.zeros_like(drop[..., :1]), drop[..., :-1]], dim=-1)
        else:
            drop = total > p
        if kind == "threshold":
            drop = probability < p
        elif kind == "relative":
            drop = probability < p * probability.amax(dim=-1, keepdim=True)
        elif kind == "complement":
            drop = total - probability >= 1 - p
        elif kind == "inverted":
            drop = ~drop
        if rows == "first":
            drop = drop[:1].expand_as(drop)
        if order == "restored":
            drop = torch.zeros_like(drop).scatter(-1, places, drop)
        elif order == "gathered":
            drop = drop.gather(-1, places)
        if order == "sorted-logits":
            return ordered.masked_fill(drop, -math.inf)
        value = {"minus-infinity": -math.inf, "zero": 0.0, "small": -1e4}.get(fill)
        if fill == "renormalised":
            return logits.masked_fill(drop, -math.inf).softmax(dim=-1)
        return logits.masked_fill(drop, value)

    return nucleus


def _with_a_loop(logits, p):
    rows = []
    for row in logits:
        probability = row.softmax(dim=0)
        kept, total = [], 0.0
        for token in probability.argsort(descending=True).tolist():
            if total >= p:
                break
            kept.append(token)
            total += probability[token].item()
        keep = torch.zeros(len(row), dtype=torch.bool)
        keep[kept] = True
        rows.append(torch.where(keep, row, -math.inf))
    return torch.stack(rows)


def _with_comparison(logits, p):
    probability = logits.softmax(dim=-1)
    more_likely = probability[:, None, :] > probability[:, :, None]  # (B, V, V): is the second likelier than the first?
    before = (more_likely * probability[:, None, :]).sum(dim=-1)  # (B, V)
    return torch.where(before < p, logits, -math.inf)


def _by_undoing_the_order(logits, p):
    order = logits.argsort(dim=-1, descending=True)
    total = logits.softmax(dim=-1).gather(-1, order).cumsum(dim=-1)
    keep = torch.cat([torch.ones_like(total[:, :1], dtype=torch.bool), total[:, :-1] < p], dim=-1)  # shifted by one
    return logits.masked_fill(~keep.gather(-1, order.argsort(dim=-1)), -math.inf)


def _with_course(logits, p):
    from course_lib.generation import top_p_filter

    return top_p_filter(logits, p)


def _rows(*rows, p, dtype=torch.float32):
    return lambda: (torch.tensor(rows, dtype=torch.float64).log().to(dtype).requires_grad_(), p)


def _at_random(B, V, seed, p, dtype=torch.float32, scale=2.0):
    return lambda: (_distinct(normal(B, V, seed=seed, dtype=torch.float64, grad=False, scale=scale), dtype), p)


def _distinct(logits, dtype):
    """Move equal logits of a row apart: which of them is cut would depend on how ties are sorted."""
    return (logits + 0.0037 * torch.arange(logits.size(-1))).to(dtype).requires_grad_()


def _clear(logits, p):
    """A p that is not within rounding of any sum of probabilities."""
    ordered = logits.detach().double().sort(dim=-1, descending=True).values
    total = ordered.softmax(dim=-1).cumsum(dim=-1)
    while (total - p).abs().min() < 1e-4:
        p -= 0.00021
    return p


def _sample(draw):
    dtype = draw.dtype()
    logits = _distinct(draw.normal(draw.integer(1, 4), draw.integer(1, 9), dtype=torch.float64, grad=False), dtype)
    return logits, _clear(logits, draw.integer(3, 98) / 100)


def _enough_and_no_more(nucleus) -> str | None:
    logits, p = _at_random(3, 7, seed=71, p=0.7)()
    probability, kept = logits.softmax(-1), nucleus(logits, p).isfinite()
    for row in range(3):
        together = probability[row][kept[row]]
        if together.sum() < p:
            return f"In row {row} the kept tokens have probability {together.sum():.3f} together, below p = {p}."
        if together.sum() - together.min() >= p:
            return f"In row {row} one of the {len(together)} kept tokens could go, and p = {p} would still be reached."
    return None


EXERCISE = Exercise(
    title="The nucleus: top-p",
    what="""Write `top_p_filter(logits, p)`. For each row, keep the fewest tokens, the most likely first, whose
probabilities add up to at least `p`: the token with which the sum reaches `p` is kept, the next one is not. So at least
one token is always kept. Return the logits in their old order, with minus infinity for the tokens that are cut. A sort
can be undone. For `x` = [2, 9, 5]:

- `ordered, order = x.sort(descending=True)` gives [9, 5, 2] and the old positions [1, 2, 0];
- `i = order.argsort()` is [2, 0, 1]: where 2, 9 and 5 stand now;
- `ordered.gather(-1, i)` takes from each row its elements at the positions `i`, so it is [2, 9, 5] again.

`p` is above 0 and at most 1. The tests contain no ties, and no sum of probabilities so near to `p` that rounding could
decide.""",
    why="""It is the filter that most chat systems offer. If you also cut the token that reaches `p`, you may keep
nothing, and if you forget to undo the sorting, you cut the wrong tokens.""",
    difficulty=3,
    minutes=15,
    reference=top_p_filter,
    model=_model,
    misconceptions=misconceptions("""
crossing-token-dropped (crossing="dropped"): also cuts the token with which the sum reaches p
    If the first token has probability 0.9 and p is 0.8, what is left of your row?
crossing-token-dropped-except-the-first (crossing="dropped-but-one"): cuts the token with which the sum reaches p unless
        it is the most likely one
    How much probability do the tokens that you keep have together: at least p?
one-token-too-many (crossing="one-too-many"): keeps one token more after the sum has reached p
    Could one of the tokens that you keep go, with p still reached?
mask-left-sorted (order="left"): applies a decision made for sorted places to unsorted logits
    To which token does the first entry of your cumulative sum belong?
order-undone-the-wrong-way (order="gathered"): sorts the decision a second time in place of undoing the order
    For three tokens whose order is 2, 0, 1: where must the decision on the most likely one go?
logits-returned-sorted (order="sorted-logits"): returns the logits in sorted order
    Which token does column 0 of your result stand for?
least-likely-first (rank="ascending"): adds up from the least likely token
    Which token must be kept in any case, and where does it stand in your order?
adds-logits (sums="logits"): adds up logits in place of probabilities
    What do the numbers that you add up sum to in total?
threshold-on-each-token (kind="threshold"): keeps each token whose own probability is at least p
    Is p a bound on one token's probability, or on that of several together?
min-p (kind="relative"): keeps the tokens that are at least p times as likely as the most likely one
    Where in your function are probabilities added up?
cuts-p-keeps-the-rest (kind="complement"): keeps tokens until they have probability 1 - p together
    With p close to 1, should much be cut or little?
keeps-the-tail (kind="inverted"): cuts the likely tokens and keeps the others
    Which token must be kept in any case?
fills-with-zero (fill="zero"): gives the tokens that are cut the logit 0
    What probability does a token of logit 0 have after softmax?
fills-with-a-finite-number (fill="small"): gives the tokens that are cut a logit of -10000
    Which number does the task ask for?
returns-probabilities (fill="renormalised"): returns probabilities in place of logits
    What will softmax do to your result a second time?
softmax-over-the-batch (rows="batch"): takes the softmax over the batch
    Which axis holds the tokens that compete with each other?
first-row-decides (rows="first"): cuts as many tokens in every row as in the first
    Does each row keep the same number of tokens?
"""),
    cases=[
        Case("1 row of 3 tokens in falling order", _rows([0.6, 0.3, 0.1], p=0.7)),
        Case("1 row of 3 tokens in rising order", _rows([0.1, 0.3, 0.6], p=0.7)),
        Case("a first token that reaches p alone", _rows([0.05, 0.9, 0.05 * 0.7, 0.05 * 0.3], p=0.8)),
        Case("2 rows of 5 tokens", _rows([0.15, 0.3, 0.05, 0.4, 0.1], [0.02, 0.03, 0.9, 0.01, 0.04], p=0.75)),
        Case("logits far from zero", lambda: (torch.tensor([[51.0, 48.0, 50.0, 49.5]]).requires_grad_(), 0.6)),
        Case("p = 0.95", _at_random(2, 5, seed=5, p=0.95, scale=1.0)),
        Case("3 rows of 7 tokens, p = 0.7", _at_random(3, 7, seed=21, p=0.7)),
        Case("4 rows of 11 tokens, p = 0.35", _at_random(4, 11, seed=31, p=0.35, scale=1.0)),
        Case("float64", _at_random(2, 7, seed=41, p=0.8, dtype=torch.float64)),
        Case("one token", lambda: (torch.tensor([[0.5], [-2.0]]).requires_grad_(), 0.3)),
    ],
    properties=[Property("The kept tokens reach p together, and none of them could go.", _enough_and_no_more)],
    alternatives=[
        Alternative("with loops, stopping when p is reached", _with_a_loop),
        Alternative("without sorting, each token against each", _with_comparison),
        Alternative("with a sum that is shifted by one, and the order undone by its own order", _by_undoing_the_order),
        Alternative("the course's own function, which also checks its arguments", _with_course),
    ],
    gradients=False,
    hints=(
        "A token is kept if the tokens before it, the more likely ones, have not yet reached p. What is that for the "
        "most likely one?",
        "Sort, take the softmax, add up without the token itself. The decision is then in sorted order: `scatter` with "
        "the order of the sort takes it back.",
        """ordered, order = logits.sort(dim=-1, descending=True)
probability = ordered.softmax(dim=-1)
cut = ____  # in sorted order: is p reached before this token?
...  # back to the order of logits
return ...""",
    ),
    sample=_sample,
    tries=("float64", "large", "shifted", "low scores"),
    equivalent_mutants={
        "before >= p -> before > p": "no case rests on a sum that equals p",
        "torch.zeros_like -> torch.ones_like": "scatter writes every place",
    },
)
