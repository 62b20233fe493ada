# %% [markdown] id="title"
# # What does attention cost, and when does n² matter?
#
# *A lab on chapter 1. You should have read [chapter 1](../01_attention.ipynb) to its end. About {minutes} minutes
# with the exercises.*
#
# “Attention is quadratic” is the sentence that everybody knows about its cost. In a text of *n* words each word looks
# at each, and that makes n² pairs. But n² of what: operations, bytes, seconds? And is it the largest part of the bill,
# or a small one? In this lab you count and measure all three, find the length beyond which the square dominates, and
# let attention race against a recurrent network.

# %% id="setup" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib import testing
from course_lib.attention import CausalSelfAttention, SelfAttention, record_weights
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.testing import complaint, prove
from coursework import exercises as ex
from coursework.pictures import drawings, show
from coursework.pictures.plots import chapter_01 as plots
from coursework.pictures.plots.common import curves
from coursework.records import record as recorded

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="flops"
# ## 1 Operations
#
# We count *floating-point operations*, **FLOPs** for short: a multiplication is one, an addition is one. Attention for
# one head has two parts that grow with the square. First, every query is multiplied with every key. Then the values are
# averaged with the weights. The softmax in between is small beside them, and nobody counts it.
#
# **By hand**, for 3 words whose queries, keys and values have 2 numbers each:
#
# | part | how many numbers come out | operations for each | together |
# |---|---|---|---|
# | scores | 3 × 3 | 2 multiplications, 2 additions | 36 |
# | averages | 3 × 2 | 3 multiplications, 3 additions | 36 |
#
# (Strictly, adding up two products takes one addition. It is usual to count as many additions as multiplications,
# because the machine does both at once.) In general, for *n* words and a head of width *d_k*, each part takes 2 · n ·
# n · d_k, so both together take
#
# $$\mathrm{FLOPs} = 4\, n^2\, d_k$$


# %% id="flops-counted"
def explicit(*qkv):
    return sdpa(*qkv, backend="explicit")


wrong = ""
for n, d_k in ((3, 2), (64, 16), (128, 16), (256, 16), (512, 16)):
    q, k, v = torch.randn(3, 1, 1, n, d_k)  # one sentence, one head
    flops = 4 * n**2 * d_k
    wrong += complaint(testing.assert_counts, explicit, q, k, v, flops=flops)
    print(f"n = {n:3}, d_k = {d_k:2}: {flops:>10,} FLOPs")
prove("a counter that watches PyTorch finds exactly these numbers", not wrong)

# %% id="flops-drawn" tags=["hide-input"]
# Figure: the pairs of 4, 8 and 16 words
show(
    plots.pairs_of_words((4, 8, 16)),
    alt="Three square tables of cells: 4 by 4 with 16 pairs, 8 by 8 with 64 pairs, 16 by 16 with 256 pairs.",
    caption="Twice as many words, four times as many pairs.",
)

# %% [markdown] id="memory"
# ## 2 Bytes
#
# Operations are done and over. What is *kept* needs memory. The obvious way to compute attention makes a table of
# weights with n · n numbers, one table for each head and each sentence, and for training it has to be kept until the
# gradients have been computed. A number in float32 takes 4 bytes.

# %% exercise="attention_memory"

# %% id="memory-drawn" tags=["hide-input"]
# Figure: memory of the weights of one layer, for 1 and for 32 heads
lengths = 2 ** np.arange(9, 18)
gibibytes = 4.0 * lengths**2 / 2**30  # of one head
show(
    curves(
        lengths,
        {"1 head": gibibytes, "32 heads": 32 * gibibytes},
        levels={"a large graphics card, 80 GiB": 80},
        xscale="log",
        yscale="log",
        xticks=lengths[::2],
        xticklabels=[f"{n:,}" for n in lengths[::2]],
        xlim=(450, 2e6),
        xlabel="n (tokens)",
        ylabel="GiB, float32",
        size=(6.5, 3.0),
    ),
    alt="Memory of the attention weights against the number of tokens, both axes logarithmic. With 32 heads it passes the "
    "80 GiB of a large graphics card at about 26,000 tokens, for one sentence and one layer.",
    caption="The weights of one layer for one sentence. With 32 heads they outgrow a large graphics card at about 26,000 "
    "tokens.",
)
q, k = torch.randn(2, 1, 4, 1024, 8)  # four heads
prove("the scores of 4 heads for 1024 tokens take 4 · 4n² bytes", (q @ k.mT).nbytes == 4 * 4 * 1024**2)
prove("32 heads pass 80 GiB at about 26,000 tokens", abs(math.sqrt(80 * 2**30 / (4 * 32)) - 26_000) < 500)

