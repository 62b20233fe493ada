"""Exercise: a mask that hides padding from every query."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import integers, strided


def padding_mask(tokens, pad_id):
    """Tokens (B, S), the padding's id -> bool (B, 1, 1, S), True = may attend"""
    return (tokens != pad_id)[:, None, None, :]  # (B, S) -> (B, 1, 1, S)


def _model(test="unequal", inverted=False, layout="keys", result="bool"):
    """A padding mask whose settings are the misconceptions."""

    def mask(tokens, pad_id):
        real = tokens != pad_id
        if test == "zero":
            real = tokens != 0
        elif test == "greater":
            real = tokens > pad_id
        elif test == "first":
            real = real.cumprod(dim=-1).bool()
        elif test == "count":
            real = torch.arange(tokens.size(-1)) < real.sum(dim=-1, keepdim=True)
        real = ~real if inverted else real
        visible = _laid_out(real, layout)
        if result == "int":
            return visible.int()
        if result == "float":
            return visible.float()
        return torch.zeros(visible.shape).masked_fill(~visible, -math.inf) if result == "additive" else visible

    return mask


def _laid_out(real, layout):
    if layout == "plain":
        return real  # (B, S)
    if layout == "three":
        return real[:, None, :]  # (B, 1, S)
    if layout == "queries":
        return real[:, None, :, None]  # (B, 1, S, 1)
    if layout == "both":
        return real[:, None, :, None] & real[:, None, None, :]  # (B, 1, S, S)
    if layout == "square":
        return real[:, None, None, :].expand(-1, -1, real.size(-1), -1)  # (B, 1, S, S)
    if layout == "batch-as-queries":
        return real[None, None]  # (1, 1, B, S)
    if layout == "batch-as-heads":
        return real[None, :, None, :]  # (1, B, 1, S)
    return real[:, None, None, :]


def _with_unsqueeze(tokens, pad_id):
    return tokens.ne(pad_id).unsqueeze(1).unsqueeze(1)


def _with_view(tokens, pad_id):
    B, S = tokens.shape
    return (tokens == pad_id).logical_not().reshape(B, 1, 1, S)


def _with_loops(tokens, pad_id):
    B, S = tokens.shape
    mask = torch.ones(B, 1, 1, S, dtype=torch.bool)
    for b in range(B):
        for s in range(S):
            if tokens[b, s] == pad_id:
                mask[b, 0, 0, s] = False
    return mask


def _with_course(tokens, pad_id):
    from course_lib import masks

    return masks.padding_mask(tokens, pad_id)


def _case(*rows, pad, dtype=torch.int64):
    return lambda: (torch.tensor(rows, dtype=dtype), pad)


def _strided():
    return strided(torch.tensor([[4, 9, 0], [4, 0, 0]])), 0


def _sample(draw):
    tokens = draw.integers(draw.integer(1, 4), draw.integer(1, 6), low=0, high=4)
    return tokens.to(draw.choice([torch.int64, torch.int32])), draw.integer(0, 4)


def _hides_from_every_query(mask) -> str | None:
    tokens = torch.tensor([[5, 8, 6, 0], [5, 7, 0, 0]])
    weights = torch.zeros(2, 3, 5, 4).masked_fill(~mask(tokens, 0), -math.inf).softmax(dim=-1)
    for b, real in enumerate((3, 2)):
        padding, found = weights[b, :, :, real:], float(weights[b, 0, 0, :real].sum())
        if not (padding == 0).all() or abs(found - 1) > 1e-4:
            return f"With 3 heads and 5 queries, the {real} real tokens of example {b} get {found:.2f} of the weight."
    return None


def _only_padding_is_hidden(mask) -> str | None:
    tokens = torch.tensor([[3, 9, 1, 4, 4]])
    hidden = int((mask(tokens, 4) == 0).sum())
    return None if hidden == 2 else f"For the tokens 3, 9, 1, 4, 4 and pad_id 4, the mask hides {hidden}."


