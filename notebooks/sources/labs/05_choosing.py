# %% [markdown] id="title"
# # Lab: how does a model choose its next token?
#
# **The question: between the scores of a model and the word that appears lies a choice. What decides it?** First come the
# settings that every chat program has. Then you build beam search, which looks for the most probable text, and ask whether
# that is the text one wants. Next, the model writes texts longer than any it was trained on. At the end a small model makes
# a large one write faster without changing a single probability.
#
# You need sections 1 to 5 of [chapter 5](../05_decoder.ipynb). With its five exercises the lab takes about {minutes}
# minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out nearly the same in every run
import math
import re

import torch
import torch.nn.functional as F

from course_lib.config import TransformerConfig
from course_lib.generation import Sampling, beam_search, generate, speculative_generate, top_p_filter
from course_lib.testing import prove
from course_lib.transformer import LanguageModel
from coursework import exercises as ex
from coursework.corpora import reference_text
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_05_choosing as plots
from coursework.records import claim
from coursework.records import record as recorded

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown] id="problem"
# ## 1 The same settings, another text
#
# A model returns scores, the *logits*. A softmax turns them into a distribution, and one token is drawn from it.
# Chapter 5 showed the settings that change the distribution before the draw:
#
# | setting | what it does |
# |---|---|
# | *temperature* τ | divides the logits by τ: below 1 sharper, above 1 flatter |
# | *top-k* | keeps the k most likely tokens |
# | *top-p* | keeps the fewest tokens that have probability p together, the *nucleus* |
# | *min-p* | keeps the tokens that are at least p times as likely as the most likely one |
#
# Suppose you have found settings that you like, in one program, and copy them into another: temperature 2, top-p
# 0.75. The texts are suddenly tame. Nothing is broken. The second program applies the same two settings in the other
# order.

# %% id="orders-drawn" tags=["hide-input"]
# Drawing: four settings in the order of three libraries
drawings.sampler_orders().show()

# %% [markdown] id="orders-by-hand"
# **By hand.** Four tokens have the probabilities 0.60, 0.20, 0.12 and 0.08. A temperature of 2 halves the logarithms: it
# takes the square root of each probability and divides by the sum of the roots. Then, or before, top-p 0.75 keeps the
# fewest tokens that reach three quarters together.
#
# | | first | second | third | fourth |
# |---|---|---|---|---|
# | probability | 0.60 | 0.20 | 0.12 | 0.08 |
# | at temperature 2 | 0.42 | 0.24 | 0.19 | 0.15 |
# | temperature, then top-p | 0.49 | 0.29 | 0.22 | — |
# | top-p, then temperature | 0.63 | 0.37 | — | — |
#
# In the third row the filter looks at the flattened distribution: 0.42 and 0.24 are not enough, so it needs three
# tokens. In the last row it looks at the original one, where two tokens have 0.80.

# %% id="orders-by-hand-run"
four = torch.tensor([0.60, 0.20, 0.12, 0.08]).log()  # logits
heat_first = top_p_filter(four / 2, 0.75).softmax(-1)
heat_last = (top_p_filter(four, 0.75) / 2).softmax(-1)
print("temperature first:", [f"{chance:.2f}" for chance in heat_first])
print("temperature last: ", [f"{chance:.2f}" for chance in heat_last])

# %% id="orders-by-hand-drawn" tags=["hide-input"]
# Figure: the distribution of the example, heated, and after both orders; and a check of the table
rows = {"as it is": four.softmax(-1), "temperature 2": (four / 2).softmax(-1)}
rows |= {"temperature,\nthen top-p": heat_first, "top-p,\nthen temperature": heat_last}
axes = {"xlabel": "token", "ylabel": "probability", "xticks": range(1, 5)}
show(
    common.panels(common.bars, range(1, 5), rows, size=(7.4, 2.3), colours=palette.query, **axes),
    alt="Four small bar charts of four tokens. As it is: 0.60, 0.20, 0.12, 0.08. At temperature 2 the bars are flatter. With "
    "the temperature before top-p three bars are left. With top-p before the temperature two bars are left, the first one "
    "higher.",
    caption="The order decides how many tokens survive.",
)
prove("the table: heat first", torch.allclose(heat_first, torch.tensor([0.494, 0.285, 0.221, 0]), atol=2e-3))
prove("the table: heat last", torch.allclose(heat_last, torch.tensor([0.634, 0.366, 0, 0]), atol=2e-3))
heated = (four / 2).softmax(-1)
prove("the table: temperature 2", torch.allclose(heated, torch.tensor([0.418, 0.241, 0.187, 0.153]), atol=2e-3))

# %% [markdown] id="order-exercise-text"
# Neither order is wrong; each is a decision. What *is* wrong is a program that does not do what it says. In the
# exercise the text says which order is wanted.

# %% exercise="sampling_order"

# %% [markdown] id="gpt-text"
# ### 1.1 On a real distribution
#
# Does it matter beyond an example? We train the GPT of chapter 5 once more: two layers, 64 wide, on characters of the
# Python language reference. It takes about fifteen seconds. All that follows in this section is about this one model.

