"""Exercise: the table of sines and cosines."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def sinusoidal_encoding(positions, d_model):
    """Integer positions (T,), even width D -> float32 (T, D): pairs of sine, cosine"""
    frequency = 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)  # (D / 2,), radians a position
    angle = positions[:, None] * frequency  # (T, 1) * (D / 2,) -> (T, D / 2)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # (T, D / 2, 2) -> (T, D)


def _model(exponent="right", order="side-by-side", at="positions", base=10000.0):
    """An encoding whose settings are the misconceptions."""

    def encode(positions, d_model):
        if at == "index":
            positions = torch.arange(len(positions))
        elif at == "one":
            positions = positions + 1
        pair = torch.arange(d_model // 2)
        power = {
            "right": -2 * pair / d_model,
            "doubled": -4 * pair / d_model,
            "halved": -pair / d_model,
            "positive": 2 * pair / d_model,
            "columns": -2 * pair / d_model,
            "columns-doubled": -4 * pair / d_model,
            "from-one": -2 * (pair + 1) / d_model,
            "to-the-end": -pair / max(1, d_model // 2 - 1),
            "none": 0.0 * pair,
        }[exponent]
        sine = cosine = positions[:, None] * base**power
        if exponent == "columns":
            cosine = positions[:, None] * base ** (-(2 * pair + 1) / d_model)
        if exponent == "columns-doubled":
            cosine = positions[:, None] * base ** (-2 * (2 * pair + 1) / d_model)
        parts = [sine.sin(), cosine.cos()]
        if order in ("cosine-first", "halves-cosine-first"):
            parts = parts[::-1]
        if order == "sine-twice":
            parts = [sine.sin(), cosine.sin()]
        if order in ("halves", "halves-cosine-first"):
            return torch.cat(parts, dim=-1)
        return torch.stack(parts, dim=-1).flatten(-2)

    return encode


def _by_columns(positions, d_model):
    table = torch.zeros(len(positions), d_model)
    divisor = 10000.0 ** (torch.arange(0, d_model, 2) / d_model)  # the divisor of the paper's formula
    table[:, 0::2] = torch.sin(positions[:, None] / divisor)
    table[:, 1::2] = torch.cos(positions[:, None] / divisor)
    return table


def _with_exp(positions, d_model):
    frequency = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    angle = torch.outer(positions.float(), frequency)
    return torch.stack((angle.sin(), angle.cos()), dim=2).reshape(len(positions), d_model)


def _with_loops(positions, d_model):
    rows = []
    for position in positions.tolist():
        angles = [position / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
        rows.append([f(angle) for angle in angles for f in (math.sin, math.cos)])
    return torch.tensor(rows)


def _with_course(positions, d_model):
    from course_lib.positions import SinusoidalPositionalEncoding

    return SinusoidalPositionalEncoding(d_model)(positions)


def _case(name, positions, d_model):
    return Case(name, lambda: (torch.tensor(positions), d_model))


def _sample(draw):
    return draw.integers(draw.integer(1, 6), low=0, high=60), 2 * draw.integer(1, 8)


def _start_is_zero_and_one(encode) -> str | None:
    found = encode(torch.tensor([0]), 4)[0].tolist()
    if [round(x, 4) for x in found] == [0.0, 1.0, 0.0, 1.0]:
        return None
    return f"Position 0 in 4 dimensions is encoded as {[round(x, 3) for x in found]}."


def _all_have_one_length(encode) -> str | None:
    lengths = encode(torch.tensor([0, 3, 11]), 6).norm(dim=-1).tolist()
    if max(abs(length - math.sqrt(3)) for length in lengths) < 1e-3:
        return None
    return f"The codes of positions 0, 3 and 11 in 6 dimensions have lengths {[round(x, 3) for x in lengths]}."


def _offset_decides(encode) -> str | None:
    code = encode(torch.tensor([2, 5, 9, 12]), 6)
    first, second = float(code[0] @ code[1]), float(code[2] @ code[3])
    if abs(first - second) < 1e-3:
        return None
    return f"The product of positions 2 and 5 is {first:.3f}, that of 9 and 12 is {second:.3f}."


EXERCISE = Exercise(
    title="The table of sines and cosines",
    what="""Write `sinusoidal_encoding(positions, d_model)`: for integer positions of shape `(T,)` and an even width D,
