"""Exercise: the feed-forward network of a layer."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def feed_forward(x, W_up, b_up, W_down, b_down):
    """(B, T, D), (D, F), (F,), (F, D), (D,) -> (B, T, D)"""
    inner = (x @ W_up + b_up).clamp(min=0)  # (B, T, D) @ (D, F) -> (B, T, F); max(0, .) is the ReLU
    return inner @ W_down + b_down  # (B, T, F) @ (F, D) -> (B, T, D)


def _model(activation="relu", at="inside", up="before", down="added", around="nothing", reads="own"):
    """A feed-forward whose settings are the misconceptions."""
    activations: dict[str, Callable[..., torch.Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "sigmoid": torch.sigmoid,
        "abs": torch.abs,
        "silu": F.silu,
        "leaky": lambda x: F.leaky_relu(x, 0.1),
    }
    activate = activations[activation]

    def network(x, W_up, b_up, W_down, b_down):
        if reads == "mean":
            x = x.mean(dim=1, keepdim=True).expand_as(x)
        inner = (activate(x) if at == "input" else x) @ W_up
        inner = inner + b_up if up == "before" else inner
        inner = activate(inner) if at in ("inside", "twice") else inner
        inner = inner + b_up if up == "after" else inner
        output = inner @ W_down + (b_down if down == "added" else 0)
        output = activate(output) if at in ("output", "twice") else output
        return output + (x if around == "residual" else 0)

    return network


def _with_convolutions(x, W_up, b_up, W_down, b_down):
    inner = F.relu(F.conv1d(x.mT, W_up.mT[..., None], b_up))  # (B, D, T) -> (B, F, T), a window of one position
    return F.conv1d(inner, W_down.mT[..., None], b_down).mT


def _token_by_token(x, W_up, b_up, W_down, b_down):
    rows = [torch.relu(token @ W_up + b_up) @ W_down + b_down for sentence in x for token in sentence]
    return torch.stack(rows).reshape(x.shape)


def _with_functions_of_torch(x, W_up, b_up, W_down, b_down):
    return F.linear(F.relu(F.linear(x, W_up.T, b_up)), W_down.T, b_down)


@maker
def _case(B, T, D, width, seed, dtype=torch.float32):
    shapes = ((B, T, D), (D, width), (width,), (width, D), (D,))
    return tuple(normal(*shape, seed=seed + n, dtype=dtype) for n, shape in enumerate(shapes))


def _sample(draw):
    B, T, D, width = draw.integer(1, 3), draw.integer(1, 5), draw.integer(1, 6), draw.integer(1, 9)
    dtype = draw.dtype()
    shapes = ((B, T, D), (D, width), (width,), (width, D), (D,))
    return tuple(draw.normal(*shape, dtype=dtype) for shape in shapes)


def _positions_are_apart(network) -> str | None:
    x, *rest = _case(1, 4, 3, 5, seed=81)()
    changed = x.detach().clone()
    changed[:, 2] += 3.0
    moved = (network(x, *rest) - network(changed, *rest)).abs().amax(dim=(0, 2)) > 1e-5
    wrong = [t for t in (0, 1, 3) if moved[t]]
    return f"Changing token 2 changed the output at position {wrong[0]}." if wrong else None


def _zeros_give_the_last_bias(network) -> str | None:
    x, W_up, b_up, W_down, b_down = (part.detach() for part in _case(1, 2, 3, 5, seed=91)())
    found = network(0 * x, W_up, -b_up.abs() - 0.1, W_down, b_down)
    if torch.allclose(found, b_down.expand_as(found), atol=1e-5):
        return None
    return "For a token of zeros and negative inner biases, the output is not the last bias."


EXERCISE = Exercise(
    title="The feed-forward network",
    what="""Write `feed_forward(x, W_up, b_up, W_down, b_down)`, equation 2 of the paper: each token is mapped from
width D to width F, everything below zero is cut off (ReLU), and the result is mapped back to width D. Both maps add
their bias. No residual connection and no norm: the layer adds those.""",
    why="Two thirds of an encoder layer's parameters lie here; attention has the other third.",
    difficulty=1,
    minutes=5,
    reference=feed_forward,
    model=_model,
    misconceptions=misconceptions("""
no-nonlinearity (at="never"): has no non-linearity between its two maps
    Which single matrix would do the same as your two?
relu-on-the-output (at="output"): cuts off negative numbers of the output, and not those in between
    Can a component of your output ever be negative?
relu-twice (at="twice"): cuts off negative numbers twice, in between and at the end
    Can a component of your output ever be negative?
relu-on-the-input (at="input"): cuts off negative numbers of the input, and not those in between
    Between which two maps does the formula put the maximum?
gelu (activation="gelu"): uses GELU
    What does BERT use between the two maps, and what does the paper of 2017?
sigmoid (activation="sigmoid"): uses a sigmoid
    What does a ReLU give for an input of 3?
leaky (activation="leaky"): lets a part of the negative numbers through
    What does a ReLU give for an input of -3?
absolute-value (activation="abs"): takes absolute values in between
    What does a ReLU give for an input of -3?
first-bias-forgotten (up="none"): forgets the first bias
    Which of your five arguments have you used?
first-bias-after-the-relu (up="after"): adds the first bias after the non-linearity
    Can a number between your two maps be negative?
last-bias-forgotten (down="none"): forgets the last bias
    Which of your five arguments have you used?
residual-added (around="residual"): adds its input to the output
    Whose work is the residual connection?
tokens-averaged (reads="mean"): reads the mean of all tokens at every position
    Does your output at position 0 change with the last token?
swish (activation="silu"): uses x times its sigmoid for the ReLU
    What is left of the number -1 after your non-linearity?
"""),
    cases=[
        Case("1 token of width 2, 3 inside", _case(1, 1, 2, 3, seed=1)),
        Case("1 sentence of 2 tokens, width 3, 5 inside", _case(1, 2, 3, 5, seed=11)),
        Case("2 sentences of 5 tokens, width 3, 7 inside", _case(2, 5, 3, 7, seed=21)),
        Case("2 sentences of 3 tokens, width 7, 2 inside", _case(2, 3, 7, 2, seed=31)),
        Case("float64", _case(2, 3, 5, 7, seed=41, dtype=torch.float64)),
    ],
    properties=[
        Property("Each position is transformed by itself.", _positions_are_apart),
        Property("Where nothing gets through the ReLU, the last bias is left.", _zeros_give_the_last_bias),
    ],
    alternatives=[
        Alternative("as two convolutions of width one", _with_convolutions),
        Alternative("token by token", _token_by_token),
        Alternative("with torch's functions", _with_functions_of_torch),
    ],
    hints=(
        "Which shape does a token have before, between and after the two maps?",
        "The first product widens D to F; a maximum with zero follows, then the product that narrows F to D.",
        """inner = ____  # (B, T, F), nothing below zero
return inner @ W_down + b_down""",
    ),
    sample=_sample,
    tries=("float64", "large", "repeated"),
)
