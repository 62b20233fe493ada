"""Exercise: a position scheme of the reader's own, a bias on the scores that obeys stated laws."""

import math

import torch

from coursework.exercises.modules import Unfit
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions

MOVED = "the same wherever query and key stand"
CACHED = "the same for the newest queries alone"
LONGER = "the same in a longer text"
ITSELF = "a finite number for the word itself"
FINITE = "a finite number for all earlier words"
ORDER = "different for some distances"


def own_bias(n_heads, T, S):
    """H, T, S, the last query on the last key -> (H, T, S), to be added to the scores"""
    query = torch.arange(T)[:, None] + (S - T)  # (T, 1): where each query stands among the keys
    distance = query - torch.arange(S)  # (T, S): how far back each key stands
    favourite = torch.arange(n_heads)[:, None, None]  # head h looks h positions back
    return -4.0 * (distance - favourite).abs()


def _model(by="distance", align="right", unit="positions", itself="finite", far="finite", shape="heads"):
    """A bias whose settings are the misconceptions."""

    def bias(n_heads, T, S):
        query = torch.arange(T)[:, None] + (S - T if align == "right" else 0)
        distance = (query - torch.arange(S)).float()
        if by == "nothing":
            distance = torch.zeros(T, S)
        elif by == "key":
            distance = torch.arange(S).float().expand(T, S)
        if unit == "share":
            distance = distance / S
        bias = -(1.0 + torch.arange(n_heads))[:, None, None] * distance.abs().sqrt()
        if itself == "infinite":
            bias = bias.masked_fill(torch.arange(S) == torch.arange(T)[:, None] + (S - T), -math.inf)
        if far == "infinite":
            bias = bias.masked_fill(torch.arange(S) < torch.arange(T)[:, None] + (S - T), -math.inf)
        return bias[0] if shape == "one" else bias

    return bias


def _like_alibi(n_heads, T, S):
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)
    return -(0.5 ** torch.arange(1, n_heads + 1))[:, None, None] * distance.abs()


def _with_a_window(n_heads, T, S):
    distance = torch.arange(S - T, S)[:, None] - torch.arange(S)
    near = (distance >= 0) & (distance < 16)  # as many as training has
    return torch.where(near, 0.0, -30.0).expand(n_heads, T, S)


def _with_a_logarithm(n_heads, T, S):
    rows = [[-math.log(1 + abs(t + S - T - s)) for s in range(S)] for t in range(T)]
    return torch.tensor(rows).repeat(n_heads, 1, 1)


def _with_a_bonus_for_one_distance(n_heads, T, S):
    bias = torch.zeros(n_heads, T, S)
    for t in range(T):
        if t + S - T >= 3:
            bias[0, t, t + S - T - 3] = 9.0
    return bias


def _seen(own_bias, n_heads, T, S):
    """What the bias adds to each key beside what it adds to the word itself; what is later is left out."""
    bias = own_bias(n_heads, T, S)
    if not isinstance(bias, torch.Tensor) or bias.shape != (n_heads, T, S):
        got = tuple(bias.shape) if isinstance(bias, torch.Tensor) else type(bias).__name__
        raise Unfit(f"A tensor of the shape (H, T, S) = {(n_heads, T, S)} is expected, got {got}.")
    earlier = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    own = bias.double().diagonal(S - T, -2, -1)[..., None]  # (H, T, 1)
    return torch.where(earlier, bias.double() - own, 0.0), own, torch.where(earlier, bias.double(), 0.0)


def _run(own_bias, n_heads, T, S):
    part, _, _ = _seen(own_bias, n_heads, T, S)
    square, own, plain = _seen(own_bias, n_heads, S, S)
    longer, _, _ = _seen(own_bias, n_heads, S + 5, S + 5)
    beside = torch.where(torch.eye(S, dtype=torch.bool), 0.0, plain)
    finite = {ITSELF: bool(own.isfinite().all()), FINITE: bool(beside.isfinite().all())}
    if not all(finite.values()):
        return finite
    diagonals = [square.diagonal(-back, -2, -1) for back in range(S)]
    return finite | {
        MOVED: all(_alike(row, row[:, :1]) for row in diagonals),
        CACHED: _alike(part, square[:, S - T :]),
        LONGER: _alike(longer[:, :S, :S], square),
        ORDER: not _alike(_seen(own_bias, n_heads, 1, 40)[0], torch.zeros(1, dtype=torch.float64)),
    }


