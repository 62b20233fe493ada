# %% [markdown] id="title"
# # 4 The encoder
#
# *Near the old king the tall queen saw herself.* Or *himself*? Halfway through this chapter you will have a model
# that can tell, and you will have written its layer, its encoder and its classifier yourself. Then you train a second
# one on Shakespeare and ask it who might have said a line that you type.
#
# You already have attention, heads and positions from chapters 1 to 3. With its exercises this chapter takes about
# {minutes} minutes. Four good places to stop are marked.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import itertools
import math
import random
import re
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import masks, testing
from course_lib.attention import record_weights
from course_lib.config import TransformerConfig
from course_lib.encoder import EncoderLayer, TransformerEncoder
from course_lib.layers import FeedForward as LibraryFeedForward
from course_lib.norms import LayerNorm, RMSNorm
from course_lib.testing import complaint, prove
from course_lib.transformer import Embedding as LibraryEmbedding
from coursework import exercises as ex
from coursework.assembly.thread import so_far
from coursework.corpora import speeches
from coursework.corpora.sentences import JUDGED_WORDS, REFLEXIVE_OF, judged_sentences
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import chapter_04 as plots
from coursework.pictures.plots import common
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% id="here" tags=["hide-input"]
# Drawing: where this chapter belongs
drawings.whole_transformer(here=4).show()

# %% [markdown] id="bridge"
# ## 1 From attention to a layer
#
# Attention takes a row of vectors, one for each word, and gives back a row of the same shape: (B, T, D), for B
# sentences of T words with D numbers each. D is also called $d_{model}$. The words that a model reads are called
# **tokens**, and so are their vectors.
#
# Since the shape stays the same, the output can go into a second attention. To judge *herself*, for example, the
# first attention can find the subject, and the second can bring it to the last word. But if we simply stack
# attention on attention, three things go wrong.
#
# - Attention mixes the words, but it computes little with what it has found. A **feed-forward network** does the
#   computing.
# - Each attention *replaces* a word with a mixture, and soon all words are nearly the same. A **residual connection**
#   keeps the word and adds to it.
# - The numbers grow or shrink from step to step. A **norm** keeps their size.
#
# Attention and these three parts make one **layer**, and a stack of layers is the **encoder**. It is the left half of
# the picture above, where the norms are left out.
#
# ## 2 Why a feed-forward network
#
# ### 2.1 A question about one word
#
# Suppose that attention has brought two facts to a word. The first number of its vector is 1 if the subject is a
# woman, and the second is 1 if the last word is *herself*. If exactly one of them is 1, the sentence is wrong. So we
# want a new number that is 1 for (1, 0) and (0, 1), and 0 for (0, 0) and (1, 1).

# %% id="one-on-drawn" tags=["hide-input"]
# Drawing: what is asked for, as four points
drawings.exactly_one_on().show()

# %% [markdown] id="linear-cannot"
# Can attention compute it? Suppose first that the sentence has only this one word. A softmax over a single score is
# 1, so the word takes its own value with weight 1. The value is a matrix times the vector, and the output map
# multiplies it by one more matrix. Together they are a **linear map**, and a second attention on top only adds
# another one.
#
# But no linear map can answer our question. From the two numbers $a$ and $b$ it computes $u a + v b + c$, where $u$,
# $v$ and $c$ are fixed numbers. Add up its answers at two opposite corners of the square:
#
# - at (0, 0) and (1, 1): $c + (u + v + c)$;
# - at (1, 0) and (0, 1): $(u + c) + (v + c)$.
#
# The two sums are always equal. But we want 0 + 0 from the first and 1 + 1 from the second.
#
# <details><summary>And in a longer sentence?</summary>
#
# There the weights of attention depend on the words, and that is not linear. But the weights have another job: they
# choose which words to read. We want a part that computes with what has been read.
#
# </details>
#
# ### 2.2 Two more numbers
#
# The way out is a little bend. The function max(0, z) leaves positive numbers as they are and turns negative ones
# into 0. It is called **ReLU**. Two inner numbers, each with a ReLU, are enough. The result is their sum:
#
# | token | max(0, first − second) | max(0, second − first) | result |
# |---|---|---|---|
# | (0, 0) | max(0, 0) = 0 | max(0, 0) = 0 | 0 |
# | (1, 0) | max(0, 1) = 1 | max(0, −1) = 0 | 1 |
# | (0, 1) | max(0, −1) = 0 | max(0, 1) = 1 | 1 |
# | (1, 1) | max(0, 0) = 0 | max(0, 0) = 0 | 0 |

# %% id="two-units-drawn" tags=["hide-input"]
# Drawing: the same as a network, at work on (1, 0)
drawings.two_hidden_units().show()

# %% [markdown] id="feed-forward"
# A linear map, a bend at zero, and another linear map make a **feed-forward network**. As a formula (Vaswani et al.
# 2017, equation 2):
#
# $$\mathrm{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2$$
#
# - $x$ is the vector of one word, D numbers.
# - $W_1$, a matrix (D, F), and $b_1$ make F inner numbers. F is also called $d_{ff}$.
# - max(0, ·) is the ReLU, applied to each inner number.
# - $W_2$, a matrix (F, D), and $b_2$ bring them back to D numbers.
#
# F is usually four times D. The paper has a D of 512 and an F of 2048.

# %% id="widths-drawn" tags=["hide-input"]
# Drawing: three tokens, each widened and narrowed by itself
drawings.feed_forward_widths().show()

# %% exercise="feed_forward"

# %% [markdown] id="two-units-check-text"
# Now give your function the matrices of our example, $W_1$ as `W_up` and $W_2$ as `W_down`. The four tokens make one
# sentence.

# %% id="two-units-check"
W_1 = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])  # (D, F): a column for each inner number
W_2 = torch.tensor([[1.0], [1.0]])  # (F, 1): one result
four = torch.tensor([[[0.0, 0], [1, 0], [0, 1], [1, 1]]])  # (B, T, D)
result = feed_forward(four, W_1, torch.zeros(2), W_2, torch.zeros(1))
print("exactly one:", result.flatten().tolist())
linear = (four @ W_1) @ W_2  # the same without the bend
print("without the bend:", linear.flatten().tolist())

# %% [markdown] id="one-position-question"
# **Predict.** A sentence of five words goes through a feed-forward network. Then word 3, counted from 0, is changed. At
# which positions does the output change? And where would it change after attention without a mask?

# %% id="predict-one-position"
ex.predict("feed_forward_changes_where", "")

# %% id="one-position"
x = torch.randn(2, 5, 3)  # (B, T, D)
W_1, b_1 = torch.randn(3, 12), torch.randn(12)
W_2, b_2 = torch.randn(12, 3), torch.randn(3)
changed = x.clone()
changed[:, 3] += 1.0
before = feed_forward(x, W_1, b_1, W_2, b_2)
difference = (feed_forward(changed, W_1, b_1, W_2, b_2) - before).abs().amax((0, 2))
print("positions that changed:", difference.nonzero().flatten().tolist())

# %% [markdown] id="activations"
# Only position 3 changes. With attention all five would change, because every word reads word 3. **Attention moves
# information between words; the feed-forward network computes with what has arrived, at each word alone.**
#
# **What it costs.** Attention has four matrices of D times D numbers: queries, keys, values, output. The feed-forward
# network has two of D times 4D, which hold as many numbers as eight of D times D. So about **two thirds** of a
# layer's weights are here.

# %% id="feed-forward-equal" tags=["hide-input"]
# Count: the weights of one layer in the sizes of 2017. Check: loops and the library give what you wrote
prove("two inner numbers find exactly one", result.flatten().tolist() == [0, 1, 1, 0])
by_hand = torch.empty(2, 5, 3)
for b in range(2):
    for t in range(5):
        inner = [max(0.0, sum(x[b, t, d] * W_1[d, f] for d in range(3)) + b_1[f]) for f in range(12)]
        for d in range(3):
            by_hand[b, t, d] = sum(inner[f] * W_2[f, d] for f in range(12)) + b_2[d]
