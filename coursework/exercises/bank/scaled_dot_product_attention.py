"""Exercise: scaled dot-product attention with a mask. The pattern for exercises that build a function on tensors."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import mask, normal, strided


def attention(query, key, value, mask=None):
    """(B, H, T, E), (B, H, S, E), (B, H, S, E'), bool (B, H, T, S) -> (B, H, T, E')"""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (B, H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(dim=-1)  # (B, H, T, S), each row sums to one
    if mask is not None:
        weights = weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)  # a row without keys: NaN becomes 0
    return weights @ value  # (B, H, T, E')


def _model(
    scale="width", axis=-1, place="before", fill=-math.inf, inverted=False, empty="zero", softmax="stable",
    detached=False, weights="dot", how="fill",
):  # fmt: skip
    """Attention whose settings are the misconceptions."""

    def attend(query, key, value, mask=None):
        E, S = query.size(-1), key.size(-2)
        divisor = {"width": math.sqrt(E), "none": 1.0, "linear": E, "values": math.sqrt(value.size(-1)),
                   "length": math.sqrt(S), "weights": math.sqrt(E)}[scale]  # fmt: skip
        scores = query @ key.transpose(-2, -1) / (1.0 if scale == "weights" else divisor)
        if weights == "uniform":
            scores = scores * 0
        visible = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
        visible = ~visible if inverted and mask is not None else visible
        hidden = scores.masked_fill(~visible, fill) if place == "before" else scores
        if how == "add" and place == "before":
            hidden = scores + torch.zeros_like(scores).masked_fill(~visible, fill)
        if softmax == "naive":
            powers = hidden.exp()
            attended = powers / powers.sum(axis, keepdim=True)
        elif softmax == "global":
            powers = (hidden - hidden.max()).exp()
            attended = powers / powers.sum(axis, keepdim=True)
        else:
            attended = hidden.softmax(axis)
        if place in ("after", "shared-out", "shared-out-safely"):
            attended = attended * visible
        if place == "shared-out":
            attended = attended / attended.sum(-1, keepdim=True)
        elif place == "shared-out-safely":
            attended = attended / attended.sum(-1, keepdim=True).clamp(min=1e-9)
        if empty == "uniform":
            attended = attended.masked_fill(~visible.any(-1, keepdim=True), 1 / S)
        if empty == "zero":
            attended = attended.masked_fill(~visible.any(-1, keepdim=True), 0.0)
        if empty == "replace":
            attended = attended.nan_to_num(0.0)
        attended = attended / divisor if scale == "weights" else attended
        return (attended.detach() if detached else attended) @ value

    return attend


def _with_torch(query, key, value, mask=None):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _with_einsum(query, key, value, mask=None):
    scores = torch.einsum("bhte,bhse->bhts", query * query.size(-1) ** -0.5, key)
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    weights = scores.softmax(dim=-1).nan_to_num(0.0)  # only empty rows hold NaN
    return torch.einsum("bhts,bhse->bhte", weights, value)


def _with_loops(query, key, value, mask=None):
    B, H, T, E = query.shape
    S = key.size(2)
    visible = torch.ones(B, H, T, S, dtype=torch.bool) if mask is None else mask.expand(B, H, T, S)
    output = torch.zeros(B, H, T, value.size(3), dtype=value.dtype)
    for b in range(B):
        for h in range(H):
            for t in range(T):
                keys = visible[b, h, t].nonzero()[:, 0]
                if len(keys) == 0:
                    continue
                scores = torch.stack([query[b, h, t] @ key[b, h, s] for s in keys]) / math.sqrt(E)
                output[b, h, t] = scores.softmax(dim=0) @ value[b, h, keys]
    return output


@maker
def _case(T, S, E, width, seed, B=1, H=1, mask=None, dtype=torch.float32, scale=1.0):
    query = normal(B, H, T, E, seed=seed, dtype=dtype, scale=scale)
    key = normal(B, H, S, E, seed=seed + 1, dtype=dtype, scale=scale)
    value = normal(B, H, S, width, seed=seed + 2, dtype=dtype)
    return query, key, value, None if mask is None else mask()


def _causal(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def _padding():
    return torch.tensor([[True, True, True, True, True], [True, True, True, False, False]])[:, None, None, :]


def _random():
    return mask(2, 1, 4, 5, seed=44)


def _empty_in_one_head():
    mask = torch.ones(1, 2, 2, 3, dtype=torch.bool)
    mask[:, 1, 0] = False
    return mask


def _first_row_empty():
    return torch.tensor([[False, False, False, False], [True, False, True, True], [True, True, False, True]])


def _low_scores(size):
    query, key = torch.full((1, 1, 2, 4), size), torch.full((1, 1, 3, 4), -size)
    key[:, :, 1] = 0.0  # hidden from both queries, whose visible scores all lie far below
    visible = torch.tensor([[True, False, True], [True, False, False]])
    return query.requires_grad_(), key.requires_grad_(), normal(1, 1, 3, 2, seed=70), visible


def _strided():
    query, key, value, _ = _case(3, 4, 6, 5, seed=80, B=2)()
    return strided(query), strided(key), strided(value), _causal(3, 4)


def _sample(draw):
    B, H, T, S = draw.integer(1, 3), draw.integer(1, 3), draw.integer(1, 6), draw.integer(1, 6)
    E, width = draw.integer(1, 8), draw.integer(1, 8)
    dtype = draw.dtype()
    visible = draw.choice([None, draw.mask(T, S), draw.mask(B, 1, 1, S), draw.mask(B, 1, T, S)])
    scale = draw.choice([0.1, 1.0, 10.0])
    query = draw.normal(B, H, T, E, dtype=dtype, scale=scale)
    return query, draw.normal(B, H, S, E, dtype=dtype), draw.normal(B, H, S, width, dtype=dtype), visible


def _hidden_keys_are_unread(attend) -> str | None:
    query, key, value, visible = _case(3, 5, 4, 2, seed=90, mask=lambda: _causal(3, 5))()
    before = attend(query, key, value, visible)
    for token in (4, 3):
        changed = key.detach().clone()
        changed[:, :, token] += 5.0
        after = attend(query, changed, value, visible)
        for position in range(token - 2):
            if not torch.allclose(before[:, :, position], after[:, :, position], atol=1e-5):
                return f"Changing key {token}, hidden from query {position}, changed the output at position {position}."
    return None


def _output_is_average(attend) -> str | None:
    query, key, _, _ = _case(3, 5, 4, 2, seed=95)()
    output = attend(query, key, torch.ones(1, 1, 5, 2)).detach()
    row = (output - 1).abs().amax(dim=-1).flatten()
    if row.max() > 1e-4:
        position = int((row > 1e-4).nonzero()[0])
        number = float(output.flatten(0, 2)[position, 0])
        return f"With every value equal to 1, the output at position {position} is {number:.4f}."
    return None


EXERCISE = Exercise(
    title="Scaled dot-product attention",
    what="""Write `attention(query, key, value, mask=None)`: the softmax of the scaled scores, times the values.
