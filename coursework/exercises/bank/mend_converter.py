"""Exercise: move the rows of a checkpoint into the order that the model's rotary positions expect."""

import functools

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def to_halves(state, H, G):
    """weights by name, pairs (2i, 2i + 1) -> a new dict, pairs (i, i + E / 2)"""
    moved = dict(state)
    for name, weight in state.items():
        if name.endswith(("query.weight", "key.weight")):
            heads = G if name.endswith("key.weight") else H
            pairs = weight.unflatten(0, (heads, -1, 2))  # (heads, E / 2, 2, D)
            moved[name] = pairs.transpose(1, 2).flatten(0, 2)
    return moved


def _broken():
    def to_halves(state, H, G):
        """weights by name, pairs (2i, 2i + 1) -> a new dict, pairs (i, i + E / 2)"""
        moved = dict(state)
        for name, weight in state.items():
            if name.endswith(("query.weight", "key.weight")):
                pairs = weight.unflatten(0, (H, 2, -1))  # (heads, ...)
                moved[name] = pairs.transpose(1, 2).flatten(0, 2)
        return moved

    return to_halves


def _model(order="there", query="H", key="G", what=("query", "key"), axis=0):
    """A converter whose settings are the misconceptions."""

    def convert(state, H, G):
        moved = dict(state)
        for name, weight in state.items():
            kind = name.split(".")[-2]
            if kind not in what:
                continue
            heads = {"H": H, "G": G, "one": 1}[query if kind == "query" else "G" if kind == "value" else key]
            if order == "there":
                moved[name] = weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
            elif order == "back":
                moved[name] = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
            elif order == "swapped":
                moved[name] = weight.unflatten(0, (heads, -1, 2)).flip(2).transpose(1, 2).flatten(0, 2)
        return moved

    return convert


def _by_index(state, H, G):
    moved = {}
    for name, weight in state.items():
        heads = {"query": H, "key": G}.get(name.split(".")[-2], 0)
        if heads:
            rows = torch.arange(weight.size(0)).view(heads, -1)  # (heads, E): the rows of each head
            weight = weight[torch.cat([rows[:, 0::2], rows[:, 1::2]], dim=1).flatten()]
        moved[name] = weight
    return moved


def _head_by_head(state, H, G):
    def sorted_rows(weight, heads):
        parts = [torch.cat([head[0::2], head[1::2]]) for head in weight.chunk(heads)]
        return torch.cat(parts)

    moved = dict(state)
    for name in state:
        if name.endswith("query.weight"):
            moved[name] = sorted_rows(state[name], H)
        if name.endswith("key.weight"):
            moved[name] = sorted_rows(state[name], G)
    return moved


def _with_einsum(state, H, G):
    moved = {}
    for name, weight in state.items():
        moved[name] = weight
        for kind, heads in (("query", H), ("key", G)):
            if name.endswith(f".{kind}.weight"):
                pairs = weight.reshape(heads, -1, 2, weight.size(1))
                moved[name] = torch.einsum("hipd->hpid", pairs).reshape(weight.shape)
    return moved


def _weights(make, H, G, E, D, layers):
    state = {"embedding.weight": make(5, D)}
    for layer in range(layers):
        for kind, rows in (("query", H * E), ("key", G * E), ("value", G * E)):
            state[f"layers.{layer}.{kind}.weight"] = make(rows, D)
        state[f"layers.{layer}.output.weight"] = make(D, H * E)
    return state


@maker
def _case(H, G, E, D, layers, seed):
    seeds = iter(range(seed, seed + 20))
    return _weights(lambda *shape: normal(*shape, seed=next(seeds)), H, G, E, D, layers), H, G


def _sample(draw):
    share, G = draw.integer(1, 2), draw.integer(1, 3)
    E, D, layers = draw.choice((4, 8, 12)), draw.integer(2, 5), draw.integer(1, 2)
    make = functools.partial(draw.normal, dtype=draw.dtype())
    return _weights(make, share * G, G, E, D, layers), share * G, G


def _turned(x, halves, speed=0.7):
    """(T, E): pair i of row t turned by the angle t * speed / (i + 1)"""
    n = x.size(-1) // 2
    angle = torch.arange(len(x))[:, None] * speed / torch.arange(1, n + 1)
    a, b = (x[:, :n], x[:, n:]) if halves else (x[:, 0::2], x[:, 1::2])
    parts = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return torch.cat(parts, dim=-1) if halves else torch.stack(parts, dim=-1).flatten(-2)


