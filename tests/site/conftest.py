"""The site, built once for the tests of this folder, and the browser that the tests of `browser` use."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

# Of the same name as this file, so it is loaded under another one.
spec = importlib.util.spec_from_file_location("browser_conftest", ROOT / "tests" / "browser" / "conftest.py")
browsers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(browsers)
browser = browsers.browser
firefox = browsers.firefox


def pytest_collection_modifyitems(items):
    for item in items:
        if "open_page" in getattr(item, "fixturenames", ()) and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if browsers.find_chromium() is None:
                item.add_marker(pytest.mark.skip(reason=browsers.MISSING))


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
    contexts, problems = [], []

    def open_(name="", *, theme="light", width=1280):
        context = browser.new_context(viewport={"width": width, "height": 800})
        contexts.append(context)
        context.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")
        page = context.new_page()
        page.set_default_timeout(20_000)
        allowed = (site.as_uri(), "data:")
        page.on("request", lambda request: request.url.startswith(allowed) or problems.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.problems = problems
        if name:
            page.goto((site / name).as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not problems
