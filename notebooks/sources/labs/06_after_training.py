# %% [markdown] id="title"
# # Lab: what is done with a model after pre-training?
#
# A model trained on text, as in [chapter 6](../06_training.ipynb), only goes on with what it is given. The models that
# people talk to were trained further, in two or three more stages: SFT, DPO, GRPO. This lab takes one small model through
# all of them: what does each stage need, and what does it change? The task is to write a German number word in digits, so
# that a machine can check each answer. It takes about {minutes} minutes.

# %% id="setup" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import copy
import math

import torch
import torch.nn.functional as F

from course_lib import training
from course_lib.config import TransformerConfig
from course_lib.generation import generate
from course_lib.testing import prove
from course_lib.training import sequence_log_probs, token_log_probs
from course_lib.transformer import LanguageModel
from coursework import exercises as ex
from coursework.corpora.spelled import (
    END,
    PAD,
    PROMPT,
    SYMBOLS,
    ZERO,
    answers,
    draw_numbers,
    pages,
    questions,
    spelled,
)
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_06_after_training as plots
from coursework.records import claim

torch.set_num_threads(1)
SERIES = palette.series
LONGEST = 10  # tokens of an answer, at most

# %% [markdown] id="path"
# ## 1 A model that only goes on
#
# Text is everywhere. Answers written by people are expensive. To say which of two answers is better is cheaper. And where
# a machine can judge, a judgement costs next to nothing.

# %% id="path-drawn" tags=["hide-input"]
# Drawing: the four stages, and what each needs
drawings.after_training_path().show()

# %% [markdown] id="pages-text"
# Our model has two layers and 72 thousand parameters. It is pre-trained on an imaginary book. Each line holds a German
# number word, a sign `=`, and the number, half of the time in digits and half in English words. A token is a part of a
# word, a digit or a sign. Three pieces of such pages:

# %% id="pages-shown"
book = pages(draw_numbers(6000), 26)  # ids (6000, 26)
for row in book[:3]:
    print(spelled(row))

# %% [markdown] id="pages-how"
# German says the unit before the ten: *zwei und vierzig* is 42. Each row is padded on the left, so that the first `=`
# always stands at the same position. We train as in the chapter: at each token, predict the next one.


# %% id="tools" tags=["hide-input"]
# The model, and a loop that makes a loss smaller: a rate that rises over 20 steps and then falls
def small_model():
    torch.manual_seed(0)
    sizes = {"d_model": 64, "n_heads": 4, "d_ff": 128, "n_encoder_layers": 0, "n_decoder_layers": 2}
    kinds = {"dropout": 0.0, "norm_place": "pre", "positions": "rotary"}
    return LanguageModel(TransformerConfig(vocab_size=len(SYMBOLS), **sizes, **kinds))


