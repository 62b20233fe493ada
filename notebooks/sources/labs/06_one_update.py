# %% [markdown] id="title"
# # Lab: what happens between two updates of the weights?
#
# **The question: a training loop says “take a batch, compute the loss, update the weights”. What is hidden in these
# few words, and what goes wrong there without an error?** You follow one update through its parts, in the order in
# which they happen: which rows make a batch, how gradients of several batches are added, where numbers are dropped,
# how a gradient is clipped, which rate the update gets, and what must be saved so that the run can go on tomorrow.
#
# The lab stands on [chapter 6](../06_training.ipynb), with its loss per token, its optimizers and its schedules. It
# has six exercises and takes about {minutes} minutes. You can stop after each section.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.data import CharTokenizer, TokenBatches, encode_pairs, pad_batch
from course_lib.testing import prove
from course_lib.training import TrainingConfig, noam_schedule, tasks, update
from course_lib.transformer import Transformer, TransformerConfig
from coursework import exercises as ex
from coursework.corpora import load_pairs
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_06_one_update as plots
from coursework.records import record

torch.manual_seed(0)
torch.set_num_threads(1)

# %% id="update-drawn" tags=["hide-input"]
# Drawing: the parts of one update
drawings.one_update().show()

# %% [markdown] id="batches"
# ## 1 Which rows make a batch?
#
# A *batch* is a rectangle: all its rows have the same length. Sentences do not. So the shorter ones are filled up
# with *padding*, which is computed like any other id and then thrown away. How much is thrown away depends on which
# sentences stand together. Here are six sentences, two in each batch.

# %% id="padded-drawn" tags=["hide-input"]
# Drawing: six sentences in batches of two, as they come and sorted by length
drawings.padded_batches([2, 9, 4, 8, 3, 7], 2).show()

# %% [markdown] id="batches-says"
# **By hand.** On the left the rows are padded to 9, 8 and 7, each twice: 48 ids for 33 real ones. On the right they
# are padded to 3, 7 and 9: 38 ids. Putting sentences of similar length together saves that much. It is called
# *bucketing*.
#
# There is a second decision: how many rows? A fixed number wastes memory where sentences are short and runs out of it
# where they are long. So batches are cut by the **number of ids**, padding included: many short rows, or few long
# ones. You write such a function.

# %% exercise="bucket_batches"

# %% exercise="padding_share"

# %% [markdown] id="waste-text"
# Now real data: number words and dates, in German and English, of chapter 6. The library's `TokenBatches` cuts
# batches by ids, with bucketing or without.
#
# **Predict.** Which share of the ids is padding in either case?

# %% id="waste-guess"
ex.predict("share_of_padding", "")

# %% id="waste" tags=["hide-input"]
# Figure: the lengths of the sentences, and the share of padding with and without bucketing
pairs = load_pairs("numbers+dates", "train", 4000)
tokenizer = CharTokenizer.train([text for pair in pairs for text in pair])
examples = encode_pairs(pairs, tokenizer)  # dicts of ids: source ... eos, target bos ... eos
waste = {
    name: TokenBatches(examples, max_tokens=1500, bucket=bucket).padding_waste()
    for name, bucket in (("as they come", False), ("by length", True))
}
show(
    plots.lengths_and_padding([len(example["target"]) for example in examples], waste),
    alt="Left, a histogram of the lengths of 4000 target sentences, which spread widely. Right, two bars: the share of padding is "
    "large when rows come as they are and small when they are grouped by length.",
    caption="The more the lengths differ, the more there is to gain.",
)
for name, share in waste.items():
    print(f"{name:>12}: {100 * share:.1f} % of the ids are padding")
prove(
    "grouping by length saves more than three quarters of the padding", waste["by length"] < waste["as they come"] / 4
)

