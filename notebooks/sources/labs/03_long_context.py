# %% [markdown] id="title"
# # Lab: how can a model read further than it was trained?
#
# A model is trained on pieces of a certain length, because longer ones cost more. Then somebody gives it a whole book. This
# lab takes the rotary positions of [chapter 3](../03_positional_encoding.ipynb), makes them fail there, finds out why, and
# builds four repairs: interpolation, a larger base, YaRN, and layers with a window. It takes about {minutes} minutes. A good
# place to stop is the end of section 5.

# %% id="setup" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math
import tempfile
from dataclasses import replace

import torch
import torch.nn.functional as F

from course_lib.attention import record_weights
from course_lib.config import TransformerConfig
from course_lib.positions import RotaryEmbedding, frequencies
from course_lib.rotary_scaling import LinearScaling, Llama3Scaling, NTKScaling, YarnScaling
from course_lib.testing import prove
from course_lib.transformer import LanguageModel
from course_lib.variants import from_pretrained
from coursework import exercises as ex
from coursework.corpora.notes import SYMBOLS, echoes_in_text, notes_in_text, spelled
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import chapter_03 as plots
from coursework.pictures.plots.common import bars, curves, panels
from coursework.pictures.plots.seeds import seed_rows
from coursework.records import claim

torch.set_num_threads(1)

# %% [markdown] id="longer"
# ## 1 A text longer than any before
#
# We need a task in which it matters what stands far away. Real text has few such places, so we make some. In a piece of
# English some letters are replaced by digits, the **notes**, and some by question marks. At a question mark the
# model has to say the latest note before it. Everywhere else it has to continue the text, letter by letter.

# %% id="notes-drawn" tags=["hide-input"]
# Drawing: two notes and a question
drawings.notes_and_question("the 4 list is in 7 of a?").show()

# %% [markdown] id="notes-text"
# To continue a text, the near letters are nearly all it needs. To answer a question, it may have to go back a hundred
# positions and find the *nearest* of several digits. Here is a piece as the model sees it; the sign ^ marks the start.

# %% id="notes-shown"
piece = notes_in_text(1, 64, generator=torch.Generator().manual_seed(4))
print(repr(spelled(piece.tokens[0])))
print("answers:", spelled(piece.targets[piece.asked]))

# %% [markdown] id="model-text"
# The model is small: two layers, four heads, and a head is 16 numbers wide. Its positions are **rotary**: the 16 numbers of a
# query or key form 8 pairs, and each pair is turned like the hand of a clock.


# %% id="model"
def small_model(**switches):
    torch.manual_seed(0)
    sizes = {"d_model": 64, "n_heads": 4, "d_ff": 128, "n_encoder_layers": 0}
    sizes |= {"n_decoder_layers": 2, "vocab_size": len(SYMBOLS), "dropout": 0.0}
    kinds = {"norm_place": "pre", "positions": "rotary"}
    return LanguageModel(TransformerConfig(**{**sizes, **kinds, **switches}))


# %% [markdown] id="fit-text"
# Training is the loop that you know from the overview. Text and answers have equal weight in the loss. The learning
# rate rises over the first 20 steps and then falls.


# %% id="fit"
def fit(model, draw, steps, rate, seed=0):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    for step in range(steps):
        drawn = draw(generator)
        scores = model(drawn.tokens).mT  # (B, V, T)
        losses = F.cross_entropy(scores, drawn.targets, reduction="none")  # (B, T)
        loss = losses[~drawn.asked].mean() + losses[drawn.asked].mean()
        optimizer.zero_grad()
        loss.backward()
        now = rate * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / steps)
        optimizer.param_groups[0]["lr"] = now
        optimizer.step()
    return model.eval()


# %% [markdown] id="train-text"
# All its texts have 64 positions. So no query in training ever stood more than 63 positions after its key.


# %% id="train"
def short_pieces(generator):
    return notes_in_text(16, 64, questions=4, generator=generator)


model = fit(small_model().train(), short_pieces, steps=400, rate=4e-3)

# %% id="measure" tags=["hide-input"]
# Measure: loss at each position of 256, and the share of right answers by how far back the note stands
FAR = ((1, 32), (32, 64), (64, 128), (128, 256))


def by_distance(drawn, values):
    return [values[(drawn.back >= a) & (drawn.back < b)].mean().item() for a, b in FAR]


@torch.no_grad()
def read(model, n_examples=160, length=256):
    drawn = held_back(n_examples, length)
    scores = model(drawn.tokens)
    losses = F.cross_entropy(scores.mT, drawn.targets, reduction="none")
    text = torch.stack([losses[:, t][~drawn.asked[:, t]].mean() for t in range(1, length)])  # (T - 1,)
    right = (scores.argmax(-1) == drawn.targets).float()
    notes = by_distance(drawn, right)
    return text, notes, right[drawn.back >= 64].mean().item()


def held_back(n_examples=160, length=256):
    """The texts that `read` reads."""
    return notes_in_text(n_examples, length, questions=12, split="test", generator=torch.Generator().manual_seed(9))


def said(name, result):
    text, notes, _ = result
    print(f"{name:24}{text[16:63].mean():8.2f}{text[63:].mean():8.2f}   " + "".join(f"{share:8.2f}" for share in notes))


def head():
    print(f"{'':24}{'text, loss':>12}{'':7}{'notes, share of right answers, by distance':>42}")
    print(f"{'':24}{'16-63':>8}{'64-255':>8}   " + "".join(f"{f'{a}-{b - 1}':>8}" for a, b in FAR))


# %% [markdown] id="beyond-text"
# Now we give it 256 positions, four times as many, from a part of the text that was kept back.
#
# **Predict.** What happens to the loss on the text from position 64 on: does it go on falling because more has been read,
# stay as it was, or rise? And are notes that stand more than 63 positions back found?

# %% id="beyond-guess"
ex.predict("beyond_64", "")

# %% id="beyond" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: loss by position, answers by distance
plain = read(model)
stretches = [plain[0][low : low + 32].mean() for low in range(0, 255, 32)]
long = held_back()
fresh = stretches[:2]
for low in range(64, 256, 32):  # the same positions again, as the last 32 of a piece of 64 with its own start sign
    tokens = long.tokens[:, low - 32 : low + 32].clone()
    tokens[:, 0] = SYMBOLS.index("^")
    with torch.no_grad():
        losses = F.cross_entropy(model(tokens).mT, long.targets[:, low - 32 : low + 32], reduction="none")[:, 32:]
    fresh.append(losses[~long.asked[:, low : low + 32]].mean())
