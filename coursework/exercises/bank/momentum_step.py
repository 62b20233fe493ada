"""Exercise: one step of gradient descent with momentum."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def momentum_step(weight, gradient, velocity, rate, beta=0.9):
    """(any shape), the same, the same, float, float -> new weight, new velocity"""
    velocity = beta * velocity + gradient
    weight = weight - rate * velocity
    return weight, velocity


def _model(
    old="kept", take="whole", use="new", sign=-1.0, decays="velocity", where="outside", back="both", beta_is="given"
):
    """Momentum whose settings are the misconceptions."""

    def step(weight, gradient, velocity, rate, beta=0.9):
        beta = {"given": beta, "fixed": 0.9}[beta_is]
        share = {"whole": 1.0, "dampened": 1.0 - beta}[take]
        kept = {"kept": velocity, "forgotten": 0.0 * velocity}[old]
        kept = -kept if back == "negative" else kept
        inside = rate if where == "inside" else 1.0
        if decays == "velocity":
            new = beta * kept + share * inside * gradient
        elif decays == "both":
            new = beta * (kept + share * inside * gradient)
        elif decays == "gradient":
            new = kept + beta * share * inside * gradient
        else:
            new = kept + share * inside * gradient
        if use == "new":
            direction = new
        elif use == "old":
            direction = velocity
        else:
            direction = share * inside * gradient + beta * new
        outside = 1.0 if where == "inside" else rate
        moved = weight + sign * outside * direction
        if back == "negative":
            return moved, -new
        return (moved, new) if back == "both" else (moved, velocity)

    return step


def _with_torch(weight, gradient, velocity, rate, beta=0.9):
    parameter = weight.detach().clone().requires_grad_()
    parameter.grad = gradient.detach().clone()
    optimizer = torch.optim.SGD([parameter], lr=rate, momentum=beta)
    optimizer.state[parameter]["momentum_buffer"] = velocity.detach().clone()
    optimizer.step()
    return parameter.detach(), optimizer.state[parameter]["momentum_buffer"]


def _in_one_line_each(weight, gradient, velocity, rate, beta=0.9):
    new = torch.add(gradient, velocity, alpha=beta)
    return torch.sub(weight, new, alpha=rate), new


def _weight_by_weight(weight, gradient, velocity, rate, beta=0.9):
    new_weight, new_velocity = weight.flatten().clone(), velocity.flatten().clone()
    for i, slope in enumerate(gradient.flatten()):
        new_velocity[i] = beta * new_velocity[i] + slope
        new_weight[i] = new_weight[i] - rate * new_velocity[i]
    return new_weight.view(weight.shape), new_velocity.view(weight.shape)


@maker
def _case(*shape, seed, rate=0.1, beta=0.9, dtype=torch.float32):
    weight, gradient, velocity = (normal(*shape, seed=seed + i, dtype=dtype, grad=False) for i in range(3))
    return weight, gradient, velocity, rate, beta


def _one(weight, gradient, velocity, rate, beta):
    return lambda: (torch.tensor([weight]), torch.tensor([gradient]), torch.tensor([velocity]), rate, beta)


def _sample(draw):
    shape = draw.choice([(), (3,), (2, 5), (1, 4, 2)])
    tensors = [draw.normal(*shape, dtype=torch.float64, grad=False) for _ in range(3)]
    return *tensors, draw.choice([0.01, 0.1, 2.0]), draw.choice([0.5, 0.9, 0.99])


def _goes_downhill(step) -> str | None:
    weight, _ = step(torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([0.0]), 0.1, 0.9)
    if float(weight) < 1:
        return None
    return f"The gradient of a weight 1 is 2, so the loss falls to the left; the step led to {float(weight):.3g}."


def _gathers_speed(step) -> str | None:
    weight, velocity = torch.tensor([0.0]), torch.tensor([0.0])
    for _ in range(200):
        weight, velocity = step(weight, torch.tensor([1.0]), velocity, 0.1, 0.9)
    later, _ = step(weight, torch.tensor([1.0]), velocity, 0.1, 0.9)
    length = float(weight - later)
    if abs(length - 1.0) < 1e-3:
        return None
    return (
        f"With rate 0.1, beta 0.9 and a gradient that is always 1, a step is {length:.3g} long after 200 steps; "
        "the sum 0.1 · (1 + 0.9 + 0.81 + ...) is 1."
    )


EXERCISE = Exercise(
    title="A step with momentum",
    what="""Write `momentum_step(weight, gradient, velocity, rate, beta=0.9)`. The new velocity is beta times the old
