"""Exercise: one step of attention with a cache of keys and values."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def kv_cache_step(x, keys, values, W_query, W_key, W_value):
    """(B, T, D), cached (B, P, E) and (B, P, E), three of (D, E)
    -> output (B, T, E), keys (B, P + T, E), values (B, P + T, E)"""
    keys = torch.cat([keys, x @ W_key], dim=1)
    values = torch.cat([values, x @ W_value], dim=1)
    T, total = x.size(1), keys.size(1)
    visible = torch.ones(T, total, dtype=torch.bool).tril(total - T)
    output = F.scaled_dot_product_attention(x @ W_query, keys, values, attn_mask=visible)
    return output, keys, values


def _model(mask="bottom-right", order="append", reads="all", keep="all", made="right", scale="root", place="before"):
    """A step whose settings are the misconceptions."""

    def step(x, keys, values, W_query, W_key, W_value):
        T, P = x.size(1), keys.size(1)
        if made == "exchanged":
            W_query, W_key = W_key, W_query
        new_keys, new_values = x @ W_key, x @ (W_key if made == "values-from-keys" else W_value)
        if made == "queries-cached":
            new_keys = x @ W_query
        parts = [(keys, new_keys), (values, new_values)]
        if order == "prepend":
            parts = [pair[::-1] for pair in parts]
        if order == "swapped":
            parts = parts[::-1]
        all_keys, all_values = (torch.cat(pair, dim=1) for pair in parts)
        total = P + T
        visible = {
            "bottom-right": torch.ones(T, total, dtype=torch.bool).tril(P),
            "top-left": torch.ones(T, total, dtype=torch.bool).tril(),
            "none": torch.ones(T, total, dtype=torch.bool),
            "strict": torch.ones(T, total, dtype=torch.bool).tril(P - 1),
            "hidden": torch.ones(T, total, dtype=torch.bool).triu(P + 1),
        }[mask]
        if reads == "new":
            visible = visible & (torch.arange(total) >= P)
        if reads == "old" and P > 0:
            visible = visible & (torch.arange(total) < P)
        scores = (
            (x @ W_query)
            @ all_keys.mT
            / {
                "root": math.sqrt(W_key.size(1)),
                "none": 1.0,
                "input": math.sqrt(x.size(-1)),
                "square": W_key.size(1),
            }[scale]
        )
        weights = torch.where(visible, scores, -math.inf).softmax(-1).nan_to_num(0.0)
        if place == "after":
            weights = scores.softmax(-1) * visible
        output = weights @ all_values
        if keep == "old":
            return output, keys.clone(), values.clone()
        if keep == "new":
            return output, new_keys, new_values
        if keep == "last":
            return output, torch.cat([keys, new_keys[:, -1:]], 1), torch.cat([values, new_values[:, -1:]], 1)
        if keep == "keys":
            return output, all_keys, values.clone()
        return output, all_keys, all_values

    return step


def _token_by_token(x, keys, values, W_query, W_key, W_value):
    outputs = []
    for new in x.split(1, dim=1):  # (B, 1, D) each: the last query sees everything
        keys = torch.cat([keys, new @ W_key], dim=1)
        values = torch.cat([values, new @ W_value], dim=1)
        scores = (new @ W_query) @ keys.mT / math.sqrt(keys.size(-1))
        outputs.append(scores.softmax(dim=-1) @ values)
    return torch.cat(outputs, dim=1), keys, values


def _with_positions(x, keys, values, W_query, W_key, W_value):
    B, P, E = keys.shape
    T = x.size(1)
    room_for_keys, room_for_values = x.new_empty(B, P + T, E), x.new_empty(B, P + T, values.size(-1))
    room_for_keys[:, :P], room_for_keys[:, P:] = keys, x @ W_key
    room_for_values[:, :P], room_for_values[:, P:] = values, x @ W_value
    position = torch.arange(P + T)
    hidden = position[None, :] > position[P:, None]  # (T, P + T)
    scores = torch.einsum("bte,bse->bts", x @ W_query, room_for_keys) / E**0.5
    output = scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ room_for_values
    return output, room_for_keys, room_for_values


def _with_course(x, keys, values, W_query, W_key, W_value):
    from course_lib.attention import scaled_dot_product_attention

    keys, values = torch.cat((keys, x @ W_key), dim=1), torch.cat((values, x @ W_value), dim=1)
    return scaled_dot_product_attention(x @ W_query, keys, values, causal=True), keys, values


@maker
def _case(B, T, P, D, E, seed, dtype=torch.float32):
    cached = [normal(B, P, E, seed=seed + n, dtype=dtype) for n in (1, 2)]
    weights = [normal(D, E, seed=seed + n, dtype=dtype) for n in (3, 4, 5)]
    return normal(B, T, D, seed=seed, dtype=dtype), *cached, *weights


def _sample(draw):
    B, T, D, E = (draw.integer(1, high) for high in (3, 3, 4, 4))
    P = draw.integer(0, 4)
    dtype = draw.dtype()
    cached = [draw.normal(B, P, E, dtype=dtype) for _ in range(2)]
    return draw.normal(B, T, D, dtype=dtype), *cached, *(draw.normal(D, E, dtype=dtype) for _ in range(3))


def _pieces_equal_the_whole(step) -> str | None:
    x, keys, values, *weights = _case(1, 5, 0, 3, 2, seed=91)()
    whole = step(x, keys, values, *weights)[0]
    for first in (1, 2, 4):
        _, some_keys, some_values = step(x[:, :first], keys, values, *weights)
        rest = step(x[:, first:], some_keys, some_values, *weights)[0]
        if not torch.allclose(rest, whole[:, first:], atol=1e-4):
            return f"5 tokens at once and {first} before {5 - first} give the later ones different outputs."
    return None


EXERCISE = Exercise(
    title="One step with a cache",
    what="""Write `kv_cache_step(x, keys, values, W_query, W_key, W_value)`, one head of causal self-attention that has
