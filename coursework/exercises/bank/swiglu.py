"""Exercise: the gated feed-forward of Llama."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def swiglu(x, gate, up, down):
    """(..., D), gate (F, D), up (F, D), down (D, F) as nn.Linear stores them
    -> (..., D)"""
    opened = F.silu(x @ gate.T)  # (..., F)
    return (opened * (x @ up.T)) @ down.T  # (..., F) -> (..., D)


def _model(activation="silu", roles="gate", join="product", place="gate"):
    """A gated feed-forward whose settings are the misconceptions."""
    functions = {"silu": F.silu, "sigmoid": torch.sigmoid, "gelu": F.gelu, "relu": F.relu, "none": lambda x: x,
                 "overflows": lambda x: x * x.exp() / (1 + x.exp())}  # fmt: skip

    def feed_forward(x, gate, up, down):
        gate, up = (gate, up) if roles == "gate" else (up, gate)
        activate = functions[activation]
        if place == "product":
            inner = activate((x @ gate.T) * (x @ up.T))
        elif place == "both":
            inner = activate(x @ gate.T) * activate(x @ up.T)
        else:
            left, right = activate(x @ gate.T), x @ up.T
            inner = {"product": left * right, "sum": left + right, "gate": left}[join]
        return inner @ down.T

    return feed_forward


def _with_linear(x, gate, up, down):
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def _with_one_product(x, gate, up, down):
    left, right = (x @ torch.cat([gate, up]).T).chunk(2, dim=-1)  # (..., 2 F) -> two of (..., F)
    return (left * torch.sigmoid(left) * right) @ down.T


def _with_course(x, gate, up, down):
    from course_lib.layers import FeedForward

    layer = FeedForward(x.size(-1), gate.size(0), activation="silu", gated=True, bias=False)
    weights = {"gate.weight": gate, "up.weight": up, "down.weight": down}
    return torch.func.functional_call(layer, weights, (x,))


@maker
def _case(*lead, D, width, seed, dtype=torch.float32):
    weights = [normal(width, D, seed=seed + 1, dtype=dtype), normal(width, D, seed=seed + 2, dtype=dtype)]
    return normal(*lead, D, seed=seed, dtype=dtype), *weights, normal(D, width, seed=seed + 3, dtype=dtype)


def _strided():
    return tuple(strided(tensor) for tensor in _case(2, 3, D=5, width=7, seed=41)())


def _large():
    x, *weights = _case(2, D=3, width=4, seed=71)()
    return (100 * x.detach()).requires_grad_(), *weights


def _sample(draw):
    D, width = draw.integer(1, 6), draw.integer(1, 8)
    lead = [draw.integer(1, 3) for _ in range(draw.integer(0, 2))]
    dtype = draw.dtype()
    weights = [draw.normal(*shape, dtype=dtype) for shape in ((width, D), (width, D), (D, width))]
    return draw.normal(*lead, D, dtype=dtype), *weights


def _a_closed_gate_closes(swiglu) -> str | None:
    x, _, up, down = _case(3, D=2, width=5, seed=51)()
    output = swiglu(x, torch.zeros(5, 2), up, down)
    if output.abs().max() > 1e-6:
        return f"With a gate of zeros, where silu(0) = 0, the output reaches {output.abs().max().item():.3f}."
    return None


def _linear_in_up(swiglu) -> str | None:
    x, gate, up, down = _case(3, D=2, width=5, seed=61)()
    if not torch.allclose(swiglu(x, gate, 2 * up, down), 2 * swiglu(x, gate, up, down), atol=1e-4):
        return "Twice the weights `up` do not give twice the output."
    return None


EXERCISE = Exercise(
    title="A feed-forward with a gate",
    what="""Write `swiglu(x, gate, up, down)`, the feed-forward of Llama without biases. Two maps widen the input.
The output of `gate` goes through SiLU, silu(z) = z · σ(z), and multiplies that of `up`, number by number; `down`
narrows the product. The numbers may be very large. The weights are stored as `nn.Linear` stores them: `(out, in)`.""",
    why="""One extra product, and at equal parameters a lower loss than ReLU in most comparisons. It is a switch of the
course's `FeedForward`; here you write what the switch does.""",
    difficulty=1,
    minutes=5,
    reference=swiglu,
    model=_model,
    misconceptions=misconceptions("""
roles-exchanged (roles="exchanged"): activates the map by `up` and leaves the one by `gate` as it is
    Which of the two wide vectors decides how far the other one passes?
sigmoid-gate (activation="sigmoid"): gates with a sigmoid, as the older GLU does
    What is silu(2), and what is the sigmoid of 2?
gelu-gate (activation="gelu"): gates with GELU, as T5 version 1.1 does
    Which activation gives SwiGLU its name?
relu-gate (activation="relu"): gates with ReLU
    Can a gate whose map gives -1 let anything pass, here?
exponential-overflows (activation="overflows"): divides one exponential by another, and both are infinite for numbers
        above 88
    What is the exponential of 100 in float32, and what is that number divided by itself?
no-activation (activation="none"): multiplies the two maps without any activation
    Which of the two wide vectors has to become non-linear first?
added (join="sum"): adds the two wide vectors
    What should a gate of 0 leave of the other vector?
no-gate (join="gate"): uses only the activated map, as a plain feed-forward does
    Would your output change if `up` did?
activated-product (place="product"): activates the product of the two maps
    What is activated: a factor or the product?
both-activated (place="both"): activates both maps
    Twice the weights `up`: does your output double?
"""),
    cases=[
        Case("1 token, width 2, 3 inside", _case(1, D=2, width=3, seed=1)),
        Case("2 sentences of 3 tokens, width 5, 7 inside", _case(2, 3, D=5, width=7, seed=11)),
        Case("a single vector", _case(D=3, width=4, seed=21)),
        Case("weights that are not contiguous in memory", _strided),
        Case("numbers of size 100", _large),
        Case("float64", _case(4, D=3, width=5, seed=31, dtype=torch.float64)),
    ],
    properties=[
        Property("A gate of zeros lets nothing pass.", _a_closed_gate_closes),
        Property("The output is linear in `up`.", _linear_in_up),
    ],
    alternatives=[
        Alternative("with F.linear", _with_linear),
        Alternative("with one product for both maps", _with_one_product),
        Alternative("the course's own layer, with the switches set", _with_course),
    ],
    hints=(
        "Three products with weights: which two of them read x?",
        "SiLU belongs to one of the two wide vectors; the other meets it unchanged, and `down` comes last.",
        """opened = F.silu(x @ gate.T)  # (..., F)
return (____) @ down.T""",
    ),
    sample=_sample,
    tries=("float64", "large", "zeros", "repeated"),
)
