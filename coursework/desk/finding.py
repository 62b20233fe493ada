"""Where things are: the course's own notebooks, and the learner's desk.

A desk is found from the working directory upwards, or through the environment variable COURSE_DESK, which the learner
may set. Inside the package a desk that was found, or named with `course --folder`, is passed on as an argument.
"""

import os
from pathlib import Path

from coursework.desk.store import MARKER, Desk, DeskError

NUMBERED = "[0-9][0-9]_*.ipynb"
_OFF = {"", "0", "false", "no"}


# -- the course --------------------------------------------------------------------------------------------------------


def repository() -> Path:
    """Return the folder that holds the package: the checkout, when the package is installed from one."""
    return Path(__file__).resolve().parents[2]


def course_notebooks() -> Path:
    """Return the folder of the course's own notebooks.

    That is `notebooks/` of the checkout that the package is installed from; COURSE_NOTEBOOKS names another one.
    Raises DeskError if there is none.
    """
    named = os.environ.get("COURSE_NOTEBOOKS")
    folder = Path(named).expanduser().absolute() if named else repository() / "notebooks"
    if folder.is_dir() and any(folder.glob(NUMBERED)):
        return folder
    if named:
        raise DeskError(
            f"COURSE_NOTEBOOKS names {folder}, but there are no chapters (such as 01_attention.ipynb) in it."
        )
    raise DeskError(
        f"The course's notebooks were not found in {folder}. Install the package from a checkout of the course "
        "(`pip install -e '.[course]'` in its folder), or set COURSE_NOTEBOOKS to a folder that holds them."
    )


def notebooks(folder: Path) -> list[Path]:
    """Return the course's notebooks in `folder`, or the learner's copies there: chapters, then labs."""
    return [*sorted(folder.glob(NUMBERED)), *sorted((folder / "labs").glob(NUMBERED))]


def name_in(folder: Path, path: Path) -> str:
    """Return the name of a notebook: "01_attention", or "labs/05_inside_a_model"."""
    return path.relative_to(folder).with_suffix("").as_posix()


def is_called(notebook: str, wanted: str) -> bool:
    """Whether a learner who says `wanted` means this notebook: the number of a chapter, or the beginning of a name."""
    if wanted.isdecimal():
        return notebook.startswith(f"{int(wanted):02d}_")
    return notebook.startswith((wanted, f"labs/{wanted}"))


# -- the desk ----------------------------------------------------------------------------------------------------------


def saving_is_off() -> bool:
    """Return whether `CI` is set, where nothing is saved for a learner."""
    return os.environ.get("CI", "").lower() not in _OFF


def find_desk() -> Desk | None:
    """Return the desk that checks save into, or None when nothing is to be saved (no desk, or `CI` is set).

    The desk is the nearest folder, from the working directory upwards, that holds `.course/`.
    The environment variable COURSE_DESK names another one.
    """
    return None if saving_is_off() else locate_desk()


def locate_desk() -> Desk | None:
    """Like `find_desk`, but regardless of `CI`: for commands that the learner types."""
    if named := _named_outside():
        return Desk(named) if is_desk(named) else None
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the working directory was removed under us
        return None
    return next((Desk(folder) for folder in (here, *here.parents) if is_desk(folder)), None)


def the_desk(named: Path | None = None) -> Desk:
    """Return the desk that a command works on: the one that was named, else the one that is found.

    Raises DeskError that says how to make one.
    """
    if named is not None:
        if not is_desk(named.expanduser()):
            raise DeskError(
                f"{named} holds no copies of the course's notebooks; `course start --folder {named}` makes them."
            )
        return Desk(named.expanduser())
    found = locate_desk()
    if found is not None:
        return found
    if outside := os.environ.get("COURSE_DESK"):
        raise DeskError(
            f"COURSE_DESK names {outside}, which holds no copies of the course's notebooks; "
            f"`course start --folder {outside}` makes them."
        )
    if is_desk(default_folder()):
        return Desk(default_folder())
    raise DeskError(
        "your copies of the notebooks were not found from here. Run `course start` first, "
        "or name their folder: `course --folder FOLDER …`."
    )


def desk_or_none(named: Path | None = None) -> Desk | None:
    """Like `the_desk`, but None if there is none."""
    try:
        return the_desk(named)
    except DeskError:
        return None


def folder_to_start(named: Path | None = None) -> Path:
    """Return where `course start` makes a desk, or finds it made: named, or where one is, or in the default folder."""
    found = locate_desk()
    return named or _named_outside() or (found.folder if found else default_folder())


def default_folder() -> Path:
    """Return where `course start` puts a desk: `my/` of the repository when called inside it, else `./my`."""
    here = Path.cwd().absolute()
    root = repository()
    inside = (root / "notebooks").is_dir() and (here.resolve() == root or root in here.resolve().parents)
    return (root if inside else here) / "my"


def is_desk(folder: Path) -> bool:
    """Return whether `folder` holds a desk."""
    return (folder / MARKER).is_dir()


def _named_outside() -> Path | None:
    """The folder that the learner's environment names."""
    named = os.environ.get("COURSE_DESK")
    return Path(named).expanduser() if named else None
