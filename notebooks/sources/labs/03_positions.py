# %% [markdown] id="title"
# # Lab: how well can a position be known?
#
# **The question: what does a model know about positions, how exactly, and what can drown it?** First a model that is told
# nothing, and still learns to count. Then sinusoids under the magnifying glass: is each code its own, how far does
# near stay similar, how exact are the numbers? Then the size of the vectors: a position that is added to a word can be too
# small to matter. At the end, what a good program refuses.
#
# The lab stands on [chapter 3](../03_positional_encoding.ipynb). It has two exercises and takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out the same in every run
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import positions
from course_lib.attention import record_weights
from course_lib.config import TransformerConfig
from course_lib.encoder import TransformerEncoder
from course_lib.layers import TokenEmbedding
from course_lib.masks import causal_mask
from course_lib.positions import LearnedPositionalEmbedding, RotaryEmbedding, SinusoidalPositionalEncoding
from course_lib.testing import prove
from course_lib.transformer import LanguageModel
from coursework import exercises as ex
from coursework.pictures import palette, show
from coursework.pictures.plots.common import bars, curves
from coursework.pictures.plots.seeds import seed_rows
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)


# %% [markdown] id="own-position-question"
# ## 1 What a model without positions still knows
#
# Chapter 3 said that a causal mask treats positions differently: the first word sees one word, the eighth sees eight. Can a
# model use that? We ask it directly. Eight tokens are drawn at random, and at each position the model has to name the
# number of the position, 0 to 7. It has one layer and no positions whatever. Chance is one in eight.
#
# There are two things to vary: with or without a causal mask, and with or without a fixed **start token** in front of
# the eight.
#
# **Predict.** Which four accuracies do you expect?

# %% id="predict-places"
ex.predict("places_without_positions", "")


# %% id="own-position"
class PlaceNamer(nn.Module):  # tokens (B, T) -> scores of the positions (B, T, T)
    def __init__(self, causal, start, T=8, V=11, width=32):
        super().__init__()
        self.token = TokenEmbedding(V + 1, width)
        self.stack = one_layer(width)  # an encoder layer of chapter 4, no positions
        self.answer = nn.Linear(width, T)
        self.causal, self.start, self.T, self.V = causal, start, T, V

    def forward(self, tokens):
        if self.start:
            tokens = F.pad(tokens, (1, 0), value=self.V)  # (B, T) -> (B, T + 1)
        mask = causal_mask(tokens.size(1)) if self.causal else None
        return self.answer(self.stack(self.token(tokens), mask=mask))[:, -self.T :]


# %% id="own-position-measured" tags=["hide-input", "atol:0.06"]
# Train the four models, one seed each, at the best rate of the record
def one_layer(width):
    return TransformerEncoder(
        TransformerConfig(
            d_model=width, n_heads=2, d_ff=64, n_encoder_layers=1, positions="none", dropout=0.0, norm_place="pre"
        )
    )


