# %% [markdown] id="title"
# # Lab: do smoothed labels help?
#
# **The question: a model is told “the right token is *cat*, and nothing else has any chance”. That is rarely quite
# true. Does it help to tell it so, a little less firmly?** The paper of 2017 did, with one line of code that nearly
# everybody has copied. You write that line, find out what it asks of a model, see which number it spoils by
# construction, and then look at what it does to three other numbers.
#
# The lab stands on [chapter 6](../06_training.ipynb), with its loss per token and its perplexity. It has two
# exercises and takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math
from statistics import mean

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.testing import prove
from course_lib.training import label_smoothed_cross_entropy
from coursework import exercises as ex
from coursework.pictures import palette, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_06_labels as plots
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="problem"
# ## 1 A goal that is never reached
#
# A model has learned a sentence, and gives the right token the probability 0.9. Its loss there is −ln 0.9 = 0.105. At
# 0.99 it is 0.010, at 0.999 it is 0.001. It becomes smaller and smaller, and it never becomes zero. So there is
# always something to gain by being a little more certain, and *certain* means that the score of the right token runs
# away from the others without end.
#
# That would not matter if the label were always right. But a translation has several good next words, and a sentence
# in the data may be wrong. A model that has put everything on one token pays dearly there: at a probability of 0.001,
# the loss is 6.9.
#
# **Label smoothing** (Szegedy et al. 2016) changes the goal. It takes a small part ε of the wish away from the right
# token, and spreads it evenly over the whole vocabulary, the right token included.
#
# **By hand.** Let the vocabulary have five tokens, and let ε be 0.2. Each token gets 0.2 / 5 = 0.04. The right one
# gets 0.8 besides, together 0.84. The five numbers sum to one.

# %% id="labels-drawn" tags=["hide-input"]
# Figure: a plain label and a smoothed one over five tokens; and a check of the example
tokens = ["a", "cat", "dog", "sat", "the"]
plain = torch.tensor([0.0, 1, 0, 0, 0])
smoothed = 0.8 * plain + 0.2 / 5
labels = {"plain": plain, "smoothed with ε = 0.2": smoothed}
axes = {"ylabel": "wanted probability", "ylim": (0, 1.15)}
show(
    common.panels(common.bars, tokens, labels, size=(6.6, 2.4), colours=palette.value, numbers="%.2f", **axes),
    alt="Two bar charts over the tokens a, cat, dog, sat, the. Plain: cat 1.00, the others 0.00. Smoothed with 0.2: cat 0.84, the others 0.04 each.",
    caption="A smoothed label wants a little of every token.",
)
prove("the example of the smoothed label", torch.allclose(smoothed, torch.tensor([0.04, 0.84, 0.04, 0.04, 0.04])))

# %% [markdown] id="loss"
# The loss stays what it was: the *cross-entropy* to the wanted distribution. Write $p(x)$ for the model's probability
# of token x, y for the right token, and V for the size of the vocabulary. Then the cost of one position is a mixture
# of two numbers:
#
# $$-(1 - \varepsilon)\,\ln p(y) \;-\; \varepsilon \cdot \frac{1}{V} \sum_{x} \ln p(x)$$
#
# The first is the plain loss, at a weight of 1 − ε. The second is the mean of all log-probabilities, at a weight of
# ε. It is large when *any* token gets next to no chance. In the exercise you write it for a batch, where
# two more things must be right: padding costs nothing, and the mean is over real tokens.

# %% exercise="label_smoothed_loss"

# %% id="loss-parity"
logits = torch.randn(3, 5, 11, requires_grad=True)  # (B, T, V)
targets = torch.randint(0, 4, (3, 5))  # (B, T); 0 is padding
ours, count = label_smoothed_loss(logits, targets, 0.1, 0)
flat = logits.flatten(0, 1), targets.flatten()  # (B T, V), (B T,)
theirs = F.cross_entropy(*flat, ignore_index=0, label_smoothing=0.1)
print(f"{ours:.4f} over {count} real targets; PyTorch's function: {theirs:.4f}")
prove("the smoothed loss equals PyTorch's", torch.isclose(ours, theirs))

