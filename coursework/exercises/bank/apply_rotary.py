"""Exercise: turn queries and keys by their positions."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import integers, normal, strided


def apply_rotary(x, positions):
    """(B, H, T, E), E even, positions (T,) -> (B, H, T, E); pairs are (i, i + E / 2)"""
    E = x.size(-1)
    frequency = 10000.0 ** (-torch.arange(0, E, 2, device=x.device) / E)
    angle = positions[:, None] * frequency  # (T, 1) * (E / 2,) -> (T, E / 2)
    first, second = x.chunk(2, dim=-1)  # (B, H, T, E) -> 2 times (B, H, T, E / 2)
    turned = [first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()]
    return torch.cat(turned, dim=-1).to(x.dtype)


def _model(layout="half", turn="forward", exponent=1.0, at="positions", dtype="kept", angles="float32", sized="width"):
    """A rotation whose settings are the misconceptions."""

    def rotate(x, positions):
        E = x.size(-1)
        if at == "index":
            positions = torch.arange(x.size(-2))
        elif at == "none":
            positions = torch.zeros_like(positions)
        elif at == "one":
            positions = positions + 1
        width = E if sized == "width" else x.size(1) * E
        frequency = 10000.0 ** (-exponent * torch.arange(0, E, 2) / width)
        angle = positions[:, None] * frequency
        if angles == "low":
            angle = (positions[:, None].to(x.dtype) * frequency.to(x.dtype)).to(x.dtype)
        c, s = angle.cos(), angle.sin()
        first, second = (x[..., 0::2], x[..., 1::2]) if layout in ("interleaved", "cut-wrong") else x.chunk(2, dim=-1)
        parts = {
            "forward": (first * c - second * s, second * c + first * s),
            "backward": (first * c + second * s, second * c - first * s),
            "both-plus": (first * c + second * s, second * c + first * s),
            "half-only": (first * c - second * s, second),
            "stretch": (first * c, second * s),
            "added": (first + s, second + c),
            "overwritten": (first * c - second * s, second * c + (first * c - second * s) * s),
        }[turn]
        if layout in ("interleaved", "joined-wrong"):
            turned = torch.stack(parts, dim=-1).flatten(-2)
        else:
            turned = torch.cat(parts, dim=-1)
        return turned.to(x.dtype) if dtype == "kept" else turned.float() if dtype == "float32" else turned

    return rotate


def _with_complex(x, positions):
    E = x.size(-1)
    angle = positions[:, None] * 10000.0 ** (-torch.arange(0, E, 2) / E)
    pairs = torch.complex(x[..., : E // 2].float(), x[..., E // 2 :].float())  # a pair is a point in the plane
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)


def _with_rotate_half(x, positions):
    E = x.size(-1)
    angle = torch.outer(positions.float(), 1 / 10000.0 ** (torch.arange(0, E, 2) / E))
    angle = torch.cat([angle, angle], dim=-1)  # (T, E)
    other = torch.cat([-x[..., E // 2 :], x[..., : E // 2]], dim=-1)
    return (x * angle.cos() + other * angle.sin()).to(x.dtype)


def _with_matrices(x, positions):
    E = x.size(-1)
    rows = []
    for t, position in enumerate(positions.tolist()):
        turn = torch.zeros(E, E)
        for i in range(E // 2):
            angle = torch.tensor(position * 10000.0 ** (-2 * i / E))
            turn[i, i] = turn[i + E // 2, i + E // 2] = angle.cos()
            turn[i, i + E // 2], turn[i + E // 2, i] = -angle.sin(), angle.sin()
        rows.append(x[:, :, t].float() @ turn.T)
    return torch.stack(rows, dim=2).to(x.dtype)


def _with_course(x, positions):
    from course_lib import positions as course

    return course.apply_rotary(x, course.RotaryEmbedding(x.size(-1))(positions))


def _case(B, H, T, E, positions, seed, dtype=torch.float32):
    return lambda: (normal(B, H, T, E, seed=seed, dtype=dtype), torch.tensor(positions))


def _strided():
    return strided(normal(2, 3, 4, 6, seed=61)), integers(4, low=0, high=20, seed=62)


def _sample(draw):
    B, H, T, E = draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 5), 2 * draw.integer(1, 4)
    return draw.normal(B, H, T, E), draw.integers(T, low=0, high=60)


def _distance_alone_decides(rotate) -> str | None:
    query, key = normal(1, 1, 1, 6, seed=81), normal(1, 1, 1, 6, seed=82)
    scores = []
    for start in (0, 40):
        asked, found = rotate(query, torch.tensor([start + 5])), rotate(key, torch.tensor([start + 2]))
        scores.append(float((asked * found).sum()))
    if abs(scores[0] - scores[1]) < 1e-3:
        return None
    return f"The same query and key score {scores[0]:.3f} at positions 5 and 2, and {scores[1]:.3f} at 45 and 42."


def _distance_matters(rotate) -> str | None:
    query, key = normal(1, 1, 1, 6, seed=81), normal(1, 1, 1, 6, seed=82)
    key = rotate(key, torch.tensor([0]))
    scores = [float((rotate(query, torch.tensor([p])) * key).sum()) for p in (0, 4)]
    return None if abs(scores[0] - scores[1]) > 1e-3 else f"A query scores {scores[0]:.3f} at offset 0 and at −4."


def _length_stays(rotate) -> str | None:
    x = normal(1, 1, 1, 6, seed=91)
    before, after = float(x.norm()), float(rotate(x, torch.tensor([7])).norm())
    return None if abs(before - after) < 1e-3 else f"A vector of length {before:.3f} has length {after:.3f} afterwards."


EXERCISE = Exercise(
    title="Rotary positions",
    what="""Write `apply_rotary(x, positions)` for queries or keys `(B, H, T, E)` with E even and integer positions
