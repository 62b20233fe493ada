"""Drawings: text for those who cannot see them, type that a small screen can show, nothing outside the card."""

import base64
import re
import xml.etree.ElementTree as ET

import pytest
import torch

from coursework.pictures import drawings
from coursework.pictures.drawing import LEAST_TYPE, Drawing

WORDS = ["the", "queen", "near", "the", "boys", "paints", "herself"]
FEATURES = ["female", "male", "action", "after near"]
X = [(1, 0, 0, 0), (0, 1, 0, 1), (0, 0, 1, 0)]
W_KEY = [(1, 0), (1, 0), (0, 1), (-0.7, 0)]
EVERY = {
    "whole": drawings.whole_transformer,
    "here": lambda: drawings.whole_transformer(here=3),
    "arcs": lambda: drawings.sentence_arcs(WORDS, 6, [0.02, 0.7, 0.03, 0.02, 0.05, 0.18, 0.0], caption="A caption."),
    "recurrent": lambda: drawings.recurrent_and_attention(WORDS[:-1]),
    "one on": drawings.exactly_one_on,
    "hidden units": drawings.two_hidden_units,
    "widths": drawings.feed_forward_widths,
    "layer norm": drawings.layer_norm_bars,
    "post-norm": drawings.norm_place,
    "pre-norm": lambda: drawings.norm_place("pre"),
    "collapsing": drawings.collapsing_tokens,
    "encoder": drawings.encoder_reads,
    "sentence table": drawings.sentences_in_a_table,
    "same words": drawings.same_words,
    "hidden words": drawings.hidden_words,
    "notes": lambda: drawings.notes_and_question("the old 4 key is in 7 of the ?"[-24:]),
    "clocks": lambda: drawings.clock_arcs([10000 ** (-i / 8) for i in range(8)], 64, 256),
    "squeezed": lambda: drawings.squeezed_places(64, 4),
    "streaming": drawings.streaming_cache,
    "reach": lambda: drawings.window_reach(3, 4),
    "local": drawings.local_and_global,
    "average": drawings.one_average_or_two,
    "two places": drawings.two_places_task,
    "split": drawings.split_into_heads,
    "straight": lambda: drawings.split_into_heads(straight=True),
    "layer": drawings.multi_head_layer,
    "add up": drawings.heads_add_up,
    "mask axes": drawings.mask_axes,
    "induction": drawings.induction_steps,
    "shared": drawings.shared_heads,
    "loop": lambda: drawings.writing_loop(WORDS[:3], "the"),
    "ways": drawings.three_ways,
    "state": lambda: drawings.one_state_or_all(["C=4", "A=9", "F=1", "B=7"], "A ?", "9"),
    "tiles": drawings.score_tiles,
    "leak": drawings.leak_in_noise,
    "nan": drawings.spreading_nan,
    "order": lambda: drawings.order_lost(["dog", "bites", "man"], [(2, 0), (1, 1), (0, 2)]),
    "places": lambda: drawings.added_places(["dog", "bites", "dog"], [(2, 0), (1, 1), (2, 0)], [(0, 1)] * 3),
    "clock": lambda: drawings.clock_hand(60),
    "rows of clocks": drawings.clock_rows,
    "step": drawings.step_of_a_clock,
    "table": drawings.learned_table,
    "products": drawings.four_products,
    "rotary": drawings.rotary_hands,
    "layouts": drawings.rotary_layouts,
    "slopes": drawings.alibi_slopes,
    "buckets": lambda: drawings.relative_buckets((0, 1, 2, 3, 4, 6, 8, 12), 23),
    "far keys": drawings.hidden_far_keys,
}
EVERY |= {  # of chapter 05
    "append": lambda: drawings.choose_and_append(["the", "cat"], ["sat", "ran", "is"], [0.5, 0.3, 0.2], 1),
    "shift": lambda: drawings.shift_and_mask(["the", "cat", "sat", "."]),
    "decoder layer": drawings.decoder_layer_stream,
    "encoder-decoder": drawings.encoder_decoder_tokens,
    "gpt": drawings.gpt_stack,
    "cache": drawings.cache_steps,
    "cut": lambda: drawings.cut_and_share(["mat", "floor", "roof", "moon", "soup"], [3.0, 2.3, 1.8, 0.9, 0.5]),
    "beams": drawings.beam_tree,
    "guesses": drawings.guesses_and_checks,
}
EVERY |= {  # of the lab on what follows pre-training
    "stages of training": drawings.after_training_path,
    "answer counts": lambda: drawings.answer_counts(["sieben", "und", "zwanzig", "="], ["2", "7", "end"]),
    "two scales": lambda: drawings.preference_scales((-0.5, -2.5)),
    "group of answers": lambda: drawings.group_of_answers(
        "2 + 5 =", ["7", "8", "9", "5"], [1, 0, 0, 0], [1.5, -0.5, -0.5, -0.5]
    ),
}
EVERY |= {  # of chapter 01
    "one vector": drawings.one_vector,
    "dot products": lambda: drawings.dot_products((2, 1), [(1, 2), (-1, 2), (-2, 0)]),
    "dictionary": lambda: drawings.soft_dictionary("pony", (0.1, 0.9), WORDS[:2], [(1, 0), (0, 1)], [25, 160]),
    "linear map": lambda: drawings.linear_map("king", FEATURES, X[1], W_KEY, "key"),
    "linear maps": lambda: drawings.linear_maps(["queen", "king", "paints"], FEATURES, X, [W_KEY] * 3),
    "path": lambda: drawings.attention_path(["queen", "king", "paints"], 2, X, [W_KEY] * 3),
    "batch": drawings.batch_of_sentences,
    "cross": lambda: drawings.self_and_cross(["she", "paints"], ["Anna", "malt", "ein", "Bild"]),
    "masks": lambda: drawings.mask_grids(
        [("square", WORDS, WORDS, torch.ones(7, 7).tril()), ("last row", WORDS[6:], WORDS, torch.ones(1, 7))],
        caption="A caption.", cell=24,
    ),
    "shuffled": lambda: drawings.shuffled_words(["dog", "bites", "man"], [2, 1, 0]),
}  # fmt: skip
EVERY |= {  # of the labs on chapters 04 and 05
    "only the average": drawings.only_the_average,
    "share of a token": drawings.share_of_a_token,
    "diluted average": drawings.diluted_average,
    "averaged together": drawings.averaged_together,
    "one layer": drawings.one_layer_many_times,
    "answer in sight": drawings.answer_in_sight,
    "beams and caches": drawings.beams_and_caches,
    "last column": drawings.last_column,
}
EVERY |= {  # the optimizer, of chapter 06
    "valley": drawings.narrow_valley,
    "one weight": drawings.adam_of_one_weight,
    "decays": drawings.two_decays,
    "singular values": drawings.singular_values_of_an_update,
    "schedules": drawings.learning_rate_shapes,
    "bits": drawings.bits_of_formats,
    "lost step": drawings.lost_step,
    "float16": drawings.gradients_in_float16,
}
EVERY |= {  # of the labs on chapters 05 and 06
    "orders": drawings.sampler_orders,
    "cached": drawings.cached_positions,
    "crop": drawings.sliding_crop,
    "guess": drawings.guess_and_check,
    "update": drawings.one_update,
    "update with exhibits": lambda: drawings.one_update({"loss": "1", "clip": "6"}),
    "padded": lambda: drawings.padded_batches([2, 9, 4, 8, 3, 7], 2),
    "dropout": drawings.dropout_places,
    "checkpoint": drawings.parts_of_a_checkpoint,
}
EVERY |= {  # of chapter 06
    "merges": lambda: drawings.merge_tree("lowest", [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w")]),
    "shifted": lambda: drawings.shifted_targets(["six", "hundred", "and", "two"]),
    "padded batch": lambda: drawings.padded_batch([["six", "hundred", "two"], ["nine"], ["forty", "two"]]),
    "loss": lambda: drawings.loss_of_tokens(["six", "hundred", "and", "two"], [0.5, 0.9, 0.8, 0.05]),
    "parts": lambda: drawings.micro_batches([10, 22, 31, 40]),
    "clipped": drawings.clipped_gradients,
    "training loop": drawings.training_loop,
    "checkpoint contents": drawings.checkpoint_contents,
    "crossing": lambda: drawings.crossing_words(
        ["sechs", "hundert", "sieben", "und", "achtzig"], ["six", "hundred", "and", "eighty", "seven"],
        [(0, 0), (1, 1), (2, 4), (4, 3)],
    ),
}  # fmt: skip
EVERY |= {  # of the lab on looking inside a model
    "hooks": drawings.hooks_on_the_stream,
    "logits by hand": drawings.logits_by_hand,
    "lens": drawings.lens_by_hand,
    "patch": drawings.patch_between_runs,
    "probe": drawings.probe_and_controls,
}
TAG = "{http://www.w3.org/2000/svg}"


def read(drawing):
    """The SVG as a page receives it, out of the source of its image."""
    html = drawing._repr_mimebundle_()["text/html"]
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    return ET.fromstring(base64.b64decode(data))


@pytest.mark.parametrize("name", EVERY)
def test_a_drawing_is_an_image_with_its_text(name):
    bundle = EVERY[name]()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert len(bundle["text/plain"]) >= 40
    assert "<figcaption" in bundle["text/html"]
    assert "<svg" not in bundle["text/html"]  # inline, a view that does not trust the notebook would drop it
    assert EVERY[name]()._repr_mimebundle_() == bundle


@pytest.mark.parametrize("name", EVERY)
def test_everything_lies_on_the_card_and_can_be_read(name):
    drawing = EVERY[name]()
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
    drawing = EVERY["masks"]()
    upright = [text for text in read(drawing).iter(f"{TAG}text") if text.get("transform")]
    assert {text.text for text in upright} == set(WORDS)
    for text in upright:
        assert float(text.get("y")) - 0.6 * float(text.get("font-size")) * len(text.text) >= 0
