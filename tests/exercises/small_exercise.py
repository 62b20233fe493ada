"""A small exercise for the tests of the engine: bring the mean of each row to zero."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Misconception, Property
from coursework.exercises.tensors import normal, strided


def center(x, dim=-1):
    """(..., E) -> the same shape, with mean zero along dim"""
    # A comment of the author.
    mean = x.mean(dim=dim, keepdim=True)
    return x - mean


def model(along="dim", sign=-1.0, detached=False, power=1.0):
    def f(x, dim=-1):
        mean = x.mean() if along == "all" else x.mean(dim=0 if along == "first" else dim, keepdim=True)
        mean = mean.detach() if detached else mean
        return x * power + sign * mean

    return f


def sums_to_zero(f):
    total = float(f(torch.tensor([[1.0, 2.0, 6.0]])).sum())
    return None if abs(total) < 1e-4 else f"The numbers of row 0 sum to {total:.2f}."


def make(**changes):
    fields = {
        "id": "center",
        "title": "Mean zero",
        "what": "Write `center(x, dim=-1)`.",
        "why": "Norms begin like this.",
        "difficulty": 1,
        "minutes": 2,
        "reference": center,
        "model": model,
        "misconceptions": [
            Misconception(name="one-mean", knobs={"along": "all"}, statement="takes one mean", question="Whose mean?"),
            Misconception(name="first-axis", knobs={"along": "first"}, statement="uses axis 0", question="Which axis?"),
            Misconception(name="added", knobs={"sign": 1.0}, statement="adds the mean", question="Which sign?"),
            Misconception(name="cut", knobs={"detached": True}, statement="cuts the gradient", question="What moves?"),
            Misconception(name="twice", knobs={"power": 2.0}, statement="doubles x", question="How large?"),
        ],
        "cases": [
            Case("2 rows, 3 columns", lambda: (normal(2, 3, seed=1),)),
            Case("along the first axis", lambda: {"x": normal(3, 2, seed=2), "dim": 0}),
            Case("float64, not contiguous", lambda: (strided(normal(3, 5, seed=3, dtype=torch.float64)),)),
            Case("bfloat16", lambda: (normal(2, 7, seed=4, dtype=torch.bfloat16),)),
        ],
        "properties": [Property("Every row sums to zero.", sums_to_zero)],
        "alternatives": [Alternative("by hand", lambda x, dim=-1: x - x.sum(dim, keepdim=True) / x.size(dim))],
        "hints": ("Where does the mean lie?", "It has as many entries as rows.", "return x - ____"),
        "sample": lambda draw: (draw.normal(2, 3),),
    }
    return Exercise(**(fields | changes))
