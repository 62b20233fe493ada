# %% [markdown] id="title"
# # Lab: keep all experts at work
#
# **The question: what keeps all experts of a layer at work, and does it pay?** You write the layer, and then a router
# that is balanced by a bias, as in DeepSeek-V3. You train it against a balance loss and against no help. One task gains
# from all the experts, another does not.
#
# The lab stands on [chapter 7](../07_variants.ipynb), section 6: scores, weights, the collapse, and the balance loss.
# With three exercises it takes about {minutes} minutes. A good place to stop is marked.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.testing import prove
from course_lib.variants import balanced_experts
from course_lib.variants.balanced_experts import BalancedExperts
from course_lib.variants.experts import MixtureOfExperts, load_balancing_loss
from coursework import exercises as ex
from coursework.exercises.given_llama import Gated
from coursework.pictures import drawings, show
from coursework.pictures.plots import common
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)
route_experts = ex.route_experts.part()

# %% [markdown] id="layer"
# ## 1 The layer
#
# Your `route_experts` of chapter 7 gives each token a weight for each expert, zero for those that it does not use. What
# does the layer do with these weights?
#
# It takes its experts in turn. For each one it finds the `rows` of the tokens that chose it, and gives it only
# `tokens[rows]`. What the expert returns is multiplied by the weights and added to the same rows of the output.
#
# **By hand**, three tokens, whose weights for expert 0 are 0.73, 0 and 0.4: `rows` is (0, 2), so expert 0 computes on
# two tokens. Its first result, times 0.73, is added to row 0 of the output, and its second, times 0.4, to row 2. In the
# end each row has collected the results of its own experts.
#
# <details><summary>What is different with one expert for each token (top-1)</summary>
#
# With `top_k` = 1 the softmax over the one score would always be 1, and its gradient zero. So **top-1** layers weight
# by the softmax over *all* scores.
#
# </details>

# %% exercise="expert_layer"

# %% id="layer-check" tags=["hide-input"]
# Check: the example by hand, and your layer against the library's, with the same weights
torch.manual_seed(0)
prove("by hand: rows 0 and 2", torch.tensor([0.73, 0, 0.4]).nonzero()[:, 0].tolist() == [0, 2])
mine, tokens = Experts(16, 24, 8, 2), torch.randn(3, 5, 16)
course = MixtureOfExperts(16, 24, n_experts=8, top_k=2, activation="silu", gated=True, bias=False)
course.load_state_dict(mine.state_dict())
with torch.no_grad():
    gap = (mine(tokens) - course(tokens)).abs().max().item()
prove("your layer computes what the library's does", gap < 1e-5)
print(f"largest difference between an output of yours and the library's: {gap:.4f}")

# %% [markdown] id="two-masters"
# **A good place to stop: the layer is yours.**
#
# ## 2 A router with two masters
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
# DeepSeek-V3 takes a sigmoid of the scores, where chapter 7 took a softmax: the experts do not compete before they are
# chosen. Its router also limits each token to a few groups of experts and scales the weights, which we leave out. If you
# sum gradients over several batches, the counts cover all of them.

# %% exercise="bias_router"

# %% id="parity" tags=["hide-input"]
# Check: your router against the library's, which its tests compare with the one in transformers, gradients included
torch.manual_seed(0)
mine, course, tokens = BiasRouter(32, 8, 2), balanced_experts.BiasRouter(32, 8, 2), torch.randn(100, 32)
course.load_state_dict(mine.state_dict())
for router in (mine, course):
    router(tokens)
    router.update(0.1)
gap = (mine(tokens) - course(tokens)).abs().max().item()
prove("your router weighs as the library's does, after an update", gap < 1e-6)
print(f"largest difference between a weight of yours and the library's, after an update: {gap:.6f}")

