"""Question: what attention returns when the keys cannot be told apart."""

import torch

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    query, key = torch.tensor([0.7, -1.3, 2.1]), torch.tensor([1.5, 0.4, -0.8])
    weights = (key.expand(4, 3) @ query).softmax(dim=0)
    return float(weights @ torch.tensor([2.0, 4.0, 9.0, 13.0]))


EXERCISE = Question(
    title="When all keys are equal",
    what="""Four entries have exactly the same key. Their values are the numbers 2, 4, 9 and 13. A query, which is not
zero, looks them up by dot products and a softmax. Which number does it get?""",
    why="It shows what attention does when it has no reason to prefer one token, as in a model before training.",
    difficulty=1,
    minutes=2,
    right=7.0,
    formula="""
entries = 4
(2 + 4 + 9 + 13) / entries
""",
    compute=_compute,
    tolerance=1e-4,
    form="a number",
    wrong=[
        WrongAnswer(0.0, "what a dictionary that finds nothing would say", "Can all weights of a softmax be zero?"),
        WrongAnswer(28.0, "the sum of the values", "What do the four weights of a softmax sum to?"),
        WrongAnswer(13.0, "the largest value, or the last one", "Did the values have any say in the weights?"),
        WrongAnswer(2.0, "the first value", "What gives the first entry a larger weight than the second?"),
        WrongAnswer(6.5, "the median of the values", "How is an average formed from weights that are all equal?"),
        WrongAnswer(0.25, "the weight of each entry", "What is mixed with these weights?"),
    ],
    hints=(
        "If the four keys are the same vector, what do their four scores have in common?",
        "A softmax sees only how the scores differ from each other. Four equal scores leave it no choice but one.",
        "weights = ____  # the same number four times\nanswer = sum(w * v for w, v in zip(weights, (2, 4, 9, 13)))",
    ),
    explanation="""Equal keys give equal scores, whatever the query is, and a softmax of four equal scores is 1/4 four
times. The answer is the plain mean, (2 + 4 + 9 + 13) / 4 = 7. Attention without a preference is averaging.""",
)
