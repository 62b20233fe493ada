# %% [markdown] id="title"
# # A museum of bugs: would you have noticed?
#
# *A lab on chapter 1. You should have read [chapter 1](../01_attention.ipynb) with its sections on masks. About
# {minutes} minutes.*
#
# A bug that raises an error is found in a minute. This museum shows nine that raise none. The program runs, the loss
# falls, the figures look fine, and the model is wrong. Several have occurred in programs that people use. For each
# exhibit read the code first and say what is wrong, then run it. The question of the lab is: what finds such bugs, if
# looking does not?

# %% id="setup" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import masks, testing
from course_lib.attention import CausalSelfAttention, SelfAttention, record_weights
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.testing import complaint, prove
from coursework import exercises as ex
from coursework.pictures import attention_map, drawings, show
from coursework.pictures.plots.common import panels

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="laws"
# ## What is a law?
#
# A test usually says: for this input, that output. To write it you need the right output, and for attention nobody
# knows it by heart. A **law** says instead what must never happen, whatever the input. *Changing a later word must not
# change an earlier output. What stands in padding must not matter.* A law does not read code. It changes one thing,
# runs the function again, and looks at what moved. `course_lib.testing` has such laws. `complaint` calls one and
# returns what it complains about, or an empty text if it is content.

# %% id="laws-drawn" tags=["hide-input"]
# Drawing: the mask that a causal layer must obey
drawings.mask_and_targets("the queen near the king paints".split()).show()

# %% [markdown] id="laws-tried"
# Before we trust a law, let us see it content once, and complaining once. Here it tries a head with a causal mask,
# which is right, and one without.

# %% id="laws-tried-run"
x = torch.randn(3, 5, 11)  # three sentences of five words, vectors of 11 numbers
for layer in (CausalSelfAttention(11, 7), SelfAttention(11, 7)):
    found = complaint(testing.assert_causal, layer, x)
    print(f"{type(layer).__name__}: {found or 'no complaint'}")

# %% [markdown] id="training-only"
# ## Exhibit 1: the careful model
#
# The author of this layer knows that the mask is there for training, when the words to be predicted stand in the input.
# So the mask is used then. What is wrong?


# %% id="training-only-code"
class Exhibit1(SelfAttention):
    def forward(self, x):
        mask = masks.causal_mask(x.size(1)) if self.training else None
        return super().forward(x, mask=mask)


# %% id="training-only-law"
found = complaint(testing.assert_causal, Exhibit1(11, 7), x)
print(found)

# %% [markdown] id="training-only-says"
# The loss in training is honest. The loss on test data is computed without the mask, so the model sees the words that
# it has to predict. It may suddenly look good enough to publish. And when the model writes, its early positions look at
# later ones, as they never did while it learned. A test that only ever looks at one mode cannot find this. The law runs
# both.
#
# ## Exhibit 2: the polite interface
#
# This layer takes a mask for padding, as its users wish. What does it do with it?


# %% id="unused-code"
class Exhibit2(SelfAttention):
    def forward(self, x, mask=None):
        query, key, value = self.projection(x)
        return sdpa(query, key, value)


# %% id="unused-law"
layer = Exhibit2(11, 7)


def use(x, real):
    return layer(x, mask=real[:, None])  # (B, T) -> (B, 1, T)


found = complaint(testing.assert_padding_invariant, use, x, module=layer)
print(found)

# %% [markdown] id="unused-says"
# Nothing. Python does not mind an argument that nobody reads. The padding takes part in every average, and each word's
# vector depends on how many pads happened to stand beside it. The law adds padding, changes what stands in it, and
# compares the real words.
#
# ## Exhibit 3: two interfaces, two languages
#
# PyTorch has two ways to attention. In `F.scaled_dot_product_attention`, and in this course, `True` in a mask means “may
# be read”. Here is the other one, `nn.MultiheadAttention`, with three sentences of which the second and third have
# padding at the end. Which of the two masks does it want: `real`, or `~real`?

# %% id="polarity-code" tags=["hide-input"]
# Figure: the weights of the third sentence, which has two real words, with either mask
torch.manual_seed(0)
torch_layer = nn.MultiheadAttention(11, 1, batch_first=True).eval()
real = torch.arange(5) < torch.tensor([5, 3, 2])[:, None]  # (B, S), True = a real word
read = {}
for name, mask in (("real", real), ("~real", ~real)):
    with torch.no_grad():
        _, weights = torch_layer(x, x, x, key_padding_mask=mask & mask.logical_not().any(-1, keepdim=True))
    read[f"key_padding_mask={name}"] = weights[2]
    print(f"key_padding_mask={name:>5}: weight on padding {weights[2, :, 2:].sum(-1).mean():.2f}")
