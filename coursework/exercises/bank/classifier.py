"""Exercise: a classifier on top of an encoder, from [CLS] or from the mean of the words."""

import torch
from torch import nn

from coursework.exercises import modules
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers, normal

PAD = 0


class Classifier(nn.Module):
    """One number for each answer"""

    def __init__(self, encoder, d_model=32, n_answers=2, mean=False):
        super().__init__()
        self.encoder, self.head, self.mean = encoder, nn.Linear(d_model, n_answers), mean

    def forward(self, ids):
        """(B, T), PAD behind the words -> (B, n_answers)"""
        x = self.encoder(ids)  # (B, T, D)
        if not self.mean:
            return self.head(x[:, 0])  # position 0 is [CLS]
        real = (ids != PAD)[..., None]  # (B, T, 1)
        return self.head((x * real).sum(dim=1) / real.sum(dim=1))


def _model(position="first", pool="asked", counted="words", over="words", device=True):
    """A classifier whose settings are the misconceptions."""

    class Model(Classifier):
        def forward(self, ids):
            x = self.encoder(ids)
            real = (ids != PAD)[..., None]
            if not device:
                real = real & torch.ones(ids.shape, dtype=torch.bool)[..., None]
            mean = {"asked": self.mean, "never": False, "always": True, "exchanged": not self.mean}[pool]
            if not mean:
                last = (ids != PAD).sum(dim=1) - 1
                rows = torch.arange(len(ids), device=ids.device)
                pooled = {"first": x[:, 0], "end": x[:, -1], "last-word": x[rows, last]}[position]
                return self.head(pooled)
            kept = torch.ones_like(real) if over == "everything" else real
            if over == "without-first":
                kept = kept & (torch.arange(ids.size(1), device=ids.device) > 0)[:, None]
            number = {
                "words": kept.sum(dim=1),
                "everything": torch.tensor(ids.size(1), device=ids.device),
                "nothing": torch.tensor(1, device=ids.device),
                "batch": kept.sum() / len(ids),
            }[counted]
            if over == "largest":
                return self.head(x.masked_fill(~real, -torch.inf).amax(dim=1))
            return self.head((x * kept).sum(dim=1) / number)

    return Model


class _WithFilledZeros(Classifier):
    def forward(self, ids):
        x = self.encoder(ids)
        hidden = ids.eq(PAD)
        number = ids.size(1) - hidden.sum(dim=1, keepdim=True)
        mean = x.masked_fill(hidden.unsqueeze(-1), 0.0).sum(dim=1) / number
        return self.head(mean if self.mean else x.select(1, 0))


class _WithWeights(Classifier):
    def forward(self, ids):
        x = self.encoder(ids)
        weights = (ids != PAD).to(x.dtype)
        weights = weights / weights.sum(dim=1, keepdim=True)  # (B, T), of each row they sum to one
        return self.head((weights[:, None] @ x)[:, 0] if self.mean else x[:, 0])


class _WithALoop(Classifier):
    def forward(self, ids):
        x = self.encoder(ids)
        if self.mean:
            x = torch.stack([vectors[row != PAD].mean(dim=0) for vectors, row in zip(x, ids, strict=True)])
        else:
            x = x[:, 0]
        return self.head(x)


class _WithTheHeadFirst(Classifier):
    def forward(self, ids):
        scores = self.head(self.encoder(ids))  # (B, T, n_answers): the head is linear, so the mean may come later
        real = ids.unsqueeze(-1) != PAD
        return scores.mul(real).sum(1).div(real.sum(1)) if self.mean else scores[:, 0]


class _Words(nn.Module):
    """Stands for an encoder: one vector for each id."""

    def __init__(self, n_words, d_model):
        super().__init__()
        self.table = nn.Embedding(n_words, d_model)

    def forward(self, ids):
        x = self.table(ids)
        return x + 0.1 * x.cumsum(dim=1)


def _of_words(candidate):
    """The class on its encoder, built from sizes alone."""
    return lambda n_words, d_model, n_answers, **options: candidate(
        _Words(n_words, d_model), d_model, n_answers, **options
    )


_RIGHT = _of_words(Classifier)


def _run(Classifier, sizes, state, ids, elsewhere=False, again=False):
    before = (ids.flip(1).clamp(min=1),) if again else ()
    return modules.call(_of_words(Classifier), sizes, state, ids, elsewhere=elsewhere, before=before)


def _sizes(width, answers, mean):
    return {"n_words": 7, "d_model": width, "n_answers": answers} | ({} if mean is None else {"mean": mean})


def _padded(ids, lengths):
    return ids.masked_fill(torch.arange(ids.size(1)) >= torch.tensor(lengths)[:, None], PAD)


@maker
def _case(lengths, T, width, answers, mean, seed, dtype=torch.float32, **options):
    seeds = iter(range(seed, seed + 9))

    def tensor(*shape):
        return normal(*shape, seed=next(seeds), dtype=dtype)

    sizes = _sizes(width, answers, mean)
    ids = _padded(integers(len(lengths), T, low=1, high=6, seed=seed), lengths)
    return {"sizes": sizes, "state": modules.weights(_RIGHT, sizes, tensor), "ids": ids} | options


