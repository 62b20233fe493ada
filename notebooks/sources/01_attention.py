# %% [markdown] id="title"
# # 1 Attention
#
# How does a word choose what to read? This chapter answers that question with numbers small enough to follow on paper,
# then with a few lines of code that you write yourself. At its end you train one head of attention, watch where it
# looks, and look into a real model.
#
# You need Python and a little PyTorch, and you should know that a neural network learns by making a loss smaller. The
# chapter takes about {minutes} minutes, more than 50 of them for its eight exercises. The checks name your mistake, and
# the notebook runs to its end even if you solve none. When you are asked to **predict** what a cell will show, write
# your guess down first: a wrong guess teaches more than a result only read.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import testing
from course_lib.attention import (
    CausalSelfAttention,
    CrossAttention,
    SelfAttention,
    record_weights,
    scaled_dot_product_attention,
)
from course_lib.testing import complaint, prove
from coursework import exercises as ex
from coursework.corpora.sentences import ENGLISH, REFLEXIVES, english_sentence
from coursework.explorers import AttentionExplorer
from coursework.pictures import attention_map, colour_bar, drawings, reading_rows, show
from coursework.pictures.plots.common import curves, dot_rows, panels
from coursework.pictures.style import palette
from coursework.records import claim
from coursework.records import record as recorded

torch.set_num_threads(1)

# %% [markdown] id="why"
# ## 1 What attention is
#
# ### 1.1 One word that needs another
#
# > The queen near the king paints herself.
#
# Whom does the queen paint? To answer, you connected *herself* with *queen*, five words back. The word *king* stands
# nearer, but you passed over it.
#
# For a computer this is a problem. It begins with one list of numbers for each word, a **vector**. The vector of
# *herself* is the same in every sentence: some female being, and no more. Only another word says which one. So there
# must be a step in which *herself* collects something from the other words, and it must collect from the right one.
# **Attention** is such a step.

# %% id="herself-drawn" tags=["hide-input"]
# Drawing: what "herself" should take from the others
drawings.sentence_arcs(
    "the queen near the king paints herself".split(),
    reader=6,
    weights=[0.02, 0.70, 0.03, 0.02, 0.08, 0.10, 0.05],
    caption="What we would wish for: “herself” takes most from “queen”. The arrows run the way the information flows; "
    "these weights are made up. In section 7 training finds such weights for the verb.",
).show()

# %% [markdown] id="person-reads"
# ### 1.2 How a person reads
#
# Imagine a friend who reads a novel, writes down what matters on one postcard, and gives the book away. Then you ask:
# what colour was the stranger's coat in chapter two? The postcard cannot know. It was written before the question, and
# it has little room.
#
# Some networks for translation worked like this friend. They squeezed the whole sentence into one vector of fixed size,
# and wrote the translation from it alone (Sutskever et al. 2014). Bahdanau et al. (2014) kept a vector for every word,
# and looked back at all of them for each new word. They called this attention. A person with the book at hand does the
# same: first comes the question, then the eye goes to the line that answers it.

# %% id="one-vector-drawn" tags=["hide-input"]
# Drawing: a novel in one vector, and a novel kept open
drawings.one_vector().show()

# %% [markdown] id="person-stops"
# The comparison with a reader breaks down in two ways. A person reads one line; attention takes a little from *every*
# word that it may read. And a person understands the question. Attention only compares lists of numbers by a fixed
# rule. It is useful because these numbers are learned.

# %% [markdown] id="soft-dictionary"
# ### 1.3 A dictionary with soft matches
#
# A Python dictionary looks things up. It finds the **key** that equals your question, and returns the **value** that
# belongs to it.

# %% id="dictionary"
height = {"cat": 25, "dog": 60, "horse": 160}  # centimetres at the shoulder
print(height["horse"], height.get("pony"))

# %% [markdown] id="soft-dictionary-vectors"
# There is no pony in it, so there is no answer. Yet a pony is much like a horse. Could a dictionary use that?
#
# It could if it asked not whether a key is *equal*, but *how alike* it is. We describe each animal by two numbers: how
# much it lives in the house, and how well it can be ridden. A cat is (1, 0), a dog (1, 0.2), a horse (0, 1). We ask for
# a pony with (0.1, 0.9): a little house and much riding.
#
# Two lists of numbers are compared by their **dot product**: multiply them number by number, and add up. Pony and horse
# give 0.1 · 0 + 0.9 · 1 = 0.9. Pony and cat give 0.1 · 1 + 0.9 · 0 = 0.1. If you draw the two lists as arrows, the dot
# product is large when they point the same way.

# %% id="dot-product-drawn" tags=["hide-input"]
# Drawing: the dot product of two arrows, three times
drawings.dot_products(query=(2, 1), keys=[(1, 2), (-1, 2), (-2, 0)]).show()

# %% [markdown] id="soft-dictionary-softmax"
# It is also large when the arrows are long.
#
# So each key gets a number, its **score**. From the scores we want **weights**, shares of attention, all positive and
# summing to one. The function that makes them is called **softmax**. It replaces each score $s$ by $e^s$, which is
# always positive, and divides by the sum of them all:
#
# $$\mathrm{softmax}(s)_i = \frac{e^{s_i}}{e^{s_1} + \ldots + e^{s_n}}$$
#
# A larger score gives a larger weight. The answer is the average of the values with these weights.

# %% id="soft-dictionary-drawn" tags=["hide-input"]
# Drawing: the exact dictionary, and the soft one
drawings.soft_dictionary("pony", (0.1, 0.9), ["cat", "dog", "horse"], [(1, 0), (1, 0.2), (0, 1)], [25, 60, 160]).show()

# %% [markdown] id="soft-lookup-text"
# Write this dictionary yourself. What we look up, here the pony, is called the **query**. The line under `def` gives
# the shapes: S keys, E numbers in the query and in each key, E' in each value. If an exercise speaks of the *gradient*,
# read on: it is explained right after this one.
#
# <details><summary>New to PyTorch? Three things are enough for now</summary>
#
# All inputs are tensors, the arrays of PyTorch. `a @ b` is the matrix product, `a.T` exchanges rows and columns, and
# `a.softmax(dim=-1)` works along the last axis.
#
# </details>

# %% exercise="soft_lookup"


# %% [markdown] id="soft-factor-text"
# The pony's height, 102, lies between a dog and a horse. Is that too undecided for you? Multiply all scores by a factor
# before the softmax; multiplying the query does the same.
#
# **Predict.** What answer does the soft dictionary give for the pony if the factor is 0? And if it is 100?

# %% id="soft-factor-predict"
ex.predict("soft_factor", "")

# %% id="dictionary-soft"
keys = torch.tensor([[1.0, 0.0], [1.0, 0.2], [0.0, 1.0]])  # cat, dog, horse: (S, E)
heights = torch.tensor([[25.0], [60.0], [160.0]])  # (S, E')
pony = torch.tensor([0.1, 0.9])  # (E,)
for factor in (0, 1, 5, 100):
    answer = soft_lookup(factor * pony, keys, heights)
    print(f"factor {factor:3}: {answer.item():5.1f} cm")

# %% [markdown] id="soft-factor-answer"
# With 0 all scores are equal, and the answer is the plain average of the three animals. With 100 the horse takes
# practically everything, and we are back at a dictionary that picks one key. We want what lies between, because **it
# can learn**. If the answer is too low, every key is partly to blame. So each number in each key has a direction in
# which a small change makes the answer better. These directions together are the **gradient**, which training follows.
# A look-up that says "equal" or "not equal" has none.

