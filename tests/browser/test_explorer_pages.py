"""The explorers in a browser, from a file, without a network: every control, every number against torch."""

import math
import random
import re
from pathlib import Path

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from explorer_samples import (
    MAKERS,
    STACKS,
    head_weights,
    stream_gradients,
    stream_vectors,
    tensors,
)

import course_lib.masks
from course_lib.attention import scaled_dot_product_attention
from course_lib.masks import causal_mask
from course_lib.positions import SinusoidalPositionalEncoding, frequencies
from coursework import explorers
from coursework.explorers import AttentionExplorer, MaskComposer
from coursework.pictures.arrays import number

KEYS = ["the (0)", "animal", "did", "not", "cross", "the (5)", "street"]  # equal tokens are told apart


EXPLORERS = {name: make() for name, make in MAKERS.items()}


@pytest.fixture(params=list(EXPLORERS))
def explorer(request):
    return EXPLORERS[request.param]


def table(scope, title):
    """The rows of a table as lists of text, found by its caption or label."""
    found = scope.get_by_role("table", name=title).or_(scope.get_by_role("grid", name=title))
    return found.evaluate("t => [...t.rows].map(r => [...r.cells].map(c => c.innerText.trim()))")


# Attention ----------------------------------------------------------------------------------------------------------


def reference(selected, scaled, temperature):
    """Scores, logits, weights, contributions and output of one query, by torch in float64."""
    query, key, value = (tensor.double() for tensor in tensors())
    scores = query[selected] @ key.T
    divisor = (math.sqrt(3) if scaled else 1.0) * temperature
    visible = causal_mask(5, 7)[selected]
    weights = (scores / divisor).masked_fill(~visible, -math.inf).softmax(-1)
    return scores, scores / divisor, visible, weights, weights[:, None] * value, weights @ value


def check_attention(page, selected, scaled, temperature):
    scores, logits, visible, weights, parts, output = reference(selected, scaled, temperature)
    rows = table(page, "From scores to weights")[1:]
    assert [row[0] for row in rows] == KEYS
    for j, row in enumerate(rows):
        logit = number(logits[j].item()) if visible[j] else "masked"
        assert row[1:4] == [number(scores[j].item()), logit, number(weights[j].item())]
    sums = table(page, "Weight × value")[1:]
    assert [row[1:] for row in sums[:-1]] == [[number(x, 2) for x in part] for part in parts.tolist()]
    assert sums[-1] == ["output", *(number(x, 2) for x in output.tolist())]
    entropy = torch.special.entr(weights).sum().item()
    said = page.get_by_role("status").inner_text()
    assert f"largest weight, {number(weights.max().item())}, to “{KEYS[weights.argmax()]}”" in said
    assert f"Entropy {number(entropy)} of at most {number(math.log(visible.sum().item()))} nats" in said
    assert f"as if {number(math.exp(entropy), 1)} keys" in said
    formula = page.locator(".cx-formula").inner_text()
    assert f") = {number(weights.max().item())}" in formula
    assert formula.endswith(f"= [{', '.join(number(x, 2) for x in output.tolist())}]")


def test_attention_shows_torchs_numbers_under_every_control(open_page):
    page = open_page(EXPLORERS["attention"])
    check_attention(page, 1, True, 1.0)
    query, scale = page.get_by_label("Query", exact=True), page.get_by_label("Divide by √E = 1.73")
    temperature = page.get_by_label("Temperature")
    for selected in range(5):  # by mouse
        query.select_option(index=selected)
        check_attention(page, selected, True, 1.0)
    scale.click()
    check_attention(page, 4, False, 1.0)
    query.focus()  # by keyboard
    page.keyboard.press("ArrowUp")
    check_attention(page, 3, False, 1.0)
    temperature.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    check_attention(page, 3, False, 1.3)
    page.keyboard.press("Home")
    check_attention(page, 3, False, 0.1)
    scale.focus()
    page.keyboard.press("Space")
    check_attention(page, 3, True, 0.1)
    temperature.focus()
    page.keyboard.press("End")
    check_attention(page, 3, True, 5.0)
    page.get_by_role("button", name="Reset").click()
    check_attention(page, 1, True, 1.0)


