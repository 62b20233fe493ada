"""Exercise: measure the loss that a language model has to beat."""

import math
from collections import Counter
from itertools import pairwise

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import integers


def bigram_loss(training, held_out, V):
    """int64 (N,), int64 (M,), size of the vocabulary -> float: nats a token"""
    pairs = torch.bincount(V * training[:-1] + training[1:], minlength=V * V)  # (V * V,): how often each was seen
    counts = 1.0 + pairs.reshape(V, V)  # (V * V,) -> (V, V), with one imagined sight of each pair
    log_probability = (counts / counts.sum(dim=1, keepdim=True)).log()  # (V, V): of the next token
    return -log_probability[held_out[:-1], held_out[1:]].mean().item()


def _model(seen="training", added=1.0, rows="before", measure="mean", unit="nats", context="one"):
    """A bigram model whose settings are the misconceptions."""

    def loss(training, held_out, V):
        text = {"training": training, "held-out": held_out, "both": torch.cat([training, held_out])}.get(seen, training)
        measured = training if seen == "measured-on-training" else held_out
        counts = torch.zeros(V, V, dtype=torch.float64)
        counts.index_put_((text[:-1], text[1:]), torch.ones(len(text) - 1, dtype=torch.float64), accumulate=True)
        if seen == "repeats-lost":
            counts.clamp_(max=1)
        counts = counts + added
        if rows == "with-the-last":
            probability = counts / (torch.bincount(text, minlength=V).double()[:, None] + V)
        elif rows == "keepdim":
            probability = counts / counts.sum(1)
        elif rows == "unsmoothed-total":
            probability = counts / (counts - added).sum(1, keepdim=True).clamp(min=1)
        elif rows == "joint":
            probability = counts / counts.sum()
        elif rows == "after":
            probability = counts / counts.sum(0, keepdim=True)
        else:
            probability = counts / counts.sum(1, keepdim=True)
        if context == "none":
            single = torch.bincount(text, minlength=V) + added
            probability = (single / single.sum()).double().expand(V, V)
        if context == "backwards":
            chosen = probability[measured[1:], measured[:-1]]
        else:
            chosen = probability[measured[:-1], measured[1:]]
        if measure == "log-of-mean":
            found = -chosen.mean().log()
        else:
            found = -chosen.log().mean() if measure == "mean" else -chosen.log().sum()
        if measure == "log-likelihood":
            found = chosen.log().mean()
        if measure == "all-tokens":
            found = -chosen.log().sum() / len(measured)
        if measure == "perplexity":
            found = (-chosen.log().mean()).exp()
        return float(found / (math.log(2) if unit == "bits" else 1.0))

    return loss


def _with_a_loop(training, held_out, V):
    counts = torch.ones(V, V)
    for before, after in pairwise(training.tolist()):
        counts[before, after] += 1
    probability = counts / counts.sum(dim=1, keepdim=True)
    return -probability[held_out[:-1], held_out[1:]].log().mean().item()


def _with_cross_entropy(training, held_out, V):
    counts = F.one_hot(training[:-1], V).double().T @ F.one_hot(training[1:], V).double() + 1
    return F.cross_entropy(counts.log()[held_out[:-1]], held_out[1:]).item()


def _with_counters(training, held_out, V):
    pairs, starts = Counter(pairwise(training.tolist())), Counter(training[:-1].tolist())
    chances = [(pairs[pair] + 1) / (starts[pair[0]] + V) for pair in pairwise(held_out.tolist())]
    return -sum(math.log(chance) for chance in chances) / len(chances)


def _case(name, training, held_out, V):
    return Case(name, lambda: (torch.tensor(training), torch.tensor(held_out), V))


def _sample(draw):
    V = draw.integer(2, 6)
    return (
        draw.integers(draw.integer(2, 20), low=0, high=V - 1),
        draw.integers(draw.integer(2, 12), low=0, high=V - 1),
        V,
    )


def _nothing_seen_is_even(loss) -> str | None:
    found = loss(torch.tensor([0, 0]), torch.tensor([1, 2, 3, 4, 1]), 5)
    if abs(found - math.log(5)) < 1e-5:
        return None
    even = f"{math.log(5):.4f}"
    return f"After a training text that says nothing of these pairs, the loss is {found:.4f}, and ln V is {even}."


