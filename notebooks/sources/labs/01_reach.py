# %% [markdown] id="title"
# # How far back can learning reach?
#
# *A lab on chapter 1. You should have read [chapter 1](../01_attention.ipynb) as far as self-attention. About
# {minutes} minutes.*
#
# Networks that read a text word by word are said to forget, and attention is said to cure that. Both sentences stand
# in nearly every introduction. What exactly is it that fails, from which distance on, and is it always so? In this lab
# you measure three things that are often told as one: how far a *gradient* reaches, how many *steps* a message takes,
# and how much fits into one *state*.

# %% id="setup" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import CrossAttention, SelfAttention
from course_lib.testing import prove
from coursework import exercises as ex
from coursework.corpora import associative_recall
from coursework.pictures import drawings, show
from coursework.pictures.plots.common import curves, panels
from coursework.pictures.plots.seeds import seed_rows
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="two-readers"
# ## 1 Why a distance should matter at all
#
# A **recurrent** network reads one word after the other. It keeps a *state*, a vector of fixed size, and at each word it
# makes a new state from the old one and the word. RNN, GRU and LSTM are three kinds of such networks; they differ in how
# the new state is made. What the first word said can influence the end of the text only through all the states in
# between.

# %% id="two-readers-drawn" tags=["hide-input"]
# Drawing: a chain of states beside attention
drawings.recurrent_and_attention("the queen near the king paints".split()).show()

# %% [markdown] id="factor"
# A network learns by **gradients**. The gradient of a result for a word says how much the result would change if the
# vector of the word changed a little. If that number is practically zero, the word cannot teach the network anything:
# whatever the network does with it, the loss stays the same.
#
# Along a chain the gradient is passed back from state to state, and each step multiplies it by something. Suppose that
# each step multiplies by one half. After one step a half is left, after two a quarter. **By hand**, for 50 steps:
#
# $$0.5^{50} \approx 0.000\,000\,000\,000\,001 \qquad 0.9^{50} \approx 0.005 \qquad 1.1^{50} \approx 117$$
#
# So a factor a little below one makes the gradient vanish, and a factor a little above one makes it explode. Only
# factors very close to one carry it over fifty words.

# %% id="factor-drawn" tags=["hide-input"]
# Figure: what is left of a gradient that is multiplied by the same factor again and again
steps = torch.arange(0, 101)
left = {str(factor): factor ** steps.double() for factor in (0.5, 0.9, 0.99, 1.1)}
show(
    curves(steps, left, styles=["-"], names="end", yscale="log", xlabel="steps", ylabel="what is left"),
    alt="Four lines on a logarithmic axis over 100 steps. The factor 0.5 has fallen below 1e-15 at step 50, 0.9 to 0.005, "
    "0.99 stays near one, and 1.1 grows beyond 100.",
    caption="Multiplying again and again: only a factor very close to one survives many steps.",
)
prove(
    "the numbers of the example", abs(0.5**50 - 9e-16) < 1e-16 and abs(0.9**50 - 0.005) < 2e-4 and 117 < 1.1**50 < 118
)

# %% [markdown] id="reach-text"
# ## 2 The reach of a gradient, measured
#
# Which factor do real networks have? We take networks as they are before any training, feed them 301 random vectors,
# and ask how much the *last* output depends on the vector `d` positions back. To have a number without a unit, we divide
# by how much the last output depends on the last vector itself. A ratio of one means: as much as on the last one.


# %% id="reach"
def reach(network, distances, T=301, width=32):
    """How much the last output depends on the vector d positions back, as a ratio."""
    x = torch.randn(1, T, width, dtype=torch.float64, requires_grad=True)
    output = network.double()(x)
    output = output[0] if isinstance(output, tuple) else output  # (1, T, width)
    direction = torch.randn(width, dtype=torch.float64)
    (output[0, -1] @ direction).backward()  # one number, made of the last output
    size = x.grad[0].norm(dim=-1)  # (T,): the size of the gradient at each place
    return torch.stack([size[-1 - d] / size[-1] for d in distances])


# %% [markdown] id="networks-text"
# These are the contenders: three recurrent networks with the numbers that PyTorch gives them at the start, one head of
# self-attention, and one LSTM that is changed in a single place. An LSTM has a **forget gate**, a number between 0 and
# 1 for each part of its state, by which the old state is multiplied at each step. At the start the gate is the sigmoid
# of something near zero, and that is about 0.5. The bias of the gate is a parameter. If we set it to 5, the gate starts
# at 0.993, almost fully open.


