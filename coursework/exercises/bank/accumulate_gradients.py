"""Exercise: repair an accumulation of gradients that is not the gradient of the large batch."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def summed_loss(weight, batch):
    """(V, D), ((N, D), ids (N,), 0 is padding) -> sum of losses, their number"""
    features, targets = batch
    losses = F.cross_entropy(features @ weight.T, targets, reduction="none")  # (N,)
    real = targets != 0
    return (losses * real).sum(), int(real.sum())


def accumulate_gradients(weight, batches):
    """(V, D), list of micro-batches -> (V, D), the gradient of the mean loss"""
    gradient, tokens = torch.zeros_like(weight), 0
    for batch in batches:
        loss, count = summed_loss(weight, batch)
        gradient += torch.autograd.grad(loss, weight)[0]
        tokens += count
    return gradient / tokens


def _means():
    def accumulate_gradients(weight, batches):
        """(V, D), list of micro-batches -> (V, D), the gradient of the mean loss"""
        gradient = torch.zeros_like(weight)
        for batch in batches:
            loss, count = summed_loss(weight, batch)
            gradient += torch.autograd.grad(loss / count, weight)[0]
        return gradient / len(batches)

    return accumulate_gradients


def _model(mean="tokens", keep="sum", weight_by="none", step=False, count_padding=False):
    """Accumulation whose settings are the misconceptions."""

    def accumulate(weight, batches):
        total, tokens, rows = torch.zeros_like(weight), 0, 0
        current = weight
        for number, batch in enumerate(batches):
            loss, count = summed_loss(current, batch)
            if count_padding:
                count = len(batch[1])
            gradient = torch.autograd.grad(loss, current)[0]
            tokens, rows = tokens + count, rows + len(batch[1])
            if mean.startswith("means"):
                gradient = gradient / (max(count, 1) if mean != "means" else torch.tensor(float(count)))
            total = gradient if keep == "last" else gradient if keep == "first" and not number else (
                total if keep == "first" else total + gradient)  # fmt: skip
            if step:  # the weights move within the accumulation
                current = (current - 0.1 * gradient / max(count, 1)).detach().requires_grad_()
        if mean in ("means", "means-safely", "micro-batches"):
            return total / len(batches)
        if mean == "means-added":
            return total
        if mean == "means-of-the-real":
            return total / sum(1 for batch in batches if (batch[1] != 0).any())
        if mean == "none":
            return total
        if mean == "last-count":
            return total / max(count, 1)
        return total / tokens

    return accumulate


def _as_one_batch(weight, batches):
    features = torch.cat([batch[0] for batch in batches])
    targets = torch.cat([batch[1] for batch in batches])
    loss, count = summed_loss(weight, (features, targets))
    return torch.autograd.grad(loss / count, weight)[0]


def _run(accumulate, weight, batches):
    weight.requires_grad_().grad = torch.ones_like(weight)
    gradient = accumulate(weight, batches)
    if weight.grad is None or not torch.equal(weight.grad, torch.ones_like(weight)):
        raise ValueError("what stood in `weight.grad` before the call is not there any more")
    weight.grad = None
    return gradient


def _count_first(weight, batches):
    tokens = sum(int((targets != 0).sum()) for _, targets in batches)
    gradients = [torch.autograd.grad(summed_loss(weight, batch)[0] / tokens, weight)[0] for batch in batches]
    return torch.stack(gradients).sum(dim=0)


def _with_grad(weight, batches):
    parameter = weight.detach().clone().requires_grad_()
    tokens = 0
    for batch in batches:
        loss, count = summed_loss(parameter, batch)
        loss.backward()  # adds to parameter.grad
        tokens += count
    return parameter.grad / tokens


@maker
def _case(*targets, V=5, D=3, seed, dtype=torch.float32):
    batches = [
        (normal(len(ids), D, seed=seed + 1 + i, grad=False, dtype=dtype), torch.tensor(ids))
        for i, ids in enumerate(targets)
    ]
    return normal(V, D, seed=seed, dtype=dtype), batches


def _sample(draw):
    V, D = draw.integer(2, 6), draw.integer(1, 5)
    dtype = draw.dtype()
    batches = []
    for number in range(draw.integer(1, 4)):
        targets = draw.integers(draw.integer(1, 5), low=0, high=V - 1)
        if not number:
            targets[0] = 1  # at least one real token
        batches.append((draw.normal(len(targets), D, grad=False, dtype=dtype), targets))
    return draw.normal(V, D, dtype=dtype), batches


def _cut_elsewhere(accumulate) -> str | None:
    weight, ((features, targets),) = _case([1, 2, 3, 4, 1, 0, 0], seed=81)()
    whole = accumulate(weight, [(features, targets)])
    for cut in (1, 3, 6):
        parts = [(features[:cut], targets[:cut]), (features[cut:], targets[cut:])]
        if not torch.allclose(accumulate(weight, parts), whole, atol=1e-5):
            return (
                f"Cutting 7 tokens after the {['', 'first', '', 'third', '', '', 'sixth'][cut]} changed the gradient."
            )
    return None


def _padding_is_free(accumulate) -> str | None:
    weight, batches = _case([1, 2, 3], [4], seed=85)()
    before = accumulate(weight, batches)
    features, targets = batches[1]
    longer = (torch.cat([features, torch.ones(4, 3)]), torch.cat([targets, torch.zeros(4, dtype=torch.int64)]))
    after = accumulate(weight, [batches[0], longer])
    return None if torch.allclose(before, after, atol=1e-5) else "Four ids of padding more changed the gradient."


EXERCISE = Exercise(
    title="Accumulation that equals the large batch",
    kind="debug",
    what="""A batch too large for memory is cut into micro-batches, and their gradients are accumulated. The result must
