# %% [markdown] id="title"
# # Lab: nine bugs in decoders
#
# **The question: how do you notice that a model which writes is wrong?** A decoder with a bug still writes something,
# and for a while it looks fluent. Its loss falls, sometimes to a wonderful value. Here are nine bugs that raise no
# error. For each exhibit read the code, say what is wrong, then run it and see which law notices.
#
# The lab stands on [chapter 5](../05_decoder.ipynb): causal mask, shifted targets, cross-attention, the cache, beam
# search. It has one exercise and takes about {minutes} minutes.

# %% id="imports" tags=["hide-input"]
# Imports, two small models that were never trained, and settings so that the numbers come out nearly the same
import functools

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import masks, testing
from course_lib.config import TransformerConfig
from course_lib.decoder import DecoderLayer, TransformerDecoder
from course_lib.generation import generate, pad_left
from course_lib.multi_head import MultiHeadAttention
from course_lib.testing import complaint, prove
from course_lib.transformer import LanguageModel, Transformer
from coursework import exercises as ex
from coursework.pictures import drawings, palette, show
from coursework.pictures.plots import common

torch.set_num_threads(1)
torch.manual_seed(0)
sizes = {"vocab_size": 17, "d_model": 32, "n_heads": 2, "n_decoder_layers": 2, "dropout": 0.0}
small = LanguageModel(TransformerConfig(**sizes, n_encoder_layers=0)).eval().requires_grad_(False)
translator = Transformer(TransformerConfig(**sizes, n_encoder_layers=2)).eval().requires_grad_(False)
tokens = torch.randint(1, 17, (3, 9), generator=torch.Generator().manual_seed(0))

# %% [markdown] id="laws"
# Two models serve us, both small and never trained: `small`, a decoder that reads and writes tokens from 0 to 16, and
# `translator`, an encoder and a decoder. Bugs of this kind do not need a trained model to show.
#
# The laws:
#
# - **Causal.** Changing a later token changes no earlier output. For predictions it is stricter: changing token t must not
#   change the prediction *of* token t.
# - **Cache.** Writing in pieces with a cache gives what one pass over the whole text gives.
# - **Padding.** What fills up a batch changes nothing for the texts in it.
# - **Twice the same.** What one text is answered does not depend on the text before it.
#
# `complaint` runs a law and returns what it has against the code, or nothing.
#
# ## Exhibit 1: a loss that falls beautifully
#
# In training, the decoder reads the targets, and at each position it has to predict one of them. The author hands the
# targets over as they are. What is the easiest way to a loss of zero?

# %% id="museum-shift-drawn" tags=["hide-input"]
# Drawing: what stands below each prediction
drawings.answer_in_sight().show()


# %% id="museum-shift-code"
def exhibit1(targets):
    return small(targets)  # prediction t from targets 0 to t


def repaired1(targets):
    start = torch.full_like(targets[:, :1], 0)  # the start sign
    return small(torch.cat([start, targets[:, :-1]], dim=1))


# %% [markdown] id="museum-shift-law"
# The causal law as it stands does not complain: position t may see token t. For predictions one must ask more. We move
# the predictions one position back. Then the law says: changing target t may change nothing *before* t, and the
# prediction of t now stands before t.


# %% id="museum-shift"
def blind_to_its_answer(predict):
    def moved_back(targets):
        return predict(targets).roll(-1, dims=1)

    law = functools.partial(testing.assert_causal, sees_itself=False, vocab_size=17)
    return complaint(law, moved_back, tokens, module=small)


found = blind_to_its_answer(exhibit1)
print(found)
prove("1: unshifted targets are caught by the causal law on predictions", found)
prove("1: shifted targets obey it", not blind_to_its_answer(repaired1))

# %% [markdown] id="museum-training-question"
# The easiest way is to copy. The loss goes to zero, and when the model writes, the answer is not there to be copied. A
# loss that is too good is a bug report.
#
# ## Exhibit 2: no future, no mask?
#
# “When the model writes there is no future that it could see. So the mask is needed in training only.” Think of the
# prompt, which is given as a whole, and of all layers but the first.


