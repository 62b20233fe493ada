"""Byte-level byte-pair encoding by hand, to be read; `fast_bpe` gives the same ids at speed.

A text is cut into words with the pattern of GPT-2, a word into the bytes of its UTF-8, and then the pair of neighbours
that was merged first in training is merged, again and again. Every text has ids, since every byte has one.

Source: Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units", algorithm 1; on bytes, and
the pattern: Radford et al. 2019 (GPT-2), section 2.2.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex

from course_lib.checks import Count, checked

from .tokenizer import SPECIAL_TOKENS, Tokenizer, json_frame, json_path, read_json, tokens_in_order

# Contractions; a run of letters, of digits, of other signs, each with the blank before it; blanks.
GPT2_PATTERN = regex.compile(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
CACHED_WORDS = 1 << 16

Pair = tuple[bytes, bytes]


class BPETokenizer(Tokenizer):
    """Byte-level byte-pair encoding.

    Args:
        merges: pairs of tokens to be joined, the first learned first. Ids: the special tokens, the 256 bytes, then
            one for each merge.
    """

    @checked
    def __init__(self, merges: Sequence[Pair]) -> None:
        self.merges = list(merges)
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._tokens = [bytes([byte]) for byte in _BYTE_ORDER]
        self._ids = {token: id for id, token in enumerate(self._tokens, start=len(SPECIAL_TOKENS))}
        for left, right in self.merges:
            if left not in self._ids or right not in self._ids:
                raise ValueError(f"merges: {left!r} + {right!r} joins a token that no earlier merge has made")
            if self._ids.setdefault(left + right, self.vocab_size) != self.vocab_size:
                raise ValueError(f"merges: {left!r} + {right!r} makes a token that is there already")
            self._tokens.append(left + right)
        self._cache: dict[str, list[int]] = {}

    @classmethod
    @checked
    def train(cls, texts: Iterable[str], vocab_size: int, *, min_count: Count = 2) -> "BPETokenizer":
        """Learn merges from texts: again and again the most frequent pair of neighbours, until there are V ids.

        Stops early when no pair occurs `min_count` times. Of pairs equally frequent, the one with lower ids is taken.
        """
        least = len(SPECIAL_TOKENS) + 256
        if vocab_size < least:
            raise ValueError(
                f"vocab_size: expected at least {least}, the special tokens and 256 bytes, got {vocab_size}"
            )
        counts = Counter(word for text in texts for word in split_words(text))
        return cls(learn_merges(counts, vocab_size - least, min_count))

    @property
    def vocab_size(self) -> int:
        """Number of ids V, the special ones included."""
        return len(SPECIAL_TOKENS) + len(self._tokens)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in split_words(text):
            known = self._cache.get(word)
            if known is None:
                known = [self._ids[token] for token in self.merge_word(word)]
                if len(self._cache) < CACHED_WORDS:
                    self._cache[word] = known
            ids += known
        return ids

    def merge_word(self, word: str) -> list[bytes]:
        """Return the tokens of one word: of all neighbours, the pair learned first is joined, until none is known."""
        parts = [bytes([byte]) for byte in word.encode()]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            parts = merge_pair(parts, best)
        return parts

    def _decode(self, ids: list[int]) -> str:
        return b"".join(self._tokens[id - len(SPECIAL_TOKENS)] for id in ids).decode("utf-8", errors="replace")

    def piece(self, id: int) -> str:
        """Return what one id stands for; bytes that are no whole character show as `<c3>`."""
        if id < len(SPECIAL_TOKENS):
            return SPECIAL_TOKENS[id]
        token = self._tokens[id - len(SPECIAL_TOKENS)]
        return readable(token)

    def to_json(self) -> dict[str, Any]:
        """Return the content of tokenizer.json: a byte-level BPE model."""
        return bpe_json(self.merges)

    @classmethod
    def load(cls, path: str | Path) -> "BPETokenizer":
        """Read what `save` wrote, here or in `FastBPETokenizer`."""
        return cls(merges_of(path, read_json(path)))


def split_words(text: str) -> list[str]:
    """Cut a text into words as GPT-2 does; joined they are the text. No merge crosses their borders."""
    return GPT2_PATTERN.findall(text)


def merge_pair(parts: Sequence[bytes], pair: Pair) -> list[bytes]:
    """Join every occurrence of a pair of neighbours, from the left: b"aaa" with (a, a) gives [aa, a]."""
    merged: list[bytes] = []
    i = 0
    while i < len(parts):
        if i + 1 < len(parts) and (parts[i], parts[i + 1]) == pair:
            merged.append(parts[i] + parts[i + 1])
            i += 2
        else:
            merged.append(parts[i])
            i += 1
    return merged


def learn_merges(word_counts: dict[str, int], n_merges: int, min_count: int = 2) -> list[Pair]:
    """Return the merges that words with their counts teach, most frequent pair first.

    Pairs are counted once and then only in the words that a merge has changed.
    """
    words = [[bytes([byte]) for byte in word.encode()] for word in word_counts]
    weights = list(word_counts.values())
    order = {bytes([byte]): i for i, byte in enumerate(_BYTE_ORDER)}  # ids, to decide between equal counts
    counts: Counter[Pair] = Counter()
    homes: dict[Pair, set[int]] = defaultdict(set)  # the words in which a pair occurs
    for i, parts in enumerate(words):
        for pair in pairwise(parts):
            counts[pair] += weights[i]
            homes[pair].add(i)
    merges: list[Pair] = []
    while len(merges) < n_merges and counts:
        best = max(counts, key=lambda pair: (counts[pair], -order[pair[0]], -order[pair[1]]))
        if counts[best] < max(1, min_count):
            break
        merges.append(best)
        order.setdefault(best[0] + best[1], len(order))
        for i in homes.pop(best):
            for pair in pairwise(words[i]):
                counts[pair] -= weights[i]
                homes[pair].discard(i)
                if counts[pair] <= 0:
                    del counts[pair]
            words[i] = merge_pair(words[i], best)
            for pair in pairwise(words[i]):
                counts[pair] += weights[i]
                homes[pair].add(i)
    return merges


def readable(token: bytes) -> str:
    """Return a token as text; bytes that are no whole character show as `<c3>`."""
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(chr(byte) if 32 <= byte < 127 else f"<{byte:02x}>" for byte in token)


def byte_characters() -> dict[int, str]:
    """Return the visible character by which the format writes each byte: GPT-2's table."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(others)}


