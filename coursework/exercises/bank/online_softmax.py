"""Exercise: softmax in one pass, the heart of Flash attention."""

import math
import weakref

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def online_softmax(score_tiles, value_tiles):
    """iterators over (T, c) and (c, E') with the same c
    -> (T, E'): softmax over all scores, times all values"""
    highest, total, mixed = torch.tensor(-math.inf), 0.0, 0.0
    for scores, values in zip(score_tiles, value_tiles, strict=True):
        new = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
        rescale, part = torch.exp(highest - new), torch.exp(scores - new)  # (T, 1), (T, c)
        total = total * rescale + part.sum(dim=-1, keepdim=True)
        mixed = mixed * rescale + part @ values
        highest = new
    return mixed / total


def _model(total="rescaled", mixed="rescaled", maximum="running", end="divided"):
    """One pass over tiles whose settings are the misconceptions."""

    def stream(score_tiles, value_tiles):
        highest, sums, mixture, count = torch.tensor(-math.inf), 0.0, 0.0, 0
        for scores, values in zip(score_tiles, value_tiles, strict=True):
            tile = scores.amax(-1, keepdim=True)
            if maximum == "none":
                new = torch.zeros_like(tile)
            elif maximum == "tile":
                new = tile
            elif maximum == "first":
                new = tile if count == 0 else highest
            elif maximum == "global":
                new = torch.maximum(highest, tile.amax()) + 0 * tile
            elif maximum == "from-zero":
                new = torch.maximum(highest, tile).clamp(min=0.0)
            else:
                new = torch.maximum(highest, tile)
            rescale = torch.exp(highest - new) if maximum != "none" else torch.ones_like(new)
            rescale = torch.where(torch.isinf(highest), torch.zeros_like(rescale), rescale)
            if maximum == "tile":
                rescale = torch.ones_like(rescale)
            part = torch.exp(scores - new)
            if end == "each-tile":  # with its own maximum, whatever else is done
                mixture = mixture + scores.softmax(-1) @ values
                count, highest = count + 1, new
                continue
            backward = torch.where(torch.isinf(highest), torch.zeros_like(rescale), torch.exp(new - highest))
            factor = {"rescaled": rescale, "kept": torch.ones_like(rescale), "inverse": backward}
            sums = sums * factor[total] + part.sum(-1, keepdim=True)
            mixture = mixture * factor[mixed] + part @ values
            if end == "each-step":
                mixture = mixture / sums
            count, highest = count + 1, new
        if end == "each-tile":
            return mixture / count
        if end in ("not-divided", "each-step"):
            return mixture
        return mixture / (sums if end == "divided" else part.sum(-1, keepdim=True))

    return stream


def _with_log_sums(score_tiles, value_tiles):
    """Keep an output that is normed all the time, and the logarithm of its sum: two averages are averaged."""
    output, log_sum = None, None
    for scores, values in zip(score_tiles, value_tiles, strict=True):
        tile, new = scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)
        if output is None:
            output, log_sum = tile, new
        else:
            share = torch.sigmoid(new - log_sum)  # of the newer tile
            output, log_sum = output + share * (tile - output), torch.logaddexp(log_sum, new)
    return output


def _score_by_score(score_tiles, value_tiles):
    highest = total = mixed = None
    for scores, values in zip(score_tiles, value_tiles, strict=True):
        for score, value in zip(scores.unbind(-1), values, strict=True):
            score = score[:, None]
            if highest is None:
                highest, total, mixed = score, torch.ones_like(score), value.expand(len(score), -1)
                continue
            new = torch.maximum(highest, score)
            old, weight = torch.exp(highest - new), torch.exp(score - new)
            highest, total, mixed = new, total * old + weight, mixed * old + weight * value
    return mixed / total


def _by_merging(score_tiles, value_tiles):
    """Each tile has a maximum, a sum and a mixture; two such triples become one."""

    def merge(one, other):
        highest = torch.maximum(one[0], other[0])
        left, right = (one[0] - highest).exp(), (other[0] - highest).exp()
        return highest, one[1] * left + other[1] * right, one[2] * left + other[2] * right

    both = None
    for scores, values in zip(score_tiles, value_tiles, strict=True):
        highest = scores.amax(dim=-1, keepdim=True)
        weights = (scores - highest).exp()
        own = highest, weights.sum(dim=-1, keepdim=True), weights @ values
        both = own if both is None else merge(both, own)
    return both[2] / both[1]


KEPT = 4
"""Tiles that may be in use at once, where no gradient needs them: a loop holds the last one while it asks for more."""


