"""Exercise: repair an attention that works for one sentence and not for a batch."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def batched_attention(query, key, value):
    """(..., T, E), (..., S, E), (..., S, E') -> (..., T, E')"""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (..., T, S)
    weights = scores.softmax(dim=-1)  # (..., T, S)
    return weights @ value  # (..., T, E')


def _counts_from_the_front():
    def batched_attention(query, key, value):
        """(..., T, E), (..., S, E), (..., S, E') -> (..., T, E')"""
        scores = query @ key.transpose(0, 1) / math.sqrt(query.size(1))  # (..., T, S)
        weights = scores.softmax(dim=1)  # (..., T, S)
        return weights @ value  # (..., T, E')

    return batched_attention


def _model(turn="last-two", width=-1, axis=-1, scope="each"):
    """Attention whose settings are the misconceptions."""

    def attend(query, key, value):
        if scope == "three-axes" and query.dim() != 3:
            raise ValueError("expected three axes")
        if scope == "one-sequence":
            query, key, value, whole = query.flatten(0, -2), key.flatten(0, -2), value.flatten(0, -2), query
        if scope == "first" and query.dim() > 2:
            key, value = key[:1].expand_as(key), value[:1].expand_as(value)
        if turn == "reshape":
            turned = key.reshape(*key.shape[:-2], key.size(-1), key.size(-2))
        elif turn == "all":
            turned = key.permute(*reversed(range(key.dim())))
        else:
            turned = key.transpose(*{"last-two": (-2, -1), "front": (0, 1), "middle": (1, 2)}[turn])
        weights = (query @ turned / math.sqrt(query.size(width))).softmax(dim=axis)
        output = weights @ value
        return output.reshape(*whole.shape[:-1], -1) if scope == "one-sequence" else output

    return attend


def _with_torch(query, key, value):
    return F.scaled_dot_product_attention(query, key, value)


def _with_einsum(query, key, value):
    scores = torch.einsum("...te,...se->...ts", query, key) / math.sqrt(query.size(-1))
    return torch.einsum("...ts,...sv->...tv", scores.softmax(dim=-1), value)


def _with_loop(query, key, value):
    if query.dim() == 2:  # one sentence
        return (query @ key.T / math.sqrt(query.size(1))).softmax(dim=1) @ value
    return torch.stack([_with_loop(*sentence) for sentence in zip(query, key, value, strict=True)])


@maker
def _case(*lead, T, S, E, width, seed, dtype=torch.float32):
    query, key = normal(*lead, T, E, seed=seed, dtype=dtype), normal(*lead, S, E, seed=seed + 1, dtype=dtype)
    return query, key, normal(*lead, S, width, seed=seed + 2, dtype=dtype)


def _strided():
    return tuple(strided(tensor) for tensor in _case(2, T=3, S=5, E=7, width=4, seed=51)())


def _sample(draw):
    lead = [draw.integer(1, 3) for _ in range(draw.integer(0, 2))]
    T, S, E, width = (draw.integer(1, 6) for _ in range(4))
    dtype = draw.dtype()
    query, key = draw.normal(*lead, T, E, dtype=dtype), draw.normal(*lead, S, E, dtype=dtype)
    return query, key, draw.normal(*lead, S, width, dtype=dtype)


def _sentences_are_independent(attend) -> str | None:
    query, key, value = _case(3, T=3, S=3, E=3, width=3, seed=71)()
    changed = [tensor.detach().clone() for tensor in (query, key, value)]
    for tensor in changed:
        tensor[0] += 2.0
    if not torch.allclose(attend(query, key, value)[1:], attend(*changed)[1:], atol=1e-5):
        return "Changing sentence 0 changed the output of another sentence."
    return None


def _batch_equals_one_by_one(attend) -> str | None:
    query, key, value = _case(2, T=3, S=5, E=7, width=4, seed=81)()
    batch = attend(query, key, value)
    for number in range(2):
        if not torch.allclose(batch[number], attend(query[number], key[number], value[number]), atol=1e-5):
            return f"Sentence {number} gets another output in the batch than alone."
    return None


def _output_is_average(attend) -> str | None:
    query, key, _ = _case(2, T=3, S=5, E=7, width=4, seed=91)()
    output = attend(query, key, torch.ones(2, 5, 4))
    if (output - 1).abs().max() > 1e-4:
        return "With every value equal to 1, an output is " + f"{float(output.detach().flatten()[0]):.4f}."
    return None


EXERCISE = Exercise(
    title="From one sentence to a batch",
    kind="debug",
    what="""The function below is right for one sentence, with tensors of two axes. With a batch it raises an error,
