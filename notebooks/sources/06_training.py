# %% [markdown] id="title"
# # 6 Training
#
# From raw strings to a translator: you write the tokenizer, the loss, the schedule and the update, then train a
# Transformer that turns German number words and dates into English ones, interrupt it, resume it bit for bit, and test
# it on numbers it never saw. It builds on chapters 4 and 5. Measured: 90 seconds of processor time, 1.2 GB of memory.

# %% id="first-look"
import torch
from course_lib.data import load_pairs

torch.set_num_threads(1)  # the same rounding everywhere
for source, target in load_pairs("numbers+dates", "train", 6):
    print(source, "\n   ", target)

# %% [markdown] id="task"
# That is the task of this chapter. There is one right answer to each line, so a result is right or wrong and not
# "plausible". German says units before tens: "siebenundachtzig" is seven-and-eighty. A model that translates it has to
# look ahead and back again.
#
# Shapes: **B** sentences, **S** source tokens, **T** target tokens, **D** width, **V** vocabulary.

# %% id="imports"
import copy
import hashlib
import json
import math
import signal
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
import numpy as np
import sacrebleu
import torch.nn.functional as F
from torch import nn

# %% id="imports-course"
from course_lib import exercises as ex
from course_lib import records, testing
from course_lib.attention import record_weights
from course_lib.data import BPETokenizer, CharTokenizer, FastBPETokenizer, TokenBatches
from course_lib.data import copy_task, encode_pairs, number_words, pad_batch, reference_text
from course_lib.data.bpe import split_words
from course_lib.generation import generate
from course_lib.records import claim
from course_lib.training import Run, Silent, TrainingConfig, cosine_schedule, label_smoothed_cross_entropy
from course_lib.training import noam_schedule, tasks, update, warmup_stable_decay_schedule
from course_lib.transformer import Transformer, TransformerConfig
from course_lib.explorers import ScheduleExplorer
from course_lib.viz import attention_map, palette, show

# %% id="prove"
from course_lib.testing import complaint, prove, proved  # prove stops at a false claim

# %% [markdown] id="strings"
# ## 1 From strings to ids
#
# ### 1.1 What is held out
#
# Held out are **numbers**, not strings. Number 325 is in the test set in every language and every wording, or in none.
# The same holds for a day and its three formats.

# %% id="held-out"
train_pairs = load_pairs("numbers+dates", "train", 20_000)
test_pairs = load_pairs("numbers+dates", "test", 2000)
print(f"{len(train_pairs):,} pairs to train, {len(test_pairs):,} to test")
shared = {pair.target for pair in train_pairs} & {pair.target for pair in test_pairs}
prove("no target of the test set occurs in the training set", not shared)
same = {number_words(n, "de") for n in range(10_000)}
prove("10,000 numbers have 10,000 different German names", len(same) == 10_000)

# %% [markdown] id="characters"
# ### 1.2 Characters
#
# The simplest vocabulary is every character that occurs. Five ids are special in every tokenizer of this course:
# padding 0, start 1, end 2, unknown 3, mask 4.
#
# > **Predict.** Built from the training texts alone, what does it do with a character that occurs only in the test?

# %% id="characters-run"
texts = [text for pair in train_pairs for text in pair]
characters = CharTokenizer.train(texts)
ids = characters.encode("elf", bos=True, eos=True)
print(ids, characters.pieces(ids))
print(characters.vocab_size, "ids;", characters.pieces(characters.encode("Ω")), "for a character never seen")
prove("characters come back", characters.decode(ids) == "elf")

# %% [markdown] id="bpe"
# ### 1.3 Byte-pair encoding
#
# Characters make long sequences, whole words make vocabularies without end. Byte-pair encoding lies between: begin with
# single bytes, and join the most frequent pair of neighbours, again and again (Sennrich et al. 2016). One step:

# %% exercise="bpe_merge"


# %% id="bpe-steps"
words = Counter(word for pair in train_pairs[:4000] for text in pair for word in split_words(text))
spelled = {tuple(word): count for word, count in words.items() if word.isascii()}
for _ in range(6):
    pair, spelled = bpe_merge(spelled)
    print(pair, "->", repr("".join(pair)))

# %% [markdown] id="bpe-train-says"
# The course's `BPETokenizer` does the same on **bytes**, so that every text has ids and none is unknown. Before the
# pairs are counted, GPT-2's pattern cuts the text into words, and no merge crosses their borders. We ask for 360 ids:
# 5 special ones, 256 bytes, 99 merges.
#
# > **Predict.** Into which pieces will "siebenundachtzig" fall?

# %% id="bpe-train"
hand = BPETokenizer.train([text for pair in train_pairs[:4000] for text in pair], 360)
for text in ("siebenundachtzig", "eighty-seven", "Sonntag, 3. Mai 1987", "日本 naïve"):
    print(" | ".join(hand.pieces(hand.encode(text))))
prove("every text comes back, seen or not", hand.decode(hand.encode("日本 naïve")) == "日本 naïve")

# %% [markdown] id="bpe-equal-says"
# Nobody cut German into morphemes; counting found "hundert", "und" and "zig". Now equality with the `tokenizers`
# library: the same merges must give the same ids, on text that has nothing to do with them.

# %% id="bpe-equal"
tokenizer = FastBPETokenizer(hand.to_json())  # the same merges through the compiled library
sample = [reference_text()[i : i + 80] for i in range(0, 80_000, 80)] + [
    "e\u0301 n\u0303",
    "\U0001f469\u200d\U0001f4bb",
    "\x00\t\n",
    "漢字",
]
prove("hand-made and compiled BPE give the same ids", hand.encode_batch(sample) == tokenizer.encode_batch(sample))
again = BPETokenizer.train(sample, 320).to_json() == type(tokenizer).train(sample, 320).to_json()
prove("trained on the same text they learn the same merges", again)

# %% id="compression"
print("ids for each character of the training text:")
for name, one in (("characters", characters), ("BPE, 360 ids", tokenizer)):
    count = sum(len(row) for row in one.encode_batch(texts))
    print(f"{name:>13}: {count / sum(map(len, texts)):.3f}")

# %% [markdown] id="shift"
# ## 2 One position apart
#
# The decoder reads the target and must say, at each position, what comes **next** (chapter 5). So it reads the start
# sign and the sentence, and its labels are the sentence and the end sign.

# %% exercise="shift_targets"


# %% id="shift-run"
inputs, labels = shift_targets([[11, 12, 13], [14]], bos_id=1, eos_id=2, pad_id=0)
print("reads  ", inputs.tolist())
print("answers", labels.tolist())
target = pad_batch([{"target": [1, 11, 12, 13, 2]}, {"target": [1, 14, 2]}])["target"]  # bos ... eos, padding
prove("the labels are the padded targets from their second id on", torch.equal(labels, target[:, 1:]))

# %% [markdown] id="shift-says"
# Most code cuts both from one tensor with both signs, `target[:, :-1]` and `target[:, 1:]`. In the shorter rows the
# decoder then also reads its end sign, at a position whose label is padding. It costs nothing, and it is not a bug.