before = ((long.tokens >= 30) & (long.tokens < 40)).cumsum(1)  # notes so far
guess = by_distance(long, 1 / before.clamp(min=1))
show(
    plots.beyond_training(stretches, fresh, plain[1], guess, [f"{a}–{b - 1}" for a, b in FAR]),
    alt="Left: the loss on the text in stretches of 32 positions, from 0 to 256; within the trained 64 positions it falls, "
    "beyond them it is higher, and higher than a dashed grey line, the same text cut into pieces of 64. Right: the share "
    "of right answers by distance of the note. It is high for near notes. From 32 positions back on it lies below a dashed "
    "line near 0.6, which stands for naming any note.",
    caption="Left, in grey: the same letters, but the text is cut so that each is among the first 64 positions of a piece. "
    "Right, dashed: the share that is right by naming any of the notes so far.",
)

# %% [markdown] id="beyond-read"
# The grey line scores the *same letters* with the same model, which sees only 32 to 63 letters before each. Beyond 64 the
# whole text is read worse than its pieces, although *more* is known.
#
# Now the notes. Naming any of the notes so far is right in about six of ten cases (dashed). Our model does better only for the
# nearest. What does it say instead?

# %% id="instead" tags=["hide-input", "atol:0.15"]
# Measure: what is named at the questions, by how far back the right note stands
with torch.no_grad():
    named = model(long.tokens).argmax(-1)  # the likeliest symbol at each place
note_before = torch.zeros_like(long.asked)  # does the named note stand before the question?
for digit in range(30, 40):
    note_before |= ((long.tokens == digit).cumsum(1) > 0) & (named == digit)
right = named == long.targets
print("positions back             ", [f"{a}-{b - 1}" for a, b in FAR])
for words, which in (
    ("the latest note, right", right),
    ("an older note", note_before & ~right),
    ("none of the notes so far", ~note_before),
):
    print(f"{words:24}", [round(share, 2) for share in by_distance(long, which.float())])

# %% [markdown] id="instead-read"
# It prefers older notes. At 64 to 127 positions they are the usual answer, so the model is worse than one that names
# any note.
#
# What exactly fails? As a control, let each query see only the latest 64 keys, so that no distance is new. The weights stay
# as they are.


# %% id="changed"
def changed(model, **switches):
    """The same weights in a model with other switches."""
    other = LanguageModel(replace(model.config, **switches))
    other.load_state_dict(model.state_dict())
    return other.eval()


# %% id="window-control" tags=["atol:0.12"]
windowed = read(changed(model, window=64))
head()
said("as trained", plain)
said("far keys hidden", windowed)

# %% [markdown] id="window-read"
# Hiding alone makes it read the text better, and the near notes, too. So it is the far keys that disturb. But a window hides
# the far notes as well: two layers can hand them on over 126 positions at most, and this model seldom does so.
#
# So **a loss on text alone proves little**, because a window improves it, too. A model reads further only if it also *finds*
# what stands far away.

# %% [markdown] id="clocks"
# ## 2 Why: the slow clocks
#
# Pair $i$ turns by the angle $p\,\theta_i$ at position $p$. Here $d$ is the width of a head, 16, and $b$ is called the
# *base*, 10000:
#
# $$\theta_i = b^{-2i/d}, \qquad i = 0, 1, \ldots, d/2 - 1$$
#
# By hand: the largest distance in 64 positions is 63. Pair 0 turns by one radian for each position. In 63 radians it goes
# round ten times, so it has met every angle. Pair 4 turns by 0.01 radian: after 63 positions its hand stands at
# 36 degrees, a tenth of a turn. All other angles of this clock are unknown to the model. In a text of 256 positions its hand
# goes on to 146 degrees.

# %% id="clocks-drawn" tags=["hide-input"]
# Drawing: the eight clocks of a head, with what they have met and what is new
drawings.clock_arcs(frequencies(16).tolist(), 64, 256).show()

# %% id="turns"
speed = frequencies(16)  # (8,) radians for each place
turns = 63 * speed / (2 * math.pi)  # within the trained length
print("full turns in training:", [round(number, 3) for number in turns.tolist()])
print("pairs that never went round once:", int((turns < 1).sum()), "of 8")

# %% id="turns-proof" tags=["hide-input"]
# Check: the angles said above
prove("pair 4 reaches 36 degrees in training", round(math.degrees(63 * 0.01)) == 36)
prove("pair 4 goes on to 146 degrees", round(math.degrees(255 * 0.01)) == 146)
prove("pair 0 goes round ten times", int(63 / (2 * math.pi)) == 10)

# %% [markdown] id="fit-why"
# Is a new angle so bad? With query and key fixed, a score is a sum of one wave for each pair, and training makes the sum right
# only for the distances $n$ that occur:
#
# $$s(n) = \sum_i a_i \cos(n\,\theta_i) + c_i \sin(n\,\theta_i)$$
#
# The next cell fits such a sum to 64 random numbers at the distances 0 to 63, and draws the curve beyond, as Chen et al. did
# (2023, figure 2).
#
# <details><summary>How many waves</summary>
#
# It takes 32 waves, those of a head that is 64 numbers wide, because the 8 waves of our head are too few to come near 64
# numbers.
#
# </details>

# %% id="fit-drawn" tags=["hide-input"]
# Figure: a sum of waves fitted to 64 distances, between them and beyond them
waves = frequencies(64).double()


def sums(distance):
    return torch.cat([(distance[:, None] * waves).cos(), (distance[:, None] * waves).sin()], dim=1)


wanted = torch.randn(64, generator=torch.Generator().manual_seed(1)).double().clamp(-2, 2) / 2
inside = sums(torch.arange(64).double())
weights = torch.linalg.solve(inside.T @ inside + 1e-3 * torch.eye(64).double(), inside.T @ wanted)
fine = torch.arange(0, 256, 0.25).double()
curve = sums(fine) @ weights
fig = curves(fine, {"": curve}, styles=["-"], xlabel="distance", ylabel="score, a sum of 32 waves", xlim=(0, 256))
fig.axes[0].plot(wanted, ".", color=palette.key)
fig.axes[0].axvspan(0, 63, color="#EDEDED", zorder=0)
show(
    fig,
    alt="A curve over distances 0 to 256. In the shaded part, up to 63, it runs calmly among random dots between -1 and "
    "1. Beyond 63 it swings to more than ten.",
    caption="Between the 64 distances (dots) the curve stays small. Beyond them it swings to more than ten times that "
    "size: where nothing was asked of it, a sum of waves may do anything.",
)
between, outside = curve[fine < 63].abs().max().item(), curve[fine >= 64].abs().max().item()
prove("between the fitted distances the curve stays below 1, beyond them it exceeds 10", between < 1 and outside > 10)

# %% [markdown] id="fit-read"
# Beyond the last distance the curve is wild, but *between* the distances it is calm. This is the key to what follows: **the model cannot be trusted with larger angles than it has met, but it can be trusted with angles in
# between.**
#
# ## 3 Position interpolation: squeeze the positions
#
# So let us not give it larger angles. Four times as many positions? Then we number them in quarters: 0, ¼, ½, ¾, 1, …, and
# the last of 256 stands at 63¾. This is **position interpolation** (Chen et al. 2023).