# %% [markdown] id="fused"
# ## 3 The table that is never stored
#
# Must the table be there as a whole? To average the values for one query, the weights are needed one after the other,
# not all at once. A *kernel* is a program for the hardware that does one thing. A **fused** kernel does scores, softmax
# and averages in one go. It cuts the table into tiles, computes one tile, adds its share to the outputs, and forgets
# it. For each row it remembers the output so far, the largest score so far and the sum of the exponentials.
# FlashAttention (Dao et al. 2022) is the best known one, and PyTorch has it built in.

# %% id="fused-drawn" tags=["hide-input"]
# Drawing: the whole table, and one tile at a time
drawings.score_tiles().show()

# %% [markdown] id="fused-text"
# How much is kept for the backward pass can be counted exactly, because PyTorch says which tensors it saves. The
# explicit way keeps the table, 4n² bytes, and the scaled queries. The fused way keeps the outputs and one number for
# each row. (The inputs, which exist anyway, are not counted.)


# %% id="fused-counted"
def fused(*qkv):
    return sdpa(*qkv, backend="fused")


E, wrong, kept = 64, "", {"explicit": [], "fused": []}
for n in (256, 512, 1024, 2048):
    q, k, v = torch.randn(3, 1, 1, n, E)
    table, rows = 4 * n * n + 4 * n * E, 4 * n * E + 4 * n  # bytes, by formula
    wrong += complaint(testing.assert_counts, explicit, q, k, v, saved_bytes=table)
    wrong += complaint(testing.assert_counts, fused, q, k, v, saved_bytes=rows)
    kept["explicit"].append(table)
    kept["fused"].append(rows)
    print(f"n = {n:4}: explicit {table:>10,} bytes, fused {rows:>8,} bytes")
prove("explicit keeps 4n² + 4nE bytes, fused 4nE + 4n", not wrong)

# %% [markdown] id="time"
# ## 4 Seconds
#
# **Predict.** The fused kernel needs memory that grows like n. Does its *time* grow like n, too? If the length doubles,
# by which factor will its time grow: two, four, or something between? And the time of the explicit way?

# %% id="time-guess"
ex.predict("time_of_fused_attention", "")


# %% id="milliseconds" tags=["hide-input"]
# Check: attention as plain Python loops
def loops(query, key, value):
    """Lists of rows; the same result, number by number."""
    outputs = []
    for q in query:
        scores = [sum(a * b for a, b in zip(q, k)) / math.sqrt(len(q)) for k in key]
        top = max(scores)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        weights = [power / total for power in powers]
        outputs.append([sum(w * v for w, v in zip(weights, column)) for column in zip(*value)])
    return outputs


q, k, v = torch.randn(3, 16, 8)  # three of (T, E)
same = torch.tensor(loops(q.tolist(), k.tolist(), v.tolist()))
prove("the loops compute attention", torch.allclose(same, sdpa(q, k, v), atol=1e-5))

# %% id="time-figure" tags=["hide-input"]
# Figure: time against length, as one machine took it (python benchmarks/attention_clock.py)
clock = recorded("attention-clock-cpu")
lengths, took = [2**power for power in range(5, 13)], {}
for name, found in clock["by length"].items():
    at, spent = [int(n) for n in found], list(found.values())
    exponent = np.polyfit(np.log(at[-4:]), np.log(spent[-4:]), 1)[0]
    took[f"{name}: time ~ n^{exponent:.2f}"] = [found.get(str(n), math.nan) for n in lengths]
