"""Every explorer by keyboard alone, with the place of the focus measured, and as a screen reader meets it."""

import io
from pathlib import Path

import numpy as np
import pytest
from explorer_samples import MAKERS
from PIL import Image

SNAPSHOTS = Path(__file__).parent / "snapshots"
KEYS = {"select": ("ArrowDown", "ArrowUp"), "range": ("ArrowRight", "ArrowLeft"), "checkbox": ("Space",)}
KEYS |= {"button": ("Enter",), "gridcell": ("ArrowRight", "ArrowLeft"), "summary": ("Enter",)}
ACTIVE = """() => {
  const node = document.activeElement, box = node.getBoundingClientRect(), type = node.getAttribute("type");
  const kind = node.getAttribute("role") || (node.localName === "input" ? type : node.localName);
  return { kind, id: node.id, x: box.x, y: box.y, width: box.width, height: box.height };
}"""
# What the tab key must reach: everything that can be moved, a group of one stop (a grid) once.
REACHABLE = """() => [...document.querySelector("[data-explorer]")
  .querySelectorAll("select, input, button, summary, [tabindex='0']")].filter(
    (node) => !node.disabled && node.checkVisibility()).length"""
OUTSIDE = "<button id='before'>before</button>", "<button id='after'>after</button>"


def luminance(picture):
    """Relative luminance of each pixel, as WCAG defines it."""
    shares = np.asarray(picture.convert("RGB")) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return linear @ np.array([0.2126, 0.7152, 0.0722])


def ring(page, box):
    """How many pixels around what has the focus change with it by a contrast of 3 to 1, per pixel of its outline."""
    margin = 6
    clip = {"x": max(0, box["x"] - margin), "y": max(0, box["y"] - margin)}
    clip |= {"width": box["width"] + 2 * margin, "height": box["height"] + 2 * margin}
    with_focus = luminance(Image.open(io.BytesIO(page.screenshot(clip=clip))))
    page.evaluate("() => { window.held = document.activeElement; held.blur(); }")
    without = luminance(Image.open(io.BytesIO(page.screenshot(clip=clip))))
    page.evaluate("() => { held.focus({ preventScroll: true, focusVisible: true }); }")
    contrast = (np.maximum(with_focus, without) + 0.05) / (np.minimum(with_focus, without) + 0.05)
    return (contrast >= 3).sum() / (2 * (box["width"] + box["height"]))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", MAKERS)
def test_an_explorer_is_walked_by_keyboard(open_page, name, dark, note):
    page = open_page(MAKERS[name](), dark=dark, body=OUTSIDE[0])
    page.evaluate("text => document.querySelector('main').insertAdjacentHTML('beforeend', text)", OUTSIDE[1])
    page.set_viewport_size({"width": 900, "height": 1600})
    explorer = page.locator("[data-explorer]")
    wanted, stops, rings, moved = page.evaluate(REACHABLE), [], [], set()
    page.locator("#before").focus()
    for _ in range(60):
        page.keyboard.press("Tab")
        here = page.evaluate(ACTIVE)
        if here["id"] == "after":
            break
        stops.append((here["y"], here["x"], here["kind"]))
        rings.append(ring(page, here))
        text = explorer.inner_text()
        page.keyboard.press("Escape")  # leaves everything as it is
        assert explorer.inner_text() == text
        for key in KEYS.get(here["kind"], ()):
            page.keyboard.press(key)
            if explorer.inner_text() != text:
                moved.add(here["kind"])
        if here["kind"] == "checkbox":  # it may open and close other controls
            page.keyboard.press("Space")
        assert page.evaluate("document.activeElement.closest('[data-explorer]') !== null"), here  # no key throws out
    else:
        raise AssertionError("the tab key does not leave the explorer")
    assert len(stops) >= wanted
    assert min(rings) >= 1.5, (stops, rings)  # a line of two pixels all around, but for rounded corners
    assert {kind for *_, kind in stops if kind in KEYS} - moved <= {"button"}  # Reset may find nothing to reset
    for _ in range(60):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.id") == "before":
            break
    else:
        raise AssertionError("the tab key does not leave the explorer backwards")
    if not dark:
        kinds = [kind for *_, kind in stops]
        note(f"keyboard, {name}: {len(stops)} stops ({', '.join(dict.fromkeys(kinds))}), ring {min(rings):.1f} px")


@pytest.mark.parametrize("name", MAKERS)
def test_a_screen_reader_meets_what_is_stored(open_page, name):
    """Role, name and value of everything. After a wanted change: delete the file, run this, look at the new one."""
    page = open_page(MAKERS[name]())
    page.locator("summary").click()
    found = page.locator("[data-explorer]").aria_snapshot() + "\n"
    file = SNAPSHOTS / f"{name}.yaml"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
        pytest.fail(f"{file} was missing and is written now: look whether a reader who hears it has everything")
    assert found == file.read_text(encoding="utf-8")
