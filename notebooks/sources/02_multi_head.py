# %% [markdown] id="title"
# # 2 Multi-head attention
#
# In this notebook you let several attentions run side by side, prove that your layer equals PyTorch's, and measure what
# heads do once trained. Afterwards you can split, merge, mask, group and cache heads, and test what is said of them. It
# builds on chapter 1. Measured: 30 seconds of processor time, 0.6 GB of memory. Run the first cell:

# %% id="first-look"
import torch
from course_lib.attention import record_weights
from course_lib.multi_head import MultiHeadAttention

torch.set_num_threads(1)  # the same rounding everywhere

torch.manual_seed(0)
B, T, H, E = 2, 5, 3, 7  # sentences, tokens, heads, width of a head
D = H * E  # width of a token
x = torch.randn(B, T, D)
attention = MultiHeadAttention(D, n_heads=H)
with record_weights(attention) as maps:
    output = attention(x)
(weights,) = maps.values()  # of the one attention inside
print("in", tuple(x.shape), " out", tuple(output.shape), " weights", tuple(weights.shape))

# %% [markdown] id="what-just-happened"
# In and out have the same shape, so the layer fits wherever the single head of chapter 1 fitted. But there are three
# maps of weights for each sentence, one a **head**. The sizes 2, 5, 3, 7 are different primes on purpose: a mix-up of
# axes then fails instead of passing by luck.
#
# The notebook has four parts: **why** one head is not enough (1), how to **build** several (2, 3), what they **cost**
# (4), and what they **do** once trained (5). Then heads that share (6), and famous bugs (7). As before, `prove` stops
# the notebook if a claim is false, and the table at the end is printed from its memory.

# %% id="imports"
import functools
import itertools
import math
import string
import time

import matplotlib.pyplot as plt
import seaborn
import torch.nn.functional as F
from torch import nn

from course_lib import exercises as ex
from course_lib import masks, testing
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.cache import KVCache
from course_lib.data import reference_text
from course_lib.multi_head import merge_heads as library_merge
from course_lib.multi_head import split_heads as library_split
from course_lib.explorers import HeadExplorer
from course_lib.viz import attention_map, palette, show

# %% id="prove"
from course_lib.testing import complaint, prove, proved  # prove stops at a false claim

prove(
    "three heads on two sentences of five tokens give (2, 3, 5, 5) weights",
    weights.shape == (2, 3, 5, 5),
)

# %% [markdown] id="why"
# ## 1 One head cannot look at two places at once
#
# A head returns one average for each query. If a token needs *two* others, say the one before it and the one three
# places back, a single head must put both into the same average.
#
# Here is that task, as bare as it can be. At each position the model must name the token one place back **and** the
# token three places back. Where to look depends on positions alone, what is read on tokens alone, and the answer is
# read off with one linear map. The number of heads changes, the number of parameters does not.


# %% id="two-places-model"
class TwoPlaces(nn.Module):
    """Names the tokens one and three places back: tokens (B, T) -> scores (B, T, 2, V), weights (1, H, T, T)."""

    def __init__(self, n_heads, hidden=None, V=12, T=16, D=32):
        super().__init__()
        self.n_heads, self.V = n_heads, V
        self.token, self.position = nn.Embedding(V, D), nn.Parameter(torch.randn(1, T, D))
        self.query, self.key, self.value, self.output = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.between = nn.Identity() if hidden is None else hidden
        self.answer = nn.Linear(D, 2 * V)

    def forward(self, tokens):
        query, key = (library_split(part(self.position), self.n_heads) for part in (self.query, self.key))
        scores = query @ key.mT / math.sqrt(query.size(-1))  # (1, H, T, E) @ (1, H, E, T) -> (1, H, T, T)
        weights = scores.softmax(dim=-1)
        heads = weights @ library_split(self.value(self.token(tokens)), self.n_heads)  # (B, H, T, E)
        read = self.answer(self.between(self.output(library_merge(heads))))  # (B, T, 2 V)
        return read.unflatten(-1, (2, self.V)), weights


# %% id="two-places-data"
places = torch.tensor([1, 3])


def two_places_batch(B, generator):
    tokens = torch.randint(12, (B, 16), generator=generator)
    return tokens, torch.stack([tokens.roll(int(back), dims=1) for back in places], dim=-1)  # (B, T), (B, T, 2)


