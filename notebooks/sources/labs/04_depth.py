# %% [markdown] id="title"
# # Lab: what makes a deep stack learn?
#
# **The question: why do twelve layers sometimes learn nothing, where two layers learn well?** You will hear many
# answers: the residual connections, the norms, where the norms stand, the initial weights, a warm-up. Here we take
# them apart, one at a time.
#
# The lab stands on sections 3 to 6 of [chapter 4](../04_encoder.ipynb): the residual stream, LayerNorm, and its two
# places. A *sublayer* is one half of a layer, its attention or its feed-forward network. *Post-norm* is the layer of
# 2017: add, then norm, so that the norm stands in the stream. *Pre-norm* norms only what a sublayer reads, and leaves
# the stream alone. One exercise, about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import torch
import torch.nn.functional as F
from num2words import num2words
from torch import nn

from course_lib.encoder import EncoderLayer, TransformerEncoder
from course_lib.layers import TokenEmbedding
from course_lib.testing import prove
from course_lib.transformer import Embedding, TransformerConfig
from coursework import exercises as ex
from coursework.explorers import StreamExplorer
from coursework.pictures import drawings, show
from coursework.pictures.plots import common
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="average-text"
# ## 1 What a fresh layer does to its tokens
#
# Before training, the weights of attention say nothing yet, and each token mixes many tokens. Take the simplest case,
# an even average, and three tokens that are just the numbers 0, 3 and 6. Their average is 3. If a layer passes on
# nothing but this average, then all three are 3 after one layer, and nothing that comes later can tell them apart.
# Real weights are not even. How much of this picture remains can be measured.
#
# Now let each layer *add* the average to what was there. After one layer the tokens are 3, 6 and 9, after two they
# are 9, 12 and 15. All have moved by the same amount. The differences between them are those of the beginning.

# %% id="average-drawn" tags=["hide-input"]
# Drawing: two layers that average, with and without what was there before
drawings.only_the_average().show()
tokens = torch.tensor([0.0, 3.0, 6.0])
kept = tokens + tokens.mean()
prove(
    "by hand: the average alone is 3 for all; added twice it gives 9, 12, 15",
    (kept + kept.mean()).tolist() == [9, 12, 15],
)

# %% [markdown] id="average-two-things"
# That is one thing a residual connection may be good for: it keeps tokens apart. The usual story is another one,
# about gradients. Both can be measured in a stack that was never trained. Say first what you expect.

# %% exercise="no_residual"


# %% [markdown] id="measures-text"
# ### 1.1 Two measures
#
# We need a stack of any depth with any of the switches, and two measures.
#
# - **Similarity of tokens.** The cosine of two vectors is 1 if they point the same way and 0 if they have nothing in
#   common. We take the mean over all pairs of tokens.
# - **Size of a gradient.** We choose a random direction at the output, send it backwards, and compare the size of what
#   arrives with the size of what was sent. 1 means: as large as at the output.
#
# The matrices are drawn by *Xavier's rule*, the course's default: the spread of the numbers is chosen so that vectors
# keep about their size when they are multiplied by the matrix.


# %% id="stack"
def fresh(depth, seed=0, **switches):
    """An encoder of so many layers that was never trained."""
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "n_heads": 4, "n_encoder_layers": depth}
    config = TransformerConfig(**sizes, positions="none", dropout=0.0, **switches)
    return TransformerEncoder(config)


def similarity(tokens):
    """Mean cosine of all pairs of different tokens (T, D)."""
    units = F.normalize(tokens, dim=-1)
    T = len(tokens)
    return ((units @ units.T).sum().item() - T) / (T * (T - 1))


# %% [markdown] id="through-text"
# The next function sends eleven random tokens through a stack. It returns the vectors before and after each layer, and
# the gradient at each of these places.


