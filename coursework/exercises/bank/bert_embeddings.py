"""Exercise: the input of BERT: three tables, one sum, one norm."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import integers, normal


def embed(tokens, types, token_table, position_table, type_table, weight, bias):
    """(B, T) ids, (B, T) 0 or 1, (V, D), (longest, D), (2, D), (D,), (D,)
    -> (B, T, D)"""
    T, D = tokens.size(1), token_table.size(1)
    summed = token_table[tokens] + position_table[:T] + type_table[types]  # (B, T, D) + (T, D) + (B, T, D)
    return F.layer_norm(summed, (D,), weight, bias, eps=1e-12)


def _model(positions="place", types_used="all", norm="sum", scale="none", affine="both", eps=1e-12):
    """An embedding whose settings are the misconceptions."""

    def embedding(tokens, types, token_table, position_table, type_table, weight, bias):
        T = tokens.size(1)
        D = token_table.size(1)

        def normed(x):
            if affine == "none":
                return F.layer_norm(x, (D,), eps=eps)
            return F.layer_norm(x, (D,), weight, None if affine == "weight" else bias, eps=eps)

        vectors = token_table[tokens] * (D**0.5 if scale == "root" else 1.0)
        places = {
            "place": position_table[:T],
            "none": 0 * position_table[:T],
            "backwards": position_table[:T].flip(0),
            "from-one": position_table[1 : T + 1],
            "by-token": position_table[tokens % len(position_table)],
            "first": position_table[:1],
        }[positions]
        kinds = {"all": type_table[types], "none": 0 * type_table[types], "zero": type_table[torch.zeros_like(types)],
                 "swapped": type_table[1 - types]}[types_used]  # fmt: skip
        if norm == "tokens":
            return normed(vectors) + places + kinds
        if norm == "before-types":
            return normed(vectors + places) + kinds
        if norm == "none":
            return vectors + places + kinds + 0 * (weight + bias)
        if norm == "over-positions":
            summed = vectors + places + kinds
            centred = summed - summed.mean(1, keepdim=True)
            return centred * torch.rsqrt(centred.square().mean(1, keepdim=True) + 1e-12) * weight + bias
        return normed(vectors + places + kinds)

    return embedding


def _with_embedding(tokens, types, token_table, position_table, type_table, weight, bias):
    places = torch.arange(tokens.size(1)).expand_as(tokens)
    total = F.embedding(tokens, token_table) + F.embedding(places, position_table) + F.embedding(types, type_table)
    return F.layer_norm(total, weight.shape, weight, bias, eps=1e-12)


def _by_formula(tokens, types, token_table, position_table, type_table, weight, bias):
    total = token_table[tokens] + position_table[: tokens.size(1)] + type_table[types]
    centred = total - total.mean(-1, keepdim=True)
    spread = (centred.square().mean(-1, keepdim=True) + 1e-12).sqrt()
    return centred / spread * weight + bias


def _with_one_hot(tokens, types, token_table, position_table, type_table, weight, bias):
    chosen = F.one_hot(tokens, len(token_table)).to(token_table.dtype) @ token_table
    kinds = F.one_hot(types, 2).to(type_table.dtype) @ type_table
    total = chosen + kinds + position_table[: tokens.size(1)]
    return F.layer_norm(total, (total.size(-1),), weight, bias, eps=1e-12)


def _arguments(B, T, D, V, longest, seed, dtype=torch.float32):
    tables = [normal(rows, D, seed=seed + rows, dtype=dtype) for rows in (V, longest, 2)]
    weight, bias = normal(D, seed=seed + 91, dtype=dtype), normal(D, seed=seed + 92, dtype=dtype)
    return (
        integers(B, T, low=0, high=V - 1, seed=seed),
        integers(B, T, low=0, high=1, seed=seed + 7),
        *tables,
        weight,
        bias,
    )


def _case(*sizes, seed, dtype=torch.float32):
    return lambda: _arguments(*sizes, seed, dtype)


def _two_sentences():
    tokens, _, *rest = _arguments(1, 4, 5, 6, 7, 71)
    return tokens, torch.tensor([[0, 0, 1, 1]]), *rest


def _sample(draw):
    B, T, D, V = draw.integer(1, 3), draw.integer(2, 5), draw.integer(3, 7), draw.integer(2, 9)
    dtype = draw.dtype()
    tables = [draw.normal(rows, D, dtype=dtype) for rows in (V, T + draw.integer(1, 4), 2)]
    tables = [(table.detach() + torch.arange(D, dtype=dtype)).requires_grad_() for table in tables]  # never constant
    affine = [draw.normal(D, dtype=dtype), draw.normal(D, dtype=dtype)]
    return draw.integers(B, T, low=0, high=V - 1), draw.integers(B, T, low=0, high=1), *tables, *affine


def _place_matters(embed) -> str | None:
    tokens, types, *rest = _arguments(1, 3, 5, 6, 7, 81)
    output = embed(torch.full_like(tokens, 2), torch.zeros_like(types), *rest)
    return (
        "The same token at positions 0 and 1 gets the same vector." if torch.equal(output[0, 0], output[0, 1]) else None
    )


def _is_normed(embed) -> str | None:
    tokens, types, token, position, kind, _, _ = _arguments(2, 3, 5, 6, 7, 85)
    output = embed(tokens, types, token, position, kind, torch.ones(5), torch.zeros(5))
    spread = output.std(-1, unbiased=False).flatten()
    if (spread - 1).abs().max() > 1e-3:
        return f"With weight 1 and bias 0 a vector has standard deviation {spread[(spread - 1).abs().argmax()]:.3f}."
    return None


EXERCISE = Exercise(
    title="What BERT reads",
    what="""Write `embed(...)`: the vector of each token, plus that of its position (0, 1, ... in every example), plus