# %% id="two-places-train"
def train_two_places(model, steps=300, seed=0):
    """Train; return accuracy for each of the two places on new sentences, and the trained weights (H, T, T)."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        tokens, wanted = two_places_batch(32, generator)
        scores = model(tokens)[0][:, 3:]  # the first three positions have no answer
        loss = F.cross_entropy(scores.flatten(0, 2), wanted[:, 3:].flatten())  # (B, T, 2, V) -> (2 B T, V)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    tokens, wanted = two_places_batch(500, torch.Generator().manual_seed(99))
    with torch.no_grad():
        scores, weights = model(tokens)
    return (scores.argmax(-1) == wanted)[:, 3:].float().mean((0, 1)), weights[0]


# %% [markdown] id="two-places-question"
# > **Predict.** Chance is 1 in 12. How many of the two questions can one head answer, and how well? Does it help to
# > train it five times as long?

# %% id="two-places-measured" tags=["atol:0.06"]
results, maps = {}, {}
for name, n_heads, steps in (
    ("1 head", 1, 300),
    ("1 head, 5 × steps", 1, 1500),
    ("2 heads", 2, 300),
    ("8 heads", 8, 300),
):
    torch.manual_seed(0)
    model = TwoPlaces(n_heads)
    fresh = model(torch.zeros(1, 16, dtype=torch.int64))[1][0].detach()  # (H, T, T): before training
    accuracy, trained = train_two_places(model, steps)
    results[name], maps[name] = accuracy.tolist(), (fresh, trained)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"{name:>18}: {size:,} parameters, one back {accuracy[0]:.2f}, three back {accuracy[1]:.2f}")

# %% id="two-places-proof"
prove(
    "one head with a linear read-out answers at most one of two questions well",
    min(results["1 head"]) < 0.4,
)
prove("five times as many steps do not help it", min(results["1 head, 5 × steps"]) < 0.4)
prove(
    "two heads of half the width, equal parameters, answer both: over 98 %",
    min(results["2 heads"]) > 0.98,
)

# %% [markdown] id="two-places-argument"
# This is not a matter of training. Let the head give weight p to the token one back and q to the token three back,
# and let M be the linear map from tokens to the scores of one answer: the score of token c is p·M(c, a) + q·M(c, b).
# To name b among sentences (a, b) and (b, a), add up the two conditions: (q - p)·s > 0, with
# s = M(a, a) + M(b, b) - M(a, b) - M(b, a). To name it when the other token is some third one, add up again: q·s > 0.
# So s is positive and q > p. The other answer needs p > q in the same way. One average cannot satisfy both.
#
# The argument uses the linear read-out. Give the same head a small network with a non-linearity behind it:

# %% id="two-places-network" tags=["atol:0.06"]
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
accuracy, mixed = train_two_places(TwoPlaces(1, hidden=network))
rows = torch.arange(3, 16)
shares = [mixed[0, rows, rows - back].mean().item() for back in (1, 3)]
print(f"1 head and a network: one back {accuracy[0]:.2f}, three back {accuracy[1]:.2f}")
print(f"its weights: {shares[0]:.2f} on one back, {shares[1]:.2f} on three back")
prove("with a network behind it, one head answers both: over 95 %", accuracy.min() > 0.95)

# %% [markdown] id="two-places-network-says"
# It gives the two places *unequal* weights, about 1 to 2, and the network tells the stronger part of the mixture from
# the weaker. So the honest statement is: one head gives one average; two heads keep two things apart without asking
# anything of what comes after.
#
# What did the two heads do?

# %% id="two-places-figure"
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.7))
shown = (
    ("1 head", 0, "one head"),
    ("2 heads", 0, "two heads: the first"),
    ("2 heads", 1, "the second"),
)
for ax, (name, head, title) in zip(axes, shown):
    ax.imshow(maps[name][1][head], cmap=palette.sequential, vmin=0, vmax=1)
    ax.set(title=title, xlabel="key", xticks=[], yticks=[])
    ax.grid(False)
axes[0].set_ylabel("query")
show(
    fig,
    alt="Three maps of 16 by 16 positions. One head has two pale diagonals, one and three places back. Of two heads "
    "each has one dark diagonal, at one of the two places.",
    caption="One head must mix the two places in one average. Two heads take one place each, because the task asks "
    "for it.",
)


# %% id="two-places-differ" tags=["atol:0.1"]
def apart(maps):
    """How different heads are: half the sum of differences of their weights, mean over queries; (H, T, T) -> list."""
    pairs = itertools.combinations(maps[:, 3:], 2)
    return [0.5 * (a - b).abs().sum(-1).mean().item() for a, b in pairs]


for name in ("2 heads", "8 heads"):
    before, after = (apart(part) for part in maps[name])
    print(f"{name}: pairs differ by {min(before):.2f} to {max(before):.2f} fresh,", end=" ")
    print(f"{min(after):.2f} to {max(after):.2f} trained")
on_place = torch.stack([maps["8 heads"][1][:, rows, rows - back].mean(-1) for back in (1, 3)])  # (2, H)
print("8 heads, most weight on the place", [int(places[n]) for n in on_place.argmax(0)], "back")

# %% id="two-places-differ-proof"
prove("training drives the two heads apart", apart(maps["2 heads"][1])[0] > 0.9)
prove(
    "with eight heads for two places, some do the same work twice",
    on_place.argmax(0).bincount().max() >= 2,
)

# %% [markdown] id="two-places-says"
# > **You will read that** different heads learn different things.
#
# *Conditional.* Two heads did, because two different things were needed. Eight heads for two places repeat each
# other: nothing in the formula forces heads to differ.
#
# > **You will read that** more heads see more.
#
# *Conditional.* From one to two heads the task becomes possible; from two to eight nothing is gained here.

# %% [markdown] id="build"
# ## 2 Split, attend, merge
#
# The formula of the 2017 paper (section 3.2.2):
#
# $$\mathrm{head}_i = \mathrm{Attention}(X W_i^Q, X W_i^K, X W_i^V) \qquad
# \mathrm{MultiHead}(X) = \mathrm{Concat}(\mathrm{head}_1, \ldots, \mathrm{head}_H)\, W^O$$
#
# Read literally, it is a loop: each head has three matrices of its own, D × E; the outputs are laid side by side; one
# more matrix maps them back to width D. Start with exactly that.

# %% id="loop-over-heads"
torch.manual_seed(0)
W_query, W_key, W_value = (torch.randn(H, D, E) / math.sqrt(D) for _ in range(3))  # one matrix a head
W_output = torch.randn(H * E, D) / math.sqrt(D)


def heads_by_loop(x):
    """(B, T, D) -> (B, T, D)."""
    outputs = []
    for h in range(H):
        query, key, value = (
            x @ W_query[h],
            x @ W_key[h],
            x @ W_value[h],
        )  # (B, T, D) @ (D, E) -> (B, T, E)
        outputs.append(sdpa(query, key, value))
    return torch.cat(outputs, dim=-1) @ W_output  # H of (B, T, E) -> (B, T, H E) -> (B, T, D)


by_loop = heads_by_loop(x)
print(tuple(by_loop.shape))

# %% [markdown] id="one-product"
# ### 2.1 One product for all heads
#
# H small products can be one large one: put the matrices side by side, D × (H·E). Then the first E columns of the
# result are head 0's, the next E head 1's, and so on. The output has to be *cut* along its width, and the axis of
# heads moved to the front, beside the batch, so that the attention of chapter 1 works on all of them at once.
#
# First with loops that hide nothing:

# %% id="split-loops"
joined = torch.cat(list(W_query), dim=-1)  # H of (D, E) -> (D, H E)
wide = x @ joined  # (B, T, H E)
by_hand = torch.empty(B, H, T, E)
for b, h, t, e in itertools.product(range(B), range(H), range(T), range(E)):
    by_hand[b, h, t, e] = wide[b, t, h * E + e]
each = torch.stack([x @ W for W in W_query], dim=1)  # (B, H, T, E)
prove(
    "cutting one wide product gives each head's own product",
    torch.allclose(by_hand, each, atol=1e-5),
)

# %% [markdown] id="split-question"
# Without loops it takes two steps. Numbers of one token lie side by side in memory, so cutting the width in two moves
# nothing. Exchanging the axes of tokens and heads does.
#
# > **Predict.** Why not read `wide` straight into the shape (B, H, T, E)? It has the right number of elements.

# %% id="split-small"
small = torch.arange(12).reshape(1, 2, 6)  # (B, T, H E): token 0 holds 0..5, token 1 holds 6..11
right = small.view(1, 2, 3, 2).transpose(1, 2)  # (B, T, H, E) -> (B, H, T, E)
wrong = small.view(1, 3, 2, 2)  # the right shape
print("cut, then exchange:", right[0].tolist())
print("one view:          ", wrong[0].tolist())
prove(
    "a view alone gives the first head of two tokens numbers of one token only",
    bool((wrong[0, 0] < 6).all()),
)

# %% [markdown] id="split-says"
# In the right version head 0 holds columns 0 and 1 of *each* token. In the wrong one head 0 consists of pieces of
# token 0 alone, and "attention between tokens" becomes attention between pieces of a token. It runs, it even trains.
# Write it yourself:

# %% exercise="split_heads"


# %% id="split-library"
prove("split_heads equals the four loops", torch.equal(split_heads(wide, H), by_hand))
prove("the library's split_heads equals the four loops", torch.equal(library_split(wide, H), by_hand))

# %% [markdown] id="merge"
# ### 2.2 And back
#
# After the attention the heads must stand side by side again. It is the same two steps backwards: exchange, then
# join. The exchange leaves the numbers where they were and only changes how they are counted, so they no longer lie
# in the order of the new shape. `view` refuses; `reshape` copies.

# %% id="merge-view"
heads = library_split(x, H).contiguous()  # (B, H, T, E), in memory as attention leaves it
try:
    heads.transpose(1, 2).view(B, T, D)
except RuntimeError as error:
    print(str(error).split(". ")[0])
joined_again = heads.transpose(1, 2).reshape(B, T, D)  # (B, T, H, E) -> (B, T, H E)
scrambled = heads.reshape(B, T, D)  # runs, and is wrong
print("exchange, then reshape, gives x back:", torch.equal(joined_again, x))
print("reshape alone gives x back:          ", torch.equal(scrambled, x))

# %% exercise="merge_heads"


# %% id="merge-proof"
prove("merging undoes splitting", torch.equal(merge_heads(split_heads(x, H)), x))
prove(
    "merging equals laying the heads side by side",
    torch.equal(library_merge(heads), torch.cat(list(heads.unbind(1)), -1)),
)


# %% id="batched-heads"
def heads_at_once(x):
    """(B, T, D) -> (B, T, D), all heads in one call."""
    query, key, value = (library_split(x @ torch.cat(list(W), -1), H) for W in (W_query, W_key, W_value))  # new
    return library_merge(sdpa(query, key, value)) @ W_output  # new: (B, H, T, E) -> (B, T, H E) -> (B, T, D)


found = testing.assert_equivalent(heads_by_loop, heads_at_once, x)
prove("the loop over heads equals the batched form, gradients too", max(found) < 1e-4)

# %% [markdown] id="sum-of-heads"
# ### 2.3 Each head adds its part
#
# "Side by side, then one matrix" can be read in another way. Cut W_O into H blocks of E rows. Then the layer's output
# is the *sum* of what each head writes, and heads can be studied and removed one at a time. Section 5 does that.

# %% id="sum-of-heads-proof"
written = 0
for h in range(H):
    query, key, value = x @ W_query[h], x @ W_key[h], x @ W_value[h]
    written = written + sdpa(query, key, value) @ W_output[h * E : (h + 1) * E]  # (B, T, E) @ (E, D)
prove(
    "concatenate and project equals the sum of the heads' own parts",
    torch.allclose(written, by_loop, atol=1e-5),
)
ranks = [int(torch.linalg.matrix_rank(W_query[h] @ W_key[h].T)) for h in range(H)]
print("rank of each head's table of scores between features:", ranks, "of", D)
prove("a narrow head compares tokens in E directions, not in D", ranks == [E] * H)

# %% [markdown] id="sum-of-heads-says"
# The last line is the price. A head of width E looks at tokens through E directions only. One head of width D could
# compare them in all D, but would give one average. Several narrow heads instead of one wide one trade directions for
# averages. Now all of it in one function, the chapter's main exercise:

# %% exercise="multi_head_attention"


# %% id="multi-head-proof"
flat = [torch.cat(list(W), dim=-1) for W in (W_query, W_key, W_value)]  # (D, H E) each
same = torch.allclose(multi_head_attention(x, *flat, W_output, H), by_loop, atol=1e-5)
prove("multi_head_attention equals the loop over heads", same)

# %% [markdown] id="layer"
# ## 3 The layer
#
# `MultiHeadAttention` holds four linear maps: query, key, value, output. Worked sizes from the paper: D = 512 and
# H = 8 make heads of width 64, since 8 · 64 = 512.

# %% id="layer-shapes"
torch.manual_seed(0)
layer = MultiHeadAttention(512, 8)
with record_weights(layer) as maps:
    output = layer(torch.randn(4, 20, 512))
(weights,) = maps.values()
print("out", tuple(output.shape), " weights", tuple(weights.shape), " head width", layer.d_head)
narrow = MultiHeadAttention(64, 8)
with record_weights(narrow) as maps:
    narrow(torch.randn(2, 10, 64))
(eight,) = maps.values()
print("eight maps for each of two sentences of ten tokens:", tuple(eight.shape))
prove("8 heads of 64 make 512", layer.n_heads * layer.d_head == 512 and output.shape == (4, 20, 512))
try:
    MultiHeadAttention(10, 3)
except ValueError as error:
    print("width 10 with 3 heads:", error)

# %% exercise="head_parameters"


# %% id="layer-parameters"
counts = {n: sum(p.numel() for p in MultiHeadAttention(512, n).parameters()) for n in (1, 8, 16)}
print({f"{n} heads": f"{count:,}" for n, count in counts.items()})
prove("the number of heads does not change the number of parameters", len(set(counts.values())) == 1)

# %% [markdown] id="parity"
# ### 3.1 Equal to PyTorch's, both ways
#
# Copy the weights, then compare outputs **and** gradients. `from_torch` takes over a `nn.MultiheadAttention`; the way
# back is five lines. PyTorch keeps the three input matrices in one, `in_proj_weight`, and its masks are inverted
# (chapter 1, museum 3).

# %% id="parity-from-torch"
torch.manual_seed(0)
theirs = nn.MultiheadAttention(D, H, batch_first=True)
ours = MultiHeadAttention.from_torch(theirs)
pairs = [(ours.output.weight, theirs.out_proj.weight), (ours.output.bias, theirs.out_proj.bias)]
found = testing.assert_equivalent(lambda x: ours(x), lambda x: theirs(x, x, x)[0], x, parameters=pairs)
prove("from torch to ours: outputs and gradients equal to 1e-5", max(found) < 1e-5)
context = torch.randn(B, 11, D)  # (B, S, D): another sequence
found = testing.assert_equivalent(ours, lambda x, c: theirs(x, c, c)[0], x, context)
prove("the same in cross-attention with 5 queries and 11 keys", max(found) < 1e-5)


# %% id="parity-to-torch"
def to_torch(layer):
    """Our layer as a nn.MultiheadAttention with the same weights."""
    module = nn.MultiheadAttention(layer.d_model, layer.n_heads, batch_first=True)
    parts = (layer.query, layer.key, layer.value)
    state = {
        "in_proj_weight": torch.cat([p.weight for p in parts]),
        "in_proj_bias": torch.cat([p.bias for p in parts]),
    }
    state |= {"out_proj.weight": layer.output.weight, "out_proj.bias": layer.output.bias}
    module.load_state_dict(state)
    return module


back = to_torch(attention)
found = testing.assert_equivalent(attention, lambda x: back(x, x, x)[0], x)
prove("from ours to torch: outputs and gradients equal to 1e-5", max(found) < 1e-5)
with record_weights(attention) as maps:
    attention(x)
(our_maps,) = maps.values()  # (B, H, T, T)
_, their_maps = back(x, x, x, average_attn_weights=False)
prove("the maps of every head are equal too", torch.allclose(our_maps, their_maps, atol=1e-6))

# %% [markdown] id="parity-says"
# PyTorch averages the maps over the heads unless told not to. Such an average shows no head that exists.
#
# ### 3.2 Fused: one product for queries, keys and values
#
# > **You will read that** one combined projection is used for efficiency.
#
# > **Predict.** The three D × D products as one D × 3D product: faster by how much, on one CPU thread?

# %% id="fused-equals"
torch.manual_seed(0)
separate, fused = MultiHeadAttention(512, 8), MultiHeadAttention(512, 8, fused=True)
fused.load_state_dict(separate.state_dict())  # the library joins the three matrices
tokens = torch.randn(4, 128, 512)  # (B, T, D)
found = testing.assert_equivalent(separate, fused, tokens)
prove("fused query, key and value equal separate ones, gradients too", max(found) < 1e-4)


# %% id="fused-time" tags=["not-compared:clock"]
def milliseconds(run, repeats=5):
    """The fastest of a few runs, in milliseconds of processor time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(1000 * (time.process_time() - start))
    return min(times)


