# %% [markdown] id="title"
# # 4 The encoder
#
# In this notebook you put attention into a layer that can be stacked, measure what residual connections and norms are
# for, and train an encoder that names the language of a written number. Afterwards you can build, count, debug and
# fine-tune one. It builds on chapters 1 to 3. Measured: 70 seconds of processor time, 1.1 GB. Run the first cell:

# %% id="first-look"
import torch
from course_lib.attention import record_weights
from course_lib.encoder import EncoderLayer
from course_lib.transformer import TransformerConfig

torch.set_num_threads(1)  # the same rounding everywhere

torch.manual_seed(0)
layer = EncoderLayer(TransformerConfig(d_model=64, n_heads=4, dropout=0.0))
x = torch.randn(2, 10, 64)  # (B, T, D): sentences, tokens, width
with record_weights(layer) as maps:
    output = layer(x)
weights = maps["self_attention"]
print("in", tuple(x.shape), " out", tuple(output.shape), " weights", tuple(weights.shape))
for name, part in layer.named_children():
    print(f"{name:>24}: {sum(p.numel() for p in part.parameters()):6,} parameters")

# %% [markdown] id="what-just-happened"
# In and out have the same shape, so layers can be stacked. Attention is one of four parts, and not the largest.
#
# The notebook follows the parts: the **feed-forward** (1), **residual connections and norms** (2), the **layer and the
# stack** (3), what they **weigh** (4). Then an encoder learns a real task (5), and learns it better after having read
# text without labels (6). Section 7 shows famous bugs.

# %% id="imports" tags=["long-cell"]
import copy
import functools
import math

import matplotlib.pyplot as plt
import seaborn
import torch.nn.functional as F
from num2words import num2words
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import nn

from course_lib import exercises as ex, masks, testing
from course_lib.encoder import TransformerEncoder
from course_lib.layers import FeedForward
from course_lib.norms import LayerNorm, RMSNorm
from course_lib.records import claim
from course_lib.transformer import Embedding
from course_lib.explorers import StreamExplorer
from course_lib.viz import palette, shape_badge, show

# %% id="prove"
from course_lib.testing import complaint, prove, proved  # prove stops at a false claim

prove("an encoder layer keeps the shape (2, 10, 64)", output.shape == x.shape == (2, 10, 64))

# %% [markdown] id="feed-forward"
# ## 1 The feed-forward network
#
# Attention moves vectors between positions, but what it gives a token is a weighted mean of linear maps. Something must
# *compute* with what has arrived. Equation 2 of the 2017 paper:
#
# $$\mathrm{FFN}(x) = \max(0,\; x W_1 + b_1)\, W_2 + b_2$$
#
# Each token is widened from D to F numbers, negative ones are cut off, and the rest is mapped back to D. The same
# weights serve every position.

# %% exercise="feed_forward"

# %% id="feed-forward-loops"
torch.manual_seed(0)
B, T, D, F_ = 2, 5, 3, 7  # sentences, tokens, width, inner width
x = torch.randn(B, T, D)
W_up, b_up, W_down, b_down = torch.randn(D, F_), torch.randn(F_), torch.randn(F_, D), torch.randn(D)
by_hand = torch.empty(B, T, D)
for b in range(B):
    for t in range(T):
        inner = [max(0.0, sum(x[b, t, d] * W_up[d, f] for d in range(D)) + b_up[f]) for f in range(F_)]
        for d in range(D):
            by_hand[b, t, d] = sum(inner[f] * W_down[f, d] for f in range(F_)) + b_down[d]
found = feed_forward(x, W_up, b_up, W_down, b_down)
prove("feed_forward equals the loops over tokens and features", torch.allclose(found, by_hand, atol=1e-5))

# %% [markdown] id="one-position-question"
# > **Predict.** Token 3 of five is changed. At which positions does the output of the feed-forward change? And if the
# > tokens are put in another order?

# %% id="one-position"
network = functools.partial(feed_forward, W_up=W_up, b_up=b_up, W_down=W_down, b_down=b_down)
changed = x.clone()
changed[:, 3] += 1.0
moved = (network(changed) - network(x)).abs().amax(dim=(0, 2)) > 0  # (T,)
print("positions that moved:", moved.nonzero().flatten().tolist())
prove(
    "the feed-forward touches one position: changing token 3 changes output 3 alone", moved.nonzero().tolist() == [[3]]
)
order = torch.tensor([4, 2, 0, 1, 3])
prove("reordered tokens give reordered outputs", torch.allclose(network(x[:, order]), network(x)[:, order], atol=1e-6))

# %% [markdown] id="convolution"
# ### 1.1 Two convolutions of width one
#
# > **You will read that** the feed-forward is a 1×1 convolution.
#
# A convolution slides one set of weights along the sequence. With a window of one position it does what the
# feed-forward does. Copy the weights and compare:

# %% id="convolution-equal"
first, second = nn.Conv1d(D, F_, kernel_size=1), nn.Conv1d(F_, D, kernel_size=1)
with torch.no_grad():
    first.weight.copy_(W_up.T[..., None])  # (D, F) -> (F, D, 1)
    first.bias.copy_(b_up)
    second.weight.copy_(W_down.T[..., None])
    second.bias.copy_(b_down)


def convolutions(x):
    """(B, T, D) -> (B, T, D); convolutions of torch want the features before the positions."""
    return second(first(x.mT).relu()).mT  # (B, D, T) -> (B, F, T) -> (B, D, T)


found = testing.assert_equivalent(network, convolutions, x)
prove("the feed-forward equals two convolutions of width one, gradients too", max(found) < 1e-5)
ours = FeedForward(D, F_, activation="relu")
state = {"up.weight": W_up.T, "up.bias": b_up, "down.weight": W_down.T, "down.bias": b_down}
ours.load_state_dict(state)
prove("course_lib's FeedForward equals both", max(testing.assert_equivalent(ours, network, x)) < 1e-5)

# %% [markdown] id="convolution-says"
# *True*, with two of them and a non-linearity between. The non-linearity is what makes two maps more than one:

# %% id="without-relu"
linear = (x @ W_up + b_up) @ W_down + b_down  # no ReLU
one_map = x @ (W_up @ W_down) + (b_up @ W_down + b_down)
prove("without the non-linearity the two maps are one", torch.allclose(linear, one_map, atol=1e-5))
network_of_64, tokens = FeedForward(64), torch.randn(2, 10, 64)
places = (tokens, network_of_64.up(tokens), network_of_64(tokens))
print("shape in, inside, out:", *(tuple(place.shape) for place in places))

# %% [markdown] id="activations"
# ### 1.2 Which activation, and how wide
#
# | activation | formula | used by |
# |---|---|---|
# | ReLU | max(0, x) | the 2017 paper (section 3.3), T5 |
# | GELU | x · Φ(x), Φ the normal distribution | BERT, GPT-2 |
# | SwiGLU | silu(x W) ⊙ x V: one map gates another | Llama; gated forms by Shazeer 2020 |
#
# So GELU is not *the* default: it is that of BERT and GPT-2, and many later models gate. The inner width F is usually
# 4 D. A gated network has three matrices, and F = 8/3 · D makes it as large as an ungated one with 4 D.
#
# > **Predict.** Which share of a layer's parameters does the feed-forward hold, if F = 4 D?

# %% id="feed-forward-share"
paper = EncoderLayer(TransformerConfig(d_model=512, n_heads=8))
total = sum(p.numel() for p in paper.parameters())
inside = sum(p.numel() for p in paper.feed_forward.parameters())
print(f"{inside:,} of {total:,} parameters: {inside / total:.1%}")
gated = FeedForward(768, 2048, activation="silu", gated=True, bias=False)
plain = FeedForward(768, 3072, activation="gelu", bias=False)
sizes = [sum(p.numel() for p in part.parameters()) for part in (gated, plain)]
print("gated, F = 8/3 D:", f"{sizes[0]:,}", " plain, F = 4 D:", f"{sizes[1]:,}")
prove("with F = 4 D the feed-forward holds two thirds of a layer", abs(inside / total - 2 / 3) < 0.01)
prove("a gated network of 8/3 D is as large as a plain one of 4 D", sizes[0] == sizes[1])