# %% id="through"
def through(encoder, x):
    """Tokens and sizes of gradients at the input and after each layer."""
    places = [x.clone().requires_grad_()]
    for layer in encoder.layers:
        places.append(layer(places[-1]))
    end = encoder.final_norm(places[-1])
    direction = torch.randn(end.shape, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad((end * direction).sum(), places)
    sizes = [(g.norm() / direction.norm()).item() for g in found]
    return [place.detach()[0] for place in places], sizes


words = [num2words(n) for n in range(1, 12)]
x = torch.randn(1, 11, 64, generator=torch.Generator().manual_seed(1))  # (B, T, D)

# %% id="gradients-by-depth" tags=["hide-input", "picture:20", "tol:0.15"]
# Figure: five stacks at five depths
STACKS = {
    "residual, post-norm": {},
    "residual, pre-norm": {"norm_place": "pre"},
    "residual, no norm": {"norm": "none"},
    "no residual, norm": {"residual": False},
    "neither": {"residual": False, "norm": "none"},
}
depths, arrived, alike = (1, 2, 4, 12, 24), {}, {}
for name, switches in STACKS.items():
    found = [through(fresh(depth, **switches), x) for depth in depths]
    arrived[name] = [gradients[0] for _, gradients in found]
    alike[name] = [similarity(places[-1]) for places, _ in found]
measured = {"gradient at the input": arrived, "similarity of tokens": alike}
each = ({"yscale": "log"}, {"ylim": (-0.1, 1.05)})
show(
    common.panels(common.curves, depths, measured, size=(7.5, 3.4), share="x", each=each, xlabel="layers"),
    alt="Left: gradient at the input against depth on a log scale. With a norm it stays near one for 24 layers, with or "
    "without residuals. Without a norm it explodes with residuals and vanishes without. Right: without residuals the "
    "similarity of the tokens is one from two to four layers on.",
    caption="As long as there are norms, the gradient at the input keeps its size, even without residuals (the line 'no "
    "residual, norm'). What is lost there are the differences between tokens.",
)
for name in STACKS:
    print(f"{name:>20}, 24 layers: gradient {arrived[name][-1]:8.1e}, similarity {alike[name][-1]:.2f}")

# %% id="gradients-proof" tags=["hide-input"]
# What the figure shows, as assertions
bare, neither = "no residual, norm", "neither"
prove("without residuals, with LayerNorm, the gradient at the input does not vanish", arrived[bare][-1] > 0.1)
prove("but all tokens are one vector after four layers", alike[bare][2] > 0.99)
prove("without norm and residual the gradient at the input vanishes", arrived[neither][-1] < 1e-5)
prove("with residuals and no norm it explodes", arrived["residual, no norm"][-1] > 1e6)
prove("with both it stays within a factor of three", all(1 / 3 < g < 3 for g in arrived["residual, post-norm"]))

# %% [markdown] id="residual-says"
# Read the two halves together. Remove the residual connections and keep the norms: the gradient at the input is as
# large as before, and the tokens are one vector. Remove the norms and keep the residual connections: the gradient
# explodes. Remove both: it vanishes. So it is the *norms* that keep the sizes in order, and the
# *residual connections* that keep the tokens apart: without them the tokens are lost after two to four layers. With
# them it takes longer; how long depends on things that section 3 comes to.
#
# ## 2 Which gradients vanish
#
# The gradient at the input is not the whole story. A weight learns from its own gradient. Think of $W_q$ and $W_k$, the
# matrices of the queries and keys. They decide which token is read. If all tokens are the same vector, it makes no
# difference which one is read; every choice gives the same output. So the loss does not depend on $W_q$ and $W_k$, and
# their gradient must be zero. The feed-forward network still gets a gradient: it computes with what is there, even if
# that is one vector.
#
# **Predict.** In a stack of twelve layers without residual connections, in which layers do $W_q$ and $W_k$ get a
# gradient?

# %% id="which-guess"
ex.predict("lab_depth_which_layers", "")


# %% id="weights-code"
def gradients_of(encoder, x):
    """Sizes of the gradients of W_q and W_k, and of the feed-forward, by layer."""
    end = encoder(x)
    direction = torch.randn(end.shape, generator=torch.Generator().manual_seed(2))
    layers = encoder.layers
    weights = [layer.self_attention.qkv.weight for layer in layers]  # (3 D, D)
    weights += [layer.feed_forward.up.weight for layer in layers]
    found = torch.autograd.grad((end * direction).sum(), weights)
    n, sent = len(layers), direction.norm()
    queries_and_keys = [(g[:128].norm() / sent).item() for g in found[:n]]  # 2 D rows
    feed_forward = [(g.norm() / sent).item() for g in found[n:]]
    return queries_and_keys, feed_forward


# %% id="weights-figure" tags=["hide-input", "picture:20"]
# Figure: both gradients in each of twelve layers; torch's own layers beside Xavier's rule
def torch_layers(depth=12):
    encoder = fresh(depth)
    for number in range(depth):
        theirs = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        encoder.layers[number] = EncoderLayer.from_torch(theirs)
    return encoder


SHOWN = {
    "post-norm": fresh(12),
    "pre-norm": fresh(12, norm_place="pre"),
    "no residual": fresh(12, residual=False),
    "post-norm, torch's weights": torch_layers(),
    "post-norm, small weights": fresh(12, init="normal"),
}
sizes = {name: gradients_of(encoder, x) for name, encoder in SHOWN.items()}
kinds = ("queries and keys", "feed-forward")
kinds = {kind: {name: both[n] for name, both in sizes.items()} for n, kind in enumerate(kinds)}
axes = {"yscale": "log", "xlabel": "layer", "ylabel": "size of the gradient"}
show(
    common.panels(common.curves, range(1, 13), kinds, size=(7.5, 3.6), **axes),
    alt="Two panels with the layers 1 to 12. Queries and keys: without residuals the gradient falls from about one to one "
    "millionth by layer 4; with post-norm and Xavier's weights it falls slowly by a factor of hundreds; with pre-norm from "
    "about 3 to a few tenths; torch's own weights and small weights stay nearly level. Feed-forward: all lines are nearly "
    "level.",
    caption="One draw of the weights. Gradients do vanish in size without residual connections, but only those of queries "
    "and keys, and not at the input.",
)
bare = sizes["no residual"]
prove("without residuals W_q and W_k get a gradient in the first layer", bare[0][0] > 0.1)
prove("and none in the last, though there are norms", bare[0][-1] < 1e-4)
prove("the feed-forward gets one in every layer", min(bare[1]) > 0.1)
end = SHOWN["no residual"](x)
direction = torch.randn(end.shape, generator=torch.Generator().manual_seed(2))
last = SHOWN["no residual"].layers[-1].feed_forward.up.weight
first_singular, second_singular, *_ = torch.linalg.svdvals(torch.autograd.grad((end * direction).sum(), last)[0])
prove("but the feed-forward's gradient in the last layer has rank one", second_singular < 1e-4 * first_singular)

# %% [markdown] id="collapse-text"
# In the first two layers they do, because there the tokens are still different. From the third or fourth layer on there
# is nothing left. Dong et al. (2021) call this **rank collapse**: the matrix of token vectors loses its rank, until all
# rows are multiples of one. Noci et al. (2022) showed what it does to the gradients of queries and keys.
#
# The gradient of the feed-forward network keeps its size. But where all tokens are one vector, it has rank one: all its
# rows are multiples of that vector. So the network can learn what to do with this one vector, and nothing that tells
# tokens apart. The folded cell of the figure checks this in the last layer.
#
# Five draws of the weights say the same as one:

# %% id="collapse-record" tags=["hide-input"]
# Record: gradient of queries and keys in the first and the last layer, and similarity of the tokens
record = claim("fresh_stacks")
print(f"{'gradient of W_q, W_k in layer':>30}  {'1':^17}  {'12':^17}   similarity")
for arm in record.arms:
    ranges = [record.range(arm, f"gradient of W_q and W_k, layer {number}") for number in (1, 12)]
    low, high = record.range(arm, "similarity")
    print(f"{arm:>30}", *(f" {a:7.1e} – {b:7.1e}" for a, b in ranges), f"  {low:5.2f} – {high:.2f}")
print(f"five draws; {record.command}")
prove(
    "in each of five draws without residuals, the last layer's queries and keys get next to nothing",
    record.range("no residual, norm", "gradient of W_q and W_k, layer 12")[1] < 1e-4,
)

# %% [markdown] id="dilution-text"
# ## 3 Why post-norm loses its tokens too, only later
#
# Look at post-norm in the figure. It has residual connections and norms, and still the gradient of its queries and keys
# falls by a factor of hundreds. Its tokens are alike in the end. Why?
#
# Suppose that each sublayer writes something as large as the token was at the start. After the first sum the stream
# consists of two equal parts, and half of it (measured in squares) is the token itself. Post-norm then scales the sum
# back to the old size. The next sublayer writes as much again, and again half of what was there remains. Twelve
# layers have 24 sublayers, and 24 halvings leave nothing. With pre-norm the stream is not scaled back. It grows, and
# the token keeps one part of 25.

# %% id="dilution-drawn" tags=["hide-input"]
# Drawing: which share of a token is still its own
drawings.share_of_a_token().show()

# %% [markdown] id="dilution-init"
# The sketch also says what would help: let the sublayers write less at the start. Smaller initial weights do exactly
# that. BERT draws its matrices with a standard deviation of 0.02. PyTorch's own layer follows Xavier's rule in one
# matrix only, the one that holds $W_q$, $W_k$ and $W_v$ together. The rule makes the numbers of a larger matrix
# smaller, and the course draws these three one by one. What does PyTorch draw for the matrices that *write* to the
# stream?

# %% id="torch-init"
torch.manual_seed(0)
theirs = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
ours = fresh(1).layers[0]
writers = {
    "attention": (theirs.self_attn.out_proj, ours.self_attention.output),
    "feed-forward": (theirs.linear2, ours.feed_forward.down),
}
for name, (their, our) in writers.items():
    print(f"{name}: torch {their.weight.std():.3f}, Xavier {our.weight.std():.3f}")
their, our = theirs.self_attn.in_proj_weight, ours.self_attention.qkv.weight
print(f"q, k, v: torch {their.std():.3f}, Xavier, one by one {our.std():.3f}")

# %% id="torch-init-proof" tags=["hide-input"]
# The ratio lies near one half; and what smaller weights do to twelve layers
ratios = [(their.weight.std() / our.weight.std()).item() for their, our in writers.values()]
prove("torch draws what its sublayers write with about half as large as Xavier", all(0.4 < r < 0.65 for r in ratios))
prove("and q, k, v smaller by the root of two", abs(our.std() / their.std() - 2**0.5) < 0.1)


# Twelve post-norm layers with Xavier's weights, made smaller step by step; five draws
def made_smaller(seed, factor_of_writers, factor_of_qkv):
    encoder = fresh(12, seed=seed)
    with torch.no_grad():
        for layer in encoder.layers:
            layer.self_attention.output.weight *= factor_of_writers
            layer.feed_forward.down.weight *= factor_of_writers
            layer.self_attention.qkv.weight *= factor_of_qkv
        return similarity(encoder(x)[0])


half, root = sum(ratios) / 2, 0.5**0.5
smaller = {"Xavier": (1, 1), "smaller writers": (half, 1), "smaller writers and q, k, v": (half, root)}
alike_after = {name: [made_smaller(seed, *factors) for seed in range(5)] for name, factors in smaller.items()}
print("similarity after twelve post-norm layers, five draws:")
for name, values in alike_after.items():
    print(f"{name:>27}: {min(values):.2f} to {max(values):.2f}")
in_order = [large > less > least for large, less, least in zip(*alike_after.values(), strict=True)]
prove("smaller writers keep tokens further apart, smaller q, k, v further still, in each of five draws", all(in_order))

# %% [markdown] id="explorer-text"
# What writes is drawn about half as large, and $W_q$, $W_k$ and $W_v$ are smaller as well. Both help, in each of the
# five draws above: what attention writes is made of values. So a fresh post-norm stack in PyTorch keeps its tokens
# further apart over twelve layers (the record above has its similarity), although its norms stand in the stream. The
# explorer shows four stacks layer by layer. Which of them lose their tokens, and where?

# %% id="stream-explorer" tags=["hide-input"]
# Explorer: choose a stack and a layer
names = {"post-norm": {}, "pre-norm": {"norm_place": "pre"}, "no residual": {"residual": False}}
names["small weights"] = {"init": "normal"}
found = {name: through(fresh(12, **switches), x) for name, switches in names.items()}
StreamExplorer(
    {name: places for name, (places, _) in found.items()},
    words,
    gradients={name: gradients for name, (_, gradients) in found.items()},
    stack=0,
)

# %% id="stream-proof" tags=["hide-input"]
# Similarities at the end, lengths in the pre-norm stream, and what a final norm changes
final = {name: similarity(places[-1]) for name, (places, _) in found.items()}
lengths = [place.square().mean().sqrt().item() for place in found["pre-norm"][0]]
prove("12 post-norm layers with Xavier weights make tokens alike, over 0.95", final["post-norm"] > 0.95)
prove("with small initial weights they stay apart, under 0.2", final["small weights"] < 0.2)
prove("a pre-norm stream grows from layer to layer", lengths[-1] > 2 * lengths[0])

# %% [markdown] id="final-norm-text"
# The explorer shows one more thing: the length of the vectors. The pre-norm stream grows, because everything is added
# and nothing is scaled back. That is why a pre-norm stack has one more norm after its last layer, and a post-norm
# stack needs none:

# %% id="final-norm"
for place in ("post", "pre"):
    with torch.no_grad():
        end = fresh(12, norm_place=place, final_norm=False)(x)
    change = (F.layer_norm(end, (64,)) - end).abs().max()
    print(f"{place}-norm: a final norm changes the output by up to {change:.5f}")
prove("a final norm changes a pre-norm stack a lot", change > 1)

# %% [markdown] id="trains-text"
# ## 4 Does it train?
#
# Everything so far was about stacks that were never trained. The task: read six tokens, drawn from eight kinds, and
# write them backwards. Each position has to find one other position, so tokens that have become alike make it hard. A
# guess is right one time in eight. A model that knows *which* tokens occur, but not where they stand, can always name
# the most frequent one. It is right at 0.36 of the positions.


# %% id="commonest" tags=["hide-input"]
# How often is the commonest of six tokens right?
draws = torch.randint(8, (20_000, 6), generator=torch.Generator().manual_seed(0))
share = F.one_hot(draws, 8).sum(1).amax(-1).float().mean().item() / 6
print(f"always name the commonest token of the six: {share:.3f} right")


# %% id="reversal-model"
def reversal_model(depth, seed=0, **switches):
    """Ids (B, T) -> scores for each of eight tokens at each place (B, T, 8)."""
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "n_heads": 4, "d_ff": 64, "n_encoder_layers": depth}
    config = TransformerConfig(**sizes, vocab_size=8, dropout=0.0, **switches)
    encoder = TransformerEncoder(config)
    return nn.Sequential(Embedding(config, 8), encoder, nn.Linear(64, 8))


