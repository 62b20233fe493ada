"""Exercise: multi-head self-attention from its four matrices."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def multi_head_attention(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    """(B, T, D), three of (D, H * E), (H * E, D), H, bool mask -> (B, T, D)"""
    B, T = x.shape[:2]

    def heads(W):
        return (x @ W).reshape(B, T, n_heads, -1).transpose(1, 2)  # (B, T, H, E) -> (B, H, T, E)

    query, key, value = heads(W_query), heads(W_key), heads(W_value)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)  # (B, H, T, E)
    return output.transpose(1, 2).reshape(B, T, -1) @ W_output  # (B, T, H, E) -> (B, T, H * E) -> (B, T, D)


def _model(scale="head", split="right", merge="right", output="matrix", masking="right", inputs="all"):
    """Multi-head attention whose settings are the misconceptions."""

    def attend(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
        B, T, D = x.shape
        H, E = n_heads, W_query.size(1) // n_heads

        def heads(projected):
            if split == "view-only":
                return projected.reshape(B, H, T, E)
            if split == "one-head":
                return projected[:, None]
            if split == "strided":
                return projected.reshape(B, T, E, H).permute(0, 3, 1, 2)
            return projected.reshape(B, T, H, E).transpose(1, 2)

        query, key = heads(x @ W_query), heads(x @ (W_query if inputs == "keys-from-queries" else W_key))
        value = heads(x @ (W_key if inputs == "values-from-keys" else W_value))
        if inputs == "keys-and-values":
            key, value = value, key
        divisor = {"head": math.sqrt(E), "model": math.sqrt(D), "projected": math.sqrt(H * E), "none": 1.0,
                   "width": E}[scale]  # fmt: skip
        scores = query @ key.mT / divisor
        if mask is not None and masking == "product":
            scores = scores * mask
        elif mask is not None and masking != "ignored":
            visible = ~mask if masking == "inverted" else mask
            if masking == "by-sentence" and mask.dim() == 3:
                visible = mask[:, None]
            scores = scores.masked_fill(~visible, -math.inf)
        attended = scores.softmax(-1) @ value
        if merge == "reshape-only":
            merged = attended.reshape(B, T, H * E)
        elif merge == "strided":
            merged = attended.permute(0, 2, 3, 1).reshape(B, T, H * E)
        else:
            merged = attended.transpose(1, 2).reshape(B, T, H * E)
        if output == "none":
            return merged
        return merged @ W_output + (x if output == "residual" else 0)

    return attend


def _head_by_head(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    B, T = x.shape[:2]
    E = W_query.size(1) // n_heads
    visible = None if mask is None else mask.expand(B, n_heads, T, T)
    total = torch.zeros_like(x)
    for h in range(n_heads):
        own = slice(h * E, (h + 1) * E)
        scores = (x @ W_query[:, own]) @ (x @ W_key[:, own]).mT / math.sqrt(E)  # (B, T, T)
        if visible is not None:
            scores = scores.masked_fill(~visible[:, h], -math.inf)
        total = total + scores.softmax(dim=-1) @ (x @ W_value[:, own]) @ W_output[own]  # each head writes to the sum
    return total


def _with_einsum(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    D = x.size(-1)
    query, key, value = (torch.einsum("btd,dhe->bhte", x, W.reshape(D, n_heads, -1)) for W in (W_query, W_key, W_value))
    scores = torch.einsum("bhte,bhse->bhts", query, key) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf)
    heads = torch.einsum("bhts,bhse->bhte", scores.softmax(dim=-1), value)
    return torch.einsum("bhte,hed->btd", heads, W_output.reshape(n_heads, -1, D))


def _with_one_product(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    from course_lib.attention import scaled_dot_product_attention
    from course_lib.multi_head import merge_heads, split_heads

    joined = torch.cat([W_query, W_key, W_value], dim=1)
    query, key, value = (split_heads(part.contiguous(), n_heads) for part in (x @ joined).chunk(3, dim=-1))
    mask = mask if mask is None or mask.dim() == 2 else mask.expand(x.size(0), n_heads, -1, -1)
    return merge_heads(scaled_dot_product_attention(query, key, value, mask=mask)) @ W_output


@maker
def _case(B, T, D, H, E, seed, mask=None, dtype=torch.float32):
    weights = [normal(D, H * E, seed=seed + n, dtype=dtype) for n in (1, 2, 3)]
    x, W_output = normal(B, T, D, seed=seed, dtype=dtype), normal(H * E, D, seed=seed + 4, dtype=dtype)
    return x, *weights, W_output, H, None if mask is None else mask()


def _causal(T):
    return lambda: torch.ones(T, T, dtype=torch.bool).tril()


def _padding():
    return (torch.arange(5) < torch.tensor([5, 3])[:, None])[:, None, None]  # (B, 1, 1, S)


def _for_each_head():
    return torch.stack([torch.ones(3, 3, dtype=torch.bool).tril(), torch.eye(3, dtype=torch.bool)])  # (H, T, T)


def _sample(draw):
    B, T, D, H, E = (draw.integer(1, high) for high in (3, 5, 6, 4, 4))
    dtype = draw.dtype()
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    first = torch.arange(T)[None, None, None] < draw.integer(1, T)
    weights = [draw.normal(D, H * E, dtype=dtype, scale=0.5) for _ in range(3)]
    x, W_output = draw.normal(B, T, D, dtype=dtype), draw.normal(H * E, D, dtype=dtype)
    return x, *weights, W_output, H, draw.choice([None, causal, first])


def _later_tokens_are_unread(attend) -> str | None:
    x, *rest = _case(1, 3, 5, 2, 2, seed=81, mask=_causal(3))()
    changed = x.detach().clone()
    changed[:, 2] += 3.0
    before, after = attend(x, *rest), attend(changed, *rest)
    for position in (0, 1):
        if not torch.allclose(before[:, position], after[:, position], atol=1e-5):
            return f"Under a causal mask, changing token 2 changed the output at position {position}."
    return None


def _heads_add_up(attend) -> str | None:
    x, W_query, W_key, W_value, W_output, _, _ = _case(1, 3, 5, 2, 2, seed=91)()
    whole = attend(x, W_query, W_key, W_value, W_output, 2)
    total = torch.zeros_like(whole)
    for h in range(2):
        alone = W_output.detach().clone()
        alone[2 * (1 - h) : 2 * (2 - h)] = 0.0  # silence the other head
        total = total + attend(x, W_query, W_key, W_value, alone, 2)
    if not torch.allclose(whole, total, atol=1e-4):
        return "The output is not the sum of what each of two heads contributes alone."
    return None


EXERCISE = Exercise(
    title="Multi-head attention",
    what="""Write `multi_head_attention(x, W_query, W_key, W_value, W_output, n_heads, mask=None)`: self-attention
