# %% [markdown] id="title"
# # Lab: which mistakes with heads does no error tell?
#
# Eight ways to get several heads wrong. All of them run, and all return the right shape. Programs like these have been
# published, and some of them stood for years. For each exhibit read the code, say what is wrong, and then run the cell.
# What finds the mistake is a *law*: a sentence that must be true of every right program, whatever its parameters, and
# that a program can check. The lab stands on [chapter 2](../02_multi_head.ipynb) and takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and sizes that are different primes
import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import masks, testing
from course_lib.attention import record_weights
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.multi_head import MultiHeadAttention, merge_heads, split_heads
from course_lib.testing import complaint, prove
from coursework import exercises as ex
from coursework.pictures import attention_map, drawings, show

torch.manual_seed(0)
torch.set_num_threads(1)
B, T, H, E = 2, 5, 3, 7  # sentences, tokens, heads, numbers in a head
D = H * E
x = torch.randn(B, T, D)

# %% [markdown] id="museum-view-question"
# ## 1 Splitting in one line
#
# Someone wants heads, knows the shape that must come out, and writes it down. The attention after it is causal: no
# token may depend on a later one.
#
# **Predict.** Which tokens does head 0 compare? And which law of a causal layer is broken?

# %% id="museum-view-guess"
ex.predict("museum_split_in_one_line", "")


# %% id="museum-view"
def exhibit1(x):
    heads = x.view(x.size(0), H, x.size(1), -1)  # (B, T, D) -> (B, H, T, E)
    return merge_heads(sdpa(heads, heads, heads, causal=True))


found = complaint(testing.assert_causal, exhibit1, x)
print(found)

# %% [markdown] id="museum-view-says"
# The numbers are read on into the new shape, so a head holds pieces of one token where it should hold pieces of all.
# Row and token no longer agree, and the mask hides the wrong things. The law changes one token and looks whether an
# earlier output moves. It needs to know nothing about heads. Had the heads been merged by a `view`, too, nothing would
# leak, and this law would find nothing. The law of exhibit 2 would.

# %% id="museum-view-drawn" tags=["hide-input"]
# Drawing: what the one line does
drawings.split_into_heads(straight=True).show()

# %% [markdown] id="museum-merge-question"
# ## 2 Merging with a reshape
#
# At the merge `view` raised an error. Someone read that `reshape` always works, and so it did.
#
# Think of the order of the tokens. If you exchange two tokens at the input of a layer without a mask and without
# positions, then exactly the two outputs must be exchanged. Does that hold here?


# %% id="museum-merge"
def exhibit2(x):
    heads = split_heads(x, H)  # (B, H, T, E)
    return sdpa(heads, heads, heads).reshape(x.shape)


def repaired2(x):
    heads = split_heads(x, H)
    return merge_heads(sdpa(heads, heads, heads))


found = complaint(testing.assert_permutation_equivariant, exhibit2, x)
print(found)

# %% [markdown] id="museum-merge-says"
# In memory, all tokens of head 0 come first. A reshape without exchanging the axes fills the vector of a token with
# pieces of several tokens. The error that `view` had raised was a help, and it was silenced. The repaired form exchanges
# first and joins then.

# %% id="museum-merge-repaired" tags=["hide-input"]
# Check: the repaired merge obeys the law
prove("the repaired merge obeys the law", not complaint(testing.assert_permutation_equivariant, repaired2, x))
print("repaired: no complaint")

# %% [markdown] id="museum-mask-question"
# ## 3 Whose mask is it?
#
# Each sentence has a mask of its own, of shape (B, T, S). There are three heads, and today there are three sentences in
# the batch. Who reads whose mask?


# %% id="museum-mask"
def exhibit3(x, real):
    heads = split_heads(x, H)  # (B, H, T, E)
    mask = real[:, None].expand(-1, x.size(1), -1)  # (B, S) -> (B, T, S)
    scores = heads @ heads.mT / math.sqrt(E)  # (B, H, T, S)
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return merge_heads(weights @ heads)


three = torch.randn(3, 5, D)  # as many sentences as heads
found = complaint(testing.assert_padding_invariant, exhibit3, three, alone=False)
print(found)

# %% [markdown] id="museum-mask-says"
# Shapes are lined up from the right, so the axis of the sentences meets the axis of the heads. Head 0 reads the mask of
# sentence 0 in all sentences. The law says that what stands in the padding must not matter. With two sentences the
# program would have stopped with an error; a test with one sentence, or with as many sentences as heads, is the worst
# test one can have.

