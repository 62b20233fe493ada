"""Exercise: one step of AdamW, whose decay goes past the averages."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def adamw_step(  # the defaults are those of the course
    weight, gradient, m, v, t, rate, decay=0.01, beta1=0.9, beta2=0.98, eps=1e-9
):
    """tensors of one shape, int from 1, floats -> new weight, new m, new v"""
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    weight = weight - rate * decay * weight  # past m and v
    weight = weight - rate * m_hat / (v_hat.sqrt() + eps)
    return weight, m, v


def _model(
    place="beside", times="rate", when="before", sign=1.0, how="weight", correct="both", root="outside", axes="all"
):
    """AdamW whose settings are the misconceptions."""

    def step(weight, gradient, m, v, t, rate, decay=0.01, beta1=0.9, beta2=0.98, eps=1e-9):
        pull = {"weight": weight, "sign": weight.sign(), "squared": weight**2}[how] * sign * decay
        if place == "gradient":
            gradient = gradient + pull
        m = beta1 * m + (1 - beta1) * gradient
        v = beta2 * v + (1 - beta2) * gradient**2
        m_hat = m / (1 - beta1**t) if correct == "both" else m
        v_hat = v / (1 - beta2**t) if correct == "both" else v
        if place == "numerator":
            m_hat = m_hat + pull
        divisor = {
            "outside": v_hat.sqrt() + eps,
            "inside": (v_hat + eps).sqrt(),
            "early": (v.sqrt() + eps) / (1 - beta2**t) ** 0.5,
        }[root]
        step = rate * m_hat / divisor
        if axes == "matrices" and weight.dim() < 2:
            pull = torch.zeros_like(weight)
        if place != "beside":
            return weight - step, m, v
        factor = {"rate": rate, "nothing": 1.0, "rate squared": rate**2}[times]
        if when == "before":
            return weight - factor * pull - step, m, v
        moved = weight - step
        later = {"weight": moved, "sign": moved.sign(), "squared": moved**2}[how] * sign * decay
        return moved - factor * later, m, v

    return step


def _with_torch(weight, gradient, m, v, t, rate, decay=0.01, beta1=0.9, beta2=0.98, eps=1e-9):
    parameter = weight.detach().clone().requires_grad_()
    parameter.grad = gradient.detach().clone()
    optimizer = torch.optim.AdamW([parameter], lr=rate, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    before = {"step": torch.tensor(float(t - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.state[parameter] = before
    optimizer.step()
    after = optimizer.state[parameter]
    return parameter.detach(), after["exp_avg"], after["exp_avg_sq"]


def _as_a_factor(weight, gradient, m, v, t, rate, decay=0.01, beta1=0.9, beta2=0.98, eps=1e-9):
    m = torch.lerp(m, gradient, 1 - beta1)
    v = torch.lerp(v, gradient.square(), 1 - beta2)
    step = m / (1 - beta1**t) / (torch.sqrt(v / (1 - beta2**t)) + eps)
    return (1 - rate * decay) * weight - rate * step, m, v


def _as_one_direction(weight, gradient, m, v, t, rate, decay=0.01, beta1=0.9, beta2=0.98, eps=1e-9):
    m = m + (1 - beta1) * (gradient - m)
    v = v + (1 - beta2) * (gradient * gradient - v)
    direction = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)) ** 0.5 + eps) + decay * weight
    return torch.sub(weight, direction, alpha=rate), m, v


@maker
def _case(*shape, seed, t, rate=0.1, decay=0.5, betas=(0.9, 0.98), eps=1e-9, dtype=torch.float32):
    weight, gradient, m = (normal(*shape, seed=seed + i, dtype=dtype, grad=False) for i in range(3))
    v = normal(*shape, seed=seed + 3, dtype=dtype, grad=False) ** 2 + 0.01
    return 2 * weight, gradient + 0.01, m, v, t, rate, decay, *betas, eps


def _one(weight, gradient, m, v, t, rate, decay):
    return lambda: (*(torch.tensor([x]) for x in (weight, gradient, m, v)), t, rate, decay, 0.9, 0.98, 1e-9)


def _sample(draw):
    shape = draw.choice([(3,), (2, 5), (1, 4, 2)])
    weight, gradient, m, v = (draw.normal(*shape, dtype=torch.float64, grad=False) for _ in range(4))
    rate, decay = draw.choice([0.001, 0.5]), draw.choice([0.0, 0.01, 1.0])
    return weight, gradient, m, v**2 + 0.01, draw.integer(1, 50), rate, decay, 0.9, draw.choice([0.95, 0.999]), 1e-8


def _decays_alone(step) -> str | None:
    zero = torch.zeros(2)
    weight, _, _ = step(torch.tensor([4.0, -200.0]), zero, zero, zero, 1, 0.5, 0.1)
    if torch.allclose(weight, torch.tensor([3.8, -190.0])):
        return None
    return (
        "Without any gradient, with rate 0.5 and decay 0.1, the weights 4 and -200 become "
        f"{float(weight[0]):.4g} and {float(weight[1]):.4g}; each should lose a twentieth."
    )


def _keeps_out_of_the_averages(step) -> str | None:
    gradient, zero = torch.tensor([1.0, -2.0]), torch.zeros(2)
    one, other = (step(torch.tensor([3.0, 5.0]), gradient, zero, zero, 1, 0.1, decay) for decay in (0.0, 0.5))
    if torch.equal(one[1], other[1]) and torch.equal(one[2], other[2]):
        return None
    return f"Another decay changed m from {one[1].tolist()} to {other[1].tolist()}."


EXERCISE = Exercise(
    title="A step of AdamW",
    what="""Write `adamw_step(weight, gradient, m, v, t, rate, decay=0.01, beta1=0.9, beta2=0.98, eps=1e-9)`: the
