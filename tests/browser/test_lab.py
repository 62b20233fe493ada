"""The notebooks in a real JupyterLab, as a learner uses them: open, answer wrongly, run all, move everything.

A chapter with live controls and an exercise is run, with a wrong answer in place; in another, where there is only
something to move, that comes to life by trust; of the others some are opened. `make test-all` runs every chapter that
has such an exercise, and opens all. That their cells run, nbval proves; every explorer is moved as a page of its own.
"""

import json
import re
import shutil

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from browsers import until_changed
from notebook_files import NOTEBOOKS, name
from thorough import ALL, mostly

from coursework.exercises import registry

RUN_SECONDS = 900  # a limit against hanging, not the time a chapter may take
KEYS = ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "b", "a", "d", "d", "x", "m", "y", "z", "Home", "End")

# By exercise: a wrong answer, and the setting of the misconception that it is.
WRONG = {
    "causal_mask": (
        "def causal_mask(T, S):\n    return torch.ones(T, S, dtype=torch.bool).tril()\n\n"
        "causal_mask = ex.causal_mask.check(causal_mask)",
        {"align": "left"},
    ),
    "split_heads": (
        "def split_heads(x, n_heads):\n    B, T, width = x.shape\n"
        "    return x.reshape(B, n_heads, T, width // n_heads)\n\n"
        "split_heads = ex.split_heads.check(split_heads)",
        {"order": "view-only"},
    ),
    "sinusoidal_encoding": (
        "def sinusoidal_encoding(positions, d_model):\n"
        "    angle = positions[:, None] * 10000.0 ** (-torch.arange(0, d_model, 2) / d_model)\n"
        "    return torch.cat([angle.sin(), angle.cos()], dim=-1)\n\n"
        "sinusoidal_encoding = ex.sinusoidal_encoding.check(sinusoidal_encoding)",
        {"order": "halves"},
    ),
    "layer_norm": (
        "def layer_norm(x, weight, bias, eps=1e-5):\n"
        "    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, correction=0, keepdim=True) + eps) * weight + bias\n\n"
        "layer_norm = ex.layer_norm.check(layer_norm)",
        {"root": "outside"},
    ),
    "shift_right": (
        "def shift_right(targets, start_id):\n"
        "    return torch.cat([torch.full_like(targets[:, :1], start_id), targets], dim=1)\n\n"
        "shift_right = ex.shift_right.check(shift_right)",
        {"length": "longer"},
    ),
    "clip_gradients": (
        "def clip_gradients(gradients, max_norm):\n"
        "    norm = torch.cat([g.flatten() for g in gradients]).norm()\n"
        "    return [g.clamp(-max_norm, max_norm) for g in gradients], norm\n\n"
        "clip_gradients = ex.clip_gradients.check(clip_gradients)",
        {"by": "clamp"},
    ),
    "swiglu": (
        "def swiglu(x, gate, up, down):\n"
        "    return ((x @ gate.T) * F.silu(x @ up.T)) @ down.T\n\n"
        "swiglu = ex.swiglu.check(swiglu)",
        {"roles": "exchanged"},
    ),
    "mfu": (
        "def mfu(parameters, layers, width, length, tokens_per_second, devices, peak):\n"
        "    a_token = 6 * parameters + 12 * layers * width * length\n"
        "    return a_token * tokens_per_second / peak\n\n"
        "mfu = ex.mfu.check(mfu)",
        {"per": "one"},
    ),
}


LOADED_WIDTH = "node => node.decode().then(() => node.naturalWidth)"  # a picture may be in its place before it is read


def has(marker):
    """A test for cells that show something."""
    return lambda cell: any(marker in "".join(o.get("data", {}).get("text/html", "")) for o in cell.get("outputs", ()))


def those_with(what):
    """The notebooks in which this is true of a cell."""
    return [path for path in NOTEBOOKS if any(map(what, json.loads(path.read_text(encoding="utf-8"))["cells"]))]


TO_BE_RUN = [
    path
    for path in those_with(lambda cell: cell["metadata"].get("exercise") in WRONG)
    if ALL or name(path) == "05_decoder"
]
MOVING = [path for path in those_with(has("data-explorer")) if path not in TO_BE_RUN]
OPENED = [path for path in NOTEBOOKS if path not in TO_BE_RUN and path not in MOVING]


class Visit:
    """One notebook, opened untrusted, then answered wrongly and run, or trusted; what was seen on the way."""

    def __init__(self, notebook, run):
        self.notebook = notebook
        self.pictures = notebook.find(has("<img"))
        self.explorers = notebook.find(has("data-explorer"))
        self.untrusted = [self._look(number) for number in self.explorers]
        self.exercises = notebook.find(lambda cell: cell["metadata"].get("exercise") in WRONG) if run else []
        for number in self.exercises:
            name = notebook.cells()[number]["metadata"]["exercise"]
            notebook.type_into(number, WRONG[name][0])
        if self.exercises:
            notebook.run_all(RUN_SECONDS)
        else:
            notebook.trust()

    def _look(self, number):
        cell = self.notebook.show(number)
        image = cell.locator("img").first
        image.wait_for()
        return {
            "alt": image.get_attribute("alt"),
            "width": image.evaluate(LOADED_WIDTH),
            "caption": cell.locator("figcaption").inner_text(),
            "table": cell.locator("summary").count(),
            "scripts": cell.locator(".cx").count(),
        }

    def explorer(self, number):
        output = self.notebook.show(number).locator("[data-explorer]")
        output.locator(".cx").wait_for()
        return output


