"""Exercise: repair a plan whose numbers are off by factors that a small model gives away."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def plan(N, layers, heads, kv_heads, width, context, users, tokens):
    """eight ints -> dict: bytes to train, bytes of cache, operations to train"""
    a_token = 2 * layers * kv_heads * width  # numbers: keys and values
    pairs = 12 * layers * heads * width * context  # scores and mixing, for one token
    return {
        "training": 16 * N,
        "cache": users * context * a_token * 2,
        "operations": (6 * N + pairs) * tokens,
    }


def _broken():
    def plan(N, layers, heads, kv_heads, width, context, users, tokens):
        """eight ints -> dict: bytes to train, bytes of cache, operations to train"""
        a_token = 2 * layers * heads * width  # numbers: keys and values
        pairs = 4 * layers * heads * width * context  # scores and mixing, for one token
        return {
            "training": 16 * N,
            "cache": users * context * a_token * 2,
            "operations": (2 * N + pairs) * tokens,
        }

    return plan


def _model(held=16, count="kv", kept=2, texts=True, weights=6, pairs=12, far=True, seen="heads"):
    """A plan whose settings are the misconceptions."""

    def planned(N, layers, heads, kv_heads, width, context, users, tokens):
        one = kept * layers * {"kv": kv_heads, "query": heads, "one": 1}[count] * width
        a_query = {"heads": heads, "kv": kv_heads}[seen] * width
        all_pairs = pairs * layers * a_query * (context if far else 1)
        return {
            "training": held * N,
            "cache": (users if texts else 1) * context * one * 2,
            "operations": (weights * N + all_pairs) * tokens,
        }

    return planned


def _part_by_part(N, layers, heads, kv_heads, width, context, users, tokens):
    weights = gradients = mean = square = 4 * N  # float32: four bytes each
    key = value = kv_heads * width * 2  # bytes of one token in one layer
    forward = 2 * N + layers * 2 * (2 * heads * width * context)
    return {
        "training": weights + gradients + mean + square,
        "cache": layers * context * users * (key + value),
        "operations": 3 * forward * tokens,
    }


def _with_loops(N, layers, heads, kv_heads, width, context, users, tokens):
    cache, a_token = 0, 6 * N
    for _ in range(layers):
        cache += sum(2 * context * kv_heads * width * 2 for _ in range(users))
        for _ in range(heads):
            a_token += 12 * width * context
    return {"operations": a_token * tokens, "cache": cache, "training": (4 + 4 + 8) * N}


def _with_tensors(N, layers, heads, kv_heads, width, context, users, tokens):
    import torch

    keys = torch.empty(users, layers, kv_heads, context, width, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(N, device="meta")
    held = weight.nbytes * 2  # itself and its gradient
    held += weight.nbytes * 2  # the two averages of Adam
    forward = tokens * 2 * N + tokens * 4 * layers * heads * width * context
    return {"training": held, "cache": keys.nbytes + keys.nbytes, "operations": forward + 2 * forward}


def _sample(draw):
    kv_heads = draw.integer(1, 4)
    sizes = [draw.integer(1, high) for high in (6, 24, 90, 7)]
    layers, width, context, users = sizes
    heads = kv_heads * draw.integer(2, 4)
    return draw.integer(100, 10**6), layers, heads, kv_heads, width, context, users, draw.integer(1, 10**6)


def _backward_costs_twice(plan) -> str | None:
    found = plan(1000, 1, 4, 2, 3, 1, 1, 1)["operations"]
    return None if found >= 3 * 2 * 1000 else f"For 1000 weights and one token it plans {found} operations."


def _queries_leave_nothing(plan) -> str | None:
    two, four = (plan(1000, 2, heads, 2, 3, 5, 1, 7)["cache"] for heads in (2, 4))
    return None if two == four else f"With 2 and with 4 heads of queries it plans {two} and {four} bytes of cache."


EXERCISE = Exercise(
    title="Mend this plan",
    kind="debug",
    what="""`plan` says in advance what a model needs. It has `N` parameters, and `layers` layers with `heads` heads of
