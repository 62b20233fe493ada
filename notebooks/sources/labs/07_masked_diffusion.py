# %% [markdown] id="title"
# # Lab: must a model write from left to right?
#
# **The question: every writer of this course puts down one word after the other, from left to right. Is that
# necessary?** People leave a gap and come back. You turn the encoder of chapter 4 into a model that writes in any order,
# by changing what is hidden and what an answer counts. Then you write the loop with which it fills a gap or an empty
# page, several words at a time. At the end you know what this buys and what it costs.
#
# The lab stands on section 9 of [chapter 4](../04_encoder.ipynb) and on [chapter 5](../05_decoder.ipynb). With two
# exercises it takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.masks import causal_mask
from course_lib.testing import prove
from course_lib.transformer import Embedding, TransformerConfig, TransformerEncoder
from coursework import exercises as ex
from coursework.corpora.sentences import ENGLISH, REFLEXIVE_OF, REFLEXIVES, english_sentence, is_english
from coursework.pictures import drawings, show
from coursework.pictures.plots import common
from coursework.records import claim

torch.set_num_threads(1)

# %% [markdown] id="gap"
# ## 1 What decides may come later
#
# *the tall ____ near the boys sees herself.* Which word is missing? You know that it is a girl, a queen or a woman,
# because you have read to the end. A causal model must choose when it has read *the tall*, and nothing else.
#
# The encoder of chapter 4 reads in both directions, and it learned by filling gaps. But it never wrote a text. What does
# it lack? A page may start empty, and the words may come in any order:

# %% id="order-drawn" tags=["hide-input"]
# Drawing: a sentence that is written in any order
drawings.written_in_any_order().show()

# %% [markdown] id="language"
# Our language is a small one. Its sentences end with *herself*, *himself* or *themselves*, and each text has nine
# positions, filled up with full stops. A program draws them, so we know how probable each of them is. The words have the
# ids below `MASK`, and `MASK` itself stands for a hidden one.

# %% id="texts" tags=["hide-input"]
# The texts, four of them printed; and tools: a text in words, is it right, the training loop
LENGTH, MASK = 9, len(ENGLISH)  # the ids of the words come before MASK


def texts(n, seed):
    draw, rows = random.Random(seed), []
    while len(rows) < n:
        words = english_sentence(draw)[:-1]
        if "that" not in words and words[-1] in REFLEXIVES:
            stops = ["."] * (LENGTH - len(words))
            rows.append([ENGLISH.index(word) for word in words + stops])
    return torch.tensor(rows)


def said(row):
    return " ".join("____" if word == MASK else ENGLISH[word] for word in row.tolist())


def right(row):
    words = said(row).rstrip(" .").split()
    return bool(words) and "that" not in words and words[-1] in REFLEXIVES and is_english([*words, "."])


def share_right(ids):
    return sum(map(right, ids)) / len(ids)


def train(model, loss_of, steps=600):
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, betas=(0.9, 0.98), fused=True)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, (step + 1) / 50) * (1 - 0.95 * step / steps)
        loss = loss_of(model, data[torch.randint(len(data), (64,))])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


data, new = texts(10_000, seed=0), texts(300, seed=99)
print("\n".join(map(said, new[:4])))
prove("the tool finds all of them right", share_right(new) == 1)

# %% [markdown] id="three-lines"
# ## 2 What changes in the training
#
# | | GPT, chapter 5 | encoder, chapter 4 | **masked diffusion** |
# |---|---|---|---|
# | a word sees | those before it | all | all |
# | the model is asked for | the next word | one word in five, hidden | a share t, drawn anew for each text |
# | an answer counts | 1 | 1 | 1/t |
#
# **The share.** An empty page is a text in which everything is hidden. A model that saw one word in five hidden has
# never met one. So each text draws its own t between 0 and 1.
#
# **The weight.** Take a text of ten words. With t = 0.1, about one of them is hidden. It has to stand for all ten, so it
# counts ten times. With t = 0.5, about five are hidden, and each counts twice. So a text counts as ten words on average,
# whatever its t:
#
# $$L = \mathbb{E}_t \Big[\, \frac{1}{t} \sum_{i \text{ hidden}} -\log p(x_i \mid \text{the words in sight}) \Big]$$
#
# Diffusion models of images drown a picture in noise, and learn the way back. Here a text fades into masks instead
# (Austin et al. 2021; Sahoo et al. 2024). LLaDA has 8 billion weights and was trained with this loss (Nie et al. 2025).

