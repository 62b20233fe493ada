# %% [markdown] id="title"
# # The whole Transformer on one page
#
# By the end of this page you will have trained two complete Transformers. One writes English sentences, the other
# translates German numbers. On one core of our processor, training took 12 and 4 seconds. You need Python, and you
# should know that a neural network is trained by making a loss smaller. The code of sections 4 and 5 is PyTorch.
#
# The page takes about {minutes} minutes, less if you skip the code. You needn't understand everything yet: nearly every
# part comes back in its own chapter.
#
# Shift and Enter run a cell, and *Run > Run All Cells* runs all. A grey line with three dots is folded code; a click
# opens it.

# %% id="setup" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.config import TransformerConfig
from course_lib.testing import prove
from course_lib.transformer import LanguageModel, Transformer
from coursework import exercises as ex
from coursework.corpora import number_parts
from coursework.corpora.sentences import (
    ENGLISH,
    REFLEXIVE_OF,
    REFLEXIVES,
    english_entropy,
    english_sentence,
    is_english,
)
from coursework.pictures import attention_map, drawings, show
from coursework.pictures.plots.common import curves

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="one-word"
# ## 1 One word
#
# Which word comes next: *herself*, *himself* or *themselves*?
#
# > The queen near the king paints …
#
# It is *herself*. To know that, you needed the word *queen*, five words back. The word *king* is nearer, but it was the
# wrong one to listen to.
#
# Choosing which earlier words matter now, and taking something from each, is what **attention** does. Suppose we have
# read as far as *paints* and want to guess what follows. *Paints* is at *position* 5, because positions count from 0.
# This position looks at all words so far, itself included, and gives each of them a *weight*. Then it collects a
# weighted average of what they offer. The weights are computed anew for every sentence. What a model learns is how to
# compute them.

# %% id="one-word-drawn" tags=["hide-input"]
# Drawing: what the last word takes from the others
drawings.sentence_arcs(
    "the queen near the king paints".split(),
    reader=5,
    weights=[0.02, 0.62, 0.07, 0.02, 0.14, 0.13],
    caption="What we would wish for: “paints” takes most from “queen”. The arrows run the way the information flows; the "
    "13% that “paints” takes from itself have none. These weights are made up; in section 4 a trained model computes some.",
).show()

# %% [markdown] id="query-key-value"
# How can a computer choose whom to listen to? For a model each word is a *vector*, a list of numbers. From it the model
# computes three others:
#
# - The **query** says what the word is looking for. The query of *paints* might say: the person who paints.
# - The **key** says what the word can be found by. The key of *queen* might say: a person, probably the subject.
# - The **value** is what the word hands over when it is chosen. The value of *queen* might say: female.
#
# To compare a query with a key, multiply them number by number and add up. The better they agree, the larger the sum.
# Longer lists would give larger sums, so we divide by the square root of their length; [chapter 1](01_attention.ipynb)
# says why the root. The result is the *score*.
#
# Then *softmax* turns the scores of one query into weights, which are positive and sum to one. Each score $s$ becomes
# $e^s$, divided by the sum of all of these.
#
# Here it is by hand for three words, with two made-up numbers in each vector. The first number of a key says how
# much its word looks like the subject. The query (3, 0) asks for that number and ignores the second. In a value, the
# first number means *female* and the second *male*.

# %% id="by-hand" tags=["hide-input"]
# Drawing: one query, three keys, three values, with all numbers
drawings.attention_by_hand(
    "paints",
    query=(3, 0),
    words=("queen", "near", "king"),
    keys=((1, 0.2), (0, 0), (0.3, 1)),
    values=((1, 0), (0, 0), (0, 1)),
).show()

# %% [markdown] id="whole"
# So (0.74, 0.17) has arrived at *paints*: mostly female, a little male. From there it is a small step to *herself*.
#
# ## 2 The whole thing in one picture
#
# In 2017, eight authors built a model for translation in which words exchange information by attention alone. They
# called it the *Transformer* (Vaswani et al. 2017, “Attention Is All You Need”). Read the picture from the bottom to
# the top. A German sentence goes in on the left, and the English words written so far on the right. At the top, each
# English position says which word should follow. The left half, the *encoder*, reads; the right half, the *decoder*,
# writes.

# %% id="whole-drawn" tags=["hide-input"]
# Drawing: the whole Transformer
drawings.whole_transformer().show()

