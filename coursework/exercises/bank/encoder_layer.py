"""Exercise: put attention, feed-forward, residual connections and norms together."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def encoder_layer(x, attention, feed_forward, first_norm, second_norm, pre=False):
    """(B, T, D), four functions (B, T, D) -> (B, T, D), bool -> (B, T, D)"""
    if pre:
        x = x + attention(first_norm(x))
        return x + feed_forward(second_norm(x))
    x = first_norm(x + attention(x))
    return second_norm(x + feed_forward(x))


def _model(
    place="asked",
    residual="both",
    norms="own",
    order="attention-first",
    form="plain",
    second="chained",
    default=False,
    end="sum",
):
    """A layer whose settings are the misconceptions."""

    def layer(x, attention, feed_forward, first_norm, second_norm, pre=default):
        place_pre = {"asked": pre, "pre": True, "post": False, "exchanged": not pre}[place]
        if norms == "first-twice":
            second_norm = first_norm
        elif norms == "exchanged":
            first_norm, second_norm = second_norm, first_norm
        elif norms == "no-second":
            second_norm = _nothing
        elif norms == "no-first":
            first_norm = _nothing
        parts = [(attention, first_norm, residual in ("both", "attention-only"))]
        parts += [(feed_forward, second_norm, residual in ("both", "feed-forward-only"))]
        if order == "feed-forward-first":
            parts = [(feed_forward, first_norm, parts[0][2]), (attention, second_norm, parts[1][2])]
        start = x
        for number, (function, norm, keeps) in enumerate(parts):
            if number and second == "parallel":
                x = _step(x, start, function, norm, keeps, place_pre, form)
            elif number and second == "from-start":
                x = _step(start, x, function, norm, keeps, place_pre, form)
            else:
                x = _step(x, x, function, norm, keeps, place_pre, form)
        return second_norm(x) if end == "norm" and place_pre else x

    return layer


def _nothing(x):
    return x


def _step(stream, read, function, norm, keeps, pre, form):
    """One sublayer: `stream` is what the update is added to, `read` what the function reads."""
    if pre:
        read = norm(read)
        return ((read if form == "normed" else stream) if keeps else 0) + function(read)
    if form == "branch":
        return (stream if keeps else 0) + norm(function(read))
    return norm((stream if keeps else 0) + function(read))


def _with_a_loop(x, attention, feed_forward, first_norm, second_norm, pre=False):
    for sublayer, norm in ((attention, first_norm), (feed_forward, second_norm)):
        x = x + sublayer(norm(x)) if pre else norm(x + sublayer(x))
    return x


def _with_an_inner_function(x, attention, feed_forward, first_norm, second_norm, pre=False):
    def around(x, sublayer, norm):
        update = sublayer(norm(x) if pre else x)
        total = x + update
        return total if pre else norm(total)

    return around(around(x, attention, first_norm), feed_forward, second_norm)


def _with_the_residual_of_the_course(x, attention, feed_forward, first_norm, second_norm, pre=False):
    from course_lib.layers import Residual

    for sublayer, norm in ((attention, first_norm), (feed_forward, second_norm)):
        residual = Residual(norm, place="pre" if pre else "post")
        x = residual.add(x, sublayer(residual.read(x)))
    return x


@dataclass
class _Mix:
    """An attention with fixed weights (T, T), then a matrix (D, D)."""

    weights: Tensor
    matrix: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return self.weights @ x @ self.matrix


@dataclass
class _Network:
    """A feed-forward."""

    up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.relu(x @ self.up) @ self.down


@dataclass
class _Norm:
    """A layer norm of its own weight and bias."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


def _parts(T, D, width, tensor: Callable[..., Tensor]):
    attention = _Mix(tensor(T, T).softmax(-1), tensor(D, D))
    return attention, _Network(tensor(D, width), tensor(width, D)), *(_Norm(tensor(D), tensor(D)) for _ in range(2))


@maker
def _case(B, T, D, width, pre, seed, dtype=torch.float32):
    seeds = iter(range(seed + 1, seed + 20))
    parts = _parts(T, D, width, lambda *shape: normal(*shape, seed=next(seeds), dtype=dtype, grad=False))
    return normal(B, T, D, seed=seed, dtype=dtype), *parts, pre


def _sample(draw):
    B, T, D, width, pre = draw.integer(1, 2), draw.integer(1, 4), draw.integer(3, 6), draw.integer(1, 7), draw.boolean()
    dtype = torch.float64  # normed twice, rounding of float32 would grow
    parts = _parts(T, D, width, lambda *shape: draw.normal(*shape, dtype=dtype, grad=False))
    return draw.normal(B, T, D, dtype=dtype), *parts, pre


def _silent_sublayers_leave_the_stream(layer) -> str | None:
    x, attention, feed_forward, *norms, _ = _case(1, 3, 5, 7, True, seed=81)()
    attention.matrix.zero_()
    feed_forward.down.zero_()
    found = layer(x, attention, feed_forward, *norms, True)
    moved = float((found - x).detach().abs().max())
    return f"With silent sublayers and pre=True, x came out changed by up to {moved:.2f}." if moved > 1e-4 else None