# %% [markdown] id="waste-says"
# There is a price. If all sentences were sorted once, the model would see only short sentences for a while and then
# only long ones. So `TokenBatches` shuffles first, sorts within pools of about a hundred batches, cuts, and shuffles
# the batches.
#
# *A sentence you may meet:* “the batches of the paper hold 25,000 tokens”. It was about 25,000 tokens of the source
# **and** about 25,000 of the target (section 5.1).
#
# ## 2 Many small batches for one large one
#
# Large batches give smoother gradients, but they may not fit into memory. Then one cuts the batch into
# *micro-batches*. Each goes through the model alone, the gradients are added up, and only then are the weights
# updated. PyTorch makes it easy: without `zero_grad`, a second `backward` adds to the gradients of the first. So what
# can go wrong?
#
# **By hand.** A batch has ten real tokens. One micro-batch holds two of them, at a loss of 4 each, because its
# sentences are short. The other holds eight, at a loss of 1 each.
#
# | | sum | count | mean |
# |---|---|---|---|
# | first | 8 | 2 | 4 |
# | second | 8 | 8 | 1 |
# | mean of the two means | | | 2.5 |
# | all tokens together | 16 | 10 | 1.6 |
#
# The mean of means is another number, and it has another gradient. In it a token of the first micro-batch weighs 1/4,
# half of a half. It should weigh 1/10.

# %% id="weights-drawn" tags=["hide-input"]
# Figure: what each of the ten tokens weighs, in both means; and a check of the example
of_means = torch.tensor([1 / 4] * 2 + [1 / 16] * 8)
weights = {"mean of means": of_means, "all tokens together": torch.full((10,), 0.1)}
axes = {"xlabel": "token (the first micro-batch holds two)", "ylabel": "weight in the loss"}
fig = common.bars(range(1, 11), weights, colours=(palette.key, palette.value), xticks=range(1, 11), **axes)
fig.axes[0].axvline(2.5, color=palette.residual, linestyle="--", linewidth=1)
show(
    fig,
    alt="Ten tokens with two bars each. In the mean of means the first two tokens weigh 0.25 each and the other eight 0.0625. In the "
    "mean over all tokens each weighs 0.1.",
    caption="In the mean of means a token counts more because its neighbours are few.",
)
losses = torch.tensor([4.0] * 2 + [1.0] * 8)
prove("the example of the two means", (of_means @ losses).item() == 2.5 and losses.mean().isclose(torch.tensor(1.6)))

# %% [markdown] id="accumulate-text"
# The cure is simple: add up *sums* of losses and *counts* of tokens, and divide once at the end. In the exercise you
# repair a function that does it the other way.

# %% exercise="accumulate_gradients"

# %% [markdown] id="accumulate-run-text"
# Here it is on a translator of two layers on each side. We take 48 sentences, sorted so that the micro-batches differ
# as much as possible, once as a whole and once in four parts. The update is made twice, from the same weights.

# %% id="accumulate-model" tags=["hide-input"]
# A translator with fresh weights, 48 sentences as one batch and as four
torch.manual_seed(0)
shape = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2, "norm_place": "pre"}
shape |= {"positions": "rotary", "vocab_size": tokenizer.vocab_size, "share_vocabulary": True, "pad_id": 0}
small = Transformer(TransformerConfig(**shape, dropout=0.0))
task = tasks.Translation(pad_id=0, smoothing=0.1)
rows = sorted(examples[:48], key=lambda row: len(row["target"]))
parts = [pad_batch(rows[i : i + 12]) for i in range(0, 48, 12)]
whole = pad_batch(rows)


# %% id="accumulate-code"
def accumulated(model, batches):
    """The gradient of the mean loss over all real tokens of all batches."""
    model.zero_grad()
    tokens = 0
    for batch in batches:
        total, count = task.loss(model, batch)  # a sum and a count
        total.backward()  # adds to the gradients that are there
        tokens += count
    return torch.cat([p.grad.flatten() / tokens for p in model.parameters()])


once, in_parts = accumulated(small, [whole]), accumulated(small, parts)
off = (once - in_parts).norm() / once.norm()
print("real targets:", [int((part["target"][:, 1:] != 0).sum()) for part in parts])
print("the same gradient to six digits:", bool(off < 1e-5))

