"""Question: how large the dot product of two random vectors is."""

import torch

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 200_000, 64, generator=generator)
    return float((query * key).sum(dim=-1).std())


EXERCISE = Question(
    title="How large is a dot product",
    what="""A query and a key have E = 64 components each. All components are independent random numbers with mean 0
and standard deviation 1. What is the standard deviation of the dot product of query and key?""",
    why="The answer is the reason for the division in scaled dot-product attention.",
    difficulty=2,
    minutes=4,
    right=8.0,
    formula="""
components = 64
sqrt(components)
""",
    compute=_compute,
    tolerance=0.02,
    form="a number",
    wrong=[
        WrongAnswer(
            64.0,
            "the variance of the dot product",
            "In which unit does a spread have to be stated to compare it with scores?",
        ),
        WrongAnswer(1.0, "the spread of one product, or of the score after scaling", "How many products are added up?"),
        WrongAnswer(
            0.125,
            "the factor that brings the spread back to 1",
            "Does adding 64 random numbers make the sum vary less or more than one of them?",
        ),
        WrongAnswer(
            0.0,
            "the mean of the dot product",
            "The mean says where scores lie; what says how far from each other they lie?",
        ),
        WrongAnswer(
            128**0.5,
            "the spread if both vectors added their variances",
            "What is the variance of the product of two independent numbers of variance 1?",
        ),
    ],
    hints=(
        "What is the variance of the product of two independent numbers with mean 0 and variance 1?",
        "Variances of independent numbers add up, standard deviations do not.",
        "variance = 64 * 1.0\nspread = ____",
    ),
    explanation="""Each product of two components has mean 0 and variance 1. There are E = 64 of them, independent, so
their sum has variance 64 and standard deviation √64 = 8. With scores that far apart one key takes most of the weight;
divided by √E their spread is 1 for every E.""",
)
