"""Exercise: the best size at one budget, from a few models that have spent it."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def isoflop_minimum(sizes, losses):
    """(n,), (n,) float64
    -> two floats (size, loss): the lowest point of a parabola over log(size)"""
    u = sizes.log()
    design = torch.stack([u**2, u, torch.ones_like(u)], dim=-1)  # (n, 3)
    a, b, c = torch.linalg.lstsq(design, losses).solution
    lowest = -b / (2 * a)
    return lowest.exp().item(), (a * lowest**2 + b * lowest + c).item()


def _model(axis="log", pick="vertex", half=2, sign=-1, loss="value", out="size", height="curve", used="all"):
    """A minimum whose settings are the misconceptions."""

    def minimum(sizes, losses):
        best = losses.argmin()
        if pick == "measured":
            return sizes[best].item(), losses[best].item()
        u = {"log": sizes.log(), "linear": sizes, "ten": sizes.log10()}[axis]
        v = losses.log() if loss == "log" else losses
        if used == "three":
            near = (u - u[best]).abs().argsort()[:3]
            u, v = u[near], v[near]
        middle, spread = u.mean(), u.std()
        z = (u - middle) / spread
        a, b, c = torch.linalg.lstsq(torch.stack([z**2, z, torch.ones_like(z)], -1), v[:, None]).solution.flatten()
        # back to a u² + b u + c
        a, b, c = (
            a / spread**2,
            b / spread - 2 * a * middle / spread**2,
            c - b * middle / spread + a * (middle / spread) ** 2,
        )
        at = sign * b / (half * a)
        value = a * at**2 + b * at + c
        value = value.exp() if loss == "log" else value
        if height == "measured":
            value = losses.min()
        elif height == "constant":
            value = c.exp() if loss == "log" else c
        shown = at if out == "log" or axis == "linear" else at.exp()
        return shown.item(), value.item()

    return minimum


def _with_polyfit(sizes, losses):
    import numpy as np

    curve = np.poly1d(np.polyfit(np.log(sizes.numpy()), losses.numpy(), 2))
    lowest = curve.deriv().roots[0]
    return float(np.exp(lowest)), float(curve(lowest))


def _centred(sizes, losses):
    u = sizes.log()
    z = u - u.mean()
    X = torch.stack([torch.ones_like(z), z, z * z], dim=-1)  # (n, 3)
    c, b, a = torch.linalg.solve(X.T @ X, X.T @ losses).tolist()
    return math.exp(u.mean().item() - b / 2 / a), c - b * b / 4 / a


def _in_octaves(sizes, losses):
    u = sizes.log2()
    X = torch.stack([u * u, u, torch.ones_like(u)], dim=-1)
    a, b, c = (torch.linalg.pinv(X) @ losses).tolist()
    return 2 ** (-b / 2 / a), c - b * b / 4 / a


@maker
def _case(n, best, lowest, curvature, step, skew, noise, seed):
    u = step * torch.arange(n, dtype=torch.float64)
    u = u - u.mean() + skew
    scatter = normal(n, seed=seed, grad=False, dtype=torch.float64)
    return best * u.exp(), lowest + curvature * u**2 + noise * scatter


def _sample(draw):
    n = draw.integer(4, 8)
    u = torch.tensor([draw.integer(4, 9) / 10 for _ in range(n)], dtype=torch.float64).cumsum(0)
    u = u - u.mean() + draw.integer(-20, 20) / 10  # the lowest point may lie outside
    losses = draw.integer(15, 30) / 10 + draw.integer(5, 15) / 100 * u**2
    return draw.integer(10, 90) * 1000.0 * u.exp(), losses + 0.003 * draw.normal(n, grad=False, dtype=torch.float64)


def _finds_an_exact_parabola(minimum) -> str | None:
    u = torch.tensor([-1.0, 0.0, 1.0, 2.5], dtype=torch.float64)
    size, loss = minimum(5000 * u.exp(), 2 + 0.1 * u**2)
    if abs(size / 5000 - 1) < 1e-6 and abs(loss - 2) < 1e-6:
        return None
    return (
        f"Losses 2 + 0.1 (log N - log 5000)² have their lowest point at 5000 and 2; it finds {size:.5g} and {loss:.4g}."
    )


def _grows_with_the_sizes(minimum) -> str | None:
    sizes, losses = _case(5, 30_000.0, 2.1, 0.08, 0.7, 0.3, 0.01, 5)()
    (one, low), (two, same) = minimum(sizes, losses), minimum(2 * sizes, losses)
    if math.isclose(two, 2 * one, rel_tol=1e-6) and math.isclose(low, same, rel_tol=1e-6):
        return None
    return f"Sizes doubled: the best one goes from {one:.5g} to {two:.5g}, the loss from {low:.4g} to {same:.4g}."


EXERCISE = Exercise(
    title="The bottom of the curve",
    what="""Models of several sizes have all spent the same budget. Write `isoflop_minimum(sizes, losses)`, both (n,)
