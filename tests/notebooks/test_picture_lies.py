"""No picture lies: each of many false ones is found, painted or drawn anew, and no honest one is refused."""

import functools
import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from coursework.pictures import attention_map, style
from coursework.pictures.display import render

Change = dict[str, Any]
RNG = np.random.default_rng(0)
WEIGHTS, POINTS, NOISE = RNG.dirichlet(np.ones(6), 5), RNG.normal(size=(2, 40)), RNG.normal(size=(3, 60))


@pytest.fixture(autouse=True)
def course_style() -> Iterator[None]:
    with matplotlib.rc_context():
        style.use_style()
        yield


# Figures as the course draws them; `what` changes one thing, `wobble` all that another processor would ---------------


def bars(what: Change, wobble: float) -> Figure:
    heights = np.array([0.2, 0.35, 0.93, 0.5, 0.15, 0.7]) + wobble
    heights[what.get("bar", 0)] += what.get("by", 0.0)
    fig, ax = plt.subplots()
    drawn = ax.bar(what.get("names", ["the", "cat", "sat", "on", "a", "mat"]), heights)
    ax.bar_label(drawn, what.get("labels", ["0.20", "0.35", "0.93", "0.50", "0.15", "0.70"]), fontsize=8.5)
    ax.set(title=what.get("title", "weights of one query"), ylabel="weight", ylim=(0, what.get("top", 1.1)))
    return fig


def curves(what: Change, wobble: float) -> Figure:
    fig, ax = plt.subplots()
    steps = np.arange(60)
    names = what.get("names", ["with warm-up", "without"])
    for number, name in enumerate(names):
        loss = 0.5 + (1.5 + number) * np.exp(-steps / (10 + 8 * number)) + 0.03 * NOISE[number] + wobble
        if number == what.get("line"):
            loss = loss * what.get("factor", 1.0)
            loss[what.get("step", 0)] += what.get("by", 0.0)
        ax.plot(steps, loss, label=name, linestyle=what.get("style", "-") if number else "-")
    ax.text(30, 1.6, what.get("note", "loss 0.52 at the end"), fontsize=8.5)
    ax.set(xlabel="step", ylabel=what.get("ylabel", "loss"), ylim=(0.3, 3.2))
    ax.legend()
    return fig


def scatter(what: Change, wobble: float) -> Figure:
    x, y = POINTS + wobble
    y = y.copy()
    y[what.get("point", 0)] += what.get("by", 0.0)
    kept = slice(None, -1 if what.get("without") else None)
    fig, ax = plt.subplots()
    ax.scatter(x[kept], y[kept], s=14, color=what.get("colour", "#0072B2"))
    ax.annotate(what.get("note", "r = 0.58"), (0.5, 0.5), (1.2, 1.5), arrowprops={"arrowstyle": "->"}, fontsize=9)
    ax.set(xlabel=what.get("xlabel", "before"), ylabel="after", xlim=(-3, 3), ylim=(-3, 3))
    return fig


def heat(what: Change, wobble: float) -> Figure:
    weights = WEIGHTS.copy()
    row, one, other = what.get("swap", (0, 0, 0))
    weights[row, [one, other]] = weights[row, [other, one]]
    weights = np.clip(weights + wobble / 10, 0, 1)
    keys = what.get("keys", ["the", "cat", "sat", "on", "a", "mat"])
    return attention_map(weights, queries=["a", "b", "c", "d", "e"], keys=keys, title="one head", bar=True).figure


def image(what: Change, wobble: float) -> Figure:
    grid = np.add.outer(np.linspace(0, 0.5, 30), np.linspace(0, 0.5, 40)) + wobble / 10
    grid[what.get("row", 0), what.get("column", 0)] += what.get("by", 0.0)
    fig, ax = plt.subplots()
    ax.imshow(grid, vmin=0, vmax=1)
    ax.set(title=what.get("title", "who attends to whom"), xlabel="key", ylabel="query")
    return fig


class Lie(NamedTuple):
    draw: Callable[[Change, float], Figure]
    what: Change


lies = {
    "a title": Lie(bars, {"title": "weights of two query"}),
    "a bar higher by a hundredth": Lie(bars, {"bar": 3, "by": 0.01}),
    "a bar lower": Lie(bars, {"bar": 2, "by": -0.35}),
    "another digit over a bar": Lie(bars, {"labels": ["0.20", "0.35", "0.93", "0.50", "0.16", "0.70"]}),
    "0.93 becomes 0.58": Lie(bars, {"labels": ["0.20", "0.35", "0.58", "0.50", "0.15", "0.70"]}),
    "0.93 becomes 0.98": Lie(bars, {"labels": ["0.20", "0.35", "0.98", "0.50", "0.15", "0.70"]}),
    "two labels exchanged": Lie(bars, {"names": ["the", "sat", "cat", "on", "a", "mat"]}),
    "two bars' numbers exchanged": Lie(bars, {"labels": ["0.35", "0.20", "0.93", "0.50", "0.15", "0.70"]}),
    "another scale": Lie(bars, {"top": 1.2}),
    "a curve lower by a fiftieth": Lie(curves, {"line": 0, "factor": 0.98}),
    "a peak less": Lie(curves, {"line": 1, "step": 30, "by": -0.05}),
    "a dip more": Lie(curves, {"line": 0, "step": 50, "by": -0.08}),
    "a legend exchanged": Lie(curves, {"names": ["without", "with warm-up"]}),
    "loss 0 drawn": Lie(curves, {"note": "loss 0.00 at the end"}),
    "a digit of a note": Lie(curves, {"note": "loss 0.53 at the end"}),
    "an end that is none": Lie(curves, {"note": "loss 0.52 at the top"}),
    "another axis": Lie(curves, {"ylabel": "loss, test"}),
    "a dashed line": Lie(curves, {"style": "--"}),
    "a line of another name": Lie(curves, {"names": ["with warm-up", "with none"]}),
    "a point moved": Lie(scatter, {"point": 4, "by": 0.06}),
    "a point far off": Lie(scatter, {"point": 7, "by": 1.0}),
    "a point missing": Lie(scatter, {"without": True}),
    "points of another colour": Lie(scatter, {"colour": "#D55E00"}),
    "a correlation of another digit": Lie(scatter, {"note": "r = 0.59"}),
    "a correlation of another sign": Lie(scatter, {"note": "r = −0.58"}),
    "axis names changed": Lie(scatter, {"xlabel": "between"}),
    "two weights exchanged": Lie(heat, {"swap": (2, 1, 3)}),
    "two weights exchanged, elsewhere": Lie(heat, {"swap": (4, 0, 5)}),
    "two keys exchanged": Lie(heat, {"keys": ["the", "sat", "cat", "on", "a", "mat"]}),
    "a key renamed": Lie(heat, {"keys": ["the", "cat", "sat", "on", "a", "rat"]}),
    "a cell of an image": Lie(image, {"row": 12, "column": 30, "by": 0.2}),
    "a row of an image": Lie(image, {"row": 20, "column": slice(None), "by": 0.15}),
    "another title of an image": Lie(image, {"title": "whom attends to who"}),
}


