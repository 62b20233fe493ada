"""Question: which bug leaves the logits right at position 0 and moves them more and more later."""

from coursework.exercises.spec import Question, WrongAnswer

EXERCISE = Question(
    title="Read a fingerprint",
    what="""A Llama is loaded, and its logits are compared with those of another program. At position 0 they agree but
for rounding. From position 1 on they are off, by little at first and by more at later positions. Which of these lines
can it be?""",
    why="Where the numbers first differ tells you which half of the code you can skip.",
    difficulty=2,
    minutes=3,
    right="c",
    choices={
        "a": "`x / (x.square().mean(-1, keepdim=True).sqrt() + eps)` in the norms",
        "b": "`v.repeat(1, H // G, 1, 1)` in the attention",
        "c": "`base=10_000.0` in the layers, though the config says `rope_theta: 500000.0`",
        "d": "`weight + alpha * (B @ A)` for the updates of all maps, trained with alpha / r",
    },
    wrong=[
        WrongAnswer("a", "a bug that the first token has, too", "Is the token at position 0 normed?"),
        WrongAnswer("b", "a bug that the first token has, too", "From which head does the first token read its value?"),
        WrongAnswer(
            "d",
            "a bug that the first token has, too",
            "Which tokens pass through the merged weights, if values and feed-forward have updates?",
        ),
    ],
    hints=(
        "What is special about the token at position 0: what does it read, and by which angle is it turned?",
        "Go through the lines and ask of each whether it changes what a single token computes on its own.",
        "angle = position * base ** (-i / half)  # at position 0: ____",
    ),
    explanation="""The first token reads only itself, whatever its query and key are, and so a wrong turn cannot hurt
it. Later on, a wrong base turns by wrong angles, and the error of an angle grows with the distance. The other three
change what the first token computes alone, so that position 0 would be wrong as well. Short tests hardly see a wrong
base; long texts do.""",
)
