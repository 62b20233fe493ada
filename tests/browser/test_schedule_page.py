"""The explorer of schedules in a browser: every control, every number, and the code that it prints."""

import math

import pytest
from explorer_samples import schedule

from coursework.explorers.schedule import KINDS, TITLES


def check(page, kind, step, warmup=11, decay=23):
    explorer = schedule()
    explorer.warmup, explorer.decay = warmup, decay
    now = explorer.rate(step, kind)
    said = page.get_by_role("status").inner_text()
    assert said.startswith(f"Step {step} of 97: rate {now:.3e}, ")
    assert f"The first step has {explorer.rate(1, kind):.3e}, step {warmup} the peak" in said
    rows = page.get_by_role("table", name=f"The rate of step {step}").evaluate(
        "t => [...t.rows].map(r => [...r.cells].map(c => c.innerText.trim()))"
    )
    assert rows == [[TITLES[one], f"{explorer.rate(step, one):.3e}"] for one in KINDS]
    names = {"math": math}
    exec(page.locator(".cx-formula code").inner_text(), names)  # the code is Python and gives these rates
    for at in range(1, 98):
        assert names["rate"](at) == pytest.approx(explorer.rate(at, kind), rel=1e-12)


def test_schedules_show_their_numbers_and_code_under_every_control(open_page):
    page = open_page(schedule())
    check(page, "noam", 7)
    assert page.get_by_label("Decay").is_hidden()
    page.get_by_label("Step", exact=True).fill("60")
    check(page, "noam", 60)
    page.get_by_label("Schedule", exact=True).select_option(index=1)
    check(page, "cosine", 60)
    page.get_by_label("Warm-up").fill("30")
    check(page, "cosine", 60, warmup=30)
    page.get_by_label("Schedule", exact=True).select_option(index=2)
    page.get_by_label("Decay").fill("40")
    check(page, "warmup_stable_decay", 60, warmup=30, decay=40)
    page.get_by_label("Schedule", exact=True).select_option(index=3)
    page.get_by_title("step 90:").click()
    check(page, "linear", 90, warmup=30, decay=40)
    page.get_by_role("button", name="Reset").click()
    check(page, "noam", 7)
