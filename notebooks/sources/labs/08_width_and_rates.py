# %% [markdown] id="title"
# # Lab: the rate of a wider model
#
# **The question: you found the best learning rate on a small model. What rate does a model eight times as wide need?**
# Nobody can try six rates on a model that takes a month to train. You write one short function that answers the
# question in advance, and then you train a wide model with a rate that was only ever tried on a narrow one.
#
# The lab stands on [chapter 8](../08_scaling.ipynb), which tried rates for every shape of model, and on Adam, which is
# section 7 of [chapter 6](../06_training.ipynb). With one exercise it takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import statistics

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.data import CharTokenizer
from course_lib.multi_head import MultiHeadAttention
from course_lib.testing import prove
from course_lib.training import newton_schulz
from coursework import exercises as ex
from coursework.corpora import tiny_shakespeare
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common, lab_08_width_and_rates
from coursework.records import claim

torch.set_num_threads(1)

# %% [markdown] id="same-rate"
# ## 1 The small model's rate
#
# Here is a small GPT: two layers, characters of Shakespeare, 80 steps of Adam. We trained it in four widths, from 16 to
# 128, and each of them with six rates. A wider model has more heads and a wider feed-forward, and nothing else changes.
# At width 16 the best rate is 0.032.
#
# **Predict.** What is the best rate at width 128?

# %% id="predict-rate"
ex.predict("rate_at_width_128", "")

# %% id="standard-record" tags=["hide-input"]
# Record: loss against rate for four widths, one rate for the whole model
found = claim("rate_and_width")
WIDTHS, NARROW, WIDE = (16, 32, 64, 128), 16, 128


def best(rule, width):
    return found.best_rate(f"{rule}, width {width}")


def loss_at(rule, width, rate=None):
    """Mean over the seeds, at the best rate unless given."""
    return statistics.mean(found.values(f"{rule}, width {width}", "loss", rate))


def say_best(rule, factor=1):
    return ", ".join(f"width {width}: {factor * best(rule, width):g}" for width in WIDTHS)


show(
    lab_08_width_and_rates.loss_by_rate(found, {"standard": "one rate for the whole model"}, WIDTHS),
    alt="Held-out loss against the learning rate on a logarithmic scale, four bowls, one for each width. The lowest "
    f"points move left and down as the models get wider. Best rates: {say_best('standard')}.",
    caption="In wider models the best rate is lower. A mark shows the best of six; shaded is the range of five seeds. "
    f"({found.command})",
)
first = best("standard", NARROW)
print("best rate:", say_best("standard"))
print(f"loss with {first:g}: {loss_at('standard', NARROW):.2f} at width 16, {loss_at('standard', WIDE, first):.2f} at "
      f"width 128, where the best is {loss_at('standard', WIDE):.2f}")  # fmt: skip
prove("at width 128 the best rate is a quarter of that at 16", best("standard", 128) == best("standard", 16) / 4)

# %% [markdown] id="standard-says"
# It is a quarter of 0.032. And to keep 0.032 is expensive: the wide model has 47 times as many weights, and its loss is
# hardly lower than that of the narrow one.
#
# ## 2 Sums that cancel, and sums that agree
#
# Why does width matter to a rate? Look at one number inside the model. It is a sum: each of n inputs is multiplied by a
# weight, and the products are added.
#
# **At the start** the weights are random, and most of the products cancel. A sum of n random numbers is only about √n
# times as large as one of them. So torch draws weights of size about 1/√n, and the sum starts at about the same size in
# every width.
#
# **Then Adam takes a step.** You saw in chapter 6 that its first step moves each weight by the rate, whatever the
# gradient is. And each weight moves in the direction that helps. So the n changes do not cancel: they all push the sum
# the same way.
#
# **By hand.** Let every input have size 1, and the rate be 0.032. With 16 inputs the sum moves by 16 · 0.032 = 0.5.
# With 128 inputs it moves by 128 · 0.032 = 4.1. Both began below 1. The first has learned something. The second has
# been thrown off course.