show(
    panels(
        attention_map,
        read,
        keys=["word", "word", "pad", "pad", "pad"],
        queries=list("12345"),
        share="",
        size=(6.8, 2.9),
    ),
    alt="Two maps of the weights of a sentence with two words and three pads. With the mask real all weight lies on the "
    "pads. With its inverse all weight lies on the two words.",
    caption="With the mask that looks natural, the words are hidden and the padding is read.",
)


# %% id="polarity-law"
def swapped(x, real):
    return torch_layer(x, x, x, key_padding_mask=real, need_weights=False)[0]


def inverted(x, real):
    return torch_layer(x, x, x, key_padding_mask=~real, need_weights=False)[0]


found = complaint(testing.assert_padding_invariant, swapped, x, module=torch_layer)
print(found)
found = complaint(testing.assert_padding_invariant, inverted, x, module=torch_layer)
prove("3: the inverted mask obeys the law", not found)

# %% [markdown] id="polarity-says"
# In `nn.MultiheadAttention` and `nn.TransformerEncoder`, `True` means “is hidden”. Both meanings are natural, and no
# program can guess which one you had in mind. The habit that helps is to name a mask by what `True` means, as `real`
# above, and never just `mask`.
#
# ## Exhibit 4: minus a billion
#
# A famous fill for hidden scores is −1e9. This function is tested in float32, on ordinary data, and works. Then it
# meets a query that may see nothing, and then somebody switches to float16.


# %% id="half-code"
def exhibit4(query, key, value, mask):
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, T, S)
    return scores.masked_fill(~mask, -1e9).softmax(-1) @ value


# %% id="half-law"
some = masks.causal_mask(5)
some[3] = False  # the fourth query may see nothing
qkv = torch.randn(3, 1, 5, 8)  # three of (B, T, E)
rows = {"an empty row": some}
law = testing.assert_finite
found = complaint(law, exhibit4, *qkv, masks=rows, empty_rows_zero=True)
print("float32:", found)
half = torch.randn(1, 5, 8).half()
try:
    exhibit4(half, half, half, masks.causal_mask(5))
except RuntimeError as error:
    print("float16:", "overflow" if "overflow" in str(error) else error)

# %% [markdown] id="half-says"
# In float16 there is no −1e9, and PyTorch says so: this half of the bug is harmless. The other half is quiet. Where all
# five scores are −1e9 they are equal, so the row becomes an even average over words that are forbidden.
# [The lab on numbers](01_numbers.ipynb) has the whole story.
#
# ## Exhibit 5: tested with one sentence
#
# Here `real` says for each sentence which of its words are no padding; its shape is (B, T). With one sentence at a time
# everything is right. With three sentences of five words it raises an error, and somebody would have mended it. What
# happens with five sentences of five words?


# %% id="shape-code"
def exhibit5(x, real):
    """x (B, T, D), real (B, T) -> (B, T, D)."""
    scores = x @ x.mT / math.sqrt(x.size(-1))  # (B, T, T)
    return scores.masked_fill(~real, -math.inf).softmax(-1) @ x


five = torch.randn(5, 5, 11)  # B = T
law = testing.assert_padding_invariant
found = complaint(law, exhibit5, five, lengths=[2, 5, 3, 1, 4])
print(found)

# %% id="shape-drawn" tags=["hide-input"]
# Figure: the same table of True and False, read in two ways
lengths = torch.tensor([2, 5, 3, 1, 4])
real = torch.arange(5) < lengths[:, None]  # (B, T)
meant = real[1][None].expand(5, 5)
tables = {"meant, for sentence 2": meant, "done, for every sentence": real}
weights = {title: allowed / allowed.sum(-1, keepdim=True) for title, allowed in tables.items()}
show(
    panels(
        attention_map,
        weights,
        each=[{"mask": mask} for mask in tables.values()],
        queries=list("12345"),
        share="",
        size=(6.8, 2.9),
    ),
    alt="Two maps of five queries by five keys. In the left one, which was meant for the second sentence, all five keys are "
    "open to every query. In the right one, which is what happens, query 1 sees two keys, query 2 five, query 3 three, "
    "query 4 one and query 5 four, in every sentence.",
    caption="The lengths of the five sentences became the number of keys that each of the five queries may see.",
)

