# %% [markdown] id="title"
# # Lab: one model, many readers
#
# **The question: many people write to your model at once. What decides how many it can answer, and how fast?** You
# write the loop at the heart of a server, and it serves a GPT that you train here. Then you see that not the processor
# but the memory turns people away, and what is done about it.
#
# The lab stands on [chapter 8](../08_scaling.ipynb), its section 4. There you saw that a pass of a model which writes
# must fetch all weights, whether it writes one text or twenty. So a server writes twenty. It has one big exercise and a
# small one, and takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, and settings so that the numbers come out the same in every run
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
from coursework.corpora import reference_text
from coursework.pictures import drawings, show
from coursework.pictures.plots import common
from coursework.pictures.plots import lab_08_serving as plots

torch.set_num_threads(1)

# %% [markdown] id="waiting"
# ## 1 A bus that waits for its last passenger
#
# Six people ask at the same moment. Their answers, A to F, will have 2, 8, 3, 4, 1 and 2 tokens, but nobody knows that
# beforehand. The model writes three texts at once: it has three **slots**, and each *pass* of the model adds one token
# to each text. The simplest plan is a batch: three start together, and when all of them are done, the next three start.

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
    caption=f"Two batches. Hatched slots wait. {len(passes)} passes of three slots, and {useful:.0%} of them are used.",
)
prove("twelve passes, 20 of 36 places used", (len(passes), sum(lengths)) == (12, 20))

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
# First the six answers from above. In place of a model stands an engine that knows only how long each answer will be,
# and notes who ran in which pass.


# %% id="script-engine" tags=["hide-input"]
# An engine without a model: it counts passes, and the tokens that each running text holds
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
    "passes; four places are empty at the end.",
    caption=f"Your loop. {len(by_slot)} passes, and {used:.0%} of the places are used. B alone decides the end.",
)
prove("eight passes", len(by_slot) == 8)

# %% [markdown] id="real-text"
# Now a real model. The first fold trains a small GPT for four seconds, on characters of the Python language reference;
# an answer ends with its line. The second makes an engine of it. `start` reads a prompt in one pass, all but its last
# token: the *prefill* of chapter 8. `step` reads one token for each slot that runs. Those texts are not equally long, so
# each row of the pass has positions and a mask of its own.