# %% [markdown] id="norms"
# ## 2 Norms and residual connections
#
# ### 2.1 LayerNorm
#
# Stacked layers multiply: sizes that grow by half in each layer are 130 times larger after twelve. **Layer
# normalisation** (Ba et al. 2016) gives each token mean 0 and variance 1 again, then lets a trained weight and bias
# undo as much of it as is useful:
#
# $$\mathrm{LN}(x) = \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} \odot w + b \qquad
# \mu = \frac1D \sum_d x_d \qquad \sigma^2 = \frac1D \sum_d (x_d - \mu)^2$$
#
# Mean and variance are those of one token, over its D features. Nothing is averaged over tokens or sentences.

# %% exercise="layer_norm"

# %% id="layer-norm-equal"
torch.manual_seed(0)
x, weight, bias = torch.randn(2, 5, 7), torch.randn(7), torch.randn(7)


def torch_layer_norm(x, weight, bias):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


for scale in (1.0, 0.003, 300.0):
    found = testing.assert_equivalent(layer_norm, torch_layer_norm, scale * x, weight, bias)
    prove(f"layer_norm equals torch's at a scale of {scale:g}, gradients too", found[0] < 1e-4)
normed = layer_norm(x, torch.ones(7), torch.zeros(7))
prove("course_lib's LayerNorm equals it too", torch.allclose(LayerNorm(7)(x), normed, atol=1e-6))
mean, variance = normed.mean(-1), normed.var(-1, correction=0)
prove("a normed token has mean 0 and variance 1", mean.abs().max() < 1e-6 and (variance - 1).abs().max() < 1e-3)

# %% [markdown] id="rms-norm"
# The small scale matters: there ε decides, and formulas that put it elsewhere show (section 7).
#
# ### 2.2 RMSNorm
#
# Llama and T5 leave out the mean and the bias: each vector over its **root mean square** (Zhang and Sennrich 2019).


# %% id="rms-norm-equal"
def rms_norm(x, weight, eps=1e-6):
    """(B, T, D), (D,) -> (B, T, D)"""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


found = testing.assert_equivalent(rms_norm, lambda x, w: F.rms_norm(x, (7,), w, eps=1e-6), x, weight)
prove("rms_norm equals torch's", max(found) < 1e-4)
library = RMSNorm(7)
prove("course_lib's RMSNorm equals it too", torch.allclose(library(x), rms_norm(x, torch.ones(7)), atol=1e-6))
centred = x - x.mean(-1, keepdim=True)
same = torch.allclose(rms_norm(centred, weight), layer_norm(centred, weight, torch.zeros(7), eps=1e-6), atol=1e-5)
prove("on vectors of mean zero RMSNorm is LayerNorm", same)

# %% [markdown] id="residual"
# ### 2.3 Residual connections
#
# The original layer wraps each of its two sublayers, attention and feed-forward, like this (**post-norm**):
#
# $$x \leftarrow \mathrm{LN}(x + \mathrm{Sublayer}(x))$$
#
# The sum is the **residual connection**: a sublayer does not replace the token, it adds to it. What flows from layer to
# layer is called the **residual stream**. Later models norm what the sublayer *reads* (**pre-norm**, Xiong et al. 2020)
# and leave the stream itself alone:
#
# $$x \leftarrow x + \mathrm{Sublayer}(\mathrm{LN}(x))$$


# %% [markdown] id="residual-claim"
# > **You will read that** residual connections solve vanishing gradients.
#
# To test it we need two measures: how large the gradient is that reaches the input, as a multiple of the one that
# entered at the output; and how alike the tokens have become.

# %% exercise="token_similarity"

# %% id="stacks"
STACKS = {
    "residual, post-norm": {},
    "residual, pre-norm": {"norm_place": "pre"},
    "residual, no norm": {"norm": "none"},
    "no residual, norm": {"residual": False},
    "neither": {"residual": False, "norm": "none"},
}


def fresh_encoder(depth, seed=0, **switches):
    """An encoder of `depth` layers with new weights, Xavier unless `init` says otherwise."""
    torch.manual_seed(seed)
    sizes = {"d_model": 64, "n_heads": 4, "n_encoder_layers": depth}
    return TransformerEncoder(TransformerConfig(**sizes, positions="none", dropout=0.0, **switches))


# %% id="through"
def through(encoder, x):
    """Vectors before and after each layer, and the size of the gradient at each of them, over that at the output."""
    places = [x.clone().requires_grad_()]
    for layer in encoder.layers:
        places.append(layer(places[-1]))
    end = encoder.final_norm(places[-1])
    direction = torch.randn(end.shape, generator=torch.Generator().manual_seed(2))
    gradients = torch.autograd.grad((end * direction).sum(), places)
    return [place.detach() for place in places], [(g.norm() / direction.norm()).item() for g in gradients]


# %% id="gradients-by-depth" tags=["tol:0.1"]
words = [num2words(n) for n in range(1, 12)]
x = torch.randn(1, len(words), 64, generator=torch.Generator().manual_seed(1))  # (B, T, D)
depths, arrived, alike = (1, 2, 4, 12, 24), {}, {}
print("gradient at the input, and similarity of the tokens at the output")
print(f"{'layers':>20}", *(f"{depth:>14}" for depth in depths))
for name, switches in STACKS.items():
    found = [through(fresh_encoder(depth, **switches), x) for depth in depths]
    arrived[name] = [gradients[0] for _, gradients in found]
    alike[name] = [token_similarity(places[-1]).item() for places, _ in found]
    print(f"{name:>20}", *(f"{g:9.1e} {s:.2f}" for g, s in zip(arrived[name], alike[name])))

# %% id="gradients-figure" tags=["picture:8"]
fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.0))
for n, name in enumerate(STACKS):
    left.plot(depths, arrived[name], "o-", color=palette.series[n], label=name)
    right.plot(depths, alike[name], "o-", color=palette.series[n])
left.set(yscale="log", xlabel="layers", ylabel="gradient at the input")
right.set(xlabel="layers", ylabel="mean cosine between tokens", ylim=(0, 1.05))
fig.legend(loc="outside lower center", ncols=3)
show(
    fig,
    alt="Left: gradient against depth on a log scale. With a norm it stays near one for 24 layers, with or without "
    "residuals; without a norm it explodes with residuals and vanishes without. Right: without residuals the cosine "
    "between tokens is one from two to four layers on.",
    caption="While there are norms, the gradient that reaches the input keeps its size even without residuals. What is "
    "lost without them is the difference between tokens.",
)

# %% id="gradients-proof"
prove(
    "with LayerNorm and no residual the gradient at the input does not vanish at 24 layers",
    arrived["no residual, norm"][-1] > 0.1,
)
prove("but all tokens are one vector after four layers", alike["no residual, norm"][2] > 0.99)
prove("without norm and residual the gradient vanishes", arrived["neither"][-1] < 1e-5)
prove("with residuals and no norm it explodes", arrived["residual, no norm"][-1] > 1e6)
prove("with both it stays within a factor of three", all(1 / 3 < g < 3 for g in arrived["residual, post-norm"]))

# %% [markdown] id="residual-says"
# *Right in the end, and not for the reason that is given.* While norms are in place, the gradient that reaches the input
# does not vanish without residuals. The differences between tokens do: each fresh attention layer gives every token
# nearly the same average, and without the sum nothing else is left of it.
#
# But a gradient at the input is not a gradient at every weight. Where all tokens are alike, it makes no difference at
# which of them a query looks. So nothing can be learned about queries and keys there. Twelve layers, the gradient of
# W_q and W_k in four of them, over five draws of the weights (`python benchmarks/claims.py fresh_stacks`):

# %% id="attention-gradients"
record = claim("fresh_stacks")
print(f"{'gradient of W_q and W_k in layer':>33}", *(f"{number:^18}" for number in (1, 2, 4, 12)), " similarity")
for arm in record.arms:
    ranges = [record.range(arm, f"gradient of W_q and W_k, layer {number}") for number in (1, 2, 4, 12)]
    low, high = record.range(arm, "similarity")
    print(f"{arm:>33}", *(f"{a:8.1e}–{b:8.1e} " for a, b in ranges), f" {low:.2f}–{high:.2f}")