# %% [markdown] id="shape-says"
# Without an axis for the queries, PyTorch lines the mask up with the last two axes of the scores, (T, T). What was “word
# s of sentence b is real” becomes “query b may see key s”, for every sentence. With five sentences of five words the
# shapes fit, so there is no error. The mask should have been `real[:, None]`, of shape (B, 1, T). Tests need both: sizes
# that differ, and the case where they happen to agree.
#
# ## Exhibit 6: the figure for the paper
#
# The layer does not return its weights. For a figure its author computes them once more, beside the model, with the
# model's own queries and keys. What do they show?

# %% id="recomputed-code"
torch.manual_seed(0)
head = CausalSelfAttention(11, 7)
query, key, value = head.projection(x)
scores = query @ key.mT / math.sqrt(7)  # (B, T, S)
shown = scores.softmax(-1)  # once more, for the figure

# %% id="recomputed-drawn" tags=["hide-input"]
# Figure: the weights that were used, and those of the figure
with record_weights(head) as maps:
    output = head(x)  # (B, T, E')
(true_map,) = maps.values()  # (B, T, S)
show(
    panels(
        attention_map,
        {"used by the model": true_map[0], "computed for the figure": shown[0]},
        queries=list("12345"),
        share="",
        size=(6.8, 2.9),
    ),
    alt="Two maps of weights, five words by five. In the left one, those that the model used, the upper right triangle is "
    "empty. In the right one, computed again for the figure, all cells are filled.",
    caption="The second map never happened. It shows words reading words that the model hid from them.",
)
print(f"weight shown on words that were hidden: {shown.triu(diagonal=1).sum(-1).mean():.2f} for each row")


# %% id="recomputed-law"
def from_figure(value):
    return shown @ value  # (B, T, S) @ (B, S, E') -> (B, T, E')


law = testing.assert_equivalent
found = complaint(law, from_figure, lambda v: true_map @ v, value, gradients=False)
prove("6: a map that does not reproduce the output is caught", found)
same = torch.allclose(true_map @ value, output, atol=1e-6)
prove("6: the weights of the pass itself reproduce the output", same)

# %% [markdown] id="recomputed-says"
# A second computation is a second model, and this one has forgotten the mask. The same happens with a scale, with a
# position that is added on the way, and with *dropout*, which sets random numbers to zero in training. Weights must
# come from the pass that ran. There is a simple test for every map: weights times values must give the output of the
# head. `record_weights` in `course_lib` keeps those of the pass itself.
#
# ## Exhibit 7: the first word for ever
#
# When a model writes, it keeps the vectors of earlier words in a *cache*, so that only the new word has to be computed.
# The author tells PyTorch's function that attention is causal. How many of the keys in the cache does the new word see?


# %% id="cache-code"
def exhibit7(new, cache):
    seen = new if cache is None else torch.cat([cache, new], dim=1)  # (B, S, D)
    attend = F.scaled_dot_product_attention
    return attend(new, seen, seen, is_causal=True), seen


def repaired(new, cache):
    seen = new if cache is None else torch.cat([cache, new], dim=1)  # (B, S, D)
    return sdpa(new, seen, seen, causal=True), seen


def whole(x):  # the same without a cache
    return sdpa(x, x, x, causal=True)


# %% id="cache-law"
law = testing.assert_cache_consistent
found = complaint(law, whole, exhibit7, x)
print(found)
content = not complaint(law, whole, repaired, x)
prove("7: aligned at the bottom right, it is lawful", content)

# %% id="cache-drawn" tags=["hide-input"]
# Figure: what the one new query may see of five keys, in either alignment
top_left = torch.ones(1, 5, dtype=torch.bool).tril()
bottom_right = masks.causal_mask(1, 5)
tables = {"is_causal=True": top_left, "what is needed": bottom_right}
show(
    panels(
        attention_map,
        {title: allowed / allowed.sum() for title, allowed in tables.items()},
        columns=1,
        share="",
        each=[{"mask": mask} for mask in tables.values()],
        queries=["new"],
        keys=list("12345"),
        size=(4.6, 2.9),
    ),
    alt="Two rows of five keys for one new query. In the first, the flag of torch, only key 1 is open. In the second all five "
    "keys are open.",
    caption="One query and five keys: PyTorch's flag counts the query as the first row of the triangle, but it is the last.",
)

