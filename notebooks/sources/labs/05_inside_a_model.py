# %% [markdown] id="title"
# # Lab: how does one look inside a trained model, and what may one conclude?
#
# A trained model answers, and nobody has told it how. In this lab you train a small GPT and look inside it with five
# tools, which people also use on the large ones: hooks, contributions, the logit lens, patching and probes. Each tool
# answers one question, and each can mislead. So beside each stands the control that keeps it honest.
#
# You need the decoder of [chapter 5](../05_decoder.ipynb). The lab takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import string
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import record_weights
from course_lib.multi_head import MultiHeadAttention
from course_lib.testing import prove
from coursework import exercises as ex
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_05_inside_a_model as plots
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="model-text"
# ## 1 Listening: hooks
#
# ### 1.1 A model that has something to hide
#
# We need a task with a step in between, one that nobody sees from outside. So our texts consist of names, a first name
# and a family name, each a single letter. Five people occur in a text, in any order, again and again. A text may begin
# in the middle of a person, with a family name.


# %% id="texts" tags=["hide-input"]
# The texts: five people each, a first and a family name; each person is a pair of letters
def names_text(B, generator):
    """Texts (B, 24); some begin with a family name."""
    people = torch.rand(B, 26, generator=generator).argsort(1)[:, :10].view(B, 5, 2)
    who = torch.randint(5, (B, 13), generator=generator)
    text = people[torch.arange(B)[:, None], who].flatten(1)
    shift = torch.randint(2, (B, 1), generator=generator)
    return text.gather(1, shift + torch.arange(24))


def spelled(letters):
    return " ".join(string.ascii_uppercase[letter] for letter in letters)


def prompts(B, seed):
    """Five people, then the second's first name again (B, 11); the answer (B,), and a letter of nobody (B,)."""
    order = torch.rand(B, 26, generator=torch.Generator().manual_seed(seed)).argsort(1)
    first, family = order[:, :5], order[:, 5:10]
    texts = torch.cat([torch.stack([first, family], 2).flatten(1), first[:, 1:2]], 1)
    return texts, family[:, 1], order[:, 10]


print("a text:  ", spelled(names_text(1, torch.Generator().manual_seed(3))[0]))
clean, answer, stranger = prompts(200, 5)
print("a prompt:", spelled(clean[0]), "   answer:", spelled(answer[:1]))

# %% [markdown] id="prompt-text"
# The second line is what we shall ask. The prompt names five people once each. Its last letter is the first name of the
# second person once more, so this person's family name must follow. Each text has people of its own, so the model has
# to find the answer in the prompt.
#
# Positions count from 0. The second person's first name stands at position 2, the family name at position 3, and the
# prompt ends at position 10.
#
# The model is a GPT with three layers and two heads in each. The **residual stream** at a position begins as the sum of
# two vectors, one for the letter and one for the position, and each part adds to it. A part reads the stream through a norm, here RMSNorm.


