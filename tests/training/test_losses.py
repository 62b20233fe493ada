"""Losses against torch, outputs and gradients; sums and counts; what is refused."""

import math

import pytest
import torch
import torch.nn.functional as F

from course_lib.training import cross_entropy, label_smoothed_cross_entropy


def logits_and_targets(dtype=torch.float32, V=11):
    torch.manual_seed(0)
    logits = (3 * torch.randn(2, 5, V)).to(dtype).requires_grad_()
    targets = torch.randint(1, V, (2, 5))
    targets[0, 3:] = 0
    return logits, targets


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("ignore", [None, 0])
def test_equal_to_torch(smoothing, ignore, device):
    logits, targets = logits_and_targets()
    logits = logits.detach().to(device).requires_grad_()
    targets = targets.to(device)
    total, count = label_smoothed_cross_entropy(logits, targets, smoothing, ignore=ignore)
    theirs = F.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        label_smoothing=smoothing,
        ignore_index=-100 if ignore is None else ignore,
        reduction="sum",
    )
    assert count == (targets != ignore).sum() if ignore is not None else count == targets.numel()
    torch.testing.assert_close(total, theirs)
    ours_gradient = torch.autograd.grad(total, logits)[0]
    torch.testing.assert_close(ours_gradient, torch.autograd.grad(theirs, logits)[0], atol=1e-6, rtol=1e-5)


def test_sums_add_up_where_means_do_not():
    logits, targets = logits_and_targets()
    whole, count = cross_entropy(logits, targets, ignore=0)
    parts = [cross_entropy(logits[i], targets[i], ignore=0) for i in range(2)]
    assert count == sum(part[1] for part in parts)
    torch.testing.assert_close(whole, sum(part[0] for part in parts))
    means = sum(part[0] / part[1] for part in parts) / 2
    assert abs(means - whole / count) > 0.01


def test_uniform_logits_cost_ln_v():
    total, count = label_smoothed_cross_entropy(torch.zeros(3, 7), torch.tensor([1, 2, 3]), 0.1)
    assert total / count == pytest.approx(math.log(7))


def test_padding_gets_no_gradient_and_nothing_is_zero():
    logits, targets = logits_and_targets()
    total, _ = label_smoothed_cross_entropy(logits, targets, 0.1, ignore=0)
    total.backward()
    assert (logits.grad[targets == 0] == 0).all()
    assert (logits.grad[targets != 0] != 0).all()
    total, count = cross_entropy(logits, torch.zeros_like(targets), ignore=0)
    assert total == 0
    assert count == 0


def test_half_precision_is_computed_in_float32():
    logits, targets = logits_and_targets(torch.bfloat16)
    total, _ = cross_entropy(logits, targets)
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, cross_entropy(logits.float(), targets)[0])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"targets": torch.zeros(2, 4, dtype=torch.long)}, ValueError, r"targets: expected \(2, 5\)"),
        ({"targets": torch.zeros(2, 5)}, TypeError, "targets: expected a tensor of integer"),
        ({"targets": torch.full((2, 5), 11)}, ValueError, "targets: expected ids 0 to 10"),
        ({"targets": torch.full((2, 5), -1)}, ValueError, "targets: expected ids 0 to 10"),
        ({"logits": torch.zeros(2, 5, 11, dtype=torch.long)}, TypeError, "logits"),
        ({"smoothing": 1.0}, ValueError, "smoothing"),
    ],
)
def test_bad_input_is_named(change, error, words):
    logits, targets = logits_and_targets()
    with pytest.raises(error, match=words):
        label_smoothed_cross_entropy(**{"logits": logits, "targets": targets, **change})