def test_attention_shown_first_agrees_with_the_layer_in_float32(open_page):
    page = open_page(EXPLORERS["attention"])
    query, key, value = tensors()
    output, weights = scaled_dot_product_attention(query, key, value, mask=causal_mask(5, 7), return_weights=True)
    shown = [float(row[3]) for row in table(page, "From scores to weights")[1:]]
    assert shown == pytest.approx(weights[1].tolist(), abs=0.000501)
    last = table(page, "Weight × value")[-1][1:]
    assert [float(x.replace("−", "-")) for x in last] == pytest.approx(output[1].tolist(), abs=0.00501)


def test_a_row_of_the_map_chooses_its_query(open_page):
    page = open_page(EXPLORERS["attention"])
    page.get_by_title("cross", exact=True).locator("visible=true").last.click()
    check_attention(page, 2, True, 1.0)


def test_bars_are_as_long_as_the_weights(open_page):
    page = open_page(EXPLORERS["attention"])
    bars = page.get_by_role("table", name="From scores to weights").locator("td > div")
    shares = bars.evaluate_all("bars => bars.map(b => b.firstChild.getBoundingClientRect().width / (b.clientWidth))")
    weights = reference(1, True, 1.0)[3]
    assert shares == pytest.approx(weights.tolist(), abs=0.02)
    ticks = bars.evaluate_all("bars => bars.map(b => parseFloat(b.lastChild.style.left.slice(5)) / 100)")
    assert ticks == pytest.approx(reference(1, False, 1.0)[3].tolist(), abs=1e-4)


def test_a_query_that_sees_nothing_is_explained(open_page):
    query, key, value = tensors()
    nothing = torch.zeros(5, 7, dtype=torch.bool)
    page = open_page(AttentionExplorer(query, key, value, list("abcde"), mask=nothing))
    assert "may attend to nothing" in page.get_by_role("status").inner_text()
    assert table(page, "Weight × value")[-1] == ["output", "0.00", "0.00"]
    assert "0/0" in page.locator(".cx-formula").inner_text()


# Mask ---------------------------------------------------------------------------------------------------------------

SDPA, MHA = "scaled_dot_product_attention: 1 = may attend", "nn.MultiheadAttention: 1 = hidden"
NAMES = {name: getattr(course_lib.masks, name) for name in dir(course_lib.masks) if name.endswith(("mask", "masks"))}


def evaluate(expression):
    return eval(expression, {"torch": torch, **NAMES})  # what a reader would paste


def bits(page, title):
    return torch.tensor([[int(cell) for cell in row[1:]] for row in table(page, title)[1:]]).bool()


def check_mask(page, example):
    """Both grids, both expressions, the count and the warning say the same; return the mask of the example."""
    shown = bits(page, SDPA)
    assert torch.equal(bits(page, MHA), ~shown)
    T, S = shown.shape
    code = page.locator(".cx-formula code").all_inner_texts()
    built = evaluate(code[0].removeprefix("mask = "))
    if built is None:
        assert shown.all()
        assert code[1] == "no mask"
    else:
        said = re.search(r"shape (\(.*?\)):", page.locator(".cx-formula").inner_text())[1]
        assert tuple(built.shape) == evaluate(said)
        wanted = built[example, 0] if built.dim() == 4 else built
        assert torch.equal(wanted.expand(T, S), shown)
        hidden = torch.zeros(T, S, dtype=torch.bool)
        for line in code[1:]:
            name, _, expression = line.partition("=")
            value = evaluate(expression)
            assert value.shape == (T, S) if name == "attn_mask" else value.shape[1:] == (S,)
            hidden |= value if name == "attn_mask" else value[example]
        assert torch.equal(hidden, ~shown)
    status = page.get_by_role("status").inner_text()
    assert status.startswith(f"{int(shown.sum())} of {T * S} cells visible")
    empty = [i for i in range(T) if not shown[i].any()]
    assert ("Every query sees" in status) == (not empty)
    assert all(f"query {i} (" in status for i in empty)
    assert page.get_by_text("softmax is 0/0").is_visible() == bool(empty)
    return shown


def test_mask_prints_the_expression_that_builds_it(open_page):
    page = open_page(EXPLORERS["mask"])
    assert torch.equal(check_mask(page, 1), causal_mask(5, 7) & (torch.arange(7) < 4))
    code = page.locator(".cx-formula code").first.inner_text()
    assert code == "mask = combine_masks(causal_mask(5, 7), length_mask([7, 4, 2], 7))"
    draw = random.Random(0)
    for _ in range(24):
        example = set_mask(page, draw)
        check_mask(page, example)


