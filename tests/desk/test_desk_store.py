import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from coursework.desk.finding import find_desk, locate_desk
from coursework.desk.store import Desk
from coursework.exercises.learner import state_of


@pytest.fixture
def empty(tmp_path: Path) -> Desk:
    folder = tmp_path / "bureau d'été"
    (folder / ".course").mkdir(parents=True)
    return Desk(folder)


def test_answers_are_kept_with_their_history(empty: Desk) -> None:
    empty.save_answer("causal_mask", "first", "wrong", "e1")
    empty.record_hint("causal_mask")
    empty.save_answer("causal_mask", "second é", "right", "e1")
    assert empty.attempts("causal_mask") == 2
    entry = empty.progress()["causal_mask"]
    assert (entry["attempts"], entry["hints"], entry["verdict"], entry["solved"]) == (2, 1, "right", True)
    assert empty.latest_answer("causal_mask") == "second é\n"
    assert [body for _, body in empty.history("causal_mask")] == ["first\n", "second é\n"]
    assert (empty.answers / "history" / "causal_mask" / "0002.py").exists()
    assert (empty.answers / "causal_mask.py").read_text(encoding="utf-8").endswith("second é\n")
    compile(
        (empty.answers / "causal_mask.py").read_text(encoding="utf-8").replace("second é", "x = 1"), "answer", "exec"
    )


def test_running_the_notebook_again_is_no_new_attempt(empty: Desk) -> None:
    for _ in range(3):
        empty.save_answer("causal_mask", "same", "wrong", "e1")
    assert empty.attempts("causal_mask") == 1
    empty.save_answer("causal_mask", "same", "wrong", "e2")  # judged against another edition: that is new
    assert empty.attempts("causal_mask") == 2


def test_solved_stays_solved_and_names_an_older_edition(empty: Desk) -> None:
    assert state_of(empty.progress().get("causal_mask"), "e1") == "not tried"
    empty.save_answer("causal_mask", "a", "wrong", "e1")
    assert state_of(empty.progress().get("causal_mask"), "e1") == "tried"
    empty.save_answer("causal_mask", "b", "right", "e1")
    empty.save_answer("causal_mask", "c", "wrong", "e2")
    assert state_of(empty.progress().get("causal_mask"), "e1") == "solved"
    assert state_of(empty.progress().get("causal_mask"), "e2") == "solved against an older edition"
    assert empty.latest_answer("causal_mask", right=True) == "b\n"
    assert state_of(None) == "not tried"


def test_an_unchecked_answer_is_kept_but_no_attempt(empty: Desk) -> None:
    empty.save_answer("causal_mask", "draft", "unchecked", "")
    assert empty.attempts("causal_mask") == 0
    assert empty.latest_answer("causal_mask") == "draft\n"


@pytest.mark.parametrize("bad", ["", "../up", "a b", "a/b", "0", 3, None])
def test_ids_that_are_no_names_are_refused(empty: Desk, bad: object) -> None:
    with pytest.raises(ValueError, match="exercise_id"):
        empty.save_answer(bad, "x", "right", "e")  # type: ignore[arg-type]


