# %% [markdown] id="title"
# # Lab: the rate of a wider model
#
# **The question: you found the best learning rate on a small model. What rate does a model eight times as wide need?**
# Nobody can try six rates on a model that takes a month to train. You write one short function that answers the
# question in advance. Then you train a wide model with a rate tried only on a narrow one.
#
# The lab builds on [chapter 8](../08_scaling.ipynb), and on Adam in section 7 of [chapter 6](../06_training.ipynb). It
# takes about {minutes} minutes.

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
from coursework.pictures import palette, show
from coursework.pictures.plots import common, lab_08_width_and_rates
from coursework.records import claim

torch.set_num_threads(1)

# %% [markdown] id="same-rate"
# ## 1 The small model's rate
#
# Here is a small GPT: two layers, characters of Shakespeare, 80 steps of Adam. We trained it in four widths, from 16 to
# 128, each with six rates and five seeds. We call the losses *the record*. A wider model has more heads and a wider
# feed-forward, and nothing else changes. At width 16 the best rate is 0.032.
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
    caption="From width 32 on, twice the width halves the best rate. A mark shows the best of six; shaded is the range of five seeds. "
    f"({found.command})",
)
first = best("standard", NARROW)
print("best rate:", say_best("standard"))
print(f"loss with {first:g}: {loss_at('standard', NARROW):.2f} at width 16, {loss_at('standard', WIDE, first):.2f} at "
      f"width 128, where the best is {loss_at('standard', WIDE):.2f}")  # fmt: skip
print(f"loss at width 16: {loss_at('standard', NARROW):.3f} with {first:g}, "
      f"{loss_at('standard', NARROW, 2 * first):.3f} with {2 * first:g}")  # fmt: skip
prove("at width 128 the best rate is a quarter of that at 16", best("standard", 128) == best("standard", 16) / 4)
prove("from width 32 on, twice the width halves it",
      best("standard", 32) == 2 * best("standard", 64) == 4 * best("standard", 128))  # fmt: skip

# %% [markdown] id="standard-says"
# It is a quarter of 0.032. To keep 0.032 is expensive: the wide model has 46 times as many weights, and its loss is hardly
# lower than that of the narrow one.
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
# **Then Adam takes a step.** Its first step (chapter 6) moves each weight by the rate, whatever the gradient
# is. To raise the sum, it raises the weight of a positive input and lowers that of a negative one. So for one token the n
# changes do not cancel: all push the sum the same way.
#
# **By hand.** Let every input have size 1, and the rate be 0.032. With 16 inputs the sum moves by 16 · 0.032 = 0.5.
# With 128 inputs it moves by 128 · 0.032 = 4.1. Both began below 1. The first has learned something. The second has
# been thrown off course.

# %% id="sums-figure" tags=["hide-input"]
# Figure: the products of a neuron, added up one by one
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


def sum_of_a_move(n, outputs):
    """What the first weights make of n inputs that all move by 1, in the direction that suits the outputs."""
    first, wanted = nn.Linear(n, outputs, bias=False).weight.detach() * 3**0.5, torch.randn(outputs)
    return (first @ (wanted @ first).sign()).square().mean().sqrt().item()


moved_by = {n: (sum_of_a_move(n, 70), sum_of_a_move(n, n)) for n in (16, 128, 1024)}
prove("with 70 outputs the sums grow with the inputs", moved_by[1024][0] > 2 * moved_by[16][0])
prove("with as many outputs as inputs they do not", all(1 < own < 1.7 for _, own in moved_by.values()))

# %% [markdown] id="rule"
# So with eight times as many inputs, a matrix needs an eighth of the rate. A batch has many tokens, and over them the
# changes agree only partly. Even so, the most that a first step can do in our layers grows seven times (section 6).
#
# Why is it a quarter in the record? At width 16, as printed above, 0.064 is almost as good as 0.032. And 0.008 is an eighth
# of 0.064.
#
# Which parameters does this concern? Ask each time: *what is added up here?*
#
# | parameters | what is added up | first weights | rate of Adam |
# |---|---|---|---|
# | matrices inside the layers | n inputs | as torch draws them | divided by the growth of n |
# | the head, from the stream to the tokens | n inputs | torch's, divided by the root of the growth | divided by the growth of n |
# | tables of tokens and positions | nothing: a row is looked up | unchanged | unchanged |
# | biases, weights of norms | nothing | unchanged | unchanged |
#
# The *growth* is the wide model's number of inputs divided by the narrow one's. These rules are called **µP**, the
# *maximal update parametrization* (Yang et al. 2022, table 3): each part moves as far as it can without moving further
# in a wider model.
#
# Why does the head start smaller? During training the gradient moves the stream in the direction in which the head's
# weights point. So the products in the head's sums come to agree. For n products that agree, weights of size 1/√n are
# too large, and 1/n is right.
#
# And the matrices inside the layers? Their outputs grow in number, too. A stream that moves to suit ever more outputs
# agrees only a little with each. The head has 70 outputs in every width.
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
# ## 4 Do activations move equally far at every width?
#
# How would you know that such a function is right? A check that takes seconds is the **coordinate check**. Build the
# model in several widths, take a few steps with the same rate, and look how far the activations have moved. If the rule
# is right, this does not grow with the width.
#
# Below, `rows` holds eight texts of 33 tokens, and `read` all but the last of each. `model.stream` is what the last norm reads.