# %% id="museum-training-code"
class Exhibit2(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(MultiHeadAttention(12, 2) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x, causal=self.training)
        return x


# %% [markdown] id="museum-training-guess-text"
# We change the sixth token of a prompt of seven. The cache would hold the keys of all seven.
#
# **Predict.** In which of the four layers do the keys of the first five tokens change?

# %% id="museum-training-guess"
ex.predict("lab_decoder_bugs_which_keys", "")

# %% id="museum-training" tags=["hide-input"]
# Law: causal, in both modes; and a figure: how far the keys of earlier tokens move in each layer
torch.manual_seed(0)
broken, x = Exhibit2().eval(), torch.randn(2, 7, 12)
found = complaint(testing.assert_causal, broken, x)
print(found)
prove("2: causal only while training is caught by assert_causal, which runs both modes", found)
later, moved = x.clone(), []
later[:, 5] += 1.0  # the sixth token
with torch.no_grad():
    streams = [x, later]
    for layer in broken.layers:
        keys = [layer.key(stream) for stream in streams]
        moved.append((keys[1] - keys[0])[:, :5].abs().max().item())
        streams = [stream + layer(stream) for stream in streams]
axes = {"xlabel": "layer", "ylabel": "keys of tokens 1 to 5 move by"}
show(
    common.bars(range(1, 5), moved, size=(5.6, 2.6), colours=palette.key, xticks=range(1, 5), **axes),
    alt="Four bars, one for each layer: how far the keys of the first five tokens move when the sixth changes. Zero in layer "
    "1, more than zero in layers 2 to 4.",
    caption="The first layer makes its keys from the tokens alone. From the second layer on they hold the future.",
)
prove("2: the keys of the first layer have no future in them, those of the others have", moved[0] == 0 < min(moved[1:]))

# %% [markdown] id="museum-training-says"
# The first layer makes its keys from each token alone, so they are right. Its *outputs* have seen the whole prompt, and
# from them the second layer makes its keys. So the model writes on from states that it never met in training.
#
# ## Exhibit 3: the last column
#
# Prompts of different lengths are padded on the right, the padding is masked, and the next token is read where it
# always is, at the end.

# %% id="museum-last-drawn" tags=["hide-input"]
# Drawing: a batch that is padded on the right
drawings.last_column().show()


# %% id="museum-last-code"
def exhibit3(batch, real):
    logits = small(batch, mask=real[:, None, None])  # (B, T, V)
    return logits[:, -1]


def repaired3(batch, real):
    logits = small(batch, mask=real[:, None, None])
    last = real.sum(dim=1) - 1  # the position of the last real token
    return logits[torch.arange(len(batch)), last]


# %% id="museum-last"
padding = testing.assert_padding_invariant
law = functools.partial(padding, per_token=False, vocab_size=17)
found = complaint(law, exhibit3, tokens, module=small)
print(found)
prove("3: reading the last column of a batch padded on the right is caught", found)
broken = complaint(law, repaired3, tokens, module=small)
prove("3: reading at the last real token obeys the law", not broken)

# %% [markdown] id="museum-last-says"
# For all but the longest prompt the last column is a pad, and the model is asked what follows a pad. One can read at
# the right position, as here. Most programs pad on the left instead, so that all prompts end in the last column; then
# absolute *positions* must be counted from the first real token. Relative ones need not, for they see distances alone
# ([lab on chapter 3](03_bugs.ipynb), exhibit 2).
#
# ## Exhibit 4: half of the masks
#
# A batch of source sentences for the translator is padded. The author has understood this and gives the encoder its
# mask. What about the decoder?


# %% id="museum-context-code"
def exhibit4(source, real):
    context = translator.encode(source, source_mask=real[:, None, None])
    return translator.decode(target[: len(source)], context)


def repaired4(source, real):
    seen = real[:, None, None]  # (B, 1, 1, S)
    context = translator.encode(source, source_mask=seen)
    return translator.decode(target[: len(source)], context, context_mask=seen)


# %% id="museum-context" tags=["hide-input"]
# Law: padding of the source; and a figure: how far the logits move with the number of pads
target = torch.randint(1, 17, (1, 5), generator=torch.Generator().manual_seed(3)).expand(16, -1)
found = complaint(law, exhibit4, tokens, module=translator)
print(found)
prove("4: a cross-attention without the mask of the source is caught by the law of padding", found)
prove("4: with the mask it obeys", not complaint(law, repaired4, tokens, module=translator))
pads = (0, 1, 2, 4, 8, 16)
lines = {"no mask in cross-attention": exhibit4, "with the mask": repaired4}
moved = {name: [] for name in lines}
for name, run in lines.items():
    alone = run(tokens[:1], torch.ones(1, 9, dtype=torch.bool))
    for extra in pads:
        real = torch.arange(9 + extra)[None] < 9
        moved[name].append((run(F.pad(tokens[:1], (0, extra)), real) - alone).abs().max().item())
axes = {"xlabel": "pads behind the source", "ylabel": "logits move by"}
show(
    common.curves(range(len(pads)), moved, xticks=range(len(pads)), xticklabels=pads, **axes),
    alt="How far the logits of the target move against the number of pads behind the source. Without the mask in the "
    "cross-attention the line rises; with it the line is zero.",
    caption="The encoder was masked in both cases. The decoder reads what stands at the pads all the same.",
)

# %% [markdown] id="museum-context-says"
# The encoder's mask keeps pads from being *read by words*. But the encoder returns a vector for every position, pads
# included, and the decoder reads all of them. So the mask of the source is needed a second time.
#
# ## Exhibit 5: a convenient default
#
# A cache is an argument that one mostly does not want to think about. So it gets a default value. The first text is
# answered correctly. And the second?


# %% id="museum-default-code"
def exhibit5(new, cache=small.new_cache()):  # noqa: B008
    return small(new, cache=cache)


def repaired5(new, cache=None):
    return small(new, cache=small.new_cache() if cache is None else cache)


# %% id="museum-default"
for function in (exhibit5, repaired5):
    first, second = function(tokens[:1]), function(tokens[:1])
    print(f"{function.__name__}: {(first - second).abs().max():.2f}")

# %% id="museum-default-proof" tags=["hide-input"]
# The verdicts
again = exhibit5(tokens[:1])
prove("5: a cache as default value remembers the text before", not torch.allclose(again, first, atol=1e-3))
prove("5: a new cache in each call does not", torch.equal(first, second))

# %% [markdown] id="museum-default-says"
# Python computes a default value once, when the function is defined. All calls share one cache, and the second text
# is read as the continuation of the first. In a service this means: one user's text in the answer to another. The law
# is the simplest of all, twice the same.
#
# ## Exhibit 6: beams without their caches
#
# Beam search keeps several texts, the *beams*. After each step it keeps the best continuations, and several of them may
# come from the same beam. The texts are copied to their new rows. What else must be copied?

# %% id="museum-beams-drawn" tags=["hide-input"]
# Drawing: texts that moved, and caches that stayed
drawings.beams_and_caches().show()


# %% id="museum-beams"
def next_logits(reorder):
    cache = small.new_cache()
    small(tokens[:2], cache=cache)  # two beams, read into the cache
    parents = torch.tensor([1, 1])  # both winners continue the second
    if reorder:
        cache.reorder(parents)
    new = torch.tensor([[5], [6]])
    whole = small(torch.cat([tokens[parents], new], dim=1))[:, -1]
    return (small(new, cache=cache)[:, -1] - whole).abs().amax(dim=-1)


for reorder in (False, True):
    print("caches moved:", reorder, [f"{off:.2f}" for off in next_logits(reorder)])

# %% id="museum-beams-proof" tags=["hide-input"]
# The verdicts
prove("6: without its cache the first beam gets other logits than its text gives", next_logits(False)[0] > 0.1)
prove("6: the second is right by luck", next_logits(False)[1] < 1e-4)
prove("6: with the caches moved both are right", next_logits(True).max() < 1e-4)

# %% [markdown] id="museum-beams-says"
# Row 1 now holds the text of the second beam and the cache of the first. It writes on about a text that it no longer
# has. Row 2 is right, because its text stayed in its row. So a test with one beam finds nothing, and neither does a
# look at the best beam on a good day. The law of the cache finds it: compare with one pass over the whole text.
#
# ## Three that you have met
#
# Three famous bugs of decoders stand in the labs on chapters 1 and 3, where their cause was the topic. Here they are
# in a whole decoder.
#
# | exhibit | the bug | where it is explained |
# |---|---|---|
# | 7 | `is_causal=True` with a cache aligns the triangle at the first key | [chapter 1](01_bugs.ipynb), exhibit 7 |
# | 8 | positions restart at 0 in each call with a cache | [chapter 3](03_bugs.ipynb), exhibit 1 |
# | 9 | padding on the left, positions counted by columns | [chapter 3](03_bugs.ipynb), exhibit 2 |

# %% id="museum-flag" tags=["hide-input"]
# Exhibit 7: PyTorch's flag with a cache
attend = F.scaled_dot_product_attention
vectors = torch.randn(2, 7, 6, generator=torch.Generator().manual_seed(0))


def exhibit7(new, cache):
    cache = new if cache is None else torch.cat([cache, new], dim=1)  # keys and values are x itself here
    return attend(new, cache, cache, is_causal=True), cache


def repaired7(new, cache):
    cache = new if cache is None else torch.cat([cache, new], dim=1)
    return attend(new, cache, cache, attn_mask=masks.causal_mask(new.size(1), cache.size(1))), cache


def at_once(x):
    return attend(x, x, x, is_causal=True)


found = complaint(testing.assert_cache_consistent, at_once, exhibit7, vectors)
print("7:", found)
prove("7: is_causal with a cache is caught by assert_cache_consistent", found)
prove(
    "7: a triangle aligned at the last key obeys",
    not complaint(testing.assert_cache_consistent, at_once, repaired7, vectors),
)

# %% id="museum-position" tags=["hide-input"]
# Exhibit 8: positions that restart


def with_positions(start):
    def step(new, cache):
        cache = small.new_cache() if cache is None else cache
        return small(new, cache=cache, positions=start(cache) + torch.arange(new.size(1))), cache

    return complaint(testing.assert_cache_consistent, small, step, tokens)


found = with_positions(lambda cache: 0)
print("8:", found)
prove("8: every cached token at position 0 is caught by assert_cache_consistent", found)
prove("8: positions after the cache obey the law", not with_positions(lambda cache: cache.length))

# %% id="museum-padding" tags=["hide-input"]
# Exhibit 9: padding on the left; and the library's own generation


def exhibit9(batch, real):
    return small(batch, mask=real[:, None, None])


def repaired9(batch, real):
    from_zero = (real.cumsum(dim=1) - 1).clamp(min=0)  # each row counts its own real tokens
    return small(batch, mask=real[:, None, None], positions=from_zero)


from_left = functools.partial(testing.assert_padding_invariant, side="left", vocab_size=17)
found = complaint(from_left, exhibit9, tokens, module=small)
print("9:", found)
prove("9: left padding without its own positions is caught by assert_padding_invariant", found)
prove("9: positions that count real tokens obey the law", not complaint(from_left, repaired9, tokens, module=small))
batch, real = pad_left([[3, 5, 7], [4, 2, 9, 11, 6, 8]], pad_id=0)
together = generate(small, batch, prompt_mask=real, max_new_tokens=8, temperature=0)[0, 6:]
alone = generate(small, torch.tensor([[3, 5, 7]]), max_new_tokens=8, temperature=0)[0, 3:]
prove("9: the library writes for a padded prompt what it writes for it alone", torch.equal(together, alone))

# %% [markdown] id="parity-text"
# ## The strongest test: another program
#
# A model is written twice, in different ways, and the two are compared. Here is the decoder layer once more, with
# plain functions, one head and no module. Yours must give what the library's gives on the same weights.

# %% exercise="decoder_layer"


# %% id="layer-in-functions" tags=["hide-input"]
# Check: the function is the library's layer with one head and without biases, on the same weights
torch.manual_seed(0)
D, D_ff, S, T = 11, 23, 5, 3
plain = TransformerConfig(d_model=D, n_heads=1, d_ff=D_ff, bias=False, norm_place="pre", dropout=0.0, positions="none")
layer = DecoderLayer(plain)
own = {
    name: torch.stack([w.detach().T for w in (*part.projection_weights(), part.output.weight)])  # (4, D, D)
    for name, part in (("self", layer.self_attention), ("cross", layer.cross_attention))
}
own |= {name: getattr(layer.feed_forward, name).weight.detach().T for name in ("up", "down")}
x, context = torch.randn(2, T, D), torch.randn(2, S, D)
seen = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None]  # (B, 1, S): two source positions are padding
mine, theirs = decoder_layer(x, context, own, seen), layer(x, context, context_mask=seen[:, None])
prove("the function equals the library's layer on the same weights", torch.allclose(mine, theirs, atol=1e-5))

