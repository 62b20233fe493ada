# %% [markdown] id="title"
# # 7 Variants
#
# At the end of this chapter you read the `config.json` of a published model line by line, and a function of your own
# builds the model that it describes: your GPT from [chapter 5](05_decoder.ipynb) becomes a Llama. It loads a checkpoint
# in the published format, and writes.
#
# The chapter, exercises included, takes about {minutes} minutes. Plan four evenings; five good places to stop are
# marked.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import copy
import html
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from IPython.display import HTML, display
from safetensors.torch import load_file
from torch import nn

from course_lib import masks, testing
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.config import TransformerConfig
from course_lib.decoder import TransformerDecoder
from course_lib.encoder import TransformerEncoder
from course_lib.positions import RotaryEmbedding, apply_rotary
from course_lib.testing import complaint, prove
from course_lib.variants import BERT, PUBLISHED, T5, Llama, Qwen3, efficient
from course_lib.variants import GPT as LibraryGPT
from course_lib.variants.latent import use_latent_attention
from coursework import exercises as ex
from coursework.corpora import reference_text, tiny_shakespeare
from coursework.pictures import drawings, show
from coursework.pictures.plots import common
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)


def count(model):
    """Parameters; shared ones once."""
    return sum(p.numel() for p in model.parameters())


def fold(title, text):
    """Show text under a title that opens it."""
    display(HTML(f"<details><summary>{title}</summary><pre>{html.escape(str(text))}</pre></details>"))


RATES = "All rates: mean (least … greatest); a star marks the best rate"


# %% [markdown] id="one-block"
# ## 1 One block, three families

# %% id="block-drawn" tags=["hide-input"]
# Drawing: a layer of 2017 and a modern one
drawings.two_layers().show()

# %% [markdown] id="block-says"
# Each column of this table is a switch, and each row shows how a published model sets it. T5 adds to each score a
# learned number, which depends on the distance. Section 2 explains the norms and SwiGLU.
#
# | | stacks | positions | norm | feed-forward | heads of keys, values |
# |---|---|---|---|---|---|
# | BERT, 2018 | encoder | learned | LayerNorm, after | GELU | as many as queries |
# | GPT-2, 2019 | decoder | learned | LayerNorm, before | GELU | as many |
# | T5, 2019 | both | bias by distance | RMS, before | ReLU | as many |
# | Llama 3 8B, 2024 | decoder | rotary | RMS, before | SwiGLU | a quarter |
# | Qwen3, 2025 | decoder | rotary | RMS, before, and on q and k | SwiGLU | a sixteenth to a half |
#
# ### 1.1 What a token may read
#
# The largest difference is in the column *stacks*. The mask of a stack says what each token may read.

# %% id="families-drawn" tags=["hide-input"]
# Drawing: the masks of the three families
drawings.three_families().show()

# %% [markdown] id="who-depends"
# An **encoder** such as BERT lets every token read all others. A **decoder** such as GPT lets a token read itself and
# what came before. An **encoder–decoder** such as T5 has one of each, and its decoder also reads the whole source
# through cross-attention.
#
# Change the token at position 3, counted from 0. Which outputs move?

# %% id="who-depends-measured" tags=["hide-input"]
# Measure: change token 3 and list the outputs that move
V = 29
sizes = {"d_model": 32, "n_heads": 4, "d_ff": 64, "vocab_size": V, "dropout": 0.0}
torch.manual_seed(0)
bert = BERT(BERT.configure(**sizes, n_encoder_layers=2, pad_id=None), head="masked_lm").eval()
gpt = LibraryGPT(LibraryGPT.configure(**sizes, n_decoder_layers=2)).eval()
t5 = T5(T5.configure(**sizes, n_encoder_layers=1, n_decoder_layers=1, d_head=8, pad_id=None)).eval()
tokens, start = torch.randint(V, (1, 7)), torch.zeros(1, 7, dtype=torch.long)  # (B, T)


def moved(model_of):
    """Where the output moves when token 3 of the input is another one."""
    changed = tokens.clone()
    changed[0, 3] = (changed[0, 3] + 1) % V
    with torch.no_grad():
        gap = (model_of(tokens) - model_of(changed)).abs().amax(dim=(0, 2))
    return [position for position, size in enumerate(gap.tolist()) if size > 1e-6]


reach = {
    "encoder (BERT)": moved(bert),
    "decoder (GPT-2)": moved(gpt),
    "both (T5), source changed": moved(lambda x: t5(x, start)),
    "both (T5), target changed": moved(lambda x: t5(tokens, x)),
}
for family, positions in reach.items():
    print(f"{family:<28}outputs that move: {positions}")
prove("in an encoder every output depends on every token", reach["encoder (BERT)"] == list(range(7)))
prove("in a decoder the token's own and later outputs", reach["decoder (GPT-2)"] == [3, 4, 5, 6])
prove("an encoder-decoder reads its whole source", reach["both (T5), source changed"] == list(range(7)))

two_each = {"n_encoder_layers": 2, "n_decoder_layers": 2}
config = TransformerConfig(d_model=32, n_heads=4, **two_each, dropout=0.0)
encoder, decoder = TransformerEncoder(config), TransformerDecoder(config, cross=False)
decoder.load_state_dict(encoder.state_dict())
x = torch.randn(2, 7, 32)  # (B, T, D)
found = testing.assert_equivalent(lambda x: encoder(x, mask=masks.causal_mask(7)), decoder, x)
prove("encoder layers under a causal mask are decoder layers without cross-attention", found.output < 1e-5)
prove("such a stack obeys the law of causality", not complaint(testing.assert_causal, decoder, x))

# %% [markdown] id="families-table"
# If the norms stand in the same place, only the mask separates a layer of BERT from one of GPT-2. The mask decides what
# each family is for:
#
# | family | learns by | good for | gives up |
# |---|---|---|---|
# | encoder | filling hidden words, seen from both sides | classes, tags, search | writing |
# | decoder | the next word, at every position | writing, chat, code | the right-hand side of its input |
# | encoder–decoder | writing a target for a source | translation, speech | cheap additions to its source: each new word means encoding all of it again |
#
# Most large language models are decoders, because nearly every task can be phrased as text to continue.
#
# <details><summary>Evidence: a decoder and a BERT after 150 steps, five seeds, three rates, a control</summary>
#
# In a small experiment a decoder was ahead of a BERT after 150 steps, with each of five seeds. But our BERT filled in
# hidden letters no better than counting letters does, and its norms stand elsewhere, too. The control is a decoder that
# is asked at 15 positions in 100, drawn at random, as BERT is. It lost only 20 to 28 % of the lead.
#
# </details>
#
# <details><summary>Further members of the families, and what each changed</summary>
#
# - **ALBERT** (Lan et al. 2019) uses one layer's weights in all layers, and makes the token table of two thin matrices.
# - **ModernBERT** (Warner et al. 2024) and **T5Gemma** (Zhang et al. 2025) are a BERT and a T5 made of modern layers.
# - **Whisper** (Radford et al. 2022) is an encoder–decoder whose encoder reads sound: two convolutions make its tokens
#   of short pieces of a spectrogram.
#
# </details>

