# %% [markdown] id="title"
# # Lab: eight bugs with positions
#
# **The question: how do you notice a bug that raises no error?** Each of these eight has been met in real programs.
# All shapes fit, the loss falls, the text looks fluent for a while. What notices them is a *law*: a sentence that must
# be true of every right program, and that a test can check without knowing the right numbers. Before you run an
# exhibit, say which law will notice it.
#
# The lab stands on [chapter 3](../03_positional_encoding.ipynb): sinusoids, rotary positions, ALiBi, T5's buckets. It
# has one exercise and takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out the same in every run
import torch
from torch import nn

from course_lib import masks, positions, testing
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.cache import KVCache
from course_lib.multi_head import MultiHeadAttention
from course_lib.positions import RotaryEmbedding, SinusoidalPositionalEncoding, apply_rotary, position_shift_matrix
from course_lib.testing import complaint, prove
from coursework import exercises as ex
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots.common import curves, panels
from coursework.pictures.plots.maps import heat_maps
from coursework.pictures.plots.seeds import seed_rows

torch.manual_seed(0)
torch.set_num_threads(1)
attention, rotary = MultiHeadAttention(12, 2).eval(), RotaryEmbedding(6)
x = torch.randn(2, 7, 12)  # (B, T, d_model)

# %% [markdown] id="laws"
# The laws of this lab:
#
# - **Cache.** Writing word by word with a cache gives what one pass over the whole text gives.
# - **Padding.** What stands in a batch beside a text, to fill it up, changes nothing for that text.
# - **Moved text.** With relative positions, moving the whole text by 100 positions changes nothing.
# - **Same source.** A program that loads parameters gives what the program gave that trained them.
# - **Shift.** One matrix takes the sinusoids of position $p$ to those of $p + k$, for every $p$.
# - **Circle.** In each pair of a sinusoid, sine² + cosine² = 1.
#
# The function `complaint` runs a law on a piece of code and returns what the law has against it, or nothing.
#
# ## 1 The cache that restarts at 0
#
# A model writes with a cache: the keys of earlier words are stored, already turned, and only the new word goes through
# the layers. Somebody turns the new words by positions counted from 0 *in each call*. The attention layer here is the
# package's own, with 2 heads of width 6.


# %% id="museum-cache"
def restarting(new, cache):
    cache = KVCache() if cache is None else cache
    turn = rotary(torch.arange(new.size(1)))  # counted from 0 in every call
    return attention(new, causal=True, rotation=turn, cache=cache), cache


# %% id="museum-cache-found" tags=["hide-input"]
# Law: cache; and a picture of the distances that each query sees
def full(x):
    return attention(x, causal=True, rotation=rotary(torch.arange(x.size(1))))


found = complaint(testing.assert_cache_consistent, full, restarting, x)
print(found)
prove("exhibit 1: cached tokens at position 0 are caught by the law of the cache", found)
places = torch.arange(7)
right = (places[:, None] - places).float()
right = right.masked_fill(places > places[:, None], torch.nan)
show(
    heat_maps(
        {"right: real distances": right, "restarted: always 0": 0 * right},
        digits=0,
        reach=(-1, 7),
        xlabel="key",
        ylabel="query",
        size=(6.2, 3.1),
    ),
    alt="Two triangles of distances between queries and keys. Right: 0 on the diagonal, growing by one with each step to "
    "the left, up to 6. Restarted: 0 everywhere.",
    caption="Each new word is turned as if it stood at position 0, like all stored keys. The order is lost again.",
)

# %% [markdown] id="museum-padding-text"
# ## 2 Padding on the left
#
# Texts of different lengths are padded on the left, so that all of them end in the same column and can be continued
# together. The padding is hidden by a mask, properly. The positions are the numbers of the columns. So the first real
# word of a short text does not stand at position 0, but at 2 or 5, depending on the longest text in its batch.
#
# **Predict.** For which of these schemes does it change the result: sinusoids, rotary positions, ALiBi, T5's buckets?

# %% id="predict-padding"
ex.predict("left_padding_harms", "")

# %% [markdown] id="museum-padding-exercise"
# First repair it yourself.

# %% exercise="padded_positions"


# %% id="museum-padding"
added = SinusoidalPositionalEncoding(12)


def padded(x, real, places):  # real (B, T): True where a real word stands
    mask = masks.combine_masks(real[:, None, None], masks.causal_mask(x.size(1)))
    return attention(x + added(places), mask=mask)