# %% id="squeezed-drawn" tags=["hide-input"]
# Drawing: the trained positions, a longer text, and the longer text squeezed
drawings.squeezed_places(64, 4).show()

# %% [markdown] id="squeezed-text"
# By hand: two words that stand 100 positions apart look as if they stood 25 apart, and that has occurred in training. The
# price: two neighbours now differ by ¼ of a position. The fastest hand, which used to move by 57 degrees from one letter to
# the next, now moves by 14.
#
# An angle is position times speed, so one may as well divide all speeds by four. One line is enough:
#
# <details><summary>The formula of the paper</summary>
#
# With $L$ the trained length and $L'$ the longer one, and $f$ whatever turns a vector $x$ at position $p$:
#
# $$f'(x, p) = f\left(x,\; p\,\frac{L}{L'}\right)$$
#
# </details>


# %% id="interpolate"
def interpolated(speed, factor):
    return speed / factor


theirs = RotaryEmbedding(16, scaling=LinearScaling(4.0)).values
ours = interpolated(speed, 4.0)
prove("this is course_lib's linear scaling", torch.equal(ours, theirs))

# %% [markdown] id="interpolate-question"
# **Predict.** We put these speeds into our trained model, without any training, and read 256 positions. What becomes of
# the text *within* the first 64 positions, which was fine before? And of the far notes?

# %% id="interpolate-guess"
ex.predict("after_squeezing", "")

# %% id="interpolate-measured" tags=["atol:0.15"]
squeezed = changed(model, rotary_scaling=LinearScaling(4.0))
head()
said("as trained", plain)
said("interpolated", read(squeezed))

# %% [markdown] id="interpolate-read"
# The far notes are found, by a model that has never seen such a distance. But the text has suffered everywhere. The next
# figure shows why. The score of two vectors of ones used to fall steeply from one letter to the next. Squeezed, neighbours
# look nearly alike.

# %% id="near-drawn" tags=["hide-input"]
# Figure: the score of two vectors of ones by their distance, before and after
distance, cosines = torch.arange(0, 13), {}
for name, scaling in (("as trained", None), ("squeezed 4 times", LinearScaling(4.0))):
    cosines[name] = (distance[:, None] * RotaryEmbedding(16, scaling=scaling).values).cos().mean(1)
show(
    curves(distance, cosines, xlabel="distance between two letters", ylabel="mean cosine", xticks=range(0, 13, 2)),
    alt="Two curves of the mean cosine by distance from 0 to 12. As trained it drops from 1 to about 0.93 at distance 1 "
    "and to 0.8 at 2. Squeezed four times it falls a quarter as fast and is still above 0.9 at distance 4.",
    caption="What distance 1 used to look like is now distance 4. A head that reads “the letter before” reads a blur of "
    "several letters.",
)

# %% [markdown] id="tune-text"
# ### A short training
#
# The model has to get used to the new distances. Chen et al. needed at most 1,000 steps. We take 40, on texts of 256
# positions. Perhaps these would repair *any* model? As a control, the unchanged model gets the same 40 steps.
#
# <details><summary>How large that training was</summary>
#
# Chen et al. took models of 7 to 65 billion parameters from 2,048 to up to 32,768 positions. Our first training took 400
# steps.
#
# </details>


# %% id="tune"
def long_pieces(generator):
    return notes_in_text(4, 256, questions=12, generator=generator)


def tuned(scaling):
    start = changed(model, rotary_scaling=scaling).train()
    return fit(start, long_pieces, steps=40, rate=3e-3, seed=100)


# %% id="tuned" tags=["atol:0.2"]
head()
said("40 steps, as it was", read(tuned(None)))
said("40 steps, interpolated", read(tuned(LinearScaling(4.0))))

# %% [markdown] id="tuned-read"
# Only the interpolated model finds the far notes reliably. The unchanged one is still no better than naming any note at 128
# positions and more. Section 5 shows five such runs.
#
# ## 4 A larger base: slow the slow clocks, leave the fast
#
# Interpolation slows all clocks alike. But the fast ones know all their angles, and they tell neighbours apart. Only the slow
# ones meet something new.
#
# A single number slows just these. All speeds come from the base: $\theta_i = b^{-2i/d}$. A larger base leaves pair 0 as it
# is, and slows each following pair more. How large must the new base $b'$ be, so that the *last* pair, $i = d/2 - 1$, turns
# $s$ times slower? Its exponent is $2i/d = (d-2)/d$, so
#
# $$b'^{-(d-2)/d} = \frac{1}{s}\, b^{-(d-2)/d}$$
#
# Solve this for $b'$ and write it as a function:

# %% exercise="ntk_base"


# %% [markdown] id="base-solved"
# The solution is
#
# $$b' = b \cdot s^{\,d/(d-2)}$$
#
# By hand, for our heads: $d = 16$, $s = 4$, so $b' = 10000 \cdot 4^{16/14}$, which is about 48,760.
#
# <details><summary>Who found it</summary>
#
# An anonymous user, bloc97, proposed this on a forum in 2023 under the name *NTK-aware* scaling, after a theory about which
# frequencies a network learns easily (the neural tangent kernel). The paper on YaRN (Peng et al. 2023, section 3.1) writes it
# down.
#
# </details>

# %% id="base-proof" tags=["hide-input"]
# Check: the number said above, and that the library does the same
prove("the base by hand is about 48,760", abs(10000 * 4 ** (16 / 14) - 48760) < 5)
prove("pair 4 becomes 2.2 times slower, and 4 / 2.2 is 1.8", round(4 / 4 ** (8 / 14), 1) == 1.8)
slower = RotaryEmbedding(16, scaling=NTKScaling(4.0)).values
prove("a larger base is NTK scaling", torch.allclose(slower, frequencies(16, 10000 * 4 ** (16 / 14)), rtol=1e-5))

# %% [markdown] id="base-middle"
# And the pairs in the middle? Pair 4 of our heads becomes $4^{8/14} = 2.2$ times slower. But its text is four times as long,
# so its hand still goes 1.8 times as far as it ever went in training. So one takes a larger factor than one needs, such as 8
# for a text four times as long, or simply a very large base: Code Llama took 1,000,000 (Rozière et al. 2023).

# %% id="base-measured" tags=["atol:0.15"]
head()
said("as trained", plain)
said("interpolated", read(squeezed))
for factor in (4.0, 8.0):
    slower = changed(model, rotary_scaling=NTKScaling(factor))
    said(f"larger base, factor {factor:g}", read(slower))

# %% [markdown] id="base-read"
# The text is better than after interpolation. The larger factor finds nearly all notes 64 to 127 positions back. But at
# 128 and more, this model finds fewer than after interpolation: the hands in the middle still go too far.
#
# ## 5 YaRN: clock by clock
#
# Which clocks should be slowed? Let us ask the model. We keep the first $k$ pairs as they are and squeeze the others by four,
# for every $k$. With $k = 0$ all are squeezed, which is interpolation; with $k = 8$ none is.