# %% id="reversal-train" tags=["hide-input"]
# Training with Adam for at most 300 steps; accuracy on new sequences after every 25
@torch.no_grad()
def accuracy(model):
    tokens = torch.randint(8, (300, 6), generator=torch.Generator().manual_seed(99))
    return (model(tokens).argmax(-1) == tokens.flip(1)).float().mean().item()


def train_reversal(model, rate=1e-3, steps=300, seed=0):
    generator, curve = torch.Generator().manual_seed(seed), []
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
    for step in range(steps + 1):
        if step % 25 == 0:
            curve.append((step, accuracy(model)))
        tokens = torch.randint(8, (24, 6), generator=generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.02:
            return [*curve, (step, accuracy(model))]
    return curve


# %% [markdown] id="trains-question"
# **Predict.** Three stacks of twelve layers, all with residual connections and norms: post-norm with Xavier's weights,
# pre-norm with Xavier's weights, post-norm with small weights. Which of them learn the task in 300 steps?

# %% id="trains-guess"
ex.predict("lab_depth_which_learn", "")

# %% id="trains-live" tags=["hide-input", "picture:60", "atol:0.3"]
# Figure: one training of each, now
tried = {"post-norm": {}, "pre-norm": {"norm_place": "pre"}, "post-norm, small weights": {"init": "normal"}}
steps, right = {}, {}
for name, switches in tried.items():
    steps[name], right[name] = zip(*train_reversal(reversal_model(12, **switches)), strict=True)
    print(f"{name:>25}: {right[name][-1]:.2f} right at the end")
axes = {"xlabel": "step", "ylabel": "tokens right", "ylim": (0, 1.03)}
show(
    common.curves(steps, right, size=(6.6, 3.2), levels={"always the commonest token": share}, **axes),
    alt="Share of tokens that are right against steps. Post-norm rises to 0.36 and stays there. Pre-norm, and post-norm "
    "with small weights, rise to nearly 1.",
    caption="One training each, twelve layers. Post-norm with Xavier's weights learns which tokens occur, and not where.",
)

# %% [markdown] id="trains-record-text"
# One seed and one rate decide little. The record has five seeds and two rates, stacks without residual connections,
# and as a control a post-norm stack with a warm-up, in case the learning rate is to blame:

# %% id="trains-record" tags=["hide-input"]
# Record: writing six tokens backwards, five seeds
record = claim("deep_reversal")
reached = {arm: record.range(arm, "accuracy") for arm in record.arms}  # at the better rate of each
prove("without residuals one layer learns it", reached["no residual, 1 layer"][0] > 0.9)
prove("and a second layer makes it worse, for every seed", reached["no residual, 2 layers"][1] < 0.8)
prove("12 layers without residuals stay near chance", reached["no residual"][1] < 0.4)
stuck = (reached["post-norm"], reached["post-norm, 100 steps of warm-up"])
prove("12 post-norm layers with Xavier weights fail, at either rate, with warm-up or not", max(stuck)[1] < 0.5)
prove("12 pre-norm layers with the same weights learn it", reached["pre-norm"][0] > 0.8)
prove("and so do 12 post-norm layers with smaller weights", reached["post-norm, small weights"][0] > 0.9)
record

# %% [markdown] id="depth-says"
# Without residual connections one layer learns the task. With a second layer only about half to three quarters are
# right after 300 steps. With residual connections twelve post-norm layers fail as well, until the norm moves or the
# initial weights shrink. Neither a lower rate nor a warm-up rescues them. At best they reach the share of the most
# frequent token. Within 300 steps the optimizer did not bring back what these twelve layers had lost before training
# began. This is one task and one width, and the record does not say what longer training does.
#
# ## 5 What a warm-up buys
#
# A *warm-up* lets the learning rate rise slowly from zero; the paper's takes 4,000 steps. It did not get the twelve
# layers above beyond the most frequent token. A stack that keeps its tokens apart may gain more. Here are six layers
# with small weights, at three rates, with five seeds:

# %% id="warm-up-recorded" tags=["hide-input"]
# Figure: six layers, three rates, with and without a warm-up, five seeds
record = claim("warm_up_of_encoders")
rates, norms = [f"{rate:g}" for rate in record.rates], {"post-norm": {}, "pre-norm": {}}
for arm in record.arms:
    norm, warm_up = arm.split(", ")
    norms[norm][warm_up] = [record.values(arm, "accuracy", rate) for rate in record.rates]
show(
    common.panels(common.dots, rates, norms, size=(7.5, 3.3), xlabel="rate", ylabel="tokens right", ylim=(0, 1.05)),
    alt="Two panels, post-norm and pre-norm, with three rates each. At the two lower rates all dots lie near 1, with and "
    "without a warm-up. At the highest, post-norm without warm-up lies at chance in all five, with warm-up between 0.86 "
    "and 0.99; pre-norm without warm-up has one dot at 0.26, and with it all lie near 1.",
    caption=f"A dot for each seed. A warm-up lets a stack stand a higher rate. ({record.command})",
)
highest = max(record.rates)
prove(
    "post-norm, highest rate, no warm-up: none of five",
    record.range("post-norm, no warm-up", "accuracy", highest)[1] < 0.2,
)
prove("with it all five", record.range("post-norm, 50 steps", "accuracy", highest)[0] > 0.8)

# %% [markdown] id="warm-up-says"
# At the highest rate the warm-up decides: without it no post-norm stack learns, and one of five pre-norm stacks fails
# too. At a quarter of that rate nobody needs it. So a warm-up buys a higher rate, for both places of the norm. Another
# stack, a translator with four layers on each side that also writes letters backwards, says the same: pre-norm needs
# the warm-up at the higher rate, post-norm already at the lower one. At the higher rate a warm-up of 50 steps does not
# rescue post-norm.

# %% id="warm-up-norms" tags=["hide-input"]
# Record: four layers, two rates, with and without a warm-up
record = claim("warm_up_and_norms")
for arm in record.arms:
    ranges = [record.range(arm, "right letters", rate) for rate in record.rates]
    text = ",  ".join(
        f"rate {r:g}: {low:.2f} to {high:.2f}" for r, (low, high) in zip(record.rates, ranges, strict=True)
    )
    print(f"{arm:>21}  {text}")
print(record.command)
prove(
    "pre-norm at the high rate needs the warm-up too",
    record.range("pre-norm, no warm-up", "right letters", 0.02)[1]
    < record.range("pre-norm, 50 steps", "right letters", 0.02)[0],
)

# %% [markdown] id="warm-up-reason"
# Why would post-norm need it more? Xiong et al. (2020) give a reason: at the start its gradients are large near the
# output. Let us see whether that is so in the six layers with small weights:

# %% id="warm-up-gradients"
model = reversal_model(6, init="normal")
tokens = torch.randint(8, (32, 6), generator=torch.Generator().manual_seed(0))
F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten()).backward()
inner = [layer.feed_forward.up.weight.grad.norm().item() for layer in model[1].layers]
print("feed-forward, layers 1 to 6:", " ".join(f"{size:.3f}" for size in inner))
prove("near the output not twice as large as near the input", inner[-1] < 2 * inner[0])

