"""The reference text is real, the same in each run, and large enough to train on."""

import subprocess
import sys

import pytest

from course_lib.data import reference_text


def test_reference_text():
    text = reference_text()
    assert 300_000 < len(text) < 2_000_000
    assert 'The "if" statement is used for conditional execution' in " ".join(text.split())
    assert text.isprintable() or set(text) - {"\n"} <= {c for c in text if c.isprintable()}
    letters = sum(c.isascii() and (c.isalpha() or c.isspace()) for c in text)
    assert letters > 0.8 * len(text)


def test_reference_text_is_the_same_in_another_process():
    code = "import zlib; from course_lib.data.text import reference_text; print(zlib.crc32(reference_text().encode()))"
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    )
    assert first == second


def test_a_python_without_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ImportError, match="installed without the texts of help"):
        reference_text.__wrapped__()
