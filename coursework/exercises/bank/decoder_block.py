"""Exercise: the forward pass of a decoder layer, as a module."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


class DecoderLayer(nn.Module):
    """Its sublayers are called as attention(x, context, mask) and feed_forward(x)."""

    def __init__(self, d_model, self_attention, cross_attention, feed_forward, dropout=0.1):
        super().__init__()
        self.self_attention, self.cross_attention = self_attention, cross_attention
        self.feed_forward, self.dropout = feed_forward, nn.Dropout(dropout)
        norms = [nn.LayerNorm(d_model) for _ in range(3)]
        self.norm1, self.norm2, self.norm3 = norms

    def forward(self, x, context, causal, real):
        """(B, T, D), (B, S, D), masks of the target and of the source -> (B, T, D)"""
        y = self.norm1(x)
        x = x + self.dropout(self.self_attention(y, y, causal))
        x = x + self.dropout(self.cross_attention(self.norm2(x), context, real))
        return x + self.dropout(self.feed_forward(self.norm3(x)))


class _Attention(nn.Module):
    """One head; `scale` tells self-attention and cross-attention apart."""

    def __init__(self, d_model):
        super().__init__()
        self.query, self.value = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x, context, mask):
        scores = self.query(x) @ context.mT / math.sqrt(x.size(-1))  # (B, T, S)
        return scores.masked_fill(~mask, -1e9).softmax(dim=-1) @ self.value(context)


class _FeedForward(nn.Module):
    def __init__(self, d_model):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, 3), nn.Linear(3, d_model)

    def forward(self, x):
        return self.down(self.up(x).relu())


def _run(DecoderLayer, x, context, causal, real, state, dropout, training):
    """The output of a layer with these weights."""
    D = x.size(-1)
    layer = DecoderLayer(D, _Attention(D), _Attention(D), _FeedForward(D), dropout).train(training)
    call = functools.partial(functional_call, layer, state, strict=True)
    if training:
        call((x[:, :1], context, causal[..., :1, :1], real))  # another text before; nothing of it may be kept
    return call((x, context, causal, real))


def _model(
    order="self-first", place="pre", masks="right", residual="all", source="context", which="own", dropout="all",
    end="sum", raw="none", norms="own",
):  # fmt: skip
    """A decoder layer whose settings are the misconceptions."""

    class Variant(DecoderLayer):
        def forward(self, x, context, causal, real):
            start, T, S = x, x.size(1), context.size(1)
            own_norms = {"own": (0, 1, 2), "first": (0, 0, 0), "exchanged": (1, 0, 2)}[norms]
            norm1, norm2, norm3 = ((self.norm1, self.norm2, self.norm3)[n] for n in own_norms)

            def drop(update, name):
                if dropout == "none" or dropout == f"not-{name}":
                    return update
                return F.dropout(update, self.dropout.p, True) if dropout == "always" else self.dropout(update)

            def add(x, update, name, norm):
                if dropout == "stream":
                    new = self.dropout(x + update)
                else:
                    new = x + drop(update, name)
                if residual in ("none", f"not-{name}"):
                    new = drop(update, name)
                return norm(new) if place == "post" else new

            def before(x, norm, name):
                return x if place == "post" or raw == name else norm(x)

            def own(x):
                read = before(x, norm1, "self")
                keys = x if raw == "keys" else read
                seen = torch.ones_like(causal) if masks == "no-causal" else causal
                attend = self.cross_attention if which == "exchanged" else self.self_attention
                return add(x, attend(read, keys, seen), "self", norm1)

            def cross(x):
                read = before(start if source == "layer-input" else x, norm2, "cross")
                attend = self.self_attention if which in ("exchanged", "self-twice") else self.cross_attention
                if source == "target":
                    return add(x, attend(read, read, causal), "cross", norm2)
                inside = norm2(context) if source == "normed" else context
                seen = real
                if masks == "no-real":
                    seen = torch.ones_like(real)
                if masks == "inverted":
                    seen = ~real
                if masks == "both-causal":
                    seen = real & torch.ones(T, S, dtype=torch.bool).tril()
                return add(x, attend(read, inside, seen), "cross", norm2)

            def forward(x):
                return add(x, self.feed_forward(before(x, norm3, "forward")), "forward", norm3)

            parts = {
                "self-first": (own, cross, forward), "cross-first": (cross, own, forward),
                "between": (own, forward, cross), "no-feed-forward": (own, cross), "no-cross": (own, forward),
            }[order]  # fmt: skip
            for part in parts:
                x = part(x)
            return norm3(x) if end == "norm" else x

    return Variant


class _AsALoop(DecoderLayer):
    def forward(self, x, context, causal, real):
        sublayers = (
            (self.norm1, lambda y: self.self_attention(y, y, causal)),
            (self.norm2, lambda y: self.cross_attention(y, context, real)),
            (self.norm3, self.feed_forward),
        )
        for norm, sublayer in sublayers:
            x = x + self.dropout(sublayer(norm(x)))
        return x


class _WithAHelper(DecoderLayer):
    def add(self, x, update):
        return x + F.dropout(update, self.dropout.p, self.training)

    def forward(self, x, context, causal, real):
        normed = self.norm1(x)
        x = self.add(x, self.self_attention(x=normed, context=normed, mask=causal))
        x = self.add(x, self.cross_attention(x=self.norm2(x), context=context, mask=real))
        return self.add(x, self.feed_forward(self.norm3(x)))


class _OneSumAtTheEnd(DecoderLayer):
    def forward(self, x, context, causal, real):
        y = self.norm1(x)
        own = self.dropout(self.self_attention(y, y, causal))
        across = self.dropout(self.cross_attention(self.norm2(x + own), context, real))
        forward = self.dropout(self.feed_forward(self.norm3(x + own + across)))
        return torch.stack([x, own, across, forward]).sum(dim=0)


def _state(D, make):
    state = {}
    for part in ("self_attention", "cross_attention"):
        for name in ("query", "value"):
            state |= {f"{part}.{name}.weight": make(D, D), f"{part}.{name}.bias": make(D)}
    state |= {"feed_forward.up.weight": make(3, D), "feed_forward.up.bias": make(3)}
    state |= {"feed_forward.down.weight": make(D, 3), "feed_forward.down.bias": make(D)}
    for number in (1, 2, 3):
        state |= {f"norm{number}.weight": make(D), f"norm{number}.bias": make(D)}
    return state


def _masks(B, T, S, lengths=None):
    real = torch.arange(S) < torch.tensor([S] * B if lengths is None else lengths)[:, None]  # (B, S)
    return {"causal": torch.ones(T, T, dtype=torch.bool).tril(), "real": real[:, None]}  # (T, T), (B, 1, S)


@maker
def _case(B, T, S, D, seed, lengths=None, dropout=0.5, training=False, dtype=torch.float32):
    count = iter(range(seed + 2, seed + 60))
    state = _state(D, lambda *shape: normal(*shape, seed=next(count), dtype=dtype, scale=0.7))
    x, context = normal(B, T, D, seed=seed, dtype=dtype), normal(B, S, D, seed=seed + 1, dtype=dtype)
    made = {"x": x, "context": context, **_masks(B, T, S, lengths), "state": state}
    return made | {"dropout": dropout, "training": training}


def _sample(draw):
    B, T, S, D = (draw.integer(1, high) for high in (3, 4, 4, 4))
    dtype = draw.dtype()
    return {
        "x": draw.normal(B, T, D + 1, dtype=dtype),
        "context": draw.normal(B, S, D + 1, dtype=dtype),
        **_masks(B, T, S, [draw.integer(1, S) for _ in range(B)]),
        "state": _state(D + 1, lambda *shape: draw.normal(*shape, dtype=dtype, scale=0.7)),
        "dropout": 0.5,
        "training": False,
    }


def _no_later_target(call) -> str | None:
    made = _case(1, 4, 3, 5, seed=301)()
    before = call(**made)
    changed = made["x"].detach().clone()
    changed[:, 3] = changed[:, 3].flip(-1) + 1.0
    after = call(**made | {"x": changed})
    for position in range(3):
        if not torch.allclose(before[:, position], after[:, position], atol=1e-5):
            return f"Changing target 3 changed the output at position {position}."
    return None


def _all_of_the_source(call) -> str | None:
    made = _case(1, 2, 5, 5, seed=311)()
    before = call(**made)
    for s in range(5):
        changed = made["context"].detach().clone()
        changed[:, s] = changed[:, s].flip(-1) + 1.0
        if torch.allclose(before[:, 0], call(**made | {"context": changed})[:, 0], atol=1e-6):
            return f"Changing source position {s} changed nothing at target position 0."
    return None


EXERCISE = Exercise(
    title="Your decoder layer",
    what="""Write `forward` of `DecoderLayer`. The constructor gets its three sublayers and makes a norm for each.
