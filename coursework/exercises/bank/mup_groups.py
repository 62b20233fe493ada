"""Exercise: groups of parameters whose rates fit the width of a model, so that a rate found on a narrow one serves."""

import math

import torch
from torch import Tensor, nn

from coursework.exercises.modules import Unfit
from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def mup_groups(model, base, rate):
    """model, a narrow one, its best rate -> groups for Adam; scales the head's weights"""
    narrow, groups = dict(base.named_parameters()), []
    tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
    for name, p in model.named_parameters():
        wider = 1.0  # how many times as many inputs
        if p.dim() == 2 and id(p) not in tables:
            wider = p.size(1) / narrow[name].size(1)
            if p.size(0) == narrow[name].size(0):  # the head
                with torch.no_grad():
                    p /= wider**0.5
        groups.append({"params": [p], "lr": rate / wider})
    return groups


def _net(parts: str, D: int, F: int) -> nn.ModuleDict:
    """A model of these parts, the weights always the same."""
    made = {
        "token": lambda: nn.Embedding(5, D),
        "patch": lambda: nn.Linear(3, D),
        "up": lambda: nn.Linear(D, F),
        "down": lambda: nn.Linear(F, D, bias=False),
        "norm": lambda: nn.LayerNorm(D),
        "rms": lambda: nn.RMSNorm(D),
        "head": lambda: nn.Linear(D, 5, bias=False),
    }
    model = nn.ModuleDict({name: made[name]() for name in parts.split()})
    for number, p in enumerate(model.parameters()):
        p.data = normal(*p.shape, seed=number + 1, grad=False) + 0.01
    return model


def _run(groups_of, parts, widths, base_widths, rate):
    """The rate of each parameter, then the weights of both models."""
    model, base = _net(parts, *widths), _net(parts, *base_widths)
    groups = list(groups_of(model, base, rate))
    rates, names = {}, {id(p): name for name, p in model.named_parameters()}
    for group in groups:
        if not isinstance(group, dict) or not {"params", "lr"} <= set(group):
            raise Unfit('A group for Adam is a dict with "params" and "lr".')
        for p in [group["params"]] if isinstance(group["params"], Tensor) else group["params"]:
            name = names.get(id(p))
            if name is None:
                raise Unfit("The groups hold a tensor that is no parameter of the model.")
            if name in rates:
                raise Unfit(f"{name} stands in two groups.")
            rates[name] = group["lr"]
    if missing := [name for name in names.values() if name not in rates]:
        raise Unfit(f"{missing[0]} stands in no group.")
    found = {f"rate of {name}": float(rates[name]) for name in names.values()}
    found |= {name: p.detach().clone() for name, p in model.named_parameters()}
    return found | {f"narrow {name}": p.detach().clone() for name, p in base.named_parameters()}


def _model(
    tables="known",
    head_rate="in",
    scaled="head",
    power=1.0,
    side="in",
    vectors="whole",
    by="root",
    up="wider",
    own=True,
):  # fmt: skip
    """A function whose settings are the misconceptions."""

    def groups_of(model, base, rate):
        narrow, groups = dict(base.named_parameters()), []
        known = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
        widest = max(p.size(-1) / narrow[name].size(-1) for name, p in model.named_parameters() if p.dim() == 2)
        for name, p in model.named_parameters():
            before = narrow[name]
            out = into = 1.0
            if p.dim() == 2 and (id(p) not in known or tables == "as maps"):
                out, into = (p.size(i) / before.size(i) for i in (0, 1))
            elif p.dim() == 1 and vectors == "divided":
                into = out = p.size(0) / before.size(0)
            is_head = out == 1 and into > 1
            if (scaled == "head" and is_head) or (scaled == "all" and into > 1 and p.dim() == 2):
                p.data /= into if by == "growth" else into**0.5
            share = {"in": into, "out": out, "both": into * out}[side]
            if not own and into > 1:
                share = widest
            if is_head and head_rate == "whole":
                share = 1.0
            groups.append({"params": [p], "lr": rate / share**power if up == "wider" else rate * share})
        return groups

    return groups_of


def _by_modules(model, base, rate):
    groups, rest = [], []
    for part, narrow in zip(model.modules(), base.modules(), strict=True):
        own = dict(part.named_parameters(recurse=False))
        if isinstance(part, nn.Linear):
            wider = part.in_features / narrow.in_features
            if part.out_features == narrow.out_features:
                part.weight.data.mul_(wider**-0.5)
            groups.append({"params": [own.pop("weight")], "lr": rate / wider})
        rest += own.values()
    return [*groups, {"params": rest, "lr": rate}]


def _a_group_for_each_rate(model, base, rate):
    tables = [part.weight for part in model.modules() if isinstance(part, nn.Embedding)]
    groups = {}
    for p, narrow in zip(model.parameters(), base.parameters(), strict=True):
        matrix = p.dim() == 2 and all(p is not table for table in tables)
        wider = p.shape[1] / narrow.shape[1] if matrix else 1
        if matrix and p.shape[0] == narrow.shape[0]:
            p.data = p.data / math.sqrt(wider)
        groups.setdefault(wider, []).append(p)
    return [{"params": together, "lr": rate / wider} for wider, together in groups.items()]