already seen P tokens: their keys and values are given. `x` holds the T tokens that come next. Usually T is 1; when a
whole prompt comes first, P is 0. Return the outputs of the T new tokens, and all keys and all values, the old ones
first, for the next step. A new token sees all tokens before it, cached or new, and itself; scores are divided by √E.
Leave the tensors that you were given as they are. You need no gradients.""",
    why="""A model that writes without it computes the keys and values of every old token again for each new one. For
a text of 1,000 tokens, that is about 500 times as many.""",
    difficulty=3,
    minutes=17,
    reference=kv_cache_step,
    model=_model,
    misconceptions=misconceptions("""
mask-aligned-top-left (mask="top-left"): aligns the causal mask at the first key, so that a new token sees the start of
        the text only
    With four cached tokens and one new one, how many keys may the new one see?
no-mask (mask="none"): lets new tokens see each other whatever their order
    When the prompt is fed at once, which of its tokens may the first one see?
does-not-see-itself (mask="strict"): hides each new token from itself
    Is a token's own key among those it may see?
new-keys-first (order="prepend"): puts the new keys and values before the old ones
    In which order do tokens stand in your cache after two steps?
keys-and-values-exchanged (order="swapped"): takes keys for values and values for keys
    Which of the two cached tensors is compared with the query?
reads-new-tokens-only (reads="new"): attends to the new tokens only
    What are the old keys and values kept for?
reads-the-cache-only (reads="old"): attends to the cached tokens only
    Is a new token's own key among those it may see?
returns-the-old-cache (keep="old"): returns the cache as it was
    What will the next step know of the tokens of this one?
returns-new-entries-only (keep="new"): returns the keys and values of the new tokens without the old ones
    What will the next step know of the tokens before this one?
keeps-the-last-token-only (keep="last"): adds only the last of the new tokens to the cache
    After a prompt of three tokens, how many keys must the cache hold?
values-not-kept (keep="keys"): adds to the keys of the cache but not to its values
    How long is each of the two tensors that you return?
values-from-keys (made="values-from-keys"): makes the new values with the matrix of the keys
    Which matrix turns a token into what it hands over?
queries-cached (made="queries-cached"): puts the new queries where the new keys belong
    What of a token will later tokens be compared with?
no-scale (scale="none"): does not scale the scores
    By what did chapter 1 divide the scores, and why?
root-of-the-input-width (scale="input"): divides by the root of the input width
    How many products does a score add up: D or E?
no-root (scale="square"): divides by the width, not by its root
    Which power of E stands in the task?
hidden-after-softmax (place="after"): applies the mask after the softmax
    What do the weights of one query add up to in your function?
query-and-key-maps-exchanged (made="exchanged"): makes queries with the map of the keys, and keys with that of the
        queries
    Which of the two maps made the keys in the cache?
"""),
    cases=[
        Case("1 new token, 2 cached", _case(1, 1, 2, 3, 2, seed=1)),
        Case("2 new tokens, 3 cached", _case(1, 2, 3, 4, 2, seed=11)),
        Case("a prompt of 3 tokens, an empty cache", _case(2, 3, 0, 5, 4, seed=21)),
        Case("3 sentences, 2 new tokens, 5 cached", _case(3, 2, 5, 4, 7, seed=31)),
        Case("4 new tokens, 1 cached", _case(2, 4, 1, 3, 5, seed=41)),
        Case("float64", _case(2, 3, 4, 5, 7, seed=51, dtype=torch.float64)),
    ],
    properties=[Property("Fed in pieces, a text gives the outputs that it gives at once.", _pieces_equal_the_whole)],
    alternatives=[
        Alternative("token by token, where no mask is needed", _token_by_token),
        Alternative("into reserved memory, with a mask from positions", _with_positions),
        Alternative("with the course's own attention, whose causal mask is aligned bottom-right", _with_course),
    ],
    hints=(
        "Which parts of attention, for an old token, are the same in every later step?",
        "First extend keys and values, then attend with the new queries. The last new token sees everything; the one "
        "before it sees one key less.",
        """keys = torch.cat([keys, x @ W_key], dim=1)
values = ...
visible = ____  # (T, P + T): which of all keys each new token may see
output = ...
return output, keys, values""",
    ),
    sample=_sample,
    gradients=False,
    tries=("float64", "zeros", "repeated"),
    tolerance=(1e-3, 1e-4),
    equivalent_mutants={"keys -> values (4)": "keys and values are equally long"},
)
