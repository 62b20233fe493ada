"""Exercise: measure how undecided each query is."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal, strided


def attention_entropy(weights):
    """Weights (..., T, S), zeros allowed -> entropy of each row in nats, (..., T)"""
    return -torch.xlogy(weights, weights).sum(dim=-1)  # xlogy(0, 0) is 0


def _model(base=math.e, zero="clean", sign=-1, axis=-1, total="sum", first="weights", over="row"):
    """An entropy whose settings are the misconceptions."""

    def entropy(weights):
        if first == "softmax":
            weights = weights.softmax(dim=-1)
        terms = weights * weights.log() if zero == "nan" else torch.xlogy(weights, weights)
        if zero in ("large", "small"):
            terms = weights * (weights + {"large": 1e-3, "small": 1e-6}[zero]).log()
        result = sign * (terms.sum(dim=axis) if total == "sum" else terms.mean(dim=axis)) / math.log(base)
        if over == "possible":
            return result / math.log(weights.size(-1))
        if over == "all":
            return result.mean()
        return result.exp() if over == "perplexity" else result

    return entropy


def _with_torch(weights):
    return torch.special.entr(weights).sum(dim=-1)


def _with_distributions(weights):
    rows = weights + (weights.sum(dim=-1, keepdim=True) == 0)  # an empty row becomes uniform, for now
    entropy = torch.distributions.Categorical(probs=rows).entropy()
    return entropy.masked_fill(weights.sum(dim=-1) == 0, 0.0)


def _with_where(weights):
    safe = torch.where(weights > 0, weights, 1.0)  # the logarithm of 1 is 0
    return -(weights * safe.log()).sum(dim=-1)


def _with_loops(weights):
    rows = weights.reshape(-1, weights.size(-1))
    entropies = [-sum(w * math.log(w) for w in row if w > 0) for row in rows.tolist()]
    return torch.tensor(entropies, dtype=weights.dtype).reshape(weights.shape[:-1])


def _soft(*shape, seed, scale=1.0, dtype=torch.float32):
    return lambda: (normal(*shape, seed=seed, scale=scale, grad=False, dtype=torch.float64).softmax(dim=-1).to(dtype),)


def _rows(*rows):
    return lambda: (torch.tensor(rows),)


def _causal():
    hidden = torch.ones(3, 5, dtype=torch.bool).triu(3)
    return (normal(2, 3, 5, seed=31, grad=False).masked_fill(hidden, -math.inf).softmax(dim=-1),)


def _strided():
    return (strided(_soft(2, 3, 5, seed=41)()[0]),)


def _sample(draw):
    shape = [draw.integer(1, 4) for _ in range(draw.integer(1, 3))]
    scores = draw.normal(*shape, draw.integer(2, 6), grad=False, scale=draw.choice([0.1, 1.0, 10.0]))
    hidden = draw.mask(*scores.shape)
    return (scores.masked_fill(hidden, -math.inf).softmax(dim=-1).nan_to_num(0.0),)


def _equal_weights_give_log(entropy) -> str | None:
    found = float(entropy(torch.full((1, 8), 0.125)).flatten()[0])
    return (
        None
        if abs(found - math.log(8)) < 1e-4
        else f"Eight equal weights give {found:.4f}; log(8) is {math.log(8):.4f}."
    )


def _certainty_is_zero(entropy) -> str | None:
    found = float(entropy(torch.tensor([[0.0, 1.0, 0.0]])).flatten()[0])
    return None if abs(found) < 1e-4 else f"The weights 0, 1 and 0 give {found:.4f}."


def _rows_are_independent(entropy) -> str | None:
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    if not torch.allclose(entropy(weights)[:1], entropy(weights[:1]), atol=1e-5):
        return "The entropy of row 0 changed when row 1 was taken away."
    return None


EXERCISE = Exercise(
    title="How undecided is each query",
    kind="measure",
    what="""Write `attention_entropy(weights)`: for each row of weights w, the entropy −Σ w·log w in nats (natural
logarithm). It is log S when a query gives every one of S keys the same weight, and 0 when it gives one key all of it.
A weight of exactly zero adds nothing, so a row of zeros has entropy 0. All other rows sum to one. The result has one
axis less than the weights, and their dtype. In float64 an error of 0.000001 is too large: what you add to a weight, if
anything, has to be far smaller. There is no gradient to compute here.""",
    why="One number for each query says whether attention spreads or picks. The next cells use it.",
    difficulty=2,
    minutes=6,
    reference=attention_entropy,
    model=_model,
    misconceptions=misconceptions("""