# %% [markdown] id="tables-text"
# It is not; here the gradients are level. So the reason in this stack must be another one. Chapter 6 looks for it in
# the first steps of Adam. It finds that Adam's young averages alone do not explain it; the cause is still being
# studied.
#
# ## 6 Initial weights of tables
#
# Initial weights matter in one more place. Much code draws *every* matrix by Xavier's rule, the table of word vectors
# included. Xavier's rule is meant for matrices that multiply. A table is only looked up, and for a large table the rule
# gives very small numbers. The positions are added to these numbers, and sines and cosines have a size of 0.71.

# %% id="init" tags=["hide-input"]
# Figure: how many times larger the positions are than the words
rows = {}
for V, width in ((13, 32), (1000, 128), (32_000, 512)):
    torch.manual_seed(0)
    table = nn.init.xavier_uniform_(torch.empty(V, width)).square().mean().sqrt().item()
    library = TokenEmbedding(V, width)(torch.arange(V)).square().mean().sqrt().item()
    sizes_of_words = (table, width**0.5 * table, library)
    rows[f"{V:,} words, width {width}"] = [0.5**0.5 / size for size in sizes_of_words]
ways = dict(zip(("by Xavier's rule", "the same, times √d_model", "as the library draws it"), zip(*rows.values())))
axes = {"ylabel": "positions / words, size", "yscale": "log", "ylim": (0.3, 300)}
show(
    common.bars(list(rows), ways, size=(6.8, 3.0), numbers="%.1f", levels={"": 1}, **axes),
    alt="Bars for three sizes of table. By Xavier's rule the positions are about 3, 17 and 90 times as large as the words. "
    "Times the root of the width, the ratios are 0.6, 1.5 and 4. As the library draws it, 0.7 each time.",
    caption="The larger the vocabulary, the smaller Xavier's word vectors, and the more the positions drown them.",
)
prove("Xavier tables without √d drown the words in positions, 16 to 1", rows["1,000 words, width 128"][0] > 16)
prove("with √d positions are still 4 times larger at 32,000 × 512", 3.5 < rows["32,000 words, width 512"][1] < 4.5)
prove("the library's words and positions are of one size", all(0.6 < row[2] < 0.8 for row in rows.values()))

