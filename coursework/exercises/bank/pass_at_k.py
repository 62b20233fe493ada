"""Exercise: the chance that one of k answers is right, from n of them."""

import math

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def pass_at_k(n, right, k):
    """n answers, so many right, k at most n -> chance of a right one among k"""
    return 1 - math.comb(n - right, k) / math.comb(n, k)


def _model(way="chosen"):
    """The estimate whose setting is the misconception."""

    def estimate(n, right, k):
        if way == "powers":
            return 1 - (1 - right / n) ** k
        if way == "share":
            return right / n
        if way == "added":
            return min(1.0, k * right / n)
        if way == "all":
            return math.comb(right, k) / math.comb(n, k)
        if way == "not all":
            return 1 - math.comb(right, k) / math.comb(n, k)
        if way == "none right":
            return math.comb(n - right, k) / math.comb(n, k)
        if way == "one":
            return right * math.comb(n - right, k - 1) / math.comb(n, k)
        if way == "fixed wrong":
            return 1 - math.prod((n - right) / (n - taken) for taken in range(k))
        if way == "first":
            return float(right > 0)
        return 1 - math.comb(n - right, k) / math.comb(n, k)

    return estimate


def _one_after_the_other(n, right, k):
    all_wrong = 1.0
    for taken in range(k):
        all_wrong *= max(0, n - right - taken) / (n - taken)  # the next one is wrong, too
    return 1 - all_wrong


def _in_their_order(n, right, k):
    return 1 - math.perm(n - right, k) / math.perm(n, k)


def _counting_the_right(n, right, k):
    ways = sum(math.comb(right, hits) * math.comb(n - right, k - hits) for hits in range(1, k + 1))
    return ways / math.comb(n, k)


def _with_course(n, right, k):
    from course_lib.training import pass_at_k

    return pass_at_k(n, right, k)


def _case(n, right, k):
    return lambda: (n, right, k)


def _sample(draw):
    n = draw.integer(1, 40)
    return n, draw.integer(0, n), draw.integer(1, n)


def _one_of_two(estimate) -> str | None:
    found = estimate(2, 1, 2)
    return None if abs(found - 1) < 1e-9 else f"Of two answers one is right, both are taken: the chance is {found:.4f}."


def _one_is_the_share(estimate) -> str | None:
    found = estimate(5, 2, 1)
    return None if abs(found - 0.4) < 1e-9 else f"Of five answers two are right, one is taken: it is {found:.4f}."


EXERCISE = Exercise(
    title="pass@k",
    what="""Write `pass_at_k(n, right, k)`. For one question, `n` answers were drawn, and `right` of them are right.
Somebody takes `k` different ones of these `n` (k is at least 1 and at most n), every choice of k being equally likely.
Return the probability that at least one of the k is right, exactly, as a float.""",
    why="Papers on code and mathematics report this number; a shortcut for it is too low.",
    difficulty=2,
    minutes=8,
    reference=pass_at_k,
    model=_model,
    misconceptions=misconceptions("""
with-replacement (way="powers"): may take the same answer twice
    Of two answers one is right, and both are taken: how sure is a right one?
share-of-right (way="share"): returns the share of right answers, whatever k is
    Should a second try not help?
shares-added (way="added"): adds up the chances of the single tries
    If both of two tries are right, how often does your sum count that?
all-must-be-right (way="all"): asks that all k are right
    How many of the k have to be right?
one-must-be-wrong (way="not all"): asks that at least one is wrong
    If every answer is right, what is your result?
all-wrong (way="none right"): returns the chance that none is right
    If every answer is right, what is your result?
any-right (way="first"): returns 1 as soon as one of the n is right
    Of ten answers one is right, and one is taken: how likely is it the right one?
exactly-one (way="one"): asks for exactly one right answer
    What if two of the k are right?
"""),
    cases=[
        Case("2 answers, 1 right, 1 taken", _case(2, 1, 1)),
        Case("5 answers, 2 right, 1 taken", _case(5, 2, 1)),
        Case("5 answers, 2 right, 2 taken", _case(5, 2, 2)),
        Case("6 answers, 4 right, 3 taken", _case(6, 4, 3)),
        Case("none right", _case(7, 0, 3)),
        Case("all right", _case(4, 4, 2)),
        Case("all taken", _case(8, 1, 8)),
        Case("64 answers, 3 right, 16 taken", _case(64, 3, 16)),
    ],
    properties=[
        Property("Where all are taken and one is right, it is found.", _one_of_two),
        Property("For k = 1 it is the share of right answers.", _one_is_the_share),
    ],
    alternatives=[
        Alternative("one after the other", _one_after_the_other),
        Alternative("counting ordered choices", _in_their_order),
        Alternative("adding up the ways with a right one", _counting_the_right),
        Alternative("the course's own function", _with_course),
    ],
    gradients=False,
    hints=(
        "Which is easier to count: the choices that hold a right answer, or those that hold none?",
        "`math.comb(m, k)` is the number of ways to take k of m things, and 0 if there are fewer than k. How many ways "
        "take wrong ones only?",
        "return 1 - ____ / math.comb(n, k)",
    ),
    sample=_sample,
)