# %% id="shift-cut"
differs = inputs != target[:, :-1]
prove("the two ways differ only where the label is padding", (labels[differs] == 0).all() and differs.any())

# %% [markdown] id="batches"
# ## 3 Batches
#
# Rows of a batch are padded to the longest. A batch of a fixed number of rows wastes computation on padding when the
# rows are short and runs out of memory when they are long. So batches are cut by **tokens**, and rows of like length
# go together.


# %% id="waste" tags=["tol:0.01"]
examples = encode_pairs(train_pairs, tokenizer)  # dicts of ids: source ... eos, target bos ... eos
waste = {}
for bucket in (False, True):
    batches = TokenBatches(examples, max_tokens=1500, bucket=bucket)
    waste[bucket] = batches.padding_waste()
    print(f"by length: {bucket!s:5}  {len(batches):3} batches, {100 * waste[bucket]:.1f} % of the ids are padding")
prove("sorting by length saves more than three quarters of the padding", waste[True] < waste[False] / 4)

# %% [markdown] id="waste-says"
# `TokenBatches` sorts within shuffled pools, so that batches stay random. It is endless, the same for the same seed,
# shared out by rank, and its place is a few numbers:

# %% id="batch-state"
stream = TokenBatches(examples, max_tokens=1500, seed=3)
running = stream.forever()
for _ in range(5):
    next(running)
state = json.loads(json.dumps(stream.state_dict()))
print(state)
expected = next(running)
resumed = TokenBatches(examples, max_tokens=1500, seed=3)
resumed.load_state_dict(state)
prove(
    "a stream of batches goes on where its state was taken",
    torch.equal(next(iter(resumed))["source"], expected["source"]),
)

# %% [markdown] id="paper-batch"
# > **You will read that** the paper's batches hold 25,000 tokens.
#
# *Imprecise.* About 25,000 source tokens **and** about 25,000 target tokens (section 5.1). Ours hold up to 1500 ids on
# each side.

# %% [markdown] id="loss"
# ## 4 A loss per token
#
# ### 4.1 The mean of means is another number
#
# > **Predict.** Two batches, one with 2 targets at a loss of 4 each, one with 8 targets at 1 each. What is the loss?

# %% id="mean-of-means"
first, second = torch.full((2,), 4.0), torch.full((8,), 1.0)
print(f"mean of the batch means: {(first.mean() + second.mean()) / 2:.1f}")
print(f"mean over tokens:        {torch.cat([first, second]).mean():.1f}")
prove("the mean of batch means is not the mean over tokens", (first.mean() + second.mean()) / 2 > 2)

# %% [markdown] id="mean-of-means-says"
# Many programs print the first number as the loss of an epoch. Here every loss is a **sum and a count**; they are
# divided once, at the end.
#
# ### 4.2 Smoothed labels
#
# The paper trains against a distribution that gives the right token 0.9 and spreads 0.1 over the whole vocabulary
# (section 5.4; the idea is from Szegedy et al. 2016).


# %% id="loss-parity" tags=["tol:0.001"]
torch.manual_seed(0)
logits, targets = torch.randn(3, 5, 11), torch.randint(0, 4, (3, 5))  # (B, T, V), (B, T); 0 is padding
logits.requires_grad_()
ours, count = label_smoothed_loss(logits, targets, 0.1, 0)
theirs = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=0.1)  # (B T, V)
total, number = label_smoothed_cross_entropy(logits, targets, 0.1, ignore=0)
print(f"{ours:.4f} over {count} real targets")
prove("the smoothed loss equals torch's", torch.isclose(ours, theirs))
prove("the library's sum and count give the same", torch.isclose(total / number, ours))
ours.backward()
prove("padding gets no gradient", (logits.grad[targets == 0] == 0).all())
nothing = torch.zeros(2, dtype=torch.long)
prove("a batch of padding only is NaN in torch", F.cross_entropy(torch.randn(2, 11), nothing, ignore_index=0).isnan())


# %% id="floors" tags=["tol:0.001"]
for V in (14, 360, 1000, 32_000, 37_000):
    wanted = torch.full((V,), 0.1 / V, dtype=torch.float64)
    wanted[1] += 0.9
    best = label_smoothed_cross_entropy(wanted.log()[None], torch.tensor([1]), 0.1)[0]
    print(f"V = {V:6,}: the best smoothed loss is {best:.3f}")
    prove(f"with V = {V} the floor is the entropy of the label", torch.isclose(best, torch.special.entr(wanted).sum()))

# %% [markdown] id="smoothing-effect-question"
# > **You will read that** label smoothing improves a model.
#
# > **Predict.** A small classifier, 600 examples, one label in five wrong. Which of three numbers improves with
# > smoothing on unseen examples: likelihood, accuracy, or how far confidence exceeds accuracy?


# %% id="smoothing-effect"
def noisy(n, seed, V=14):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 20, generator=generator)
    right = (x @ torch.randn(20, V, generator=torch.Generator().manual_seed(7))).argmax(-1)
    wrong = torch.rand(n, generator=generator) < 0.2
    return x, right.where(~wrong, torch.randint(V, (n,), generator=generator))


# %% id="smoothing-effect-run" tags=["atol:0.02"]
gaps, costs = {}, {}
for smoothing in (0.0, 0.1, 0.2):
    torch.manual_seed(0)
    (x, y), (new_x, new_y) = noisy(600, 1), noisy(4000, 2)
    net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 14))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y, label_smoothing=smoothing).backward()
        optimizer.step()
    chances = net(new_x).detach().softmax(-1)
    accuracy = (chances.argmax(-1) == new_y).float().mean()
    gaps[smoothing], costs[smoothing] = chances.amax(-1).mean() - accuracy, F.nll_loss(chances.log(), new_y)
    print(f"{smoothing}: loss {costs[smoothing]:.2f}, accuracy {accuracy:.2f}, overconfident by {gaps[smoothing]:.2f}")

# %% id="smoothing-effect-proof"
prove("smoothing lowers the plain loss of this net on unseen noisy examples", costs[0.1] < costs[0.0] - 0.1)
prove("smoothing takes away most of its overconfidence", abs(gaps[0.2]) < gaps[0.0] / 3)

# %% [markdown] id="smoothing-control"
# That net was trained for too long: it has learned wrong labels by heart. Would it still gain if training had stopped
# earlier, or if no label were wrong? Ten nets for each case (`python benchmarks/claims.py label_smoothing`), means:

# %% id="smoothing-recorded"
record = claim("label_smoothing")
for arm in record.arms:
    loss, accuracy, gap = (mean(record.values(arm, measure, 1e-2)) for measure in record.measures)
    print(f"{arm:>30}: loss {loss:.2f}, accuracy {accuracy:.3f}, confidence minus accuracy {gap:+.2f}")
stopped, smoothed = "noisy, 20 steps, smoothing 0.0", "noisy, 60 steps, smoothing 0.1"
best, repaired = record.range(stopped, "loss", 1e-2)[1], record.range(smoothed, "loss", 1e-2)[0]
prove("each of ten nets that stop early is likelier to be right than each that is smoothed", best < repaired)