# %% id="gpt-train" tags=["hide-input"]
# The text, the model, and 300 updates
text = reference_text(each_once=True)[:300_000]
alphabet = sorted(set(text))
number_of = {character: number for number, character in enumerate(alphabet)}
ids = torch.tensor([number_of[character] for character in text])
training, held_out, T = ids[:270_000], ids[270_000:], 128
torch.manual_seed(0)
gpt = LanguageModel(
    TransformerConfig(
        vocab_size=len(alphabet), d_model=64, n_heads=4, n_decoder_layers=2, n_encoder_layers=0, positions="rotary",
        norm_place="pre", activation="gelu", scale_embeddings=False, dropout=0.0, init="normal", init_std=0.05,
        scale_residual_init=True,
    )
)  # fmt: skip
optimizer = torch.optim.AdamW(gpt.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.01)
generator = torch.Generator().manual_seed(0)
for step in range(300):
    optimizer.param_groups[0]["lr"] = 6e-3 * min(1, (step + 1) / 20) * (1 - step / 300)
    start = torch.randint(len(training) - T - 1, (6, 1), generator=generator)
    piece = training[start + torch.arange(T + 1)]  # (B, T + 1)
    loss = F.cross_entropy(gpt(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
gpt.eval()
precise = copy.deepcopy(gpt).double()  # so that no two scores are equal but for rounding


# %% id="engine" tags=["hide-input"]
# The engine: a model with slots, each of which holds one text of a paged cache
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


def encode(text):
    return [number_of[character] for character in text]


def decode(tokens):
    return "".join(alphabet[token] for token in tokens)


# %% id="gpt-served" tags=["not-compared:differs-by-processor"]
questions = ["The value ", "A class ", "If the object ", "Python ", "def ", "For example, "]
allowed = [40, 12, 30, 50, 8, 24]
requests = [(encode(q), n) for q, n in zip(questions, allowed, strict=True)]
answers = serve(Engine(precise, n_slots=3), requests, budget=150)
for question, answer in zip(questions, answers, strict=True):
    print(f"{question}|{decode(answer)!r}")

# %% [markdown] id="alone-text"
# As literature this is modest; four seconds are not much. What matters is that nobody notices the others. Each text came
# and went among strangers in its batch. Is it the text that the model writes alone?

# %% id="alone"
for (prompt, longest), answer in zip(requests, answers, strict=True):
    tokens = torch.tensor([prompt])
    options = {"max_new_tokens": longest, "temperature": 0, "stop": number_of["\n"]}
    alone = generate(precise, tokens, **options)[0, len(prompt) :].tolist()
    prove("the same answer, token for token", answer == alone)

# %% [markdown] id="crowd-text"
# Now a crowd: 200 people, 16 slots. Most answers are short and a few very long, as in life, and the longest answer
# allowed is 256 tokens. (The lengths are drawn; no model is needed to count passes.)

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
    ("batches that wait", waiting),
    ("your loop, plenty of memory", len(roomy.passes)),
    ("your loop, memory for 2,048", len(tight.passes)),
):
    print(f"{name:<28}{n:>6,} passes, {sum(lengths) / (n * n_slots):>4.0%} of the slots in use")
prove("no more than 8 of 16 slots found memory", max(map(len, tight.passes)) <= 8)

# %% [markdown] id="crowd-says"
# With plenty of memory your loop needs a third of the passes. But with a cache of 2,048 tokens most of the gain is
# gone. Each person reserves up to 320 tokens, and so half of the slots, or more, stay empty, for want of memory.
#
# **Predict.** How much of the reserved memory ever holds a token, on average?

# %% id="predict-memory"
ex.predict("share_of_memory_used", "")

# %% [markdown] id="paged"
# ## 3 Memory in small pieces
#
# A hotel that keeps ten rooms free for each guest, in case relatives come, is full when it is empty. Kwon et al. (2023)
# looked into the caches of the servers of their time. Only 20 to 38 % of the memory held a token. Their remedy is
# as old as operating systems. Cut the memory into small **blocks**. A text gets one block, and another one only when the
# first is full. A *table* remembers which blocks are its own, in order. This is a **paged cache**.

# %% id="tables-drawn" tags=["hide-input"]
# Drawing: two texts, their tables and the pool
drawings.block_tables().show()

# %% [markdown] id="paged-says"
# Attention needs no change: it does not care where a key lies, since the position is in the key itself. A text wastes
# at most one block less one token. Here is the crowd again, with blocks of 16 tokens:

# %% id="memory-drawn" tags=["hide-input"]
# Figure: tokens reserved, in blocks, and held, over the passes of the crowd with plenty of memory
reserved, paged, held = [], [], []
for one in roomy.passes:
    reserved.append(sum(prompt + 256 for _, prompt, _ in one.values()))
    paged.append(sum(16 * math.ceil((prompt + n) / 16) for _, prompt, n in one.values()))
    held.append(sum(prompt + n for _, prompt, n in one.values()))
by_longest, by_blocks = sum(held) / sum(reserved), sum(held) / sum(paged)
show(
    common.curves(
        range(1, len(held) + 1), {"for the longest answer": reserved, "in blocks of 16": paged, "held": held},
        styles=("-", "-", "-"), xlabel="pass of the model", ylabel="tokens", ylim=(0, 5600), names="upper right",
        levels={"the cache of 2,048": 2048},
    ),
    alt="Tokens over 683 passes. Reserved for the longest answer: between 4000 and 4800 until the end. Blocks and held "
    "tokens lie close together between 1000 and 1900, always below the dashed line at 2048.",
    caption=f"Of what is reserved for the longest answer, {by_longest:.0%} holds a token; of the blocks {by_blocks:.0%}. "
    "In blocks, all 16 texts fit where eight did not.",
)  # fmt: skip
prove("in blocks the crowd never needs more than 2,048 tokens", max(paged) <= 2048)

# %% [markdown] id="memory-says"
# So the same 2,048 tokens serve all 16 slots, in 683 passes instead of 1,550. Nothing about the model has changed.
#
# There is a price. Whoever reserves nothing may find the pool empty in the middle of an answer. Then the server takes
# back the blocks of the last to come, and reads that text again later. In this crowd it never happened: at its fullest,
# the pool had 10 blocks left.

# %% id="pool-left" tags=["hide-input"]
# Check: the blocks left; and the real engine with a pool that the reservations would not fit in
prove("10 of 128 blocks are left", 128 - max(paged) // 16 == 10)
small = Engine(precise, n_slots=6, n_blocks=20)
prove("six texts in a pool of 320 tokens, the same answers", serve(small, requests, budget=10**6) == answers)
prove("afterwards every block is free", small.cache.n_free == 20)

# %% [markdown] id="prefix"
# ## 4 The same beginning
#
# Every conversation with a chat program begins with the same instructions, often longer than the question. Their keys
# depend on nothing that comes later. So they can be computed once, and each table begins with the same blocks: block 2
# in the drawing.

# %% exercise="shared_beginning"

# %% id="prefix-served"
instructions = encode("This is the reference manual of the language. It answers: ")
shared, apart = Engine(precise, n_slots=3), Engine(precise, n_slots=3)
shared.beginning = shared.cache.add()
shared.read([shared.beginning], [instructions])
longer = [(instructions + prompt, n) for prompt, n in requests]
both = [serve(engine, longer, budget=500) for engine in (shared, apart)]
prove("the same answers, token for token", both[0] == both[1])

# %% id="prefix-counted" tags=["hide-input"]
# Count: what prefill read in each case
prompts, written = sum(len(prompt) - 1 for prompt, _ in longer), sum(map(len, both[1]))
prove("apart, every prompt is read whole", apart.n_read == prompts + written)
once = shared.n_read - written
print(f"{len(instructions)} tokens of instructions, six questions: prefill reads {prompts} tokens apart, {once} shared")
prove("three blocks of 16 are shared by six prompts", prompts - once == 6 * 48 - len(instructions))

# %% [markdown] id="prefix-says"
# Only a *beginning* can be shared. In any layer but the first, the key of a word depends on all words before it. So the
# same sentence in the middle of two different texts has different keys.
#
# ## 5 Smaller numbers
#
# What else makes room? Weights in fewer bits. Chapter 8 recorded their price: with 8 bits none that could be measured,
# with 4 bits less than another seed makes. Here is the same for the model that you have just served:

# %% id="rounded" tags=["hide-input", "atol:0.1"]
# Measure: held-out loss of the model with rounded weights
pieces = held_out[: 200 * (T + 1)].view(200, T + 1)
losses = {}
for name, options in (("32 bits", None), ("8 bits", {"bits": 8}), ("4 bits", {"bits": 4, "group": 32})):
    rounded = copy.deepcopy(gpt)
    if options:
        quantize_(rounded, **options)
    with torch.no_grad():
        logits = rounded(pieces[:, :-1]).flatten(0, 1)
    losses[name] = F.cross_entropy(logits.float(), pieces[:, 1:].flatten()).item()
    print(f"{name:>7}: loss {losses[name]:.3f}")
prove("8 bits cost less than 0.002, 4 bits less than 0.02", losses["8 bits"] - losses["32 bits"] < 0.002
      and losses["4 bits"] - losses["32 bits"] < 0.02)  # fmt: skip

# %% [markdown] id="room-text"
# Now put Llama 3 8B on a card with 24 GB that fetches 1,000 GB per second. The memory that the weights leave is cache.
# Each pass fetches all weights and all caches, and that is its least time (chapter 8). We fill the card with texts of
# 2,048 tokens.

# %% id="room" tags=["hide-input"]
# Count: texts that fit, and the most tokens per second that fetching allows
llama = PUBLISHED["llama-3-8b"].config()
n_weights = scaling.count_parameters(llama).total()
cache = scaling.kv_cache_bytes(llama, 1, 2048, dtype=torch.bfloat16) / 1e9  # GB of one text
for bits, stored in ((16, 16), (8, 8), (4, 4.5)):  # 4 bits: and 16 for each 32 weights, their step
    weights = n_weights * stored / 8 / 1e9  # GB
    n = int((24 - weights) / cache)
    alone, each = 1000 / (weights + cache), 1000 / (weights + n * cache)
    print(f"{bits:>2} bits: weights {weights:4.1f} GB, {n:>2} texts fit; tokens per second at most: "
          f"{alone:3.0f} alone, {each:2.0f} each of {n}, {n * each:5,.0f} in all")  # fmt: skip

# %% [markdown] id="room-says"
# Look along a row. Twenty-nine readers together get twenty times what one gets alone, and each of them waits only half
# as long again for a token. Now look down. Fewer bits make a lone reader much faster. On a full card they bring more
# readers, and nobody gets a faster answer, since the card fetches its 24 GB in every pass. (These are
# upper limits; a real server also computes, and stays below them.)
#
# ## The answer
#
# | what limits | what helps | what you counted |
# |---|---|---|
# | fetching the weights for one token | many texts in each pass | 29 texts, 20 times the tokens |
# | waiting for the longest answer | continuous batching | 683 passes instead of 2,000 |
# | memory reserved for what never comes | blocks | 92 % of the memory in use, not 28 % |
# | reading the same beginning | shared blocks | each prompt shorter by 48 tokens |
# | room for caches | fewer bits, fewer heads (chapter 7) | 72 texts instead of 29 |
# | one token for each pass | a draft that guesses | [choosing tokens](05_choosing.ipynb) |
#
# None of the first four changes a single token. To serve your own model to others, take an engine that does all this:
# [serving](../../docs/serving.md) says which.
#
# <details><summary>Sources</summary>
#
# Yu et al. 2022, *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI, section 3 (they
# call it iteration-level scheduling). Kwon et al. 2023, *Efficient Memory Management for Large Language Model Serving
# with PagedAttention*, arXiv:2309.06180: the 20.4 to 38.2 % in section 1, blocks in section 4, blocks of 16 in section
# 7.2. Zheng et al. 2023, *SGLang*, arXiv:2312.07104 (beginnings shared without being told). The tests of this course
# compare answers and blocks with the continuous batching of `transformers`.
#
# </details>