# %% id="loss-more" tags=["hide-input"]
# Check: the library's function, padding, a batch without any target, and a model that knows nothing
total, number = label_smoothed_cross_entropy(logits, targets, 0.1, ignore=0)
prove("the library's sum and count give the same", torch.isclose(total / number, ours))
ours.backward()
prove("padding gets no gradient", (logits.grad[targets == 0] == 0).all())
nothing = torch.zeros(2, dtype=torch.long)
prove("a batch of padding only is NaN in torch", F.cross_entropy(torch.randn(2, 11), nothing, ignore_index=0).isnan())
knows_nothing = label_smoothed_loss(torch.zeros(1, 2, 7), torch.tensor([[1, 2]]), 0.3, 0)[0]
prove(
    "a model that knows nothing costs ln V, whatever the smoothing",
    math.isclose(knows_nothing, math.log(7), rel_tol=1e-5),
)

# %% [markdown] id="conventions"
# ### 1.1 Over how many tokens?
#
# Not everybody spreads over the same tokens. Szegedy et al. and PyTorch spread ε over all V tokens, the right one
# among them. The code behind the paper of 2017, tensor2tensor, gives the right token exactly 1 − ε and spreads the
# rest over the *other* V − 1; so does fairseq. In the exercise the text asked for the first. How much do the two
# differ?

# %% id="conventions-drawn" tags=["hide-input"]
# Figure: what the right token is wanted with, in both conventions, against the size of the vocabulary
sizes = [2, 3, 5, 10, 30, 100, 1000]
wanted = {"over all V tokens": [0.9 + 0.1 / V for V in sizes], "over the other V − 1": [0.9] * len(sizes)}
axes = {"xlabel": "size of the vocabulary", "ylabel": "wanted of the right token", "ylim": (0.88, 0.96)}
show(
    common.curves(sizes, wanted, colours=(palette.value, palette.key), styles=("o-", "s--"), xscale="log", **axes),
    alt="The wanted probability of the right token against the size of the vocabulary, at a smoothing of 0.1. Over all tokens it falls from 0.95 at "
    "two tokens to almost 0.9 at a thousand. Over the others it is 0.9 throughout.",
    caption="For a vocabulary of any real size the two conventions are the same to three digits.",
)
V, rate = 7, 0.1
others = torch.full((V,), rate / (V - 1)).index_fill(0, torch.tensor([2]), 1 - rate)
as_all = torch.full((V,), rate * V / (V - 1) / V).index_add(
    0, torch.tensor([2]), torch.tensor([1 - rate * V / (V - 1)])
)
prove("spreading over the others is spreading over all with ε V / (V − 1)", torch.allclose(others, as_all))

# %% [markdown] id="conventions-says"
# They do not matter in practice. They matter when you compare two programs digit by digit, and wonder.
#
# ## 2 The floor
#
# What is the best loss that a model can have now? Zero is out of reach: where a label wants a little of every token,
# giving them nothing is punished. The best that a model can do is to say exactly what the label says. Then its loss
# is the *entropy* of the label, which is not zero.
#
# We vary the score of the right token in a vocabulary of 1000, with all other scores at zero, and look at both
# losses.
#
# **Predict.** Where does each of the two have its lowest point?

# %% id="floor-guess"
ex.predict("lowest_point_of_two_losses", "")

# %% id="floor-drawn" tags=["hide-input"]
# Figure: the plain and the smoothed loss against the score of the right token
scores = torch.linspace(0, 25, 251, dtype=torch.float64)
logits = torch.zeros(251, 1000, dtype=torch.float64)
logits[:, 7] = scores
right = torch.full((251,), 7)
costs = {
    name: F.cross_entropy(logits, right, label_smoothing=share, reduction="none")
    for name, share in (("plain", 0.0), ("smoothed with 0.1", 0.1))
}
lowest = costs["smoothed with 0.1"].argmin()
show(
    plots.costs_by_score(scores, costs),
    alt="Two losses against the score of the right token from 0 to 25. Both start at 6.9. The plain one falls towards zero and stays there. The smoothed one "
    "falls to a lowest point near a score of 9, marked by a dot at a loss of about 1, and rises again after it.",
    caption="A plain label rewards ever higher scores. A smoothed one has a best score, and punishes more.",
)
best = math.log((0.9 + 0.1 / 1000) / (0.1 / 1000))
print(f"best score with smoothing: {best:.2f}")
prove("the lowest point is where the softmax says the label", abs(scores[lowest].item() - best) < 0.1)