# %% id="accumulate-proof" tags=["hide-input"]
# Check: the library's update, and how far off the mean of means is
prove("micro-batches give the gradient of the whole batch", off < 1e-5)
after = []
for batches in ([whole], parts):
    model = copy.deepcopy(small)
    update(model, task.loss, batches, [torch.optim.SGD(model.parameters(), lr=0.1)])
    after.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
prove("the library's update accumulates exactly, too", torch.allclose(*after, atol=1e-6))
means = sum(accumulated(small, [part]) for part in parts) / 4
distance = ((means - once).norm() / once.norm()).item()
print(f"the mean of means is off by {100 * distance:.0f} % of the gradient's length")
prove("the mean of means is another gradient", distance > 0.02)

# %% [markdown] id="dropout"
# ## 3 Numbers that are dropped
#
# *Dropout* sets numbers to zero by chance while the model trains, so that it cannot rely on any single one. With a
# share of 0.1, each number is dropped with probability 0.1. What is left is divided by 0.9, so that the average stays
# where it was. **By hand:** the four numbers 9, 9, 9, 9 become, for example, 10, 10, 0, 10. Each is 9 on average,
# since 0.9 · 10 = 9.
#
# Where does a Transformer drop? There are two answers.

# %% id="dropout-drawn" tags=["hide-input"]
# Drawing: the places of dropout in one layer
drawings.dropout_places().show()

# %% [markdown] id="dropout-says"
# The text of the paper (section 5.4) names two places, marked A: the output of each *sublayer* (an attention or a
# feed-forward part) before it is added to the stream, and the sums of embeddings and positions. The authors' code,
# tensor2tensor, has switches for two more, marked B: the attention weights, and the hidden numbers inside the
# feed-forward layer. In the settings of the paper (`transformer_base_v1`) these two are 0.0, in agreement with the
# text. Later settings (`transformer_base_v2`) have 0.1, and much code follows those.
#
# So “dropout 0.1 as in the paper” can mean two models. Our configuration has a switch for each place; left alone, the
# B places follow `dropout`. We count the modules that drop something, in a model with six layers on each side.


# %% id="dropout-places" tags=["hide-input"]
# Count the parts of each kind that drop something in training
def places(config):
    names = {"Residual": "sublayer outputs (A)", "Dropout": "sums of embeddings (A)"}
    names |= {"MultiHeadAttention": "attention weights (B)", "FeedForward": "inside feed-forward (B)"}
    drops = []
    for module in Transformer(config).modules():
        share = getattr(module, "p" if isinstance(module, nn.Dropout) else "dropout", 0)
        drops += [type(module).__name__] if isinstance(share, float) and share > 0 else []
    return {what: drops.count(name) for name, what in names.items()}


base = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 6, "n_decoder_layers": 6, "vocab_size": 99, "dropout": 0.1}
text = places(TransformerConfig(**base, attention_dropout=0.0, activation_dropout=0.0))
later = places(TransformerConfig(**base))
for what, count in text.items():
    print(f"{what:>24}: {count:2} as in the text, {later[what]:2} as in the later settings")
wanted = {"sublayer outputs (A)": 30, "sums of embeddings (A)": 2}
prove("the text's dropout: 30 sublayer outputs and 2 sums of embeddings", wanted.items() <= text.items())
prove("and none inside", sum(text.values()) == 32 and sum(later.values()) == 62)
dropping = Transformer(TransformerConfig(**shape, dropout=0.1))
pieces = accumulated(dropping, [whole]), accumulated(dropping, parts)
prove(
    "with dropout, parts and whole give different gradients", (pieces[0] - pieces[1]).norm() > 0.01 * pieces[0].norm()
)