def _scores_stay(convert) -> str | None:
    H, G, E, D = 4, 2, 8, 3
    state, _, _ = _case(H, G, E, D, 1, seed=201)()
    x = normal(6, D, seed=250)

    def scores(weights, halves):
        found = []
        for h in range(H):
            q = x @ weights["layers.0.query.weight"][h * E : (h + 1) * E].T
            g = h * G // H
            k = x @ weights["layers.0.key.weight"][g * E : (g + 1) * E].T
            found.append(_turned(q, halves) @ _turned(k, halves).T)
        return torch.stack(found)

    gap = (scores(state, False) - scores(convert(state, H, G), True)).abs().amax(dim=(1, 2))
    wrong = [h for h, size in enumerate(gap.tolist()) if size > 1e-3]
    return f"After the conversion the scores of query heads {wrong} are others." if wrong else None


EXERCISE = Exercise(
    title="Mend this converter",
    kind="debug",
    what="""A checkpoint has the weights of a Llama by their names: `layers.0.query.weight` is (H · E, D), head after
head, `layers.0.key.weight` and `layers.0.value.weight` are (G · E, D), and so on for each layer. Its rotary positions
turn the rows (2i, 2i + 1) of each head together. Your model turns rows (i, i + E/2). `to_halves` returns a new dict in
which the rows of each head are in **your** model's order: first all even ones, then all odd ones. Whatever is not
turned stays as it is. It runs, and the model writes nonsense. There are **two** mistakes; mend both. `state` itself
must not change.""",
    why="A file that a wrong converter wrote loads without complaint, and the model that it makes babbles.",
    difficulty=4,
    minutes=12,
    reference=to_halves,
    given=_broken(),
    model=_model,
    misconceptions=misconceptions("""
the-way-back (order="back"): moves the rows from halves to pairs, the way back
    For a head of six rows, in which order does your function leave them?
keys-cut-as-queries (key="H"): cuts the keys into as many heads as there are heads of queries
    How many heads of keys are there, and how many rows does each have?
queries-cut-as-keys (query="G"): cuts the queries into as many heads as there are heads of keys
    How many rows does one head of queries have?
one-large-head (query="one", key="one"): sorts the rows of all heads together
    Where is the last row of the first head afterwards?
keys-left (what=("query",)): leaves the keys as they were
    Which vectors do rotary positions turn?
queries-left (what=("key",)): leaves the queries as they were
    Which vectors do rotary positions turn?
values-moved (what=("query", "key", "value")): moves the rows of the values, too
    Which vectors do rotary positions turn?
nothing-moved (order="none"): leaves all rows where they were
    For a head of six rows, in which order does your function leave them?
odd-rows-first (order="swapped"): puts the odd rows of a head before the even ones
    Which of the two numbers of a pair comes first in your model?
"""),
    cases=[
        Case("1 head of 6 rows", _case(1, 1, 6, 2, 1, seed=1)),
        Case("3 heads, each with keys of its own", _case(3, 3, 6, 2, 1, seed=21)),
        Case("4 heads of queries, 2 of keys", _case(4, 2, 8, 3, 1, seed=41)),
        Case("6 heads of queries, 2 of keys, 2 layers", _case(6, 2, 12, 5, 2, seed=61)),
        Case("heads of 4 rows", _case(4, 2, 4, 3, 1, seed=81)),
    ],
    properties=[Property("Turned, queries and keys give the scores that they gave before.", _scores_stay)],
    alternatives=[
        Alternative("with an index of rows", _by_index),
        Alternative("head by head", _head_by_head),
        Alternative("with einsum", _with_einsum),
    ],
    hints=(
        "Write the six rows of one head as 0 to 5. Which order is wanted, and which does the given function make?",
        "Row 2i + p of a head has two indices, i and p. In which order do they stand in (heads, …, …, D), so that the "
        "last one runs fastest? And into how many heads are the keys cut?",
        """heads = G if name.endswith("key.weight") else H
pairs = weight.unflatten(0, ____)
moved[name] = pairs.transpose(1, 2).flatten(0, 2)""",
    ),
    sample=_sample,
)
