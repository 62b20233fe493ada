# %% [markdown] id="title"
# # 3 Positional encoding
#
# Attention does not know the order of its tokens. In this notebook you measure what that costs and build six cures:
# sinusoids, learned tables, rotary positions, ALiBi, T5's buckets, and none. Afterwards you can choose one, and say
# what it does beyond the trained length. It builds on chapter 1. Measured: 30 seconds of processor time, 0.7 GB of
# memory. Run the first cell:

# %% id="first-look" tags=["atol:0.001"]
import torch
from course_lib.attention import scaled_dot_product_attention as sdpa

torch.set_num_threads(1)  # the same rounding everywhere
torch.manual_seed(0)
vector = {word: torch.randn(4) for word in ("dog", "bites", "man")}

outputs = {}
for sentence in ("dog bites man", "man bites dog"):
    x = torch.stack([vector[word] for word in sentence.split()])  # (T, D)
    outputs[sentence] = dict(zip(sentence.split(), sdpa(x, x, x)))
    for word, row in outputs[sentence].items():
        print(f"{sentence}: {word:>5} becomes", " ".join(f"{number:6.3f}" for number in row))

# %% [markdown] id="what-just-happened"
# The dog of "dog bites man" and the dog of "man bites dog" get the same vector. So do the two men. Who bit whom is
# lost: this layer cannot know it, whatever is trained on top of it, word by word.
#
# The cure is to tell each token its **position**. This chapter is about the ways to do that. The letters are those of
# the whole course: **B** sentences, **T** queries, **S** keys, **H** heads, **D** width of a token vector, **E** width
# of a head, **V** size of the vocabulary. A position is a whole number, counted from 0.

# %% id="imports"
import math

import matplotlib.pyplot as plt
import numpy as np
import torch.nn.functional as F
from torch import nn

from course_lib import exercises as ex
from course_lib import masks, positions, testing
from course_lib.attention import record_weights
from course_lib.cache import KVCache
from course_lib.config import TransformerConfig
from course_lib.data import reference_text
from course_lib.encoder import TransformerEncoder
from course_lib.layers import TokenEmbedding
from course_lib.multi_head import MultiHeadAttention
from course_lib.positions import LearnedPositionalEmbedding, RotaryEmbedding, SinusoidalPositionalEncoding
from course_lib.transformer import LanguageModel
from course_lib.explorers import PositionExplorer
from course_lib.viz import palette, show

# %% id="prove"
from course_lib.testing import complaint, prove, proved  # prove stops at a false claim

one, other = outputs.values()
same = all(torch.allclose(one[word], other[word], atol=1e-6) for word in one)
prove("without positions each word gets the same vector in both sentences", same)

# %% [markdown] id="why"
# ## 1 Why positions have to be told
#
# ### 1.1 The same sentence, turned round
#
# > **You will read that** two sentences with two words exchanged look identical to attention, or have the same weights.
#
# > **Predict.** Compare the two tables of weights cell by cell. Are they equal? And the two sets of outputs?

# %% id="dog-man" tags=["atol:0.001"]
forward = torch.stack([vector[word] for word in ("dog", "bites", "man")])  # (T, D)
backward = forward.flip(0)
first, first_weights = sdpa(forward, forward, forward, return_weights=True)
second, second_weights = sdpa(backward, backward, backward, return_weights=True)

print(f"weights, cell by cell:            differ by up to {(first_weights - second_weights).abs().max():.3f}")
print(f"outputs, place by place:          differ by up to {(first - second).abs().max():.3f}")
realigned = (first_weights - second_weights.flip(0, 1)).abs().max()
prove("after realigning rows and columns the weights are equal to 1e-6", realigned < 1e-6)
prove("after realigning, the outputs are equal to 1e-6", (first - second.flip(0)).abs().max() < 1e-6)
prove("the mean of all outputs is the same for both sentences", torch.allclose(first.mean(0), second.mean(0)))

# %% [markdown] id="dog-man-says"
# *Imprecise.* Nothing is identical place by place; everything is **permuted** along with the words. Only what is
# pooled over all places, such as the mean, is the same. The word for this is permutation-**equivariant**
# (chapter 1, section 6). It holds for a whole stack of layers as well, and a word that occurs twice gets one and the
# same vector twice:

# %% id="dog-man-stack" tags=["tol:0.02"]
torch.manual_seed(0)
plain = TransformerConfig(d_model=32, n_heads=4, n_encoder_layers=3, positions="none", dropout=0.0)
stack = TransformerEncoder(plain).eval()
sentence = torch.randn(1, 7, 32)  # (B, T, D)
sentence[:, 5] = sentence[:, 1]  # a word that occurs twice
output = stack(sentence)
prove(
    "three layers without positions are equivariant",
    not complaint(testing.assert_permutation_equivariant, stack, sentence),
)
prove("a repeated word gets the same vector twice", torch.allclose(output[:, 5], output[:, 1], atol=1e-5))


def causal_stack(x):
    return stack(x, mask=masks.causal_mask(x.size(1)))


broken = complaint(testing.assert_permutation_equivariant, causal_stack, sentence, module=stack)
print("with a causal mask:", broken)
prove("under a causal mask the stack is not equivariant", broken)

# %% [markdown] id="own-position-question"
# ### 1.2 What a model without positions still knows
#
# The last line is not a detail. A causal mask treats places differently: the first token sees one key, the eighth
# sees eight. Can a model use that? We ask it directly. Tokens are drawn at random, and each output must name its own
# position, 0 to 7. Chance is one in eight.
#
# > **Predict** four accuracies: with and without a causal mask, with and without one fixed **start token** in front.


# %% id="own-position"
class WhereAmI(nn.Module):
    """Names the position of each token, without being told any: tokens (B, T) -> scores (B, T, T)."""

    def __init__(self, causal, start, T=8, V=11, width=32):
        super().__init__()
        config = TransformerConfig(
            d_model=width, n_heads=2, d_ff=64, n_encoder_layers=1, positions="none", dropout=0.0, norm_place="pre"
        )
        self.token, self.stack, self.answer = (
            TokenEmbedding(V + 1, width),
            TransformerEncoder(config),
            nn.Linear(width, T),
        )
        self.causal, self.start, self.T, self.V = causal, start, T, V

    def forward(self, tokens):
        if self.start:
            tokens = F.pad(tokens, (1, 0), value=self.V)  # (B, T) -> (B, T + 1)
        mask = masks.causal_mask(tokens.size(1)) if self.causal else None
        return self.answer(self.stack(self.token(tokens), mask=mask))[:, -self.T :]  # (B, T, T)


# %% id="own-position-training"
def accuracy_of_places(causal, start, steps=200):
    torch.manual_seed(0)
    model, generator = WhereAmI(causal, start), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        tokens = torch.randint(11, (32, 8), generator=generator)  # (B, T)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), torch.arange(8).repeat(32))  # (B, T, T) -> (B T, T)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        named = model(torch.randint(11, (1000, 8), generator=generator)).argmax(-1)  # (B, T)
    return (named == torch.arange(8)).float().mean().item()


# %% id="own-position-measured" tags=["atol:0.06"]
places = {}
for causal in (False, True):
    for start in (False, True):
        places[causal, start] = accuracy_of_places(causal, start)
        words = ("causal" if causal else "no mask", "with a start token" if start else "no start token")
        print(f"{words[0]:>8}, {words[1]:<19} {places[causal, start]:.2f}")