# %% id="sweep" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: text and notes when the first k pairs are kept and the others squeezed
near, far, found = [], [], []
for k in range(9):

    def some(values, k=k):
        return torch.where(torch.arange(8) < k, values, values / 4)

    text, _, notes = read(changed(model, rotary_scaling=some))
    near.append(text[16:63].mean())
    far.append(text[63:].mean())
    found.append(notes)
show(
    panels(
        curves,
        range(9),
        {"Text": {"positions 16–63": near, "positions 64–255": far}, "Notes 64 and more positions back": {"": found}},
        each=({"ylabel": "loss", "colours": ("#6E6E6E", "#0072B2")}, {"ylim": (0, 1.05)}),
        share="",
        xlabel="pairs kept, from the fastest",
        size=(7.2, 2.9),
    ),
    alt="Left: the loss on the text as the fastest k of eight pairs are kept. Within the first 64 positions it falls until "
    "about four pairs are kept; beyond them it changes little. "
    "Right: the share of far notes found, near 1 while few pairs are kept, and falling once slow pairs are kept too.",
    caption="Within the first 64 positions the text needs the fast pairs as they were. The far notes need the slow pairs "
    "squeezed. Three kept pairs serve both. The text beyond 64 (blue) goes up and down by a few hundredths; by itself "
    "it would not tell which pairs to squeeze.",
)

# %% [markdown] id="sweep-read"
# So there is a border: at the clocks that went round about once in training. YaRN (“yet another RoPE extension”, Peng et al.
# 2023) draws it by that number. For pair $i$ let $r_i = L\,\theta_i / 2\pi$ be the number of turns within the trained length
# $L$. Pairs with many turns are kept, pairs with less than one turn are squeezed by $s$, and between them there is a ramp:
# $\gamma$ goes from 0 to 1.
#
# $$\theta_i' = (1 - \gamma)\,\frac{\theta_i}{s} + \gamma\,\theta_i$$
#
# Llama 3.1 uses just this rule, with 1 and 4 turns as its two borders (Dubey et al. 2024, and the published code):


# %% id="by-parts"
def by_parts(speed, factor, length, few=1.0, many=4.0):
    turns = length * speed / (2 * math.pi)
    keep = ((turns - few) / (many - few)).clamp(0, 1)  # 0: squeeze, 1: keep
    return (1 - keep) * speed / factor + keep * speed


# %% [markdown] id="yarn-text"
# YaRN's own borders are 1 and 32 turns, and its published code makes the ramp straight in the *number of the pair*. In the
# cell below, `ramp` is $1 - \gamma$: 0 where a pair is kept, 1 where it is squeezed.
#
# <details><summary>Details of that code</summary>
#
# 1 and 32 turns fit a model that was trained on thousands of positions; ours turns ten times at most, so we take 1 and 4. The
# ends of the ramp are rounded to whole pairs. The text of the paper has the ramp in the turns; models are run with the code.
# The end may not go beyond $d - 1$; one would expect the last pair, $d/2 - 1$, but so it stands in that code, and for us it
# changes nothing.
#
# </details>


# %% id="yarn"
def yarn(speed, factor, length, few=1.0, many=32.0, base=10000.0):
    n_pairs = len(speed)

    # turns = length * base ** (-i / n_pairs) / (2 pi), solved for i
    def pair_with(turns):
        return n_pairs * math.log(length / (2 * math.pi * turns)) / math.log(base)

    first, last = math.floor(pair_with(many)), math.ceil(pair_with(few))
    # the limits of the published code
    first, last = max(first, 0), min(last, 2 * n_pairs - 1)
    ramp = ((torch.arange(n_pairs) - first) / (last - first)).clamp(0, 1)
    return ramp * speed / factor + (1 - ramp) * speed


# %% [markdown] id="temperature-text"
# YaRN changes one more thing. In a longer text a softmax over more keys gives less to each, so all scores are multiplied by a
# number a little above one.
#
# <details><summary>By how much, and by hand</summary>
#
# One key has the score 3, all others the score 0. Among 64 keys it gets $e^3 / (e^3 + 63) = 0.24$ of the weight, among 256
# only 0.07. YaRN multiplies queries and keys by
#
# $$t = 0.1 \ln s + 1$$
#
# each, so the scores by $t^2$. For $s = 4$ that is 1.14 and 1.30, and the key above gets 0.16. The authors found this
# formula by trying; it fits several sizes of Llama.
#
# </details>

# %% id="temperature-proof" tags=["hide-input"]
# Check: the numbers said above
share = [math.exp(score) / (math.exp(score) + others) for score, others in ((3, 63), (3, 255), (3 * 1.139**2, 255))]
prove("the shares are 0.24, 0.07 and 0.16", [round(number, 2) for number in share] == [0.24, 0.07, 0.16])
stretch = YarnScaling(4.0, 64).stretch
prove("the factor is 1.14 for four times the length", round(stretch, 2) == 1.14 and round(stretch**2, 2) == 1.30)

# %% id="parts-proof"
ours = yarn(speed, 4.0, 64, many=4.0)
theirs = YarnScaling(4.0, 64, fast_turns=4.0)(speed)
prove("this is course_lib's YaRN", torch.allclose(ours, theirs, rtol=1e-5))
ours = by_parts(speed, 4.0, 64)
theirs = Llama3Scaling(4.0, original_length=64)(speed)
prove("this is course_lib's rule of Llama 3", torch.allclose(ours, theirs, rtol=1e-5))

# %% id="parity" tags=["hide-input"]
# Check, where the library transformers is installed: speeds, and a whole model's outputs and gradients
print("compared with transformers, where it is installed: linear, llama3, yarn; a Llama with yarn")
try:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
except ImportError:
    LlamaConfig = None
if LlamaConfig is not None:
    llama3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    for kind, entries, scaling in (
        ("linear", {}, LinearScaling(4.0)),
        ("llama3", llama3, Llama3Scaling(4.0, original_length=64)),
        ("yarn", {"original_max_position_embeddings": 64}, YarnScaling(4.0, 64)),
    ):
        rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **entries}
        config = LlamaConfig(hidden_size=32, num_attention_heads=2, max_position_embeddings=256, rope_parameters=rope)
        values, stretch = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        prove(f"{kind}: the speeds are those of transformers", torch.allclose(scaling(speed), values, rtol=1e-5))
        prove(f"{kind}: and so is the factor", abs(getattr(scaling, "stretch", 1.0) - stretch) < 1e-9)
    sizes = {"vocab_size": 29, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256}
    theirs = LlamaForCausalLM(LlamaConfig(**sizes, **heads, rope_parameters=rope))
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = from_pretrained(folder)
    ids = torch.randint(0, 29, (2, 200), generator=torch.Generator().manual_seed(0))
    outputs, gradients = [], []
    for scores, table in (
        (ours(ids), ours.embedding.tokens.weight),
        (theirs(ids).logits, theirs.model.embed_tokens.weight),
    ):
        outputs.append(scores.detach())
        gradients.append(torch.autograd.grad(scores.square().mean(), table)[0])
    prove("a Llama with YaRN gives the same outputs", torch.allclose(*outputs, rtol=1e-4, atol=1e-5))
    prove("and the same gradients", torch.allclose(*gradients, rtol=1e-3, atol=1e-6))

