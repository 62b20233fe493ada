"""Exercise: merge a low-rank update into the weight it was trained beside."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def merge(weight, down, up, alpha):
    """(D_out, D_in), (r, D_in), (D_out, r), float -> (D_out, D_in): a new tensor"""
    rank = down.size(0)
    return weight + alpha / rank * (up @ down)


def _forgets_the_rank():
    def merge(weight, down, up, alpha):
        """(D_out, D_in), (r, D_in), (D_out, r), float -> (D_out, D_in): a new tensor"""
        return weight + alpha * (up @ down)

    return merge


def _model(factor="alpha/rank", sign=1.0, base="kept"):
    """Merging whose settings are the misconceptions."""

    def merge(weight, down, up, alpha):
        rank = down.size(0)
        scale = {
            "alpha/rank": alpha / rank,
            "alpha": alpha,
            "one": 1.0,
            "1/rank": 1 / rank,
            "alpha/root": alpha / math.sqrt(rank),
            "alpha/width": alpha / down.size(1),
            "rank/alpha": rank / alpha,
            "alpha/out": alpha / up.size(0),
            "alpha*rank": alpha * rank,
        }[factor]
        update = sign * scale * (up @ down)
        if base == "gone":
            return update + 0 * weight
        if base == "scaled":
            return scale * weight + update
        return weight + update

    return merge


def _with_addmm(weight, down, up, alpha):
    return torch.addmm(weight, up, down, alpha=alpha / down.size(0))


def _with_outer_products(weight, down, up, alpha):
    rank = down.size(0)
    merged = weight
    for i in range(rank):
        merged = merged + alpha / rank * torch.outer(up[:, i], down[i])
    return merged


def _with_einsum(weight, down, up, alpha):
    return weight + torch.einsum("or,ri->oi", up, down) * (alpha / up.size(1))


@maker
def _case(D_out, D_in, rank, alpha, seed, dtype=torch.float32):
    weight = normal(D_out, D_in, seed=seed, dtype=dtype)
    return (
        weight,
        normal(rank, D_in, seed=seed + 1, dtype=dtype),
        normal(D_out, rank, seed=seed + 2, dtype=dtype),
        alpha,
    )


def _strided():
    weight, down, up, alpha = _case(5, 7, 3, 2.0, seed=41)()
    return strided(weight), strided(down), strided(up), alpha


def _sample(draw):
    D_out, D_in, rank = draw.integer(2, 6), draw.integer(2, 6), draw.integer(1, 4)
    dtype = draw.dtype()
    tensors = [draw.normal(*shape, dtype=dtype) for shape in ((D_out, D_in), (rank, D_in), (D_out, rank))]
    return *tensors, draw.choice([0.5, 1.0, 4.0, 16.0])


def _same_output(merge) -> str | None:
    weight, down, up, alpha = _case(5, 7, 2, 8.0, seed=51)()
    x = normal(3, 7, seed=55)
    beside = x @ weight.T + (x @ down.T @ up.T) * alpha / 2
    gap = (x @ merge(weight, down, up, alpha).T - beside).abs().max().item()
    return None if gap < 1e-3 else f"With rank 2 and alpha 8 the merged map answers {gap:.2f} beside the trained one."


def _fresh_update_changes_nothing(merge) -> str | None:
    weight, down, _, alpha = _case(5, 7, 2, 8.0, seed=61)()
    merged = merge(weight, down, torch.zeros(5, 2), alpha)
    return None if torch.allclose(merged, weight) else "With `up` still zero, the merged weight is not the old one."


EXERCISE = Exercise(
    title="Merge an update",
    kind="debug",
    what="""A layer was fine-tuned as `x @ weight.T + (alpha / r) * (x @ down.T) @ up.T`, where `r`, the rank, is the
number of rows of `down`. `merge` should return the one weight that gives the same outputs alone, as a new tensor. It
runs, but the merged model gives different outputs. Fix it.""",
    why="""A merged update costs nothing at inference. The factor is written in a config file and not in the weights,
so a wrong one is easily used, and all shapes still fit.""",
    difficulty=2,
    minutes=6,
    reference=merge,
    given=_forgets_the_rank(),
    model=_model,
    misconceptions=misconceptions("""
rank-forgotten (factor="alpha"): multiplies the update by alpha alone
    By which factor was the update multiplied in training?
alpha-forgotten (factor="1/rank"): divides the update by the rank and forgets alpha
    By which factor was the update multiplied in training?
no-factor (factor="one"): adds the update as it is
    By which factor was the update multiplied in training?
root-of-the-rank (factor="alpha/root"): divides by the root of the rank, as another method does
    Is there a root in the formula of the layer?
input-width-for-rank (factor="alpha/width"): takes the input width for the rank
    Which axis of `down` is the thin one?
output-width-for-rank (factor="alpha/out"): takes the output width for the rank
    Which axis of `up` is the thin one?
factor-upside-down (factor="rank/alpha"): multiplies by the rank and divides by alpha
    Does a larger alpha make the update larger or smaller?
subtracted (sign=-1.0): subtracts the update
    What is the difference between merging and taking an update out?
base-lost (base="gone"): returns the update alone
    What should the merged weight be when `up` is zero?
base-scaled (base="scaled"): multiplies the old weight by the factor too
    What should the merged weight be when `up` is zero?
multiplied-by-the-rank (factor="alpha*rank"): multiplies by the rank and does not divide by it
    Does a larger rank make the factor larger or smaller?
"""),
    cases=[
        Case("2 outputs, 3 inputs, rank 1, alpha 4", _case(2, 3, 1, 4.0, seed=1)),
        Case("3 outputs, 5 inputs, rank 2, alpha 8", _case(3, 5, 2, 8.0, seed=11)),
        Case("7 outputs, 4 inputs, rank 3, alpha 0.5", _case(7, 4, 3, 0.5, seed=21)),
        Case("tensors that are not contiguous in memory", _strided),
        Case("float64", _case(4, 7, 5, 16.0, seed=31, dtype=torch.float64)),
    ],
    properties=[
        Property("The merged map gives the outputs of the trained one.", _same_output),
        Property("An update whose `up` is zero changes nothing.", _fresh_update_changes_nothing),
    ],
    alternatives=[
        Alternative("with addmm", _with_addmm),
        Alternative("as a sum of r outer products", _with_outer_products),
        Alternative("with einsum", _with_einsum),
    ],
    hints=(
        "Write the layer as x @ (one matrix).T: what stands in the brackets?",
        "The product of the thin matrices is right. Compare its factor with that of the layer, symbol by symbol.",
        """rank = ____
return weight + alpha / rank * (up @ down)""",
    ),
    sample=_sample,
    tries=("float64", "large", "zeros"),
)
