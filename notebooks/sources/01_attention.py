# %% [markdown] id="title"
# # 1 Attention
#
# In this notebook you rebuild attention, the operation at the heart of the Transformer. You prove that your version
# equals PyTorch's, and you measure what it costs and where it breaks. Afterwards you can write it, mask it and read
# its maps. It builds on Python and basic PyTorch. Measured: 30 seconds of processor time, 0.7 GB of memory. Run the
# first cell:

# %% id="first-look" tags=["atol:0.001"]
import torch
from course_lib.attention import scaled_dot_product_attention as sdpa

torch.set_num_threads(1)  # the same rounding everywhere

words = ["Mia", "saw", "herself"]
query = torch.tensor([[1.0, 3.0], [1.0, 0.0], [2.0, 0.0]])  # what each word looks for
key = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])  # what each word offers
value = torch.tensor([[3.0, 0.0], [0.0, 4.0], [1.0, 0.0]])  # what each word hands over

output, weights = sdpa(query, key, value, return_weights=True)
for word, row in zip(words, weights):
    shares = [f"{other} {weight:.2f}" for other, weight in zip(words, row)]
    print(f"{word:>8} reads", "   ".join(shares))

# %% [markdown] id="what-just-happened"
# Each word looked at all three words at once and divided its attention among them. (Models work with **tokens**,
# which are words or pieces of words; here one token is one word.) The pronoun "herself" gave most of it to "Mia".
# Nothing here is learned yet: we chose the nine rows by hand so that you can check every number on paper.
#
# The notebook has three parts. First it shows **why** anyone wanted this. Then you **build** it, step by step, until
# it is the function above. Last you **use** it: hide what must not be seen, train a head, count the cost, catch bugs.
#
# Three habits run through the whole course.
#
# - **Predict** before you run a cell. A guess that turns out wrong teaches more than a result that was only read.
# - **Exercises** check themselves and say which mistake you made. The notebook runs to its end even if you solve
#   none.
# - **Nothing is shown to be equal without an assertion.** `prove` below stops the notebook if a claim is false;
#   otherwise it says nothing and remembers it. The table at the end is printed from that memory.

# %% id="imports"
import functools
import itertools
import math
import time

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import exercises as ex
from course_lib import masks, testing
from course_lib.attention import CausalSelfAttention, CrossAttention, QKVProjection, SelfAttention, record_weights
from course_lib.data import associative_recall, noise_floor, noise_tokens, reference_text
from course_lib.explorers import AttentionExplorer, MaskComposer, ProductExplorer
from course_lib.viz import attention_map, attention_steps, live, palette, show

# %% id="prove"
from course_lib.testing import complaint, prove, proved  # prove stops at a false claim

prove("the weights of each word sum to one", torch.allclose(weights.sum(-1), torch.ones(3)))

# %% [markdown] id="letters"
# The same letters name the same sizes in all eight notebooks: **B** sentences in a batch, **T** positions that ask
# (queries), **S** positions that are read (keys), **D** width of a token vector, **E** width of a query or key,
# **E'** width of a value, **H** heads, **V** size of the vocabulary. Above, T = S = 3 and E = E' = 2.

# %% [markdown] id="why"
# ## 1 Why attention
#
# Before 2017 the usual network for text was **recurrent**: it reads one token after the other and keeps a *state*, a
# vector of fixed size that holds all it knows of the past. RNN, GRU and LSTM are three such networks. They were not
# the only ones: convolutional networks read text too (Kalchbrenner et al. 2016; Gehring et al. 2017), and attention
# itself was already used on top of recurrent networks (Bahdanau et al. 2014). What Vaswani et al. proposed in June
# 2017, for translation, was to drop recurrence and convolution and keep attention alone. They called this the
# Transformer.
#
# Two complaints about recurrence are told everywhere: it forgets, and its fixed state is a bottleneck. We measure
# both.

# %% [markdown] id="reach-question"
# ### 1.1 How far back can learning reach?
#
# A network learns by **gradients**: slopes that say how a change here would change the result there. It learns from a
# token only if the gradient reaches it. So take a network as it is before training. Ask how much its *last* output
# depends on the token `d` steps back, compared with the last token itself: the ratio of the two gradients.
#
# > **Predict.** For a default LSTM and a token 50 steps back, is the ratio about 0.5, 0.01, or far smaller?


# %% id="reach"
def reach(network, distances, T=301, width=32):
    """Gradient of the last output for the token d steps back, relative to that for the last token."""
    x = torch.randn(1, T, width, dtype=torch.float64, requires_grad=True)
    output = network.double()(x)  # (1, T, width), or a tuple that starts with it
    output = output[0] if isinstance(output, tuple) else output
    direction = torch.randn(width, dtype=torch.float64)
    (output[0, -1] @ direction).backward()
    size = x.grad[0].norm(dim=-1)  # (T,)
    return torch.stack([size[-1 - d] / size[-1] for d in distances])


# %% id="reach-networks"
def open_gate():
    """An LSTM whose forget gate starts almost fully open: bias 5, sigmoid(5) = 0.993."""
    lstm = nn.LSTM(32, 32, batch_first=True)
    lstm.bias_ih_l0.data[32:64], lstm.bias_hh_l0.data[32:64] = 5.0, 0.0  # rows of the forget gate
    return lstm


networks = {
    "RNN": lambda: nn.RNN(32, 32, batch_first=True),
    "GRU": lambda: nn.GRU(32, 32, batch_first=True),
    "LSTM": lambda: nn.LSTM(32, 32, batch_first=True),
    "LSTM, forget bias 5": open_gate,
    "attention": lambda: SelfAttention(32),
}

# %% id="reach-measured" tags=["tol:0.02"]
distances = [1, 2, 5, 10, 20, 50, 100, 200]
reached = {}
for name, make in networks.items():
    runs = []
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        runs.append(reach(make(), distances).log())
    reached[name] = torch.stack(runs).mean(0).exp()  # geometric mean of three seeds
print(f"{'distance':>20}" + "".join(f"{d:>9}" for d in distances))
for name, ratios in reached.items():
    print(f"{name:>20}" + "".join(f"{ratio:9.0e}" for ratio in ratios.tolist()))

# %% id="reach-figure"
fig, ax = plt.subplots()
for ratios, color in zip(reached.values(), [*palette.series[1:5], palette.query]):
    ax.plot(distances, ratios, marker="o", color=color)
ax.set(xscale="log", yscale="log", ylim=(1e-20, 1e3), ylabel="relative gradient")
ax.set_xlabel("distance to the token (steps)")
ax.set_xticks(distances, distances)
ax.minorticks_off()
names = (
    (23, 1e-13, "RNN", 1),
    (56, 1e-11, "GRU and LSTM", 3),
    (50, 2, "LSTM, forget bias 5", 4),
    (50, 1e-3, "attention", 0),
)
for x, y, name, color in names:
    ax.text(x, y, name, color=palette.series[color])
show(
    fig,
    alt="Relative gradient against distance, both axes logarithmic. RNN, GRU and LSTM fall below "
    "1e-10 by distance 50. Attention and an LSTM with forget bias 5 stay roughly level to "
    "distance 200.",
    caption="Untrained default recurrent networks lose the gradient within tens of steps. "
    "Attention does not, and neither does an LSTM whose forget gate starts open.",
)

# %% id="reach-proof"
at_50 = reached["LSTM"][distances.index(50)]
prove("at distance 50 a default LSTM keeps less than 1e-10 of the gradient", at_50 < 1e-10)
opened, level = reached["LSTM, forget bias 5"], reached["attention"]
prove("an LSTM with forget bias 5 keeps more than 1 % at distance 200", opened[-1] > 0.01)
varies = level.max() / level.min()
prove("attention's gradient varies by less than a factor 3 over distances 1 to 200", varies < 3)

# %% [markdown] id="claim-forgetting"
# > **You will read that** recurrent networks forget because gradients vanish over distance.
#
# *Conditional.* It holds for the default initialisation of all three. It is not a law of recurrence: open the forget
# gate and the gradient survives. (Starting it open is old advice: Gers et al. 2000; Jozefowicz et al. 2015.) What
# attention changes is that no such care is needed, because the path between two tokens has length one.

# %% [markdown] id="path-question"
# ### 1.2 Path length
#
# Count it. In one **step**, every position may use what it received so far. How many steps pass until the last
# position knows anything of the first?
#
# > **Predict** the count for T = 64: a recurrent network, a convolution that sees 5 neighbours, attention.


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


# %% id="path-measured"
torch.manual_seed(0)
state, convolution = nn.Linear(8, 8).double(), nn.Conv1d(8, 8, kernel_size=5, padding=2).double()
steps = {
    "recurrent": lambda h: torch.tanh(h + state(F.pad(h, (0, 0, 1, 0))[:, :-1])),  # one place on
    "convolution, width 5": lambda h: torch.tanh(convolution(h.mT).mT),  # (1, 8, T) and back
    "attention": SelfAttention(8).double(),
}
lengths = [8, 16, 32, 64]
counts = {name: [steps_until_reached(step, T) for T in lengths] for name, step in steps.items()}
print(f"{'T':>22}" + "".join(f"{T:>5}" for T in lengths))
for name, row in counts.items():
    print(f"{name:>22}" + "".join(f"{count:>5}" for count in row))

# %% id="path-proof"
one_by_one = [T - 1 for T in lengths]
two_by_two = [math.ceil((T - 1) / 2) for T in lengths]
prove("a recurrent network needs T - 1 steps from first to last", counts["recurrent"] == one_by_one)
prove("a convolution of width 5 needs half as many", counts["convolution, width 5"] == two_by_two)
prove("attention needs one step, however long the sequence", set(counts["attention"]) == {1})

# %% [markdown] id="path-says"
# So the path grows as T for recurrence, more slowly for convolution, and not at all for attention: Table 1 of the
# 2017 paper (with O(log T) for dilated convolutions). The price stands in the same table: attention compares all
# pairs. Section 7 measures it. One condition: nothing is hidden. Under a causal mask (section 5) the first token
# cannot see the last.

# %% [markdown] id="bottleneck-question"
# ### 1.3 The bottleneck
#
# The second complaint is about size. A recurrent *encoder*, the part of a translator that reads, hands over its last
# state: the same few numbers whether it read one fact or a hundred. Our test is **associative recall**. The network
# reads `n` pairs (key, value), then gets one of the keys and must say its value. Keys and values are drawn from 16
# symbols, so guessing scores 1 in 16. Some combinations of key and value are never asked for in training: on those,
# only a real look-up helps.
#
# > **Predict.** Both networks below train for the same 200 steps. How does recall fall as `n` grows from 1 to 8?


# %% id="bottleneck-models"
class LastState(nn.Module):
    """Reads pairs with an LSTM; answers from its last state alone."""

    def __init__(self, symbols=16, width=32):
        super().__init__()
        self.key, self.value = nn.Embedding(symbols, width), nn.Embedding(symbols, width)
        self.read = nn.LSTM(width, width, batch_first=True)
        self.answer = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, symbols))

    def forward(self, keys, values, questions):
        states, _ = self.read(self.key(keys) + self.value(values))  # (B, S, width)
        memory = states[:, -1:].expand(-1, questions.size(1), -1)  # (B, 1, width) -> (B, T, width)
        return self.answer(torch.cat([memory, self.key(questions)], dim=-1))  # (B, T, symbols)


# %% id="bottleneck-attention"
class Attending(LastState):
    """The same, but each question attends to all pairs; no LSTM."""

    def __init__(self, symbols=16, width=32):
        super().__init__(symbols, width)
        self.read = CrossAttention(width)  # new

    def forward(self, keys, values, questions):
        pairs, asked = self.key(keys) + self.value(values), self.key(questions)
        memory = self.read(asked, pairs)  # new: (B, T, width)
        return self.answer(torch.cat([memory, asked], dim=-1))  # (B, T, symbols)


# %% id="bottleneck-training"
def batch(B, n, generator, split="train"):
    """B examples of n pairs: keys (B, n), values (B, n), the key asked for (B, 1), its value (B, 1)."""
    task = associative_recall(B, n_pairs=n, n_keys=16, n_values=16, split=split, generator=generator)
    return task.keys, task.values, task.query[:, None], task.target[:, None]  # (B,) -> (B, 1)


@torch.no_grad()
def accuracy(model, n, split="test"):
    """Share of right answers on 1000 new examples; "test": pairs never asked for in training."""
    *inputs, answers = batch(1000, n, torch.Generator().manual_seed(999), split)
    return (model(*inputs).argmax(-1) == answers).float().mean().item()