# %% [markdown] id="parity-torch-text"
# As for the encoder, the strongest test is a program that one trusts. The course's decoder layer takes over the weights
# of PyTorch's. PyTorch must be *told* to be causal. Its mask has minus infinity where nothing may be seen.

# %% id="layer-torch"
later = nn.Transformer.generate_square_subsequent_mask(7)  # (7, 7)
x, context = torch.randn(2, 7, 24), torch.randn(2, 5, 24)
for norm_first in (False, True):
    theirs = nn.TransformerDecoderLayer(
        24, 3, 48, dropout=0.0, batch_first=True, norm_first=norm_first
    )  # fmt: skip
    causal = functools.partial(theirs, tgt_mask=later, tgt_is_causal=True)
    ours = DecoderLayer.from_torch(theirs)
    found = testing.assert_equivalent(ours, causal, x, context)
    prove(f"DecoderLayer equals torch's, norm first {norm_first}", max(found) < 1e-4)

# %% id="model-torch" tags=["hide-input"]
# The stack of decoder layers, and the whole Transformer, against PyTorch's: outputs and gradients
torch.manual_seed(0)
theirs = nn.Transformer(24, 4, 2, 2, 48, dropout=0.0, batch_first=True)
causal = functools.partial(theirs, tgt_mask=later, tgt_is_causal=True)
found = testing.assert_equivalent(Transformer.from_torch(theirs), causal, torch.randn(2, 5, 24), torch.randn(2, 7, 24))
prove("Transformer equals torch.nn.Transformer, outputs and gradients", max(found) < 1e-4)
stack = TransformerDecoder.from_torch(theirs.decoder)
causal = functools.partial(theirs.decoder, tgt_mask=later)
found = testing.assert_equivalent(stack, causal, torch.randn(2, 7, 24), torch.randn(2, 5, 24))
prove("the decoder stack, which masks by itself, equals torch's", max(found) < 1e-4)