# %% [markdown] id="speeds-text"
# Side by side, this is what the four rules do to the clocks of a real head, that of Llama 3: 64 pairs, base 500,000,
# trained at 8,192 positions.

# %% id="speeds-drawn" tags=["hide-input"]
# Figure: by how much each rule slows each pair of a head of Llama 3, for eight times the length
real = frequencies(128, 500_000.0)
rules = {
    "interpolation": LinearScaling(8.0),
    "larger base": NTKScaling(8.0),
    "Llama 3's rule": Llama3Scaling(8.0),
    "YaRN": YarnScaling(8.0, 8192),
}
slower = {name: real / rule(real) for name, rule in rules.items()}
once = int((8192 * real / (2 * math.pi) >= 1).sum())
fig = curves(range(64), slower, styles=["-"], xlabel="pair, from fast to slow", ylabel="times slower", size=(6.8, 3.0))
fig.axes[0].axvline(once - 0.5, color="#8A8A8A", linestyle="--", linewidth=1)
fig.axes[0].text(once, 1, "from here on: less than\none turn in training", color="#555555")
show(
    fig,
    alt="Curves over 64 pairs of how many times slower each pair becomes. Interpolation is a flat line at 8. A larger "
    "base rises slowly from 1 to 8. Llama 3's rule and YaRN stay at 1 for the fast pairs, rise in the middle and stay "
    "at 8 for those with less than one turn in training.",
    caption="Interpolation slows every clock, a larger base slows each a little more than the last. Llama 3's rule and "
    "YaRN keep the fast ones, slow those that never went round, and differ only in the ramp.",
)

# %% [markdown] id="five-text"
# ### Five seeds, before and after a short training
#
# Now the whole comparison, with five models that differ in their seed. Each was changed and read at 256 positions; then it
# got 40 steps on long texts. The window is the control.

# %% id="five-places" tags=["hide-input"]
# Figure: loss by position for each method, mean and range of five seeds, before and after 40 steps
record = claim("reading_further")
arms = list(record.arms)
colors = dict(zip(arms, ["#111111", *(palette.series[i] for i in (1, 5, 3, 0, 2))], strict=True))
times = {"without training": "", "after 40 steps": "tuned "}


def losses(arm, before):  # (8, seeds)
    return torch.tensor([record.values(arm, f"{before}text from {low}") for low in range(0, 256, 32)])


show(
    plots.loss_by_place({title: {arm: losses(arm, when) for arm in arms} for title, when in times.items()}, colors),
    alt="Two panels of the loss on the text by position, a line for each method with the range of five seeds. Left, without "
    "training: as trained rises beyond 64, interpolation is high everywhere, the larger bases and YaRN lie between, the "
    "window stays low. Right, after 40 steps: the larger bases and YaRN lie close to the window, the unchanged model and interpolation a little higher.",
    caption="Mean and range of five seeds. The hump of all lines near position 112 is the harder stretch of text that the "
    "grey line of section 1 showed; compare the lines with each other. "
    f"({record.command}, {record.cpu_seconds:.0f} s of CPU.)",
)

# %% id="five-notes" tags=["hide-input"]
# Figure: the farthest notes for each method, a dot for each seed, before and after 40 steps
measures = [f"{when}notes 128-255 back" for when in times.values()]
found = [[record.values(arm, measure) for arm in arms] for measure in measures]
tries = [values[arms.index("as trained")] for values in found]
prove("no unchanged model beats naming any note so far", max(max(values) for values in tries) < guess[3])
ranges = "; ".join(
    f"{arm} {min(a):.2f} to {max(a):.2f}, then {min(b):.2f} to {max(b):.2f}" for arm, a, b in zip(arms, *found)
)
show(
    panels(
        seed_rows,
        {title: record.by_arm(measure) for title, measure in zip(times, measures)},
        size=(7.2, 2.9),
        xlabel="found, of notes 128 and more positions back",
        colours=colors,
        levels={"": guess[3]},
        xlim=(0, 1.03),
    ),
    alt=f"Share of notes found 128 or more positions back, five dots for each method, before and after 40 steps: {ranges}.",
    caption="A dot for each of five seeds; the dashed line is what naming any of the notes so far would give. The window, "
    "which sees none of them, finds one in ten, as by naming any digit. Interpolation and YaRN need no training.",
)

# %% [markdown] id="five-read"
# YaRN is the only one here that does both without any training: its text suffers little, and it finds nearly all far notes.
# Interpolation finds them, too, but its text is worse than if nothing had been done. The larger base with factor 4 finds few
# until it is trained, and the window finds what chance finds. This is no ranking for large models.
#
# <details><summary>Evidence: five seeds, two rates, text and notes</summary>
#
# Each model was trained at 64 positions. Of two learning rates of the 40 steps the better one is shown. It is one small model,
# one task and one factor.
#
# **On the text**, all five unchanged models are worse beyond position 64 than the window. A larger base and YaRN are better
# than doing nothing. Over all positions from 64 on, none is better than the window, which needs neither training nor other
# clocks. After 40 steps the methods lie close together.
#
# **With the far notes**, the unchanged model is right in about half of the cases, but this is less than one gets by naming any
# of the notes so far, with each of the five seeds. Two layers with a window of 64 reach 126 positions back and not one more.
#
# </details>
#
# **A good place to stop:** the question of this lab is answered. The rest is about memory.

# %% [markdown] id="sinks"
# ## 6 Reading for ever: attention sinks
#
# A program that listens all day cannot keep all keys and values. The obvious rule is to keep the latest thousand or so. A
# window does not hurt the reading of text, as we have seen. But when Xiao et al. (2023) tried this with models such as
# Llama 2, the text fell apart when the **first** token left the cache. It became whole again when four tokens from the
# beginning were kept, whatever they said.

# %% id="streaming-drawn" tags=["hide-input"]
# Drawing: three caches after the same stream
drawings.streaming_cache().show()

# %% [markdown] id="sink-why"
# Why should the first token matter? Think of a head that looks for something that is rarely there. Its weights must sum to
# one; it *cannot* look at nothing. So it needs a token on which its weight does no harm, and every later position can see the
# first. Xiao et al. call it an **attention sink**. If it is taken away, the weight goes to tokens whose values do add
# something.
#
# Does our model have a sink? How much weight does each head give to the start sign?
#
# <details><summary>What else StreamingLLM does</summary>
#
# Their method also numbers the positions anew within the cache, so that no distance is ever larger than the cache. For this
# it stores the keys before they are turned, and turns them at each step.
#
# </details>