# %% [markdown] id="three-questions"
# ### 1.4 Query, key, value
#
# Now back to the sentence, one step earlier. To choose *herself*, the word before it, *paints*, must already know who
# paints. So here *paints* reads. Each word may ask, and each may be asked. So each gets three vectors, and each vector
# answers a question:
#
# | vector | its question | for the sentence of the queen |
# |---|---|---|
# | **query** | What am I looking for? | *paints* looks for the person who paints |
# | **key** | What can I be found by? | *queen* can be found as a person, and as a subject |
# | **value** | What do I hand over when I am read? | *queen* hands over that she is female |
#
# Why three, and not one? With only one, a word would mostly fit itself best, but *paints* looks for a person and is not
# one. *Queen* would have to listen to *paints* with the same score as *paints* to *queen*. And what *queen* is found
# by, that she is a subject, is not what she hands over, that she is female.
#
# Each of the three is the word's own vector, sent through a **linear map**: multiplied by a table of numbers, a matrix.
# One matrix makes the queries, one the keys, one the values, for every word. A model learns their numbers.
#
# We'll use three words throughout: *queen*, *king* and *paints*. After *paints*, a model that writes must choose
# between *herself* and *himself*. Each word is a vector of four numbers. In a real model nobody knows at first what
# these stand for. Ours have names: female, male, action, and "stands after *near*".

# %% id="projection-matrices"
words = ["queen", "king", "paints"]
X = torch.tensor(
    [
        [1.0, 0.0, 0.0, 0.0],  # queen: female
        [0.0, 1.0, 0.0, 1.0],  # king: male, stands after "near"
        [0.0, 0.0, 1.0, 0.0],  # paints: an action
    ]
)
W_query = torch.tensor([[0.0, 2.0], [0.0, 2.0], [3.0, 0.0], [0.0, 0.0]])
W_key = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-0.7, 0.0]])
W_value = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])

# %% [markdown] id="linear-map-text"
# Our vectors are rows and stand to the left of the matrix, `X @ W_key`. Each number of the vector says how much of one
# row of the matrix is taken, and what is taken is added up. Here the first number of a key means "I look like the
# subject", the second "I am an action". *Female* and *male* both suggest a subject. *After near* takes 0.7 away again,
# because the person after *near* is seldom the one who paints.

# %% id="linear-map-drawn" tags=["hide-input"]
# Drawing: the key of "king", from its vector and the matrix
features = ["female", "male", "action", "after near"]
drawings.linear_map("king", features, X[1].tolist(), W_key.tolist(), "key").show()

# %% [markdown] id="linear-maps-text"
# All queries, keys and values are made in this way. Look at the matrix for queries: an action asks (3, 0), because it
# looks for a subject. A person asks (0, 2) and looks for an action. A value says (female, male).

# %% id="linear-maps-drawn" tags=["hide-input"]
# Drawing: all three words through all three matrices
maps = [W.tolist() for W in (W_query, W_key, W_value)]
drawings.linear_maps(words, features, X.tolist(), maps).show()

# %% [markdown] id="five-steps"
# ### 1.5 The five steps
#
# Now *paints* reads the sentence:
#
# 1. **Make** a query, a key and a value for each word, by the three linear maps.
# 2. **Compare** the query of *paints* with each key, by the dot product.
# 3. **Divide** by √2, because a query has two numbers here; in general, by the square root of its width. Section 3
#    gives the reason. From now on the *score* is what we have after this division.
# 4. **Share out** the attention: the softmax turns scores into weights.
# 5. **Collect**: add up the values, each times its weight.
#
# By hand, for *paints* with its query (3, 0):
#
# | | queen | king | paints |
# |---|---|---|---|
# | key | (1, 0) | (0.3, 0) | (0, 1) |
# | dot product | 3 · 1 + 0 · 0 = 3 | 3 · 0.3 + 0 · 0 = 0.9 | 3 · 0 + 0 · 1 = 0 |
# | score: divided by √2 | 2.12 | 0.64 | 0 |
# | *e* to that power | 8.34 | 1.89 | 1 |
# | weight: divided by the sum, 11.23 | 0.74 | 0.17 | 0.09 |
# | value | (1, 0) | (0, 1) | (0, 0) |
#
# And the sum: 0.74 · (1, 0) + 0.17 · (0, 1) + 0.09 · (0, 0) = (0.74, 0.17). The same in one drawing:

# %% id="attention-path-drawn" tags=["hide-input"]
# Drawing: from the vectors to what "paints" takes along
drawings.attention_path(words, 2, X.tolist(), maps).show()

# %% [markdown] id="what-it-holds"
# What does *paints* hold afterwards? Before, its vector said "an action", and it would say so in any sentence. Now
# (0.74, 0.17) has arrived as well: *the one who does it is female*, with a little doubt because of the king. In a
# Transformer one more linear map, which [chapter 2](02_multi_head.ipynb) builds, widens these two numbers to four, and
# the result is added to what the word had. An action, done by someone female: from there it is a small step to
# *herself*.
#
# Once *herself* is written and reads in turn, it can do the same. It began as some female being. It finds the queen,
# and is now *this* queen. This is all that attention does: **it moves information from the words that have it to the
# words that need it.**
#
# In code the words are the rows of a matrix, and one line makes the queries of all words:

# %% id="five-steps-scores"
query, key, value = X @ W_query, X @ W_key, X @ W_value  # step 1: three rows each
products = query @ key.T  # step 2; rows count from 0: row 2 is "paints"
scores = products / math.sqrt(2)  # step 3
print(products[2], scores[2])

# %% id="five-steps-weights"
weights = scores.softmax(dim=-1)  # step 4, along each row
print(weights[2])

# %% id="five-steps-output"
output = weights @ value  # step 5
print(output[2])

# %% id="by-hand-proof" tags=["hide-input"]
# Check: the numbers of the table by hand are those of the code
table = [round(number, 2) for number in scores[2].tolist()] + [round(number, 2) for number in weights[2].tolist()]
prove("the table by hand holds the numbers of the code", table == [2.12, 0.64, 0.0, 0.74, 0.17, 0.09])
prove("what paints takes along is (0.74, 0.17)", [round(x, 2) for x in output[2].tolist()] == [0.74, 0.17])

# %% [markdown] id="all-words-text"
# We only talked about *paints*, but `scores`, `weights` and `output` have a row for each word: all three words read at
# the same time. Such a table of weights is called an **attention map**. Each row is a word that reads, and sums to one;
# each column is a word that is read. On the diagonal each word reads itself, and it may score itself low: *paints*
# gives itself 0.09.

# %% id="first-map" tags=["hide-input"]
# Figure: the attention map of the three words
axes = attention_map(weights, queries=words, bar=True)
show(
    axes.figure,
    alt="Attention map of three words. Queen and king both read paints with more than half of their weight; paints "
    "reads queen with 0.74, king with 0.17 and itself with 0.09.",
    caption="A row is a reader. “paints” reads “queen”; the two persons read “paints”, because their queries look for "
    "an action.",
)

# %% [markdown] id="formula"
# As one formula, with the queries, keys and values of all words as rows of the matrices $Q$, $K$ and $V$ (Vaswani et
# al. 2017, equation 1):
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# Here $Q K^\top$ compares every query with every key, the softmax works along each row, and $V$ hands over the values.
# The width of queries and keys is $d_k$, 2 in our example. Shapes call it E, and code calls it `d_head`.
#
# In the next picture you choose the word that reads. The *temperature* divides the scores: it is 1 divided by the
# pony's factor. The *entropy* says how evenly the weights are spread: 0 if one word has everything, ln 3 = 1.099 if all
# three share equally. Its unit is the *nat*.

# %% id="explore-attention"
AttentionExplorer(query, key, value, words, selected=2)

# %% [markdown] id="ladder"
# ## 2 Build it
#
# ### 2.1 From one word to all words
#
# You already have a function for one word that reads: `soft_lookup`. It lacks only the division, and we can divide the
# query instead. A loop over the queries is then the whole of attention:


# %% id="rung-loops"
def attention_loop(query, key, value):
    """(T, E), (S, E), (S, E') -> (T, E'), one query after the other."""
    root = math.sqrt(query.size(1))
    return torch.stack([soft_lookup(q / root, key, value) for q in query])


print(attention_loop(query, key, value))

# %% [markdown] id="rung-loops-text"
# **T** is the number of words that read and **S** the number of words that are read; here both are 3.
#
# The second word does not wait for the result of the first. So two matrix products can replace the loop, and the
# machine may work on all words at once. The line with `prove` is a check: it stops the notebook if what it says is not
# so.


