"""Exercise: cut the width of a tensor into heads."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal, strided


def split_heads(x, n_heads):
    """(B, T, H * E), H -> (B, H, T, E)"""
    B, T, width = x.shape
    return x.reshape(B, T, n_heads, width // n_heads).transpose(1, 2)  # (B, T, H, E) -> (B, H, T, E)


def _model(order="tokens-first", cut="blocks", size="heads"):
    """Splitting whose settings are the misconceptions."""

    def split(x, n_heads):
        B, T, width = x.shape
        H, E = (n_heads, width // n_heads) if size == "heads" else (width // n_heads, n_heads)
        if order == "view-only":
            return x.reshape(B, H, T, E)
        if cut == "strided":
            parts = x.reshape(B, T, E, H).transpose(2, 3)  # head h takes columns h, h + H, ...
        else:
            parts = x.reshape(B, T, H, E)
        if order == "no-transpose":
            return parts
        if order == "width-first":
            return parts.permute(0, 2, 3, 1)  # (B, H, E, T)
        if order == "heads-before-batch":
            return parts.permute(2, 0, 1, 3)
        if order == "merged-batch":
            return parts.transpose(1, 2).reshape(B * H, T, E)
        return parts.transpose(1, 2)

    return split


def _with_chunks(x, n_heads):
    return torch.stack(x.chunk(n_heads, dim=-1), dim=1)  # H of (B, T, E) -> (B, H, T, E)


def _with_unflatten(x, n_heads):
    return x.unflatten(-1, (n_heads, -1)).permute(0, 2, 1, 3)


def _with_loop(x, n_heads):
    E = x.size(-1) // n_heads
    return torch.stack([x[:, :, h * E : (h + 1) * E] for h in range(n_heads)], dim=1)


def _with_course(x, n_heads):
    from course_lib.multi_head import split_heads

    return split_heads(x.contiguous(), n_heads)


def _case(B, T, H, E, seed, dtype=torch.float32):
    return lambda: (normal(B, T, H * E, seed=seed, dtype=dtype), H)


def _strided():
    return strided(normal(2, 3, 10, seed=41)), 5


def _sample(draw):
    B, T, H, E = draw.integer(1, 4), draw.integer(1, 5), draw.integer(1, 5), draw.integer(1, 5)
    return draw.normal(B, T, H * E, dtype=draw.dtype()), H


def _tokens_stay_apart(split) -> str | None:
    x = normal(1, 3, 10, seed=51)
    changed = x.detach().clone()
    changed[:, 2] += 3.0
    before, after = split(x, 2), split(changed, 2)
    if before.shape != (1, 2, 3, 5):
        return f"For one sentence of 3 tokens and 2 heads of width 5 the shape is {tuple(before.shape)}."
    for position in (0, 1):
        if not torch.equal(before[:, :, position], after[:, :, position]):
            return f"Changing token 2 changed what the heads hold at position {position}."
    return None


EXERCISE = Exercise(
    title="Split the width into heads",
    what="""Write `split_heads(x, n_heads)`: cut each token's vector into `n_heads` blocks of neighbouring columns,
one per head, and put the axis of heads before that of tokens: `(B, T, H * E)` becomes `(B, H, T, E)`. Use
`reshape` rather than `view`, which stops with an error on some inputs (section 2.2 says why).""",
    why="""With the head axis next to the batch axis, the attention of chapter 1 treats all heads at once. A reshape
that only gets the shape right mixes tokens, and no error tells you.""",
    difficulty=2,
    minutes=6,
    reference=split_heads,
    model=_model,
    misconceptions=misconceptions("""
view-only (order="view-only"): reads the numbers straight into the shape (B, H, T, E), which gives heads parts of other
        tokens
    In the memory of x, which numbers come first: one token's, or one head's?
no-transpose (order="no-transpose"): leaves the axis of tokens before that of heads
    Which axis must stand last but one if attention is to compare tokens?
width-before-tokens (order="width-first"): puts the width of a head before the tokens
    Which two axes does the product of queries and keys need at the end, and in which order?
heads-before-batch (order="heads-before-batch"): puts the heads before the batch
    Where would a padding mask (B, 1, 1, S) expect the batch?
batch-and-heads-merged (order="merged-batch"): merges batch and heads into one axis
    How many axes does the result need, and which of them is the batch?
every-other-column (cut="strided"): deals the columns out to the heads one by one
    Which columns belong to head 0: the first E, or every H-th?
heads-as-width (size="width"): takes the number of heads for the width of a head
    For a width of 10 and 2 heads, how wide is a head?
"""),
    cases=[
        Case("1 sentence of 2 tokens, 3 heads of width 2", _case(1, 2, 3, 2, seed=1)),
        Case("2 sentences of 3 tokens, 2 heads of width 5", _case(2, 3, 2, 5, seed=11)),
        Case("one head", _case(2, 3, 1, 5, seed=21)),
        Case("heads of width 1", _case(2, 5, 3, 1, seed=31)),
        Case("input that is not contiguous in memory", _strided),
        Case("float64", _case(3, 5, 2, 7, seed=61, dtype=torch.float64)),
    ],
    properties=[Property("What a head holds at a position comes from the token there.", _tokens_stay_apart)],
    alternatives=[
        Alternative("by chunks of the width", _with_chunks),
        Alternative("with unflatten and permute", _with_unflatten),
        Alternative("head by head", _with_loop),
        Alternative("the course's own function, which also checks its arguments", _with_course),
    ],
    hints=(
        "In memory the numbers of one token lie side by side. Which axis can be cut in two without moving a number?",
        "Two steps: cut the last axis in two, where numbers stay in place; then exchange two axes, which moves them.",
        """B, T, width = x.shape
parts = x.reshape(____)  # cut the width in two
return ...  # heads before tokens""",
    ),
    sample=_sample,
    tries=("float64", "float16", "bfloat16"),
)
