"""Folders for the models of the course that follow no published architecture, whatever their config.

`config.json` holds the fields of `TransformerConfig`; the tensors have the names of the state dict.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib.config import TransformerConfig
from course_lib.reading import OBJECT, check_shape
from course_lib.rotary_scaling import DynamicNTKScaling, LinearScaling, Llama3Scaling, NTKScaling, YarnScaling
from course_lib.transformer import LanguageModel, Transformer
from course_lib.variants.encoder_model import EncoderModel
from course_lib.variants.folders import CONFIG, Weights, reading_config, write_model
from course_lib.variants.names import NameTable, fill, read_parameters

COURSE_MODELS: dict[str, type[nn.Module]] = {
    "course_transformer": Transformer,
    "course_language_model": LanguageModel,
    "course_encoder": EncoderModel,
}
_SCALINGS = {kind.__name__: kind for kind in (LinearScaling, NTKScaling, DynamicNTKScaling, Llama3Scaling, YarnScaling)}
# Fields that older folders have, and the value with which they change nothing; without runs, their rows never did.
_DROPPED: dict[str, Any] = {"bigram_rows": 0, "ngrams": []}


def config_to_dict(config: TransformerConfig) -> dict[str, Any]:
    """Return the fields as what JSON can hold. Raises ValueError for a scaling that is a function of one's own."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    scaling = config.rotary_scaling
    if scaling is not None:
        if type(scaling) not in _SCALINGS.values():
            raise ValueError(f"rotary_scaling: expected one of {tuple(_SCALINGS)} to be saved, got {scaling!r}")
        fields["rotary_scaling"] = {"kind": type(scaling).__name__, **dataclasses.asdict(scaling)}  # type: ignore[call-overload]
    for name, value in fields.items():
        if name != "rotary_scaling" and not isinstance(value, str | int | float | tuple | None):
            raise ValueError(f"{name}: expected what JSON can hold to be saved, got {value!r}")
    return fields


def config_from_dict(fields: Mapping[str, Any]) -> TransformerConfig:
    """Read what `config_to_dict` wrote. Raises ValueError that names an unknown field."""
    for name, neutral in _DROPPED.items():
        if fields.get(name):
            raise ValueError(f"{name}: expected {neutral!r}, the course no longer builds it; got {fields[name]!r}")
    fields = {name: value for name, value in fields.items() if name not in {*_DROPPED, "ngram_rows"}}
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ValueError(f"{unknown[0]}: not a field of TransformerConfig")
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }
    if isinstance(values.get("qk_norm"), bool):  # as it was before it named a norm
        values["qk_norm"] = "unit" if values["qk_norm"] else "none"
    if values.get("rotary_scaling") is not None:
        numbers = dict(values["rotary_scaling"])
        kind = numbers.pop("kind", None)
        if kind not in _SCALINGS:
            raise ValueError(f"rotary_scaling: expected a kind of {tuple(_SCALINGS)}, got {kind!r}")
        values["rotary_scaling"] = _SCALINGS[kind](**numbers)
    return TransformerConfig(**values)


def save_course_model(model: nn.Module, path: str | os.PathLike[str], more: Mapping[str, str] | None = None) -> None:
    """Write a `Transformer`, `LanguageModel` or `EncoderModel` of any config; see `write_model`."""
    kinds = {kind: name for name, kind in COURSE_MODELS.items()}
    if type(model) not in kinds:
        raise TypeError(f"model: expected one of {tuple(kind.__name__ for kind in kinds)}, got {type(model).__name__}")
    switches = config_to_dict(model.config)  # type: ignore[arg-type]
    with torch.device("meta"):
        options = model.options() if isinstance(model, EncoderModel) else {}
        plain = type(model)(model.config, **options)  # type: ignore[arg-type]
    tensors = dict(model.named_parameters())
    added = sorted(tensors.keys() ^ dict(plain.named_parameters()).keys())
    if added:
        raise ValueError(f"{added[0]}: not as the config says; merge and remove what was added to the layers")
    content = {"model_type": kinds[type(model)], "architectures": [type(model).__name__], "transformer": switches}
    if options:
        content["head"] = options
    write_model(path, content, tensors, more=more)


def load_course_model(folder: Path, found: Mapping[str, Any], dtype: torch.dtype | None) -> nn.Module:
    """Read a folder that `save_course_model` wrote, `found` being the content of its `config.json`."""
    weights = Weights(folder)
    check_shape(found, folder / CONFIG, {"transformer": OBJECT}, "the config of a model")
    with reading_config(folder):
        config = config_from_dict(found["transformer"])
        weights.check_sizes(config)
        with torch.device("meta"):
            kind: Any = COURSE_MODELS[found["model_type"]]
            model = kind(config, **found.get("head", {}))
    fill(model, read_parameters(model, weights, NameTable(), {}), dtype)
    return model.eval()
