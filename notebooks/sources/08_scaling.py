# %% [markdown] id="title"
# # 8 Scaling
#
# In this notebook you work out what a Transformer costs before it exists, compare that with what is measured, and read
# a scaling law from models that you train yourself. Afterwards you can say which size fits a machine, a budget and a
# text. It builds on chapters 1 to 7 and takes about {minutes} minutes. Measured: 90 seconds of processor time, 0.8 GB of memory. Run the first cell:

# %% id="first-look"
import torch

from course_lib import scaling
from course_lib.variants import PUBLISHED

torch.set_num_threads(1)  # the same rounding everywhere

gpt2 = PUBLISHED["gpt2"].config()
print(f"{scaling.count_parameters(gpt2).total():15,} parameters")
operations = scaling.count_flops(gpt2, 1, 1024, backward=True).total()
print(f"{operations:15,} operations to train on 1024 tokens")
in_cache = scaling.kv_cache_bytes(gpt2, 1, 1024)
print(f"{in_cache:15,} bytes of cache to write 1024 tokens")

# %% [markdown] id="what-just-happened"
# Three numbers from the sizes alone. The sections count **parameters** (1), **operations** (2) and **bytes** (3), ask
# how much of this **machine** a program uses (4) and what makes it **faster** (5), then measure what size is good for:
# a **scaling law** (6). Section 7 spreads the work over processes, section 8 shows famous bugs.

# %% id="imports"
import math
import statistics
import time
from dataclasses import replace

import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import testing
from course_lib.attention import scaled_dot_product_attention
from course_lib.data import CharTokenizer
from course_lib.encoder import EncoderLayer
from course_lib.scaling import read_sweep
from course_lib.testing import complaint, prove, proved  # prove stops at a false claim
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from coursework import exercises as ex
from coursework.explorers import CostExplorer
from coursework.pictures import show

# %% id="prove"
from coursework.corpora import reference_text
from coursework.pictures.plots import chapter_08 as plots
from coursework.records import claim, record


