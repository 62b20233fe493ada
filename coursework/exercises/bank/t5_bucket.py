"""Exercise: the buckets of T5's relative positions."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers


def t5_bucket(offsets, bidirectional):
    """integers (key position - query position) of any shape, bool
    -> int64 buckets 0 to 31 of the same shape"""
    if bidirectional:
        count, start = 16, 16 * (offsets > 0)  # the upper half is for later keys
        distance = offsets.abs()
    else:
        count, start = 32, 0
        distance = (-offsets).clamp(min=0)  # later keys are hidden anyway
    exact = count // 2
    ratio = torch.log(distance.clamp(min=1) / exact) / math.log(128 / exact)
    far = exact + ((count - exact) * ratio).long()
    return start + torch.where(distance < exact, distance, far.clamp(max=count - 1))


def _model(
    sign="right", halves="upper-later", clamp="top", base="ratio", exact_share=2, rounding="floor", causal="zero"
):
    """Buckets whose settings are the misconceptions."""

    def bucket(offsets, bidirectional):
        d = -offsets if sign == "reversed" else offsets
        start = torch.zeros_like(d)
        count = 32
        if bidirectional:
            count = 32 if halves == "none" else 16
            if halves == "upper-later":
                start = 16 * (d > 0)
            elif halves == "zero-is-later":
                start = 16 * (d >= 0)
            distance = d.abs()
        else:
            distance = d.abs() if causal == "abs" else (-d).clamp(min=0)
        exact = 8 if exact_share == "eight" else count // exact_share
        safe = distance.clamp(min=1).double()
        if base == "ratio":
            ratio = torch.log(safe / exact) / math.log(128 / exact)
        elif base == "whole":
            ratio = torch.log(safe) / math.log(128)
        elif base == "linear":
            ratio = (safe - exact) / (128 - exact)
        scaled = (count - exact) * ratio
        far = exact + (scaled.floor() if rounding == "floor" else scaled.round()).long()
        if clamp == "top":
            far = far.clamp(max=count - 1)
        elif clamp == "count":
            far = far.clamp(max=count)
        return start + torch.where(distance < exact, distance, far)

    return bucket


def _with_course(offsets, bidirectional):
    from course_lib.positions import relative_bucket

    return relative_bucket(offsets, bidirectional=bidirectional)


def _by_table(offsets, bidirectional):
    count = 16 if bidirectional else 32
    exact = count // 2
    table = list(range(exact))
    for distance in range(exact, 129):
        table.append(min(count - 1, exact + int((count - exact) * math.log(distance / exact) / math.log(128 / exact))))
    table = torch.tensor(table)
    distance = offsets.abs() if bidirectional else (-offsets).clamp(min=0)
    return table[distance.clamp(max=128)] + (16 * (offsets > 0) if bidirectional else 0)


def _with_loop(offsets, bidirectional):
    found = []
    for offset in offsets.flatten().tolist():
        count = 16 if bidirectional else 32
        distance = abs(offset) if bidirectional else max(0, -offset)
        exact = count // 2
        if distance < exact:
            bucket = distance
        else:
            steps = math.log(distance / exact) / math.log(128 / exact) * (count - exact)
            bucket = min(exact + math.floor(steps), count - 1)
        found.append(bucket + (16 if bidirectional and offset > 0 else 0))
    return torch.tensor(found).view_as(offsets)


def _safe(offsets, bidirectional):
    """Move distances off the limits of buckets that are whole numbers, where rounding would decide."""
    limits = {16, 32, 64, 128} if bidirectional else {32, 64, 128}
    for limit in limits:
        offsets = torch.where(offsets.abs() == limit, offsets + 1, offsets)
    return offsets


def _case(offsets, bidirectional):
    return lambda: (torch.tensor(offsets), bidirectional)


@maker
def _table(T, S, bidirectional):
    return _safe(torch.arange(S) - torch.arange(T)[:, None], bidirectional), bidirectional


def _sample(draw):
    bidirectional = draw.boolean()
    offsets = draw.integers(draw.integer(1, 4), draw.integer(1, 6), low=-200, high=200)
    return _safe(offsets, bidirectional), bidirectional


def _in_range(t5_bucket) -> str | None:
    offsets = _safe(integers(50, low=-500, high=500, seed=5), True)
    for bidirectional in (True, False):
        found = t5_bucket(offsets, bidirectional)
        if found.min() < 0 or found.max() > 31:
            worst = int(found.max() if found.max() > 31 else found.min())
            return f"Far distances give bucket {worst}; the table has rows 0 to 31."
    return None


def _sides_differ(t5_bucket) -> str | None:
    before, after = t5_bucket(torch.tensor([-3]), True), t5_bucket(torch.tensor([3]), True)
    return f"A key 3 before and a key 3 after both fall into bucket {int(before)}." if before == after else None


EXERCISE = Exercise(
    title="Sort distances into buckets",
    what="""Write `t5_bucket(offsets, bidirectional)` for 32 buckets and a largest distance of 128. `offsets` are key