def by_column(x, real):
    return padded(x, real, torch.arange(x.size(1)))


def by_word(x, real):
    return padded(x, real, padded_positions(real))


# %% id="museum-padding-found" tags=["hide-input"]
# Law: padding, for both, and for schemes that see only distances
def against(run):
    return complaint(testing.assert_padding_invariant, run, x, side="left", module=attention)


print("by column:", against(by_column))
prove("exhibit 2: left padding without its own positions is caught by the law of padding", against(by_column))
prove("exhibit 2: positions that count real words obey the law", not against(by_word))


def relative(x, real, bias=None, turn=None):
    mask = masks.combine_masks(real[:, None, None], masks.causal_mask(x.size(1)))
    bias = bias(x.size(1)) if bias else None
    return attention(x, mask=mask, bias=bias, rotation=turn(torch.arange(x.size(1))) if turn else None)


buckets = positions.RelativePositionBias(2, bidirectional=False)
for name, scheme in (("rotary", {"turn": rotary}), ("ALiBi", {"bias": positions.ALiBi(2)}), ("T5", {"bias": buckets})):
    broken = against(lambda x, real, scheme=scheme: relative(x, real, **scheme))
    prove(f"exhibit 2: left padding does no harm to {name}, even counted by columns", not broken)
    print(f"{name:>9}: nothing changes")

# %% [markdown] id="museum-padding-says"
# Schemes that see only distances do not care in which column a text begins: all its words move together. Sinusoids and
# learned tables need positions that count real words.
#
# ## 3 Two layouts
#
# A model was trained with rotary positions that pair number $i$ of a head with number $i + d_{head}/2$. It is loaded
# into a program that pairs neighbours. Names and shapes of all tensors fit.

# %% id="museum-layouts-drawn" tags=["hide-input"]
# Drawing: the two layouts
drawings.rotary_layouts().show()


# %% id="museum-layouts"
def trained_with(x):
    turn = RotaryEmbedding(6)(torch.arange(x.size(1)))
    return attention(x, causal=True, rotation=turn)


def loaded_into(x):
    turn = RotaryEmbedding(6, layout="interleaved")(torch.arange(x.size(1)))
    return attention(x, causal=True, rotation=turn)


# %% id="museum-layouts-found" tags=["hide-input"]
# Law: same source
found = complaint(testing.assert_equivalent, trained_with, loaded_into, x, gradients=False)
print(found)
prove("exhibit 3: mixed rotary layouts are caught by the law of the same source", found)

# %% [markdown] id="museum-relative-text"
# Why does the law of the moved text not notice it? Because each layout by itself is right: with either of them a score
# depends on the offset alone. Only a comparison with the program that trained the model can tell.
#
# ## 4 and 5 Turned values, and turned too early
#
# Two more ways to get rotary positions wrong. In exhibit 4 somebody turns the values as well. In exhibit 5 somebody turns
# queries and keys *before* they are cut into heads, when they are still $d_{model}$ numbers wide. Exhibit 5 comes in
# two layouts.


# %% id="museum-relative"
def heads_of(t):
    return t.unflatten(-1, (2, 6)).transpose(1, 2)  # (B, T, 12) -> (B, 2, T, 6)


def run(x, start, values=False, early=False, layout="half"):
    places = torch.arange(start, start + x.size(1))
    if early:  # turned at full width, then cut
        q = heads_of(apply_rotary(x, RotaryEmbedding(12, layout=layout)(places)))
    else:
        q = apply_rotary(heads_of(x), RotaryEmbedding(6, layout=layout)(places))
    return sdpa(q, q, q if values else heads_of(x), causal=True)


# %% [markdown] id="predict-early-text"
# **Predict.** The law of the moved text compares a text that starts at position 0 with the same text that starts at 100.
# Whom does it catch: turned values, turned early with halves, turned early with neighbours?

# %% id="predict-early"
ex.predict("moved_text_catches", "")


# %% id="museum-relative-found"
def moved(**bug):
    at_0, at_100 = lambda x: run(x, 0, **bug), lambda x: run(x, 100, **bug)
    same = testing.assert_equivalent
    return complaint(same, at_0, at_100, x, gradients=False, tolerance=1e-4)


