"""The parts of the notebook checks by themselves: tags, tolerance of numbers and pictures, paths, alternative text."""

import io
import math
import zlib
from collections.abc import Iterator

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from coursework.pictures import style


def test_tags_are_read(rules):
    assert rules.read_tags([]) == rules.Allowance()
    assert rules.read_tags(["tol:0.001", "atol:1e-6", "raises-exception"]) == rules.Allowance(
        rtol=0.001, atol=1e-6, raises=True
    )
    assert rules.read_tags(["atol:3", "atol:0.1"]) == rules.Allowance(counts=3, atol=0.1)
    assert rules.read_tags(["picture:10", "hide-input"]).picture == 10
    assert rules.read_tags(["not-compared:clock"]).not_compared == "clock"


@pytest.mark.parametrize(
    "tag",
    [
        *(
            "tol:",
            "tol:x",
            "tol:-0.1",
            "tol:nan",
            "tol:inf",
            "tol:0",
            "tol:0.5",
            "tol=0.1",
            "tol",
            "Tol:0.1",
            "tol: 0.1",
        ),
        *(
            "atol:0",
            "atol:inf",
            "picture:0.5",
            "picture:1000",
            "pictures:2",
            "not-compared",
            "not-compared:",
            "notcompared:x",
        ),
        *("nbval-skip", "nbval-ignore-output", "nbval-raises-exception", "skip-execution", "skip"),
    ],
)
def test_a_tag_that_says_nothing_right_is_refused(rules, tag):
    with pytest.raises(ValueError, match="tag"):
        rules.read_tags([tag])


number = st.floats(-1e6, 1e6).filter(lambda x: abs(x) > 1e-3)


@given(value=number, share=st.floats(-0.009, 0.009), words=st.text("abc \n", max_size=9))
def test_near_numbers_become_the_stored_ones(rules, value, share, words):
    stored, new = f"{words} loss {value:.6e}{words}", f"{words} loss {value * (1 + share):.6e}{words}"
    assert rules.snap_numbers(stored, new, rules.Allowance(rtol=0.01))[0] == stored


@given(value=number, share=st.floats(0.011, 0.5) | st.floats(-0.5, -0.011))
def test_far_numbers_stay(rules, value, share):
    stored, new = f"loss {value:.6e}", f"loss {value * (1 + share):.6e}"
    assert rules.snap_numbers(stored, new, rules.Allowance(rtol=0.01))[0] == new


@pytest.mark.parametrize(
    ("stored", "new", "equal"),
    [
        ("7 tokens", "8 tokens", False),  # counts are exact
        ("loss 1.000, 7 tokens", "loss 1.001, 8 tokens", False),
        ("[ 1.00, -0.00]", "[1.00,  0.00]", True),  # a sign moves the columns
        ("1.0 2.0", "1.0 2.0 3.0", False),
        ("loss 1.0", "cost 1.0", False),
        ("nan 1.0", "2.0 1.0", False),
        ("1e-3", "1.001e-3", True),
        ("torch 2.13.0", "torch 2.13.1", False),  # a version is no number
        ("x1.5y", "x1.51y", False),
        ("12.5 %", "12.51 %", True),
    ],
)
def test_what_counts_as_a_number(rules, stored, new, equal):
    assert (rules.snap_numbers(stored, new, rules.Allowance(rtol=0.01))[0] == stored) is equal


@pytest.mark.parametrize(
    ("stored", "new", "allowed", "equal"),
    [
        ("loss 1.50", "loss 1.59", 0.1, True),
        ("weight 0.04", "weight 0.11", 0.08, False),  # a tolerance above the value says nothing
        ("weight 0.04 of 1.00", "weight 0.11 of 1.00", 0.08, True),
        ("rate 0.30, loss 5.0\nrate 0.01, loss 4.9", "rate 0.00, loss 5.0\nrate 0.01, loss 4.9", 0.5, False),
        ("right of 200: 96", "right of 200: 99", 0.5, False),
        ("right of 200: 96", "right of 200: 99", 5, True),
        ("96 of 100, loss 9.1", "96 of 100, loss 0.1", 40, False),  # a tolerance for counts is for counts
        ("pass@2: 31", "pass@1: 31", 12, False),  # a part of a word
        ("pass@1 31, pass@64 79\npass@1 42, pass@64 76", "pass@1 30, pass@64 76\npass@1 40, pass@64 76", 12, True),
        ("85.5% exact", "86.5% exact", 6, True),
        ("100.1% exact", "98.9% exact", 6, False),
        ("share 1.04", "share 1.00", 0.1, False),
        ("12 tokens", "12.4 tokens", 5, False),
        ("loss -0.05", "loss 0.03", 0.2, False),
        ("off by -0.01 and 0.11", "off by +0.01 and 0.12", 0.02, True),
        ("smoothing 0.12, loss 2.30", "smoothing 0.1, loss 2.31", 0.05, False),  # as many digits as are printed
        ("[0.9, 0.49]", "[0.91, 0.5]", 0.15, True),
        ("a 0.44\nb 0.45\nc 0.46", "a 0.46\nb 0.45\nc 0.44", 0.02, False),
        ("a 0.450\nb 0.451", "a 0.451\nb 0.450", 0.02, True),  # as good as equal
        ("one 0.88, other 0.90", "one 0.78, other 1.00", 0.1, False),  # the difference is gone
        ("one 0.78, other 0.90", "one 0.88, other 1.00", 0.1, True),
        ("after step 120. Next", "after step 121. Next", 0.9, False),  # the end of a sentence, no number
        ("1,200 steps, loss 1.1", "1,300 steps, loss 1.1", 0.9, False),
        ("tensor([1., 2.])", "tensor([1.1, 2.])", 0.2, True),
        ("[1. 2. 3.]", "[1. 2.1 3.]", 0.2, True),
    ],
)
def test_a_tolerance_is_bounded_by_what_it_is_for(rules, stored, new, allowed, equal):
    text, used, why = rules.snap_numbers(stored, new, rules.read_tags([f"atol:{allowed}"]))
    assert (text == stored) is equal
    assert (used <= 1) is equal
    assert not (equal and why)


