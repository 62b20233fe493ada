"""The site holds everything that the notebooks hold, its links lead somewhere, and its pages need no network."""

import json
import os
import re
from pathlib import Path

import nbformat
import pytest
from browsers import until_changed
from check_access import THEMES, shown, violations
from check_links import broken_links
from lxml import html
from pages import LATER_TERMS, Site, modules, notebooks
from site_parts import mathml, plain_docstring

from coursework.exercises import registry
from coursework.exercises.engine import cells

ROOT = Path(__file__).parents[2]
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?!\s)([^$\n]+(?:\n[^$\n]+)*?)(?<!\s)\$(?![\d$])", re.DOTALL)


@pytest.fixture(scope="module")
def trees(site):
    """The pages by name, parsed."""
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    return {path.relative_to(site).as_posix(): html.parse(str(path)).getroot() for path in files}


def page_of(path):
    """The page of a notebook."""
    return "index.html" if "00_" in path else path.removeprefix("notebooks/").replace(".ipynb", ".html")


@pytest.mark.parametrize("path", notebooks())
def test_a_page_holds_what_its_notebook_holds(trees, path):
    """Counted: explorers, pictures, code cells, folded cells, formulas, exercises with the text of their solution."""
    tree, notebook = trees[page_of(path)], nbformat.read(ROOT / path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = "".join(output.get("data", {}).get("text/html", "") for cell in code for output in cell.outputs)
    prose = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    prose = re.sub(r"^```.*?^```|`+[^`\n]+`+", "", prose, flags=re.MULTILINE | re.DOTALL)
    article = tree.xpath("//article")[0]
    exercises = [cell.metadata["exercise"] for cell in code if "exercise" in cell.metadata]
    formulas = [mathml(block or line, block=bool(block)) for block, line in FORMULA.findall(prose)]
    for spec in map(registry.get, exercises):  # a solution in words may have formulas, too
        text = cells.solution_text(spec, alternatives=True)
        formulas += [mathml(b or i) for b, i in FORMULA.findall(text)] if "wrong" in vars(spec) else []
    counts = {
        "explorers": (len(article.xpath(".//*[@data-explorer]")), outputs.count("<div data-explorer=")),
        "pictures": (len(article.xpath(".//img")), outputs.count("<img")),
        "code cells": (len(article.xpath(".//div[contains(@class, 'cell_input')]")), len(code)),
        "folded": (
            len(article.xpath(".//details[contains(@class, 'hide')]")),
            sum("hide-input" in cell.metadata.get("tags", []) for cell in code),
        ),
        "formulas": (len(article.xpath(".//*[local-name() = 'math']")), len(formulas)),
        "solutions": (len(article.xpath(".//details[@class = 'solution']")), len(exercises)),
    }
    assert {name: found for name, (found, _) in counts.items()} == {name: held for name, (_, held) in counts.items()}
    shown = [" ".join(node.text_content().split()) for node in article.xpath(".//details[@class = 'solution']")]
    for text, spec in zip(shown, map(registry.get, exercises), strict=True):
        wanted = cells.solution_text(spec, alternatives=True).splitlines()
        words = re.findall(r"\w+", wanted[0])
        assert spec.title.split()[0] in text
        assert all(word in text for word in words), (spec.id, wanted[0])


def test_every_page_is_there(trees, note):
    rooms = {f"reference/{room}.html" for room in modules()}
    results = {f"benchmarks/{path.stem}.html" for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    texts = {f"about/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    own = {"start", "chapters", "labs", "exercises", "search", "reference/index", "reference/glossary", "about/licence"}
    own |= {"reference/notation", "benchmarks/index", "about/index", "about/contributing", "about/licence-text"}
    wanted = rooms | results | texts | {f"{name}.html" for name in own} | set(map(page_of, notebooks()))
    assert wanted - set(trees) == set()
    explorers = sum(len(tree.xpath("//*[@data-explorer]")) for tree in trees.values())
    formulas = sum(len(tree.xpath("//*[local-name() = 'math']")) for tree in trees.values())
    pictures = sum(len(tree.xpath("//article//img")) for tree in trees.values())
    solutions = sum(len(tree.xpath("//details[@class = 'solution']")) for tree in trees.values())
    note(
        f"site: {len(trees)} pages, {explorers} explorers, {pictures} pictures, {formulas} formulas, "
        f"{solutions} solutions"
    )


def test_no_link_is_broken(site):
    assert list(broken_links(site)) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text("<p id='x'><a href='b.html'>1</a><a href='#y'>2</a><a href='#x'>3</a></p>")
    (tmp_path / "c.html").write_text("<a href='a.html#x'>1</a><a href='a.html#z'>2</a><img src='no.png'>")
    assert {link for _, link in broken_links(tmp_path)} == {"b.html", "#y", "a.html#z", "no.png"}


def test_numbers_of_arxiv_are_links(trees):
    article = trees["01_attention.html"].xpath("//article")[0]
    numbers = set(re.findall(r"arXiv:(\d{4}\.\d{4,5})", article.text_content()))
    assert "1706.03762" in numbers
    assert {f"https://arxiv.org/abs/{number}" for number in numbers} <= set(article.xpath(".//a/@href"))


def test_links_are_led_into_the_site(tmp_path):
    site = Site(tmp_path)
    text = "[a](labs/01_reach.ipynb#x) `[a](b.ipynb)` ![p](../docs/course.png) [w](https://a.b/c) arXiv:1706.03762"
    linked = site.linked(text, origin="notebooks/00_overview.ipynb", page="index.ipynb")
    assert linked.startswith(
        "[a](labs/01_reach.ipynb#x) `[a](b.ipynb)` ![p](files/docs/course.png) [w](https://a.b/c) "
    )
    assert "[arXiv:1706.03762](https://arxiv.org/abs/1706.03762)" in linked
    linked = site.linked("[`make`](../Makefile) and `[a](no.md)`", origin="docs/classroom.md", page="about/a.md")
    assert linked == "[`make`](../files/Makefile) and `[a](no.md)`"
    with pytest.raises(ValueError, match=r"nowhere\.md"):
        site.linked("[a](nowhere.md)", origin="README.md", page="start.md")


def test_the_glossary_explains_each_term_and_leads_there(trees):
    tree = trees["reference/glossary.html"]
    terms = [" ".join(node.text_content().split()) for node in tree.xpath("//article//dt")]
    assert {" ".join(term.split()) for term in LATER_TERMS.split(",")} <= set(terms)
    assert len(terms) >= 70
    said = tree.xpath("//article//dd")
    assert len(said) == len(terms)
    assert all(len(node.text_content().split()) >= 5 and node.xpath(".//a[contains(@href, '#')]") for node in said)


def test_each_claim_has_its_picture(trees):
    tree = trees["benchmarks/claims.html"]
    headings = tree.xpath("//article//h2")
    assert len(headings) > 50
    assert len(tree.xpath("//article//img[string-length(@alt) > 40]")) == len(headings)


def test_the_reference_has_the_words_of_the_docstrings(trees):
    text = " ".join(trees["reference/attention.html"].xpath("//article")[0].text_content().split())
    assert "scaled_dot_product_attention(" in text
    assert "True = may attend" in text or "may attend" in text
    tables = trees["reference/variants.html"].xpath("//article//table")
    assert any("TiledAttention" in table.text_content() for table in tables)  # Markdown's, in a docstring
    lines = ["a * b | c, `x * y`"]
    plain_docstring(None, "module", "m", None, None, lines)
    assert lines == [r"a \* b \| c, `x * y`"]


# In the browser -----------------------------------------------------------------------------------------------------


def active(name, tree):
    """What a page loads or runs: addresses as from the site's folder, and scripts but for the page's own name."""
    page = name.removesuffix(".html")
    for script in tree.xpath("//script[not(@src)]/text()"):
        yield script.replace(f"'{page}'", "'this page'")
    yield from tree.xpath("//@*[starts-with(name(), 'on')] | //@style[contains(., 'url(')]")
    for address in tree.xpath("//*[not(self::img)]/@src | //link[@rel = 'stylesheet' or @rel = 'preload']/@href"):
        yield os.path.normpath(os.path.join(os.path.dirname(name), address)) if "//" not in address else address


def test_no_page_sends_a_request_or_has_an_error(open_page, site, trees):
    """What leaves the folder fails the test by its address; the explorers come to life.

    Opened are the pages with an explorer, and those with a script or a style sheet that no page opened before them has:
    the others can do nothing else.
    """
    page, known, opened = open_page(), set(), []
    for name, tree in trees.items():
        assert not [src for src in tree.xpath("//img/@src") if "//" in src.partition(",")[0]], name
        explorers, found = len(tree.xpath("//*[@data-explorer]")), set(active(name, tree))
        if explorers or not found <= known:
            page.goto((site / name).as_uri())
            assert page.locator("[data-mounted] .cx").count() == explorers, name
            known |= found
            opened.append(name)
    assert {"01_attention.html", "search.html"} < set(opened)
    assert not page.problems


def test_what_is_active_on_a_page_is_known():
    tree = html.fromstring(
        "<div onclick='a()'><script>name = 'x/y'; b()</script><script src='../c.js'></script><img src='d.png'>"
        "<link rel='stylesheet' href='//e.org/f.css'><iframe src='https://g.org/h'></iframe></div>"
    )
    wanted = {"a()", "name = 'this page'; b()", "c.js", "//e.org/f.css", "https://g.org/h"}
    assert set(active("x/y.html", tree)) == wanted


def test_an_explorer_follows_its_controls(open_page):
    page = open_page("01_attention.html")
    explorer = page.locator("[data-explorer]").first
    before = explorer.get_by_role("status").inner_text()
    explorer.locator("select").first.select_option(index=0)
    until_changed(explorer.get_by_role("status"), before)


def test_a_solution_is_behind_a_click(open_page):
    page = open_page("01_attention.html")
    solution = page.locator("details.solution").first
    assert not solution.locator("pre").is_visible()
    solution.locator("summary").click()
    assert "softmax" in solution.locator("pre").inner_text()


CONTRAST = """node => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => channels(color).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
  let behind = node;
  while (behind && channels(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
  const ground = light(behind ? getComputedStyle(behind).backgroundColor : "rgb(255, 255, 255)");
  const ink = light(getComputedStyle(node).color);
  return { ground, contrast: (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05) };
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_outputs_follow_the_theme(open_page, theme):
    page = open_page("01_attention.html", theme=theme)
    for selector in (".cx-status", "figcaption", "div.cell_output summary", "details.solution > summary"):
        found = page.locator(f"article {selector}").first.evaluate(CONTRAST)
        assert (found["ground"] < 0.2) == (theme == "dark"), selector
        assert found["contrast"] >= 4.5, selector


TERMS = {
    "residual stream": "04_encoder",
    "perplexity": "06_training",
    "beam search": "05_decoder",
    "rotary": "03_positional_encoding",
    "causal mask": "01_attention",
    "grouped-query": "02_multi_head",
    "roofline": "08_scaling",
    "LoRA": "07_variants",
    "scaled_dot_product_attention": "reference/attention",
    "teacher forcing": "05_decoder",
}


def test_search_finds(open_page, note):
    page = open_page("search.html")
    for term, wanted in TERMS.items():
        page.goto(page.url.partition("?")[0] + f"?q={term.replace(' ', '+')}")
        # The results come one by one: its own sentence tells when all are there.
        page.get_by_text(re.compile("Search finished, found ")).wait_for()
        found = page.locator("#search-results li > a").evaluate_all("links => links.map(a => a.getAttribute('href'))")
        assert any(link.startswith(f"{wanted}.html") for link in found), (term, found)
    note(f"site: the search finds {len(TERMS)} terms")


def test_a_chapter_prints(open_page):
    page = open_page("01_attention.html")
    page.emulate_media(media="print")
    assert not page.locator(".bd-sidebar-primary, .bd-header").locator("visible=true").count()
    assert page.pdf(format="A4").count(b"/Type /Page\n") + 1 > 5


# For readers without a mouse, with a magnifier, or with a screen reader ----------------------------------------------

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
        menu: node.closest("header, .bd-sidebar-primary") !== null };
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
    page.wait_for_function("document.activeElement.type === 'search'")
    page.keyboard.press("Escape")
    page.wait_for_function("document.activeElement.type !== 'search'")


def test_the_theme_is_chosen_by_keyboard(open_page):
    page = open_page("search.html")
    chosen = []
    for count in (1, 2, 3):
        page.get_by_role("button", name="Color mode").focus()
        page.keyboard.press("Enter")
        page.locator(".dropdown-menu.show").wait_for()
        for key in (*["ArrowDown"] * count, "Enter"):
            page.keyboard.press(key)
        page.locator(".dropdown-menu.show").wait_for(state="detached")
        chosen.append(page.evaluate("document.documentElement.dataset.mode"))
    assert sorted(chosen) == ["auto", "dark", "light"]


def test_the_skip_link_leads_past_the_menu(open_page):
    page = open_page("04_encoder.html")
    for key in ("Tab", "Enter"):
        page.keyboard.press(key)
    page.wait_for_function("location.hash === '#main-content'")
    page.keyboard.press("Tab")
    page.wait_for_function("document.activeElement.closest('main') !== null")


def test_the_menu_of_a_narrow_screen_opens_and_closes_by_keyboard(open_page):
    page = open_page("04_encoder.html", width=360)
    page.locator(".primary-toggle").focus()
    page.keyboard.press("Enter")
    menu = page.locator("#pst-primary-sidebar-modal[open]")
    menu.get_by_role("link", name="Exercises").wait_for()
    page.keyboard.press("Tab")
    menu.locator(":focus").wait_for()
    page.keyboard.press("Escape")
    menu.wait_for(state="detached")
    page.wait_for_function("document.activeElement.className.includes('primary-toggle')")


def test_pages_fit(open_page, site):
    """In 360 pixels, and in the 640 that are left of 1280 when a reader enlarges to 200 %."""
    page = open_page()
    for name in [*SAMPLE, "index", "01_attention", "labs/03_long_context", "exercises", "benchmarks/claims"]:
        page.goto((site / f"{name}.html").as_uri())
        for width in (640, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name


@pytest.mark.parametrize("name", ["01_attention", "labs/04_padding"])
def test_no_cell_has_a_scroll_bar(open_page, name):
    pre = open_page(f"{name}.html").locator("article div.cell pre").locator("visible=true")
    wide = pre.evaluate_all("nodes => nodes.map((node) => node.scrollWidth - node.clientWidth)")
    assert len(wide) > 10
    assert max(wide) <= 0


@pytest.mark.browser
@pytest.mark.parametrize("name", ["index", "03_positional_encoding"])
def test_a_page_works_in_firefox(firefox, site, name, note):
    firefox.problems.clear()
    firefox.open(site / f"{name}.html", width=1280)
    count = firefox.evaluate("document.querySelectorAll('[data-explorer]').length")
    assert firefox.evaluate("document.querySelectorAll('[data-mounted] .cx').length") == count
    firefox.press("Tab")
    firefox.until("document.activeElement.getAttribute('href') === '#main-content'")
    firefox.press("Enter")
    firefox.until("location.hash === '#main-content'")
    firefox.click("[...document.querySelectorAll('.theme-switch-button')].find((node) => node.checkVisibility())")
    firefox.click("[...document.querySelectorAll('[data-mode=dark]')].find((node) => node.checkVisibility())")
    firefox.until("document.documentElement.dataset.theme === 'dark'")
    assert (count > 0) == (name != "index")
    if count:
        explorer = "document.querySelector('[data-explorer]')"
        before = firefox.evaluate(f"{explorer}.innerText")
        firefox.evaluate(f"{explorer}.querySelector('select:enabled, input:enabled').focus()")
        firefox.press("ArrowDown")
        firefox.until(f"{explorer}.innerText !== {json.dumps(before)}")
    for width in (640, 360):
        firefox.open(site / f"{name}.html", width=width)
        assert firefox.evaluate("document.documentElement.scrollWidth") <= width
    assert firefox.problems == []
    note(f"Firefox {firefox.version}, page {name}: skip link, theme, {count} explorers, 360 px")
