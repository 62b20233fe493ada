"""Exercise: measure which output depends on which token, without reading any code."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def dependencies(layer, x):
    """A function (T, D) -> (T, E), x (T, D) -> bool (T, T), rows are outputs"""
    before = layer(x)  # (T, E)
    columns = []
    for token in range(len(x)):
        changed = x.clone()
        changed[token] = torch.randn_like(x[token])
        moved = (layer(changed) - before).abs() > 1e-5  # (T, E)
        columns.append(moved.any(dim=-1))  # (T,)
    return torch.stack(columns, dim=1)  # (T, T)


def _model(
    change="noise", start="copy", over="any", tolerance=1e-5, how="perturb", layout="outputs-tokens", size="each"
):
    """A map of dependencies whose settings are the misconceptions."""

    def detect(layer, x):
        if how == "gradient":
            jacobian = torch.autograd.functional.jacobian(layer, x)  # (T, E, T, D)
            moved = (jacobian.abs() > tolerance).any(dim=-1).movedim(-1, 0)  # (token, output, E)
        else:
            moved = torch.stack(_movements(layer, x, change, start, tolerance, size))
        rows = {"any": moved.any(dim=-1), "all": moved.all(dim=-1), "first": moved[..., 0]}[over]
        if layout == "others":
            rows = rows & ~torch.eye(len(rows), dtype=torch.bool)
        if layout == "later":
            return rows.T.triu(1)
        return rows if layout == "tokens-outputs" else rows.T

    return detect


def _movements(layer, x, change, start, tolerance, size):
    """For each token: which components of which outputs move when it is changed."""
    before, changed = layer(x).clone(), x.clone()
    found = []
    for token in range(len(x)):
        if start == "copy":
            changed = x.clone()
        elif start == "input":
            changed = x
        old = x[token].clone()
        new = {"noise": torch.randn_like(old), "zero": 0 * old, "shift": old + 1, "scale": 2 * old}[change]
        changed[token] = new
        difference = layer(changed) - before
        if size == "sum":
            difference = difference.sum(-1, keepdim=True)
        found.append(difference.abs() > tolerance)
    return found


def _with_masks(layer, x):
    before, columns = layer(x), []
    for own in torch.eye(len(x), dtype=torch.bool):  # True at one token
        after = layer(torch.where(own[:, None], x + torch.randn_like(x), x))
        columns.append((after - before).abs().amax(dim=1) > 1e-5)
    return torch.stack(columns).T


def _with_cells(layer, x):
    T = len(x)
    found = torch.zeros(T, T, dtype=torch.bool)
    before = layer(x)
    for token in range(T):
        after = layer(torch.cat([x[:token], torch.randn(1, x.size(1)), x[token + 1 :]]))
        for output in range(T):
            found[output, token] = not torch.allclose(after[output], before[output], rtol=0.0, atol=1e-5)
    return found


def _with_vmap(layer, x):
    T = len(x)
    own = torch.eye(T, dtype=torch.bool)[:, :, None]  # copy t changes token t
    copies = torch.where(own, torch.randn(T, 1, x.size(1)), x)  # (T, T, D)
    moved = (torch.func.vmap(layer)(copies) - layer(x)).norm(dim=-1) > 1e-5  # (token, output)
    return moved.T


@dataclass(frozen=True)
class _Layer:
    """A function on tokens with a name that can be shown."""

    name: str
    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def __repr__(self) -> str:
        return self.name


def _next(x):
    """Each position gets the token after it, the last one nothing."""
    return torch.cat([x[1:], torch.zeros_like(x[:1])])


def _causal_mean(x):
    return x.cumsum(dim=0) / torch.arange(1, len(x) + 1)[:, None]


def _first_reads_fourth(x):
    return torch.cat([x[:1] + x[3:4], x[1:]])


def _last_component(x):
    """The mean of all tokens reaches the last component only."""
    return torch.cat([x[:, :-1], x[:, -1:] + x.mean(dim=0)[-1]], dim=1)


def _first_component(x):
    """The mean of all tokens reaches the first component only."""
    return torch.cat([x[:, :1] + x.mean(dim=0)[0], x[:, 1:]], dim=1)


def _moved_across(x):
    """The mean of the first components moves from the last component to the first: the sum of an output stays."""
    mean = x.mean(dim=0)[0]
    return torch.cat([x[:, :1] + mean, x[:, 1:-1], x[:, -1:] - mean], dim=1)


def _total_minus_later(x):
    """The running sum, computed from its other end."""
    return x.sum(dim=0) - (x.flip(0).cumsum(dim=0).flip(0) - x)


_LAYERS: dict[str, Callable[[Tensor], Tensor]] = {
    "each token alone": lambda x: 2 * x + 1,
    "the tokens themselves": lambda x: x,
    "the next token": _next,
    "the mean of the tokens so far": _causal_mean,
    "the mean of all tokens": lambda x: x + x.mean(dim=0),
    "the mean of all tokens, in the first component": _first_component,
    "the mean of all tokens, in the last component": _last_component,
    "the mean of all tokens, from the last component to the first": _moved_across,
    "position 0 reads token 3": _first_reads_fourth,
    "the next token, brought to length one": lambda x: _next(F.normalize(x, dim=-1)),
    "the next token, its mean taken off": lambda x: _next(x - x.mean(dim=-1, keepdim=True)),
    "the mean of all tokens, without gradient": lambda x: x + x.mean(dim=0).detach(),
    "the sum of all tokens minus the later ones": _total_minus_later,
}


def _case(name, T, D, seed):
    return Case(
        f"{T} tokens, layer: {name}", lambda: (_Layer(name, _LAYERS[name]), normal(T, D, seed=seed, grad=False))
    )


def _large_outputs():
    layer = _Layer("a hundredth of the mean of all tokens, and 1000", lambda x: 1000 + 0.01 * (x + x.mean(dim=0)))
    return layer, normal(3, 3, seed=53, grad=False)


def _zero_token():
    layer, x = _case("position 0 reads token 3", 5, 3, seed=51).make()
    x[3] = 0.0
    return layer, x


def _sample(draw):
    name = draw.choice(list(_LAYERS))
    return _Layer(name, _LAYERS[name]), draw.normal(draw.integer(4, 7), draw.integer(3, 5), grad=False)


def _finds(name, expected):
    def check(detect) -> str | None:
        x = normal(4, 3, seed=61, grad=False)
        found = detect(_LAYERS[name], x)
        for output in range(4):
            for token in range(4):
                if bool(found[output, token]) != expected(output, token):
                    says = "does not depend" if expected(output, token) else "depends"
                    return f"For a layer that takes {name}, it says that output {output} {says} on token {token}."
        return None

    return check


def _input_is_left(detect) -> str | None:
    x = normal(4, 3, seed=71, grad=False)
    detect(_causal_mean, x)
    return None if torch.equal(x, normal(4, 3, seed=71, grad=False)) else "After the call, `x` holds other numbers."


EXERCISE = Exercise(
    title="Who depends on whom",
    kind="measure",
    what="""Write `dependencies(layer, x)`. `layer` is a function from tokens `(T, D)` to outputs `(T, E)`; `x` is one
