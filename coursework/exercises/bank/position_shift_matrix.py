"""Exercise: the rotation that moves a sinusoidal code to another position."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def position_shift_matrix(shift, d_model):
    """int, even width D -> float32 (D, D): the matrix that moves every code by shift"""
    blocks = []
    for i in range(d_model // 2):
        angle = shift / 10000 ** (2 * i / d_model)
        c, s = math.cos(angle), math.sin(angle)
        blocks.append(torch.tensor([[c, s], [-s, c]]))  # acts on the pair (sine, cosine)
    return torch.block_diag(*blocks)  # D / 2 times (2, 2) -> (D, D)


def _model(turn="forward", exponent=2.0, shift_as="angle", pairs="neighbours"):
    """A shift matrix whose settings are the misconceptions."""

    def build(shift, d_model):
        matrix = torch.zeros(d_model, d_model)
        for i in range(d_model // 2):
            angle = (abs(shift) if shift_as == "size" else shift) / 10000 ** (exponent * i / d_model)
            if shift_as in ("ignored", "factor"):
                angle = 1 / 10000 ** (exponent * i / d_model)
            c, s = math.cos(angle), math.sin(angle)
            block = {
                "forward": [[c, s], [-s, c]],
                "backward": [[c, -s], [s, c]],
                "mirror": [[c, s], [s, -c]],
                "both-plus": [[c, s], [s, c]],
                "sine-and-cosine-swapped": [[s, c], [-c, s]],
                "no-mixing": [[c, 0.0], [0.0, c]],
            }[turn]
            first, second = (2 * i, 2 * i + 1) if pairs == "neighbours" else (i, i + d_model // 2)
            for row, numbers in zip((first, second), block, strict=True):
                for column, number in zip((first, second), numbers, strict=True):
                    matrix[row, column] = number * (shift if shift_as == "factor" else 1)
        return matrix

    return build


def _by_entries(shift, d_model):
    matrix = torch.zeros(d_model, d_model)
    even = torch.arange(0, d_model, 2)
    angle = shift * 10000.0 ** (-even / d_model)
    matrix[even, even] = matrix[even + 1, even + 1] = angle.cos()
    matrix[even, even + 1] = angle.sin()
    matrix[even + 1, even] = -angle.sin()
    return matrix


def _with_matrix_exponential(shift, d_model):
    generator = torch.zeros(d_model, d_model, dtype=torch.float64)  # the slope of the code by position
    for i in range(d_model // 2):
        frequency = 10000 ** (-2 * i / d_model)
        generator[2 * i, 2 * i + 1], generator[2 * i + 1, 2 * i] = frequency, -frequency
    return torch.linalg.matrix_exp(shift * generator).float()


def _by_solving(shift, d_model):
    from course_lib.positions import frequencies

    angle = torch.arange(d_model, dtype=torch.float64)[:, None] * frequencies(d_model).double()  # (T, D / 2), T = D
    moved = angle + shift * frequencies(d_model).double()
    blocks = []
    for i in range(d_model // 2):
        codes = torch.stack([angle[:, i].sin(), angle[:, i].cos()])  # (2, T)
        targets = torch.stack([moved[:, i].sin(), moved[:, i].cos()])
        blocks.append(torch.linalg.lstsq(codes.T, targets.T).solution.T)
    return torch.block_diag(*blocks).float()


def _with_course(shift, d_model):
    from course_lib import positions

    return positions.position_shift_matrix(shift, d_model)


def _case(name, shift, d_model):
    return Case(name, lambda: (shift, d_model))


def _sample(draw):
    return draw.integer(-40, 40), 2 * draw.integer(1, 6)


def _code(position, d_model):
    angles = [position / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
    return torch.tensor([f(angle) for angle in angles for f in (math.sin, math.cos)])


def _moves_codes(build) -> str | None:
    matrix = build(3, 6)
    for position in (0, 5, 90):
        found, wanted = matrix @ _code(position, 6), _code(position + 3, 6)
        if not torch.allclose(found, wanted, atol=1e-4):
            off = float((found - wanted).abs().max())
            return f"M @ encoding({position}) with shift 3 is off encoding({position + 3}) by up to {off:.3f}."
    return None


def _keeps_lengths(build) -> str | None:
    matrix = build(5, 4)
    if torch.allclose(matrix @ matrix.T, torch.eye(4), atol=1e-4):
        return None
    length = float((matrix @ _code(2, 4)).norm())
    return f"With shift 5 and width 4, a code of length 1.414 becomes one of length {length:.3f}."


EXERCISE = Exercise(
    title="A step forward is a rotation",
    what="""Write `position_shift_matrix(shift, d_model)`: the float32 matrix M of shape `(D, D)` such that
