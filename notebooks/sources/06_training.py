# %% [markdown] id="title"
# # 6 Training
#
# At the end of this chapter you will have a translator, trained with a loop that you wrote, and a file,
# `my_transformer.py`, that needs nothing but torch. A first translator runs after about an hour. Then you open its
# parts one by one and build your own.
#
# The chapter builds on chapters [4](04_encoder.ipynb) and [5](05_decoder.ipynb). With its exercises it takes about
# {minutes} minutes; the text marks good places to stop.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out the same in every run
import itertools
import math
import random
import tempfile
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from course_lib import training
from course_lib.attention import record_weights
from course_lib.config import TransformerConfig
from course_lib.data import BPETokenizer, FastBPETokenizer, TokenBatches, encode_pairs, pad_batch
from course_lib.data.bpe import split_words
from course_lib.masks import padding_mask
from course_lib.testing import prove
from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.transformer import Embedding, Transformer, TransformerEncoder
from coursework import exercises as ex
from coursework import records
from coursework.commands.measures import nearest_targets, translate_texts
from coursework.corpora import copy_task, load_pairs, number_parts, number_words, reference_text
from coursework.explorers import ScheduleExplorer
from coursework.pictures import attention_map, drawings, palette, show
from coursework.pictures.plots import chapter_06 as plots
from coursework.pictures.plots import common
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="task"
# ## 1 The task
#
# Our model should translate German number words into English. Each number has one right answer in our data, so a result
# is right or wrong and never just "plausible". And the task cannot be done word by word, because German says the units
# before the tens: *siebenundachtzig* is seven-and-eighty.

# %% id="crossing-drawn" tags=["hide-input"]
# Drawing: 687 in two languages
drawings.crossing_words(
    ["sechs", "hundert", "sieben", "und", "achtzig"],
    ["six", "hundred", "and", "eighty", "seven"],
    [(0, 0), (1, 1), (2, 4), (4, 3)],
).show()

# %% id="held-out"
train_pairs = load_pairs("numbers", "train", 20_000)
test_pairs = load_pairs("numbers", "test", 1000)
for source, target in train_pairs[:2]:
    print(source, "\n   ", target)
shared = {pair.target for pair in train_pairs} & {pair.target for pair in test_pairs}
print(f"numbers in both: {len(shared)}")

# %% [markdown] id="held-out-says"
# We learn from 20,000 numbers below a million. A thousand others are **held out**: the model never sees them in
# training, and at the end we test it on them.
#
# ## 2 From strings to ids
#
# ### 2.1 Why pieces of words
#
# What should get an id? **Words**? German writes a number as one word, so a million numbers would need a million ids,
# and a new number would have none. **Characters**? There are few of them, but the sequences become very long.
#
# The usual answer lies in between: **pieces** of words, long where they are frequent and short where they are rare.
# **Byte-pair encoding**, or BPE (Sennrich et al. 2016), finds them by repeating one step: *find the pair of neighbours
# that occurs most often, and join it into one piece.*
#
# ### 2.2 By hand
#
# Suppose that a text holds only *low* 5 times, *lower* 2 times, *newest* 6 times and *widest* 3 times. At the start
# every character is a piece. Count the pairs of neighbours. The pair *e s* occurs in *newest* and in *widest*, so
# 6 + 3 = 9 times, and so does *s t*. We break ties alphabetically, so *es* becomes the first new piece. Count again:
#
# | merge | pair | how often | the words are now |
# |---|---|---|---|
# | 1 | e + s | 6 + 3 = 9 | `l·o·w`, `l·o·w·e·r`, `n·e·w·es·t`, `w·i·d·es·t` |
# | 2 | es + t | 6 + 3 = 9 | `l·o·w`, `l·o·w·e·r`, `n·e·w·est`, `w·i·d·est` |
# | 3 | l + o | 5 + 2 = 7 | `lo·w`, `lo·w·e·r`, `n·e·w·est`, `w·i·d·est` |
# | 4 | lo + w | 5 + 2 = 7 | `low`, `low·e·r`, `n·e·w·est`, `w·i·d·est` |
#
# The list of merges is all that we keep. To cut up a **new word**, spell it, then apply the merges in the order in which
# they were learned. Here is *lowest*.