@pytest.fixture(scope="module", params=[*TO_BE_RUN, *mostly(MOVING)], ids=name)
def visit(request, desk, open_notebook):
    shutil.copy(request.param, desk)
    return Visit(open_notebook(request.param.name), request.param in TO_BE_RUN)


@pytest.mark.parametrize("path", mostly(OPENED, keep=2), ids=name)
def test_the_others_open_and_show_their_pictures(path, desk, open_notebook):
    shutil.copy(path, desk)
    notebook = open_notebook(path.name)
    (first, *_) = notebook.find(has("<img"))
    image = notebook.show(first).locator("img").first
    image.wait_for()
    assert image.evaluate(LOADED_WIDTH) > 100
    assert notebook.errors() == []


def test_before_it_is_trusted_every_explorer_shows_its_figure(visit):
    assert visit.pictures
    for seen in visit.untrusted:
        assert len(seen["alt"]) >= 40
        assert seen["width"] > 100
        assert seen["caption"]
        assert (seen["table"], seen["scripts"]) == (1, 0)


def test_everything_runs_with_a_wrong_answer_in_place(visit):
    assert visit.notebook.errors() == []
    if not visit.exercises:
        pytest.skip("its cells are run by nbval")
    counts = [cell["execution_count"] for cell in visit.notebook.cells() if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_a_wrong_answer_is_told_which_mistake_it_is(visit):
    if not visit.exercises:
        pytest.skip("no exercise here is answered")
    for number in visit.exercises:
        cell = visit.notebook.cells()[number]
        exercise = registry.get(cell["metadata"]["exercise"])
        knobs = WRONG[exercise.id][1]
        mistake = next(m for m in exercise.misconceptions if m.knobs == knobs)
        shown = re.sub(r"\s+", " ", visit.notebook.show(number).locator(".jp-OutputArea").inner_text())
        assert re.sub(r"[\s`]+", " ", mistake.statement) in re.sub(r"[\s`]+", " ", shown)
        assert "your code here" not in "".join(cell["source"])


def controls(output):
    return output.locator(".cx :is(select, input, button, [tabindex='0']):enabled")


def test_every_explorer_moves_by_keyboard_and_no_key_reaches_the_notebook(visit):
    for number in visit.explorers:
        output = visit.explorer(number)
        first, moved = output.inner_text(), False
        for index in range(controls(output).count()):
            control = controls(output).nth(index)
            control.focus()
            before = visit.notebook.state()
            for key in KEYS:
                control.page.keyboard.press(key)
            assert visit.notebook.state() == before, control.evaluate("node => node.outerHTML")[:300]
            moved |= output.inner_text() != first
        assert moved


def test_every_explorer_moves_by_mouse(visit):
    for number in visit.explorers:
        output = visit.explorer(number)
        before = output.inner_text()
        if (boxes := output.locator("input[type=checkbox]")).count():
            boxes.first.click()
            before = until_changed(output, before)
        sliders = output.locator("input[type=range]:enabled")
        if sliders.count():
            value = float(sliders.first.input_value())
            middle = (float(sliders.first.get_attribute("min")) + float(sliders.first.get_attribute("max"))) / 2
            share = 0.1 if value > middle else 0.9
            # Clicked through its element, which brings it into view: the cell is, but may be taller than the window.
            box = sliders.first.bounding_box()
            sliders.first.click(position={"x": share * box["width"], "y": box["height"] / 2})
        else:
            output.get_by_role("gridcell", selected=False).filter(has_text=re.compile(r"\d")).first.click()
        until_changed(output, before)


def test_live_controls_answer_and_keep_their_keys(visit):
    if not visit.exercises:
        pytest.skip("nothing here is run")
    found = visit.notebook.find(lambda cell: "live(" in "".join(cell["source"]) and has("<img")(cell))
    for number in found:
        cell = visit.notebook.show(number)
        handle = cell.locator(".noUi-handle").first
        handle.wait_for()
        cell.locator(".noUi-handle[data-lm-suppress-shortcuts]").first.wait_for()
        handle.focus()
        before = visit.notebook.state()
        handle.page.keyboard.press("ArrowRight")
        cell.locator(".widget-html-content img").wait_for(timeout=90_000)
        for key in ("b", "a", "d", "d", "x"):
            handle.page.keyboard.press(key)
        assert visit.notebook.state() == before
    assert visit.notebook.errors() == []


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_explorers_are_readable_in_both_themes(visit, theme):
    visit.notebook.use_theme(theme)
    for number in visit.explorers:
        visit.explorer(number)
        results = Axe().run(visit.notebook.page, context="[data-explorer]")
        assert results.violations_count == 0, results.generate_report()


def test_without_the_mark_the_same_keys_do_reach_the_notebook(open_notebook, desk, visit):
    """What these tests guard against does happen: the mark is what keeps the keys away."""
    if not visit.explorers:
        pytest.skip("no explorer here")
    output = visit.explorer(visit.explorers[0])
    control = output.locator("select:enabled").first
    control.evaluate("node => node.removeAttribute('data-lm-suppress-shortcuts')")
    control.focus()
    cells = len(visit.notebook.cells())
    control.page.keyboard.press("b")
    visit.notebook.page.wait_for_function(
        "(n) => jupyterapp.shell.currentWidget.content.model.cells.length > n", arg=cells
    )


def test_a_notebook_saved_after_use_holds_no_widget_state(visit, desk):
    visit.notebook.page.evaluate("jupyterapp.shell.currentWidget.context.save()")
    name = visit.notebook.page.evaluate("jupyterapp.shell.currentWidget.context.path")
    assert "widgets" not in nbformat.read(desk / name, as_version=4).metadata