# %% id="bottleneck-train"
def train(model, steps, n, rate=5e-3, seed=0):
    """Train on fresh random examples."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        *inputs, answers = batch(64, n, generator)
        loss = F.cross_entropy(model(*inputs).flatten(0, 1), answers.flatten())  # (B, T, V) -> (B T, V)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# %% id="bottleneck-measured" tags=["atol:0.03"]
recall = {"last LSTM state": [], "attention": []}
for n in (1, 2, 4, 8):
    for name, kind in (("last LSTM state", LastState), ("attention", Attending)):
        torch.manual_seed(0)
        reader = kind()
        train(reader, steps=200, n=n)
        recall[name].append((accuracy(reader, n, "train"), accuracy(reader, n, "test")))
print(f"{'pairs in the list':>34}{1:>7}{2:>7}{4:>7}{8:>7}")
for name, scores in recall.items():
    for column, kind in enumerate(("new lists", "never asked")):
        print(f"{name:>20}, {kind:>12}" + "".join(f"{score[column]:7.2f}" for score in scores))

# %% id="bottleneck-proof"
state, attending = recall["last LSTM state"], recall["attention"]
prove("after 200 steps attention recalls over 98 % of 8 pairs on new lists", attending[-1][0] > 0.98)
prove("attention recalls over 95 % of combinations that were never asked for", attending[-1][1] > 0.95)
prove("after 200 steps the last LSTM state recalls less than 40 % of 8 pairs", state[-1][0] < 0.40)
falls = all(fewer[0] > more[0] for fewer, more in itertools.pairwise(state))
prove("recall from the last LSTM state falls with each doubling of the pairs", falls)

# %% [markdown] id="bottleneck-says"
# The state has 32 numbers, whatever `n`; attention keeps every pair and looks the answer up. On combinations never
# asked for, the LSTM falls to about chance or below it as soon as there is more than one pair. That suggests that it
# learned which answers occur with which key, not how to look one up.
#
# Be careful with the word *capacity*, though. The deficit mixes what 32 numbers can hold with how long it takes to
# learn to hold it. Give the LSTM more time:

# %% id="bottleneck-time" tags=["atol:0.05"]
torch.manual_seed(0)
patient = LastState()
train(patient, steps=1200, n=2)
longer = accuracy(patient, 2, "train")
print(f"two pairs, new lists: {state[1][0]:.2f} after 200 steps, {longer:.2f} after 1200")
prove("with six times the steps the same LSTM recalls two pairs better", longer > state[1][0] + 0.1)

# %% [markdown] id="soft-dictionary"
# ## 2 A dictionary that answers softly
#
# What attention does is look something up. Start from what you know: a Python dictionary compares the question with
# each key and returns the value whose key is *equal*. If none is equal, it fails. It also cannot learn: "equal" has
# no slope, so no gradient says how to change a key to get a better answer.

# %% id="dictionary"
size = {"cat": 4.0, "horse": 160.0, "house": 800.0}  # height in centimetres, more or less
print(size["cat"], size.get("pony"))

# %% [markdown] id="soft-dictionary-vectors"
# Now let keys be vectors, and let the **dot product** say how alike two vectors are: multiply number by number and
# add up. It is large when they point the same way, zero when they are at right angles. A "pony" is mostly horse:

# %% id="dictionary-vectors"
keys = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.2, 1.0]])  # cat, horse, house: (S, E)
heights = torch.tensor([[4.0], [160.0], [800.0]])  # (S, E')
pony = torch.tensor([0.1, 0.9, 0.0])  # (E,)
likeness = keys @ pony  # (S, E) @ (E,) -> (S,)
print("likeness:", [round(score, 2) for score in likeness.tolist()])
print("hard answer:", heights[likeness.argmax()].item())

# %% [markdown] id="soft-dictionary-softmax"
# `argmax` is still all or nothing. Replace it by a mixture: turn the scores into positive **weights** that sum to
# one, and return the weighted average of *all* values. The function that does this is **softmax**: `exp` of each
# score, divided by the sum of all of them. A factor in front of the scores sets how decided it is. (Its inverse is
# called **temperature**.)
#
# > **Predict.** What does the average become when the factor is 0? And when it is very large?

# %% id="dictionary-soft" tags=["atol:0.05"]
for factor in (0.0, 1.0, 5.0, 100.0):
    weights = (factor * likeness).softmax(dim=-1)  # (S,)
    shown = " ".join(f"{weight:.2f}" for weight in weights)
    print(f"factor {factor:3.0f}: weights {shown}, answer {(weights @ heights).item():.1f}")
even, hard = (0 * likeness).softmax(-1), (100 * likeness).softmax(-1)
prove("scores times 0 give the plain average", torch.allclose(even @ heights, heights.mean(0)))
prove("scores times 100 give the hard answer", torch.allclose(hard @ heights, heights[1]))

# %% [markdown] id="soft-dictionary-gradient"
# In between lies what we want. Every key has some influence, so every key gets a gradient and can learn. That is the
# whole trick: **attention is a dictionary look-up made soft, so that the keys, the questions and the values can be
# learned from data.**

# %% id="dictionary-gradient" tags=["atol:0.001"]
learned = keys.clone().requires_grad_()
((learned @ pony).softmax(-1) @ heights).sum().backward()
for name, gradient in zip(size, learned.grad):
    print(f"{name:>5}: {gradient.norm():5.1f}")  # how strongly the answer depends on this key
prove("in a soft look-up every key receives a gradient", bool(learned.grad.abs().sum(-1).gt(0).all()))

# %% exercise="soft_lookup"


# %% exercise="equal_keys"


# %% [markdown] id="three-questions"
# ## 3 Queries, keys and values
#
# In the dictionary someone else chose the keys. In a sentence each token must play all three parts, so each gets
# three vectors:
#
# | vector | the question it answers | in the first cell |
# |---|---|---|
# | **query** | what am I looking for? | "herself" looks for a person |
# | **key** | what can I be found by? | "Mia" can be found as a person |
# | **value** | what do I hand over when I am read? | "Mia" hands over who she is |
#
# Why three and not one? With one vector a token would be most alike to itself and would mostly read itself (measured
# in 3.4). And reading would be symmetric: if "saw" reads "Mia", then "Mia" would read "saw" with the same score.

# %% [markdown] id="embedding"
# ### 3.1 Where the three vectors come from
#
# A token starts as a row of numbers, its **embedding**. In a real model the numbers are learned and mean nothing by
# themselves. Ours have names, so that you can follow them. Here is the running example of this chapter, T = 3 words
# of width D = 5:

# %% id="running-example"
features = ["noun", "verb", "pronoun", "female", "past"]
words = ["Mia", "saw", "herself"]
sentence = torch.tensor(
    [
        [1.0, 0.0, 0.0, 1.0, 0.0],  # Mia: a noun, female
        [0.0, 1.0, 0.0, 0.0, 1.0],  # saw: a verb, past
        [0.0, 0.0, 1.0, 1.0, 0.0],  # herself: a pronoun, female
    ]
)  # (T, D)

# %% [markdown] id="projections"
# Three matrices turn each embedding into a query, a key and a value. Each row of a matrix says what one feature
# contributes. In the two columns of `W_query` and `W_key`, the first stands for "a person", the second for "an
# action".

# %% id="projection-matrices"
# one row a feature: what it looks for, what it offers, what it hands over; (D, E), (D, E), (D, E')
W_query = torch.tensor([[0.0, 3.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
W_key = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
W_value = torch.tensor([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
query, key, value = sentence @ W_query, sentence @ W_key, sentence @ W_value  # (T, D) -> (T, E)
for name, matrix in (("query", query), ("key", key), ("value", value)):
    print(f"{name:>6}:  " + "   ".join(f"{word} {row.tolist()}" for word, row in zip(words, matrix)))

# %% [markdown] id="projections-says"
# These are the nine rows of the very first cell. A noun looks for its action, a verb for a person, a pronoun for a
# person. We set the 30 numbers by hand; training finds such numbers by itself, as section 8 shows, but nobody
# promises that they will have names.
#
# ### 3.2 Five steps, every number shown
#
# Step 1, the projections, is done. Step 2: every query meets every key, and their dot product is the **score**.
#
# > **Predict** by hand: what is the score of "herself" (query) with "Mia" (key)? And of "Mia" (query) with
# > "herself" (key)?

# %% id="explore-products"
ProductExplorer(query, key, words)

# %% id="five-steps-scores"
scores = query @ key.T  # (T, E) @ (E, S) -> (T, S)
print(scores)
by_hand = sum(query[2, e] * key[0, e] for e in range(2))
prove("a score is a dot product of one query and one key", scores[2, 0] == by_hand)
prove("scores are not symmetric: who reads whom matters", scores[2, 0] != scores[0, 2])

# %% [markdown] id="five-steps-scale"
# Step 3: divide by the square root of E, the width of the keys (the paper calls it `d_k`). Section 4 shows why. Step
# 4: softmax along each *row*, so that each query's weights sum to one.

# %% id="five-steps-weights" tags=["atol:0.001"]
E = key.size(-1)
scaled = scores / math.sqrt(E)  # step 3
weights = scaled.softmax(dim=-1)  # step 4: over the keys, the last axis
print(scaled, weights, sep="\n")

# %% [markdown] id="five-steps-average"
# Step 5: each output is the average of the value rows, weighted by the row of weights.
#
# > **Predict.** "herself" came with the value [1, 0]: hardly a person. In which direction does its output move?

# %% id="five-steps-output" tags=["atol:0.001"]
output = weights @ value  # (T, S) @ (S, E') -> (T, E')
for word, before, after in zip(words, value.tolist(), output.tolist()):
    print(f"{word:>8}: own value {before} -> output [{after[0]:.2f}, {after[1]:.2f}]")
same = torch.allclose(output, sdpa(query, key, value))
prove("the five steps give what the library gave in the first cell", same)

# %% id="five-steps-figure"
fig = attention_steps(query, key, value, queries=words)
show(
    fig,
    alt="The five steps with all numbers for Mia, saw, herself: queries, keys and values; their "
    "score matrix; the scores divided by 1.41; the weights after softmax, where herself reads Mia "
    "with 0.77; and the outputs.",
    caption="All of attention on one page: project, compare, scale, normalise, average. Only the "
    "row of weights decides what a word takes from the others.",
)

# %% [markdown] id="formula"
# Written as one formula, with the rows of all words stacked into matrices (equation 1 of the 2017 paper):
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\!\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# Some copies of it lose the root sign in typesetting. It is √d_k, not d_k; section 4 measures the difference.

# %% [markdown] id="explore-attention-question"
# Now turn it over in your hands. Choose a word, switch the scale off and on, change the temperature.
#
# > **Predict** before you touch it: with the scale off, does the largest weight of "herself" grow or shrink?

# %% id="explore-attention"
AttentionExplorer(query, key, value, words, selected=2)

# %% id="explore-attention-check" tags=["atol:0.001"]
unscaled = scores[2].softmax(-1)  # (S,)
print(f"largest weight of 'herself': {weights[2].max():.3f} with the scale, {unscaled.max():.3f} without")
prove("without the scale the largest weight of 'herself' grows", unscaled.max() > weights[2].max())

# %% [markdown] id="ladder"
# ### 3.3 From loops to one line
#
# First write it so that nothing is hidden. Four loops: over queries, over keys, over the width of keys, over the
# width of values.


# %% id="rung-loops"
def attention_loops(query, key, value):
    """Lists of rows (T, E), (S, E), (S, E') -> list of rows (T, E'). Plain Python."""
    outputs = []
    for q in query:
        scores = [sum(a * b for a, b in zip(q, k)) / math.sqrt(len(q)) for k in key]
        top = max(scores)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        weights = [power / total for power in powers]
        columns = zip(*value)  # rows of values -> columns
        outputs.append([sum(w * v for w, v in zip(weights, column)) for column in columns])
    return outputs


loops = torch.tensor(attention_loops(query.tolist(), key.tolist(), value.tolist()))
prove("plain Python loops give the same output", torch.allclose(loops, output))

# %% [markdown] id="rung-loops-says"
# Why `score - top`? It cancels in the division, so the weights do not change. But `exp` of a large score overflows,
# and this keeps every exponent at or below zero. You will see it bite in 3.4.
#
# Then two matrix products replace the loops. All queries are treated at once: nothing in the formula for one word
# waits for another word's result. This is what "parallel" means here.


# %% id="rung-matrices"
def attention_matrices(query, key, value):
    """(T, E), (S, E), (S, E') -> (T, E')."""
    scores = query @ key.T / math.sqrt(query.size(-1))  # (T, E) @ (E, S) -> (T, S)
    return scores.softmax(dim=-1) @ value  # (T, S) @ (S, E') -> (T, E')


matrices = attention_matrices(query, key, value)
prove("two matrix products equal the loops", torch.allclose(matrices, loops))

# %% [markdown] id="rung-batch-question"
# Models work on many sentences at once, so tensors have a leading batch axis. `.T` reverses *all* axes and would mix
# sentences up. `.transpose(-2, -1)` swaps only the last two, so the same line serves a batch, and a batch of heads.


# %% id="rung-batched"
def attention_batched(query, key, value):
    """(..., T, E), (..., S, E), (..., S, E') -> (..., T, E')."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))  # new: (..., E, S) -> (..., T, S)
    return scores.softmax(dim=-1) @ value  # (..., T, S) @ (..., S, E') -> (..., T, E')


torch.manual_seed(0)
B, T, S, E, E_value = 2, 5, 7, 11, 13
q, k, v = torch.randn(B, T, E), torch.randn(B, S, E), torch.randn(B, S, E_value)
one_by_one = torch.stack([attention_matrices(q[b], k[b], v[b]) for b in range(B)])  # (B, T, E')
same = torch.allclose(attention_batched(q, k, v), one_by_one, atol=1e-6)
prove("a batch equals its sentences one by one", same)

# %% [markdown] id="sizes-prime"
# The sizes 2, 5, 7, 11, 13 are different primes on purpose: a product over the wrong axis then fails instead of
# passing by luck. The course's function and PyTorch's own kernel must agree with ours, not only in their outputs but
# in their **gradients**: that is what training uses. `assert_equivalent` checks both, and returns the largest
# differences.

# %% id="rung-library"
for name, other in (("course_lib", sdpa), ("torch", F.scaled_dot_product_attention)):
    found = testing.assert_equivalent(attention_batched, other, q, k, v, names=["query", "key", "value"])
    prove(f"ours equals {name}: outputs and gradients to 1e-5", max(found) < 1e-5)
    small = max(found) < 1e-6
    print(f"{name:>10}: outputs and gradients differ by less than 1e-6: {small}")

# %% [markdown] id="rung-time-question"
# > **Predict.** T = 128 words of width 64. By what factor are two matrix products faster than the loops: 3, 30, 300
# > or more?


