"""Data, tokenizer, model and task of each training command, built from a recipe.

Everything follows from the recipe and the seed, so that a resumed run and every process of a run build the same.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib.commands.recipes import Recipe
from course_lib.config import TransformerConfig
from course_lib.data import (
    CharTokenizer,
    FastBPETokenizer,
    Pair,
    TokenBatches,
    Tokenizer,
    TokenWindows,
    encode_pairs,
    fetch,
    library_text,
    load_pairs,
    load_tokenizer,
    number_words,
    reference_text,
)
from course_lib.training import tasks
from course_lib.transformer import LanguageModel, Transformer
from course_lib.variants import EncoderModel

_TEXTS = "'tinyshakespeare', 'reference', 'library'"

__all__ = ["Corpus", "build_corpus", "build_model", "build_task", "read_text"]


@dataclass
class Corpus:
    """What a run reads, and what its result is measured on."""

    tokenizer: Tokenizer
    train: Any
    validation: Any
    test: list[Pair]  # of texts, or of a text and its label; empty for language models
    labels: list[str]
    examples: list[Pair]  # the texts of the training part, where they are pairs


def build_corpus(task: str, recipe: Recipe, *, seed: int, folder: Path) -> Corpus:
    """Load the data that the recipe names, train a tokenizer on its training part, and cut batches.

    A tokenizer that is in the result's folder already, from the run that is resumed, is used again.
    """
    if task == "translate":
        return _pairs(recipe, seed, folder)
    return _labelled(recipe, seed, folder) if task == "classify" else _text(recipe, seed, folder)


def build_model(task: str, recipe: Recipe, tokenizer: Tokenizer, labels: Sequence[str] = ()) -> nn.Module:
    """Return the model of the recipe with new weights."""
    fields = {**recipe["model"], "vocab_size": tokenizer.vocab_size}
    if task == "lm":
        return LanguageModel(TransformerConfig(**fields))
    fields["pad_id"] = tokenizer.pad_id
    config = TransformerConfig(**fields)
    if task == "translate":
        return Transformer(config)
    if task == "classify":
        return EncoderModel(config, head="classifier", n_classes=len(labels))
    return EncoderModel(config, head="masked_lm")


def build_task(task: str, recipe: Recipe, tokenizer: Tokenizer) -> Any:
    """Return what is minimised."""
    result = recipe["result"]
    if task == "translate":
        return tasks.Translation(pad_id=tokenizer.pad_id, smoothing=result["smoothing"], rows=result["loss_rows"])
    if task == "classify":
        return tasks.Classification(smoothing=result["smoothing"])
    if task == "lm":
        return tasks.LanguageModelling(rows=result["loss_rows"])
    return tasks.MaskedLanguageModelling(
        mask_id=tokenizer.mask_id,
        vocab_size=tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        special_ids=(tokenizer.bos_id, tokenizer.eos_id),
        share=result["share"],
    )


def _pairs(recipe: Recipe, seed: int, folder: Path) -> Corpus:
    data = recipe["data"]
    languages = {"source": data["source"], "target": data["target"], "seed": seed}
    sizes = _sizes(data)
    parts = {split: load_pairs(data["name"], split, n, **languages) for split, n in sizes.items()}  # type: ignore[arg-type]
    tokenizer = _tokenizer(recipe, [text for pair in parts["train"] for text in pair], folder)
    encoded = {split: encode_pairs(parts[split], tokenizer) for split in ("train", "validation")}
    return Corpus(tokenizer, *_batches(recipe, encoded, tokenizer, seed), parts["test"], [], parts["train"])


def _labelled(recipe: Recipe, seed: int, folder: Path) -> Corpus:
    data = recipe["data"]
    parts = {split: _labelled_texts(data, split, n, seed) for split, n in _sizes(data).items()}
    labels = sorted({pair.target for pair in parts["train"]})
    if unknown := {pair.target for split in ("validation", "test") for pair in parts[split]} - set(labels):
        raise ValueError(f"data: the label {min(unknown)!r} occurs in no training example")
    tokenizer = _tokenizer(recipe, [pair.source for pair in parts["train"]], folder)
    number = {label: i for i, label in enumerate(labels)}
    encoded: dict[str, list[dict[str, Any]]] = {}
    for split in ("train", "validation"):
        ids = tokenizer.encode_batch([pair.source for pair in parts[split]], bos=True, eos=True)
        encoded[split] = [
            {"tokens": row, "labels": number[pair.target]} for row, pair in zip(ids, parts[split], strict=True)
        ]
    return Corpus(tokenizer, *_batches(recipe, encoded, tokenizer, seed), parts["test"], labels, parts["train"])


def _labelled_texts(data: dict[str, Any], split: str, n: int | None, seed: int) -> list[Pair]:
    """Texts with labels: number words of several languages, or a folder's train.tsv, validation.tsv, test.tsv."""
    if data["name"] != "languages":
        return load_pairs(data["name"], split, n, seed=seed)  # type: ignore[arg-type]
    from course_lib.data.pairs import split_of

    draw = random.Random(f"languages {seed} {split}")
    found: list[Pair] = []
    seen: set[tuple[str, int]] = set()
    while len(found) < (n or 0):
        language, value = draw.choice(data["languages"]), draw.randrange(10 ** draw.randint(1, 6))
        if split_of("number", value) == split and ((language, value) not in seen or value < 1000):
            seen.add((language, value))
            found.append(Pair(number_words(value, language), language))
    return found


