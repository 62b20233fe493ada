"""Exercise: fit a power law with the part of the loss that no size removes."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def fit_power_law(x, y, floors):
    """(n,), (n,), (m,) float64
    -> three floats (floor, scale, exponent) of y = floor + scale * x ** -exponent"""
    least, best = math.inf, None
    for floor in floors.tolist():
        u, v = x.log(), (y - floor).log()
        u_part = u - u.mean()
        slope = (u_part * v).sum() / u_part.square().sum()
        scale = (v.mean() - slope * u.mean()).exp()
        error = (y.log() - (floor + scale * x**slope).log()).square().sum().item()
        if error < least:
            least, best = error, (floor, scale.item(), -slope.item())
    return best


def _model(floor="each", error="log", pick="least", sign=-1, scale="value", line="least squares"):
    """A fit whose settings are the misconceptions."""

    def fit(x, y, floors):
        found = []
        candidates = {"each": floors.tolist(), "none": [0.0], "smallest loss": [0.999 * y.min().item()]}[floor]
        for low in candidates:
            u, v = x.log(), (y - low).log()
            du, dv = u - u.mean(), v - v.mean()
            if line == "least squares":
                slope = (du * dv).sum() / du.square().sum()
            elif line == "inverse":
                slope = dv.square().sum() / (du * dv).sum()
            else:
                slope = (v[-1] - v[0]) / (u[-1] - u[0])
            factor = (v.mean() - slope * u.mean()).exp()
            predicted = low + factor * x**slope
            if error == "log":
                miss = y.log() - predicted.log()
            elif error == "absolute":
                miss = (y.log() - predicted.log()).abs().sqrt()
            elif error == "relative":
                miss = (y - predicted) / y
            elif error == "value":
                miss = y - predicted
            else:
                miss = v - (predicted - low).log()
            shown = {"value": factor, "log": factor.log(), "at the mean": v.mean().exp()}[scale]
            found.append((miss.square().sum().item(), (low, shown.item(), sign * slope.item())))
        chosen = {"least": min, "most": max}[pick](found, key=lambda one: one[0])
        return chosen[1]

    return fit


def _with_lstsq(x, y, floors):
    results = []
    design = torch.stack([torch.ones_like(x), -x.log()], dim=-1)  # (n, 2)
    for floor in floors:
        log_scale, exponent = torch.linalg.lstsq(design, (y - floor).log()[:, None]).solution[:, 0]
        predicted = floor + log_scale.exp() * x**-exponent
        results.append(((predicted / y).log().norm().item(), floor.item(), log_scale.exp().item(), exponent.item()))
    return min(results)[1:]


def _all_floors_at_once(x, y, floors):
    u, v = x.log(), (y - floors[:, None]).log()  # (n,), (m, n)
    u_part = u - u.mean()
    slope = (v * u_part).sum(-1) / (u_part * u_part).sum()  # (m,)
    log_scale = v.mean(-1) - slope * u.mean()
    predicted = floors[:, None] + (log_scale[:, None] + slope[:, None] * u).exp()  # (m, n)
    i = (predicted.log() - y.log()).square().mean(-1).argmin()
    return floors[i].item(), log_scale[i].exp().item(), -slope[i].item()


def _with_polyfit(x, y, floors):
    import numpy as np

    def fit(floor):
        slope, log_scale = np.polyfit(np.log(x.numpy()), np.log(y.numpy() - floor), 1)
        return floor, float(np.exp(log_scale)), -float(slope)

    def error(law):
        floor, scale, exponent = law
        return float(((floor + scale * x**-exponent).log() - y.log()).square().sum())

    return min((fit(floor) for floor in floors.tolist()), key=error)


@maker
def _case(n, floor, scale, exponent, floors, noise, seed):
    x = 1000.0 * 3.0 ** torch.arange(n, dtype=torch.float64)
    scatter = normal(n, seed=seed, grad=False, dtype=torch.float64)
    y = (floor + scale * x**-exponent) * (1 + noise * scatter)
    return x, y, torch.tensor(floors, dtype=torch.float64)


def _sample(draw):
    n = draw.integer(4, 9)
    x = 100.0 * torch.tensor([draw.integer(20, 40) / 10 for _ in range(n)], dtype=torch.float64).cumprod(0)
    floor, exponent = draw.integer(3, 20) / 10, draw.integer(10, 50) / 100
    y = floor + draw.integer(20, 90) / 10 * (x / x[0]) ** -exponent
    y = y * (1 + 0.004 * draw.normal(n, grad=False, dtype=torch.float64))
    floors = torch.tensor([0.0, 0.17, 0.31, 0.44, 0.58, 0.73, 0.86], dtype=torch.float64) * y.min()
    return x, y, floors.roll(draw.integer(0, 6))


def _finds_the_law(fit) -> str | None:
    x = torch.tensor([10.0, 30.0, 100.0, 700.0], dtype=torch.float64)
    floor, scale, exponent = fit(x, 1.5 + 4.0 * x**-0.5, torch.tensor([0.5, 1.0, 1.5], dtype=torch.float64))
    if abs(floor - 1.5) < 1e-6 and abs(scale - 4) < 1e-6 and abs(exponent - 0.5) < 1e-6:
        return None
    return f"For y = 1.5 + 4 x ** -0.5 without scatter it finds ({floor:.4g}, {scale:.4g}, {exponent:.4g})."


def _larger_models_are_better(fit) -> str | None:
    x = torch.tensor([10.0, 30.0, 100.0, 700.0], dtype=torch.float64)
    _, _, exponent = fit(x, 4.0 * x**-0.5, torch.tensor([0.0], dtype=torch.float64))
    return None if exponent > 0 else f"For y = 4 x ** -0.5 the exponent is {exponent:.4g}."


EXERCISE = Exercise(
    title="Fit the law, floor included",
    what="""Write `fit_power_law(x, y, floors)`: sizes `x` (n,), losses `y` (n,) and candidates for the irreducible
