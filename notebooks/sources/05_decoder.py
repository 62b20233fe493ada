# %% [markdown] id="title"
# # 5 The decoder
#
# A decoder writes. Before this chapter is half over, a GPT of your own will write, too. You program its forward pass, train
# it, make it faster, and let it continue a prompt that you type. In the second half you write the decoder layer of an
# encoder–decoder, which learns to write words backwards.
#
# You need chapters [1](01_attention.ipynb) to [4](04_encoder.ipynb). With its exercises the chapter takes about {minutes}
# minutes; four good places to stop are marked.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import functools
import math
import random
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import decoder as library
from course_lib import generation, masks, testing
from course_lib.attention import SelfAttention, record_weights
from course_lib.config import TransformerConfig
from course_lib.generation import Sampling
from course_lib.testing import complaint, prove
from course_lib.transformer import LanguageModel, Transformer
from coursework import exercises as ex
from coursework.corpora import noise_floor, noise_tokens, reference_text
from coursework.explorers import DecodingExplorer, SamplingExplorer
from coursework.pictures import drawings, live, palette, show
from coursework.pictures.plots import chapter_05 as plots
from coursework.pictures.plots import common
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="loop"
# ## 1 One token at a time
#
# Ask a chat model for a story, and the words appear one after the other. Nearly every chat model answers only one
# question, again and again: *what comes next?*
#
# We begin with a very simple model. It has read one sentence, and noted for each word which words came after it. To
# write, it draws one of those noted for the last word.

# %% id="first-look"
text = "the cat saw the dog and the dog saw the bird and the bird saw the cat and so on"
followers = {}
for word, follower in pairwise(text.split()):
    followers.setdefault(word, []).append(follower)

draw, written = random.Random(1), ["the"]
while len(written) < 14 and written[-1] in followers:
    written.append(draw.choice(followers[written[-1]]))
print(followers["the"])
print(" ".join(written))

# %% [markdown] id="what-just-happened"
# The first printed line is what the model noted for *the*. The second is the text that it wrote. Each new word took four
# steps:
#
# 1. Take the **tokens** so far. Here a token is a word; later it is a letter.
# 2. Give them to the model. Our model looks at the last one only.
# 3. The model says how probable *each* token of the vocabulary is as the next one.
# 4. **Choose** one token, append it to the text, and begin again.

# %% id="loop-drawn" tags=["hide-input"]
# Drawing: one turn of the loop of writing
drawings.choose_and_append(["the", "cat"], ["sat", "ran", "is"], [0.5, 0.3, 0.2], 1).show()

# %% [markdown] id="loop-says"
# The choice is made outside the model. Here it falls on *ran*, although *sat* is more probable.
#
# A model that reads its own output like this is called **autoregressive**. Always choosing the most probable token is
# called **greedy**. Here is the greedy loop for a Transformer. Its `model` takes B texts of T tokens, (B, T), and returns
# V numbers at each position, one for each token of the vocabulary: (B, T, V). They are called **logits**; a softmax
# outside the model turns them into probabilities. The logits at a position are about the token *after* it, so we need
# those at the last position.


# %% id="greedy-loop"
@torch.no_grad()
def write_greedily(model, tokens, n_new):
    for _ in range(n_new):
        logits = model(tokens)[:, -1]  # at the last position: (B, V)
        new = logits.argmax(dim=-1, keepdim=True)  # (B, 1)
        tokens = torch.cat([tokens, new], dim=1)  # (B, T) -> (B, T + 1)
    return tokens


# %% [markdown] id="structure"
# ## 2 Shift right, and do not look ahead
#
# How do we train such a model? Take a text, *the cat sat .*, and let the model predict each token from those before it.
# The tokens to predict are the **targets**.
#
# What does it read? Before the first word there is nothing, so the model gets a special token, ⟨start⟩. Before
# *cat* it may read ⟨start⟩ *the*, and before *sat* it may read ⟨start⟩ *the cat*. So the
# model reads the targets, moved one position to the right, with ⟨start⟩ in front. This is called **shift right**.
#
# But position 1 reads *the* and has to predict *cat*, and *cat* stands in the same row, one position further on. If
# position 1 could look there, it would copy the answer and learn nothing. The **causal mask** prevents that: a position
# may look at itself and at earlier positions only.

# %% id="shift-drawn" tags=["hide-input"]
# Drawing: shift right and the causal mask as one picture
drawings.shift_and_mask(["the", "cat", "sat", "."]).show()

# %% exercise="shift_right"


# %% [markdown] id="causal-mask-text"
# Position i may look at position j if j ≤ i. So the mask has True in its lower triangle, and `tril` makes it.


# %% id="causal-mask"
def causal_mask(T):  # (T, T), for all texts and heads
    return torch.ones(T, T, dtype=torch.bool).tril()


mask = causal_mask(5)
print(mask.dtype)
print(mask.int())
print("tokens that each position sees:", mask.sum(dim=-1).tolist())

# %% [markdown] id="scores-text"
# Forbidden **scores** become minus infinity before the softmax, and since exp(−∞) = 0, the forbidden **weights** are
# exactly zero. The others still sum to one.

# %% id="greedy-library" tags=["hide-input"]
# Check: the loop, the mask, and that in a small model no output moves when a later token changes
torch.manual_seed(0)
small = LanguageModel(
    TransformerConfig(vocab_size=17, d_model=24, n_heads=2, n_decoder_layers=2, dropout=0.0, norm_place="pre")
).eval()
prompt = torch.tensor([[3, 5, 7]])  # (B, T)
by_loop = write_greedily(small, prompt, 8)
by_library = generation.generate(small, prompt, max_new_tokens=8, temperature=0)
prove("the loop and the library's generate write the same greedy tokens", torch.equal(by_loop, by_library))
logits = small(prompt)[0, -1]
prove("logits are no probabilities: some are negative", logits.min() < 0)
prove("after a softmax they sum to one", abs(logits.softmax(-1).sum() - 1) < 1e-5)
x = torch.randn(8, 6)  # (T, d_model)
scores = (x @ x.T / math.sqrt(6)).masked_fill(~masks.causal_mask(8), -math.inf)  # (T, T)
weights = scores.softmax(dim=-1)
prove("forbidden scores are minus infinity, forbidden weights exactly zero", (weights.triu(1) == 0).all())
prove("the weights of each row still sum to one", torch.allclose(weights.sum(-1), torch.ones(8)))
by_rule = torch.tensor([[j <= i for j in range(5)] for i in range(5)])
prove("position i sees position j exactly when j is not later", torch.equal(by_rule, mask))
prove("the library's mask is the same", torch.equal(masks.causal_mask(5), by_rule))
prove("the mask broadcasts to texts and heads", mask.expand(2, 3, 5, 5).shape == (2, 3, 5, 5))
law = complaint(testing.assert_causal, small, torch.randint(17, (2, 20)), vocab_size=17)
prove("no output moves when a later token changes", not law)

# %% [markdown] id="leak"
# ### 2.1 What a leak looks like
#
# Suppose your mask is off by one, so that each position also sees the next one. No error is raised. How would you notice?
#
# The loss can tell. We train on **noise**: 14 symbols in a row, each drawn at random from 11. The model reads the
# first 13, and at each of them it predicts the symbol that comes next. Nobody can predict noise. The best guess gives each
# symbol the probability 1/11, and its loss is −ln(1/11) = 2.40.
#
# **Predict.** One model gets the right mask, and another gets the mask that is off by one. Roughly what will their losses be?

# %% id="predict-leak"
ex.predict("loss_of_the_leak", "")


