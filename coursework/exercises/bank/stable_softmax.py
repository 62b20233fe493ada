"""Exercise: a softmax whose exponentials cannot overflow."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal, strided


def stable_softmax(scores, dim=-1):
    """Scores of any shape -> weights of the same shape, summing to one along `dim`"""
    largest = scores.amax(dim=dim, keepdim=True)
    powers = (scores - largest).exp()  # at most exp(0) = 1
    return powers / powers.sum(dim=dim, keepdim=True)


def _model(shift="row", axis="given", finish="divide", patched=False):
    """A softmax whose settings are the misconceptions."""

    def softmax(scores, dim=-1):
        dim = {"given": dim, "last": -1, "all": tuple(range(scores.dim()))}[axis]
        if finish == "at-once":
            return (scores - scores.logsumexp(dim, keepdim=True)).exp()
        powers = _shifted(scores, dim, shift).exp()
        if finish == "flat":
            weights = powers / powers.sum(dim)
        elif finish == "none":
            weights = powers
        else:
            weights = powers / powers.sum(dim, keepdim=True)
            weights = weights.log() if finish == "log" else weights
        return weights.nan_to_num(0.0) if patched else weights

    return softmax


def _shifted(scores, dim, shift):
    if shift == "none":
        return scores
    if shift == "global":
        return scores - scores.max()
    if shift == "magnitude":
        return scores - scores.abs().amax(dim, keepdim=True)
    if shift == "mean":
        return scores - scores.mean(dim, keepdim=True)
    if shift == "smallest":
        return scores - scores.amin(dim, keepdim=True)
    if shift == "cut-below":
        scores = scores.clamp(min=-1e9)
    if shift == "cut-above":
        return scores.clamp(max=80)
    if shift == "cut":
        return scores.clamp(-80, 80)
    if shift == "divide":
        return scores / scores.amax(dim, keepdim=True)
    return scores - scores.amax(dim, keepdim=True)


def _with_torch(scores, dim=-1):
    return F.softmax(scores, dim=dim)


def _with_log_softmax(scores, dim=-1):
    return F.log_softmax(scores, dim=dim).exp()


def _with_loops(scores, dim=-1):
    rows = scores.movedim(dim, -1)  # the axis to normalise comes last
    flat = rows.reshape(-1, rows.size(-1))
    weights = []
    for row in flat:
        powers = (row - row.max()).exp()
        weights.append(powers / powers.sum())
    return torch.stack(weights).reshape(rows.shape).movedim(-1, dim)


def _case(*shape, dim, seed, dtype=torch.float32):
    return lambda: (normal(*shape, seed=seed, dtype=dtype), dim)


def _rows(*rows, dtype=torch.float32):
    return lambda: (torch.tensor(rows, dtype=dtype, requires_grad=True),)


def _strided():
    return strided(normal(5, 3, seed=41)), 0


def _sample(draw):
    shape = [draw.integer(1, 5) for _ in range(draw.integer(1, 3))]
    scale = draw.choice([0.1, 1.0, 100.0, 10000.0])
    scores = draw.normal(*shape, dtype=draw.dtype(), scale=scale)
    return scores, draw.integer(-len(shape), len(shape) - 1)


def _sums_to_one(softmax) -> str | None:
    weights = softmax(torch.tensor([[1000.0, 998.0, 999.0], [-1000.0, -998.0, -999.0]]), -1)
    for row, weight in zip(("1000, 998 and 999", "-1000, -998 and -999"), weights, strict=True):
        if not abs(float(weight.sum()) - 1) < 1e-4:
            return f"The weights of the scores {row} sum to {float(weight.sum()):.4f}."
    return None


def _shift_changes_nothing(softmax) -> str | None:
    scores = normal(2, 3, seed=51, grad=False)
    if not torch.allclose(softmax(scores, -1), softmax(scores + 300.0, -1), atol=1e-4):
        return "Adding 300 to every score changed the weights."
    return None


def _rows_are_independent(softmax) -> str | None:
    scores = normal(2, 3, seed=61, grad=False)
    changed = scores.clone()
    changed[0] += torch.tensor([500.0, 400.0, 300.0])
    if not torch.allclose(softmax(scores, -1)[1], softmax(changed, -1)[1], atol=1e-5):
        return "Changing the scores in row 0 changed the weights in row 1."
    return None


EXERCISE = Exercise(
    title="A softmax that survives large scores",
    what="""Write `stable_softmax(scores, dim=-1)` from `exp`, sums and maxima (the check accepts torch's own softmax,
too). It must return the right weights for scores of any size, far above and far below zero, and along any axis. A
score may be minus infinity, which gives the weight zero; a row in which all scores are minus infinity does not occur
here and has an exercise of its own.""",
    why="""The exponential of 89 is already too large for float32. The formula as it stands in books then divides
infinity by infinity, and one such row turns the whole model to NaN.""",
    difficulty=2,
    minutes=8,
    reference=stable_softmax,
    model=_model,
    misconceptions=misconceptions("""
plain-exponential (shift="none"): takes the exponential of the scores as they are
    What is the exponential of 1000 in float32, and what is that number divided by itself?
