"""Question: how much of a batch is padding, with and without sorting."""

from coursework.exercises.spec import Question, WrongAnswer

LENGTHS = (3, 17, 5, 13, 2, 11)


def _share(lengths):
    batches = [lengths[:3], lengths[3:]]
    ids = sum(3 * max(batch) for batch in batches)
    return 1 - sum(lengths) / ids


def _compute():
    return _share(LENGTHS) - _share(sorted(LENGTHS))


EXERCISE = Question(
    title="What sorting saves",
    kind="measure",
    what="""Six sentences have the lengths 3, 17, 5, 13, 2 and 11. They make two batches of three rows: once in this
order, once sorted by length. Every row is padded to the longest of its batch. In each case, which share of all ids of
the two batches together is padding? Give the share without sorting minus the share with it, to three digits after
the point.""",
    why="Padding is computed with like any other id and then thrown away.",
    difficulty=1,
    minutes=4,
    right=_share(LENGTHS) - _share(sorted(LENGTHS)),
    compute=_compute,
    tolerance=0.01,
    form="a number between 0 and 1",
    wrong=[
        WrongAnswer(_share(LENGTHS), "the share without sorting", "And how much is padding after sorting?"),
        WrongAnswer(_share(sorted(LENGTHS)), "the share after sorting", "And how much was padding before?"),
        WrongAnswer(
            1 - 51 / (17 * 6) - _share(sorted(LENGTHS)),
            "what it would be if all six rows were padded to 17",
            "To which length is a row padded: the longest of all, or the longest of its own batch?",
        ),
        WrongAnswer(
            (90 - 51) / 51 - (66 - 51) / 51,
            "padding for each real id",
            "By what is a share of all ids divided: by the real ones, or by all?",
        ),
        WrongAnswer(
            (26 / 51 + 13 / 39) / 2 - (5 / 15 + 10 / 51) / 2,
            "the difference of the mean shares of a batch",
            "Does each batch hold as many ids as the other?",
        ),
        WrongAnswer(
            1 - _share(sorted(LENGTHS)) / _share(LENGTHS),
            "the difference as a share of the share without sorting",
            "Does the task ask for a difference, or by which part the share has fallen?",
        ),
        WrongAnswer(
            24 / 90,
            "the ids saved, divided by all ids without sorting",
            "How many ids are there in all after sorting, and by which number is that share divided?",
        ),
        WrongAnswer(
            24 / 66,
            "the ids saved, divided by all ids after sorting",
            "By which number is each of the two shares divided?",
        ),
        WrongAnswer(
            24 / 39, "the share of the padding that sorting saves", "By what is each of the two shares divided?"
        ),
        WrongAnswer(24.0, "a number of ids", "Which share of the batches is that?"),
        WrongAnswer(
            _share(LENGTHS) / _share(sorted(LENGTHS)),
            "how many times as large the share is",
            "And how much is one share minus the other?",
        ),
    ],
    hints=(
        "How many ids does a batch of three rows take, the longest of which has 17?",
        "A batch takes rows times its longest row. Add up both batches, and compare with the number of real ids.",
        "def share(lengths):\n    ids = 3 * max(lengths[:3]) + 3 * max(lengths[3:])\n    return ____",
    ),
    explanation="""As given, the batches take 3·17 + 3·13 = 90 ids for 51 real ones: 43 % is padding. Sorted, they take
3·5 + 3·17 = 66: 23 %. With more sentences to choose from, the rows of a batch get almost equal, and almost nothing is
padded.""",
)