# %% id="asked-recorded" tags=["hide-input"]
# Record: what a decoder, a decoder asked less often, and a masked model learn in 150 steps
found = claim("what_is_asked")
fold(RATES, found)
every, some, hidden = (np.array(found.values(arm, "loss")) for arm in found.arms)
explained = (some - every) / (hidden - every)
prove("fewer questions explain 20 to 28 % of it", (round(min(explained), 2), round(max(explained), 2)) == (0.2, 0.28))
prove("the decoder is ahead with every seed", (every < hidden).all() and some.max() < hidden.min())
prove("fewer questions explain less than half of it, with every seed", explained.max() < 0.5)

# %% [markdown] id="vit"
# ### 1.2 An image is a sentence of patches
#
# **ViT**, the vision Transformer, cuts an image into squares, called *patches*. One linear map turns the pixels of each
# patch into a vector. As in BERT, a `[CLS]` token goes in front, from which the class is read, and a learned position
# is added to each vector. The rest is an encoder with its norms in front.

# %% id="patches-drawn" tags=["hide-input"]
# Drawing: an image becomes a row of patches
drawings.patches_in_a_row().show()

# %% [markdown] id="vit-size"
# An image of 224 by 224 pixels, cut into squares of 16, gives 14 · 14 = 196 patches of 3 · 16 · 16 = 768 numbers each.
# Inside a patch, one channel follows the other: a patch of 2 by 2 pixels with 1 2 / 3 4 in its first channel and 5 6 /
# 7 8 in its second becomes the vector (1, 2, 3, 4, 5, 6, 7, 8).

# %% exercise="patchify"

# %% [markdown] id="vit-question"
# What does a ViT *not* know at the start? A convolution slides one small window of weights over the image. So two facts
# are built into it: close pixels belong together, and a cat is a cat wherever it sits. A ViT must learn both. In its
# first paper, trained on a million images, it fell behind convolutional networks; with three hundred million it overtook
# them.

# %% [markdown] id="vit-says"
# ## 2 A modern layer
#
# ### 2.1 A norm in front, and a cheaper one
#
# In 2017 the norm stood *after* the sum: x ← LN(x + sublayer(x)). These norms shrink the original word's share, and in
# [chapter 4](04_encoder.ipynb) twelve such layers failed at their task, with warm-up or without, unless their weights
# started small. GPT-2 moved the norm in *front* of each sublayer: x ← x + sublayer(LN(x)). Now a word, and on the way
# back a gradient, can run along the stream without passing through a norm. The price is that the stream grows: later
# layers change it less, and it needs one more norm at its end.
#
# LayerNorm subtracts the mean and divides by the standard deviation. **RMSNorm** leaves out the mean and only divides
# by the root of the mean square:
#
# $$\mathrm{RMSNorm}(x) = g \odot \frac{x}{\sqrt{\frac{1}{D}\sum_i x_i^2 + \epsilon}}$$
#
# with one trained factor $g_i$ for each of the $D$ numbers, and no bias. **By hand**, for x = (1, 2, 3, 6):
#
# | | subtract | divide by | result |
# |---|---|---|---|
# | LayerNorm | mean 3 → (−2, −1, 0, 3) | √(14/4) = 1.87 | (−1.07, −0.53, 0.00, 1.60) |
# | RMSNorm | nothing | √(50/4) = 3.54 | (0.28, 0.57, 0.85, 1.70) |


# %% id="rms-norm"
class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        size = x.square().mean(dim=-1, keepdim=True) + self.eps  # (..., 1)
        return x * size.rsqrt() * self.weight


print(RMSNorm(4)(torch.tensor([1.0, 2.0, 3.0, 6.0])).data)

# %% [markdown] id="qk-norm"
# RMSNorm has half the parameters and less to compute. Its cost is that an offset shared by all D numbers stays in.
#
# In large models, the queries and keys of some heads can grow until their scores reach the hundreds. The softmax then
# puts all its weight on one key, and hardly any gradient comes through. **QK-norm**, in Qwen3 and Gemma 3, prevents this
# with an RMSNorm on each query and each key, before the rotary step. It fixes their length, up to the trained factors,
# and so limits the scores.
#
# ### 2.2 A gate in the feed-forward
#
# The feed-forward of GPT-2 widens a vector, passes each number through GELU, and narrows it again. Each hidden number
# answers one question about the token: how well does it match one row of weights? In **SwiGLU** each hidden number is
# the product of two answers. One map makes the **gate**, which goes through SiLU, silu(z) = z · σ(z), with the sigmoid
# σ. A second map, *up*, makes the content.

# %% id="gate-drawn" tags=["hide-input"]
# Drawing: a feed-forward with a gate, in numbers
drawings.gate_in_numbers().show()

# %% [markdown] id="gate-says"
# In a product, one number can switch the other on or off; in a sum it cannot.
#
# SwiGLU has three matrices instead of two. To keep the number of parameters, its inner width F is smaller: 2 · D · 4D =
# 3 · D · F gives F = 8/3 · D.

# %% exercise="swiglu"


# %% id="gated"
class Gated(nn.Module):
    """Your function with its three maps"""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x):
        return swiglu(x, self.gate.weight, self.up.weight, self.down.weight)


# %% [markdown] id="switches-question"
# ### 2.3 Which switch matters?
#
# **Predict.** We turn GPT-2's layer into Llama's, one switch at a time: RMSNorm and no biases; rotary positions
# ([chapter 3](03_positional_encoding.ipynb)); the gate; half as many heads of keys and values. Which switch lowers the
# loss of a small model most?

# %% id="predict-switch"
ex.predict("which_switch_lowers_the_loss", "")

# %% id="switches-figure" tags=["hide-input"]
# Figure: held-out loss after each switch, five seeds, each arm at the better of two rates
found = claim("switch_by_switch")
rows = {arm: found.values(arm, "held-out loss") for arm in found.arms}
show(
    common.dot_rows(rows, size=(6.6, 2.6), xlabel="held-out loss, nats per character"),
    alt="Five rows of five dots: the held-out loss of a small model of characters after each switch from GPT-2 to "
    "Llama. The rotary positions bring the largest step.",
    caption="Each dot is one training of 300 steps. The switches add up from top to bottom; the last row has 2 heads of "
    "keys and values for its 4 of queries.",
)
fold(RATES, found)
losses = [np.array(found.values(arm, "held-out loss")) for arm in found.arms]
prove("rotary positions lower the loss with every seed", (losses[2] < losses[1]).all())
prove("by about 0.3 on average", 0.2 < (losses[1] - losses[2]).mean() < 0.4)
prove("the gate by about 0.1", 0.05 < (losses[2] - losses[3]).mean() < 0.15)
prove("RMSNorm changes it by less than 0.03", abs(losses[0].mean() - losses[1].mean()) < 0.03)
prove("so do half as many heads of keys and values", abs(losses[3].mean() - losses[4].mean()) < 0.03)