# %% id="sums-figure" tags=["hide-input"]
# Figure: the products of a neuron added up one by one, at the start and in one step of Adam
torch.manual_seed(1)
sums, count = {}, {}
for n in (16, 128):
    neuron, x = nn.Linear(n, 1, bias=False), torch.randn(n).sign()
    old = neuron.weight.detach().clone()
    neuron(x).backward()
    torch.optim.Adam(neuron.parameters(), lr=0.032, maximize=True).step()
    parts = {"at the start": old, "what one step of Adam adds": neuron.weight - old}
    sums[f"{n} inputs"] = {name: F.pad((w * x).cumsum(1)[0], (1, 0)).detach() for name, w in parts.items()}
fig = common.panels(
    lambda lines, **options: common.curves(range(len(lines["at the start"])), lines, **options), sums, share="y",
    size=(7.2, 2.8), styles=("-",), colours=(palette.key, palette.query), xlabel="products added so far", ylabel="sum",
)  # fmt: skip
show(
    fig,
    alt="Two panels with running sums, for a neuron with 16 inputs and for one with 128. In both the sum at the start wanders "
    "and ends close to zero. What a step of Adam adds rises in a straight line, to 0.5 in the first and to 4.1 in the second.",
    caption="Random products cancel, so both sums start small. The changes agree, so the wide sum moves eight times as far.",
)
ends = [lines["what one step of Adam adds"][-1].item() for lines in sums.values()]
prove("the sums move by 0.5 and by 4.1", [round(end, 1) for end in ends] == [0.5, 4.1])
prove("both start between -1 and 1", all(abs(lines["at the start"][-1]) < 1 for lines in sums.values()))

# %% [markdown] id="rule"
# So if a matrix gets eight times as many inputs, its rate should be divided by eight. Which parameters does this
# concern? Go through them and ask each time: *what is added up here?*
#
# | parameters | what is added up | first weights | rate of Adam |
# |---|---|---|---|
# | matrices inside the layers | n inputs | as torch draws them | divided by the growth of n |
# | the head, from the stream to the tokens | n inputs | torch's, divided by the root of the growth | divided by the growth of n |
# | tables of tokens and positions | nothing: a row is looked up | unchanged | unchanged |
# | biases, weights of norms | nothing | unchanged | unchanged |
#
# The *growth* is how many times as many inputs there are as in the narrow model. These rules are called **µP**, the
# *maximal update parametrization* (Yang et al. 2022, table 3): each part moves as far as it can without moving further
# in a wider model.
#
# One entry still needs a reason. Why does the head start smaller? During training the layers below it move the stream
# in the direction in which the head's weights point, because the gradient tells them to. So the products in the head's
# sum agree as well. For n products that agree, weights of size 1/√n are too large, and 1/n is right.
#
# ## 3 You write it
#
# One thing will try to trip you up. With 70 tokens and a width of 128, the token table has the shape (70, 128), and so has
# the head. They look the same, and need opposite treatment.

# %% exercise="mup_groups"