def fit(model, loss_of, rows, steps, rate):
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    for step in range(steps):
        loss = loss_of(model, rows[torch.randint(len(rows), (32,), generator=draw)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / steps)
        optimizer.step()
    return model


# %% id="pre-train"
def next_token_loss(model, rows):
    targets = rows[:, 1:].masked_fill(rows[:, 1:] == PAD, -100)  # -100: not counted
    return F.cross_entropy(model(rows[:, :-1]).mT, targets, ignore_index=-100)


base = fit(small_model(), next_token_loss, book, steps=500, rate=4e-3)

# %% [markdown] id="ask-text"
# Now we give it number words that it never met in training, and the sign `=`, and let it *sample*: each token is drawn
# with the probability that the model gives it ([chapter 5](../05_decoder.ipynb)). The same function can also be *greedy*
# and take the likeliest token each time.


# %% id="answer"
def answer(model, asked, draw=None):
    """Questions (N, 12) -> answers (N, 10), sampled; without `draw` greedy."""
    settings = {"stop": END, "pad_id": PAD, "generator": draw}
    settings["temperature"] = 0.0 if draw is None else 1.0
    rows = generate(model, asked, max_new_tokens=LONGEST, **settings)
    return F.pad(rows[:, PROMPT:], (0, LONGEST + PROMPT - rows.size(1)), value=PAD)


# %% id="base-samples" tags=["not-compared:sampled-text"]
held_out = draw_numbers(200, "test", seed=9)
asked, wanted = questions(held_out), answers(held_out, LONGEST)
sampled = answer(base, asked[:4], torch.Generator())
for number, written in zip(held_out[:4], sampled, strict=True):
    print(f"{number:>7}:  {spelled(written)}")

# %% [markdown] id="verifier-text"
# The model knows a lot about numbers. But half of the time it goes on in English, and it never stops: it begins the next
# line of the book.
#
# We need a judge. A **verifier** is a program that says whether an answer is right. Ours is strict: the right digits, and
# then the end sign. This is *exact match*.


# %% id="verifier"
def is_right(written, wanted):
    """(N, 10), (N, 10) -> (N,): 1.0 where every token is right, else 0.0"""
    return (written == wanted).all(-1).float()


def score(model):
    return int(is_right(answer(model, asked), wanted).sum())


print("right of 200, pre-trained model:", score(base))

# %% [markdown] id="sft"
# ## 2 SFT: show it answers
#
# The simplest remedy: show the model questions with answers, and train it on them as before. This is **supervised
# fine-tuning**, SFT. There is one change. The model will never have to write the questions, so only the tokens of the
# answer count in the loss.

# %% id="sft-drawn" tags=["hide-input"]
# Drawing: whose predictions count
drawings.answer_counts(["sieben", "und", "zwanzig", "="], ["2", "7", "end"]).show()

# %% [markdown] id="sft-hand"
# **By hand.** Suppose that the model gives the three tokens of the answer the probabilities 0.5, 0.9 and 0.8.
#
# | token | probability | minus its logarithm |
# |---|---|---|
# | 2 | 0.5 | 0.69 |
# | 7 | 0.9 | 0.11 |
# | end | 0.8 | 0.22 |
#
# The loss is the mean of the last column, 0.34. As a formula, with the question $x$, the tokens $y_1 \ldots y_T$ of the
# answer, and the model's probability $\pi$ (the letter that the papers of this field use):
#
# $$L_{SFT} = -\frac{1}{T} \sum_{t=1}^{T} \ln \pi(y_t \mid x, y_1 \ldots y_{t-1})$$
#
# In code, one line more than before:

# %% id="sft-proof" tags=["hide-input"]
# Check: the numbers said above
chances = torch.tensor([0.5, 0.9, 0.8])
prove("the mean of the three costs is 0.34", round(-chances.log().mean().item(), 2) == 0.34)


# %% id="sft-code"
def answer_loss(model, rows):
    targets = rows[:, 1:].masked_fill(rows[:, 1:] == PAD, -100)
    targets[:, : PROMPT - 1] = -100  # the question is read, and not counted
    return F.cross_entropy(model(rows[:, :-1]).mT, targets, ignore_index=-100)


labelled = draw_numbers(200, seed=100)  # two hundred questions, answered by hand
rows = torch.cat([questions(labelled), answers(labelled)], dim=1)
tuned = fit(copy.deepcopy(base), answer_loss, rows, steps=100, rate=2e-3)

# %% [markdown] id="sft-question"
# These were 200 questions and 100 steps; before, 6000 rows and 500 steps.
#
# **Predict.** The base model answered none of the 200 held-out questions. How many does the tuned model answer greedily?

# %% id="sft-guess"
ex.predict("after_sft", "")

# %% id="sft-measured" tags=["atol:30"]
print("right of 200:", score(tuned))

# %% [markdown] id="elicit"
# Two hundred examples cannot have taught the model the number words of German. What did it know before? We sample each of
# 100 questions 64 times, and judge mildly: an answer counts if it *begins* with the right digits.

# %% id="elicit-record" tags=["hide-input"]
# Record: what the pre-trained model could already do
stages = claim("after_training_stages")
LAST = f"{stages.seeds} seeds; {stages.command}"


def ranged(arm, measure, record=stages):
    return "{:.2f} to {:.2f}".format(*record.range(arm, measure))


print(f"{'':<36}{'pre-trained':>16}{'after SFT':>16}")
for words, measure in (
    ("exact match, one sample", "pass@1"),
    ("right digits, one sample", "digits@1"),
    ("right digits in one of 64 samples", "digits@64"),
):
    print(f"{words:<36}{ranged('base', measure):>16}{ranged('SFT', measure):>16}")
print(f"Least to greatest of {LAST}")
prove("the pre-trained model never answers", stages.range("base", "pass@64")[1] == 0)

# %% [markdown] id="elicit-read"
# Look at the last row. For most questions a right answer was already among the model's continuations, one of many, and
# followed by other text. SFT made it likelier, and taught the model to stop. This is called *eliciting* an ability.
#
# ## 3 DPO: say which answer is better
#
# Often it is easier to compare than to write: of two answers, which one do you prefer? A pair says something that SFT
# cannot say, namely what *not* to write.
#
# ### 3.1 Two gains on a balance
#
# First we need the probability of a whole answer. It is the product of the probabilities of its tokens, so its
# logarithm is a sum. For our three tokens: −0.69 − 0.11 − 0.22 = −1.02. This is the **log-probability** of the answer.
#
# Now keep two models. The **policy** is the one that we train. The **reference** is a frozen copy of it as it was at
# the start. The *gain* of an answer is its log-probability under the policy minus that under the reference. At the
# start all gains are 0. We want the preferred answer to gain more than the refused one.

# %% id="dpo-drawn" tags=["hide-input"]
# Drawing: the gains of a pair on a balance
drawings.preference_scales((-0.5, -2.5)).show()

# %% [markdown] id="dpo-hand"
# **By hand**, with the numbers of the drawing.
#
# | answer | reference | policy | gain |
# |---|---|---|---|
# | preferred | −2.0 | −2.5 | −0.5 |
# | refused | −1.5 | −4.0 | −2.5 |
#
# The margin is −0.5 − (−2.5) = 2. To turn a margin into a loss, we read it as a bet: the sigmoid turns it into a
# probability that the preferred answer wins. A factor $\beta$ says how much a margin counts. With $\beta = 0.5$ the
# sigmoid of 0.5 · 2 = 1 is 0.73, and the loss is −ln 0.73 = 0.31. At the start it was −ln 0.5 = 0.69.
#
# This is **direct preference optimisation**, DPO (Rafailov et al. 2023). With the preferred answer $y_w$ (won), the
# refused one $y_l$ (lost), the policy $\pi$ and the reference $\pi_{ref}$, the gain of an answer $y$ is
#
# $$g(y) = \ln \pi(y \mid x) - \ln \pi_{ref}(y \mid x)$$
#
# and with the sigmoid $\sigma$ the loss of a pair is
#
# $$L_{DPO} = -\ln \sigma(\beta \, [g(y_w) - g(y_l)])$$
#
# <details><summary>Where it comes from: RLHF</summary>
#
# Before DPO, pairs were used in two steps, called **RLHF**, reinforcement learning from human feedback (Ouyang et al.
# 2022). First one trains a *reward model* on the pairs, which gives any answer a number. Then one trains the policy to
# earn much, with a penalty for leaving the reference. DPO is derived from this second step: one can write down which
# policy would be best there, and so train towards it without a reward model.
#
# </details>

# %% id="dpo-proof" tags=["hide-input"]
# Check: the numbers said above
prove("the answer has the log-probability -1.02", round(chances.log().sum().item(), 2) == -1.02)
pair = [torch.tensor([value]) for value in (-2.5, -4.0, -2.0, -1.5)]
prove("a margin of 2 costs 0.31", round(training.dpo_loss(*pair, beta=0.5).item(), 2) == 0.31)
prove("the sigmoid of 1 is 0.73", round(torch.sigmoid(torch.tensor(1.0)).item(), 2) == 0.73)

# %% exercise="dpo_loss"


# %% [markdown] id="pairs-text"
# ### 3.2 Where the pairs come from
#
# We let the tuned model answer 800 new questions, eight times each. Where some of the eight are right and some are
# wrong, we have a pair. Usually people choose the better answer; here the verifier does.


# %% id="logits"
def answer_logits(model, asked, written):
    """The logits that predict the tokens of the answers: (N, 10, V)"""
    return model(torch.cat([asked, written], dim=1)[:, :-1])[:, PROMPT - 1 :]


def log_prob(model, asked, written):
    """The log-probability of each answer: (N,)"""
    logits = answer_logits(model, asked, written)
    return sequence_log_probs(logits, written, written != PAD)


# %% id="pairs" tags=["hide-input", "atol:120"]
# Pairs: eight samples for each of 800 questions, a right and a wrong one where there are both
values = draw_numbers(800, seed=200)
samples = answer(tuned, questions(values).repeat_interleave(8, 0), torch.Generator().manual_seed(0)).view(800, 8, -1)
right = is_right(samples, answers(values, LONGEST)[:, None]).bool()  # (800, 8)
both, every = right.any(1) & ~right.all(1), torch.arange(800)
chosen, refused = (samples[every, index][both] for index in (right.int().argmax(1), right.int().argmin(1)))
pair_asked = questions(values)[both]
print("pairs:", len(chosen))

# %% [markdown] id="pair-example"
# For *sieben hundert fünf und vierzig tausend sechs hundert sieben und fünfzig*, the preferred answer is `745657 end`. A
# refused one may be `756457 end`, with two digits exchanged, or `745657 sechzig tausend`, which does not stop.

# %% id="pair-shown" tags=["hide-input", "atol:0.3"]
# Measure: the mean number of tokens of both kinds of answers
for name, written in (("preferred", chosen), ("refused", refused)):
    print(f"{name}: {(written != PAD).sum(1).float().mean():.1f} tokens on average")

# %% [markdown] id="dpo-train-text"
# ### 3.3 Training on pairs
#
# The loop computes the log-probabilities of both answers under the policy, takes your loss, and makes a step. Those
# under the reference never change, so they are computed once. We begin with $\beta = 0.1$, a usual value.


# %% id="steps" tags=["hide-input"]
# Tool: one update, with the gradient clipped to length one
def make_step(optimizer, loss, rate):
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()


# %% id="dpo-train"
def train_dpo(beta, steps=60, rate=1e-3 / 3):
    policy, draw = copy.deepcopy(tuned), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0)
    with torch.no_grad():
        frozen = [log_prob(tuned, pair_asked, some) for some in (chosen, refused)]
    log = []
    for step in range(steps):
        batch = torch.randint(len(chosen), (32,), generator=draw)
        good = log_prob(policy, pair_asked[batch], chosen[batch])
        bad = log_prob(policy, pair_asked[batch], refused[batch])
        loss, margins = dpo_loss(good, bad, frozen[0][batch], frozen[1][batch], beta)
        make_step(optimizer, loss, rate * min(1.0, (step + 1) / 10))
        gain = good - frozen[0][batch]
        log.append([loss.item(), gain.mean().item(), (gain - margins).mean().item()])
    return policy, log