velocity plus the gradient, and the weight then moves against the **new** velocity, by rate times as much. Return the
new weight and the new velocity. All three tensors have the same shape; leave those that you are given as they are.""",
    why="It is the first idea that lets a loss fall along a narrow valley, and Adam and Muon both begin with it.",
    difficulty=1,
    minutes=4,
    reference=momentum_step,
    model=_model,
    misconceptions=misconceptions("""
dampened (take="dampened"): takes 1 - beta of the gradient into the velocity, as an average does
    By which number does the text multiply the gradient before it goes into the velocity?
no-momentum (old="forgotten"): forgets the old velocity, as plain gradient descent does
    If the gradient is zero now, but was not before, does your weight move?
old-velocity (use="old"): moves the weight by the velocity from before this gradient
    In the first step the old velocity is zero: does your weight move?
nesterov (use="ahead"): looks one step ahead, as Nesterov's momentum does
    Which two quantities did you add to get the direction, and which one does the text name?
uphill (sign=1.0): moves along the velocity instead of against it
    If the gradient is positive, does the loss grow or fall when the weight grows?
velocity-never-decays (decays="nothing"): adds all gradients up without ever letting the old ones fade
    What becomes of a gradient of a hundred steps ago in your velocity?
decays-the-gradient (decays="gradient"): multiplies the gradient by beta, and keeps all of the old velocity
    Which of the two is to fade, what was or what comes in?
rate-in-the-velocity (where="inside"): multiplies the gradient by the rate before it goes into the velocity
    With a rate of 0.1, a gradient of 2 and no old velocity, which velocity do you return?
old-velocity-returned (back="old"): returns the velocity that it was given
    What will the next step know of this gradient?
beta-fixed (beta_is="fixed"): takes 0.9 for beta, whatever is given
    What does your function do with its last argument?
velocity-downhill (where="inside", back="negative"): keeps a velocity that points downhill and already contains the rate
    What is the new velocity after one step from rest, by the rule in the text?
decays-the-sum (decays="both"): multiplies the gradient by beta together with the old velocity
    Which of the two terms becomes smaller, before or after they are added?
"""),
    cases=[
        Case("one weight, no velocity yet", _one(1.0, 2.0, 0.0, 0.1, 0.9)),
        Case("one weight, a gradient of zero", _one(1.0, 0.0, 3.0, 0.1, 0.9)),
        Case("one weight, everything at work", _one(1.0, 2.0, 3.0, 0.1, 0.9)),
        Case("three weights, beta of 0.5", _case(3, seed=1, rate=0.25, beta=0.5)),
        Case("a matrix (2, 5), beta not given", lambda: _case(2, 5, seed=11, rate=0.02)()[:4]),
        Case("float64", _case(2, 3, seed=21, rate=1.5, beta=0.8, dtype=torch.float64)),
    ],
    properties=[
        Property("Without an old velocity a step goes against the gradient.", _goes_downhill),
        Property("Gradients that agree add up.", _gathers_speed),
    ],
    alternatives=[
        Alternative("torch's own", _with_torch),
        Alternative("with alpha", _in_one_line_each),
        Alternative("weight by weight", _weight_by_weight),
    ],
    hints=(
        "Which of the two results needs the other: can you compute the weight first?",
        "Two lines: first the velocity, from its old value and the gradient; then the weight, from that velocity.",
        "velocity = ____\nweight = weight - rate * velocity\nreturn weight, velocity",
    ),
    sample=_sample,
    tries=("float32", "large", "zeros"),
    gradients=False,
)
