"""`course check` judges an answer in a process of its own: nothing that the answer does reaches the learner's shell."""

import os
import secrets
import sys
import time
from pathlib import Path

import psutil
import pytest
from thorough import mostly

from coursework.desk import isolated
from coursework.desk.store import DeskError

RIGHT = "import torch\ndef causal_mask(T, S):\n    return torch.ones(T, S, dtype=torch.bool).tril(S - T)\n"
FORGED = """import json, os, struct
said = json.dumps({"ready": True, "callable": True, "class": False, "kind": "", "verdict": "right"}).encode()
for descriptor in range(3, 64):
    try:
        os.write(descriptor, (struct.pack("!Q", len(said)) + said) * 100)
    except OSError:
        pass
os._exit(0)
"""
LATE = "def causal_mask(T, S):\n    "
ENDLESS = LATE + "import itertools; return sum(itertools.repeat(0))"


def check(folder: Path, source: str, seconds: float = 120) -> bool:
    path = folder / "answer.py"
    path.write_text(source)
    return isolated.check("causal_mask", None, path, seconds)


def test_what_is_printed_is_cut_and_the_verdict_is_not(tmp_path, capsys):
    assert check(tmp_path, f"print('x\\n' * 20_000_000)\n{RIGHT}")
    said = capsys.readouterr().out
    assert len(said) < 2 * isolated.SHOWN
    assert "the rest of what the answer printed is cut" in said
    assert "Right: causal_mask" in said


@pytest.mark.parametrize(
    ("source", "says"),
    mostly(
        [
            (
                "import os\nos._exit(0)\n" + RIGHT,
                "ended the whole process .with exit code 0. before it could be judged",
            ),
            (
                "import os\n" + LATE + "os._exit(0)",
                "ended the whole process .with exit code 0. before it could be judged",
            ),
            (FORGED, "could not be judged|before it could be judged"),
            ("class Odd(BaseException): pass\nraise Odd('no')", r"line 2: running it raised Odd: no"),
            ("x = " + "-" * 200_000 + "1\n" + RIGHT, "MemoryError|RecursionError"),
            ("x = [0] * 10**10\n" + RIGHT, "MemoryError"),
        ],
        keep=3,
    ),
    ids=["exit at once", "exit in the call", "a report of its own", "an odd error", "too deep to read", "too large"],
)
def test_no_verdict_is_not_right(tmp_path, source, says):
    with pytest.raises(DeskError, match=says):
        check(tmp_path, source)


def test_comparisons_that_the_answer_replaces_are_put_back(tmp_path, capsys):
    patched = "import torch\ntorch.Tensor.__eq__ = lambda a, b: torch.ones(a.shape, dtype=torch.bool)\n"
    assert not check(tmp_path, f"{patched}{LATE}import torch\n    return torch.zeros(T, S, dtype=torch.bool)")
    assert "Not yet: causal_mask" in capsys.readouterr().out


def test_it_ends_at_its_limit(tmp_path):
    began = time.monotonic()
    with pytest.raises(DeskError, match="stopped after 8 s without an end"):
        check(tmp_path, "import time; time.sleep(600)", seconds=8)
    assert time.monotonic() - began < 60


def test_a_call_ends_at_its_own_limit(tmp_path, capsys):
    """Also where no Python instruction is reached any more."""
    began = time.monotonic()
    assert not check(tmp_path, ENDLESS)
    assert "still running after 5 seconds" in capsys.readouterr().out
    assert time.monotonic() - began < 60


@pytest.mark.skipif(os.name != "posix", reason="groups of processes")
@pytest.mark.parametrize("confined", [True, False])
def test_what_the_answer_started_ends_with_it(tmp_path, monkeypatch, confined):
    """Also what has left its session, and whose own parent has ended."""
    if not confined:
        monkeypatch.setenv("COURSE_SANDBOX", "off")
    mark = secrets.token_hex(8)
    sleep = [sys.executable, "-c", "import time; time.sleep(600)", mark]
    again = [sys.executable, "-c", f"import subprocess; subprocess.Popen({sleep!r}, start_new_session=True)", mark]
    started = f"import subprocess\nsubprocess.Popen({sleep!r}, start_new_session=True)\nsubprocess.run({again!r})\n"
    assert check(tmp_path, started + RIGHT)
    assert not left(mark)


def left(mark: str) -> list[int]:
    """The processes that still run with this word in their command."""
    for _ in range(50):
        found = [one.pid for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or ())]
        if not found:
            break
        time.sleep(0.1)
    return found


def test_a_learners_file_stands_in_for_no_module(tmp_path, monkeypatch):
    """One called like a module breaks no right answer, and cannot make a wrong one pass."""
    for name in ("random", "json", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the learner was imported')\n")
    monkeypatch.chdir(tmp_path)
    assert check(tmp_path, RIGHT)
    assert not check(tmp_path, RIGHT.replace("S - T", "0"))
