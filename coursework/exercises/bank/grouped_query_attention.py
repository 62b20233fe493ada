"""Exercise: attention in which several query heads share one key/value head."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def grouped_query_attention(query, key, value):
    """(B, H, T, E), (B, G, S, E), (B, G, S, E') -> (B, H, T, E')"""
    share = query.size(1) // key.size(1)
    key = key.repeat_interleave(share, dim=1)  # (B, G, S, E) -> (B, H, S, E)
    value = value.repeat_interleave(share, dim=1)  # (B, G, S, E') -> (B, H, S, E')
    return F.scaled_dot_product_attention(query, key, value)


def _model(sharing="in-a-row", scale="width", combine="each", axis=-1, back="in-a-row", hide="nothing"):
    """Grouped attention whose settings are the misconceptions."""

    def spread(x, how, H):
        G = x.size(1)
        share = H // G
        if how == "in-a-row":
            index = torch.arange(H) // share
        elif how == "tiled":
            index = torch.arange(H) % G
        elif how == "first":
            index = torch.zeros(H, dtype=torch.int64)
        elif how == "reversed":
            index = (G - 1) - torch.arange(H) // share
        else:
            return x.mean(dim=1, keepdim=True).expand(-1, H, -1, -1)
        return x[:, index]

    def attend(query, key, value):
        H, E, G = query.size(1), query.size(-1), key.size(1)
        if combine == "queries-averaged":
            query = query.unflatten(1, (G, H // G)).mean(dim=2)
            scores = query @ key.mT / math.sqrt(E)
            return scores.softmax(axis) @ value
        keys = {"values-tiled": "in-a-row", "keys-tiled": "tiled"}.get(sharing, sharing)
        values = {"keys-tiled": "in-a-row", "values-tiled": "tiled"}.get(sharing, sharing)
        divisor = {"width": math.sqrt(E), "all-heads": math.sqrt(E * H), "none": 1.0,
                   "share": math.sqrt(E * H // G), "square": E}[scale]  # fmt: skip
        scores = query @ spread(key, keys, H).mT / divisor
        if hide == "later":
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        output = scores.softmax(axis) @ spread(value, values, H)
        if back == "strided":
            output = output.unflatten(1, (G, H // G)).transpose(1, 2).flatten(1, 2)
        return output

    return attend


def _without_copies(query, key, value):
    B, H, T, E = query.shape
    G = key.size(1)
    grouped = query.reshape(B, G, H // G, T, E)
    scores = grouped @ key[:, :, None].mT / math.sqrt(E)  # (B, G, H / G, T, S)
    return (scores.softmax(dim=-1) @ value[:, :, None]).reshape(B, H, T, value.size(-1))


def _head_by_head(query, key, value):
    share = query.size(1) // key.size(1)
    outputs = []
    for h in range(query.size(1)):
        g = h // share
        scores = query[:, h] @ key[:, g].mT / math.sqrt(query.size(-1))  # (B, T, S)
        outputs.append(scores.softmax(dim=-1) @ value[:, g])
    return torch.stack(outputs, dim=1)


def _with_torch(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def _with_einsum(query, key, value):
    E = query.size(-1)
    grouped = query.unflatten(1, (key.size(1), -1))  # (B, H, T, E) -> (B, G, H / G, T, E)
    weights = (torch.einsum("bgnte,bgse->bgnts", grouped, key) / math.sqrt(E)).softmax(dim=-1)
    return torch.einsum("bgnts,bgse->bgnte", weights, value).flatten(1, 2)


@maker
def _case(B, H, G, T, S, E, width, seed, dtype=torch.float32):
    query, key = normal(B, H, T, E, seed=seed, dtype=dtype), normal(B, G, S, E, seed=seed + 1, dtype=dtype)
    return query, key, normal(B, G, S, width, seed=seed + 2, dtype=dtype)


def _strided():
    return tuple(strided(tensor) for tensor in _case(2, 6, 3, 3, 5, 2, 4, seed=61)())


def _sample(draw):
    B, G, share, T, S = (draw.integer(1, high) for high in (3, 3, 3, 4, 5))
    E, width, dtype = draw.integer(1, 5), draw.integer(1, 5), draw.dtype()
    query, key = draw.normal(B, G * share, T, E, dtype=dtype), draw.normal(B, G, S, E, dtype=dtype)
    return query, key, draw.normal(B, G, S, width, dtype=dtype)


def _neighbours_share(attend) -> str | None:
    query, key, value = _case(1, 6, 2, 3, 4, 2, 3, seed=71)()
    before = attend(query, key, value)
    changed = value.detach().clone()
    changed[:, 1] += 3.0
    after = attend(query, key, changed)
    if before.shape != (1, 6, 3, 3):
        return f"For 6 query heads and 2 key/value heads the shape is {tuple(before.shape)}."
    for head in range(6):
        moved = not torch.allclose(before[:, head], after[:, head], atol=1e-5)
        if moved != (head >= 3):
            what = "changed" if moved else "did not change"
            return f"With 6 query heads and 2 value heads, changing value head 1 {what} query head {head}."
    return None


EXERCISE = Exercise(
    title="Grouped heads",
    what="""Write `grouped_query_attention(query, key, value)`: attention without a mask for H query heads and G
