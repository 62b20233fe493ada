"""What keeps the code of strangers from the rest of the machine: namespaces of Linux, where they are permitted.

In one, a process sees the file system read-only and none of the folders that are hidden from it, writes only into an
empty folder of its own, has no network, and no process but its own; and whatever it starts ends with it. `usable` says
whether that can be had here: many containers and some distributions do not permit it. Without it, descendants are
looked for and ended one by one, and files are what the user's rights are. COURSE_SANDBOX=off does without.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from coursework.exercises.engine.ending import end_with_parent

ROOM = 256 << 20
"""Bytes of files that an answer may write in all."""

PROCESSES = 128
"""Threads and processes that an answer may have at once, in a namespace."""

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PROCESSES, _NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 0x1000, 0x4000, 0x40000
_SYS_MOUNT_SETATTR, _HERE, _ALL_BELOW = 442, -100, 0x8000
_NO_NEW_PRIVILEGES, _DUMPABLE = 38, 4

ROOT = Path(__file__).resolve().parents[2]
BANK = ROOT / "coursework" / "exercises" / "bank"


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _do(name: str, *arguments: object) -> None:
    """Call a function of the C library; OSError if it fails."""
    if getattr(_libc(), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def usable(room: Path, hidden: Iterable[Path] = ()) -> bool:
    """Whether a process can be confined here: one is, and ends."""
    if sys.platform != "linux" or os.environ.get("COURSE_SANDBOX") == "off":
        return False
    child = os.fork()
    if child == 0:
        code = 1
        try:
            enter(hidden)
            make_room(room, ())
            give_up_rights()
            code = 0
        except (OSError, AttributeError):
            pass
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def enter(hidden: Iterable[Path]) -> None:
    """Go on as the first process of a namespace, in which the file system is read-only and what is `hidden` is empty.

    The process that called this waits for it, and ends with its exit code; so nothing else may run in it yet, no
    thread either. Raises OSError if it is not permitted.
    """
    user, group, parent = os.getuid(), os.getgid(), os.getppid()
    _do("unshare", _NEW_USER | _NEW_MOUNTS | _NEW_PROCESSES | _NEW_NET | _NEW_IPC)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")
    end_with_parent(parent)  # anew: new rights have ended it
    outside = os.getpid()
    inside = os.fork()
    if inside:
        code = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    end_with_parent(outside, 0)  # in the namespace, what is outside has no number
    _do("mount", b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    code = _libc().syscall(_SYS_MOUNT_SETATTR, _HERE, b"/", _ALL_BELOW, ctypes.byref(attributes), 32)
    if code != 0:
        raise OSError(ctypes.get_errno(), "mount_setattr")
    _do("mount", b"proc", b"/proc", b"proc", _NO_SETUID | _NO_DEVICES, None)
    for folder in hidden:
        _cover(folder)


def make_room(room: Path, hidden: Iterable[Path]) -> None:
    """Give this process alone an empty folder `room` to write in, and hide more folders from it."""
    _do("unshare", _NEW_MOUNTS)
    _do("mount", b"tmpfs", os.fsencode(room), b"tmpfs", _NO_SETUID | _NO_DEVICES, f"size={ROOM}".encode())
    for folder in hidden:
        _cover(folder)


def _cover(place: Path) -> None:
    if place.is_dir():
        flags = _READ_ONLY | _NO_SETUID | _NO_DEVICES
        _do("mount", b"tmpfs", os.fsencode(place), b"tmpfs", flags, b"size=4k,mode=755")
    elif place.exists():
        _do("mount", b"/dev/null", os.fsencode(place), None, _BIND, None)


def give_up_rights() -> None:
    """Keep none of the rights in the namespace, so that nothing of it can be undone."""
    _do("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    nothing = (ctypes.c_uint32 * 6)()
    _do("capset", ctypes.byref(header), ctypes.byref(nothing))


def forbid_tracing(forbidden: bool = True) -> None:
    """Keep other processes of the same user from stopping or reading this one as a debugger does (Linux)."""
    if sys.platform == "linux":
        _do("prctl", _DUMPABLE, int(not forbidden), 0, 0, 0)


def secret_folders(needed: Iterable[Path], more: Iterable[Path] = ()) -> list[Path]:
    """Where people and programs keep what is their own, and `more`: folders, and files beside what is `needed`."""
    keep = [*needed, Path(sys.prefix), Path(sys.base_prefix), *(ROOT / name for name in ("coursework", "course_lib"))]
    keep += [Path(entry) for entry in sys.path if entry and Path(entry) != ROOT]
    real = {Path(os.path.realpath(path)) for path in keep}
    usual: list[str | Path] = [
        "/home",
        "/root",
        "/tmp",
        "/var/tmp",
        "/run",
        "/mnt",
        "/media",
        "/srv",
        Path.home(),
        tempfile.gettempdir(),
    ]
    if (ROOT / "pyproject.toml").exists():  # a checkout, with its tests and their answers
        usual.append(ROOT)
    hidden: list[Path] = []
    todo = [Path(os.path.realpath(path)) for path in (*usual, *more)]
    while todo:
        path = todo.pop()
        if any(path.is_relative_to(one) for one in (*real, *hidden)) or path.is_symlink() or not path.exists():
            continue
        if any(one.is_relative_to(path) for one in real):
            with contextlib.suppress(OSError):
                todo += path.iterdir()
        elif path != Path("/"):
            hidden.append(path)
    return hidden