# %% id="rung-matrices"
def attention_matrices(query, key, value):
    """(T, E), (S, E), (S, E') -> (T, E'), all queries at once."""
    scores = query @ key.T / math.sqrt(query.size(1))  # (T, S)
    return scores.softmax(dim=1) @ value


looped = attention_loop(query, key, value)
same = torch.allclose(attention_matrices(query, key, value), looped)
prove("two matrix products give what the loop gives", same)

# %% [markdown] id="rung-batch-text"
# ### 2.2 From one sentence to a batch
#
# Training works on many sentences at once, a *batch*. A tensor of queries then has three axes: the sentences (**B**),
# the words, and the numbers of each word's vector. In chapter 2 a fourth joins them, **H**: several attentions side by
# side. The function above counts its axes from the front. Its axis 1 holds the numbers of a vector; in a batch, axis 1
# holds the words.
#
# Which sizes must agree? Queries and keys need the same width E, because they are multiplied number by number, and
# there must be as many values as keys, S. The number of queries T and the width E' of the values are free.

# %% id="batch-drawn" tags=["hide-input"]
# Drawing: a batch as a pile of sheets
drawings.batch_of_sentences().show()

# %% exercise="batched_attention"


# %% [markdown] id="rung-library-text"
# PyTorch has this function built in. Do both give the same outputs and gradients? `assert_equivalent` compares them,
# and returns the largest differences.

# %% id="rung-library"
torch.manual_seed(0)
B, T, S, E = 2, 5, 7, 11  # different primes: no wrong axis fits by luck
q, k, v = torch.randn(B, T, E), torch.randn(B, S, E), torch.randn(B, S, 13)
gaps = testing.assert_equivalent(
    batched_attention,
    F.scaled_dot_product_attention,
    *(q, k, v),
    names=["q", "k", "v"],
)
prove("outputs and gradients equal those of PyTorch to 0.00001", max(gaps) < 1e-5)

# %% [markdown] id="own-layer-text"
# ### 2.3 A layer that learns
#
# In 1.4 we wrote the three matrices by hand. Now they become parameters, numbers that training may change. In PyTorch
# they belong to a class made from `nn.Module`, whose `forward` runs when you call it like a function. A linear map is
# `nn.Linear`. One set of three maps with its attention is a **head**.


# %% id="own-layer"
class Head(nn.Module):
    """One head of attention: x (B, T, d_model) -> (B, T, d_head)."""

    def __init__(self, d_model, d_head):
        super().__init__()
        self.query = nn.Linear(d_model, d_head, bias=False)
        self.key = nn.Linear(d_model, d_head, bias=False)
        self.value = nn.Linear(d_model, d_head, bias=False)

    def forward(self, x, context=None):
        context = x if context is None else context  # who is read
        q, k, v = self.query(x), self.key(context), self.value(context)
        return batched_attention(q, k, v)


# %% [markdown] id="own-layer-says"
# Does the head do what we did by hand? We give it our matrices, transposed, as `nn.Linear` keeps them. `d_model`, in
# shapes D, is the width of a word's vector, 4 in our example.

# %% id="own-layer-equals"
head = Head(4, 2)
matrices = {"query": W_query, "key": W_key, "value": W_value}
weights_by_name = {f"{name}.weight": W.T for name, W in matrices.items()}
head.load_state_dict(weights_by_name)  # puts them in place of the random ones
same = torch.allclose(head(X), output)
prove("with our matrices the head gives the numbers of 1.5", same)

# %% [markdown] id="cross-attention"
# ### 2.4 Reading another sentence
#
# Look at `forward` again: queries come from `x`, keys and values from `context`. If no context is given, the sentence
# reads itself, and this is called **self-attention**. If another sentence is given, it is **cross-attention**. A
# translator uses it in its writing half, the *decoder*: each English word asks, and the German words are asked. Nothing
# else changes.

# %% id="cross-attention-drawn" tags=["hide-input"]
# Drawing: self-attention beside cross-attention
drawings.self_and_cross("Anna paints".split(), "Anna malt ein Bild".split()).show()

# %% exercise="cross_attention_shapes"


# %% id="cross-attention-run"
torch.manual_seed(0)
head = Head(d_model=64, d_head=16)
english = torch.randn(4, 10, 64)  # four sentences of 10 words
german = torch.randn(4, 30, 64)  # and of 30 words
found = head(english, german)
print("query", tuple(head.query(english).shape), "key", tuple(head.key(german).shape))
print("English reads itself:", tuple(head(english).shape))
print("English reads German:", tuple(found.shape))

# %% [markdown] id="root"
# ## 3 Why divide by √d_k
#
# **A dot product adds up one term for each number in a query. So wide queries give large dot products, and these can
# make the softmax give nearly everything to one word, before anything is learned.** How large do they become? We
# measure it by the *standard deviation*, which says how far random numbers spread around their mean. Its square is the
# *variance*. The product of two independent random numbers with mean 0 and variance 1 has variance 1 again. When
# independent terms are added, their variances add up.

# %% exercise="score_spread"


# %% id="root-spread"
generator = torch.Generator().manual_seed(0)
for d_k in (4, 16, 64, 256, 1024):
    q, k = torch.randn(2, 4000, d_k, generator=generator)
    products = (q * k).sum(dim=-1)
    spread, root = products.std(), math.sqrt(d_k)
    print(f"d_k = {d_k:4}   spread of the dot products {spread:6.2f}   {root:5.1f}")

# %% [markdown] id="root-spread-says"
# The last column is √d_k, and the spread follows it: d_k terms have variance d_k and spread √d_k. Divided by √d_k, the
# scores have spread 1 whatever the width.
#
# You saw with the pony what large numbers do to the softmax: factor 100 picked one animal. What do they do to the
# gradient?
#
# **Predict.** When nearly all weight lies on one word, and the scores change a little, how much do the weights change:
# more than before, about the same, or hardly at all?

# %% id="root-predict"
ex.predict("hard_softmax", "")


# %% id="root-measured" tags=["hide-input"]
# Measure: largest weight and gradient for 400 random queries, five seeds
def at_start(d_k, divisor, seed, S=64):
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(400, 1, d_k, generator=generator), torch.randn(400, S, d_k, generator=generator)
    u = torch.randn(400, S, generator=generator)  # what the loss would like of each weight
    p = ((q @ k.mT)[:, 0] / divisor).softmax(dim=-1)  # (400, S)
    gradient = p * (u - (p * u).sum(dim=-1, keepdim=True))  # of sum p·u, for the scores
    return p.amax(dim=-1).mean().item(), gradient.norm(dim=-1)


def died(d_k, seed):  # the share of rows with less than a tenth of the median with division
    usual, left = at_start(d_k, math.sqrt(d_k), seed)[1].median(), at_start(d_k, 1.0, seed)[1]
    return (left < usual / 10).float().mean().item()


widths = [4, 16, 64, 256, 1024]
started = {
    name: [[at_start(d_k, divisor(d_k), seed) for seed in range(5)] for d_k in widths]
    for name, divisor in (("divided by √d_k", math.sqrt), ("not divided", lambda _: 1.0))
}

# %% id="root-figure" tags=["hide-input"]
# Figure: largest weight and gradient against d_k, with and without the division
found = {
    "largest weight": {name: [[one[0] for one in row] for row in zip(*rows)] for name, rows in started.items()},
    "gradient at the scores, median query": {
        name: [[one[1].median().item() for one in row] for row in zip(*rows)] for name, rows in started.items()
    },
}
show(
    panels(
        curves,
        widths,
        found,
        share="",
        styles=[".-"],
        each=({"ylim": (0, 1)}, {"yscale": "log"}),
        size=(7.2, 3.1),
        xscale="log",
        xticks=widths,
        xticklabels=widths,
        xlabel="d_k",
    ),
    alt="Two panels against d_k from 4 to 1024. Divided by the root, the largest weight stays near 0.1 and the gradient "
    "near 0.16. Not divided, the largest weight rises to 0.95 and the gradient of the median row falls below 0.001.",
    caption="Untrained: 400 random queries with 64 keys each, drawn five times (five seeds). On the right: if the loss "
    "pushes each weight up or down at random, how strongly does it push the scores? That is their gradient, and the "
    "median is the query in the middle. With the division, the width makes no difference. Without it, the wider the "
    "head, the more one word takes. At 4 and 16 the sharper weights still pass on a little more; at 1024 most queries "
    "have hardly any gradient left.",
)
for d_k, least, most in ((256, 0.45, 0.6), (1024, 0.65, 0.85)):
    lost = all(least < died(d_k, seed) < most for seed in range(5))
    prove(f"at width {d_k}, {least} to {most} of the queries keep less than a tenth of the usual gradient", lost)

