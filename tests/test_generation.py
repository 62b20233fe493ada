"""Generation: the tokens of transformers, exact distributions, and no difference made by cache, batch or padding."""

import itertools
import math

import pytest
import torch
from published import LANGUAGE_MODELS, PAD, t5
from tiny_models import (
    PROMPT,
    STOP,
    V,
    chi_squared,
    nan_model,
    of_transformers,
    prompts,
    same,
    small_model,
    sources,
)
from torch import nn
from transformers import set_seed

from course_lib.generation import (
    beam_search,
    generate,
    min_p_filter,
    pad_left,
    penalise_repetition,
    stream,
    top_k_filter,
    top_p_filter,
)
from course_lib.generation.incremental import IncrementalModel
from course_lib.positions import SCHEMES
from course_lib.transformer import Transformer, TransformerConfig


@pytest.fixture(scope="module", params=list(LANGUAGE_MODELS))
def pair(request):
    return LANGUAGE_MODELS[request.param]()


@pytest.fixture(scope="module", params=[True, False], ids=["gated", "plain"])
def t5_pair(request):
    return t5(request.param)


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_equals_transformers(pair, use_cache):
    tokens, mask = prompts()
    theirs = of_transformers(pair.theirs, tokens, mask, max_new_tokens=12, do_sample=False)
    options = {"max_new_tokens": 12, "temperature": 0.0, "stop": STOP, "pad_id": PAD, "use_cache": use_cache}
    same(generate(pair.ours, tokens, prompt_mask=mask, **options), theirs)


def test_bfloat16_keeps_float32_keys_on_a_cpu():
    model = small_model(29).bfloat16()
    incremental = IncrementalModel(model, PROMPT, 4)
    logits = incremental.feed(PROMPT)
    assert logits.dtype == torch.bfloat16
    assert incremental._cache.layers[0].self_attention.keys.dtype == torch.float32
    torch.testing.assert_close(logits, model(PROMPT)[:, -1:], rtol=0.05, atol=0.05)
    assert IncrementalModel(small_model(29), PROMPT, 4)._cache.layers[0].self_attention.dtype is None


def test_greedy_encoder_decoder_equals_transformers(t5_pair):
    source, start = sources()
    theirs = of_transformers(t5_pair.theirs, source, source != PAD, max_new_tokens=12, do_sample=False)
    ours = generate(t5_pair.ours, start, source=source, max_new_tokens=12, temperature=0, stop=STOP, pad_id=PAD)
    same(ours, theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 12, "top_p": 0.9, "min_p": 0.05},
    ],
    ids=str,
)
def test_samples_equal_transformers(pair, settings):
    """The same seed draws the same tokens."""
    tokens, mask = prompts()
    set_seed(5)
    theirs = of_transformers(pair.theirs, tokens, mask, max_new_tokens=10, do_sample=True, **{"top_k": 0, **settings})
    torch.manual_seed(5)
    same(generate(pair.ours, tokens, prompt_mask=mask, max_new_tokens=10, stop=STOP, pad_id=PAD, **settings), theirs)


def test_repetition_penalty_equals_transformers(pair):
    tokens = prompts()[0][:, -2:]  # without padding: theirs counts it as seen
    options = {"max_new_tokens": 12, "repetition_penalty": 1.8}
    theirs = of_transformers(pair.theirs, tokens, None, do_sample=False, **options)
    same(generate(pair.ours, tokens, temperature=0, stop=STOP, pad_id=PAD, **options), theirs)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("positions", SCHEMES)
def test_cache_batch_and_padding_change_nothing(positions, window):
    model = small_model(positions=positions, window=window)
    examples = [[3, 4, 5, 6, 2], [2], [6, 6, 3]]
    tokens, mask = pad_left(examples, 0)
    options = {"max_new_tokens": 8, "temperature": 0, "repetition_penalty": 1.3, "stop": 5, "pad_id": 0}
    whole = generate(model, tokens, prompt_mask=mask, **options)
    assert torch.equal(whole, generate(model, tokens, prompt_mask=mask, use_cache=False, **options))
    for row, example in enumerate(examples):
        alone = generate(model, torch.tensor([example]), **options)[0]
        assert whole[row, mask.size(1) - len(example) :][: len(alone)].tolist() == alone.tolist()
    beams = {"n_beams": 3, "max_new_tokens": 6, "stop": 5, "pad_id": 0}
    found = beam_search(model, tokens, prompt_mask=mask, **beams)
    again = beam_search(model, tokens, prompt_mask=mask, use_cache=False, **beams)
    assert torch.equal(found.tokens, again.tokens)
    torch.testing.assert_close(found.scores, again.scores, rtol=1e-4, atol=1e-5)


