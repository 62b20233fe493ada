"""Writing leaves the old content or the new, never half of one, and no litter: under errors, interrupts and kills."""

import builtins
import errno
import os
import stat
import subprocess
import sys
import time

import pytest

from course_lib import files
from course_lib.files import open_atomic, write_atomic


def test_bytes_and_text(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    write_atomic(str(path), "déjà\nvu\r\n")
    assert path.read_bytes() == "déjà\nvu\r\n".encode()
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_modes(tmp_path):
    path = tmp_path / "file"
    before = os.umask(0o027)
    try:
        write_atomic(path, "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o755)
    write_atomic(path, "replaced")
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt(), MemoryError()], ids=["full disk", "interrupt", "memory"])
@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
def test_a_failure_leaves_the_old_content_and_no_litter(tmp_path, monkeypatch, call, error):
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(files.os, call, failing(error))
    with pytest.raises(type(error)):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_that_fills_while_writing(tmp_path, monkeypatch):
    class Full:
        def __init__(self, handle):
            self.handle = handle

        def write(self, data):
            os.write(self.handle, data[: len(data) // 2])
            raise FULL

        def __enter__(self):
            return self

        def __exit__(self, *_):
            os.close(self.handle)

    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(files.os, "fdopen", lambda handle, mode: Full(handle))
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, "new" * 1000)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_first_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(files.os, "replace", failing(FULL))
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == []


def test_a_folder_in_the_place_of_the_file(tmp_path):
    (tmp_path / "file" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="file"):
        write_atomic(tmp_path / "file", "new")
    assert os.listdir(tmp_path) == ["file"]


def test_data_of_another_kind_touches_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_atomic(path, 3)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


WRITER = """
import sys
from course_lib.files import write_atomic
letter, path = sys.argv[1:]
print("ready", flush=True)
while True:
    write_atomic(path, letter * 300_000)
"""


def test_killed_and_competing_writers_leave_one_whole_content(tmp_path):
    path = tmp_path / "file"
    path.write_text("o" * 300_000)
    for round_ in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, letter, path], stdout=subprocess.PIPE) for letter in "ab"
        ]
        for writer in writers:
            writer.stdout.readline()
        end = time.monotonic() + 0.1 + 0.037 * round_
        while time.monotonic() < end:
            content = path.read_text()
            assert len(content) == 300_000
            assert len(set(content)) == 1
        for writer in writers:
            writer.kill()
            writer.communicate()
        content = path.read_text()
        assert content in ("a" * 300_000, "b" * 300_000)


def test_nothing_here_opens_the_file_itself(tmp_path, monkeypatch):
    """A reader never sees the file absent or short, because it is only ever renamed into place."""
    path = tmp_path / "file"
    path.write_text("old")
    inode = path.stat().st_ino
    monkeypatch.setattr(builtins, "open", failing(AssertionError("opened")))
    write_atomic(path, "new")
    monkeypatch.undo()
    assert path.stat().st_ino != inode
    assert path.read_text() == "new"


def test_content_in_pieces_appears_whole(tmp_path):
    path = tmp_path / "folder" / "file.bin"
    with open_atomic(path) as stream:
        stream.write(b"one ")
        assert not path.exists()
        stream.write(b"two")
        stream.seek(0)
        stream.write(b"ONE")
    assert path.read_bytes() == b"ONE two"
    assert os.listdir(path.parent) == ["file.bin"]


def test_pieces_that_end_in_an_interrupt_leave_the_old_content(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")

    def interrupted():
        with open_atomic(path) as stream:
            stream.write(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]
