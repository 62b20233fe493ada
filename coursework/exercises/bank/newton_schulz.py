"""Exercise: the iteration by which Muon brings all singular values of a matrix near one."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def newton_schulz(matrix, n_steps=5):
    """(R, C), int -> (R, C), with singular values near one"""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / matrix.norm()
    for _ in range(n_steps):
        gram = x @ x.T  # (R, R)
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


def _model(start="norm", side="left", coefficients="abc", steps="given", power="five", again=False):
    """The iteration whose settings are the misconceptions."""
    a, b, c = {
        "abc": (3.4445, -4.7750, 2.0315),
        "cba": (2.0315, -4.7750, 3.4445),
        "all plus": (3.4445, 4.7750, 2.0315),
        "classic": (1.5, -0.5, 0.0),
    }[coefficients]

    def bring_near_one(matrix, n_steps=5):
        x, gram = matrix, None
        if start == "norm":
            x = x / x.norm()
        elif start == "squares":
            x = x / x.square().sum()
        elif start == "largest":
            x = x / x.abs().max()
        elif start == "rows":
            x = x / x.norm(dim=1, keepdim=True)
        elif start == "columns":
            x = x / x.norm(dim=0, keepdim=True)
        elif start == "spectral":
            x = x / torch.linalg.matrix_norm(x, 2)
        for _ in range({"given": n_steps, "one gram": n_steps, "one": 1, "one less": n_steps - 1, "fixed": 5}[steps]):
            if side == "elementwise":
                x = a * x + b * x**3 + (c * x**5 if power == "five" else 0)
                continue
            if side == "wrong order":
                gram = x.T @ x
                x = a * x + b * x @ gram.T @ gram + (c * x @ gram if power == "five" else 0)
                continue
            gram = x @ x.T if gram is None or steps != "one gram" else gram
            last = {"five": gram @ gram @ x, "once": gram @ x, "three": 0 * x}[power]
            x = a * x + b * gram @ x + c * last
            x = x / x.norm() if again else x
        return x

    return bring_near_one


def _from_the_right(matrix, n_steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / matrix.square().sum().sqrt()
    for _ in range(n_steps):
        gram = x.T @ x  # (C, C); it stands on the other side then
        x = a * x + x @ (b * gram + c * gram @ gram)
    return x


def _by_singular_values(matrix, n_steps=5):
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum().sqrt()
    for _ in range(n_steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5  # what the products do to each of them
    return u * s @ vh


def _with_course(matrix, n_steps=5):
    from course_lib.training import newton_schulz

    return newton_schulz(matrix, n_steps, dtype=matrix.dtype)


def _case(R, C, seed, n_steps=5, scale=1.0, dtype=torch.float32):
    return lambda: (normal(R, C, seed=seed, scale=scale, dtype=dtype, grad=False), n_steps)


def _sample(draw):
    R, C = draw.integer(1, 5), draw.integer(1, 6)
    matrix = draw.normal(R, C, dtype=torch.float64, grad=False) + 0.01 + torch.eye(R, C, dtype=torch.float64)
    return matrix, draw.integer(0, 6)


def _values_near_one(bring) -> str | None:
    u, _, vh = torch.linalg.svd(normal(3, 5, seed=81, grad=False), full_matrices=False)
    matrix = u * torch.tensor([4.0, 1.0, 0.25]) @ vh
    found = torch.linalg.svdvals(bring(matrix, 5))
    if float(found.min()) > 0.6 and float(found.max()) < 1.3:
        return None
    return f"The singular values 4, 1 and 0.25 become {', '.join(f'{value:.3g}' for value in found.tolist())}."


def _scale_does_not_matter(bring) -> str | None:
    matrix = normal(2, 3, seed=91, grad=False)
    one, other = bring(matrix, 3), bring(64 * matrix, 3)
    if torch.allclose(one, other, rtol=1e-3, atol=1e-4):
        return None
    return f"For 64 times the matrix, the first entry becomes {float(other[0, 0]):.4g} and not {float(one[0, 0]):.4g}."


EXERCISE = Exercise(
    title="All singular values near one",
    what="""Write `newton_schulz(matrix, n_steps=5)` for a matrix X of shape (R, C). First divide it by the root of the
