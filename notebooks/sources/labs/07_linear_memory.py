# %% [markdown] id="title"
# # Lab: reading a long text with a memory of fixed size
#
# **The question: can a model read a long text with a memory that never grows, and what does it then forget?** You write
# the memory of Qwen3-Next and Kimi Linear, a loop of a few lines that corrects itself. Then you fill it until it breaks,
# train a model that lives on it, and see why these models still keep one layer in four that forgets nothing.
#
# The lab stands on section 5 of [chapter 7](../07_variants.ipynb): a state, keys that collide in it, and the idea of the
# delta rule. It takes about {minutes} minutes. A good place to stop is the end of section 2.

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
# So read before you write. The state is a matrix $S$; what it says under a key $k$ is $S k$. Each token brings a key, a value
# $v$, and a share $\beta$ between 0 and 1 that says how much of the correction is made. It also brings a **gate** $g$
# between 0 and 1, by which everything old fades first. A gate near 0 clears the memory.
#
# $$S \leftarrow g\,S \qquad\qquad S \leftarrow S + \beta\,(v - S k)\,k^\top \qquad\qquad o = S q$$
#
# **By hand**, with Ada's key (1, 0), a state (5, 3) and β = 1. Without fading, 2 is missing, and the state becomes (7, 3).
# With g = 0.5 the state first fades to (2.5, 1.5). Then 4.5 is missing, and it becomes (7, 1.5): the news is exact, and Ben
# is half forgotten. A question is a token, too: with β = 0 it reads without writing.

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
# Ada's and Ben's keys were perpendicular. With 32 numbers there are at most 32 such keys, and a long text has more names.
# So we write 64 notes, each once, under random keys into a state of 32 by 32. The value of a note is one of 64 known
# vectors. An answer counts as right if the right vector is the nearest.
#
# **Predict.** Which of the 64 notes can be read at the end, with a sum and with your rule? The first ones, the last ones,
# or some of all?

# %% id="predict-forget"
ex.predict("which_notes_are_lost", "")


# %% id="notes"
def notes(n, E=32, texts=256, seed=0):
    """Random keys of length one (texts, n, E), the 64 vectors, and which of them."""
    draw = torch.Generator().manual_seed(seed)
    keys = F.normalize(torch.randn(texts, n, E, generator=draw), dim=-1)
    vectors = F.normalize(torch.randn(64, E, generator=draw), dim=-1)
    return keys, vectors, torch.randint(64, (texts, n), generator=draw)


def is_right(state, keys, vectors, which):
    """For each key, whether the state's answer is nearest to the right vector."""
    return ((keys @ state.mT @ vectors.T).argmax(-1) == which).float()


keys, vectors, which = notes(64)
one = torch.ones(256, 64)
_, state = delta_rule(keys, keys, vectors[which], one, one)
summed = vectors[which].mT @ keys
found = {"sum": is_right(summed, keys, vectors, which),
         "delta rule": is_right(state, keys, vectors, which)}  # fmt: skip

# %% id="age-figure" tags=["hide-input"]
# Figure: right answers by the age of the note, mean of 256 texts
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
# same way. So the past wears off. And look at the totals: on this text the plain sum is *better*. Chapter 7 found its
# answers further from the truth, but most of them are still nearest to the right vector.
#
# Then why use the delta rule? Because few texts are like this one. Elsewhere facts change. Let 16 people move again and
# again, and ask where each one is now. A softmax over a cache takes part twice: without positions, and with the slope for
# distance of ALiBi, which you know from chapter 3.


# %% id="moves"
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


# %% id="moves-figure" tags=["hide-input"]
# Figure: right answers against how often everyone moved; a sum, the delta rule, and a softmax over a cache
def others(times):
    """Right answers of a sum, and of a softmax without positions and with a slope of 0.3 for each token of distance."""
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
    "positions: the new room has replaced the old one.",
)  # fmt: skip
for name, values in lines.items():
    print(f"{name:<20}", *(f"{value:.2f}" for value in values))
prove("after two moves the sum is right at most six times in ten, the delta rule nine times, at each count",
      max(summed[1:]) < 0.6 and min(lines["delta rule"]) > 0.9)  # fmt: skip

# %% [markdown] id="size"
# **How many people fit?** The state has one column for each number of a key, so let us try wider keys.