# %% id="gpt-train" tags=["hide-input"]
# The text, the model, and 600 updates
text = reference_text(each_once=True)[:300_000]
alphabet = sorted(set(text))
number_of = {character: number for number, character in enumerate(alphabet)}
ids = torch.tensor([number_of[character] for character in text])
training, held_out, V, T = ids[:270_000], ids[270_000:], len(alphabet), 128


def encode(text):
    return torch.tensor([[number_of[character] for character in text]])  # (1, T)


def decode(tokens):
    return "".join(alphabet[token] for token in tokens.tolist())


def windows(data, B, generator):
    """Random pieces of text: inputs (B, T) and what follows each character (B, T)."""
    start = torch.randint(len(data) - T - 1, (B, 1), generator=generator)
    piece = data[start + torch.arange(T + 1)]  # (B, 1) + (T + 1,) -> (B, T + 1)
    return piece[:, :-1], piece[:, 1:]


def train_gpt(seed, steps=600, peak=6e-3):
    torch.manual_seed(seed)
    model = LanguageModel(
        TransformerConfig(
            vocab_size=V, d_model=64, n_heads=4, n_decoder_layers=2, n_encoder_layers=0, positions="rotary",
            norm_place="pre", activation="gelu", scale_embeddings=False, dropout=0.0, init="normal", init_std=0.05,
            scale_residual_init=True,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps + 1):
        optimizer.param_groups[0]["lr"] = peak * min(1, (step + 1) / 20) * (1 - step / (steps + 1))
        inputs, targets = windows(training, 6, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


gpt = train_gpt(0)
prompts = windows(held_out, 64, torch.Generator().manual_seed(5))[0][:, :16]  # (B, 16)

# %% [markdown] id="kept-text"
# We take 2000 positions of held-out text, apply top-p 0.9 with the temperature before it and after it, and count the
# characters that survive.
#
# **Predict.** How does the number of surviving characters depend on the temperature, in either order?

# %% id="kept-guess"
ex.predict("kept_by_temperature", "")

# %% id="kept-drawn" tags=["hide-input", "picture:60", "tol:0.1"]
# Figure: how many characters survive top-p 0.9, against the temperature, in both orders
with torch.no_grad():
    inputs, _ = windows(held_out, 16, torch.Generator().manual_seed(3))
    logits = gpt(inputs).flatten(0, 1)[:2000]  # (B, T, V) -> (N, V)
heats = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
before = [(top_p_filter(logits / heat, 0.9) > -math.inf).sum(-1).float().mean().item() for heat in heats]
after = (top_p_filter(logits, 0.9) > -math.inf).sum(-1).float().mean().item()
lines = {"temperature first": before, "temperature last": [after] * len(heats)}
axes = {"xlabel": "temperature", "ylabel": "characters that survive", "ylim": (0, None)}
show(
    common.curves(heats, lines, colours=(palette.key, palette.query), styles=("o-", "s--"), names="end", **axes),
    alt="Mean number of characters that survive top-p 0.9 against the temperature. With the temperature first it rises from "
    "about one and a half at 0.25 to many at 2. With the temperature last it is a flat line.",
    caption="With the temperature last, the filter never learns of it. The two orders agree at temperature 1 only.",
)
for heat, count in list(zip(heats, before, strict=True))[1::2]:
    print(f"temperature {heat:.2f}: {count:4.1f} characters survive; temperature last: {after:.1f}")
prove("the orders agree at temperature 1", math.isclose(before[3], after))
prove("hot and first, far more survive", before[-1] > 2 * after)

# %% [markdown] id="kept-says"
# With the temperature last, a hot setting mixes up the characters that were already good candidates, and can never
# bring back one that was cut. With the temperature first, the nucleus widens as the text gets hotter. That is why 1.5
# can be a pleasant setting in one program and give broken words in another.
#
# ### 1.2 Which setting writes well?
#
# Now let the model write with eight settings, and measure two things that one can count. The first is the share of
# written words, of four letters or more, that occur in the training text. The second is the share of eight-character pieces
# that the same text has written before: a sign of going round in circles.
#
# A *repetition penalty*, the last setting in the list, makes a character less likely if the text has used it before.
#
# **Predict.** Which setting has the most known words, and which repeats most?

# %% id="strategies-guess"
ex.predict("settings_and_texts", "")


# %% id="strategies" tags=["hide-input", "not-compared:differs-by-processor"]
# Figure: known words against repetition for eight settings, and for real text
known = set(re.findall(r"[A-Za-z]{4,}", decode(training)))


def known_share(texts):
    words = [word for text in texts for word in re.findall(r"(?<=[^A-Za-z])[A-Za-z]{4,}(?=[^A-Za-z])", text)]
    return sum(word in known for word in words) / max(len(words), 1)


def judge(tokens):
    """Share of known words, and share of repeated 8-character pieces, in tokens (B, T) after the prompts."""
    texts = [decode(row) for row in tokens[:, 16:]]
    pieces = [[text[i : i + 8] for i in range(len(text) - 7)] for text in texts]
    return known_share(texts), sum(1 - len(set(one)) / len(one) for one in pieces) / len(pieces)


settings = {
    "greedy": {"temperature": 0},
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1": {},
    "temperature 1.5": {"temperature": 1.5},
    "top-k 5": {"top_k": 5},
    "top-p 0.8": {"top_p": 0.8},
    "min-p 0.1": {"min_p": 0.1},
    "greedy, penalty 1.3": {"temperature": 0, "repetition_penalty": 1.3},
}
judged = {"real text": judge(windows(held_out, 64, torch.Generator().manual_seed(6))[0])}
for name, setting in settings.items():
    generator = torch.Generator().manual_seed(0)
    judged[name] = judge(generate(gpt, prompts, max_new_tokens=112, generator=generator, **setting))
show(
    plots.words_and_repeats(judged),
    alt="Eight settings and real text as points: share of repeated pieces to the right, share of known words upwards. "
    "Greedy lies far to the right and high. Temperature 1.5 lies at the left and low. Real text lies high and at the left.",
    caption="Known words and variety pull in opposite directions. No setting reaches the corner of real text, which is "
    "what one would like.",
)
for name, (words, repeated) in judged.items():
    print(f"{name:>19}: known words {words:.2f}, repeated pieces {repeated:.2f}")
by_heat = [judged[f"temperature {heat}"][0] for heat in ("0.5", "1", "1.5")]
prove("greedy text repeats over a third of its pieces", judged["greedy"][1] > 0.33)
prove("a higher temperature writes fewer known words", by_heat[0] > by_heat[1] > by_heat[2])
prove("top-p 0.8 writes more known words than plain sampling", judged["top-p 0.8"][0] > by_heat[1] + 0.1)
prove("the penalty loosens the loops of greedy text", judged["greedy"][1] > judged["greedy, penalty 1.3"][1] + 0.05)

# %% [markdown] id="strategies-says"
# Each setting trades errors against monotony. Greedy decoding and low temperatures come back again and again to what the
# model is sure of. High temperatures leave the loops, and the dictionary with them. Filters cut off the many unlikely
# characters and leave the choice among the good ones to chance, which is why most programs use one.
#
# ## 2 The most probable text
#
# A translator does not want to be surprised. It wants the text that is most probable *as a whole*. Greedy choice may miss
# it, because a word that looks best now can lead to a dead end.

# %% id="beam-drawn" tags=["hide-input"]
# Drawing: two steps of beam search with two beams, and a check of its numbers
drawings.beam_tree().show()
first = {"dog": 0.5, "cat": 0.4, "car": 0.1}
after = {"dog": {"and": 0.4, "barks": 0.3, "runs": 0.3}, "cat": {"sleeps": 0.9, "and": 0.1}}
texts = {(a, b): first[a] * p for a, others in after.items() for b, p in others.items()}
best = sorted(texts, key=texts.get, reverse=True)[:2]
prove("the two best texts of the tree", best == [("cat", "sleeps"), ("dog", "and")])
prove("their probabilities are 0.36 and 0.20", [round(texts[t], 2) for t in best] == [0.36, 0.2])
prove("as logarithms", round(math.log(0.36), 2) == -1.02 and round(math.log(0.2), 2) == -1.61)
logs = [round(math.log(chance), 3) for chance in (0.4, 0.9, 0.5)]
prove("and those of the single steps", logs == [-0.916, -0.105, -0.693])

# %% [markdown] id="beam"
# Greedy takes *dog* with 0.5 and then *and* with 0.4. The text has the probability 0.5 · 0.4 = 0.20. But *The cat
# sleeps* has 0.4 · 0.9 = 0.36. Greedy never sees it, because it threw *cat* away.
#
# **Beam search** keeps the K best texts so far, the *beams*; K = 2 here. It continues each of them with every
# possible token, and of *all* these continuations it keeps the K best: here *cat sleeps* and *dog and*. With K = 1, beam
# search is greedy.
#
# Products of many small numbers vanish, so programs add logarithms instead. For *cat sleeps*, log 0.4 + log 0.9 = −0.916 −
# 0.105 = −1.02; for *dog and* the sum is −1.61. The greater sum wins.

# %% exercise="beam_step"


# %% [markdown] id="beam-use-text"
# Your step, called again and again, is a beam search. `parents` says which text each new one continues.


# %% id="beam-search"
@torch.no_grad()
def search(model, start, n_new, n_beams):
    texts, scores = start, torch.zeros(1, device=start.device)  # (1, T)
    for _ in range(n_new):
        chances = model(texts)[:, -1].log_softmax(dim=-1)  # (K, V)
        scores, parents, tokens = beam_step(scores, chances, n_beams)
        texts = torch.cat([texts[parents], tokens[:, None]], dim=1)
    return texts[0], scores[0].item()


for K in (1, 2, 4):
    found, score = search(gpt, encode("The value of "), 30, K)
    print(f"K = {K}: log-probability {score:.2f}: {decode(found)!r}")

# %% id="beam-check" tags=["hide-input", "atol:3"]
# Count: do more beams find more? Check: one beam is greedy; with room for all texts the best one is found; the library finds the same
one_beam, _ = search(gpt, prompts[:1], 20, 1)
greedy = generate(gpt, prompts[:1], max_new_tokens=20, temperature=0)
prove("one beam is greedy", torch.equal(one_beam, greedy[0]))
torch.manual_seed(12)
tiny = LanguageModel(
    TransformerConfig(
        vocab_size=5, d_model=24, n_heads=2, n_decoder_layers=2, norm_place="pre", tie_embeddings=False, dropout=0.0
    )
).eval()
start = torch.zeros(1, 1, dtype=torch.int64)
every = torch.cat([start.expand(5**4, 1), torch.cartesian_prod(*[torch.arange(5)] * 4)], dim=1)  # (N, T)
with torch.no_grad():
    tiny.head.weight.mul_(1.5)
    each = tiny(every[:, :-1]).log_softmax(-1).gather(-1, every[:, 1:, None]).sum((1, 2))  # (N,)
scores, texts = torch.zeros(1), start
for _ in range(4):  # keep everything
    with torch.no_grad():
        chances = tiny(texts)[:, -1].log_softmax(-1)
    scores, parents, tokens = beam_step(scores, chances, chances.numel())
    texts = torch.cat([texts[parents], tokens[:, None]], dim=1)
prove("with room for all texts beam search finds the best one", torch.equal(texts[0], every[each.argmax()]))
for K in (1, 2, 4):
    by_library = beam_search(tiny, start, n_beams=K, max_new_tokens=4, length_penalty=0).tokens[0, 0]
    prove(f"the library finds the same text with {K} beams", torch.equal(by_library, search(tiny, start, 4, K)[0]))

lower = 0  # how often two beams end lower than one, with 20 new characters
for prompt_row in prompts:
    one, two = (search(gpt, prompt_row[None], 20, K)[1] for K in (1, 2))
    lower += two < one - 1e-3
print(f"two beams end with a less probable text than one: after {lower} of {len(prompts)} prompts")
prove("more beams may end lower", lower > 0)

# %% [markdown] id="beam-length"
# More beams mostly find a more probable text, but not always.
#
# ### 2.1 Texts that end
#
# A text that may stop brings a new problem: each further token multiplies the probability by a number below one. A finished
# text pays once more, for its stop token, wherever that stands. So where the model is unsure over many tokens, a text that
# stops early can win though it is worse.
#
# The cure is a **length penalty**: divide the log-probability by something that grows with the length n. Two forms are
# common:
#
# $$\frac{\log p}{n^{\alpha}} \qquad\qquad \frac{\log p}{\left(\frac{5 + n}{6}\right)^{\alpha}}$$
#
# The first is used by `transformers` and by this course. The second is from Google's translation system of 2016, GNMT,
# and it is the one for which the paper of 2017 gives its α = 0.6. Log-probabilities are negative, so dividing by more
# brings a score closer to zero, and *up*.
#
# **By hand.** A text of 3 tokens has log-probability −3.0, a text of 9 tokens −4.5. Let α be 0.6.
#
# | form | divisor for 3 | divisor for 9 | short text | long text | winner |
# |---|---|---|---|---|---|
# | length to the power α | 1.93 | 3.74 | −1.55 | −1.20 | long |
# | GNMT | 1.19 | 1.66 | −2.52 | −2.71 | short |
#
# If you copy 0.6 out of the paper into a program with the first form, you get longer texts than the authors did.

# %% id="length-forms" tags=["hide-input"]
# Figure: both divisors against the length; and a check of the table
n = torch.arange(1, 41)
lines = {"length to the power 0.6": n**0.6, "GNMT, α = 0.6": ((5 + n) / 6) ** 0.6}
axes = {"xlabel": "length of the text", "ylabel": "divided by", "ylim": (0, None)}
show(
    common.curves(n, lines, colours=(palette.key, palette.query), styles="-", names="end", **axes),
    alt="What the log-probability is divided by, against the length from 1 to 40, at an exponent of 0.6. Length to the power "
    "rises to about nine, the GNMT form to about three and a half. Both start at one.",
    caption="With the same exponent, the form of GNMT asks much less of a long text.",
)
plain, gnmt = [3**0.6, 9**0.6], [(8 / 6) ** 0.6, (14 / 6) ** 0.6]
prove("the table: divisors", [round(d, 2) for d in plain + gnmt] == [1.93, 3.74, 1.19, 1.66])
scores = [round(s / d, 2) for d_pair in (plain, gnmt) for s, d in zip((-3.0, -4.5), d_pair, strict=True)]
prove("the table: scores", max(abs(a - b) for a, b in zip(scores, (-1.55, -1.2, -2.52, -2.71), strict=True)) < 0.011)

# %% [markdown] id="length-exercise-text"
# In the exercise you find the α at which a longer text overtakes a shorter one, in the first form.

# %% exercise="length_penalty"

# %% [markdown] id="length-run-text"
# Here is the library's beam search over texts that may stop at any time. The model is fresh, so it knows no language, but
# it has preferences. We search for the best text of at most ten tokens with three values of α.

# %% id="length-run" tags=["hide-input"]
# A fresh model of seven tokens, and beam search with three exponents
torch.manual_seed(17)
sizes = {"vocab_size": 7, "d_model": 24, "n_heads": 2, "n_decoder_layers": 2, "norm_place": "pre"}
ending = LanguageModel(TransformerConfig(**sizes, tie_embeddings=False, dropout=0.0)).eval()
start, lengths = torch.zeros(1, 1, dtype=torch.int64), []
for alpha in (0.0, 1.0, 2.0):
    found = beam_search(ending, start, n_beams=6, max_new_tokens=10, stop=1, length_penalty=alpha)
    best = found.tokens[0, 0, 1:].tolist()
    lengths.append(best.index(1) + 1)  # the stop token is 1
    print(f"α = {alpha}: {lengths[-1]:2} tokens {best[: lengths[-1]]}")
prove("without a length penalty the best text stops at once; larger α finds longer ones", lengths == [1, 6, 10])

# %% [markdown] id="beam-question"
# Without a penalty the search is right in its own terms: the most probable text is to say nothing. So is the most
# probable text what one wants? We let our GPT write 60 characters after each of 64 prompts, greedily and with beams of
# four, and compare with what people wrote there.
#
# **Predict.** Which of the three is most probable to the model, and which repeats least?

# %% id="beam-guess"
ex.predict("probable_or_good", "")


# %% id="beam-text" tags=["hide-input", "picture:60", "atol:0.08"]
# Figure: probability and repetition of greedy text, of beam search, and of real text
def log_probability(tokens):
    """Mean log-probability of a written character."""
    with torch.no_grad():
        chances = gpt(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]  # (B, T)
    return chances[:, 15:].mean().item()


written = {"real text": windows(held_out, 64, torch.Generator().manual_seed(5))[0][:, :76]}
written["greedy"] = generate(gpt, prompts, max_new_tokens=60, temperature=0)
written["4 beams"] = beam_search(gpt, prompts, n_beams=4, max_new_tokens=60).tokens[:, 0]
scored = {name: (log_probability(tokens), judge(tokens)[1]) for name, tokens in written.items()}
columns = dict(zip(("log-probability of a character", "share of repeated pieces"), zip(*scored.values())))
show(
    common.panels(common.bars, list(scored), columns, size=(7, 2.2), share="y", lying=True),
    alt="Two bar charts for real text, greedy text and beam search. Mean log-probability of a character: real text lowest, "
    "greedy higher, beams highest. Repeated pieces: real text few, the other two many.",
    caption="To the model its own texts are far more probable than those of people, and they go in circles.",
)
for name, (score, repeated) in scored.items():
    print(f"{name:>9}: log-probability {score:.2f}, repeated pieces {repeated:.2f}")
prove("beam search finds more probable texts than greedy", scored["4 beams"][0] > scored["greedy"][0])
prove("both are more probable than real text", scored["greedy"][0] > scored["real text"][0] + 0.5)
prove("and repeat more", min(scored["greedy"][1], scored["4 beams"][1]) > scored["real text"][1] + 0.1)

# %% [markdown] id="beam-says"
# People do not write the most probable thing; Holtzman et al. (2020) found the same on large models. Beam search
# belongs to tasks whose source leaves few good answers, such as translation. There a few beams help, and many do harm. For
# open text one draws.
#
# ## 3 Long texts
#
# How much work is a long text? Without a *cache*, each step sends the whole text so far through all layers and uses
# only the last prediction. With a cache, each step computes one position.

# %% id="cached-drawn" tags=["hide-input"]
# Drawing: which positions each of six steps computes
drawings.cached_positions().show()

# %% [markdown] id="cached-says"
# The left triangle has 1 + 2 + … + 6 = 21 squares. For T steps it has T(T + 1)/2. Six against twenty-one is little;
# now count a longer text.

# %% exercise="positions_without_cache"

# %% [markdown] id="drift-text"
# There is another trouble with long texts. Our GPT was trained on 128 characters. We let it write 240, at temperature
# 0.5, and look at the share of known words by their distance from the prompt. Suppose it falls. Two explanations come
# to mind.
#
# - **Its errors.** Each wrong character becomes part of the input, which drifts away from what the model was trained on.
# - **Its positions.** Beyond position 128, the model meets positions and distances that never occurred in training.
#
# A *control* can tell them apart: an experiment that changes one of the two and leaves the other. In every step, the
# model reads the newest 128 characters only, and they are numbered from 0 again. It still has to live with its
# errors. But all its positions are familiar.

# %% id="crop-drawn" tags=["hide-input"]
# Drawing: a crop to the newest five tokens
drawings.sliding_crop().show()

# %% [markdown] id="drift-question"
# **Predict.** The text is 240 characters long. What happens to the share of known words beyond character 112, with
# the whole text in sight, and with the crop?

# %% id="drift-guess"
ex.predict("known_words_far_out", "")


# %% id="drift"
@torch.no_grad()
def write_cropped(tokens, n, generator):
    """Continue tokens (B, T) by n, from the newest 128 at most."""
    for _ in range(n):
        logits = gpt(tokens[:, -128:])[:, -1] / 0.5  # temperature 0.5
        drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
        tokens = torch.cat([tokens, drawn], dim=1)
    return tokens


# %% id="drift-run" tags=["hide-input", "picture:60", "atol:0.12"]
# Figure: known words by distance for one model live, and for the five models of the record
generator = torch.Generator().manual_seed(0)
whole = generate(gpt, prompts[:24], max_new_tokens=240, temperature=0.5, generator=generator)
cropped = write_cropped(prompts[:24], 240, torch.Generator().manual_seed(0))
reaches = ((0, 56), (56, 112), (112, 240))
live = {
    name: [known_share([decode(row[16 + low : 16 + high]) for row in tokens]) for low, high in reaches]
    for name, tokens in (("all characters in sight", whole), ("the newest 128 in sight", cropped))
}
record = claim("long_texts")
stretches = [f"{low} to {high}" for low, high in reaches]
found = {arm: [record.values(arm, f"known words, {one}") for one in stretches] for arm in record.arms}
early = [share for rows in found.values() for row in rows[:2] for share in row]
far = [record.range(arm, "known words, 112 to 240") for arm in record.arms]
show(
    plots.known_words_by_stretch(stretches, found, live),
    alt="Share of known words in three stretches of a text, for five recorded models as dots and the live one as crosses, with "
    "the whole text in sight and with the newest 128 characters. In the first two stretches both are alike, between "
    f"{min(early):.2f} and {max(early):.2f}. In the last, from 112 to 240, the models that see the whole text fall to "
    "between {:.2f} and {:.2f}; with the crop they lose little and have {:.2f} to {:.2f}.".format(*far[0], *far[1]),
    caption="Dots: five models with five seeds. Crosses: the model of this lab. With familiar positions little is lost.",
)
for arm in record.arms:
    print(f"{arm} (range over five models, and the live one):")
    for stretch, (low, high) in enumerate(reaches):
        least, most = record.range(arm, f"known words, {low} to {high}")
        print(f"    characters {low:3} to {high:3}: {least:.2f} to {most:.2f}, live {live[arm][stretch]:.2f}")

# %% id="drift-proof" tags=["hide-input"]
# Check: what the record says
gone, kept = (record.range(arm, "known words, 112 to 240") for arm in record.arms)
prove("with known positions each of five models keeps more words than any without", kept[0] > gone[1] + 0.1)
begun, ended = (
    record.values("the newest 128 in sight", f"known words, {reach}") for reach in ("0 to 56", "112 to 240")
)
prove("and all five end near where they began", all(abs(a - b) < 0.2 for a, b in zip(begun, ended, strict=True)))
prove("the live model agrees", live["the newest 128 in sight"][2] > live["all characters in sight"][2] + 0.1)

# %% [markdown] id="drift-says"
# It was mostly the positions. With the crop the errors stay in the text. Yet all five models end near where they
# began, and far above those that see the whole text. Rotary positions beyond 128 turn the keys further than ever in training.
# [The lab on long context](03_long_context.ipynb) shows what is done about it.
#
# The crop is a control and not a cure. When the oldest character leaves, the vectors of all the others change in the second
# layer and above, because they were computed with that character in sight. So the cache is no longer valid, and each step
# must compute all 128 positions.
#
# ## 4 Let a small model guess
#
# A large model writes one token per pass, and when it writes a single text, most of the time of a pass goes into
# fetching the weights from memory. A pass over five tokens takes far less time than five passes. But the model cannot use
# that when it writes: it does not know the next four tokens. Could somebody guess them?
#
# **Speculative decoding** lets a small model, the *draft*, write a few tokens. Then the large model reads all of them in
# one pass, which gives it its own distribution at each position, and checks them one by one.

# %% id="guess-drawn" tags=["hide-input"]
# Drawing: one round of guessing and checking
drawings.guess_and_check().show()

# %% [markdown] id="speculative-idea"
# When is a guess kept? What we want is that the *distribution* of the text is that of the large model, exactly,
# however bad the draft is. There is an easy way. Draw a token from the large model, too. If it is the same as the
# guess, go on to the next guess. If not, take the large model's token and end the round. Then each token of the text
# is one that the large model has drawn. But two draws by chance often differ, even if both models say the same, so
# this keeps few guesses. One can keep more, and the distribution is still exact.
#
# Call the large model's probability of a token $p(x)$, and the draft's $q(x)$. If the draft proposes x more often
# than the large model wants, some of the proposals must be refused. If it proposes x too rarely, x must come from
# somewhere else: from what is refused. Here are both distributions over three tokens.
#
# | | A | B | C |
# |---|---|---|---|
# | large model, p | 0.5 | 0.3 | 0.2 |
# | draft, q | 0.2 | 0.6 | 0.2 |
# | kept: the smaller of the two | 0.2 | 0.3 | 0.2 |
# | missing: p minus kept | 0.3 | 0 | 0 |
#
# The draft says B twice as often as it should. So B is kept with probability 1/2: of 0.6 there remain 0.3. A and C
# are always kept. In 0.3 of all cases the guess is refused, and exactly 0.3 is missing, all of it at A. So a refused
# guess is replaced by A.
#
# How many guesses does the easy way keep in this example? Both draws must be the same: both A, both B or both C. That
# has the probability 0.5 · 0.2 + 0.3 · 0.6 + 0.2 · 0.2 = 0.32. The new way keeps 0.2 + 0.3 + 0.2 = 0.7.

# %% id="overlap-drawn" tags=["hide-input"]
# Figure: the two distributions of the example, what they share, and what is missing
p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.6, 0.2])
shared = torch.minimum(p, q)
show(
    plots.guesses_kept_and_replaced(p, q),
    alt="Three bar charts over A, B and C. Left, the draft's bars 0.2, 0.6, 0.2: half of B is hatched, the refused part. Middle, "
    "the kept parts 0.2, 0.3, 0.2 with 0.3 added on top of A. Right, the large model's bars 0.5, 0.3, 0.2, the same heights "
    "as in the middle.",
    caption="Hatched: refused. What is refused on the left is put where it is missing, in the middle. The result is the "
    "distribution on the right.",
)
prove("the example adds up", torch.allclose(shared + (1 - shared.sum()) * torch.tensor([1.0, 0, 0]), p))
prove("two draws are the same with probability 0.32", math.isclose((p * q).sum().item(), 0.32, rel_tol=1e-5))
prove("the new way keeps 0.7 of the guesses", math.isclose(shared.sum().item(), 0.7, rel_tol=1e-5))

