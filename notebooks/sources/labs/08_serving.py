# %% [markdown] id="title"
# # Lab: one model, many users
#
# **The question: many people write to your model at once. What decides how many it can answer, and how fast?** You
# write the loop at the heart of a server, and it serves a GPT that you train here. Then you see that not the processor
# but the memory turns people away, and what is done about it.
#
# The lab stands on [chapter 8](../08_scaling.ipynb), its section 4. There you saw that each pass of a writing model
# fetches all weights, for one text or for twenty. So a server writes twenty. It has one big exercise and a
# small one, and takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, settings so that the numbers come out the same in every run, and an engine that only counts
import copy
import math
import random

import torch
import torch.nn.functional as F

from course_lib import scaling
from course_lib.config import TransformerConfig
from course_lib.generation import PagedCache, generate
from course_lib.testing import prove
from course_lib.transformer import LanguageModel
from course_lib.variants import PUBLISHED
from course_lib.variants.int8 import quantize_
from coursework import exercises as ex
from coursework.corpora import number_words
from coursework.pictures import drawings, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_08_serving as plots

torch.set_num_threads(1)


class Counted:
    """Ends the answers at given lengths; notes for each pass slot -> (request, prompt, tokens written)."""

    end = 0

    def __init__(self, n_slots, lengths):
        self.n_slots, self.lengths, self.held, self.passes, self.next = n_slots, lengths, {}, [], 0

    def start(self, slot, prompt):
        self.held[slot] = (self.next, len(prompt), 0)
        self.next += 1

    def step(self, slots):
        for slot in slots:
            number, prompt, n = self.held[slot]
            self.held[slot] = (number, prompt, n + 1)
        self.passes.append({slot: self.held[slot] for slot in slots})
        return {slot: int(self.held[slot][2] < self.lengths[self.held[slot][0]]) for slot in slots}

    def stop(self, slot):
        del self.held[slot]


# %% [markdown] id="waiting"
# ## 1 A bus that waits for its last passenger
#
# Six people ask at the same moment. Their answers, A to F, will have 2, 8, 3, 4, 1 and 2 tokens, but nobody knows that
# beforehand. The model writes three texts at once: it has three **slots**, and each *pass* of the model adds one token
# to each text. The simplest plan is *static batching*: three start together, and when all of them are done, the next
# three start.

# %% id="static-drawn" tags=["hide-input"]
# Figure: three slots over the passes of two batches
lengths, n_slots = [2, 8, 3, 4, 1, 2], 3
passes = []
for first in range(0, len(lengths), n_slots):
    batch = range(first, min(first + n_slots, len(lengths)))
    for t in range(max(lengths[n] for n in batch)):
        passes.append({n - first: n for n in batch if t < lengths[n]})
useful = sum(lengths) / (len(passes) * n_slots)
show(
    plots.slots_over_passes(passes, n_slots),
    alt="Three rows, the slots, over twelve passes. A, B and C begin together. A ends after 2 passes, C after 3, and "
    "their slots stay empty until B ends after 8. Then D, E and F begin; two of their slots are soon empty, too.",
    caption=f"Two batches. Hatched slots wait. {len(passes)} passes of three slots, and {useful:.0%} of all slots in use.",
)
prove("twelve passes for 20 tokens", (len(passes), sum(lengths)) == (12, 20))

# %% [markdown] id="waiting-says"
# A bus would not leave its seats empty until the last passenger gets off: whoever waits at the next stop gets on. The
# same idea for a model is **continuous batching** (Yu et al. 2022). After each pass, whoever has finished leaves, and
# the next in line takes the free slot.
#
# **Predict.** How many passes do the six answers take now?

# %% id="predict-passes"
ex.predict("passes_without_waiting", "")

# %% [markdown] id="serve-intro"
# ## 2 Your server
#
# Slots are one limit. The other is memory: each text keeps the keys and values of all its tokens. When someone gets
# on, nobody knows how long the answer will be. The careful plan reserves room for the longest answer allowed.

# %% exercise="serve"

# %% [markdown] id="serve-says"
# First the six answers from above. In place of a model stands an engine that knows only how long each answer will be.


# %% id="six-served"
counted = Counted(n_slots, lengths)
serve(counted, [([1], 8)] * 6, budget=100)
print(f"{len(counted.passes)} passes")

