"""What the published families share: a row of switches, and folders that `transformers` reads and writes."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from course_lib.config import Activation, TransformerConfig
from course_lib.variants.checkpoint import CONFIG, Weights, locate, read_config, write_model
from course_lib.variants.names import NameMap, published_tensors, read_parameters
from course_lib.variants.own import fill
from course_lib.variants.packed import FrozenLinear

M = TypeVar("M", bound="PublishedModel")

_ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_THEIRS: dict[str, str] = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu"}
# Fields that say how a model is trained, not what it computes.
_TRAINING = {"dropout", "embedding_dropout", "attention_dropout", "activation_dropout"}
_TRAINING |= {"init", "init_std", "scale_residual_init"}
# Entries of a published config that change nothing here but that generation and readers want: kept as they are.
_KEPT = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "id2label", "label2id")


class PublishedModel(nn.Module):
    """A published family: a mixin before the class of the blocks that it configures.

    `switches` is its row in the table of switches; `free` names the fields of `TransformerConfig` that its published
    config can say, the others stand as in `switches`. `metadata` holds ids of special tokens and names of classes.
    """

    model_types: ClassVar[tuple[str, ...]]
    switches: ClassVar[Mapping[str, Any]]
    free: ClassVar[frozenset[str]]
    names: NameMap
    heads: ClassVar[tuple[str, ...]] = ()  # beginnings of the names of parameters that are not of the body
    metadata: dict[str, Any]
    config: TransformerConfig

    def __init__(self, *args: Any, **arguments: Any) -> None:
        super().__init__(*args, **arguments)
        self.metadata = {}

    @classmethod
    def configure(cls, **changes: Any) -> TransformerConfig:
        """Return the family's row of switches with sizes, and other changes, filled in."""
        return TransformerConfig(**{**cls.switches, **changes})

    @classmethod
    def read(cls, found: Mapping[str, Any], weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
        """From a published config: changes for `configure`, and arguments of the class beside the config."""
        raise NotImplementedError

    def write(self) -> dict[str, Any]:
        """The published config."""
        raise NotImplementedError

    def published_shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter here -> its published shape, where that has other axes."""
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
        cls: type[M],
        path_or_name: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> M:
        """Load a folder as `transformers` writes it, or a name on the Hugging Face hub; in evaluation mode.

        Args:
            path_or_name: a folder with `config.json` and safetensors, or a name such as "openai-community/gpt2".
            dtype: of the parameters, that of the files unless given.
            revision: branch, tag or commit on the hub.
            options: arguments of the class in place of those that the folder says, such as head="classifier",
                n_classes=2 on a checkpoint without it: the new head gets initial weights.

        Raises:
            FileNotFoundError: no such folder, file or model. ConnectionError: the hub cannot be reached.
            ValueError: another model_type, an option of the config that is not built here, or weights that do not fit
                the config; names the tensor and the file.
        """
        folder = locate(path_or_name, revision=revision)
        return cls.load(folder, read_config(folder), dtype, **options)

    @classmethod
    def load(cls: type[M], folder: Path, found: Mapping[str, Any], dtype: torch.dtype | None, **options: Any) -> M:
        """Load a folder whose `config.json` holds `found`; see `from_pretrained`."""
        path = folder / CONFIG
        if found["model_type"] not in cls.model_types:
            raise ValueError(
                f"{path}: expected a model_type of {cls.model_types} for {cls.__name__}, got {found['model_type']!r}"
            )
        weights = Weights(folder)
        build: Callable[..., M] = cls
        try:
            changes, arguments = cls.read(found, weights)
            config = cls.configure(**changes)
        except KeyError as error:
            raise ValueError(f"{path}: expected an entry {error}") from error
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error
        with torch.device("cpu" if options else "meta"):
            model = build(config, **{**arguments, **options})
        optional = cls.heads if options else ()
        found_here = read_parameters(model, weights, model.names, model.published_shapes(), optional)
        fill(model, found_here, dtype)
        if options:  # a new head is as wide as the rest
            model.to(dtype or next(iter(found_here.values())).dtype)
        model.metadata = {name: found[name] for name in _KEPT if found.get(name) is not None}
        return model.eval()

    def save_pretrained(self, path: str | os.PathLike[str]) -> None:
        """Write a folder that `transformers` opens; it holds the old model or the new one, never half of one.

        Raises ValueError for a config that the family's published one cannot say, and for frozen linear maps.
        """
        for name, part in self.named_modules():
            if isinstance(part, FrozenLinear):
                raise ValueError(
                    f"{name}: expected a trained map, got a {type(part).__name__}; save before pack_ and quantize_"
                )
        for field in fields(self.config):
            if field.name in self.free or field.name in _TRAINING:
                continue
            expected, got = self.switches.get(field.name, field.default), getattr(self.config, field.name)
            if got != expected:
                raise ValueError(
                    f"{field.name}: {type(self).__name__} has {expected!r}, got {got!r}; "
                    "course_lib.variants.save_pretrained(EncoderModel, LanguageModel or Transformer) takes any config"
                )
        dtype = str(next(self.parameters()).dtype).removeprefix("torch.")
        write_model(
            path, {**self.metadata, **self.write(), "dtype": dtype, "torch_dtype": dtype}, self.published_tensors()
        )


def activation_here(name: str) -> Activation:
    """Our name of a published activation. Raises ValueError for one that is not here."""
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation: expected one of {tuple(_ACTIVATIONS)}, got {name!r}")
    return _ACTIVATIONS[name]


def activation_there(name: Activation) -> str:
    """The published name of an activation here. Raises ValueError for one that is published under none."""
    if name not in _THEIRS:
        raise ValueError(f"activation: expected one of {tuple(_THEIRS)}, got {name!r}")
    return _THEIRS[name]


def pad_id_of(found: Mapping[str, Any]) -> int | None:
    """The padding id of a published config if it is in the vocabulary; some say -1 for none."""
    pad_id = found.get("pad_token_id")
    return pad_id if pad_id is not None and 0 <= pad_id < found["vocab_size"] else None


def refuse(found: Mapping[str, Any], **expected: Any) -> None:
    """Refuse a published config with an option that is not built here."""
    for name, value in expected.items():
        if found.get(name, value) not in (value, None):
            raise ValueError(f"{name}: expected {value!r}, got {found[name]!r}; this option is not built here")
