"""Exercise: the size and the tokens that use a budget best."""

import math

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def compute_optimal(a, alpha, b, beta, flops):
    """five floats -> (parameters N, tokens D):
    the least a / N**alpha + b / D**beta with 6 N D = flops"""
    balance = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
    parameters = balance * (flops / 6) ** (beta / (alpha + beta))
    return parameters, flops / (6 * parameters)


def _model(slopes=True, power="beta", six=6, six_in_tokens=True, sign=1, rule=None, swapped=False, root=True):
    """A split whose settings are the misconceptions."""

    def split(a, alpha, b, beta, flops):
        if rule == "twenty":
            parameters = math.sqrt(flops / (six * 20))
        elif rule == "half":
            parameters = math.sqrt(flops / six)
        else:
            ratio = alpha * a / (beta * b) if slopes else a / b
            balance = ratio ** (sign / (alpha + beta) if root else sign)
            exponent = {"beta": beta, "alpha": alpha}[power] / (alpha + beta)
            parameters = balance * (flops / six) ** exponent
        tokens = flops / ((six if six_in_tokens else 1) * parameters)
        return (tokens, parameters) if swapped else (parameters, tokens)

    return split


def _by_bisection(a, alpha, b, beta, flops):
    low, high = -200.0, 400.0  # logarithms of N
    for _ in range(200):
        middle = (low + high) / 2
        log_tokens = math.log(flops / 6) - middle
        slope = math.log(alpha * a) - alpha * middle - math.log(beta * b) + beta * log_tokens
        low, high = (middle, high) if slope > 0 else (low, middle)  # a larger model still helps
    return math.exp(low), flops / 6 / math.exp(low)


def _tokens_first(a, alpha, b, beta, flops):
    budget = flops / 6  # N * D
    tokens = (beta * b / (alpha * a)) ** (1 / (alpha + beta)) * budget ** (alpha / (alpha + beta))
    return budget / tokens, tokens


def _with_course(a, alpha, b, beta, flops):
    from course_lib.scaling import LossSurface
    from course_lib.scaling import compute_optimal as best

    found = best(LossSurface(1.0, a, alpha, b, beta), flops)
    return found.parameters, found.tokens


def _sample(draw):
    alpha, beta = draw.integer(10, 90) / 100, draw.integer(10, 90) / 100
    a, b = draw.integer(1, 2000) / 2, draw.integer(1, 2000) / 2
    return a, alpha, b, beta, float(draw.integer(1, 99)) * 10.0 ** draw.integer(3, 24)


def _uses_the_budget(split) -> str | None:
    parameters, tokens = split(400.0, 0.3, 500.0, 0.4, 6e18)
    used = 6 * parameters * tokens
    return None if math.isclose(used, 6e18) else f"With 6e18 operations at hand, 6 N D is {used:.3g}."


def _nothing_near_is_better(split) -> str | None:
    def loss(n):
        return 400.0 / n**0.3 + 500.0 / (1e18 / n) ** 0.4

    parameters, _ = split(400.0, 0.3, 500.0, 0.4, 6e18)
    for factor, name in ((0.8, "smaller"), (1.25, "larger")):
        if loss(factor * parameters) < loss(parameters):
            return f"For a budget of 6e18, a model {name} by a fifth of its parameters has a lower loss."
    return None


EXERCISE = Exercise(
    title="How large, and for how long",
    what="""The loss of a model with $N$ parameters after $D$ tokens is fitted by
$L = E + a / N^{\\alpha} + b / D^{\\beta}$, and training costs $6ND$ operations. Write
`compute_optimal(a, alpha, b, beta, flops)`: the pair $(N, D)$ with the lowest loss for a budget of `flops` operations,
as two numbers. Do not round them: six digits are compared. At the lowest loss
$\\alpha a / N^{\\alpha} = \\beta b / D^{\\beta}$. Put $D = C / (6N)$ into it, and solve it for $N$.""",
    why="""Chinchilla, a quarter of the size of Gopher on four times the text, used the same budget and was better. This
formula says how such a split follows from a fitted loss, and two fits of the same runs may disagree.""",
    difficulty=3,
    minutes=12,
    reference=compute_optimal,
    model=_model,
    misconceptions=misconceptions("""
equal-terms (slopes=False): makes the two terms of the loss equal
    At the lowest point, must two falling terms be equal, or something else about them?
exponents-swapped (power="alpha"): lets the parameters grow with the exponent that belongs to the tokens
    If the loss falls fast with N, does a small model go a long way, or must N grow fast?
two-operations (six=2): gives each parameter and token two operations
    What comes after the forward pass?
no-six (six=1): takes the budget for the product of parameters and tokens
    How many operations does one token cost for each parameter?
tokens-without-six (six_in_tokens=False): finds tokens that with its parameters overrun the budget
    How many operations does training with your N and D cost?
balance-inverted (sign=-1, power="beta"): gives less to the model the more the loss depends on its size
    With a very large `a`, should the model be large or small?
rule-of-thumb (rule="twenty"): gives every model twenty tokens a parameter, whatever was fitted
    Does your answer depend on the fit?
halved (rule="half"): gives as many tokens as parameters
    Does your answer depend on the fit?
order (swapped=True, sign=1, power="beta"): returns the tokens first
    Which of the two numbers comes first?
root-forgotten (root=False): leaves the ratio of the slopes without its root
    When you solve for N, which power of N stands alone on one side?
"""),
    cases=[
        Case("equal exponents, equal factors", lambda: (1.0, 0.5, 1.0, 0.5, 600.0)),
        Case("the model's term four times as large", lambda: (4.0, 0.5, 1.0, 0.5, 600.0)),
        Case("unequal exponents", lambda: (3.0, 0.25, 7.0, 0.5, 6e6)),
        Case("unequal the other way", lambda: (7.0, 0.6, 5.0, 0.2, 6e9)),
        Case("the fit of Hoffmann et al., the budget of Gopher", lambda: (406.4, 0.34, 410.7, 0.28, 5.76e23)),
        Case("the corrected fit of Besiroglu et al.", lambda: (482.01, 0.3478, 2085.43, 0.3658, 5.76e23)),
    ],
    properties=[
        Property("The whole budget is used: 6 N D is the number of operations.", _uses_the_budget),
        Property("No model near it does better with the same budget.", _nothing_near_is_better),
    ],
    alternatives=[
        Alternative("by bisection", _by_bisection),
        Alternative("the tokens first", _tokens_first),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "With a model one per cent larger and a text one per cent shorter, which term falls and which rises?",
        "Bring all powers of N to one side: N to the power alpha + beta. Then take the root.",
        """balance = ____ ** (1 / (alpha + beta))
parameters = balance * (flops / 6) ** (beta / (alpha + beta))
...""",
    ),
    sample=_sample,
)