nan-replaced (shift="none", patched=True): lets the exponentials overflow and replaces the NaN by zeros
    Do the weights of a row with a score of 1000 still sum to one?
one-maximum-for-all (shift="global"): subtracts one maximum, taken over all rows
    A row whose scores lie 1000 below those of another row: what do its exponentials come to?
mean-subtracted (shift="mean"): subtracts the mean of the row
    In a row with one score of 3000 and many of 0, how large is the largest difference from the mean?
smallest-subtracted (shift="smallest"): subtracts the smallest score of the row
    How large can the largest exponential still become?
cut-above (shift="cut-above"): cuts off every score above some limit
    Two scores above your limit, one larger by 5: what weights do they get?
cut-below (shift="cut-below"): takes a finite number such as -1000000000 for minus infinity
    Which weight should minus infinity get beside the scores -1000000000 and -2000000000?
cut-both-sides (shift="cut"): forces every score into a fixed range
    Two scores outside your range, one larger by 5: what weights do they get?
divides-by-maximum (shift="divide"): divides the scores by their maximum
    Scores 1 and 3, then 10 and 30: do they get the same weights, and with your function?
always-last-axis (axis="last"): works along the last axis, whatever `dim` says
    Which line of your function changes its result when `dim` is 0?
all-axes (axis="all"): makes the whole tensor sum to one
    How many sums must equal one for scores of shape (2, 3) and `dim=-1`?
sum-loses-its-axis (finish="flat"): divides by sums whose shape has lost an axis
    What are the shapes of the numerator and the denominator for scores of shape (2, 3)?
not-divided (finish="none"): returns the exponentials without making them sum to one
    What is the sum of the weights in one row?
logarithms (finish="log"): returns the logarithms of the weights
    Can a weight be negative?
logsumexp-of-large-scores (finish="at-once"): subtracts the maximum and the logarithm of the sum in one step, so that
        large scores swallow it
    How far apart are the float32 numbers near 10000000, and how large is the logarithm of 2?
largest-magnitude-subtracted (shift="magnitude"): subtracts the largest magnitude of the row in place of its largest
        score
    What is left of exp(score - magnitude) in a row in which all scores are near -2000?
"""),
    cases=[
        Case("two scores", _rows(1.0, 3.0)),
        Case("three scores, two of them negative", _rows(-2.0, 0.5, -1.0)),
        Case("2 rows of 3 scores", _rows([1.0, 2.0, 4.0], [0.0, -1.0, 3.0])),
        Case("shape (2, 3), dim=0", _case(2, 3, dim=0, seed=1)),
        Case("shape (2, 3, 5), dim=1", _case(2, 3, 5, dim=1, seed=11)),
        Case("scores near 1000", _rows(1000.0, 999.0, 997.0)),
        Case("scores near -2000 in one row", _rows([-2000.0, -2001.0, -2003.0], [1.0, 0.0, -1.0])),
        Case("one score of 3000", _rows([0.0, 1.0, 2.0, 3000.0], [0.0, 1.0, 2.0, 3.0])),
        Case("rows far apart", _rows([500.0, 501.0, 499.0], [-700.0, -701.0, -699.0], [1.0, 2.0, 0.0])),
        Case("some scores of minus infinity", _rows([1.0, -math.inf, 0.0], [-math.inf, -math.inf, 5.0])),
        Case("a score of a million", _rows([1e6, 999800.0, 0.0], [1.0, 2.0, 3.0])),
        Case("two equal scores of ten million", _rows([1e7, 1e7, 0.0], [1.0, 2.0, 3.0])),
        Case("minus infinity beside -1000000000", _rows([-1e9, -math.inf, -2e9], [0.0, 1.0, 3.0])),
        Case("not contiguous in memory, dim=0", _strided),
        Case("float64", _rows([2000.0, 1990.0, 1.0], [3.0, 4.0, 5.0], dtype=torch.float64)),
        Case("bfloat16", _case(3, 5, dim=-1, seed=31, dtype=torch.bfloat16)),
    ],
    properties=[
        Property("The weights sum to one, however large the scores are.", _sums_to_one),
        Property("Adding the same number to every score of a row changes nothing.", _shift_changes_nothing),
        Property("Each row has its own softmax.", _rows_are_independent),
    ],
    alternatives=[
        Alternative("torch's own function", _with_torch),
        Alternative("by its logarithm", _with_log_softmax),
        Alternative("row by row", _with_loops),
    ],
    hints=(
        "What happens to the weights of a row if the same number is added to each of its scores?",
        "Shifting a whole row changes no weight, so you may choose the shift. Choose it so that no exponential can "
        "exceed 1 and at least one in each row is exactly 1. Keep the reduced axis, so that the shapes still fit.",
        """largest = ____  # one number for each row, the reduced axis kept
powers = (scores - largest).exp()
return powers / powers.sum(dim=dim, keepdim=True)""",
    ),
    sample=_sample,
    tries=(
        "float64",
        "bfloat16",
        "large",
        "shifted",
        "zeros",
        "repeated",
        "infinite",
        "low",
        "negative dim",
    ),
)