heads of keys and values, H a multiple of G. Neighbouring query heads share: with H = 6 and G = 2, query heads 0, 1,
2 read key/value head 0 and heads 3, 4, 5 read head 1. G = 1 is multi-query attention, G = H the usual form. PyTorch
repeats along an axis with `repeat_interleave`, in the order 0, 0, 1, 1, or with `repeat`, in the order 0, 1, 0, 1.""",
    why="""Llama 3, Mistral and many others keep fewer key/value heads than query heads, because keys and
values are what the cache stores. Published weights rely on the order of the sharing; the wrong order runs and gives
nonsense.""",
    difficulty=3,
    minutes=10,
    reference=grouped_query_attention,
    model=_model,
    misconceptions=misconceptions("""
tiled (sharing="tiled"): shares the key/value heads in turn, so that neighbouring query heads read different ones
    With H = 4 and G = 2, does query head 1 share with query head 0 or with query head 2?
keys-tiled (sharing="keys-tiled"): shares the keys in turn and the values in a row
    Do a query head's keys and values come from the same head?
values-tiled (sharing="values-tiled"): shares the values in turn and the keys in a row
    Do a query head's keys and values come from the same head?
first-head-for-all (sharing="first"): lets every query head read key/value head 0
    Does your output change when the last key/value head changes?
groups-reversed (sharing="reversed"): gives the first query heads the last key/value head
    Which key/value head does query head 0 read?
key-heads-averaged (sharing="mean"): averages the key/value heads for all query heads
    How many different sets of keys should there be?
query-heads-averaged (combine="queries-averaged"): averages the query heads of a group and returns one head a group
    How many heads should the output have?
scale-by-all-heads (scale="all-heads"): divides the scores by the root of the width of all heads together
    How many products does one score of one head add up?
no-scale (scale="none"): does not scale the scores
    By what did chapter 1 divide the scores, and why?
heads-returned-in-strides (back="strided"): returns the heads in another order, one of each group after the other
    Which query head does the second head of your output belong to?
softmax-over-queries (axis=-2): takes the softmax over the queries
    Whose weights must add up to one: those that one query gives, or those that one key receives?
scale-by-the-group (scale="share"): divides by the root of the width of all query heads of a group
    How many products does one score add up?
causal (hide="later"): hides later keys
    Which mask does the task ask for?
"""),
    cases=[
        Case("4 query heads, 2 key/value heads", _case(1, 4, 2, 1, 3, 2, 2, seed=1)),
        Case("6 query heads, 2 key/value heads", _case(1, 6, 2, 2, 3, 2, 3, seed=11)),
        Case("2 sentences, 6 query heads, 3 key/value heads", _case(2, 6, 3, 4, 5, 7, 2, seed=21)),
        Case("one key/value head for all", _case(2, 3, 1, 2, 5, 4, 3, seed=31)),
        Case("as many key/value heads as query heads", _case(2, 3, 3, 2, 5, 4, 7, seed=41)),
        Case("inputs that are not contiguous in memory", _strided),
        Case("float64", _case(2, 4, 2, 3, 5, 3, 2, seed=51, dtype=torch.float64)),
    ],
    properties=[Property("Neighbouring query heads share a key/value head, and no others read it.", _neighbours_share)],
    alternatives=[
        Alternative("without copies: the query heads of a group are an axis of their own", _without_copies),
        Alternative("head by head", _head_by_head),
        Alternative("torch's own kernel", _with_torch),
        Alternative("with einsum", _with_einsum),
    ],
    hints=(
        "With H = 6 and G = 2, which key/value head does each of the six query heads read?",
        "torch has two ways to repeat along an axis: one repeats the whole list, the other each element in place.",
        """share = query.size(1) // key.size(1)
key = ____  # (B, G, S, E) -> (B, H, S, E)
value = ...
return ...  # attention as before""",
    ),
    sample=_sample,
    tries=("float64", "large", "zeros", "repeated"),
    equivalent_mutants={"key -> value (3)": "there are as many value heads as key heads"},
)
