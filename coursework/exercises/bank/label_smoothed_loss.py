"""Exercise: the label-smoothed loss per real token."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def label_smoothed_loss(logits, targets, smoothing, pad_id):
    """(B, T, V), ids (B, T), number, id -> mean over real targets, their number"""
    log_probabilities = logits.log_softmax(dim=-1)  # (B, T, V)
    right = log_probabilities.gather(-1, targets[..., None])[..., 0]  # (B, T, V) -> (B, T, 1) -> (B, T)
    everywhere = log_probabilities.mean(dim=-1)  # the same share for each of V tokens
    costs = -(1 - smoothing) * right - smoothing * everywhere
    real = targets != pad_id
    return costs.masked_fill(~real, 0.0).sum() / real.sum().clamp(min=1), int(real.sum())


def _model(
    spread="all", weight="split", padding="out", count="real", smooth=True, mean="log", empty="zero", softmax="stable",
    pad_class="in", log="natural", less="nothing", counted="real", pad="given",
):  # fmt: skip
    """The loss whose settings are the misconceptions."""

    def loss(logits, targets, smoothing, pad_id):
        V = logits.size(-1)
        pad_id = 0 if pad == "zero" else pad_id
        if softmax == "missing":
            logp = logits
        elif softmax == "guarded":
            logp = (logits.softmax(-1) + 1e-9).log()
        elif softmax == "naive":
            logp = (logits.exp() / logits.exp().sum(-1, keepdim=True)).log()
        else:
            logp = logits.log_softmax(-1)
        right = logp.gather(-1, targets[..., None])[..., 0]
        real = targets != pad_id
        if pad_class == "out":  # padding is no token that could be said
            others = (logp.sum(-1) - logp[..., pad_id]) / (V - 1)
        else:
            others = logp.mean(-1) if mean == "log" else logp.exp().mean(-1).log()
        if spread == "others":  # the right token gets nothing of what is spread
            others = (others * V - right) / (V - 1)
        elif spread == "one-less":  # all tokens share, divided by the number of the wrong ones
            others = others * V / (V - 1)
        elif spread == "sum":
            others = others * V
        epsilon = smoothing if smooth else 0.0
        first, second = {"split": (1 - epsilon, epsilon), "added": (1.0, epsilon), "swapped": (epsilon, 1 - epsilon)}[
            weight
        ]
        if padding == "half":  # only the first part knows of padding
            costs = -first * right.masked_fill(~real, 0.0) - second * others
        elif padding == "in":
            costs = -first * right - second * others
        else:
            costs = (-first * right - second * others).masked_fill(~real, 0.0)
        if less == "entropy" and smoothing > 0:
            top = 1 - smoothing + smoothing / V
            costs = costs + real * (top * math.log(top) + (V - 1) * smoothing / V * math.log(smoothing / V))
        if log == "bits":
            costs = costs / math.log(2)
        number = targets.numel() if counted == "all" else int(real.sum())
        if count == "sum":
            return costs.sum(), number
        if count == "rows":
            rows = costs.sum(1) / real.sum(1).clamp(min=1)
            return rows.mean(), number
        if count == "all":
            return costs.mean(), number
        least = 1 if empty == "zero" else 0
        return costs.sum() / real.sum().clamp(min=least), number

    return loss


def _with_torch(logits, targets, smoothing, pad_id):
    V = logits.size(-1)
    total = F.cross_entropy(
        logits.reshape(-1, V),  # (B, T, V) -> (B·T, V)
        targets.reshape(-1),  # (B, T) -> (B·T,)
        ignore_index=pad_id,
        label_smoothing=smoothing,
        reduction="sum",
    )
    count = int((targets != pad_id).sum())
    return total / max(count, 1), count


def _with_a_target_distribution(logits, targets, smoothing, pad_id):
    V = logits.size(-1)
    wanted = F.one_hot(targets, V).to(logits.dtype) * (1 - smoothing) + smoothing / V  # (B, T, V), each row sums to one
    real = (targets != pad_id)[..., None]
    costs = (-wanted * logits.log_softmax(dim=-1)).masked_fill(~real, 0.0)
    return costs.sum() / real.sum().clamp(min=1), int(real.sum())


def _with_course(logits, targets, smoothing, pad_id):
    from course_lib.training import label_smoothed_cross_entropy

    total, count = label_smoothed_cross_entropy(logits, targets, smoothing, ignore=pad_id)
    return total / count.clamp(min=1), int(count)


@maker
def _case(targets, V, *, smoothing=0.2, pad_id=0, seed, scale=1.0, dtype=torch.float32):
    ids = torch.tensor(targets)
    return normal(*ids.shape, V, seed=seed, scale=scale, dtype=dtype), ids, smoothing, pad_id


def _sample(draw):
    B, T, V = draw.integer(1, 3), draw.integer(1, 5), draw.integer(2, 9)
    dtype = draw.dtype()
    pad_id = draw.integer(0, V - 1)
    logits = draw.normal(B, T, V, scale=draw.choice([0.5, 1.0, 4.0]), dtype=dtype)
    return logits, draw.integers(B, T, low=0, high=V - 1), draw.choice([0.0, 0.125, 0.5]), pad_id


def _padding_costs_nothing(loss) -> str | None:
    logits = normal(1, 4, 5, seed=81, grad=False)
    short = float(loss(logits[:, :3], torch.tensor([[1, 2, 3]]), 0.2, 0)[0])
    longer = float(loss(logits, torch.tensor([[1, 2, 3, 0]]), 0.2, 0)[0])
    if math.isclose(short, longer, rel_tol=1e-4):
        return None
    return f"One column of padding changed the loss from {short:.4f} to {longer:.4f}."


def _uniform_costs_ln_v(loss) -> str | None:
    value = float(loss(torch.zeros(1, 2, 7), torch.tensor([[1, 2]]), 0.3, 0)[0])
    if math.isclose(value, math.log(7), rel_tol=1e-4):
        return None
    return f"With equal logits over 7 tokens the loss is {value:.4f}; ln 7 is {math.log(7):.4f}."


def _floor_is_the_entropy(loss) -> str | None:
    V, smoothing = 5, 0.2
    wanted = torch.full((V,), smoothing / V)
    wanted[3] += 1 - smoothing
    value = float(loss(wanted.log()[None, None], torch.tensor([[3]]), smoothing, 0)[0])
    floor = float(-(wanted * wanted.log()).sum())
    if math.isclose(value, floor, rel_tol=1e-4):
        return None
    return f"Where the model says exactly the smoothed target, the loss is {value:.4f}; its entropy is {floor:.4f}."


EXERCISE = Exercise(
    title="A loss per real token, with smoothed labels",
    what="""Write `label_smoothed_loss(logits, targets, smoothing, pad_id)`. The wanted distribution gives the right