# %% [markdown] id="root-verdict"
# So without the division many of these queries lose their gradient: at width 256 about half of them keep less than a
# tenth of what is usual with it. If nearly all the weight lies on one word, a small change of the scores hardly moves
# it, and where nothing moves there is nothing for queries and keys to learn from.
#
# Does it matter for learning? In a wide head it does. On a small look-up task, after 100 steps of training, five heads
# of width 256 got 0.99 or more of the answers right with the division, and between 0.08 and 0.97 without it. They start
# with larger matrices than `nn.Linear` makes; with its own, less is lost on average.
#
# <details><summary>Evidence: how many queries lose their gradient, the task, and a model that does not divide</summary>
#
# At width 256 about half of the queries keep less than a tenth of the median with division, at 1024 about three
# quarters.
#
# In the task a head reads a list of pairs, such as *a 7, k 2, c 9*, then a letter, and has to say which number stood
# with it. It is trained for 100 steps, with the division and without. The *learning rate* says how large a step of
# training is. Five of them were tried for each line of the figure, and the best one is shown.
#
# All this holds because our queries and keys start with a variance near 1; in the task, keys start with about 2,
# because each is made from a sum of two vectors. `nn.Linear` starts lower. A model can also start with smaller matrices
# still and leave the division out; T5 does so (Raffel et al. 2020).
#
# </details>

# %% id="root-training" tags=["hide-input"]
# Figure: the recorded training with and without the division
record = claim("scaled_scores")
show(
    record.figure("right"),
    alt=record.alt("right"),
    caption="Share of right answers after 100 steps, at the best of five learning rates, a dot for each of five seeds. At "
    f"d_k = 16 the division makes a small difference, at 256 a large one. ({record.command})",
)

# %% [markdown] id="masks"
# A good place to stop: you have built attention, and you know why it divides.
#
# ## 4 Masks: what must not be read
#
# ### 4.1 Not the future: the causal mask
#
# A model that writes is trained to guess the next word at every position. If the position of *queen* could read the
# next word, *near*, there would be nothing to guess. So each word may read itself and the words before it, and nothing
# after it. A table that says who may read whom is a **mask**; this one is called **causal**, because nothing depends on
# what comes later.

# %% id="causal-drawn" tags=["hide-input"]
# Drawing: the causal mask of five words
five = "the queen near the king".split()
drawings.mask_grids(
    [("each word and those before it", five, five, torch.ones(5, 5).tril())],
    caption="The causal mask. A row is a word that reads; the filled cells are the words that it may read.",
).show()

# %% [markdown] id="causal-how"
# In code a mask holds `True` where one may read and `False` where not. Before the softmax, each hidden score is
# replaced by minus infinity: `~mask` exchanges True and False, and `masked_fill` fills in where it is True. Because
# $e^{-\infty} = 0$, the weight is exactly zero, and the softmax shares out everything among the words that are left.
#
# **Predict.** Under a causal mask, what is the weight of the first word of a sentence on itself?

# %% id="causal-predict"
ex.predict("first_word", "")

# %% id="causal-running-example"
mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
hidden = scores.masked_fill(~mask, -math.inf)
print(hidden)
causal_weights = hidden.softmax(dim=-1)
print(causal_weights)

# %% id="causal-map" tags=["hide-input"]
# Figure: the weights of the running example without a mask and with the causal one
both = {"no mask": weights, "causal mask": causal_weights}
fig = panels(attention_map, both, queries=words, each=({}, {"mask": mask}), share="", size=(6.6, 2.6))
colour_bar(fig, fig.axes)
show(
    fig,
    alt="Two attention maps of queen, king, paints. With the causal mask the cells above the diagonal are hatched; queen "
    "reads only itself, with weight 1, king reads queen and itself, and the row of paints is as before.",
    caption="The words that are left share all the weight. “paints” is the last word, so nothing changes for it.",
)
prove("under a causal mask no weight lies on later words", bool((causal_weights.triu(1) == 0).all()))

# %% [markdown] id="causal-why-once"
# The first word can read only itself, so it gives itself all its weight.
#
# The mask has a second use, and it is why these models can be trained on so much text. No position reads what comes
# after it, so its output is the same with or without the rest of the sentence. So **one pass over a sentence gives what
# each of its beginnings alone would give**: from eight words, seven guesses to learn from.

# %% id="causal-prefixes"
torch.manual_seed(0)
causal_head = CausalSelfAttention(8, 3)  # the library's: d_model 8, d_head 3
x = torch.randn(1, 7, 8)  # the first seven words
whole = causal_head(x)
last = [causal_head(x[:, : t + 1])[:, -1:] for t in range(7)]  # of each beginning
same = torch.allclose(whole, torch.cat(last, dim=1), atol=1e-6)
prove("one causal pass equals seven passes over the beginnings", same)

# %% [markdown] id="padding"
# ### 4.2 Hiding the padding
#
# Sentences differ in length, but a tensor is a rectangle. So short sentences are filled up with a sign that means
# nothing, the **padding**, and a *padding mask* hides it. This mask is different for each sentence, and it hides
# *columns*: nobody may read a word that is padding.

# %% id="padding-drawn" tags=["hide-input"]
# Drawing: the padding masks of two sentences in one batch
short = "she sleeps PAD PAD PAD".split()
real = torch.tensor([True, True, False, False, False]).expand(5, 5)
drawings.mask_grids(
    [("a sentence of five words", five, five, torch.ones(5, 5)), ("a sentence of two words", short, short, real)],
    caption="Two sentences in one batch. In the second one three columns are hidden. What the rows of the padding read "
    "does not matter, because nobody uses them.",
    cell=34,
).show()

# %% [markdown] id="padding-shape"
# The weights of a batch have the shape (B, H, T, S): sentences, heads, words that read, words that are read. All heads
# and all readers of a sentence share this mask, so it has length 1 on these two axes, (B, 1, 1, S). PyTorch repeats it
# as needed, which is called *broadcasting*.
#
# Do not leave these axes out. With 5 sentences of 5 words, a mask of shape (B, S) looks like one of shape (T, S).
# PyTorch then uses its row 0, meant for sentence 0, for word 0 of every sentence, and gives no error.
#
# <details><summary>Broadcasting in two sentences</summary>
#
# The axes of two shapes are lined up from the last one, and an axis of length 1 is repeated to the length of its
# partner. `None` puts such an axis in: if `a` has the shape (B, S), `a[:, None]` has (B, 1, S).
#
# </details>
#
# In the exercise a text is cut into *tokens*, here words, and each token has a number, its *id*.

# %% exercise="padding_mask"


# %% id="padding-proof"
torch.manual_seed(0)
table = nn.Embedding(10, 8)  # a vector of 8 numbers for each of 10 ids
head = SelfAttention(8, 3)  # the library's head
tokens = torch.tensor([[7, 3, 9, 4, 2], [5, 8, 0, 0, 0]])  # 0 is the padding
mask = padding_mask(tokens, 0)[:, 0]  # (B, 1, 1, S) -> (B, 1, S): one head, no axis H
padded = head(table(tokens), mask=mask)
alone = head(table(tokens[1:, :2]))
same = torch.allclose(padded[1:, :2], alone, atol=1e-6)
prove("a padded sentence gives what it gives alone", same)