_CHARACTERS = byte_characters()
_BYTES = {character: byte for byte, character in _CHARACTERS.items()}
_BYTE_ORDER = list(_CHARACTERS)  # by character, the order of ids that the `tokenizers` library gives


def bpe_json(merges: Sequence[Pair]) -> dict[str, Any]:
    """Return tokenizer.json for merges."""
    written = [tuple(_write(token) for token in pair) for pair in merges]
    tokens = [*SPECIAL_TOKENS, *_CHARACTERS.values(), *(left + right for left, right in written)]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: id for id, token in enumerate(tokens)},
        "merges": [list(pair) for pair in written],
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json_frame(model=model, pre_tokenizer=byte_level, decoder=dict(byte_level))


def merges_of(path: str | Path, content: dict[str, Any]) -> list[Pair]:
    """Return the merges of a tokenizer.json; raises ValueError where it is another kind of tokenizer."""
    model, pre = content["model"], content.get("pre_tokenizer") or {}
    file = json_path(path)
    if model.get("type") != "BPE" or pre.get("type") != "ByteLevel" or pre.get("add_prefix_space"):
        raise ValueError(f"path: {file} is no byte-level BPE without a blank put before the text")
    tokens = tokens_in_order(path, content)
    try:
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        merges = [(_read(left), _read(right)) for left, right in pairs]
    except (KeyError, ValueError) as error:
        raise ValueError(f"path: the merges in {file} are damaged ({error})") from error
    if tokens != list(bpe_json(merges)["model"]["vocab"]):
        raise ValueError(f"path: the vocabulary of {file} is not that of its merges")
    return merges


def _write(token: bytes) -> str:
    return "".join(_CHARACTERS[byte] for byte in token)


def _read(text: str) -> bytes:
    return bytes(_BYTES[character] for character in text)
