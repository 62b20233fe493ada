"""Live controls: a figure without a front end, and a new one, or a readable error, when a control moves."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ipywidgets
import matplotlib.pyplot as plt
import nbformat
import pytest
from nbclient import NotebookClient

from coursework.pictures import live, widgets

ALT = "A flat line at the height of the chosen value."
CAPTION = "The line is as high as it was asked to be."


def line(height=0.5, **others):
    fig, ax = plt.subplots()
    ax.axhline(height)
    return fig


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(widgets, "display", found.append)
    return found


def start(shown, fn=line, alt=ALT, caption=CAPTION, **controls):
    live(fn, alt=alt, caption=caption, **(controls or {"height": (0.0, 1.0, 0.25)}))
    *inputs, _, result = shown[1].box.children
    return inputs, result


def test_the_figure_for_the_default_values_comes_first(shown):
    start(shown)
    assert set(shown[0]._repr_mimebundle_()) == {"text/html", "text/plain"}
    assert shown[0].alt == ALT
    assert not plt.get_fignums()


def test_controls_draw_once_when_let_go_and_keep_their_place(shown):
    inputs, result = start(shown, height=(0.0, 1.0, 0.25), temperature_now=[1, 2], causal=True, prompt="once")
    assert [control.description for control in inputs] == ["height", "temperature now", "causal", "prompt"]
    assert not inputs[0].continuous_update
    assert not inputs[3].continuous_update
    assert result.layout.overflow == "auto"
    assert result.layout.height is None  # nothing blank before there is a figure
    inputs[0].value = 0.25
    height = result.layout.height
    assert re.fullmatch(r"\d+px", height)
    inputs[0].value = 1.0
    assert result.layout.height == height


def test_a_moved_control_draws_again_with_words_of_its_own(shown):
    (slider,), result = start(shown)
    slider.value = 0.75
    assert "data:image/png;base64," in result.value
    assert "The figure drawn again for height = 0.75." in result.value
    assert "For height = 0.75." in result.value
    assert not plt.get_fignums()


def test_words_can_follow_the_values(shown):
    (slider,), result = start(
        shown,
        alt=lambda height: f"A line at the height {height}, from the left to the right.",
        caption=lambda height: f"At {height}.",
    )
    assert "height 0.5," in shown[0].alt
    slider.value = 1.0
    assert "A line at the height 1.0," in result.value
    assert ">At 1.0.<" in result.value


def test_errors_and_printed_text_are_shown_in_the_output(shown, capfd):
    def fragile(height):
        print("drawing <at>", height)
        print("a warning", file=sys.stderr)
        if height > 0.9:
            raise ValueError("height: expected at most 0.9 < 1")
        return line(height)

    (slider,), result = start(shown, fragile)
    capfd.readouterr()
    slider.value = 1.0
    assert "ValueError: height: expected at most 0.9 &lt; 1" in result.value
    assert "role='alert'" in result.value
    assert "drawing &lt;at&gt; 1.0" in result.value
    assert "a warning" in result.value
    slider.value = 0.25
    assert "base64," in result.value
    assert "ValueError" not in result.value
    assert capfd.readouterr() == ("", "")


def test_a_function_without_figure_is_refused(shown):
    with pytest.raises(TypeError, match="fn: expected it to return a matplotlib figure, got NoneType"):
        start(shown, lambda height: None)


def test_useless_words_and_controls_are_refused(shown):
    with pytest.raises(ValueError, match="alt: expected at least 40 characters"):
        start(shown, alt="short")
    with pytest.raises(ValueError, match="controls: expected at least one"):
        live(line, alt=ALT, caption=CAPTION)
    with pytest.raises(TypeError, match="height: expected a control or its abbreviation"):
        start(shown, height=object())
    assert not shown


def test_ready_made_controls_are_taken(shown):
    (control,), _ = start(shown, height=ipywidgets.BoundedFloatText(0.5, min=0, max=1))
    assert isinstance(control, ipywidgets.BoundedFloatText)


def test_controls_need_nothing_that_ipywidgets_7_lacks(shown, monkeypatch):
    start(shown)
    bundle = shown[1].box._repr_mimebundle_() if hasattr(ipywidgets.Widget, "_repr_mimebundle_") else None
    monkeypatch.delattr(ipywidgets.Widget, "_repr_mimebundle_", raising=False)
    found = shown[1]._repr_mimebundle_()
    view = found["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == shown[1].box.model_id
    assert bundle is None or bundle | {"text/plain": found["text/plain"]} == found


CELL = f"""
from matplotlib import pyplot as plt
from coursework.pictures import live

def line(height):
    fig, ax = plt.subplots()
    ax.axhline(height)
    return fig

live(line, alt={ALT!r}, caption={CAPTION!r}, height=(0.0, 1.0, 0.25))
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook with live controls, as it is stored after its execution."""
    folder = tmp_path_factory.mktemp("live")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL, id="live")])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(
        notebook, timeout=120, store_widget_state=False, resources={"metadata": {"path": str(folder)}}
    ).execute()
    path = folder / "live.ipynb"
    nbformat.write(notebook, path)
    return path


def test_a_stored_notebook_has_the_figure_and_no_widget_state(executed):
    notebook = nbformat.read(executed, as_version=4)
    first, controls = notebook.cells[0].outputs
    assert set(first.data) == {"text/html", "text/plain"}
    assert controls.data["text/plain"] == "Controls, in use where a kernel runs: height"
    assert "widgets" not in notebook.metadata
    assert "VBox" not in json.dumps(notebook)


def test_a_stored_notebook_passes_the_strict_comparison(executed):
    hook = Path(__file__).parents[2] / "notebooks" / "conftest.py"
    shutil.copy(hook, executed.parent)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
    ]
    done = subprocess.run([*command, executed.name], cwd=executed.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