# %% id="leak-measured" tags=["hide-input", "atol:0.3"]
# Train: one head on noise with each mask, then show both losses by position
class NextToken(nn.Module):
    """Predicts the next of 11 symbols with one masked head."""

    def __init__(self, mask, width=32):
        super().__init__()
        self.token, self.position = nn.Embedding(11, width), nn.Embedding(13, width)
        self.attention, self.answer, self.mask = SelfAttention(width), nn.Linear(width, 11), mask

    def forward(self, tokens):
        return self.answer(self.attention(self.token(tokens) + self.position.weight, mask=self.mask))


def losses_on_noise(mask, steps=100):
    torch.manual_seed(0)
    model, generator = NextToken(mask), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps + 1):
        tokens = noise_tokens(64 if step < steps else 1000, 14, 11, generator=generator)
        with record_weights(model) as maps:
            logits = model(tokens[:, :-1])  # (B, T, V)
        each = F.cross_entropy(logits.mT, tokens[:, 1:], reduction="none")  # (B, T)
        if step < steps:
            optimizer.zero_grad()
            each.mean().backward()
            optimizer.step()
    last, (weights,) = logits[:, -1].detach().softmax(-1), maps.values()  # (B, V) at the last position
    often = F.one_hot(tokens[:, :-1], 11).sum(1)  # (B, V): how often each symbol was read
    most_read = (often.gather(1, last.argmax(-1, keepdim=True)).squeeze(1) == often.amax(-1)).float().mean().item()
    return each.detach().mean(0), (last.amax(-1).mean().item(), most_read, weights.amax(-1).mean(0))


by_position, favourites = {}, {}
for name, mask in (
    ("right mask", masks.causal_mask(13)),
    ("off by one", torch.ones(13, 13, dtype=torch.bool).tril(1)),
):
    by_position[name], favourites[name] = losses_on_noise(mask)
    print(f"{name}: loss {by_position[name].mean():.2f}")
favourite, most_read, largest_weights = favourites["off by one"]
earlier, at_the_end = largest_weights[:-1].mean(), largest_weights[-1]
print(f"off by one, the largest weight on average: {earlier:.2f} at positions 0 to 11, {at_the_end:.2f} at position 12")
axes = {"xlabel": "position", "ylabel": "loss", "ylim": (-0.1, 2.95), "levels": {"": noise_floor(11)}}
fig = common.curves(range(13), by_position, colours=(palette.query, palette.output), names="center left", **axes)
fig.axes[0].text(5.5, noise_floor(11) + 0.1, "the best possible: ln 11 = 2.40", ha="center", va="bottom", fontsize=8.5)
show(
    fig,
    alt="Loss at each of 13 positions. With the right mask it is about 2.40 everywhere, at the dashed line of the best "
    "possible loss, ln 11. With the mask off by one it is "
    "close to zero at positions 0 to 11 and above the best possible loss at position 12.",
    caption="With the mask off by one, positions 0 to 11 read the answer off. Position 12 is the last that is read, so it has to guess.",
)
last, right = by_position["off by one"][-1].item(), by_position["right mask"].mean()
record = claim("leak_detector")
losses_of = {arm: [record.values(arm, "loss", rate) for rate in record.rates] for arm in ("right", "off by one")}
prove("in ten trainings the leak is far below the floor", max(map(max, losses_of["off by one"])) < 0.25)
prove("and the right mask at the floor", all(abs(one - 2.4) < 0.006 for some in losses_of["right"] for one in some))
prove("off by one, the last position loses more than an even guess", last > noise_floor(11) + 0.1)
prove("off by one, the last position prefers a symbol by far", favourite > 0.18)
prove("mostly the one that it has read most often", most_read > 0.6)
prove("because it looks at all 13 positions about evenly", at_the_end < 0.25 and earlier > 0.95)
prove("the right mask stays at the floor", abs(right - noise_floor(11)) < 0.03)
prove("off by one, only the last position still has to guess", by_position["off by one"][:-1].max() < 0.5 < last)

# %% [markdown] id="leak-why"
# That is how you notice a leak: **a loss that is too good is a bug report**. Twelve positions copy the answer and have
# almost no loss. But position 12 has no next position to look at. The key that it has learned to look for is missing,
# so it spreads its attention over all 13 (largest weight 0.15) and mostly bets on the symbol read most often. In noise
# a bet costs more than an even guess: about 2.7 instead of 2.40. Averaged over 13 positions, that is nearly the whole
# loss.
#
# <details><summary>Evidence: ten trainings with each mask, and another way to notice a leak</summary>
#
# Five seeds at each of two learning rates, 0.003 and 0.01: with the right mask the loss was always 2.40, with the mask
# off by one 0.21 to 0.22. To measure it again: `python benchmarks/claims.py leak_detector`.
#
# Without any training, you can change a token and watch the outputs *before* it. With the right mask they do not move
# at all. `assert_causal` in `course_lib.testing` tests this for any model.
#
# </details>

# %% [markdown] id="teacher"
# ## 3 Teacher forcing
#
# To write 13 tokens, the loop of section 1 needs 13 passes through the model. But in training the text is already known.
# The model reads the *true* tokens, moved right by one, even where it would have written something else, and it predicts
# all targets in **one** pass. It is like a pupil whose teacher says the right word after each answer, hence the name
# **teacher forcing**.
#
# Does one pass really predict what the loop would predict after the same tokens? Yes: the causal mask lets each position
# see exactly what the loop would have seen. We test it with `small`, a random model from a folded cell of section 2.
# `prove` stays silent if it is so:

# %% id="prefix"
targets = torch.randint(2, 17, (3, 13))  # three texts; ids 0 and 1 are reserved
read = shift_right(targets, 1)  # id 1 is ⟨start⟩, id 0 will be padding
with torch.no_grad():
    one_pass = small(read)  # (B, T, V)
    prefixes = [small(read[:, : t + 1])[:, -1] for t in range(13)]  # 13 passes
gap = (one_pass - torch.stack(prefixes, dim=1)).abs().max()
prove("one pass predicts the same as 13 passes over prefixes", gap < 1e-5)

# %% [markdown] id="prefix-says"
# So training takes one pass, but writing takes T passes, one after the other. That is why writing is slow. And when
# it writes, the model reads its own tokens (section 8).
#
# <details><summary>Why may we add up the losses of single tokens?</summary>
#
# The probability of a whole text is the product of the probabilities of its tokens, each given those before it. The
# logarithm turns this product into a sum. So a small loss per token means a large probability of the text.
#
# </details>
#
# **A good place to stop:** you know how a decoder is trained, and you have written its shift.

# %% [markdown] id="gpt-intro"
# ## 4 Your own GPT
#
# The simplest writing Transformer continues *one* text: a story, or a chat. It is called a **GPT**, or
# *decoder-only*. Its layers are those of an encoder under the causal mask, and a linear map at the top makes logits.

# %% id="gpt-drawn" tags=["hide-input"]
# Drawing: a GPT
drawings.gpt_stack().show()

# %% [markdown] id="gpt"
# ### 4.1 Remember keys and values
#
# To write the thousandth token, the loop of section 1 reads all 999 tokens before it. One turn earlier it read 998 of
# them. So it computes nearly everything again.

