# %% [markdown] id="title"
# # Lab: nine pieces of your own
#
# **The question: can you build it without a model to copy from?** Here are nine tasks and no solutions. You know
# everything they need from chapters 1 to 6, and each takes an evening or a part of one. Choose those that you like.
#
# The exercises of the chapters compare your function with the right one. These tasks cannot be checked so, for there
# are many right models. So the check looks at two other things:
#
# - **laws**: what holds for every right model. No output of a decoder depends on a later token; padding changes nothing.
# - **numbers**: how good your model is on texts that it has not seen, beside a *baseline*. A baseline is what somebody
#   reaches who understood nothing, for example by guessing or by counting pairs of letters.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import torch

from coursework import exercises as ex
from coursework.exercises.small_tasks import fill_in, reverse, three_back
from coursework.pictures import drawings

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="how"
# Each task has one cell with three dots in it. Write above the last line of the cell what you like, over as many cells
# as you like, and put your answer where the dots are. The check prints one line for each thing that it looked
# at: `holds` or `no`, and the number that it found. Your answer is kept in `answers/`, as those to the exercises are.
#
# Where a model is asked for, give a function of tensors: the check calls it on a CPU, with a few hundred texts at once.
# Switch dropout off before, by `model.eval()`.
#
# You may use all of `torch`, your own answers, and the file that `course assemble` makes of them. Try it without the
# classes of `course_lib`: then you know that nothing is missing from what you can do.

# %% id="whole" tags=["hide-input"]
# Drawing: the parts that you have to choose from
drawings.whole_transformer().show()

# %% [markdown] id="classifier-text"
# ## 1 An encoder that classifies, from a blank file
#
# Write an encoder and a classifier on top of it, with these sizes: a vocabulary of 5,000 ids, vectors of width 64, 4
# heads, 2 layers, 256 inside the feed-forward, 7 classes. Id 0 is padding. The model reads ids `(B, T)`, with T up to
# 32, and returns scores `(B, 7)`. Use no dropout.
#
# Your answer is a function without arguments that makes a new model, or its class. The check counts the weights, fills
# texts up with padding, turns the order of the words round, and lets the model learn 14 texts by heart. They come in
# pairs with the same words in two orders, so counting words is not enough.

# %% id="classifier"
ex.capstone("classifier", ...)  # your function that makes the model

# %% [markdown] id="masks-text"
# ## 2 A mask, and heads that nobody trained
#
# Build the causal mask for 10 positions, True = may attend, and draw it. Then make a multi-head layer with random
# weights, at least two heads, as torch begins with. Give it 10 random vectors, without a mask, and draw the weights of
# each head. Do the heads differ? Look at two things: which key has the largest weight, and how evenly the weights are
# spread. The second is the entropy of a row, $-\sum_j w_j \ln w_j$: it is $\ln 10$ for even weights, and 0 if one key
# has all the weight.
#
# Your answers: the mask `(10, 10)`, the weights `(heads, 10, 10)`, and for each head the mean entropy of its rows.

# %% id="masks"
ex.capstone("masks_and_heads", ..., ..., ...)  # mask, weights, entropies

# %% [markdown] id="characters-text"
# ## 3 A model of characters
#
# Train a decoder-only model on the characters of a text, and let it write. Choose any text of some 100,000 characters,
# and keep the last tenth of it apart: that is the held-out text. The model has to be better than a table of pairs, which
# knows for each character how often each other one follows. Such a table is the baseline that the check computes from
# your own text.
#
# Your answers: `predict`, a function from ids `(B, T)`, with T up to 32, to scores `(B, T, V)`; the ids of the training text and of the
# held-out text, each in one row; and the ids of a text that the model wrote, at least 100.

# %% id="shift" tags=["hide-input"]
# Drawing: what a decoder reads, and what it has to say
drawings.shift_and_mask(["t", "r", "e", "e"]).show()

# %% id="characters"
ex.capstone("characters", ..., ..., ..., ...)  # predict, training, held-out, sample

# %% [markdown] id="heads-text"
# ## 4 Heads that you trained
#
# Train a small causal model on a task on which you know where it has to look. `three_back(n, seed)` draws n texts of
# 16 ids below 10. The label of each position is the token three positions back; the first three have the label −100, which
# `cross_entropy` leaves out. Then draw the weights of its heads for one text. Is there a head that looks three back?
#
# Your answers: `predict` as before, and `attend`, a function from ids `(B, 16)` to the weights of one layer,
# `(B, heads, 16, 16)`. The check draws new texts and looks for the head.