# %% [markdown] id="smoothing-says"
# *Conditional.* Smoothing repairs likelihood and confidence where a net over-fits noisy labels; stopping earlier repairs
# more. Where training stops in time, the loss hardly moves, accuracy gains half a point, and the net is less sure than
# it should be. With clean labels smoothing costs likelihood and accuracy. The paper says of its own models that
# smoothing hurts perplexity (they learn to be less sure) and improves accuracy and BLEU (section 5.4).
#
# The training loss looks worse by construction: it includes the floor. So held-out losses in this course are always
# plain cross-entropies.
#
# ## 5 The learning rate
#
# ### 5.0 The steps of five optimizers

# %% exercise="momentum_step"

# %% exercise="adam_step"

# %% exercise="adamw_step"

# %% exercise="newton_schulz"

# %% [markdown] id="noam-says"
# ### 5.1 The schedule of the paper

# %% exercise="noam_rate"


# %% id="noam-numbers" tags=["tol:0.0001"]
for d_model in (512, 1024):
    peak = noam_rate(4000, d_model, 4000)
    print(f"D = {d_model:4}: peak {peak:.4e}, first step {noam_rate(1, d_model, 4000):.2e}")
    prove(f"D = {d_model}: the peak is 1 / sqrt(D · warmup)", math.isclose(peak, (d_model * 4000) ** -0.5))
    prove(f"D = {d_model}: half of it is left at step 16,000", math.isclose(noam_rate(16_000, d_model, 4000), peak / 2))
rates = [noam_rate(step, 512, 4000) for step in range(1, 100_001)]
prove("the peak stands exactly at the end of warm-up", 1 + rates.index(max(rates)) == 4000)
print(f"at step 100,000: {rates[-1]:.3e}")
same = all(math.isclose(noam_rate(s, 512, 4000), noam_schedule(s, 512, 4000)) for s in (1, 37, 4000, 99_999))
prove("the library's schedule is the same", same)

# %% id="noam-figure"
fig, ax = plt.subplots(figsize=(7.2, 2.8))
ax.plot(range(1, 100_001), rates, color=palette.query)
ax.axvline(4000, color=palette.residual, linestyle=":")
ax.annotate("end of warm-up, step 4000", (4000, max(rates)), xytext=(9000, 0.97 * max(rates)), va="top")
ax.set(title="The paper's learning rate, D = 512", xlabel="step", ylabel="rate", ylim=(0, None))
show(
    fig,
    alt="Learning rate against step from 1 to 100,000: a steep straight rise to 0.0007 at step 4000, marked by a "
    "dotted line, then a slow fall to 0.00014.",
    caption="The rate rises for 4 % of the run and falls for the rest: at step 16,000 half of the peak is left.",
)

# %% [markdown] id="paper-settings"
# What else the paper sets, with the numbers that tables in circulation often lose (sections 5.1, 5.3, 5.4, table 3):
#
# | setting | base | big |
# |---|---|---|
# | Adam β₁, β₂, ε | 0.9, 0.98, 10⁻⁹ | the same |
# | warm-up steps | 4000 | 4000 |
# | steps | 100,000 | 300,000 |
# | dropout | 0.1 | 0.3 (0.1 for English to French) |
# | label smoothing | 0.1 | 0.1 |
# | tokens a batch | 25,000 source and 25,000 target | the same |

# %% id="paper-defaults"
paper = TrainingConfig(steps=100_000, schedule="noam", warmup=4000, learning_rate=(512 * 4000) ** -0.5)
print("betas", paper.betas, " eps", paper.eps, " clip", paper.clip)
prove("a TrainingConfig with the paper's peak gives its rates", math.isclose(paper.rate(100_000), rates[-1]))
prove("the optimizer's defaults are those of the paper", paper.betas == (0.9, 0.98) and paper.eps == 1e-9)

# %% [markdown] id="others-says"
# ### 5.2 Others
#
# The paper's schedule never ends. Later ones end with the run: half a cosine, or a plateau with a short fall, down to
# zero or to a small rest. (Llama's cosine ends at a tenth of its peak: Touvron et al. 2023, section 2.3.)
# All of them are functions of the step, so there is no object, no hidden state, and nothing to save.
#
# > **Predict** which of the four curves has most rate left after the last step, and what the first step gets. Then try
# > other warm-ups. The code under the curve is all there is to it.

# %% id="explorer"
ScheduleExplorer(steps=600, peak=5e-3, warmup=60, decay=120, kind="cosine", step=300)

# %% id="explorer-check" tags=["tol:0.001"]
for name, rate in (
    ("Noam", lambda step: 5e-3 * noam_schedule(step, 1, 60) / noam_schedule(60, 1, 60)),
    ("cosine", lambda step: cosine_schedule(step, 600, peak=5e-3, warmup=60)),
    ("warm-up, stable, decay", lambda step: warmup_stable_decay_schedule(step, 600, decay=120, peak=5e-3, warmup=60)),
):
    print(f"{name:>22}: first {rate(1):.2e}, step 300 {rate(300):.2e}, last {rate(600):.2e}")
    prove(f"{name}: no step has rate 0, and the peak is at step 60", rate(1) > 0 and rate(600) > 0 and rate(60) == 5e-3)


# %% [markdown] id="order-says"
# ### 5.3 The order of two lines
#
# > **You will read that** a warm-up starts at a tiny rate.
#
# With an optimizer built at rate 0 and a scheduler stepped after the update, it starts at none:

# %% id="order" tags=["tol:0.001"]
for order in ("update, then schedule", "schedule, then update"):
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.0, betas=(0.9, 0.98), eps=1e-9)
    weight.grad = torch.ones(3)
    if order.startswith("schedule"):
        optimizer.param_groups[0]["lr"] = noam_rate(1, 512, 4000)
    optimizer.step()
    moved = (1 - weight).max().item()
    print(f"{order}: the first update moves a weight by {moved:.2e}, printed rate {noam_rate(1, 512, 4000):.2e}")
    prove(f"{order}: the first update is as expected", moved > 1e-7 if order.startswith("schedule") else moved == 0.0)

# %% [markdown] id="step-zero"
# A scheduler that is asked for step 0 divides by zero, and one whose method is called without its object fails with an
# AttributeError; both stand in published listings. A function of a step that counts from 1 has neither problem:

# %% id="step-zero-run"
try:
    noam_schedule(0, 512, 4000)
except ValueError as error:
    print(error)

# %% [markdown] id="warmup-question"
# ### 5.4 Is warm-up needed?
#
# We ask small models to reverse seven letters, for 250 updates. The share of right letters under teacher forcing:
#
# > **Predict.** The paper's schedule with 1000, 60 and 5 steps of warm-up and a peak of 0.003. Which one learns?


# %% id="reversal"
def reversal(n, seed, V=14):
    source, target = copy_task(32 * n, 7, V, reverse=True, first_id=3, generator=torch.Generator().manual_seed(seed))
    ends = [torch.full((len(source), 1), id) for id in (1, 2)]
    target = torch.cat([ends[0], target, ends[1]], dim=1)  # bos ... eos
    return [{"source": s, "target": t} for s, t in zip(source.split(32), target.split(32))]