neighbours = {"early": True, "layout": "interleaved"}
print("right:             ", moved() or "obeys")
print("values turned:     ", moved(values=True) or "obeys")
print("early, halves:     ", moved(early=True) or "obeys")
print("early, neighbours: ", moved(**neighbours) or "obeys")

# %% [markdown] id="museum-early-says"
# Turned values are caught: what is handed over now depends on the position. Turned early with halves is caught, too. There
# number $i$ is paired with number $i + 6$, and the cut puts the two into different heads, so no head has a whole clock.
#
# But turned early with **neighbours** obeys the law. Neighbours stay together when the vector is cut, so every head has
# whole clocks, and its scores depend on distances alone. Is it then right? Look at which clocks a head gets.

# %% id="museum-early-figure" tags=["hide-input"]
# Figure: the speeds of the clocks in each head; and the law that notices
prove("exhibit 4: turned values break the law of the moved text", moved(values=True))
prove("exhibit 5: turned early with halves breaks it, too", moved(early=True))
prove("exhibit 5: turned early with neighbours obeys it", not moved(**neighbours))
found = complaint(
    testing.assert_equivalent, lambda x: run(x, 0, layout="interleaved"), lambda x: run(x, 0, **neighbours), x,
    gradients=False,
)  # fmt: skip
prove("exhibit 5: the law of the same source catches it", found)
wide, narrow = positions.frequencies(64), positions.frequencies(16)
found = {"turned after the cut": [narrow] * 4, "turned before it": wide.split(8)}
show(
    panels(
        seed_rows,
        {title: {f"head {h}": {"": speed} for h, speed in enumerate(heads)} for title, heads in found.items()},
        colours={f"head {h}": palette.series[h] for h in range(4)},
        xlabel="radians for each position",
        xscale="log",
        size=(6.8, 2.4),
    ),
    alt="Speeds of the clocks in each of four heads of width 16. Turned after the cut, each head has eight clocks from "
    "fast to slow. Turned before it, head 0 has only the fastest eight, head 3 only the slowest.",
    caption="Turned before the cut, each head gets only a part of the clocks: the first only fast ones, the last only slow "
    "ones. It is another model than the published one, though it obeys the law of the moved text.",
)

# %% [markdown] id="museum-early-moral"
# So this law alone is not enough. Parameters that were trained with the usual heads do not fit this program, and only the
# comparison with their source notices it. A law says what must be true. It never says that nothing else is wrong.
#
# ## 6 Halves in place of pairs
#
# Somebody writes all sines of a table into its first half and all cosines into the second. A model trained with it is as
# good as any: the columns only stand in another order. What breaks?


# %% id="museum-halves"
def halves(p, d_model=16):
    angle = p[:, None] * positions.frequencies(d_model)  # (T, d_model / 2)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


# %% id="museum-halves-found" tags=["hide-input", "atol:0.00001"]
# Laws: shift, and the products of codes
p, pairs = torch.arange(40), SinusoidalPositionalEncoding(16)
step = position_shift_matrix(3, 16)
off = (halves(p) @ step.T - halves(p + 3)).abs().max()
right = (pairs(p) @ step.T - pairs(p + 3)).abs().max()
print(f"law of the shift by 3: off by {off:.2f} for halves, {right:.0e} for pairs")
prove("exhibit 6: halves in place of pairs break the shift law of the formula", off > 0.1 and right < 1e-4)
same = torch.allclose(halves(p) @ halves(p).T, pairs(p) @ pairs(p).T, atol=1e-4)
prove("exhibit 6: dot products of positions do not notice it", same)

# %% [markdown] id="museum-halves-says"
# The dot products between positions are the same, as the order of the terms in a sum does not matter. The shift matrix
# of the formula no longer fits. And a model trained with the formula fails with this table.
#
# ## 7 The picture with dropout
#
# A tutorial draws the table of sinusoids by calling its module on a text of zeros and plotting what comes out. The module
# adds the positions and then applies *dropout*, which sets a random tenth of all numbers to zero while training and
# scales up the rest. A new module is in training mode.


# %% id="museum-dropout"
class WithDropout(nn.Module):
    def __init__(self, d_model, longest=5000):
        super().__init__()
        table = SinusoidalPositionalEncoding(d_model)(torch.arange(longest))
        self.register_buffer("table", table)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(x + self.table[: x.size(1)])  # (B, T, d_model)


