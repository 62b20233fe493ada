"""Question: how many tokens one pass of the large model gives in speculative decoding."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Add up the chances that at least so many guesses in a row are kept, and the token that follows them."""
    return sum(0.8**n for n in range(5))


EXERCISE = Question(
    title="Tokens for each pass",
    what="""In speculative decoding a small model guesses 4 tokens, and one pass of the large model checks them. Guesses
are kept up to the first that is refused; then the large model adds one token of its own, also when all four are kept.
Each guess that is checked is kept with probability 0.8, whatever came before. How many tokens does one pass of the
large model give on average?""",
    why="It bounds the gain: the large model runs this many times less often.",
    difficulty=3,
    minutes=5,
    right=3.3616,
    formula="""
kept = 0.8
1 + kept + kept**2 + kept**3 + kept**4
""",
    compute=_compute,
    tolerance=0.005,
    form="a number, to two digits after the point",
    wrong=[
        WrongAnswer(4.2, "what it were if guesses after a refused one were kept too", "What happens after a refusal?"),
        WrongAnswer(
            2.3616, "the guesses that are kept, without the token that follows", "Who adds a token at the end?"
        ),
        WrongAnswer(3.2, "4 times 0.8, as if each guess were checked by itself", "What happens after a refusal?"),
        WrongAnswer(5.0, "the most it can be", "Are all guesses always kept?"),
        WrongAnswer(4.2 - 0.8, "close, but not the sum of the five chances", "Which are the chances of 0, 1, 2, 3, 4?"),
        WrongAnswer(
            2.048, "what all four kept contribute, 5 times their chance", "What do the other cases contribute?"
        ),
    ],
    hints=(
        "With which probability are at least the first two guesses kept?",
        "The average of a count is the sum, over n from 1 on, of the probability that it is at least n.",
        "expected = 1 + 0.8 + ____",
    ),
    explanation="""At least n guesses are kept with probability 0.8ⁿ. So the average is 1 + 0.8 + 0.64 + 0.512 + 0.4096
= 3.3616 tokens: (1 - 0.8⁵) / (1 - 0.8).""",
)
