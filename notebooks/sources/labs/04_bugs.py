# %% [markdown] id="title"
# # Lab: eight bugs in encoders
#
# **The question: how do you know that your encoder layer is right?** None of these eight bugs raises an error while
# the model runs or learns. All shapes fit, and the loss falls. For each exhibit read the code first and say what is
# wrong. Then run it and see what notices it. At the end you find the strongest test there is for a layer: another
# program that does the same.
#
# The lab stands on [chapter 4](../04_encoder.ipynb): feed-forward network, LayerNorm, residual connections, the layer
# and the stack. No exercise, about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import masks, testing
from course_lib.attention import record_weights
from course_lib.encoder import EncoderLayer, TransformerEncoder
from course_lib.layers import FeedForward
from course_lib.testing import complaint, prove
from course_lib.transformer import Embedding, TransformerConfig
from coursework import exercises as ex
from coursework.corpora import reference_text
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common

torch.manual_seed(0)
torch.set_num_threads(1)
config = TransformerConfig(d_model=64, n_heads=4, dropout=0.0)
right = EncoderLayer(config)
x = torch.randn(3, 7, 64)  # (B, T, D): three sentences of seven tokens

# %% [markdown] id="laws"
# You will not find them by looking, nor by a test of shapes. A few questions find them, and you can ask these of
# every layer:
#
# - **Same numbers?** With the same weights, does it give what a trusted program gives, outputs and gradients?
# - **Who reads whom?** What moves if one token changes, or the padding?
# - **How many weights?** Does it hold as many numbers as the formula says?
# - **Twice the same?** In use, does the same input give the same output?
#
# The function `complaint` asks one of them and returns what is wrong, or nothing.
#
# ## Exhibit 1: a LayerNorm from a tutorial
#
# LayerNorm takes from each token its mean, and divides by the square root of its variance plus a small number ε. This
# version has been copied many times. Two details differ from the formula. Which, and where does it show?


# %% id="museum-norm-code"
def exhibit1(x, weight, bias, eps=1e-5):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return weight * (x - mean) / (std + eps) + bias


# %% id="museum-norm" tags=["hide-input"]
# Same numbers? And a figure: the error by the size of the input and by the width
def torch_layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


few, weight, bias = torch.randn(2, 5, 8), torch.ones(8), torch.zeros(8)
found = complaint(testing.assert_equivalent, exhibit1, torch_layer_norm, few, weight, bias)
print(found)
scales, widths = [10.0**-power for power in range(6)], [4, 16, 64, 256, 1024]


def error(x):
    one, zero = torch.ones(x.size(-1)), torch.zeros(x.size(-1))
    return (exhibit1(x, one, zero) - torch_layer_norm(x, one, zero)).abs().max().item()


torch.manual_seed(1)
by_width = [error(torch.randn(2, 50, width)) for width in widths]
wide = torch.randn(2, 50, 256)
by_scale = [error(scale * wide) for scale in scales]
errors = {"numbers of size 1": (widths, by_width), "width 256": (scales, by_scale)}
axes = {"xscale": "log", "yscale": "log", "ylabel": "largest error"}
each = ({"xlabel": "width of the token"}, {"xlabel": "size of the numbers", "colours": [palette.key], "styles": ["s-"]})


def one_curve(places_and_errors, **options):
    places, found = places_and_errors
    common.curves(places, {"": found}, **options)


show(
    common.panels(one_curve, errors, size=(7.2, 2.8), share="y", each=each, **axes),
    alt="Left: the error falls with the width, from 0.23 at width 4 to 0.0021 at 1024. Right: at width 256 "
    "the error is small for numbers of size 1 and grows to more than 1 for numbers of size one thousandth and below.",
    caption="Left: at usual widths the first detail hardly shows. Right: the second one shows where numbers are small.",
)
prove("1: the error is over ten times larger at width 4 than at 1024", by_width[0] > 10 * by_width[-1])