# %% [markdown] id="paper-size-text"
# A folded cell compares the whole stack and the whole Transformer in the same way.
#
# ### At the size of the paper
#
# Counting finds what is missing or shared by mistake. Here is the decoder side of the paper's base model with 30,000
# tokens, and a head of its own. Each part by its formula, with the width D = 512 and the inner width F = 2048:

# %% id="paper-size"
D, d_ff, V = 512, 2048, 30_000
attention = 4 * (D * D + D)  # queries, keys, values, output
network = (D * d_ff + d_ff) + (d_ff * D + D)
parts = {
    "table of tokens": V * D,
    "6 self-attentions": 6 * attention,
    "6 cross-attentions": 6 * attention,
    "6 feed-forwards": 6 * network,
    "6 times 3 norms": 6 * 3 * 2 * D,
    "head": V * D + V,
}
print(f"together {sum(parts.values()):,} parameters")

# %% id="paper-size-figure" tags=["hide-input"]
# Figure: where they are; built and counted, run for shapes
millions = [count / 1e6 for count in parts.values()]
axes = {"xlabel": "million parameters", "xlim": (0, 18)}
show(
    common.bars(list(parts), millions, size=(6.8, 2.7), colours=palette.query, lying=True, numbers="%.1f", **axes),
    alt="Bars: table of tokens 15.4 million parameters, six self-attentions 6.3, six cross-attentions 6.3, six feed-forwards "
    "12.6, the norms nearly 0, the head 15.4.",
    caption="More than half of the decoder side are the table and the head.",
)
base = TransformerConfig(vocab_size=V, tie_embeddings=False, head_bias=True, n_encoder_layers=0)
with torch.device("meta"):  # shapes and counts alone, no memory
    big = Transformer(base).eval()
    logits = big.decode(torch.zeros(4, 15, dtype=torch.int64), torch.zeros(4, 20, D))
    whole = Transformer(TransformerConfig(vocab_size=32_000, share_vocabulary=True)).eval()
    whole_logits = whole(torch.zeros(4, 30, dtype=torch.int64), torch.zeros(4, 25, dtype=torch.int64))
