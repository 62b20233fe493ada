"""Exercise: attention whose cost is linear in the length."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def linear_attention(query, key, value):
    """(B, T, E), (B, S, E), (B, S, E') -> (B, T, E')"""
    query, key = F.elu(query) + 1, F.elu(key) + 1
    mixed = query @ (key.transpose(-2, -1) @ value)  # (B, T, E) @ (B, E, E')
    total = query @ key.sum(dim=-2)[..., None]  # (B, T, 1)
    return mixed / total


def _model(features="elu+1", norm="sum", order="keys-first", sides="both", scale="none"):
    """Linear attention whose settings are the misconceptions."""

    def phi(x):
        return {"elu+1": F.elu(x) + 1, "elu": F.elu(x), "relu": F.relu(x), "exp": x.exp(), "none": x}[features]

    def attend(query, key, value):
        E, S = query.size(-1), key.size(-2)
        if scale == "root":
            query = query / E**0.5
        left = phi(query) if sides in ("both", "query") else query
        right = phi(key) if sides in ("both", "key") else key
        if order == "quadratic":
            weights = left @ right.mT
            return (weights @ value) / weights.sum(-1, keepdim=True)
        mixed = left @ (right.mT @ value)
        if norm == "none":
            return mixed
        if norm == "length":
            return mixed / S
        if norm == "width":
            return mixed / E
        if norm == "features":
            return mixed / left.sum(-1, keepdim=True)
        return mixed / (left @ right.sum(-2)[..., None])

    return attend


def _with_einsum(query, key, value):
    query, key = F.elu(query) + 1, F.elu(key) + 1
    sums = torch.einsum("bse,bsv->bev", key, value)
    return (
        torch.einsum("bte,bev->btv", query, sums) / torch.einsum("bte,bse->bt", query, key.cumsum(1)[:, -1:])[..., None]
    )


def _with_ones(query, key, value):
    """A column of ones beside the values is mixed as they are, and comes out as the sum of the weights."""
    query, key = (torch.where(x > 0, x + 1, x.exp()) for x in (query, key))
    both = query @ (key.mT @ torch.cat([value, torch.ones_like(value[..., :1])], dim=-1))
    return both[..., :-1] / both[..., -1:]


def _with_course(query, key, value):
    from course_lib.variants.efficient import LinearAttention

    return LinearAttention()(query[None], key[None], value[None])[0]


@maker
def _case(B, T, S, E, width, seed, dtype=torch.float32):
    query, key = normal(B, T, E, seed=seed, dtype=dtype), normal(B, S, E, seed=seed + 1, dtype=dtype)
    return query, key, normal(B, S, width, seed=seed + 2, dtype=dtype)


def _strided():
    return tuple(strided(tensor) for tensor in _case(2, 3, 5, 4, 6, seed=41)())


def _sample(draw):
    B, T, S, E = draw.integer(1, 3), draw.integer(1, 6), draw.integer(1, 6), draw.integer(1, 6)
    dtype = draw.dtype()
    query, key = draw.normal(B, T, E, dtype=dtype), draw.normal(B, S, E, dtype=dtype)
    return query, key, draw.normal(B, S, draw.integer(1, 5), dtype=dtype)


def _average(linear_attention) -> str | None:
    query, key, _ = _case(1, 3, 5, 4, 2, seed=51)()
    output = linear_attention(query, key, torch.ones(1, 5, 2))
    worst = output.flatten()[(output.flatten() - 1).abs().argmax()].item()
    return None if abs(worst - 1) < 1e-4 else f"With every value equal to 1 an output is {worst:.3f}."


def _elements(query, key, value) -> int:
    T, S, E, width = query.size(-2), key.size(-2), query.size(-1), value.size(-1)
    if T * S < 2000:
        return 10**9
    return query.size(0) * max(T, S) * (E + 1) * (width + 1)  # a product of each key with its value is allowed


def _flops(query, key, value) -> int:
    T, S, E, width = query.size(-2), key.size(-2), query.size(-1), value.size(-1)
    if T * S < 2000:
        return 10**9  # on short cases the order does not matter
    return 6 * query.size(0) * (T + S) * E * (width + 1)


EXERCISE = Exercise(
    title="Sum first, ask later",
    what="""Write `linear_attention(query, key, value)`: the weight of a key is φ(q) · φ(k) over the sum of that for
all keys, with φ(x) = elu(x) + 1. No factor 1/√E and no mask. The check counts operations and memory: no table of T by
S weights may be formed, nor any other that grows with T · S, so multiply the keys with the values first. No keys are
so far below zero that all weights of a query round to zero.""",
    why="""A product of three matrices costs what its order makes it cost. Softmax forbids the cheap order; a feature
map allows it, at the price of being another function.""",
    difficulty=3,
    minutes=10,
    reference=linear_attention,
    model=_model,
    misconceptions=misconceptions("""
quadratic (order="quadratic"): computes the right numbers by way of a table of all pairs, at quadratic cost
    Of the product φ(Q) φ(K)ᵀ V, which two factors can be multiplied first?
no-normaliser (norm="none"): does not divide by the sum of the weights
    If every value is 1, what should the output be?
divide-by-length (norm="length"): divides by the number of keys
    If every value is 1, what should the output be?
divide-by-width (norm="width"): divides by the width
    If every value is 1, what should the output be?
divide-by-query (norm="features"): divides by the sum of the query's features alone
    Which sum over the keys makes the weights of a query add up to one?
no-plus-one (features="elu"): leaves out the + 1, so that weights can be negative
    What is elu(-2), and may a weight have that sign?
relu-features (features="relu"): takes ReLU for the feature map
    What becomes of a key whose numbers are all negative?
exponential-features (features="exp"): takes the exponential for the feature map
    What is elu(2) + 1, and what is exp(2)?
no-features (features="none"): uses queries and keys as they are
    May φ(q) · φ(k) be negative?
query-features-only (sides="query"): maps the queries only
    To which of the two does φ apply?
key-features-only (sides="key"): maps the keys only
    To which of the two does φ apply?
scaled (scale="root"): divides the queries by the root of the width
    Which factor does the task name?
"""),
    cases=[
        Case("1 query, 2 keys", _case(1, 1, 2, 3, 2, seed=1)),
        Case("2 queries, 3 keys", _case(1, 2, 3, 4, 5, seed=11)),
        Case("2 examples, 3 queries, 5 keys", _case(2, 3, 5, 4, 6, seed=21)),
        Case("inputs that are not contiguous in memory", _strided),
        Case("float64", _case(2, 4, 3, 5, 2, seed=31, dtype=torch.float64)),
        Case("150 queries, 170 keys: the cost counts", _case(1, 150, 170, 3, 2, seed=61)),
    ],
    properties=[Property("The output is an average of the values.", _average)],
    alternatives=[
        Alternative("with einsum", _with_einsum),
        Alternative("with a column of ones for the sum of the weights", _with_ones),
        Alternative("the course's own module", _with_course),
    ],
    hints=(
        "(A B) C and A (B C) are equal. Which of the two never makes a T by S table here?",
        "Two sums over the keys are enough: of φ(k) times the value, an E by E' table, and of φ(k), a vector.",
        """query, key = F.elu(query) + 1, F.elu(key) + 1
mixed = query @ ____
total = query @ key.sum(dim=-2)[..., None]  # (B, T, 1)
return mixed / total""",
    ),
    sample=_sample,
    tries=("float64", "zeros", "repeated"),
    flop_limit=_flops,
    element_limit=_elements,
)
