"""Question: which bucket a distance falls into."""

import torch

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    from course_lib.positions import relative_bucket

    return int(relative_bucket(torch.tensor(-40), bidirectional=True))


EXERCISE = Question(
    title="Which bucket",
    what="""A T5 encoder sorts distances into 32 buckets: 16 for keys that do not come later (buckets 0 to 15), 16 for
later keys. Of each 16, the first 8 are for the distances 0 to 7, one by one (no later key has distance 0). A distance d
from 8 on falls into bucket 8 + ⌊8 · ln(d / 8) / ln(128 / 8)⌋, at most 15. Which bucket does a key fall into that stands
40 positions **before** the query? You may let Python compute: `math.log` is ln, `math.floor` rounds down.""",
    why="Buckets are how a trained table with 32 rows can serve any distance.",
    difficulty=2,
    minutes=3,
    right=12,
    formula="""
distance = 40
near_distances = 8
buckets = 16
farthest_distance = 128
share = log(distance / near_distances) / log(farthest_distance / near_distances)
near_distances + floor((buckets - near_distances) * share)
""",
    compute=_compute,
    form="the number of a bucket",
    wrong=[
        WrongAnswer(28, "the bucket of a key 40 positions later", "Which half of the buckets is for earlier keys?"),
        WrongAnswer(4, "the count of wide buckets passed, without the near ones", "How many buckets come before 8?"),
        WrongAnswer(15, "the bucket of everything beyond 128", "Is 40 beyond the largest distance?"),
        WrongAnswer(13, "the bucket after rounding up", "What do the corners of ⌊ ⌋ do to 4.64?"),
        WrongAnswer(
            23,
            "the bucket of a causal decoder, where all 32 are for earlier keys",
            "How many are for earlier keys here?",
        ),
        WrongAnswer(10, "the bucket if wide buckets had equal widths", "Does a logarithm grow evenly?"),
        WrongAnswer(
            9,
            "the bucket without the factor 8 before the logarithm",
            "How many wide buckets are there, and what counts them?",
        ),
    ],
    hints=(
        "Is the distance one of the near ones or one of the far ones, and is the key earlier or later?",
        "The distance is 5 times 8, and the largest one 16 times 8: what decides is the fraction of the way, on a "
        "logarithmic scale.",
        "fraction = math.log(40 / 8) / math.log(____)\nbucket = 8 + math.floor(8 * fraction)",
    ),
    explanation="""ln 5 / ln 16 = 0.58, times 8 is 4.64, rounded down 4: bucket 12. It holds all distances from 32 to
45. The model cannot tell these apart by position, and it does not need to: near neighbours each have a bucket of
their own.""",
)