# %% [markdown] id="alignment"
# ### 4.3 When only the newest words read
#
# A model that writes adds one word after another. Under a causal mask no earlier word reads the new one, so nothing
# changes for the earlier words. Their keys and values are kept in a **cache**, and only the new word is computed. Now
# one query meets many keys, and the mask is no longer a square. The new word is the *last* one, so it gets the lowest
# row of the square.
#
# PyTorch's `tril()` keeps the lower left triangle of a table; `tril(2)` keeps two more diagonals above it.

# %% id="alignment-drawn" tags=["hide-input"]
# Drawing: the causal mask when two words are new, and when one is new
square = torch.ones(5, 5).tril()
drawings.mask_grids(
    [
        ("all five are new", five, five, square),
        ("two are new", five[3:], five, square[3:]),
        ("one is new", five[4:], five, square[4:]),
    ],
    caption="With a cache only the new words read. Their rows are the lowest ones of the square: the last word reads "
    "everything.",
    cell=27,
).show()

# %% exercise="causal_mask"


# %% [markdown] id="combine-text"
# A word may be read if every mask allows it: masks are combined with a logical *and*. In [a
# lab](labs/01_who_sees_what.ipynb) you combine some with switches.

# %% [markdown] id="empty-rows"
# With the padding on the *left* and a causal mask, the first queries have nothing to read. The softmax then computes
# 0/0, which is NaN, "not a number", and NaN spreads to everything it meets. Our function gives zeros instead, as
# `F.scaled_dot_product_attention` does in PyTorch 2.13; [a lab](labs/01_numbers.ipynb) measures other choices.
#
# ### 4.4 All in one function
#
# You have all the parts now: scores, scale, mask, softmax, weighted sum, in a batch with heads. Put them together: this
# is the chapter's main exercise. *After* the softmax, set a row of NaN to 0 with `masked_fill`; multiplying would not
# help, because 0 · NaN is NaN. `mask.any(dim=-1, keepdim=True)` is False for such a row. The gradient then stays
# finite, too.

# %% exercise="scaled_dot_product_attention"


# %% id="own-function" tags=["hide-input"]
# Check: yours with a mask equals PyTorch's
q, k, v = torch.randn(2, 3, 5, 11), torch.randn(2, 3, 7, 11), torch.randn(2, 3, 7, 13)
mask = causal_mask(5, 7)
gap = attention(q, k, v, mask) - F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
prove("with a mask, too, it gives what PyTorch gives", gap.abs().max() < 1e-5)

# %% [markdown] id="shape-text"
# The library's version can hand out the weights as well. Here are the shapes for two sentences of ten words, with four
# heads of width 64.

# %% id="shape-demo"
q, k, v = torch.randn(3, 2, 4, 10, 64)
found, shown = scaled_dot_product_attention(q, k, v, return_weights=True)
print("output", tuple(found.shape), " weights", tuple(shown.shape))

# %% id="shape-demo-sums" tags=["hide-input"]
# Check: weights are shares
prove("each row of weights sums to one", (shown.sum(dim=-1) - 1).abs().max() < 1e-5)

# %% [markdown] id="order"
# A good place to stop: your attention runs, with masks.
#
# ## 5 It does not know the order
#
# A query is compared with a key, and nothing in either says where its word stands. What happens if we shuffle the
# sentence?

# %% exercise="permuted_tokens"


# %% id="order-measured"
torch.manual_seed(0)
head = SelfAttention(8, 3)
dog, bites, man = torch.randn(3, 8)
first = head(torch.stack([dog, bites, man])[None])[0]
second = head(torch.stack([man, bites, dog])[None])[0]
print("dog gets the same in both:", torch.allclose(first[0], second[2], atol=1e-6))
print("position 0 gets the same:", torch.allclose(first[0], second[0], atol=1e-6))

# %% id="order-drawn" tags=["hide-input"]
# Drawing: a sentence, and the same words in another order
drawings.shuffled_words("dog bites man".split(), [2, 1, 0]).show()

# %% id="order-proof" tags=["hide-input"]
# Check: the law of equivariance, and that a causal mask breaks it
law = complaint(testing.assert_permutation_equivariant, SelfAttention(11, 5), torch.randn(1, 7, 11))
prove("self-attention without a mask is permutation equivariant", not law)
law = complaint(testing.assert_permutation_equivariant, CausalSelfAttention(11, 5), torch.randn(1, 7, 11))
prove("a causal mask breaks the equivariance", law)

# %% [markdown] id="order-says"
# The outputs move with the words; this is called **equivariance**. *Dog* gets the same vector whether it bites or is
# bitten. *Invariant*, the word in the question, would mean that shuffling changes nothing at all. A causal mask breaks
# the equivariance: under it the first position reads one word, the last reads all.
#
# In our running example we smuggled the order in: the king's vector said "stands after *near*". [Chapter
# 3](03_positional_encoding.ipynb) shows how a real model gets it.

# %% [markdown] id="buys"
# ## 6 What it buys, and what it costs
#
# ### 6.1 Against recurrence
#
# Before attention, sentences were read by **recurrent** networks: one word after the other, with one vector, the
# *state*, handed on from word to word. What do we gain by dropping recurrence?
#
# <details><summary>What was new in 2017</summary>
#
# Convolutional networks, which look at a few neighbours at a time, read text too (Kalchbrenner et al. 2016; Gehring et
# al. 2017). What was new for translation in June 2017 was to leave out both recurrence and convolution, so that words
# exchange information by attention alone.
#
# </details>
#
# **Short paths.** In a recurrent network, what the first word said reaches the last one through every step between
# them. With attention the last word reads the first directly.
#
# **Work side by side.** A recurrent network cannot compute step 100 before step 99. Attention computes the scores of
# all words at once in training, and a GPU turns this into speed. In writing, both go word by word; [a
# lab](labs/01_costs.ipynb) times both.

# %% id="recurrence-drawn" tags=["hide-input"]
# Drawing: a chain of states beside attention
drawings.recurrent_and_attention("the queen near the king paints".split()).show()

# %% [markdown] id="reach-text"
# Why does a short path matter? A network learns from a word only if the gradient reaches it. So we ask untrained
# networks: how much does a word far back change the last output, compared with the last word?


# %% id="reach-measured" tags=["hide-input"]
# Figure: how far the gradient reaches in untrained networks, mean of five seeds
def reach(network, distances, T=301, width=32):
    x = torch.randn(1, T, width, dtype=torch.float64, requires_grad=True)
    output = network.double()(x)
    output = output[0] if isinstance(output, tuple) else output  # (1, T, width)
    (output[0, -1] @ torch.randn(width, dtype=torch.float64)).backward()
    size = x.grad[0].norm(dim=-1)  # (T,)
    return torch.stack([size[-1 - d] / size[-1] for d in distances])


networks = {
    "RNN": lambda: nn.RNN(32, 32, batch_first=True),
    "LSTM": lambda: nn.LSTM(32, 32, batch_first=True),
    "attention": lambda: SelfAttention(32),
}
distances, reached = [1, 2, 5, 10, 20, 50, 100, 200], {}
for name, make in networks.items():
    runs = []
    for seed in range(5):
        torch.manual_seed(seed)
        runs.append(reach(make(), distances).log())
    reached[name] = torch.stack(runs).mean(dim=0).exp()
show(
    curves(
        distances,
        reached,
        xscale="log",
        yscale="log",
        ylim=(1e-20, 10),
        xticks=distances,
        xticklabels=distances,
        xlabel="steps back",
        ylabel="gradient, relative to the last word",
        size=(6.8, 3.2),
    ),
    alt="Relative gradient against the number of steps back, both axes logarithmic. RNN and LSTM fall below 1e-10 by 50 "
    "steps. Attention stays nearly level up to 200 steps.",
    caption="The RNN is the plain recurrent network; an LSTM also has a memory. As PyTorch makes them, both lose the "
    "gradient within tens of steps. Attention starts near 0.06 and not at 1, because the last word is also the one that "
    "reads: through its query it changes all 301 scores, and every other word changes only its own.",
)
prove("at distance 50 a default LSTM keeps less than 1e-9 of the gradient", reached["LSTM"][5] < 1e-9)
prove("one step back, attention's gradient is near 0.06", 0.05 < reached["attention"][0] < 0.07)
prove(
    "attention's gradient varies by less than a factor 3", reached["attention"].max() / reached["attention"].min() < 3
)