# %% [markdown] id="dpo-question"
# **Predict.** The loss will fall. What will the log-probability of the *preferred* answers do: rise, stay, or fall? And
# exact match on the held-out questions?

# %% id="dpo-guess"
ex.predict("dpo_chosen", "")

# %% id="dpo-run" tags=["atol:40"]
preferring, log = train_dpo(beta=0.1)
print("right of 200:", score(preferring))

# %% id="dpo-figure" tags=["hide-input", "picture:40"]
# Figure: loss and gains while DPO trains, one seed
smooth = torch.tensor(log).unfold(0, 5, 1).mean(-1)  # over five steps
lines = {"Loss": {"": smooth[:, 0]}, "Gain": {"preferred": smooth[:, 1], "refused": smooth[:, 2]}}
each = (
    {"ylabel": "nats", "levels": {"": math.log(2)}},
    {"ylabel": "log-probability", "levels": {"": 0}, "colours": (palette.value, palette.key)},
)
axes = {"xlabel": "step", "styles": "-", "names": "end"}
show(
    common.panels(common.curves, range(len(smooth)), lines, size=(7.2, 2.7), share="", each=each, **axes),
    alt="Left, the loss of DPO falls from ln 2, a dashed line, over 60 steps. Right, two curves of gains that start at "
    "zero: that of the refused answers falls steeply, that of the preferred answers falls, too, but less.",
    caption="The loss falls, as it should. Both kinds of answers became less likely; the preferred ones less so.",
)

# %% [markdown] id="dpo-why"
# The loss rewards a *difference* of gains, and the balance tips as well when both fall. What becomes likelier then? Other
# answers, which stand in no pair. How alike are the two answers of a pair?

# %% id="shared" tags=["atol:0.1"]
real = (chosen != PAD) | (refused != PAD)
same = chosen == refused
parted = (~same).int().argmax(1)  # the position of the first difference
later = real & (torch.arange(LONGEST) > parted[:, None])
share = same[real].float().mean()
print(f"tokens that stand at the same position in both: {share:.2f}")
print(f"of those after the first difference: {same[later].float().mean():.2f}")

# %% [markdown] id="dpo-read"
# What makes a shared token less likely in the refused answer may also act on it in the preferred one.
#
# Two remedies are in use. With a larger $\beta$ a smaller margin is enough, so the policy stays closer to its
# reference. Or one adds the loss of SFT on the preferred answers, as for Llama 3 (Dubey et al. 2024). The next figure
# also shows a control: the same steps on the same preferred answers with the loss of SFT *alone*.
#
# <details><summary>What has been proposed as the cause</summary>
#
# Up to the token where they part, both answers are the same, so this beginning cancels in the margin. Pal et al.
# (2024) point to the shared tokens after the first difference. Razin et al. (2024) look at how similar the two answers
# are in the model's hidden states. A larger $\beta$ helps because the loss is nearly flat once $\beta$ times the
# margin is large, and then pushes no more.
#
# </details>

# %% id="dpo-record" tags=["hide-input"]
# Figure: DPO in three ways and a control, a dot for each seed
preferences, controls = claim("preferred_and_refused"), claim("after_training_controls")
arms = [(arm, preferences, arm) for arm in preferences.arms]
arms.append(("the SFT loss alone", controls, "SFT, preferred only"))
panels = (("chosen", "gain, preferred"), ("refused", "gain, refused"), ("pass@1", "exact match"))
rows = {title: {label: record.values(arm, measure) for label, record, arm in arms} for measure, title in panels}
for title, found in rows.items():
    start = stages.values("SFT", "pass@1") if title == "exact match" else [0.0] * preferences.seeds
    rows[title] = {"before DPO": start, **found}