# %% id="size-figure" tags=["hide-input"]
# Figure: the delta rule's right answers for keys of 16, 32, 64 and 128 numbers, everyone moving four times
people = [4, 8, 16, 32, 64]
table = {f"E = {E}": [where_now(4, people=n, E=E, texts=16) for n in people] for E in (16, 32, 64, 128)}
show(
    common.curves(people, table, xscale="log", xticks=people, xticklabels=people, ylim=(0, 1.05), names="lower left",
                  xlabel="people", ylabel="right answers"),
    alt="Right answers against the number of people, for four widths of keys. Each curve falls when the people are about "
    "half as many as the numbers of a key.",
    caption="A wider key, a larger state: the more numbers a key has, the more people fit.",
)  # fmt: skip
for name, row in table.items():
    print(f"{name:<8}", *(f"{value:.2f}" for value in row))
halves = [table[f"E = {2 * n}"][place] for place, n in enumerate(people) if n > 4]
prove("with half as many people as a key has numbers, at least 85 of 100 answers are right", min(halves) > 0.85)

# %% [markdown] id="learned"
# ## 3 Let it learn its keys
#
# A model does not have to use random keys: it can learn some that keep its people apart. Here is a model of one layer
# with no other memory than yours. A token is a name with a room, or a name with a question, and the answer is a room.


# %% id="reader"
class Reader(nn.Module):
    def __init__(self, width=32, names=24, rooms=16, d_model=32):
        super().__init__()
        self.name = nn.Embedding(names, d_model)
        self.room = nn.Embedding(rooms + 1, d_model)  # the last is the question
        self.q, self.k, self.v = (nn.Linear(d_model, width, False) for _ in range(3))
        self.beta, self.out = nn.Linear(d_model, 1), nn.Linear(width, d_model)
        self.answer = nn.Linear(d_model, rooms)

    def forward(self, names, rooms):
        x = self.name(names) + self.room(rooms)  # (B, T, D)
        h = F.rms_norm(x, x.shape[-1:])
        q, k = F.normalize(self.q(h), dim=-1), F.normalize(self.k(h), dim=-1)
        beta = self.beta(h)[..., 0].sigmoid()  # (B, T)
        x = x + self.out(delta_rule(q, k, self.v(h), beta, torch.ones_like(beta))[0])
        return self.answer(F.rms_norm(x, x.shape[-1:])), beta


# %% id="train"
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
right = (scores.argmax(-1) == test.targets)[asked].float().mean()
print(f"right answers {right:.2f}")
news, questions = shares[~asked].mean(), shares[asked].mean()
print(f"mean β at news {news:.2f}, at questions {questions:.2f}")

# %% [markdown] id="learned-says"
# Nobody told the model that a question should write nothing. It learned to. Does it work each time, and what else would
# have worked? Five trainings each, also with a sum, with narrower keys, and with a cache, softmax and slope:

# %% id="learned-record" tags=["hide-input"]
# Record: a sum, the delta rule and a cache, five seeds each
memory = claim("fixed_memory")
single = ("sum, width 32", "delta, width 32", "delta, width 8", "cache, width 8")
show(
    common.dot_rows({arm: memory.values(arm, "right answers") for arm in single}, size=(6.6, 2.2), xlim=(0, 1.05),
                    xlabel="right answers about 24 people"),
    alt="Right answers, a dot for each of five seeds. "
    + "; ".join(f"{arm}: {memory.spread(arm, 'right answers')}" for arm in single) + ".",
    caption="A state with keys of 32 numbers keeps 24 people nearly perfectly; one with keys of 8 does not. A cache does "
    f"with keys of 8. ({memory.command})",
)  # fmt: skip

# %% [markdown] id="chunks"
# ## 4 A chunk at a time
#
# Your loop walks from token to token. A GPU wants large products of matrices instead. So cut the text into **chunks** of,
# say, 64 tokens, and ask what each token *writes*. Call it $w_t = \beta_t (v_t - S k_t)$, and let nothing fade. The state
# before token $t$ is the state $S_0$ before the chunk, plus what the earlier tokens of the chunk wrote, each under its key:
#
# $$w_t = \beta_t \left( v_t - S_0 k_t - \sum_{s<t} (k_s \cdot k_t)\, w_s \right)$$
#
# **By hand**, with chapter 7's keys (1, 0) and (0.6, 0.8), values 5 and 10, β = 1 and an empty state: the first token
# writes 5, and the second 10 − 0.6 · 5 = 7. Each $w$ needs only earlier ones, so all of them together solve one triangular
# system. The states in between are never formed (Yang et al. 2024).


