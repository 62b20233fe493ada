# %% [markdown] id="title"
# # Which numbers break attention?
#
# *A lab on chapter 1. You should have read [chapter 1](../01_attention.ipynb) with its section on masks. About
# {minutes} minutes with the exercises.*
#
# The formula of attention is short, and on paper nothing can go wrong with it. A computer's numbers are not those on
# paper. There is a largest one, there are gaps between them, and there are two strange members, *infinity* and *NaN*
# (“not a number”). In this lab you feed attention with numbers at which programs in use have failed: scores that are
# too large, numbers of sixteen bits, fills that are not minus infinity, and queries that may see nothing. For each you
# find out what happens, and write the version that survives.

# %% id="setup" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import functools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import testing
from course_lib.attention import QKVProjection, SelfAttention, record_weights
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.testing import complaint, prove
from coursework import exercises as ex
from coursework.pictures import drawings, show
from coursework.pictures.plots import chapter_01 as plots
from coursework.pictures.plots.common import bars, curves, panels

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="numpy-listing"
# ## 1 A popular listing
#
# Many introductions show attention as a few lines of NumPy like these. For simplicity they often leave the projections
# out, so that each word's vector is its query, its key and its value.


# %% id="numpy-attention"
def numpy_softmax(scores):
    powers = np.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


def numpy_attention(x):
    """Vectors (T, D) -> outputs (T, D), weights (T, T)."""
    query = key = value = x
    scores = query @ key.T / np.sqrt(key.shape[-1])  # (T, D) @ (D, T) -> (T, T)
    weights = numpy_softmax(scores)
    return weights @ value, weights


# %% [markdown] id="numpy-run-text"
# The usual demonstration has three random words of width 4. All weights are positive, each row sums to one, and the
# result is the same as that of the course's function.

# %% id="numpy-run"
three_words = np.random.RandomState(42).randn(3, 4)  # (T, D)
output, weights = numpy_attention(three_words)
print(weights.round(3))
same_words = torch.tensor(three_words)
right = sdpa(same_words, same_words, same_words).numpy()
prove("the listing is right for one short sentence", np.allclose(output, right))

# %% [markdown] id="numpy-overflow-question"
# **Predict.** Multiply the three vectors by 30. Nothing else changes, and the numbers in them are still below 100. What
# will the listing print?

# %% id="numpy-overflow-guess"
ex.predict("vectors_times_thirty", "")

# %% id="numpy-overflow"
with np.errstate(over="ignore", invalid="ignore"):  # NumPy would only warn
    _, weights = numpy_attention(30 * three_words)
print(weights.round(3))

# %% id="numpy-overflow-proof" tags=["hide-input"]
# Check: the listing gives NaN, the library does not
tensor = 30 * torch.tensor(three_words)
_, stable = sdpa(tensor, tensor, tensor, return_weights=True)
prove("the listing's softmax gives NaN on large scores", bool(np.isnan(weights).any()))
prove("the library gives no NaN on the same scores", bool(stable.isfinite().all()))
largest = {"float16": 65504, "bfloat16": torch.finfo(torch.bfloat16).max, "float32": torch.finfo(torch.float32).max}
largest["float64"] = torch.finfo(torch.float64).max
prove("float16 ends at 65504", torch.finfo(torch.float16).max == 65504)

# %% [markdown] id="overflow-why"
# ## 2 The largest number
#
# Vectors that are 30 times as long have scores that are 900 times as large, and the exponential of such a score is
# beyond the largest number that the machine can write down. Then it writes *infinity*. The sum of the row is infinity
# too, and infinity divided by infinity has no value, so the machine writes NaN. The third word's vector is shorter than
# the others, and its scores stay small enough.
#
# How large may a score be? That depends on how the numbers are stored. The largest score whose exponential still fits
# is the logarithm of the largest number.