said = "; ".join(
    f"{label}: " + ", ".join(f"{title} {ranged(arm, m, record)}" for m, title in panels) for label, record, arm in arms
)
show(
    common.panels(
        common.dot_rows, rows, size=(7.4, 2.6), share="y", joined=True, colours=["#8A8A8A"] + [SERIES[0]] * 4
    ),
    alt=f"Three panels with a dot for each seed, before DPO, after it in three ways, and after the SFT loss alone. {said}.",
    caption="A line joins the dots of the same seed. Exact match of one sample, on held-out questions. "
    f"({preferences.seeds} seeds; {preferences.command} {controls.name})",
)
print(f"{'':<20}{'gain, preferred':>18}{'gain, refused':>18}{'exact match':>16}{'greedy':>16}")
print(f"{'before DPO':<20}{'0':>18}{'0':>18}{ranged('SFT', 'pass@1'):>16}{ranged('SFT', 'likeliest answer'):>16}")
for label, record, arm in arms:
    gains = "".join(f"{ranged(arm, m, record):>18}" for m in ("chosen", "refused"))
    print(f"{label:<20}{gains}{ranged(arm, 'pass@1', record):>16}{ranged(arm, 'likeliest answer', record):>16}")
exact = [stages.values("SFT", "pass@1"), *(record.values(arm, "pass@1") for _, record, arm in arms)]
by_seed = list(zip(*exact, strict=True))  # before, beta 0.1, beta 1, with SFT, SFT alone
prove("beta 0.1 falls below the start, with every seed", all(small < start for start, small, *_ in by_seed))
prove("beta 1 rises, and with SFT more", all(start < large < both for start, _, large, both, _ in by_seed))
kept = [(alone - start) / (both - start) for start, _, _, both, alone in by_seed]
print("the gain of the SFT loss alone, over that of both:", ", ".join(f"{share:.2f}" for share in kept))
prove("the SFT loss alone gains at least nine tenths as much as both", min(kept) > 0.9)

# %% [markdown] id="dpo-verdict"
# With $\beta = 0.1$ the loss was content and the model worse: with each of five seeds the preferred answers lost
# probability, and exact match fell below where it began. Both remedies repair this. But look at the last row. The loss
# of SFT *alone* gains as much or nearly as much, with four seeds of five even a little more. So here it was the right
# answers that helped. Without this control we should have praised DPO.
#
# <details><summary>How far this reaches, and what DPO costs</summary>
#
# With $\beta = 1$ the preferred answers kept their probability, and exact match rose a little. With the loss of SFT
# beside it they gained, and exact match rose more. Even the refused answers became less likely where nobody pushed
# them: what one answer gains, others must lose. All of this was measured at one learning rate, and for a model whose
# right and wrong answers are much alike. Where no answer is simply right, as with style, the pairs may say more. What
# carries over is the habit: plot both gains, measure what you care about on questions that stand in no pair, and try
# the simpler loss.
#
# DPO needs no reward, no sampling while training, and has one loss that looks like a classifier's. It costs one extra
# pass of the reference over all pairs, or a second model in memory. And its pairs grow stale, because they were
# written by the model as it was at the start. It is used where people can compare but no program can judge, such as
# tone, style and helpfulness.
#
# </details>
#
# *A good place to stop: half of the stages are done.*
#
# ## 4 GRPO: let it try, and pay for what is right
#
# Where a program *can* judge, we need no pairs. We let the model answer, pay a **reward** for each answer, and make
# paid answers likelier. This is *reinforcement learning*. The verifier pays 1 for a right answer and 0 for a wrong
# one.
#
# ### 4.1 Better than what?
#
# A reward of 1 says little by itself. If the question was *drei*, a right answer is no achievement. The idea of
# **GRPO**, *group relative policy optimisation* (Shao et al. 2024): draw several answers to the same question, and
# compare each with its group.

# %% id="group-drawn" tags=["hide-input"]
# Drawing: a group of four answers with rewards and advantages
drawings.group_of_answers(
    "sieben und zwanzig =", ["27 end", "72 end", "207 end", "27 27 end"], [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]
).show()

# %% [markdown] id="group-hand"
# **By hand.** The rewards are 1, 0, 0, 0. Their mean is 0.25. Their standard deviation is 0.5, with 4 − 1 = 3 in its
# denominator. So the first answer has the advantage (1 − 0.25) / 0.5 = 1.5, and each of the others (0 − 0.25) / 0.5 =
# −0.5. For answer $i$ of a group of $G$ answers with the rewards $r_1 \ldots r_G$:
#
# $$A_i = \frac{r_i - \text{mean}(r_1 \ldots r_G)}{\text{std}(r_1 \ldots r_G)}$$
#
# If all answers of a group are right, or all are wrong, every advantage is 0, and the question teaches nothing.
#
# <details><summary>Not everybody divides</summary>
#
# One right answer of eight gets a large advantage, and one wrong answer of eight a large negative one. Dr. GRPO (Liu,
# Z. et al. 2025) leaves the division out, so that questions which are nearly always right or nearly always wrong get
# no extra weight.
#
# </details>

# %% exercise="group_advantages"


# %% [markdown] id="ratio-text"
# ### 4.2 A step that knows when to stop
#
# Now each token of an answer is made likelier in proportion to the answer's advantage. But samples are costly, so we
# make more than one update with them, and after the first the model is no longer the one that wrote them. So we watch the
# **ratio**: the probability of the token now, over its probability when it was written.
#
# The rule comes from PPO, the ancestor of GRPO (Schulman et al. 2017). A token earns ratio times advantage. The ratio
# is also *clipped* to lie between $1 - \epsilon$ and $1 + \epsilon$, with $\epsilon = 0.2$. Of the two products the
# smaller counts. **By hand**: with the advantage 1 and the ratio 1.5, the smaller of 1.5 and 1.2 is 1.2. With the
# advantage −1 and the ratio 1.5, the smaller of −1.5 and −1.2 is −1.5.

