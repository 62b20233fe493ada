"""Exercise: one update of the weights, from several parts of a batch. Judged by what reaches the optimizer."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def training_step(model, parts, optimizer, rate, clip, loss_of):
    """... -> loss per token, norm of the gradient before clipping"""
    total = count = 0
    for batch in parts:
        loss, tokens = loss_of(model, batch)  # a sum, and over how many tokens
        loss.backward()  # adds to the gradients
        total, count = total + loss.item(), count + int(tokens)
    weights = [p for p in model.parameters() if p.grad is not None]  # a frozen weight has none
    for p in weights:
        p.grad /= count  # of the loss per token
    norm = nn.utils.clip_grad_norm_(weights, clip)  # of all weights together
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    return total / count, norm.item()


def _model(
    divide="tokens", clip_how="together", norm_is="before", rate_when="before", groups="all", clear="after",
    update="once", report="tokens",
):  # fmt: skip
    """The step whose settings are the misconceptions."""

    def step(model, parts, optimizer, rate, clip, loss_of):
        total, count, means, tokens = 0.0, 0, [], 1
        for batch in parts:
            if clear == "each part":
                optimizer.zero_grad()
            loss, found = loss_of(model, batch)
            tokens = int(found)
            (loss / tokens if divide in ("means", "means added") else loss).backward()
            total, count = total + loss.item(), count + tokens
            means.append(loss.item() / tokens)
            if update == "each part":
                _set_rate(optimizer, rate)
                optimizer.step()
        weights = [p for p in model.parameters() if p.grad is not None]
        divisor = {"tokens": count, "means": len(parts), "means added": 1, "parts": len(parts), "nothing": 1,
                   "last": tokens}[divide]  # fmt: skip
        norm = _cut(weights, clip) if clip_how == "before dividing" else None
        for p in weights:
            p.grad /= divisor
        if clip_how == "numbers":
            norm = _norm(weights)
            nn.utils.clip_grad_value_(weights, clip)
        elif clip_how == "each":
            norm = _norm(weights)
            for p in weights:
                nn.utils.clip_grad_norm_([p], clip)
        elif clip_how == "never":
            norm = _norm(weights)
        elif clip_how == "always":
            norm = _norm(weights)
            for p in weights:
                p.grad *= clip / norm
        elif clip_how == "together":
            norm = _cut(weights, clip)
        if norm_is == "after":
            norm = _norm(weights)
        if clear == "before the update":
            for p in weights:
                p.grad.zero_()
        if rate_when == "before":
            _set_rate(optimizer, rate, 1 if groups == "first" else None)
        elif rate_when == "times":
            for group in optimizer.param_groups:
                group["lr"] *= rate
        if update == "once":
            optimizer.step()
        if rate_when == "after":
            _set_rate(optimizer, rate)
        if clear != "never":
            optimizer.zero_grad()
        loss = {"tokens": total / count, "means": sum(means) / len(means), "sum": total, "last": means[-1]}[report]
        return loss, float(norm)

    return step


def _set_rate(optimizer, rate, groups=None):
    for group in optimizer.param_groups[:groups]:
        group["lr"] = rate


def _norm(weights):
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in weights))


def _cut(weights, clip):
    return float(nn.utils.clip_grad_norm_(weights, clip))


def _count_first(model, parts, optimizer, rate, clip, loss_of):
    optimizer.zero_grad()  # before instead of after
    with torch.no_grad():
        count = sum(int(loss_of(model, batch)[1]) for batch in parts)
    loss = 0.0
    for batch in parts:
        part = loss_of(model, batch)[0] / count
        part.backward()
        loss += float(part.detach())
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    return loss, float(norm)


def _clipped_by_hand(model, parts, optimizer, rate, clip, loss_of):
    sums = []
    for batch in parts:
        loss, tokens = loss_of(model, batch)
        loss.backward()
        sums.append(torch.tensor([float(loss.detach()), float(tokens)], dtype=torch.float64))
    total, count = torch.stack(sums).sum(dim=0).tolist()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm() / count
    factor = min(1.0, clip / float(norm)) / count
    for gradient in gradients:
        gradient.mul_(factor)
    for group in optimizer.param_groups:
        group.update(lr=rate)
    optimizer.step()
    model.zero_grad()
    return total / count, float(norm)


def _in_one_graph(model, parts, optimizer, rate, clip, loss_of):
    found = [loss_of(model, batch) for batch in parts]  # takes the memory of the whole batch
    loss = sum(loss for loss, _ in found) / sum(tokens for _, tokens in found)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    for p, gradient in zip(trained, gradients, strict=True):
        p.grad = gradient
    norm = nn.utils.clip_grad_norm_(trained, clip)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    for p in trained:
        p.grad = None
    return loss.detach(), norm


class _Net(nn.Module):
    """Scores (N, V) of features (N, D): a matrix, and a factor for each score that may be frozen."""

    def __init__(self, weight, frozen):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, weight.size(0)), requires_grad=not frozen)

    def forward(self, features):
        return (features @ self.weight.T) * self.gain


class _Noting(torch.optim.SGD):
    """Plain descent that notes the gradient and the rates with which it is asked for an update."""

    def __init__(self, model):
        super().__init__([{"params": [model.weight], "lr": 0.05}, {"params": [model.gain], "lr": 0.25}])
        self.gradients, self.rates = [], []

    def step(self, closure=None):
        found = [p.grad for group in self.param_groups for p in group["params"] if p.requires_grad]
        sizes = [p.numel() for group in self.param_groups for p in group["params"] if p.requires_grad]
        flat = [torch.zeros(n) if g is None else g.detach().flatten() for n, g in zip(sizes, found, strict=True)]
        self.gradients.append(torch.cat(flat))
        self.rates.append([float(group["lr"]) for group in self.param_groups])
        return super().step(closure)


def loss_of(model, batch):
    """The sum of the losses of the real tokens of a batch (features (N, D), ids (N,), 0 is padding), their number."""
    features, targets = batch
    losses = F.cross_entropy(model(features), targets, reduction="none")
    real = targets != 0
    return losses[real].sum(), real.sum()


def _run(step, weight, updates, clip, frozen=False):
    """One call for each of `updates`, a list of (parts, rate): what it returned, and what the optimizer was given."""
    model = _Net(weight, frozen)
    optimizer = _Noting(model)
    returned = [step(model, parts, optimizer, rate, clip, loss_of) for parts, rate in updates]
    return {
        "loss and norm": [tuple(map(float, two)) if isinstance(two, tuple | list) else two for two in returned],
        "gradient at each update": optimizer.gradients,
        "rates at each update": optimizer.rates,
        "weights afterwards": model.weight.detach(),
    }


def _part(ids, D, seed, scale=1.0):
    return normal(len(ids), D, seed=seed, grad=False, scale=scale), torch.tensor(ids)


@maker
def _case(*updates, clip=100.0, frozen=False, V=5, D=3, seed):
    """Each update is (rate, ids of the first part, ids of the second, …)."""
    made = []
    for number, (rate, *parts) in enumerate(updates):
        made.append(([_part(ids, D, seed + 10 * number + i + 1) for i, ids in enumerate(parts)], rate))
    return normal(V, D, seed=seed, grad=False), made, clip, frozen


def _sample(draw):
    V, D = draw.integer(2, 6), draw.integer(1, 4)
    updates = []
    for _ in range(draw.integer(1, 3)):
        parts = []
        for _ in range(draw.integer(1, 3)):
            ids = draw.integers(draw.integer(1, 5), low=0, high=V - 1)
            ids[0] = 1  # at least one real token
            parts.append((draw.normal(len(ids), D, grad=False), ids))
        updates.append((parts, draw.choice([0.01, 0.1, 0.5])))
    return draw.normal(V, D, grad=False), updates, draw.choice([0.05, 0.4, 100.0]), draw.boolean()


def _however_it_is_cut(step) -> str | None:
    weight, (([part], rate),), _, _ = _case((0.1, [1, 2, 3, 4, 1, 0]), seed=81)()
    features, ids = part
    whole = step(weight, [([part], rate)], 100.0)["gradient at each update"][0]
    pieces = [(features[:1], ids[:1]), (features[1:], ids[1:])]
    found = step(weight, [(pieces, rate)], 100.0)["gradient at each update"][0]
    off = float((found - whole).norm() / whole.norm())
    return f"Cut after its first token, the batch has a gradient that is off by {off:.0%}." if off > 1e-4 else None


def _never_longer_than_clip(step) -> str | None:
    found = step(*_case((0.1, [1, 2, 3], [4]), clip=0.1, seed=91)())["gradient at each update"]
    norm = float(found[0].norm())
    return f"With clip=0.1, the optimizer gets a gradient of norm {norm:.3f}." if norm > 0.101 else None


EXERCISE = Exercise(
    title="One step of training",
    what="""Write `training_step(model, parts, optimizer, rate, clip, loss_of)`: **one** update of the weights from a
