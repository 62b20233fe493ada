"""What the tasks of `course train` share: from the recipe to the data, as windows of a text or as pairs of texts."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from course_lib import data, training
from course_lib.checks import MOST
from course_lib.reading import shown
from coursework.commands.corpora import TEXTS, read_text
from coursework.commands.recipes import TEXTBOOK, Recipe, changes, check_sizes, fast_layer, inner_width, lay_over
from coursework.corpora import own

if TYPE_CHECKING:
    from torch import nn

    from course_lib.config import TransformerConfig
    from course_lib.data import Pair, Tokenizer

__all__ = ["Pairs", "Task", "Windows"]

SPLITS = own.SPLITS


class Task(ABC):
    """One kind of training; after `load`, with a tokenizer and with batches to train on and to evaluate."""

    name: ClassVar[str]
    stacks: ClassVar[tuple[str, ...]] = ("n_encoder_layers",)  # of the model, each with a layer at least
    sets: ClassVar[tuple[str, ...]]  # the names that data may have; all else is a file or a folder of one's own
    tokenizer: "Tokenizer"
    train: Any
    validation: Any
    labels: Sequence[str] = ()  # the names of the classes
    known: Sequence[str] | None = None  # ... that there are already, of a trained model
    judging = False  # whether a trained model is measured; other rows than its own may then be few
    parts: list[str]  # what is to be said about the splits of the data
    remarks: list[str]  # ... and about all of them
    left_out: int | None = None  # rows of the data that could not be read
    whole = False  # whether a file of one's own was split here

    def __init__(self, *layers: Mapping[str, Any], plain: bool = False, device: str | None = None) -> None:
        """Lay the tables of each layer over the textbook's, the last one winning.

        The first of them is the fast recipe for the device, the best there is unless given, if not `plain`.
        """
        self.plain, self.parts, self.remarks = plain, [], []
        self.recipe: Recipe = {table: dict(values) for table, values in TEXTBOOK[self.name].items()}
        told = {name for layer in layers for name in layer.get("data", ())}
        begins = [layer["start"] for layer in layers if layer.get("start")]
        start = {name: value for one in begins for name, value in one.items()}
        lay_over({"start": dict(self.recipe["start"])}, {"start": start})  # refused before it is opened
        self.fast = {} if plain else fast_layer(self.name, device)
        lay_over(self.recipe, self.fast)
        if start.get("model") is not None:
            from coursework.commands.start import start_layer

            layers = (start_layer(start["model"], self.name, self.stacks, self.recipe, start.get("lora")), *layers)
        elif start.get("lora"):
            raise ValueError("--lora: an update needs a model to go on from; name it by --from")
        for layer in layers:
            lay_over(self.recipe, layer)
        if self.of_ones_own or self.recipe["data"]["name"] == "multi30k":  # the sizes are those of other sets
            self.recipe["data"] |= dict.fromkeys({*SPLITS} & self.recipe["data"].keys() - told, 0)
        settings, length = self.recipe["training"], self.recipe["batches"].get("length")
        if not any("warmup" in layer.get("training", {}) for layer in layers) and isinstance(settings["steps"], int):
            settings["warmup"] = min(settings["warmup"], settings["steps"] // 10)  # the default fits any length
        model = self.recipe["model"]
        given = {name for layer in layers for name in layer.get("model", ())}
        if self.name == "lm" and not plain:
            if "window" not in given:
                model["window"] = length  # attention never reaches further than it did in training
            if "d_ff" not in given and isinstance(model["d_model"], int) and 0 < model["d_model"] < MOST // 4:
                model["d_ff"] = inner_width(model["d_model"]) if model["gated"] else None
        self.config = training.TrainingConfig.from_dict(settings)
        self._check_average()
        check_sizes(self._model_config(2**31 - 1), self.recipe, self.stacks)  # before any data are loaded
        self.seed = self.config.seed  # of data, their order, the first weights and dropout

    def _check_average(self) -> None:
        """Refuse to average more checkpoints than training will leave."""
        config, last = self.config, self.recipe["result"]["average"]
        there = min(config.keep, -(-config.steps // (config.checkpoint_every or config.steps)))
        if last > there:
            raise ValueError(
                f"result.average: expected at most {there}, the checkpoints that stay with steps={config.steps}, "
                f"checkpoint_every={config.checkpoint_every} and keep={config.keep} of [training], got {last}"
            )

    @property
    def of_ones_own(self) -> bool:
        """Whether the data are files of one's own."""
        return self.recipe["data"]["name"] not in self.sets

    @property
    def changed(self) -> str:
        """What the recipe took over from the fast one, in one line; empty if nothing."""
        return changes(self.name, self.recipe, self.fast)

    @abstractmethod
    def read(self) -> None:
        """Read the data, and split them."""

    @abstractmethod
    def load(self, tokenizer: "Tokenizer | None") -> None:
        """Cut batches of what was read, with a tokenizer of the data unless given: that of a run that is resumed."""

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

    @abstractmethod
    def take(self, whole: bool) -> str:
        """Make ready to measure on the held-out part of what was read, or on the whole; return which, in words."""

    @abstractmethod
    def measure(self, model: "nn.Module", held_out: float | None = None) -> dict[str, Any]:
        """Return the scores of a trained model on examples that it never saw.

        `held_out` is its loss on the held-out part, where that was computed before.
        """

    def baseline(self) -> dict[str, Any]:
        """Return what those reach on the same examples who understand nothing, or little."""
        return {}

    def _own_rows(self, wanted: tuple[str, ...]) -> dict[str, own.Rows]:
        """Return rows of files of one's own, by split; raise ValueError that names the bad ones, unless skipped."""
        settings = self.recipe["data"]
        name, seed, share = settings["name"], settings["split_seed"], settings["validation_share"]
        rows, self.whole = own.read_splits(name, wanted, settings["columns"], seed=seed, share=share)
        bad = [one for part in rows.values() for one in part.bad]
        own.Rows(bad=bad).refuse(skip_bad=settings["skip_bad"])
        if not any(part.rows for part in rows.values()):
            got = f"{len(bad):,} that cannot be read, the first: {bad[0]}" if bad else "none"
            raise ValueError(f"data: expected rows in {name}, got {got}")
        return rows

    def _sizes_of(self, rows: dict[str, own.Rows]) -> str:
        """How many rows and different texts there are, for a message that says that they are too few."""
        every = [row for part in rows.values() for row in part.rows]
        texts = len({row[0] for row in every})
        return f"{len(every):,} rows with {texts:,} different texts, each of which stands in one split alone"

    def _no_columns(self) -> None:
        """Refuse columns where the data have none."""
        if columns := self.recipe["data"]["columns"]:
            kinds = ", ".join(own.KINDS)
            name = self.recipe["data"]["name"]
            raise ValueError(f"columns: expected none with {name}, which is no file {kinds}, got {', '.join(columns)}")

    def _accept(self, rows: dict[str, own.Rows]) -> None:
        """Refuse or count the bad rows, and note what the data are."""
        bad = [one for part in rows.values() for one in part.bad]
        own.Rows(bad=bad).refuse(skip_bad=self.recipe["data"]["skip_bad"])
        self.left_out = len(bad)
        sizes = ", ".join(f"{len(part.rows):,} in {split}" for split, part in rows.items())
        how = f", split by seed {self.recipe['data']['split_seed']}" if self.whole else ""
        self.parts.append(f"{self.recipe['data']['name']}: {sizes}{how}")
        if bad:
            self.remarks.append(f"{len(bad):,} rows left out: {own.Rows(bad=bad).first()}")
        texts = {row[0] for row in rows["train"].rows}
        if again := sum(row[0] in texts for split, part in rows.items() if split != "train" for row in part.rows):
            self.parts.append(f"{again:,} of the held-out texts stand in train, too")

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