prove("feed_forward equals the loops over tokens and features", torch.allclose(before, by_hand, atol=1e-5))
first, second = nn.Conv1d(3, 12, kernel_size=1), nn.Conv1d(12, 3, kernel_size=1)
first.load_state_dict({"weight": W_1.T[..., None], "bias": b_1})
second.load_state_dict({"weight": W_2.T[..., None], "bias": b_2})
found = testing.assert_equivalent(
    lambda x: feed_forward(x, W_1, b_1, W_2, b_2), lambda x: second(first(x.mT).relu()).mT, x
)
prove("the feed-forward equals two convolutions of width one, gradients too", max(found) < 1e-4)
library = LibraryFeedForward(3, 12)
library.load_state_dict({"up.weight": W_1.T, "up.bias": b_1, "down.weight": W_2.T, "down.bias": b_2})
prove("course_lib's FeedForward equals both", torch.allclose(library(x), before, atol=1e-5))
order = torch.tensor([4, 2, 0, 1, 3])
moved = feed_forward(x[:, order], W_1, b_1, W_2, b_2)
prove("reordered tokens give reordered outputs", torch.allclose(moved, before[:, order], atol=1e-5))
one_map = x @ (W_1 @ W_2) + (b_1 @ W_2 + b_2)
prove("without the bend the two maps are one", torch.allclose((x @ W_1 + b_1) @ W_2 + b_2, one_map, atol=1e-4))
prove("only position 3 changed", difference.nonzero().flatten().tolist() == [3])
paper = EncoderLayer(TransformerConfig(d_model=512, n_heads=8))
total = sum(p.numel() for p in paper.parameters())
inside = sum(p.numel() for p in paper.feed_forward.parameters())
print(f"feed-forward: {inside:,} of {total:,} weights, {inside / total:.0%}")
gated = LibraryFeedForward(768, 2048, activation="silu", gated=True, bias=False)
plain = LibraryFeedForward(768, 3072, activation="gelu", bias=False)
sizes = [sum(p.numel() for p in part.parameters()) for part in (gated, plain)]
prove("a gated network of 8/3 D is as large as a plain one of 4 D", sizes[0] == sizes[1])
prove("with F = 4 D the feed-forward holds two thirds of a layer", abs(inside / total - 2 / 3) < 0.01)

# %% [markdown] id="activations-table"
# Later models use other activation functions, such as GELU and SwiGLU.
#
# <details><summary>Three such functions and their formulas</summary>
#
# | function | formula | used by |
# |---|---|---|
# | ReLU | max(0, z) | the paper of 2017 (section 3.3), T5 |
# | GELU | z · Φ(z), where Φ is the distribution function of the normal distribution: a ReLU with a soft corner | BERT, GPT-2 |
# | SwiGLU | one map of x, bent, times a second map of x | Llama; gated forms by Shazeer 2020 |
#
# F need not be 4 D: the largest T5 has an F of 64 D (Raffel et al. 2020).
# SwiGLU has three matrices instead of two. With F = 8/3 · D it has as many weights as the usual network with F = 4 D.
#
# </details>

# %% [markdown] id="residual"
# ## 3 The residual stream
#
# ### 3.1 All words become one
#
# Now we stack attention and a feed-forward network twelve times. There are norms in between, but no residual
# connections. The weights are random, and the sentence has eleven words.
#
# A fresh attention has not learned where to look, so it looks a little at every word. Each word becomes a mixture of
# all eleven. Mixtures of the same eleven words lie closer together than the words did, and the next layer mixes these
# mixtures again.

# %% id="collapse-drawn" tags=["hide-input"]
# Drawing: three tokens as arrows, averaged again and again
drawings.collapsing_tokens().show()

# %% [markdown] id="similarity-text"
# To measure this we compare directions. The *cosine* of two vectors is 1 if they point the same way and 0 if they stand
# at right angles.

# %% exercise="token_similarity"


# %% id="collapse-maps" tags=["hide-input"]
# Figure: the cosine of each pair of words, after 0, 1, 2 and 4 layers without residual connections
def fresh_encoder(depth=12, seed=0, **switches):
    """An encoder with new weights, by Xavier's rule unless `init` says otherwise."""
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "n_heads": 4, "n_encoder_layers": depth}
    return TransformerEncoder(TransformerConfig(**sizes, positions="none", dropout=0.0, **switches))


def tokens_by_layer(encoder, x):
    """The vectors before the first layer and after each one: a list of (B, T, D)."""
    vectors = [x]
    with torch.no_grad():
        for layer in encoder.layers:
            vectors.append(layer(vectors[-1]))
    return vectors


eleven = torch.randn(1, 11, 64, generator=torch.Generator().manual_seed(1))  # (B, T, D)

stages = tokens_by_layer(fresh_encoder(residual=False), eleven)
cosines = {}
for depth in (0, 1, 2, 4):
    units = F.normalize(stages[depth][0], dim=-1)
    cosines[f"after {depth} layers: {token_similarity(stages[depth]).item():.2f}"] = units @ units.T
prove("without residuals the tokens point the same way after four layers", token_similarity(stages[4]).item() > 0.99)
show(
    plots.words_two_by_two(cosines),
    alt="Four maps of eleven by eleven cosines. Before the first layer only the diagonal is dark. After one layer all "
    "cells are darker, after two nearly as dark as the diagonal, after four all cells are the same dark blue.",
    caption="Each map shows how alike the eleven words are, two by two; dark is 1. Above each: the mean over all pairs "
    "of different words. After four of the twelve layers all words point nearly the same way.",
)

# %% [markdown] id="residual-idea"
# It is like a meeting in which everybody keeps repeating the average of what was said. After four rounds nobody can
# tell who thought what.
#
# ### 3.2 Add, do not replace
#
# One plus sign helps. Instead of replacing the word, we **add** to it:
#
# $$x \leftarrow x + \mathrm{Sublayer}(x)$$
#
# **Sublayer** is the name for either half of a layer, the attention or the feed-forward network. The plus sign is the
# **residual connection**.
#
# Now a word's vector travels along a line from the bottom of the stack to the top, and each sublayer reads from the
# line and adds its result to it. The line is called the **residual stream**.
#
# **By hand.** A word has the vector (4, 0) and its neighbour (0, 4). Attention gives both the average, (2, 2).
#
# | | first word | second word |
# |---|---|---|
# | replaced by the average | (2, 2) | (2, 2) |
# | with the average added | (6, 2) | (2, 6) |
#
# In the second row the words have become more alike: their cosine was 0 and is now 0.6. But the difference between
# them is still (4, −4).
#
# In the next figure the plus sign is the only change. The words become alike more slowly, but after twelve layers
# they point nearly the same way after all. Each sublayer adds about half as much as is there already, or more, and
# attention adds much the same to all words. The norm has a part in this, too (section 5).

# %% id="residual-by-hand" tags=["hide-input"]
# Figure: such maps after 0, 1, 4 and 12 layers, with residual connections. Check: the numbers by hand
two = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
average = two.mean(dim=0)
prove("replaced, both words are (2, 2)", average.tolist() == [2, 2])
added = two + average
prove("added, they are (6, 2) and (2, 6)", added.tolist() == [[6, 2], [2, 6]])
prove("their cosine is 0.6 and was 0", abs(token_similarity(added[None]).item() - 0.6) < 1e-6 and two[0] @ two[1] == 0)
prove("their difference stays (4, −4)", (added[0] - added[1]).tolist() == (two[0] - two[1]).tolist() == [4, -4])
with_plus, without = fresh_encoder(), fresh_encoder(residual=False)
same = zip(with_plus.parameters(), without.parameters(), strict=True)
prove("both stacks have the same weights", all(torch.equal(a, b) for a, b in same))
stages = tokens_by_layer(with_plus, eleven)
cosines = {}
for depth in (0, 1, 4, 12):
    units = F.normalize(stages[depth][0], dim=-1)
    cosines[f"after {depth} layers: {token_similarity(stages[depth]).item():.2f}"] = units @ units.T
after_four, after_twelve = token_similarity(stages[4]).item(), token_similarity(stages[12]).item()
prove("0.67 after four layers, 1.00 after twelve", abs(after_four - 0.67) < 0.02 and after_twelve > 0.995)
show(
    plots.words_two_by_two(cosines),
    alt="Four maps of eleven by eleven cosines, with residual connections. From map to map the cells beside the diagonal "
    "get darker. After four layers they are still clearly lighter than the diagonal; after twelve all are dark blue.",
    caption="The same eleven words and the same weights as above, now with residual connections. After four layers the "
    "mean cosine is 0.67. After twelve it is 1.00 to two digits, and the words have become alike after all.",
)

# %% [markdown] id="norms"
# *A good place to stop. You have written the feed-forward network, and you have measured how far the plus sign helps.*
#
# ## 4 Norms
#
# ### 4.1 What grows
#
# Adding has a price: the vectors above had length 4 and grew past 6. Without any norm the numbers grow like compound
# interest, because a sublayer that reads larger numbers also adds larger ones.

# %% id="growth" tags=["hide-input"]
# Count: the size of the numbers in such a stack without norms
no_norm = tokens_by_layer(fresh_encoder(norm="none"), eleven)
for layer in (0, 1, 2, 4, 8, 12):
    size = no_norm[layer].square().mean().sqrt()  # root mean square of all numbers
    print(f"after {layer:2} layers the numbers are about {size:6.1f}")

# %% [markdown] id="layer-norm"
# After twelve layers they are nearly three hundred times as large. Scores made from such numbers would be huge, and a
# softmax over huge scores puts everything on one word (chapter 1).
#
# ### 4.2 LayerNorm
#
# **Layer normalisation**, or **LayerNorm** (Ba et al. 2016), shifts the numbers of one word so that their mean is 0,
# and divides them so that their variance is 1.
#
# **By hand.** A word has the three numbers (1, 2, 6).
#
# - Their mean is (1 + 2 + 6) / 3 = 3.
# - Minus the mean they are (−2, −1, 3).
# - The variance is the mean of the squares: (4 + 1 + 9) / 3 = 4.67. Its root, the standard deviation, is 2.16.
# - Divided by 2.16 they are (−0.93, −0.46, 1.39).