`(T,)`. Component i forms a pair with component i + E/2, for i below E/2. Pair i has the speed θᵢ = 1 / 10000^(2i/E),
so at position p it is turned by the angle φ = p · θᵢ: a becomes a cos φ − b sin φ, and b becomes b cos φ + a sin φ.
All heads turn alike. Compute the angles in float32, and return the dtype of x.""",
    why="""Most open language models turn queries and keys in this way.""",
    difficulty=3,
    minutes=12,
    reference=apply_rotary,
    model=_model,
    misconceptions=misconceptions("""
pairs-neighbours (layout="interleaved"): pairs component 2i with 2i + 1
    For E = 4, which component is the partner of component 0 in this exercise?
cut-by-neighbours (layout="cut-wrong"): takes neighbours as pairs, and then writes them to the two halves
    At position 0 no pair is turned at all: does your function leave x as it was there?
written-to-neighbours (layout="joined-wrong"): takes pairs from the two halves, and then writes them side by side
    At position 0 no pair is turned at all: does your function leave x as it was there?
turns-back (turn="backward"): turns every pair in the opposite direction
    Which sign has the sine in the first component of a pair, and which in the second?
both-signs-plus (turn="both-plus"): adds in both components of a pair
    Does a vector keep its length under your function?
half-left-alone (turn="half-only"): changes the first half and leaves the second half as it was
    A turn moves both coordinates of a point: what happens to b?
multiplies-without-mixing (turn="stretch"): multiplies one half by the cosine and the other by the sine, and never mixes
        them
    Does a vector keep its length under your function?
adds-the-sinusoids (turn="added"): adds sines and cosines to x where it should turn it
    What does a rotation make of a vector of zeros, and what does your function?
doubled-exponent (exponent=2.0): doubles the exponent of the frequencies
    For E = 4, which exponent has the second pair?
halved-exponent (exponent=0.5): leaves out the 2 in the exponent of the frequencies
    For E = 4, which exponent has the second pair?
one-frequency-for-all (exponent=0.0): turns every pair by the same angle
    Which part of your angle depends on the component?
positions-ignored (at="none"): turns nothing, whatever the positions
    Which line of your function would change its result for another position?
counts-rows (at="index"): takes the row number as the position
    What is the position of the only row when a model generates its eighth token?
counts-from-one (at="one"): counts positions from one
    By which angle is position 0 turned?
width-of-all-heads (sized="all"): takes the width of all heads together for E, as if x had not been split
    Over how many components do the frequencies of one head spread?
returns-float32 (dtype="float32"): returns float32 for half-precision queries
    Which dtype do the values have that are still in half precision, and can the two be multiplied?
angles-in-low-precision (angles="low"): computes the angles in the dtype of x, which is too coarse for large positions
    Which whole numbers between 256 and 512 can bfloat16 hold?
second-half-reads-the-turned-first (turn="overwritten"): computes the second half from the first half after that was
        turned
    Which a does your formula for b read: the one that came in, or the one just computed?
"""),
    cases=[
        Case("1 head, 2 positions, width 2", _case(1, 1, 2, 2, [0, 1], seed=1)),
        Case("1 head, 3 positions, width 4", _case(1, 1, 3, 4, [0, 1, 2], seed=11)),
        Case("1 head, one new token at position 7, width 4", _case(1, 1, 1, 4, [7], seed=21)),
        Case("2 examples, 3 heads, 4 positions with gaps, width 6", _case(2, 3, 4, 6, [2, 3, 19, 60], seed=31)),
        Case("2 examples, 3 heads, width 10", _case(2, 3, 5, 10, [0, 1, 2, 3, 4], seed=41)),
        Case("inputs that are not contiguous in memory", _strided),
        Case("bfloat16 at positions 0 to 331", _case(1, 2, 3, 6, [0, 67, 331], seed=51, dtype=torch.bfloat16)),
    ],
    properties=[
        Property(
            "The product of a turned query and a turned key depends on their offset alone.", _distance_alone_decides
        ),
        Property("The product of a turned query and a turned key changes with their offset.", _distance_matters),
        Property("Turning changes no length.", _length_stays),
    ],
    alternatives=[
        Alternative("with complex numbers", _with_complex),
        Alternative("with the two halves exchanged, as in `transformers`", _with_rotate_half),
        Alternative("with a rotation matrix for each position", _with_matrices),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "How many angles does one position have, and which two components share one?",
        "The table of angles has T rows and E/2 columns and fits onto either half of x. Both halves of the result need "
        "both halves of x.",
        """angle = ...  # (T, E / 2): positions times frequencies
first, second = ____  # the partners, each (B, H, T, E / 2)
return ...  # both turned halves, in the dtype of x""",
    ),
    sample=_sample,
    tries=("bfloat16", "int32", "large", "zeros", "repeated", "far"),
    tolerance=(1e-5, 5e-5),
    equivalent_mutants={
        "torch.arange(0, E, 2, device=x.device) -> torch.arange(0, E, 2)": "the check computes on one device",
        "x -> positions (4)": "both lie on the same device",
    },
)
