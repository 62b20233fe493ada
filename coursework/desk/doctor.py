"""Look at what the course needs on this machine and say what to do about each thing that is missing."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from course_lib.files import write_atomic
from coursework.desk.finding import course_notebooks, name_in, notebooks, saving_is_off
from coursework.desk.notebooks import DamagedNotebook, edition_of, read_notebook, stamp_of
from coursework.desk.store import Desk, DeskError, reason

GIB = 2**30
_KERNEL_SECONDS = 60
_NETWORK_HOSTS = ("pypi.org", "raw.githubusercontent.com")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")


@dataclass(frozen=True)
class Finding:
    """One line of the report; `needed` tells a failure from something that only some parts of the course use."""

    what: str
    ok: bool
    value: str
    advice: str = ""
    needed: bool = True


def examine(desk: Desk | None, *, network_seconds: float = 2.0, kernel: bool = True) -> Iterator[Finding]:
    """Yield the findings one after the other; none of them raises. What waits for others is begun beside them."""
    parts: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("Python", _python),
        ("packages", _packages),
        ("torch", _torch),
        ("processors and memory", _machine),
        ("course", lambda: _course(desk)),
        ("disk", lambda: _disk(desk)),
        ("browser", _browser),
        ("network", lambda: _network(network_seconds)),
    ]
    if kernel:
        parts.append(("kernel", _kernel))
    with ThreadPoolExecutor() as pool:
        waiting = {what: pool.submit(list, part()) for what, part in parts if what in ("network", "kernel")}
        for what, part in parts:
            try:
                yield from waiting[what].result() if what in waiting else part()
            except Exception as problem:  # a broken installation is what the doctor is for
                yield Finding(what, False, f"{type(problem).__name__}: {problem}", "Run `make setup` again.")


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] < (3, 14)
    yield Finding("Python", fits, f"{version} on {platform.platform(terse=True)}", "Use Python 3.11, 3.12 or 3.13.")
    inside = sys.prefix != sys.base_prefix or "CONDA_PREFIX" in os.environ
    yield Finding(
        "environment",
        inside,
        "a virtual environment" if inside else "the system's Python",
        "`make setup` makes one in .venv; then use .venv/bin/course.",
        needed=False,
    )


def _packages() -> Iterator[Finding]:
    """The dependencies that the installed package declares, so that this list is kept in one place."""
    wrong, seen = [], []
    for requirement in map(Requirement, importlib.metadata.requires("course-lib") or []):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "course"}):
            continue  # for tests, or for another system
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        seen.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    yield Finding("packages", not wrong, "; ".join(wrong) or ", ".join(seen), "Run `make setup` again.")


def _torch() -> Iterator[Finding]:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    if getattr(torch.version, "hip", None):
        build = f"ROCm {torch.version.hip}"
    yield Finding("torch", True, f"{torch.__version__} ({build})")
    result = (torch.ones(2, 3) @ torch.ones(3, 4)).sum().item()
    yield Finding("torch computes", result == 24.0, f"a product of ones sums to {result:g}, expected 24")
    yield _device(torch)
    compiler = shutil.which("g++") or shutil.which("clang++") or shutil.which("cl")
    yield Finding(
        "C++ compiler",
        compiler is not None,
        compiler or "none",
        "Only torch.compile needs one; on Debian and Ubuntu: apt-get install g++.",
        needed=False,
    )


def _device(torch: Any) -> Finding:
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory / GIB
        return Finding("device", True, f"{torch.cuda.get_device_name(0)}, {memory:.0f} GiB")
    if torch.backends.mps.is_available():
        return Finding("device", True, "Apple GPU (MPS)")
    if shutil.which("nvidia-smi") and not torch.version.cuda:
        advice = "There is an NVIDIA driver, but this torch is built for the CPU; the course runs, only slower."
        return Finding("device", False, "CPU", advice, needed=False)
    return Finding("device", True, "CPU (the course needs no GPU)")


def _machine() -> Iterator[Finding]:
    import psutil
    import torch

    memory = psutil.virtual_memory()
    text = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"
    yield Finding("memory", memory.available > 2 * GIB, text, "Close other programs: the notebooks need about 2 GiB.")
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    text = f"{torch.get_num_threads()} torch threads on {cores} usable cores, OMP_WAIT_POLICY {policy}"
    advice = f"Set OMP_NUM_THREADS={cores}: more threads than cores slow each other down."
    yield Finding("threads", torch.get_num_threads() <= cores, text, advice, needed=False)


def _course(desk: Desk | None) -> Iterator[Finding]:
    found: list[Path] = []
    try:
        folder = course_notebooks()
        found = notebooks(folder)
        yield Finding("course notebooks", True, f"{len(found)} in {folder}")
    except DeskError as problem:
        yield Finding("course notebooks", False, str(problem), "Install the package from a checkout of the course.")
    if desk is None:
        yield Finding("your folder", False, "none from here", "Run `course start`.", needed=False)
        return
    old, damaged = [], []
    for path in found:
        name = f"{name_in(folder, path)}.ipynb"
        mine = desk.folder / name
        try:
            if not mine.exists() or stamp_of(read_notebook(mine)) != edition_of(read_notebook(path)):
                old.append(name)
        except DamagedNotebook as problem:
            damaged.append(str(problem))
    yield Finding("your notebooks", not damaged, "; ".join(damaged) or "readable", "Run `course rescue`.")
    text = f"older or missing: {', '.join(old)}" if old else "of the present edition"
    yield Finding("their edition", not old, text, "Run `course update`.", needed=False)
    saving = not saving_is_off()
    text = "answers are saved" if saving else "the variable CI is set, so checks save nothing"
    yield Finding("saving", saving, text, "Unset CI to have your answers saved.", needed=False)


def _disk(desk: Desk | None) -> Iterator[Finding]:
    folder = desk.folder if desk else Path.cwd()
    free = shutil.disk_usage(folder).free / GIB
    yield Finding("disk space", free > 0.5, f"{free:.1f} GiB free at {folder}", "Free at least 0.5 GiB there.")
    trial = (desk.private if desk else Path(tempfile.gettempdir())) / f"write-test-{os.getpid()}"
    try:
        write_atomic(trial, "written and read back")
        ok = trial.read_text(encoding="utf-8") == "written and read back"
        text = f"a file in {trial.parent} was written and read back"
    except OSError as problem:
        ok, text = False, f"{trial.parent} cannot be written: {reason(problem)}"
    finally:
        with contextlib.suppress(OSError):
            trial.unlink()
    yield Finding("write test", ok, text, "Answers cannot be saved; free space, or `course start --folder` elsewhere.")
    if desk is None:
        return
    try:
        with desk.lock(2.0):
            locked = "free"
    except OSError as problem:
        locked = reason(problem)
    yield Finding("lock", locked == "free", locked, "Another program is writing there; close it and try again.")


def _browser() -> Iterator[Finding]:
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    advice = "Any browser shows the notebooks; Chromium is only needed for the browser tests (`make test` skips them)."
    yield Finding("chromium", found is not None, found or "not found", advice, needed=False)


def _network(seconds: float) -> Iterator[Finding]:
    reached: list[str] = []

    def ask(host: str) -> None:
        import requests  # it knows about proxies

        with contextlib.suppress(requests.RequestException):
            requests.head(f"https://{host}/", timeout=seconds)
            reached.append(host)

    # In threads, because looking up a name has a time-out of its own, of many seconds.
    threads = [threading.Thread(target=ask, args=(host,), daemon=True) for host in _NETWORK_HOSTS]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds + 0.5
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    text = f"reached {', '.join(sorted(reached))}" if reached else f"offline: no answer within {seconds:g} s"
    advice = "The course runs offline; only opt-in downloads and `pip install` need a network."
    yield Finding("network", bool(reached), text, advice, needed=False)


def _kernel() -> Iterator[Finding]:
    """Start the kernel that the notebooks ask for and let it compute."""
    if importlib.util.find_spec("jupyterlab") is None:
        yield Finding("JupyterLab", False, "not installed", "Run `make setup` again.")
        return
    yield Finding("JupyterLab", True, importlib.metadata.version("jupyterlab"))
    script = (
        "import json\nfrom jupyter_client.manager import start_new_kernel\n"
        f"m, c = start_new_kernel(kernel_name='python3', startup_timeout={_KERNEL_SECONDS})\n"
        "try:\n    r = c.execute_interactive('import sys', user_expressions={'p': 'sys.executable'},"
        f" timeout={_KERNEL_SECONDS}, output_hook=lambda m: None)\n"
        "    print(json.dumps(r['content']['user_expressions']['p']['data']['text/plain']))\n"
        "finally:\n    m.shutdown_kernel(now=True)\n"
    )
    advice = "Run `python -m ipykernel install --sys-prefix` in the course's environment."
    try:
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, errors="replace", timeout=2 * _KERNEL_SECONDS
        )
    except subprocess.TimeoutExpired:
        yield Finding("kernel", False, f"no answer within {2 * _KERNEL_SECONDS} s", advice)
        return
    if run.returncode:
        yield Finding("kernel", False, (run.stderr.strip().splitlines() or ["failed"])[-1], advice)
        return
    python = json.loads(run.stdout).strip("'\"")
    same = os.path.realpath(os.path.dirname(python)) == os.path.realpath(os.path.dirname(sys.executable))
    text = f"answers, runs {python}"
    yield Finding("kernel", same, text if same else f"{text}, not {sys.executable}", advice)
