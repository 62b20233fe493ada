# %% [markdown] id="title"
# # Lab: reading a long text with a memory of fixed size
#
# **The question: can a model read a long text with a memory that never grows, and what does it then forget?** You write
# the memory of Qwen3-Next, a loop of a few lines that corrects itself. You fill it until it breaks, train a model that
# lives on it, and see why Qwen3-Next still has one layer in four that forgets nothing.
#
# The lab builds on section 5 of [chapter 7](../07_variants.ipynb) and takes about {minutes} minutes. A good place to
# stop is the end of section 2.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import time

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.testing import prove
from course_lib.variants.efficient import gated_delta_rule
from coursework import exercises as ex
from coursework.corpora import changing_facts
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common
from coursework.records import claim

torch.set_num_threads(1)

# %% [markdown] id="moved"
# ## 1 Ada moves
#
# A text says that Ada is in room 5 and Ben in room 3. Much later it says that Ada is in room 7. Where is she? A memory
# that only adds has kept both rooms, and answers with their sum.

# %% id="moved-drawn" tags=["hide-input"]
# Drawing: one write, by a sum and by the delta rule
drawings.delta_write().show()

# %% [markdown] id="rule"
# So read before you write. The state is a matrix $S$; what it says under a key $k$ is $S k$. Each token brings a key, a
# value $v$, and a share $\beta$ between 0 and 1 that says how much of the correction is made. It also brings a **gate**
# $g$ between 0 and 1 that first fades everything old. Last, its query $q$ reads the answer $o$.
#
# $$S \leftarrow g\,S \qquad\qquad S \leftarrow S + \beta\,(v - S k)\,k^\top \qquad\qquad o = S q$$
#
# **By hand**, with Ada's key (1, 0), a state (5, 3) and β = 1. Without fading, 2 is missing, and the state becomes (7,
# 3). With g = 0.5 the state first fades to (2.5, 1.5). Then 4.5 is missing, and it becomes (7, 1.5): Ben is half
# forgotten. A question is a token, too: with β near 0 it reads and hardly writes.

# %% exercise="delta_rule"

# %% id="moved-run"
key = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])  # Ada, Ben, Ada
value = torch.tensor([[[5.0], [3.0], [7.0]]])
one = torch.ones(1, 3)
_, state = delta_rule(key, key, value, one, one)
print("a sum:     ", (value.mT @ key).flatten().tolist())
print("your state:", state.flatten().tolist())
_, state = delta_rule(key, key, value, one, torch.tensor([[1.0, 1.0, 0.5]]))
print("with a gate:", state.flatten().tolist())

# %% [markdown] id="forget"
# ## 2 What is forgotten?
#
# Ada's and Ben's keys were perpendicular. With 32 numbers there are at most 32 such keys, and a long text has more
# names. So we write 64 notes under random keys into a state of 32 by 32. Keys have length one: under a key of length 2,
# a value would come back $k \cdot k = 4$ times as large. The value is one of 64 known vectors, and an answer is right
# if the right vector is the nearest to it.
#
# **Predict.** Which of the 64 notes can be read at the end, with a sum and with your rule? The first ones, the last
# ones, or some of all?

# %% id="predict-forget"
ex.predict("which_notes_are_lost", "")


# %% id="notes"
def notes(n, E=32, texts=256, seed=0):
    """Random keys of length one (texts, n, E), the 64 vectors, and which of them."""
    draw = torch.Generator().manual_seed(seed)
    keys = F.normalize(torch.randn(texts, n, E, generator=draw), dim=-1)
    vectors = F.normalize(torch.randn(64, 32, generator=draw), dim=-1)
    return keys, vectors, torch.randint(64, (texts, n), generator=draw)


def is_right(state, keys, vectors, which):
    """For each key, whether the right vector is the nearest to the state's answer."""
    return ((keys @ state.mT @ vectors.T).argmax(-1) == which).float()


keys, vectors, which = notes(64)
one = torch.ones(256, 64)
_, state = delta_rule(keys, keys, vectors[which], one, one)
summed = vectors[which].mT @ keys
found = {"sum": is_right(summed, keys, vectors, which),
         "delta rule": is_right(state, keys, vectors, which)}  # fmt: skip