# %% [markdown] id="museum-norm-says"
# The first detail: `std` divides by d_model − 1 unless told otherwise, LayerNorm by d_model. At a width of 512 one
# hardly sees it. The second: ε belongs under the root. It matters only where numbers are small. Train a model from
# scratch with this norm, and nobody notices. Load published weights into it, and every layer is a little off.
#
# ## Exhibit 2: the layer of the paper
#
# “The encoder layer of 2017, with residual connections and layer norm.” Is it?


# %% id="museum-place-code"
class Exhibit2(EncoderLayer):
    def forward(self, x):
        attention, network = self.self_attention_residual, self.feed_forward_residual
        x = x + self.self_attention(attention.norm(x))
        return x + self.feed_forward(network.norm(x))


# %% id="museum-place"
wrong = Exhibit2(config)
wrong.load_state_dict(right.state_dict())
found = complaint(testing.assert_equivalent, wrong, right, x)
print(found)
sizes = [layer(x).var(-1).mean().item() for layer in (right, wrong)]
print("variance of a token: right {:.2f}, exhibit {:.2f}".format(*sizes))

# %% id="museum-place-proof" tags=["hide-input"]
# The verdict on exhibit 2
prove("2: pre-norm code under post-norm text is caught by assert_equivalent", found)
prove("2: the variance of its output betrays it too", abs(sizes[1] - 1) > 0.2)

# %% [markdown] id="museum-place-says"
# It is pre-norm: the norm stands before each sublayer and not after the sum. All names and shapes fit, the published
# weights load without a word, and it trains. But it is another model. And as a pre-norm model it lacks the norm at
# the end of the stack.
#
# ## Exhibit 3: a norm “as for images”
#
# Networks for images sometimes normalise a whole picture at once. Somebody does this with a sentence: one mean and one
# variance over all tokens and all features. Who reads whom now?


# %% id="museum-sentence-code"
def exhibit3(x, real):
    x = F.layer_norm(x, x.shape[1:])  # over (T, D)
    return right(x, mask=real[:, None, None])


def repaired3(x, real):
    x = F.layer_norm(x, x.shape[2:])  # over (D,)
    return right(x, mask=real[:, None, None])


# %% id="museum-sentence-drawn" tags=["hide-input"]
# Drawing: which numbers share a mean
drawings.averaged_together().show()

# %% id="museum-sentence"
law = testing.assert_padding_invariant
found = complaint(law, exhibit3, x)
print(found)
prove("3: over the features alone it obeys", not complaint(law, repaired3, x))

# %% [markdown] id="museum-dropout-question"
# The attention is masked properly, and padding still reaches every token: through the mean.
#
# ## Exhibit 4: dropout in one line
#
# *Dropout* sets some numbers to zero at random while a model is trained, so that it does not rely on single numbers. In
# use it must be off. What does `model.eval()` do to this line?


# %% id="museum-dropout-code"
class Exhibit4(nn.Module):
    def forward(self, x):
        return F.dropout(right(x), 0.1)


# %% id="museum-dropout"
silent = Exhibit4().eval()
torch.manual_seed(0)
difference = (silent(x) - silent(x)).abs().max().item()
print(f"two passes in eval mode differ by up to {difference:.2f}")
prove("4: the library's layer repeats itself", torch.equal(right.eval()(x), right(x)))

# %% [markdown] id="museum-shared-question"
# Nothing. The function has an argument `training`, and it is `True` unless given; only the module `nn.Dropout` knows
# the mode. So the answers of the finished model change from call to call.
#
# ## Exhibit 5: one norm for two places
#
# A layer has two norms with weights of their own. To save two lines somebody makes one and uses it in both places. What
# is lost?

# %% id="museum-shared"
shared = EncoderLayer(config)
shared.feed_forward_residual.norm = shared.self_attention_residual.norm
wanted = 4 * (64 * 64 + 64) + (64 * 256 + 256) + (256 * 64 + 64) + 4 * 64
found = complaint(testing.assert_counts, shared, parameters=wanted)
print(found)
complete = not complaint(testing.assert_counts, right, parameters=wanted)
prove("5: a right layer has as many as the formula says", complete)

