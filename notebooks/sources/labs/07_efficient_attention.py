# %% [markdown] id="title"
# # Lab: cheaper attention
#
# **The question: attention compares every token with every other. What can be left out, and what does that cost?** Four
# ideas have been tried again and again: compare only some pairs, look at far tokens in groups, replace the softmax, and
# squeeze the keys. You write one of them, measure how far each is from exact attention, and see what each saves.
#
# The lab stands on [chapter 7](../07_variants.ipynb), its windows (3.2), Flash (4) and linear attention (5). With two
# exercises it takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import torch
import torch.nn.functional as F

from course_lib import testing
from course_lib.attention import record_weights, scaled_dot_product_attention
from course_lib.testing import complaint, prove
from course_lib.variants import efficient
from coursework import exercises as ex
from coursework.explorers import PatternExplorer
from coursework.pictures import show
from coursework.pictures.plots import common
from coursework.records import record

torch.set_num_threads(1)

# %% [markdown] id="pairs"
# ## 1 Only some pairs
#
# A text of 8,192 tokens has 67 million pairs of query and key, half of them under a causal mask. Most weights are close
# to zero. So let each query see a window of its neighbours, and add two things that windows lack: a few **global**
# tokens that see all and are seen by all (Longformer), and a few **random** blocks, so that any two tokens are only a
# few layers apart (BigBird).
#
# **Predict.** One of the three parts saves operations, but nothing of the cache of a model that writes. Which one?

# %% id="predict-patterns"
ex.predict("part_that_saves_no_cache", "")

# %% [markdown] id="patterns-explorer-intro"
# Set the parts and read what they cost.

# %% id="patterns-explorer"
PatternExplorer(window=3, n_global=1, n_random=2)

# %% id="patterns-costs" tags=["hide-input"]
# Measure: share of the pairs, and the cache, for each part
parts = {"window": {}, "and global": {"n_global": 1}, "and random": {"n_global": 1, "n_random": 2}}
for name, settings in parts.items():
    costs = PatternExplorer(window=3, **settings).costs()
    print(f"{name:<11}{costs['pairs'] / costs['every']:>4.0%} of the pairs, cache {costs['cache'] / 1e6:.0f} MB")
with_random, everything = costs, PatternExplorer(window=None).costs()
prove("with random blocks no token can be forgotten", with_random["cache"] == everything["cache"])

# %% [markdown] id="patterns-say"
# The random blocks. Nobody knows beforehand which old token a later one will draw, so all of them must be kept. The
# other two parts let the cache drop what is behind the window. That is why windows survived and random blocks did not.

# %% exercise="window_pairs"

# %% [markdown] id="sparse-exact-intro"
# A pattern is only a mask, and a mask by itself saves nothing: all pairs are computed, then hidden. What saves time is
# to compute only those blocks that hold a visible pair. The fold shows that this gives the numbers of the mask, and its
# gradients.

# %% id="sparse-exact" tags=["hide-input"]
# Check: computed block by block, each pattern equals its mask, output and gradients
n, E = 96, 8
torch.manual_seed(0)
query, key, value = (torch.randn(2, 3, n, E) for _ in range(3))  # (B, H, n, E)
patterns = {
    "window": efficient.SlidingWindowAttention(9, backend="blocks"),
    "window and global": efficient.SlidingWindowAttention(9, n_global=4, backend="blocks"),
    "random blocks": efficient.BigBirdAttention(8, n_random=2, n_global=8, backend="blocks"),
}
for name, inner in patterns.items():
    mask = inner.pattern(n, causal=False)
    found = testing.assert_equivalent(
        inner, lambda q, k, v, mask=mask: scaled_dot_product_attention(q, k, v, mask=mask), query, key, value
    )
    print(f"{name:<18}{int(mask.sum()):>6} of {n * n} pairs")
    prove(f"{name}: blocks equal the mask, output and gradients", found.gradient < 1e-4)

# %% [markdown] id="hierarchical"
# ## 2 Near exactly, far in groups
#
# A map shows your street house by house, and another country as one patch of colour. **Hierarchical** attention does
# the same: near keys one by one, farther ones as the mean of a group, and the groups grow with the distance. All of
# them meet in one softmax, and a group of eight counts eight times. So n keys shrink to about log n.

# %% id="hierarchical-levels" tags=["hide-input"]
# Check: with equal keys each counts 1 / n; with blocks that cover everything it is exact
inner = efficient.HierarchicalAttention(block=4, cells=2)
with record_weights(inner) as maps:
    inner(query, key[..., :1, :].expand_as(key), value)