# %% id="age-figure" tags=["hide-input"]
# Figure: right answers by the age of the note
ages = [4 + 8 * i for i in range(8)]
by_age = {name: right.mean(0).unflatten(0, (8, 8)).mean(-1).tolist() for name, right in found.items()}
show(
    common.curves(ages, by_age, xlabel="the note's place among 64", ylabel="right answers", ylim=(0, 1.05)),
    alt="Right answers against the place of the note. The sum is level near 0.8. The delta rule rises from 0.1 for the "
    "first notes to 1 for the last.",
    caption="The sum forgets a little of everything. The delta rule knows the newest notes and has lost the oldest.",
)
for name, right in found.items():
    print(f"{name:<11} first eight {by_age[name][0]:.2f}, last eight {by_age[name][-1]:.2f}, all {right.mean():.2f}")
prove("the delta rule knows the last eight and has lost the first eight, the sum treats them alike",
      by_age["delta rule"][-1] > 0.95 and by_age["delta rule"][0] < 0.2 and min(by_age["sum"]) > 0.7)  # fmt: skip

# %% [markdown] id="age-says"
# Each write of the delta rule makes the newest note exact, and pays for it with older notes whose keys point partly the
# same way. But look at the totals: the plain sum is *better*. Chapter 7 found its answers further from the truth, yet
# most of them are still nearest to the right vector.
#
# Then why the delta rule? Because nothing changes in this text. Now let 16 people move again and again, and ask
# where each one is. We also try a cache, in two versions: without positions, and with a slope as in ALiBi from chapter
# 3.


# %% id="moves-figure" tags=["hide-input"]
# Figure: right answers against how often everyone moved
def moves(times, people=16, E=32, texts=64):
    """Everyone moves `times` times, in a random order each time."""
    keys, vectors, which = notes(people * times, E, texts)
    draw = torch.Generator().manual_seed(1)
    order = torch.stack([torch.randperm(people, generator=draw) for _ in range(times)])
    keys = keys[:, order.flatten()]  # the key of each move: people's keys, repeated
    last = [int((order.flatten() == who).nonzero()[-1]) for who in range(people)]
    return keys, vectors, which, last


def where_now(times, **sizes):
    """Right answers about the last move of each, by the delta rule."""
    keys, vectors, which, last = moves(times, **sizes)
    one = torch.ones(which.shape)
    _, state = delta_rule(keys, keys, vectors[which], one, one)
    return is_right(state, keys[:, last], vectors, which[:, last]).mean().item()


def others(times):
    """Right answers of a sum, and of a softmax over a cache without positions and with a slope."""
    keys, vectors, which, last = moves(times)
    query, value = keys[:, last], vectors[which]
    scores, place = 20 * query @ keys.mT, torch.arange(keys.size(1))
    answers = (query @ keys.mT @ value, scores.softmax(-1) @ value, (scores + 0.3 * place).softmax(-1) @ value)
    return [((one @ vectors.T).argmax(-1) == which[:, last]).float().mean().item() for one in answers]


often = [1, 2, 4, 8]
summed, plain, sloped = zip(*(others(times) for times in often), strict=True)
lines = {"sum": summed, "delta rule": [where_now(times) for times in often]}
lines |= {"cache, no positions": plain, "cache, with a slope": sloped}
show(
    common.curves(often, lines, xscale="log", xticks=often, xticklabels=often, ylim=(0, 1.05),
                  xlabel="moves of each of 16 people", ylabel="right answers"),
    alt="Right answers against the number of moves. The sum and the cache without positions fall from 1 to about 0.15. "
    "The delta rule stays above 0.9, the cache with a slope at 1.",
    caption="Once facts change, a sum is lost, and so is a softmax that cannot tell old from new. The delta rule needs no "
    "positions: the new room has replaced the old one. (The cache's scores are 20 · query · key; the slope adds 0.3 for "
    "each step towards the end of the text.)",
)  # fmt: skip
for name, values in lines.items():
    print(f"{name:<20}", *(f"{value:.2f}" for value in values))
prove("after two moves the sum is right at most six times in ten, the delta rule nine times, at each count",
      max(summed[1:]) < 0.6 and min(lines["delta rule"]) > 0.9)  # fmt: skip

# %% [markdown] id="size"
# **How many people fit?** The state has one column for each number of a key. So let us try wider keys.

# %% id="size-figure" tags=["hide-input"]
# Figure: right answers for keys of 16, 32, 64 and 128 numbers
people = [4, 8, 16, 32, 64]
table = {f"E = {E}": [where_now(4, people=n, E=E, texts=16) for n in people] for E in (16, 32, 64, 128)}
show(
    common.curves(people, table, xscale="log", xticks=people, xticklabels=people, ylim=(0, 1.05), names="lower left",
                  xlabel="people", ylabel="right answers"),
    alt="Right answers against the number of people, for four widths of keys. Each curve falls when the people are about "
    "half as many as the numbers of a key.",
    caption="The more numbers a key has, the more people fit: about half as many as a key has numbers. "
    "Values have 32 numbers throughout, and everyone moves four times.",
)  # fmt: skip
for name, row in table.items():
    print(f"{name:<8}", *(f"{value:.2f}" for value in row))
