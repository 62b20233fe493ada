"""Files of one's own: every form gives the same rows, what is wrong is named by its line, and a split is for good."""

import csv
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coursework.corpora.own import SPLITS, lacks_header, read_rows, read_splits

WANTED = ("text", "label")
ROWS = [('say "a", or b', "x"), ("two\nlines; here", "y"), ("ñ\u2028é", "x")]


def as_csv(path, rows, header=WANTED, **options):
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, **options).writerows([header, *rows])
    return path


def test_names_of_columns_are_for_files_that_have_a_header(tmp_path):
    (tmp_path / "train.tsv").write_text("from\tto\na\tb\n")
    (tmp_path / "bare.tsv").write_text("a\tb\n")
    for name, lacking in (("", False), ("train.tsv", False), ("bare.tsv", True), ("none.tsv", False), ("x.csv", False)):
        assert lacks_header(str(tmp_path / name), ["to", "from"]) == lacking
    with pytest.raises(ValueError, match=r"or none for a \.tsv without a header"):
        read_rows(tmp_path / "bare.tsv", WANTED, ["from", "to"])


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_csv_with_quotes(tmp_path, delimiter):
    path = as_csv(tmp_path / "a.csv", ROWS, delimiter=delimiter)
    assert read_rows(path, WANTED).rows == ROWS
    path = as_csv(path, [(1, *row) for row in ROWS], ("id", "review", "stars"), delimiter=delimiter)
    assert read_rows(path, WANTED, ["review", "stars"]).rows == ROWS
    with pytest.raises(ValueError, match=r"expected text and label in the header of .*, got id, review, stars; name"):
        read_rows(path, WANTED)


def test_the_other_forms(tmp_path):
    lines = [json.dumps({"text": text, "label": label, "more": [1]}) for text, label in ROWS]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, json.dumps({"text": "n", "label": 3}), ""]))
    assert read_rows(tmp_path / "a.jsonl", WANTED).rows == [*ROWS, ("n", "3")]
    (tmp_path / "a.tsv").write_bytes("\ufeffein Haus\ta house\r\n\r\neine Katze\ta \u2028cat\r\n".encode())
    assert read_rows(tmp_path / "a.tsv", WANTED).rows == [("ein Haus", "a house"), ("eine Katze", "a \u2028cat")]
    for name, text in (("x/1", "one"), ("x/2", "two"), ("y/3", "three")):
        (tmp_path / "texts" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    assert read_rows(tmp_path / "texts", WANTED).rows == [("one", "x"), ("two", "x"), ("three", "y")]
    assert read_rows(tmp_path / "texts", ("text",)).rows == [("one",), ("two",), ("three",)]


def test_what_is_wrong_is_named_by_its_line(tmp_path):
    bad = [b"one column", b"a,b,c", b",label", b"text,", b'"open,x', b"\xff,x", b'"q"r,x']
    good = b'"a\nb",x'
    path = tmp_path / "a.csv"
    path.write_bytes(b"\n".join([b"text,label", *(part for one in bad for part in (good, one)), good]) + b"\n")
    found = read_rows(path, WANTED)
    assert len(found.rows) == len(bad) + 1  # a quote that is not closed costs its own line, and no more
    lines = [4 + 3 * number for number in range(len(bad))]
    assert [one.partition(" of ")[0] for one in found.bad] == [f"line {line}" for line in lines]
    said = [
        "expected 2 columns, got 1",
        "expected 2 columns, got 3",
        "empty text",
        "empty label",
        "CSV",
        "UTF-8",
        "CSV",
    ]
    assert all(words in one for words, one in zip(said, found.bad, strict=True))
    with pytest.raises(ValueError, match=r"line 4 of .*; and 2 more\. --skip-bad leaves such rows out"):
        found.refuse(skip_bad=False)
    found.refuse(skip_bad=True)
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": "x"}\n[1]\n{"text": "a"}\n{"text": [1], "label": "x"}\n{')
    said = ["line 2", "line 3", "line 4", "line 5"]
    assert [one.partition(" of ")[0] for one in read_rows(tmp_path / "a.jsonl", WANTED).bad] == said
    (tmp_path / "b.jsonl").write_text('{"message": "a", "team": "x"}\n' * 3)
    with pytest.raises(ValueError, match=r"in the objects of .*, got message, team; name yours by --columns"):
        read_rows(tmp_path / "b.jsonl", WANTED)


@given(
    st.lists(st.text("ab \t", min_size=1).filter(str.strip), min_size=1, max_size=60), st.integers(0, 9), st.randoms()
)
def test_a_row_stays_in_its_split(tmp_path_factory, texts, seed, draw):
    path = tmp_path_factory.mktemp("own") / "a.jsonl"

    def split(rows):
        path.write_text("\n".join(json.dumps({"text": text}) for text in rows))
        parts, here = read_splits(path, ("text",), seed=seed)
        assert here
        assert sum(len(part.rows) for part in parts.values()) == len(rows)
        return {row: name for name, part in parts.items() for row in part.rows}

    before = split(texts)
    more = [*texts, "c", "cc", *texts]
    draw.shuffle(more)
    after = split(more)
    assert before.items() <= after.items()


def test_a_tenth_each_is_held_out_and_another_seed_holds_out_others(tmp_path):
    path = as_csv(tmp_path / "a.csv", [(f"text {n}", "x") for n in range(2000)])
    parts = read_splits(path, WANTED)[0]
    sizes = {name: len(part.rows) for name, part in parts.items()}
    assert 160 < sizes["validation"] < 240
    assert 160 < sizes["test"] < 240
    other = read_splits(path, WANTED, seed=1)[0]
    assert len({*parts["test"].rows} & {*other["test"].rows}) < 60


def test_a_folder_that_is_split_is_taken_as_it_is(tmp_path):
    for split in SPLITS:
        as_csv(tmp_path / f"{split}.csv", [(split, "x")])
    parts, here = read_splits(tmp_path, WANTED)
    assert not here
    assert {name: part.rows for name, part in parts.items()} == {split: [(split, "x")] for split in SPLITS}
    (tmp_path / "test.csv").unlink()
    with pytest.raises(ValueError, match=r"expected test\.tsv beside the others"):
        read_splits(tmp_path, WANTED)
