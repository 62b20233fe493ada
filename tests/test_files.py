"""Writing leaves the old content or the new, never half of one, and no litter: under errors, interrupts and kills."""

import builtins
import errno
import os
import shutil
import stat
import subprocess
import sys
import time

import pytest

from course_lib import files
from course_lib.files import (
    SUMS,
    check_sums,
    finish_replacing,
    open_atomic,
    read_together,
    renew_sum,
    replace_together,
    write_atomic,
)


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


# -- several files together --------------------------------------------------------------------------------------------

DIES = """
import os, sys
from pathlib import Path
from course_lib.files import replace_together, write_atomic
folder, last = Path(sys.argv[1]), int(sys.argv[2])
calls = 0
def deadly(original):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == last:
            os._exit(9)  # as a kill: nothing is cleaned up
        return original(*args, **kwargs)
    return call
for name in ("fsync", "replace", "chmod", "unlink", "rmdir"):
    setattr(os, name, deadly(getattr(os, name)))
with replace_together(folder, obsolete=["old.bin", "config"]) as staged:
    write_atomic(staged / "config", "new")
    write_atomic(staged / "weights", "new")
"""


def contents(folder):
    finish_replacing(folder)
    return {p.name: p.read_text() for p in folder.iterdir() if p.name != SUMS and not p.name.endswith(".tmp")}


def litter(folder):
    return [path.name for path in folder.rglob("*") if path.name.endswith(".tmp") or path.name == ".commit"]


def test_a_kill_at_any_step_leaves_all_of_the_old_files_or_all_of_the_new(tmp_path):
    old = {"config": "old", "weights": "old", "old.bin": "old", "mine": "kept"}
    new = {"config": "new", "weights": "new", "mine": "kept"}
    found, left = [], 0
    for last in range(1, 60):
        folder = tmp_path / str(last)
        folder.mkdir()
        for name, text in old.items():
            (folder / name).write_text(text)
        code = subprocess.run([sys.executable, "-c", DIES, str(folder), str(last)]).returncode
        found.append(contents(folder))
        assert found[-1] in (old, new)
        check_sums(folder, "config", "weights")
        left += len(litter(folder))
        with replace_together(folder) as staged:  # and the next one finds nothing in its way
            (staged / "config").write_text("newer")
        assert contents(folder) == {**found[-1], "config": "newer"}
        assert litter(folder) == []
        check_sums(folder, "config", "weights")
        if code == 0:
            break
    assert code == 0
    assert found.count(old) > 5
    assert found.count(new) > 5
    assert left > 5
    assert found == sorted(found, key=lambda one: one == new)  # one step decides


def test_an_error_while_files_are_written_leaves_the_old_ones(tmp_path):
    (tmp_path / "config").write_text("old")

    def write():
        with replace_together(tmp_path, obsolete=["config"]) as staged:
            (staged / "weights").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert os.listdir(tmp_path) == ["config"]


def test_the_next_writer_removes_what_a_killed_one_left_and_nothing_of_one_at_work(tmp_path):
    path = tmp_path / "file"
    script = "import os, sys\nfrom course_lib.files import open_atomic\nwith open_atomic(sys.argv[1]): os._exit(9)"
    subprocess.run([sys.executable, "-c", script, str(path)])
    assert len(litter(tmp_path)) == 1
    with open_atomic(path) as slow:
        slow.write(b"slow")
        (mine,) = litter(tmp_path)
        write_atomic(path, "fast")
        assert litter(tmp_path) == [mine]
        assert path.read_text() == "fast"
    assert path.read_text() == "slow"
    assert litter(tmp_path) == []


