"""Notebooks that do harm, handed in: no undeserved pass, nothing of others changed, no process left."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from hostile import AT_ONCE, BORROWED, PLACES, drawn, in_a_class, sources
from simulated_class import RIGHT_MASK, mask, write
from thorough import rounds

from coursework.desk import sandbox


def test_no_notebook_gains_or_harms(tmp_path):
    counts, results = in_a_class(BORROWED | drawn(sources(PLACES | AT_ONCE), rounds(6, 200)), tmp_path / "class")
    assert counts["fail"] + counts["could not be run"] == counts["tried"], results
    for what in ("undeserved passes without a remark", "without a reason", "files changed", "processes left"):
        assert counts[what] == 0, (what, results)


@pytest.mark.skipif(not sandbox.usable(Path(tempfile.gettempdir())), reason="no sandbox is permitted here")
def test_in_a_sandbox_files_and_the_network_are_out_of_reach(tmp_path):
    """What each line finds decides whether a right answer is made wrong."""
    looks = [
        f"os.listdir({str(tmp_path)!r})[0]",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(Path(sandbox.__file__))!r}, 'a')",
        "open('/dev/shm/new', 'w')",
        "os.listdir(os.path.join(os.path.dirname(coursework.__file__), 'exercises', 'bank'))[0]",
        "socket.create_connection(('127.0.0.1', 1), 1) if len(socket.if_nameindex()) > 1 else 1 / 0",
        "ctypes.CDLL(None).umount(os.fsencode(os.getcwd())) == 0 or 1 / 0",
    ]
    head = "import ctypes, os, socket\nimport coursework\n"
    tried = [
        f"{head}try:\n    {look}\n    raise SystemExit\nexcept Exception:\n    pass\n{RIGHT_MASK}" for look in looks
    ]
    tried.append("open('mine', 'w').write('x')\n" + RIGHT_MASK)
    write(tmp_path / "class", [mask("", source, "pass") for source in tried])
    from coursework.classroom import Limits, judge_class

    report = judge_class(tmp_path / "class", exercises=["causal_mask"], jobs=1, limits=Limits())
    outcomes = [who["results"][0]["outcome"] for who in report["learners"]]
    assert outcomes == ["pass"] * len(tried), list(zip(outcomes, tried, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_judge_and_answers_end_with_the_command(tmp_path, how):
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    write(tmp_path / "class", [mask("", "while True:\n    pass\n" + RIGHT_MASK, "")])
    command = [
        sys.executable,
        "-m",
        "coursework.cli",
        "verify",
        str(tmp_path / "class"),
        "--out",
        str(tmp_path / "out"),
    ]
    environment = {**os.environ, "TMPDIR": str(rooms)}
    started = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def busy() -> list[int]:
        found = psutil.process_iter(["cmdline"])
        return [one.pid for one in found if any(str(rooms) in word for word in one.info["cmdline"] or ())]

    def leads(pid: int) -> bool:
        try:
            return os.getsid(pid) == pid
        except ProcessLookupError:
            return False

    def wait(until) -> bool:
        end = time.monotonic() + 120
        while not (found := until()) and time.monotonic() < end:
            time.sleep(0.1)
        return bool(found)

    assert wait(lambda: sum(map(leads, busy())) >= 2)  # the process that is forked from, and an answer
    started.send_signal(how)
    started.wait(20)
    assert wait(lambda: not busy())
    done = subprocess.run([*command, "--exercise", "padding_mask"], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(rooms.iterdir())