# %% id="rung-time" tags=["not-compared:clock"]
def milliseconds(run, repeats=3):
    """The fastest of a few runs, in milliseconds of processor time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(1000 * (time.process_time() - start))
    return min(times)


q, k, v = torch.randn(3, 128, 64)  # (3, T, E) -> three of (T, E)
rows = q.tolist(), k.tolist(), v.tolist()
print(f"loops           {milliseconds(lambda: attention_loops(*rows), 1):10.2f} ms")
print(f"matrix products {milliseconds(lambda: attention_matrices(q, k, v), 20):10.2f} ms")
print(f"fused kernel    {milliseconds(lambda: sdpa(q, k, v, backend='fused'), 20):10.2f} ms")

# %% [markdown] id="rung-memory"
# The loops take of the order of a thousand times as long. Memory can be counted exactly, without a clock. For the
# backward pass PyTorch keeps some tensors. The plain version keeps the whole table of weights, T × S numbers. A
# **fused** kernel computes the table block by block and never stores it (Dao et al. 2022, FlashAttention).


# %% id="rung-memory-backends"
def explicit(*qkv):
    return sdpa(*qkv, backend="explicit")


def fused(*qkv):
    return sdpa(*qkv, backend="fused")


# %% id="rung-memory-measured"
wrong = ""
for n in (128, 256, 512):
    q, k, v = torch.randn(3, 1, 1, n, 64)  # (3, B, H, T, E) -> three of (B, H, T, E)
    plain, blocked = 4 * n * n + 4 * n * 64, 4 * n * 64 + 4 * n  # by formula; a float32 takes 4 bytes
    wrong += complaint(testing.assert_counts, explicit, q, k, v, saved_bytes=plain)
    wrong += complaint(testing.assert_counts, fused, q, k, v, saved_bytes=blocked)
    print(f"n = {n}: explicit {plain:>9,} bytes, fused {blocked:>8,} bytes")
prove("for the backward pass: explicit keeps 4n² + 4nE bytes, fused 4nE + 4n", not wrong)

# %% [markdown] id="rung-memory-says"
# The plain version keeps the table of weights, 4 n² bytes, and the scaled queries. The fused kernel keeps the outputs
# and one number for each row. It repeats the comparisons in the backward pass instead of remembering them. Same
# result, less memory, not fewer comparisons.

# %% [markdown] id="numpy-listing"
# ### 3.4 A popular listing, put to the test
#
# Many introductions show attention as a few lines of NumPy, with the embedding itself as query, key and value. Here
# is that program, with its usual demonstration: three random words of width 4, seed 42.


# %% id="numpy-attention"
def numpy_softmax(scores):
    powers = np.exp(scores)
    return powers / powers.sum(axis=-1, keepdims=True)


def numpy_attention(x):
    """(T, D) -> outputs (T, D), weights (T, T)."""
    query = key = value = x
    scores = query @ key.T / np.sqrt(key.shape[-1])  # (T, D) @ (D, T) -> (T, T)
    weights = numpy_softmax(scores)
    return weights @ value, weights


three_words = np.random.RandomState(42).randn(3, 4)  # (T, D)
output, weights = numpy_attention(three_words)
print(weights.round(3))

# %% id="numpy-attention-check"
tensor = torch.tensor(three_words)
right = np.allclose(output, sdpa(tensor, tensor, tensor).numpy())
prove("the NumPy listing is right for one short sentence", right)

# %% [markdown] id="numpy-overflow-question"
# For this input it is right. Now two inputs that a careful reader would try.
#
# > **Predict.** What happens if the three embeddings are 30 times as long?

# %% id="numpy-overflow"
with np.errstate(over="ignore", invalid="ignore"):  # NumPy would only warn
    _, weights = numpy_attention(30 * three_words)
print(weights.round(3))
print("largest exponent of float64:", math.floor(math.log(np.finfo(np.float64).max)))
tensor = 30 * torch.tensor(three_words)
_, stable = sdpa(tensor, tensor, tensor, return_weights=True)
prove("the NumPy listing's softmax gives NaN on large scores", bool(np.isnan(weights).any()))
prove("the library gives no NaN on the same scores", bool(stable.isfinite().all()))

# %% [markdown] id="numpy-overflow-says"
# `exp` of a score above the printed number is infinite, and infinity divided by infinity is NaN ("not a number"). The
# cure costs one subtraction. Write it yourself:

# %% exercise="stable_softmax"


# %% [markdown] id="numpy-batch-question"
# > **Predict.** The listing gets a batch, shape (2, 3, 4). What happens? And with shape (4, 4, 4)?

# %% id="numpy-batch"
for shape in ((2, 3, 4), (4, 4, 4)):
    x3 = np.random.RandomState(42).randn(*shape)  # (B, T, D)
    try:
        output, _ = numpy_attention(x3)
        right = np.stack([numpy_attention(sentence)[0] for sentence in x3])  # (B, T, D)
        print(shape, "runs; equal to sentence by sentence:", np.allclose(output, right))
    except ValueError as error:
        print(shape, "fails:", str(error).split(":")[0])
wrong = not np.allclose(output, right)
prove("on a batch with three equal sizes the NumPy listing runs and is wrong", wrong)

# %% [markdown] id="numpy-batch-says"
# The second case is the dangerous one: no error, wrong numbers. `.T` reversed all three axes. Repair such a function
# yourself:

# %% exercise="batched_attention"


# %% [markdown] id="no-projections"
# > **You will read that** query, key and value can simply be the embedding.
#
# The program runs, but look at who reads whom. With random embeddings of width D, how much weight does a word give to
# itself? Its fair share among 8 words is one eighth.

# %% id="no-projections-measured" tags=["atol:0.01"]
generator = torch.Generator().manual_seed(0)
own = {}
for D in (4, 16, 64, 256):
    tokens = torch.randn(500, 8, D, generator=generator)  # (B, T, D): 500 sentences of 8 words
    W = torch.randn(2, D, D, generator=generator) / math.sqrt(D)
    _, same = sdpa(tokens, tokens, tokens, return_weights=True)
    _, projected = sdpa(tokens @ W[0], tokens @ W[1], tokens, return_weights=True)
    own[D] = [w.diagonal(dim1=-2, dim2=-1).mean().item() for w in (same, projected)]
    print(f"D = {D:3}: own weight {own[D][0]:.2f} without projections, {own[D][1]:.2f} with random ones")

# %% id="no-projections-proof"
tokens = torch.randn(1, 8, 64, generator=generator)
score_table = tokens @ tokens.mT  # (B, T, T)
prove("without projections the scores are symmetric", torch.allclose(score_table, score_table.mT))
prove("without projections, at width 64, a word gives itself over 95 %", own[64][0] > 0.95)
prove("with random projections a word gives itself about its fair share", abs(own[64][1] - 1 / 8) < 0.02)

# %% [markdown] id="no-projections-says"
# *Imprecise.* Without projections each word mostly reads itself, the more so the wider it is: the layer hardly mixes
# anything. The projections are what makes a word able to look for something other than itself.
#
# ### 3.5 A layer that learns
#
# Put the three matrices into a module, so that an optimizer finds them. One such set of matrices with its attention
# is called a **head**. They have no bias, as in the 2017 paper.


# %% id="own-layer"
class OwnSelfAttention(nn.Module):
    """One head: x (B, T, D) -> (B, T, E)."""

    def __init__(self, d_model, d_key):
        super().__init__()
        self.query = nn.Linear(d_model, d_key, bias=False)
        self.key = nn.Linear(d_model, d_key, bias=False)
        self.value = nn.Linear(d_model, d_key, bias=False)

    def forward(self, x):
        return attention_batched(self.query(x), self.key(x), self.value(x))  # (B, T, D) -> (B, T, E)


# %% id="own-layer-equals"
torch.manual_seed(0)
own_layer, library_layer = OwnSelfAttention(11, 5), SelfAttention(11, 5)
library_layer.projection.load_state_dict(own_layer.state_dict())  # the same weights, not the same luck
pairs = list(zip(own_layer.parameters(), library_layer.parameters()))
x = torch.randn(3, 7, 11)  # (B, T, D)
found = testing.assert_equivalent(own_layer, library_layer, x, parameters=pairs)
prove("with copied weights our layer equals the library's, gradients too", max(found) < 1e-5)
print({name: tuple(p.shape) for name, p in library_layer.named_parameters()})

# %% [markdown] id="own-layer-says"
# The output is as wide as the values. `nn.Linear` stores its matrix as (out, in), the transpose of our `W_query`. So
# the running example fits into the library's layer too:

# %% id="own-layer-example"
by_hand = SelfAttention(5, 2)
hand_made = {"query": W_query, "key": W_key, "value": W_value}
by_hand.load_state_dict({f"projection.{name}.weight": W.T for name, W in hand_made.items()})
same = torch.allclose(by_hand(sentence), sdpa(query, key, value))  # (T, D) -> (T, E)
prove("the library's layer with our hand-made matrices gives the first cell's output", same)

# %% [markdown] id="projection-says"
# In the library the three maps are a module of their own, `QKVProjection`. Queries come from its first input. Keys
# and values come from its second, which is the first unless given:

# %% id="projection-shapes"
projection = QKVProjection(64)
x, context = torch.randn(4, 20, 64), torch.randn(4, 30, 64)  # (B, T, D), (B, S, D)
print("one input: ", [tuple(t.shape) for t in projection(x)])
print("two inputs:", [tuple(t.shape) for t in projection(x[:, :10], context)])

# %% id="shape-demo" tags=["atol:0.0001"]
q, k, v = torch.randn(3, 2, 4, 10, 64)  # (3, B, H, T, E) -> three of (B, H, T, E)
output, weights = sdpa(q, k, v, return_weights=True)  # (B, H, T, E), (B, H, T, S)
sums = weights.sum(-1)
print(tuple(output.shape), tuple(weights.shape), f"row sums {sums.min():.4f} to {sums.max():.4f}")
prove("with leading axes B and H the weights are (B, H, T, S)", weights.shape == (2, 4, 10, 10))

# %% [markdown] id="six-tokens-says"
# A layer returns its output and nothing else. Whoever wants the weights of a pass records them: `record_weights` fills
# a table with the name of each attention inside (here there is one) and its weights. So they are those of the pass that
# ran, not of a second computation.
#
# Below, a fresh head on six tokens, before any training. Its weights are nearly even. Keep this picture in mind for
# section 8.

# %% id="six-tokens" tags=["atol:0.001"]
torch.manual_seed(0)
head = SelfAttention(64, 16)
with record_weights(head) as maps:
    head(torch.randn(1, 6, 64))  # (B, T, D) -> (B, T, E)
(weights,) = maps.values()  # (B, T, T)
print("first row:", " ".join(f"{w:.3f}" for w in weights[0, 0]), " sum", f"{weights[0, 0].sum():.3f}")

# %% [markdown] id="fourth-projection"
# Many texts add a fourth matrix, an **output projection** from width E back to D. In a single head it adds nothing
# that the value matrix could not do, because two linear maps in a row are one. It earns its place with several heads
# (chapter 2).

# %% id="fourth-projection-proof"
W_output = nn.Linear(16, 64, bias=False)
merged = SelfAttention(64, 16, 64)  # values as wide as the tokens
folded = W_output.weight @ head.projection.value.weight  # (D, E') @ (E', D) -> (D, D)
merged.load_state_dict({**head.state_dict(), "projection.value.weight": folded})
x = torch.randn(1, 6, 64)  # (B, T, D)
same = torch.allclose(W_output(head(x)), merged(x), atol=1e-6)
prove("in one head, value and output matrix fold into one", same)

# %% [markdown] id="cross-attention"
# ### 3.6 Two sequences: cross-attention
#
# > **You will read that** queries, keys and values are projections of the same input.
#
# *Imprecise.* That is **self**-attention. In **cross-attention** the queries come from one sequence and the keys and
# values from another, of another length: a translation that looks at its source (chapter 5), or questions that look
# at pairs (section 1.3).

# %% exercise="cross_attention_shapes"


# %% id="cross-attention-run"
B, T, S, D, E = 2, 5, 7, 11, 3
cross = CrossAttention(D, E)
x, context = torch.randn(B, T, D), torch.randn(B, S, D)
with record_weights(cross) as maps:
    output = cross(x, context)  # (B, T, E)
(weights,) = maps.values()  # (B, T, S)
print("output", tuple(output.shape), "weights", tuple(weights.shape))
itself = SelfAttention(D, E)
itself.load_state_dict(cross.state_dict())
prove("cross-attention returns one row a query, as wide as the values", output.shape == (B, T, E))
same = torch.allclose(cross(x, x), itself(x), atol=1e-6)
prove("self-attention is cross-attention of a sequence with itself", same)

# %% [markdown] id="row-sums"
# ### 3.7 Do the weights always sum to one?
#
# > **You will read that** the attention weights of each query sum to one.
#
# Softmax makes it so. Three situations break it: rounding, dropout, and a query that may see nothing (section 5.5).
# **Dropout** sets random weights to zero in training and enlarges the rest. Some libraries return the weights *after*
# it.
#
# > **Predict.** Dropout 0.1 on rows of 50 weights: between which values do the row sums lie?

# %% id="row-sums-measured" tags=["atol:0.02"]
torch.manual_seed(0)
q, k, v = torch.randn(3, 16, 50, 8)  # (3, B, T, E) -> three of (B, T, E)
_, weights = sdpa(q, k, v, return_weights=True)
_, low = sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), return_weights=True)
dropped = F.dropout(weights, 0.1).sum(-1)  # (B, T)
print("float32:  off by less than 1e-6:", bool(((weights.sum(-1) - 1).abs() < 1e-6).all()))
print("bfloat16: off by less than 1e-2:", bool(((low.float().sum(-1) - 1).abs() < 1e-2).all()))
print(f"after dropout: {dropped.min():.2f} to {dropped.max():.2f}, mean {dropped.mean():.2f}")
prove("weights after dropout do not sum to one in training", dropped.max() - dropped.min() > 0.1)

# %% id="row-sums-library"
torch.manual_seed(0)
_, shown = sdpa(q, k, v, dropout=0.1, return_weights=True)
prove("course_lib returns the weights of the same pass, before dropout", torch.allclose(shown, weights))
torch_layer = nn.MultiheadAttention(8, 1, dropout=0.1, batch_first=True)  # starts in training mode
_, returned = torch_layer(q, q, q)  # (B, T, S)
off = (returned.sum(-1) - 1).abs().max()
print("nn.MultiheadAttention in training: rows sum to one:", bool(off < 0.001))
prove("torch's layer returns weights after dropout in training", off > 0.1)

# %% [markdown] id="root"
# ## 4 Why divide by √d_k
#
# A dot product adds up E products. (Papers write `d_k` for E.) The more terms, the larger the sum tends to be. How
# large?

# %% exercise="score_spread"


# %% id="root-spread" tags=["tol:0.02"]
generator = torch.Generator().manual_seed(0)
for E in (4, 16, 64, 256, 1024):
    q, k = torch.randn(2, 4000, E, generator=generator)  # entries with mean 0, variance 1
    spread = (q * k).sum(-1).std()
    print(f"E = {E:4}: standard deviation of q·k {spread:6.2f}, square root of E {math.sqrt(E):6.2f}")

# %% [markdown] id="root-spread-says"
# The variance of one product is 1, and variances of independent terms add up: E in all. So the standard deviation is
# √E, and dividing by √E makes it 1 again, whatever the width. This holds for entries of variance 1, which is what the
# paper's footnote 4 assumes.
#
# What do large scores do to softmax? Three measures of one row of weights:
#
# - the **entropy** in nats, -Σ p log p: how undecided the row is. It is ln S when all weights are equal and 0 when
#   one has everything;
# - the largest weight;
# - the **slope** of softmax: the size of its Jacobian, the table of all ∂pᵢ/∂sⱼ = pᵢ(δᵢⱼ - pⱼ). Where it is zero,
#   no gradient passes.

# %% exercise="attention_entropy"


# %% id="root-jacobian"
def jacobian_size(p):
    """Frobenius norm of the softmax Jacobian: weights (..., S) -> (...)."""
    jacobian = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]  # (..., S, S)
    return jacobian.flatten(-2).norm(dim=-1)


scores = torch.randn(7, generator=generator)  # (S,)
by_autograd = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), scores)  # (S, S)
same = torch.allclose(jacobian_size(scores.softmax(-1)), by_autograd.norm())
prove("the formula for the softmax Jacobian equals autograd's", same)
torn = jacobian_size(torch.tensor([0.5, 0.5, 0.0]))
prove("a row torn between two keys has slope one half", math.isclose(torn, 0.5))

# %% [markdown] id="root-question"
# > **You will read that** already at d_k = 64 unscaled weights are nearly one-hot and their gradients tiny.
#
# > **Predict.** 64 keys, random queries and keys of variance 1. At d_k = 64, is the mean slope smaller without
# > scaling than with it?


# %% id="root-measured" tags=["atol:0.01"]
def row_measures(E, divisor, rows=400, S=64):
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(rows, 1, E, generator=generator), torch.randn(rows, S, E, generator=generator)
    p = ((q @ k.mT)[:, 0] / divisor).softmax(-1)  # (rows, 1, E) @ (rows, E, S) -> (rows, S)
    entropy, top, slope = attention_entropy(p), p.amax(-1), jacobian_size(p)  # (rows,) each
    return [t.item() for t in (entropy.mean(), top.mean(), slope.mean(), slope.median())]


widths = [4, 16, 64, 128, 256, 512, 1024]
divisors = {"nothing": lambda E: 1.0, "√d_k": math.sqrt, "d_k": float}
measured = {name: [row_measures(E, divisor(E)) for E in widths] for name, divisor in divisors.items()}
print(f"{'divided by':>10}{'d_k':>6}{'entropy':>9}{'largest':>9}{'slope, mean':>13}{'median':>9}")
for name, E in itertools.product(divisors, (16, 64, 256, 1024)):
    entropy, top, mean, median = measured[name][widths.index(E)]
    print(f"{name:>10}{E:6}{entropy:9.2f}{top:9.2f}{mean:13.3f}{median:9.4f}")

# %% id="root-figure"
fig, axes = plt.subplots(1, 3, figsize=(7.5, 2.9), sharex=True)
for number, title in enumerate(("entropy (nats)", "largest weight", "mean slope of softmax")):
    ax = axes[number]
    for name, color in (("nothing", palette.key), ("√d_k", palette.query), ("d_k", palette.residual)):
        drawn = [row[number] for row in measured[name]]
        ax.plot(widths, drawn, marker="o", color=color, label=f"by {name}")
    ax.set(title=title, xscale="log", xlabel="d_k", ylim=(0, None))
    ax.set_xticks([4, 64, 1024], [4, 64, 1024])
    ax.minorticks_off()
axes[2].legend(title="scores divided", loc="lower left")
show(
    fig,
    alt="Three panels against d_k from 4 to 1024. Divided by the root, entropy, largest weight "
    "and slope are level. Undivided, entropy falls to 0, the largest weight rises to 1, the slope "
    "rises, then falls.",
    caption="Dividing by the root keeps all three level at every width. Without it the weights "
    "harden, but the mean slope is first larger than with it and falls below it only from about "
    "d_k = 128.",
)

# %% id="root-proof"
entropies = {name: [row[0] for row in rows] for name, rows in measured.items()}
unscaled, scaled = ([row[2] for row in measured[name]] for name in ("nothing", "√d_k"))  # slopes
level = max(entropies["√d_k"]) - min(entropies["√d_k"])
prove("divided by √d_k, the entropy is the same at every width to 0.1 nats", level < 0.1)
falling = sorted(entropies["nothing"], reverse=True)
prove("undivided, the entropy falls with each step in width", entropies["nothing"] == falling)
i, j = widths.index(64), widths.index(128)
prove("at d_k = 64 the mean slope is larger without scaling", unscaled[i] > scaled[i])
smaller = all(a < b for a, b in zip(unscaled[j:], scaled[j:]))
prove("from d_k = 128 on the mean slope is smaller without scaling", smaller)
prove("divided by d_k itself, wide heads are blind", entropies["d_k"][-1] > 0.99 * math.log(64))

# %% [markdown] id="root-says"
# *Half right.* Without scaling the weights do become nearly one-hot, and they do so early. The gradient does not fall
# in step: at 64 the mean slope is larger than with scaling, because a row torn between two keys is as steep as can
# be. The *median* row tells the rest of the story: at 1024 it is close to zero, so most queries have stopped learning
# where to look. Dividing by d_k instead of its root is wrong in the other direction: it makes a wide head blind.
#
# Does it matter for training? The same recall task, one head, with the projections started so that queries have
# variance 1.


# %% id="root-training-model"
class RecallHead(nn.Module):
    """One head reads pairs and answers questions; the scale of the scores can be set."""

    def __init__(self, d_key=16, scale=None, symbols=16, width=32):
        super().__init__()
        self.key, self.value = nn.Embedding(symbols, width), nn.Embedding(symbols, width)
        self.projection, self.answer = QKVProjection(width, d_key, 16), nn.Linear(16, symbols)
        self.scale = scale
        for linear in (self.projection.query, self.projection.key):
            nn.init.normal_(linear.weight, std=width**-0.5)

    def read(self, keys, values, questions):
        query, key, value = self.projection(self.key(questions), self.key(keys) + self.value(values))
        return sdpa(query, key, value, scale=self.scale, return_weights=True)  # (B, T, 16), (B, T, S)

    def forward(self, keys, values, questions):
        return self.answer(self.read(keys, values, questions)[0])  # (B, T, 16) -> (B, T, V)


# %% id="root-training" tags=["atol:0.05"]
trained = {}
for d_key, scale in itertools.product((16, 256, 1024), (None, 1.0)):
    scores = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        head = RecallHead(d_key, scale)
        train(head, steps=100, n=7, rate=3e-3, seed=seed)
        scores.append(accuracy(head, 7))
    trained[d_key, scale] = sum(scores) / 2
    name = "unscaled" if scale else "scaled"
    print(f"d_k = {d_key:4}, {name:>8}: accuracy after 100 steps {trained[d_key, scale]:.2f}")

# %% id="root-training-proof"
gap = {d_key: trained[d_key, None] - trained[d_key, 1.0] for d_key in (16, 256, 1024)}
prove("at d_k = 16 the scale changes little after 100 steps", gap[16] < 0.2)
prove("at d_k = 256 and 1024 the unscaled head learns far less", min(gap[256], gap[1024]) > 0.3)

# %% [markdown] id="root-start"
# And the gradient at the very first step, on the query matrix? If "vanishing gradients" were the whole story, it
# would be smaller unscaled.

# %% id="root-start-measured" tags=["tol:0.01"]
for scale in (None, 1.0):
    torch.manual_seed(0)
    head = RecallHead(256, scale)
    *inputs, answers = batch(64, 7, torch.Generator().manual_seed(0))
    F.cross_entropy(head(*inputs).flatten(0, 1), answers.flatten()).backward()  # (B, T, V) -> (B T, V)
    first = head.projection.query.weight.grad.norm()
    print(f"{'unscaled' if scale else 'scaled':>8}: gradient norm on W_query {first:.2f}")

# %% [markdown] id="root-verdict"
# > **You will read that** scaling by √d_k prevents vanishing gradients.
#
# *Conditional.* It keeps the score spread, the entropy and the slope independent of the width, when queries and keys
# have variance 1. At small widths it changes little. At large widths the unscaled head starts with hardened choices
# and, although its first gradient is even larger, learns slowly. And scaling does not help if the inputs are not of
# unit variance: with token embeddings multiplied by √D, as some models do, a fresh head is saturated in spite of the
# division.

# %% id="root-inputs" tags=["atol:0.01"]
torch.manual_seed(0)
embedded, head = torch.randn(8, 50, 512), SelfAttention(512, 64)  # (B, T, D)
for name, tokens in (("variance 1", embedded), ("times √512", embedded * math.sqrt(512))):
    with record_weights(head) as maps:
        head(tokens)
    (p,) = maps.values()  # (B, T, T)
    entropy = -torch.special.xlogy(p, p).sum(-1).mean()
    top = p.amax(-1).mean()
    print(f"{name}: entropy {entropy:.2f} of {math.log(50):.2f} nats, mean largest weight {top:.2f}")
prove("scaling by √d_k does not save a head whose inputs are √D times too large", top > 0.9)

# %% [markdown] id="masks"
# ## 5 Masks: what must not be seen
#
# A **mask** is a table of booleans, one row a query, one column a key. Here and in `F.scaled_dot_product_attention`,
# **True means "may attend"**. Hidden scores are set to minus infinity before the softmax, so their weight is exactly
# zero.
#
# ### 5.1 The causal mask
#
# A model that learns to predict the next token must not read it. The **causal** mask lets each position see itself
# and what came before.

# %% exercise="causal_mask"


# %% id="causal-rungs"
def causal_loops(T):
    return torch.tensor([[key <= query for key in range(T)] for query in range(T)])  # (T, T)


T = 5
triangle = torch.ones(T, T, dtype=torch.bool).tril()  # True on and below the diagonal
same = torch.equal(causal_loops(T), triangle) and torch.equal(masks.causal_mask(T), triangle)
prove("loops, a lower triangle and the library give one causal mask", same)
print("\n".join("".join("x" if seen else "." for seen in row) for row in triangle))

# %% id="causal-running-example" tags=["atol:0.001"]
_, weights = sdpa(query, key, value, mask=masks.causal_mask(3), return_weights=True)
print(weights)  # Mia, saw, herself
future = weights.triu(diagonal=1)
prove("under a causal mask the weight on later words is exactly zero", future.abs().sum() == 0)
prove("under a causal mask the rows still sum to one", torch.allclose(weights.sum(-1), torch.ones(3)))

# %% [markdown] id="causal-why-once"
# The first word sees only itself. Why is this worth a section? Because of what it buys: **one pass over a sentence of
# T words gives the same outputs as T passes over its beginnings**. So training gets T predictions for the price of
# one.

# %% id="causal-prefixes"
torch.manual_seed(0)
head = CausalSelfAttention(11, 5)
x = torch.randn(2, 7, 11)  # (B, T, D)
whole = head(x)  # (B, T, E)
beginnings = torch.stack([head(x[:, : t + 1])[:, -1] for t in range(7)], dim=1)  # (B, T, E)
prove("a causal pass equals running each beginning alone", torch.allclose(whole, beginnings, atol=1e-6))

# %% [markdown] id="causal-jacobian-question"
# > **You will read that** in attention every token reads every other token in one step.
#
# *Conditional*: only without a causal mask. Do not take that on trust: measure who depends on whom.

# %% exercise="dependency_map"


# %% id="causal-jacobian"
open_head = SelfAttention(11, 5)
without, under = dependencies(open_head, x[0]), dependencies(head, x[0])  # (T, T) each
for open_row, causal_row in zip(without, under):
    print("".join("x" if moved else "." for moved in open_row), end="   ")
    print("".join("x" if moved else "." for moved in causal_row))
prove("without a mask every output depends on every token", bool(without.all()))
lower = torch.equal(under, masks.causal_mask(7))
prove("under a causal mask exactly the lower triangle of outputs and tokens depends", lower)

# %% id="causal-law"
slopes = torch.autograd.functional.jacobian(head, x[0]).abs().sum(dim=(1, 3))  # (T, E, T, D) -> (T, T)
prove("slopes of causal outputs for later tokens are exactly zero", slopes.triu(1).sum() == 0)
prove("the causal head obeys the law assert_causal", not complaint(testing.assert_causal, head, x))

# %% [markdown] id="leak"
# `testing.assert_causal` is the first of the course's **laws**: it changes one token at a time and refuses if any
# earlier output moves. It does not care how the code looks.
#
# ### 5.2 A leak detector that reads no code
#
# Suppose you may not look inside a model, or do not trust the test. Train it on **pure noise**: tokens drawn at
# random, each independent of the others. Nothing can predict noise. On **held-out** tokens, which were not used for
# training, the best average loss is ln V, the entropy of one of V equally likely tokens. A model that gets below it
# has seen the answer.

# %% id="leak-model"
V, T_noise = 11, 13


class NextToken(nn.Module):
    """Predicts the next token with one masked head: tokens (B, T) -> scores (B, T, V)."""

    def __init__(self, mask, width=32):
        super().__init__()
        self.token, self.position = nn.Embedding(V, width), nn.Embedding(T_noise, width)
        self.attention, self.answer = SelfAttention(width), nn.Linear(width, V)
        self.mask = mask

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight  # (B, T, width)
        return self.answer(self.attention(x, mask=self.mask))  # (B, T, V)


# %% id="leak-train"
def loss_on_noise(mask, steps=100):
    """Train on noise; return the held-out loss in nats a token."""
    torch.manual_seed(0)
    model, generator = NextToken(mask), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def loss(B):
        tokens = noise_tokens(B, T_noise + 1, V, generator=generator)
        scores = model(tokens[:, :-1]).flatten(0, 1)  # (B, T, V) -> (B T, V)
        return F.cross_entropy(scores, tokens[:, 1:].flatten())

    for _ in range(steps):
        optimizer.zero_grad()
        loss(32).backward()
        optimizer.step()
    with torch.no_grad():
        return loss(1000).item()  # fresh noise


# %% [markdown] id="leak-question"
# > **Predict.** Four masks: right; off by one (each position also sees the next); no mask at all; and a right mask
# > with one single wrong cell, where the first position sees the second. Which of them will noise expose?

# %% id="leak-measured" tags=["atol:0.02"]
right = masks.causal_mask(T_noise)
one_cell = right.clone()
one_cell[0, 1] = True
off_by_one = torch.ones(T_noise, T_noise, dtype=torch.bool).tril(diagonal=1)
floor = noise_floor(V)  # ln V
losses = {}
tried = {"right": right, "off by one": off_by_one, "no mask": None, "one wrong cell": one_cell}
for name, mask in tried.items():
    losses[name] = loss_on_noise(mask)
    verdict = "leaks" if losses[name] < floor - 0.02 else "clean"
    print(f"{name:>15}: {losses[name]:.2f} nats, floor {floor:.2f}: {verdict}")

# %% id="leak-proof"
prove("on noise, a right causal mask does not beat ln V", losses["right"] > floor - 0.02)
worst = max(losses["off by one"], losses["no mask"])
prove("on noise, a mask off by one and no mask at all fall far below ln V", worst < 0.2 * floor)
prove("on noise, one wrong cell of the mask falls below ln V", losses["one wrong cell"] < floor - 0.05)

# %% [markdown] id="leak-says"
# The detector even finds one wrong cell in the table. The leaking models do not reach zero, because the last position
# has nothing to peek at: its next token is not in the input. That leaves ln V / T. Real data hides such leaks: there,
# a low loss looks like success.

# %% [markdown] id="alignment"
# One more source of off-by-one. With a **cache** of earlier keys there are fewer queries than keys, T < S. The last
# query is the latest word, so it must see every key: the triangle is aligned at the **bottom right**.

# %% id="alignment-shown"
for T, S in ((2, 5), (1, 5)):
    print(f"T = {T}, S = {S}")
    print("\n".join("".join("x" if seen else "." for seen in row) for row in masks.causal_mask(T, S)))
prove("the last query of a causal mask sees every key", bool(masks.causal_mask(2, 5)[-1].all()))

# %% exercise="leaky_attention"


# %% [markdown] id="padding"
# ### 5.3 The padding mask
#
# Sentences differ in length; tensors do not. So short ones are filled up with a **padding** token that means nothing,
# and nobody may read it. The mask has one row for each sentence, not for each query: it hides *keys*, from all
# queries alike.
#
# > **Predict.** In a batch of B sentences of S tokens, which shape must it have to broadcast to the weights (B, H,
# > T, S)?

# %% id="padding-shown"
PAD = 0
tokens = torch.tensor([[7, 3, 9, 4, 2], [5, 8, 0, 0, 0], [6, 1, 4, 0, 0]])  # (B, S)
mask = masks.padding_mask(tokens, PAD)  # (B, 1, 1, S)
print(tuple(mask.shape))
print("\n".join("".join("x" if seen else "." for seen in row) for row in mask[:, 0, 0]))

# %% exercise="padding_mask"


# %% id="padding-proof"
torch.manual_seed(0)
head, table = SelfAttention(11, 5), nn.Embedding(10, 11)
padded = head(table(tokens), mask=mask[:, 0])  # (B, 1, 1, S) -> (B, 1, S): this layer has no head axis
alone = head(table(tokens[1:2, :2]))  # the second sentence without its padding: (1, 2, E)
prove("a padded sentence equals the sentence alone", torch.allclose(padded[1:2, :2], alone, atol=1e-6))


def with_mask(x, real):
    return head(x, mask=real[:, None])  # (B, S) -> (B, 1, S)


law = complaint(testing.assert_padding_invariant, with_mask, torch.randn(3, 5, 11), module=head)
prove("the padding mask obeys the law, also when B = T", not law)

# %% [markdown] id="padding-shape"
# Why the two axes of length 1? Because without them a mask (B, S) is read as (T, S): not "which tokens of sentence b
# are real" but "what query t may see".
#
# > **You will read that** a padding mask of shape (batch, sequence) just works.


# %% id="padding-shape-measured" tags=["atol:0.02"]
def reads_padding(B, S, mask_of):
    """Share of the weight that real queries put on padding; the error if there is one."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, B, S, 8, generator=generator)  # (3, B, S, E) -> three of (B, S, E)
    real = torch.arange(S) < torch.tensor([S - b % 3 for b in range(B)])[:, None]  # (B, S)
    try:
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(real))  # torch's own check of the shape
    except RuntimeError:
        return "an error"
    weights = (q @ k.mT / 8**0.5).masked_fill(~mask_of(real), -math.inf).softmax(-1)  # (B, T, S)
    return round(weights.masked_fill(real[:, None], 0)[real].sum(-1).mean().item(), 2)