def set_mask(page, draw):
    """Set some controls at random by role and label; return the example shown."""
    for name in ("Causal", "Sliding window", "Padding"):
        page.get_by_label(name, exact=True).set_checked(draw.random() < 0.6)
    page.get_by_label("Queries T").fill(str(draw.randint(1, 12)))
    page.get_by_label("Keys S").fill(str(draw.randint(1, 12)))
    if page.get_by_label("aligned").is_enabled():
        page.get_by_label("aligned").select_option(index=draw.randint(0, 1))
    if page.get_by_label("Window size").is_enabled():
        page.get_by_label("Window size").fill(str(draw.randint(1, 12)))
    example = page.get_by_label("Example", exact=True)
    if example.is_enabled():
        example.select_option(index=draw.randint(0, 2))
        page.get_by_label("on the").select_option(index=draw.randint(0, 1))
        page.get_by_label("Real tokens").fill(str(draw.randint(0, 12)))
    return int(example.input_value())


def test_mask_moves_by_keyboard(open_page):
    page = open_page(MaskComposer(5, lengths=[3], padding=False))
    assert torch.equal(check_mask(page, 0), causal_mask(5))
    page.get_by_label("Causal", exact=True).focus()
    page.keyboard.press("Space")
    assert check_mask(page, 0).all()
    page.get_by_label("Queries T").focus()
    page.keyboard.press("ArrowRight")
    assert check_mask(page, 0).shape == (6, 5)
    page.get_by_label("Sliding window", exact=True).focus()
    page.keyboard.press("Space")
    page.get_by_label("Window size").focus()
    page.keyboard.press("Home")
    assert check_mask(page, 0).sum() == 5
    page.get_by_label("Padding", exact=True).focus()
    page.keyboard.press("Space")
    page.get_by_label("Real tokens").focus()
    page.keyboard.press("Home")
    assert not check_mask(page, 0).any()


def test_alignment_is_that_of_torch(open_page):
    page = open_page(MaskComposer(3, 5))
    page.get_by_label("aligned").select_option(index=1)
    shown = check_mask(page, 0)
    query, key = torch.randn(3, 4), torch.randn(5, 4)
    eye = torch.eye(5)
    seen = torch.nn.functional.scaled_dot_product_attention(query, key, eye, is_causal=True) > 0
    assert torch.equal(shown, seen)
    assert "hides too much" in page.locator(".cx-note").inner_text()
    page.get_by_label("aligned").select_option(index=0)
    assert torch.equal(check_mask(page, 0), causal_mask(3, 5))
    assert "stands on position 2" in page.locator(".cx-note").inner_text()


# Positions ----------------------------------------------------------------------------------------------------------


def check_position(page, p, k, pair):
    """The sentence and the formula hold torch's numbers in float64."""
    rates = frequencies(14).double()
    turned = torch.stack(
        [(q * rates).sin() if f == "sin" else (q * rates).cos() for q in (p, p + k) for f in ("sin", "cos")]
    )
    codes = SinusoidalPositionalEncoding(14)(torch.tensor([p, p + k])).double()
    said = page.get_by_role("status").inner_text()
    product = (k * rates).cos().sum().item()
    assert product == pytest.approx((codes[0] @ codes[1]).item(), abs=1e-4)
    assert f"similarity {number(product / 7)} of at most 1, dot product {number(product)} of at most 7" in said
    lines = page.locator(".cx-formula > div").all_inner_texts()
    rate = number(rates[pair].item(), 4)
    assert f"Pair {pair} stands at α = {p} · {rate} and turns by β = {k} · {rate} = " in lines[0]
    assert lines[1].endswith(f"= {number(turned[2, pair].item())}")
    assert lines[2].endswith(f"= {number(turned[3, pair].item())}")