with torch.no_grad():
    print(
        f"separate {milliseconds(lambda: separate(tokens)):.2f} ms, fused {milliseconds(lambda: fused(tokens)):.2f} ms"
    )

# %% [markdown] id="fused-says"
# *Conditional.* The arithmetic is the same. On one CPU thread the two times are close, and which is ahead changes from
# run to run. On a GPU one large product instead of three saves launches and fills the machine better.
#
# ### 3.3 Masks and several heads
#
# A mask now broadcasts to (B, H, T, S), from the right. What does that make of the shapes you meet?

# %% id="mask-shapes"
real = torch.arange(5) < torch.tensor([5, 3, 2])[:, None]  # (B, S): three sentences
shapes = {
    "(T, S)": masks.causal_mask(5),
    "(B, 1, 1, S)": real[:, None, None],
    "(B, S)": real,
    "(B, T, S)": real[:, None].expand(3, 5, 5),
}
three = torch.randn(3, 5, D)  # as many sentences as heads

# %% id="mask-shapes-tried"
for name, mask in shapes.items():
    raw = torch.zeros(3, H, 5, 5)  # (B, H, T, S)
    try:
        raw.masked_fill(~mask, -math.inf)
        plain = "runs"
    except RuntimeError:
        plain = "error"
    try:
        attention(three, mask=mask)
        library = "runs"
    except ValueError:
        library = "refuses"
    print(f"{name:>13}: plain masked_fill {plain}, library {library}")