EXERCISE = Exercise(
    title="Hide the padding from every query",
    what="""Write `padding_mask(tokens, pad_id)`. `tokens` holds the ids of B sentences, filled up to the length S
with `pad_id`, which may be any id and may stand at the start as well as at the end. Return a boolean mask of shape
`(B, 1, 1, S)`, True = may attend. It broadcasts to `(B, H, T, S)`: the same keys are hidden from every head and
query.""",
    why="""Sentences in a batch have different lengths. Without this mask, and without a causal one, the padding takes
part in every average, and the answer for a sentence depends on how long its neighbours in the batch are.""",
    difficulty=2,
    minutes=5,
    reference=padding_mask,
    model=_model,
    misconceptions=misconceptions("""
inverted (inverted=True): returns True for padding and False for real tokens
    What does True mean in this course's masks, and which tokens may be attended to?
pad-id-ignored (test="zero"): takes 0 for padding, whatever `pad_id` says
    Which line of your function changes its result when `pad_id` is 7?
ids-above-padding (test="greater"): takes only ids larger than `pad_id` for real tokens
    If `pad_id` is 7, is the token 3 padding?
all-after-first-padding (test="first"): hides everything from the first padding on
    What does your mask leave of a sentence that is padded at its start?
counts-real-tokens (test="count"): counts the real tokens and takes them to stand at the start
    Which tokens does your mask show of a sentence that is padded at its start?
no-head-and-query-axes (layout="plain"): returns the shape (B, S)
    Against scores of shape (B, H, T, S), which two axes would your mask line up with?
one-axis-missing (layout="three"): returns the shape (B, 1, S)
    Against scores of shape (B, H, T, S), which axis would the B of your mask line up with?
hides-queries (layout="queries"): returns the shape (B, 1, S, 1), which hides queries and no keys
    Which axis of the scores lists the tokens that are looked at?
hides-queries-too (layout="both"): hides padded queries as well as padded keys, with shape (B, 1, S, S)
    Does the function know how many queries there will be, and can a padded query disturb a real token?
copied-for-each-query (layout="square"): repeats the mask S times, to the shape (B, 1, S, S)
    What happens to your mask when T, the number of queries, is not S?
batch-on-the-head-axis (layout="batch-as-heads"): returns the shape (1, B, 1, S)
    Which axis of scores of shape (B, H, T, S) numbers the sentences?
numbers (result="int"): returns the whole numbers 0 and 1 in place of False and True
    What does `~` make of the number 1, and of the value True?
floats (result="float"): returns the numbers 0.0 and 1.0 in place of False and True
    A mask of floating-point numbers is added to the scores: what would adding 1.0 do?
additive (result="additive"): returns numbers to add to the scores, 0 and minus infinity
    Of which type should the mask be, and what could you still combine with yours by a logical and?
batch-on-the-query-axis (layout="batch-as-queries"): puts the sentences on the axis of the queries
    On which axis of (B, H, T, S) are the sentences, counted from the left?
"""),
    cases=[
        Case("1 sentence of 2 tokens, pad_id 0", _case([5, 0], pad=0)),
        Case("2 sentences of 3 tokens, pad_id 0", _case([5, 8, 6], [5, 7, 0], pad=0)),
        Case("pad_id 7, and 0 is a word", _case([0, 3, 9, 7, 7], [2, 9, 7, 7, 7], pad=7)),
        Case("padding at the start", _case([1, 1, 4, 5, 9], [1, 4, 3, 8, 2], pad=1)),
        Case("a sentence that is all padding", _case([0, 0, 0], [4, 0, 0], pad=0)),
        Case("as many sentences as tokens", _case([4, 2, 0], [3, 0, 0], [6, 1, 5], pad=0)),
        Case("pad_id -1, tokens of type int32", _case([2, 0, -1, -1], [3, -1, -1, -1], pad=-1, dtype=torch.int32)),
        Case("not contiguous in memory", _strided),
        Case("3 sentences of 7 tokens", lambda: (integers(3, 7, low=0, high=3, seed=1), 2)),
    ],
    properties=[
        Property("No head and no query sees padding, and each sees every real token.", _hides_from_every_query),
        Property("Nothing but padding is hidden.", _only_padding_is_hidden),
    ],
    alternatives=[
        Alternative("with unsqueeze", _with_unsqueeze),
        Alternative("with reshape", _with_view),
        Alternative("with loops", _with_loops),
        Alternative("the course's own function, which also checks its arguments", _with_course),
    ],
    hints=(
        "Of the four axes of the scores, (B, H, T, S), along which two does the padding mask vary?",
        "Comparing the tokens with `pad_id` gives a boolean tensor of shape (B, S). Axes of length 1 stand for what is "
        "the same for all; put them where heads and queries are.",
        """real = ____  # bool (B, S), True where a token may be attended to
return real[:, None, None, :]  # (B, 1, 1, S)""",
    ),
    sample=_sample,
    tries=("int32", "int64", "repeated", "far"),
    gradients=False,
)
