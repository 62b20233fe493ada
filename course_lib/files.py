"""Writing files so that an interrupt, a full disk or a crash leaves the old content or the new, never half of one."""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from course_lib.reading import Unreadable, read_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Result = TypeVar("Result")

_COMMIT = ".commit"  # files that are whole and on their way into the folder above
_OBSOLETE = "obsolete.json"  # in it: names of files that go when the new ones come
SUMS = "SHA256SUMS"  # as the program sha256sum writes and checks them
_TRIES = 100  # to read files that are replaced all the time
_OLD = 86_400  # seconds


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Replace the content of `path` with `data` in one step; text is written as UTF-8.

    The data goes to a temporary file in the same folder, is flushed to the disk, and then renamed over `path`.
    Raises OSError if the disk is full or the folder cannot be written; `path` is then as it was before.
    """
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with open_atomic(path) as stream:
        stream.write(payload)


@contextlib.contextmanager
def open_atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to be written in pieces; it takes the place of `path` when the block ends without an error.

    As `write_atomic`, for content too large to be held in memory.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent, re.escape(f".{path.name}."))
    handle, temporary = _own(lambda: tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            # mkstemp makes files private; keep the mode of the file replaced, or what the umask gives a new one.
            os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
            if fcntl is not None:
                os.replace(temporary, path)
        if fcntl is None:  # Windows renames nothing that is open
            os.replace(temporary, path)
    except BaseException:  # an interrupt too must not leave the temporary file behind
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Give a new folder among the system's temporary ones; it goes when the block ends.

    Those of this prefix whose process was killed go now. Names say nothing of that: a process elsewhere, in a container
    say, may share the place.
    """
    there = Path(tempfile.gettempdir())
    sweep(there, re.escape(prefix), "")
    handle, name = _own(lambda: _new_folder(there, prefix, ""))
    with _closing(handle):
        try:
            yield Path(name)
        finally:
            shutil.rmtree(name, ignore_errors=True)


@contextlib.contextmanager
def replace_together(folder: str | os.PathLike[str], obsolete: Collection[str] = ()) -> Iterator[Path]:
    """Give a folder to write files in; when the block ends, all of them take their places in `folder`, or none does.

    Files of the names `obsolete` go then, unless they are among the new ones; all others stay. With the new files comes
    SHA256SUMS, their checksums. If the process is killed in the middle, `finish_replacing` does the rest, and the next
    writer removes what was not whole. Of two writers, one waits for the other.
    Raises OSError if that is not possible; `folder` is then as it was before.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    finish_replacing(folder)
    sweep(folder)
    handle, name = _own(lambda: _new_folder(folder))
    staged = Path(name)
    try:
        with _closing(handle):
            yield staged
            new = {path.name: sha256(path) for path in staged.iterdir()}
            gone = set(obsolete) - new.keys()
            write_atomic(staged / _OBSOLETE, json.dumps(sorted(gone)))
            with _held(folder):  # until all are in their places, no other writer puts its own there
                _finish(folder)
                staying = {name: value for name, value in _sums(folder).items() if name not in gone}
                write_atomic(staged / SUMS, _sums_text({**staying, **new}))
                os.replace(staged, folder / _COMMIT)
                _finish(folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def finish_replacing(folder: str | os.PathLike[str]) -> None:
    """Move what a killed process had written whole, and not yet moved, to its places.

    Raises ValueError that names the folder if it cannot be written, Unreadable if the list of what goes is damaged.
    """
    folder = Path(folder)
    if (folder / _COMMIT).is_dir():
        with _held(folder):
            _finish(folder)


def _finish(folder: Path) -> None:
    commit = folder / _COMMIT
    if not commit.is_dir():
        return
    try:
        if (commit / _OBSOLETE).exists():
            for name in _obsolete(commit / _OBSOLETE):
                (folder / name).unlink(missing_ok=True)
        for path in sorted(commit.iterdir()):
            if path.name != _OBSOLETE:
                with contextlib.suppress(FileNotFoundError):  # another process does the same, where there are no locks
                    os.replace(path, folder / path.name)
        (commit / _OBSOLETE).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            commit.rmdir()
    except OSError as error:
        raise ValueError(
            f"{folder}: files were being replaced when a process ended, and it cannot be finished ({error.strerror})"
        ) from error


def read_together(folder: str | os.PathLike[str], read: Callable[[], Result]) -> Result:
    """Return what `read` makes of a folder's files, all of one writing: again, if they were replaced meanwhile.

    Errors are those of `read`, of files that nobody replaced.
    """
    folder = Path(folder)
    for _ in range(_TRIES):
        finish_replacing(folder)
        before = _writing(folder)
        try:
            found = read()
        except Exception:
            if _writing(folder) == before is not None:
                raise
        else:
            if _writing(folder) == before is not None:
                return found
        time.sleep(random.uniform(0, 0.005))  # out of step with the writers
    with _held(folder):
        _finish(folder)
        return read()


def _writing(folder: Path) -> bytes | None:
    """What tells one writing of a folder's files from another; None while they are being replaced."""
    commit, written = folder / _COMMIT, b""
    if commit.exists():  # asked twice: one that ends after the sums are read began before a reader was done
        return None
    with contextlib.suppress(FileNotFoundError), (folder / SUMS).open("rb") as file:
        about = os.fstat(file.fileno())  # the same sums may be written twice, and others between
        written = file.read() + f"{about.st_ino} {about.st_mtime_ns}".encode()
    return None if commit.exists() else written


