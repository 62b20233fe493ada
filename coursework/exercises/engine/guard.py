"""Running code that may never end or ask for all memory: it is stopped, and the process goes on.

A watchdog thread raises an exception inside the guarded thread when a call takes too long. That works in any thread and
on any system, between two Python instructions. A main thread that waits in a system call (`time.sleep`) is woken by an
interrupt signal as well. Memory is capped by the operating system where it can (Linux), else by watching.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import torch

from coursework.exercises.spec import FOLDER

SECONDS = 5.0
"""Processor time for one call of the learner's function. The cases are tiny: only a runaway loop gets near it."""

PATIENCE = 4
"""So many times `SECONDS` may pass on the clock, for other programs may be using the processor."""

MEMORY = 1 << 30
"""Bytes that the learner's function may allocate on top of what the process already uses."""

CUDA_MEMORY = 8 << 30
"""Bytes on top of that where there is a CUDA device, whose first use maps much host memory."""


TIMERS = {getattr(signal, "SIGPROF", 0), getattr(signal, "SIGALRM", 0)} - {0}
"""The signals that end an expendable process whose call has overrun its limits."""

GRACE = 2.0
"""Seconds that an expendable process has beyond the limits, in which Python itself can stop the call."""

_CHANGES = {
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.utime"),
    *("os.chmod", "os.chown", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.forkpty"),
    *("os.kill", "os.killpg", "subprocess.Popen", "shutil.rmtree", "shutil.move"),
    *("socket.connect", "socket.bind", "socket.sendto"),
}
"""What is refused to an answer that was changed: by the names of Python's audit events."""

expendable = False
"""Whether this process may be ended with the call: so is a loop in C, which Python itself cannot stop."""

_guarded: set[int] = set()
"""The threads in which a guarded call runs."""


def _end_copy() -> None:
    """End a process that a guarded call has made as a copy of this one: nothing would watch or stop it."""
    if threading.get_ident() in _guarded:
        os._exit(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_copy)


class RanAway(Exception):
    """The guarded call did not end in time."""


class OutOfMemory(Exception):
    """The guarded call asked for more memory than the cap."""


class _Stop(BaseException):
    """Raised inside the guarded call; not an Exception, so that `except Exception` does not swallow it."""


class Guard:
    """A context in which `call` runs a function under the limits.

    Args:
        seconds: of processor time for each call, and `PATIENCE` times as much on the clock; `SECONDS` unless given.
        memory: bytes on top of what the process uses when the context is entered; `MEMORY` unless given.
    """

    def __init__(self, seconds: float | None = None, memory: int | None = None) -> None:
        self.seconds = SECONDS if seconds is None else seconds
        usual = MEMORY + (CUDA_MEMORY if torch.cuda.is_available() else 0)
        self.memory = usual if memory is None else memory
        self._closing = threading.Event()
        self._running = False  # a guarded call is under way
        self._firing = False  # the watchdog is about to interrupt it
        self._fired: type[Exception] | None = None
        self._started = 0.0, 0.0  # on the clock, in processor time
        self._signalled = 0.0
        self._resident: int | None = None

    def __enter__(self) -> Guard:
        """Cap the memory and start the watchdog."""
        self._limits = contextlib.ExitStack()
        capped = self._limits.enter_context(memory_cap(self.memory))
        self._resident = None if capped else psutil.Process().memory_info().rss + self.memory
        self._target = threading.get_ident()
        self._processor_time = _clock_of(self._target)
        self._watchdog = threading.Thread(target=self._watch, name="exercise-guard", daemon=True)
        self._watchdog.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stop the watchdog and lift the cap."""
        self._closing.set()
        self._watchdog.join()
        self._limits.close()

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return function(*args, **kwargs); raise RanAway or OutOfMemory when a limit is passed.

        Everything else that it raises comes through, by its name where it is no Exception: an interrupt by the learner.
        """
        self._fired = None
        self._started = time.monotonic(), self._processor_time()
        try:
            self._running = True
            _guarded.add(self._target)
            _set_timers(self.seconds)
            try:
                return function(*args, **kwargs)
            except (MemoryError, RuntimeError) as problem:
                if isinstance(problem, MemoryError) or "can't allocate memory" in str(problem):
                    raise OutOfMemory from None
                raise
            finally:
                self._settle()
        except Exception:
            raise
        except BaseException as problem:  # an answer may leave by exit(), and nobody interrupts a copy of the process
            if self._fired is None:
                if isinstance(problem, _Stop | KeyboardInterrupt) and not expendable:
                    raise
                named = type(type(problem).__name__, (Exception,), {})(*vars(BaseException)["args"].__get__(problem))
                raise named.with_traceback(problem.__traceback__) from None
        while True:  # a second interrupt may still be on its way; it must not leave this function
            try:
                self._settle()
                break
            except (_Stop, KeyboardInterrupt):
                continue
        raise self._fired

    def _settle(self) -> None:
        """End the call so that no interrupt can come later. Holds no lock: an interrupt here may not leave one behind.

        The watchdog announces (`_firing`) before it looks at `_running`; this clears `_running` before it looks at
        `_firing`. So either the watchdog sees that the call has ended, or this waits and lets the interrupt come. It is
        not taken back: Python 3.11 goes on looking for one that was, and for ever as soon as anything traces.
        """
        self._running = False
        _set_timers(0)
        _guarded.discard(self._target)
        while self._firing:
            time.sleep(0)
        if self._fired is not None:
            with contextlib.suppress(_Stop):
                _raise_in_thread(self._target, _Stop)  # in place of one that is on its way
                while True:
                    time.sleep(0)

    def _watch(self) -> None:
        """Interrupt a call that passes a limit, again and again until it has ended."""
        while not self._closing.wait(0.005 if self._fired else 0.05):
            self._firing = True
            if self._running:
                if self._fired or self._over_time():
                    self._interrupt(self._fired or RanAway)
                elif self._resident is not None and psutil.Process().memory_info().rss > self._resident:
                    self._interrupt(OutOfMemory)
            self._firing = False

    def _over_time(self) -> bool:
        clock, processor = self._started
        if time.monotonic() - clock >= PATIENCE * self.seconds:
            return True
        return self._processor_time() - processor >= self.seconds

    def _interrupt(self, reason: type[Exception]) -> None:
        if self._fired is None:
            self._fired, self._signalled = reason, time.monotonic()
        # Half a second without effect: the thread waits in a system call, where only a signal reaches it.
        asleep = time.monotonic() > self._signalled + 0.5
        if asleep and self._target == threading.main_thread().ident and hasattr(signal, "pthread_kill"):
            self._signalled = time.monotonic()
            signal.pthread_kill(self._target, signal.SIGINT)
        else:
            _raise_in_thread(self._target, _Stop)


def change_nothing_outside() -> None:
    """From here on an expendable process leaves files, processes and the network alone.

    The search for a mistake runs changed answers, in which what stood behind a condition is reached.
    """
    if expendable:
        sys.addaudithook(_refuse)


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = args
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        if not writes or not isinstance(path, str | bytes | os.PathLike):
            return
    elif event not in _CHANGES:
        return
    if not (args and isinstance(args[0], str | bytes | os.PathLike) and _is_own(os.fsdecode(args[0]))):
        raise PermissionError(f"{event}: not while a mistake is looked for")


def _is_own(path: str) -> bool:
    """Whether a path lies in a folder that an exercise has made for its answer."""
    real, mine = os.path.realpath(path), os.path.join(os.path.realpath(tempfile.gettempdir()), FOLDER)
    return real.startswith(mine) or real == os.devnull


def _set_timers(seconds: float) -> None:
    """Have an expendable process ended so long from now, and by the clock after `PATIENCE` times as long; 0: never."""
    if expendable and hasattr(signal, "setitimer"):
        for timer, name, times in ((signal.ITIMER_PROF, "SIGPROF", 1), (signal.ITIMER_REAL, "SIGALRM", PATIENCE)):
            if seconds and threading.current_thread() is threading.main_thread():
                signal.signal(getattr(signal, name), signal.SIG_DFL)
            signal.setitimer(timer, seconds and times * seconds + GRACE)


def _clock_of(thread: int) -> Callable[[], float]:
    """Processor time of one thread, of the whole process where the system does not tell them apart."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)


def _raise_in_thread(thread: int, exception: type[BaseException]) -> None:
    """Raise `exception` in the thread at its next Python instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


@contextlib.contextmanager
def memory_cap(extra: int) -> Iterator[bool]:
    """Let the process grow by at most `extra` bytes of writable memory; yields whether the system does that."""
    try:
        import resource

        used = psutil.Process().memory_info().data  # Linux only; elsewhere the system does not enforce the limit
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + extra
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        if soft != resource.RLIM_INFINITY:
            limit = min(limit, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    except (ImportError, AttributeError, OSError, ValueError):
        yield False
        return
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
