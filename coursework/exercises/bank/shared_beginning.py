"""Question: how many tokens of a prompt must still be read when its beginning lies in shared blocks."""

import torch

from coursework.exercises.spec import Question, WrongAnswer


def _compute():
    """Read the first prompt with a small model, begin the second from it, and count what is missing."""
    from course_lib.config import TransformerConfig
    from course_lib.generation import PagedCache
    from course_lib.transformer import LanguageModel

    model = LanguageModel(TransformerConfig(vocab_size=9, d_model=8, n_heads=2, n_decoder_layers=1))
    cache = PagedCache(model, 8, block=16)
    first, prompt = cache.add(), torch.zeros(1, 72, dtype=torch.long)
    rows = cache.rows([first], 54)
    with torch.no_grad():
        model(prompt[:, :54], mask=rows.mask, positions=rows.positions, cache=rows)
    second = cache.add(like=first)
    return prompt.size(1) - cache.lengths[second]


EXERCISE = Question(
    title="What is left to read",
    what="""The instructions of a chat program have 54 tokens, and every conversation begins with them. They were read
once and lie in blocks of 16. Now somebody asks a question, and the whole prompt, instructions and question, has 72
tokens. Only full blocks are shared: into the free positions of a partly filled one, each user would write a different
question. How many tokens of the prompt must the model still read, its last one included?""",
    why="A long system prompt is read once for everybody, and the answer begins sooner.",
    difficulty=2,
    minutes=3,
    right=24,
    formula="""
instructions = 54
whole = 72
block = 16
whole - instructions // block * block
""",
    compute=_compute,
    form="a number of tokens",
    wrong=[
        WrongAnswer(18, "the question alone, as if a part of a block could be shared", "In which block is token 53?"),
        WrongAnswer(72, "the whole prompt", "Which blocks are full of tokens that both texts have?"),
        WrongAnswer(8, "what is left after four blocks, of which the last is not full", "How many blocks are full?"),
        WrongAnswer(54, "the instructions", "Were they not read already?"),
        WrongAnswer(48, "what need not be read", "What is the question asking for?"),
        WrongAnswer(6, "what the last block holds of the instructions", "Who reads the question itself?"),
    ],
    hints=(
        "How many blocks of 16 do 54 tokens fill to the last position?",
        "The last six tokens of the instructions lie in a block that is not full. The next text cannot write into "
        "it, since it belongs to another text.",
        "shared = 16 * ____\nleft = 72 - shared",
    ),
    explanation="""54 tokens fill three blocks, 48 tokens, and the last six begin a fourth, which is not shared. So 72
− 48 = 24 tokens are read: those six and the 18 of the question.""",
)