# %% id="merges-drawn" tags=["hide-input"]
# Drawing: the four merges, applied to a new word
drawings.merge_tree("lowest", [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w")]).show()

# %% exercise="bpe_merge"

# %% id="merges-run"
spelled = {tuple("low"): 5, tuple("lower"): 2, tuple("newest"): 6, tuple("widest"): 3}
merges = []
for _ in range(4):
    pair, spelled = bpe_merge(spelled)
    merges.append("".join(pair))
print(merges)

# %% [markdown] id="bpe-train-says"
# ### 2.3 On our texts
#
# The course's `BPETokenizer` repeats this step until it has as many ids as we ask for. It begins with the 256 possible
# **bytes** instead of characters, so it can write any text in the world. It never joins two words. A space counts as
# the first character of the next word.
#
# We ask for 360 ids: 256 bytes, 99 merges and 5 special tokens. A whole language takes 30,000 or more. We need three of
# the special tokens: **padding** (id 0), the **start** sign (1, `<bos>`) and the **end** sign (2, `<eos>`).

# %% id="bpe-train"
texts = [text for pair in train_pairs[:4000] for text in pair]
by_hand = BPETokenizer.train(texts, 360)
german, english = "sechshundertsiebenundachtzig", "six hundred and eighty-seven"
for text in (german, english, "Straßenbahn"):
    print(" | ".join(by_hand.pieces(by_hand.encode(text))))

# %% [markdown] id="bpe-train-read"
# Nobody taught it German. It found *sieben*, *hundert* and *zig* because they occur so often. It also made one piece of
# *undacht*, which no grammar knows: counting does not care about meaning. The space before *eighty* stands alone,
# because joining these two was not among the 99 merges. *Straßenbahn* (tram) is no number, so it falls into small
# pieces, but it can be written.

# %% [markdown] id="shift"
# ## 3 What is to be predicted
#
# You know the shift from [chapter 5](05_decoder.ipynb), section 2. The decoder reads the start sign and then the text.
# It must output the text and then the end sign. The right answer at a position is called its **label**.

# %% id="shift-drawn" tags=["hide-input"]
# Drawing: what the decoder reads, and what it must answer
drawings.shifted_targets(["six", "hundred", "and", "two"]).show()

# %% exercise="shift_targets"

# %% id="shift-run"
inputs, labels = shift_targets([[11, 12, 13], [14]], bos_id=1, eos_id=2, pad_id=0)
print("reads  ", inputs.tolist())
print("answers", labels.tolist())

# %% [markdown] id="shift-cut"
# From here on we slice one tensor that has both signs: the decoder reads `target[:, :-1]`, and the labels are
# `target[:, 1:]`. In a shorter row it then reads `<eos>`, but the label there is padding and does not count.
#
# ## 4 A batch, and its padding
#
# Sentences differ in length, but a tensor is a rectangle. So the shorter rows of a *batch* are filled up with the
# padding id. **Attention** must not read it; the padding mask of chapter 1 sees to that. And **the loss** must not
# count it, because there is no right answer there.

# %% id="batch-drawn" tags=["hide-input"]
# Drawing: the labels of three texts in one batch
drawings.padded_batch([["sixty", "-", "two", "<eos>"], ["nine", "<eos>"], ["one", "hundred", "<eos>"]]).show()

# %% [markdown] id="batch-text"
# Padding also costs time. So the course's `TokenBatches` groups rows of similar length, and it fills a batch by
# **tokens** and not by rows: at most 1000 ids on each side.

# %% id="batches"
tokenizer = FastBPETokenizer(by_hand.to_json())  # the same merges, compiled
# each a source with <eos>, and a target with <bos> and <eos>
examples = encode_pairs(train_pairs, tokenizer)
batches = TokenBatches(examples, max_tokens=1000, seed=0)
batch = next(one for one in batches if (one["target"] == 0).any())  # with padding
print("source", tuple(batch["source"].shape), " target", tuple(batch["target"].shape))
labels = batch["target"][:, 1:]
print("labels:", labels.numel(), " real:", int((labels != 0).sum()))

# %% [markdown] id="loss"
# ## 5 The loss
#
# ### 5.1 The loss per token
#
# At each position the model gives a probability to every id of the vocabulary. Look at the probability of the **right**
# token. If it is 1, it should cost the model nothing. The smaller it is, the higher the cost should be. The cost is
# the negative logarithm: a probability $p$ costs $-\ln p$. With the natural logarithm the unit is called
# a *nat*. The **loss per token**, also called *cross-entropy*, is the mean cost of all real tokens.

# %% id="loss-drawn" tags=["hide-input"]
# Drawing: four tokens, their probabilities and costs
drawings.loss_of_tokens(["sixty", "-", "two", "<eos>"], [0.5, 0.9, 0.05, 0.8]).show()

# %% [markdown] id="loss-formula"
# The *two* was a surprise, and it costs more than the other three together. Let there be $N$ real tokens, and let
# $p_i$ be the probability that the right token at position $i$ got:
#
# $$\text{loss} = -\frac{1}{N} \sum_{i=1}^{N} \ln p_i$$
#
# **By hand**: one batch has 2 real tokens that cost 4 each, another has 8 that cost 1 each. All ten together cost
# 2 · 4 + 8 · 1 = 16, so the loss per token is 1.6. The mean of the two means is another number, (4 + 1)/2 = 2.5: the
# short batch counts far too much. So keep a **sum** and a **count**, and divide once, at the end.
#
# ### 5.2 Perplexity
#
# Is a loss of 2.08 nats good or bad? Undo the logarithm: $e^{2.08} = 8$. This number is the **perplexity**,
#
# $$\text{perplexity} = e^{\text{loss}}$$
#
# A perplexity of 8 means that the model is as surprised, on average, as if it had to guess among 8 equally likely tokens.
# A model that knows nothing guesses among all $V$ tokens of the vocabulary, so its perplexity is $V$, and its loss is
# $\ln V$.
#
# This gives the cheapest test there is. Before any update, the loss should be near $\ln V$, within about one nat. If it
# is far above, the first weights are too large. If it is clearly below, the model may see something that it should not.
#
# <details><summary>When does a leak show in the first loss?</summary>
#
# Our models show targets that are not shifted at once. Their last map shares its table with the decoder's embeddings, so
# the token that is read at a position scores high there from the start. A wrong mask does not show in the first loss,
# and in a model whose last map has a table of its own no leak does. They show only after some steps.
#
# </details>

# %% exercise="initial_loss"

# %% [markdown] id="loop-sums-says"
# Here is the loss of one batch, as a sum and a count. The mask says `True` where a source token is real.
# PyTorch's `cross_entropy` wants the vocabulary as the second dimension, hence the `transpose`.

# %% id="loop-sums"
PAD = 0


def sums_of(model, batch):
    """The sum of the costs of a batch, and the number of its real targets."""
    source, target = batch["source"], batch["target"]
    reads, answers = target[:, :-1], target[:, 1:]  # one position apart
    mask = (source != PAD)[:, None, None]  # (B, 1, 1, S)
    scores = model(source, reads, source_mask=mask)  # (B, T, V)
    costs = F.cross_entropy(scores.transpose(1, 2), answers, reduction="none")  # (B, T)
    real = answers != PAD
    return costs[real].sum(), real.sum()


# %% id="first-loss"
torch.manual_seed(0)
shape = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2}
shape |= {"norm_place": "pre", "positions": "rotary", "vocab_size": 360}  # |= adds
shape |= {"share_vocabulary": True, "pad_id": 0}  # one table for both languages
new = Transformer(TransformerConfig(**shape, dropout=0.0))
total, count = sums_of(new, batch)
loss = total / count
print(f"loss {loss:.2f}, ln 360 = {math.log(360):.2f}, perplexity {loss.exp():.0f}")

# %% [markdown] id="smoothing"
# Why is the perplexity above 360? Here one table serves input and output, so a new model mostly gives the highest score to
# the token just read, which is rarely the next.
#
# <details><summary>Label smoothing, which the paper of 2017 used and we do not</summary>
#
# A label demands a probability of 1 for the right token. No softmax ever reaches it, so the scores are pushed ever
# further apart. *Label smoothing* demands less: 0.9 for the right token, and the rest shared by all others. The [lab on
# labels](labs/06_labels.ipynb) measures when it helps.
#
# With our 360 ids, each of the others gets 0.1/359. The lowest possible loss is no longer 0: a model that gives
# exactly these probabilities pays $-0.9 \ln 0.9 - 0.1 \ln (0.1/359) = 0.91$ nats. So a smoothed loss of 0.95 is
# nearly perfect. Never turn it into a perplexity. The right score needs to lie only 8.1 above the others, and a model
# that is too sure pays for it.
#
# </details>
#
# *A good place to stop: you can say how wrong a model is.*

# %% [markdown] id="first-translator"
# ## 6 A translator
#
# ### 6.1 A first training
#
# The **optimizer** is the part that changes the weights. `backward` computes a **gradient** for each weight: how steeply
# the loss rises when this weight rises. From the gradients the optimizer decides how far each weight moves. Take *AdamW*
# on trust for now; section 7 opens it.

# %% id="first-train"
torch.manual_seed(0)
first = Transformer(TransformerConfig(**shape, dropout=0.0))
optimizer = torch.optim.AdamW(first.parameters(), lr=0.003, betas=(0.9, 0.98))
feed = TokenBatches(examples, max_tokens=1000, seed=0).forever()  # without end
curve = []
for _ in range(300):
    total, count = sums_of(first, next(feed))
    (total / count).backward()  # a gradient for each weight
    optimizer.step()  # moves each weight
    optimizer.zero_grad()  # gradients add up; the next step begins anew
    curve.append((total / count).item())

# %% id="first-curve" tags=["hide-input", "picture:20"]
# Figure: the loss of the first translator in each of its 300 steps
show(
    common.curves(range(1, 301), {"": curve}, styles="-", colours=[palette.query], levels={"ln 360": math.log(360)},
                  xlabel="step", ylabel="loss per token", ylim=(0, 6.9)),
    alt="The loss per token against the step. It begins near the dashed line at ln 360, falls below 1 within a hundred steps, and "
    "ends close to zero.",
    caption="The loss begins near ln V, falls steeply, and creeps towards zero.",
)  # fmt: skip
prove("it begins within one nat of ln 360 and ends below 0.3", abs(curve[0] - math.log(360)) < 1 and curve[-1] < 0.3)

# %% [markdown] id="exact"
# ### 6.2 Does it translate?
#
# In training, the model always saw the right words before each position. Can it also *write* a number, when it has to
# go on from its own words (chapter 5)? A translation is *exact* only if **every** character is right. We also count how
# many of the right words occur in it. Our **baseline** gives the translation of the training number whose groups of
# one to three letters are most alike.

# %% id="exact-run" tags=["atol:10"]
sources, answers = zip(*test_pairs, strict=True)
said = {
    "nearest example": nearest_targets(train_pairs, sources),
    "the first translator": translate_texts(first, tokenizer, sources),
}
score = {}
for name, found in said.items():
    pairs = [(set(a.split()), set(b.split())) for a, b in zip(found, answers)]
    words = sum(len(a & b) / len(b) for a, b in pairs) / len(answers)
    score[name] = sum(a == b for a, b in zip(found, answers)) / len(answers)
    print(f"{name}: {words:.0%} of the words, {score[name]:.1%} exact")

# %% id="try-run" tags=["not-compared:free text of a model at its limits"]
for text in ("siebenundachtzig", "dreihundertzwölf", "zwei Millionen"):
    print(f"{text:18}", translate_texts(first, tokenizer, [text])[0])

# %% [markdown] id="exact-says"
# The nearest example has most of the words, but it can never be exact: no held-out number is in training. The
# Transformer has learned how numbers are put together. It has never seen one beyond a million, and there it fails.

# %% [markdown] id="crossing"
# ### 6.3 The crossing
#
# **Predict.** The decoder is about to write *eighty*, and a little later *seven*. Which German pieces does its
# cross-attention look at each time?

# %% id="predict-crossing"
ex.predict("where_it_looks", "")

# %% id="alignment" tags=["hide-input", "picture:12"]
# Figure: where the decoder looks while it writes 687
text = "sechshundertsiebenundachtzig"
source = torch.tensor([tokenizer.encode(text, eos=True)])  # (1, S)
target = torch.tensor([tokenizer.encode("six hundred and eighty-seven", bos=True, eos=True)])  # (1, T)
with torch.no_grad(), record_weights(first.eval()) as maps:
    first(source, target[:, :-1])
across = [weights for name, weights in maps.items() if name.endswith("cross_attention")]  # (B, H, T, S) of each layer
look = torch.stack([weights[0].mean(0) for weights in across]).mean(0)  # (T, S), mean of heads and layers
read, written = tokenizer.pieces(source[0]), tokenizer.pieces(target[0, 1:])
show(
    attention_map(look, queries=written, keys=read, title="decoder looks at source").figure,
    alt="An attention map of the decoder over the German pieces of 687. Rows are the English pieces about to be written, "
    "columns the German ones. In the row of eighty the weight lies on the pieces after sieben; in the row of seven it goes "
    "back to sieben.",
    caption="Each row is a piece about to be written. The attention crosses over: the row of eighty looks most at "
    "undacht, and the row of seven goes back to sieben. Not every row is so tidy: see hundred. (Mean of both layers and all heads.)",
)
record = claim("translator_of_numbers")
names = ("tens on tens", "units on tens", "tens on units", "units on units")
seeds = zip(*(record.values("Muon", name) for name in names), strict=True)
crosses = all(a > b + 0.1 and d > c + 0.1 for a, b, c, d in seeds)
prove("the attention crosses over, with every seed", crosses)
low, high = record.range("Muon", "exact")
prove("with every seed, more than 97 of 100 held-out numbers are exact", low > 0.97)
prove("the nearest example is never right", record.range("Muon", "nearest")[1] < 0.01)
prove("three quarters of the attention and more, with every seed", record.range("Muon", "tens on tens")[0] > 0.75)
stays, falls = (record.values(arm, "exact") for arm in ("300 steps, no fall", "300 steps"))
prove("a falling rate leaves more right, with each seed", all(a > b for a, b in zip(falls, stays, strict=True)))
prove(
    "exact without and with a fall: 84 to 95 and 95 to 99 of a hundred",
    [round(100 * pick(shares)) for shares in (stays, falls) for pick in (min, max)] == [84, 95, 95, 99],
)
multi30k = records.record("translate-multi30k")
bleus = [round(multi30k[name], 1) for name in ("bleu", "bleu_of_the_nearest_example")]
prove("BLEU 26.9, of the most similar sentence 10.3", bleus == [26.9, 10.3])
prove("29,000 captions", multi30k["training_pairs"] == 29_000)
prove("1.4 million weights", round(multi30k["parameters"] / 1e6, 1) == 1.4)
prove("six minutes of one core", round(multi30k["cpu_seconds"] / 60) == 6)

# %% [markdown] id="crossing-says"
# Nobody told the model which piece belongs to which. It only got pairs of texts, and the loss.
#
# <details><summary>Evidence: five recorded trainings</summary>
#
# Other first weights lead to the same picture. Five trainings of 500 steps used Muon, another optimizer. In each, at
# least three quarters of the attention rest on the German tens while the model writes the English ones, and more than
# 97 of 100 held-out numbers are exact. (python benchmarks/claims.py translator_of_numbers)
#
# </details>
#
# <details><summary>Where many answers are right: BLEU, and a translator of captions</summary>
#
# A number has one right translation, a sentence has many. There the usual measure is **BLEU**, from 0 to 100: it counts
# which runs of one to four words also occur in a human translation. Use it to compare two systems on the same test.
#
# The command `course train translate --data multi30k` trains on 29,000 captions of photographs and their translations
# (Elliott et al. 2016). One such training, German to English, with 1.4 million weights and six minutes of one core,
# reached a BLEU of 26.9. The translation of the most similar training sentence gets 10.3. *Ein Mann mit einem
# orangefarbenen Hut, der etwas anstarrt* became *A man in an orange hat is looking at something*.
#
# </details>

# %% [markdown] id="optimizer"
# *A good place to stop: your first translator runs, on numbers that it has never seen.*
#
# ## 7 The optimizer
#
# Each famous optimizer fixes a weakness of the one before.
#
# ### 7.1 Plain gradient descent
#
# Move each weight a little against its gradient. One number sets how far: the *learning rate*, or just the **rate**.
# With the weight $w$, its gradient $g$ and the rate $\eta$ (eta):
#
# $$w \leftarrow w - \eta \, g$$
#
# The gradient comes from a batch drawn at random, so this is called *stochastic gradient descent*, or **SGD**.

# %% [markdown] id="optimizer-valley"
# ### 7.2 Momentum: let steps add up
#
# **What goes wrong.** Take two weights, $x$ and $y$, and the loss $(x^2 + 50\,y^2)/2$. It is a long, narrow valley, flat
# along $x$ and steep across it, along $y$. The gradients are $x$ and $50\,y$.
#
# One rate has to serve both. Across the valley, a step with $\eta = 0.04$ leads from $y$ to
# $y - 0.04 \cdot 50\,y = -y$: we jump from wall to wall for ever. With $\eta = 0.036$ the jumps get smaller. But along
# the valley each step then covers only 3.6 % of the way that is left.
#
# **The idea.** Imagine a heavy ball in the valley. Across the valley it is pushed back and forth, and the pushes cancel.
# Along it all pushes point the same way, and the ball gets faster. So we keep a **velocity** for each weight. In each
# step it fades a little and takes in the new gradient. Gradients point uphill, so we subtract the velocity.
#
# <details><summary>By hand: four gradients come in</summary>
#
# The velocity keeps 0.9 of itself:
#
# | gradients | velocity after 1, 2, 3, 4 steps |
# |---|---|
# | always 1 | 1, 1.9, 2.71, 3.44 |
# | 1, −1, 1, −1 | 1, −0.1, 0.91, −0.18 |
#
# </details>
#
# With the velocity $v$ and the share $\beta$ (beta) that it keeps:
#
# $$v \leftarrow \beta \, v + g \qquad\qquad w \leftarrow w - \eta \, v$$
#
# Usually $\beta$ is 0.9. In this picture it is 0.8.

# %% id="optimizer-valley-drawn" tags=["hide-input"]
# Drawing: the same valley with plain descent and with momentum
drawings.narrow_valley(kinds=("plain", "momentum")).show()

# %% [markdown] id="optimizer-adam"
# ### 7.3 Adam: a rate for each weight
#
# **What goes wrong.** There is still one rate for all weights, but their gradients differ a lot in size. The weight of
# a layer norm acts on every token of the batch; a rare word's input vector acts on only a few. A rate that suits one is
# wrong for the other.
#
# **The idea** of **Adam** (Kingma & Ba 2015). Watch how large the gradients of each weight usually are, and divide by
# that. What is left says which way to go, but no longer how steep it is. For each weight Adam keeps two running
# averages: $m$ of its gradients, much like a velocity, and $v$ of their squares. The root of $v$ is the usual size.
# (This $v$ is not the velocity.)
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1)\, g \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2$$
#
# Usually $\beta_1$ is 0.9, so $m$ takes in a tenth of each gradient. $\beta_2$ is nearer to 1, here 0.98.
#
# Both averages start at 0, so at first they are much too small: after one step $m$ is only a tenth of the gradient.
# Adam repairs this by dividing by $1 - \beta^t$, where $t$ counts the steps from 1. This *bias correction* gives
# $\hat m$ and $\hat v$ ("m hat", "v hat"):
#
# $$\hat m = \frac{m}{1 - \beta_1^t} \qquad \hat v = \frac{v}{1 - \beta_2^t} \qquad w \leftarrow w - \eta \, \frac{\hat m}{\sqrt{\hat v} + \varepsilon}$$
#
# The tiny $\varepsilon$ (epsilon) prevents a division by zero. **By hand**, for a gradient of 4 in the first step:

# %% id="optimizer-adam-drawn" tags=["hide-input"]
# Drawing: the first step of one weight
drawings.adam_of_one_weight().show()

# %% [markdown] id="optimizer-fade"
# The price is memory: two more numbers for each weight.
#
# ### 7.4 AdamW: let weights fade
#
# A model can learn its training texts by heart, and then do worse on new ones. This is **over-fitting**. Large weights
# make it easier, because with them a tiny detail of a text can change the answer. So weights are made to fade a little
# in each step. This is **weight decay**. In plain descent you simply add $\lambda w$ to the gradient. The $\lambda$
# (lambda) is the strength of the decay.
#
# **What goes wrong.** Adam divides everything that is added to the gradient by the usual size. A weight with steep
# gradients then hardly decays, and one with flat gradients decays a lot. **AdamW** (Loshchilov & Hutter 2019) leaves
# the gradient, $m$ and $v$ alone, and shrinks the weight separately from Adam's step. In PyTorch:
#
# $$w \leftarrow w - \eta \, \lambda \, w - \eta \, \frac{\hat m}{\sqrt{\hat v} + \varepsilon}$$
#
# **By hand**, for two weights of 1, with $\eta = 0.1$ and $\lambda = 0.01$:

# %% id="optimizer-decays-drawn" tags=["hide-input"]
# Drawing: what two weights lose, the old way and the new
drawings.two_decays().show()

# %% exercise="adamw_step"

# %% [markdown] id="optimizer-torch-text"
# <details><summary>How an optimizer would use your function</summary>
#
# Your function returns new tensors. An optimizer keeps m and v for each weight, counts t once per step, and overwrites
# the old numbers under `torch.no_grad()`:
#
# ```python
# for p, m, v in zip(parameters, means, squares):
#     for old, new in zip((p, m, v), adamw_step(p, p.grad, m, v, t, rate)):
#         old.copy_(new)  # `p = new` would change nothing in the model
#     p.grad = None
# ```
#
# </details>

# %% id="optimizer-torch" tags=["hide-input"]
# Check: five steps of yours beside five of PyTorch's AdamW
weight = nn.Parameter(torch.tensor([1.0, -2.0]))
settings = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.01}
optimizer = torch.optim.AdamW([weight], **settings)
state = weight.detach().clone(), torch.zeros(2), torch.zeros(2)  # weight, m, v
for t in range(1, 6):
    weight.grad = torch.tensor([4.0, -0.01]) * t
    state = adamw_step(state[0], weight.grad, state[1], state[2], t, rate=0.1)
    optimizer.step()
same = torch.allclose(state[0], weight)
print("your AdamW and PyTorch's, the same weights after five steps:", same)
prove("five steps of yours are five steps of torch's AdamW", same)

# %% [markdown] id="optimizer-ends"
# In the [lab on optimizers](labs/06_optimizers.ipynb) you write momentum, Adam and a newer one, *Muon*.
#
# *A good place to stop: you have written the update that trained Llama.*

# %% [markdown] id="warm-up"
# ## 8 The rate over time
#
# ### 8.1 Why begin slowly?
#
# In Adam's first step, each gradient is divided by its own size, and only its sign is left. So every weight moves by the
# full rate, **whether its gradient is 4 or 0.0004**; only a gradient of 0 moves nothing. Later, the gradients of
# different batches disagree. They partly cancel in $\hat m$ but never in $\hat v$, because squares are positive. So the
# steps get shorter. Here is a small Transformer, at a rate of 0.001.

# %% id="first-step-figure" tags=["hide-input"]
# Figure: the gradients of a small Transformer, its first step and a later one
torch.manual_seed(0)
sizes = {"d_model": 32, "n_heads": 4, "d_ff": 64, "vocab_size": 14, "dropout": 0.0}
model = Transformer(TransformerConfig(**sizes, n_encoder_layers=2, n_decoder_layers=2))
adam = torch.optim.Adam(model.parameters(), lr=0.001, betas=(0.9, 0.98), eps=1e-9)
slopes, moves = [], []
for _ in range(20):
    source, target = copy_task(32, 7, 14, reverse=True, first_id=3)
    logits = model(source, target[:, :-1])  # (B, T, V)
    adam.zero_grad()
    F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    adam.step()
    moved = (nn.utils.parameters_to_vector(model.parameters()).detach() - before).abs()
    slope = torch.cat([p.grad.flatten() for p in model.parameters()]).abs()
    real = slope > 1e-6  # the others are zero but for rounding
    slopes.append(slope[real])
    moves.append(moved[real])
sizes = {"gradients of step 1": slopes[0], "how far step 1 moves": moves[0], "how far step 20 moves": moves[-1]}
bins = [-6.1 + 0.2 * n for n in range(31)]
powers = {"xticks": [-5, -3, -1], "xticklabels": ["10⁻⁵", "0.001", "0.1"]}
sizes = {name: size.log10() for name, size in sizes.items()}
show(
    common.panels(common.histogram, bins, sizes, size=(7.4, 2.6), xlabel="size", ylabel="weights", **powers),
    alt="Three histograms over the weights of a small Transformer, on a scale of powers of ten. The gradients of step 1 spread "
    "from a millionth to a tenth. In step 1 the weights move by one single length, the rate of 0.001. In step 20 nearly all "
    "move less far, most of them by one to five ten-thousandths.",
    caption="The gradients differ by a factor of thousands, but in step 1 nearly every weight moves by the rate, 0.001. In step 20 most "
    "move by less than a third of it.",
)
prove("in step 1, nearly all weights move by the rate", ((moves[0] - 0.001).abs() < 1e-5).float().mean() > 0.98)
prove("in step 20, most move by less than a third of it", moves[-1].median() < 0.001 / 3)

# %% [markdown] id="warm-up-idea"
# So the first steps are the boldest, and the model has seen only a few batches. If the rate is high, this can carry it
# to a point from which it does not come back. The simple cure is a **warm-up**: the rate rises in a straight line from
# nearly 0 to its peak.
#
# ### 8.2 What it is worth
#
# An encoder of four post-norm layers has 120 steps to learn to reverse six letters. We try four rates with three lengths
# of warm-up, each with ten seeds.
#
# **Predict.** Where will the runs without any warm-up fail: at the low rates, at the high ones, or at all of them?

