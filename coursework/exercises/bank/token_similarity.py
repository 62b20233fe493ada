"""Exercise: measure how alike the tokens of a sentence are."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def token_similarity(x):
    """(B, T, D), T of at least 2 -> (B,)"""
    T = x.size(1)
    unit = x / x.norm(dim=-1, keepdim=True)
    cosines = unit @ unit.mT  # (B, T, D) @ (B, D, T) -> (B, T, T)
    return (cosines.sum(dim=(1, 2)) - T) / (T * (T - 1))  # the T ones of the diagonal do not count


def _model(length="unit", diagonal="out", sign="kept", average="tokens", axis="features", pairs="all", centre="no"):
    """A similarity whose settings are the misconceptions."""

    def similarity(x):
        T = x.size(1)
        if centre == "tokens":
            x = x - x.mean(dim=1, keepdim=True)
        elif centre == "features":
            x = x - x.mean(dim=-1, keepdim=True)
        if length == "unit":
            x = x / x.norm(dim=-1 if axis == "features" else 1, keepdim=True)
        elif length == "squared":
            x = x / x.square().sum(dim=-1, keepdim=True)
        cosines = x @ x.mT
        cosines = cosines.abs() if sign == "abs" else cosines
        off = ~torch.eye(T, dtype=torch.bool)
        if pairs == "neighbours":
            found = cosines.diagonal(1, 1, 2).mean(-1)
        elif pairs == "first":
            found = cosines[:, 0, 1:].mean(-1)
        elif pairs == "half":
            found = cosines.triu(1).sum((1, 2)) / (T * (T - 1))
        elif diagonal == "out":
            found = cosines[:, off].mean(-1)
        elif diagonal == "divided":
            found = (cosines * off).sum((1, 2)) / T**2
        else:
            found = cosines.mean((1, 2))
        return found.mean() if average == "batch" else found

    return similarity


def _with_cosine_similarity(x):
    cosines = F.cosine_similarity(x[:, :, None], x[:, None], dim=-1)  # (B, T, T)
    apart = ~torch.eye(x.size(1), dtype=torch.bool)
    return cosines[:, apart].mean(dim=-1)


def _pair_by_pair(x):
    T = x.size(1)
    found = [F.cosine_similarity(x[:, i], x[:, j], dim=-1) for i in range(T) for j in range(i)]  # each (B,)
    return torch.stack(found).mean(dim=0)


def _from_the_length_of_the_sum(x):
    T = x.size(1)
    total = F.normalize(x, dim=-1).sum(dim=1)  # (B, D): its squared length is the sum of all T² cosines
    return (total.square().sum(dim=-1) - T) / (T**2 - T)


@maker
def _case(B, T, D, seed, dtype=torch.float32, shift=0.0):
    return ((normal(B, T, D, seed=seed, dtype=dtype, grad=False) + shift).requires_grad_(),)


def _sample(draw):
    B, T, D = draw.integer(1, 3), draw.integer(2, 6), draw.integer(2, 7)
    return (draw.normal(B, T, D, dtype=torch.float64) + 0.01,)


def _same_tokens_score_one(similarity) -> str | None:
    found = float(similarity(torch.tensor([[[1.0, -2.0, 0.5]] * 3]) * torch.tensor([1.0, 2.0, 5.0])[:, None])[0])
    return None if abs(found - 1) < 1e-4 else f"Three tokens of one direction score {found:.3f}."


def _right_angles_score_zero(similarity) -> str | None:
    found = float(similarity(3 * torch.eye(4)[None])[0])
    return None if abs(found) < 1e-4 else f"Four tokens at right angles to each other score {found:.3f}."


EXERCISE = Exercise(
    title="How alike are the tokens",
    kind="measure",
    what="""Write `token_similarity(x)`: for each sentence of `x` (B, T, D), the mean cosine between the vectors of two
*different* tokens, over all pairs. The cosine of two vectors is their dot product over the product of their lengths.
No vector is shorter than 0.001, and T is at least 2.""",
    why="A value of 1 means that all tokens point the same way; near 1, only a small part of each tells them apart.",
    difficulty=2,
    minutes=8,
    reference=token_similarity,
    model=_model,
    misconceptions=misconceptions("""
each-with-itself (diagonal="in"): counts the cosine of each token with itself
    What do four tokens at right angles to each other score?
divided-by-all-cells (diagonal="divided"): leaves out the diagonal, and divides by the number of all cells nevertheless
    What do three copies of one token score?
products-not-cosines (length="as-is"): averages dot products, without dividing by the lengths
    What happens to your result if all vectors double?
divided-by-squared-lengths (length="squared"): divides each vector by its squared length
    How long is each vector after your division?
lengths-over-tokens (axis="tokens"): takes lengths over the tokens, one component at a time
    Which axis holds the components of one token?
absolute-values (sign="abs"): averages absolute values
    What do two opposite vectors score?
batch-averaged (average="batch"): averages over the sentences too
    How many numbers does the task ask for?
neighbours-only (pairs="neighbours"): compares each token with the next one only
    How many pairs do four tokens make?
first-token-only (pairs="first"): compares the first token with the others only
    How many pairs do four tokens make?
mean-token-subtracted (centre="tokens"): subtracts the mean of the tokens first
    If all tokens are nearly the same, what is left after your first step?
correlation (centre="features"): subtracts from each vector the mean of its components first, which gives correlations
    What is the cosine of (1, 1) and (1, 2), and what does your function say?
half-the-pairs (pairs="half"): adds each pair once and divides as if it had been added twice
    How many cells has the triangle above the diagonal?
"""),
    cases=[
        Case("1 sentence of 2 tokens, width 3", _case(1, 2, 3, seed=1)),
        Case("1 sentence of 3 tokens, width 5", _case(1, 3, 5, seed=11)),
        Case("2 sentences of 4 tokens, width 3", _case(2, 4, 3, seed=21)),
        Case("3 sentences of 5 tokens, width 7, all near one direction", _case(3, 5, 7, seed=31, shift=2.0)),
        Case("float64", _case(2, 5, 3, seed=41, dtype=torch.float64)),
    ],
    properties=[
        Property("Tokens of one direction score one, however long they are.", _same_tokens_score_one),
        Property("Tokens at right angles score zero.", _right_angles_score_zero),
    ],
    alternatives=[
        Alternative("with torch's cosine_similarity", _with_cosine_similarity),
        Alternative("pair by pair", _pair_by_pair),
        Alternative("from the length of the sum", _from_the_length_of_the_sum),
    ],
    hints=(
        "If all vectors had length one, what would be the product of x with its own transpose?",
        "Divide each vector by its length; one batched product then holds all T² cosines. What stands on the diagonal?",
        """unit = x / x.norm(dim=-1, keepdim=True)
cosines = unit @ unit.mT  # (B, T, T)
return ____  # (B,): the mean without the diagonal""",
    ),
    sample=_sample,
    gradients=False,
    tries=("float32", "large", "repeated"),
)
