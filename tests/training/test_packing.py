"""Packed documents give the loss and the gradients of the documents one by one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.data import TokenBatches, pack
from course_lib.masks import document_mask
from course_lib.positions import SCHEMES, document_positions
from course_lib.training import tasks
from course_lib.transformer import LanguageModel, TransformerConfig

V = 13


def documents(n=7, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [
        torch.randint(1, V, (int(torch.randint(1, 9, (1,), generator=draw)),), generator=draw).tolist()
        for _ in range(n)
    ]


@pytest.mark.parametrize("switches", [*({"positions": name} for name in SCHEMES), {"window": 3}])
@pytest.mark.parametrize("rows", [0, 5])
def test_equal_to_the_documents_one_by_one(switches, rows, device):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "n_decoder_layers": 2, "n_encoder_layers": 0, "max_length": 16}
    model = LanguageModel(TransformerConfig(**{**sizes, "dropout": 0.0, "vocab_size": V, **switches})).to(device)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))  # tables that start at zero, too
    task = tasks.LanguageModelling(pad_id=0, rows=rows)
    found = []
    packed = list(TokenBatches(pack(documents(), 12), max_tokens=24))
    alone = [{"tokens": torch.tensor([one])} for one in documents() if len(one) > 1]
    for batches in (packed, alone):
        model.zero_grad()
        losses = [task.loss(model, {name: t.to(device) for name, t in batch.items()}) for batch in batches]
        total, count = (sum(values) for values in zip(*losses, strict=True))
        total.backward()
        found.append([total, count, *(p.grad for p in model.parameters())])
    assert len(packed) < len(alone)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@given(lengths=st.lists(st.integers(1, 10), max_size=30), length=st.integers(10, 25))
def test_every_document_once_and_whole(lengths, length):
    given_documents = [[number + 1] * n for number, n in enumerate(lengths)]
    rows = pack(given_documents, length, pad_id=99)
    found = []
    for row in rows:
        assert len(row["tokens"]) == len(row["documents"]) == length
        assert all(
            (token == 99) == (number == 0) for token, number in zip(row["tokens"], row["documents"], strict=True)
        )
        for number in range(1, max(row["documents"]) + 1):
            found.append([t for t, d in zip(row["tokens"], row["documents"], strict=True) if d == number])
    assert sorted(found) == sorted(given_documents)
    if len(rows) > 1:  # first fit leaves no two rows that are half empty
        assert sum(2 * sum(number > 0 for number in row["documents"]) <= length for row in rows) <= 1


def test_positions_and_mask():
    numbers = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
    assert document_positions(numbers).tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]
    mask = document_mask(numbers)
    assert mask.shape == (2, 1, 6, 6)
    assert mask[0, 0, 2].tolist() == [False, False, True, True, True, False]


@pytest.mark.parametrize("bad", [[[1, 2, 3]], [[1], []]])
def test_documents_that_do_not_fit(bad):
    with pytest.raises(ValueError, match="documents: expected 1 to 2 ids"):
        pack(bad, 2)


def test_bad_numbers_of_documents():
    with pytest.raises(TypeError, match="documents: expected a tensor of integers"):
        document_mask(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"documents: expected shape \(B, T\)"):
        document_mask(torch.zeros(3, dtype=torch.long))
    with pytest.raises(TypeError, match="documents: expected a tensor of integers"):
        document_positions(torch.zeros(2, 3))