# %% id="museum-dropout-found" tags=["hide-input"]
# Figure and law: circle
torch.manual_seed(0)
module = WithDropout(16)
drawn = module(torch.zeros(1, 20, 16))[0]  # (T, d_model)
table = module.eval()(torch.zeros(1, 20, 16))[0]
show(
    heat_maps(
        {"as the tutorial drew it": drawn, "in evaluation mode": table},
        cmap=palette.signed,
        reach=(-1.1, 1.1),
        aspect="auto",
        every=(5, 4),
        xlabel="column",
        ylabel="position",
        size=(6.6, 2.9),
    ),
    alt="Two heat maps of the same table of sinusoids. Left, drawn in training mode: single cells here and there are "
    "white where the pattern is red or blue. Right, in evaluation mode: the pattern without holes.",
    caption="The holes at the left are dropout, not positions.",
)
circle = drawn.unflatten(-1, (8, 2)).square().sum(-1)  # (T, d_model / 2): sin² + cos²
print(f"cells that are 0: {(drawn == 0).float().mean():.2f}, in the table {(table == 0).float().mean():.2f}")
print(f"sin² + cos²: from {circle.min():.2f} to {circle.max():.2f}")
prove("exhibit 7: a table drawn through dropout breaks sin² + cos² = 1", (circle - 1).abs().max() > 0.1)
circle = table.unflatten(-1, (8, 2)).square().sum(-1)
prove("exhibit 7: in evaluation mode the law holds", torch.allclose(circle, torch.ones(20, 8), atol=1e-5))

# %% [markdown] id="museum-precision-text"
# ## 8 Speeds in half precision
#
# A model is converted to bfloat16, a format with eight binary digits, which is 2.4 decimal ones. With it goes a buffer that
# holds the speeds of the rotary clocks. A speed that is off by a third of a percent makes little difference at position 10.
#
# **Predict.** At which position is an angle off by half a radian, about 30 degrees: 100, 1000 or 10,000?

# %% id="predict-precision"
ex.predict("bfloat16_speeds", "")

# %% id="museum-precision"
speeds = positions.frequencies(64)
rounded = speeds.bfloat16().float()
for p in (10, 100, 1000, 10_000):
    off = (p * speeds - p * rounded).abs().max()
    print(f"position {p:6}: an angle is off by up to {off:.3f} radians")

# %% id="museum-precision-figure" tags=["hide-input"]
# Figure: the error of the worst clock against the position
p = torch.logspace(0, 4, 60)
off = (p[:, None] * (speeds - rounded)).abs().amax(-1)
show(
    curves(
        p,
        {"": off},
        styles=["-"],
        levels={"half a radian": 0.5},
        xscale="log",
        yscale="log",
        xlabel="position",
        ylabel="angle off by, radians",
    ),
    alt="The largest error of an angle against the position, both on logarithmic axes: a straight line that crosses half "
    "a radian near position 1000.",
    caption="The error grows with the position. Short tests do not see it, long texts do.",
)
kept = SinusoidalPositionalEncoding(64).bfloat16()(torch.tensor([1000]))
same = torch.equal(kept, SinusoidalPositionalEncoding(64)(torch.tensor([1000])))
prove(
    "exhibit 8: bfloat16 speeds turn position 1000 by over 0.4 radians too much",
    1000 * (speeds - rounded).abs().max() > 0.4,
)
prove("exhibit 8: the library keeps its speeds in float32 through .bfloat16()", same)

# %% [markdown] id="end"
# The cure is to keep speeds and angles in float32, and to convert only the sines and cosines. The package does so, and
# so did your `apply_rotary` in chapter 3, if it passed its last case.
#
# ## What you have
#
# | exhibit | what happened | what notices it |
# |---|---|---|
# | 1 | the cache restarts at 0 | cache against one pass |
# | 2 | left padding counted as positions | padding changes nothing |
# | 3 | the other rotary layout | comparison with the source |
# | 4 | values turned | moved text |
# | 5 | turned before the cut into heads | halves: moved text; neighbours: only the comparison with the source |
# | 6 | sines and cosines in halves | the shift matrix, comparison with the source |
# | 7 | a picture through dropout | sine² + cosine² = 1 |
# | 8 | speeds in half precision | comparison with float32 at far positions |
#
# Other labs on this chapter: [what else there is to know about positions](03_positions.ipynb) and [long
# texts](03_long_context.ipynb).
