"""Question: what a model sees when every cached token stands at position 0."""

from coursework.exercises.spec import Question, WrongAnswer

EXERCISE = Question(
    title="A cache that restarts at 0",
    what="""A model with rotary positions generates with a cache: each step sends one new token through the layers, and
its key, already turned, joins the stored ones. A programmer turns query and key of each new token by
`torch.arange(T)`, where T is the number of tokens in this call. The prompt is one token too. What does the new query
see?""",
    why="No error gives this bug away: all shapes fit, and the first token comes out right.",
    difficulty=2,
    minutes=3,
    right="c",
    choices={
        "a": "The right distances: the turns of query and key cancel.",
        "b": "Every key one position too near.",
        "c": "Every key at distance 0, as if there were no positions at all.",
        "d": "The right distances to old keys, but a wrong one to itself.",
    },
    wrong=[
        WrongAnswer(
            "a",
            "what holds if all positions are shifted by the same amount",
            "By how much is the position of each token wrong: is it the same for all?",
        ),
        WrongAnswer("b", "what an offset that is one too small would do", "What is `torch.arange(1)`, at every step?"),
        WrongAnswer(
            "d",
            "what holds if only the new token were wrong",
            "With which position was the key of the token before turned?",
        ),
    ],
    hints=(
        "How many tokens are in one call of a decoding step, so which positions does `torch.arange(T)` give?",
        "Rotary attention sees position of key minus position of query. Write down both numbers as the programmer has "
        "them, for the third token and the key of the first.",
        "position = torch.arange(____)  # in every step, T is the same\ndistance = position - position",
    ),
    explanation="""Every call has T = 1, so every token is turned by position 0: not at all. All distances are 0, and
the model runs without positions. A prompt of several tokens hides it further: then only the new tokens are wrong. The
cure is to start at the number of cached tokens; the law `assert_cache_consistent` finds it.""",
)
