# %% [markdown] id="title"
# # Lab: five families, three tasks
#
# **The question: encoders understand, decoders write, and encoder–decoders translate. Is that true?** It can be
# measured. Five models of 110,000 parameters each try three tasks. Before that you write what makes a BERT a BERT and a
# T5 a T5, and you look into a published encoder.
#
# The lab stands on [chapter 7](../07_variants.ipynb), section 1. With three exercises it takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.testing import prove
from course_lib.variants import BERT, GPT, T5
from course_lib.variants.minilm import minilm_folder
from coursework import exercises as ex
from coursework.pictures import drawings, show
from coursework.pictures.plots import chapter_07 as plots
from coursework.records import claim, record

torch.set_num_threads(1)


def count(model):
    """Parameters; shared ones once."""
    return sum(p.numel() for p in model.parameters())


# %% [markdown] id="bert"
# ## 1 What BERT reads, and what it is asked
#
# BERT was trained on pairs of sentences. So it needs three tables: one for the token, one for its position, and one
# that says which of the two sentences it belongs to. A special token [CLS] stands in front. At its end, the vector at
# that position is all that a classifier reads.

# %% exercise="bert_embeddings"

# %% [markdown] id="masked"
# An encoder sees both sides, so "name the next word" would be copying. BERT hides words instead and asks for them.

# %% id="hidden-drawn" tags=["hide-input"]
# Drawing: which words are hidden, and how
drawings.hidden_words().show()

# %% exercise="mask_tokens"


# %% id="classifier-runs" tags=["hide-input"]
# Check: a BERT with a classifier, its parameters by hand, and that it reads the first position alone
sizes = {"d_model": 64, "n_heads": 4, "d_ff": 256, "n_encoder_layers": 2, "vocab_size": 5000, "max_length": 128}
torch.manual_seed(0)
classifier = BERT(BERT.configure(**sizes, dropout=0.0), head="classifier", n_classes=7).eval()
words = torch.randint(200, 5000, (3, 128))  # (B, T)
words[:, 0] = 101  # [CLS]
shapes = f"{tuple(words.shape)} token ids -> {tuple(classifier(words).shape)} logits"
print(f"{shapes}, {count(classifier):,} parameters")
by_hand = 5000 * 64 + 128 * 64 + 2 * 64 + 128  # tables and the norm after them
by_hand += 2 * (4 * 64 * 64 + 4 * 64 + 2 * 64 * 256 + 256 + 64 + 4 * 64)  # layers
by_hand += 64 * 64 + 64 + 64 * 7 + 7  # pooler and classifier
prove("the classifier's parameters are the sum of its parts", count(classifier) == by_hand)


@torch.no_grad()
def pooled_change(position):
    """How far the logits move when the final vector of a position is replaced."""
    vectors = classifier.encode(words)  # (B, T, D)
    other = vectors.clone()
    other[:, position] = 0.0
    before, after = (classifier.classifier(classifier.pool(each)) for each in (vectors, other))
    return (before - after).abs().max()


prove("the head reads the first position", pooled_change(0) > 0)
prove("and no other", pooled_change(1) == 0)

# %% [markdown] id="t5"
# ## 2 Where T5 keeps its positions
#
# T5 has no positions in its vectors at all. Each head adds a trained number to the score of a query and a key, chosen
# by their distance. Near distances have a number each. Farther ones share one with their neighbours, in a **bucket**,
# because whether a word is 81 or 85 positions away hardly matters. T5 also casts every task as text in, text out: its
# input begins with what is wanted, as in "translate English to German: …".

# %% exercise="t5_bucket"

# %% id="t5-shared-bias" tags=["hide-input"]
# Check: one table for each stack serves all its layers, and the scores are not divided
small = {"d_model": 32, "n_heads": 4, "d_ff": 64, "vocab_size": 29, "dropout": 0.0, "d_head": 8}
model = T5(T5.configure(**small, n_encoder_layers=2, n_decoder_layers=2)).eval()
tables = [name for name, _ in model.named_parameters() if "positions" in name]
prove("one table for each stack", len(tables) == 2)
prove("T5 does not divide its scores", model.config.attention_scale == 1.0)

