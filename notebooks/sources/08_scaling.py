# %% [markdown] id="title"
# # 8 Scaling
#
# Before you train a large model, you want to know what it will cost and how good it will be. You can estimate both.
# At the end of this chapter you write down the loss of a model that you have not trained yet, train it, and compare.
#
# The chapter uses the GPT of [chapter 5](05_decoder.ipynb) and the training of [chapter 6](06_training.ipynb). With its
# exercises it takes about {minutes} minutes, and it names six places to stop.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math
import statistics
import time
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import scaling, testing
from course_lib.attention import scaled_dot_product_attention
from course_lib.config import TransformerConfig
from course_lib.data import CharTokenizer
from course_lib.testing import prove
from course_lib.transformer import LanguageModel, Transformer
from course_lib.variants import PUBLISHED
from coursework import exercises as ex
from coursework.corpora import tiny_shakespeare
from coursework.explorers import CostExplorer
from coursework.pictures import drawings, palette, show
from coursework.pictures.arrays import power_of_ten
from coursework.pictures.plots import chapter_08 as plots
from coursework.pictures.plots import common
from coursework.records import record

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="parameters"
# ## 1 What a model weighs
#
# Somebody tells you that a GPT has 12 layers and is 768 wide. How many parameters is that? You can nearly work it out in
# your head, because most of them sit in six matrices per layer.

# %% id="layer-drawn" tags=["hide-input"]
# Drawing: the six matrices of one layer
drawings.matrices_of_a_layer().show()

# %% [markdown] id="parameters-by-hand"
# Call the width of the model D. Attention has four matrices, for queries, keys, values and output, each D × D. The
# feed-forward is usually four times as wide inside, so each of its two matrices is as large as four of those. Four and
# eight make twelve: **a layer has about 12 · D² parameters**, and L layers have
#
# $$N \approx 12 \, L \, D^2$$
#
# For GPT-2 that is 85 million. But GPT-2 has 124 million. The difference is its table of 50,257 tokens with 768 numbers
# each, nearly 39 million, and the positions. Your function counts everything in such a model, biases and norms included.
# The table after it counts seven published models, each with the parts that it really has.

# %% exercise="count_parameters"

# %% id="published-counts" tags=["hide-input"]
# Table: seven models, counted and as stated
names = ["bert-base-uncased", "gpt2", "gpt2-xl", "llama-2-7b", "llama-2-13b", "llama-2-70b", "llama-3-8b"]
counted = {}
print(f"{'model':>18} {'counted':>15} {'stated':>15} {'12 L D²':>15}")
for name in names:
    counted[name] = sum(weight.numel() for weight in PUBLISHED[name].build().parameters())
    config = PUBLISHED[name].config()
    layers = max(config.n_encoder_layers, config.n_decoder_layers) if "bert" not in name else config.n_encoder_layers
    rule = 12 * layers * config.d_model**2
    print(f"{name:>18} {counted[name]:15,} {PUBLISHED[name].stated:15,.0f} {rule:15,}")
    within = abs(counted[name] / PUBLISHED[name].stated - 1) < 0.05
    prove(f"{name}, built without allocating weights, has its stated size within 5 %", within)
gpt2 = PUBLISHED["gpt2"].config()
prove("your function gives GPT-2's count", count_parameters(50257, 768, 3072, 12, 1024, True) == counted["gpt2"])


