"""Exercise: the learning rate of the paper, as a function of the step."""

import math

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def noam_rate(step, d_model, warmup):
    """int (from 1), int, int -> float"""
    return d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)


def _model(first=0, pick=min, width=-0.5, rise=-1.5, fall=-0.5, warm=True):
    """The schedule whose settings are the misconceptions."""

    def rate(step, d_model, warmup):
        step = step + first
        if step == 0:
            return 0.0
        line = (step * warmup) ** rise if warm == "product" else step * warmup**rise
        curves = ([line] if warm else []) + ([step**fall] if fall else [])
        return d_model**width * pick(curves or [1.0])

    return rate


def _with_branches(step, d_model, warmup):
    if step < warmup:
        return step / (warmup * math.sqrt(warmup * d_model))  # a straight line up
    return 1 / math.sqrt(step * d_model)


def _from_the_peak(step, d_model, warmup):
    peak = (d_model * warmup) ** -0.5  # reached at step `warmup`
    return peak * min(step / warmup, math.sqrt(warmup / step))


def _with_course(step, d_model, warmup):
    from course_lib.training import noam_schedule

    return noam_schedule(step, d_model, warmup)


def _case(step, d_model, warmup):
    return lambda: (step, d_model, warmup)


def _sample(draw):
    return draw.integer(1, 10_000), draw.integer(1, 1024), draw.integer(1, 5000)


def _rises_in_a_line(rate) -> str | None:
    one, three = rate(1, 7, 11), rate(3, 7, 11)
    return (
        None
        if math.isclose(three, 3 * one)
        else f"With 11 steps of warm-up, step 1 has {one:.4g} and step 3 {three:.4g}."
    )


def _peaks_at_the_end_of_warmup(rate) -> str | None:
    rates = [rate(step, 7, 11) for step in range(1, 60)]
    at = 1 + rates.index(max(rates))
    return None if at == 11 else f"With 11 steps of warm-up, the highest rate is that of step {at}."


def _halves(rate) -> str | None:
    peak, later = rate(11, 7, 11), rate(44, 7, 11)
    if math.isclose(later, peak / 2):
        return None
    return f"With 11 steps of warm-up, step 44 has {later / peak:.4g} of the rate of step 11."


EXERCISE = Exercise(
    title="The learning rate of the paper",
    what="""Write `noam_rate(step, d_model, warmup)`: the rate of update number `step`, counted from 1. It rises in a
straight line up to step `warmup` and then falls with the inverse square root of the step; the formula is equation 3 of
the paper: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5).""",
    why="A wrong rate at step 1 or a peak at the wrong place raises no error; the model is only worse.",
    difficulty=1,
    minutes=5,
    reference=noam_rate,
    model=_model,
    misconceptions=misconceptions("""
counts-from-zero (first=-1): gives each update the rate of the update before it, so that the first one gets 0
    By how much do the weights move in the first update?
counts-from-two (first=1): gives each update the rate of the next one
    At which step is your rate highest?
larger-of-the-two (pick=max): takes the larger of the two terms
    Which of the two terms is the smaller one at step 1, and does your rate start low?
width-multiplies (width=0.5): gives wider models a higher rate
    With which sign does the width stand in the exponent?
width-left-out (width=0.0): does not look at the width
    What does your function return for widths 512 and 1024?
warmup-exponent (rise=-0.5): divides by the root of the warm-up alone, so that the two terms do not meet at its end
    At step = warmup, are your two terms equal?
plain-line (rise=-1.0): lets the first term rise to 1 at the end of warm-up, whatever the second one is there
    At step = warmup, are your two terms equal?
falls-too-fast (fall=-1.0): falls with the step itself, not with its root
    When the step has grown fourfold, to which share should the rate have fallen?
never-falls (fall=0.0): goes on rising after warm-up
    Which of your terms shrinks as the step grows?
no-warmup (warm=False): falls from the first step on
    Where does the number of warm-up steps enter your function?
power-of-the-product (warm="product", pick=min): takes the power of the step and the warm-up together
    To which of the two numbers does the exponent belong?
root-not-inverted (fall=0.5): has the square root of the step where its inverse belongs
    Does the second of the two numbers grow or shrink with the step?
"""),
    cases=[
        Case("the first step, width 5, 3 steps of warm-up", _case(1, 5, 3)),
        Case("within warm-up", _case(2, 5, 3)),
        Case("the last step of warm-up", _case(3, 5, 3)),
        Case("after warm-up", _case(20, 5, 3)),
        Case("no warm-up to speak of", _case(2, 7, 1)),
        Case("the base model of the paper, at its peak", _case(4000, 512, 4000)),
        Case("the base model, at its last step", _case(100_000, 512, 4000)),
        Case("the base model, at its first step", _case(1, 512, 4000)),
    ],
    properties=[
        Property("Until the end of warm-up the rate is proportional to the step.", _rises_in_a_line),
        Property("The rate is highest at the last step of warm-up.", _peaks_at_the_end_of_warmup),
        Property("At four times that step, half of the highest rate is left.", _halves),
    ],
    alternatives=[
        Alternative("with a branch", _with_branches),
        Alternative("as a share of its peak", _from_the_peak),
        Alternative("the course's own function", _with_course),
    ],
    gradients=False,
    hints=(
        "Two curves, one rising and one falling: which of them is the lower one early, and which one late?",
        "The factor of the width stands outside. Check that both curves give the same number at step = warmup.",
        "falling = step**-0.5\nrising = ____\nreturn d_model**-0.5 * min(falling, rising)",
    ),
    sample=_sample,
    equivalent_mutants={
        "min(step ** (-0.5), step * warmup ** (-1.5)) -> min(step * warmup ** (-1.5), step ** (-0.5))": (
            "the smaller of two numbers, in either order"
        ),
    },
)
