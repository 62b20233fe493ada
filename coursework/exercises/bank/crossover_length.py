"""Question: the sequence length at which attention costs as much as all the weights of a layer."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from coursework.exercises.spec import Question, WrongAnswer


def _count(function):
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def _compute():
    """Count both parts on a device that computes nothing, and bisect the length."""
    d = 512
    with torch.device("meta"):
        square, up, down = torch.empty(d, d), torch.empty(d, 4 * d), torch.empty(4 * d, d)

        def attention_exceeds(n):
            x = torch.empty(n, d)
            products = _count(lambda: (x @ x.mT) @ x)
            weights = _count(lambda: ([x @ square for _ in range(4)], (x @ up) @ down))
            return products >= weights

        low, high = 1, 100 * d
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if attention_exceeds(middle) else (middle + 1, high)
    return low


EXERCISE = Question(
    title="Where attention overtakes the rest of the layer",
    kind="measure",
    what="""A Transformer layer of width d = 512 multiplies its n tokens by weight matrices: four of size d × d
(query, key, value, output) and two in the feed-forward part, d × 4d and 4d × d. Besides, attention forms two products
without weights: all queries with all keys, and the weights with all values, over all heads together n × d × n
multiply-adds each. At which n do these two products cost as many multiply-adds as all the weight matrices together?""",
    why="It says where the quadratic part begins to dominate. GPT-2 small (d = 768, at most 1024 tokens) is below.",
    difficulty=3,
    minutes=6,
    right=3072,
    formula="""
width = 512
inner_width = 4 * width
weights = 4 * width * width + 2 * width * inner_width
products = 2 * width
weights / products
""",
    compute=_compute,
    form="a number of tokens",
    wrong=[
        WrongAnswer(
            1024, "where attention overtakes its own four projections", "Which weights of the layer are not counted?"
        ),
        WrongAnswer(
            2048, "where attention overtakes the feed-forward part", "Which weights of the layer are not counted?"
        ),
        WrongAnswer(
            6144,
            "the length if only one of the two products is counted",
            "What is done with the weights after the softmax?",
        ),
        WrongAnswer(
            24_576,
            "eight times the length: where the products of one head of width 64 cost as much as all weights",
            "Over how many heads do the two products go?",
        ),
        WrongAnswer(
            384, "an eighth of the length", "Over all heads together, how many multiply-adds does a product take?"
        ),
        WrongAnswer(512, "where n equals d", "How often do n × d × n and n × d × d each occur?"),
        WrongAnswer(1536, "half of the length", "On which of the two sides did you count each multiply-add twice?"),
        WrongAnswer(6, "the factor and not yet the length", "What does the factor have to be multiplied by?"),
    ],
    hints=(
        "How many multiply-adds does one token cost in the weight matrices, and how many in the two products?",
        "A product of shapes (n, a) and (a, b) costs n × a × b multiply-adds. Add up both sides and divide by n × d.",
        "weights = 4 * n * d * d + 2 * n * d * 4 * d\nproducts = ____\n# equal at n = ...",
    ),
    explanation="""The weights cost 4nd² + 8nd² = 12nd² multiply-adds, the two products 2n²d. They are equal at n = 6d
= 3072. Below that length most multiply-adds of a layer are in its weights; the memory for the scores grows with n²
all the same.""",
)
