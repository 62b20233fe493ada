"""Interrupts that wait for the end of an update, so that no weight is changed and its neighbour not."""

import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupts"]


IMPATIENT = 2.0  # seconds after an interrupt in which another one is the same, pressed again
_NOTED = b"\nstopping after this update, with a checkpoint; interrupt again, two seconds from now, to stop at once\n"


class Interrupts:
    """Within this context, an interrupt or a request to terminate is noted, not raised; a later interrupt is raised.

    `asked()` says whether there was one; a program says so at once. Outside the main thread, where signals cannot be
    caught, it notes none.
    """

    def __init__(self) -> None:
        self._asked = False
        self._at = 0.0
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """Whether the run should end after this update."""
        return self._asked

    def __enter__(self) -> "Interrupts":
        """Catch the signals from here on."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the signals to whoever had them before."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: set by no Python code
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            if number == signal.SIGINT and time.monotonic() > self._at + IMPATIENT:
                raise KeyboardInterrupt
            return
        self._asked, self._at = True, time.monotonic()
        if sys.stderr is sys.__stderr__ and sys.stderr is not None:  # not in a notebook; print might be interrupted
            os.write(2, _NOTED)