def built(model_class, config):
    """Parameters of a model on the meta device, which has shapes but no numbers."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in model_class(config).parameters())


total = scaling.count_parameters(gpt2).total()
print(f"GPT-2: {total:,} by formula, {built(LanguageModel, gpt2):,} built")
prove(
    "GPT-2's parameters by formula are those of the built model",
    total == built(LanguageModel, gpt2),
)

# %% [markdown] id="parameters"
# ## 1 Parameters
#
# A parameter is a number in a matrix, a bias, a norm or a table, so counting them is a matter of shapes.

# %% exercise="count_parameters"

# %% id="published-counts"
names = [
    "bert-base-uncased",
    "gpt2",
    "gpt2-xl",
    "llama-2-7b",
    "llama-2-13b",
    "llama-2-70b",
    "llama-3-8b",
]
counted = {}
print(f"{'model':>18} {'counted':>15} {'stated':>8}")
for name in names:
    weights = PUBLISHED[name].build().parameters()
    counted[name] = sum(weight.numel() for weight in weights)
    print(f"{name:>18} {counted[name]:15,} {PUBLISHED[name].stated:8.3g}")
    within = abs(counted[name] / PUBLISHED[name].stated - 1) < 0.05
    prove(f"{name}, built without numbers, has its stated size within 5 %", within)
prove(
    "your function gives GPT-2's count",
    count_parameters(50257, 768, 3072, 12, 1024, True) == counted["gpt2"],
)

# %% [markdown] id="pieces"
# Where are they? BERT-base is the encoder of chapter 4 with twelve layers:

# %% id="pieces-counted"
bert = PUBLISHED["bert-base-uncased"].config()
pieces = scaling.count_parameters(bert, "encoder")
for piece, count in pieces.items():
    print(f"{piece:>14} {count:12,} {count / pieces.total():6.1%}")
pooler = 768 * 768 + 768
prove(
    "BERT-base is its encoder, its tables and a pooler",
    pieces.total() + pooler == counted["bert-base-uncased"],
)
without = {"n_token_types": 0, "embedding_norm": False}
plain = replace(bert, positions="sinusoidal", **without, final_norm=True)
encoder = scaling.count_parameters(plain, "encoder").total()
tables = 512 * 768 + 2 * 768  # positions, sentences
print(f"the paper's encoder in these sizes, with a norm at its end: {encoder:,}")
prove(
    "BERT-base has two more tables and the pooler",
    counted["bert-base-uncased"] - encoder == tables + pooler,
)

# %% [markdown] id="gpt3"
# GPT-3 has the blocks of GPT-2 in 96 layers of width 12,288 with 96 heads. In every second layer a token attends to a
# band of near positions only (section 2.1 of its paper); that changes no count of parameters. PaLM, with 540 billion parameters, is
# larger still; its width is 18,432 and its layers are 118.
#
# > **Predict.** GPT-3's parameters: in which piece are they, if the token table is hardly larger than GPT-2's?

# %% id="gpt3-counted"
sizes = {"d_model": 12288, "n_heads": 96, "n_decoder_layers": 96, "max_length": 2048}
gpt3 = replace(gpt2, **sizes)
pieces = scaling.count_parameters(gpt3)
print(
    {piece: f"{count / pieces.total():.1%}" for piece, count in pieces.items()},
    f"{pieces.total():,}",
)
prove(
    "GPT-3, with 96 layers, has 175 billion parameters",
    round(pieces.total() / 1e9) == 175,
)
prove(
    "two thirds of them are in the feed-forward",
    abs(pieces["feed-forward"] / pieces.total() - 2 / 3) < 0.01,
)

# %% [markdown] id="paper"
# ### 1.1 The paper's two models
#
# | | layers in each stack | width | inner width | heads | width of keys and values | stated |
# |---|---|---|---|---|---|---|
# | base | 6 | 512 | 2048 | 8 | 64 | 65 million |
# | big | 6 | 1024 | 4096 | 16 | 64 | 213 million |
#
# > **You will read that** the base model has 65 million parameters, next to code with a table for the source, one for
# > the target and a head.
#
# The paper shares all three (section 3.4), over about 37,000 pieces:

# %% id="paper-counted"
rows = {}
for name, width, heads in (("base", 512, 8), ("big", 1024, 16)):
    config = TransformerConfig(d_model=width, n_heads=heads, vocab_size=37_000)
    for tying, switches in {
        "three tables shared": {"share_vocabulary": True},
        "head and target shared": {},
        "nothing shared": {"tie_embeddings": False},
    }.items():
        chosen = replace(config, **switches)
        rows[name, tying] = scaling.count_parameters(chosen, "encoder-decoder").total()
        print(f"{name:>5}, {tying:<22} {rows[name, tying]:12,}")
shared = TransformerConfig(vocab_size=37_000, share_vocabulary=True)
prove(
    "the formula is the built model",
    built(Transformer, shared) == rows["base", "three tables shared"],
)

# %% id="paper-proof"
print({name: f"{n / 1e6:.1f} M" for name, n in rows.items() if "three" in name[1]})
prove(
    "shared, base is within 3 % of 65 million",
    abs(rows["base", "three tables shared"] / 65e6 - 1) < 0.03,
)
prove(
    "shared, big is within 1 % of 213 million",
    abs(rows["big", "three tables shared"] / 213e6 - 1) < 0.01,
)
prove(
    "with nothing shared, base is half as large again",
    rows["base", "nothing shared"] > 1.5 * 65e6,
)
untied = TransformerConfig(vocab_size=32_000, tie_embeddings=False)
unshared = scaling.count_parameters(untied, "encoder-decoder").total()
prove("untied over 32,000 pieces it has 93 million", round(unshared / 1e6) == 93)

# %% [markdown] id="paper-says"
# *True with sharing, false without.* The widths of keys and values are D / H = 64 in both models.
#
# > **You will read that** an encoder-decoder of two layers, width 128 and inner width 512 over 1,000 tokens, nothing
# > shared, has 3,416,232 parameters.

# %% id="two-layers"
sizes = {"d_model": 128, "d_ff": 512, "vocab_size": 1000}
sizes |= {"n_encoder_layers": 2, "n_decoder_layers": 2}
two_layers = TransformerConfig(**sizes, tie_embeddings=False, head_bias=True)
count = scaling.count_parameters(two_layers, "encoder-decoder")
print(dict(count), f"{count.total():,}")
prove(
    "it has 1,310,696 parameters, by formula and built",
    count.total() == built(Transformer, two_layers) == 1_310_696,
)

# %% [markdown] id="two-layers-says"
# *False*, by a factor of 2.6. A count takes one line; print it before you quote a number.

# %% [markdown] id="operations"
# ## 2 Operations
#
# A **FLOP** is one addition or multiplication of floating-point numbers. Almost all of a Transformer's are in products
# of matrices, 2 m k n for shapes (m, k) and (k, n). The backward pass has two products for each of the forward pass:
# one for the gradient of the input, one for that of the weights.

# %% exercise="count_flops"

# %% id="flops-measured"
chosen = {"d_model": 48, "n_heads": 3, "d_ff": 192, "n_decoder_layers": 2}
model = LanguageModel(TransformerConfig(**chosen, vocab_size=101, dropout=0.0))
tokens = torch.zeros(2, 37, dtype=torch.long)  # (B, T)
with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
    logits = model(tokens)
    forward = counter.get_total_flops()
    logits.sum().backward()
total = counter.get_total_flops()
print(f"torch counts {forward:,} forward and {total:,} with backward")
prove(
    "your formula is what torch counts, forward",
    count_flops(2, 37, 48, 192, 2, 101, False) == forward,
)
both = count_flops(2, 37, 48, 192, 2, 101, True)
prove(
    "a training step costs three forward passes, in torch's count too",
    both == total == 3 * forward,
)

# %% [markdown] id="six-nd"
# ### 2.1 Six operations for each parameter and token
#
# The shortcut of Kaplan et al. 2020 is C ≈ 6 N D for N parameters and D tokens: two operations forward and four
# backward. Which parameters? Their N leaves out all tables, of tokens and of positions, and with the token table the
# head. A table that is only looked up costs nothing, but the head is a product of matrices, and with GPT-2's
# vocabulary a large one. So we keep the head in N here.
#
# > **Predict.** What does 6 N D leave out, and from which length on is that more than the rest of a layer?

# %% id="six-nd-left-out"
count = scaling.count_parameters(gpt2)
in_layers = count["attention"] + count["feed-forward"]
N = in_layers + gpt2.vocab_size * gpt2.d_model
print(f"N of Kaplan et al.: {in_layers:,}; with the head: {N:,}")
print("length   exact / 6ND   scores and mixing")
for length in (64, 1024, 4608, 32_768):
    flops = scaling.count_flops(gpt2, 1, length, backward=True)
    products, layers = (
        flops["scores and mixing"],
        flops["projections"] + flops["feed-forward"],
    )
    ratio = flops.total() / scaling.six_n_d(N, length)
    print(f"{length:6}   {ratio:11.3f}   {products / flops.total():17.1%}")
    prove(
        f"at {length} the products reach the rest of the layer iff T >= 6 D",
        (products >= layers) == (length >= 6 * 768),
    )

# %% [markdown] id="six-nd-says"
# It leaves out the products of attention, which no parameter takes part in: 2 n² d multiply-adds in a layer against
# 12 n d² in its weights, equal at n = 6 d. So "attention is quadratic" decides the cost only of long texts in narrow
# models. (Biases and norms, which hardly count, are left out on both sides here.)
#
# With it the known budgets are one line each:

# %% id="budgets"
budgets = {"GPT-3 1.3B": (1.3e9, 300e9), "GPT-3": (174.6e9, 300e9)}
budgets |= {f"Llama 2 {size}B": (size * 1e9, 2e12) for size in (7, 13, 70)}
for name, (parameters, tokens_seen) in budgets.items():
    flops = scaling.six_n_d(int(parameters), int(tokens_seen))
    each = tokens_seen / parameters
    print(f"{name:>12}: {flops:.1e} FLOP, {each:6.1f} tokens a parameter")
prove("Llama 2 70B took 8.4e23 operations", round(6 * 70e9 * 2e12 / 1e23, 1) == 8.4)
prove("GPT-3 saw fewer than two tokens a parameter", 300e9 / 174.6e9 < 2)

# %% [markdown] id="budgets-says"
# > **You will read that** GPT-2 has 125 million parameters and saw 40 billion tokens.
#
# *False.* It has 124.4 million; its publishers state 40 **giga-bytes of text**, about 10 billion tokens at four bytes
# each, and never said how often it was read.
#
# Of the models with 13 and 70 billion parameters the sizes and the tokens are published, and the operations follow from
# them. How able a model is does not: that has to be measured on tasks.

# %% [markdown] id="attention-memory"
# ### 2.2 Quadratic, in what?
#
# "Attention is quadratic" is said of its memory and of its time. Does a long text then force us to leave something out?
# Count what the backward pass needs of one head, and compare outputs:


# %% id="attention-memory-measured"
def kept_bytes(backend, n):
    """Bytes kept for the backward pass over n positions, besides inputs and output."""
    found = []
    query, key, value = (torch.randn(1, 1, n, 16, requires_grad=True) for _ in range(3))
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda x: (found.append(x), x)[1], lambda x: x):
        output = scaled_dot_product_attention(query, key, value, backend=backend)
    known = {x.data_ptr() for x in (query, key, value, output)}
    new = [x for x in found if x.data_ptr() not in known]
    kept = {x.data_ptr(): x.untyped_storage().nbytes() for x in new}
    return sum(kept.values()), output


kept = {}
for backend in ("explicit", "fused"):
    kept[backend] = [kept_bytes(backend, n)[0] for n in (256, 512, 1024)]
print(kept)
prove(
    "the explicit form keeps four times as much at twice the length",
    kept["explicit"][2] > 3.9 * kept["explicit"][1],
)
prove("the fused kernel keeps twice as much", kept["fused"][2] < 2.1 * kept["fused"][1])

# %% id="attention-exact"
torch.manual_seed(0)
query, key, value = torch.randn(3, 1, 1, 512, 16).double()
outputs = []
for backend in ("explicit", "fused"):
    outputs.append(scaled_dot_product_attention(query, key, value, backend=backend))
difference = (outputs[0] - outputs[1]).abs().max()
print(f"largest difference of the two outputs below 1e-12: {difference < 1e-12}")
prove(
    "the fused kernel is exact attention, to rounding",
    torch.allclose(*outputs, atol=1e-12),
)
times = [scaling.count_flops(gpt2, 1, n)["scores and mixing"] for n in (4096, 8192)]
prove(
    "its operations still grow with the square of the length",
    times[1] == 4 * times[0],
)

# %% [markdown] id="attention-memory-says"
# The table is quadratic, and it is not needed: Flash kernels (Dao et al. 2022) compute exact attention, linear in memory
# and quadratic in time. No length forces an approximation; time may.

# %% [markdown] id="bytes"
# ## 3 Bytes
#
# Training holds four things: weights, gradients, the optimizer's two averages, and what the backward pass needs of the
# forward pass (**activations**). The first three follow from the parameters. The fourth grows with batch and length:

# %% id="activations-measured"
chosen = {"d_model": 64, "n_heads": 4, "n_decoder_layers": 3, "vocab_size": 211}
config = TransformerConfig(**chosen, positions="learned", dropout=0.0)
model = LanguageModel(config)


class Loss(nn.Module):
    """A model and its loss, as one module."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        """(B, T) -> the mean loss of some prediction"""
        return F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())


for batch, length in ((2, 32), (4, 32), (2, 64)):
    ids = torch.zeros(batch, length, dtype=torch.long)
    formula = scaling.activation_bytes(config, batch, length)
    found = testing.assert_counts(Loss(model), ids, saved_bytes=formula, tolerance=0.02)
    print(f"{batch} x {length} tokens: {formula:,} bytes by formula", end=", ")
    print(f"{found.saved_bytes:,} kept by autograd")
prove(
    "activations by formula are what autograd keeps, within 2 %",
    abs(found.saved_bytes / formula - 1) < 0.02,
)

# %% [markdown] id="training-memory"
# For GPT-2 in float32, with AdamW, one text of 1024 tokens:

# %% id="training-memory-counted"
for recompute in (False, True):
    memory = scaling.training_memory(gpt2, 1, 1024, recompute=recompute)
    print(
        {part: f"{n_bytes / 2**30:.2f} GiB" for part, n_bytes in memory.items()},
        "recomputed" if recompute else "",
    )
prove(
    "optimizer and gradients take three times the weights",
    memory["optimizer"] + memory["gradients"] == 3 * memory["weights"],
)
all_kept = scaling.activation_bytes(gpt2, 1, 1024)
saved = all_kept / scaling.activation_bytes(gpt2, 1, 1024, recompute=True)
more = scaling.count_flops(gpt2, 1, 1024, backward=True, recompute=True).total()
more /= scaling.count_flops(gpt2, 1, 1024, backward=True).total()
print(f"recomputing: activations divided by {saved:.1f}, operations times {more:.2f}")
prove(
    "recomputation trades up to a third more operations for less memory",
    saved > 2 and 1.2 < more < 1.34,
)

# %% [markdown] id="cache"
# A generator needs no gradients, but keeps its keys and values:

# %% exercise="kv_cache_bytes"

# %% id="cache-measured"
chosen = {"d_model": 48, "n_heads": 6, "n_kv_heads": 2, "n_decoder_layers": 3}
config = TransformerConfig(**chosen, vocab_size=31, dropout=0.0)
model = LanguageModel(config).eval()
cache = model.new_cache(20)
with torch.no_grad():
    model(torch.zeros(2, 20, dtype=torch.long), cache=cache)
print(f"{cache.n_bytes:,} bytes in the cache")
prove(
    "your formula gives the bytes of a real cache",
    kv_cache_bytes(3, 2, 20, 6, 2, 8, 4) == cache.n_bytes,
)
llama = PUBLISHED["llama-3-8b"].config()
gib = scaling.kv_cache_bytes(llama, 1, 8192, dtype=torch.bfloat16) / 2**30
prove("8192 tokens of Llama 3 8B take one GiB in bfloat16", gib == 1.0)

# %% exercise="sharded_bytes"

# %% [markdown] id="explorer-question"
# > **Predict.** GPT-2 is trained by 8 processes with one text of 1024 tokens each. What is left in a process if all
# > that can be split is split, and what takes most of it?

# %% id="explorer"
CostExplorer(model="GPT-2", length=1024, processes=8)

# %% id="explorer-checked"
stages = []
for stage in range(4):
    stages.append(scaling.training_memory(gpt2, 1, 1024, ranks=8, sharding=stage))
print([f"{stage.total() / 2**30:.2f} GiB" for stage in stages])
prove(
    "with everything split, activations are most of it",
    stages[3]["activations"] > stages[3].total() / 2,
)

# %% [markdown] id="roofline"
# ## 4 How much of the machine
#
# A machine multiplies at one speed and moves bytes at another. A kernel takes at least the longer of the two times
# (Williams et al. 2009). Below we
# measure both where you are; a table of peaks is right only for the machine in the table.

# %% [markdown] id="intensity"
# Work with fewer operations a byte than the ridge waits for memory. A step of decoding at batch 1 reads every weight
# for two operations; training reads it for many tokens:

# %% id="intensity-counted"
weight_bytes = 4 * scaling.count_parameters(gpt2).total()
for name, tokens_at_once in (
    ("decode, batch 1", 1),
    ("decode, batch 64", 64),
    ("train, 8 x 1024", 8192),
):
    flops = 2 * N * tokens_at_once
    print(f"{name:>17}: {flops / weight_bytes:8.1f} FLOP a byte of weights")
prove(
    "decoding one text has about half an operation a byte",
    0.4 < 2 * N / weight_bytes < 0.6,
)

# %% exercise="mfu"

# %% [markdown] id="clock-question"
# Now the clock, for a training step of a small model, and for an old question:
#
# > **You will read that** a transformer is faster than an RNN. *Predict:* on one thread, at 64 and at 512 tokens?

# %% id="step"
chosen = {"d_model": 128, "n_heads": 4, "n_decoder_layers": 4, "vocab_size": 108}
config = TransformerConfig(**chosen, norm_place="pre", dropout=0.0)
model = LanguageModel(config)
tokens = torch.randint(108, (12, 65))  # (B, T + 1)
optimizer = torch.optim.AdamW(model.parameters(), fused=True)


def step():
    """One update of the model."""
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def milliseconds(work, rounds=5):
    """Median time of a call, after one that does not count."""
    taken = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        taken.append(1e3 * (time.perf_counter() - began))
    return statistics.median(taken[1:])


# %% id="machine-clock" tags=["not-compared:clock"]
roofline = scaling.measure_roofline()
print(f"products: {roofline.flops_per_second / 1e9:.0f} GFLOP/s", end=", ")
print(f"copies: {roofline.bytes_per_second / 1e9:.1f} GB/s")
print(f"ridge: {roofline.ridge:.1f} FLOP a byte")
seconds = milliseconds(step) / 1e3
flops = scaling.count_flops(config, 12, 64, backward=True).total()
share = scaling.mfu(flops, seconds, roofline.flops_per_second)
print(f"a step: {1e3 * seconds:.0f} ms, {share:.0%} of this thread's measured peak")
lstm = nn.LSTM(256, 256, batch_first=True)
layer = EncoderLayer(TransformerConfig(d_model=256, n_heads=4, dropout=0.0))
with torch.no_grad():
    for n in (64, 512):
        x = torch.randn(1, n, 256)
        times = [milliseconds(lambda net=net, x=x: net(x)) for net in (lstm, layer)]
        print(f"{n:4} tokens: LSTM {times[0]:6.1f} ms", end=", ")
        print(f"encoder layer {times[1]:6.1f} ms")

# %% id="rnn-steps"
lstm_work = 4 * (256 * 256 + 256 * 256)  # multiply-adds for each token, at any length
for n in (64, 512):
    layer_work = 12 * 256 * 256 + 2 * n * 256
    print(f"{n:4} tokens: multiply-adds for each token: LSTM {lstm_work:,}", end=", ")
    print(f"layer {layer_work:,}, {layer_work / lstm_work:.2f} times as many")
prove(
    "at length 512 the layer has twice the work of the LSTM",
    layer_work == 2 * lstm_work,
)

# %% [markdown] id="rnn-says"
# *Depends on the hardware, and on the length.* An LSTM takes n steps one after the other, and each is a product with one
# vector. A layer takes all positions in one product of matrices. Even one thread does such a product faster for each
# multiplication: it computes several numbers with one instruction and uses each weight that it has fetched many times.
# So the layer, with about one and a half times the work, is often no slower at 64 tokens. At 512 it has twice the work,
# and is mostly the slower one. Where there are many processors, as on a GPU, the gain is far larger. Recurrent and state-space models of several billion parameters exist; attention has
# been scaled further, to hundreds of billions.

# %% [markdown] id="denominators"
# The denominator decides. The same run on an H100 is half as good against the peak of the data sheet that assumes
# sparse matrices, and 15 times better against that of float32:

# %% id="denominators-counted"
peaks = scaling.PEAKS["H100"]
shares = {
    "dense bfloat16": 1,
    "sparse": 0.5,
    "float32": peaks["bfloat16"] / peaks["float32"],
}
print({name: f"{0.4 * share:.0%}" for name, share in shares.items()})
prove(
    "against the wrong peak a utilisation can exceed one",
    0.4 * shares["float32"] > 1,
)
same = mfu(1000, 2, 5, 7, 11.0, 1, 1e5)
prove(
    "your utilisation is the course's",
    math.isclose(same, scaling.mfu(6 * 1000 + 12 * 2 * 5 * 7, 1 / 11.0, 1e5)),
)

# %% [markdown] id="ladder"
# ## 5 A ladder of speed
#
# Each rung changes one thing and keeps the model. What a rung gains is a matter of the machine: read your own numbers.


# %% id="ladder-clock" tags=["not-compared:clock", "long-cell"]
def rung(name, batch=8, length=128, autocast=False, fused=True, backend=None):
    """Print tokens per second of training with these switches."""
    torch.manual_seed(0)
    model = LanguageModel(replace(config, d_model=192, n_heads=6))
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, foreach=False)
    tokens = torch.randint(108, (batch, length + 1))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits = model(tokens[:, :-1]).flatten(0, 1)
            loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with sdpa_kernel(backend or [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        speed = 1e3 * batch * length / milliseconds(step, rounds=3)
        print(f"{name:>28}: {speed:8,.0f} tokens a second")


rung("explicit attention, plain Adam", fused=False, backend=SDPBackend.MATH)
rung("+ fused attention", fused=False)
rung("+ fused optimizer")
rung("+ one text at a time instead", batch=1)
rung("+ bfloat16 autocast", autocast=True)

# %% [markdown] id="ladder-compile"
# `torch.compile` joins steps that only move numbers into one kernel. On a processor it needs a C++ compiler and most of
# a minute for this model, so here is what `python benchmarks/speed_ladder.py` recorded on one thread of a machine that
# multiplies bfloat16 in hardware; ratios to the first rung are medians over interleaved rounds, with 95 % intervals:

# %% id="ladder-recorded"
recorded = record("speed-ladder-cpu")
where = f"{recorded['device']}, {recorded['threads']} thread"
print(f"{recorded['parameters']:,} parameters on {where}")
for row in recorded["rungs"]:
    middle, low, high = row["ratio"]
    print(f"{row['rung']:>32}: x {middle:.2f} ({low:.2f} to {high:.2f})", end=", ")
    print(f"first step {row['first_step_seconds']:5.1f} s")
gain = {row["rung"]: row["ratio"][0] for row in recorded["rungs"]}
prove(
    "recorded: the highest rung is bfloat16",
    max(gain, key=gain.get) == "+ bfloat16 autocast",
)
(_, plain_low, _), (_, _, compiled_high) = (
    next(row["ratio"] for row in recorded["rungs"] if row["rung"] == name)
    for name in ("+ fused optimizer", "+ torch.compile")
)
prove(
    "recorded: the intervals with and without compiling overlap",
    compiled_high > plain_low,
)

# %% id="compile-recorded"
print("time of a step, compiled / not compiled, in another record:")
for shape, found in record("training-step-cpu")["shapes"].items():
    times = {row["way"]: row["seconds"] for row in found["rows"]}
    tokens_of = " × ".join(map(str, found["tokens"]))
    ratio = times["ours, compiled"] / times["ours"]
    print(f"{shape:>6}, {tokens_of} tokens: {ratio:.2f}")

# %% [markdown] id="ladder-says"
# On this thread eight texts at once instead of one give most, then bfloat16, then the fused kernels. Compiling costs a
# minute, and whether it gains anything here cannot be told: the intervals overlap, and the other record, of
# `python benchmarks/training_step.py`, has it within a few per cent for every shape. Where starting a kernel takes
# long and elementwise steps wait for memory, as on a GPU, there is more to gain. Do not believe a ladder
# from another machine, this one included: climb it on yours.
#
# Tokens a second are half of the way to a quality. The other half is how much each token teaches, which optimizer, rates
# and switches of the model decide. `course train lm` starts with the best that we measured of both. [How long it
# takes](../benchmarks/results/time-to-quality.md) to the quality of a well-known recipe is recorded.
#
# Writing has a ladder of its own, as it waits for the weights to arrive (section 4). Put them into the order in which
# the processor reads them (`pack_` of `course_lib.variants.packed`), or make them smaller: `quantize_` of
# `course_lib.variants.int8` rounds each to 8 bits, or to 4. [How fast that
# writes](../benchmarks/results/generation-cpu.md) is one question, and [what the rounding
# costs](../benchmarks/results/rounding-cpu.md) is another. It is asked of trained models, by the loss on text that they
# never saw: 8 bits cost them nothing that can be told, 4 bits a little, and 2 bits clearly more.

# %% [markdown] id="law"
# ## 6 A law that you measure
#
# Kaplan et al. 2020 trained models of many sizes and found that the loss follows a power law. With a part that no size
# removes:
#
# $$L(N) = E + a / N^{\alpha}$$
#
# What is that part, the **floor** E? One share of it is the entropy of the text itself: what nobody can predict. But
# our models all see the same number of tokens D, and even an endless model could not learn everything from so few. So
# at a fixed budget of tokens the floor is higher than the entropy. The law of both sizes, which section 6.1 fits, has a
# term for each, and the floor of a single budget is its E + b / D^β.

# %% exercise="fit_power_law"

# %% [markdown] id="sweep"
# Now the experiment: models of one layer and growing width predict the next character of Python's language reference,
# three of each. The law is fitted to the small ones; the largest, with four times the parameters of any other, is held
# out.
#
# > **Predict.** By how many per cent will the prediction miss the loss of the held-out model?

# %% id="text"
text = reference_text()
cut = len(text) - len(text) // 10
tokenizer = CharTokenizer.train([text[:cut]])
print(tokenizer.vocab_size, "tokens in the vocabulary")
train = torch.tensor(tokenizer.encode(text[:cut]))
held_out = torch.tensor(tokenizer.encode(text[cut : cut + 32_500]))
held_out = held_out.view(-1, 65)  # (500, T + 1)


# %% id="model-of"
def model_of(width, layers=1, heads=2, seed=0):
    """A small language model of this size, new, and its count of parameters."""
    sizes = {"d_model": width, "n_heads": heads, "n_decoder_layers": layers}
    switches = {"positions": "rotary", "norm": "rms", "norm_place": "pre"}
    switches |= {"activation": "gelu", "bias": False, "dropout": 0.0}
    switches |= {"scale_embeddings": False, "tie_embeddings": False}
    config = TransformerConfig(**sizes, **switches, vocab_size=tokenizer.vocab_size)
    torch.manual_seed(seed)
    return LanguageModel(config), scaling.count_parameters(config)


# %% id="train-one"
def loss_of(model, rows):
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def train_one(model, peak, steps, seed=0):
    """Train a model; return its held-out loss, and its loss in training by step."""
    how = {"betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    generator, curve = torch.Generator().manual_seed(seed), []
    for step in range(1, steps + 1):
        share = min(10 * step / steps, (steps + 1 - step) / (0.9 * steps + 1))
        optimizer.param_groups[0]["lr"] = peak * share  # up in a line, down in a line
        start = torch.randint(len(train) - 65, (8, 1), generator=generator)
        batch = train[start + torch.arange(65)]  # (B, T + 1)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    with torch.no_grad():
        return loss_of(model, held_out).item(), curve


# %% [markdown] id="rate"
# Which learning rate? To choose it by held-out losses would spend them before the experiment. The text that the models
# are trained on costs nothing: it is new to them too, as no part of it comes twice in so short a run. Recorded by
# `python benchmarks/claims.py law_of_size`:

# %% id="rate-chosen"
found = claim("law_of_size")
tried, best = {}, {}
print("width   loss in training at each rate, mean of five seeds")
for width in (8, 12, 16, 24, 32, 72):
    shown = []
    for base in found.rates:
        rate = base * min(1, 32 / width)  # beyond 32 lower rates were tried
        losses_at = found.values(f"width {width}", "training loss", base)
        tried[width, rate] = statistics.mean(losses_at)
        shown.append(f"{rate:.4f}: {tried[width, rate]:.3f}")
    print(f"{width:5}   {'   '.join(shown)}")
    best[width] = min((key for key in tried if key[0] == width), key=tried.get)[1]
print(
    "best rate times width:",
    {width: round(rate * width, 2) for width, rate in best.items()},
)
prove(
    "the widest model of the fit wants a lower rate than the narrowest",
    best[32] < best[8],
)

# %% [markdown] id="rate-says"
# One rate does not suit them all. What suits is a rate that falls as 1 / width (Yang et al. 2022): 0.64 divided by the
# width is at or beside the best rate of each, and where two rates are nearly level, as for widths 8 and 32, either will
# do.

# %% id="sweep-run" tags=["tol:0.02"]
WIDTHS, SEEDS, STEPS = (8, 12, 16, 24, 32, 72), 3, 500
losses, curves, in_layers, everything = {}, {}, {}, {}


def run_of(width, seed, **change):
    return train_one(model_of(width, seed=seed, **change)[0], 0.64 / width, STEPS, seed)


print("width  parameters  in layers   losses of three seeds")
for width in WIDTHS:
    count = model_of(width)[1]
    everything[width] = count.total()
    in_layers[width] = count["attention"] + count["feed-forward"] + count["norms"]
    trained = [run_of(width, seed) for seed in range(SEEDS)]
    losses[width], curves[width] = zip(*trained, strict=True)
    shown = "  ".join(f"{x:.3f}" for x in losses[width])
    print(f"{width:5} {everything[width]:11,} {in_layers[width]:10,}  {shown}")
mean = {width: statistics.mean(losses[width]) for width in WIDTHS}
prove(
    "the held-out model is four times larger than any in the fit",
    everything[72] > 4 * everything[32],
)
prove("it has the lowest mean loss of all sizes", mean[72] == min(mean.values()))

# %% [markdown] id="law-fitted-intro"
# So much for three seeds, here and now. The law is fitted to the recorded runs, five seeds for each size, each size at
# its best rate; and once more to the runs that all have the same rate, as one might do it without thinking of rates.
# To judge a prediction we need something to compare it with. The simplest guess is that the large model is as good as
# the largest of the small ones.

# %% id="law-fitted" tags=["long-cell"]
# At the best rate of each
kept = {width: found.values(f"width {width}", "held-out loss") for width in WIDTHS}


def law_of(runs):
    """The law through all but the last width, and its miss of that one's mean loss."""
    points = [(everything[w], loss) for w in WIDTHS[:-1] for loss in runs[w]]
    fit = scaling.fit_power_law(*zip(*points, strict=True), n_resamples=100)
    return fit, fit.law.predict(everything[72]).item() / statistics.mean(kept[72]) - 1