def test_seeds():
    model, prompt = small_model(vocab_size=50), torch.full((4, 1), 3)

    def draw(seed):
        return generate(model, prompt, max_new_tokens=10, generator=torch.Generator().manual_seed(seed))

    before = torch.get_rng_state()
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert len({tuple(row) for row in draw(1).tolist()}) == 4  # examples draw for themselves


def test_stream_is_generate_as_it_goes():
    model, (tokens, mask) = small_model(), pad_left([[3, 4, 5], [2]], 0)
    calls = []
    model.register_forward_pre_hook(lambda *_: calls.append(None))
    model.decoder.register_forward_pre_hook(lambda *_: calls.append(None))
    options = {"prompt_mask": mask, "max_new_tokens": 6, "temperature": 0}
    whole = generate(model, tokens, **options)
    calls.clear()
    steps = stream(model, tokens, **options)
    assert not calls
    for t in range(6):
        assert torch.equal(next(steps), whole[:, 3 + t])
        assert len(calls) == t + 1  # one pass a token, not more
    assert next(steps, None) is None


def test_stop_tokens():
    def model(tokens):  # counts up
        return nn.functional.one_hot((tokens + 1) % 10, 10).float() * 50

    prompt = torch.tensor([[2], [5], [4]])
    found = generate(model, prompt, max_new_tokens=9, temperature=0, stop=[6, 7], pad_id=0)
    assert found.tolist() == [[2, 3, 4, 5, 6], [5, 6, 0, 0, 0], [4, 5, 6, 0, 0]]
    assert generate(model, prompt, max_new_tokens=2, temperature=0, stop=6).tolist() == [
        [2, 3, 4],
        [5, 6, 6],
        [4, 5, 6],
    ]


def test_a_model_in_training_generates_without_dropout_and_stays_in_training():
    model, prompt = small_model(dropout=0.5), torch.tensor([[3, 4]])
    expected = generate(model, prompt, max_new_tokens=8, temperature=0)
    model.train()
    model.decoder.layers[0].eval()
    assert torch.equal(generate(model, prompt, max_new_tokens=8, temperature=0), expected)
    assert model.training
    assert not model.decoder.layers[0].training


def test_generated_tokens_may_be_trained_on():
    model = small_model()
    tokens = generate(model, torch.tensor([[3, 4]]), max_new_tokens=4)
    model(tokens).sum().backward()


def test_bfloat16():
    model, (tokens, mask) = small_model().bfloat16(), pad_left([[3, 4, 5], [2]], 0)
    assert generate(model, tokens, prompt_mask=mask, max_new_tokens=5, top_p=0.9).shape == (2, 8)
    assert beam_search(model, tokens, prompt_mask=mask, n_beams=2, max_new_tokens=5).scores.dtype == torch.float32


# Filters


LOGITS = torch.tensor([0.45, 0.25, 0.15, 0.1, 0.05]).log()


@pytest.mark.parametrize(
    ("filtered", "kept"),
    [
        (top_k_filter(LOGITS, 2), 2),
        (top_k_filter(LOGITS, 9), 5),
        (top_p_filter(LOGITS, 0.44), 1),
        (top_p_filter(LOGITS, 0.46), 2),
        (top_p_filter(LOGITS, 0.69), 2),
        (top_p_filter(LOGITS, 0.71), 3),
        (top_p_filter(LOGITS, 1e-6), 1),
        (min_p_filter(LOGITS, 0.2), 4),
        (min_p_filter(LOGITS, 0.3), 3),
        (min_p_filter(LOGITS, 1.0), 1),
    ],
)
def test_filters_keep_what_their_definition_says(filtered, kept):
    assert torch.equal(filtered[:kept], LOGITS[:kept])
    assert (filtered[kept:] == -torch.inf).all()


def test_filters_do_not_depend_on_the_order_of_tokens_or_on_other_rows():
    logits = torch.randn(5, 4, 11)
    order = torch.randperm(11)
    for keep in (lambda x: top_k_filter(x, 3), lambda x: top_p_filter(x, 0.6), lambda x: min_p_filter(x, 0.2)):
        assert torch.equal(keep(logits)[..., order], keep(logits[..., order]))
        assert torch.equal(keep(logits)[2, 1], keep(logits[2, 1]))


def test_repetition_penalty_formula():
    logits, seen = torch.tensor([[2.0, -2.0, 2.0, -2.0]]), torch.tensor([[True, True, False, False]])
    assert penalise_repetition(logits, seen, 2.0).tolist() == [[1.0, -4.0, 2.0, -2.0]]


# Distributions