def _text(recipe: Recipe, seed: int, folder: Path) -> Corpus:
    data, batches = recipe["data"], recipe["batches"]
    sizes = {"length": batches["length"], "batch_size": batches["batch_size"]}
    place = Path(data["name"])
    if place.is_dir():  # prepared: ids on the disk, which may be larger than memory
        tokenizer = load_tokenizer(place)
        sources: list[Any] = [place / "train.npy", place / "validation.npy"]
    else:
        text = read_text(data["name"])
        cut = len(text) - int(len(text) * data["validation_share"])
        tokenizer = _tokenizer(recipe, [text[:cut]], folder)
        sources = [torch.tensor(tokenizer.encode(part)) for part in (text[:cut], text[cut:])]
    train = TokenWindows(sources[0], **sizes, seed=seed)
    return Corpus(tokenizer, train, TokenWindows(sources[1], **sizes, shuffle=False), [], [], [])


def read_text(name: str) -> str:
    """Return the text of that name, or in that file."""
    if name == "reference":
        return reference_text()
    if name == "library":
        return library_text()
    path = fetch("tinyshakespeare.txt") if name == "tinyshakespeare" else Path(name)
    if not path.is_file():
        raise ValueError(f"data: expected {_TEXTS}, a text file or a folder of ids, got {name!r}")
    return path.read_text(encoding="utf-8")


def _sizes(data: dict[str, Any]) -> dict[str, int | None]:
    """How many examples of each split; 0 means all that a file has."""
    return {split: data[split] or None for split in ("train", "validation", "test")}


def _tokenizer(recipe: Recipe, texts: list[str], folder: Path) -> Tokenizer:
    if (folder / "tokenizer.json").exists():
        return load_tokenizer(folder)
    kind = recipe["tokenizer"]["kind"]
    if kind == "characters":
        return CharTokenizer.train(texts)
    if kind == "bpe":
        return FastBPETokenizer.train(texts, recipe["tokenizer"]["vocab_size"])
    raise ValueError(f"kind: expected a tokenizer of 'characters' or 'bpe', got {kind!r}")


def _batches(recipe: Recipe, encoded: dict[str, list[Any]], tokenizer: Tokenizer, seed: int) -> tuple[Any, Any]:
    size = {"max_tokens": recipe["batches"]["max_tokens"], "pad_id": tokenizer.pad_id}
    train = TokenBatches(encoded["train"], **size, seed=seed)
    return train, TokenBatches(encoded["validation"], **size, shuffle=False)