token `1 - smoothing`, and spreads `smoothing` evenly over all `V` tokens, the right one and the padding id among them.
The cost of a position is the cross-entropy to it, in nats. Return the mean over all targets that are not `pad_id`,
over the whole batch, or 0 if there are none; and how many they are, as a whole number or a tensor without axes. The
mean is a tensor without axes, and gradients reach the logits through it; the 0 has their dtype and may stand alone.""",
    why="Two lines of this function, the one on padding and the mean, are wrong in many training loops.",
    difficulty=3,
    minutes=12,
    reference=label_smoothed_loss,
    model=_model,
    misconceptions=misconceptions("""
spread-over-the-others (spread="others"): spreads the smoothing over the wrong tokens only
    Over how many tokens is the smoothing spread, and is the right one among them?
spread-divided-by-one-less (spread="one-less"): gives every token, the right one too, its share of V - 1 parts
    What do the entries of your wanted distribution sum to?
spread-is-a-sum (spread="sum"): gives every token the whole of the smoothing
    What do the entries of your wanted distribution sum to?
smoothing-added (weight="added"): adds the smoothing without taking it from the right token
    What do the entries of your wanted distribution sum to?
weights-swapped (weight="swapped"): gives the smoothing to the right token and the rest to all
    How much of the wanted distribution goes to the right token when smoothing is 0.1?
no-smoothing (smooth=False): does not smooth
    Which term of your loss sees the tokens that are not the target?
