"""Question: what a deep stack does without residual connections."""

from coursework.exercises.spec import Question, WrongAnswer

EXERCISE = Question(
    title="Twelve layers without residuals",
    what="""Take twelve encoder layers with LayerNorm and fresh Xavier weights, and remove the residual connections:
each sublayer's output is normed and passed on, nothing is added. Eleven random tokens go through. What
will the next cells show?""",
    why="What goes wrong without residuals decides what you look for when a deep model does not train.",
    difficulty=3,
    minutes=4,
    right="b",
    choices={
        "a": "The gradient that arrives at the input is almost zero.",
        "b": "All eleven tokens come out as nearly the same vector, and the gradient at the input is about as large as "
        "with residual connections.",
        "c": "The outputs grow from layer to layer until they overflow.",
        "d": "Nothing unusual: norms alone keep tokens and gradients in order.",
    },
    wrong=[
        WrongAnswer(
            "a",
            "what happens without residuals and without norms",
            "What does a norm do to the size of what passes through it, forward and backward?",
        ),
        WrongAnswer(
            "c",
            "what happens with residuals and without norms",
            "Can the output of a LayerNorm grow, whatever goes in?",
        ),
        WrongAnswer(
            "d",
            "true of the sizes, not of the differences between tokens",
            "Each token mixes many tokens, layer after layer: what becomes of the differences if nothing else is kept?",
        ),
    ],
    hints=(
        "Fresh attention weights say nothing yet: each token receives a mixture of many. What else does it keep?",
        "A norm sets the length of each vector right again. It does nothing about vectors that all point the same way.",
        "tokens = [mean + small_difference_1, mean + small_difference_2]\nafter_a_few_layers = [mean, ____]",
    ),
    explanation="""Each fresh attention layer gives every token a mixture of many tokens. With a residual connection a
token keeps itself and adds the mixture; without one only the mixture is left, and after a few layers all tokens point
the same way. The norms keep the vectors, and the gradient that reaches the input, at their usual size. What vanishes
are the differences, and with them the gradients of the queries' and keys' weights: where all tokens are alike, it
makes no difference which one is looked at. (Dong et al. 2021 prove that pure attention loses rank doubly exponentially
with depth; Noci et al. 2022 show what that does to the gradients.)""",
)
