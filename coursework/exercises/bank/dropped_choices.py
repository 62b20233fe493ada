"""Question: how many choices a capacity factor drops."""

import math

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Fill the places of each expert one by one."""
    counts = [40, 30, 18, 14, 10, 8, 6, 2]
    places = math.ceil(1.25 * sum(counts) / len(counts))
    return sum(1 for count in counts for number in range(count) if number >= places)


EXERCISE = Question(
    title="Who gets no place",
    what="""A batch of 64 tokens chooses 2 of 8 experts each. The experts are chosen 40, 30, 18, 14, 10, 8, 6 and 2
times. The capacity factor is 1.25. How many of the 128 choices are dropped?""",
    why="A dropped choice costs a token half of its experts, and nothing reports it.",
    difficulty=2,
    minutes=4,
    right=30,
    formula="""
choices = 128
experts = 8
factor = 1.25
busiest = 40
second = 30
busiest + second - 2 * factor * choices / experts
""",
    compute=_compute,
    form="a number of choices",
    wrong=[
        WrongAnswer(
            40, "what a capacity factor of 1 would drop", "How many places does the factor add to an even share?"
        ),
        WrongAnswer(62, "the number for half as many places", "How many choices does a token make?"),
        WrongAnswer(
            0, "what is dropped if the choices may go to another expert", "Does a choice move on when it is late?"
        ),
        WrongAnswer(98, "the number of choices that are kept", "What happens to the others?"),
        WrongAnswer(2, "the number of experts that are too full", "How many choices come to them too late?"),
        WrongAnswer(20, "what the busiest expert alone drops", "Is it the only one with more choices than places?"),
    ],
    hints=(
        "How many places does each expert have?",
        "An even share is 128 / 8 choices, and the factor adds places. Count what exceeds them, expert by expert.",
        "places = 1.25 * 128 / 8\ndropped = (40 - places) + ____",
    ),
    explanation="""Each expert has 1.25 · 128 / 8 = 20 places. The two busiest have 20 and 10 choices too many, so 30
are dropped, nearly a quarter. There are 160 places for 128 choices: at an even load nothing would be dropped.""",
)
