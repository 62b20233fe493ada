"""Interrupts, crashes and full or read-only disks at every moment: nothing of the learner's is lost, one clear line."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from desk_simulation import Course, Learner
from desk_tools import Fault, edit, exercise_cells, load, save, snapshot, text_of, texts

from coursework.desk import answers, copies, rescue, updates
from coursework.desk.notebooks import read_notebook
from coursework.desk.store import Desk, DeskError
from coursework.exercises.learner import state_of

ONE = "01_attention.ipynb"
TWO = "02_heads.ipynb"


FAULTS = {"interrupt": KeyboardInterrupt, "full disk": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))}


def worked(course: Path, desk: Desk, seed: int = 7) -> None:
    """Let a learner work on both chapters, and the course bring out another edition of both."""
    rng = random.Random(seed)
    for number, name in enumerate((ONE, TWO), start=1):
        learner = Learner(rng, read_notebook(desk.folder / name))
        learner.work()
        save(desk.folder / name, learner.notebook)
        writer = Course(rng)
        writer.number = 1000 * number
        save(course / name, writer.next(load(course / name)))


def no_temporary_files(desk: Desk) -> bool:
    return not list(desk.folder.rglob("*.tmp"))


def learners_texts(folder: Path) -> set[str]:
    """What the learner wrote, in all notebooks of the desk."""
    found = {text for path in folder.glob("*.ipynb") for text in texts(path).values()}
    return {text for text in found if "by the learner" in text}


@pytest.mark.parametrize("fault", FAULTS)
def test_start_survives_a_fault_at_every_step(course: Path, tmp_path: Path, fault: str) -> None:
    whole = copies.create(tmp_path / "whole").desk
    wanted = snapshot(whole.folder)
    at = 0
    while True:
        at += 1
        folder = tmp_path / "parts" / str(at)
        with pytest.MonkeyPatch.context() as patch:
            injected, said = Fault(patch, at, FAULTS[fault]), []
            try:
                said += copies.create(folder).problems
            except (KeyboardInterrupt, DeskError) as problem:
                said.append(str(problem))
        assert len(said) == injected.happened
        assert all(len(line.splitlines()) == (fault != "interrupt") for line in said)
        for path in folder.glob("*.ipynb"):
            assert path.read_bytes() == wanted[path.name]  # whole or not there
        copies.create(folder)
        assert snapshot(folder) == wanted
        if not injected.happened:
            break
    assert at > 12


@pytest.mark.parametrize("fault", FAULTS)
def test_update_survives_a_fault_at_every_step(course: Path, desk: Desk, tmp_path: Path, fault: str) -> None:
    worked(course, desk)
    before = desk.folder.rename(tmp_path / "before")
    shutil.copytree(before, tmp_path / "whole")
    updates.update(Desk(tmp_path / "whole"))
    wanted = {name: (tmp_path / "whole" / name).read_bytes() for name in (ONE, TWO)}
    assert wanted[ONE] != (before / ONE).read_bytes()
    at = 0
    while True:
        at += 1
        folder = tmp_path / "parts" / str(at)
        shutil.copytree(before, folder)
        part = Desk(folder)
        with pytest.MonkeyPatch.context() as patch:
            injected, problem = Fault(patch, at, FAULTS[fault]), None
            try:
                updates.update(part)
            except (KeyboardInterrupt, DeskError) as caught:
                problem: BaseException | None = caught
        assert (problem is not None) == injected.happened
        assert fault == "interrupt" or problem is None or "The update stopped" in str(problem)
        for name in (ONE, TWO):
            assert (folder / name).read_bytes() in ((before / name).read_bytes(), wanted[name])
        assert no_temporary_files(part)
        updates.update(part)
        for name in (ONE, TWO):
            assert (folder / name).read_bytes() == wanted[name]
        if not injected.happened:
            break
        shutil.rmtree(folder)
    assert at > 20


@pytest.mark.parametrize("fault", FAULTS)
def test_saving_survives_a_fault_at_every_step(
    desk: Desk, fault: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    desk.save_answer("causal_mask", "old", "wrong", "e1")
    before = desk.folder
    at = 0
    while True:
        at += 1
        folder = tmp_path / "parts" / str(at)
        shutil.copytree(before, folder)
        part = Desk(folder)
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            injected = Fault(patch, at, FAULTS[fault])
            try:
                part.save_answer("causal_mask", "new", "right", "e1")
            except KeyboardInterrupt:
                assert fault == "interrupt"
        out = capsys.readouterr().out
        if injected.happened and fault != "interrupt":
            assert len(out.splitlines()) == 1
            assert "not affected" in out
        assert part.latest_answer("causal_mask") in ("old\n", "new\n")
        assert part.history("causal_mask")[0][1] == "old\n"
        assert part.attempts("causal_mask") == len(part.history("causal_mask"))
        part.save_answer("causal_mask", "new", "right", "e1")
        assert part.progress()["causal_mask"]["attempts"] == 2
        assert part.latest_answer("causal_mask") == "new\n"
        if not injected.happened:
            break
    assert at > 10


@pytest.mark.parametrize("fault", FAULTS)
def test_reset_and_rescue_survive_a_fault_at_every_step(course: Path, desk: Desk, tmp_path: Path, fault: str) -> None:
    cells = exercise_cells(desk.folder / ONE)
    name = next(iter(cells))
    stub = texts(desk.folder / ONE)[cells[name]]
    mine = f"def {name}(x):\n    return x\n\n\n{name} = ex.{name}.check({name})"
    edit(desk.folder / ONE, cells[name], mine)
    before = desk.folder
    at = 0
    while True:
        at += 1
        folder = tmp_path / "parts" / str(at)
        shutil.copytree(before, folder)
        part = Desk(folder)
        happened = False
        for action in (lambda part=part: answers.reset(part, [name]), lambda part=part: rescue.rescue(part)):
            with pytest.MonkeyPatch.context() as patch:
                injected = Fault(patch, at, FAULTS[fault])
                try:
                    action()
                except (KeyboardInterrupt, OSError, DeskError):
                    assert injected.happened
            happened = happened or injected.happened
            kept = [body.strip() for _, body in part.history(name)]
            assert mine in [texts(folder / ONE)[cells[name]], *kept]
        answers.reset(part, [name])
        assert texts(folder / ONE)[cells[name]] == stub
        assert rescue.rescue(part).filled == [name]
        assert texts(folder / ONE)[cells[name]] == mine
        if not happened:
            break
    assert at > 8


# -- killed ------------------------------------------------------------------------------------------------------------

SLOW = """
import os, sys, time
real = {name: getattr(os, name) for name in ("fsync", "replace", "chmod")}
def slow(name):
    def step(*a, **k):
        time.sleep(0.004)
        try:
            return real[name](*a, **k)
        finally:
            time.sleep(0.004)
    return step