# %% exercise="mask_for_every_head"


# %% id="mask-empty"
torch.manual_seed(0)
nothing = masks.length_mask([5, 3, 0], 5)  # (B, 1, 1, S): the third sentence is all padding
readers = {
    "torch": (theirs, lambda x: theirs(x, x, x, key_padding_mask=~nothing[:, 0, 0])[0]),
    "ours": (ours, lambda x: ours(x, mask=nothing)),
}
for name, (module, read) in readers.items():
    module.zero_grad()
    output = read(three)
    output[:2].sum().backward()  # the loss never touches the third sentence
    bad = sum(bool(p.grad.isnan().any()) for p in module.parameters())
    print(f"{name:>5}: NaN in the output {bool(output.isnan().any())}, parameters with NaN gradients {bad}")
prove(
    "ours keeps outputs and gradients finite when a sentence is all padding",
    bad == 0 and bool(output.isfinite().all()),
)

# %% [markdown] id="mask-says"
# Broadcasting lines up from the right, so the three axes of (B, T, S) meet (H, T, S). With three sentences and three
# heads that is no error: sentence 1's mask hides keys in *head* 1 of all sentences. The library refuses every mask
# whose axes it would have to guess. A query that may see nothing gets zeros and finite gradients (chapter 1, section
# 5.5), where PyTorch's layer returns NaN.
#
# ### 3.4 Maps and dropout
#
# PyTorch returns the weights after dropout. Maps drawn from a model in training mode then show holes that no head has.

# %% id="dropout-maps" tags=["atol:0.02", "long-cell"]
torch.manual_seed(0)
seven = torch.randn(1, 7, 64)  # (B, T, D): seven tokens
layers = {"torch": nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)}  # in training mode, as made
layers["ours"] = MultiHeadAttention.from_torch(layers["torch"])
_, after = layers["torch"](seven, seven, seven, average_attn_weights=False)  # (B, H, T, T)
with record_weights(layers["ours"]) as maps:
    layers["ours"](seven)
(before,) = maps.values()
for name, found in (("torch", after), ("ours", before)):
    sums, holes = found.sum(-1), (found == 0).float().mean()
    print(f"{name:>5}: row sums {sums.min():.2f} to {sums.max():.2f}, cells that are zero {holes:.2f}")
entropy = torch.special.entr(before).sum(-1).mean()
print(f"entropy of the four untrained heads {entropy:.2f} of {math.log(7):.2f} nats")
prove(
    "weights returned by the library sum to one in training mode too",
    torch.allclose(before.sum(-1), torch.ones(1, 4, 7)),
)
prove(
    "untrained heads spread their weight: over 90 % of the largest entropy",
    entropy > 0.90 * math.log(7),
)

# %% [markdown] id="untrained-question"
# > **Predict** (a popular challenge). Ten tokens, a causal mask, four heads with random weights. Do the heads differ?

# %% id="untrained" tags=["atol:0.02"]
torch.manual_seed(0)
fresh = MultiHeadAttention(64, 4)
with record_weights(fresh) as maps:
    fresh(torch.randn(1, 10, 64), mask=masks.causal_mask(10))
(random_maps,) = maps.values()
last = random_maps[0, :, -1]  # (H, S): the last query, which sees all ten
tops = last.argmax(-1).tolist()
print("key with the largest weight, by head:", tops)
entropies = torch.special.entr(last).sum(-1)
print("entropy:", " ".join(f"{e:.2f}" for e in entropies), f"of {math.log(10):.2f}")
prove(
    "random heads name different keys, but none is sharp",
    len(set(tops)) > 1 and entropies.min() > 1.6,
)

# %% [markdown] id="cost"
# ## 4 What heads cost
#
# The parameters stay the same. And the work?
#
# > **Predict** for width 256 and 512 tokens: how do the operations, and the bytes of the scores, change from 1 head to
# > 8 and to 32?

# %% id="cost-counted"
n, width = 512, 256
long = torch.randn(1, n, width)
wrong, flops = (
    "",
    8 * n * width**2 + 4 * n * n * width,
)  # four projections, two products of all heads together
for n_heads in (1, 8, 32):
    layer = MultiHeadAttention(width, n_heads)
    table = 4 * n_heads * n * n  # a float32 takes 4 bytes
    with record_weights(layer) as maps:
        wrong += complaint(testing.assert_counts, layer, long, flops=flops)
    (size,) = (weights.nbytes for weights in maps.values())
    print(f"{n_heads:2} heads: {flops:,} FLOPs, weights {size / 2**20:.0f} MiB")
    prove(f"the weights of {n_heads} heads take 4Hn² bytes", size == table)
prove("the floating-point operations do not depend on the number of heads", not wrong)

# %% id="cost-time" tags=["not-compared:clock"]
for n_heads in (1, 8, 32):
    layer = MultiHeadAttention(width, n_heads).requires_grad_(False)
    with record_weights(layer):  # the weights are formed
        explicit = milliseconds(functools.partial(layer, long))
    kernel = milliseconds(functools.partial(layer, long))
    print(f"{n_heads:2} heads: explicit {explicit:6.1f} ms, fused kernel {kernel:6.1f} ms")

# %% [markdown] id="cost-says"
# > **You will read that** several heads cost as much as one of full width.
#
# *Conditional.* The matrices and the multiply-adds are equal. The table of weights is not: it grows with H, and each
# of its cells needs an exponential and a place in memory, which the count of multiply-adds leaves out. A fused kernel
# never stores the table.

# %% [markdown] id="roles"
# ## 5 What heads do
#
# Books show heads for syntax, for coreference, for meaning. Which of it can be *measured*? First a small model in which
# we know what has to be found, and then one trained on text.
#
# ### 5.1 Induction heads
#
# Take random letters, and repeat them: K Q B Z K Q B Z ... Nothing predicts the first copy. The second copy is
# predictable by a rule: *find the earlier copy of the current token and read what followed*. A head that does so is
# called an **induction head** (Olsson et al. 2022). One head alone cannot do it: it could find an earlier K, but not
# the token *after* it, because a key says what a token is and not what stood before it. Two layers can: a head of the
# first writes into each token which token came before it (a **previous-token head**), and a head of the second looks
# for the place that says "K came before me".
#
# The model has two layers of attention and nothing else. The length of the repeated part varies, so counting back a
# fixed number of places is not enough.


# %% id="induction-model"
class AttentionOnly(nn.Module):
    """Causal attention layers, nothing between: tokens (B, T) -> scores (B, T, V)."""

    def __init__(self, n_layers=2, n_heads=2, V=26, T=24, D=64):
        super().__init__()
        self.token, self.position = nn.Embedding(V, D), nn.Parameter(torch.randn(T, D))
        self.layers = nn.ModuleList(MultiHeadAttention(D, n_heads, bias=False) for _ in range(n_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(n_layers + 1))
        self.answer = nn.Linear(D, V, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.position[: tokens.size(1)]
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x), causal=True)
        return self.answer(self.norms[-1](x))


def scores_and_maps(model, tokens):
    """One pass: its scores (B, T, V), and the maps of all layers (layers, B, H, T, T)."""
    with record_weights(model) as maps:
        scores = model(tokens)
    return scores, torch.stack(list(maps.values()))


