"""Byte-level byte-pair encoding through the `tokenizers` library: the ids of `BPETokenizer`, at speed.

`load_tokenizer` reads any tokenizer that was saved here.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from course_lib.checks import Count, checked
from course_lib.reading import Unreadable

from .bpe import BPETokenizer, _read, merges_of, readable
from .tokenizer import SPECIAL_TOKENS, CharTokenizer, Tokenizer, check_text, json_path, read_json


class FastBPETokenizer(Tokenizer):
    """Byte-level byte-pair encoding, compiled and in as many threads as there are cores.

    Args:
        content: what tokenizer.json holds; see `load` and `train`; `FastBPETokenizer(hand.to_json())` is `hand`, a
            `BPETokenizer`, at speed.
    """

    @checked
    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content
        try:
            self._library = tokenizers.Tokenizer.from_str(json.dumps(content))
        except Exception as error:  # the library raises no other
            raise ValueError(f"content: expected what a tokenizer.json holds: {error}") from None
        self._library.encode_special_tokens = True  # "<eos>" in a text is five characters like any others
        self._vocab_size = self._library.get_vocab_size()

    @classmethod
    @checked
    def train(cls, texts: Iterable[str], vocab_size: int, *, min_count: Count = 2) -> "FastBPETokenizer":
        """Learn merges from texts; see `BPETokenizer.train`."""
        least = len(SPECIAL_TOKENS) + 256
        if vocab_size < least:
            raise ValueError(
                f"vocab_size: expected at least {least}, the special tokens and 256 bytes, got {vocab_size}"
            )
        library = tokenizers.Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=min_count,
            special_tokens=list(SPECIAL_TOKENS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        library.train_from_iterator(texts, trainer)
        merges = json.loads(library.to_str())["model"]["merges"]
        return cls(BPETokenizer([(_read(left), _read(right)) for left, right in merges]).to_json())

    @property
    def vocab_size(self) -> int:
        """Number of ids V, the special ones included."""
        return self._vocab_size

    def _encode(self, text: str) -> list[int]:
        return self._library.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str], *, bos: bool = False, eos: bool = False) -> list[list[int]]:
        """Return the ids of each text, in several threads."""
        for text in texts:
            check_text(text)
        before, after = [self.bos_id] * bos, [self.eos_id] * eos
        encodings = self._library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [before + encoding.ids + after for encoding in encodings]

    def _decode(self, ids: list[int]) -> str:
        return self._library.decode(ids, skip_special_tokens=False)

    def piece(self, id: int) -> str:
        """Return what one id stands for; bytes that are no whole character show as `<c3>`."""
        token = self._library.id_to_token(id) or ""
        return token if id < len(SPECIAL_TOKENS) else readable(_read(token))

    def to_json(self) -> dict[str, Any]:
        """Return the content of tokenizer.json."""
        return self._content

    @classmethod
    def load(cls, path: str | Path) -> "FastBPETokenizer":
        """Read what `save` wrote, here or in `BPETokenizer`."""
        content = read_json(path)
        merges_of(path, content)  # refuses what would not be the same tokenizer
        try:
            return cls(content)
        except Exception as error:  # the library has no class of its own for what it cannot read
            raise Unreadable(json_path(path), "a tokenizer of the course", str(error)) from None


@checked
def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a tokenizer that was saved here, whichever it is; byte-pair encoding comes back as the fast one."""
    if read_json(path)["model"].get("type") == "WordLevel":
        return CharTokenizer.load(path)
    return FastBPETokenizer.load(path)