# %% [markdown] id="floor-says"
# With the plain loss a higher score is always better. With smoothing there is a best score. It is the one at which
# the softmax gives the right token 0.9001 and each of the others 0.0001, so it is ln(0.9001 / 0.0001). Beyond it the
# loss rises again. The height of the lowest point is the floor. You calculate it for this vocabulary.

# %% exercise="smoothing_floor"

# %% id="floors" tags=["hide-input"]
# Figure: the floor against the size of the vocabulary
sizes = (14, 100, 360, 1000, 5000, 32_000, 100_000)
floors = []
for V in sizes:
    wanted = torch.full((V,), 0.1 / V, dtype=torch.float64)
    wanted[1] += 0.9
    floors.append(label_smoothed_cross_entropy(wanted.log()[None], torch.tensor([1]), 0.1)[0].item())
    prove(
        f"with V = {V} the floor is the entropy of the label",
        math.isclose(floors[-1], torch.special.entr(wanted).sum()),
    )
axes = {"xlabel": "size of the vocabulary", "ylabel": "lowest smoothed loss", "ylim": (0, 1.6)}
show(
    common.curves(sizes, {"": floors}, size=(6.4, 2.6), colours=[palette.key], xscale="log", **axes),
    alt="The lowest possible smoothed loss against the size of the vocabulary, logarithmic: it rises in a nearly straight line from about 0.55 at 14 tokens to "
    "about 1.5 at 100,000.",
    caption="The larger the vocabulary, the higher the floor on which a perfect model stands.",
)
for V, floor in zip(sizes, floors, strict=True):
    print(f"V = {V:7,}: {floor:.3f}")

# %% [markdown] id="floors-says"
# So a training loss that settles at 1.4 with a vocabulary of 32,000 may be nearly perfect. And the same model has a
# *plain* loss of 0.105, because it says 0.9 where it could say 1. Two habits follow. Never compare a smoothed loss
# with a plain one. And measure held-out data with the plain loss, always; this course does.
#
# That has a consequence for *perplexity*, which is the exponential of the plain loss. A model that has learned to say
# 0.9 has a perplexity of at least 1/0.9 = 1.11, even where it is always right. Smoothing puts a floor under that
# number, too.
#
# ## 3 What it does to three numbers
#
# Now to the question. The paper says of its own models that smoothing “hurts perplexity, as the model learns to be
# more unsure, but improves accuracy and BLEU score” (section 5.4; BLEU is a score of translations that counts words
# and short phrases in common with a reference). That is one number worse and two better, and it is about one kind of
# data.
#
# We can look at three numbers on data that nobody has trained on:
#
# - the **plain loss**: how likely is the right answer to the model?
# - the **accuracy**: how often is its best guess the label?
# - **confidence minus accuracy**: how sure is it, on average, beyond what it deserves? Above zero a model is
#   overconfident, below zero it is too modest.
#
# The data are made so that we know what is wrong with them. A point of 20 numbers belongs to one of 14 classes. There
# are 600 points to train on, and **one label in five is wrong**, drawn by chance. (Now and then the draw hits the
# right class.) The labels of the held-out points are spoiled in the same way, so no net can reach an accuracy of 1. A
# small net trains for 60 updates, long enough to learn wrong labels by heart.
#
# **Predict.** Which of the three numbers gets better with smoothing?

# %% id="smoothing-guess"
ex.predict("what_smoothing_changes", "")


# %% id="smoothing-run" tags=["hide-input", "atol:0.02"]
# Three nets live, one seed, with smoothing 0, 0.1 and 0.2
def noisy(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=generator)
    right = (x @ torch.randn(20, 14, generator=torch.Generator().manual_seed(7))).argmax(-1)
    wrong = torch.rand(n, generator=generator) < 0.2
    return x, right.where(~wrong, torch.randint(14, (n,), generator=generator))


live = {}
for smoothing in (0.0, 0.1, 0.2):
    torch.manual_seed(0)
    (x, y), (new_x, new_y) = noisy(600, 100), noisy(4000, 200)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 14))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y, label_smoothing=smoothing).backward()
        optimizer.step()
    chances = net(new_x).detach().softmax(-1)
    accuracy = (chances.argmax(-1) == new_y).float().mean().item()
    live[smoothing] = F.nll_loss(chances.log(), new_y).item(), accuracy, chances.amax(-1).mean().item() - accuracy
    print(
        "smoothing {}: loss {:.2f}, accuracy {:.3f}, confidence minus accuracy {:+.2f}".format(
            smoothing, *live[smoothing]
        )
    )