input. Return a boolean map `(T, T)`, True at `[i, j]` if the output at position i depends on token j: rows are
outputs, columns are tokens, as in a mask. Find out by trying: run the layer, replace a token, run it again, look at
what moved. The same number may come out with another rounding, so ignore changes below 0.00001, and no others, even
where outputs are large. A layer may read of a token only one component, or its direction and not its length, or how
its components differ from their mean: choose a replacement that changes all of these, such as random numbers. Change
one token at a time. A change in one component of an output is enough. Leave `x` as it is. The map is boolean.""",
    why="""It finds a leak from the future, a True above the diagonal, without reading any code. For a causal layer
the map is the causal mask, measured.""",
    difficulty=3,
    minutes=10,
    reference=dependencies,
    model=_model,
    misconceptions=misconceptions("""
transposed (layout="tokens-outputs"): writes a row for each token and a column for each output
    For a layer that reads the next token, is your map True above or below the diagonal?
own-token-left-out (layout="others"): never marks an output as dependent on its own token
    Does the output at position 2 move when token 2 is replaced?
later-tokens-only (layout="later"): marks later tokens only
    What does the map of a causal layer look like, and is it empty?
all-components (over="all"): marks an output only if every one of its components moves
    If one component of an output moves and the others do not, does the output depend on the token?
