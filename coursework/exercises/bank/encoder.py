"""Exercise: the encoder, from the numbers of words to one vector for each."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from coursework.exercises import modules
from coursework.exercises.bank.layer import Layer
from coursework.exercises.given import Embedding
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers, normal

PAD = 0


class Encoder(nn.Module):
    """Reads a sentence in both directions"""

    def __init__(self, n_words, max_length=20, d_model=32, n_heads=4, n_layers=2, dropout=0.0):
        super().__init__()
        self.embedding = Embedding(n_words, max_length, d_model)
        layers = [Layer(d_model, n_heads, 4 * d_model, dropout) for _ in range(n_layers)]
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids):
        """(B, T), PAD behind the words -> (B, T, D)"""
        mask = (ids != PAD)[:, None, None]  # (B, 1, 1, T), True: may be read
        x = self.dropout(self.embedding(ids))
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


def _model(seen="words", norm="end", chain="all", drop="embedding", device=True):
    """An encoder whose settings are the misconceptions."""

    class Model(Encoder):
        def forward(self, ids):
            real = ids != PAD
            if not device:
                real = real & torch.ones(ids.shape, dtype=torch.bool)
            mask = {
                "words": real[:, None, None],
                "everything": torch.ones_like(real)[:, None, None],
                "padding": ~real[:, None, None],
                "two-axes": real,
                "queries": real[:, None, :, None],
                "earlier": real[:, None, None] & _causal(ids),
            }[seen]
            start = x = self.embedding(ids)
            if drop in ("embedding", "always"):
                start = x = F.dropout(x, self.dropout.p, training=self.training or drop == "always")
            layers = {"first-again": [self.layers[0]] * len(self.layers), "first-only": self.layers[:1]}
            for layer in layers.get(chain, self.layers):
                x = layer(start if chain == "from-start" else x, mask)
                x = self.norm(x) if norm == "each" else x
            x = self.norm(x) if norm in ("end", "each") else x
            return self.dropout(x) if drop == "result" else x

    return Model


def _causal(ids):
    return torch.ones(ids.size(1), ids.size(1), dtype=torch.bool, device=ids.device).tril()


class _WithFunctools(Encoder):
    def forward(self, ids):
        mask = ids.ne(PAD).unsqueeze(1).unsqueeze(1)
        start = self.dropout(self.embedding(ids))
        return self.norm(functools.reduce(lambda x, layer: layer(x, mask), self.layers, start))


class _WithAMaskForEachPair(Encoder):
    def forward(self, ids):
        B, T = ids.shape
        mask = (ids != PAD).reshape(B, 1, 1, T).expand(B, 1, T, T)
        x = self.dropout(self.embedding(ids))
        for number in range(len(self.layers)):
            x = self.layers[number](x, mask)
        return self.norm(x)


class _WithFunctions(Encoder):
    def forward(self, ids):
        table, positions = self.embedding.word.weight, self.embedding.position.weight
        x = F.dropout(table[ids] + positions[: ids.size(1)], self.dropout.p, training=self.training)
        for layer in self.layers:
            x = layer(x, ~(ids == PAD)[:, None, None, :])
        return F.layer_norm(x, self.norm.normalized_shape, self.norm.weight, self.norm.bias)


def _run(Encoder, sizes, state, ids, train=False, elsewhere=False, again=False):
    before = (ids.flip(1).clamp(min=1),) if again else ()
    return modules.call(Encoder, sizes, state, ids, train=train, elsewhere=elsewhere, before=before)


def _padded(ids, lengths):
    """The ids with PAD behind so many words in each row."""
    return ids.masked_fill(torch.arange(ids.size(1)) >= torch.tensor(lengths)[:, None], PAD)


@maker
def _case(lengths, T, heads, width, layers, seed, dropout=0.0, dtype=torch.float32, **options):
    sizes = {"n_words": 7, "max_length": 6, "d_model": heads * width, "n_heads": heads, "n_layers": layers}
    seeds = iter(range(seed, seed + 100))

    def tensor(*shape):
        return normal(*shape, seed=next(seeds), dtype=dtype)

    sizes["dropout"] = dropout
    ids = _padded(integers(len(lengths), T, low=1, high=6, seed=seed), lengths)
    return {"sizes": sizes, "state": modules.weights(Encoder, sizes, tensor), "ids": ids} | options


def _sample(draw):
    B, T, heads, layers = draw.integer(1, 3), draw.integer(1, 5), draw.integer(1, 2), draw.integer(1, 2)
    sizes = {"n_words": draw.integer(4, 7), "max_length": draw.integer(5, 6), "d_model": 4, "n_heads": heads}
    sizes |= {"n_layers": layers, "dropout": draw.choice((0.0, 0.0, 1.0))}
    ids = draw.integers(B, T, low=1, high=sizes["n_words"] - 1)
    ids = _padded(ids, [draw.integer(1, T) for _ in range(B)])
    state = modules.weights(Encoder, sizes, lambda *shape: draw.normal(*shape, dtype=torch.float64))
    return sizes, state, ids, draw.boolean()


def _alone_and_padded(encoder):
    case = _case((3, 5), 5, 2, 2, 2, seed=501)()
    both = encoder(case["sizes"], case["state"], case["ids"]).detach()
    alone = encoder(case["sizes"], case["state"], case["ids"][:1, :3]).detach()
    gap = float((both[:1, :3] - alone).abs().max())
    return f"Beside a longer sentence its vectors differ by up to {gap:.2f}." if gap > 1e-3 else None


def _reads_both_ways(encoder):
    case = _case((5,), 5, 2, 2, 2, seed=551)()
    other = case["ids"].clone()
    other[0, 4] = 1 + other[0, 4] % 6
    before, after = (encoder(case["sizes"], case["state"], ids).detach() for ids in (case["ids"], other))
    gap = float((before - after)[:, 0].abs().max())
    return "The last word was changed, and the vector of the first did not notice." if gap < 1e-5 else None


EXERCISE = Exercise(
    title="An encoder of your own",
    what="""Write the `forward` of `Encoder`. The ids (B, T) become vectors by `embedding`, and `dropout` works on them.
