"""Masks against their definitions written as loops, against torch, and against bad input."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.bias import causal_lower_right

from course_lib.masks import (
    causal_mask,
    combine_masks,
    length_mask,
    padding_mask,
    prefix_mask,
    sliding_window_mask,
)

sizes = st.integers(0, 9)


def by_definition(T, S, rule):
    """Bool (T, S), one cell at a time; query i stands at position i + S - T among the keys."""
    rows = [[rule(i + S - T, j) for j in range(S)] for i in range(T)]
    return torch.tensor(rows, dtype=torch.bool).reshape(T, S)


@given(T=sizes, S=sizes)
def test_causal(T, S):
    assert torch.equal(causal_mask(T, S), by_definition(T, S, lambda i, j: j <= i))


@given(T=st.integers(1, 9), more=st.integers(0, 9))
def test_causal_is_the_lower_right_bias_of_torch(T, more):
    query, key = torch.randn(T, 1), torch.randn(T + more, 1)
    theirs = F.scaled_dot_product_attention(query, key, torch.eye(T + more), causal_lower_right(T, T + more))
    assert torch.equal(causal_mask(T, T + more), theirs > 0)  # the values are one-hot, so the output is the weights


@given(T=sizes, S=sizes, window=st.integers(1, 12))
def test_sliding_window(T, S, window):
    causal = by_definition(T, S, lambda i, j: i - window < j <= i)
    both = by_definition(T, S, lambda i, j: abs(i - j) < window)
    assert torch.equal(sliding_window_mask(T, S, window=window), causal)
    assert torch.equal(sliding_window_mask(T, S, window=window, causal=False), both)


@given(T=sizes, S=sizes, data=st.data())
def test_prefix(T, S, data):
    prefix = data.draw(st.integers(0, S))
    assert torch.equal(prefix_mask(T, S, prefix=prefix), by_definition(T, S, lambda i, j: j <= i or j < prefix))


def test_padding():
    tokens = torch.tensor([[5, 3, 0, 0], [1, 0, 2, 3]])
    mask = padding_mask(tokens, 0)
    assert mask.shape == (2, 1, 1, 4)
    assert mask[:, 0, 0].int().tolist() == [[1, 1, 0, 0], [1, 0, 1, 1]]


@given(lengths=st.lists(st.integers(0, 6), max_size=5), dtype=st.sampled_from([torch.int32, torch.int64, torch.uint8]))
def test_lengths(lengths, dtype):
    mask = length_mask(lengths, 6)
    assert mask.shape == (len(lengths), 1, 1, 6)
    assert mask.sum(-1).flatten().tolist() == lengths
    assert torch.equal(mask, mask.sort(-1, descending=True).values)  # the real positions come first
    assert torch.equal(mask, length_mask(torch.tensor(lengths, dtype=dtype), 6))


def test_combine():
    causal, real = causal_mask(3), length_mask([2, 3], 3)
    both = combine_masks(causal, None, real)
    assert both.shape == (2, 1, 3, 3)
    assert both[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert torch.equal(both[1, 0], causal)
    assert combine_masks() is None
    assert combine_masks(None, None) is None
    assert torch.equal(combine_masks(causal), causal)


def test_masks_are_made_on_the_device_asked_for(device):
    made = [
        causal_mask(3, device=device),
        sliding_window_mask(3, window=2, device=device),
        prefix_mask(3, prefix=2, device=device),
        length_mask([1, 3], 3, device=device),
        length_mask(torch.tensor([1, 3], device=device), 3),
        padding_mask(torch.tensor([[1, 0]], device=device), 0),
    ]
    assert {mask.device.type for mask in made} == {device}
    assert {mask.dtype for mask in made} == {torch.bool}


integers, floats = torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: causal_mask(-1), ValueError, "T: expected an integer of at least 0, got -1"),
        (lambda: causal_mask(3, -2), ValueError, "S: expected an integer of at least 0, got -2"),
        (lambda: causal_mask(2.0), TypeError, "T: expected an integer of at least 0, got 2.0"),
        (lambda: causal_mask(True), TypeError, "T: expected an integer of at least 0, got True"),
        (lambda: sliding_window_mask(3, window=0), ValueError, "window: expected an integer of at least 1, got 0"),
        (lambda: sliding_window_mask(3, window=1.5), TypeError, "window: expected an integer of at least 1, got 1.5"),
        (lambda: prefix_mask(3, prefix=4), ValueError, "prefix: expected an integer from 0 to 3, got 4"),
        (lambda: prefix_mask(3, prefix=-1), ValueError, "prefix"),
        (lambda: padding_mask([[1, 0]], 0), TypeError, "tokens: expected a tensor of integer token ids, got list"),
        (lambda: padding_mask(floats, 0), TypeError, "tokens: .* got torch.float32"),
        (lambda: padding_mask(integers.bool(), 0), TypeError, "tokens: .* got torch.bool"),
        (lambda: padding_mask(integers[0], 0), ValueError, r"tokens: expected shape \(B, S\), got \(3,\)"),
        (lambda: padding_mask(integers, "<pad>"), TypeError, "pad_id: expected an integer token id, got str"),
        (lambda: length_mask([1, 4], 3), ValueError, "lengths: expected an integer from 0 to 3, got 4"),
        (lambda: length_mask([-1], 3), ValueError, "lengths: expected an integer from 0 to 3, got -1"),
        (lambda: length_mask([1.0], 3), TypeError, "lengths: expected an integer from 0 to 3, got 1.0"),
        (lambda: length_mask(floats[0], 3), TypeError, "lengths: expected a tensor of integers, got torch.float32"),
        (lambda: length_mask(integers, 3), ValueError, r"lengths: expected shape \(B,\), got \(2, 3\)"),
        (lambda: length_mask([1], "3"), TypeError, "S: expected an integer of at least 0, got '3'"),
        (lambda: combine_masks(causal_mask(2), floats), TypeError, r"masks\[1\]: .* got torch.float32"),
        (lambda: combine_masks([True]), TypeError, r"masks\[0\]: .* got list"),
        (lambda: combine_masks(causal_mask(2), None, causal_mask(3)), ValueError, r"masks\[2\]: shape \(3, 3\)"),
        (
            lambda: combine_masks(causal_mask(2), causal_mask(2, device="meta")),
            ValueError,
            r"masks\[1\]: expected device cpu like the others, got meta",
        ),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
