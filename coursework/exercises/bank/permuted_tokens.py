"""Question: what self-attention makes of a shuffled sentence."""

from coursework.exercises.spec import Question, WrongAnswer

EXERCISE = Question(
    title="Shuffle the sentence",
    what="""Self-attention without a mask gets the five tokens of a sentence, as vectors without any information on
their positions, and returns five vectors. You shuffle the tokens and run it again. What comes out?""",
    why="""You will read that self-attention is permutation-invariant. The answer says whether that is so, and why
models need positions.""",
    difficulty=2,
    minutes=3,
    right="b",
    choices={
        "a": "The same five vectors at the same positions: order does not matter.",
        "b": "The same five vectors, shuffled in the same way as the tokens.",
        "c": "Five other vectors: every token now has other neighbours.",
        "d": "Tokens that stayed in place keep their vectors; those that moved get others.",
    },
    wrong=[
        WrongAnswer(
            "a",
            "invariance, which would hold for the mean of all outputs",
            "The output at position 0 belongs to the query at position 0: which token asks there after the shuffle?",
        ),
        WrongAnswer(
            "c",
            "what a recurrent network does",
            "Which number in softmax(q·k) would tell you that a key has moved to another position?",
        ),
        WrongAnswer(
            "d",
            "what happens if each position has weights of its own",
            "Does any part of self-attention know at which position a token stands?",
        ),
    ],
    hints=(
        "Follow one token: does its query change, does the set of keys change, does the set of values change?",
        "A weighted average does not depend on the order in which its terms are added. So look at what stays the same "
        "for one token, and then at where its output is written.",
        "output_of_shuffled = attention(x[order])\nassert_close(output_of_shuffled, attention(x)[____])",
    ),
    explanation="""A token keeps its query, and it meets the same keys and values, only in another order, so it gets
the same average as before, at its new position. This is equivariance: f(x[order]) = f(x)[order]. A sum or a mean over
all outputs is invariant. With a causal mask even equivariance is lost, because the mask knows the positions.""",
)
