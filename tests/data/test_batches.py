"""Batches: every example once an epoch, the same order everywhere, resumable, and little padding."""

import json
import random

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import rounds

from course_lib.data import Pair, TokenBatches, TokenWindows, encode_pairs, open_tokens, pad_batch, write_tokens


def ragged(n, seed=0, longest=30):
    draw = random.Random(seed)
    return [
        {"source": [i + 5] * draw.randint(1, longest), "target": [1] + [i + 5] * draw.randint(1, longest) + [2]}
        for i in range(n)
    ]


def names(batch):
    """Which examples a batch of `ragged` holds."""
    return [int(row[0]) - 5 for row in batch["source"]]


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@given(
    n=st.integers(8, 200),
    max_tokens=st.integers(64, 300),
    bucket=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
)
@settings(deadline=None, max_examples=rounds(40, 200))
def test_every_example_comes_once_an_epoch(n, max_tokens, bucket, shuffle, seed):
    examples = ragged(n, seed)
    sizes = {"max_tokens": max_tokens, "bucket": bucket, "shuffle": shuffle}
    batches = TokenBatches(examples, seed=seed, **sizes)
    count = len(batches)
    epoch = list(batches)
    assert len(epoch) == count
    for batch in epoch:
        assert batch["source"].dtype == torch.int64
        rows, width = batch["source"].shape
        assert rows * max(width, batch["target"].size(1)) <= max_tokens
        for name, source, target in zip(names(batch), batch["source"], batch["target"], strict=True):
            for side, row in (("source", source), ("target", target)):
                real = examples[name][side]
                assert row.tolist() == real + [0] * (len(row) - len(real))
    assert sorted(name for batch in epoch for name in names(batch)) == list(range(n))


def make(kind, **settings):
    if kind == "pairs":
        return TokenBatches(ragged(50), max_tokens=100, **settings)
    return TokenWindows(torch.arange(301), length=7, batch_size=3, **settings)


@pytest.mark.parametrize("kind", ["pairs", "windows"])
@pytest.mark.parametrize("taken", [0, 1, 7, 14, 15, 16, 40])
def test_a_state_goes_on_where_it_was_taken(kind, taken):
    batches = make(kind, seed=3)
    stream = batches.forever()
    for _ in range(taken):
        next(stream)
    state = json.loads(json.dumps(batches.state_dict()))
    expected = [next(stream) for _ in range(40)]
    resumed = make(kind, seed=3)
    running = resumed.forever()
    next(running)  # also one that runs already
    resumed.load_state_dict(state)
    for one in expected:
        assert same(next(running), one)


def test_loops_go_epoch_by_epoch():
    batches = make("pairs")
    first, second = list(batches), list(batches)
    assert batches.epoch == 2
    assert [names(batch) for batch in first] != [names(batch) for batch in second]
    still = make("pairs", shuffle=False)
    assert [names(batch) for batch in still] == [names(batch) for batch in still]


def test_another_seed_is_another_order():
    assert names(next(make("pairs").forever())) == names(next(make("pairs").forever()))
    orders = {tuple(names(next(make("pairs", seed=seed).forever()))) for seed in range(10)}
    assert len(orders) > 5


def test_bucketing_pads_less():
    examples = ragged(2000)
    waste = {bucket: TokenBatches(examples, max_tokens=600, bucket=bucket).padding_waste() for bucket in (True, False)}
    assert waste[False] > 0.4
    assert waste[True] < 0.25  # two sides of independent lengths: only one can be sorted


def test_padding_waste_is_what_the_batches_hold():
    batches = TokenBatches(ragged(300), max_tokens=200)
    waste = batches.padding_waste()
    ids = torch.cat([side.flatten() for batch in batches for side in batch.values()])
    assert waste == pytest.approx(float((ids == 0).float().mean()))


def test_sorted_lengths_of_one_side_hardly_waste():
    draw = random.Random(0)
    examples = [{"tokens": [5] * draw.randint(1, 60), "labels": i} for i in range(3000)]
    assert TokenBatches(examples, max_tokens=1000).padding_waste() < 0.03


def test_labels_and_several_shapes():
    batch = pad_batch([{"tokens": [3, 4], "labels": 1}, {"tokens": [5], "labels": 0}], pad_id=9)
    assert batch["tokens"].tolist() == [[3, 4], [5, 9]]
    assert batch["labels"].tolist() == [1, 0]


def test_encode_pairs_marks_the_ends():
    class Letters:
        def encode_batch(self, texts, *, bos=False, eos=False):
            return [[1] * bos + [ord(c) for c in text] + [2] * eos for text in texts]

    assert encode_pairs([Pair("a", "bc")], Letters()) == [{"source": [97, 2], "target": [1, 98, 99, 2]}]


