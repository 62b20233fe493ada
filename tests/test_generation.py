"""Generation: the tokens of transformers, exact distributions, and no difference made by cache, batch or padding."""

import itertools
import math

import pytest
import torch
from published import LANGUAGE_MODELS, PAD, t5
from torch import nn
from transformers import set_seed

from course_lib.generation import (
    Sampling,
    beam_search,
    generate,
    min_p_filter,
    pad_left,
    penalise_repetition,
    speculative_generate,
    stream,
    top_k_filter,
    top_p_filter,
)
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig

V, STOP = 7, 1
SCHEMES = ("none", "sinusoidal", "learned", "rotary", "alibi", "relative")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="module", params=list(LANGUAGE_MODELS))
def pair(request):
    return LANGUAGE_MODELS[request.param]()


@pytest.fixture(scope="module", params=[True, False], ids=["gated", "plain"])
def t5_pair(request):
    return t5(request.param)


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


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_equals_transformers(pair, use_cache):
    tokens, mask = prompts()
    theirs = of_transformers(pair.theirs, tokens, mask, max_new_tokens=12, do_sample=False)
    options = {"max_new_tokens": 12, "temperature": 0.0, "stop": STOP, "pad_id": PAD, "use_cache": use_cache}
    same(generate(pair.ours, tokens, prompt_mask=mask, **options), theirs)


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


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize(("n_beams", "penalty"), [(1, 1.0), (2, 1.0), (3, 0.0), (4, 2.0), (5, -1.0)])
def test_beams_equal_transformers(pair, n_beams, penalty, early_stopping):
    tokens, mask = prompts()
    options = {"max_new_tokens": 9, "length_penalty": penalty, "early_stopping": early_stopping}
    ours = beam_search(
        pair.ours, tokens, prompt_mask=mask, n_beams=n_beams, n_best=min(n_beams, 2), stop=STOP, pad_id=PAD, **options
    )
    if n_beams == 1:  # theirs is greedy then, and ends an example at its stop token
        same(ours.tokens[:, 0], of_transformers(pair.theirs, tokens, mask, max_new_tokens=9, do_sample=False))
        return
    with torch.no_grad():
        theirs = pair.theirs.generate(
            input_ids=tokens,
            attention_mask=mask.long(),
            num_beams=n_beams,
            do_sample=False,
            num_return_sequences=2,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    same(ours.tokens.flatten(0, 1), theirs.sequences)
    torch.testing.assert_close(ours.scores.flatten(), theirs.sequences_scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stops", [[1], [1, 5, 9]])
def test_beams_of_an_encoder_decoder_equal_transformers(t5_pair, stops):
    source, start = sources()
    options = {"max_new_tokens": 9, "length_penalty": 0.6}
    theirs = of_transformers(
        t5_pair.theirs, source, source != PAD, num_beams=4, do_sample=False, eos_token_id=stops, **options
    )
    ours = beam_search(t5_pair.ours, start, source=source, n_beams=4, stop=stops, pad_id=PAD, **options)
    same(ours.tokens[:, 0], theirs)


def small_model(vocab_size=V, **changes):
    sizes = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "max_length": 40}
    config = TransformerConfig(**{**sizes, "positions": "rotary", "vocab_size": vocab_size, **changes})
    model = LanguageModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def exhaustive(model, prompt, N, stop, penalty):
    """Every continuation that ends at a stop token or at N, with its score, best first."""
    found = []
    for length in range(1, N + 1):
        for new in itertools.product(range(V), repeat=length):
            if stop in new[:-1] or (length < N and new[-1] != stop):
                continue
            tokens = torch.cat([prompt, torch.tensor([new])], dim=1)
            steps = model(tokens)[0, prompt.size(1) - 1 : -1].log_softmax(-1)
            total = steps.gather(1, torch.tensor(new)[:, None]).sum().item()
            found.append((total / length**penalty, list(new)))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.5, -1.0])
@torch.no_grad()
def test_wide_beams_equal_an_exhaustive_search(penalty):
    model, prompt, N, n_best = small_model(), torch.tensor([[3, 4]]), 3, 6
    expected = exhaustive(model, prompt, N, STOP, penalty)[:n_best]
    found = beam_search(
        model,
        prompt,
        n_beams=V**2,
        n_best=n_best,
        max_new_tokens=N,
        length_penalty=penalty,
        stop=STOP,
        pad_id=STOP,
        early_stopping="never",
    )
    for (score, new), tokens, its_score in zip(expected, found.tokens[0], found.scores[0], strict=True):
        assert its_score.item() == pytest.approx(score, abs=1e-4)
        assert tokens[2:].tolist()[: len(new)] == new


def test_beams_beat_greedy():
    """A likely first token with only unlikely sequels: greedy takes it, two beams do not."""

    def model(tokens):
        table = torch.full((4, 4), -20.0)
        table[0] = torch.tensor([-20.0, 0.6, 0.4, -20.0]).clamp(min=1e-9).log()
        table[1], table[2, 3] = 0.0, 0.0
        return table[tokens]

    prompt = torch.tensor([[0]])
    assert generate(model, prompt, max_new_tokens=2, temperature=0)[0, 1].item() == 1
    assert beam_search(model, prompt, n_beams=2, max_new_tokens=2).tokens[0, 0].tolist() == [0, 2, 3]


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


def chi_squared(counts, probabilities):
    """How many standard deviations the statistic lies above its mean; what cannot happen must not have happened."""
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * counts.sum()
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = int(possible.sum()) - 1
    return ((statistic - freedom) / math.sqrt(2 * freedom)).item()


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


# Bad input


def nan_model(tokens):
    return torch.full((*tokens.shape, V), math.nan)


PROMPT = torch.tensor([[3, 4]])
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
        (
            lambda m: beam_search(nan_model, PROMPT, n_beams=2, max_new_tokens=1),
            ValueError,
            "model: its logits hold NaN",
        ),
        (lambda m: beam_search(m, PROMPT, n_beams=0, max_new_tokens=1), ValueError, "n_beams: .* at least 1, got 0"),
        (lambda m: beam_search(m, PROMPT, n_beams=2, n_best=3, max_new_tokens=1), ValueError, "n_best: .*got 3"),
        (
            lambda m: beam_search(m, PROMPT, n_beams=2, max_new_tokens=1, early_stopping="soon"),
            ValueError,
            "early_stopping: expected True, False or 'never', got 'soon'",
        ),
        (lambda m: top_p_filter(torch.tensor([math.nan, 1.0]), 0.9), ValueError, "logits: .*NaN"),
        (lambda m: top_k_filter(torch.tensor([-math.inf, -math.inf]), 1), ValueError, "logits: .*nothing but -inf"),
        (lambda m: min_p_filter(torch.tensor([1, 2]), 0.5), ValueError, "logits: expected floating-point"),
        (lambda m: pad_left([[1], []], 0), ValueError, "prompts: expected at least one, each of at least one token"),
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
