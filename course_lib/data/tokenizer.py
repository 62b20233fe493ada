"""What every tokenizer offers, and the tokenizer of characters.

All save and load the tokenizer.json format of the `tokenizers` library, so that its programs read them too.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from operator import index
from pathlib import Path
from typing import Any, ClassVar

from course_lib import reading
from course_lib.checks import LONGEST, check_integer, checked
from course_lib.files import check_sums, read_together, renew_sum, write_atomic

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")


class Tokenizer(ABC):
    """Text to ids and back. The first five ids are special in every tokenizer; no text ever becomes one of them."""

    pad_id: ClassVar[int] = 0
    bos_id: ClassVar[int] = 1
    eos_id: ClassVar[int] = 2
    unk_id: ClassVar[int] = 3
    mask_id: ClassVar[int] = 4

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids V, the special ones included."""

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Return the ids of a text without marks."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Return the text of ids of which none is special."""

    @abstractmethod
    def piece(self, id: int) -> str:
        """Return what one id stands for, to be looked at: an incomplete character shows as its bytes, `<c3>`."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the content of tokenizer.json."""

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Return the ids of a text, between bos_id and eos_id where asked for."""
        return [self.bos_id] * bos + self._encode(check_text(text)) + [self.eos_id] * eos

    def encode_batch(self, texts: Sequence[str], *, bos: bool = False, eos: bool = False) -> list[list[int]]:
        """Return the ids of each text."""
        return [self.encode(text, bos=bos, eos=eos) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, a list or a tensor (T,), special ones left out.

        Ids that are no whole character give the replacement character. Raises ValueError for an id outside [0, V).
        """
        try:
            plain = [index(id) for id in ids]
        except TypeError:
            raise TypeError(f"ids: expected integers, got {str(ids)[:LONGEST]}") from None
        for id in plain:
            if not 0 <= id < self.vocab_size:
                raise ValueError(f"ids: expected 0 to {self.vocab_size - 1}, got {id}")
        return self._decode([id for id in plain if id >= len(SPECIAL_TOKENS)])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return what each id stands for, to label a figure."""
        return [self.piece(int(id)) for id in ids]

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json: `path` is the file, or a folder for it."""
        write_atomic(json_path(path), self.to_text())
        renew_sum(json_path(path))

    def to_text(self) -> str:
        """Return tokenizer.json as it is written."""
        return json.dumps(self.to_json(), ensure_ascii=False, indent=1)


class CharTokenizer(Tokenizer):
    """Every character a token; characters not in the list become unk_id.

    Args:
        characters: the vocabulary after the special tokens, in this order, each once.
    """

    @checked
    def __init__(self, characters: Iterable[str]) -> None:
        self.characters = list(characters)
        if wrong := [c for c in self.characters if not isinstance(c, str) or len(c) != 1]:
            raise ValueError(f"characters: expected single characters, got {wrong[0]!r}")
        self._ids = {c: id for id, c in enumerate(self.characters, start=len(SPECIAL_TOKENS))}
        if len(self._ids) != len(self.characters):
            raise ValueError("characters: expected each once")

    @classmethod
    @checked
    def train(cls, texts: Iterable[str]) -> "CharTokenizer":
        """Take all characters that occur in the texts, in the order of their code points."""
        return cls(sorted({c for text in texts for c in text}))

    @property
    def vocab_size(self) -> int:
        """Number of ids V, the special ones included."""
        return len(SPECIAL_TOKENS) + len(self.characters)

    def _encode(self, text: str) -> list[int]:
        return [self._ids.get(c, self.unk_id) for c in text]

    def _decode(self, ids: list[int]) -> str:
        return "".join(self.characters[id - len(SPECIAL_TOKENS)] for id in ids)

    def piece(self, id: int) -> str:
        """Return the character, or the name of a special token."""
        check_integer("id", id, 0, self.vocab_size - 1)
        return [*SPECIAL_TOKENS, *self.characters][id]

    def to_json(self) -> dict[str, Any]:
        """Return the content of tokenizer.json: a word-level model over single characters."""
        vocab = {token: id for id, token in enumerate([*SPECIAL_TOKENS, *self.characters])}
        split = {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False}
        return json_frame(
            model={"type": "WordLevel", "vocab": vocab, "unk_token": SPECIAL_TOKENS[self.unk_id]},
            pre_tokenizer=split,
            decoder={"type": "Fuse"},
        )

    @classmethod
    @checked
    def load(cls, path: str | Path) -> "CharTokenizer":
        """Read what `save` wrote."""
        content = read_json(path)
        if content["model"].get("type") != "WordLevel":
            raise ValueError(f"path: {json_path(path)} holds a {content['model'].get('type')} model, no characters")
        try:
            return cls(tokens_in_order(path, content)[len(SPECIAL_TOKENS) :])
        except ValueError as error:
            raise ValueError(f"path: {json_path(path)} is no tokenizer of characters ({error})") from None


def json_path(path: str | Path) -> Path:
    """Return the file for a path that names the file or its folder."""
    path = Path(path)
    return path if path.suffix == ".json" else path / "tokenizer.json"


def json_frame(*, model: dict[str, Any], pre_tokenizer: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
    """Return a whole tokenizer.json around a model, with our special tokens."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": id, "content": token, **flags} for id, token in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def read_json(path: str | Path) -> dict[str, Any]:
    """Read tokenizer.json; raises ValueError that names the file where it is missing or damaged."""
    file = json_path(path)
    if file.parent.exists() and not file.parent.is_dir():
        raise ValueError(f"path: expected a tokenizer.json or its folder, got {path}")
    return read_together(file.parent, lambda: _whole(path, file))


def _whole(path: str | Path, file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ValueError(f"path: expected a tokenizer, found none at {file}")
    content = reading.read_json(file, {"model": {"type": str, "vocab": {str: int}}}, "a tokenizer of the course")
    check_sums(file.parent, file.name)
    return content


def tokens_in_order(path: str | Path, content: dict[str, Any]) -> list[str]:
    """Return the tokens of a vocabulary by id; raises ValueError where it is not one that was saved here."""
    vocab = content["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    if [vocab[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError(f"path: the ids in {json_path(path)} do not count from 0 without gaps")
    if tuple(tokens[: len(SPECIAL_TOKENS)]) != SPECIAL_TOKENS:
        raise ValueError(f"path: expected the first ids of {json_path(path)} to be {', '.join(SPECIAL_TOKENS)}")
    return tokens


def check_text(text: str) -> str:
    """Refuse what is no text: other types, and half characters that no encoding can write."""
    if not isinstance(text, str):
        raise TypeError(f"text: expected a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"text: a lone surrogate at character {error.start}, which is no text") from None
    return text