# %% id="on-first"
@torch.no_grad()
def weight_on_first(model, drawn):
    with record_weights(model) as maps:
        model(drawn.tokens)
    quiet = ~drawn.asked[:, 32:]  # not at the questions, where a head is at work
    shares = []
    for weights in maps.values():  # (B, H, T, S) of one layer
        first = weights[:, :, 32:, 0]  # (B, H, T / 2)
        shares.append([first[:, head][quiet].mean().item() for head in range(4)])
    return shares  # for each layer, for each head


# %% id="on-first-measured" tags=["atol:0.08"]
drawn = notes_in_text(100, 64, split="test", generator=torch.Generator().manual_seed(9))
for layer, shares in enumerate(weight_on_first(model, drawn), start=1):
    print(f"layer {layer}, weight on the first:", [round(s, 2) for s in shares])

# %% [markdown] id="on-first-read"
# An even share would be about 0.02, and in this training no head rests there. (From seed 5, one head puts 0.94 of its weight
# there.) We need a head that is surely idle. So here is another task, the **echo**: at a question mark the model repeats the
# letter just before it, and one position in ten is a question. This model has one layer only.

# %% id="echo-train"
echo_model = small_model(n_decoder_layers=1).train()


def echo_pieces(generator):
    return echoes_in_text(16, 64, generator=generator)


echo_model = fit(echo_model, echo_pieces, steps=400, rate=6e-3)

# %% id="echo-shown" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: weight on the first token, head by head, in both models
echoes = echoes_in_text(100, 64, split="test", generator=torch.Generator().manual_seed(9))
rows = weight_on_first(model, drawn) + weight_on_first(echo_model, echoes)
heads = {f"head {h}": [shares[h] for shares in rows] for h in range(4)}
names = ["notes, layer 1", "notes, layer 2", "echo, its one layer"]
show(
    bars(names, heads, levels={"": 1 / 48}, ylabel="weight on the first token", ylim=(0, 0.6)),
    alt="Three groups of four bars, one bar for each head: the weight on the first token. In the two layers of the model "
    "that remembers notes the bars are low; in the model that echoes at least one head is much higher.",
    caption="Each bar is a head, the dashed line an even share. Where a head is idle most of the time, it rests on the "
    "first token.",
)

# %% [markdown] id="echo-question"
# **Predict.** We now hide, in the echo model, all keys but the latest 16. The echo needs only the letter before. Will
# the loss change? And if the first four tokens stay visible besides? No distance is new.

# %% id="echo-guess"
ex.predict("window_without_first", "")


# %% id="echo-window"
@torch.no_grad()
def losses_with(model, drawn, mask):
    scores = model(drawn.tokens, mask=mask).mT
    losses = F.cross_entropy(scores, drawn.targets, reduction="none")[:, 32:]
    asked = drawn.asked[:, 32:]
    return losses[~asked].mean().item(), losses[asked].mean().item()


place = torch.arange(64)
causal = place[:, None] >= place  # (T, S)
near = causal & (place[:, None] - place < 16)
first = causal & (place < 4)
masks = {"all keys": causal, "latest 16": near, "and first 4": near | first}

# %% id="echo-measured" tags=["not-compared:differs-by-processor"]
for name, some in (("echo", (echo_model, echoes)), ("notes", (model, drawn))):
    for words, mask in masks.items():
        text, answers = losses_with(*some, mask)
        print(f"{name:6} {words:12} loss on text {text:.2f}   on answers {answers:.2f}")

# %% [markdown] id="echo-read"
# The model without a sink reads its text as before; its answers suffer, because the notes stand farther back. The model with
# a sink is harmed in both, and four kept tokens mend it. But why its *answers*, when the letter to be repeated is in sight?
# Look at each head at the questions:

# %% id="echo-heads" tags=["hide-input", "atol:0.12"]
# Measure: where each head of the echo model looks at the questions, with and without the window
at = echoes.asked & (place >= 32)  # questions in the second half
before = (place[:, None] - place) == 1  # (T, S), the letter just before
for words, mask in (("all keys", causal), ("latest 16", near)):
    with torch.no_grad(), record_weights(echo_model) as maps:
        right = (echo_model(echoes.tokens, mask=mask).argmax(-1) == echoes.targets)[at]
    print(f"{words:10} right answers {right.float().mean():.2f}")
    for words_of, keys in (("letter before", before), ("first token", place.expand(64, 64) == 0)):
        shares = [(weights * keys).sum(-1)[at].mean().item() for weights in next(iter(maps.values())).unbind(1)]
        print(f"{words:10} weight on the {words_of:14}", [round(share, 2) for share in shares])

# %% [markdown] id="echo-heads-read"
# Two heads read the letter before. A third rests on the first token *at the questions*, with three quarters of its weight. If
# the first token is hidden, most of this weight falls on other letters, and some answers become wrong.
#
# Is it really the idle head? Two controls, five seeds each. In the first, the texts have **no start sign**. In the second,
# attention **may look at nothing**: the softmax gets one more score, always 0, that belongs to no key.
#
# <details><summary>The formula, and how far this reaches</summary>
#
# $$w_j = \frac{e^{s_j}}{1 + \sum_k e^{s_k}}$$
#
# This differs from seed to seed: in three of the five models of the next figure the answers hardly change. The text suffers
# in all five. The two readers rest on the first token at the other positions. All losses are those of positions 32 to 63.
#
# </details>

# %% id="sink-record" tags=["hide-input"]
# Figure: weight on the first token and harm of the window, a dot for each of five seeds
record = claim("first_token_sink")
arms = list(record.arms)
rows, added = {}, {}
said_of = []
for arm in arms:
    shares = record.values(arm, "weight on the first")
    full, cut = (torch.tensor(record.values(arm, f"text, {name}")) for name in ("full", "window"))
    kept = torch.tensor(record.values(arm, "text, window and first four"))
    name = {"notes": "notes, one layer"}.get(arm, arm)
    rows[name], added[name] = {"": shares}, {"window": (cut - full).tolist(), "kept": (kept - full).tolist()}
    if arm == "echoes":
        cost = [b - a for a, b in zip(*(record.values(arm, f"answers, {n}") for n in ("full", "window")), strict=True)]
        prove("the answers of three models hardly change", sorted(c < 0.05 for c in cost) == [False] * 2 + [True] * 3)
    said_of.append(
        f"{arm}: weight {min(shares):.2f} to {max(shares):.2f}, harm {(cut - full).min():.2f} to "
        f"{(cut - full).max():.2f}, with four kept {(kept - full).min():.2f} to {(kept - full).max():.2f}"
    )