def _by_kinds(model, base, rate):
    maps = {f"{name}.weight" for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    hidden, narrow = [], dict(base.named_parameters())
    others = [p for name, p in model.named_parameters() if name not in maps]
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in maps:
                (out, into), (narrow_out, narrow_in) = p.shape, narrow[name].shape
                hidden.append({"params": p, "lr": rate * narrow_in / into})
                p *= (narrow_in / into) ** (0.5 if out == narrow_out else 0)
    return [*hidden, {"params": others, "lr": rate}]


def _sample(draw):
    parts = [part for part in ("token", "patch", "up", "down", "norm", "rms", "head") if draw.boolean()]
    D, F = draw.integer(2, 4), draw.integer(2, 4)
    widths = D * draw.choice((2, 3, 8)) // 2, F * draw.choice((3, 4, 6)) // 2
    return " ".join([*parts, "up"] if "up" not in parts else parts), widths, (D, F), draw.choice((0.5, 0.25))


def _tables_keep_the_rate(call) -> str | None:
    found = call("token up head", (12, 6), (3, 3), 0.5)
    rate, same = (
        found["rate of token.weight"],
        torch.equal(found["token.weight"], next(_net("token", 12, 6).parameters())),
    )
    if rate == 0.5 and same:
        return None
    return f"In a model four times as wide the token table {'has the rate ' + str(rate) if same else 'is scaled'}."


EXERCISE = Exercise(
    title="Groups that fit the width",
    what="""Write `mup_groups(model, base, rate)`. `model` is fresh, with its first weights as torch draws them. `base`
is a narrower model with the same names, and `rate` is its best rate. Return a list of groups for `torch.optim.Adam`,
dicts with `"params"` and `"lr"`, with each parameter of `model` appearing exactly once:

- The weight of a linear map has the shape (outputs, inputs). Divide its rate by the growth of its **inputs**: their
  number divided by that in `base`.
- If the inputs have grown and the outputs have not, it is the head. Divide its weights in place, too, by the **root**
  of that growth. (torch has divided them by one root already.)
- Token tables, `nn.Embedding`, keep the full rate, and so do vectors: biases and the weights of norms.

Only the head's weights change, and `base` does not.""",
    why="Look for the rate on a model that trains in a second, and use it on one that takes a day.",
    difficulty=3,
    minutes=20,
    reference=mup_groups,
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
table-as-head (tables="as maps"): treats a token table like the head
    A token table and a head have the same shape; along which of its two sides does each of them add numbers up?
full-rate-for-the-head (head_rate="whole"): gives the head the full rate
    Over how many inputs does the head add up, and does this number grow?
head-not-scaled (scaled="none"): leaves the weights of the head as torch drew them
    By what has torch divided the head's weights, and by what should they be divided in the end?
every-matrix-scaled (scaled="all"): scales the weights of all matrices whose input grows
    How does torch draw the weights of a matrix inside a layer when it has more inputs?
scaled-by-the-growth (by="growth"): divides the head's weights by the growth itself
    How much of the growth is in torch's own weights of the head already?
rate-by-the-root (power=0.5): divides rates by the root of the growth
    In one step of Adam, do the moves of the products add up like random numbers or like equal ones?
rate-by-outputs (side="out"): divides rates by the growth of the outputs
    Which side of a matrix does one output add up over?
rate-by-both (side="both"): divides rates by the growth of the outputs, too
    Which side of a matrix does one output add up over?
rate-multiplied (up="narrower"): multiplies rates by the growth
    Does a sum over more inputs move further or less far in one step of Adam?
vectors-divided (vectors="divided"): divides the rates of biases and norms, too
    Over how many numbers does an output add up where it meets a bias?
one-growth-for-all (own=False): takes one growth for all maps
    The feed-forward may grow more than the stream; how many inputs has each of its two maps?
"""),
    cases=[
        Case("a map and a head, twice as wide", lambda: ("up head", (4, 6), (2, 3), 0.5)),
        Case("a token table, a map, a head, four times as wide", lambda: ("token up head", (8, 12), (2, 3), 0.25)),
        Case("with a norm and biases", lambda: ("token norm up down head", (8, 12), (2, 3), 0.25)),
        Case("a map from three numbers of an image", lambda: ("patch up head", (6, 8), (3, 4), 0.5)),
        Case("a feed-forward that grows more", lambda: ("token norm up down head", (4, 18), (2, 3), 0.5)),
        Case("a model of the same width", lambda: ("token norm up head", (2, 3), (2, 3), 0.125)),
    ],
    properties=[Property("A token table keeps its rate and its weights at every width.", _tables_keep_the_rate)],
    alternatives=[
        Alternative("by the kinds of modules", _by_modules),
        Alternative("with a group for each rate", _a_group_for_each_rate),
        Alternative("with the names of the linear maps", _by_kinds),
    ],
    hints=(
        "A token table and a head both grow from (5, 2) to (5, 8). What tells you which of them is the head?",
        "Find the narrow parameter by its name. Which weights are tables, the modules of the model tell you.",
        """narrow, groups = dict(base.named_parameters()), []
tables = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
for name, p in model.named_parameters():
    wider = 1.0  # how many times as many inputs
    if p.dim() == 2 and id(p) not in tables:
        wider = ...  # from the shapes of p and narrow[name]
        if ...:  # the head
            with torch.no_grad():
                p /= wider**0.5
    groups.append({"params": [p], "lr": ____})
return groups""",
    ),
    sample=_sample,
    gradients=False,
)
