"""What `course train` trains: one object for each task, from its data to the measures of its result.

A new task is a class and its name in `TASKS`; its docstring is the help of its command. Everything follows from the
recipe, its seed included, so that a resumed run and every process of a run build the same.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from course_lib import data, training
from coursework import corpora
from coursework.commands.recipes import TEXTBOOK, Recipe, changes, fast_layer, lay_over

if TYPE_CHECKING:
    from torch import nn

    from course_lib.config import TransformerConfig
    from course_lib.data import Pair, Tokenizer

__all__ = ["TASKS", "Task"]


class Task(ABC):
    """One kind of training; after `load`, with a tokenizer and with batches to train on and to evaluate."""

    name: ClassVar[str]
    tokenizer: "Tokenizer"
    train: Any
    validation: Any

    def __init__(self, *layers: Mapping[str, Any], plain: bool = False, device: str | None = None) -> None:
        """Lay the tables of each layer over the textbook's, the last one winning.

        The first of them is the fast recipe for the device, the best there is unless given, if not `plain`.
        """
        self.plain = plain
        self.recipe: Recipe = {table: dict(values) for table, values in TEXTBOOK[self.name].items()}
        for layer in layers if plain else (fast_layer(self.name, device), *layers):
            lay_over(self.recipe, layer)
        settings, length = self.recipe["training"], self.recipe["batches"].get("length")
        if not any("warmup" in layer.get("training", {}) for layer in layers) and isinstance(settings["steps"], int):
            settings["warmup"] = min(settings["warmup"], settings["steps"] // 10)  # the default fits any length
        if self.name == "lm" and not plain and not any("window" in layer.get("model", {}) for layer in layers):
            self.recipe["model"]["window"] = length  # attention never reaches further than it did in training
        self.config = training.TrainingConfig.from_dict(settings)
        self._model_config(2**31 - 1)  # refused before any data are loaded; a tokenizer says how many there are
        self.seed = self.config.seed  # of data, their order, the first weights and dropout

    @property
    def changed(self) -> str:
        """What the recipe took over from the fast one, in one line; empty if nothing."""
        return "" if self.plain else changes(self.name, self.recipe)

    @abstractmethod
    def load(self, tokenizer: "Tokenizer | None") -> None:
        """Load the data and cut batches, with a tokenizer of the data unless given: that of a run that is resumed."""

    @abstractmethod
    def contents(self) -> dict[str, bytes]:
        """Return what tells the data that were loaded from others, by split."""

    def fingerprints(self) -> dict[str, str]:
        """Return a checksum of each split of the data, and of the tokenizer."""
        parts = {**self.contents(), "tokenizer": self.tokenizer.to_text().encode()}
        return {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}

    @abstractmethod
    def model(self) -> "nn.Module":
        """Return the model of the recipe with new weights."""

    @abstractmethod
    def objective(self) -> Any:
        """Return what is minimised, one of `course_lib.training.tasks`."""

    def measure(self, model: "nn.Module") -> dict[str, Any]:
        """Return the scores of a trained model on examples that it never saw, with baselines."""
        return {}

    @property
    def labels(self) -> list[str]:
        """The names of the classes."""
        return []

    @property
    def padding_waste(self) -> float | None:
        """The share of padding in the batches to train on; None where none is needed."""
        return None

    def _config(self, **more: Any) -> "TransformerConfig":
        return self._model_config(self.tokenizer.vocab_size, **more)

    def _model_config(self, vocab_size: int, **more: Any) -> "TransformerConfig":
        from course_lib.config import TransformerConfig

        return TransformerConfig(**{**self.recipe["model"], "vocab_size": vocab_size, **more})

    def _new_tokenizer(self, texts: list[str]) -> "Tokenizer":
        kind = self.recipe["tokenizer"]["kind"]
        if kind == "characters":
            return data.CharTokenizer.train(texts)
        if kind == "bpe":
            return data.FastBPETokenizer.train(texts, self.recipe["tokenizer"]["vocab_size"])
        raise ValueError(f"kind: expected a tokenizer of 'characters' or 'bpe', got {kind!r}")


def _ends(path: Path) -> bytes:
    """The size of a file that may be larger than memory, and its first and last megabyte."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        first = stream.read(2**20)
        stream.seek(max(0, size - 2**20))
        return str(size).encode() + first + stream.read()