# %% [markdown] id="speculative-formula"
# As a rule: a guess x, drawn from q, is kept with probability $\min(1, p(x)/q(x))$. A refused one is replaced by a
# draw from the missing part $\max(0, p(x) - q(x))$, scaled so that it sums to one. Why is the result p? A token x
# arrives in two ways. It is guessed and kept, or somebody else is refused and x replaces it:
#
# $$q(x)\min\left(1, \frac{p(x)}{q(x)}\right) + \beta\,\frac{\max(0,\, p(x) - q(x))}{\beta}
# = \min(q(x), p(x)) + \max(0,\, p(x) - q(x)) = p(x)$$
#
# Here β is the probability that a guess is refused. It equals the sum of all missing parts, since what is kept and
# what is missing make up p, and p sums to one. So β cancels, and the two parts add up to p.


# %% id="speculative-code"
def one_token(p, q):
    """The exact distribution of a token that was guessed from q and checked with p."""
    kept = q * (p / q).clamp(max=1)
    missing = (p - q).clamp(min=0)
    refused = 1 - kept.sum(-1, keepdim=True)
    return kept + refused * missing / missing.sum(-1, keepdim=True)


p, q = (2 * torch.randn(2, 10_000, 6).double()).softmax(-1)  # 10,000 pairs
worst = (one_token(p, q) - p).abs().max()
prove("the token is distributed as p, for 10,000 random pairs", worst < 1e-12)