# %% [markdown] id="dropout-accumulate"
# The paper's model has 6 · 2 + 6 · 3 = 30 sublayers, which is the first line.
#
# Dropout also ends the beautiful equality of section 2. Each pass draws anew which numbers are dropped, and four
# passes draw other ones than a single pass. The gradients then agree on average, and no longer number by number. The
# same holds for two runs: to repeat one exactly, one has to repeat its random numbers. Remember this for section 6.
#
# ## 4 A gradient that is too long
#
# Now and then a batch has a gradient many times longer than the others: a rare word, a spoiled sentence, an unlucky
# moment early in the run. One such step can throw away what a thousand good ones have learned. **Clipping** bounds
# the damage: if the gradient is longer than a limit, it is shortened to the limit. Its direction stays.
#
# **By hand.** Two weights have the gradients 3 and 4. Their length together is $\sqrt{9 + 16} = 5$. With a limit of
# 1, both are multiplied by 1/5, and become 0.6 and 0.8. Had we cut each number at 1, we would have got 1 and 1, which
# points elsewhere.
#
# $$g \leftarrow g \cdot \min\left(1, \frac{c}{\lVert g \rVert}\right)$$
#
# Here g holds the gradients of *all* parameters, taken as one long vector; $\lVert g \rVert$ is its length, and c the
# limit.

# %% id="clip-drawn" tags=["hide-input"]
# Figure: the gradient (3, 4), shortened to length 1, and cut number by number; and a check of the example
show(
    plots.gradient_cut_in_two_ways(),
    alt="Three arrows from the origin. The gradient goes to (3, 4). Clipped together it goes to (0.6, 0.8), in the same direction, on a "
    "dashed circle of radius 1. With each number cut at 1 it goes to (1, 1), in another direction and beyond the circle.",
    caption="Clipping all numbers together changes the length and not the direction.",
)
prove("the example of clipping", torch.allclose(torch.tensor([3.0, 4.0]) / 5, torch.tensor([0.6, 0.8])))

# %% exercise="clip_gradients"

# %% [markdown] id="bad-batch-text"
# What does it buy? Here is a toy in which one batch goes wrong. A linear model learns by plain gradient descent, and
# at step 100 the data of a single batch are 30 times too large, and its targets have the wrong sign. The run is
# repeated with five seeds.

# %% id="bad-batch" tags=["hide-input", "picture:10"]
# Figure: the loss of a linear model before and after one spoiled batch, with and without clipping


def toy(seed, limit, steps=200):
    generator = torch.Generator().manual_seed(seed)
    right = torch.randn(8, generator=generator)
    weight, losses = nn.Parameter(torch.zeros(8)), []
    for step in range(steps):
        x = torch.randn(16, 8, generator=generator)
        y = x @ right
        losses.append((weight - right).square().sum().item())
        if step == 100:
            x, y = 30 * x, -30 * y
        gradient = torch.autograd.grad((x @ weight - y).square().mean(), weight)[0]
        (clipped,), _ = clip_gradients([gradient], limit)
        weight.data -= 0.1 * clipped
    return losses


runs = {limit: torch.tensor([toy(seed, limit) for seed in range(5)]) for limit in (math.inf, 1.0)}
jumps = {limit: found[:, 101:110].amax(dim=1).tolist() for limit, found in runs.items()}
later = {limit: found[:, 165].tolist() for limit, found in runs.items()}
shown = dict(zip(("not clipped", "clipped at 1"), (found.clamp(min=1e-12) for found in runs.values())))
axes = {"xlabel": "step", "ylabel": "squared error of the weights", "yscale": "log"}
show(
    common.curves(range(200), shown, colours=(palette.key, palette.value), styles=("-", "-"), **axes),
    alt="Squared error of the weights against the step, logarithmic, five runs each. Both kinds fall. At step 100 the runs without clipping jump up "
    "by many powers of ten and need the rest of the run to come back. The clipped runs jump to 0.01 only and are back after some sixty steps.",
    caption="One spoiled batch at step 100. A clipped gradient is never longer than the limit.",
)
prove("in each of five runs one batch undoes everything without clipping", min(jumps[math.inf]) > 100)
prove("clipped, the error jumps to 0.01 only", all(abs(jump - 0.01) < 1e-3 for jump in jumps[1.0]))
prove(
    "and is gone again 65 steps later, when without clipping it is not", max(later[1.0]) < 1e-10 < min(later[math.inf])
)

