"""Exercise: weights under a mask, where a query may be left with nothing."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def masked_softmax(scores, mask):
    """Scores (B, H, T, S), bool mask that broadcasts to them -> weights (B, H, T, S)"""
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    empty = ~mask.any(dim=-1, keepdim=True)  # queries that may attend to nothing
    return weights.masked_fill(empty, 0.0)


_LOWEST = torch.finfo(torch.float32).min


def _model(
    place="before", fill=-math.inf, empty="zero", axis=-1, inverted=False, softmax="stable", how="fill", fits=False
):
    """A masked softmax whose settings are the misconceptions."""

    def weigh(scores, mask):
        visible = ~mask if inverted else mask
        hidden = scores
        if place == "before" and how == "add":
            hidden = scores + torch.zeros(visible.shape, dtype=scores.dtype).masked_fill(~visible, fill)
        elif place == "before":
            lowest = max(fill, torch.finfo(scores.dtype).min) if fill == _LOWEST or fits else fill
            hidden = scores.masked_fill(~visible, lowest)
        elif place == "product":
            hidden = scores * visible
        if softmax == "plain":
            powers = hidden.exp()
            weights = powers / powers.sum(axis, keepdim=True)
        elif softmax == "maximum-kept-up":
            lowest = max(-1e9, torch.finfo(scores.dtype).min)
            powers = (hidden - hidden.detach().amax(axis, keepdim=True).clamp(min=lowest)).exp()
            total = powers.sum(axis, keepdim=True)
            weights = powers / total.masked_fill(total == 0, 1.0)
        else:
            weights = hidden.softmax(axis)
        if place in ("after", "shared-out", "shared-out-safely"):
            weights = weights * visible
        if place == "shared-out":
            weights = weights / weights.sum(-1, keepdim=True)
        elif place == "shared-out-safely":
            weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
        if empty == "zero":
            return weights.masked_fill(~visible.any(-1, keepdim=True), 0.0)
        return weights.nan_to_num(0.0) if empty == "replace" else weights

    return weigh


def _with_where(scores, mask):
    hidden = torch.where(mask, scores, -math.inf)
    return hidden.softmax(dim=-1).nan_to_num(0.0)  # only empty rows hold NaN


def _with_open_rows(scores, mask):
    empty = ~mask.any(dim=-1, keepdim=True)
    # Open the empty rows, so that no NaN arises at all, and zero them afterwards.
    return scores.masked_fill(~(mask | empty), -math.inf).softmax(dim=-1) * ~empty


def _with_loops(scores, mask):
    rows = scores.reshape(-1, scores.size(-1))
    weights = torch.zeros_like(rows)
    for number, visible in enumerate(mask.expand_as(scores).reshape(rows.shape)):
        if visible.any():
            weights[number, visible] = rows[number, visible].softmax(dim=0)
    return weights.reshape(scores.shape)


def _with_sums(scores, mask):
    largest = scores.masked_fill(~mask, -math.inf).amax(dim=-1, keepdim=True)
    largest = largest.masked_fill(largest == -math.inf, 0.0)
    powers = (scores - largest).masked_fill(~mask, -math.inf).exp()  # hidden keys become exactly 0
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total.masked_fill(total == 0, 1.0)


def _case(*shape, seed, mask, dtype=torch.float32, scale=1.0):
    return lambda: (normal(*shape, seed=seed, dtype=dtype, scale=scale), mask())


def _causal(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def _padding():
    return torch.tensor([[True, True, True, True, True], [True, True, True, False, False]])[:, None, None, :]


def _left_padding():
    """Causal and padded at the start: the first queries of example 1 see nothing."""
    return _causal(3, 3) & torch.tensor([[True, True, True], [False, False, True]])[:, None, None, :]


def _empty_in_one_head():
    mask = torch.ones(1, 2, 2, 3, dtype=torch.bool)
    mask[:, 1, 0] = False
    return mask


def _first_row_empty():
    return torch.tensor([[False, False, False], [True, False, True]])


@maker
def _low(level, dtype=torch.float32):
    rows = [[level, 0.0, level + 1], [level, level + 2, 0.0]]
    scores = torch.tensor([[rows]], dtype=dtype, requires_grad=True)
    return scores, torch.tensor([[True, False, True], [True, True, False]])


def _below_a_billion():
    scores = torch.tensor([[[[-4e9, 0.0, -4e9], [-4e9, -5e9, 0.0]]]], requires_grad=True)
    return scores, torch.tensor([[True, False, True], [True, True, False]])


def _strided():
    return strided(normal(2, 1, 3, 5, seed=81)), strided(_causal(3, 5))


def _sample(draw):
    B, H, T, S = (draw.integer(1, 4) for _ in range(4))
    mask = draw.choice([draw.mask(T, S), draw.mask(B, 1, 1, S), draw.mask(B, 1, T, S)])
    dtype = draw.dtype()
    return draw.normal(B, H, T, S, dtype=dtype, scale=draw.choice([0.1, 1.0, 100.0])), mask


def _visible_share_everything(weigh) -> str | None:
    mask = _causal(3, 5)
    sums = weigh(normal(1, 1, 3, 5, seed=91, grad=False), mask).sum(dim=-1).flatten()
    for query, total in enumerate(sums.tolist()):
        if not abs(total - 1) < 1e-4:
            return f"The weights of query {query} sum to {total:.4f}."
    return None


def _hidden_scores_are_unread(weigh) -> str | None:
    scores, mask = normal(1, 1, 3, 5, seed=95, grad=False), _causal(3, 5)
    changed = scores.masked_fill(~mask, 50.0)
    if not torch.allclose(weigh(scores, mask), weigh(changed, mask), atol=1e-5):
        return "Raising the hidden scores to 50 changed the weights."
    return None


def _empty_row_is_zero(weigh) -> str | None:
    scores = normal(1, 1, 2, 3, seed=99)
    weights = weigh(scores, _first_row_empty())
    if not torch.equal(weights[0, 0, 0], torch.zeros(3)):
        return (
            f"The query that may attend to nothing gets the weights {[round(x, 4) for x in weights[0, 0, 0].tolist()]}."
        )
    (gradient,) = torch.autograd.grad(weights[0, 0, 1, 0], scores)
    return None if gradient.isfinite().all() else "A query that may attend to nothing makes the gradient NaN."


EXERCISE = Exercise(
    title="Weights under a mask",
    what="""Write `masked_softmax(scores, mask)`. `scores` has shape `(B, H, T, S)`; `mask` is boolean, True = may