def learn_to_reverse(steps=250, layers=2, norm="post", **settings):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_heads": 4, "d_ff": 64, "n_encoder_layers": layers, "n_decoder_layers": layers}
    model = Transformer(TransformerConfig(**sizes, vocab_size=14, dropout=0.0, norm_place=norm))
    config = TrainingConfig(steps=steps, log_every=steps, **settings)
    run = Run(model, tasks.Translation(pad_id=0, smoothing=0.0), reversal(steps, 1000), config, shown=Silent()).train()
    right = [run.model(b["source"], b["target"][:, :-1]).argmax(-1) == b["target"][:, 1:] for b in reversal(10, 99)]
    return torch.cat(right).float().mean().item()


# %% id="warmup-length" tags=["atol:0.1"]
share = {}
for warmup in (1000, 60, 5):
    share[warmup] = learn_to_reverse(schedule="noam", learning_rate=3e-3, warmup=warmup)
    print(f"warm-up {warmup:4} of 250 steps: {100 * share[warmup]:.0f} % right")
prove("at this peak only a warm-up that fits the run learns", share[60] > 0.9 > max(share[1000], share[5]))

# %% [markdown] id="warmup-control"
# Does that show what a short warm-up does? With Noam two things change at once: where the ramp ends, the *decay* begins.
# After 5 steps of warm-up the last of 250 updates has a seventh of the peak, whatever the model needs. And a ramp of
# 1000 steps reaches a quarter of the peak. So there are two controls: the same warm-ups with a decay that is held fixed
# (a line to the end of the run), and a peak four times as high. Five seeds each
# (`python benchmarks/claims.py warm_up_length`):

# %% id="warmup-recorded"
record = claim("warm_up_length")
for arm in record.arms:
    ranges = [record.range(arm, "right letters", rate) for rate in record.rates]
    print(
        f"{arm:>16}:",
        "   ".join(f"peak {r:g}: {low:.2f} to {high:.2f}" for r, (low, high) in zip(record.rates, ranges)),
    )
low, high = record.rates
short, fixed = (record.range(arm, "right letters", low) for arm in ("Noam, 5 steps", "linear, 5 steps"))
prove("5 steps of warm-up do better where the decay does not start with them, for every seed", fixed[0] > short[1])
prove("the warm-up longer than the run learns too at four times the peak",
      record.range("Noam, 1000 steps", "right letters", high)[0] > 0.85)  # fmt: skip

# %% [markdown] id="warmup-control-says"
# "Too short" was mostly a rate that fell too soon, and "too long" a rate that stayed too low: both are mended by the
# rate. What warm-up itself gives shows in the last two lines, where only it differs: at the high peak five steps are a
# matter of luck, and with sixty every seed has every letter right.
#
# > **You will read that** warm-up is essential for deep models.
#
# > **Predict.** Four layers. At a peak of 0.006, and at 0.02: who needs warm-up, post-norm or pre-norm?

# %% id="warmup-norm" tags=["atol:0.12"]
for norm, peak, warmup in (("post", 6e-3, 0), ("pre", 6e-3, 0), ("pre", 2e-2, 0), ("pre", 2e-2, 50)):
    share[norm, peak, warmup] = learn_to_reverse(
        layers=4, norm=norm, learning_rate=peak, schedule="linear", warmup=warmup
    )
    print(f"{norm}-norm, peak {peak:g}, {warmup:2} steps of warm-up: {100 * share[norm, peak, warmup]:.0f} % right")
prove(
    "at 0.006 pre-norm learns without warm-up, post-norm does not", share["pre", 6e-3, 0] > share["post", 6e-3, 0] + 0.3
)
prove("at 0.02 pre-norm needs it", share["pre", 2e-2, 50] > share["pre", 2e-2, 0] + 0.3)

# %% [markdown] id="warmup-deep-recorded"
# That was one seed. Five of them (`python benchmarks/claims.py warm_up_and_norms`):

# %% id="warmup-norms-recorded"
record = claim("warm_up_and_norms")
for arm in record.arms:
    ranges = [record.range(arm, "right letters", rate) for rate in record.rates]
    print(
        f"{arm:>21}:",
        "   ".join(f"peak {r:g}: {low:.2f} to {high:.2f}" for r, (low, high) in zip(record.rates, ranges)),
    )

# %% [markdown] id="warmup-says"
# *Conditional.* It depends on the rate, for either place of the norm. At 0.006 pre-norm needs no warm-up, and fifty steps
# help post-norm. At 0.02 pre-norm needs warm-up too, in every seed, and fifty steps are no longer enough for post-norm.
# So warm-up buys a higher rate, and pre-norm buys more of it. And the warm-up has to fit the run: the paper's 4000 steps,
# copied into a run of 250, never leave the foot of the ramp.
#
# ## 6 One update
#
# ### 6.1 Accumulation
#
# A batch too large for memory is cut into micro-batches whose gradients add up. With ragged rows a common way of doing
# it trains on another loss:


# %% id="accumulation-model" tags=["tol:0.01"]
torch.manual_seed(0)
shape = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2, "norm_place": "pre"}
shape |= {"positions": "rotary", "vocab_size": tokenizer.vocab_size, "share_vocabulary": True, "pad_id": 0}
small = Transformer(TransformerConfig(**shape, dropout=0.0))
task = tasks.Translation(pad_id=0, smoothing=0.1)
rows = sorted(examples[:48], key=lambda row: len(row["target"]))
parts = [pad_batch(rows[i : i + 12]) for i in range(0, 48, 12)]
whole = pad_batch(rows)
print("real targets of the parts:", [int((part["target"][:, 1:] != 0).sum()) for part in parts])
after = {}
for name, batches in (("whole", [whole]), ("parts", parts)):
    model = copy.deepcopy(small)
    result = update(model, task.loss, batches, [torch.optim.SGD(model.parameters(), lr=0.1)])
    after[name] = torch.cat([p.detach().flatten() for p in model.parameters()])
    print(f"{name}: loss {result.loss:.5f} over {result.tokens} tokens, gradient norm {result.gradient_norm:.5f}")
prove(
    "ragged micro-batches give the update of the whole batch, to rounding", torch.allclose(*after.values(), atol=1e-6)
)

# %% [markdown] id="clipping"
# ### 6.2 Clipping


# %% [markdown] id="clipping-says"
# > **You will read that** clipping at norm 1 prevents exploding gradients.
#
# *Conditional.* Whether it is a safety net or part of the recipe depends on the norms. The run of section 8 records
# them; there you will count how many of its steps were clipped. A clipped gradient keeps its direction, and Adam
# divides by the gradient's own size anyway:

# %% id="clipping-adam"
moves = []
for factor in (1.0, 0.01):
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = factor * torch.tensor([3.0, -4.0, 0.5])
    torch.optim.Adam([weight], lr=0.1, eps=1e-9).step()
    moves.append(weight.detach())