# %% id="ratio-drawn" tags=["hide-input"]
# Figure: what a token earns, by its ratio
show(
    plots.earned_by_ratio(),
    alt="Two curves of what a token earns by its ratio. With advantage plus one it rises with the ratio up to 1.2 and is "
    "flat beyond. With advantage minus one it is flat below 0.8 and falls beyond. Dashed lines show it without clipping. "
    "Dots mark the two numbers by hand, at ratio 1.5.",
    caption="Where the curve is flat there is no gradient. With advantage +1, a token that is already 20 % likelier is "
    "pushed no further by this term; with advantage −1, neither is one that is already 20 % less likely. (Other terms may "
    "still push it.) A step in the wrong direction is always pushed back. Dots: the numbers by hand.",
)

# %% [markdown] id="kl-text"
# Last, the policy should not forget what it was. A penalty grows with its distance from the reference, the **KL
# divergence**, taken per token: 0 for equal models, and larger the more they differ. For a sampled token whose
# log-probability is $\ell$ under the policy and $\ell_{ref}$ under the reference, it is estimated by
#
# $$k = e^{\ell_{ref} - \ell} - (\ell_{ref} - \ell) - 1$$
#
# With $\ell = -0.5$ and $\ell_{ref} = -1$ it is $e^{-0.5} + 0.5 - 1 = 0.11$. The whole loss, with the ratio $\rho_t$ of
# token $t$ and a weight $\beta$ of the penalty, is averaged over the tokens of each answer, and then over the answers.
#
# $$L_{GRPO} = -\text{mean}_t [\min(\rho_t A, \; \text{clip}(\rho_t, 1 - \epsilon, 1 + \epsilon) \, A) - \beta k_t]$$
#
# <details><summary>Why this estimate, and what the means do</summary>
#
# The mean of $k$ over all samples of the policy *is* the KL divergence. That is true of the plain difference $\ell -
# \ell_{ref}$, too. But its values have both signs, whereas no $k$ is ever negative. $k$ is a good estimate of the
# value; its gradient is another matter. The divergence is not symmetric: from the reference to the policy it is
# another number. The mean over tokens lets a token of a long answer count less than one of a short answer. Dr. GRPO
# drops this, too.
#
# </details>


# %% id="grpo-code"
def grpo_loss(now, old, reference, advantages, real, clip=0.2, beta=0.04):
    """Log-probabilities of tokens (N, T) three times, (N,), bool (N, T) -> loss"""
    ratio, A = (now - old).exp(), advantages[:, None]  # (N, T), (N, 1)
    earned = torch.minimum(ratio * A, ratio.clamp(1 - clip, 1 + clip) * A)
    distance = (reference - now).exp() - (reference - now) - 1
    each = (earned - beta * distance).masked_fill(~real, 0.0)
    return -(each.sum(1) / real.sum(1)).mean()


# %% id="grpo-proof" tags=["hide-input"]
# Check: equal to the course's function, and the numbers said above
drawn = torch.Generator().manual_seed(0)
now, old, reference = (torch.randn(4, 5, generator=drawn) for _ in range(3))
better, mask = torch.randn(4, generator=drawn), torch.arange(5) < torch.tensor([[5], [3], [1], [4]])
theirs = training.grpo_loss(now, old, reference, better, mask)
prove("the loss equals that of course_lib", torch.allclose(grpo_loss(now, old, reference, better, mask), theirs))
prove("0.11 by hand", round(training.kl_estimate(torch.tensor(-0.5), torch.tensor(-1.0)).item(), 2) == 0.11)
found = training.group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
prove("advantages 1.5 and -0.5", torch.allclose(found, torch.tensor([[1.5, -0.5, -0.5, -0.5]]), atol=1e-3))

# %% [markdown] id="grpo-train-text"
# ### 4.3 Training by trying
#
# One step of GRPO: draw 16 new questions, sample 8 answers to each, pay them, compute advantages, and make two
# updates. The model is never shown a written answer; it learns only which of its own were right. (Our verifier does
# hold the 16 · 70 = 1120 answers of 70 steps.)


# %% id="grpo-step"
def grpo_step(policy, optimizer, numbers, reward, draw, rate):
    asked = questions(numbers).repeat_interleave(8, 0)  # (128, 12)
    wanted = answers(numbers, LONGEST).repeat_interleave(8, 0)
    written = answer(policy, asked, draw)  # (128, 10)
    paid, real = reward(written, wanted), written != PAD
    advantages = group_advantages(paid.view(16, 8)).flatten()
    with torch.no_grad():
        logits = answer_logits(policy, asked, written)
        old = token_log_probs(logits, written)
        frozen = token_log_probs(answer_logits(tuned, asked, written), written)
    for _ in range(2):
        now = token_log_probs(answer_logits(policy, asked, written), written)
        make_step(optimizer, grpo_loss(now, old, frozen, advantages, real), rate)
    return watched(paid, is_right(written, wanted), old, frozen, logits, real)


# %% id="grpo-loop" tags=["hide-input"]
# The loop over 70 steps, and what is watched in each
WATCHED = ("reward", "exact match", "KL", "length", "entropy")


def watched(paid, right, old, frozen, logits, real):
    """Mean reward, exact match, KL, length and entropy of the samples of one step."""
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1)[real].mean()
    distance = training.kl_estimate(old, frozen)[real].mean()
    found = (paid.mean(), right.mean(), distance, real.sum(1).float().mean(), entropy)
    return [value.item() for value in found]


def train_grpo(reward, steps=70, rate=1e-3):
    policy, draw = copy.deepcopy(tuned), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0)
    numbers = draw_numbers(16 * steps, seed=300)
    log = []
    for step in range(steps):
        some = numbers[16 * step : 16 * step + 16]
        log.append(grpo_step(policy, optimizer, some, reward, draw, rate * min(1.0, (step + 1) / 10)))
    return policy, torch.tensor(log)


# %% id="grpo-run" tags=["atol:30"]
reinforced, course = train_grpo(is_right)
print("right of 200:", score(reinforced))

# %% id="grpo-figure" tags=["hide-input", "picture:40"]
# Figure: reward, KL, length and entropy over the steps, one seed live and the others from the record
runs = claim("course_of_grpo")