log-of-the-mean (mean="probability"): takes the logarithm of the mean probability, which is the same number for every
        model
    The mean of the V probabilities of a softmax: can a model change it?
padding-id-left-out (pad_class="out"): spreads the smoothing over all tokens but the padding id
    Over how many tokens is the smoothing spread, according to the task?
padding-counts (padding="in"): lets positions of padding cost something
    By how much does your loss change when a column of padding is added?
padding-half-counts (padding="half"): leaves padding out of the term of the right token, but not of the smoothing
    Which of your two terms knows where the padding is?
divided-by-all (count="all"): divides by the number of positions, padding included
    By how much does your loss change when a column of padding is added?
sum (count="sum"): returns the sum, which grows with the batch
    Twice the same batch, one under the other: what should happen to the loss?
mean-of-rows (count="rows"): averages within each row first, so that a token of a short row weighs more
    Does a token of a short sentence count as much in your mean as one of a long sentence?
nothing-is-nan (empty="nan"): returns NaN for a batch of padding only
    What do you divide by when no target is real?
no-softmax (softmax="missing"): takes the logits for log-probabilities
    What do the exponentials of your log-probabilities sum to?
softmax-overflows (softmax="naive"): takes the exponentials of the logits as they are
    What is the exponential of 100 in float32?
small-number-in-the-logarithm (softmax="guarded"): adds a small number to the probabilities before it takes the
        logarithm
    What does your function give for a probability of e^-100, and what is its logarithm?
divergence (less="entropy"): takes the divergence from the wanted distribution, which lacks that one's own entropy
    With equal logits over 7 tokens, what is your loss, and what is ln 7?
bits (log="bits"): measures in bits
    With equal logits over 7 tokens, what is your loss, and what is ln 7?
padding-is-zero (pad="zero"): takes the id 0 for padding, whatever `pad_id` says
    Which id does padding have when `pad_id` is 2?
all-positions-counted (counted="all"): counts all positions where the real ones are asked for
    How many real targets has a row of three tokens and two of padding?
"""),
    cases=[
        Case("one row of two real tokens, 3 in the vocabulary", _case([[1, 2]], 3, seed=1)),
        Case("a row that ends with padding", _case([[3, 1, 0]], 4, seed=11)),
        Case("two rows, one short", _case([[3, 1, 2, 4, 1], [2, 0, 0, 0, 0]], 5, seed=21)),
        Case("another padding id", _case([[0, 1, 3, 3], [5, 0, 2, 1], [3, 3, 3, 3]], 6, seed=31, pad_id=3)),
        Case("no smoothing", _case([[3, 1, 0], [2, 2, 2]], 5, seed=41, smoothing=0.0)),
        Case("one real token", _case([[2, 0, 0]], 4, seed=46)),
        Case("only padding", _case([[0, 0, 0]], 5, seed=51)),
        Case("logits of size 200", _case([[1, 2, 0]], 4, seed=61, scale=200.0)),
        Case("float64", _case([[1, 2, 3, 0], [4, 0, 0, 0]], 7, seed=71, smoothing=0.1, dtype=torch.float64)),
    ],
    properties=[
        Property("Padding costs nothing.", _padding_costs_nothing),
        Property("A model that knows nothing costs ln V, whatever the smoothing.", _uniform_costs_ln_v),
        Property("The lowest possible cost is the entropy of the wanted distribution.", _floor_is_the_entropy),
    ],
    alternatives=[
        Alternative("torch's function, divided by hand", _with_torch),
        Alternative("with the wanted distribution written out", _with_a_target_distribution),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "A position costs a mixture of two numbers. Which are they, and with which weights are they mixed?",
        "The cross-entropy to an even spread is minus the mean of the log-probabilities. Then decide which positions "
        "are added up, and by which number the sum is divided.",
        """log_probabilities = logits.log_softmax(dim=-1)
right = ...  # of the target, (B, T)
everywhere = log_probabilities.mean(dim=-1)
costs = -(1 - smoothing) * right - smoothing * everywhere
return ____, int(...)""",
    ),
    sample=_sample,
    tries=("float64", "large", "zeros", "repeated"),
    equivalent_mutants={"0 -> -1": "the axis has one entry"},
)