(weights,) = maps.values()
prove("with equal keys every key weighs 1 / n: each is seen exactly once", torch.allclose(weights, torch.tensor(1 / n)))
near, exact = (
    efficient.HierarchicalAttention(block=48)(query, key, value),
    scaled_dot_product_attention(query, key, value),
)
prove("with blocks that cover everything it is full attention", torch.allclose(near, exact, atol=1e-5))

# %% [markdown] id="kernels"
# ## 3 Without the softmax
#
# Chapter 7 left the softmax out and got a memory of fixed size. Then a weight may be negative, and the weights of a
# query need not sum to one. The **linear Transformer** mends both. Queries and keys go through a function whose results
# are positive, φ(x) = elu(x) + 1, and the result is divided by the sum of the weights:
#
# $$o = \frac{\sum_s (\varphi(q) \cdot \varphi(k_s)) \, v_s}{\sum_s \varphi(q) \cdot \varphi(k_s)}$$
#
# Everything depends on the order of the products. With queries (n, E), keys (n, E) and values (n, E), the left brackets
# first, (QKᵀ)V, cost n² · E twice. The right ones first, Q(KᵀV), cost n · E² twice. For n = 8,192 and E = 64, that is
# 128 times less.

# %% exercise="linear_attention"

# %% [markdown] id="linear-claim"
# Texts say that linear attention *approximates* softmax attention. Does it? **Performer** really tries to: it draws
# random directions w and takes the features exp(w · x − x²/2), whose product is exp(q · k) on average.
#
# **Predict.** How far is each of the two from exact attention, and does it help to draw more directions?

# %% id="predict-linear"
ex.predict("how_far_from_softmax", "")

# %% id="linear-claim-measured" tags=["hide-input"]
# Figure: relative difference from exact attention on random inputs, against the number of features
torch.manual_seed(1)
query, key, value = (torch.randn(1, 4, 256, 64) for _ in range(3))


def off(output, scale=1.0):
    """Median over the queries of the difference's length over the exact output's."""
    exact = scaled_dot_product_attention(scale * query, scale * key, value)
    return ((output - exact).norm(dim=-1) / exact.norm(dim=-1)).median().item()


features, found = [64, 256, 1024, 4096], {}
for size in (1.0, 0.4):
    made = [efficient.PerformerAttention(64, m)(size * query, size * key, value) for m in features]
    found[f"Performer, inputs of size {size}"] = [off(one, size) for one in made]
linear = off(efficient.LinearAttention()(query, key, value))
show(
    common.curves(
        features, found, levels={f"elu + 1: {linear:.2f}": linear}, yscale="log", xscale="log",
        xticks=features, xticklabels=features, xlabel="random features", ylabel="relative difference",
    ),
    alt="Relative difference from exact attention against the number of random features. For small inputs the Performer's "
    "falls steadily. For inputs of size one it stays high. The linear Transformer is a level line near 0.8.",
    caption="The linear Transformer is another function and has no knob. The Performer comes nearer with more features if "
    "queries and keys are small, and hardly if they are not.",
)  # fmt: skip
prove(
    "four times the features halve the error for small inputs, about",
    found["Performer, inputs of size 0.4"][0] > 1.5 * found["Performer, inputs of size 0.4"][1],
)

# %% [markdown] id="linear-says"
# So the sentence is false for the linear Transformer: it is another function, and nothing brings it nearer. For the
# Performer it is true on average. But an average of exponentials is carried by its few largest terms, and for queries
# and keys of ordinary size thousands of directions are not enough. Whether a model that was *trained* with either is
# good is another question, and the models of 2025 answer it with the delta rule and a few layers of full attention.
#
# What all of them share is the second form. A causal sum can be carried along from token to token:

# %% id="linear-recurrent" tags=["hide-input"]
# Check: one token at a time, with a state, gives the numbers of the whole; and its size
inner, state, outputs = efficient.LinearAttention(), None, []
for t in range(256):
    output, state = inner.step(*(x[..., t : t + 1, :] for x in (query, key, value)), state)
    outputs.append(output)
parallel = inner(query, key, value, causal=True)
prove("recurrent and parallel forms are equal", torch.allclose(torch.cat(outputs, dim=-2), parallel, atol=1e-4))
print("numbers in the state:", sum(part.numel() for part in state), "after 1 token and after 256")
print("numbers in a cache of keys and values after 256:", 2 * key.numel())


