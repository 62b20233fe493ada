# %% [markdown] id="title"
# # Lab: what happens when the padding mask is forgotten?
#
# **The question: does padding that nobody hides change what a model answers, and how much?** Texts have different
# lengths, and a batch is a rectangle. The short texts are filled up with a padding sign. A mask says that nobody may
# read it. What if the mask is missing, or has the wrong shape? Often no error is raised.
#
# The lab stands on [chapter 4](../04_encoder.ipynb). We use a classifier like the one there, trained here in a few
# seconds: it reads a number written in words and names the language. No exercise, about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math

import torch
import torch.nn.functional as F
from num2words import num2words
from torch import nn

from course_lib import masks, testing
from course_lib.attention import record_weights
from course_lib.encoder import EncoderLayer, TransformerEncoder
from course_lib.testing import complaint, prove
from course_lib.transformer import Embedding, TransformerConfig
from coursework import exercises as ex
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_04_padding as plots
from coursework.records import claim

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="average-text"
# ## 1 The average that padding takes part in
#
# Attention is a weighted average of values. Take the simplest case, an even one, and a text of four words. Each word
# has the weight 1/4. Now four pads stand behind it, because another text in the batch has eight words. If nothing
# hides them, each of the eight positions has the weight 1/8, and the words together hold only a half. The other half of
# the average is made of vectors that mean nothing.

# %% id="average-drawn" tags=["hide-input"]
# Drawing: an even average with and without the mask
drawings.diluted_average().show()
even = torch.zeros(8)
hidden = even.masked_fill(torch.arange(8) >= 4, -math.inf).softmax(-1)
prove(
    "by hand: 1/4 for each of four words with the mask, 1/8 without", (hidden[0], even.softmax(-1)[0]) == (1 / 4, 1 / 8)
)

# %% [markdown] id="average-says"
# With a mask the forbidden scores become minus infinity before the softmax, so their weights are exactly zero and the
# average does not notice them. The answer to a text must not depend on which other texts happen to stand in its batch.
# That sentence is a law, and a program can test it.
#
# ## 2 A law, and the right shape
#
# Attention has scores of shape (B, H, T, S): for each sentence, each head and each query, one score for each key. The
# mask of the padding knows only which *keys* are real, for each *sentence*. It must say the same to all heads and
# all queries. So its shape is (B, 1, 1, S), and it is repeated along the two ones when it meets the scores.
#
# Here is an encoder of two small layers, and the function that the law will test. It is given tokens and a table `real`
# of shape (B, T) that is True where a real token stands.

# %% id="law-encoder"
config = TransformerConfig(
    d_model=16, n_heads=2, n_encoder_layers=2, vocab_size=11, dropout=0.0
)  # fmt: skip
embedding, stack = Embedding(config, 11), TransformerEncoder(config)


def right(tokens, real):
    return stack(embedding(tokens), mask=real[:, None, None])  # (B, T) -> (B, 1, 1, T)


def forgotten(tokens, real):
    return stack(embedding(tokens))


# %% [markdown] id="tutorial-text"
# Many tutorials say that a padding mask has the shape (batch, seq), and hand it over like this. With four sentences
# of fifty tokens it does not fit, and there is an error. With as many sentences as tokens it does fit. What does the
# mask mean then?


# %% id="law-tutorial"
def as_in_tutorials(tokens, real):
    B, T = tokens.shape
    mask = real if B == T else real[:, None, None]  # where it raises, somebody mends it
    return stack(embedding(tokens), mask=mask)


# %% [markdown] id="law-question"
# The law `assert_padding_invariant` changes what stands in the padding, and compares each text with itself alone. It
# tries a batch with B = T, and one with B ≠ T.
#
# **Predict.** Which of the three functions obey it?

# %% id="law-guess"
ex.predict("lab_padding_law", "")

# %% id="padding-law"
tokens = torch.randint(1, 11, (3, 7))
law, verdicts = testing.assert_padding_invariant, {}
for function in (right, forgotten, as_in_tutorials):
    found = complaint(law, function, tokens, module=stack, vocab_size=11)
    verdicts[function.__name__] = found
    print(f"{function.__name__}: {found or 'obeys'}")

