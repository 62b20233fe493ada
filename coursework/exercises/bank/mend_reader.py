"""Exercise: an encoder into which padding leaks at two places, to be mended."""

import torch
import torch.nn.functional as F
from torch import nn

from coursework.exercises import modules
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers, normal

PAD = 0


class Reader(nn.Module):
    """One head of attention, and one vector for the sentence"""

    def __init__(self, n_words, max_length, d_model):
        super().__init__()
        self.word = nn.Embedding(n_words, d_model)
        self.position = nn.Embedding(max_length, d_model)
        self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, ids):
        """(B, T), PAD behind the words -> (B, D)"""
        real = ids != PAD  # (B, T)
        x = self.word(ids) + self.position(torch.arange(ids.size(1), device=ids.device))
        scores = self.query(x) @ self.key(x).mT / x.size(-1) ** 0.5  # (B, T, T)
        weights = scores.masked_fill(~real[:, None], -torch.inf).softmax(dim=-1)
        x = self.norm(x + weights @ self.value(x))
        return (x * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)


def _broken():
    class Reader(nn.Module):
        """One head of attention, and one vector for the sentence"""

        def __init__(self, n_words, max_length, d_model):
            super().__init__()
            self.word = nn.Embedding(n_words, d_model)
            self.position = nn.Embedding(max_length, d_model)
            self.query, self.key, self.value = (nn.Linear(d_model, d_model) for _ in range(3))
            self.norm = nn.LayerNorm(d_model)

        def forward(self, ids):
            """(B, T), PAD behind the words -> (B, D)"""
            real = ids != PAD  # (B, T)
            x = self.word(ids) + self.position(torch.arange(ids.size(1), device=ids.device))
            scores = self.query(x) @ self.key(x).mT / x.size(-1) ** 0.5  # (B, T, T)
            weights = scores.softmax(dim=-1) * real[:, None]
            x = self.norm(x + weights @ self.value(x))
            return (x * real[..., None]).mean(dim=1)

    return Reader


def _model(mask="before", mean="words", residual=True, norm="sum", device=True):
    """A reader whose settings are the misconceptions."""

    class Model(Reader):
        def forward(self, ids):
            real = ids != PAD
            where = ids.device if device else None
            x = self.word(ids) + self.position(torch.arange(ids.size(1), device=where))
            scores = self.query(x) @ self.key(x).mT / x.size(-1) ** 0.5
            seen = real[:, None]
            if mask == "after":
                weights = scores.softmax(dim=-1) * seen
            else:
                fill = {"zeros": 0.0, "one": -1.0}.get(mask, -torch.inf)
                hidden = {"nothing": seen & ~seen, "inverted": seen, "queries": ~real[..., None]}.get(mask, ~seen)
                weights = scores.masked_fill(hidden, fill).softmax(dim=-1)
            update = weights @ self.value(x)
            if norm == "update":
                x = x + self.norm(update)
            else:
                x = self.norm(x + update if residual else update)
            kept = x * real[..., None]
            if mean == "first":
                return x[:, 0]
            return {
                "words": lambda: kept.sum(dim=1) / real.sum(dim=1, keepdim=True),
                "row": lambda: kept.mean(dim=1),
                "everything": lambda: x.mean(dim=1),
                "sum": lambda: kept.sum(dim=1),
                "batch": lambda: kept.sum(dim=1) / real.sum() * len(ids),
            }[mean]()

    return Model


class _WithWeightsMadeAnew(Reader):
    def forward(self, ids):
        real = (ids != PAD).to(self.norm.weight.dtype)
        x = self.word(ids) + self.position.weight[: ids.size(1)]
        scores = self.query(x) @ self.key(x).mT / x.size(-1) ** 0.5
        weights = scores.softmax(dim=-1) * real[:, None]
        weights = weights / weights.sum(dim=-1, keepdim=True)  # after the mask the rows sum to one again
        x = self.norm(x + weights @ self.value(x))
        return (x * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True)


class _WithTorchsAttention(Reader):
    def forward(self, ids):
        real = ids.ne(PAD)
        x = self.word(ids) + self.position.weight[: ids.size(1)]
        mixed = F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), attn_mask=real[:, None])
        x = self.norm(x + mixed).masked_fill(~real[..., None], 0)
        return x.sum(dim=1) / real.sum(dim=1)[:, None]


class _OneAfterTheOther(Reader):
    def forward(self, ids):
        return torch.cat([self.one(row[row != PAD]) for row in ids])  # without its padding, each has the same vector

    def one(self, row):
        x = self.word(row) + self.position.weight[: len(row)]
        weights = (self.query(x) @ self.key(x).mT / x.size(-1) ** 0.5).softmax(dim=-1)
        return self.norm(x + weights @ self.value(x)).mean(dim=0, keepdim=True)


def _run(Reader, sizes, state, ids, elsewhere=False, again=False):
    before = (ids.flip(1).clamp(min=1),) if again else ()
    return modules.call(Reader, sizes, state, ids, elsewhere=elsewhere, before=before)


def _padded(ids, lengths):
    return ids.masked_fill(torch.arange(ids.size(1)) >= torch.tensor(lengths)[:, None], PAD)