show(
    curves(
        lengths,
        took,
        xscale="log",
        yscale="log",
        xticks=lengths,
        xticklabels=lengths,
        xlabel="n (tokens)",
        ylabel="milliseconds, one thread",
        size=(6.5, 3.2),
    ),
    alt="Milliseconds against the number of tokens, both axes logarithmic, for attention as plain Python loops, with the "
    "whole table, and fused: three nearly straight lines, that of the loops far above the others.",
    caption="A straight line here is a power of n, and its steepness is the exponent. All three are about as steep as n², or steeper.",
)

# %% [markdown] id="time-says"
# So *fused attention is linear* is half of the truth. Its memory is linear in n. Its time is not: it computes the same n²
# pairs, tile by tile. On graphics cards it is nevertheless faster than the explicit way, and for another reason: there
# the table would have to travel to the card's large, slow memory and back, and the tiles stay in the small, fast one.
# Methods that leave pairs out, so that the number of operations falls, are the subject of
# [chapter 7](../07_variants.ipynb).
#
# The loops show something else. They do the same operations in the same number, one after the other, and Python needs
# far longer for each. That is why every model is written as products of matrices.

# %% id="memory-exponents" tags=["hide-input"]
# Check: the exponents of the memory
growth = {name: np.polyfit(np.log([256, 512, 1024, 2048]), np.log(sizes), 1)[0] for name, sizes in kept.items()}
print(", ".join(f"{name}: memory ~ n^{value:.2f}" for name, value in growth.items()))
prove("memory grows about as n² explicit", growth["explicit"] > 1.8)
prove("memory grows as n fused", abs(growth["fused"] - 1) < 0.01)

# %% [markdown] id="crossover"
# ## 5 When does n² matter?
#
# Attention is not alone in its layer. Each token's vector is also multiplied by matrices of learned numbers: four of
# size d × d around attention, where *d* is the width of the model, and two in the *feed-forward network* that follows
# ([chapter 4](../04_encoder.ipynb)), of size d × 4d and 4d × d. This work is the same for each token, whatever stands
# around it, so it grows like n. For short texts it is the larger part, and for long ones the square must win. Where do
# they meet?

# %% exercise="crossover_length"

# %% [markdown] id="crossover-text"
# You can check your answer by a count. PyTorch can run a layer on the device `meta`, where tensors have shapes but no
# numbers, while a counter writes down the operations.


