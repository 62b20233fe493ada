"""Exercise: the three sublayers of a decoder layer, put together."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def norm(x):
    """Each vector with mean 0 and variance 1: (B, T, D) -> (B, T, D)"""
    return F.layer_norm(x, x.shape[-1:])


def attend(x, context, weights, mask):
    """x (B, T, D) looks at context (B, S, D), with weights (4, D, D) -> (B, T, D)"""
    W_query, W_key, W_value, W_output = weights
    query, key, value = x @ W_query, context @ W_key, context @ W_value
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask) @ W_output


def feed_forward(x, up, down):
    """(B, T, D), (D, F), (F, D) -> (B, T, D)"""
    return (x @ up).relu() @ down


def decoder_layer(x, context, weights, context_mask):
    """(B, T, D), (B, S, D), a dict of weights, bool (B, 1, S) -> (B, T, D)

    weights: "self" (4, D, D), "cross" (4, D, D), "up" (D, F), "down" (F, D)"""
    T = x.size(1)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    read = norm(x)
    x = x + attend(read, read, weights["self"], causal)
    x = x + attend(norm(x), context, weights["cross"], context_mask)
    return x + feed_forward(norm(x), weights["up"], weights["down"])


def _model(
    order="self-first", place="pre", causal="self", hides="context", residual="all", source="context", which="own",
    keys="normed", cross_read="normed", forward_read="normed", own_read="normed", end="sum", exchanged="nothing",
):  # fmt: skip
    """A decoder layer whose settings are the misconceptions."""

    def layer(x, context, weights, context_mask):
        T, S = x.size(1), context.size(1)
        lower = torch.ones(T, T, dtype=torch.bool).tril()
        start = x

        def add(x, update, name):
            if residual == "none" or residual == f"no-{name}":
                return norm(update) if place == "post" else update
            return norm(x + update) if place == "post" else x + update

        def before(x):
            return x if place == "post" else norm(x)

        def own(x):
            mask = {
                "upper": lower.T,
                "none": None,
                "strict": lower.tril(-1) | torch.eye(T, dtype=torch.bool)[:1] & lower[:, :1],
            }.get(causal, lower)
            read = x if own_read == "raw" else before(x)
            chosen = weights["cross" if exchanged == "weights" else "self"]
            return add(x, attend(read, x if keys == "raw" else read, chosen, mask), "self")

        def cross(x):
            seen = None if hides == "nothing" else ~context_mask if hides == "inverted" else context_mask
            if causal == "both":
                early = torch.ones(T, S, dtype=torch.bool).tril()
                seen = early if seen is None else seen & early
            read = start if source == "layer-input" else x
            read = read if cross_read == "raw" else before(read)
            inside = norm(context) if source == "context-normed" else context
            chosen = weights["self"] if "self-weights" in (which, f"self-{exchanged}") else weights["cross"]
            if source == "target":
                return add(x, attend(read, read, chosen, lower), "cross")
            return add(x, attend(read, inside, chosen, seen), "cross")

        def forward(x):
            read = x if forward_read == "raw" else before(x)
            return add(x, feed_forward(read, weights["up"], weights["down"]), "feed-forward")

        parts = {
            "self-first": (own, cross, forward),
            "cross-first": (cross, own, forward),
            "feed-forward-between": (own, forward, cross),
            "no-feed-forward": (own, cross),
        }[order]
        for part in parts:
            x = part(norm(x) if residual == "of-the-normed" else x)
        return norm(x) if end == "norm" else x

    return layer


def _with_torchs_flag(x, context, weights, context_mask):
    def heads(x, context, weights, **options):
        W_query, W_key, W_value, W_output = weights.unbind()
        return F.scaled_dot_product_attention(x @ W_query, context @ W_key, context @ W_value, **options) @ W_output

    normed = F.layer_norm(x, x.shape[-1:])
    after_self = x + heads(normed, normed, weights["self"], is_causal=True)
    normed = F.layer_norm(after_self, x.shape[-1:])
    after_cross = after_self + heads(normed, context, weights["cross"], attn_mask=context_mask)
    normed = F.layer_norm(after_cross, x.shape[-1:])
    return after_cross + torch.clamp(normed @ weights["up"], min=0) @ weights["down"]


def _as_a_loop(x, context, weights, context_mask):
    positions = torch.arange(x.size(1))
    sublayers = (
        lambda read: attend(read, read, weights["self"], positions[:, None] >= positions),
        lambda read: attend(read, context, weights["cross"], context_mask),
        lambda read: feed_forward(read, weights["up"], weights["down"]),
    )
    for sublayer in sublayers:
        x = x + sublayer(norm(x))
    return x


def _position_by_position(x, context, weights, context_mask):
    outputs = []
    for t in range(x.size(1)):
        so_far = norm(x[:, : t + 1])  # nothing later is even there
        one = x[:, t : t + 1] + attend(so_far[:, -1:], so_far, weights["self"], None)
        one = one + attend(norm(one), context, weights["cross"], context_mask)
        outputs.append(one + feed_forward(norm(one), weights["up"], weights["down"]))
    return torch.cat(outputs, dim=1)


def _weights(D, width, make):
    return {"self": make(4, D, D), "cross": make(4, D, D), "up": make(D, width), "down": make(width, D)}


@maker
def _case(B, T, S, D, width, seed, lengths=None, dtype=torch.float32):
    count = iter(range(seed + 2, seed + 9))
    weights = _weights(D, width, lambda *shape: normal(*shape, seed=next(count), dtype=dtype, scale=0.5))
    real = torch.arange(S) < torch.tensor([S] * B if lengths is None else lengths)[:, None]  # (B, S)
    x, context = normal(B, T, D, seed=seed, dtype=dtype), normal(B, S, D, seed=seed + 1, dtype=dtype)
    return x, context, weights, real[:, None]  # (B, S) -> (B, 1, S)


def _sample(draw):
    B, T, S, D, width = (draw.integer(1, high) for high in (3, 4, 4, 4, 5))
    D = D + 1
    dtype = draw.dtype()
    weights = _weights(D, width, lambda *shape: draw.normal(*shape, dtype=dtype, scale=0.5))
    real = (torch.arange(S) < draw.integer(1, S)).expand(B, 1, S).clone()
    return draw.normal(B, T, D, dtype=dtype), draw.normal(B, S, D, dtype=dtype), weights, real


def _no_later_target(layer) -> str | None:
    x, context, weights, seen = _case(1, 4, 3, 5, 7, seed=201)()
    changed = x.detach().clone()
    changed[:, 3] = changed[:, 3].flip(-1) + 1.0
    before, after = layer(x, context, weights, seen), layer(changed, context, weights, seen)
    for position in range(3):
        if not torch.allclose(before[:, position], after[:, position], atol=1e-5):
            return f"Changing target 3 changed the output at position {position}."
    return None


def _all_of_the_source(layer) -> str | None:
    x, context, weights, seen = _case(1, 2, 5, 5, 7, seed=211)()
    for s in range(5):
        changed = context.detach().clone()
        changed[:, s] = changed[:, s].flip(-1) + 1.0
        if torch.allclose(layer(x, context, weights, seen)[:, 0], layer(x, changed, weights, seen)[:, 0], atol=1e-6):
            return f"Changing source position {s} changed nothing at target position 0."
    return None


def _no_source_padding(layer) -> str | None:
    x, context, weights, seen = _case(1, 2, 5, 5, 7, seed=221, lengths=[3])()
    changed = context.detach().clone()
    changed[:, 4] += 3.0
    if torch.allclose(layer(x, context, weights, seen), layer(x, changed, weights, seen), atol=1e-5):
        return None
    return "Changing a hidden source position changed the output."


EXERCISE = Exercise(
    title="A decoder layer",
    what="""Write `decoder_layer(x, context, weights, context_mask)` from the three functions given. In this order:
