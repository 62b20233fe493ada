"""Exercise: one step of beam search."""

import heapq

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def beam_step(scores, log_probabilities, n_beams):
    """(K,), (K, V), N -> best first: scores (N,), parents (N,), tokens (N,), int64"""
    V = log_probabilities.size(1)
    candidates = scores[:, None] + log_probabilities  # (K, 1) + (K, V) -> (K, V)
    best, flat = candidates.flatten().topk(n_beams)  # (K, V) -> (K * V,) -> (N,)
    return best, flat // V, flat % V


def _model(total="sum", compete="all", index="rows", rank="best", outputs="as-asked", count="asked"):
    """A beam step whose settings are the misconceptions."""

    def step(scores, log_probabilities, n_beams):
        K, V = log_probabilities.shape
        candidates = {
            "sum": scores[:, None] + log_probabilities,
            "last": log_probabilities + 0 * scores[:, None],
            "product": scores[:, None] * log_probabilities,
            "probabilities": (scores[:, None] + log_probabilities.exp()),
            "underflow": (scores.exp()[:, None] * log_probabilities.exp()).log(),
            "mean": (scores[:, None] + log_probabilities) / 2,
        }[total]
        wanted = {"asked": n_beams, "as-before": min(K, K * V), "all": K * V}[count]
        if compete == "per-parent":
            best_of_each, own = candidates.topk(min(V, -(-wanted // K)), dim=1)
            flat = (torch.arange(K)[:, None] * V + own).flatten()
            best, order = best_of_each.flatten().topk(min(wanted, flat.numel()), largest=rank == "best")
            flat = flat[order]
        elif compete == "first-parent":
            best, flat = candidates[0].topk(min(wanted, V), largest=rank == "best")
        else:
            best, flat = candidates.flatten().topk(wanted, largest=rank == "best")
        parents, tokens = flat // V, flat % V
        if index == "texts":
            parents, tokens = flat // K, flat % K
        elif index == "texts-for-parents":
            parents = flat // K
        elif index == "texts-for-tokens":
            tokens = flat % K
        elif index == "flat":
            tokens = flat.clone()
        if outputs == "exchanged":
            parents, tokens = tokens, parents
        elif outputs == "sorted-by-parent":
            parents, order = parents.sort(stable=True)
            best, tokens = best[order], tokens[order]
        elif outputs == "probabilities":
            best = best.exp()
        elif outputs == "step-scores":
            best = log_probabilities.flatten()[flat]
        return best, parents, tokens

    return step


def _with_sort(scores, log_probabilities, n_beams):
    candidates = (scores.unsqueeze(1) + log_probabilities).reshape(-1)
    order = candidates.argsort(descending=True)[:n_beams]
    V = log_probabilities.size(1)
    parents = torch.div(order, V, rounding_mode="floor")
    return candidates[order], parents, order - V * parents


def _with_a_heap(scores, log_probabilities, n_beams):
    K, V = log_probabilities.shape
    pairs = [(k, v) for k in range(K) for v in range(V)]
    best = heapq.nlargest(n_beams, pairs, key=lambda pair: (scores[pair[0]] + log_probabilities[pair]).item())
    parents, tokens = (torch.tensor(part) for part in zip(*best, strict=True))
    return scores[parents] + log_probabilities[parents, tokens], parents, tokens


def _in_two_rounds(scores, log_probabilities, n_beams):
    V = log_probabilities.size(1)
    total = scores[:, None] + log_probabilities
    each, tokens = total.topk(min(n_beams, V), dim=1)  # no parent can have more than N of the N best
    best, place = each.flatten().topk(n_beams)
    return best, place // each.size(1), tokens.flatten()[place]


def _rows(scores, rows, n_beams):
    return lambda: (
        torch.tensor(scores),
        torch.tensor(rows).log(),
        n_beams,
    )


@maker
def _at_random(K, V, n_beams, seed, dtype=torch.float32):
    scores = _apart(normal(K, seed=seed, dtype=torch.float64, grad=False, scale=0.8) - 3)
    logits = normal(K, V, seed=seed + 1, dtype=torch.float64, grad=False)
    log_probabilities = (logits + 0.0037 * torch.arange(V)).log_softmax(dim=-1)
    return scores.to(dtype), log_probabilities.to(dtype), n_beams


def _apart(scores):
    return scores - 0.00123 * torch.arange(len(scores))


def _sample(draw):
    K, V = draw.integer(1, 4), draw.integer(2, 6)
    n_beams = draw.integer(1, min(4, K * V))
    dtype = draw.dtype()
    logits = draw.normal(K, V, dtype=torch.float64, grad=False) + 0.0037 * torch.arange(V)
    scores = _apart(draw.normal(K, dtype=torch.float64, grad=False) - 3)
    log_probabilities = logits.log_softmax(dim=-1)
    candidates = (scores[:, None] + log_probabilities).flatten().sort().values
    if len(candidates) > 1 and candidates.diff().min() < 1e-5:  # no case may rest on how ties are sorted
        scores = scores + torch.arange(K) * 0.37
    return scores.to(dtype), log_probabilities.to(dtype), n_beams


def _a_good_start_can_take_all(step) -> str | None:
    scores = torch.tensor([-0.1, -9.0])
    rows = torch.tensor([[0.4, 0.35, 0.25], [0.98, 0.01, 0.01]]).log()
    _, parents, _ = step(scores, rows, 2)
    if parents.tolist() == [0, 0]:
        return None
    return f"Of two starts with scores -0.1 and -9, the places went to continuations of {parents.tolist()}."


EXERCISE = Exercise(
    title="One step of beam search",
    what="""Write `beam_step(scores, log_probabilities, n_beams)`. There are K partial texts; `scores[k]` is the sum of
the log-probabilities of the tokens of text k so far, and `log_probabilities[k]` those of its possible next tokens.
Among all K·V ways to go on, find the `n_beams` (at most K·V) with the highest new sums.
Return three tensors, the best first: the new sums, the number k of the text that each continues (its parent), and its
new token. K need not equal `n_beams`: at the first step K is 1. The tests contain no ties. Parents and tokens
are int64. You need no gradients.""",
    why="""All of beam search is this step, again and again, and a rule for what has ended. A text splits if two of
its continuations are kept, and is dropped if none is.""",
    difficulty=3,
    minutes=14,
    reference=beam_step,
    model=_model,
    misconceptions=misconceptions("""
past-forgotten (total="last"): ranks by the last token alone and forgets the scores so far
    Where does your function use its first argument?
scores-multiplied (total="product"): multiplies log-probabilities
    What happens to logarithms when probabilities are multiplied?
probabilities-multiplied (total="underflow"): multiplies probabilities, which for long texts are zero
    What is the exponential of -120 in float32?
probability-added-to-logarithm (total="probabilities"): adds a probability to a sum of log-probabilities
    What are the two numbers that you add: logarithms, both of them?
divided-at-each-step (total="mean"): halves the new sums
    For a start of -2 and a step of -1, what is the new sum?
fair-share-for-each-parent (compete="per-parent"): gives every text the same number of continuations
    What if one text is so good that its second-best continuation beats all others?
first-text-only (compete="first-parent"): continues the first text only
    How many sums compete when there are K texts and V tokens?
divided-by-the-wrong-size (index="texts"): takes the flat index apart with K in place of V
    In the flattened (K, V), how far apart are two neighbouring rows?
parent-by-the-wrong-size (index="texts-for-parents"): divides the flat index by K, not by V, to find the parent
    In the flattened (K, V), how many numbers belong to one text?
token-by-the-wrong-size (index="texts-for-tokens"): takes the remainder of the flat index by K, not by V, as the token
    Which remainders are possible, and how many tokens are there?
flat-index-as-token (index="flat"): returns the flat index as the token
    How large can a token be?
worst-kept (rank="worst"): keeps the lowest sums
    Is a log-probability of -1 better or worse than one of -5?
parents-and-tokens-exchanged (outputs="exchanged"): returns tokens where the parents belong and parents where the tokens
        belong
    In which order does the task ask for the three results?
ordered-by-parent (outputs="sorted-by-parent"): orders the results by their parents, not by their sums
    Which result must stand first?
sums-as-probabilities (outputs="probabilities"): returns probabilities where log-probabilities are wanted
    What will the next step add to your scores?
score-of-the-step (outputs="step-scores"): returns the log-probability of the new token in place of the sum
    What will the next step know of the tokens before?
keeps-as-many-as-before (count="as-before"): keeps as many texts as there were, whatever `n_beams` says
    How many texts are there at the first step, and how many are wanted after it?
keeps-all (count="all"): returns every continuation
    How many results does the task ask for?
"""),
    cases=[
        Case("1 text, 3 tokens, 2 wanted", _rows([-1.0], [[0.2, 0.5, 0.3]], 2)),
        Case(
            "2 texts, 3 tokens, 2 wanted: one text wins both places",
            _rows([-0.5, -4.0], [[0.2, 0.45, 0.35], [0.9, 0.06, 0.04]], 2),
        ),
        Case(
            "2 texts, 3 tokens, 3 wanted",
            _rows([-1.2, -1.0], [[0.7, 0.1, 0.2], [0.31, 0.4, 0.29]], 3),
        ),
        Case("the better text has the worse step", _rows([-0.2, -2.5], [[0.3, 0.45, 0.25], [0.05, 0.9, 0.05]], 1)),
        Case("3 texts, 5 tokens, 2 wanted", _at_random(3, 5, 2, seed=11)),
        Case("3 texts, 7 tokens, 5 wanted", _at_random(3, 7, 5, seed=21)),
        Case("5 texts, 4 tokens, 3 wanted", _at_random(5, 4, 3, seed=31)),
        Case("long texts, scores near -120", _rows([-121.5, -120.0], [[0.1, 0.2, 0.7], [0.2, 0.35, 0.45]], 2)),
        Case("float64", _at_random(3, 5, 4, seed=41, dtype=torch.float64)),
    ],
    properties=[Property("Continuations of all texts compete for the same places.", _a_good_start_can_take_all)],
    alternatives=[
        Alternative("by sorting all sums", _with_sort),
        Alternative("with a heap over pairs", _with_a_heap),
        Alternative("in two rounds, first within each text", _in_two_rounds),
    ],
    hints=(
        "How many sums compete, and what does one of them consist of?",
        "Add each text's score to its row, look for the largest numbers of the whole table at once, and take their "
        "place in it apart into row and column.",
        """V = log_probabilities.size(1)
candidates = ____  # (K, V)
best, flat = ...
return best, flat // V, ...""",
    ),
    sample=_sample,
    tries=("float64", "large"),
    gradients=False,
)
