"""Updates are exact: accumulation is the big batch, clipping is torch's, precision and compilation change little."""

import copy
import math
import shutil

import pytest
import torch
from training_samples import PAD, TASK, batches, losses, small_model, small_run

from course_lib.training import TrainingConfig, build_optimizers, clip_gradients, evaluate, update


def joined(parts):
    """Batches of different widths as one, padded."""
    found = {}
    for name in parts[0]:
        width = max(part[name].size(1) for part in parts)
        rows = [torch.nn.functional.pad(part[name], (0, width - part[name].size(1)), value=PAD) for part in parts]
        found[name] = torch.cat(rows)
    return found


def step(model, parts, **options):
    optimizers = build_optimizers(model, TrainingConfig())
    result = update(model, TASK.loss, parts, optimizers, **options)
    return result, {name: p.grad for name, p in model.named_parameters()}


def test_accumulation_is_the_big_batch_with_ragged_lengths():
    parts = batches(3)
    assert len({part["target"].size(1) for part in parts}) == 3
    one, several = small_model(dropout=0.0, n_decoder_layers=1), small_model(dropout=0.0, n_decoder_layers=1)
    ours, gradients = step(several, parts)
    theirs, expected = step(one, [joined(parts)])
    assert ours.tokens == theirs.tokens
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)
    assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-6, rtol=1e-5)


def test_the_gradient_is_that_of_the_mean_loss():
    model = small_model(dropout=0.0)
    twin = copy.deepcopy(model)
    part = batches(1)[0]
    _, gradients = step(model, [part])
    total, count = TASK.loss(twin, part)
    (total / count).backward()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("max_norm", [0.01, 1e6])
def test_clipping_is_torchs(max_norm):
    ours, theirs = small_model(dropout=0.0), small_model(dropout=0.0)
    for model in (ours, theirs):
        TASK.loss(model, batches(1)[0])[0].backward()
    norm = clip_gradients(ours.parameters(), max_norm)
    assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)), rel=1e-5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-7)


def test_an_update_clips_and_reports_the_norm_before():
    free, clipped = small_model(dropout=0.0), small_model(dropout=0.0)
    a, gradients = step(free, batches(1))
    b, cut = step(clipped, batches(1), clip=0.1)
    assert a.gradient_norm == b.gradient_norm > 0.1
    norm = math.sqrt(sum(float(g.square().sum()) for g in cut.values()))
    assert norm == pytest.approx(0.1, rel=1e-4)
    for name in cut:
        torch.testing.assert_close(cut[name], gradients[name] * (0.1 / a.gradient_norm), rtol=1e-4, atol=1e-8)


def test_what_is_not_finite_changes_no_weight():
    model = small_model()
    before = copy.deepcopy(model.state_dict())

    def broken(model, batch):
        total, count = TASK.loss(model, batch)
        return total * math.nan, count

    with pytest.raises(FloatingPointError, match="loss is nan"):
        update(model, broken, batches(1), build_optimizers(model, TrainingConfig()))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with pytest.raises(FloatingPointError, match="step 1: the loss is nan"):
        small_run(task=broken).train()


def test_bfloat16_stays_near_float32_and_keeps_float32_weights():
    exact, rough = small_run(steps=30), small_run(steps=30, precision="bfloat16")
    exact.train()
    rough.train()
    assert losses(exact) != losses(rough)
    for a, b in zip(losses(exact), losses(rough), strict=True):
        assert b == pytest.approx(a, rel=0.05)
    assert {p.dtype for p in rough.model.parameters()} == {torch.float32}


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_is_eager():
    sizes = {"n_encoder_layers": 1, "n_decoder_layers": 1, "dropout": 0.0}
    eager, compiled = (
        small_run(steps=6, compile=flag, model=small_model(**sizes), data=batches(1)) for flag in (False, True)
    )
    eager.train()
    compiled.train()
    for a, b in zip(losses(eager), losses(compiled), strict=True):
        assert b == pytest.approx(a, rel=1e-5)


def test_evaluation_weighs_tokens_and_turns_dropout_off():
    model = small_model(dropout=0.5).train()
    parts = batches(3)
    value = evaluate(model, TASK.loss, parts)
    assert value == evaluate(model, TASK.loss, parts)
    assert value == pytest.approx(evaluate(model, TASK.loss, [joined(parts)]), rel=1e-5)
    assert model.training
    with pytest.raises(ValueError, match="batches: expected held-out"):
        evaluate(model, TASK.loss, [])