# %% [markdown] id="facts"
# ## 3 Eight experts learn 8,192 facts
#
# Experts promise to *store much and use little*. So we give them something to store: 512 subjects, 16 relations, and
# for each pair one of 64 answers, drawn by chance. Nothing can be derived. The model adds a vector for the subject to
# one for the relation, sends the sum through a layer of experts, and reads off the answer. All subjects start with a
# large common part, as the vectors inside trained models have (Ethayarajh 2019). To the router all tokens then look
# alike, so it collapses easily.
#
# In the folded cell, `Facts` is this model, with your router in `BalancedExperts`, a layer like yours that takes any
# router, and `known` is the share of facts answered right. `Watch` counts the choices and computes chapter 7's balance
# loss, for which a token's eight sigmoids are divided by their sum. In the training loop, the balance loss and `update`
# are new.

# %% id="facts-model" tags=["hide-input"]
# The model around the layer, and a watcher that keeps the counts and the balance loss
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


def rate(step, steps):
    """A warm-up over the first tenth of the steps, times a cosine."""
    return 0.06 * min(1, 10 * step / steps) * (0.5 + 0.5 * math.cos(math.pi * step / steps))


def known(model):
    asked = torch.cartesian_prod(torch.arange(512), torch.arange(16))
    with torch.no_grad():
        return (model.eval()(*asked.T).argmax(-1) == table.flatten()).float().mean().item()


# %% id="loop"
def train(router, update=0.0, balance=0.0, steps=400):
    layer = BalancedExperts(32, 32, n_experts=8, router=router)  # each 32 wide inside
    model, watch, log = Facts(layer), Watch(router), []
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = rate(step, steps)
        subject, relation = torch.randint(512, (512,)), torch.randint(16, (512,))
        loss = F.cross_entropy(model(subject, relation), table[subject, relation])
        loss = loss + balance * watch.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        router.update(update)
        log.append(watch.counts.tolist())
    return model, log


# %% [markdown] id="predict"
# **Predict.** An even share is 128 of the 1,024 choices in a batch. We call an expert *idle* if it gets less than a
# tenth of that. After training without help, how many of the eight experts are idle? And which share of the facts does
# the model know then, compared with a model whose experts are all at work?

# %% id="predict-idle"
ex.predict("idle_experts_and_facts", "")

# %% id="trainings" tags=["not-compared:many-small-trainings"]
helps = {"nothing": {}, "loss": {"balance": 0.01}, "bias": {"update": 0.01}}
runs = {}
for way, settings in helps.items():
    torch.manual_seed(1)
    model, runs[way] = train(BiasRouter(32, 8, 2), **settings)
    last = runs[way][-1]
    idle = sum(count < 12.8 for count in last)  # less than a tenth of 128
    print(f"{way:<8} knows {known(model):.0%}, {idle} experts idle, last counts {last}")

# %% id="trainings-drawn" tags=["hide-input", "not-compared:many-small-trainings"]
# Figure: the load of the busiest expert over the three trainings
busiest = {way: [8 * max(counts) / sum(counts) for counts in log] for way, log in runs.items()}
show(
    common.curves(
        range(1, 401), busiest, size=(6.4, 2.5), styles="-", xlabel="step", ylabel="load of the busiest", ylim=(0, 4.2),
        levels={"": 1},
    ),
    alt="The load of the busiest expert over 400 steps. Without help it gets nearly four times an even share; with the "
    "loss or the bias it soon gets little more than one.",
    caption="Dashed: an even share. A token makes two choices among eight experts, so four even shares are the limit.",
)  # fmt: skip

# %% [markdown] id="facts-say"
# Without help the layer collapses: nearly every token chooses the busiest expert, and some experts get hardly a token.
# Both remedies stop that within the first hundred steps. Does the collapse affect how many facts are learnt? Here are
# five seeds, with two controls: one ordinary layer as wide as the two experts that a token uses, and one as wide as all
# eight.