def test_positions_show_torchs_numbers_under_every_control(open_page):
    page = open_page(EXPLORERS["position"])
    check_position(page, 5, 3, 1)
    page.get_by_label("Position p").fill("11")
    check_position(page, 11, 3, 1)
    page.get_by_label("Shift n").focus()
    page.keyboard.press("ArrowRight")
    check_position(page, 11, 4, 1)
    page.keyboard.press("End")
    check_position(page, 11, 36, 1)
    page.get_by_label("Pair", exact=True).select_option(index=6)
    check_position(page, 11, 36, 6)
    page.get_by_title("distance 2:").click()
    page.get_by_title("pair 3", exact=True).click()
    check_position(page, 11, 2, 3)
    page.get_by_role("button", name="Reset").click()
    check_position(page, 5, 3, 1)


# Streams ------------------------------------------------------------------------------------------------------------


def check_stream(page, stack, layer):
    vectors = stream_vectors(STACKS[stack])[layer].double()
    cosines = torch.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    rows = table(page, "Cosine between tokens")[1:]
    assert [row[0] for row in rows] == KEYS
    shown = [[float(cell.replace("−", "-")) for cell in row[1:]] for row in rows]
    assert torch.allclose(torch.tensor(shown).double(), cosines, atol=0.00551)
    mean = cosines[~torch.eye(7, dtype=torch.bool)].mean().item()
    place = "at the input" if layer == 0 else f"after layer {layer}"
    assert f"{STACKS[stack]}, {place}: similarity {number(mean)}, length" in page.get_by_role("status").inner_text()
    for name, row in zip(STACKS, table(page, "All stacks at this layer")[1:], strict=True):
        assert row[0] == name
        length = stream_vectors(name)[layer].double().square().mean(-1).sqrt().mean().item()
        assert float(row[2]) == pytest.approx(length, abs=0.000501)
        assert float(row[3].replace("−", "-")) == pytest.approx(stream_gradients(name)[layer], rel=0.05)