be the gradient of the mean loss over all real tokens of the large batch, however it was cut: micro-batches may hold
different numbers of real tokens, also none. This function averages the means of the micro-batches. Repair it.
`summed_loss` is given; it returns the sum of the losses of the real tokens and their number. There is at least one real
token in all. Leave `weight`, and what is in `weight.grad`, as they are.""",
    why="""With ragged micro-batches the mean of means is another loss: tokens of short micro-batches weigh more. It
does not raise, and the curve looks as usual.""",
    difficulty=3,
    minutes=10,
    reference=accumulate_gradients,
    given=_means(),
    model=_model,
    misconceptions=misconceptions("""
mean-of-means (mean="means"): averages the means of the micro-batches
    One micro-batch has 1 real token, the other 9: with which weight does each token count?
mean-of-means-safely (mean="means-safely"): averages the means of the micro-batches, counting one without tokens as zero
    One micro-batch has 1 real token, the other 9: with which weight does each token count?
divided-by-micro-batches (mean="micro-batches"): divides the sum over all tokens by the number of micro-batches
    By how much does your gradient change if the same tokens are cut into twice as many pieces?
not-divided (mean="none"): returns the gradient of the sum
    How does your gradient grow with the size of the batch?
divided-by-the-last-count (mean="last-count"): divides by the number of tokens of the last micro-batch
    Which count does your divisor hold after the loop?
only-the-last (keep="last"): keeps the gradient of the last micro-batch only
    What happens in your loop to the gradient of the micro-batch before?
only-the-first (keep="first"): keeps the gradient of the first micro-batch only
    Does your result change when you change the second micro-batch?
padding-counts (count_padding=True): counts padding among the tokens
    By how much does your gradient change when a micro-batch gets more padding?
steps-in-between (step=True): moves the weights after each micro-batch
    At which weights is the gradient of the second micro-batch taken?
means-added (mean="means-added"): adds up the means of the micro-batches
    By how much does your gradient grow if the same tokens are cut into twice as many pieces?
mean-of-means-without-the-empty (mean="means-of-the-real"): averages the means of those micro-batches that have tokens
    One micro-batch has 1 real token, the other 9: with which weight does each token count?
"""),
    cases=[
        Case("one micro-batch", _case([1, 2, 3], seed=1)),
        Case("two of equal length", _case([1, 2], [3, 4], seed=11)),
        Case("one of 4 tokens, one of 1", _case([1, 2, 3, 4], [2], seed=21)),
        Case("two with padding", _case([1, 2, 3, 4, 1], [2, 0, 0, 0, 0], seed=31)),
        Case("one without real tokens", _case([1, 2, 3], [0, 0], [4], seed=41)),
        Case("the last one without real tokens", _case([1, 2], [3, 0], [0, 0, 0], seed=51, V=4, D=7)),
        Case("float64", _case([1, 2, 3, 4, 1, 2], [3], [4, 1, 0], seed=61, dtype=torch.float64)),
    ],
    properties=[
        Property("The gradient does not depend on how the batch is cut.", _cut_elsewhere),
        Property("Padding changes nothing.", _padding_is_free),
    ],
    alternatives=[
        Alternative("as one batch, where memory allows it", _as_one_batch),
        Alternative("counting the tokens first", _count_first),
        Alternative("with backward, which adds up by itself", _with_grad),
    ],
    hints=(
        "Which numbers can be added up over micro-batches without an error: sums, or means?",
        "Divide once, at the end, when you know the number of all real tokens.",
        """gradient, tokens = torch.zeros_like(weight), 0
for batch in batches:
    loss, count = summed_loss(weight, batch)
    gradient += torch.autograd.grad(loss, weight)[0]
    ...  # count
return ____""",
    ),
    sample=_sample,
    run=_run,
    tries=("float64", "zeros", "repeated"),
    helpers=(summed_loss,),
    gradients=False,
    equivalent_mutants={"0 -> -1 (2)": "the gradient is the only one of its tuple"},
)