def place_namer(causal, start, rate):
    torch.manual_seed(0)
    model, generator = PlaceNamer(causal, start), torch.Generator().manual_seed(1000)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(200):
        tokens = torch.randint(11, (32, 8), generator=generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), torch.arange(8).repeat(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        named = model(torch.randint(11, (1000, 8), generator=generator)).argmax(-1)
    return model, (named == torch.arange(8)).float().mean().item()


record, namers = claim("own_place"), {}
for arm, settings in record.arms.items():
    namers[arm], right = place_namer(**settings, rate=record.best_rate(arm))
    print(f"{arm:>20}: {right:.2f} live;  five seeds: {record.spread(arm, 'accuracy')}")

# %% [markdown] id="own-position-says"
# Without a mask it is chance: no model of this kind can do better, because it treats all positions alike. With a causal mask
# it does better, and with a start token it is right nearly always. Here is a simple way in which that can be done. A head
# that gives the same weight to everything it may see gives the start token the share 1/2 at position 0, where it sees the
# start token and one word. At position $t$ it gives it the share $1/(t + 2)$. From this number the next part of the layer can
# read the position. Does the trained model do something like it? The figure shows how much weight each position gives to the
# start token.

# %% id="own-position-figure" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: the weight on the start token at each position, in the trained model
model = namers["causal, start token"]
tokens = F.pad(torch.randint(11, (500, 8), generator=torch.Generator().manual_seed(5)), (1, 0), value=11)
with torch.no_grad(), record_weights(model.stack) as maps:
    model.stack(model.token(tokens), mask=causal_mask(9))
shares = maps["layers.0.self_attention"][:, :, 1:, 0].mean(0)  # (heads, T)
lines = {f"head {head}, trained": share for head, share in enumerate(shares)}
lines["1/(t + 2), even weights"] = 1 / (torch.arange(8) + 2)
show(
    curves(
        range(8),
        lines,
        styles=("o-", "s--", ":"),
        colours=(*palette.series[:2], palette.residual),
        ylim=(0, None),
        xlabel="position t",
        ylabel="weight on the start token",
    ),
    alt="Weight on the start token at the positions 0 to 7, for the two heads of the trained model, beside the curve 1/(t+2). "
    "In both heads the weight differs from position to position and falls towards later positions.",
    caption="The share of the start token falls from position to position, so it can serve as a counter. The trained heads need "
    "not follow the dotted curve exactly.",
)
prove("without a mask no seed does better than chance", record.range("no mask", "accuracy")[1] < 0.2)
prove("a causal mask alone does better, with every seed", record.range("causal", "accuracy")[0] > 0.3)
prove("with a start token the position is found", record.range("causal, start token", "accuracy")[0] > 0.9)

# %% [markdown] id="own-position-source"
# Haviv et al. (2022) found that language models without positions do nearly as well as others, and that their layers
# hold the position. So "no positions" is a serious choice for a model with a causal mask. It is none for an encoder,
# which has no mask.
#
# ## 2 Sinusoids under the magnifying glass
#
# ### 2.1 Is each code its own?
#
# Many texts say that each position has a unique pattern. Take 2000 positions, and of all pairs the two that are most
# similar. How far apart are they?
#
# **Predict.** How far is it at width 512, and at width 2? The order of magnitude is enough.

# %% id="predict-distinct"
ex.predict("nearest_codes", "")

# %% id="distinct"
for width in (2, 4, 64, 512):
    codes = SinusoidalPositionalEncoding(width)(torch.arange(2000)).double()
    apart = torch.cdist(codes, codes, compute_mode="donot_use_mm_for_euclid_dist")
    p, q = divmod(int(apart.fill_diagonal_(math.inf).argmin()), 2000)
    print(f"width {width:3}: {apart.min():.2g}, between positions {p} and {q}")

# %% [markdown] id="distinct-says"
# At width 2 there is a single clock. It shows nearly the same time again after 710 positions, because 710 radians are
# almost exactly 113 turns. With two clocks it is better, and at width 512 any two positions are far apart. So the sentence
# is right when the width suffices.
#
# ### 2.2 How exact are the numbers?
#
# A number in float32 has about seven digits. An angle of 4000 radians spends four of them before the point, so only
# three remain after it. The fast clocks therefore become less exact at far positions, all but the very first, whose
# angles are whole numbers. How much less?

# %% id="float32" tags=["hide-input", "tol:0.25"]
# Figure: the error of float32 sinusoids against the position
p = torch.arange(5000)
exact = p[:, None].double() * 10000.0 ** (-torch.arange(0, 512, 2).double() / 512)  # (T, D / 2)
exact = torch.stack([exact.sin(), exact.cos()], dim=-1).flatten(-2)  # (T, D / 2, 2) -> (T, D)
error = (SinusoidalPositionalEncoding(512)(p) - exact).abs().amax(-1)  # (T,)
for below in (100, 512, 5000):
    print(f"positions below {below:4}: off by up to {error[:below].max():.0e}")
prove("below position 5000 the float32 table is right to 0.001", error.max() < 1e-3)
show(
    curves(
        p[1:],
        {"": error[1:]},
        styles=["-"],
        yscale="log",
        xlabel="position",
        ylabel="largest error in the row",
        size=(6.2, 2.6),
    ),
    alt="The largest error of a row of float32 sinusoids against its position, on a logarithmic axis. It rises in steps, "
    "at each power of two, and stays below one thousandth up to position 5000.",
    caption="The error grows with the position and stays below a thousandth: nothing to worry about, in float32.",
)

# %% [markdown] id="first-rise-text"
# ### 2.3 Up to where does near mean similar?
#
# The dot product of two positions depends on their distance alone, and at first it falls. Find out where it stops
# falling. This is a question to measure, not to guess.

# %% exercise="first_rise"


# %% id="similarity-figure" tags=["hide-input"]
# Figure: similarity against distance for three widths
lines = {}
for width in (16, 64, 512):
    codes = SinusoidalPositionalEncoding(width)(torch.arange(200)).double()
    similar = codes @ codes[0] / (width / 2)  # 1 at distance 0
    rises = int((similar[1:] > similar[:-1]).nonzero()[0]) + 1
    print(f"width {width:3}: {similar[1]:.3f} at distance 1, {similar[10]:.3f} at 10; first rises at {rises}")
    lines[f"width {width}"] = similar[:100]
prove("at width 512 the product falls up to distance 43 and then rises", rises == 44)
fig = curves(
    range(100),
    lines,
    styles=(":", "--", "-"),
    xlabel="distance",
    ylabel="dot product, 1 at distance 0",
    size=(6.4, 3.0),
)
fig.axes[0].axvline(43, color=palette.residual, linewidth=1, linestyle=":")
show(
    fig,
    alt="Dot product of two positions against their distance from 0 to 99, for widths 16, 64 and 512. All start at 1 and "
    "fall steeply; the narrow ones swing up and down, the widest falls in steps. A dotted line marks distance 43.",
    caption="The wider the table, the longer the product falls. The dotted line is where the widest first turns up.",
)

# %% [markdown] id="fit-question"
# ### 2.4 Can one guess the rule from the table?
#
# In chapter 3 one matrix moved every sinusoid by $k$ positions. Suppose that nobody told us this matrix. We *fit* it: from
# the first 96 rows of a table of width 16 we compute the matrix that leads best, by least squares, from each row to the
# one three positions later. Then we use it on the rows from 96 on, which it has never seen. An error of 1 is what one has
# who predicts zeros.
#
# We do the same to a learned table: before its training, when it holds random numbers, and after a training in which
# the model had to name the token three positions back.
#
# **Predict.** Which three errors do you expect?

# %% id="predict-fit"
ex.predict("fitted_shift", "")


# %% id="fit"
def unseen_error(table, k=3, seen=96):
    past, future = table[: seen - k], table[k:seen]
    matrix = torch.linalg.lstsq(past, future).solution  # (d_model, d_model)
    wrong = table[seen:-k] @ matrix - table[seen + k :]
    return (wrong.norm() / table[seen + k :].norm()).item()


sinusoids = SinusoidalPositionalEncoding(16)(torch.arange(128)).double()
print(f"sinusoids:          {unseen_error(sinusoids):.4f}")
print(f"random table:       {unseen_error(torch.randn(128, 16)):.2f}")
fit_record = claim("learned_shift")
for arm in fit_record.arms:
    before, after = (fit_record.spread(arm, when) for when in ("before", "after"))
    print(f"learned, {arm}: {before} before training, {after} after")

# %% id="fit-figure" tags=["hide-input"]
# Figure: the error on unseen rows before and after training, five seeds for each task
spread = fit_record.spread
show(
    seed_rows(
        fit_record.by_arm("before", "after"),
        colours=(palette.residual, palette.query),
        size=(6.4, 2.2),
        levels={"as good as predicting zeros": 1},
        xlabel="error on unseen rows",
        xlim=(0, None),
    ),
    alt="Error of the fitted matrix on unseen rows of a learned table, five trainings each. "
    + " ".join(f"{arm}: {spread(arm, 'before')} before, {spread(arm, 'after')} after." for arm in fit_record.arms),
    caption="A task about distances leaves a rule in the table, if a rough one; a task without distances does not. "
    f"({fit_record.command})",
)

# %% [markdown] id="fit-says"
# For sinusoids the rule is exact, up to rounding. A random table holds no rule at all: what is fitted to some rows says
# nothing about the others. Training lies in between. A model that had to look three positions back has made its table a
# little like a rotation, from row to row. The control is the same model with another task, to name the token of the
# same position, which needs no positions: its table stays as random as it was.
#
# So the shift matrix is something that a layer *can* use inside the trained range. Whether it carries beyond is the
# experiment of chapter 3, section 7.
#
# ## 3 How large should positions be beside words?
#
# ### 3.1 A sum of two vectors
#
# A position is added to a word. If one of the two is much larger, the other can hardly be heard. The paper of 2017
# multiplies the vectors of the words by √$d_{model}$ before it adds the positions. Many programs copy that line. Whether it
# is right depends on another line: how large the numbers are with which the table of words starts.

# %% exercise="token_to_position"


# %% id="ratio" tags=["hide-input"]
# Figure: words against positions, for three ways to start the table of words, with and without the factor
D, V = 512, 500
torch.manual_seed(0)
places = SinusoidalPositionalEncoding(D)(torch.arange(50))
names, ratios = [], []
for name, std in (("N(0, 1): nn.Embedding", 1.0), ("std 1/√d: course_lib", D**-0.5), ("std 0.02: GPT-2", 0.02)):
    tokens = torch.randn(V, D) * std
    for factor in (math.sqrt(D), 1.0):
        names.append(f"{name}{', times √d' if factor > 1 else ''}")
        ratios.append((factor * (tokens.square().mean() / places.square().mean()).sqrt()).item())
fig = bars(
    names,
    ratios,
    lying=True,
    numbers="%.2f",
    colours=[palette.query, palette.key] * 3,
    xscale="log",
    xlim=(0.02, 120),
    xlabel="words are so many times as large as positions",
    size=(6.6, 2.8),
)
fig.axes[0].axvline(1, color=palette.residual, linestyle=":")
show(
    fig,
    alt="How many times larger the vectors of words are than those of positions, at width 512: "
    + "; ".join(f"{name}: {ratio:.2f}" for name, ratio in zip(names, ratios, strict=True))
    + ".",
    caption="Three of the six are near 1, within a factor of two: N(0, 1) without the factor, std 1/√d with it, and std "
    "0.02 with it. In the others one of the two drowns the other by a factor of more than 15.",
)
ours = TokenEmbedding(V, D)(torch.arange(V))
ratio = (ours.square().mean() / places.square().mean()).sqrt().item()
prove("with std 1/√d and the factor √d, words and positions are of like size", 1.2 < ratio < 1.6)
near = [0.5 < ratio < 2 for ratio in ratios]
prove("three of the six are within a factor of two", near == [False, True, True, False, True, False])
prove("in the others one is at least 15 times as large", min(ratios[0], 1 / ratios[3], 1 / ratios[5]) > 15)

# %% [markdown] id="ratio-says"
# (GPT-2 has no sinusoids: it learns its positions, and they start even smaller than its words. The row with its table asks what
# would happen if somebody combined the two.)
#
# ### 3.2 Does it matter once the model is trained?
#
# A model could learn to repair a bad start. So let it try. A model with one layer, width 64 and sinusoids has to name the
# token three positions back, for each of the six starts. Five seeds, three learning rates, 300 steps. If the ratio did not
# matter, all six would end alike.

# %% id="scale-figure" tags=["hide-input"]
# Figure: accuracy for the six starts, five seeds each
scale_record = claim("embedding_scale")
steps = {"after 100 steps": "accuracy, step 100", "after 300 steps": "accuracy"}
runs = {arm: {when: scale_record.values(arm, one) for when, one in steps.items()} for arm in scale_record.arms}
show(
    seed_rows(
        runs,
        colours=(palette.residual, palette.query),
        xlim=(0, 1.03),
        size=(6.6, 3.0),
        xlabel="accuracy: three positions back, trained and tested on 16 tokens",
    ),
    alt="Accuracy for six starts of the table of words, five trainings each, at the best of three rates. "
    + " ".join(
        f"{arm}: {scale_record.spread(arm, 'accuracy, step 100')} after 100 steps, {scale_record.spread(arm, 'accuracy')} "
        "after 300."
        for arm in scale_record.arms
    ),
    caption=f"One dot for each training. ({scale_record.command})",
)
prove("N(0, 1) times √d has not learned it, with any seed", scale_record.range("std 1, times √d", "accuracy")[1] < 0.5)
others = [arm for arm in scale_record.arms if arm != "std 1, times √d"]
prove("all others have, with every seed", min(scale_record.range(arm, "accuracy")[0] for arm in others) > 0.95)

# %% [markdown] id="scale-says"
# Five of the six learn the task, with every seed. One does not: N(0, 1) with the factor. At width 64 its words are
# eleven times as large as the positions, and after 300 steps no seed at any of the three rates can look three positions back.
# Its accuracy is about that of the model without positions in chapter 3. So the positions were drowned, and training did
# not repair it in this time.
#
# The other direction does little harm here. Where the words start much smaller than the positions, the model makes them
# larger, and loses some of the first hundred steps at most: see the last row. So the danger lies on one side: places
# that cannot be heard. The factor √$d_{model}$ is harmful for a table of N(0, 1), and neither harmful nor needed for
# one of standard deviation 1/√$d_{model}$, on this task, with eleven different tokens.
#
# ### 3.3 The first loss
#
# The table has a second job in many models. If the output layer is *tied* to it, the same numbers turn the last vectors
# into scores for the next token. A fresh model should know nothing, so its loss should be ln $V$, that of guessing evenly
# among $V$ tokens.
#
# **Predict.** Take a tied model with $V = 500$, where ln 500 = 6.2. Its table starts from N(0, 1). Is its first loss
# about 6, about 10, or about 60?

# %% id="predict-first-loss"
ex.predict("first_loss_tied", "")


# %% id="first-loss" tags=["hide-input"]
# First loss of a fresh model: three starts of the table; tied with and without the factor, and not tied
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
for name, std in (("N(0, 1)", 1.0), ("std 1/√d", 64**-0.5), ("std 0.02", 0.02)):
    firsts[name] = first_loss(std, True), first_loss(std, True, scaled=False), first_loss(std, False)
    tied, unscaled, untied = firsts[name]
    print(f"{name:>8}: first loss {tied:6.2f} tied, {unscaled:6.2f} tied without √d, {untied:.2f} not tied")
print(f"   ln V: {math.log(500):6.2f}")
prove("a tied N(0, 1) table starts more than 20 nats above ln V", firsts["N(0, 1)"][0] > math.log(500) + 20)
near = max(abs(loss - math.log(500)) for name in ("std 0.02", "std 1/√d") for loss in firsts[name])
prove("with std 0.02 or 1/√d the first loss is within 0.8 of ln V", near < 0.8)

# %% [markdown] id="first-loss-says"
# So "embeddings must be multiplied by √$d_{model}$" is harmless for a table with standard deviation 1/√$d_{model}$, and
# harmful for one from N(0, 1). A first loss far above ln $V$ is the quickest way to notice a bad start.
#
# ## 4 What is saved, and what must be refused
#
# Many programs compute the sinusoids once, for 5000 positions, and keep the table as a *buffer*: a tensor that is no
# parameter but is saved with the model. It costs room in every checkpoint, and it has an end, although sinusoids have
# none.


# %% id="saved"
class WithBuffer(nn.Module):
    def __init__(self, d_model, longest=5000):
        super().__init__()
        table = SinusoidalPositionalEncoding(d_model)(torch.arange(longest))
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(1)]  # (B, T, d_model)