small, miss = law_of(kept)
one_rate = {w: found.values(f"width {w}", "held-out loss", 0.02) for w in WIDTHS}
careless, _ = law_of(one_rate)
for name, fit in (("best rates", small), ("one rate", careless)):
    low, high = fit.interval("exponent")
    law = f"{fit.law.floor:.2f} + {fit.law.scale:.3g} N^-{fit.law.exponent:.2f}"
    print(f"{name:>10}: L = {law}, exponent {low:.2f} to {high:.2f}")
guess = statistics.mean(kept[32]) / statistics.mean(kept[72]) - 1
print(f"measured {statistics.mean(kept[72]):.3f}; predicted {miss:+.1%}", end="; ")
print(f"the largest small model as a guess {guess:+.1%}")
prove(
    "the prediction is hardly better than the simplest guess",
    guess / 2 < miss < guess,
)
prove(
    "the held-out loss lies below the floor of the fitted law",
    statistics.mean(kept[72]) < small.law.floor,
)
prove(
    "the rates alone double the exponent",
    small.law.exponent > 2 * careless.law.exponent,
)

# %% id="law-figure" tags=["picture:8", "long-cell"]
by_size = {everything[width]: kept[width] for width in WIDTHS}
show(
    plots.law_and_residuals(by_size, small.law),
    alt="Left: losses of five seeds against parameters on a logarithmic axis, five "
    "sizes about a curve that falls and becomes level, and a larger size below its "
    "level end. Right: what is left over, up to a few per cent of each loss.",
    caption="The curve becomes level where the sizes of the fit end. The loss of the "
    "larger model, drawn as squares, does not.",
)