def over_steps(record, arm, name):
    """The means over stretches of ten steps, (seeds, stretches)."""
    return torch.tensor([record.values(arm, f"{name} from {start}") for start in range(0, 70, 10)]).T


lines = {name: {"recorded": over_steps(runs, "GRPO", name)} for name in ("reward", "KL", "length", "entropy")}
for name, found in lines.items():
    found["this run"] = course[:, WATCHED.index(name)].view(-1, 10).mean(1)
looks = {"colours": ("#9A9A9A", SERIES[0]), "styles": ("-", "o-"), "xlabel": "step"}
first, last = "reward from 0", "reward at the end"
show(
    common.panels(common.curves, range(5, 70, 10), lines, size=(7.2, 4.4), share="x", columns=2, **looks),
    alt=f"Four panels over 70 steps. The reward rises, over the seeds from {ranged('GRPO', first, runs)} in the first ten "
    f"steps to {ranged('GRPO', last, runs)} in the last ten; the KL divergence rises from zero; the length stays near "
    "seven tokens; the entropy falls.",
    caption=f"Blue: the run above. Grey: recorded runs, means over ten steps. ({runs.seeds} seeds; {runs.command})",
)

# %% [markdown] id="grpo-read"
# The *reward* rises: the samples get better. The *KL* rises: the policy leaves its reference. The *length* is what it
# should be, about six digits and an end sign. And the *entropy*, which says how undecided the model is at a token, falls.
#
# Is it really the reward that taught the model, and does it need GRPO? Here are controls, all from the tuned model.
#
# - *Rewards shuffled*: GRPO with rewards that say nothing about the answers.
# - *Same 200 answers*: no reward, but 140 more updates of SFT on the answers of section 2. GRPO makes 140 updates, too.
# - *Own right answers*: SFT on those answers of the model that the verifier found right, here in 60 updates. This is
#   called **rejection sampling**: sample, reject what is wrong, train on the rest.
# - *1120 written answers*: SFT on the answers that the verifier holds, in 140 updates.
#
# DPO stands beside them.

# %% id="controls-record" tags=["hide-input"]
# Figure: exact match after each kind of training, a dot for each seed
shown = (
    ("SFT, the start", stages, "SFT"),
    ("GRPO, rewards shuffled", stages, "GRPO, rewards shuffled"),
    ("DPO, beta 1", preferences, "beta 1"),
    ("DPO, with SFT", preferences, "beta 0.1, with SFT"),
    ("SFT, same 200 answers", controls, "SFT, 140 steps"),
    ("GRPO", stages, "GRPO"),
    ("SFT, own right answers", controls, "SFT, own right answers"),
    ("SFT, 1120 written answers", controls, "SFT, 1120 answers"),
)
measures = {"one sample": "pass@1", "greedy": "likeliest answer"}
found = {
    title: {label: record.values(arm, measure) for label, record, arm in shown} for title, measure in measures.items()
}
colours, across = [SERIES[label == "GRPO"] for label, _, _ in shown], "exact match, held-out questions"
show(
    common.panels(common.dot_rows, found, size=(7.4, 3.4), joined=True, colours=colours, xlabel=across, xlim=(0, 1)),
    alt="Rows of dots for each kind of training, exact match of one sample and of the greedy answer: "
    + "; ".join(f"{n} {ranged(a, 'pass@1', r)} and {ranged(a, 'likeliest answer', r)}" for n, r, a in shown)
    + ".",
    caption=f"A dot for each seed; a line joins those of the same seed. ({LAST} {preferences.name} {controls.name})",
)
grpo = {measure: stages.values("GRPO", measure) for measure in ("pass@1", "likeliest answer")}
print(f"{'':<26}{'one sample':>14}{'greedy':>14}   seeds above GRPO: sample, greedy")
for label, record, arm in shown:
    cells = "".join(f"{ranged(arm, measure, record):>14}" for measure in grpo)
    above = [sum(x > y for x, y in zip(record.values(arm, m), grpo[m], strict=True)) for m in grpo]
    print(f"{label:<26}{cells}" + ("" if label == "GRPO" else f"{above[0]:>14} of 5{above[1]:>4} of 5"))
many = controls.values("SFT, 1120 answers", "pass@1")
best = [max(row) for row in zip(*(record.values(arm, "pass@1") for _, record, arm in shown), strict=True)]
prove("SFT on the 1120 answers is best of all these, with every seed", many == best)

# %% [markdown] id="controls-read"
# With shuffled rewards the model became much worse, with each of five seeds. So GRPO learned from what the rewards
# said. Against *the same 200 answers* its greedy answers were ahead with all five. But plain SFT on the model's *own
# right answers* was above GRPO with most seeds. So a judge helps, but GRPO is not shown to be the best way to use one.
# *The 1120 answers* taught most.
#
# <details><summary>Why the greedy answer, and how far this reaches</summary>
#
# The same 200 answers, repeated, also made single samples right more often, and with some seeds more often than GRPO
# did. The model may only have become more decided. The greedy answer is the better test here, because a model that is
# only more decided keeps its likeliest tokens.
#
# Rewards that say nothing do harm here. They need not: Shao, R. et al. (2025) report that random ones raised the
# scores of one family of models, Qwen2.5-Math. All rows were trained at one learning rate or a third of it, so they do
# not rank the methods for other tasks. And GRPO samples anew in each step. What that is worth in a longer training,
# these rows do not say.
#
# </details>
#
# ## 5 Is it new, or only likelier?
#
# An answer that is never sampled is never paid. Can GRPO then teach a model anything that it could not do before, if
# it tried often enough? How likely is it that at least one of $k$ samples is right? This number is **pass@k**.
#
# **By hand.** We drew 5 answers to a question, and 2 of them are right. Somebody takes 2 of the 5. There are 10 ways to
# take 2 of 5, and 3 ways to take 2 of the 3 wrong ones. So at least one is right in 7 of 10 cases: pass@2 is 0.7. With
# $n$ answers of which $c$ are right (Chen et al. 2021):
#
# $$\text{pass@}k = 1 - \frac{\binom{n - c}{k}}{\binom{n}{k}}$$
#
# The tempting $1 - (1 - c/n)^k$, here 0.64, is too low, because it may take the same answer twice.

# %% exercise="pass_at_k"

