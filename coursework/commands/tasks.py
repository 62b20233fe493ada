"""What `course train` trains: one object for each task, from its data to the measures of its result.

A new task is a class and its name in `TASKS`; its docstring is the help of its command. Everything follows from the
recipe, its seed included, so that a resumed run and every process of a run build the same.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from course_lib import data, training
from coursework import corpora
from coursework.commands.task import Pairs, Task, Windows

if TYPE_CHECKING:
    from torch import nn

    from course_lib.data import Pair

__all__ = ["TASKS", "Task"]


class TranslateTask(Pairs):
    """Train an encoder-decoder on pairs of texts and measure exact matches and BLEU on held-out ones.

    --data numbers+dates (the default), numbers, dates, multi30k, or files of your own, of any size: a .tsv with the two
    texts apart by a tab, a .csv with a header that names source and target, a .jsonl of such objects, or a folder with
    train.tsv, validation.tsv and test.tsv. One file is split: a tenth is held out to watch, a tenth for the test.

    Example: course train translate --data pairs.tsv --out runs/mine
    """

    name = "translate"
    stacks = ("n_encoder_layers", "n_decoder_layers")
    sets = corpora.PAIR_SETS
    columns = ("source", "target")

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

    def measure(self, model: "nn.Module", held_out: float | None = None) -> dict[str, Any]:
        """Return exact matches and BLEU."""
        from coursework.commands.measures import translations

        result = self.recipe["result"]
        options = {"beams": result["beams"], "max_new_tokens": result["max_new_tokens"]}
        return translations(model, self.tokenizer, self.pairs["test"], **options)

    def baseline(self) -> dict[str, Any]:
        """Return those of the nearest training example."""
        from coursework.commands.measures import nearest_translations

        return nearest_translations(self.pairs["test"], self.pairs["train"])


class LanguageTask(Windows):
    """Train a language model on text.

    --data tinyshakespeare (the default), reference (Python's manual), library (the source of Python's library), or
    files of your own, of any size: a text file, of which the last tenth is held out; a folder of .txt, or the column
    text of a .csv or .jsonl, of which a tenth of the texts is held out; a folder with train.npy, validation.npy (ids on
    the disk) and tokenizer.json.

    Example: course train lm --data mytext.txt --out runs/mine
    """

    name = "lm"
    stacks = ("n_decoder_layers",)

    def model(self) -> "nn.Module":
        """Return a decoder with new weights."""
        from course_lib.transformer import LanguageModel

        return LanguageModel(self._config())

    def objective(self) -> Any:
        """Return the loss of the next token."""
        return training.tasks.LanguageModelling(rows=self.recipe["result"]["loss_rows"])


class ClassifyTask(Pairs):
    """Train a classifier of texts and measure its accuracy on held-out ones.

    --data languages (the default: of which language is a number in words?), or files of your own, of any size: a .csv
    with a header that names text and label, a .tsv with the two apart by a tab, a .jsonl of such objects, a folder with
    a folder of .txt for each label, or one with train.tsv, validation.tsv and test.tsv. One file is split: a tenth is
    held out to watch, a tenth for the test.

    Example: course train classify --data reviews.csv --out runs/mine
    """

    name = "classify"
    sets = ("languages",)
    columns = ("text", "label")

    def _read(self, sizes: dict[str, int | None]) -> dict[str, list["Pair"]]:
        from coursework.commands.corpora import numbers_in_languages

        languages = self.recipe["data"]["languages"]
        self.labels = sorted(languages)
        return {split: numbers_in_languages(languages, split, n or 0, self.seed) for split, n in sizes.items()}

    def _fit_labels(self) -> None:
        learned = {label for _, label in self._rows["train"].rows} if self.known is None else set(self.known)
        if len(learned) < 2:
            got = f"{', '.join(learned) or 'none'} to train on, of {self._sizes_of(self._rows)}"
            raise ValueError(f"data: expected texts of two labels or more, got {got}")
        self.labels = sorted(learned)
        counts = Counter(label for _, label in self._rows["train"].rows)
        most = [f"{label} {counts[label]:,}" for label in self.labels[:8]]
        more = f" and {len(learned) - 8:,} labels more" if len(learned) > 8 else ""
        self.parts.append(f"in train: {', '.join(most)}{more}")
        why = "a label of no training example" if self.known is None else "a label that the model does not have"
        for split, part in self._rows.items():
            strange = {number for number, (_, label) in enumerate(part.rows) if label not in learned}
            self._rows[split] = part.without(strange, why)

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
        return EncoderModel(config, head="classifier", n_classes=len(self.labels), pooler=False)

    def objective(self) -> Any:
        """Return the loss of labels."""
        return training.tasks.Classification(smoothing=self.recipe["result"]["smoothing"])

    def measure(self, model: "nn.Module", held_out: float | None = None) -> dict[str, Any]:
        """Return the share of right labels, beside that of the commonest one."""
        from coursework.commands.measures import classifications

        return classifications(model, self.tokenizer, self.pairs["test"], self.labels)

    def baseline(self) -> dict[str, Any]:
        """Return the share of right labels of a linear model."""
        from coursework.commands.measures import linear_guesses

        test = self.pairs["test"]
        guesses = linear_guesses(self.pairs["train"], self._texts(test))
        right = sum(guess == pair.target for guess, pair in zip(guesses, test, strict=True))
        return {"accuracy_of_a_linear_model": right / len(test)} if test else {}


class MaskedTask(Windows):
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