position minus query position. In an encoder (`bidirectional`) keys that do not come later share buckets 0 to 15 and
later ones 16 to 31; in a decoder all 32 are for earlier keys, and later keys, hidden anyway, fall into bucket 0. Of
`count` buckets on a side the first `count // 2`, call it m, hold one distance each. A distance d from m on falls into
m + ⌊(count - m) · ln(d / m) / ln(128 / m)⌋, at most `count - 1`. Where rounding would decide, because what is rounded
down is a whole number above 0, no distance is tried.""",
    why="""T5 has no other notion of order: one trained number for each bucket and head is added to the scores. Loading
its weights with one bucket wrong gives a model that works a little worse, without a word.""",
    difficulty=3,
    minutes=12,
    reference=t5_bucket,
    model=_model,
    misconceptions=misconceptions("""
sign-reversed (sign="reversed"): takes earlier keys for later ones
    Is key position minus query position positive for a later key, or negative?
no-halves (halves="none"): gives an encoder all 32 buckets for both directions together
    Can your buckets tell the word before from the word after?
directions-alike (halves="same"): gives both directions the same sixteen buckets
    Can your buckets tell the word before from the word after?
zero-is-later (halves="zero-is-later"): counts a token itself among the later keys
    Into which half falls the offset 0?
unbounded (clamp="none"): lets far distances run past the last bucket
    Into which bucket falls a distance of 1000?
one-past-the-end (clamp="count"): lets far distances fall one past the last bucket of their side
    With 16 buckets on a side, which is the last?
logarithm-from-one (base="whole"): measures the logarithm from distance 1
    What should the logarithmic part give at the first distance that it is used for?
linear (base="linear"): makes all far buckets equally wide
    Should the step from 100 to 101 matter as much as the one from 10 to 11?
rounded (rounding="nearest"): rounds to the nearest bucket
    What do the corners ⌊ ⌋ do to 1.6?
quarter-exact (exact_share=4): holds only a quarter of the buckets for single distances
    What part of the buckets holds one distance each?
later-keys-counted (causal="abs"): sorts later keys of a decoder by their distance
    Into which bucket do later keys of a decoder fall?
eight-exact (exact_share="eight"): gives eight distances a bucket of their own in the decoder as well
    How many buckets has one side in a decoder, and what is half of that?
"""),
    cases=[
        Case("an encoder, near keys", _case([-2, -1, 0, 1, 2], True)),
        Case("a decoder, near keys", _case([-3, -1, 0, 1, 5], False)),
        Case("an encoder, keys up to 100 away", _case([[-100, -40, -20, -9], [9, 20, 40, 100]], True)),
        Case("a decoder, keys up to 100 away", _case([-100, -70, -50, -40, -20, -17], False)),
        Case("an encoder, beside the limit of the last bucket", _case([-91, -90, 90, 91], True)),
        Case("an encoder, beyond the largest distance", _case([-1000, -140, 140, 1000], True)),
        Case("a decoder, beyond the largest distance", _case([-1000, -140, 140], False)),
        Case("all offsets of 11 queries and 13 keys, encoder", _table(11, 13, True)),
        Case("all offsets of 45 queries and 3 keys, decoder", _table(45, 3, False)),
    ],
    properties=[
        Property("Every bucket is a row of the table.", _in_range),
        Property("In an encoder earlier and later keys never share a bucket.", _sides_differ),
    ],
    alternatives=[
        Alternative("the course's own function", _with_course),
        Alternative("by a table of all distances", _by_table),
        Alternative("offset by offset", _with_loop),
    ],
    gradients=False,
    hints=(
        "Before any logarithm: how many buckets has the side that a key lies on, and how far away is it?",
        "Both directions follow one rule for `count` buckets; only `count`, the distance and the start differ. Clamp "
        "the distance at 1 before its logarithm: torch computes both branches of a `where`.",
        """exact = count // 2
ratio = torch.log(distance.clamp(min=1) / exact) / ____
far = exact + ((count - exact) * ratio).long()
return start + torch.where(distance < exact, distance, far.clamp(max=count - 1))""",
    ),
    sample=_sample,
    tries=("repeated", "far"),
    equivalent_mutants={
        "distance < exact -> distance <= exact": "at m itself both rules give m",
        "distance.clamp(min=1) -> distance": "the logarithm of 0 is computed but not taken",
        "1 -> 2": "at distance 1 the logarithm is computed but not taken",
        "1 -> 0": "the logarithm of 0 is computed but not taken",
    },
)