# %% id="induction-data"
def repeated(B, low, high, generator, T=24):
    """Random letters that repeat after `low` to `high` places: tokens (B, T), periods (B, 1)."""
    period = torch.randint(low, high + 1, (B, 1), generator=generator)
    letters = torch.randint(26, (B, T), generator=generator)
    return letters.gather(1, torch.arange(T) % period), period


def second_copy_loss(scores, tokens, period):
    """Mean loss, in nats, where the next token has an earlier copy and the current one too."""
    each = F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    counts = (torch.arange(tokens.size(1) - 1) >= period).flatten()  # (B (T - 1),)
    return (each * counts).sum() / counts.sum()


# %% exercise="induction_score"


# %% id="induction-scores"
held_out, ten = repeated(300, 10, 10, torch.Generator().manual_seed(99), T=20)  # two copies of ten letters


def previous_score(maps):
    """Mean weight on the token before: (B, H, T, T) -> (H,)."""
    return maps.diagonal(-1, -2, -1).mean(dim=(0, 2))  # (B, H, T - 1) -> (H,)


@torch.no_grad()
def measure(model):
    scores, maps = scores_and_maps(model, held_out)
    loss = second_copy_loss(scores, held_out, ten).item()
    previous = torch.stack([previous_score(layer) for layer in maps])  # (layers, H)
    induction = torch.stack([induction_score(layer, 10) for layer in maps])
    return loss, previous, induction


# %% id="induction-train"
def train_induction(n_layers, steps=250, seed=0):
    """Train on periods 8 to 12; return the model and what was measured every 25 steps."""
    torch.manual_seed(seed)
    model, generator = AttentionOnly(n_layers), torch.Generator().manual_seed(seed)
    optimizer, history = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for step in range(steps + 1):
        if step % 25 == 0:
            history.append((step, *measure(model)))
        tokens, _ = repeated(32, 8, 12, generator)
        scores, _ = scores_and_maps(model, tokens)
        loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())  # (B, T, V) -> (B T, V)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False), history


# %% [markdown] id="induction-question"
# > **Predict.** Does the loss on the second copy fall evenly, or in one stretch? Guessing among 26 letters costs
# > ln 26 = 3.26 nats.

# %% id="induction-measured" tags=["atol:0.3"]
model, history = train_induction(2)
_, one_layer = train_induction(1)
print(f"{'step':>4}{'loss':>7}{'previous, layer 1':>19}{'induction, layer 2':>20}{'loss of one layer':>19}")
for (step, loss, previous, induction), (_, single, _, _) in zip(history, one_layer):
    print(f"{step:4}{loss:7.2f}{previous[0].max():19.2f}{induction[1].max():20.2f}{single:19.2f}")

# %% id="induction-figure"
fig, (ax, below) = plt.subplots(1, 2, figsize=(7.5, 2.9))
steps = [row[0] for row in history]
ax.plot(steps, [row[1] for row in history], color=palette.query)
ax.plot([row[0] for row in one_layer], [row[1] for row in one_layer], color=palette.residual)
ax.set(xlabel="step", ylabel="loss on the second copy (nats)", ylim=(0, 4))
ax.text(130, 0.75, "two layers", color=palette.query)
ax.text(165, 2.6, "one layer", color=palette.residual)
below.plot(steps, [row[2][0].max() for row in history], color=palette.key)
below.plot(steps, [row[3][1].max() for row in history], color=palette.value)
below.set(xlabel="step", ylabel="score of the best head", ylim=(0, 1))
below.text(120, 0.8, "induction, layer 2", color=palette.value)
below.text(120, 0.28, "previous token, layer 1", color=palette.key)
show(
    fig,
    alt="Left: the loss of two layers falls slowly, then steeply within about 50 steps, then slowly; one layer stays "
    "far above it. Right: the induction score of layer 2 and the previous-token score of layer 1 rise at the same "
    "time.",
    caption="A phase change: the loss drops in one short stretch, and in that stretch both kinds of head appear "
    "together.",
)

# %% id="induction-proof"
losses = [row[1] for row in history]
steepest = max(range(len(losses) - 2), key=lambda i: losses[i] - losses[i + 2])
share = (losses[steepest] - losses[steepest + 2]) / (losses[0] - losses[-1])
prove("over half of the fall of the loss happens in one fifth of the training", share > 0.5)
rise = [row[3][1].max().item() for row in history]
prove(
    "in that stretch the induction score of layer 2 rises by more than 0.25",
    rise[steepest + 2] - rise[steepest] > 0.25,
)
prove("one layer stays far behind: over 1 nat above two layers", one_layer[-1][1] > losses[-1] + 1)
first, second = history[-1][2][0], history[-1][3][1]
prove(
    "layer 1 grew a previous-token head, layer 2 an induction head",
    first.max() > 0.35 and second.max() > 0.45,
)

# %% [markdown] id="induction-explore-question"
# ### 5.2 See the heads at work
#
# Below are all four heads of the trained model on seven different letters and their copy: a period that never
# occurred in training. A head is named by layer and number.
#
# > **Predict.** Take the last letter but one, at position 12. In layer 2, to which position does its line lead?

# %% id="induction-explore"
names = [f"head {layer}.{h}" for layer, h in itertools.product((1, 2), range(2))]
sample = torch.randperm(26, generator=torch.Generator().manual_seed(4))[:7].repeat(2)[None]  # (1, T)
_, sample_maps = scores_and_maps(model, sample)  # (layers, 1, H, T, T)
letters = [string.ascii_uppercase[n] for n in sample[0]]
grid = sample_maps[:, 0].flatten(0, 1)  # (layers, H, T, T) -> (layers H, T, T)
best = 2 + int(sample_maps[1, 0, :, 12, 6].argmax())
HeadExplorer(grid, letters, names=names, selected=best, query=12)

# %% id="induction-explore-check" tags=["atol:0.1"]
sevens, period = repeated(300, 7, 7, torch.Generator().manual_seed(5), T=14)  # two copies of seven letters
scores, maps_seven = scores_and_maps(model, sevens)
held = second_copy_loss(scores, sevens, period).item()
led_to = int(grid[best, 12].argmax())
print(
    f"the {letters[12]} at position 12 reads position {led_to}, {letters[led_to]}: what followed the {letters[12]} at 5"
)
prove("in the explored sequence the query at 12 reads position 6 most", led_to == 6)
found = induction_score(maps_seven[1], 7).max().item()
print(f"period 7, never trained on: loss {held:.2f} nats, induction score {found:.2f}")
prove("the induction head finds its place at a period that never occurred in training", found > 0.45)

# %% [markdown] id="induction-ablate"
# The head still finds its place, less surely, and the model as a whole does worse than at the periods it knows: part of
# what it learned are places. So "induction" is what this head does mostly, not purely.
#
# The map suggests a mechanism. To test it, take heads away: set to zero what one head writes (section 2.3) and look at
# the loss, and at the *other* heads.
#
# > **Predict.** Remove the previous-token head of layer 1. What happens to the induction score of layer 2?


# %% id="ablation"
def without_head(layer, h):
    """A hook that silences head h of a layer: returns the function that brings it back."""
    kept = layer.output.weight.detach().clone()
    own = slice(h * layer.d_head, (h + 1) * layer.d_head)
    layer.output.weight.data[:, own] = 0.0

    def restore():
        layer.output.weight.data.copy_(kept)

    return restore


# %% id="ablation-measured" tags=["atol:0.3"]
whole, _, induction = measure(model)
print(f"{'nothing removed':>15}: loss {whole:.2f}, induction score of layer 2 {induction[1].max():.2f}")
removed = {}
for layer, h in itertools.product(range(2), range(2)):
    restore = without_head(model.layers[layer], h)
    loss, _, induction = measure(model)
    restore()
    removed[layer, h] = (loss, induction[1].max().item())
    name = f"head {layer + 1}.{h}"
    print(f"{name:>15}: loss {loss:.2f}, induction score of layer 2 {induction[1].max():.2f}")

