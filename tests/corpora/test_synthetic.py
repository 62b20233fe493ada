"""The synthetic tasks are what they say: drawn evenly, solvable exactly, with splits that do not touch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coursework.corpora import associative_recall, changing_facts, copy_task, noise_floor, noise_tokens


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@given(
    n_examples=st.integers(0, 20),
    n_pairs=st.integers(1, 6),
    more=st.integers(0, 5),
    n_values=st.integers(5, 12),
    split=st.sampled_from(["train", "test"]),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_recall_is_consistent(n_examples, n_pairs, more, n_values, split, seed):
    n_keys = n_pairs + more
    r = associative_recall(
        n_examples, n_pairs=n_pairs, n_keys=n_keys, n_values=n_values, split=split, generator=seeded(seed)
    )
    assert r.keys.shape == r.values.shape == (n_examples, n_pairs)
    assert r.tokens.shape == (n_examples, 2 * n_pairs + 1)
    for keys, values, query, target, tokens in zip(*(part.tolist() for part in r), strict=True):
        assert len(set(keys)) == n_pairs
        assert values[keys.index(query)] == target
        assert tokens == [t for k, v in zip(keys, values, strict=True) for t in (k, n_keys + v)] + [query]
        assert all(0 <= k < n_keys for k in keys)
        assert all(0 <= v < n_values for v in values)


def test_recall_splits_never_ask_for_the_same_pair():
    draw = lambda split: associative_recall(  # noqa: E731
        20_000, n_pairs=4, n_keys=9, n_values=11, split=split, generator=seeded()
    )
    train, test = draw("train"), draw("test")
    asked = [set(zip(r.query.tolist(), r.target.tolist(), strict=True)) for r in (train, test)]
    assert not asked[0] & asked[1]
    assert len(asked[0] | asked[1]) == 9 * 11  # and together they ask for all
    assert set(test.query.tolist()) == set(train.query.tolist()) == set(range(9))


def test_recall_is_drawn_evenly():
    n = 40_000
    r = associative_recall(n, n_pairs=4, n_keys=10, n_values=12, generator=seeded())
    for ids, size in ((r.query, 10), (r.keys[:, 0], 10), (r.target, 12), (r.values[:, 2], 12)):
        counts = torch.bincount(ids, minlength=size)
        assert (counts - n / size).abs().max() < 5 * math.sqrt(n / size)
    places = (r.keys == r.query[:, None]).int().argmax(1)
    assert (torch.bincount(places) - n / 4).abs().max() < 5 * math.sqrt(n / 4)


def test_recall_cannot_be_guessed():
    """Given the values present, but not the place of the key, each is the answer equally often."""
    r = associative_recall(20_000, n_pairs=4, n_keys=9, n_values=11, generator=seeded())
    right = (r.values[:, 0] == r.target).float().mean().item()
    assert right == pytest.approx(1 / 4 + 3 / 4 / 11, abs=0.02)


def test_noise_says_nothing_about_the_next_token():
    V = 5
    tokens = noise_tokens(2000, 50, V, generator=seeded())
    pairs = torch.bincount(tokens[:, :-1].flatten() * V + tokens[:, 1:].flatten(), minlength=V * V).double()
    joint = (pairs / pairs.sum()).view(V, V)
    conditional_entropy = -(joint * (joint / joint.sum(1, keepdim=True)).log()).sum().item()
    assert conditional_entropy == pytest.approx(noise_floor(V), abs=1e-3)
    assert noise_floor(V) == math.log(V)


def test_copy_and_reverse():
    source, target = copy_task(50, 7, 9, first_id=3, generator=seeded())
    assert torch.equal(source, target)
    assert source.data_ptr() != target.data_ptr()
    assert (source.min(), source.max()) == (3, 8)
    again, backwards = copy_task(50, 7, 9, first_id=3, reverse=True, generator=seeded())
    assert torch.equal(again, source)
    assert torch.equal(backwards, source.flip(1))


def test_the_generator_decides():
    for make in (
        lambda g: associative_recall(9, n_pairs=3, n_keys=5, n_values=7, generator=g).tokens,
        lambda g: noise_tokens(9, 5, 7, generator=g),
        lambda g: copy_task(9, 5, 7, generator=g)[0],
    ):
        assert torch.equal(make(seeded(1)), make(seeded(1)))
        assert not torch.equal(make(seeded(1)), make(seeded(2)))


def test_the_same_examples_on_every_machine():
    """Fixed numbers: another platform or version of torch that draws others would change what the notebooks show."""
    r = associative_recall(2, n_pairs=3, n_keys=7, n_values=11, generator=seeded())
    assert r.tokens.tolist() == [[2, 15, 3, 13, 4, 11, 4], [5, 17, 6, 17, 3, 16, 3]]
    assert noise_tokens(1, 8, 13, generator=seeded()).tolist() == [[3, 2, 1, 3, 12, 4, 3, 12]]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: associative_recall(3, n_pairs=4, n_keys=3, n_values=9), ValueError, "n_pairs: .* n_keys=3"),
        (lambda: associative_recall(3, n_pairs=0, n_keys=3, n_values=9), ValueError, "n_pairs: .* of at least 1"),
        (lambda: associative_recall(3, n_pairs=2, n_keys=3, n_values=4), ValueError, "n_values: .* of at least 5"),
        (lambda: associative_recall(3, n_pairs=2, n_keys=3, n_values=9, split="dev"), ValueError, "split: .* 'dev'"),
        (lambda: associative_recall(2.0, n_pairs=2, n_keys=3, n_values=9), TypeError, "n_examples: .* got 2.0"),
        (lambda: noise_tokens(3, 0, 5), ValueError, "length: expected an integer of at least 1"),
        (lambda: noise_tokens(3, 4, 1), ValueError, "vocab_size: expected an integer of at least 2"),
        (lambda: noise_floor(True), TypeError, "vocab_size: expected an integer .*, got True"),
        (lambda: copy_task(3, 4, 5, first_id=4), ValueError, "vocab_size: expected an integer of at least 6, got 5"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_changing_facts_ask_for_the_latest_room():
    names, rooms, targets = (part.tolist() for part in changing_facts(50, 40, n_names=7, n_rooms=5, generator=seeded()))
    n_asked = n_changed = 0
    for row in zip(names, rooms, targets, strict=True):
        now = {}
        for name, room, target in zip(*row, strict=True):
            assert 0 <= name < 7
            assert 0 <= room <= 5
            if room == 5:
                assert target == now[name]
                n_asked += 1
            else:
                assert target == -100
                n_changed += now.get(name, room) != room
                now[name] = room
    assert 0.2 < n_asked / (50 * 40) < 0.3
    assert n_changed > 500