batch that was cut into `parts`.

- `loss_of(model, part)` returns the **sum** of the costs of the real tokens of a part, and their number. Each part has
  at least one real token, and parts differ in how many they have.
- The gradient is that of the loss per token of the whole batch: the sum over all tokens of all parts, divided by
  their number.
- Clip it to the norm `clip`, taken over all weights together. A weight that is frozen has no gradient (`None`).
- The update is made at `rate`, in every group of `optimizer.param_groups`.
- The next step begins with fresh gradients.

Return two numbers: the loss per token, and the norm of the gradient before it was clipped. Leave the parts as they
are.""",
    why="This is the core of every training loop, and most of what can go wrong in it raises no error.",
    difficulty=4,
    minutes=15,
    reference=training_step,
    model=_model,
    misconceptions=misconceptions("""
mean-of-means (divide="means"): takes the gradient of the mean of the means of the parts
    One part has 1 real token, the other 9: with which weight does each token count?
means-added (divide="means added"): adds up the gradients of the means of the parts
    By how much does your gradient grow if the same tokens are cut into twice as many parts?
divided-by-parts (divide="parts"): divides the gradient by the number of parts
    The loss of a part is a sum: over what?
not-divided (divide="nothing"): takes the gradient of the sum over all tokens
    How does your gradient grow with the size of the batch?