# %% id="ablation-proof"
writer = int(first.argmax())
prove(
    "without the previous-token head the loss rises by over 1 nat",
    removed[0, writer][0] > whole + 1,
)
prove(
    "without it, the induction score of layer 2 falls below half",
    removed[0, writer][1] < 0.5 * second.max(),
)
alone = max(removed[1, h][0] for h in range(2))
prove("without one of the two heads of layer 2 it rises by less than 1 nat", alone < whole + 1)

# %% [markdown] id="ablation-says"
# The induction heads of layer 2 are still there, with all their weights, and find nothing: they depend on what the
# first layer writes. A role is not a property of one head alone. And the two heads of layer 2 do the same work, so
# either can be spared: a small loss when one head is removed does not mean that its work is not needed.
#
# ### 5.3 Heads of a model trained on text
#
# Now English technical prose, character by character: two layers of four heads, each layer followed by a small network
# on each position (chapter 4). Four measures for each head: its **entropy**, the mean **distance** to what it reads,
# its weight on the **previous** character, and the **loss** when it is removed.


# %% id="text-model"
class Characters(nn.Module):
    """Next-character model: tokens (B, T) -> scores (B, T, V)."""

    def __init__(self, symbols, n_heads=4, T=32, D=64):
        super().__init__()
        self.token, self.position = nn.Embedding(symbols, D), nn.Embedding(T, D)
        self.layers = nn.ModuleList(MultiHeadAttention(D, n_heads) for _ in range(2))
        self.networks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.answer = nn.Linear(D, symbols)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight  # (B, T, D)
        for layer, norm, network in zip(self.layers, self.norms, self.networks):
            x = x + layer(norm(x), causal=True)
            x = x + network(x)
        return self.answer(x)


# %% id="text-data"
text = reference_text()[:300_000]
number = {character: n for n, character in enumerate(sorted(set(text)))}
ids = torch.tensor([number[character] for character in text])
cut, length = 270_000, 32  # the rest of the text is held out


def windows(low, high, B, generator):
    """Random pieces of text: inputs (B, T), and the characters that follow them (B, T)."""
    start = torch.randint(low, high - length - 1, (B, 1), generator=generator)
    piece = ids[start + torch.arange(length + 1)]  # (B, 1) + (T + 1,) -> (B, T + 1)
    return piece[:, :-1], piece[:, 1:]


@torch.no_grad()
def text_loss(reader):
    tokens, targets = windows(cut, len(ids), 200, torch.Generator().manual_seed(9))
    scores, maps = scores_and_maps(reader, tokens)
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten()).item(), maps  # (B, T, V) -> (B T, V)


# %% id="text-train" tags=["atol:0.06"]
def train_text(n_heads, steps=250, seed=0):
    torch.manual_seed(seed)
    reader, generator = Characters(len(number), n_heads), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(reader.parameters(), lr=5e-3)
    for _ in range(steps):
        tokens, targets = windows(0, cut, 16, generator)
        scores, _ = scores_and_maps(reader, tokens)
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return reader.requires_grad_(False)


readers = {n_heads: train_text(n_heads) for n_heads in (1, 4, 16)}
text_losses = {n_heads: text_loss(reader)[0] for n_heads, reader in readers.items()}
for n_heads, loss in text_losses.items():
    print(f"{n_heads:2} heads: held-out loss {loss:.2f} nats a character")

# %% id="text-roles" tags=["atol:0.2"]
reader = readers[4]
base, text_maps = text_loss(reader)  # maps: (layers, B, H, T, T)
back = (torch.arange(32)[:, None] - torch.arange(32)).clamp(min=0)  # (T, T): how far back
entropy = torch.special.entr(text_maps).sum(-1).mean(dim=(1, 3))  # (layers, H)
distance = (text_maps * back).sum(-1).mean(dim=(1, 3))
previous = text_maps.diagonal(-1, -2, -1).mean(dim=(1, 3))
cost = torch.zeros(2, 4)
for layer, h in itertools.product(range(2), range(4)):
    restore = without_head(reader.layers[layer], h)
    cost[layer, h] = text_loss(reader)[0] - base
    restore()
print("head   entropy  distance  previous  loss when removed")
for layer, h in itertools.product(range(2), range(4)):
    row = (entropy[layer, h], distance[layer, h], previous[layer, h], cost[layer, h])
    print(f"{layer + 1}.{h}" + "".join(f"{value:10.2f}" for value in row))

# %% id="text-figure"
fig, axes = plt.subplots(1, 4, figsize=(7.5, 2.1))
titles = ("entropy (nats)", "distance", "previous", "loss if removed")
look = {"cmap": palette.sequential, "vmin": 0, "annot": True, "fmt": ".2f", "cbar": False}
for ax, title, values in zip(axes, titles, (entropy, distance, previous, cost)):
    seaborn.heatmap(values, ax=ax, annot_kws={"size": 8}, **look)
    ax.set_title(title, fontsize=9)
    ax.set_xlabel("head")
    ax.set_yticklabels(["layer 1", "layer 2"] if ax is axes[0] else ["", ""], rotation=0)
show(
    fig,
    alt="Four grids of two layers by four heads: entropy, mean distance, weight on the previous character, and loss "
    "when the head is removed. One head of layer 1 stands out in all four.",
    caption="One head of layer 1 reads the previous character and is missed most. Most of the others can be removed "
    "one at a time at little cost.",
)

# %% id="text-proof"
prove("each of the eight heads removed alone leaves the loss within 1 nat", cost.max() < 1.0)
prove(
    "removing the most useful head costs over three times what removing the least useful costs",
    cost.max() > 3 * cost.min(),
)
at_most = cost.argmax().item() == previous.argmax().item() == entropy.argmin().item()
prove(
    "the head that is missed most is the sharpest, and the one that reads the previous character",
    at_most,
)
spread = max(text_losses.values()) - min(text_losses.values())
prove("1, 4 and 16 heads at equal width end within 0.4 nats of each other", spread < 0.4)
no_better = text_losses[16] > text_losses[4] > text_losses[1] - 0.1
prove("16 heads are not better than 4, and 4 not by 0.1 nats better than 1", no_better)

# %% [markdown] id="text-maps-question"
# One head has a clear role, which nobody asked for: in text the previous character tells most about the next. The other
# seven are worth little *one at a time*; the induction heads above showed why that is not the same as together. And the
# three models, of equal width and parameters, show no gain from more heads; 16 heads of width 4 did worst. That is one
# seed and a short training: take the order with care, not the absence of a large gain.
#
# > **Predict.** Which of the eight maps below can you tell from its measures?

# %% id="text-maps" tags=["picture:20"]
fig, axes = plt.subplots(2, 4, figsize=(7.5, 4.0))
for layer, h in itertools.product(range(2), range(4)):
    ax = axes[layer, h]
    seaborn.heatmap(text_maps[layer, 0, h, :16, :16], ax=ax, cmap=palette.sequential, vmin=0, vmax=1, cbar=False)
    ax.set(title=f"head {layer + 1}.{h}", xticks=[], yticks=[])
show(
    fig,
    alt="Eight attention maps, two layers by four heads, of 16 characters each, all lower triangles. One head of "
    "layer 1 has a dark diagonal next to the main one, the others are more spread.",
    caption="Trained heads look different from each other and from fresh ones, which are even. What they are good for "
    "is not in the picture: for that, remove them.",
)