# %% id="museum-mask-drawn" tags=["hide-input"]
# Drawing: what meets what
drawings.mask_axes().show()


# %% id="museum-mask-repaired" tags=["hide-input"]
# Check: with its two axes in between, the mask obeys the law
def repaired3(x, real):
    heads = split_heads(x, H)
    scores = (heads @ heads.mT / math.sqrt(E)).masked_fill(~real[:, None, None], -math.inf)  # (B, 1, 1, S)
    return merge_heads(scores.softmax(-1) @ heads)


prove("the mask with its axes obeys the law", not complaint(testing.assert_padding_invariant, repaired3, three))
print("repaired: no complaint")

# %% [markdown] id="museum-scale-question"
# ## 4 The root of which width?
#
# “Divide the scores by the root of the width.” The model is 21 wide, a head is 7 wide.


# %% id="museum-scale"
def exhibit4(x):
    heads = split_heads(x, H)
    return merge_heads(sdpa(heads, heads, heads, scale=1 / math.sqrt(D)))


found = complaint(testing.assert_equivalent, exhibit4, repaired2, x)
print(found)

# %% [markdown] id="museum-scale-says"
# A score of a head is a sum of E products, so it is divided by the root of E. With the root of D the scores are too
# small, by the root of H. This is the mildest of the exhibits. The model trains, with heads that are a little too even,
# and no law of masks or order is broken. Only a comparison with another implementation shows it.
#
# ## 5 Who shares with whom?
#
# Six query heads share three heads of keys and values. So each must be used twice. The program repeats them until there
# are six. With which head of keys does query head 1 work?


# %% id="museum-tiled"
def exhibit5(query, key, value):
    share = query.size(1) // key.size(1)
    return sdpa(query, key.repeat(1, share, 1, 1), value.repeat(1, share, 1, 1))


kernel = functools.partial(F.scaled_dot_product_attention, enable_gqa=True)
query = torch.randn(2, 6, 5, 7)  # H = 6
key, value = torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 7)  # G = 3
found = complaint(testing.assert_equivalent, exhibit5, kernel, query, key, value)
print(found)

# %% [markdown] id="museum-tiled-says"
# `repeat` lays the three heads out as 0 1 2 0 1 2. Published parameters expect neighbours to share: 0 0 1 1 2 2, which
# is `repeat_interleave`. A model trained from scratch with the tiled order works. Parameters that were published for the
# other order give nonsense. And with one head of keys, or with six, the two orders are the same, so a test with those
# sizes sees nothing.

# %% id="museum-tiled-one" tags=["hide-input"]
# Check: with a single head of keys nobody would notice
one = complaint(testing.assert_equivalent, exhibit5, kernel, query, key[:, :1], value[:, :1])
prove("with one head of keys nobody would notice", not one)
print("with one head of keys and values: no complaint")

# %% id="shared-drawn" tags=["hide-input"]
# Drawing: neighbours share
drawings.shared_heads().show()

# %% [markdown] id="dropout-maps-question"
# ## 6 Maps for a paper
#
# In training, **dropout** sets some weights to zero by chance and makes the others larger, so that the model does not
# rely on any of them. PyTorch's layer returns its weights *after* that. Someone makes a model, which is in training mode
# as every new model is, and draws a map of seven tokens.
#
# **Predict.** Do the rows of this map sum to one?

# %% id="dropout-maps-guess"
ex.predict("museum_rows_after_dropout", "")

# %% id="dropout-maps"
torch.manual_seed(0)
seven = torch.randn(1, 7, 64)  # seven tokens
theirs = nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)
_, after = theirs(seven, seven, seven, average_attn_weights=False)  # (B, H, T, T)
ours = MultiHeadAttention.from_torch(theirs)
with record_weights(ours) as maps:
    ours(seven)
(before,) = maps.values()
for name, weights in (("after dropout", after), ("before dropout", before)):
    sums, zeros = weights.sum(-1), (weights == 0).float().mean()
    low, high = sums.min(), sums.max()
    print(f"{name:>14}: rows sum to {low:.2f} to {high:.2f}, zeros {zeros:.2f}")