# %% [markdown] id="switches-say"
# The rotary positions do, by about 0.3 nats for each character. Perhaps that is because what a head learns about a
# distance then holds at every position. The gate lowers the loss by another 0.1 on average. RMSNorm without biases
# changes nothing that we can see. Nor does halving the heads of keys and values, which halves the cache. But 300 steps
# of a small model say little about large ones.
#
# **A good place to stop: you have written the gate, and know what turns GPT-2's layer into Llama's.**
#
# ## 3 The cache decides
#
# You ask a chat model about a long document. All users share its weights, but you need a **cache** of your own: the
# keys and values of every token so far, in every layer ([chapter 5](05_decoder.ipynb)). With $n$ tokens, $L$ layers and
# $G$ heads of keys and values of width $E$ it holds
#
# $$2 \cdot L \cdot G \cdot E \cdot n \quad\text{numbers,}$$
#
# usually of two bytes each. For each new token, the chip has to read all of them.
#
# ### 3.1 Sharing heads, or compressing them
#
# **Grouped heads**, which you wrote in [chapter 2](02_multi_head.ipynb), let several query heads share one head of keys
# and values. Llama 3 8B has 32 layers, and 8 such heads for its 32 query heads. A token takes 2 · 32 · 8 · 128 numbers,
# or 131,072 bytes, and the cache of 8,192 tokens shrinks from 4 GiB to 1. The price is that four query heads must find
# what they need under the same keys.
#
# **Latent attention** (DeepSeek-V2, 2024) keeps a short vector c of 512 numbers for each token, made by one
# trained linear map. Every head has two matrices of its own, W and U, of 128 by 512. It makes its key W c and its value
# U c. So all heads have different keys again.

# %% id="caches-drawn" tags=["hide-input"]
# Drawing: what one token leaves in one layer's cache
drawings.cache_of_a_token().show()

# %% [markdown] id="absorb"
# But then each step would have to make all old keys from their c again. A trick avoids this. **By hand**, for one
# head, with c = (1, 2), a query q = (2, 1), and W with the rows (1, 0) and (1, 1):
#
# - The slow way: the key is W c = (1, 3), and q · (W c) = 2 · 1 + 1 · 3 = **5**.
# - The fast way: multiply the query first. Wᵀq = (2 · 1 + 1 · 1, 2 · 0 + 1 · 1) = (3, 1), and (3, 1) · (1, 2) = **5**.
#
# It is the same sum, bracketed differently: q · (W c) = (Wᵀ q) · c. W has been **absorbed** into the query. The same
# works for the values: the short vectors are averaged first, and U multiplies only the average.
#
# Rotary positions break the trick: a matrix Rₙ turns the key of token n to Rₙ W c, and the query would have to be
# multiplied by WᵀRₙᵀ, different for each n. Each token therefore keeps a second key for its position: 64 numbers,
# turned, and shared by all heads. Each head makes a second query of 64 numbers, also turned, and adds their product to
# the score. The price is more arithmetic: each head compares 576 numbers, not 128.

# %% id="latent-absorbed" tags=["hide-input"]
# Check: the numbers above; with turned keys no vector does it; cached latent attention equals the full pass
W, c, q = torch.tensor([[1.0, 0], [1, 1]]), torch.tensor([1.0, 2]), torch.tensor([2.0, 1])
prove("by hand, both ways give 5", q @ (W @ c) == (W.T @ q) @ c == 5)
torch.manual_seed(0)
W, c = torch.randn(8, 12, dtype=torch.float64), torch.randn(30, 12, dtype=torch.float64)  # (E, C), (S, C)
q = torch.randn(8, dtype=torch.float64)
prove("without positions the matrix is absorbed into the query", torch.allclose(c @ W.T @ q, c @ (W.T @ q)))
turn = RotaryEmbedding(8)(torch.arange(30))
scores = apply_rotary((c @ W.T)[None, None], turn)[0, 0] @ apply_rotary(q.expand(1, 1, 30, 8), turn)[0, 0, -1]
nearest = torch.linalg.lstsq(c, scores[:, None]).solution[:, 0]  # the best single vector of all
missed = ((c @ nearest - scores).norm() / scores.norm()).item()
prove("with turned keys no vector gives all scores", missed > 0.1)

torch.manual_seed(0)
grouped = Llama(Llama.configure(**sizes, n_kv_heads=2, n_decoder_layers=2)).eval()
latent = Llama(Llama.configure(**sizes, n_decoder_layers=2)).eval()
use_latent_attention(latent.decoder, d_latent=12, d_rotary=4)
for name, model, numbers in (("grouped", grouped, 2 * 2 * 8), ("latent", latent, 12 + 4)):
    cache = model.new_cache(capacity=7)
    with torch.no_grad():
        in_steps = torch.cat([model(tokens[:, t : t + 1], cache=cache) for t in range(7)], dim=1)
        prove(f"{name}: cached steps give the full pass", torch.allclose(in_steps, model(tokens), atol=1e-5))
    prove(f"{name}: the formula gives the bytes of the real cache", cache.n_bytes == 2 * numbers * 7 * 4)
layer, x, outputs = latent.decoder.layers[0].self_attention, torch.randn(1, 7, 32), []
with torch.no_grad():
    for layer.absorbed in (False, True):
        outputs.append(layer(x, causal=True, rotation=RotaryEmbedding(4)(torch.arange(7))))
prove("latent attention gives the same with keys made and with W absorbed", torch.allclose(*outputs, atol=1e-5))

# %% [markdown] id="latent-cost"
# ### 3.2 Most layers may be short-sighted
#
# A third way is to forget. In a **sliding window** each query sees only the latest $w$ tokens, and older keys are
# dropped. Information still travels further: in the next layer, the token at the edge of the window has itself seen w −
# 1 earlier ones. Through $L$ layers, a token hears of up to L · (w − 1) earlier tokens.

# %% exercise="sliding_window_mask"


# %% [markdown] id="local-global"
# Second-hand information is weaker, so models mix two kinds of layer. The larger Gemma 3 models have five *local*
# layers with a window of 1,024 for each *global* layer, which sees everything. Of a text of 131,072 tokens, these six
# keep 17 % of what six global layers would.