Then come the layers, one after the other, and at the end `norm`. Make the mask (B, 1, 1, T) from the ids, True where
there is a word, and hand it to each layer: nobody reads `PAD`. Positions with `PAD` get vectors, too, which nobody
uses.""",
    why="Whatever you build on it, a classifier or a translator, this is the part that reads.",
    difficulty=3,
    minutes=10,
    reference=Encoder,
    blank=("forward",),
    parts={"Layer": Layer, "Embedding": Embedding, "PAD": PAD},
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
padding-read (seen="everything"): lets the words read the padding
    What do the words of a short sentence read if the sentence beside it is longer?
mask-inverted (seen="padding"): hides the words and lets the padding be read
    What does True stand for in the mask?
mask-of-two-axes (seen="two-axes"): hands over a mask (B, T), which the layers take for one of (T, T)
    Which axes do the scores have, and which of them should the mask leave to broadcasting?
mask-of-those-who-look (seen="queries"): hides the padding as the one who looks and not as what is looked at
    Which of the last two axes of the scores stands for the words that are read?
causal (seen="earlier"): lets each word read earlier words only
    May the first word of a sentence know the last one?
no-final-norm (norm="none"): has no norm at the end
    After a pre-norm layer, how large may the numbers of the stream be?
norm-after-each-layer (norm="each"): norms the stream after each layer
    How many norms has the encoder that belong to no layer, and how often is it used?
first-layer-again (chain="first-again"): uses the first layer each time
    Which weights does the second layer bring?
first-layer-only (chain="first-only"): uses only the first layer
    How many layers does your encoder run through?
layers-side-by-side (chain="from-start"): lets each layer read the embedding and not the result of the layer before
    What does the second layer read?
no-dropout (drop="nowhere"): drops nothing of the embedding in training
    With a dropout of 1, what can the first layer know of the words?
dropout-of-the-result (drop="result"): drops numbers of the result, and not of the embedding
    What stands between the embedding and the first layer?
dropout-in-eval-mode (drop="always"): drops numbers in eval mode, too
    What tells the module that it is being trained?
tensor-on-the-default-device (device=False): makes a tensor on the default device, where the ids need not lie
    If the ids lie on a GPU, where do the tensors lie that you make?
"""),
    cases=[
        Case("1 sentence of 2 words, one layer", _case((2,), 2, 1, 3, 1, seed=1)),
        Case("1 sentence of 3 words, two layers", _case((3,), 3, 2, 2, 2, seed=51)),
        Case("2 sentences, one of them padded", _case((2, 4), 4, 1, 3, 1, seed=101)),
        Case("as many sentences as positions, three layers", _case((3, 1, 2), 3, 1, 2, 3, seed=151)),
        Case("a dropout of 1, in eval mode", _case((2,), 3, 1, 3, 1, seed=201, dropout=1.0)),
        Case("a dropout of 1, in training", _case((2, 3), 3, 1, 3, 1, seed=251, dropout=1.0, train=True)),
        Case("two padded sentences, float64", _case((4, 1), 5, 2, 3, 2, seed=301, dtype=torch.float64)),
        Case("the same module again after other sentences", _case((2, 4), 4, 1, 3, 1, seed=351, again=True)),
        Case("ids not on the default device", _case((2, 4), 4, 1, 3, 1, seed=401, elsewhere=True)),
    ],
    properties=[
        Property("A sentence has the same vectors alone and beside a longer one.", _alone_and_padded),
        Property("Each word may read the whole sentence.", _reads_both_ways),
    ],
    alternatives=[
        Alternative("with `functools.reduce`", _WithFunctools),
        Alternative("with a mask for each pair of positions", _WithAMaskForEachPair),
        Alternative("with functions in the place of two modules", _WithFunctions),
    ],
    hints=(
        "Which four things happen to the ids, in which order, and which of them needs the mask?",
        "Compare the ids with `PAD`, and add two axes of size 1 by indexing with None. Then follow the names in the "
        "constructor.",
        """mask = ____  # (B, 1, 1, T)
x = self.dropout(self.embedding(ids))
for layer in self.layers:
    ...
return self.norm(x)""",
    ),
    sample=_sample,
    tolerance=(1e-4, 1e-4),
)