def test_where_the_desk_is(empty: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = empty.folder / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    found = find_desk()
    assert found is not None
    assert found.folder == empty.folder
    monkeypatch.setenv("CI", "true")
    assert find_desk() is None
    assert locate_desk() is not None
    monkeypatch.setenv("CI", "false")
    assert find_desk() is not None
    monkeypatch.chdir(tmp_path)
    assert find_desk() is None
    monkeypatch.setenv("COURSE_DESK", str(empty.folder))
    assert find_desk() is not None
    monkeypatch.setenv("COURSE_DESK", str(tmp_path / "none"))
    assert find_desk() is None


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "binary": lambda data: b"\xff\xfe\x00" + data,
    "a list": lambda data: b"[]",
    "wrong types": lambda data: data.replace(b'"attempts": 2', b'"attempts": "two"'),
    "negative": lambda data: data.replace(b'"attempts": 2', b'"attempts": -2'),
    "an entry that is none": lambda data: data.replace(b'"exercises": {', b'"exercises": {"combine_masks": 3,'),
    "too deep": lambda data: b"[" * 100_000,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_progress_is_set_aside_and_rebuilt(empty: Desk, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    empty.record_hint("causal_mask")
    empty.save_answer("causal_mask", "a", "right", "e1")
    empty.save_answer("causal_mask", "b", "wrong", "e1")
    empty.save_answer("padding_mask", "c", "wrong", "e1")
    before = empty.progress()
    path = empty.private / "progress.json"
    damaged = DAMAGE[how](path.read_bytes())
    path.write_bytes(damaged)
    capsys.readouterr()
    assert empty.progress() == before
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert "progress.damaged-1.json" in out
    assert (empty.private / "progress.damaged-1.json").read_bytes() == damaged
    empty.save_answer("padding_mask", "d", "right", "e1")
    assert empty.attempts("padding_mask") == 2
    assert empty.progress()["causal_mask"] == before["causal_mask"]
    assert capsys.readouterr().out == ""


def test_a_summary_that_missed_an_answer_is_corrected(empty: Desk) -> None:
    empty.save_answer("causal_mask", "a", "wrong", "e1")
    old = (empty.private / "progress.json").read_bytes()
    empty.save_answer("causal_mask", "b", "right", "e1")
    (empty.private / "progress.json").write_bytes(old)  # as after a crash between the two writes
    assert empty.attempts("causal_mask") == 2
    assert empty.progress()["causal_mask"]["solved"]


def _save_many(folder: str, who: int) -> None:
    desk = Desk(folder)
    for number in range(8):
        desk.save_answer("causal_mask", f"answer {number} of {who}", "wrong", "e1")
        desk.record_hint("padding_mask")


def test_several_kernels_at_once_lose_nothing(empty: Desk) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_save_many, args=(str(empty.folder), who)) for who in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    wanted = {f"answer {number} of {who}\n" for who in range(4) for number in range(8)}
    assert {body for _, body in empty.history("causal_mask")} == wanted
    assert empty.attempts("causal_mask") == 32
    assert empty.progress()["padding_mask"]["hints"] == 32


def test_several_threads_at_once_lose_nothing(empty: Desk) -> None:
    threads = [threading.Thread(target=_save_many, args=(str(empty.folder), who)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert empty.attempts("causal_mask") == 32


def test_a_lock_that_stays_taken_is_one_line(
    empty: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("coursework.desk.store.LOCK_SECONDS", 0.1)
    monkeypatch.setattr(Desk.lock, "__defaults__", (0.1,))
    other = Desk(empty.folder)
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with other.lock():
            ready.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(20)
    empty.save_answer("causal_mask", "a", "right", "e")
    done.set()
    thread.join()
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert "causal_mask could not be saved" in out


def test_a_desk_that_is_no_folder_any_more_is_one_line(empty: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    (empty.folder / "answers").write_text("a file where the folder should be")
    empty.save_answer("causal_mask", "a", "right", "e")
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert "not affected" in out
    assert empty.attempts("causal_mask") == 0


def test_hand_written_files_do_no_harm(empty: Desk) -> None:
    empty.save_answer("causal_mask", "a", "right", "e")
    (empty.answers / "history" / "causal_mask" / "notes.txt").write_text("mine")
    (empty.answers / "history" / "causal_mask" / "0002.py").write_bytes(b"no header \xff")
    (empty.answers / "history" / "not an id").mkdir()
    assert empty.attempts("causal_mask") == 1
    assert state_of(empty.progress().get("causal_mask")) == "solved"
    os.unlink(empty.answers / "causal_mask.py")
    assert empty.latest_answer("causal_mask", right=True) == "a\n"