prove("Adam's first step is the same for a gradient scaled down a hundred times", torch.allclose(*moves, atol=1e-6))

# %% [markdown] id="dropout"
# ### 6.3 Where dropout goes
#
# > **You will read that** the paper puts dropout on attention weights, residual branches and embeddings.
#
# *Imprecise.* The text (section 5.4) names the output of each sublayer and the sums of embeddings and positions. The
# authors' code, tensor2tensor, has switches for attention weights and for the inside of the feed-forward as well. In
# the settings of the paper (`transformer_base_v1`) both are 0.0, as in the text; the later ones (`transformer_base_v2`)
# set 0.1, and much code follows those. Our config has a switch for each; `None` means "as `dropout`".


# %% id="dropout-places"
def places(config):
    """How many parts of each kind drop something in training."""
    names = {"Residual": "sublayer outputs", "Dropout": "embeddings"}
    names |= {"MultiHeadAttention": "attention weights", "FeedForward": "inside feed-forward"}
    drops = []
    for module in Transformer(config).modules():
        share = getattr(module, "p" if isinstance(module, nn.Dropout) else "dropout", 0)
        drops += [type(module).__name__] if isinstance(share, float) and share > 0 else []
    return {what: drops.count(name) for name, what in names.items()}


base = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 6, "n_decoder_layers": 6, "vocab_size": 99, "dropout": 0.1}
text = places(TransformerConfig(**base, attention_dropout=0.0, activation_dropout=0.0))
print("as in the text and in base_v1:", text)
print("as in base_v2:", places(TransformerConfig(**base)))
wanted = {"sublayer outputs": 30, "embeddings": 2, "attention weights": 0, "inside feed-forward": 0}
prove("the text's dropout: 30 sublayer outputs and 2 sums of embeddings", text == wanted)

# %% [markdown] id="precision"
# ### 6.4 Mixed precision
#
# Under autocast, matrix products run in bfloat16 and weights, gradients and the loss stay in float32. bfloat16 has the
# range of float32, but only 8 binary digits, which are between two and three decimal ones: 257 becomes 256. float16 has
# 11 binary digits, and ends at 65,504.

# %% id="precision-run" tags=["tol:0.02"]
batch = parts[1]
exact, count = task.loss(small, batch)
with torch.autocast("cpu", dtype=torch.bfloat16):
    rough, _ = task.loss(small, batch)
print(f"loss {exact / count:.4f} in float32, {rough / count:.4f} with bfloat16 products")
prove("bfloat16 products change the loss by less than a percent", abs(rough / exact - 1) < 0.01)
for dtype in (torch.float16, torch.bfloat16):
    print(dtype, "holds 257 as", torch.tensor(257.0).to(dtype).item(), "and 1e5 as", torch.tensor(1e5).to(dtype).item())
prove("the loss itself is computed in float32", rough.dtype == torch.float32)
prove("float16 overflows at 65,504", torch.tensor(7e4).half().isinf() and torch.tensor(7e4).bfloat16().isfinite())

# %% [markdown] id="debugging"
# ## 7 Before a long run
#
# Four checks take seconds and save days.
#
# **The first loss is ln V.**

# %% exercise="initial_loss"


# %% id="debug-initial" tags=["tol:0.02"]
with torch.no_grad():
    total, count = tasks.Translation(pad_id=0, smoothing=0.0).loss(small, whole)
V = tokenizer.vocab_size
print(f"first loss {total / count:.3f}, ln {V} is {math.log(V):.3f}")
prove("the first loss lies within one nat of ln V", abs(total / count - math.log(V)) < 1.0)

# %% [markdown] id="debug-overfit-says"
# **One batch can be learned by heart.** If eight pairs cannot be, something is not connected. And the gradient must
# reach every layer.

# %% id="debug-overfit" tags=["tol:0.05"]
model = copy.deepcopy(small)
few = pad_batch(examples[:8])
config = TrainingConfig(steps=80, learning_rate=5e-3, warmup=8, optimizer="muon", log_every=80)
run = Run(model, tasks.Translation(pad_id=0, smoothing=0.0), [few], config, shown=Silent()).train()
learned = run.evaluate([few])
prove("eight pairs are learned by heart in 80 steps", learned < 0.05)
task.loss(small, whole)[0].backward()
for name in ("encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1"):
    grads = [p.grad.norm() for n, p in small.named_parameters() if n.startswith(name)]
    print(f"{name}: gradient norm {torch.stack(grads).norm() / count:.3f}")
prove("every parameter gets a gradient", all(p.grad is not None and p.grad.any() for p in small.parameters()))
small.zero_grad()

# %% [markdown] id="debug-laws"
# **The laws hold.** No target position reads a later one, and what stands in padding reaches nobody:

# %% id="debug-laws-run"
source, target = parts[0]["source"], parts[0]["target"][:, :-1]
small.eval()
law = complaint(testing.assert_causal, lambda tokens: small(source, tokens), target, vocab_size=V, module=small)
prove("the translator obeys assert_causal", not law)
wider = F.pad(source, (0, 3))  # three more ids of padding
same = torch.allclose(small(wider, target), small(source, target), atol=1e-5)
prove("more padding on the source changes no logit", same)

# %% [markdown] id="run"
# ## 8 The run
#
# ### 8.1 Interrupted and resumed, bit for bit
#
# > **Predict.** Which numbers, besides the weights, must a checkpoint hold?


# %% [markdown] id="resume-says"
# `Run` keeps weights, optimizer, step, place in the data and random state. We train 20 steps with dropout in one go,
# and again with an interrupt: a task that presses the stop button, as you can in the toolbar, in its ninth step.


# %% id="resume"
def fingerprint(model):
    data = b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())
    return hashlib.sha256(data).hexdigest()[:16]


def new_run(folder=None, loss=task.loss, shown=None):
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**shape, dropout=0.1))
    data = TokenBatches(examples, max_tokens=300, seed=1)
    config = TrainingConfig(steps=20, learning_rate=2e-3, warmup=5, log_every=100)
    return Run(model, loss, data, config, folder=folder, shown=shown)


straight = fingerprint(new_run(shown=Silent()).train().model)
calls = []


def interrupted_in_step_nine(model, batch):
    calls.append(1)
    if len(calls) == 9:
        signal.raise_signal(signal.SIGINT)  # what the stop button sends
    return task.loss(model, batch)


# %% id="resume-run" tags=["tol:0.01"]
with tempfile.TemporaryDirectory() as folder:
    stopped = new_run(folder, interrupted_in_step_nine).train()
    saved = sorted(path.name for path in Path(folder, "checkpoints").iterdir())
    print(saved)
    resumed = new_run(folder).train(resume=True)
prove("an interrupt ends the run after its update, with a checkpoint", stopped.interrupted and stopped.step == 9)
prove("interrupted and resumed, the weights are the same, bit for bit", fingerprint(resumed.model) == straight)

# %% [markdown] id="long-run"
# ### 8.2 Six hundred steps
#
# Two layers on each side, 64 wide, 257 thousand weights. Matrices are updated by Muon (Jordan et al. 2024), which makes
# the update of each matrix orthogonal; the rest by AdamW. In JupyterLab you see a panel with the remaining time; stop
# it when you like.