@given(n=st.integers(60, 400), length=st.integers(1, 9), batch_size=st.integers(1, 5), epoch=st.integers(0, 3))
@settings(deadline=None, max_examples=rounds(40, 200))
def test_windows_cover_the_text_once_an_epoch(n, length, batch_size, epoch):
    windows = TokenWindows(torch.arange(n), length=length, batch_size=batch_size, seed=1)
    for _ in range(epoch):
        list(windows)
    rows = torch.cat([batch["tokens"] for batch in windows])
    assert (rows[:, 1:] - rows[:, :-1] == 1).all()
    predicted = sorted(rows[:, 1:].flatten().tolist())
    assert len(set(predicted)) == len(predicted)  # none twice
    assert predicted == list(range(predicted[0], predicted[-1] + 1))  # no gap
    assert predicted[0] <= length
    assert predicted[-1] >= n - length


def test_windows_begin_elsewhere_in_each_epoch():
    windows = TokenWindows(torch.arange(500), length=10, batch_size=4)
    starts = {int(next(iter(list(windows)))["tokens"].min()) % 10 for _ in range(20)}
    assert len(starts) > 5
    still = TokenWindows(torch.arange(500), length=10, batch_size=4, shuffle=False)
    assert next(iter(still))["tokens"][:, 0].tolist() == [0, 10, 20, 30]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_token_files(tmp_path, vocab_size, dtype):
    path = tmp_path / "corpus.npy"
    chunks = [range(5), [], [vocab_size - 1], list(range(100))]
    assert write_tokens(path, iter(chunks), vocab_size=vocab_size) == 106
    tokens = open_tokens(path)
    assert isinstance(tokens, np.memmap)
    assert tokens.dtype == dtype
    assert tokens.tolist() == [*range(5), vocab_size - 1, *range(100)]
    assert np.load(path).tolist() == tokens.tolist()  # any program that reads .npy
    from_file = TokenWindows(path, length=4, batch_size=3)
    from_memory = TokenWindows(torch.tensor(tokens.tolist()), length=4, batch_size=3)
    for one, two in zip(from_file, from_memory, strict=True):
        assert same(one, two)


def test_a_token_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "corpus.npy"

    def chunks():
        yield [1, 2, 3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tokens(path, chunks(), vocab_size=10)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="expected ids from 0 to 9, got 3 to 10"):
        write_tokens(path, [[3, 10]], vocab_size=10)
    assert list(tmp_path.iterdir()) == []


def own_memory():
    memory = psutil.Process().memory_info()
    return memory.rss - getattr(memory, "shared", 0)


def test_a_large_token_file_is_not_loaded(tmp_path):
    """Windows of a file of 400 MB: the memory of the process, pages of the file aside, hardly grows."""
    path = tmp_path / "large.npy"
    chunk = np.arange(1_000_000) % 50_000
    write_tokens(path, (chunk for _ in range(200)), vocab_size=50_000)
    before = own_memory()
    windows = TokenWindows(path, length=1024, batch_size=8)
    stream = windows.forever()
    for _ in range(20):
        assert next(stream)["tokens"].shape == (8, 1025)
    grown = own_memory() - before
    assert grown < 50e6, f"{grown / 1e6:.0f} MB"


def test_damaged_token_files_are_named(tmp_path):
    path = tmp_path / "corpus.npy"
    write_tokens(path, [range(1000)], vocab_size=1000)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is no complete file of token ids"):
        open_tokens(path)
    path.write_text("not at all")
    with pytest.raises(ValueError, match="is no complete file of token ids"):
        open_tokens(path)
    np.save(path, np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"expected integers \(N,\)"):
        open_tokens(path)
    with pytest.raises(ValueError, match="found none at"):
        open_tokens(tmp_path / "missing.npy")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TokenBatches(ragged(9), max_tokens=3), "max_tokens: expected .* or more, as long as example"),
        (lambda: TokenBatches([], max_tokens=3), "examples: expected at least 1"),
        (lambda: TokenBatches([{"tokens": []}], max_tokens=3), "examples: expected ids in each"),
        (lambda: make("pairs").load_state_dict({**make("pairs").state_dict(), "done": 99}), "a place within an epoch"),
        (lambda: TokenWindows(torch.arange(9), length=5, batch_size=1), "tokens: expected at least 10"),
        (lambda: TokenWindows(torch.zeros(3, 9), length=5, batch_size=1), r"tokens: expected ids \(N,\)"),
        (lambda: make("pairs").load_state_dict(make("pairs", seed=1).state_dict()), "state: taken with seed=1"),
        (lambda: make("windows").load_state_dict(make("pairs").state_dict()), "state: taken with length=None"),
        (lambda: pad_batch([]), "examples: expected at least one"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
