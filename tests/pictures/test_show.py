"""What `show` displays, and what it refuses."""

import base64
import io
import re
import subprocess
import sys
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from coursework.pictures import display, palette, show
from coursework.pictures.display import MAX_PNG, render

ALT = "A line that rises from zero to one over five steps."
CAPTION = "It rises."


def line(**options):
    fig, ax = plt.subplots(**options)
    ax.plot([0, 1], label="line")
    ax.set(xlabel="step", ylabel="value", title="Rising")
    return fig


@pytest.fixture
def shown(monkeypatch):
    """What `show` hands to the front end."""
    found = []
    monkeypatch.setattr(display, "display", found.append)
    return found


class Parts(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_output_is_html_with_alternative_text_and_the_same_text_plain(shown):
    fig = line()
    assert show(fig, alt="a < b: " + ALT, caption="Rises by 5 > 4 & more.") is None
    bundle = shown[0]._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == repr(shown[0]) == "a < b: " + ALT
    parts = Parts(bundle["text/html"])
    assert [tag for tag, _ in parts.tags] == ["figure", "img", "figcaption"]
    image = parts.tags[1][1]
    assert image["alt"] == "a < b: " + ALT
    assert parts.text == "Rises by 5 > 4 & more."
    assert image["width"] == str(round(96 * fig.get_figwidth()))
    assert not re.search(r"https?:|//", bundle["text/html"].split("base64,")[0])


def test_the_figure_is_closed(shown):
    fig = line()
    show(fig, alt=ALT, caption=CAPTION)
    assert not plt.fignum_exists(fig.number)


def test_a_refused_figure_is_closed_too():
    fig = line()
    with pytest.raises(ValueError, match="alt"):
        show(fig, alt="short", caption=CAPTION)
    assert not plt.fignum_exists(fig.number)


def test_same_figure_gives_same_bytes():
    assert render(line(), alt=ALT, caption=CAPTION).data == render(line(), alt=ALT, caption=CAPTION).data


def test_a_crowded_picture_stays_small():
    fig, ax = plt.subplots(figsize=(7, 5))
    points = np.random.default_rng(0).normal(size=(2, 3000))
    ax.scatter(*points, s=4, c=points[0], cmap="viridis")
    picture = render(fig, alt=ALT, caption=CAPTION)
    assert len(picture.data) <= MAX_PNG


def test_noise_that_cannot_be_small_is_refused():
    fig, ax = plt.subplots(figsize=(5, 5))
    ax.imshow(np.random.default_rng(0).random((400, 400)), cmap="viridis")
    with pytest.raises(ValueError, match=r"fig: expected a picture of at most 60 KB, got \d+ KB"):
        render(fig, alt=ALT, caption=CAPTION)


def test_background_is_opaque_white_and_palette_colours_are_exact():
    fig, ax = plt.subplots()
    for y, colour in enumerate(palette.series):
        ax.plot([0, 1], [y, y], color=colour, linewidth=6)
    image = Image.open(io.BytesIO(render(fig, alt=ALT, caption=CAPTION).data))
    assert "transparency" not in image.info
    pixels = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    assert {(255, 255, 255), *(tuple(bytes.fromhex(c[1:])) for c in palette.series)} <= pixels
    assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"alt": "x" * 39, "caption": CAPTION}, ValueError, "alt: expected at least 40 characters"),
        ({"alt": " " * 60, "caption": CAPTION}, ValueError, "alt: expected at least 40 characters"),
        ({"alt": ALT, "caption": "  "}, ValueError, "caption: expected a sentence"),
        ({"alt": ALT, "caption": None}, TypeError, "caption: expected text, got NoneType"),
        ({"alt": 3, "caption": CAPTION}, TypeError, "alt: expected text, got int"),
    ],
)
def test_useless_words_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        show(line(), **arguments)


def test_missing_caption_is_refused():
    with pytest.raises(TypeError, match="caption"):
        show(line(), alt=ALT)


def test_something_else_than_a_figure_is_refused():
    with pytest.raises(TypeError, match="fig: expected a matplotlib figure, got list"):
        show([1, 2], alt=ALT, caption=CAPTION)


@pytest.mark.parametrize(("width", "size", "fine"), [(6, 8, True), (6, 7, False), (10, 10, False), (10, 11, True)])
def test_type_is_at_least_8_points_as_shown(width, size, fine):
    fig = plt.figure(figsize=(width, 3), layout="none")
    fig.text(0.5, 0.5, "words", fontsize=size)
    if fine:
        render(fig, alt=ALT, caption=CAPTION)
    else:
        with pytest.raises(ValueError, match=r"fig: expected type of at least 8 pt.*'words'"):
            render(fig, alt=ALT, caption=CAPTION)


def test_a_hand_placed_figure_keeps_its_places_at_every_quality():
    fig = plt.figure(layout="none")
    ax = fig.add_axes((0.2, 0.3, 0.4, 0.5))
    ax.imshow(np.random.default_rng(0).random((300, 300)))
    render(fig, alt=ALT, caption=CAPTION, limit=MAX_PNG)
    assert fig.axes[0].get_position(original=True).bounds == pytest.approx((0.2, 0.3, 0.4, 0.5))


def test_outside_a_notebook_the_alternative_text_is_printed():
    code = (
        "import matplotlib.pyplot as plt\nfrom coursework.pictures import show\n"
        f"show(plt.figure(), alt={ALT!r}, caption='c')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == (ALT + "\n", "")


def test_import_is_light():
    code = (
        "import sys, coursework.pictures\n"
        "assert not {'matplotlib', 'seaborn', 'ipywidgets', 'torch'} & set(sys.modules)\n"
        "from coursework.pictures import show, palette\n"
        "assert not {'seaborn', 'ipywidgets', 'torch', 'pandas'} & set(sys.modules), 'show pulls in too much'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_unknown_names_are_refused():
    import coursework.pictures

    with pytest.raises(AttributeError, match="attribute nothing"):
        coursework.pictures.nothing  # noqa: B018
    assert set(coursework.pictures.__all__) == set(dir(coursework.pictures))
    assert all(hasattr(coursework.pictures, name) for name in coursework.pictures.__all__)


def test_stored_picture_is_the_rendered_one():
    picture = render(line(), alt=ALT, caption=CAPTION)
    data = re.search(r"base64,([^\"]+)", picture._repr_mimebundle_()["text/html"])[1]
    assert base64.b64decode(data) == picture.data


# Machado, Oliveira and Fernandes 2009, table 1, severity 1.0: what people see who lack one kind of cone.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour, matrix):
    """CIE L*a*b* of a colour seen through a matrix on linear RGB."""
    c = np.frombuffer(bytes.fromhex(colour[1:]), np.uint8) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.asarray(matrix) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = xyz / [0.9505, 1.0, 1.089]
    f = np.where(f > 0.008856, np.cbrt(f), 7.787 * f + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colours_of_query_key_value_output_stay_apart(kind):
    colours = [lab(c, BLINDNESS[kind]) for c in (palette.query, palette.key, palette.value, palette.output)]
    distances = [np.linalg.norm(a - b) for n, a in enumerate(colours) for b in colours[:n]]
    assert min(distances) > 15, distances