# %% id="six-drawn" tags=["hide-input"]
# Figure: the same slots, with your loop
by_slot = [{slot: number for slot, (number, *_) in one.items()} for one in counted.passes]
used = sum(lengths) / (len(by_slot) * n_slots)
show(
    plots.slots_over_passes(by_slot, n_slots, longest=len(passes)),
    alt="The same three slots. D follows A at pass 3, E follows C at pass 4, F follows E at pass 5. All is done after 8 "
    "passes; two slots are empty in the last two.",
    caption=f"Your loop. {len(by_slot)} passes, and {used:.0%} of all slots in use. All six together take as long as B alone.",
)
prove("eight passes", len(by_slot) == 8)

# %% [markdown] id="real-text"
# Now a real model. The fold trains a small GPT for some seconds, to spell numbers: `283=` goes on with "two hundred and
# eighty-three", and the answer ends with its line. Then it makes an engine of the model. `start` reads a prompt in one
# pass, all but its last token: the *prefill* of chapter 8. `step` reads one token for each slot that runs.
#
# Each text comes and goes among strangers in its batch. Is it the text that the model writes alone? We compare in 64
# bits (`precise`): a batch adds numbers in another order, and in 32 bits the rounding could tip a near-tie of two
# characters.


# %% id="gpt-train" tags=["hide-input"]
# The numbers, the model, 400 updates, and an engine: the model with slots, each with a text of a paged cache
rng = random.Random(0)
mixed = rng.sample(range(100, 1000), 900)
held_out, known = mixed[:100], mixed[100:]
line = {number: f"{number}={number_words(number, 'en')}\n" for number in mixed}
text = "".join(line[number] for _ in range(20) for number in rng.sample(known, 800))
alphabet = sorted(set(text))
number_of = {character: number for number, character in enumerate(alphabet)}


def encode(text):
    return [number_of[character] for character in text]


def decode(tokens):
    return "".join(alphabet[token] for token in tokens)


