"""Question: how many bytes a cache of grouped heads takes."""

import torch

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Fill the cache of one layer on a device that stores nothing, and count its bytes."""
    from course_lib.cache import KVCache

    cache = KVCache(capacity=8192)
    one = torch.empty(1, 8, 8192, 128, dtype=torch.bfloat16, device="meta")
    cache.append(one, one)
    return 32 * cache.n_bytes


EXERCISE = Question(
    title="The cache of grouped heads",
    kind="measure",
    what="""Llama 3 8B has 32 layers, width 4096, 32 query heads of width 128, and 8 heads of keys and values. How many
bytes does the cache of one sequence of 8192 tokens take in bfloat16, two bytes a number?""",
    why="The parameters are stored once, but each text needs a cache of its own, and all have to fit in memory.",
    difficulty=2,
    minutes=5,
    right=1_073_741_824,
    formula="""
layers = 32
width = 4096
query_heads = 32
key_value_heads = 8
head_width = 128
tokens = 8192
bytes_a_number = 2
keys_and_values = 2
keys_and_values * key_value_heads * head_width * layers * tokens * bytes_a_number
""",
    compute=_compute,
    form="a number of bytes",
    wrong=[
        WrongAnswer(
            4_294_967_296, "the cache without grouping, counted from the query heads", "Which heads have keys?"
        ),
        WrongAnswer(536_870_912, "the keys alone, or both at one byte a number", "What is kept besides the keys?"),
        WrongAnswer(2_147_483_648, "the cache in float32", "How many bytes does a bfloat16 number take?"),
        WrongAnswer(33_554_432, "one layer", "How many layers keep keys and values of their own?"),
        WrongAnswer(131_072, "one token", "How many tokens are kept?"),
        WrongAnswer(134_217_728, "the cache of a single key/value head", "How many heads have keys of their own?"),
    ],
    hints=(
        "How many numbers does one token leave behind in one layer?",
        "Keys and values are as wide as their own heads together; the query heads leave nothing behind.",
        "a_token = 2 * ____ * 128  # numbers, in one layer\ntotal = 32 * 8192 * a_token * 2  # bytes",
    ),
    explanation="""2 (keys and values) × 8 heads × 128 numbers × 2 bytes = 4096 bytes a token and layer; times 32
layers and 8192 tokens that is 2³⁰ bytes, one GiB. With 32 key/value heads it would be four.""",
)