for B, S in ((3, 5), (5, 5)):
    print(f"B = {B}, S = {S}: mask (B, S): {reads_padding(B, S, lambda real: real)}", end=", ")
    print(f"mask (B, 1, S): {reads_padding(B, S, lambda real: real[:, None])} of the weight on padding")
prove("a (B, S) mask is misread in silence when B = S", reads_padding(5, 5, lambda real: real) > 0.05)

# %% [markdown] id="padding-shape-says"
# *False.* With one sentence it happens to fit. With several it is an error when their number differs from their
# length, and silently wrong when the two are equal. No library can tell the two readings apart, so build padding
# masks with their axes from the start: `padding_mask` returns (B, 1, 1, S).
#
# ### 5.4 Several masks at once
#
# A model that writes, given padded sentences, needs both: not later *and* not padding. Combine with a logical
# **and**.

# %% exercise="combine_masks"


# %% id="combine-shown"
both = masks.combine_masks(masks.causal_mask(5), masks.padding_mask(tokens, PAD))  # (B, 1, T, S)
print(tuple(both.shape), "second sentence:")
print("\n".join("".join("x" if seen else "." for seen in row) for row in both[1, 0]))
places = itertools.product(range(3), range(5), range(5))
agrees = all(both[b, 0, t, s] == (s <= t and tokens[b, s] != PAD) for b, t, s in places)
prove("the combined mask allows exactly what both allow", agrees)

