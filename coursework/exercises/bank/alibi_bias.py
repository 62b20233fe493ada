"""Exercise: scores lowered by distance."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def alibi_bias(slopes, T, S):
    """(H,), int, int -> (H, T, S): minus slope times distance, aligned at the end"""
    query = torch.arange(T)[:, None] + (S - T)  # (T, 1): where each query stands among the keys
    distance = (query - torch.arange(S)).abs()  # (T, 1) - (S,) -> (T, S)
    return -slopes[:, None, None] * distance  # (H, 1, 1) * (T, S) -> (H, T, S)


def _model(sign=-1, align="right", later="distance", growth="linear", slope="each", measured="distance"):
    """A bias whose settings are the misconceptions."""

    def bias(slopes, T, S):
        first = {"right": S - T, "left": 0, "reversed": T - S, "one-late": S - T + 1}[align]
        signed = torch.arange(T)[:, None] + first - torch.arange(S)
        if measured == "from-start":
            signed = -torch.arange(S).expand(T, S)
        distance = {"distance": signed.abs(), "zero": signed.clamp(min=0), "bonus": signed,
                    "hidden": signed.abs()}[later]  # fmt: skip
        if measured == "from-start":
            distance = signed
        number = distance.to(slopes.dtype)
        if growth == "squared":
            number = number * number.abs()
        elif growth == "share":
            number = number / S
        elif growth == "log":
            number = number.sign() * (1 + number.abs()).log()
        each = slopes[:1].expand(len(slopes)) if slope == "first" else slopes
        if slope == "reversed":
            each = slopes.flip(0)
        if slope == "inverse":
            each = 1 / slopes
        bias = sign * each[:, None, None] * number
        return bias.masked_fill(signed < 0, -math.inf) if later == "hidden" else bias

    return bias


def _with_loops(slopes, T, S):
    rows = [[[-slope * abs(t + S - T - s) for s in range(S)] for t in range(T)] for slope in slopes]
    return torch.stack([torch.stack([torch.stack(row) for row in head]) for head in rows])


def _with_einsum(slopes, T, S):
    distance = torch.arange(S) - torch.arange(S - T, S)[:, None]
    return torch.einsum("h,ts->hts", -slopes, distance.abs().to(slopes.dtype))


def _with_cdist(slopes, T, S):
    key = torch.arange(S, dtype=slopes.dtype)[:, None]
    query = torch.arange(S - T, S, dtype=slopes.dtype)[:, None]
    return -slopes.view(-1, 1, 1) * torch.cdist(query, key, p=1)


def _case(H, T, S, seed, dtype=torch.float32):
    return lambda: (normal(H, seed=seed, dtype=dtype).detach().abs().add(0.1), T, S)


def _sample(draw):
    slopes = draw.normal(draw.integer(1, 4), grad=False).abs() + 0.1
    T = draw.integer(1, 6)
    return slopes, T, T + draw.integer(0, 5)


def _own_place_is_free(bias) -> str | None:
    for T, S in ((3, 3), (2, 5)):
        found = bias(torch.tensor([0.5]), T, S)[0]
        for t in range(T):
            if found[t, t + S - T] != 0:
                value = float(found[t, t + S - T])
                return f"With T={T} and S={S}, query {t} stands on key {t + S - T} and its bias there is {value:.2f}."
    return None


def _farther_is_lower(bias) -> str | None:
    found = bias(torch.tensor([0.5]), 1, 4)[0, 0].tolist()
    if found == sorted(found) and found[0] < found[-1]:
        return None
    return f"One query on key 3 of 4 gives the keys {[round(x, 3) for x in found]}; key 0 is the farthest."


EXERCISE = Exercise(
    title="Scores lowered by distance",
    what="""Write `alibi_bias(slopes, T, S)`: the numbers that ALiBi adds to the scores, of shape `(H, T, S)`, for