# %% id="layer-norm-drawn" tags=["hide-input"]
# Drawing: the same three numbers as bars
drawings.layer_norm_bars((1, 2, 6)).show()

# %% [markdown] id="layer-norm-formula"
# As a formula, for the vector $x$ of one word:
#
# $$\mathrm{LN}(x) = \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} \odot w + b \qquad
# \mu = \frac1D \sum_d x_d \qquad \sigma^2 = \frac1D \sum_d (x_d - \mu)^2$$
#
# - $\mu$ (mu) is the mean of the D numbers, $\sigma^2$ (sigma squared) their variance.
# - $\varepsilon$ (epsilon) is a tiny number, for example 0.00001, so that nothing is divided by 0.
# - $w$ and $b$ hold D trained numbers each. Those of $w$ start as 1, those of $b$ as 0. $\odot$ multiplies number by
#   number.
#
# Mean and variance are taken over the D numbers of **one word**. So a word learns nothing about other words here, and
# padding changes nothing.

# %% exercise="layer_norm"

# %% [markdown] id="rms-norm"
# ### 4.3 RMSNorm
#
# Llama, T5 and most open models today use a shorter form, **RMSNorm** (Zhang and Sennrich 2019). It does not subtract
# the mean, and it has no $b$. Each number is divided by the **root mean square** of the vector. For (1, 2, 6) it is
# √((1 + 4 + 36) / 3) = 3.70, and the result is (0.27, 0.54, 1.62).

# %% id="norms-check" tags=["hide-input"]
# Check: both norms equal torch's at any scale, and on vectors of mean zero they are the same
x, weight, bias = torch.randn(2, 5, 7), torch.randn(7), torch.randn(7)


def rms_norm(x, weight, eps=1e-6):  # (..., D), (D,) -> (..., D)
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def torch_layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


for scale in (1.0, 0.003, 300.0):
    found = testing.assert_equivalent(layer_norm, torch_layer_norm, scale * x, weight, bias)
    prove(f"layer_norm equals torch's at a scale of {scale:g}, gradients too", found[0] < 1e-4)
normed = layer_norm(x, torch.ones(7), torch.zeros(7))
prove("course_lib's LayerNorm equals it too", torch.allclose(LayerNorm(7)(x), normed, atol=1e-6))
mean, variance = normed.mean(-1), normed.var(-1, correction=0)
prove("a normed token has mean 0 and variance 1", mean.abs().max() < 1e-6 and (variance - 1).abs().max() < 1e-3)
found = testing.assert_equivalent(rms_norm, lambda x, w: F.rms_norm(x, (7,), w, eps=1e-6), x, weight)
prove("rms_norm equals torch's", max(found) < 1e-4)
same = torch.allclose(RMSNorm(7)(x), rms_norm(x, torch.ones(7)), atol=1e-6)
prove("course_lib's RMSNorm equals it too", same)
centred = x - x.mean(-1, keepdim=True)
same = torch.allclose(rms_norm(centred, weight), layer_norm(centred, weight, torch.zeros(7), eps=1e-6), atol=1e-5)
prove("on vectors of mean zero RMSNorm is LayerNorm", same)
three = torch.tensor([1.0, 2.0, 6.0])
hand = (torch.tensor([-0.93, -0.46, 1.39]), torch.tensor([0.27, 0.54, 1.62]))
close = [
    torch.allclose(a.flatten(), b, atol=0.006)
    for a, b in zip(
        (layer_norm(three[None, None], torch.ones(3), torch.zeros(3)), rms_norm(three, torch.ones(3))), hand
    )
]
prove("both by hand", all(close))
sizes = [vectors.square().mean().sqrt().item() for vectors in no_norm]
factors = [above / below for below, above in itertools.pairwise(sizes)]
prove(
    "without a norm the size grows in each layer, nearly 300 times in twelve",
    min(factors) > 1.2 and 270 < sizes[-1] < 300,
)

# %% [markdown] id="place"
# ## 5 Your layer
#
# ### 5.1 Before or after
#
# Where does the norm go? There are two common answers.
#
# **Post-norm** is the order of 2017: first add, then norm the sum. The stack of section 3 was post-norm.
#
# $$x \leftarrow \mathrm{LN}(x + \mathrm{Sublayer}(x))$$

# %% id="post-drawn" tags=["hide-input"]
# Drawing: one post-norm layer
drawings.norm_place("post").show()

# %% [markdown] id="pre"
# **Pre-norm** is the order of most later models, GPT-2 and Llama among them. It norms what the sublayer *reads*, and
# adds the result to the stream.
#
# $$x \leftarrow x + \mathrm{Sublayer}(\mathrm{LN}(x))$$

# %% id="pre-drawn" tags=["hide-input"]
# Drawing: one pre-norm layer
drawings.norm_place("pre").show()

# %% [markdown] id="place-says"
# **By hand.** Take a word (1, −1, 1, −1) and a sublayer that gives (1, 1, −1, −1). The sum is (2, 0, 0, −2).
#
# - Pre-norm leaves the sum as it is. The whole word is still in it.
# - Post-norm norms the sum. Its mean is 0, its variance is (4 + 0 + 0 + 4) / 4 = 2, and the root of 2 is 1.41. So
#   everything is divided by 1.41, the word as well: only 1 / 1.41 = 0.71 of it is left.
#
# Here the sublayer's vector is as long as the word and at right angles to it. If this is so each time, two sublayers
# leave 0.71 · 0.71 = 0.5 of the word, and the 24 sublayers of twelve layers leave less than a thousandth. The rest is
# what the sublayers have added: in a fresh stack, mixtures that are much the same for all words.
#
# In pre-norm the whole word arrives at the top, with everything else added to it. So the stream grows, but what is
# added does not grow with it, because a sublayer reads normed numbers. **One more norm at the end** of the stack
# brings the stream back to size.
#
# ### 5.2 Dropout
#
# The paper's layer also has **dropout**. During training it sets a few numbers of each sublayer's result to 0, at
# random, so that the model cannot rely on any single one. In `eval()` mode it does nothing.
#
# <details><summary>The details of dropout</summary>
#
# Each number is set to 0 with a small probability $p$, and the others are divided by $1 - p$, so that their expected
# size stays what it was. The paper uses $p = 0.1$ on the output of each sublayer before it is added, and on the sum
# of word and position at the bottom.
#
# </details>
#
# ### 5.3 From the formula to a module
#
# The larger parts come ready-made as modules, which hold their own weights. Attention comes from your file, and you
# call it as `attention(x, mask)`. `FeedForward` computes what your `feed_forward` computes: `up` holds $W_1$ and
# $b_1$, and `down` holds $W_2$ and $b_2$. `nn.LayerNorm` does the same as your `layer_norm`.


# %% id="own-feed-forward"
my = so_far(chapter=3)
Attention, Embedding = my.Attention, my.Embedding


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):  # (B, T, D) -> (B, T, D)
        return self.down(self.up(x).relu())


# %% [markdown] id="layer-text"
# Now comes the layer. We take pre-norm, which is more forgiving, as section 8 will show.

# %% exercise="layer"

# %% id="layer-equal" tags=["hide-input"]
# Check: your layer equals PyTorch's, in outputs and gradients; so do the library's, with either place of the norm
theirs = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
own = Layer(64, 4, 256)
pairs = [(own.attention.output, theirs.self_attn.out_proj), (own.feed_forward.up, theirs.linear1)]
pairs += [(own.feed_forward.down, theirs.linear2), (own.first_norm, theirs.norm1), (own.second_norm, theirs.norm2)]
for mine, other in pairs:
    mine.load_state_dict(other.state_dict())
attention = own.attention
for part, weight, bias in zip(
    (attention.query, attention.key, attention.value),
    theirs.self_attn.in_proj_weight.chunk(3),
    theirs.self_attn.in_proj_bias.chunk(3),
):
    part.load_state_dict({"weight": weight, "bias": bias})