def _post_norm_ends_normed(layer) -> str | None:
    x, attention, feed_forward, *_ = _case(1, 3, 5, 7, False, seed=91)()
    plain = _Norm(torch.ones(5), torch.zeros(5))
    found = layer(x, attention, feed_forward, plain, plain, False)
    spread = float((found.detach().var(dim=-1, correction=0) - 1).abs().max())
    return f"With pre=False, a variance of the output is off one by {spread:.2f}." if spread > 1e-2 else None


EXERCISE = Exercise(
    title="The encoder layer",
    what="""Write `encoder_layer(x, attention, feed_forward, first_norm, second_norm, pre=False)`. The four parts are
given as functions of a tensor (B, T, D). First comes the sublayer `attention` with `first_norm`, then the sublayer
`feed_forward` with `second_norm`, each with its own residual connection:

- `pre=False` (**post-norm**, the paper): x becomes norm(x + sublayer(x));
- `pre=True` (**pre-norm**): x becomes x + sublayer(norm(x)). There is no norm after the last sum.""",
    why="BERT and GPT-2 are stacks of these few lines, one in each order, and the two orders do not share weights.",
    difficulty=2,
    minutes=8,
    reference=encoder_layer,
    model=_model,
    misconceptions=misconceptions("""
always-post-norm (place="post"): norms after the sum, whatever `pre` says
    What does `pre=True` change in your function?
always-pre-norm (place="pre"): norms before the sublayer, whatever `pre` says
    What does `pre=False` change in your function?
places-exchanged (place="exchanged"): has the two orders exchanged
    Before or after what does the pre in pre-norm stand?
no-residuals (residual="none"): has no residual connections
    If both sublayers return zeros, what is left of x in your output?
no-residual-around-attention (residual="feed-forward-only"): has no residual connection around the attention
    If the attention returns zeros, what is left of x in your output?
no-residual-around-feed-forward (residual="attention-only"): has no residual connection around the feed-forward
    If the feed-forward returns zeros, what is left of x in your output?
shared-norm (norms="first-twice"): uses the first norm twice
    Which of your arguments have you used?
norms-exchanged (norms="exchanged"): uses the second norm first
    To which sublayer does each norm belong?
no-second-norm (norms="no-second"): forgets the second norm
    Which of your arguments have you used?
no-first-norm (norms="no-first"): forgets the first norm
    Which of your arguments have you used?
feed-forward-first (order="feed-forward-first"): applies the feed-forward before the attention
    Which sublayer comes first?
post-norm-of-the-branch (form="branch"): norms the output of a sublayer before it is added, where it should norm the sum
    With pre=False, what is the variance of your output along a token?
residual-of-the-normed (form="normed"): adds the sublayer to the normed input, and not to the stream, when pre=True
    With pre=True and silent sublayers, does x come out as it went in?
feed-forward-reads-the-start (second="parallel"): lets the feed-forward read the input of the layer and not the result
        of the attention
    What has the feed-forward to work on if it cannot see what attention brought?
second-sum-from-the-start (second="from-start"): adds the feed-forward to the input of the layer, so that the first sum
        is lost
    If the feed-forward returns zeros, what is left of the attention in your output?
pre-norm-by-default (default=True): is a pre-norm layer when `pre` is not given
    Which form does the signature of the task choose?
norm-after-the-last-sum (end="norm"): norms the result of a pre-norm layer once more
    If both sublayers returned zero, what should come out of a pre-norm layer?
"""),
    cases=[
        Case("1 sentence of 2 tokens, post-norm", _case(1, 2, 3, 5, False, seed=1)),
        Case("1 sentence of 3 tokens, `pre` not given", lambda: _case(1, 3, 5, 2, False, seed=11)()[:5]),
        Case("1 sentence of 2 tokens, pre-norm", _case(1, 2, 3, 5, True, seed=21)),
        Case("2 sentences of 3 tokens, width 5, post-norm", _case(2, 3, 5, 7, False, seed=41)),
        Case("2 sentences of 3 tokens, width 5, pre-norm", _case(2, 3, 5, 7, True, seed=61)),
        Case("float64, post-norm", _case(2, 3, 7, 5, False, seed=101, dtype=torch.float64)),
        Case("float64, pre-norm", _case(2, 3, 7, 5, True, seed=121, dtype=torch.float64)),
    ],
    properties=[
        Property("If its sublayers are silent, a pre-norm layer changes nothing.", _silent_sublayers_leave_the_stream),
        Property("The last thing that a post-norm layer does is to norm.", _post_norm_ends_normed),
    ],
    alternatives=[
        Alternative("with a loop over the two sublayers", _with_a_loop),
        Alternative("with one function for both", _with_an_inner_function),
        Alternative("with the course's own residual connection", _with_the_residual_of_the_course),
    ],
    hints=(
        "How many sums and how many norms does one layer have, in either order?",
        "Write the post-norm form for one sublayer, then again for the other with the result of the first. Then the "
        "other form in the same way.",
        """if pre:
    ...  # two lines
x = ____  # attention, its sum, its norm
return second_norm(x + feed_forward(x))""",
    ),
    sample=_sample,
    tries=("large", "zeros", "repeated"),
    tolerance=(1e-4, 1e-4),
)
