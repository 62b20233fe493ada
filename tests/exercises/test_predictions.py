"""Guesses that a learner writes down before a cell shows the answer: kept, never judged, never in the way."""

import threading

import nbformat
import pytest
from nbclient import NotebookClient

from coursework import exercises as ex
from coursework.desk.store import Desk

ASKED = "Write your guess between the quotes and run the cell again, then go on.\n"
KEPT = "Your guess is kept. Go on, and compare.\n"
NOTED = "Your guess is noted until this session ends. Go on, and compare.\n"


@pytest.fixture(autouse=True)
def _fresh_session(monkeypatch):
    ex._learner.cache_clear()
    monkeypatch.setenv("CI", "true")  # no desk


@pytest.fixture
def desk(tmp_path, monkeypatch):
    (tmp_path / ".course").mkdir()
    monkeypatch.delenv("CI")
    monkeypatch.setenv("COURSE_DESK", str(tmp_path))
    return Desk(tmp_path)


def lines(desk):
    text = (desk.folder / "predictions.txt").read_text(encoding="utf-8")
    return [line.split(" | ", 1)[1] for line in text.splitlines()]


@pytest.mark.parametrize("guess", ["", "  \n"])
def test_an_empty_guess_is_asked_for_and_not_kept(guess, desk, capsys):
    ex.predict("rotary_moved", guess)
    assert capsys.readouterr().out == ASKED
    assert not (desk.folder / "predictions.txt").exists()


def test_a_guess_is_kept_with_its_history(desk, capsys):
    ex.predict("rotary_moved", "it stays")
    ex.predict("rotary_moved", "it stays")  # the cell run again
    ex.predict("masked", "  two | three,\n as the mask says ü")
    ex.predict("rotary_moved", "it moves")
    assert capsys.readouterr().out == 4 * KEPT
    assert lines(desk) == [
        "rotary_moved | it stays",
        "masked | two | three, as the mask says ü",
        "rotary_moved | it moves",
    ]
    ex._learner.cache_clear()  # another day
    ex.predictions()
    assert capsys.readouterr().out == (
        "prediction    your guess\nrotary_moved  it moves\nmasked        two | three, as the mask says ü\n"
    )


def test_where_nothing_is_saved_the_session_remembers(capsys):
    ex.predictions()
    ex.predict("first", "a half")
    ex.predict("long_one", "x" * 60)
    ex.predictions()
    rows = f"prediction  your guess\nfirst       a half\nlong_one    {'x' * 49}…\n"
    assert capsys.readouterr().out == f"No predictions yet.\n{NOTED}{NOTED}{rows}"


@pytest.mark.parametrize(
    ("name", "guess", "error", "complaint"),
    [
        (3, "a", TypeError, "^name: expected a text such as 'rotary_moved', got int"),
        ("Rotary moved", "a", ValueError, "^name: expected small letters.*, got 'Rotary moved'"),
        ("x" * 41, "a", ValueError, "^name: "),
        ("moved\n", "", ValueError, "^name: "),
        ("moved", 3, TypeError, "^guess: expected a text between quotes, got int"),
        ("moved", None, TypeError, "^guess: "),
    ],
)
def test_bad_input_is_refused_by_name(name, guess, error, complaint):
    with pytest.raises(error, match=complaint):
        ex.predict(name, guess)


def test_a_damaged_file_loses_nothing_and_stops_nobody(desk, capsys):
    damage = b"\xff\xfe half a line\n2026 | fine | still here\n2026 | cut off"
    (desk.folder / "predictions.txt").write_bytes(damage)
    ex.predict("moved", "yes")
    ex.predictions()
    assert capsys.readouterr().out == f"{KEPT}prediction  your guess\nfine        still here\nmoved       yes\n"
    assert (desk.folder / "predictions.txt").read_bytes().startswith(damage + b"\n")


def test_a_desk_that_cannot_be_written_is_said_and_no_more(desk, capsys, monkeypatch):
    from coursework.desk import store

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write_atomic", full)
    ex.predict("moved", "yes")
    ex.predictions()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"Your guess could not be saved in {desk.folder}: No space left on device."
    assert said[1:] == [NOTED.strip(), "prediction  your guess", "moved       yes"]
    monkeypatch.undo()
    monkeypatch.setenv("COURSE_DESK", str(desk.folder))
    monkeypatch.delenv("CI", raising=False)
    (desk.folder / "predictions.txt").mkdir()  # something else lies there
    ex.predict("moved", "no")
    ex.predictions()
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Your guess could not be saved in ")
    assert said[-1] == "moved       no"


def test_guesses_of_several_kernels_are_all_kept(desk):
    def guess(kernel):
        for number in range(5):
            desk.save_prediction(f"moved_{kernel}", str(number))

    threads = [threading.Thread(target=guess, args=(kernel,)) for kernel in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(desk)) == 20
    assert desk.predictions() == {f"moved_{kernel}": "4" for kernel in range(4)}


def test_it_works_in_a_kernel(tmp_path):
    (tmp_path / ".course").mkdir()
    cells = [
        "from coursework import exercises as ex",
        'ex.predict("rotary_moved", "")',
        'ex.predict("rotary_moved", "it moves")',
        "ex.predictions()",
        "print(get_ipython().kernel.do_complete('ex.predict', 10)['matches'])",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_DESK", str(tmp_path))
        patch.setenv("CI", "")
        NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    said = ["".join(output.get("text", str(output)) for output in cell.outputs) for cell in notebook.cells]
    assert said[1:4] == [ASKED, KEPT, "prediction    your guess\nrotary_moved  it moves\n"]
    assert "predict" in said[4]
    assert "predictions" in said[4]
    assert lines(Desk(tmp_path)) == ["rotary_moved | it moves"]