# %% id="facts-record" tags=["hide-input"]
# Record: facts known with five seeds and two controls, and a check of what the text says of them
facts = claim("experts_store_facts")
five = ("one layer, active width", "nothing", "loss", "bias", "one layer, total width")
rows = {arm: facts.values(arm, "known") for arm in five}
values = {arm: facts.values(arm, "known") for arm in facts.arms}
means = {arm: sum(found) / 5 for arm, found in values.items()}
show(
    common.dot_rows(
        rows, size=(7.0, 2.6), xlim=(0, 1), joined=True, xlabel="share of the facts known, a dot for each of five seeds"
    ),
    alt="Rows of five dots, the share of the facts known. "
    + " ".join(f"{arm}: {facts.spread(arm, 'known')}." for arm in five),
    caption="Left alone, eight experts store little more than one layer as wide as two of them. Means from top to bottom: "
    f"{', '.join(f'{means[arm]:.0%}' for arm in five)}. A line joins the dots of each seed. ({facts.command})",
)

for way in ("loss", "bias"):
    better = all(one > other for one, other in zip(values[way], values["nothing"], strict=True))
    prove(f"with the {way} the layer knows more than without help, with each seed", better)
prove("no help: little more than the narrow layer", abs(means["nothing"] - means["one layer, active width"]) < 0.1)
leads = sorted(one - other for one, other in zip(values["loss"], values["bias"], strict=True))
prove(
    "loss and bias are level with four of five seeds, and the loss far ahead with one",
    max(map(abs, leads[:4])) < 0.05 and leads[4] > 0.15,
)
shown = [f"{means[arm]:.0%}" for arm in ("nothing", "loss", "bias")]
prove("the means in the text", shown == ["44%", "64%", "59%"])
idle = {way: facts.range(way, "idle") for way in five[1:4]}
prove("two to five experts are idle without help, and none with it", list(idle.values()) == [(2, 5), (0, 0), (0, 0)])

# %% [markdown] id="facts-result"
# Without help, two to five of the eight experts are idle at the end: memory that you paid for and do not use. **Where a
# model must store more than its active part can hold, balance pays**: either remedy beats no help with each of five
# seeds. With the loss the model knows 64% on average, with the bias 59%: the two are level with four seeds, and with
# one the bias stays far behind. Our task favours both, as the common part makes a collapse likely. The wide layer knows
# still more on average, but computes four times as much for each token.
#
# <details><summary>Evidence: five seeds, two rates, two controls</summary>
#
# 400 steps of 512 facts, at rates of 0.03 and 0.06, each row at its best rate. The loss has the factor 0.01, the bias
# the rate 0.01.
#
# </details>

# %% [markdown] id="letters"
# ## 4 What the loss does to the router
#
# The loss worked, so why look further? It pulls at the scores themselves; the bias does not. We measure how many
# experts a token *considers*: divide its eight scores by their sum, and take e to the power of the entropy. That is 8
# if all look equally good, and 2 if two share everything. Here is a model of letters, trained on a manual of Python:

# %% id="letters-record" tags=["hide-input"]
# Record: how even the load is, how many experts a token considers, and the held-out loss, five seeds
letters = claim("balance_in_letters")
panels = {
    "load of the busiest": {arm: letters.values(arm, "busiest") for arm in letters.arms},
    "experts considered": {arm: letters.values(arm, "considered") for arm in letters.arms},
    "held-out nats per letter": {arm: letters.values(arm, "loss") for arm in letters.arms},
}
show(
    common.panels(common.dot_rows, panels, size=(7.4, 2.0), share="y", joined=True),
    alt="Three panels with rows of five dots for nothing, loss and bias. "
    + " ".join(
        f"{arm}: the busiest expert has {letters.spread(arm, 'busiest')} times an even share, a token considers "
        f"{letters.spread(arm, 'considered')} experts, the loss is {letters.spread(arm, 'loss')} nats."
        for arm in letters.arms
    ),
    caption="A letter model of one layer, two of eight experts. Left, 1 is an even share. A line joins the dots of each "
    f"seed. ({letters.command})",
)
for measure in ("considered", "loss"):
    loss, bias, nothing = (letters.values(arm, measure) for arm in ("loss", "bias", "nothing"))
    most = all(one > max(others) for one, *others in zip(loss, bias, nothing, strict=True))
    prove(f"{measure}: the loss has more than the bias and than no help, with each seed", most)
