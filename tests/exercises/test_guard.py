"""Code that never ends or takes all memory is stopped in every thread, and nothing of it stays behind."""

import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from coursework.exercises.engine.guard import Guard, OutOfMemory, RanAway

LINUX = sys.platform.startswith("linux")


def spin():
    while True:
        pass


def spin_stubbornly():
    while True:
        try:
            sum(range(100))
        except BaseException:
            continue


def tensors_for_ever():
    x = torch.ones(3)
    while True:
        x = x * 1.0


ENDLESS = [spin, spin_stubbornly, tensors_for_ever]


@pytest.mark.parametrize("function", [*ENDLESS, lambda: time.sleep(60)])
def test_an_endless_call_is_stopped(function):
    start = time.monotonic()
    with Guard(seconds=0.1) as guard, pytest.raises(RanAway):
        guard.call(function)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("function", ENDLESS)
def test_an_endless_call_is_stopped_in_another_thread(function):
    seen = []

    def work():
        with Guard(seconds=0.1) as guard:
            try:
                guard.call(function)
            except RanAway:
                seen.append("stopped")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert seen == ["stopped"]


def test_calls_that_end_just_at_the_limit_leave_no_stray_interrupt():
    ended = stopped = 0
    with Guard(seconds=0.025) as guard:  # on the clock four times as long
        for step in range(40):
            until = time.monotonic() + 0.08 + 0.002 * step

            def wait(until=until):
                while time.monotonic() < until:
                    time.sleep(0)
                return "ended"

            try:
                assert guard.call(wait) == "ended"
                ended += 1
            except RanAway:
                stopped += 1
            for _ in range(2000):  # a stray interrupt would strike here
                pass
    assert ended + stopped == 40
    assert ended > 0


def test_results_and_errors_come_through():
    with Guard() as guard:
        assert guard.call(lambda a, b=2: a + b, 1, b=4) == 5
        with pytest.raises(ZeroDivisionError):
            guard.call(lambda: 1 / 0)
        with pytest.raises(RuntimeError, match="size"):
            guard.call(lambda: torch.ones(2) + torch.ones(3))
        with pytest.raises(Exception, match="done") as left:  # no Exception, and so one of its name
            guard.call(sys.exit, "done")
        assert left.typename == "SystemExit"


def test_an_interrupt_by_the_learner_comes_through():
    def interrupted():
        signal.raise_signal(signal.SIGINT)
        spin()

    with Guard(seconds=30) as guard, pytest.raises(KeyboardInterrupt):
        guard.call(interrupted)


@pytest.mark.skipif(not LINUX, reason="the system's own limit on memory is enforced on Linux only")
@pytest.mark.parametrize(
    "function",
    [
        lambda: torch.ones(25_000_000_000),
        lambda: [0] * 10**11,
        lambda: [bytearray(1 << 24) for _ in range(10**6)],
        lambda: torch.zeros(3).expand(10**9, 3).contiguous(),
    ],
)
def test_memory_is_capped_and_the_cap_is_lifted_afterwards(function):
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with Guard(memory=1 << 28) as guard, pytest.raises(OutOfMemory):
        guard.call(function)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert torch.ones(1 << 27).sum() == 1 << 27  # half a gibibyte: more than the cap was


def test_memory_is_watched_where_the_system_does_not_cap_it(monkeypatch):
    import contextlib

    from coursework.exercises.engine import guard as module

    monkeypatch.setattr(module, "memory_cap", lambda extra: contextlib.nullcontext(False))

    def hoard():
        kept = []
        while len(kept) < 4000:
            kept.append(bytearray(b"1") * (1 << 20))
        time.sleep(30)

    with Guard(memory=1 << 27) as guard, pytest.raises(OutOfMemory):
        guard.call(hoard)


SCRIPT = """
import time
from coursework import exercises as ex
from coursework.exercises.engine import guard

guard.SECONDS = 0.3

def causal_mask(T, S):
    while True:
        pass

kept = ex.causal_mask.check(causal_mask)
print(kept.__module__)
print("and on")
"""


@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_runaway_answer_does_not_stop_a_plain_script(where, tmp_path):
    text = SCRIPT
    if where == "thread":
        body = "\n".join("    " + line for line in SCRIPT.splitlines())
        text = f"import threading\ndef main():\n{body}\nt = threading.Thread(target=main)\nt.start()\nt.join()\n"
    script = tmp_path / "answer.py"
    script.write_text(text)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "It was still running after 0.3 seconds and was stopped." in done.stdout
    assert done.stdout.endswith("coursework.exercises.bank.causal_mask\nand on\n")


TRACED = """
import sys
from coursework.exercises.engine.guard import Guard, RanAway

def endless():
    while True:
        pass

with Guard(seconds=0.05) as guard:
    try:
        guard.call({call})
    except RanAway:
        pass
seen = []
sys.settrace(lambda frame, event, argument: seen.append(event))
(lambda: None)()
sys.settrace(None)
print(seen)
"""


@pytest.mark.parametrize("call", ["int", "endless"])
def test_a_debugger_works_after_a_check(call):
    """In Python 3.11 an interrupt that was taken back hangs whatever traces: debuggers, profilers, coverage."""
    code = TRACED.format(call=call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "call" in done.stdout