divided-by-the-last-count (divide="last"): divides the gradient by the number of tokens of the last part
    Which count does your divisor hold after the loop?
clips-before-dividing (clip_how="before dividing"): clips the gradient of the sum, and divides afterwards
    How long is your gradient, at most, when it reaches the optimizer?
clips-each-number (clip_how="numbers"): limits each number of the gradient by itself
    Does the gradient (3, 4) keep its direction in your function?
clips-each-weight-by-itself (clip_how="each"): limits the gradient of each parameter by itself
    If two parameters have gradients of norm 1 each, how long is the whole gradient?
never-clips (clip_how="never"): does not clip
    What does `clip` change in your function?
always-to-the-limit (clip_how="always"): stretches short gradients to the limit, too
    A gradient that is shorter than the limit: what should become of it?
norm-after-clipping (norm_is="after"): returns the norm that is left after clipping
    What would a curve of your norms show of a gradient that was a hundred times too long?
rate-too-late (rate_when="after"): sets the rate after the update
    At which rate does your first update run?
rate-as-a-factor (rate_when="times"): multiplies the rate of the optimizer by the new one
    What is the rate after two of your steps at a rate of 0.1?
first-group-only (groups="first"): sets the rate in the first group of the optimizer only
    An optimizer may treat matrices and norms differently: in how many lists does it keep them?
gradients-never-cleared (clear="never"): keeps the gradients for the next step
    What does the second call of your function find in `.grad`?
cleared-at-each-part (clear="each part"): clears the gradients at each part, so that only the last one counts
    Does your update change when you change the first part?
cleared-before-the-update (clear="before the update"): clears the gradients before the optimizer has used them
    How far do your weights move?
an-update-for-each-part (update="each part"): updates the weights at each part
    How many updates should one step make?
loss-is-a-mean-of-means (report="means"): returns the mean of the means of the parts as the loss
    One part has 1 real token, the other 9: with which weight does each token count?
loss-is-a-sum (report="sum"): returns the sum of all losses
    What does your loss show when the batch is cut in half?
loss-of-the-last-part (report="last"): returns the loss of the last part
    Does your loss change when you change the first part?
"""),
    cases=[
        Case("one update, one part", _case((0.1, [1, 2, 3]), seed=1)),
        Case("one update, one part, clip 0.25", _case((0.1, [1, 2, 3]), clip=0.25, seed=11)),
        Case("one update, parts of 4 tokens and of 1", _case((0.1, [1, 2, 3, 4], [2]), seed=21)),
        Case("one update, three parts with padding, clip 0.25",
             _case((0.1, [1, 2, 0, 0], [3], [4, 1, 2]), clip=0.25, seed=41)),
        Case("two updates at different rates", _case((0.5, [1, 2]), (0.1, [3, 4, 2]), seed=61)),
        Case("a frozen weight", _case((0.5, [1, 2], [3]), frozen=True, seed=101)),
        Case("three updates, clip 0.25",
             _case((0.1, [1, 2], [3]), (0.5, [4, 1, 0], [2, 2, 3]), (0.05, [2], [1, 3, 4, 2]), clip=0.25, seed=121)),
    ],
    properties=[
        Property("The gradient does not depend on how the batch is cut.", _however_it_is_cut),
        Property("The optimizer never gets a gradient longer than the limit.", _never_longer_than_clip),
    ],
    alternatives=[
        Alternative("counting the tokens first", _count_first),
        Alternative("clipped by hand", _clipped_by_hand),
        Alternative("as one graph, where memory allows it", _in_one_graph),
    ],
    hints=(
        "What can be added up over the parts without an error: their means, or their sums and their counts?",
        "After the loop over the parts five things are left, in this order: divide, clip, set the rate, update, clear.",
        """total = count = 0
for batch in parts:
    loss, tokens = loss_of(model, batch)
    ...  # backward; add to total and count
weights = [p for p in model.parameters() if p.grad is not None]
for p in weights:
    p.grad = ____
norm = ...
...  # the rate, the update, fresh gradients
return total / count, norm.item()""",
    ),
    sample=_sample,
    run=_run,
    tries=("zeros", "repeated"),
    gradients=False,
)  # fmt: skip
