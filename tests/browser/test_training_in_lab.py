"""Training in a real JupyterLab: the panel, an interrupt by the keys and by the stop button, and going on."""

import re

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe

SETTING = """import time
from pathlib import Path
import torch
from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.transformer import LanguageModel, TransformerConfig

draw = torch.Generator().manual_seed(0)
data = [{"tokens": torch.randint(8, (4, 9), generator=draw)} for _ in range(5)]
config = TrainingConfig(steps=200, learning_rate=1e-3, checkpoint_every=20, log_every=5, evaluate_every=50)
sizes = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 0, "n_decoder_layers": 1, "dropout": 0.1}

def new_run(folder, pause, **shown):
    def loss(model, batch):
        time.sleep(pause * model.training)
        return tasks.LanguageModelling().loss(model, batch)
    torch.manual_seed(0)
    model = LanguageModel(TransformerConfig(**sizes, vocab_size=8))
    return Run(model, loss, data, config, folder=folder, evaluation=data[:2], **shown)"""
SLOW = "run = new_run(Path('interrupted'), pause=0.5).train(resume=True)"  # slow enough to be interrupted
FAST = SLOW.replace("0.5", "0")
UNINTERRUPTED = """whole = new_run(Path("whole"), 0, shown=Silent()).train()
same = all(torch.equal(a, b) for a, b in zip(run.model.parameters(), whole.model.parameters(), strict=True))
print("same weights:", same, "steps:", run.step, whole.step, "records:", run.history == whole.history)"""

BUSY = "jupyterapp.shell.currentWidget.sessionContext.session.kernel.status !== 'idle'"


@pytest.fixture(scope="module")
def notebook(desk, open_notebook):
    cells = [nbformat.v4.new_code_cell("") for _ in range(3)]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), desk / "training.ipynb")
    return open_notebook("training.ipynb")


def run_cell(notebook, number):
    """Run a cell by Shift+Enter, as a learner does."""
    notebook.show(number).locator(".cm-content").click()
    notebook.page.keyboard.press("Shift+Enter")
    notebook.page.keyboard.press("Escape")


def until_idle(notebook):
    notebook.page.wait_for_function(f"!({BUSY})", timeout=120_000, polling=100)


def output(notebook, number):
    return notebook.show(number).locator(".jp-OutputArea")


def until_step(notebook, number, wanted):
    """Wait until the panel shows that step or a later one, and return it."""
    place = f'.jp-Cell[data-windowed-list-index="{number}"] .jp-OutputArea'
    notebook.page.wait_for_function(
        """([place, wanted]) => {
            const found = /step\\s*([0-9]+) of/.exec(document.querySelector(place)?.innerText ?? '');
            return found && Number(found[1]) >= wanted;
        }""",
        arg=[place, wanted],
        timeout=120_000,
        polling=50,
    )


def interrupted_at(notebook, number):
    """Wait for the sentence of an interrupted run, and for the end of its cell; returns the step."""
    sentence = output(notebook, number).get_by_text(re.compile(r"interrupted at step \d+, checkpoint saved"))
    sentence.wait_for(timeout=120_000)
    until_idle(notebook)
    return int(re.search(r"at step (\d+)", sentence.inner_text())[1])


def test_interrupted_twice_and_resumed_it_ends_as_if_it_had_not_been(notebook):
    for number, code in enumerate((SETTING, SLOW, UNINTERRUPTED)):
        notebook.type_into(number, code)
    run_cell(notebook, 0)
    until_idle(notebook)

    run_cell(notebook, 1)
    until_step(notebook, 1, 12)
    for name in ("JupyterLab Dark", "JupyterLab Light"):
        notebook.use_theme(name)
        results = Axe().run(notebook.page, context='.jp-Cell[data-windowed-list-index="1"] .jp-OutputArea')
        assert results.violations_count == 0, results.generate_report()
    shown = output(notebook, 1).inner_text()
    assert re.search(r"\d+ more steps take about \d+ s\.", shown)
    for word in ("elapsed", "remaining", "tokens/s", "held-out loss", "learning rate", "gradient norm", "memory"):
        assert word in shown
    notebook.page.evaluate("jupyterapp.shell.currentWidget.content.activate()")
    notebook.page.keyboard.press("i")
    notebook.page.keyboard.press("i")
    first = interrupted_at(notebook, 1)
    assert 12 <= first < 200
    assert notebook.errors() == []

    run_cell(notebook, 1)
    until_step(notebook, 1, first + 5)
    assert f"resumed at step {first}" in output(notebook, 1).inner_text()
    notebook.page.locator(".jp-NotebookPanel-toolbar [data-command='notebook:interrupt-kernel']").click()
    second = interrupted_at(notebook, 1)
    assert first < second < 200

    notebook.type_into(1, FAST)
    run_cell(notebook, 1)
    run_cell(notebook, 2)
    notebook.page.wait_for_function(
        "jupyterapp.shell.currentWidget.content.model.cells.get(2).executionCount !== null && !(" + BUSY + ")",
        timeout=120_000,
    )
    ended = output(notebook, 1)
    assert f"resumed at step {second}" in ended.inner_text()
    assert "200 of 200" in ended.inner_text()
    assert len(ended.locator("img").get_attribute("alt")) >= 40
    assert "same weights: True steps: 200 200 records: True" in output(notebook, 2).inner_text()
    assert notebook.errors() == []