# %% [markdown] id="sequence-text"
# That was one token. A round has several guesses, and a refusal ends it. Is the *text* right, too? For two small models and
# a round of two guesses, the folded cell adds up everything that can happen: all texts keep the large model's probability.
#
# The draft changes no probability. What it changes is the number of passes. If all guesses are kept, the pass gives one
# more token: the large model's own behind the last guess. How many tokens a pass gives on average is your exercise.


# %% id="sequence-code" tags=["hide-input"]
# Check: each path through a round of two guesses, with three tokens
def two_tokens(P, Q, first):
    """Exact chance (V, V) of each text after `first`, with two guesses."""
    total = torch.zeros_like(P)
    refuse = (P - Q).clamp(min=0)  # rows sum to the chance of a refusal
    for a in range(len(P)):
        kept = torch.minimum(P[first, a], Q[first, a])  # a was guessed and kept
        second = torch.minimum(P[a], Q[a]) + refuse[a]  # a second guess
        total[a] += kept * second
        total[a] += refuse[first, a] * P[a]  # a replaced a refused guess; a new round
    return total


P, Q = torch.randn(2, 3, 3).double().softmax(-1)  # two models of three tokens
wanted = P[0][:, None] * P  # chance of a, times chance of b after a
same = torch.allclose(two_tokens(P, Q, 0), wanted)
prove("all nine texts have the large model's probability", same)