ends = {arm: letters.range(arm, "idle") for arm in letters.arms}
prove(
    "no expert is idle with a remedy, and two to five are without",
    ends["nothing"] == (2, 5) and ends["loss"] == ends["bias"] == (0, 0),
)
pairs = {
    measure: zip(*(letters.values(arm, measure) for arm in ("bias", "nothing", "loss")), strict=True)
    for measure in ("loss", "busiest")
}
prove("the bias is ahead of no help with two seeds", sum(bias < nothing for bias, nothing, _ in pairs["loss"]) == 2)
prove("the bias is more even than the loss, with each seed", all(bias < loss for bias, _, loss in pairs["busiest"]))
considered = [f"{sum(letters.values(arm, 'considered')) / 5:.1f}" for arm in ("loss", "bias", "nothing")]
prove("experts considered, as in the text", considered == ["7.7", "6.7", "6.8"])
considered = [f"{sum(facts.values(arm, 'considered')) / 5:.1f}" for arm in ("loss", "bias", "nothing")]
prove("and with the facts", considered == ["4.8", "4.9", "3.2"])
large = claim("one_large_expert")
arms = ("dense", "two small experts of eight", "two small experts, not balanced")
shown = [f"{sum(large.values(arm, 'loss')) / 5:.2f}" for arm in arms]
prove("another letter model: the means in the text", shown == ["2.47", "2.50", "2.48"])
lowest, highest = zip(*(large.range(arm, "loss") for arm in arms), strict=True)
prove("and their ranges overlap", max(lowest) < min(highest))

# %% [markdown] id="letters-say"
# With the loss a token considers 7.7 experts on average. With the bias it considers 6.7, about as many as without help
# (6.8), where the seeds differ more. The loss makes the model worse than no help, with each of five seeds. The bias is
# more even than the loss and ends lower, both with each seed. Wang et al. also found the bias ahead of the loss, in
# models of 1 and 3 billion parameters.
#
# But the bias does not beat the layer that was left alone, idle experts and all: it wins on two seeds and loses on
# three. Storing more does not pay here.
#
# <details><summary>Evidence: five seeds, two rates, and what the facts say</summary>
#
# 400 steps of 16 windows of 64 letters, held out a tenth of the text, at rates of 0.002 and 0.004, each row at its best
# rate. The loss has the factor 0.01, the bias the rate 0.01. Without help, two to five experts are idle, with a remedy
# none. In the task of section 3 the remedies end level: with the loss a token considers 4.8 experts on average, with the
# bias 4.9, and without help 3.2.
#
# Another letter model, of two layers, says the same of storing more. An ordinary feed-forward of inner width 256 ends
# at 2.47 nats. Two of eight experts of width 128 end at 2.50, and at 2.48 without the loss. The ranges of five seeds
# overlap.
#
# </details>

# %% [markdown] id="finer"
# ## 5 Finer experts, and shared ones
#
# DeepSeekMoE (Dai et al. 2024) makes two more changes. Cut each expert into four and choose four times as many, so that
# a token can combine them in more ways. And let a few be **shared**: every token uses them, so what all tokens need is
# stored once.

# %% id="finer-counted"
for M, top_k, width, n_shared in ((8, 2, 32, 0), (32, 8, 8, 0), (30, 6, 8, 2)):
    layer = BalancedExperts(32, width, n_experts=M, top_k=top_k, n_shared=n_shared)
    total = sum(p.numel() for p in layer.parameters())
    active = total - (M - top_k) * sum(p.numel() for p in layer.experts[0].parameters())
    print(f"{top_k} of {M}, {n_shared} shared: {total:,} stored, {active:,} active")

