"""Build the site into `build/site`, offline, from the executed notebooks and the package: `make site`.

python docs/site/build_site.py                      pages, checked for broken links
python docs/site/build_site.py --pdf 01 labs/01     ... and these pages as PDF, printed by Chromium; without names all
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from check_links import broken_links
from pages import ROOT, assemble, notebooks

BUILD = ROOT / "build"
MARGIN = "15mm"


def build(folder: Path) -> Path:
    """Build the pages below `folder`; return where they lie. Raises CalledProcessError if Sphinx has any complaint."""
    source, pages = folder / "site-source", folder / "site"
    assemble(source)
    here = Path(__file__).parent
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-c", str(here)]
    subprocess.run([*command, "-d", str(folder / "site-doctrees"), str(source), str(pages)], check=True)
    return pages


def print_pdf(pages: Path, names: Sequence[str], target: Path) -> list[Path]:
    """Print the notebooks whose names begin with one of `names` (all without) by Chromium; return the files."""
    from playwright.sync_api import sync_playwright

    wanted = [
        "index" if "00" in path else path.removeprefix("notebooks/").removesuffix(".ipynb") for path in notebooks()
    ]
    wanted = [name for name in wanted if not names or name.startswith(tuple(names))]
    names_of_chromium = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names_of_chromium)), None)
    if chromium is None:
        raise SystemExit("--pdf: expected Chromium or Google Chrome, or its path in CHROMIUM; found none")
    made = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        for name in wanted:
            page.emulate_media(media="print", color_scheme="light")
            page.goto((pages / f"{name}.html").as_uri())
            made.append(target / f"{name.replace('/', '-')}.pdf")
            page.pdf(
                path=made[-1],
                format="A4",
                print_background=True,
                margin={"top": MARGIN, "bottom": MARGIN, "left": MARGIN, "right": MARGIN},
                tagged=True,
                outline=True,
            )
        browser.close()
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, check, and print; return 0 if no link is broken."""
    parser = argparse.ArgumentParser(description="Build the site into build/site.")
    parser.add_argument("--pdf", nargs="*", metavar="NAME", help="print as PDF what begins so, as 01 labs/01; or all")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    pages = build(BUILD)
    broken = list(broken_links(pages))
    for page, link in broken:
        print(f"{page}: the link {link!r} leads nowhere", file=sys.stderr)
    files = [path for path in pages.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files) / 1e6
    count = sum(path.suffix == ".html" for path in files)
    print(f"{pages / 'index.html'}: {count} pages, {size:.0f} MB, {time.perf_counter() - begin:.0f} s")
    if options.pdf is not None:
        for path in print_pdf(pages, options.pdf, BUILD / "site-pdf"):
            print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