# %% id="predict-warm-up"
ex.predict("who_needs_warm_up", "")

# %% id="warm-up-map" tags=["hide-input"]
# Record: how many of ten seeds learn at each rate and with each warm-up
record = claim("rate_and_warm_up")
arms, peaks = list(record.arms), list(record.rates)
found = [[record.values(arm, "right letters", peak) for peak in peaks] for arm in arms]
learned = [[sum(value > 0.9 for value in values) for values in row] for row in found]
show(
    plots.seeds_that_learn(found, arms, peaks),
    alt="A grid: rows are warm-ups, columns are rates, and each cell holds how many of ten seeds get more than 0.9 of the "
    "letters right. "
    + "; ".join(
        f"{arm}: " + ", ".join(f"at {peak:g} {n} of 10" for peak, n in zip(peaks, row))
        for arm, row in zip(arms, learned)
    ),
    caption=f"How many of ten seeds get more than 0.9 of the letters right, and the range from the worst to the best. "
    f"({record.command})",
)
prove("at the lowest rate every run learns, with and without warm-up", all(row[0] == 10 for row in learned))
prove(
    "at 0.02 one of ten learns without warm-up, nine with 15 steps, ten with 50",
    [row[2] for row in learned] == [1, 9, 10],
)
prove("at 0.03 at most one of ten learns", all(row[3] <= 1 for row in learned))

# %% [markdown] id="warm-up-says"
# At the two low rates warm-up is not needed. At 0.02 it makes the difference. At 0.03 even the longest is not enough.
# So on this task warm-up buys a **higher rate**, not a better result: at 0.005, every run without it gets 0.99 or more
# of the letters.
#
# Without warm-up at 0.02, the first update adds a long vector that is much the same for every token. In the runs that
# failed, all tokens ended up nearly alike, so it made no difference where a query looked.
#
# <details><summary>What goes wrong without it, and the evidence: ten seeds each, young averages, pre-norm</summary>
#
# What the first update adds at 0.02 is on average nine tenths as long as the token itself. The mean cosine of tokens
# (chapter 4) rises from 0.7 to 0.9 in one step, and to nearly 1 in five. With 50 steps of warm-up they grow alike more
# slowly, and all ten runs find their way out again. Without it, one of ten does.
#
# The ranges of the mean cosine at a rate of 0.02, without warm-up and with 50 steps of it:
#
# | updates done | 0 | 1 | 5 | 20 | 120 |
# |---|---|---|---|---|---|
# | without | 0.68 to 0.70 | 0.87 to 0.93 | 0.98 to 1.00 | 0.99 to 1.00 | 1.00; the run that learned 0.14 |
# | with | 0.68 to 0.70 | 0.68 to 0.70 | 0.69 to 0.76 | 0.82 to 0.99 | 0.08 to 0.35 |
#
# *The cause.* With each of ten seeds, more than four fifths of what the first full update adds are common to all tokens
# (of the squared length). A bias, for example, is added to every token: when all biases take a full step at once, all
# tokens move the same way. If only the biases and the weights of the norms move, they change a token by about 0.4 of its
# length. If only the matrices move, it is about 0.7. In post-norm models the gradients near the output are large at the
# start (Xiong et al. 2020). Plain SGD gains from a warm-up, too: it leads to points that tolerate a higher rate (Kalra &
# Barkeshli 2024). The cause is still studied.
#
# *Young averages.* One often reads that Adam's averages have seen too little in the first steps. Then it should help to
# fill them first, by 50 steps at a rate of 0. Here it does harm: at 0.02, none of ten learns without warm-up (one did), and
# one with 15 steps of it (nine did). We have not measured why. (python benchmarks/claims.py filled_averages)
#
# *Pre-norm.* A pre-norm model, with the norm before each *sublayer*, is often said to need no warm-up (after Xiong et
# al. 2020). Our translator is one, and at 0.003 it needed none. Pre-norm tolerates a higher rate, but it has a limit,
# too. Here is a larger model, with four layers on each side and 250 steps, five seeds; the share of right letters:
#
# | peak | post-norm, no warm-up | 50 steps | pre-norm, no warm-up | 50 steps |
# |---|---|---|---|---|
# | 0.006 | 0.33 to 0.40 | 0.53 to 0.96 | 0.99 to 1.00 | 1.00 |
# | 0.02 | 0.12 to 0.13 | 0.26 to 0.31 | 0.34 to 0.50 | 0.99 to 1.00 |
#
# (python benchmarks/claims.py warm_up_and_norms)
#
# </details>

# %% [markdown] id="schedules"
# ### 8.3 And how it goes down
#
# We trained the translator of section 11 with five seeds. With the rate kept at its peak, it got 84 to 95 of a hundred
# numbers right. With a falling rate it got 95 to 99, better with every seed: batches disagree, so long steps keep
# throwing the weights about. The rule that gives each step its rate is called a *schedule*. Yours will be the
# **cosine**. Move the step, and read its rate.

# %% id="explorer"
ScheduleExplorer(steps=600, peak=5e-3, warmup=60, decay=120, kind="cosine", step=300)

# %% [markdown] id="schedules-say"
# <details><summary>Why 541, and the other three schedules in the list</summary>
#
# The cosine has to know the length of the run. It reaches 0 one step *after* the end, so that no step is wasted; hence
# the 541 in the code.
#
# **Linear** also has to know the length. **Noam**, the schedule of 2017, falls with one over the root of the step.
# **Warm-up, stable, decay** (Hu et al. 2024) stays on its plateau until you decide to end.
#
# </details>


# %% [markdown] id="paper-settings"
# <details><summary>What the paper of 2017 set (sections 5.1 to 5.4 and 6.1, table 3)</summary>
#
# **Dropout** sets some numbers to zero by chance while training. The [lab on one update](labs/06_one_update.ipynb)
# tells where the paper has it, in the text and in its code.
#
# | setting | base model | big model |
# |---|---|---|
# | Adam's β₁, β₂, ε | 0.9, 0.98, 10⁻⁹ | the same |
# | steps of warm-up | 4000 | 4000 |
# | steps | 100,000 | 300,000 |
# | dropout | 0.1 | 0.3 (English to French: 0.1) |
# | label smoothing | 0.1 | 0.1 |
# | tokens in each batch | about 25,000 source and 25,000 target tokens | the same |
#
# </details>
#
# *A good place to stop: you know how AdamW moves each weight, and how its rate rises and falls.*

# %% [markdown] id="precision"
# ## 9 Mixed precision
#
# A weight is usually a *float32*, a number in 32 bits. Modern GPUs multiply matrices several times faster in 16 bits.
# The usual format is *bfloat16*, the first half of a float32. It has the same range, but only two to three digits. That
# is too coarse for the small steps of training. Let a weight be 1 and the step 0.0001:

# %% id="precision-lost" tags=["hide-input"]
# Drawing: the numbers of bfloat16 around 1
drawings.lost_step().show()

# %% [markdown] id="precision-autocast"
# In bfloat16 this weight never moves. So *mixed precision* uses both formats. Products of matrices, where most of the time
# goes, run in 16 bits. They tolerate it: a copy of each number is rounded once, by at most 0.4 %, and the sums inside
# are added up in 32 bits. Softmax, layer norm and loss, the weights and the optimizer's averages stay in float32.
#
# In PyTorch you put *autocast* around the forward pass. On a GPU it picks the format for each operation there.
#
# <details><summary>What differs on the CPU</summary>
#
# A running sum that is *kept* in bfloat16 loses small terms: 256 + 1 is kept as 256. On the CPU autocast computes only
# the loss, of softmax, norm and loss, in float32. The softmax of 16-bit scores stays in 16 bits. A norm computes in what
# it is given. In our models that is the residual stream, which is float32.
#
# </details>
#
# <details><summary>The other format, float16, needs loss scaling</summary>
#
# *float16* has more digits and a shorter reach: it keeps 257, which bfloat16 rounds to 256, but ends at 65,504. What
# is smaller than about half of $2^{-24}$ becomes 0 in float16, and many gradients are. So the loss is multiplied by a
# number such as 1024 before the backward pass, and the gradients are divided by it again before the step, in float32.
# If one overflows, the step is left out and the number is made smaller.
#
# </details>

# %% id="precision-check" tags=["hide-input"]
# Check: the pieces, the labels, and the numbers of sections 5 to 9
sample = [reference_text()[i : i + 80] for i in range(0, 20_000, 80)] + ["мир", "\t\n"]
prove("the same ids, by hand and compiled", by_hand.encode_batch(sample) == tokenizer.encode_batch(sample))
words = Counter(word for pair in train_pairs[:4000] for text in pair for word in split_words(text))
spelled = {tuple(word): count for word, count in words.items() if word.isascii()}
first = []
for _ in range(3):
    pair, spelled = bpe_merge(spelled)
    first.append("".join(pair))
prove("your first three merges are pieces of the tokenizer", all(len(tokenizer.encode(one)) == 1 for one in first))
prove("every text comes back, seen or not", tokenizer.decode(tokenizer.encode("日本 naïve")) == "日本 naïve")
ids = [row[1:-1] for row in (examples[i]["target"] for i in range(8))]
whole = pad_batch([{"target": examples[i]["target"]} for i in range(8)])["target"]
read, cut = shift_targets(ids, bos_id=1, eos_id=2, pad_id=0)
prove("the labels are the padded target from its second id on", torch.equal(cut, whole[:, 1:]))
prove("what is read differs only where the label is padding", bool((cut[read != whole[:, :-1]] == 0).all()))
costs = [-math.log(p) for p in (0.5, 0.9, 0.8, 0.05)]
prove("the four costs", [round(cost, 2) for cost in costs] == [0.69, 0.11, 0.22, 3.0])
prove("the surprise costs more than the three others", costs[3] > sum(costs[:3]))
prove("their mean is 1.00", round(sum(costs) / 4, 2) == 1.0)
prove("the mean over tokens is 1.6, the mean of means 2.5", (2 * 4 + 8) / 10 == 1.6 and (4 + 1) / 2 == 2.5)
floor = -0.9 * math.log(0.9) - 0.1 * math.log(0.1 / 359)
prove("smoothed by 0.1, the best loss with 360 ids is 0.91", round(floor, 2) == 0.91)
prove("and the best score lies 8.1 above the others", round(math.log(0.9 / (0.1 / 359)), 1) == 8.1)
prove("a perplexity of 8 is a loss of 2.08", round(math.log(8), 2) == 2.08)
scores = new(batch["source"], batch["target"][:, :-1], source_mask=padding_mask(batch["source"], PAD))
whole = F.cross_entropy(scores.flatten(0, 1), batch["target"][:, 1:].flatten(), ignore_index=PAD)
prove("PyTorch's own mean without padding, and the mask of chapter 1, give the same loss", torch.isclose(whole, loss))
fast, slow = [0.0], [0.0]
for number in range(4):
    fast.append(0.9 * fast[-1] + 1)
    slow.append(0.9 * slow[-1] + (-1) ** number)