# %% id="pass-proof" tags=["hide-input"]
# Check: the numbers said above
prove("pass@2 is 0.7", math.isclose(training.pass_at_k(5, 2, 2), 0.7))

# %% [markdown] id="pass-question"
# We draw 64 answers to each of 100 held-out questions, before GRPO and after it.
#
# **Predict.** After GRPO pass@1 is higher. What about pass@64: is it higher, too, the same, or lower?

# %% id="pass-guess"
ex.predict("pass_at_64", "")

# %% id="pass-measured" tags=["atol:12"]
many, goal = (rows[:100].repeat_interleave(64, 0) for rows in (asked, wanted))
counts = {}
for name, model in (("SFT", tuned), ("GRPO", reinforced)):
    written = answer(model, many, torch.Generator().manual_seed(0))
    counts[name] = is_right(written, goal).view(100, 64).sum(1).int().tolist()
    scores = [sum(pass_at_k(64, c, k) for c in counts[name]) for k in (1, 64)]
    print(f"{name}: of 100 questions, pass@1 {scores[0]:.0f}, pass@64 {scores[1]:.0f}")

# %% id="pass-figure" tags=["hide-input", "picture:40"]
# Figure: pass@k before and after GRPO
ks = [1, 2, 4, 8, 16, 32, 64]
lines = {name: [sum(pass_at_k(64, c, k) for c in counts[name]) / 100 for k in ks] for name in ("SFT", "GRPO")}
recorded = {name: {k: stages.values(name, f"pass@{k}") for k in (1, 4, 16, 64)} for name in lines}
show(
    plots.right_within(ks, lines, recorded),
    alt="Two rising curves of pass@k against k from 1 to 64. "
    + "; ".join(
        f"{name}: pass@1 {ranged(name, 'pass@1')}, pass@64 {ranged(name, 'pass@64')}" for name in ("SFT", "GRPO")
    )
    + ". The curve after GRPO begins higher and ends no higher.",
    caption=f"Lines: the two models above. Pale dots: recorded runs ({LAST}). At k = 1 the model after GRPO is ahead, at "
    "k = 64 it is not.",
)

# %% [markdown] id="pass-changed-text"
# Which questions were gained? We look at those without a right answer among the 64 samples before GRPO. As a control, we
# sample the model before GRPO 64 times more.

# %% id="pass-changed" tags=["atol:12"]
written = answer(tuned, many, torch.Generator().manual_seed(1))
again = is_right(written, goal).view(100, 64).sum(1) > 0
before, after = (torch.tensor(counts[name]) > 0 for name in ("SFT", "GRPO"))
print("without a right answer before:", int((~before).sum()))
print("  of these, found by 64 more samples before:", int((~before & again).sum()))
print("  of these, found by 64 samples after GRPO:", int((~before & after).sum()))
print("found before, and not after:", int((before & ~after).sum()))
print("found before, and not by 64 more samples:", int((before & ~again).sum()))

# %% [markdown] id="pass-read"
# With each of five seeds pass@1 rose, and pass@64 fell, by less than pass@1 had gained. So in this run GRPO did not
# widen what the model can find. It moved probability to answers that were already among the samples, and gave up some
# of the rarer ones. Of the few questions that it seems to have gained, another 64 samples before it find some, too.
#
# <details><summary>What others have found</summary>
#
# Yue et al. (2025) measured the same on large models: reinforcement learning raised pass@1, and the model before it
# caught up or won when both had many samples. It is no law of training on one's own samples: the table of section 7
# shows pass@64 for SFT on its own right answers, too. Others report that longer training on more kinds of tasks does
# find new answers (Liu, M. et al. 2025). Our run is short, and speaks for itself only.
#
# </details>
#
# ## 6 A reward that is gamed
#
# With a verifier as strict as ours, a nearly right answer earns as much as nonsense. Let us be kinder, and pay for the share of the *different* wanted digits that are *found* anywhere in the answer. For 27
# there are two of them, and for 2727 as well. If 27 is wanted, “72” earns 1, and “21” earns 0.5.


# %% id="kind-reward"
def digits_found(written, wanted):
    """The share of the different wanted digits that occur in the answer: (N,)"""
    every = torch.arange(ZERO, ZERO + 10)
    in_answer = (written[..., None] == every).any(-2)  # (N, 10 digits)
    in_wanted = (wanted[..., None] == every).any(-2)
    return (in_answer & in_wanted).sum(-1) / in_wanted.sum(-1)


# %% [markdown] id="kind-question"
# **Predict.** We train with this reward for 70 steps, as before. What will the reward do, and what the exact match?

# %% id="kind-guess"
ex.predict("gamed_reward", "")

# %% id="kind-run" tags=["atol:30"]
gaming, kind_course = train_grpo(digits_found)
print("right of 200:", score(gaming))

# %% id="kind-figure" tags=["hide-input", "picture:40"]
# Figure: reward and exact match side by side, with the strict and with the kind reward
arms = {"reward: exact match": "GRPO", "reward: digits found": "GRPO, digits found"}
lines = {
    title: {name: over_steps(runs, arm, name) for name in ("reward", "exact match")} for title, arm in arms.items()
}
axes = {"styles": "-", "xlabel": "step", "ylim": (0, 1)}
low, high = (
    ranged("GRPO, digits found", "reward at the end", runs),
    ranged("GRPO, digits found", "exact match from 60", runs),
)
show(
    common.panels(common.curves, range(5, 70, 10), lines, size=(7.2, 3.1), colours=(SERIES[1], SERIES[0]), **axes),
    alt="Left, with exact match as the reward, both are one rising curve. Right, with digits found as the reward, the "
    f"reward ends at {low} while the exact match falls to {high}.",
    caption=f"A line for each of {runs.seeds} seeds. On the right the curve that is paid rises, and the one that was meant "
    "falls.",
)
print("with digits found as the reward, over the seeds:")
for name in ("reward", "exact match", "length"):
    first, last = (ranged("GRPO, digits found", f"{name} from {step}", runs) for step in (0, 60))
    print(f"{name:<12} first ten steps {first}, last ten {last}")

# %% id="kind-samples" tags=["not-compared:sampled-text"]
for number, written in zip(held_out[:4], answer(gaming, asked[:4]), strict=True):
    print(f"{number:>7}:  {spelled(written)}")