# %% [markdown] id="gpt-start"
# ## 3 How GPT-2 begins
#
# GPT-2 uses one table twice: it turns tokens into vectors at the start, and vectors into logits at the end. torch draws
# a new table from N(0, 1).
#
# **Predict.** Which token does such a model think comes next, before any training?

# %% id="predict-tied"
ex.predict("first_guess_of_a_tied_model", "")

# %% id="tied-first-loss" tags=["hide-input"]
# Measure: the first loss of a tied GPT, and the probability of the token that it has just read
probe = torch.randint(500, (4, 32), generator=torch.Generator().manual_seed(1))
sized = {"d_model": 64, "n_heads": 4, "d_ff": 256, "max_length": 64, "dropout": 0.0, "vocab_size": 500}
for std in (0.02, 1.0):
    torch.manual_seed(0)
    fresh = GPT(GPT.configure(**sized, init_std=0.02, n_decoder_layers=2)).eval()
    nn.init.normal_(fresh.embedding.tokens.weight, std=std)
    with torch.no_grad():
        logits = fresh(probe)
    first_loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), probe[:, 1:].flatten()).item()
    again = logits.softmax(-1).gather(-1, probe[..., None]).mean().item()
    print(f"standard deviation {std:<4}: first loss {first_loss:5.2f}; the same token again: {again:.3f}")
print(f"a uniform guess:         first loss {math.log(500):5.2f}; each token: {1 / 500:.3f}")
prove("a tied table of N(0, 1) repeats what it reads", again > 0.99)

# %% [markdown] id="gpt-start-says"
# The token that it has just read, with a probability near one. Its logit is the product of its vector with what is
# mostly that same vector, 64 squares of size one. GPT-2 draws its table with a standard deviation of 0.02, and starts
# at the loss of a uniform guess.
#
# ## 4 A published encoder
#
# all-MiniLM-L6-v2 is a BERT of six layers, trained so that the mean of a sentence's vectors says what the sentence
# means.
#
# **Predict.** Twelve sentences, three each on animals, money, cooking and space. How often is the nearest sentence one
# of the same topic?

# %% id="predict-neighbours"
ex.predict("neighbours_of_the_same_topic", "")

# %% id="minilm-neighbours" tags=["hide-input"]
# Record: nearest sentences (python benchmarks/minilm.py)
recorded = record("minilm-cpu")
similar = torch.tensor(recorded["similarities"])
nearest = (similar - 2 * torch.eye(12)).argmax(-1)
for i in (0, 4, 8, 11):
    sentence, other = recorded["sentences"][i], recorded["sentences"][nearest[i]]
    print(f"{similar[i, nearest[i]]:.2f}  {sentence:<50} {other}")
same_topic = sum(i // 3 == int(j) // 3 for i, j in enumerate(nearest))
print(f"nearest sentence of the same topic: {same_topic} of 12")

# %% id="minilm-anew" tags=["hide-input"]
# Check: where the extra `pretrained` is installed, the checkpoint gives the recorded numbers
if checkpoint := minilm_folder():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0)
    encoded = tokenizer.encode_batch(recorded["sentences"])
    sentence_ids = torch.tensor([each.ids for each in encoded])
    with torch.no_grad():
        vectors = BERT.from_pretrained(checkpoint).embed_sentences(sentence_ids)
    assert torch.allclose(vectors @ vectors.T, similar, atol=1e-3)
prove("the recorded similarities put most sentences beside one of their topic", same_topic >= 10)

# %% [markdown] id="minilm-heads-question"
# You may have read that heads of BERT look at the previous token, at the next one, or rest on the separator at the end.
# In how many of these 72 heads does one of the three get more than half of the attention?

# %% id="minilm-heads" tags=["hide-input"]
# Figure: the habits of 72 heads
heads = recorded["heads"]
kinds = ("previous", "next", "separator")
over = {kind: sum(head[kind] > 0.5 for head in heads) for kind in kinds}
show(
    plots.habits_of_heads(heads, kinds),
    alt="Three grids of 6 layers by 12 heads: one bright cell each for the previous and the next token, none for the "
    "separator.",
    caption=f"Of 72 heads {over['previous']} gives more than half to the previous token, {over['next']} to the next, "
    f"{over['separator']} to the separator.",
)