# %% [markdown] id="cache-asymmetry"
# What is needed from the old tokens? Take the newest position, *t*. In one layer, its attention output is
#
# $$o_t = \sum_{s \le t} w_{ts} \, v_s, \qquad w_{ts} = \mathrm{softmax}\left(\frac{q_t \cdot k_s}{\sqrt{E}}\right)$$
#
# Here $q_t$ is its own query, and $k_s$ and $v_s$ are the keys and values of all positions so far. The softmax runs over
# all s ≤ t. E is the width of the head, and D that of the model. So all we need from the old tokens is their keys
# and values.
#
# But could a new token change them? No, thanks to the causal mask. In the first layer, the key of the second token is made of
# that token alone. What its position hands on to the second layer is made of the first two tokens only, and so on. So
# **keys and values of earlier tokens never change**.
#
# We keep them in the **key–value cache**. At each step the model reads *only the new token*, appends its key and
# value to the cache, and lets its query look at all of it.

# %% id="cache-drawn" tags=["hide-input"]
# Drawing: the cache of one layer at three steps
drawings.cache_steps().show()

# %% [markdown] id="cache-mask-text"
# If P past tokens are in the cache and T new ones come, there are T queries and P + T keys. The first new token may see all
# P past ones and itself, and the second sees one more. So the triangle of the mask moves to the right by P: `tril(P)`. Here
# it is for P = 5 and T = 2.

# %% id="moved-triangle"
print(torch.ones(2, 5 + 2).tril(5).int())  # two queries, seven keys

# %% exercise="kv_cache_step"


# %% [markdown] id="cache-price"
# To write 128 tokens after a prompt of one, the loop with the cache sends 128 positions through the model instead of
# 1 + 2 + … + 128 = 8,256. The price is memory. In two layers of width 64, each token leaves two keys and two values,
# each of 64 numbers for all heads together: 256 numbers.

# %% [markdown] id="gpt-parts-text"
# ### 4.2 The model
#
# A folded cell holds the parts of the model from earlier chapters. Two things are new in its attention. Each key is
# rotated by its position once, before it is cached. And the cache is a dictionary, empty at first. Then `cache["k"]` holds
# all keys so far and `cache["v"]` holds all values, of all H heads.

# %% id="gpt-parts" tags=["hide-input"]
# Parts of earlier chapters: heads (2), rotary positions (3), feed-forward and layer (4); new is the cache
split_heads, merge_heads, rotate = ex.split_heads.part(), ex.merge_heads.part(), ex.apply_rotary.part()