queries and `kv_heads` of keys and values, each `width` wide. Its token table is tied, so that nearly all parameters
multiply. `plan` returns a dict:

- `"training"`: bytes of weights, gradients and Adam's averages, all in float32;
- `"cache"`: bytes of the keys and values of `users` texts of `context` tokens, in bfloat16;
- `"operations"`: those of training on `tokens` tokens, forward and backward, each in a text of `context` tokens.
  Count scores and mixing with all pairs, also the hidden ones, as the counter does that measures the small model.

Compared with a small model that was built and measured, **two** of the three numbers are off by a factor. Mend
both.""",
    why="A plan that is wrong by a factor looks exactly like one that is right.",
    difficulty=3,
    minutes=10,
    reference=plan,
    given=_broken(),
    model=_model,
    misconceptions=misconceptions("""
query-heads (count="query"): keeps a key and a value for each head of queries
    Which heads have keys of their own?
one-head (count="one"): keeps the key and value of a single head
    How many keys does one token have in one layer?
keys-only (kept=1): keeps the keys and no values
    What are the weights of a later token multiplied with?
cache-in-float32 (kept=4): counts four bytes for each number of the cache
    In which format is the cache?
one-text (texts=False): keeps one text
    Do two users share a cache?
forward-only (weights=2, pairs=4): leaves out the operations of the backward pass
    By which factor is a training step dearer than a forward pass?
weights-forward-only (weights=2): counts the backward pass of scores and mixing and not that of the weights
    How many operations does one weight do for one token of training?
pairs-forward-only (pairs=4): counts the backward pass of the weights and not that of scores and mixing
    Do scores have a backward pass?
causal-half (pairs=6): counts half of the pairs
    Which pairs does the task ask for?
pairs-left-out (pairs=0): leaves out scores and mixing
    Does your count depend on the context?
pairs-with-one (far=False): compares each token with a single other
    With how many keys is one query compared?
pairs-of-key-heads (seen="kv"): counts the scores of the heads of keys
    How many rows of scores does one token have in one layer?
no-averages (held=8): counts no bytes for Adam's averages
    What does the optimizer keep for each weight?
one-average (held=12): counts one average for each weight
    How many averages does Adam keep for each weight?
weights-alone (held=4): counts no bytes beside those of the weights
    What comes with a weight in training?
"""),
    cases=[
        Case("one layer, one token, one text", lambda: (10, 1, 2, 1, 3, 1, 1, 1)),
        Case("4 heads of queries, 2 of keys", lambda: (100, 1, 4, 2, 3, 5, 1, 1)),
        Case("2 texts, 7 tokens", lambda: (100, 3, 6, 2, 5, 11, 2, 7)),
        Case("as many heads of keys as of queries", lambda: (100, 3, 4, 4, 5, 11, 2, 7)),
        Case("Qwen3-0.6B", lambda: (596_049_920, 28, 16, 8, 128, 8192, 14, 36 * 10**12)),
    ],
    properties=[
        Property("A training step does at least six operations for each weight and token.", _backward_costs_twice),
        Property("Heads of queries leave nothing in the cache.", _queries_leave_nothing),
    ],
    alternatives=[
        Alternative("part by part", _part_by_part),
        Alternative("with loops", _with_loops),
        Alternative("with tensors that hold nothing", _with_tensors),
    ],
    hints=(
        "Which of the three factors above is 1? Which numbers of the small model could make a 3, or a third?",
        "The small model has three times as many heads of queries as of keys. And a step goes forward and backward.",
        """a_token = 2 * layers * ... * width
forward = 2 * N + 4 * layers * heads * width * context  # for one token
operations = ____ * tokens""",
    ),
    sample=_sample,
    gradients=False,
)
