"""Tokenizers: every text comes back, and the hand-made one gives the ids of the `tokenizers` library."""

import json
import random

import pytest
import tokenizers
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from thorough import rounds

from course_lib.data import SPECIAL_TOKENS, BPETokenizer, CharTokenizer, FastBPETokenizer, load_tokenizer
from course_lib.data.bpe import learn_merges, merge_pair, split_words
from coursework.corpora import (
    number_pairs,
    reference_text,
)

TEXT = reference_text()[:150_000] + "".join(f"{pair.source}\n" for pair in number_pairs(300))
TEXTS = st.text(max_size=40) | st.binary(max_size=40).map(lambda data: data.decode("utf-8", "replace"))
MIXED = "ae\u0301\u0308o nñ \u200d👩💻👍🏽🇩🇪\ufe0f ´\u3000\u00a0\n\t'sll 've'LL12½Ⅷ٣हिन्दी漢"


@pytest.fixture(scope="module")
def hand():
    return BPETokenizer.train([TEXT], 600)


@pytest.fixture(scope="module")
def fast(hand):
    return FastBPETokenizer(hand.to_json())


@pytest.fixture(scope="module")
def library(hand, tmp_path_factory):
    """The library itself on the saved file, without our class around it."""
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    hand.save(path)
    return tokenizers.Tokenizer.from_file(str(path))


def random_string(draw):
    """Emoji, accents, combining marks, any code point, random bytes, real text."""
    n = draw.randint(0, 40)
    kind = draw.randrange(6)
    if kind == 0:
        return "".join(chr(c) for c in (draw.randrange(0x110000) for _ in range(n)) if not 0xD800 <= c < 0xE000)
    if kind == 1:
        return bytes(draw.randrange(256) for _ in range(n)).decode("utf-8", "replace")
    if kind == 2:
        return bytes(draw.randrange(256) for _ in range(n)).decode("latin-1")
    if kind == 3:
        return "".join(draw.choice(MIXED) for _ in range(n))
    if kind == 4:
        return "".join(chr(draw.randrange(0x3000)) for _ in range(n))
    start = draw.randrange(len(TEXT))
    return TEXT[start : start + n]


def same_as_library(hand, fast, library, n, seed):
    draw = random.Random(seed)
    texts = [random_string(draw) for _ in range(n)]
    theirs = [one.ids for one in library.encode_batch(texts, add_special_tokens=False)]
    assert fast.encode_batch(texts) == theirs
    for text, expected in zip(texts, theirs, strict=True):
        ids = hand.encode(text)
        assert ids == expected, text
        assert hand.decode(ids) == text
        assert fast.decode(ids) == text
        some = [draw.randrange(hand.vocab_size) for _ in range(8)]  # ids that no text has
        assert hand.decode(some) == fast.decode(some) == library.decode(some)


def test_bpe_equals_the_library(hand, fast, library):
    same_as_library(hand, fast, library, 5000, seed=0)


@pytest.mark.thorough
def test_bpe_equals_the_library_on_100_000_strings(hand, fast, library):
    """As above, at length."""
    same_as_library(hand, fast, library, 100_000, seed=1)


@given(text=TEXTS)
@example(text="")
@example(text=" ")
@example(text="a\u0301 👩‍💻  \n")
@settings(deadline=None, max_examples=rounds(40, 200))
def test_every_text_comes_back(text, hand, fast):
    ids = hand.encode(text)
    assert hand.decode(ids) == text
    assert fast.encode(text) == ids
    assert all(id >= len(SPECIAL_TOKENS) for id in ids)
    assert "".join(split_words(text)) == text


@pytest.mark.parametrize("vocab_size", [261, 262, 300, 900])
@pytest.mark.parametrize("min_count", [1, 2, 50])
def test_training_equals_the_library(vocab_size, min_count):
    texts = [TEXT[i : i + 1000] for i in range(0, 30_000, 1000)]
    one = BPETokenizer.train(texts, vocab_size, min_count=min_count)
    two = FastBPETokenizer.train(texts, vocab_size, min_count=min_count)
    assert one.to_json() == two.to_json()
    assert one.vocab_size <= vocab_size


