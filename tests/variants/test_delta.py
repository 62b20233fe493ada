"""The gated delta rule equals both forms of transformers, outputs and gradients, and so does what a reader writes."""

import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen3_next import modeling_qwen3_next as published

from course_lib.variants.efficient import gated_delta_rule
from coursework.exercises.bank.delta_rule import EXERCISE

B, H, T, E, WIDTH = 2, 3, 150, 16, 24


@pytest.fixture
def drawn():
    """Leaves, in the order of the arguments, the keys of length one."""
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(B, H, T, E),
        F.normalize(torch.randn(B, H, T, E), dim=-1),
        torch.randn(B, H, T, WIDTH),
    )
    beta, log_decay = torch.rand(B, H, T), -0.3 * torch.rand(B, H, T)
    return [t.requires_grad_() for t in (query, key, value, beta, log_decay, torch.randn(B, H, WIDTH, E))]


def theirs(function, query, key, value, beta, log_decay, state, **options):
    """The published function, which divides the query by the root of E and has its axes in another order."""
    query, key, value, beta, log_decay = (t.transpose(1, 2) for t in (query * E**0.5, key, value, beta, log_decay))
    options |= {"initial_state": state.mT, "output_final_state": True}
    output, state = function(query, key, value, log_decay, beta, **options)
    return output.transpose(1, 2), state.mT


def gradients(results, leaves):
    """Of a fixed random projection of output and state."""
    generator = torch.Generator().manual_seed(1)
    total = sum((result * torch.randn(result.shape, generator=generator)).sum() for result in results)
    return torch.autograd.grad(total, leaves)


def assert_same(results, others, leaves):
    for one, other in zip(results, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for one, other in zip(gradients(results, leaves), gradients(others, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("chunk", [1, 7, 64, 200])
@pytest.mark.parametrize("name", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
def test_it_is_that_of_transformers(drawn, name, chunk):
    assert_same(gated_delta_rule(*drawn, chunk=chunk), theirs(getattr(published, name), *drawn), drawn)


def test_what_a_reader_writes_is_that_of_transformers(drawn):
    leaves = drawn[:5]
    query, key, value, beta, log_decay = leaves
    output, state = EXERCISE.reference(*(t.flatten(0, 1) for t in (query, key, value, beta, log_decay.exp())))
    start = torch.zeros(B, H, WIDTH, E)
    others = theirs(published.torch_recurrent_gated_delta_rule, *leaves, start)
    assert_same((output.unflatten(0, (B, H)), state.unflatten(0, (B, H))), others, leaves)


def test_a_text_may_be_read_in_pieces(drawn):
    *inputs, state = drawn
    whole, last = gated_delta_rule(*inputs, state)
    outputs = []
    for parts in zip(*(t.split([70, 1, 79], dim=2) for t in inputs), strict=True):
        output, state = gated_delta_rule(*parts, state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=2), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, last, rtol=1e-4, atol=1e-5)


def test_no_output_depends_on_a_later_position(drawn):
    whole, _ = gated_delta_rule(*drawn)
    start, _ = gated_delta_rule(*(t[:, :, :70] for t in drawn[:5]), drawn[5])
    torch.testing.assert_close(start, whole[:, :, :70], rtol=1e-4, atol=1e-5)


def test_what_was_written_with_beta_one_is_read_back():
    torch.manual_seed(0)
    key = F.normalize(torch.randn(1, 1, 9, 4), dim=-1)
    value = torch.randn(1, 1, 9, 5)
    output, state = gated_delta_rule(key, key, value, torch.ones(1, 1, 9), torch.zeros(1, 1, 9))
    torch.testing.assert_close(output, value)
    torch.testing.assert_close(state @ key[..., -1, :, None], value[..., -1, :, None])


def test_padding_leaves_the_state_as_it_is(drawn):
    _, last = gated_delta_rule(*drawn)
    more = [F.pad(t, (0, 0, 0, 5), value=3.0) for t in drawn[:3]] + [F.pad(t, (0, 5)) for t in drawn[3:5]]
    torch.testing.assert_close(gated_delta_rule(*more, drawn[5])[1], last)


def test_strong_decay_stays_finite(drawn):
    leaves = [*drawn[:4], (drawn[4].detach() * 1000).requires_grad_(), drawn[5]]
    results = gated_delta_rule(*leaves)
    assert all(torch.isfinite(t).all() for t in (*results, *gradients(results, leaves)))


def test_half_precision_is_computed_in_float32(drawn):
    output, state = gated_delta_rule(*(t.detach().bfloat16() for t in drawn))
    assert output.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    exact, _ = gated_delta_rule(*(t.detach().bfloat16().float() for t in drawn))
    torch.testing.assert_close(output, exact.bfloat16())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({0: torch.zeros(B, H, T, 3)}, "query: expected the shape of key"),
        ({1: torch.zeros(H, T, E)}, "key: expected .B, H, T, E."),
        ({2: torch.zeros(B, H, 3, WIDTH)}, "value: expected"),
        ({3: torch.zeros(B, H, T, 1)}, "beta: expected"),
        ({4: torch.zeros(B, T, H)}, "log_decay: expected"),
        ({5: torch.zeros(B, H, E, WIDTH)}, "state: expected"),
    ],
)
def test_wrong_shapes_are_named(drawn, changed, message):
    with pytest.raises(ValueError, match=message):
        gated_delta_rule(*(changed.get(i, t) for i, t in enumerate(drawn)))
