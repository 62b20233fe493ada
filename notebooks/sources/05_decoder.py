# %% [markdown] id="title"
# # 5 The decoder
#
# A decoder writes: it predicts a token, appends it, and predicts again. In this notebook you build it, train it in
# parallel, make it write well and fast, and catch the bugs on the way. Afterwards you can write a GPT and the
# encoder–decoder of 2017. It builds on chapters 1 to 4. Measured: 60 seconds of processor time, 1.1 GB of memory. Run
# the first cell:

# %% id="first-look"
import random
from itertools import pairwise

text = "the cat saw the dog and the dog saw the bird and the bird saw the cat and so on"
words = text.split()
followers = {}
for word, follower in pairwise(words):
    followers.setdefault(word, []).append(follower)

random.seed(1)
written = ["the"]
while len(written) < 14 and written[-1] in followers:
    written.append(random.choice(followers[written[-1]]))  # predict, append, predict again
print(" ".join(written))

# %% [markdown] id="what-just-happened"
# This model knows one thing: which word followed which. The **loop** around it is that of every chat model: predict
# the next token from what is there, append it, predict again. It is called **autoregressive**. The rest of this
# chapter replaces the table of followers by a Transformer.
#
# The letters are those of the whole course: **B** sentences, **T** target positions, **S** source positions, **H**
# heads, **D** width, **E** width of a head, **V** vocabulary. A **token** is here a number, a letter or a word.

# %% id="imports"
import functools
import math
import re
import time

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)  # the same rounding everywhere

# %% id="imports-course"
from course_lib import exercises as ex
from course_lib import masks, testing
from course_lib.attention import CausalSelfAttention, record_weights
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.config import TransformerConfig
from course_lib.data import copy_task, noise_floor, noise_tokens, reference_text
from course_lib.decoder import DecoderLayer, TransformerDecoder
from course_lib.encoder import TransformerEncoder
from course_lib.generation import Sampling, beam_search, generate, pad_left, speculative_generate
from course_lib.layers import TokenEmbedding
from course_lib.multi_head import MultiHeadAttention
from course_lib.records import claim
from course_lib.transformer import LanguageModel, Transformer
from course_lib.explorers import DecodingExplorer, SamplingExplorer
from course_lib.viz import attention_map, live, palette, show

# %% id="prove"
from course_lib.testing import complaint, prove, proved  # prove stops at a false claim

# %% [markdown] id="loop"
# ## 1 Predict, append, predict again
#
# Let a model be any function from tokens (B, T) to **logits** (B, T, V): scores for the token that comes *after* each
# position. The simplest way to write with it takes the most likely token each time. That is **greedy** decoding. Here
# is a small decoder with random weights, and the loop in full:

# %% id="greedy-loop"
torch.manual_seed(0)
small = LanguageModel(
    TransformerConfig(vocab_size=17, d_model=24, n_heads=2, n_decoder_layers=2, dropout=0.0, norm_place="pre")
).eval()


@torch.no_grad()
def write_greedily(model, tokens, n_new):
    for _ in range(n_new):
        logits = model(tokens)  # (B, T, V)
        new = logits[:, -1].argmax(dim=-1, keepdim=True)  # (B, T, V) -> (B, V) -> (B, 1)
        tokens = torch.cat([tokens, new], dim=1)  # (B, T) -> (B, T + 1)
    return tokens


prompt = torch.tensor([[3, 5, 7]])  # (B, T)
print(write_greedily(small, prompt, 8)[0].tolist())

# %% id="greedy-library"
library = generate(small, prompt, max_new_tokens=8, temperature=0)
same = torch.equal(write_greedily(small, prompt, 8), library)
prove("the loop and the library's generate write the same greedy tokens", same)
two = torch.tensor([[3, 5, 7], [2, 2, 2]])
prove(
    "several texts are written at once, each as if alone",
    torch.equal(generate(small, two, max_new_tokens=8, temperature=0)[:1], library),
)

# %% [markdown] id="structure"
# **What in the structure makes this possible?** Three things. Position t predicts token t + 1, so the last position
# always knows what to say next. No position depends on later ones (section 2), so what was computed for the text so far
# stays true when the text grows. And the length T is not built into any weight.
#
# > **You will read that** a chat model writes word by word, each position attending to all others.
#
# *Imprecise* on both counts. The units are tokens, and a decoder position reads only itself and what came before. What
# closed systems do inside is not public.
#
# > **You will read that** the decoder produces its tokens one after another.
#
# *Imprecise*: true when it writes. When it is trained, all positions are predicted in one pass, as section 3 shows. And
# a decoder may stand alone, without an encoder.

# %% [markdown] id="causal"
# ## 2 No look ahead
#
# The rule of the causal mask: position i sees position j **if j ≤ i**. As a table, True = may attend:

# %% id="causal-mask"
mask = torch.ones(5, 5, dtype=torch.bool).tril()  # (T, T)
for row in mask.int().tolist():
    print(row)
print(mask.dtype, " the first position sees", int(mask[0].sum()), "token, the fifth", int(mask[4].sum()))
prove("the library's causal mask is this lower triangle", torch.equal(masks.causal_mask(5), mask))
by_rule = torch.tensor([[j <= i for j in range(5)] for i in range(5)])
prove("position i sees position j exactly when j is not later", torch.equal(by_rule, mask))


def mask_for_heads(T):
    """(1, 1, T, T): the same for every sentence and every head."""
    return torch.ones(1, 1, T, T, dtype=torch.bool).tril()  # tril works on the last two axes


prove("the mask (1, 1, T, T) broadcasts to (B, H, T, S)", mask_for_heads(5).expand(2, 3, 5, 5).shape == (2, 3, 5, 5))

# %% [markdown] id="scores-question"
# > **You will read that** the mask sets attention weights to minus infinity.
#
# > **Predict.** What would a softmax weight of minus infinity do to the output?

# %% id="scores" tags=["tol:0.001"]
torch.manual_seed(0)
x = torch.randn(8, 6)  # (T, D)
scores = x @ x.T / math.sqrt(6)  # (T, D) @ (D, S) -> (T, S)
masked = scores.masked_fill(~masks.causal_mask(8), -math.inf)
weights = masked.softmax(dim=-1)
print("scores of position 1:", " ".join(f"{s:5.2f}" for s in masked[1]))
print("its weights:         ", " ".join(f"{w:5.2f}" for w in weights[1]))
prove("forbidden scores are minus infinity, forbidden weights exactly zero", (weights.triu(1) == 0).all())
prove("the weights of each row still sum to one", torch.allclose(weights.sum(-1), torch.ones(8)))

# %% [markdown] id="scores-says"
# *Imprecise*: it is the **scores**. exp(-∞) = 0, so the weight is zero, and the others share the whole. Minus infinity
# as a weight would make every output infinite or NaN.

# %% id="triangle"
ax = attention_map(weights, mask=masks.causal_mask(8), title="eight positions")
show(
    ax.figure,
    alt="Attention map of eight positions. Cells above the diagonal are hatched, those on and below it hold the "
    "weights; the first row has one cell of weight 1.",
    caption="Under a causal mask the weights form a lower triangle. The first position has no choice: all its weight "
    "lies on itself.",
)

# %% [markdown] id="module"
# ### 2.1 A mask that is not saved
#
# Many programs build the mask once, for some largest length, and keep it in the module. Then it is saved with the
# weights, and a longer text fails. Here is that module, with both faults, beside the library's, which has neither.


# %% id="module-registered"
class Registered(nn.Module):
    """Causal attention, one head, with a stored mask: (B, T, D) -> (B, T, E)."""

    def __init__(self, D, longest=512, persistent=True):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.register_buffer("mask", torch.ones(longest, longest).tril(), persistent=persistent)

    def forward(self, x):
        T, E = x.size(1), self.query.out_features
        scores = self.query(x) @ self.key(x).mT / math.sqrt(E)  # (B, T, T)
        scores = scores.masked_fill(self.mask[:T, :T] == 0, -math.inf)
        return scores.softmax(dim=-1) @ self.value(x)


# %% id="module-measured"
registered, library_module = Registered(64), CausalSelfAttention(64)
state = registered.state_dict()
saved = {name: tensor.numel() * tensor.element_size() for name, tensor in state.items()}
print("bytes saved:", f"mask {saved.pop('mask'):,}, weights {sum(saved.values()):,}")
prove("as a persistent buffer the mask of 512 positions is 21 times the weights", 21 * sum(saved.values()) < 2**20)
kept = Registered(64, persistent=False).state_dict()
prove("as a non-persistent buffer it is not saved", "mask" not in kept)
library_module.projection.load_state_dict(kept)
for part in ("query", "key", "value"):
    getattr(registered, part).weight.data = kept[f"{part}.weight"]
x = torch.randn(2, 7, 64)  # (B, T, D)
prove("both modules agree, gradients too", max(testing.assert_equivalent(registered, library_module, x)) < 1e-4)
try:
    registered(torch.randn(1, 513, 64))
except RuntimeError as error:
    print("513 positions:", str(error).split(" at ")[0])
prove("the library's module takes any length", library_module(torch.randn(1, 513, 64)).shape == (1, 513, 64))

# %% [markdown] id="leak"
# ### 2.2 What a leak looks like
#
# The law `assert_causal` changes one token and watches the outputs before it. Nothing may move at all.

