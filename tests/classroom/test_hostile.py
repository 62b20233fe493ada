"""Notebooks that do harm, handed in: no undeserved pass, nothing of others changed, no process left."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hostile import AT_ONCE, BORROWED, PLACES, drawn, in_a_class, sources
from simulated_class import RIGHT_MASK, mask, write
from test_verify import FUNCTION, notebook
from thorough import mostly, rounds
from typer.testing import CliRunner

from course_lib.files import temporary_folder
from coursework import classroom, cli
from coursework.desk import judge, pen, sandbox


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
        f"open({str(sandbox.ROOT / 'pyproject.toml')!r}).read()[0]",  # a file beside what is needed
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
    report = classroom.judge_class(tmp_path / "class", exercises=["causal_mask"], jobs=1)
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


def judged_in_one_pen(folder: Path, sources: list[str], seconds: float) -> Iterator[dict]:
    """Each answer to `causal_mask`, judged where the next one is."""
    write(folder, [mask("", source, "") for source in sources])
    with pen.Pen(pen.Limits(seconds)) as answering:
        for path in sorted(folder.rglob("*.ipynb")):
            request = {"notebook": str(path), "numbers": [2], "exercise": "causal_mask", "name": "mine"}
            yield judge.judge(request, answering)


ODD = (
    'torch.ones(T, S, dtype=torch.bool, device="meta")',
    "torch.nested.nested_tensor([torch.ones(S), torch.ones(S)])",
    "torch._to_functional_tensor(torch.ones(T, S, dtype=torch.bool))",
    "[list(range(50_000)) for _ in range(4)]",
)
DEEP = (
    "x = '\ud800'",
    "x = '\0'",
    "x = T" + ".a" * 20_000,
    "x = " + "+".join("1" * 20_000),
    "x = " + "-" * 99_999 + "1",
)


def test_whatever_is_handed_in_there_is_a_verdict_or_a_reason(tmp_path):
    """Values that nothing can be read of, and sources that Python cannot read: the judge goes on."""
    sources = [FUNCTION + value + "\n" for value in ODD] + [f"{text}\n{RIGHT_MASK}" for text in DEEP] + [RIGHT_MASK]
    *said, right = judged_in_one_pen(tmp_path, sources, 60)
    for one in said[: len(ODD)]:
        assert one["verdict"] == "wrong", one
        assert one["case"]["differs"] not in ("", "It raises an error."), one
    for one in said[len(ODD) :]:
        assert one["problem"].startswith("mine.ipynb, cell "), one
        assert "Python" in one["problem"], one
    assert right["verdict"] == "right"


UNSAFE = pytest.mark.skipif(not pen.FORKS, reason="signals and parents as on Linux")


@UNSAFE
def test_an_answer_that_stops_processes_is_ended_at_its_limit(tmp_path, monkeypatch):
    """Where there is no sandbox; so are those that follow judged."""
    monkeypatch.setenv("COURSE_SANDBOX", "off")
    monkeypatch.setattr(pen, "ENDING", 1.0)
    stop = "import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\n"
    stopped, goes_on, right = judged_in_one_pen(
        tmp_path, [f"{stop}os.kill(os.getpid(), signal.SIGSTOP)\n{RIGHT_MASK}", stop + RIGHT_MASK, RIGHT_MASK], 6
    )
    assert "stopped after 6 s" in stopped["problem"]
    assert goes_on["verdict"] == right["verdict"] == "right"


@UNSAFE
@pytest.mark.parametrize("by", mostly(["SIGSTOP", "SIGKILL"], keep=1))
def test_a_judge_that_ends_is_started_anew_and_the_command_says_so(tmp_path, monkeypatch, by):
    monkeypatch.setenv("COURSE_SANDBOX", "off")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "rooms"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "rooms"))
    (tmp_path / "rooms").mkdir()
    mark = tmp_path / "mark"
    deed = f"import os, psutil, signal\nos.kill(psutil.Process(os.getppid()).ppid(), signal.{by})\n"
    once = f"import os\nif not os.path.exists({str(mark)!r}):\n    open({str(mark)!r}, 'w')\n    "
    write(
        tmp_path / "class",
        [mask("", source + RIGHT_MASK, "") for source in (f"{once}{deed.replace(chr(10), '; ', 1)}", deed, "")],
    )
    sources = [
        "verify",
        str(tmp_path / "class"),
        "--exercise",
        "causal_mask",
        "--jobs",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(cli.app, sources)
    assert done.exit_code == 2, done.output
    assert "1 of the answers were NOT judged" in done.output
    rows = [who["results"][0] for who in classroom.load(tmp_path / "out" / "report.json")["learners"]]
    assert [row["outcome"] for row in rows] == ["pass", "could not be run", "pass"]
    assert "the process that judges has ended" in rows[1]["reason"]


def test_nothing_stays_behind(tmp_path, monkeypatch):
    """Not the folder of this run, nor one of a process that was killed; but one that somebody holds."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"{pen.FOLDER}k1lled_0").mkdir()
    notebook(tmp_path / "class" / "ada" / "01_attention.ipynb")
    with temporary_folder(pen.FOLDER) as held:
        report = classroom.judge_class(tmp_path / "class", exercises=["causal_mask"])
        assert held.exists() or not pen.FORKS
    assert report["learners"][0]["results"][0]["outcome"] == "pass"
    assert [path.name for path in tmp_path.iterdir()] == ["class"]