# %% id="attention-gradients-proof"
bare = fresh_encoder(12, residual=False)  # one draw, now
end = bare(x)
direction = torch.randn(end.shape, generator=torch.Generator().manual_seed(2))
weights = [layer.self_attention.qkv.weight for layer in bare.layers]  # (3 D, D): queries, keys, values
gradients = [g[:128].norm() / direction.norm() for g in torch.autograd.grad((end * direction).sum(), weights)]
prove("without residuals W_q and W_k get a gradient in the first layer", gradients[0] > 0.1)
prove("and none in the last, norms or not", gradients[-1] < 1e-4)

# %% [markdown] id="attention-gradients-say"
# So gradients do vanish without residuals, norms or not, for the weights that attention learns by. (Dong et al. 2021 and
# Noci et al. 2022 call the cause **rank collapse**.) Where only the norms are missing, gradients explode.
#
# Look again at post-norm with residuals: its tokens become alike too, only later, and in the last layer the gradient of
# W_q and W_k is hundreds of times smaller than in the first. Here all matrices were drawn by Xavier's rule, so each
# sublayer writes about as much as the stream holds, and each norm shrinks the old part. PyTorch's own layer follows that
# rule in one matrix only, which holds W_q, W_k and W_v together. What its sublayers write with is about half as large:

# %% id="torch-init" tags=["tol:0.05"]
torch.manual_seed(0)
theirs, ours = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True), fresh_encoder(1).layers[0]
ratios = []
for name, their, our in (
    ("output of attention", theirs.self_attn.out_proj, ours.self_attention.output),
    ("output of the feed-forward", theirs.linear2, ours.feed_forward.down),
):
    ratios.append((their.weight.std() / our.weight.std()).item())
    print(f"{name:>26}: standard deviation {their.weight.std():.3f} in torch, {our.weight.std():.3f} by Xavier")
prove("torch draws what its sublayers write with half as large as Xavier", all(0.4 < ratio < 0.65 for ratio in ratios))

# %% [markdown] id="torch-init-says"
# So its tokens stay apart (the row with torch's own weights), and so do those of weights with standard deviation 0.02, as
# BERT draws them.
#
# > **Predict.** In the explorer below, where does the post-norm stack lose its tokens? What changes if its initial
# > weights are smaller (standard deviation 0.02, as in BERT)?

# %% id="stream-explorer" tags=["picture:8"]
shown = {
    "post-norm": {},
    "pre-norm": {"norm_place": "pre"},
    "no residual": {"residual": False},
    "small weights": {"init": "normal"},
}
found = {name: through(fresh_encoder(12, **switches), x) for name, switches in shown.items()}
StreamExplorer(
    {name: [place[0] for place in places] for name, (places, _) in found.items()},
    words,
    gradients={name: gradients for name, (_, gradients) in found.items()},
    stack=0,
)

# %% id="stream-proof"
final = {name: token_similarity(places[-1]).item() for name, (places, _) in found.items()}
lengths = [place.square().mean().sqrt().item() for place in found["pre-norm"][0]]
prove("12 post-norm layers with Xavier weights make tokens alike, over 0.95", final["post-norm"] > 0.95)
prove("with small initial weights they stay apart, under 0.2", final["small weights"] < 0.2)
prove("a pre-norm stream grows from layer to layer: hence its final norm", lengths[-1] > 2 * lengths[0])

# %% [markdown] id="depth"
# ### 2.4 Does it train?
#
# > **You will read that** networks of 12 or more layers do not train without residual connections.
#
# The task: write six tokens backwards. Each output position must find one other position, so tokens that have become
# alike are fatal. Chance is 1 in 8; knowing *which* tokens occur, but not where, gives 0.36: always say the commonest.


# %% id="reversal"
def reversal_model(depth, seed, V=8, D=64, **switches):
    """An encoder that names a token at each position: ids (B, T) -> logits (B, T, V)."""
    torch.manual_seed(seed)
    sizes = {"d_model": D, "n_heads": 4, "d_ff": D, "n_encoder_layers": depth, "vocab_size": V}
    config = TransformerConfig(**sizes, dropout=0.0, **switches)
    return nn.Sequential(Embedding(config, V), TransformerEncoder(config), nn.Linear(D, V))


# %% id="reversal-train"
def train_reversal(model, rate=1e-3, warm_up=0, steps=300, seed=0, V=8, T=6, B=24):
    """Train with Adam, no longer than there is something to learn; return accuracy on new sequences."""
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / max(warm_up, 1))
        tokens = torch.randint(V, (B, T), generator=generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())  # (B T, V), (B T,)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.03:
            break
    tokens = torch.randint(V, (500, T), generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        return (model(tokens).argmax(-1) == tokens.flip(1)).float().mean().item()


# %% [markdown] id="depth-question"
# > **Predict.** For 1, 2 and 12 layers: which of the four stacks reverses the sequence within 300 steps?

# %% id="depth-table" tags=["atol:0.2"]
TRAINED = {
    "no residual": {"residual": False},
    "post-norm": {},
    "pre-norm": {"norm_place": "pre"},
    "post-norm, small init": {"init": "normal"},
}
table = {}
for name, switches in TRAINED.items():
    for depth in (1, 2, 12):
        table[name, depth] = train_reversal(reversal_model(depth, seed=0, **switches))
    cells = [f"{table[name, depth]:.2f}" for depth in (1, 2, 12)]
    print(f"{name:>21}: 1 layer {cells[0]},  2 layers {cells[1]},  12 layers {cells[2]}")

# %% [markdown] id="depth-recorded-says"
# One seed and one rate decide little. Five seeds, two rates, and a stack with warm-up as a control
# (`python benchmarks/claims.py deep_reversal`):

# %% id="depth-recorded"
record = claim("deep_reversal")
for arm in record.arms:
    ranges = [record.range(arm, "accuracy", rate) for rate in record.rates]
    print(f"{arm:>31}:", "  ".join(f"rate {r:g} {low:.2f}–{high:.2f}" for r, (low, high) in zip(record.rates, ranges)))

# %% id="depth-proof"
reached = {arm: record.range(arm, "accuracy") for arm in record.arms}  # at the better rate of each
one, two = reached["no residual, 1 layer"], reached["no residual, 2 layers"]
prove("without residuals one layer reverses, and a second makes it worse, for every seed", two[1] < 0.8 < one[0])
prove("12 layers without residuals stay near chance", reached["no residual"][1] < 0.4)
stuck = (reached["post-norm"], reached["post-norm, 100 steps of warm-up"])
prove("12 post-norm layers with Xavier weights fail too, at either rate, with warm-up or not", max(stuck)[1] < 0.5)
prove("12 pre-norm layers with the same weights learn it", reached["pre-norm"][0] > 0.8)
prove("and so do 12 post-norm layers with smaller ones", reached["post-norm, small weights"][0] > 0.9)

# %% [markdown] id="depth-says"
# *Conditional.* They do not, but residuals are neither where it begins nor where it ends: without them a second layer
# already does harm, and with them twelve post-norm layers fail as well, until the norm moves or the initial weights
# shrink. A lower rate or a warm-up does not rescue them. They stay at 0.36: they know which tokens occur and not where.
# What tokens have lost before training begins (section 2.3) neither brings back. (One task, one width, 300 steps.)
#
# ### 2.5 What warm-up changes
#
# The paper trained post-norm with a learning rate that rises for 4000 steps. Does it have to? Six layers with small
# initial weights, at a high rate:

# %% id="warm-up" tags=["atol:0.2"]
warmed = {}
for warm_up in (0, 50):
    model = reversal_model(6, 0, D=32, init="normal")
    warmed[warm_up] = train_reversal(model, 2e-2, warm_up, steps=150, B=32)
    print(f"post-norm, warm-up of {warm_up:2} steps: {warmed[warm_up]:.2f}")
prove("at a high rate post-norm fails without warm-up", warmed[0] < 0.5)
prove("and learns with it", warmed[50] > 0.85)

# %% [markdown] id="warm-up-question"
# Is it the norm's place, or the rate? Five seeds, three rates, and pre-norm as a control
# (`python benchmarks/claims.py warm_up_of_encoders`):

# %% id="warm-up-recorded"
record = claim("warm_up_of_encoders")
for arm in record.arms:
    ranges = [record.range(arm, "accuracy", rate) for rate in record.rates]
    print(f"{arm:>21}:", "  ".join(f"rate {r:g} {low:.2f}–{high:.2f}" for r, (low, high) in zip(record.rates, ranges)))

# %% [markdown] id="warm-up-says"
# At the highest rate warm-up decides: without it no post-norm stack learns, with it all do. Pre-norm stands more, but
# not everything: without warm-up one of its five seeds fails too, and with it all are right nearly always. At a quarter
# of that rate nobody needs a warm-up. So what it buys is a higher rate.
#
# Xiong et al. 2020 give a reason for post-norm: at the start its gradients are large near the output. In this stack with
# its small weights they are not, so here the reason must be another one:

# %% id="warm-up-gradients" tags=["tol:0.1"]
model, tokens = reversal_model(6, 0, D=32, init="normal"), torch.randint(8, (32, 6))
F.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten()).backward()
inner = [layer.feed_forward.up.weight.grad.norm().item() for layer in model[1].layers]
print("gradient of the feed-forward, layers 1 to 6:", " ".join(f"{g:.3f}" for g in inner))
prove("the gradient near the output is not twice that near the input", inner[-1] < 2 * inner[0])