# %% id="hidden-drawn" tags=["hide-input"]
# Drawing: one text of a batch, with t near a half
drawings.hidden_words(("the", "tall", "queen", "near", "the", "boys", "sees", "herself"), (0, 2, 5, 7)).show()

# %% exercise="diffusion_loss"

# %% [markdown] id="two-models"
# Now two models of the same size, each trained for 600 steps. Only the mask of their attention differs:


# %% id="writer"
class Writer(nn.Module):
    def __init__(self, causal):
        super().__init__()
        config = TransformerConfig(
            d_model=48, n_heads=4, n_encoder_layers=2, vocab_size=MASK + 1,
            dropout=0.0, norm_place="pre", positions="learned", max_length=LENGTH,
        )  # fmt: skip
        self.causal = causal
        self.embedding = Embedding(config, MASK + 1)
        self.encoder, self.head = TransformerEncoder(config), nn.Linear(48, MASK)

    def forward(self, ids):
        mask = causal_mask(ids.size(1)) if self.causal else None
        return self.head(self.encoder(self.embedding(ids), mask=mask))


# %% id="trained"
def any_order(model, ids):
    t, chance = torch.rand(len(ids)).clamp(min=0.001), torch.rand(ids.shape)
    return diffusion_loss(model, ids, t, chance, MASK).mean()


def left_to_right(model, ids):
    begun = F.pad(ids[:, :-1], (1, 0), value=MASK)  # shifted right, behind a sign
    return F.cross_entropy(model(begun).mT, ids, reduction="none").sum(dim=1).mean()


torch.manual_seed(0)
causal = train(Writer(causal=True), left_to_right)
torch.manual_seed(0)
masked = train(Writer(causal=False), any_order)
sizes = [sum(p.numel() for p in model.parameters()) for model in (causal, masked)]
prove("both have the same number of weights", sizes[0] == sizes[1])

# %% [markdown] id="write"
# ## 3 The loop that writes
#
# Show the model an empty page. It answers with probabilities for each position, all at once. May we draw all nine words?
# They would not know of each other: one position draws *queen*, another *themselves*. So write one or a few, let the
# model read again, and go on.
#
# Which ones first? Any, or those of which it is most certain. Your loop can do both, because `choose`
# says how certain each word is.

# %% exercise="uncover"


# %% id="passes" tags=["not-compared:sampled-text"]
def in_any_order(logits):
    words = torch.distributions.Categorical(logits=logits).sample()
    return words, torch.rand(words.shape)  # certainty by lot


def watched(ids):
    print(said(ids[0]))
    return masked(ids)


torch.manual_seed(1)
page = torch.full((1, LENGTH), MASK)
print(said(uncover(watched, page, 1, in_any_order, MASK)[0]))

# %% [markdown] id="fill"
# ## 4 The gap
#
# Now the task of the first section: 300 new texts, the subject hidden. The left-to-right model reads what stands
# before the gap and draws the next word. It cannot know which nouns agree with the rest.

# %% id="filled" tags=["atol:0.1"]
nouns = torch.tensor([ENGLISH.index(noun) for noun in REFLEXIVE_OF])
where = torch.isin(new, nouns).int().argmax(dim=1)  # the first noun
gaps = new.scatter(1, where[:, None], MASK)
torch.manual_seed(2)
filled = uncover(masked, gaps, 1, in_any_order, MASK)
print(f"in any order: {share_right(filled):.2f} right, such as")
print(said(gaps[0]), "->", said(filled[0]))

logits = causal(F.pad(new[:, :-1], (1, 0), value=MASK))  # it reads only what is before
words = torch.distributions.Categorical(logits=logits).sample()
guessed = new.scatter(1, where[:, None], words.gather(1, where[:, None]))
print(f"from left to right: {share_right(guessed):.2f} right")