# %% id="overflow-limits" tags=["hide-input"]
# Figure: from which score on the exponential overflows, by kind of number
show(
    bars(
        largest,
        [math.log(top) for top in largest.values()],
        lying=True,
        numbers="%.1f",
        colours="#0072B2",
        xlabel="largest score whose exponential is finite",
        xlim=(0, 800),
        size=(6.5, 2.2),
    ),
    alt="Bars for four kinds of numbers: the exponential is finite up to a score of 11.1 in float16, 88.7 in bfloat16 and "
    "float32, and 709.8 in float64.",
    caption="In float32, the usual kind, a score of 89 is already too large; in float16 a score of 12.",
)

# %% [markdown] id="shift"
# The cure is one subtraction. If every score of a row becomes smaller by the same number, every exponential is divided
# by the same factor, and the factor cancels when we divide by the sum. **By hand**, for the scores 1001 and 1002:
#
# | | first | second |
# |---|---|---|
# | score | 1001 | 1002 |
# | minus the largest, 1002 | −1 | 0 |
# | exponential | 0.37 | 1 |
# | divided by the sum, 1.37 | 0.27 | 0.73 |
#
# These are the weights that 1 and 2 would have got. After the subtraction the largest score is 0 and its exponential is
# 1, so nothing can overflow; very negative scores become zero, which is what they should be.
#
# $$\mathrm{softmax}(s)_i = \frac{e^{s_i - m}}{\sum_j e^{s_j - m}} \qquad m = \max_j s_j$$

# %% id="shift-proof" tags=["hide-input"]
# Check: the numbers of the table
row = torch.tensor([1001.0, 1002.0])
prove("the table of the example", torch.allclose(row.softmax(-1), torch.tensor([0.27, 0.73]), atol=0.005))
prove("1 and 2 get the same weights", torch.allclose(row.softmax(-1), (row - 1000).softmax(-1)))

# %% exercise="stable_softmax"

# %% [markdown] id="numpy-batch-question"
# The listing has a second weakness, and this one raises no warning at all. Real programs work on several sentences at
# once, so the tensors get one more axis in front: (B, T, D).
#
# **Predict.** What will the listing do with two sentences of three words of width 4, and what with four sentences of
# four words of width 4?

# %% id="numpy-batch-guess"
ex.predict("listing_with_a_batch", "")

# %% id="numpy-batch"
for shape in ((2, 3, 4), (4, 4, 4)):
    batch = np.random.RandomState(42).randn(*shape)  # (B, T, D)
    try:
        output, _ = numpy_attention(batch)
        right = np.stack([numpy_attention(sentence)[0] for sentence in batch])
        print(shape, "runs; same as one by one:", np.allclose(output, right))
    except ValueError as error:
        print(shape, "fails:", str(error).split(":")[0])

# %% id="numpy-batch-proof" tags=["hide-input"]
# Check: with three equal sizes it runs and is wrong
prove("on a batch with three equal sizes the listing runs and is wrong", not np.allclose(output, right))

# %% [markdown] id="numpy-batch-says"
# `key.T` reverses *all* axes, the one of the sentences too. With different sizes the product then fails, which is good
# luck. With equal sizes it runs, mixes sentences with words, and gives numbers that look like any others.
# `key.transpose(-2, -1)`, or `key.mT`, exchanges only the last two axes. In chapter 1 you wrote that version. A habit
# follows from this: test with sizes that are all different, such as 2, 3, 5 and 7.

# %% [markdown] id="half"
# ## 3 Numbers of sixteen bits
#
# Large models calculate with numbers of 16 bits, because these take half the memory and hardware is much faster with
# them. Sixteen bits can be shared out in two ways. **float16** spends more of them on digits: it knows about three
# decimal digits, and ends at 65,504. **bfloat16** spends more on the range: it reaches as far as float32, and knows a
# little more than two decimal digits. Anything between two neighbouring numbers cannot be stored.

