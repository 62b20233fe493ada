"""Exercise: how far back a stack of layers with windows can look."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def window_reach(windows, length):
    """list of int or None, int -> int: how far back the last position reads"""
    if None in windows:
        return length - 1
    return min(length - 1, sum(window - 1 for window in windows))


def _model(count="less", combine="sum", everything="any", cap=True, own=0):
    """A reach whose settings are the misconceptions."""

    def reach(windows, length):
        widths = [window for window in windows if window is not None]
        sees_all = {
            "any": len(widths) < len(windows),
            "every": not widths,
            "top": bool(windows) and windows[-1] is None,
            "never": False,
        }[everything]
        if sees_all:
            return length - 1 + own
        steps = [window - 1 if count == "less" else window for window in widths]
        product = 1
        for width in widths:
            product *= width
        found = {
            "sum": sum(steps),
            "widest": max(steps, default=0),
            "top": steps[-1] if steps else 0,
            "product": product - 1 if count == "less" else product,
        }[combine]
        return (min(length - 1, found) if cap else found) + own

    return reach


def _layer_by_layer(windows, length):
    earliest = length - 1  # what the last position can read, before the first layer
    for window in windows:
        earliest = 0 if window is None else max(0, earliest - (window - 1))
    return length - 1 - earliest


def _with_masks(windows, length):
    import torch

    from course_lib.masks import causal_mask, sliding_window_mask

    paths = torch.eye(length)
    for window in windows:
        mask = causal_mask(length) if window is None else sliding_window_mask(length, window=window)
        paths = ((mask.float() @ paths) > 0).float()
    return length - 1 - int(paths[-1].nonzero()[0])


def _with_whole_windows(windows, length):
    widths = [length if window is None else window for window in windows]
    return min(length - 1, sum(widths) - len(widths))


def _case(windows, length):
    return lambda: (list(windows), length)


def _sample(draw):
    windows = [draw.choice([1, 2, 3, 5, 8, None]) for _ in range(draw.integer(1, 5))]
    return windows, draw.integer(1, 30)


def _a_window_of_one_adds_nothing(window_reach) -> str | None:
    with_it, without = window_reach([4, 1, 4], 50), window_reach([4, 4], 50)
    if with_it == without:
        return None
    return f"Windows 4, 1, 4 reach {with_it} positions back, windows 4, 4 reach {without}."


def _never_before_the_start(window_reach) -> str | None:
    found = window_reach([9, 9], 5)
    return None if found <= 4 else f"Of 5 positions, the last one is said to read {found} positions back."


EXERCISE = Exercise(
    title="How far windows reach",
    what="""Write `window_reach(windows, length)`. A causal decoder has one layer for each entry of `windows`: a number
says how many latest positions a query of that layer sees, its own position included, and `None` says that it sees all
earlier ones. The text has `length` positions. Return how many positions back the *last* position can get information
from, through all layers together: a whole number, and 0 for a decoder without layers.""",
    why="A stack with windows is blind beyond this number, however long it is trained.",
    difficulty=2,
    minutes=8,
    reference=window_reach,
    model=_model,
    misconceptions=misconceptions("""
whole-windows (count="all"): adds up whole windows, the own position included
    A window of 1 shows a query only itself: how many positions back does such a layer lead?
widest-layer (combine="widest"): takes the reach of the widest layer alone
    What does a position know, after the first layer, of the positions in its window?
last-layer (combine="top"): looks at the last layer alone
    What does a position know, after the first layer, of the positions in its window?
windows-multiplied (combine="product"): multiplies the windows
    From the earliest position in one window, how many further positions back does the next layer lead?
global-ignored (everything="never"): gives a layer that sees everything no reach at all
    What may a query see where the entry is None?
all-must-be-global (everything="every"): lets a layer that sees everything count only if all layers do
    If one layer sees all earlier positions, does it matter what the others see?
top-must-be-global (everything="top"): lets a layer that sees everything count only if it is the last one
    If the first layer has brought everything to a position, can a later layer take it away?
before-the-start (cap=False): looks back beyond the start of the text
    How far back can the last of five positions look at most?
own-position-counted (own=1): counts the own position as one position back
    With a single window of 1, how many positions back can a position look?
"""),
    cases=[
        Case("one layer, a window of 3", _case([3], 10)),
        Case("two layers, windows of 3 and 4", _case([3, 4], 20)),
        Case("a window of 1 among others", _case([1, 5, 2], 20)),
        Case("three equal windows", _case([4, 4, 4], 30)),
        Case("a text shorter than the windows together", _case([6, 6], 8)),
        Case("the last layer sees everything", _case([3, 3, None], 25)),
        Case("the first layer sees everything", _case([None, 3], 25)),
        Case("no layers", _case([], 7)),
        Case("all layers see everything", _case([None, None], 12)),
    ],
    properties=[
        Property("A layer with a window of 1 adds nothing.", _a_window_of_one_adds_nothing),
        Property("Nothing stands before the start of the text.", _never_before_the_start),
    ],
    alternatives=[
        Alternative("layer by layer, from the last position", _layer_by_layer),
        Alternative("counted in the masks", _with_masks),
        Alternative("with the length as the widest window", _with_whole_windows),
    ],
    gradients=False,
    hints=(
        "From the last position, how far back does one layer lead, and where does the next layer begin?",
        "A window of w leads w − 1 positions back, layers add up, one layer without a window leads to the start, and "
        "nothing leads before it.",
        """if None in windows:
    return length - 1
return min(length - 1, ____)""",
    ),
    sample=_sample,
    equivalent_mutants={
        "min(length - 1, sum((window - 1 for window in windows))) -> "
        "min(sum((window - 1 for window in windows)), length - 1)": "the smaller of two numbers, in either order"
    },
)
