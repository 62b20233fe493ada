"""Question: the loss of a model before its first update."""

import math

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    import torch

    logits = torch.full((5, 360), 0.7, dtype=torch.float64)
    return float(torch.nn.functional.cross_entropy(logits, torch.arange(5)))


EXERCISE = Question(
    title="The loss before the first update",
    what="""A model over a vocabulary of 360 tokens has just been built, and prefers no token. What loss per token, in
nats, should you see on the first batch, to three digits after the point?""",
    why="It is the cheapest test of a training loop: a first loss far above it means an initialisation out of scale.",
    difficulty=1,
    minutes=2,
    right=math.log(360),
    formula="""
vocabulary = 360
log(vocabulary)
""",
    compute=_compute,
    tolerance=1.1e-4,
    form="a number of nats",
    wrong=[
        WrongAnswer(math.log2(360), "the same in bits", "Which logarithm gives nats?"),
        WrongAnswer(math.log10(360), "the same with the logarithm of base ten", "Which logarithm gives nats?"),
        WrongAnswer(math.log(359), "the logarithm of 359", "Is the right token one of the 360?"),
        WrongAnswer(1 - 1 / 360, "the probability of all other tokens", "What is the cost of the right one?"),
        WrongAnswer(1.0, "what a squared error might be", "What is the negative logarithm of the probability 1/360?"),
        WrongAnswer(1 / 360, "the probability of each token", "What is the cost of an event of that probability?"),
        WrongAnswer(360.0, "the number of tokens itself, the perplexity", "Which function of it is the loss in nats?"),
        WrongAnswer(0.0, "the loss of a perfect model", "Does a model know anything before its first update?"),
    ],
    hints=(
        "Which probability does each of 360 tokens get from a model that prefers none?",
        "The loss is the negative logarithm of the probability given to the right token.",
        "probability = 1 / 360\nloss = ____",
    ),
    explanation="""Each token has probability 1/360, which costs ln 360 = 5.886 nats. A real model starts a little above
it, since its random logits do prefer some tokens.""",
)