# %% id="all-words" tags=["hide-input", "atol:0.1"]
# Measure: the left-to-right model tries each word in the gap of 100 texts
with torch.no_grad():
    tried = gaps[:100, None].expand(-1, MASK, -1).clone()  # (texts, words, T)
    tried[gaps[:100, None].expand_as(tried) == MASK] = torch.arange(MASK).repeat(100)
    flat = tried.flatten(0, 1)
    costs = F.cross_entropy(causal(F.pad(flat[:, :-1], (1, 0), value=MASK)).mT, flat, reduction="none").sum(dim=1)
    drawn = torch.distributions.Categorical(logits=-costs.view(100, MASK)).sample()
print(f"from left to right, each word tried: {share_right(tried[torch.arange(100), drawn]):.2f} right")

# %% [markdown] id="fill-more"
# So the gap is not impossible for the left-to-right model, only expensive. In the last line it has read each text 36
# times, once with each word in the gap. For two gaps that would be 36 · 36. Or it is trained on texts whose middle was
# moved to the end (Bavarian et al. 2022). The masked model needs neither. But someone has to tell it how many words are
# missing.
#
# ## 5 How well does it know the language?
#
# The program that draws the texts makes a few choices: a noun of twelve, an adjective or none. So we know by counting
# what a text costs the best possible model. What does it cost ours?
#
# The masked model can write a text in 362,880 orders. If the order is drawn by lot, the probability of the text
# is the mean over all of them. Your loss is the mean over the same orders, but of −log p, and this is never smaller than
# −log of the mean. So the loss is a **bound**: the model is at least as good as it says. With nine positions we can
# compute both, for there are only 512 sets of hidden positions.
#
# <details><summary>Why the loss is a mean over orders</summary>
#
# Write n words in an order drawn by lot. When k of them are still hidden, each set of k is equally likely, with
# probability $1/\binom{n}{k}$, and the next word is any of the k. So each pair of a set and a word in it weighs
# $1/(k \binom{n}{k})$. In the loss, with t between 0 and 1, a set of k is hidden with probability $t^k (1-t)^{n-k}$
# and its words weigh $1/t$. Together
#
# $$\int_0^1 \frac{1}{t}\, t^k (1-t)^{n-k}\, dt = \frac{(k-1)!\,(n-k)!}{n!} = \frac{1}{k \binom{n}{k}}$$
#
# These are the same weights (Uria et al. 2014; Hoogeboom et al. 2021; Ou et al. 2024).
#
# </details>

# %% id="bound" tags=["hide-input", "atol:0.3", "picture:40"]
# Figure: what 32 new texts cost: the source, the left-to-right model, the masked one exactly and by its bound
some, every = new[:32], 2**LENGTH
ADJECTIVES = ("clever", "old", "tall", "tired", "young")


def source_nats(row):
    found = said(row).split()
    persons, adjectives = found.count("the"), sum(word in ADJECTIVES for word in found)
    return persons * math.log(12 * 2) + adjectives * math.log(5) + math.log(6) + math.log(2)


with torch.no_grad():
    sets = torch.tensor([[number >> i & 1 for i in range(LENGTH)] for number in range(every)]).bool()
    found = [masked(some.masked_fill(hidden, MASK)).log_softmax(-1) for hidden in sets]
    log_probs = torch.stack([one.gather(2, some[:, :, None])[:, :, 0] for one in found])  # (sets, texts, T)
    exact, mean = torch.zeros(every, 32), torch.zeros(every, 32)
    for number in range(1, every):
        places = [i for i in range(LENGTH) if number >> i & 1]
        left = [number ^ 1 << i for i in places]  # what is hidden after the next word
        now = log_probs[number][:, places].T
        exact[number] = (now + exact[left]).logsumexp(dim=0) - math.log(len(places))
        mean[number] = (now + mean[left]).mean(dim=0)
    source, plain = sum(map(source_nats, some)) / 32, left_to_right(causal, some).item()