def train(seed, steps=400, peak=6e-3, T=64):
    torch.manual_seed(seed)
    ids, generator = torch.tensor(encode(text)), torch.Generator().manual_seed(seed)
    model = LanguageModel(
        TransformerConfig(
            vocab_size=len(alphabet), d_model=64, n_heads=4, n_decoder_layers=2, n_encoder_layers=0,
            positions="rotary", norm_place="pre", activation="gelu", scale_embeddings=False, dropout=0.0,
            init="normal", init_std=0.05, scale_residual_init=True,
        )
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = peak * min(1, (step + 1) / 20) * (1 - step / steps)
        start = torch.randint(len(ids) - T - 1, (12, 1), generator=generator)
        piece = ids[start + torch.arange(T + 1)]  # (B, T + 1)
        loss = F.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


gpt = train(0)
precise = copy.deepcopy(gpt).double()  # so that rounding decides between no two characters


class Engine:
    """`start`, `step` and `stop` as in the exercise; `n_read` counts the tokens that went through the model."""

    def __init__(self, model, n_slots, n_blocks=64):
        self.model, self.n_slots, self.end = model, n_slots, number_of["\n"]
        self.cache, self.beginning, self.n_read = PagedCache(model, n_blocks), None, 0
        self.held, self.last = {}, {}  # slot -> its text in the cache, the token that was not read yet

    def start(self, slot, prompt):
        self.held[slot] = text = self.cache.add(like=self.beginning)
        unread = prompt[self.cache.lengths[text] : -1]
        if unread:
            self.read([text], [unread])
        self.last[slot] = prompt[-1]

    def step(self, slots):
        logits = self.read([self.held[slot] for slot in slots], [[self.last[slot]] for slot in slots])
        self.last.update(zip(slots, logits[:, -1].argmax(-1).tolist(), strict=True))
        return {slot: self.last[slot] for slot in slots}

    def stop(self, slot):
        self.cache.drop(self.held.pop(slot))

    @torch.no_grad()
    def read(self, texts, tokens):
        """The next tokens of some texts, equally many of each -> logits (B, T, V)."""
        self.n_read += sum(map(len, tokens))
        rows = self.cache.rows(texts, len(tokens[0]))
        return self.model(torch.tensor(tokens), mask=rows.mask, positions=rows.positions, cache=rows)


# %% id="gpt-served" tags=["not-compared:differs-by-processor"]
requests = [(encode(f"{number}="), 40) for number in (283, 100, 412, 777, 905, 640)]
answers = serve(Engine(precise, n_slots=3), requests, budget=150)
for (prompt, _), answer in zip(requests, answers, strict=True):
    print(decode(prompt + answer), end="")

for (prompt, longest), answer in zip(requests, answers, strict=True):
    tokens = torch.tensor([prompt])
    options = {"max_new_tokens": longest, "temperature": 0, "stop": number_of["\n"]}
    alone = generate(precise, tokens, **options)[0, len(prompt) :].tolist()
    prove("the same answer, token for token", answer == alone)

# %% [markdown] id="crowd-text"
# After five seconds of training the model spells only some of the numbers right. But the strangers in its batch change
# nothing: each answer is the one that the model writes alone, token for token.
#
# Now a crowd: 200 people, 16 slots. Prompts have 8 to 64 tokens. Most answers are short and a few very long; at
# most 256 tokens are allowed. Counting passes needs no model, so we draw the lengths at random. We count with plenty of
# memory, and with a cache of 2,048 tokens.

# %% id="crowd" tags=["hide-input"]
# Count: passes of batches that wait, of your loop, and of your loop with little memory
rng = random.Random(0)
lengths = [min(256, 1 + int(rng.expovariate(1 / 48))) for _ in range(200)]
crowd, n_slots = [([1] * rng.randint(8, 64), 256) for _ in lengths], 16
waiting = sum(max(lengths[first : first + n_slots]) for first in range(0, len(lengths), n_slots))
roomy, tight = Counted(n_slots, lengths), Counted(n_slots, lengths)
serve(roomy, crowd, budget=10**6)
serve(tight, crowd, budget=2048)
print(f"{sum(lengths):,} tokens of answers, {sum(lengths) / 200:.0f} on average")
for name, n in (
    ("plenty of memory, batches", waiting),
    ("plenty of memory, your loop", len(roomy.passes)),
    ("cache of 2,048, your loop", len(tight.passes)),
):
    print(f"{name:<28}{n:>6,} passes, {sum(lengths) / (n * n_slots):>4.0%} of the slots in use")
prove("no more than 7 of 16 slots found memory", max(map(len, tight.passes)) == 7)

# %% [markdown] id="crowd-says"
# With plenty of memory your loop needs a third of the passes. But with a cache of 2,048 tokens, two thirds of the gain
# are gone. Each person reserves 264 tokens or more, so at most seven fit, and nine of the 16 slots stay empty.
#
# **Predict.** In an average pass with plenty of memory, what share of the reserved positions holds a token?

# %% id="predict-memory"
ex.predict("share_of_memory_used", "")

# %% [markdown] id="paged"
# ## 3 Memory in small pieces
#
# A hotel that keeps ten rooms free for each guest, in case relatives come, is booked out while nearly empty. Kwon et al.
# (2023) looked into the caches of the servers of their time. Only 20 to 38 % of the memory held a token. Their remedy is
# as old as operating systems. Cut the memory into small **blocks**, say of 16 tokens. A *table* lists the blocks of each
# text, in order. This **paged cache** changes three rules of your loop:
#
# - **Getting on.** The next in line needs free blocks for the prompt alone: three for 40 tokens.
# - **Writing.** A text whose last block is full takes one more.
# - **No block left.** The server evicts the newest text, and reads it again later.

# %% id="tables-drawn" tags=["hide-input"]
# Drawing: two texts, their tables and the pool
drawings.block_tables().show()

# %% [markdown] id="paged-says"
# The formula of attention stays as it is. The position in the text is already part of the key, so the key may lie anywhere
# in memory; only the code that fetches it must follow the table. With blocks of 16 a text leaves at most 15 positions
# empty. Here is the crowd again:

# %% id="memory-drawn" tags=["hide-input"]
# Figure: tokens reserved, in blocks, and held, over the passes of the crowd with plenty of memory
reserved, paged, held = [], [], []
for one in roomy.passes:
    reserved.append(sum(prompt + 256 for _, prompt, _ in one.values()))
    paged.append(sum(16 * math.ceil((prompt + n) / 16) for _, prompt, n in one.values()))
    held.append(sum(prompt + n for _, prompt, n in one.values()))
by_longest, by_blocks = sum(held) / sum(reserved), sum(held) / sum(paged)
figure = common.curves(
    range(1, len(held) + 1), {"for the longest answer": reserved, "in blocks of 16": paged, "held": held},
    styles=("-", "-", "-"), xlabel="pass of the model", ylabel="tokens", ylim=(0, 5600), names="center left",
    levels={"": 2048},
)  # fmt: skip
figure.axes[0].text(590, 2048, "the cache of 2,048", ha="right", va="bottom", fontsize=8.5)  # left of the steep line
show(
    figure,
    alt="Tokens over 683 passes. Reserved for the longest answer: 4500 to 4800, until it falls after pass 600. Blocks and "
    "held tokens lie close together, most of the time between 1000 and 1900, always below the dashed line at 2048.",
    caption=f"Of what is reserved for the longest answer, {by_longest:.0%} holds a token; of the blocks {by_blocks:.0%}. "
    "In blocks, all 16 texts fit into a cache of 2,048.",
)
prove("in blocks the crowd never needs more than 2,048 tokens", max(paged) <= 2048)
prove("10 of 128 blocks are left", 128 - max(paged) // 16 == 10)
small = Engine(precise, n_slots=6, n_blocks=16)
prove("six texts in a pool of 256 tokens, the same answers", serve(small, requests, budget=10**6) == answers)
prove("afterwards every block is free", small.cache.n_free == 16)

# %% [markdown] id="memory-says"
# So the same 2,048 tokens serve all 16 slots, in 683 passes instead of 1,550. The price is the third rule, and this crowd
# never paid it: at its fullest, the pool had 10 blocks left.
#
# ## 4 The same beginning
#
# Every conversation with a chat program begins with the same instructions. Their keys and
# values depend on nothing that comes later. So they can be computed once, and each table begins with the same blocks, like
# block 2 in the drawing. For our model, two spelled-out numbers play the instructions.

# %% exercise="shared_beginning"

# %% id="prefix-served" tags=["hide-input"]
# Count: six questions behind the same instructions, read with each prompt, then read once into shared blocks
instructions = encode(line[known[0]] + line[known[1]])
shared, apart = Engine(precise, n_slots=3), Engine(precise, n_slots=3)
shared.beginning = shared.cache.add()
shared.read([shared.beginning], [instructions])
longer = [(instructions + prompt, n) for prompt, n in requests]
both = [serve(engine, longer, budget=500) for engine in (shared, apart)]
prove("the same answers, token for token", both[0] == both[1])

written = sum(map(len, both[0]))
before, prompt = len(instructions), len(longer[0][0])
full = before // shared.cache.block * shared.cache.block
print(
    f"{before} tokens of instructions, {prompt} with a question. Blocks of {shared.cache.block}: {full} can be shared."
)
print("Read in prefill, all of a prompt but its last token:")
print(f"  apart   6 x ({prompt} - 1)           = {apart.n_read - written}")
print(f"  shared  {before} + 6 x ({prompt} - 1 - {full}) = {shared.n_read - written}")
prove("the engines read what the formulas say", apart.n_read - written == 6 * (prompt - 1))
prove("and shared blocks are not read again", shared.n_read - written == before + 6 * (prompt - 1 - full))

# %% [markdown] id="prefix-says"
# Only a *beginning* can be shared. In any layer but the first, the key and value of a word depend on all words before it.
# So the same sentence in the middle of two different texts has different keys and values.
#
# ## 5 Smaller numbers
#
# What else makes room? Weights in fewer bits. Do the answers suffer? Your loop asks the model for 100 numbers that training
# never saw, with rounded weights:

# %% id="rounded" tags=["hide-input", "not-compared:differs-by-processor"]
# Measure: 100 answers for numbers that training never saw, with rounded weights
questions = [(encode(f"{number}="), 40) for number in held_out]
replies, right, as_before = {}, {}, {}
for name, options in (("32 bits", None), ("8 bits", {"bits": 8}), ("4 bits", {"bits": 4, "group": 32})):
    rounded = copy.deepcopy(gpt)
    if options:
        quantize_(rounded, **options)
    replies[name] = serve(Engine(rounded, n_slots=16), questions, budget=16 * 44)
    texts = [f"{number}={decode(answer)}" for number, answer in zip(held_out, replies[name], strict=True)]
    right[name] = sum(text == line[number] for text, number in zip(texts, held_out, strict=True))
    as_before[name] = sum(one == other for one, other in zip(replies[name], replies["32 bits"], strict=True))
    print(f"{name:>7}: {right[name]} right" + (f", {as_before[name]} answers as with 32 bits" if options else ""))
prove("8 bits change 5 answers at most", as_before["8 bits"] >= 95)
prove("4 bits change some answers, 15 at most", 85 <= as_before["4 bits"] < 100)
prove("about as many are right", max(right.values()) - min(right.values()) <= 5)

# %% [markdown] id="room-text"
# Some answers change, but about as many are right. In the five trainings of chapter 8, too, 4 bits cost less than a change
# of the seed.
#
# Now put Llama 3 8B on a card with 24 GB that fetches 1,000 GB per second. The memory that the weights leave is cache. With
# 4 bits, each 32 weights also store a step of 16 bits, so a weight takes 4.5 bits. Each pass fetches all weights and all
# caches, which sets its minimum time (chapter 8). We fill the card with texts of 2,048 tokens.

# %% id="room" tags=["hide-input"]
# Figure and count: the most tokens per second that fetching allows, until the card is full
llama = PUBLISHED["llama-3-8b"].config()
n_weights = scaling.count_parameters(llama).total()
cache = scaling.kv_cache_bytes(llama, 1, 2048, dtype=torch.bfloat16) / 1e9  # GB of one text
users, speeds = {}, {}
for bits, stored in ((16, 16), (8, 8), (4, 4.5)):  # 4 bits: and their step, 16 for each 32 weights
    weights = n_weights * stored / 8 / 1e9  # GB
    n = int((24 - weights) / cache)
    alone, each = 1000 / (weights + cache), 1000 / (weights + n * cache)
    print(f"{bits:>2} bits: weights {weights:4.1f} GB, {n:>2} texts fit; tokens per second at most: "
          f"{alone:3.0f} alone, {each:2.0f} each of {n}, {n * each:5,.0f} in all")  # fmt: skip
    users[f"{bits} bits"] = range(1, n + 1)
    speeds[f"{bits} bits"] = [1000 / (weights + k * cache) for k in range(1, n + 1)]
show(
    common.curves(
        users, speeds, styles=("-", "-", "-"), names="upper right", xlabel="texts written at once",
        ylabel="tokens per second, for each", ylim=(0, 220), xlim=(0, 75),
    ),
    alt="Tokens per second for each user against the number of users. With 16 bits a nearly level line falls from 61 to 42 "
    "and ends at 29 users. With 8 bits it falls from 121 to 42 at 59, with 4 bits from 209 to 42 at 72.",
    caption="A line ends where the card is full. There each user gets 42 tokens per second, however many bits a weight has.",
)  # fmt: skip
prove("a full card gives each user the same", {round(line[-1]) for line in speeds.values()} == {42})

# %% [markdown] id="room-says"
# Follow the line of 16 bits. Twenty-nine users together get twenty times what one gets alone, and each of them waits
# only half as long again for a token. Now compare the lines. Fewer bits make a lone user much faster. On a full card
# they bring more users, and nobody gets a faster answer, since the card fetches its 24 GB in every pass. A real server
# also computes, so it stays below these limits.
#
# ## The answer
#
# | what limits | what helps | what you counted |
# |---|---|---|
# | fetching the weights for one token | many texts in each pass | 29 texts, 20 times the tokens |
# | waiting for the longest answer | continuous batching | 683 passes instead of 2,000 |
# | memory reserved for what never comes | blocks | 92 % of the memory in use, not 28 % |
# | reading the same beginning | shared blocks | 48 tokens less to read for each prompt |
# | room for caches | weights in fewer bits | 72 texts instead of 29 |
#
# The first four leave every answer as it was, apart from rounding. Not counted here: fewer heads for keys (chapter 7), a
# draft that guesses ahead ([choosing tokens](05_choosing.ipynb)), and the time that prompts take. A long prompt holds up
# everybody's next token, so servers read it in pieces between the others' passes (Agrawal et al. 2024).
#
# **You can now** write the loop of a server, and say for each of its tricks what it saves. To serve your own model to
# others, take an engine that does all this: [serving](../../docs/serving.md) says which.
#
# <details><summary>Sources</summary>
#
# Yu et al. 2022, *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI (there it is called
# iteration-level scheduling). Kwon et al. 2023, *Efficient Memory Management for Large Language Model Serving with
# PagedAttention*, arXiv:2309.06180: the 20.4 to 38.2 % in section 1, blocks in section 4, their size in section 7.2.
# Zheng et al. 2023, *SGLang*, arXiv:2312.07104 (a server that finds equal beginnings itself). Agrawal et al. 2024,
# *Sarathi-Serve*, arXiv:2403.02310. The tests of this course compare the answers with those of the continuous batching
# in `transformers`.
#
# </details>
