"""Exercise: the router of a mixture of experts."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal, strided


def route_experts(scores, top_k):
    """(N, n_experts), int >= 2
    -> (N, n_experts): the weight of each expert, zero for those not chosen"""
    best, chosen = scores.topk(top_k, dim=-1)  # (N, top_k) each
    weights = best.softmax(dim=-1)  # over the chosen ones only
    return torch.zeros_like(scores).scatter(-1, chosen, weights)


def _model(norm="chosen", choose="largest", axis=-1, function="softmax", count=0, detached=False):
    """A router whose settings are the misconceptions."""

    def route(scores, top_k):
        k = min(max(1, top_k + count), scores.size(axis))
        chosen = scores.topk(k, dim=axis, largest=choose == "largest").indices
        if norm == "over-tokens":
            best, places = scores.topk(k, dim=axis)
            return torch.zeros_like(scores).scatter(axis, places, best.softmax(0))
        kept = torch.zeros_like(scores, dtype=torch.bool).scatter(axis, chosen, True)
        if function == "sigmoid":
            weights = torch.sigmoid(scores) * kept
            return weights / weights.sum(-1, keepdim=True).clamp(min=1e-9) if norm == "chosen" else weights
        if function in ("scores", "shares"):
            weights = scores * kept
            weights = weights / weights.sum(-1, keepdim=True) if function == "shares" else weights
            return weights.detach() if detached else weights
        if norm == "equal":
            weights = kept / k + 0 * scores
        elif norm == "all":
            weights = scores.softmax(-1) * kept
        elif norm == "zeros":
            weights = (scores * kept).softmax(-1)
        else:
            hidden = scores.masked_fill(~kept, -1e30)
            weights = hidden.softmax(-1) * kept
        return weights.detach() if detached else weights

    return route


def _by_sharing_out(scores, top_k):
    probabilities = scores.softmax(dim=-1)
    weights, chosen = probabilities.topk(top_k, dim=-1)
    return torch.zeros_like(scores).scatter(-1, chosen, weights / weights.sum(-1, keepdim=True))


def _by_hiding(scores, top_k):
    least = scores.topk(top_k, dim=-1).values[:, -1:]  # the smallest score that is chosen
    return scores.masked_fill(scores < least, float("-inf")).softmax(dim=-1)


def _with_loop(scores, top_k):
    rows = []
    for row in scores:
        chosen = row.argsort(descending=True)[:top_k]
        rows.append(torch.zeros_like(row).index_put((chosen,), row[chosen].softmax(dim=0)))
    return torch.stack(rows)


def _case(N, n_experts, top_k, seed, dtype=torch.float32, scale=1.0):
    return lambda: (normal(N, n_experts, seed=seed, dtype=dtype, scale=scale), top_k)


def _strided():
    return strided(normal(3, 5, seed=41)), 2


def _sample(draw):
    n_experts, N = draw.integer(3, 7), draw.integer(1, 5)
    dtype = draw.dtype()
    scores = draw.normal(N, n_experts, dtype=dtype, grad=False)
    scores = scores + torch.arange(n_experts, dtype=dtype) * 0.0017  # no two scores of a token are equal
    scores = scores + draw.choice((0, 0, 900, -900))  # up to the ends of what is promised
    return scores.requires_grad_(), draw.integer(2, n_experts - 1)


def _weights_sum_to_one(route_experts) -> str | None:
    sums = route_experts(normal(3, 5, seed=51), 2).sum(-1)
    for row, value in enumerate(sums.tolist()):
        if abs(value - 1) > 1e-4:
            return f"The weights of token {row} sum to {value:.3f}."
    return None


def _as_many_as_asked(route_experts) -> str | None:
    counts = (route_experts(normal(4, 6, seed=61), 3) != 0).sum(-1).tolist()
    return None if counts == [3] * 4 else f"With top_k=3 the tokens use {counts} experts."


EXERCISE = Exercise(
    title="Send each token to its experts",
    what="""Write `route_experts(scores, top_k)`: for each token choose the `top_k` experts with the highest scores, and
give them the softmax of **their** scores as weights; all others get exactly zero. `top_k` is at least 2; no two scores
of a token are equal. Scores lie between −1000 and 1000.""",
    why="""This is all that Mixtral's router decides. Everything else in a mixture of experts is bookkeeping, and a
loss that keeps this choice from always falling on the same few.""",
    difficulty=2,
    minutes=8,
    reference=route_experts,
    model=_model,
    misconceptions=misconceptions("""
softmax-over-all (norm="all"): takes the softmax over all experts, so that the weights of the chosen ones sum to less
        than one
    If two of eight experts answer, what should their weights add up to?
equal-weights (norm="equal"): gives all chosen experts the same weight
    Through which number would the router learn that one expert answered better than the other?
hidden-score-zero (norm="zeros"): gives experts that are not chosen the score 0 and a weight with it
    Which weight does a score of 0 get from a softmax?
lowest-scores (choose="smallest"): chooses the experts with the lowest scores
    Does a high score speak for an expert or against it?
experts-choose (axis=0): lets each expert choose among the tokens
    Along which axis are the scores of one token?
sigmoid (function="sigmoid"): uses sigmoids in place of a softmax
    What happens to one chosen expert's weight when only the other one's score rises?
raw-scores (function="scores"): uses the scores themselves as weights
    May a weight be negative?
one-too-many (count=1): chooses one expert too many
    How many weights of a row should differ from zero?
one-too-few (count=-1): chooses one expert too few
    How many weights of a row should differ from zero?
detached (detached=True): lets no gradient back to the router
    From where is the router to learn which expert to choose?
softmax-over-tokens (norm="over-tokens"): takes the softmax over the tokens
    Whose weights sum to one, those of a token or those of an expert?
shares-of-scores (function="shares"): divides the chosen scores by their sum
    What becomes of a share when scores are negative?
"""),
    cases=[
        Case("1 token, 3 experts, 2 chosen", _case(1, 3, 2, seed=1)),
        Case("2 tokens, 5 experts, 2 chosen", _case(2, 5, 2, seed=13)),
        Case("4 tokens, 6 experts, 3 chosen", _case(4, 6, 3, seed=23)),
        Case("scores as large as 1000", _case(3, 5, 2, seed=31, scale=400.0)),
        Case("scores that are not contiguous in memory", _strided),
        Case("float64", _case(2, 7, 4, seed=33, dtype=torch.float64)),
    ],
    properties=[
        Property("The weights of a token sum to one.", _weights_sum_to_one),
        Property("Exactly `top_k` experts get a weight.", _as_many_as_asked),
    ],
    alternatives=[
        Alternative("softmax over all, then shared out among the chosen", _by_sharing_out),
        Alternative("by hiding the scores below the smallest chosen one", _by_hiding),
        Alternative("token by token", _with_loop),
    ],
    hints=(
        "Whose scores should the softmax see?",
        "`topk` returns values and places; a softmax over the values gives the weights, `scatter` puts them in place.",
        """best, chosen = scores.topk(top_k, dim=-1)  # (N, top_k) each
weights = ____
return torch.zeros_like(scores).scatter(-1, chosen, weights)""",
    ),
    sample=_sample,
    tries=("float64", "large", "repeated"),
    equivalent_mutants={
        "scores.topk(top_k, dim=-1) -> scores.topk(top_k)": "the last axis is the default",
    },
)