# %% id="networks"
def open_gate():
    """An LSTM whose forget gate starts almost fully open: sigmoid(5) = 0.993."""
    lstm = nn.LSTM(32, 32, batch_first=True)
    lstm.bias_ih_l0.data[32:64] = 5.0  # rows of the forget gate
    lstm.bias_hh_l0.data[32:64] = 0.0
    return lstm


networks = {
    "RNN": lambda: nn.RNN(32, 32, batch_first=True),
    "GRU": lambda: nn.GRU(32, 32, batch_first=True),
    "LSTM": lambda: nn.LSTM(32, 32, batch_first=True),
    "LSTM, open gate": open_gate,
    "attention": lambda: SelfAttention(32),
}

# %% [markdown] id="reach-question"
# **Predict.** For an ordinary LSTM and a word 50 positions back, is the ratio about 0.5, about 0.01, or far smaller? Which
# of the five networks will be the best at 200 positions? Write it down, then run the cell after it.

# %% id="reach-guess"
ex.predict("reach_of_an_lstm", "")

# %% id="reach-measured" tags=["hide-input"]
# Table: the reach of five untrained networks, geometric mean of five random starts
distances = [1, 2, 5, 10, 20, 50, 100, 200]
reached = {}
for name, make in networks.items():
    runs = []
    for seed in range(5):
        torch.manual_seed(seed)
        runs.append(reach(make(), distances).log())
    reached[name] = torch.stack(runs).mean(0).exp()
print(f"{'places back':>16}" + "".join(f"{d:>8}" for d in distances))
for name, ratios in reached.items():
    print(f"{name:>16}" + "".join(f"{ratio:8.0e}" for ratio in ratios.tolist()))

# %% id="reach-figure" tags=["hide-input"]
# Figure: the same numbers as lines
show(
    curves(
        distances,
        reached,
        xscale="log",
        yscale="log",
        xticks=distances,
        xticklabels=distances,
        ylim=(1e-20, 1e3),
        xlabel="positions back",
        ylabel="ratio",
        size=(6.6, 3.3),
    ),
    alt="The ratio against the distance, both axes logarithmic. RNN, GRU and LSTM fall below 1e-9 by distance 50. "
    "Attention and the LSTM with the open gate stay roughly level up to distance 200.",
    caption="Before training, ordinary recurrent networks lose the gradient within tens of words. Attention does not, "
    "and neither does an LSTM whose forget gate starts open.",
)

# %% id="reach-proof"
at_50 = reached["LSTM"][distances.index(50)]
prove("at 50 positions an ordinary LSTM keeps less than 1e-9", at_50 < 1e-9)
opened, level = reached["LSTM, open gate"], reached["attention"]
prove("with an open gate more than 1 % is left at 200 positions", opened[-1] > 0.01)
varies = level.max() / level.min()
prove("attention's ratio varies by less than a factor of 3", varies < 3)

# %% [markdown] id="reach-says"
# The gate explains it. The main way back through an LSTM is its cell state, and each step along that way multiplies by
# the forget gate. With gates around one half one expects a factor of that size for each step. The number measured at 50
# positions, about 1e-11, is what a factor of 0.6 for each step leaves. With gates of 0.993, 200 steps leave
# $0.993^{200} \approx 0.26$, and that is about what you see as well.
#
# So the sentence *recurrent networks forget because gradients vanish* holds for all three kinds as they come out of the
# box, and it is not a law of recurrence. To start with an open gate is old advice (Gers et al. 2000; Jozefowicz et al.
# 2015). For attention no such care is needed: there is one step between any two positions, so there is nothing to multiply
# again and again.

# %% [markdown] id="learned-text"
# ## 3 Does it matter for learning?
#
# A ratio of 1e-11 is impressive, but it is a statement about a network that has learned nothing yet. Does it keep the
# network from learning? Here is the simplest task that can tell: read a row of random symbols, one of 16, and at the
# end say which one stood *first*. A guess is right one time in 16, or 0.06.


# %% id="first-symbol"
class FirstSymbol(nn.Module):
    """Reads T symbols through one layer and reports the first one at the end."""

    def __init__(self, layer, T, width=32):
        super().__init__()
        self.symbol, self.place = nn.Embedding(16, width), nn.Embedding(T, width)
        self.layer, self.answer = layer, nn.Linear(width, 16)

    def forward(self, symbols):  # (B, T) -> scores (B, 16)
        read = self.layer(self.symbol(symbols) + self.place.weight)
        read = read[0] if isinstance(read, tuple) else read  # (B, T, width)
        return self.answer(read[:, -1])