causal self-attention over the target `x`; cross-attention, whose queries come from the target and whose keys and values
come from `context`, the encoder's finished output; the feed-forward. Each stands in a **pre-norm** residual: the
sublayer reads the normed stream, and what it returns is added to the stream. The context has been normed by the
encoder: leave it as it is. Masks are boolean, True = may attend: build the causal one, (T, T), for the self-attention;
`context_mask` is for the cross-attention.""",
    why="It is the decoder's half of figure 1 of the 2017 paper. Without the cross-attention it is a layer of GPT.",
    difficulty=3,
    minutes=12,
    reference=decoder_layer,
    helpers=(norm, attend, feed_forward),
    model=_model,
    misconceptions=misconceptions("""
cross-attention-first (order="cross-first"): looks at the source before the target has looked at itself
    Which sublayer comes first in the list of the task?
feed-forward-between (order="feed-forward-between"): puts the feed-forward between the two attentions
    Which sublayer comes last in the list of the task?
no-feed-forward (order="no-feed-forward"): leaves the feed-forward out
    Which of the weights does your function never use?
post-norm (place="post"): norms the stream after adding, and lets the sublayers read it as it is
    If every sublayer returned zero, what should come out of a pre-norm layer?
not-causal (causal="none"): lets each target position read later ones
    When position 0 is to predict target 0, which inputs may it know?