# %% [markdown] id="warm-up-next"
# Chapter 6 returns to warm-up and schedules.

# %% [markdown] id="layer"
# ## 3 The layer and the stack
#
# Now put the parts together: attention, sum, norm; feed-forward, sum, norm.

# %% exercise="encoder_layer"

# %% id="layer-equal"
torch.manual_seed(0)
theirs = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)  # post-norm, ReLU
x = torch.randn(2, 10, 64)


def by_parts(x):
    def attention(x):
        return theirs.self_attn(x, x, x, need_weights=False)[0]

    def network(x):
        return theirs.linear2(theirs.linear1(x).relu())

    return encoder_layer(x, attention, network, theirs.norm1, theirs.norm2)


found = testing.assert_equivalent(by_parts, theirs, x)
prove("encoder_layer on torch's own parts equals torch's layer", max(found) < 1e-5)

# %% [markdown] id="parity"
# ### 3.1 Equal to PyTorch's
#
# `EncoderLayer.from_torch` takes over the weights of a `nn.TransformerEncoderLayer`, for either place of the norm and
# each activation. Outputs and gradients agree.

# %% id="parity-table"
worst = 0.0
for norm_first in (False, True):
    for activation in ("relu", "gelu"):
        torch.manual_seed(0)
        switches = {"activation": activation, "norm_first": norm_first}
        theirs = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, **switches)
        worst = max(worst, *testing.assert_equivalent(EncoderLayer.from_torch(theirs), theirs, x))
prove("EncoderLayer equals nn.TransformerEncoderLayer, both norm places, ReLU and GELU", worst < 1e-5)

# %% id="layer-shapes"
layer = EncoderLayer.from_torch(theirs)
with record_weights(layer) as maps:
    output = layer(torch.randn(4, 20, 64))
weights = maps["self_attention"]
print("a batch of 4 sentences of 20 tokens:", tuple(output.shape), "weights", tuple(weights.shape))
wide = EncoderLayer(TransformerConfig())  # the paper's sizes: D = 512, H = 8
print("at the paper's width:", tuple(wide(torch.randn(4, 20, 512)).shape))

# %% [markdown] id="order-of-parts"
# | step | post-norm (2017) | pre-norm |
# |---|---|---|
# | 1 | attention, from x | norm, then attention |
# | 2 | dropout, add to x, **norm** | dropout, add to x |
# | 3 | feed-forward | norm, then feed-forward |
# | 4 | dropout, add, **norm** | dropout, add |
# | after the last layer | nothing | one more norm |
#
# The paper drops at three places: the output of each sublayer before it is added (the table), and the sum of embedding
# and position (section 5.4 there). Most code also drops attention weights and the inner activations. In `eval()` mode
# nothing is dropped.
#
# ### 3.2 The stack
#
# An encoder is the sum of token and position vectors, and N layers. This is the whole figure 1 (left) of the paper:

# %% id="pipeline-figure"
fig, ax = plt.subplots(figsize=(7.5, 2.2))
steps = ["tokens", "embedding\n+ position", "attention", "add, norm", "feed-\nforward", "add, norm", "output"]
shapes = ["B T", "B T D", "B T D", "B T D", "B T D", "B T D", "B T D"]
for n, (step, shape) in enumerate(zip(steps, shapes)):
    color = palette.query if step == "attention" else palette.value if step.startswith("feed") else palette.residual
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": color, "linewidth": 1.5}
    ax.text(n, 0.55, step, ha="center", va="center", bbox=box)
    shape_badge(ax, shape, (n, 0.0))
    if n:
        ax.annotate("", (n - 0.36, 0.55), (n - 0.62, 0.55), arrowprops={"arrowstyle": "->", "color": palette.residual})
ax.annotate("", (5.4, 1.1), (1.6, 1.1), arrowprops={"arrowstyle": "|-|", "color": palette.residual})
ax.text(3.5, 1.2, "N layers", ha="center")
ax.set(xlim=(-0.6, 6.6), ylim=(-0.3, 1.5))
ax.axis("off")
show(
    fig,
    alt="Seven boxes in a row: tokens, embedding plus position, attention, add and norm, feed-forward, add and norm, "
    "output. A bracket over the four in the middle says N layers. From the second box on, each has shape (B, T, D).",
    caption="The encoder: after the embedding every step keeps the shape (B, T, D), so N is free.",
)


# %% id="text-encoder"
class TextEncoder(nn.Module):
    """Token ids (B, T), 0 for padding -> vectors (B, T, D)."""

    def __init__(self, config):
        super().__init__()
        self.embedding = Embedding(config, config.vocab_size)  # the table, positions, dropout
        self.encoder = TransformerEncoder(config)

    def forward(self, tokens):
        mask = masks.padding_mask(tokens, 0)  # (B, 1, 1, T), True = may attend
        return self.encoder(self.embedding(tokens), mask=mask)


torch.manual_seed(0)
six = TextEncoder(TransformerConfig(vocab_size=30_000))  # otherwise the paper's base encoder
with record_weights(six) as maps:
    output = six(torch.randint(1, 30_000, (4, 50)))
count = sum(p.numel() for p in six.parameters())
shape = tuple(maps["encoder.layers.0.self_attention"].shape)
print(tuple(output.shape), len(maps), "maps of", shape, f"{count:,} parameters")
prove(
    "six layers return six maps, and have 34,274,304 parameters with 30,000 tokens",
    (len(maps), count) == (6, 34_274_304),
)

# %% id="stack-equal"
torch.manual_seed(0)
for norm_first in (False, True):
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, norm_first=norm_first, batch_first=True)
    norm = nn.LayerNorm(64) if norm_first else None
    theirs = nn.TransformerEncoder(layer, 3, norm=norm, enable_nested_tensor=False)
    found = testing.assert_equivalent(TransformerEncoder.from_torch(theirs), theirs, x)
    prove(f"three layers equal nn.TransformerEncoder, pre-norm {norm_first}", max(found) < 1e-4)

# %% id="final-norm"
ends = {}
for name in ("post", "pre"):
    encoder = fresh_encoder(12, norm_place=name, final_norm=False)
    with torch.no_grad():
        output = encoder(x)
    again = F.layer_norm(output, (64,))
    ends[name] = (again - output).abs().max().item()
prove("after post-norm layers a final norm changes next to nothing", ends["post"] < 1e-4)
prove("after pre-norm layers it changes a lot", ends["pre"] > 1)