in float64 with n of 4 or more: fit a parabola $a u^2 + b u + c$ with $u = \\log N$ to the losses, by least squares
over all points, and return two floats, the size and the loss of its lowest point. The size is a number of parameters,
not a logarithm. If `X` has the columns $u^2$, $u$ and 1, `torch.linalg.lstsq(X, losses).solution` is $a$, $b$, $c$.""",
    why="""The best of the measured models is only the best of those that you happened to train. The
bottom of a parabola may lie between them.""",
    difficulty=3,
    minutes=12,
    reference=isoflop_minimum,
    model=_model,
    misconceptions=misconceptions("""
best-measured (pick="measured"): returns the best of the models that were trained
    Must the best possible size be one of those that you tried?
axis-of-sizes (axis="linear"): lays its parabola over the sizes themselves
    Is a step from 5,000 to 10,000 parameters as large as one from 100,000 to 105,000?
half-forgotten (half=1): takes the lowest point of the parabola twice as far from zero
    Where is the derivative of the parabola zero?
sign-of-the-vertex (sign=1): takes the lowest point on the other side of zero
    Where is the derivative of the parabola zero?
logarithm-returned (out="log"): returns the logarithm of the size
    How many parameters does a model of your size have?
base-ten (axis="ten"): takes logarithms to the base ten and undoes them to the base e
    Which function undoes the logarithm that you took?
log-of-losses (loss="log"): lays the parabola through the logarithms of the losses
    Of which quantity is the parabola in the prompt?
lowest-loss-measured (height="measured"): returns the lowest loss that was measured
    Which loss belongs to the size that you return?
constant-term (height="constant"): returns the constant term of the parabola as the loss
    At which size does a parabola equal its constant term?
three-points (used="three"): uses only the best model and the two nearest to it
    Which of the measured losses take part in your fit?
"""),
    cases=[
        Case("four exact points", _case(4, 20_000.0, 2.0, 0.1, 1.0, 0.25, 0.0, 1)),
        Case("five points with scatter", _case(5, 40_000.0, 1.9, 0.07, 0.8, 0.1, 0.01, 2)),
        Case("the best size near an end", _case(5, 9_000.0, 2.2, 0.12, 0.6, 0.9, 0.004, 3)),
        Case("six points, large models", _case(6, 4e8, 2.4, 0.05, 0.7, -0.2, 0.005, 4)),
        Case("eight points", _case(8, 70_000.0, 1.7, 0.09, 0.5, 0.3, 0.01, 6)),
    ],
    properties=[
        Property("An exact parabola gives back its lowest point.", _finds_an_exact_parabola),
        Property("Twice as many parameters throughout double the best size.", _grows_with_the_sizes),
    ],
    alternatives=[
        Alternative("with `numpy.polyfit`", _with_polyfit),
        Alternative("centred, by the normal equations", _centred),
        Alternative("in octaves", _in_octaves),
    ],
    hints=(
        "If the losses lay exactly on a parabola, how would you find its lowest point?",
        "Stack u², u and ones as columns and solve for a, b and c. The lowest point is at u = -b / (2 a).",
        """u = sizes.log()
design = torch.stack([____, u, torch.ones_like(u)], dim=-1)
a, b, c = torch.linalg.lstsq(design, losses).solution
...""",
    ),
    sample=_sample,
    gradients=False,
)