first-component (over="first"): looks at the first component of each output only
    What do you see of a change that reaches only the last component?
set-to-zero (change="zero"): changes a token by setting it to zero
    What changes if the token is zero already?
shifted (change="shift"): adds the same number to all components of a token
    What does a layer that takes the mean off each token see of your change?
scaled (change="scale"): multiplies a token by a number
    What does a layer that brings each token to length one see of your change?
no-rounding (tolerance=0.0): asks for outputs that are equal to the last digit
    Is (a + b) - b always exactly a in floating point?
gradient-only (how="gradient"): looks for gradients in place of changes
    If a layer computes a mean without gradient, does its output still move with the tokens?
changes-add-up (start="once"): leaves the tokens changed before as they are when it changes the next one
    When token 3 has its turn, which tokens differ from `x`?
changes-its-input (start="input"): changes `x` itself
    What is left of `x` after your function has run?
changes-cancel (size="sum"): adds the changes of all components, which may cancel
    One component grew by 1 and another fell by 1: what does your test see?
"""),
    cases=[
        _case("each token alone", 2, 3, seed=1),
        _case("the next token", 2, 3, seed=2),
        _case("the mean of the tokens so far", 3, 2, seed=3),
        _case("the mean of all tokens", 3, 2, seed=4),
        _case("the mean of all tokens, in the first component", 3, 2, seed=11),
        _case("the mean of all tokens, in the last component", 3, 2, seed=5),
        _case("the mean of all tokens, from the last component to the first", 3, 5, seed=12),
        _case("position 0 reads token 3", 5, 3, seed=6),
        Case("5 tokens, token 3 is zero, layer: position 0 reads token 3", _zero_token),
        Case("3 tokens, layer: large outputs that change little", _large_outputs),
        _case("the next token, brought to length one", 5, 3, seed=7),
        _case("the next token, its mean taken off", 5, 3, seed=8),
        _case("the mean of all tokens, without gradient", 5, 3, seed=9),
        _case("the sum of all tokens minus the later ones", 5, 31, seed=10),  # wide: some component always rounds
    ],
    properties=[
        Property(
            "The map of a causal layer is the causal mask.",
            _finds("the mean of the tokens so far", lambda i, j: j <= i),
        ),
        Property("A layer that reads the next token leaks.", _finds("the next token", lambda i, j: j == i + 1)),
        Property(
            "A layer that normalises its tokens still depends on them.",
            _finds("the next token, brought to length one", lambda i, j: j == i + 1),
        ),
        Property("The input is left as it was.", _input_is_left),
    ],
    alternatives=[
        Alternative("with a mask that is True at one token", _with_masks),
        Alternative("cell by cell", _with_cells),
        Alternative("all changes in one batch, with vmap", _with_vmap),
    ],
    hints=(
        "If output 2 does not depend on token 4, what happens to it when token 4 becomes another token?",
        "Replace one token at a time, in a fresh copy, by something that no normalisation can undo: random numbers. "
        "Each replacement gives one column of the map.",
        """before = layer(x)
columns = []
for token in range(len(x)):
    changed = ...  # x with another token at this position
    columns.append(____)  # bool (T,), which outputs moved
return torch.stack(columns, dim=1)""",
    ),
    sample=_sample,
    tries=("zeros", "repeated"),
    equivalent_mutants={
        "(layer(changed) - before).abs() > 1e-05 -> (layer(changed) - before).abs() >= 1e-05": (
            "no change is exactly as large as the limit"
        ),
        "layer(changed) - before -> before - layer(changed)": "only the size of the change is used",
    },
    gradients=False,
)
