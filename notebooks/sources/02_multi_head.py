# %% [markdown] id="title"
# # 2 Multi-head attention
#
# In chapter 1 a word collected a weighted average of what other words offered. This chapter shows what one average
# loses, and how several attentions side by side keep it. At the end you have a layer, with your own split and merge, that
# gives the same numbers as PyTorch's. You will have silenced heads of a trained model, and set two heads by hand that
# find the next word of a list you type.
#
# You need chapter 1. The chapter takes about {minutes} minutes, some 80 of them for its nine exercises. After sections
# 3, 4 and 5 there are good places to stop.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import copy
import functools
import itertools
import math
import random
import string

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from IPython.display import HTML, display
from torch import nn

from course_lib import testing
from course_lib.attention import record_weights
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.cache import KVCache
from course_lib.config import TransformerConfig
from course_lib.multi_head import MultiHeadAttention
from course_lib.multi_head import merge_heads as library_merge
from course_lib.multi_head import split_heads as library_split
from course_lib.testing import prove
from course_lib.transformer import LanguageModel
from coursework import exercises as ex
from coursework.corpora.sentences import ENGLISH, REFLEXIVE_OF, REFLEXIVES, english_sentence
from coursework.explorers import HeadExplorer
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots.common import bars, curves, panels
from coursework.pictures.plots.maps import heat_maps
from coursework.records import claim, record

torch.manual_seed(0)
torch.set_num_threads(1)

# %% id="here" tags=["hide-input"]
# Drawing: where this chapter belongs
drawings.whole_transformer(here=2).show()

# %% [markdown] id="why"
# ## 1 One head gives one average
#
# Take the sentence *queen sees boy*. To understand it, the word *sees* has to know two things: who sees, and who is
# seen. So it should look at both other words. What does it get from them?
#
# Attention gives it one average. Let the value of *queen* be (1, 0) and that of *boy* (0, 1). If *sees* gives both the
# same weight, it gets (0.5, 0.5). In *boy sees queen* the values and the weights are the same, and so is the average.
# The two sentences mean different things, and *sees* cannot tell them apart.

# %% id="why-drawn" tags=["hide-input"]
# Drawing: one average against two
drawings.one_average_or_two().show()
queen, boy = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
for first, second in ((queen, boy), (boy, queen)):
    prove(
        "equal weights give (0.5, 0.5) in either order",
        torch.equal(0.5 * first + 0.5 * second, 0.5 * boy + 0.5 * queen),
    )

# %% [markdown] id="why-two"
# The way out is to let the word look twice. One attention looks for who sees and gets (1, 0). Another, with queries,
# keys and values of its own, looks for who is seen and gets (0, 1). We lay the two results side by side, so nothing is
# lost. Each of these attentions is called a **head**, and all of them together are **multi-head attention**.
#
# Couldn't *sees* give 0.7 to *queen*, who sees, and 0.3 to *boy*, who is seen? Then the two averages do differ. But a
# linear map must read *boy* off the average. It scores all words that it knows, and *girl*, who is not in the sentence,
# has weight 0. If it treats all words alike, it favours large weights or small ones. To name *boy*, it favours small
# ones, and then it names *girl*. Does training find a way around this?

# %% [markdown] id="two-places-question"
# ### 1.1 The same, measured
#
# A text is a row of 16 letters, drawn at random from twelve. Each position has to name two of
# them: the letter one position back, and the letter three positions back.

# %% id="two-places-drawn" tags=["hide-input"]
# Drawing: what each position has to answer
drawings.two_places_task().show()

# %% [markdown] id="two-places-rules"
# The model is a single attention layer, and one linear map reads off both answers. Each position has a vector of its own,
# from which queries and keys are made, so a head can learn to look one position back. We train the model with one head of
# width 32, and with two of width 16, so both have the same number of parameters.
#
# **Predict.** A blind guess is right one time in twelve, 0.08. How often will one head be right in each of the two
# questions? Write your guess between the quotes. It is saved, not graded.

# %% id="two-places-guess"
ex.predict("one_head_two_questions", "")


# %% id="two-places-model" tags=["hide-input"]
# The model, its task, and its training
class TwoPlaces(nn.Module):
    """Names the letters one and three positions back: letters (B, T) -> scores (B, T, 2, V).

    Where a position looks depends only on the positions, and what it finds there only on the letters.
    """

    def __init__(self, n_heads, V=12, T=16, D=32):
        super().__init__()
        self.n_heads = n_heads
        self.letter, self.position = nn.Embedding(V, D), nn.Parameter(torch.randn(1, T, D))
        self.query, self.key, self.value, self.output = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.answer = nn.Linear(D, 2 * V)

    def weights(self):
        query, key = (library_split(part(self.position), self.n_heads) for part in (self.query, self.key))
        return (query @ key.mT / math.sqrt(query.size(-1))).softmax(dim=-1)  # (1, H, T, T)

    def forward(self, letters):
        found = self.weights() @ library_split(self.value(self.letter(letters)), self.n_heads)  # (B, H, T, E)
        return self.answer(self.output(library_merge(found))).unflatten(-1, (2, -1))


def two_places_batch(B, generator, backs=(1, 3)):
    letters = torch.randint(12, (B, 16), generator=generator)
    return letters, torch.stack([letters.roll(back, dims=1) for back in backs], dim=-1)  # (B, T), (B, T, 2)


def train_two_places(n_heads, steps=300, seed=0, backs=(1, 3)):
    torch.manual_seed(seed)
    model, generator = TwoPlaces(n_heads), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        letters, wanted = two_places_batch(32, generator, backs)
        scores = model(letters)[:, 3:]  # the first three positions have no answer
        loss = F.cross_entropy(scores.flatten(0, 2), wanted[:, 3:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False)


# %% id="two-places-measured" tags=["not-compared:differs-by-processor"]
trained = {n_heads: train_two_places(n_heads) for n_heads in (1, 2)}
letters, wanted = two_places_batch(500, torch.Generator().manual_seed(99))
for n_heads, model in trained.items():
    right = (model(letters).argmax(-1) == wanted)[:, 3:].float().mean((0, 1))
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"heads: {n_heads}, parameters: {size:,}")
    print(f"   right: one back {right[0]:.2f}, three back {right[1]:.2f}")

# %% [markdown] id="two-places-look"
# One head answers one question and is mostly wrong on the other. Two heads answer both. Where do they look? A *weight
# map* has a row for each position that looks and a column for each position that is looked at. Ignore rows 0 to 2. They
# have no letter three back, so they were not trained.

# %% id="two-places-figure" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: where one head looks, and where two heads look
shown = ((1, 0, "one head"), (2, 0, "two heads: the first"), (2, 1, "two heads: the second"))
show(
    heat_maps(
        {title: trained[n_heads].weights()[0, head] for n_heads, head, title in shown},
        size=(7.5, 2.9),
        every=5,
        xlabel="position looked at",
        ylabel="position that looks",
        bar="weight",
    ),
    alt="Three maps of 16 by 16 positions. One head has two half-dark diagonals, one and three positions back. Of two heads "
    "each has a single dark diagonal, one of them one position back, the other three positions back.",
    caption="One head has to share its weight between the two positions. Two heads take one position each, though nobody told "
    "them to.",
)
named = trained[1](letters).argmax(-1)[:, 3:, 1]
mistaken = (named == wanted[:, 3:, 0]).float().mean()
why = (
    f"In {mistaken:.2f} of all cases it names the letter one back. This share and that of the right answers add up to more "
    "than one, because one time in twelve both letters are the same."
)
title = "Asked for the letter three back, what does the one head answer?"
display(HTML(f"<details><summary>{title}</summary><p>{why}</p></details>"))

# %% [markdown] id="two-places-record"
# The two diagonals of the single head are nearly equally dark. But the position one back gets a little more weight nearly
# everywhere, and this small lead lets its letter win both questions.
#
# Was this bad luck, or too little time? Here are five training runs of each model, with different *seeds*, the numbers
# from which random choices begin. One row has five times as many steps, another has eight heads, and the last puts a
# small non-linear network between one head and the answers.

# %% id="two-places-seeds" tags=["hide-input"]
# Figure: the worse of the two answers, five seeds, recorded
two_places = claim("two_places")
fig = two_places.figure("worse answer")
fig.axes[0].set_yticks(range(len(two_places.arms)), list(two_places.arms)[::-1])
show(
    fig,
    alt=two_places.alt("worse answer"),
    caption="How often the worse of the two answers is right, a dot for each run. With one head and only a linear map "
    "after it, it stays below a third, even with five times as many steps.",
)
lines = []
for arm in two_places.arms:
    low, high = two_places.range(arm, "worse answer")
    lines.append(f"{arm:<24} the worse answer is right in {low:.2f} to {high:.2f}")
