"""Exercise: the mask of a causal sliding window."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def sliding_window_mask(T, S, window):
    """int, int, int -> bool (T, S): True where a query may attend;
    the last query stands on the last key"""
    queries = torch.arange(S - T, S)[:, None]  # (T, 1), positions among the keys
    distance = queries - torch.arange(S)  # (T, S), how far back each key lies
    return (distance >= 0) & (distance < window)


def _model(reach=0, sides="past", align="bottom-right", own=True, inverted=False, width="window"):
    """A window whose settings are the misconceptions."""

    def mask(T, S, window):
        offset = {"bottom-right": S - T, "top-left": 0, "mirrored": T - S}[align]
        distance = torch.arange(T)[:, None] + offset - torch.arange(S)
        limit = {"window": window, "half": (window + 1) // 2}[width] + reach
        visible = {
            "past": (distance >= 0) & (distance < limit),
            "both": distance.abs() < limit,
            "future": (distance <= 0) & (distance > -limit),
            "all": distance >= 0,
            "later-too": distance < limit,
            "far": distance >= limit,
        }[sides]
        if not own:
            visible = visible & (distance != 0)
        return ~visible if inverted else visible

    return mask


def _with_tril(T, S, window):
    everything = torch.ones(T, S, dtype=torch.bool)
    return everything.tril(S - T) & everything.triu(S - T - window + 1)


def _with_loops(T, S, window):
    mask = torch.zeros(T, S, dtype=torch.bool)
    for i in range(T):
        last = i + S - T  # the key that this query stands on
        for j in range(S):
            mask[i, j] = last - window < j <= last
    return mask


def _with_course(T, S, window):
    from course_lib.masks import sliding_window_mask

    return sliding_window_mask(T, S, window=window)


def _sample(draw):
    T = draw.integer(1, 7)
    return T, T + draw.integer(0, 4), draw.integer(1, 9)


def _rows_hold_the_window(sliding_window_mask) -> str | None:
    mask = sliding_window_mask(7, 9, 3)
    counts = mask.sum(-1).tolist()
    return None if counts == [3] * 7 else f"With 7 queries, 9 keys and a window of 3 the rows see {counts} keys."


def _every_query_sees_itself(sliding_window_mask) -> str | None:
    mask = sliding_window_mask(3, 5, 2)
    for i in range(3):
        if not mask[i, i + 2]:
            return f"With 3 queries and 5 keys, query {i} does not see key {i + 2}, on which it stands."
    return None


EXERCISE = Exercise(
    title="A window that slides",
    what="""Write `sliding_window_mask(T, S, window)`: each query sees the `window` latest keys, the one it stands on
included, and nothing later. `S` may exceed `T`: then the first `S - T` keys come from a cache, and the last query
stands on the last key. True = may attend. `window` is at least 1.""",
    why="""If masked scores are skipped, the cost of attention falls from n² to n times the window; if old keys are
dropped, the cache stops growing. Mistral's first model used a window of 4096.""",
    difficulty=2,
    minutes=8,
    reference=sliding_window_mask,
    model=_model,
    misconceptions=misconceptions("""
one-too-many (reach=1): lets each query see one key more than the window
    With a window of 1, which keys does a query see?
one-too-few (reach=-1): lets each query see one key fewer than the window
    Does the key on which a query stands count as part of the window?
both-sides (sides="both"): lets the window reach into the future as well
    What may the first query see of the second token?
future-only (sides="future"): looks ahead instead of back
    Is a query's position minus a key's position positive for earlier keys, or for later ones?
no-window (sides="all"): shows all earlier keys, however far back
    With a window of 2, how many keys may the last of 7 queries see?
far-keys-only (sides="far", inverted=False): shows the keys beyond the window and hides those in it
    Are near keys visible, or far ones?
aligned-top-left (align="top-left"): places the first query on the first key, also when there are more keys than queries
    With 1 query and 6 keys, which key does the query stand on?
offset-reversed (align="mirrored"): moves the window in the wrong direction when there are more keys than queries
    With 3 cached keys, on which key does the first query stand?
own-key-hidden (own=False): hides from each query the key on which it stands
    With a window of 1, what is left to attend to?
inverted (inverted=True): returns True for hidden keys
    What does True mean in a mask of this course?
half-window (width="half"): looks back half the window
    On how many sides of the query may a causal window lie?
later-keys-seen (sides="later-too", inverted=False): ends the window in the past and leaves it open towards the future
    What is the distance of a key that comes after the query, and what do you ask of it?
"""),
    cases=[
        Case("2 queries, 2 keys, window 1", lambda: (2, 2, 1)),
        Case("3 queries, 3 keys, window 2", lambda: (3, 3, 2)),
        Case("1 query, 6 keys, window 3", lambda: (1, 6, 3)),
        Case("3 queries, 5 keys, window 2", lambda: (3, 5, 2)),
        Case("7 queries, 7 keys, window 4", lambda: (7, 7, 4)),
        Case("a window longer than the sequence", lambda: (4, 5, 9)),
    ],
    properties=[
        Property("Away from the start, every query sees exactly `window` keys.", _rows_hold_the_window),
        Property("Every query sees the key on which it stands.", _every_query_sees_itself),
    ],
    alternatives=[
        Alternative("with tril and triu", _with_tril),
        Alternative("pair by pair", _with_loops),
        Alternative("the course's own function", _with_course),
    ],
    gradients=False,
    hints=(
        "How far back, in positions, lies key j from query i?",
        "Write all distances as one (T, S) table by subtracting a row from a column; two comparisons do the rest.",
        """queries = torch.arange(S - T, S)[:, None]  # (T, 1)
distance = queries - torch.arange(S)  # (T, S)
return ____""",
    ),
    sample=_sample,
)
