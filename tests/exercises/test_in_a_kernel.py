"""Exercises in a real notebook kernel: endless answers, saved cells, cells given back, completion."""

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = {
    "imports": "import torch\nfrom coursework import exercises as ex\nfrom coursework.exercises.engine import guard",
    "endless": (
        "guard.SECONDS = 0.5\n"
        "def causal_mask(T, S):\n    while True:\n        pass\n\n\n"
        "causal_mask = ex.causal_mask.check(causal_mask)"
    ),
    "goes on": "print(causal_mask(1, 2))",
    "asleep": (
        "import time\nguard.SECONDS = 0.5\n"
        "def sleepy(T, S):\n    time.sleep(60)\n\n\n"
        "_ = ex.causal_mask.check(sleepy)\nguard.SECONDS = 5.0"
    ),
    "with a helper": (
        "def places(n):\n    return torch.arange(n)\n\n\n"
        "def causal_mask(T, S):\n    # my own idea\n    return places(S)[None] <= places(T)[:, None] + S - T\n\n\n"
        "causal_mask = ex.causal_mask.check(causal_mask)"
    ),
    "stub": "def f(T, S):\n    raise NotImplementedError\n\n\n_ = ex.causal_mask.check(f)",
    "lambda": "_ = ex.causal_mask.check(lambda T, S: torch.ones(T, S, dtype=torch.bool))",
    "error": "def f(T, S):\n    return T.shape\n\n\n_ = ex.causal_mask.check(f)",
    "class": (
        "class Mask:\n    def __call__(self, T, S):\n        return torch.ones(T, S).bool().tril(S - T)\n\n\n"
        "m = ex.causal_mask.check(Mask())\nprint(type(m).__name__)"
    ),
    "cases": "ex.causal_mask.cases()",
    "completion": "print(get_ipython().kernel.do_complete('ex.causal', 9)['matches'])",
    "offer": "print(get_ipython().kernel.do_complete('ex.causal_mask.', 15)['matches'])",
    "shown": "ex.causal_mask",
    "unknown": "try:\n    ex.causal_msk\nexcept AttributeError as error:\n    print(error)",
    "progress": "ex.progress()",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What each cell printed or returned, and the folder of the desk."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / ".course").mkdir()
    new = nbformat.v4
    names = [*CELLS, "restore", "reset"]
    sources = [*CELLS.values(), "ex.causal_mask.restore()", "ex.causal_mask.reset()"]
    notebook = new.new_notebook(cells=[new.new_code_cell(source) for source in sources])
    payloads = {}

    def executed(cell, cell_index, execute_reply):
        payloads[names[cell_index]] = execute_reply["content"].get("payload", [])

    client = NotebookClient(notebook, timeout=120, kernel_name="python3", on_cell_executed=executed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_DESK", str(desk))
        patch.setenv("CI", "")
        client.execute()
    texts = {}
    for name, cell in zip(names, notebook.cells, strict=True):
        assert not [output for output in cell.outputs if output.get("name") == "stderr"], cell.outputs
        parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        texts[name] = "".join(parts)
    return texts, payloads, desk


def test_endless_answers_are_stopped_and_the_notebook_goes_on(run):
    texts, _, _ = run
    assert "It was still running after 0.5 seconds and was stopped." in texts["endless"]
    assert texts["goes on"] == "tensor([[True, True]])\n"
    assert "It was still running after 0.5 seconds and was stopped." in texts["asleep"]


def test_the_whole_cell_is_saved(run):
    _, _, desk = run
    history = sorted((desk / "answers" / "history" / "causal_mask").glob("*.py"))
    texts = [path.read_text() for path in history]
    helped = next(text for text in texts if "my own idea" in text)
    assert "def places(n):" in helped
    assert "verdict: right" in helped
    assert any("while True" in text and "verdict: wrong" in text for text in texts)
    assert any("class Mask" in text for text in texts)
    assert any("lambda T, S" in text for text in texts)
    assert not any("raise NotImplementedError" in text for text in texts)


def test_every_kind_of_answer_is_understood(run):
    texts, _, _ = run
    assert texts["with a helper"].startswith("Right: causal_mask.")
    assert texts["stub"].startswith("Not attempted yet: causal_mask.")
    assert "behaves exactly like one that hides nothing at all" in texts["lambda"]
    assert "AttributeError: 'int' object has no attribute 'shape'. In the line: return T.shape" in texts["error"]
    assert texts["class"].endswith("Mask\n")


def test_what_the_exercise_offers_is_found(run):
    texts, _, _ = run
    assert texts["cases"].startswith("0. T=1, S=1: one token")
    assert "causal_mask" in texts["completion"]
    for name in ("check", "hint", "cases", "solution"):
        assert f"ex.causal_mask.{name}'" in texts["offer"] or f"'{name}'" in texts["offer"]
    assert "misconceptions" not in texts["offer"]
    assert texts["shown"] == "causal_mask: The causal mask (build, difficulty 2 of 5, about 8 min)"
    assert "Did you mean causal_mask?" in texts["unknown"]
    row = next(line for line in texts["progress"].splitlines() if " causal_mask " in line)
    assert "solved" in row


def test_cells_are_given_back_in_place(run):
    texts, payloads, _ = run
    (restored,) = payloads["restore"]
    assert restored["source"] == "set_next_input"
    assert restored["replace"] is True
    assert "class Mask" in restored["text"]
    assert restored["text"].endswith("m = ex.causal_mask.check(Mask())\nprint(type(m).__name__)") or restored[
        "text"
    ].endswith("causal_mask = ex.causal_mask.check(causal_mask)")
    (reset,) = payloads["reset"]
    assert "raise NotImplementedError  # your code here" in reset["text"]
    assert texts["reset"] == ""