halves = [table[f"E = {2 * n}"][place] for place, n in enumerate(people) if n > 4]
prove("with half as many people as a key has numbers, at least 90 of 100 answers are right", min(halves) > 0.9)

# %% [markdown] id="gate"
# **And the gate?** It helps when everything old becomes useless at once. After 64 old notes let a second story begin,
# with 24 new ones, and ask only for these. A gate of 0.01 at the first of them clears the memory.


# %% id="second-story"
keys, vectors, which = notes(64 + 24)
one = torch.ones(which.shape)
clear = one.clone()
clear[:, 64] = 0.01
for name, gate in {"no gate": one, "with a gate": clear}.items():
    _, state = delta_rule(keys, keys, vectors[which], one, gate)
    right = is_right(state, keys, vectors, which)[:, 64:].mean()
    print(f"{name:<12} new notes right {right:.2f}")

# %% [markdown] id="learned"
# ## 3 Let it learn its keys
#
# A model can learn keys that keep its people apart. Let us train one layer whose only memory is your loop, on texts of
# 64 tokens about 24 people. A token is a name with a room or with a question, and the targets are the rooms to be
# answered:
#
# | | | | | | |
# |:--|--:|--:|--:|--:|--:|
# | names | Ada | Ben | Ada | Ada | Ada |
# | rooms | 5 | 3 | ? | 7 | ? |
# | targets | −100 | −100 | 5 | −100 | 7 |
#
# The loss skips −100. One token in five is a question, about somebody who has been mentioned.


# %% id="reader"
class Reader(nn.Module):
    def __init__(self, width=32, names=24, rooms=16, D=32):
        super().__init__()
        self.name, self.room = nn.Embedding(names, D), nn.Embedding(rooms + 1, D)
        self.q, self.k, self.v = (nn.Linear(D, width, False) for _ in range(3))
        self.beta, self.out = nn.Linear(D, 1), nn.Linear(width, D)
        self.answer = nn.Linear(D, rooms)

    def forward(self, names, rooms, news=None):
        x = self.name(names) + self.room(rooms)  # (B, T, D)
        h = F.rms_norm(x, x.shape[-1:])
        q, k = F.normalize(self.q(h), dim=-1), F.normalize(self.k(h), dim=-1)
        beta = self.beta(h)[..., 0].sigmoid()  # (B, T)
        beta = beta if news is None else torch.where(rooms < 16, news, beta)  # 16: "?"
        x = x + self.out(delta_rule(q, k, self.v(h), beta, torch.ones_like(beta))[0])
        return self.answer(F.rms_norm(x, x.shape[-1:])), beta


