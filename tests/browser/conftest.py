"""Pages from files without a network, and a real JupyterLab, in a real Chromium."""

import sys
from functools import cache
from pathlib import Path

import pytest
from browsers import watched_pages

sys.path.insert(0, str(Path(__file__).parents[1] / "pictures"))  # the explorers that the tests of `pictures` make

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
    files = []
    with watched_pages(browser, (tmp_path.as_uri(), "data:image/png")) as new_page:

        def open_(*explorers, width=900, dark=False, scripts=True, body=""):
            body += "".join(map(html_of, explorers))
            files.append(tmp_path / f"page{len(files)}.html")
            files[-1].write_text(
                '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Explorers</title>'
                f'<meta name="viewport" content="width=device-width"><style>{DARK if dark else ""}</style></head>'
                f"<body><main><h1>Explorers</h1>{body}</main></body></html>",
                encoding="utf-8",
            )
            page = new_page(width, 700, java_script_enabled=scripts)
            page.set_default_timeout(60_000)
            page.goto(files[-1].as_uri())
            return page

        yield open_


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
    from lab import LAB_MILLISECONDS, Notebook

    contexts = []

    def open_(name):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}))
        page = contexts[-1].new_page()
        page.set_default_timeout(LAB_MILLISECONDS)
        return Notebook(lab, page, name)

    yield open_
    for context in contexts:
        context.close()