lines.append("one head and a network, its weights, seed by seed")
for where in ("one back", "three back"):
    weights = two_places.values("one head and a network", f"on {where}")
    lines.append(f"   on {where:<11} " + " ".join(f"{weight:.2f}" for weight in weights))
lines.append(f"each at the best of three learning rates; recorded by {two_places.command}")
display(HTML(f"<details><summary>The numbers</summary><pre>{chr(10).join(lines)}</pre></details>"))
prove(
    "one head: at most one of two questions, whatever the seed", two_places.range("one head", "worse answer")[1] < 0.4
)
prove("two heads: both, whatever the seed", two_places.range("two heads", "worse answer")[0] > 0.98)

# %% [markdown] id="two-places-argument"
# Longer training helps one head little. With the network, one head can do it. It gives one position clearly more weight
# than the other, and the network can tell the stronger part from the weaker one.

# %% [markdown] id="two-places-says"
# **One head gives one average. Several heads keep several things apart, and nothing afterwards has to untangle them.**
#
# Do different heads learn different things, then? Nothing in the formula makes them. We trained two heads again, with *one
# back* as both questions. Both came to look one back, in all five training runs.

# %% id="two-places-differ" tags=["hide-input", "not-compared:differs-by-processor"]
# Evidence: how far heads move apart, five seeds
lines = []
for arm in ("two heads", "eight heads"):
    fresh, after = two_places.range(arm, "apart, fresh"), two_places.range(arm, "apart")
    lines.append(
        f"{arm:<12} differ by {fresh[0]:.2f} to {fresh[1]:.2f} before training, {after[0]:.2f} to {after[1]:.2f} after"
    )
alike = [train_two_places(2, seed=seed, backs=(1, 1)).weights()[0, :, 3:] for seed in range(5)]  # (H, rows, S) each
apart = [0.5 * (first - second).abs().sum(-1).mean().item() for first, second in alike]
lines.append(f"two heads, the same question twice: {min(apart):.2f} to {max(apart):.2f} after training")
least = min(weights.diagonal(2, 1, 2).mean(-1).min().item() for weights in alike)  # rows 3 and on, one back
prove("asked the same twice, both heads look one back, with every seed", least > 0.7 and max(apart) < 0.3)
how = (
    "Eight heads move apart, too, although two would do. The distance is 0 if two heads have the same weights, and 1 if "
    "they look at different positions altogether: half the sum of the differences between two rows, all taken as "
    "positive. The numbers are means over all rows that have both answers, and over all pairs of heads."
)
display(
    HTML(
        "<details><summary>Evidence: how far heads move apart</summary>"
        f"<p>{how}</p><pre>{chr(10).join(lines)}</pre></details>"
    )
)

# %% [markdown] id="build"
# ## 2 Split, attend, merge
#
# Each head needs three linear maps of its own, for queries, keys and values. In the paper's notation (Vaswani et al.
# 2017, section 3.2.2):
#
# $$\mathrm{head}_i = \mathrm{Attention}(X W_i^Q, X W_i^K, X W_i^V) \qquad
# \mathrm{MultiHead}(X) = [\mathrm{head}_1, \ldots, \mathrm{head}_h]\, W^O$$
#
# Here $X$ holds the vectors of all tokens, one in each row. Head $i$ multiplies them by its own three matrices and does
# the attention of chapter 1. The square brackets lay the outputs of all heads side by side. One more matrix, the *output
# matrix* $W^O$, maps them back to the width of a token.
#
# How wide is a head? Eight heads of full width would cost eight times as much as one, so the paper divides the width
# among them. From here on we use these letters for shapes:
#
# | letter | what it counts | `course_lib` calls it |
# |---|---|---|
# | **B** | sentences that are worked on together | |
# | **T**, **S** | tokens that look, tokens that are looked at | |
# | **D** | numbers in the vector of a token | `d_model` |
# | **H** | heads, *h* in the formula above | `n_heads` |
# | **E** | numbers in the vector of one head, mostly D / H | `d_head` |
# | **E'** | numbers in a value, if not E | |
#
# First, the formula as a plain loop. In it, `sdpa` is the attention of chapter 1, short for *scaled dot-product
# attention*. The sizes 2, 5, 3 and 7 are different primes on purpose: if we mix up two axes, PyTorch often complains.

# %% id="loop-over-heads"
B, T, H, E = 2, 5, 3, 7
D = H * E  # 21
x = torch.randn(B, T, D)
W_query, W_key, W_value = (torch.randn(H, D, E) / math.sqrt(D) for _ in range(3))
W_output = torch.randn(H * E, D) / math.sqrt(H * E)


def heads_by_loop(x):
    outputs = []
    for h in range(H):
        query, key, value = x @ W_query[h], x @ W_key[h], x @ W_value[h]  # (B, T, E)
        outputs.append(sdpa(query, key, value))
    return torch.cat(outputs, dim=-1) @ W_output  # (B, T, H * E) -> (B, T, D)


by_loop = heads_by_loop(x)
print("in", tuple(x.shape), " out", tuple(by_loop.shape))

# %% [markdown] id="first-shape-says"
# In and out have the same shape, so layers can be stacked.
#
# ### 2.1 Split
#
# The loop is right but slow: it makes many small products where one large product would do. Write the query matrices of
# all heads side by side, and you have one matrix with H · E columns. A single product then gives the queries of all
# heads. In each token's vector, the first E numbers belong to head 0, the next E to head 1, and so on.
#
# Now each head must get its own numbers. The attention of chapter 1 works on the last two axes, and does the
# same for everything in front of them. So we bring the heads to the front, from (B, T, H · E) to (B, H, T, E). This is
# called **splitting** the heads. The way back, after attention, is called **merging** them.

# %% id="split-drawn" tags=["hide-input"]
# Drawing: split and merge, with numbers
drawings.split_into_heads().show()

# %% [markdown] id="split-question"
# Here are the same numbers as a tensor. The shapes (1, 2, 6) and (1, 3, 2, 2) hold equally many numbers. Someone in a
# hurry turns the first straight into the second with `view`, which keeps the order in memory.
#
# **Predict.** Which numbers does head 0 get then?

# %% id="split-guess"
ex.predict("head_0_of_one_view", "")

# %% id="split-small"
small = torch.arange(12).reshape(1, 2, 6)  # token 0 holds 0..5, token 1 holds 6..11
hurried = small.view(1, 3, 2, 2)  # the right shape
print("head 0 holds", hurried[0, 0].tolist())

# %% id="split-straight-drawn" tags=["hide-input"]
# Drawing: what went wrong
drawings.split_into_heads(straight=True).show()

# %% [markdown] id="split-says"
# The shape is right and the content is wrong. Head 0 holds two pieces of token 0, so it compares this token with
# itself and never sees token 1. Nothing warns you: the program runs, and it even trains.
#
# So take two steps: first cut each token's vector, which gives (B, T, H, E), then exchange two axes.

# %% exercise="split_heads"

# %% id="split-library" tags=["hide-input"]
# Check: yours against four plain loops and against the library
wide = x @ torch.cat(list(W_query), dim=-1)  # (B, T, D) @ (D, H E)
by_hand = torch.empty(B, H, T, E)
for b, h, t, e in itertools.product(range(B), range(H), range(T), range(E)):
    by_hand[b, h, t, e] = wide[b, t, h * E + e]
each = torch.stack([x @ W for W in W_query], dim=1)  # (B, H, T, E)
prove("one wide product, cut, gives what each head's own product gives", torch.allclose(by_hand, each, atol=1e-5))
prove("split_heads equals the four loops", torch.equal(split_heads(wide, H), by_hand))
prove("the library's split_heads equals the four loops", torch.equal(library_split(wide, H), by_hand))
print("split_heads gives each head its own numbers:", tuple(split_heads(wide, H).shape))

# %% [markdown] id="merge"
# ### 2.2 Merge
#
# After attention, the results of all heads must stand side by side again. Read the drawing from right to left: you take
# the same two steps in the opposite order.
#
# Exchanging two axes moves no number in memory. PyTorch just steps through the same memory differently. If you then join
# axes, `view` often stops with an error, because it never moves a number, while `reshape` makes a copy. If you forget the
# exchange, `reshape` silently scrambles the sentence.

# %% exercise="merge_heads"

# %% id="merge-proof"
prove("merging undoes splitting", torch.equal(merge_heads(split_heads(x, H)), x))
print("ok: merging undoes splitting")