def test_what_is_swept_is_litter_alone(tmp_path, monkeypatch):
    """Names that a writer's litter has, of things that are none; and a writer at work for more than a day."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_text("kept")
    own = [
        ".file.tmp",
        ".settings.tmp",
        ".file.backup.tmp",
        ".file.new-copy.tmp",
        ".file.ABCDEFGH.tmp",
        "a.abcdefgh.tmp",
    ]
    for name in own:
        (tmp_path / name).write_text("kept")
    (tmp_path / ".file.linkfile.tmp").symlink_to(tmp_path / "elsewhere" / "file")
    (tmp_path / ".file.linkfold.tmp").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / ".file.pipepipe.tmp")
    kept = sorted(path.name for path in tmp_path.rglob("*"))
    with replace_together(tmp_path) as staged, open_atomic(tmp_path / "file") as slow:
        for path in (staged, *tmp_path.glob(".file.*.tmp")):
            os.utime(path, (0, 0), follow_symlinks=False)
        for left in (".file.abcdefgh.tmp", ".[x].abcdefgh.tmp"):
            (tmp_path / left).write_text("half")
        (tmp_path / ".files.abcdefgh.tmp").mkdir()
        write_atomic(tmp_path / "[x]", "new")  # no pattern
        assert not (tmp_path / ".[x].abcdefgh.tmp").exists()
        with replace_together(tmp_path):
            pass
        slow.write(b"slow")
        (staged / "together").write_text("slow")
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted([*kept, "[x]", "file", "together", SUMS])


TOGETHER = """
import sys
from course_lib.files import replace_together
letter, folder = sys.argv[1:]
print("ready", flush=True)
while True:
    with replace_together(folder, obsolete=["only a", "only b"]) as staged:
        for name in ("config", "weights", f"only {letter}"):
            (staged / name).write_text(letter * 2000)
"""


def test_a_reader_gets_files_of_one_writing_while_two_write_and_are_killed(tmp_path):
    with replace_together(tmp_path) as staged:
        for name in ("config", "weights"):
            (staged / name).write_text("o" * 2000)

    def read():
        config = (tmp_path / "config").read_text()
        time.sleep(0.001)
        names = sorted(path.name for path in tmp_path.glob("only *"))
        check_sums(tmp_path, "config", "weights")
        return config, (tmp_path / "weights").read_text(), names

    seen = set()
    for _ in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", TOGETHER, letter, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for letter in "ab"
        ]
        for writer in writers:
            writer.stdout.readline()
        for _reading in range(60):
            config, weights, names = read_together(tmp_path, read)
            assert config == weights
            assert names == [f"only {config[0]}"] * (config[0] != "o")
            seen.add(config[0])
        failed = [writer.communicate()[1] for writer in writers if writer.poll() is not None]
        for writer in writers:
            writer.kill()
            writer.communicate()
        assert failed == []
    assert seen >= {"a", "b"}
    with replace_together(tmp_path) as staged:
        (staged / "config").write_text("last")
    assert litter(tmp_path) == []


def test_a_writing_that_begins_while_files_are_read_and_ends_while_the_sums_are_is_seen(tmp_path, monkeypatch):
    for text in ("old", "new"):
        with replace_together(tmp_path / text) as staged:
            (staged / "file").write_text(text)
    folder = tmp_path / "old"
    (folder / "only old").write_text("")

    def read():
        found = (folder / "file").read_text(), (folder / "only old").exists()
        if found[0] == "old":  # as `_finish` does it: what goes is gone, and nothing is in its place yet
            (tmp_path / "new").rename(folder / ".commit")
            (folder / "only old").unlink()
            found = found[0], (folder / "only old").exists()
        return found

    def fstat(handle, real=os.fstat):
        about = real(handle)
        if not (folder / "only old").exists():
            finish_replacing(folder)
        return about

    monkeypatch.setattr(files.os, "fstat", fstat)
    assert read_together(folder, read) == ("new", False)


def test_what_a_reader_finds_wrong_is_said_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_together(tmp_path, (tmp_path / "config").read_text)


def test_a_checksum_finds_what_was_damaged_and_only_that(tmp_path):
    with replace_together(tmp_path) as staged:
        (staged / "weights").write_bytes(b"\x00" * 100)
        (staged / "config").write_text("{}")
    check_sums(tmp_path, "weights", "config", "not listed")
    (tmp_path / "weights").write_bytes(b"\x00" * 99 + b"\x01")
    check_sums(tmp_path, "config")
    with pytest.raises(ValueError, match=r"weights: damaged or changed, it does not fit SHA256SUMS beside it"):
        check_sums(tmp_path, "weights")
    renew_sum(tmp_path / "weights")
    check_sums(tmp_path, "weights", "config")
    (tmp_path / "config").unlink()
    with pytest.raises(ValueError, match="config: damaged"):
        check_sums(tmp_path, "config")


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs the program sha256sum")
def test_the_program_sha256sum_reads_the_checksums(tmp_path):
    with replace_together(tmp_path) as staged:
        (staged / "weights").write_bytes(b"\x00\xff\r\n")
    assert subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=tmp_path).returncode == 0
