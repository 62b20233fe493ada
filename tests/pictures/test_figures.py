"""The course's figures show the numbers that torch gives."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from course_lib.attention import scaled_dot_product_attention
from course_lib.masks import causal_mask
from coursework.pictures import attention_map, attention_steps, palette, reading_rows, shape_badge
from coursework.pictures.arrays import labels, mask_matrix, matrix, number
from coursework.pictures.display import render
from coursework.pictures.figures import arrow, softmax

ALT = "A figure of the course, described here in words."


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


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


@pytest.mark.parametrize("masked", [False, True])
def test_numbers_are_readable_on_their_cells(masked):
    rows = torch.linspace(0, 1, 100).reshape(10, 10)
    ax = attention_map(rows, mask=causal_mask(10) if masked else None)
    assert len(ax.texts) == (55 if masked else 100)
    for text in ax.texts:
        column, row = text.get_position()
        background = plt.get_cmap(palette.sequential)(float(rows[int(row), int(column)]))
        assert contrast(text.get_color(), background) >= 4.5


def test_large_maps_have_no_numbers_and_thinned_labels():
    ax = attention_map(torch.full((50, 50), 0.02))
    assert not ax.texts
    assert 5 <= len(ax.get_xticks()) <= 25
    render(ax.figure, alt=ALT, caption="c")


def test_map_draws_into_given_axes_and_leaves_matplotlib_alone():
    before = plt.rcParams["axes.titlelocation"]
    _, (left, right) = plt.subplots(1, 2)
    assert attention_map(weights(), ax=right, title="Head 3") is right
    assert not left.collections
    assert right.get_title(loc="left") + right.get_title() == "Head 3"
    assert plt.rcParams["axes.titlelocation"] == before


@pytest.mark.parametrize("values", [[[0.25, 0.75]], np.array([[0.25, 0.75]]), torch.tensor([[0.25, 0.75]]).bfloat16()])
def test_map_takes_lists_arrays_and_any_dtype(values):
    assert texts(attention_map(values)) == ["0.25", "0.75"]


def test_map_takes_weights_that_require_gradients():
    attention_map(weights().requires_grad_())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"weights": torch.rand(2, 3, 4, 4)},
            ValueError,
            r"weights: expected two dimensions, got shape \(2, 3, 4, 4\)",
        ),
        ({"weights": torch.tensor([[1.5]])}, ValueError, "weights: expected numbers from 0 to 1, got 1.5 to 1.5"),
        ({"weights": torch.tensor([[math.nan]])}, ValueError, "weights: expected finite numbers"),
        ({"weights": torch.zeros(0, 3)}, ValueError, "weights: expected at least one row"),
        ({"weights": [["a"]]}, TypeError, "weights: expected numbers"),
        ({"weights": [[0.0], [0.0, 1.0]]}, ValueError, "weights: expected rows of equal length"),
        ({"queries": list("abc")}, ValueError, "queries: expected 5 labels, one per row of the tensor, got 3"),
        ({"keys": "abcdefg"}, TypeError, "keys: expected a list of 7 labels, got one text"),
        ({"mask": torch.ones(5, 7)}, TypeError, "mask: expected a boolean mask"),
        ({"mask": causal_mask(7)}, ValueError, r"mask: expected shape \(T, S\)=\(5, 7\), got \(7, 7\)"),
    ],
)
def test_map_names_the_wrong_argument(arguments, error, message):
    with pytest.raises(error, match=message):
        attention_map(**{"weights": weights(), **arguments})


@pytest.mark.parametrize("masked", [False, True])
def test_steps_show_every_number_of_torch(masked):
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(*shape, generator=generator) for shape in ((3, 2), (5, 2), (5, 3)))
    mask = causal_mask(3, 5) if masked else None
    output, shown = scaled_dot_product_attention(query, key, value, mask=mask, return_weights=True)
    fig = attention_steps(query, key, value, keys=list("vwxyz"), mask=mask)
    scores = query @ key.T
    expected = [query, key, value, scores, scores / math.sqrt(2), shown, output]
    for ax, tensor in zip(fig.axes, expected, strict=True):
        numbers = tensor if not (masked and tensor is shown) else tensor[mask]
        assert texts(ax) == [number(x, 2) for x in numbers.flatten().tolist()], ax.get_title(loc="left")
    render(fig, alt=ALT, caption="c")


def test_steps_refuse_what_cannot_be_shown_or_multiplied():
    small = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"query: expected at most 6 rows and 6 columns, got shape \(7, 2\)"):
        attention_steps(torch.zeros(7, 2), small, small)
    with pytest.raises(ValueError, match="key: expected width E=2 like query, got 3"):
        attention_steps(small, torch.zeros(3, 3), small)
    with pytest.raises(ValueError, match="value: expected length S=3 like key, got 4"):
        attention_steps(small, small, torch.zeros(4, 2))


def test_softmax_is_that_of_torch_and_zero_where_nothing_is_visible():
    scores = torch.randn(4, 6, dtype=torch.float64) * 50
    mask = causal_mask(4, 6).clone()
    np.testing.assert_allclose(softmax(scores.numpy(), None), scores.softmax(-1), atol=1e-15)
    expected = scores.masked_fill(~mask, -math.inf).softmax(-1)
    np.testing.assert_allclose(softmax(scores.numpy(), mask.numpy()), expected, atol=1e-15)
    mask[1] = False
    assert not softmax(scores.numpy(), mask.numpy())[1].any()


def boxes(ax):
    renderer = ax.figure.canvas.get_renderer()
    return [text.get_window_extent(renderer) for text in ax.texts]


def test_badges_and_arrows_are_drawn():
    fig, ax = plt.subplots()
    shape_badge(ax, "B H T E", (0.5, 0.5))
    arrow(ax, (0, 0), (1, 1), color=palette.key)
    assert texts(ax) == ["(B, H, T, E)"]
    assert len(ax.patches) == 1
    render(fig, alt=ALT, caption="c")


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


@pytest.mark.parametrize("labels_", [list("abcdef"), ["neighbourhood"] * 6])
def test_no_number_of_the_steps_leaves_its_cell(labels_):
    values = torch.full((6, 6), -1.25)
    fig = attention_steps(values, values, values, queries=labels_)
    assert fig.get_figwidth() <= 7.5 + 1e-9
    fig.canvas.draw()
    for ax in fig.axes:
        cell = ax.get_window_extent().width / 6
        assert all(box.width < cell for box in boxes(ax))


def test_a_colour_bar_shows_the_scale_from_0_to_1():
    ax = attention_map(weights(), bar=True)
    (bar,) = [other for other in ax.figure.axes if other is not ax]
    assert bar.get_ylabel() == "weight"
    assert bar.get_ylim() == (0, 1)


def test_reading_rows_write_each_word_on_the_colour_of_its_weight():
    ax = reading_rows([["a", "queen", "paints"], ["kings", "paint"]], [[0.0, 1.0, 0.0], [0.5, 0.5]], title="read")
    assert texts(ax) == ["a", "queen", "paints", "kings", "paint"]
    colours = plt.get_cmap(palette.sequential)
    assert [patch.get_facecolor() for patch in ax.patches] == [colours(share) for share in (0.0, 1.0, 0.0, 0.5, 0.5)]
    assert [text.get_color() for text in ax.texts[:2]] == ["black", "white"]
    with pytest.raises(ValueError, match="argument 2"):
        reading_rows([["a", "b"]], [[1.0]])