# %% [markdown] id="parts"
# Part by part:
#
# - **Token vectors.** A *token* is a word or a piece of one, and a table holds a vector for each token. The rest of the
#   model works on these vectors and never sees a letter.
# - **Positions** ([chapter 3](03_positional_encoding.ipynb)). The comparison of queries and keys ignores where the
#   words are. Unless each vector is also told its position, *dog bites man* and *man bites dog* are the same three
#   words to the encoder.
# - **The residual stream**, the thick grey line. Each word has its own; the picture draws one for all. Each part reads
#   it and *adds* something to it, so a late part can still find what an early one wrote.
# - **Self-attention** ([chapters 1](01_attention.ipynb) [and 2](02_multi_head.ipynb)). Each word collects what
#   matters to it from the words of its own sentence. Several *heads* do this side by side, each with its own queries,
#   keys and values, so that a word can look for several things at once.
# - **Feed-forward** ([chapter 4](04_encoder.ipynb)). Attention only collects. A small network then works on what has
#   arrived, at each position.
# - **Masked** self-attention ([chapter 1](01_attention.ipynb)). In the decoder, a position may look at itself and at
#   earlier ones, never at later ones. Section 4 says why.
# - **Cross-attention** ([chapter 5](05_decoder.ipynb)). Queries come from the English words written so far, keys and
#   values from what comes out of the encoder.
# - **Linear map and softmax** ([chapter 5](05_decoder.ipynb)). At each position, the vector at the top becomes one
#   number for each word of the *vocabulary*, all the words that the model knows. The softmax turns these numbers into
#   probabilities. The model writes the likeliest word, or picks one at random, by its probability.
#
# The picture leaves out the *norm*. Every part adds to the stream, so the numbers in it tend to grow from layer to
# layer. In our models a norm shifts and scales each vector to mean 0 and spread 1 before a part reads it ([chapter
# 4](04_encoder.ipynb)).
#
# **N ×** means that the grey field, one *layer*, is stacked N times, in the original six. Each has its own
# *parameters*, the numbers that a model learns.
#
# Two famous relatives are halves of this picture. The right half, without the cross-attention, is a **GPT**: it
# continues texts. The left half is a **BERT**: it gives each word a vector that knows the whole sentence, and a linear
# map on top can sort texts by it. [Chapter 7](07_variants.ipynb) makes both.

# %% [markdown] id="recurrence"
# ## 3 What it replaced
#
# Before, most networks for translation were *recurrent*: they read one word after the other and handed one vector, the
# *state*, from each step to the next. The state can hold only so much, and what the first word said must survive
# every step in between. And step 100 cannot be computed before step 99, so a graphics card has to wait.
#
# <details><summary>What came in between</summary>
#
# Attention was invented to help these networks (Bahdanau et al. 2014). Others replaced recurrence with *convolutions*,
# which mix neighbouring words (Gehring et al. 2017). The Transformer left out both.
#
# </details>

# %% id="recurrence-drawn" tags=["hide-input"]
# Drawing: a chain of states beside attention
drawings.recurrent_and_attention("the queen near the king paints".split()).show()

# %% [markdown] id="recurrence-table"
# Here are the two for a text of *n* words, with *d* numbers in each vector. When writing, both produce one word at a
# time.
#
# | | recurrent network | Transformer |
# |---|---|---|
# | steps that wait for each other in training | one for each word | one for each layer |
# | path from one word to another | up to *n* steps | one layer |
# | kept while writing | one state of fixed size | something for every word so far |
# | the order of the words | comes for free | must be supplied |
#
# The Transformer buys short paths and parallel training, and pays by comparing every word with every word. In each
# layer that takes *n*² · *d* multiplications, few beside the linear maps if the text is short, but growing with the
# square of its length. On graphics cards that was a good trade.
#
# A good place to stop: you have seen the whole. Now you build it.
#
# ## 4 A complete GPT
#
# First the right half, a model that continues a text: every line of it, in PyTorch alone.

# %% id="device" tags=["hide-input"]
# Setup: a graphics card, if there is one
device = "cuda" if torch.cuda.is_available() else "cpu"
if torch.backends.mps.is_available():
    device = "mps"

# %% [markdown] id="attend-text"
# Attention is what you saw by hand, for all words at once. The letters in the shapes: **B** sentences, a *batch*, are
# worked on together, **T** positions look, **S** positions are looked at, and each of **H** heads has vectors of **E**
# numbers. The `mask` says who may look at whom.