# %% [markdown] id="init-says"
# So the library draws only its matrices by Xavier's rule. It draws tables with a standard deviation of
# $1/\sqrt{d_{model}}$ and multiplies by $\sqrt{d_{model}}$ when it looks a word up. But a ratio by itself says
# nothing about training. Does it matter there? A translator that reverses words of seven letters, five seeds for each
# way of drawing the table:

# %% id="init-trained" tags=["hide-input"]
# Record: three ways of drawing the table
record = claim("sizes_of_embeddings")
learned = all(record.range(arm, "right letters")[0] > 0.99 for arm in record.arms)
prove("whatever the size of the embeddings, each of five models learns to reverse", learned)
print("share of letters right, five seeds")
for arm in record.arms:
    (low, high), (end_low, end_high) = record.range(arm, record.measures[1]), record.range(arm, "right letters")
    print(f"{arm:>25}: half way {low:.2f} to {high:.2f}, at the end {end_low:.3f} to {end_high:.3f}")
print(record.command)

# %% [markdown] id="claims"
# On this task it does not. Halfway through training the ranges overlap, and in the end all are right. With 13 words
# the ratio is only 3. [The lab on positions](03_positions.ipynb) tried other sizes and rates, and found one start
# that does harm: a table with standard deviation 1 that is multiplied by $\sqrt{d_{model}}$ all the same hides
# the positions.
#
# ## 7 Sentences you may meet
#
# **“Residual connections solve vanishing gradients.”** Right in the end, but not for the reason that is given. In a
# stack with norms, the gradient at the input does not vanish without them (section 1). In section 2 we saw that only
# the gradients of queries and keys vanish, because the tokens have become alike. That of the feed-forward network keeps
# its size. Without norms *and* residual connections everything vanishes.
#
# **“Networks of twelve or more layers do not train without residual connections.”** True here, for 300 steps. But the
# harm begins at two layers, which learn only a part of the task in that time. And residual connections alone are not
# enough: post-norm with Xavier's weights has them, and fails (section 4).
#
# **“If a deep model does not learn, lower the rate or warm up.”** That helps a stack whose tokens are still different
# (section 5). Where twelve layers made them alike from the start, neither was enough (section 4). So measure the
# similarity of the tokens first; it takes one forward pass. A value near one is a warning, not a verdict: two layers
# without residual connections come near one as well (section 1), and still learn a part of the task (section 4).
#
# **“Pre-norm needs no warm-up.”** At moderate rates it does not. At a high rate it does, less than post-norm (section
# 5).
#
# ## The answer
#
# A deep stack learns if its tokens are still different at the top when training begins, and if sizes stay in order on
# the way. So says one task, in 300 steps. Residual connections do the first, norms the second. In
# post-norm each norm shrinks what the residual connection kept, so the two work against each other, unless the
# sublayers write little at the start. Many models use pre-norm, or small initial weights, or, as GPT-2 does, both. A
# warm-up then buys a higher rate.
#
# **Sources.** Dong et al. 2021, *Attention Is Not All You Need*, arXiv:2103.03404 (rank collapse); Noci et al. 2022,
# *Signal Propagation in Transformers*, arXiv:2206.03126 (queries and keys lose their gradients); Xiong et al. 2020,
# *On Layer Normalization in the Transformer Architecture*, arXiv:2002.04745; Vaswani et al. 2017, arXiv:1706.03762,
# section 5.3 (warm-up); Devlin et al. 2019, arXiv:1810.04805, and its code (standard deviation 0.02); Radford et al.
# 2019, *Language Models are Unsupervised Multitask Learners*, section 2.3 (GPT-2: pre-norm, and smaller weights where
# a layer writes).
