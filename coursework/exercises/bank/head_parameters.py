"""Question: how the number of parameters depends on the number of heads."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    from torch import nn

    return sum(parameter.numel() for parameter in nn.MultiheadAttention(512, 16).parameters())


EXERCISE = Question(
    title="How many parameters do sixteen heads have?",
    what="""Multi-head attention of width D = 512 with H = 8 heads of width 64 has four linear maps, queries, keys,
values and output, each with a bias: 1,050,624 parameters. How many does it have with H = 16 heads at the same
width, so that a head is 32 wide?""",
    why="It shows what extra heads cost and what they don't.",
    difficulty=1,
    minutes=3,
    right=1_050_624,
    formula="""
width = 512
heads = 16
head_width = 32
queries = width * width + width
keys = width * width + width
values = width * width + width
output = width * width + width
queries + keys + values + output
""",
    compute=_compute,
    form="a number of parameters",
    wrong=[
        WrongAnswer(
            2_101_248, "twice as many, as if heads stayed 64 wide", "How wide is a head if 16 share 512 columns?"
        ),
        WrongAnswer(1_048_576, "the number without the biases", "What does each linear map have besides its matrix?"),
        WrongAnswer(525_312, "half as many", "How many columns do all heads together have?"),
        WrongAnswer(262_656, "one of the four linear maps", "How many linear maps are there?"),
        WrongAnswer(787_968, "the number without the output map", "What happens after the heads stand side by side?"),
        WrongAnswer(65_664, "a single head's share of the total", "How many heads are there?"),
        WrongAnswer(131_328, "the share of a single head if there are eight", "How many heads are there?"),
        WrongAnswer(66_144, "one head with the whole output bias", "How many heads are there?"),
        WrongAnswer(49_248, "the queries, keys and values of one head", "How many heads are there, and how many maps?"),
        WrongAnswer(16_809_984, "four maps of full width for each head", "How wide is the map of one head?"),
        WrongAnswer(
            1_048_704, "the number with the biases of a single head", "How wide is the output of each of the four maps?"
        ),
    ],
    hints=(
        "Which shape has the matrix that makes all queries of all heads at once?",
        "The matrix of the queries has D rows and H times E columns, and E is D divided by H.",
        "E = 512 // 16\nparameters = 4 * (512 * ____ + 512)",
    ),
    explanation="""Each of the four maps is 512 × 512 plus 512 biases, whatever the number of heads: 4 × (512² +
512) = 1,050,624. Heads cut the columns into blocks and add none. What grows with H is the table of scores.""",
)