# %% id="attend"
def attend(query, key, value, mask):
    """Queries (B, H, T, E); keys and values (B, H, S, E); where mask is True, look."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    scores = scores.masked_fill(~mask, -math.inf)  # where one may not look: weight 0
    weights = scores.softmax(dim=-1)  # (B, H, T, S), each row sums to one
    return weights @ value, weights


# %% [markdown] id="attend-by-hand-text"
# Give `attend` the numbers of section 1, and it returns the same (0.74, 0.17); the axes B and H may be absent. Then
# change the query to (0, 3), and run the cell again: whom does *paints* find?

# %% id="attend-by-hand"
query = torch.tensor([[3.0, 0.0]])  # of "paints": change it
key = torch.tensor([[1.0, 0.2], [0.0, 0.0], [0.3, 1.0]])  # of queen, near, king
value = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])  # (female, male)
found, weights = attend(query, key, value, mask=torch.ones(1, 3, dtype=torch.bool))
axes = attention_map(weights, queries=["paints"], keys=["queen", "near", "king"])
show(
    axes.figure,
    alt="One row of weights: what paints takes from queen, near and king.",
    caption=f"What “paints” collects: ({found[0, 0]:.2f}, {found[0, 1]:.2f}).",
)

# %% [markdown] id="mask-text"
# The query (0, 3) finds *king*, with a weight of 0.77. Now the mask. In training the model reads many words at once,
# and every position has to predict the word after it. But that word is right there, one position further on. A position
# that could look ahead would simply copy it, and learn nothing else. So each position may look at itself and at what
# came before:

# %% id="mask-drawn" tags=["hide-input"]
# Drawing: who may look at whom, and what each position has to predict
drawings.mask_and_targets("the queen paints herself .".split()).show()

# %% [markdown] id="mask-text-2"
# When the model writes, only the last position is asked what comes next, and nothing stands after it. Is the mask still
# needed? Yes: the last position reads what the earlier ones hold. Without the mask they would look at the words after
# them, and hold what they never held in training.
#
# As long as the text still fits into the model, appending a word changes nothing at earlier positions. So real programs
# compute the past once and keep it in a *cache* ([chapter 5](05_decoder.ipynb)).
#
# In code, this *causal* mask is a triangle of `True`. Fill it with `True`, and the same layers become an encoder.


# %% id="mask"
def causal_mask(T, device):
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()


print(causal_mask(4, "cpu").int())

# %% [markdown] id="attention-text"
# Where do queries, keys and values come from? Each is a linear map of the word's vector, which is `d_model` numbers
# wide, and the numbers in these maps are learned. The result is split into shorter pieces, one for each head. After
# attention the pieces are merged, and a fourth map joins what the heads have found. `context` is what the words look
# at, their own sentence or another.

# %% id="heads-drawn" tags=["hide-input"]
# Drawing: vectors cut into heads
drawings.split_into_heads().show()


# %% id="attention"
class Attention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        maps = [nn.Linear(d_model, d_model) for _ in range(4)]
        self.query, self.key, self.value, self.output = maps

    def forward(self, x, context, mask):  # x (B, T, d_model), context (B, S, d_model)
        q, k, v = self.query(x), self.key(context), self.value(context)
        found, weights = attend(self.cut(q), self.cut(k), self.cut(v), mask)
        self.weights = weights.detach()  # only for our pictures
        return self.output(found.transpose(1, 2).flatten(2))  # merge; fourth map

    def cut(self, t):  # split: (B, T, d_model) -> (B, T, H, E) -> (B, H, T, E)
        return t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)


# %% [markdown] id="block-text"
# Now one layer, also called a *block*. The residual stream is `x`.

# %% id="layer-drawn" tags=["hide-input"]
# Drawing: one layer and its stream
drawings.norm_place(
    "pre", caption="One layer of our GPT. The stream runs through; each part reads it through a norm and adds to it."
).show()


# %% id="block"
class Layer(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.attention = Attention(d_model, n_heads)
        self.attention_norm = nn.LayerNorm(d_model)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, 4 * d_model),
            nn.GELU(),  # keeps large numbers; very negative ones become nearly 0
            nn.Linear(4 * d_model, d_model),
        )
        self.feed_forward_norm = nn.LayerNorm(d_model)

    def forward(self, x, mask):
        y = self.attention_norm(x)
        x = x + self.attention(y, y, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


# %% [markdown] id="embedding-text"
# At the bottom of the picture, each word becomes a vector. A second table adds a vector for its position.


# %% id="embedding"
class Embedding(nn.Module):
    def __init__(self, vocab_size, max_length, d_model):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(max_length, d_model)

    def forward(self, tokens):  # numbers of words (B, T) -> vectors (B, T, d_model)
        where = torch.arange(tokens.size(1), device=tokens.device)
        assert len(where) <= len(self.positions.weight), "longer than max_length"
        return self.tokens(tokens) + self.positions(where)


# %% [markdown] id="stack-text"
# Layers are stacked, with a norm after the last. Whatever a layer needs besides `x`, such as its mask, is handed to
# each.


# %% id="stack"
class Stack(nn.Module):
    def __init__(self, layers, d_model):
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), nn.LayerNorm(d_model)

    def forward(self, x, *others):
        for layer in self.layers:
            x = layer(x, *others)
        return self.norm(x)


# %% [markdown] id="gpt-text"
# And this is the whole GPT: vectors, layers, and a linear map to one number for each word of the vocabulary. These are
# the *logits*; a softmax turns them into probabilities.


# %% id="gpt"
class GPT(nn.Module):
    def __init__(self, vocab_size, max_length, d_model=64, n_heads=4, n_layers=2):
        super().__init__()
        self.embedding = Embedding(vocab_size, max_length, d_model)
        layers = [Layer(d_model, n_heads) for _ in range(n_layers)]
        self.decoder = Stack(layers, d_model)
        self.to_words = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):  # (B, T) -> logits of the next word, (B, T, vocab_size)
        mask = causal_mask(tokens.size(1), tokens.device)
        return self.to_words(self.decoder(self.embedding(tokens), mask))


# %% [markdown] id="world-text"
# A small model needs a small world: a tiny English, 35 words and the full stop, in which somebody sees, hears or paints
# somebody. Often another person stands between the subject and its verb. The training text is 20,000 such sentences,
# each word replaced by a number.

# %% id="sentences"
draw = random.Random(0)
sentences = [english_sentence(draw) for _ in range(20_000)]
for words in sentences[1:4]:
    print(" ".join(words))

number = {word: i for i, word in enumerate(ENGLISH)}
text = torch.tensor([number[word] for words in sentences for word in words])
ends = (text == number["."]).nonzero()[:, 0]  # positions of the full stops
starts = ends[:-20]  # a piece begins at one; after the last there is too little text
print(len(ENGLISH), "tokens in the vocabulary,", len(text), "tokens of text")

# %% [markdown] id="train-text"
# How does it learn? Take pieces of text. All words of a piece but the last are read, all but the first are to be
# predicted. See which probability $p$ the model gave to the word that really follows. The loss of this word is
# $-\ln{p}$, the model's surprise: 0.69 if it gave the word one half, 4.61 if it gave it one in a hundred. The loss of a
# piece $t_0 \ldots t_n$ is the average:
#
# $$L = -\frac{1}{n} \sum_{j=1}^{n} \ln p(t_j \mid t_0, \ldots, t_{j-1})$$
#
# Change all parameters a little so that the loss falls, and begin again.
#
# An untrained model guesses blindly and gives each of the 36 tokens about 1/36, so the first loss should be near
# $-\ln(1/36) = 3.58$. If yours is far above, your model is already sure of the wrong words.
#
# In the code, `begin[:, None] + torch.arange(LENGTH + 1)` is a table of positions, a row for each piece, and `text[…]`
# looks up the tokens there.

# %% id="train"
LENGTH = 24  # words that are read at once
model = GPT(len(ENGLISH), max_length=LENGTH).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for _step in range(1000):
    begin = starts[torch.randint(len(starts), (32,))]  # 32 pieces
    piece = text[begin[:, None] + torch.arange(LENGTH + 1)].to(device)
    logits = model(piece[:, :-1])  # of all words but the last
    target = piece[:, 1:]  # all but the first: each position's next word
    # softmax, then -ln p of the right word, and the average
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

# %% id="train-curve" tags=["hide-input", "picture:20"]
# Figure: the loss while it learns, and the best possible
floor = english_entropy()  # of the sentences themselves, from the choices that make them
fig = curves(
    range(1, len(losses) + 1),
    {"": losses},
    styles=["-"],
    levels={"blind guessing": math.log(len(ENGLISH)), "": floor},
    xlabel="step",
    ylabel="loss for each token",
    ylim=(0, 4.2),
    size=(6.5, 2.6),
)
fig.axes[0].text(1000, floor - 0.12, f"the best possible, {floor:.2f}", ha="right", va="top", color="#555555")
show(
    fig,
    alt="The training loss over 1000 steps. It starts above the line of blind guessing at 3.58, falls steeply within the "
    "first hundred steps and then lies on the line of the best possible, 1.44.",
    caption="The loss falls to the best possible: the average surprise of someone who knows how the sentences are made. "
    "It cannot fall to zero, because nobody can know which person or verb comes next.",
)

# %% [markdown] id="write-text"
# Writing is a loop. The model reads at most the last 24 words, and the next word is drawn at random, by the
# probabilities that the model gives.

# %% id="loop-drawn" tags=["hide-input"]
# Drawing: the loop of writing
drawings.writing_loop("the queen near the".split(), "king").show()


# %% id="write"
@torch.no_grad()
def write(words, n_words, generator):
    """Continue a list of words by n_words more."""
    tokens = torch.tensor([[number[word] for word in words]])
    for _ in range(n_words):
        logits = model(tokens[:, -LENGTH:].to(device))[0, -1].cpu()  # of the next word
        chosen = torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)
        tokens = torch.cat([tokens, chosen[None]], dim=1)  # chosen[None]: (1, 1)
    return [ENGLISH[token] for token in tokens[0]]


# %% id="written" tags=["not-compared:sampled-text"]
text_written = " ".join(write(["."], 90, torch.Generator().manual_seed(1)))
print("\n".join(text_written.split(" . ")[:6]).removeprefix(". "))

# %% [markdown] id="written-text"
# They read like rather odd English. A program that knows the grammar counts how many are right. Verbs must agree with
# their subject (*the queen paints*, *the queens paint*), and so must a *reflexive*, a word like *herself*.

# %% id="written-counted" tags=["hide-input", "atol:0.06"]
# Count: how many of 200 sentences that it writes are right
long_text = write(["."], 2000, torch.Generator().manual_seed(2))[1:]
ends = [i for i, word in enumerate(long_text) if word == "."][:200]
written = [long_text[a + 1 : b + 1] for a, b in zip([-1, *ends], ends)]
known = {tuple(words) for words in sentences}
new = [words for words in written if tuple(words) not in known]
for name, some in (("that it wrote", written), ("that it had never read before", new)):
    print(f"{sum(map(is_english, some)) / len(some):.2f} of the sentences {name} are right")

# %% [markdown] id="guess-text"
# But does it do what you did with the queen, or only know which words often occur together?
#
# **Predict.** How likely will the model find *herself*, *himself* and *themselves* after this sentence? Write your
# guess, and run the three cells below. Then change the sentence, say to *the queens near the king paint*, and run them
# again.

# %% id="guess"
sentence = "the queen near the king paints"  # later yours, in words of ENGLISH
guess = {"herself": None, "himself": None, "themselves": None}  # numbers from 0 to 1


# %% id="guess-answer" tags=["atol:0.12"]
@torch.no_grad()
def candidates(words):
    """The model's probabilities of the three reflexives, compared with each other."""
    tokens = torch.tensor([[number[word] for word in words]], device=device)
    logits = model(tokens)[0, -1].cpu()
    return logits[[number[word] for word in REFLEXIVES]].softmax(dim=-1)


