"""Question: how many token positions a model computes without a cache."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Count what a model that is a plain function is fed, step by step."""
    import torch

    from course_lib.generation import generate

    fed = 0

    def model(tokens):
        nonlocal fed
        fed += tokens.size(1)
        return torch.zeros(*tokens.shape, 3)

    generate(model, torch.zeros(1, 1, dtype=torch.int64), max_new_tokens=256, temperature=0)
    return fed


EXERCISE = Question(
    title="What a cache saves",
    what="""A model starts from one token and writes 256 more. Without a cache, each step feeds all tokens so far
through the layers and keeps only the last prediction. How many token positions go through the layers in total?""",
    why="With a cache it is one position a step. The quotient is what a cache saves, in all but attention itself.",
    difficulty=1,
    minutes=3,
    right=32_896,
    formula="""
steps = 256
steps * (steps + 1) / 2
""",
    compute=_compute,
    form="a number of positions",
    wrong=[
        WrongAnswer(256, "the number with a cache", "How many tokens does the last step feed without a cache?"),
        WrongAnswer(65_536, "256 steps of 256 positions each", "How many tokens does the first step feed?"),
        WrongAnswer(32_640, "the sum from 0 to 255", "How many tokens are there before the first new one?"),
        WrongAnswer(33_153, "the sum from 1 to 257", "Is the last new token ever fed?"),
        WrongAnswer(32_768, "half of 256 squared", "Does the sum 1 + 2 + 3 equal half of 3 squared?"),
    ],
    hints=(
        "How many tokens does the first step feed, and how many the last?",
        "It is a sum of consecutive whole numbers, from the first step's to the last step's.",
        "total = sum(range(1, ____ + 1))",
    ),
    explanation="""1 + 2 + … + 256 = 256 · 257 / 2: 128.5 times as many as the 256 with a cache. The last token written
is never fed, the first one is.""",
)
