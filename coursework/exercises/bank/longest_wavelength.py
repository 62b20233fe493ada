"""Question: how long the slowest sinusoid is."""

import math

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    from course_lib.positions import frequencies

    return 2 * math.pi / float(frequencies(16).min())


EXERCISE = Question(
    title="The slowest wave",
    what="""A table of sinusoids has width D = 16: its clock i, also called pair i, turns by 1 / 10000^(2i/16)
radians for each position. After how many positions has the slowest clock come round once?
Three digits are enough: 12,300 for 12,345. You may also write a formula, with `math.pi` where you need π.""",
    why="You will read that wavelengths run from 2π to 10000 · 2π. The answer says whether they do.",
    difficulty=2,
    minutes=4,
    right=2 * math.pi * 10000 ** (14 / 16),
    formula="""
width = 16
base = 10000
last_pair = width / 2 - 1
2 * pi * base ** (2 * last_pair / width)
""",
    compute=_compute,
    tolerance=0.0042,
    form="a number of positions",
    wrong=[
        WrongAnswer(
            2 * math.pi * 10000,
            "the limit for an infinite width",
            "The last pair of 16 columns has which i: is 2i then equal to 16?",
        ),
        WrongAnswer(
            10000 ** (14 / 16), "the positions for one radian, not for a whole turn", "How many radians has a turn?"
        ),
        WrongAnswer(
            2 * math.pi * 10000 ** (15 / 16),
            "what a separate frequency for the last column would give",
            "How many different frequencies do 16 columns have?",
        ),
        WrongAnswer(
            2 * math.pi * 10000 ** (7 / 16),
            "the wave of an exponent without the 2",
            "What is 2i for the last pair?",
        ),
        WrongAnswer(2 * math.pi, "the fastest wave", "In which pair does the angle grow most slowly?"),
        WrongAnswer(10000.0, "the base", "How many radians has the slowest pair turned after that many positions?"),
        WrongAnswer(
            2 * math.pi * 10000 ** (12 / 16),
            "the last wave but one",
            "How many pairs are there, and is the first of them number 0 or 1?",
        ),
        WrongAnswer(math.pi * 10000 ** (14 / 16), "half a turn", "How many radians has a whole turn?"),
    ],
    hints=(
        "How many pairs have 16 columns, and which number i has the last of them?",
        "A wavelength is a full turn divided by the radians a position. The last pair is not at the end of the range "
        "of exponents but one step before it.",
        "frequency = 1 / 10000 ** ____  # of the last pair\nwavelength = 2 * math.pi / frequency",
    ),
    explanation="""There are 8 pairs, i = 0 … 7, so the last exponent is 14/16, and the wavelength is
2π · 10000^(14/16) ≈ 19,869 positions: 68 % short of 62,832. In general it is 2π · 10000^((D−2)/D), which comes near
10000 · 2π only for large D.""",
)