# %% id="kind-digits" tags=["hide-input", "atol:0.4"]
# Measure: digits that each model writes for a number of at most six
for name, model in (("after SFT", tuned), ("paid for digits found", gaming)):
    n_digits = sum(sign.isdigit() for written in answer(model, asked) for sign in spelled(written))
    print(f"{name}: {n_digits / len(asked):.1f} digits in an answer, on average")

# %% [markdown] id="kind-read"
# The reward rose from about 0.9 to about 0.95, and with each of five seeds exact match fell below where it began. An
# answer with more digits has more chances to hold those that are wanted, and neither their order nor the rest costs
# anything. So doubt about a digit is settled by writing both.
#
# This is called *reward hacking*. Every reward that stands in for something else can be gamed, a learned one, too (Gao et
# al. 2023). How is it caught?
#
# - **Measure what you mean, beside what you pay.** Exact match was never paid in this run, and showed the fault within
#   twenty steps.
# - **Watch KL and length.** With each of five seeds the gamed run left the reference further behind than the honest
#   one.
# - **Read samples.** Four answers were enough here.
#
# ## 7 What each stage changed
#
# Here are all of them once more. A right answer without an end sign does not count, so the pre-trained model has 0.00 here,
# also at pass@64.

# %% id="all-record" tags=["hide-input"]
# Record: all stages and controls, ranges over the seeds
table = (
    ("pre-trained", stages, "base"),
    *(row for row in shown if "shuffled" not in row[0]),
    ("GRPO, rewards shuffled", stages, "GRPO, rewards shuffled"),
    ("GRPO, digits found", stages, "GRPO, digits found"),
)
columns = {"pass@1": "pass@1", "greedy": "likeliest answer", "pass@64": "pass@64", "entropy": "entropy", "KL": "KL"}
print(f"{'':<26}" + "".join(f"{name:>11}" for name in columns))
for label, record, arm in table:
    cells = "".join(f"{'{:.2f}–{:.2f}'.format(*record.range(arm, name)):>11}" for name in columns.values())
    print(f"{label:<26}{cells}")
print(f"Least to greatest of {stages.seeds} seeds. DPO, with SFT: with beta 0.1. KL: to the model after SFT.")

# %% [markdown] id="all-figure-text"
# Two of these columns as a picture. To the right of the start, single samples are right more often. Above it, more
# questions have a right answer among 64 samples.

# %% id="all-figure" tags=["hide-input"]
# Figure: pass@1 and pass@64, from the model after SFT to what each kind of training made of it
mean = {
    label: [sum(record.values(arm, measure)) / record.seeds for measure in ("pass@1", "pass@64")]
    for label, record, arm in shown
    if label not in ("GRPO, rewards shuffled", "DPO, beta 1")
}
start = mean.pop("SFT, the start")
show(
    plots.from_the_start(start, mean),
    alt="Arrows from the model after SFT, all of them to the right, in the plane of pass@1 and pass@64: "
    + "; ".join(f"{label} from {start[0]:.2f}, {start[1]:.2f} to {x:.2f}, {y:.2f}" for label, (x, y) in mean.items())
    + ".",
    caption=f"Each arrow begins at the model after SFT. ({LAST} {preferences.name} {controls.name})",
)

# %% [markdown] id="end"
# When is each of them used?
#
# | stage | needs | use it when |
# |---|---|---|
# | SFT | written answers | somebody can write them, or a better model has |
# | SFT on own right answers | a judge | there is a judge: try this first |
# | DPO | pairs | people can compare answers, and no program can judge |
# | GRPO | a judge, and many samples | your own controls show that it beats SFT on own right answers |
#
# **An open question for you.** Sample right answers, train on them with SFT, sample again, and so on: how far does this
# go? Use more than one seed.
#
# <details><summary>The same stages in reports of large models</summary>
#
# DeepSeek-R1-Zero (Guo et al. 2025) is GRPO with rewards for right answers and for the form, from the pre-trained
# model; DeepSeek-R1 itself alternates SFT and such reinforcement learning. Tülu 3 (Lambert et al. 2024) is SFT, then
# DPO, then reinforcement learning with verifiers. And where no program can judge, one may still train with a learned
# reward, as RLHF does (section 3.1), and must watch for what section 6 showed. In between, many try other forms of
# each loss.
#
# </details>
#
# <details><summary>Sources</summary>
#
# - Ouyang et al. 2022, “Training language models to follow instructions with human feedback”, arXiv:2203.02155: SFT,
#   then a learned reward with PPO.
# - Rafailov et al. 2023, “Direct Preference Optimization”, arXiv:2305.18290. Pal et al. 2024, “Smaug”,
#   arXiv:2402.13228. Razin et al. 2024, “Unintentional Unalignment: Likelihood Displacement in Direct Preference
#   Optimization”, arXiv:2410.08847. Dubey et al. 2024, “The Llama 3 Herd of Models”, section 4.1.4.
# - Schulman et al. 2017, “Proximal Policy Optimization Algorithms”, arXiv:1707.06347. Shao et al. 2024, “DeepSeekMath”,
#   arXiv:2402.03300. Schulman 2020, “Approximating KL Divergence”, a blog post. Liu, Z. et al. 2025, “Understanding
#   R1-Zero-Like Training: A Critical Perspective”, arXiv:2503.20783: Dr. GRPO.
# - Shao, R. et al. 2025, “Spurious Rewards: Rethinking Training Signals in RLVR”, arXiv:2506.10947.
# - Chen et al. 2021, “Evaluating Large Language Models Trained on Code”, arXiv:2107.03374: pass@k.
# - Yue et al. 2025, “Does Reinforcement Learning Really Incentivize Reasoning Capacity in LLMs Beyond the Base Model?”,
#   arXiv:2504.13837. Liu, M. et al. 2025, “ProRL”, arXiv:2505.24864.
# - Gao et al. 2023, “Scaling Laws for Reward Model Overoptimization”, arXiv:2210.10760.
# - Guo et al. 2025, “DeepSeek-R1”, arXiv:2501.12948. Lambert et al. 2024, “Tülu 3”, arXiv:2411.15124.
#
# </details>