# %% exercise="tokens_a_check"

# %% [markdown] id="live-text"
# Let us try a draft that is as simple as can be: a table that says, for each character, which character follows it
# how often. It has no layers at all, and costs nothing. The GPT writes 60 characters greedily after eight prompts.


# %% id="live-run" tags=["hide-input", "picture:40", "atol:0.12"]
# Figure: tokens per pass against the number of guesses, for three shares and for the table of followers
followers = (1.0 + torch.bincount(V * training[:-1] + training[1:], minlength=V * V).view(V, V)).log()  # (V, V)


def bigram_draft(tokens):
    return followers[tokens]  # (B, T) -> (B, T, V): a model without any layer


measured, same, shares = {}, [], []
for n in (1, 2, 4, 6):
    per_pass = []
    for row in prompts[:8]:
        plain = generate(gpt, row[None], max_new_tokens=60, temperature=0)
        found = speculative_generate(gpt, bigram_draft, row[None], max_new_tokens=60, n_guesses=n, temperature=0)
        same.append(torch.equal(found.tokens, plain))
        per_pass.append(60 / found.passes)
        shares += [found.accepted / found.guessed] if n == 4 else []
    measured[n] = sum(per_pass) / len(per_pass)
show(
    plots.tokens_per_pass(measured),
    alt="Tokens per pass of the large model against the number of guesses. Three curves for guesses that are kept with "
    "probability 0.5, 0.8 and 0.9 rise and flatten out at about 2, 4.3 and 6. Four measured points for a table of "
    "followers rise from about one and a half to two.",
    caption="The better the draft, the more guesses pay. Even a table of followers saves passes.",
)
print(
    f"table of followers, 4 guesses: {sum(shares) / len(shares):.2f} of all guesses are used, {measured[4]:.2f} per pass"
)
prove("greedy speculative decoding writes the same texts", all(same))
prove("even this draft gives more than 1.4 tokens for each pass", measured[4] > 1.4)