@maker
def _case(lengths, T, width, seed, dtype=torch.float32, **options):
    seeds = iter(range(seed, seed + 20))

    def tensor(*shape):
        return normal(*shape, seed=next(seeds), dtype=dtype)

    sizes = {"n_words": 7, "max_length": 6, "d_model": width}
    ids = _padded(integers(len(lengths), T, low=1, high=6, seed=seed), lengths)
    return {"sizes": sizes, "state": modules.weights(Reader, sizes, tensor), "ids": ids} | options


def _sample(draw):
    B, T = draw.integer(1, 3), draw.integer(1, 5)
    sizes = {"n_words": 7, "max_length": 6, "d_model": draw.integer(3, 5)}
    ids = _padded(draw.integers(B, T, low=1, high=6), [draw.integer(1, T) for _ in range(B)])
    return sizes, modules.weights(Reader, sizes, lambda *shape: draw.normal(*shape, dtype=torch.float64)), ids


def _alone_and_padded(reader):
    case = _case((3, 5), 5, 4, seed=301)()
    both = reader(case["sizes"], case["state"], case["ids"]).detach()
    alone = reader(case["sizes"], case["state"], case["ids"][:1, :3]).detach()
    gap = float((both[:1] - alone).abs().max())
    return f"Beside a longer sentence the vector differs by up to {gap:.2f}." if gap > 1e-3 else None


EXERCISE = Exercise(
    title="Mend this encoder",
    kind="debug",
    what="""`Reader` gives one vector for a sentence: one head of attention, a post-norm layer without a feed-forward
network, and the mean over the words. It runs and learns without complaint. But the same sentence gets another vector if
a longer one stands in its batch. Padding leaks in at **two** places, both in `forward`.
Mend both, so that padding changes nothing. Each sentence has at least one word.""",
    why="Mistakes of this kind stay silent: the model trains, and answers change with the batch.",
    difficulty=4,
    minutes=15,
    reference=Reader,
    given=_broken(),
    blank=("forward",),
    parts={"PAD": PAD},
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
mask-after-the-softmax (mask="after"): applies the mask after the softmax, so that the weights of the words sum to
        less than one
    If half of a row is padding, what do the weights of the words sum to?
zeros-before-the-softmax (mask="zeros"): sets hidden scores to 0
    What does the softmax make of a score of 0?
minus-one-before-the-softmax (mask="one"): sets hidden scores to -1
    What does the softmax make of a score of -1?
no-mask (mask="nothing"): lets the words read the padding
    What do the words of a short sentence read?
mask-inverted (mask="inverted"): hides the words and lets the padding be read
    Where is `real` True?
mask-of-those-who-look (mask="queries"): hides the padding as the one who looks and not as what is looked at
    Which of the last two axes of the scores stands for the words that are read?
divided-by-the-length-of-the-row (mean="row"): divides the sum over the words by the number of all positions
    By which number must the sum be divided in a sentence with much padding?
mean-over-everything (mean="everything"): takes the mean over the padding, too
    Do positions with `PAD` belong to the sentence?
sum-in-place-of-mean (mean="sum"): takes the sum of the words and not their mean
    What happens to your vector if a sentence has twice as many words?
mean-length-of-the-batch (mean="batch"): divides each sum by the mean number of words in the batch
    Does the number that you divide by depend on other sentences?
first-word (mean="first"): takes the vector of the first word and not the mean
    What should come out of a sentence of two words?
no-residual (residual=False): has no residual connection around the attention
    What did the given version add the attention to?
norm-of-the-branch (norm="update"): norms what attention gives and not the sum
    What did the given version norm?
tensor-on-the-default-device (device=False): makes a tensor on the default device, where the ids need not lie
    If the ids lie on a GPU, where do the tensors lie that you make?
"""),
    cases=[
        Case("1 sentence of 2 words, no padding", _case((2,), 2, 3, seed=1)),
        Case("1 sentence of 2 words and 1 `PAD`", _case((2,), 3, 3, seed=31)),
        Case("2 sentences, one of them padded", _case((2, 4), 4, 3, seed=61)),
        Case("as many sentences as positions, float64", _case((3, 1, 2), 3, 5, seed=91, dtype=torch.float64)),
        Case("the same module again after other sentences", _case((2, 4), 4, 3, seed=121, again=True)),
        Case("ids not on the default device", _case((2, 4), 4, 3, seed=151, elsewhere=True)),
    ],
    properties=[Property("A sentence has the same vector alone and beside a longer one.", _alone_and_padded)],
    alternatives=[
        Alternative("with the mask after the softmax, and rows that sum to one again", _WithWeightsMadeAnew),
        Alternative("with torch's attention", _WithTorchsAttention),
        Alternative("without padding, one sentence after the other", _OneAfterTheOther),
    ],
    hints=(
        "Put 3 words and 2 `PAD` in. Do the weights of each row still sum to one, and how many vectors enter the mean?",
        "The first leak is the order of mask and softmax, the second is the number by which the last line divides.",
        """weights = ____  # (B, T, T): the rows sum to one over the words
x = self.norm(x + weights @ self.value(x))
...""",
    ),
    sample=_sample,
    tolerance=(1e-4, 1e-4),
)
