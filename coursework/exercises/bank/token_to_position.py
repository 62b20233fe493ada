"""Question: how loud the positions are beside the tokens."""

import torch

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    from course_lib.positions import SinusoidalPositionalEncoding

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(4000, 512, generator=generator) * 512**0.5
    places = SinusoidalPositionalEncoding(512)(torch.arange(100))
    return float(tokens.square().mean().sqrt() / places.square().mean().sqrt())


EXERCISE = Question(
    title="Tokens against positions",
    what="""A model of width D = 512 draws its token table from N(0, 1), as `nn.Embedding` does, multiplies the vectors
by √512 and adds sinusoids. By what factor are the token vectors larger than the positions? Compare root mean squares,
and round to a whole number.""",
    why="If one part of a sum is much larger than the other, the model hardly sees the other.",
    difficulty=2,
    minutes=4,
    right=32,
    formula="""
width = 512
mean_square_of_a_position = 0.5
round(sqrt(width) / sqrt(mean_square_of_a_position))
""",
    compute=lambda: round(_compute()),
    form="a number",
    wrong=[
        WrongAnswer(1, "what a table of standard deviation 1/√512 would come near", "What does √512 do to N(0, 1)?"),
        WrongAnswer(23, "the size of a token component, against positions of size one", "What is the mean of sin²?"),
        WrongAnswer(16, "what you get if sines were twice as large as they are", "What is the mean of sin²?"),
        WrongAnswer(1024, "the factor between the mean squares", "What is still missing in a root mean square?"),
        WrongAnswer(512, "the width itself", "By which power of the width are the vectors multiplied?"),
        WrongAnswer(45, "√512 over the mean square of a position", "What is the root of the mean of sin²?"),
    ],
    hints=(
        "In each pair of a position, what do the squares of sine and cosine add up to?",
        "The root mean square of a token component is its standard deviation. That of a position follows from the sum "
        "of squares in a pair, which is always the same.",
        "tokens = 512 ** 0.5\npositions = ____  # root mean square of a pair\nfactor = tokens / positions",
    ),
    explanation="""Token components have size √512 ≈ 22.6. In each pair sin² + cos² = 1, so the mean square of a
position is 1/2 and its root 0.707. The factor is √(2 · 512) = 32. With a table of standard deviation 1/√512 it is
1.41, which is what √D was made for.""",
)
