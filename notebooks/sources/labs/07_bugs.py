# %% [markdown] id="title"
# # Lab: four bugs in a Llama
#
# **The question: it runs, and it loads without an error. What makes the Llama wrong?** If you build a variant or load a
# checkpoint, expect bugs that no shape error reveals. Here are four of them. The symptom comes first: say what it
# means, then look for the cause. One of them you mend.
#
# The lab builds on [chapter 7](../07_variants.ipynb), its sections 2, 3.1, 7 and 8. With two exercises it takes about
# {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import copy

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.testing import prove
from coursework import exercises as ex
from coursework.corpora import tiny_shakespeare
from coursework.exercises.given_llama import LlamaLayer, RMSNorm
from coursework.pictures import palette, show
from coursework.pictures.plots import common

torch.set_num_threads(1)
build, generate = ex.build_model.part(), ex.generate.part()
LoRALinear, merge = ex.lora_linear.part(), ex.lora_merge.part()

# %% [markdown] id="bench"
# ## The bench
#
# Our patient is a Llama that knows eight lines of *Richard III* by heart: two layers, H = 4 heads of queries, G = 2
# of keys and values, each 16 wide. A colleague trained it: `hers` is her model, and `checkpoint` has its saved weights.
# Her program gives the logits `right` for 13 pieces of the text, 64 characters each. That is the best tool there is:
# **another program's numbers for the same input.**
#
# `gap(model)` is the largest difference from `right` at each position, as a mean over the pieces. Rounding alone makes
# a gap: run in float64, her own model is off by a few millionths. The figures mark that by a dashed line.

# %% id="bench-code" tags=["hide-input", "tol:0.05"]
# The colleague's program: her model learns the lines, and saves its weights with pairs of rows side by side
plays = tiny_shakespeare()
lines, scene = (plays[plays.find(start) :][:338] for start in ("Now is the winter of our", "First Citizen:\nBefore"))
letters = sorted(set(lines + scene))
lines, scene = (torch.tensor([letters.index(letter) for letter in text]) for text in (lines, scene))
config = {"model_type": "llama", "vocab_size": len(letters), "hidden_size": 64, "intermediate_size": 128}
config |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
config |= {"rms_norm_eps": 1e-5, "rope_theta": 10_000.0}


