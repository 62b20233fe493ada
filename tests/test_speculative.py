"""Speculative decoding: exactly the distribution of the target model, in fewer of its passes."""

import itertools

import pytest
import torch
from tiny_models import PROMPT, V, chi_squared, nan_model, small_model

from course_lib.generation import Sampling, generate, speculative_generate
from course_lib.transformer import Transformer, TransformerConfig


def joint(model, prompt, N, settings):
    """The exact probability of each of the V^N continuations."""
    probabilities = torch.ones(1)
    tokens = prompt
    for _ in range(N):
        p = settings.probabilities(model(tokens)[:, -1])  # (n, V)
        probabilities = (probabilities[:, None] * p).flatten()
        tokens = torch.cat([tokens.repeat_interleave(V, 0), torch.arange(V).repeat(len(tokens))[:, None]], dim=1)
    return probabilities


def table_model():
    """A function of the last two tokens."""
    table = torch.randn(V, V, V)

    def model(tokens):
        return table[tokens, tokens.roll(1, dims=1)]

    return model


def flat_model(**changes):
    """A real one, flat enough for two of them to overlap."""
    model = small_model(**changes)
    model.head.weight.data /= 3
    return model


@pytest.mark.parametrize(
    ("make", "settings", "n_guesses", "runs"),
    [
        *[
            (table_model, settings, n, 4000)
            for settings, n in itertools.product([{}, {"temperature": 0.7, "top_k": 4}, {"top_p": 0.8}], [1, 2, 5])
        ],
        (flat_model, {"temperature": 0.9, "top_k": 6}, 2, 1000),
    ],
)
@torch.no_grad()
def test_speculative_decoding_keeps_the_target_distribution(make, settings, n_guesses, runs):
    """Chi-squared over all continuations of three tokens; the draft model's own distribution fails it."""
    N, target, draft, prompt = 3, make(), make(), torch.tensor([[3, 4]])
    expected = joint(target, prompt, N, Sampling(**settings))
    generator = torch.Generator().manual_seed(0)
    options = {"max_new_tokens": N, "generator": generator, **settings}
    powers = torch.tensor([V**2, V, 1])
    found = [speculative_generate(target, draft, prompt, n_guesses=n_guesses, **options) for _ in range(runs)]
    drawn = torch.cat([f.tokens for f in found]), generate(draft, prompt.expand(runs, 2), **options)
    counts, of_draft = ((tokens[:, 2:] * powers).sum(1).bincount(minlength=V**N).float() for tokens in drawn)
    assert 0.2 < sum(f.accepted for f in found) / sum(f.guessed for f in found) < 0.99
    common = expected * runs >= 5  # the rare ones count together
    counts, of_draft, pooled = (torch.cat([x[common], x[~common].sum()[None]]) for x in (counts, of_draft, expected))
    assert counts[pooled == 0].sum() == 0
    assert chi_squared(counts, pooled) < 5
    assert of_draft[pooled == 0].sum() > 0 or chi_squared(of_draft, pooled) > 20


@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_speculation_is_greedy_decoding_in_fewer_passes(positions, window, use_cache):
    target = small_model(positions=positions, window=window)
    draft = small_model(positions=positions)
    prompt = torch.tensor([[3, 4, 5]])
    options = {"max_new_tokens": 20, "temperature": 0, "use_cache": use_cache}
    expected = generate(target, prompt, **options)
    assert torch.equal(speculative_generate(target, draft, prompt, **options).tokens, expected)
    perfect = speculative_generate(target, target, prompt, n_guesses=4, **options)
    assert torch.equal(perfect.tokens, expected)
    assert perfect.accepted == perfect.guessed == 16
    assert perfect.passes == 4


def test_speculation_stops_and_takes_sources():
    config = TransformerConfig(d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, vocab_size=V)
    target, draft = Transformer(config).eval(), Transformer(config).eval()
    source, start = torch.tensor([[2, 3, 4]]), torch.tensor([[0]])
    whole = generate(target, start, source=source, max_new_tokens=10, temperature=0)
    stop = whole[0, 3].item()
    expected = generate(target, start, source=source, max_new_tokens=10, temperature=0, stop=stop)
    for model in (draft, small_model()):
        found = speculative_generate(
            target, model, start, source=source, max_new_tokens=10, temperature=0, stop=stop, n_guesses=3
        )
        assert torch.equal(found.tokens, expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda m: speculative_generate(m, m, PROMPT.expand(2, 2), max_new_tokens=1),
            ValueError,
            r"prompt: expected one example \(1, T\), got \(2, 2\)",
        ),
        (
            lambda m: speculative_generate(m, m, PROMPT, max_new_tokens=1, repetition_penalty=2.0),
            ValueError,
            "repetition_penalty: not supported",
        ),
        (
            lambda m: speculative_generate(m, m, PROMPT, max_new_tokens=1, n_guesses=0),
            ValueError,
            "n_guesses: .* got 0",
        ),
        (
            lambda m: speculative_generate(m, nan_model, PROMPT, max_new_tokens=3),
            ValueError,
            "draft: its logits hold NaN",
        ),
        (
            lambda m: speculative_generate(m, small_model(vocab_size=9), PROMPT, max_new_tokens=3),
            ValueError,
            "draft: expected a vocabulary of 7 like model, got 9",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(small_model())
