"""Every explorer in Firefox: drawn, moved by keyboard and by mouse, without an error."""

import pytest
from explorer_samples import MAKERS

CONTROLS = "select:enabled, input:enabled"
KEYS = {"select-one": ("ArrowDown", "ArrowUp"), "range": ("ArrowRight", "ArrowLeft"), "checkbox": ("Space",)}
FOCUS = """(() => {
  const node = document.activeElement, style = getComputedStyle(node);
  return { name: node.type || node.getAttribute("role") || node.localName,
    ring: style.outlineStyle === "solid" ? parseFloat(style.outlineWidth) : 0 };
})()"""


@pytest.fixture(scope="module")
def explorers(firefox, tmp_path_factory):
    """All explorers on one page."""
    file = tmp_path_factory.mktemp("firefox") / "explorers.html"
    body = "".join(make()._repr_mimebundle_()["text/html"] for make in MAKERS.values())
    file.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Explorers</title><main>{body}</main></html>',
        encoding="utf-8",
    )
    firefox.open(file)
    yield file
    assert firefox.problems == []


@pytest.mark.parametrize("name", MAKERS)
def test_an_explorer_is_drawn_and_moved(firefox, explorers, name, note):
    scope = f"document.querySelectorAll('[data-explorer]')[{list(MAKERS).index(name)}]"
    text = f"{scope}.innerText"
    assert firefox.evaluate(f"{scope}.querySelector('.cx').checkVisibility()")
    assert firefox.evaluate(f"{scope}.querySelector('img').hidden")
    firefox.evaluate(f"{scope}.querySelector('{CONTROLS}').focus()")
    moved, kinds = set(), []
    for _ in range(60):
        here = firefox.evaluate(FOCUS)
        kinds.append(here["name"])
        before = firefox.evaluate(text)
        for key in KEYS.get(here["name"], ()):
            firefox.press(key)
            if firefox.evaluate(text) != before:
                moved.add(here["name"])
        firefox.press("Tab")
        if not firefox.evaluate(f"{scope}.contains(document.activeElement)"):
            break
        assert firefox.evaluate(FOCUS)["ring"] == 2, firefox.evaluate(FOCUS)
    else:
        raise AssertionError("the tab key does not leave the explorer")
    assert set(kinds) & set(KEYS) == moved
    mouse = f"{scope}.querySelector('input[type=range]:enabled, input[type=checkbox]:enabled, [role=gridcell]')"
    shown = []
    for share in (0.1, 0.9):  # of a slider
        firefox.click(mouse, share)
        shown.append(firefox.evaluate(text))
    assert shown[0] != shown[1]
    firefox.click(f"{scope}.querySelector('details > summary')")
    assert firefox.evaluate(f"{scope}.querySelector('details').open")
    kinds_moved = ", ".join(sorted(moved))
    note(f"Firefox {firefox.version}, {name}: {len(kinds)} stops, moved by mouse and by keyboard: {kinds_moved}")


def test_the_explorers_fit_a_narrow_screen(firefox, explorers):
    firefox.open(explorers, width=360)
    assert firefox.evaluate("document.documentElement.scrollWidth") <= 360


def test_what_goes_wrong_is_noticed(firefox, tmp_path):
    file = tmp_path / "wrong.html"
    file.write_text(
        '<!doctype html><title>Wrong</title><img src="http://localhost:65001/a.png"><script>throw "a"</script>'
    )
    firefox.open(file)
    assert set(firefox.problems) == {"http://localhost:65001/a.png", "uncaught exception: a"}
    firefox.problems.clear()
