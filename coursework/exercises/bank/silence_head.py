"""Exercise: an ablation, a copy of a multi-head layer in which one head is silent."""

import copy
import math

import torch
from torch import nn

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import mask as random_mask
from coursework.exercises.tensors import normal


class MultiHead(nn.Module):
    """The layer of the chapter: H heads of width E = D / H"""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        maps = [nn.Linear(d_model, d_model) for _ in range(4)]
        self.query, self.key, self.value, self.output = maps

    def forward(self, x, mask=None):
        """(B, T, D), a mask that broadcasts to (B, H, T, T) -> (B, T, D)"""
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        scores = query @ key.mT / math.sqrt(query.size(-1))
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return self.output((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))

    def _split(self, x):
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, T, D) -> (B, H, T, E)


def silence_head(layer, head):
    """A layer, the number of a head -> a copy of the layer without what the head writes"""
    silenced = copy.deepcopy(layer)
    E = layer.output.weight.size(1) // layer.n_heads  # the weight of a linear map is (out, in)
    with torch.no_grad():
        silenced.output.weight[:, head * E : (head + 1) * E] = 0
    return silenced


def _model(what="columns", which="own", size="head", bias="kept", rest="same", copied=True):
    """An ablation whose settings are the misconceptions."""

    @torch.no_grad()
    def silence(layer, head):
        silenced = copy.deepcopy(layer) if copied else layer
        H, width = layer.n_heads, layer.output.weight.size(1)
        E = {"head": width // H, "heads": H, "one": 1}[size]
        first = {"own": head * E, "before": (head - 1) * E, "others": head * E}.get(which, 0)
        own = [number for number in range(first, first + E) if 0 <= number < width]
        if which == "strided":
            own = list(range(head, width, H))
        elif which == "others":
            own = [number for number in range(width) if number not in own]
        elif which == "all":
            own = list(range(width))
        if what == "columns":
            silenced.output.weight[:, own] = 0
            if rest == "rescaled" and H > 1:
                silenced.output.weight *= H / (H - 1)
        elif what == "rows":
            silenced.output.weight[own] = 0
        elif what == "rows-and-bias":
            silenced.output.weight[own] = 0
            silenced.output.bias[own] = 0
        else:
            part = silenced.query if what == "queries" else silenced.value
            part.weight[own] = 0
            if what == "queries":
                part.bias[own] = 0
        if bias == "zero":
            silenced.output.bias.zero_()
        return silenced

    return silence


def _with_values(layer, head):
    silenced = copy.deepcopy(layer)
    E = layer.value.weight.size(0) // layer.n_heads
    own = slice(head * E, (head + 1) * E)
    silenced.value.weight.data[own] = 0.0  # a head whose values are all zero
    silenced.value.bias.data[own] = 0.0
    return silenced


def _with_a_hook(layer, head):
    silenced = copy.deepcopy(layer)

    def without(module, inputs):
        (merged,) = inputs
        E = merged.size(-1) // layer.n_heads
        own = torch.arange(merged.size(-1)) // E == head
        return merged.masked_fill(own, 0.0)

    silenced.output.register_forward_pre_hook(without)
    return silenced


def _with_a_state_dict(layer, head):
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    state["output.weight"].unflatten(1, (layer.n_heads, -1))[:, head] = 0.0
    silenced = copy.deepcopy(layer)
    silenced.load_state_dict(state)
    return silenced


def _run(silence_head, sizes, state, x, mask, head):
    layer = MultiHead(**sizes)
    layer.load_state_dict(state)
    layer = layer.to(x.dtype)
    silenced = silence_head(layer, head)
    if not callable(silenced):
        return silenced
    with torch.no_grad():
        return {"of the copy": silenced(x, mask), "of the layer afterwards": layer(x, mask)}


def _arguments(B, T, H, E, head, tensor, mask):
    D = H * E
    state = {}
    for part in ("query", "key", "value", "output"):
        state |= {f"{part}.weight": tensor(D, D), f"{part}.bias": tensor(D)}
    mask = mask.clone()
    mask[..., 0] = True  # each token may see the first
    return {"d_model": D, "n_heads": H}, state, tensor(B, T, D), mask, head


@maker
def _case(B, T, H, E, head, seed, dtype=torch.float32):
    seeds = iter(range(seed, seed + 20))
    mask = random_mask(B, 1, T, T, seed=seed)
    return _arguments(
        B, T, H, E, head, lambda *shape: normal(*shape, seed=next(seeds), dtype=dtype, scale=0.5, grad=False), mask
    )


def _sample(draw):
    B, T, H, E = (draw.integer(1, high) for high in (3, 4, 4, 3))
    dtype = draw.dtype()
    head, mask = draw.integer(0, H - 1), draw.mask(B, 1, T, T)
    return _arguments(B, T, H, E, head, lambda *shape: draw.normal(*shape, dtype=dtype, scale=0.5, grad=False), mask)


def _the_layer_is_as_before(silence_head) -> str | None:
    sizes, state, x, mask, _ = _case(1, 3, 3, 2, 1, seed=301)()
    outputs = [silence_head(sizes, state, x, mask, head)["of the layer afterwards"] for head in (0, 2)]
    gap = float((outputs[0] - outputs[1]).abs().max())
    return f"Afterwards the layer that was given differs by up to {gap:.2f}." if gap > 1e-4 else None


def _parts_add_up(silence_head) -> str | None:
    sizes, state, x, mask, _ = _case(1, 3, 3, 2, 1, seed=331)()
    whole = MultiHead(**sizes)
    whole.load_state_dict(state)
    with torch.no_grad():
        full = whole(x, mask)
    taken = [full - silence_head(sizes, state, x, mask, head)["of the copy"] for head in range(3)]
    gap = float((sum(taken) + state["output.bias"] - full).abs().max())
    if gap > 1e-4:
        return f"What you took away for each of three heads, and the bias, miss the layer's output by up to {gap:.2f}."
    return None


EXERCISE = Exercise(
    title="Silence a head",
    what="""Write `silence_head(layer, head)`. It returns a copy of the layer whose output no longer holds what that
head wrote. Everything else stays in it: what the other heads write, and the bias of `output`. Make the copy with
`copy.deepcopy(layer)`, and leave the layer that you got as it was. It has `n_heads` heads, numbered from 0, and four
linear maps, `query`, `key`, `value` and `output`. PyTorch stores the weight of a linear map as (out, in). Change it
inside `with torch.no_grad():`, so that no gradient is recorded.""",
    why="This is the experiment that tells what a model needs. You use it in the next cells.",
    difficulty=4,
    minutes=8,
    reference=silence_head,
    parts={"copy": copy, "MultiHead": MultiHead},
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
rows-of-the-output-map (what="rows"): zeros rows of the stored output weight, which are numbers of the stream
    Stored as (out, in): which of the two axes meets the numbers of the heads?
rows-and-their-bias (what="rows-and-bias"): zeros numbers of the output, where all heads write
    Do the other heads still reach every number of the output?
queries-silenced (what="queries"): zeros the head's queries, so that it looks everywhere alike and still writes
    With all scores equal, what does a softmax give, and what does the head then take along?
value-bias-left (what="values"): zeros the weight of the head's values and leaves their bias, which it still writes
    What is the value of a token if the weight is zero and the bias is not?
one-head-too-early (which="before"): counts the heads from 1 and takes the numbers of the head before
    Which numbers belong to head 0?
every-hth-number (which="strided"): takes every H-th number in place of a block of neighbouring ones
    After the merge, which numbers stand side by side?
all-others (which="others"): silences all heads but this one
    Whose part should still be in the output?
all-heads (which="all"): silences every head
    Whose part should still be in the output?
block-of-h-numbers (size="heads"): takes as many numbers as there are heads in place of as many as a head is wide
    How many numbers does one head hand to the output map?
one-number (size="one"): takes a single number of the head
    How many numbers does one head hand to the output map?
bias-removed (bias="zero"): removes the bias of the output map, too
    To which head does the bias of the output map belong?
others-made-louder (rest="rescaled"): makes what the other heads write larger to make up for the silent one
    Should the other heads write anything else than before?
layer-changed (copied=False): changes the layer that it was given
    What does the layer that you were given compute after your call?
"""),
    cases=[
        Case("1 sentence of 2 tokens, head 0 of 2, width 1", _case(1, 2, 2, 1, 0, seed=1)),
        Case("1 sentence of 3 tokens, head 1 of 2, width 3", _case(1, 3, 2, 3, 1, seed=31)),
        Case("2 sentences, head 1 of 3, width 2", _case(2, 3, 3, 2, 1, seed=61)),
        Case("head 2 of 4, width 2", _case(1, 3, 4, 2, 2, seed=91)),
        Case("the only head", _case(2, 3, 1, 3, 0, seed=121)),
        Case("float64, the last head of 3", _case(2, 4, 3, 2, 2, seed=151, dtype=torch.float64)),
    ],
    properties=[
        Property("The layer that was given computes what it computed before.", _the_layer_is_as_before),
        Property("What the heads write and the bias add up to the output.", _parts_add_up),
    ],
    alternatives=[
        Alternative("with values that are zero", _with_values),
        Alternative("with a hook before the output map", _with_a_hook),
        Alternative("with a changed state dict", _with_a_state_dict),
    ],
    hints=(
        "The output of the layer is a sum with one part from each head. Through which numbers of which weight does the "
        "part of this head go?",
        "In the stored weight of the output map, E columns belong to the head, and E is the number of columns by the "
        "number of heads. In formulas these are rows, because PyTorch stores the matrix turned round.",
        """silenced = copy.deepcopy(layer)
E = ...
with torch.no_grad():
    silenced.output.weight[____] = 0
return silenced""",
    ),
    sample=_sample,
    gradients=False,
    tolerance=(1e-4, 1e-4),
    equivalent_mutants={"1 -> 0": "the weight of the output map is square"},
)