# %% [markdown] id="sum-of-heads"
# ### 2.3 Each head adds its part
#
# What is the output matrix good for? Cut it into H blocks of E rows. Block 0 only ever multiplies head 0's numbers, block
# 1 only head 1's. So the output of the layer is a **sum**, with one part from each head. Doesn't adding mix up what we
# kept apart? It doesn't have to. Each part first passes through its own rows, which can write it to a different place in
# the token's vector. Only then are the parts added.
#
# In a Transformer this sum is added to the *residual stream*, the vector that runs through all layers. Each head reads
# from the stream and adds something to it.

# %% id="sum-of-heads-drawn" tags=["hide-input"]
# Drawing: each head through its own rows of the output matrix
drawings.heads_add_up().show()

# %% id="sum-of-heads-proof"
written = torch.zeros(B, T, D)
for h in range(H):
    head = sdpa(x @ W_query[h], x @ W_key[h], x @ W_value[h])  # (B, T, E)
    written = written + head @ W_output[h * E : (h + 1) * E]  # (B, T, E) @ (E, D)
same = torch.allclose(written, by_loop, atol=1e-5)
prove("side by side, then W_O, is the sum of the heads' parts", same)
print("ok: the output is the sum of the heads' parts")

# %% [markdown] id="sum-of-heads-says"
# Narrow heads have a price. Say that E is 2. Then a query or a key holds two numbers. If the first tells how much a
# token is like a person, and the second how much it is like a verb, this head gives *queen* and *king* nearly the same
# weight. Each of the two numbers is the dot product of the token's vector with a column of D factors. It says how far
# the vector reaches in the *direction* of that column, so a head compares tokens in only E directions.

# %% [markdown] id="multi-head-text"
# Now put the parts together: three products, split, attention, merge, and the output matrix. For the attention inside,
# take your own from chapter 1, or PyTorch's `F.scaled_dot_product_attention`.

# %% exercise="multi_head_attention"

# %% id="multi-head-proof"
flat = [torch.cat(list(W), dim=-1) for W in (W_query, W_key, W_value)]
at_once = multi_head_attention(x, *flat, W_output, H)
same = torch.allclose(at_once, by_loop, atol=1e-5)
prove("all heads at once equal the loop", same)
print("ok: all heads at once equal the loop")

# %% [markdown] id="layer"
# ## 3 The layer
#
# A layer for a model is the same function with its four matrices kept in one place, as linear maps with biases. Read the
# drawing from bottom to top, then the code. The attention inside comes first; `key.mT` exchanges the last two axes.

# %% id="layer-drawn" tags=["hide-input"]
# Drawing: the layer, with the shape on each line
drawings.multi_head_layer().show()


# %% id="attend"
def attend(query, key, value, mask=None):
    """(B, H, T, E), (B, H, S, E), (B, H, S, E) -> (B, H, T, E)"""
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, H, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1) @ value


# %% [markdown] id="layer-text"
# We divide by the root of E, the width of a head, because the dot product of a query and a key is a sum of E products.
# The argument `context` holds the tokens that are looked at, if they belong to another sequence.


# %% id="layer-code"
class MultiHead(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"cannot cut width {d_model} into {n_heads} heads")
        self.n_heads = n_heads
        maps = [nn.Linear(d_model, d_model) for _ in range(4)]
        self.query, self.key, self.value, self.output = maps

    def forward(self, x, context=None, mask=None):
        context = x if context is None else context
        parts = self.query(x), self.key(context), self.value(context)
        query, key, value = (split_heads(part, self.n_heads) for part in parts)
        found = attend(query, key, value, mask)  # (B, H, T, E)
        return self.output(merge_heads(found))


# %% [markdown] id="layer-shapes-text"
# In the paper, 8 heads of 64 numbers make a width of 512. The library's `MultiHeadAttention` is the same layer with more
# options and checks.

# %% exercise="head_parameters"

# %% [markdown] id="parity"
# ### 3.1 Equal to PyTorch's
#
# PyTorch has this layer as `nn.MultiheadAttention`. With the same parameters, ours must give the same numbers, and the
# same *gradients*, which say how training would change each parameter. `copy_from_torch`, folded here, copies the
# parameters. `assert_equivalent` runs both layers and returns the largest differences.


# %% id="copy-from-torch" tags=["hide-input"]
# Helper: copy the parameters of PyTorch's layer into ours
@torch.no_grad()
def copy_from_torch(ours, theirs):
    weights = [*theirs.in_proj_weight.chunk(3), theirs.out_proj.weight]
    biases = [*theirs.in_proj_bias.chunk(3), theirs.out_proj.bias]
    maps = ours.query, ours.key, ours.value, ours.output
    for part, weight, bias in zip(maps, weights, biases, strict=True):
        part.weight.copy_(weight)
        part.bias.copy_(bias)


# %% id="parity-from-torch"
theirs, ours = nn.MultiheadAttention(D, H, batch_first=True), MultiHead(D, H)
copy_from_torch(ours, theirs)
gaps = testing.assert_equivalent(ours, lambda x: theirs(x, x, x)[0], x)
prove("ours equals PyTorch's layer, gradients too", max(gaps) < 1e-5)
context = torch.randn(B, 11, D)  # another sequence, of 11 tokens
gaps = testing.assert_equivalent(ours, lambda x, c: theirs(x, c, c)[0], x, context)
prove("the same in cross-attention, 5 tokens looking at 11", max(gaps) < 1e-5)
print("ok: equal to PyTorch's, in cross-attention too")

# %% id="parity-to-torch" tags=["hide-input"]
# Checks: from the library to PyTorch, shapes, and what is refused
attention = MultiHeadAttention(D, H)
parts = (attention.query, attention.key, attention.value)
back = nn.MultiheadAttention(D, H, batch_first=True)
back.load_state_dict(
    {
        "in_proj_weight": torch.cat([part.weight for part in parts]),
        "in_proj_bias": torch.cat([part.bias for part in parts]),
        "out_proj.weight": attention.output.weight,
        "out_proj.bias": attention.output.bias,
    }
)
found = testing.assert_equivalent(attention, lambda x: back(x, x, x)[0], x)
prove("from the library to PyTorch: outputs and gradients equal to 1e-5", max(found) < 1e-5)
with record_weights(attention) as maps:
    attention(x)
_, their_maps = back(x, x, x, average_attn_weights=False)
prove("the maps of every head are equal too", torch.allclose(next(iter(maps.values())), their_maps, atol=1e-6))
paper = MultiHeadAttention(512, 8)
for shape in ((4, 20, 512), (4, 10, 512)):  # four sentences of 20 tokens, and of 10
    with record_weights(paper) as maps:
        prove("eight heads: the output is shaped like the input", paper(torch.randn(shape)).shape == shape)
    prove("each head has a map of its own", next(iter(maps.values())).shape == (4, 8, shape[1], shape[1]))


def refuses(call):
    try:
        call()
    except ValueError:
        return True
    return False


prove("a width of 10 cannot be cut into 3 heads", refuses(lambda: MultiHead(10, 3)))
full = torch.ones(3, 5, 5, dtype=torch.bool)  # (B, T, S), three sentences for three heads
prove("the library refuses a mask of three axes", refuses(lambda: attention(torch.randn(3, 5, D), mask=full)))
prove("plain PyTorch takes it", torch.zeros(3, H, 5, 5).masked_fill(~full, -math.inf).shape == (3, H, 5, 5))

# %% [markdown] id="masks"
# ### 3.2 Masks for several heads
#
# The scores now have four axes, (B, H, T, S), and broadcasting lines shapes up *from the right*. So a *causal* mask fits
# as it is, with its shape (T, S), and a *padding* mask fits as (B, 1, 1, S). If each head gets a mask of its own, so that
# one may look only nearby and another everywhere, the mask has shape (1, H, T, S). Our masks say True
# for *may be looked at*; the boolean masks of `nn.MultiheadAttention` say True for *hidden*.
#
# The trap is a full mask for each sentence, in shape (B, T, S).

# %% id="mask-drawn" tags=["hide-input"]
# Drawing: which axis of the mask meets which axis of the scores
drawings.mask_axes().show()

# %% [markdown] id="mask-text"
# With as many sentences as heads, plain PyTorch uses sentence 1's mask in *head* 1 of all sentences, and no error tells
# you. The library refuses every mask of three axes.
#
# <details><summary>Two more traps</summary>
#
# Nobody notices a padding mask left in shape (B, S) if there happen to be as many sentences as tokens: it looks like a
# mask of shape (T, S).
#
# Unless you say `average_attn_weights=False`, PyTorch's layer returns the average of the weight maps of all heads. An
# average may show a pattern that no single head has.
#
# </details>

# %% exercise="mask_for_every_head"