loss `floors` (m,), all float64 and every floor below every loss. For each floor, $\\log(y - \\mathrm{floor})$ is a
straight line in $\\log x$: fit it by least squares. Of the m laws keep the one whose predictions of `y` are nearest:
the sum of the squared differences of $\\log y$ and $\\log(\\text{predicted})$ is least, and there are no ties. Return
three floats, the floor, the scale and the exponent of
$y = \\mathrm{floor} + \\mathrm{scale} \\cdot x^{-\\mathrm{exponent}}$.""",
    why="""A straight line through the logarithms promises a loss of zero to a model that is large enough, and its
exponent is too small. The floor is what no size removes at this number of tokens: what the text leaves open, and what
cannot be learned from so little of it.""",
    difficulty=3,
    minutes=15,
    reference=fit_power_law,
    model=_model,
    misconceptions=misconceptions("""
no-floor (floor="none"): fits a straight line through the logarithms and knows no irreducible loss
    Which loss does your law promise to an endlessly large model?
floor-at-the-best-loss (floor="smallest loss"): takes the best loss seen for the irreducible one
    Would a larger model than all of these still improve?
error-of-the-line (error="line"): compares the floors by how straight their lines are
    Are differences of log(y - floor) comparable between two floors?
error-of-the-values (error="value"): compares the floors by the plain differences of the losses
    On which scale should the predictions be near?
worst-floor (pick="most"): keeps the floor that fits worst
    Which error should the law that you return have?
slope-for-exponent (sign=1): returns the slope of the line where the exponent is expected
    With which sign does the exponent stand in the law?
log-of-the-scale (scale="log"): returns the logarithm of the scale
    What does your law predict at x = 1?
scale-at-the-mean (scale="at the mean"): takes for the scale the height of the line in the middle of the data
    At which x does the scale alone stand in the law?
axes-swapped (line="inverse"): minimises distances along the axis of the sizes
    Which of the two has scatter, the size or the loss?
end-points (line="ends"): draws the line through the slope of its two ends
    What do the points in the middle change in your fit?
relative-differences (error="relative"): compares the floors by the differences of the losses, divided by the losses
    On which scale should the predictions be near?
differences-not-squared (error="absolute"): adds up the differences of the logarithms without squaring them
    How much more does a difference of 0.2 count than two of 0.1?
"""),
    cases=[
        Case("four exact points, three floors", _case(4, 1.5, 40.0, 0.5, [0.5, 1.0, 1.5], 0.0, 1)),
        Case("no floor is best", _case(5, 0.0, 9.0, 0.125, [0.0, 0.5, 1.0], 0.0, 2)),
        Case("five points with scatter", _case(5, 1.7, 60.0, 0.4, [0.0, 0.8, 1.2, 1.7], 0.004, 3)),
        Case("seven points with more scatter", _case(7, 1.2, 30.0, 0.3, [0.3, 0.6, 0.9, 1.2, 1.4], 0.01, 4)),
        Case("six points, many floors", _case(6, 0.9, 25.0, 0.25, [k / 20 for k in range(30)], 0.01, 5)),
        Case("five points, fifty floors", _case(5, 2.0, 80.0, 0.35, [k / 25 for k in range(50)], 0.01, 14)),
        Case("six points with much scatter", _case(6, 1.5, 12.0, 0.3, [k / 10 for k in range(14)], 0.1, 6)),
    ],
    properties=[
        Property("Points without scatter give back their law.", _finds_the_law),
        Property("A loss that falls with the size has a positive exponent.", _larger_models_are_better),
    ],
    alternatives=[
        Alternative("with `torch.linalg.lstsq`", _with_lstsq),
        Alternative("all floors at once", _all_floors_at_once),
        Alternative("with `numpy.polyfit`", _with_polyfit),
    ],
    hints=(
        "What kind of curve is log(y - floor) against log(x), if the floor is right?",
        "Fit slope and height for one floor first, then predict y from them, and only then compare the floors.",
        """least, best = math.inf, None
for floor in floors.tolist():
    u, v = x.log(), ____
    ...
    if error < least:
        least, best = error, (floor, scale.item(), -slope.item())
return best""",
    ),
    sample=_sample,
    gradients=False,
    equivalent_mutants={
        "error < least -> error <= least": "two floors never fit equally well",
        "(y.log() - (floor + scale * x ** slope).log()).square().sum -> "
        "(y.log() - (floor + scale * x ** slope).log()).square().mean": ("the mean is least where the sum is"),
        "y.log() - (floor + scale * x ** slope).log() -> (floor + scale * x ** slope).log() - y.log()": (
            "squares do not tell the sign"
        ),
    },
)
