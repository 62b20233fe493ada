"""The loss in chunks equals the plain one, outputs and gradients, and needs less memory."""

import copy

import pytest
import torch
from torch import nn
from training_samples import PAD, V, batches, small_model

from course_lib.training import TrainingConfig, build_optimizers, chunked_cross_entropy, tasks, update
from course_lib.training.losses import label_smoothed_cross_entropy
from course_lib.transformer import LanguageModel, TransformerConfig


@pytest.mark.parametrize("rows", [1, 4, 10, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignore", [None, 0])
@pytest.mark.parametrize("bias", [False, True])
def test_equal_to_the_plain_loss(rows, smoothing, ignore, bias, device):
    torch.manual_seed(0)
    head = nn.Linear(6, 11, bias=bias).to(device)
    vectors = torch.randn(2, 5, 6, device=device, requires_grad=True)
    targets = torch.randint(0, 11, (2, 5), device=device)
    plain, count = label_smoothed_cross_entropy(head(vectors), targets, smoothing, ignore=ignore)
    total, ours = chunked_cross_entropy(vectors, head, targets, rows=rows, smoothing=smoothing, ignore=ignore)
    assert count == ours
    torch.testing.assert_close(total, plain)
    inputs = [vectors, *head.parameters()]
    expected = torch.autograd.grad(3 * plain, inputs)
    for ours, theirs in zip(torch.autograd.grad(3 * total, inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_task_takes_it_as_a_switch(precision):
    """The same update, in a model whose head is its table of tokens, too."""
    part = batches(1)[0]
    one = small_model(dropout=0.0)
    other = copy.deepcopy(one)
    found = []
    for model, rows in ((one, 0), (other, 7)):
        task = tasks.Translation(pad_id=PAD, smoothing=0.1, rows=rows)
        found.append(update(model, task.loss, [part], build_optimizers(model, TrainingConfig()), precision=precision))
    near = {"rel": 1e-5 if precision == "float32" else 1e-2}
    assert found[0].loss == pytest.approx(found[1].loss, **near)
    assert found[0].gradient_norm == pytest.approx(found[1].gradient_norm, **near)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            a.grad, b.grad, atol=1e-6 if precision == "float32" else 1e-2, rtol=1e-4 if precision == "float32" else 0.1
        )


def test_without_gradients():
    model = LanguageModel(TransformerConfig(d_model=16, n_heads=2, n_decoder_layers=1, vocab_size=V)).eval()
    tokens = torch.randint(V, (2, 9))
    with torch.no_grad():
        plain, chunked = (tasks.LanguageModelling(rows=rows).loss(model, {"tokens": tokens}) for rows in (0, 3))
    torch.testing.assert_close(plain, chunked)


def largest_tensor(model, rows):
    """Bytes of the largest tensor that is made in a step, the weights' gradients aside."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = [0]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), options=None):
            result = function(*arguments, **(options or {}))
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, torch.Tensor) and tensor.shape != model.head.weight.shape:
                    largest[0] = max(largest[0], tensor.untyped_storage().nbytes())
            return result

    tokens = torch.randint(5000, (4, 65))
    with Watch():
        tasks.LanguageModelling(rows=rows).loss(model, {"tokens": tokens})[0].backward()
    return largest[0]


def test_no_tensor_as_large_as_all_logits():
    config = TransformerConfig(d_model=16, n_heads=2, n_decoder_layers=1, n_encoder_layers=0, vocab_size=5000)
    model = LanguageModel(config)
    assert largest_tensor(model, 0) == 4 * 64 * 5000 * 4
    weights = max(p.untyped_storage().nbytes() for p in model.parameters())
    assert largest_tensor(model, 16) == max(16 * 5000 * 4, weights)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"rows": 0}, ValueError, "rows: expected an integer of at least 1"),
        ({"head": nn.Identity()}, TypeError, "head: expected an nn.Linear"),
        ({"targets": torch.zeros(3, dtype=torch.long)}, ValueError, "targets: expected"),
        ({"targets": torch.full((2, 5), 11)}, ValueError, "targets: expected ids 0 to 10"),
    ],
)
def test_bad_input_is_named(change, error, words):
    arguments = {"vectors": torch.zeros(2, 5, 6), "head": nn.Linear(6, 11), "rows": 3}
    arguments |= {"targets": torch.zeros(2, 5, dtype=torch.long)} | change
    with pytest.raises(error, match=words):
        chunked_cross_entropy(**arguments)
