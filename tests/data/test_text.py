"""The texts that come with Python are real, the same in each run, and large enough to train on."""

import subprocess
import sys

import pytest

from course_lib.data import library_text, reference_text


def test_reference_text():
    text = reference_text()
    assert 300_000 < len(text) < 2_000_000
    assert 'The "if" statement is used for conditional execution' in " ".join(text.split())
    assert text.isprintable() or set(text) - {"\n"} <= {c for c in text if c.isprintable()}
    letters = sum(c.isascii() and (c.isalpha() or c.isspace()) for c in text)
    assert letters > 0.8 * len(text)


def share_seen_before(text, length=50):
    """Of pieces of the last tenth, how many stand word for word in the rest."""
    cut = len(text) * 9 // 10
    known = {text[i : i + length] for i in range(cut - length)}
    pieces = [text[i : i + length] for i in range(cut, len(text) - length, length)]
    return sum(piece in known for piece in pieces) / len(pieces)


def test_with_each_paragraph_once_what_is_held_out_is_new():
    once, whole = reference_text(each_once=True), reference_text()
    assert 200_000 < len(once) < len(whole)
    assert share_seen_before(once[:300_000]) < 0.06
    assert share_seen_before(once) < 0.06
    assert share_seen_before(whole[:300_000]) > 0.1  # why there is a choice
    paragraphs = [" ".join(paragraph.split()) for paragraph in once.split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs))
    assert {" ".join(paragraph.split()) for paragraph in whole.split("\n\n")} == set(paragraphs)


def test_library_text():
    text = library_text()
    assert len(text) > 3_000_000
    assert text.isascii()
    assert "class OrderedDict(dict):" in text
    tenth = len(text) // 10  # shuffled, so that the last part is like the first
    words = [part.count("return ") / tenth for part in (text[:tenth], text[-tenth:])]
    assert 0.4 < words[0] / words[1] < 2.5


@pytest.mark.parametrize("name", ["reference_text", "library_text"])
def test_a_text_is_the_same_in_another_process(name):
    code = f"import zlib; from course_lib.data.text import {name}; print(zlib.crc32({name}().encode()))"
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    )
    assert first == second


def test_a_python_without_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ImportError, match="installed without the texts of help"):
        reference_text.__wrapped__()


def test_a_python_without_its_source_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ImportError, match="installed without the source"):
        library_text.__wrapped__()