The scores are divided by the square root of the width of a key. `mask` is boolean, True = may attend, and broadcasts to
`(B, H, T, S)`; hidden keys get weight exactly zero. A query that may attend to nothing gets an output of zeros,
and gradients stay finite. Scores may be of any size.""",
    why="Every model in this course calls this function, and many wrong versions of it run without an error.",
    difficulty=3,
    minutes=15,
    reference=attention,
    model=_model,
    misconceptions=misconceptions("""
no-scale (scale="none"): does not scale the scores
    If the numbers in query and key have size one, how does the size of a score grow with the width?
divide-by-width (scale="linear"): divides the scores by the width of a key, not by a root
    A sum of E random numbers of size one has which standard deviation: E, or something smaller?
scale-by-values (scale="values"): takes the scale from the width of the values
    Which two tensors does a score come from, and does the third one appear in it?
scale-by-length (scale="length"): takes the scale from the number of keys
    Over which axis does one score sum: over the keys, or over something else?
softmax-over-queries (axis=-2): takes the softmax over the queries
    Whose shares must add up to one: those that one query gives, or those that one key receives?
mask-after-softmax (place="after"): applies the mask after the softmax
    When a key is hidden, do the weights that are left in its row still sum to one?
shared-out-again (place="shared-out"): applies the mask after the softmax and then divides each row by what is left
    What is left of a row, in float32, when the hidden scores are 1000 higher than the visible ones?
shared-out-safely (place="shared-out-safely"): applies the mask after the softmax and then divides by what is left, but
        never by zero
    What is left of a row, in float32, when the hidden scores are 1000 higher than the visible ones?
mask-ignored (place="never"): accepts a mask and does not use it
    Which line of your function would change its result if the mask were all False?
mask-inverted (inverted=True): hides the keys for which the mask is True
    What does True mean in this mask: may attend, or is hidden?
