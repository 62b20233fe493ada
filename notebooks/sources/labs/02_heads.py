# %% [markdown] id="title"
# # Lab: what do heads do, and how can one know?
#
# [Chapter 2](../02_multi_head.ipynb) showed heads that work together: one notes in each letter what came before it, the
# other looks for a note. Here you take such a pair to pieces. You read its work off the matrices, without running the
# model at all, and you test the reading by taking heads away. Then you test some popular claims about heads. The
# lab takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math
import string
import time

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import masks
from course_lib.attention import record_weights
from course_lib.multi_head import MultiHeadAttention
from course_lib.testing import prove
from coursework import exercises as ex
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots.common import dot_rows, panels
from coursework.pictures.plots.maps import heat_maps
from coursework.pictures.plots.seeds import seed_rows
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="circuit"
# ## 1 The circuit
#
# Here is the story of chapter 2 in one picture. In layer 1 each letter gets a note of its predecessor. In layer 2 the
# last K looks for the note *after K*, and copies the letter that carries it.

# %% id="circuit-drawn" tags=["hide-input"]
# Drawing: the two steps of induction
drawings.induction_steps().show()

# %% [markdown] id="circuit-text"
# The model is that of the chapter: two layers of attention with two heads each, and nothing else. Each text has five
# people, each with a first name and a family name of one letter. We train it once more, with one seed.