# %% id="own-position-proof"
chance = max(places[False, False], places[False, True])
prove("without mask and positions a model names its place no better than chance", chance < 0.16)
prove("a causal model without positions does better than chance", places[True, False] > 0.3)
prove("with a start token a causal model without positions finds its place", places[True, True] > 0.9)

# %% [markdown] id="own-position-says"
# > **You will read that** without positional encoding a Transformer has no sense of order.
#
# *Conditional.* Without a mask it is exactly so. Under a causal mask the model can count. If all keys get the same
# weight, the share of the start token is 1/(t + 1), and that number is the position (Haviv et al. 2022 found the same
# in language models). So "none" is a serious entry in the comparison of section 5, for causal models.

# %% [markdown] id="sinusoids"
# ## 2 Sinusoids
#
# The original Transformer adds a fixed vector to each token vector. Its entries are sines and cosines of the position
# p, in pairs i = 0 … D/2 - 1, each pair slower than the one before:
#
# > PE(p, 2i) = sin(p / 10000^(2i/D))
# >
# > PE(p, 2i + 1) = cos(p / 10000^(2i/D))
#
# An angle that grows with p is a hand on a clock. Sine and cosine are the two coordinates of the tip of the hand. The
# encoding of a position is what D/2 clocks of different speeds show at that time.

# %% exercise="sinusoidal_encoding"


# %% id="sinusoid-values"
table = sinusoidal_encoding(torch.arange(20), 16)  # (T, D)
for p in (0, 1, 10):
    print(f"position {p:2}:", " ".join(f"{number:6.3f}" for number in table[p, :8]))
prove("position 0 reads 0, 1, 0, 1, and so on", table[0].tolist() == [0.0, 1.0] * 8)