with `n_heads` heads, from its four matrices and without biases. Head 0 owns the first E columns of the first
three, head 1 the next E, and so on; E need not be D / H. Each head attends by itself, with scores divided by the root
of its own width; the outputs stand side by side, head 0 first, and `W_output` maps them back. `mask` is boolean, True
= may attend, and broadcasts to `(B, H, T, T)`. You may rely on at least one True for each query.""",
    why="This is the layer of the 2017 paper: its figure 2, and the equation of its section 3.2.2.",
    difficulty=3,
    minutes=15,
    reference=multi_head_attention,
    model=_model,
    misconceptions=misconceptions("""
scale-by-model-width (scale="model"): divides the scores by the root of the model's width
    How many products does one score of one head add up?
scale-by-all-heads (scale="projected"): divides the scores by the root of the width of all heads together
    How many products does one score of one head add up?
no-scale (scale="none"): does not scale the scores
    By what did chapter 1 divide the scores, and why?
divide-by-width (scale="width"): divides the scores by the width of a head, not by its root
    How does the spread of a sum of E random products grow with E?
split-by-view (split="view-only"): splits into heads by a reshape alone, so that a head gets parts of other tokens
    Under a causal mask, does your output at position 0 change with the last token?
one-wide-head (split="one-head"): attends once with the whole width, as one head
    How many maps of weights does your function form for one sentence?