def test_streams_show_torchs_numbers_under_every_control(open_page):
    page = open_page(EXPLORERS["stream"])
    check_stream(page, 0, 4)
    for stack in (1, 2, 0):
        page.get_by_label("Stack", exact=True).select_option(index=stack)
        check_stream(page, stack, 4)
    page.get_by_label("Layer", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    check_stream(page, 0, 3)
    page.keyboard.press("Home")
    check_stream(page, 0, 0)
    page.get_by_title("similarity after layer 2:").click()
    check_stream(page, 0, 2)
    page.get_by_role("button", name="Reset").click()
    check_stream(page, 0, 4)


# Heads --------------------------------------------------------------------------------------------------------------


def check_heads(page, head, query, least=0.0):
    weights = (head_weights().double() * 1000).round() / 1000
    row, shown = weights[head, query], [number(w) for w in weights[head, query].tolist()]
    rows = table(page, "What the query reads")[1:]
    assert [cells[0] for cells in rows] == KEYS
    assert [cells[1] for cells in rows] == [
        text if w >= least - 1e-9 else "hidden" for text, w in zip(shown, row.tolist(), strict=True)
    ]
    mean = weights[:, query].mean(0)
    assert [float(cells[2]) for cells in rows] == pytest.approx(mean.tolist(), abs=0.00501)
    said = page.get_by_role("status").inner_text()
    assert f"In head {head}, “{KEYS[query]}” gives its largest weight, {number(row.max().item())}" in said
    assert f"to “{KEYS[row.argmax()]}”" in said
    assert f"{int((row >= least - 1e-9).sum())} of 7 keys have at least {least:.2f}" in said


def test_heads_show_their_weights_under_every_control(open_page):
    explorer = EXPLORERS["heads"]
    page = open_page(explorer)
    check_heads(page, explorer.selected, 6)
    roles = table(page, "What the heads do")
    assert roles[1:] == [list(row) for row in explorer.table().rows]
    for head in range(3):
        page.get_by_label("Head", exact=True).select_option(index=head)
        check_heads(page, head, 6)
    page.get_by_label("Query", exact=True).focus()
    page.keyboard.press("ArrowUp")
    check_heads(page, 2, 5)
    page.get_by_label("Hide weights below").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    check_heads(page, 2, 5, 0.15)
    page.get_by_role("button", name="Reset").click()
    check_heads(page, explorer.selected, 6)


def test_a_map_chooses_its_head_and_a_token_its_line(open_page):
    page = open_page(EXPLORERS["heads"])
    page.get_by_title("head 1", exact=True).first.click()
    check_heads(page, 1, 6)
    page.get_by_title("did", exact=True).first.click()
    check_heads(page, 1, 2)


# All ----------------------------------------------------------------------------------------------------------------


def test_two_copies_on_one_page_are_independent(open_page, explorer):
    page = open_page(explorer, explorer, *EXPLORERS.values())
    outputs = page.locator("[data-explorer]")
    assert page.locator("[data-mounted] .cx").count() == 2 + len(EXPLORERS)
    before = outputs.nth(1).inner_text()
    change(outputs.nth(0))
    assert outputs.nth(1).inner_text() == before
    assert outputs.nth(0).inner_text() != before


def change(scope):
    """Move the first control that can be moved, by keyboard."""
    control = scope.locator("select:enabled, input:enabled").first
    text = scope.inner_text()
    control.focus()
    for key in ("ArrowDown", "ArrowUp"):
        control.press(key)
        if scope.inner_text() != text:
            return
    raise AssertionError("the first control changes nothing")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_nothing_for_axe_to_complain_about(open_page, explorer, dark):
    page = open_page(explorer, dark=dark)
    change(page.locator("[data-explorer]"))
    page.locator("summary").click()
    results = Axe().run(page)
    assert results.violations_count == 0, results.generate_report()


def test_colours_follow_the_theme_of_the_page(open_page, explorer):
    page = open_page(explorer, dark=True)
    colour = "getComputedStyle(document.querySelector('.cx')).color"
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    assert open_page(explorer).evaluate(colour) == "rgb(0, 0, 0)"


def test_fits_a_narrow_screen(open_page, explorer):
    page = open_page(explorer, width=360)
    page.locator("summary").click()
    change(page.locator("[data-explorer]"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    for control in page.locator("select, input, button").locator("visible=true").all():
        box = control.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360


def test_without_scripts_the_figure_and_the_table_are_there(open_page, explorer):
    page = open_page(explorer, scripts=False)
    image = page.get_by_role("img", name=explorer.alt)
    assert image.is_visible()
    assert image.evaluate("node => node.naturalWidth") > 300
    assert page.get_by_text(explorer.caption).is_visible()
    page.locator("summary").click()
    assert page.get_by_role("table").is_visible()
    assert page.locator("select, input, button").count() == 0


def test_with_scripts_the_image_makes_room_and_the_caption_stays(open_page, explorer):
    page = open_page(explorer)
    assert page.locator("img").is_hidden()
    assert page.get_by_text(explorer.caption).is_visible()
    assert page.get_by_role("status").is_visible()


def test_the_caption_follows_the_state(open_page, explorer):
    page = open_page(explorer)
    caption = page.locator("figcaption")
    assert caption.inner_text() == explorer.caption
    change(page.locator("[data-explorer]"))
    assert caption.inner_text() == f"At first: {explorer.caption}"
    reset = page.get_by_role("button", name="Reset")
    if reset.count():
        reset.click()
        assert caption.inner_text() == explorer.caption


def test_whatever_fails_the_figure_stays(open_page, explorer):
    text = explorer._repr_mimebundle_()["text/html"]
    page = open_page(body=re.sub(r'data-state="[^"]*"', 'data-state="{"', text))
    assert page.locator("img").is_visible()
    assert page.locator(".cx").count() == 0
    assert len(page.problems) == 1  # said in the console
    page.problems.clear()


def test_every_focusable_thing_keeps_its_keys(open_page, explorer):
    page = open_page(explorer)
    focusable = page.locator(".cx :is(select, input, button, [tabindex]), details [tabindex]")
    marks = focusable.evaluate_all("nodes => nodes.map(n => n.getAttribute('data-lm-suppress-shortcuts'))")
    assert marks
    assert set(marks) == {"true"}


def test_numbers_are_written_as_python_writes_them(open_page):
    page = open_page()
    code = Path(explorers.__file__).with_name("explorer.js").read_text(encoding="utf-8")
    draw = random.Random(0)
    values = [draw.gauss(0, 10 ** draw.randint(-4, 3)) for _ in range(2000)]
    values += [n / 2**k for n in range(-41, 42) for k in range(8)] + [0.0, -0.0, 1e-9, -1e-9, 0.0005, 2.5, 1.005]
    for digits in (0, 1, 2, 3):
        shown = page.evaluate(f"([xs, d]) => {{ {code}; return xs.map((x) => fixed(x, d)); }}", [values, digits])
        assert shown == [number(value, digits) for value in values]
