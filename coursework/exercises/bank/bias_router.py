"""Exercise: a router that is balanced by a bias, which decides the choice and nothing else."""

import torch
from torch import nn

from coursework.exercises import modules
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


class BiasRouter(nn.Module):
    """A score of each expert for each token, and one bias for each expert"""

    def __init__(self, d_model, n_experts, top_k):
        super().__init__()
        self.scores = nn.Linear(d_model, n_experts, bias=False)
        self.register_buffer("bias", torch.zeros(n_experts))
        self.register_buffer("counts", torch.zeros(n_experts))
        self.top_k = top_k

    def forward(self, tokens):
        """(N, D) -> (N, n_experts): the weight of each expert, zero for those not chosen"""
        scores = self.scores(tokens).sigmoid()
        chosen = (scores + self.bias).topk(self.top_k, dim=-1).indices  # (N, top_k)
        weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        if self.training:
            self.counts += (weights > 0).sum(dim=0)
        return weights / weights.sum(dim=-1, keepdim=True)

    def update(self, rate):
        """Move each bias by `rate` towards an even load, and reset the counts"""
        self.bias += rate * torch.sign(self.counts.mean() - self.counts)
        self.counts.zero_()


def _model(
    weigh="scores", choose="biased", function="sigmoid", towards="even", size="fixed", clear=True, when="training",
    over="all", flow="whole",
):  # fmt: skip
    """A router whose settings are the misconceptions."""

    class Model(BiasRouter):
        def forward(self, tokens):
            scores = self.scores(tokens)
            scores = scores.sigmoid() if function == "sigmoid" else scores.softmax(-1)
            biased = scores + self.bias.to(scores.dtype)
            chosen = (biased if choose == "biased" else scores).topk(self.top_k, dim=-1).indices
            taken = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
            if self.training or when == "always":
                self.counts = taken.sum(0).detach() + (self.counts if over == "all" else 0)
            weights = taken * (biased if weigh == "biased" else scores)
            if weigh != "unnormed":
                weights = weights / weights.sum(-1, keepdim=True)
            return weights.detach() if flow == "detached" else weights

        def update(self, rate):
            lacking = self.counts.mean() - self.counts
            step = rate * (torch.sign(lacking) if size == "fixed" else lacking)
            self.bias = self.bias + (step if towards == "even" else -step)
            if clear:
                self.counts = torch.zeros_like(self.counts)

    return Model


class _WithAMask(BiasRouter):
    def forward(self, tokens):
        scores = torch.sigmoid(self.scores(tokens))
        biased = scores + self.bias
        taken = biased >= biased.topk(self.top_k, dim=-1).values[:, -1:]  # (N, n_experts), the top_k largest
        if self.training:
            self.counts = self.counts + taken.sum(dim=0)
        weights = scores * taken
        return weights / weights.sum(dim=-1, keepdim=True)

    def update(self, rate):
        even = self.counts.sum() / len(self.counts)
        self.bias = self.bias + rate * ((self.counts < even).float() - (self.counts > even).float())
        self.counts = torch.zeros_like(self.counts)


class _WithBincount(BiasRouter):
    def forward(self, tokens):
        scores = self.scores(tokens).sigmoid()
        chosen = (scores + self.bias).argsort(dim=-1, descending=True)[:, : self.top_k]
        best = scores.gather(-1, chosen)
        if self.training:
            self.counts.add_(torch.bincount(chosen.flatten(), minlength=len(self.counts)))
        return torch.zeros_like(scores).scatter(-1, chosen, best / best.sum(dim=-1, keepdim=True))

    @torch.no_grad()
    def update(self, rate):
        share = self.counts / self.counts.sum()
        self.bias.add_(rate * torch.sign(1 / len(share) - share))
        self.counts.fill_(0)


class _TokenByToken(BiasRouter):
    def forward(self, tokens):
        rows = []
        for scores in self.scores(tokens).sigmoid():
            chosen = torch.topk(scores + self.bias, self.top_k).indices
            if self.training:
                self.counts[chosen] += 1
            row = torch.zeros_like(scores)
            row[chosen] = scores[chosen] / scores[chosen].sum()
            rows.append(row)
        return torch.stack(rows)

    def update(self, rate):
        even = self.counts.mean().item()
        for expert, count in enumerate(self.counts.tolist()):
            self.bias[expert] += rate * ((count < even) - (count > even))
        self.counts.zero_()


class _Steps(nn.Module):
    """Two batches in training, one in eval mode, an update, and what is chosen then; then a batch and an update."""

    def __init__(self, router):
        super().__init__()
        self.router = router

    def forward(self, first, second, asked, rate):
        router, found = self.router.train(), {}
        found["weights of the first batch"] = router(first)
        router(second)
        found["weights in eval mode"] = router.eval()(asked)
        router.update(rate)
        found["bias after an update"] = router.bias.clone()
        found["weights after it"] = router(asked)
        router.train()(first)
        router.update(rate)
        found["bias after another batch and update"] = router.bias.clone()
        return found


def _run(BiasRouter, sizes, state, first, second, asked, rate):
    named = {f"router.{name}": tensor.clone() for name, tensor in state.items()}
    return modules.call(lambda **sizes: _Steps(BiasRouter(**sizes)), sizes, named, first, second, asked, rate)


def _arguments(N, D, M, top_k, tensor, bias, rate):
    state = {"scores.weight": tensor(M, D), "bias": bias, "counts": torch.zeros_like(bias)}
    sizes = {"d_model": D, "n_experts": M, "top_k": top_k}
    return sizes, state, tensor(N, D), tensor(N + 1, D), tensor(3, D), rate


