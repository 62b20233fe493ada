"""Exercise: scale gradients down together when their common norm is too large."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def clip_gradients(gradients, max_norm):
    """list of tensors, float -> (list of tensors, norm before clipping as a tensor)"""
    norm = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    if norm > max_norm:
        gradients = [gradient * (max_norm / norm) for gradient in gradients]
    return list(gradients), norm


def _model(scope="all", always=False, norm="two", report="before", power=1.0, by="scale"):
    """Clipping whose settings are the misconceptions."""

    def size(tensors):
        joined = torch.cat([tensor.flatten() for tensor in tensors])
        if norm == "sum-of-norms":
            return torch.stack([tensor.norm() for tensor in tensors]).sum()
        kinds = {"two": joined.norm(), "squared": joined.square().sum(), "one": joined.abs().sum(),
                 "largest": joined.abs().max(), "mean-square": joined.square().mean().sqrt()}  # fmt: skip
        return kinds[norm]

    def shrink(tensors, max_norm, whole):
        if by == "clamp":
            return [tensor.clamp(-max_norm, max_norm) for tensor in tensors]
        if by == "drop":
            return [tensor * (whole <= max_norm) for tensor in tensors]
        if not always and whole <= max_norm:
            return list(tensors)
        return [tensor * (max_norm / whole) ** power if whole else tensor * math.nan for tensor in tensors]

    def clip(gradients, max_norm):
        whole = size(gradients)
        if scope == "each":
            clipped = [shrink([tensor], max_norm, size([tensor]))[0] for tensor in gradients]
        else:
            clipped = shrink(gradients, max_norm, whole)
        return clipped, whole if report == "before" else size(clipped)

    return clip


def _of_one_vector(gradients, max_norm):
    joined = torch.cat([gradient.flatten() for gradient in gradients])
    norm = joined.norm()
    factor = torch.clamp(max_norm / norm, max=1.0)  # max_norm / 0 is infinite, and clamped to 1
    return [gradient * factor for gradient in gradients], norm


def _with_torch(gradients, max_norm):
    parameters = [torch.zeros_like(gradient, requires_grad=True) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)  # divides by the norm plus 1e-6
    return [parameter.grad for parameter in parameters], norm


def _norm_of_norms(gradients, max_norm):
    norms = torch.stack([gradient.norm() for gradient in gradients])
    norm = norms.norm()
    return [gradient if norm <= max_norm else gradient / norm * max_norm for gradient in gradients], norm


@maker
def _case(max_norm, *scales, seed, dtype=torch.float32):
    shapes = [(2, 3), (5,), (1, 2, 2)][: len(scales)]
    made = [
        normal(*shape, seed=seed + i, scale=scale, grad=False, dtype=dtype)
        for i, (shape, scale) in enumerate(zip(shapes, scales, strict=True))
    ]
    return made, max_norm


def _sample(draw):
    shapes = [[draw.integer(1, 4) for _ in range(draw.integer(1, 3))] for _ in range(draw.integer(1, 4))]
    gradients = [draw.normal(*shape, scale=draw.choice([0.125, 1.0, 32.0]), grad=False) for shape in shapes]
    return gradients, draw.integer(1, 20) / 8


def _norm_is_kept_below(clip) -> str | None:
    gradients, limit = _case(1.5, 3.0, 0.5, 8.0, seed=81)()
    clipped, _ = clip(gradients, limit)
    norm = float(torch.cat([tensor.flatten() for tensor in clipped]).norm())
    return None if math.isclose(norm, limit, rel_tol=1e-4) else f"Clipped to 1.5, the gradients have norm {norm:.4g}."


def _direction_is_kept(clip) -> str | None:
    gradients, limit = _case(1.5, 3.0, 0.5, 8.0, seed=81)()
    clipped, _ = clip(gradients, limit)
    ratios = torch.cat([(after / before).flatten() for after, before in zip(clipped, gradients, strict=True)])
    low, high = float(ratios.min()), float(ratios.max())
    if math.isclose(low, high, rel_tol=1e-4):
        return None
    return f"One entry was multiplied by {low:.4g}, another by {high:.4g}."


def _small_ones_stay(clip) -> str | None:
    gradients, limit = _case(100.0, 1.0, 1.0, seed=85)()
    clipped, _ = clip(gradients, limit)
    same = all(torch.equal(after, before) for after, before in zip(clipped, gradients, strict=True))
    return None if same else "Gradients whose norm is below the limit came back changed."


EXERCISE = Exercise(
    title="Clip by the norm of all gradients",
    what="""Write `clip_gradients(gradients, max_norm)`: if the Euclidean norm of all gradients *taken together*
