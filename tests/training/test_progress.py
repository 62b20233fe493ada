"""What a run shows: a panel, at most five changes a second, that freezes; lines elsewhere; an interrupted cell."""

import io
import re
import time
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from training_samples import batches, small_run

from course_lib.training import Lines
from course_lib.training.progress import Panel, Progress, duration, for_this_place


class Front:
    """Stands in for a notebook's front end: keeps what is displayed."""

    def __init__(self):
        self.shown, self.times = [], []

    def __call__(self, content, display_id=None):
        self.update(content)
        return self

    def update(self, content):
        self.shown.append(content.data)
        self.times.append(time.monotonic())


@pytest.fixture
def front(monkeypatch):
    import IPython.display

    front = Front()
    monkeypatch.setattr(IPython.display, "display", front)
    return front


def test_the_panel_shows_what_matters_and_freezes(front, tmp_path, capsys):
    run = small_run(
        tmp_path, steps=60, evaluate_every=30, evaluation=batches(2, seed=9), checkpoint_every=20, shown=Panel()
    )
    run.train()
    words = ("remaining", "tokens/s", "held-out loss", "learning rate", "gradient norm", "memory", "last checkpoint")
    middle, last = front.shown[len(front.shown) // 2], front.shown[-1]
    assert all(word in middle for word in words)
    assert any(re.search(r"\d+ more steps take about \d+ s", html) for html in front.shown)
    assert "60 of 60" in last
    assert not any(word in last for word in ("more steps take", "remaining", "last checkpoint"))
    alt = re.search(r'<img alt="([^"]{40,})"', last)[1]
    assert f"{run.history[-1]['evaluation']:.3f}" in alt
    assert len(last) < 100_000
    assert "http" not in last
    changes = [b - a for a, b in zip(front.times[1:-2], front.times[2:-2], strict=False)]
    assert all(gap > 0.15 for gap in changes)
    assert capsys.readouterr() == ("", "")


def test_the_panel_says_that_it_was_interrupted(front):
    panel = Panel()
    panel.say("interrupted at step 3, <checkpoint> saved")
    assert "interrupted at step 3, &lt;checkpoint&gt; saved" in front.shown[-1]


def progress(**changes):
    numbers = {"step": 4, "steps": 10, "loss": 1.5, "rate": 1e-3, "gradient_norm": 2.0, "tokens": 100}
    times = {"tokens_per_second": 50.0, "seconds": 2.0, "remaining": 3.0, "checkpoint_age": None}
    return Progress(**{**numbers, **times, **changes})


def test_lines_with_clocks_estimate_once(capsys):
    lines = Lines(clocks=True)
    for step in (3, 4, 10):
        lines.update(progress(step=step, evaluates=True, evaluation=1.25 if step == 10 else None))
    out = capsys.readouterr().out.splitlines()
    assert out == ["7 more steps take about 3 s.", "step 10 of 10  loss 1.5000  held-out 1.2500  50 tokens/s  2 s"]


def test_without_evaluations_there_is_a_line_each_tenth(capsys):
    lines = Lines()
    for step in range(1, 31):
        lines.update(progress(step=step, steps=30))
    assert len(capsys.readouterr().out.splitlines()) == 10


@pytest.mark.parametrize(("seconds", "words"), [(3.4, "3 s"), (99, "99 s"), (600, "10 min"), (7200, "2.0 h")])
def test_durations_are_short(seconds, words):
    assert duration(seconds) == words


def test_outside_a_notebook_there_are_lines():
    assert isinstance(for_this_place(), Lines)


def test_the_terminal_moves_a_bar_and_keeps_lines():
    from rich.console import Console

    from coursework.commands.terminal import Terminal

    terminal = Terminal()
    terminal.console = terminal.bar.live.console = Console(file=io.StringIO(), force_terminal=True, width=150)
    for step in range(1, 11):
        terminal.update(progress(step=step, evaluation=1.25 if step == 5 else None))
    terminal.end([])
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.console.file.getvalue())
    assert "6 more" not in text
    assert "9 more steps take about 3 s." in text
    assert "step 5: loss 1.5000, held-out loss 1.2500" in text
    assert "50 tokens/s" in text


CELL = """
import sys
sys.path.insert(0, {path!r})
from training_samples import batches, small_run, small_model, weights_hash
from course_lib.training.progress import for_this_place
run = small_run({folder!r}, steps={steps}, log_every=1000, shown=for_this_place())
print("begin")
run.train(resume=True)
print("after", run.step)
"""


def test_an_interrupted_cell_ends_without_a_traceback(tmp_path):
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(extra_arguments=["--HistoryManager.enabled=False"])
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        cell = CELL.format(path=str(Path(__file__).parent), folder=str(tmp_path), steps=10**6)
        texts, errors = run_cell(
            client, cell, lambda text: "begin" in text and (time.sleep(1), manager.interrupt_kernel())
        )
        assert not errors
        step = int(re.search(r"interrupted at step (\d+), checkpoint saved\nafter \1", texts)[1])
        assert step > 0
        again, errors = run_cell(client, f"run.train(until={step} + 2); print(run.step, run.interrupted)", None)
        assert not errors
        assert f"{step + 2} False" in again
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run_cell(client, code, when_printed):
    """Execute a cell; returns what it printed, and its errors and everything on stderr."""
    request, texts, errors, told = client.execute(code), "", [], False
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and content["name"] == "stdout":
            texts += content["text"]
            if when_printed and not told:
                told = bool(when_printed(texts))
        elif kind == "error" or (kind == "stream" and content["name"] == "stderr"):
            errors.append(content)
        elif kind == "status" and content["execution_state"] == "idle":
            return texts, errors


def test_a_run_prints_nothing_on_stderr(capsys):
    small_run(shown=for_this_place()).train()
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "step" in captured.out