slopes of shape `(H,)`, one per head. Entry (h, t, s) is minus the slope of head h times the distance between query t
and key s, in positions, for keys before and after the query alike. The last query stands at the position of the last
key. There are never fewer keys than queries, but there may be more, as while writing with a cache. With T = 2, S = 4
and slope 1, the queries stand at positions 2 and 3, and the rows are −2, −1, 0, −1 and −3, −2, −1, 0. The result has
the dtype of `slopes`, float32 or float64.""",
    why="""ALiBi has no parameters and needs no table: it is this one sum. It is easy to get its sign wrong, and the
position of the first query when there are more keys than queries.""",
    difficulty=2,
    minutes=7,
    reference=alibi_bias,
    model=_model,
    misconceptions=misconceptions("""
raises-far-keys (sign=1): raises the scores with the distance
    Which of two equally fitting keys should win: the near one or the far one?
aligned-top-left (align="left"): puts the first query on the first key, whatever T and S are
    One new query after four cached keys, T=1 and S=5: on which key does it stand?
offset-reversed (align="reversed"): moves the queries in the wrong direction when there are more keys than queries
    One new query after four cached keys, T=1 and S=5: on which key does it stand?
later-keys-free (later="zero"): gives every later key a bias of zero
    How far is key 2 from query 0 when T = S = 3?
later-keys-raised (later="bonus"): raises the scores of later keys the farther they are
    Which sign has the difference of two positions when the key comes later?
grows-with-the-square (growth="squared"): lowers scores by the square of the distance
    By how much more is a key at distance 2 lowered than one at distance 1?
share-of-the-length (growth="share"): divides distances by the number of keys
    Should the bias between two neighbours change when the text gets longer?
logarithm-of-the-distance (growth="log"): lowers scores by a logarithm of the distance
    By how much more is a key at distance 2 lowered than one at distance 1?
one-slope-for-all (slope="first"): uses the slope of the first head in every head
    Does your result change when the second slope changes?
slopes-inverted (slope="inverse"): divides by the slopes
    Does a head with a larger slope look less far, or farther?
heads-reversed (slope="reversed"): gives the slopes to the heads in the opposite order
    To which head does the first slope belong?
counts-from-the-start (measured="from-start"): uses the position of the key alone, not its distance from the query
    Which bias does a query have on its own key?
later-keys-hidden (later="hidden"): gives later keys minus infinity
    Which part of attention hides later keys, and is it the bias?
one-position-late (align="one-late"): places every query one position too late
    One query, one key: how far apart are they, and which number do you add?
"""),
    cases=[
        Case("one head, 1 query, 1 key", _case(1, 1, 1, seed=1)),
        Case("one head, 3 queries, 3 keys", _case(1, 3, 3, seed=2)),
        Case("2 heads, 1 query, 4 keys", _case(2, 1, 4, seed=3)),
        Case("3 heads, 2 queries, 5 keys", _case(3, 2, 5, seed=4)),
        Case("float64", _case(3, 2, 4, seed=6, dtype=torch.float64)),
    ],
    properties=[
        Property("At its own position a query has the bias 0.", _own_place_is_free),
        Property("The farther an earlier key, the lower its bias.", _farther_is_lower),
    ],
    alternatives=[
        Alternative("with loops", _with_loops),
        Alternative("with einsum", _with_einsum),
        Alternative("with the matrix of distances of torch", _with_cdist),
    ],
    hints=(
        "Draw the distances for T=2 queries and S=5 keys on paper. Which query stands on which key?",
        "A column of query positions and a row of key positions give a table of differences. Then each head multiplies "
        "the same table by its own number.",
        """query = torch.arange(T)[:, None] + ____  # where each query stands among the keys
distance = ...  # (T, S)
return ...  # one table a head, (H, T, S)""",
    ),
    sample=_sample,
    tries=("float64", "zeros"),
    gradients=False,
    equivalent_mutants={"query - torch.arange(S) -> torch.arange(S) - query": "a distance has no sign"},
)