# %% id="local-global-drawn" tags=["hide-input"]
# Drawing: five local layers for one global one; check: your mask of window 3, passed twice, reaches 4 tokens back
drawings.local_layers_for_one_global().show()
window = sliding_window_mask(9, 9, 3).float()
prove("through two layers with a window of 3, a token hears of 4 earlier ones", ((window @ window)[8] > 0).sum() == 5)

# %% [markdown] id="sinks"
# **A good place to stop: you have written a window, and know three ways to a smaller cache.**
#
# ## 4 Flash: the same numbers, faster
#
# Why can the same attention run faster?

# %% id="memory-drawn" tags=["hide-input"]
# Drawing: the small and the large memory of a GPU
drawings.levels_of_memory().show()

# %% [markdown] id="flash-traffic"
# A GPU computes only on what lies in the small memory. Count what plain attention moves, for one head of width 128 and
# a text of 8,192 tokens. The table of scores has 8,192² = 67 million numbers, 134 MB in two bytes each. That is too
# much for the small memory. So the table is written to the large one, read for the softmax, written again as attention
# weights, and read for the product with the values: 537 MB in all. Moving 537 MB takes an A100 0.36 ms, and the
# arithmetic 0.11 ms. Most of the time the chip waits for a table that the output does not contain.
#
# **FlashAttention** never writes the table. It takes a block of queries and goes through the keys and values in tiles.
# Each tile fits into the small memory, and all the work is done there.

# %% id="tiles-drawn" tags=["hide-input"]
# Drawing: a block of queries passes over tiles of keys
drawings.flash_tiles().show()

# %% [markdown] id="running-softmax"
# But a softmax divides by a sum over *all* keys, and for safety subtracts the largest score. Neither is known while the
# tiles are still coming in. So we keep a running maximum $m$, a running sum $\ell$ and a running mixture $a$ of values,
# and correct them when a larger score turns up. **By hand**, for one query: the first tile has the scores 1, 2 and the
# values 10, 20; the second has the score 4 and the value 40.
#
# | after | m | ℓ | a |
# |---|---|---|---|
# | the start | −∞ | 0 | 0 |
# | tile 1 | 2 | e⁻¹ + e⁰ = 1.368 | 0.368 · 10 + 1 · 20 = 23.68 |
# | tile 2: new maximum | 4 | 1.368 · e⁻² = 0.185 | 23.68 · e⁻² = 3.20 |
# | tile 2: its own part | 4 | 0.185 + 1 = 1.185 | 3.20 + 1 · 40 = 43.20 |
#
# The result is a / ℓ = 36.46, as one softmax over the three scores gives it. When the maximum rises, ℓ and a are
# multiplied by exp(old − new), here e⁻².

# %% exercise="online_softmax"


# %% id="flash-check" tags=["hide-input"]
# Check: the numbers of the table, your pass, and the course's tiles against plain attention
by_hand = online_softmax(
    iter([torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0]])]),
    iter([torch.tensor([[10.0], [20.0]]), torch.tensor([[40.0]])]),
)
whole = torch.tensor([1.0, 2.0, 4.0]).softmax(0) @ torch.tensor([10.0, 20.0, 40.0])
prove("by hand: 36.46, as one softmax gives it", abs(by_hand.item() - 36.46) < 0.005 and torch.allclose(by_hand, whole))
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 70, 16, dtype=torch.float64) for _ in range(3))
found = testing.assert_equivalent(
    lambda q, k, v: efficient.tiled_attention(q, k, v, causal=True, tile=16),
    lambda q, k, v: sdpa(q, k, v, causal=True, backend="explicit"),
    *(q, k, v),
)
prove("tiles give plain attention, outputs and gradients to 1e-12", max(found) < 1e-12)
tiles = online_softmax(iter((q[0, 0] @ k[0, 0].T / 4).split(16, dim=1)), iter(v[0, 0].split(16)))
prove("your pass over five tiles is exact attention", torch.allclose(tiles, sdpa(q, k, v)[0, 0]))

# %% [markdown] id="flash-says"
# In training, the backward pass needs the attention weights again. Flash stores only $m$ and $\ell$ for each query and
# computes each tile a second time. The time still grows with the square of the length.
#
# **A good place to stop: you have written the loop inside Flash, and can explain it to a colleague.**
#
# ## 5 Linear attention: a memory of fixed size
#
# Can a model remember a text in a memory that does *not* grow? Leave out the softmax, so that the weight of a key is
# just k · q. The output is Σ vᵢ (kᵢ · q). Now move the brackets: it is (Σ vᵢ kᵢᵀ) q. A column times a row, vᵢ kᵢᵀ, is a
# matrix of E by E numbers, and the sum of these matrices does not depend on the query. So we can add to it token by
# token, throw keys and values away, and read with any later query. This sum is the **state**, called S.

# %% id="state-drawn" tags=["hide-input"]
# Drawing: two pairs written into one state, and read out again; check: the numbers that follow
drawings.pairs_in_a_state().show()
first, second, state = torch.tensor([1.0, 0.0]), torch.tensor([0.6, 0.8]), torch.tensor([5.0, 0.0])
prove("by hand: the sum reads 11", (state + 10 * second) @ first == 11)
state = state + (10 - state @ second) * second
read = torch.stack([state @ second, state @ first])
prove("by hand: the delta rule reads 10 and 9.2", torch.allclose(read, torch.tensor([10.0, 9.2])))
mixed = [(size * torch.tensor([1.0, 0.6])).softmax(0) @ torch.tensor([5.0, 10.0]) for size in (1, 10)]
prove("a softmax reads 7.0, from ten times larger scores 5.1", [round(m.item(), 1) for m in mixed] == [7.0, 5.1])

# %% [markdown] id="state-by-hand"
# **By hand**, with values of a single number, so that S has one row. Store 5 under the key (1, 0), and 10 under the key
# (0.6, 0.8). The state is 5 · (1, 0) + 10 · (0.6, 0.8) = (11, 8). Read it with the query q = (1, 0), which is the first
# key: (11, 8) · (1, 0) = **11**. It should be 5. The other 6 comes from the second pair, because its key points partly
# in the same direction.
#
# The **delta rule** repairs a part of that. Before it writes, it reads S k, which is what the state already says under
# the new key k, and writes only the *difference*:
#
# $$S \leftarrow S + (v - S k) \, k^\top$$
#
# With the first pair stored, the state (5, 0) says 5 · 0.6 + 0 · 0.8 = 3 under the second key. We want 10, so 7 is
# missing, and 7 · (0.6, 0.8) is added. Now the second key, whose length is one, reads exactly 10. The first reads 9.2,
# still wrong, but less so.
#
# However it is written, a state can keep at most E independent keys exactly. A long text has more, and the phone number
# on page one may be lost. Softmax attention keeps the pairs apart: with our scores 1 and 0.6 it reads 7.0, but with ten
# times larger ones 5.1. So models mix layers again: in Qwen3-Next and Kimi Linear, three of four layers have a delta
# rule, and the fourth, with full attention, can look up the number. You write the rule in the lab on
# [linear memory](labs/07_linear_memory.ipynb).