that of its type (0 in the first sentence, 1 in the second), then one LayerNorm of the sum with the given weight and
bias and eps = 1e-12. No factor √D. `position_table` may be longer than the sentence.""",
    why="""Everything that BERT knows about its input is in this sum; the encoder after it is that of chapter 4. The
norm at this place is a switch of the course's config, `embedding_norm`.""",
    difficulty=2,
    minutes=7,
    reference=embed,
    model=_model,
    misconceptions=misconceptions("""
positions-forgotten (positions="none"): adds no positions
    If two tokens change places, what changes in your output?
positions-by-token (positions="by-token"): looks positions up by the id of the token
    Does a position depend on which word stands there?
positions-from-one (positions="from-one"): counts positions from one
    Which row of the table belongs to the first token?
positions-reversed (positions="backwards"): counts positions from the end
    Which row of the table belongs to the first token?
one-position (positions="first"): gives every token the vector of position 0
    How many rows of the position table does a sentence of T tokens use?
types-forgotten (types_used="none"): adds no types
    How would the model know where the second sentence begins?
all-of-type-zero (types_used="zero"): treats every token as one of the first sentence
    Would your output change if the types did?
types-exchanged (types_used="swapped"): exchanges the two types
    Which row of the type table belongs to the first sentence?
norm-before-the-sum (norm="tokens"): norms the token vectors and adds the rest afterwards
    What is the mean of an output vector when the bias is zero?
types-after-the-norm (norm="before-types"): adds the types after the norm
    How many of the three vectors should be inside the norm?
no-norm (norm="none"): leaves out the norm
    What are weight and bias for?
norm-over-positions (norm="over-positions"): norms over the positions of a sentence
    Over which numbers does LayerNorm take its mean: those of one token, or of all?
scaled-by-root (scale="root"): multiplies the token vectors by the root of the width, as the original Transformer does
    Which factor does the task name?
no-weight-and-bias (affine="none"): norms without the trained weight and bias
    Where do the last two arguments enter?
no-bias (affine="weight"): leaves out the bias of the norm
    Where does the last argument enter?
another-eps (eps=1e-5): norms with torch's usual eps
    Which eps does the task name?
"""),
    cases=[
        Case("1 sentence of 2 tokens, width 3", _case(1, 2, 3, 5, 4, seed=3)),
        Case("two sentences in one example, 4 tokens, width 5", _two_sentences),
        Case("3 examples of 4 tokens, width 5, a table of 9 positions", _case(3, 4, 5, 7, 9, seed=11)),
        Case("2 examples of 5 tokens, width 7", _case(2, 5, 7, 8, 6, seed=21)),
        Case("float64", _case(2, 3, 6, 5, 8, seed=31, dtype=torch.float64)),
    ],
    properties=[
        Property("The same token at two positions gets two vectors.", _place_matters),
        Property("With weight 1 and bias 0 every vector has standard deviation 1.", _is_normed),
    ],
    alternatives=[
        Alternative("with F.embedding", _with_embedding),
        Alternative("with the norm written out", _by_formula),
        Alternative("tables as products with one-hot vectors", _with_one_hot),
    ],
    hints=(
        "Three questions about a token: which word, which place, which sentence. Which table answers each?",
        "Indexing a table (V, D) with ids (B, T) gives (B, T, D). Positions are the same in every example.",
        """T, D = tokens.size(1), token_table.size(1)
summed = token_table[tokens] + ____ + type_table[types]
return F.layer_norm(summed, (D,), weight, bias, eps=1e-12)""",
    ),
    sample=_sample,
    tries=("float64", "large", "zeros", "repeated"),
    equivalent_mutants={
        "tokens -> types": "both have the shape (B, T)",
        "token_table -> position_table": "both tables are D wide",
    },
    tolerance=(2e-4, 2e-4),
)