# %% [markdown] id="museum-layers-question"
# 128 numbers of about 50,000. No shape shows it. The formula counts four maps of attention, two of the feed-forward
# network, and two norms with weight and bias.
#
# ## Exhibit 6: six layers in one line
#
# **Predict.** The first line below makes a stack of six layers, the second as well. How many parameters do the two
# stacks have, as a multiple of one layer?

# %% id="museum-layers-guess"
ex.predict("lab_encoder_bugs_six_layers", "")

# %% id="museum-layers"
first = nn.ModuleList([EncoderLayer(config)] * 6)
second = [EncoderLayer(config) for _ in range(6)]


class Exhibit6(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers


for name, layers in (("first", first), ("second", second)):
    count = sum(p.numel() for p in Exhibit6(layers).parameters())
    print(f"{name}: {count:,} parameters, {count / wanted:g} layers")

# %% id="museum-layers-drawn" tags=["hide-input"]
# Drawing: six names for one layer; and the verdicts
drawings.one_layer_many_times().show()
for layers, name in ((first, "the same layer six times"), (second, "a plain list that the module does not know")):
    found = complaint(testing.assert_counts, Exhibit6(layers), parameters=6 * wanted)
    print(f"{name}: {found}")
good = Exhibit6(nn.ModuleList([EncoderLayer(config) for _ in range(6)]))
prove("6: a ModuleList of six layers is right", not complaint(testing.assert_counts, good, parameters=6 * wanted))

# %% [markdown] id="museum-layers-says"
# In the first, `[layer] * 6` repeats the *name* of one layer six times. The stack is six layers deep and has the
# weights of one. Some models share weights between layers on purpose; ALBERT is one. In the second the layers are
# six, but they stand in a plain Python list, which a module does not look into. The optimizer never gets their
# weights, and `state_dict` does not save them. Only loading the weights of a right stack into it raises an error. A
# `ModuleList` of six different layers is right.
#
# ## Exhibit 7: clones
#
# A third way makes one layer and copies it six times. Names, counts and shapes are right. PyTorch's own
# `nn.TransformerEncoder` does it. What do the six layers have in common?

# %% id="museum-clones"
torch.manual_seed(0)
one = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
stack = nn.TransformerEncoder(one, 6, enable_nested_tensor=False)
weights = [layer.linear1.weight for layer in stack.layers]
same = sum(torch.equal(w, weights[0]) for w in weights)
print("layers that start with the weights of layer 1:", same)
torch.manual_seed(0)
six_layers = TransformerConfig(d_model=64, n_heads=4, n_encoder_layers=6)
ours = TransformerEncoder(six_layers)
drawn = [layer.feed_forward.up.weight for layer in ours.layers]
print("in the course's stack:", sum(torch.equal(w, drawn[0]) for w in drawn))

# %% id="museum-clones-proof" tags=["hide-input"]
# The verdicts
prove(
    "7: all six layers of nn.TransformerEncoder start with equal weights",
    all(torch.equal(w, weights[0]) for w in weights),
)
prove("7: those of the course start with different ones", not torch.equal(drawn[0], drawn[1]))

# %% [markdown] id="museum-clones-says"
# They all start with equal weights. They become different in training, because each gets gradients of its own, so
# this is no disaster; but it is rarely what you want, and nothing says so. Draw the weights anew once the stack is
# built.
#
# ## Exhibit 8: the alphabet of all texts
#
# A model that reads characters needs a table with a row for each. Somebody collects the alphabet from *all* texts,
# those for the test included. That leaks no answer. What does it do?

# %% id="museum-vocabulary"
text = reference_text()
training, held_out = text[:20_000], text[150_000:170_000]
unseen = sorted(set(held_out) - set(training))
print("characters that only the held-out text has:", " ".join(unseen))

# %% [markdown] id="museum-vocabulary-says"
# These characters get rows in the table that no training step ever touches, so the model reads vectors drawn by chance.
# And the score says nothing about the case that will occur in use: a character that nobody knew beforehand. With an
# alphabet from the training texts alone, such characters become one token for “unknown”, in the test as in use.
#
# ## The strongest test: another program
#
# Most of these bugs would have been found by one question: *same numbers?* If there is a program that you trust, give
# yours the same weights and compare outputs and gradients. For an encoder layer there are several.
#
# ### The feed-forward network is two convolutions
#
# “The feed-forward network is a 1×1 convolution” is a sentence you may meet. A *convolution* slides one small set of
# weights along the sequence. With a window of one position it treats each token alone, as the feed-forward network
# does. We copy the weights and compare. PyTorch's convolutions want the features before the positions, hence `.mT`,
# which swaps the last two axes.

# %% id="convolution-equal"
network = FeedForward(64, 256, activation="relu")
first, second = nn.Conv1d(64, 256, kernel_size=1), nn.Conv1d(256, 64, kernel_size=1)
with torch.no_grad():
    first.weight.copy_(network.up.weight[..., None])  # (F, D) -> (F, D, 1)
    first.bias.copy_(network.up.bias)
    second.weight.copy_(network.down.weight[..., None])
    second.bias.copy_(network.down.bias)


def convolutions(x):
    return second(first(x.mT).relu()).mT  # by way of (B, F, T)


found = testing.assert_equivalent(network, convolutions, x)
prove("a feed-forward network is two convolutions of width one", max(found) < 1e-5)

# %% id="without-relu" tags=["hide-input"]
# Without what stands between them, two maps are one; and the shapes on the way
up, down = network.up, network.down
linear = down(up(x))
one_map = x @ (down.weight @ up.weight).T + (down.weight @ up.bias + down.bias)
prove("without the non-linearity the two maps are one", torch.allclose(linear, one_map, atol=1e-4))
print("in, inside, out:", tuple(x.shape), tuple(up(x).shape), tuple(network(x).shape))

# %% [markdown] id="convolution-says"
# So the sentence is true of two of them, with a ReLU between. The ReLU is what makes two maps more than one: without it
# one matrix could replace both, and a folded cell checks that too.
#
# ### The layer is PyTorch's layer
#
# `EncoderLayer.from_torch` takes over the weights of a layer of PyTorch. If the numbers agree for both places of the
# norm and for two activations, then little can be wrong:

# %% id="parity-table" tags=["hide-input"]
# Figure: the largest difference to PyTorch's layer, outputs and gradients, beside that of the exhibits
settings, differences = [], []
for norm_first in (False, True):
    for activation in ("relu", "gelu"):
        torch.manual_seed(0)
        theirs = nn.TransformerEncoderLayer(
            64, 4, 256, dropout=0.0, batch_first=True, activation=activation, norm_first=norm_first
        )
        found = testing.assert_equivalent(EncoderLayer.from_torch(theirs), theirs, x)
        settings.append(f"{'pre' if norm_first else 'post'}-norm, {activation}")
        differences.append(max(found))
prove("EncoderLayer equals nn.TransformerEncoderLayer, both norm places, ReLU and GELU", max(differences) < 1e-5)
off = (wrong(x) - right(x)).abs().max().item()
names, values = [*settings, "exhibit 2"], [*[1e-5] * 4, off]
colours, across = [*[palette.query] * 4, palette.output], "largest difference (what is below 0.00001 is drawn as that)"
show(
    common.bars(names, values, lying=True, colours=colours, xscale="log", xlabel=across, xlim=(1e-6, 10)),
    alt="Bars for four settings of the course's layer, less than 0.00001 away from PyTorch's, and for exhibit 2, "
    "which is off by about 1.",
    caption="Rounding stays below 0.00001. Exhibit 2 is a hundred thousand times larger, so the test need not be fine.",
)

# %% [markdown] id="parity-says"
# Now a whole stack of three layers against `nn.TransformerEncoder`, for both places of the norm. PyTorch's pre-norm
# stack has a last norm only if it is given one:

# %% id="stack-equal"
for norm_first in (False, True):
    layer = nn.TransformerEncoderLayer(
        64, 4, 256, dropout=0.0, norm_first=norm_first, batch_first=True
    )  # fmt: skip
    norm = nn.LayerNorm(64) if norm_first else None
    theirs = nn.TransformerEncoder(layer, 3, norm=norm, enable_nested_tensor=False)
    found = testing.assert_equivalent(TransformerEncoder.from_torch(theirs), theirs, x)
    prove(f"three layers equal torch's, pre-norm {norm_first}", max(found) < 1e-4)

# %% [markdown] id="order-text"
# ### The order of the parts
#
# What the two kinds of layer do, step by step, with the places where dropout belongs:
#
# | step | post-norm (2017) | pre-norm |
# |---|---|---|
# | 1 | attention, from x | norm, then attention |
# | 2 | dropout, add to x, **norm** | dropout, add to x |
# | 3 | feed-forward | norm, then feed-forward |
# | 4 | dropout, add, **norm** | dropout, add |
# | after the last layer | nothing | one more norm |
#
# The paper drops numbers in two kinds of places: the output of each sublayer before it is added, and the sum of word
# vector and position. Much code also drops attention weights and the inner numbers of the feed-forward network.

# %% exercise="encoder_layer"

# %% [markdown] id="paper-size-text"
# ### An encoder of the paper's size
#
# Counting works at every size. Here is the encoder of the paper's base model, with a table of 30,000 tokens. What
# does it hold? Table and layers, each by the formula:


# %% id="paper-size"
class TextEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = Embedding(config, config.vocab_size)
        self.encoder = TransformerEncoder(config)

    def forward(self, tokens):
        mask = masks.padding_mask(tokens, 0)  # (B, 1, 1, T), True = may attend
        return self.encoder(self.embedding(tokens), mask=mask)


torch.manual_seed(0)
six = TextEncoder(TransformerConfig(vocab_size=30_000))  # otherwise the base model
layer_size = 4 * (512**2 + 512) + (512 * 2048 + 2048) + (2048 * 512 + 512) + 4 * 512
total = 30_000 * 512 + 6 * layer_size
print(f"table {30_000 * 512:,} + 6 × {layer_size:,} = {total:,} parameters")

# %% id="paper-size-proof" tags=["hide-input"]
# Counted, and run: six maps, each (4, 8, 50, 50)
prove("the formula counts what was built", not complaint(testing.assert_counts, six, parameters=total))
with torch.no_grad(), record_weights(six) as maps:
    output = six(torch.randint(1, 30_000, (4, 50)))
shape = tuple(maps["encoder.layers.0.self_attention"].shape)
print(f"out {tuple(output.shape)}; {len(maps)} maps of {shape}")
prove("six layers return six maps", len(maps) == 6)
prove("it has 34,274,304 parameters", total == 34_274_304)

# %% [markdown] id="answer"
# ## The answer
#
# | exhibit | what went wrong | the question that finds it |
# |---|---|---|
# | 1 | spread over one less, ε outside the root | same numbers |
# | 2 | pre-norm under the name of post-norm | same numbers |
# | 3 | one norm for a whole sentence | who reads whom (padding) |
# | 4 | dropout that ignores the mode | twice the same |
# | 5 | one norm in two places | how many weights |
# | 6 | one layer six times, or six in a plain list | how many weights |
# | 7 | layers that start as clones | same weights? |
# | 8 | an alphabet that knows the test | what does training never touch? |
#
# You know that a layer is right when it gives the same outputs *and* gradients as a program that you trust, has as many
# weights as the formula, repeats itself in use, and does not notice padding. Each of these tests is a line long, and
# together they take less than a second.
#
# **Sources.** Ba et al. 2016, *Layer Normalization*, arXiv:1607.06450; PyTorch's documentation of `LayerNorm`
# (ε under the root, the biased variance), `Tensor.std` (correction = 1), `nn.functional.dropout` (training = True) and
# its source of `nn.TransformerEncoder` (layers are deep copies); Lan et al. 2019, *ALBERT*, arXiv:1909.11942; Vaswani
# et al. 2017, arXiv:1706.03762, sections 3.3 (two convolutions with kernel size 1), 5.4 (dropout) and table 3.