for name in real:
    setattr(os, name, slow(name))
print("go", flush=True)
from coursework.cli import app
app(sys.argv[1:])
"""


def killed(arguments: list[str], after: float) -> bool:
    """Run the command with slow writes, and kill it so long after it started; return whether it was still running."""
    process = subprocess.Popen([sys.executable, "-c", SLOW, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(after)
    running = process.poll() is None
    process.kill()
    process.communicate()
    return running


def test_start_killed_at_random_moments(course: Path, tmp_path: Path) -> None:
    wanted = snapshot(copies.create(tmp_path / "whole").desk.folder)
    rng = random.Random(3)
    interrupted = 0
    for number in range(12):
        folder = tmp_path / "killed" / str(number)
        interrupted += killed(["start", "--folder", str(folder)], rng.uniform(0.05, 0.6))
        for path in folder.glob("*.ipynb"):
            assert path.read_bytes() == wanted[path.name]
        copies.create(folder)
        assert snapshot(folder) == wanted
    assert interrupted > 2


def test_update_killed_at_random_moments(course: Path, desk: Desk, tmp_path: Path) -> None:
    worked(course, desk)
    before = desk.folder.rename(tmp_path / "before")
    shutil.copytree(before, tmp_path / "whole")
    updates.update(Desk(tmp_path / "whole"))
    wanted = {name: (tmp_path / "whole" / name).read_bytes() for name in (ONE, TWO)}
    written = learners_texts(before)
    assert len(written) > 3
    rng = random.Random(4)
    interrupted = 0
    for number in range(12):
        folder = tmp_path / "killed" / str(number)
        shutil.copytree(before, folder)
        interrupted += killed(["--folder", str(folder), "update"], rng.uniform(0.05, 1.5))
        assert learners_texts(folder) >= written
        updates.update(Desk(folder))
        for name in (ONE, TWO):
            assert (folder / name).read_bytes() == wanted[name]
        assert no_temporary_files(Desk(folder))
    assert interrupted > 2


def test_what_a_killed_process_left_is_removed_wherever_the_desk_writes(course: Path, desk: Desk) -> None:
    desk.save_answer("scale", "x = 1", "right", "1")
    updates.update(desk)
    folders = [desk.private / "backup" / "2026-01-01-000000-update", desk.answers / "history" / "scale"]
    folders += [desk.folder, desk.folder / "labs", desk.private, desk.private / "base", desk.answers]
    left = [folder / ".01_attention.ipynb.6lfoncgi.tmp" for folder in folders]
    mine = [desk.folder / "notes.tmp", desk.folder / "own" / left[0].name]
    for path in (*left, *mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    updates.update(desk)
    assert not [path for path in left if path.exists()]
    assert all(path.exists() for path in mine)


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_is_one_line(course: Path, tmp_path: Path) -> None:
    script = SLOW.replace("0.004", "0.5")
    folder = tmp_path / "my"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "start", "--folder", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (folder / ".course" / "base").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert "stopped" in err


# -- real file systems -------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB of its own, where that is allowed."""
    folder = tmp_path / "petit disque"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root; the injected faults above cover the same writes")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "filler"

    def write() -> None:
        with path.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"\0" * 1024)

    with pytest.raises(OSError, match="No space left"):
        write()
    return path


