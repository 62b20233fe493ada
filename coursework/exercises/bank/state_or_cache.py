"""Question: the number of tokens from which on a cache is larger than a state."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Build both on a device that stores nothing, and lengthen the text until the cache is as large."""
    import torch

    with torch.device("meta"):
        state, tokens = torch.empty(32, 128, 128), 1
        while 2 * torch.empty(2, tokens, 256).numel() < state.numel():
            tokens += 1
    return tokens


EXERCISE = Question(
    title="State or cache",
    what="""In Qwen3-Next, a layer with the delta rule has 32 states, each for keys and values of 128 numbers. A layer
of full attention keeps, for each token, a key and a value of 256 numbers in each of 2 heads. After how many tokens is
the cache as large as the states?""",
    why="For shorter texts the layer with a fixed memory is the one that keeps more.",
    difficulty=2,
    minutes=4,
    right=512,
    formula="""
states = 32
state_width = 128
kinds = 2
cache_heads = 2
cache_width = 256
state = states * state_width * state_width
token = kinds * cache_heads * cache_width
state / token
""",
    compute=_compute,
    form="a number of tokens",
    wrong=[
        WrongAnswer(1024, "the number if only the keys are cached, or only the values", "What does attention read?"),
        WrongAnswer(16, "the number for a single state", "How many states does the layer have?"),
        WrongAnswer(524_288, "how many numbers the states have", "How many numbers does the cache keep of a token?"),
        WrongAnswer(4, "the number if a state were a single vector", "What does a key times a value give?"),
    ],
    hints=(
        "How many numbers does a state have that answers a key of 128 numbers with a value of 128?",
        "The states are matrices of 128 by 128. A token leaves a key and a value in each head of the cache.",
        "states = 32 * 128 * 128\na_token = ____\n# tokens = states / a_token",
    ),
    explanation="""The states have 32 · 128 · 128 = 524,288 numbers, and a token leaves 2 · 2 · 256 = 1,024 in the
cache. So they are equal after 512 tokens. At 262,144 tokens the cache is 512 times as large.""",
)