# %% id="half-drawn" tags=["hide-input"]
# Figure: the gap to the next number, against the size of the number
sizes = 2.0 ** np.arange(-8, 24)
kinds = (("float16", 10, 65504), ("bfloat16", 7, 3e38), ("float32", 23, 3e38))
gaps = {name: np.where(sizes < top, sizes / 2.0**digits, np.nan) for name, digits, top in kinds}
show(
    curves(
        sizes, gaps, styles=["-"], xscale="log", yscale="log", xlabel="size of the number", ylabel="gap to the next"
    ),
    alt="The gap between neighbouring numbers against their size, both logarithmic. float16 lies below bfloat16 by a factor "
    "of eight and ends at 65504; float32 lies far below both.",
    caption="float16 has eight times finer steps than bfloat16 and ends early. float32 has far finer steps than both.",
)
near = (
    (torch.tensor(1.0, dtype=torch.bfloat16) + 2**-7).item(),
    (torch.tensor(1.0, dtype=torch.float16) + 2**-10).item(),
)
prove("the steps after 1 are 1/128 in bfloat16 and 1/1024 in float16", near == (1 + 1 / 128, 1 + 1 / 1024))

# %% [markdown] id="row-sums"
# What do such gaps do to attention? A row of weights should sum to one. In float32 it does, up to rounding. The second
# line below is the same in bfloat16. The third shows something else that is often forgotten: **dropout**, used in
# training, sets some weights to zero by chance and enlarges the others so that the sum stays right *on average*. Some
# libraries return the weights after dropout.

# %% id="row-sums-measured"
q, k, v = torch.randn(3, 16, 50, 8)  # (3, B, T, E): three of (B, T, E)
_, weights = sdpa(q, k, v, return_weights=True)
_, low = sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), return_weights=True)
dropped = F.dropout(weights, 0.1)
for name, rows in (("float32", weights), ("bfloat16", low), ("after dropout", dropped)):
    sums = rows.double().sum(-1)  # (B, T)
    print(f"{name:>13}: rows sum to {sums.min():.3f} … {sums.max():.3f}")

# %% id="row-sums-drawn" tags=["hide-input"]
# Figure: the sum of each of 800 rows, for the three kinds of weights
kinds = {"float32": weights, "bfloat16": low, "after dropout": dropped}
sums = {name: {"": rows.double().sum(-1).flatten()} for name, rows in kinds.items()}
show(
    panels(curves, range(800), sums, styles=["."], ylabel="sum of its weights", xlabel="row", size=(6.8, 2.4)),
    alt="The sums of 800 rows of weights as dots. In float32 all lie on one. In bfloat16 they scatter by a few thousandths. "
    "After dropout they scatter from about 0.65 to 1.11.",
    caption="Rounding to sixteen bits moves the sums a little; dropout moves them a lot.",
)

# %% id="row-sums-library" tags=["hide-input"]
# Check: which weights are returned while dropout is on
torch.manual_seed(0)
_, shown = sdpa(q, k, v, dropout=0.1, return_weights=True)
torch_layer = nn.MultiheadAttention(8, 1, dropout=0.1, batch_first=True)  # starts in training mode
_, returned = torch_layer(q, q, q)  # (B, T, S)
off = (returned.sum(-1) - 1).abs().max()
sums = dropped.sum(-1)
prove("weights after dropout do not sum to one in training", sums.max() - sums.min() > 0.1)
prove("course_lib returns the weights before dropout", torch.allclose(shown, weights))
prove("torch's layer returns those after it", off > 0.1)
prove("in bfloat16 the rows are off by less than one percent", (low.double().sum(-1) - 1).abs().max() < 0.01)

# %% [markdown] id="row-sums-says"
# So *the weights of each query sum to one* is true of the softmax, and not of everything that is called attention
# weights. `nn.MultiheadAttention` in training mode returns weights after dropout; `course_lib` returns those before it.
# Before you draw a map, put the model into evaluation mode, which turns dropout off.