built = sum(p.numel() for part in (big.embedding, big.decoder, big.head) for p in part.parameters())
prove("the decoder side has 55,974,192 parameters, as the formula says", built == sum(parts.values()) == 55_974_192)
print("logits", tuple(logits.shape), " next token", tuple(logits[:, -1].shape))
print(f"the whole base model with one table of 32,000: {sum(p.numel() for p in whole.parameters()):,} parameters")
prove("at translation size the logits are (4, 25, 32000)", whole_logits.shape == (4, 25, 32_000))

# %% [markdown] id="sentences"
# ## Two sentences you may meet
#
# **“The model returns a probability distribution.”** It returns *logits*: one number for each token of the vocabulary,
# of any size and sign. A softmax turns them into probabilities. Losses and samplers take the softmax themselves, in a
# form that does not overflow. Apply it once more, and you get a flat distribution, and again no error.

# %% id="distribution"
logits = 3 * torch.randn(17, generator=torch.Generator().manual_seed(0))
once = logits.softmax(-1)
twice = once.softmax(-1)
print(f"logits: sum {logits.sum():.1f}, smallest {logits.min():.1f}")
print(f"largest probability: once {once.max():.2f}, twice {twice.max():.2f}")

# %% id="distribution-figure" tags=["hide-input"]
# Figure: softmax once and twice
chances = {"softmax once": once, "softmax twice": twice}
axes = {"xlabel": "token", "xticks": range(0, 17, 4), "ylabel": "probability"}
show(
    common.panels(common.bars, range(17), chances, size=(7.0, 2.4), colours=palette.output, **axes),
    alt="Two rows of 17 bars. After one softmax a few tokens have nearly all the probability. After two all tokens have almost "
    "the same.",
    caption="A softmax of probabilities is nearly even, since all its inputs lie between 0 and 1.",
)
prove("logits are no distribution", logits.min() < 0)
prove("after a softmax they sum to one, and after two still", torch.allclose(twice.sum(), once.sum()))
prove("but the second softmax flattens them", twice.max() < 0.5 * once.max())