def _stream(online_softmax, score_tiles, value_tiles):
    return online_softmax(_Once(score_tiles), _Once(value_tiles))


class _Once:
    """The tiles one after the other; reading them a second time, or keeping them all, raises ValueError."""

    def __init__(self, tiles):
        self._tiles, self._ended = _one_by_one(tiles), False

    def __iter__(self):
        if self._ended:
            raise ValueError("the tiles have all been read; expected a single pass over them")
        return self

    def __next__(self):
        try:
            return next(self._tiles)
        except StopIteration:
            self._ended = True
            raise

    def __getitem__(self, index):
        raise TypeError("the tiles come from an iterator, which has no index; expected a loop over them")


def _one_by_one(tiles):
    given = []
    for tile in tiles:
        if tile.requires_grad:  # the graph keeps it anyway
            yield tile
            continue
        if sum(one() is not None for one in given) > KEPT:
            raise ValueError(f"more than {KEPT} tiles are kept at once; expected one after the other")
        own = tile.clone()
        given.append(weakref.ref(own))
        yield own
        del own


def _elements(score_tiles, value_tiles) -> int:
    """Room for the products of one tile."""
    return max(scores.numel() * (values.size(-1) + 1) for scores, values in zip(score_tiles, value_tiles, strict=True))


def _many_tiles():
    scores, values = _tiles(3, [2] * 60, 2, 201)
    return [tile.detach() for tile in scores], [tile.detach() for tile in values]


def _tiles(T, sizes, width, seed, dtype=torch.float32, scale=1.0, shifts=None):
    shifts = shifts or [0.0] * len(sizes)
    scores = [
        (normal(T, c, seed=seed + i, dtype=dtype, scale=scale, grad=False) + shift).requires_grad_()
        for i, (c, shift) in enumerate(zip(sizes, shifts, strict=True))
    ]
    return scores, [normal(c, width, seed=seed + 50 + i, dtype=dtype) for i, c in enumerate(sizes)]


def _case(*arguments, **more):
    return lambda: _tiles(*arguments, **more)


def _queries_far_apart():
    scores, values = _tiles(3, [2, 4], 5, 111)
    lift = torch.tensor([[0.0], [-300.0], [300.0]])
    return [(tile.detach() + lift).requires_grad_() for tile in scores], values


def _sample(draw):
    T, width = draw.integer(1, 4), draw.integer(1, 5)
    sizes = [draw.integer(1, 5) for _ in range(draw.integer(1, 4))]
    dtype, scale = draw.dtype(), draw.choice([1.0, 5.0])
    scores = [draw.normal(T, c, dtype=dtype, scale=scale) for c in sizes]
    return scores, [draw.normal(c, width, dtype=dtype) for c in sizes]


def _order_of_tiles(online_softmax) -> str | None:
    scores, values = _tiles(2, [3, 2, 4], 5, 81, scale=3.0)
    gap = (online_softmax(scores, values) - online_softmax(scores[::-1], values[::-1])).abs().max().item()
    return None if gap < 1e-4 else f"The same tiles in the opposite order give an output that differs by {gap:.3f}."


def _shift(online_softmax) -> str | None:
    scores, values = _tiles(2, [3, 2], 5, 85)
    lifted = online_softmax([s + 200.0 for s in scores], values)
    if not torch.isfinite(lifted).all():
        return "With every score 200 higher the output is not finite."
    gap = (lifted - online_softmax(scores, values)).abs().max().item()
    return None if gap < 1e-3 else f"Adding 200 to every score changes the output by {gap:.3f}."