# %% [markdown] id="fills"
# ## 4 What to write over a hidden score
#
# A mask hides a score by writing something very low over it before the softmax. In the formula that is minus infinity.
# Textbook code often writes a large negative number instead, such as −1e9 or −1e4. Does it matter? Here are five fills
# in four situations. In each row of five keys, three may be seen and two are hidden. What you want to see is a zero: no
# weight on hidden keys.
#
# - *ordinary*: the scores lie around 0.
# - *low*: all scores lie around −20,000.
# - *nothing visible*: all five keys are hidden, as for a sentence that is only padding.
# - *float16*: the scores are stored in float16.
#
# **Predict.** In which of the four situations does −1e9 behave like minus infinity?

# %% id="fills-guess"
ex.predict("minus_a_billion", "")

# %% id="fills-measured" tags=["hide-input"]
# Figure: weight that lands on hidden keys, for five fills in four situations
row = torch.randn(5, generator=torch.Generator().manual_seed(0))  # (S,)
visible = torch.tensor([True, True, True, False, False])


def on_hidden(scores, mask, fill):
    try:
        return scores.masked_fill(~mask, fill).softmax(-1)[~mask].sum().item()
    except RuntimeError:
        return "error"


situations = {
    "ordinary": (row, visible),
    "low": (row - 2e4, visible),
    "nothing visible": (row, torch.zeros(5, dtype=torch.bool)),
    "float16": (row.half(), visible),
}
fills = {"0": 0.0, "−30": -30.0, "−1e4": -1e4, "−1e9": -1e9, "−inf": -math.inf}
found = {(f, s): on_hidden(*situations[s], fills[f]) for f in fills for s in situations}
show(
    plots.weight_on_hidden(found),
    alt="A table of five fills against four situations, the weight on hidden keys in each cell. Minus infinity gives 0 in "
    "three situations and NaN where nothing is visible. −1e9 gives 0 for ordinary and low scores, 1 where nothing is "
    "visible, and an error in float16. −1e4 takes everything when scores are low. −30 leaks a little; 0 a lot.",
    caption="Weight on hidden keys; coloured where it is not zero. No fill is right everywhere, not even minus infinity.",
)

# %% id="fills-proof" tags=["hide-input"]
# Check: what the text says of the fills
same = [row.masked_fill(~visible, fill).softmax(-1) for fill in (-1e9, -math.inf)]
prove("where something is visible, -1e9 and minus infinity agree to the last bit", torch.equal(*same))
prove("-1e9 does not fit into float16", found["−1e9", "float16"] == "error")
low = row.bfloat16().masked_fill(~visible, -1e9).softmax(-1)[~visible]
prove("-1e9 hides scores in bfloat16", low.sum() == 0)
prove("-30 leaks a little, zero a lot", 0 < found["−30", "ordinary"] < 1e-10 and found["0", "ordinary"] > 0.1)
prove("-1e4 takes all weight when the scores are low", found["−1e4", "low"] > 0.99)

# %% [markdown] id="fills-says"
# You will read that −1e9 is as good as minus infinity. On ordinary rows it is, to the last bit. In float16 there is no
# such number, so PyTorch stops with an error, and a hurried programmer replaces it by −1e4. That works until the
# visible scores are lower still; then the hidden keys win. And where nothing is visible, every finite fill gives all
# the weight to keys that are forbidden. Why does it spread evenly there? You can answer that yourself:

# %% exercise="equal_keys"

# %% [markdown] id="poison"
# ## 5 The query that may see nothing
#
# Minus infinity is the honest fill, and it has one weak point: if a whole row is minus infinity, the softmax divides
# zero by zero. Such rows are not exotic. A batch is filled up with a sentence that consists of padding alone; a window
# of the last two keys falls on padding. The row's output is NaN. But nobody uses the output of a padded position: the
# loss leaves it out. So does it do any harm?
#
# **Predict.** Three sentences, the third nothing but padding. The loss uses the outputs of real words only. Query, key
# and value each come from a matrix. How many of the three matrices get a gradient of NaN: none, one, two or three?