show(
    panels(
        seed_rows,
        {"weight on the first token": rows, "loss added by the window": added},
        share="y",
        size=(7.3, 2.8),
        each=({"xlabel": "head that gives it most"}, {"xlabel": "nats (orange), with four kept (green)"}),
        colours=dict(zip(("", "window", "kept"), palette.series)),
    ),
    alt="Two panels with five dots for each arm. " + "; ".join(reversed(said_of)) + ".",
    caption=f"A dot for each of five seeds. ({record.command}, {record.cpu_seconds:.0f} s of CPU.)",
)

# %% [markdown] id="sink-read"
# In all five echo models of the figure some head puts 0.28 or more of its weight on the start sign. The window then does
# harm, and four kept tokens undo it. In the models that remember notes both depend on the seed.
#
# Without a start sign, no head gives the first token more than an even share, and the window does no harm. Where does the
# weight rest then? We train one such model and look.


# %% id="no-sign" tags=["hide-input", "atol:0.15"]
# Train an echo model without start sign, and measure how near each idle head of both models looks
def signless_pieces(generator):
    return echoes_in_text(16, 64, start=False, generator=generator)


signless = small_model(n_decoder_layers=1).train()
signless = fit(signless, signless_pieces, steps=400, rate=6e-3)
test = torch.Generator().manual_seed(9)
letters = echoes_in_text(100, 64, start=False, split="test", generator=test)
for words, some, texts in (("with", echo_model, echoes), ("without", signless, letters)):
    with torch.no_grad(), record_weights(some) as maps:
        some(texts.tokens)
    idle = ~texts.asked & (place >= 32)
    shares = [(w * near).sum(-1)[idle].mean().item() for w in next(iter(maps.values())).unbind(1)]
    print(f"{words:7} sign, weight on the latest 16:", [round(s, 2) for s in shares])

# %% [markdown] id="no-sign-read"
# More of the weight lies on the latest 16, which the window keeps. So this control agrees with the explanation. The second
# does **not**: heads that may look at nothing rest on the start sign nearly as much. “The weights have to go somewhere” is not
# the whole story in our model. So measure: before you drop the first tokens of a model, look at how much weight they get.
#
# <details><summary>More on both controls</summary>
#
# Without a sign, no letter stands at a position that is always the same, so none can be learned as the one to rest on; and
# what is spread over many letters is not lost with one of them. Why training prefers the sign to the free score of 0, this
# experiment does not tell. Larger models were studied by Gu et al. (2024): there sinks did not appear when the softmax was
# replaced by a form whose weights need not sum to one. And gpt-oss gives each head a score of its own for “nothing”, which is
# *learned*; its published code calls these numbers `sinks`.
#
# </details>

# %% exercise="streaming_cache"


# %% [markdown] id="local"
# ## 7 Some layers near, a few far
#
# Not all layers have to see everything. Suppose that a layer has a window of 4: each position reads itself and the three
# before it. In the first layer it hears of 3 positions back. In the second it reads positions that have themselves heard of 3
# more, and so on: each layer adds 3.

# %% id="reach-drawn" tags=["hide-input"]
# Drawing: how far three layers with a window of 4 look back
drawings.window_reach(3, 4).show()

# %% [markdown] id="reach-text"
# For $N$ layers with a window of $W$, the reach is $N\,(W - 1)$ positions, at most. One can see it without training: if a
# token cannot influence the output, the gradient with respect to its vector is exactly zero.

# %% id="reach-gradient" tags=["hide-input"]
# Figure: gradient of the last output with respect to each input, three layers with a window of 4
torch.manual_seed(0)
config = replace(small_model().config, n_decoder_layers=3, window=4, vocab_size=None)
stack = LanguageModel(config)
vectors = torch.randn(1, 13, 64, requires_grad=True)
(stack(vectors)[0, -1] @ torch.randn(64)).backward()
size = vectors.grad[0].norm(dim=1)
show(
    bars(
        range(13),
        size,
        numbers=lambda height: "" if height else "0",
        size=(6.4, 2.2),
        colours=palette.query,
        xlabel="position of the token",
        ylabel="gradient",
        xticks=range(13),
    ),
    alt="Thirteen bars: the gradient of the last output with respect to each token. The tokens 0, 1 and 2 have none; "
    "from token 3 on all have some, the last ones most.",
    caption="Exactly the positions that the drawing reaches have a gradient. What lies before them cannot matter, however "
    "the model is trained.",
)
prove("the gradient is zero before position 3 and nowhere after it", (size > 0).tolist() == [False] * 3 + [True] * 10)

# %% exercise="window_reach"


# %% [markdown] id="mix-text"
# A few **global** layers, which see everything, lift the limit. Between them, **local** ones, with a window, read the
# neighbourhood. Gemma 3 has five local layers to each global one (Gemma Team 2025). What it buys is memory, because a local
# layer keeps the keys and values of its window only.
#
# <details><summary>The bytes of such a cache</summary>
#
# $$\text{bytes} = 2 \cdot b \cdot n_{kv} \cdot d_{head} \cdot \sum_{\text{layers}} \min(W_{layer},\, T)$$
#
# Here $b$ is the number of bytes of one number, $n_{kv}$ the number of key heads, $T$ the length of the text, and
# $W_{layer}$ is without limit for a global layer. The 2 stands for key and value.
#
# </details>

# %% id="mix-drawn" tags=["hide-input"]
# Drawing: five local layers and a global one, with what they keep
drawings.local_and_global().show()


# %% id="cache-bytes"
def cache_bytes(windows, length, n_kv_heads, d_head, number=2):
    kept = [length if window is None else min(window, length) for window in windows]
    return 2 * number * n_kv_heads * d_head * sum(kept)


# Gemma 3 of 1 B parameters: 26 layers, every sixth of them global
gemma = [None if layer % 6 == 5 else 512 for layer in range(26)]
for name, windows in (("all global", [None] * 26), ("as published", gemma)):
    found = cache_bytes(windows, 32_768, n_kv_heads=1, d_head=256)
    print(f"{name:13} {found / 1e6:.0f} MB for a text of 32,768 tokens")

# %% id="cache-drawn" tags=["hide-input"]
# Figure: bytes of the cache by length
lengths = [2**k for k in range(9, 16)]
mixes = {"all global": [None] * 26, "5 local to 1 global": gemma, "all local": [512] * 26}
megabytes = {
    name: [cache_bytes(windows, length, 1, 256) / 1e6 for length in lengths] for name, windows in mixes.items()
}
show(
    curves(lengths, megabytes, names="end", xlabel="tokens in the text", ylabel="MB", xticks=range(0, 40_000, 8192)),
    alt="Three lines of cache size by length of the text up to 32768 tokens: all global grows to about 870 MB, five "
    "local to one global to about 146 MB, all local stays at about 14 MB.",
    caption="The mix needs a sixth of the memory of the global stack at this length. All local needs least, and is blind "
    "beyond its reach.",
)
ratio = cache_bytes([None] * 26, 32_768, 1, 256) / cache_bytes(gemma, 32_768, 1, 256)
prove("the mix needs about a sixth", 5.5 < ratio < 6.5)

