"""The explorers of generation in a browser: every control, every number against torch."""

import re

import pytest
from explorer_samples import decoding, decoding_parts, sampling, sampling_logits

from course_lib.generation.sampling import Sampling
from coursework.pictures.arrays import number

READ = ["<s>", "b (1)", "a (2)", "c", "b (4)", "a (5)", "d"]
WRITTEN = [*"bacbad", "</s>"]
SOURCE = ["a (0)", "b (1)", "c", "a (3)", "b (4)"]


def rows_of(page, title):
    """The rows of a table as lists of text, found by its caption."""
    found = page.get_by_role("table", name=title)
    return found.evaluate("t => [...t.rows].map(r => [...r.cells].map(c => c.innerText.trim()))")


def two(weight):
    """A weight as the page writes it: rounded to thousandths, then to hundredths."""
    return number(round(weight * 1000) / 1000, 2)


def check_decoding(page, step, head):
    encoder, decoder, cross, chances = (part.double() for part in decoding_parts())
    encoder, decoder, cross = (w.mean(0) if head is None else w[head] for w in (encoder, decoder, cross))
    shown = rows_of(page, "Encoder: source reads source")
    assert [row[1:] for row in shown[1:]] == [[two(w) for w in row] for row in encoder.tolist()]
    for title, weights, names in (
        ("Decoder: target reads target", decoder, READ),
        ("Across: target reads source", cross, SOURCE),
    ):
        rows = rows_of(page, title)
        assert rows[0][1:] == names
        for t, row in enumerate(rows[1:]):
            visible = 0 if t >= step else t + 1 if weights is decoder else len(names)
            assert row[1:] == [two(w) for w in weights[t, :visible].tolist()] + [""] * (len(names) - visible)
            assert row[0] == (f"{READ[t]} → {WRITTEN[t]}" if t < step else "not yet")
    said = page.get_by_role("status").inner_text()
    own, far = decoder[step - 1], cross[step - 1]
    assert said.startswith(f"Step {step}: the model reads “{READ[step - 1]}” and what came before, and writes")
    assert f"“{WRITTEN[step - 1]}” with probability {number(chances[step - 1].item())}" in said
    assert f"from “{READ[own.argmax()]}”, {two(own.max().item())}" in said
    assert f"from “{SOURCE[far.argmax()]}”, {two(far.max().item())}" in said


def test_decoding_shows_the_weights_under_every_control(open_page):
    page = open_page(decoding())
    inner = page.get_by_role("table", name="Encoder: source reads source")
    assert inner.count() == 0  # at first, only the map across is there
    page.get_by_label("Show the attention within each side").check()
    check_decoding(page, 7, None)
    step, head = page.get_by_label("Tokens written"), page.get_by_label("Head", exact=True)
    step.focus()
    for now in (6, 5):
        page.keyboard.press("ArrowLeft")
        check_decoding(page, now, None)
    page.keyboard.press("Home")
    check_decoding(page, 1, None)
    for index in (1, 3):
        head.select_option(index=index)
        check_decoding(page, 1, index - 1)
    step.focus()
    page.keyboard.press("End")
    check_decoding(page, 7, 2)
    page.get_by_role("button", name="Reset").click()
    check_decoding(page, 7, None)


def check_sampling(page, selected, **settings):
    """The table, the sentence and the code say what the package's own sampler does with these settings."""
    row = sampling_logits()[selected].double()
    wanted = Sampling(**settings).probabilities(row).double()
    heat = settings.get("temperature", 1.0)
    before = (row / heat).softmax(-1) if heat else wanted
    order = before.argsort(descending=True)
    rows = rows_of(page, "The most likely tokens")[1:]
    assert len(rows) == 17
    for cells, token in zip(rows[:16], order.tolist(), strict=False):
        assert float(cells[1]) == pytest.approx(before[token].item(), abs=0.000502)
        assert (cells[2] == "cut") == (wanted[token] == 0)
        if cells[2] != "cut":
            assert float(cells[2]) == pytest.approx(wanted[token].item(), abs=0.000502)
    assert rows[16][0] == "3 others"
    said = page.get_by_role("status").inner_text()
    assert said.startswith(f"{int((wanted > 0).sum())} of 19 tokens kept")
    mass = float(re.search(r"probability ([\d.]+) together", said)[1])
    assert mass == pytest.approx(before[wanted > 0].sum().item(), abs=0.000502)
    code = page.locator(".cx-formula code").inner_text()
    assert eval(code, {"Sampling": Sampling}) == Sampling(**settings)  # what a reader would paste


def test_sampling_shows_the_packages_numbers_under_every_control(open_page):
    page = open_page(sampling())
    check_sampling(page, 1, temperature=0.8, top_p=0.9)
    page.get_by_label("After", exact=True).select_option(index=2)
    check_sampling(page, 2, temperature=0.8, top_p=0.9)
    page.get_by_label("Temperature").fill("1.5")
    check_sampling(page, 2, temperature=1.5, top_p=0.9)
    page.get_by_label("Top-p").fill("1")
    check_sampling(page, 2, temperature=1.5)
    page.get_by_label("Top-k").fill("5")
    check_sampling(page, 2, temperature=1.5, top_k=5)
    page.get_by_label("Top-p").fill("0.55")
    check_sampling(page, 2, temperature=1.5, top_k=5, top_p=0.55)
    page.get_by_label("Min-p").fill("0.6")
    check_sampling(page, 2, temperature=1.5, top_k=5, top_p=0.55, min_p=0.6)
    page.get_by_label("Temperature").focus()
    page.keyboard.press("Home")
    check_sampling(page, 2, temperature=0.0, top_k=5, top_p=0.55, min_p=0.6)
    page.keyboard.press("ArrowRight")
    check_sampling(page, 2, temperature=0.05, top_k=5, top_p=0.55, min_p=0.6)
    page.get_by_role("button", name="Reset").click()
    check_sampling(page, 1, temperature=0.8, top_p=0.9)
