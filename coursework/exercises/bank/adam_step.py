"""Exercise: one step of Adam."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def adam_step(weight, gradient, m, v, t, rate, beta1=0.9, beta2=0.98, eps=1e-9):
    """tensors of one shape, int from 1, floats -> new weight, new m, new v"""
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient**2
    m_hat = m / (1 - beta1**t)
    v_hat = v / (1 - beta2**t)
    weight = weight - rate * m_hat / (v_hat.sqrt() + eps)
    return weight, m, v


def _model(
    correct="both", first=0, root="outside", power=2, shares="both", numerator="m", back="plain", sign=-1.0,
    betas="given", rooted=True, update="new",
):  # fmt: skip
    """Adam whose settings are the misconceptions."""

    def step(weight, gradient, m, v, t, rate, beta1=0.9, beta2=0.98, eps=1e-9):
        if betas == "swapped":
            beta1, beta2 = beta2, beta1
        t = t + first
        old_m, old_v = m, v
        m = (1 - beta1 if shares == "exchanged" else beta1) * m + (
            1 - beta1 if shares == "both" else beta1 if shares == "exchanged" else 1.0
        ) * gradient
        seen = {2: gradient**2, 1: gradient.abs()}[power]
        v = (1 - beta2 if shares == "exchanged" else beta2) * v + (
            1 - beta2 if shares == "both" else beta2 if shares == "exchanged" else 1.0
        ) * seen
        used_m, used_v = (m, v) if update == "new" else (old_m, old_v)
        m_hat = used_m / (1 - beta1**t) if correct in ("both", "first") else used_m
        v_hat = used_v / (1 - beta2**t) if correct in ("both", "second") else used_v
        if not rooted:
            divisor = v_hat + eps
        elif root == "outside":
            divisor = v_hat.sqrt() + eps
        elif root == "inside":
            divisor = (v_hat + eps).sqrt()
        else:
            divisor = v_hat.sqrt()
        if correct == "multiplied":
            m_hat, v_hat = used_m * (1 - beta1**t), used_v * (1 - beta2**t)
            divisor = v_hat.sqrt() + eps
        top = m_hat if numerator == "m" else gradient
        weight = weight + sign * rate * top / divisor
        return (weight, m, v) if back == "plain" else (weight, m_hat, v_hat)

    return step


def _with_torch(weight, gradient, m, v, t, rate, beta1=0.9, beta2=0.98, eps=1e-9):
    parameter = weight.detach().clone().requires_grad_()
    parameter.grad = gradient.detach().clone()
    optimizer = torch.optim.Adam([parameter], lr=rate, betas=(beta1, beta2), eps=eps)
    before = {"step": torch.tensor(float(t - 1)), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    optimizer.state[parameter] = before
    optimizer.step()
    after = optimizer.state[parameter]
    return parameter.detach(), after["exp_avg"], after["exp_avg_sq"]


def _with_lerp(weight, gradient, m, v, t, rate, beta1=0.9, beta2=0.98, eps=1e-9):
    m = torch.lerp(m, gradient, 1 - beta1)
    v = torch.lerp(v, gradient.square(), 1 - beta2)
    spread = torch.sqrt(v / (1 - beta2**t))
    return weight - rate / (1 - beta1**t) * m / (spread + eps), m, v


def _correction_in_the_rate(weight, gradient, m, v, t, rate, beta1=0.9, beta2=0.98, eps=1e-9):
    m = m + (1 - beta1) * (gradient - m)
    v = v + (1 - beta2) * (gradient * gradient - v)
    root = math.sqrt(1 - beta2**t)
    step = rate * root / (1 - beta1**t)  # section 2 of the paper, with eps adapted to it
    return torch.addcdiv(weight, m, v.sqrt() + eps * root, value=-step), m, v


@maker
def _case(*shape, seed, t, rate=0.1, betas=(0.9, 0.98), eps=1e-9, dtype=torch.float32, scale=1.0):
    weight, gradient, m = (normal(*shape, seed=seed + i, dtype=dtype, grad=False) for i in range(3))
    v = normal(*shape, seed=seed + 3, dtype=dtype, grad=False) ** 2 + 0.01
    return weight, scale * gradient + 0.01 * scale, scale * m, scale**2 * v, t, rate, *betas, eps


def _one(weight, gradient, m, v, t, rate, beta1=0.9, beta2=0.98, eps=1e-9):
    return lambda: (*(torch.tensor([x]) for x in (weight, gradient, m, v)), t, rate, beta1, beta2, eps)


def _sample(draw):
    shape = draw.choice([(3,), (2, 5), (1, 4, 2)])
    weight, gradient, m, v = (draw.normal(*shape, dtype=torch.float64, grad=False) for _ in range(4))
    settings = draw.choice([0.001, 0.5]), draw.choice([0.5, 0.9]), draw.choice([0.95, 0.999]), draw.choice([1e-8, 0.1])
    return weight, gradient, m, v**2 + 0.01, draw.integer(1, 50), *settings


def _first_step(step) -> str | None:
    gradient = torch.tensor([0.001, -5.0, 200.0])
    weight, _, _ = step(torch.zeros(3), gradient, torch.zeros(3), torch.zeros(3), 1, 0.1)
    if torch.allclose(weight.abs(), torch.full((3,), 0.1), rtol=1e-3):
        return None
    moved = ", ".join(f"{value:.3g}" for value in weight.tolist())
    return f"In step 1, with rate 0.1 and gradients 0.001, -5 and 200, three weights of 0 become {moved}."


def _scale_does_not_matter(step) -> str | None:
    one = _case(3, seed=71, t=4)()
    large = _case(3, seed=71, t=4, scale=64.0)()
    small, big = step(*one)[0], step(*large)[0]
    if torch.allclose(small, big, rtol=1e-3, atol=1e-4):
        return None
    return (
        "When the gradient and m are 64 times as large, and v 4096 times, "
        f"the first weight becomes {float(big[0]):.4g} instead of {float(small[0]):.4g}."
    )


EXERCISE = Exercise(
    title="A step of Adam",
    what="""Write `adam_step(weight, gradient, m, v, t, rate, beta1=0.9, beta2=0.98, eps=1e-9)` for step number `t`,