# %% id="block"
class Block(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(D), nn.RMSNorm(D)
        self.attention = MultiHeadAttention(D, 2, bias=False)
        up, down = nn.Linear(D, 2 * D, bias=False), nn.Linear(2 * D, D, bias=False)
        self.feed_forward = nn.Sequential(up, nn.ReLU(), down)

    def forward(self, x):  # (B, T, D)
        x = x + self.attention(self.norm_1(x), causal=True)
        return x + self.feed_forward(self.norm_2(x))


# %% [markdown] id="gpt-text"
# At the end a last norm and a **table** turn the stream into logits. The table has one row for each of the 26 letters. The
# logit of a letter is the dot product of its row with the normed stream.


# %% id="gpt"
class SmallGPT(nn.Module):
    def __init__(self, D=64):
        super().__init__()
        self.start = Start(D)  # vectors of letters plus vectors of positions
        self.blocks = nn.ModuleList(Block(D) for _ in range(3))
        self.norm, self.table = nn.RMSNorm(D), nn.Linear(D, 26, bias=False)

    def forward(self, letters):  # (B, T) -> (B, T, 26)
        x = self.start(letters)
        for block in self.blocks:
            x = block(x)
        return self.table(self.norm(x))


# %% id="train" tags=["hide-input", "atol:0.05"]
# The start of the stream, and the training: 500 steps of 32 texts
class Start(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.letter, self.position = nn.Embedding(26, D), nn.Parameter(torch.randn(24, D))

    def forward(self, letters):
        return self.letter(letters) + self.position[: letters.size(1)]


torch.manual_seed(0)
model, generator = SmallGPT(), torch.Generator().manual_seed(0)
optimizer = torch.optim.Adam(model.parameters())
for step in range(500):
    optimizer.param_groups[0]["lr"] = 6e-3 * min(1, (step + 1) / 50) * (1 - 0.9 * step / 500)
    batch = names_text(32, generator)
    loss = F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model = model.requires_grad_(False)
right = (model(clean)[:, -1].argmax(-1) == answer).float().mean().item()
print(f"right answers to 200 prompts: {right:.2f}")

# %% [markdown] id="hook-problem"
# It answers. But how? We must see what passes inside, without rewriting `forward`.
#
# ### 1.2 A hook
#
# PyTorch lets us hang a function on any module. Whenever the module has run, the function is called with what went in
# and what came out. This function is called a **hook**. It is like a stethoscope: the patient need not be opened.

# %% id="hooks-drawn" tags=["hide-input"]
# Drawing: the model, its stream, and four places to listen
drawings.hooks_on_the_stream().show()

# %% [markdown] id="hook-by-hand"
# **By hand.** Take a chain of two modules: the first doubles a number, the second adds 1. From 3 the chain makes 7. A
# hook on the first module hears that 3 went in and 6 came out. The result is still 7.
#
# In code, `register_forward_hook` hangs the function on and returns a handle that takes it off again. The `finally`
# part below makes sure that no hook is forgotten.


# %% id="watch"
@contextmanager
def watch(modules):
    """In the block, note for each module what went in and what came out."""
    seen = {}

    def note(module, given, output):
        seen[module] = given[0], output

    handles = [module.register_forward_hook(note) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


# %% [markdown] id="streams-text"
# Our start and our three blocks each return the whole stream. So four hooks give us the stream at four **levels**: level 0
# after the start, level 1 after the first layer, up to level 3 after the last.


# %% id="streams"
def streams(letters):
    """The stream at each level: (B, T) -> (4, B, T, D)."""
    levels = [model.start, *model.blocks]
    with watch(levels) as seen:
        model(letters)
    return torch.stack([seen[module][1] for module in levels])


before = model(clean)
x = streams(clean)
print("levels, prompts, positions, width:", tuple(x.shape))
prove("listening changed no logit", torch.equal(before, model(clean)))
prove("level 3 gives the logits", torch.equal(model.table(model.norm(x[3])), before))

# %% id="hook-hand-check" tags=["hide-input"]
# Check: the chain of two modules
double, add = nn.Linear(1, 1, bias=False), nn.Linear(1, 1)
double.weight.data.fill_(2.0), add.weight.data.fill_(1.0), add.bias.data.fill_(1.0)
with watch([double]) as seen, torch.no_grad():
    result = add(double(torch.tensor([3.0])))
prove("a hook hears 3 and 6, and the chain still gives 7", [*map(float, (*seen[double], result))] == [3, 6, 7])

# %% [markdown] id="weights-text"
# A hook cannot hear what is made and used *inside* one module, such as the weights of an attention. For them the course
# has `record_weights`, which you know from [chapter 2](../02_multi_head.ipynb). Here are the weights of all six heads
# for one prompt. We count layers and heads from 1, so *head 2.1* is the first head of the second layer.

# %% id="weights" tags=["hide-input", "picture:60"]
# Figure: who looks where, six heads and one prompt
with record_weights(model) as maps:
    model(clean)
ticks = spelled(clean[0]).split()
show(
    plots.looks_of_heads(list(maps.values()), ticks),
    alt="Six lower triangles, one for each head, with the eleven letters of a prompt on both axes. Dark cells show where "
    "a letter puts most of its weight.",
    caption="Where the six heads look in one prompt. The last row of each map is the position that has to answer.",
)
previous = maps["blocks.0.attention"].diagonal(-1, -2, -1).mean((0, 2))
found = torch.stack(list(maps.values()))[:, :, :, 10, 3].mean(1)  # (layers, heads)
print("layer 1, weight on the letter before, by head:", " ".join(f"{weight:.2f}" for weight in previous))
for n in range(3):
    print(f"layer {n + 1}, weight of the last position on the answer:", " ".join(f"{w:.2f}" for w in found[n]))

# %% [markdown] id="weights-says"
# The printed numbers are means over the 200 prompts. **What this shows:** where each head looks. In layer 1 the letter
# before gets much of the weight, and in a later layer the last position looks at the answer. **What it does not show:**
# what is handed over, and whether it matters.
#
# ## 2 What adds up: contributions
#
# **The problem.** At the last position one logit is the highest. Which part of the model has raised it: the start, one of
# six heads, one of three feed-forwards?
#
# **The idea.** Look at the two lines of `Block.forward` again. Both have the form `x = x + something`. Nothing is ever
# overwritten, so at the end the stream is a plain *sum*: the vector of the start, plus what each head and each
# feed-forward wrote. The table is linear, so the logits are a sum as well. Only the last norm is in the way: it divides
# the stream by its size. We take this number from the whole stream and divide each part by the *same* number. Then the
# parts still add up.

# %% id="sum-drawn" tags=["hide-input"]
# Drawing: a sum by hand
drawings.logits_by_hand().show()

# %% [markdown] id="sum-by-hand"
# **By hand.** In the drawing the stream has two numbers, and the table has two letters, K with the row (1, 0) and Q
# with the row (0, 1). The sum of the three parts is (1, 7). RMSNorm divides by the root of the mean square: √((1 + 49)
# / 2) = 5. So the logit of Q is 7 / 5 = 1.4. The start gave 0.2 of it, the head 0.8 and the feed-forward 0.4.
#
# As a formula, let $p_1, \dots, p_n$ be what the parts wrote, $s$ the size of the whole stream, $g$ the factors that
# the last norm has learned, and $u$ the row of one letter in the table. Then its logit is
#
# $$u \cdot \left( g \odot \frac{p_1 + \dots + p_n}{s} \right) = \sum_i \; u \cdot \left( g \odot \frac{p_i}{s} \right)$$
#
# where ⊙ multiplies number by number. In code we first collect the parts. What a head writes is its own numbers times
# its own part of the output map, as in chapter 2.
#
# <details><summary>A tempting mistake, and details of the code</summary>
#
# Norm each part by itself, and you get 0.6, 1.4 and 1.3 for Q, together 3.3. That is the logit of no model.
#
# The size $s$ is the root of the mean square of the sum; a tiny number ε is added under the root, so that the norm
# never divides by zero. It is `eps` in the code below, and PyTorch's RMSNorm takes the smallest step of the number format
# unless one says otherwise. And `nn.Linear` keeps its matrix turned round: what chapter 2 called the *rows* of a head are
# *columns* here.
#
# </details>


# %% id="written"
def written(letters):
    """What each part adds to the stream at the last position: {name: (B, D)}."""
    with watch(model.modules()) as seen:
        model(letters)
    parts = {"start": seen[model.start][1][:, -1]}
    for n, block in enumerate(model.blocks, 1):
        output = block.attention.output
        heads = seen[output][0][:, -1].chunk(2, dim=-1)  # (B, E) for each head
        columns = output.weight.chunk(2, dim=1)  # (D, E) for each head
        for h in (0, 1):
            parts[f"head {n}.{h + 1}"] = heads[h] @ columns[h].T
        parts[f"feed-forward {n}"] = seen[block.feed_forward][1][:, -1]
    return parts


# %% [markdown] id="contributions-text"
# The formula is then three lines.


# %% id="contributions"
def contributions(parts):
    """{name: (B, D)} -> {name: (B, 26)}, which add up to the logits."""
    eps = torch.finfo(torch.float32).eps
    size = (sum(parts.values()).square().mean(-1, keepdim=True) + eps).sqrt()  # (B, 1)
    return {n: model.table(model.norm.weight * p / size) for n, p in parts.items()}


# %% [markdown] id="add-up-text"
# If one part had been forgotten, the sums would not be right. So the sums are the control of this tool.

# %% id="add-up"
parts = written(clean)
given = contributions(parts)
logits = model(clean)[:, -1]
stream, total = sum(parts.values()), sum(given.values())
same = torch.allclose(stream, x[3, :, -1], atol=1e-4)
both = same and torch.allclose(total, logits, atol=1e-4)
prove("the parts add up to the stream, the contributions to the logits", both)

# %% id="hand-check" tags=["hide-input"]
# Check: the sum by hand, the reading of section 3 by hand, and the mistake
hand = torch.tensor([[2.0, 1.0], [0.0, 4.0], [-1.0, 2.0]])  # start, head, feed-forward
levels = hand.cumsum(0)
sizes = levels.square().mean(-1, keepdim=True).sqrt()
wanted = torch.tensor([[0.4, 0.2], [0.0, 0.8], [-0.2, 0.4]])
prove("the parts give Q 0.2, 0.8 and 0.4", torch.allclose(hand / sizes[-1], wanted))
read = torch.tensor([[1.3, 0.6], [0.5, 1.3], [0.2, 1.4]])
prove("read too early: K, Q, Q", torch.allclose(levels / sizes, read, atol=0.05))
wrong = hand[:, 1] / hand.square().mean(-1).sqrt()
prove("normed one by one they give 3.3", torch.allclose(wrong, torch.tensor([0.6, 1.4, 1.3]), atol=0.05))
prove("which is not 1.4", abs(wrong.sum().item() - 3.3) < 0.05)

# %% [markdown] id="lead-text"
# A logit alone says little: if all 26 rise by 5, the softmax gives the same probabilities. So from here on we look at
# the **lead** of the answer, its logit minus the mean of all 26. It is linear as well.
#
# **Predict.** Section 1 showed a head of layer 1 that looks at the letter before. How large is the part of the lead
# that the heads of layer 1 have written? And which layer writes most?

# %% id="lead-guess"
ex.predict("lab_inside_contributions", "")


# %% id="lead"
def lead(logits, answer):
    """How far the answer lies above the mean: (B, 26), (B,) -> (B,)."""
    return logits.gather(1, answer[:, None])[:, 0] - logits.mean(1)


shares = {name: lead(part, answer) for name, part in given.items()}

# %% id="lead-figure" tags=["hide-input", "picture:60", "atol:0.15"]
# Figure: what each part adds to the lead of the right answer
show(
    plots.shares_of_the_lead(shares),
    alt="Ten horizontal bars, from the start at the top to feed-forward 3 at the bottom. The bars of the start and of layer "
    "1 are near zero; the longest ones belong to the four heads of layers 2 and 3. Feed-forward 3 is shorter, and "
    "feed-forward 2 is near zero.",
    caption="Mean over 200 prompts; the thin lines hold eight prompts of ten. The bars add up to the lead.",
)
total = lead(logits, answer).mean().item()
for name, ending in (("the start", "start"), ("layer 1", "1"), ("layer 2", "2"), ("layer 3", "3")):
    mine = [
        n for n in shares if n == ending or (n.startswith("head") and f" {ending}." in n) or n.endswith(f"d {ending}")
    ]
    print(f"{name:<10}{sum(shares[n].mean().item() for n in mine):6.2f} of {total:.2f}")

# %% [markdown] id="lead-says"
# **What this shows:** who wrote the answer. At the last position it is written by layers 2 and 3, and the numbers add up
# exactly.
#
# **What it does not show:** who was *needed*. It counts direct writing only. The head of layer 1 adds next to nothing
# to the answer, but it may have written something at *another* position, which a later head reads (section 4).
#
# <details><summary>One more caution</summary>
#
# The size of the stream was held fixed. So a bar does not say what the logit would be if this part were missing:
# without it the size would be different, too.
#
# </details>
#
# ## 3 Reading early: the logit lens
#
# **The problem.** The bars say who wrote, but not when the answer was *settled*. Does the model know it half-way?
#
# **The idea.** All layers write into one stream, which the last norm and the table can read. So read with them earlier,
# as if the model ended there. A writer named nostalgebraist did this with GPT-2 in 2020 and called it the **logit
# lens**.

# %% id="lens-drawn" tags=["hide-input"]
# Drawing: the norm and the table at each level
drawings.lens_by_hand().show()

# %% [markdown] id="lens-by-hand"
# **By hand.** Take the example of section 2 once more. After the start the stream is (2, 1); divided by its size, 1.58,
# it gives K 1.3 and Q 0.6. The lens says K. The head adds (0, 4). Now the stream is (2, 5), and the lens says Q. Here
# each level is divided by *its own* size, because we pretend that the model ends there.
#
# The formula is the model's last line with the stream $x_l$ of level $l$: the logits are $U \, \text{norm}(x_l)$, where
# $U$ is the table.
#
# **Predict.** At the last position of a prompt: after which layer does the lens name the right answer for the first time?

# %% id="lens-guess"
ex.predict("lab_inside_lens", "")

# %% id="lens"
lens = model.table(model.norm(x)).softmax(-1)  # (4, B, T, 26)
sure, said = lens.max(-1)  # both (4, B, T)
for level in range(4):
    right = (said[level, :, -1] == answer).float().mean()
    print(f"level {level}: right at the last position in {right:.2f} of the prompts")

# %% id="lens-figure" tags=["hide-input", "picture:60"]
# Figure: what the lens says at each level and position of one prompt
letters = [[string.ascii_uppercase[id] for id in row] for row in said[:, 0]]
show(
    plots.letters_by_level(sure[:, 0], letters, ticks),
    alt="A grid with the eleven letters of a prompt below and the levels 0 to 3 from bottom to top. Each cell holds the "
    f"likeliest letter. At level 3 only the last column is dark, with the letter {spelled(answer[:1])}, which is there at "
    "level 2 already. At level 1 most cells hold the letter one position to the left. At level 0 they hold no letter nearby.",
    caption="The likeliest next letter at each level, darker if its probability is higher. Before the last position no answer "
    "can be known, so pale cells are right there.",
)

# %% [markdown] id="lens-says"
# **What this shows:** at the last position the answer comes in after layer 2, and layer 3 makes it surer.
#
# Now look at level 1. Most cells hold the letter that stands one position to the left. We shall see that this letter is a
# *note*, which a later head reads. The lens takes it for an answer, because it can say only one thing: *this letter
# comes next*.
#
# **What it does not show:** everything that is not written for the table. The stream at level 0 surely holds which
# letter stands there. The lens does not name it, because the table was trained to read level 3 only. From a lens that
# says nothing, nothing follows.
#
# <details><summary>A lens with a translator</summary>
#
# Belrose et al. (2023) train a small map for each level, the *tuned lens*, which translates before the table reads.
#
# </details>
#
# ## 4 Changing one thing: patching
#
# **The problem.** So far we have only watched what goes along with the answer. What *makes* it? The barometer falls
# before the storm, but turning its hand back does not stop the storm.
#
# **The idea.** Intervene, and change as little as possible. We take two prompts that differ in a single letter. In the
# *clean* one, the second person's first name stands at position 2, as before. In the *corrupted* one a stranger's letter
# stands there, so the answer cannot be known. Now run the corrupted prompt, but replace a single vector of its stream
# by that of the clean run at the same level and position. If the answer comes back, this vector carried what was missing.
# This is called **activation patching** (Vig et al. 2020).

# %% id="patch-drawn" tags=["hide-input"]
# Drawing: two runs, one vector carried over
drawings.patch_between_runs().show()

# %% [markdown] id="patch-by-hand"
# **By hand.** Suppose the lead of the right answer is 4 in the clean run and 1 in the corrupted one. With one vector
# exchanged it is 3.4. Of the 3 that the wrong letter cost, 2.4 have come back:
#
# $$\text{share back} = \frac{\text{patched} - \text{corrupted}}{\text{clean} - \text{corrupted}} = \frac{3.4 - 1}{4 - 1} = 0.8$$
#
# We average the leads over all prompts first and divide once, because the difference below the line may be near zero in
# a single prompt. A hook can patch: what its function returns replaces the module's output.


# %% id="patched"
def patched(letters, source, level, position):
    """Logits at the end, with one vector taken from source (4, B, T, D)."""

    def exchange(module, given, output):
        output = output.clone()
        output[:, position] = source[level, :, position]
        return output

    modules = [model.start, *model.blocks]
    handle = modules[level].register_forward_hook(exchange)
    try:
        return model(letters)[:, -1]
    finally:
        handle.remove()


# %% [markdown] id="share-back-text"
# Now the two prompts, their leads, and a loop that tries each of the 44 vectors: 4 levels, 11 positions.

# %% id="share-back"
corrupted = clean.clone()
corrupted[:, 2] = stranger
above = lead(model(clean)[:, -1], answer).mean()
below = lead(model(corrupted)[:, -1], answer).mean()


def share_back(source):
    """For each level and position, the share of the lead that comes back: (4, 11)."""
    leads = torch.zeros(4, 11)
    for level in range(4):
        for t in range(11):
            logits = patched(corrupted, source, level, t)
            leads[level, t] = lead(logits, answer).mean()
    return (leads - below) / (above - below)


# %% [markdown] id="patch-control"
# **The control.** Perhaps the answer comes back with *any* vector from *any* prompt? So we also take vectors from prompts
# with other people. If these bring back as much, our finding means nothing.
#
# **Predict.** At level 0 the clean vector of position 2 simply repairs the prompt, so all comes back. Which single position
# brings it back at level 1, and which at level 2?

# %% id="patch-guess"
ex.predict("lab_inside_patch", "")

# %% id="patch-run"
unrelated, _, _ = prompts(200, 6)
back = share_back(streams(clean))
control = share_back(streams(unrelated))
print(f"lead of the answer: clean {above:.2f}, corrupted {below:.2f}")
prove("a repaired prompt is the clean one", abs(back[0, 2] - 1) < 1e-3)
prove("so is a repaired last vector", abs(back[3, 10] - 1) < 1e-3)

# %% id="patch-figure" tags=["hide-input", "picture:60", "atol:0.08"]
# Figure: how much comes back, by level and position
names = ["1st", "fam.", "FIRST", "FAMILY", *["1st", "fam."] * 3, "FIRST"]
positions = [f"{t}\n{name}" for t, name in enumerate(names)]
show(
    plots.lead_that_comes_back({"from the clean run": back, "control: from unrelated prompts": control}, positions),
    alt="Two grids of levels 0 to 3 by positions 0 to 10. In the upper one the red cells climb: position 2 at level 0, position 3 at "
    "level 1, mostly position 10 at level 2 with a little left at position 3, position 10 at level 3. All others are white. The "
    "lower grid has no red cell, only pale blue ones at positions 3 and 10.",
    caption="Capital letters: the second person's first and family name, and the letter that asks. Numbers under 0.05 are "
    "left out. Vectors of unrelated prompts bring nothing back.",
)
print("clean run: level 1, position 3", f"{back[1, 3]:.2f};", "level 2, position 10", f"{back[2, 10]:.2f};", end=" ")
print("level 2, position 3", f"{back[2, 3]:.2f}")
print(f"control: the largest of 44 is {control.max():.2f}, the smallest {control.min():.2f}")

# %% [markdown] id="patch-says"
# Read the upper grid from the bottom. What matters stands first at the first name, position 2. After layer 1 it stands at
# the *family name*, position 3, although that letter is the same in both prompts: it must have got a note of who stands
# before it. After layer 2 most of it stands at the last position, which has to answer. The control brings nothing back.
#
# **What this shows:** these vectors *carry* the difference between the two prompts, and the answer follows them. **What
# it does not show:** *how* it is carried, and everything that both prompts have in common.
#
# <details><summary>What was certain beforehand, and cells below zero</summary>
#
# Two of the cells with 1.00 were certain beforehand, and we asserted them: to repair the only wrong letter, and to
# exchange the vector that is read at the end. A finding is what lies between. In some cells the control is below zero.
# For position 3 at level 0 the reason is plain: there the unrelated vector exchanges the family name itself for another
# letter, and the answer does not occur in the text any more. That the last letter is a first name is the same in both
# prompts, so no patch can find where that is known. Another corruption asks another question.
#
# </details>
#
# One thing is left over from section 2. Both bars of the heads in layer 1 were near zero. If the note is made there,
# the head that looks at the letter before must be needed all the same. We take it away, and then, as a control, the
# other head of the layer.

# %% id="without-head" tags=["hide-input", "atol:0.1"]
# Measure: right answers without one head of layer 1
for h in (0, 1):
    weight = model.blocks[0].attention.output.weight
    kept = weight.clone()
    weight[:, 32 * h : 32 * (h + 1)] = 0.0
    share = (model(clean)[:, -1].argmax(-1) == answer).float().mean().item()
    weight.copy_(kept)
    print(f"without head 1.{h + 1}, on the letter before {previous[h]:.2f}: right answers {share:.2f}")

# %% [markdown] id="without-head-says"
# Without head 1.2, which looks at the letter before, many answers are lost, although its bar had been near zero.
# Without the other one hardly any is. So a small contribution is no proof that a part can be spared.

# %% exercise="patch_share"


# %% [markdown] id="probe-text"
# ## 5 A reader that learns: probes
#
# **The problem.** We suspect that after layer 1 each letter carries a note of the letter before it. The lens hinted at
# it, but it speaks of next letters only. We want a reader for a question of our own.
#
# **The idea.** For many texts we know the stream at level 1, and we know the letter before. A linear map is fitted that
# should name the one from the other, and then tested on texts that it has not seen. This reader is a **probe** (Alain
# and Bengio 2016). The model itself stays as it is.
#
# But a probe learns. If it succeeds, who knew: the model or the probe? So it needs two controls. With **shuffled
# labels** there is nothing to be known; what a probe still gets right there is luck. In an **untrained model** nothing
# was learned; what a probe reads there lies in the architecture and the input.

# %% id="probe-drawn" tags=["hide-input"]
# Drawing: a probe and its two controls
drawings.probe_and_controls().show()

# %% [markdown] id="probe-by-hand"
# **By hand.** Say the streams of four letters are (2, 1), (1, 2), (3, 1) and (1, 3), and the letter before was K, Q, K,
# Q. The map *first number minus second* gives 1, −1, 2, −2. Say K for a positive number and Q for a negative one, and
# you are right four times. With shuffled labels, K, K, Q, Q, the same map is right twice, like a coin.
#
# <details><summary>The formula</summary>
#
# The vectors are the rows of a matrix $X$, and the labels rows of $Y$ with a single 1 each. We look for the matrix $W$
# for which $XW$ comes nearest to $Y$ in the sum of squares. With a little weight on small numbers in $W$, it is $W =
# (X^T X + I)^{-1} X^T Y$. No training loop is needed. The vectors are normed first, so that no large one outshouts the
# others, and get a constant 1 at the end as a bias.
#
# </details>


# %% id="probe"
def probe_accuracy(vectors, labels):
    """Fit on half of the texts, test on the others: (B, T, D), (B, T) -> a share."""
    half = len(vectors) // 2
    vectors = F.pad(F.layer_norm(vectors, vectors.shape[-1:]), (0, 1), value=1.0)
    X, X_test = vectors[:half].flatten(0, 1), vectors[half:].flatten(0, 1)
    Y = F.one_hot(labels[:half].flatten(), 26).float()
    W = torch.linalg.solve(X.T @ X + torch.eye(X.size(1)), X.T @ Y)
    right = (X_test @ W).argmax(-1) == labels[half:].flatten()
    return right.float().mean().item()


# %% [markdown] id="probe-question"
# We probe 600 new texts at each level.
#
# **Predict.** A guess is right one time in 26. How often does the probe read the letter before at level 1: in the
# trained model, with shuffled labels, in the untrained model?

# %% id="probe-guess"
ex.predict("lab_inside_probe", "")

# %% id="probe-run" tags=["hide-input", "picture:60", "atol:0.06"]
# Figure: what a probe reads of the letter before
texts = names_text(600, torch.Generator().manual_seed(7))
before_it = texts[:, :-1]
mixed = torch.randperm(before_it.numel(), generator=torch.Generator().manual_seed(1))
shuffled = before_it.flatten()[mixed].view_as(before_it)


def at_levels(labels):
    return [probe_accuracy(level[:, -labels.size(1) :], labels) for level in streams(texts)]


trained, model = model, SmallGPT().requires_grad_(False)  # a fresh one in its place, for a moment
vowel = torch.isin(texts, torch.tensor([0, 4, 8, 14, 20])).long()
untrained_reads, untrained_vowels = at_levels(before_it), at_levels(vowel)
model = trained
reads, luck, vowels = at_levels(before_it), at_levels(shuffled), at_levels(vowel)
lines = {"trained model": reads, "untrained model": untrained_reads, "shuffled labels": luck}
axes = {"xticks": range(4), "xticklabels": [f"level {level}" for level in range(4)]}
axes |= {"ylabel": "letter before: right", "ylim": (0, 1.02)}
show(
    common.curves(range(4), lines, size=(6.6, 3.2), names="end", **axes),
    alt="Three lines over the levels 0 to 3. In the trained model the probe reads almost nothing at level 0, most at level 1 "
    "and somewhat less at levels 2 and 3. In the untrained model it stays low, and with shuffled labels near zero.",
    caption="The note is there after layer 1, in the trained model. The distance to the controls is the finding.",
)
print(f"{'letter before, by level':<26}", " ".join(f"{value:.2f}" for value in reads))
print(f"{'  untrained model':<26}", " ".join(f"{value:.2f}" for value in untrained_reads))
print(f"{'  shuffled labels':<26}", " ".join(f"{value:.2f}" for value in luck))
named = model.table(model.norm(streams(texts))).argmax(-1)  # by the lens, (4, B, T)
by_lens = (named[1, :, 1:] == before_it).float().mean().item(), (named[0] == texts).float().mean().item()
print(f"letter before at level 1: the lens {by_lens[0]:.2f}, the probe {reads[1]:.2f}")
print(f"own letter at level 0:    the lens {by_lens[1]:.2f}, the probe {at_levels(texts)[0]:.2f}")

# %% id="probe-hand-check" tags=["hide-input"]
# Check: the probe by hand
four = torch.tensor([[2, 1], [1, 2], [3, 1], [1, 3]])
says_k = (four[:, 0] - four[:, 1] > 0).tolist()
prove("four of four, and two of four with shuffled labels", says_k == [True, False, True, False])
prove("two of four", sum(a == b for a, b in zip(says_k, [True, True, False, False], strict=True)) == 2)

# %% [markdown] id="probe-says"
# The note is there. The probe reads it at level 1 at about nine of ten positions, in this model more often than the lens
# did. At level 0 it reads the letter itself without fail, where the lens hardly ever names it. In the untrained model
# something can be read too: heads with random weights mix a bit of all earlier letters into the stream.
#
# ### 5.1 Readable is not used
#
# At level 2 the note can still be read well. But the patch there, at position 3, brought back only the smaller part of the
# answer: most of what the note was good for has been done.
#
# It gets worse. We ask the probe something that *cannot* matter: is the letter a vowel? The names are drawn from the
# alphabet by chance, so no model can gain anything by telling vowels apart.
#
# **Predict.** Can a probe read from the stream whether the letter is a vowel?

# %% id="vowel-guess"
ex.predict("lab_inside_vowel", "")

# %% id="vowels" tags=["hide-input", "picture:60", "atol:0.05"]
# Figure: a property that nobody needs
drawn = torch.zeros(26, dtype=torch.long)
drawn[torch.rand(26, generator=torch.Generator().manual_seed(2)).argsort()[:5]] = 1  # five letters by chance
lottery = at_levels(drawn[texts])
common_answer = 1 - vowel.float().mean().item()
rows = {"vowels": vowels, "vowels, untrained model": untrained_vowels, "five letters of a draw": lottery}
rows, label = {name: [levels[1]] for name, levels in rows.items()}, "right answers of the probe at level 1"
show(
    common.dot_rows(
        rows, colours=palette.series, levels={"always “no”": common_answer}, xlabel=label, xlim=(0.6, 1.02)
    ),
    alt="Three dots near 1: vowels in the trained model, vowels in the untrained model, and five letters that were drawn by "
    "chance. A dashed line at about 0.8 marks the answer that is always no.",
    caption="The probe knows vowels nearly perfectly. It knows five letters of a lottery just as well.",
)
print(
    f"vowels {vowels[1]:.3f}, untrained {untrained_vowels[1]:.3f}, letters of a draw {lottery[1]:.3f}; always no {common_answer:.2f}"
)

# %% [markdown] id="vowels-says"
# The probe is nearly perfect, in the untrained model as well, and just as good with five letters that a lottery has
# chosen. The reason is simple: the stream says *which letter* stands here, and a probe can sort letters into any two
# heaps you like.
#
# So a probe answers: *can this be read from here by a linear map?* Whether the model reads it is another question, and
# only an intervention as in section 4 answers it.
#
# <details><summary>A rule made of this</summary>
#
# Hewitt and Liang (2019) give each word a label by chance, the *control task*, and judge a probe by how much better it
# is at the real task than at this one. For vowels the difference is next to nothing.
#
# </details>
#
# ## 6 Was it luck?
#
# So far we have looked at one model, with one seed. Here are five trainings, and the same five models before training.

# %% id="record" tags=["hide-input"]
# Figure: five seeds, recorded
seeds = claim("inside_names")
lost = seeds.values("trained", "lead lost")
stations = {
    "level 1, family name": "lead back, layer 1, family name",
    "level 2, last position": "lead back, layer 2, last place",
    "level 2, family name": "lead back, layer 2, family name",
    "any other vector, at most": "most lead back elsewhere",
    "unrelated prompt, at most": "most lead back from another prompt",
}
patched = {
    name: [a / b for a, b in zip(seeds.values("trained", measure), lost, strict=True)]
    for name, measure in stations.items()
}
probes = {
    "trained": ("trained", "predecessor read after layer 1"),
    "untrained": ("untrained", "predecessor read after layer 1"),
    "shuffled": ("trained", "predecessor read after layer 1, shuffled"),
}
probed = {name: seeds.values(*arm_and_measure) for name, arm_and_measure in probes.items()}
for name, values in reversed(patched.items()):
    print(f"{name:<24} {min(values):5.2f} to {max(values):.2f}")
for name, values in reversed(probed.items()):
    print(f"letter before, {name:<9} {min(values):5.2f} to {max(values):.2f}")
each = (
    {"xlabel": "share of the lead that comes back", "xlim": (-0.1, 1.15)},
    {"xlabel": "probe of the letter before, level 1", "xlim": (0, 1), "colours": palette.key},
)
show(
    common.panels(common.dot_rows, {"Patching": patched, "Probing": probed}, size=(7.5, 3.1), share="", each=each),
    alt="Left, five rows of five dots: at level 1 the family name brings back about 1, at level 2 the last position most and "
    "the family name little; any other vector and unrelated prompts bring back about nothing. Right, three rows: the probe "
    "reads the letter before at most positions of trained models, at few of untrained ones, and by luck with shuffled labels.",
    caption=f"Five seeds, a dot for each. {seeds.command}",
)
note = seeds.values("trained", stations["level 1, family name"])
prove("the note stands at the family name", min(a / b for a, b in zip(note, lost, strict=True)) > 0.9)

# %% [markdown] id="record-says"
# The stations are the same with all five seeds, and so is the distance between the probe and its controls. This holds
# for models of this size on this task.
#
# <details><summary>And in larger models?</summary>
#
# Olsson et al. (2022) found heads that do the same two steps in much larger models on real text. As they say, they have
# evidence from interventions for small models of attention only; for larger ones with feed-forwards it is correlation.
#
# </details>
#
# ## 7 The same circuit, from the other side
#
# You have met this path before. A head of an early layer notes in each letter what came before it; a head of a later
# layer looks for the note with its own name, and copies the letter that carries it. It is *induction*.

# %% id="induction-drawn" tags=["hide-input"]
# Drawing: the two steps of induction
drawings.induction_steps().show()

# %% [markdown] id="induction-text"
# [The lab on heads](02_heads.ipynb) reads the same circuit off the *matrices*, without running the model. There the
# evidence is in the weights, here it is in the vectors. Two ways with different weaknesses lead to the same story: that
# is the best reason to believe it.
#
# ## What you have
#
# Each tool answers one question, and each has its control.
#
# <details><summary>The lab on one card</summary>
#
# | Tool | It answers | It does not answer | Its control |
# |---|---|---|---|
# | weights of attention | where is looked? | what is handed over? | an untrained model (lab on heads) |
# | contributions | who wrote the answer? | who was needed? | they must add up |
# | logit lens | what would be said now? | what else stands there? | a probe at the same level |
# | patching | what carries the difference? | what both prompts share | an unrelated prompt |
# | taking a part away | was it needed? | what it did | a part that should not matter |
# | probe | what can be read? | what is used? | shuffled labels, an untrained model, labels by lottery |
#
# </details>
#
# <details><summary>An open question for you</summary>
#
# At level 2 most of the answer stands at the last position. Layer 3 still adds to the lead. Does it read the last position,
# or the note at position 3 once more? Run the clean prompt, and give layer 3 the corrupted vector at position 3 only. If what
# layer 3 adds becomes smaller, it had read the note. `patched` does it, with clean and corrupted exchanged.
#
# </details>
#
# ### Sources
#
# <details><summary>The papers behind this lab</summary>
#
# - nostalgebraist 2020, *interpreting GPT: the logit lens*, LessWrong.
# - Belrose et al. 2023, *Eliciting Latent Predictions from Transformers with the Tuned Lens*, arXiv:2303.08112.
# - Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*: the stream as a sum, and contributions to
#   logits.
# - Vig et al. 2020, *Investigating Gender Bias in Language Models Using Causal Mediation Analysis*: patching, as
#   mediation.
# - Meng et al. 2022, *Locating and Editing Factual Associations in GPT*, arXiv:2202.05262: causal tracing.
# - Alain and Bengio 2016, *Understanding intermediate layers using linear classifier probes*, arXiv:1610.01644.
# - Hewitt and Liang 2019, *Designing and Interpreting Probes with Control Tasks*, arXiv:1909.03368.
# - Olsson et al. 2022, *In-context Learning and Induction Heads*, arXiv:2209.11895.
#
# </details>