# %% [markdown] id="leak"
# One trap waits in the causal form. To keep exp in range, published code subtracts the largest exponent of *all* keys,
# and adds a small number so that nothing divides by zero. The largest of all keys includes later ones. Does the law of
# causality notice?


# %% id="leaky-performer"
class Leaky(efficient.PerformerAttention):
    def features(self, x, scale):
        squares = x.square().sum(-1, keepdim=True)
        logs = x * scale**0.5 @ self.directions.T - scale * squares / 2
        return torch.exp(logs - logs.amax((-1, -2), keepdim=True)) + 1e-4


x = torch.randn(1, 2, 12, 8)
for inner in (Leaky(8, 32), efficient.PerformerAttention(8, 32)):
    causal = lambda x, inner=inner: inner(x, x, x, causal=True)  # noqa: E731
    law = complaint(testing.assert_causal, causal, x, dim=2)
    print(f"{type(inner).__name__}: {'leaks' if law else 'obeys the law'}")

# %% [markdown] id="low-rank"
# ## 4 Fewer keys
#
# **Linformer** squeezes n keys and values to a fixed number, with trained maps along the *length*. The argument is that
# tables of attention have nearly a low rank. On random inputs we can ask the exact table how well any table of rank r
# could do:

# %% id="low-rank-measured" tags=["hide-input"]
# Measure: the best approximation of rank k, and Linformer before training
_, weights = scaled_dot_product_attention(query, key, value, return_weights=True)
U, spectrum, Vh = torch.linalg.svd(weights)
for k in (32, 64, 128):
    best = (U[..., :k] * spectrum[..., None, :k]) @ Vh[..., :k, :] @ value
    untrained = efficient.LinformerAttention(256, k)(query, key, value)
    print(f"rank {k:>3} of 256: best possible {off(best):.2f}, Linformer before training {off(untrained):.2f}")

# %% [markdown] id="low-rank-says"
# Half of the rank is needed for a decent copy, and before training Linformer copies nothing. It is a model to be
# trained, not a way to run a trained model faster. It also fixes the length and mixes later tokens into earlier ones,
# so that it cannot write.
#
# ## 5 What is left, on the clock

# %% id="costs-table" tags=["hide-input"]
# Figure: recorded time at 8,192 tokens and error on the inputs of a trained model's heads
recorded = record("efficient-attention-cpu")
last = [row for row in recorded["rows"] if row["pass"] == "forward"][-1]
errors = {name: one.get("real", one["random"])["median"] for name, one in recorded["errors"].items()}
for name, error in errors.items():
    print(f"{name:<15}{last['ms'][name]:>7.0f} ms {last['mib'][name]:>6.0f} MiB   error on real inputs {error:.1g}")
names = [name for name in errors if name not in ("plain", "tiled")]
colours = ["#0072B2" if errors[name] < 1e-3 else "#D55E00" for name in names]
show(
    common.bars(names, [last["ms"][name] for name in names], colours=colours, numbers="%.0f", lying=True, size=(6.6, 3.0),
                xlabel="milliseconds at 8,192 tokens"),
    alt="Bars of the time that eight attentions take at 8,192 tokens. torch's kernel, the only exact one, takes the longest; "
    "linear attention the shortest.",
    caption="Blue is exact. All that are faster leave something out.",
)  # fmt: skip
prove("of these, torch's kernel alone is exact", [name for name in names if errors[name] < 1e-3] == ["SDPA"])

# %% [markdown] id="end"
# The table says it plainly: what is exact pays for the square, and what is fast computes something else. Of all these
# ideas four are in the models of 2025: windows in most layers, a few layers of full attention among cheap ones, a state
# with the delta rule, and a small scorer that lets each query choose the few thousand tokens that it will read in full
# (DeepSeek-V3.2).
#
# **You can now** say of a cheaper attention what it leaves out, whether it can write, and what it saves: operations,
# cache, or both.
#
# <details><summary>Sources</summary>
#
# Beltagy et al. 2020 (Longformer), arXiv:2004.05150. Zaheer et al. 2020 (Big Bird), arXiv:2007.14062. Zhu and Soricut
# 2021 (H-Transformer-1D), arXiv:2107.11906. Katharopoulos et al. 2020, arXiv:2006.16236. Choromanski et al. 2021
# (Performer), arXiv:2009.14794. Wang et al. 2020 (Linformer), arXiv:2006.04768.
#
# </details>