# %% [markdown] id="law-says"
# > **You will read that** performance improves predictably with size.
#
# *Under conditions:* one text, one recipe, rates that suit each size, and enough data. This experiment shows that the
# loss falls, and by less and less. It does not predict: the law misses by about as much as a guess that needs no law,
# and says that no size can reach what the larger model reached. Nor does it tell the exponent, which moves more with
# the rates than with the seeds. Five sizes within a factor of eight are too few, for a law with three unknowns.
#
# ### 6.1 The same, longer
#
# So here is a recorded sweep over more sizes, four budgets of tokens and a text that no run reads twice (the source of
# Python's standard library, 8 million characters). Its learning rate, too, was chosen by training losses alone, those
# of models in the fit at the smallest budget. It was made by this command, which you can stop and start again at any
# time, as was done here:
#
# ```
# course sweep
# ```

# %% id="recorded-sweep"
recorded = record("sweep")
rows = recorded["rows"]
budgets = sorted({row["tokens"] for row in rows})
most = max(row["epochs"] for row in rows)
print(f"{recorded['command']}: {len(rows)} of {recorded['points']} runs", end=", ")
print(f"each over {most:.2f} of the text or less")
print("parameters   tokens:" + "".join(f"{budget:11,}" for budget in budgets))
for size in sorted({row["parameters"] for row in rows}):
    of_size = [row for row in rows if row["parameters"] == size]
    shown = ""
    for budget in budgets:
        cell = [row["loss"] for row in of_size if row["tokens"] == budget]
        shown += f"{statistics.mean(cell):11.3f}" if cell else f"{'':11}"
    print(f"{size:10,}          {shown}")