# %% id="sinusoid-rungs"
def by_loops(T, D):
    angles = [[p / 10000 ** (2 * i / D) for i in range(D // 2)] for p in range(T)]
    return torch.tensor([[f(angle) for angle in row for f in (math.sin, math.cos)] for row in angles])  # (T, D)


library = SinusoidalPositionalEncoding(16)
prove("loops and the vectorised table agree to 1e-5", torch.allclose(by_loops(20, 16), table, atol=1e-5))
prove("the library's table is the same", torch.allclose(library(torch.arange(20)), table, atol=1e-6))
factor = torch.exp(torch.arange(0, 16, 2) * (-math.log(10000.0) / 16))  # as most code has it
divisor = 10000.0 ** (torch.arange(0, 16, 2) / 16)  # as the formula has it
prove(
    "the number that code multiplies by is the inverse of the formula's divisor",
    torch.allclose(factor * divisor, torch.ones(8)),
)

# %% [markdown] id="picture-says"
# The last line is there because of a comment found in many programs, which calls the factor `exp(-2i ln(10000)/D)`
# "the divisor". It is one over the divisor: small for slow pairs.
#
# Now the picture that every text shows. We draw it **from the table**. Drawn from the output of a module in training
# mode, it would show dropout, not positions (exhibit 7).

# %% id="picture"
fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.2), width_ratios=[1, 1.6])
wide = sinusoidal_encoding(torch.arange(50), 512)
for ax, drawn, title in ((axes[0], table, "20 positions, width 16"), (axes[1], wide, "50 positions, width 512")):
    ax.imshow(drawn, aspect="auto", cmap=palette.signed, vmin=-1, vmax=1, interpolation="nearest")
    ax.set(title=title, xlabel="dimension", ylabel="position", yticks=range(0, len(drawn), len(drawn) // 5))
    ax.grid(visible=False)
show(
    fig,
    alt="Two heat maps of sinusoids, positions downwards, dimensions to the right. Stripes change fast at the left and "
    "hardly at all at the right; most of the wide table is constant columns of 0 and 1.",
    caption="Fast clocks at the left, slow ones at the right. Over 50 positions 208 of 512 dimensions hardly "
    "move: in short texts only the fast ones do any work.",
)

# %% id="picture-proof"
still = (wide.amax(0) - wide.amin(0)) < 0.1  # (D,)
print(f"dimensions of 512 that move by less than 0.1 over 50 positions: {int(still.sum())}")
prove("over 50 positions at least 200 of 512 dimensions move by less than 0.1", still.sum() >= 200)

# %% [markdown] id="binary-says"
# > **You will read that** sinusoids are like counting in binary.
#
# An analogy, and a helpful one. In a binary number each digit flips half as often as the one before; here each pair
# turns more slowly than the one before. But the speeds differ by a factor that depends on D, not by two, and the
# values are smooth. Side by side:

# %% id="binary" tags=["atol:0.001"]
ratio = 10000 ** (2 / 8)
print(f"width 8: each pair is slower by a factor {ratio:.0f}; a binary digit by 2")
print("position   binary    sines of four pairs")
for p in range(6):
    sines = sinusoidal_encoding(torch.tensor([p]), 8)[0, 0::2]
    print(f"{p:8}   {p:04b}     ", " ".join(f"{sine:6.3f}" for sine in sines))

# %% [markdown] id="wavelengths-says"
# ### 2.1 Wavelengths

# %% exercise="longest_wavelength"


# %% id="wavelengths" tags=["tol:0.001"]
waves = {D: 2 * math.pi / positions.frequencies(D) for D in (16, 64, 256, 512)}
for D, wave in waves.items():
    short = 1 - wave.max() / (20000 * math.pi)
    print(f"D = {D:3}: shortest {wave.min():.2f}, longest {wave.max():8.0f}, {100 * short:2.0f} % short of 20000 π")
exact = [2 * math.pi * 10000 ** ((D - 2) / D) for D in waves]
agree = np.allclose([float(wave.max()) for wave in waves.values()], exact, rtol=1e-4)
prove("the longest wavelength is 2π · 10000^((D - 2)/D)", agree)
prove("at width 16 it is more than 60 % short of 10000 · 2π", exact[0] < 0.4 * 20000 * math.pi)

# %% [markdown] id="distinct-says"
# > **You will read that** wavelengths run from 2π to 10000 · 2π.
#
# *Imprecise.* The last exponent is (D - 2)/D, not 1.
#
# ### 2.2 Is every position's code its own?
#
# > **You will read that** each position has a unique pattern.
#
# > **Predict.** Among 2000 positions, how far apart are the two most similar codes at width 512, and at width 2?

# %% id="distinct" tags=["tol:0.02"]
nearest = {}
for D in (2, 4, 64, 512):
    codes = SinusoidalPositionalEncoding(D)(torch.arange(2000)).double()
    apart = torch.cdist(codes, codes, compute_mode="donot_use_mm_for_euclid_dist")  # (T, T)
    nearest[D] = apart.fill_diagonal_(math.inf).min().item()
    p, q = divmod(int(apart.argmin()), 2000)
    print(f"D = {D:3}: smallest distance {nearest[D]:.2g}, between positions {p} and {q}")
prove("at width 512 any two of 2000 positions are more than 3 apart", nearest[512] > 3)
prove("at width 2 two positions are closer than 0.0001", nearest[2] < 1e-4)

# %% [markdown] id="distinct-verdict"
# *Conditional*, on the width. At width 2 there is one clock, and it shows nearly the same time again and again.
# Wide enough, the codes are distinct, and far more so than rounding could blur. The rounding is worth knowing too: in
# float32 an angle of thousands of radians has few digits left after the point.

# %% id="float32" tags=["tol:0.25"]
p = torch.arange(5000)
exact = p[:, None].double() * 10000.0 ** (-torch.arange(0, 512, 2).double() / 512)  # (T, D / 2)
exact = torch.stack([exact.sin(), exact.cos()], dim=-1).flatten(-2)  # (T, D / 2, 2) -> (T, D)
error = (SinusoidalPositionalEncoding(512)(p) - exact).abs().amax(-1)  # (T,)
for below in (100, 512, 5000):
    print(f"positions below {below:4}: float32 is off by up to {error[:below].max():.0e}")
prove("below position 5000 the float32 table is right to 0.001", error.max() < 1e-3)

# %% [markdown] id="similarity-says"
# ### 2.3 Similarity and distance
#
# The dot product of two codes is a sum over pairs of sin a sin b + cos a cos b = cos(a - b). Only the difference of
# the angles is left, so only the distance of the two positions.

# %% exercise="first_rise"


# %% id="similarity" tags=["atol:0.001"]
similar = {}
for D in (16, 64, 512):
    codes = SinusoidalPositionalEncoding(D)(torch.arange(200)).double()
    similar[D] = codes @ codes[0] / (D / 2)  # 1 at distance 0
    rises = int((similar[D][1:] > similar[D][:-1]).nonzero()[0]) + 1
    print(
        f"D = {D:3}: similarity {similar[D][1]:.3f} at distance 1, {similar[D][10]:.3f} at 10; first rises at {rises}"
    )
    first = (codes[:150] * codes[7:157]).sum(-1)  # distance 7, everywhere
    prove(f"at width {D} the product at distance 7 is the same everywhere", first.max() - first.min() < 1e-3)
codes = SinusoidalPositionalEncoding(512)(torch.arange(45)).double()
prove(
    "at width 512 the product falls up to distance 43 and then rises", bool(((codes @ codes[0]).diff()[:43] < 0).all())
)

# %% id="similarity-figure"
fig, ax = plt.subplots(figsize=(6.4, 3))
for (D, values), color in zip(similar.items(), palette.series):
    ax.plot(values[:100], color=color)
    ax.text(101, values[99], f"D = {D}", color=color, va="bottom" if D == 64 else "top")
ax.axvline(43, color=palette.residual, linewidth=1, linestyle=":")
ax.set(xlabel="distance", ylabel="product / (D / 2)", xlim=(0, 116))
show(
    fig,
    alt="Product of two codes against their distance from 0 to 99, for widths 16, 64 and 512. All start at 1 and fall "
    "steeply; the narrow ones swing up and down, the widest falls in steps and first rises after distance 43.",
    caption="Near positions are similar, but the product does not simply fall: it wobbles, the more the narrower the "
    "code. The dotted line is where the widest first rises.",
)

# %% [markdown] id="explorer-question"
# > **Predict.** Choose a position and a shift. Which pairs turn visibly when the shift is 3? Does the similarity change
# > when you move the position and leave the shift?

# %% id="explorer"
PositionExplorer(positions.frequencies(16), position=5, shift=3)

# %% [markdown] id="rotation-says"
# ### 2.4 A step forward is a rotation
#
# Turn every clock by the same time and you have another position. So the code of p + k comes from the code of p by a
# rotation of each pair by the angle k · frequency, and this rotation **does not depend on p**. The paper names it as
# the reason for choosing sinusoids.

# %% exercise="position_shift_matrix"


# %% id="rotation" tags=["tol:0.25"]
codes = SinusoidalPositionalEncoding(64)(torch.arange(6000))  # (T, D)
angles = torch.arange(6000).double()[:, None] * 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)
exact = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)  # (T, D), float64
worst = 0.0
for k in (1, 7, 100, 1000):
    matrix = position_shift_matrix(k, 64)
    off = (codes[:5000] @ matrix.T - codes[k : 5000 + k]).abs().max().item()
    worst = max(worst, (exact[:5000] @ matrix.double().T - exact[k : 5000 + k]).abs().max().item())
    print(f"shift {k:4}: M @ PE(p) is off PE(p + k) by at most {off:.0e}, at 5000 positions, in float32")
prove("one matrix moves every one of 5000 codes by k, to float32 rounding of the matrix", worst < 1e-6)
prove("the matrix is a rotation: its transpose undoes it", torch.allclose(matrix @ matrix.T, torch.eye(64), atol=1e-5))
same = torch.allclose(positions.position_shift_matrix(1000, 64), matrix, atol=1e-4)
prove("the library's shift matrix is the same", same)

# %% [markdown] id="fit-question"
# Here is a stronger test. Suppose nobody told us the rotation. We **fit** it, pair by pair, on positions below 500 by
# least squares, and use it on positions it never saw. Then the same for a random table of the same size, as a learned
# table is before training.
#
# > **Predict** the two errors on unseen positions.


# %% id="fit" tags=["tol:0.02"]
def fitted(codes, width, k=7, seen=500):
    """Fit matrices on the first positions, width columns at a time; the relative error on the others."""
    wrong = right = 0.0
    for block in codes.split(width, dim=-1):  # (T, width)
        matrix = torch.linalg.lstsq(block[: seen - k], block[k:seen]).solution  # (width, width)
        wrong += (block[seen:-k] @ matrix - block[seen + k :]).square().sum()
        right += block[seen + k :].square().sum()
    return math.sqrt(wrong / right)


torch.manual_seed(0)
random = torch.randn(2000, 64, dtype=torch.float64)
print(f"sinusoids, pair by pair: exact to 1e-10 on unseen positions: {fitted(exact[:2000], 2) < 1e-10}")
print(f"random table: relative error {fitted(random, 2):.2f} pair by pair, {fitted(random, 64):.2f} all at once")
prove("the fitted rotation of sinusoids holds on unseen positions to 1e-10", fitted(exact[:2000], 2) < 1e-10)
prove("in a random table no matrix moves unseen codes", min(fitted(random, 2), fitted(random, 64)) > 0.9)

# %% [markdown] id="fit-says"
# An error of 1 is what a prediction of zeros would have. A random table holds no rule that leads from one position to
# the next, so nothing fitted on some rows can say anything about the others.
#
# > **You will read that** the model can therefore attend to relative positions.
#
# *Imprecise.* It *can*, inside the trained range: the linear maps of query and key may learn such a rotation. Whether
# that carries beyond the range is an experiment (section 5), and the answer is no.
#
# ### 2.5 Parameters, and what is saved
#
# > **Predict.** How many parameters has the module, and how many entries in the saved model?


# %% id="saved"
class WithBuffer(nn.Module):
    """The usual program: a table of 5000 rows, kept as a buffer, with dropout."""

    def __init__(self, d_model, longest=5000, dropout=0.1):
        super().__init__()
        self.register_buffer("table", sinusoidal_encoding(torch.arange(longest), d_model))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(x + self.table[: x.size(1)])  # (B, T, D)


usual = WithBuffer(64).eval()
saved = sum(tensor.numel() * tensor.element_size() for tensor in usual.state_dict().values())
print("parameters:", sum(p.numel() for p in usual.parameters()), f" bytes saved: {saved:,}")
x = torch.randn(2, 7, 64)  # (B, T, D)
same = torch.allclose(usual(x), x + SinusoidalPositionalEncoding(64)(torch.arange(7)), atol=1e-6)
prove("in eval mode the usual program adds the library's sinusoids", same)
prove("a table kept as a buffer is no parameter but is saved", saved == 4 * 5000 * 64 and not list(usual.parameters()))
prove(
    "the library's module saves nothing: it computes what it needs", not SinusoidalPositionalEncoding(64).state_dict()
)

# %% [markdown] id="learned"
# ## 3 Learned positions
#
# The other way to get a table is to train it: one row a position, like the token table. BERT and GPT-2 do this.


# %% id="learned-rungs" tags=["tol:0.02"]
class OwnLearned(nn.Module):
    """The whole of it: positions (T,) -> (T, D)."""

    def __init__(self, longest, d_model):
        super().__init__()
        self.table = nn.Parameter(torch.randn(longest, d_model) * d_model**-0.5)

    def forward(self, positions):
        return self.table[positions]  # (T,) -> (T, D)


own, library = OwnLearned(32, 16), LearnedPositionalEmbedding(32, 16)
library.load_state_dict({"weight": own.table})
fixed = SinusoidalPositionalEncoding(16)
p = torch.arange(7)
found = testing.assert_equivalent(own, library, p, parameters=[(own.table, library.weight)])
prove("our learned table equals the library's, gradients too", max(found) < 1e-6)
for name, module in (("sinusoidal", fixed), ("learned", library)):
    count = sum(parameter.numel() for parameter in module.parameters())
    print(f"{name:>10}: {tuple(module(p).shape)}, {count} trained numbers, gradient: {module(p).requires_grad}")

# %% [markdown] id="learned-end"
# A table ends. Position 32 of 32 does not exist, and the error should say so:

# %% id="learned-error"
try:
    library(torch.arange(40))
except ValueError as error:
    print(error)
    prove("positions past a learned table raise an error that names the limit", "max_length=32" in str(error))
prove("sinusoids have a value at any position", bool(fixed(torch.tensor([1_000_000])).isfinite().all()))

# %% [markdown] id="rotary"
# ## 4 Positions inside attention
#
# The schemes so far are added to the token vectors and have to find their way through every projection. The three
# that follow act where positions matter, on the scores.
#
# ### 4.1 Rotary positions (RoPE)
#
# Section 2.4 showed that a step is a rotation. So do not add the clock; **turn the query and the key** by it. Pair i
# of a query at position p is turned by p · frequency, the same for keys. Turning both by the same extra angle changes
# no dot product. What is left is the difference of the two positions (Su et al. 2021).

# %% exercise="apply_rotary"


# %% id="rotary-proof" tags=["atol:0.001"]
torch.manual_seed(0)
query, key = torch.randn(2, 1, 1, 1, 16)  # (2, B, H, T, E) -> two of (B, H, T, E)
for distance in (0, 3, 20):
    scores = []
    for start in (5, 50, 500):
        turned = apply_rotary(query, torch.tensor([start + distance]))
        scores.append((turned * apply_rotary(key, torch.tensor([start]))).sum().item())
    print(f"distance {distance:2}: score", " ".join(f"{score:.3f}" for score in scores), "with the key at 5, 50, 500")
    prove(f"at distance {distance} the rotary score is the same at 5, 50 and 500", max(scores) - min(scores) < 1e-3)

# %% [markdown] id="rotary-algebra"
# The proof takes one line. Write R(p) for the rotation. Then (R(p) q) · (R(s) k) = qᵀ R(p)ᵀ R(s) k = qᵀ R(s - p) k,
# because rotations of the plane add up. The library does the same, with two **layouts** in use in the world:
#
# - **half**: component i is paired with i + E/2 (Llama, `transformers`), as in the exercise;
# - **interleaved**: component 2i with 2i + 1 (the paper).
#
# > **Predict.** Are the two interchangeable for a trained model?

# %% id="rotary-layouts" tags=["atol:0.001"]
p = torch.arange(7)
q, k = torch.randn(2, 2, 3, 7, 10)  # (2, B, H, T, E) -> two of (B, H, T, E)
half, woven = RotaryEmbedding(10)(p), RotaryEmbedding(10, layout="interleaved")(p)
same = torch.allclose(positions.apply_rotary(q, half), apply_rotary(q, p), atol=1e-5)
prove("the library's rotary positions equal the exercise's", same)


def scores(turn, order=slice(None)):
    return positions.apply_rotary(q[..., order], turn) @ positions.apply_rotary(k[..., order], turn).mT  # (B, H, T, T)


order = torch.arange(10).view(2, 5).T.flatten()  # 0 5 1 6 2 7 3 8 4 9
print(f"the same q and k, other layout: scores differ by up to {(scores(half) - scores(woven)).abs().max():.1f}")
prove("the two layouts give different scores", (scores(half) - scores(woven)).abs().max() > 0.1)
prove("after reordering the components they agree", torch.allclose(scores(half), scores(woven, order), atol=1e-4))

# %% [markdown] id="rotary-layouts-says"
# Not interchangeable: weights trained with one layout are wrong with the other, and no error says so. They become
# right if the rows of the query and key projections are reordered, as checkpoint converters do.
#
# **Before the cache.** A key's turn depends on its own position alone. So it is turned once, then stored
# (`MultiHeadAttention` does so). A step at position p needs p, and nothing else:

# %% id="rotary-cache" tags=["tol:0.02"]
torch.manual_seed(0)
attention, rotary = MultiHeadAttention(12, 2).eval(), RotaryEmbedding(6)
x = torch.randn(2, 7, 12)  # (B, T, D)


def full(x):
    return attention(x, causal=True, rotation=rotary(torch.arange(x.size(1))))


def step(new, cache):
    cache = KVCache() if cache is None else cache
    place = torch.arange(cache.length, cache.length + new.size(1))  # goes on where the cache ends
    return attention(new, causal=True, rotation=rotary(place), cache=cache), cache


law = complaint(testing.assert_cache_consistent, full, step, x)
prove("rotary attention with a cache equals the full pass", not law)

# %% exercise="cache_restart"


# %% exercise="padded_positions"


# %% [markdown] id="alibi"
# ### 4.2 ALiBi: far is lower
#
# Attention with Linear Biases (Press et al. 2022) adds no vector and turns nothing. It lowers each score by the
# distance times a slope. Each head has its own slope, from steep (sees a few neighbours) to shallow.

# %% exercise="alibi_bias"


# %% id="alibi-check"
slopes = positions.alibi_slopes(4)
print("slopes of 4 heads:", slopes.tolist())
print(alibi_bias(slopes[:1], 3, 5)[0].tolist())  # three queries on the last three of five keys
for T, S in ((5, 5), (3, 7)):
    same = torch.allclose(alibi_bias(slopes, T, S), positions.ALiBi(4)(T, S)[0])
    prove(f"the library's ALiBi is the same for T = {T}, S = {S}", same)

# %% [markdown] id="buckets"
# ### 4.3 T5: a trained number for each distance
#
# T5 lets each head learn what it wants to add at each distance. Near distances have a number of their own; far ones
# share **buckets** that grow wider, so 32 numbers a head serve any length (Raffel et al. 2020).

# %% exercise="distance_bucket"


# %% id="buckets-table"
distance = torch.arange(0, 200)
bucket = positions.relative_bucket(-distance, bidirectional=True)  # earlier keys
edges = [int((bucket == b).nonzero()[0]) for b in range(16)]
print("buckets 0 to 15 start at distance", edges)
later = positions.relative_bucket(distance[1:], bidirectional=True)
by_formula = [d if d < 8 else min(15, 8 + math.floor(8 * math.log2(d / 8) / math.log2(16))) for d in range(200)]
prove("the library's buckets are those of the formula", bucket.tolist() == by_formula)
prove("later keys have 16 buckets of their own", torch.equal(later, bucket[1:] + 16))
prove("the buckets 0 to 7 hold one distance each", edges[:8] == list(range(8)))
prove("all distances from 128 on share a bucket", set(bucket[128:].tolist()) == {15})

# %% id="bias-figure"
fig, axes = plt.subplots(1, 2, figsize=(7.2, 2.8))
for slope, color in zip(positions.alibi_slopes(4), palette.series):
    axes[0].plot(-slope * torch.arange(33), color=color)
    axes[0].text(33, -slope * 32, f"{slope:.3g}", color=color, va="top" if slope > 0.01 else "bottom")
axes[0].set(title="ALiBi: added to the score", xlabel="distance", xlim=(0, 40))
axes[1].step(distance, bucket, where="post", color=palette.query)
axes[1].set(title="T5: bucket of an earlier key", xlabel="distance", ylabel="bucket", yticks=range(0, 16, 3))
show(
    fig,
    alt="Left: four straight lines that fall from 0 with distance, slopes 0.25 to 0.0039. Right: a staircase, one step "
    "for each distance up to 8, then wider and wider steps up to bucket 15 at distance 91.",
    caption="ALiBi fixes how fast far keys fade and leaves only the slope to the head. T5 leaves the height to "
    "training, and gives near distances a step each.",
)

# %% [markdown] id="long"
# ## 5 Train short, test long
#
# > **You will read that** sinusoids let a model work on longer texts than it was trained on, since they have a value at
# > every position.
#
# One experiment decides, for all schemes at once. Everything is the same model: one causal layer, two heads, width 32.
# Only the positions differ. **Random shift** is the sinusoids again, but in training each batch starts at a random
# position, so all codes are seen while no sequence is longer.
#
# The first task is to say which token stood **three places back**: no language, only position. We train at 16 tokens
# and test at places up to 64.


# %% id="long-layer"
INSIDE = ("rotary", "alibi", "relative")  # these act on the scores, the others are added to the tokens


def causal_layer(scheme, n_heads, width):
    """One layer, with the scheme inside its attention if it belongs there."""
    return TransformerEncoder(
        TransformerConfig(
            d_model=width, n_heads=n_heads, d_ff=64, n_encoder_layers=1, dropout=0.0, norm_place="pre",
            positions=scheme if scheme in INSIDE else "none", relative_buckets=16, relative_max_distance=32,
        )
    )  # fmt: skip


# %% id="long-model"
class Reader(nn.Module):
    """One causal layer with a choice of positions: tokens (B, T) -> scores (B, T, V)."""

    def __init__(self, scheme, V, n_heads=2, width=32, shift=0, longest=64):
        super().__init__()
        self.token, self.answer = TokenEmbedding(V, width), nn.Linear(width, V)
        self.stack = causal_layer(scheme, n_heads, width)
        fixed, learned = SinusoidalPositionalEncoding(width), LearnedPositionalEmbedding(longest, width)
        self.places = {"sinusoidal": fixed, "learned": learned}.get(scheme)
        self.shift = shift

    def forward(self, tokens):
        T, x = tokens.size(1), self.token(tokens)  # (B, T, D)
        if self.places is not None:
            start = int(torch.randint(self.shift + 1, ())) if self.training and self.shift else 0
            x = x + self.places(torch.arange(start, start + T))
        return self.answer(self.stack(x, mask=masks.causal_mask(T)))


# %% id="long-training"
SCHEMES = {  # name -> scheme, random shift in training
    "none": ("none", False),
    "sinusoidal": ("sinusoidal", False),
    "learned": ("learned", False),
    "random shift": ("sinusoidal", True),
    "rotary": ("rotary", False),
    "ALiBi": ("alibi", False),
    "T5 buckets": ("relative", False),
}


def train(model, steps, loss_of, rate=5e-3):
    """Train on fresh batches; loss_of(model, generator) -> loss."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        loss = loss_of(model, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


# %% id="three-back"
def three_back_loss(model, generator):
    tokens = torch.randint(11, (32, 16), generator=generator)  # (B, T)
    return F.cross_entropy(model(tokens)[:, 3:].flatten(0, 1), tokens[:, :-3].flatten())  # (B, T, V) -> (B T, V)


@torch.no_grad()
def three_back_accuracy(model, T=64):
    """Share of right answers at each place from 3 on, on 400 new sequences."""
    tokens = torch.randint(11, (400, T), generator=torch.Generator().manual_seed(99))
    return (model(tokens)[:, 3:].argmax(-1) == tokens[:, :-3]).float().mean(0)  # (B, T - 3) -> (T - 3,)


# %% [markdown] id="three-back-question"
# > **Predict.** Seven schemes. Which are right inside the 16 tokens, and which beyond? The chance is 1 in 11.

# %% id="three-back-measured" tags=["atol:0.12"]
back = {}
for name, (scheme, shifted) in SCHEMES.items():
    torch.manual_seed(0)
    model = train(Reader(scheme, 11, shift=48 * shifted), 300, three_back_loss)
    back[name] = three_back_accuracy(model)
print(f"{'places':>13}{'3-15':>8}{'16-23':>8}{'24-31':>8}{'32-63':>8}")
ranges = ((3, 16), (16, 24), (24, 32), (32, 64))
for name, right in back.items():
    print(f"{name:>13}" + "".join(f"{right[a - 3 : b - 3].mean():8.2f}" for a, b in ranges))

# %% id="three-back-proof"
inside = {name: right[:13].mean().item() for name, right in back.items()}
beyond = {name: right[13:].mean().item() for name, right in back.items()}
exact = ("sinusoidal", "learned", "random shift", "rotary", "T5 buckets")
prove("inside the trained length five schemes are right over 97 % of the time", min(inside[n] for n in exact) > 0.97)
prove("no positions and ALiBi cannot single out the third token back", max(inside["none"], inside["ALiBi"]) < 0.5)
prove("beyond the trained length plain sinusoids fail", beyond["sinusoidal"] < 0.5)
prove("beyond the trained length untrained rows of a table fail", beyond["learned"] < 0.25)
prove("rotary positions and randomly shifted sinusoids carry on", min(beyond["rotary"], beyond["random shift"]) > 0.9)

# %% [markdown] id="three-back-says"
# *False.* A code at every position is not enough. The model has to have **seen** it, or the scheme has to make the new
# position look like an old one, as relative schemes do. ALiBi fails even inside, and honestly so: one layer of it can
# prefer near tokens, but not the third one.
#
# Is rotary then simply the best? Look at a second task before you say so: real text, character by character, trained
# on 32 characters and read for 128. The measure is the loss on held-out text in nats a character.


# %% id="text-data"
alphabet = " abcdefghijklmnopqrstuvwxyz.,\n"
number_of = {symbol: number for number, symbol in enumerate(alphabet)}
text = torch.tensor([number_of.get(symbol, 0) for symbol in reference_text()[:200_000].lower()])
training, held_out = text[:180_000], text[180_000:]


def pieces(data, B, T, generator):
    starts = torch.randint(len(data) - T - 1, (B, 1), generator=generator)
    return data[starts + torch.arange(T + 1)]  # (B, T + 1)


def text_loss(model, generator):
    piece = pieces(training, 16, 32, generator)
    return F.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())  # (B, T, V) -> (B T, V)


@torch.no_grad()
def loss_by_place(model, T=128):
    piece = pieces(held_out, 200, T, torch.Generator().manual_seed(9))
    losses = F.cross_entropy(model(piece[:, :-1]).mT, piece[:, 1:], reduction="none")  # (B, V, T) -> (B, T)
    return losses.mean(0)  # (T,)


# %% [markdown] id="text-question"
# > **Predict.** Which scheme loses most beyond 32 characters, and which can go on for ever?

# %% id="text-measured" tags=["tol:0.05"]
reading, readers = {}, {}
for name, (scheme, shifted) in SCHEMES.items():
    torch.manual_seed(0)
    model = Reader(scheme, len(alphabet), n_heads=4, shift=96 * shifted, longest=128)
    readers[name] = train(model, 200, text_loss)
    reading[name] = loss_by_place(readers[name])
print(f"{'places':>13}{'8-31':>8}{'32-63':>8}{'64-127':>8}")
for name, losses in reading.items():
    print(f"{name:>13}" + "".join(f"{losses[a:b].mean():8.2f}" for a, b in ((8, 32), (32, 64), (64, 128))))

# %% id="long-figure"
fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.4))
for (name, right), color in zip(back.items(), palette.series):
    smooth = right.unfold(0, 4, 4).mean(-1)  # means of four places
    axes[0].plot(torch.arange(len(smooth)) * 4 + 4.5, smooth, color=color, label=name)
    smooth = (reading[name] - reading["none"]).unfold(0, 8, 8).mean(-1)
    axes[1].plot(torch.arange(len(smooth)) * 8 + 3.5, smooth, color=color, label=name)
for ax, trained in zip(axes, (16, 32)):
    ax.axvline(trained, color=palette.residual, linewidth=1, linestyle=":")
    ax.set_xlabel("place (dotted: trained length)")
axes[0].set(title="three places back: accuracy", ylim=(0, 1.03))
axes[1].set(title="text: loss above that of none (nats)")
axes[1].legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(1.0, 1.0))
show(
    fig,
    alt="Left: accuracy by place for seven schemes. Rotary and random shift stay near 1 beyond the trained length 16, "
    "T5 buckets sink slowly, sinusoidal and learned drop at once. Right: loss on text by place, minus that of the "
    "model without positions. ALiBi stays below zero, rotary rises to 0.2 beyond 32.",
    caption="No scheme wins both. Rotary finds an exact distance at any place, yet disturbs reading beyond the trained "
    "length; ALiBi cannot find an exact distance, yet reads on undisturbed.",
)

# %% id="text-proof"
near = {name: losses[8:32].mean().item() for name, losses in reading.items()}
far = {name: losses[64:].mean().item() for name, losses in reading.items()}
gain = {name: far[name] - near[name] for name in far}
prove("on text, inside the trained length, rotary reads better than no positions", near["rotary"] < near["none"] - 0.05)
prove("on text, of all schemes that know order, ALiBi loses least beyond", gain["ALiBi"] == min(gain.values()))
prove("on text, rotary loses more than 0.2 nats beyond the trained length", gain["rotary"] > 0.2)

# %% [markdown] id="long-says"
# Why does rotary lose on text? It has never met distances above 31, and nothing in it makes far keys fade. See how much
# weight the last 32 places give to keys that are farther than any distance in training:

# %% id="far-weight" tags=["atol:0.06"]
piece = pieces(held_out, 50, 127, torch.Generator().manual_seed(9))  # (B, T)
far_keys = torch.arange(128)[-32:, None] - torch.arange(128) > 31  # (32, T)
share = {}
for name in ("rotary", "T5 buckets", "ALiBi"):
    model = readers[name]
    with torch.no_grad(), record_weights(model.stack) as maps:
        model.stack(model.token(piece), mask=masks.causal_mask(128))
    first = maps["layers.0.self_attention"]  # (B, H, T, T)
    share[name] = (first[:, :, -32:] * far_keys).sum(-1).mean().item()  # (B, H, 32, T) -> (B, H, 32)
    print(f"{name:>10}: {share[name]:.2f} of the weight on keys more than 31 back")
prove("rotary gives unseen distances more than twice the weight that ALiBi does", share["rotary"] > 2 * share["ALiBi"])

# %% [markdown] id="far-weight-says"
# ALiBi lets far keys fade by construction. Models that use RoPE on long texts rescale its frequencies, or train on long
# texts at the end (`rotary_scaling.LinearScaling`, `NTKScaling`, chapter 7).
#
# These are small models, trained for seconds. What they show is which mechanism carries over, not a ranking for
# large ones.
#
# > **You will read that** learned and sinusoidal positions perform alike.
#
# > **Predict.** Inside the trained length, after 60 steps and after 300: who is ahead? And where is "none"?

# %% id="alike" tags=["atol:0.15"]
for name in ("none", "sinusoidal", "learned"):
    torch.manual_seed(0)
    model = train(Reader(name, 11), 60, three_back_loss)
    early = three_back_accuracy(model, 16).mean().item()
    print(f"{name:>10}: {early:.2f} after 60 steps, {inside[name]:.2f} after 300")
gap = abs(inside["learned"] - inside["sinusoidal"])
prove("after 300 steps learned and sinusoidal are alike inside the trained length", gap < 0.03)
prove("without positions the same model stays below 0.5", inside["none"] < 0.5)

# %% [markdown] id="alike-says"
# *Conditional*: inside the trained length, and after enough steps. There the table has a trained row for every
# position, and a row is as good as a formula.
#
# ## 6 How loud are the positions?
#
# The paper multiplies token vectors by √D before it adds positions. Many programs copy that line. Whether it is right
# depends on another line: how the token table starts.

# %% exercise="token_to_position"


# %% id="ratio" tags=["tol:0.02"]
D, V = 512, 500
torch.manual_seed(0)
places = SinusoidalPositionalEncoding(D)(torch.arange(50))
for name, std in (("N(0, 1), nn.Embedding", 1.0), ("std 0.02, GPT-2", 0.02), ("std 1/√D, course_lib", D**-0.5)):
    tokens = torch.randn(V, D) * std
    ratio = (tokens.square().mean() / places.square().mean()).sqrt()
    print(f"{name:>22}: tokens are {ratio:6.2f} times as large as positions, {ratio * math.sqrt(D):6.2f} times with √D")
ours = TokenEmbedding(V, D)(torch.arange(V))
ratio = (ours.square().mean() / places.square().mean()).sqrt().item()
prove("with std 1/√D and the factor √D, tokens and positions are of like size", 1.2 < ratio < 1.6)

# %% [markdown] id="ratio-says"
# With `nn.Embedding` and √D the positions are 32 times smaller than the tokens. With std 0.02 and no factor they are 35
# times larger. Two of the six give both a voice: N(0, 1) without √D, and std 1/√D with it.
#
# The table has a second job. If the head is **tied**, the same numbers turn the last vectors into scores. A fresh
# model should know nothing: its loss should be ln V, that of guessing evenly.
#
# > **Predict.** The first loss of a tied model with an N(0, 1) table, V = 500, where ln V = 6.21: about 6, 10, or 60?


# %% id="first-loss" tags=["tol:0.02"]
def first_loss(std, tied, scaled=True):
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=500, d_model=64, n_heads=4, n_encoder_layers=0, n_decoder_layers=2, dropout=0.0, norm_place="pre",
        scale_embeddings=scaled, tie_embeddings=tied,
    )  # fmt: skip
    model = LanguageModel(config)
    table = next(part for part in model.modules() if isinstance(part, TokenEmbedding))
    nn.init.normal_(table.weight, std=std)
    tokens = torch.randint(500, (8, 33))  # (B, T + 1)
    with torch.no_grad():
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).item()


firsts = {}
for name, std in (("N(0, 1)", 1.0), ("std 0.02", 0.02), ("std 1/√D", 64**-0.5)):
    firsts[name] = first_loss(std, True), first_loss(std, True, scaled=False), first_loss(std, False)
    tied, unscaled, untied = firsts[name]
    print(f"{name:>8}: first loss {tied:6.2f} tied, {unscaled:6.2f} tied without √D, {untied:.2f} not tied")
print(f"   ln V: {math.log(500):6.2f}")

# %% id="first-loss-proof"
prove("a tied N(0, 1) table starts more than 20 nats above ln V", firsts["N(0, 1)"][0] > math.log(500) + 20)
near = max(abs(loss - math.log(500)) for name in ("std 0.02", "std 1/√D") for loss in firsts[name])
prove("with std 0.02 or 1/√D the first loss is within 0.8 of ln V", near < 0.8)

# %% [markdown] id="first-loss-says"
# > **You will read that** embeddings must be multiplied by √D.
#
# *Imprecise.* The factor belongs to a table with standard deviation 1/√D, as in `TokenEmbedding` here. A first loss
# far above ln V is the quickest way to notice a wrong start.
#
# ## 7 What must be refused
#
# Sines and cosines come in pairs, so widths must be even. A table has an end. Positions are whole numbers. Each error
# names the argument:

# %% id="errors"
attempts = {
    "sinusoids of width 15": lambda: SinusoidalPositionalEncoding(15),
    "rotary of width 7": lambda: RotaryEmbedding(7),
    "a model of odd heads": lambda: TransformerConfig(d_model=15, n_heads=3, positions="rotary"),
    "past a learned table": lambda: LearnedPositionalEmbedding(16, 8)(torch.arange(17)),
    "half a position": lambda: SinusoidalPositionalEncoding(8)(torch.tensor([0.5])),
    "another rotation": lambda: positions.apply_rotary(torch.randn(1, 1, 5, 8), RotaryEmbedding(8)(torch.arange(4))),
}
refused = 0
for name, attempt in attempts.items():
    try:
        attempt()
    except (ValueError, TypeError) as error:
        refused += 1
        print(f"{name}: {error}")
prove("six wrong uses are refused with an error that names the argument", refused == len(attempts))

# %% [markdown] id="errors-usual-says"
# The usual program refuses too, but by accident and in other words. Here are its two messages, for a text longer than
# its 5000 rows and for a table of odd width:


# %% id="errors-usual"
def fill(d_model, T=5):
    table = torch.zeros(T, d_model)
    angle = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()


for name, attempt in (("too long", lambda: usual(torch.randn(1, 5001, 64))), ("odd", lambda: fill(15))):
    try:
        attempt()
    except RuntimeError as error:
        print(f"{name}:", str(error).split(".")[0])
        prove(f"the usual program's error, {name}, names no argument", "d_model" not in str(error))

# %% [markdown] id="museum"
# ## 8 Bug museum
#
# Eight real bugs with positions. None raises an error. Predict which **law** notices before you run.
#
# **Exhibit 1.** The cache that restarts at 0. *Which of the laws compares a cached run with a full one?*


# %% id="museum-cache" tags=["tol:0.02"]
def exhibit1(new, cache):
    cache = KVCache() if cache is None else cache
    turn = rotary(torch.arange(new.size(1)))  # new tokens, counted from 0 in every call
    return attention(new, causal=True, rotation=turn, cache=cache), cache


x = torch.randn(2, 7, 12)  # (B, T, D)
found = complaint(testing.assert_cache_consistent, full, exhibit1, x)
print(found)
prove("museum 1: cached tokens at position 0 are caught by assert_cache_consistent", found)

# %% [markdown] id="museum-padding-question"
# **Exhibit 2.** Padding on the left hides its keys properly. *What else changes for the real tokens?*


# %% id="museum-padding" tags=["tol:0.02"]
added = SinusoidalPositionalEncoding(12)


def padded(x, real, places):
    return attention(x + added(places), mask=masks.combine_masks(real[:, None, None], masks.causal_mask(x.size(1))))


def exhibit2(x, real):
    return padded(x, real, torch.arange(x.size(1)))  # columns


def repaired(x, real):
    return padded(x, real, padded_positions(real))  # new: each row counts its own tokens


found = complaint(testing.assert_padding_invariant, exhibit2, x, side="left", module=attention)
print(found)
prove("museum 2: left padding without its own positions is caught by assert_padding_invariant", found)
law = complaint(testing.assert_padding_invariant, repaired, x, side="left", module=attention)
prove("museum 2: positions that count real tokens obey the law", not law)

# %% [markdown] id="museum-padding-says"
# Schemes that see only distances need no such care:


# %% id="museum-padding-relative"
def relative(x, real, bias=None, turn=None):
    mask = masks.combine_masks(real[:, None, None], masks.causal_mask(x.size(1)))
    bias = bias(x.size(1)) if bias else None
    return attention(x, mask=mask, bias=bias, rotation=turn(torch.arange(x.size(1))) if turn else None)


def law_for(**scheme):
    return complaint(
        testing.assert_padding_invariant,
        lambda x, real: relative(x, real, **scheme),
        x,
        side="left",
        module=attention,
    )


buckets = positions.RelativePositionBias(2, bidirectional=False)
for name, scheme in (("rotary", {"turn": rotary}), ("ALiBi", {"bias": positions.ALiBi(2)}), ("T5", {"bias": buckets})):
    prove(f"left padding does no harm to {name}, even counted by columns", not law_for(**scheme))

# %% [markdown] id="museum-layouts-question"
# **Exhibit 3.** A checkpoint trained with one rotary layout is loaded into code with the other. *Shapes and names
# fit.*


# %% id="museum-layouts" tags=["tol:0.02"]
def trained_with(x):
    return attention(x, causal=True, rotation=RotaryEmbedding(6)(torch.arange(x.size(1))))


def loaded_into(x):
    return attention(x, causal=True, rotation=RotaryEmbedding(6, layout="interleaved")(torch.arange(x.size(1))))


found = complaint(testing.assert_equivalent, trained_with, loaded_into, x, gradients=False)
print(found)
prove("museum 3: mixed rotary layouts are caught by assert_equivalent with the source", found)

# %% [markdown] id="museum-values-question"
# **Exhibits 4 and 5.** Someone turns the values too. Someone else turns queries and keys before they are split into
# heads. *A relative scheme has a law of its own: which?*


# %% id="museum-relative" tags=["tol:0.02"]
def rotary_heads(x, start, before_split=False, on_values=False):
    p = torch.arange(start, start + x.size(1))
    heads = x if before_split else x.unflatten(-1, (2, 6)).transpose(1, 2)  # (B, T, D) -> (B, H, T, E)
    turned = positions.apply_rotary(heads, RotaryEmbedding(heads.size(-1))(p))
    if before_split:
        turned = turned.unflatten(-1, (2, 6)).transpose(1, 2)  # (B, T, D) -> (B, H, T, E)
        heads = x.unflatten(-1, (2, 6)).transpose(1, 2)
    return sdpa(turned, turned, turned if on_values else heads, causal=True)


def moved(**bug):
    """The law: moving the whole text by 100 places must change nothing."""
    return complaint(
        testing.assert_equivalent, lambda x: rotary_heads(x, 0, **bug), lambda x: rotary_heads(x, 100, **bug), x,
        gradients=False, tolerance=1e-4,
    )  # fmt: skip


# %% id="museum-relative-found" tags=["tol:0.02"]
print("on values:   ", moved(on_values=True))
print("before split:", moved(before_split=True))
prove("rotary positions obey the law of the moved text", not moved())
prove("museum 4: rotary positions on values break the law of the moved text", moved(on_values=True))
prove("museum 5: rotary positions before the split break it too", moved(before_split=True))

# %% [markdown] id="museum-halves-question"
# **Exhibit 6.** All sines in the first half, all cosines in the second. *A model trained with it works. What does not?*


# %% id="museum-halves" tags=["atol:0.01"]
def exhibit6(p, d_model=16):
    angle = p[:, None] * positions.frequencies(d_model)  # (T, D / 2)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


p = torch.arange(40)
off = (exhibit6(p) @ position_shift_matrix(3, 16).T - exhibit6(p + 3)).abs().max()
right = (sinusoidal_encoding(p, 16) @ position_shift_matrix(3, 16).T - sinusoidal_encoding(p + 3, 16)).abs().max()
print(f"law PE(p + 3) = M PE(p): off by {off:.2f} for halves")
prove("museum 6: halves instead of pairs break the shift law of the formula", off > 0.1 and right < 1e-4)
same = torch.allclose(exhibit6(p) @ exhibit6(p).T, sinusoidal_encoding(p, 16) @ sinusoidal_encoding(p, 16).T, atol=1e-4)
prove("museum 6: products of codes do not notice it", same)

# %% [markdown] id="museum-halves-says"
# It is the same set of columns in another order, so a model trained with it is as good. A model trained with the
# formula and run with this is not.
#
# **Exhibit 7.** The figure of section 2, drawn by calling the module. *What did the author forget?*

# %% id="museum-dropout" tags=["atol:0.02"]
torch.manual_seed(0)
fresh = WithBuffer(16)  # a module starts in training mode
drawn = fresh(torch.zeros(1, 20, 16))[0]  # (T, D)
pairs = drawn.unflatten(-1, (8, 2)).square().sum(-1)  # (T, D) -> (T, D / 2): sin² + cos² is 1
print(f"cells that are 0: {(drawn == 0).float().mean():.2f}, in the table {(table == 0).float().mean():.2f}")
print(f"largest value: {drawn.max():.2f}; sin² + cos² from {pairs.min():.2f} to {pairs.max():.2f}")
prove("museum 7: a table drawn through dropout breaks sin² + cos² = 1", (pairs - 1).abs().max() > 0.1)
pairs = fresh.eval()(torch.zeros(1, 20, 16))[0].unflatten(-1, (8, 2)).square().sum(-1)
prove("museum 7: in eval mode the law holds", torch.allclose(pairs, torch.ones(20, 8), atol=1e-5))

# %% [markdown] id="museum-precision-question"
# **Exhibit 8.** The model is converted to bfloat16, and with it the buffer of frequencies. *At which positions does it
# matter?*

# %% id="museum-precision" tags=["tol:0.05"]
rates = positions.frequencies(64)
for p in (10, 100, 1000, 10000):
    gap = (p * rates - p * rates.bfloat16().float()).abs().max()
    print(f"position {p:5}: an angle is off by up to {gap:8.3f} radians")
kept = SinusoidalPositionalEncoding(64).bfloat16()(torch.tensor([1000]))
same = torch.equal(kept, SinusoidalPositionalEncoding(64)(torch.tensor([1000])))
prove(
    "museum 8: bfloat16 frequencies turn position 1000 by over 0.4 radians too much",
    1000 * (rates - rates.bfloat16().float()).abs().max() > 0.4,
)
prove("museum 8: the library keeps its frequencies in float32 through .bfloat16()", same)

# %% [markdown] id="end"
# ## 9 What you have
#
# ### What was proved

# %% id="proved-table"
for number, claim in enumerate(proved, start=1):
    print(f"{number:3}  {claim}")

# %% [markdown] id="card"
# ### The formulas on one card
#
# | scheme | where | formula | trained | beyond the trained length |
# |---|---|---|---|---|
# | none | nowhere | only a causal mask tells places apart | no | section 5 |
# | sinusoidal | added to tokens | sin and cos of p / 10000^(2i/D) | no | has values, model fails |
# | learned | added to tokens | row p of a table | T · D numbers | ends |
# | rotary | turns q and k | (R(p) q) · (R(s) k) = qᵀ R(s - p) k | no | keeps exact distances, reads worse |
# | ALiBi | added to scores | - slope · distance | no | reads on |
# | T5 buckets | added to scores | b[head, bucket(distance)] | 32 · H numbers | far distances share a bucket |
#
# Shift: PE(p + k) = M(k) PE(p), with 2 × 2 blocks [[cos, sin], [-sin, cos]] of the angle k / 10000^(2i/D). Longest
# wavelength: 2π · 10000^((D - 2)/D). Product of two codes: Σ cos(distance · frequency).

# %% [markdown] id="self-check"
# ### Check yourself
#
# <details><summary>1. Why do positions have to be told at all?</summary>
#
# Without a mask, attention is permutation-equivariant: exchange words and the outputs are exchanged with them. Each
# word gets the same vector, so nothing that reads it can know the order (1.1).
#
# </details>
#
# <details><summary>2. Does a decoder without positions know order?</summary>
#
# Partly. The causal mask lets it count, best with a start token (1.2).
#
# </details>
#
# <details><summary>3. What is linear about sinusoids?</summary>
#
# For each k one rotation takes the code of any p to that of p + k (2.4). A random table has no such matrix.
#
# </details>
#
# <details><summary>4. Do sinusoids extrapolate?</summary>
#
# The codes do; a model trained without having seen them does not (5).
#
# </details>
#
# <details><summary>5. Where in the code does RoPE go?</summary>
#
# After the projections and the split into heads, on queries and keys only, before keys enter the cache (4.1).
#
# </details>
#
# <details><summary>6. Your first loss is 60 and ln V is 6. What do you look at?</summary>
#
# The standard deviation of the token table, if the head is tied to it (6).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# Chapter 4 puts the parts together: attention, feed-forward networks, residuals and norms become an encoder that
# learns a real task. Chapter 7 returns to positions: which model uses which scheme, and how RoPE is stretched.
#
# ### Sources
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: section 3.5 (sinusoids, linear shift), 3.4 (√D).
# - Gehring et al. 2017, arXiv:1705.03122: section 3.1, learned positions.
# - Haviv et al. 2022, *Transformer Language Models without Positional Encodings Still Learn Positional Information*,
#   arXiv:2203.16634.
# - Su et al. 2021, *RoFormer*, arXiv:2104.09864: section 3.2. Press, Smith, Lewis 2022, *Train Short, Test Long*
#   (ALiBi), arXiv:2108.12409: section 3. Raffel et al. 2020 (T5), arXiv:1910.10683: section 2.1.
# - Chen et al. 2023, *Extending Context Window of Large Language Models via Positional Interpolation*,
#   arXiv:2306.15595.