said = [".", *sentence.split()]  # in training a full stop came before every sentence
found = candidates(said)
for word, share in zip(REFLEXIVES, found.tolist(), strict=True):
    print(f"{word:11} {share:.2f}    you: {guess[word]}")

# %% [markdown] id="look-text"
# Where does the last word look? Each row is one head (L2 H1 is the first head of the second layer), each column a word,
# and darker means more.

# %% id="look" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: what each head takes from each word, at the last position
words = said
candidates(words)
rows = torch.cat([layer.attention.weights[0, :, -1] for layer in model.decoder.layers]).cpu()  # (layers * heads, T)
names = [f"L{1 + i // 4} H{1 + i % 4}" for i in range(len(rows))]
subject = next(i for i, word in enumerate(words) if word in REFLEXIVE_OF)
best = int(rows[:, subject].argmax())
axes = attention_map(rows, queries=names, keys=words)
axes.set(ylabel="", xlabel="")
show(
    axes.figure,
    alt="Eight rows of weights, one for each head of the two layers, over the words of the sentence. "
    "The heads differ: some look at the last word itself, some spread over the sentence, one looks almost only at the "
    "subject.",
    caption=f"Head {names[best]} puts {rows[best, subject]:.0%} of its weight on “{words[subject]}”. After another "
    "training it may be another head.",
)

