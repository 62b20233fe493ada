"""Pairs to translate: right by the libraries that write them, held out by value, the same everywhere."""

import datetime

import pytest

from course_lib.data import Pair, data_folder, multi30k, read_pairs
from coursework.corpora import (
    date_locales,
    date_pairs,
    date_words,
    load_pairs,
    number_languages,
    number_pairs,
    number_parts,
    number_words,
    split_of,
)

SPLITS = ("train", "validation", "test")


def test_numbers_are_written_out():
    assert number_words(325, "de") == "dreihundertfünfundzwanzig"
    assert number_words(325, "en") == "three hundred and twenty-five"
    english = {number_words(value, "en"): value for value in range(30_000)}
    for source, target in number_pairs(300, largest=29_999):
        assert source == number_words(english[target], "de")


@pytest.mark.parametrize("language", ["de", "en"])
def test_numbers_are_cut_into_parts_that_join_again(language):
    assert number_parts(27, "de") == ["sieben", "und", "zwanzig"]
    assert number_parts(127, "en") == ["one", "hundred", "and", "twenty", "seven"]
    every = [*range(10_000), 16_017, 100_000, 999_999]
    for value in every:
        words = number_words(value, language)
        assert "".join(number_parts(value, language)) == "".join(letter for letter in words if letter.isalpha())
    assert len({part for value in every for part in number_parts(value, language)}) < 40
    with pytest.raises(ValueError, match="value: expected 0 to 999999, got 1000000"):
        number_parts(1_000_000, language)
    with pytest.raises(ValueError, match="language: expected 'de' or 'en', got 'fr'"):
        number_parts(1, "fr")


def test_dates_are_written_out():
    day = datetime.date(1987, 5, 3)
    assert date_words(day, "de", "full") == "Sonntag, 3. Mai 1987"
    assert date_words(day, "en") == "May 3, 1987"
    english = {}
    for n in range(datetime.date(1990, 1, 1).toordinal(), datetime.date(1992, 1, 1).toordinal()):
        for name in ("full", "long", "medium"):
            english[date_words(datetime.date.fromordinal(n), "en", name)] = n, name
    for source, target in date_pairs(300, first=datetime.date(1990, 1, 1), last=datetime.date(1991, 12, 31)):
        ordinal, name = english[target]
        names = {name, "long"} if name == "medium" else {name}  # in May the English formats are alike
        assert source in {date_words(datetime.date.fromordinal(ordinal), "de", one) for one in names}


def test_splits_are_disjoint_by_number_whatever_the_language_and_seed():
    english = {number_words(value, "en"): value for value in range(20_000)}
    french = {number_words(value, "fr"): value for value in range(20_000)}
    of = {}
    for split in SPLITS:
        one = {english[pair.target] for pair in number_pairs(500, split, largest=19_999)}
        two = {french[pair.target] for pair in number_pairs(500, split, target="fr", largest=19_999, seed=7)}
        of[split] = one | two
        assert all(split_of("number", value) == split for value in of[split])
    assert not of["train"] & of["test"]
    assert not of["train"] & of["validation"]
    assert not of["validation"] & of["test"]


def test_splits_are_disjoint_by_day_whatever_the_format():
    sides = {split: date_pairs(3000, split, seed=3) for split in SPLITS}
    days = {
        date_words(datetime.date.fromordinal(n), "de", name): n
        for n in range(datetime.date(1900, 1, 1).toordinal(), datetime.date(2100, 1, 1).toordinal())
        for name in ("full", "long", "medium")
    }
    of = {split: {days[pair.source] for pair in pairs} for split, pairs in sides.items()}
    assert not of["train"] & of["test"]
    assert not of["train"] & of["validation"]
    assert not of["validation"] & of["test"]


def test_the_splits_have_their_shares():
    counts = [[split_of(kind, value) for value in range(20_000)] for kind in ("number", "date")]
    for splits in counts:
        assert splits.count("train") / 20_000 == pytest.approx(0.8, abs=0.01)
        assert splits.count("test") / 20_000 == pytest.approx(0.1, abs=0.01)
    assert counts[0] != counts[1]


def test_no_pair_repeats_and_no_text_has_two_answers():
    for split in SPLITS:
        pairs = load_pairs("numbers+dates", split, 4000)
        assert len(pairs) == 4000
        answers = {}
        for source, target in pairs:
            assert answers.setdefault(source, target) == target
        assert len(answers) == 4000


def test_a_locale_that_writes_two_formats_alike_has_one_answer():
    pairs = date_pairs(2000, source="en", target="de")  # "May 3, 1987" is long and medium
    answers = {}
    for source, target in pairs:
        assert answers.setdefault(source, target) == target


