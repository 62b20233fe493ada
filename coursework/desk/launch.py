"""Starts JupyterLab at the desk."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from coursework.desk.answers import places
from coursework.desk.finding import is_called, name_in, notebooks
from coursework.desk.notebooks import DamagedNotebook, read_notebook
from coursework.desk.store import Desk, DeskError


def jupyterlab(desk: Desk, wanted: str | None, arguments: Sequence[str]) -> list[str]:
    """Return the command that opens JupyterLab at the desk, on the notebook that is wanted or the one worked on last.

    `arguments` are passed on. Raises DeskError if JupyterLab is not installed or there is no such notebook.
    """
    if find_spec("jupyterlab") is None:
        raise DeskError(
            "JupyterLab is not installed in this environment; run `make setup`, or `pip install jupyterlab`."
        )
    # In a container there is often no user but root, for whom JupyterLab would refuse to start.
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    command = [sys.executable, "-P", "-m", "jupyterlab", f"--ServerApp.root_dir={desk.folder}", *root, *arguments]
    # As the address to open, and not as a file, so that --no-browser prints it as well.
    if not any(argument.endswith(".ipynb") for argument in arguments) and (name := to_open(desk, wanted)):
        command.append(f"--LabApp.default_url=/lab/tree/{quote(f'{name}.ipynb')}")
    return command


def to_open(desk: Desk, wanted: str | None) -> str:
    """Return the name of the notebook that is wanted, or of the latest answer's, or of the first that can be read."""
    found = [name_in(desk.folder, path) for path in notebooks(desk.folder)]
    if wanted is not None:
        named = next((name for name in found if is_called(name, wanted)), None)
        if named is None:
            raise DeskError(f"there is no chapter {wanted} in {desk.folder}; there are {', '.join(found)}.")
        return named
    recent = sorted((entry["saved"] or "", name) for name, entry in desk.progress().items() if entry["attempts"])
    if recent:
        place = places(desk).get(recent[-1][1])
        if place is not None:
            return place.name
    return next((name for name in found if _opens(desk, name)), found[0] if found else "")


def _opens(desk: Desk, name: str) -> bool:
    try:
        read_notebook(desk.folder / f"{name}.ipynb")
    except (DamagedNotebook, OSError):
        return False
    return True


def environment(desk: Desk) -> dict[str, str]:
    """Return the environment for JupyterLab, whose kernels find the desk in it."""
    # Long lines of code are folded in a narrow window, not scrolled; what a user has set for JupyterLab counts more.
    paths = [os.environ.get("JUPYTER_CONFIG_PATH"), str(Path(__file__).with_name("jupyter"))]
    own = {"COURSE_DESK": str(desk.folder), "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, paths))}
    # Idle threads of one kernel must not slow another.
    return {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ | own


def become(command: list[str], folder: Path, environment: dict[str, str]) -> int:
    """Go on as this command in this folder, so that its signals and exit code are its own."""
    os.chdir(folder)
    if os.name == "posix":
        os.execve(command[0], command, environment)
    return subprocess.call(command, env=environment)