# %% id="leak-law"
law = complaint(testing.assert_causal, small, torch.randint(17, (2, 20)), vocab_size=17)
prove("no output of the decoder moves when a later token changes, in both modes", not law)
tokens = torch.randint(17, (1, 20))
for j in (1, 10, 19):
    changed = tokens.clone()
    changed[0, j] = (changed[0, j] + 1) % 17
    moved = (small(changed) - small(tokens))[:, :j].abs().max()
    print(f"token {j:2} changed: logits before it move by {moved:.1f}")

# %% [markdown] id="leak-question"
# Now a mask that is off by one: position i also sees i + 1. We train it on tokens drawn at random from 16, where nobody
# can do better than ln 16 = 2.77 nats.
#
# > **Predict.** Will its loss be better or worse than that of the right mask?


# %% id="leak-model"
class Reader(nn.Module):
    """One layer that predicts the next token under the mask it is given: (B, T) -> (B, T, 16)."""

    def __init__(self, mask):
        super().__init__()
        config = TransformerConfig(d_model=32, n_heads=2, n_encoder_layers=1, dropout=0.0, norm_place="pre")
        self.token, self.stack, self.head = TokenEmbedding(16, 32), TransformerEncoder(config), nn.Linear(32, 16)
        self.place, self.mask = nn.Parameter(0.3 * torch.randn(1, 12, 32)), mask

    def forward(self, tokens):
        return self.head(self.stack(self.token(tokens) + self.place, mask=self.mask))


# %% id="leak-train"
def loss_on_noise(mask, steps=150):
    torch.manual_seed(0)
    model, generator = Reader(mask), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        tokens = noise_tokens(32, 13, 16, generator=generator)  # (B, T + 1)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        tokens = noise_tokens(500, 13, 16, generator=generator)
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()


# %% id="leak-measured" tags=["atol:0.05"]
right = loss_on_noise(masks.causal_mask(12))
leaking = loss_on_noise(torch.ones(12, 12, dtype=torch.bool).tril(1))
print(f"loss on pure noise: right mask {right:.2f}, off by one {leaking:.2f}; floor {noise_floor(16):.2f}")
prove("the right mask stays at the floor of noise", right > noise_floor(16) - 0.02)
prove("a mask off by one predicts the unpredictable", leaking < 0.5 * noise_floor(16))

# %% [markdown] id="leak-says"
# A loss that is too good is a bug report. The leaking model has learned to copy the answer, which will not be there
# when it writes. Only the last of its 12 positions has no next one to look at; there it must guess, at 2.77 nats. Shared
# by all 12, that is 0.23 nats, and it is nearly all that its loss consists of.

# %% [markdown] id="teacher"
# ## 3 Teacher forcing
#
# To train the loop of section 1 step by step would take T passes for each text. But the text is known. Let the decoder
# read the **true** tokens, shifted right by one, and predict all of them at once. The causal mask makes each prediction
# exactly the one that the loop would make with that prefix. This is **teacher forcing**.

# %% exercise="shift_right"


# %% id="shift-example"
targets = torch.tensor([[11, 12, 13, 14]])  # (B, T)
print("reads   ", shift_right(targets, 1)[0].tolist())
print("predicts", targets[0].tolist())

# %% [markdown] id="prefix-question"
# > **Predict.** A decoder of random weights, a target of 13 tokens. How far are the logits of one parallel pass from
# > those of 13 passes over growing prefixes?

# %% id="prefix"
targets = torch.randint(2, 17, (3, 13))  # (B, T)
read = shift_right(targets, 1)
with torch.no_grad():
    parallel = small(read)  # one pass: (B, T, V)
    stepwise = torch.stack([small(read[:, : t + 1])[:, -1] for t in range(13)], dim=1)  # T passes
gap = (parallel - stepwise).abs().max()
prove("teacher-forced logits equal those prefix by prefix to 1e-5", gap < 1e-5)
losses = [F.cross_entropy(logits.flatten(0, 1), targets.flatten()) for logits in (parallel, stepwise)]
prove("so the losses are equal too", torch.allclose(*losses))

# %% [markdown] id="prefix-says"
# Only rounding is left. Training sees every prefix of a text in **one** pass; writing needs one pass for each token.
#
# The loss is that of a whole text: by the chain rule its probability is the product of the probabilities of each token
# after the ones before. Its logarithm is a sum, and the loss is minus the mean of the terms.

# %% id="chain-rule"
with torch.no_grad():
    everything = torch.cartesian_prod(*[torch.arange(17)] * 3)  # (17³, 3): every text of three tokens
    each = small(shift_right(everything, 1)).log_softmax(-1).gather(-1, everything[..., None])  # (N, T, 1)
total = each.sum((1, 2)).exp().sum()
prove("the probabilities of all 4913 texts of three tokens sum to one", abs(total - 1) < 1e-4)

# %% [markdown] id="layer"
# ## 4 The decoder layer
#
# A decoder layer has three sublayers, each in a residual with a norm, in this order:
#
# 1. **causal self-attention**: the target reads itself, the present token and earlier ones;
# 2. **cross-attention**: the target reads the source. Queries come from the target, keys and values from the encoder;
# 3. **feed-forward**, as in chapter 4.


# %% id="diagram-parts"
def box(ax, x, y, text, color, width=2.6):
    ax.text(x, y, text, ha="center", va="center", fontsize=8.5, zorder=3)
    corner = (x - width / 2, y - 0.3)
    ax.add_patch(plt.Rectangle(corner, width, 0.6, facecolor="white", edgecolor=color, linewidth=1.6, zorder=2))


def arrow(ax, start, end, color="#6E6E6E", **options):
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.2} | options)


def column(ax, x, parts, color):
    """Boxes from the bottom up, with arrows between."""
    for y, text in enumerate(parts):
        box(ax, x, y, text, color)
        if y:
            arrow(ax, (x, y - 0.68), (x, y - 0.3))


# %% id="diagram"
fig, ax = plt.subplots(figsize=(7.2, 4.3))
column(ax, 0, ["source tokens", "embedding + position", "self-attention", "feed-forward"], palette.query)
decoder_parts = ["target, shifted right", "embedding + position", "causal self-attention", "cross-attention"]
column(ax, 5, [*decoder_parts, "feed-forward", "linear: logits", "softmax: next token"], palette.key)
arrow(ax, (1.3, 3), (3.7, 3), palette.value)
ax.text(2.5, 3.1, "context:\nkeys, values", ha="center", va="bottom", fontsize=8.5, color=palette.value)
for x, low, high in ((0, 1.55, 3.45), (5, 1.55, 4.45)):
    ax.add_patch(plt.Rectangle((x - 1.6, low), 3.2, high - low, fill=False, linestyle=":", edgecolor="#6E6E6E"))
    ax.text(x - 1.7, (low + high) / 2 - 0.5, "N ×", ha="right", va="center", fontsize=9)
ax.add_patch(plt.Polygon([(6.3, 6), (7.2, 6), (7.2, 0), (6.3, 0)], closed=False, fill=False, edgecolor="#6E6E6E"))
arrow(ax, (6.6, 0), (6.3, 0))
ax.text(7.3, 3, "append", rotation=90, va="center", fontsize=8.5)
ax.set(xlim=(-2.4, 7.6), ylim=(-0.5, 6.5))
ax.axis("off")
show(
    fig,
    alt="Two columns. Left, the encoder: source tokens, embedding and position, self-attention, feed-forward. Right, "
    "the decoder: shifted target, embedding, causal self-attention, cross-attention fed by the encoder, feed-forward, "
    "logits, softmax; an arrow leads the new token back to the start.",
    caption="The encoder runs once. The decoder runs for each new token and reads the same context every time. Norms "
    "and residuals stand around every sublayer.",
)

# %% exercise="decoder_layer"


# %% [markdown] id="layer-library"
# The library's layer is the same three lines with heads, biases, dropout, caches and both places for the norm. With one
# head, no biases and the same weights it must give the same numbers.

# %% id="layer-equal"
torch.manual_seed(0)
D, D_ff, S, T = 11, 23, 5, 3
plain = TransformerConfig(d_model=D, n_heads=1, d_ff=D_ff, bias=False, norm_place="pre", dropout=0.0, positions="none")
layer = DecoderLayer(plain)
own = {
    name: torch.stack([w.detach().T for w in (*part.projection_weights(), part.output.weight)])  # (4, D, D)
    for name, part in (("self", layer.self_attention), ("cross", layer.cross_attention))
}
own |= {name: getattr(layer.feed_forward, name).weight.detach().T for name in ("up", "down")}
x, context = torch.randn(2, T, D), torch.randn(2, S, D)
seen = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None]  # (B, 1, S): two source positions are padding
mine = decoder_layer(x, context, own, seen)
library = layer(x, context, context_mask=seen[:, None])  # (B, 1, 1, S)
prove("your decoder layer equals the library's on the same weights", torch.allclose(mine, library, atol=1e-5))

# %% [markdown] id="layer-torch-says"
# And the library's layer equals torch's, with norms before or after, outputs and gradients:

# %% id="layer-torch"
for norm_first in (False, True):
    theirs = nn.TransformerDecoderLayer(24, 3, 48, dropout=0.0, batch_first=True, norm_first=norm_first)
    ours = DecoderLayer.from_torch(theirs)
    later = nn.Transformer.generate_square_subsequent_mask(7)  # -inf at what may not be seen
    reference = functools.partial(theirs, tgt_mask=later, tgt_is_causal=True)
    found = testing.assert_equivalent(ours, reference, torch.randn(2, 7, 24), torch.randn(2, 5, 24))
    prove(f"DecoderLayer equals torch's, norm_first={norm_first}, gradients too", max(found) < 1e-4)

# %% [markdown] id="two-maps-question"
# Record a pass of the layer, and there are two maps.
#
# > **Predict** their shapes for 4 sentences, 15 target tokens, 20 source tokens and 8 heads.

# %% id="two-maps"
torch.manual_seed(0)
layer = DecoderLayer(TransformerConfig(d_model=64, n_heads=8, dropout=0.0))
with record_weights(layer) as maps:
    output = layer(torch.randn(4, 15, 64), torch.randn(4, 20, 64))
own, across = maps["self_attention"], maps["cross_attention"]
print("output", tuple(output.shape))
print("self-attention", tuple(own.shape), " cross-attention", tuple(across.shape))
prove("self-attention is square and causal", (own.triu(1) == 0).all())
prove("cross-attention may read all of the source", (across > 0).all())
rows = across.sum(-1)
prove("rows of the cross-attention sum to one", torch.allclose(rows, torch.ones_like(rows)))

# %% [markdown] id="bridge"
# The two attentions differ in where keys and values come from. In **self**-attention all three come from the target. In
# **cross**-attention they come from the source, which has a length of its own and is finished: no causal mask there. A
# law makes the difference visible. Reorder the source tokens:

# %% id="bridge-law"
x, context = torch.randn(2, 7, 64), torch.randn(2, 5, 64)
shuffled = context[:, [4, 2, 0, 1, 3]]
same = torch.allclose(layer(x, context), layer(x, shuffled), atol=1e-5)
prove("a decoder layer reads the context as a set: its order must be written in the vectors", same)
law = complaint(testing.assert_causal, lambda x: layer(x, context), x, module=layer)
prove("with cross-attention the layer is still causal in the target", not law)
queries = torch.randn(1, 7, 64)


def read_padded(context, real):
    return layer(queries.expand(len(context), -1, -1), context, context_mask=real[:, None, None])


law = complaint(testing.assert_padding_invariant, read_padded, context, per_token=False, module=layer)
prove("what the context mask hides never reaches the target", not law)

# %% [markdown] id="model"
# ## 5 The whole model
#
# The original Transformer (2017) is an encoder and a decoder, made for translation. The encoder reads the source once;
# `decode` reads the target so far and the encoder's output; `forward` does both, for training.

# %% id="model-shapes"
torch.manual_seed(0)
config = TransformerConfig(
    vocab_size=1000, d_model=128, n_heads=4, n_encoder_layers=2, n_decoder_layers=2, pad_id=0, dropout=0.0
)
model = Transformer(config)
source, target = torch.randint(1, 1000, (2, 12)), torch.randint(1, 1000, (2, 8))
source[1, 9:] = 0  # padding
logits = model(source, target)
print("source", tuple(source.shape), " target", tuple(target.shape), " logits", tuple(logits.shape))
seen = masks.padding_mask(source, 0)  # (B, 1, 1, S)
context = model.encode(source, source_mask=seen)  # (B, S, D)
in_two = model.decode(target, context, context_mask=seen)
prove("encode, then decode, equals forward; the padding mask is built from pad_id", torch.equal(in_two, logits))
changed = source.clone()
changed[1, 9:] = 7
prove("without that mask the padding would count", not torch.allclose(model(changed, target)[1], logits[1], atol=1e-3))

# %% id="model-torch"
torch.manual_seed(0)
theirs = nn.Transformer(24, 4, 2, 2, 48, dropout=0.0, batch_first=True)
ours = Transformer.from_torch(theirs)  # vectors in, vectors out, as torch's class has neither embedding nor head
reference = functools.partial(theirs, tgt_mask=nn.Transformer.generate_square_subsequent_mask(7), tgt_is_causal=True)
found = testing.assert_equivalent(ours, reference, torch.randn(2, 5, 24), torch.randn(2, 7, 24))
prove("Transformer equals torch.nn.Transformer, outputs and gradients", max(found) < 1e-4)
stack = TransformerDecoder.from_torch(theirs.decoder)
reference = functools.partial(theirs.decoder, tgt_mask=nn.Transformer.generate_square_subsequent_mask(7))
found = testing.assert_equivalent(stack, reference, torch.randn(2, 7, 24), torch.randn(2, 5, 24))
prove("the decoder stack, which masks by itself, equals torch's", max(found) < 1e-4)

# %% [markdown] id="distribution-question"
# > **You will read that** the model returns a probability distribution for each position.
#
# > **Predict.** What do the numbers of one row of `logits` sum to?

# %% id="distribution" tags=["atol:0.3"]
sums, smallest = logits.sum(-1), logits.min()
print(f"row sums of logits: {sums.min():.1f} to {sums.max():.1f}; smallest entry {smallest:.1f}")
chances = logits.softmax(dim=-1)
prove("logits are no distribution: they have negative entries", smallest < 0)
prove("after a softmax each row is one", torch.allclose(chances.sum(-1), torch.ones(2, 8), atol=1e-5))

# %% [markdown] id="distribution-says"
# *Imprecise*: it returns logits. Losses and samplers take the softmax themselves, in a form that does not overflow.
#
# > **You will read that** the most probable token is the model's prediction.
#
# *Conditional*: under greedy decoding. The prediction is the distribution; section 8 is about the choice.
#
# ### 5.1 At the size of the paper

# %% id="paper-size"
torch.manual_seed(0)
base = TransformerConfig(vocab_size=30_000, tie_embeddings=False, head_bias=True, n_encoder_layers=0)
big = Transformer(base).eval()
decoder_side = [big.embedding, big.decoder, big.head]
print("decoder with tables:", f"{sum(p.numel() for part in decoder_side for p in part.parameters()):,} parameters")
with torch.no_grad():
    logits = big.decode(torch.randint(30_000, (4, 15)), torch.randn(4, 20, 512))
next_token = logits[:, -1].softmax(dim=-1)  # (B, T, V) -> (B, V)
print("logits", tuple(logits.shape), " next token", tuple(next_token.shape))
formula = 6 * (2 * (4 * 512**2 + 4 * 512) + 2 * 512 * 2048 + 2048 + 512 + 3 * 2 * 512) + 2 * 30_000 * 512 + 30_000
prove("the decoder side has 55,974,192 parameters, as the formula says",
      sum(p.numel() for part in decoder_side for p in part.parameters()) == formula == 55_974_192)  # fmt: skip
del big

# %% id="paper-size-whole"
with torch.device("meta"):  # shapes and counts alone, no memory
    whole = Transformer(TransformerConfig(vocab_size=32_000, share_vocabulary=True)).eval()
    logits = whole(torch.zeros(4, 30, dtype=torch.int64), torch.zeros(4, 25, dtype=torch.int64))
print(f"the base model with one table: {sum(p.numel() for p in whole.parameters()):,} parameters,", tuple(logits.shape))
prove("at translation size the logits are (4, 25, 32000)", logits.shape == (4, 25, 32_000))

# %% [markdown] id="init-question"
# ### 5.2 Initial weights
#
# Much code draws *every* matrix by Xavier's rule, the tables of embeddings included. Then tokens are added to
# positions, which are sines and cosines with root mean square √½ = 0.71.
#
# > **Predict.** How much larger are the positions than the tokens then?

# %% id="init" tags=["tol:0.02"]
rms = {}
for V, width in ((1000, 128), (32_000, 512)):
    torch.manual_seed(0)
    table = nn.init.xavier_uniform_(torch.empty(V, width))
    ours = TokenEmbedding(V, width)(torch.arange(V))  # drawn with standard deviation D^-½, times √D when looked up
    sizes = [table.square().mean().sqrt(), math.sqrt(width) * table.square().mean().sqrt(), ours.square().mean().sqrt()]
    rms[V, width] = [0.5**0.5 / size.item() for size in sizes]
    print(f"V = {V:6,}, D = {width}: positions are", end=" ")
    print("{:.1f} times the tokens by Xavier, {:.1f} with √D, {:.2f} here".format(*rms[V, width]))
prove("Xavier tables without √D drown the tokens in positions, 16 to 1", rms[1000, 128][0] > 16)
prove("with √D positions are still 4 times larger at 32,000 × 512", 3.5 < rms[32_000, 512][1] < 4.5)
prove("the library's tokens and positions are of one size", all(0.6 < row[2] < 0.8 for row in rms.values()))

# %% [markdown] id="init-says"
# Xavier's rule is meant for matrices that are multiplied, where it keeps the size of vectors. A table is looked up; its
# rows should have the size of what they are added to. The library draws matrices by Xavier and tables apart.
#
# A ratio is no consequence. Does it matter for training? The translator of section 6, five seeds each
# (`python benchmarks/claims.py sizes_of_embeddings`):

