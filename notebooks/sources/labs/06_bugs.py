# %% [markdown] id="title"
# # A museum of training bugs: which number would have shown it?
#
# *A lab on chapter 6. You should have read [chapter 6](../06_training.ipynb) up to its training loop. About
# {minutes} minutes.*
#
# A training loop forgives nearly everything. The loss falls although the gradient is wrong, although the first update
# is wasted, although the reported number is not the one that was asked for. So bugs stay in loops for years. This
# museum shows seven of them. None raises an error, and all have been seen in programs that people use. For each
# exhibit read the code first, say what is wrong, then run it. The question of the lab is: **which number would have
# shown it?**

# %% id="setup" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.data import CharTokenizer, encode_pairs, pad_batch
from course_lib.testing import prove
from course_lib.training import cosine_schedule, tasks
from course_lib.transformer import Transformer, TransformerConfig
from coursework import exercises as ex
from coursework.corpora import load_pairs
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_06_bugs as plots

torch.manual_seed(0)
torch.set_num_threads(1)

# %% id="loop-drawn" tags=["hide-input"]
# Drawing: the parts of a loop, and where the exhibits of this lab have their bugs
drawings.one_update({"batch": "5", "loss": "4", "backward": "1, 2", "clip": "6", "rate": "3", "weights": "7"}).show()

# %% [markdown] id="bench"
# ## The bench
#
# To look at bugs we need something to train: a small translator of number words and dates with fresh weights, and 48
# sentences. They lie in four *micro-batches*, parts of a batch whose gradients are added up before the weights
# change. They are sorted by length, so the first micro-batch has far fewer real tokens than the last. `task.loss`
# returns a sum of losses and a number of tokens.

# %% id="bench-code" tags=["hide-input"]
# The translator, its 48 sentences as one batch and as four, and a function that collects gradients
train_pairs, test_pairs = load_pairs("numbers+dates", "train", 2000), load_pairs("numbers+dates", "test", 500)
tokenizer = CharTokenizer.train([text for pair in train_pairs for text in pair])
torch.manual_seed(0)
sizes = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2, "norm_place": "pre", "dropout": 0.0}
sizes |= {"positions": "rotary", "vocab_size": tokenizer.vocab_size, "share_vocabulary": True, "pad_id": 0}
model, task = Transformer(TransformerConfig(**sizes)), tasks.Translation(pad_id=0, smoothing=0.0)
rows = sorted(encode_pairs(train_pairs[:48], tokenizer), key=lambda row: len(row["target"]))
parts, whole = [pad_batch(rows[i : i + 12]) for i in range(0, 48, 12)], pad_batch(rows)


def gradient():
    """All gradients of the model as one long vector; they are zero afterwards."""
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return found


print("real targets in the four parts:", [int((part["target"][:, 1:] != 0).sum()) for part in parts])

# %% [markdown] id="means"
# ## Exhibit 1: the careful division
#
# The batch is too large for memory, so the author cuts it into four. Each part has a mean loss, and to get the mean
# of the whole the author divides by the number of parts. What is wrong?

# %% id="means-code"
for part in parts:
    total, count = task.loss(model, part)
    (total / count / len(parts)).backward()
means = gradient()

total, count = task.loss(model, whole)
(total / count).backward()
exact = gradient()
off = ((means - exact).norm() / exact.norm()).item()
print(f"the gradient is off by {100 * off:.0f} % of its length")

# %% id="means-drawn" tags=["hide-input"]
# Figure: what one token of each part weighs, and what it should weigh
counts = [int((part["target"][:, 1:] != 0).sum()) for part in parts]
weights = {"mean of means": [1000 / 4 / n for n in counts], "as it should be": [1000 / sum(counts)] * 4}
axes = {"xlabel": "part", "ylabel": "weight of a token, in thousandths"}
show(
    common.bars(
        range(1, 5), weights, size=(6.2, 2.5), colours=(palette.key, palette.value), xticks=range(1, 5), **axes
    ),
    alt="For each of four parts two bars, what a token weighs. As it should be they are equal in all parts. In the mean of means a token of the first, "
    "shortest part weighs several times as much as one of the last.",
    caption="A token of the short part counts several times as much as one of the long part.",
)
prove("1: the mean of means is another gradient on ragged parts", off > 0.02)