# %% [markdown] id="embedding-scale"
# > **You will read that** embeddings are multiplied by √D.
#
# *Right for one size of initial table.* Here is the ratio of tokens to positions, which the factor is meant to mend.
# Whether it matters for training is measured in chapter 5 (section 5.2).

# %% id="embedding-scale-measured" tags=["tol:0.02"]
torch.manual_seed(0)
waves = 0.5**0.5  # root mean square of sines and cosines
for name, std in (("torch's default, 1", 1.0), ("D^-0.5", 512**-0.5), ("BERT's, 0.02", 0.02)):
    plain = (std * torch.randn(1000, 512)).square().mean().sqrt().item() / waves
    print(f"std {name:>18}: token over position {plain:5.2f} plain, {plain * 512**0.5:5.2f} times √D")

# %% [markdown] id="padding"
# ### 3.3 Padding
#
# > **You will read that** an encoder uses no mask.
#
# No *causal* mask. But sentences of one batch differ in length, the short ones are filled up with a padding token, and
# nobody may attend to it. The right shape is (B, 1, 1, T): a row of its own for each sentence, the same for all heads
# and queries.
#
# > **You will read that** a padding mask has the shape (batch, seq).


# %% id="mask-shapes"
def tutorial_mask(scores, mask):
    """As in a known tutorial: a mask with two axes becomes (1, 1, ., .)."""
    return scores.masked_fill(~mask[None, None], -math.inf)


for B, T in ((4, 50), (5, 5)):
    real = torch.arange(T) < torch.tensor([T - b for b in range(B)])[:, None]  # (B, T)
    try:
        hidden = tutorial_mask(torch.zeros(B, 2, T, T), real).softmax(-1)
        on_padding = (hidden * ~real[:, None, None]).sum(-1)[:, :, 1:].nan_to_num().mean()
        print(f"batch {B}, length {T}: runs, {on_padding:.1%} of the weight lies on padding")
    except RuntimeError:
        print(f"batch {B}, length {T}: an error")
    try:
        EncoderLayer(TransformerConfig(d_model=8, n_heads=2))(torch.randn(B, T, 8), mask=real)
        print("    course_lib cannot know better: it reads (T, T)")
    except ValueError:
        print("    course_lib refuses it")

# %% id="padding-law"
torch.manual_seed(0)
small = TextEncoder(TransformerConfig(d_model=16, n_heads=2, n_encoder_layers=2, vocab_size=11, dropout=0.0))


def padded(tokens, real):
    return small.encoder(small.embedding(tokens), mask=real[:, None, None])  # (B, T) -> (B, 1, 1, T)


def as_in_the_tutorial(tokens, real):
    square = real if real.size(0) == real.size(1) else real[:, None, None]  # only B = T goes wrong
    return small.encoder(small.embedding(tokens), mask=square)


tokens = torch.randint(1, 11, (3, 7))
law = complaint(testing.assert_padding_invariant, padded, tokens, module=small, vocab_size=11)
prove("padding never reaches a real token, for B = T and B ≠ T", not law)
law = complaint(testing.assert_padding_invariant, as_in_the_tutorial, tokens, module=small, vocab_size=11)
print(law)
prove("a (batch, seq) mask taken for (seq, seq) is caught by the law, at B = T", law)

# %% [markdown] id="padding-says"
# *Broken.* With a batch of four and length 50 it is an error; with as many sentences as tokens it is silently a mask of
# queries against keys. The law tries B = T for that reason. Section 5 measures what a missing mask costs.
#
# A second place where padding gets in is the end: a sentence's vector as a mean over its tokens.

# %% exercise="sentence_vector"


# %% [markdown] id="counting"
# ## 4 What an encoder weighs

# %% exercise="encoder_parameters"

# %% id="counting-proof"
for D, F_, depth in ((64, 256, 3), (512, 2048, 6), (768, 3072, 12)):
    with torch.device("meta"):  # shapes without memory
        built = TransformerEncoder(TransformerConfig(d_model=D, d_ff=F_, n_heads=8, n_encoder_layers=depth))
    law = complaint(testing.assert_counts, built, parameters=encoder_parameters(D, F_, depth))
    print(f"{depth:2} layers of width {D}: {encoder_parameters(D, F_, depth):,}")
    prove(f"encoder_parameters({D}, {F_}, {depth}) equals what is built", not law)

# %% exercise="bert_parameters"

# %% id="bert-pieces"
V, positions, segments, D, F_ = 30_522, 512, 2, 768, 3_072
pieces = {
    "table of tokens": V * D,
    "table of positions": positions * D,
    "table of segments": segments * D,
    "norm of their sum": 2 * D,
    "12 × attention": 12 * 4 * (D * D + D),
    "12 × feed-forward": 12 * (2 * D * F_ + F_ + D),
    "12 × two norms": 12 * 4 * D,
    "pooler": D * D + D,
}
total = sum(pieces.values())
for name, size in pieces.items():
    print(f"{name:>19}: {size:>11,}  {size / total:6.1%}")
print(f"{'BERT-base':>19}: {total:>11,}")
layers = sum(size for name, size in pieces.items() if name.startswith("12"))
prove("BERT-base has 109,482,240 parameters, piece by piece", total == 109_482_240)
prove("its layers are what encoder_parameters counts", layers == encoder_parameters(D, F_, 12))

# %% id="bert-shape"
config = TransformerConfig(
    d_model=768, n_heads=12, n_encoder_layers=12, vocab_size=V, max_length=512, positions="learned",
    activation="gelu", scale_embeddings=False, embedding_norm=True, init="normal", norm_eps=1e-12,
)  # fmt: skip
with torch.device("meta"):
    bert = TextEncoder(config)
    output = bert(torch.zeros(2, 128, dtype=torch.int64))
built = sum(p.numel() for p in bert.parameters())
print(tuple(output.shape), f"{built:,} parameters without segments and pooler")
prove("the same switches build it", built == total - pieces["table of segments"] - pieces["pooler"])

# %% [markdown] id="sizes"
# | model | layers | D | heads | F | parameters |
# |---|---|---|---|---|---|
# | encoder of the paper, base | 6 | 512 | 8 | 2048 | 18.9 M and the table |
# | BERT-base | 12 | 768 | 12 | 3072 | 109.5 M |
# | BERT-large | 24 | 1024 | 16 | 4096 | 335 M (340 M in the paper) |
#
# (Vaswani et al. 2017, table 3; Devlin et al. 2019, section 3. Chapter 7 loads BERT's weights and matches its outputs.)
#
# ## 5 A real task: which language is this number written in?
#
# `num2words` writes numbers in many languages. Take twenty that use the Latin alphabet, among them close relatives, and
# let an encoder name the language from the letters alone.
#
# > **Predict.** Which pairs of languages will be mixed up?

# %% id="languages"
LANGUAGES = ["ca", "cs", "da", "de", "en", "eo", "es", "fi", "fr", "hu"]
LANGUAGES += ["id", "is", "it", "nl", "no", "pl", "pt", "ro", "sv", "tr"]
numbers = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))[:400].tolist()
train_numbers, test_numbers = numbers[:300], numbers[300:]  # no number is in both


def written(numbers):
    """Each number in each language: texts, and the index of the language of each."""
    texts = [num2words(number, lang=language) for number in numbers for language in LANGUAGES]
    return texts, torch.arange(len(LANGUAGES)).repeat(len(numbers))


train_texts, train_labels = written(train_numbers)
test_texts, test_labels = written(test_numbers)
print(len(train_texts), "texts to learn from,", len(test_texts), "held out; for example", test_numbers[0])
for language in ("de", "da", "no", "es", "pt", "tr"):
    print(f"  {language}  {test_texts[LANGUAGES.index(language)]}")
prove("no number is on both sides", not set(train_numbers) & set(test_numbers))

# %% id="encode"
characters = sorted({character for text in train_texts for character in text})  # of the training texts only
PAD, CLS, MASK, UNKNOWN = range(4)
ids = {character: 4 + n for n, character in enumerate(characters)}