# %% [markdown] id="minilm-says"
# Two. What was found in one checkpoint is a fact about that checkpoint; this one was trained on, with another aim. Why
# its heads do not rest on the separator, we have not tested.
#
# ## 5 The tournament
#
# | task | source | target |
# |---|---|---|
# | classify | a number word in one of eight languages | its language, one token |
# | translate | a German number word, units before tens | its digits |
# | continue | 24 letters of English technical prose | the next 24 letters |
#
# The encoder gets masks in place of the target and fills them all at once. The others answer token by token. Models of
# equal size do not cost the same: in an encoder–decoder half of the layers read only the source. So everything is
# measured twice, for equal steps and for equal operations, with three seeds and one rate.
#
# **Predict.** Which family is the best on each task, and which the worst?

# %% id="predict-tournament"
ex.predict("best_and_worst_family", "")

# %% id="tasks-figure" tags=["hide-input"]
# Figure: five families on three tasks (python benchmarks/variants.py)
recorded = record("variants-cpu")
tasks, halves = ("classify", "translate", "continue"), ("equal_steps", "equal_compute")
rows = {(half, row["family"], row["task"]): row for half in halves for row in recorded[half]}
families = list(dict.fromkeys(row["family"] for row in recorded["equal_steps"]))
measures = [rows["equal_steps", "BERT", task]["measure"] for task in tasks]
scores = {
    task: {half.replace("_", " "): [rows[half, family, task]["scores"] for family in families] for half in halves}
    for task in tasks
}
show(
    plots.scores_of_families(families, scores, measures),
    alt="Three panels, one for each task. For each of five families the seeds are circles at equal steps and squares at "
    "equal compute.",
    caption="Each mark is a seed. In the first two panels higher is better. In the third lower is better, and there BERT "
    "is last.",
)

# %% id="tasks-table" tags=["hide-input"]
# Table: the same in numbers
for half in halves:
    print(f"{half.replace('_', ' '):<15}" + "".join(f"{task:>17}" for task in tasks) + "   steps")
    for family in families:
        own = [rows[half, family, task] for task in tasks]
        spread = "".join(f"{row['mean']:>9.3f} ± {row['half_interval']:.3f}" for row in own)
        print(f"{family:<15}{spread}   {' '.join(str(row['steps']) for row in own)}")
worst = {max(families, key=lambda one, half=half: rows[half, one, "continue"]["mean"]) for half in halves}
prove("the encoder alone is the worst at continuing a text, either way", worst == {"BERT"})

# %% [markdown] id="tasks-says"
# The slogan does not survive at this size. For equal operations the encoder–decoder of 2017 is level with Llama on all
# three tasks: half of its layers read only the source, so it makes twice as many steps. The encoder alone is last at
# continuing either way, since letters that are all named at once cannot agree with each other.
#
# One rate for all is a choice, too. Here is the translation once more, with five seeds and two rates:

# %% id="rates-recorded" tags=["hide-input"]
# Record: translation, five seeds, two rates
found = claim("families_and_rates")
print(found)
better = {family: found.best_rate(family) for family in found.arms}
prove("the Transformer of 2017 likes the higher rate, the others the lower", list(better.values()).count(0.005) == 1)
ahead = min(found.range(family, "exact match")[0] for family in ("Transformer", "GPT-2", "Llama"))
behind = max(found.range(family, "exact match")[1] for family in ("BERT", "T5"))
prove("at their better rates BERT and T5 translate less than the others, with every seed", behind < ahead)

# %% [markdown] id="end"
# With its own better rate for each family, the first three overlap. BERT and T5 stay behind after 300 steps, whichever
# of the two rates they had. So "which family is best" has no answer until it is said what is held equal. What a family
# is good at is first of all what it was trained on.
#
# **You can now** write what BERT reads and how it is asked, sort distances as T5 does, and doubt a table that compares
# models.
#
# <details><summary>Sources</summary>
#
# Devlin et al. 2019 (BERT), arXiv:1810.04805. Raffel et al. 2020 (T5), arXiv:1910.10683, section 2.1. Reimers and
# Gurevych 2019, arXiv:1908.10084. Clark et al. 2019, *What Does BERT Look At?*, arXiv:1906.04341.
#
# </details>