# %% id="padding-law-proof" tags=["hide-input"]
# The verdicts, and that the function of the tutorials is wrong only where B = T
prove("with a mask (B, 1, 1, S) padding never reaches a real token, for B = T and B ≠ T", not verdicts["right"])
prove("a forgotten mask is caught by the law", verdicts["forgotten"])
prove("a (B, S) mask taken for (T, S) is caught by the law at B = T", verdicts["as_in_tutorials"])
for B, fails in ((4, False), (7, True)):
    five = torch.randint(1, 11, (B, 7), generator=torch.Generator().manual_seed(1))
    real = torch.arange(7) < torch.tensor([3 + b % 4 for b in range(B)])[:, None]
    off = (as_in_tutorials(five, real) - right(five, real))[real].abs().max().item()
    prove(f"{B} sentences of 7 tokens: wrong {fails}", (off > 1e-3) == fails)

# %% [markdown] id="shape-text"
# If a mask has two axes, they are lined up with the last two axes of the scores, queries and keys. So row 2 of the
# mask, which was meant for sentence 2, is given to *query* 2 of *every* sentence. In the picture all seven sentences
# have seven positions, and the sixth one has only three words:

# %% id="shape-figure" tags=["hide-input"]
# Figure: what sentence 6 should see, and what it sees
lengths = torch.tensor([4, 7, 2, 5, 6, 3, 1])
real = torch.arange(7) < lengths[:, None]
seen = {"meant: (B, 1, 1, S)": real[5].expand(7, 7), "done: (B, S)": real}
show(
    plots.what_each_query_sees(seen),
    alt="Two maps of seven queries by seven keys for sentence 6. In the left one every query sees the keys 1 to 3. In the "
    "right one query 1 sees four keys, query 2 seven, query 3 two, query 4 five, query 5 six, query 6 three, query 7 one.",
    caption="Sentence 6 has three words. Left: every query sees these three. Right: the lengths of the seven sentences "
    "became the number of keys that each query may see.",
)

# %% [markdown] id="mask-shapes-text"
# How much weight lies on padding then? We take a layer with even weights, batches of 4 × 50 and of 5 × 5, and the mask
# of the tutorials.


# %% id="mask-shapes"
def tutorial_weights(scores, mask):
    """A mask with two axes becomes (1, 1, ., .), as in a known tutorial."""
    return scores.masked_fill(~mask[None, None], -math.inf).softmax(-1)


for B, T in ((4, 50), (5, 5)):
    real = torch.arange(T) < torch.tensor([T - b for b in range(B)])[:, None]  # (B, T)
    try:
        weights = tutorial_weights(torch.zeros(B, 2, T, T), real)
        wrong = (weights * ~real[:, None, None]).sum(-1).nan_to_num().mean()
        print(f"{B} × {T}: {wrong:.1%} of the weight lies on padding")
    except RuntimeError:
        print(f"{B} × {T}: an error")

# %% id="refuses" tags=["hide-input"]
# What the course's own layer says to a mask of two axes
layer = EncoderLayer(TransformerConfig(d_model=8, n_heads=2))
try:
    layer(torch.randn(4, 50, 8), mask=torch.ones(4, 50, dtype=torch.bool))
    refused = False
except ValueError:
    refused = True
prove("the course's layer refuses a (4, 50) mask for four sentences of 50 tokens", refused)
silent = layer(torch.randn(5, 5, 8), mask=torch.ones(5, 5, dtype=torch.bool))
prove("and cannot know better for five sentences of five", silent.shape == (5, 5, 8))

# %% [markdown] id="padding-says"
# The course's own layer refuses a mask of shape (4, 50) too, and it cannot know better at (5, 5): that is a proper
# mask of queries against keys. Only a test with B = T finds it. You may read that “a padding mask has the shape
# (batch, seq)”. This is true of PyTorch's argument `key_padding_mask`, which adds the other axes itself; there True
# means “hidden”. It is wrong for any function that takes a mask of scores.
#
# You may also read that “an encoder uses no mask”. It uses no *causal* mask. But it needs a padding mask as soon as
# two texts of a batch differ in length.
#
# ## 3 A trained model without its mask
#
# Now with a trained model. The texts: 300 numbers from 0 to 9,999, written in ten languages that use the Latin
# alphabet; 60 other numbers are held out. Each character is a token. In front stands a token `[CLS]`, as in chapter 4;
# the answer is read there.

# %% id="languages" tags=["hide-input"]
# Data: numbers in ten languages as token ids, 0 for padding
LANGUAGES = ["da", "de", "en", "es", "fi", "fr", "it", "no", "pl", "pt"]
numbers = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))[:360].tolist()
written = [[num2words(number, lang=language) for language in LANGUAGES] for number in numbers]
train_texts = [text for row in written[:300] for text in row]
test_texts = [text for row in written[300:] for text in row]
PAD, CLS, MASK, UNKNOWN = range(4)
ids = {character: 4 + n for n, character in enumerate(sorted(set("".join(train_texts))))}


