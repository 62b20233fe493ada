"""Exercise: measure how much of a head is an induction head."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def induction_score(weights, period):
    """(B, H, T, T), int -> (H,)"""
    T = weights.size(-1)
    query = torch.arange(period, T)  # the positions whose token has come before
    key = query - period + 1  # what followed that token, one period ago
    return weights[:, :, query, key].mean(dim=(0, 2))  # (B, H, T - period) -> (H,)


def _model(offset=1, start="repeat", average="both", direction="past", axis="rows"):
    """The score whose settings are the misconceptions."""

    def score(weights, period):
        T = weights.size(-1)
        if start == "all":
            query = torch.arange(period - offset, T)
        elif start == "late":
            query = torch.arange(period + 1, T)
        else:
            query = torch.arange(period, T)
        key = query - period + offset
        if axis == "columns":
            found = weights[:, :, key, query]
        else:
            found = weights[:, :, query, key]
        if average == "sum":
            return found.sum(dim=(0, 2))
        if average == "all-queries":
            return found.sum(dim=2).mean(dim=0) / T
        if average == "heads":
            return found.mean()
        if average == "sentences":
            return found.mean(dim=2)
        if average == "largest":
            return found.amax(dim=2).mean(dim=0)
        return found.mean(dim=(0, 2))

    return score


def _with_diagonal(weights, period):
    return weights.diagonal(offset=1 - period, dim1=-2, dim2=-1)[..., 1:].mean(dim=(0, 2))


def _with_loops(weights, period):
    H, T = weights.shape[1:3]
    total = torch.zeros(H, dtype=weights.dtype)
    for t in range(period, T):
        total = total + weights[:, :, t, t - period + 1].mean(dim=0)
    return total / (T - period)


def _with_a_mask(weights, period):
    T = weights.size(-1)
    query, key = torch.arange(T)[:, None], torch.arange(T)[None, :]
    wanted = (query >= period) & (key == query - period + 1)  # (T, T)
    return (weights * wanted).sum(dim=(2, 3)).mean(dim=0) / wanted.sum()


def _weights(B, H, T, seed, dtype=torch.float32):
    scores = normal(B, H, T, T, seed=seed, dtype=torch.float64, scale=1.5, grad=False)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return weights.round(decimals=3).to(dtype)


def _case(B, H, T, period, seed, dtype=torch.float32):
    return lambda: (_weights(B, H, T, seed, dtype), period)


def _perfect():
    weights = torch.zeros(1, 2, 6, 6)
    weights[:, 0, :, 0] = 1.0  # a head that reads the first token
    query = torch.arange(3, 6)
    weights[:, 1, :3, 0] = 1.0
    weights[:, 1, query, query - 2] = 1.0  # a perfect induction head for a period of 3
    return weights


def _sample(draw):
    B, H, T = draw.integer(1, 3), draw.integer(1, 4), draw.integer(3, 9)
    seed, dtype = draw.integer(0, 10**6), draw.dtype()
    return _weights(B, H, T, seed, dtype), draw.integer(2, T - 1)


def _perfect_head_scores_one(score) -> str | None:
    found = score(_perfect(), 3)
    if not isinstance(found, torch.Tensor) or found.shape != (2,):
        return f"For two heads the result is {found}."
    if abs(float(found[1]) - 1) > 1e-5:
        return f"A head that always reads the token after the earlier copy scores {float(found[1]):.3f}."
    return None


EXERCISE = Exercise(
    title="How much of a head is an induction head",
    kind="measure",
    what="""The tokens of a sequence repeat after `period` positions: the token at position t is that at t - period.
An **induction head** finds the earlier copy of the current token and reads the token *after* it. Write
`induction_score(weights, period)`: for each head, the weight that queries give to the position after the earlier
copy of their token, averaged over the sentences and over all positions whose token has an earlier copy, from
`period` on. The earlier
copy of position t is the one at t - period, even where older ones exist. `period` is at least 2 and smaller than T.
The result has the dtype of the weights. There is no gradient to compute here.""",
    why="""A role of a head is a number that you can measure, before and after training and in any model, not an
impression from a map.""",
    difficulty=3,
    minutes=10,
    reference=induction_score,
    model=_model,
    misconceptions=misconceptions("""
reads-the-copy (offset=0): measures the weight on the earlier copy itself
    Which token helps to predict the next one: the earlier copy, or its successor?
reads-before-the-copy (offset=-1): measures the weight on the token before the earlier copy
    In which direction from the earlier copy does the token stand that came next?
two-too-far (offset=2): measures the weight on the second token after the earlier copy
    For a period of 3 the token at position 4 has its copy at 1. Which position followed that copy?
queries-and-keys-exchanged (axis="columns"): takes rows for keys and columns for queries
    In a map of weights, which of the two axes sums to one?
starts-one-early (start="all"): begins one position early, where the token has not come before
    Which is the first position whose token stands there for the second time?
starts-one-late (start="late"): leaves out the first position that has an earlier copy
    Which is the first position whose token stands there for the second time?
divided-by-all-positions (average="all-queries"): divides by the number of all positions, those without an earlier copy
        too
    What does a perfect induction head score with your function?
summed (average="sum"): adds up the weights and does not average them
    Can your score exceed one?
heads-averaged (average="heads"): averages over the heads too
    How many numbers does the task ask for?
sentences-kept (average="sentences"): returns a score for each sentence and head
    How many numbers does the task ask for?
largest-weight (average="largest"): takes the largest of the weights in place of their average
    What does a head score that reads the right place once and then never again?
"""),
    cases=[
        Case("1 sentence of 4 tokens, 2 heads, period 2", _case(1, 2, 4, 2, seed=1)),
        Case("1 sentence of 7 tokens, 2 heads, period 3", _case(1, 2, 7, 3, seed=11)),
        Case("2 sentences of 7 tokens, 3 heads, period 5", _case(2, 3, 7, 5, seed=21)),
        Case("3 sentences of 11 tokens, 2 heads, period 4", _case(3, 2, 11, 4, seed=31)),
        Case("a single repeated token", _case(2, 3, 6, 5, seed=41)),
        Case("float64", _case(2, 3, 7, 3, seed=51, dtype=torch.float64)),
    ],
    properties=[Property("A perfect induction head scores one.", _perfect_head_scores_one)],
    alternatives=[
        Alternative("along a diagonal of the map", _with_diagonal),
        Alternative("with a loop over the positions", _with_loops),
        Alternative("with a mask of the cells that count", _with_a_mask),
    ],
    hints=(
        "In A B C A B C, which token would the second A like to read, and where does it stand?",
        "The cells that count lie on one diagonal of the map, below the main one. Make the list of their rows first.",
        """query = torch.arange(period, weights.size(-1))
key = ____  # one for each query
return ...  # pick those cells, average""",
    ),
    sample=_sample,
    tries=("float64",),
    gradients=False,
    equivalent_mutants={"1 -> 2 (2)": "a map of self-attention has as many rows as columns"},
)
