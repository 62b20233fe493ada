"""The course's figures show the numbers that torch gives."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from course_lib.masks import causal_mask
from coursework.pictures import attention_map, palette, reading_rows
from coursework.pictures.arrays import labels, mask_matrix, matrix, number, power_of_ten
from coursework.pictures.figures import softmax

ALT = "A figure of the course, described here in words."


def weights(T=5, S=7):
    scores = torch.randn(T, S, generator=torch.Generator().manual_seed(0))
    return scores.masked_fill(~causal_mask(T, S), -math.inf).softmax(dim=-1)


def texts(ax):
    return [text.get_text() for text in ax.texts]


def contrast(a, b):
    def luminance(colour):
        channels = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in plt.matplotlib.colors.to_rgb(colour)
        ]
        return np.dot(channels, [0.2126, 0.7152, 0.0722])

    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


def test_map_shows_the_weights_with_fixed_limits():
    shown = weights()
    ax = attention_map(shown, queries=list("abcde"), keys=list("tuvwxyz"))
    mesh = ax.collections[0]
    assert mesh.get_clim() == (0.0, 1.0)
    np.testing.assert_allclose(mesh.get_array().reshape(5, 7), shown.double(), atol=1e-12)
    assert texts(ax) == [f"{value:.2f}" for value in shown.flatten().tolist()]
    assert [label.get_text() for label in ax.get_yticklabels()] == list("abcde")
    assert [label.get_text() for label in ax.get_xticklabels()] == list("tuvwxyz")
    assert ax.get_ylim() == (5, 0)  # the first query on top
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")


def test_masked_cells_are_hatched_and_hold_no_number():
    mask = causal_mask(5, 7)
    ax = attention_map(weights(), mask=mask)
    hatched = {(int(patch.get_y()), int(patch.get_x())) for patch in ax.patches if patch.get_hatch()}
    assert hatched == {tuple(cell) for cell in (~mask).nonzero().tolist()}
    assert len(ax.texts) == int(mask.sum())


def test_softmax_is_that_of_torch():
    scores = torch.randn(4, 6, dtype=torch.float64) * 50
    np.testing.assert_allclose(softmax(scores.numpy()), scores.softmax(-1), atol=1e-15)


def test_numbers_are_written_with_true_minus_and_without_negative_zero():
    assert [number(x, 2) for x in (1.005, -1.5, -0.001, 0.125, 0.375)] == ["1.00", "−1.50", "0.00", "0.12", "0.38"]


def test_arrays_keep_float32_exactly_and_masks_broadcast():
    values = torch.randn(3, 2)
    assert (matrix("x", values) == values.double().numpy()).all()
    assert mask_matrix("mask", torch.ones(1, 1, 1, 4, dtype=torch.bool), (2, 4)).shape == (2, 4)
    assert labels("tokens", None, 3) == ["0", "1", "2"]


def test_blanks_in_tokens_can_be_seen_and_dollars_are_dollars():
    assert labels("tokens", ["\n", " ", " the", "a\tb", "plain"], 5) == ["↵", "␣", "␣the", "a⇥b", "plain"]
    ax = attention_map(torch.eye(3), queries=["$a$", "$", "x" * 40])
    shown = [label.get_text() for label in ax.get_yticklabels()]
    assert shown == ["$a$", "$", "x" * 13 + "…"]
    assert not any(label.get_parse_math() for label in ax.get_yticklabels())


def test_frames_of_hidden_cells_are_rectangles_of_one_cell():
    ax = attention_map(weights(), mask=causal_mask(5, 7))
    assert all(isinstance(p, Rectangle) and p.get_width() == p.get_height() == 1 for p in ax.patches)


def test_a_colour_bar_shows_the_scale_from_0_to_1():
    ax = attention_map(weights(), bar=True)
    (bar,) = [other for other in ax.figure.axes if other is not ax]
    assert bar.get_ylabel() == "weight"
    assert bar.get_ylim() == (0, 1)


def test_powers_of_ten_are_raised():
    assert [power_of_ten(8e10), power_of_ten(1.28e12, 3)] == ["8.0·10¹⁰", "1.28·10¹²"]


def test_a_long_sentence_has_columns_as_wide_as_its_words():
    words = ["the", "animal", "did", "not", "cross", "the", "street", "because", "it", "was", "too", "tired"]
    ax = reading_rows([words], [[0.0] * len(words)])
    widths = [patch.get_width() for patch in ax.patches]
    assert [width - len(word) for width, word in zip(widths, words, strict=True)] == [2.0] * len(words)
    assert {patch.get_width() for patch in reading_rows([words[:3]], [[0.0] * 3]).patches} == {1.0}


def test_reading_rows_write_each_word_on_the_colour_of_its_weight():
    ax = reading_rows([["a", "queen", "paints"], ["kings", "paint"]], [[0.0, 1.0, 0.0], [0.5, 0.5]], title="read")
    assert texts(ax) == ["a", "queen", "paints", "kings", "paint"]
    colours = plt.get_cmap(palette.sequential)
    assert [patch.get_facecolor() for patch in ax.patches] == [colours(share) for share in (0.0, 1.0, 0.0, 0.5, 0.5)]
    assert [text.get_color() for text in ax.texts[:2]] == ["black", "white"]
    with pytest.raises(ValueError, match="argument 2"):
        reading_rows([["a", "b"]], [[1.0]])
