"""Exercise: repair a sampler that filters before it applies the temperature."""

import math

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def nucleus(logits, p):
    """(B, V), number in (0, 1] -> (B, V): -inf but for the nucleus of probability p"""
    ordered, order = logits.sort(dim=-1, descending=True)
    probability = ordered.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability
    cut = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= p)
    return logits.masked_fill(cut, -math.inf)


def next_token_probabilities(logits, temperature, p):
    """(B, V), positive number, number in (0, 1] -> (B, V): what is drawn from"""
    return nucleus(logits / temperature, p).softmax(dim=-1)


def _filters_first():
    def next_token_probabilities(logits, temperature, p):
        """(B, V), positive number, number in (0, 1] -> (B, V): what is drawn from"""
        return (nucleus(logits, p) / temperature).softmax(dim=-1)

    return next_token_probabilities


def _model(order="temperature-first", heat="divide", end="softmax", cut="nucleus"):
    """A sampler whose settings are the misconceptions."""

    def distribution(logits, temperature, p):
        def heated(logits):
            if heat == "multiply":
                return logits * temperature
            if heat == "ignore":
                return logits
            if heat == "root":
                return logits / math.sqrt(temperature)
            return logits / temperature

        def kept(logits):
            if cut == "nothing":
                return logits
            if cut == "top-one":
                return logits.masked_fill(logits < logits.amax(-1, keepdim=True), -math.inf)
            return nucleus(logits, p)

        if order == "probabilities":
            final = kept(heated(logits).softmax(-1))
        elif order == "filter-first":
            final = heated(kept(logits))
        elif order == "heated-twice":
            final = heated(kept(heated(logits)))
        elif order == "filtered-twice":
            final = kept(heated(kept(logits)))
        else:
            final = kept(heated(logits))
        if end == "not-renormalised":
            return heated(logits).softmax(-1) * final.isfinite()
        if end == "logits":
            return final
        if end == "log":
            return final.log_softmax(-1)
        if end == "uniform":
            return final.isfinite() / final.isfinite().sum(-1, keepdim=True) + 0 * logits
        return final.softmax(-1)

    return distribution


def _with_probabilities(logits, temperature, p):
    probability = (logits / temperature).softmax(dim=-1)
    kept = nucleus(logits / temperature, p).isfinite()
    return probability * kept / (probability * kept).sum(dim=-1, keepdim=True)


def _with_course(logits, temperature, p):
    from course_lib.generation import top_p_filter

    return torch.softmax(top_p_filter(logits / temperature, p), dim=-1)


def _by_powers(logits, temperature, p):
    rows = []
    for row in logits:
        share = (row - row.max()).exp() ** (1 / temperature)
        share = share / share.sum()
        total, kept = 0.0, torch.zeros_like(share)
        for token in share.argsort(descending=True):
            if total >= p:
                break
            kept[token], total = 1.0, total + share[token].item()
        rows.append(share * kept / (share * kept).sum())
    return torch.stack(rows)


def _rows(*rows, temperature, p, dtype=torch.float32):
    return lambda: (torch.tensor(rows, dtype=torch.float64).log().to(dtype).requires_grad_(), temperature, p)


@maker
def _at_random(B, V, seed, temperature, p, dtype=torch.float32):
    logits = normal(B, V, seed=seed, dtype=torch.float64, grad=False, scale=1.5) + 0.0037 * torch.arange(V)
    return logits.to(dtype).requires_grad_(), temperature, p


def _sample(draw):
    B, V = draw.integer(1, 3), draw.integer(2, 8)
    logits = draw.normal(B, V, dtype=torch.float64, grad=False) + 0.0037 * torch.arange(V)
    temperature, p = draw.integer(4, 25) / 10, draw.integer(5, 98) / 100
    total = (logits / temperature).sort(dim=-1, descending=True).values.softmax(-1).cumsum(-1)
    while (total - p).abs().min() < 1e-4:  # no case may rest on rounding
        p -= 0.00021
    return logits.to(draw.dtype()).requires_grad_(), temperature, p


def _what_is_kept_has_p(distribution) -> str | None:
    logits, temperature, p = _at_random(2, 7, seed=81, temperature=2.0, p=0.75)()
    heated = (logits / temperature).softmax(-1)
    for row, kept in enumerate(distribution(logits, temperature, p) > 0):
        together = heated[row][kept]
        if together.sum() < p:
            return f"At temperature 2 the kept tokens have probability {together.sum():.3f} together, below p = {p}."
        if together.sum() - together.min() >= p:
            return f"At temperature 2 one of the {len(together)} kept tokens could go, and p = {p} is still reached."
    return None


