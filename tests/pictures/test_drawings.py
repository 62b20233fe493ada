"""Drawings: text for those who cannot see them, type that a small screen can show, nothing outside the card."""

import base64
import re
import xml.etree.ElementTree as ET

import pytest
import torch
from notebook_files import SOURCES

from coursework.pictures import drawings
from coursework.pictures.drawing import LEAST_TYPE, Drawing


def call(*args, **options):
    return args, options


WORDS = ["the", "queen", "near", "the", "boys", "paints", "herself"]
FEATURES = ["female", "male", "action", "after near"]
X = [(1, 0, 0, 0), (0, 1, 0, 1), (0, 0, 1, 0)]
W_KEY = [(1, 0), (1, 0), (0, 1), (-0.7, 0)]
SAMPLES = {  # of the drawings that need arguments or can be called in more than one way
    "attention_by_hand": [call("she", (3, 0), ("queen", "king"), ((1, 0.2), (0.3, 1)), ((1, 0), (0, 1)))],
    "mask_and_targets": [call(WORDS[:5])],
    "whole_transformer": [call(), call(here=3)],
    "sentence_arcs": [call(WORDS, 6, [0.02, 0.7, 0.03, 0.02, 0.05, 0.18, 0.0], caption="A caption.")],
    "recurrent_and_attention": [call(WORDS[:-1])],
    "norm_place": [call(), call("pre")],
    "notes_and_question": [call("the old 4 key is in 7 of the ?"[-24:])],
    "clock_arcs": [call([10000 ** (-i / 8) for i in range(8)], 64, 256)],
    "squeezed_places": [call(64, 4)],
    "window_reach": [call(3, 4)],
    "split_into_heads": [call(), call(straight=True)],
    "writing_loop": [call(WORDS[:3], "the")],
    "one_state_or_all": [call(["C=4", "A=9", "F=1", "B=7"], "A ?", "9")],
    "order_lost": [call(["dog", "bites", "man"], [(2, 0), (1, 1), (0, 2)])],
    "added_places": [call(["dog", "bites", "dog"], [(2, 0), (1, 1), (2, 0)], [(0, 1)] * 3)],
    "clock_hand": [call(60)],
    "relative_buckets": [call((0, 1, 2, 3, 4, 6, 8, 12), 23)],
    "choose_and_append": [call(["the", "cat"], ["sat", "ran", "is"], [0.5, 0.3, 0.2], 1)],
    "shift_and_mask": [call(["the", "cat", "sat", "."])],
    "cut_and_share": [call(["mat", "floor", "roof", "moon", "soup"], [3.0, 2.3, 1.8, 0.9, 0.5])],
    "answer_counts": [call(["sieben", "und", "zwanzig", "="], ["2", "7", "end"])],
    "preference_scales": [call((-0.5, -2.5))],
    "group_of_answers": [call("2 + 5 =", ["7", "8", "9", "5"], [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5])],
    "dot_products": [call((2, 1), [(1, 2), (-1, 2), (-2, 0)])],
    "soft_dictionary": [call("pony", (0.1, 0.9), WORDS[:2], [(1, 0), (0, 1)], [25, 160])],
    "linear_map": [call("king", FEATURES, X[1], W_KEY, "key")],
    "linear_maps": [call(["queen", "king", "paints"], FEATURES, X, [W_KEY] * 3)],
    "attention_path": [call(["queen", "king", "paints"], 2, X, [W_KEY] * 3)],
    "self_and_cross": [call(["she", "paints"], ["Anna", "malt", "ein", "Bild"])],
    "mask_grids": [
        call(
            [("square", WORDS, WORDS, torch.ones(7, 7).tril()), ("last row", WORDS[6:], WORDS, torch.ones(1, 7))],
            caption="A caption.",
            cell=24,
        )
    ],
    "shuffled_words": [call(["dog", "bites", "man"], [2, 1, 0])],
    "one_update": [call(), call({"loss": "1", "clip": "6"})],
    "padded_batches": [call([2, 9, 4, 8, 3, 7], 2)],
    "merge_tree": [call("lowest", [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w")])],
    "shifted_targets": [call(["six", "hundred", "and", "two"])],
    "padded_batch": [call([["six", "hundred", "two"], ["nine"], ["forty", "two"]])],
    "loss_of_tokens": [call(["sixty", "-", "two", "<eos>"], [0.5, 0.9, 0.05, 0.8])],
    "micro_batches": [call([10, 22, 31, 40])],
    "crossing_words": [
        call(
            ["sechs", "hundert", "sieben", "und", "achtzig"],
            ["six", "hundred", "and", "eighty", "seven"],
            [(0, 0), (1, 1), (2, 4), (4, 3)],
        )
    ],
}
CALLS = [
    pytest.param(name, *sample, id=f"{name}-{number}" if number else name)
    for name in dir(drawings)
    for number, sample in enumerate(SAMPLES.get(name, [call()]))
]
TAG = "{http://www.w3.org/2000/svg}"


def read(drawing):
    """The SVG as a page receives it, out of the source of its image."""
    html = drawing._repr_mimebundle_()["text/html"]
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return ET.fromstring(base64.b64decode(data))


def test_every_drawing_is_in_a_notebook():
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert set(re.findall(r"\bdrawings\.(\w+)\(", code)) == set(dir(drawings)) >= set(SAMPLES)


def test_two_drawings_of_one_name_are_refused(monkeypatch):
    def beam_tree() -> Drawing: ...

    monkeypatch.setattr(beam_tree, "__module__", drawings.encoder.__name__)
    monkeypatch.setattr(drawings.encoder, "beam_tree", beam_tree, raising=False)
    with pytest.raises(ValueError, match=r"beam_tree: expected in one module .*decoder and .*encoder"):
        drawings.every.__wrapped__()


@pytest.mark.parametrize(("name", "args", "options"), CALLS)
def test_a_drawing_is_an_image_with_its_text(name, args, options):
    draw = getattr(drawings, name)
    bundle = draw(*args, **options)._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert len(bundle["text/plain"]) >= 40
    assert "<figcaption" in bundle["text/html"]
    assert "<svg" not in bundle["text/html"]  # inline, a view that does not trust the notebook would drop it
    assert draw(*args, **options)._repr_mimebundle_() == bundle


@pytest.mark.parametrize(("name", "args", "options"), CALLS)
def test_everything_lies_on_the_card_and_can_be_read(name, args, options):
    drawing = getattr(drawings, name)(*args, **options)
    root = read(drawing)
    assert root.get("viewBox") == f"0 0 600 {drawing.height:g}"
    for text in root.iter(f"{TAG}text"):
        assert float(text.get("font-size")) >= LEAST_TYPE
        if text.get("transform"):
            continue  # it runs upwards; see below
        half = 0.3 * float(text.get("font-size")) * len(text.text)  # of a wide font
        x, anchor = float(text.get("x")), text.get("text-anchor")
        left = {"start": x, "middle": x - half, "end": x - 2 * half}[anchor]
        assert left >= 0, text.text
        assert left + 2 * half <= 600, text.text
        assert 0 < float(text.get("y")) < drawing.height, text.text
    for box in list(root.iter(f"{TAG}rect"))[1:]:
        x, y, width, height = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert x >= 0
        assert y >= 0
        assert x + width <= 600
        assert y + height <= drawing.height


def test_the_reader_is_shown_where_they_are():
    def lit(root):
        """The numbers written in white: those on a dark disc."""
        return {text.text for text in root.iter(f"{TAG}text") if text.get("fill") == "#FFFFFF"}

    assert lit(read(drawings.whole_transformer())) == set("12345678")
    assert lit(read(drawings.whole_transformer(here=3))) == {"3"}
    assert "chapter 03" in drawings.whole_transformer(here=3).alt


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="weights: expected 7 numbers, one for each word, got 2"):
        drawings.sentence_arcs(WORDS, 0, [0.5, 0.5], caption="A caption.")
    with pytest.raises(ValueError, match=r"mask: expected \(1, 7\) for the words, got \(2, 7\)"):
        drawings.mask_grids([("one row", WORDS[:1], WORDS, torch.ones(2, 7))], caption="A caption.")
    with pytest.raises(ValueError, match="reader: expected the last of three words, got 0 of 3"):
        drawings.attention_path(["queen", "king", "paints"], 0, X, [W_KEY] * 3)
    with pytest.raises(ValueError, match="alt: expected at least 40 characters"):
        Drawing(100, alt="too short", caption="A caption.")
    with pytest.raises(ValueError, match="size: expected at least 15"):
        Drawing(100, alt="x" * 40, caption="A caption.").text((10, 10), "small", size=9)
    with pytest.raises(ValueError, match="letters: expected the last one, C, to have come before"):
        drawings.induction_steps("ABC")


def test_the_numbers_of_a_drawing_are_those_of_attention():
    queries = [[0, 2], [0, 2], [3, 0], [0, 0]]
    values = [[1, 0], [0, 1], [0, 0], [0, 0]]
    drawing = drawings.attention_path(["queen", "king", "paints"], 2, X, [queries, W_KEY, values])
    q, k, v = (
        torch.tensor(X, dtype=torch.float) @ torch.tensor(W, dtype=torch.float) for W in (queries, W_KEY, values)
    )
    (taken,) = torch.nn.functional.scaled_dot_product_attention(q[2:], k, v)
    assert f"is ({taken[0]:.2f}, {taken[1]:.2f})." in drawing.alt
    said = {text.text for text in read(drawing).iter(f"{TAG}text")}
    assert {f"({taken[0]:.2f}, {taken[1]:.2f})", "2.12", "0.64", "0.17", "0.09"} <= said


def test_a_line_that_runs_upwards_stays_on_the_card():
    args, options = SAMPLES["mask_grids"][0]
    drawing = drawings.mask_grids(*args, **options)
    upright = [text for text in read(drawing).iter(f"{TAG}text") if text.get("transform")]
    assert {text.text for text in upright} == set(WORDS)
    for text in upright:
        assert float(text.get("y")) - 0.6 * float(text.get("font-size")) * len(text.text) >= 0