# %% id="recorded-law" tags=["long-cell"]
readings = {}
ways = {"parameters": "all parameters", "layer_parameters": "those in layers"}
for column, words in ways.items():
    reading = readings[column] = read_sweep(rows, parameters=column)
    fit = reading.fit
    law = f"{fit.law.floor:.2f} + {fit.law.scale:.3g} N^-{fit.law.exponent:.3f}"
    print(f"counting {words}, at the largest budget: L = {law}\n", end="  ")
    for name in ("exponent", "floor"):
        low, high = fit.interval(name)
        print(f"{name} {low:.2f} to {high:.2f}", end=", ")
    print(f"residuals up to {abs(fit.residuals).max():.1%}")
    print(f"  held out: measured {reading.held_out_loss:.4f}", end=", ")
    print(f"predicted {reading.predicted:.4f}: {reading.error:+.1%}")
    print("  from runs of all budgets", end=", ")
    print(f"predicted {reading.surface_predicted:.4f}: {reading.surface_error:+.1%}")
    between = reading.predicted < reading.held_out_loss < reading.surface_predicted
    prove(
        f"counting {words}, one budget predicts too low a loss, all budgets too high",
        between,
    )
    prove(
        f"counting {words}, both within 4 %",
        max(abs(reading.error), abs(reading.surface_error)) < 0.04,
    )
    largest = max(reading.sizes)  # of those in the fit
    fitted = zip(reading.sizes, reading.losses, strict=True)
    same = statistics.mean(loss for size, loss in fitted if size == largest)
    guess = same / reading.held_out_loss - 1
    print(f"  the largest model of the fit as a guess: {guess:+.1%}")
    prove(
        f"counting {words}, the law is nearer than that guess",
        abs(reading.error) < guess,
    )

