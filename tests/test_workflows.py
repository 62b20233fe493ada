"""The workflows are valid, and every step runs something that is there; `.ci/steps.py` runs a job's steps here."""

import itertools
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOBS = {
    f"{path.stem}-{name}": job
    for path in WORKFLOWS
    for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items()
}
ACTIONS = {"actions/checkout@v6", "actions/setup-python@v6", "actions/upload-artifact@v7"}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = {"start", "status"}


def missing(command: str) -> str:
    """What a command of a step calls that is not there, or nothing."""
    words = shlex.split(command)
    if words[0] == "make":
        return "" if words[1] in TARGETS else f"make {words[1]}"
    if words[0] == "course":
        return "" if words[1] in COMMANDS else f"course {words[1]}"
    if words[:4] == ["python", "-m", "pip", "install"]:
        extras = re.findall(r"\[(.*)\]", command)
        wanted = {one for text in extras for one in text.split(",")} - set(PROJECT["optional-dependencies"])
        files = [file for file in re.findall(r"-[cr] (\S+)", command) if not (ROOT / file).exists()]
        return " ".join([*wanted, *files])
    if words[:3] == ["python", "-m", "pytest"]:
        files = [word for word in words[3:] if "/" in word or word == "tests"]
    else:
        files = [words[1] if words[0] == "python" else words[0]]
    return " ".join(file for file in files if not (ROOT / file).exists())


def runs(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_valid(path):
    from check_jsonschema import main

    with pytest.raises(SystemExit) as ended:
        main(["--builtin-schema", "vendor.github-workflows", str(path)], prog_name="check")
    assert ended.value.code == 0


@pytest.mark.parametrize("name", JOBS)
def test_a_job_calls_what_is_there(name):
    job = JOBS[name]
    for run in runs(job):
        assert subprocess.run(["bash", "-n", "-c", run], check=False).returncode == 0, run
        assert [missing(part) for part in re.split(r"&&|\n", run) if missing(part)] == []
    assert {step["uses"] for step in job["steps"] if "uses" in step} <= ACTIONS
    assert job["timeout-minutes"] <= 90


def test_the_runner_lists_the_steps_of_a_job():
    command = [sys.executable, ".ci/steps.py", "tests", "everything", "--list"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in said if line.startswith("$")] == ["$ make lint", "$ make test"]
    assert sum(line.startswith("not run here: actions/") for line in said) == 2


def test_what_is_not_there_is_seen():
    assert missing("make nothing") == "make nothing"
    assert missing("python .ci/nothing.py") == ".ci/nothing.py"
    assert missing('python -m pip install -c nothing.txt -e ".[test,no]"') == "no nothing.txt"
    assert missing("python -m pytest -n 2 tests/no_such_folder") == "tests/no_such_folder"


def test_the_supported_pythons_and_systems_are_tested():
    matrix = JOBS["tests-systems"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13"]
    assert [system.partition("-")[0] for system in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert PROJECT["requires-python"] == ">=3.11,<3.14"


def test_only_the_links_go_outside_but_for_installing():
    outside = [name for name, job in JOBS.items() if any("links" in run for run in runs(job))]
    assert outside == ["watch-links"]


def test_the_lowest_versions_are_those_of_pyproject():
    text = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8")
    pins = dict(line.split("==") for line in text.splitlines() if "==" in line and not line.startswith("#"))
    pins = {canonicalize_name(name): Version(version) for name, version in pins.items()}
    for line in itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name == "course-lib" or name not in pins:
            assert name in ("course-lib", "nbdime"), f"{name} is not in constraints-lowest.txt"
            continue
        assert pins[name] in requirement.specifier
        least = next(Version(one.version.removesuffix(".*")) for one in requirement.specifier)
        if name == "ipywidgets" and least < pins[name]:
            continue  # without JupyterLab, as in Colab, an older one will do: tests/test_hosts.py
        assert pins[name].release[: len(least.release)] == least.release, f"{name}: {pins[name]} is not the lowest"