def test_merges_of_the_paper_of_sennrich():
    """The counts of their example, without its end-of-word sign: "es", "est" and "lo", "low" come first."""
    merges = learn_merges({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 4)
    assert merges == [(b"e", b"s"), (b"es", b"t"), (b"l", b"o"), (b"lo", b"w")]


def test_a_word_counts_as_often_as_it_occurs():
    assert learn_merges({"ab": 1, "cd": 3, "ce": 3}, 1, min_count=1) == [(b"c", b"d")]
    assert learn_merges({"ab": 1}, 5, min_count=2) == []


def test_runs_are_merged_from_the_left():
    a = b"a"
    assert merge_pair([a, a, a], (a, a)) == [b"aa", a]
    assert merge_pair([a, a, a, a], (a, a)) == [b"aa", b"aa"]


def test_merges_apply_in_the_order_they_were_learned():
    """The earliest merge first, not the longest match: "abc" with bc before ab is a, bc."""
    tokenizer = BPETokenizer([(b"b", b"c"), (b"a", b"b")])
    assert tokenizer.pieces(tokenizer.encode("abc")) == ["a", "bc"]


def test_bytes_that_are_no_character_are_shown():
    tokenizer = BPETokenizer([])
    ids = tokenizer.encode("ü!", bos=True, eos=True)
    assert tokenizer.pieces(ids) == ["<bos>", "<c3>", "<bc>", "!", "<eos>"]
    assert FastBPETokenizer(tokenizer.to_json()).pieces(ids) == tokenizer.pieces(ids)
    assert tokenizer.decode(ids) == "ü!"
    assert tokenizer.decode(ids[1:2]) == "\ufffd"


@pytest.fixture(scope="module", params=["characters", "hand", "fast"])
def tokenizer(request):
    if request.param == "characters":
        return CharTokenizer.train([TEXT])
    return request.getfixturevalue(request.param)


def test_the_interface(tokenizer, tmp_path):
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id) == (
        0,
        1,
        2,
        3,
        4,
    )
    assert tokenizer.pieces(range(5)) == list(SPECIAL_TOKENS)
    ids = tokenizer.encode("the value", bos=True, eos=True)
    assert ids[0] == 1
    assert ids[-1] == 2
    assert ids[1:-1] == tokenizer.encode("the value")
    assert tokenizer.encode_batch(["the value", ""], bos=True, eos=True) == [ids, [1, 2]]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.decode(ids) == tokenizer.decode(torch.tensor(ids)) == "the value"
    assert max(max(row) for row in tokenizer.encode_batch([TEXT])) < tokenizer.vocab_size
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.to_json() == tokenizer.to_json()
    assert type(tokenizer).load(tmp_path / "tokenizer.json").encode("the value") == ids[1:-1]
    assert again.encode("the value") == ids[1:-1]


@pytest.mark.parametrize("text", ["<eos>", "a<pad><pad>b", "<unk>"])
def test_no_text_becomes_a_special_token(tokenizer, text):
    ids = tokenizer.encode(text)
    assert min(ids) >= len(SPECIAL_TOKENS)
    assert tokenizer.decode(ids) == text


def test_characters_equal_the_library(tmp_path):
    tokenizer = CharTokenizer.train(["grün und\nblau 👍"])
    tokenizer.save(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ["blau\n und grün", "👍👍", "", "unbekannt: ß", "  \n"]:
        assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids
    known = tokenizer.encode("blau\n und grün 👍")
    assert tokenizer.decode(known) == library.decode(known) == "blau\n und grün 👍"


def test_unknown_characters():
    tokenizer = CharTokenizer("abc")
    assert tokenizer.encode("axb") == [5, 3, 6]
    assert tokenizer.decode([5, 3, 6]) == "ab"


def test_the_file_is_that_of_the_library(hand, library):
    """What the library writes of our file is our file."""
    assert json.loads(library.to_str()) == json.loads(json.dumps(hand.to_json()))


def damaged(tmp_path, change):
    tokenizer = BPETokenizer([(b"b", b"c"), (b"a", b"bc")])
    content = json.loads(json.dumps(tokenizer.to_json()))
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("model"), r"tokenizer\.json: expected an entry model, got only"),
        (lambda c: c["model"]["vocab"].pop("bc"), "do not count from 0"),
        (lambda c: c["model"]["merges"].reverse(), "joins a token|vocabulary"),
        (lambda c: c["model"]["merges"].pop(), "the vocabulary of .* is not that of its merges"),
        (lambda c: c["model"]["merges"].append(["\u4e00", "a"]), "the merges in .* are damaged"),
        (lambda c: c["model"].update(type="Unigram"), "is no byte-level BPE"),
        (lambda c: c["pre_tokenizer"].update(add_prefix_space=True), "is no byte-level BPE"),
        (lambda c: c["model"]["vocab"].update({"<pad>": 1, "<bos>": 0}), "expected the first ids"),
    ],
)
@pytest.mark.parametrize("load", [BPETokenizer.load, FastBPETokenizer.load])
def test_damaged_files_are_named(tmp_path, change, message, load):
    with pytest.raises(ValueError, match=message):
        load(damaged(tmp_path, change))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: BPETokenizer.load(path), "expected a tokenizer, found none at"),
        (lambda path: CharTokenizer.load(damaged(path, lambda c: None)), "holds a BPE model, no characters"),
        (lambda path: BPETokenizer.train(["a"], 260), "vocab_size: expected at least 261"),
        (lambda path: FastBPETokenizer.train(["a"], 260), "vocab_size: expected at least 261"),
        (lambda path: BPETokenizer([(b"ab", b"c")]), "joins a token that no earlier merge has made"),
        (lambda path: BPETokenizer([(b"a", b"b"), (b"a", b"b")]), "makes a token that is there already"),
        (lambda path: BPETokenizer([]).decode([261]), "ids: expected 0 to 260, got 261"),
        (lambda path: BPETokenizer([]).decode([-1]), "ids: expected 0 to 260, got -1"),
        (lambda path: BPETokenizer([]).encode("a\ud800"), "text: a lone surrogate at character 1"),
        (
            lambda path: FastBPETokenizer(BPETokenizer([]).to_json()).encode_batch(["\ud800"]),
            "text: a lone surrogate at character 0",
        ),
        (lambda path: BPETokenizer([]).encode(3), "text: expected a string, got int"),
        (lambda path: CharTokenizer("aa"), "characters: expected each once"),
        (lambda path: CharTokenizer(["ab"]), "characters: expected single characters, got 'ab'"),
    ],
)
def test_bad_arguments_are_named(tmp_path, call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(tmp_path)
