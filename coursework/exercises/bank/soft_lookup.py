"""Exercise: a soft dictionary look-up for one query, the first form of attention."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def soft_lookup(query, keys, values):
    """(E,), (S, E), (S, E') -> (E',): the values, averaged by how well keys fit"""
    scores = keys @ query  # (S, E) @ (E,) -> (S,)
    weights = scores.softmax(dim=0)  # (S,), sum to one
    return weights @ values  # (S,) @ (S, E') -> (E',)


def _model(similarity="dot", scaled=False, weighting="softmax", read="sum"):
    """A look-up whose settings are the misconceptions."""

    def look_up(query, keys, values):
        if similarity == "values":
            keys, values = values, keys
        if similarity == "cosine":
            scores = F.cosine_similarity(keys, query, dim=-1)
        elif similarity == "distance":
            scores = (keys - query).norm(dim=-1)
        elif similarity == "closeness":
            scores = -(keys - query).norm(dim=-1)
        else:
            scores = keys @ query
        if scaled:
            scores = scores / math.sqrt(query.size(0))
        weights = _weigh(scores, weighting)
        if read == "weights":
            return weights
        if read == "keys":
            return weights @ keys
        if read == "mean":
            return (weights[:, None] * values).mean(dim=0)
        return weights @ values

    return look_up


def _weigh(scores, weighting):
    if weighting == "best":
        return F.one_hot(scores.argmax(), len(scores)).to(scores.dtype)
    if weighting == "equal":
        return torch.full_like(scores, 1 / len(scores))
    if weighting == "share":
        return scores / scores.sum()
    if weighting == "scores":
        return scores
    if weighting == "sigmoid":
        return scores.sigmoid()
    if weighting == "plain":
        return scores.exp() / scores.exp().sum()
    if weighting == "exponential":
        return scores.exp()
    return scores.softmax(dim=0)


def _with_loop(query, keys, values):
    scores = torch.stack([(query * key).sum() for key in keys])
    weights = scores.softmax(dim=0)
    answer = torch.zeros_like(values[0])
    for weight, value in zip(weights, values, strict=True):
        answer = answer + weight * value
    return answer


def _with_einsum(query, keys, values):
    weights = torch.einsum("e,se->s", query, keys).softmax(dim=0)
    return torch.einsum("s,se->e", weights, values)


def _with_torch(query, keys, values):
    # The kernel wants a row for each query, and scales unless told otherwise.
    return F.scaled_dot_product_attention(query[None, None], keys[None], values[None], scale=1.0)[0, 0]


@maker
def _case(S, E, width, seed, dtype=torch.float32, scale=1.0):
    query, keys = normal(E, seed=seed, dtype=dtype, scale=scale), normal(S, E, seed=seed + 1, dtype=dtype)
    return query, keys, normal(S, width, seed=seed + 2, dtype=dtype)


def _far_apart():
    query, keys = torch.tensor([40.0, -30.0]), torch.tensor([[20.0, 3.0], [19.75, 3.0], [-5.0, 8.0]])
    return query.requires_grad_(), keys.requires_grad_(), normal(3, 5, seed=30)


def _strided():
    query, keys, values = _case(5, 3, 2, seed=41)()
    return strided(query), strided(keys), strided(values)


def _sample(draw):
    S, E, width = draw.integer(1, 6), draw.integer(1, 7), draw.integer(1, 5)
    dtype = draw.dtype()
    query = draw.normal(E, dtype=dtype, scale=draw.choice([0.1, 1.0, 10.0]))
    return query, draw.normal(S, E, dtype=dtype), draw.normal(S, width, dtype=dtype)


def _answer_is_average(look_up) -> str | None:
    query, keys, _ = _case(5, 3, 2, seed=51)()
    answer = look_up(query, keys, torch.ones(5, 2))
    if answer.shape != (2,) or (answer - 1).abs().max() > 1e-4:
        return f"With every number in values equal to 1, the answer is {[round(x, 4) for x in answer.tolist()]}."
    return None


def _entries_have_no_order(look_up) -> str | None:
    query, keys, values = _case(5, 3, 2, seed=61)()
    order = torch.tensor([4, 2, 0, 3, 1])
    if not torch.allclose(look_up(query, keys, values), look_up(query, keys[order], values[order]), atol=1e-5):
        return "Giving the same pairs of key and value in another order changed the answer."
    return None


def _clear_match_wins(look_up) -> str | None:
    keys, values = 10.0 * torch.eye(3), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    answer = look_up(keys[1], keys, values)
    if not torch.allclose(answer, values[1], atol=1e-4):
        return (
            "The query equals key 1 and has score 100 with it and 0 with the others. "
            f"Value 1 is [3.0, 4.0]; the answer is {[round(x, 4) for x in answer.tolist()]}."
        )
    return None


EXERCISE = Exercise(
    title="A dictionary that answers with a mixture",
    what="""Write `soft_lookup(query, keys, values)` for one query. The score of a key is its dot product with the
