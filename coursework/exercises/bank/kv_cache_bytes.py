"""Exercise: repair a count of the bytes that a generator keeps."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def kv_cache_bytes(layers, batch, length, heads, kv_heads, head_width, number_bytes):
    """seven ints -> int: bytes of the cached keys and values of all layers"""
    a_token = 2 * kv_heads * head_width  # numbers in one layer: a key and a value for each head that has its own
    return layers * batch * length * a_token * number_bytes


def _forgets():
    def kv_cache_bytes(layers, batch, length, heads, kv_heads, head_width, number_bytes):
        """seven ints -> int: bytes of the cached keys and values of all layers"""
        a_token = 2 * head_width  # numbers in one layer: a key and a value
        return layers * batch * length * a_token * number_bytes

    return kv_cache_bytes


def _model(count="kv", kept=2, per_layer=True, per_sequence=True, per_token=True, number=True, unit=1):
    """A count whose settings are the misconceptions."""

    def n_bytes(layers, batch, length, heads, kv_heads, head_width, number_bytes):
        total = kept * head_width * {"kv": kv_heads, "query": heads, "one": 1, "both": heads + kv_heads,
                                      "share": heads // kv_heads, "product": heads * kv_heads}[count]  # fmt: skip
        total *= (layers if per_layer else 1) * (batch if per_sequence else 1) * (length if per_token else 1)
        return total * (number_bytes if number else 1) * unit

    return n_bytes


def _with_tensors(layers, batch, length, heads, kv_heads, head_width, number_bytes):
    import torch

    dtype = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[number_bytes]
    keys = torch.empty(layers, batch, kv_heads, length, head_width, dtype=dtype, device="meta")
    return keys.nbytes + torch.empty_like(keys).nbytes


def _with_loops(layers, batch, length, heads, kv_heads, head_width, number_bytes):
    total = 0
    for _ in range(layers):
        for _ in ("keys", "values"):
            total += batch * kv_heads * length * head_width * number_bytes
    return total


def _with_course(layers, batch, length, heads, kv_heads, head_width, number_bytes):
    import torch

    from course_lib.config import TransformerConfig
    from course_lib.scaling import kv_cache_bytes as count

    dtype = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[number_bytes]
    config = TransformerConfig(
        d_model=heads * head_width,
        n_heads=heads,
        n_kv_heads=kv_heads,
        n_decoder_layers=layers,
        vocab_size=10,
        positions="none",
    )
    return count(config, batch, length, dtype=dtype)


def _sample(draw):
    kv_heads = draw.integer(1, 5)
    heads = kv_heads * draw.integer(1, 4)
    sizes = [draw.integer(1, high) for high in (6, 5, 40)]
    return (*sizes, heads, kv_heads, draw.integer(1, 16), draw.choice([1, 2, 4, 8]))


def _groups_save(n_bytes) -> str | None:
    one, four = n_bytes(2, 3, 5, 4, 1, 7, 2), n_bytes(2, 3, 5, 4, 4, 7, 2)
    return None if four == 4 * one else f"With 1 and with 4 heads of keys and values it gives {one} and {four} bytes."


def _queries_leave_nothing(n_bytes) -> str | None:
    four, eight = n_bytes(2, 3, 5, 4, 2, 7, 2), n_bytes(2, 3, 5, 8, 2, 7, 2)
    return None if four == eight else f"With 4 and with 8 query heads of one width it gives {four} and {eight} bytes."


EXERCISE = Exercise(
    title="What a cache really takes",
    kind="debug",
    what="""`kv_cache_bytes(layers, batch, length, heads, kv_heads, head_width, number_bytes)` should say how many
bytes the cache takes for `batch` sequences of `length` tokens: the keys and values of all `layers`. Queries
come from `heads` heads; keys and values from `kv_heads`, which may be fewer; all heads are `head_width` wide, and a
number takes `number_bytes`. For Llama 3 8B and one sequence of 8192 tokens the function below promises 128 MiB; a
machine filled with that in mind runs out of memory. Repair it.""",
    why="On long texts the cache decides how many sequences a machine can serve at once.",
    difficulty=1,
    minutes=5,
    reference=kv_cache_bytes,
    given=_forgets(),
    model=_model,
    misconceptions=misconceptions("""
one-head (count="one"): keeps the key and value of a single head
    How many keys does one token have in one layer?
query-heads (count="query"): keeps a key and a value for every query head
    What do query heads of one group share?
queries-too (count="both"): keeps something for both kinds of heads
    Is the query of an old token ever used again?
keys-only (kept=1): keeps the keys and no values
    What are the weights of a later token multiplied with?
three-kept (kept=3): keeps three vectors a head
    Is the query of an old token ever used again?
one-layer (per_layer=False): keeps one layer
    Do two layers have the same keys?
one-sequence (per_sequence=False): keeps one sequence of the batch
    Do two sequences of a batch share their keys?
one-token (per_token=False): keeps a single token
    Which tokens does the next query look at?
numbers-not-bytes (number=False): returns how many numbers are kept
    How many bytes does one number take?
bits (unit=8): returns bits
    Which unit should the answer have?
query-heads-for-each-key-head (count="share"): counts how many query heads share one head of keys
    If there are more heads of keys, does the cache grow or shrink?
heads-multiplied (count="product"): multiplies the two numbers of heads
    Do queries leave anything in the cache?
"""),
    cases=[
        Case("one layer, one token, one head", lambda: (1, 1, 1, 1, 1, 3, 2)),
        Case("3 heads, each with its own keys", lambda: (1, 1, 5, 3, 3, 7, 2)),
        Case("6 query heads, 2 heads of keys", lambda: (1, 1, 5, 6, 2, 7, 2)),
        Case("3 layers, 2 sequences, 5 tokens", lambda: (3, 2, 5, 6, 2, 7, 4)),
        Case("one head of keys for all queries", lambda: (5, 3, 11, 4, 1, 13, 8)),
        Case("numbers of one byte", lambda: (3, 2, 7, 10, 5, 11, 1)),
        Case("GPT-2, 1024 tokens, float32", lambda: (12, 1, 1024, 12, 12, 64, 4)),
        Case("Llama 3 8B, 8192 tokens, bfloat16", lambda: (32, 1, 8192, 32, 8, 128, 2)),
    ],
    properties=[
        Property("Four times the heads of keys and values take four times the bytes.", _groups_save),
        Property("Query heads leave nothing in the cache.", _queries_leave_nothing),
    ],
    alternatives=[
        Alternative("with tensors that hold nothing", _with_tensors),
        Alternative("layer by layer", _with_loops),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "Which tensors does one layer keep of one token, and what is their shape?",
        "Compare the shapes of queries, keys and values in grouped-query attention, and ask which are used again.",
        """a_token = 2 * ____ * head_width
return layers * batch * length * a_token * number_bytes""",
    ),
    sample=_sample,
)