class Windows(Task):
    """Windows of one long text."""

    sets = tuple(TEXTS)
    _parts: list[str] | None = None  # to train on, and held out; None where ids lie on the disk

    def read(self) -> None:
        """Read a text and hold its end out; or rows of texts, or a folder of them, and hold out some."""
        name, share = self.recipe["data"]["name"], self.recipe["data"]["validation_share"]
        place = Path(name)
        if self.of_ones_own and (place / "train.npy").is_file():  # prepared: ids, which may be larger than memory
            return
        if self.of_ones_own and (place.is_dir() or place.suffix in own.KINDS):
            rows = self._own_rows(("text",))
            if self.whole:  # two parts are enough: a text is measured on what was held out
                rows["train"].rows += rows.pop("test").rows
            self._accept(rows)
            self._parts = ["\n\n".join(text for (text,) in rows[split].rows) for split in SPLITS[:2]]
            return
        self._no_columns()
        text = read_text(name)
        cut = len(text) - int(len(text) * share)
        if self.of_ones_own and not 0 < cut < len(text):
            raise ValueError(f"data: {name} has too few characters, {len(text):,}: no part of it is left to hold out")
        self._parts, self.whole = [text[:cut], text[cut:]], self.of_ones_own

    def load(self, tokenizer: "Tokenizer | None") -> None:
        """Turn the text into windows of ids."""
        import torch

        if self._parts is None:
            place = Path(self.recipe["data"]["name"])
            self.tokenizer = data.load_tokenizer(place)
            self._sources: list[Any] = [place / "train.npy", place / "validation.npy"]
        else:
            self.tokenizer = tokenizer or self._new_tokenizer(self._parts[:1])
            self._sources = [torch.tensor(self.tokenizer.encode(text)) for text in self._parts]
        self.train = data.TokenWindows(self._sources[0], **self._sizes, seed=self.seed)
        self.validation = data.TokenWindows(self._sources[1], **self._sizes, shuffle=False)
        if (most := max(int(part.tokens.max()) for part in (self.train, self.validation))) >= (
            size := self.tokenizer.vocab_size
        ):
            raise ValueError(f"data: expected ids below {size}, the size of the tokenizer, got {most}")

    @property
    def _sizes(self) -> dict[str, Any]:
        return {name: self.recipe["batches"][name] for name in ("length", "batch_size")}

    def take(self, whole: bool) -> str:
        """Measure on the held-out part, or on the whole text."""
        if whole and self._parts is not None:
            self._parts = ["", ("" if self.left_out is None else "\n\n").join(filter(None, self._parts))]
            tokens = self.tokenizer.encode(self._parts[1])
            self.validation = data.TokenWindows(tokens, **self._sizes, shuffle=False)
            return "the whole text"
        return "the held-out part of the text"

    def measure(self, model: "nn.Module", held_out: float | None = None) -> dict[str, Any]:
        """Return the loss and the perplexity a token, and, where every token is predicted, bits per byte."""
        from coursework.commands.measures import loss_of_text

        if held_out is None:
            precision = self.config.precision
            held_out = training.evaluate(model, self.objective().loss, self.validation, precision=precision)
        tokens = self.validation.tokens
        text = self.tokenizer.decode(tokens) if self._parts is None else self._parts[1]
        return loss_of_text(held_out, tokens, text, self.tokenizer.unk_id, whole=self.name == "lm")

    def contents(self) -> dict[str, bytes]:
        """Return the ids; of files on the disk the size, and the first and last megabyte."""
        parts = zip(("train", "validation"), self._sources, strict=True)
        return {name: _ends(ids) if isinstance(ids, Path) else ids.numpy().tobytes() for name, ids in parts}


