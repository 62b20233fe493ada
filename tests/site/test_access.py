"""The site for readers without a mouse, with a magnifier, or with a screen reader."""

from check_access import THEMES, shown, violations

# One page of a kind, the quick ones; all of them: docs/site/check_access.py.
SAMPLE = ["labs/01_reach", "chapters", "search", "reference/masks", "benchmarks/minilm-cpu"]


def test_nothing_for_axe_to_complain_about(open_page, site):
    page = open_page(theme="auto")
    for name in SAMPLE:
        page.goto((site / f"{name}.html").as_uri())
        for theme in THEMES:
            assert [*map(list, map(shown, violations(page, theme)))] == [], (name, theme)


def test_axe_finds_what_is_wrong(open_page):
    page = open_page()
    page.set_content(
        "<html lang='en' data-theme='light'><main><h1>Title</h1>"
        "<article><details><summary>More</summary><p style='color:#ccc'>pale</p></details></article></main></html>"
    )
    assert {"color-contrast", "document-title"} == {found["id"] for found in violations(page, "light")}


def focused(page):
    """The element that has the focus: its name, whether a line is around it, and whether it is in sight."""
    return page.evaluate("""() => {
      const node = document.activeElement, style = getComputedStyle(node), box = node.getBoundingClientRect();
      const line = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
      return { name: node.getAttribute("aria-label") || node.innerText.trim(), href: node.getAttribute("href"),
        ring: line || style.boxShadow !== "none", sight: box.bottom > 0 && box.top < innerHeight && box.width > 0,
        menu: node.closest("header, .bd-sidebar-primary") !== null, main: node.closest("main") !== null,
        search: node.type === "search" };
    }""")


def test_a_page_is_walked_by_keyboard(open_page):
    """Skip link, menu and search: each is reached by Tab, is seen, and works."""
    page = open_page("04_encoder.html")
    page.keyboard.press("Tab")
    assert focused(page)["href"] == "#main-content"
    page.wait_for_function("document.activeElement.getBoundingClientRect().top >= 0")  # it slides in
    names = set()
    for _ in range(90):
        page.keyboard.press("Tab")
        here = focused(page)
        if not here["menu"]:
            break
        assert here["ring"], here
        assert here["sight"], here
        names.add(here["name"])
    assert {"Chapters", "Exercises", "Benchmarks", "Color mode"} <= names
    page.keyboard.press("Control+k")
    assert focused(page)["search"]
    page.keyboard.press("Escape")
    assert not focused(page)["search"]


def test_the_theme_is_chosen_by_keyboard(open_page):
    page = open_page("search.html")
    chosen = []
    for count in (1, 2, 3):
        page.get_by_role("button", name="Color mode").focus()
        for key in ("Enter", *["ArrowDown"] * count, "Enter"):
            page.keyboard.press(key)
        chosen.append(page.evaluate("document.documentElement.dataset.mode"))
    assert sorted(chosen) == ["auto", "dark", "light"]


def test_the_skip_link_leads_past_the_menu(open_page):
    page = open_page("04_encoder.html")
    for key in ("Tab", "Enter", "Tab"):
        page.keyboard.press(key)
    assert focused(page)["main"]


def test_the_menu_of_a_narrow_screen_opens_and_closes_by_keyboard(open_page):
    page = open_page("04_encoder.html", width=360)
    page.locator(".primary-toggle").focus()
    page.keyboard.press("Enter")
    menu = page.locator("#pst-primary-sidebar-modal[open]")
    assert menu.get_by_role("link", name="Exercises").is_visible()
    page.keyboard.press("Tab")
    assert menu.locator(":focus").count() == 1
    page.keyboard.press("Escape")
    assert menu.count() == 0
    assert "primary-toggle" in page.evaluate("document.activeElement.className")


def test_pages_fit(open_page, site):
    """In 360 pixels, and in the 640 that are left of 1280 when a reader enlarges to 200 %."""
    page = open_page()
    for name in [*SAMPLE, "index", "01_attention", "labs/03_long_context", "exercises", "benchmarks/claims"]:
        page.goto((site / f"{name}.html").as_uri())
        for width in (640, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