bits (base=2.0): measures in bits
    Two equal weights: which number do you get, and which one is it in nats?
decimal-logarithm (base=10.0): takes the logarithm to the base ten
    Two equal weights: which number do you get, and which one is it in nats?
nan-at-zero (zero="nan"): returns NaN for a row that holds a weight of zero
    What is the logarithm of 0, and what is that times 0 in floating point?
epsilon-too-large (zero="large"): adds 0.001 to the weights inside the logarithm
    A row whose only weight is 1: which entropy does it get from your function?
epsilon-seen-in-float64 (zero="small"): adds 0.000001 to the weights inside the logarithm, which float64 notices
    How many digits does float64 keep, and how many of them survive what you add?
sign (sign=1): returns the entropy with the opposite sign
    Weights lie between 0 and 1: which sign have their logarithms?
over-queries (axis=-2): adds up over the queries
    Which axis of the weights sums to one?
mean-over-keys (total="mean"): averages over the keys where the definition adds up
    What does your function give for eight equal weights, and what is log 8?
softmax-again (first="softmax"): applies a softmax to the weights first
    Are the inputs scores or already weights: what do their rows sum to?
share-of-the-possible (over="possible"): divides by the largest possible entropy
    What does your function give for two equal weights, and for eight?
one-number-for-all (over="all"): averages the entropies of all queries into one number
    How many queries are there, and how many numbers do you return?
perplexity (over="perplexity"): returns the exponential of the entropy
    What does your function give for a query that is certain?
"""),
    cases=[
        Case("one row, two equal weights", _rows([0.5, 0.5])),
        Case("one row of three weights", _rows([0.5, 0.25, 0.25])),
        Case("2 queries, 3 keys", _soft(2, 3, seed=1)),
        Case("a query that is certain", _rows([0.0, 1.0, 0.0], [0.2, 0.3, 0.5])),
        Case("a causal map: 2 examples, 3 queries, 5 keys", _causal),
        Case("a query that attends to nothing", _rows([0.0, 0.0, 0.0], [0.25, 0.25, 0.5])),
        Case("2 examples, 3 heads, 5 queries, 7 keys", _soft(2, 3, 5, 7, seed=11, scale=4.0)),
        Case("not contiguous in memory", _strided),
        Case("float64", _soft(3, 5, seed=21, dtype=torch.float64)),
        Case("bfloat16", _soft(3, 5, seed=25, dtype=torch.bfloat16)),
    ],
    properties=[
        Property("Equal weights on S keys have the entropy log S.", _equal_weights_give_log),
        Property("A query that gives one key everything has entropy zero.", _certainty_is_zero),
        Property("Each row has its own entropy.", _rows_are_independent),
    ],
    alternatives=[
        Alternative("torch's own function for one term", _with_torch),
        Alternative("with torch.distributions", _with_distributions),
        Alternative("with the zeros taken out of the logarithm", _with_where),
        Alternative("with loops", _with_loops),
    ],
    hints=(
        "Which axis of the weights is one distribution, and what must a weight of zero add to its entropy?",
        "In floating point 0 times the logarithm of 0 is NaN. Either keep zeros out of the logarithm, or look for a "
        "function in torch that computes x·log(y) and knows this case.",
        """terms = ____  # (..., T, S), w·log w, and 0 where w is 0
return -terms.sum(dim=-1)""",
    ),
    sample=_sample,
    tries=("bfloat16", "repeated"),
    equivalent_mutants={
        "torch.xlogy(weights, weights) -> torch.xlogy(weights, weights)": "both arguments are the same",
    },
    gradients=False,
)
