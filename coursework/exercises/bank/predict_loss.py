"""Exercise: size and loss at a budget that nobody has spent yet, from the best ones at smaller budgets."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def predict_loss(budgets, sizes, losses, target):
    """(b,), (b,), (b,) float64, float
    -> two floats (size, loss) at the budget target: straight lines through the logarithms"""
    u = budgets.log()
    design = torch.stack([u, torch.ones_like(u)], dim=-1)  # (b, 2)
    values = torch.stack([sizes, losses], dim=-1).log()  # (b, 2)
    slopes, heights = torch.linalg.lstsq(design, values).solution  # (2,) each
    size, loss = (slopes * math.log(target) + heights).exp().tolist()
    return size, loss


def _model(line="all", across="log", up="log", out="value", power=None, loss="line"):
    """A prediction whose settings are the misconceptions."""

    def predict(budgets, sizes, losses, target):
        u = budgets.log() if across == "log" else budgets
        at = math.log(target) if across == "log" else target
        found = []
        for name, y in (("size", sizes), ("loss", losses)):
            v = y.log() if up == "log" or (up == "size only" and name == "size") else y
            if line == "largest":
                height = v[budgets.argmax()]
            else:
                order = budgets.argsort()
                rows = {"all": order, "last two": order[-2:], "ends": order[[0, -1]]}[line]
                du, dv = u[rows] - u[rows].mean(), v[rows] - v[rows].mean()
                slope = (du * dv).sum() / du.square().sum()
                if power is not None and name == "size":
                    slope = torch.tensor(power, dtype=slope.dtype)
                if loss == "mirrored" and name == "loss":
                    slope = -slope
                height = v[rows].mean() + slope * (at - u[rows].mean())
            if out == "value" and v is not y:
                height = height.exp()
            found.append(height.item())
        return tuple(found)

    return predict


def _with_polyfit(budgets, sizes, losses, target):
    import numpy as np

    def extend(values):
        line = np.polyfit(np.log(budgets.numpy()), np.log(values.numpy()), 1)
        return float(np.exp(np.polyval(line, np.log(target))))

    return extend(sizes), extend(losses)


def _by_slopes(budgets, sizes, losses, target):
    u = budgets.log10()
    centred = u - u.mean()
    found = []
    for values in (sizes, losses):
        v = values.log10()
        slope = (centred * v).sum() / (centred * centred).sum()
        found.append(float(10 ** (v.mean() + slope * (math.log10(target) - u.mean()))))
    return found[0], found[1]


def _as_powers(budgets, sizes, losses, target):
    X = torch.stack([budgets.log2(), torch.ones_like(budgets)], dim=-1)
    solved = torch.linalg.pinv(X)
    (p, a), (q, b) = ((solved @ values.log2()).tolist() for values in (sizes, losses))
    return 2**a * target**p, 2**b * target**q


@maker
def _case(n, first, factor, size, grows, loss, falls, noise, further, seed):
    budgets = first * factor ** torch.arange(n, dtype=torch.float64)
    scatter = normal(2, n, seed=seed, grad=False, dtype=torch.float64)
    growth = budgets / first
    sizes = size * growth**grows * (1 + 5 * noise * scatter[0])
    return budgets, sizes, loss * growth**-falls * (1 + noise * scatter[1]), first * factor ** (n - 1) * further


def _sample(draw):
    n = draw.integer(3, 6)
    growth = torch.tensor([draw.integer(20, 60) / 10 for _ in range(n)], dtype=torch.float64).cumprod(0)
    sizes = draw.integer(5, 50) * 1000.0 * growth ** (draw.integer(30, 80) / 100)
    losses = draw.integer(20, 40) / 10 * growth ** -(draw.integer(3, 15) / 100)
    noisy = 1 + 0.01 * draw.normal(n, grad=False, dtype=torch.float64)
    first = 10.0 ** draw.integer(9, 20)
    return first * growth, sizes * noisy, losses * (1 + (noisy - 1) / 5), first * growth[-1].item() * 4


def _continues_a_power(predict) -> str | None:
    budgets = torch.tensor([1e10, 4e10, 16e10], dtype=torch.float64)
    size, loss = predict(budgets, 1000 * (budgets / 1e10) ** 0.5, 3 * (budgets / 1e10) ** -0.1, 64e10)
    if math.isclose(size, 8000, rel_tol=1e-6) and math.isclose(loss, 3 * 64**-0.1, rel_tol=1e-6):
        return None
    return f"Sizes 1000, 2000, 4000 at 1, 4, 16 ask for 8000 at 64; it predicts {size:.5g}, and the loss {loss:.4g}."


def _knows_what_it_saw(predict) -> str | None:
    budgets = torch.tensor([1e10, 4e10], dtype=torch.float64)
    sizes, losses = torch.tensor([1e3, 5e3], dtype=torch.float64), torch.tensor([3.0, 2.5], dtype=torch.float64)
    size, loss = predict(budgets, sizes, losses, 1e10)
    if math.isclose(size, 1e3, rel_tol=1e-6) and math.isclose(loss, 3.0, rel_tol=1e-6):
        return None
    return f"At a budget that was measured, with 1000 parameters and the loss 3, it predicts {size:.4g} and {loss:.4g}."


EXERCISE = Exercise(
    title="Predict a model before you train it",
    what="""At each of `budgets` (b,) you know the best size, `sizes` (b,), and its loss, `losses` (b,), all float64.