# %% id="train" tags=["hide-input"]
# Training: 600 steps of AdamW, each on 16 fresh texts
torch.manual_seed(0)
draw, steps = torch.Generator().manual_seed(100), 600
sizes = {"n_names": 24, "n_rooms": 16}
model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
for step in range(steps):
    rate = 0.01 * min(1, (step + 1) / 20) * (1 - 0.9 * step / steps)
    optimizer.param_groups[0]["lr"] = rate
    text = changing_facts(16, 64, **sizes, generator=draw)
    loss = F.cross_entropy(model(text.names, text.rooms)[0].mT, text.targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% id="trained" tags=["atol:0.03"]
test = changing_facts(200, 64, **sizes, generator=torch.Generator().manual_seed(9))
asked = test.targets >= 0
with torch.no_grad():
    scores, shares = model(test.names, test.rooms)
    forced, _ = model(test.names, test.rooms, news=1.0)
for name, found in {"its own β": scores, "β = 1 at news": forced}.items():
    right = (found.argmax(-1) == test.targets)[asked].float().mean()
    print(f"{name:<14} right answers {right:.3f}")
news, questions = shares[~asked].mean(), shares[asked].mean()
print(f"mean β at news {news:.2f}, at questions {questions:.2f}")

# %% [markdown] id="learned-says"
# Nobody told the model that a question should write next to nothing. It learned to. News writes 0.7 of the correction:
# then the new room outweighs the rest of the old one, and other people are disturbed less than by β = 1.
#
# Does it work each time? We trained four memories, each five times:

# %% id="learned-record" tags=["hide-input"]
# Record: a sum, the delta rule and a cache
memory = claim("fixed_memory")
single = ("sum, width 32", "delta, width 32", "delta, width 8", "cache, width 8")
show(
    common.dot_rows({arm: memory.values(arm, "right answers") for arm in single}, size=(6.6, 2.2), xlim=(0, 1.05),
                    xlabel="right answers about 24 people"),
    alt="Right answers, a dot for each of five seeds. "
    + "; ".join(f"{arm}: {memory.spread(arm, 'right answers')}" for arm in single) + ".",
    caption="The width is that of keys and values. A state of 32 by 32 keeps 24 people nearly perfectly; one of 8 by 8 "
    f"does not. A cache manages it even with a width of 8. ({memory.command})",
)  # fmt: skip
news_before = torch.ones(64, 64, dtype=torch.bool).tril(-1) & ~asked[:, None]
told = ((test.names[:, :, None] == test.names[:, None]) & news_before).sum(-1)[asked]
print(f"questions about people who have not moved yet: {(told == 1).float().mean():.2f}")

# %% [markdown] id="sum-says"
# Why does a sum reach 0.73 here? Half of the questions are about people who have not moved. There, nothing has to be
# replaced.
#
# ## 4 A chunk at a time
#
# Your loop walks from token to token. A GPU is fast at large products of matrices, and your loop has only small ones.
# So cut the text into **chunks** of 64 tokens, and ask what each token *writes*: $w_t = \beta_t (v_t - S k_t)$.
#
# **By hand**, with an empty state, β = 1, keys (1, 0), (0.6, 0.8), (0, 1) and values 5, 10, 4. What a token reads of an
# earlier write is the write times the dot product of their keys:
#
# $$w_1 = 5 \qquad\qquad w_2 = 10 - 0.6\,w_1 \qquad\qquad w_3 = 4 - 0\,w_1 - 0.8\,w_2$$
#
# With each $w$ on the left, the numbers form a staircase:
#
# $$\begin{pmatrix} 1 & 0 & 0 \\ 0.6 & 1 & 0 \\ 0 & 0.8 & 1 \end{pmatrix}
# \begin{pmatrix} w_1 \\ w_2 \\ w_3 \end{pmatrix} = \begin{pmatrix} 5 \\ 10 \\ 4 \end{pmatrix}$$
#
# `solve_triangular` walks down the stairs: 5, 7, −1.6. No state in between is ever formed (Yang et al. 2024).
#
# <details><summary>The same in letters, with a state from the chunk before, and with gates</summary>
#
# Let $S_0$ be the state before the chunk. Before token $t$ the state is $S_0 + \sum_{s<t} w_s k_s^\top$. Under $k_t$
# each term says $(w_s k_s^\top)\,k_t = w_s\,(k_s^\top k_t) = (k_s \cdot k_t)\,w_s$. So
#
# $$w_t = \beta_t \left( v_t - S_0 k_t - \sum_{s<t} (k_s \cdot k_t)\, w_s \right)$$
#
# and, with the sum on the left, $w_t + \sum_{s<t} \beta_t (k_s \cdot k_t)\, w_s = \beta_t (v_t - S_0 k_t)$. Write the
# $w_t$ as the rows of $W$, the factors $\beta_t (k_s \cdot k_t)$ with $s < t$ as the matrix $L$, and the right side as
# the rows of `wanted`: then $(I + L)\,W$ = `wanted`.
#
# With gates, $S_0$ has faded by $g_1 g_2 \cdots g_t$ when token $t$ reads it, and $w_s$ by $g_{s+1} \cdots g_t$: each
# term gets its factor. The library asks for the logarithms of the gates, because they turn these products into sums.
#
# </details>


# %% id="one-chunk"
def one_chunk(q, k, v, beta, S):
    """All tokens of a chunk: (C, E), (C, E), (C, E'), (C,), (E', E)."""
    L = beta[:, None] * (k @ k.T).tril(-1)  # (C, C): what token t reads of token s
    wanted = beta[:, None] * (v - k @ S.T)  # (C, E')
    W = torch.linalg.solve_triangular(torch.eye(len(k)) + L, wanted, upper=False)
    return q @ S.T + (q @ k.T).tril() @ W, S + W.T @ k


keys, vectors, which = notes(64, texts=1)
value, beta, S = vectors[which], torch.full((1, 64), 0.7), torch.zeros(32, 32)
yours, last = delta_rule(keys, keys, value, beta, torch.ones(1, 64))
outputs = []
for part in (slice(0, 32), slice(32, 64)):  # the first chunk hands S to the second
    output, S = one_chunk(*(t[0, part] for t in (keys, keys, value, beta)), S)
    outputs.append(output)
off = max((torch.cat(outputs) - yours[0]).abs().max(), (S - last[0]).abs().max())
prove("two chunks in a row give your outputs and your state", off < 1e-5)

# %% id="clock" tags=["hide-input", "not-compared:clock"]
# Clock: 4 texts of 512 tokens, by your loop and in chunks
inputs = [torch.randn(4, 512, 32) for _ in range(3)]
inputs[1] = F.normalize(inputs[1], dim=-1)
shares = [torch.rand(4, 512), torch.full((4, 512), 0.99)]
began = time.perf_counter()
delta_rule(*inputs, *shares)
middle = time.perf_counter()
gated_delta_rule(*(t[:, None] for t in (*inputs, shares[0], shares[1].log())))
print(f"one CPU thread: your loop {1000 * (middle - began):.0f} ms, chunks of 64 tokens "
      f"{1000 * (time.perf_counter() - middle):.0f} ms")  # fmt: skip

# %% [markdown] id="chunks-says"
# `gated_delta_rule` of the course's library is `one_chunk` with gates and heads. Like your loop, it equals both
# versions in `transformers`.
#
# <details><summary>Evidence: equal to transformers, outputs and gradients</summary>
#
# `tests/variants/test_delta.py` compares `gated_delta_rule`, with chunks of 1, 7, 64 and 200, and the solution of the
# exercise with `torch_recurrent_gated_delta_rule` and `torch_chunk_gated_delta_rule`, which Qwen3-Next runs where it
# has no kernel. There queries are divided by the root of their width, and gates come as logarithms.
#
# </details>
#
# ## 5 Three layers that forget, one that does not
#
# A state is as large for a short text as for a long one. When does it save memory?

# %% exercise="state_or_cache"

# %% [markdown] id="hybrid-says"
# With a book of 200,000 tokens, the cache is 390 times as large. But states forget. So Qwen3-Next and Kimi Linear are
# **hybrids**: after every three layers with a gated delta rule comes one with full attention. Our toy shows what that
# one is for:

# %% id="hybrid-record" tags=["hide-input"]
# Record: four layers with small states, against three and a cache
arms = ("four delta, width 8", "three delta and a cache, width 8", "cache, width 8")
show(
    common.dot_rows({arm: memory.values(arm, "right answers") for arm in arms}, size=(6.6, 1.9), xlim=(0, 1.05),
                    xlabel="right answers about 24 people"),
    alt="Right answers, a dot for each of five seeds. "
    + "; ".join(f"{arm}: {memory.spread(arm, 'right answers')}" for arm in arms) + ".",
    caption="Four small states do not hold 24 people. With a cache in the last layer the people are found, in each of five "
    f"trainings. A single layer with a cache finds them, too. ({memory.command})",
)  # fmt: skip

# %% [markdown] id="answer"
# What the delta layers add, our toy cannot show: a cache alone solves it. On real text, the authors of Kimi Linear
# report, their hybrid did better than full attention alone.
#
# ## The answer
#
# Yes. With the delta rule a fact that changes is replaced. With random keys about half as many facts fit as a key has
# numbers, and more with learned ones; up to there a state alone is enough. Beyond, it loses what has not been rewritten
# for a long time. Where an old detail has to be found again, a hybrid pays for a cache in one layer of four.
#
# **You can now** write the memory of such a hybrid, say what fits into it, and explain how it is trained in chunks.
#
# <details><summary>Sources</summary>
#
# Schlag, Irie and Schmidhuber 2021, *Linear Transformers Are Secretly Fast Weight Programmers*, arXiv:2102.11174,
# section 4.2 (the delta rule). Yang et al. 2024, *Parallelizing Linear Transformers with the Delta Rule over Sequence
# Length*, arXiv:2406.06484 (chunks). Yang, Kautz and Hatamizadeh 2025, *Gated Delta Networks*, arXiv:2412.06464 (the
# gate, which clears the memory quickly, beside the delta rule, which changes one entry). Kimi Team 2025, *Kimi Linear*,
# arXiv:2510.26692 (its gate has one number for each number of a key; and the comparison, with the same training
# recipe). Sizes of Qwen3-Next: `Qwen3NextConfig` in transformers.
#
# </details>