# A writer holds what it writes to by a lock, which ends with its process: what nobody holds is litter. Windows locks no
# folder, and some file systems lock nothing: there litter goes after a day, and two writers of one folder may collide.


def _hold(handle: int, wait: bool = True) -> bool | None:
    """Lock an open file or folder; whether it is locked now, or None where nothing can be locked."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        return False if isinstance(error, BlockingIOError) else None
    return True


def _own(make: Callable[[], tuple[int, str]]) -> tuple[int, str]:
    """Make a temporary file or folder, and hold it; again, if another process took it for litter before that."""
    while True:
        handle, path = make()
        _hold(handle)
        if os.path.exists(path):
            return handle, path
        os.close(handle)


def _new_folder(folder: Path, prefix: str = ".files.", suffix: str = ".tmp") -> tuple[int, str]:
    while True:
        path = tempfile.mkdtemp(dir=folder, prefix=prefix, suffix=suffix)
        with contextlib.suppress(FileNotFoundError):  # another process took it for litter at once
            return _open_folder(path)


def _open_folder(path: str) -> tuple[int, str]:
    """Open a folder, so that it can be held; Windows opens none, and gets the handle of nothing."""
    return os.open(os.devnull if fcntl is None else path, os.O_RDONLY), path


@contextlib.contextmanager
def _closing(handle: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    handle, _ = _open_folder(str(folder))
    with _closing(handle):
        _hold(handle)
        yield


def sweep(folder: Path, prefix: str = r"\..+\.", suffix: str = r"\.tmp") -> None:
    """Remove what killed writers left: named as `tempfile` does it, between these patterns, and held by nobody."""
    named = re.compile(f"{prefix}[a-z0-9_]{{8}}{suffix}", re.DOTALL)
    for path in filter(lambda path: named.fullmatch(path.name), folder.glob("*")):
        with contextlib.suppress(OSError):  # gone meanwhile, or of another user
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                continue  # a link, a pipe or a device is none of theirs
            handle, _ = _open_folder(str(path))
            with _closing(handle):
                held = _hold(handle, wait=False)
                if held or (held is None and time.time() - path.stat().st_mtime > _OLD):
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _obsolete(path: Path) -> list[str]:
    what, advice = "names of files in the folder above", f"write that folder anew, or delete {path.parent}"
    names = read_json(path, [str], what, advice)
    for name in names:
        if name in ("", "..") or "\0" in name or Path(name).name != name:
            raise Unreadable(path, what, repr(name), advice)
    return names


def check_sums(folder: str | os.PathLike[str], *names: str) -> None:
    """Compare files with the folder's SHA256SUMS; one that it does not list is right.

    Raises ValueError that names the file.
    """
    folder = Path(folder)
    sums = _sums(folder)
    for name in names:
        if name in sums and (not (folder / name).is_file() or sha256(folder / name) != sums[name]):
            raise ValueError(
                f"{folder / name}: damaged or changed, it does not fit {SUMS} beside it; "
                f"if you changed it yourself, delete {SUMS}"
            )


def renew_sum(path: str | os.PathLike[str]) -> None:
    """Write the checksum of a file anew where the SHA256SUMS beside it lists it."""
    path = Path(path)
    sums = _sums(path.parent)
    if path.name in sums:
        write_atomic(path.parent / SUMS, _sums_text({**sums, path.name: sha256(path)}))


def _sums(folder: Path) -> dict[str, str]:
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    return {name: value for value, _, name in (line.partition("  ") for line in lines)}


def _sums_text(sums: dict[str, str]) -> str:
    return "".join(f"{value}  {name}\n" for name, value in sorted(sums.items()))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