Write `predict_loss(budgets, sizes, losses, target)`: the best size and its loss at another budget, the number `target`,
as two floats. Over a short range both change roughly as powers of the budget, so with logarithms on both axes the
points lie near straight lines. Fit one to the sizes and one to the losses, each by least squares over all points, and
read them off at `target`.""",
    why="""It is how large trainings are planned: small runs at a few budgets, a line, and one number that is written
down before the large run begins.""",
    difficulty=4,
    minutes=12,
    reference=predict_loss,
    model=_model,
    misconceptions=misconceptions("""
largest-budget (line="largest"): promises what the largest budget has reached
    Does a larger budget change nothing?
last-two (line="last two"): draws its lines through the two largest budgets only
    Which of the points take part in your lines?
end-points (line="ends"): draws its lines through the smallest and the largest budget only
    Which of the points take part in your lines?
budgets-not-logged (across="value"): takes the budgets themselves instead of their logarithms
    Is the step from 1e10 to 4e10 as long as that from 4e10 to 7e10 or as that to 16e10?
values-not-logged (up="value"): takes logarithms of the budgets alone
    Is a power of the budget a straight line on the axes that you use?
losses-not-logged (up="size only"): takes logarithms of budgets and sizes, but not of the losses
    On which axes is the loss a straight line?
logarithms-returned (out="log"): returns logarithms
    How many parameters has the model that you predict?
square-root (power=0.5): lets the size grow with the square root of the budget, whatever was measured
    Where does the slope of your first line come from?
growing-loss (loss="mirrored"): turns the slope of the losses round
    Is the loss at a larger budget higher or lower?
"""),
    cases=[
        Case("three exact powers", _case(3, 1e10, 4.0, 9000.0, 0.6, 2.4, 0.07, 0.0, 4.0, 1)),
        Case("three budgets with scatter", _case(3, 2e10, 4.0, 15_000.0, 0.5, 2.3, 0.06, 0.01, 4.0, 2)),
        Case("four budgets, ten times further", _case(4, 1e18, 3.0, 4e8, 0.4, 3.1, 0.05, 0.02, 10.0, 3)),
        Case("five budgets", _case(5, 6e18, 2.5, 2e8, 0.7, 2.9, 0.04, 0.01, 100.0, 4)),
        Case("a budget between those measured", _case(4, 1e12, 5.0, 1e5, 0.45, 2.0, 0.08, 0.02, 0.1, 5)),
    ],
    properties=[
        Property("Powers of the budget are continued exactly.", _continues_a_power),
        Property("Two points lie on their own line.", _knows_what_it_saw),
    ],
    alternatives=[
        Alternative("with `numpy.polyfit`", _with_polyfit),
        Alternative("by slopes, to the base ten", _by_slopes),
        Alternative("as powers", _as_powers),
    ],
    hints=(
        "If y is a times a power of x, what is log(y) as a function of log(x)?",
        "Fit log(size) and log(loss) as straight lines in log(budget), put log(target) in, and undo the logarithms.",
        """u = budgets.log()
design = torch.stack([u, torch.ones_like(u)], dim=-1)
slope, height = torch.linalg.lstsq(design, ____).solution
size = math.exp(slope * math.log(target) + height)
...""",
    ),
    sample=_sample,
    gradients=False,
)
