"""Exercise: the larger base that slows the slowest clock down by a factor."""

import math

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def ntk_base(base, factor, width):
    """float, float, int (even) -> float: base of a last pair `factor` times slower"""
    last = (width - 2) / width  # the exponent of the slowest pair
    return base * factor ** (1 / last)


def _model(exponent="right", inside=False, sign=1):
    """The base whose settings are the misconceptions."""

    def new_base(base, factor, width):
        power = (
            sign
            * {
                "right": width / (width - 2),
                "one": 1.0,
                "turned": (width - 2) / width,
                "pairs": (width / 2) / (width / 2 - 2),
                "index": 1 / (width / 2 - 1),
                "next": width / (width - 1),
                "second": 2 / width,
                "width": float(width - 2),
            }[exponent]
        )
        return (base * factor) ** power if inside else base * factor**power

    return new_base


def _by_pairs(base, factor, width):
    n_pairs = width // 2
    return base * factor ** (n_pairs / (n_pairs - 1))


def _by_logarithms(base, factor, width):
    slowest = -math.log(base) * (width - 2) / width  # logarithm of its speed
    wanted = slowest - math.log(factor)
    return math.exp(-wanted * width / (width - 2))


def _by_solving(base, factor, width):
    speed = base ** (-(width - 2) / width) / factor  # what the slowest pair should have
    return speed ** (-width / (width - 2))


def _case(base, factor, width):
    return lambda: (base, factor, width)


def _sample(draw):
    base = draw.choice([100.0, 500.0, 10_000.0, 500_000.0])
    return base, draw.choice([1.0, 1.5, 2.0, 4.0, 8.0]), 2 * draw.integer(3, 64)


def _slowest_is_slower_by_the_factor(ntk_base) -> str | None:
    new = ntk_base(10_000.0, 4.0, 10)
    ratio = (10_000.0 / new) ** (8 / 10)
    if math.isclose(ratio, 1 / 4, rel_tol=1e-6):
        return None
    return f"With base 10000, factor 4 and width 10, the slowest pair turns {ratio:.4g} times as fast as before."


def _no_factor_no_change(ntk_base) -> str | None:
    new = ntk_base(500.0, 1.0, 6)
    return None if math.isclose(new, 500.0, rel_tol=1e-9) else f"With the factor 1, the base 500 became {new:.4g}."


EXERCISE = Exercise(
    title="A larger base",
    what="""Write `ntk_base(base, factor, width)`. Pair i of a head of `width` numbers turns by base^(−2i / width)
radians for each position, and its last pair is i = width / 2 − 1. Return the new base with which the *last* pair turns
exactly `factor` times slower than with the old one. `width` is at least 4.""",
    why="This number is what stands as `rope_theta` in the config of a model whose context was extended in this way.",
    difficulty=2,
    minutes=8,
    reference=ntk_base,
    model=_model,
    misconceptions=misconceptions("""
base-times-factor (exponent="one"): multiplies the base by the factor itself
    The last pair's speed is the base to which power: −1, or a little less?
exponent-turned-over (exponent="turned"): raises the factor to the exponent of the last pair and not to one over it
    If x to the power 0.8 has to grow fourfold, does x grow by more than four times or by less?
pairs-for-width (exponent="pairs"): puts the number of pairs where the formula has the number of dimensions
    Does the exponent 2i / width count pairs or dimensions in its lower half?
one-dimension-less (exponent="next"): gives the last pair the exponent (width − 1) / width
    What is 2i for i = width / 2 − 1?
second-pair (exponent="second"): raises the factor to the power 2 / width
    Which pair has the exponent 2 / width, a fast one or the slowest?
not-divided-by-width (exponent="width"): raises the factor to the power width − 2
    By what is 2i divided in the exponent of a speed?
base-inside (inside=True): raises the old base to the power as well
    With the factor 1, which base should come out?
smaller-base (sign=-1): makes the base smaller
    Does a larger base make the clocks slower or faster?
index-for-exponent (exponent="index"): takes the number of the last pair for its exponent
    By what is the number of a pair multiplied in the exponent of the base?
"""),
    cases=[
        Case("base 100, factor 4, width 6", _case(100.0, 4.0, 6)),
        Case("base 10000, factor 2, width 10", _case(10_000.0, 2.0, 10)),
        Case("no change wanted", _case(500.0, 1.0, 8)),
        Case("base 10000, factor 4, width 16", _case(10_000.0, 4.0, 16)),
        Case("a head of Llama, factor 8", _case(10_000.0, 8.0, 128)),
    ],
    properties=[
        Property("The last pair turns exactly `factor` times slower.", _slowest_is_slower_by_the_factor),
        Property("The factor 1 changes nothing.", _no_factor_no_change),
    ],
    alternatives=[
        Alternative("counting pairs", _by_pairs),
        Alternative("with logarithms", _by_logarithms),
        Alternative("from the speed that is wanted", _by_solving),
    ],
    gradients=False,
    hints=(
        "What is the speed of the last pair before, and what should it be afterwards?",
        "Write the old and the new speed of the last pair as powers of the two bases, set one equal to the other "
        "divided by the factor, and take the root that leaves the new base alone.",
        "last = (width - 2) / width  # the exponent of the slowest pair\nreturn base * factor ** ____",
    ),
    sample=_sample,
)