# %% id="poison-guess"
ex.predict("matrices_with_nan", "")


# %% id="poison-ways"
def filled(query, key, value, mask):
    """Minus infinity is written over the hidden scores."""
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, T, S)
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ value


def added(query, key, value, mask):
    """A table with 0 and minus infinity is added to the scores."""
    table = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, T, S)
    return (scores + table).softmax(-1) @ value


# %% id="poison-measured"
def poisoned(attend):
    """The matrices whose gradient holds NaN after one backward pass."""
    torch.manual_seed(0)
    head, x = QKVProjection(11, 5), torch.randn(3, 5, 11)  # x: (B, T, D)
    real = torch.arange(5) < torch.tensor([5, 2, 0])[:, None]  # (B, T)
    output = attend(*head(x), mask=real[:, None])  # (B, T, E)
    output[real].sum().backward()  # only real words
    maps = {"query": head.query, "key": head.key, "value": head.value}
    return [name for name, one in maps.items() if one.weight.grad.isnan().any()]


for name, attend in (("filled", filled), ("added", added), ("course_lib", sdpa)):
    print(f"{name:>10}: NaN in the gradients of", ", ".join(poisoned(attend)) or "none")

# %% id="poison-proof"
prove("filled: the matrix of the values is poisoned", poisoned(filled) == ["value"])
prove("added: all three are", poisoned(added) == ["query", "key", "value"])
prove("course_lib keeps all gradients finite", poisoned(sdpa) == [])

# %% id="poison-drawn" tags=["hide-input"]
# Drawing: how one row of NaN reaches the parameters
drawings.spreading_nan().show()

# %% [markdown] id="poison-says"
# The loss picked out the real rows by their index, so the bad rows received a gradient of exactly zero. That did not
# help. On the way back, the gradient of the values is *weights times gradient of the output*; the weights of the bad
# row are NaN, and zero times NaN is NaN. Then the contributions of all sentences are added up, because they share one
# matrix, and a sum with one NaN in it is NaN.
#
# Why only the values in the first version? `masked_fill` passes no gradient to a score that was overwritten, and in
# the bad row all were. In the second version the table was *added*, so the NaN goes on to the scores, and from there to
# queries and keys. The next step of the optimizer then makes the parameters themselves NaN, and the training is over.
# (PyTorch's issue 41508 is about this.)
#
# `course_lib` opens the empty rows before the softmax, so that nothing is divided by zero, and sets their weights to
# zero after it. The law `assert_finite` holds it to that, in float32 and bfloat16.
#
# Now write it yourself. In the exercise the mask may have fewer axes than the scores, or axes of size 1. PyTorch then
# *broadcasts* it: it repeats the mask along those axes, without copying it.

# %% id="empty-rows-law" tags=["hide-input"]
# Check: both ways of computing obey the law of finite numbers
B, H, T, S, E, E_value = 2, 3, 5, 11, 7, 13
q, k, v = torch.randn(B, H, T, E), torch.randn(B, H, S, E), torch.randn(B, H, S, E_value)
some = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(0)) < 0.3
some[:, :, 1] = False  # the second query sees nothing
law = ""
for backend in ("explicit", "fused"):
    attend = functools.partial(sdpa, backend=backend)
    law += complaint(testing.assert_finite, attend, q, k, v, masks={"empty rows": some}, empty_rows_zero=True)
prove("empty rows give zero, and all stays finite", not law)
print("assert_finite:", law or "holds, with empty rows, on both ways of computing")

# %% exercise="masked_softmax"

# %% [markdown] id="large"
# ## 6 Scores that are merely too large
#
# With a stable softmax large scores give no NaN any more. They do something quieter: the largest takes all the weight.
# To measure how undecided a row of weights is, people use its **entropy**: it is zero when one key has everything, and
# the logarithm of the number of keys when all have the same. It contains a trap of its own, because a weight of exactly
# zero has no logarithm.

# %% exercise="attention_entropy"