# %% id="recorded-figure" tags=["long-cell"]
show(
    plots.budgets_and_residuals(rows, readings["parameters"]),
    alt="Left: held-out loss against parameters for four budgets of tokens, lower for "
    "more tokens and larger models; two curves run on to squares, the held-out model: "
    "that of the largest budget ends below them, that of all budgets above. Right: "
    "residuals of the first.",
    caption="A fit to one budget ends below the held-out model, whose runs are drawn "
    "as squares. A fit to all budgets ends as far above it.",
)

# %% [markdown] id="exponents"
# Six sizes at one budget leave the floor open. Their law falls too steeply at its end, and the larger model does not
# follow. A fit to all budgets must agree with the short runs too, and falls too slowly. Neither comes within 2 %: how
# far two reasonable fits are apart shows what such a sweep cannot know. Both were written into the program before the
# held-out model was trained, and nothing was adjusted after.
#
# Kaplan et al. 2020 give 0.076 for N and 0.095 for D; Hoffmann et al. 2022 give 0.34 and 0.28, with a floor. With the
# surface L(N, D) = E + a / N^α + b / D^β fitted to all budgets:

# %% id="exponents-compared"
for column, words in ways.items():
    reading, surface = readings[column], readings[column].surface
    print(f"{words:>16}", end=": ")
    for sign, power in (("α", "n_exponent"), ("β", "d_exponent")):
        value, (low, high) = getattr(surface, power), reading.interval_of(power)
        print(f"{sign} {value:.2f} ({low:.2f} to {high:.2f})", end=", ")
    print(f"best size ~ C^{surface.size_power:.2f}")
points = (reading.sizes, reading.losses)
line = scaling.fit_power_law(*points, floor=False, n_resamples=0).law
print("a straight line, no floor, those in layers, as Kaplan et al.:", end=" ")
print(f"exponent {line.exponent:.3f}")
surfaces = [readings[column].surface for column in ways]
prove(
    "leaving the tables out of the count gives a smaller exponent",
    surfaces[1].n_exponent < surfaces[0].n_exponent,
)
prove(
    "without a floor the exponent is smaller still",
    line.exponent < surfaces[1].n_exponent,
)

# %% [markdown] id="exponents-says"
# One sweep, two readings. An exponent depends on what is counted as size, on whether there is a floor, and on how long
# the runs are: with 200 steps a loss says as much about the schedule as about the text. Ours are those of models
# hundreds of times smaller than the largest of Kaplan et al., over characters of code; none of these numbers is a
# constant of nature. What carries over is the method: fit, leave one size out, look at residuals and intervals.
#
# > **You will read that** a bigger model reaches a given loss with less data.

