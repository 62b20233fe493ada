"""Question: the rate of the first update when the schedule is stepped after it."""

from course_lib.exercises.spec import Question, WrongAnswer


def _compute():
    import torch

    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=2.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
    for _ in range(3):
        weight.grad = torch.ones(())
        optimizer.step()
        schedule.step()
    return -float(weight)


EXERCISE = Question(
    id="first_update",
    title="The order of two lines",
    kind="predict",
    what="""The optimizer is `SGD([weight], lr=2.0)`, and the schedule
`LambdaLR(optimizer, lambda step: min(1.0, step / 4))`: a warm-up over four updates. As torch's documentation shows it,
each round calls `optimizer.step()` and then `schedule.step()`. The gradient is 1 in every round. How far has the weight
moved after three rounds?""",
    why="Many training loops waste their first update, and print for each update the rate of the next one.",
    difficulty=2,
    minutes=4,
    right=1.5,
    compute=_compute,
    tolerance=1e-4,
    form="a number",
    wrong=[
        WrongAnswer(3.0, "what it would be if the first update ran at a quarter of the rate",
                    "What does the function of the schedule return for step 0, and when is it asked for it?"),
        WrongAnswer(6.0, "three updates without a warm-up", "Which factor does the schedule put on the rate?"),
        WrongAnswer(0.75, "the sum of the factors alone", "By which rate are the factors multiplied?"),
        WrongAnswer(4.5, "one update further", "At which step does the schedule begin to count?"),
        WrongAnswer(0.0, "as if no update had moved anything", "Which rate do the second and the third update have?"),
    ],
    hints=(
        "LambdaLR sets a rate as soon as it is built: for which step?",
        "Write down the factor that is in force at each of the three calls of optimizer.step().",
        "factors = ____  # at the three updates\nmoved = sum(2.0 * factor for factor in factors)",
    ),
    explanation="""The schedule begins at step 0, where its factor is 0, and only counts on after an update: the three
updates run at 0, 1/4 and 2/4 of the rate 2, and the weight moves by 0 + 0.5 + 1 = 1.5. A schedule that counts updates
from 1 and is asked before each of them moves it by 3.""",
)  # fmt: skip
