"""Question: the parameters of BERT-base, piece by piece."""

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Build the parts without memory, and count."""
    import torch
    from torch import nn

    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(768, 12, 3072)
        parts = [nn.Embedding(30_522, 768), nn.Embedding(512, 768), nn.Embedding(2, 768), nn.LayerNorm(768)]
        parts += [layer] * 12 + [nn.Linear(768, 768)]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


EXERCISE = Question(
    title="BERT-base, piece by piece",
    kind="measure",
    what="""BERT-base has a table of 30,522 tokens, one of 512 positions and one of 2 segments. A segment is one of
the two texts that BERT can read at once. All three tables have the width 768, and a LayerNorm follows their sum. Then
come 12 encoder layers with an inner width of 3,072. At the end there is a pooler, one map from 768 to 768 with its
bias, over the first token. How many parameters is that, to the last digit? Use your `encoder_parameters` for the
layers.""",
    why="The paper says 110 million. You can say where they all sit.",
    difficulty=2,
    minutes=6,
    right=109_482_240,
    formula="""
tokens = 30522
positions = 512
segments = 2
width = 768
inner_width = 3072
layers = 12
norm = 2 * width
pooler = width * width + width
attention = 4 * (width * width + width)
feed_forward = 2 * width * inner_width + inner_width + width
layer = attention + feed_forward + 2 * norm
tokens * width + positions * width + segments * width + norm + layers * layer + pooler
""",
    compute=_compute,
    form="a number of parameters",
    wrong=[
        WrongAnswer(
            85_054_464, "the twelve layers alone", "Where do the vectors come from that the first layer reads?"
        ),
        WrongAnswer(108_891_648, "the number without the pooler", "What comes after the last layer?"),
        WrongAnswer(
            109_480_704,
            "the number without the segments, or without the norm",
            "Which pieces of 1,536 numbers does the text name?",
        ),
        WrongAnswer(
            109_479_168,
            "3,072 too few: as many as the segments and the norm hold together, or one inner bias",
            "Which pieces hold 3,072 numbers, and which two of them 1,536 each?",
        ),
        WrongAnswer(
            109_485_312,
            "3,072 too many: as many as two norms hold, or one inner bias",
            "How many norms stand outside the layers?",
        ),
        WrongAnswer(
            109_483_776, "1,536 too many, as many as one more norm holds", "How many norms stand outside the layers?"
        ),
        WrongAnswer(110_000_000, "the rounded figure of the paper", "Which number is it, to the last digit?"),
        WrongAnswer(109_000_000, "the number, rounded to millions", "Which number is it, to the last digit?"),
        WrongAnswer(109_500_000, "the number, rounded", "Which number is it, to the last digit?"),
        WrongAnswer(109_089_024, "the number without the table of positions", "How many tables does the text name?"),
        WrongAnswer(
            132_923_136, "the number with a separate output layer over the vocabulary", "Is there a head in the list?"
        ),
        WrongAnswer(
            109_481_472, "the number without one vector of 768", "Which vectors belong to a map, and which to a norm?"
        ),
        WrongAnswer(86_041_344, "the number without the table of tokens", "Which table is the largest?"),
        WrongAnswer(24_427_776, "the embeddings and the pooler alone", "What do the twelve layers add?"),
        WrongAnswer(31_515_648, "the number with one layer", "Do the layers share their weights?"),
        WrongAnswer(
            109_483_778,
            "the number with the map that tells whether two sentences belong together",
            "Which parts does the question name?",
        ),
    ],
    hints=(
        "Which pieces have a row for each token, each position or each segment, and how wide is a row?",
        "Three tables, one norm, twelve layers, one square map with its bias. The norm has a weight and a bias.",
        "tables = (30522 + 512 + 2) * 768\ntotal = tables + 2 * 768 + ____ + 768 * 768 + 768",
    ),
    explanation="""(30,522 + 512 + 2) × 768 = 23,835,648 in tables, 1,536 in their norm, 12 × 7,087,872 = 85,054,464 in
the layers and 590,592 in the pooler. More than a fifth of the model is the table of tokens, of which a sentence uses
a few rows.""",
)
