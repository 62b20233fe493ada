"""Exercise: the forward pass of a GPT, of a whole text and of new tokens behind a cache."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers, normal


class GPT(nn.Module):
    """layers: called as layer(x, positions, mask, cache) -> (B, T, D)"""

    def __init__(self, vocab_size, d_model, layers, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(d_model)
        self.to_logits = nn.Linear(d_model, vocab_size)

    def forward(self, tokens, caches=None):
        """ids (B, T), None or a list with one dict for each layer -> logits (B, T, V)"""
        T = tokens.size(1)
        P = caches[0]["k"].size(2) if caches and caches[0] else 0  # tokens read before
        positions = torch.arange(P, P + T, device=tokens.device)
        mask = torch.ones(T, P + T, dtype=torch.bool, device=tokens.device).tril(P)
        x = self.dropout(self.embedding(tokens))
        for number, layer in enumerate(self.layers):
            x = layer(x, positions, mask, caches[number] if caches else None)
        return self.to_logits(self.norm(x))


class _Layer(nn.Module):
    """Stands for a layer: one head whose keys know their position, and a cache (B, 1, P, D)."""

    def __init__(self, d_model):
        super().__init__()
        self.key, self.value = (nn.Parameter(torch.empty(d_model, d_model)) for _ in range(2))
        self.shift = nn.Parameter(torch.empty(d_model))

    def forward(self, x, positions, mask, cache=None):
        for name, one in (("positions", positions), ("mask", mask)):
            if one.device != x.device:
                raise RuntimeError(f"the layer got x on the device {x.device} and {name} on {one.device}")
        angle = positions[:, None].to(x.dtype) * torch.linspace(0.9, 0.2, x.size(-1), dtype=x.dtype, device=x.device)
        k, v = (x @ self.key)[:, None], (x @ self.value)[:, None]  # (B, T, D) -> (B, 1, T, D)
        q = k = k * angle.cos() + k.roll(1, -1) * angle.sin()
        if cache:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        if cache is not None:
            cache["k"], cache["v"] = k, v
        scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(~mask, -1e9)
        return x + 2 * (scores.softmax(dim=-1) @ v)[:, 0] + self.shift


def _run(GPT, tokens, pieces, state, dropout, training, device="cpu"):
    """The logits (B, T, V), of all tokens at once or, with a cache, piece by piece."""
    V, D = state["embedding.weight"].shape
    n_layers = len([name for name in state if name.endswith("key")])
    model = GPT(V, D, [_Layer(D) for _ in range(n_layers)], dropout).train(training)
    call = functools.partial(functional_call, model, {name: one.to(device) for name, one in state.items()}, strict=True)
    if pieces is None:
        if training:
            call((tokens[:, :1].to(device),))  # another text before; nothing of it may be kept
        logits = call((tokens.to(device),))
    else:
        caches = [{} for _ in range(n_layers)]
        found = [call((piece.to(device), caches)) for piece in tokens.split(pieces, dim=1)]
        logits = torch.cat(found, dim=1) if all(isinstance(one, torch.Tensor) for one in found) else found[0]
    return tuple(logits.shape) if device != "cpu" and isinstance(logits, torch.Tensor) else logits


def _model(
    positions="go-on", mask="bottom-right", caches="own", dropout="start", norm="end", order="in-turn", residual="in",
    returns="logits", scale="none", device="tokens", count="keys",
):  # fmt: skip
    """A GPT whose settings are the misconceptions."""

    class Variant(GPT):
        def forward(self, tokens, caches_=None):
            T = tokens.size(1)
            device_ = tokens.device if device == "tokens" else "cpu"
            P = caches_[0]["k"].size(2 if count == "keys" else 1) if caches_ and caches_[0] else 0
            start = {"go-on": P, "restart": 0, "one": P + 1, "length": P + T}[positions]
            at = torch.arange(start, start + T, device=device_)
            whole = torch.ones(T, P + T, dtype=torch.bool, device=device_)
            seen = {
                "bottom-right": whole.tril(P), "top-left": whole.tril(), "none": whole, "upper": whole.triu(P)
            }[mask]  # fmt: skip
            x = self.embedding(tokens) * (math.sqrt(self.embedding.embedding_dim) if scale == "root" else 1.0)
            if dropout == "start":
                x = self.dropout(x)
            elif dropout == "always":
                x = F.dropout(x, self.dropout.p, True)
            if norm == "start":
                x = self.norm(x)
            first = x
            layers = list(enumerate(self.layers))
            layers = {"in-turn": layers, "reversed": layers[::-1], "one": layers[:1], "parallel": layers}[order]
            for number, layer in layers:
                own = None if not caches_ or caches == "none" else caches_[number]
                new = layer(first if order == "parallel" else x, at, seen, own)
                x = x + new if residual == "twice" else new
                if dropout == "each":
                    x = self.dropout(x)
                if norm == "each":
                    x = self.norm(x)
            if norm in ("end", "each"):
                x = self.norm(x)
            if dropout == "end":
                x = self.dropout(x)
            logits = self.to_logits(x)
            if returns == "last":
                return logits[:, -1:]
            return {"softmax": logits.softmax(-1), "log": logits.log_softmax(-1)}.get(returns, logits)

    return Variant


class _WithHelpers(nn.Module):
    def __init__(self, vocab_size, d_model, layers, dropout=0.1):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocab_size, d_model), nn.Dropout(dropout)
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(d_model)
        self.to_logits = nn.Linear(d_model, vocab_size)

    def read_before(self, caches):
        return 0 if caches is None or "k" not in caches[0] else caches[0]["k"].shape[-2]

    def forward(self, tokens, caches=None):
        start = self.read_before(caches)
        position = torch.arange(start + tokens.shape[1], device=tokens.device)
        new = position[start:]
        x = self.dropout(self.embedding(tokens))
        for layer, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            x = layer(x, new, position <= new[:, None], cache)
        return self.to_logits(self.norm(x))


class _WithFunctions(nn.Module):
    def __init__(self, vocab_size, d_model, layers, dropout=0.1):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocab_size, d_model), nn.Dropout(dropout)
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(d_model)
        self.to_logits = nn.Linear(d_model, vocab_size)

    def forward(self, tokens, caches=None):
        T, P = tokens.size(1), 0
        if caches is None:
            caches = [None] * len(self.layers)
        elif caches[0]:
            P = caches[0]["v"].size(2)
        mask = tokens.new_ones(T, P + T).tril(diagonal=P) == 1
        x = F.dropout(F.embedding(tokens, self.embedding.weight), self.dropout.p, self.training)
        for i in range(len(self.layers)):
            x = self.layers[i](x, P + torch.arange(T).to(tokens.device), mask, caches[i])
        x = F.layer_norm(x, x.shape[-1:], self.norm.weight, self.norm.bias, self.norm.eps)
        return x @ self.to_logits.weight.T + self.to_logits.bias


class _TokenByToken(nn.Module):
    def __init__(self, vocab_size, d_model, layers, dropout=0.1):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocab_size, d_model), nn.Dropout(dropout)
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(d_model)
        self.to_logits = nn.Linear(d_model, vocab_size)

    def forward(self, tokens, caches=None):
        caches = [{} for _ in self.layers] if caches is None else caches
        outputs = []
        for x in self.dropout(self.embedding(tokens)).split(1, dim=1):  # (B, 1, D) each: the newest sees all
            P = caches[0]["k"].size(2) if caches[0] else 0
            position = torch.full((1,), P, device=tokens.device)
            mask = torch.ones(1, P + 1, dtype=torch.bool, device=tokens.device)
            for layer, cache in zip(self.layers, caches, strict=True):
                x = layer(x, position, mask, cache)
            outputs.append(x)
        return self.to_logits(self.norm(torch.cat(outputs, dim=1)))


def _state(V, D, n_layers, make):
    state = {"embedding.weight": make(V, D)}
    for number in range(n_layers):
        state |= {f"layers.{number}.key": make(D, D), f"layers.{number}.value": make(D, D)}
        state[f"layers.{number}.shift"] = make(D)
    state |= {"norm.weight": make(D), "norm.bias": make(D)}
    return state | {"to_logits.weight": make(V, D), "to_logits.bias": make(V)}


@maker
def _case(B, T, V, D, n_layers, seed, pieces=None, dropout=0.5, training=False, dtype=torch.float32, **device):
    count = iter(range(seed + 1, seed + 60))
    state = _state(V, D, n_layers, lambda *shape: normal(*shape, seed=next(count), dtype=dtype, scale=0.7))
    made = {"tokens": integers(B, T, low=0, high=V - 1, seed=seed), "pieces": pieces, "state": state}
    return made | {"dropout": dropout, "training": training} | device


def _sample(draw):
    B, T, V, D, n_layers = (draw.integer(1, high) for high in (3, 5, 7, 4, 3))
    dtype = draw.dtype()
    state = _state(V, D + 1, n_layers, lambda *shape: draw.normal(*shape, dtype=dtype, scale=0.7))
    first = draw.integer(0, T)
    return {
        "tokens": draw.integers(B, T, low=0, high=V - 1),
        "pieces": None if first in (0, T) else [first, T - first],
        "state": state,
        "dropout": 0.5,
        "training": False,
    }


def _no_later_token(call) -> str | None:
    made = _case(1, 5, 7, 4, 2, seed=301)()
    before = call(**made)
    made["tokens"] = made["tokens"].clone()
    made["tokens"][:, 4] = (made["tokens"][:, 4] + 1) % 7
    after = call(**made)
    for position in range(4):
        if not torch.allclose(before[:, position], after[:, position], atol=1e-5):
            return f"Changing token 4 changed the logits at position {position}."
    return None


def _pieces_equal_the_whole(call) -> str | None:
    made = _case(1, 5, 7, 4, 2, seed=311)()
    whole = call(**made)
    for first in (1, 3):
        if not torch.allclose(call(**made | {"pieces": [first, 5 - first]}), whole, atol=1e-4):
            return f"5 tokens at once, and {first} before {5 - first} with a cache, give different logits."
    return None


EXERCISE = Exercise(
    title="A whole GPT",
    what="""Write `forward` of `GPT`; the parts are made for you. Turn the ids into vectors, and put dropout on them.