FIXED = torch.tensor([0.3, 0.22, 0.16, 0.12, 0.09, 0.07, 0.04]).log()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0},
        {"top_k": 3},
        {"top_p": 0.75},
        {"min_p": 0.35},
        {"temperature": 2.0, "top_k": 5, "top_p": 0.9, "min_p": 0.3},
    ],
    ids=str,
)
def test_samples_follow_the_definition(settings):
    """Against the distribution computed here by plain loops."""
    weights = {i: math.exp(FIXED[i].item() / settings.get("temperature", 1.0)) for i in range(V)}

    def normalised(weights):
        return {i: w / sum(weights.values()) for i, w in weights.items()}

    weights = normalised(dict(itertools.islice(weights.items(), settings.get("top_k", V))))  # FIXED falls
    kept, total = {}, 0.0
    for i, w in weights.items():
        if total < settings.get("top_p", 1.0):
            kept[i] = w
        total += w
    weights = normalised(kept)
    weights = normalised({i: w for i, w in weights.items() if w >= settings.get("min_p", 0.0) * weights[0]})
    expected = torch.tensor([weights.get(i, 0.0) for i in range(V)])

    def model(tokens):
        return FIXED.expand(*tokens.shape, V)

    generator = torch.Generator().manual_seed(0)
    new = generate(model, torch.zeros(4000, 1).long(), max_new_tokens=5, generator=generator, **settings)[:, 1:]
    assert abs(chi_squared(new.flatten().bincount(minlength=V).float(), expected)) < 5


# Bad input


LEFT, HOLE = torch.tensor([[True, False]]), torch.tensor([[False, True], [True, True]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: generate(m, PROMPT, max_new_tokens=0), ValueError, "max_new_tokens: expected an integer .* got 0"),
        (lambda m: generate(m, PROMPT, max_new_tokens=39), ValueError, r"max_new_tokens: 2 \+ 39 .* max_length=39"),
        (lambda m: generate(m, PROMPT[0], max_new_tokens=1), ValueError, r"prompt: expected \(B, T\).*got \(2,\)"),
        (lambda m: generate(m, PROMPT[:, :0], max_new_tokens=1), ValueError, r"prompt: .*at least one token"),
        (
            lambda m: generate(m, PROMPT.float(), max_new_tokens=1),
            TypeError,
            "prompt: .*integer token ids",
        ),
        (lambda m: generate(m, PROMPT + 5, max_new_tokens=1), ValueError, "tokens: expected ids 0 to 6"),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, top_p=0.0), ValueError, r"top_p: .* \(0, 1\], got 0.0"),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, top_p=1.1), ValueError, r"top_p: .* \(0, 1\], got 1.1"),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, min_p=math.nan), ValueError, r"min_p: .* \(0, 1\], got nan"),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, top_k=0), ValueError, "top_k: .* at least 1, got 0"),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, temperature=-1), ValueError, "temperature: .* got -1"),
        (
            lambda m: generate(m, PROMPT, max_new_tokens=1, repetition_penalty=0),
            ValueError,
            "repetition_penalty: .*got 0",
        ),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, top_q=0.5), TypeError, "top_q"),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, stop=[]), ValueError, r"stop: expected a token id.*got \[\]"),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, stop=-1), ValueError, "stop: expected a token id.*got -1"),
        (
            lambda m: generate(m, PROMPT, max_new_tokens=1, prompt_mask=LEFT),
            ValueError,
            "prompt_mask: .* on the left only",
        ),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, prompt_mask=HOLE), ValueError, r"prompt_mask: .*\(1, 2\)"),
        (lambda m: generate(m, PROMPT, max_new_tokens=1, source=PROMPT), ValueError, "source: expected None"),
        (lambda m: generate(nan_model, PROMPT, max_new_tokens=1), ValueError, "model: its logits hold NaN.*step 0"),
        (
            lambda m: generate(nan_model, PROMPT, max_new_tokens=1, source=PROMPT),
            ValueError,
            "source: .*plain function",
        ),
        (lambda m: top_p_filter(torch.tensor([math.nan, 1.0]), 0.9), ValueError, "logits: .*NaN"),
        (lambda m: top_k_filter(torch.tensor([-math.inf, -math.inf]), 1), ValueError, "logits: .*nothing but -inf"),
        (lambda m: min_p_filter(torch.tensor([1, 2]), 0.5), ValueError, "logits: expected floating-point"),
        (lambda m: pad_left([[1], []], 0), ValueError, "prompts: expected at least one, each of at least one token"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(small_model(positions="learned", max_length=39))


def test_bad_sources():
    config = TransformerConfig(d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, vocab_size=V)
    model = Transformer(config).eval()
    with pytest.raises(ValueError, match=r"source: expected token ids \(B, S\)"):
        generate(model, PROMPT, max_new_tokens=1)
    with pytest.raises(ValueError, match="source: expected batch B=1 like prompt, got 2"):
        generate(model, PROMPT, source=PROMPT.expand(2, 2), max_new_tokens=1)


def test_errors_come_before_the_first_token():
    with pytest.raises(ValueError, match="top_p"):
        stream(small_model(), PROMPT, max_new_tokens=1, top_p=2.0)