# %% [markdown] id="clip-adam-text"
# Look also at the left part of the figure. There the clipped runs are slower, because the limit shortens their honest
# first gradients, too.
#
# *A sentence you may meet:* “clipping at norm 1 prevents exploding gradients”. Two remarks. First, a clipped gradient
# still goes to the optimizer, and Adam divides each gradient by the size that it usually has. So Adam's very first
# step is the same whatever the factor; the next cell shows it. With Adam, clipping matters for gradients that are
# larger than *their own past*.

# %% id="clip-adam"
moves = []
for factor in (1.0, 0.01):  # the same gradient, and a hundredth of it
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = factor * torch.tensor([3.0, -4.0, 0.5])
    torch.optim.Adam([weight], lr=0.1, eps=1e-9).step()
    moves.append(weight.detach())
print("the weights move by", [f"{move:+.3f}" for move in moves[0].tolist()])
same = torch.allclose(*moves, atol=1e-6)
prove("Adam's first step does not depend on the length", same)

# %% [markdown] id="clip-run-text"
# Second, whether 1 is a safety net or a part of the recipe depends on how long the gradients are. We train the
# translator for 120 steps with a limit of 1, one seed, and look at the lengths before clipping.
#
# **Predict.** In which share of the steps does clipping do anything?

# %% id="clip-guess"
ex.predict("share_of_clipped_steps", "")

# %% id="clip-run" tags=["hide-input", "picture:40", "atol:0.15", "atol:5"]
# Figure: the length of the gradient in 120 steps of the translator
torch.manual_seed(0)
model, stream = copy.deepcopy(small), TokenBatches(examples, max_tokens=1000, seed=0).forever()
optimizer, norms = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98)), []
for step in range(120):
    optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (step + 1) / 20)
    result = update(model, task.loss, [next(stream)], [optimizer], clip=1.0)
    norms.append(result.gradient_norm)
axes = {"xlabel": "step", "ylabel": "length of the gradient", "yscale": "log"}
show(
    common.curves(range(1, 121), {"": norms}, styles="-", colours=[palette.value], levels={"": 1.0}, **axes),
    alt="Length of the gradient against the step, logarithmic, with a dashed line at the limit of 1. It starts well above the limit and "
    "falls to around it.",
    caption="Above the dashed line the gradient is clipped.",
)
share = sum(norm > 1 for norm in norms) / len(norms)
print(f"first {norms[0]:.1f}, median {sorted(norms)[60]:.1f}; clipped in {100 * share:.0f} % of the steps")
prove("the first step is clipped", norms[0] > 1)

# %% [markdown] id="clip-run-says"
# A limit that is passed so often is no safety net any more. It sets the length of the gradient in many of the steps.
# Neither is wrong, but a report that says “we clip at 1” should say how often that was.
#
# ## 5 Which rate does the update get?
#
# A loop has a line for the optimizer and a line for the schedule. Which comes first? PyTorch's documentation puts the
# schedule after the optimizer. Then the number that one prints, and the number that the update used, need not be the
# same. Follow four rounds on paper.

# %% exercise="first_update"

# %% [markdown] id="order-text"
# The paper's schedule, written after the update, has the same trouble. Its rate is a function of the step, and an
# optimizer that was built with a rate of 0 waits for its first rate. Both orders, on one weight:

# %% id="order"
for first in ("update", "schedule"):
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight], lr=0.0)
    weight.grad = torch.ones(1)
    if first == "schedule":
        optimizer.param_groups[0]["lr"] = noam_schedule(1, 512, 4000)
    optimizer.step()
    print(f"{first} first: the weight moves by {1 - weight.item():.1e}")

