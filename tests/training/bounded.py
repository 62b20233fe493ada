"""Programs and forked processes that cannot hang a test: each has its limit, and says where it was when that passed."""

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import time
import traceback

import psutil

# The address of this machine is given: torchrun asks for that of its name, and waits long where nobody knows it.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
FAILED = 2  # exit code of a forked job that raised


@contextlib.contextmanager
def program(command, **options):
    """Start a program; at the end of the context it is gone, with all that it started."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, text=True, start_new_session=True, **pipes, **options)
    try:
        yield process
    finally:
        kill(process)
        process.communicate(timeout=30)


def kill(process):
    """Kill a program and all that it started, also what outlived it, so that nobody holds its output open."""
    started = []
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)  # torchrun's have sessions of their own
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def output_of(process, seconds):
    """Wait for a program's end, and return what it printed; TimeoutError with that text if it takes longer."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        kill(process)
        text = process.communicate(timeout=30)[0]
        raise TimeoutError(f"{process.args} did not end in {seconds} s; it had printed:\n{text[-5000:]}") from None


def fork(job, seconds=120):
    """Run a job in a forked process that has so many seconds, and return its id.

    It exits with 0, with 1 if it was interrupted, or with FAILED.
    """
    number = os.fork()
    if number:
        return number
    try:
        # It then prints where each thread is, and exits with 1. The parent must not have such a limit: its thread does
        # not exist here, but would be waited for.
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        job()
        os._exit(0)
    except KeyboardInterrupt:
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        os._exit(FAILED)


def wait_for(condition, seconds=240):
    """Wait until a condition holds, and return its value; TimeoutError after so many seconds."""
    began = time.monotonic()
    while not (found := condition()):
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"waited {seconds} s in vain")
        time.sleep(0.02)
    return found