class _Windows(Task):
    """Windows of one long text."""

    def load(self, tokenizer: "Tokenizer | None") -> None:
        import torch

        from coursework.commands.corpora import read_text

        batches = self.recipe["batches"]
        sizes = {"length": batches["length"], "batch_size": batches["batch_size"]}
        name = self.recipe["data"]["name"]
        place = Path(name)
        if place.is_dir():  # prepared: ids on the disk, which may be larger than memory
            self.tokenizer = data.load_tokenizer(place)
            sources: list[Any] = [place / "train.npy", place / "validation.npy"]
        else:
            text = read_text(name)
            cut = len(text) - int(len(text) * self.recipe["data"]["validation_share"])
            self.tokenizer = tokenizer or self._new_tokenizer([text[:cut]])
            sources = [torch.tensor(self.tokenizer.encode(part)) for part in (text[:cut], text[cut:])]
        self._sources = sources
        self.train = data.TokenWindows(sources[0], **sizes, seed=self.seed)
        self.validation = data.TokenWindows(sources[1], **sizes, shuffle=False)

    def contents(self) -> dict[str, bytes]:
        """Return the ids; of files on the disk the size, and the first and last megabyte."""
        parts = zip(("train", "validation"), self._sources, strict=True)
        return {name: _ends(ids) if isinstance(ids, Path) else ids.numpy().tobytes() for name, ids in parts}


class _Pairs(Task):
    """Pairs of texts, or of a text and its label, in batches of about equal token counts, with a test at the end."""

    pairs: dict[str, list["Pair"]]  # by split

    @abstractmethod
    def _read(self, sizes: dict[str, int | None]) -> dict[str, list["Pair"]]:
        """Return so many pairs of each split, all if None."""

    @abstractmethod
    def _texts(self, pairs: Sequence["Pair"]) -> list[str]:
        """Return what the tokenizer is trained on."""

    @abstractmethod
    def _encode(self, pairs: Sequence["Pair"]) -> list[Any]:
        """Return pairs as examples for `TokenBatches`."""

    def load(self, tokenizer: "Tokenizer | None") -> None:
        self.pairs = self._read(
            {split: self.recipe["data"][split] or None for split in ("train", "validation", "test")}
        )
        self.tokenizer = tokenizer or self._new_tokenizer(self._texts(self.pairs["train"]))
        size = {"max_tokens": self.recipe["batches"]["max_tokens"], "pad_id": self.tokenizer.pad_id}
        self.train = data.TokenBatches(self._encode(self.pairs["train"]), **size, seed=self.seed)
        self.validation = data.TokenBatches(self._encode(self.pairs["validation"]), **size, shuffle=False)

    def contents(self) -> dict[str, bytes]:
        """Return the pairs of each split, written out."""
        return {name: repr([tuple(pair) for pair in pairs]).encode() for name, pairs in self.pairs.items()}

    @property
    def padding_waste(self) -> float:
        return self.train.padding_waste()


class TranslateTask(_Pairs):
    """Train an encoder-decoder on pairs of texts and measure exact matches and BLEU on held-out ones.

    --data numbers+dates (the default), numbers, dates, multi30k, or a folder with train.tsv, validation.tsv, test.tsv.

    Example: course train translate --out runs/dates --set data.name=dates
    """

    name = "translate"

    def _read(self, sizes: dict[str, int | None]) -> dict[str, list["Pair"]]:
        settings = self.recipe["data"]
        languages = {"source": settings["source"], "target": settings["target"], "seed": self.seed}
        return {
            split: corpora.load_pairs(settings["name"], split, n, **languages)  # type: ignore[arg-type]
            for split, n in sizes.items()
        }

    def _texts(self, pairs: Sequence["Pair"]) -> list[str]:
        return [text for pair in pairs for text in pair]

    def _encode(self, pairs: Sequence["Pair"]) -> list[Any]:
        return data.encode_pairs(pairs, self.tokenizer)

    def model(self) -> "nn.Module":
        """Return an encoder-decoder with new weights."""
        from course_lib.transformer import Transformer

        return Transformer(self._config(pad_id=self.tokenizer.pad_id))

    def objective(self) -> Any:
        """Return the smoothed loss of translations."""
        result = self.recipe["result"]
        return training.tasks.Translation(
            pad_id=self.tokenizer.pad_id, smoothing=result["smoothing"], rows=result["loss_rows"]
        )

    def measure(self, model: "nn.Module") -> dict[str, Any]:
        """Return exact matches and BLEU, beside the nearest training example's."""
        from coursework.commands.measures import translations

        result = self.recipe["result"]
        options = {"beams": result["beams"], "max_new_tokens": result["max_new_tokens"]}
        return translations(model, self.tokenizer, self.pairs["test"], self.pairs["train"], **options)