EXERCISE = Exercise(
    title="Temperature and filter, in order",
    kind="debug",
    what="""This sampler applies a temperature and a nucleus filter, which is given and right. A user asked for
temperature 2 and `p` = 0.9 and got texts far more cautious than expected. The sampler must draw from the fewest tokens
that have probability `p` together **at the temperature asked for**, in proportion to their probabilities there. Find
what is wrong and repair it.""",
    why="""The two steps exchanged are both legal Python and both give a distribution. Libraries do not agree on the
order: `transformers` and vLLM heat first, llama.cpp last. Whoever moves settings from one to another must know it.""",
    difficulty=2,
    minutes=6,
    reference=next_token_probabilities,
    given=_filters_first(),
    helpers=(nucleus,),
    model=_model,
    misconceptions=misconceptions("""
filter-before-temperature (order="filter-first"): decides which tokens to keep before the temperature has changed their
        probabilities
    At which temperature do the tokens that you keep have probability p together?
temperature-twice (order="heated-twice"): applies the temperature a second time after the filter
    By what is a kept logit divided in total?
filtered-twice (order="filtered-twice"): filters before the temperature and again after it
    Which tokens are gone before your temperature is applied?
multiplies-by-temperature (heat="multiply"): multiplies logits by the temperature
    Should a high temperature bring logits together or drive them apart?
temperature-ignored (heat="ignore"): does not use the temperature, or in a way that a later step undoes
    If all probabilities are divided by 2 and then made to sum to one, what has changed?
root-of-temperature (heat="root"): divides by the root of the temperature
    At temperature 4, by what is a logit divided?
not-renormalised (end="not-renormalised"): leaves the kept probabilities as they were before the cut, so that they sum
        to less than one
    What do the probabilities that you return sum to?
logits-returned (end="logits"): returns logits
    Could a random number generator draw from what you return?
logarithms-returned (end="log"): returns log-probabilities
    Could a random number generator draw from what you return?
kept-tokens-alike (end="uniform"): gives all kept tokens the same probability
    Is the most likely token more likely than the others in your result?
no-filter (cut="nothing"): cuts nothing
    Which line of yours gives another result for another p?
greedy (cut="top-one"): keeps the most likely token only
    How many tokens does it take to reach p?
softmax-twice (order="probabilities"): gives the filter probabilities where it expects logits
    What does `nucleus` do first with what it gets?
"""),
    cases=[
        Case("4 tokens, temperature 2, p = 0.8", _rows([0.75, 0.15, 0.07, 0.03], temperature=2.0, p=0.8)),
        Case("4 tokens, temperature 0.5, p = 0.8", _rows([0.15, 0.5, 0.05, 0.3], temperature=0.5, p=0.8)),
        Case("temperature 1", _rows([0.2, 0.5, 0.3], temperature=1.0, p=0.6)),
        Case("temperature 4, 2 rows", _at_random(2, 5, seed=11, temperature=4.0, p=0.7)),
        Case("temperature 2, 3 rows of 7 tokens", _at_random(3, 7, seed=21, temperature=2.0, p=0.75)),
        Case("temperature 0.7, p = 0.95", _at_random(2, 7, seed=31, temperature=0.7, p=0.95)),
        Case("p = 1", _at_random(2, 5, seed=41, temperature=1.5, p=1.0)),
        Case("float64", _at_random(2, 7, seed=51, temperature=1.5, p=0.8, dtype=torch.float64)),
    ],
    properties=[
        Property(
            "At the temperature asked for, the kept tokens reach p together, and none could go.", _what_is_kept_has_p
        )
    ],
    alternatives=[
        Alternative("by cutting probabilities and making them sum to one", _with_probabilities),
        Alternative("with powers of probabilities, token by token", _by_powers),
        Alternative("with the course's own filter", _with_course),
    ],
    gradients=False,
    hints=(
        "The filter adds up probabilities. Of which distribution are they here?",
        "A temperature changes probabilities, so it changes which tokens it takes to reach p. What must be known "
        "before the filter can decide?",
        """heated = ____
return nucleus(heated, p).softmax(dim=-1)""",
    ),
    sample=_sample,
    tries=("float64", "shifted", "zeros", "repeated"),
)