# %% id="order-drawn" tags=["hide-input"]
# Figure: the rate that each update gets in the two orders; and a check that the first update is lost
ends = [(n, n + side) for n in range(1, 7) for side in (-0.5, 0.5)]  # of the stairs
rates = {"schedule first": [min(1, n / 4) for n, _ in ends], "update first": [min(1, (n - 1) / 4) for n, _ in ends]}
axes = {"xlabel": "update", "ylabel": "share of the peak rate", "ylim": (-0.05, 1.1)}
show(
    common.curves([x for _, x in ends], rates, styles="-", colours=(palette.value, palette.key), **axes),
    alt="Two staircases of the rate over six updates with a warm-up of four. With the schedule first the rate is a quarter, a half, three "
    "quarters, and then the peak. With the update first it is zero at the first update, and each stair comes one update later.",
    caption="With the update first, the first batch is computed and thrown away, and every printed rate belongs to the next update.",
)
weight = nn.Parameter(torch.ones(3))
weight.grad = torch.ones(3)
torch.optim.Adam([weight], lr=0.0).step()
prove("at a rate of 0 the first update moves nothing", torch.equal(weight, torch.ones(3)))

# %% [markdown] id="order-says"
# How bad is it? One lost batch is nothing in a run of 100,000 updates. But a log that is off by one misleads anyone
# who compares warm-ups by it, and a resumed run begins with the wrong rate.
#
# A schedule that is an *object* brings two more accidents, both found in published listings. The first is asked for
# step 0 and divides by zero. In the second, a method is called without an object, with `None` instead.


# %% id="attribute-error"
class Schedule:
    def __init__(self, d_model, warmup):
        self.d_model, self.warmup = d_model, warmup

    def rate(self, step):
        return self.d_model**-0.5 * min(step**-0.5, step * self.warmup**-1.5)


for attempt in (lambda: Schedule(512, 4000).rate(0), lambda: Schedule.rate(None, 1)):
    try:
        attempt()
    except (ZeroDivisionError, AttributeError) as error:
        print(f"{type(error).__name__}: {error}")

# %% [markdown] id="function-says"
# The course therefore uses plain functions of a step that counts from 1. A function has no hidden state; nothing of
# it has to be saved; and a bad step is refused with a sentence.

# %% id="function-run"
try:
    noam_schedule(0, 512, 4000)
except ValueError as error:
    print(error)
peak = (512 * 4000) ** -0.5
paper = TrainingConfig(steps=9999, schedule="noam", warmup=4000, learning_rate=peak)
print(f"the paper's first rate: {paper.rate(1):.2e}, its peak: {paper.rate(4000):.2e}")

# %% [markdown] id="resume"
# ## 6 Going on tomorrow
#
# Long runs are interrupted: the power fails, the machine is needed, somebody closes the lid. The weights were saved.
# Is that enough? Ask what the *next* update depends on.

# %% id="resume-drawn" tags=["hide-input"]
# Drawing: what the next update depends on
drawings.parts_of_a_checkpoint().show()

# %% [markdown] id="resume-text"
# The first is obvious. The optimizer has a memory: the running means of Adam, or a momentum. The step says which rate
# comes next. The position in the data says which batch comes next; without it the model sees the first batches twice
# and the last ones never. And the random state decides what dropout will drop. In the exercise you repair a run that
# has forgotten some of it.

# %% exercise="resume_state"

# %% [markdown] id="resume-run-text"
# Now we do it with a translator that has dropout, and forget one part at a time. A run of 40 updates goes straight
# through. After 20 updates we keep a copy of everything. Then we go on from the copy, with one part left out each
# time, and compare the weights at the end with those of the straight run.
#
# **Predict.** Which part, forgotten, takes the run furthest from where it should have ended?

# %% id="resume-guess"
ex.predict("forgotten_part", "")