# %% id="moves"
def moves(width, rule, rate=0.032, last_norm=True):
    """How far stream and logits move in five steps: the root mean square."""
    torch.manual_seed(0)
    model = GPT(width)
    if not last_norm:
        model.norm = nn.Identity()
    groups = mup_groups(model, GPT(16), rate) if rule == "µP" else model.parameters()
    optimizer = torch.optim.Adam(groups, lr=rate, betas=(0.9, 0.95))
    before = model.stream(read), model(read)
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model, rows).backward()
        optimizer.step()
    after = model.stream(read), model(read)
    return [(b - a).square().mean().sqrt().item() for a, b in zip(before, after)]


# %% id="coordinate-check" tags=["hide-input", "picture:10"]
# Figure: how far stream and logits move in five steps, against the width
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
    "With one rate for the whole model both rise, the stream by far the most. With your groups the logits move equally far "
    "and the stream falls to two thirds.",
    caption="With one rate for all, the stream runs away from width 64 on. With your groups nothing grows.",
)  # fmt: skip
at_256 = {rule: values[:, -1].tolist() for rule, values in growth.items()}
prove("one rate: from width 16 to 256 the stream moves over twenty times as far", at_256["standard"][0] > 20)
for rule, (stream, logits) in zip(("one rate:", "your groups:"), at_256.values()):
    print(f"{rule:<12} from width 16 to 256: stream {stream:.2g} times as far, logits {logits:.2g} times")
prove("your groups: the stream moves between two thirds as far and as far, the logits as far to a tenth",
      growth["µP"][0].min() > 0.65 and growth["µP"][0].max() <= 1 and (growth["µP"][1] - 1).abs().max() < 0.11)  # fmt: skip
prove("one rate: the logits move less than four times as far", at_256["standard"][1] < 4)
without = [moves(width, "standard", last_norm=False)[1] for width in (16, 256)]
prove("and without the last norm over a hundred times", without[1] > 100 * without[0])

# %% [markdown] id="coordinates-say"
# The 0.67 is no reason to worry: a wrong rule shows as growth that goes on with each doubling.
#
# Why do the logits with one rate move only four times as far? The norm before the head
# brings every stream back to about the same size. Without it they move over a hundred times as far.


# %% [markdown] id="transfer"
# ## 5 A rate that was only tried on the narrow model
#
# Train the wide model twice with 0.032, the best rate of the narrow one: with one rate for everything, and with your groups.
# The record did not use this seed.


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

# %% [markdown] id="luck"
# Is this luck? Here is the record, with five seeds:


# %% id="transfer-record" tags=["hide-input"]
# Record: loss against rate for four widths, with the groups of µP
def say_kept(rule, called, factor=1):
    kept = best(rule, NARROW)
    print(f"{called:<9} best rate {factor * kept:g} at width 16, {factor * best(rule, WIDE):g} at width 128; "
          f"width 128 with the first {loss_at(rule, WIDE, kept):.2f}, with its own {loss_at(rule, WIDE):.2f}")  # fmt: skip


show(
    lab_08_width_and_rates.loss_by_rate(found, {"µP": "Adam with your groups (µP)"}, WIDTHS),
    alt="Held-out loss against the rate for four widths with µP. The lowest points of all widths are at 0.032 or 0.064, and "
    f"wider is lower. Best rates: {say_best('µP')}.",
    caption="With your groups all four curves reach their lowest points at nearly the same rate.",
)
say_kept("standard", "one rate")
say_kept("µP", "µP")

# %% [markdown] id="transfer-says"
# With your groups the best rate is 0.032 or its neighbour 0.064 in all four widths, and the wide model loses nothing with
# 0.032.
#
# But if you search the rate anew for the wide model, one rate for all ends at least as low as µP:
# 2.45 against 2.47.
# **In our record µP does not make a model better. It saves the search.**
#
# ## 6 Does every optimizer need such groups?
#
# **Muon**, from the [lab on optimizers](06_optimizers.ipynb), makes all singular values of an update about equal to the
# rate. Singular values say how far a matrix can stretch a vector.
#
# **Predict.** The record has a third part. Muon trains the matrices inside the layers, all with one rate. Adam trains the
# rest with your groups and 0.032. At width 16 the best rate of Muon is 0.032. What is it at 128?