counted from 1. Four lines for m, v, m̂ and v̂, then the weight:

- m becomes beta1 · m + (1 − beta1) · gradient;
- v becomes beta2 · v + (1 − beta2) · gradient²;
- m̂ is m / (1 − beta1ᵗ), and v̂ is v / (1 − beta2ᵗ);
- the weight loses rate · m̂ / (√v̂ + eps).

Return the new weight, the new m and the new v (not m̂ and v̂). Leave the tensors that you are given as they are.""",
    why="GPT-3 was trained with these lines, Llama with their next version, AdamW.",
    difficulty=2,
    minutes=8,
    reference=adam_step,
    model=_model,
    misconceptions=misconceptions("""
no-bias-correction (correct="none"): does not divide by 1 - beta^t, neither m nor v
    In the first step, how large is m beside the gradient?
only-m-corrected (correct="first"): corrects m and not v
    In the first step, how large is v beside the square of the gradient?
only-v-corrected (correct="second"): corrects v and not m
    In the first step, how large is m beside the gradient?
counts-from-zero (first=-1): takes t - 1 for the number of the step, so that the first one divides by zero
    What is beta to the power that you use in the first step?
one-step-late (first=1): takes t + 1 for the number of the step
    Which power of beta do you use in the first step?
eps-inside-the-root (root="inside"): adds eps to v̂ before it takes the root
    If v̂ is zero, what do you divide by?
eps-forgotten (root="none"): does not use eps
    What happens to a weight whose gradient has always been zero?
no-root (rooted=False): divides by v̂ and not by its root
    If all gradients double, what should happen to the step?
sizes-not-squares (power=1): averages the sizes of the gradients in v, not their squares
    What goes into v for a gradient of 3?
whole-gradient (shares="whole"): adds the whole gradient to m and its whole square to v
    If the gradient is always 1, towards which number does your m go?
no-momentum (numerator="gradient"): divides this step's gradient, and not m̂
    If the gradient is zero now, but was not before, does your weight move?
hats-returned (back="hats"): returns m̂ and v̂ in place of m and v
    What would the next step make of a correction that was already made?
betas-swapped (betas="swapped"): takes beta2 for m and beta1 for v
    Which of the two averages has the longer memory?
old-averages (update="old"): moves the weight by m and v from before this gradient
    In the first step, what do your averages hold when you divide one by the other?
uphill (sign=1.0): moves the weight along m̂ instead of against it
    If the gradient is positive, does the loss grow or fall when the weight grows?
shares-exchanged (shares="exchanged"): keeps 1 − beta of the old average and takes beta of what is new
    With beta1 = 0.9, how much of the old m remains?
correction-multiplied (correct="multiplied"): multiplies by the correction and does not divide by it
    In step 1 m is a tenth of the gradient: should m̂ be larger or smaller than that?
"""),
    cases=[
        Case("one weight, the first step", _one(1.0, 4.0, 0.0, 0.0, 1, 0.1)),
        Case("one weight, the second step", _one(1.0, -2.0, 0.4, 0.32, 2, 0.1)),
        Case("a gradient that has always been zero", _one(1.0, 0.0, 0.0, 0.0, 3, 0.1)),
        Case("three weights, step 5, eps of 0.5", _case(3, seed=1, t=5, eps=0.5)),
        Case("a matrix (2, 5), step 20, other betas", _case(2, 5, seed=11, t=20, rate=0.02, betas=(0.8, 0.95))),
        Case("betas and eps not given", lambda: _case(2, 3, seed=21, t=3)()[:6]),
        Case("float64, step 1000", _case(4, seed=31, t=1000, rate=1.5, dtype=torch.float64)),
    ],
    properties=[
        Property("The first step moves every weight by the rate, however large its gradient.", _first_step),
        Property("Multiplying all gradients by one number changes no step.", _scale_does_not_matter),
    ],
    alternatives=[
        Alternative("torch's own", _with_torch),
        Alternative("with lerp", _with_lerp),
        Alternative("the corrections moved into the rate", _correction_in_the_rate),
    ],
    hints=(
        "After the first step, by which factor is m smaller than the gradient, and v smaller than its square?",
        "Keep m and v for the next step as they are. The corrected ones have names of their own and are used once.",
        """m = beta1 * m + (1 - beta1) * gradient
v = beta2 * v + (1 - beta2) * gradient**2
weight = weight - rate * ____
return weight, m, v""",
    ),
    sample=_sample,
    tries=("float32", "large"),
    gradients=False,
)