# %% [markdown] id="reach-says"
# The RNN and the LSTM get almost no signal from distant words. This is no law of recurrence: [a
# lab](labs/01_reach.ipynb) starts an LSTM so that it keeps the signal. Attention needs no such care: its path is one
# step long, and its gradient does not fall with the distance. But all words share it: the longer the text, the less for
# each. And a trained head passes it mostly to the words that it reads.

# %% [markdown] id="cost"
# ### 6.2 The price
#
# Every word is compared with every word. A text of $n$ words needs $n^2$ comparisons: twice the text, four times the
# work. The linear maps treat each word alone, so their work only doubles. Which is more? We count both for one *layer*
# of a Transformer, the stage that it repeats.
#
# All heads together are $d$ numbers wide, like a word's vector. So comparing two words takes $d$ multiplications and
# $d$ additions, and collecting a value takes as many. That makes $4n^2d$. The linear maps of a layer hold $12d^2$
# numbers: $d^2$ each for query, key, value and a map after them, $8d^2$ in the feed-forward part of [chapter
# 4](04_encoder.ipynb). Each number serves each word with a multiplication and an addition. That makes $24nd^2$. The two
# are equal at $n = 6d$. With $d = 768$, as in BERT-base and the smallest GPT-2, that is 4,608 words.

# %% id="cost-figure" tags=["hide-input"]
# Figure: operations of one layer, the part that grows with n² and the part that grows with n
d_model = 768
lengths = [128 * 2**power for power in range(11)]
linear = [24 * n * d_model**2 for n in lengths]
pairs = [4 * n**2 * d_model for n in lengths]
show(
    curves(
        lengths,
        {"linear maps: grow with n": linear, "comparing and collecting: grow with n²": pairs},
        xscale="log",
        yscale="log",
        xticks=lengths[::2],
        xticklabels=[f"{n:,}" for n in lengths[::2]],
        xlabel="n, words in the text",
        ylabel="operations in one layer",
        size=(6.8, 3.2),
    ),
    alt="Operations of one layer against the length n from 128 to 131,072, both axes logarithmic. The linear maps grow "
    "with n; comparing and collecting grows with n squared, starts far below and crosses them at 4,608 words.",
    caption="For short texts the linear maps are the larger part. Beyond 4,608 words (at d = 768) the comparisons are, "
    "and they are what makes long texts expensive.",
)

# %% id="cost-proof" tags=["hide-input"]
# Check: the two formulas count what torch counts
from torch.utils.flop_counter import FlopCounterMode

with torch.device("meta"), FlopCounterMode(display=False) as counter:
    nn.TransformerEncoderLayer(64, 1, 256, batch_first=True)(torch.randn(1, 128, 64))
counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
prove("for 4096 words the table of weights fills 64 MiB", 4 * 4096**2 == 64 * 2**20)
prove("the linear maps of a layer take 24 n d² operations", counted["aten.addmm"] == 24 * 128 * 64**2)
prove("comparing and collecting takes 4 n² d operations", counted["aten.bmm"] == 4 * 128**2 * 64)

# %% [markdown] id="cost-says"
# [A lab](labs/01_costs.ipynb) measures time and memory.
#
# <details><summary>How large the table is</summary>
#
# The table of weights has $n^2$ numbers, too. For 4,096 words it fills 64 MiB for each head and sentence in float32.
# But a program need not keep all of it: FlashAttention (Dao et al. 2022) works through it tile by tile. That saves
# memory and time; the comparisons stay.
#
# </details>

# %% [markdown] id="training"
# ## 7 Train one head, and read its map
#
# Until now we wrote the matrices by hand. Can training find them?
#
# The task is the one we began with. A program, `english_sentence`, writes sentences with a few words, `ENGLISH`, such
# as *the old queen near the king paints herself*. The model must find the last word, one of `REFLEXIVES`: *herself*,
# *himself* or *themselves*. Some sentences contain a second person, as a distractor.

# %% id="training-sentences"
PAD = len(ENGLISH)  # the words of this language, as a list
number = {word: i for i, word in enumerate(ENGLISH)}


def as_tensor(sentences):  # lists of words -> (B, T), filled up with PAD
    longest = max(map(len, sentences))
    rows = [[number[word] for word in words] for words in sentences]
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


draw = random.Random(0)
drawn = [tuple(english_sentence(draw)[:-1]) for _ in range(30_000)]  # no full stop
drawn = list(dict.fromkeys(drawn))  # each sentence once
sentences = [words for words in drawn if words[-1] in REFLEXIVES][:5000]
for words in sentences[:3]:
    print(" ".join(words[:-1]), "→", words[-1])

# %% [markdown] id="training-model-text"
# Each word becomes a vector, and a second vector is added for its position, because attention does not know the order.
# Both come from tables, `nn.Embedding`. Then the last word that it gets, the verb, reads the sentence with one head,
# and a linear map turns what it found into a number for each of the three answers. So the answer can come from the
# subject only through the head. `CrossAttention` is your `Head` with a mask, and `record_weights` hands out its
# weights. `shown` will hide words at the end.


# %% id="training-model"
class Reader(nn.Module):
    def __init__(self, d_model=32):
        super().__init__()
        self.words = nn.Embedding(len(ENGLISH) + 1, d_model)  # one more for PAD
        self.positions = nn.Embedding(16, d_model)
        self.head = CrossAttention(d_model)
        self.answer = nn.Linear(d_model, len(REFLEXIVES))

    def forward(self, tokens, shown=True):  # (B, T), True: may be read -> (B, 3)
        x = self.words(tokens) + self.positions.weight[: tokens.size(1)]
        length = (tokens != PAD).sum(dim=1)
        rows = torch.arange(len(x))  # 0, 1, ..., B - 1
        verb = x[rows, length - 1]  # x[0, length[0] - 1], ...: (B, d_model)
        mask = padding_mask(tokens, PAD)[:, 0] & shown  # (B, 1, T)
        found = self.head(verb[:, None], x, mask=mask)  # (B, 1, d_model)
        return self.answer(found[:, 0])


# %% [markdown] id="training-question"
# We look at four sentences before and after. In each of them a second person stands nearer to the verb.
#
# **Predict.** After training, where does the verb look in *the boys near the queen paint*: at *boys*, at *queen*, or
# somewhere else?

# %% id="training-predict"
ex.predict("boys_near_the_queen", "")

# %% id="training-run"
torch.manual_seed(0)
model = Reader()
asked = [
    "the queen near the king paints",
    "the king near the queen paints",
    "the old man that the girls see helps",
    "the boys near the queen paint",
]
asked = [text.split() for text in asked]


def read(model, sentences):  # the weights of the verb on each word
    with torch.no_grad(), record_weights(model) as maps:
        model(as_tensor(sentences))
    (weights,) = maps.values()  # one entry for each head; here one, (B, 1, T)
    return [row[0, : len(words)] for row, words in zip(weights, sentences)]


before = read(model, asked)

# %% id="training-loop" tags=["atol:0.02"]
inputs = as_tensor([words[:-1] for words in sentences])
answers = torch.tensor([REFLEXIVES.index(words[-1]) for words in sentences])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(400):
    chosen = torch.randint(4000, (64,))  # the last thousand are kept for the test
    found = model(inputs[chosen])
    loss = F.cross_entropy(found, answers[chosen])  # surprise at the answers
    optimizer.zero_grad()  # forget the last gradient
    loss.backward()  # compute the new one
    optimizer.step()  # and take a small step along it
right = (model(inputs[4000:]).argmax(dim=-1) == answers[4000:]).float().mean()
print(f"share of right answers in 1000 unread sentences: {right:.2f}")

# %% id="training-maps" tags=["hide-input", "picture:10"]
# Figure: what the verb reads, before and after training
both = {"before training": before, "after training": read(model, asked)}
fig = panels(reading_rows, asked, both, columns=1, share="", size=(7.4, 3.9))
colour_bar(fig, fig.axes)
show(
    fig,
    alt="Two blocks of four sentences whose last word, the verb, reads. Before training the colour is spread over all "
    "words. After training one word of each row is dark: queen, king, man in the first three sentences.",
    caption="Each row is one sentence; the darker a word, the more the verb at the end takes from it. After 400 steps "
    "“paints” and “helps” look at the first person, which is the subject here, and not at the nearer one; “paint” looks "
    "elsewhere.",
)