# %% id="model" tags=["hide-input"]
# The GPT of the record, its text, and its loss
text = tiny_shakespeare()
tokenizer = CharTokenizer.train([text])
ids = torch.tensor(tokenizer.encode(text))
train_ids, held_out = ids[: len(ids) * 9 // 10], ids[len(ids) * 95 // 100 :].unfold(0, 33, 32)[:256]
rows = train_ids[1000 * torch.arange(8)[:, None] + torch.arange(33)]  # (8, 33)
read = rows[:, :-1]  # what the model reads of them


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = MultiHeadAttention(width, width // 8, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x), causal=True)
        return x + self.down(self.up(self.norm_2(x)).relu())


class GPT(nn.Module):
    def __init__(self, width, n_tokens=70):
        super().__init__()
        self.token, self.place = nn.Embedding(n_tokens, width), nn.Embedding(32, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, n_tokens, bias=False)

    def stream(self, ids):
        x = self.token(ids) + self.place.weight[: ids.size(1)]
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, ids):
        return self.head(self.norm(self.stream(ids)))


def loss_of(model, rows):
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


prove("the text has 70 tokens", tokenizer.vocab_size == 70)

# %% id="groups-run"
wide = GPT(128)
adam = torch.optim.Adam(mup_groups(wide, GPT(16), rate=0.032))
rate_of = {id(p): group["lr"] for group in adam.param_groups for p in group["params"]}
for name, p in wide.named_parameters():
    if "layers.1" not in name:
        print(f"{name:<34}{tuple(p.shape)!s:<12}{rate_of[id(p)]:g}")

# %% [markdown] id="coordinates"
# ## 4 Do the activations agree?
#
# How would you know that such a function is right? A check that takes seconds is the **coordinate check**. Build the
# model in several widths, take a few steps with the same rate, and look how far the activations have moved. If the rule
# is right, the width should not show.


# %% id="moves"
def moves(width, rule, rate=0.032):
    """How far stream and logits move in five steps: the root mean square."""
    torch.manual_seed(0)
    model = GPT(width)
    groups = mup_groups(model, GPT(16), rate) if rule == "µP" else model.parameters()
    optimizer = torch.optim.Adam(groups, lr=rate, betas=(0.9, 0.95))
    before = model.stream(read), model(read)
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, rows).backward()
        optimizer.step()
    after = model.stream(read), model(read)
    pairs = zip(before, after)
    return [(new - old).square().mean().sqrt().item() for old, new in pairs]


# %% id="coordinate-check" tags=["hide-input", "picture:10"]
# Figure: how far stream and logits move in five steps, against the width, with one rate and with your groups
widths = (16, 32, 64, 128, 256)
moved = {rule: torch.tensor([moves(width, rule) for width in widths]).T for rule in ("standard", "µP")}
growth = {rule: values / values[:, :1] for rule, values in moved.items()}
panels = {
    title: {"one rate for all": growth["standard"][part], "your groups": growth["µP"][part]}
    for part, title in enumerate(("stream", "logits"))
}
show(
    common.panels(
        common.curves, widths, panels, size=(7.2, 2.8), xscale="log", yscale="log", xticks=widths, xticklabels=widths,
        yticks=(1, 10, 100), yticklabels=(1, 10, 100), xlabel="width", ylabel="moved, width 16 is 1",
        colours=(palette.key, palette.query),
    ),
    alt="How far the stream and the logits move in five steps against the width, relative to width 16, on logarithmic scales. "
    "With one rate for the whole model both rise with the width, the stream most. With your groups both stay level.",
    caption="With one rate for all, a wider model moves further. With your groups, all widths move alike.",
)  # fmt: skip
at_256 = {rule: values[:, -1].tolist() for rule, values in growth.items()}
prove("one rate: from width 16 to 256 the stream moves over twenty times as far", at_256["standard"][0] > 20)
prove("your groups: neither changes by more than two fifths", all(0.6 < times < 1.4 for times in at_256["µP"]))

# %% [markdown] id="transfer"
# ## 5 A rate that was only tried on the narrow model
#
# Now the real thing. Train the wide model with 0.032, the best rate of the narrow one, once with one rate for everything
# and once with your groups. The seed is none of the record's.