def _alike(a, b):
    return bool(((a - b).abs() < 1e-3 * (1 + b.abs())).all())


@maker
def _case(n_heads, T, S):
    return n_heads, T, S


def _sample(draw):
    T = draw.integer(1, 8)
    return draw.integer(1, 4), T, T + draw.integer(0, 8)


def _moved_sentence(own_bias) -> str | None:
    if own_bias(2, 12, 12).get(MOVED, True):
        return None
    return "With 12 words, two pairs that stand equally far apart get different numbers beside the word itself."


def _cache(own_bias) -> str | None:
    if own_bias(2, 2, 12).get(CACHED, True):
        return None
    return "For the last 2 of 12 words alone the numbers are not those of the last 2 rows for all 12."


EXERCISE = Exercise(
    title="A position scheme of your own",
    what="""Write `own_bias(n_heads, T, S)`: for each head, what is added to the score of each query with each key,
before the softmax. What you add is your own idea: a head that likes one distance, or several, a slope, a window, or
something else. The next cells train a model with it. It must obey four laws.

- The T queries are the last of S positions: query t stands at position t + S − T.
- Only how far back a key stands may matter, neither where the two stand nor how long the text is. You may still add any
  constant to a query's row, because the softmax cancels it.
- Each key that is not later than its query gets a finite number. To hide a key, use −30 and not minus infinity.
- Your numbers must differ for at least two distances below 40. Otherwise the model knows no order.

A causal mask hides later keys, so you may add anything to those.""",
    why="ALiBi and T5's buckets are two ideas of what a head needs. Here you test one of your own.",
    difficulty=5,
    minutes=15,
    reference=own_bias,
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
no-distance (by="nothing"): adds the same number to all keys of a query
    What does a softmax do with a number that is added to all scores of a row?
by-the-key (by="key"): goes by the number of the key alone
    If five words are put in front of the text, which of your numbers change?
aligned-at-the-start (align="left"): takes the first query to stand at position 0, though there may be more keys
    With one query and seven keys, at which position does the query stand?
share-of-the-text (unit="share"): divides distances by the length of the text
    What does your head like in a text that is twice as long?
nothing-for-itself (itself="infinite"): gives the word itself no finite number
    What is the logarithm of 0, and what is 1 divided by 0?
earlier-words-hidden (far="infinite"): gives earlier words no finite number
    What becomes of a query if all its keys are hidden?
one-for-all-heads (shape="one"): returns one table and not one for each head
    How many tables of T rows and S columns does a layer of H heads need?
"""),
    cases=[
        Case("1 head, 3 queries, 3 keys", _case(1, 3, 3)),
        Case("2 heads, the last query of 4", _case(2, 1, 4)),
        Case("4 heads, 12 queries, 12 keys", _case(4, 12, 12)),
        Case("3 heads, the last 5 of 20", _case(3, 5, 20)),
    ],
    properties=[
        Property("Only the distance matters.", _moved_sentence),
        Property("The newest queries alone get what they get with all others.", _cache),
    ],
    alternatives=[
        Alternative("like ALiBi", _like_alibi),
        Alternative("with a window", _with_a_window),
        Alternative("with a logarithm, which falls slowly", _with_a_logarithm),
        Alternative("with a bonus for one distance", _with_a_bonus_for_one_distance),
    ],
    hints=(
        "The task asks for the token three positions back. What would a head have to like so that it finds exactly "
        "this one, and what so that it still does in a text of 64?",
        "Begin with a table of distances, (T, S): the position of the query minus that of the key. Then turn each "
        "distance into a number, in another way for each head.",
        """query = ...  # (T, 1): where each query stands among the keys
distance = ...  # (T, S)
return ____  # (H, T, S)""",
    ),
    sample=_sample,
    gradients=False,
    equivalent_mutants=dict.fromkeys(
        (
            "query - torch.arange(S) -> torch.arange(S) - query",
            "-4.0 * (distance - favourite).abs() -> -4.0 + (distance - favourite).abs()",
            "(distance - favourite).abs() -> distance - favourite",
            "4.0 -> 5.0",
            "4.0 -> 3.0",
            "distance - favourite -> distance + favourite",
            "distance - favourite -> favourite - distance",
        ),
        "another scheme that obeys the laws",
    ),
)