# %% id="resume-code"
def go_on(saved, updates):
    """Continue from what was saved; returns the losses."""
    losses = []
    torch.set_rng_state(saved["random state"])
    for _ in range(updates):
        saved["step"] += 1
        rate = 3e-3 * min(1, saved["step"] / 10)
        saved["optimizer"].param_groups[0]["lr"] = rate
        batch = next(saved["position in the data"])
        result = update(saved["weights"], task.loss, [batch], [saved["optimizer"]])
        losses.append(result.loss)
    saved["random state"] = torch.get_rng_state()
    return losses


# %% id="resume-run" tags=["hide-input", "picture:40", "tol:0.2", "atol:0.05"]
# Figure: what happens when one part of a checkpoint is forgotten
def begin():
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**(shape | {"d_model": 32}), dropout=0.1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    stream = TokenBatches(examples, max_tokens=300, seed=1)
    return {"weights": model, "optimizer": optimizer, "step": 0, "stream": stream,
            "position in the data": stream.forever(), "random state": torch.get_rng_state()}  # fmt: skip


def restored(copy_of, without):
    """A new run with all parts of the copy but one, which is as at the start of a run."""
    run = begin()
    if without != "weights":
        run["weights"].load_state_dict(copy_of["weights"])
    if without != "optimizer":
        run["optimizer"].load_state_dict(copy.deepcopy(copy_of["optimizer"]))
    if without != "step":
        run["step"] = 20
    if without != "position in the data":
        run["stream"].load_state_dict(copy_of["position in the data"])
        run["position in the data"] = run["stream"].forever()
    if without != "random state":
        run["random state"] = copy_of["random state"]
    return run


straight = begin()
go_on(straight, 20)
copy_of = {
    "weights": copy.deepcopy(straight["weights"].state_dict()),
    "optimizer": copy.deepcopy(straight["optimizer"].state_dict()),
    "position in the data": straight["stream"].state_dict(),
    "random state": straight["random state"],
}
curves, ends = {"straight on": go_on(straight, 20)}, {}


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


goal = flat(straight["weights"])
started = goal - torch.cat([copy_of["weights"][name].flatten() for name, _ in straight["weights"].named_parameters()])
for without in ("nothing", "random state", "position in the data", "step", "optimizer", "weights"):
    run = restored(copy_of, without)
    curves[without] = go_on(run, 20)
    ends[without] = ((flat(run["weights"]) - goal).norm() / started.norm()).item()
show(
    plots.parts_forgotten(ends, curves),
    alt="Left, six bars: how far the weights end from those of the straight run when nothing, the random state, the position in the data, the "
    "step, the optimizer or the weights were forgotten. With nothing forgotten the distance is zero, otherwise it is not. Right, the losses of "
    "the straight run and of two that forgot the optimizer and the step.",
    caption="Distance 1 is the way that the weights go in these 20 updates. Only the whole checkpoint ends where it should.",
)
for name, end in ends.items():
    print(f"forgotten: {name:>18}, distance {end:.2f}")
prove("with everything restored the weights agree bit for bit", ends["nothing"] == 0.0)
prove("with any part forgotten they do not", min(end for name, end in ends.items() if name != "nothing") > 0.05)

# %% [markdown] id="resume-says"
# Only the first line is zero, and it is zero to the last bit. Do the other lines mean that such a run is spoiled?
# Mostly not. A run with other batches or another dropout is another run of the same kind, as with another seed. The
# forgotten optimizer takes the run furthest, next to the forgotten weights: a fresh Adam knows no usual size of a
# gradient, and its first steps move every weight by the full rate. In this run, which is still young, that did not
# even hurt the loss; late in a run, when the rate has fallen for good reasons, one would not bet on it. What one
# loses in each case is that a strange result can be repeated and looked into.
#
# ## 7 What are the settings worth?
#
# Rates, schedules, optimizers: how much does each decide? A recorded measurement gives an idea. nanoGPT is a
# well-known small program for training GPTs; its recipe for a CPU trains a model of characters on the plays of
# Shakespeare in 2000 steps. We cut it to 100 steps and change one thing at a time.
# (`python benchmarks/time_to_quality.py --ladder` repeats it; one seed for each bar.) Some names in the figure: a
# *table* for pairs is an embedding for each pair of neighbouring characters, added to that of the last one. *QK-norm*
# normalises queries and keys before they are multiplied. *Squared ReLU* squares what the feed-forward layer's bend
# lets through. *Muon* is an optimizer for matrices (chapter 6).
#
# **Predict.** With so few steps, which gives most: another optimizer, other positions, or embeddings of pairs,
# triples and fours of characters beside those of single ones?