above = [plain - source, (-exact[-1].mean()).item() - source, (-mean[-1].mean()).item() - source]
show(
    common.bars(["left to right", "any order, exactly", "any order, its bound"], above, numbers="%.2f", lying=True,
                size=(6.4, 1.9), xlabel=f"nats per text above the best possible, {source:.2f}"),
    alt="Bars of the nats that a text costs above the best possible: the left-to-right model has the shortest, then the "
    "masked one exactly, then its bound.",
    caption="One training of each. The left-to-right model is near the best, the masked one farther, and its bound a little above.",
)  # fmt: skip
prove("the bound is never below the exact cost", bool((mean[-1] <= exact[-1] + 1e-4).all()))
weights = torch.tensor([1 / (k * math.comb(LENGTH, k)) if k else 0.0 for k in sets.sum(1).tolist()])
by_sets = ((log_probs * sets[:, None]).sum(dim=2) * weights[:, None]).sum(dim=0)
prove(
    "the loss, summed over all sets of hidden words, is the mean over the orders",
    torch.allclose(by_sets, mean[-1], atol=1e-3),
)

# %% [markdown] id="bound-says"
# The left-to-right model is nearer to the best. Both had 600 steps, but one learned a single order and the other all
# of them. Some orders are hard: a page that begins with *herself* still needs a subject that fits.
#
# ## 6 Several words in each pass
#
# **Predict.** With one word in each pass, most sentences come out right. With three in each pass it takes a third
# of the passes. What becomes of the sentences?

# %% id="predict-passes"
ex.predict("three_words_in_a_pass", "")

# %% id="passes-record" tags=["hide-input"]
# Figure: right sentences against the words in each pass, five seeds, recorded
record = claim("writing_order")
counts = (1, 2, 3, 9)
rows = list(zip(*(record.values("any order", f"right, {k}") for k in counts), strict=True))
ordinary = record.values("left to right", "right, 1")
show(
    common.curves(
        counts, {"any order": rows}, levels={"left to right": sum(ordinary) / 5}, xticks=counts, ylim=(-0.03, 1.03),
        xlabel="words in each pass", ylabel="right sentences",
    ),
    alt="Right sentences against the words written in each pass, a line for each of five seeds. All of them fall "
    "steeply: most sentences are right with one word, hardly any with nine. A dashed line near 1 is the left-to-right model.",
    caption=f"Words that are drawn in the same pass do not know of each other. ({record.command})",
)  # fmt: skip
prove(
    "in each seed, more words in a pass make fewer right sentences",
    all(a > b for row in rows for a, b in itertools.pairwise(row)),
)
prove("in each seed, the left-to-right model writes more of them than any", min(ordinary) > max(row[0] for row in rows))

# %% [markdown] id="surest"
# So haste breaks sentences. The usual remedy is to write the most certain words first. Read what comes out. What is
# missing?


# %% id="surest-written" tags=["not-compared:sampled-text"]
def surest_first(logits):
    words = torch.distributions.Categorical(logits=logits).sample()
    return words, logits.softmax(dim=-1).gather(2, words[:, :, None])[:, :, 0]


def noted(ids):
    read.append(ids)
    return masked(ids)


read = []  # what the model reads in each pass
torch.manual_seed(3)
pages = torch.full((300, LENGTH), MASK)
written = uncover(noted, pages, 1, surest_first, MASK)
print(f"right: {share_right(written):.3f}", *map(said, written[:6]), sep="\n")
stop = (read[2] == ENGLISH.index(".")).any(dim=1).float().mean()
print(f"pages with a full stop among their first two words: {stop:.2f}")

# %% id="surest-record" tags=["hide-input"]
# Figure: what is right, and what is said, by the order; five seeds, recorded
orders = ["from left to right", "in any order", "most certain first"]
shares = {
    "right": [ordinary, record.values("any order", "right, 1"), record.values("any order", "surest right")],
    "of the right ones, with “near”": [
        record.values("left to right", "near"), record.values("any order", "near"), record.values("any order", "surest near")
    ],
}  # fmt: skip
show(
    common.dots(orders, shares, names="lower left", ylim=(-0.03, 1.03), ylabel="share"),
    alt="Two shares for three ways to write, a dot for each of five seeds. Right sentences: nearly all from left to right, "
    "fewer in any order, nearly all with the most certain words first. Sentences with near: about half from left to right, "
    "somewhat fewer in any order, hardly any with the most certain first.",
    caption=f"The most certain words first: right, and monotonous. A true share of “near” would be 0.5. ({record.command})",
)
near = shares["of the right ones, with “near”"]
prove(
    "in each seed, most certain first says near less than half as often",
    all(2 * a < b for a, b in zip(near[2], near[1])),
)
value = record.values
more = [a - b for a, b in zip(value("any order", "gap"), value("left to right", "gap"))]
prove("in each seed it fills more gaps, by 0.4 and more", min(more) > 0.4)
nats = zip(value("left to right", "excess"), value("any order", "excess"))
prove("in each seed the left-to-right model costs fewer nats", all(a < b for a, b in nats))
control = [a - b for a, b in zip(value("one word in five", "bound"), value("any order", "bound"))]
prove("in each seed the control's bound is higher, by more than a nat", min(control) > 1)