# %% id="init-trained"
record = claim("sizes_of_embeddings")
for arm in record.arms:
    (low, high), (middle_low, middle_high) = (record.range(arm, name) for name in record.measures)
    print(f"{arm:>25}: {middle_low:.2f} to {middle_high:.2f} of the letters right half way,", end=" ")
    print(f"{low:.2f} to {high:.2f} at the end")
learned = all(record.range(arm, "right letters")[0] > 0.99 for arm in record.arms)
prove("whatever the size of the embeddings, each of five models learns to reverse", learned)

# %% [markdown] id="init-trained-says"
# On this task it does not: all of them write every letter right in the end, and half way there the ranges overlap. With
# 13 tokens of 32 numbers the positions are only about three times as large as Xavier's tokens; whether the seventeenfold
# of a larger table matters was not tried here. Chapter 4 shows what initial weights and the place of the norm do to
# depth, where they do decide.

# %% [markdown] id="reversal"
# ## 6 Train it: read, then write backwards
#
# The task: seven letters in, the same letters backwards out, then a stop token. It needs the bridge: each target token
# stands at the mirrored place of the source. Target 0 = the padding id, 1 = start, 2 = stop, 3 to 12 = letters.

# %% id="reversal-data"
START, STOP, letters = 1, 2, "·<>abcdefghij"


def reversal_batch(B, generator):
    source, target = copy_task(B, 7, 13, reverse=True, first_id=3, generator=generator)  # (B, S), (B, S)
    return source, torch.cat([target, torch.full((B, 1), STOP)], dim=1)  # (B, S), (B, T)


def spell(ids):
    return "".join(letters[i] for i in ids)


source, target = reversal_batch(2, torch.Generator().manual_seed(0))
print(*[f"{spell(a)} -> {spell(b)}" for a, b in zip(source.tolist(), target.tolist())], sep="\n")


# %% id="reversal-train"
def train_reversal(steps, seed=0, peak=5e-3):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 13, "d_model": 32, "n_heads": 2, "d_ff": 64, "n_encoder_layers": 2, "n_decoder_layers": 2}
    model = Transformer(TransformerConfig(**sizes, norm_place="pre", dropout=0.0))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=peak, betas=(0.9, 0.98))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = peak * min(1, (step + 1) / 30) * (1 - step / steps)  # chapter 6 says why
        source, target = reversal_batch(32, generator)
        logits = model(source, shift_right(target, START))  # all positions at once
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())  # (B, T, V) -> (B T, V)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


early, mirror = train_reversal(150), train_reversal(300)

# %% id="reversal-measured" tags=["atol:0.06"]
held_source, held_target = reversal_batch(1000, torch.Generator().manual_seed(99))


@torch.no_grad()
def forced_and_free(model):
    """Right predictions, bool (B, T) each: with the true prefix, and with the model's own."""
    forced = model(held_source, shift_right(held_target, START)).argmax(-1)
    start = torch.full((1000, 1), START)
    own = generate(model, start, source=held_source, max_new_tokens=8, temperature=0)[:, 1:]
    return forced == held_target, own == held_target


right = {name: forced_and_free(model) for name, model in (("half trained", early), ("trained", mirror))}
for name, (forced, free) in right.items():
    print(f"{name:>12}: tokens right {forced.float().mean():.2f} forced, {free.float().mean():.2f} free;", end=" ")
    print(f"whole answers right {free.all(1).float().mean():.2f}")
whole = right["trained"][1].all(1).float().mean()
prove("trained by teacher forcing alone, the model writes over 98 % of the answers right", whole > 0.98)

# %% [markdown] id="maps-question"
# ### 6.1 Three attentions
#
# > **Predict.** When the model writes the first letter, which source position must the cross-attention read? And the
# > last one?
#
# Move the number of written tokens, and look at one head at a time.

# %% id="explorer" tags=["picture:20"]
source, target = held_source[:1], held_target[:1]
read = shift_right(target, START)
with torch.no_grad(), record_weights(mirror) as maps:
    logits = mirror(source, read)
chance = logits.softmax(-1).gather(-1, target[..., None])[0, :, 0]  # (1, T, V) -> (T,): of what was written
DecodingExplorer(
    maps["encoder.layers.1.self_attention"][0],
    maps["decoder.layers.1.self_attention"][0],
    maps["decoder.layers.1.cross_attention"][0],
    source=list(spell(source[0])),
    read=list(spell(read[0])),
    written=list(spell(target[0])),
    probabilities=chance,
    caption="Across, each written letter reads its mirrored source letter: the anti-diagonal. The encoder's map stays "
    "as it is while the two others grow by a row for each token.",
)

# %% id="mirror-measured" tags=["atol:0.15"]
with torch.no_grad(), record_weights(mirror) as maps:
    mirror(held_source, shift_right(held_target, START))
t = torch.arange(7)
share = maps["decoder.layers.1.cross_attention"][:, :, t, 6 - t].mean((0, 2))  # (B, H, T, S) -> (B, H, 7) -> (H,)
print("weight on the mirrored letter, last layer:", " ".join(f"{s:.2f}" for s in share), f"(even: {1 / 7:.2f})")
prove("each head of the last cross-attention puts over half its weight on the mirrored letter", share.min() > 0.5)

# %% [markdown] id="exposure-question"
# ### 6.2 Free running
#
# In training the model always saw a true prefix. When it writes, it sees its own, errors included. The gap is called
# **exposure bias**.
#
# > **You will read that** errors then accumulate, so the end of a text is worse than its start.
#
# > **Predict.** The half-trained model is right at the first letter in over nine of ten cases. Place by place, which
# > curve falls: the forced one, the free one, both?

# %% id="exposure" tags=["picture:20"]
fig, ax = plt.subplots(figsize=(5.4, 2.6))
forced, free = (part.float().mean(0) for part in right["half trained"])  # (B, T) -> (T,)
ax.plot(range(1, 9), forced, marker="o", color=palette.query, label="true prefix")
ax.plot(range(1, 9), free, marker="s", linestyle="--", color=palette.key, label="own prefix")
ax.set(xlabel="position in the answer", ylabel="share right", ylim=(0, 1.05))
ax.legend()
show(
    fig,
    alt="Share of right tokens by position, half-trained model. Both curves start together, then the one with its own "
    "prefix lies below the one with the true prefix, most so at position 7; at position 8, the stop token, they meet.",
    caption="Half trained, the model leans on its prefix: with its own, wrong one it does worse from the second letter "
    "on. The stop token depends on the place alone.",
)

# %% id="exposure-measured" tags=["atol:0.06"]
gap = (forced - free)[:7]
print("forced minus free, letters 1 to 7:", " ".join(f"{g:5.2f}" for g in gap))
prove("with nothing written yet, forced and free are the same", gap[0] == 0)
prove("half trained, an own prefix costs over 20 points at the last letter", gap[6] > 0.2)
trained_gap = (right["trained"][0].float() - right["trained"][1].float()).mean()
prove("trained to the end, the gap is below one point", trained_gap.abs() < 0.01)
forced_ok, free_ok = (part.all(1) for part in right["half trained"])
prove("an answer is free of errors exactly when all its forced predictions are right", torch.equal(forced_ok, free_ok))

# %% [markdown] id="exposure-says"
# *Conditional.* A model that needs its prefix to know what is left suffers, as here. The trained one reads the source,
# has no errors to start from, and shows no gap. The last line is not luck: up to its first error a free text *is* the
# true prefix. So exposure never makes a wrong answer out of a right one; it makes wrong ones more wrong.

# %% [markdown] id="gpt"
# ## 7 The decoder alone: a GPT
#
# Leave out encoder and cross-attention, and the decoder models plain text. That is GPT. We train one on characters of
# the Python language reference, which is on every machine that runs Python. The last tenth is **held out**.

# %% id="text"
text = reference_text()[:300_000]
alphabet = sorted(set(text))
number_of = {character: number for number, character in enumerate(alphabet)}
ids = torch.tensor([number_of[character] for character in text])
training, held_out, V, T = ids[:270_000], ids[270_000:], len(alphabet), 128


def encode(text):
    return torch.tensor([[number_of[character] for character in text]])  # (1, T)


def decode(tokens):
    return "".join(alphabet[token] for token in tokens.tolist())


def windows(data, B, generator):
    """Random pieces of text: inputs (B, T) and what follows each character (B, T)."""
    start = torch.randint(len(data) - T - 1, (B, 1), generator=generator)
    piece = data[start + torch.arange(T + 1)]  # (B, 1) + (T + 1,) -> (B, T + 1)
    return piece[:, :-1], piece[:, 1:]


# %% [markdown] id="baselines"
# A loss means nothing by itself. Three numbers come first: guessing evenly (ln V), knowing how frequent each character
# is (**unigram**), and knowing which character follows which (**bigram**).

# %% exercise="bigram_loss"


# %% id="baselines-measured" tags=["tol:0.02"]
counts = torch.bincount(training, minlength=V) + 1.0
unigram = -(counts / counts.sum()).log()[held_out[1:]].mean().item()
bigram = bigram_loss(training, held_out, V)
print(f"even {math.log(V):.2f}, unigram {unigram:.2f}, bigram {bigram:.2f} nats a character, held out")


