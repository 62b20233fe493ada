"""Beam search: the tokens of transformers, and the best of all sequences when the beams are wide enough."""

import itertools

import pytest
import torch
from published import LANGUAGE_MODELS, PAD, t5
from tiny_models import PROMPT, STOP, V, nan_model, of_transformers, prompts, same, small_model, sources

from course_lib.generation import beam_search, generate


@pytest.fixture(scope="module", params=list(LANGUAGE_MODELS))
def pair(request):
    return LANGUAGE_MODELS[request.param]()


@pytest.fixture(scope="module", params=[True, False], ids=["gated", "plain"])
def t5_pair(request):
    return t5(request.param)


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


def stopping_model(calls):
    """Stops with probability 0.5 at each step, except in examples that begin with token 2."""

    def model(tokens):
        calls.append(None)
        often = torch.tensor([0.1, 0.5, 0.4]).log()
        never = torch.tensor([0.4, 1e-9, 0.6]).log()
        return torch.where(tokens[:, :1, None] == 2, never, often).expand(*tokens.shape, 3)

    return model


def test_early_stopping_spares_steps():
    calls = []

    def passes(early_stopping, length_penalty):
        calls.clear()
        options = {"n_beams": 2, "max_new_tokens": 30, "stop": 1, "length_penalty": length_penalty}
        beam_search(stopping_model(calls), torch.tensor([[0]]), early_stopping=early_stopping, **options)
        return len(calls)

    assert passes(True, 1.5) == 2 < passes(False, 1.5)
    assert passes(False, 1.0) == 2 < passes("never", 1.0) < 30


@pytest.mark.parametrize("early_stopping", [True, False])
def test_an_example_that_is_done_does_not_wait_for_the_others(early_stopping):
    options = {"n_beams": 2, "n_best": 2, "max_new_tokens": 9, "stop": 1, "early_stopping": early_stopping}
    options["length_penalty"] = 1.5 if early_stopping else 1.0
    together = beam_search(stopping_model([]), torch.tensor([[0], [2]]), **options)
    for row, first in enumerate([0, 2]):
        alone = beam_search(stopping_model([]), torch.tensor([[first]]), **options)
        length = alone.tokens.size(2)
        assert torch.equal(together.tokens[row, :, :length], alone.tokens[0])
        torch.testing.assert_close(together.scores[row], alone.scores[0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
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
            "early_stopping: expected one of True, False, never, got 'soon'",
        ),
        (
            lambda m: beam_search(m, PROMPT, n_beams=2, max_new_tokens=1, length_penalty=float("nan")),
            ValueError,
            "length_penalty: expected a finite number, got nan",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(small_model())