x, everything = torch.randn(2, 10, 64), torch.ones(2, 1, 1, 10, dtype=torch.bool)
found = testing.assert_equivalent(lambda x: own(x, everything), theirs, x)
prove("your layer, with PyTorch's weights, equals PyTorch's layer", max(found) < 1e-4)
full = FeedForward(3, 12)
full.load_state_dict({"up.weight": W_1.T, "up.bias": b_1, "down.weight": W_2.T, "down.bias": b_2})
given = torch.randn(2, 5, 3)
same = torch.allclose(full(given), feed_forward(given, W_1, b_1, W_2, b_2), atol=1e-5)
prove("the module FeedForward gives what feed_forward gives", same)
word, other_part = torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([1.0, 1.0, -1.0, -1.0])
left = F.layer_norm(word + other_part, (4,)) @ word / (word @ word)
prove("by hand: 0.71 of the word is left, and half as much in squares", abs(left - 0.5**0.5) < 1e-4)
prove("after 24 sublayers less than a thousandth", 0.5**12 < 0.001)
worst = 0.0
for norm_first in (False, True):
    for activation in ("relu", "gelu"):
        torch.manual_seed(0)
        switches = {"activation": activation, "norm_first": norm_first}
        theirs = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, **switches)
        worst = max(worst, *testing.assert_equivalent(EncoderLayer.from_torch(theirs), theirs, x))
    norm = nn.LayerNorm(64) if norm_first else None
    stack = nn.TransformerEncoder(theirs, 3, norm=norm, enable_nested_tensor=False)
    worst = max(worst, *testing.assert_equivalent(TransformerEncoder.from_torch(stack), stack, x))
prove("EncoderLayer and TransformerEncoder equal PyTorch's, both norm places, ReLU and GELU", worst < 1e-4)
ends = {}
for name in ("post", "pre"):
    output = tokens_by_layer(fresh_encoder(norm_place=name), eleven)[-1]
    ends[name] = (F.layer_norm(output, (64,)) - output).abs().max().item()
prove(
    "after post-norm layers a final norm changes next to nothing, after pre-norm layers a lot",
    ends["post"] < 1e-4 and ends["pre"] > 1,
)
with record_weights(EncoderLayer.from_torch(theirs)) as maps:
    output = EncoderLayer.from_torch(theirs)(torch.randn(4, 20, 64))
print("4 sentences of 20 tokens go in and come out as", tuple(output.shape))

# %% [markdown] id="order-of-parts"
# *A good place to stop. You have written a layer, and with the same weights it gives what PyTorch's own layer gives.*
#
# ## 6 Your encoder
#
# ### 6.1 From sentences to vectors
#
# Words come in as numbers, their **ids**. The `Embedding` of your file from chapter 3 holds a trained vector for each
# word, and another one for each position.
#
# A batch is one table of numbers. So short sentences are filled up with `[PAD]`, a sign that means nothing, and the
# **padding mask** keeps every word from looking at it. Its shape is (B, 1, 1, T): a row for each sentence, the same
# for all heads and for every word that looks. In front of each sentence stands `[CLS]`, where the model can gather
# what it has understood.

# %% id="padded-drawn" tags=["hide-input"]
# Drawing: two sentences in one table, and the mask
drawings.sentences_in_a_table().show()

# %% [markdown] id="own-encoder-text"
# An encoder has no *causal* mask, so each word may look left and right. The padding mask is the only one.

# %% id="signs"
PAD, CLS, MASK = 0, 1, 2  # [MASK] is for section 9

# %% exercise="encoder"

# %% [markdown] id="own-equal-text"
# We copy your encoder's weights into the library's encoder, and compare outputs and gradients. Then comes the *leak
# test*: a sentence must get the same vectors alone and in a batch with a longer one.

# %% id="own-equal" tags=["hide-input"]
# Check: with the same weights, course_lib's encoder gives the same outputs and gradients; padding does not leak
torch.manual_seed(0)
mine = Encoder(n_words=11)
config = TransformerConfig(
    d_model=32, n_heads=4, n_encoder_layers=2, vocab_size=11, max_length=20, positions="learned",
    norm_place="pre", dropout=0.0, scale_embeddings=False,
)  # fmt: skip
names = {
    "first_norm": "self_attention_residual.norm", "second_norm": "feed_forward_residual.norm",
    ".attention.": ".self_attention.", "embedding.word": "0.tokens", "embedding.position": "0.positions",
}  # fmt: skip


def renamed(tensors):
    """The names of the library for ours; queries, keys and values joined as there."""
    found = {}
    for name, tensor in tensors.items():
        for ours, library in names.items():
            name = name.replace(ours, library)
        name = name if name.startswith("0.") else "1." + name.replace("norm.", "final_norm.", name.startswith("norm."))
        found[name] = tensor
    for stem in {name.rsplit("query", 1)[0] for name in found if ".query." in name}:
        for kind in ("weight", "bias"):
            found[f"{stem}qkv.{kind}"] = torch.cat(
                [found.pop(f"{stem}{part}.{kind}") for part in ("query", "key", "value")]
            )
    return found


library = nn.ModuleList([LibraryEmbedding(config, 11), TransformerEncoder(config)])
library.load_state_dict(renamed(mine.state_dict()))
ids = torch.randint(3, 11, (5, 9))
ids[:, 0], ids[1, 6:], ids[2, 4:] = CLS, PAD, PAD
here = mine(ids)
there = library[1](library[0](ids), mask=masks.padding_mask(ids, PAD))
output_gap = (here - there).abs().max().item()
direction = torch.randn(here.shape)
(here * direction).sum().backward()
(there * direction).sum().backward()
own = renamed({name: weight.grad for name, weight in mine.named_parameters()})
gradient_gap = max((own[name] - weight.grad).abs().max().item() for name, weight in library.named_parameters())
prove("your encoder gives the outputs of course_lib's", output_gap < 1e-4)
prove("and the same gradients at every weight", gradient_gap < 1e-3)
short = mine(ids[2:3, :4])
leak = (short - here[2:3, :4]).abs().max().item()
prove("a sentence alone and in a padded batch has the same vectors", leak < 1e-5)
print(f"leak test: alone and in the batch its vectors differ by {leak:.4f}")

# %% [markdown] id="own-classifier-text"
# ### 6.2 From an encoder to a classifier
#
# The encoder gives one vector for each word, but a classifier needs one for the whole sentence. BERT (Devlin et al.
# 2019) takes the vector at `[CLS]`. A linear map, the **head** of the classifier, turns it into one number for each
# answer. It has nothing to do with the heads of attention. Another way is to take the mean of the vectors at all
# positions except `[PAD]`.
#
# <details><summary>Two traps of [CLS]</summary>
#
# Before training for a task, the vector at `[CLS]` says little: BERT's was worse at comparing sentences than a mean
# of plain word vectors (Reimers and Gurevych 2019, table 1). And some programs fill sentences up in front. Then
# position 0 holds `[PAD]`, and `[CLS]` stands further to the right.
#
# </details>

# %% id="encoder-drawn" tags=["hide-input"]
# Drawing: the whole classifier
drawings.encoder_reads().show()

# %% exercise="classifier"

# %% [markdown] id="task"
# ## 7 A task that counting words cannot do
#
# ### 7.1 Does the last word fit?
#
# Your encoder gets a task in which the order of the words decides. A sentence names two to four people. The subject
# is the only one without a *near* of its own. The last word is *herself*, *himself* or *themselves*, and the question is:
# **does the last word fit the subject?**

# %% id="task-drawn" tags=["hide-input"]
# Drawing: a right and a wrong sentence
drawings.same_words().show()

# %% id="task-data"
train_sentences, train_right = judged_sentences(2000, random.Random(0))  # pairs
test_sentences, test_right = judged_sentences(600, random.Random(1))  # we keep 500
for sentence, right in zip(train_sentences[:4], train_right):
    print("right:" if right else "wrong:", " ".join(sentence))

# %% id="task-unseen" tags=["hide-input"]
# Check: test sentences that occur in training are left out, with their partners; each pair has the same words
known = {tuple(sentence) for sentence in train_sentences}
keep = [i for i in range(0, 1200, 2) if not known & {tuple(test_sentences[i]), tuple(test_sentences[i + 1])}][:500]
test_sentences = [test_sentences[i + j] for i in keep for j in (0, 1)]
test_y, train_y = torch.tensor([1, 0] * len(keep)), torch.tensor(train_right)
same = all(Counter(a) == Counter(b) for a, b in zip(test_sentences[::2], test_sentences[1::2]))
prove("no test sentence was in training", not known & {tuple(sentence) for sentence in test_sentences})
prove("the two sentences of a pair have the same words", same)
print(f"{len(train_sentences)} sentences to learn from")
print(f"{len(keep)} pairs for the test, none of them seen in training: {len(test_sentences)} sentences")

# %% [markdown] id="task-fair"
# The sentences come in pairs: two people have changed places, and so a right sentence has become a wrong one. Both
# have exactly the same words. So a method that only **counts words** is right exactly half of the time.
#
# Now the sentences become ids. Their answers are in `train_y` and `test_y`: 1 for right, 0 for wrong.

# %% id="encode"
words = ["[PAD]", "[CLS]", "[MASK]", *JUDGED_WORDS]
number = {word: i for i, word in enumerate(words)}


def encode(sentences):  # lists of words -> ids (B, T)
    rows = [torch.tensor([CLS] + [number[word] for word in s]) for s in sentences]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


train_x, test_x = encode(train_sentences), encode(test_sentences)
print(tuple(train_x.shape), train_x[0].tolist())