# %% id="gpt-model"
def new_gpt(seed, d_model=64):
    torch.manual_seed(seed)
    return LanguageModel(
        TransformerConfig(
            vocab_size=V, d_model=d_model, n_heads=4, n_decoder_layers=2, n_encoder_layers=0, positions="rotary",
            norm_place="pre", activation="gelu", scale_embeddings=False, dropout=0.0, init="normal", init_std=0.05,
            scale_residual_init=True,
        )
    )  # fmt: skip


@torch.no_grad()
def held_out_loss(model):
    inputs, targets = windows(held_out, 100, torch.Generator().manual_seed(9))
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()  # (B, T, V) -> (B T, V)


fresh = held_out_loss(new_gpt(0))
prove("a fresh model guesses about evenly: its loss is within 0.3 of ln V", abs(fresh - math.log(V)) < 0.3)

# %% [markdown] id="gpt-question"
# > **Predict.** The fresh model: about which of the three numbers? And what will it write after 50 steps: noise,
# > letters in the right proportions, or words?


# %% id="gpt-train"
def train_gpt(seed, steps=600, peak=6e-3, watch=()):
    model, generator = new_gpt(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    curve = []
    for step in range(steps + 1):
        if step in watch or (watch and step % 75 == 0):
            curve.append((step, held_out_loss(model)))
        if step in watch:
            written = generate(model, encode("The "), max_new_tokens=60, generator=torch.Generator().manual_seed(1))
            print(f"step {step:3}, loss {curve[-1][1]:.2f}: {decode(written[0])!r}")
        optimizer.param_groups[0]["lr"] = peak * min(1, (step + 1) / 20) * (1 - step / (steps + 1))
        inputs, targets = windows(training, 6, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval(), curve


# %% id="gpt-watched" tags=["not-compared:sampled-text"]
gpt, curve = train_gpt(0, watch=(0, 50, 200, 600))

# %% id="gpt-table" tags=["tol:0.03"]
finals = {0: curve[-1][1]} | {seed: held_out_loss(train_gpt(seed)[0]) for seed in (1, 2)}
print("held-out nats a character")
for name, loss in {"even, ln V": math.log(V), "unigram": unigram, "bigram": bigram}.items():
    print(f"{name:>12}: {loss:.2f}")
for seed, loss in finals.items():
    print(f"{f'GPT, seed {seed}':>12}: {loss:.2f}")
prove("with three seeds the GPT beats the bigram by over 0.6 nats, held out", max(finals.values()) < bigram - 0.6)

# %% id="gpt-curve" tags=["picture:20"]
fig, ax = plt.subplots(figsize=(5.8, 2.8))
ax.plot(*zip(*curve), marker="o", color=palette.query)
for name, loss in (("ln V", math.log(V)), ("unigram", unigram), ("bigram", bigram)):
    ax.axhline(loss, color=palette.residual, linewidth=1, linestyle="--")
    ax.text(600, loss + 0.05, name, ha="right", va="bottom", fontsize=8.5)
ax.set(xlabel="step", ylabel="held-out nats a character", ylim=(1, 5.1))
show(
    fig,
    alt="Held-out loss of the GPT against training steps. It starts at ln V, crosses the unigram within the first 50 "
    "steps and the bigram before step 200, and ends far below it.",
    caption="The model learns the baselines in order: first how frequent characters are, then what follows what, then "
    "more than any bigram can know.",
)

# %% [markdown] id="choosing"
# ## 8 Choosing the next token
#
# The model gives a distribution; a **sampler** chooses. It can change the distribution first:
#
# | setting | what it does |
# |---|---|
# | temperature τ | divides logits by τ: below 1 sharper, above 1 flatter; 0 means greedy |
# | top-k | keeps the k most likely tokens |
# | top-p | keeps the fewest tokens that have probability p together, the **nucleus** |
# | min-p | keeps tokens at least p times as likely as the most likely one |
# | repetition penalty | makes tokens seen before less likely |
#
# The course's library applies them in the order: penalty, temperature, top-k, top-p, min-p, as `transformers` does. The
# order matters, and libraries do not agree on it: vLLM takes min-p before top-k and top-p, and llama.cpp, unless told
# otherwise, filters first and applies the temperature last. The same settings then mean another distribution.


# %% exercise="top_p_filter"


# %% id="filters"
torch.manual_seed(0)
logits = 3 * torch.randn(50, 31)  # (N, V)
for p in (0.3, 0.8, 0.95):
    same = torch.allclose(top_p_filter(logits, p).softmax(-1), Sampling(top_p=p).probabilities(logits), atol=1e-6)
    prove(f"your nucleus filter gives the library's distribution, p = {p}", same)
mine = next_token_probabilities(logits, 1.7, 0.8)
library = Sampling(temperature=1.7, top_p=0.8).probabilities(logits)
prove("your sampler and the library's agree on temperature and filter", torch.allclose(mine, library, atol=1e-6))
draws = torch.multinomial(library[0], 50_000, replacement=True, generator=torch.Generator().manual_seed(0))
seen, wanted = torch.bincount(draws, minlength=31).double(), 50_000 * library[0].double()
kept = wanted > 0
chi = ((seen - wanted)[kept] ** 2 / wanted[kept]).sum() / (kept.sum() - 1)
prove("nothing that was cut is ever drawn", seen[~kept].sum() == 0)
prove("50,000 draws fit the distribution (chi-squared per degree of freedom below 2)", chi < 2)

# %% [markdown] id="sampling-explorer-question"
# Now on the logits of your own model, after four beginnings.
#
# > **Predict.** After which of them does top-p 0.9 keep fewer than five tokens, and after which more than ten? Then set
# > the temperature to 2 and look again.

# %% id="sampling-explorer" tags=["atol:0.15", "picture:20"]
beginnings = ["the valu", "the value of ", "An ", "x = "]
with torch.no_grad():
    logits = torch.cat([gpt(encode(beginning), last=1)[:, 0] for beginning in beginnings])  # (N, V)
SamplingExplorer(
    logits.round(decimals=1),
    alphabet,
    contexts=beginnings,
    selected=1,
    top_p=0.9,
    alt="Bars of the probabilities of the next character after “the value of ”: a few letters lead, each with less "
    "than half. About a dozen are kept by top-p 0.9, the long tail is cut.",
    caption="Where a word begins many letters are possible, and the nucleus is wide. Choose “the valu” above: there it "
    "is a few characters.",
)

# %% id="nucleus-sizes" tags=["atol:0.2"]
sizes = (Sampling(top_p=0.9).probabilities(logits) > 0).sum(-1)
entropies = torch.special.entr(logits.softmax(-1)).sum(-1)
for beginning, entropy in zip(beginnings, entropies):
    print(f"after {beginning!r}: entropy {entropy:.2f} nats")
prove("the nucleus is small where the model is sure and wide where it is not", sizes[0] < 6 and sizes.max() > 10)

# %% [markdown] id="strategies-question"
# ### 8.1 What the settings do to a text
#
# Two numbers for each setting: the share of written words (four letters or more) that occur in the training text, and
# the share of 8-character pieces that the same text has written before.
#
# > **Predict.** Which setting wins each of the two, and is there one that is good at both?


# %% id="strategies-measures"
known = set(re.findall(r"[A-Za-z]{4,}", decode(training)))
prompts = windows(held_out, 64, torch.Generator().manual_seed(5))[0][:, :16]  # (B, 16)


def whole_words(text):
    return re.findall(r"(?<=[^A-Za-z])[A-Za-z]{4,}(?=[^A-Za-z])", text)


def judge(tokens):
    """Share of known words, and share of repeated 8-character pieces, in tokens (B, T) after the prompts."""
    words, repeated = [], []
    for row in tokens[:, 16:]:
        words += whole_words(decode(row))
        pieces = [tuple(row[i : i + 8].tolist()) for i in range(len(row) - 7)]
        repeated.append(1 - len(set(pieces)) / len(pieces))
    return sum(word in known for word in words) / len(words), sum(repeated) / len(repeated)


# %% id="strategies" tags=["atol:0.06"]
settings = {
    "greedy": {"temperature": 0},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1": {},
    "temperature 1.5": {"temperature": 1.5},
    "top-k 5": {"top_k": 5},
    "top-p 0.8": {"top_p": 0.8},
    "min-p 0.1": {"min_p": 0.1},
    "greedy, penalty 1.3": {"temperature": 0, "repetition_penalty": 1.3},
}
judged = {"real text": judge(windows(held_out, 64, torch.Generator().manual_seed(6))[0])}
for name, setting in settings.items():
    generator = torch.Generator().manual_seed(0)
    judged[name] = judge(generate(gpt, prompts, max_new_tokens=112, generator=generator, **setting))
print("                     known  repeated")
for name, (known_share, repeated) in judged.items():
    print(f"{name:>19}   {known_share:.2f}      {repeated:.2f}")

# %% id="strategies-proof"
prove("greedy text repeats itself: over a third of its pieces", judged["greedy"][1] > 0.33)
prove("a higher temperature writes fewer known words",
      judged["temperature 0.5"][0] > judged["temperature 1"][0] > judged["temperature 1.5"][0])  # fmt: skip
better = judged["top-p 0.8"][0] - judged["temperature 1"][0]
prove("top-p 0.8 writes more known words than plain sampling", better > 0.1)
loops = judged["greedy"][1] - judged["greedy, penalty 1.3"][1]
prove("a repetition penalty loosens the loops of greedy text", loops > 0.05)

# %% [markdown] id="drift-question"
# Does text get worse as it goes on, by exposure? Known words by distance from the prompt, at temperature 0.5. The model
# was trained on 128 characters.
#
# > **Predict** the share at distances 0 to 56, 56 to 112, and 112 to 240.

# %% id="drift" tags=["atol:0.1"]
long = generate(gpt, prompts, max_new_tokens=240, temperature=0.5, generator=torch.Generator().manual_seed(0))
shares = {}
for low, high in ((0, 56), (56, 112), (112, 240)):
    words = [word for row in long for word in whole_words(decode(row[16 + low : 16 + high]))]
    shares[low] = sum(word in known for word in words) / len(words)
    print(f"characters {low:3} to {high:3}: {shares[low]:.2f} of the words are known")
prove("inside the trained length the share of known words falls by less than 0.12", shares[56] > shares[0] - 0.12)
prove("beyond the trained length it falls by more", shares[112] < shares[56] - 0.12)

# %% [markdown] id="drift-says"
# Inside the trained length its own errors do it little harm: most prefixes make some continuation plausible. Beyond it,
# is it the errors after all, or the *positions*, which were never trained? A control decides: the same model writes as
# long a text, but sees the newest 128 characters only, numbered from 0 each time. Its errors stay, its positions are
# known. Recorded for five models (`python benchmarks/claims.py long_texts`):

# %% id="drift-control"
record = claim("long_texts")
for arm in record.arms:
    for reach in ("56 to 112", "112 to 240"):
        low, high = record.range(arm, f"known words, {reach}")
        print(f"{arm:>23}, characters {reach:>10}: {low:.2f} to {high:.2f} of the words are known")
gone, kept = (record.range(arm, "known words, 112 to 240") for arm in record.arms)
prove(
    "with known positions, the words hold beyond the trained length, for each of five models", kept[0] > gone[1] + 0.1
)

# %% [markdown] id="drift-positions"
# It is the positions: rotary positions beyond 128 turn further than ever in training (chapter 3).

# %% [markdown] id="beam"
# ### 8.2 Beam search
#
# Greedy decoding takes the best token at each step and can miss the best *text*. **Beam search** keeps the K best texts
# so far, extends each by every token, and keeps the K best of all.

# %% exercise="beam_step"


# %% id="beam-by-hand"
def untrained(V, seed):
    torch.manual_seed(seed)
    sizes = {"vocab_size": V, "d_model": 24, "n_heads": 2, "n_decoder_layers": 2, "norm_place": "pre"}
    return LanguageModel(TransformerConfig(**sizes, tie_embeddings=False, dropout=0.0)).eval()


tiny = untrained(5, seed=12)
with torch.no_grad():
    tiny.head.weight.mul_(1.5)  # clearer preferences than fresh weights have


@torch.no_grad()
def search(model, start, n_new, n_beams):
    """The best text (N,) and its log-probability: your beam_step, again and again."""
    texts, scores = torch.tensor([[start]]), torch.zeros(1)
    for _ in range(n_new):
        chances = model(texts)[:, -1].log_softmax(-1)  # (K, T, V) -> (K, V)
        scores, parents, tokens = beam_step(scores, chances, min(n_beams, chances.numel()))
        texts = torch.cat([texts[parents], tokens[:, None]], dim=1)  # (K, T) -> (N, T + 1)
    return texts[0], scores[0].item()


# %% id="beam-exhaustive" tags=["atol:0.01"]
start = torch.zeros(1, 1, dtype=torch.int64)
everything = torch.cat([start.expand(5**5, 1), torch.cartesian_prod(*[torch.arange(5)] * 5)], dim=1)  # (N, T)
with torch.no_grad():
    each = tiny(everything[:, :-1]).log_softmax(-1).gather(-1, everything[:, 1:, None]).sum((1, 2))  # (N,)
best = everything[each.argmax()]
for K in (1, 2, 4, 625):
    text_found, score = search(tiny, 0, 5, K)
    by_library = beam_search(tiny, start, n_beams=K, max_new_tokens=5, length_penalty=0)
    print(f"K = {K:3}: {text_found.tolist()}, log-probability {score:.3f}")
    prove(f"your beam search finds what the library's finds, K = {K}", torch.equal(by_library.tokens[0, 0], text_found))
prove("one beam is greedy decoding", torch.equal(search(tiny, 0, 5, 1)[0], write_greedily(tiny, start, 5)[0]))
prove("greedy misses the best of all 3125 texts", not torch.equal(search(tiny, 0, 5, 1)[0], best))
prove("with room for all, beam search finds it", torch.equal(search(tiny, 0, 5, 625)[0], best))

# %% [markdown] id="beam-length"
# Real texts end at different lengths. Every token makes a text less probable, so texts are compared by
# log-probability / length^α. This is the form of `transformers`, and ours. The paper's α = 0.6 belongs to another one, of
# Wu et al. 2016: log-probability / ((5 + length) / 6)^α, which for the same α asks less of long texts.


# %% id="beam-alpha" tags=["atol:0.02"]
ending, lengths = untrained(7, seed=17), []
for alpha in (0.0, 1.0, 2.0):
    found = beam_search(ending, start, n_beams=6, max_new_tokens=10, stop=1, length_penalty=alpha)
    text_found = found.tokens[0, 0, 1:].tolist()
    lengths.append(text_found.index(1) + 1)  # the stop token is 1
    print(f"α = {alpha}: {lengths[-1]} tokens {text_found[: lengths[-1]]}, score {found.scores[0, 0]:.2f}")
prove("without a length penalty the best text is to stop at once; larger α finds longer ones", lengths == [1, 6, 10])

# %% [markdown] id="beam-question"
# > **You will read that** the most probable text is the best one.
#
# > **Predict.** The same 64 prompts, beams of 4 for 60 characters: more probable than greedy? Fewer repetitions?


# %% id="beam-text" tags=["atol:0.06"]
def log_probability(tokens):
    """Mean log-probability of a written character."""
    with torch.no_grad():
        chances = gpt(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]  # (B, T)
    return chances[:, 15:].mean().item()


written = {"greedy": generate(gpt, prompts, max_new_tokens=60, temperature=0)}
written["4 beams"] = beam_search(gpt, prompts, n_beams=4, max_new_tokens=60).tokens[:, 0]
written["real text"] = windows(held_out, 64, torch.Generator().manual_seed(5))[0][:, :76]
scored = {name: (log_probability(tokens), *judge(tokens)) for name, tokens in written.items()}
for name, (score, known_share, repeated) in scored.items():
    print(f"{name:>9}: log-probability {score:5.2f}, known words {known_share:.2f}, repeated {repeated:.2f}")
prove("beam search finds more probable texts than greedy", scored["4 beams"][0] > scored["greedy"][0])
prove("both are more probable than real text, and repeat far more", scored["greedy"][0] > scored["real text"][0] + 0.5)
prove("the more probable texts repeat more than real text", scored["4 beams"][2] > scored["real text"][2] + 0.1)

# %% [markdown] id="beam-says"
# *False* for open text: people do not write the most probable thing. Beam search is for tasks with one right answer,
# such as translation.
#
# ### 8.3 Your turn to write
#
# With a kernel running, type a prompt and move the controls. Each character is shaded by the probability that the model
# gave it: dark ones were expected, white ones were a surprise.


# %% id="live-draw"
def draw(text, chances, n_prompt):
    """Characters in rows of 48, each as dark as its probability; the prompt in colour."""
    fig, ax = plt.subplots(figsize=(7.2, 1.6))
    for place, (character, chance) in enumerate(zip(text, chances)):
        row, column = divmod(place, 48)
        written = place >= n_prompt
        shade = plt.get_cmap(palette.sequential)(0.7 * chance if written else 0.0)
        ax.add_patch(plt.Rectangle((column, -row), 1, 1, facecolor=shade, edgecolor="none"))
        style = {"ha": "center", "va": "center", "family": "DejaVu Sans Mono", "fontsize": 10, "parse_math": False}
        shown = "↵" if character == "\n" else character
        ax.text(column + 0.5, -row + 0.5, shown, color="#000000" if written else palette.key, **style)
    ax.set(xlim=(0, 48), ylim=(-math.ceil(len(text) / 48) + 1, 1))
    ax.axis("off")
    return fig


# %% id="live-write"
def write(prompt, temperature, top_p, seed):
    strange = sorted(set(prompt) - set(alphabet))
    if strange or not prompt:
        raise ValueError(f"prompt: expected characters of the training text, got {''.join(strange)!r}")
    generator, n_new = torch.Generator().manual_seed(seed), max(1, 128 - len(prompt))
    tokens = generate(
        gpt, encode(prompt), max_new_tokens=n_new, temperature=temperature, top_p=top_p, generator=generator
    )
    with torch.no_grad():
        chances = gpt(tokens[:, :-1]).softmax(-1).gather(-1, tokens[:, 1:, None])[0, :, 0]  # (1, T, V) -> (T,)
    return draw(decode(tokens[0]), [0.0, *chances.tolist()], len(prompt))


# %% id="live" tags=["picture:40"]
live(
    write,
    prompt="The value of ",
    temperature=(0.0, 2.0, 0.1),
    top_p=(0.05, 1.0, 0.05),
    seed=(0, 20, 1),
    alt="The prompt, then characters written by the model, each on a background as dark as it was probable: ends of "
    "words are dark, their first letters pale.",
    caption="The model is surest inside words and least sure at their beginnings.",
)

# %% id="live-measured" tags=["atol:0.1"]
inputs, targets = windows(held_out, 100, torch.Generator().manual_seed(9))
with torch.no_grad():
    losses = F.cross_entropy(gpt(inputs).mT, targets, reduction="none")  # (B, V, T) -> (B, T)
letter = torch.tensor([character.isalpha() for character in alphabet])
first, inside = letter[targets] & ~letter[inputs], letter[targets] & letter[inputs]
print(f"held-out nats: {losses[first].mean():.2f} for first letters, {losses[inside].mean():.2f} for later ones")
prove("first letters of words cost over twice what later ones do", losses[first].mean() > 2 * losses[inside].mean())

# %% [markdown] id="cache"
# ## 9 The key–value cache
#
# Write out what the new token needs. Its output in one layer is a weighted mean of values,
#
# $$o_t = \sum_{s \le t} \mathrm{softmax}_s\!\left(\frac{q_t \cdot k_s}{\sqrt{E}}\right) v_s .$$
#
# Of the new token we need its query. Of all earlier tokens we need only k and v. Under a causal mask these never
# change: k_s and v_s depend on tokens up to s alone, in every layer. So keep them. Queries of old tokens are never
# needed again, and neither are their outputs, feed-forwards and logits.


# %% [markdown] id="cache-asymmetry"
# > **You will read that** decoder-only models concentrate on efficient generation because training is parallel and
# > writing is not.
#
# An opinion on motives. What can be measured is the asymmetry: without a cache T tokens cost T(T + 1)/2 positions.

# %% exercise="kv_cache_step"


# %% id="cache-exact"
def step(new, cache):
    """New tokens (B, n) and what is cached -> logits (B, n, V), the cache: one piece of the law below."""
    cache = gpt.new_cache() if cache is None else cache
    return gpt(new, cache=cache), cache


tokens = windows(held_out, 3, torch.Generator().manual_seed(7))[0][:, :23]  # (B, T)
with torch.no_grad():
    law = complaint(testing.assert_cache_consistent, gpt, step, tokens, prefills=[0, 1, 5, 11, 22])
prove("logits with a cache equal those of one full pass, for prefills of 0, 1, 5, 11 and all but one", not law)
weights = [torch.randn(8, 4) for _ in range(3)]
x, empty = torch.randn(2, 7, 8), torch.zeros(2, 0, 4)
whole = sdpa(*(x @ W for W in weights), causal=True)
_, keys, values = kv_cache_step(x[:, :4], empty, empty, *weights)
rest, keys, values = kv_cache_step(x[:, 4:], keys, values, *weights)
prove("your step, four tokens and then three, equals attention at once", torch.allclose(rest, whole[:, 4:], atol=1e-5))

# %% [markdown] id="cache-speed-question"
# > **Predict.** 16 characters of prompt, 256 new ones. How many times faster is it with the cache, one text at a time,
# > and 8 at a time?


# %% id="cache-speed" tags=["not-compared:clock"]
def seconds(B, use_cache):
    started = time.process_time()
    tokens = generate(gpt, prompts[:B], max_new_tokens=256, temperature=0, use_cache=use_cache)
    return time.process_time() - started, tokens


ratios = {}
for B in (1, 8):
    (with_cache, one), (without, other) = (seconds(B, use_cache) for use_cache in (True, False))
    ratios[B] = without / with_cache
    print(f"B = {B:2}: {256 * B / with_cache:6.0f} tokens a second with, {256 * B / without:5.0f} without:", end=" ")
    print(f"{ratios[B]:.1f} times faster")
    prove(f"greedy texts are the same with and without the cache, {B} at once", torch.equal(one, other))

# %% id="cache-speed-proof"
prove("the cache is faster, and more so for many texts at once", ratios[8] > ratios[1] > 1.2)

# %% [markdown] id="cache-bytes-question"
# The price is memory: **2 · layers · G · E** numbers for each token of each text, G the heads of keys and values.
#
# > **Predict.** The GPT has 2 layers, 4 heads of width 16, float32. How many characters does it take until the cache of
# > 16 texts is larger than the model?

# %% id="cache-bytes"
weights_bytes = sum(p.numel() * 4 for p in gpt.parameters())
measured, lengths = [], (16, 32, 64, 128)
with torch.no_grad():
    for length in lengths:
        cache = gpt.new_cache(capacity=length)
        gpt(prompts[:16].repeat(1, 8)[:, :length], cache=cache)
        measured.append(cache.n_bytes)
a_token = 2 * 2 * 4 * 16 * 4  # 2 · layers · G · E numbers of 4 bytes
by_formula = [16 * length * a_token for length in lengths]
prove("the caches of 16 texts take 2 · layers · G · E · 4 bytes a token, at four lengths", measured == by_formula)
crossing = weights_bytes / (16 * a_token)
print(f"model {weights_bytes:,} bytes; 16 texts of {math.ceil(crossing)} characters cache as much")

# %% id="cache-bytes-figure"
fig, ax = plt.subplots(figsize=(5.4, 2.6))
line = torch.linspace(0, 128, 2)
for B, color in ((1, palette.query), (4, palette.value), (16, palette.key)):
    ax.plot(line, B * line * 1024 / 2**20, color=color)
    ax.text(131, B * 128 * 1024 / 2**20, f"{B} text{'s' * (B > 1)}", va="center", fontsize=8.5, color=color)
ax.plot(lengths, [n / 2**20 for n in measured], "o", color=palette.key)
ax.axhline(weights_bytes / 2**20, color=palette.residual, linestyle="--", linewidth=1)
ax.text(62, weights_bytes / 2**20 + 0.04, "weights of the model", fontsize=8.5, color=palette.residual)
ax.set(xlabel="characters in the cache", ylabel="MiB", xlim=(0, 150), ylim=(0, 2.2))
show(
    fig,
    alt="Bytes of the cache against its length: straight lines for 1, 4 and 16 texts. Measured points lie on the line "
    "of 16 texts, which crosses the weights of the model before its end.",
    caption="The cache grows with length and with the number of texts, the weights do not. Served to many, the cache "
    "is what fills a machine.",
)

# %% [markdown] id="speculative"
# ## 10 Speculative decoding, shortly
#
# One pass over five tokens costs hardly more than one over a single token, as long as reading the weights is what takes
# the time. So let a cheap **draft** guess a few tokens and let the model check them in one pass. A guess x, drawn from
# the draft's q, is kept with probability min(1, p(x) / q(x)); a refused one is replaced by a draw from max(0, p - q),
# normalised. The result is distributed as p, whatever q is:

# %% id="speculative-exact"
p, q = Sampling().probabilities(torch.randn(2, 100, generator=torch.Generator().manual_seed(0)).double())
kept = q * (p / q).clamp(max=1)  # drawn from q, and kept
rest = (p - q).clamp(min=0)
result = kept + (1 - kept.sum()) * rest / rest.sum()
prove("guess, check and replace give exactly the model's distribution", torch.allclose(result, p, atol=1e-6))


# %% id="speculative-run" tags=["atol:0.06"]
followers = (1.0 + torch.bincount(V * training[:-1] + training[1:], minlength=V * V).view(V, V)).log()  # (V, V)


def bigram_draft(tokens):
    return followers[tokens]  # (B, T) -> (B, T, V): a model without any layer


shares, same = [], []
for row in prompts[:8]:
    plain = generate(gpt, row[None], max_new_tokens=60, temperature=0)
    found = speculative_generate(gpt, bigram_draft, row[None], max_new_tokens=60, n_guesses=4, temperature=0)
    same.append(torch.equal(found.tokens, plain))
    shares.append((found.accepted / found.guessed, 60 / found.passes))
kept, tokens_a_pass = (sum(part) / len(part) for part in zip(*shares))
print(f"guesses kept {kept:.2f}, tokens for each pass of the GPT {tokens_a_pass:.2f}")
prove("greedy speculative decoding writes the same tokens as the GPT alone", all(same))
prove("with a table of followers as draft, the GPT runs at most two thirds as often", tokens_a_pass > 1.5)

# %% [markdown] id="museum"
# ## 11 Bug museum
#
# Real bugs of decoders. None raises an error. For each: read, predict which **law** notices, run.
#
# **Exhibit 1.** A cache, and torch's own flag for the mask. *One new token, four cached ones: what does it see?*


# %% id="museum-flag" tags=["tol:0.02"]
def attend_once(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def exhibit1(new, cache):
    cache = new if cache is None else torch.cat([cache, new], dim=1)  # keys and values are x itself here
    return F.scaled_dot_product_attention(new, cache, cache, is_causal=True), cache


def repaired1(new, cache):
    cache = new if cache is None else torch.cat([cache, new], dim=1)
    mask = masks.causal_mask(new.size(1), cache.size(1))  # new: the last query sees every key
    return F.scaled_dot_product_attention(new, cache, cache, attn_mask=mask), cache


x = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(0))
found = complaint(testing.assert_cache_consistent, attend_once, exhibit1, x)
print(found)
prove("museum 1: is_causal, aligned top-left, with a cache is caught by assert_cache_consistent", found)
law = complaint(testing.assert_cache_consistent, attend_once, repaired1, x)
prove("museum 1: a mask aligned bottom-right obeys the law", not law)

# %% [markdown] id="museum-position-question"
# The flag aligns the mask at the first key: the new token saw that one alone.
#
# **Exhibit 2.** Each call numbers its tokens from 0. *With prompts of one piece and no cache all tests pass.*


# %% id="museum-position" tags=["tol:0.02"]
def exhibit2(new, cache):
    cache = small.new_cache() if cache is None else cache
    return small(new, cache=cache, positions=torch.arange(new.size(1))), cache


def repaired2(new, cache):
    cache = small.new_cache() if cache is None else cache
    return small(new, cache=cache, positions=cache.length + torch.arange(new.size(1))), cache  # new


tokens = torch.randint(17, (2, 9), generator=torch.Generator().manual_seed(0))
found = complaint(testing.assert_cache_consistent, small, exhibit2, tokens)
print(found)
prove("museum 2: every cached token at position 0 is caught by assert_cache_consistent", found)
law = complaint(testing.assert_cache_consistent, small, repaired2, tokens)
prove("museum 2: positions after the cache obey the law", not law)

# %% [markdown] id="museum-padding-question"
# **Exhibit 3.** Prompts of different lengths are padded on the left, so that all end in the same column. The padding is
# masked. *A prompt alone and in a batch: the same continuation?*


# %% id="museum-padding" tags=["tol:0.02"]
def exhibit3(tokens, real):
    return small(tokens, mask=real[:, None, None])  # (B, T) -> (B, 1, 1, S)


def repaired3(tokens, real):
    places = (real.cumsum(dim=1) - 1).clamp(min=0)  # new: each row counts its own real tokens
    return small(tokens, mask=real[:, None, None], positions=places)


found = complaint(testing.assert_padding_invariant, exhibit3, tokens, side="left", module=small, vocab_size=17)
print(found)
prove("museum 3: left padding without its own positions is caught by assert_padding_invariant", found)
law = complaint(testing.assert_padding_invariant, repaired3, tokens, side="left", module=small, vocab_size=17)
prove("museum 3: positions that count real tokens obey the law", not law)
batch, real = pad_left([[3, 5, 7], [4, 2, 9, 11, 6, 8]], pad_id=0)
together = generate(small, batch, prompt_mask=real, max_new_tokens=8, temperature=0)[0, 6:]
alone = generate(small, torch.tensor([[3, 5, 7]]), max_new_tokens=8, temperature=0)[0, 3:]
prove("museum 3: the library writes for a padded prompt what it writes for it alone", torch.equal(together, alone))

# %% [markdown] id="museum-training-question"
# **Exhibit 4.** "When it writes there is no future to hide, so the mask is needed in training only." *Think of the
# prompt, and of all layers but the first.*


# %% id="museum-training" tags=["tol:0.02"]
class Exhibit4(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = MultiHeadAttention(6, 2), MultiHeadAttention(6, 2)

    def forward(self, x):
        x = x + self.first(x, causal=self.training)
        return x + self.second(x, causal=self.training)


torch.manual_seed(0)
found = complaint(testing.assert_causal, Exhibit4(), x)
print(found)
prove("museum 4: causal only while training is caught by assert_causal, which runs both modes", found)

# %% [markdown] id="museum-shift-question"
# The keys of the first layer are made from each token alone, so they are still right. Its *outputs* hold the future of
# the prompt, and from them the second layer makes its keys:

# %% id="museum-training-keys" tags=["tol:0.02"]
torch.manual_seed(0)
broken, later = Exhibit4().eval(), x.clone()
later[:, 5] += 1.0  # change the sixth token
with torch.no_grad():
    for number, layer in enumerate((broken.first, broken.second), start=1):
        inputs = [x, later] if number == 1 else [t + broken.first(t) for t in (x, later)]
        keys = [layer.key(t) for t in inputs]  # (B, T, D)
        moved = (keys[1] - keys[0])[:, :5].abs().max().item()
        print(f"layer {number}: the keys of the first five tokens move by up to {moved:.3f}")
        says = "have no future in them" if number == 1 else "have"
        prove(f"museum 4: the keys of layer {number} {says}", (moved > 0.01) == (number == 2))

# %% [markdown] id="museum-shift-exhibit"
# So the model writes from states that it never met in training.
#
# **Exhibit 5.** The targets go in unshifted. The loss falls beautifully. *Which change of a target must not move which
# prediction?*


# %% id="museum-shift" tags=["tol:0.02"]
def exhibit5(targets):
    return small(targets)  # prediction t from targets 0 to t


def repaired5(targets):
    return small(shift_right(targets, 1))  # new: prediction t from targets 0 to t - 1


def blind_to_its_answer(predict):
    """The law: move predictions one place back; then changing target t may move nothing before t."""
    back = lambda targets: predict(targets).roll(-1, dims=1)  # noqa: E731
    return complaint(testing.assert_causal, back, tokens, sees_itself=False, module=small, vocab_size=17)


found = blind_to_its_answer(exhibit5)
print(found)
prove("museum 5: unshifted targets are caught by the causal law on predictions", found)
prove("museum 5: shifted targets obey it", not blind_to_its_answer(repaired5))

# %% [markdown] id="end"
# ## 12 What you have
#
# ### What was proved

# %% id="proved-table"
for number, sentence in enumerate(proved, start=1):
    print(f"{number:3}  {sentence}")

# %% [markdown] id="card"
# ### The formulas on one card
#
# | what | formula | section |
# |---|---|---|
# | chain rule | log p(text) = Σ log p(token t given those before) | 3 |
# | causal mask | i sees j if j ≤ i; with a cache, key j ≤ i + (S - T) | 2, 11 |
# | teacher forcing | read start, y₀ … y_{T-2}; predict y₀ … y_{T-1} | 3 |
# | **decoder layer** | **x + self(x), then x + cross(x, context), then x + ff(x), each with its norm** | 4 |
# | temperature | softmax(logits / τ) | 8 |
# | top-p | the fewest tokens, most likely first, whose probabilities reach p | 8 |
# | beam score | log p(text) / length^α | 8.2 |
# | positions without a cache | T(T + 1)/2 for T tokens | 9 |
# | cache | 2 · layers · G · E · tokens · texts · bytes of a number | 9 |
# | speculative | keep x with probability min(1, p(x)/q(x)), else draw from max(0, p - q) | 10 |

# %% [markdown] id="self-check"
# ### Check yourself
#
# Answer in a sentence, then open.
#
# <details><summary>1. What makes generation possible, structurally?</summary>
#
# Position t predicts token t + 1 and reads nothing later, so what was computed stays true when the text grows (1, 2).
#
# </details>
#
# <details><summary>2. Why can training be parallel when writing cannot?</summary>
#
# In training the whole text is known, and the mask gives each position exactly its own prefix. When writing, the next
# input is not known before the last prediction (3).
#
# </details>
#
# <details><summary>3. Where do queries, keys and values of the cross-attention come from?</summary>
#
# Queries from the target, keys and values from the encoder's output (4).
#
# </details>
#
# <details><summary>4. Your loss is far below the best published. What do you check first?</summary>
#
# Whether a prediction can see its answer: mask off by one, or targets unshifted. Train on noise (2.2, exhibit 5).
#
# </details>
#
# <details><summary>5. Does the model return probabilities? Is the most probable token its prediction?</summary>
#
# It returns logits; their softmax is the prediction. The most probable token is one way to choose (5, 8).
#
# </details>
#
# <details><summary>6. When is beam search the right tool?</summary>
#
# When one answer is right, as in translation. In open text it finds probable and repetitive texts (8.2).
#
# </details>
#
# <details><summary>7. What is in the cache, and why may it be kept?</summary>
#
# Keys and values of every layer. Under a causal mask they depend on earlier tokens alone (9).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# All parts are built. Chapter 6 trains them in earnest: tokenizers, batches, schedules, and a real translation task
# from raw strings to exact match. Chapter 7 shows the decoder of this chapter under the names GPT-2 and Llama.
#
# ### Sources
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: section 3.1 and figure 1 (the decoder), 3.4
#   (tables), 6.1 (beam of 4, α = 0.6 in the formula of Wu et al.).
# - Radford et al. 2018, 2019 (GPT, GPT-2): the decoder alone.
# - Bengio et al. 2015, *Scheduled Sampling*, arXiv:1506.03099: section 1, the gap between training and writing.
# - Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2020, *The Curious Case of Neural Text Degeneration*,
#   arXiv:1904.09751 (top-p; section 4, probable text is not human text); Nguyen et al. 2024, arXiv:2407.01082 (min-p);
#   Keskar et al. 2019, arXiv:1909.05858, section 4.1 (repetition penalty).
# - Wu et al. 2016, arXiv:1609.08144, section 7 (beam search; its length penalty ((5 + n) / 6)^α).
# - Orders of samplers: `transformers`, `GenerationMixin`; vLLM, `vllm/v1/sample/sampler.py`; llama.cpp, the default of
#   `--samplers`, which ends with temperature.
# - Shazeer 2019, arXiv:1911.02150 (the cache as what limits decoding); Leviathan et al. 2023, arXiv:2211.17192, and
#   Chen et al. 2023, arXiv:2302.01318 (speculative decoding).
