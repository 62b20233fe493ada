"""Question: the bytes of the attention weights. The pattern for questions with a number."""

import torch

from coursework.exercises.spec import Question, WrongAnswer

B, H, N, E = 3, 8, 1024, 64


def _compute():
    from course_lib.attention import scaled_dot_product_attention

    with torch.device("meta"):  # shapes without memory
        tokens = torch.empty(B, H, N, E)
        _, weights = scaled_dot_product_attention(tokens, tokens, tokens, return_weights=True)
    return weights.numel() * weights.element_size()


EXERCISE = Question(
    title="The memory of the weights",
    what=f"""A layer has H = {H} heads, each of width E = {E}. It reads a batch of B = {B} sequences of {N} tokens in
float32. How many bytes do its attention weights take, all together?""",
    why="""This tensor, not the parameters, is what fills the memory when the context grows. Kernels such as
FlashAttention exist to never store it.""",
    difficulty=2,
    minutes=4,
    right=B * H * N * N * 4,
    formula="""
batch = 3
heads = 8
tokens = 1024
head_width = 64
bytes_a_number = 4
batch * heads * tokens * tokens * bytes_a_number
""",
    compute=_compute,
    form="a number of bytes",
    wrong=[
        WrongAnswer(
            B * H * N * N,
            "the number of weights, not of bytes",
            "How many bytes does one float32 number take?",
        ),
        WrongAnswer(
            B * N * N * 4,
            "the memory of a single head",
            "Do the heads share one table of weights, or has each its own?",
        ),
        WrongAnswer(
            H * N * N * 4,
            "the memory for a single sequence",
            "How many sequences does the layer read at once?",
        ),
        WrongAnswer(
            N * N * 4,
            "the memory for one head and one sequence",
            "How many tables of weights does the layer make for this batch?",
        ),
        WrongAnswer(
            B * H * N * N * 2,
            "the memory in half precision",
            "In which type are the numbers of this layer, and how many bytes has it?",
        ),
        WrongAnswer(
            2 * B * H * N * N * 4,
            "the memory of scores and weights together",
            "The question is about one of the two tables that a head makes: which?",
        ),
        WrongAnswer(
            B * H * N * 4,
            "one weight for each token",
            "To how many tokens does one token give a weight?",
        ),
        WrongAnswer(
            B * H * N * E * 4,
            "the memory of the queries",
            "Is there an axis of width E left after the product of queries and keys?",
        ),
        WrongAnswer(
            B * H * N * N * E * 4,
            "the memory of all products before they are added up to scores",
            "A dot product of two vectors of width E: how many numbers are left of it?",
        ),
    ],
    hints=(
        "What is the shape of the weights of one layer for a whole batch?",
        "Each of the heads has its own table for each sequence, with a row for every query and a column for every key.",
        "numbers = B * H * ____\nsize = numbers * 4",
    ),
    explanation=f"""The weights have shape (B, H, T, S) = ({B}, {H}, {N}, {N}): {B * H * N * N:,} numbers of 4 bytes,
{B * H * N * N * 4:,} bytes or {B * H * N * N * 4 // 2**20} MiB. The width E does not appear. Twice the tokens take
four times the memory.""",
)
