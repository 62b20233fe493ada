"""Question: from which length penalty on the longer of two finished texts wins."""

import math

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Bisect for the exponent at which both scores are equal."""
    low, high = 0.0, 3.0
    for _ in range(60):
        middle = (low + high) / 2
        if -5.6 / 8**middle > -4.0 / 4**middle:
            high = middle
        else:
            low = middle
    return high


EXERCISE = Question(
    title="Which text wins",
    kind="measure",
    what="""Beam search has finished two texts. The short one has 4 tokens and log-probability -4.0, the long one
8 tokens and log-probability -5.6. Both are scored by log-probability / length^α. At α = 0 the short one wins. Try
values of α, or solve for it: from which α on does the long one win? Three digits after
the point are enough.""",
    why="""Every further token makes a text less probable. So where the model is unsure over many tokens, a text that
stops early can win though it is worse. The exponent α decides how much of that is taken back.""",
    difficulty=2,
    minutes=5,
    right=math.log(1.4) / math.log(2),
    formula="""
short_length = 4
long_length = 8
cost_of_the_short_one = 4.0
cost_of_the_long_one = 5.6
log(cost_of_the_long_one / cost_of_the_short_one) / log(long_length / short_length)
""",
    compute=_compute,
    tolerance=0.002,
    form="a number, to three digits after the point",
    wrong=[
        WrongAnswer(1.0, "where scores are means, which is more than it takes", "Who wins at α = 0.75?"),
        WrongAnswer(0.0, "where nothing is divided", "Who wins at α = 0?"),
        WrongAnswer(
            math.log(2) / math.log(1.4), "the inverse of the exponent", "Who wins at your α, and who a little below it?"
        ),
        WrongAnswer(0.7, "5.6 / 8, what the long one costs for each token", "What is a length raised to?"),
        WrongAnswer(
            math.log(1.4) / math.log(13 / 9),
            "the answer for the form of Wu et al., (5 + length) / 6",
            "By what does the text divide: is there a 5 in it?",
        ),
        WrongAnswer(
            math.log(1.4) / math.log(8),
            "what comes out if only the score of the long one is divided",
            "By what is the score of the short one divided?",
        ),
        WrongAnswer(0.5, "close, but the long one wins a little earlier", "Who wins at α = 0.49?"),
        WrongAnswer(
            math.log(1.4), "the logarithm of the one quotient alone", "What does doubling the length do to the divisor?"
        ),
        WrongAnswer(1.4, "the quotient of the log-probabilities", "Which power of 2 is your number?"),
    ],
    hints=(
        "At the value in question, how do the two scores compare?",
        "Set the two scores equal and bring lengths to one side and log-probabilities to the other.",
        "alpha = math.log(5.6 / 4.0) / math.log(____)",
    ),
    explanation="""-5.6 / 8^α = -4.0 / 4^α means 2^α = 1.4, so α = ln 1.4 / ln 2 = 0.485. Scores are negative: dividing
by more brings them closer to zero, so a larger α favours the longer text. (The α = 0.6 of the 2017 paper belongs to
another form, ((5 + length) / 6)^α of Wu et al. 2016.)""",
)