or, when sizes happen to be equal, returns wrong numbers without one. Repair it so that the same code is right for one
sentence `(T, E)`, for a batch `(B, T, E)` and for a batch with heads `(B, H, T, E)`. Sentences never mix.""",
    why="""Code written for a matrix and fed a batch is a common source of silent errors. Everything after this works
on batches.""",
    difficulty=2,
    minutes=8,
    reference=batched_attention,
    given=_counts_from_the_front(),
    model=_model,
    misconceptions=misconceptions("""
counts-from-the-front (turn="front", width=1, axis=1): names its axes as if there were always two of them
    In a tensor of shape (B, S, E), which of its sizes do the axes 0 and 1 stand for?
turns-the-first-two-axes (turn="front"): swaps the first two axes of the key
    What shape has your turned key for a batch of shape (B, S, E)?
turns-all-axes (turn="all"): reverses all axes of the key, as `.T` does
    What shape has your turned key for a batch of shape (B, S, E)?
turns-axes-one-and-two (turn="middle"): swaps axes 1 and 2 of the key, however many there are
    Which axes do 1 and 2 stand for when there are two axes, and when there are four?
reshapes-the-key (turn="reshape"): gives the key a new shape without turning it
    Take the key [[1, 2, 3], [4, 5, 6]]: what is its first column, and what is it in your new shape?
width-from-axis-one (width=1): takes the scale from axis 1, however many axes there are
    For a batch of shape (B, T, E), which size does your square root see?
softmax-over-axis-one (axis=1): takes the softmax over axis 1, however many axes there are
    For scores of shape (B, T, S), which axis must sum to one, and which one does in your function?
three-axes-only (turn="middle", width=2, axis=2): names its axes as if there were always three of them
    What do your axis numbers stand for when a sentence comes alone, or when heads are added?
insists-on-three-axes (scope="three-axes"): accepts tensors of exactly three axes and no others
    Which of the three cases in the task has another number of axes than three?
softmax-over-queries (axis=-2): takes the softmax over the queries
    Whose shares must add up to one: those that one query gives, or those that one key receives?
one-long-sentence (scope="one-sequence"): joins all sentences of the batch into one long sentence
    Can a word of sentence 0 now attend to a word of sentence 1?
first-sentence-for-all (scope="first"): gives every sentence of the batch the keys and values of the first
    Which sentence do the keys that sentence 1 attends to come from?
"""),
    cases=[
        Case("one sentence, 2 queries, 3 keys", _case(T=2, S=3, E=5, width=4, seed=1)),
        Case("a batch of 2 sentences, 3 queries, 5 keys", _case(2, T=3, S=5, E=7, width=1, seed=11)),
        Case("3 sentences, 3 keys of width 3, so that nothing raises", _case(3, T=2, S=3, E=3, width=4, seed=21)),
        Case("2 sentences, 3 heads", _case(2, 3, T=4, S=5, E=7, width=6, seed=31)),
        Case("2 sentences, 2 heads, 2 keys of width 2", _case(2, 2, T=3, S=2, E=2, width=4, seed=41)),
        Case("inputs that are not contiguous in memory", _strided),
        Case("float64", _case(2, T=3, S=5, E=7, width=4, seed=61, dtype=torch.float64)),
        Case("bfloat16", _case(2, T=3, S=5, E=7, width=4, seed=65, dtype=torch.bfloat16)),
    ],
    properties=[
        Property("Sentences of a batch do not see each other.", _sentences_are_independent),
        Property("A sentence gets the same output alone and in a batch.", _batch_equals_one_by_one),
        Property("The weights of a query sum to one.", _output_is_average),
    ],
    alternatives=[
        Alternative("torch's own kernel", _with_torch),
        Alternative("with einsum, which names the axes", _with_einsum),
        Alternative("sentence by sentence", _with_loop),
    ],
    hints=(
        "Write down every shape, first for (T, E), then for (B, T, E): which axis numbers change their meaning?",
        "The two axes that matter, length and width, always stand at the end. Look at every number that names an axis: "
        "there are four places.",
        """scores = query @ ____ / math.sqrt(...)  # (..., T, E) @ (..., E, S) -> (..., T, S)
weights = ...  # each query's weights sum to one
return weights @ value""",
    ),
    sample=_sample,
    tries=("float64", "bfloat16", "large", "zeros", "repeated"),
    equivalent_mutants={"query -> key (2)": "query and key have the same width"},
)
