"""The pattern explorer in a browser: every control against the numbers that Python counts."""

import pytest
from explorer_samples import pattern

from coursework.explorers import PatternExplorer


def costs(page):
    return page.get_by_role("table", name="What it costs").evaluate(
        "t => [...t.rows].slice(1).map(r => [...r.cells].map(c => c.innerText.trim()))"
    )


def blocks(page):
    return page.get_by_role("table", name="Blocks: 1 = visible").evaluate(
        "t => [...t.rows].map(r => [...r.cells].slice(1).map(c => c.innerText.trim() === '1'))"
    )


def check(page, **options):
    expected = PatternExplorer(**options)
    assert blocks(page) == expected.pattern().tolist()
    assert costs(page) == expected.rows()


@pytest.mark.parametrize("causal", [True, False])
def test_pattern_shows_pythons_numbers_under_every_control(open_page, causal):
    page = open_page(pattern(causal=causal))
    options = {"window": 3, "n_global": 1, "n_random": 2, "tokens": 64, "kv_heads": 8, "causal": causal}
    check(page, **options)
    page.get_by_label("Tokens in a block").select_option(label="8192")
    check(page, **options | {"tokens": 8192})
    page.get_by_label("Heads of keys and values").select_option(label="1")
    check(page, **options | {"tokens": 8192, "kv_heads": 1})
    page.get_by_label("Random blocks").fill("0")
    page.get_by_label("Global blocks").fill("2")
    page.get_by_label("blocks in it").fill("5")
    changed = {"window": 5, "n_global": 2, "n_random": 0, "tokens": 8192, "kv_heads": 1}
    check(page, **changed, causal=causal)
    page.get_by_label("Causal").click()
    check(page, **changed, causal=not causal)
    page.get_by_label("Window", exact=True).click()
    check(page, **changed | {"window": None}, causal=not causal)
    page.get_by_role("button", name="Reset").click()
    check(page, **options)