# %% [markdown] id="cache-says"
# A causal mask is a triangle, and with one query and five keys there is only one row of it. Which one? PyTorch's flag
# takes the first, aligned at the top left, so the new word sees nothing but the first word of the text. The last row is
# the right one. The model then writes nearly blind, and no error says so. PyTorch's issue 108108 asks for the other
# alignment.
#
# ## Exhibit 8: the other axis
#
# Two lines that look alike at a glance: `softmax(dim=-1)` and `softmax(dim=-2)`. The number of queries equals that of
# keys, so all shapes fit, and the mask is right. What goes wrong?


# %% id="axis-code"
def exhibit8(x):
    scores = x @ x.mT / math.sqrt(x.size(-1))  # (B, T, S)
    visible = masks.causal_mask(x.size(1))
    scores = scores.masked_fill(~visible, -math.inf)
    return scores.softmax(dim=-2) @ x


found = complaint(testing.assert_causal, exhibit8, x)
print(found)

# %% [markdown] id="axis-says"
# Over the queries, it is the *columns* that sum to one. The weight that word 1 gives to itself is then divided by a sum
# in which the scores of words 2, 3, 4 and 5 stand, so a later word changes an earlier output. The upper triangle of the
# map is empty all the same, so a look for words that read the future would have found nothing. The rows do give it
# away: here their sums run from 0.66 to 1.55.
#
# ## Exhibit 9: the test
#
# The last bug is not in an attention but in a test. It checks three things: the shape is right, all numbers are finite,
# and the weights sum to one (then averaging ones must give ones).
#
# **Predict.** Describe a function that has nothing to do with attention and passes all three.

# %% id="test-guess"
ex.predict("passes_a_weak_test", "")


# %% id="test-code"
def weak_test(attend):
    q, k, v = torch.randn(2, 5, 7), torch.randn(2, 11, 7), torch.randn(2, 11, 13)
    output, ones = attend(q, k, v), attend(q, k, torch.ones_like(v))
    fits = output.shape == (2, 5, 13) and bool(output.isfinite().all())
    return fits and torch.allclose(ones, torch.ones(2, 5, 13))


# %% id="test-law"
def fraud(query, key, value):
    """The plain average of the values, for every query."""
    mean = value.mean(dim=-2, keepdim=True)  # (B, 1, E')
    return mean.expand(*query.shape[:-1], -1)


q, k = torch.randn(2, 5, 7), torch.randn(2, 11, 7)
v = torch.randn(2, 11, 13)
law, names = testing.assert_gradients_flow, ["query", "key", "value"]
found = complaint(law, fraud, q, k, v, names=names)
print("the weak test passes:", weak_test(fraud))
print("the law says:", found)

# %% [markdown] id="answer"
# The average of all values passes. It ignores queries and keys, and so it cannot attend to anything. The law asks a
# different question: does the output depend on each of the inputs at all?
#
# ## The answer
#
# What finds bugs that raise no error?
#
# | exhibit | what went wrong | the law that sees it |
# |---|---|---|
# | 1 | the mask is used in training only | causal, in both modes |
# | 2 | a mask is accepted and never used | padding does not matter |
# | 3 | True means the opposite | padding does not matter |
# | 4 | a finite fill invents an output | empty rows give zero, all is finite |
# | 5 | (B, T) is taken for (T, T) | padding does not matter, with B = T |
# | 6 | the map is not that of the pass | map times values equals the output |
# | 7 | the triangle is aligned at the wrong corner | with a cache equals without |
# | 8 | softmax along the wrong axis | causal |
# | 9 | the test accepts a fraud | the output depends on query and key |
#
# Checking shapes finds one of them at most, the fifth, and only at some sizes. Checking that rows sum to one finds only
# the eighth of the exhibits as they stand here. Every one is found by asking what may depend on what, and what must.
# Each law is a few lines long; you can look at them in `course_lib.testing`, and use them on models of your own. [The
# next lab](01_who_sees_what.ipynb) turns the same idea into a picture.
#
# **Sources.** PyTorch issue [108108](https://github.com/pytorch/pytorch/issues/108108) (alignment of `is_causal`);
# NVIDIA apex issue [1052](https://github.com/NVIDIA/apex/issues/1052) (−1e9 in float16). The meaning of `True` in both
# interfaces stands in PyTorch's documentation of `key_padding_mask` and `attn_mask`.
