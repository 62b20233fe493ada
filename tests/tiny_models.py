"""What tests share: small models, their loss, prompts, comparison with transformers, and statistics."""

import math

import torch
import torch.nn.functional as F
from published import PAD
from torch import nn

from course_lib import testing as laws
from course_lib.generation import pad_left
from course_lib.transformer import LanguageModel, TransformerConfig

V, STOP = 7, 1
PROMPT = torch.tensor([[3, 4]])


class Loss(nn.Module):
    """A model with the loss that training takes of it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *tokens):
        return F.cross_entropy(self.model(*tokens).flatten(0, 1), tokens[-1].flatten())


def prompts():
    """Token ids with padding on the left, and the mask."""
    torch.manual_seed(1)
    return pad_left([torch.randint(3, 29, (n,)).tolist() for n in (6, 2, 4)], PAD)


def sources():
    torch.manual_seed(1)
    source = torch.randint(3, 29, (3, 8))
    source[0, 5:] = PAD
    return source, source.new_full((3, 1), PAD)


def of_transformers(model, tokens, mask, **options):
    """What `generate` of transformers returns, as (B, T + N) with the padding id after the end."""
    if model.config.is_encoder_decoder:
        options["use_cache"] = False  # theirs expects as many layers in the decoder as in the encoder
    with torch.no_grad():
        return model.generate(input_ids=tokens, attention_mask=None if mask is None else mask.long(), **options)


def same(ours, theirs):
    """Equal, whatever the width that padding fills."""
    width = max(ours.size(1), theirs.size(1))
    padded = [nn.functional.pad(t, (0, width - t.size(1)), value=PAD) for t in (ours, theirs)]
    assert torch.equal(*padded), f"\n{padded[0]}\n{padded[1]}"


def small_model(vocab_size=V, **changes):
    sizes = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "max_length": 40}
    config = TransformerConfig(**{**sizes, "positions": "rotary", "vocab_size": vocab_size, **changes})
    model = LanguageModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def nan_model(tokens):
    return torch.full((*tokens.shape, V), math.nan)


def chi_squared(counts, probabilities):
    """How many standard deviations the statistic lies above its mean; what cannot happen must not have happened."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * counts.sum()
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = int(possible.sum()) - 1
    return ((statistic - freedom) / math.sqrt(2 * freedom)).item()


def insist_on_the_laws_of_an_encoder_decoder(model, source, target, name, obeys, *, vocab_size, prefills):
    """Source (B, S) and target (B, T) ids; each law that passed is noted under `name`."""
    T, fixed = target.size(1), target[:1]
    laws.assert_causal(lambda ids: model(source, ids), target, module=model, vocab_size=vocab_size)
    obeys(name, "causal")
    laws.assert_padding_invariant(
        lambda ids, real: model(ids, fixed.expand(len(ids), T), source_mask=real[:, None, None]),
        source,
        per_token=False,
        module=model,
        vocab_size=vocab_size,
    )
    obeys(name, "padding")

    def step(new, state):
        context, cache = state or (model.encode(source), model.new_cache())
        return model.decode(new, context, cache=cache), (context, cache)

    laws.assert_cache_consistent(lambda ids: model(source, ids), step, target, prefills=prefills, module=model)
    obeys(name, "cache")
    laws.assert_finite(model, source, target)
    obeys(name, "finite")
    laws.assert_gradients_flow(model, source, target)
    obeys(name, "gradients")


def places(real):
    """The positions of tokens of which these are real and the others padding on the left."""
    return (real.long().cumsum(1) - 1).clamp(min=0)


def padded(model, ids, real=None, **options):
    """A pass over the last ids (B, T) of texts of which these tokens are real; all, if None."""
    if real is not None:
        options |= {"mask": real[:, None, None], "positions": places(real)[:, -ids.size(1) :]}
    return model(ids, **options)


def insist_on_the_laws_of_a_language_model(model, ids, name, obeys, *, vocab_size):
    """Each law that passed for the ids (B, T) is noted under `name`."""

    def step(new, cache, real=None):
        cache = model.new_cache() if cache is None else cache
        return padded(model, new, real, cache=cache), cache

    def whole(ids, real=None):
        return padded(model, ids, real)

    def after(prompt, rest):
        return step(rest, step(prompt, None)[1])[0]

    laws.assert_causal(model, ids, cached=after, module=model, vocab_size=vocab_size)
    obeys(name, "causal")
    laws.assert_padding_invariant(whole, ids, side="left", module=model, vocab_size=vocab_size)
    obeys(name, "padding")
    prefills = [0, 1, 5, ids.size(1) - 1]
    laws.assert_cache_consistent(whole, step, ids, prefills=prefills, left_padding=True, module=model)
    obeys(name, "cache")
    laws.assert_finite(model, ids)
    obeys(name, "finite")
    laws.assert_gradients_flow(model, ids)
    obeys(name, "gradients")
