"""Question: what each process holds when the states of the optimizer are split."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Add up a model of that size, by the formula of the package, without its activations."""
    from course_lib.config import TransformerConfig
    from course_lib.scaling import training_memory

    # 3 * 500 weights of a feed-forward, and nothing else: all pieces scale alike
    config = TransformerConfig(
        d_model=10, n_heads=1, d_ff=75, n_decoder_layers=1, vocab_size=10, norm="none", bias=False
    )
    memory = training_memory(config, 1, 1, ranks=16, sharding=1)
    whole = training_memory(config, 1, 1)["weights"] // 4
    return round((memory["weights"] + memory["gradients"] + memory["optimizer"]) / whole * 1_500_000_000)


EXERCISE = Question(
    title="Split the optimizer",
    what="""A model of 1.5 billion parameters is trained with AdamW in float32 on 16 processes. Weights and gradients
are whole in every process; the states of the optimizer are split evenly between them (stage 1 of ZeRO). How many bytes
do weights, gradients and optimizer take in one process? Leave activations out.""",
    why="It tells which of the three to split first, before any process has been started.",
    difficulty=2,
    minutes=4,
    right=12_750_000_000,
    formula="""
parameters = 1.5e9
processes = 16
weight_bytes = 4
gradient_bytes = 4
states = 2
state_bytes = 4
parameters * (weight_bytes + gradient_bytes + states * state_bytes / processes)
""",
    compute=_compute,
    form="a number of bytes",
    wrong=[
        WrongAnswer(24_000_000_000, "what each process holds when nothing is split", "Which part is split, and how?"),
        WrongAnswer(
            1_500_000_000, "the number of parameters, and the bytes if all is split", "Which parts stay whole?"
        ),
        WrongAnswer(
            7_125_000_000,
            "what each holds when gradients are split as well, and also what mixed precision gives, 2 + 2 + 12 / 16",
            "Which parts stay whole, and how many bytes does a float32 number take?",
        ),
        WrongAnswer(12_375_000_000, "the count with one state a parameter", "Which two averages does Adam keep?"),
        WrongAnswer(
            12_000_000_000, "two of the three parts, none of them split", "What is left of the states in a process?"
        ),
        WrongAnswer(6_750_000_000, "the count without gradients, or without weights", "Which two parts stay whole?"),
        WrongAnswer(6_375_000_000, "the count with two bytes a number", "How many bytes does a float32 number take?"),
        WrongAnswer(
            13_125_000_000,
            "the count with a second copy of the weights among the states",
            "In which number format are the weights themselves, and who needs another copy then?",
        ),
        WrongAnswer(3_187_500_000, "a count of numbers, not bytes", "How many bytes does a float32 number take?"),
    ],
    hints=(
        "How many numbers does a process hold for one parameter, of each of the three kinds?",
        "AdamW keeps two running averages for each parameter; only those are split.",
        "a_parameter = 4 + 4 + 8 / ____\ntotal = 1.5e9 * a_parameter",
    ),
    explanation="""Weight 4 bytes, gradient 4, and the two averages 8 bytes shared by sixteen processes: 8.5
bytes a parameter in place of 16. Splitting the gradients too leaves 4.75 bytes, splitting everything leaves 1, which
is FSDP.""",
)