def encode(texts):
    """Texts -> token ids (B, T): [CLS], the characters, then padding."""
    rows = [torch.tensor([CLS] + [ids.get(character, UNKNOWN) for character in text]) for text in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


train_tokens, test_tokens = encode(train_texts), encode(test_texts)
train_labels = torch.arange(10).repeat(300)
test_labels = torch.arange(10).repeat(60)
test_lengths = (test_tokens != PAD).sum(dim=1)
for language in ("de", "es", "no"):
    print(f"{language}  {test_texts[LANGUAGES.index(language)]}")

# %% id="lengths-figure" tags=["hide-input"]
# Figure: how long the texts are
show(
    common.histogram(range(0, 76, 3), test_lengths, xlabel="tokens in a text", ylabel="texts"),
    alt="A histogram of the lengths of the held-out texts, from 10 to nearly 60 tokens, most of them between 25 and 50.",
    caption="Texts of one batch differ in length, so most of them are padded.",
)

# %% [markdown] id="classifier-text"
# The classifier has two layers of width 48 and a linear map from the vector of `[CLS]` to ten numbers, one for each
# language. In training it is given the right mask. The argument `mask` lets us forget it later.


# %% id="classifier"
class Classifier(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = Embedding(config, config.vocab_size)
        self.encoder = TransformerEncoder(config)
        self.answer = nn.Linear(config.d_model, 10)

    def forward(self, tokens, mask=None):
        x = self.encoder(self.embedding(tokens), mask=mask)  # (B, T, D)
        return self.answer(x[:, 0])  # at [CLS]: (B, 10)


# %% id="classifier-trained" tags=["hide-input", "atol:0.03"]
# Training: AdamW, 200 steps, texts of about the same length in a batch
def fresh_classifier(seed):
    torch.manual_seed(seed)
    sizes = {"d_model": 48, "n_heads": 4, "n_encoder_layers": 2, "vocab_size": 4 + len(ids), "max_length": 128}
    return Classifier(TransformerConfig(**sizes, positions="learned", norm_place="pre", activation="gelu", dropout=0.0))


def train(seed=0, steps=200):
    model = fresh_classifier(seed)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    lengths, generator = (train_tokens != PAD).sum(dim=1), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        pool = torch.randint(len(train_tokens), (192,), generator=generator)
        pool = pool[lengths[pool].argsort()]
        start = 48 * int(torch.randint(4, (1,), generator=generator))
        rows = pool[start : start + 48]
        tokens = train_tokens[rows, : lengths[rows].max()]
        mask = masks.padding_mask(tokens, PAD)
        loss = F.cross_entropy(model(tokens, mask), train_labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval().requires_grad_(False)


model = train()
accuracy = (model(test_tokens, masks.padding_mask(test_tokens, PAD)).argmax(-1) == test_labels).float().mean().item()
print(f"held-out texts, with the mask: {accuracy:.3f} right")
prove("the classifier names the language of held-out numbers: over 90 %", accuracy > 0.9)

# %% [markdown] id="no-mask-question"
# Now take each held-out text of 20 to 50 tokens alone, so that it needs no padding, and note the answer. Then put 1, 2,
# 4, 8, 16 or 32 pads behind it, and ask again: once with the mask, once without.
#
# **Predict.** With sixteen pads and no mask, what share of the answers changes? And with the mask?

# %% id="no-mask-guess"
ex.predict("lab_padding_changed_answers", "")


# %% id="no-mask-code"
def changed(model, extra, use_mask):
    """Share of the texts whose answer changes when pads are put behind them."""
    different = []
    for length in range(20, 51):  # texts of one length at a time need no padding
        alone = test_tokens[test_lengths == length, :length]
        more = F.pad(alone, (0, extra))  # PAD is 0
        mask = masks.padding_mask(more, PAD) if use_mask else None
        different.append(model(more, mask).argmax(-1) != model(alone).argmax(-1))
    return torch.cat(different).float().mean().item()


# %% id="no-mask" tags=["hide-input", "picture:60", "atol:0.12"]
# Figure: share of answers that change, by the number of pads
pads = (1, 2, 4, 8, 16, 32)
with_mask = [changed(model, extra, use_mask=True) for extra in pads]
without = [changed(model, extra, use_mask=False) for extra in pads]
lines = {"without the mask": without, "with the mask": with_mask}
axes = {"xticks": pads, "xticklabels": pads, "xlabel": "pads behind the text", "ylabel": "answers that change"}
show(
    common.curves(pads, lines, size=(6.4, 3.0), colours=(palette.key, palette.query), xscale="log", **axes),
    alt="Share of answers that change against the number of pads. With the mask the line is zero. Without it the share grows "
    "with the number of pads, from none at one pad to more than half at 32.",
    caption="One trained model. The more padding, the more answers change; with the mask none does.",
)
for extra, yes, no in zip(pads, with_mask, without, strict=True):
    print(f"{extra:2} pads: {yes:.2f} with the mask, {no:.2f} without")
prove("with the mask padding changes no answer", max(with_mask) < 0.001)
prove("without it 32 pads change answers", without[-1] > 0.02)

# %% [markdown] id="no-mask-says"
# Not one character of these texts has changed, and still their answers have. In use, the pads come from the neighbours
# in the batch: the same text may get one answer on Monday beside short texts, and another on Tuesday beside a long one.
# Where do the pads enter? Here is what `[CLS]` reads in the last layer, for one text with eight pads, with and without
# the mask:

# %% id="cls-map" tags=["hide-input", "picture:60"]
# Figure: the weights of [CLS] in the last layer, mean of the heads
text = next(text for text in test_texts if 22 <= len(text) <= 26)
tokens = F.pad(encode([text]), (0, 8))
labels = ["[CLS]", *text.replace(" ", "␣"), *["pad"] * 8]
weights = {}
for name, mask in (("with the mask", masks.padding_mask(tokens, PAD)), ("without", None)):
    with record_weights(model) as maps:
        model(tokens, mask)
    *_, last = maps.values()  # (B, H, T, T)
    weights[name] = last[0, :, 0].mean(dim=0)  # (T,)
show(
    plots.weight_on_pads(weights, labels),
    alt="Two rows of bars, one bar for each token of a text and eight pads. With the mask the bars of the pads are zero. "
    "Without it they take a part of the weight.",
    caption="Weights of [CLS] in the last layer, mean of four heads. Grey: the pads.",
)
prove("with the mask the pads have no weight", weights["with the mask"][-8:].sum() == 0)

# %% [markdown] id="trained-without-text"
# This was one model, and how much it suffers depends on its seed, as we shall see in a moment. That it suffers at all
# has a simple reason. In training it never met a pad that was not hidden. The vectors of pads are new to it.
#
# ## 4 Is it enough to train without a mask as well?
#
# One could say: then train without a mask too. Texts with pads behind them occur in most batches, so the model has a
# reason to learn to ignore them. Here are both kinds of carelessness beside the right way, five seeds each.
#
# **Predict.** A classifier that *never* had a mask, neither in training nor in use: how many of its answers change when
# 32 pads are put behind a text? More than with the one that had a mask and lost it, or fewer?

# %% id="trained-without-guess"
ex.predict("lab_padding_never_masked", "")

# %% id="trained-without" tags=["hide-input"]
# Figure: share of changed answers, three kinds of model, five seeds
record = claim("forgotten_mask")
pads = (4, 16, 32)
changed_by = {arm: [record.values(arm, f"answers changed by {n} pads") for n in pads] for arm in record.arms}
show(
    common.dots([f"{n} pads" for n in pads], changed_by, size=(6.8, 2.9), apart=0.22, ylabel="answers that change"),
    alt="Dots for five seeds of three kinds of model at 4, 16 and 32 pads. With the mask in training and in use all lie at "
    "zero. With the mask in training only they rise and scatter, at 32 pads from 0.04 to 0.57. Never a mask: all at most "
    "0.0125.",
    caption=f"A dot for each seed. The mask that was there in training and is forgotten in use does the harm. "
    f"({record.command})",
)
for arm in record.arms:
    low, high = record.range(arm, "answers changed by 32 pads")
    right_low, right_high = record.range(arm, "accuracy, texts alone")
    print(f"{arm:>28}: changed {low:.3f} to {high:.3f}; texts alone {right_low:.3f} to {right_high:.3f} right")
lost, never = (record.range(arm, "answers changed by 32 pads") for arm in list(record.arms)[1:])
prove("in each of five seeds, losing the mask changes more answers than never having had one", lost[0] > never[1])

# %% [markdown] id="trained-without-says"
# The model that never had a mask is nearly safe on this task: it learned to ignore pads. The harm is done where
# training and use *differ*. That is how the bug usually comes about: the training program has the mask, and the
# program for use, which somebody wrote anew, has none.
#
# Nearly safe is not safe: in each of the five seeds some answers still change. With the mask there is nothing to
# learn; it is exact for every number of pads, by construction. These are numbers from one task, with two layers and
# 200 steps of training.
#
# ## 5 Hiding on purpose: why not simply write [MASK]?
#
# The same tool answers another question: which characters did the answer depend on? Hide some of them and look at the
# accuracy. There are two ways to hide a character. You can close it in the mask, as if it were padding. Or you can
# put another token there instead, for example `[MASK]`.
#
# The second way has a trap. Our table of embeddings has a row for `[MASK]`, but no training text contained it. How much
# did training change this row?

# %% id="mask-never-trained" tags=["hide-input", "picture:60", "atol:0.05"]
# Figure: how far each row of the table moved in training
before, after = (one.embedding.state_dict() for one in (fresh_classifier(0), model))
name = next(key for key, value in before.items() if value.shape == (4 + len(ids), 48))
moved_rows = (after[name] - before[name]).norm(dim=-1)
labels = ["PAD", "CLS", "MASK", "UNKN.", *(character.replace(" ", "␣") for character in ids)]
show(
    plots.rows_moved(moved_rows, labels, labels[MASK]),
    alt="A bar for each row of the table of embeddings. The rows of characters and of CLS have moved. Those of PAD, MASK and "
    "UNKNOWN have hardly moved.",
    caption="How far training moved each row. The rows of tokens that never occur, [MASK] among them, are nearly as chance "
    "drew them.",
)
characters_moved = moved_rows[4:].median().item()
print(f"[MASK] moved by {moved_rows[MASK]:.2f}, the median character by {characters_moved:.2f}")
prove(
    "training moved [MASK] by less than a third of what it moved a character", moved_rows[MASK] < characters_moved / 3
)

# %% [markdown] id="mask-token-says"
# It stayed where chance put it. So its vector is a random one, and what the model makes of it says nothing about the
# character that is missing. A comparison by `[MASK]` would be unfair for a model that was never trained with it.
# Models like BERT were trained with `[MASK]`, and there the second way is possible.
#
# So we close characters in the mask: the four that `[CLS]` reads most, or any four at random. Five encoders, from the
# record:

# %% id="read-most" tags=["hide-input"]
# Record: hide the four characters read most, or four at random, with the mask
record = claim("read_most")
prove(
    "hiding what [CLS] reads most costs more than hiding at random, in each of five",
    record.range("the four read most", "accuracy")[1] < record.range("four at random", "accuracy")[0],
)
record

# %% [markdown] id="pooling-text"
# ## 6 The other door: the average at the end
#
# Padding has one more way in. Instead of the vector of `[CLS]`, many models take the *mean* over all tokens as the
# vector of a sentence. The mask of the layers does not help here: the pads have vectors of their own at the end, and
# a plain mean counts them. By hand: two words with the values 2 and 4 have the mean 3. With two pads of value 0
# behind them a plain mean gives 1.5.

# %% id="pooling-law"
values, real = torch.tensor([2.0, 4.0, 0.0, 0.0]), torch.tensor([1, 1, 0, 0])
of_words = (values * real).sum() / real.sum()
print("plain:", values.mean().item(), " of the words:", of_words.item())


def plain_mean(tokens, real):
    return right(tokens, real).mean(dim=1)  # (B, T, D) -> (B, D)


tokens = torch.randint(1, 11, (3, 7))
found = complaint(law, plain_mean, tokens, module=stack, vocab_size=11, per_token=False)
print(found)
prove("a plain mean lets padding in, although the layers are masked", found)


# %% id="pooling-right" tags=["hide-input"]
# The mean over real tokens obeys the law
def mean_of_words(tokens, real):
    x, share = right(tokens, real), real[..., None].float()
    return (x * share).sum(dim=1) / share.sum(dim=1)


found = complaint(law, mean_of_words, tokens, module=stack, vocab_size=11, per_token=False)
prove("the sum over real tokens divided by their number obeys the law", not found)

# %% exercise="sentence_vector"


# %% [markdown] id="answer"
# ## The answer
#
# A padding mask that is there in training and forgotten in use changes answers, more of them the more padding there
# is, and raises no error. The mask of a batch has the shape (B, 1, 1, S). A mask (B, S) is an error where B ≠ T, and
# silently wrong where B = T, so a test must try both. The same care is needed wherever tokens are averaged: in
# attention, in the mean at the end, and, as [chapter 6](../06_training.ipynb) shows, in the loss.
#
# **Sources.** PyTorch's documentation of `nn.MultiheadAttention` (`key_padding_mask`, of shape (N, S), True = ignored);
# Devlin et al. 2019, *BERT*, arXiv:1810.04805 (`[CLS]`, `[MASK]`).
