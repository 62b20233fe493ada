"""The site, built once for the tests of this folder."""

import sys
from pathlib import Path

import pytest
from browsers import watched_pages

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder with the built pages."""
    from build_site import build

    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture
def open_page(browser, site):
    """Open a page from its file: open_page("01_attention.html", theme="dark", width=…).

    At the end of the test, any request that leaves the folder, and any error in the console, fails it.
    """
    with watched_pages(browser, (site.as_uri(), "data:")) as new_page:

        def open_(name="", *, theme="light", width=1280):
            page = new_page(width, 800)
            page.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")
            page.set_default_timeout(60_000)
            if name:
                page.goto((site / name).as_uri())
            return page

        yield open_