# %% [markdown] id="mask-composer-question"
# More masks combine in the same way. A **window** lets a query see only the nearest keys.
#
# > **Predict** before you move anything. A sentence of 3 words stands in 5 places. Causal, padding, and a window of
# > 2 latest keys: which query is left with nothing?

# %% id="mask-composer"
MaskComposer(5, tokens=["Mia", "saw", "herself", "PAD", "PAD"], lengths=[5, 3, 1], example=1)

# %% id="mask-composer-check"
window = masks.sliding_window_mask(5, window=2)  # (T, S): itself and the key before
allowed = masks.combine_masks(window, masks.length_mask([3], 5))[0, 0]  # (1, 1, T, S) -> (T, S)
print("window of 2, right padding: empty rows", (~allowed.any(-1)).nonzero().flatten().tolist())
left = torch.tensor([False, False, True, True, True])  # (S,): two pads, then the words
padded_left = masks.combine_masks(masks.causal_mask(5), left[None])  # (T, S), (1, S) -> (T, S)
print("causal, left padding:       empty rows", (~padded_left.any(-1)).nonzero().flatten().tolist())
prove("right masks can still leave a query with nothing to see", not allowed.any(-1).all())

# %% [markdown] id="fills"
# ### 5.5 What to fill in, and the query that sees nothing
#
# How does a library hide a score? Textbook code writes a large negative number over it. Which number?
#
# > **Predict.** Which of the fills below differ from minus infinity on an ordinary row? On a row where everything
# > is hidden?

# %% id="fills-measured" tags=["atol:0.001"]
generator = torch.Generator().manual_seed(0)
row = torch.randn(5, generator=generator)  # (S,)
visible = torch.tensor([True, True, True, False, False])
print(f"{'fill':>6}{'on hidden keys':>16}{'scores near -20000':>20}{'all hidden':>12}{'float16':>9}")
for fill in (0.0, -30.0, -1e4, -1e9, -math.inf):
    ordinary = row.masked_fill(~visible, fill).softmax(-1)[~visible].sum().item()
    extreme = (row - 2e4).masked_fill(~visible, fill).softmax(-1)[~visible].sum().item()
    nothing = row.masked_fill(torch.ones(5, dtype=torch.bool), fill).softmax(-1)[0].item()
    try:
        half = f"{row.half().masked_fill(~visible, fill).softmax(-1)[~visible].sum().item():.2f}"
    except RuntimeError:
        half = "error"
    print(f"{fill:6.0g}{ordinary:16.1e}{extreme:20.2f}{nothing:12.2f}{half:>9}")

# %% id="fills-proof"
same = [row.masked_fill(~visible, fill).softmax(-1) for fill in (-1e9, -math.inf)]
prove("where something is visible, -1e9 and minus infinity agree to the last bit", torch.equal(*same))
prove("-1e9 does not fit into float16", torch.finfo(torch.float16).max < 1e9)
low = row.bfloat16().masked_fill(~visible, -1e9).softmax(-1)[~visible]
prove("-1e9 hides scores in bfloat16", low.sum() == 0)

# %% [markdown] id="fills-says"
# > **You will read that** -1e9 is as good as minus infinity.
#
# *Conditional.* On ordinary rows it is, to the last bit. If everything is hidden it spreads the weight evenly over
# forbidden keys, in silence. In float16 it is an error. Smaller fills leak: weakly at first, totally when visible
# scores are lower still. Minus infinity has one weakness, the empty row: 0/0, NaN. And NaN is contagious.
#
# > **Predict.** Three sentences, one of them nothing but padding. The loss uses only real tokens. How many of the
# > head's three matrices get a NaN gradient?


# %% id="poison"
def filled(query, key, value, mask):
    scores = (query @ key.mT / math.sqrt(query.size(-1))).masked_fill(~mask, -math.inf)  # (B, T, S)
    return scores.softmax(-1) @ value  # (B, T, E')


def added(query, key, value, mask):
    bias = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)  # (B, 1, S)
    return (query @ key.mT / math.sqrt(query.size(-1)) + bias).softmax(-1) @ value  # (B, T, E')


# %% id="poison-measured"
def poisoned(attend):
    """How many of the three matrices hold NaN gradients after one backward pass over real tokens."""
    torch.manual_seed(0)
    head, x = QKVProjection(11, 5), torch.randn(3, 5, 11)  # x: (B, T, D)
    real = torch.arange(5) < torch.tensor([5, 2, 0])[:, None]  # (B, T): the third sentence is all padding
    output = attend(*head(x), mask=real[:, None])  # (B, T, E')
    output[real].sum().backward()  # the loss never touches padding
    return sum(bool(p.grad.isnan().any()) for p in head.parameters())


for name, attend in (("filled with -inf", filled), ("-inf added", added), ("course_lib", sdpa)):
    print(f"{name:>16}: {poisoned(attend)} of 3 matrices have NaN gradients")
fewest = min(poisoned(filled), poisoned(added))
prove("one empty row poisons gradients though the loss never uses it", fewest > 0)
prove("course_lib keeps all gradients finite", poisoned(sdpa) == 0)

# %% [markdown] id="poison-says"
# The loss multiplied the bad rows by zero, and zero times NaN is NaN. One such sentence in a million ends a training
# run. PyTorch's issue 41508, reported in 2020, is about this. `course_lib` opens the empty rows for the softmax and
# sets their weights to zero afterwards, on both backends:

# %% id="empty-rows-law"
B, H, T, S, E, E_value = 2, 3, 5, 11, 7, 13
q, k, v = torch.randn(B, H, T, E), torch.randn(B, H, S, E), torch.randn(B, H, S, E_value)
some = torch.rand(B, 1, T, S, generator=torch.Generator().manual_seed(0)) < 0.3
some[:, :, 1] = False  # the second query sees nothing
law = ""
for backend in ("explicit", "fused"):
    attend = functools.partial(sdpa, backend=backend)
    rows = {"empty rows": some}
    law += complaint(testing.assert_finite, attend, q, k, v, masks=rows, empty_rows_zero=True)
prove("both backends: empty rows give zero, all stays finite, in float32 and bfloat16", not law)

# %% exercise="masked_softmax"


# %% [markdown] id="all-together"
# Now all of it in one function: scale, mask, empty rows, any number of leading axes. This is the chapter's main
# exercise.

# %% exercise="scaled_dot_product_attention"


# %% [markdown] id="order"
# ## 6 Attention does not know the order
#
# Look back at the formula. Positions do not occur in it.

# %% exercise="permuted_tokens"


# %% id="order-measured" tags=["atol:0.001"]
torch.manual_seed(0)
head, x = SelfAttention(11, 5), torch.randn(1, 7, 11)  # (B, T, D)
order = torch.tensor([6, 2, 0, 5, 1, 3, 4])
output, shuffled = head(x), head(x[:, order])  # (B, T, E)
moved = torch.allclose(shuffled, output[:, order], atol=1e-6)
average = torch.allclose(shuffled.mean(1), output.mean(1), atol=1e-6)
print(f"same place, largest difference: {(shuffled - output).abs().max():.2f}")
print("each token's output moved with it:", moved)
print("average over the sentence unchanged:", average)

# %% id="order-proof"
law = complaint(testing.assert_permutation_equivariant, head, x)
prove("self-attention is permutation equivariant", not law)
changed = (shuffled - output).abs().max() > 0.1
prove("self-attention is not permutation invariant: the output at a place changes", changed)
law = complaint(testing.assert_permutation_equivariant, CausalSelfAttention(11, 5), x)
print("with a causal mask:", law.split(", by")[0])
prove("a causal mask breaks the equivariance", law)

# %% [markdown] id="order-says"
# > **You will read that** self-attention is permutation-invariant.
#
# *False.* Reorder the tokens and the outputs are reordered with them: that is **equivariance**. Only a summary of
# them, such as the average, is **invariant**. Both hold only without a causal mask, which makes places differ. So
# word order must be put into the tokens: chapter 3.

# %% [markdown] id="cost"
# ## 7 What it costs
#
# Attention compares all pairs. For a sequence of n tokens that is n² comparisons: twice the length, four times the
# work.
#
# ### 7.1 Counted
#
# Operations and bytes can be counted exactly. A multiplication and an addition count as 2 floating-point operations
# (**FLOPs**). The scores take n · n dot products of width E, the averages again as many: 4 n² E together.

# %% id="cost-flops"
wrong = ""
for n in (64, 128, 256, 512):
    q, k, v = torch.randn(3, 1, 1, n, 16)  # (3, B, H, T, E) -> three of (B, H, T, E)
    wrong += complaint(testing.assert_counts, explicit, q, k, v, flops=4 * n * n * 16)
    print(f"n = {n:3}: {4 * n * n * 16:>10,} FLOPs")
prove("attention of one head takes exactly 4n²E floating-point operations", not wrong)

# %% exercise="attention_memory"


# %% id="cost-bytes"
print("scores in float32, in MiB:   1 head    4 heads")
for n in (1024, 4096, 16384, 131072):
    print(f"n = {n:>7,}            {4 * n * n / 2**20:>10,.0f} {4 * 4 * n * n / 2**20:>10,.0f}")
q, k = torch.randn(2, 1, 4, 1024, 8)  # (2, B, H, T, E) -> two of (B, H, T, E)
scores = q @ k.mT  # (B, H, T, S)
prove("the scores of 4 heads at n = 1024 take 4 · 4n² bytes", scores.nbytes == 4 * 4 * 1024**2)

# %% [markdown] id="cost-context"
# > **You will read that** attention removes forgetting and the bottleneck, in one matrix operation.
#
# *Imprecise.* It trades them for a **context window**: all keys and values must be kept, and the table of scores
# grows with n² unless a fused kernel avoids it. And a fresh head spreads its weight thinly. That a token *can* be
# read in one step does not mean that it *is*.

# %% id="cost-thousand" tags=["tol:0.02"]
torch.manual_seed(0)
n = 1000
for layer in (SelfAttention(64), CausalSelfAttention(64)):
    x = torch.randn(1, n, 64, requires_grad=True)  # (B, T, D)
    layer(x)[0, 0].sum().backward()  # the first output
    size = x.grad[0].norm(dim=-1)  # (T,)
    print(f"{type(layer).__name__}: gradient of the first output")
    print(f"    for the thousandth token {size[-1]:.1e}, mean of those between {size[1:-1].mean():.1e}")
head = SelfAttention(64)
with record_weights(head) as maps:
    head(x)
(weights,) = maps.values()  # (B, T, T)
print(f"largest weight of a fresh head, mean over queries, times n: {weights.amax(-1).mean() * n:.1f}")

# %% id="cost-thousand-proof"
prove("with a causal mask the first output does not depend on the last token at all", size[-1] == 0)
top = weights.amax(-1).mean()
prove("a fresh head spreads its weight: the largest of 1000 is below 1 % on average", top < 0.01)

# %% [markdown] id="cost-time-question"
# ### 7.2 Measured
#
# > **Predict** the exponents: how does the time of the explicit and of the fused version grow with n? As n, as n²,
# > or between? And the memory?

# %% id="cost-time-measured"
lengths = [256, 512, 1024, 2048, 4096]
took = {"explicit": [], "fused": []}
for n in lengths:
    q, k, v = torch.randn(3, 1, 1, n, 64)  # (3, B, H, T, E) -> three of (B, H, T, E)
    for name, run in (("explicit", explicit), ("fused", fused)):
        took[name].append(milliseconds(functools.partial(run, q, k, v)))

# %% id="cost-time" tags=["not-compared:clock"]
fig, ax = plt.subplots()
for name, color in (("explicit", palette.key), ("fused", palette.query)):
    exponent = np.polyfit(np.log(lengths[1:]), np.log(took[name][1:]), 1)[0]  # from 512 on
    ax.plot(lengths, took[name], marker="o", color=color, label=f"{name}: time ~ n^{exponent:.2f}")
ax.set(xscale="log", yscale="log", xlabel="n (tokens)", ylabel="milliseconds, one thread")
ax.set_xticks(lengths, lengths)
ax.minorticks_off()
ax.legend()
show(
    fig,
    alt="Milliseconds against n from 256 to 4096, both axes logarithmic: two nearly straight lines.",
    caption="Neither version is linear in n: the lines are as steep as n² or steeper. The fused "
    "kernel saves memory, not comparisons.",
)

# %% id="cost-memory-exponent" tags=["atol:0.01"]
kept = {"explicit": [], "fused": []}
for n in lengths[:4]:
    q, k, v = torch.randn(3, 1, 1, n, 64)  # (3, B, H, T, E) -> three of (B, H, T, E)
    for name, run, bytes_kept in (("explicit", explicit, 4 * n * n + 256 * n), ("fused", fused, 260 * n)):
        counts = testing.assert_counts(run, q, k, v, saved_bytes=bytes_kept)
        kept[name].append(counts.saved_bytes)
growth = {name: np.polyfit(np.log(lengths[:4]), np.log(sizes), 1)[0] for name, sizes in kept.items()}
print(", ".join(f"{name}: memory ~ n^{value:.2f}" for name, value in growth.items()))
prove("memory kept for the backward pass grows about as n² explicit", growth["explicit"] > 1.8)
prove("memory kept for the backward pass grows as n fused", abs(growth["fused"] - 1) < 0.01)

# %% [markdown] id="cost-crossover-question"
# ### 7.3 When does n² matter?
#
# Attention is not alone. A Transformer layer also multiplies each token by weight matrices: four of D × D around
# attention (query, key, value, output), and a feed-forward block of D × 4D and 4D × D (chapter 4). That work grows as
# n, not n².

# %% exercise="crossover_length"


# %% id="cost-crossover" tags=["atol:0.001"]
from torch.utils.flop_counter import FlopCounterMode