# %% [markdown] id="hybrids"
# ## 6 Experts: store much, use little
#
# Most of a layer's parameters are in its feed-forward. A wider one can store more, but every token pays for all of it,
# even a comma. A **mixture of experts** has many feed-forwards, the *experts*, and a **router** that picks a few for
# each token.

# %% id="router-drawn" tags=["hide-input"]
# Drawing: a router sends one token to two of four experts
drawings.router_and_experts().show()

# %% [markdown] id="router-by-hand"
# The router is one linear map, from a token to one score for each expert. **By hand**, with four experts and the scores
# 2.0, −1.0, 1.0, 0.0: experts 0 and 2 have the highest. A softmax over these two, exp(2) = 7.39 against exp(1) = 2.72,
# gives the weights 0.73 and 0.27. The output is the **weighted sum**
#
# $$y = 0.73 \cdot \mathrm{Expert}_0(x) + 0.27 \cdot \mathrm{Expert}_2(x).$$
#
# Picking has no gradient. The weights have one, and through them the router learns to trust one chosen expert more than
# the other.

# %% exercise="route_experts"

# %% [markdown] id="collapse"
# ### 6.1 Why a router collapses
#
# At the start one expert is chosen a little more often, by chance. It gets more tokens and learns faster, so the router
# sends it even more. In the lab on [experts](labs/07_experts.ipynb) two to five of eight experts end up idle.
#
# **A balance loss** makes busy experts expensive. Let $f_i$ be the share of all choices that expert i got in this
# batch, and $p_i$ its mean probability, by a softmax over the scores of all experts, not only of the chosen ones. With
# $M$ experts, the loss is
#
# $$\mathcal{L}_{\text{balance}} = M \sum_i f_i \, p_i,$$
#
# and a small multiple of it is added to the real one. **By hand**: if two experts are used evenly, it is 2 · (0.5 · 0.5 +
# 0.5 · 0.5) = 1. If all tokens go to the first with probability 0.9, it is 2 · 1 · 0.9 = 1.8. As f is a count, only p
# has a gradient: M fᵢ for pᵢ. So the busiest expert is pushed down hardest.
#
# **A bias** (Wang et al. 2024) needs no extra loss; DeepSeek-V3 uses it and adds only a very small loss. Each expert
# has a number that is added to its score *for the choice only*, not in the weights. After each step it goes up a little if
# the expert had too few tokens, and down if it had too many.

# %% [markdown] id="total-active"
# ### 6.2 Total and active
#
# DeepSeek-V3 stores 671 billion parameters. Only 37 billion of them are *active*, which means used for any one token.
# The total decides how much memory you need, and the active part how many operations each token takes. But a batch may
# need most experts: if 64 tokens each choose 8 of 256 at random, they reach 1 − (31/32)⁶⁴ = 87 % of them on average, and
# all these have to be fetched.

# %% exercise="moe_active_parameters"

# %% [markdown] id="experts-cost"
# **A good place to stop: you have written a router, and can tell total from active parameters.**

# %% [markdown] id="lora-idea"
# ## 7 LoRA: change a model with two thin matrices
#
# You want a model to write in the style of your company. Training all of its weights needs a gradient and two moments
# of Adam for each, and then you store a full copy of the model. Could the *change* itself be stored in few numbers?
#
# Freeze the weight W. Put two thin matrices beside it: A takes the $D_\text{in}$ inputs down to $r$ numbers, and B
# takes these up to the $D_\text{out}$ outputs. The map becomes
#
# $$W x + \frac{\alpha}{r} \, B A x.$$
#
# α sets the strength of the change, and dividing by r keeps it about the same for any r.

# %% id="thin-drawn" tags=["hide-input"]
# Drawing: a frozen matrix, and a thin update beside it
drawings.thin_update().show()

# %% [markdown] id="lora-count"
# This is **LoRA**, low-rank adaptation. The update of *rank* $r$ has $r \cdot (D_\text{in} + D_\text{out})$ parameters:
# in the drawing, 131,072 instead of 16.8 million. B starts at zero, so that at first nothing changes. A starts at
# random: A's gradient contains B, and B's contains A, so two zero matrices would never change.

# %% exercise="lora_linear"


# %% [markdown] id="lora-into"
# The folded cell defines `train` and `loss_on`, and makes `own`, your GPT of chapter 5 after 250 steps on technical
# prose. Then `tuned`, a copy, learns from 4,000 letters of `plays` in 60 steps. `set_submodule` replaces each
# `nn.Linear` in its layers by your LoRA; the output map stays frozen. Losses are on held-out text, from letter 270,000
# on.


# %% id="own-gpt" tags=["hide-input", "tol:0.05"]
# Parts of earlier chapters, and your GPT of chapter 5 after 250 steps on technical prose
rotate_by_10000, split_heads, merge_heads = ex.apply_rotary.part(), ex.split_heads.part(), ex.merge_heads.part()
GPT, generate = ex.gpt.part(), ex.generate.part()


class GPT2Layer(nn.Module):
    """The pre-norm layer of chapter 5, with its cache: (B, T, D) -> (B, T, D)."""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model) for _ in range(4))
        self.up, self.down = nn.Linear(d_model, 4 * d_model), nn.Linear(4 * d_model, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, positions, mask, cache=None):
        y = self.norm1(x)
        q, k, v = (split_heads(m(y), self.n_heads) for m in (self.query, self.key, self.value))
        q, k = rotate_by_10000(q, positions), rotate_by_10000(k, positions)
        if cache:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        if cache is not None:
            cache["k"], cache["v"] = k, v
        x = x + self.output(merge_heads(F.scaled_dot_product_attention(q, k, v, attn_mask=mask)))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def to_ids(text):
    return torch.tensor([min(ord(character), 127) for character in text])


def to_text(ids):
    return "".join(chr(i) if chr(i).isprintable() else " " for i in ids.tolist())


prose, plays = to_ids(reference_text(each_once=True)[:300_000]), to_ids(tiny_shakespeare()[:300_000])


def windows(data, size, generator):
    pieces = data[torch.randint(len(data) - 65, (size, 1), generator=generator) + torch.arange(65)]
    return pieces[:, :-1], pieces[:, 1:]  # (B, T) both


