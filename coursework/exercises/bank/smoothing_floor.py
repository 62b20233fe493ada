"""Question: the lowest loss that smoothed labels allow."""

import math

from coursework.exercises.spec import Question, WrongAnswer

V, SMOOTHING = 1000, 0.1


def _compute():
    import torch

    wanted = torch.full((V,), SMOOTHING / V, dtype=torch.float64)
    wanted[7] += 1 - SMOOTHING
    return float(-(wanted * wanted.log()).sum())


EXERCISE = Question(
    title="The floor of a smoothed loss",
    what="""The labels are smoothed with 0.1, spread evenly over all 1000 tokens of the vocabulary, the right one
included. A model always knows the right token and says exactly the smoothed distribution. Which loss does it have, in
nats (natural logarithms), to three digits after the point?""",
    why="A smoothed training loss that settles above 1 may be perfect; it is not to be compared with a plain one.",
    difficulty=2,
    minutes=5,
    right=-0.9001 * math.log(0.9001) - 999 * 0.0001 * math.log(0.0001),
    formula="""
smoothing = 0.1
vocabulary = 1000
wrong_share = smoothing / vocabulary
right_share = 1 - smoothing + wrong_share
part_of_the_right_token = right_share * log(1 / right_share)
part_of_the_wrong_tokens = (vocabulary - 1) * wrong_share * log(1 / wrong_share)
part_of_the_right_token + part_of_the_wrong_tokens
""",
    compute=_compute,
    tolerance=0.0006,
    form="a number of nats, to three digits after the point",
    wrong=[
        WrongAnswer(0.0, "the floor without smoothing", "Is a wanted probability of 0.9 predicted at no cost?"),
        WrongAnswer(
            -math.log(0.9001),
            "the cost of the right token alone, at weight 1",
            "What do the other 999 tokens cost, each of which is wanted a little?",
        ),
        WrongAnswer(-0.9001 * math.log(0.9001), "the part of the right token",
                    "What do the other 999 tokens cost, each of which is wanted a little?"),
        WrongAnswer(0.1 * math.log(1000), "only the entropy of the even spread, times its weight",
                    "What does the right token cost, and how likely is one of the others?"),
        WrongAnswer(math.log(1000), "the loss of a model that knows nothing", "Does this model know the right token?"),
        WrongAnswer(0.3251, "the entropy of right against wrong, without asking which of the wrong ones",
                    "Into how many tokens is the tenth divided?"),
        WrongAnswer(-0.9 * math.log(0.9) - 0.1 * math.log(0.1 / 999),
                    "the floor if the tenth were spread over the wrong tokens only",
                    "Does the right token get a share of the tenth?"),
        WrongAnswer((-0.9001 * math.log(0.9001) - 0.0999 * math.log(0.0001)) / math.log(2), "the floor in bits",
                    "Which logarithm gives nats?"),
    ],
    hints=(
        "No prediction costs less than the right distribution itself. What is that cost called?",
        "It is an entropy: one token has probability 0.9 and its share of the tenth, the other 999 share the rest.",
        "right = 0.9 + 0.1 / 1000\nother = 0.1 / 1000\nfloor = -right * math.log(right) - ____",
    ),
    explanation="""The floor is the entropy of the smoothed label: -0.9001 ln 0.9001 - 999 · 0.0001 ln 0.0001 = 0.095 +
0.920 = 1.015 nats. It grows with the vocabulary: 1.36 for 32,000 tokens.""",
)  # fmt: skip