# %% id="train"
def train(model, groups, rate=0.032, seed=5):
    optimizer = torch.optim.Adam(groups, lr=rate, betas=(0.9, 0.95), fused=True)
    peaks = [group["lr"] for group in optimizer.param_groups]
    draw = torch.Generator().manual_seed(seed)
    for step in range(80):
        share = min(1, (step + 1) / 8, (80 - step) / 40)  # up, level, down
        for group, peak in zip(optimizer.param_groups, peaks):
            group["lr"] = peak * share
        start = torch.randint(len(train_ids) - 32, (16, 1), generator=draw)
        loss = loss_of(model, train_ids[start + torch.arange(33)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return loss_of(model, held_out).item()


# %% id="trained" tags=["tol:0.02"]
torch.manual_seed(5)
wide = GPT(128)
one_rate = train(wide, wide.parameters())
torch.manual_seed(5)
wide = GPT(128)
yours = train(wide, mup_groups(wide, GPT(16), 0.032))
print(f"one rate for all: loss {one_rate:.2f}\nyour groups:      loss {yours:.2f}")

# %% [markdown] id="muon"
# Is this luck? The record has five seeds, four widths and six rates for both. It has a third arm, too.
#
# **Muon**, from the [lab on optimizers](06_optimizers.ipynb), makes all singular values of an update about equal:

# %% id="singular-values-drawn" tags=["hide-input"]
# Drawing: singular values of an update, before and after
drawings.singular_values_of_an_update().show()

# %% [markdown] id="muon-says"
# Singular values say by how much a matrix can stretch a vector. So a step of Muon moves the output of a matrix by about the
# rate, relative to its input, whatever the width is. A step of Adam can stretch a vector by up to n times the rate. We
# measured the most that the first step of one of our matrices does:
#
# %% id="stretch" tags=["hide-input", "tol:0.02"]
# Measure: by how much the first updates of one matrix stretch a vector at most, with Adam and with Muon
for width in (NARROW, WIDE):
    torch.manual_seed(0)
    model = GPT(width)
    loss_of(model, rows).backward()
    gradient = model.layers[0].attention.query.weight.grad
    steps = {"Adam": gradient.sign(), "Muon": newton_schulz(gradient, dtype=torch.float32)}
    found_here = {name: 0.032 * torch.linalg.matrix_norm(step, 2).item() for name, step in steps.items()}
    print(f"width {width:>3}, rate 0.032: " + ", ".join(f"{name} {by:.2f}" for name, by in found_here.items()))

# %% [markdown] id="muon-arm"
# **Predict.** In the third arm Muon trains the matrices inside the layers, with one rate for all widths and no rule.
# Adam has the rest, with your groups. Will the best rate of Muon stay?

# %% id="predict-muon"
ex.predict("rate_of_muon", "")

# %% id="transfer-record" tags=["hide-input"]
# Record: loss against rate for four widths, with the groups of µP and with Muon
show(
    lab_08_width_and_rates.loss_by_rate(
        found, {"µP": "Adam with your groups (µP)", "Muon": "Muon inside the layers"}, WIDTHS, {"Muon": 2}
    ),
    alt="Held-out loss against the rate for four widths, two panels. In both, the bowls of all widths have their lowest points "
    f"nearly above each other, and wider is lower. Best rates with µP: {say_best('µP')}. With Muon: {say_best('Muon', 2)}.",
    caption="In either, the bowls of all four widths have their lowest points nearly above each other.",
)  # fmt: skip
for rule, called, factor in (("standard", "one rate", 1), ("µP", "µP", 1), ("Muon", "Muon", 2)):
    kept = best(rule, NARROW)
    print(f"{called:<9} best rate {factor * kept:g} at width 16, {factor * best(rule, WIDE):g} at width 128; "
          f"width 128 with the first {loss_at(rule, WIDE, kept):.2f}, with its own {loss_at(rule, WIDE):.2f}")  # fmt: skip

# %% [markdown] id="transfer-says"
# With your groups the best rate is 0.032 or its neighbour 0.064 in all four widths, and the wide model loses nothing with
# 0.032. The rate of Muon stays, too, and it reaches the lowest losses. With your groups a wider model is better at each of
# the six rates. With one rate for all, the widest is the worst at the two highest.
#
# But look at the last column. If you search the rate anew for the wide model, one rate for all ends at least as low as µP.
# **µP does not make a model better. It saves the search.**
#
# <details><summary>Evidence: 360 trainings, and what the arms share</summary>
#
# Three arms, four widths, six rates, five seeds. All runs of a seed see the same text. At width 16 the growth is 1, so µP and one rate for all are the same run. The rate rises in
# 8 steps and falls in the last 40. The loss is measured on 8,192 characters that were not trained on. Muon's rates are
# twice those of the two others; beside it, Adam has a rate of 0.032 with your groups.
#
# Why did one rate fall only to a quarter, when the sums ask for an eighth? It has to serve the tables, too, which do not
# ask for less. That is a likely reason; we have not tested it.
#
# Your function and the package of the paper's authors, `mup`, give the same losses and gradients to thirteen digits in
# eight steps. The package writes the rules in another form: it divides what the head reads by the growth, and leaves
# the head's rate alone. That form also works if the head is tied to the token table (table 8 of the paper).
#
# </details>

# %% id="transfer-check" tags=["hide-input"]
# Check: what is said of the record
stays = [best(rule, width) / best(rule, NARROW) for rule in ("µP", "Muon") for width in WIDTHS]
prove("with µP and with Muon the best rate stays, or moves by a factor of two", all(0.4 < one < 2.1 for one in stays))
prove("with its own rate one rate for all is as good as µP, to 0.03",
      -0.03 < loss_at("standard", WIDE) - loss_at("µP", WIDE) <= 0)  # fmt: skip
prove("with µP the narrow rate costs the wide model less than 0.005",
      loss_at("µP", WIDE, best("µP", NARROW)) - loss_at("µP", WIDE) < 0.005)  # fmt: skip
ladders = {
    rule: [[loss_at(rule, width, rate) for width in WIDTHS] for rate in found.rates] for rule in ("standard", "µP")
}
prove("with µP wider is better at each rate", all(ladder == sorted(ladder)[::-1] for ladder in ladders["µP"]))
prove("with one rate the widest is the worst at the two highest rates",
      all(ladder[-1] == max(ladder) for ladder in ladders["standard"][-2:]))  # fmt: skip
prove("Muon has the lowest loss in each width",
      all(loss_at("Muon", width) < min(loss_at("standard", width), loss_at("µP", width)) for width in WIDTHS))  # fmt: skip
loses = {rule: [loss - loss_at(rule, WIDE) for loss in found.values(f"{rule}, width 128", "loss", best(rule, NARROW))]
         for rule in ("standard", "µP", "Muon")}  # fmt: skip
prove("the narrow model's rate costs more with one rate for all than with the others, in every seed",
      min(loses["standard"]) > max(loses["µP"] + loses["Muon"]))  # fmt: skip
gain = loss_at("standard", NARROW) - loss_at("standard", WIDE, best("standard", NARROW))
prove("with the narrow rate the wide model is better by less than 0.1", 0 < gain < 0.1)
prove("at width 16 both are the same",
      all(found.values("standard, width 16", "loss", rate) == found.values("µP, width 16", "loss", rate)
          for rate in found.rates))  # fmt: skip

# %% [markdown] id="answer"
# ## The answer
#
# What rate does a model eight times as wide need? If one rate must serve the whole model: a lower one, and how much lower
# you have to try. If each part has the rate that fits its inputs: the same. So search on a model that trains in a second.
#
# **Who does this.** Yang et al. searched on a GPT of 40 million parameters for one of 6.7 billion. The search cost 7 % of
# one training of the large model, and the large model came out better than the published one. Some of the
# Cerebras-GPT models were trained with µP, too (Dey et al. 2023).
#
# **What it does not answer.** Width is one of several things that grow. With more layers, larger batches or longer
# training the best rate may move again, and these rules say nothing about it. Our widths are tiny, and 80 steps
# are few. Lingle (2024) tried models of up to 10 billion parameters: the rates mostly stay, and he names some cases in
# which they do not.
#
# <details><summary>If you use it: decay, heads, biases</summary>
#
# *Decay.* AdamW takes rate times λ off a weight in each step, so a divided rate also means less decay. `mup`
# multiplies λ by the growth for these matrices. *Heads.* Our wider models have more heads of the same width. If the heads
# themselves get wider, a score is a sum over more products, too, and µP divides it by the width of a head in place of its
# root. *Biases.* torch draws them smaller in wider maps, and µP does not; our model has none.
#
# </details>
#
# **You can now** say of any parameter whether its rate depends on the width, write the groups, and check them in seconds.
#
# **Sources.** Yang et al. 2022, *Tensor Programs V*, arXiv:2203.03466, tables 3 and 8, definition 4.1; its package `mup`.
# Yang, Simon, Bernstein 2023, *A Spectral Condition for Feature Learning*, arXiv:2310.17813. Jordan et al. 2024, *Muon*.
# Dey et al. 2023, *Cerebras-GPT*, arXiv:2304.03208. Lingle 2024, arXiv:2404.05728.