# %% [markdown] id="large-text"
# Here is a case that occurs. The Transformer of 2017 multiplies its word vectors by the square root of their width,
# √D, before anything else. Suppose D = 512, so that the factor is about 22.6. A fresh head of width 64 reads 50 words,
# and we look at the entropy of its rows for vectors of different sizes. The largest possible is ln 50.

# %% id="large-figure" tags=["hide-input"]
# Figure: entropy of a fresh head against the size of its inputs
torch.manual_seed(0)
embedded, head = torch.randn(8, 50, 512), SelfAttention(512, 64)  # (B, T, D)


def entropy_at(size):
    with record_weights(head) as maps:
        head(embedded * size)
    (p,) = maps.values()  # (B, T, T)
    return attention_entropy(p).mean().item()


sizes = [2.0**power for power in range(-3, 7)]
marks = {"started at 1/√512,\ntimes √512": 1.0, "started at 1,\ntimes √512": math.sqrt(512)}
fig = plots.marked_curve(
    sizes,
    [entropy_at(size) for size in sizes],
    {name: (size, entropy_at(size)) for name, size in marks.items()},
    left=1,
    levels={"ln 50: all the same": math.log(50)},
    xscale="log",
    ylim=(0, 4.5),
    xlabel="standard deviation of the inputs",
    ylabel="entropy (nats)",
)
show(
    fig,
    alt="Entropy of a fresh head against the size of its inputs, logarithmic. It stays close to ln 50 up to a size of one "
    "and falls towards zero above. A point at size one is marked: vectors that start at one over the root of 512, times "
    "that root. A point at 22.6, near zero, is marked: vectors that start at one, times the root.",
    caption="The factor √D is harmless where the vectors start small enough, and leaves a head with one key for each query "
    "where they do not.",
)
print("entropy:", ", ".join(f"{entropy_at(size):.2f} at size {size:.1f}" for size in marks.values()))

# %% id="large-proof" tags=["hide-input"]
# Check: what the figure shows
prove("inputs of size 1 leave a fresh head nearly even", entropy_at(1.0) > 0.95 * math.log(50))
prove("inputs √512 times as large leave it nearly one-hot", entropy_at(math.sqrt(512)) < 0.1 * math.log(50))

# %% [markdown] id="large-says"
# So what does the factor do? It depends on how the vectors start, which the formula does not say. Programs that follow
# the paper (tensor2tensor, fairseq) start them with a standard deviation of 1/√D. Times √D that is one, and the head
# begins undecided, as it should. PyTorch's `nn.Embedding` starts at one. Copy the factor and not the start, and the
# head is decided before it has seen anything. Dividing by $\sqrt{d_k}$ does not save it; that division assumes that
# queries and keys have about unit size. [Chapter 3](../03_positional_encoding.ipynb) returns to this factor.

# %% [markdown] id="answer"
# ## The answer
#
# Which numbers break attention?
#
# | what comes in | what comes out | what helps |
# |---|---|---|
# | scores beyond 88 in float32, 11 in float16 | NaN | subtract the largest score of the row |
# | sizes that happen to be equal | wrong numbers, no error | exchange the last two axes only, test with unequal sizes |
# | a finite fill | weight on hidden keys | minus infinity |
# | a row without any visible key | NaN in the gradients of shared matrices | open the row, then set its weights to zero |
# | inputs of a wrong size | one key takes all, no error | look at the entropy of a fresh head |
#
# NaN at least announces itself, if late. The others run, and a loss goes down. That is why the course checks functions by
# *laws*, such as “all stays finite, also with an empty row”, and not by looking at their output.
#
# **Sources.** PyTorch issue [41508](https://github.com/pytorch/pytorch/issues/41508) (NaN gradients of fully masked
# rows); NVIDIA apex issue [1052](https://github.com/NVIDIA/apex/issues/1052) (−1e9 in float16). Vaswani et al. 2017,
# arXiv:1706.03762, sections 3.2.1 and 3.4 (the two roots).
