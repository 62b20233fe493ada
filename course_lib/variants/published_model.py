"""The published families: their registry, and what they share: switches, and folders as `transformers` has them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from course_lib.config import TransformerConfig
from course_lib.files import read_together
from course_lib.variants.config_entries import Entries, refuse
from course_lib.variants.folders import CONFIG, Weights, locate, read_config, reading_config, write_model
from course_lib.variants.names import NameTable, fill, published_tensors, read_parameters
from course_lib.variants.packed import FrozenLinear

# Fields that say how a model is trained, not what it computes.
_TRAINING = {"dropout", "embedding_dropout", "attention_dropout", "activation_dropout"}
_TRAINING |= {"init", "init_std", "scale_residual_init", "zero_residual_init"}
# Entries of a published config that change nothing here but that generation and readers want: kept as they are.
_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "id2label", "label2id")


class PublishedModel(nn.Module):
    """A published family: a mixin before the class of the blocks that it configures.

    A family states the class attributes below; what its published config says otherwise than by single entries is in
    `read` and `write`. `metadata` holds ids of special tokens and names of classes.
    """

    model_types: ClassVar[tuple[str, ...]]  # in the published config; the first is written
    switches: ClassVar[Mapping[str, Any]]  # its row in the table of switches
    entries: ClassVar[tuple[Entries, ...]]  # of the published config
    more_fields: ClassVar[tuple[str, ...]] = ()  # that `read` sets besides; all others stand as in `switches`
    refused: ClassVar[Mapping[str, Any]] = {}  # options of the published config that have this value alone
    names: NameTable
    heads: ClassVar[tuple[str, ...]] = ()  # beginnings of our names of parameters that are not of the body
    metadata: dict[str, Any]
    config: TransformerConfig

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self.metadata = {}

    @classmethod
    def configure(cls, **changes: Any) -> TransformerConfig:
        """Return the family's row of switches with sizes, and other changes, filled in."""
        return TransformerConfig(**{**cls.switches, **changes})

    @property
    def architecture(self) -> str:
        """The class of `transformers` that reads what is written."""
        raise NotImplementedError

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`, and arguments of the class beside the config."""
        refuse(found, **cls.refused)
        changes: dict[str, Any] = {}
        for entry in cls.entries:
            changes |= entry.read(found)
        if "vocab_size" in changes:
            pad_id = found.get("pad_token_id", cls.switches.get("pad_id"))
            # Some say -1 for none.
            changes["pad_id"] = pad_id if pad_id is not None and 0 <= pad_id < changes["vocab_size"] else None
        return changes, {}

    def write(self) -> dict[str, Any]:
        """The published config."""
        content: dict[str, Any] = {"model_type": self.model_types[0], "architectures": [self.architecture]}
        for entry in self.entries:
            content |= entry.write(self.config)
        if self.config.vocab_size is not None:
            content["pad_token_id"] = self.metadata.get("pad_token_id", self.config.pad_id)
        n_classes = getattr(self, "n_classes", None)
        if n_classes is not None and "id2label" not in self.metadata:
            content["id2label"] = {str(number): f"LABEL_{number}" for number in range(n_classes)}
            content["label2id"] = {label: int(number) for number, label in content["id2label"].items()}
        return content

    def published_shapes(self) -> dict[str, tuple[int, ...]]:
        """Our parameter -> its published shape, where that has other axes."""
        return {}

    def published_tensors(self) -> dict[str, Tensor]:
        """The parameters under their published names and in their published layouts."""
        return published_tensors(self, self.names, self.published_shapes(), bare=self.is_body)

    @property
    def is_body(self) -> bool:
        """Whether there is no head, so that published names have no prefix."""
        return False

    @classmethod
    def from_pretrained(
        cls,
        path_or_name: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Load a folder as `transformers` writes it, or a name on the Hugging Face hub; in evaluation mode.

        Args:
            path_or_name: a folder with `config.json` and safetensors, or a name such as "openai-community/gpt2".
            dtype: of the parameters, that of the files unless given.
            revision: branch, tag or commit on the hub.
            options: arguments of the class in place of those that the folder says, such as head="classifier",
                n_classes=2 on a folder without it: the new head gets initial weights.

        Raises:
            FileNotFoundError: no such folder, file or model. ConnectionError: the hub cannot be reached.
            ValueError: another model_type, an option of the config that is not built here, or weights that do not fit
                the config; names the tensor and the file.
        """
        folder = locate(path_or_name, revision=revision)
        return read_together(folder, lambda: cls.load(folder, read_config(folder), dtype, **options))

    @classmethod
    def load(cls, folder: Path, found: Mapping[str, Any], dtype: torch.dtype | None, **options: Any) -> Self:
        """Load a folder whose `config.json` holds `found`; see `from_pretrained`."""
        path = folder / CONFIG
        if found["model_type"] not in cls.model_types:
            raise ValueError(
                f"{path}: expected a model_type of {cls.model_types} for {cls.__name__}, got {found['model_type']!r}"
            )
        weights = Weights(folder)
        with reading_config(folder):
            changes, arguments = cls.read(found, weights)
            config = cls.configure(**changes)
            weights.check_sizes(config)
            with torch.device("meta"):
                model = cls(config, **{**arguments, **options})
        optional = cls.heads if options else ()
        tensors = read_parameters(model, weights, model.names, model.published_shapes(), optional)
        if options:  # now that the shapes fit: the new head needs weights
            with torch.device("cpu"):
                model = cls(config, **{**arguments, **options})
        fill(model, tensors, dtype)
        if options:  # a new head is as wide as the rest
            model.to(dtype or next(iter(tensors.values())).dtype)
        model.metadata = {name: found[name] for name in _KEPT if found.get(name) is not None}
        return model.eval()

    @classmethod
    def unsaid(cls, config: TransformerConfig) -> dict[str, Any]:
        """The fields of a config that the published one cannot say, with what the family has there."""
        said = {name for entry in cls.entries for name in entry.fields} | {*cls.more_fields, "pad_id"} | _TRAINING
        expected = {each.name: cls.switches.get(each.name, each.default) for each in fields(config)}
        return {name: has for name, has in expected.items() if name not in said and getattr(config, name) != has}

    def save_pretrained(self, path: str | os.PathLike[str], *, more: Mapping[str, str] | None = None) -> None:
        """Write a folder that `transformers` opens; it holds the old model or the new one, never half of one.

        `more` as in the function `save_pretrained`.
        Raises ValueError for a config that the family's published one cannot say, and for frozen linear maps.
        """
        for name, part in self.named_modules():
            if isinstance(part, FrozenLinear):
                raise ValueError(
                    f"{name}: expected a trained map, got a {type(part).__name__}; save before pack_ and quantize_"
                )
        for name, expected in self.unsaid(self.config).items():
            raise ValueError(
                f"{name}: {type(self).__name__} has {expected!r}, got {getattr(self.config, name)!r}; "
                "course_lib.variants.save_pretrained(EncoderModel, LanguageModel or Transformer) takes any config"
            )
        dtype = str(next(self.parameters()).dtype).removeprefix("torch.")
        config = {**self.metadata, **self.write(), "dtype": dtype, "torch_dtype": dtype}
        write_model(path, config, self.published_tensors(), more=more)


def has_pooler(weights: Weights) -> bool:
    """Whether a folder has the map that BERT and ViT put on the first vector."""
    return any(name.endswith("pooler.dense.weight") for name in weights.file_of)


@dataclass(frozen=True)
class Published:
    """A published model: its family, sizes, and the number of parameters that its publisher states."""

    family: type[PublishedModel]
    sizes: Mapping[str, Any]
    stated: float  # parameters
    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the class, beside the config

    def config(self) -> TransformerConfig:
        """The row of switches with the sizes filled in."""
        return self.family.configure(**self.sizes)

    def build(self, device: torch.device | str = "meta") -> nn.Module:
        """The model with new weights; on the meta device it has shapes only, so that any size fits."""
        with torch.device(device):
            return self.family(self.config(), **self.arguments)


FAMILIES: dict[str, type[PublishedModel]] = {}  # by model_type
PUBLISHED: dict[str, Published] = {}  # by the name of the model


def register(family: type[PublishedModel], published: Mapping[str, Published] | None = None) -> None:
    """Let `from_pretrained` find a family by its model types, and add its published models to the table of them."""
    for model_type in family.model_types:
        FAMILIES[model_type] = family
    PUBLISHED.update(published or {})