# %% [markdown] id="training-says"
# Nobody told the head whom to look at. It was only told, sentence by sentence, which answer was right.
#
# And the boys? The verb *paint*, without an *s*, already says that there are several, so the answer is *themselves*
# whatever the subject is. The head need not read *boys*, and where it looks instead differs from run to run. But the
# answer is made only from what the head has found, so how does *themselves* get through? By *where* the verb looks. In
# this run *paint* looks at *the*, as no verb with an *s* above does, and so the vector of *the* can stand for
# *themselves*. **A weight is where the head looked, not what it needed.**
#
# To learn what it needs, take something away. The next cell takes a sentence, yours if you like, and hides each of its
# words in turn.
#
# **Predict.** Which of its words can be hidden, one at a time, so that the answer stays the same?

# %% id="hide-predict"
ex.predict("which_word_to_hide", "")

# %% id="hide-a-word" tags=["not-compared:differs-by-processor"]
yours = "the queen near the king paints".split()  # your sentence
for hide in dict.fromkeys(yours):  # each word once
    shown = torch.tensor([word != hide for word in yours])
    with torch.no_grad(), record_weights(model) as maps:
        chances = model(as_tensor([yours]), shown)[0].softmax(dim=-1)
    (weights,) = maps.values()  # (1, 1, T)
    most, answer = yours[weights[0, 0].argmax()], REFLEXIVES[chances.argmax()]
    print(f"without {hide:7} {answer} {chances.max():.2f}, most weight on {most}")

# %% [markdown] id="hide-says"
# In the run printed here every word can be hidden, even *queen*. (*Paints* is hidden only from being read; it still
# asks.) Nothing is broken: without *queen* the weight goes to *near*, and what *near* hands over also gives *herself*.
# Exchange *queen* and *king*: without the king the answer is *herself* again, and now it is wrong. So this head does not
# need the woman, although nearly all of its weight lies on her.
#
# One training run proves little. The next figure shows five, with different *seeds*, and two controls: a model without
# position vectors, and one whose weights are always even. With the subject hidden, each head still gets one of
# *herself* and *himself* mostly right and misses the other, so these have a row each. The last row reverses the order:
# *near the king the queen paints*.

# %% id="training-record" tags=["hide-input"]
# Figure: the recorded runs, a dot for each of five seeds
record = claim("pronoun_head")
rows = {
    "all words shown": ("one head", "right", 1e-2),
    "with a misleading person": ("one head", "right, misleading person", 1e-2),
    "misleading person, no positions": ("without places", "right, misleading person", None),
    "misleading person, even weights": ("even weights", "right, misleading person", None),
    "the other person hidden": ("one head", "other person hidden", 1e-2),
    "subject hidden: themselves": ("one head", "subject hidden, themselves", 1e-2),
    "subject hidden: the word it mostly gets right": ("one head", "subject hidden, better", 1e-2),
    "subject hidden: the word it mostly misses": ("one head", "subject hidden, worse", 1e-2),
    "the order reversed": ("one head", "fronted, right", 1e-2),
}
show(
    dot_rows(
        {what: record.values(*which) for what, which in rows.items()},
        colours=[palette.key if arm != "one head" else palette.query for arm, _, _ in rows.values()],
        xlim=(-0.03, 1.03),
        xlabel="share of right answers in unread sentences",
        size=(7.2, 3.2),
    ),
    alt="Right answers of five runs. One head: 1.00 with all words, with a misleading person, and with the other person "
    "hidden. Controls: 0.88 to 0.90 without positions, 0.66 to 0.71 with even weights. Subject hidden: themselves 1.00, "
    "one singular 0.64 to 1.00, the other 0.00 to 0.31. The order reversed: four runs 0, one 0.5.",
    caption=f"Blue: the head. Orange: the two controls. ({record.command})",
)
on_first = record.values("one head", "fronted, weight on first person", 1e-2)
prove("with the order reversed, four of five heads read the first person", sum(w > 0.9 for w in on_first) == 4)

# %% [markdown] id="training-record-says"
# Both controls are misled by the other person more often. To be always right, the head needs the positions and freedom
# to choose its weights.
#
# *Does it need the subject, at which it looks?* Only in part. Without the subject, *themselves* is still right in all
# five runs, because the verb says it. Of *herself* and *himself*, one is mostly wrong.
#
# *Has it learned what a subject is?* No. In all the sentences that it has read, the subject is the first person. With
# the order reversed, four of the five heads read the first person, in our example the king, and are always wrong; the
# fifth is right in half of the sentences. They have learned what was enough for their sentences.
#
# <details><summary>Evidence: three learning rates, and runs in which the subject matters more</summary>
#
# Each model was trained with the rates 0.001, 0.003 and 0.01. The figure shows the one head at 0.01 and the controls at
# their best rate. At all three rates all five heads have every unread sentence right, and hiding the other person
# changes nothing.
#
# At the lower rates the head with seed 1 hardly looks at a woman. At the rates 0.001 and 0.003 its weights on a woman
# who is the subject are 0.013 and 0.014, on a man 0.75 and 0.84. It also looks at plural subjects, with weights of 0.57
# and 0.53, and it misses them: with the subject hidden, *themselves* is right in 0.90 and 0.79 of the sentences. In the
# other 13 of the 15 runs it is right in all of them.
#
# Over the 15 runs, the better one of *herself* and *himself* keeps 0.53 to 1.00 without the subject, and the worse one
# 0.00 to 0.38. Further seeds at the rate 0.01 widen this: *themselves* fell to 0.92, 0.91 and 0.86 in three of them,
# and the better one to 0.45 in another.
#
# </details>

# %% [markdown] id="real-map-text"
# ### 7.1 A real model
#
# Finally, a model that people really use: MiniLM, which turns sentences into vectors for search. We look at one head of
# its 72, in the last of six layers. The sentence is from Uszkoreit (2017). `[CLS]` and `[SEP]` are signs that the model
# puts around each sentence.

# %% id="real-map" tags=["hide-input"]
# Figure: a head of MiniLM, from the record (python benchmarks/sentence_maps.py)
minilm_maps = recorded("sentence-maps-cpu")["maps"]
tokens, weights_read = minilm_maps["tired"]["tokens"], torch.tensor(minilm_maps["tired"]["weights"])
axes = attention_map(weights_read, queries=tokens, bar=True)
axes.set(xlabel="is read", ylabel="reads")
show(
    axes.figure,
    alt="Attention map of a head of MiniLM for: the animal did not cross the street because it was too tired. The row of "
    "it is darkest at animal. Many other rows are darkest at the sign CLS, at the start, or at animal.",
    caption="One head of a real model. In the row of “it” most weight lies on “animal”.",
)

# %% id="real-map-anew" tags=["hide-input"]
# Check: where the extra `pretrained` is installed, the model itself gives the recorded weights
from course_lib.variants.minilm import minilm_folder

if folder := minilm_folder():
    from tokenizers import Tokenizer

    from course_lib.variants import BERT

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    ids = tokenizer.encode(minilm_maps["tired"]["sentence"]).ids
    with torch.no_grad(), record_weights(minilm := BERT.from_pretrained(folder)) as maps_read:
        minilm.encode(torch.tensor([ids]))
    anew = list(maps_read.values())[5][0, 11]
    prove("MiniLM gives the recorded weights", (anew - weights_read).abs().max() < 0.01)

# %% [markdown] id="real-map-says"
# *It* finds *animal*. Has the model understood who was tired? Here is the same sentence with another word at its end.
# Now *it* is the street.