# %% [markdown] id="measured-text"
# One example proves little, so here are 500 sentences that it has never read, all with somebody between the subject and
# the end, and two simple rivals. The first knows only the verb. Half of the subjects are plural, and *paint* tells it
# *themselves*; after *paints* it has to guess between *himself* and *herself*. So it should be right about three times
# in four. The second goes by the nearest person. It is right if both persons call
# for *themselves*, both for *herself* or both for *himself*: $1/2 \cdot 1/2 + 1/4 \cdot 1/4 + 1/4 \cdot 1/4 = 3/8$.

# %% id="measured" tags=["hide-input", "atol:0.03"]
# Count: how often the right reflexive is the likeliest of the three
test_draw, tests = random.Random(1), []
while len(tests) < 500:
    words = english_sentence(test_draw)
    far = "near" in words or "that" in words
    if words[-2] in REFLEXIVES and far and tuple(words) not in known:
        tests.append(words[:-1])


def nouns(words):
    return [word for word in words if word in REFLEXIVE_OF]


after = {}
for words in sentences:
    if words[-2] in REFLEXIVES:
        after.setdefault(words[-3], []).append(words[-2])
usual = {verb: max(set(ends), key=ends.count) for verb, ends in sorted(after.items())}
rows = {
    "the word before": sum(usual[words[-2]] == words[-1] for words in tests),
    "the nearest person": sum(REFLEXIVE_OF[nouns(words)[-1]] == words[-1] for words in tests),
    "the model": sum(REFLEXIVES[candidates([".", *words[:-1]]).argmax()] == words[-1] for words in tests),
}
for name, right in rows.items():
    print(f"{name:20} right in {right / len(tests):.2f} of 500 sentences")

# %% [markdown] id="look-more"
# In our run, one head looked at the subject and two at the other person. What does the model need? In the same 500
# sentences the mask hides the subject from the last position, in both layers, because the position could read it in
# either. The words in between may still look at the subject, and could pass it on. Then, as a control, we hide the
# other person.


# %% id="hidden" tags=["hide-input", "atol:0.1"]
# Count: the same 500 sentences, with one word hidden from the last position
@torch.no_grad()
def right_without(which):
    right = 0
    for words in tests:
        said = [".", *words[:-1]]
        tokens = torch.tensor([[number[word] for word in said]], device=device)
        mask = causal_mask(len(said), device)
        mask[-1, [i for i, word in enumerate(said) if word in REFLEXIVE_OF][which]] = False
        logits = model.to_words(model.decoder(model.embedding(tokens), mask))[0, -1].cpu()
        best = REFLEXIVES[logits[[number[word] for word in REFLEXIVES]].argmax()]
        right += best == words[-1]
    return right / len(tests)


print(f"the subject hidden       right in {right_without(0):.2f} of 500 sentences")
print(f"the other person hidden  right in {right_without(-1):.2f} of 500 sentences")

# %% [markdown] id="hidden-text"
# Without the subject, the model did about as well as the verb alone allows, in seven of eight training runs; in the
# eighth it got 86% right. Without the other person, it did as well as before: only hiding the subject hurts.
#
# <details><summary>Evidence: eight training runs, one of them different</summary>
#
# A training run begins from random numbers, drawn from a *seed*. With five seeds, the share of right answers was 0.73
# to 0.78 without the subject, and 1.00 without the other person (`python benchmarks/claims.py overview`). Three more
# seeds gave 0.77, 0.74 and 0.86 without the subject. The 0.86 is more than the verb allows. Perhaps the words in
# between, which could still read the subject, handed it on.
#
# </details>
#
# A good place to stop: your GPT writes.

# %% [markdown] id="translator-text"
# ## 5 A complete encoder–decoder
#
# A translator needs both halves, and they are made of the same layers. Each layer of the decoder has one more step:
# between self-attention and feed-forward it looks at what comes out of the encoder.


