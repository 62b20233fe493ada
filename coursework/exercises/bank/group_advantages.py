"""Exercise: how much better than its group each answer is."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def group_advantages(rewards):
    """rewards (B, G) of G answers to each of B questions -> advantages (B, G)"""
    centred = rewards - rewards.mean(dim=1, keepdim=True)  # (B, G) - (B, 1)
    return centred / (rewards.std(dim=1, keepdim=True) + 1e-4)


def _model(mean="group", spread="group", power=1, unbiased=True, eps=1e-4, sign=1, form="outside"):
    """The advantages whose settings are the misconceptions."""

    def advantages(rewards):
        centres = {
            "group": rewards.mean(1, keepdim=True),
            "batch": rewards.mean(),
            "answers": rewards.mean(0, keepdim=True),
            "none": torch.zeros_like(rewards[:1, :1]),
            "best": rewards.amax(1, keepdim=True),
            "others": (rewards.sum(1, keepdim=True) - rewards) / max(rewards.size(1) - 1, 1),
            "median": rewards.median(1, keepdim=True).values,
        }
        centred = sign * (rewards - centres[mean])
        if spread == "none":
            return centred
        correction = int(unbiased)
        if spread == "batch":
            width = rewards.std(correction=correction)
        else:
            width = rewards.std(1, keepdim=True, correction=correction)
        if form == "guarded":
            return torch.where(width > 0, centred / width, 0.0)
        if form == "at-least":
            return centred / width.clamp(min=1e-4)
        if form == "inside":
            return centred / (width.square() + eps).sqrt()
        return centred / (width**power + eps)

    return advantages


def _question_by_question(rewards):
    rows = [(row - row.mean()) / (row.std() + 1e-4) for row in rewards]
    return torch.stack(rows)


def _with_squares(rewards):
    G = rewards.size(1)
    centred = rewards - rewards.sum(dim=1, keepdim=True) / G
    variance = (centred**2).sum(dim=1, keepdim=True) / (G - 1)
    return centred / (variance.sqrt() + 1e-4)


def _with_course(rewards):
    from course_lib.training import group_advantages

    return group_advantages(rewards)


def _given(rows):
    return lambda: (torch.tensor(rows),)


def _drawn(B, G, seed, dtype=torch.float32, scale=1.0):
    return lambda: (normal(B, G, seed=seed, dtype=dtype, scale=scale, grad=False),)


def _sample(draw):
    B, G, dtype = draw.integer(1, 4), draw.integer(2, 7), draw.dtype()
    return (draw.normal(B, G, dtype=dtype, scale=draw.choice([0.5, 2.0]), grad=False),)


def _equal_rewards_say_nothing(advantages) -> str | None:
    found = advantages(torch.ones(2, 3))
    return None if (found == 0).all() else f"Three rewards of 1 gave the advantages {found[0].tolist()}."


def _a_group_sums_to_zero(advantages) -> str | None:
    sums = advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])).sum(1)
    if sums.abs().max() < 1e-4:
        return None
    return f"The advantages of one group sum to {sums[0]:.4f}, those of another to {sums[1]:.4f}."


def _questions_apart(advantages) -> str | None:
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    other = torch.tensor([[1.0, 0.0, 0.0], [5.0, 1.0, 1.0]])
    first, second = advantages(rows)[0], advantages(other)[0]
    if torch.allclose(first, second):
        return None
    return "Other rewards for the second question changed the advantages of the first."


EXERCISE = Exercise(
    title="Better than the group",
    what="""Write `group_advantages(rewards)`. Row b of `rewards` `(B, G)` holds the rewards of the G answers that were
drawn for question b. From each reward take away the mean of its own row, and divide by the standard deviation of its
own row plus 0.0001. The standard deviation has G - 1 in its denominator, which is what torch computes unless told
otherwise. A row of equal rewards gives zeros. G is at least 2.""",
    why="The mean of the group stands in for the value network of older methods: this is what the G of GRPO means.",
    difficulty=1,
    minutes=5,
    reference=group_advantages,
    model=_model,
    misconceptions=misconceptions("""
no-mean (mean="none"): divides the rewards without taking away their mean
    All answers to a question are right: which of them is better than the others?
mean-of-the-batch (mean="batch"): takes away the mean over all questions
    A question is so hard that one answer of eight is right: with what should that one be compared?
mean-over-questions (mean="answers"): takes the mean over the questions and not over the answers
    Which of the two dimensions numbers the answers to one question?
from-the-best (mean="best"): compares with the best answer of the group
    What do the advantages of one group sum to?
spread-of-the-batch (spread="batch"): divides by the deviation over all questions
    Should the answers to another question change the advantages of this one?
not-divided (spread="none"): takes the mean away and leaves it at that
    If all rewards are multiplied by ten, what should happen to the advantages?
variance (power=2): divides by the variance
    If all rewards are multiplied by ten, what should happen to the advantages?
divided-by-g (unbiased=False): has G in the denominator of the deviation
    For two rewards, 0 and 1, what is the deviation that the task asks for?
nothing-by-nothing (eps=0.0): divides by zero where all rewards of a group are equal
    What is the deviation of a group in which every answer is right?
sign-swapped (sign=-1): gives the better answers the lower advantage
    Is the advantage of the best answer of a group above zero?
from-the-others (mean="others"): compares each answer with the mean of the other answers
    Is an answer's own reward part of the mean of its row?
from-the-median (mean="median"): takes away the median
    What do the advantages of one group sum to?
small-number-inside-the-root (form="inside"): adds the small number to the variance
    For a deviation of 0.01, which divisor do you get, and which does the task ask for?
another-small-number (eps=1e-8): adds a number far below 0.0001 to the deviation
    Which number does the task add?
no-small-number (form="guarded"): adds nothing to the deviation and sets groups of equal rewards to zero by themselves
    For a deviation of 0.0001, by which number does the task divide?
at-least-the-small-number (form="at-least"): divides by the deviation, but by no less than 0.0001, where the task adds
    For a deviation of 0.0001, by which number does the task divide?
"""),
    cases=[
        Case("one question, two answers", _given([[1.0, 0.0]])),
        Case("two questions, four answers", _given([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])),
        Case("equal rewards in one group", _given([[0.5, 0.5, 0.5], [2.0, 0.0, 1.0]])),
        Case("rewards that are any numbers", _drawn(3, 5, seed=1)),
        Case("large rewards", _drawn(2, 4, seed=11, scale=10.0)),
        Case("float64", _drawn(4, 3, seed=21, dtype=torch.float64)),
        Case("rewards that differ by little", _drawn(2, 5, seed=31, scale=0.01)),
        Case("rewards that differ by less than 0.0001", _drawn(2, 5, seed=41, scale=5e-5)),
    ],
    properties=[
        Property("Where all answers are alike, no one is better.", _equal_rewards_say_nothing),
        Property("The advantages of a group sum to zero.", _a_group_sums_to_zero),
        Property("Answers are compared with those to the same question.", _questions_apart),
    ],
    alternatives=[
        Alternative("question by question", _question_by_question),
        Alternative("with the squares written out", _with_squares),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "With which other answers should an answer be compared: those to the same question, or all of the batch?",
        "`mean` and `std` take a dimension; with `keepdim=True` their results can be subtracted from the rewards and "
        "divide them.",
        """centred = rewards - rewards.mean(dim=1, keepdim=True)
return centred / ____""",
    ),
    sample=_sample,
    tries=("float64", "large", "shifted", "zeros", "repeated"),
    gradients=False,
)
