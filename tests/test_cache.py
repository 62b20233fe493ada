"""The cache keeps what it is given, in order, in the memory it promises."""

import pytest
import torch

from course_lib.cache import DecoderCache, KVCache

B, G, E = 2, 3, 4


def fill(cache, pieces):
    """Append pieces of the given lengths; return everything appended and what each call returned."""
    torch.manual_seed(0)
    keys = torch.randn(B, G, sum(pieces), E)
    returned, start = [], 0
    for T in pieces:
        S = cache.keys_after(T)
        key = keys[:, :, start : start + T]
        found, values = cache.append(key, -key)
        assert found.size(2) == S == values.size(2)
        assert torch.equal(values, -found)
        start += T
        returned.append((start, found.clone()))
    return keys, returned


@pytest.mark.parametrize("pieces", [[1] * 9, [5, 1, 1], [1, 5, 3], [9]])
@pytest.mark.parametrize("capacity", [None, 9, 20])
def test_everything_is_kept_in_order(pieces, capacity):
    cache = KVCache(capacity)
    keys, returned = fill(cache, pieces)
    for end, found in returned:
        assert torch.equal(found, keys[:, :, :end])
    assert cache.length == sum(pieces)
    assert torch.equal(cache.keys, keys)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("pieces", [[1] * 23, [5] + [1] * 11, [2, 9, 1, 1, 1, 4, 3, 3, 1], [23]])
def test_a_sliding_cache_shows_each_query_its_window(pieces, window):
    cache = KVCache(window=window)
    keys, returned = fill(cache, pieces)
    for T, (end, found) in zip(pieces, returned, strict=True):
        assert torch.equal(found, keys[:, :, max(0, end - T - (window - 1)) : end])
    assert cache.length == sum(pieces)
    assert cache.n_bytes == 2 * B * G * 2 * window * E * 4  # whatever the length


def test_preallocated_memory_is_reserved_once():
    cache = KVCache(10)
    fill(cache, [1])
    address = cache.keys.data_ptr()
    for _ in range(9):
        cache.append(torch.zeros(B, G, 1, E), torch.zeros(B, G, 1, E))
        assert cache.keys.data_ptr() == address
    assert cache.n_bytes == 2 * B * G * 10 * E * 4


def test_growth_doubles():
    cache, addresses = KVCache(), set()
    for _ in range(100):
        cache.append(torch.zeros(B, G, 1, E), torch.zeros(B, G, 1, E))
        addresses.add(cache._keys.size(2))
    assert sorted(addresses) == [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize("options", [{"capacity": 9}, {}, {"window": 3}], ids=str)
def test_another_dtype_is_kept_if_asked_for(options):
    cache, usual = KVCache(**options, dtype=torch.float32), KVCache(**options)
    key = torch.randn(B, G, 9, E, dtype=torch.bfloat16)
    for piece in (key[:, :, :5], key[:, :, 5:6], key[:, :, 6:]):
        found, expected = cache.append(piece, -piece)[0], usual.append(piece.float(), -piece.float())[0]
        assert torch.equal(found, expected)
    assert cache.keys.dtype == cache.values.dtype == torch.float32
    cache.reorder(torch.tensor([1, 1, 0]))
    assert cache.keys.dtype == torch.float32


@pytest.mark.parametrize("cache", [KVCache(9), KVCache(), KVCache(window=3)])
def test_reorder_forks_and_drops_examples(cache):
    fill(cache, [5, 1])
    before = cache.keys.clone()
    cache.reorder(torch.tensor([1, 1]))
    assert torch.equal(cache.keys, before[[1, 1]])
    cache.reorder(torch.tensor([0, 1, 0]))  # one example more
    assert torch.equal(cache.keys, before[[1, 1, 1]])
    key = torch.randn(3, G, 1, E)
    assert torch.equal(cache.append(key, key)[0][:, :, -1:], key)


@pytest.mark.parametrize("capacity", [9, None])
def test_truncate_then_append(capacity):
    cache = KVCache(capacity)
    keys, _ = fill(cache, [6])
    cache.truncate(2)
    key = torch.randn(B, G, 1, E)
    assert torch.equal(cache.append(key, key)[0], torch.cat([keys[:, :, :2], key], dim=2))
    assert cache.length == 3
    cache.truncate(0)
    assert cache.append(key, key)[0].size(2) == 1


def test_decoder_cache_counts_bytes_and_positions():
    cache = DecoderCache([None, None], cross=True, capacity=10)
    for layer in cache.layers:
        key = torch.zeros(B, G, 4, E)
        layer.self_attention.append(key, key)
        layer.cross_attention.append(key, key)
    assert cache.length == 4
    assert cache.keys_after(3) == 7
    assert cache.n_bytes == 2 * 2 * B * G * (10 + 4) * E * 4
    cache.truncate(1)
    cache.reorder(torch.tensor([0]))
    assert cache.length == 1
    assert cache.layers[1].cross_attention.keys.shape == (1, G, 4, E)


def full_cache():
    cache = KVCache(4)
    cache.append(torch.zeros(B, G, 3, E), torch.zeros(B, G, 3, E))
    return cache


def put(*shape, dtype=torch.float32, value=None, value_dtype=None):
    key, values = torch.zeros(shape, dtype=dtype), torch.zeros(value or shape, dtype=value_dtype or dtype)
    return lambda: full_cache().append(key, values)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (put(B, G, 2, E), ValueError, r"cache: 3 \+ 2 positions exceed its capacity of 4"),
        (
            put(B + 1, G, 1, E),
            ValueError,
            r"cache: holds keys of batch, key heads and width \(2, 3, 4\), cannot take \(3, 3, 4\)",
        ),
        (put(B, G, 1, E + 1), ValueError, r"cache: holds .* cannot take \(2, 3, 5\)"),
        (put(B, G, 1, E, dtype=torch.bfloat16), TypeError, r"holds keys of torch.float32, cannot take torch.bfloat16"),
        (put(B, G, 1, E, value=(B, G, 2, E)), ValueError, r"value: expected \(B, G, T, E\) as .* got \(2, 3, 2, 4\)"),
        (put(B, G, 1, E, value=(B, 1, 1, E)), ValueError, r"value: expected .* got \(2, 1, 1, 4\)"),
        (
            put(B, G, 1, E, value=(B, G, 1, 2)),
            ValueError,
            r"holds values of .* \(2, 3, 4\), cannot take \(2, 3, 2\)",
        ),
        (put(B, G, 1, E, value_dtype=torch.bfloat16), TypeError, r"holds values of torch.float32, cannot take"),
        (put(G, 1, E), ValueError, r"value: expected \(B, G, T, E\)"),
        (lambda: full_cache().truncate(4), ValueError, r"length: expected 0 to 3"),
        (lambda: KVCache(0), ValueError, r"capacity: expected an integer of at least 1, got 0"),
        (lambda: KVCache(window=-1), ValueError, r"window: expected an integer of at least 1, got -1"),
        (lambda: KVCache(3, window=2), ValueError, r"capacity: a sliding cache forgets"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_sliding_cache_cannot_go_back():
    cache = KVCache(window=2)
    fill(cache, [5])
    cache.truncate(5)
    with pytest.raises(ValueError, match="length: a sliding cache no longer has"):
        cache.truncate(4)


def test_the_first_values_are_of_the_keys_dtype():
    for dtype in (torch.float16, torch.int32):
        with pytest.raises(TypeError, match=r"value: expected torch\.float32 as the key, got"):
            KVCache().append(torch.zeros(B, G, 1, E), torch.zeros(B, G, 1, E, dtype=dtype))