attend, and broadcasts to it. Hidden keys get weight exactly zero, and those that are left share the whole. A query
that may attend to nothing gets weights of zero, and gradients stay finite. It must work in float16 and bfloat16 too,
and for visible scores of any size.""",
    why="""The usual numbers that stand for a hidden score each fail somewhere: on rows without a key, in half
precision, or when the visible scores are low. Most of these failures raise no error.""",
    difficulty=3,
    minutes=10,
    reference=masked_softmax,
    model=_model,
    misconceptions=misconceptions("""
mask-after-softmax (place="after"): applies the mask after the softmax
    When a key is hidden, do the weights that are left in its row still sum to one?
shared-out-again (place="shared-out"): applies the mask after the softmax and then divides each row by what is left
    What is left of a row, in float32, when the hidden scores are 1000 higher than the visible ones?
shared-out-safely (place="shared-out-safely"): applies the mask after the softmax and then divides by what is left, but
        never by zero
    What is left of a row, in float32, when the hidden scores are 1000 higher than the visible ones?
scores-times-mask (place="product"): multiplies the scores by the mask
    Which score does a hidden key have after your multiplication, and is it a low one?
mask-ignored (place="never"): accepts a mask and does not use it
    Which line of your function would change its result if the mask were all False?
fill-weak (fill=-30.0): gives hidden keys a moderate negative score such as -30
    What happens to your hidden keys when every visible score in the row is lower still?
fill-ten-thousand (fill=-1e4): gives hidden keys the score -10000
    What happens to your hidden keys when every visible score in the row is lower still?
fill-a-billion (fill=-1e9): gives hidden keys the score -1000000000, a number that float16 does not have
    What is the largest number in float16?
fill-a-billion-or-lowest (fill=-1e9, fits=True): gives hidden keys the score -1000000000, or the lowest one of a dtype
        that has no such number
    What happens to your hidden keys when every visible score in the row is lower still?
