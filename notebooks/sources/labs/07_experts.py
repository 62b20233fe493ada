# %% [markdown] id="title"
# # Lab: keep all experts at work
#
# **The question: chapter 7 built a layer of experts. What keeps all of them at work, and does it pay?** You write the
# router of DeepSeek-V3, which is balanced by a bias, and train it against a balance loss and against nothing. At the end
# you know what idle experts cost, and two promises of such layers that our small models do not keep.
#
# The lab stands on [chapter 7](../07_variants.ipynb), section 6: scores, weights, the collapse, and the balance loss.
# With two exercises it takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.testing import prove
from course_lib.variants import balanced_experts
from course_lib.variants.balanced_experts import BalancedExperts
from course_lib.variants.experts import load_balancing_loss
from coursework import exercises as ex
from coursework.pictures import drawings, show
from coursework.pictures.plots import common
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="two-masters"
# ## 1 A router with two masters
#
# The balance loss of chapter 7 is added to the real loss, so the router's weights get two gradients. One says: send this
# token to the expert that predicts best. The other says: send it to the expert that has nothing to do. If the factor in
# front is small, experts may stay idle. If it is large, the router learns to be fair instead of good.
#
# Wang et al. (2024) take the second wish out of the gradient. Each expert gets a **bias**, a number that is added to its
# score when experts are *chosen*. The *weights* of the chosen ones still come from the scores alone, and so does every
# gradient. An expert with too few tokens gets a little more bias after each step, one with too many a little less.

# %% id="bias-drawn" tags=["hide-input"]
# Drawing: four experts, of which the bias chooses two
drawings.bias_decides_the_choice().show()

# %% [markdown] id="by-hand"
# **By hand.** Without the bias, the token would go to experts 0 and 1. With it, experts 1 and 2 have the largest sums.
# Their scores are 0.8 and 0.7, so the weights are 0.8 / 1.5 = 0.53 and 0.7 / 1.5 = 0.47. With the score $s_i$ of expert
# i, its bias $b_i$, the number $c_i$ of tokens that chose it, the mean $\bar c$ of these counts, and a small rate $u$:
#
# $$\text{chosen} = \text{the } K \text{ largest of } s_i + b_i \qquad
# w_i = \frac{s_i}{\sum_{j \text{ chosen}} s_j} \qquad
# b_i \leftarrow b_i + u \cdot \mathrm{sign}(\bar c - c_i)$$
#
# DeepSeek-V3 has a sigmoid for the scores, where chapter 7 had a softmax: the experts do not compete before they are
# chosen. The counts cover the whole step, however many batches it has.

# %% exercise="bias_router"

# %% id="parity" tags=["hide-input"]
# Check: your router against the library's, which its tests compare with the one in transformers, gradients included
torch.manual_seed(0)
mine, course, tokens = BiasRouter(32, 8, 2), balanced_experts.BiasRouter(32, 8, 2), torch.randn(100, 32)
course.load_state_dict(mine.state_dict())
for router in (mine, course):
    router(tokens)
    router.update(0.1)
prove("your router weighs as the library's does, after an update", torch.allclose(mine(tokens), course(tokens)))

# %% [markdown] id="facts"
# ## 2 Eight experts learn 8,192 facts
#
# Experts promise to *store much and use little*. So we give them something to store: 512 subjects, 16 relations, and for
# each pair one of 64 answers, drawn by chance. Nothing can be derived, all must be kept. The model adds a vector for the
# subject to one for the relation, sends the sum through your layer, and reads off the answer. All subjects start with a
# large common part, as the vectors inside trained models have (Ethayarajh 2019). To the router, all tokens look alike
# then, which helps it to collapse.
#
# The training loop is the one you know. Two things are new: the balance loss, if its factor is not zero, and `update`
# after the optimizer's step.

# %% id="facts-model" tags=["hide-input"]
# The model around the layer, and a watcher that keeps what the router sees and chooses
table = torch.randint(64, (512, 16), generator=torch.Generator().manual_seed(0))  # the facts


