"""The pattern explorer: its blocks against masks, its costs against counting pairs."""

import pytest
import torch
from explorer_samples import pattern

from course_lib.masks import causal_mask, sliding_window_mask
from coursework.explorers import PatternExplorer
from coursework.explorers.pattern import BLOCKS, amount


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, 3, 16])
def test_a_window_is_that_of_the_masks(window, causal):
    explorer = PatternExplorer(window=window, causal=causal, tokens=1)
    mask = sliding_window_mask(BLOCKS, window=window, causal=causal)
    assert torch.equal(torch.from_numpy(explorer.pattern()), mask)
    assert explorer.costs()["pairs"] == int(mask.sum())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tokens", [1, 16])
@pytest.mark.parametrize("options", [{}, {"n_global": 2}, {"n_global": 1, "n_random": 2}, {"window": None}])
def test_costs_are_counted(options, tokens, causal):
    explorer = PatternExplorer(**{"window": 2, "causal": causal, "tokens": tokens} | options)
    mask = torch.from_numpy(explorer.pattern()).repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
    mask = mask & causal_mask(BLOCKS * tokens) if causal else mask
    costs = explorer.costs()
    assert costs["pairs"] == int(mask.sum())
    assert costs["operations"] == 4 * 128 * 32 * 32 * int(mask.sum())
    n = BLOCKS * tokens
    assert costs["every"] == (n * (n + 1) // 2 if causal else n * n)


def test_the_cache_keeps_what_later_queries_can_see():
    a_token = 2 * 32 * 8 * 128 * 2
    assert PatternExplorer(window=None).costs()["cache"] == 16 * 256 * a_token
    assert PatternExplorer(window=3, n_global=1).costs()["cache"] == 4 * 256 * a_token
    assert PatternExplorer(window=3, n_random=1).costs()["cache"] == 16 * 256 * a_token
    assert PatternExplorer(window=3, causal=False).costs()["cache"] == 0


def test_random_blocks_add_blocks():
    assert pattern(n_random=0).pattern().sum() < pattern(n_random=2).pattern().sum()


def test_amounts():
    assert [amount(x) for x in (0, 7, 999, 1000, 12_345_678, 999_499, 999_600)] == [
        "0", "7", "999", "1.00 k", "12.3 M", "999 k", "1.00 M"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window: expected an integer from 1 to 16, got 0"),
        ({"n_global": 5}, "n_global: expected an integer from 0 to 4, got 5"),
        ({"n_random": -1}, "n_random: expected an integer from 0 to 4, got -1"),
        ({"tokens": 100}, "tokens: expected one of"),
        ({"kv_heads": 4}, "kv_heads: expected one of"),
    ],
)
def test_bad_input_names_the_argument(options, message):
    with pytest.raises(ValueError, match=message):
        PatternExplorer(**options)