EXERCISE = Exercise(
    title="The loss to beat",
    kind="measure",
    what="""Write `bigram_loss(training, held_out, V)`, for two texts given as token ids. A bigram model predicts each
token b from the one before it, a. In `training`, count how often b follows a, and how often anything follows a. The
probability of b after a is then (pair + 1) / (anything + V). Each of the V possible pairs counts once more than it was
seen, so that an unseen pair does not get probability 0 and an infinite loss. In the text *a b a c a* with V = 3,
something follows a twice, and once it is b: (1 + 1) / (2 + 3) = 0.4. Return the mean loss on `held_out` as a float:
minus the natural logarithm of the probability of the token that came, averaged over all tokens of `held_out` but the
first. The texts have at least two tokens each.""",
    why="""A loss says nothing by itself. This one needs no network, only counts. If your network does not
beat it, looking further back is not helping yet.""",
    difficulty=2,
    minutes=10,
    reference=bigram_loss,
    model=_model,
    misconceptions=misconceptions("""
counts-the-held-out-text (seen="held-out"): counts pairs of the held-out text itself
    What would your model predict if the held-out text were replaced after counting?
counts-both-texts (seen="both"): counts pairs of both texts, so that it has seen what it is tested on
    Which of the two texts may the model have seen?
too-many-imagined (added=2.0): adds two to each count
    For a pair that was never seen, which number stands above the line of your fraction?
too-few-imagined (added=0.1): adds a tenth to each count
    For a pair that was never seen, which number stands above the line of your fraction?
divided-by-what-follows (rows="after"): divides by how often the second token of the pair was seen
    For a given first token, what do your probabilities of all next tokens sum to?
probability-of-the-pair (rows="joint"): uses the probability of the pair in place of that of the next token
    For a given first token, what do your probabilities of all next tokens sum to?
total-without-the-imagined (rows="unsmoothed-total"): divides by the counts before the imagined pairs were added
    For a given first token, what do your probabilities of all next tokens sum to?
no-context (context="none"): predicts each token without looking at the one before
    Is the prediction after token 0 another one than after token 1?
predicts-backwards (context="backwards"): looks pairs of the held-out text up the other way round
    Which of two neighbours is known and which is to be predicted?
sum (measure="sum"): adds the losses up without dividing by their number
    What happens to your result if the held-out text is repeated twice?
logarithm-of-the-mean (measure="log-of-mean"): averages probabilities and takes the logarithm afterwards
    Which comes first in the task, the logarithm or the average?
likelihood (measure="log-likelihood"): forgets the minus sign
    Can a loss be negative here?
perplexity (measure="perplexity"): returns the perplexity, the exponential of the loss
    In which unit does the task want the result?
bits (unit="bits"): returns bits
    Which logarithm does the task ask for?
last-token-has-a-successor (rows="with-the-last"): counts the last token of the training text as if something followed
        it
    How many successors has the last token of a text?
rows-divided-as-columns (rows="keepdim"): divides each column by the total of the row of that number
    Which shape has the sum over the columns, and along which axis is it laid beside the table?
repeats-lost (seen="repeats-lost"): counts a pair once, however often it was seen
    What does `counts[a, b] += 1` do when the same pair stands in the index twice?
divided-by-all-tokens (measure="all-tokens"): divides by the number of all tokens of the held-out text
    How many of its tokens does the model predict?
"""),
    cases=[
        _case("6 training tokens, 3 held out, V = 3", [0, 1, 0, 1, 0, 2], [0, 1, 0], 3),
        _case("a pair that was never seen", [0, 1, 2, 0, 1], [2, 1, 2, 2], 3),
        _case("a token that was never seen", [0, 0, 1, 0], [3, 2, 0, 1], 4),
        _case("a text of two tokens", [1, 0], [1, 0], 2),
        _case("a text that goes one way round", [0, 1, 2, 3, 0, 1, 2, 3, 0], [0, 1, 2, 3, 0, 3, 1], 4),
        Case(
            "50 training tokens, 20 held out, V = 7",
            lambda: (integers(50, low=0, high=6, seed=1), integers(20, low=0, high=6, seed=2), 7),
        ),
    ],
    properties=[Property("Where nothing was seen, every next token is equally likely.", _nothing_seen_is_even)],
    alternatives=[
        Alternative("pair by pair", _with_a_loop),
        Alternative("with one-hot products and cross-entropy", _with_cross_entropy),
        Alternative("with counters of pairs", _with_counters),
    ],
    hints=(
        "For one token before it, which V probabilities must sum to one?",
        "Fill a table (V, V) of counts that starts at one, make each row sum to one, then look up the pairs of the "
        "held-out text.",
        """counts = ...  # (V, V): 1 + how often the pair was seen
log_probability = ____  # (V, V): each row a distribution over the next token
return -log_probability[held_out[:-1], ...].mean().item()""",
    ),
    sample=_sample,
    tries=("repeated",),
    tolerance=(1e-4, 1e-5),
    equivalent_mutants={"pairs.reshape(V, V) -> pairs.reshape(V, V)": "the same square"},
    gradients=False,
)
