"""Exercise: the forward pass of a layer of experts, each working on the tokens that chose it."""

import torch
from torch import nn

from coursework.exercises import modules
from coursework.exercises.bank.route_experts import route_experts
from coursework.exercises.given_llama import Gated
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


class Experts(nn.Module):
    """A router, and feed-forwards of which each token uses top_k"""

    def __init__(self, d_model, d_ff, n_experts, top_k):
        super().__init__()
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(Gated(d_model, d_ff) for _ in range(n_experts))
        self.top_k = top_k

    def forward(self, x):
        """(B, T, D) -> (B, T, D)"""
        tokens = x.flatten(0, 1)  # (B, T, D) -> (N, D)
        weights = route_experts(self.router(tokens), self.top_k)  # (N, n_experts)
        output = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = weights[:, number].nonzero()[:, 0]  # the tokens that chose it
            output = output.index_add(0, rows, weights[rows, number, None] * expert(tokens[rows]))
        return output.view_as(x)


def _model(weigh="output", choice="top", route="token", add="nothing", flow="whole", order="token", k="asked"):
    """A layer whose settings are the misconceptions."""

    class Model(Experts):
        def forward(self, x):
            tokens = x.flatten(0, 1)
            scores = self.router(x)
            if route == "sentence":
                scores = scores.mean(dim=1, keepdim=True).expand_as(scores)
            scores = scores.flatten(0, 1)
            top_k = {"asked": self.top_k, "one-more": min(self.top_k + 1, scores.size(1))}[k]
            weights = route_experts(scores, top_k)
            if choice == "softmax-of-all":
                weights = scores.softmax(-1) * (weights > 0)
            elif choice == "lowest":
                weights = route_experts(-scores, top_k)
            if flow == "detached":
                weights = weights.detach()
            output = torch.zeros_like(tokens)
            for number, expert in enumerate(self.experts):
                rows = weights[:, number].nonzero()[:, 0]
                w = weights[rows, number, None]
                part = expert(w * tokens[rows] if weigh == "input" else tokens[rows])
                part = part * {"output": w, "mean": 1 / top_k}.get(weigh, 1.0)
                where = torch.arange(len(rows)) if order == "expert" else rows
                output = output.index_add(0, where, part)
            return x + output.view_as(x) if add == "residual" else output.view_as(x)

    return Model


class _WithMasks(Experts):
    def forward(self, x):
        weights = route_experts(self.router(x).flatten(0, 1), self.top_k).unflatten(0, x.shape[:2])  # (B, T, n_experts)
        output = torch.zeros_like(x)
        for weight, expert in zip(weights.unbind(-1), self.experts, strict=True):  # (B, T) each
            chose = weight > 0
            output[chose] += weight[chose][:, None] * expert(x[chose])
        return output


class _TokenByToken(Experts):
    def forward(self, x):
        outputs = []
        for token in x.reshape(-1, x.size(-1)):
            weights = route_experts(self.router(token)[None], self.top_k)[0]
            used = weights.nonzero()[:, 0].tolist()
            outputs.append(sum(weights[i] * self.experts[i](token) for i in used))
        return torch.stack(outputs).view(x.shape)


class _WithTopk(Experts):
    def forward(self, x):
        tokens = x.reshape(-1, x.size(-1))
        best, chosen = self.router(tokens).topk(self.top_k)  # (N, K)
        weights, output = best.softmax(-1), torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, place = (chosen == number).nonzero(as_tuple=True)
            output = output.index_put((row,), weights[row, place][:, None] * expert(tokens[row]), accumulate=True)
        return output.reshape(x.shape)


def _run(Experts, sizes, state, x):
    return modules.call(Experts, sizes, state, x)


def _flops(sizes, state, x):
    """The router for every token, and top_k experts for each."""
    N, D, F = x.size(0) * x.size(1), sizes["d_model"], sizes["d_ff"]
    return 2 * N * D * sizes["n_experts"] + 2 * N * sizes["top_k"] * 3 * D * F


@maker
def _case(B, T, d_model, d_ff, n_experts, top_k, seed, dtype=torch.float32):
    seeds = iter(range(seed, seed + 60))

    def tensor(*shape):
        return normal(*shape, seed=next(seeds), dtype=dtype)

    sizes = {"d_model": d_model, "d_ff": d_ff, "n_experts": n_experts, "top_k": top_k}
    return {"sizes": sizes, "state": modules.weights(Experts, sizes, tensor), "x": tensor(B, T, d_model)}


