"""Exercise: the pre-norm layer as a module, with dropout."""

import torch
import torch.nn.functional as F
from torch import nn

from coursework.exercises import modules
from coursework.exercises.given import Attention, FeedForward
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import mask as random_mask
from coursework.exercises.tensors import normal


class Layer(nn.Module):
    """A pre-norm encoder layer"""

    def __init__(self, d_model, n_heads, d_ff, dropout=0.0):
        super().__init__()
        self.attention = Attention(d_model, n_heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.first_norm = nn.LayerNorm(d_model)
        self.second_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        """(B, T, D), (B, 1, 1, T) -> (B, T, D)"""
        x = x + self.dropout(self.attention(self.first_norm(x), mask))
        return x + self.dropout(self.feed_forward(self.second_norm(x)))


def _model(
    order="pre",
    residual="both",
    norms="own",
    first="attention",
    form="plain",
    second="chained",
    end="sum",
    seen="mask",
    drop="results",
):
    """A layer whose settings are the misconceptions."""

    class Model(Layer):
        def forward(self, x, mask):
            mask = {"mask": mask, "all": torch.ones_like(mask), "inverted": ~mask}[seen]
            norm_1, norm_2 = {
                "own": (self.first_norm, self.second_norm),
                "exchanged": (self.second_norm, self.first_norm),
                "first-twice": (self.first_norm, self.first_norm),
                "without-weights": (_plain_norm, _plain_norm),
                "no-first": (_nothing, self.second_norm),
                "no-second": (self.first_norm, _nothing),
            }[norms]
            sublayers = [lambda x: self.attention(x, mask), self.feed_forward]
            sublayers = sublayers if first == "attention" else sublayers[::-1]
            kept = residual in ("both", "first"), residual in ("both", "second")
            drops = {"one": (True, False), "other": (False, True)}.get(drop, (True, True))
            start = x
            for number, (sublayer, norm) in enumerate(zip(sublayers, (norm_1, norm_2), strict=True)):
                read = start if number and second == "parallel" else x
                stream = start if number and second == "from-start" else x
                x = self.step(stream, read, sublayer, norm, kept[number], drops[number])
            return self.second_norm(x) if end == "norm" and order == "pre" else x

        def step(self, stream, read, sublayer, norm, keeps, drops):
            def dropped(value, place="results"):
                if place != ("results" if drop in ("one", "other", "always") else drop) or not drops:
                    return value
                return F.dropout(value, self.dropout.p) if drop == "always" else self.dropout(value)

            if order == "post":
                return norm((stream if keeps else 0) + dropped(sublayer(dropped(read, "inputs"))))
            read = norm(read)
            stream = read if form == "normed" else stream
            result = dropped(sublayer(dropped(read, "inputs")))
            return dropped((stream if keeps else 0) + result, "sums")

    return Model


def _nothing(x):
    return x


def _plain_norm(x):
    return F.layer_norm(x, x.shape[-1:])


class _WithALoop(Layer):
    def forward(self, x, mask):
        sublayers = [lambda x: self.attention(x, mask), self.feed_forward]
        for norm, sublayer in zip((self.first_norm, self.second_norm), sublayers, strict=True):
            x = x + self.dropout(sublayer(norm(x)))
        return x


class _WithAMethod(Layer):
    def forward(self, x, mask):
        x = self.added(x, self.attention(self.first_norm(x), mask))
        return self.added(x, self.feed_forward(self.second_norm(x)))

    def added(self, x, update):
        return x + self.dropout(update)


class _WithFunctions(Layer):
    def forward(self, x, mask):
        for norm in (self.first_norm, self.second_norm):
            read = F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            update = self.attention(read, mask) if norm is self.first_norm else self.feed_forward(read)
            x = x + F.dropout(update, self.dropout.p, training=self.training)
        return x


class _WithTheResidualOfTheCourse(Layer):
    def forward(self, x, mask):
        from course_lib.layers import Residual

        residual = Residual(self.first_norm, place="pre")
        x = residual.add(x, self.dropout(self.attention(residual.read(x), mask)))
        residual = Residual(self.second_norm, place="pre")
        return residual.add(x, self.dropout(self.feed_forward(residual.read(x))))


def _run(Layer, sizes, state, x, mask, train=False, elsewhere=False, again=False):
    before = (x.detach().flip(1), mask.flip(-1)) if again else ()
    return modules.call(Layer, sizes, state, x, mask, train=train, elsewhere=elsewhere, before=before)


def _arguments(B, T, heads, width, inner, tensor, mask, dropout=0.0):
    sizes = {"d_model": heads * width, "n_heads": heads, "d_ff": inner, "dropout": dropout}
    mask = mask.clone()
    mask[..., 0] = True  # each token may see the first
    return sizes, modules.weights(Layer, sizes, tensor), tensor(B, T, heads * width), mask


@maker
def _case(B, T, heads, width, inner, seed, dropout=0.0, dtype=torch.float32, **options):
    seeds = iter(range(seed, seed + 30))

    def tensor(*shape):
        return normal(*shape, seed=next(seeds), dtype=dtype)

    mask = random_mask(B, 1, 1, T, seed=seed) if B > 1 else torch.ones(B, 1, 1, T, dtype=torch.bool)
    made = _arguments(B, T, heads, width, inner, tensor, mask, dropout)
    return dict(zip(("sizes", "state", "x", "mask"), made, strict=True)) | options


def _sample(draw):
    B, T, heads, width, inner = (draw.integer(1, high) for high in (3, 4, 2, 3, 7))
    mask = draw.mask(B, 1, 1, T)
    width = max(width, 3 - heads)  # of a single number a norm leaves nothing
    dropout = draw.choice((0.0, 0.0, 1.0))
    made = _arguments(B, T, heads, width, inner, lambda *shape: draw.normal(*shape, dtype=torch.float64), mask, dropout)
    return (*made, draw.boolean())


def _silent_sublayers_leave_the_stream(layer):
    case = _case(2, 3, 2, 3, 5, seed=211)()
    silent = ("attention.output.weight", "attention.output.bias", "feed_forward.down.weight", "feed_forward.down.bias")
    state = {name: tensor.detach() * (name not in silent) for name, tensor in case["state"].items()}
    found = layer(case["sizes"], state, case["x"].detach(), case["mask"])
    moved = float((found - case["x"]).detach().abs().max())
    return f"With sublayers that write zeros, x came out changed by up to {moved:.2f}." if moved > 1e-4 else None


def _padding_changes_no_word(layer):
    sizes, state, x, mask = _case(2, 5, 2, 3, 5, seed=241)().values()
    mask = torch.tensor([True, True, True, False, False]).expand(2, 1, 1, 5)
    other = x.detach().clone()
    other[:, 3:] = other[:, 3:].flip(-1)
    gap = (layer(sizes, state, x, mask) - layer(sizes, state, other, mask)).detach()[:, :3].abs().max()
    return f"Other numbers at hidden positions changed a word by up to {float(gap):.2f}." if gap > 1e-4 else None


EXERCISE = Exercise(
    title="A layer of your own",
    what="""Write the `forward` of `Layer`: the pre-norm layer, $x \\leftarrow x + \\mathrm{Sublayer}(\\mathrm{LN}(x))$,
first for the attention with `first_norm`, then for the feed-forward network with `second_norm`. Only the attention
needs the mask. `dropout` works on what each sublayer gives, before it is added. All parts are there.""",
    why="This is the layer of your encoder. With a causal mask, and GELU for ReLU, it is GPT-2's layer.",
    difficulty=3,
    minutes=10,
    reference=Layer,
    blank=("forward",),
    parts={"Attention": Attention, "FeedForward": FeedForward},
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
post-norm (order="post"): norms after the sum, as a post-norm layer does
    Follow the stream from x to the result: does it run through a norm?
no-residuals (residual="none"): has no residual connections
    If both sublayers return zeros, what is left of x in your output?
no-residual-around-attention (residual="second"): has no residual connection around the attention
    If the attention returns zeros, what is left of x in your output?
no-residual-around-feed-forward (residual="first"): has no residual connection around the feed-forward network
    If the feed-forward network returns zeros, what is left of x in your output?
shared-norm (norms="first-twice"): uses the first norm twice
    Which of the parts have you used?
norms-exchanged (norms="exchanged"): uses the second norm first
    To which sublayer does each norm belong?
norms-of-its-own (norms="without-weights"): norms without the weights of `first_norm` and `second_norm`
    Which of the parts have you used?
no-norm-before-attention (norms="no-first"): lets the attention read the stream without a norm
    Which of the parts have you used?
no-norm-before-feed-forward (norms="no-second"): lets the feed-forward network read the stream without a norm
    Which of the parts have you used?
feed-forward-first (first="feed-forward"): applies the feed-forward network before the attention
    Which sublayer comes first?
residual-of-the-normed (form="normed"): adds the results to the normed input, and not to the stream
    If both sublayers return zeros, does x come out as it went in?
feed-forward-reads-the-start (second="parallel"): lets the feed-forward network read the input of the layer and not the
        result of the attention
    What has the feed-forward network to work on if it cannot see what attention brought?
second-sum-from-the-start (second="from-start"): adds the feed-forward network to the input of the layer, so that the
        first sum is lost
    If the feed-forward network returns zeros, what is left of the attention in your output?
norm-after-the-last-sum (end="norm"): norms the result of the layer once more
    If both sublayers return zeros, does x come out as it went in?
mask-ignored (seen="all"): lets each word read the padding
    Which of the sublayers reads other words, and what does it get from you?
mask-inverted (seen="inverted"): hides the words and lets the padding be read
    What does True stand for in the mask?
no-dropout (drop="nowhere"): drops nothing in training
    With a dropout of 1, what may still be added to the stream?
dropout-once-only (drop="one"): drops what the attention gives, and not what the feed-forward network gives
    With a dropout of 1, what may still be added to the stream?
no-dropout-of-attention (drop="other"): drops what the feed-forward network gives, and not what the attention gives
    With a dropout of 1, what may still be added to the stream?
dropout-of-the-sum (drop="sums"): drops numbers of the stream itself
    With a dropout of 1, what is left of x in your output?
dropout-of-what-is-read (drop="inputs"): drops what the sublayers read, and not what they give
    With a dropout of 1, what may still be added to the stream?
dropout-in-eval-mode (drop="always"): drops numbers in eval mode, too
    What tells the module that it is being trained?
"""),
    cases=[
        Case("1 sentence of 2 words, one head", _case(1, 2, 1, 3, 5, seed=1)),
        Case("1 sentence of 3 words, two heads", _case(1, 3, 2, 2, 3, seed=31)),
        Case("2 sentences of 3 words with padding", _case(2, 3, 2, 2, 5, seed=61)),
        Case("a dropout of 1, in eval mode", _case(1, 2, 1, 3, 5, seed=91, dropout=1.0)),
        Case("a dropout of 1, in training", _case(2, 3, 1, 3, 5, seed=121, dropout=1.0, train=True)),
        Case("as many sentences as words, float64", _case(3, 3, 2, 3, 7, seed=151, dtype=torch.float64)),
        Case("the same module again after other sentences", _case(2, 3, 2, 2, 5, seed=271, again=True)),
        Case("x not on the default device", _case(2, 4, 2, 3, 5, seed=181, elsewhere=True)),
    ],
    properties=[
        Property("If its sublayers write nothing, x comes out as it went in.", _silent_sublayers_leave_the_stream),
        Property("What is hidden changes no word that may be read.", _padding_changes_no_word),
    ],
    alternatives=[
        Alternative("with a loop over the two sublayers", _WithALoop),
        Alternative("with one method for both sums", _WithAMethod),
        Alternative("with functions in the place of the modules", _WithFunctions),
        Alternative("with the course's own residual connection", _WithTheResidualOfTheCourse),
    ],
    hints=(
        "The stream gets two additions. What does each of the two sublayers read, and what is done to its result?",
        "Write the formula for the attention alone: norm, attention, dropout, plus. Then the same for the feed-forward "
        "network, from the new x.",
        """x = x + ____  # norm, attention, dropout
return x + self.dropout(...)""",
    ),
    sample=_sample,
    tolerance=(1e-4, 1e-4),
)