fill-zero (fill=0.0): gives hidden keys the score 0
    Which weight does a score of 0 get from a softmax whose other scores are negative?
fill-weak (fill=-30.0): gives hidden keys a moderate negative score such as -30
    What happens to your hidden keys when every visible score in the row is lower still?
fill-finite (fill=-1e4): gives hidden keys a finite score such as -10000
    What happens to your hidden keys when every visible score in the row is lower still?
softmax-overflows (softmax="naive"): takes the exponential of the scores as they are
    What is the exponential of 100 in float32, and what is that number divided by itself?
one-maximum-for-all (softmax="global"): subtracts one maximum of all scores before the exponential
    A row whose scores lie far below those of another row: what do its exponentials come to?
empty-row-average (empty="uniform"): averages all values, hidden ones too, for a query that may attend to nothing
    In a row in which every score has the same very low value, what does a softmax return?
empty-row-nan (empty="nan"): returns NaN for a query that may attend to nothing
    What does a softmax return for a row that is minus infinity everywhere?
gradient-nan (how="add", empty="replace"): adds minus infinity to the scores and replaces NaN at the end, when the
        gradient is NaN already
    Where does the gradient go that flows back through a softmax whose row was NaN?
weights-detached (detached=True): lets no gradient through the weights
    Along which two paths does a change in the key reach the output, and which of them is cut?
query-and-key-unused (weights="uniform"): gives every visible key the same weight
    Does your output change when you change the query?
scale-after-softmax (scale="weights"): divides the weights by the root of the width, after the softmax
    What do the weights of a query sum to after your last step before the values?
"""),
    cases=[
        Case("2 queries, 3 keys, width 4, no mask", _case(2, 3, 4, 5, seed=1)),
        Case("2 queries, 3 keys, a causal mask", _case(2, 3, 4, 5, seed=11, mask=lambda: _causal(2, 3))),
        Case("3 queries, 4 keys, one query may attend to nothing", _case(3, 4, 2, 5, seed=21, mask=_first_row_empty)),
        Case(
            "2 heads, in one of them a query may attend to nothing",
            _case(2, 3, 4, 5, 131, H=2, mask=_empty_in_one_head),
        ),
        Case("2 examples, the second with two padded keys", _case(3, 5, 4, 6, seed=31, B=2, H=3, mask=_padding)),
        Case("2 examples, 3 heads, a random mask", _case(4, 5, 7, 6, seed=41, B=2, H=3, mask=_random)),
        Case("large scores", _case(3, 4, 7, 2, seed=51, scale=60.0)),
        Case("large scores and a causal mask", _case(3, 4, 7, 2, seed=61, scale=60.0, mask=lambda: _causal(3, 4))),
        Case("visible scores of -1800", lambda: _low_scores(30.0)),
        Case("visible scores of -180000", lambda: _low_scores(300.0)),
        Case("inputs that are not contiguous in memory", _strided),
        Case("float64", _case(3, 4, 5, 2, seed=101, mask=lambda: _causal(3, 4), dtype=torch.float64)),
        Case("bfloat16", _case(3, 4, 8, 2, seed=111, mask=lambda: _causal(3, 4), dtype=torch.bfloat16)),
    ],
    properties=[
        Property("A hidden key is never read.", _hidden_keys_are_unread),
        Property("The output is an average of the values: the weights of a query sum to one.", _output_is_average),
    ],
    alternatives=[
        Alternative("torch's own kernel", _with_torch),
        Alternative("with einsum, cleaning up the empty rows at the end", _with_einsum),
        Alternative("with loops that visit only the visible keys", _with_loops),
    ],
    hints=(
        "Three steps turn one query and all keys into one output. What are they, and where do hidden keys drop out?",
        "Hide keys while they are still scores, so that the softmax shares out everything among those left. "
        "Then look at what it returns for a row in which nothing is left.",
        """scores = ...  # query times key, scaled
if mask is not None:
    scores = ____  # hidden keys must end with weight exactly zero
weights = ...  # softmax
...  # a query that may attend to nothing: zeros
return ...""",
    ),
    sample=_sample,
    tries=(
        "float64",
        "bfloat16",
        "large",
        "zeros",
        "repeated",
        "mask of two axes",
        "mask of three axes",
        "mask of four axes",
        "mask by head",
        "mask by example",
        "empty row",
        "empty mask",
    ),
    equivalent_mutants={
        "mask.any(dim=-1, keepdim=True) -> mask": "zeroes every hidden weight, those of an empty row among them",
        "query -> key (2)": "query and key have the same width",
    },
)