@maker
def _case(N, D, M, top_k, seed, rate=0.25, dtype=torch.float32):
    seeds = iter(range(seed, seed + 20))

    def tensor(*shape):
        return normal(*shape, seed=next(seeds), dtype=dtype)

    bias = normal(M, seed=seed + 20, grad=False, scale=0.3)
    names = ("sizes", "state", "first", "second", "asked", "rate")
    return dict(zip(names, _arguments(N, D, M, top_k, tensor, bias, rate), strict=True))


def _sample(draw):
    M = draw.integer(3, 6)
    bias = draw.normal(M, grad=False, scale=0.3)
    tensor = lambda *shape: draw.normal(*shape, dtype=torch.float32)  # noqa: E731
    return _arguments(
        draw.integer(2, 5), draw.integer(2, 4), M, draw.integer(2, M - 1), tensor, bias, draw.choice((0.1, 0.5))
    )


def _weights_sum_to_one(router) -> str | None:
    found = router(**_case(4, 3, 5, 2, seed=801)())["weights of the first batch"].sum(-1)
    wrong = [value for value in found.tolist() if abs(value - 1) > 1e-4]
    return f"The weights of a token sum to {wrong[0]:.3f}." if wrong else None


def _same_bias_for_all(router) -> str | None:
    case, other = _case(4, 3, 5, 2, seed=831)(), _case(4, 3, 5, 2, seed=831)()
    other["state"]["bias"] = other["state"]["bias"] + 1
    gap = (router(**case)["weights of the first batch"] - router(**other)["weights of the first batch"]).detach().abs()
    return f"With all biases raised by 1, a weight changed by {float(gap.max()):.2f}." if gap.max() > 1e-4 else None


EXERCISE = Exercise(
    title="A router with a bias",
    what="""Write `forward` and `update` of `BiasRouter`.

- `forward` takes a sigmoid of the scores. It chooses, for each token, the `top_k` experts with the largest score
  *plus bias*. Their weights are their scores *without* the bias, divided by the sum of the chosen ones; all others get
  zero. In training (`self.training`) it adds to `counts` how many tokens chose each expert.
- `update` adds `rate` to the bias of each expert with fewer tokens than the mean of all, and subtracts it from each
  with more. An expert with exactly the mean keeps its bias. Then all counts are zero again.

Between two updates there may be several batches, for example when gradients are summed over them. `bias` and
`counts` are buffers: they are saved with the weights, but no gradient reaches them. `top_k` is at least 2, since
the weight of a single expert would always be 1. There are no ties.""",
    why="""This is how DeepSeek-V3 keeps 256 experts at work in each of its layers with experts. The same lines route
your own layer below.""",
    difficulty=4,
    minutes=15,
    reference=BiasRouter,
    blank=("forward", "update"),
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
bias-in-the-weights (weigh="biased"): lets the bias into the weights, too
    If an expert's bias rises, should a token that uses it already hear more of it?
choice-without-bias (choose="scores"): chooses by the scores alone
    What is the bias for?
not-normed (weigh="unnormed"): gives weights that do not sum to one
    What do the weights of a token sum to?
softmax-scores (function="softmax"): scores the experts by a softmax
    Does the score of one expert fall when another one's rises?
wrong-way (towards="uneven"): raises the bias of the busy experts and lowers that of the idle ones
    Does a higher bias bring an expert more tokens or fewer?
step-by-difference (size="difference"): moves a bias further the further its count is from the mean
    By how much does a bias move if its expert had three tokens too few, and by how much if it had one?
counts-kept (clear=False): goes on with the old counts after an update
    What should the second update know of the tokens before the first?
counts-in-eval-mode (when="always"): counts tokens in eval mode, too
    Who should decide where tokens go, the texts it learns from or those that it is asked about?
last-batch-only (over="last"): forgets the earlier batches since the last update
    If a step has two batches, whose tokens does the update count?
router-without-gradient (flow="detached"): lets no gradient reach the scores
    Through which numbers does the loss reach the router?
"""),
    cases=[
        Case("2 tokens and 3, 3 experts, 2 chosen", _case(2, 2, 3, 2, seed=1)),
        Case("3 tokens and 4, 5 experts, 2 chosen", _case(3, 4, 5, 2, seed=101)),
        Case("5 tokens and 6, 4 experts, 3 chosen, a rate of 0.01", _case(5, 3, 4, 3, seed=201, rate=0.01)),
        Case("7 tokens and 8, 6 experts, 2 chosen", _case(7, 4, 6, 2, seed=301)),
    ],
    properties=[
        Property("The weights of a token sum to one.", _weights_sum_to_one),
        Property("A bias that is the same for all experts changes no weight.", _same_bias_for_all),
    ],
    alternatives=[
        Alternative("with a mask of the chosen experts", _WithAMask),
        Alternative("with argsort and bincount", _WithBincount),
        Alternative("token by token", _TokenByToken),
    ],
    hints=(
        "Which of the two, the score or the score plus bias, does each step need: choosing, weighing?",
        "`topk` gives the places of the largest sums; `gather` fetches the plain scores from the same places.",
        """scores = self.scores(tokens).sigmoid()
chosen = ____  # (N, top_k)
weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))""",
    ),
    sample=_sample,
    tolerance=(1e-4, 1e-4),
    equivalent_mutants={
        "(scores + self.bias).topk(self.top_k, dim=-1) -> (scores + self.bias).topk(self.top_k)": "the last is "
        "the default",
    },
)
