"""The tokens of a model for engines that read and write text themselves."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from course_lib.data.tokenizer import SPECIAL_TOKENS, Tokenizer
from course_lib.reading import read_json

# How a text is cut into words before its bytes are merged: the pattern, and the name that llama.cpp has for it.
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_START = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
PATTERNS = {_START + r"\p{N}{1,3}" + _REST: "llama-bpe", _START + r"\p{N}" + _REST: "qwen2"}


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id, and what an engine must know of them.

    `kind` is "bytes" (byte-pair encoding of bytes, its words cut by the pattern of the name `words`), "characters",
    "numbers" (there is no tokenizer: a token is called by its id, as in "<17>"), or "other".
    """

    tokens: list[str]
    kind: str
    content: dict[str, Any] | None = None  # of tokenizer.json
    words: str = "gpt-2"
    merges: tuple[str, ...] = ()
    special: frozenset[int] = frozenset()
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    pad: int | None = None

    def name_of(self, id: int | None) -> str:
        """The token of an id, that of the id 0 where there is none."""
        return self.tokens[id or 0]

    @property
    def json(self) -> str | None:
        """The text of tokenizer.json, to be kept beside the model."""
        return None if self.content is None else json.dumps(self.content, ensure_ascii=False, indent=1)


def read_tokenizer(folder: Path) -> dict[str, Any] | None:
    """The content of a folder's tokenizer.json, None where there is no such file."""
    path = folder / "tokenizer.json"
    return read_json(path, {"model": dict}) if path.is_file() else None


def vocabulary(model: nn.Module, tokenizer: Tokenizer | dict[str, Any] | None) -> Vocabulary:
    """The vocabulary of a model with this tokenizer, or content of tokenizer.json; tokens are numbered without one.

    Raises ValueError for a tokenizer with more tokens than the model.
    """
    size: int = model.config.setting("target_vocab_size")  # type: ignore[operator,union-attr]
    said: dict[str, Any] = getattr(model, "metadata", {})
    known: dict[str, Any] = {name: _first(said.get(f"{name}_token_id")) for name in ("bos", "eos", "unk", "pad")}
    if tokenizer is None:
        return Vocabulary([f"<{id}>" for id in range(size)], "numbers", **known)
    content = tokenizer.to_json() if isinstance(tokenizer, Tokenizer) else tokenizer
    kind, words = _kind(content)
    by_id = _tokens(content)
    if max(by_id, default=-1) >= size:
        raise ValueError(f"tokenizer: expected at most {size} tokens as the model has, got {max(by_id) + 1}")
    tokens = [by_id.get(id, f"<extra_{id}>") for id in range(size)]
    if tuple(tokens[: len(SPECIAL_TOKENS)]) == SPECIAL_TOKENS:
        known = {"bos": Tokenizer.bos_id, "eos": Tokenizer.eos_id, "unk": Tokenizer.unk_id, "pad": Tokenizer.pad_id}
    return Vocabulary(
        tokens,
        kind,
        content,
        words,
        merges=tuple(
            merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"].get("merges", ())
        ),
        special=frozenset(token["id"] for token in content.get("added_tokens", ()) if token.get("special")),
        **known,
    )


def _first(ids: Any) -> int | None:
    return ids[0] if isinstance(ids, list) else ids


def _tokens(content: dict[str, Any]) -> dict[int, str]:
    vocab = content["model"]["vocab"]
    found = (
        {id: token for token, id in vocab.items()}
        if isinstance(vocab, dict)
        else {id: token for id, (token, *_) in enumerate(vocab)}
    )
    return found | {token["id"]: token["content"] for token in content.get("added_tokens") or ()}


def _kind(content: dict[str, Any]) -> tuple[str, str]:
    """The kind of tokenizer, and the name of the pattern that cuts words."""
    kind, cut = content["model"].get("type"), content.get("pre_tokenizer") or {}
    if kind == "WordLevel" and (cut.get("pattern") or {}).get("Regex") == r"[\s\S]":
        return "characters", ""
    steps = cut["pretokenizers"] if cut.get("type") == "Sequence" else [cut]
    plain = not content.get("normalizer") or content["normalizer"].get("type") == "NFC"
    if kind != "BPE" or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space") or not plain:
        return "other", ""
    if len(steps) == 1 and steps[0].get("use_regex", True):
        return "bytes", "gpt-2"
    words = PATTERNS.get((steps[0].get("pattern") or {}).get("Regex", ""))
    return ("bytes", words) if len(steps) == 2 and words else ("other", "")