step of Adam as in the formulas above. In addition, subtract rate · decay · (the **old** weight). This must not go into
the gradient, m or v. `t` counts the steps from 1. Return the new weight, m and v. Do not modify the inputs; they may
have any number of axes.""",
    why="One line in another place: with it, the decay is the same for all weights, however steep their gradients.",
    difficulty=3,
    minutes=10,
    reference=adamw_step,
    model=_model,
    misconceptions=misconceptions("""
decay-in-the-gradient (place="gradient"): adds decay times the weight to the gradient, as Adam with an L2 penalty does
    By what will the part that you added to the gradient be divided later?
decay-over-the-root (place="numerator"): adds decay times the weight to m̂, so that it is divided by √v̂ too
    Of two equal weights, one with steep gradients and one with flat ones: which decays more?
no-decay (place="nowhere"): does not use the decay
    Which of your arguments have you used?
decay-without-the-rate (times="nothing"): takes decay times the weight away, without the rate
    At the end of a schedule the rate is nearly zero: how much do your weights still decay?
rate-squared (times="rate squared"): multiplies the decay by the rate twice
    How often does your weight's decay meet the rate on its way?
decay-afterwards (when="after"): decays the weight that Adam's step has already moved
    Of which weight do you take the share, the one that came in or the one that goes out?
grows (sign=-1.0): lets the weights grow where they should decay
    Without a gradient, does a weight of 4 get smaller?
same-for-all-sizes (how="sign"): takes the same amount from large and small weights
    How much should a weight of 200 lose, if one of 4 loses 0.2?
no-bias-correction (correct="none"): does not divide by 1 - beta^t, neither m nor v
    In the first step, how large is m beside the gradient?
eps-inside-the-root (root="inside"): adds eps to v̂ before it takes the root
    If v̂ is zero, what do you divide by?
eps-before-the-correction (root="early"): adds eps to the root of v before v is corrected
    If v is zero in the first step, what do you divide by?
matrices-only (axes="matrices"): decays only weights with two axes or more
    Without a gradient, what becomes of a single weight of 4?
"""),
    cases=[
        Case("one weight without a gradient", _one(4.0, 0.0, 0.0, 0.0, 1, 0.5, 0.1)),
        Case("one weight, the first step", _one(4.0, 2.0, 0.0, 0.0, 1, 0.5, 0.1)),
        Case("three weights, step 5, decay 0.5", _case(3, seed=1, t=5, eps=0.5)),
        Case("a matrix (2, 5), step 20, other betas", _case(2, 5, seed=11, t=20, rate=0.2, betas=(0.8, 0.95))),
        Case("decay of zero", _case(3, seed=21, t=2, decay=0.0)),
        Case("decay, betas and eps not given", lambda: _case(2, 3, seed=31, t=3, rate=2.0)()[:6]),
        Case("float64", _case(4, seed=41, t=7, rate=1.5, dtype=torch.float64)),
    ],
    properties=[
        Property("Without a gradient each weight loses the same share of itself.", _decays_alone),
        Property("The decay leaves m and v alone.", _keeps_out_of_the_averages),
    ],
    alternatives=[
        Alternative("torch's own", _with_torch),
        Alternative("decay as a factor of the weight", _as_a_factor),
        Alternative("both parts in one direction", _as_one_direction),
    ],
    hints=(
        "If the gradient has been zero all the time, what should a step of AdamW still do?",
        "The averages are those of Adam. One line stands apart from them: only weight, rate and decay are in it.",
        """m_hat = m / (1 - beta1**t)
v_hat = v / (1 - beta2**t)
weight = ____
weight = weight - rate * m_hat / (v_hat.sqrt() + eps)""",
    ),
    sample=_sample,
    tries=("float32", "large"),
    gradients=False,
)