@functools.cache
def png(draw: Callable[[Change, float], Figure], lie: str = "", wobble: float = 0.0) -> bytes:
    fig = draw(lies[lie].what if lie else {}, wobble)
    try:
        return render(fig, alt="x" * 40, caption="It lies.").data
    finally:
        plt.close(fig)


def forged(pixels: bytes, content: bytes, rules: Any, digest: bool = True) -> bytes:
    """Return a picture of the one's pixels that says what the other says, its digest put right or left."""
    picture, says, out, chunks = (
        Image.open(io.BytesIO(pixels)),
        Image.open(io.BytesIO(content)),
        io.BytesIO(),
        PngInfo(),
    )
    chunks.add_text(rules.CONTENT, says.info[rules.CONTENT], zip=True)
    chunks.add_text(rules.PIXELS, (picture if digest else says).info[rules.PIXELS])
    picture.save(out, format="png", pnginfo=chunks)
    return out.getvalue()


DRAWN = [bars, curves, scatter, heat, image]
TOLERANT = {"picture": 12.0, "atol": 0.02}  # as a cell whose picture training draws


@pytest.mark.parametrize("tolerance", [{}, TOLERANT], ids=["strict", "tolerant"])
@pytest.mark.parametrize("name", lies)
def test_pixels_that_say_another_thing_are_found(name, tolerance, rules):
    """The forger keeps the text in the picture as it was, and puts its digest right; the picture is drawn again."""
    lie = lies[name]
    honest = png(lie.draw)
    fake = forged(png(lie.draw, name), honest, rules)
    assert not rules.painted(fake)
    assert rules.compare_pictures(fake, honest, rules.Allowance(**tolerance), fine=True)[1]


@pytest.mark.parametrize("name", lies)
def test_a_picture_forged_as_a_whole_is_found(name, rules):
    lie = lies[name]
    assert rules.compare_pictures(png(lie.draw, name), png(lie.draw), rules.Allowance(), fine=True)[1]


def test_a_tint_is_allowed_only_where_training_draws(rules):
    """Four of a hundred in one cell of a heat map."""
    false = functools.partial(image, {"row": 12, "column": slice(10, 20), "by": 0.04})
    stored, now = (render(fig, alt="x" * 40, caption="It lies.").data for fig in (false(0.0), image({}, 0.0)))
    assert "another colour" in rules.compare_pictures(stored, now, rules.Allowance(), fine=True)[1][0]
    assert rules.compare_pictures(stored, now, rules.Allowance(**TOLERANT), fine=True)[1] == []


@pytest.mark.parametrize("name", lies)
def test_pixels_alone_are_found_without_drawing(name, rules):
    lie = lies[name]
    assert rules.painted(forged(png(lie.draw, name), png(lie.draw), rules, digest=False))


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("wobble", [0.0, 1e-7, 1e-4, 5e-4])
def test_an_honest_picture_is_not_refused(draw, wobble, rules):
    used, problems = rules.compare_pictures(png(draw), png(draw, wobble=wobble), rules.Allowance(), fine=True)
    assert problems == []
    assert used <= 1


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("wobble", [0.002])
def test_what_the_tags_allow_is_not_refused_and_nothing_else(draw, wobble, rules):
    """Another processor's training: all that is plotted lies a little elsewhere."""
    before, now = png(draw), png(draw, wobble=wobble)
    assert rules.compare_pictures(before, now, rules.Allowance(**TOLERANT), fine=True)[1] == []


@pytest.mark.parametrize("name", [name for name, lie in lies.items() if lie.draw is not heat])
def test_lies_are_found_where_the_plotted_lies_elsewhere(name, rules):
    lie = lies[name]
    fake = forged(png(lie.draw, name), png(lie.draw), rules)
    now = png(lie.draw, wobble=0.004)
    assert rules.compare_pictures(fake, now, rules.Allowance(**TOLERANT), fine=True)[1]


def test_a_picture_that_says_nothing_is_refused(rules):
    picture, out = Image.open(io.BytesIO(png(bars))), io.BytesIO()
    picture.save(out, format="png")
    assert "does not keep" in rules.compare_pictures(out.getvalue(), png(bars), rules.Allowance(), fine=True)[1][0]