# %% [markdown] id="answer"
# **“The most probable token is the model's prediction.”** It is, if one chooses greedily. The prediction itself is the
# whole distribution; how to choose from it is a matter of its own (chapter 5).
#
# ## The answer
#
# | exhibit | what went wrong | the law that sees it |
# |---|---|---|
# | 1 | targets unshifted | causal, for predictions |
# | 2 | a mask in training only | causal, in both modes |
# | 3 | the last column is a pad | padding |
# | 4 | no mask in the cross-attention | padding of the source |
# | 5 | one cache for all texts | twice the same |
# | 6 | beams moved, caches not | cache |
# | 7 | triangle aligned at the first key | cache |
# | 8 | positions restart | cache |
# | 9 | positions by column | padding on the left |
#
# Not one of them shows in a shape, and the first makes the loss *better*. A model that writes is right if it is
# blind to its own answers, and if writing in pieces equals reading at once. And nothing of its neighbours in the
# batch, or of the text before, may be found in its output.
#
# **Sources.** PyTorch issue [108108](https://github.com/pytorch/pytorch/issues/108108) (alignment of `is_causal`);
# PyTorch's documentation of `nn.TransformerDecoderLayer`; the Python tutorial, section 4.9.1, *Default Argument
# Values*; Vaswani et al. 2017, arXiv:1706.03762, table 3 (sizes).