sum of all its squares. Then do this `n_steps` times: compute A = X Xᵀ of shape (R, R), and replace X by
a · X + b · A X + c · A A X, with a = 3.4445, b = −4.7750 and c = 2.0315. Return the last X. The matrix is not zero.""",
    why="The heart of Muon. Computing the singular values and setting each to 1 is exact, but far slower on a GPU.",
    difficulty=2,
    minutes=6,
    reference=newton_schulz,
    model=_model,
    misconceptions=misconceptions("""
not-normalised (start="nothing"): does not divide the matrix before it begins
    What does the polynomial make of a singular value of 10?
by-the-largest-entry (start="largest"): divides by the largest entry at the start
    By how much can the largest singular value exceed the largest entry?
row-by-row (start="rows"): divides each row by its own length at the start
    By how many numbers do you divide, and of how many does the text speak?
column-by-column (start="columns"): divides each column by its own length at the start
    By how many numbers do you divide, and of how many does the text speak?
by-the-largest-singular-value (start="spectral"): divides by the largest singular value at the start
    What did you have to decompose to know it, and what is the iteration there to avoid?
entry-by-entry (side="elementwise"): takes powers of each entry, and no products of matrices
    What stands in row 0 and column 1 of X Xᵀ?
transposed-gram-matrix (side="wrong order"): multiplies by Xᵀ X from the right, with b at the fifth power and c at the
        third
    Which power of a singular value stands beside b in your line?
coefficients-reversed (coefficients="cba"): exchanges a and c
    By which number does the text multiply X itself?
plus-b (coefficients="all plus"): takes 4.7750 for b, without its sign
    Can all singular values stay near one if all three terms add?
cubic (power="three"): leaves out the term with c
    How many terms has your sum, and how many has the text's?
one-step (steps="one"): does one step, whatever number is given
    Which lines of yours stand inside the loop?
one-step-less (steps="one less"): does one step less than it is told
    With n_steps = 1, how often does your loop run?
five-steps (steps="fixed"): does five steps, whatever number is given
    What does your function do with its second argument?
divided-in-each-step (again=True): divides by the root of the sum of squares after each step again
    Which sum of squares should a matrix with three singular values of one have?
divided-by-the-squares (start="squares"): divides by the sum of the squares, not by its root
    What is the sum of the squares of the matrix after your division?
gram-computed-once (steps="one gram"): computes A only once, before the first step
    Of which X is A the product in the second step?
last-term-of-third-power (power="once"): multiplies by A only once in the last term
    How often does X occur as a factor in each of the three terms?
"""),
    cases=[
        Case("one number, 3, one step", lambda: (torch.tensor([[3.0]]), 1)),
        Case("2 rows, 3 columns, no step", _case(2, 3, seed=1, n_steps=0)),
        Case("2 rows, 3 columns, one step", _case(2, 3, seed=11, n_steps=1)),
        Case("3 rows, 2 columns, two steps", _case(3, 2, seed=21, n_steps=2)),
        Case("3 rows, 5 columns, five steps, not given", lambda: _case(3, 5, seed=31)()[:1]),
        Case("a large matrix, seven steps", _case(4, 7, seed=41, n_steps=7, scale=50.0)),
        Case("float64", _case(5, 3, seed=51, n_steps=3, dtype=torch.float64)),
    ],
    properties=[
        Property("After five steps all singular values lie near one.", _values_near_one),
        Property("Multiplying the matrix by a number changes nothing.", _scale_does_not_matter),
    ],
    alternatives=[
        Alternative("with Xᵀ X from the right", _from_the_right),
        Alternative("on the singular values themselves", _by_singular_values),
        Alternative("the course's own", _with_course),
    ],
    hints=(
        "For a matrix of one number x, what do X Xᵀ X and X Xᵀ X Xᵀ X come to?",
        "Divide once, before the loop. Inside, A is made anew from the X of this step, and used twice.",
        """x = matrix / matrix.norm()
for _ in range(n_steps):
    gram = ____  # (R, R)
    x = a * x + b * gram @ x + c * gram @ gram @ x""",
    ),
    sample=_sample,
    tries=("float32", "large", "zeros"),
    gradients=False,
    tolerance=(1e-3, 1e-4),
    equivalent_mutants={"c * gram @ gram -> gram @ (c * gram)": "a number may stand at any place of a product"},
)