# %% id="train" tags=["tol:0.02"]
validation = TokenBatches(
    encode_pairs(load_pairs("numbers+dates", "validation", 500), tokenizer), max_tokens=8000, shuffle=False
)
torch.manual_seed(0)
translator = Transformer(TransformerConfig(**shape, dropout=0.0))
config = TrainingConfig(
    steps=600, learning_rate=5e-3, warmup=60, schedule="cosine", optimizer="muon", evaluate_every=100, log_every=1
)
run = Run(translator, task, TokenBatches(examples, max_tokens=1500), config, evaluation=validation).train()

# %% id="curves"
fig, (left, right) = plt.subplots(1, 2, figsize=(7.4, 2.9))
steps = [record["step"] for record in run.history]
left.plot(steps, [record["loss"] for record in run.history], color=palette.query, label="training, smoothed")
held = [(record["step"], record["evaluation"]) for record in run.history if "evaluation" in record]
left.plot(*zip(*held), "o-", color=palette.key, label="held out, plain")
left.set(title="Loss per token", xlabel="step", ylabel="nats", ylim=(0, None))
left.legend()
right.plot(steps, [record["gradient_norm"] for record in run.history], color=palette.value)
right.axhline(1.0, color=palette.residual, linestyle=":")
right.set(title="Norm of the gradient", xlabel="step", yscale="log")
show(
    fig,
    alt="Left: the smoothed training loss falls from 6 to 0.9 while the plain held-out loss falls to 0.1. Right: the "
    "gradient norm against step on a logarithmic scale, with a dotted line at 1, the limit of clipping.",
    caption="The smoothed training loss stays above the held-out one, because it stands on its floor of 0.9 nats.",
)

# %% id="clipped" tags=["atol:0.05"]
norms = torch.tensor([record["gradient_norm"] for record in run.history])
clipped = (norms > 1).float().mean().item()
print(f"norms: first {norms[0]:.1f}, median {norms.median():.1f}; clipped at 1: {100 * clipped:.0f} % of the steps")
prove("at the limit 1 the first step is clipped", norms[0] > 1)
wanted = torch.full((V,), 0.1 / V, dtype=torch.float64)
wanted[1] += 0.9
floor = torch.special.entr(wanted).sum().item()
last = run.history[-1]
print(f"last training loss {last['loss']:.2f}, floor {floor:.2f}, held out {last['evaluation']:.2f}")
prove("the training loss stands above its floor, the held-out loss below it", last["loss"] > floor > last["evaluation"])

# %% [markdown] id="exact"
# ### 8.3 Exact match
#
# A translation counts only if every character is right. Beside it a baseline: give the translation of the most similar
# training source. No number of the test set was trained on, so this cannot be right. How near it comes all the same
# shows **BLEU**, the number that papers report: of the runs of one, two, three and four words that were written, the
# shares that stand in the wanted text too, the geometric mean of these four, and a penalty for what is too short.


# %% id="translate"
def translate(texts, model=translator):
    model.eval()
    order, found = sorted(range(len(texts)), key=lambda i: len(texts[i])), {}
    for start in range(0, len(texts), 250):
        chosen = order[start : start + 250]
        source = pad_batch([{"source": tokenizer.encode(texts[i], eos=True)} for i in chosen])["source"]
        prompt = torch.full((len(chosen), 1), tokenizer.bos_id)  # (B, 1)
        tokens = generate(model, prompt, source=source, max_new_tokens=60, temperature=0.0, stop=2, pad_id=0)
        found |= {i: tokenizer.decode(row) for i, row in zip(chosen, tokens)}
    return [found[i] for i in range(len(texts))]


def nearest(texts):
    from sklearn.feature_extraction.text import TfidfVectorizer

    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4))
    known = grams.fit_transform([pair.source for pair in train_pairs])
    found = np.asarray((grams.transform(texts) @ known.T).argmax(axis=1)).ravel()
    return [train_pairs[i].target for i in found]


# %% id="exact-run" tags=["atol:0.02"]
sources, answers = zip(*test_pairs)
numbers = [not any(c.isdigit() for c in source) for source in sources]
score, bleu = {}, {}
for name, found in (("nearest training pair", nearest(sources)), ("the Transformer", translate(sources))):
    right = [guess == answer for guess, answer in zip(found, answers)]
    score[name] = sum(right) / len(right)
    parts_right = []
    for kind in (True, False):
        of_kind = [one for one, number in zip(right, numbers) if number == kind]
        parts_right.append(100 * sum(of_kind) / len(of_kind))
    bleu[name] = sacrebleu.corpus_bleu(found, [answers]).score
    print(f"{name}: {100 * score[name]:.1f} % exact, BLEU {bleu[name]:.1f}")
    print("    numbers {:.1f} % exact, dates {:.1f} %".format(*parts_right))
prove("at least 98 of 100 held-out numbers and dates are translated exactly", score["the Transformer"] >= 0.98)
prove("its BLEU is far above that of the baseline", bleu["the Transformer"] > bleu["nearest training pair"] + 20)

# %% [markdown] id="try"
# Change the texts and run this cell again. Numbers beyond a million it has never seen, and years beyond 2099 neither.

# %% id="try-run"
for text in ("siebenundachtzig", "dreihundertfünfundzwanzigtausendvierhundertzwölf", "Sonntag, 3. Mai 1987"):
    print(text, "\n   ", translate([text])[0])

# %% [markdown] id="crossing"
# ### 8.4 The crossing
#
# > **Predict.** German writes sechs·hundert·sieben·und·acht·zig, English six hundred and eighty-seven. Where does the
# > decoder look when it is about to write "eighty", and where when it writes "seven"?

# %% id="alignment" tags=["picture:8"]
text = "sechshundertsiebenundachtzig"
source = torch.tensor([tokenizer.encode(text, eos=True)])  # (1, S)
target = torch.tensor([tokenizer.encode(translate([text])[0], bos=True, eos=True)])  # (1, T)
with torch.no_grad(), record_weights(translator.eval()) as maps:
    translator(source, target[:, :-1])
across = [weights for name, weights in maps.items() if name.endswith("cross_attention")]  # (B, H, T, S) of each layer
looks = torch.stack([weights[0].mean(0) for weights in across])  # (L, T, S), mean over heads
read, written = tokenizer.pieces(source[0]), tokenizer.pieces(target[0, 1:])
fig, ax = plt.subplots(figsize=(5.6, 4.2))
attention_map(looks.mean(0), queries=written, keys=read, ax=ax, title="Decoder looks at source, mean of both layers")
show(
    fig,
    alt="An attention map of the decoder over the German pieces of 687. Rows are the English pieces about to be "
    "written, columns the German ones. The row of eighty is dark to the right of the row of seven.",
    caption="The look crosses: the tens stand last in German and come before the units in English.",
)