# %% [markdown] id="claims"
# ### 5.4 Which claims about heads survive
#
# | claim | verdict | evidence |
# |---|---|---|
# | heads attend to syntax, meaning, long range | not given; measure it | fresh heads: 3.4; trained: 1, 5.1, 5.3 |
# | heads specialise in interpretable patterns | some do | previous-token and induction heads (5.1, 5.2) |
# | more heads are better | not at equal width, here | 1, 4 and 16 heads, one seed (5.3) |
# | a head can be read off its map | not its use | the loss when removed is a measure of its own (5.3) |
# | BERT has heads for the next or previous token | reported | Clark et al. 2019, section 3 |
# | BERT has heads that look at separators | reported, read there as doing nothing | Clark et al. 2019, section 3.2 |
# | BERT has heads for single syntactic relations | reported; none parses as a whole | Clark et al. 2019, section 4.2 |
# | BERT has a head for coreference | reported | Clark et al. 2019, section 4.3 |
# | BERT has heads for rare words | wrong source | reported for translation encoders: Voita et al. 2019 |
# | most heads can be removed after training | reported | Michel et al. 2019; Voita et al. 2019 |
#
# Chapter 7 looks at the heads of a real pretrained model.

# %% [markdown] id="grouped"
# ## 6 Heads that share: grouped and multi-query attention
#
# When a model writes, it asks with one new token at a time and keeps the keys and values of all earlier ones in a
# **cache**. The cache is what fills memory on long texts, and it grows with the number of heads *of keys and values*.
# So let several query heads share one: G heads of keys and values for H query heads. G = 1 is **multi-query** attention
# (Shazeer 2019), between is **grouped-query** attention (Ainslie et al. 2023).

# %% exercise="grouped_query_attention"


# %% id="grouped-proof"
torch.manual_seed(0)
query, key, value = (
    torch.randn(2, 6, 5, 7),
    torch.randn(2, 3, 11, 7),
    torch.randn(2, 3, 11, 7),
)  # H = 6, G = 3
found = testing.assert_equivalent(
    grouped_query_attention,
    functools.partial(F.scaled_dot_product_attention, enable_gqa=True),
    query,
    key,
    value,
)
prove("grouped_query_attention equals torch's grouped kernel, gradients too", max(found) < 1e-4)
single = grouped_query_attention(query, key[:, :1], value[:, :1])  # one head of keys for all
same = torch.allclose(single[:, 4:5], sdpa(query[:, 4:5], key[:, :1], value[:, :1]), atol=1e-6)
prove("in multi-query attention each head reads the one set of keys and values", same)

# %% [markdown] id="grouped-cache-question"
# > **Predict.** Width 64, 8 query heads, 100 tokens in float32. How many bytes does the cache hold for G = 8, 2, 1? How
# > many parameters does the layer lose?

# %% id="grouped-cache"
for G in (8, 4, 2, 1):
    layer, cache = MultiHeadAttention(64, 8, n_kv_heads=G), KVCache(capacity=100)
    with torch.no_grad():
        layer(torch.randn(1, 100, 64), causal=True, cache=cache)
    size = sum(p.numel() for p in layer.parameters())
    print(f"G = {G}: cache {cache.n_bytes:>6,} bytes, {size:,} parameters")
    prove(
        f"a cache of {G} heads takes 2 · G · E · 4 bytes a token",
        cache.n_bytes == 100 * 2 * G * 8 * 4,
    )

# %% id="grouped-cache-law"
torch.manual_seed(0)
layer = MultiHeadAttention(64, 8, n_kv_heads=2).requires_grad_(False)


def in_one_pass(x):
    return layer(x, causal=True)


def step_by_step(new, cache):
    cache = KVCache() if cache is None else cache
    return layer(new, causal=True, cache=cache), cache


law = complaint(testing.assert_cache_consistent, in_one_pass, step_by_step, torch.randn(2, 7, 64))
prove("grouped heads with a cache, token by token, equal one pass", not law)

# %% exercise="grouped_cache_bytes"


# %% id="grouped-equal"
torch.manual_seed(0)
few, many = MultiHeadAttention(64, 8, n_kv_heads=2), MultiHeadAttention(64, 8)
state = few.state_dict()
for part in ("key", "value"):
    rows_of = state[f"{part}.weight"].unflatten(0, (2, 8))  # (G E, D) -> (G, E, D)
    state[f"{part}.weight"] = rows_of.repeat_interleave(4, dim=0).flatten(0, 1)  # (H, E, D) -> (H E, D)
    state[f"{part}.bias"] = state[f"{part}.bias"].unflatten(0, (2, 8)).repeat_interleave(4, dim=0).flatten()
many.load_state_dict(state)
tokens = torch.randn(2, 5, 64)
prove(
    "grouped heads equal full heads whose key and value matrices repeat",
    torch.allclose(few(tokens), many(tokens), atol=1e-5),
)

# %% [markdown] id="grouped-says"
# So grouping is a restriction: full heads can do all that grouped heads can. What it buys is memory, H / G times less
# cache. What it costs in quality is small in the reports of the sources above, and is not measured here.

# %% [markdown] id="museum"
# ## 7 Bug museum
#
# Bugs of these kinds ran for long in published code. For each: read, predict what is wrong, run. The laws find them.
#
# **Exhibit 1.** Splitting in one line. *Which tokens does a head compare?*


# %% id="museum-view" tags=["tol:0.02"]
def exhibit1(x):
    heads = x.view(x.size(0), H, x.size(1), -1)  # straight into (B, H, T, E)
    return library_merge(sdpa(heads, heads, heads, causal=True))


torch.manual_seed(0)
x = torch.randn(B, T, D)
found = complaint(testing.assert_causal, exhibit1, x)
print(found)
prove("museum 1: a view without transpose when splitting is caught by assert_causal", found)

# %% [markdown] id="museum-merge-question"
# **Exhibit 2.** `view` raised an error at the merge, so someone wrote `reshape`. *What does the law of order say?*


# %% id="museum-merge" tags=["tol:0.02"]
def exhibit2(x):
    heads = library_split(x, H)  # (B, H, T, E)
    return sdpa(heads, heads, heads).reshape(x.shape)


def repaired2(x):
    heads = library_split(x, H)
    return library_merge(sdpa(heads, heads, heads))  # new


found = complaint(testing.assert_permutation_equivariant, exhibit2, x)
print(found)
prove(
    "museum 2: a reshape without transpose when merging is caught by assert_permutation_equivariant",
    found,
)
prove(
    "museum 2: the repaired merge obeys the law",
    not complaint(testing.assert_permutation_equivariant, repaired2, x),
)

# %% [markdown] id="museum-mask-question"
# **Exhibit 3.** A mask of its own for each sentence, (B, S, S). Three heads, and today three sentences. *Who reads
# whose mask?*


# %% id="museum-mask" tags=["tol:0.02"]
def exhibit3(x, real):
    heads = library_split(x, H)  # (B, H, T, E)
    mask = real[:, None].expand(-1, x.size(1), -1)  # (B, S) -> (B, T, S)
    scores = (heads @ heads.mT / math.sqrt(E)).masked_fill(~mask, -math.inf)  # (B, H, T, S)
    return library_merge(scores.softmax(-1) @ heads)


def repaired3(x, real):
    heads = library_split(x, H)
    scores = (heads @ heads.mT / math.sqrt(E)).masked_fill(~real[:, None, None], -math.inf)  # new: (B, 1, 1, S)
    return library_merge(scores.softmax(-1) @ heads)