even = torch.allclose(before.sum(-1), torch.ones(1, 4, 7))
prove("weights before dropout sum to one in training, too", even)

# %% id="dropout-maps-drawn" tags=["hide-input"]
# Figure: the map of one head, after dropout
axes = attention_map(after[0, 0].detach().clamp(max=1))
axes.set_title("after dropout")
show(
    axes.figure,
    alt="A map of seven by seven tokens with weights below one half, and a few cells that are exactly zero, "
    "scattered by chance.",
    caption="The zeros are no pattern of the head. They were rolled by dice, and the next pass has others.",
)

# %% [markdown] id="museum-dropout-says"
# The holes are dropout's and not the head's. Ask for weights in evaluation mode (`model.eval()`), or keep those before
# dropout, as `record_weights` does. Note also that this model is not trained at all. Its rows are fairly even, and there
# is nothing to be read off them.
#
# ## 7 What cannot happen without it?
#
# The heads are merged and returned. The shape is right. What is missing?


# %% id="museum-output"
class Exhibit7(MultiHeadAttention):
    def forward(self, x):
        parts = self.query(x), self.key(x), self.value(x)
        return merge_heads(sdpa(*(split_heads(part, self.n_heads) for part in parts)))


layer = Exhibit7(D, H)
parameters = dict(layer.named_parameters())
found = complaint(testing.assert_gradients_flow, layer, x, parameters=parameters)
print(found)

# %% [markdown] id="museum-output-says"
# The output map is made and never used. Without it the heads never meet: head h can write into its own E numbers of the
# result and nowhere else. A *gradient* says how training would change a parameter. The law asks that each parameter gets
# one. (The biases of the keys are an exception: they add the same to all scores of a query, and softmax takes no notice.)
#
# ## 8 A sentence that is all padding
#
# A batch is filled up with an empty sentence, all of it padding. Its queries may look at nothing. The softmax of nothing
# is 0 divided by 0, which is *NaN*, not a number. The loss never touches the empty sentence. Is everything all right
# then? PyTorch's layer is asked twice: with `need_weights=True`, its default, and with `need_weights=False`.

# %% id="mask-empty"
nothing = masks.length_mask([5, 3, 0], 5)  # (B, 1, 1, S): the third is all padding
padded = ~nothing[:, 0, 0]  # PyTorch's masks say who is hidden
theirs = nn.MultiheadAttention(D, H, batch_first=True)
ours = MultiHeadAttention.from_torch(theirs)


def tried(name, module, read):
    module.zero_grad()
    output = read()
    output[:2].sum().backward()  # the loss of the two real sentences
    bad = sum(bool(p.grad.isnan().any()) for p in module.parameters())
    ruined = bool(output.isnan().any())
    print(f"{name:<26} NaN in output: {ruined}, bad gradients: {bad}")
    return bad


# %% id="mask-empty-tried"
for wanted in (True, False):
    options = {"key_padding_mask": padded, "need_weights": wanted}
    read = functools.partial(theirs, three, three, three, **options)
    tried(f"torch, need_weights={wanted}", theirs, lambda read=read: read()[0])
bad = tried("course_lib", ours, lambda: ours(three, mask=nothing))
prove("the library's gradients stay finite when a sentence is all padding", bad == 0)

# %% [markdown] id="mask-empty-says"
# With `need_weights=True` the output of the empty sentence is NaN, and worse, the gradients of the parameters are NaN,
# although no loss was taken from it: 0 times NaN is NaN. One step of the optimizer, and the model is lost. With
# `need_weights=False` PyTorch takes another way through its code, in which such queries get zeros, as in `course_lib`. So
# it depends on an argument that seems to be about looking only.

# %% [markdown] id="end"
# ## What finds them
#
# | exhibit | what finds it |
# |---|---|
# | 1 a view when splitting | a causal layer may not depend on later tokens |
# | 2 a reshape when merging | exchanged tokens give exchanged outputs |
# | 3 a mask read per head | what stands in the padding does not matter; as many sentences as heads |
# | 4 the wrong root | comparison with another implementation |
# | 5 tiled groups | comparison, with 1 < G < H |
# | 6 maps after dropout | rows sum to one |
# | 7 no output map | each parameter gets a gradient |
# | 8 nothing to look at | finite gradients, with an empty sentence in the batch |
#
# Sizes that differ from each other, and a case in which two of them agree, find more than many cases of one kind.
