"""Where learners run the course: Colab keeps what it has, and Windows needs nothing that only POSIX systems offer."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COLAB = {
    canonicalize_name(name): version
    for name, version in (
        line.split("==")
        for line in (ROOT / "tests/data/colab-2026-08.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    )
}


def installed_in(there: dict[str, str], wanted: list[str]) -> tuple[list[str], set[str]]:
    """What pip would have to replace in an environment that has `there`, and what it would add."""
    replaced, added = [], set()
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "", "python_version": "3.13"}):
            continue
        if name in there:
            if not requirement.specifier.contains(there[name], prereleases=True):
                replaced.append(f"{name} {there[name]} is not {requirement.specifier}")
        elif name not in added:
            added.add(name)
            wanted += importlib.metadata.requires(name) or []
    return replaced, added


def test_installing_the_course_in_colab_replaces_nothing():
    replaced, added = installed_in(COLAB, list(PROJECT["dependencies"]))
    assert replaced == []
    assert added == {"num2words", "docopt", "sacrebleu", "portalocker", "colorama"}


def test_jupyterlab_would_replace_what_colab_runs_on():
    replaced, added = installed_in(COLAB, list(PROJECT["optional-dependencies"]["lab"]))
    assert {line.split()[0] for line in replaced} >= {"ipykernel", "ipywidgets"}
    assert "jupyterlab" in added


# The package is imported twice: what others do about their system is done the first time; before the second, all that
# only POSIX systems have is taken away.
WINDOWS = """
import importlib, inspect, os, pkgutil, signal, sys, time, types

def import_all():
    import course_lib
    for found in pkgutil.walk_packages(course_lib.__path__, "course_lib."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)

import_all()
for name in [name for name in sys.modules if name.partition(".")[0] == "course_lib"]:
    del sys.modules[name]
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"):
    sys.modules[name] = None
for name in ("SIGALRM", "SIGHUP", "SIGUSR1", "alarm", "setitimer", "pthread_kill"):
    delattr(signal, name)
for name in ("fork", "killpg", "geteuid", "setsid", "getpgid"):
    delattr(os, name)
del time.pthread_getcpuclockid
import_all()

from course_lib.exercises import registry
from course_lib.exercises.engine.diagnose import diagnose
from course_lib.exercises.engine.guard import Guard, RanAway

spec = registry.get("causal_mask")
print("verdict:", diagnose(spec, spec.reference).verdict)

def endless():
    while True:
        pass

with Guard(seconds=0.2) as guard:
    try:
        guard.call(endless)
    except RanAway:
        print("an endless loop was stopped")

from course_lib.cli import app
from course_lib.desk import isolated

isolated.os = types.SimpleNamespace(name="nt")  # elsewhere pathlib asks for the name, too
open("answer.py", "w").write("import torch\\n" + inspect.getsource(spec.reference))
for arguments in ("--help", "start", "status --chapter 1", "check causal_mask --file answer.py"):
    sys.argv = ["course", *arguments.split()]
    try:
        app()
    except SystemExit as ended:
        print(f"course {arguments}: exit code {ended.code}")
"""


def test_the_course_works_without_what_windows_lacks(tmp_path):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WINDOWS]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "verdict: right" in run.stdout
    assert "an endless loop was stopped" in run.stdout
    for arguments in ("--help", "start", "status --chapter 1", "check causal_mask --file answer.py"):
        assert f"course {arguments}: exit code 0" in run.stdout, run.stdout + run.stderr
    assert (tmp_path / "my" / "01_attention.ipynb").exists()


def test_no_module_imports_what_only_posix_has_at_the_top():
    posix = r"^(?:import|from) (fcntl|resource|pwd|grp|termios|tty|pty|posix)\b"
    found = [path for path in (ROOT / "course_lib").rglob("*.py") if re.search(posix, path.read_text("utf-8"), re.M)]
    assert found == []


def test_windows_steps_of_readme_need_no_make():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    steps = next(block for block in re.findall(r"```\w*\n(.*?)```", readme, re.DOTALL) if "py -m venv" in block)
    assert "make" not in steps
    for line in steps.strip().splitlines():
        program = line.split()[0].replace("\\", "/")
        assert program in ("py", ".venv/Scripts/pip") or program.endswith("course"), line


def test_the_launcher_answers_in_the_folder(tmp_path):
    run = subprocess.run(
        [ROOT / "course", "--help"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr
    assert "Learn the Transformer" in run.stdout
    assert b"\r\n" in (ROOT / "course.cmd").read_bytes()
