"""Answers that do harm, in a kernel: each is judged, and the kernel goes on."""

import sys
import time

import pytest
import torch
from hostile import BORROWED, PLACES, drawn, in_a_kernel, sources
from thorough import rounds

from coursework import exercises as ex
from coursework.exercises.engine.apart import can_fork

SEPARATE = sys.platform == "linux" and not torch.cuda.is_available()


@pytest.mark.skipif(not SEPARATE, reason="no copy of the process can be made here")
def test_nothing_ends_or_hangs_the_kernel():
    assert can_fork() or sys.gettrace() or sys.getprofile()
    counts = in_a_kernel(drawn(sources(PLACES), rounds(8, 200)))
    assert counts["tried"] == counts["Not yet"] + counts["not judged"], counts
    assert not any(counts[name] for name in ("Right", "raised", "kernels lost", "hangs", "processes left")), counts


def checked(body, capsys, monkeypatch, tmp_path):
    """What a check says about a lookup with this body, in a notebook in which `input` waits for an answer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda prompt="": time.sleep(900))
    made = {"torch": torch}
    exec(f"def soft_lookup(query, keys, values):\n    {body}", made)
    ex.soft_lookup.check(made["soft_lookup"])
    return capsys.readouterr().out


@pytest.mark.skipif(not SEPARATE, reason="no copy of the process can be made here")
@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit", "GeneratorExit", "Odd", "EOFError"])
def test_what_an_answer_raises_is_said(name, capsys, monkeypatch, tmp_path):
    odd = "type('Odd', (KeyboardInterrupt,), {'__str__': lambda self: 1 / 0})"
    body = "input('?')" if name == "EOFError" else f"raise {odd if name == 'Odd' else name}"
    assert f"It raises {name}" in checked(body, capsys, monkeypatch, tmp_path)


MODE = "type('M', (torch.overrides.TorchFunctionMode,), {'__torch_function__': lambda *a: 1 / 0})().__enter__()"
LEFT = [
    "import sys; sys.stdout.close()",
    MODE,
    "torch.set_default_device('meta')",
    f"torch.set_default_device('meta'); {MODE}",
]


@pytest.mark.skipif(not SEPARATE, reason="no copy of the process can be made here")
@pytest.mark.parametrize("left", ["", *LEFT])
def test_a_right_answer_may_be_compiled_and_leave_things_behind(left, capsys, monkeypatch, tmp_path):
    body = f"right = torch.compile(lambda: (keys @ query).softmax(0) @ values)(); {left}\n    return right"
    assert "Right: soft_lookup" in checked(body, capsys, monkeypatch, tmp_path)


def test_there_are_enough_of_many_kinds():
    assert len(sources(PLACES)) >= 120
    assert len(BORROWED) >= 6
