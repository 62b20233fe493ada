"""Where learners run the course: Colab keeps what it has, and Windows needs nothing that only POSIX systems offer."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGE = sorted(ROOT.glob("course*/**/*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
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
    replaced, added = installed_in(COLAB, [*PROJECT["dependencies"], *EXTRAS["course"]])
    assert replaced == []
    assert added == {"num2words", "docopt", "sacrebleu", "portalocker", "colorama"}


def test_jupyterlab_would_replace_what_colab_runs_on():
    replaced, added = installed_in(COLAB, [one for one in EXTRAS["lab"] if not one.startswith("course-lib")])
    assert {line.split()[0] for line in replaced} >= {"ipykernel", "ipywidgets"}
    assert "jupyterlab" in added


# The package is imported twice: what others do about their system is done the first time; before the second, all that
# only POSIX systems have is taken away.
WINDOWS = """
import importlib, inspect, os, pkgutil, signal, sys, time, types

def import_all():
    for package in ("course_lib", "coursework"):
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not found.name.endswith("__main__"):
                importlib.import_module(found.name)

import_all()
for name in [name for name in sys.modules if name.partition(".")[0] in ("course_lib", "coursework")]:
    del sys.modules[name]
for name in ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty"):
    sys.modules[name] = None
for name in ("SIGALRM", "SIGHUP", "SIGUSR1", "alarm", "setitimer", "pthread_kill"):
    delattr(signal, name)
for name in ("fork", "killpg", "geteuid", "setsid", "getpgid"):
    delattr(os, name)
del time.pthread_getcpuclockid
import_all()

from coursework.exercises import registry
from coursework.exercises.engine.diagnose import diagnose
from coursework.exercises.engine.guard import Guard, RanAway

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

from coursework.cli import app

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
    found = [path for path in PACKAGE if re.search(posix, path.read_text("utf-8"), re.M)]
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


def without_encoding(source: str) -> list[int]:
    """Lines that open text, or a process's text, in whatever encoding the system prefers: on Windows, not UTF-8."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        place = 0 if isinstance(call.func, ast.Attribute) else 1  # of the mode, in path.open and in open
        if name in ("run", "Popen", "check_output"):
            bad = "text" in given and not {"encoding", "errors"} & given.keys()
        elif name == "open" and getattr(getattr(call.func, "value", None), "id", "") not in ("os", "Image"):
            mode = given.get("mode", call.args[place] if len(call.args) > place else None)
            binary = isinstance(mode, ast.Constant) and "b" in str(mode.value)
            bad = not binary and "encoding" not in given
        else:
            at = {"read_text": 0, "write_text": 1}.get(name)
            bad = at is not None and len(call.args) <= at and "encoding" not in given
        found += [call.lineno] if bad else []
    return found


def test_the_package_names_the_encoding_of_every_text():
    found = {path.relative_to(ROOT).as_posix(): without_encoding(path.read_text("utf-8")) for path in PACKAGE}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_text_without_encoding_is_seen():
    bad = ["open(p)", "open(p, 'w')", "p.open()", "p.read_text()", "p.write_text(t)", "run(c, text=True)"]
    good = ["open(p, 'rb')", "p.open('wb')", "p.read_text('utf-8')", "p.write_text(t, encoding='utf-8')", "run(c)"]
    assert [without_encoding(line) for line in bad] == [[1]] * len(bad)
    assert [without_encoding(line) for line in good] == [[]] * len(good)


def test_every_file_can_have_its_name_on_windows():
    listing = ["git", "ls-files", "-s"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, check=False, encoding="utf-8").stdout
    if not names:
        pytest.skip("not a checkout")
    paths = [line.split("\t")[1] for line in names.splitlines()]
    assert not [path for path in paths if re.search(r'[<>:"|?*\\]|[. ](/|$)', path)]
    assert not re.search(r"(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.|/|$)", "\n".join(paths), re.I | re.M)
    assert len({path.lower() for path in paths}) == len(paths)
    assert not [line for line in names.splitlines() if line.startswith("120000")], "a symbolic link"
    assert max(map(len, paths)) < 120