# %% id="saved-measured" tags=["hide-input"]
# Count what each version saves
usual = WithBuffer(64)
saved = sum(tensor.numel() * tensor.element_size() for tensor in usual.state_dict().values())
print("with a buffer: parameters", sum(p.numel() for p in usual.parameters()), f" bytes saved: {saved:,}")
print("the library:   parameters 0  bytes saved:", len(SinusoidalPositionalEncoding(64).state_dict()))
x = torch.randn(2, 7, 64)  # (B, T, d_model)
same = torch.allclose(usual(x), x + SinusoidalPositionalEncoding(64)(torch.arange(7)), atol=1e-6)
prove("the usual program adds the library's sinusoids", same)
prove("a table kept as a buffer is no parameter but is saved", saved == 4 * 5000 * 64 and not list(usual.parameters()))
saves_nothing = not SinusoidalPositionalEncoding(64).state_dict()
prove("the library's module saves nothing: it computes what it needs", saves_nothing)

# %% [markdown] id="errors-text"
# Sines and cosines come in pairs, so the width must be even. A learned table has an end. Positions are whole numbers. A
# good program refuses what cannot be right, and says what was expected:

# %% id="errors" tags=["hide-input"]
# Six wrong uses, and what the package says
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
# The usual program refuses some of these as well, but by accident and in other words. Here are its messages for a text
# longer than its table and for a table of odd width. Would you know what to change?


# %% id="errors-usual" tags=["hide-input"]
# The usual program's messages
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

# %% [markdown] id="end"
# ## What you have
#
# - With a causal mask a model can count without being told anything; without a mask it cannot.
# - Sinusoids are distinct and exact, when they are wide enough and in float32; near is similar, but only up to a point.
# - A rule leads from one sinusoid to the next. A learned table has none to begin with, and grows a rough one where its
#   task asks for distances.
# - Words must not be much larger than positions, and whether √$d_{model}$ is the right factor depends on the start of the
#   table.
#
# Other labs on this chapter: [eight bugs](03_bugs.ipynb) and [long texts](03_long_context.ipynb).
#
# ### Sources
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: sections 3.4 (√$d_{model}$) and 3.5.
# - Haviv et al. 2022, *Transformer Language Models without Positional Encodings Still Learn Positional Information*,
#   arXiv:2203.16634.