a float32 table `(T, D)`. With i = 0, 1, …, D/2 − 1, column 2i holds sin(p / 10000^(2i/D)) and column 2i + 1 holds
cos(p / 10000^(2i/D)). The positions may start anywhere, also below zero, leave gaps and come in any order.""",
    why="""It is the position scheme of the original Transformer, and rotary positions use the same angles. Wrong
versions train without an error.""",
    difficulty=2,
    minutes=10,
    reference=sinusoidal_encoding,
    model=_model,
    misconceptions=misconceptions("""
doubled-exponent (exponent="doubled"): doubles the exponent: it steps through every second number and multiplies by two
        again
    For D = 4, which two exponents does the formula give, and which two do you use?
halved-exponent (exponent="halved"): leaves out the 2 in the exponent, so the frequencies fall half as fast
    For D = 4, which two exponents does the formula give, and which two do you use?
multiplies-by-the-divisor (exponent="positive"): multiplies positions by the growing power where the formula divides
    Should the last pair of columns change fast or slowly from one position to the next?
one-frequency-a-column (exponent="columns"): gives the cosine of a pair another frequency than its sine
    Which i belongs to column 2i + 1: is its exponent that of column 2i?
last-frequency-too-low (exponent="to-the-end"): spreads the frequencies so that the last one reaches one over the base
    What is the exponent of the last pair for D = 4: is it one, or less?
one-frequency-for-all (exponent="none"): uses the frequency 1 in every pair
    Which part of your angle depends on the column?
halves (order="halves"): puts all sines in the first half and all cosines in the second
    Which function stands in column 1, and what does your table have there?
cosine-first (order="cosine-first"): puts the cosine of each pair before its sine
    What does column 0 hold at position 0?
sine-twice (order="sine-twice"): takes the sine in both columns of a pair
    What does the formula give in column 1 at position 0?
positions-ignored (at="index"): counts 0, 1, 2, … and does not look at the positions it is given
    What does your function return for the single position 7?
counts-from-one (at="one"): counts positions from one
    Which row should position 0 get, if every angle is position times frequency?
another-base (base=1000.0): uses the base 1000
    How many zeros has the number in the formula?
column-for-pair (exponent="columns-doubled"): takes the number of the column for i
    How many columns share one value of i?
pairs-from-one (exponent="from-one"): counts the pairs from 1
    How fast does the first pair turn, by the formula with i = 0?
"""),
    cases=[
        _case("3 positions, width 2", [0, 1, 2], 2),
        _case("3 positions, width 4", [0, 1, 2], 4),
        _case("one position, 7, width 4", [7], 4),
        _case("4 positions with gaps, width 6", [3, 5, 11, 13], 6),
        _case("3 positions around zero, width 4", [-2, 0, 2], 4),
        _case("5 positions, width 10", [0, 1, 2, 13, 60], 10),
    ],
    properties=[
        Property("Position 0 is sines of 0 and cosines of 0: it reads 0, 1, 0, 1, and so on.", _start_is_zero_and_one),
        Property("Every code has the length √(D/2), as sin² + cos² is 1 in each pair.", _all_have_one_length),
        Property("The product of two codes depends on their distance alone.", _offset_decides),
    ],
    alternatives=[
        Alternative("column by column, dividing as the paper does", _by_columns),
        Alternative("with exp and a logarithm, as most code does", _with_exp),
        Alternative("with loops", _with_loops),
        Alternative("the course's module", _with_course),
    ],
    hints=(
        "How many different angles does one position have, and how many columns does each angle fill?",
        "Make one number for each pair, then a table of angles with a row for each position. Sines and cosines of that "
        "table must end up in alternating columns.",
        """frequency = ____  # (D / 2,), one number a pair, from 1 downwards
angle = positions[:, None] * frequency  # (T, D / 2)
return ...  # sines and cosines, alternating: (T, D)""",
    ),
    sample=_sample,
    tries=("int32", "repeated", "far"),
    gradients=False,
    tolerance=(1e-5, 5e-5),
)
