"""Question: where the similarity of sinusoids stops falling."""

import torch

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    from course_lib.positions import SinusoidalPositionalEncoding

    code = SinusoidalPositionalEncoding(512)(torch.arange(200)).double()
    similarity = code @ code[0]
    return int((similarity[1:] > similarity[:-1]).nonzero()[0]) + 1


EXERCISE = Question(
    title="Where similarity stops falling",
    kind="measure",
    what="""Make the sinusoids of width 512 for positions 0 to 199 (`SinusoidalPositionalEncoding` from
`course_lib.positions`) and take the dot product of each with that of position 0. What is the smallest distance k at
which the product is larger than at distance k − 1?""",
    why="Many texts say that the product falls with distance. It tells near from far only as long as it does.",
    difficulty=2,
    minutes=5,
    right=44,
    compute=_compute,
    form="a distance",
    wrong=[
        WrongAnswer(43, "the last distance up to which the product falls", "Is the product there larger than before?"),
        WrongAnswer(45, "one too many", "Does your list of differences start at distance 0 or 1?"),
        WrongAnswer(199, "the end of the range", "What is the first distance at which the product rises?"),
        WrongAnswer(200, "the end of the range", "What is the first distance at which the product rises?"),
        WrongAnswer(
            38,
            "the answer for frequencies without the 2 in their exponent",
            "How fast does the last pair of `SinusoidalPositionalEncoding` turn, and how fast does yours?",
        ),
        WrongAnswer(
            25,
            "the answer for width 256, and also for frequencies whose exponent has the 2 twice",
            "How wide are the codes of the question, and how fast does the last pair turn?",
        ),
        WrongAnswer(6, "the answer for width 64", "How wide are the codes of the question?"),
        WrongAnswer(12, "the answer for width 128", "How wide are the codes of the question?"),
        WrongAnswer(
            4, "the answer for width 16, or a difference taken twice", "How wide are the codes of the question?"
        ),
    ],
    hints=(
        "A falling list has only negative differences: where is the first positive one?",
        "Make a list of products by distance, and compare each entry with the one before it. Mind that the first "
        "comparison belongs to distance 1.",
        "similarity = code @ code[0]\nrises = similarity[1:] > similarity[:-1]\nk = int(rises.nonzero()[0]) + ____",
    ),
    explanation="""The product falls at every step up to distance 43 and first rises at 44. It is a sum of 256 cosines
of different frequencies, and such a sum does not fall for ever; narrower codes rise much earlier (at 6 for width
64).""",
)