class Attention(nn.Module):
    """x (B, T, D) asks, context (B, S, D) answers -> (B, T, D); it keeps its last weights."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        maps = [nn.Linear(d_model, d_model) for _ in range(4)]
        self.query, self.key, self.value, self.output = maps

    def forward(self, x, context, mask, positions=None, cache=None):
        q, k, v = self.query(x), self.key(context), self.value(context)
        q, k, v = (split_heads(each, self.n_heads) for each in (q, k, v))  # (B, H, T, E)
        if positions is not None:
            q, k = rotate(q, positions), rotate(k, positions)
        if cache:  # not None, and not empty
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        if cache is not None:
            cache["k"], cache["v"] = k, v
        scores = q @ k.mT / math.sqrt(q.size(-1))  # (B, H, T, P + S)
        self.weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        return self.output(merge_heads(self.weights @ v))


def feed_forward(d_model):
    return nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))


class Layer(nn.Module):
    """Attention of a text to itself, and feed-forward, both pre-norm: (B, T, D) -> (B, T, D)."""

    def __init__(self, d_model, n_heads, dropout=0.0):
        super().__init__()
        self.self_attention, self.feed_forward = Attention(d_model, n_heads), feed_forward(d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, positions, mask, cache=None):
        y = self.norm1(x)
        x = x + self.dropout(self.self_attention(y, y, mask, positions, cache))
        return x + self.dropout(self.feed_forward(self.norm2(x)))


# %% [markdown] id="gpt-model-text"
# Here is one such layer, with 4 heads of width 16. It reads three texts of five tokens, and then two more tokens of
# each:

# %% id="gpt-one-layer"
layer, cache = Layer(d_model=64, n_heads=4), {}
for P, T in ((0, 5), (5, 2)):  # P tokens are in the cache, T are new
    sees = torch.ones(T, P + T, dtype=torch.bool).tril(P)
    y = layer(torch.randn(3, T, 64), torch.arange(P, P + T), sees, cache)
    print(f"P = {P}, mask {tuple(sees.shape)}: returns {tuple(y.shape)},", end=" ")
    print(f"cache['k'] is now {tuple(cache['k'].shape)}")

# %% [markdown] id="gpt-shapes-text"
# The third axis of `cache["k"]` tells how many tokens were read. The mask is the `tril(P)` of your step. All texts,
# heads and layers share it.

# %% exercise="gpt"


# %% [markdown] id="text-idea"
# ### 4.3 Train it on real text
#
# Your GPT runs, but it knows nothing yet. It will learn from the Python language reference. A token is a single character.
# The last tenth is **held out**: the model never trains on it.
#
# <details><summary>Is the held-out part really new?</summary>
#
# The pages of this reference repeat whole paragraphs, so each is kept only once. The last line below counts how much
# still repeats. Otherwise it would be 87 %.
#
# </details>

# %% id="text" tags=["hide-input"]
# Data: 300,000 characters as ids, nine tenths for training; random windows of 128 characters
text = reference_text(each_once=True)[:300_000]
alphabet = sorted(set(text))
number_of = {character: number for number, character in enumerate(alphabet)}
ids = torch.tensor([number_of[character] for character in text])
training, held_out, V, T = ids[:270_000], ids[270_000:], len(alphabet), 128


def to_ids(text):
    return torch.tensor([[number_of[character] for character in text]])  # (1, T)


def to_text(tokens):
    return "".join(alphabet[token] for token in tokens.tolist())


def windows(data, B, generator):
    """Random pieces of text: inputs (B, T) and what follows each character (B, T)."""
    start = torch.randint(len(data) - T - 1, (B, 1), generator=generator)
    piece = data[start + torch.arange(T + 1)]  # (B, T + 1)
    return piece[:, :-1], piece[:, 1:]


def seen_before(text, length=50):
    """Of pieces of the last tenth, the share that stands in the nine tenths before."""
    known = {text[i : i + length] for i in range(270_000 - length)}
    pieces = [text[i : i + length] for i in range(270_000, 300_000 - length, length)]
    return sum(piece in known for piece in pieces) / len(pieces)


print(repr(text[42_745:42_860]))
print(len(text), "characters,", V, "different ones")
print(f"held-out pieces of 50 characters that were seen before: {seen_before(text):.1%}")
prove("with repeated paragraphs it would be 87 %", round(seen_before(reference_text()[:300_000]), 2) == 0.87)

# %% [markdown] id="gpt-question"
# Our model has two layers of width 64. At each step, the training loop in the folded cell draws six random pieces of
# 129 characters. The inputs are all but the last character, and the targets are all but the first. This slicing is the
# shift. The first character is only read, never predicted, so no ⟨start⟩ is needed. Chapter 6 explains the learning
# rate and the optimizer.
#
# Now and then the model continues *The* by 60 characters. It uses the loop of section 1, but draws each character at
# random, according to its probability.


# %% id="gpt-watched" tags=["hide-input", "not-compared:sampled-text"]
# Train: your GPT for 600 steps; now and then note its loss, and let it write; checks against course_lib
def fresh_gpt(vocab_size, d_model=64, n_heads=4, n_layers=2):
    layers = [Layer(d_model, n_heads) for _ in range(n_layers)]
    model = GPT(vocab_size, d_model, layers, dropout=0.0)
    for weight in model.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.05)
    return model


torch.manual_seed(0)
mine, tokens = fresh_gpt(17), torch.randint(17, (3, 23))
caches = [{}, {}]
first, rest = mine(tokens[:, :9], caches), mine(tokens[:, 9:], caches)
gap = (torch.cat([first, rest], dim=1) - mine(tokens)).abs().max()
prove("with the cache the logits are those of one pass without it", gap < 1e-5)
numbers = sum(part[0].numel() for cache in caches for part in cache.values())  # of one text
prove("each of 23 tokens leaves 2 · layers · d_model numbers", numbers == 23 * 2 * 2 * 64)
short = [{}, {}]
mine(tokens[:, :9], short)
for few, many in zip(short, caches, strict=True):  # of each layer
    same = torch.allclose(few["k"], many["k"][:, :, :9], atol=1e-6)
    prove("later tokens do not change the keys of earlier ones", same)


def library_name(name, cross=False):
    """The name in course_lib of a weight of a GPT, or of an encoder-decoder whose decoder has cross-attention."""
    name = name if name.startswith(("encoder.", "decoder.")) else f"decoder.{name}"
    last = "norm3" if cross and name.startswith("decoder.") else "norm2"
    for ours, theirs in (
        ("encoder.embedding", "source_embedding"), ("decoder.embedding", "embedding"), ("decoder.to_logits", "head"),
        ("embedding.weight", "embedding.tokens.weight"), ("coder.norm", "coder.final_norm"),
        ("feed_forward.0", "feed_forward.up"), ("feed_forward.2", "feed_forward.down"),
        ("norm1", "self_attention_residual.norm"), (last, "feed_forward_residual.norm"),
        ("norm2", "cross_attention_residual.norm"),
    ):  # fmt: skip
        name = name.replace(ours, theirs)
    return name


def compare(mine, theirs, rename, *inputs):
    """The largest difference of logits, and of gradients; the library keeps query, key and value maps in one."""
    pairs = mine(*inputs), theirs(*inputs)
    for logits in pairs:
        logits.square().mean().backward()
    of_theirs, gaps = dict(theirs.named_parameters()), []
    for name, value in mine.named_parameters():
        wanted = of_theirs.get(rename(name))
        if wanted is None:
            *path, part, kind = rename(name).split(".")
            fused = of_theirs[".".join([*path, "qkv", kind])].grad.chunk(3)
            gaps.append(value.grad - fused[("query", "key", "value").index(part)])
        else:
            gaps.append(value.grad - wanted.grad)
    return (pairs[0] - pairs[1]).abs().max().item(), max(gap.abs().max().item() for gap in gaps)


shared = {"norm_place": "pre", "activation": "gelu", "scale_embeddings": False, "tie_embeddings": False}
shared |= {"head_bias": True, "dropout": 0.0}
theirs = LanguageModel(
    TransformerConfig(**shared, vocab_size=17, d_model=64, n_heads=4, n_decoder_layers=2, positions="rotary")
)
theirs.load_state_dict({library_name(name): value for name, value in mine.state_dict().items()})
in_logits, in_gradients = compare(mine, theirs, library_name, tokens)
prove("your GPT gives course_lib's logits", in_logits < 1e-4)
prove("and the same gradients for all its weights", in_gradients < 1e-5)


def train_gpt(data, steps=600, peak=6e-3, watch=()):
    torch.manual_seed(0)
    model, generator = fresh_gpt(int(data.max()) + 1), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    for step in range(steps):
        rate = peak * min(1, (step + 1) / 20) * (1 - step / steps)
        optimizer.param_groups[0]["lr"] = rate
        if step in watch:
            report(step, model)
        inputs, targets = windows(data, 6, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def held_out_loss(model):
    inputs, targets = windows(held_out, 60, torch.Generator().manual_seed(9))
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()


@torch.no_grad()
def write_by_chance(model, tokens, n_new, generator):
    for _ in range(n_new):
        chances = model(tokens)[:, -1].softmax(dim=-1)  # (B, V)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return tokens


def report(step, model):
    curve.append((step, held_out_loss(model)))
    if step in (0, 50, 200, 600):
        generator = torch.Generator().manual_seed(1)
        print(f"step {step:3}: {to_text(write_by_chance(model, to_ids('The '), 60, generator)[0])!r}")


curve = []
gpt = train_gpt(training, watch=(0, 25, 50, 100, 200, 300, 400, 500))
report(600, gpt)

# %% [markdown] id="gpt-writes"
# At step 0 your GPT writes random characters. By step 600, most short words are English, and most long words are invented.
#
# **A good place to stop: your GPT writes.** You have programmed it, and it has learned from real text.

# %% [markdown] id="baselines"
# ### 4.4 How good is it?
#
# A loss means little by itself, so we compare it with three simple models. The first gives each of the V characters the
# same probability; its loss is ln V. With the natural logarithm, loss is measured in **nats**. The **unigram** knows
# how frequent each character is. The **bigram** knows how often one character follows another.

# %% exercise="bigram_loss"


# %% id="gpt-curve" tags=["hide-input", "picture:30"]
# Figure: the held-out loss beside the three baselines
counts = torch.bincount(training, minlength=V) + 1.0
baselines = {"even, ln V": math.log(V), "unigram": -(counts / counts.sum()).log()[held_out[1:]].mean().item()}
baselines["bigram"] = bigram_loss(training, held_out, V)
steps, losses = zip(*curve, strict=True)
levels = {f"{name}: {loss:.2f}": loss for name, loss in baselines.items()}
axes = {"xlabel": "step", "ylabel": "held-out loss, nats per character"}
show(
    common.curves(steps, {"": losses}, levels=levels, ylim=(1, 5.2), **axes),
    alt="Held-out loss of the GPT against training steps. It starts a little above ln V, falls below the unigram, then below the "
    "bigram, and ends far below it.",
    caption="Untrained, the model does a little worse than “even”, because it favours some characters for no reason. "
    "Then it passes the baselines one after the other.",
)
record = claim("gpt_and_bigram")
five, control = record.arms
prove("each of five GPTs is more than 0.6 nats below the bigram", record.range(five, "below the bigram")[0] > 0.6)
prove("their losses", [f"{loss:.2f}" for loss in record.range(five, "held-out loss")] == ["1.71", "1.80"])
prove("and the control's", [f"{loss:.2f}" for loss in record.range(control, "held-out loss")] == ["2.44", "2.45"])
prove("your GPT is, too", curve[-1][1] < baselines["bigram"] - 0.6)

# %% [markdown] id="gpt-table-says"
# Your GPT ends far below the bigram. Why? The same GPT, trained to look at the newest character only, came out about as good
# as the bigram. So the advantage comes from looking further back.
#
# <details><summary>Evidence: five trainings of each</summary>
#
# Held-out loss: 1.71 to 1.80 for the GPT, 2.44 to 2.45 for the control, 2.47 for the bigram. To measure it again:
# `python benchmarks/claims.py gpt_and_bigram`.
#
# </details>

# %% [markdown] id="gpt-generate-text"
# ### 4.5 A faster loop
#
# So far, the loop of section 1 has read the whole text again for each new character. With caches, the model reads the
# prompt once, and then one token at a time. A function decides how to choose, for example:


# %% id="most-likely"
def most_likely(logits):  # (B, V) -> (B, 1)
    return logits.argmax(dim=-1, keepdim=True)


# %% exercise="generate"


# %% id="gpt-circles" tags=["hide-input", "not-compared:text-of-a-trained-model"]
# Check: with and without a cache, the same text; then your loop lets the trained GPT write, always the most probable
with_cache = generate(mine, tokens[:, :5], 20, most_likely)
without = write_greedily(mine, tokens[:, :5], 20)
prove("with and without a cache, the same text", torch.equal(with_cache, without))
print("greedy:", repr(to_text(generate(gpt, to_ids("The value of "), 100, most_likely)[0])))

# %% [markdown] id="choosing"
# ## 5 Choosing the next token
#
# Why not always choose the most probable token? You have just seen it: greedy texts can run in circles. So one usually
# **samples**: the next token is drawn at random, according to the probabilities. But one unlikely token can spoil a
# text. Three settings help:
#
# - **Temperature** divides all logits by a number. Below 1, differences grow, and the text becomes more careful. Above
#   1 it becomes bolder. As it approaches 0, sampling becomes greedy.
# - **Top-k** keeps the k most likely tokens and cuts the others.
# - **Top-p** keeps the fewest tokens, the most likely first, whose probabilities sum to p or more. This set is called
#   the **nucleus**. It is small where the model is sure, and large where many tokens are plausible.
#
# **By hand.** After *the cat sat on the*, a model gives five words these logits. The second row is their softmax:

# %% [markdown] id="choosing-by-hand"
# | | mat | floor | roof | moon | soup |
# |---|---|---|---|---|---|
# | logit | 3.0 | 2.3 | 1.8 | 0.9 | 0.5 |
# | probability | 0.50 | 0.25 | 0.15 | 0.06 | 0.04 |
# | temperature 0.5: logits times two | 0.74 | 0.18 | 0.07 | 0.01 | 0.00 |
# | temperature 2: logits halved | 0.35 | 0.24 | 0.19 | 0.12 | 0.10 |
#
# Top-k with k = 3 keeps *mat*, *floor* and *roof*. Top-p with p = 0.7 goes from the left: *mat* alone has 0.50, and
# *mat* and *floor* together have 0.75. So these two are kept, and both are divided by 0.75, their sum.

# %% id="choosing-drawn" tags=["hide-input"]
# Drawing: what top-k and top-p leave of five words; and a check of the table
drawings.cut_and_share(["mat", "floor", "roof", "moon", "soup"], [3.0, 2.3, 1.8, 0.9, 0.5]).show()
five = torch.tensor([[3.0, 2.3, 1.8, 0.9, 0.5]])
for settings, by_hand in (
    ({}, (0.50, 0.25, 0.15, 0.06, 0.04)),
    ({"temperature": 0.5}, (0.74, 0.18, 0.07, 0.01, 0.00)),
    ({"temperature": 2.0}, (0.35, 0.24, 0.19, 0.12, 0.10)),
    ({"top_k": 3}, (0.56, 0.28, 0.17, 0, 0)),
    ({"top_p": 0.7}, (0.67, 0.33, 0, 0, 0)),
):
    gap = (Sampling(**settings).probabilities(five)[0] - torch.tensor(by_hand)).abs().max()
    prove(f"the row of the table for {settings or 'no setting'}", gap < 0.0051)

# %% exercise="top_p_filter"


# %% id="sampler"
def sampler(temperature=1.0, p=1.0, generator=None):  # builds the function choose
    def choose(logits):  # (B, V) -> (B, 1)
        if temperature == 0:
            return most_likely(logits)
        kept = top_p_filter(logits / temperature, p)  # first the temperature
        return torch.multinomial(kept.softmax(dim=-1), 1, generator=generator)

    return choose


# %% [markdown] id="sampling-explorer-question"
# <details><summary>Top-k as code</summary>
#
# Top-k is two lines before the draw: `least = logits.topk(k).values[:, -1:]`, and then `logits.masked_fill(logits <
# least, -math.inf)`.
#
# </details>
#
# **Predict.** Your GPT continues *the valu*, and three beginnings that end with a space: *the value of*, *An* and *x =*.
# After which of these does top-p with p = 0.9 keep few characters, and after which many?

# %% id="predict-nucleus"
ex.predict("small_or_wide_nucleus", "")

# %% id="sampling-explorer" tags=["hide-input", "atol:0.3", "picture:30"]
# Explorer: the next character after four beginnings, and what each setting keeps; and checks of your filter
beginnings = ["the valu", "the value of ", "An ", "x = "]
with torch.no_grad():
    logits = torch.cat([gpt(to_ids(beginning))[:, -1] for beginning in beginnings])  # (N, V)
sizes = (Sampling(top_p=0.9).probabilities(logits) > 0).sum(-1)
each = ", ".join(f"{size} after {beginning!r}" for size, beginning in zip(sizes, beginnings, strict=True))
print(f"top-p 0.9 keeps of {V} characters: {each}")
prove("the nucleus is small after “the valu”, and wide where a word begins", sizes[0] < 8 < sizes[1:3].max())
torch.manual_seed(0)
random_logits = 3 * torch.randn(50, 31)  # (N, V)
for p in (0.3, 0.8, 0.95):
    same = torch.allclose(top_p_filter(random_logits, p).softmax(-1), Sampling(top_p=p).probabilities(random_logits))
    prove(f"your nucleus filter gives the library's distribution, p = {p}", same)
wanted = Sampling(temperature=1.7, top_p=0.8).probabilities(random_logits[:1])[0]
drawn = sampler(1.7, 0.8, torch.Generator().manual_seed(0))(random_logits[:1].expand(20_000, -1)).flatten()
share = torch.bincount(drawn, minlength=31) / 20_000
prove("20,000 draws follow the distribution, and nothing cut is drawn", (share - wanted).abs().max() < 0.015)
SamplingExplorer(
    logits.round(decimals=1),
    alphabet,
    contexts=beginnings,
    selected=1,
    top_p=0.9,
    min_p=None,
    alt="Bars of the probabilities of the next character after “the value of ”: a few letters lead, each with less "
    "than half. Those kept by top-p 0.9 are marked, the long tail is cut.",
    caption="Choose a beginning, and move the settings. Inside a word, the nucleus is usually smaller than where one "
    "begins.",
)

# %% [markdown] id="strategies-says"
# ### 5.1 Your own text
#
# Now let it learn from a text of your own: notes, code, a novel. 50,000 characters are enough.

# %% id="own-text"
my_text = ""  # for example open("my_notes.txt", encoding="utf-8").read()

# %% [markdown] id="live-text"
# The next cell trains on your text, if there is one. Type a prompt and move the controls. Look for repetition at
# temperature 0, and for invented words at 1.5. The darker the square, the more probable its character was, before the
# settings.

# %% id="live" tags=["hide-input", "picture:40"]
# Train on your text, if there is one; controls: a prompt and the settings; and a check of what surprises the model
writer, letters_of_writer = gpt, alphabet
if my_text:
    letters_of_writer = sorted(set(my_text))
    own_ids = torch.tensor([letters_of_writer.index(character) for character in my_text])
    cut = len(own_ids) * 9 // 10
    writer = train_gpt(own_ids[:cut])
    inputs, targets = windows(own_ids[cut:], 60, torch.Generator().manual_seed(9))
    with torch.no_grad():
        own_loss = F.cross_entropy(writer(inputs).flatten(0, 1), targets.flatten()).item()
    to_beat = bigram_loss(own_ids[:cut], own_ids[cut:], len(letters_of_writer))
    print(f"held-out loss on your text: {own_loss:.2f}; a bigram's: {to_beat:.2f}")
else:
    print("my_text is empty: we keep the GPT from above")


def write(prompt, temperature, top_p, seed):
    strange = sorted(set(prompt) - set(letters_of_writer))
    if strange or not prompt:
        raise ValueError(f"prompt: expected characters of the training text, got {''.join(strange)!r}")
    choose = sampler(temperature, top_p, torch.Generator().manual_seed(seed))
    start = torch.tensor([[letters_of_writer.index(character) for character in prompt]])  # (1, T)
    tokens = generate(writer, start, max(1, 144 - len(prompt)), choose)
    with torch.no_grad():
        chances = writer(tokens[:, :-1]).softmax(-1).gather(-1, tokens[:, 1:, None])[0, :, 0]  # (1, T, V) -> (T,)
    written = "".join(letters_of_writer[token] for token in tokens[0].tolist())
    return plots.written_text(written, [0.0, *chances.tolist()], len(prompt))


live(
    write,
    prompt=my_text[:13] or "The value of ",
    temperature=(0.0, 2.0, 0.1),
    top_p=(0.05, 1.0, 0.05),
    seed=(0, 20, 1),
    alt="The prompt, then characters that the model wrote, each on a background as "
    "dark as it was probable: the ends of words are darker than their beginnings.",
    caption=lambda prompt, temperature, top_p, seed: (
        f"Written at temperature {temperature:.1f} with top-p {top_p:.2f}; the prompt is orange. "
        "On average the model is surer inside a word than where one begins."
    ),
)
inputs, targets = windows(held_out, 100, torch.Generator().manual_seed(9))
with torch.no_grad():
    losses = F.cross_entropy(gpt(inputs).mT, targets, reduction="none")  # (B, V, T) -> (B, T)
letter = torch.tensor([character.isalpha() for character in alphabet])
first, inside = (losses[letter[targets] & (letter[inputs] == before)].mean() for before in (False, True))
prove("first letters of words cost over half as much again as later ones", first > 1.5 * inside)

# %% [markdown] id="gpt-end"
# **A good place to stop:** your GPT continues what you type. The forward pass, the loop and the choice of each token are
# yours.

# %% [markdown] id="layer"
# ## 6 The decoder layer
#
# To translate from German into English, a decoder must look at two things: the English words that it has written so
# far, and the German sentence. The encoder of chapter 4 has turned that sentence into one vector for each word, the
# **context**: (B, S, D) for S source tokens. So the decoder's layer has three steps, the **sublayers**:
#
# 1. **Causal self-attention.** What has been written so far? Queries, keys and values all come from the target.
# 2. **Cross-attention.** What is needed now? The *queries* come from the target; the *keys and values* come from the
#    context. There is no causal mask here, because the source is complete; only padding is hidden.
# 3. **Feed-forward.** The small network of chapter 4 works on each position alone.

# %% id="diagram" tags=["hide-input"]
# Drawing: one decoder layer with its residual stream
drawings.decoder_layer_stream().show()

# %% [markdown] id="layer-says"
# The thick grey line is the residual stream. Each sublayer reads a normed copy of it and adds its result. With *x* for the
# stream and *c* for the context:
#
# $$x \leftarrow x + \mathrm{self}(\mathrm{norm}(x)), \qquad x \leftarrow x + \mathrm{cross}(\mathrm{norm}(x), c),
# \qquad x \leftarrow x + \mathrm{ff}(\mathrm{norm}(x))$$

# %% exercise="decoder_block"


# %% [markdown] id="model"
# ## 7 Your own encoder–decoder
#
# The encoder is that of chapter 4. The decoder is built like your GPT, but from your decoder layers. Both add learned
# positions to their tokens, so the attentions get no positions. They get no cache either, because our words are short.
# Sources shorter than the longest are filled up at the end with the token 0, *padding*. The mask `real`, True at real
# tokens, hides it.


# %% id="own-decoder" tags=["hide-input"]
# Drawing: the encoder-decoder with tokens in it; parts: embedding and encoder of chapter 4, a stack of your layers
class Embedding(nn.Module):
    """ids (B, T) -> (B, T, D)"""

    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(max_length, d_model)

    def forward(self, tokens):
        return self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))


class Encoder(nn.Module):
    """ids (B, S), True where a token is real (B, 1, 1, S) -> (B, S, D)"""

    def __init__(self, vocab_size, max_length, d_model=32, n_heads=2, n_layers=2, dropout=0.0):
        super().__init__()
        self.embedding, self.dropout = Embedding(vocab_size, max_length, d_model), nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(d_model, n_heads, dropout) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, source, real):
        x = self.dropout(self.embedding(source))
        for layer in self.layers:
            x = layer(x, None, real)
        return self.norm(x)


def decoder_layer(d_model, n_heads, dropout=0.0):
    attentions = Attention(d_model, n_heads), Attention(d_model, n_heads)
    return DecoderLayer(d_model, *attentions, feed_forward(d_model), dropout)


class Decoder(nn.Module):
    """The target needs no mask of its padding: that stands at the right, where the causal mask hides it."""

    def __init__(self, vocab_size, max_length, d_model=32, n_layers=2, dropout=0.0):
        super().__init__()
        self.embedding = Embedding(vocab_size, max_length, d_model)
        self.dropout = nn.Dropout(dropout)
        layers = [decoder_layer(d_model, 2, dropout) for _ in range(n_layers)]
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(d_model)
        self.to_logits = nn.Linear(d_model, vocab_size)

    def forward(self, read, context, real):  # (B, T), (B, S, D) -> (B, T, V)
        causal = causal_mask(read.size(1)).to(read.device)
        x = self.dropout(self.embedding(read))
        for layer in self.layers:
            x = layer(x, context, causal, real)
        return self.to_logits(self.norm(x))


drawings.encoder_decoder_tokens("cab").show()

# %% [markdown] id="own-model-text"
# For training, `forward` runs both in one pass. For writing they are called apart: the encoder once for a source, the
# decoder again for each new token.


# %% id="own-encoder-decoder"
class EncoderDecoder(nn.Module):
    def __init__(self, vocab_size, max_length, dropout=0.0):
        super().__init__()
        self.encoder = Encoder(vocab_size, max_length, dropout=dropout)
        self.decoder = Decoder(vocab_size, max_length, dropout=dropout)

    def encode(self, source):  # (B, S) -> (B, S, D), and what is real in it
        real = (source != 0)[:, None, None]  # (B, 1, 1, S), False at padding
        return self.encoder(source, real), real

    def forward(self, source, read):  # (B, S) and (B, T) -> logits (B, T, V)
        return self.decoder(read, *self.encode(source))


# %% [markdown] id="reversal"
# ### 7.1 Train it: read, then write backwards
#
# The model reads a word of four to eight random letters, and writes it backwards.

# %% id="reversal-data" tags=["hide-input"]
# Data: words of 4 to 8 letters, and the same backwards; 0 is padding, 1 the start, 2 the stop
START, STOP, letters = 1, 2, "·<.abcdefghij"


def word_batch(B, generator):
    n = torch.randint(4, 9, (B, 1), generator=generator)
    drawn, t = torch.randint(3, 13, (B, 8), generator=generator), torch.arange(9)
    back = drawn.gather(1, (n - 1 - t).clamp(min=0))  # (B, 9)
    target = torch.where(t < n, back, torch.where(t == n, STOP, 0))
    return torch.where(t[:8] < n, drawn, 0), target  # (B, S), (B, T)


def spell(ids):
    return "".join(letters[i] for i in ids if i)


source, target = word_batch(3, torch.Generator().manual_seed(0))
for a, b in zip(source.tolist(), target.tolist(), strict=True):
    print(f"{spell(a):>8} -> {spell(b)}   (the full stop is the stop token)")

# %% [markdown] id="reversal-train-text"
# There are 13 tokens: ten letters, padding, start and stop. Below is teacher forcing in code. `shift_right` makes what the
# decoder reads, and one pass predicts all letters. `ignore_index=0` leaves padding out of the loss.


# %% id="reversal-train"
def train_reversal(steps, seed=0, peak=5e-3):
    torch.manual_seed(seed)
    model = EncoderDecoder(vocab_size=13, max_length=9)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=peak, betas=(0.9, 0.98))
    for step in range(steps):
        rate = peak * min(1, (step + 1) / 30) * (1 - step / steps)  # rises, then falls
        optimizer.param_groups[0]["lr"] = rate
        source, target = word_batch(32, generator)
        logits = model(source, shift_right(target, START))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


# %% [markdown] id="reversal-write-text"
# Here is the loop of section 1 again, now with a source. Like a chat model's answer, a text ends when the model chooses
# ⟨stop⟩; at the latest after nine tokens. In a batch, a text that ends early is filled up with padding until
# all are finished. `source` holds the three words printed above, and `spell` turns ids into letters.


# %% id="reversal-write"
@torch.no_grad()
def write_backwards(model, source):
    context, real = model.encode(source)
    read = torch.full((len(source), 1), START, device=source.device)
    done = torch.zeros_like(read, dtype=torch.bool)  # (B, 1)
    while read.size(1) < 10 and not done.all():  # nine tokens at most
        logits = model.decoder(read, context, real)[:, -1]
        new = most_likely(logits).masked_fill(done, 0)  # 0 is padding
        read, done = torch.cat([read, new], dim=1), done | (new == STOP)
    return read[:, 1:]


trained = train_reversal(300)
for a, b in zip(source, write_backwards(trained, source), strict=True):
    print(f"{spell(a):>8} -> {spell(b)}")

# %% id="reversal-measured" tags=["hide-input", "atol:3"]
# Count: how many of 1000 words, nearly all new, are right in every letter; checks: your layer and model give course_lib's outputs
held_source, held_target = word_batch(1000, torch.Generator().manual_seed(99))
right = (write_backwards(trained, held_source) == held_target) | (held_target == 0)
print(f"right in every letter: {right.all(1).float().mean():.1%} of 1000 words, nearly all new")
prove("over 95 of 100 words are right in every letter", right.all(1).float().mean() > 0.95)
torch.manual_seed(0)
theirs = library.DecoderLayer(TransformerConfig(**shared, d_model=24, n_heads=3, positions="none"))
own = decoder_layer(24, 3)
names = {name: library_name(f"decoder.layers.0.{name}", cross=True)[17:] for name in own.state_dict()}
theirs.load_state_dict({names[name]: value for name, value in own.state_dict().items()})
x, context = torch.randn(2, 7, 24), torch.randn(2, 5, 24)
seen = (torch.arange(5) < torch.tensor([[5], [3]]))[:, None, None]  # (B, 1, 1, S): two source positions are padding
ours = functools.partial(own, causal=causal_mask(7), real=seen)
found = testing.assert_equivalent(ours, functools.partial(theirs, context_mask=seen), x, context)
prove("your decoder layer equals the library's on the same weights, gradients too", max(found) < 1e-4)
layer = library.DecoderLayer(TransformerConfig(d_model=64, n_heads=8, dropout=0.0))
with record_weights(layer) as maps:
    layer(torch.randn(4, 15, 64), torch.randn(4, 20, 64))
own, across = maps["self_attention"], maps["cross_attention"]
prove("the self-attention is causal", own.shape == (4, 8, 15, 15) and (own.triu(1) == 0).all())
prove("the cross-attention may look at all of the source", across.shape == (4, 8, 15, 20) and (across > 0).all())
torch.manual_seed(0)
mine = EncoderDecoder(vocab_size=13, max_length=9)
theirs = Transformer(
    TransformerConfig(
        **shared, vocab_size=13, d_model=32, n_heads=2, n_encoder_layers=2, n_decoder_layers=2, positions="learned",
        max_length=9, pad_id=0,
    )
)  # fmt: skip
with_cross = functools.partial(library_name, cross=True)
theirs.load_state_dict({with_cross(name): value for name, value in mine.state_dict().items()})
new, read = torch.randint(3, 13, (4, 8)), torch.randint(1, 13, (4, 9))
new[1, 5:] = 0
in_logits, in_gradients = compare(mine, theirs, with_cross, new, read)
prove("your model gives course_lib's logits", in_logits < 1e-4)
prove("and the same gradients for all its weights", in_gradients < 1e-5)
in_two = theirs.decode(read, theirs.encode(new), context_mask=masks.padding_mask(new, 0))
prove("the library's encode, then decode, equals its forward", torch.allclose(in_two, theirs(new, read), atol=1e-6))
changed = new.clone()
changed[1, 5:] = 7
differs = not torch.allclose(mine(changed, read)[1], mine(new, read)[1], atol=1e-3)
prove("without the mask the padding would count", differs)

# %% [markdown] id="maps-question"
# ### 7.2 Where it looks
#
# **Predict.** When the model writes the first of eight letters, which source letter would you expect the cross-attention
# to find? And for the last? What shape will the weights draw? In the map, *a (6) → a* means: after the *a* at
# position 6 it writes *a*.

# %% id="predict-cross"
ex.predict("figure_of_the_cross_attention", "")

# %% id="explorer" tags=["hide-input", "picture:30", "atol:0.2"]
# Explorer: the three attentions of the last layer for one word; and the weight on the mirrored letter, over many words
eight = int((held_source != 0).all(1).nonzero()[0])
source, target = held_source[eight : eight + 1], held_target[eight : eight + 1]
read = shift_right(target, START)
long = (held_source != 0).all(1)
with torch.no_grad():
    trained(held_source[long], shift_right(held_target[long], START))
    t = torch.arange(8)
    share = torch.stack(
        [layer.cross_attention.weights[:, :, t, 7 - t].mean((0, 2)) for layer in trained.decoder.layers]
    )
    chance = trained(source, read).softmax(-1).gather(-1, target[..., None])[0, :, 0]
prove("one head finds the mirrored letter with over half of its weight", share.max() > 0.5)
DecodingExplorer(
    trained.encoder.layers[1].self_attention.weights[0],
    trained.decoder.layers[1].self_attention.weights[0],
    trained.decoder.layers[1].cross_attention.weights[0],
    source=list(spell(source[0])),
    read=list(spell(read[0])),
    written=list(spell(target[0])),
    probabilities=chance.clamp(0, 1),
    caption="Use the slider to set how many letters are written, and choose a head. j → d: reads j, writes d; < is "
    "the start. Where a letter occurs twice, its position follows in brackets, counted from 0; in the rows, 0 is "
    "the start. The weights draw a diagonal from the last source letter to the first: to write each letter, the model "
    "looks mostly at the matching letter from the other end.",
)

# %% [markdown] id="free"
# ### 7.3 Which model, and which search?
#
# An **encoder–decoder** such as T5 or Whisper suits a task with two clear sides, such as translation: its encoder may look
# at the source in both directions. Where everything is one text, a GPT is enough. It can translate, too, if the text begins
# with the source.
#
# Greedy choice may miss the text that is most probable *as a whole*, because a word that looks best now can lead to a
# dead end. **Beam search** keeps K texts: at each step it tries every next token after each text, and keeps the K
# best. Each further token lowers the probability of a text, so short texts would win too easily. A **length penalty**
# divides its logarithm, a negative number, by a number that grows with the length. So longer texts lose less. Both are in
# the lab on [choosing tokens](labs/05_choosing.ipynb).
#
# ## 8 Free running: when a letter goes wrong
#
# In training the decoder always read true letters. When it writes, it reads its own, and this is called **free
# running**. What happens if one of them is wrong? To see it, we train a model for only 100 steps.

# %% id="free-example" tags=["hide-input", "not-compared:a-half-trained-model"]
# Example: one word, written after the true letters and after its own
early = train_reversal(100)
with torch.no_grad():
    forced = early(held_source, shift_right(held_target, START)).argmax(-1)
free = write_backwards(early, held_source)
score = (forced == held_target)[:, 2:8].sum(1) - (free == held_target)[:, 2:8].sum(1)
slip = (free[:, 0] == held_target[:, 0]) & (free[:, 1] != held_target[:, 1]) & long
example = int(torch.where(slip, score, -9).argmax())


def row(name, ids, truth):
    marks = [letters[i] if i == j else letters[i].upper() for i, j in zip(ids, truth, strict=True) if j]
    print(f"{name:<42}", " ".join(marks))


wanted = held_target[example].tolist()
print(f"source: {spell(held_source[example])}    (wrong: a capital letter, or a full stop too early; · is padding)\n")
row("wanted", wanted, wanted)
row("each letter after the TRUE ones before it", forced[example].tolist(), wanted)
row("each letter after its OWN ones before it", free[example].tolist(), wanted)
own_letters = spell(free[example])
print(f"{'the same, its tail moved right by one':<42}", " ".join([own_letters[0], " ", *own_letters[1:]]))
later = F.pad((free != held_target).cumsum(1) > 0, (1, -1)) & (held_target > STOP)  # letters after a first mistake
print(
    f"\nin all 1000 words, {(free == held_target)[later].float().mean():.0%} of the letters after a first mistake are right"
)
record = claim("own_letters")
half, full = ([round(100 * one) for one in record.values(arm, "lost at letter 7")] for arm in record.arms)
prove("half trained, own letters cost 14 to 34 points at position 6", sorted(half) == [14, 18, 28, 29, 34])
prove("trained, they cost nothing", full == [0] * 5)

# %% [markdown] id="free-example-says"
# After *true* letters, the second letter is wrong. Then the teacher puts the right one in, and most later letters are
# right. After its *own* letters, the model makes the same mistake: it leaves out the letter *f*. From then on,
# each letter is right after the one before it, but stands *one position early*. The line below moves this tail right by
# one, and it fits. Here one mistake spoils all the rest: we show the word that suffers most.
#
# This is called **exposure bias**: in training the model never had to go on after its own mistake. Longer training does
# not change that, but the model makes fewer mistakes. After 300 steps, reading its own letters no longer hurts it.
#
# <details><summary>Evidence: five trainings of each length</summary>
#
# In all five models trained for 100 steps, the letter at position 6 was right less often after the model's own letters
# than after true ones, by 14 to 34 percentage points. Trained for 300 steps, none of the five lost anything. To measure
# it again: `python benchmarks/claims.py own_letters`.
#
# </details>
#
# **A good place to stop: your encoder–decoder reads and writes.**

# %% [markdown] id="speculative-idea"
# ## 9 Speculative decoding
#
# When a large model writes a single text, most of its time goes into fetching its weights from memory, again for each
# token. One pass over several tokens fetches them just once. So a small and fast model, the **draft**, guesses four
# tokens. In one pass, the large model reads the last token of the text and the four guesses. As in teacher forcing,
# that gives its own choice at five positions; the first is compared with the first guess, and so on. It keeps the
# guesses before the first that differs, and puts its own choice there. If all four are right, its fifth choice is kept,
# too.

# %% id="speculative" tags=["hide-input"]
# Drawing: writing alone, and writing with guesses
drawings.guesses_and_checks().show()

# %% [markdown] id="speculative-says"
# With greedy choice the text is exactly the same as without the draft. The lab on [choosing
# tokens](labs/05_choosing.ipynb) shows that sampling keeps its probabilities, too.

# %% [markdown] id="thread-text"
# ## 10 Your model so far
#
# Your GPT, loop, filter and decoder layer go into `my_transformer.py`.

# %% id="thread" tags=["hide-input"]
# Build: your file so far
from coursework.assembly.thread import so_far

my = so_far(chapter=5)
# %% [markdown] id="end"
# ## 11 What you have
#
# <details><summary>The chapter on one card</summary>
#
# | what | in short | section |
# |---|---|---|
# | the loop | tokens → model → probabilities → choose one → append | 1 |
# | shift right | read ⟨start⟩ and the targets without the last; predict the targets | 2 |
# | causal mask | position i sees position j if j ≤ i; with P cached tokens `tril(P)` | 2, 4.1 |
# | teacher forcing | in training read the true tokens; with the causal mask, one pass for all positions | 3 |
# | GPT | layers under a causal mask; one text, no source | 4 |
# | cache | keys and values of all earlier tokens | 4.1, 4.5 |
# | temperature, top-k, top-p | divide the logits; keep k tokens; keep the fewest that reach p together | 5 |
# | decoder layer | causal self-attention, cross-attention (keys, values from the encoder), feed-forward | 6 |
# | the end | each text until ⟨stop⟩, then padding; the loop until all are finished | 7.1 |
# | speculative decoding | a draft guesses, one pass checks | 9 |
#
# </details>
#
# ### You can now
#
# - write a GPT, and the loop that lets it write with a cache;
# - train it on your own text, and set how it picks the next token;
# - write the decoder layer of a translator;
# - notice a leak by a loss that is too good.
#
# ### Check yourself
#
# <details><summary>1. Your loss per character is far below the best published one. What do you check first?</summary>
#
# Whether a position can see its answer. Train on noise, drawn anew for each batch: nobody can be better than chance there
# (section 2.1).
#
# </details>
#
# <details><summary>2. Why can training be parallel when writing cannot?</summary>
#
# In training the whole text is known, and the mask lets each position see exactly its own beginning. In writing the
# next token to read is not known before it is chosen (section 3).
#
# </details>
#
# <details><summary>3. Why may keys and values of earlier tokens be kept?</summary>
#
# Under the causal mask they depend on earlier tokens only, in every layer (section 4.1).
#
# </details>
#
# <details><summary>4. Where do queries, keys and values of the cross-attention come from?</summary>
#
# Queries from the decoder's stream; keys and values from the encoder's output (section 6).
#
# </details>
#
# <details><summary>5. When does the writing loop end? And when several texts are written at once?</summary>
#
# When the model chooses ⟨stop⟩. In a batch, finished texts are filled up with padding until all are finished
# (section 7.1).
#
# </details>
#
# ### What comes next
#
# [Chapter 6](06_training.ipynb) is about training. Or stay with the decoder: [choosing tokens](labs/05_choosing.ipynb),
# [what happens inside](labs/05_inside_a_model.ipynb), and [silent bugs](labs/05_bugs.ipynb).
#
# ### Sources
#
# <details><summary>The papers behind this chapter</summary>
#
# - Vaswani et al. 2017, arXiv:1706.03762, section 3.1 (the decoder).
# - Radford et al. 2018, 2019 (GPT, GPT-2). Raffel et al. 2020 (T5), arXiv:1910.10683; Radford et al. 2022 (Whisper),
#   arXiv:2212.04356.
# - Williams and Zipser 1989 (teacher forcing); Bengio et al. 2015, arXiv:1506.03099, and Ranzato et al. 2015,
#   arXiv:1511.06732 (exposure bias).
# - Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2020, arXiv:1904.09751 (top-p).
# - Leviathan et al. 2023, arXiv:2211.17192, and Chen et al. 2023, arXiv:2302.01318 (speculative decoding).
#
# </details>