class LanguageTask(_Windows):
    """Train a language model on text.

    --data tinyshakespeare (the default), reference (Python's manual), library (the source of Python's library), a text
    file, or a folder with train.npy, validation.npy (ids on the disk) and tokenizer.json.

    Example: course train lm --data reference --steps 500
    """

    name = "lm"

    def model(self) -> "nn.Module":
        """Return a decoder with new weights."""
        from course_lib.transformer import LanguageModel

        return LanguageModel(self._config())

    def objective(self) -> Any:
        """Return the loss of the next token."""
        return training.tasks.LanguageModelling(rows=self.recipe["result"]["loss_rows"])


class ClassifyTask(_Pairs):
    """Train a classifier of texts and measure its accuracy on held-out ones.

    --data languages (the default: of which language is a number in words?), or a folder with train.tsv,
    validation.tsv, test.tsv, each line a text and its label, apart by a tab.

    Example: course train classify
    """

    name = "classify"

    def _read(self, sizes: dict[str, int | None]) -> dict[str, list["Pair"]]:
        from coursework.commands.corpora import numbers_in_languages

        settings = self.recipe["data"]
        if settings["name"] == "languages":
            languages = settings["languages"]
            pairs = {split: numbers_in_languages(languages, split, n or 0, self.seed) for split, n in sizes.items()}
        else:
            pairs = {
                split: corpora.load_pairs(settings["name"], split, n, seed=self.seed)  # type: ignore[arg-type]
                for split, n in sizes.items()
            }
        known = {pair.target for pair in pairs["train"]}
        if unknown := {pair.target for split in ("validation", "test") for pair in pairs[split]} - known:
            raise ValueError(f"data: the label {min(unknown)!r} occurs in no training example")
        return pairs

    @property
    def labels(self) -> list[str]:
        """The languages, or the labels of the training part."""
        return sorted({pair.target for pair in self.pairs["train"]})

    def _texts(self, pairs: Sequence["Pair"]) -> list[str]:
        return [pair.source for pair in pairs]

    def _encode(self, pairs: Sequence["Pair"]) -> list[Any]:
        number = {label: i for i, label in enumerate(self.labels)}
        ids = self.tokenizer.encode_batch(self._texts(pairs), bos=True, eos=True)
        return [{"tokens": row, "labels": number[pair.target]} for row, pair in zip(ids, pairs, strict=True)]

    def model(self) -> "nn.Module":
        """Return an encoder with a classifier and new weights."""
        from course_lib.variants import EncoderModel

        config = self._config(pad_id=self.tokenizer.pad_id)
        return EncoderModel(config, head="classifier", n_classes=len(self.labels))

    def objective(self) -> Any:
        """Return the loss of labels."""
        return training.tasks.Classification(smoothing=self.recipe["result"]["smoothing"])

    def measure(self, model: "nn.Module") -> dict[str, Any]:
        """Return the share of right labels, beside that of the commonest one."""
        from coursework.commands.measures import classifications

        return classifications(model, self.tokenizer, self.pairs["test"], self.labels)


class MaskedTask(_Windows):
    """Train an encoder to fill in masked tokens; data as for `lm`.

    Example: course train mlm --data reference
    """

    name = "mlm"

    def model(self) -> "nn.Module":
        """Return an encoder with new weights that fills in tokens."""
        from course_lib.variants import EncoderModel

        return EncoderModel(self._config(pad_id=self.tokenizer.pad_id), head="masked_lm")

    def objective(self) -> Any:
        """Return the loss of hidden tokens."""
        tokenizer = self.tokenizer
        return training.tasks.MaskedLanguageModelling(
            mask_id=tokenizer.mask_id,
            vocab_size=tokenizer.vocab_size,
            pad_id=tokenizer.pad_id,
            special_ids=(tokenizer.bos_id, tokenizer.eos_id),
            share=self.recipe["result"]["share"],
        )


TASKS: tuple[type[Task], ...] = (TranslateTask, LanguageTask, ClassifyTask, MaskedTask)