def command(*arguments: str, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    script = "from coursework.cli import app; app()"
    if limit is not None:
        script = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); {script}"
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)


def test_a_full_disk(course: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small_disk / "my"
    filler = fill(small_disk)
    result = command("start", "--folder", str(folder))
    assert result.returncode == 2
    assert "No space left on device" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(folder.glob("*.ipynb"))

    filler.unlink()
    assert command("start", "--folder", str(folder)).returncode == 0
    desk = Desk(folder)
    worked(course, desk)
    before = {name: (folder / name).read_bytes() for name in (ONE, TWO)}
    filler = fill(small_disk)
    result = command("--folder", str(folder), "update")
    assert result.returncode == 2
    assert "No space left on device" in result.stderr
    assert {name: (folder / name).read_bytes() for name in (ONE, TWO)} == before

    desk.save_answer("causal_mask", "x" * 5000, "right", "e")
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert "No space left on device" in out

    filler.unlink()
    written = learners_texts(folder)
    assert command("--folder", str(folder), "update").returncode == 0
    assert learners_texts(folder) >= written
    desk.save_answer("causal_mask", "x", "right", "e")
    assert state_of(desk.progress().get("causal_mask")) == "solved"


def test_a_read_only_disk(course: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = copies.create(small_disk / "my").desk
    desk.save_answer("causal_mask", "x", "wrong", "e")
    worked(course, desk)
    before = snapshot(desk.folder)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for arguments in (["start", "--folder", str(desk.folder)], ["--folder", str(desk.folder), "update"]):
        result = command(*arguments)
        assert result.returncode == 2
        assert "Read-only file system" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    desk.save_answer("causal_mask", "y", "right", "e")
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert "Read-only" in out
    assert state_of(desk.progress().get("causal_mask")) == "tried"  # reading still works
    assert snapshot(desk.folder) == before


@pytest.mark.skipif(os.name != "posix", reason="limits the size of files")
def test_a_quota(course: Path, tmp_path: Path) -> None:
    result = command("start", "--folder", str(tmp_path / "my"), limit=2000)
    assert result.returncode == 2
    assert "could not be written: File too large" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list((tmp_path / "my").glob("*.ipynb"))
    assert command("start", "--folder", str(tmp_path / "my")).returncode == 0


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(course: Path, tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o555)
    with pytest.raises(DeskError, match="Permission denied"):
        copies.create(tmp_path / "shut" / "my")


# -- damaged, missing and old notebooks --------------------------------------------------------------------------------


def test_a_truncated_notebook_is_left_alone_and_rescued(course: Path, desk: Desk) -> None:
    worked(course, desk)
    path = desk.folder / ONE
    written = [text for text in texts(path).values() if "by the learner" in text]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    truncated = path.read_bytes()

    reports = {report.name: report for report in updates.update(desk)}
    assert reports[ONE].outcome == "failed"
    assert "course rescue" in reports[ONE].note
    assert reports[TWO].outcome == updates.UPDATED
    assert path.read_bytes() == truncated
    started = copies.create(desk.folder)
    assert any("course rescue" in line for line in started.problems)

    report = rescue.rescue(desk)
    assert any("rebuilt" in line for line in report.lines)
    kept = list((desk.private / "backup").rglob("*.damaged.ipynb"))
    assert [one.read_bytes() for one in kept] == [truncated]
    found = set(texts(path).values())
    for text in written:  # all that can still be read of it
        if text.split("\n")[-1] in truncated.decode(errors="ignore").rsplit('"source"', 1)[0]:
            assert text in found
    assert len(exercise_cells(path)) >= len(exercise_cells(course / ONE)) - 3
    assert updates.update(desk)[0].outcome == updates.UPDATED
    assert rescue.rescue(desk).lines == []


@pytest.mark.parametrize(
    "content", [b"", b"   ", b"null", b"[]", b"{}", b'{"cells": 3}', b'{"cells": [3]}', b"\xff\x00"]
)
def test_a_notebook_of_which_nothing_is_left(course: Path, desk: Desk, content: bytes) -> None:
    fresh = (desk.folder / ONE).read_bytes()
    (desk.folder / ONE).write_bytes(content)
    assert updates.update(desk)[0].outcome == "failed"
    assert rescue.rescue(desk).lines
    assert texts(desk.folder / ONE) == {cell["id"]: text_of(cell) for cell in load(course / ONE)["cells"]}
    assert (desk.folder / ONE).read_bytes() == fresh


def test_jupyters_checkpoint_and_backups_help(course: Path, desk: Desk) -> None:
    path = desk.folder / ONE
    cells = exercise_cells(path)
    last = cells[list(cells)[-1]]
    edit(path, last, "the answer in the checkpoint, by the learner")
    (desk.folder / ".ipynb_checkpoints").mkdir()
    shutil.copy(path, desk.folder / ".ipynb_checkpoints" / "01_attention-checkpoint.ipynb")
    path.write_bytes(path.read_bytes()[:300])
    rescue.rescue(desk)
    assert texts(path)[last] == "the answer in the checkpoint, by the learner"


def test_a_missing_notebook_comes_back_fresh(course: Path, desk: Desk) -> None:
    (desk.folder / ONE).unlink()
    report = copies.create(desk.folder)
    assert report.replaced == [ONE]
    (desk.folder / TWO).unlink()
    assert [one.outcome for one in updates.update(desk)] == [updates.UP_TO_DATE, updates.NEW]


def test_a_desk_from_an_older_edition_is_named(course: Path, desk: Desk) -> None:
    worked(course, desk)
    report = copies.create(desk.folder)
    assert report.older == [ONE, TWO]
    assert report.added == report.replaced == []


@pytest.mark.parametrize("damage", ["deleted", "truncated"])
def test_without_its_base_every_difference_counts_as_the_learners(course: Path, desk: Desk, damage: str) -> None:
    worked(course, desk)
    before = texts(desk.folder / ONE)
    for path in (desk.private / "base").iterdir():
        path.unlink() if damage == "deleted" else path.write_bytes(path.read_bytes()[:100])
    report = updates.update(desk)[0]
    assert report.outcome == updates.UPDATED
    assert "not known" in report.note
    assert set(before.values()) <= set(texts(desk.folder / ONE).values())
    assert [one.outcome for one in updates.update(desk)] == [updates.UP_TO_DATE] * 2


def test_an_old_copy_put_back_is_merged_from_its_own_edition(course: Path, desk: Desk) -> None:
    worked(course, desk)
    old = (desk.folder / ONE).read_bytes()
    updates.update(desk)
    new = (desk.folder / ONE).read_bytes()
    (desk.folder / ONE).write_bytes(old)
    assert updates.update(desk)[0].outcome == updates.UPDATED
    assert (desk.folder / ONE).read_bytes() == new


def test_a_notebook_without_ids_or_stamp(course: Path, desk: Desk) -> None:
    """As an old editor saves it: format 4.4, and no metadata that it does not know."""
    path = desk.folder / ONE
    cells = exercise_cells(path)
    name = next(iter(cells))
    edit(path, cells[name], f"def {name}(x):\n    return 'by the learner'")
    notebook = load(path)
    notebook["nbformat_minor"] = 4
    del notebook["metadata"]["course"]
    for cell in notebook["cells"]:
        del cell["id"]
    save(path, notebook)
    edit(course / ONE, "imports", "import another")
    assert updates.update(desk)[0].outcome == updates.UPDATED
    after = texts(path)
    assert after[cells[name]].endswith("'by the learner'")
    assert after["imports"] == "import another"
    assert list(after) == [cell["id"] for cell in load(course / ONE)["cells"]]


def test_an_editor_that_saves_meanwhile_is_not_overwritten(
    course: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked(course, desk)
    path = desk.folder / ONE
    real: Callable[..., None] = updates.write_atomic
    late = {"done": False}

    def write(target: Path, data: bytes) -> None:
        real(target, data)
        if not late["done"]:  # the backup was written; now the editor saves
            late["done"] = True
            edit(path, "imports", "saved late by the learner")

    monkeypatch.setattr(updates, "write_atomic", write)
    assert updates.update(desk)[0].outcome == updates.UPDATED
    assert "saved late by the learner" in texts(path).values()