class Facts(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.subject, self.relation, self.layer = nn.Embedding(512, 32), nn.Embedding(16, 32), layer
        with torch.no_grad():
            self.subject.weight += 2 * torch.randn(32)
        self.norm, self.last, self.output = nn.RMSNorm(32), nn.RMSNorm(32), nn.Linear(32, 64, bias=False)

    def forward(self, subject, relation):
        x = self.subject(subject) + self.relation(relation)
        return self.output(self.last(x + self.layer(self.norm(x))))


class Watch:
    """What the router did in its last pass."""

    def __init__(self, router):
        router.register_forward_hook(self.look)

    def look(self, router, inputs, weights):
        scores = router.scores(inputs[0]).sigmoid()
        shares = scores / scores.sum(-1, keepdim=True)
        self.loss = load_balancing_loss(shares, weights.topk(router.top_k).indices)
        self.counts = (weights > 0).sum(0)
        self.considered = math.exp(-(shares * shares.log()).sum(-1).mean().item())


def known(model):
    asked = torch.cartesian_prod(torch.arange(512), torch.arange(16))
    with torch.no_grad():
        return (model.eval()(*asked.T).argmax(-1) == table.flatten()).float().mean().item()


# %% id="loop"
def train(router, update=0.0, balance=0.0, steps=400):
    layer = BalancedExperts(32, 32, n_experts=8, router=router)  # each of inner width 32
    model, watch, log = Facts(layer), Watch(router), []
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    for step in range(1, steps + 1):
        warm, cosine = min(1, 10 * step / steps), 0.5 + 0.5 * math.cos(math.pi * step / steps)
        optimizer.param_groups[0]["lr"] = 0.06 * warm * cosine
        subject, relation = torch.randint(512, (512,)), torch.randint(16, (512,))
        loss = F.cross_entropy(model(subject, relation), table[subject, relation])
        loss = loss + balance * watch.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        router.update(update)
        log.append((watch.counts.tolist(), watch.considered))
    return model, log


# %% [markdown] id="predict"
# **Predict.** After training without any help, how many of the eight experts still get tokens? And which share of the
# facts does the model know then, compared with a model whose experts are all at work?

# %% id="predict-idle"
ex.predict("idle_experts_and_facts", "")

# %% id="trainings" tags=["not-compared:many-small-trainings"]
runs = {}
for way, settings in {"nothing": {}, "loss": {"balance": 0.01}, "bias": {"update": 0.01}}.items():
    torch.manual_seed(1)
    model, log = train(BiasRouter(32, 8, 2), **settings)
    runs[way] = log
    print(f"{way:<8} knows {known(model):.0%} of the facts, last counts {log[-1][0]}")

# %% id="trainings-drawn" tags=["hide-input", "not-compared:many-small-trainings"]
# Figure: the busiest expert, and how many experts the scores consider, over the three trainings
busiest = {way: [8 * max(counts) / sum(counts) for counts, _ in log] for way, log in runs.items()}
considered = {way: [number for _, number in log] for way, log in runs.items()}
steps = range(1, 401)
show(
    common.panels(
        common.curves, steps, {"tokens of the busiest, even = 1": busiest, "experts the scores consider": considered},
        size=(7.4, 2.9), styles="-", share="x", xlabel="step", each=({"ylim": (0, 4.2)}, {"ylim": (0, 8.4)}),
    ),
    alt="Two panels over 400 steps. Left: without help the busiest expert gets nearly four times an even share; with the "
    "loss or the bias it soon gets little more than one. Right: the number of experts that the scores consider falls from "
    "eight in all three trainings, most slowly with the loss.",
    caption="Left: with two choices of eight, four times an even share is the most possible. Right: e to the power of the "
    "scores' entropy, 8 if a token finds all experts equally good.",
)  # fmt: skip

# %% [markdown] id="facts-say"
# Without help the layer collapses: nearly every token chooses the busiest expert, and some experts get hardly a token.
# Both remedies stop that within the first hundred steps. Do the facts notice? Here are five seeds, with two controls: one
# ordinary layer as wide as the two experts that a token uses, and one as wide as all eight.

# %% id="facts-record" tags=["hide-input"]
# Record: facts known with five seeds and two controls, and a check of what the text says of them
facts = claim("experts_store_facts")
five = ("one layer, active width", "nothing", "loss", "bias", "one layer, total width")
rows = {arm: facts.values(arm, "known") for arm in five}
show(
    common.dot_rows(
        rows, size=(7.0, 2.3), xlim=(0, 1), xlabel="share of the facts known, a dot for each of five seeds"
    ),
    alt="Rows of five dots, the share of the facts known. "
    + " ".join(f"{arm}: {facts.spread(arm, 'known')}." for arm in five),
    caption=f"Left alone, eight experts store little more than one layer as wide as two of them. ({facts.command})",
)

values = {arm: facts.values(arm, "known") for arm in facts.arms}
means = {arm: sum(found) / 5 for arm, found in values.items()}
for way in ("loss", "bias"):
    better = all(one > other for one, other in zip(values[way], values["nothing"], strict=True))
    prove(f"with the {way} the layer knows more than without help, with each seed", better)
prove("no help: little more than the narrow layer", abs(means["nothing"] - means["one layer, active width"]) < 0.1)
level = [abs(one - other) < 0.05 for one, other in zip(values["loss"], values["bias"], strict=True)]
prove("loss and bias are level with four of five seeds", sum(level) == 4)
idle = {way: facts.range(way, "idle") for way in five[1:4]}
prove("two to five experts are idle without help, and none with it", list(idle.values()) == [(2, 5), (0, 0), (0, 0)])

# %% [markdown] id="facts-result"
# Without help, two to five of the eight experts are idle at the end: memory that you paid for and do not use. **Where a
# model must store more than its active part can hold, balance pays**, with each of five seeds and with either remedy. The
# wide layer on the last row knows still more on average, but computes four times as much for each token.
#
# <details><summary>Evidence: five seeds, two rates, two controls</summary>
#
# 400 steps of 512 facts, at rates of 0.03 and 0.06, each row at its best rate. The loss has the factor 0.01, the bias
# the rate 0.01. Bias and loss are level with four seeds. With the fifth the bias stays far behind the loss and is still
# ahead of no help.
#
# </details>

# %% [markdown] id="letters"
# ## 3 What the loss does to the router
#
# Both remedies worked, so why not stay with the loss? Look again at the right panel of the first figure: with the loss
# the scores part more slowly. A router that is pulled towards evenness keeps its scores near each other, so that it can
# hand a token to any expert. Here is a model of letters, trained on a manual of
# Python:

# %% id="letters-record" tags=["hide-input"]
# Record: how decided the router is, and the held-out loss, five seeds
letters = claim("balance_in_letters")
panels = {
    "experts the scores consider": {arm: letters.values(arm, "considered") for arm in letters.arms},
    "held-out nats per letter": {arm: letters.values(arm, "loss") for arm in letters.arms},
}
show(
    common.panels(common.dot_rows, panels, size=(7.2, 2.0), share="y"),
    alt="Two panels with rows of five dots for nothing, loss and bias. "
    + " ".join(
        f"{arm}: considers {letters.spread(arm, 'considered')} experts, loses {letters.spread(arm, 'loss')} nats."
        for arm in letters.arms
    ),
    caption="A letter model of one layer, two of eight experts. The loss keeps the scores near each other, the bias lets "
    f"them part. ({letters.command})",
)
for measure in ("considered", "loss"):
    loss, bias, nothing = (letters.values(arm, measure) for arm in ("loss", "bias", "nothing"))
    most = all(one > max(others) for one, *others in zip(loss, bias, nothing, strict=True))
    prove(f"{measure}: the loss has more than the bias and than no help, with each seed", most)
ends = {arm: letters.range(arm, "idle") for arm in letters.arms}
prove(
    "no expert is idle with a remedy, and some are without",
    ends["nothing"][0] > 0 and ends["loss"] == ends["bias"] == (0, 0),
)
level = sum(
    one < other for one, other in zip(letters.values("bias", "loss"), letters.values("nothing", "loss"), strict=True)
)
prove("the bias is ahead of no help with some seeds, and behind with others", 0 < level < 5)
prove("the bias is at least as even", letters.range("bias", "busiest")[1] < sum(letters.values("loss", "busiest")) / 5)

# %% [markdown] id="letters-say"
# Now compare the right panel. The balance loss makes the model worse than no help, with each of five seeds. The bias
# keeps the load as even, and ends lower than the loss, again with each seed. So a small part of what the loss makes the
# router learn is at the cost of the letters. Wang et al. found the same order in models of 1 and 3 billion parameters.
#
# But the bias does not beat the layer that was left alone, idle experts and all: each is ahead with some seeds. What 400
# steps teach about letters seems to fit into the experts that are used. As in chapter 7, storing more does not pay here.
#
# <details><summary>Evidence: five seeds, two rates</summary>
#
# 400 steps of 16 windows of 64 letters, held out a tenth of the text, at rates of 0.002 and 0.004, each row at its best
# rate. The loss has the factor 0.01, the bias the rate 0.01.
#
# </details>

# %% [markdown] id="finer"
# ## 4 Finer experts, and shared ones
#
# DeepSeekMoE (Dai et al. 2024) makes two more changes. Cut each expert into four and choose four times as many: the
# parameters that are stored and those that work stay the same, but a token now has many more teams to choose from. And
# let a few experts be **shared**: every token uses them, so that what all tokens need is stored once and not in each
# expert. Count both for the layer of section 2:

# %% id="finer-counted"
for n_experts, top_k, width, n_shared in ((8, 2, 32, 0), (32, 8, 8, 0), (30, 6, 8, 2)):
    layer = BalancedExperts(32, width, n_experts=n_experts, top_k=top_k, n_shared=n_shared)
    total = sum(p.numel() for p in layer.parameters())
    idle = (n_experts - top_k) * sum(p.numel() for p in layer.experts[0].parameters())
    print(f"{top_k} of {n_experts} and {n_shared} shared: {total:,} stored, {total - idle:,} active,", end=" ")
    print(f"{math.comb(n_experts, top_k):,} teams")

# %% [markdown] id="finer-says"
# The few more parameters are the router's, which has a row for each expert. The teams grow from 28 to ten million. Does
# the model know more facts with them?

# %% id="finer-record" tags=["hide-input"]
# Record: facts known with fewer large experts, with finer ones, and with shared ones, five seeds
finer = {"2 of 8": "bias", "8 of 32": "bias, 8 of 32", "6 of 30 and 2 shared": "bias, 6 of 30 and 2 shared"}
show(
    common.dot_rows({name: facts.values(arm, "known") for name, arm in finer.items()}, size=(7.0, 1.8), xlim=(0, 1),
                    joined=True, xlabel="share of the facts known, a dot for each of five seeds"),
    alt="Rows of five dots, the share of the facts known. "
    + " ".join(f"{name}: {facts.spread(arm, 'known')}." for name, arm in finer.items()),
    caption="All three with the bias, and with the same stored and active width. A line joins the dots of each seed.",
)  # fmt: skip
for arm in list(finer.values())[1:]:
    ahead = sum(
        one > other for one, other in zip(facts.values(arm, "known"), facts.values("bias", "known"), strict=True)
    )
    prove(f"{arm}: ahead of eight large experts with three of five seeds", ahead == 3)

# %% [markdown] id="finer-result"
# Not reliably. Either is ahead of the eight large experts with three seeds, and behind with two. DeepSeekMoE reports
# clear gains from both changes, in a model of 2 billion parameters that read text. Our facts are drawn by chance: none
# helps with another, so there is little for a team to divide among its members, and nothing that all tokens need. At this
# size you can count the two changes and build them. What they are worth, you have to take from the paper.

# %% [markdown] id="capacity"
# ## 5 When there is no place left
#
# Why does anyone care how even the load is? In a large model the experts lie on different chips, and all wait for the
# busiest. Many systems therefore give each expert a fixed number of places in a batch, the even share times a **capacity
# factor**. Who comes too late is *dropped*: the token passes by on the residual connection alone.

# %% exercise="dropped_choices"

# %% id="dropped" tags=["hide-input", "not-compared:many-small-trainings"]
# Figure: share of the choices dropped in the last 50 steps of the three trainings, for each capacity factor
factors, late = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0), {}
for way, log in runs.items():
    counts = torch.tensor([counts for counts, _ in log[-50:]])  # (50, 8)
    late[way] = [((counts - factor * 128).clamp(min=0).sum() / counts.sum()).item() for factor in factors]