EXERCISE = Exercise(
    title="Softmax in one pass",
    what="""Write `online_softmax(score_tiles, value_tiles)`: the scores of T queries come in tiles of a few keys each,
with the values of those keys. Both arguments are iterators: each tile comes once, in order, and they have no length and
no index. Return what softmax over all the scores, times all the values, gives. Keep only a maximum, a sum and a mixture
for each query, no tiles. The maximum may start as `torch.tensor(-math.inf)`, the sum and the mixture as 0: the first
tile gives them their shapes. Scores lie between −1000 and 1000.""",
    why="""Flash attention is this loop on tiles that fit into fast memory. It is why exact attention does not need the
n by n table that everyone draws.""",
    difficulty=4,
    minutes=18,
    reference=online_softmax,
    model=_model,
    misconceptions=misconceptions("""
sum-not-rescaled (total="kept"): rescales the mixture and not the sum when the maximum rises
    The old sum was taken relative to the old maximum. What is it relative to the new one?
mixture-not-rescaled (mixed="kept"): rescales the sum and not the mixture when the maximum rises
    The old mixture was taken relative to the old maximum. What is it relative to the new one?
sum-rescaled-the-wrong-way (total="inverse"): multiplies the old sum by a factor above one when the maximum rises
    When a higher score appears, do the earlier ones weigh more, or less?
mixture-rescaled-the-wrong-way (mixed="inverse"): multiplies the old mixture by a factor above one when the maximum
        rises
    When a higher score appears, do the earlier ones weigh more, or less?
no-maximum (maximum="none"): takes the exponential of the scores as they are
    What is exp(1000) in float32?
maximum-of-the-tile (maximum="tile"): subtracts from each tile its own maximum and compares nothing
    A tile whose scores are all 5 lower than another's: how much less should it weigh?
maximum-of-the-first (maximum="first"): keeps the maximum of the first tile for all of them
    What if a later tile holds a score that is 1000 higher?
maximum-from-zero (maximum="from-zero"): starts the maximum at 0
    What is the sum in float32 if every score is -300 and the maximum is said to be 0?
divided-at-every-tile (end="each-step"): divides the mixture by the sum at every tile and goes on with what it has
        divided
    After the division the mixture is an average: how much does it weigh beside the next tile?
tiles-averaged (end="each-tile"): takes a softmax in each tile and averages the tiles equally
    Should a tile with low scores count as much as one with high scores?
not-divided (end="not-divided"): does not divide by the sum at the end
    If every value is 1, what should the output be?
divided-by-the-last-tile (end="last"): divides by the sum of the last tile only
    If every value is 1, what should the output be?
one-maximum-for-all-queries (maximum="global"): uses one maximum for all queries
    A query whose scores lie 200 below another's: what do its exponentials come to?
"""),
    cases=[
        Case("1 query, tiles of 2 and 1 keys", _case(1, [2, 1], 3, seed=1)),
        Case("2 queries, tiles of 2, 3 and 4 keys", _case(2, [2, 3, 4], 5, seed=11)),
        Case("a second tile with higher scores", _case(2, [3, 2], 4, seed=21, shifts=[0.0, 6.0])),
        Case("a second tile with lower scores", _case(2, [3, 2], 4, seed=31, shifts=[6.0, 0.0])),
        Case("a single tile", _case(3, [4], 2, seed=41)),
        Case("scores up to 1000, rising", _case(3, [2, 4, 3], 5, seed=61, shifts=[0.0, 500.0, 1000.0])),
        Case("scores up to 1000, falling", _case(2, [3, 2, 4], 5, seed=101, shifts=[1000.0, 500.0, 0.0])),
        Case("scores as large as 200, of either sign", _case(3, [2, 4], 5, seed=71, scale=80.0)),
        Case("one query with scores near -300, one near 300", _queries_far_apart),
        Case("60 tiles of 2 keys, of which few may be kept", _many_tiles),
        Case("float64", _case(2, [1, 5, 2], 3, seed=91, dtype=torch.float64)),
    ],
    properties=[
        Property("The order of the tiles changes nothing.", _order_of_tiles),
        Property("Adding a number to every score changes nothing.", _shift),
    ],
    alternatives=[
        Alternative("with an output that is normed all the time", _with_log_sums),
        Alternative("score by score", _score_by_score),
        Alternative("merging the triples of tiles", _by_merging),
    ],
    hints=(
        "After the first tile you know a sum of exp(score - maximum). The maximum rises by 3: what is the sum now?",
        "One factor, exp(old maximum - new maximum), brings both the sum and the mixture up to date.",
        """new = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
part = torch.exp(scores - new)  # (T, c)
rescale = ____  # what the old sum and the old mixture are worth now
total = total * rescale + part.sum(dim=-1, keepdim=True)""",
    ),
    sample=_sample,
    run=_stream,
    element_limit=_elements,
    tries=("float64", "zeros"),
    equivalent_mutants={
        "zip(score_tiles, value_tiles, strict=True) -> zip(score_tiles, value_tiles)": "the lists are equally long",
        "True -> False": "the lists are equally long",
        "0.0 -> 1.0": "the first factor is exp(-infinity), zero, whatever it multiplies",
        "0.0 -> -1.0": "the first factor is exp(-infinity), zero, whatever it multiplies",
        "0.0 -> 1.0 (2)": "the first factor is exp(-infinity), zero, whatever it multiplies",
        "0.0 -> -1.0 (2)": "the first factor is exp(-infinity), zero, whatever it multiplies",
    },
)