# %% [markdown] id="means-says"
# The parts hold different numbers of real tokens. In a mean of means each *part* counts the same, so a token among
# few counts more. The loss still falls, because the wrong gradient points roughly the right way. **The number that
# shows it:** compute the gradient of the batch in one piece, and in four; the two must agree.
#
# ## Exhibit 2: every fourth step
#
# Gradients of four micro-batches are to be added up before each update. Steps are counted from 0, as Python does. How
# many micro-batches does the first update see?

# %% id="first-code"
waiting, seen = 0, []
for step in range(9):
    waiting += 1  # stands for loss.backward()
    if step % 4 == 0:
        seen.append(waiting)  # stands for optimizer.step()
        waiting = 0
print("micro-batches in each update:", seen, "and never used:", waiting)

# %% id="first-drawn" tags=["hide-input"]
# Figure: the micro-batches in the order in which they come, and the updates that use them
show(
    plots.who_uses_which_batch({"step % 4 == 0": (0, 4, 8), "(step + 1) % 4 == 0": (3, 7)}, 9),
    alt="Nine micro-batches in two rows, coloured by the update that uses them. In the first row the first update uses micro-batch 0 alone, the next 1 to 4, the "
    "third 5 to 8. In the second row the first update uses 0 to 3, the second 4 to 7, and 8 waits.",
    caption="One colour is one update. Above, the first update has a single micro-batch.",
)
prove("2: the first update sees one micro-batch", seen[0] == 1)

# %% [markdown] id="first-says"
# One. The very first update, when the weights are most easily led astray, uses a quarter of the data that was
# intended. And if the gradients are divided by four, it is a quarter as long, too. At the end of an epoch there is a
# second trap of this kind: what is left over is either lost or slips into the first update of the next epoch. **The
# number that shows it:** print the tokens of each update.
#
# ## Exhibit 3: a little longer
#
# The rate falls along half a cosine, from its peak to zero, over 100 steps. The run goes well, so the author lets it
# go on to step 200.
#
# **Predict.** What is the rate at step 200?

# %% id="cosine-guess"
ex.predict("cosine_beyond_its_end", "")


# %% id="cosine-code"
def exhibit3(step, steps=100):
    return 0.5 * (1 + math.cos(math.pi * step / steps))


print({step: round(exhibit3(step), 2) for step in (0, 100, 150, 200)})

# %% id="cosine-drawn" tags=["hide-input"]
# Figure: the exhibit and the library's schedule to twice the planned length
steps = range(1, 201)
rates = {
    "exhibit 3": [exhibit3(step) for step in steps],
    "the library's": [cosine_schedule(step, 100) for step in steps],
}
axes = {"xlabel": "step", "ylabel": "share of the peak rate"}
show(
    common.curves(steps, rates, colours=(palette.key, palette.value), styles=("-", "--"), names="upper center", **axes),
    alt="The rate over 200 steps. Both schedules fall from one to zero at step 100. The exhibit then climbs back to one at step 200; the library's stays at zero.",
    caption="A cosine comes back.",
)
climbs = any(exhibit3(step + 1) > exhibit3(step) + 1e-9 for step in range(1, 200))
stays = all(cosine_schedule(step + 1, 100) <= cosine_schedule(step, 100) for step in range(1, 200))
prove("3: it climbs back to the peak; the library's never rises", climbs and stays)

# %% [markdown] id="cosine-says"
# It is back at the peak. The formula does not know that the run is over. From step 100 on, each update is a little
# bolder than the one before, and the model slowly unlearns what the small rates had polished. **The number that shows
# it:** log the rate that each update used, next to the loss.
#
# ## Exhibit 4: the disappointing validation
#
# Training uses smoothed labels: 0.1 is spread over all tokens, and the right one is wanted with 0.9 besides. The [lab
# on labels](06_labels.ipynb) has the whole story. The author's validation loop calls the same loss function. Here the
# “model” is as good as one can be: a table that knows for each of 100 words which word follows, trained until it says
# exactly what the labels want. What is reported?


