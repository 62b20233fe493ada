"""Question: how much of the attention a window computes."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Count them in the pattern itself."""
    from course_lib.variants.efficient import SlidingWindowAttention

    return int(SlidingWindowAttention(512).pattern(8192, causal=True).sum())


EXERCISE = Question(
    title="Count the visible pairs",
    kind="measure",
    what="""A causal sequence of 8192 positions, each of which sees the 512 latest, itself included. Run something that
counts, or work it out: how many pairs of query and key are visible in all?""",
    why="""The products of attention cost 4 · E operations for each visible pair and head. A pattern is worth what it
hides, and the start of a sequence is not like the rest.""",
    difficulty=2,
    minutes=4,
    right=4_063_488,
    formula="""
length = 8192
window = 512
length * window - window * (window - 1) / 2
""",
    compute=_compute,
    form="a number of pairs",
    wrong=[
        WrongAnswer(4_194_304, "8192 times 512, as if the first rows were full", "What does query 0 see?"),
        WrongAnswer(33_558_528, "the count of a causal mask without a window", "How far back may the last query look?"),
        WrongAnswer(67_108_864, "the count of all pairs", "Which half does causality hide?"),
        WrongAnswer(8_118_784, "the count of a window that reaches to both sides", "May a query see later keys?"),
        WrongAnswer(2_064_512, "the count with a window of 256", "How many positions does each query see?"),
        WrongAnswer(2_072_448, "the count with a window of 257", "How many positions does each query see?"),
        WrongAnswer(4_136_704, "the count with 256 places on each side", "May a query see later keys?"),
        WrongAnswer(2_097_152, "8192 times 256", "How many positions does each query see, and what does query 0 see?"),
        WrongAnswer(4_071_168, "the count with a window of 513", "Does the own position belong to the 512?"),
        WrongAnswer(4_055_808, "the count with a window of 511", "Does the own position belong to the 512?"),
    ],
    hints=(
        "What is the sum of a boolean mask?",
        "`SlidingWindowAttention(512).pattern(...)` or `course_lib.masks.sliding_window_mask` gives the mask.",
        "int(sliding_window_mask(8192, window=____).sum())",
    ),
    explanation="""The first 511 rows are short: row i sees i + 1 keys. 8192 · 512 minus 512 · 511 / 2 is 4,063,488, one
eighth of the 33,558,528 pairs of a causal mask. At 65,536 positions it would be one sixty-fourth.""",
)