def loss_on(model, data, size=8, generator=None):
    inputs, targets = windows(data, size, generator or torch.Generator().manual_seed(9))
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train(model, data, steps, rate, seed=0):
    """AdamW on what is trainable, warm-up and a linear end."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], betas=(0.9, 0.95))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 20) * (1 - step / steps)
        optimizer.zero_grad()
        loss_on(model, data, generator=generator).backward()
        optimizer.step()
    return model


torch.manual_seed(0)
own = GPT(128, 64, [GPT2Layer(64, 4) for _ in range(2)], dropout=0.0)
for weight in own.parameters():
    if weight.dim() == 2:
        nn.init.normal_(weight, std=0.05)
train(own, prose[:270_000], 250, 6e-3)
with torch.no_grad():
    print(f"loss on prose {loss_on(own, prose[270_000:], 100):.2f}, on plays {loss_on(own, plays[270_000:], 100):.2f}")


# %% id="lora-put-in" tags=["tol:0.05"]
def put_lora_into(model, rank, alpha):
    for p in model.parameters():
        p.requires_grad_(False)
    for name, part in list(model.layers.named_modules()):
        if isinstance(part, nn.Linear):
            model.layers.set_submodule(name, LoRALinear(part, rank, alpha))


tuned = copy.deepcopy(own)
put_lora_into(tuned, rank=4, alpha=4)
trained = sum(p.numel() for p in tuned.parameters() if p.requires_grad)
print(f"trained: {trained:,} of {count(tuned):,} parameters")
train(tuned, plays[:4000], 60, rate=1e-2)
for name, data in {"plays": plays, "prose": prose}.items():
    print(f"loss on {name}: {loss_on(tuned, data[270_000:], 100):.2f}")

# %% [markdown] id="lora-says"
# Before, they were 3.22 and 2.31: the model has learned from the plays and forgotten some prose. Would training all
# weights be better? On another small model, also at rank 4, we tried both.

# %% id="thin-figure" tags=["hide-input"]
# Figure: held-out loss against the rate, all weights and LoRA in every map, little and much text; five seeds
found = claim("thin_updates")
lines = {
    f"{much} text": {
        label: [np.mean(found.values(f"{way}, {much} text", "held-out loss", rate)) for rate in found.rates]
        for way, label in (("all weights", "all weights"), ("every map", "LoRA in every map"))
    }
    for much in ("little", "much")
}
axes = {"xlabel": "rate", "xscale": "log", "ylim": (2, 3)}
show(
    common.panels(common.curves, found.rates, lines, size=(7.4, 3.2), share="y", ylabel="held-out loss", **axes),
    alt="Two panels, little text and much text, with the held-out loss against the rate for two ways of fine-tuning. "
    "All weights are best at a rate of 0.001 with little text and 0.003 with much, and get worse above it. LoRA is best "
    "at 0.03, the highest rate; it comes close to the best of all weights with little text, and stays above it with much.",
    caption="LoRA wants a rate ten times higher or more. On little text it comes close to training all weights, on a "
    "hundred times more text it stays behind.",
)
fold(RATES, found)
best = {arm: found.best_rate(arm) for arm in found.arms}
prove(
    "the thin update's best rate is at least ten times that of all weights",
    all(best[f"every map, {much} text"] >= 9.9 * best[f"all weights, {much} text"] for much in ("little", "much")),
)
every, only = (
    np.array(found.values(f"{way}, little text", "held-out loss")) for way in ("every map", "attention only")
)
prove("on little text, every map beats attention only with each seed", (every < only).all())
full, thin = (np.array(found.values(f"{way}, much text", "held-out loss")) for way in ("all weights", "every map"))
prove("on much text, all weights are ahead with each seed", (full < thin).all())

# %% [markdown] id="lora-limits"
# On little text, again 4,000 letters, LoRA came within 0.03 nats of training everything. On a hundred times more
# text, of which 250 steps read at most a third, it stayed 0.1 nats behind. But its curve is still falling at the
# highest rate.
#
# <details><summary>Evidence: which maps, how high a rate; and QLoRA</summary>
#
# On little text the update in every map beats about as many parameters in the attention alone, with each of five
# seeds. For large models about ten times the rate of full training was found (*LoRA Without Regret*, 2025). **QLoRA**
# also keeps the frozen weights in four bits, so that a large model can be tuned on one card.
#
# </details>
#
# After training, the update can be added into W and then costs nothing:

# %% exercise="lora_merge"

# %% id="lora-merged" tags=["tol:0.05"]
for name, part in list(tuned.layers.named_modules()):
    if isinstance(part, LoRALinear):
        part.base.weight.data = merge(part.base.weight, part.A, part.B, alpha=4).data
        tuned.layers.set_submodule(name, part.base)
loss = loss_on(tuned, plays[270_000:], 100)
print(f"{count(tuned):,} parameters, loss on plays: {loss:.2f}")

# %% [markdown] id="config"
# Your merged model is as large as before, and as good on plays as with LoRA.
#
# **A good place to stop: your LoRA has taught your GPT a little Shakespeare, in 9,216 numbers.**
#
# ## 8 Your Llama
#
# This is the `config.json` of Qwen3-0.6B, a Llama with norms on queries and keys, shortened to the entries that matter
# here.

# %% id="config-json"
config = json.loads("""{
  "model_type": "qwen3", "vocab_size": 151936,
  "hidden_size": 1024, "num_hidden_layers": 28,
  "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
  "intermediate_size": 3072, "hidden_act": "silu",
  "rms_norm_eps": 1e-06, "rope_theta": 1000000,
  "attention_bias": false, "tie_word_embeddings": true,
  "max_position_embeddings": 40960, "sliding_window": null
}""")

# %% id="config-drawn" tags=["hide-input"]
# Drawing: which entry describes which part
drawings.config_and_layer().show()

# %% [markdown] id="config-lines"
# - **`model_type`**: *qwen3* means norms on queries and keys; *llama* means none.
# - **`hidden_size`** is D, **`intermediate_size`** is F, and in Llama and Qwen3 `silu` makes a SwiGLU.
# - **Heads**: there are 16 of queries and 8 of keys and values, each E = **`head_dim`** = 128 wide. 16 · 128 is 2,048,
#   while D is 1,024: the width of a head is free.
# - **`rope_theta`** is the base of the rotary positions; a larger one suits long texts. **`rms_norm_eps`** is ε.
# - **`attention_bias`**: the linear maps in attention have no bias. **`tie_word_embeddings`**: the token table also
#   produces the logits. **`sliding_window`** null: every layer is global.
#
# <details><summary>max_position_embeddings, and entries of other configs</summary>
#
# `max_position_embeddings` is how many positions programs prepare for; the model's card promises 32,768. In other
# configs, `rope_scaling` stretches the rotary positions for longer texts. Qwen3 with experts has `num_experts` and
# `num_experts_per_tok`, our `top_k`.
#
# </details>
#
# **Predict.** How many parameters does this model have? *0.6B* is in the name. Which part has the largest share?

# %% id="predict-count"
ex.predict("parameters_of_qwen3", "")

# %% [markdown] id="count-by-hand"
# **By hand**, one layer, with D = 1,024:
#
# | part | product | numbers |
# |---|---|---|
# | queries | 1,024 · 2,048 | 2,097,152 |
# | keys, values | 2 · 1,024 · 1,024 | 2,097,152 |
# | output | 2,048 · 1,024 | 2,097,152 |
# | gate, up, down | 3 · 1,024 · 3,072 | 9,437,184 |
# | two norms of D, two of 128 | 2 · 1,024 + 2 · 128 | 2,304 |
# | **one layer** | | **15,730,944** |
#
# 28 layers have 440,466,432. The last norm adds 1,024, and the tied token table 151,936 · 1,024 = 155,582,464, once.
# Together they have **596,049,920**. The feed-forwards have the largest share, 44 %.
#
# ### 8.1 From your GPT to a Llama
#
# Remember how a GPT of chapter 5 was made:
#
# ```python
# layers = [Layer(d_model, n_heads) for _ in range(n_layers)]
# model = GPT(vocab_size, d_model, layers, dropout=0.0)
# ```
#
# It takes any layers that are called as `layer(x, positions, mask, cache)`. Below them it has only the token table,
# `model.embedding`, and no table of positions to remove. The arguments of its new layers are the switches of this
# chapter; their parts are `RMSNorm` and `Gated`, with your `swiglu`.


# %% id="llama-parts" tags=["hide-input"]
# Given: rotate and remember, which are called below
def rotate(x, positions, base):
    """(B, H, T, E), positions (T,) -> (B, H, T, E); pairs are (i, i + E / 2)"""
    half = x.size(-1) // 2
    speed = base ** (-torch.arange(half, device=x.device) / half)
    angle = positions[:, None] * speed  # (T, E / 2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def remember(cache, k, v):
    """None or a dict, new keys and values (B, G, T, E) -> all so far (B, G, S, E), which the dict keeps"""
    if cache:  # not None, and not empty
        k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
    if cache is not None:
        cache["k"], cache["v"] = k, v
    return k, v


# %% id="llama-layer-made"
class LlamaLayer(nn.Module):
    def __init__(self, D, H, *, n_kv_heads, d_head, d_ff, eps, base, bias, qk_norm):
        super().__init__()
        self.H, self.G, self.base = H, n_kv_heads, base
        self.query = nn.Linear(D, H * d_head, bias=bias)
        self.key = nn.Linear(D, n_kv_heads * d_head, bias=bias)
        self.value = nn.Linear(D, n_kv_heads * d_head, bias=bias)
        self.output = nn.Linear(H * d_head, D, bias=bias)
        self.query_norm = RMSNorm(d_head, eps) if qk_norm else nn.Identity()
        self.key_norm = RMSNorm(d_head, eps) if qk_norm else nn.Identity()
        self.feed_forward = Gated(D, d_ff)
        self.first_norm, self.second_norm = RMSNorm(D, eps), RMSNorm(D, eps)

    def forward(self, x, positions, mask, cache=None):
        x = x + attend(self, self.first_norm(x), positions, mask, cache)
        return x + self.feed_forward(self.second_norm(x))


# %% [markdown] id="attend-says"
# `attend` splits into heads with your `split_heads`, norms queries and keys, and turns them
# with `rotate`, your rotary positions with the base as an argument. Then `remember` adds the new keys and values to the
# cache. Only after that is each of the G heads repeated, so the cache stays small.


# %% id="llama-layer-attends"
def attend(layer, x, positions, mask, cache):
    q = split_heads(layer.query(x), layer.H)  # (B, H, T, E)
    k = split_heads(layer.key(x), layer.G)  # (B, G, T, E)
    v = split_heads(layer.value(x), layer.G)
    q = rotate(layer.query_norm(q), positions, layer.base)
    k = rotate(layer.key_norm(k), positions, layer.base)
    k, v = remember(cache, k, v)  # (B, G, S, E): old and new
    k = k.repeat_interleave(layer.H // layer.G, dim=1)  # (B, H, S, E)
    v = v.repeat_interleave(layer.H // layer.G, dim=1)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # tiled on a GPU
    return layer.output(merge_heads(mixed))


# %% exercise="build_model"


# %% id="build-real"
with torch.device("meta"):  # shapes only, no memory
    qwen = build(config)
print(f"{count(qwen):,} parameters")

# %% id="counts-published" tags=["hide-input"]
# Table: published models as the course builds them, beside what their publishers state
rows = [f"{'model':<22}{'we count':>16}   {'publisher states':>20}, where"]
for name in ("gpt2", "bert-base-uncased", "t5-base", "vit-base-patch16-224", "llama-3-8b", "qwen3-0.6b"):
    published = PUBLISHED[name]
    rows.append(f"{name:<22}{count(published.build()):>16,}   {published.stated:>20,.0f}, {published.source}")
fold("Six published models: the parameters that we count, and those that their publishers state", "\n".join(rows))
prove("your model has the parameters that we counted", count(qwen) == 596_049_920)
prove("the course counts the same", count(PUBLISHED["qwen3-0.6b"].build()) == count(qwen))
with torch.device("meta"):
    untied = LibraryGPT(PUBLISHED["gpt2"].family.configure(**PUBLISHED["gpt2"].sizes, tie_embeddings=False))
prove("a tied head saves V times D", count(untied) - count(PUBLISHED["gpt2"].build()) == 50_257 * 768)

# %% [markdown] id="load-text"
# ### 8.2 It loads a checkpoint
#
# A checkpoint is a folder with a `config.json` and a file of named tensors. `load_file` reads such a file, in the
# format *safetensors*, into a dict. The folded cell trains `theirs`, a small Qwen3 of the course's library, on
# technical prose and saves it in `folder`. Its tensors have other names, so we need a little dictionary.

# %% id="checkpoint" tags=["hide-input"]
# Another program: the course's Qwen3 learns for 400 steps and is saved as `transformers` would save it
torch.manual_seed(0)
small = {"vocab_size": 128, "d_model": 64, "d_ff": 172, "n_heads": 4, "n_kv_heads": 2, "d_head": 32, "init_std": 0.05}
theirs = Qwen3(Qwen3.configure(**small, n_decoder_layers=2, tie_embeddings=True, rotary_base=1e6, max_length=512))
train(theirs, prose[:270_000], 400, 6e-3)
folder = Path(tempfile.mkdtemp())
theirs.eval().save_pretrained(folder)
print(*list(load_file(folder / "model.safetensors"))[:4], "…", sep="\n")

# %% id="names"
NAMES = {
    "model.embed_tokens": "embedding", "model.layers": "layers", "model.norm": "norm",
    "self_attn.q_norm": "query_norm", "self_attn.k_norm": "key_norm",
    "self_attn.q_proj": "query", "self_attn.k_proj": "key",
    "self_attn.v_proj": "value", "self_attn.o_proj": "output", "lm_head": "to_logits",
    "mlp": "feed_forward", "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
    "input_layernorm": "first_norm", "post_attention_layernorm": "second_norm",
}  # fmt: skip


def own_name(name):
    for published, ours in NAMES.items():
        name = name.replace(published, ours)
    return name


# %% id="load"
def load(folder):
    model = build(json.loads((folder / "config.json").read_text()))
    tensors = load_file(folder / "model.safetensors")
    state = {own_name(name): tensor for name, tensor in tensors.items()}
    if model.to_logits.weight is model.embedding.weight:  # tied: saved once
        state["to_logits.weight"] = state["embedding.weight"]
    model.load_state_dict(state)
    return model.eval()


llama = load(folder)
ids = prose[270_000:270_040][None]
gap = (llama(ids) - theirs(ids)).abs().max()
print(f"largest difference between the logits of the two models: {gap:.4f}")
prove("your Llama gives the logits of the model that was saved", gap < 1e-4)

# %% [markdown] id="window-says"
# Your window of section 3.2 fits around any layer. Here the first layer becomes local, and the loss hardly changes.
# `Local` only masks; the cache still keeps every key.


# %% id="window-in" tags=["tol:0.05"]
class Local(nn.Module):
    def __init__(self, layer, window):
        super().__init__()
        self.layer, self.window = layer, window

    def forward(self, x, positions, mask, cache=None):
        near = sliding_window_mask(*mask.shape, self.window).to(mask.device)
        return self.layer(x, positions, mask & near, cache)


print(f"every layer global: loss {loss_on(llama, prose[270_000:], 100):.2f}")
llama.layers[0] = Local(llama.layers[0], window=8)
print(f"the first one local: loss {loss_on(llama, prose[270_000:], 100):.2f}")

# %% [markdown] id="write-text"
# The layers keep a cache, so your `generate` of chapter 5 works unchanged:

# %% id="it-writes" tags=["not-compared:text-of-a-trained-model"]
draws = torch.Generator().manual_seed(1)


def by_chance(logits):
    return torch.multinomial((logits / 0.7).softmax(-1), 1, generator=draws)


for prompt in ("The value of ", "A function "):
    print(to_text(generate(llama, to_ids(prompt)[None], 70, by_chance)[0]))

# %% [markdown] id="end"
# It makes no sense yet, after 400 steps on single letters. But it reads the published format, and you wrote `build`,
# the GPT, its heads, gate and window, and `generate`.
#
# **You can now** read a published config, build its model and load a checkpoint; say which problem each switch solved;
# and write the loop of Flash, a router, and LoRA.
#
# ### Check yourself
#
# <details><summary>1. Why is FlashAttention faster, though it computes the same numbers?</summary>
#
# Plain attention writes the n × n table to the large, slow memory and reads it back. Flash works in the small, fast
# one, tile by tile, with a running maximum, sum and mixture for each query (section 4).
#
# </details>
#
# <details><summary>2. What does latent attention keep, and what does it mean that W is absorbed?</summary>
#
# It keeps one short vector c for each token. q · (W c) = (Wᵀq) · c, so the query is multiplied once and compared with
# the short vectors themselves; no key is made (section 3.1).
#
# </details>
#
# <details><summary>3. Why does a router collapse, and what are the two remedies?</summary>
#
# An expert that is chosen more often learns faster and is chosen even more. A loss M Σ f·p makes busy experts
# expensive. Or a bias on the scores, for the choice only, is moved against the load (section 6.1).
#
# </details>
#
# <details><summary>4. What does a linear attention's state lose, and what does the delta rule repair?</summary>
#
# Pairs whose keys overlap are read back mixed. The delta rule first reads what the state says under the new key and
# writes only the difference, so that the newest pair is right; older ones still suffer (section 5).
#
# </details>
#
# <details><summary>5. LoRA with r = 8 on a map from 1,024 to 3,072: how many parameters, and when will it not be enough?</summary>
#
# 8 · (1,024 + 3,072) = 32,768. Perhaps when there is much new text to learn (section 7).
#
# </details>
#
# ### What comes next
#
# [Chapter 8](08_scaling.ipynb) counts what a model costs. There are six labs: [families](labs/07_families.ipynb),
# [cheaper attention](labs/07_efficient_attention.ipynb), [linear memory](labs/07_linear_memory.ipynb),
# [experts](labs/07_experts.ipynb), [any order](labs/07_masked_diffusion.ipynb), [bugs](labs/07_bugs.ipynb).
#
# ### Sources
#
# <details><summary>The papers behind this chapter</summary>
#
# - Families: Devlin et al. 2019 (BERT), arXiv:1810.04805; Radford et al. 2019 (GPT-2); Raffel et al. 2020 (T5),
#   arXiv:1910.10683; Dosovitskiy et al. 2020 (ViT), arXiv:2010.11929; Warner et al. 2024 (ModernBERT),
#   arXiv:2412.13663; Zhang et al. 2025 (T5Gemma), arXiv:2504.06225.
# - The layer: Xiong et al. 2020 (where the norm stands), arXiv:2002.04745; Zhang and Sennrich 2019 (RMSNorm),
#   arXiv:1910.07467; Henry et al. 2020 (QK-norm), arXiv:2010.04245; Shazeer 2020 (gates), arXiv:2002.05202; Touvron et
#   al. 2023 (Llama), arXiv:2302.13971; Dubey et al. 2024 (Llama 3), arXiv:2407.21783; Yang et al. 2025 (Qwen3),
#   arXiv:2505.09388; Gemma 3, arXiv:2503.19786.
# - The cache: Ainslie et al. 2023 (grouped heads), arXiv:2305.13245; DeepSeek-V2 (latent attention), arXiv:2405.04434;
#   Beltagy et al. 2020 (windows), arXiv:2004.05150.
# - Flash: Dao et al. 2022, arXiv:2205.14135; Milakov and Gimelshein 2018 (softmax in one pass), arXiv:1805.02867.
# - Linear: Katharopoulos et al. 2020, arXiv:2006.16236; Schlag et al. 2021 (the delta rule), arXiv:2102.11174; Kimi
#   Linear, arXiv:2510.26692.
# - Experts: Shazeer et al. 2017, arXiv:1701.06538; Fedus et al. 2021 (Switch), arXiv:2101.03961; Wang et al. 2024 (the
#   bias), arXiv:2408.15664; DeepSeek-V3, arXiv:2412.19437.
# - LoRA: Hu et al. 2021, arXiv:2106.09685; Dettmers et al. 2023 (QLoRA), arXiv:2305.14314; Schulman and Thinking
#   Machines Lab 2025, *LoRA Without Regret*.
#
# </details>