# %% id="decoder-block"
class DecoderLayer(Layer):
    def __init__(self, d_model, n_heads):
        super().__init__(d_model, n_heads)
        self.cross_attention = Attention(d_model, n_heads)
        self.cross_attention_norm = nn.LayerNorm(d_model)

    def forward(self, x, mask, context, context_mask):
        y = self.attention_norm(x)
        x = x + self.attention(y, y, mask)
        y = self.cross_attention_norm(x)
        x = x + self.cross_attention(y, context, context_mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


# %% [markdown] id="padding-text"
# In the encoder, words may look at earlier and at later words. Still, one thing must be hidden. The sentences of a
# batch lie in one rectangular table, so shorter ones are padded with a special token, `PAD`. Nobody should look at it.
# In English it comes after all the words, so the causal mask already hides it from them; in German `[:, None, None]`
# gives the mask axes of length 1, and PyTorch repeats it for all heads and positions. Two more special tokens mark
# start and end.

# %% id="signs"
PAD, START, END = 0, 1, 2  # the filling, and the signs for start and end


# %% id="encoder-decoder"
class EncoderDecoder(nn.Module):
    def __init__(self, vocab_size, max_length, d_model=64, n_heads=4, n_layers=2):
        super().__init__()
        self.embedding = Embedding(vocab_size, max_length, d_model)  # of both languages
        layers = [Layer(d_model, n_heads) for _ in range(n_layers)]
        self.encoder = Stack(layers, d_model)
        layers = [DecoderLayer(d_model, n_heads) for _ in range(n_layers)]
        self.decoder = Stack(layers, d_model)
        self.to_words = nn.Linear(d_model, vocab_size)

    def forward(self, source, target):  # (B, S), (B, T) -> (B, T, vocab_size)
        not_filling = (source != PAD)[:, None, None]  # (B, 1, 1, S)
        context = self.encoder(self.embedding(source), not_filling)
        mask = causal_mask(target.size(1), target.device)
        x = self.decoder(self.embedding(target), mask, context, not_filling)
        return self.to_words(x)


# %% [markdown] id="numbers-text"
# Its task is to translate German numbers into English. The tokens are the parts of the number words. In German, 27 is
# *sieben · und · zwanzig*, seven-and-twenty. The English words need another order, so the model has to look across. It
# learns from the numbers below 1000, except for a hundred that are kept back for the test, 27, 28 and 37 among them. It
# has read the same parts at the end of longer numbers such as 127, but never on their own.

# %% id="numbers"
pairs = [(number_parts(n, "de"), number_parts(n, "en")) for n in range(1000)]
others = [n for n in range(1000) if n not in (27, 28, 37)]
unseen = {27, 28, 37, *random.Random(0).sample(others, 97)}
test_pairs = [pair for n, pair in enumerate(pairs) if n in unseen]
train_pairs = [pair for n, pair in enumerate(pairs) if n not in unseen]
parts = sorted({part for pair in pairs for words in pair for part in words})
code = {part: i + 3 for i, part in enumerate(parts)}  # 0 to 2 are PAD, START, END


def encoded(texts, start=()):  # words -> numbers, END, then PAD to (B, longest)
    rows = [[*start, *(code[word] for word in words), END] for words in texts]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


german, english = pairs[123]
print(" · ".join(german), "→", " ".join(english), f"({len(parts)} parts in all)")

# %% id="train-translator" tags=["not-compared:differs-by-processor"]
torch.manual_seed(0)
translator = EncoderDecoder(len(parts) + 3, max_length=16).to(device)
optimizer = torch.optim.AdamW(translator.parameters(), lr=3e-3)
for step in range(400):
    chosen = random.Random(step).sample(train_pairs, 32)
    source = encoded([german for german, _ in chosen]).to(device)
    target = encoded([english for _, english in chosen], [START]).to(device)
    logits = translator(source, target[:, :-1])
    right = target[:, 1:].flatten()  # PAD is left out of the loss
    loss = F.cross_entropy(logits.flatten(0, 1), right, ignore_index=PAD)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 99:
        print(f"step {step + 1}: loss {loss.item():.2f}")

# %% [markdown] id="translate-text"
# In training, the decoder gets the right English words before each position, so it can learn at all positions at once.
# When it translates, it has only what it wrote itself: writing is a loop again, and here it always takes the likeliest
# word.


# %% id="translate"
@torch.no_grad()
def translate(texts):
    source = encoded(texts).to(device)
    target = torch.full((len(texts), 1), START, device=device)
    # until every row holds an END, or 14 tokens are written
    while target.size(1) < 15 and not (target == END).any(dim=1).all():
        logits = translator(source, target)[:, -1]  # (B, vocab_size)
        target = torch.cat([target, logits.argmax(dim=-1, keepdim=True)], dim=1)
    rows = [[*row, END] for row in target[:, 1:].tolist()]  # END, if it wrote none
    rows = [row[: row.index(END)] for row in rows]  # up to the first END
    return [[parts[token - 3] for token in row] for row in rows]


# %% [markdown] id="crossing-text"
# **Predict.** In *siebenundzwanzig*, change the first part from *sieben* (seven) to *acht* (eight). Or change the last
# part from *zwanzig* (twenty) to *dreißig* (thirty). Which English word changes each time? `ex`, imported in the first
# cell, keeps your answer.

# %% id="crossing-predict"
ex.predict("crossing", "")

# %% id="crossing"
asked = [27, 28, 37]  # then add a number of yours, below 1000
for number_asked in asked:
    german, _ = pairs[number_asked]
    (english,) = translate([german])
    print(" · ".join(german), "→", " ".join(english))

# %% id="translated" tags=["hide-input", "atol:0.03"]
# Count: how many of the numbers that it has never seen are right
answers = translate([german for german, _ in test_pairs])
right = [answer == english for answer, (_, english) in zip(answers, test_pairs, strict=True)]
print(f"{sum(right) / len(right):.2f} of {len(right)} unseen numbers are entirely right")

# %% [markdown] id="crossing-answer"
# In 27 the first German part decides the last English word, and the last German part decides the first English word.
# Longer numbers cross only in part: in *ein · hundert · drei · und · zwanzig*, only *drei* and *zwanzig* swap sides.
# Nobody wrote a rule for this. The cross-attention of the last layer looks where you would look:

# %% id="crossing-drawn" tags=["hide-input", "picture:10"]
# Figure: cross-attention between a German and an English number
german, english = pairs[27]
with torch.no_grad():
    translator(encoded([german]).to(device), encoded([english], [START])[:, :-1].to(device))
weights = translator.decoder.layers[-1].cross_attention.weights[0].mean(dim=0).cpu()  # (T, S), the heads' mean
steps = [f"{read} → {word}" for read, word in zip(["start", *english], english, strict=False)]
axes = attention_map(weights[:-1], queries=steps, keys=[*german, "(end)"])  # without the row that writes the end
axes.set(xlabel="German", ylabel="English: read → written")
show(
    axes.figure,
    alt="Cross-attention of the last layer, mean of its heads. While twenty is written most weight lies on zwanzig, the "
    "last German part; while seven is written it lies on sieben, the first one.",
    caption="Mean of the four heads. For “twenty” the model looks at the last German part, for “seven” at the first: "
    "the order is reversed.",
)

# %% [markdown] id="same-text"
# <details><summary>Evidence: five training runs</summary>
#
# With five seeds, 0.98 to 1.00 of the unseen numbers were right, and 27, 28 and 37 each time. In the heads' mean,
# *twenty* put 0.91 to 1.00 of its weight on *zwanzig*, and *seven* 0.76 to 0.99 on *sieben*.
#
# </details>
#
# Both models are small, but complete. `course_lib`, the library of this course, is tested against PyTorch's own
# Transformer. With the same parameters, its models give the same logits as yours:

# %% id="same" tags=["hide-input"]
# Check: with the same parameters, course_lib's models give the same logits
shared = {"d_model": 64, "n_heads": 4, "positions": "learned", "norm_place": "pre", "activation": "gelu"}
shared |= {"scale_embeddings": False, "tie_embeddings": False, "head_bias": True, "dropout": 0.0}
names = {
    ".attention_norm": ".self_attention_residual.norm", "cross_attention_norm": "cross_attention_residual.norm",
    "feed_forward_norm": "feed_forward_residual.norm", "coder.norm.": "coder.final_norm.",
    ".attention.": ".self_attention.", "feed_forward.0": "feed_forward.up", "feed_forward.2": "feed_forward.down",
    "to_words": "head",
}  # fmt: skip


def copied(here, there):
    weights = here.state_dict()
    for ours, theirs in names.items():
        weights = {name.replace(ours, theirs): value for name, value in weights.items()}
    if isinstance(there, Transformer):  # one table for both languages here, one for each there
        weights |= {f"source_{name}": value for name, value in weights.items() if name.startswith("embedding.")}
    there.load_state_dict(weights)
    return there.to(device).eval()


with torch.no_grad():
    config = TransformerConfig(**shared, n_decoder_layers=2, vocab_size=len(ENGLISH), max_length=LENGTH)
    gap = (copied(model, LanguageModel(config))(piece[:, :-1]) - model(piece[:, :-1])).abs().max()
    config = TransformerConfig(
        **shared, n_encoder_layers=2, n_decoder_layers=2, vocab_size=len(parts) + 3, max_length=16, pad_id=PAD
    )
    theirs = copied(translator, Transformer(config))(source, target[:, :-1])
    gap = max(gap, (theirs - translator(source, target[:, :-1])).abs().max())
prove("both models give the logits of course_lib's models with the same parameters", gap < 1e-4)
print("the largest difference between two logits is", "below 0.0001" if gap < 1e-4 else f"{gap:.4f}")

# %% [markdown] id="formulas"
# ## 6 One page of formulas
#
# <details><summary>To look things up later</summary>
#
# “Base” and “big” are the two models of the paper (its table 3).
#
# | sign | in words | in `course_lib` | base | big |
# |---|---|---|---|---|
# | *d*<sub>model</sub> | width of the stream | `d_model` | 512 | 1024 |
# | *h* | heads | `n_heads` | 8 | 16 |
# | *d*<sub>k</sub> = *d*<sub>model</sub> / *h* | width of a head | `d_head` | 64 | 64 |
# | *d*<sub>ff</sub> | width inside feed-forward | `d_ff` | 2048 | 4096 |
# | *N* | layers in each half | `n_encoder_layers`, `n_decoder_layers` | 6 | 6 |
# | *P*<sub>drop</sub> | dropout | `dropout` | 0.1 | 0.3 |
# | | parameters | | 65 million | 213 million |
#
# **Attention**, for queries $Q$ $(T, d_k)$, keys $K$ $(S, d_k)$ and values $V$ $(S, d_k)$:
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\top}{\sqrt{d_k}}\right) V$$
#
# **Softmax**, for the scores $s_1 \ldots s_n$ of one query:
#
# $$\mathrm{softmax}(s)_i = \frac{e^{s_i}}{e^{s_1} + \ldots + e^{s_n}}$$
#
# **Several heads**, with $X$ the words that look and $C$ those that are looked at ($C = X$ in self-attention). The
# maps $W_i$ of all heads, side by side, are the one linear map that our code cuts:
#
# $$\mathrm{head}_i = \mathrm{Attention}(X W_i^Q, C W_i^K, C W_i^V) \qquad
# \mathrm{MultiHead}(X, C) = [\mathrm{head}_1, \ldots, \mathrm{head}_h] W^O$$
#
# **Feed-forward**, for each word $x$ alone, with $f$ ReLU in the paper and GELU in our models:
#
# $$\mathrm{FFN}(x) = f(x W_1 + b_1) W_2 + b_2$$
#
# **A part and its stream.** The paper normalises after adding; our models, like most since GPT-2, before:
#
# $$x \leftarrow \mathrm{LayerNorm}(x + \mathrm{part}(x)) \qquad\text{or}\qquad
# x \leftarrow x + \mathrm{part}(\mathrm{LayerNorm}(x))$$
#
# **Norm**, with mean $\mu$ and variance $\sigma^2$ of the numbers in $x$, and $g$, $b$ learned:
#
# $$\mathrm{LayerNorm}(x) = g \cdot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + b$$
#
# **Positions of the paper**, for position $p$ and pair $i$ of dimensions; our models learn a table instead:
#
# $$PE_{p,2i} = \sin\left(p / 10000^{2i/d_{model}}\right) \qquad PE_{p,2i+1} = \cos\left(p / 10000^{2i/d_{model}}\right)$$
#
# **Loss**: section 4; in translation, the source is given as well.
#
# **Learning rate of the paper** at step $s$, with warm-up $w = 4000$:
#
# $$\mathrm{rate} = d_{model}^{-0.5} \cdot \min\left(s^{-0.5},\; s \cdot w^{-1.5}\right)$$
#
# </details>