# %% [markdown] id="finer-says"
# The few extra parameters are the router's, which has a row for each expert. Does the model of section 3 know more then?

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
# Not reliably. Each beats the eight large experts on three seeds and loses on two. DeepSeekMoE reports clear gains from
# both, in a model of 2 billion parameters that read text. Our facts, drawn by chance, have nothing that all tokens
# need.

# %% [markdown] id="capacity"
# ## 6 When there is no place left
#
# Why does anyone care how even the load is? In a large model the experts lie on different chips, and all wait for the
# busiest. Many systems therefore reserve a fixed number of places for each expert, the even share times a **capacity
# factor**, which the choices of a batch take one after another. Choices that arrive after the expert is full are
# *dropped*: that expert adds nothing to that token. Empty places take memory too, and are multiplied like full ones.

# %% exercise="dropped_choices"

# %% id="dropped" tags=["hide-input", "not-compared:many-small-trainings"]
# Figure: choices dropped and places left empty in the last 50 steps of the three trainings, for each capacity factor
factors, dropped, empty = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0), {}, {}
for way, log in runs.items():
    counts = torch.tensor(log[-50:])  # (50, 8)
    kept = [counts.clamp(max=factor * 128).sum().item() for factor in factors]
    dropped[way] = [1 - one / counts.sum().item() for one in kept]
    empty[way] = [1 - one / (counts.numel() * factor * 128) for one, factor in zip(kept, factors, strict=True)]
show(
    common.panels(
        common.curves, factors, {"choices dropped": dropped, "places left empty": empty}, size=(7.4, 2.6), share="x",
        xlabel="capacity factor", ylim=(-0.02, 0.8),
    ),
    alt="Two panels against the capacity factor. Left, choices dropped: without help more than half at factor 1 and some "
    "still at 3; with the loss or the bias a few in a hundred at factor 1 and next to none from 1.5 on. Right, places left "
    "empty: without help more than half at factor 1; with the loss or the bias few at 1; three quarters in all three at 4.",
    caption=f"At a factor of 1.25 the layer without help drops {dropped['nothing'][1]:.0%} of its choices, with the loss "
    f"{dropped['loss'][1]:.1%}, with the bias {dropped['bias'][1]:.1%}.",
)  # fmt: skip
prove("at factor 4 nothing is dropped", max(found[-1] for found in dropped.values()) < 1e-6)

# %% [markdown] id="capacity-says"
# A factor of 4 drops nothing, but three quarters of the places stay empty. An even load needs hardly more than 1.25. A
# dropped choice is worse than it looks: whether your token keeps its expert depends on the other texts in the batch.
# DeepSeek-V3 reports a load so even that no token was dropped in training.
#
# ## The answer
#
# **What keeps all experts at work?** A loss that pulls at the router's weights, or a bias that only moves the choice.
# **Does it pay?** Where capacity is short, as with the facts. In our letter model it buys only an even load. Large
# systems pay for just that: less waiting, fewer dropped choices. **Loss or bias?** Our facts lean to the loss, by one
# seed of five; our letters and the models of Wang et al. do better with the bias. DeepSeek-V3 uses both: the bias with
# a rate of 0.001, and a balance loss with a factor of 0.0001, against single texts that are very uneven.
#
# **You can now** write a router whose load is steered without a gradient, and read from the counts which experts are
# idle and what a capacity factor will drop.
#
# <details><summary>Sources</summary>
#
# Wang et al. 2024, *Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts*, arXiv:2408.15664, algorithm 1.
# DeepSeek-AI 2024 (DeepSeek-V3), arXiv:2412.19437, sections 2.1.2 and 4.2. Dai et al. 2024 (DeepSeekMoE),
# arXiv:2401.06066, section 3. Ethayarajh 2019, arXiv:1909.00512 (the common part). Lepikhin et al. 2020
# (GShard, capacity), arXiv:2006.16668.
#
# </details>