query. A softmax turns the S scores into S weights, and the answer is the average of the rows of `values` with these
weights. Scores may be as large as 1000, and e to the power of 1000 is too large for float32; PyTorch's `softmax` takes
care of that. The scores are used as they are; scaling comes later in the chapter.""",
    why="""A Python dictionary answers only if a key equals the query. This one always answers, and its answer changes
smoothly with the query and the keys, so gradient descent can teach it where to look.""",
    difficulty=1,
    minutes=5,
    reference=soft_lookup,
    model=_model,
    misconceptions=misconceptions("""
best-key-only (weighting="best"): returns the value of the best key and nothing of the others
    How does your answer change when you move the query a very little, and what is its gradient then?
equal-weights (weighting="equal"): gives every key the same weight
    Does your answer change when you change the query?
share-of-scores (weighting="share"): divides each score by the sum of the scores
    What weights come out for the scores 1, -1 and 0?
scores-as-weights (weighting="scores"): uses the scores themselves as weights
    What is the sum of your weights, and may a weight of an average be negative?
exponentials-as-weights (weighting="exponential"): takes the exponentials of the scores as weights and stops there
    What is the sum of your weights?
sigmoid-weights (weighting="sigmoid"): judges each key alone, with a sigmoid
    If a second key fits as well as the first, what must happen to the weight of the first?
cosine (similarity="cosine"): compares only the directions of query and key, not their lengths
    What should happen to the weights when the query becomes ten times as long?
distance (similarity="distance"): gives the keys that are farthest from the query the largest weights
    Which key should win for a query that equals one of the keys, and which one wins with yours?
closeness (similarity="closeness"): scores a key by how close it lies to the query
    Two keys in the same direction, one twice as long: which of them has the larger dot product?
scaled (scaled=True): divides the scores by the square root of E
    Which step in your function is not in the task as it stands above?
returns-weights (read="weights"): returns the weights and never reads the values
    How many numbers should the answer have, and how many has yours?
averages-keys (read="keys"): returns a mixture of the keys
    A key says where something is stored; what does the one who asks want to get back?
mean-of-weighted-values (read="mean"): divides by the number of keys after the weights have already been applied
    If all values are 1 and the weights sum to one, what should come out, and what does with yours?
keys-and-values-exchanged (similarity="values"): compares the query with the values and averages the keys
    Which of the two says where to look, and which one what is found there?
softmax-overflows (weighting="plain"): takes the exponential of the scores as they are and divides by the sum
    What is the exponential of 1000 in float32, and what is that divided by itself?
"""),
    cases=[
        Case("2 keys of width 3, values of width 1", _case(2, 3, 1, seed=1)),
        Case("3 keys of width 2, values of width 5", _case(3, 2, 5, seed=11)),
        Case("5 keys of width 7, values of width 3", _case(5, 7, 3, seed=21, scale=2.0)),
        Case("4 keys of width 3, values of the same width", _case(4, 3, 3, seed=31)),
        Case("large scores", _far_apart),
        Case("inputs that are not contiguous in memory", _strided),
        Case("float64", _case(7, 3, 2, seed=71, dtype=torch.float64)),
        Case("bfloat16", _case(5, 3, 2, seed=81, dtype=torch.bfloat16)),
    ],
    properties=[
        Property("The answer is an average of the values: the weights sum to one.", _answer_is_average),
        Property("A key that fits far better than all others takes almost all of the weight.", _clear_match_wins),
        Property("The entries of a dictionary have no order.", _entries_have_no_order),
    ],
    alternatives=[
        Alternative("with a loop over the entries", _with_loop),
        Alternative("with einsum", _with_einsum),
        Alternative("torch's own kernel", _with_torch),
    ],
    hints=(
        "Which number says how well one key fits, and what must S such numbers satisfy to serve as weights?",
        "One product of a matrix and a vector gives all S scores. A softmax makes them positive and makes them sum to "
        "one. A second product mixes the rows of `values`.",
        """scores = keys @ query  # (S,)
weights = ____  # (S,), positive, sum to one
return weights @ values  # (E',)""",
    ),
    sample=_sample,
    tries=("float64", "bfloat16", "large", "zeros", "repeated"),
    equivalent_mutants={"0 -> -1": "scores have one axis, which is both the first and the last"},
)