source-causal-too (causal="both"): hides later source positions in the cross-attention
    When the first target token is written, how much of the source has been read?
does-not-see-itself (causal="strict"): hides from each target position its own input
    Which inputs does the last position read, and is its own among them?
context-mask-ignored (hides="nothing"): does not use the mask of the context
    What happens to your output when the content of source padding changes?
context-mask-inverted (hides="inverted"): hides the source positions for which the mask is True
    What does True mean in this mask: may attend, or is hidden?
no-residuals (residual="none"): hands on what each sublayer returns, without adding it to the stream
    If every sublayer returned zero, what should come out?
cross-attention-without-residual (residual="no-cross"): replaces the stream by what the cross-attention returns
    What does the layer know of the target after your cross-attention?
feed-forward-without-residual (residual="no-feed-forward"): returns what the feed-forward returns, without adding it to
        the stream
    If the feed-forward returned zero, what should come out?
no-look-at-the-source (source="target"): takes keys and values of the second attention from the target too
    Where does your function use its second argument?
queries-from-the-layer-input (source="layer-input"): forms the queries of the cross-attention from the input of the
        layer
    What has the target learned in the first sublayer, and do your queries know it?
context-normed-again (source="context-normed"): norms the context before it is read
    What does the task say of the context's norm?
weights-of-self-attention-twice (which="self-weights"): uses the weights of the self-attention for the cross-attention
    Which of the weights does your function never use?
keys-not-normed (keys="raw"): norms the queries of the self-attention but not its keys and values
    What does a self-attention read: one thing or two?
norm-at-the-end (end="norm"): norms the stream once more at its end
    If every sublayer returned zero, what should come out of a pre-norm layer?
self-attention-reads-the-raw-stream (own_read="raw"): lets the self-attention read the stream before it is normed
    Which of the three sublayers reads the normed stream in your function?
cross-attention-reads-the-raw-stream (cross_read="raw"): forms the queries of the cross-attention from the stream before
        it is normed
    Which of the three sublayers reads the normed stream in your function?
feed-forward-reads-the-raw-stream (forward_read="raw"): lets the feed-forward read the stream before it is normed
    Which of the three sublayers reads the normed stream in your function?
normed-stream-carried-on (residual="of-the-normed"): adds what a sublayer returns to the normed stream and carries that
        on
    To what is the update added: to the stream, or to what the sublayer has read?
weights-exchanged (exchanged="weights"): gives the self-attention the weights of the cross-attention, and the other way
        round
    Which weights does each of your two attentions use?
causal-mask-turned-round (causal="upper"): lets each target position read itself and later ones only
    Of the mask that you build, which row has a single True: the first or the last?
"""),
    cases=[
        Case("1 sentence, 2 targets, 3 source positions", _case(1, 2, 3, 5, 4, seed=1)),
        Case("2 sentences, 3 targets, 5 source positions", _case(2, 3, 5, 3, 7, seed=11)),
        Case("2 sentences, the first source padded", _case(2, 3, 5, 4, 7, seed=21, lengths=[2, 5])),
        Case("4 targets, 2 source positions", _case(3, 4, 2, 5, 6, seed=31, lengths=[1, 2, 1])),
        Case("one target", _case(2, 1, 3, 5, 4, seed=41)),
        Case("float64", _case(2, 3, 5, 4, 7, seed=51, lengths=[4, 3], dtype=torch.float64)),
    ],
    properties=[
        Property("No output depends on a later target.", _no_later_target),
        Property("Every target position may read every real source position.", _all_of_the_source),
        Property("What is hidden in the source changes nothing.", _no_source_padding),
    ],
    alternatives=[
        Alternative("with torch's kernel and its causal flag", _with_torchs_flag),
        Alternative("as a loop over sublayers", _as_a_loop),
        Alternative("position by position, as when writing", _position_by_position),
    ],
    hints=(
        "Three sublayers, each of the form stream + f(normed stream). What do the two attentions differ in?",
        "In the self-attention queries, keys and values come from the same normed stream. In the cross-attention only "
        "the queries do.",
        """T = x.size(1)
causal = torch.ones(T, T, dtype=torch.bool).tril()
x = x + attend(norm(x), norm(x), weights["self"], causal)
x = ____
return x + ...""",
    ),
    sample=_sample,
    tries=("float64", "zeros", "repeated"),
    tolerance=(1e-3, 1e-4),
    equivalent_mutants={"torch.ones(T, T, dtype=torch.bool) -> torch.ones(T, T, dtype=torch.bool)": "the same square"},
)