merge-by-reshape (merge="reshape-only"): merges the heads by a reshape alone, which scrambles tokens and heads
    Which two axes have to be neighbours before they can become one?
no-output-matrix (output="none"): leaves out the output matrix
    Which of the arguments does your function never use?
input-added (output="residual"): adds the input to the output
    What should come out if W_output is zero?
mask-ignored (masking="ignored"): accepts a mask and does not use it
    Which line of your function would change its result if the mask hid all but one key?
mask-inverted (masking="inverted"): hides the keys for which the mask is True
    What does True mean in this mask: may attend, or is hidden?
mask-by-sentence (masking="by-sentence"): reads the first axis of a mask (H, T, T) as the sentences
    Lined up with (B, H, T, T) from the right, where does the first axis of a mask (2, T, T) stand?
keys-from-queries (inputs="keys-from-queries"): makes the keys with the matrix of the queries
    Which matrix turns a token into what it can be found by?
values-from-keys (inputs="values-from-keys"): makes the values with the matrix of the keys
    Which matrix turns a token into what it hands over?
strided-heads (split="strided"): gives head h every H-th column in place of a block of neighbouring ones
    With H of 2, which columns of `W_query` does head 0 read?
strided-merge (merge="strided"): puts the columns of the heads in turn, first number of each head first
    With two heads, which number stands beside the first number of head 0 after merging?
keys-and-values-exchanged (inputs="keys-and-values"): compares the queries with the values and averages the keys
    Which matrix decides where a query looks, and which one what it gets from there?
scores-times-mask (masking="product"): multiplies the scores by the mask, which leaves a score of zero
    Which share of the weight does a score of zero get beside negative scores?
"""),
    cases=[
        Case("2 tokens of width 3, 2 heads of width 1", _case(1, 2, 3, 2, 1, seed=1)),
        Case("3 tokens of width 5, 2 heads of width 2", _case(1, 3, 5, 2, 2, seed=11)),
        Case("2 sentences, a causal mask", _case(2, 3, 5, 3, 2, seed=21, mask=_causal(3))),
        Case("2 sentences, the second padded", _case(2, 5, 7, 3, 2, seed=31, mask=_padding)),
        Case("2 sentences, 2 heads, a mask for each head", _case(2, 3, 5, 2, 2, seed=71, mask=_for_each_head)),
        Case("one head", _case(2, 3, 5, 1, 4, seed=41)),
        Case("heads wider together than the model", _case(2, 4, 3, 5, 2, seed=51, mask=_causal(4))),
        Case("float64", _case(2, 3, 6, 2, 3, seed=61, mask=_causal(3), dtype=torch.float64)),
    ],
    properties=[
        Property("Under a causal mask no output depends on a later token.", _later_tokens_are_unread),
        Property("The output is the sum of what the heads contribute.", _heads_add_up),
    ],
    alternatives=[
        Alternative("head by head: each adds its part to the sum", _head_by_head),
        Alternative("with einsum, the heads an axis of the matrices", _with_einsum),
        Alternative("with one product for queries, keys and values, and the course's own functions", _with_one_product),
    ],
    hints=(
        "Which of the steps mix heads with each other, and which must keep them apart?",
        "Project, split, attend, merge, project. You have written those in the middle already; the scale belongs to "
        "the width of a head.",
        """query, key, value = ...  # project, then split: (B, H, T, E) each
output = ____  # every head by itself: (B, H, T, E)
merged = ...  # (B, T, H * E)
return ...""",
    ),
    sample=_sample,
    tries=(
        "float64",
        "zeros",
        "repeated",
        "mask of two axes",
        "mask of three axes",
        "mask of four axes",
        "mask by head",
        "mask by example",
    ),
    tolerance=(1e-3, 1e-4),
)