def test_no_tolerance_is_strict_to_the_character(rules):
    assert rules.snap_numbers("loss 1.0", "loss  1.00", rules.Allowance())[0] == "loss  1.00"


def with_chunk(picture: bytes, kind: bytes, data: bytes = b"") -> bytes:
    """A PNG with one more chunk before its pixels."""
    place = picture.index(b"IDAT") - 4
    chunk = len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")
    return picture[:place] + chunk + picture[place:]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (b"acTL", b"\0\0\0\2\0\0\0\1"),
        (b"gAMA", b"\0\0\x1f\x40"),
        (b"eXIf", b"MM\0*"),
        (b"tRNS", b"\0"),
        (b"iCCP", b""),
    ],
)
def test_a_png_holds_nothing_that_viewers_show_differently(rules, kind, data):
    picture = png(bars())
    assert rules.container_problems(picture) == []
    assert repr(kind.decode()) in rules.container_problems(with_chunk(picture, kind, data))[0]


def test_a_picture_is_a_png_from_its_first_byte_to_its_last(rules):
    picture = png(bars())
    for other in (b"\xff\xd8\xff" + picture, picture + b"more", picture[:-12], picture[:-2]):
        assert len(rules.container_problems(other)) == 1


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("/home/ada/course/x.txt", True),
        ("see /tmp/x.", True),
        (r"C:\Users\ada", True),
        ("file:///etc", True),
        ("query/key/value and/or 3/4", False),
        ("<figure></figure>", False),
        ("https://example.org/home/page", False),
        ("notebooks/01_attention.ipynb", False),
        ("~/course", False),
    ],
)
def test_paths_of_one_machine_are_known(rules, text, wrong):
    assert bool(rules.path_problems(text)) is wrong


def test_images_need_alternative_text(rules):
    long = "The bar of the second word is twice as high as the first."
    html = f'<img alt="{long}"><p>if a &lt; b</p><img src="a.png"><IMG alt="short">'
    assert rules.image_alts(html) == [long, "", "short"]
    assert len(rules.prose_problems(f"![{long}](a.png) and ![](b.png)")) == 1


# Pictures: the table in the checks, asserted -------------------------------------------------------------------------


def bars(change: float = 0.0) -> Figure:
    fig, ax = plt.subplots()
    ax.bar(list("abcdef"), [0.2, 0.35, 0.9, 0.5 * (1 + change), 0.15, 0.7])
    ax.set(title="weights of one query", ylabel="weight", ylim=(0, 1))
    return fig


def curve(change: float = 0.0) -> Figure:
    fig, ax = plt.subplots()
    x = np.linspace(0, 10, 200)
    ax.plot(x, np.exp(-x / (3 * (1 + change))))
    ax.set(xlabel="distance", ylabel="gradient")
    return fig


def heat(change: float = 0.0) -> Figure:
    weights = np.random.default_rng(0).dirichlet(np.ones(6), 5)
    weights[2, 3] += change
    fig, ax = plt.subplots()
    ax.imshow(weights, vmin=0, vmax=1)
    for (i, j), weight in np.ndenumerate(weights):
        ax.text(j, i, f"{weight:.2f}", ha="center", va="center")
    return fig


def text(words: str = "exponent 1.95") -> Figure:
    fig, ax = plt.subplots()
    ax.plot([0, 1], [0, 1])
    ax.text(0.5, 0.4, words)
    return fig


def png(fig: Figure) -> bytes:
    raw = io.BytesIO()
    fig.savefig(raw, format="png", dpi=192)
    plt.close(fig)
    return raw.getvalue()


@pytest.fixture(autouse=True)
def course_style() -> Iterator[None]:
    with matplotlib.rc_context():
        style.use_style()
        yield


@pytest.mark.parametrize("draw", [bars, curve, heat, text])
def test_rounding_passes_and_so_do_other_letters_coarsely(rules, draw):
    picture = png(draw())
    assert rules.picture_difference(picture, picture, fine=True) == 0
    with matplotlib.rc_context({"text.hinting": "no_hinting"}):
        other_letters = png(draw())
    assert other_letters != picture
    assert rules.picture_difference(picture, other_letters, fine=False) <= 1


@pytest.mark.parametrize("draw", [bars, curve])
def test_a_change_of_one_in_ten_thousand_is_rounding(rules, draw):
    assert rules.picture_difference(png(draw()), png(draw(1e-4)), fine=True) <= 1


@pytest.mark.parametrize(
    ("draw", "change"), [(bars, 0.01), (curve, 0.02), (heat, 0.01), (text, "exponent 1.93"), (text, "exponent 7.95")]
)
def test_a_small_change_is_seen_finely(rules, draw, change):
    assert rules.picture_difference(png(draw()), png(draw(change)), fine=True) > 1


@pytest.mark.parametrize(("draw", "change"), [(bars, 0.02), (curve, 0.05), (text, "a quite different text")])
def test_a_change_is_seen_coarsely(rules, draw, change):
    assert rules.picture_difference(png(draw()), png(draw(change)), fine=False) > 1


def test_another_size_is_another_picture(rules):
    small, large = plt.figure(figsize=(2, 2)), plt.figure(figsize=(2, 2.1))
    assert math.isinf(rules.picture_difference(png(small), png(large), fine=False))