def _sample(draw):
    n_experts = draw.integer(3, 5)
    sizes = {"d_model": draw.integer(2, 4), "d_ff": draw.integer(1, 4), "n_experts": n_experts}
    sizes["top_k"] = draw.integer(2, n_experts - 1)
    state = modules.weights(Experts, sizes, lambda *shape: draw.normal(*shape, dtype=torch.float64))
    return sizes, state, draw.normal(draw.integer(1, 3), draw.integer(1, 4), sizes["d_model"], dtype=torch.float64)


def _tokens_are_alone(layer) -> str | None:
    sizes, state, x = _case(1, 4, 3, 5, 5, 2, seed=601)().values()
    other = x.detach().clone()
    other[:, 3] += 1
    gap = (layer(sizes, state, x) - layer(sizes, state, other)).detach()[:, :3].abs().max()
    return f"Another token at position 3 changed an earlier one by up to {float(gap):.2f}." if gap > 1e-5 else None


EXERCISE = Exercise(
    title="A layer of experts",
    what="""Write `forward` of `Experts`. The router, a linear map, gives each token a score for each expert; your
`route_experts` makes weights (N, n_experts) of them, for N tokens in a row. The output of a token is the sum of its
`top_k` experts' outputs, each times its weight. Each expert, a `Gated`, takes tokens (n, D) and may compute only those
that chose it: the check counts operations. `top_k` is at least 2. Nothing is added to the stream here; the layer
around it does that.""",
    why="This is the layer of Mixtral and of Qwen3's large models, without the traffic between chips.",
    difficulty=3,
    minutes=18,
    reference=Experts,
    blank=("forward",),
    parts={"Gated": Gated, "route_experts": route_experts},
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
not-weighted (weigh="none"): adds the outputs of the chosen experts without their weights
    What are the weights for, once the experts are chosen?
averaged (weigh="mean"): averages the outputs of the chosen experts
    What are the weights for, once the experts are chosen?
weights-on-the-input (weigh="input"): multiplies what an expert reads by its weight, and not what it returns
    Is an expert of half a token half of an expert of the token?
softmax-of-all (choice="softmax-of-all"): gives the chosen experts their share of a softmax over all experts
    What do the weights of one token sum to?
lowest-scores (choice="lowest"): sends each token to the experts with the lowest scores
    Does a high score speak for an expert or against it?
one-expert-too-many (k="one-more"): uses one expert more than top_k
    How many weights of a token are above zero?
one-choice-for-a-sentence (route="sentence"): lets all tokens of a sentence share one choice
    Does the choice of a token depend on other tokens?
residual-inside (add="residual"): adds the token itself to the result
    Who adds to the stream, this module or the layer around it?
router-without-gradient (flow="detached"): lets no gradient reach the router
    Through which numbers can the loss reach the router?
order-of-the-experts (order="expert"): writes the results of each expert into the first rows
    To which token does the first result of an expert belong?
"""),
    cases=[
        Case("1 sentence of 2 tokens, 3 experts", _case(1, 2, 2, 3, 3, 2, seed=1)),
        Case("2 sentences of 3 tokens, 4 experts", _case(2, 3, 3, 5, 4, 2, seed=101)),
        Case("3 sentences of 5 tokens, 5 experts, 3 of them used", _case(3, 5, 4, 3, 5, 3, seed=201)),
        Case("an expert that nobody chose, float64", _case(1, 1, 3, 5, 4, 2, seed=301, dtype=torch.float64)),
    ],
    properties=[Property("No token depends on another.", _tokens_are_alone)],
    alternatives=[
        Alternative("with masks", _WithMasks),
        Alternative("token by token", _TokenByToken),
        Alternative("with topk", _WithTopk),
    ],
    hints=(
        "For one expert: which rows of the weights are above zero in its column, and what is added to those rows?",
        "Flatten x to N tokens first. `nonzero` finds the rows; `index_add` puts results back where they came from.",
        """for number, expert in enumerate(self.experts):
    rows = weights[:, number].nonzero()[:, 0]
    output = output.index_add(0, rows, ____)""",
    ),
    sample=_sample,
    flop_limit=_flops,
    tolerance=(1e-4, 1e-4),
    equivalent_mutants={
        "0 -> -1 (3)": "the places in one column have a single coordinate",
        "weights[rows, number, None] -> weights[rows, None, number]": "both are the same weights, one in each row",
    },
)
