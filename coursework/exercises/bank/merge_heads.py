"""Exercise: put the outputs of the heads side by side again."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal, strided


def merge_heads(x):
    """(B, H, T, E) -> (B, T, H * E)"""
    B, H, T, E = x.shape
    return x.transpose(1, 2).reshape(B, T, H * E)  # (B, H, T, E) -> (B, T, H, E) -> (B, T, H * E)


def _model(order="tokens-first", join="side-by-side", shape="merged"):
    """Merging whose settings are the misconceptions."""

    def merge(x):
        B, H, T, E = x.shape
        if join == "sum":
            return x.sum(dim=1)
        if join == "mean":
            return x.mean(dim=1)
        if join == "first":
            return x[:, 0]
        if order == "view-only":
            merged = x.reshape(B, T, H * E)
        elif order == "last-two":
            merged = x.transpose(2, 3).reshape(B, T, H * E)
        elif join == "dealt":
            merged = x.permute(0, 2, 3, 1).reshape(B, T, E * H)  # the heads' columns in turn
        elif join == "reversed":
            merged = x.flip(1).transpose(1, 2).reshape(B, T, H * E)
        else:
            merged = x.transpose(1, 2).reshape(B, T, H * E)
        if shape == "long":
            return merged.reshape(B, T * H, E)
        return merged.reshape(B * T, H * E) if shape == "flat" else merged

    return merge


def _with_cat(x):
    return torch.cat(list(x.unbind(dim=1)), dim=-1)  # H of (B, T, E) -> (B, T, H * E)


def _with_flatten(x):
    return x.permute(0, 2, 1, 3).flatten(2)


def _with_contiguous(x):
    return x.transpose(1, 2).contiguous().view(x.size(0), x.size(2), -1)


def _with_course(x):
    from course_lib.multi_head import merge_heads

    return merge_heads(x)


def _case(B, H, T, E, seed, dtype=torch.float32):
    return lambda: (normal(B, H, T, E, seed=seed, dtype=dtype),)


def _strided():
    return (strided(normal(2, 3, 5, 2, seed=41)),)


def _sample(draw):
    shape = draw.integer(1, 4), draw.integer(1, 5), draw.integer(1, 5), draw.integer(1, 5)
    return (draw.normal(*shape, dtype=draw.dtype()),)


def _undoes_the_split(merge) -> str | None:
    x = normal(2, 3, 10, seed=51)
    heads = x.reshape(2, 3, 5, 2).transpose(1, 2)  # (B, T, H, E) -> (B, H, T, E)
    back = merge(heads)
    if back.shape != x.shape:
        return f"Splitting (2, 3, 10) into 5 heads and merging them gives the shape {tuple(back.shape)}."
    if not torch.allclose(back, x):
        return "Splitting x into 5 heads and merging them gives other numbers than x."
    return None


EXERCISE = Exercise(
    title="Merge the heads",
    what="""Write `merge_heads(x)`: put the outputs of the heads side by side, head 0 first, so that `(B, H, T, E)`
becomes `(B, T, H * E)`. It undoes `split_heads`.""",
    why="""A `reshape` without the exchange of axes runs as well, and scrambles the sentence.""",
    difficulty=2,
    minutes=5,
    reference=merge_heads,
    model=_model,
    misconceptions=misconceptions("""
reshape-only (order="view-only"): reshapes without bringing the heads of one token together first
    In the memory of x, what follows the last number of token 0 in head 0: its numbers in head 1?
last-two-exchanged (order="last-two"): exchanges tokens and width before it reshapes
    Which two axes have to be neighbours to become one, and which of them are they now?
heads-added (join="sum"): adds the heads up
    How wide is the result, compared with one head?
heads-averaged (join="mean"): averages the heads
    How wide is the result, compared with one head?
first-head-only (join="first"): returns the first head alone
    Does your result change when the last head changes?
columns-dealt (join="dealt"): takes the first column of every head, then the second, and so on
    Which of the two axes, heads or width, should change slowest along a token's vector?
heads-reversed (join="reversed"): puts the last head first
    Where in the result do the columns of head 0 stand?
batch-and-tokens-merged (shape="flat"): merges sentences and tokens into one axis
    How many axes should the result have?
tokens-and-heads-merged (shape="long"): merges the axis of the heads with that of the tokens, so that a sentence has T *
        H of them
    Which two axes become one, and which one keeps its length?
"""),
    cases=[
        Case("1 sentence, 2 heads, 3 tokens, width 2", _case(1, 2, 3, 2, seed=1)),
        Case("2 sentences, 3 heads, 5 tokens, width 2", _case(2, 3, 5, 2, seed=11)),
        Case("2 sentences, 5 heads, 3 tokens, width 7", _case(2, 5, 3, 7, seed=21)),
        Case("one head", _case(2, 1, 3, 5, seed=31)),
        Case("input that is not contiguous in memory", _strided),
        Case("float64", _case(3, 2, 5, 7, seed=61, dtype=torch.float64)),
    ],
    properties=[Property("Merging undoes splitting.", _undoes_the_split)],
    alternatives=[
        Alternative("concatenating the heads", _with_cat),
        Alternative("with permute and flatten", _with_flatten),
        Alternative("with a copy in the right order, then a view", _with_contiguous),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "Which numbers must be neighbours in the result, and are they neighbours in x?",
        "Axes can be joined only if they stand side by side, the slower one first. Bring heads and width together.",
        """B, H, T, E = x.shape
by_token = ____  # all heads of one token side by side
return by_token.reshape(...)""",
    ),
    sample=_sample,
    tries=("float64", "float16", "bfloat16"),
)