def encode(texts):
    """Texts -> token ids (B, T): [CLS], the characters, then padding."""
    rows = [torch.tensor([CLS] + [ids.get(character, UNKNOWN) for character in text]) for text in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


train_tokens, test_tokens = encode(train_texts), encode(test_texts)
train_lengths = (train_tokens != PAD).sum(dim=1)
mean = train_lengths.float().mean()
print(f"{len(ids)} characters; lengths {train_lengths.min()} to {train_lengths.max()}, mean {mean:.0f}")


# %% [markdown] id="cls"
# The first token, `[CLS]`, stands in front of every text. It has no meaning of its own; what the last layer holds at
# its place is read by a linear head as the answer (Devlin et al. 2019). Texts of about the same length share a
# batch, so little is padded.


# %% id="train-classifier"
def batches(lengths, size, generator):
    """Endless batches of row numbers; the texts of each are of about the same length."""
    while True:
        for pool in torch.randperm(len(lengths), generator=generator).split(8 * size):
            pool = pool[lengths[pool].argsort()]
            chunks = [chunk for chunk in pool.split(size) if len(chunk) == size]
            for n in torch.randperm(len(chunks), generator=generator):
                yield chunks[n]


def fit(parameters, loss_of, steps, rate, lengths=train_lengths, size=64, seed=0):
    """Train: AdamW, a rate that rises and falls again."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _, rows in zip(range(steps), batches(lengths, size, generator)):
        loss = loss_of(rows, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


# %% id="classifier-trained"
def new_encoder(seed=0):
    torch.manual_seed(seed)
    sizes = {"d_model": 48, "n_heads": 4, "n_encoder_layers": 2, "vocab_size": 4 + len(ids), "max_length": 96}
    return TextEncoder(
        TransformerConfig(**sizes, positions="learned", norm_place="pre", activation="gelu", dropout=0.0)
    )


def classify(encoder, head, tokens):
    """Token ids (B, T) -> scores (B, languages), read at [CLS]."""
    return head(encoder(tokens)[:, 0])  # (B, T, D) -> (B, D) -> (B, 20)


def language_loss(rows, _):
    tokens = train_tokens[rows, : train_lengths[rows].max()]
    return F.cross_entropy(classify(encoder, head, tokens), train_labels[rows])


encoder, head = new_encoder(), nn.Linear(48, len(LANGUAGES))
fit([*encoder.parameters(), *head.parameters()], language_loss, steps=150, rate=3e-3)


# %% id="accuracy" tags=["atol:0.01"]
@torch.no_grad()
def predict(encoder, head, tokens):
    return torch.cat([classify(encoder, head, part).argmax(-1) for part in tokens.split(250)])


guesses = predict(encoder, head, test_tokens)
accuracy = (guesses == test_labels).float().mean().item()
print(f"encoder: {accuracy:.3f} of {len(test_labels)} held-out texts")
baselines = {"most frequent language": 1 / len(LANGUAGES)}
for name, grams in (("letters counted", (1, 1)), ("1- to 3-grams counted", (1, 3))):
    counter = CountVectorizer(analyzer="char", ngram_range=grams, lowercase=False)
    model = make_pipeline(counter, LogisticRegression(max_iter=300)).fit(train_texts, train_labels)
    baselines[name] = model.score(test_texts, test_labels)
for name, score in baselines.items():
    print(f"{name}: {score:.3f}")
prove("the encoder names the language of held-out numbers: over 95 %", accuracy > 0.95)

# %% [markdown] id="accuracy-says"
# The encoder is good, and the baseline is as good or better, in a fraction of the time. Short spellings betray a
# language, and a count of letter triples holds exactly that. Always run the baseline. What the encoder has, and counts
# do not, is a vector for each character in its context, of which sections 5.1 and 6 make use.

# %% id="confusion" tags=["picture:20"]
table = torch.zeros(20, 20, dtype=torch.int64)
for right, guess in zip(test_labels, guesses):
    table[right, guess] += 1
fig, ax = plt.subplots(figsize=(6.0, 5.0))
seaborn.heatmap(table, cmap=palette.sequential, square=True, cbar=False, xticklabels=LANGUAGES, yticklabels=LANGUAGES)
for i, j in (table * (1 - torch.eye(20, dtype=torch.int64))).nonzero().tolist():
    ax.text(j + 0.5, i + 0.5, int(table[i, j]), ha="center", va="center", fontsize=8, color=palette.key)
ax.set(xlabel="named", ylabel="written in")
show(
    fig,
    alt="A table of 20 by 20 languages. Nearly all of the 100 texts a language lie on the diagonal; the few others are "
    "single counts, most of them between related languages.",
    caption="What is mixed up are mostly relatives; numbers in orange count the mistakes.",
)

# %% [markdown] id="no-mask-question"
# ### 5.1 What happens without the mask, and what [CLS] reads
#
# > **Predict.** Sixteen padding tokens are put behind every text and the mask is forgotten. Which share of the answers
# > changes?


# %% id="no-mask" tags=["atol:0.05"]
@torch.no_grad()
def answers(tokens, use_mask=True):
    mask = masks.padding_mask(tokens, PAD) if use_mask else None
    return head(encoder.encoder(encoder.embedding(tokens), mask=mask)[:, 0]).argmax(-1)


lengths, changed = (test_tokens != PAD).sum(dim=1), {}
for extra in (1, 4, 16):
    flips = []
    for length in range(25, 36):  # texts of one length at a time, which need no padding by themselves
        alone = test_tokens[lengths == length, :length]
        more = F.pad(alone, (0, extra))  # PAD is 0
        flips.append(torch.stack([answers(more, use_mask) != answers(alone) for use_mask in (True, False)]))
    changed[extra] = torch.cat(flips, dim=1).float().mean(dim=1).tolist()
    shares = f"{changed[extra][0]:.2f} with a mask, {changed[extra][1]:.2f} without"
    print(f"{extra:2} padding tokens, share of answers that change: {shares}")
prove("with the mask padding changes no answer", all(with_mask < 0.001 for with_mask, _ in changed.values()))
prove("without it sixteen padding tokens change over a fifth", changed[16][1] > 0.2)

# %% [markdown] id="heads-question"
# The weights that [CLS] gives in the last layer, one row a head, for one number in three languages:

# %% id="cls-maps" tags=["picture:20"]
fig, axes = plt.subplots(3, 1, figsize=(7.5, 4.2))
for ax, language in zip(axes, ("de", "it", "da")):
    text = test_texts[LANGUAGES.index(language)]
    with torch.no_grad(), record_weights(encoder) as maps:
        encoder(encode([text]))
    *_, last = maps.values()  # (B, H, T, T) of the last layer
    seaborn.heatmap(last[0, :, 0], ax=ax, cmap=palette.sequential, vmin=0, vmax=0.5, cbar=False)  # (H, T)
    ax.set_xticks([n + 0.5 for n in range(len(text) + 1)], ["·", *text.replace(" ", "␣")], rotation=0, fontsize=8)
    ax.set(title=language, ylabel="head", yticks=[])
show(
    fig,
    alt="Three maps, one a language, of four rows by about forty characters. Each row is dark at a few characters and "
    "pale elsewhere; the rows differ.",
    caption="Trained heads of [CLS] look at few characters each, and different heads at different ones.",
)

# %% [markdown] id="read-question"
# A map shows where a head looks, not whether it matters (chapter 2). So hide characters: the four that [CLS] reads most,
# or four others at random. To hide means here that nobody may attend to them, as to padding. (Putting [MASK] in their
# place would be unfair: its vector was never trained.)

# %% id="read-most" tags=["long-cell", "atol:0.06"]
part = test_tokens[:500]
with torch.no_grad(), record_weights(encoder) as maps:
    encoder(part)
*_, last = maps.values()
read = last[:, :, 0].mean(dim=1)  # (B, H, T) -> (B, T): what [CLS] reads, mean of the heads
random = torch.rand(read.shape, generator=torch.Generator().manual_seed(0))
kept = {}
for name, score in (("nothing", None), ("four at random", random), ("the four read most", read)):
    mask = masks.padding_mask(part, PAD).clone()  # (B, 1, 1, T)
    if score is not None:
        score = score.masked_fill(part <= CLS, -1.0)  # neither padding nor [CLS]
        mask[:, 0, 0].scatter_(1, score.topk(4, dim=1).indices, False)
    with torch.no_grad():
        guesses = head(encoder.encoder(encoder.embedding(part), mask=mask)[:, 0]).argmax(-1)
    kept[name] = (guesses == test_labels[:500]).float().mean().item()
    print(f"{name} hidden: accuracy {kept[name]:.2f}")
costs_more = kept["the four read most"] < kept["four at random"] - 0.05
prove("hiding what [CLS] reads most costs more than hiding at random", costs_more)
record = claim("read_most")
for arm in record.arms:
    print("five encoders, {}: {:.2f} to {:.2f}".format(arm, *record.range(arm, "accuracy")))

# %% [markdown] id="both-directions"
# ### 5.2 Reading in both directions
#
# An encoder reads to the right as well. A task that needs it: name, at each position, the token one place to the right.


# %% id="both-directions-measured" tags=["atol:0.06"]
def right_neighbour(causal, V=8, T=8):
    """Accuracy of one layer that must name the next token, with or without a causal mask."""
    torch.manual_seed(0)
    config = TransformerConfig(d_model=32, n_heads=2, n_encoder_layers=1, vocab_size=V, dropout=0.0)
    embedding, encoder, answer = Embedding(config, V), TransformerEncoder(config), nn.Linear(32, V)
    data, mask = torch.randint(V, (3000, T)), masks.causal_mask(T) if causal else None

    def scores(tokens):
        return answer(encoder(embedding(tokens), mask=mask))[:, :-1]  # the last token has no right neighbour

    def loss_of(rows, _):
        return F.cross_entropy(scores(data[rows]).flatten(0, 1), data[rows, 1:].flatten())

    parameters = nn.ModuleList([embedding, encoder, answer]).parameters()
    fit(parameters, loss_of, steps=120, rate=1e-2, lengths=torch.full((2500,), T))
    return (scores(data[2500:]).argmax(-1) == data[2500:, 1:]).float().mean().item()


both, causal = right_neighbour(causal=False), right_neighbour(causal=True)
print(f"both directions {both:.2f}, to the left only {causal:.2f}, chance {1 / 8:.2f}")
prove("what stands to the right needs an encoder that reads there", both > 0.95 and causal < 0.2)

# %% [markdown] id="mlm"
# ## 6 Read first, learn the labels later
#
# Labels are rare; text is not. BERT (Devlin et al. 2019) first trains the encoder on text alone: hide some tokens, let
# it name them from both sides (**masked language modelling**). Then it is **fine-tuned** on few labels.
#
# Here: the training texts without their labels, 30 % of the characters hidden. (BERT hides 15 %, and of these leaves
# one in ten as it is and swaps another for a random one. We leave that out.)


# %% id="mlm-pretrain"
def hide(tokens, generator, share=0.3):
    """Replace a share of the characters by [MASK]: tokens (B, T), and which were hidden, bool (B, T)."""
    hidden = (torch.rand(tokens.shape, generator=generator) < share) & (tokens > UNKNOWN)
    return tokens.masked_fill(hidden, MASK), hidden


def mlm_loss(rows, generator):
    tokens = train_tokens[rows, : train_lengths[rows].max()]
    masked, hidden = hide(tokens, generator)
    vectors = reader(masked)[hidden]  # (B, T, D) -> (hidden characters, D)
    return F.cross_entropy(character_head(vectors), tokens[hidden])


reader, character_head = new_encoder(seed=1), nn.Linear(48, 4 + len(ids))
fit([*reader.parameters(), *character_head.parameters()], mlm_loss, steps=500, rate=5e-3, seed=1)

# %% id="mlm-measured" tags=["tol:0.03"]
with torch.no_grad():
    some = test_tokens[:400]
    masked, hidden = hide(some, torch.Generator().manual_seed(5))
    scores = character_head(reader(masked)[hidden])
    loss, right = F.cross_entropy(scores, some[hidden]), (scores.argmax(-1) == some[hidden]).float().mean()
    alone = torch.bincount(train_tokens[train_tokens > UNKNOWN], minlength=4 + len(ids)).float() + 0.1
    unigram = F.cross_entropy(alone.log().expand(int(hidden.sum()), -1), some[hidden])
print(f"hidden characters, held out: loss {loss:.2f} nats, {right:.2f} named; frequencies alone {unigram:.2f} nats")
prove("the reader names hidden characters better than their frequencies do", loss < unigram - 0.3)

# %% [markdown] id="fine-tune-question"
# > **Predict.** One labelled number in each language, twenty texts in all. How accurate is an encoder trained on them
# > from scratch, and how accurate the one that has read before?


# %% id="fine-tune"
def labelled_number(seed):
    return int(torch.randint(len(train_numbers), (1,), generator=torch.Generator().manual_seed(seed)))


def fine_tune(start, seed, steps=60, rate=3e-3):
    """Train a copy of `start` on one number in each language; return accuracy on held-out texts."""
    encoder = copy.deepcopy(start)
    rows = 20 * labelled_number(seed) + torch.arange(20)  # one text in each language
    tokens, labels = train_tokens[rows, : train_lengths[rows].max()], train_labels[rows]
    torch.manual_seed(seed)
    head = nn.Linear(48, len(LANGUAGES))

    def loss_of(_rows, _generator):
        return F.cross_entropy(classify(encoder, head, tokens), labels)

    fit([*encoder.parameters(), *head.parameters()], loss_of, steps, rate, lengths=train_lengths[rows], size=20)
    return (predict(encoder, head, test_tokens[:600]) == test_labels[:600]).float().mean().item()


# %% id="fine-tune-measured" tags=["atol:0.06"]
gains = []
for seed in (0, 1, 2, 3):
    scratch, read_before = fine_tune(new_encoder(seed), seed), fine_tune(reader, seed)
    gains.append(read_before - scratch)
    start = 20 * labelled_number(seed)
    few = make_pipeline(CountVectorizer(analyzer="char", ngram_range=(1, 3), lowercase=False), LogisticRegression())
    few.fit(train_texts[start : start + 20], train_labels[start : start + 20])
    counted = few.score(test_texts[:600], test_labels[:600])
    print(f"number {seed}: from scratch {scratch:.2f}, after reading {read_before:.2f}; triples counted {counted:.2f}")
mean_gain = sum(gains) / len(gains)
print(f"mean gain from reading {mean_gain:+.2f}")
prove("reading first helps in the mean of four numbers: over 0.05", mean_gain > 0.05)

# %% [markdown] id="fine-tune-says"
# Reading gave the encoder letters in context, and twenty labels then go further. It is a gain at equal labels, not a
# miracle: counted triples of letters remain ahead on this task, and with thousands of labels (section 5) little is
# left to gain. BERT's gains come from far more text, and tasks that counts cannot do.
#
# ## 7 Bug museum
#
# For each: read, predict what is wrong, run.
#
# **Exhibit 1.** LayerNorm as printed in a well-known tutorial. *Two details differ. Where does it show?*


# %% id="museum-norm" tags=["tol:0.05"]
def exhibit1(x, weight, bias, eps=1e-5):
    mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
    return weight * (x - mean) / (std + eps) + bias


torch.manual_seed(0)
x, weight, bias = torch.randn(2, 5, 7), torch.randn(7), torch.randn(7)
for scale in (1.0, 0.001):
    off = (exhibit1(scale * x, weight, bias) - torch_layer_norm(scale * x, weight, bias)).abs().max()
    print(f"components of about {scale:g}: off by {off:.3f}")
found = complaint(testing.assert_equivalent, exhibit1, torch_layer_norm, x, weight, bias)
prove("museum 1: unbiased std and eps outside the root are caught by assert_equivalent", found)

# %% [markdown] id="museum-norm-says"
# `std` divides by D - 1 unless told otherwise, which a width of 512 hides; eps outside the root shows at small scales
# only. Trained from scratch nobody notices. Loading published weights, every layer is a little off.
#
# **Exhibit 2.** "The encoder layer of the paper, with residual connections and layer norm." *Is it?*


# %% id="museum-place" tags=["tol:0.02"]
class Exhibit2(EncoderLayer):
    def forward(self, x):
        attention, feed_forward = self.self_attention_residual, self.feed_forward_residual
        x = x + self.self_attention(attention.norm(x))
        return x + self.feed_forward(feed_forward.norm(x))


torch.manual_seed(0)
right = EncoderLayer(TransformerConfig(d_model=64, n_heads=4, dropout=0.0))
wrong = Exhibit2(TransformerConfig(d_model=64, n_heads=4, dropout=0.0))
wrong.load_state_dict(right.state_dict())
x = torch.randn(2, 5, 64)
found = complaint(testing.assert_equivalent, wrong, right, x)
print(found)
prove("museum 2: pre-norm code under post-norm text is caught by assert_equivalent", found)
prove("museum 2: the variance of its output betrays it too", (wrong(x).var(-1) - 1).abs().max() > 0.2)

# %% [markdown] id="museum-place-says"
# All names and shapes fit, the weights load, it trains (even better). It is another model, and it lacks the final norm
# that a pre-norm stack needs.
#
# **Exhibit 3.** Someone normalises over tokens and features together, "as for images". *Who reads whom?*


# %% id="museum-sentence" tags=["tol:0.05"]
def exhibit3(x, real):
    x = F.layer_norm(x, x.shape[1:])  # over (T, D)
    return right(x, mask=real[:, None, None])


def repaired3(x, real):
    return right(F.layer_norm(x, x.shape[2:]), mask=real[:, None, None])  # new: over (D,)


three = torch.randn(3, 7, 64)
found = complaint(testing.assert_padding_invariant, exhibit3, three)
print(found)
prove("museum 3: a norm over the whole sentence lets padding in, caught by assert_padding_invariant", found)
prove("museum 3: over the features alone it obeys", not complaint(testing.assert_padding_invariant, repaired3, three))

# %% [markdown] id="museum-dropout-question"
# **Exhibit 4.** `F.dropout(x, 0.1)` in a forward pass. *What does `model.eval()` change?*


# %% id="museum-dropout" tags=["tol:0.05"]
class Exhibit4(nn.Module):
    def forward(self, x):
        return F.dropout(right(x), 0.1)  # training=True is the default


silent = Exhibit4().eval()
torch.manual_seed(0)
found = (silent(x) - silent(x)).abs().max().item()
print(f"two passes in eval mode differ by up to {found:.2f}")
prove("museum 4: dropout that ignores the mode is caught by calling twice", found > 0.1)
prove("museum 4: the library's layer repeats itself", torch.equal(right.eval()(x), right(x)))

# %% [markdown] id="museum-shared-question"
# **Exhibit 5.** One norm, used at both places, to save two lines. *What is lost?*

# %% id="museum-shared" tags=["tol:0.02"]
shared = EncoderLayer(TransformerConfig(d_model=64, n_heads=4, dropout=0.0))
shared.feed_forward_residual.norm = shared.self_attention_residual.norm
found = complaint(testing.assert_counts, shared, parameters=encoder_parameters(64, 256, 1))
print(found)
prove("museum 5: a shared norm is caught by assert_counts", found)

# %% [markdown] id="museum-vocabulary-question"
# **Exhibit 6.** The alphabet is collected from all texts, test included. *It cannot leak a label. What does it do?*

# %% id="museum-vocabulary"
few_texts, _ = written(train_numbers[:2])
known = {character for text in few_texts for character in text}
unseen = sorted({character for text in test_texts for character in text} - known)
print("characters that two training numbers do not contain:", "".join(unseen))
prove("museum 6: test texts hold characters that a small training set lacks", len(unseen) > 0)

# %% [markdown] id="museum-vocabulary-says"
# With an alphabet from all texts these get rows of the table that are never trained, and the score says nothing about
# new characters. From the training texts alone they become `UNKNOWN`, as they will in use.
#
# ## 8 What you have
#
# ### What was proved
#
# Each line is an assertion that held in this run, in order.

# %% id="proved-table"
for count, sentence in enumerate(proved, start=1):
    print(f"{count:3}  {sentence}")

# %% [markdown] id="card"
# ### The formulas on one card
#
# | what | formula | section |
# |---|---|---|
# | feed-forward | max(0, x W₁ + b₁) W₂ + b₂, each position by itself | 1 |
# | LayerNorm | (x − μ) / √(σ² + ε) ⊙ w + b, over the D features of a token | 2.1 |
# | RMSNorm | x / √(mean of x² + ε) ⊙ w | 2.2 |
# | **post-norm layer** | **x ← LN(x + Attention(x)); x ← LN(x + FFN(x))** | 2.3, 3 |
# | pre-norm layer | x ← x + Attention(LN(x)); x ← x + FFN(LN(x)); one norm at the end | 2.3, 3 |
# | parameters of a layer | 4 (D² + D) + 2 D F + F + D + 4 D | 4 |
# | padding mask | (B, 1, 1, T), True = may attend | 3.3 |
# | vector of a sentence | [CLS], or the sum of real tokens over their number | 3.3, 5 |
# | masked language modelling | cross-entropy at hidden positions only | 6 |

# %% [markdown] id="self-check"
# ### Check yourself
#
# Answer in a sentence, then open.
#
# <details><summary>1. What is the residual connection for?</summary>
#
# It keeps each token's own vector beside what the sublayers add. Without it, fresh attention makes all tokens alike
# within a few layers. Then nothing can tell them apart, and W_q and W_k get no gradient, norms or not (2.3, 2.4).
#
# </details>
#
# <details><summary>2. A 12-layer post-norm model does not start to learn. What do you try?</summary>
#
# First measure how alike its tokens are. If they are, smaller initial weights or pre-norm; a lower rate or warm-up did
# not help then (2.4). If they are not, a lower rate or warm-up (2.5).
#
# </details>
#
# <details><summary>3. Over which axis does LayerNorm average, and what if it took the whole sentence?</summary>
#
# The features of one token. Over the sentence, padding and other tokens would change every output (2.1, 7).
#
# </details>
#
# <details><summary>4. Does an encoder need a mask?</summary>
#
# No causal one. A padding mask, of shape (B, 1, 1, T), as soon as sentences of a batch differ in length (3.3, 5.1).
#
# </details>
#
# <details><summary>5. Where are most of an encoder layer's parameters?</summary>
#
# In the feed-forward: two thirds, if F = 4 D (1.2, 4).
#
# </details>
#
# <details><summary>6. Your encoder reaches 99 %. What do you ask?</summary>
#
# What a baseline reaches on the same split (5), and whether the split is disjoint.
#
# </details>
#
# <details><summary>7. When does pre-training pay?</summary>
#
# When labels are few and text is not; here with twenty labels, and little with thousands (6).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# The encoder reads a whole text at once. Chapter 5 builds its counterpart, which writes one: the decoder.

# %% [markdown] id="sources"
# ### Sources
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: sections 3.1 (residuals and norms), 3.3
#   (feed-forward), 5.3 (warm-up), 5.4 (dropout), table 3 (sizes).
# - Ba et al. 2016, *Layer Normalization*, arXiv:1607.06450; Zhang and Sennrich 2019, *Root Mean Square Layer
#   Normalization*, arXiv:1910.07467.
# - Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*, arXiv:2002.04745: pre-norm and warm-up.
# - Dong et al. 2021, *Attention Is Not All You Need: Pure Attention Loses Rank Doubly Exponentially with Depth*,
#   arXiv:2103.03404: tokens become alike without residuals. Noci et al. 2022, *Signal Propagation in Transformers*,
#   arXiv:2206.03126: and queries and keys lose their gradients.
# - Shazeer 2020, *GLU Variants Improve Transformer*, arXiv:2002.05202; Hendrycks and Gimpel 2016, *Gaussian Error
#   Linear Units*, arXiv:1606.08415.
# - Devlin et al. 2019, *BERT*, arXiv:1810.04805: [CLS], masked language modelling, the sizes of base and large.