# %% id="steps-to-loss" tags=["tol:0.1"]
print("width   steps to a training loss of 2.6   operations")
steps_needed, spent = [], []
for width in WIDTHS:
    # The mean over seeds, and over 20 steps
    smooth = torch.tensor(curves[width]).mean(0).unfold(0, 20, 1).mean(-1)
    steps_needed.append((smooth < 2.6).nonzero()[0].item() + 20)
    weights = in_layers[width] + width * tokenizer.vocab_size
    spent.append(scaling.six_n_d(weights, 512 * steps_needed[-1]))
    print(f"{width:5} {steps_needed[-1]:33} {spent[-1]:12.1e}")
prove(
    "the largest model needs fewer steps than the smallest",
    steps_needed[-1] < steps_needed[0],
)
prove("the largest model needs more operations than the smallest", spent[-1] > spent[0])

# %% [markdown] id="kaplan"
# *Imprecise.* With fewer steps, so with less data, but not with less compute: each step costs more.
#
# ### 6.2 Kaplan and Chinchilla
#
# How should a budget C = 6 N D be split between size and text? Kaplan et al. 2020 said: mostly into size, N growing
# with C^0.73. GPT-3 followed, with fewer than two tokens a parameter. Hoffmann et al. 2022 (Chinchilla) found N and D
# growing alike, about twenty tokens for each parameter.
#
# Why do they differ? Hoffmann et al. suspected the schedule: they let the rate fall by a factor of 10 over exactly the
# tokens of each run, while Kaplan et al. read shorter runs off one long schedule. Porian et al. 2024 repeated the
# experiment of Kaplan et al. and changed one thing at a time until the other answer came out. Three things did it: to
# count the operations of the last layer, the head; a warm-up that was too long for small models; and settings of the
# optimizer that were not tuned for each size. The fall of the rate was not needed. So the hypothesis that scale alone
# decides was not refuted but revised: of what, and how much of each.

# %% exercise="compute_optimal"

# %% id="optimal-counted" tags=["long-cell"]
gopher = 5.76e23  # operations
fits = {"Hoffmann et al. 2022": scaling.HOFFMANN}
fits["Besiroglu et al. 2024"] = scaling.BESIROGLU
for name, surface in fits.items():
    size, seen = compute_optimal(*surface[1:], gopher)
    print(f"{name}: {size / 1e9:5.1f} B parameters", end=", ")
    print(f"{seen / 1e12:.1f} T tokens, {seen / size:.0f} a parameter")
    best = scaling.compute_optimal(surface, gopher)
    prove(
        f"{name}: your split is the course's",
        math.isclose(size, best.parameters, rel_tol=1e-6),
    )
prove("the corrected fit gives about twenty tokens a parameter", 15 < seen / size < 30)
at_gpt3 = scaling.BESIROGLU.predict(174.6e9, 300e9).item()
same_budget = scaling.compute_optimal(scaling.BESIROGLU, 6 * 174.6e9 * 300e9)
print(f"GPT-3 as it was: {at_gpt3:.3f} nats", end="; ")
print(f"its budget on {same_budget.parameters / 1e9:.0f} B: {same_budget.loss:.3f}")
smaller = same_budget.parameters < 174.6e9 / 2
prove(
    "by that fit, GPT-3's budget is better spent on a smaller model",
    smaller and same_budget.loss < at_gpt3,
)

# %% id="fits-compared"
smaller_wins = []
for name, surface in fits.items():
    thirteen = surface.predict(13e9, 2e12).item()
    large = surface.predict(174.6e9, 300e9).item()
    print(f"{name}: 13 B on 2 T tokens {thirteen:.3f}, GPT-3 {large:.3f}")
    smaller_wins.append(thirteen < large)
prove(
    "whether 13 B on 2 T tokens beat GPT-3, the two fits disagree",
    smaller_wins == [True, False],
)

# %% [markdown] id="optimal-says"
# The published numbers of Hoffmann's own fit give a different answer than their text; the corrected fit of the same
# runs agrees with twenty. On a comparison as close as that of 13 B on 2 T tokens with GPT-3 the two fits of the same
# runs disagree: a fit says which way to go, and not which of two near models is better. A model that will be used much is trained longer than that: Llama 3 8B saw 15 T tokens.
#
# ### 6.3 Depth, width, heads
#
# > **You will read that** more layers, more heads, more width and more data each improve results.

# %% id="shape-run" tags=["tol:0.02"]
shapes = {"6 heads": {"heads": 6}, "2 layers": {"layers": 2}}
sizes, gains = {"width 24": in_layers[24]}, {"width 24": losses[24]}
for name, change in shapes.items():
    count = model_of(24, **change)[1]
    sizes[name] = count["attention"] + count["feed-forward"] + count["norms"]
    gains[name] = [run_of(24, seed, **change)[0] for seed in range(SEEDS)]
sizes["width 32"], gains["width 32"] = in_layers[32], losses[32]
print("change     in layers   mean loss   seeds")
for name, found in gains.items():
    seeds = "  ".join(f"{loss:.3f}" for loss in found)
    print(f"{name:<10} {sizes[name]:9,}   {statistics.mean(found):9.3f}   {seeds}")
same = sizes["6 heads"] == sizes["width 24"]
prove("more heads at one width are no more parameters", same)
prove("six heads are no better than two", statistics.mean(gains["6 heads"]) > mean[24])
prove("two layers are better than one", statistics.mean(gains["2 layers"]) < mean[24])
prove(
    "a second layer costs as much as the first",
    sizes["2 layers"] - 24 == 2 * (sizes["width 24"] - 24),
)

# %% [markdown] id="shape-says"
# *Not heads.* At one width more heads are narrower heads: they add no parameter, and here they bring nothing. A second
# layer and a greater width add parameters, cost time in proportion, and gain. To rank depth against width takes longer
# runs than these. More layers can also remember more of a small text: watch the held-out loss, not that of training.

# %% [markdown] id="processes"
# ## 7 Several processes
#
# Data parallelism (DDP) gives each process its share of a batch and averages the gradients, so that all make the same
# step. On paper that is the step of one process. Check it, with four "processes" that are four passes:

# %% id="processes-equal"
torch.manual_seed(0)
chosen = {"d_model": 32, "n_heads": 4, "n_decoder_layers": 2, "vocab_size": 31}
model = LanguageModel(TransformerConfig(**chosen, dropout=0.0))
tokens = torch.randint(31, (8, 17))


def gradients(rows):
    """The gradients of the mean loss over some rows, as one vector."""
    loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    found = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in found])


whole = gradients(tokens)
ranks = [gradients(tokens[rank::4]) for rank in range(4)]
print(len(ranks), "vectors of", whole.numel(), "gradients")
prove(
    "four processes with a quarter of the batch each have the gradient of one",
    torch.allclose(sum(ranks) / 4, whole, atol=1e-6),
)

# %% [markdown] id="ring"
# The average must reach everyone. In a **ring** each process talks to one neighbour only:

# %% exercise="ring_all_reduce_bytes"

# %% id="ring-run"
parts = [list(gradient.tensor_split(4)) for gradient in ranks]  # of each process
sent = [0] * 4
for step in range(6):
    summing = step < 3  # then each finished part goes round
    moves = [(rank, (rank - step) % 4) for rank in range(4)]
    messages = [(rank, part, parts[rank][part].clone()) for rank, part in moves]
    for rank, part, message in messages:
        target = parts[(rank + 1) % 4]
        target[part] = target[part] + message if summing else message
        sent[rank] += message.nbytes
