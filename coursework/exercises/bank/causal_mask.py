"""Exercise: the causal mask. The pattern for exercises on sizes, without gradients."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def causal_mask(T, S):
    """int, int -> bool (T, S), True where query i may attend to key j"""
    query = torch.arange(T)[:, None] + (S - T)  # (T, 1): where each query stands among the keys
    key = torch.arange(S)[None, :]  # (1, S)
    return key <= query


def _model(shift=0, align="right", sees="past", form="bool", shape="T,S"):
    """A causal mask whose settings are the misconceptions."""

    def mask(T, S):
        rows, columns = {"T,S": (T, S), "T,T": (T, T), "S,S": (S, S), "S,T": (T, S)}[shape]
        offset = {"right": columns - rows, "left": 0, "never-before": max(columns - rows, 0),
                  "absolute": abs(columns - rows)}[align]  # fmt: skip
        distance = torch.arange(columns)[None, :] - (torch.arange(rows)[:, None] + offset)  # > 0: a later key
        past, everything = distance <= shift, distance <= columns + rows
        visible = {"past": past, "hidden": ~past, "future": distance >= -shift, "all": everything}[sees]
        visible = visible.T if shape == "S,T" else visible
        if form == "additive":
            return torch.zeros(visible.shape).masked_fill(~visible, -math.inf)
        return visible if form == "bool" else visible.float()

    return mask


def _with_tril(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)


def _by_what_is_hidden(T, S):
    return ~torch.ones(T, S, dtype=torch.bool).triu(diagonal=S - T + 1)


def _with_loops(T, S):
    mask = torch.zeros(T, S, dtype=torch.bool)
    for i in range(T):
        for j in range(S):
            mask[i, j] = j <= i + (S - T)
    return mask


def _rows_of_the_square(T, S):
    size = max(T, S)
    square = torch.ones(size, size, dtype=torch.bool).tril()
    return square[size - T :, size - S :]  # the last T queries, the last S keys


def _with_course(T, S):
    from course_lib import masks

    return masks.causal_mask(T, S)


def _case(T, S, what):
    return Case(f"T={T}, S={S}: {what}", lambda: (T, S))


def _sample(draw):
    return draw.integer(1, 9), draw.integer(1, 9)


def _nothing_later(mask) -> str | None:
    for T, S in ((3, 3), (2, 5)):
        found = mask(T, S)
        for i in range(T):
            for j in range(i + S - T + 1, S):
                if found[i, j]:
                    return f"With T={T} and S={S}, query {i} stands on key {i + S - T} and may attend to key {j}."
    return None


def _everything_before(mask) -> str | None:
    for T, S in ((3, 3), (2, 5)):
        found = mask(T, S)
        for i in range(T):
            for j in range(i + S - T + 1):
                if not found[i, j]:
                    return f"With T={T} and S={S}, query {i} stands on key {i + S - T} and may not attend to key {j}."
    return None


EXERCISE = Exercise(
    title="The causal mask",
    what="""Write `causal_mask(T, S)`: a boolean mask of shape `(T, S)`, True = may attend, for T queries and S keys. A
query may attend to the key at its own position and to all earlier ones. The last query always stands on the last key.
So `causal_mask(2, 4)` has the rows `1110` and `1111`: the first two keys are older tokens that every query sees. The
rare `causal_mask(3, 2)` has the rows `00`, `10` and `11`: its first query stands before all keys and sees nothing.""",
    why="""A model that predicts the next token must not see it. Masks that are off by one, or aligned at the wrong
corner, run without an error and leak it.""",
    difficulty=2,
    minutes=8,
    reference=causal_mask,
    model=_model,
    misconceptions=misconceptions("""
# with True for hidden it would be the same as seeing the future
hides-itself (shift=-1, sees="past"): hides the key at the query's own position
    When the first of several tokens asks, which keys are there for it to attend to?
sees-the-next (shift=1): shows each query one key too many, the next token
    Which token is the model asked to predict at a position, and can it see that token?
aligned-top-left (align="left"): puts the first query on the first key, whatever T and S are
    One new token arrives after four kept ones, T=1 and S=5: how many keys should it see?
sees-the-future (sees="future"): shows each query its own position and all later ones
    Is the row of your mask the query or the key?
sees-everything (sees="all"): hides nothing at all
    Which key should the first of three queries not see, and what does your mask say about it?
true-is-hidden (sees="hidden"): returns True for what is hidden
    What does True stand for in this course: may attend, or is hidden?
numbers-to-add (form="additive"): returns numbers to add to the scores, 0 and minus infinity
    Which type does the task ask for, and what would `~mask` do to your result?
ones-and-zeros (form="float"): returns the numbers 1 and 0 in place of True and False
    Which type does the task ask for, and what would `~mask` do to your result?
square-of-queries (shape="T,T"): returns a square with T rows and T columns
    How many keys can a query choose from?
square-of-keys (shape="S,S"): returns a square with S rows and S columns
    How many queries are there, and what does one row of the mask belong to?
rows-are-keys (shape="S,T"): returns the mask with a row for each key
    What does one row of the scores belong to: a query or a key?
no-query-before-the-first-key (align="never-before"): places the first query on the first key when there are fewer keys
        than queries
    With 4 queries and 2 keys, on which key does the last query of your function stand?
offset-without-its-sign (align="absolute"): moves the queries forward also when there are fewer keys than queries
    With 4 queries and 2 keys, on which key does the last query of your function stand?
"""),
    cases=[
        _case(1, 1, "one token"),
        _case(3, 3, "as many keys as queries"),
        _case(1, 4, "one new token after three kept ones"),
        _case(2, 5, "two new tokens after three kept ones"),
        _case(4, 2, "fewer keys than queries"),
        _case(6, 7, "a larger one"),
    ],
    properties=[
        Property("No query may attend to a later key.", _nothing_later),
        Property("Every query may attend to its own position and to all earlier ones.", _everything_before),
    ],
    alternatives=[
        Alternative("the lower triangle, with its diagonal moved", _with_tril),
        Alternative("by what is hidden", _by_what_is_hidden),
        Alternative("with loops", _with_loops),
        Alternative("the last rows and columns of a square", _rows_of_the_square),
        Alternative("the course's own function, which also checks its arguments", _with_course),
    ],
    hints=(
        "Draw the mask for T=2 and S=5 on paper. On which key does query 0 stand?",
        "Give every query the number of the key on which it stands; it is not its own number when S differs from T. "
        "Comparing a column of numbers with a row of numbers gives a table.",
        """query = torch.arange(T)[:, None] + ____  # where each query stands among the keys
key = torch.arange(S)[None, :]
return ...  # compare them""",
    ),
    sample=_sample,
    gradients=False,
)