# %% id="predict-muon"
ex.predict("rate_of_muon", "")

# %% id="muon-record" tags=["hide-input", "tol:0.02"]
# Record: loss against the rate of Muon; and how far a step can stretch
show(
    lab_08_width_and_rates.loss_by_rate(found, {"Muon": "Muon inside the layers"}, WIDTHS, {"Muon": 2}),
    alt="Held-out loss against the rate of Muon for four widths. The lowest points are at 0.032 for width 16 and at 0.064 for "
    f"the others, and wider is lower. Best rates: {say_best('Muon', 2)}.",
    caption="The rate is that of Muon. From width 32 on the best one is the same.",
)
say_kept("Muon", "Muon", 2)
stretch = {}  # at most, by the first step; the mean of the 12 matrices
for width in (NARROW, WIDE):
    torch.manual_seed(0)
    model = GPT(width)
    loss_of(model, rows).backward()
    slopes = [p.grad for p in model.layers.parameters() if p.dim() == 2]
    steps = {
        "Adam": [slope.sign() for slope in slopes],
        "Muon": [newton_schulz(s, dtype=torch.float32) for s in slopes],
    }
    stretch[width] = {name: statistics.mean(0.032 * torch.linalg.matrix_norm(u, 2).item() for u in updates)
                      for name, updates in steps.items()}  # fmt: skip
    print(f"width {width:>3}, the first step with 0.032 stretches by up to: "
          + ", ".join(f"{name} {by:.2f}" for name, by in stretch[width].items()))  # fmt: skip

# %% [markdown] id="muon-says"
# It moves by one step, to 0.064, and is the same from width 32 on. To keep 0.032 costs the wide model 0.03. The last two
# lines say why: Muon stretches a vector by about the rate, whatever the width is.
#
# <details><summary>Evidence: 360 trainings, and what they share</summary>
#
# Three ways to train, four widths, six rates, five seeds. All runs of a seed see the same text. At width 16 the growth is 1, so µP and one rate for all are the same run. The rate rises in
# 8 steps and falls in the last 40. The loss is measured on 8,192 characters that were not trained on. Muon's rates are
# twice those of the two others; beside it, Adam has a rate of 0.032 with your groups. Muon's
# updates have a factor for the shape of a matrix, 2 for the first map of a feed-forward, which is the same in all widths.
#
# With your groups a wider model is better at each of the six rates. With one rate for all, the widest is the worst at the
# two highest. Muon has the lowest loss in each width.
#
# Your function and the package of the paper's authors, `mup`, give the same losses and gradients to thirteen digits in
# eight steps. The package writes the rules in another form: it divides what the head reads by the growth, and leaves
# the head's rate alone. That form also works if the head is tied to the token table (table 8 of the paper).
#
# </details>

# %% id="transfer-check" tags=["hide-input"]
# Check: the claims about the record
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
cost = loss_at("Muon", WIDE, best("Muon", NARROW)) - loss_at("Muon", WIDE)
prove("the narrow rate of Muon costs the wide model 0.03", round(cost, 2) == 0.03)
prove("from width 32 on the best rate of Muon stays", len({best("Muon", width) for width in WIDTHS[1:]}) == 1)
tied = loss_at("standard", NARROW, 2 * best("standard", NARROW)) - loss_at("standard", NARROW)
prove("at width 16 twice the best rate is as good, to 0.005", tied < 0.005)
prove("the wide model has 46 times as many weights",
      round(sum(p.numel() for p in GPT(WIDE).parameters()) / sum(p.numel() for p in GPT(NARROW).parameters())) == 46)  # fmt: skip
prove("Adam's first step grows seven times", 6.6 < stretch[WIDE]["Adam"] / stretch[NARROW]["Adam"] < 7.5)
prove("at width 16 both are the same",
      all(found.values("standard, width 16", "loss", rate) == found.values("µP, width 16", "loss", rate)
          for rate in found.rates))  # fmt: skip

# %% [markdown] id="answer"
# ## The answer
#
# What rate does a model eight times as wide need? If one rate must serve the whole model: a lower one, and how much lower
# you have to try. If each part has the rate that fits its inputs: the same, to a factor of two. So search on a model that
# trains in a second.
#
# **Who does this.** Yang et al. searched on a GPT of 40 million parameters for one of 6.7 billion. The search cost 7 % of
# one training of the large model, which beat the published one.
#
# **What it does not answer.** With more layers, larger batches or longer
# training the best rate may move again. Our widths are tiny, and 80 steps are few. Lingle (2024) tried models of up to 10
# billion parameters: the rates mostly stay, with exceptions that he names.
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
# Lingle 2024, arXiv:2404.05728.