# %% id="smoothed-code"
torch.manual_seed(0)
table = nn.Parameter(torch.zeros(100, 100))  # scores of the next word, for each word
follower = torch.randperm(100)
optimizer = torch.optim.Adam([table], lr=0.1)
for _ in range(300):
    loss = F.cross_entropy(table, follower, label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
right = (table.argmax(-1) == follower).float().mean()
plain = F.cross_entropy(table, follower)
print(f"right words: {right:.0%}, reported: {loss:.2f}, plain loss: {plain:.2f}")

# %% id="smoothed-drawn" tags=["hide-input"]
# Figure: the reported and the plain loss beside the floor of the smoothed one; and a check
wanted = torch.full((100,), 0.001, dtype=torch.float64)
wanted[0] += 0.9
floor = torch.special.entr(wanted).sum().item()
names, losses = ["reported (smoothed)", "plain"], [loss.item(), plain.item()]
axes = {"xlabel": "loss per word", "xlim": (0, 1.05)}
colours, level = (palette.key, palette.value), {"lowest possible\nsmoothed loss": floor}
show(
    common.bars(names, losses, size=(6.2, 1.9), lying=True, colours=colours, levels=level, **axes),
    alt="Two bars: the reported smoothed loss, about 0.78, which reaches exactly to a dashed line, the lowest possible smoothed loss; and the plain loss, about 0.1.",
    caption="The model is perfect, and the report says 0.78.",
)
prove(
    "4: all words are right, and the reported loss stands on its floor", right == 1 and abs(loss.item() - floor) < 0.01
)
prove("4: the plain loss is that of saying 0.9", abs(plain.item() + math.log(0.901)) < 0.02)

# %% [markdown] id="smoothed-says"
# The reported loss cannot fall any further, because smoothed labels have a lowest loss above zero. The author
# concludes that the model has stopped learning. Even the plain loss is not 0: trained to say about 0.9, the model says
# about 0.9, and −ln 0.9 is 0.105. In `course_lib`, a task smooths in training mode only. **The number that shows it:**
# the accuracy beside the loss; or the loss of a model that cannot be better.
#
# ## Exhibit 5: the complete vocabulary
#
# To be on the safe side the author builds the vocabulary from *all* files, so that no character is unknown in the
# test. Our training texts here are number words only; the test also has dates. What do the additional ids learn?

# %% id="vocabulary-code"
words = [pair.source for pair in train_pairs[:500]]
known = " ".join(text for text in words if not text[-1].isdigit())  # no dates
unseen = " ".join(pair.source for pair in test_pairs)  # dates, too
leaked = CharTokenizer.train([known, unseen])

embedding = nn.Embedding(leaked.vocab_size, 4)
embedding(torch.tensor(leaked.encode(known))).sum().backward()  # all texts
touched = embedding.weight.grad.any(dim=-1)  # (V,)
dead = sorted({id for id in leaked.encode(unseen) if not touched[id]})
print("ids that no training text ever used:", " ".join(leaked.pieces(dead)))

# %% id="vocabulary-drawn" tags=["hide-input"]
# Figure: how often each id of the test text occurs, and whether training ever touched it; and the honest vocabulary
ids = leaked.encode(unseen)
often = sorted(((ids.count(id), id) for id in set(ids)), reverse=True)
names = [leaked.pieces([id])[0].replace(" ", "␣") for _, id in often]
colours = [palette.query if touched[id] else palette.key for _, id in often]
axes = {"ylabel": "times in the test", "xlabel": "character (orange: its vector is still random)"}
show(
    common.bars(names, [n for n, _ in often], size=(7.2, 2.5), colours=colours, **axes),
    alt="Bars of how often each character occurs in the test text. Letters are blue: training has touched their vectors. Digits, capitals, punctuation and a few letters of dates are "
    "orange: their vectors are as random as at the start.",
    caption="The orange characters have an id, and a vector that nobody has trained.",
)
honest = CharTokenizer.train([known])
fresh, ids = nn.Embedding(honest.vocab_size, 4), honest.encode(unseen)
fresh(torch.tensor(honest.encode(known))).sum().backward()
share = sum(id == honest.unk_id for id in ids) / len(ids)
print(f"with a vocabulary from the training texts, {share:.0%} of the test characters become <unk>")
prove("5: ids from the test set get no gradient", bool(dead))
prove("5: but no training text holds <unk>, so it gets none either", not fresh.weight.grad[honest.unk_id].any())
text, table = torch.tensor(leaked.encode(known)), embedding.weight.detach().double().requires_grad_()
inputs = table[text[:-1]].detach()  # what the head reads: here simply the vectors of the characters
scores = inputs @ table.T  # the table as a head
F.cross_entropy(scores, text[1:]).backward()
push = scores.detach().softmax(-1)[:, dead].T @ inputs / len(inputs)  # subtracted from these rows: only away
prove("5: in a table that is the head as well, these rows are pushed", table.grad[dead].any(dim=-1).all())
prove("5: and only away from what the head reads", torch.allclose(table.grad[dead], push, atol=1e-6))

# %% [markdown] id="vocabulary-says"
# Nothing, as long as the embedding has a table of its own. Their vectors stay as random as they were drawn, so the
# model reads noise where a digit stands. Where embedding and head share one table, the softmax of the head pushes
# these rows, too, but only away: it learns that they never come next, and nothing about what they mean. Worse, the
# report no longer says that anything is unknown.
#
# The honest vocabulary is built from the training texts alone, and an unknown character becomes `<unk>`. That makes
# the *score* honest. It does not make the model good: no training text holds `<unk>`, so nothing is learned
# about it either. That changes only if rare characters of the training text are replaced by it. With a tokenizer on
# bytes nothing is unknown, since there are 256 bytes and no others. But a byte that never occurred in training has an
# untrained vector as well. **The number that shows it:** how many ids of the vocabulary never occur in the training
# text.
#
# ## Exhibit 6: each in its place
#
# Gradients are clipped, and the author does it tensor by tensor, right where each gradient is. Every one is cut to
# length 0.01. What happens to the direction of the step?


# %% id="clip-code"
def shortened(vector, limit):
    return vector * min(1.0, limit / vector.norm().item())


cuts = exact.split([p.numel() for p in model.parameters()])
alone = torch.cat([shortened(cut, 0.01) for cut in cuts if cut.any()])
together = shortened(exact, 0.01)
real = torch.cat([cut for cut in cuts if cut.any()])
print("cosine with the gradient")
print(f"each alone:   {F.cosine_similarity(alone, real, dim=0):.3f}")
print(f"all together: {F.cosine_similarity(together, exact, dim=0):.3f}")

# %% id="clip-drawn" tags=["hide-input", "picture:20"]
# Figure: the length of the gradient of each tensor, before and after either clipping
norms = sorted((cut.norm().item() for cut in cuts if cut.any()), reverse=True)
whole_norm = exact.norm().item()
lines = {"gradient": norms, "each clipped alone": [min(norm, 0.01) for norm in norms]}
lines["clipped together"] = [norm * 0.01 / whole_norm for norm in norms]
colours = (palette.residual, palette.key, palette.value)
axes = {"xlabel": "tensors of parameters, the longest gradient first", "ylabel": "length"}
show(
    common.curves(range(len(norms)), lines, size=(6.6, 2.8), colours=colours, styles="-", yscale="log", **axes),
    alt="The length of the gradient of each tensor, sorted, on a logarithmic axis. Clipped together the curve keeps its shape and lies lower. Clipped one by one it is a flat line for all that were longer than the limit.",
    caption="Clipped together, the shape stays. Clipped one by one, all tensors become equally important.",
)
prove("6: clipping tensor by tensor bends the step", F.cosine_similarity(alone, real, dim=0) < 0.99)
prove("6: clipping all together does not", F.cosine_similarity(together, exact, dim=0) > 0.9999)

# %% [markdown] id="clip-says"
# The step bends. A tensor with a long gradient asked for a large change, and one with a short gradient for a small
# one; after the cut they ask for the same. Such a rule may even train well, but it is another optimizer than the one
# in the report. **The number that shows it:** the cosine between the gradient before and after. It must be 1.
#
# ## Exhibit 7: a decay that is no decay
#
# *Weight decay* draws every weight a little towards zero in each step. In `Adam(weight_decay=…)` the pull is added to
# the **gradient**; in `AdamW` to the **step**. The names differ by one letter. Two weights begin at 1. One has
# gradients a thousand times as large as the other, and in both they cancel over time, so that only the decay should
# move them.
#
# **Predict.** Which of the two weights shrinks more, in either optimizer?

# %% id="decay-guess"
ex.predict("adam_or_adamw", "")

# %% id="decay-code"
paths = {}
for kind in (torch.optim.Adam, torch.optim.AdamW):
    weight = nn.Parameter(torch.ones(2))
    optimizer = kind([weight], lr=0.01, weight_decay=0.1)
    path = []
    for step in range(100):
        weight.grad = torch.tensor([10.0, 0.01]) * (-1) ** step
        optimizer.step()
        path.append(weight.detach().clone())
    paths[kind.__name__] = torch.stack(path)
    large, small = path[-1].tolist()
    print(f"{kind.__name__:>5}: large gradients {large:.2f}, small ones {small:.2f}")

# %% id="decay-drawn" tags=["hide-input"]
# Figure: the two weights over 100 steps, under Adam and AdamW
weights = {
    f"{name}(weight_decay=0.1)": {"large gradients": path[:, 0], "small gradients": path[:, 1]}
    for name, path in paths.items()
}
axes = {"xlabel": "step", "ylabel": "weight"}
show(
    common.panels(common.curves, range(len(paths["Adam"])), weights, size=(7, 2.8), styles=("-", "--"), **axes),
    alt="Two weights over 100 steps in two panels. Under Adam the weight with large gradients hardly shrinks while the one with small gradients falls far. Under AdamW "
    "both shrink slowly and alike.",
    caption="Under Adam the decay depends on the size of the gradients. Under AdamW it does not.",
)
apart = {name: abs(path[-1, 0] - path[-1, 1]).item() for name, path in paths.items()}
prove("7: with Adam the decay of a weight depends on the size of its gradients", apart["Adam"] > 0.1)
prove("7: with AdamW it does not", apart["AdamW"] < 0.02)

# %% [markdown] id="answer"
# Adam divides everything in the gradient by the usual size of the gradient, and so it divides the decay, too. A
# weight with large gradients is hardly decayed at all, and one with small gradients loses most of what it had. AdamW
# leaves the decay out of that division (Loshchilov and Hutter 2019). Much code says “weight decay” and means the
# first. **The number that shows it:** what the decay does to a weight whose gradients cancel.
#
# ## The answer
#
# Which number would have shown it?
#
# | exhibit | what went wrong | the number to look at |
# |---|---|---|
# | 1 | a mean of means | the gradient of the batch, in one piece and in four |
# | 2 | the first update comes too early | the tokens of each update |
# | 3 | the rate climbs again | the rate that each update used |
# | 4 | validation is smoothed | the accuracy beside the loss |
# | 5 | the vocabulary knows the test | ids that never occur in the training text |
# | 6 | clipping tensor by tensor | the cosine before and after |
# | 7 | decay inside the gradient | a weight whose gradients cancel |
#
# The loss is not in this table: alone it shows none of them. What finds such bugs is a second way to
# compute the same thing, and a log that says what each update really used: its tokens, its rate, its norm. The
# training loop of `course_lib` writes such a log.
#
# **Sources.** Loshchilov, Hutter 2019, arXiv:1711.05101 (AdamW). Szegedy et al. 2016, arXiv:1512.00567, section 7
# (smoothed labels). Pascanu, Mikolov, Bengio 2013, arXiv:1211.5063 (clipping by the norm of the whole gradient).