M @ encoding(p) = encoding(p + shift) for **every** position p, where encoding is the table of `sinusoidal_encoding`
(sine and cosine side by side). It must not depend on p. `shift` is an integer of either sign; D is even.""",
    why="""The paper chose sinusoids because of this property. Rotary positions build on it.""",
    difficulty=3,
    minutes=12,
    reference=position_shift_matrix,
    model=_model,
    misconceptions=misconceptions("""
turns-back (turn="backward"): moves every code to an earlier position
    What does your matrix make of the code of position 0, the pair (0, 1): is the new sine positive?
mirrors (turn="mirror"): mirrors each pair instead of turning it
    What should the matrix be for shift 0, and what is yours?
both-signs-plus (turn="both-plus"): has the same sign on both sines of a block
    In cos(a + b) = cos a cos b … sin a sin b: which sign stands in the middle?
sine-and-cosine-swapped (turn="sine-and-cosine-swapped"): has sines where cosines belong and cosines where sines belong
    What should the matrix be for shift 0, and what is yours?
no-mixing (turn="no-mixing"): multiplies sine and cosine each by a number and never mixes them
    Can sin(p + k) be computed from sin(p) alone?
halved-exponent (exponent=1.0): leaves out the 2 in the exponent of the frequencies
    Which frequency has the second pair for D = 4, and which do you give it?
doubled-exponent (exponent=4.0): doubles the exponent of the frequencies
    Which frequency has the second pair for D = 4, and which do you give it?
one-frequency-for-all (exponent=0.0): turns every pair by the same angle
    How fast does the last pair of columns turn from one position to the next?
shift-ignored (shift_as="ignored"): moves by one position, whatever the shift
    By which angle must a pair turn to move three positions?
shift-as-factor (shift_as="factor"): multiplies the matrix of one step by the shift
    Three turns in a row: are they three times as long as one, or one turn three times as far?
pairs-across-halves (pairs="halves"): pairs column i with column i + D/2
    Where does the cosine that belongs to the sine in column 0 stand in this table?
multiplies-by-the-divisor (exponent=-2.0): multiplies the shift by 10000^(2i/D) where a quotient belongs
    Which pair turns fastest, the first or the last?
sign-of-shift-lost (shift_as="size"): takes the size of the shift without its sign
    In which direction does a shift of -2 turn the codes?
"""),
    cases=[
        _case("shift 1, width 2", 1, 2),
        _case("shift 0, width 4", 0, 4),
        _case("shift 3, width 4", 3, 4),
        _case("shift -2, width 6", -2, 6),
        _case("shift 60, width 10", 60, 10),
    ],
    properties=[
        Property("The matrix takes the code of p to that of p + shift, for every p.", _moves_codes),
        Property("A rotation changes no length.", _keeps_lengths),
    ],
    alternatives=[
        Alternative("entry by entry, all pairs at once", _by_entries),
        Alternative("as a matrix exponential: a turn is the slope, followed for a while", _with_matrix_exponential),
        Alternative("by solving for each block from D known positions", _by_solving),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "Which two formulas give sin(a + b) and cos(a + b) from the sines and cosines of a and b?",
        "Each pair of columns can be moved by itself, so the matrix has 2 × 2 blocks on its diagonal and zeros "
        "elsewhere. The first row of a block makes the new sine.",
        """angle = shift / 10000 ** (2 * i / d_model)
block = ____  # 2 x 2, from the cosine and the sine of the angle
return ...  # all blocks on one diagonal""",
    ),
    sample=_sample,
    gradients=False,
    tolerance=(1e-5, 5e-5),
)
