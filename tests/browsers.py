"""The browsers that tests drive: each found, started once in a process, and its pages watched for faults."""

import os
import shutil
from contextlib import contextmanager

import pytest

# Debian's headless shell is Chromium without its windows, and starts and draws in about two thirds of the time.
COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
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


def until_changed(locator, before: str, seconds: float = 30) -> str:
    """Wait until the text of an element is another than `before`, and return it."""
    from playwright.sync_api import expect

    expect(locator).not_to_have_text(before, use_inner_text=True, timeout=seconds * 1000)
    return locator.inner_text()


@contextmanager
def watched_pages(browser, allowed):
    """Yield open_(width=…, …), which opens a page and notes what is wrong with it.

    At the end, a request to an address that begins with none of `allowed`, or an error in the console, fails the test.
    """
    contexts, problems = [], []

    def open_(width, height, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        page = contexts[-1].new_page()
        page.on("request", lambda request: request.url.startswith(allowed) or problems.append(request.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.problems = problems
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not problems