# %% [markdown] id="cost"
# A good place to stop: you have written split, merge and multi-head attention, and a layer made of your parts gives the
# same numbers as PyTorch's.
#
# ## 4 What heads cost
#
# Sixteen heads have as many parameters as eight. Each of the four linear maps goes from D numbers to H · E = D numbers,
# with a matrix of D² numbers and D biases. That makes 4 (D² + D), without any H. What about the work, and the memory?
#
# **Predict.** Take a width of 256 and 512 tokens, and go from 1 head to 8. How does the number of multiplications and
# additions in the matrix products change? And how does the memory for the weight maps change, if each of their T × S
# numbers takes four bytes?

# %% id="cost-guess"
ex.predict("cost_of_heads", "")

# %% id="cost-counted" tags=["hide-input"]
# Count and figure: what grows with the number of heads, and what does not
n, width = 512, 256
long = torch.randn(1, n, width)
flops = 8 * n * width**2 + 4 * n * n * width  # four linear maps, two products of all heads together
counted = {}
for n_heads in (1, 8, 32):
    layer = MultiHeadAttention(width, n_heads).requires_grad_(False)
    with record_weights(layer) as maps:
        testing.assert_counts(layer, long, flops=flops)
    (size,) = (weights.nbytes for weights in maps.values())
    counted[n_heads] = size
    prove(f"the maps of {n_heads} heads take 4 · H · n² bytes", size == 4 * n_heads * n * n)
costs = {
    "parameters (thousand)": [4 * (width * width + width) / 1e3] * 3,
    "operations (million)": [flops / 1e6] * 3,
    "weight maps (MiB)": [size / 2**20 for size in counted.values()],
}
show(
    panels(bars, [str(n) for n in counted], costs, share="", colours=palette.query, xlabel="heads", size=(7.5, 2.5)),
    alt="Three bar charts for 1, 8 and 32 heads at width 256 and 512 tokens. Parameters and operations are the same in "
    "all three; the memory of the weight maps grows from 1 to 8 to 32 MiB.",
    caption="At equal width, extra heads add no parameters, and no operations to the matrix products. The memory of the "
    "weight maps grows with the number of heads.",
)

# %% [markdown] id="cost-says"
# The matrix products cost the same, because each head works on fewer numbers. Only scaling, masking and softmax, which
# treat every score of every head, have more to do. But H heads have H weight maps, and where these are stored, the
# memory grows with them.
#
# <details><summary>How the operations are counted</summary>
#
# To multiply a matrix of n × a numbers by one of a × b takes n · a · b multiplications and as many additions. Each of
# the four linear maps multiplies n × D by D × D. Together they take 8 n D² operations. For the scores, each head
# multiplies n × E by E × n, and for the averages n × n by n × E. That makes 4 n² E for each head. There are H heads,
# and H · E = D, so all heads take 4 n² D. In the sum, 8 n D² + 4 n² D, there is no H.
#
# </details>
#
# Then why not hundreds of heads? Each gets narrower and compares in fewer directions. The [lab on
# heads](labs/02_heads.ipynb) trains a model of two layers and width 64 to read English prose, for 300 steps, with 1, 4
# or 16 heads in each layer and five seeds. This is its loss on text that was held out.

# %% id="cost-better" tags=["hide-input"]
# Record: the loss with 1, 4 and 16 heads at equal width, five seeds
# The longer trial below: character_heads(seed, 0.01, n_heads, steps=1000) of benchmarks/experiments/chapter_02.py
characters = claim("character_heads")
for arm in characters.arms:
    print("{:<9} held-out loss {:.2f} to {:.2f}".format(arm, *characters.range(arm, "held-out loss")))
prove(
    "16 heads of width 4 are worse than 4 heads of width 16, with every seed",
    characters.range("16 heads", "held-out loss")[0] > characters.range("4 heads", "held-out loss")[1],
)

# %% [markdown] id="cost-better-says"
# With every seed, sixteen heads of four numbers each do worse than four heads. But how can one head be as good as four?
# Section 1 gave a hint: one head did well once a network followed it. This model has a network after each attention,
# and its second layer can look somewhere else than its first. After 1000 steps one head does fall behind: over two
# seeds, the mean loss is 1.85 with one head, 1.72 with four and 1.77 with sixteen. Only a trial tells which number is
# best.

# %% [markdown] id="grouped"
# ### 4.1 Heads that share
#
# When a model writes, each new token looks at all earlier ones. So the model keeps their keys and values in a *cache*,
# which takes a lot of memory. Queries are not kept, because only the newest token asks. So the cache gets smaller with
# fewer heads *of keys and values*, and the query heads can all stay.
#
# - **Multi-query attention** (Shazeer 2019): all query heads share one head of keys and values.
# - **Grouped-query attention** (Ainslie et al. 2023): they form G groups, and each group shares one.

# %% id="grouped-drawn" tags=["hide-input"]
# Drawing: full, grouped and multi-query attention
drawings.shared_heads().show()

# %% exercise="grouped_query_attention"

# %% [markdown] id="grouped-formula"
# How much does that save? Each token leaves a key and a value in each group and layer, so one text takes
#
# $$\mathrm{bytes} = 2 \cdot \mathrm{layers} \cdot G \cdot E \cdot \mathrm{tokens} \cdot \text{bytes of a number}$$
#
# Half as many groups, half the cache.

# %% exercise="grouped_cache_bytes"

# %% id="grouped-equal" tags=["hide-input"]
# Checks: yours against PyTorch's, against full heads, and with a cache
query = torch.randn(2, 6, 5, 7)  # H = 6
key, value = torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 7)  # G = 3
kernel = functools.partial(F.scaled_dot_product_attention, enable_gqa=True)
found = testing.assert_equivalent(grouped_query_attention, kernel, query, key, value)
prove("grouped_query_attention equals PyTorch's, gradients too", max(found) < 1e-4)
few, many = MultiHeadAttention(64, 8, n_kv_heads=2), MultiHeadAttention(64, 8)
state = few.state_dict()
for part in ("key", "value"):
    rows_of = state[f"{part}.weight"].unflatten(0, (2, 8))  # (G E, D) -> (G, E, D)
    state[f"{part}.weight"] = rows_of.repeat_interleave(4, dim=0).flatten(0, 1)  # (H, E, D) -> (H E, D)
    state[f"{part}.bias"] = state[f"{part}.bias"].unflatten(0, (2, 8)).repeat_interleave(4, dim=0).flatten()
many.load_state_dict(state)
tokens = torch.randn(2, 5, 64)
prove("grouped heads equal full heads with repeated matrices", torch.allclose(few(tokens), many(tokens), atol=1e-5))
few.requires_grad_(False)


def step_by_step(new, cache):
    cache = KVCache() if cache is None else cache
    return few(new, causal=True, cache=cache), cache


for G in (8, 4, 2, 1):
    layer, cache = MultiHeadAttention(64, 8, n_kv_heads=G), KVCache(capacity=100)
    with torch.no_grad():
        layer(torch.randn(1, 100, 64), causal=True, cache=cache)
    prove(f"a cache of {G} groups takes 2 · G · E · 4 bytes for each token", cache.n_bytes == 100 * 2 * G * 8 * 4)
testing.assert_cache_consistent(lambda x: few(x, causal=True), step_by_step, torch.randn(2, 7, 64))

# %% [markdown] id="grouped-says"
# What does it cost? The papers report a small loss in quality. Sharing also saves parameters, as the key and value maps
# get narrower. It does not save scores: each query head still compares with every token.
#
# A good place to stop: you know what heads cost, and you have written the sharing that cuts the cache of Llama 3 8B to
# a quarter.

# %% [markdown] id="roles"
# ## 5 What heads do
#
# What do heads look at in sentences? We train a small language model, `reader`, on the English of the overview, in
# which somebody sees, hears or paints somebody. It has two layers of four heads. To end *the queen near the king paints
# …* with *herself*, and not with *himself*, it has to find the subject. Here that is always the person named first, so
# a head needs no grammar to find it.

