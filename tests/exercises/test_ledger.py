"""A line of the ledger holds for what was proved: other code, other counts or another torch need a new proof."""

import ledger
import pytest
import torch

from coursework.exercises import registry
from coursework.exercises.engine import diagnose

TEXT = '"""Doc."""\n\n\ndef f(x):\n    """Doc."""\n    return x + 1\n'


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        (TEXT.replace("Doc.", "Words."), True),
        (TEXT.replace("return", "# why\n    return"), True),
        (TEXT.replace("x + 1", "(x\n        + 1)"), True),
        (TEXT.replace("x + 1", "1 + x"), False),
        (TEXT.replace("def f", "@cache\ndef f"), False),
    ],
)
def test_layout_comments_and_docstrings_do_not_count(monkeypatch, tmp_path, changed, same):
    monkeypatch.setattr(ledger, "ROOT", tmp_path)
    for name, text in (("one.py", TEXT), ("other.py", changed)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert (ledger.read(tmp_path / "one.py")[0] == ledger.read(tmp_path / "other.py")[0]) is same


def test_a_proof_rests_on_the_exercise_the_engine_the_package_and_the_tests():
    module = registry.get("causal_mask").reference.__module__
    files = ledger.rests_on(*ledger.files_of(module), *ledger.proofs())
    names = {path.relative_to(ledger.ROOT).as_posix() for path in files}
    for wanted in (module, diagnose.__name__, "course_lib.masks"):
        assert f"{wanted.replace('.', '/')}.py" in names
    assert {"tests/exercises/test_mutants.py", "tests/exercises/mutants.py", "tests/exercises/proofs.py"} <= names
    assert not any(name.startswith(module.rpartition(".")[0].replace(".", "/") + "/padding") for name in names)


def test_a_line_with_other_counts_another_torch_or_for_another_exercise_does_not_hold(monkeypatch):
    counts = {"mutants": 12, "killed": 12}
    hashed = ledger.digest("causal_mask", counts)
    assert hashed == ledger.digest("causal_mask", dict(counts))
    assert hashed != ledger.digest("causal_mask", counts | {"killed": 11})
    assert hashed != ledger.digest("padding_mask", counts)
    monkeypatch.setattr(torch, "__version__", "0.0.1")
    assert hashed != ledger.digest("causal_mask", counts)
    monkeypatch.setattr(ledger, "lines", lambda: {"causal_mask": (hashed, counts)})
    assert ledger.proved.__wrapped__("causal_mask") is None
    monkeypatch.undo()
    monkeypatch.setattr(ledger, "lines", lambda: {"causal_mask": (hashed, counts)})
    assert ledger.proved.__wrapped__("causal_mask") == counts
    assert ledger.proved.__wrapped__("padding_mask") is None
