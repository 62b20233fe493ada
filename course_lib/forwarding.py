"""What moved from here to `coursework`, by its old name: notebooks of earlier editions run on, for this one edition.

This is the only place in the library that names `coursework`, and it does so as text: nothing of it is loaded until an
old name is used. `course update` rewrites a learner's imports by the same table.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

_ROOMS = ("exercises", "explorers", "desk", "assembly", "classroom", "commands", "cli", "export", "records")
_DATA = (
    *("sentences", "spelled", "notes", "synthetic", "text"),  # modules; the rest are names
    *("reference_text", "library_text", "tiny_shakespeare"),
    *("Recall", "associative_recall", "copy_task", "noise_floor", "noise_tokens"),
    *("number_pairs", "number_words", "number_parts", "number_languages", "date_pairs", "date_words", "date_locales"),
    *("load_pairs", "split_of"),
)

MOVED = {
    "course_lib.viz": "coursework.pictures",
    **{f"course_lib.{room}": f"coursework.{room}" for room in _ROOMS},
    **{f"course_lib.data.{name}": f"coursework.corpora.{name}" for name in _DATA},
}
"""Old names of modules, and of what they held, with the new ones; what lies in a module moved with it."""

_told = False


def new_name(old: str) -> str | None:
    """Return where something is now, by its dotted name; None if it did not move."""
    parts = old.split(".")
    for length in range(len(parts), 1, -1):
        if (new := MOVED.get(".".join(parts[:length]))) is not None:
            return ".".join([new, *parts[length:]])
    return None


def moved_attribute(module: str, name: str) -> object:
    """Return what `module` held under this name before it moved; AttributeError if it never did."""
    new = MOVED.get(f"{module}.{name}", "")
    home = _home(f"{module}.{name}", new.rpartition(".")[0]) if new else None
    if home is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(home, name)


class _Finder:
    """Finds a module under its old name: the same object as under its new one."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        new = new_name(name) if name.startswith("course_lib.") else None
        return ModuleSpec(name, self, origin=new) if new and _home(name, new) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make an empty module, so that it sets nothing in the one that there is."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = _module(module.__name__)

    def get_code(self, name: str) -> CodeType:
        """For `python -m course_lib.cli`."""
        return _module(name).__spec__.loader.get_code(new_name(name))  # type: ignore[union-attr]


def install() -> None:
    """Forward imports from here on.

    It comes first: in a package that moved, Python would find a submodule by its file and load it a second time.
    """
    sys.meta_path.insert(0, _Finder())


def _module(old: str) -> ModuleType:
    return sys.modules[new_name(old) or ""]


def _home(old: str, new: str) -> ModuleType | None:
    """Import what holds a thing that moved, and say once a process that it did; None if there is no such module."""
    global _told
    try:
        found = import_module(new)
    except ModuleNotFoundError as problem:
        if f"{new}.".startswith(f"{problem.name}."):
            return None
        raise ModuleNotFoundError(_lacking(old, new, [problem.name or ""]), name=problem.name) from problem
    if not _told:
        if missing := _missing():
            raise ModuleNotFoundError(_lacking(old, new, missing), name=missing[0])
        print(
            f"{old} is {new} now; in this edition it is found under both names. "
            "`course update` rewrites the imports in your notebooks.",
            file=sys.stderr,
        )
    _told = True
    return found


def _lacking(old: str, new: str, names: list[str]) -> str:
    return (
        f"{old} is {new} now, which needs packages that are not installed here ({', '.join(names)}): "
        "pip install 'course-lib[course]'"
    )


def _missing() -> list[str]:
    """What the extra `course` names and this environment lacks; rooms that load late would fail without a reason."""
    from importlib import metadata

    def lacks(name: str) -> bool:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            return True
        return False

    needed = () if lacks("course-lib") else metadata.requires("course-lib") or ()
    return [name for name in map(_name, needed) if name and lacks(name)]


def _name(requirement: str) -> str:
    """The package that `matplotlib>=3.9; extra == "course"` requires; "" if it is of no extra, or of another one."""
    if not requirement.endswith(('extra == "course"', "extra == 'course'")):
        return ""
    for mark in " ;[(<>=!~":
        requirement = requirement.partition(mark)[0]
    return requirement