# %% id="layer-flops"
def layer_flops(n, d):
    """FLOPs of one layer of torch: (products with weights, attention itself)."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        layer = nn.TransformerEncoderLayer(d, 1, 4 * d, batch_first=True)
        layer(torch.randn(1, n, d))
    found = counter.get_flop_counts()["Global"].items()
    counts = {str(operation): flops for operation, flops in found}
    return counts["aten.addmm"], counts["aten.bmm"]


# %% id="crossover-counted" tags=["hide-input"]
# Table: the share of attention in the operations of a layer
for d in (64, 512):
    for multiple in (1, 6, 24):
        matrices, pairs = layer_flops(multiple * d, d)
        print(f"d = {d:3}, n = {multiple:2} d: attention does {pairs / (matrices + pairs):.2f} of the work")
crossing = [layer_flops(6 * d, d) for d in (64, 512)]
prove("attention and weights cost the same at n = 6d", all(a == b for a, b in crossing))

# %% id="crossover-figure" tags=["hide-input"]
# Figure: the share of attention against the length, with some models
shape = {  # name: width, multiply-adds with weights for a token in a layer, tokens it reads
    "BERT-base": (768, 12 * 768**2, 512),
    "GPT-2": (768, 12 * 768**2, 1024),
    "Llama 3 8B, 8k": (4096, 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336, 8192),
    "Llama 3.1 8B, 128k": (4096, 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336, 131072),
}
ratio = 2.0 ** np.arange(-4, 7, 0.1)
marks = {name: (n / d, 2 * n * d / (2 * n * d + weights)) for name, (d, weights, n) in shape.items()}
shares = {name: share for name, (_, share) in marks.items()}
fig = plots.marked_curve(
    ratio,
    ratio / (ratio + 6),
    marks,
    left=100,
    levels={"": 0.5},
    xscale="log",
    ylim=(0, 1),
    size=(6.5, 3.2),
    xlabel="n / d: tokens for each number in a vector",
    ylabel="attention's share",
    xticks=[0.1, 1, 6, 32],
    xticklabels=["0.1", "1", "6 (n = 6d)", "32"],
)
fig.axes[0].axvline(6, color="#6E6E6E", linestyle="--", linewidth=1)
show(
    fig,
    alt="Share of attention in the operations of a layer against n divided by d. It rises from near zero through one half "
    "at n = 6d to more than 0.8 at 32. BERT-base and GPT-2 lie far below one half, Llama 3 8B with 8 thousand tokens at a "
    "quarter, Llama 3.1 8B with 128 thousand tokens above 0.8.",
    caption="In the models of 2018 and 2019 the square was a small part of the bill. With 128 thousand tokens it is most "
    "of it.",
)
prove(
    "BERT-base spends less than 0.15 on attention's pairs, GPT-2 less than 0.2",
    shares["BERT-base"] < 0.15 and shares["GPT-2"] < 0.2,
)
prove(
    "Llama 3 8B: a quarter at 8192 tokens; 3.1 8B: more than 0.8 at 131072",
    0.2 < shares["Llama 3 8B, 8k"] < 0.27 and shares["Llama 3.1 8B, 128k"] > 0.8,
)

# %% [markdown] id="crossover-says"
# The two meet at six tokens for each number in a vector. BERT-base and GPT-2 have a width of 768, so that would be
# 4,608 tokens; they read at most 512 and 1,024. The Llama of the figure has other matrices (its keys and values are
# shared among heads, and its feed-forward network has three matrices), which moves its point only a little.
#
# Two remarks. A program that skips what a causal mask hides does half of the pairs, which doubles the length at which
# they meet. And operations are not all: the explicit way also spends time on carrying its table to memory and back.

# %% [markdown] id="race"
# ## 6 A race with a recurrent network
#
# You will read that *a Transformer is faster than a recurrent network, because it works on all words at once*.
#
# **Predict.** Batches of 16 texts with vectors of width 64, one forward and one backward pass, on one thread of an
# ordinary processor. PyTorch's LSTM against one layer of a Transformer: which one is faster with 32 tokens, which one
# with 512?

# %% id="race-guess"
ex.predict("lstm_against_transformer_layer", "")

# %% id="race-run" tags=["hide-input"]
# Figure: milliseconds for one pass forward and back, as one machine took it (python benchmarks/attention_clock.py)
cell = nn.LSTMCell(64, 64)


def lstm_loop(x):
    """The arithmetic of an LSTM as a Python loop: x (B, T, D) -> (B, T, D)."""
    h = c = torch.zeros(x.size(0), 64)
    outputs = []
    for token in x.unbind(dim=1):
        h, c = cell(token, (h, c))
        outputs.append(h)
    return torch.stack(outputs, dim=1)


show(
    curves(
        (32, 128, 512),
        {name: list(found.values()) for name, found in clock["race"].items()},
        xscale="log",
        yscale="log",
        xticks=(32, 128, 512),
        xticklabels=(32, 128, 512),
        xlabel="tokens",
        ylabel="milliseconds",
    ),
    alt="Milliseconds against 32, 128 and 512 tokens for an LSTM, the same as a Python loop, one head of attention and a "
    "Transformer layer. The two recurrent lines are less steep than the two of attention.",
    caption="On one thread the time of the recurrent network grows like n. That of attention bends upwards, towards n².",
)

# %% [markdown] id="race-says"
# On one thread, fewer operations usually take less time. The loop in Python pays for Python. At 512 tokens of width 64,
# n is 8d, so more than half of the layer's work is pairs. The LSTM, which has no pairs, is the faster one. So the
# sentence does not hold on every machine.
#
# What it means is this. In the LSTM each step has to *wait* for the step before. A graphics card has thousands of
# arithmetic units, and with one step at a time most of them have nothing to do. In attention only few steps wait for
# each other, and all pairs can be worked on at once. The paper of 2017 argues with such sequential operations (its table
# 1), and its training times are those of eight graphics cards (its section 5.2). We can count who waits for whom:

# %% id="race-sequential"
calls = []
handle = cell.register_forward_hook(lambda *_: calls.append(1))
chain = {}
for T in (32, 128, 512):
    calls.clear()
    lstm_loop(torch.zeros(1, T, 64))
    chain[T] = len(calls)
handle.remove()
print("steps that wait for each other, by number of tokens:", chain)
one_each = all(steps == T for T, steps in chain.items())
prove("an LSTM over T tokens is a chain of T steps", one_each)

# %% [markdown] id="thin"
# ## 7 Paid for, but not always used
#
# What does all this money buy? With attention every word reaches every other in one step. *The first token reads the
# thousandth in one step*, as you may read. Two limits belong to that sentence. Under a causal mask it is false: only
# later positions read earlier ones. And that a token *can* be read does not mean that much of it arrives. Here is how
# much the *first* output of a fresh head depends on each of 1000 tokens.

# %% id="thin-figure" tags=["hide-input"]
# Figure: gradient of the first output for each of 1000 tokens, without and with a causal mask
torch.manual_seed(0)
n, sizes = 1000, {}
for layer in (SelfAttention(64), CausalSelfAttention(64)):
    x = torch.randn(1, n, 64, requires_grad=True)  # (B, T, D)
    layer(x)[0, 0].sum().backward()  # the first output
    sizes[type(layer).__name__] = x.grad[0].norm(dim=-1)  # (T,)
show(
    curves(
        range(2, n + 1),
        {"no mask": sizes["SelfAttention"][1:], "causal": sizes["CausalSelfAttention"][1:]},
        styles=".",
        names="end",
        xlabel="token",
        ylabel="gradient of the first output",
    ),
    alt="The gradient of the first output for tokens 2 to 1000. Without a mask all are small and none is favoured, near or "
    "far. With a causal mask all are exactly zero.",
    caption="Without a mask the thousandth token counts as much as the second, and both count little. With a causal mask "
    "the first position depends on no later token.",
)
head = SelfAttention(64)
with torch.no_grad(), record_weights(head) as maps:
    head(x)
(weights,) = maps.values()  # (B, T, T)
top = weights.amax(-1).mean()
print(f"largest of 1000 weights, mean over the queries: {top:.4f}; an even share is {1 / n}")
prove(
    "under a causal mask the first output depends on no later token", sizes["CausalSelfAttention"][1:].abs().max() == 0
)
prove(
    "without one, near and far do not differ",
    abs(sizes["SelfAttention"][1:100].mean() / sizes["SelfAttention"][-100:].mean() - 1) < 0.2,
)
prove("a fresh head spreads its weight: the largest of 1000 is below one percent", top < 0.01)

# %% [markdown] id="thin-says"
# A fresh head gives each of a thousand tokens about a thousandth. To give one of them more, the head has to learn it.
# So attention does not abolish the limits of a recurrent network. It exchanges them: instead of one small state it has a
# *context window*, in which all keys and values must be kept, and whose length is paid for as you have measured.
#
# ## The answer
#
# What does attention cost, and when does n² matter?
#
# | | grows like | as measured here |
# |---|---|---|
# | operations of the pairs | n² | exactly 4 n² d_k for each head |
# | operations with weights | n | 24 n d² for a layer; the pairs overtake them at n = 6d |
# | memory, explicit | n² | 4 n² bytes for each head in float32 |
# | memory, fused | n | outputs, and one number for each row |
# | time on one thread | n², fused or not | an LSTM is faster for long texts |
# | steps that wait | not at all | an LSTM has one for each token |
#
# So n² is the smaller part of the bill as long as the text is shorter than six times the width of the model, and most of it
# in the long contexts of today. What it buys is the last row.
#
# **Sources.** Vaswani et al. 2017, arXiv:1706.03762, table 1 and section 5.2. Dao et al. 2022, *FlashAttention*,
# arXiv:2205.14135, section 3.1. Devlin et al. 2018, *BERT*, arXiv:1810.04805; Radford et al. 2019, *Language Models are
# Unsupervised Multitask Learners* (lengths and widths). Llama Team 2024, *The Llama 3 Herd of Models*,
# arXiv:2407.21783, table 3.