# %% id="real-rows" tags=["hide-input"]
# Figure: what the same head reads for "it" in two sentences
both = [minilm_maps[name] for name in ("tired", "wide")]
lines = [one["tokens"][1:-1] for one in both]
shares = [one["weights"][one["tokens"].index("it")][1:-1] for one in both]
axes = reading_rows(lines, shares, title="what the head takes from each word at the position of “it”")
colour_bar(axes.figure, axes)
show(
    axes.figure,
    alt="The two sentences, ending in too tired and too wide, as rows of words. In both, animal is the darkest word and "
    "street is nearly white.",
    caption="In both sentences this head takes most from “animal” and next to nothing from “street”.",
)
for one in both:
    places = [one["tokens"].index(word) for word in ("animal", "street")]
    of_head = [one["weights"][one["tokens"].index("it")][place] for place in places]
    more = sum(row[places[0]] > row[places[1]] for row in one["it"])
    word = one["tokens"][-3]
    print(f"too {word}: this head: animal {of_head[0]:.2f}, street {of_head[1]:.2f};", end=" ")
    print(f"more on animal than on street: {more} of 72 heads")
at = [[one["tokens"].index(word) for word in ("animal", "street")] for one in both]
prefers = [[row[animal] > row[street] for row in one["it"]] for one, (animal, street) in zip(both, at)]
changes = list(zip(*prefers))  # of each head: more on animal with tired, and with wide?
prove(
    "four heads change to street, and four to animal", changes.count((True, False)) == changes.count((False, True)) == 4
)
of_all = [tokens[best] for best in weights_read.argmax(dim=-1).tolist()]
print(f"the whole map above: animal has the largest weight in {of_all.count('animal')} of {len(tokens)} rows")

# %% [markdown] id="real-map-reading"
# This head did not follow the meaning. It reads *animal* in both cases. Of all 72 heads, the same number prefers
# *animal* in each sentence, but not the same heads: with *wide*, four change to *street*, as the meaning does, and four
# to *animal*. And in nine of the fifteen rows of the whole map, not only in that of *it*, *animal* has the largest
# weight.
#
# So how far can you trust a map? It tells you exactly how the values were mixed, in this head, in this layer. It does
# not tell you *why*, nor what the answer depends on: later layers mix again, a value may not matter, and other weights
# can give the same result (Jain & Wallace 2019). A map gives you an idea. To test it, change the sentence or hide a
# word. [A lab](labs/01_who_sees_what.ipynb) goes on with this.

# %% [markdown] id="thread-text"
# ## 8 Your model, and your sentence
#
# What you solved now goes into a file of your own, `my_transformer.py`. It grows with each chapter, and at the end of
# chapter 6 it trains, translates and writes. Unsolved parts use the course's version. Try it on a sentence of yours:
# say of each word what it is and what it looks for. If the values are the identity, the output is the weights.

# %% id="thread"
from coursework.assembly.thread import so_far

my = so_far(chapter=1)
mine = "she read my book".split()  # a sentence of yours,
is_a = "who does whose what".split()  # what each word is,
wants = "does what what whose".split()  # and what it looks for
# a key is 2.5 in the column of what its word is, else 0, and a query is 2.5
# in the column of what it wants; where both meet, the score is 2.5² / √4 = 3.1
key = torch.tensor([[2.5 * (a == b) for b in is_a] for a in is_a])  # (S, E)
query = torch.tensor([[2.5 * (a == b) for b in is_a] for a in wants])  # (T, E)
values = torch.eye(len(mine))[None, None]  # (B, H, S, S)
weights = my.attention(query[None, None], key[None, None], values)[0, 0]  # (T, S)
for word, row in zip(mine, weights):
    print(f"{word:>5} reads", ", ".join(f"{w:.2f} {one}" for one, w in zip(mine, row)))

# %% [markdown] id="end"
# ## 9 What you have
#
# ### The formulas on one card

# %% [markdown] id="card"
# <details><summary>To look things up later</summary>
#
# **The three vectors**: $x$ asks and $c$ is asked; in self-attention $c = x$.
#
# $$q = x W_Q \qquad k = c W_K \qquad v = c W_V$$
#
# **Attention**, with the queries, keys and values as rows:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# **The causal mask**: query $i$ of T may read key $j$ of S if
#
# $$j \le i + (S - T)$$
#
# **The cost** of one layer for $n$ words, in operations: first comparing and collecting, then the linear maps:
#
# $$4 n^2 d_{model} \qquad 24 n d_{model}^2$$
#
# **The spread** of a dot product of random numbers with variance 1 is $\sqrt{d_k}$.
#
# </details>

# %% [markdown] id="you-can-now"
# **You can now**
#
# - compute attention for three words on paper, and say what queries, keys and values are;
# - write attention for a batch, with masks, and check it against PyTorch;
# - say why dot products are divided by √d_k;
# - say what attention costs, and what it does not know;
# - read an attention map, and say what it does not show.

# %% [markdown] id="self-check"
# ### Check yourself
#
# Answer in a sentence, then open.
#
# <details><summary>1. Why does a word have three vectors, and not only one?</summary>
#
# Because what it looks for, what it can be found by, and what it hands over are three different things. If all were the
# same, a word would mostly fit itself best, and two words would always give each other the same score (1.4).
#
# </details>
#
# <details><summary>2. Queries are 256 wide and nobody divides by √d_k. What happens at the start of
# training?</summary>
#
# If queries and keys start with variance 1, the dot products have a spread of 16, one word takes most of the weight,
# and about half of the rows keep less than a tenth of the gradient. The head learns slowly (3).
#
# </details>
#
# <details><summary>3. Why are hidden scores set to minus infinity before the softmax, and not weights to zero after
# it?</summary>
#
# Because then the weights that are left still sum to one: the softmax shares out everything among the visible words
# (4.1).
#
# </details>
#
# <details><summary>4. Which vectors come from the other sentence in cross-attention?</summary>
#
# The keys and the values. There is one output for each query (2.4).
#
# </details>
#
# <details><summary>5. "Every word reads every other word in one step." When is this not so?</summary>
#
# Under a mask. With a causal mask no word reads a later one (4.1).
#
# </details>
#
# <details><summary>6. A map shows 0.75 on one word. Did that word cause the answer?</summary>
#
# The map does not say so. Hide the word, or change it, and look at the answer (7).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# One head takes one mixture for each word. What if a word needs two things at once, the subject *and* the verb?
# [Chapter 2](02_multi_head.ipynb) gives it several heads.
#
# Five labs go deeper: [reach](labs/01_reach.ipynb), [costs](labs/01_costs.ipynb), [numbers](labs/01_numbers.ipynb),
# [who sees what](labs/01_who_sees_what.ipynb), and [bugs](labs/01_bugs.ipynb).

# %% [markdown] id="sources"
# ### Sources
#
# <details><summary>The papers behind this chapter</summary>
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: sections 3.2.1 (formula and √d_k) and 3.2.3
#   (self- and cross-attention, causal mask).
# - Bahdanau, Cho, Bengio 2014, *Neural Machine Translation by Jointly Learning to Align and Translate*,
#   arXiv:1409.0473. With one vector for the sentence: Sutskever, Vinyals, Le 2014, arXiv:1409.3215; Cho et al. 2014,
#   arXiv:1406.1078. That long sentences suffer from one vector: Cho et al. 2014b, arXiv:1409.1259.
# - Raffel et al. 2020, *Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer* (T5),
#   arXiv:1910.10683.
# - Kalchbrenner et al. 2016, *Neural Machine Translation in Linear Time*, arXiv:1610.10099; Gehring et al. 2017,
#   *Convolutional Sequence to Sequence Learning*, arXiv:1705.03122.
# - Dao et al. 2022, *FlashAttention*, arXiv:2205.14135.
# - Uszkoreit 2017, *Transformer: A Novel Neural Network Architecture for Language Understanding*, Google Research blog:
#   the sentences with *tired* and *wide*.
# - Jain, Wallace 2019, *Attention is not Explanation*, arXiv:1902.10186; Wiegreffe, Pinter 2019, *Attention is not not
#   Explanation*, arXiv:1908.04626, on the limits of that argument.
# - MiniLM: Wang et al. 2020, arXiv:2002.10957; the model is `all-MiniLM-L6-v2` of Sentence Transformers.
#
# </details>