# %% [markdown] id="live-says"
# The texts are the same, character by character. What is gained depends on the draft: the share that is kept is the
# overlap of the two distributions. And a draft that is good but slow costs what it saves. In use are smaller models of the
# same family, and extra output heads of the large model itself.
#
# Fewer passes are not yet less time. We took the time of two GPTs, with the table of followers as the draft:

# %% id="speculative-clock" tags=["hide-input"]
# Record: tokens per second, alone and with 2, 4 and 8 guesses (python benchmarks/speculative_clock.py)
clock = recorded("speculative-clock-cpu")
speeds = {}
for number, (name, found) in enumerate(clock["models"].items()):
    alone = found["writing"]["alone"]["per second"]
    ratios = {way: row["per second"] / alone for way, row in found["writing"].items()}
    speeds[f"GPT with {name}"] = list(ratios.values())
    took = found["milliseconds for n tokens"]
    print(f"GPT with {name}: one pass over 1 token {took['1']:.2f} ms, over 5 tokens {took['5']:.2f} ms;", end=" ")
    print(f"{found['writing']['4 guesses']['per pass']:.2f} tokens per pass with 4 guesses,", end=" ")
    print(f"{ratios['4 guesses']:.2f} times as fast")
    by_passes = found["writing"]["4 guesses"]["per pass"] * took["1"] / took["5"]
    print(f"    by the passes alone: {by_passes:.2f} times as fast")
    prove("by the passes alone, both models would gain about the same", 1.5 < by_passes < 1.7)
    prove("only the larger model gains", (ratios["4 guesses"] > 1.3) == (number == 1))