prove("smoothing lowers the plain loss of this net", live[0.1][0] < live[0.0][0] - 0.1)
prove("and, at 0.2, most of its overconfidence", abs(live[0.2][2]) < live[0.0][2] / 3)

# %% [markdown] id="control"
# The loss falls, and the overconfidence with it. But this net was trained for too long, and that is where one should
# be suspicious: is smoothing good, or is it good *against training for too long*? Two controls can tell. In the
# first, training stops after 20 updates. In the second, no label is wrong. Ten nets with ten seeds were trained in
# each case and with each smoothing, at two rates (`python benchmarks/claims.py label_smoothing`).
#
# **Predict.** Does smoothing still help a net that stops in time? And one whose labels are all right?

# %% id="control-guess"
ex.predict("smoothing_controls", "")

# %% id="recorded" tags=["hide-input"]
# Figure: loss, accuracy and confidence of ten nets in each case, from the record, at a rate of 0.01
record = claim("label_smoothing")
cases = ("noisy, 60 steps", "noisy, 20 steps", "clean, 60 steps")
names = {"loss": "plain loss", "accuracy": "accuracy", "confidence minus accuracy": "confidence\nminus accuracy"}
found = {}
for case in cases:
    values = {m: [record.values(f"{case}, smoothing {share}", m, 1e-2) for share in (0.0, 0.1, 0.2)] for m in names}
    found[case.replace("noisy", "one in five wrong").replace("clean", "all right")] = values
told = "; ".join(
    f"{case}: "
    + ", ".join(
        f"{measure} {mean(plain):.2f} without and {mean(smoothed):.2f} with 0.1"
        for measure, (plain, smoothed, _) in values.items()
    )
    for case, values in zip(cases, found.values())
)
show(
    plots.measures_by_smoothing(found, names),
    alt="Nine panels: three cases by three measures, ten nets as dots for each smoothing. Means: " + told + ".",
    caption="Each dot is a net. Left, the net that trained too long; in the middle, one that stopped earlier; right, clean labels.",
)
for case in cases:
    for smoothing in (0.0, 0.1):
        arm = f"{case}, smoothing {smoothing}"
        loss, accuracy, gap = (mean(record.values(arm, measure, 1e-2)) for measure in record.measures)
        print(f"{arm:>30}: loss {loss:.2f}, accuracy {accuracy:.3f}, confidence minus accuracy {gap:+.2f}")

# %% [markdown] id="other-rate-text"
# The figure shows the rate 0.01. The record holds a second one, 0.003, at which a net comes less far in as many
# updates. Here are the means of its ten nets.

# %% id="other-rate" tags=["hide-input"]
# Table: the means of ten nets at the rate 0.003, from the same record
for case in cases:
    print(case)
    for smoothing in (0.0, 0.1, 0.2):
        arm = f"{case}, smoothing {smoothing}"
        loss, accuracy, gap = (mean(record.values(arm, measure, 3e-3)) for measure in record.measures)
        print(f"    smoothing {smoothing}: loss {loss:.3f}, accuracy {accuracy:.3f}, {record.measures[2]} {gap:+.2f}")


# %% id="recorded-proof" tags=["hide-input"]
# Check: what the record says, seed by seed where it is said so
def values(case, smoothing, measure, rate=1e-2):
    return record.values(f"{case}, smoothing {smoothing}", measure, rate)


long, short, clean = cases
prove("too long: every smoothed net has a lower loss than every plain one",
      max(values(long, 0.1, "loss")) < min(values(long, 0.0, "loss")))  # fmt: skip
prove("but less accuracy on average", mean(values(long, 0.1, "accuracy")) < mean(values(long, 0.0, "accuracy")))
prove("stopping earlier gives a lower loss than smoothing, for each of ten against each",
      max(values(short, 0.0, "loss")) < min(values(long, 0.1, "loss") + values(long, 0.2, "loss")))  # fmt: skip
prove("and more accuracy on average",
      mean(values(short, 0.0, "accuracy")) > mean(values(long, 0.1, "accuracy")))  # fmt: skip