prove("gradients that agree add up", [round(v, 2) for v in fast[1:]] == [1, 1.9, 2.71, 3.44])
prove("gradients that alternate hardly do", [round(v, 2) for v in slow[1:]] == [1, -0.1, 0.91, -0.18])
prove("at a rate of 0.04 the weight across jumps for ever", math.isclose(1 - 0.04 * 50, -1))
prove("decay in AdamW: 0.001", math.isclose(0.1 * 0.01, 0.001))
decays = [0.1 * 0.01 / math.hypot(size, 0.01) for size in (10, 0.1)]
prove("decay in the gradient: 0.0001 and 0.01", [round(decay, 4) for decay in decays] == [0.0001, 0.01])


def first_change(seed, axes=(1, 2)):
    """Of the encoder above: the tokens, and what the first update at 0.02 of weights with such axes adds to them."""
    torch.manual_seed(seed)
    width = {"d_model": 32, "n_heads": 4, "d_ff": 32, "n_encoder_layers": 4, "vocab_size": 8}
    config = TransformerConfig(**width, dropout=0.0, init="normal")
    body = nn.Sequential(Embedding(config, 8), TransformerEncoder(config))
    whole = nn.Sequential(body, nn.Linear(32, 8))
    letters, rows = torch.randint(8, (500, 6)), torch.randint(8, (32, 6))
    with torch.no_grad():
        old = body(letters).flatten(0, -3)
    F.cross_entropy(whole(rows).flatten(0, 1), rows.flip(1).flatten()).backward()
    torch.optim.Adam([p for p in whole.parameters() if p.dim() in axes], lr=0.02).step()
    with torch.no_grad():
        return old, body(letters).flatten(0, -3) - old


changes = [first_change(seed) for seed in range(10)]
shared = [(change.mean((0, 1)).norm() ** 2 / change.norm(dim=-1).pow(2).mean()).item() for _, change in changes]
prove("more than four fifths of its square are common to all tokens, ten seeds", min(shared) > 0.8)
lengths = [(change.norm(dim=-1).mean() / old.norm(dim=-1).mean()).item() for old, change in changes]
prove("it is on average nine tenths as long as the token", 0.86 < sum(lengths) / 10 < 0.97)
for axes, least, most in ((1, 0.35, 0.45), (2, 0.65, 0.75)):
    some = [first_change(seed, [axes]) for seed in range(10)]
    length = sum(change.norm(dim=-1).mean() / old.norm(dim=-1).mean() for old, change in some) / 10
    prove("biases and norms alone: 0.4 of a token, matrices alone 0.7", least < length < most)
filled = claim("filled_averages")
learned = {arm: sum(value > 0.9 for value in filled.values(arm, "right letters")) for arm in filled.arms}
prove("without filling 1 and 9 of ten learn, with it 0 and 1", list(learned.values()) == [1, 9, 0, 1])
alike = claim("alike_by_step")
one = alike.values("0 steps", "alike after 1")
prove(
    "one full step makes the tokens more alike with every seed",
    min(one) > max(alike.values("0 steps", "alike after 0")),
)
ends = [
    (right > 0.9, end)
    for arm in alike.arms
    for right, end in zip(alike.values(arm, "right letters"), alike.values(arm, "alike after 120"), strict=True)
]
prove(
    "in the end the tokens of all that learned are less alike than those of any that did not",
    max(end for learned, end in ends if learned) < min(end for learned, end in ends if not learned),
)
norms = claim("warm_up_and_norms")
low, high = norms.rates
prove(
    "at the low peak pre-norm learns without warm-up",
    norms.range("pre-norm, no warm-up", "right letters", low)[0] > 0.95,
)
prove("at the high peak it does not, and with warm-up it does",
      norms.range("pre-norm, no warm-up", "right letters", high)[1]
      < norms.range("pre-norm, 50 steps", "right letters", high)[0])  # fmt: skip
prove("the weights are still float32", all(p.dtype == torch.float32 for p in new.parameters()))
prove(
    "bfloat16 keeps 257 as 256, float16 as 257",
    torch.tensor(257.0).bfloat16() == 256 and torch.tensor(257.0).half() == 257,
)
prove("in bfloat16 a weight of 1 minus 0.0001 is 1", torch.tensor(1.0).bfloat16() - 0.0001 == 1)
prove("bfloat16 has 258 after 256", torch.tensor(258.0).bfloat16() == 258)
prove("in bfloat16, 256 + 1 is 256", torch.tensor(256.0).bfloat16() + 1 == 256)
with torch.autocast("cpu", dtype=torch.bfloat16):
    some = torch.randn(2, 4).bfloat16()
    kinds = [
        F.softmax(some, -1).dtype,
        F.layer_norm(some, (4,)).dtype,
        F.cross_entropy(some, torch.tensor([0, 3])).dtype,
    ]
prove(
    "given bfloat16, CPU autocast does only the loss in float32",
    kinds == [torch.bfloat16, torch.bfloat16, torch.float32],
)
prove("float16 ends at 65,504", torch.finfo(torch.float16).max == 65504 and torch.tensor(7e4).half().isinf())
prove(
    "1e-8 is lost in float16, and kept times 1024",
    torch.tensor(1e-8).half() == 0 and torch.tensor(1e-8 * 1024).half() > 0,
)
prove("bfloat16 keeps it without", torch.tensor(1e-8).bfloat16() > 0)

# %% [markdown] id="one-update"
# ## 10 Your step
#
# ### 10.1 Accumulation
#
# A batch that is too large for the memory is cut into parts. Each part goes forward and backward by itself, and PyTorch
# **adds** up their gradients. This is *gradient accumulation*.

# %% id="accumulation-drawn" tags=["hide-input"]
# Drawing: four parts, one update
drawings.micro_batches([10, 22, 31, 40]).show()

# %% [markdown] id="accumulation-says"
# With the **mean** loss of each part, this would be a mean of means again. So call `backward` on the *sums*, and then
# divide the gradient of each weight once.
#
# ### 10.2 Clipping
#
# Now and then a batch gives a gradient many times as long as usual, and spoils Adam's averages for many steps.
# *Gradient clipping* (Pascanu et al. 2013) limits the length of the gradient, often to 1. This length is its *norm*,
# the root of the sum of all squares, over **all** weights together. Above the limit, all gradients are multiplied by
# limit / norm.

# %% id="clipping-drawn" tags=["hide-input"]
# Drawing: a long gradient, clipped the right way and the wrong way
drawings.clipped_gradients().show()

# %% [markdown] id="clipping-says"
# ### 10.3 Now you
#
# The step needs this from PyTorch, for a `model` and an `optimizer`:
#
# | | |
# |---|---|
# | the gradient of a weight `p` of `model.parameters()` | `p.grad`; divide it in place: `p.grad /= count` |
# | clip all gradients together | `nn.utils.clip_grad_norm_(model.parameters(), limit)`, which returns the norm before clipping |
# | set the rate | the entry `"lr"` of each dict in `optimizer.param_groups` |
# | update, then clear | `optimizer.step()`, `optimizer.zero_grad()` |

# %% exercise="training_step"

# %% [markdown] id="step-run-says"
# First, your step gets 48 pairs from the same weights, once as a whole and once in four parts.


# %% id="step-run" tags=["hide-input", "tol:0.0001"]
# Your step, with the whole batch and with four parts
def tiny(dropout=0.0):
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**shape | {"d_model": 32}, dropout=dropout))


rows = sorted(examples[:48], key=lambda row: len(row["target"]))
four = [pad_batch(rows[i : i + 12]) for i in range(0, 48, 12)]
after = []
for parts in ([pad_batch(rows)], four):
    model = tiny()
    descent = torch.optim.SGD(model.parameters(), lr=0.0)  # your step sets the rate
    loss, norm = training_step(model, parts, descent, 0.1, 1.0, sums_of)
    after.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    print(f"parts: {len(parts)}, loss {loss:.4f}, norm {norm:.4f}")
prove("four parts make the step of the whole batch", torch.allclose(*after, atol=1e-6))

# %% [markdown] id="step-learns"
# Now it gets 100 updates, all on the same eight pairs.

# %% id="debug-few" tags=["tol:0.2"]
few = pad_batch(examples[:8])  # the rows, padded to one batch
model = tiny()  # the model of section 5.2, half as wide
adam = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
for _ in range(100):
    loss, norm = training_step(model, [few], adam, 0.005, 1.0, sums_of)
heard = translate_texts(model, tokenizer, [pair.source for pair in train_pairs[:8]])
right = sum(text == pair.target for text, pair in zip(heard, train_pairs))
print(f"loss {loss:.3f}, translated right: {right} of 8")

# %% [markdown] id="step-ends"
# *A good place to stop: a model has learned eight numbers by heart, with the step that you wrote. The loop is the
# longest exercise of the chapter.*

# %% [markdown] id="loop-text"
# ## 11 Your loop
#
# ### 11.1 All on one page

# %% id="loop-drawn" tags=["hide-input"]
# Drawing: one round of training
drawings.training_loop().show()