Apply, in this order: self-attention of the target `x`, with the mask `causal`; cross-attention, which takes its queries
from the target and its keys and values from the encoder's output `context`, with the mask `real`, True where a source
token is not padding; the feed-forward. Each reads the stream through its own norm, and what it returns is added to the
stream, with dropout on what is added. The encoder has already normed the context, so leave it as it is. An attention
is called as `attention(x, context, mask)`: queries are made of its `x`, keys and values of its `context`. In
self-attention both are the same vectors.""",
    why="""Figure 1 of the 2017 paper has the same three sublayers, with the norm after each addition; here it comes
before. Without the middle sublayer it would be the layer of your GPT, which takes positions and a cache as well.""",
    difficulty=3,
    minutes=12,
    reference=DecoderLayer,
    blank=("forward",),
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
cross-attention-first (order="cross-first"): looks at the source before the target has looked at itself
    Which sublayer comes first in the list of the task?
feed-forward-between (order="between"): puts the feed-forward between the two attentions
    Which sublayer comes last in the list of the task?
no-feed-forward (order="no-feed-forward"): leaves the feed-forward out
    Which of the parts made in the constructor does your forward never use?
no-cross-attention (order="no-cross"): leaves the cross-attention out
    Where does your forward use the context?
post-norm (place="post"): norms the stream after adding, and lets the sublayers read it as it is
    If every sublayer returned zero, what should come out of a pre-norm layer?
not-causal (masks="no-causal"): lets each target position read later ones
    When position 0 is to predict target 0, which inputs may it know?
source-causal-too (masks="both-causal"): hides later source positions in the cross-attention
    When the first target token is written, how much of the source has been read?
source-padding-read (masks="no-real"): does not use the mask of the source
    What happens to your output when the content of source padding changes?
source-mask-inverted (masks="inverted"): hides the source positions for which the mask is True
    What does True mean in this mask: may attend, or is hidden?
no-residuals (residual="none"): hands on what each sublayer returns, without adding it to the stream
    If every sublayer returned zero, what should come out?
self-attention-without-residual (residual="not-self"): replaces the stream by what the self-attention returns
    What does the layer know of its input after your self-attention?
cross-attention-without-residual (residual="not-cross"): replaces the stream by what the cross-attention returns
    What does the layer know of the target after your cross-attention?
feed-forward-without-residual (residual="not-forward"): returns what the feed-forward returns, without adding it to the
        stream
    If the feed-forward returned zero, what should come out?
no-look-at-the-source (source="target"): takes keys and values of the second attention from the target, too
    Where does your forward use the context?
queries-from-the-layer-input (source="layer-input"): asks the source with the input of the layer
    What has the target learned in the first sublayer, and do your queries know it?
context-normed-again (source="normed"): norms the context before it is read
    What does the task say of the context's norm?
one-attention-twice (which="self-twice"): uses the self-attention for the source, too
    Which of the parts made in the constructor does your forward never use?
attentions-exchanged (which="exchanged"): exchanges the two attentions
    Which of the two attentions gets the context?
self-attention-not-normed (raw="self"): lets the self-attention read the stream before it is normed
    Through what does each sublayer read the stream?
keys-not-normed (raw="keys"): norms the queries of the self-attention but not its keys and values
    What does a self-attention read: one thing or two?
cross-attention-not-normed (raw="cross"): asks the source with the stream before it is normed
    Through what does each sublayer read the stream?
feed-forward-not-normed (raw="forward"): lets the feed-forward read the stream before it is normed
    Through what does each sublayer read the stream?
one-norm-for-all (norms="first"): uses the first norm three times
    Which of the parts made in the constructor does your forward never use?
norms-exchanged (norms="exchanged"): exchanges the first two norms
    To which sublayer does each norm belong?
norm-at-the-end (end="norm"): norms the stream once more at its end
    If every sublayer returned zero, what should come out of a pre-norm layer?
no-dropout (dropout="none"): leaves dropout out
    Which of the parts made in the constructor does your forward never use?
dropout-in-eval (dropout="always"): drops numbers in evaluation, too
    Who tells your dropout that the layer is in evaluation?
dropout-on-the-stream (dropout="stream"): applies the dropout to the sum and not to what is added
    If everything that is added were dropped, what should come out?
no-dropout-after-the-self-attention (dropout="not-self"): leaves the dropout of the self-attention out
    How many dropouts does the task ask for?
no-dropout-after-the-cross-attention (dropout="not-cross"): leaves the dropout of the cross-attention out
    How many dropouts does the task ask for?
no-dropout-after-the-feed-forward (dropout="not-forward"): leaves the dropout of the feed-forward out
    How many dropouts does the task ask for?
"""),
    cases=[
        Case("1 sentence, 2 targets, 3 source positions", _case(1, 2, 3, 5, seed=1)),
        Case("2 sentences, 3 targets, 5 source positions", _case(2, 3, 5, 4, seed=101)),
        Case("2 sentences, the first source padded", _case(2, 3, 5, 4, seed=201, lengths=[2, 5])),
        Case("4 targets, 2 source positions", _case(3, 4, 2, 5, seed=301, lengths=[1, 2, 1])),
        Case("one target", _case(2, 1, 3, 5, seed=401)),
        Case("in training, all of it dropped", _case(2, 3, 5, 4, seed=501, dropout=1.0, training=True)),
        Case("in training, dropout 0", _case(2, 3, 2, 4, seed=601, dropout=0.0, training=True)),
        Case("float64", _case(2, 3, 5, 4, seed=701, lengths=[4, 3], dtype=torch.float64)),
    ],
    properties=[
        Property("No output depends on a later target.", _no_later_target),
        Property("Every target position may read every source position that is not hidden.", _all_of_the_source),
    ],
    alternatives=[
        Alternative("as a loop over sublayers", _AsALoop),
        Alternative("with a helper that adds", _WithAHelper),
        Alternative("with one sum at the end", _OneSumAtTheEnd),
    ],
    hints=(
        "Three sublayers, each of the form stream + f(normed stream). What do the two attentions differ in?",
        "In the self-attention both arguments are the same normed stream. In the cross-attention only the first is the "
        "target.",
        """y = self.norm1(x)
x = x + self.dropout(self.self_attention(y, y, causal))
x = ____
return x + ...""",
    ),
    sample=_sample,
    tolerance=(1e-3, 1e-4),
)