# %% id="alignment-proof" tags=["atol:0.1"]
look = looks.mean(0)  # (T, S)
tens, units = look[written.index("eighty")], look[written.index("seven")]
later, earlier = slice(read.index("acht"), None), slice(read.index("sieben"), read.index("und"))
for name, row in (("eighty", tens), ("seven", units)):
    print(f"writing {name:>6}: {row[earlier].sum():.2f} on sieben, {row[later].sum():.2f} on acht and what follows")
prove("for the tens it looks further right than for the units", tens[later].sum() > units[later].sum() + 0.1)
prove("for the units it looks back", units[earlier].sum() > tens[earlier].sum() + 0.1)

# %% [markdown] id="multi30k"
# ### 8.5 The same command on real sentences
#
# The package has this chapter as a command: `course train translate`. It trains on the same task unless told
# otherwise, can be interrupted, and leaves a folder that `course translate` opens. With `--data multi30k` it downloads
# 29,000 captions of photographs with German translations (Elliott et al. 2016). That takes longer than a notebook
# should, so here is the recorded result of:
#
# ```
# course train translate --data multi30k --steps 700 --learning-rate 0.003
#     --set data.train=0 --set data.validation=0 --set data.test=0 --set tokenizer.vocab_size=4000
#     --set batches.max_tokens=2048 --set training.optimizer=muon --set training.evaluate_every=100
# ```
#
# The folder of the run then holds these numbers in `results.json` and `log.jsonl`;
# `python benchmarks/translations.py multi30k` runs the command and writes the record that is loaded here.

# %% id="multi30k-recorded"
record = records.record("translate-multi30k")
for point in record["held_out"]:
    loss = point["evaluation"]
    print(f"step {point['step']}: held-out loss {loss:.3f} a token, as sure as among {math.exp(loss):.0f} tokens")
nearest = record["bleu_of_the_nearest_example"]
print(f"BLEU on test_2016_flickr: {record['bleu']:.1f}; of the caption of the most similar sentence: {nearest:.1f}")
print(f"{record['parameters']:,} weights, {record['cpu_seconds'] / 60:.0f} minutes of one core")

# %% id="multi30k-examples"
for source, target, guess in record["first_wrong"][:3]:
    print(source, "\n   became:", guess, "\n   wanted:", target)

# %% [markdown] id="settings"
# ### 8.6 What the settings are worth
#
# nanoGPT's recipe for a CPU trains a model of characters on tiny Shakespeare in 2000 steps. The same layers, width,
# context and batches reach its loss in 100 steps when Muon, a schedule that falls to zero, and switches of chapters 3
# to 5 are on, and when pairs, triples and fours of characters have embeddings of their own. Recorded by
# `python benchmarks/time_to_quality.py`, and with `--ladder`, each change alone, cut to 100 steps:
#
# > **Predict** which one gives most when there are so few steps: the optimizer, the positions, or the embeddings.

# %% id="settings-recorded"
record = records.record("time-to-quality")
alone = [entry for entry in record["ladder"] if entry["rung"] == "alone"]
print(f"the recipe, cut to {alone[0]['steps']} steps: held-out loss {alone[0]['loss']:.3f}")
for entry in sorted(alone[1:], key=lambda entry: entry["loss"]):
    print(f"{entry['loss'] - alone[0]['loss']:+.3f}  {entry['changes'][0]}")
together = record["pairs"][0]["ours"]["loss"]
print(f"all that were taken, together: {together:.3f}")
prove("no change alone gives what they give together", min(entry["loss"] for entry in alone) > together)
for seed, pair in enumerate(record["pairs"]):
    theirs, ours = pair["theirs"], pair["ours"]
    ratio = theirs["cpu_seconds"] / ours["cpu_seconds"]
    print(f"seed {seed}: recipe {theirs['loss']:.4f}, here {ours['loss']:.4f} in 1/{ratio:.0f} of the CPU time")

# %% [markdown] id="settings-says"
# Changes do not add up. AdamW at 8e-3 for all weights does harm, yet beside Muon, where only embeddings and head are
# left to AdamW, their rate is 1.5e-2. The tables are not free: they make the model four times as large, though hardly
# slower. `benchmarks/results/time-to-quality.md` has both ladders, alone and one after the other, and says which text
# each choice was made on.

# %% [markdown] id="museum"
# ## 9 Bug museum
#
# Seven real bugs of training loops. None raises an error. Predict what notices before you run.
#
# **Exhibit 1.** `(loss / len(batches)).backward()` for each micro-batch, with the mean loss of each. *Which two numbers
# must agree?*

# %% id="museum-means" tags=["tol:0.02"]
model = copy.deepcopy(small)
for part in parts:
    total, count = task.loss(model, part)
    (total / count / len(parts)).backward()
means = torch.cat([p.grad.flatten() for p in model.parameters()])
model.zero_grad()
total, count = task.loss(model, whole)
(total / count).backward()
exact = torch.cat([p.grad.flatten() for p in model.parameters()])
off = ((means - exact).norm() / exact.norm()).item()
print(f"the gradient is off by {100 * off:.0f} %")
prove("museum 1: the mean of means is another gradient on ragged micro-batches", off > 0.02)

# %% [markdown] id="museum-first-question"
# **Exhibit 2.** `if step % accumulation == 0: optimizer.step()`, with steps from 0. *How many micro-batches does the
# first update see?*

# %% id="museum-first"
waiting, seen = 0, []
for step in range(9):
    waiting += 1  # backward
    if step % 4 == 0:
        seen.append(waiting)
        waiting = 0
print("micro-batches of each update:", seen, "and", waiting, "never used")
prove("museum 2: the first update sees one micro-batch", seen[0] == 1)

# %% [markdown] id="museum-cosine-question"
# **Exhibit 3.** A cosine schedule without an end, and a run that goes on. *What is the rate after twice its length?*


# %% id="museum-cosine"
def exhibit3(step, steps=100):
    return 0.5 * (1 + math.cos(math.pi * step / steps))


print(f"step 100: {exhibit3(100):.2f}, step 150: {exhibit3(150):.2f}, step 200: {exhibit3(200):.2f}")
climbs = any(exhibit3(step + 1) > exhibit3(step) + 1e-9 for step in range(1, 200))
stays = all(cosine_schedule(step + 1, 100) <= cosine_schedule(step, 100) for step in range(1, 200))
prove("museum 3: it climbs back to the peak; the library's never rises after its warm-up", climbs and stays)

# %% [markdown] id="museum-smoothed-question"
# **Exhibit 4.** The validation loop calls the training loss. *Our translator, nearly perfect: which loss is reported?*

# %% id="museum-smoothed" tags=["atol:0.02"]
reported = tasks.Translation(pad_id=0, smoothing=0.1).loss(translator.train(), whole)  # smooths in training mode
plain = task.loss(translator.eval(), whole)
print(f"reported {reported[0] / reported[1]:.2f}, the plain loss is {plain[0] / plain[1]:.2f}")
prove("museum 4: the smoothed loss of a good model is most of its floor", reported[0] / reported[1] > 0.9 * floor)
prove("museum 4: in eval mode the task gives the plain loss", plain[0] / plain[1] < 0.2)