# %% [markdown] id="checkpoint"
# A run that you can leave alone needs two more things.
#
# **A look at held-out data.** Now and then the loop computes the loss of pairs that it does not learn from, in
# evaluation mode (no dropout). If this rises while the training loss falls, the model is over-fitting.
#
# **A file.** Long trainings get interrupted. So the loop saves what changes from step to step as a **checkpoint**. The
# settings and the tokenizer do not change, and stay with the program that calls the loop.

# %% id="checkpoint-drawn" tags=["hide-input"]
# Drawing: what a checkpoint holds
drawings.checkpoint_contents().show()

# %% [markdown] id="resume-says"
# ### 11.2 Now you
#
# Your loop is given nine things:
#
# | | |
# |---|---|
# | `model`, `optimizer` | what it trains, and with what |
# | `step_of`, `loss_of` | your `training_step`, and `sums_of` from section 5.2 |
# | `data` | the training batches: `data` remembers how far it is, and `data.forever()` goes on from there without end |
# | `held_out` | batches to look at |
# | `config` | the settings, such as `config.steps` |
# | `path`, `device` | where the file goes, and where the model runs, such as `"cpu"` |

# %% exercise="training_loop"

# %% [markdown] id="resume-run-says"
# ### 11.3 Pull the plug
#
# One run of 20 steps goes straight through. Another is cut off during step 10, and leaves only the file of step 8.
# A third starts from that file. Its weights must be the same **bit for bit**, dropout and all.


# %% id="resume" tags=["hide-input"]
# A run of 20 steps, and a step that pulls the plug
def run_to_20(path, step_of=training_step):
    model = tiny(dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters())
    data = TokenBatches(examples, max_tokens=300, seed=1)
    config = TrainingConfig(steps=20, learning_rate=2e-3, warmup=5, evaluate_every=4)
    look = [pad_batch(examples[-20:])]  # stand in for held-out pairs
    training_loop(model, optimizer, step_of, sums_of, data, look, config, path, "cpu")
    return nn.utils.parameters_to_vector(model.parameters())


calls = itertools.count(1)


def plug_pulled(*step):
    if next(calls) == 10:
        raise KeyboardInterrupt
    return training_step(*step)


# %% id="resume-proof"
with tempfile.TemporaryDirectory() as folder:
    straight = run_to_20(Path(folder, "straight.pt"))
    file = Path(folder, "stopped.pt")
    try:
        run_to_20(file, plug_pulled)
    except KeyboardInterrupt:
        print("stopped in step 10; left in the folder:", file.name)
    resumed = run_to_20(file)
same = torch.equal(resumed, straight)
print("all weights the same as in one go, bit for bit:", same)
prove("all weights are the same, bit for bit", same)

# %% [markdown] id="long-run"
# ### 11.4 Your translator
#
# Now train the model of section 6 with your step and your loop, on the same data and again for 300 steps. A warm-up to
# a higher peak, the cosine, and clipping are new. Before, PyTorch's AdamW gave a decay of 0.01 to every weight;
# `parameter_groups` gives it to matrices only.
#
# <details><summary>Which weights decay</summary>
#
# The matrices inside layers decay; embeddings, norms and biases do not. `parameter_groups` sorts them into what
# PyTorch's optimizers take, a list of two groups: `{"params": matrices, "weight_decay": 0.01}` and the rest with 0.0.
# This is a custom. Decay would pull the weight of a layer norm, which begins at 1, towards 0, and let the vectors of
# rare words fade in steps in which they do not occur. Embeddings have two axes as well, so it is not enough to count
# axes. The matrices are the weights of the `nn.Linear` parts, without a last map that shares its table with an
# embedding.
#
# </details>
#
# **Predict.** The first translator got more than eight of ten numbers right. How many will this one get?

# %% id="predict-second"
ex.predict("share_of_the_second", "")

# %% id="train" tags=["atol:0.1"]
torch.manual_seed(0)
translator = Transformer(TransformerConfig(**shape, dropout=0.0))
config = TrainingConfig(steps=300, learning_rate=0.005, warmup=30, evaluate_every=50)
print(f"{config.schedule}, clip {config.clip}, decay {config.weight_decay}")
groups = training.parameter_groups(translator, config.weight_decay)
optimizer = torch.optim.AdamW(groups, betas=config.betas, eps=config.eps)
data = TokenBatches(examples, max_tokens=1000, seed=0)
held_out = encode_pairs(load_pairs("numbers", "validation", 200), tokenizer)
held_out = TokenBatches(held_out, max_tokens=4000, shuffle=False)
device = "cuda" if torch.cuda.is_available() else "cpu"
with tempfile.TemporaryDirectory() as folder:
    world = data, held_out, config, Path(folder, "translator.pt"), device
    history = training_loop(translator, optimizer, training_step, sums_of, *world)
for step, loss in history:
    print(f"step {step}: held-out loss {loss:.3f}")

# %% id="second-exact" tags=["atol:10"]
found = translate_texts(translator, tokenizer, sources)
share = sum(a == b for a, b in zip(found, answers, strict=True)) / len(answers)
print(f"the first translator: {score['the first translator']:.1%} exact")
print(f"yours:                {share:.1%} exact")
prove("yours gets more than nine in ten right", share > 0.9)

# %% [markdown] id="thread-text"
# *A good place to stop: your translator runs, and the loop is yours.*
#
# ## 12 Your model is complete
#
# `so_far` writes your AdamW, your step and your loop into `my/my_transformer.py`, with a small program. (In a terminal,
# `course assemble` does the same.) Here the program learns the numbers below 1000, from characters, and translates one
# that you may change.
#
# Then give it your own pairs. Write at least twenty lines into a file `pairs.txt` beside `my/`, with a tab between the
# two texts, and run this there, in a terminal: `python my/my_transformer.py translate --data pairs.txt`

# %% id="thread" tags=["atol:20", "atol:0.05"]
from coursework.assembly.thread import so_far

my = so_far(chapter=6)
lines = [number_words(n, "de") + "\t" + number_words(n, "en") for n in range(1000)]
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "numbers.txt").write_text("\n".join(lines), encoding="utf-8")
    where = ["--out", f"{folder}/mine", "--device", "cpu"]
    size = ["--d-model", "64", "--n-layers", "2", "--batch", "128", "--steps", "300"]
    my.main(["translate", "--data", f"{folder}/numbers.txt", *size, *where])
    my.main(["use", *where, "--text", "siebenundachtzig"])  # any time later

# %% [markdown] id="data-loader-says"
# A whole Transformer and its training are now in one file: it reads, attends, learns, translates and writes.
#
# <details><summary>With the library: your own text, a translator of your own, and PyTorch's DataLoader</summary>
#
# In the package the loop is called `Run`. It adds what makes long trainings bearable: a panel, a stop button, several
# checkpoints. From the same first weights and the same batches it gets the weights of your loop.
#
# `course train lm --data my_text.txt --out runs/mine` trains a GPT of the library on any text file, and
# `course generate runs/mine "Once"` lets it write on. A few hundred kilobytes of text are a good start. Press Ctrl-C
# when you like, and go on with `--resume`.
#
# The command keeps a tenth of the text back, prints held-out losses, and leaves checkpoints. Each character is a token;
# `--set tokenizer.kind=bpe` learns pieces. The command starts from the fastest recipe that we measured for a small
# model on a processor, with Muon among its settings, and its second line names them all. `--plain` takes AdamW and the
# other usual settings instead.
#
# For a translator, put your pairs into `train.tsv`, `validation.tsv` and `test.tsv`, with a tab between the two texts,
# and name their folder: `course train translate --data FOLDER`.
#
# In a program of your own you may prefer PyTorch's `DataLoader`. Its `collate_fn` turns a list of examples into one
# batch, which here means padding; the folded cell below does it. A shuffled `DataLoader` does not remember where it was
# in the data, so after an interrupt the run does not go on bit for bit.
#
# On a GPU, dropout draws from a generator of its own. Bit for bit then also needs `torch.cuda.get_rng_state()`. And a
# file that is read with `map_location="cpu"` can be opened on any machine; `load_state_dict` moves what it holds.
#
# </details>
#
# *The best place to stop: your model is complete. The last section can wait until a training of yours goes wrong.*

# %% id="run-equal" tags=["hide-input"]
# Check: your loop and the library's Run end with the same weights
config = TrainingConfig(steps=12, learning_rate=2e-3, warmup=4, accumulation=2, evaluate_every=12, log_every=1)
model = tiny()
optimizer = torch.optim.AdamW(training.parameter_groups(model, 0.01), betas=config.betas, eps=config.eps)
look, task = [pad_batch(examples[:8])], tasks.Translation(pad_id=PAD, smoothing=0.0)
with tempfile.TemporaryDirectory() as folder:
    data = TokenBatches(examples, max_tokens=300, seed=1)
    training_loop(model, optimizer, training_step, sums_of, data, look, config, Path(folder, "a.pt"), "cpu")
run = Run(tiny(), task, TokenBatches(examples, max_tokens=300, seed=1), config, evaluation=look, shown=Silent()).train()
mine, theirs = (nn.utils.parameters_to_vector(one.parameters()).detach() for one in (model, run.model))
prove("your loop and Run end with the same weights, to a thousandth", (mine - theirs).norm() < 1e-3 * theirs.norm())
loader = DataLoader(examples, batch_size=32, shuffle=True, collate_fn=pad_batch)
run = Run(tiny(), task, loader, TrainingConfig(steps=3, learning_rate=2e-3, log_every=1), shown=Silent()).train()
prove("32 rows in a batch", next(iter(loader))["source"].size(0) == 32)

