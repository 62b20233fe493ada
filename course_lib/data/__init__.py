"""Data: real text and synthetic tasks that need no network, opt-in downloads, tokenizers, pairs, batches.

Nothing here knows of models. Modules are imported when one of their names is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batches import Batches, TokenBatches, TokenWindows, encode_pairs, pad_batch
    from .bpe import BPETokenizer
    from .download import DownloadError, data_folder, fetch, tiny_shakespeare
    from .fast_bpe import FastBPETokenizer
    from .packing import pack
    from .pairs import (
        Pair,
        date_locales,
        date_pairs,
        date_words,
        load_pairs,
        multi30k,
        number_languages,
        number_pairs,
        number_words,
        read_pairs,
    )
    from .registry import FILES, DataFile
    from .synthetic import Recall, associative_recall, copy_task, noise_floor, noise_tokens
    from .text import library_text, reference_text
    from .token_files import open_tokens, write_tokens
    from .tokenizer import SPECIAL_TOKENS, CharTokenizer, Tokenizer, load_tokenizer

_HOME = {
    "FILES": "registry",
    "SPECIAL_TOKENS": "tokenizer",
    "BPETokenizer": "bpe",
    "Batches": "batches",
    "CharTokenizer": "tokenizer",
    "DataFile": "registry",
    "DownloadError": "download",
    "FastBPETokenizer": "fast_bpe",
    "Pair": "pairs",
    "Recall": "synthetic",
    "TokenBatches": "batches",
    "TokenWindows": "batches",
    "Tokenizer": "tokenizer",
    "associative_recall": "synthetic",
    "copy_task": "synthetic",
    "data_folder": "download",
    "date_locales": "pairs",
    "date_pairs": "pairs",
    "date_words": "pairs",
    "encode_pairs": "batches",
    "fetch": "download",
    "library_text": "text",
    "load_pairs": "pairs",
    "load_tokenizer": "tokenizer",
    "multi30k": "pairs",
    "noise_floor": "synthetic",
    "noise_tokens": "synthetic",
    "number_languages": "pairs",
    "number_pairs": "pairs",
    "number_words": "pairs",
    "open_tokens": "token_files",
    "pack": "packing",
    "pad_batch": "batches",
    "read_pairs": "pairs",
    "reference_text": "text",
    "tiny_shakespeare": "download",
    "write_tokens": "token_files",
}

__all__ = [
    "FILES",
    "SPECIAL_TOKENS",
    "BPETokenizer",
    "Batches",
    "CharTokenizer",
    "DataFile",
    "DownloadError",
    "FastBPETokenizer",
    "Pair",
    "Recall",
    "TokenBatches",
    "TokenWindows",
    "Tokenizer",
    "associative_recall",
    "copy_task",
    "data_folder",
    "date_locales",
    "date_pairs",
    "date_words",
    "encode_pairs",
    "fetch",
    "library_text",
    "load_pairs",
    "load_tokenizer",
    "multi30k",
    "noise_floor",
    "noise_tokens",
    "number_languages",
    "number_pairs",
    "number_words",
    "open_tokens",
    "pack",
    "pad_batch",
    "read_pairs",
    "reference_text",
    "tiny_shakespeare",
    "write_tokens",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value  # the next use finds it at once
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