# %% id="heads-example" tags=["hide-input"]
# The first text of the task, and its labels
ids, labels = three_back(1)
print("text  ", *ids[0].tolist())
print("labels", *("-" if label < 0 else label for label in labels[0].tolist()))

# %% id="heads"
ex.capstone("trained_heads", ..., ...)  # predict, attend

# %% [markdown] id="families-text"
# ## 5 Three families, each on its task
#
# An encoder sees the whole text. A decoder sees what came before. An encoder–decoder has one text to read and another
# to write. Train one model of each kind, with ten ids throughout:
#
# - the **encoder** on `fill_in(n, seed)`: one id in each text is 0, which hides a copy of its right neighbour. The model
#   has to say which;
# - the **decoder** on `three_back(n, seed)`;
# - the **encoder–decoder** on `reverse(n, seed)`, which draws a text, what the decoder reads, and the labels: the text
#   backwards.
#
# Your answers: three functions to scores `(B, T, 10)`; the third has two arguments, the text to read and the ids that
# the decoder reads. The check also gives the encoder's task to your decoder. What will come out?

# %% id="families-drawn" tags=["hide-input"]
# Drawing: a text that asks itself, and one that asks another; and one text of each of two tasks
drawings.self_and_cross(["what", "asks"], ["what", "is", "asked"]).show()
print("fill in", *fill_in(1)[0][0].tolist(), "  reverse", *reverse(1)[0][0].tolist())

# %% id="families"
ex.capstone("families", ..., ..., ...)  # encoder, decoder, encoder-decoder

# %% [markdown] id="positions-text"
# ## 6 Learned, sinusoidal, and no positions
#
# Train three encoders on `three_back`, equal in everything but their positions: none, a learned table, sinusoids. Do
# not use a causal mask: it tells a model something about positions, too, and then the comparison is not fair.
#
# Your answer: a dict with the keys `"none"`, `"learned"` and `"sinusoidal"`, and functions from ids to scores as values.

# %% id="positions"
ex.capstone("positions", ...)  # {"none": ..., "learned": ..., "sinusoidal": ...}

# %% [markdown] id="own-text"
# ## 7 A small GPT on a text of your own
#
# Task 3 once more, with a text that matters to you: your notes, a book, your programs. Try what you know to make the
# held-out loss smaller: more steps, another rate, dropout, more layers. The answers are those of task 3.

# %% id="own"
ex.capstone("own_text", ..., ..., ..., ...)  # predict, training, held-out, sample

# %% [markdown] id="sizes-text"
# ## 8 Width, heads and layers
#
# Which size matters most for your model of characters? Vary the width, the number of heads and the number of layers,
# each one alone, with three seeds or more for each size. Otherwise you cannot tell an effect from luck.
#
# Your answers: a list of dicts, one for each run, with the keys `d_model`, `n_heads`, `n_layers`, `seed`, `parameters`
# and `loss` (held out, in nats per character); and the loss of guessing evenly, $\ln V$. The check says for each size
# whether it moves the loss by more than the seed does. All answers are allowed, but the design of the experiment has to
# be sound.

# %% id="sizes"
ex.capstone("sizes", ..., ...)  # the runs, ln V

# %% [markdown] id="efficient-text"
# ## 9 Attention that costs less
#
# In full attention, four times as many tokens cost sixteen times as many products. Write a causal attention whose cost
# grows with T and not with its square. For example each query may look at the last sixteen keys only, or you keep
# running sums instead of a softmax. A mask over all scores is not enough, for the scores are computed all the same.
#
# Your answer: a function of `query`, `key` and `value`, each `(B, H, T, E)`, to `(B, H, T, E)`. Each output has to be a
# weighted mean of the values seen so far. The check counts the products, and the numbers that are kept for the gradient.

# %% id="window" tags=["hide-input"]
# Drawing: a window of four positions, through three layers
drawings.window_reach(3, 4).show()

# %% id="efficient"
ex.capstone("efficient", ...)  # your function of query, key and value

# %% [markdown] id="end"
# ## What you have now
#
# Whatever holds above is yours: you built it, you know which laws it obeys, and how far it is from knowing nothing.
# That is how models are judged in practice. There is no solution to compare with either, only laws, numbers, and
# somebody who asks for a baseline.