show(
    common.curves(
        factors, late, size=(6.4, 2.5), xlabel="capacity factor", ylabel="choices dropped", ylim=(-0.02, 0.8)
    ),
    alt="Share of the choices dropped against the capacity factor. Without help, about half is dropped at factor 1 and some "
    "still at 3. With the loss or the bias, a few in a hundred at factor 1 and next to none from 1.5 on.",
    caption=f"At a factor of 1.25 the layer without help drops {late['nothing'][1]:.0%} of its choices, with the loss "
    f"{late['loss'][1]:.1%}, with the bias {late['bias'][1]:.1%}.",
)

# %% [markdown] id="capacity-says"
# A dropped choice is worse than it looks: whether your token keeps its expert depends on the other texts in the batch.
# DeepSeek-V3 reports that with its bias no token had to be dropped, neither in training nor afterwards.
#
# ## The answer
#
# **What keeps all experts at work?** Something that looks at the counts: a loss that pulls at the router's weights, or a
# bias that only moves the choice. **Does it pay?** Where capacity is short, as with the facts. In our letter model an
# even load buys only the evenness. Large systems pay for just that: no chip waits, no token is dropped. And if you want
# it, the bias is the cheaper way.
#
# DeepSeek-V3 uses both: the bias with a rate of 0.001, and a balance loss with a factor of 0.0001, against single texts
# that are very uneven.
#
# **You can now** write a router whose load is steered without a gradient, say what a shared expert stores and costs, and
# read from the counts what a capacity factor will drop.
#
# <details><summary>Sources</summary>
#
# Wang et al. 2024, *Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts*, arXiv:2408.15664, algorithm 1.
# DeepSeek-AI 2024 (DeepSeek-V3), arXiv:2412.19437, sections 2.1.2 and 4.2. Dai et al. 2024 (DeepSeekMoE),
# arXiv:2401.06066, section 3. Ethayarajh 2019, arXiv:1909.00512 (the common part). Lepikhin et al. 2020
# (GShard, capacity), arXiv:2006.16668.
#
# </details>