def layer_flops(n, d):
    """FLOPs of one torch encoder layer, counted without computing: (by weights, attention itself)."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        nn.TransformerEncoderLayer(d, 1, 4 * d, batch_first=True)(torch.randn(1, n, d))
    counts = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    return counts["aten.addmm"], counts["aten.bmm"]


for d, multiple in itertools.product((64, 512), (1, 6, 24)):
    matrices, attention_part = layer_flops(multiple * d, d)
    share = attention_part / (matrices + attention_part)
    print(f"d = {d:3}, n = {multiple:2} d: attention takes {share:.2f} of the work")
crossing = [layer_flops(6 * d, d) for d in (64, 512)]
prove("attention and weights cost the same at n = 6d", all(a == b for a, b in crossing))

# %% [markdown] id="cost-crossover-says"
# At n = d attention is a small part of the arithmetic. It is half at n = 6d, for any d. For a model of width 768, as
# BERT-base or the smallest GPT-2, that is 4,608 tokens; they read at most 512 and 1,024 (Devlin et al. 2018; Radford
# et al. 2019). Long contexts changed that. (Arithmetic is not all: the softmax and the n² memory traffic come on
# top.)
#
# ### 7.4 Faster than a recurrent network?
#
# > **You will read that** a Transformer is faster than an RNN, because it is parallel.
#
# > **Predict.** Sequences of 512 tokens of width 64, batch of 16, forward and backward, on one CPU thread:
# > PyTorch's LSTM against one Transformer encoder layer. Which is faster?

# %% id="recurrent-loop"
cell = nn.LSTMCell(64, 64)


def lstm_loop(x):
    """The arithmetic of an LSTM as a Python loop: x (B, T, D) -> (B, T, D)."""
    h = c = torch.zeros(x.size(0), 64)
    outputs = []
    for token in x.unbind(dim=1):
        h, c = cell(token, (h, c))
        outputs.append(h)
    return torch.stack(outputs, dim=1)


# %% id="cost-recurrent" tags=["not-compared:clock"]
lstm = nn.LSTM(64, 64, batch_first=True)
encoder = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
readers = {
    "LSTM": lambda x: lstm(x)[0],
    "LSTM, Python loop": lstm_loop,
    "one attention head": SelfAttention(64),
    "encoder layer": encoder,
}
print(f"{'milliseconds at T =':>22}{32:>8}{128:>8}{512:>8}")
for name, reader in readers.items():
    inputs = [torch.randn(16, T, 64) for T in (32, 128, 512)]
    spent = [milliseconds(lambda read=reader, x=x: read(x).sum().backward(), 2) for x in inputs]
    print(f"{name:>22}" + "".join(f"{ms:8.1f}" for ms in spent))

# %% [markdown] id="cost-recurrent-says"
# *Conditional.* On one thread, at 512 tokens, the library's LSTM is the faster one: it does less arithmetic, n
# instead of n². The Transformer's advantage is that few steps must **wait for each other** (section 1.2). Hardware
# that does thousands of things at once, a GPU, turns that into time; one CPU thread cannot. The 2017 paper argues
# with sequential operations too (its Table 1), and its training times are for eight GPUs (its section 5.2).

# %% id="cost-sequential"
calls = []
handle = cell.register_forward_hook(lambda *_: calls.append(1))
chain = {}
for T in (32, 128, 512):
    calls.clear()
    lstm_loop(torch.zeros(1, T, 64))
    chain[T] = len(calls)
handle.remove()
print("cell calls that must wait for each other:", chain)
waits = all(count == T for T, count in chain.items())
prove("an LSTM over T tokens is a chain of T cell calls, each waiting for the last", waits)

# %% [markdown] id="training"
# ## 8 Train one head, and read its map
#
# Until now we set the weights by hand or not at all. Now let gradient descent find them. The task is associative
# recall once more, with lists of 7 pairs. We know which pair each question should look at, so we can *check* the map
# instead of admiring it.
#
# (Maps are often shown with a pronoun that finds its noun, like our "herself". In a real model that needs a trained
# language model, and one map is one example, not a proof. Here the right place is known for every question.)

# %% id="training-before"
torch.manual_seed(0)
model = RecallHead(d_key=8)
symbols = "ABCDEFGHIJKLMNOP"
story, contents, _, _ = batch(1, 7, torch.Generator().manual_seed(5))  # (1, S)
asked = story[:, [4, 0, 6, 2, 1]]  # five of its keys: (1, T)
pair_names = [f"{symbols[k]}={v}" for k, v in zip(story[0], contents[0].tolist())]
question_names = [f"{symbols[k]}?" for k in asked[0]]
_, before = model.read(story, contents, asked)  # (B, T, S)
print("pairs:", "  ".join(pair_names), "   questions:", "  ".join(question_names))

# %% [markdown] id="training-question"
# > **Predict.** The training below takes about a second. Afterwards, will a row of the map be spread over several
# > pairs, or hold one dark cell?

# %% id="training-run" tags=["atol:0.02"]
start = accuracy(model, 7)
train(model, steps=300, n=7, rate=1e-2)
end = accuracy(model, 7)
_, after = model.read(story, contents, asked)
print(f"accuracy on pairs never asked for: {start:.2f} before, {end:.2f} after (chance {1 / 16:.2f})")
prove("one trained head answers over 95 % of questions that were never asked in training", end > 0.95)

# %% id="training-maps"
fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.0))
for ax, weights, title in ((axes[0], before, "before training"), (axes[1], after, "after training")):
    attention_map(weights[0].detach(), queries=question_names, keys=pair_names, ax=ax, title=title)
show(
    fig,
    alt="Two attention maps, five questions by seven pairs. Before training the weights are "
    "spread over many pairs. After training each row has one dark cell, at the pair whose key the "
    "question names.",
    caption="Training turns a diffuse map into a look-up: each question puts nearly all its "
    "weight on the pair that holds its key.",
)

# %% id="training-map-check" tags=["atol:0.01"]
*inputs, answers = batch(1000, 7, torch.Generator().manual_seed(999), "test")
with torch.no_grad():
    _, weights = model.read(*inputs)  # (B, 1, S)
right_pair = inputs[0][:, None, :] == inputs[2][:, :, None]  # (B, 1, S) == (B, 1, 1) -> (B, 1, S)
share = weights[right_pair].mean().item()
print(f"mean weight on the pair asked for, over 1000 held-out lists: {share:.2f}")
prove("the trained head puts over 95 % of its weight on the pair asked for", share > 0.95)

# %% [markdown] id="training-live-question"
# How narrow can the head be? Its width d_key is the number of directions in which 16 keys must be told apart.
#
# > **Predict** the accuracy with d_key = 1 and with d_key = 2. Then train with other widths and numbers of pairs.


# %% id="training-live"
def retrain(pairs, d_key):
    """Train a fresh head for a moment and draw its map."""
    torch.manual_seed(0)
    fresh = RecallHead(d_key=d_key)
    train(fresh, steps=150, n=pairs, rate=1e-2)
    keys, values, _, _ = batch(1, pairs, torch.Generator().manual_seed(5))
    asked = keys.roll(1, dims=1)[:, :5]  # (1, T)
    _, weights = fresh.read(keys, values, asked)  # (B, T, S)
    names = [f"{symbols[k]}={v}" for k, v in zip(keys[0], values[0].tolist())]
    ax = attention_map(weights[0].detach(), queries=[f"{symbols[k]}?" for k in asked[0]], keys=names)
    ax.set_title(f"{pairs} pairs, d_key = {d_key}: accuracy {accuracy(fresh, pairs):.2f}")
    return ax.figure


# %% id="training-live-widget"
live(
    retrain,
    pairs=(2, 12),
    d_key=ipywidgets.SelectionSlider(options=[1, 2, 4, 8, 16], value=2),
    alt="Attention map of a freshly trained narrow head. Most questions put most of their weight "
    "on the pair that holds their key; some spread it over pairs with similar keys.",
    caption="A head of width 2 must tell 16 keys apart on a plane: most questions find their "
    "pair, some waver between neighbours.",
)

# %% id="training-widths" tags=["atol:0.04"]
narrow = {}
for d_key in (1, 2, 4):
    torch.manual_seed(0)
    fresh = RecallHead(d_key=d_key)
    train(fresh, steps=150, n=7, rate=1e-2)
    narrow[d_key] = accuracy(fresh, 7)
    print(f"d_key = {d_key}: accuracy {narrow[d_key]:.2f}")
prove("one direction is not enough for 16 keys, four are", narrow[1] < 0.6 < 0.95 < narrow[4])

# %% [markdown] id="maps"
# ### 8.1 Reading maps, and what they do not say
#
# | pattern | what it says | what it does not say |
# |---|---|---|
# | one dark cell in a row | this query takes nearly one value | that this value matters for the answer |
# | an even row | it takes the plain average | that the head is useless; a fresh head looks like this |
# | a dark diagonal | tokens mostly read themselves | that they need nothing else |
# | a triangle | there is a causal mask | anything about meaning |
#
# Each is produced on purpose below, with its entropy.


# %% id="maps-patterns" tags=["atol:0.02"]
def map_of(head, x):
    with record_weights(head) as maps:
        head(x)
    (weights,) = maps.values()
    return weights[0]  # (B, T, T) -> (T, T)


torch.manual_seed(0)
x = torch.randn(1, 8, 64)  # (B, T, D)
patterns = {
    "uniform: a fresh head": map_of(SelfAttention(64), x),
    "diagonal: no projections": sdpa(x, x, x, return_weights=True)[1][0],
    "triangle: causal, fresh": map_of(CausalSelfAttention(64), x),
    "sparse: the trained head": after[0],
}
for name, weights in patterns.items():
    entropy = -torch.special.xlogy(weights, weights).sum(-1).mean()
    top = weights.amax(-1).mean()
    most = math.log(weights.size(-1))
    print(f"{name:>26}: entropy {entropy:.2f} of {most:.2f} nats, mean largest weight {top:.2f}")

# %% id="maps-figure"
fig, axes = plt.subplots(1, 4, figsize=(7.5, 2.4))
for ax, (name, weights) in zip(axes, patterns.items()):
    ax.imshow(weights.detach(), cmap=palette.sequential, vmin=0, vmax=1)
    ax.set_title(name.replace(": ", "\n"), fontsize=9)
    ax.set(xticks=[], yticks=[], xlabel="key")
    ax.grid(False)
axes[0].set_ylabel("query")
show(
    fig,
    alt="Four small attention maps: nearly even; dark on the diagonal; even below the diagonal "
    "and empty above it; one dark cell a row.",
    caption="The even map of a fresh head and the triangle of a causal one say nothing about "
    "meaning: they are there before any training. Only the last map was learned.",
)

# %% [markdown] id="maps-causes"
# > **You will read that** the weights show why the model decided.
#
# *Imprecise.* They say how much of each value was mixed in, in this layer. They are not unique, and not causes. Take
# 11 values of width 3. There are many ways to mix 11 vectors into the same average, so a very different map can give
# the same output (an idea of Jain & Wallace 2019).

# %% id="maps-causes-measured" tags=["atol:0.001"]
generator = torch.Generator().manual_seed(43)  # an example with a clear winner
values = torch.randn(11, 3, generator=generator, dtype=torch.float64)  # (S, E')
weights = (2 * torch.randn(11, generator=generator, dtype=torch.float64)).softmax(-1)  # (S,)
kept_fixed = torch.cat([values, torch.ones(11, 1)], dim=1).T  # (E' + 1, S): the average, and the sum
other = torch.linalg.pinv(kept_fixed) @ (kept_fixed @ weights)  # (S,): smallest sum of squares
print("weights:      ", " ".join(f"{w:.2f}" for w in weights))
print("other weights:", " ".join(f"{w:.2f}" for w in other))

# %% id="maps-causes-proof"
same = torch.allclose(weights @ values, other @ values)
prove("two very different maps can give the same output", same)
proper = bool((other > 0).all()) and math.isclose(other.sum(), 1)
prove("the other map is a proper one: positive, summing to one", proper)
prove("the two maps do not even agree on the most important token", weights.argmax() != other.argmax())

# %% [markdown] id="maps-erase"
# To learn what a token *does*, take it away and look at the answer. For our trained head map and effect agree,
# because its one job is to copy:


# %% id="maps-erase-measured" tags=["atol:0.02"]
def answers_without(hide):
    """Accuracy when the question may not see some pairs: hide is bool (B, 1, S)."""
    keys, values, questions = inputs
    pairs = model.key(keys) + model.value(values)  # (B, S, width)
    query, key, value = model.projection(model.key(questions), pairs)
    output = sdpa(query, key, value, mask=~hide)  # (B, 1, E')
    return (model.answer(output).argmax(-1) == answers).float().mean().item()


wrong_pair = right_pair.roll(1, dims=-1)  # some pair that was not asked for
nothing = torch.zeros_like(right_pair)
hidden = {"nothing": nothing, "another pair": wrong_pair, "the pair asked for": right_pair}
erased = {name: answers_without(hide) for name, hide in hidden.items()}
for what, score in erased.items():
    print(f"hidden: {what:>18}   accuracy {score:.2f}")
prove("hiding the pair that has the weight destroys the answer", erased["the pair asked for"] < 0.15)
prove("hiding another pair changes nothing", erased["another pair"] > 0.95)

# %% [markdown] id="maps-depth"
# > **You will read that** early layers attend evenly and later layers sharply.
#
# *Imprecise.* Untrained, all layers are nearly even. Trained, it depends on the model. Here is a causal character
# model of two layers, one head each, on English technical prose. (Chapter 5 builds such models; here only the two
# maps matter.)


# %% id="maps-depth-model"
def network(D):
    return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))


class TwoLayers(nn.Module):
    """Next-character model: two causal heads, each followed by a small network on each position."""

    def __init__(self, symbols, length, D=64):
        super().__init__()
        self.token, self.position = nn.Embedding(symbols, D), nn.Embedding(length, D)
        self.heads = nn.ModuleList(CausalSelfAttention(D) for _ in range(2))
        self.networks = nn.ModuleList(network(D) for _ in range(2))
        self.norms, self.answer = nn.ModuleList(nn.LayerNorm(D) for _ in range(2)), nn.Linear(D, symbols)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight  # (B, T, D)
        for head, think, norm in zip(self.heads, self.networks, self.norms):
            mixed = head(norm(x))  # (B, T, D)
            x = x + mixed + think(x + mixed)
        return self.answer(x)


# %% id="maps-depth-text"
text = reference_text()[:300_000]
number = {character: n for n, character in enumerate(sorted(set(text)))}
ids = torch.tensor([number[character] for character in text])
cut, length = 270_000, 32  # the rest of the text is held out


def windows(low, high, B, generator):
    """Random pieces of text: inputs (B, T), and the characters that follow them (B, T)."""
    start = torch.randint(low, high - length - 1, (B, 1), generator=generator)
    piece = ids[start + torch.arange(length + 1)]  # (B, 1) + (T + 1,) -> (B, T + 1)
    return piece[:, :-1], piece[:, 1:]


@torch.no_grad()
def entropy_by_layer(reader):
    with record_weights(reader) as maps:
        reader(windows(cut, len(ids), 64, torch.Generator().manual_seed(9))[0])
    return [-torch.special.xlogy(w, w).sum(-1).mean().item() for w in maps.values()]


# %% id="maps-depth-trained"
torch.manual_seed(0)
reader, generator = TwoLayers(len(number), length), torch.Generator().manual_seed(0)
optimizer = torch.optim.Adam(reader.parameters(), lr=5e-3)
fresh = entropy_by_layer(reader)
for _ in range(200):
    tokens, targets = windows(0, cut, 16, generator)
    loss = F.cross_entropy(reader(tokens).flatten(0, 1), targets.flatten())  # (B, T, V) -> (B T, V)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
by_layer = entropy_by_layer(reader)

# %% id="maps-depth-measured" tags=["atol:0.3"]
even = sum(math.log(seen) for seen in range(1, length + 1)) / length  # causal rows without any preference
print(f"even rows: {even:.1f} nats")
print(f"untrained: layer 1 {fresh[0]:.1f}, layer 2 {fresh[1]:.1f}")
print(f"trained:   layer 1 {by_layer[0]:.1f}, layer 2 {by_layer[1]:.1f}")
prove("before training both layers are even to within 5 %", min(fresh) > 0.95 * even)
sharper = by_layer[0] < by_layer[1] - 0.3
prove("in this trained model the first layer attends more sharply than the second", sharper)

# %% [markdown] id="museum"
# ## 9 Bug museum
#
# The bugs below run without an error, and with most of them the loss still goes down. Some have public records, named
# in the sources. For each: read, predict what is wrong, run. What finds them is not a closer look but a **law** that
# says what must never happen.

# %% [markdown] id="museum-training-only-question"
# **Exhibit 1.** A causal head. *When is it not causal?*


# %% id="museum-training-only" tags=["tol:0.02"]
class Exhibit1(SelfAttention):
    def forward(self, x):
        mask = masks.causal_mask(x.size(1)) if self.training else None
        return super().forward(x, mask=mask)


torch.manual_seed(0)
x = torch.randn(3, 5, 11)  # (B, T, D)
found = complaint(testing.assert_causal, Exhibit1(11, 7), x)
print(found)
prove("museum 1: a mask used only while training is caught by assert_causal", "eval mode" in found)

# %% [markdown] id="museum-training-only-says"
# The training loss is honest, the evaluation cheats and looks splendid. The law runs both modes.
#
# **Exhibit 2.** A layer that accepts a padding mask. *What does it do with it?*


# %% id="museum-unused" tags=["tol:0.02"]
class Exhibit2(SelfAttention):
    def forward(self, x, mask=None):
        query, key, value = self.projection(x)
        return sdpa(query, key, value)


layer = Exhibit2(11, 7)


def use(x, real):
    return layer(x, mask=real[:, None])  # (B, T) -> (B, 1, T)


found = complaint(testing.assert_padding_invariant, use, x, module=layer)
print(found)
prove("museum 2: a mask that is never used is caught by assert_padding_invariant", found)

# %% [markdown] id="museum-polarity-question"
# **Exhibit 3.** PyTorch has two attention interfaces. In `F.scaled_dot_product_attention` True means "may attend".
# *Which of the two masks below does `nn.MultiheadAttention` want?*

# %% id="museum-polarity" tags=["atol:0.02"]
layer = nn.MultiheadAttention(11, 1, batch_first=True).eval()
real = torch.arange(5) < torch.tensor([5, 3, 2])[:, None]  # (B, S), True = a real token
for name, mask in (("real", real), ("~real", ~real)):
    _, weights = layer(x[1:], x[1:], x[1:], key_padding_mask=mask[1:])  # (B, T, S)
    on_padding = weights[1, :, 2:].sum(-1).mean()  # of the third sentence
    print(f"key_padding_mask = {name:>5}: weight on padding {on_padding:.2f}")


# %% id="museum-polarity-law"
def swapped(x, real):
    return layer(x, x, x, key_padding_mask=real, need_weights=False)[0]  # (B, T, D)


def inverted(x, real):
    return layer(x, x, x, key_padding_mask=~real, need_weights=False)[0]  # new: ~


found = complaint(testing.assert_padding_invariant, swapped, x, module=layer)
prove("museum 3: swapped polarity is caught by assert_padding_invariant", found)
found = complaint(testing.assert_padding_invariant, inverted, x, module=layer)
prove("museum 3: the inverted mask obeys the law", not found)

# %% [markdown] id="museum-polarity-says"
# In `nn.MultiheadAttention` and `nn.TransformerEncoder` True means "is hidden". The wrong mask attends to padding and
# to nothing else.
#
# **Exhibit 4.** A model for half precision. *The fill is minus a billion. What happens in float16?*


# %% id="museum-half" tags=["tol:0.02"]
def exhibit4(query, key, value, mask):
    scores = (query @ key.mT / math.sqrt(query.size(-1))).masked_fill(~mask, -1e9)  # (B, T, S)
    return scores.softmax(-1) @ value  # (B, T, E')


half = torch.randn(1, 5, 8).half()  # (B, T, E)
try:
    exhibit4(half, half, half, masks.causal_mask(5))
except RuntimeError as error:
    print("float16: overflow" if "overflow" in str(error) else error)
some = masks.causal_mask(5)
some[3] = False  # the fourth query sees nothing
rows, qkv = {"an empty row": some}, torch.randn(3, 1, 5, 8)  # (3, B, T, E)
found = complaint(testing.assert_finite, exhibit4, *qkv, masks=rows, empty_rows_zero=True)
print("float32:", found)
prove("museum 4: -1e9 invents an output for an empty row, and assert_finite sees it", found)

# %% [markdown] id="museum-shape-question"
# **Exhibit 5.** Tested with one sentence at a time, where it is right. *Then someone feeds five sentences of five
# words.*


# %% id="museum-shape" tags=["tol:0.02"]
def exhibit5(x, real):
    """x (B, T, D), real (B, T) -> (B, T, D)."""
    scores = x @ x.mT / math.sqrt(x.size(-1))  # (B, T, T)
    return scores.masked_fill(~real, -math.inf).softmax(-1) @ x  # (B, T, D)


five = torch.randn(5, 5, 11)  # (B, T, D) with B = T
found = complaint(testing.assert_padding_invariant, exhibit5, five, lengths=[2, 5, 3, 1, 4])
print(found)
prove("museum 5: a (B, T) mask taken as (T, T) is caught by a batch with B = T", found)

# %% [markdown] id="museum-recomputed-question"
# **Exhibit 6.** The maps for a paper are computed again, next to the model. *What do they show?*

# %% id="museum-recomputed" tags=["atol:0.02"]
head = CausalSelfAttention(11, 7)
with record_weights(head) as maps:
    output = head(x)  # (B, T, E')
(true_map,) = maps.values()  # (B, T, S)
query, key, value = head.projection(x)
shown = (query @ key.mT / math.sqrt(7)).softmax(-1)  # (B, T, S): computed again, for the figure
unseen = shown.triu(diagonal=1).sum(-1).mean()
print(f"weight that the figure shows on tokens the model never saw: {unseen:.2f} a row")


# %% id="museum-recomputed-law"
def from_figure(value):
    return shown @ value  # (B, T, S) @ (B, S, E') -> (B, T, E')


def from_pass(value):
    return true_map @ value


found = complaint(testing.assert_equivalent, from_figure, from_pass, value, gradients=False)
prove("museum 6: a map that does not reproduce the output is caught by assert_equivalent", found)
same = torch.allclose(from_pass(value), output, atol=1e-6)
prove("museum 6: the weights of the pass itself reproduce the output", same)

# %% [markdown] id="museum-recomputed-says"
# A second computation is a second model. Take weights from the pass that ran, as `record_weights` does. (The same goes
# for dropout, section 3.7.)
#
# **Exhibit 7.** Generation with a cache: keys of earlier tokens are kept, each new token is one query,
# `is_causal=True`. *Which keys does the new token see?*


# %% id="museum-cache" tags=["tol:0.02"]
def exhibit7(new, cache):
    seen = new if cache is None else torch.cat([cache, new], dim=1)  # (B, S, D)
    return F.scaled_dot_product_attention(new, seen, seen, is_causal=True), seen


def repaired(new, cache):
    seen = new if cache is None else torch.cat([cache, new], dim=1)  # (B, S, D)
    return sdpa(new, seen, seen, causal=True), seen  # new: aligned bottom-right


def full(x):
    return sdpa(x, x, x, causal=True)


found = complaint(testing.assert_cache_consistent, full, exhibit7, x)
print(found)
prove("museum 7: a top-left causal flag with a cache is caught by assert_cache_consistent", found)
law = complaint(testing.assert_cache_consistent, full, repaired, x)
prove("museum 7: the bottom-right form obeys the law", not law)

# %% [markdown] id="museum-cache-says"
# torch aligns its flag at the top left (issue 108108), so a single new query sees only the *first* key. No error,
# fluent nonsense.
#
# **Exhibit 8.** Softmax over the wrong axis. T = S, so all shapes fit. *Which law notices?*


# %% id="museum-axis" tags=["tol:0.02"]
def exhibit8(x):
    scores = x @ x.mT / math.sqrt(x.size(-1))  # (B, T, S)
    scores = scores.masked_fill(~masks.causal_mask(x.size(1)), -math.inf)
    return scores.softmax(dim=-2) @ x  # (B, T, D)


found = complaint(testing.assert_causal, exhibit8, x)
print(found)
prove("museum 8: softmax over the queries leaks the future, in spite of the mask", found)

# %% [markdown] id="museum-test-question"
# **Exhibit 9.** The bug is in the test. *What kind of "attention" passes all three of these checks?*


# %% id="museum-test"
def weak_test(attend):
    q, k, v = torch.randn(2, 5, 7), torch.randn(2, 11, 7), torch.randn(2, 11, 13)  # S = 11
    output = attend(q, k, v)  # (B, T, E')
    ones = attend(q, k, torch.ones_like(v))  # weights that sum to one average ones to one
    fits = output.shape == (2, 5, 13) and bool(output.isfinite().all())
    return fits and torch.allclose(ones, torch.ones(2, 5, 13))


def fraud(query, key, value):
    return value.mean(dim=-2, keepdim=True).expand(*query.shape[:-1], -1)  # (B, 1, E') -> (B, T, E')


# %% id="museum-test-law"
q, k, v = torch.randn(2, 5, 7), torch.randn(2, 11, 7), torch.randn(2, 11, 13)  # S = 11
found = complaint(testing.assert_gradients_flow, fraud, q, k, v, names=["query", "key", "value"])
print("the weak test passes:", weak_test(fraud))
print("the law says:        ", found)
prove("museum 9: an attention that ignores queries and keys passes a weak test", weak_test(fraud))
prove("museum 9: assert_gradients_flow catches it", found)

# %% [markdown] id="museum-says"
# Shape, finiteness and rows that sum to one are not evidence. Dependence is: what may move what, and what must. The
# remaining exhibits, such as caches with wrong positions and losses averaged twice, wait in later chapters.

# %% [markdown] id="end"
# ## 10 What you have
#
# ### What was proved
#
# Each line is an assertion that held in this run, in order. The list was filled by `prove`. (`ex.progress()` prints
# what you have proved yourself: your exercises.)

# %% id="proved-table"
for number, claim in enumerate(proved, start=1):
    print(f"{number:3}  {claim}")

# %% [markdown] id="card"
# ### The formulas on one card
#
# | what | formula | section |
# |---|---|---|
# | projections | Q = X W_Q, K = C W_K, V = C W_V; in self-attention C = X | 3.1, 3.6 |
# | **attention** | **softmax(Q Kᵀ / √d_k) V** | 3.2 |
# | softmax, stable | pᵢ = exp(sᵢ - max s) / Σⱼ exp(sⱼ - max s) | 3.4 |
# | its slopes | ∂pᵢ/∂sⱼ = pᵢ (δᵢⱼ - pⱼ) | 4 |
# | entropy | -Σᵢ pᵢ ln pᵢ, from 0 to ln S | 4 |
# | spread of a score | standard deviation √d_k, if the entries of q and k have variance 1 | 4 |
# | causal mask | key j is visible to query i if j ≤ i + (S - T) | 5.1, 5.2 |
# | operations | 4 n² E for one head; 4 n² D for a layer, as many as its weights' 24 n D² at n = 6 D | 7 |
# | memory of the scores | 4 n² bytes a head in float32 | 7.1 |

# %% [markdown] id="self-check"
# ### Check yourself
#
# Answer in a sentence, then open.
#
# <details><summary>1. What is the √d_k divisor for?</summary>
#
# It keeps the spread of the scores at 1 for every width, if queries and keys have unit variance, and so keeps entropy
# and slopes of the softmax the same at every width. It is not true that gradients are tiny without it at every size:
# at d_k = 64 the mean slope is even larger without (section 4). At several hundred and more the unscaled rows harden
# and training slows.
#
# </details>
#
# <details><summary>2. Why are there three vectors a token and not one?</summary>
#
# So that what a token looks for, what it is found by and what it hands over can differ. With one vector, scores are
# symmetric and a wide token mostly reads itself (3.4).
#
# </details>
#
# <details><summary>3. Which two of the three come from the other sequence in cross-attention?</summary>
#
# Keys and values. The output has one row a query (3.6).
#
# </details>
#
# <details><summary>4. A colleague's padding mask has shape (B, S) and his tests pass. What do you ask?</summary>
#
# Whether the tests include B = S, where the mask is taken for (T, S) without an error (5.3).
#
# </details>
#
# <details><summary>5. A loss is suspiciously low. How can you tell, without the code, if the model peeks?</summary>
#
# Train it on noise. A held-out loss below ln V means a leak (5.2).
#
# </details>
#
# <details><summary>6. Fused attention needs memory linear in n. Is it also linear in time?</summary>
#
# No. It computes the same n² comparisons, block by block, and the measured exponent is about 2 (7.2).
#
# </details>
#
# <details><summary>7. When is an LSTM faster than a Transformer layer?</summary>
#
# When the hardware cannot do the parallel work at once, for instance on one CPU thread with long sequences (7.4).
#
# </details>
#
# <details><summary>8. A map shows 0.75 on one token. Did that token cause the answer?</summary>
#
# Not shown. Other weights can give the same output, and the value may not matter later. Hide the token and look at
# the answer (8.1).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# You have one head. The whole Transformer has ten kinds of parts; the other chapters build the rest.
#
# | part | what it does | where |
# |---|---|---|
# | token embedding | a learned vector for each token | 3, 4 |
# | positional encoding | tells places apart, which attention cannot (section 6) | 3 |
# | self-attention | tokens read each other | this chapter |
# | multi-head attention | several heads look at several places at once | 2 |
# | causal mask | no token reads a later one | this chapter |
# | cross-attention | one sequence reads another | this chapter, 5 |
# | feed-forward network | works on each token alone | 4 |
# | layer normalisation | keeps the scale of the vectors in bounds | 4 |
# | residual connection | adds each block's input to its output, so that depth can be trained | 4 |
# | output projection | turns the last vectors into scores for the next token | 5 |
#
# The course in eight sentences. **1** Attention replaced recurrence: every token reads every other in one step. **2**
# Several heads look at several places. **3** Order must be added. **4** The encoder stacks attention and feed-forward
# blocks and reads. **5** The decoder writes, one token after the other. **6** Training one takes more care than
# building one. **7** The famous models are switches of the same block. **8** What it costs, and what more of it buys,
# can be calculated.
#
# By the end you will know why recurrence was replaced, what encoder and decoder are for, how heads and positions
# work, what norms, residuals and feed-forward networks are for, and you will have built a small model in PyTorch.

# %% [markdown] id="sources"
# ### Sources
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: sections 3.2.1 (formula, √d_k, footnote 4),
#   3.2.3 (self- and cross-attention, causal mask), 4 and Table 1 (path length, sequential operations), 5.2 (eight
#   GPUs).
# - Bahdanau, Cho, Bengio 2014, *Neural Machine Translation by Jointly Learning to Align and Translate*,
#   arXiv:1409.0473: attention on a recurrent encoder, and the fixed-vector bottleneck (section 1).
# - Kalchbrenner et al. 2016, *Neural Machine Translation in Linear Time*, arXiv:1610.10099; Gehring et al. 2017,
#   *Convolutional Sequence to Sequence Learning*, arXiv:1705.03122.
# - Gers, Schmidhuber, Cummins 2000, *Learning to Forget*, Neural Computation 12(10); Jozefowicz, Zaremba, Sutskever
#   2015, *An Empirical Exploration of Recurrent Network Architectures*, ICML: the forget-gate bias.
# - Dao et al. 2022, *FlashAttention*, arXiv:2205.14135: section 3.1, exact attention with linear memory.
# - Jain, Wallace 2019, *Attention is not Explanation*, arXiv:1902.10186: section 4.2, other weights with the same
#   answer; Wiegreffe, Pinter 2019, *Attention is not not Explanation*, arXiv:1908.04626, for the limits of that
#   argument.
# - Devlin et al. 2018, *BERT*, arXiv:1810.04805, section A.2 (512 tokens); Radford et al. 2019, *Language Models
#   are Unsupervised Multitask Learners*, section 2.3 (1,024 tokens).
# - PyTorch issues [41508](https://github.com/pytorch/pytorch/issues/41508) (NaN gradients of fully masked rows),
#   [108108](https://github.com/pytorch/pytorch/issues/108108) (alignment of `is_causal`),
#   [27968](https://github.com/pytorch/pytorch/issues/27968) (polarity); NVIDIA apex issue
#   [1052](https://github.com/NVIDIA/apex/issues/1052) (-1e9 in float16).