gain = mean(values(short, 0.1, "accuracy")) - mean(values(short, 0.0, "accuracy"))
prove("stopped in time, accuracy gains about half a point", 0 < gain < 0.02)
prove("and the net is less sure than it should be", mean(values(short, 0.1, "confidence minus accuracy")) < 0)
prove("clean: every smoothed net has a higher loss than every plain one",
      min(values(clean, 0.1, "loss")) > max(values(clean, 0.0, "loss")))  # fmt: skip
prove("and less accuracy on average", mean(values(clean, 0.1, "accuracy")) < mean(values(clean, 0.0, "accuracy")))
slow = {
    (case, measure): [mean(values(case, smoothing, measure, 3e-3)) for smoothing in (0.0, 0.1, 0.2)]
    for case in cases
    for measure in record.measures
}
prove("rate 0.003: the accuracy rises with smoothing in each case, on average",
      all(slow[case, "accuracy"] == sorted(slow[case, "accuracy"]) for case in cases))  # fmt: skip
prove("rate 0.003: with wrong labels the loss hardly changes",
      all(max(slow[case, "loss"]) - min(slow[case, "loss"]) < 0.01 for case in (long, short)))  # fmt: skip
prove("rate 0.003: with clean labels it rises", slow[clean, "loss"] == sorted(slow[clean, "loss"]))
gap = "confidence minus accuracy"
prove("rate 0.003: without smoothing no case is too sure, on average", all(slow[case, gap][0] < 0 for case in cases))
prove("confidence minus accuracy falls with smoothing in each case at both rates",
      all(mean(values(case, 0.2, gap, rate)) < mean(values(case, 0.1, gap, rate)) < mean(values(case, 0.0, gap, rate))
          for case in cases for rate in (1e-2, 3e-3)))  # fmt: skip

# %% [markdown] id="recorded-says"
# Read the figure column by column. All three hold for its rate, 0.01.
#
# - **Trained too long on noisy labels.** The loss falls a lot, and the overconfidence shrinks. But compare with the
#   second column: a net without smoothing that just stopped earlier has a lower loss than any smoothed one, and more
#   accuracy on average.
# - **Stopped in time.** The loss hardly moves. The accuracy gains about half a point on average, less than the nets
#   differ among each other. And a net that was a little too modest becomes more so.
# - **All labels right.** Smoothing costs likelihood in every net, and three points of accuracy on average. It tells
#   the net to doubt what is beyond doubt.
#
# **The smaller rate** tells another story, again on average over ten nets. In no case is the plain net too sure of
# itself. The accuracy rises with smoothing in all three cases, with clean labels, too. The loss hardly changes where
# labels are wrong, and becomes worse where they are right. So what smoothing does to the accuracy depends on the rate
# as well, and not only on the labels.
#
# Where is the paper in this? It reports better accuracy together with worse likelihood. No column of the figure shows
# both. Clean labels at the smaller rate do. The models of the paper saw millions of sentences, each of which has
# several good translations, so their labels were “noisy” in a sense of their own. Our nets are small classifiers, and
# the record says nothing about translation. What it does say is that no one of the three numbers can stand for the
# others, and that one rate does not speak for another.
#
# ## The answer
#
# Do smoothed labels help?
#
# | number | what smoothing does |
# |---|---|
# | training loss | looks worse by construction: it contains the floor |
# | perplexity, plain loss | worse where labels are right; hardly changed where training stops in time; better where a net learns wrong labels by heart |
# | accuracy | a little better in the paper, in our middle case, and in all three cases at the smaller rate; worse in the other two at the larger one |
# | confidence | always lower: good for a net that is too sure, bad for one that is not |
#
# So the question has no single answer, and the line is not free. Try stopping earlier first. Keep held-out losses
# plain. And if probabilities are used further, as in beam search or in a decision, remember that a smoothed model has
# been taught to say 0.9.
#
# **Sources.** Szegedy et al. 2016, arXiv:1512.00567, section 7 (the idea). Vaswani et al. 2017, arXiv:1706.03762,
# section 5.4 (the quotation; ε = 0.1). The spread over V − 1: tensor2tensor, `smoothing_cross_entropy` in
# `layers/common_layers.py`; fairseq, `criterions/label_smoothed_cross_entropy.py`. Müller, Kornblith, Hinton 2019,
# arXiv:1906.02629 (when it helps, and calibration).