# %% [markdown] id="surest-lesson"
# Nearly all are right, and nearly all are short. Half of the real sentences say whom the subject is *near*. But a full
# stop at the end is an easy word to be sure of. It is written early, and a long sentence has no room left. An unlikely word
# waits, and is drawn anew in each pass until a likely one comes. **If you measure only what is right, you reward a
# model for saying little.**
#
# <details><summary>Evidence: five seeds, two rates, and an encoder that hides one word in five</summary>
#
# Each model had 600 steps, at the better of two rates, and was judged by 300 texts, and 32 for the nats. The differences
# in the last two figures hold in each seed. So do those of sections 4 and 5: the masked model is right in at least 0.4
# more of the gaps, and its exact cost lies above that of the left-to-right model. The control keeps chapter 4's share of
# one hidden word in five. It fills gaps as well, but knows no empty pages: in each seed its bound is more than a nat
# higher.
#
# </details>

# %% [markdown] id="price"
# ## 7 The price
#
# When the left-to-right model writes, a cache keeps what it knows of the past (chapter 5). Does that help here? Let the
# last word be uncovered, and look at the vector of the first:

# %% id="no-cache" tags=["hide-input"]
# Measure: does the first position's vector change when the last word is uncovered? And what both models read
hidden_last = new[:1].clone()
hidden_last[0, -1] = MASK
for name, model, mask in (("left to right", causal, causal_mask(LENGTH)), ("any order", masked, None)):
    with torch.no_grad():
        before, after = (model.encoder(model.embedding(ids), mask=mask)[0, 0] for ids in (hidden_last, new[:1]))
    same = torch.allclose(before, after, atol=1e-4)
    print(f"{name:<14} the first position's vector {'stays as it was' if same else 'changes'}")
n = 1024
print(f"\nto write {n:,} words         passes   positions read")
print(f"left to right, cache {n:>14,}{n:>17,}")
for per_pass in (1, 4, 16):
    print(f"any order, {per_pass:>2} in a pass {n // per_pass:>12,}{n // per_pass * n:>17,}")

# %% [markdown] id="price-says"
# Every word sees every other, so every vector is new after each pass, and a cache of the past would be wrong. The masked
# model makes fewer passes and reads far more. Chapter 8 shows why this can still be faster: a chip that reads one token
# mostly waits for the weights, and up to the ridge more positions cost little time. *Block diffusion* writes blocks from
# left to right, and inside a block in any order. So it has a cache for the blocks that are done (Arriola et al. 2025).
#
# ## The answer
#
# Must a model write from left to right? No. An encoder writes, once it has met texts with any share of their words
# hidden.
#
# | | left to right | any order |
# |---|---|---|
# | reads | what is before | both sides, so it fills gaps |
# | knows a text's probability | exactly | by a bound |
# | learns, in as many steps | one order, well | all orders, less well |
# | writes in one pass | one word | several, at the price of errors |
# | keeps a cache | yes | not as it stands |
#
# **You can now** write the loss and the loop of a masked diffusion model, and ask of its results two questions: how many
# passes, and how much does it still say?
#
# <details><summary>Sources</summary>
#
# Austin et al. 2021 (D3PM, with an absorbing state), arXiv:2107.03006. Sahoo et al. 2024 (MDLM), arXiv:2406.07524. Nie et
# al. 2025 (LLaDA), arXiv:2502.09992. Orders: Uria et al. 2014, arXiv:1310.1757; Hoogeboom et al. 2021, arXiv:2110.02037;
# Ou et al. 2024, arXiv:2406.03736. Most certain first: Ghazvininejad et al. 2019, arXiv:1904.09324. Gaps from left to
# right: Bavarian et al. 2022, arXiv:2207.14255. Blocks: Arriola et al. 2025, arXiv:2503.09573.
#
# </details>