# %% id="circuit-train" tags=["hide-input"]
# The model, its texts, and its training
class AttentionOnly(nn.Module):
    def __init__(self, n_layers=2, letters=26, places=24, D=64):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, D), nn.Parameter(torch.randn(places, D))
        self.layers = nn.ModuleList(MultiHeadAttention(D, 2, bias=False) for _ in range(n_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(n_layers + 1))
        self.answer = nn.Linear(D, letters, bias=False)

    def forward(self, letters):
        x = self.letter(letters) + self.place[: letters.size(1)]
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = x + layer(norm(x), causal=True)
        return self.answer(self.norms[-1](x))


def names_text(B, generator):
    """Texts (B, 24), and where the next letter can be known (B, 23)."""
    people = torch.rand(B, 26, generator=generator).argsort(1)[:, :10].view(B, 5, 2)
    who = torch.randint(5, (B, 13), generator=generator)
    shift = torch.randint(2, (B, 1), generator=generator)
    letters = people[torch.arange(B)[:, None], who].flatten(1).gather(1, shift + torch.arange(24))
    first = (torch.arange(24) + shift) % 2 == 0
    met = (letters[:, :, None] == letters[:, None, :]).tril(-1).any(-1)
    return letters, (first & met)[:, :-1]


torch.manual_seed(0)
model, generator = AttentionOnly(), torch.Generator().manual_seed(0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(500):
    batch, _ = names_text(32, generator)
    loss = F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model = model.requires_grad_(False)

# %% [markdown] id="score-text"
# ### 1.1 A number for each head
#
# First find the two heads. The head of layer 1 is easy: how much weight does it put on the letter before? For the head
# of layer 2 we use texts in which ten random letters repeat. When the model stands at a letter for the second time, an
# induction head looks at the letter *after* its first copy. You write the function that measures it.

# %% exercise="induction_score"


# %% id="score-measured" tags=["atol:0.1"]
ten = torch.randint(26, (300, 10), generator=torch.Generator().manual_seed(10))
twice = ten.repeat(1, 2)  # ten random letters, two times
with record_weights(model) as maps:
    model(twice)
first, second = maps.values()  # (B, H, T, T) each
previous = first.diagonal(-1, -2, -1).mean(dim=(0, 2))  # weight on the letter before
induction = induction_score(second, 10)
print("layer 1, on the letter before:", [f"{score:.2f}" for score in previous])
print("layer 2, induction score:     ", [f"{score:.2f}" for score in induction])
writer, reader = int(previous.argmax()), int(induction.argmax())

# %% [markdown] id="qk-text"
# ### 1.2 Who fits whom: queries and keys
#
# A score is the dot product of a query and a key, divided by √E. Both are linear maps of vectors in the stream. So for
# two *given* vectors the matrices alone give the score. Elhage et al. (2021) call this the **QK circuit** of a head: a
# table that says, for any two things in the stream, how well they fit.
#
# At a letter, the head of layer 2 finds two things in the stream: the letter itself, and the note that the head of
# layer 1 has added. The note is the predecessor's vector, sent through the value map and the output map of that head.
# So we can write down all 26 possible notes. The model's norms bring each vector to mean 0 and spread 1, and we do the
# same to the 26 letters once. We leave out the factors and shifts that the norms have learned, and the positions.


# %% id="qk-code"
E = 32  # numbers in a head
one, two = model.layers
w = slice(writer * E, (writer + 1) * E)  # the rows and columns of the writing head
r = slice(reader * E, (reader + 1) * E)  # and of the reading head
letters = F.layer_norm(model.letter.weight, (64,))  # (26, 64)
notes = letters @ one.value.weight[w].T @ one.output.weight[:, w].T  # (26, 64)
queries = letters @ two.query.weight[r].T  # (26, E)
fits_note = queries @ (notes @ two.key.weight[r].T).T  # (26, 26)
fits_letter = queries @ (letters @ two.key.weight[r].T).T  # (26, 26)

# %% [markdown] id="qk-question"
# Each table has a row for each letter that asks, and a column for each letter. In the first table the column stands for
# the note *after* that letter, in the second for the letter itself.
#
# **Predict.** If the story is right, where are the largest numbers of the first table? And of the second?

# %% id="qk-guess"
ex.predict("lab_heads_qk_table", "")

# %% id="qk-figure" tags=["hide-input", "picture:60"]
# Figure: the two tables of the reading head
alphabet = list(string.ascii_uppercase)
signed = {"cmap": palette.signed, "reach": None, "columns": alphabet, "rows": alphabet, "every": 3}
show(
    heat_maps(
        {"note: after …": fits_note, "the letter itself": fits_letter},
        **signed,
        ylabel="letter that asks",
        bar="score, before the scale",
        size=(7.5, 3.6),
    ),
    alt="Two tables of 26 by 26 letters. The left one, for notes, has a clear red diagonal. The right one, for the letters "
    "themselves, has a weak blue one: numbers below zero.",
    caption="The query of a letter fits the note with its own name best. It does not fit the letter itself. (The two bars "
    "have different scales; the numbers on the left are the larger ones.)",
)


# %% id="qk-share" tags=["atol:0.1"]
def own_is_largest(table):
    own = table.argmax(dim=-1) == torch.arange(26)
    return own.float().mean().item()


print("share of rows in which the own letter has the largest number")
print(f"notes {own_is_largest(fits_note):.2f}")
print(f"letters {own_is_largest(fits_letter):.2f}")

# %% [markdown] id="qk-says"
# The first table is a diagonal. The query of K and the note *after K* were made by four different matrices in two
# layers, and they fit each other as nothing else does. That is the agreement between the two heads. It is called
# *composition*: what one head writes becomes part of the key of another.
#
# In the second table the diagonal is not red; in this run it is even pale blue, below zero. With the learned factors
# and shifts of the norms put back, both shares stay as they are. An induction head does not look for its own letter.
# That would lead it to the earlier K, and it needs the Q behind it.
#
# ### 1.3 What is handed over: values and output
#
# When the head has found Q, what does it do? It sends the vector of Q through its value map and its output map, and
# what comes out is added to the stream. At the top of the model the stream is turned into scores for the next letter.
# Again this is a chain of matrices, the **OV circuit**: which letters become more likely when this one is read?

# %% id="ov-code"
handed = letters @ two.value.weight[r].T @ two.output.weight[:, r].T  # (26, 64)
raises = handed @ model.answer.weight.T  # (26, 26)
print(f"a letter raises itself most in {own_is_largest(raises):.2f} of the rows")

# %% id="ov-figure" tags=["hide-input", "picture:60"]
# Figure: what reading a letter does to the scores
show(
    heat_maps(
        {"": raises},
        **signed,
        xlabel="score that it raises",
        ylabel="letter that is read",
        bar="change of the score",
        size=(4.6, 3.8),
    ),
    alt="A table of 26 by 26 letters with a clear red diagonal: reading a letter raises the score of the same letter.",
    caption="Reading a letter makes this letter more likely to be written next. The head copies.",
)

# %% [markdown] id="circuit-record-text"
# Both halves of the story stand in the matrices: *find the note with my name*, and *copy*. Was it luck? Five trainings
# with different seeds, beside models that were not trained:

# %% id="circuit-record" tags=["hide-input"]
# Record: the two circuits, five seeds
circuits = claim("induction_circuits")
for measure in circuits.measures:
    ranges = ["{:.2f} to {:.2f}".format(*circuits.range(arm, measure)) for arm in circuits.arms]
    print(f"{measure:<40} trained {ranges[0]}   untrained {ranges[1]}")
print(f"share of the 26 letters; {circuits.command}")
prove(
    "a query fits the note of its own letter, with every seed",
    circuits.range("trained", "query fits the note of its own letter")[0] > 0.8,
)

# %% [markdown] id="cut-text"
# ### 1.4 The test: take the writer away
#
# A table of matrices is still only a reading. If it is right, then the head of layer 2 must become blind when the head of
# layer 1 is taken away, although not one of its own numbers is changed.
#
# **Predict.** What happens to the induction score of layer 2, and to the loss, without the writing head?

# %% id="cut-guess"
ex.predict("lab_heads_without_the_writer", "")


# %% id="cut"
def with_silenced(layer, head):
    """Loss where a name can be known, and best induction score, without one head."""
    kept = layer.output.weight.clone()
    layer.output.weight[:, head * E : (head + 1) * E] = 0.0
    texts, known = names_text(300, torch.Generator().manual_seed(99))
    scores = model(texts)[:, :-1]
    wanted = texts[:, 1:]
    losses = F.cross_entropy(scores.mT, wanted, reduction="none")
    with record_weights(model) as maps:
        model(twice)
    layer.output.weight.copy_(kept)
    score = induction_score(list(maps.values())[1], 10).max().item()
    return losses[known].mean().item(), score


# %% id="cut-tried" tags=["atol:0.3"]
for name, layer, head in (("writer", one, writer), ("reader", two, reader)):
    loss, score = with_silenced(layer, head)
    print(f"without the {name}: loss {loss:.2f}, best induction score {score:.2f}")

# %% id="cut-record" tags=["hide-input"]
# Figure: five seeds, recorded
induction_claim = claim("induction")
rows = {
    "all heads": "loss",
    "without one head of layer 2": "loss without one head of the last layer",
    "without the writer in layer 1": "loss without the previous-token head",
    "counting letters": "loss of counting letters",
}
show(
    dot_rows(
        {name: induction_claim.values("two layers", measure) for name, measure in rows.items()},
        xlim=(0, 2.6),
        xlabel="loss where a name can be known, a dot for each seed",
        size=(7.0, 2.4),
    ),
    alt="Rows of five dots. With all heads the loss is near 0.5; without one head of layer 2 it is 1.1 to 1.4; without "
    "the writer in layer 1 it is 1.7 to 1.9; counting letters has 2.2.",
    caption="In these five trainings, most of what two layers had learned is lost without the writer. Each head of "
    "layer 2 is missed, too, but less.",
)
low, high = induction_claim.range("two layers", "induction score without it")
before = induction_claim.range("two layers", "induction score")
print(f"weight on what followed: {before[0]:.2f} to {before[1]:.2f}, without the writer {low:.2f} to {high:.2f}")

# %% [markdown] id="cut-says"
# Without the writer, the reader is still there, with all its parameters, and finds little. Its role is not a property
# of its own. It is a property of the pair. Without the reader the score stays as it was: the reader still looks, but
# what it finds is handed to nobody.
#
# How much is lost differs from training to training. With seed 5, which is not in the figure, the loss without the
# writer rose only to 1.17, and the reader kept a score of 0.48.
#
# ### 1.5 How far does it carry?
#
# The model was trained on names. Does it continue texts of another kind, in which five, seven or ten random letters
# repeat? Two rivals are not networks. One counts again: it predicts each letter by how often it has come so far. The
# other knows less: it takes all letters that have come so far as equally likely.

# %% id="periods-record" tags=["hide-input"]
# Record: repeated random letters, five seeds
print(f"{'letters that repeat':<20}{'two layers':>14}{'one layer':>14}{'counting':>10}{'all alike':>11}")
alike = {}
for period in (5, 7, 10):
    one_time = torch.randint(26, (300, period), generator=torch.Generator().manual_seed(period))
    alike[period] = F.one_hot(one_time, 26).amax(1).sum(-1).float().log().mean().item()  # of the different letters
    cells = [
        "{:.2f} to {:.2f}".format(*induction_claim.range(arm, f"loss at period {period}"))
        for arm in ("two layers", "one layer")
    ]
    counting = induction_claim.values("two layers", f"counting letters at period {period}")[0]
    print(f"{period:<20}{cells[0]:>14}{cells[1]:>14}{counting:>10.2f}{alike[period]:>11.2f}")
    prove(
        "two layers are better than both rivals, with every seed",
        induction_claim.range("two layers", f"loss at period {period}")[1] < min(counting, alike[period]),
    )

# %% [markdown] id="periods-says"
# Counting is a weak rival here. A letter that has just come again is not the one that comes next, so the counts
# mislead, and taking all letters as equally likely is better. Two layers are better than both, with every seed; one
# layer is worse than both. So what was learned carries over, but only in part: where names can be known the loss is
# about 0.5, and at a period of seven it is about three times that. Names always come in pairs, and some of what the
# model learned is about pairs. Anyone who says that a small model “has learned induction” should say on which texts.

# %% [markdown] id="removed"
# ## 2 Can most heads be removed?
#
# > **You will read that** most heads can be removed after training.
#
# Michel et al. (2019) removed heads one at a time and lost hardly anything. When they removed them together, the
# quality soon fell. Here is the same question on a model that reads English prose, character by character. It has two
# layers, with 1, 4 or 16 heads in each, and always the same total width. Each head is taken away alone, then all of them
# together.

# %% id="removed-record" tags=["hide-input"]
# Figure: heads removed one by one, and together, five seeds
characters = claim("character_heads")
ways = {"sum of\nsingle costs": "one by one", "all\ntogether": "together"}
found = {
    f"{arm} in each layer": {name: {"": characters.values(arm, f"all, {how}")} for name, how in ways.items()}
    for arm in characters.arms
}
show(
    panels(
        seed_rows,
        found,
        colours=dict(zip(ways, (palette.key, palette.query))),
        xlabel="added loss (nats)",
        xlim=(0, 0.95),
        size=(7.5, 1.9),
    ),
    alt="Three panels of five dots each. With one head in each layer, the sum of single costs and the cost together are "
    "about equal. With four heads, together costs more than the sum, about 0.8 against 0.4. With sixteen, about 0.6 "
    "against 0.2.",
    caption="With one head in each layer, costs add up. With more, removing all costs more than the sum of the single "
    "costs: heads stand in for each other.",
)
spared = characters.range("4 heads", "heads that cost under 0.1 alone")
print(f"with 4 heads: {spared[0]:.0f} of 8 heads cost less than 0.1 nats alone, with every seed")
for arm in ("4 heads", "16 heads"):
    pairs = zip(characters.values(arm, "all, together"), characters.values(arm, "all, one by one"), strict=True)
    ratios = [together / alone for together, alone in pairs]
    print(f"{arm}: together costs {min(ratios):.1f} to {max(ratios):.1f} times the sum")
prove("seven of eight heads can be spared, one at a time", spared[0] >= 7)

# %% [markdown] id="removed-says"
# With four heads in each layer, seven of eight can be removed alone for less than 0.1 nats. (A *nat* is the unit of the
# loss.) The eighth is a head that looks at the previous character. It is the one that is missed most, with every seed.
# Now compare the sum with the cost together. If heads had nothing to do with each other, costs would add up. Where a layer has a single
# head, they nearly do. Where it has more, removing all costs more than the sum. Each can be spared *because the
# others are there*.
#
# So the sentence is true of heads one at a time, and says nothing about all of them together.
#
# ## 3 Are more heads better?
#
# The same runs answer another question. At the same width and with the same number of parameters, which number of heads
# reads best?

# %% id="more-record" tags=["hide-input"]
# Figure: the loss on text that was held out, five seeds
show(
    characters.figure("held-out loss"),
    alt=characters.alt("held-out loss"),
    caption="One and four heads are alike; sixteen heads of four numbers each are worse, with every seed.",
)

# %% [markdown] id="more-says"
# After 300 steps one head and four heads are alike, and 16 heads are worse with every seed. It is tempting to explain
# that: a head of 4 numbers compares in four directions only. But in a trial with 1000 steps and two seeds, four heads
# were best, and 16 had passed one head. So the order after 300 steps is not the last word. We did not measure what
# decides it.
#
# ## 4 Do heads differ before they are trained?
#
# A popular exercise: take ten tokens, a causal mask and four heads with random parameters, and look at what they do.

# %% [markdown] id="untrained-question"
# **Predict.** At the last token, which sees all ten: do the four heads look at different tokens? Do they look sharply?

# %% id="untrained-guess"
ex.predict("lab_heads_untrained", "")

# %% id="untrained"
torch.manual_seed(0)
fresh = MultiHeadAttention(64, 4)
with record_weights(fresh) as maps:
    fresh(torch.randn(1, 10, 64), mask=masks.causal_mask(10))
(random_maps,) = maps.values()
last = random_maps[0, :, -1]  # (H, S): the last token
print("token with the largest weight, by head:", last.argmax(-1).tolist())
print("that weight:", " ".join(f"{weight:.2f}" for weight in last.amax(-1)))
entropies = torch.special.entr(last).sum(-1)
print("entropy:", " ".join(f"{e:.2f}" for e in entropies), f"of {math.log(10):.2f}")

# %% id="untrained-figure" tags=["hide-input"]
# Figure: four heads with random parameters
show(
    heat_maps({f"head {h}": random_maps[0, h] for h in range(4)}, every=3, bar="weight", size=(7.5, 2.2)),
    alt="Four lower triangles of ten by ten tokens. In all four the weights get paler from the top to the bottom; dark "
    "cells stand mostly in the first rows, which have few tokens to look at.",
    caption="Random heads have different favourites, drawn by chance. The dark cells at the top are there because the "
    "first tokens have nobody else to look at.",
)

# %% [markdown] id="untrained-says"
# The largest weight lies at different tokens, so one might say that the heads differ. But mostly they look at everything
# alike: the *entropy*, which says how even the weights are, is near its largest possible value in three of them. Another
# draw gives other favourites. Such maps show the dice, not a model.
#
# ## 5 Is one fused product faster?
#
# Programs often compute queries, keys and values with one *fused* matrix. The numbers are the same. On a graphics card
# that saves the cost of starting two more products. On this processor?

# %% id="fused-time" tags=["not-compared:clock"]
separate, fused = MultiHeadAttention(512, 8), MultiHeadAttention(512, 8, fused=True)
fused.load_state_dict(separate.state_dict())  # the library joins the three matrices
tokens = torch.randn(4, 128, 512)
same = torch.allclose(separate(tokens), fused(tokens), atol=1e-5)
prove("fused maps give what separate ones give", same)
for name, layer in 2 * (("separate", separate), ("fused", fused)):
    with torch.no_grad():
        layer(tokens)
        start = time.process_time()
        for _ in range(5):
            layer(tokens)
    print(f"{name:>9}: {1000 * (time.process_time() - start) / 5:.1f} ms")

# %% [markdown] id="fused-says"
# Each was timed twice. If two timings of the same layer differ as much as the two layers do, the clock has no answer.

# %% [markdown] id="end"
# ## What you have
#
# - A way to read a head off its matrices: the QK circuit says who fits whom, the OV circuit what is handed over.
# - A test for each reading: take the head away, and see what breaks, also in other heads.
# - A habit: ask for the seeds, for the rival that counts, and for the model with one layer.
#
# **An open question for you.** Train the model with one head in each layer, or with three layers. Is there still a
# writer and a reader? Start from the cells of section 1, and measure with your own `induction_score`.
#
# ### Sources
#
# - Elhage et al. 2021, *A Mathematical Framework for Transformer Circuits*: QK and OV circuits, composition.
# - Olsson et al. 2022, *In-context Learning and Induction Heads*, arXiv:2209.11895.
# - Michel et al. 2019, *Are Sixteen Heads Really Better than One?*, arXiv:1905.10650.