# %% [markdown] id="debugging"
# ## 13 Why does it not learn?
#
# ### 13.1 Before a long run
#
# Most mistakes in training raise no error. Four checks take seconds.
#
# 1. **The first loss is near ln V** (section 5.2).
# 2. **A few examples can be learned by heart** (section 10.3). If not, something is not connected, or the rate is wrong.
# 3. **Every weight gets a gradient.** A weight without any effect should get 0, but rounding can leave a billionth.
#    So ask for more: `p.grad.abs().max() > 1e-6`.
# 4. **Nothing leaks.** Change the targets from position 5 on: no earlier score changes. Add padding to the source: no
#    score changes.
#
# <details><summary>One exception to check 3: biases that get no gradient</summary>
#
# In cross-attention our models have no rotary positions. There a bias of the keys adds the same number to all scores of
# a query, and the softmax does not notice. So its gradient is 0 but for rounding. In a new model of the shape above, on
# one batch, it is about 10⁻⁹ in cross-attention, where the queries' bias has about 10⁻². In self-attention our models
# turn queries and keys by their positions. There the bias is turned with the keys, adds something else at each
# distance, and has a gradient of about 5 · 10⁻³. A test for exactly 0, such as `p.grad.any()`, takes rounding for a
# gradient.
#
# </details>

# %% id="debug-laws" tags=["hide-input"]
# Check: every weight gets a gradient, and nothing leaks
model = tiny()
sums_of(model, few)[0].backward()
sizes = {name: p.grad.abs().max() for name, p in model.named_parameters()}
weak = [name for name, size in sizes.items() if size < 1e-6]
prove("all but keys' biases in cross-attention", all("cross_attention.key.bias" in n for n in weak))
model.eval()
source, target = few["source"], few["target"][:, :-1]
changed = target.clone()
changed[:, 5:] = 7  # other words from position 5 on
early = torch.allclose(model(source, target)[:, :5], model(source, changed)[:, :5], atol=1e-5)
prove("no position sees a later target", early)
print("other targets from position 5 on, the same scores before it:", early)
wider = F.pad(source, (0, 3))  # three more ids of padding
padded = torch.allclose(model(wider, target), model(source, target), atol=1e-5)
prove("more padding changes no score", padded)
print("more padding in the source, the same scores:", padded)
prove(
    "the padding mask of the loop is that of chapter 1",
    torch.equal((wider != PAD)[:, None, None], padding_mask(wider, PAD)),
)

# %% [markdown] id="gallery"
# ### 13.2 Eight curves
#
# Here are eight real trainings of small translators, each with five seeds. The training loss is blue. The held-out loss
# is dashed orange, and often hides the blue. Both are computed **with the fault**. The dot at the start of each curve
# stands right after the **first update**.
#
# **H** is done for you: it has no warm-up, at a rate that needs one; the pale grey curves have it. Of the other seven,
# one is sound, and six have one fault each:
#
# - the learning rate is a hundred times too low;
# - the learning rate is thirty times too high;
# - the targets are not shifted, so the decoder only has to copy what it reads;
# - the padding is counted in the loss, so easy positions make the mean small, but real tokens take as long as ever;
# - the pairs are mixed up: each source stands beside the target of another number;
# - there are only 40 pairs to learn from.
#
# **Predict.** Which panel is which? For each fault, ask what it makes easier, slower, or shaky. Below the panels, write
# seven letters, each with a word.

# %% id="gallery-figure" tags=["hide-input"]
# Figure: eight trainings, one letter each
faults = claim("curves_of_faults")
panels = {
    "A": "pairs mixed up",
    "B": "rate too high",
    "C": "nothing wrong",
    "D": "40 pairs",
    "E": "targets not shifted",
    "F": "rate too low",
    "G": "padding counted",
    "H": "no warm-up",
}
seen = [int(name.split()[-1]) for name in faults.measures if name.startswith("training")]


def losses_of(arm):
    """The losses in training and of held-out pairs, each (seeds, steps)."""
    kinds = ("training", "held out")
    return {kind: torch.tensor([faults.values(arm, f"{kind} {step}") for step in seen]).T for kind in kinds}


losses = {letter: losses_of(arm) for letter, arm in panels.items()}
show(
    plots.gallery_of_faults(losses, losses_of("warm-up put back")["held out"], seen, named=(("E", 40), ("G", 40))),
    alt="Eight small panels of loss against step, each with a dotted line at ln 59. A begins a little above it, falls to about "
    "1.3 and stays flat. B begins at about 4 and drops at once, rises again after step 20 and wanders around 1. C begins a little "
    "above the line and falls smoothly to nearly zero, training and held out together. D begins so, too; training falls to zero, "
    "held out stops near 1 and rises. E begins at about 2.3 and is at zero within 40 steps. F begins above the line and hardly "
    "falls, to between 3 and 4. G begins between 2 and 4, falls below 0.5 within 40 steps and then slowly to zero. H begins at about "
    "3.6, falls all the way, but slowly, and is still above 0.4 at the end; the pale curves of the same model with its fault mended "
    "begin at about 4.5 and end at zero.",
    caption="Which is which? Dotted: ln 59, the loss of a model that knows nothing, as there are 59 tokens. In E and G a number "
    f"says how high the curves are at step 40, on average. ({faults.command})",
)
copied = faults.range("targets not shifted", "exact")[1]
prove("E: not shifted, no translation is right, with any seed", copied == 0)
shown = faults.range("padding counted", "held out 40")
true = faults.range("padding counted", "plain 40")
prove("G at step 40: 0.32 to 0.39 is shown, 1.79 to 2.25 is true",
      [f"{loss:.2f}" for loss in (*shown, *true)] == ["0.32", "0.39", "1.79", "2.25"])  # fmt: skip
prove(
    "A stays between 1.2 and 1.4",
    1.2 < faults.range("pairs mixed up", "held out 300")[0] < faults.range("pairs mixed up", "held out 300")[1] < 1.4,
)
prove("C ends below 0.1", faults.range("nothing wrong", "held out 300")[1] < 0.1)
prove("E is below 0.1 within 40 steps", faults.range("targets not shifted", "held out 40")[1] < 0.1)
prove("F stays above 3", faults.range("rate too low", "held out 300")[0] > 3)
prove("G is shown below 0.4 at step 40, and above 1.7 on real tokens", shown[1] < 0.4 and true[0] > 1.7)
good, high = (faults.range(arm, "held out 300") for arm in ("nothing wrong", "rate too high"))
prove(
    "B is ahead after 10 steps",
    faults.range("rate too high", "held out 10")[1] < faults.range("nothing wrong", "held out 10")[0],
)
prove("and behind in the end", high[0] > good[1] + 0.2)


def rises(arm, start):
    """For each seed, whether the held-out loss is ever higher than at step `start` afterwards."""
    later = [faults.values(arm, f"held out {step}") for step in seen if step > start]
    return [max(row) > first for first, *row in zip(faults.values(arm, f"held out {start}"), *later, strict=True)]


prove("B rises again after step 20, with every seed", all(rises("rate too high", 20)))
prove("H never does, from any point on", not any(any(rises("no warm-up", step)) for step in seen[:-1]))
first = {arm: faults.range(arm, "held out 1") for arm in faults.arms}
sound = ("nothing wrong", "pairs mixed up", "40 pairs", "rate too low", "warm-up put back")
prove(
    "sound starts lie above ln 59, within one nat",
    all(first[arm][0] > math.log(59) and first[arm][1] - math.log(59) < 1 for arm in sound),
)
low = ("targets not shifted", "padding counted", "no warm-up")
prove("E, G and H are below it after one update", all(first[arm][1] < math.log(59) for arm in low))
prove("H lies below its pale curves then", first["no warm-up"][1] < first["warm-up put back"][0])
ten = faults.range("padding counted", "held out 10")[1], faults.range("nothing wrong", "held out 10")[0]
prove("G is shown below half of C's loss at step 10", ten[0] < ten[1] / 2)
late = [faults.range(arm, "held out 160") for arm in ("padding counted", "nothing wrong")]
prove("G comes near zero about when C does: both between 0.02 and 0.07 at step 160",
      min(low for low, _ in late) > 0.015 and max(high for _, high in late) < 0.07)  # fmt: skip
put_back = faults.range("warm-up put back", "held out 300")
prove("H ends above what warm-up reaches", faults.range("no warm-up", "held out 300")[0] > 3 * put_back[1])
ends = faults.range("no warm-up", "held out 300")
prove("H ends at 0.51 to 0.92", [f"{loss:.2f}" for loss in ends] == ["0.51", "0.92"])
prove("with warm-up it ends below 0.01", put_back[1] < 0.01)
last = faults.values("40 pairs", f"held out {seen[-1]}")
lowest = [min(row) for row in zip(*(faults.values("40 pairs", f"held out {step}") for step in seen), strict=True)]
prove("D turns up again, with every seed", all(a > b + 0.05 for a, b in zip(last, lowest, strict=True)))

# %% id="predict-curves"
ex.predict("which_curve", "")