# %% [markdown] id="museum-smoothed-says"
# Even the plain loss is not 0: trained to say 0.9, the model says 0.9, and -ln 0.9 is 0.105. Its answers are right all
# the same.

# %% [markdown] id="museum-vocabulary-question"
# **Exhibit 5.** The vocabulary is built from all files, the test set included. *What do those ids learn?*

# %% id="museum-vocabulary"
known = " ".join(source for source, _ in train_pairs[:500] if not source[-1].isdigit())  # number words
unseen = " ".join(source for source, _ in test_pairs[:500])  # and dates
leaked, honest = CharTokenizer.train([known, unseen]), CharTokenizer.train([known])
table = nn.Embedding(leaked.vocab_size, 4)
table(torch.tensor(leaked.encode(known))).sum().backward()
occurring = leaked.encode(unseen)
dead = {id for id in occurring if not table.weight.grad[id].any()}
print("characters with an id that no training text ever used:", " ".join(leaked.pieces(sorted(dead))))
prove("museum 5: ids from the test set get no gradient, and keep random vectors", dead)
unknown = {id for id in honest.encode(unseen) if id >= 5 and honest.piece(id) not in known}
prove("museum 5: a vocabulary from the training text has no such id", not unknown)
table, ids = nn.Embedding(honest.vocab_size, 4), honest.encode(unseen)
table(torch.tensor(honest.encode(known))).sum().backward()
share = sum(id == honest.unk_id for id in ids) / len(ids)
print(f"with the honest vocabulary {100 * share:.0f} % of the test characters become <unk>")
prove(
    "museum 5: but no training text holds <unk>, so it gets no gradient either",
    not table.weight.grad[honest.unk_id].any(),
)

# %% [markdown] id="museum-vocabulary-says"
# The honest vocabulary makes the score honest, not the model good: `<unk>` keeps its random vector too. It learns
# something only if some rare characters of the training text are replaced by it. Bytes need no `<unk>` at all (1.3).

# %% [markdown] id="museum-clip-question"
# **Exhibit 6.** Each tensor is clipped by its own norm. *What happens to the direction of the step?*

# %% id="museum-clip" tags=["tol:0.02"]
grads = [p.grad for p in model.parameters()]
alone = torch.cat([(g * min(1.0, 0.01 / max(g.norm().item(), 1e-12))).flatten() for g in grads])
together = torch.cat([g.flatten() for g in clip_gradients(grads, 0.01)[0]])
for name, clipped in (("each tensor alone", alone), ("all together", together)):
    print(f"{name:>17}: cosine with the gradient {F.cosine_similarity(clipped, exact, dim=0):.3f}")
prove("museum 6: clipping tensor by tensor bends the step", F.cosine_similarity(alone, exact, dim=0) < 0.99)
prove("museum 6: clipping all together does not", F.cosine_similarity(together, exact, dim=0) > 0.9999)

# %% [markdown] id="museum-decay-question"
# **Exhibit 7.** Weight decay is added to the gradient of Adam (`Adam(weight_decay=…)`) and not to the step (`AdamW`).
# *Two weights of 1, one with gradients a thousand times larger: which shrinks more?*

# %% id="museum-decay" tags=["tol:0.01"]
shrunk = {}
for kind in (torch.optim.Adam, torch.optim.AdamW):
    weight = nn.Parameter(torch.ones(2))
    optimizer = kind([weight], lr=0.01, weight_decay=0.1)
    for step in range(100):
        weight.grad = torch.tensor([10.0, 0.01]) * (-1) ** step  # gradients that cancel
        optimizer.step()
    shrunk[kind.__name__] = (1 - weight).tolist()
    large, little = shrunk[kind.__name__]
    print(f"{kind.__name__:>5}: the weight with large gradients shrinks by {large:.3f}, the other by {little:.3f}")
apart = {name: abs(a - b) for name, (a, b) in shrunk.items()}
prove("museum 7: with Adam the decay of a weight depends on the size of its gradients", apart["Adam"] > 0.1)
prove("museum 7: with AdamW it does not", apart["AdamW"] < 0.02)

# %% [markdown] id="end"
# ## 10 What you have
#
# ### What was proved

# %% id="proved-table"
for number, sentence in enumerate(proved, start=1):
    print(f"{number:3}  {sentence}")

# %% [markdown] id="card"
# ### The formulas on one card
#
# | what | formula |
# |---|---|
# | loss | Σ costs of real targets / number of real targets, over the whole step |
# | smoothed cost | -(1 - ε) log p(right) - ε · mean of log p; floor: the entropy of the label |
# | Noam | D^-0.5 · min(step^-0.5, step · warmup^-1.5); peak (D · warmup)^-0.5 at step warmup; half at 4 · warmup |
# | cosine | peak · (1 + cos(π · share done)) / 2 |
# | clipping | g · min(1, limit / norm of all gradients together) |
# | first loss | ln V |
# | checkpoint | weights, optimizer, step, place in the data, random state |

# %% [markdown] id="self-check"
# ### Check yourself
#
# <details><summary>1. Why is the mean of micro-batch means wrong?</summary>
#
# Tokens of a micro-batch with few real targets weigh more. Add sums and counts, and divide once (4.1, 6.1).
#
# </details>
#
# <details><summary>2. Your training loss settles at 1.0 with smoothing 0.1. Is the model bad?</summary>
#
# Not necessarily: with V = 1000 the floor is 1.015. Look at the plain loss on held-out data (4.2).
#
# </details>
#
# <details><summary>3. Which warm-up for a run of 300 steps?</summary>
#
# One that ends well within it, such as 30 to 60. The paper's 4000 would never reach the peak (5.4).
#
# </details>
#
# <details><summary>4. What must be saved besides the weights?</summary>
#
# The optimizer's moments, the step (for the schedule), the place in the data, and the random state (8.1).
#
# </details>
#
# <details><summary>5. How do you see a bug before an hour is spent?</summary>
#
# First loss near ln V, one batch learned by heart, the laws, gradients in every layer (7).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# Chapter 7 turns switches of the same blocks and gets BERT, GPT-2, T5, Llama and ViT. Chapter 8 asks what a run costs,
# and spreads one over several processes with the same `course train`.
#
# ### Sources
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: sections 5.1, 5.3, 5.4, table 3.
# - Sennrich, Haddow, Birch 2016, *Neural Machine Translation of Rare Words with Subword Units*, arXiv:1508.07909.
# - Szegedy et al. 2016, *Rethinking the Inception Architecture*, arXiv:1512.00567: section 7 (label smoothing).
# - Pascanu, Mikolov, Bengio 2013, arXiv:1211.5063: clipping. Loshchilov, Hutter 2017, arXiv:1608.03983: cosine; 2019,
#   arXiv:1711.05101: AdamW. Hu et al. 2024 (MiniCPM), arXiv:2404.06395: warm-up, stable, decay.
# - Jordan et al. 2024, *Muon: An optimizer for hidden layers in neural networks*. Elliott et al. 2016 (Multi30K),
#   arXiv:1605.00459.
