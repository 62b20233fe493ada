"""The texts are real, the same in each run and on each Python, and large enough to train on."""

import hashlib
import subprocess
import sys

import pytest

from coursework.corpora import library_text, reference_text, tiny_shakespeare


def sha256(text):
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def test_reference_text():
    """What is stored and recorded was made with this text: no version of Python may have another."""
    text = reference_text()
    assert len(text) == 465_047
    assert sha256(text) == "d9dc35bce5ab1a24ed7f4c3c9b7c22450410e9d68279e3426db458c6be371621"
    assert 'The "if" statement is used for conditional execution' in " ".join(text.split())
    once = reference_text(each_once=True)
    assert len(once) == 373_231
    assert sha256(once) == "a534e4509ab48dfeeffc3ea21028752d4dad6cfdff99930985289b484570389d"


def test_the_shipped_reference_is_that_of_python():
    if sys.version_info[:3] != (3, 11, 7):
        pytest.skip("the text is that of Python 3.11.7")
    from pydoc_data.topics import topics

    assert reference_text() == "\n\n".join(topics[name].strip() for name in sorted(topics))


def test_tiny_shakespeare():
    text = tiny_shakespeare()
    assert len(text) == 1_115_394
    assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.")
    assert sha256(text) == "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"  # as char-rnn has it


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


def test_the_library_is_the_same_in_another_process():
    code = "import zlib; from coursework.corpora import library_text; print(zlib.crc32(library_text().encode()))"
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    )
    assert first == second


def test_a_python_without_its_source_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(ImportError, match="installed without the source"):
        library_text.__wrapped__()
