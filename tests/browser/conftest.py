"""A real Chromium for the tests of this folder: pages from files without a network, and a real JupyterLab."""

import os
import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "viz"))  # the explorers that the tests of `viz` make
sys.path.append(str(Path(__file__).parent))  # `firefox`, for the tests of the site, too

COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "~/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MISSING = (
    "NO BROWSER FOUND: these tests need Chromium or Google Chrome (Debian and Ubuntu: apt install chromium; macOS: "
    "brew install --cask chromium), or its path in the environment variable CHROMIUM"
)


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome on this machine."""
    if chosen := os.environ.get("CHROMIUM"):
        return chosen
    found = [path for command in COMMANDS if (path := shutil.which(command))]
    found += [path for path in map(os.path.expanduser, APPLICATIONS) if os.access(path, os.X_OK)]
    return found[0] if found else None


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    missing = find_chromium() is None
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if missing:
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def browser():
    """The browser, started once."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def firefox():
    """Firefox, started once; a test that needs it is skipped where it or websocket-client is missing."""
    pytest.importorskip("websocket")
    from firefox import Firefox, find_firefox

    if find_firefox() is None:
        pytest.skip("NO FIREFOX FOUND (Debian: apt install firefox-esr), nor its path in FIREFOX")
    started = Firefox(find_firefox())
    yield started
    started.close()


# The variables that JupyterLab's dark theme sets; it sets neither a class nor the colour scheme.
DARK = """:root { --jp-content-font-color1: rgba(255, 255, 255, 1);
  --jp-layout-color0: #111111; --jp-layout-color1: #212121;
  --jp-border-color0: #616161; --jp-border-color1: #616161; --jp-brand-color1: #2196f3; }
body { background: #111111; color: #ffffff; }"""


@cache
def html_of(explorer):
    """The output of an explorer; the same object is asked for many times."""
    return explorer._repr_mimebundle_()["text/html"]


@pytest.fixture
def open_page(browser, tmp_path):
    """Open explorers as one page from a file: open_page(*explorers, width=…, dark=…, scripts=…).

    At the end of the test, any request to anything but that file, and any error in the console, fails it.
    """
    contexts, problems = [], []

    def open_(*explorers, width=900, dark=False, scripts=True, body=""):
        body += "".join(map(html_of, explorers))
        path = tmp_path / f"page{len(contexts)}.html"
        path.write_text(
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Explorers</title>'
            f'<meta name="viewport" content="width=device-width"><style>{DARK if dark else ""}</style></head>'
            f"<body><main><h1>Explorers</h1>{body}</main></body></html>",
            encoding="utf-8",
        )
        context = browser.new_context(viewport={"width": width, "height": 700}, java_script_enabled=scripts)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        allowed = (path.as_uri(), "data:image/png")
        page.on("request", lambda request: request.url.startswith(allowed) or problems.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.problems = problems
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A learner's folder, empty but for what makes it one."""
    folder = tmp_path_factory.mktemp("desk") / "my"
    (folder / ".course").mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def lab(desk, tmp_path_factory):
    """A JupyterLab of its own, serving the desk."""
    from lab import Lab

    server = Lab(desk, tmp_path_factory.mktemp("jupyter"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def open_notebook(browser, lab):
    """Open a notebook of the desk in JupyterLab: open_notebook(name) -> Notebook."""
    from lab import Notebook

    contexts = []

    def open_(name):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}))
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000)
        return Notebook(lab, page, name)

    yield open_
    for context in contexts:
        context.close()