axes = {"size": (6.2, 2.8), "ylabel": "speed, alone = 1"}
show(
    common.bars(list(found["writing"]), speeds, colours=(palette.residual, palette.query), levels={"": 1}, **axes),
    alt="Bars of the speed with 2, 4 and 8 guesses relative to the model alone, for a GPT of 2 layers of width 64 and one "
    "of 6 layers of width 256.",
    caption="Speed on one thread of a processor, the model alone being 1. Bars above the dashed line are a gain.",
)

# %% [markdown] id="speculative-clock-says"
# Only the larger model gains: with four guesses it writes 1.59 times as fast, the small one 0.86 times. A pass of the
# small model takes a third of a millisecond, and the bookkeeping around it eats the gain: guessing, comparing,
# shortening the cache. By the passes alone, both would gain about the same.
#
# ## The answer
#
# How does a model choose its next token?
#
# | step | what decides | what to watch |
# |---|---|---|
# | change the distribution | temperature and filters | their order, which libraries do not agree on |
# | look for the most probable text | beams, and the length penalty | which of two forms the α belongs to |
# | go on for long | the positions | beyond the trained length they broke our texts, far more than the errors did |
# | do it fast | a cache, and a draft that guesses | both leave every probability as it is |
#
# **Sources.** Fan et al. 2018, arXiv:1805.04833 (top-k); Holtzman et al. 2020, arXiv:1904.09751 (top-p, and section
# 4: probable text is not human text); Nguyen et al. 2024, arXiv:2407.01082 (min-p); Keskar et al. 2019,
# arXiv:1909.05858 (repetition penalty). Wu et al. 2016, arXiv:1609.08144, section 7 (length penalty); Vaswani et al.
# 2017, section 6.1 (beam search, α = 0.6); Koehn and Knowles 2017, arXiv:1706.03872, and Stahlberg and Byrne 2019,
# arXiv:1908.10090 (what many beams do). Leviathan et al. 2023, arXiv:2211.17192, and Chen et al. 2023, arXiv:2302.01318
# (speculative decoding). Orders of the settings: `transformers`, `GenerationMixin`; vLLM,
# `vllm/v1/sample/sampler.py`; llama.cpp, the default of `--samplers`, which ends with the temperature.
