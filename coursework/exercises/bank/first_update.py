"""Question: the rate of the first update when the schedule is stepped after it."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    import torch

    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=3.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 8))
    for _ in range(4):
        weight.grad = torch.ones(())
        optimizer.step()
        schedule.step()
    return -float(weight)


EXERCISE = Question(
    title="The order of two lines",
    what="""The optimizer is `SGD([weight], lr=3.0)`, and the schedule
`LambdaLR(optimizer, lambda step: min(1.0, step / 8))`: a warm-up over eight updates. As torch's documentation shows it,
each round calls `optimizer.step()` and then `schedule.step()`. The gradient is 1 in every round. How far has the weight
moved after four rounds, as a positive number?""",
    why="Many training loops waste their first update, and print for each update the rate of the next one.",
    difficulty=2,
    minutes=4,
    right=2.25,
    formula="""
rate = 3.0
warm_up = 8
updates = 4
rate * (updates * (updates - 1) / 2) / warm_up
""",
    compute=_compute,
    tolerance=1e-4,
    form="a number",
    wrong=[
        WrongAnswer(3.75, "what it would be if the first update ran at an eighth of the rate",
                    "What does the function of the schedule return for step 0, and when is it asked for it?"),
        WrongAnswer(12.0, "four updates without a warm-up", "Which factor does the schedule put on the rate?"),
        WrongAnswer(0.75, "the sum of the factors alone", "By which rate are the factors multiplied?"),
        WrongAnswer(1.25, "the sum of the factors alone, counted from step 1",
                    "By which rate are the factors multiplied, and for which step is the first of them?"),
        WrongAnswer(1.125, "the last step, or one round too few", "Do the updates before it move it too?"),
        WrongAnswer(1.5, "the step of the update that comes next", "Which updates have moved the weight so far?"),
        WrongAnswer(4.5, "four times the last step", "Which rate did the first of the updates have?"),
        WrongAnswer(6.0, "four times the step that comes next", "Which rate did the first of the updates have?"),
        WrongAnswer(5.25, "two updates further", "At which step does the schedule begin to count?"),
        WrongAnswer(0.0, "as if no update had moved anything", "Which rate do the second and the third update have?"),
    ],
    hints=(
        "LambdaLR sets a rate as soon as it is built: for which step?",
        "Write down the factor that is in force at each of the four calls of optimizer.step().",
        "factors = ____  # at the four updates\nmoved = sum(3.0 * factor for factor in factors)",
    ),
    explanation="""The schedule begins at step 0, where its factor is 0, and only counts on after an update: the four
updates run at 0, 1/8, 2/8 and 3/8 of the rate 3, and the weight moves by 0 + 0.375 + 0.75 + 1.125 = 2.25. A schedule
that counts updates from 1 and is asked before each of them moves it by 3.75.""",
)  # fmt: skip
