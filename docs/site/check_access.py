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
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def violations(page: Page, rules: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return what axe-core finds on the page as it is shown, unfolded: by all rules, or by these alone."""
    page.evaluate("document.querySelectorAll('article details').forEach((node) => { node.open = true; })")
    options = {"runOnly": rules} if rules else RULES
    found: list[dict[str, Any]] = Axe().run(page, options=options).response["violations"]
    return found


def shown(found: dict[str, Any]) -> Iterator[str]:
    """Yield lines that say a violation and where it is."""
    yield f"  {found['id']} ({found['impact']}): {found['help']}, {len(found['nodes'])} times"
    for node in found["nodes"][:3]:
        yield f"    {' '.join(map(str, node['target']))}: {' '.join(node['failureSummary'].split())}"[:400]


def choose(page: Page, theme: str) -> None:
    """Choose a theme as a reader does who has chosen it before."""
    page.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0 if no page breaks a rule."""
    parser = argparse.ArgumentParser(description="Check the pages of a built site with axe-core.")
    parser.add_argument("site", type=Path)
    parser.add_argument("names", nargs="*", help="pages without .html; all without any")
    found = filter(None, map(shutil.which, ("chromium", "google-chrome")))
    parser.add_argument("--chromium", default=next(found, None), help="its path")
    options = parser.parse_args(arguments)
    files = [path for path in sorted(options.site.resolve().rglob("*.html")) if "_static" not in path.parts]
    names = options.names or [path.relative_to(options.site.resolve()).as_posix()[:-5] for path in files]
    total = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        pages = {theme: browser.new_page(reduced_motion="reduce") for theme in THEMES}
        for theme, page in pages.items():
            choose(page, theme)
        print(f"| page | {' | '.join(THEMES)} |\n|---|{'--:|' * len(THEMES)}")
        for name in names:
            counts, said = [], []
            for theme, page in pages.items():
                page.goto((options.site.resolve() / f"{name}.html").as_uri())
                broken = violations(page)
                counts.append(sum(len(one["nodes"]) for one in broken))
                said += [line for one in broken for line in (f"{name}, {theme}", *shown(one))]
            total += sum(counts)
            print(f"| {name} | {' | '.join(map(str, counts))} |", flush=True)
            print(*said, sep="\n", end="\n" if said else "", file=sys.stderr, flush=True)
        browser.close()
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