# %% [markdown] id="gallery-says"
# <details><summary>The answers, and how one can tell</summary>
#
# | panel | what was wrong | how one can tell |
# |---|---|---|
# | A | pairs mixed up | falls almost as C does, then stops at a loss in the middle, smooth and flat |
# | B | rate too high | far ahead of C after 10 steps; **rises again** after step 20 |
# | C | nothing | begins near ln 59, falls smoothly to zero, both curves together |
# | D | only 40 pairs | the curves part: training goes to zero, held out turns up |
# | E | targets not shifted | first point far below ln 59, and nearly at zero by step 40: too good |
# | F | rate too low | falls steadily, but hardly |
# | G | padding counted | first point below ln 59, far ahead of C for a while, but near zero only about when C is |
# | H | no warm-up | its first point is already below ln 59; then it **only falls**, far more slowly than the pale curves |
#
# **B and H** both get stuck. B turns up, with most seeds while its warm-up still goes on to a rate that is too high. H
# has its full rate in the first step. Its first point already lies well below that of the pale curves, and the harm is
# done. From then on it falls without jumps, but slowly, to between 0.51 and 0.92; with warm-up it ends below 0.01. Its
# first point is no leak: the dots stand *after* one update, and the test of section 5.2 is for the loss *before* it. H
# is a post-norm model with three layers and a rate of 0.01; the others are pre-norm, with two layers, a rate of 0.003
# and 30 steps of warm-up.
#
# **A**, the mixed-up pairs, is the most instructive. The model has learned all that can be learned *without* the
# source: what an English number looks like. **G**, the counted padding, is dangerous because it looks good: most
# positions are padding, which is easy, so the mean is small. At step 40 the program shows a loss of 0.32 to 0.39; on
# real tokens it is 1.79 to 2.25. **E** copies what it reads: its loss is 0, and with every seed it translates none of
# the 200 held-out numbers. **D** has a name, **over-fitting**. The model learns its 40 examples by heart, and gets
# worse on new ones; the training loss alone would never tell you. More data helps. If there is no more, stop where
# the held-out loss is lowest, or try dropout, weight decay, or a smaller model. **B** was ahead of C after ten steps,
# so compare rates by what comes out at the *end*.
#
# </details>
#
# <details><summary>To look up when you need it: what you see, and what to look at first</summary>
#
# | what you see | what to look at |
# |---|---|
# | the loss **stays at ln V** | The gradient's norm. If it is 0, the loss does not depend on the weights. If it is not, either the weights do not move, because the optimizer was given another model's weights or the rate is far too low; or the rate is too high; or there is nothing to learn, as in noise. |
# | the loss is **NaN at step 300** | The norms of the steps before, and that batch: an overflow, PyTorch's softmax over a row with everything masked (ours gives zeros), a part without a real token. Clipping does not help, because the norm is NaN, too. Go back to the last checkpoint, and lower the rate. |
# | it **falls, then lies flat** in the middle | The inputs. Exchange the sources: if the loss stays the same, they do not arrive, or do not belong to their targets. |
# | it is **too good** at once | A leak: the labels, the shift, the mask. |
# | it falls, then **rises again** | The rate, then the warm-up. |
# | training falls, **held out rises** | Over-fitting: panel D. |
# | the loss is fine, and **what it writes is wrong** | What the loss counts: padding? Then the start sign, evaluation mode, the cache. |
#
# </details>

# %% [markdown] id="sweep-says"
# ### 13.3 Diagnose this run
#
# A colleague has trained such a small translator in 200 steps, and sends you the log, the curve and the code. Nothing
# has crashed, but it does not translate.

# %% id="broken-log" tags=["hide-input", "atol:0.2", "picture:20"]
# The run: a small translator of numbers below 1000
parts = [(number_parts(n, "de"), number_parts(n, "en")) for n in range(1000)]
ids = {part: i + 3 for i, part in enumerate(sorted({part for pair in parts for text in pair for part in text}))}
kept = random.Random(0).sample(range(1000), 800)
small = [{"source": [*map(ids.get, de), 2], "target": [1, *map(ids.get, en), 2]} for de, en in (parts[n] for n in kept)]
plan = TrainingConfig(steps=200, learning_rate=0.005, warmup=20)


def log_of(train_run):
    torch.manual_seed(0)
    model = Transformer(
        TransformerConfig(**shape | {"d_model": 32, "d_ff": 64, "vocab_size": len(ids) + 3}, dropout=0.0)
    )
    adam = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98))  # each step sets the rate
    return train_run(model, TokenBatches(small, max_tokens=300, seed=0), adam, plan)


broken = log_of(ex.broken_run.spec.given)
for step in (1, 25, 50, 75, 100, 125, 150, 175, 200):
    loss, norm = broken[step - 1]
    print(f"step {step:3}   rate {plan.rate(step):.4f}   loss {loss:.2f}   norm {norm:.2f}")
late = sum(loss for loss, _ in broken[-50:]) / 50
prove("it stays above 1", late > 1)
show(
    plots.losses_and_norms({"broken": broken}, len(ids) + 3),
    alt="Left: the loss per token begins near ln 59, falls within fifty steps and then mostly stays between 1 and 2, with peaks. "
    "Right: the norm of the gradient, which lies above 1, the limit of clipping, nearly to the end.",
    caption="What is wrong here? There are two causes. Look at both panels. The high peaks are harmless: they are the batch "
    "with the shortest numbers, whose words are rare in the others.",
)

# %% [markdown] id="broken-says"
# Here, where the loss can reach zero, the norm of a sound run falls with it.

# %% exercise="broken_run"

# %% id="healed"
mended = log_of(train_run)  # the version that you mended

# %% id="healed-curve" tags=["hide-input", "picture:20"]
# Figure: the broken run and the mended one
show(
    plots.losses_and_norms({"broken": broken, "mended": mended}, len(ids) + 3),
    alt="Two runs, both with peaks. Left: the broken one stays above 1, the mended one sinks far below. Right: the norm of the "
    "mended one falls far below the limit of clipping, that of the broken one stays at it.",
    caption="Once it is mended, the loss sinks far below 1, and the norm with it. The batch of the shortest numbers still "
    "stands out.",
)
feed = TokenBatches(small, max_tokens=300, seed=0).forever()  # the batches of both runs, once more
widths = [next(feed)["target"].size(1) for _ in mended]
for log in (broken, mended):
    peaks = sorted(range(60, len(log)), key=lambda i: -log[i][0])[:5]
    prove(
        "the five highest peaks after step 60 are the batch of the shortest",
        {widths[i] for i in peaks} == {min(widths)},
    )
prove("the mended run ends far below the broken one", sum(loss for loss, _ in mended[-50:]) / 50 < late / 3)

# %% [markdown] id="own-text"
# <details><summary>What was wrong, and how one could have known</summary>
#
# **The mask was inverted**: the model read the padding of the source and none of its tokens. In a row without padding
# nothing was left to read. PyTorch's softmax gives NaN there; our attention gives zeros, so nothing crashed. The model
# learned what English numbers look like, and nothing of the German ones: the flat line of panel A, where the source was
# the wrong one. Exchange the sources, and the loss stays the same.
#
# **The gradients were never cleared**, so each step added its own to the clipped sum of all before. After clipping that
# sum has the norm 1, and with the next gradient on top it lies near 1 again, to the very end. In a sound run
# of this kind the norm falls with the loss.
#
# </details>
#
# ## 14 What you have
#
# You can now
#
# - cut words into pieces, and read a loss and a perplexity;
# - say what momentum, Adam and AdamW fix, and write the step of AdamW;
# - choose a warm-up, and say what mixed precision keeps in 32 bits;
# - write a step and a loop that train a translator, stop, and resume bit for bit;
# - find out why a curve does not fall as it should.
#
# <details><summary>The formulas on one card</summary>
#
# | what | formula |
# |---|---|
# | BPE | join the most frequent pair of neighbours, again and again; cut a new word by the same merges in the same order |
# | loss per token | sum of − ln *p*(right token) over real targets, divided by their number |
# | perplexity | e<sup>loss</sup>; V for a model that knows nothing |
# | SGD, momentum | *w* − η*g*; *v* ← β*v* + *g*, *w* − η*v* |
# | Adam | *w* − η · mean gradient / usual size, both corrected for their start at 0 |
# | AdamW | Adam, and separately *w* − ηλ*w* |
# | Noam | d<sup>−0.5</sup> · min(*t*<sup>−0.5</sup>, *t* · warm-up<sup>−1.5</sup>) |
# | clipping | *g* · min(1, limit / norm of all gradients together) |
# | checkpoint | weights, optimizer, step, position in the data, random state; settings and tokenizer stay with the program |
#
# </details>
#
# ### Check yourself
#
# <details><summary>1. Why is the mean of the batch means not the loss per token?</summary>
#
# Batches hold different numbers of real tokens, and in a mean of means the tokens of a short batch weigh more. Add sums
# and counts, and divide once (5.1, 10.1).
#
# </details>
#
# <details><summary>2. A model of 32,000 ids begins with a loss of 3. Is that good?</summary>
#
# It is suspicious: ln 32,000 is 10.4. Perhaps padding is counted, or the targets are not shifted, which shows in the
# first loss where the last map shares the decoder's table. A wrong mask shows only later (5.2, 13.2).
#
# </details>
#
# <details><summary>3. What does AdamW do that Adam with decay in the gradient does not?</summary>
#
# It lets every weight fade by the same share, because the decay is not divided by the usual size of its gradient (7.4).
#
# </details>
#
# <details><summary>4. Why use warm-up?</summary>
#
# To be able to use a higher peak. Adam's first step is the boldest, because nearly every weight moves by the full rate. Small
# steps first lead the model to a point where large ones are safe. Why exactly is still studied (8).
#
# </details>
#
# <details><summary>5. What must be saved besides the weights?</summary>
#
# The optimizer's averages, the step, the position in the data, the random state. The settings and the
# tokenizer stay with the program (11).
#
# </details>
#
# <details><summary>6. The loss falls, then lies flat far above zero. What do you check?</summary>
#
# Whether each input arrives and belongs to its target: exchange the sources, and see whether the loss changes. Then the
# rate, up and down (13.1, 13.3).
#
# </details>
#
# ### What comes next
#
# [Chapter 7](07_variants.ipynb) turns the same blocks into BERT, GPT-2, T5, Llama and ViT. Or stay for a lab:
# [optimizers](labs/06_optimizers.ipynb), [one update](labs/06_one_update.ipynb), [soft labels](labs/06_labels.ipynb),
# [bugs](labs/06_bugs.ipynb), or [what comes after this training](labs/06_after_training.ipynb).
#
# <details><summary>Sources</summary>
#
# - Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762: sections 5.1 to 5.4, 6.1, table 3.
# - Sennrich, Haddow, Birch 2016, *Neural Machine Translation of Rare Words with Subword Units*, arXiv:1508.07909.
# - Kingma, Ba 2015 (Adam), arXiv:1412.6980. Loshchilov, Hutter 2019 (AdamW), arXiv:1711.05101; 2017 (cosine),
#   arXiv:1608.03983.
# - Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*, arXiv:2002.04745. Kalra, Barkeshli
#   2024, *Why Warmup the Learning Rate?*, arXiv:2406.09405. Hu et al. 2024 (MiniCPM), arXiv:2404.06395. Touvron et al.
#   2023 (Llama), arXiv:2302.13971, section 2.3.
# - Micikevicius et al. 2018, *Mixed Precision Training*, arXiv:1710.03740. Pascanu, Mikolov, Bengio 2013,
#   arXiv:1211.5063: clipping.
# - Elliott et al. 2016 (Multi30K), arXiv:1605.00459.
#
# </details>
