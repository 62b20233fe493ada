"""Question: how much of an answer a patch brings back, over two prompts."""

from coursework.exercises.spec import Question, WrongAnswer

CLEAN, CORRUPTED, PATCHED = (4.0, 2.0), (0.0, 1.9), (2.0, 1.8)


def _mean(leads):
    return sum(leads) / len(leads)


def _compute():
    return (_mean(PATCHED) - _mean(CORRUPTED)) / (_mean(CLEAN) - _mean(CORRUPTED))


def _mean_of_shares():
    leads = zip(CLEAN, CORRUPTED, PATCHED, strict=True)
    return _mean([(patched - corrupted) / (clean - corrupted) for clean, corrupted, patched in leads])


EXERCISE = Question(
    title="How much comes back",
    kind="measure",
    what="""The lead of the right answer was measured on two prompts. Clean it is 4.0 and 2.0, corrupted 0.0 and 1.9.
With one vector of the clean run put into the corrupted one it is 2.0 and 1.8. Average the leads over the two prompts
first. Which share of the lead that the corruption takes away comes back, to two digits after the point?""",
    why="""The second prompt hardly minds the corruption, so there is nearly nothing that could come back. A share
computed there divides by nearly zero.""",
    difficulty=1,
    minutes=4,
    right=_compute(),
    compute=_compute,
    tolerance=0.01,
    form="a number",
    wrong=[
        WrongAnswer(
            _mean_of_shares(),
            "the mean of the two shares",
            "What is divided by what in the second prompt, and how large is it?",
        ),
        WrongAnswer(
            _mean(PATCHED) / _mean(CLEAN),
            "the patched lead as a share of the clean one",
            "What would this number be if the patch had changed nothing?",
        ),
        WrongAnswer(
            1 - _compute(),
            "the share that does not come back",
            "Which two runs does the line above the fraction compare?",
        ),
        WrongAnswer(
            _mean(PATCHED) - _mean(CORRUPTED),
            "the lead that comes back, not a share of it (the mean corrupted lead is as large)",
            "How much could have come back?",
        ),
        WrongAnswer(
            0.5,
            "the share of the first prompt alone, and also the corrupted lead as a share of the patched one",
            "Which three means do you have, and which differences of them?",
        ),
        WrongAnswer(
            (_mean(PATCHED) - _mean(CORRUPTED)) / _mean(CLEAN),
            "what comes back as a share of the clean lead",
            "Does the corruption take the whole of the clean lead away?",
        ),
    ],
    hints=(
        "How much does the corruption cost on average, and how much of that has come back?",
        "Make three numbers first: the mean lead of the clean, the corrupted and the patched runs.",
        "clean, corrupted, patched = 3.0, 0.95, 1.9\nshare = (patched - corrupted) / ____",
    ),
    explanation="""The means are 3.0, 0.95 and 1.9. The corruption costs 2.05, of which 0.95 comes back: 0.46. The mean
of the two shares would be (0.5 − 1) / 2 = −0.25, as if the patch did harm: in the second prompt a loss of 0.1 is
divided by 0.1. Prompts in which the corruption costs nothing say nothing about the patch, and should not speak
loudest.""",
)
