"""Rules of accessibility that pages of the built site break, found by axe-core: a table of page, theme and violations.

python docs/site/check_access.py build/site                       every page, in both themes
python docs/site/check_access.py build/site 01_attention search   these
"""

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

THEMES = ("light", "dark")
# WCAG 2.2 at the levels A and AA, and axe-core's rules of good practice.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Only what is broken is listed, which halves the time; style sheets, wanted by no rule here, cannot be read from files.
OPTIONS = {"runOnly": RULES, "resultTypes": ["violations"], "preload": False}


def violations(page: Page, theme: str) -> list[dict[str, Any]]:
    """Return what axe-core finds in a theme on the page as it is shown, unfolded; the page's mode must be `auto`."""
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light", reduced_motion="reduce")
    page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
    page.evaluate("document.querySelectorAll('article details').forEach((node) => { node.open = true; })")
    found: list[dict[str, Any]] = Axe().run(page, options=OPTIONS).response["violations"]
    return found


def shown(found: dict[str, Any]) -> Iterator[str]:
    """Yield lines that say a violation and where it is."""
    yield f"  {found['id']} ({found['impact']}): {found['help']}, {len(found['nodes'])} times"
    for node in found["nodes"][:3]:
        yield f"    {' '.join(map(str, node['target']))}: {' '.join(node['failureSummary'].split())}"[:400]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0 if no page breaks a rule."""
    parser = argparse.ArgumentParser(description="Check the pages of a built site with axe-core.")
    parser.add_argument("site", type=Path)
    parser.add_argument("names", nargs="*", help="pages without .html; all without any")
    found = filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome")))
    parser.add_argument("--chromium", default=next(found, None), help="its path")
    options = parser.parse_args(arguments)
    files = [path for path in sorted(options.site.resolve().rglob("*.html")) if "_static" not in path.parts]
    names = options.names or [path.relative_to(options.site.resolve()).as_posix()[:-5] for path in files]
    total = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script("localStorage.setItem('mode', 'auto')")
        print(f"| page | {' | '.join(THEMES)} |\n|---|{'--:|' * len(THEMES)}")
        for name in names:
            counts, said = [], []
            page.goto((options.site.resolve() / f"{name}.html").as_uri())
            for theme in THEMES:
                broken = violations(page, theme)
                counts.append(sum(len(one["nodes"]) for one in broken))
                said += [line for one in broken for line in (f"{name}, {theme}", *shown(one))]
            total += sum(counts)
            print(f"| {name} | {' | '.join(map(str, counts))} |", flush=True)
            print(*said, sep="\n", end="\n" if said else "", file=sys.stderr, flush=True)
        browser.close()
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