everyone = [torch.cat(row) / 4 for row in parts]
prove(
    "after six steps every process has the mean gradient",
    all(torch.allclose(g, whole, atol=1e-6) for g in everyone),
)
formula = scaling.ring_all_reduce_bytes(whole.nbytes, 4)
print("sent by each:", sent, " formula:", formula)
rounding = max(abs(n - formula) for n in sent)
prove("each sent 3/2 of its gradients, to rounding of the parts", rounding <= 24)

# %% [markdown] id="stages"
# Splitting goes further than the batch. FSDP also splits the optimizer, the gradients and the weights (stages 1 to 3 of
# ZeRO, Rajbhandari et al. 2020), and gathers the weights of one layer at a time. The training command does both:
#
# ```
# torchrun --standalone --nproc-per-node 2 -m coursework.cli train --help
# ```
#
# The tests of this course run it with two and four processes and compare every loss with that of one process;
# [measured here](../benchmarks/results/distributed-cpu.md) are speed and memory of each stage. Activations are cheaper
# to compute again than to keep: `--recompute` keeps only what enters each layer.
# [From a laptop to a cluster](../docs/scale_out.md) has the commands for Slurm and Kubernetes, and the arithmetic of
# 1.5, 8 and 70 billion parameters.

# %% id="stages-counted"
whole_bytes = scaling.training_memory(gpt2, 1, 1024)
for stage in range(4):
    memory = scaling.training_memory(gpt2, 1, 1024, ranks=4, sharding=stage)
    print(
        f"stage {stage}, MiB:",
        ", ".join(f"{part} {n_bytes / 2**20:,.0f}" for part, n_bytes in memory.items()),
    )
prove(
    "stage 3 leaves a quarter of weights, gradients and optimizer",
    4 * memory["weights"] == whole_bytes["weights"],
)
prove("activations are not split", memory["activations"] == whole_bytes["activations"])

# %% [markdown] id="bugs"
# ## 8 Bug museum
#
# Each of these numbers was published somewhere. A count against something built catches all of them.

# %% id="bugs-caught"
sizes = {"vocab": 50257, "width": 768, "inner": 3072, "layers": 12, "positions": 1024}
twice = count_parameters(**sizes, tied=True) + 50257 * 768
prove("a tied table counted twice is 163 million, not GPT-2", round(twice / 1e6) == 163)
found = complaint(testing.assert_counts, PUBLISHED["gpt2"].build(), parameters=twice)
print(found[:80])
prove("tied weights counted twice are caught by counting the built model", found)
with_products = scaling.count_flops(gpt2, 1, 32_768).total()
without = with_products - scaling.count_flops(gpt2, 1, 32_768)["scores and mixing"]
prove(
    "without the attention products a long text seems to cost a quarter",
    0.15 < without / with_products < 0.3,
)
one_head = kv_cache_bytes(12, 1, 1024, 1, 1, 64, 4)
real = scaling.kv_cache_bytes(gpt2, 1, 1024)
prove("a cache without the heads is twelve times too small", 12 * one_head == real)
prove(
    "over the peak with sparsity a run seems half as good",
    mfu(1000, 2, 5, 7, 11.0, 1, 2e5) == mfu(1000, 2, 5, 7, 11.0, 1, 1e5) / 2,
)

# %% [markdown] id="proved"
# ## What you have proved

# %% id="proved-table"
for count, sentence in enumerate(proved, start=1):
    print(f"{count:3}  {sentence}")

# %% [markdown] id="card"
# ### The formulas on one card
#
# | what | formula | section |
# |---|---|---|
# | parameters of a layer | 4 (D² + D) + 2 D F + F + D + 4 D | 1 |
# | **operations of a pass** | **2 N + 4 L n D a token; three times that in training** | 2 |
# | scores reach the rest of a layer | n = 6 D, if F = 4 D | 2.1 |
# | training | weights, gradients, two averages: 16 bytes a parameter in float32; and activations | 3 |
# | cache | 2 · layers · batch · length · key/value heads · width of a head · bytes | 3 |
# | utilisation | model operations a second / (devices · dense peak of that format) | 4 |
# | law of size | L = E + a / N^α, fitted to logarithms, floor included | 6 |
# | split of a budget | α a / N^α = β b / D^β with 6 N D = C | 6.2 |
# | ring all-reduce | 2 (R − 1) / R of the bytes, sent by each of R processes | 7 |

# %% [markdown] id="self-check"
# ### Check yourself
#
# Answer in a sentence, then open.
#
# <details><summary>1. A model card says 163 M for a GPT-2. What happened?</summary>
#
# The tied table was counted as table and as head (8).
#
# </details>
#
# <details><summary>2. When does 6 N D mislead?</summary>
#
# On texts that are long for the width: at n = 6 D the products of attention cost as much as all else in a layer (2.1).
#
# </details>
#
# <details><summary>3. A run reports 80 % utilisation. What do you ask?</summary>
#
# Which operations were counted, recomputed ones too, and over which peak (4).
#
# </details>
#
# <details><summary>4. What does FSDP not split?</summary>
#
# Activations: each process keeps those of its own texts (3, 7).
#
# </details>
#
# <details><summary>5. A straight line through the logarithms fits your losses. What does it promise?</summary>
#
# That a large enough model has loss zero. Fit the floor, and check on a model that the fit has not seen (6).
#
# </details>

# %% [markdown] id="next"
# ### What you have
#
# Attention, heads, positions; norms, residuals and feed-forward; encoder and decoder; tokenizers and training; the
# families that grew from it; and what each of them costs. There is no further chapter: train something of your own.

# %% [markdown] id="sources"
# ### Sources
#
# - Vaswani et al. 2017, arXiv:1706.03762, table 3; Devlin et al. 2019, arXiv:1810.04805; Brown et al. 2020 (GPT-3),
#   arXiv:2005.14165, table 2.1; Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, table 1 and section 4.1; Touvron et al.
#   2023 (Llama 2), arXiv:2307.09288, table 1.
# - Kaplan et al. 2020, *Scaling Laws for Neural Language Models*, arXiv:2001.08361; Hoffmann et al. 2022, *Training
#   Compute-Optimal Large Language Models*, arXiv:2203.15556; Besiroglu et al. 2024, *Chinchilla Scaling: A Replication
#   Attempt*, arXiv:2404.10102; Porian et al. 2024, *Resolving Discrepancies in Compute-Optimal Scaling of Language
#   Models*, arXiv:2406.19146.
# - Yang et al. 2022, *Tensor Programs V*, arXiv:2203.03466 (rates that suit each width).
# - Dao et al. 2022, *FlashAttention*, arXiv:2205.14135; Williams, Waterman and Patterson 2009, *Roofline*.
# - Rajbhandari et al. 2020, *ZeRO*, arXiv:1910.02054; Patarasuk and Yuan 2009, *Bandwidth Optimal All-reduce*.