empty-row-uniform (fill=-3.4028234663852886e38, empty="keep"): gives hidden keys the lowest finite score and leaves a
        row in which all keys are hidden as it is
    In a row in which every score has the same lowest value, what does a softmax return?
empty-row-forgotten (empty="keep"): does nothing about a query that may attend to nothing
    What does a softmax return for a row in which all keys are hidden?
gradient-nan (how="add", empty="replace"): adds minus infinity to the scores and replaces NaN at the end, when the
        gradient is NaN already
    Where does the gradient go that flows back through a softmax whose row was NaN?
inverted (inverted=True): hides the keys for which the mask is True
    What does True mean in this mask: may attend, or is hidden?
softmax-over-queries (axis=-2): takes the softmax over the queries
    Whose shares must add up to one: those that one query gives, or those that one key receives?
maximum-kept-up (softmax="maximum-kept-up"): subtracts from each row its maximum, but never less than -1000000000
    What are the exponentials in a row whose visible scores are all near -4000000000?
softmax-overflows (softmax="plain"): takes the exponential of the scores as they are
    What is the exponential of 100 in float32, and what is that number divided by itself?
"""),
    cases=[
        Case("2 queries, 3 keys, a causal mask", _case(1, 1, 2, 3, seed=1, mask=lambda: _causal(2, 3))),
        Case("one query may attend to nothing", _case(1, 1, 2, 3, seed=11, mask=_first_row_empty)),
        Case(
            "2 heads, in one of them a query may attend to nothing",
            _case(1, 2, 2, 3, seed=131, mask=_empty_in_one_head),
        ),
        Case("visible scores near -300, hidden ones 0", _low(-300.0)),
        Case("visible scores near -100000, hidden ones 0", _low(-100000.0)),
        Case("visible scores of -4000000000, hidden ones 0", _below_a_billion),
        Case("2 examples, padded at the start, causal", _case(2, 1, 3, 3, seed=21, mask=_left_padding)),
        Case("2 examples, 3 heads, the second with two padded keys", _case(2, 3, 4, 5, seed=31, mask=_padding)),
        Case("large scores", _case(2, 1, 3, 5, seed=41, mask=_padding, scale=200.0)),
        Case("not contiguous in memory", _strided),
        Case("float64", _case(1, 2, 3, 5, seed=51, mask=lambda: _causal(3, 5), dtype=torch.float64)),
        Case("bfloat16", _case(1, 2, 3, 5, seed=61, mask=lambda: _causal(3, 5), dtype=torch.bfloat16)),
        Case("float16", _case(1, 2, 3, 5, seed=71, mask=lambda: _causal(3, 5), dtype=torch.float16)),
        Case("float16, visible scores near -50000, hidden ones 0", _low(-50000.0, torch.float16)),
    ],
    properties=[
        Property("The keys that a query may attend to share the whole of its weight.", _visible_share_everything),
        Property("The score of a hidden key changes nothing.", _hidden_scores_are_unread),
        Property("A query that may attend to nothing gets weights of zero, and finite gradients.", _empty_row_is_zero),
    ],
    alternatives=[
        Alternative("with where, cleaning up the empty rows at the end", _with_where),
        Alternative("with the empty rows opened first, so that no NaN arises", _with_open_rows),
        Alternative("with exponentials and sums", _with_sums),
        Alternative("row by row, over the visible keys alone", _with_loops),
    ],
    hints=(
        "Which score must a hidden key have for its exponential to be exactly zero, whatever the others are?",
        "Only one number is lower than every score in every precision. It works until a whole row consists of it: find "
        "those rows from the mask, and treat their weights last.",
        """weights = scores.masked_fill(~mask, ...).softmax(dim=-1)
empty = ____  # bool (..., T, 1): queries that may attend to nothing
return weights.masked_fill(empty, 0.0)""",
    ),
    sample=_sample,
    tries=(
        "float64",
        "float16",
        "bfloat16",
        "large",
        "shifted",
        "zeros",
        "repeated",
        "low scores",
        "mask of two axes",
        "mask of three axes",
        "mask of four axes",
        "mask by head",
        "mask by example",
        "empty row",
        "empty mask",
    ),
    equivalent_mutants={
        "mask.any(dim=-1, keepdim=True) -> mask": "hidden keys have weight zero already; zeroing them all includes the "
        "empty rows",
    },
)