# %% id="first-train"
def learn_first(layer, T, steps=400, rate=3e-3):
    """Train on random rows; return how often it is right on new ones."""
    model, draw = FirstSymbol(layer, T), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        symbols = torch.randint(16, (64, T), generator=draw)
        loss = F.cross_entropy(model(symbols), symbols[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    symbols = torch.randint(16, (1000, T), generator=draw)
    return (model(symbols).argmax(-1) == symbols[:, 0]).float().mean().item()


# %% [markdown] id="learned-question"
# **Predict.** The first symbol stands 50 positions before the end. Which of these will have learned to report it after 400
# steps: the ordinary LSTM, the LSTM with the open gate, attention?

# %% id="learned-guess"
ex.predict("who_learns_fifty_places", "")

# %% id="learned-live" tags=["hide-input", "atol:0.1"]
# Training, one run of each (the five runs of each stand in the figure below)
for name in ("LSTM", "LSTM, open gate", "attention"):
    torch.manual_seed(0)
    print(f"{name:>16}: right in {learn_first(networks[name](), T=51):.2f} of 1000 new rows")

# %% [markdown] id="learned-more"
# One run may be luck. So the same was trained five times, each with other random numbers and with two learning rates,
# of which the better one counts for each network; and at several distances. The record of these runs comes with the
# course. As a control there is an ordinary LSTM that was trained three times as long: perhaps it only needs time.

# %% id="learned-figure" tags=["hide-input"]
# Figure: five runs for each network and distance, from the record
record = claim("reach_learned")
columns = {"5 back": "5", "20 back": "20", "50 back": "50", "50 back,\nthree times as long": "50, three times as long"}
runs = {
    column: {
        name: record.values(f"{name}, {distance}", "accuracy")
        for name in ("LSTM", "open LSTM", "attention")
        if f"{name}, {distance}" in record.arms
    }
    for column, distance in columns.items()
}
colours = {"LSTM": "#CC79A7", "open LSTM": "#6E6E6E", "attention": "#0072B2"}
show(
    seed_rows(runs, colours=colours, levels={"guessing": 1 / 16}, xlabel="right on new rows", xlim=(0, 1.08)),
    alt="How often each network is right, one dot for each of five runs. At 5 positions back all are right. At 20 and at 50 "
    "all runs of the ordinary LSTM lie at guessing, also after three times as many steps. At 50 those of the LSTM with the "
    "open gate lie between 0.88 and one, and those of attention at one.",
    caption="What the untrained gradient promised is what training delivers. At 20 and 50 positions the ordinary LSTM learns "
    "nothing in this time; the open gate and attention do.",
)
for label in ("LSTM, 50", "LSTM, 50, three times as long", "open LSTM, 50", "attention, 50"):
    low, high = record.range(label, "accuracy")
    print(f"{label:>29}: {low:.2f} to {high:.2f}")

# %% id="learned-rates" tags=["hide-input"]
# Table: the two far-reaching networks at both rates, 50 positions back
for name in ("open LSTM", "attention"):
    for rate in record.rates:
        low, high = record.range(f"{name}, 50", "accuracy", rate)
        print(f"{name:>9}, rate {rate:g}: {low:.2f} to {high:.2f}")

# %% [markdown] id="learned-says"
# The control learned no more than the rest: the ordinary LSTM still guesses after 1200 steps. So for this task, in this
# time, it is not only slower. The open gate mends it, but less surely than attention: at the larger of the two rates one
# of its five runs learned nothing, while every run of attention succeeded at both rates.

# %% [markdown] id="path-text"
# ## 4 The number of steps
#
# The second thing is easier, because one can count it. In one **step** every position may use what it has received so far.
# How many steps pass until the last position knows anything of the first? In a **convolution** of width 5 each position reads
# itself and two neighbours on each side.

# %% id="path-drawn" tags=["hide-input"]
# Drawing: three ways from the first position to the last
drawings.three_ways().show()

# %% [markdown] id="path-measure"
# The picture has seven positions. For longer texts, let a program find the number: run one step after the other, and after
# each ask with a gradient whether the last position depends on the first one yet.


# %% id="path"
def steps_until_reached(step, T):
    """How often `step` must run until the last position depends on the first."""
    torch.manual_seed(0)
    x = torch.randn(1, T, 8, dtype=torch.float64, requires_grad=True)
    h = x
    for count in range(1, T + 1):
        h = step(h)
        (gradient,) = torch.autograd.grad(h[0, -1].sum(), x, retain_graph=True)
        if gradient[0, 0].any():
            return count


# %% id="path-measured" tags=["hide-input"]
# Table: steps from the first position to the last
state, convolution = nn.Linear(8, 8).double(), nn.Conv1d(8, 8, kernel_size=5, padding=2).double()
one_step = {
    "recurrent": lambda h: torch.tanh(h + state(F.pad(h, (0, 0, 1, 0))[:, :-1])),  # one position on
    "convolution": lambda h: torch.tanh(convolution(h.mT).mT),  # (1, 8, T) and back
    "attention": SelfAttention(8).double(),
}
lengths = [8, 16, 32, 64]
counts = {name: [steps_until_reached(step, T) for T in lengths] for name, step in one_step.items()}
print(f"{'places':>12}" + "".join(f"{T:>5}" for T in lengths))
for name, row in counts.items():
    print(f"{name:>12}" + "".join(f"{count:>5}" for count in row))

# %% id="path-proof"
halves = [math.ceil((T - 1) / 2) for T in lengths]
all_but_one = [T - 1 for T in lengths]
both = counts["recurrent"] == all_but_one and counts["convolution"] == halves
prove("T - 1 steps in a recurrent network, half as many in a convolution", both)
prove("attention needs one, however long the text", set(counts["attention"]) == {1})

# %% [markdown] id="path-says"
# This is the column *maximum path length* in table 1 of Vaswani et al. 2017. Convolutions that leave gaps reach
# further, in a number of steps that grows like the logarithm of the length. One condition belongs to the column:
# nothing may be hidden. Under a causal mask the *last* position still reads the first in one step, but the first never
# reads the last.

# %% [markdown] id="bottleneck-text"
# ## 5 How much fits into one state
#
# The third complaint is about size. Before attention, a recurrent network that translates read the whole sentence into
# its last state and then wrote the translation from it. That state has the same few numbers whether the sentence had
# three words or fifty.

# %% id="bottleneck-drawn" tags=["hide-input"]
# Drawing: answering from the last state, and answering by looking again
drawings.one_state_or_all(["C=4", "A=9", "F=1", "B=7"], "A ?", "9").show()

# %% [markdown] id="bottleneck-task"
# The drawing shows our task, called **associative recall**: read a list of pairs, then get one of the keys and say its
# value. There are 16 possible keys and 16 values. The reader above is an LSTM with a state of 32 numbers; the reader
# below lets the question attend to the pairs. Everything else is the same for both.


# %% id="bottleneck-models"
class LastState(nn.Module):
    """Reads the pairs with an LSTM; answers from its last state alone."""

    def __init__(self, width=32):
        super().__init__()
        self.key, self.value = nn.Embedding(16, width), nn.Embedding(16, width)
        self.read = nn.LSTM(width, width, batch_first=True)
        join = nn.Linear(2 * width, 128)
        self.answer = nn.Sequential(join, nn.ReLU(), nn.Linear(128, 16))

    def memory(self, pairs, asked):
        states, _ = self.read(pairs)  # (B, S, width)
        return states[:, -1:]  # (B, 1, width): the last one

    def forward(self, keys, values, questions):
        asked = self.key(questions)  # (B, 1, width)
        memory = self.memory(self.key(keys) + self.value(values), asked)
        return self.answer(torch.cat([memory, asked], dim=-1))  # (B, 1, 16)


# %% id="bottleneck-attention"
class Attending(LastState):
    """The same, but the question attends to all pairs; there is no LSTM."""

    def __init__(self, width=32):
        super().__init__(width)
        self.read = CrossAttention(width)

    def memory(self, pairs, asked):
        return self.read(asked, pairs)  # (B, 1, width)


# %% [markdown] id="bottleneck-question"
# Both are trained for 200 steps on lists of random pairs. Then they get new lists. A second test is harder: some
# combinations of a key with a value are never the answer to a question in training, and only these are asked for. A
# reader that has learned to look things up can do it all the same.
#
# **Predict.** For lists of 1, 2, 4 and 8 pairs: how often will each reader be right on new lists?

# %% id="bottleneck-guess"
ex.predict("recall_of_eight_pairs", "")


# %% id="bottleneck-live" tags=["hide-input", "atol:0.1"]
# Training, one run of each with lists of four pairs
def batch(B, n, draw, split="train"):
    """Keys (B, n), values (B, n), the key asked for (B, 1), its value (B, 1)."""
    task = associative_recall(B, n_pairs=n, n_keys=16, n_values=16, split=split, generator=draw)
    return task.keys, task.values, task.query[:, None], task.target[:, None]


for kind in (LastState, Attending):
    torch.manual_seed(0)
    model, draw = kind(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(200):
        *inputs, target = batch(64, 4, draw)
        loss = F.cross_entropy(model(*inputs).flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for split, name in (("train", "new lists"), ("test", "never asked")):
        *inputs, target = batch(1000, 4, draw, split)
        right = (model(*inputs).argmax(-1) == target).float().mean().item()
        print(f"{kind.__name__:>10}, {name:>11}: right in {right:.2f} of 1000 lists of four")

# %% id="bottleneck-figure" tags=["hide-input"]
# Figure: five runs for each reader and length, from the record
record = claim("bottleneck")
readers = {"attention": "attention", "last state": "state"}
found = {
    measure: {
        n: {words: record.values(f"{name}, {n}", measure) for words, name in readers.items()} for n in (1, 2, 4, 8)
    }
    for measure in ("new lists", "never asked")
}
show(
    panels(
        seed_rows,
        found,
        colours=("#0072B2", "#CC79A7"),
        levels={"": 1 / 16},
        xlabel="right answers",
        ylabel="pairs in the list",
        xlim=(-0.03, 1.05),
        size=(7.0, 3.0),
    ),
    alt="Right answers against the number of pairs, one dot for each of five runs. Attention is near one everywhere. The "
    "last state falls with every doubling of the list on new lists, and for combinations never asked for it is near "
    "0.09 at two pairs and near zero from four pairs on.",
    caption="Five runs each, 200 steps. Attention looks the answer up. The last state falls with each doubling of the "
    "list, and with two pairs or more, hardly answers where a combination was never asked for.",
)

# %% [markdown] id="bottleneck-more"
# It would be tempting to say: 32 numbers are too few for eight pairs. But the figure does not show that. The reader may
# have had too little *time*. So here is a control: lists of eight pairs, six times as many steps, and then also a state
# that is twice as wide.

# %% id="bottleneck-time" tags=["hide-input"]
# Table: eight pairs with more time and a wider state, from the record
rows = (
    ("state of 32, 200 steps", "state, 8"),
    ("state of 32, 1200 steps", "state, 8, six times as long"),
    ("state of 64, 1200 steps", "state, 8, six times as long, 64 wide"),
    ("attention, 200 steps", "attention, 8"),
)
for name, label in rows:
    ranges = [record.range(label, measure) for measure in ("new lists", "never asked")]
    print(f"{name:>24}: new lists {ranges[0][0]:.2f} to {ranges[0][1]:.2f},", end=" ")
    print(f"never asked {ranges[1][0]:.2f} to {ranges[1][1]:.2f}")

# %% [markdown] id="bottleneck-says"
# Both help on new lists. So part of the deficit was time, and part was room; the bottleneck is real, but a single
# number such as “32 is too few” is not what was measured. Something else did not improve. As soon as there is more than
# one pair, the LSTM hardly ever answers for a combination that it was never asked for, at this size and in this time. It
# learned which answers occur with which key. Attention learned to look.

# %% [markdown] id="answer"
# ## The answer
#
# How far back can learning reach? An ordinary recurrent network, as it comes out of the box, reaches back fewer than
# twenty words, because its gradient is multiplied at every step by something like one half. That is a matter of how it
# starts: with an open forget gate it reaches back 200 words and learns what we asked of it at 50. For attention all
# positions are one step away: distance mattered neither to its gradient nor to this task.
#
# Two other things often told with it are separate. The number of steps that a message takes grows with the length for
# a recurrent network and does not for attention. And a state of fixed size has to hold everything before the question
# is known, while attention keeps all keys and values and chooses later. The price of that, memory and work that grow
# with the text, is the subject of [the lab on costs](01_costs.ipynb).
#
# **Sources.** Bahdanau et al. 2014, arXiv:1409.0473, section 1 (the vector of fixed length). Gers, Schmidhuber and
# Cummins 2000, *Learning to Forget*, Neural Computation 12(10); Jozefowicz, Zaremba and Sutskever 2015, *An Empirical
# Exploration of Recurrent Network Architectures*, ICML (the bias of the forget gate). Vaswani et al. 2017,
# arXiv:1706.03762, table 1 (path length). The trained runs: `python benchmarks/claims.py reach_learned bottleneck`.