class Pairs(Task):
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

    columns: ClassVar[tuple[str, str]]  # what the two texts of a pair are called

    def read(self) -> None:
        """Read the pairs of each split."""
        self._rows: dict[str, own.Rows] = {}  # of one's own
        sizes = {split: self.recipe["data"][split] or None for split in SPLITS}
        if not self.of_ones_own:
            self._no_columns()
            self.pairs = self._read(sizes)
            return
        name = self.recipe["data"]["name"]
        if not own.is_own(name):
            raise ValueError(f"data: there is no file or folder {shown(name)}; without files: {', '.join(self.sets)}")
        self._rows = self._own_rows(self.columns)
        for split, size in sizes.items():
            part = self._rows[split]
            del part.rows[size or len(part.rows) :], part.places[size or len(part.places) :]
        self._fit_labels()
        self._accept(self._rows)
        self.pairs = {split: [data.Pair(*row) for row in part.rows] for split, part in self._rows.items()}
        if self.judging and self.whole and not all(self.pairs.values()):  # too few to part, enough to measure on
            every = [pair for split in SPLITS for pair in self.pairs[split]]
            self.pairs = {split: list(every) for split in SPLITS}
        if empty := next((split for split, pairs in self.pairs.items() if not pairs), None):
            rows = self._sizes_of(self._rows)
            raise ValueError(f"data: {name} has too few rows: none are left for {empty} of {rows}")

    def _fit_labels(self) -> None:
        """Let rows be bad whose label nothing is learned of; where there are labels."""

    def load(self, tokenizer: "Tokenizer | None") -> None:
        """Turn the pairs into batches of ids."""
        self.tokenizer = tokenizer or self._new_tokenizer(self._texts(self.pairs["train"]))
        most = self.recipe["batches"]["max_tokens"]
        examples = {split: self._encode(pairs) for split, pairs in self.pairs.items()}
        for split in self._rows:
            self._leave_out_long(split, examples[split], most)
        size = {"max_tokens": most, "pad_id": self.tokenizer.pad_id}
        self.train = data.TokenBatches(examples["train"], **size, seed=self.seed)
        self.validation = data.TokenBatches(examples["validation"], **size, shuffle=False)

    def _leave_out_long(self, split: str, examples: list[Any], most: int) -> None:
        """Refuse, or leave out and count, rows of one's own that no batch can hold."""
        sizes = [max(len(ids) for ids in example.values() if not isinstance(ids, int)) for example in examples]
        long = {number for number, size in enumerate(sizes) if size > most}
        if not long:
            return
        rows = self._rows[split].without(long, f"longer than batches.max_tokens={most}")
        rows.refuse(skip_bad=self.recipe["data"]["skip_bad"])
        self.left_out = (self.left_out or 0) + len(long)
        self.remarks.append(f"{len(long):,} rows of {split} left out, the first: {rows.bad[-len(long)]}")
        for kept in (examples, self.pairs[split]):
            kept[:] = [one for number, one in enumerate(kept) if number not in long]

    def take(self, whole: bool) -> str:
        """Measure on the test, or on all there is."""
        if whole:
            parts = SPLITS if self.pairs["train"] != self.pairs["test"] else SPLITS[:1]  # too few were not parted
            self.pairs["test"] = [pair for split in parts for pair in self.pairs[split]]
            self.parts = []
        return "all of it" if whole else "its test part"

    def contents(self) -> dict[str, bytes]:
        """Return the pairs of each split, written out."""
        return {name: repr([tuple(pair) for pair in pairs]).encode() for name, pairs in self.pairs.items()}

    @property
    def padding_waste(self) -> float:
        """Share of a batch that is padding."""
        return self.train.padding_waste()
