"""Exercise: a linear map with a frozen weight and a thin, trained update beside it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


class LoRALinear(nn.Module):
    """A frozen nn.Linear plus alpha / rank times B A"""

    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.factor = base, alpha / rank
        for parameter in base.parameters():
            parameter.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features).to(base.weight))
        self.B = nn.Parameter(torch.zeros(base.out_features, rank).to(base.weight))

    def forward(self, x):
        """(..., D_in) -> (..., D_out)"""
        return self.base(x) + self.factor * (x @ self.A.T @ self.B.T)


def _run(LoRALinear, alpha, state, x, device="cpu"):
    """What it gives with the weights of `state`, whether it starts as the base, what is trained, and where."""
    (d_out, d_in), rank = state["base.weight"].shape, len(state["A"])
    base = nn.Linear(d_in, d_out, bias="base.bias" in state, dtype=x.dtype, device=device)
    plain = base(x.detach().to(device))
    module = LoRALinear(base, rank, alpha)
    trained = ", ".join(sorted(name for name, one in module.named_parameters() if one.requires_grad))
    place = f"A: {module.A.dtype} on {module.A.device}"
    output = functional_call(
        module, {name: one.to(device) for name, one in state.items()}, (x.to(device),), strict=True
    )
    if device != "cpu":
        return tuple(output.shape), trained, place
    with torch.no_grad():
        starts = bool(torch.allclose(module(x), plain, atol=1e-6))
    zeros = "A" * (not module.A.any()) + "B" * (not module.B.any())
    return output, starts, f"zeros in {zeros or 'neither'}", trained, place


def _model(factor="alpha/rank", start="B", frozen="all", base="added", bend="none", where="base"):
    """A map whose settings are the misconceptions."""

    class Model(nn.Module):
        def __init__(self, base, rank, alpha):
            super().__init__()
            self.base = base
            factors = {
                "alpha/rank": alpha / rank,
                "none": 1.0,
                "alpha": alpha,
                "rank/alpha": rank / alpha,
                "1/rank": 1 / rank,
            }
            self.factor = factors[factor]
            for name, parameter in base.named_parameters():
                parameter.requires_grad_(frozen == "none" or (frozen == "weight" and name == "bias"))
            like = base.weight if where == "base" else torch.zeros(())
            shapes = (rank, base.in_features), (base.out_features, rank)
            A, B = (like.new_empty(shape).normal_() for shape in shapes)
            zeros = {"B": (1, 0), "neither": (1, 1), "both": (0, 0), "A": (0, 1)}[start]
            self.A, self.B = nn.Parameter(A * zeros[0]), nn.Parameter(B * zeros[1])

        def forward(self, x):
            thin = x @ self.A.T
            thin = F.relu(thin) if bend == "relu" else thin
            update = self.factor * (thin @ self.B.T)
            if base == "lost":
                return update
            if base == "all-scaled":
                return self.factor * (self.base(x) + thin @ self.B.T)
            return self.base(x) + update

    return Model


class _OneMatrix(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.rank, self.alpha = base.requires_grad_(False), rank, alpha
        self.A = nn.Parameter(base.weight.new_empty(rank, base.in_features).normal_(std=0.1))
        self.B = nn.Parameter(torch.zeros_like(base.weight[:, :rank]))

    def forward(self, x):
        weight = self.base.weight + self.alpha / self.rank * (self.B @ self.A)
        return F.linear(x, weight, self.base.bias)


class _WithFunctions(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        how = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.base, self.factor = base, alpha / rank
        self.A = nn.Parameter(torch.randn(rank, base.in_features, **how) / rank)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank, **how))
        base.requires_grad_(False)

    def forward(self, x):
        return torch.add(self.base(x), F.linear(F.linear(x, self.A), self.B), alpha=self.factor)


class _WithEinsum(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base, self.factor = base, alpha / rank
        for one in base.parameters():
            one.requires_grad = False
        self.A = nn.Parameter(base.weight.new_empty(rank, base.in_features).uniform_(-1, 1))
        self.B = nn.Parameter(base.weight.new_zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.factor * torch.einsum("...i,ri,or->...o", x, self.A, self.B)


@maker
def _case(shape, d_in, d_out, rank, alpha, seed, bias=True, dtype=torch.float32, **device):
    def tensor(*sizes, add):
        return normal(*sizes, seed=seed + add, dtype=dtype)

    state = {"base.weight": tensor(d_out, d_in, add=1), "A": tensor(rank, d_in, add=2), "B": tensor(d_out, rank, add=3)}
    if bias:
        state["base.bias"] = tensor(d_out, add=4)
    return {"alpha": alpha, "state": state, "x": tensor(*shape, d_in, add=5)} | device


def _sample(draw):
    d_in, d_out = (draw.integer(2, 6) for _ in range(2))
    rank, dtype, bias = draw.integer(1, min(d_in, d_out)), draw.dtype(), draw.boolean()
    shapes = {"base.weight": (d_out, d_in), "A": (rank, d_in), "B": (d_out, rank)}
    shapes |= {"base.bias": (d_out,)} if bias else {}
    return {
        "alpha": draw.choice((1.0, 2.0, 16.0)),
        "state": {name: draw.normal(*shape, dtype=dtype) for name, shape in shapes.items()},
        "x": draw.normal(draw.integer(1, 3), draw.integer(1, 4), d_in, dtype=dtype),
    }


def _an_update_of_zero_changes_nothing(call) -> str | None:
    made = _case((3,), 4, 5, 2, 6.0, seed=501)()
    state = {name: one.detach() for name, one in made["state"].items()}
    state["B"] = torch.zeros_like(state["B"])
    found = call(**made | {"state": state})[0]
    gap = float((found - F.linear(made["x"], state["base.weight"], state["base.bias"])).detach().abs().max())
    return f"With B = 0 it differs from the base by up to {gap:.2f}." if gap > 1e-4 else None


EXERCISE = Exercise(
    title="A thin update",
    what="""Write both methods of `LoRALinear`. It wraps `base`, an `nn.Linear`, and computes for x of shape (…, D_in)

