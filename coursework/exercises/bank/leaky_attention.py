"""Exercise: find out why an attention that looks causal lets the future through, and repair it."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def leaky_attention(query, key, value):
    """(..., T, E), (..., S, E), (..., S, E') with S >= T -> (..., T, E')"""
    T, S = query.size(-2), key.size(-2)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (..., T, S)
    visible = torch.ones(T, S, dtype=torch.bool, device=query.device).tril(S - T)
    weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
    return weights @ value


def _leaks():
    def leaky_attention(query, key, value):
        """(..., T, E), (..., S, E), (..., S, E') with S >= T -> (..., T, E')"""
        T, S = query.size(-2), key.size(-2)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # (..., T, S)
        visible = torch.ones(T, S, dtype=torch.bool, device=query.device).tril()
        weights = scores.softmax(dim=-1).masked_fill(~visible, 0.0)
        return weights @ value

    return leaky_attention


def _model(place="before", align="bottom-right", fill=-math.inf, axis=-1, empty="nan"):
    """Causal attention whose settings are the misconceptions."""

    def attend(query, key, value):
        T, S = query.size(-2), key.size(-2)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        diagonal = {"bottom-right": S - T, "top-left": 0, "ahead": S - T + 1, "behind": S - T - 1, "ahead-left": 1,
                    "mirrored": T - S, "upper": S - T, "all": S,
                    "unless-cached": 0 if S == T else S}[align]  # fmt: skip
        visible = torch.ones(T, S, dtype=torch.bool).tril(diagonal)
        if align == "upper":
            visible = ~visible
        if place == "before":
            weights = scores.masked_fill(~visible, fill).softmax(dim=axis)
            weights = weights.nan_to_num(0.0) if align == "upper" and empty == "zero" else weights
        else:
            weights = scores.softmax(dim=-1) * visible
            if place == "shared-out":
                weights = weights / weights.sum(dim=-1, keepdim=True)
            elif place == "shared-out-safely":
                weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-9)
        return weights @ value

    return attend


def _with_torch(query, key, value):
    T, S = query.size(-2), key.size(-2)
    visible = torch.arange(S) <= torch.arange(S - T, S)[:, None]  # key position <= query position
    return F.scaled_dot_product_attention(query, key, value, attn_mask=visible)


def _with_course(query, key, value):
    from course_lib.attention import scaled_dot_product_attention

    return scaled_dot_product_attention(query, key, value, causal=True)


def _with_loop(query, key, value):
    T, S = query.size(-2), key.size(-2)
    outputs = []
    for t in range(T):
        seen = S - T + t + 1  # the keys that exist when query t is asked
        scores = key[..., :seen, :] @ query[..., t, :, None] / math.sqrt(query.size(-1))  # (..., seen, 1)
        outputs.append((scores.softmax(dim=-2) * value[..., :seen, :]).sum(dim=-2))
    return torch.stack(outputs, dim=-2)


@maker
def _case(*lead, T, S, E, width, seed, dtype=torch.float32, scale=1.0):
    query = normal(*lead, T, E, seed=seed, dtype=dtype, scale=scale)
    key = normal(*lead, S, E, seed=seed + 1, dtype=dtype, scale=scale)
    return query, key, normal(*lead, S, width, seed=seed + 2, dtype=dtype)


def _future_fits_best():
    query, key = torch.full((1, 2, 4), 300.0), torch.full((1, 3, 4), -300.0)
    key[:, 2] = 300.0  # query 0 must not see it, and all that it may see scores far lower
    return query.requires_grad_(), key.requires_grad_(), normal(1, 3, 5, seed=70)


def _future_700_higher():
    query, key = torch.tensor([[[10.0], [1.0]]]), torch.tensor([[[1.0], [2.0], [72.0]]])
    return query.requires_grad_(), key.requires_grad_(), normal(1, 3, 2, seed=75)


def _strided():
    return tuple(strided(tensor) for tensor in _case(2, T=3, S=5, E=7, width=4, seed=51)())


def _sample(draw):
    lead = [draw.integer(1, 3) for _ in range(draw.integer(0, 2))]
    T, E, width = draw.integer(1, 5), draw.integer(1, 6), draw.integer(1, 6)
    S = T + draw.integer(0, 3)
    dtype = draw.dtype()
    query, key = draw.normal(*lead, T, E, dtype=dtype), draw.normal(*lead, S, E, dtype=dtype)
    return query, key, draw.normal(*lead, S, width, dtype=dtype)


def _future_is_unread(attend) -> str | None:
    for T, S in ((3, 3), (3, 5)):
        query, key, value = _case(T=T, S=S, E=7, width=4, seed=81)()
        before = attend(query, key, value)
        for token in range(S - 1, S - T, -1):
            changed_key, changed_value = key.detach().clone(), value.detach().clone()
            changed_key[token] += 3.0
            changed_value[token] += 3.0
            after = attend(query, changed_key, changed_value)
            for row in range(token - (S - T)):
                if not torch.allclose(before[row], after[row], atol=1e-5):
                    changed = f"changing token {token} changed the output at position {row + S - T}"
                    return f"With {T} queries and {S} keys, {changed}."
    return None


def _past_is_read(attend) -> str | None:
    query, key, value = _case(T=2, S=5, E=7, width=4, seed=85)()
    before = attend(query, key, value)
    for token in range(4):
        changed = value.detach().clone()
        changed[token] += 3.0
        if torch.allclose(before[0], attend(query, key, changed)[0], atol=1e-5):
            return f"With 2 queries and 5 keys, changing token {token} left the output at position 3 as it was."
    return None


def _cache_changes_nothing(attend) -> str | None:
    query, key, value = _case(T=5, S=5, E=7, width=4, seed=91)()
    whole = attend(query, key, value)
    for new in (1, 2):
        if not torch.allclose(whole[-new:], attend(query[-new:], key, value), atol=1e-5):
            return f"Asking only the last {new} of 5 queries gives another output than asking all 5."
    return None


EXERCISE = Exercise(
    title="Find the leak",
    kind="debug",
    what="""This attention is meant to be causal: an output may depend on no token after its own. `S` may exceed `T`:
then the first `S - T` keys are from earlier tokens kept in a cache, and the last query stands on the last key. The
maps it draws are zero above the diagonal, and yet the law `assert_causal` rejects it. Repair it.""",
    why="""A leak does not raise and does not show in the map. It shows as a training loss that is too good, and as a
model that cannot generate.""",
    difficulty=3,
    minutes=10,
    reference=leaky_attention,
    given=_leaks(),
    model=_model,
    misconceptions=misconceptions("""
hidden-after-softmax (place="after"): hides later keys after the softmax
    Which scores enter the denominator of the softmax in row 0?
shared-out-again (place="shared-out"): hides later keys after the softmax and then divides each row by what is left
    What is left of a row, in float32, when a later key has a far larger score than all earlier ones?
shared-out-safely (place="shared-out-safely"): hides later keys after the softmax and then divides by what is left, but
        never by zero
    What is left of a row, in float32, when a later key has a far larger score than all earlier ones?
aligned-top-left (align="top-left"): places the first query on the first key, also when there are more keys than queries
    With 1 query and 6 keys, 5 of them from a cache: which keys does your query see?
one-ahead (align="ahead"): lets each query see one key too many
    Which key is the last that the first of T = S queries sees?
one-behind (align="behind"): hides from each query its own key
    With T = S, what is left for the first query to attend to?
one-ahead-top-left (align="ahead-left"): moves the diagonal by one, whatever the number of cached keys
    Which keys do the queries see for T = S = 3, and which for T = 1 and S = 6?
offset-reversed (align="mirrored"): moves the diagonal in the wrong direction when there are more keys than queries
    With 5 cached keys, does the first query see more keys than without a cache, or fewer?
no-mask-with-cache (align="unless-cached"): leaves out the mask when there are more keys than queries
    With 2 new tokens after a cache, may the first of them see the second?
no-mask (align="all"): lets every query see every key
    On which tokens may the output at position 0 depend?
fill-zero (fill=0.0): gives later keys the score 0
    Which weight does a score of 0 get from a softmax whose other scores are negative?
fill-finite (fill=-1e4): gives later keys a finite score such as -10000
    What happens to your hidden keys when every visible score in the row is lower still?
visible-hidden (align="upper"): fills the scores of the visible keys, so that only later keys are read
    At which positions does `masked_fill` write: where its mask is True, or where it is False?
visible-hidden-safely (align="upper", empty="zero"): fills the scores of the visible keys, and returns zeros where
        nothing is left
    At which positions does `masked_fill` write: where its mask is True, or where it is False?
softmax-over-queries (axis=-2): takes the softmax over the queries
    Whose weights must add up to one: those that one query gives, or those that one key receives?
"""),
    cases=[
        Case("2 queries, 2 keys", _case(T=2, S=2, E=3, width=5, seed=1)),
        Case("1 query, 3 keys", _case(T=1, S=3, E=2, width=5, seed=11)),
        Case("2 queries, 5 keys", _case(T=2, S=5, E=3, width=7, seed=21)),
        Case("2 examples, 3 heads, 4 queries, 5 keys", _case(2, 3, T=4, S=5, E=7, width=6, seed=31)),
        Case("the key after the query fits far better than all before it", _future_fits_best),
        Case("the key after the query scores 700 higher than all before it", _future_700_higher),
        Case("large scores", _case(2, T=3, S=5, E=7, width=4, seed=41, scale=60.0)),
        Case("inputs that are not contiguous in memory", _strided),
        Case("float64", _case(2, T=3, S=5, E=7, width=4, seed=61, dtype=torch.float64)),
        Case("bfloat16", _case(2, T=3, S=5, E=7, width=4, seed=65, dtype=torch.bfloat16)),
    ],
    properties=[
        Property("An output never depends on a later token.", _future_is_unread),
        Property("An output depends on every earlier token, cached ones included.", _past_is_read),
        Property("Asking only the newest queries gives what asking all of them gives.", _cache_changes_nothing),
    ],
    alternatives=[
        Alternative("torch's own kernel, with a mask of positions", _with_torch),
        Alternative("the course's own function", _with_course),
        Alternative("query by query, reading only the keys that exist so far", _with_loop),
    ],
    hints=(
        "A map that is zero above the diagonal can leak: through which other number does a later score reach row 0?",
        "Two lines are at fault. One hides keys at a moment when they have already had an effect; the other is right "
        "only if there are as many keys as queries.",
        """visible = torch.ones(T, S, dtype=torch.bool, device=query.device).tril(...)  # right for S > T too
weights = ____  # later keys must leave before they can take a share
return weights @ value""",
    ),
    sample=_sample,
    tries=("float64", "bfloat16", "large", "zeros", "repeated"),
    equivalent_mutants={
        "key -> value": "there are as many values as keys",
        "query -> key (3)": "query and key have the same width",
        "query -> key (4)": "query and key lie on the same device",
        "torch.ones(T, S, dtype=torch.bool, device=query.device) -> torch.ones(T, S, dtype=torch.bool)": (
            "all cases lie on the CPU"
        ),
    },
)