# %% id="settings-guess"
ex.predict("best_single_change", "")

# %% id="settings-recorded" tags=["hide-input"]
# Figure: the held-out loss after 100 steps, with each change alone and with all together
measured = record("time-to-quality")
alone = [entry for entry in measured["ladder"] if entry["rung"] == "alone"]
together = [entry for entry in measured["ladder"] if entry["rung"] == "together"][-1]["loss"]
rungs = sorted(alone[1:], key=lambda entry: entry["loss"])
names = ["all that were taken"] + [entry["changes"][0] for entry in rungs]
gains = [together - alone[0]["loss"]] + [entry["loss"] - alone[0]["loss"] for entry in rungs]
size = (7.2, 0.32 * len(names) + 0.9)
colours = [palette.value] + [palette.query if gain < 0 else palette.key for gain in gains[1:]]
label = f"change of the held-out loss ({alone[0]['loss']:.2f} without any)"
show(
    common.bars(names, gains, size=size, lying=True, colours=colours, levels={"": 0}, xlabel=label),
    alt="Bars of the change in held-out loss: "
    + "; ".join(f"{name} {gain:+.2f}" for name, gain in zip(names, gains, strict=True))
    + ".",
    caption="Bars to the left are better. Together the changes that were taken give more than any of them alone.",
)
for seed, pair in enumerate(measured["pairs"]):
    theirs, ours = pair["theirs"], pair["ours"]
    ratio = theirs["seconds"] / ours["seconds"]
    print(
        f"seed {seed}: recipe {theirs['loss']:.4f}, without tables {ours['loss']:.4f} in 1/{ratio:.0f} of its CPU time"
    )
prove("no change alone gives what they give together", min(entry["loss"] for entry in alone) > together)

# %% [markdown] id="settings-says"
# Changes do not add up. A high rate for all weights, without a warm-up, does harm under AdamW. Beside Muon, which
# updates the matrices, an even higher one for the embeddings and the head goes along with a gain. And gains have
# prices that a loss does not show: the embeddings of groups of characters make the model four times as large, though
# hardly slower. Without the tables, and so with no more weights, the other changes reach the loss of the whole recipe in
# a small part of its time; these are the last lines above. This is one text and one size of model. The command
# `course train lm` starts with most of these changes and without the tables; with `--plain` it starts without all.
#
# ## The answer
#
# What happens between two updates of the weights?
#
# | part | what can go wrong quietly | what to do |
# |---|---|---|
# | the batch | most of it is padding | group by length, cut by ids |
# | accumulation | a mean of means | add sums and counts, divide once |
# | dropout | other places than you think | name the places, count them |
# | clipping | each tensor alone; a limit that always bites | one factor for all; look at the norms |
# | the rate | the first update has none | a function of the step, set before the update |
# | the checkpoint | only the weights are in it | everything that the next update depends on |
#
# **Sources.** Vaswani et al. 2017, arXiv:1706.03762, sections 5.1, 5.3 and 5.4; `transformer_base_v1` and
# `transformer_base_v2` in tensor2tensor, `models/transformer.py`. Pascanu, Mikolov, Bengio 2013, arXiv:1211.5063
# (clipping). Srivastava et al. 2014, *Dropout*, Journal of Machine Learning Research 15. The order of optimizer and
# schedule: PyTorch's documentation of `torch.optim`.