Send the vectors through the layers, each called as `layer(x, positions, mask, cache)`: norms, residuals and dropout are
inside. Then a last norm and a linear map make logits for every position.

Two of the four arguments are yours to make. Of the text, T tokens are new, and P were read in earlier passes:

- `positions` (T,): those of the new `tokens`, counted from 0 at the start of the text;
- `mask` (T, P + T), True = may attend: a token sees itself and all tokens before it.

In training `caches` is None: pass None to each layer, and P is 0. When the model writes, it is a list with one dict for
each layer, empty at first. The layer fills it with the keys `"k"` (B, H, P, E) and values `"v"` of the P tokens read so
far. Make every tensor on the device of `tokens`.""",
    why="It is the form of nearly every chat model. You will train it in the next section, and then let it write.",
    difficulty=4,
    minutes=28,
    reference=GPT,
    blank=("forward",),
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
positions-restart (positions="restart"): counts positions from 0 again for the tokens behind a cache
    If three tokens are in the cache, at which position does the next one stand?
positions-from-one (positions="one"): gives the first token of a text the position 1
    From which number do positions count in this course?
positions-after-the-end (positions="length"): begins to count at the number of all tokens, old and new
    If nothing is in the cache, at which position does your first token stand?
mask-aligned-top-left (mask="top-left"): aligns the causal mask at the first key, so that a token behind a cache sees
        the start of the text only
    With four cached tokens and one new one, how many keys may the new one see?
no-mask (mask="none"): lets every token of a pass see all the others
    In training, could the model read the token that it has to predict?
mask-turned-round (mask="upper"): lets each token see itself and later ones, and nothing before
    Which row of your mask has a single True, the first or the last?
caches-not-handed-on (caches="none"): hands no cache on to the layers
    Who fills the dicts, and does anybody get one from you?
counts-the-heads (count="heads"): takes the number of heads in the cache for the number of tokens
    Which of the four axes of the cached keys counts tokens?
no-dropout (dropout="none"): leaves dropout out
    Which of the parts made in the constructor does your forward never use?
dropout-in-eval (dropout="always"): drops numbers in evaluation, too
    Who tells your dropout that the model is in evaluation?
dropout-after-each-layer (dropout="each"): applies the dropout to what each layer returns
    What does the task say of the layers' own dropout?
dropout-at-the-end (dropout="end"): applies the dropout before the logits, not to the vectors of the tokens
    On which tensor does the task ask for dropout?
no-last-norm (norm="none"): leaves the last norm out
    Which of the parts made in the constructor does your forward never use?
norm-before-the-layers (norm="start"): norms before the layers and not after them
    Where does the last norm stand?
norm-after-each-layer (norm="each"): norms after every layer, too
    How often does the last norm occur in the task?
layers-in-reverse (order="reversed"): runs the layers from the last to the first
    Which layer reads the vectors of the tokens?
first-layer-only (order="one"): uses the first layer only
    How many layers did the constructor get?
every-layer-reads-the-start (order="parallel"): lets every layer read the vectors of the tokens
    What does the second layer work on?
residual-twice (residual="twice"): adds what a layer returns to what it has read
    Where are the residuals: in the layers, or around them?
last-position-only (returns="last"): returns the logits of the last position only
    In training, at how many positions is a token predicted?
probabilities (returns="softmax"): returns probabilities
    May a logit be negative?
log-probabilities (returns="log"): returns logarithms of probabilities
    Which module makes the last step in the task?
scaled-embedding (scale="root"): multiplies the vectors of the tokens by the root of their width
    Does the task ask for a factor?
made-on-the-processor (device="cpu"): makes positions and mask on the processor, wherever the tokens are
    Where do your new tensors lie if the tokens lie on a GPU?
"""),
    cases=[
        Case("1 text of 2 tokens, 1 layer", _case(1, 2, 3, 4, 1, seed=1)),
        Case("2 texts of 3 tokens, 3 layers", _case(2, 3, 7, 5, 3, seed=101)),
        Case("3 tokens, then 1 behind the cache, 1 layer", _case(1, 4, 5, 2, 1, seed=201, pieces=[3, 1])),
        Case("2 tokens, then 3 behind the cache, 2 texts", _case(2, 5, 7, 3, 2, seed=301, pieces=[2, 3])),
        Case("one token at a time, with caches", _case(3, 4, 5, 2, 2, seed=401, pieces=[1, 1, 1, 1])),
        Case("in training, all of it dropped", _case(2, 3, 5, 4, 2, seed=501, dropout=1.0, training=True)),
        Case("in training, dropout 0", _case(2, 3, 5, 4, 2, seed=601, dropout=0.0, training=True)),
        Case("float64", _case(2, 4, 7, 5, 2, seed=701, pieces=[3, 1], dtype=torch.float64)),
        Case("on another device than the processor", _case(2, 4, 7, 5, 2, seed=801, pieces=[3, 1], device="meta")),
    ],
    properties=[
        Property("No logits depend on a later token.", _no_later_token),
        Property("Fed in pieces with a cache, a text gives the logits that it gives at once.", _pieces_equal_the_whole),
    ],
    alternatives=[
        Alternative("with a mask from positions", _WithHelpers),
        Alternative("with functions in place of modules", _WithFunctions),
        Alternative("token by token, where no mask is needed", _TokenByToken),
    ],
    hints=(
        "In training P is 0. Which two of the three arguments of a layer change when P tokens are in the cache?",
        "Read P off the first dict, if it holds anything. The new tokens stand at positions P to P + T - 1, and the "
        "mask has T rows and P + T columns.",
        """T, P = tokens.size(1), ...
positions = ...
mask = ____  # (T, P + T)
x = self.dropout(self.embedding(tokens))
for number, layer in enumerate(self.layers):
    x = layer(x, positions, mask, ...)
return self.to_logits(self.norm(x))""",
    ),
    sample=_sample,
    tolerance=(1e-3, 1e-4),
    equivalent_mutants={
        "0 -> -1 (2)": "the caches of all layers are equally long",
        "0 -> -1 (3)": "the caches of all layers are equally long",
    },
)