def built(model_class, config):
    """Parameters of a model on the meta device, which has shapes but no numbers."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in model_class(config).parameters())


bert = scaling.count_parameters(PUBLISHED["bert-base-uncased"].config(), "encoder")
prove("half of BERT-base is in the feed-forward", round(bert["feed-forward"] / bert.total(), 2) == 0.52)
prove("BERT-base is that and a pooler", bert.total() + 768 * 768 + 768 == counted["bert-base-uncased"])
rows = {}
for name, width, heads in (("base", 512, 8), ("big", 1024, 16)):
    config = TransformerConfig(d_model=width, n_heads=heads, vocab_size=37_000)
    tyings = {"three tables shared": {"share_vocabulary": True}, "nothing shared": {"tie_embeddings": False}}
    for tying, switches in tyings.items():
        rows[name, tying] = scaling.count_parameters(replace(config, **switches), "encoder-decoder").total()
shared = TransformerConfig(vocab_size=37_000, share_vocabulary=True)
prove("the formula is the built model", built(Transformer, shared) == rows["base", "three tables shared"])
prove("shared, base is within 3 % of 65 million", abs(rows["base", "three tables shared"] / 65e6 - 1) < 0.03)
prove("shared, big is within 1 % of 213 million", abs(rows["big", "three tables shared"] / 213e6 - 1) < 0.01)
untied = scaling.count_parameters(TransformerConfig(vocab_size=32_000, tie_embeddings=False), "encoder-decoder")
prove("untied over 32,000 pieces it has 93 million", round(untied.total() / 1e6) == 93)
gpt3 = replace(gpt2, d_model=12288, n_heads=96, n_decoder_layers=96, max_length=2048)
pieces = scaling.count_parameters(gpt3)
prove("GPT-3, with 96 layers, has 175 billion parameters", round(pieces.total() / 1e9) == 175)
prove("two thirds of them are in the feed-forward", abs(pieces["feed-forward"] / pieces.total() - 2 / 3) < 0.01)
sizes = {"d_model": 128, "d_ff": 512, "vocab_size": 1000, "n_encoder_layers": 2, "n_decoder_layers": 2}
two_layers = TransformerConfig(**sizes, tie_embeddings=False, head_bias=True)
count = scaling.count_parameters(two_layers, "encoder-decoder").total()
prove("the small one has 1,310,696, by formula and built", count == built(Transformer, two_layers) == 1_310_696)

# %% [markdown] id="published-say"
# The rule of thumb misses a third of GPT-2 and a fifth of BERT and of Llama 3 8B, mostly because their tables of tokens are
# large. For Llama 2 it is only 3 to 7 % short.
#
# <details><summary>More counts: BERT piece by piece, the paper's two models, GPT-3, and two numbers that are wrong</summary>
#
# The Transformer paper's two models (its table 3):
#
# | | layers in each stack | width | inner width | heads | width of keys and values | stated |
# |---|---|---|---|---|---|---|
# | base | 6 | 512 | 2048 | 8 | 64 | 65 million |
# | big | 6 | 1024 | 4096 | 16 | 64 | 213 million |
#
# Our counts come within 3 and 1 per cent, 63.1 and 214.2 million, if source, target and head share one table of about
# 37,000 pieces (section 3.4 of the paper). With three tables of 32,000 pieces each, as in many programs, base has 93 million.
#
# BERT-base has 52 % of its parameters in the feed-forward, 26 % in attention and 21 % in its token tables.
#
# Llama 2 7B has three matrices in its gated feed-forward, but they are only about 8/3 · D wide, so together they still have
# 8 · D². Of Llama 3 8B the rule misses a fifth: that model has two tables of 128,256 tokens, and its layers have 13 · D².
#
# GPT-3 has 96 layers of width 12,288 with 96 heads: 175 billion, two thirds of them in the feed-forward. PaLM, with 540
# billion, has 118 layers of width 18,432.
#
# *You will read that* an encoder–decoder of two layers, width 128 and inner width 512 over 1,000 tokens has 3,416,232
# parameters. It has 1,310,696, by formula and built. *And that* GPT-2 has 125 million parameters and saw 40 billion
# tokens. It has 124.4 million, and its publishers state 40 giga-bytes of *text*, which is about 10 billion tokens; they
# never said how often it was read.
#
# </details>

# %% [markdown] id="operations"
# ## 2 What it computes
#
# A **FLOP** is one addition or multiplication of floating-point numbers. Nearly all of them happen in products of matrices.
# There, for each token, a weight is multiplied by one number, and the result is added to a sum. That is two operations. The
# backward pass does the same twice, for the two gradients in the drawing.

# %% id="six-drawn" tags=["hide-input"]
# Drawing: what one weight does for one token
drawings.six_operations().show()

# %% [markdown] id="six-nd"
# So training a model with N parameters on D tokens costs about
#
# $$C \approx 6 \, N \, D$$
#
# operations. As in the papers, D is the number of tokens here. From now on we write *width* for the width.
#
# A table that is only looked up multiplies nothing, so N leaves it out. The head multiplies, so it counts. A tied table
# counts once, as the head.
#
# One thing is missing. No weight takes part in the scores and in the mixing of values. With n tokens in sight, each query
# is multiplied by n keys, which is 2 · n · width operations, and mixing n values takes as many. That makes 4 · n · width
# for each token and layer. The 12 · width² weights of that layer do two operations each, 24 · width². The two are equal
# at **n = 6 · width**. Your function counts both.

# %% exercise="count_flops"

# %% [markdown] id="six-nd-question"
# "Attention is quadratic" is the best-known sentence about Transformers. When does it matter? For GPT-2, with all pairs
# counted, 6 · width is 4,608 tokens, more than four times its context.

# %% id="six-nd-left-out" tags=["hide-input"]
# Figure: the share of scores and mixing, against the length
lengths = [2**k for k in range(6, 18)]
shares = {}
for name in ("gpt2", "llama-3-8b"):
    for n in lengths:
        flops = scaling.count_flops(PUBLISHED[name].config(), 1, n, backward=True)
        layer = flops["projections"] + flops["feed-forward"] + flops["scores and mixing"]
        shares.setdefault(name, []).append(100 * flops["scores and mixing"] / layer)
show(
    common.curves(
        lengths, {"GPT-2, width 768": shares["gpt2"], "Llama 3 8B, width 4096": shares["llama-3-8b"]},
        xscale="log", xlabel="tokens in sight", ylabel="% of a layer's operations", ylim=(0, 100),
        levels={"half": 50},
    ),
    alt="Share of the operations of a layer that scores and mixing take, against the length on a logarithmic axis. Both curves "
    "rise from nearly nothing; GPT-2 crosses one half near 4,600 tokens, Llama 3 8B between 16,000 and 33,000.",
    caption="The share of scores and mixing in a layer. In a wider model they dominate only at longer contexts.",
)  # fmt: skip
for n in (1024, 4608, 32_768):
    flops = scaling.count_flops(gpt2, 1, n, backward=True)
    layers = flops["projections"] + flops["feed-forward"]
    prove(f"at {n} the products reach the rest iff T >= 6 D", (flops["scores and mixing"] >= layers) == (n >= 4608))
sizes = {"d_model": 48, "n_heads": 3, "d_ff": 192, "n_decoder_layers": 2}
model = LanguageModel(TransformerConfig(**sizes, vocab_size=101, dropout=0.0))
tokens = torch.zeros(2, 37, dtype=torch.long)  # (B, T)
with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
    logits = model(tokens)
    forward = counter.get_total_flops()
    logits.sum().backward()
total = counter.get_total_flops()
prove("your formula is what torch counts, forward", count_flops(2, 37, 48, 192, 2, 101, False) == forward)
prove("a training step costs three forward passes", count_flops(2, 37, 48, 192, 2, 101, True) == total == 3 * forward)

# %% [markdown] id="attention-memory-says"
# <details><summary>The memory of attention need not be quadratic: how much a Flash kernel saves, measured</summary>
#
# The table of scores has n² cells, and the simple way of computing attention keeps it. Flash kernels (chapter 7, Dao et
# al. 2022) compute the same output piece by piece and keep a number or two for each query: linear memory, quadratic
# time. For one head and 256, 512 and 1,024 positions the simple way keeps 0.28, 1.08 and 4.26 million bytes for the
# backward pass, and the fused kernel 1, 2 and 4 thousand.
#
# </details>

# %% [markdown] id="known-run"
# ### 2.1 A known bill
#
# Does 6 N D hold for a real model? DeepSeek published the bill of its V3 (DeepSeek-AI 2024): it read 14.8 trillion
# tokens in 2.664 million hours on H800 chips. Of its 671 billion parameters most are in experts (chapter 7), so each token
# passes through only 37 billion, and only those multiply:
#
# $$C = 6 \cdot 37 \cdot 10^9 \cdot 14.8 \cdot 10^{12} = 3.3 \cdot 10^{24}$$
#
# Divide by the hours and by 3,600 seconds, and each chip did 3.4·10¹⁴ operations per second. The data sheet
# promises 9.9·10¹⁴ for products in bfloat16. So the bill is plausible: the chips did about a third of what they could.
#
# This share of the peak is called **model FLOPs utilisation** or *MFU*. Always ask which peak it was divided by. DeepSeek multiplied
# mostly in 8 bits, where the same chip can do twice as much. Divided by that peak, the share is only half as large. Too low
# a peak, or a forgotten device, makes a run look better.

# %% exercise="mfu"

# %% [markdown] id="bytes"
# ## 3 What it holds
#
# A model of 8 billion parameters in 16 bits is a file of 16 GB. A chip of 80 GB should train it with ease. But training
# takes 128 GB, however short the text. Where does it all go?
#
# Each weight comes with its gradient g and with the two averages that Adam keeps, the mean of g and the mean of
# g² (chapter 6). In float32 each of these four numbers takes four bytes: **16 bytes for each parameter**.

# %% id="bytes-drawn" tags=["hide-input"]
# Drawing: the sixteen bytes of a parameter
drawings.sixteen_bytes().show()

# %% [markdown] id="mixed"
# **Mixed precision** does not change that sum. Autocast (chapter 6) leaves all four in float32. Another way keeps
# weights and gradients in bfloat16, two bytes each, and a second copy of the weights in float32. Why is the copy needed?
# In bfloat16 the next number after 1 is 1.0078, and an update is much smaller:

# %% id="lost-update"
weight = torch.tensor(1.0, dtype=torch.bfloat16)
for _ in range(1000):
    weight += 0.001
print("1 + 1000 updates of 0.001 =", weight.item())


# %% [markdown] id="activations"
# All thousand updates were rounded away. In the float32 copy they add up. So what is mixed precision good for? It saves
# time, because chips multiply 16-bit numbers much faster, and it halves the memory for **activations**. That is everything
# that the forward pass keeps for the backward pass.
#
# Activations grow with the number of tokens. With a Flash kernel and no dropout, a GPT-2 layer keeps 16 vectors of its
# width for each token: the input and output of its two norms (4), the queries, keys, values and output of attention (4),
# and the inner vector of the feed-forward, before and after the GELU (twice 4). With 1,024 tokens and 12 layers in
# float32, that is
#
# $$12 \cdot 1{,}024 \cdot 16 \cdot 768 \cdot 4\ \text{bytes} = 0.604\ \text{GB}$$
#
# With 0.212 GB for logits and the last norm it is 0.82 GB. You can trade this memory for time. Keep only what enters
# each layer, and when the backward pass arrives there, compute the rest again. This *recomputation* leaves 0.30 GB: 0.04
# for these inputs, 0.05 for the layer at work, and 0.21 as before. It costs up to a third more operations.
#
# Which part is the largest depends on the number of tokens; 2,048 are two texts:

# %% id="memory-bars" tags=["hide-input"]
# Figure: the parts of GPT-2 in training, at two lengths
short, long = (scaling.training_memory(gpt2, 1, n) for n in (1024, 2048))
parts = {"weights": short["weights"], "gradients": short["gradients"], "Adam's averages": short["optimizer"]}
parts |= {"activations, 1,024 tokens": short["activations"], "activations, 2,048 tokens": long["activations"]}
show(
    common.bars(
        list(parts), [n / 1e9 for n in parts.values()], lying=True, size=(6.4, 2.1), numbers="%.2f", colours=palette.query,
        xlabel="GB", xlim=(0, 1.9),
    ),
    alt="Five bars in GB for GPT-2 in training: weights 0.50, gradients 0.50, Adam's averages 1.00, activations 0.82 at 1,024 tokens "
    "and 1.63 at 2,048.",
    caption="At 1,024 tokens Adam's averages are the largest part. At 2,048 the activations are.",
)  # fmt: skip
prove("that is 0.82 and 1.63 GB", [round(one["activations"] / 1e9, 2) for one in (short, long)] == [0.82, 1.63])

# %% [markdown] id="cache"
# A model that only writes needs neither gradients nor Adam's averages. It keeps its weights and the keys and values of all
# tokens so far, the cache of chapter 5.

# %% exercise="kv_cache_bytes"

# %% id="cache-measured" tags=["hide-input"]
# Check: your formula and a real cache
prove("in bfloat16 the next number after 1 is 1.0078", round(1 + torch.finfo(torch.bfloat16).eps, 4) == 1.0078)
deepseek = scaling.six_n_d(37_000_000_000, 14_800_000_000_000)
per_second = deepseek / (2.664e6 * 3600)
prove("about a third of the peak", 0.3 < per_second / scaling.PEAKS["H100"]["bfloat16"] < 0.37)
prove("GPT-3 read fewer than two tokens per parameter", 300e9 / 174.6e9 < 2)
prove("Llama 3 8B read nearly 1,900", 1850 < 15e12 / 8.03e9 < 1900)
same = mfu(1000, 2, 5, 7, 11.0, 1, 1e5)
prove("your utilisation is the course's", math.isclose(same, scaling.mfu(6 * 1000 + 12 * 2 * 5 * 7, 1 / 11.0, 1e5)))
sizes = {"d_model": 48, "n_heads": 6, "n_kv_heads": 2, "n_decoder_layers": 3}
model = LanguageModel(TransformerConfig(**sizes, vocab_size=31, dropout=0.0)).eval()
cache = model.new_cache(20)
with torch.no_grad():
    model(torch.zeros(2, 20, dtype=torch.long), cache=cache)
print(f"a small model's real cache: {cache.n_bytes:,} bytes; your formula: {kv_cache_bytes(3, 2, 20, 6, 2, 8, 4):,}")
prove("your formula gives the bytes of a real cache", kv_cache_bytes(3, 2, 20, 6, 2, 8, 4) == cache.n_bytes)
gib = scaling.kv_cache_bytes(PUBLISHED["llama-3-8b"].config(), 1, 8192, dtype=torch.bfloat16) / 2**30
prove("8192 tokens of Llama 3 8B take one GiB in bfloat16", gib == 1.0)


class Loss(torch.nn.Module):
    """A model and its loss, as one module."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        """(B, T) -> the mean loss of some prediction"""
        return F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())


sizes = {"d_model": 64, "n_heads": 4, "n_decoder_layers": 3, "vocab_size": 211}
config = TransformerConfig(**sizes, positions="learned", dropout=0.0)
model = LanguageModel(config)
for batch, length in ((2, 32), (4, 32), (2, 64)):
    ids = torch.zeros(batch, length, dtype=torch.long)
    formula = scaling.activation_bytes(config, batch, length)
    found = testing.assert_counts(Loss(model), ids, saved_bytes=formula, tolerance=0.02)
    prove(f"{batch} x {length} tokens: autograd keeps what the formula says", found.saved_bytes > 0)
kept = [scaling.training_memory(gpt2, 1, 1024, recompute=recompute)["activations"] for recompute in (False, True)]
prove("GPT-2 keeps 0.82 GB, and 0.30 with recomputation", [round(n / 1e9, 2) for n in kept] == [0.82, 0.30])
a_layer = kept[0] - scaling.activation_bytes(replace(gpt2, n_decoder_layers=11), 1, 1024)
prove("a layer keeps 16 vectors for each token, 0.05 GB", round(a_layer / (1024 * 768 * 4), 1) == 16.0)
prove("the rest is the logits and the last norm, 0.21 and 0.01 GB", round((kept[0] - 12 * a_layer) / 1e7, 1) == 21.2)
once, again = (scaling.count_flops(gpt2, 1, 1024, backward=True, recompute=r).total() for r in (False, True))
prove("recomputation costs up to a third more operations", 1.2 < again / once < 1.34)


def kept_bytes(backend, n):
    """Bytes kept for the backward pass over n positions, besides inputs and output."""
    found = []
    query, key, value = (torch.randn(1, 1, n, 16, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (found.append(x), x)[1], lambda x: x):
        output = scaled_dot_product_attention(query, key, value, backend=backend)
    known = {x.data_ptr() for x in (query, key, value, output)}
    return sum({x.data_ptr(): x.untyped_storage().nbytes() for x in found if x.data_ptr() not in known}.values())


kept = {backend: [kept_bytes(backend, n) for n in (256, 512, 1024)] for backend in ("explicit", "fused")}
prove("the explicit form keeps four times as much at twice the length", kept["explicit"][2] > 3.9 * kept["explicit"][1])
prove("the fused kernel keeps twice as much", kept["fused"][2] < 2.1 * kept["fused"][1])
qkv = torch.randn(3, 1, 1, 512, 16).double()
outputs = [scaled_dot_product_attention(*qkv, backend=backend) for backend in ("explicit", "fused")]
prove("the fused kernel is exact attention, to rounding", torch.allclose(*outputs, atol=1e-12))

# %% [markdown] id="roofline"
# **A good place to stop: you can say what a GPT weighs, computes and holds.**
#
# ## 4 What it waits for
#
# Two programs do the same number of operations, and one takes many times as long. How can that be? A processor can only
# multiply what has arrived from memory. So there are two limits, its own speed and the speed of memory.

# %% id="fetch-drawn" tags=["hide-input"]
# Drawing: fetching and computing, for one token and for many
drawings.fetch_and_compute().show()

# %% [markdown] id="roofline-idea"
# When a model writes a text, it reads all of its weights for a single token. In float32 a weight takes four bytes and
# does two operations, which is half an operation per byte. When the same model reads a prompt of 64 tokens in one pass,
# each weight works 64 times: 32 operations per byte. Reading the prompt is called *prefill*, writing token by token
# *decode*. The number of operations per byte is called the **intensity** of a program.
#
# A training step moves ten numbers, 40 bytes, for each weight. The weight is read forward and backward, its gradient is
# written and read, and the update reads and writes the weight and both averages. With 512 tokens each weight does 6 · 512
# operations, or 77 per byte.
#
# Measure your processor:

# %% id="machine-clock" tags=["not-compared:clock"]
machine = scaling.measure_roofline()
print(f"computes {machine.flops_per_second / 1e9:.0f} billion operations per second")
print(f"fetches  {machine.bytes_per_second / 1e9:.0f} billion bytes per second")
print(f"so it can do {machine.ridge:.1f} operations while one byte arrives")

# %% [markdown] id="ridge"
# The last number is called the **ridge**. A program with a lower intensity waits for memory, and one with a higher
# intensity waits for the arithmetic. No pass can be faster than the slower of the two:
#
# $$\text{time} \ge \max\left(\frac{\text{operations}}{\text{operations per second}},\ \frac{\text{bytes}}{\text{bytes per
# second}}\right)$$
#
# Now we time one model with 26 million weights as it writes, reads a prompt, and trains. In the figure the formula
# becomes a limit that looks like a roof, so the figure is called a **roofline**.
#
# **Predict.** Which of the three comes near what your processor can do, and which stays far below?

# %% id="predict-roofline"
ex.predict("near_the_roof", "")

# %% id="three-passes" tags=["hide-input", "not-compared:clock"]
# Measure: writing, prefill and a training step of one model; then the figure
sizes = {"d_model": 512, "n_heads": 8, "n_decoder_layers": 8, "vocab_size": 1000}
config = TransformerConfig(**sizes, positions="rotary", norm_place="pre", dropout=0.0)
model = LanguageModel(config)
n_weights = scaling.count_parameters(config).total()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
rows = torch.randint(1000, (2, 257))


def decode():
    with torch.no_grad():
        model(rows[:1, :1], cache=model.new_cache(8))


def prefill():
    with torch.no_grad():
        model(rows[:1, :64])


def train():
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def median_seconds(work):
    """The median of seven calls, after one that does not count; the roof is a median, too."""
    taken = []
    for _ in range(8):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


passes = {}  # name: operations, bytes of weights and what belongs to them, seconds
for name, work, batch, length, per_weight in (
    ("decode", decode, 1, 1, 4), ("prefill", prefill, 1, 64, 4), ("training", train, 2, 256, 40)
):  # fmt: skip
    operations = scaling.count_flops(config, batch, length, backward=name == "training").total()
    passes[name] = operations, per_weight * n_weights, median_seconds(work)
show(
    plots.roofline(machine, passes),
    alt="Operations per second against operations per byte, both on logarithmic axes. A slanted line rises to a corner, the ridge, "
    "and goes on level: the roof. Decode lies at half an operation for each byte, far to the left and far below the level part; "
    "prefill and training lie to the right of the ridge, below the level part. Each label says how much of the roof is reached.",
    caption="The roofline of the machine that ran this page, and how much of the roof above it each pass reaches.",
)

# %% [markdown] id="roofline-says"
# Decode sits far to the left, where the roof is low. It even lies below the slope: on our machine a product with a
# single vector does not use the full speed of memory. To get beyond the slope it has to move right: it needs fewer bytes,
# or more tokens per pass. That is why servers write many texts at once, why a draft that guesses four tokens helps (chapter 5),
# and why a model with rounded weights can write faster. Training sits to the right, where only faster arithmetic helps.
#
# <details><summary>How the bytes are counted, and what other machines have</summary>
#
# The roof was measured, too: on a busy machine a point can come out above it. For decode and prefill each weight is read
# once, four bytes. Activations are left out, so the true intensity of training is somewhat lower. In decode each text also
# reads its own cache, so at long contexts more texts help less.
#
# An H100 computes 989·10¹² operations per second in bfloat16 and fetches 3.35·10¹² bytes: its ridge lies near 295, far to
# the right of ours. The more a chip can compute, the more tokens it wants at once.
#
# *You will read that* a Transformer is faster than a recurrent network. In training, yes, where it takes all positions in
# one pass of high intensity, while an LSTM takes them one after the other. In writing both go token by token. The LSTM's
# state stays small, and the cache grows. That training runs so well on parallel chips is one reason why attention has
# been scaled to a trillion parameters and more (Kimi K2), and recurrent networks so far less.
#
# </details>
#
# <details><summary>Does Llama 3 8B run on a laptop? And rounding, measured</summary>
#
# Does Llama 3 8B run on a laptop with 12 GB of free memory, which delivers 50 GB per second? In 16 bits the weights are
# 16 GB and do not fit. In 4 bits they are 4 GB. Memory delivers them twelve times per second, so the laptop writes at
# most twelve tokens per second. Such rounding is called *quantisation*. The lab on [serving](labs/08_serving.ipynb) goes
# on from here.
#
# We trained a small GPT five times and rounded its weights in groups of 32. With 8 bits the loss did not change by more
# than 0.0003. With 4 bits it rose by about 0.008, less than what two seeds differ by, with 2 bits by 0.22 ([the
# record](../benchmarks/results/rounding-cpu.md)).
#
# </details>
#
# **A good place to stop: you know what your machine waits for.**
#
# ## 5 Many devices
#
# A model of 8 billion parameters needs 128 GB for its training, and a chip has 80. So several devices have to share the
# work. For each way of sharing, ask three questions: what does a device hold, what does it send, and when? Our example is
# Llama 3 8B on 8 devices. A training step takes eight texts of 8,192 tokens, and a number that is sent takes two bytes.
#
# ### 5.1 Different texts
#
# The simplest way is **data parallelism**, called *DDP* in PyTorch. Every device runs one *process*, with the whole
# model and its own text, so each gets gradients of its own. But all devices must take the same step. So they add up
# their gradients and divide by eight. They begin with the last layers, while the backward pass goes on.
#
# How do eight devices add up 16 GB of gradients each? If all sent theirs to one device, it would receive 112 GB. Instead
# they form a **ring**, in which each sends only to the next. Each cuts its gradients into eight parts. In every step of
# the ring each device passes one part on, and the next device adds its own numbers to it. After seven steps each device
# holds one complete part. Then the complete parts go round for seven more steps, and everyone has everything.

# %% id="ring-drawn" tags=["hide-input"]
# Drawing: the ring, with three devices
drawings.ring_sum().show()

# %% exercise="ring_all_reduce_bytes"

# %% [markdown] id="sharded"
# ### 5.2 Share out the weights
#
# In data parallelism all devices keep the same weights, gradients and averages of Adam, and our model still does not
# fit. With **fully sharded** data parallelism, *FSDP*, each of the eight keeps an eighth of them, 16 GB. Just before a
# layer is needed, the devices send each other the parts that they lack.
#
# In the drawing a row is a layer, a column is a quarter of each matrix, and a device holds the filled cells.

# %% id="sharded-drawn" tags=["hide-input"]
# Drawing: sharded data parallelism
drawings.split_states().show()

# %% [markdown] id="sharded-says"
# In the ring each device sent 14 parts of an eighth, 28 GB. With R devices it is 2 (R − 1) / R of the gradients, never
# more than twice. When the weights are shared out, it is 42 GB: the weights go round twice, for the forward and the
# backward pass, and the gradients once, each time 7/8 of 16 GB.
#
# You don't have to split everything, as the next question shows.

# %% exercise="sharded_bytes"

# %% [markdown] id="explorer-text"
# Now try it with Llama 3 8B, activations included. A GiB is 2³⁰ bytes. Which part is too large for a chip of 80 GB at
# every stage? Tick *Recompute activations* and look again.

# %% id="explorer"
CostExplorer(model="Llama 3 8B", length=8192, processes=8)

# %% [markdown] id="tensor"
# ### 5.3 Cut the model
#
# You may leave this part for later. In **tensor parallelism** each device keeps an eighth of every matrix and computes with
# that part alone, and all work on the same text. In the feed-forward, some columns of the first matrix give each device a
# piece of the inner vector h. Of the second matrix, W, it needs only the rows that multiply this piece.

# %% id="tensor-drawn" tags=["hide-input"]
# Drawing: two devices, each with its part of two matrices
drawings.split_matrices().show()

# %% [markdown] id="tensor-says"
# Together the results are the product with the whole of W. So the devices add up twice in each layer, after attention
# and after the feed-forward. They do so twice again in the backward pass, because a layer's input goes into the columns
# of all devices, so its gradient is a sum over them. Each time everybody waits. So tensor parallelism usually stays
# inside one machine, where links are fastest (Shoeybi et al. 2019).
#
# In **pipeline parallelism** each device has some whole layers. It sends only the stream, so slow links will do. But the
# second device has nothing to do until the first has finished. To wait less, cut the batch into parts.

# %% id="pipeline-drawn" tags=["hide-input"]
# Drawing: pipeline parallelism with four devices; checks of the section
drawings.split_layers().show()
llama = PUBLISHED["llama-3-8b"].config()
N, R, T, D = scaling.count_parameters(llama).total(), 8, 8192, llama.d_model
prove("training it takes 128 GB, an eighth is 16 GB", (round(16 * N / 1e9), round(2 * N / 1e9)) == (128, 16))
ring = scaling.ring_all_reduce_bytes(2 * N, R)
prove("the ring sends 28 GB, sharded 42 GB", (round(ring / 1e9), round(1.5 * ring / 1e9)) == (28, 42))
stream = 2 * T * D
layers = llama.n_decoder_layers
tensor = scaling.ring_all_reduce_bytes(stream, R)
prove("the stream of eight texts takes 0.54 GB", round(8 * stream / 1e7) == 54)
prove("eight texts: 120 GB, pipeline 1 GB", (round(32 * layers * tensor / 1e9), round(16 * stream / 1e9)) == (120, 1))
prove("experts: 268 MB", round(2 * 2 * stream / 1e6) == 268)
row = scaling.kv_cache_bytes(llama, 1, 1, dtype=torch.bfloat16) / layers
prove("keys and values: 4 kB, 470 MB", (row, round(row * 131_072 * 7 / 8 / 1e6)) == (4096, 470))
stages = [scaling.training_memory(gpt2, 1, 1024, ranks=8, sharding=stage) for stage in range(4)]
prove("activations are not split", stages[3]["activations"] == stages[0]["activations"])
torch.manual_seed(0)
sizes = {"d_model": 32, "n_heads": 4, "n_decoder_layers": 2, "vocab_size": 31}
model = LanguageModel(TransformerConfig(**sizes, dropout=0.0))
tokens = torch.randint(31, (8, 17))


def gradients(rows):
    """The gradients of the mean loss over some rows, as one vector."""
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


whole, ranks = gradients(tokens), [gradients(tokens[rank::4]) for rank in range(4)]
prove("four processes with a quarter each have the gradient of one", torch.allclose(sum(ranks) / 4, whole, atol=1e-6))
parts, sent = [list(gradient.tensor_split(4)) for gradient in ranks], [0] * 4
for step in range(6):
    messages = [(rank, (rank - step) % 4, parts[rank][(rank - step) % 4].clone()) for rank in range(4)]
    for rank, part, message in messages:
        target = parts[(rank + 1) % 4]
        target[part] = target[part] + message if step < 3 else message  # first sums, then copies
        sent[rank] += message.nbytes
everyone = [torch.cat(row) / 4 for row in parts]
prove("after six steps everyone has the mean", all(torch.allclose(g, whole, atol=1e-6) for g in everyone))
formula = scaling.ring_all_reduce_bytes(whole.nbytes, 4)
prove("each sent 3/2 of its gradients, to rounding of the parts", max(abs(n - formula) for n in sent) <= 24)

# %% [markdown] id="pipeline-says"
# The hatched cells are called the *bubble*. The more parts there are, the smaller it is. Here are all four ways:
#
# | parallelism | a device holds | sends in a training step | when |
# |---|---|---|---|
# | data | all, 128 GB | 28 GB | during the backward pass |
# | sharded | an eighth, 16 GB | 42 GB | before and after a layer |
# | tensor | an eighth of each matrix, 16 GB | 120 GB | four times in each layer; all wait |
# | pipeline | whole layers, 16 GB on average | 1 GB | between one device's layers and the next |
#
# The stream of eight texts is 65,536 · 4,096 numbers, 0.54 GB. A pipeline sends it forward, and its gradient back. Tensor
# parallelism adds it up 4 · 32 times, and sends 2 · 7/8 of it each time.
#
# <details><summary>Two more things that can be shared out, experts and a text, and how a large run combines them all</summary>
#
# A model with experts (chapter 7) can put each expert on another device: **expert parallelism**. Then the tokens travel.
# With 2 experts for each token, up to 268 MB are sent for one layer and text.
#
# The activations of 131,072 tokens are too large for one device. In **context parallelism** each takes a piece of the
# text. A query must meet all keys. So the keys and values of the pieces go round a ring, and each device adds what they
# contribute by the running softmax of chapter 7 (Liu et al. 2023). In Llama 3 8B that is 470 MB per layer.
#
# Llama 3 405B was trained with tensor parallelism over the 8 chips of a machine, a
# pipeline of 16 stages, and sharded data parallelism over 64 or 128 of such groups; for its longest texts it took context
# parallelism over 16 (Llama team 2024, table 4). Traffic that holds everyone up gets the fastest links.
#
# </details>
#
# <details><summary>Evidence: the numbers of this section, and the same in real processes</summary>
#
# The cell with the last drawing computes each number. Much of what sharded data parallelism sends costs no time,
# because the next layer is fetched while this one computes. With p devices and m parts the bubble is a share of (p − 1)
# / (m + p − 1) of the time (Huang et al. 2019). The gated feed-forward of Llama has two matrices in place of the first,
# and both are cut by columns.
#
# The command `course train` under `torchrun` does data parallelism and all stages of sharding; its losses are compared
# with those of one process, and [memory and speed are recorded](../benchmarks/results/distributed-cpu.md). [From a laptop
# to a cluster](../docs/scale_out.md) has the commands. Tensor, pipeline, expert and context parallelism are not built in
# this course.
#
# </details>

# %% [markdown] id="law"
# **A good place to stop: you know how devices share a model.**
#
# ## 6 Which size?
#
# You have a budget of operations. You can spend it on a large model that reads little, or on a small one that reads much.
# Which one ends up better?
#
# A tiny model has nowhere to put what it reads. A huge one has hardly begun when the budget is gone. We trained six GPTs
# of 9,000 to 200,000 parameters on characters of Shakespeare. Each spent the same budget, 8·10¹⁰ operations, a few
# seconds on a laptop. Then came two more budgets, each twice the one before. At each size and budget we tried several
# learning rates and kept the best. We call these losses *the record*.
#
# **Predict.** Imagine the curve of the loss against the size at one budget. When the budget is four times as large, does
# the lowest point move to larger models, to smaller ones, or not at all?

# %% id="predict-sizes"
ex.predict("where_the_bowl_goes", "")

# %% id="points" tags=["hide-input"]
# Figure: the losses of the record, for each size and budget
found = record("isoflop")
points = {}  # budget: size: losses of the seeds
for row in found["rows"]:
    if row["best"]:
        sizes = points.setdefault(row["budget"], {})
        sizes.setdefault(row["parameters"], []).append(row["loss"])
points = {b: dict(sorted(sizes.items())) for b, sizes in sorted(points.items())}
show(
    plots.equal_operations(points, {}),
    alt="Loss against parameters on a logarithmic axis, in three colours for three budgets. In each colour the dots fall at first "
    "and rise again to the right. With a larger budget they lie lower.",
    caption="A dot for each seed: one at 16,000 parameters, two or three elsewhere. Models of one colour spent the same budget. "
    "With the largest budget the smallest model would have run out of text, so it is missing.",
)
every = found["rows"] + found["held_out"]
bracketed = 0
for budget, sizes in points.items():
    for N in sizes:
        here = [row for row in found["rows"] if (row["budget"], row["parameters"]) == (budget, N)]
        tried = [row["rate"] for row in here if row["seed"] == 0]
        bracketed += min(tried) < next(row["rate"] for row in here if row["best"]) < max(tried)
prove(
    "at 15 of 17 points a larger and a smaller rate were both worse",
    (bracketed, sum(map(len, points.values()))) == (15, 17),
)
prove("no run reads the text more than two and a half times", max(row["passes"] for row in every) < 2.6)

# %% [markdown] id="bowl"
# Each colour is roughly a bowl: the loss falls with the size, then rises. The lowest dot may be luck. A parabola fitted
# to the mean of each size evens some of this out, with the *logarithm* of the size on the horizontal axis. Its bottom may
# lie between two of our sizes. Write the function that finds it.

# %% exercise="isoflop_minimum"

# %% id="minima-figure" tags=["hide-input"]
# Figure: the bowls of three budgets, with the bottoms that you find
minima = {}
for budget, sizes in points.items():
    means = [statistics.mean(losses) for losses in sizes.values()]
    N = torch.tensor(list(sizes), dtype=torch.float64)
    minima[budget] = isoflop_minimum(N, torch.tensor(means, dtype=torch.float64))
    size, loss = minima[budget]
    print(f"{power_of_ten(budget)} operations: best size {size:8,.0f}, loss {loss:.3f}")
below = [sum(y < minima[budget][1] for ys in sizes.values() for y in ys) for budget, sizes in points.items()]
prove("at each budget one dot lies below the bottom", below == [1, 1, 1])
show(
    plots.equal_operations(points, minima),
    alt="Loss against parameters on a logarithmic axis for three budgets. Each set of points lies on a bowl; a diamond marks its "
    "lowest point. With a larger budget the bowl lies lower and its diamond further to the right.",
    caption="A bowl for each budget. Its bottom moves to larger models as the budget grows.",
)

# %% [markdown] id="minima-say"
# Such curves are called *isoFLOP* curves. With four times the operations, our best model was about three times as large,
# and its text about 1.4 times as long. The parabola is crude: at each budget one dot lies below its bottom.
#
# <details><summary>Evidence: how the record was made, and what it cannot say</summary>
#
# The command was `python benchmarks/isoflop.py --seeds 3`. Rates were tried in steps of two, with seed 0 and on a part of
# the text that is used for nothing else. At 15 of 17 points a larger and a smaller rate were both worse. Most points have
# three seeds at that rate, the models of 16,000 parameters only one. Run later with seeds 1 and 2, that size reached
# 2.057 and 2.064 at the smallest budget; these two runs are neither in the record nor in the figures.
#
# The rate stays constant. At four fifths of each budget a copy branches off, and its rate decays to zero (Hägele et al.
# 2024). So the points of one size share some of their luck. Losses are measured on the last twentieth of the text. No run
# reads the text more than two and a half times. [All points](../benchmarks/results/isoflop.md) are in a table.
#
# Two smaller budgets were tried first, and left out before the model of section 7 was trained; those runs are not in the
# record. There the best loss fell more slowly than here, because so small a run mostly learns which letters stand
# together. A power law holds over a range, and one has to look where it begins.
#
# </details>
#
# **A good place to stop: you can find the best size by trying.**
#
# ### 6.1 Kaplan and Chinchilla
#
# How fast should the size grow with the budget? In 2020 Kaplan et al. answered: like C<sup>0.73</sup>, so most of it goes
# into size. GPT-3 followed, with fewer than two tokens per parameter. In 2022 Hoffmann et al. used bowls like ours and
# answered: like C<sup>0.5</sup>, so size and text grow alike. Their *Chinchilla*, 70 billion parameters on 1.4 trillion
# tokens, was better at nearly everything than Gopher, a model four times as large that had spent the same budget. That
# became the rule of thumb: **20 tokens per parameter**.
#
# Why did two careful groups differ? Kaplan's team did not count the operations of the head, used a warm-up that was too
# long for small models, and did not tune the optimizer for each size. With these three corrected, their experiment gives
# Chinchilla's answer (Porian et al. 2024). So an exponent belongs to a recipe, and ours, C<sup>0.78</sup> from three
# bowls, is no law for other models.
#
# Hoffmann et al. also fitted one formula to all of their runs, a **scaling law** that says what a loss is made of:
#
# $$L(N, D) = E + \frac{a}{N^{\alpha}} + \frac{b}{D^{\beta}}$$
#
# E is the **floor**, what even a perfect model cannot know about the next token. The second term is what the model
# loses by being small, the third what it loses by having read too little. At a fixed budget C, D is C / (6 N). So with
# a larger N the second term falls and the third, $b \, (6 N / C)^{\beta}$, rises. Its derivative is β / N times the term itself.
# At the bottom of the bowl the derivatives add up to zero:
#
# $$-\frac{\alpha \, a}{N^{\alpha + 1}} + \frac{\beta \, b}{N \, D^{\beta}} = 0$$
#
# Multiply by N:
#
# $$\frac{\alpha \, a}{N^{\alpha}} = \frac{\beta \, b}{D^{\beta}}$$
#
# Your next function solves this for N. E does not move the bottom, so it plays no part.

# %% exercise="compute_optimal"

# %% id="optimal-counted" tags=["hide-input"]
# Check: the best split of Gopher's budget and of GPT-3's, by two fits
gopher = 5.76e23  # operations
fits = {"Hoffmann et al. 2022": scaling.HOFFMANN, "Besiroglu et al. 2024": scaling.BESIROGLU}
for name, surface in fits.items():
    size, seen = compute_optimal(*surface[1:], gopher)
    print(f"{name}: {size / 1e9:5.1f} B parameters, {seen / 1e12:.1f} T tokens, {seen / size:.0f} per parameter")
    best = scaling.compute_optimal(surface, gopher)
    prove(f"{name}: your split is the course's", math.isclose(size, best.parameters, rel_tol=1e-6))
prove("the corrected fit gives about twenty tokens per parameter", 15 < seen / size < 30)
as_it_was = scaling.BESIROGLU.predict(174.6e9, 300e9).item()
better = scaling.compute_optimal(scaling.BESIROGLU, 6 * 174.6e9 * 300e9)
print("GPT-3's budget by the second fit:", end=" ")
print(f"loss {as_it_was:.3f} with its 175 B, {better.loss:.3f} with {better.parameters / 1e9:.0f} B")
prove("GPT-3's budget is better spent on a smaller model", better.parameters < 174.6e9 / 2 and better.loss < as_it_was)
small, large = (8.03e9, 15e12), (33.9e9, 0.647e12)  # Llama 3 8B, and the best split that reaches its loss
same = [scaling.BESIROGLU.predict(*model).item() for model in (small, large)]
prove("the loss of both is 2.022", [round(loss, 3) for loss in same] == [2.022, 2.022])
best = scaling.compute_optimal(scaling.BESIROGLU, 6 * large[0] * large[1])
prove("34 B is the best size of its budget", abs(best.parameters / large[0] - 1) < 0.01 > abs(same[0] - same[1]))
totals = [round(6 * N * D / 1e23, 1) for N, D in (large, small)]
prove("the totals of section 6.2", totals == [1.3, 7.2])
even = (6 * small[0] * small[1] - 6 * large[0] * large[1]) / (2 * (large[0] - small[0]))
prove("they are equal at 11 trillion tokens of use", round(even / 1e12) == 11)

# %% [markdown] id="by-hand"
# The published fit had stopped too early (Besiroglu et al. 2024), so we use the corrected one.
#
# ### 6.2 A budget by hand, and why people break the rule on purpose
#
# You get 10²⁰ operations. With D = 20 N the budget is 6 · N · 20 N = 120 N². So N² = 8.3·10¹⁷, and **N is 0.9 billion
# parameters, D 18 billion tokens**.
#
# Yet Llama 3 8B read nearly 1,900 tokens per parameter. Was that a waste? The rule asks for the best model *at the end of
# training*. But then the model is used, and every token that it reads or writes costs 2 · N operations. By the corrected
# fit, the cheapest way to the loss of Llama 3 8B is a model of 34 billion parameters that reads 0.65 trillion tokens.
#
# To train, the model of 34 billion costs 1.3·10²³ operations. Llama 3 8B costs 7.2·10²³, which is 5.9·10²³ more. But
# each token it handles later costs 2 · 26 billion operations less. The two bills are equal after 5.9·10²³ / 5.2·10¹⁰
# tokens, about 11 trillion. **The more a model will be used, the smaller it should be, and the longer it should read**
# (Sardana et al. 2024).
#
# <details><summary>How rough this is, and four findings that change the answer</summary>
#
# The fit rests on runs of at most 500 billion tokens.
#
# - **Counting.** Leave the tables out of N, look only at small models, and Chinchilla's own law looks like Kaplan's
#   (Pearce and Song 2024).
# - **Text runs out.** Up to about four passes, old text is worth nearly as much as new; after that its worth fades
#   (Muennighoff et al. 2023).
# - **Precision.** Training in fewer bits is like having fewer parameters, and a model that read very much is hurt more by
#   rounding afterwards (Kumar et al. 2024).
# - **Thinking longer.** Operations can also be spent when a question is asked. On some tasks a small model that tries
#   many times beats a model 14 times its size (Snell et al. 2024).
#
# </details>
#
# **A good place to stop: you can choose a size for a budget, and say when to choose a smaller one.**

# %% [markdown] id="shape"
# <details><summary>You will read that more layers, more heads and more width each help</summary>
#
# More *parameters* help, as layers or as width: both cost operations in proportion, and for a given size the loss hardly
# depends on how deep or wide the model is, as long as it is neither extreme (Kaplan et al. 2020, section 3.1). More heads
# at one width are narrower heads. They add no parameter, and in [chapter 2](02_multi_head.ipynb) and its lab they bring no
# steady gain.
#
# *You will read that* a larger model reaches a given loss with less data. With less data, yes: fewer steps. With fewer
# operations only left of the bowl's bottom; at a fixed budget the largest model is far from the best.
#
# *And that* scale alone decides. What is left of this: the loss falls in a predictable way if size, text and recipe grow
# together.
#
# </details>
#
# ## 7 You predict a model
#
# A fourth budget is 1.28·10¹² operations, four times the largest so far. How large will the best model be, and how good?
# With logarithms on both axes, your three bottoms lie nearly on straight lines. Fit one line to the sizes and one to the
# losses, and extend both.

# %% exercise="predict_loss"

# %% id="prediction-figure" tags=["hide-input"]
# Figure: the best sizes and losses of three budgets, and your lines to the fourth
TARGET = 1.28e12
budgets = torch.tensor(list(minima), dtype=torch.float64)
best_sizes, best_losses = torch.tensor(list(minima.values()), dtype=torch.float64).T
size_predicted, loss_predicted = predict_loss(budgets, best_sizes, best_losses, TARGET)
print(f"best size {size_predicted:,.0f}, its loss {loss_predicted:.3f}")
show(
    plots.extended(budgets.tolist(), best_sizes.tolist(), best_losses.tolist(), TARGET),
    alt="Two panels with logarithmic axes. Left, the best size against the budget: three diamonds on a rising line, a circle where it "
    "reaches the fourth budget. Right, their losses: three diamonds on a falling line, a circle at the fourth budget.",
    caption="Two straight lines, extended to a budget that none of these models has spent.",
)
nearest = min({row["parameters"] for row in found["rows"]}, key=lambda N: abs(math.log(N / size_predicted)))
prove("three layers of width 48 are the nearest shape", nearest == 86_640)
best_rates = {row["rate"] for row in found["rows"] if row["best"] and row["parameters"] == nearest}
prove("0.01 was its best rate at all three budgets", best_rates == {0.01})

# %% [markdown] id="size-chosen"
# Of our shapes, three layers of width 48 come nearest to that size, with 87,000 parameters. Bowls are flat near the bottom,
# so the predicted loss should hold for it, too. But three points are few, and the floor E bends such a line upwards.
#
# **Predict.** Do you believe the printed loss, or would you move it? Write down what you expect, with three digits.

# %% id="predict-loss"
ex.predict("loss_of_my_model", "")

# %% [markdown] id="train-text"
# Now train it on your machine, which takes about a minute. For this shape 0.01 was the best rate at all three budgets. Your
# `count_flops` says how many steps the budget pays for.

# %% id="model-of" tags=["hide-input"]
# The text, its two parts, the loss, and the GPT of the record
text = tiny_shakespeare()
tokenizer = CharTokenizer.train([text])
ids = torch.tensor(tokenizer.encode(text))
train_ids, held_out = ids[: len(ids) * 90 // 100], ids[len(ids) * 95 // 100 :]
held_out = held_out.unfold(0, 65, 64)  # (n, T + 1)


def loss_of(model, rows):
    logits = model(rows[:, :-1])  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def gpt_of(layers, width):
    """A GPT of this shape, and its config."""
    sizes = {"d_model": width, "n_heads": layers, "n_decoder_layers": layers, "n_encoder_layers": 0}
    switches = {"positions": "rotary", "norm": "rms", "norm_place": "pre", "activation": "gelu", "bias": False}
    switches |= {"scale_embeddings": False, "tie_embeddings": False, "init": "normal", "zero_residual_init": True}
    config = TransformerConfig(**sizes, **switches, vocab_size=tokenizer.vocab_size, dropout=0.0)
    return LanguageModel(config), config


# %% id="train"
def train(model, steps, rate, seed):
    how = {"betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    generator, curve = torch.Generator().manual_seed(seed), []
    for step in range(steps):
        left = (steps - step) / (0.2 * steps)  # from 1 to 0 in the last fifth
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 25, left)
        start = torch.randint(len(train_ids) - 65, (4, 1), generator=generator)
        loss = loss_of(model, train_ids[start + torch.arange(65)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


# %% id="trained" tags=["tol:0.02"]
torch.manual_seed(3)  # the record has seeds 0, 1 and 2
mine, mine_config = gpt_of(layers=3, width=48)
a_step = count_flops(4, 64, 48, 4 * 48, 3, tokenizer.vocab_size, True)
steps = round(TARGET / a_step)
curve = train(mine, steps, rate=0.01, seed=3)
with torch.no_grad():
    reached = loss_of(mine, held_out).item()
print(f"{steps:,} steps of 256 characters: loss {reached:.3f}")

# %% [markdown] id="trained-says"
# Compare it with what you wrote down, and with two simple guesses: that the loss stays at the best so far, or that its last
# drop comes twice more, once for each doubling. We had trained this model, too, with three other seeds.

# %% id="ways" tags=["hide-input", "picture:30"]
# Compare: two simple guesses, your lines, and trained models
larger = {}
for row in found["held_out"]:
    if row["best"]:
        larger.setdefault(row["parameters"], []).append(row)
mine_size = scaling.count_parameters(mine_config).total() - tokenizer.vocab_size * mine_config.d_model
measured = [row["loss"] for row in larger[mine_size]]
runs = [row for row in found["rows"] if row["best"]]
columns = torch.tensor([[row["parameters"], row["tokens"], row["loss"]] for row in runs], dtype=torch.float64).T
surface = scaling.fit_loss_surface(*columns.numpy())
target_tokens = larger[mine_size][0]["tokens"]
draw, by_law, by_lines = torch.Generator().manual_seed(0), [], []


def redrawn(rows):
    """As many of some runs, drawn with replacement: sizes, tokens and losses (3, n)."""
    return rows[:, torch.randint(rows.size(1), (rows.size(1),), generator=draw)]


of_budget = [columns[:, torch.tensor([row["budget"] == budget for row in runs])] for budget in minima]
for _ in range(200):
    law = scaling.fit_loss_surface(*redrawn(columns).numpy(), start=surface)
    by_law.append(law.predict(mine_size, target_tokens).item())
    bowls = [isoflop_minimum(*redrawn(rows)[[0, 2]]) for rows in of_budget]
    by_lines.append(predict_loss(budgets, *torch.tensor(bowls, dtype=torch.float64).T, TARGET)[1])
intervals = {
    name: (sorted(found)[4], sorted(found)[-5])
    for name, found in (("your two lines", by_lines), ("the fitted law", by_law))
}
*_, before, last = best_losses.tolist()
ways = {
    "the best so far": last,
    "the last drop, twice": last + 2 * (last - before),
    "your two lines": loss_predicted,
    "the fitted law": surface.predict(mine_size, target_tokens).item(),
}
middle = statistics.mean(measured)
print(f"trained models of the record: {', '.join(f'{loss:.3f}' for loss in sorted(measured))}; mean {middle:.3f}")
shown = {name: value for name, value in ways.items() if name != "the fitted law"}
for name, value in shown.items():
    print(f"{name:>24}: {value:.3f}, {value / middle - 1:+.1%}")
prove("the lines miss by 0.2 per cent", round(100 * abs(ways["your two lines"] / middle - 1), 1) == 0.2)
prove("the three runs differ by more", max(measured) - min(measured) > abs(loss_predicted - middle))
prove("to expect no progress misses by more than five", ways["the best so far"] / middle - 1 > 0.05)
prove("the law misses by more than the lines", abs(list(ways.values())[3] - middle) > abs(loss_predicted - middle))
(low, high), (law_low, _) = intervals.values()
prove("the interval of the lines holds the mean", low < middle < high)
prove("the law's lies above the mean, but not above all runs", middle < law_low < max(measured))
show(
    plots.ways_to_predict(shown, {"your two lines": (low, high)}, measured, reached),
    alt="Three rows with a dot each on an axis of loss: the best so far, the last drop twice, and your two lines with a bar for "
    "their interval. Vertical lines show the three runs of the record, a dashed one yours.",
    caption="What each way predicted, and what three trained models and your own reached. For the bar we resampled the "
    "recorded runs, some twice and some not at all, and fitted bowls and lines again. Of 200 such predictions, 192 lie in it.",
)

# %% [markdown] id="ways-say"
# Your lines saw models of at most 3.2·10¹¹ operations, and they missed the loss of one that spent four times as much by
# 0.2 per cent. The last drop, twice, came as close, and the three runs differ by more. But only your lines also said how
# large the model should be, which we did not test.
#
# So before you spend a large budget: count the memory, measure the utilisation in a short run, train small models at
# three or more budgets, each with its best rate, and write down the loss that you expect.
#
# <details><summary>Evidence: the other ways to predict, and how the bar was made</summary>
#
# A guess of no progress is seven per cent off. One can also fit the law of 6.1 to all runs. With its floor it predicted
# too little progress: the mean of the three runs lies just below its interval, and one of them inside it. Three budgets
# close together were enough to extrapolate here, but too few to tell the laws apart.
#
# Your bowls are fitted to the mean of each size, those of the bar to the redrawn dots themselves, which is another fit.
#
# Nine tenths of the text were for training, the last twentieth measured the loss, and the rate was chosen on the
# twentieth between them.
#
# </details>
#
# **This is the end of the experiment, and the best place to stop.**
#
# ### The chapter on one card
#
# You can now
#
# - say what a GPT weighs, computes and holds before it exists;
# - say whether a program waits for memory or for arithmetic, and what would make it faster;
# - choose how to share a model among devices, and say what is sent and when;
# - find the best size for a budget, and predict the loss of a run before paying for it.
#
# <details><summary>The formulas of this chapter</summary>
#
# | what | formula | section |
# |---|---|---|
# | parameters of a layer | 12 · width² | 1 |
# | operations of training | 6 N D for D tokens; attention reaches the rest of a layer at n = 6 · width | 2 |
# | bytes of training | 16 for each parameter, and activations | 3 |
# | cache | 2 · layers · length · key/value heads · width of a head · bytes of a number, for each text | 3 |
# | least time | the longer of operations / speed and bytes / bandwidth | 4 |
# | ring | 2 (R − 1) / R of the bytes, sent by each of R devices | 5 |
# | the loss | E + a / N<sup>α</sup> + b / D<sup>β</sup> | 6 |
#
# </details>
#
# <details><summary>1. A model card says 163 million for a GPT-2. What happened?</summary>
#
# The tied table was counted twice, as table and as head: 124 and 39 million (section 1).
#
# </details>
#
# <details><summary>2. A run reports 80 % utilisation. What do you ask?</summary>
#
# Which operations were counted, recomputed ones too, and over which peak: dense or sparse, 16 or 8 bits (2.1).
#
# </details>
#
# <details><summary>3. Weights in 8 bits make writing faster, but hardly speed up prefill. Why?</summary>
#
# Writing waits for bytes, prefill for arithmetic (4).
#
# </details>
#
# <details><summary>4. Which way of sharing needs the fastest links, and why?</summary>
#
# Tensor parallelism: it sums activations four times in each layer, and everybody waits for them (5.3).
#
# </details>
#
# <details><summary>5. Two models spent the same budget; the larger one is worse. Is it a bad model?</summary>
#
# It read too little. It lies on the right side of the bowl (6).
#
# </details>
#
# ## 8 The end of the course
#
# Look at the whole once more, drawn without its norms. You have written every box of it.

# %% id="whole" tags=["hide-input"]
# Drawing: the whole Transformer, with the chapters that built it
drawings.whole_transformer().show()

# %% [markdown] id="whole-says"
# A token becomes a vector. Attention lets it ask the tokens that it may see, several heads at a time, and positions
# tell it where they stand. A feed-forward computes on what has arrived. Residual streams and norms let many such layers
# learn. An encoder reads, a decoder writes, and a loss tells both how wrong they were. GPT-2 is the decoder alone,
# without attention to an encoder, and Llama 3 changes its norms, positions and feed-forward.
#
# What you have now is a file. `course assemble` puts your answers into `my/my_transformer.py`, which needs only PyTorch,
# trains a translator and a GPT, and writes. And you have a way of working: predict, measure, and look for what could
# prove you wrong.
#
# Where to go? Take a text that matters to you and find its bowl with `course sweep --data my_text.txt`. Three labs go on
# from this chapter: [the rate of a wider model](labs/08_width_and_rates.ipynb), [one model for many
# readers](labs/08_serving.ipynb), and [bugs in plans](labs/08_bugs.ipynb).
#
# <details><summary>Sources</summary>
#
# - Vaswani et al. 2017, arXiv:1706.03762, table 3; Devlin et al. 2019 (BERT), arXiv:1810.04805; Brown et al. 2020
#   (GPT-3), arXiv:2005.14165, table 2.1; Chowdhery et al. 2022 (PaLM, and utilisation), arXiv:2204.02311; Touvron et al.
#   2023 (Llama 2), arXiv:2307.09288; Llama team 2024 (Llama 3), arXiv:2407.21783, table 4; DeepSeek-AI 2024
#   (DeepSeek-V3), arXiv:2412.19437, table 1.
# - Kaplan et al. 2020, arXiv:2001.08361; Hoffmann et al. 2022 (Chinchilla), arXiv:2203.15556; Besiroglu et al. 2024,
#   arXiv:2404.10102 (its corrected fit); Porian et al. 2024, arXiv:2406.19146; Pearce and Song 2024, arXiv:2406.12907;
#   Hägele et al. 2024, arXiv:2405.18392 (constant rates).
# - Sardana et al. 2024, arXiv:2401.00448 (use); Muennighoff et al. 2023, arXiv:2305.16264 (repeated text); Kumar et al.
#   2024, arXiv:2411.04330 (precision); Snell et al. 2024, arXiv:2408.03314 (thinking longer).
# - Micikevicius et al. 2018 (mixed precision), arXiv:1710.03740; Rajbhandari et al. 2020 (ZeRO), arXiv:1910.02054; Zhao
#   et al. 2023 (FSDP), arXiv:2304.11277; Shoeybi et al. 2019 (Megatron), arXiv:1909.08053; Huang et al. 2019 (GPipe),
#   arXiv:1811.06965; Lepikhin et al. 2020 (GShard), arXiv:2006.16668; Liu et al. 2023 (Ring Attention), arXiv:2310.01889;
#   Patarasuk and Yuan 2009 (the ring).
# - Williams, Waterman and Patterson 2009, *Roofline*; Dao et al. 2022 (FlashAttention), arXiv:2205.14135; Kimi team 2025
#   (Kimi K2), arXiv:2507.20534.
#
# </details>