# %% [markdown] id="mix-clocks"
# **Predict.** Three models of three layers learn the notes at 64 positions. The first has a window of 8 in every layer, so
# its reach is 21 positions. The second has two such layers and a global one at the top. The third is all global. Which of
# them finds notes more than 21 positions back, and which reads the text best?
#
# <details><summary>Other clocks for local layers</summary>
#
# A local layer of Gemma 3 never compares positions that are more than 511 apart (1,023 in the larger models), so it keeps the
# base 10,000. A global one compares positions up to 32,767 apart (131,072 in the larger models), and has the base 1,000,000,
# so that its clocks are slow enough. In our config these are `local_layers`, `rotary_base` and `local_rotary_base`.
#
# </details>

# %% id="mix-guess"
ex.predict("local_and_global", "")

# %% id="mix-record" tags=["hide-input"]
# Figure: notes by distance and loss on text for three mixes, a dot for each of five seeds
record = claim("local_and_global")
arms = list(record.arms)
measures = ("notes within the window", "notes within the reach", "notes beyond the reach", "text")
titles = [measure.replace("notes ", "").replace(" the ", "\nthe ") for measure in measures]
ranges = "; ".join(
    f"{arm}: " + ", ".join("{} {:.2f} to {:.2f}".format(measure, *record.range(arm, measure)) for measure in measures)
    for arm in arms
)
show(
    panels(
        seed_rows,
        {title: record.by_arm(measure) for title, measure in zip(titles, measures)},
        share="y",
        each=[{"xlabel": "found", "xlim": (-0.05, 1.08)}] * 3 + [{"xlabel": "loss"}],
        size=(7.4, 2.3),
    ),
    alt=f"Four panels, five dots for each of three mixes of layers. {ranges}.",
    caption=f"A dot for each of five seeds; 21 positions is the reach of three windows. ({record.command}, "
    f"{record.cpu_seconds:.0f} s of CPU.)",
)

local, mixed, everywhere = (record.values(arm, "text") for arm in arms)
prove(
    "the windows alone read worst with each seed",
    all(a > max(b) for a, *b in zip(local, mixed, everywhere, strict=True)),
)
prove("neither of the other two wins always", {a < b for a, b in zip(mixed, everywhere, strict=True)} == {True, False})

# %% [markdown] id="mix-read"
# With windows alone, notes beyond 21 positions are found about as often as by guessing, one in ten. One global layer of three
# repairs that almost entirely. The windows alone also read the text worst, with each of the five seeds.

# %% [markdown] id="who"
# ## 8 Who does what
#
# The settings of published models say how slow the clocks are, which of them are changed, and which layers may look far.
#
# <details><summary>Nine published models</summary>
#
# The settings are those of their papers or their published configs. “Trained” is the length before the context was extended,
# as far as it was.
#
# | model | rotary base | rule | trained → read | windows | source |
# |---|---|---|---|---|---|
# | LLaMA, by Chen et al. | 10,000 | interpolation | 2,048 → 32,768 | none | Chen et al. 2023 |
# | Code Llama | 1,000,000 | larger base, trained on | 4,096 → 16,384, read up to 100,000 | none | Rozière et al. 2023 |
# | Llama 3.1 | 500,000 | by turns, factor 8, borders 1 and 4 | 8,192 → 131,072 | none | its config; Dubey et al. 2024 |
# | Qwen2.5, for long texts | 1,000,000 | YaRN, factor 4 | 32,768 → 131,072 | none | its model card |
# | DeepSeek-V3 | 10,000 | YaRN, factor 40 | 4,096 → 131,072 | none | DeepSeek-AI 2024, section 4.3 |
# | gpt-oss | 150,000 | YaRN, factor 32 | 4,096 → 131,072 | 128 in every second layer; a learned sink in each head | its config |
# | Mistral 7B v0.1 | 10,000 | none | 8,192 | 4,096 in all layers | Jiang et al. 2023 |
# | Gemma 2 | 10,000 | none | 8,192 | 4,096 in every second layer | Gemma Team 2024 |
# | Gemma 3, 4 B and larger | 1,000,000; local 10,000 | interpolation, factor 8, in global layers | 32,768 → 131,072 | 1,024 in five of six layers | Gemma Team 2025 |
#
# A factor need not be the ratio of the two lengths. DeepSeek-V3 and Gemma 3 slow their clocks by more than the text grows
# (40 for 32 times, 8 for 4 times); Llama 3.1 by less (8 for 16 times), and it was trained on texts of the full length.
#
# </details>

# %% id="who-proof" tags=["hide-input"]
# Check, where the library transformers is installed: the rows whose settings are its defaults
print("compared with the defaults of transformers, where it is installed: gpt-oss, Gemma 2")
try:
    from transformers import Gemma2Config, GptOssConfig
except ImportError:
    GptOssConfig = None
if GptOssConfig is not None:
    config = GptOssConfig()
    rope = config.rope_parameters
    prove("gpt-oss: YaRN by 32 from 4096", (rope["rope_type"], rope["factor"]) == ("yarn", 32.0))
    prove("gpt-oss: 4096 positions before", rope["original_max_position_embeddings"] == 4096)
    prove("gpt-oss: a window of 128 in every second layer", config.sliding_window == 128)
    prove("gpt-oss: alternating", config.layer_types[:2] == ["sliding_attention", "full_attention"])
    prove(
        "Gemma 2: 4096 of 8192", (Gemma2Config().sliding_window, Gemma2Config().max_position_embeddings) == (4096, 8192)
    )

# %% [markdown] id="end"
# ## 9 The answer
#
# A rotary model fails beyond its length because its slow clocks enter
# angles that they never met, so that far keys get scores which nobody trained. Slow the clocks, and the angles come back
# to where the model knows its way. A short training on long texts does the rest. Whether it worked shows only in tasks that
# need what stands far away.
#
# <details><summary>Sources</summary>
#
# - Su et al. 2021, RoFormer: rotary positions.
# - Chen et al. 2023, “Extending Context Window of Large Language Models via Positional Interpolation”.
# - bloc97 2023, “NTK-Aware Scaled RoPE”, a post on the forum r/LocalLLaMA.
# - Peng et al. 2023, “YaRN: Efficient Context Window Extension of Large Language Models”, and its code.
# - Rozière et al. 2023, “Code Llama”. Dubey et al. 2024, “The Llama 3 Herd of Models”.
# - DeepSeek-AI 2024, “DeepSeek-V3 Technical Report”. OpenAI 2025, gpt-oss: its config and code in `transformers`.
# - Xiao et al. 2023, “Efficient Streaming Language Models with Attention Sinks”. Gu et al. 2024, “When Attention Sink
#   Emerges in Language Models: An Empirical View”.
# - Jiang et al. 2023, “Mistral 7B”. Gemma Team 2024, “Gemma 2”; 2025, “Gemma 3 Technical Report”.
#
# </details>