def test_formats_without_a_century_are_left_out():
    texts = [pair.source for pair in date_pairs(200, formats=["short", "long"])]  # "03.05.87" and "3. Mai 1987"
    assert all(text[-4:].isdigit() for text in texts)
    assert any("/" in pair.source for pair in date_pairs(50, source="en_GB", target="en_GB", formats=["short"]))
    with pytest.raises(ValueError, match=r"formats: none of \['short'\] tells the century in both de and en"):
        date_pairs(3, formats=["short"])


def test_the_same_seed_draws_the_same_pairs():
    assert load_pairs("numbers+dates", "train", 50) == load_pairs("numbers+dates", "train", 50)
    assert load_pairs("numbers", "train", 50) != load_pairs("numbers", "train", 50, seed=1)
    assert number_pairs(20) == number_pairs(30)[:20]
    # Written down, so that a version of Python that draws otherwise is noticed.
    assert [pair.target for pair in number_pairs(2, "test")] == ["eight", "three"]
    assert [pair.target for pair in date_pairs(2)] == ["Sep 25, 1944", "June 26, 2056"]


def test_all_languages_write_numbers():
    assert len(number_languages()) >= 56
    for language in number_languages():
        words = [number_words(value, language) for value in range(0, 1000, 37)]
        assert len(set(words)) > 1
        assert all(words)


def test_all_locales_write_dates():
    assert len(date_locales()) > 1000
    for locale in date_locales()[::25]:
        assert date_words(datetime.date(1987, 5, 3), locale)
        assert len(date_pairs(3, source=locale)) == 3


def test_numbers_of_every_length_occur():
    lengths = [len(pair.source) for pair in number_pairs(2000)]
    assert min(lengths) < 10
    assert max(lengths) > 50


def test_every_number_of_a_small_range_can_be_had():
    wanted = sum(split_of("number", value) == "test" for value in range(1000))
    assert len(set(number_pairs(wanted, "test", largest=999))) == wanted
    with pytest.raises(ValueError, match=rf"n: there are {wanted} numbers up to 999 in test, got {wanted + 1}"):
        number_pairs(wanted + 1, "test", largest=999)


def test_a_folder_of_files(tmp_path):
    (tmp_path / "train.tsv").write_text("ein Haus\ta house\n\neine Katze\ta cat\r\n", encoding="utf-8")
    assert load_pairs(str(tmp_path)) == [Pair("ein Haus", "a house"), Pair("eine Katze", "a cat")]
    assert load_pairs(str(tmp_path), n=1) == [Pair("ein Haus", "a house")]
    with pytest.raises(ValueError, match="has 2 pairs in train, got 3"):
        load_pairs(str(tmp_path), n=3)
    with pytest.raises(ValueError, match=r"found none at .*test\.tsv"):
        load_pairs(str(tmp_path), "test")
    (tmp_path / "test.tsv").write_text("a\tb\nonly one\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"two texts apart by a tab in line 2 of .*, got 1"):
        read_pairs(tmp_path / "test.tsv")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load_pairs("nonsense"), "name: expected one of numbers, dates, .* got 'nonsense'"),
        (lambda: load_pairs("numbers", "dev"), "split: expected one of train, validation, test, got 'dev'"),
        (lambda: load_pairs("numbers", n=-1), "n: expected an integer of at least 0, got -1"),
        (lambda: load_pairs("numbers", n=2.0), "n: expected an integer of at least 0, got"),
        (lambda: number_pairs(3, source="xx"), "language: expected one of am, .* got 'xx'"),
        (lambda: date_pairs(3, source="xx"), "locale: expected one of date_locales"),
        (lambda: multi30k(source="fr"), "Multi30k is here in 'de' and 'en', got 'fr' and 'en'"),
        (lambda: date_words(datetime.date(1987, 5, 3), "de", "tiny"), "format: expected one of full, .* got 'tiny'"),
        (lambda: number_words(999_999, "am"), "num2words has no words for 999,999 in 'am'"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize(("split", "count"), [("train", 29_000), ("validation", 1014), ("test", 1000)])
def test_multi30k(split, count):
    if not (data_folder() / "multi30k").is_dir():
        pytest.skip("COURSE_DATA names no folder with Multi30k")
    pairs = load_pairs("multi30k", split)
    assert len(pairs) == count
    assert all(source and target for source, target in pairs)
    assert multi30k(split, source="en", target="de")[0] == (pairs[0].target, pairs[0].source)
    if split == "train":
        assert pairs[0].source == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