three = torch.randn(3, 5, D)  # B = H
found = complaint(testing.assert_padding_invariant, exhibit3, three, alone=False)
print(found)
prove("museum 3: a (B, S, S) mask read per head is caught by a batch with B = H", found)
prove(
    "museum 3: the mask with its axes obeys the law",
    not complaint(testing.assert_padding_invariant, repaired3, three),
)

# %% [markdown] id="museum-scale-question"
# **Exhibit 4.** "Divide by the root of the width." *Of which width?*


# %% id="museum-scale" tags=["tol:0.02"]
def exhibit4(x):
    heads = library_split(x, H)
    return library_merge(sdpa(heads, heads, heads, scale=1 / math.sqrt(D)))  # the model's width


found = complaint(testing.assert_equivalent, exhibit4, repaired2, x)
print(found)
prove("museum 4: a scale by the model's width is caught by assert_equivalent", found)

# %% [markdown] id="museum-scale-says"
# It is the mildest of them: the model trains, with heads that are a little too even. Only the comparison with another
# implementation shows it.
#
# **Exhibit 5.** Grouped heads, repeated. *With H = 6 and G = 3, which head of keys does query head 1 read?*


# %% id="museum-tiled" tags=["tol:0.02"]
def exhibit5(query, key, value):
    share = query.size(1) // key.size(1)
    return sdpa(query, key.repeat(1, share, 1, 1), value.repeat(1, share, 1, 1))  # 0 1 2 0 1 2


kernel = functools.partial(F.scaled_dot_product_attention, enable_gqa=True)  # 0 0 1 1 2 2
query, key, value = torch.randn(2, 6, 5, 7), torch.randn(2, 3, 11, 7), torch.randn(2, 3, 11, 7)
found = complaint(testing.assert_equivalent, exhibit5, kernel, query, key, value)
print(found)
prove("museum 5: grouped heads tiled instead of interleaved are caught by assert_equivalent", found)
one = complaint(testing.assert_equivalent, exhibit5, kernel, query, key[:, :1], value[:, :1])
prove("museum 5: with one key head, or as many as query heads, nobody would notice", not one)

# %% [markdown] id="museum-tiled-says"
# A model trained from scratch with the tiled form works. Weights published for the other form give nonsense.
#
# **Exhibit 6.** Maps for a paper, taken while dropout is on. *Do they make the output?*

# %% id="museum-dropout" tags=["tol:0.02"]
torch.manual_seed(0)
dropping = nn.MultiheadAttention(D, H, dropout=0.3, batch_first=True)  # in training mode


def maps_shown(x):
    torch.manual_seed(1)
    return dropping(x, x, x, average_attn_weights=False)[1]


def maps_of_the_pass(x):
    ours = MultiHeadAttention.from_torch(dropping)
    with record_weights(ours) as maps:
        ours(x)
    return maps[""]  # the weights of the recorded module itself


found = complaint(testing.assert_equivalent, maps_shown, maps_of_the_pass, x, gradients=False)
print(found)
prove("museum 6: maps taken after dropout are caught by comparison with those before", found)

# %% [markdown] id="museum-output-question"
# **Exhibit 7.** The heads are merged and returned. The shape is right. *What is missing, and what cannot happen
# without it?*


# %% id="museum-output" tags=["tol:0.02"]
class Exhibit7(MultiHeadAttention):
    def forward(self, x):
        query, key, value = self._project(x, None, None, None)
        return library_merge(sdpa(query, key, value))


layer = Exhibit7(D, H)
found = complaint(testing.assert_gradients_flow, layer, x, parameters=dict(layer.named_parameters()))
print(found)
prove("museum 7: a forgotten output matrix is caught by assert_gradients_flow", found)

# %% [markdown] id="museum-output-says"
# Without W_O the heads never meet: head h can only write into its own E columns of the result.

# %% [markdown] id="end"
# ## 8 What you have
#
# ### What was proved
#
# Each line is an assertion that held in this run, in order.

# %% id="proved-table"
for count, claim in enumerate(proved, start=1):
    print(f"{count:3}  {claim}")

# %% [markdown] id="card"
# ### The formulas on one card
#
# | what | formula | section |
# |---|---|---|
# | one head | Attention(X W_Q, X W_K, X W_V), with matrices D × E | 2 |
# | **multi-head** | **Concat(head₁ … head_H) W_O = Σ head_h W_O,h** | 2, 2.3 |
# | width of a head | E = D / H | 3 |
# | split | (B, T, H E) → view (B, T, H, E) → exchange (B, H, T, E) | 2.1 |
# | merge | exchange (B, T, H, E) → reshape (B, T, H E) | 2.2 |
# | scale | 1 / √E, the width of a head | 7 |
# | parameters | 4 (D² + D), whatever H | 3 |
# | operations | 8 n D² + 4 n² D, whatever H | 4 |
# | bytes of the weights | 4 H n² in float32 | 4 |
# | cache | 2 · layers · G · E · tokens · bytes of a number | 6 |

# %% [markdown] id="self-check"
# ### Check yourself
#
# Answer in a sentence, then open.
#
# <details><summary>1. Why several narrow heads instead of one wide one?</summary>
#
# Each gives an average of its own, so two things can be kept apart with a linear read-out (section 1). The price is
# that a head of width E compares tokens in E directions only (2.3).
#
# </details>
#
# <details><summary>2. Does more heads mean better?</summary>
#
# Not at equal width. One head too few is a wall for some tasks; many more than needed repeat each other, and the table
# of weights grows (1, 4, 5.3).
#
# </details>
#
# <details><summary>3. Why may the merge not be a reshape alone?</summary>
#
# After the attention, memory holds all tokens of head 0 first. A reshape alone would fill a token's vector with pieces
# of several tokens (2.2).
#
# </details>
#
# <details><summary>4. Your mask has shape (B, T, S) and the tests pass. What do you ask?</summary>
#
# How many heads and how many sentences the tests use: with B = H it is read per head without an error (3.3).
#
# </details>
#
# <details><summary>5. What are the two parts of an induction circuit, and why two layers?</summary>
#
# A head that writes into each token what came before it, and a later head that looks for "what came before me is the
# current token". The second reads what the first wrote (5.1).
#
# </details>
#
# <details><summary>6. A head has a beautiful map. Does the model need it?</summary>
#
# Remove it and look at the loss (5.2, 5.3).
#
# </details>
#
# <details><summary>7. What do grouped heads save, and what not?</summary>
#
# Cache, by the factor H / G, and the parameters of keys and values. Not the products of queries with keys (6).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# Heads can tell tokens apart by what they are. In this chapter, wherever *where* mattered, we added a learned vector
# for each position without a word about it. Chapter 3 asks how position can be written into a token at all.

# %% [markdown] id="sources"
# ### Sources
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: section 3.2.2 (multi-head attention, the sizes
#   512, 8 and 64).
# - Olsson et al. 2022, *In-context Learning and Induction Heads*, arXiv:2209.11895; Elhage et al. 2021, *A Mathematical
#   Framework for Transformer Circuits*: heads as a sum, previous-token and induction heads.
# - Clark et al. 2019, *What Does BERT Look At?*, arXiv:1906.04341; Voita et al. 2019, *Analyzing Multi-Head
#   Self-Attention*, arXiv:1905.09418; Michel et al. 2019, *Are Sixteen Heads Really Better than One?*,
#   arXiv:1905.10650.
# - Shazeer 2019, *Fast Transformer Decoding: One Write-Head is All You Need*, arXiv:1911.02150; Ainslie et al. 2023,
#   *GQA*, arXiv:2305.13245.
# - Grattafiori et al. 2024, *The Llama 3 Herd of Models*, arXiv:2407.21783, table 3: the sizes of the 8B model.