def learn(model, text, steps, rate):
    """AdamW on what is trainable, 16 pieces a step; warm-up and a linear end."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], betas=(0.9, 0.95))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 20) * (1 - step / steps)
        piece = text[torch.randint(len(text) - 64, (16, 1), generator=generator) + torch.arange(65)]
        optimizer.zero_grad()
        F.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten()).backward()
        optimizer.step()


def pieces(text):
    return text.unfold(0, 65, 20)[:13]  # (13, 65)


@torch.no_grad()
def loss_on(model, text):
    rows = pieces(text)
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).item()


def write(model, n=59):
    """The first 18 characters and what the model writes after them, always its most likely letter."""
    found = generate(model, lines[:18][None], n, lambda logits: logits.argmax(-1, keepdim=True))[0]
    return "".join(letters[i] for i in found.tolist())


torch.manual_seed(0)
hers = build(config)
for weight in hers.parameters():
    if weight.dim() == 2:
        nn.init.normal_(weight, std=0.05)
learn(hers, lines, 200, 6e-3)
hers.eval().requires_grad_(False)
tokens = pieces(lines)[:, :-1]  # (13, 64)
right = hers(tokens)  # (13, 64, V)
checkpoint = hers.state_dict()
for name in checkpoint:
    heads = {"query": 4, "key": 2}.get(name.split(".")[-2], 0)
    if heads:  # halves to pairs: the order of Meta's own files
        checkpoint[name] = checkpoint[name].unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


@torch.no_grad()
def gap(model):
    """Largest difference from the right logits at each position, mean of the 13 pieces: (64,)."""
    return (model(tokens) - right).abs().amax(-1).mean(0)


def replaced(model, old, new):
    """A copy of a model in which the parts of one class are of another."""
    copied = copy.deepcopy(model)
    for part in copied.modules():
        if type(part) is old:
            part.__class__ = new
    return copied


double = copy.deepcopy(hers).double()
rounding = gap(double).max().item()


def fingerprint(alt, caption, **models):
    """Draw the gaps of models by position, and the size of rounding."""
    found = {name.replace("_", " "): gap(model).clamp(min=1e-7) for name, model in models.items()}
    level = {f"rounding: {rounding:.0e}": rounding}
    axes = {"yscale": "log", "ylim": (5e-8, 30), "xlabel": "position", "ylabel": "logits off by"}
    show(common.curves(range(64), found, styles=("o-", "s-", "D-"), levels=level, **axes), alt=alt, caption=caption)


print(write(hers))
print(f"loss {loss_on(hers, lines):.3f}")

# %% [markdown] id="pairs"
# ## Exhibit 1: every weight fits
#
# You load her weights into the model that your `build` of chapter 7 makes. Each name is there, each shape is right.


# %% id="pairs-code" tags=["not-compared:text-of-a-trained-model"]
llama = build(config).eval().requires_grad_(False)
print(llama.load_state_dict(checkpoint))
print(write(llama))

# %% [markdown] id="pairs-question"
# The prompt was “Now is the winter”. Soon after it, the model babbles. You compare your logits with hers.
#
# **Predict.** At how many of the 64 positions are yours wrong? Is there one at which they must be right?

# %% id="pairs-guess"
ex.predict("which_logits_are_right", "")

# %% id="pairs-figure" tags=["hide-input", "picture:30"]
# Figure: how far the logits are off at each position
fingerprint(
    "How far the logits are off against the position, logarithmic. At position 0 nothing; at position 1 about one; it "
    "rises to about six.",
    "Right at position 0, wrong at all others. The dashed line is what rounding does.",
    loaded_as_it_is=llama,
)
prove("1: position 0 is right but for rounding, all others are off by more than 0.1",
      gap(llama)[0] < 1e-4 and gap(llama)[1:].min() > 0.1)  # fmt: skip

# %% [markdown] id="pairs-says"
# Position 0 is right. Under a causal mask it sees only itself, with weight one, whatever its query and its key are.
# So a model that is right for the first token and wrong from the second on has a bug in what decides *who is read*:
# queries, keys, positions or the mask. Norms, values and feed-forward are cleared.
#
# Here it is the positions. Her program turns the rows 2i and 2i + 1 of each head together, yours the rows i and i +
# E/2 (exhibit 3 of the [lab on chapter 3](03_bugs.ipynb)). Both are in use: Meta's files of Llama have the first
# order, those of `transformers` the second. So no line and no weight is wrong, but they do not belong together.
#
# You could change which pairs the code rotates, but the next checkpoint may use the other order. It is better to sort
# the rows once, while loading: a score is a sum over all pairs, and does not care where a pair stands. For a head of
# six rows the new order is 0 2 4 1 3 5. Somebody has written a converter already.

# %% exercise="mend_converter"

# %% id="pairs-mended"
llama.load_state_dict(to_halves(checkpoint, H=4, G=2))
print(write(llama))
prove("1: converted, your Llama gives her logits", gap(llama).max() < 1e-4)

# %% [markdown] id="groups"
# One of the mistakes is from real life: a converter in `transformers` cut the keys into as many heads as the queries,
# until pull request 31788. And a tiny test can miss the other, because for heads of four rows the way there and the
# way back are the same.
#
# ## Exhibit 2: the other repetition
#
# Now the weights are right. In this copy somebody rewrote the attention. Two heads of keys and values must serve four
# heads of queries:
#
# ```python
# k, v = (one.repeat(1, q.size(1) // k.size(1), 1, 1) for one in (k, v))
# ```
#
# In the [lab on chapter 2](02_bugs.ipynb) a new layer had this bug; here it meets trained weights.


# %% id="groups-code" tags=["hide-input", "not-compared:text-of-a-trained-model"]
# The layer with `repeat`, and what the model writes with it
class Exhibit2(LlamaLayer):
    def attention(self, x, positions, mask, cache):
        """As the layer's, with `repeat` for `repeat_interleave`."""
        maps = self.query, self.key, self.value
        q, k, v = (m(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2) for m in maps)
        q, k = self.rotate(q, positions), self.rotate(k, positions)
        if cache:
            k, v = torch.cat([cache["k"], k], dim=2), torch.cat([cache["v"], v], dim=2)
        if cache is not None:
            cache["k"], cache["v"] = k, v
        k, v = (one.repeat(1, q.size(1) // k.size(1), 1, 1) for one in (k, v))
        return self.output(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


tiled = replaced(hers, LlamaLayer, Exhibit2)
print(write(tiled))

# %% [markdown] id="groups-question"
# Nonsense again.
#
# **Predict.** Draw the gap by position once more. What is different at position 0?

# %% id="groups-guess"
ex.predict("fingerprint_of_repeat", "")

# %% id="groups-figure" tags=["hide-input", "tol:0.1", "picture:30"]
# Figure: the fingerprint of exhibit 2 beside that of exhibit 1. Check: which heads are wrong, and which G shows it
pairs = build(config).eval().requires_grad_(False)
pairs.load_state_dict(checkpoint)
mixed = build(config).eval().requires_grad_(False)  # the rows of heads 0 and 1 as in the checkpoint, of 2 and 3 mended
mixed.load_state_dict(
    {name: torch.cat([checkpoint[name][: len(w) // 2], w[len(w) // 2 :]]) for name, w in hers.state_dict().items()}
)


def without(model, heads):
    """A copy in which the output matrix ignores some heads."""
    other = copy.deepcopy(model)
    for layer in other.layers:
        layer.output.weight.unflatten(1, (4, 16))[:, heads] = 0
    return other


fingerprint(
    "How far the logits are off against the position, logarithmic, for exhibits 1 and 2. Exhibit 2 is off by several from "
    "position 0 on.",
    "Nonsense from both, but another fingerprint: exhibit 2 is wrong from the first token on.",
    exhibit_1=pairs,
    exhibit_2=tiled,
)
print(f"loss: exhibit 1 {loss_on(pairs, lines):.2f}, exhibit 2 {loss_on(tiled, lines):.2f},", end=" ")
print(f"exhibit 1 in two heads of the four {loss_on(mixed, lines):.2f}")
prove("2: only heads 1 and 2 are wrong: without them, the logits are the same",
      torch.allclose(without(tiled, [1, 2])(tokens), without(hers, [1, 2])(tokens), atol=1e-4))  # fmt: skip
prove("2: exhibit 1 in two heads harms less than exhibit 2", loss_on(mixed, lines) < loss_on(tiled, lines))
prove("2: it is wrong at position 0, too", gap(tiled)[0] > 0.1)
for groups in (1, 4):
    other = build(config | {"num_key_value_heads": groups}).eval().requires_grad_(False)
    same = torch.allclose(other(tokens), replaced(other, LlamaLayer, Exhibit2)(tokens), atol=1e-5)
    prove(f"2: with G = {groups} nothing shows", same)

# %% [markdown] id="groups-says"
# It is wrong there, too, so the bug is in what one token does alone. Query heads 1 and 2 read the *values* of the wrong
# head, and the output matrix mixes them as if they were the right ones. The cure is
# `one.repeat_interleave(q.size(1) // k.size(1), dim=1)`.
#
# Why is the loss lower than in exhibit 1? There all four heads were wrong, here two are. Head for head, exhibit 2 harms
# more. The position says where the bug is; the loss says how much it harms. And a test with G = H or with G = 1 finds
# nothing: only 1 < G < H can show it.
#
# ## Exhibit 3: nearly right
#
# This copy writes every letter correctly, and its loss is the same to three decimals. A test with `atol=0.05` is green.
# But its logits are not quite hers. `replaced` puts this norm in the place of each of hers:


# %% id="norm-code" tags=["tol:0.05"]
class Exhibit3(RMSNorm):
    def forward(self, x):
        size = x.square().mean(dim=-1, keepdim=True).sqrt() + self.eps
        return x / size * self.weight


nearly = replaced(hers, RMSNorm, Exhibit3)
print(f"loss {loss_on(nearly, lines):.3f}, hers {loss_on(hers, lines):.3f}")

# %% [markdown] id="norm-question"
# **Predict.** By what factor is this gap larger than rounding: 2, 30, or hundreds? Is position 0 wrong, too?

# %% id="norm-guess"
ex.predict("rounding_or_bug", "")


# %% id="norm-figure" tags=["hide-input", "picture:30"]
# Figures: the gap of the wrong norm by position; and what it does to small vectors. Check: a norm squared in float16
class InFloat16(RMSNorm):
    def forward(self, x):
        """The mean square in float16."""
        size = x.half().square().mean(dim=-1, keepdim=True) + self.eps
        return x * size.rsqrt() * self.weight


fingerprint(
    "How far the logits are off against the position, logarithmic. The gap lies between 0.001 and 0.02 everywhere, "
    "far above rounding.",
    "Small gaps from position 0 on, but hundreds to thousands of times as large as rounding.",
    exhibit_3=nearly,
)
sizes = torch.logspace(-5, 0, 21)
vectors = torch.randn(64, generator=torch.Generator().manual_seed(0))
vectors = vectors / vectors.square().mean().sqrt() * sizes[:, None]  # (21, 64): of these sizes
kinds = {"right": RMSNorm, "exhibit 3": Exhibit3}
after = {name: kind(64, 1e-5)(vectors).detach().square().mean(-1).sqrt() for name, kind in kinds.items()}
axes = {
    "xscale": "log",
    "xlabel": "size of the input (root mean square)",
    "ylabel": "size of the output",
    "ylim": (-0.05, 1.1),
}
colours = (palette.value, palette.key)
show(
    common.curves(sizes, after, colours=colours, styles=("o-", "s-"), names="lower right", **axes),
    alt="The size of a norm's output against the size of its input, logarithmic. The right norm rises from zero to one around "
    "0.003. Exhibit 3 does so around 0.00001, and is near one from 0.0001 on.",
    caption="The right norm damps small vectors. With ε outside the root, they come out large.",
)
print("the square of 256 in float16:", torch.tensor(256.0).half().square().item())
prove("3: the texts are the same", write(nearly) == write(hers))
prove("3: it is off by 300 times rounding or more at each position", gap(nearly).min() > 300 * rounding)
prove("3: and by thousands at some", gap(nearly).max() > 2000 * rounding)
prove("3: a test with atol=0.05 is green", (nearly(tokens) - right).abs().max() < 0.05)
one_large = torch.eye(64)[0] * 256 + 1
prove(
    "3: with one entry above 256, squared in float16, nothing is left", InFloat16(64, 1e-5)(one_large).abs().max() == 0
)
at = 10  # where the size is 0.003
prove("3: at 0.003 ε outside leaves 40 % more", 1.35 < after["exhibit 3"][at] / after["right"][at] < 1.45)

# %% [markdown] id="norm-says"
# A gap of hundreds of times rounding is a bug: ε stands outside the root. It belongs inside, as in
# `(x.square().mean(dim=-1, keepdim=True) + self.eps).sqrt()`. It does little harm here, because the root is far larger
# than ε. Where x itself is small, near √ε = 0.003, the wrong norm is 40 % too large.
#
# A number format can fail on rare inputs, too: in float16 the square of 256 is infinite. One such entry makes the mean
# infinite and the whole token zero. That is why `transformers` takes the mean square of a Llama in float32, whatever
# the model computes in.
#
# ## Exhibit 4: merged for speed
#
# Her model is tuned by LoRA to another scene, with rank r = 8 and α = 16: `fresh` has new updates, `tuned` has trained
# ones. For speed, the author adds each update into its weight, with your `merge` of chapter 7.

# %% id="lora-code" tags=["hide-input", "tol:0.05"]
# The tuned model: LoRA in each map of the layers, 150 steps
torch.manual_seed(1)
fresh = copy.deepcopy(hers)
for name, part in list(fresh.layers.named_modules()):
    if isinstance(part, nn.Linear):
        fresh.layers.set_submodule(name, LoRALinear(part, 8, 16.0))
tuned = copy.deepcopy(fresh)
learn(tuned, scene, 150, 5e-3)
print(f"loss on the scene: {loss_on(hers, scene):.2f} before, {loss_on(tuned, scene):.2f} tuned")


# %% id="lora-exhibit"
def exhibit4(model):
    fast = copy.deepcopy(model).requires_grad_(False)
    for part in fast.modules():
        if isinstance(part, LoRALinear):
            weight = part.base.weight
            weight.copy_(merge(weight, part.A, part.B, alpha=16.0))
    return fast


same = torch.equal(exhibit4(fresh)(tokens), fresh(tokens))
print("with a new update, merged and not merged agree:", same)

# %% [markdown] id="lora-question"
# The author's test is green, to the last bit. It takes a new update, before any training.
#
# **Predict.** Why does it see nothing? And what will the tuned model's loss be, after `exhibit4`?

# %% id="lora-guess"
ex.predict("merged_for_speed", "")


# %% id="lora-figure" tags=["hide-input", "tol:0.1", "picture:30"]
# Figure: the loss with the update at several strengths; each wrong factor is one of them
@torch.no_grad()
def at_strength(strength):
    """The tuned model with each update times a factor."""
    other = copy.deepcopy(tuned)
    for part in other.modules():
        if isinstance(part, LoRALinear):
            part.factor *= strength
    return other


faults = {"never added": 0.0, "α / r forgotten": 0.5, "right": 1.0, "added twice": 2.0, "r forgotten": 8.0}
losses = {name: loss_on(at_strength(strength), scene) for name, strength in faults.items()}
colours = [palette.value if name == "right" else palette.key for name in faults]
show(
    common.bars(
        list(faults), list(losses.values()), colours=colours, numbers="%.1f", xlabel="loss on the scene", lying=True
    ),
    alt="Five bars: the loss on the scene with the update never added, with its factor forgotten, right, added twice, and "
    "without the division by r. The right one is by far the lowest.",
    caption="The same weights, five strengths of the update: 0, ½, 1, 2 and 8.",
)
prove("4: what exhibit 4 does is to add the update twice",
      abs(loss_on(exhibit4(tuned), scene) - losses["added twice"]) < 1e-3)  # fmt: skip
fast = copy.deepcopy(tuned).requires_grad_(False)
for name, part in list(fast.named_modules()):
    if isinstance(part, LoRALinear):
        part.base.weight.copy_(merge(part.base.weight, part.A, part.B, alpha=16.0))
        fast.set_submodule(name, part.base)
prove("4: cured, the merged model gives the logits of the tuned one",
      torch.allclose(fast(tokens), tuned(tokens), atol=1e-3))  # fmt: skip
prove("4: the right strength has the lowest loss", min(losses, key=losses.get) == "right")
prove("4: added twice is worse than half", losses["added twice"] > losses["α / r forgotten"])

# %% [markdown] id="lora-says"
# B is zero before training, so every factor passes that test: never, twice or ten times. Test with a trained update,
# or fill B with random numbers. In the exhibit the update goes into the weight and stays beside it, so it is added
# twice. The cure leaves only the plain map in the layer:
#
# ```python
# for name, part in list(fast.named_modules()):
#     if isinstance(part, LoRALinear):
#         part.base.weight.copy_(merge(part.base.weight, part.A, part.B, alpha=16.0))
#         fast.set_submodule(name, part.base)  # without the update beside it
# ```
#
# ## Your turn
#
# One more copy, `unknown`. You see only its fingerprint.


# %% id="unknown-figure" tags=["hide-input", "tol:0.1", "picture:30"]
# Figure: the fingerprint of an unknown bug
def unknown_copy():
    other = copy.deepcopy(hers)
    for layer in other.layers:
        layer.base = 500_000.0
    return other


unknown = unknown_copy()
fingerprint(
    "How far the logits are off against the position, logarithmic: nothing at position 0, then rising steadily.",
    "Right at position 0, off by little at first, and by more and more later.",
    unknown=unknown,
)
found = gap(unknown)
prove("it is right at position 0, and off by more later than at first",
      found[0] < 1e-4 and found[40:].mean() > 2 * found[1:8].mean())  # fmt: skip
print(f"loss {loss_on(unknown, lines):.2f}")

# %% exercise="read_fingerprint"

# %% [markdown] id="answer"
# ## The answer
#
# What makes the Llama wrong? Another program's logits say where to look.
#
# | exhibit | symptom | where to look |
# |---|---|---|
# | 1 | right at position 0, then nonsense | who is read: queries, keys, positions, mask |
# | 2 | wrong at position 0, too | what one token does alone: values, norms, feed-forward |
# | 3 | small everywhere, far above rounding | a norm |
# | 4 | right on a new update only | a factor that is applied twice or never |
#
# **You can now** tell a bug from rounding, read from the first wrong position where it sits, and load a checkpoint
# whose heads lie in another order.
#
# <details><summary>Sources</summary>
#
# Su et al. 2021 (rotary positions), arXiv:2104.09864. Ainslie et al. 2023 (grouped heads), arXiv:2305.13245. Zhang and
# Sennrich 2019 (RMSNorm), arXiv:1910.07467. Hu et al. 2021 (LoRA), arXiv:2106.09685. Keys cut into too many heads:
# huggingface/transformers, pull request 31788; the order of the rows: ggml-org/llama.cpp, issue 2376, and
# jzhang38/TinyLlama, issue 24.
#
# </details>