# %% id="english-model" tags=["hide-input"]
# Training: two layers of four heads, 500 steps on the small English
WORD = {word: number for number, word in enumerate(ENGLISH)}
draw = random.Random(0)
text = torch.tensor([WORD[word] for _ in range(10_000) for word in english_sentence(draw)])
starts = (text == WORD["."]).nonzero()[:-20, 0]
torch.manual_seed(0)
config = TransformerConfig(
    d_model=64, n_heads=4, n_decoder_layers=2, positions="learned", norm_place="pre", activation="gelu",
    scale_embeddings=False, tie_embeddings=False, dropout=0.0, vocab_size=len(ENGLISH), max_length=24,
)  # fmt: skip
reader = LanguageModel(config)
optimizer = torch.optim.AdamW(reader.parameters(), lr=3e-3)
for _ in range(500):
    piece = text[starts[torch.randint(len(starts), (32,))][:, None] + torch.arange(25)]
    loss = F.cross_entropy(reader(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
reader = reader.eval().requires_grad_(False)


def maps_of(words):
    """The maps of all heads for one sentence: (layers, H, T, T)."""
    with record_weights(reader) as maps:
        reader(torch.tensor([[WORD[word] for word in words]]))
    return torch.cat(list(maps.values()))


# %% [markdown] id="text-maps-text"
# Each square of these weight maps says how much the word of its row takes from the word of its column. In this section
# layers and heads count from 1: L2 H4 is head 4 of layer 2. Is there a head in which *paints* looks at *queen*?


# %% id="text-maps" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: four heads of the trained model on one sentence
def draw_heads(weights, words, names):
    """A map for each head: weights (H, T, T), T words, H names."""
    fig, axes = plt.subplots(2, 2, figsize=(7.2, 6.4), layout="constrained")
    for ax, weight, name in zip(axes.flat, weights, names, strict=False):
        image = ax.imshow(weight, cmap="Blues", vmin=0, vmax=1)
        ax.set_title(name)
        ax.set_xticks(range(len(words)), words, rotation=90)
        ax.set_yticks(range(len(words)), words)
        ax.grid(False)
    fig.supxlabel("looked at")
    fig.supylabel("looks")
    fig.colorbar(image, ax=axes, label="weight")
    return fig


words = ". the queen near the king paints".split()
sentence_maps = maps_of(words)  # (layers, H, T, T)
on_queen = [f"head {1 + h}" for h in range(4) if sentence_maps[1, h, 6, 2] > 0.5]
show(
    draw_heads(sentence_maps[1], words, [f"layer 2, head {h}" for h in range(1, 5)]),
    alt="Four maps, the heads of layer 2, for the words: full stop, the, queen, near, the, king, paints. All are lower "
    "triangles. The heads differ: in some the row of paints is dark at queen, in others it is spread or dark elsewhere.",
    caption="The four heads of layer 2. The first word is the full stop of the sentence before. Read the bottom rows, where “paints” looks. It gives more than half of its weight to "
    f"“queen” in {' and '.join(on_queen) or 'none of them'}.",
)

# %% [markdown] id="text-maps-says"
# Below are all eight heads.

# %% id="text-explore" tags=["hide-input", "not-compared:differs-by-processor"]
# Explorer: what each word takes from the others, in all eight heads
names = [f"L{layer} H{h}" for layer, h in itertools.product((1, 2), range(1, 5))]
HeadExplorer(
    sentence_maps.flatten(0, 1),
    words,
    names=names,
    selected=4 + int(sentence_maps[1, :, 6, 2].argmax()),
    query=6,
    averages=False,
    caption="Choose a head and a word. “the (1)” is the word at position 1; positions count from 0.",
)

# %% [markdown] id="text-roles-text"
# One sentence is an anecdote. So we take 300 sentences with another person between the subject and the last verb. For
# each head we measure how much that verb takes from its subject, from the other person, from the word before it, and
# from itself.

# %% id="text-roles" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: what each head takes at the last verb, mean of 300 sentences
test_draw, tests = random.Random(-1), []
while len(tests) < 300:
    words_ = english_sentence(test_draw)
    if words_[-2] in REFLEXIVES and ("near" in words_ or "that" in words_):
        tests.append(words_)
print(f"two of the {len(tests)} sentences:")
for joint in ("near", "that"):
    print("  ", " ".join(next(each for each in tests if joint in each)))
of_length = [[each for each in tests if len(each) == n] for n in sorted({len(each) for each in tests})]


def read(sentences):
    """A full stop, then the words up to the last verb: (B, T)."""
    return torch.tensor([[WORD["."], *(WORD[word] for word in each[:-2])] for each in sentences])


kinds = ("its subject", "the other person", "the word before", "itself")
roles = dict.fromkeys(kinds, 0)
for sentences in of_length:
    with record_weights(reader) as maps:
        reader(read(sentences))
    at_verb = torch.stack(list(maps.values()))[:, :, :, -1]  # (layers, B, H, S)
    nouns = torch.tensor(
        [[1 + i for i, word in enumerate(each) if word in REFLEXIVE_OF][:2] for each in sentences]
    )  # (B, 2)
    picked = at_verb.gather(-1, nouns[None, :, None].expand(2, -1, 4, -1)).sum(1) / len(tests)  # (layers, H, 2)
    last = at_verb.sum(1) / len(tests)  # (layers, H, S)
    # if the other person is the word before, it counts as both
    for kind, part in zip(kinds, (picked[..., 0], picked[..., 1], last[..., -2], last[..., -1]), strict=True):
        roles[kind] = roles[kind] + part
subject = divmod(int(roles["its subject"].argmax()), 4)
show(
    heat_maps(
        roles,
        size=(7.5, 2.1),
        xlabel="head",
        ylabel="",
        digits=2,
        bar="weight",
        columns=range(1, 5),
        rows=("layer 1", "layer 2"),
    ),
    alt="Four small grids of two layers by four heads. They show how much weight the last verb gives to its subject, to "
    "the other person, to the word before it, and to itself. In the first grid one head stands out.",
    caption=f"The head that takes most from the subject is head {subject[1] + 1} of layer {subject[0] + 1}.",
)
# How often the right reflexive is the likeliest of the three
REFLEXIVE_IDS = [WORD[word] for word in REFLEXIVES]


def right(model):
    found = 0
    for sentences in of_length:
        chosen = model(read(sentences))[:, -1, REFLEXIVE_IDS].argmax(-1).tolist()
        found += sum(REFLEXIVES[one] == each[-2] for one, each in zip(chosen, sentences, strict=True))
    return found / len(tests)


# %% [markdown] id="ablation-text"
# ### 5.1 Does the model need that head?
#
# One head looks at the subject more than any other does, just where the model has to choose between *herself*, *himself*
# and *themselves*. So that is the head that finds the subject. Or is it?
#
# A weight map shows where a head looks, not whether the model uses what it finds. So silence the head and see what
# breaks. This is called *ablation*. A head reaches the stream only through its own rows of the output matrix (section
# 2.3).

# %% exercise="silence_head"


# %% id="ablation"
def without(*heads):
    """A copy of the model with silent heads; (2, 4) is L2 H4."""
    changed = copy.deepcopy(reader)
    for layer, head in heads:
        block = changed.decoder.layers[layer - 1]  # Python counts from 0
        block.self_attention = silence_head(block.self_attention, head - 1)
    return changed


# %% [markdown] id="ablation-question"
# **Predict.** With all heads the model nearly always chooses right. Someone who knows only the verb is right about
# three times in four: half of the verbs are like *paint*, which only *themselves* can follow, and after *paints* half
# the guesses between *herself* and *himself* are right: 0.5 + 0.25. How often will the model be right without the head
# that looks most at the subject? And without the three heads that look most at it? Below, `right(model)` counts that.

# %% id="ablation-guess"
ex.predict("without_the_subject_head", "")

# %% id="ablation-measured" tags=["atol:0.15"]
# roles: the four tables above
order = roles["its subject"].flatten().argsort(descending=True).tolist()
by_subject = [(1 + n // 4, 1 + n % 4) for n in order]  # who looks most, first
groups = {
    "all heads": [],
    "without the one that looks most": by_subject[:1],
    "without the three that look most": by_subject[:3],
    "without the three that look least": by_subject[-3:],
}
for name, silent in groups.items():
    print(f"{name:34} {right(without(*silent)):.2f}")

# %% [markdown] id="ablation-says"
# It is a beautiful weight map, and the model hardly needs the head. Without the three heads that look most at the
# subject, the model loses most of its lead over someone who knows only the verb. Was this training an exception? Here
# are five.

# %% id="ablation-record" tags=["hide-input"]
# Record: five seeds, what the heads look at, and what happens without them
english = claim("english_heads")


def row_of(name, values, form=".2f"):
    return f"{name:<42}" + "".join(f"{value:>7{form}}" for value in values)


def row_of_claim(row):
    return row_of(row, english.values("trained", row))


print(row_of("seed", range(english.seeds), ""))
print("share right, without")
for what in ("that head", "the 3 that look most", "the 3 that look least"):
    name = {"that head": "the one that looks most"}.get(what, what)
    print(row_of(f"   {name}", english.values("trained", f"right without {what}")))
places = zip(*(english.values("trained", f"{what} of that head") for what in ("layer", "number")), strict=True)
rest = [
    row_of("seed", range(english.seeds), ""),
    row_of("which head looks most", [f"L{layer:.0f} H{head:.0f}" for layer, head in places], ""),
    *map(row_of_claim, ("right", "best weight on the subject", "right without the 2nd and 3rd")),
    *map(row_of_claim, ("right without layer 2", "right without the worst single head")),
    row_of("its rank in looking, of 8", english.values("trained", "place of the worst single head"), ".0f"),
    *(
        "untrained: {}, {:.2f} to {:.2f}".format(row, *english.range("untrained", row))
        for row in ("right", "best weight on the subject")
    ),
    f"rates tried: {', '.join(map(str, english.rates))}; {english.command}",
]
display(HTML(f"<details><summary>The other rows</summary><pre>{chr(10).join(rest)}</pre></details>"))
prove(
    "the head that looks most at the subject can be spared, with every seed",
    english.range("trained", "right without that head")[0] > 0.95,
)
prove(
    "the three that look most at it are needed more than the three that look least, with every seed",
    english.range("trained", "right without the 3 that look most")[1]
    < english.range("trained", "right without the 3 that look least")[0],
)
by_seed = [english.values("trained", f"right without {what}") for what in ("the 3 that look most", "layer 2")]
prove("without all of layer 2 the model is right more often", all(a < b for a, b in zip(*by_seed, strict=True)))

# %% [markdown] id="ablation-record-says"
# In all five runs the model could spare the head that looks most at the subject. That is not a law: with four more
# seeds, only one model could. Without the three heads that look most at the subject, all nine got worse, and worse than
# without the three that look least. Four of the five in the table fall to about 0.8, close to the 0.75 you get from the
# verb alone. With seed 3, the model answers *himself* in 274 of the 300 sentences, even after *paint*.
#
# **A weight map shows where a head looks. To learn what the model needs, make an experiment, and more than one.**
#
# <details><summary>Evidence: nine trainings, with single heads, groups and a whole layer taken away</summary>
#
# The table has seeds 0 to 4, each at the best of three rates, which is 0.003 for the trained models. Seeds 5 to 8
# were trained later at this rate and are not in the record.
#
# *Where the head is.* In each of the five trainings some head came to look at the subject, far more than any head of an
# untrained model does. In eight of the nine trainings the head that looks most is in layer 2, but not always the same
# head of it. With seed 7 it is in layer 1.
#
# *That head alone.* Without it, seeds 5 to 8 are right in 1.00, 0.86, 0.90 and 0.82. On another machine the same four
# seeds gave 1.00, 0.87, 0.93 and 0.81. At rate 0.001, seeds 0 to 4 are right in 0.78 to 0.97. Rate 0.01 says little, as
# training itself often fails there: with all heads, three of the five models are right in about 0.75.
#
# *The worst single head.* In each of the five trainings of the table, the single head that is missed most is another
# one than the head that looks most at the subject. In four of them it is the second or third in looking at the subject,
# and in one it looks there least of all.
#
# *Three heads.* To choose heads to silence together, rank them by something that you can measure, and take the other
# end of the list as the control. Do the three do one work, so that each stands in for the others? The row *without the
# 2nd and 3rd* is the control: there the first of the three is still at work. With seeds 0 and 2 the model is clearly
# better with it, with seed 4 a little. With seeds 1 and 3 it is no help at all; what was missed there are the other
# two. So a head that can be spared alone *may* be needed once others are gone. It need not be.
#
# *A whole layer.* The row *without layer 2* is a warning. With seeds 0 to 4 the head that looks most belongs to this
# layer. Yet without all the heads of the layer the model is right more often than without the three. With seed 3 it can
# spare the whole layer, but without the three heads it is right less often than someone who knows only the verb. Cutting
# a head can also do harm: zeros where it used to write may mislead the rest. So what a cut does depends on what is left,
# and one cut does not tell you where in the model an answer is found.
#
# </details>

# %% [markdown] id="minilm"
# ### 5.2 Heads of a real model
#
# BERT is a Transformer that reads a whole sentence at once (chapter 4). Here is a small relative of it, all-MiniLM-L6-v2,
# with 6 layers of 12 heads. Its words may look ahead, so there can be weight above the diagonal, too. The model puts a
# token [CLS] in front of each sentence and [SEP] behind it.

# %% id="minilm-maps" tags=["hide-input"]
# Figure: four heads of MiniLM on one sentence, recorded
minilm = record("minilm-heads")
chosen = {name: torch.tensor(table) for name, table in minilm["maps"].items()}
show(
    draw_heads(list(chosen.values()), minilm["tokens"], [f"layer {k[0]}, head {k[2:]}" for k in chosen]),
    alt="Four maps with the tokens CLS, the, queen, near, the, king, paints, herself, full stop, SEP on both axes. First: "
    "a sharp diagonal just left of the main one. Second: each article looks right, at its noun. Third: one dark column at "
    "CLS. Fourth: spread, with queen, king and herself looking most at king.",
    caption="Four of the 72 heads, on a sentence of ten tokens.",
)
above = [(torch.tensor(minilm["shares"][key]) > 0.5).sum().item() for key in ("previous", "next", "first")]
prove("1, 1 and 36 of 72 heads give more than half to the token before, the token after, [CLS]", above == [1, 1, 36])

# %% [markdown] id="minilm-says"
# - **Layer 1, head 3** looks at the token before, with nearly all its weight.
# - **Layer 2, head 9** often looks at the next token: each *the* looks at its noun.
# - **Layer 5, head 6** looks at [CLS], from everywhere. Weights sum to one, so even a head that finds nothing has to
#   put them somewhere.
# - **Layer 6, head 3** is a disappointment: *herself* looks most at *king*, not at *queen*.
#
# Over twelve other sentences, one of the 72 heads gives more than half of its weight to the token before, one to the
# token after, and 36 give it to [CLS].

# %% [markdown] id="claims"
# In BERT itself, researchers found heads that follow single grammatical relations, or look from a pronoun to its noun.
# Michel et al. (2019) could remove most heads one at a time with hardly any loss. A fifth of a translator's heads, and two
# fifths of a BERT's, could go together without much harm. Beyond that, quality fell sharply.
#
# <details><summary>Evidence: each finding with its source</summary>
#
# | finding | where |
# |---|---|
# | heads that look at the next or the previous token | BERT: Clark et al. 2019, section 3 |
# | heads that look at the separator between sentences, [SEP]; read there as doing nothing | BERT: Clark et al. 2019, section 3.2 |
# | heads for single grammatical relations, such as from an article to its noun; none does the whole grammar | BERT: Clark et al. 2019, section 4 |
# | a head that looks from a pronoun to the noun it refers to | BERT: Clark et al. 2019, section 4.3 |
# | a head for rare words | a translation encoder, not BERT: Voita et al. 2019 |
# | most heads can be removed, one at a time, with hardly any loss | Michel et al. 2019, section 3 |
# | removed together, 20 % of the heads in a translator and 40 % in a BERT go with little loss; then quality falls sharply | Michel et al. 2019, section 4 |
#
# More heads can go if the model is trained further while they are taken away. Voita et al. 2019 removed 38 of the 48
# heads of an encoder that way, at a loss of 0.15 BLEU, points of a score for translations.
#
# The figure of MiniLM is recorded by `python benchmarks/minilm_heads.py`.
#
# </details>
#
# A good place to stop: you have silenced heads of a trained model, and you know what a weight map cannot tell you.

# %% [markdown] id="induction"
# ## 6 Two heads that work together
#
# Read this text:
#
# > K Q B Z R M K …
#
# What comes next? You say Q, because last time Q came after K. You looked for an earlier K and took what followed it.
# Names work like this, too: once *Ada Lovelace* has been mentioned, the next *Ada* is probably followed by *Lovelace*. A
# head that does this is called an **induction head** (Elhage et al. 2021; Olsson et al. 2022).
#
# A single attention layer gets stuck. The last K can find an earlier K, but the letter that it needs is one position
# further on. It wants *the one that came after K*, and the key of Q does not say what came before it.
#
# Two layers can do it. In the first, a **previous-token head** writes a note into each letter's vector, which says what
# stood before it. Then Q carries the note *after K*. In the second layer, the last K asks who has the note *after K*. It
# finds Q and copies it.

# %% id="induction-drawn" tags=["hide-input"]
# Drawing: the two steps of induction
drawings.induction_steps().show()

# %% [markdown] id="induction-by-hand"
# ### 6.1 Set it by hand
#
# You can build this machine by choosing the matrices. We start with a text to work on. Each vector of the stream has ten
# numbers, four for the letter and six for the position, and each part is a single 1 among zeros. Row i of `letter.T` is
# the vector of letter i, and row p of `position.T` that of position p. The other way round, `x @ letter` reads the letters
# from the stream, and `x @ position` the positions.

# %% id="stream-by-hand"
letter, position = torch.eye(4 + 6).split([4, 6], dim=1)  # (10, 4) and (10, 6)
text_ids = [0, 1, 2, 3, 0, 1]  # which letter stands at each position
x = letter.T[text_ids] + position.T  # the stream, (T, D)
print("letter 2 at position 2:", x[2].int().tolist())
print("its letter:", (x @ letter)[2].int().tolist())

# %% [markdown] id="shift-text"
# Now a head that looks *two* positions back. The key of a position is the position itself, and the query of position p
# must be the key of p - 2. So the query is the position times a *shift matrix*, whose row p has its 1 in column p - 2:
# position 5 picks row 5, which is the vector of position 3. In rows 0 and 1, `roll` wraps the 1 around to the right edge;
# ignore these rows.

# %% id="shift-by-hand"
shift = torch.eye(6).roll(-2, dims=1)
print(shift.int().numpy())
for factor in (1, 50):
    W_q, W_k = factor * position @ shift, position
    scores = (x @ W_q) @ (x @ W_k).T / math.sqrt(6)
    shares = scores.softmax(-1)[5].tolist()
    print(f"factor {factor:2}, position 5:", *(f"{share:.2f}" for share in shares))

# %% [markdown] id="shift-by-hand-says"
# The printed weights are those of position 5, which should look at position 3. With factor 1, a match scores 1 / √6 and everything else 0, and after softmax the
# difference is small. With factor 50, the head looks at one position only.

# %% exercise="induction_pair"

# %% [markdown] id="induction-list-text"
# Does it work? Write a list that starts to repeat itself.
#
# **Predict.** In the list below, two different words have followed *milk*. What will your pair answer after the last
# *milk*?

# %% id="induction-list-guess"
ex.predict("after_the_last_milk", "")

# %% id="induction-list"
yours = "eggs milk bread milk tea milk"  # your list
listed = ["start", *yours.split()]
names = list(dict.fromkeys(listed))
V, P = len(names), len(listed)
letter, position, note, answer = torch.eye(3 * V + P).split([V, P, V, V], dim=1)
ids = torch.tensor([names.index(word) for word in listed])
x = letter.T[ids] + position.T  # the stream, (T, D)
for head in induction_pair(letter, position, note, answer):
    added, hand_weights = causal_head(x, *head)
    x = x + added
for name, share in zip(names, (x @ answer)[-1].tolist(), strict=True):
    print(f"{name:6} {share:.2f}")

# %% [markdown] id="induction-list-says"
# With one earlier *milk*, the answer would be the word that followed it. With two, the second head finds two notes and
# shares its weight between them, so both words get one half.
#
# ### 6.2 Does training find it?
#
# Our model is made of the library's attention layers, which can leave out biases and make the causal mask themselves.
# Nothing else in it moves information between positions. Each training text
# names five people again and again, in random order. Their first names and family names are single letters. A text may
# begin with K Q, B Z, K Q, R M, B Z. When K comes again, the next letter must be Q.


# %% id="induction-model"
class AttentionOnly(nn.Module):
    def __init__(self, n_layers, letters=26, places=24, d_model=64):
        super().__init__()
        self.letter = nn.Embedding(letters, d_model)
        self.position = nn.Parameter(torch.randn(places, d_model))
        layers = [MultiHeadAttention(d_model, 2, bias=False) for _ in range(n_layers)]
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in layers)
        self.last_norm = nn.LayerNorm(d_model)  # mean 0, same spread: chapter 4
        self.answer = nn.Linear(d_model, letters, bias=False)

    def forward(self, letters):
        x = self.letter(letters) + self.position[: letters.size(1)]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), causal=True)  # the residual stream
        return self.answer(self.last_norm(x))


# %% [markdown] id="induction-rival"
# We train it with two layers and with one, which must fail if our story is right. A rival that is no network predicts
# each letter by how often it has come so far, without knowing who belongs to whom.


# %% id="induction-measured" tags=["hide-input", "picture:60"]
# The texts of names, the training, and figure: two layers against one
def names_text(B, generator):
    """Texts (B, 24), and where the next letter can be known (B, 23)."""
    people = torch.rand(B, 26, generator=generator).argsort(1)[:, :10].view(B, 5, 2)
    who = torch.randint(5, (B, 13), generator=generator)
    shift = torch.randint(2, (B, 1), generator=generator)  # some texts begin with a family name
    letters = people[torch.arange(B)[:, None], who].flatten(1).gather(1, shift + torch.arange(24))
    first = (torch.arange(24) + shift) % 2 == 0
    met = (letters[:, :, None] == letters[:, None, :]).tril(-1).any(-1)
    return letters, (first & met)[:, :-1]


def known_loss(scores, letters, known):
    each = F.cross_entropy(scores[:, :-1].flatten(0, 1), letters[:, 1:].flatten(), reduction="none")
    return each.view_as(known)[known].mean().item()


held_out, known = names_text(300, torch.Generator().manual_seed(99))
same = (held_out[:, :, None] == held_out[:, None, :]).tril(-1)
after_copy = F.pad(same, (1, 0))[:, :, :-1]  # (B, T, T): the positions after earlier copies


@torch.no_grad()
def look(model):
    """Loss where a name can be known, the best previous-token weight, and the best weight on what followed."""
    with record_weights(model) as maps:
        scores = model(held_out)
    weights = torch.stack(list(maps.values()))  # (layers, B, H, T, T)
    previous = weights.diagonal(-1, -2, -1).mean((1, 3))  # (layers, H)
    on_copies = (weights * after_copy[None, :, None]).sum(-1)[..., :-1]  # (layers, B, H, T - 1)
    followed = (on_copies * known[None, :, None]).sum((1, 3)) / known.sum()
    return known_loss(scores, held_out, known), previous[0].max().item(), followed[-1].max().item(), followed


def train_induction(n_layers, steps=500, seed=0):
    torch.manual_seed(seed)
    model, generator = AttentionOnly(n_layers), torch.Generator().manual_seed(seed)
    optimizer, history = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for step in range(steps + 1):
        if step % 25 == 0:
            history.append((step, *look(model)[:3]))
        letters, _ = names_text(32, generator)
        loss = F.cross_entropy(model(letters)[:, :-1].flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False), history


two_layers, history = train_induction(2)
_, single = train_induction(1)
counts = (F.one_hot(held_out, 26).float().cumsum(1) + 0.1).log()  # the rival that counts letters
rival = known_loss(counts, held_out, known)
different = F.one_hot(held_out, 26).cumsum(1).gt(0).sum(-1)[:, :-1]  # letters that have come: (B, T - 1)
alike = different[known].float().log().mean()  # each of them equally likely
prove("taking all letters so far as equally likely does better than counting", alike < rival)
print(f"loss of counting letters {rival:.2f}")
print(f"at the end: two layers {history[-1][1]:.2f}, one layer {single[-1][1]:.2f}")
likeliest = two_layers(held_out).argmax(-1)[:, :-1]
print(f"two layers name the right letter in {(likeliest == held_out[:, 1:])[known].float().mean():.2f} of the cases")
steps, losses, before, followed = zip(*history, strict=True)
fig = panels(
    curves, steps,
    {
        "loss where a name can be known": {"two layers": losses, "one layer": [row[1] for row in single]},
        "two layers: weight, best head": {"on what followed (layer 2)": followed, "on the letter before (layer 1)": before},
    },
    each=(
        {"levels": {"counting letters": rival}, "ylim": (0, 3.7)},
        {"ylim": (0, 1), "colours": palette.series[2:4]},  # both of the two-layer model
    ),
    share="", styles=("-", "--"), names="", xlabel="step", size=(7.5, 3.0),
)  # fmt: skip
for ax in fig.axes:
    ax.legend()
show(
    fig,
    alt="Left: the loss of two layers falls from above 3 to below 1 within 200 steps; that of one layer falls to the "
    "dashed line of counting letters and stays near it. Right: in the two-layer model the weight on the letter before "
    "in layer 1, and the weight on what followed in layer 2, rise together in the first 200 steps.",
    caption="One layer gets hardly further than counting letters. With two layers both kinds of head appear, at the same "
    "time, and the loss goes below what counting can do.",
)

# %% [markdown] id="induction-map-text"
# Two layers nearly always name the right letter. Their loss is not 0 because they are not sure: a loss of 0.5 means
# that the right letter gets a probability of about $e^{-0.5}$, or 0.6.
#
# Does the trained model look where yours does? Here is the better head of layer 2, on a short text with three people: KQ,
# BZ and RM. Find the row of the last K. Ignore the rows of new letters, which have no earlier copy.

# %% id="induction-map" tags=["hide-input", "picture:10"]
# Figure: the induction head on one text
sample = "KQBZRMKQRMBZK"
sample_ids = torch.tensor([[string.ascii_uppercase.index(letter) for letter in sample]])
with record_weights(two_layers) as maps:
    two_layers(sample_ids)
best = int(look(two_layers)[3][1].argmax())
sample_map = list(maps.values())[1][0, best]
show(
    heat_maps({"": sample_map}, columns=sample, rows=sample, bar="weight", size=(5.4, 4.4)),
    alt="A map of 13 by 13 letters, KQBZRMKQRMBZK, lower triangle. In the row of each first name that comes again, the "
    "dark cells are those right after its earlier copies: the rows of the later Ks are dark at Q.",
    caption="The induction head of layer 2. Where a letter comes again, it looks at the letter that followed it before, "
    "for first names and for family names.",
)
on_q = sum(sample_map[-1, place].item() for place in (1, 7))
print(f"the last K gives {on_q:.2f} of its weight to the two Qs")

# %% id="induction-record" tags=["hide-input"]
# Record: two layers against one, five seeds
induction = claim("induction")
rows = {
    "loss": "loss",
    "loss of counting letters": "loss of counting letters",
    "loss at period 10": "ten random letters, repeated: loss",
    "counting letters at period 10": "   loss of counting letters there",
    "previous-token score": "weight on the letter before",
    "induction score": "weight on what followed",
    "steepest fifth": "steepest fifth",
}
lines = {}
for row in rows:
    cells = ["{:.2f} to {:.2f}".format(*induction.range(arm, row)) for arm in ("two layers", "one layer")]
    lines[row] = f"{rows[row]:<38}{cells[0]:>16}{cells[1]:>16}"
print(f"{'five seeds, least to greatest':<38}{'two layers':>16}{'one layer':>16}")
print("\n".join(list(lines.values())[:2]))
rest = "\n".join(list(lines.values())[2:])
more = "Does it work for more than names? Where do the best heads look?"
ten = (
    "The models were never trained on ten random letters that repeat. Two layers predict the second copy far better than "
    "counting does; one layer does not."
)
display(HTML(f"<details><summary>{more}</summary><p>{ten}</p><pre>{rest}</pre></details>"))
prove(
    "two layers go far below counting letters, one layer does not, with every seed",
    induction.range("two layers", "loss")[1] < 0.5 * induction.range("one layer", "loss")[0],
)

# %% [markdown] id="induction-says"
# With all five seeds, two layers end far below the rival that counts letters, and one layer ends near it. So here it
# takes two layers.
#
# <details><summary>Evidence: does the loss drop suddenly? And a third rival, which knows less</summary>
#
# You will read that induction heads appear in a *phase change*, a sudden drop of the loss. A steep fall alone does not
# show them: with one layer, which forms no induction head, the fall is nearly as steep. What shows them is how deep the
# loss falls.
#
# *Steepest fifth* asks how steep the fall is: which share of a model's own fall happens in the steepest fifth of its
# training? With two layers it is a large share, and with one layer nearly as large. But only two layers fall far below
# the line of counting letters. One layer ends just under it.
#
# Olsson et al. saw a bump in the loss at the time when induction heads formed, in models of two layers and more. Their
# main sign was another one: late tokens of a text suddenly gained much more from the early ones.
#
# Two layers also end far below the rival that takes all letters so far as equally likely; one layer does not. Why does
# this rival, which knows less, do better than counting? The rival that counts bets most on the letters that have come
# most often, and the letter just read is one that has come. But the family name that follows is seldom among its
# favourites, and so the bets are lost.
#
# </details>
#
# The [lab on heads](labs/02_heads.ipynb) shows from the matrices how the two heads find each other.

# %% [markdown] id="thread-text"
# ## 7 Your own parts at work
#
# Your split and merge go into `my_transformer.py`, inside a class that is also called `MultiHeadAttention`. Unlike
# the library's, it needs a `context`: for self-attention, pass `x` twice. Does that layer, too, give PyTorch's numbers?

# %% id="thread"
from coursework.assembly.thread import so_far

my = so_far(chapter=2)
layer = my.MultiHeadAttention(21, 3)
theirs = nn.MultiheadAttention(21, 3, batch_first=True)
copy_from_torch(layer, theirs)
x = torch.randn(2, 5, 21)
same = torch.allclose(layer(x, x), theirs(x, x, x)[0], atol=1e-5)
print("equal to PyTorch's:", same)

# %% [markdown] id="card"
# ## 8 What you have
#
# ### You can now
#
# - say what one head cannot do with only a linear map after it, and show it;
# - write split, merge and the whole layer, and prove it right against PyTorch;
# - spot a mask that would be applied per head by mistake;
# - read the weight maps of heads, and test what the heads are needed for;
# - silence a head, and set two by hand that continue a repeated text;
# - compute what a cache costs, and what sharing saves.
#
# <details><summary>The formulas on one card</summary>
#
# | what | formula | section |
# |---|---|---|
# | one head | Attention(X W_Q, X W_K, X W_V), with matrices D × E | 2 |
# | **multi-head** | **heads side by side, times W_O = sum of each head times its rows of W_O** | 2, 2.3 |
# | width of a head | mostly E = D / H | 2 |
# | split | (B, T, H · E) to (B, H, T, E) | 2.1 |
# | merge | (B, H, T, E) to (B, T, H · E) | 2.2 |
# | scale of the scores | 1 / √E, by the width of a head | 3 |
# | parameters | 4 (D² + D), however many heads | 4 |
# | operations of the matrix products, for n tokens | 8 n D² + 4 n² D, however many heads | 4 |
# | bytes of the weight maps | 4 H n² in float32 | 4 |
# | bytes of the cache | 2 · layers · G · E · tokens · bytes of a number | 4.1 |
#
# </details>

# %% [markdown] id="self-check"
# ### Check yourself
#
# Answer in a sentence, then open.
#
# <details><summary>1. Why several narrow heads instead of one wide one?</summary>
#
# Each head gives an average of its own, so two things can be kept apart without a network that unmixes them. The price
# is that a head of width E compares tokens in E directions only (sections 1 and 2.3).
#
# </details>
#
# <details><summary>2. Why may the merge not be a reshape alone?</summary>
#
# After attention the axes are (B, H, T, E). A reshape alone reads them in this order, all tokens of head 0 first. It
# would fill a token's vector with pieces of several tokens (2.2).
#
# </details>
#
# <details><summary>3. Your mask has shape (B, T, S), and all tests pass. What would you check?</summary>
#
# How many heads and how many sentences the tests use. If they are equally many, the mask is read per head, without an
# error (3.2).
#
# </details>
#
# <details><summary>4. What do 16 heads cost instead of 8, at the same width?</summary>
#
# No parameters, and no operations in the matrix products. Twice as many exponentials, twice the memory for the weight maps where
# they are stored, and heads that are half as wide (4).
#
# </details>
#
# <details><summary>5. A head has a beautiful weight map. Does the model need it?</summary>
#
# The map does not say. Take the head away, alone and together with others, and see what the model can no longer do (5.1).
#
# </details>
#
# <details><summary>6. What are the two parts of induction, and why two layers?</summary>
#
# A head that notes in each token what came before it, and a later head that looks for the note with its own name. The
# second reads what the first has written (6).
#
# </details>
#
# <details><summary>7. What do grouped heads save, and what don't they save?</summary>
#
# They save cache, by the factor H / G, and parameters of the key and value maps. They do not save scores (4.1).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# Heads could look one, two or three positions back because we gave each position a vector. [Chapter
# 3](03_positional_encoding.ipynb) asks how else a model can know where a word stands.
#
# The [bug museum](labs/02_bugs.ipynb) shows eight silent bugs.

# %% [markdown] id="sources"
# ### Sources
#
# <details><summary>The papers behind this chapter</summary>
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: section 3.2.2.
# - Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*; Olsson et al. 2022, *In-context Learning
#   and Induction Heads*, arXiv:2209.11895: heads as a sum, previous-token and induction heads.
# - Clark et al. 2019, *What Does BERT Look At?*, arXiv:1906.04341; Voita et al. 2019, *Analyzing Multi-Head
#   Self-Attention*, arXiv:1905.09418; Michel et al. 2019, *Are Sixteen Heads Really Better than One?*,
#   arXiv:1905.10650: what heads do, and which can go.
# - Shazeer 2019, *Fast Transformer Decoding: One Write-Head is All You Need*, arXiv:1911.02150; Ainslie et al. 2023,
#   *GQA*, arXiv:2305.13245: shared keys and values.
# - Grattafiori et al. 2024, *The Llama 3 Herd of Models*, arXiv:2407.21783; Jiang et al. 2023, *Mistral 7B*,
#   arXiv:2310.06825; Chowdhery et al. 2022, *PaLM*, arXiv:2204.02311; Almazrouei et al. 2023, *The Falcon Series of
#   Open Language Models*, arXiv:2311.16867: who shares how.
# - Wang et al. 2020, *MiniLM*, arXiv:2002.10957; the model is `sentence-transformers/all-MiniLM-L6-v2`.
#
# </details>