exceeds `max_norm`, multiply every gradient by the one factor that brings it down to `max_norm`; otherwise leave them
as they are. A factor made with the norm plus 0.000001, as torch makes it, is right, too. Return the list of gradients
and the norm that they had before. There is at least one gradient, and the given tensors must not change.""",
    why="Clipping bounds the length of a step and keeps its direction. Many versions in circulation bend it.",
    difficulty=2,
    minutes=8,
    reference=clip_gradients,
    model=_model,
    misconceptions=misconceptions("""
each-tensor-alone (scope="each"): clips each tensor by its own norm
    If the gradient of one layer shrinks and that of another does not, where does the step point?
clamped-entries (by="clamp"): cuts off each entry at the limit
    What becomes of the direction of (3, 4) when both entries are cut off at 1?
step-skipped (by="drop"): replaces gradients that are too large by zeros
    Which norm should gradients that are too large have afterwards?
always-scaled (always=True): brings every gradient to the limit, small ones too
    What should happen to a gradient whose norm is below the limit, or zero?
squared-norm (norm="squared"): compares and divides by the sum of squares
    What is the length of the vector (3, 4), and what does your function say it is?
sum-of-norms (norm="sum-of-norms"): adds up the norms of the tensors
    What is the norm of (3, 4), cut into two tensors of one entry each?
one-norm (norm="one"): adds up the sizes of all entries
    What is the length of the vector (3, 4), and what does your function say it is?
largest-entry (norm="largest"): takes the largest entry for the norm
    What is the length of the vector (3, 4), and what does your function say it is?
root-of-the-mean (norm="mean-square"): averages the squares where they should be added
    Does your norm grow when the model gets more parameters?
norm-afterwards (report="after"): reports the norm after clipping
    What would a curve of your norms show in a run in which every step is clipped?
"""),
    cases=[
        Case("one tensor, below the limit", lambda: ([torch.tensor([3.0, -4.0])], 6.0)),
        Case("one tensor, above the limit", lambda: ([torch.tensor([3.0, -4.0])], 2.0)),
        Case(
            "two tensors, only together above the limit",
            lambda: ([torch.tensor([3.0]), torch.tensor([[4.0, 0.0]])], 4.5),
        ),
        Case("three tensors of different sizes", _case(1.5, 3.0, 0.5, 8.0, seed=11)),
        Case("three tensors, far below the limit", _case(100.0, 0.5, 1.0, 0.25, seed=21)),
        Case("gradients of zero", lambda: ([torch.zeros(2), torch.zeros(3, 1)], 1.0)),
        # so large that the 1e-6 that torch adds to the norm is below the rounding that is allowed
        Case("float64", _case(20.0, 300.0, 50.0, 80.0, seed=31, dtype=torch.float64)),
    ],
    properties=[
        Property("After clipping the norm of all gradients is the limit.", _norm_is_kept_below),
        Property("All entries are multiplied by the same factor.", _direction_is_kept),
        Property("Gradients below the limit stay as they are.", _small_ones_stay),
    ],
    alternatives=[
        Alternative("as one long vector, without a branch", _of_one_vector),
        Alternative("torch's own clipping, on copies", _with_torch),
        Alternative("the norm of the norms", _norm_of_norms),
    ],
    hints=(
        "If all gradients were written into one long vector, what would its length be?",
        "Squares add up over tensors, lengths do not. The factor is the same for all, and 1 if nothing is too long.",
        "norm = ____  # of all entries of all tensors\nif norm > max_norm:\n"
        "    gradients = [... for gradient in gradients]\nreturn list(gradients), norm",
    ),
    sample=_sample,
    tries=("large", "zeros"),
    gradients=False,
    equivalent_mutants={"norm > max_norm -> norm >= max_norm": "at the limit the factor is one"},
)