# %% [markdown] id="train-text"
# Next comes a training loop. Each step draws 64 sentences at random, computes the loss, and changes the weights. The loss,
# `cross_entropy`, is minus the logarithm of the probability that the model gives to the right answer. Chapter 6 explains
# `AdamW`, and `OneCycleLR`, which varies the **learning rate**: how far each step moves the weights.


# %% id="train"
def train(model, loss_of, n_sentences, steps, rate=3e-3, batch=64):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(steps):
        loss = loss_of(torch.randint(n_sentences, (batch,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


@torch.no_grad()
def accuracy(model, x, y):
    return (model(x).argmax(dim=-1) == y).float().mean().item()


# %% [markdown] id="own-start-text"
# Training starts from random weights, and their size matters. PyTorch's own are so small that a map from D to D
# numbers leaves a vector only about 0.6 as long, and with them two of five seeds learned nothing here. `fresh` draws
# larger ones by *Xavier's rule* (Glorot and Bengio 2010), which keeps the length. With these all five seeds learned.


# %% id="own-start" tags=["hide-input"]
# Helper: starting weights by Xavier's rule, and biases of 0
def fresh(model):
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)
    return model


# %% [markdown] id="predict-task-text"
# **Predict.** How often will your encoder be right on new sentences, after 600 steps? And a small network that gets the
# counts of all pairs of neighbouring words? A guess is right half of the time.

# %% id="predict-task"
ex.predict("encoder_and_pairs", "")

# %% id="trained" tags=["atol:0.04"]
torch.manual_seed(0)
judge = fresh(Classifier(Encoder(len(words))))
train(judge, lambda i: F.cross_entropy(judge(train_x[i]), train_y[i]), 4000, steps=600)
print(f"share judged correctly: {accuracy(judge, test_x, test_y):.3f}")

# %% [markdown] id="baselines-text"
# ### 7.2 Against simple rivals
#
# The rivals only count pairs or triples of neighbouring words. The counts go into a linear map, or into a network
# with 64 inner numbers. Each method was run with five seeds, at the better of two learning rates.

# %% id="baselines" tags=["hide-input"]
# Figure: the encoder and methods that count, recorded
record = claim("far_subject")
rivals = [record.range(arm, "accuracy") for arm in list(record.arms)[1:]]
ahead = record.range("encoder", "accuracy")[0] > max(high for _, high in rivals)
prove("with every seed the encoder is ahead of every rival", ahead)
prove("and makes no mistake", record.range("encoder", "accuracy")[0] == 1)
wrong = "the old girls near the old woman near the old queen heard herself".split()
right = "the old woman near the old girls near the old queen heard herself".split()
runs = [Counter(tuple(said[i : i + n]) for n in (1, 2, 3) for i in range(len(said) - n + 1)) for said in (wrong, right)]
prove("a wrong and a right sentence with the same words, pairs and triples", runs[0] == runs[1])
show(
    record.figure(),
    alt=record.alt(),
    caption="New sentences, five seeds; the better rate was chosen on these sentences, too. Counts of pairs and triples "
    f"help a network a lot and a linear map hardly at all. The encoder makes no mistake. ({record.command})",
)

# %% [markdown] id="baselines-say"
# This is a larger form of section 2's question: do two facts match? No linear map answers it. On triples it reaches
# 0.60, because the last triple, such as *queen saw herself*, holds the person before the verb and the last word. Where
# this person fits, the sentence is more often **wrong**: it is the subject in only one sentence of seven, and the
# exchange has often put the former subject there, who fits.
#
# A network on counts gets to 0.87 at most. In *the old queen near the tall king saw herself*, the pair *queen near*
# gives the subject away, because no other person stands before *near*. But *the old girls near the old woman near the
# old queen heard herself* is wrong. Exchange *girls* and *woman*, and it becomes right, while all pairs and triples
# stay the same.
#
# <details><summary>Could counting do it after all?</summary>
#
# Yes, for someone who knows beforehand which pair to count: each person with the word three positions before. In
# *near the old king* that word is *near*. These pairs hold all that is needed. Nobody told the encoder about them.
#
# </details>
#
# Does the encoder really use the subject? First we hide the subject from every word, then one of the other people.


# %% id="hide-person" tags=["hide-input", "atol:0.1"]
# Count: the test with the subject hidden, or another person
def persons(sentence):
    """Where the subject stands, and where the others do."""
    found = [i for i, word in enumerate(sentence) if word in REFLEXIVE_OF]
    subject = next(i for i in found if i < 3 or sentence[i - 3] != "near")
    return subject, [i for i in found if i != subject]


def hiding(subject):
    """The padding mask (B, 1, 1, T) without the subject of each sentence, or without its first other person."""
    mask = test_x != PAD
    for row, sentence in enumerate(test_sentences):
        who, others = persons(sentence)
        mask[row, (who if subject else others[0]) + 1] = False  # [CLS] stands at 0
    return mask[:, None, None]


@torch.no_grad()
def right_with(mask):
    x = judge.encoder.embedding(test_x)
    for layer in judge.encoder.layers:
        x = layer(x, mask)
    found = judge.head(judge.encoder.norm(x)[:, 0]).argmax(dim=-1)
    return (found == test_y).float().mean().item()


for name, mask in (
    ("nobody hidden", (test_x != PAD)[:, None, None]),
    ("the subject hidden", hiding(True)),
    ("another person hidden", hiding(False)),
):
    print(f"{name:>21}: {right_with(mask):.2f} of the answers right")
who_where = [persons(sentence) for sentence in test_sentences]
last = sum(who > max(others) for who, others in who_where) / len(who_where)  # the subject stands right before the verb
prove("in six of seven sentences the person before the verb is not the subject", abs(1 - last - 6 / 7) < 0.03)

# %% [markdown] id="hide-says"
# Without the subject the judge can only guess. With another person hidden it is as good as before.
#
# *A good place to stop. You have built an encoder and trained it, and it judges sentences by their subject.*

# %% [markdown] id="mend-text"
# ### 7.3 An encoder that leaks
#
# A second evening can start with an encoder that fails the leak test of section 6.

# %% exercise="mend_reader"

# %% [markdown] id="uses"
# ## 8 Twelve layers: which weights stop learning
#
# Our judge has two layers, and BERT has twelve. Can you stack yours as high as you like? A weight learns from its
# **gradient**, which says how much the loss changes if the weight changes a little. People say that without residual
# connections the gradients vanish. Which ones?
#
# Without residuals all words soon become one vector. Take two words there, both with the same value, say 3. A word of
# the next layer that reads them with the weights 0.5 and 0.5 gets 3. With 0.9 and 0.1 it gets 2.7 + 0.3, which is 3
# again. **If all words are alike, it makes no difference where you look.**
#
# The queries and keys decide where to look. Change their matrices, and the output stays the same, so their gradient
# is zero. The other weights decide *what* is passed on, and that still matters.
#
# **Predict.** We take twelve fresh layers without residuals, with post-norm, and with pre-norm. In the first stack
# the queries and keys at the top should get no gradient. In which of the other two is their gradient larger?

# %% id="predict-gradients"
ex.predict("who_learns_where_to_look", "")

# %% id="gradients-everywhere" tags=["hide-input", "picture:10"]
# Figure: gradients at all weights of twelve fresh layers, five draws
KINDS = {"queries and keys": palette.query, "values and output": palette.value, "feed-forward": palette.residual}


def gradients(encoder, seed):
    """For each kind of weights the size of the gradient in each layer, for one direction at the output."""
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(1, 11, 64, generator=generator)
    end = encoder(x)
    direction = torch.randn(end.shape, generator=generator)
    (end * direction).sum().backward()

    def size(*parts):
        return math.sqrt(sum(part.square().sum().item() for part in parts)) / direction.norm().item()

    rows = {kind: [] for kind in KINDS}
    for layer in encoder.layers:
        attention, network = layer.self_attention, layer.feed_forward
        rows["queries and keys"].append(size(attention.qkv.weight.grad[:128]))
        rows["values and output"].append(size(attention.qkv.weight.grad[128:], attention.output.weight.grad))
        rows["feed-forward"].append(size(network.up.weight.grad, network.down.weight.grad))
    return rows, token_similarity(end.detach()).item()


ARMS = {
    "no residual, norms": lambda seed: fresh_encoder(seed=seed, residual=False),
    "post-norm": lambda seed: fresh_encoder(seed=seed),
    "pre-norm": lambda seed: fresh_encoder(seed=seed, norm_place="pre"),
}
measured = {name: [gradients(make(seed), seed) for seed in range(5)] for name, make in ARMS.items()}
show(
    plots.gradients_by_layer({name: [rows for rows, _ in draws] for name, draws in measured.items()}, KINDS),
    alt="Three panels, gradient by layer on a log scale, three lines each. Without residuals the line of queries and keys "
    "falls below a millionth by layer four or five, while the other two stay above one. Post-norm: queries and keys fall "
    "slowly to about a hundredth at layer 12. Pre-norm: all lines stay between a tenth and a few tens.",
    caption="Twelve fresh layers, five draws (band: least to greatest; values below a millionth are drawn at the bottom). "
    "Without residuals the queries and keys get next to nothing from the fourth or fifth layer on; the other weights get "
    "a gradient in every layer. There is no task yet: the loss is the sum of all outputs, each times a fixed random number.",
)
bare = [rows for rows, _ in measured["no residual, norms"]]
lost = max(rows["queries and keys"][-1] for rows in bare)
kept = min(min(rows[kind]) for rows in bare for kind in list(KINDS)[1:])
prove("without residuals, queries and keys of layer 12 get no gradient", lost < 1e-4)
prove("values and feed-forward get one in every layer", kept > 0.1)
ends = {name: [similarity for _, similarity in draws] for name, draws in measured.items()}
prove("post-norm ends above 0.98", min(ends["post-norm"]) > 0.98)
prove("pre-norm ends between 0.6 and 0.9", min(ends["pre-norm"]) > 0.6 and max(ends["pre-norm"]) < 0.9)
last = {name: sorted(rows["queries and keys"][-1] for rows, _ in draws)[2] for name, draws in measured.items()}
prove("about 0.01 in post-norm and 0.2 in pre-norm", last["post-norm"] < 0.015 and 0.1 < last["pre-norm"] < 0.3)

# %% [markdown] id="gradients-say"
# What vanishes without residuals is the chance to learn **where to look**.
#
# With residuals the blue line falls less, and the words end less alike than without. In post-norm each sublayer adds
# a large part of what is there (section 3.2), and the mean cosine ends above 0.98. In pre-norm the stream outgrows what
# is added, and the cosine ends at about 0.8.
#
# Does training repair this? Each stack, now with positions and with F = D, reads six letters, such as *c a f f b e*,
# and has to write them backwards: *e b f f a c*.

# %% id="record-agrees" tags=["hide-input"]
# Figure: how well the stacks learn to write six letters backwards, recorded
record = claim("deep_reversal")
reached = {arm: record.range(arm, "accuracy") for arm in record.arms}  # at the better rate of each
prove("12 layers without residuals stay below 0.25, where guessing gives 0.125", reached["no residual"][1] < 0.25)
stuck = (reached["post-norm"], reached["post-norm, 100 steps of warm-up"])
prove("12 post-norm layers stay near 0.36, with warm-up or not", min(stuck)[0] > 0.3 and max(stuck)[1] < 0.4)
guesses = sorted(record.values("no residual", "accuracy"))
prove("without residuals three seeds guess, the best has 0.23", guesses[2] < 0.13 and round(guesses[-1], 2) == 0.23)
high = [record.range(arm, "accuracy", 3e-3) for arm in list(record.arms)[3:5]]
high = [[round(one, 2) for one in found] for found in high]
prove("at the higher rate 0.12 to 0.20, with warm-up 0.33 to 0.36", high == [[0.12, 0.2], [0.33, 0.36]])
prove("12 pre-norm layers with the same weights learn it", reached["pre-norm"][0] > 0.9)
prove("and so do 12 post-norm layers with smaller ones", reached["post-norm, small weights"][0] > 0.9)
draws = torch.randint(8, (20000, 6), generator=torch.Generator().manual_seed(0))
most = F.one_hot(draws, 8).sum(dim=1).amax(dim=1).float().mean().item() / 6
prove("the letter that occurs most often is right in about 0.36", abs(most - 0.36) < 0.01)
theirs, ours = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), fresh_encoder(1).layers[0]
pairs = ((theirs.self_attn.out_proj, ours.self_attention.output), (theirs.linear2, ours.feed_forward.down))
ratios = [(their.weight.std() / our.weight.std()).item() for their, our in pairs]
with torch.random.fork_rng(), torch.no_grad():
    quiet = tokens_by_layer(fresh_encoder(init="normal"), eleven)[-1]
    prove("12 post-norm layers with small weights keep words apart", token_similarity(quiet) < 0.2)
    x, xavier, plain = torch.randn(1000, 64), fresh(nn.Linear(64, 64)), nn.Linear(64, 64)
    kept = [(part(x).std() / x.std()).item() for part in (xavier, plain)]
    prove("Xavier keeps the size, torch's start makes it 0.6", abs(kept[0] - 1) < 0.1 and abs(kept[1] - 0.6) < 0.05)
prove("torch draws what its sublayers write with about half as large", all(0.4 < ratio < 0.65 for ratio in ratios))
arms = {
    "without residuals": "no residual",
    "post-norm": "post-norm",
    "post-norm, warm-up": "post-norm, 100 steps of warm-up",
    "pre-norm": "pre-norm",
    "post-norm, small starting weights": "post-norm, small weights",
}
show(
    common.dot_rows(
        {name: record.values(arm, "accuracy") for name, arm in arms.items()},
        levels={"a guess": 1 / 8, "always the commonest of the six": most},
        size=(6.6, 2.9),
        xlim=(0, 1.05),
        xlabel="letters right, a dot for each of five seeds",
    ),
    alt="Five rows of five dots: the share of letters that are right. Without residuals: 0.12 to 0.23. Post-norm, with "
    "warm-up or without: all near 0.36. Pre-norm: 0.98 to 0.99. Post-norm with small starting weights: 1.00.",
    caption="Twelve layers, eight kinds of letters, 300 steps, or fewer once the task is learned, the better of two rates. "
    "Without residuals three of five seeds only guess, and the best gets 0.23. Post-norm, with warm-up or without, is no "
    "better than someone who names the commonest of the six letters everywhere. Pre-norm learns the task, and so does post-norm if its "
    f"weights start small. ({record.command})",
)

# %% [markdown] id="deep-says"
# Of our three stacks only pre-norm has learned the task. Post-norm's score is that of someone who is told *which*
# letters there are, but not *where*. We tried two cures. With a **warm-up** the learning rate starts near 0 and rises
# during the first 100 steps. At the better of two rates it changes nothing in 300 steps: the score stays near 0.36.
#
# Starting weights as **small** as BERT's (standard deviation 0.02) do cure it. For square matrices Xavier's rule gives
# 0.125 at our width of 64, and 0.036 at BERT's 768. With small weights each sublayer adds little at first, the norm
# takes little of the old word away, and the words stay apart.
#
# The lab on [depth](labs/04_depth.ipynb) takes these causes apart.
#
# <details><summary>Evidence: two rates, and a name for what happens</summary>
#
# The rates were 0.001 and 0.003, with five seeds each. At 0.003 the warm-up lifts post-norm from at most 0.20 to
# about 0.35, but at 0.001 it gets there without. So the warm-up allowed a higher rate, and did no more than that.
# PyTorch's own layer draws its matrices smaller than Xavier's rule, too. Smaller is not always better: the two
# pre-norm layers of section 7 did better with larger ones.
#
# That all words become alike is called *rank collapse*: a table whose rows are all the same has rank 1 (Dong et al.
# 2021). Noci et al. (2022) work out what it does to the gradients.
#
# </details>

# %% [markdown] id="read"
# ## 9 Read first, learn the labels later
#
# Our judge learned from 4000 labelled sentences. Labels cost time, but text is everywhere. Can the encoder learn from
# text alone?
#
# BERT learned by filling in gaps (Devlin et al. 2019). Some words are hidden behind the sign `[MASK]`, and the
# encoder has to name them from what stands to the left and to the right. This is **masked-language pre-training**. To
# fill the gap in *the tall queen near the king saw [MASK]*, the encoder has to find the subject.

# %% id="hidden-words-drawn" tags=["hide-input"]
# Drawing: hidden words, and who names them
drawings.hidden_words(["[CLS]", *"the tall queen near the king saw herself".split()], (4, 8)).show()

# %% [markdown] id="hide-text"
# We hide one word in five, and the loss counts only there. Our text consists of the right sentences of section 7.
# `read_text` uses the head of a `Classifier` at each hidden word, not at `[CLS]`.


# %% id="hide"
def hide(ids, share=0.2):
    hidden = (torch.rand(ids.shape) < share) & (ids > MASK)  # words only, no signs
    return ids.masked_fill(hidden, MASK), hidden


def read_text(text, steps=1000):
    model = fresh(Classifier(Encoder(len(words)), n_answers=len(words)))

    def loss_of(rows):
        shown, hidden = hide(text[rows])
        vectors = model.encoder(shown)[hidden]  # (B, T, D) -> (hidden words, D)
        return F.cross_entropy(model.head(vectors), text[rows][hidden])

    train(model, loss_of, len(text), steps)
    return model.encoder


# %% [markdown] id="control-text"
# Then we put a new head on the encoder and train it on only **100** labelled sentences. This is called
# **fine-tuning**.
#
# If reading helps, has the encoder understood something, or does it only know the words better? To find out we need a
# **control**: a text that lacks only one thing. We take the right sentences and exchange their last words at random.
# Each word occurs as often as before, but the last word says nothing about the subject.
#
# **Predict.** With 100 labels, how often will the judge be right after reading nothing, right sentences, or the
# control?

# %% id="predict-read"
ex.predict("read_first_three_ways", "")

# %% id="read-first" tags=["atol:0.2"]
right_text = train_x[100:][train_y[100:] == 1]  # the first 100 will get their labels
control, rows = right_text.clone(), torch.arange(len(right_text))
last = (right_text != PAD).sum(dim=1) - 1  # the position of the last word
control[rows, last] = right_text[rows, last][torch.randperm(len(rows))]


def fine_tune(encoder):
    model = Classifier(encoder)

    def loss_of(i):
        return F.cross_entropy(model(train_x[i]), train_y[i])

    train(model, loss_of, 100, steps=150, batch=32)
    return accuracy(model, test_x, test_y)


torch.manual_seed(0)
print(f"nothing read: {fine_tune(fresh(Encoder(len(words)))):.2f} right")
print(f"right sentences: {fine_tune(read_text(right_text)):.2f} right")
print(f"the control: {fine_tune(read_text(control)):.2f} right")

# %% id="read-first-recorded" tags=["hide-input"]
# Figure: what reading first is worth with 100 labels, recorded
record = claim("read_first_dealt")
nothing, right, dealt = (record.values(arm, "accuracy") for arm in record.arms)
prove("after right sentences it is right in more than 0.8, with every seed", min(right) > 0.8)
prove("and more than 0.2 ahead of the control, seed by seed", all(a > b + 0.2 for a, b in zip(right, dealt)))
high = sorted(dealt)[3:]
prove("the other two reach 0.62 and 0.76", [round(one, 2) for one in high] == [0.62, 0.76])
prove("after nothing it guesses; after the control too, but for two seeds", max(nothing) < 0.55 > sorted(dealt)[2])
means = [round(sum(part) / len(part), 2) for part in (nothing, dealt, right)]
prove("on average 0.52 after nothing, 0.59 after the control, 0.92 after right sentences", means == [0.52, 0.59, 0.92])
rows = {"nothing": nothing, "the control": dealt, "right sentences": right}
show(
    common.dot_rows(rows, size=(6.6, 2.2), xlabel="right on new sentences, a dot for each of five seeds"),
    alt="Three rows of five dots, the share of new sentences judged correctly. Nothing: 0.49 to 0.54. The control: 0.49 to "
    "0.76. Right sentences: 0.81 to 0.96.",
    caption="What was read first, then 100 labels, at the better of two rates. Reading right sentences helps a lot. The "
    "same sentences with their last words shuffled barely help with three seeds; the other two reach 0.62 and 0.76. "
    f"The run above had other sentences, and only one rate. ({record.command})",
)

# %% [markdown] id="read-first-says"
# The judge is right 52% of the time on average after reading nothing, 59% after the control, and 92% after right
# sentences. So most of the gain comes from the one thing that the control lacks: last words that fit. **A hundred
# labels alone teach this encoder next to nothing. After it has filled gaps in right sentences, they teach it most of
# the task.**
#
# <details><summary>Evidence: five seeds, two rates, one control</summary>
#
# The better rate of fine-tuning for each text, on 1000 new sentences: 0.49 to 0.54 after nothing, 0.81 to 0.96 after
# right sentences, 0.49 to 0.76 after the control, which is behind the right sentences by at least 0.2 with
# each seed. With three of the five seeds the control helps little or nothing,
# with one it reaches 0.62, with one 0.76, perhaps because it shows how sentences are built. This is one small task with
# 100 labels and 1000 steps of reading.
#
# </details>
#
# *A good place to stop. Your encoder has learned from right sentences, and then needed only 100 labels.*

# %% [markdown] id="whose-line-text"
# ## 10 Whose line is it?
#
# So far a program made up the sentences. Now come real lines by Shakespeare, spoken by Romeo, who is in love, and by
# Menenius, an old politician of Rome. A fresh encoder of yours says whose they are. The lines of the test come from
# speeches that it never saw.
#
# In the code, `lexicon` lists the words that the encoder knows, and lines are cut at `LONGEST` = 16 ids.

# %% id="lines-data" tags=["hide-input"]
# Lines of two speakers, those of four fifths of their speeches to learn from; a word is known if it occurs five times
LONGEST, UNKNOWN = 16, 3
everything = [re.findall(r"[a-z']+", line.lower()) for _, lines in speeches() for line in lines]
counts = Counter(word for line in everything for word in line)
lexicon = ["[PAD]", "[CLS]", "[MASK]", "[UNKNOWN]", *sorted(word for word in counts if counts[word] >= 5)]
id_of = {word: i for i, word in enumerate(lexicon)}


def encode_lines(lines):  # texts -> ids (B, T)
    rows = [[id_of.get(word, UNKNOWN) for word in re.findall(r"[a-z']+", line.lower())] for line in lines]
    rows = [torch.tensor([CLS, *row][:LONGEST]) for row in rows]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def lines_of(who, seed=0):
    """ids and answers to learn from, then the same for the test"""
    parts, draw = ([], []), random.Random(seed)
    for answer, name in enumerate(who):
        own = [lines for speaker, lines in speeches() if speaker == name]
        draw.shuffle(own)
        for number, lines in enumerate(own):
            kept = [(line, answer) for line in lines if len(line.split()) >= 4]
            parts[5 * number >= 4 * len(own)].extend(kept)
    return [
        part for pairs in parts for part in (encode_lines([a for a, _ in pairs]), torch.tensor([b for _, b in pairs]))
    ]


# %% id="lines"
who = ("ROMEO", "MENENIUS")  # or ("JULIET", "GLOUCESTER"), ("PETRUCHIO", "LEONTES")
line_x, line_y, new_x, new_y = lines_of(who)
print(f"{len(line_x)} lines to learn from, {len(new_x)} new ones; {len(lexicon)} words")

# %% [markdown] id="lines-predict-text"
# **Predict.** How often will your encoder be right on new lines? And a linear map that counts words?

# %% id="predict-lines"
ex.predict("whose_line", "")

# %% id="lines-trained" tags=["atol:0.08"]
torch.manual_seed(0)
encoder = Encoder(len(lexicon), max_length=LONGEST, d_model=64, dropout=0.1)
reader = fresh(Classifier(encoder, d_model=64))


def loss_of(i):
    return F.cross_entropy(reader(line_x[i]), line_y[i])


train(reader, loss_of, len(line_x), steps=150, rate=1e-2)
reader.eval()  # nothing is dropped any more
print(f"share of new lines named correctly: {accuracy(reader, new_x, new_y):.2f}")
print(f"always naming the same speaker: {new_y.bincount().max() / len(new_y):.2f}")

# %% id="lines-recorded" tags=["hide-input"]
# Figure: your encoder and a linear map of word counts, five splits, recorded
record = claim("whose_line")
low = {arm: record.range(arm, "accuracy")[0] for arm in record.arms}
pair = ("ROMEO", "MENENIUS")
always = [(lines_of(pair, seed)[3] == 0).float().mean().item() for seed in range(5)]
always = [max(share, 1 - share) for share in always]
prove("naming the same speaker is right in 0.53 to 0.66", [round(f(always), 2) for f in (min, max)] == [0.53, 0.66])
prove("both are better than that, with each of five seeds", min(low.values()) > max(always) + 0.05)
ahead = [a - b for a, b in zip(*(record.values(arm, "accuracy") for arm in record.arms))]
prove("the encoder is ahead by 0.003 to 0.016", [round(f(ahead), 3) for f in (min, max)] == [0.003, 0.016])
rows = {"encoder": "encoder", "linear map of word counts": "words counted, linear"}
show(
    common.dot_rows(
        {name: record.values(arm, "accuracy") for name, arm in rows.items()},
        size=(6.6, 1.9),
        joined=True,
        xlabel="right on new lines, a dot for each of five splits",
    ),
    alt="Two rows of five dots, the share of new lines named correctly, with a line from dot to dot for each split. Encoder: "
    "0.73 to 0.80. Linear map of word counts: 0.72 to 0.79, each time a little to the left of the encoder.",
    caption="Each of five splits keeps other speeches for the test and leaves 811 to 914 lines to learn from; a pale line "
    "joins the two results on the same split. Each model has the better of two rates. Always naming the same speaker would "
    f"be right 53% to 66% of the time at best. ({record.command})",
)

# %% [markdown] id="lines-say"
# Your encoder names the right speaker for about three lines in four. The linear map, which knows nothing of the
# order, is about as good: 0.003 to 0.016 behind, with rates that were chosen on these same lines. In section 7 the
# order decided. Here the words alone tell you most of it. **Which model is better is a question about the data**, so
# always try the simple rival too.
#
# ## 11 Your model reads
#
# Your feed-forward network, layer, encoder and classifier go into `my_transformer.py`. Its classifier loads the
# weights that you have just trained. Now type a line of your own. Words outside the lexicon become `[UNKNOWN]`. The
# model will sound sure, although it is wrong about one new line in four.

# %% id="thread" tags=["atol:0.2"]
my = so_far(chapter=4)
mine = my.Classifier(my.Encoder(len(lexicon), LONGEST, d_model=64), d_model=64).eval()
mine.load_state_dict(reader.state_dict())
my_line = "my love is like the stars of night"  # write a line of your own
for line in (my_line, "the people ask for bread and corn"):
    share = mine(encode_lines([line])).softmax(dim=-1)[0, 0].item()
    print(f"{line}: {who[0]} {share:.2f}, {who[1]} {1 - share:.2f}")

# %% [markdown] id="what-you-have"
# ## 12 What you have
#
# ### You can now
#
# - say what each part of a layer is for, and show it with numbers on paper;
# - write a layer, an encoder and a classifier, and train them on sentences with real labels;
# - find the places where padding leaks in, and say which weights stop learning without residuals;
# - compare a model with rivals that count, and choose a control.
#
# <details><summary>The formulas on one card</summary>
#
# | what | formula | section |
# |---|---|---|
# | feed-forward | max(0, x W₁ + b₁) W₂ + b₂, each word alone | 2 |
# | residual connection | x ← x + Sublayer(x) | 3 |
# | LayerNorm | (x − μ) / √(σ² + ε) ⊙ w + b, over the D numbers of a word | 4.2 |
# | RMSNorm | x / √(mean of x² + ε) ⊙ w | 4.3 |
# | post-norm layer | x ← LN(x + Attention(x)); x ← LN(x + FFN(x)) | 5 |
# | pre-norm layer | x ← x + Attention(LN(x)); x ← x + FFN(LN(x)); one norm at the end of the stack | 5 |
# | weights of a layer | 4 (D² + D) + (2 D F + F + D) + 4 D | 13 |
# | padding mask | (B, 1, 1, T), True: may be read | 6.1 |
# | masked-language loss | cross-entropy at hidden positions only | 9 |
#
# </details>

# %% [markdown] id="self-check"
# ### Check yourself
#
# <details><summary>1. Why does a layer need a feed-forward network beside attention?</summary>
#
# Attention moves and averages. Its values are linear maps; only its weights bend, and in a sentence of one word the
# only weight is 1. No linear map can tell whether exactly one of two numbers is 1. Two inner numbers with a bend can
# (section 2).
#
# </details>
#
# <details><summary>2. Without residual connections, which weights stop learning, and why those?</summary>
#
# Those of queries and keys. Words become alike, and then it makes no difference where one looks (sections 3 and 8).
#
# </details>
#
# <details><summary>3. A stack of 12 post-norm layers does not learn. What do you try?</summary>
#
# Measure how alike its words are at the start. If they are alike: smaller starting weights, or pre-norm (section 8). If
# they are not alike: a lower rate, or a warm-up (the lab on [depth](labs/04_depth.ipynb)).
#
# </details>
#
# <details><summary>4. Over which numbers does LayerNorm take its mean, and what does RMSNorm leave out?</summary>
#
# Over the D numbers of one word. RMSNorm leaves out the mean and the bias (section 4).
#
# </details>
#
# <details><summary>5. Your classifier is right 99% of the time. What do you ask?</summary>
#
# What simple rivals reach on the same sentences, and whether the test sentences are new (sections 7 and 10).
#
# </details>
#
# ### What comes next
#
# Your encoder reads. [Chapter 5](05_decoder.ipynb) builds its other half, the decoder, which writes. Or stay here: there
# are labs on [depth](labs/04_depth.ipynb) and on [padding](labs/04_padding.ipynb), and a [museum of
# bugs](labs/04_bugs.ipynb). If you like to count, section 13 is below.
#
# <details><summary>Sources</summary>
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: sections 3.1 (residuals and norms), 3.3
#   (feed-forward), 3.4, 5.3 (warm-up), 5.4 (dropout), table 3 (sizes).
# - Raffel et al. 2020, *Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer* (T5),
#   arXiv:1910.10683: a model of width 1024 with 65,536 inner numbers.
# - Ba et al. 2016, *Layer Normalization*, arXiv:1607.06450; Zhang and Sennrich 2019, *Root Mean Square Layer
#   Normalization*, arXiv:1910.07467.
# - Glorot and Bengio 2010, *Understanding the Difficulty of Training Deep Feedforward Neural Networks*: Xavier's rule.
# - Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*, arXiv:2002.04745: pre-norm and warm-up.
# - Dong et al. 2021, *Attention Is Not All You Need: Pure Attention Loses Rank Doubly Exponentially with Depth*,
#   arXiv:2103.03404; Noci et al. 2022, *Signal Propagation in Transformers*, arXiv:2206.03126.
# - Gemma Team 2024, *Gemma 2*, arXiv:2408.00118, norms on both sides of a sublayer; OLMo Team 2025, *2 OLMo 2 Furious*,
#   arXiv:2501.00656, only its output.
# - Shazeer 2020, *GLU Variants Improve Transformer*, arXiv:2002.05202; Hendrycks and Gimpel 2016, *Gaussian Error
#   Linear Units*, arXiv:1606.08415.
# - Devlin et al. 2019, *BERT*, arXiv:1810.04805: [CLS], masked-language pre-training, the sizes of base and large.
# - Reimers and Gurevych 2019, *Sentence-BERT*, arXiv:1908.10084: what BERT's vectors say about a sentence without
#   fine-tuning.
#
# </details>

# %% [markdown] id="how-large"
# ## 13 Extra: how large is an encoder?
#
# You can count a model's weights before you build it. First come the layers, in post-norm, as BERT has them. The
# number of heads does not matter, because the heads only divide the same four matrices.

# %% exercise="encoder_parameters"

# %% exercise="bert_parameters"

# %% id="bert-shape" tags=["hide-input"]
# Check: your formula against built models; BERT-base piece by piece; its switches, without segments and pooler
V, D, inner = 30_522, 768, 3_072
pieces = {
    "table of tokens": V * D,
    "tables of positions and segments": (512 + 2) * D,
    "norm of their sum": 2 * D,
    "12 × attention": 12 * 4 * (D * D + D),
    "12 × feed-forward": 12 * (2 * D * inner + inner + D),
    "12 × two norms": 12 * 4 * D,
    "pooler": D * D + D,
}
total = sum(pieces.values())
prove("BERT-base has 109,482,240 parameters, piece by piece", total == 109_482_240)
layers = sum(size for name, size in pieces.items() if name.startswith("12"))
prove("its layers are what encoder_parameters counts", layers == encoder_parameters(D, inner, 12))
for width, inner, depth in ((64, 256, 3), (512, 2048, 6), (768, 3072, 12)):
    with torch.device("meta"):  # shapes without memory
        built = TransformerEncoder(TransformerConfig(d_model=width, d_ff=inner, n_heads=8, n_encoder_layers=depth))
    law = complaint(testing.assert_counts, built, parameters=encoder_parameters(width, inner, depth))
    prove(f"encoder_parameters({width}, {inner}, {depth}) equals what is built", not law)
config = TransformerConfig(
    d_model=768, n_heads=12, n_encoder_layers=12, vocab_size=V, max_length=512, positions="learned",
    activation="gelu", scale_embeddings=False, embedding_norm=True, init="normal", norm_eps=1e-12,
)  # fmt: skip
with torch.device("meta"):
    bert = nn.ModuleList([LibraryEmbedding(config, V), TransformerEncoder(config)])
    output = bert[1](bert[0](torch.zeros(2, 128, dtype=torch.int64)))
    base = TransformerConfig(vocab_size=30_000)
    six = nn.ModuleList([LibraryEmbedding(base, 30_000), TransformerEncoder(base)])
built = sum(p.numel() for p in bert.parameters())
prove("the switches of BERT build it", built == total - 2 * 768 - pieces["pooler"])
prove("six layers and 30,000 tokens: 34,274,304 parameters", sum(p.numel() for p in six.parameters()) == 34_274_304)
print("BERT-base: ids (2, 128) go in, out come", tuple(output.shape))

# %% [markdown] id="sizes"
# <details><summary>The sizes of BERT, and of the paper's encoder</summary>
#
# | model | layers | D | heads | F | parameters |
# |---|---|---|---|---|---|
# | encoder of the paper, base | 6 | 512 | 8 | 2048 | 18.9 million and the table |
# | BERT-base | 12 | 768 | 12 | 3072 | 109.5 million |
# | BERT-large | 24 | 1024 | 16 | 4096 | 335 million (340 in the paper) |
#
# The sizes are from Vaswani et al. 2017, table 3, and Devlin et al. 2019, section 3.
#
# </details>
#
# <details><summary>Must word vectors be multiplied by the root of D?</summary>
#
# The paper does so before it adds the positions (section 3.4). Its positions are sinusoids, whose numbers are about 0.7
# large. Multiplied, words that start with numbers of about 1/√D become similar in size. The [lab on
# positions](labs/03_positions.ipynb) trained a small model with and without it: there it was neither needed nor
# harmful, while multiplying a table that starts at 1 hid the positions. Our encoder learns its positions, and they
# start as small as the words. It needs nothing of the kind.
#
# </details>