# %% [markdown] id="glance"
# ## 7 Where to go from here
#
# You have trained a GPT and a translator, and seen every line of both models.

# %% [markdown] id="map"
# Five questions. Answer in a sentence, then open.
#
# <details><summary>1. What does attention compute?</summary>
#
# An average of the words' values. Queries and keys decide the weights.
#
# </details>
#
# <details><summary>2. What is the residual stream for, and what is the norm for?</summary>
#
# Each part adds to the stream, and a late part can still read what an early one wrote. The norm gives each part numbers
# of the same size.
#
# </details>
#
# <details><summary>3. Why does a GPT need the causal mask, in training and in writing?</summary>
#
# In training it would copy the answer. In writing, the past would change, and could not be kept.
#
# </details>
#
# <details><summary>4. What turns a GPT's layers into an encoder, and what does a translator add?</summary>
#
# A mask that hides nothing. Cross-attention: queries from one text, keys and values from the other.
#
# </details>
#
# <details><summary>5. A new model with 50,000 tokens starts at a loss of 40. Is that right?</summary>
#
# No: ln 50,000 is 10.8. The model is sure of the wrong tokens.
#
# </details>
#
# | chapter | the question | what you have at its end |
# |---|---|---|
# | [01 Attention](01_attention.ipynb) | How does a word choose what to read? | attention with masks, your own |
# | [02 Multi-head](02_multi_head.ipynb) | How can it look at two words at once? | a multi-head layer, and a way to see what heads do |
# | [03 Positions](03_positional_encoding.ipynb) | How does it know the order? | five ways to tell it, compared on the same tasks |
# | [04 Encoder](04_encoder.ipynb) | What makes a stack of layers trainable? | an encoder that judges sentences |
# | [05 Decoder](05_decoder.ipynb) | How does it write? | a decoder, a GPT, sampling, a cache |
# | [06 Training](06_training.ipynb) | How does it learn, and why does it sometimes not? | a translator, from strings to a checkpoint |
# | [07 Variants](07_variants.ipynb) | What are BERT, GPT-2, T5, Llama and ViT? | all of them as settings of one layer |
# | [08 Scaling](08_scaling.ipynb) | What does it cost, and what does more buy? | counts of work and memory, a scaling law |
#
# **The full course**: the chapters in order, with their exercises. Most chapters take two evenings, and each names a
# good place to stop.
#
# <details><summary>The idea alone, in two and a half hours</summary>
#
# This page; 01, sections 1 and 4; 02, section 2; 03, sections 1 and 2 up to 2.3; 04, sections 2 to 5; 05, sections 1 to
# 3 and 8. Do the first exercise of each section that has one.
#
# </details>
#
# <details><summary>Labs, one question each</summary>
#
# - 01: [reach](labs/01_reach.ipynb), [costs](labs/01_costs.ipynb), [numbers](labs/01_numbers.ipynb), [who sees
#   what](labs/01_who_sees_what.ipynb), [bugs](labs/01_bugs.ipynb)
# - 02: [heads](labs/02_heads.ipynb), [bugs](labs/02_bugs.ipynb)
# - 03: [positions](labs/03_positions.ipynb), [long context](labs/03_long_context.ipynb), [bugs](labs/03_bugs.ipynb)
# - 04: [depth](labs/04_depth.ipynb), [padding](labs/04_padding.ipynb), [bugs](labs/04_bugs.ipynb)
# - 05: [choosing](labs/05_choosing.ipynb), [inside a model](labs/05_inside_a_model.ipynb), [bugs](labs/05_bugs.ipynb)
# - 06: [one update](labs/06_one_update.ipynb), [labels](labs/06_labels.ipynb),
#   [optimizers](labs/06_optimizers.ipynb), [after training](labs/06_after_training.ipynb),
#   [capstones](labs/06_capstones.ipynb), [bugs](labs/06_bugs.ipynb)
# - 07: [families](labs/07_families.ipynb), [cheaper attention](labs/07_efficient_attention.ipynb), [linear
#   memory](labs/07_linear_memory.ipynb), [experts](labs/07_experts.ipynb), [masked
#   diffusion](labs/07_masked_diffusion.ipynb), [bugs](labs/07_bugs.ipynb)
# - 08: [width and rates](labs/08_width_and_rates.ipynb), [serving](labs/08_serving.ipynb), [bugs](labs/08_bugs.ipynb)
#
# </details>
#
# `ex` also shows where you are; in a terminal, `course status` does:

# %% id="progress"
ex.progress(by_chapter=True)