# %% id="one-chunk"
def one_chunk(q, k, v, beta, S):
    """All tokens of a chunk: (C, E), (C, E), (C, E'), (C,), (E', E)."""
    L = beta[:, None] * (k @ k.T).tril(-1)  # (C, C): what token t reads of token s
    wanted = beta[:, None] * (v - k @ S.T)  # (C, E')
    W = torch.linalg.solve_triangular(torch.eye(len(k)) + L, wanted, upper=False)
    outputs = q @ S.T + (q @ k.T).tril() @ W
    return outputs, S + W.T @ k


keys, vectors, which = notes(64, texts=1)
beta, one = torch.full((1, 64), 0.7), torch.ones(1, 64)
yours, last = delta_rule(keys, keys, vectors[which], beta, one)
output, S = one_chunk(keys[0], keys[0], vectors[which][0], beta[0], torch.zeros(32, 32))
off = max((output - yours[0]).abs().max(), (S - last[0]).abs().max())
prove("a chunk at once gives your outputs and your state", off < 1e-5)

# %% id="clock" tags=["not-compared:clock"]
inputs = [torch.randn(4, 512, 32) for _ in range(3)]
inputs[1] = F.normalize(inputs[1], dim=-1)
shares = [torch.rand(4, 512), torch.full((4, 512), 0.99)]
began = time.perf_counter()
delta_rule(*inputs, *shares)
middle = time.perf_counter()
gated_delta_rule(*(t[:, None] for t in (*inputs, shares[0], shares[1].log())))
print(f"your loop {1000 * (middle - began):.0f} ms, chunks of 64 "
      f"{1000 * (time.perf_counter() - middle):.0f} ms")  # fmt: skip

# %% [markdown] id="chunks-says"
# `gated_delta_rule` of the course's library is `one_chunk` with gates and heads. It equals both versions in
# `transformers`, the recurrent and the chunked one; so does the loop that you wrote.
#
# <details><summary>Evidence: equal to transformers, outputs and gradients</summary>
#
# `tests/variants/test_delta.py` compares `gated_delta_rule`, with chunks of 1, 7, 64 and 200, and the solution of the
# exercise with `torch_recurrent_gated_delta_rule` and `torch_chunk_gated_delta_rule`, which Qwen3-Next runs where it has
# no kernel. There queries are divided by the root of their width, and gates come as logarithms.
#
# </details>
#
# ## 5 Three layers that forget, one that does not
#
# How much does a model save with such a memory? On a short text, less than one would think.

# %% exercise="state_or_cache"

# %% [markdown] id="hybrid-says"
# With a book of 200,000 tokens, the state costs next to nothing beside a cache. But it still forgets. So Qwen3-Next and Kimi
# Linear are **hybrids**: after every three layers with a gated delta rule comes one with full attention. Our toy can show
# why, if its states are made too small for the text:

# %% id="hybrid-record" tags=["hide-input"]
# Record: four layers with small states, against three and a cache
arms = ("four delta, width 8", "three delta and a cache, width 8")
show(
    common.dot_rows({arm: memory.values(arm, "right answers") for arm in arms}, size=(6.6, 1.6), xlim=(0, 1.05),
                    xlabel="right answers about 24 people"),
    alt="Right answers, a dot for each of five seeds. "
    + "; ".join(f"{arm}: {memory.spread(arm, 'right answers')}" for arm in arms) + ".",
    caption="Four small states do not hold 24 people. With a cache in the last layer they are found, and the other three "
    f"layers need none. ({memory.command})",
)  # fmt: skip

# %% [markdown] id="answer"
# ## The answer
#
# Yes, a model can read a long text with a memory of fixed size. With the delta rule a fact that changes is replaced, and
# the number of facts that fit grows with the width of the keys: about half of it with random keys, more with learned
# ones. What it forgets is what nobody has mentioned for a long time, and a gate can make it forget sooner. Where an old
# detail has to be found again, a hybrid pays for a cache, but only in one layer of four.
#
# **You can now** write the memory of such a hybrid, say what fits into it, and explain how it is trained in chunks.
#
# <details><summary>Sources</summary>
#
# Schlag, Irie and Schmidhuber 2021, *Linear Transformers Are Secretly Fast Weight Programmers*, arXiv:2102.11174, section
# 4.2 (the delta rule). Yang et al. 2024, *Parallelizing Linear Transformers with the Delta Rule over Sequence Length*,
# arXiv:2406.06484 (chunks). Yang, Kautz and Hatamizadeh 2025, *Gated Delta Networks*, arXiv:2412.06464 (the gate). Kimi
# Team 2025, *Kimi Linear*, arXiv:2510.26692. Sizes of Qwen3-Next: `Qwen3NextConfig` in transformers.
#
# </details>