def _sample(draw):
    B, T = draw.integer(1, 3), draw.integer(1, 5)
    sizes = _sizes(draw.integer(1, 4), draw.integer(1, 4), draw.choice((None, False, True, True)))
    ids = _padded(draw.integers(B, T, low=1, high=6), [draw.integer(1, T) for _ in range(B)])
    state = modules.weights(_RIGHT, sizes, lambda *shape: draw.normal(*shape, dtype=torch.float64))
    return sizes, state, ids


def _alone_and_padded(classifier):
    for mean in (False, True):
        case = _case((3, 5), 5, 3, 2, mean, seed=501)()
        both = classifier(case["sizes"], case["state"], case["ids"]).detach()
        alone = classifier(case["sizes"], case["state"], case["ids"][:1, :3]).detach()
        gap = float((both[:1] - alone).abs().max())
        if gap > 1e-3:
            return f"With mean={mean}, beside a longer sentence its scores differ by up to {gap:.2f}."
    return None


EXERCISE = Exercise(
    title="A classifier of your own",
    what="""Write the `forward` of `Classifier`. The encoder gives one vector for each position, (B, T, D); `head` turns
one vector for the sentence into one number for each answer, (B, n_answers).

- `mean=False`: the vector of the sentence is the one at position 0, where `[CLS]` stands.
- `mean=True`: it is the mean of the vectors of all positions that do not hold `PAD`, including `[CLS]`.

Each sentence has at least one word.""",
    why="The first is BERT's way to judge a sentence, the second a common way to compare sentences in a search.",
    difficulty=2,
    minutes=8,
    reference=Classifier,
    blank=("forward",),
    parts={"PAD": PAD},
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
last-position (position="end"): takes the vector of the last position and not that of position 0
    At which position does `[CLS]` stand?
last-word (position="last-word"): takes the vector of the last word and not that of position 0
    At which position does `[CLS]` stand?
mean-ignored (pool="never"): takes the vector of position 0, whatever `mean` says
    What does mean=True change in your class?
always-the-mean (pool="always"): takes the mean, whatever `mean` says
    What does mean=False change in your class?
exchanged (pool="exchanged"): has the two ways exchanged
    What does your class do with mean=False?
padding-in-the-mean (over="everything"): takes the mean over the padding, too
    What do the vectors at `PAD` say about the sentence?
divided-by-the-length-of-the-row (counted="everything"): sums over the words and divides by the number of all positions
    By which number must the sum be divided in a sentence with much padding?
sum-in-place-of-mean (counted="nothing"): takes the sum of the words and not their mean
    What happens to your vector if a sentence has twice as many words?
mean-length-of-the-batch (counted="batch"): divides each sum by the mean number of words in the batch
    Does the number that you divide by depend on other sentences?
without-the-first (over="without-first"): leaves position 0 out of the mean
    Which positions hold no `PAD`?
largest-in-place-of-mean (over="largest"): takes the largest number of all words, and not the mean
    What is the mean of 1, 2 and 6?
tensor-on-the-default-device (device=False): makes a tensor on the default device, where the ids need not lie
    If the ids lie on a GPU, where do the tensors lie that you make?
"""),
    cases=[
        Case("1 sentence of 2 words, mean=False", _case((2,), 2, 3, 2, False, seed=1)),
        Case("1 sentence of 3 words, mean=True", _case((3,), 3, 2, 3, True, seed=21)),
        Case("2 sentences, one of them padded, `mean` not given", _case((2, 4), 4, 3, 2, None, seed=41)),
        Case("2 sentences, one of them padded, mean=True", _case((2, 4), 4, 3, 2, True, seed=61)),
        Case(
            "3 sentences with padding everywhere, float64",
            _case((3, 1, 2), 5, 4, 3, True, seed=81, dtype=torch.float64),
        ),
        Case("the same module again after other sentences", _case((2, 4), 4, 3, 2, True, seed=101, again=True)),
        Case("ids not on the default device", _case((2, 4), 4, 3, 2, True, seed=121, elsewhere=True)),
    ],
    properties=[Property("A sentence gets the same scores alone and beside a longer one.", _alone_and_padded)],
    alternatives=[
        Alternative("with zeros at the padding", _WithFilledZeros),
        Alternative("with weights that sum to one, as attention has them", _WithWeights),
        Alternative("with one sentence after the other", _WithALoop),
        Alternative("with the head before the mean", _WithTheHeadFirst),
    ],
    hints=(
        "Which shape has what the encoder gives, and which of its axes is not there any more in the result?",
        "For the mean you need two sums over the positions: of the vectors at real words, and of how many there are.",
        """x = self.encoder(ids)
if not self.mean:
    return self.head(x[:, 0])
real = ____  # (B, T, 1)
...""",
    ),
    sample=_sample,
    tolerance=(1e-4, 1e-4),
)