$$W x + b + \\frac{\\alpha}{r} \\, B A x.$$

In the constructor keep the map as `self.base` and freeze its weight and its bias, if it has one, with
`requires_grad_(False)`. Make two parameters, `A` (r, D_in), drawn by `torch.randn`, and `B` (D_out, r), zeros, with
the dtype and on the device of the base's weight: `.to(base.weight)` moves a tensor there. `rank` is r, `alpha` a number
above zero.""",
    why="Put into each linear map, it fine-tunes a model of your own with less than a tenth of its parameters.",
    difficulty=3,
    minutes=15,
    reference=LoRALinear,
    blank=("__init__", "forward"),
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
no-factor (factor="none"): adds B A x without its factor
    What stands before B A x in the formula?
factor-alpha (factor="alpha"): multiplies by alpha and does not divide by the rank
    What is the factor for a rank of 4 and an alpha of 8?
factor-upside-down (factor="rank/alpha"): multiplies by rank / alpha
    What is the factor for a rank of 4 and an alpha of 8?
factor-without-alpha (factor="1/rank"): divides by the rank and leaves alpha out
    What is the factor for a rank of 4 and an alpha of 8?
both-random (start="neither"): starts with both matrices drawn at random
    What does a fresh module compute, before any training?
both-zero (start="both"): starts with both matrices at zero
    What is the gradient of A while B is zero, and that of B while A is zero?
zeros-in-a (start="A"): starts with A at zero and B at random
    Which of the two does the task set to zero?
not-frozen (frozen="none"): trains the base as well
    Which parameters get a gradient in your module?
bias-not-frozen (frozen="weight"): freezes the weight of the base and not its bias
    Which parameters get a gradient in your module?
base-lost (base="lost"): returns the update alone
    With B at zero, what should come out?
everything-scaled (base="all-scaled"): multiplies the base by the factor, too
    With B at zero, what should come out?
bent (bend="relu"): bends the thin vector by a ReLU
    Is what you compute still one matrix, so that it can be merged?
made-elsewhere (where="default"): makes A and B in the default dtype and on the default device
    What are the dtype and the device of the base's weight?
"""),
    cases=[
        Case("1 row, rank 1, alpha 2", _case((1,), 2, 3, 1, 2.0, seed=1)),
        Case("3 rows, rank 3, alpha 6", _case((3,), 5, 4, 3, 6.0, seed=11)),
        Case("2 sentences of 3 tokens, rank 2, alpha 1, no bias", _case((2, 3), 5, 7, 2, 1.0, seed=21, bias=False)),
        Case("4 rows, rank 5, float64", _case((4,), 7, 5, 5, 3.0, seed=31, dtype=torch.float64)),
        Case("on another device", _case((2,), 5, 3, 2, 3.0, seed=41, device="meta")),
    ],
    properties=[Property("With B at zero it is the base.", _an_update_of_zero_changes_nothing)],
    alternatives=[
        Alternative("with one matrix", _OneMatrix),
        Alternative("with functions", _WithFunctions),
        Alternative("with einsum", _WithEinsum),
    ],
    hints=(
        "Which three numbers does the update need, and which of the four tensors may be trained?",
        "x @ A.T is thin, (…, r). What takes it up to (…, D_out), and what does the product get multiplied by?",
        """self.A = nn.Parameter(torch.randn(...).to(base.weight))
self.B = nn.Parameter(torch.zeros(...).to(base.weight))
return self.base(x) + ____""",
    ),
    sample=_sample,
    tolerance=(1e-4, 1e-4),
)
