"""Any model out of its folder, and into one."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib.checks import checked
from course_lib.files import read_together
from course_lib.reading import shown
from course_lib.variants.course_models import COURSE_MODELS, load_course_model, save_course_model
from course_lib.variants.folders import CONFIG, locate, read_config
from course_lib.variants.published_model import FAMILIES, PublishedModel


@checked
def from_pretrained(
    path_or_name: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    **options: Any,
) -> nn.Module:
    """Load the model of a folder, or of a name on the Hugging Face hub, in evaluation mode.

    Args:
        path_or_name: a folder with `config.json` and safetensors, or a name such as "openai-community/gpt2".
        dtype: of the parameters, that of the files unless given.
        revision: branch, tag or commit on the hub.
        options: for a published family, as in `PublishedModel.from_pretrained`.

    Raises:
        FileNotFoundError: no such folder, file or model. ConnectionError: the hub cannot be reached.
        ValueError: a model_type that is not known here, or weights that do not fit the config, with tensor and file.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype: expected one of floating-point numbers, got {dtype}")
    folder = locate(path_or_name, revision=revision)
    return read_together(folder, lambda: _load(folder, dtype, options))


def _load(folder: Path, dtype: torch.dtype | None, options: Mapping[str, Any]) -> nn.Module:
    found = read_config(folder)
    kind = found["model_type"]
    if kind in FAMILIES:
        return FAMILIES[kind].load(folder, found, dtype, **options)
    if kind not in COURSE_MODELS:
        known = sorted([*COURSE_MODELS, *FAMILIES])
        raise ValueError(f"{folder / CONFIG}: expected a model_type of {known}, got {shown(kind)}")
    if options:
        raise ValueError(f"{next(iter(options))}: no option of a {COURSE_MODELS[kind].__name__}'s folder")
    return load_course_model(folder, found, dtype)


@checked
def save_pretrained(model: nn.Module, path: str | os.PathLike[str], *, more: Mapping[str, str] | None = None) -> None:
    """Write `config.json` and the weights to a folder that holds the old model or the new one, never half of one.

    A published family writes what `transformers` opens; `Transformer`, `LanguageModel` and `EncoderModel` write any
    config. `more` are files that belong to the model, such as its tokenizer.json: their content by name.
    Raises TypeError for any other model.
    """
    if isinstance(model, PublishedModel):
        model.save_pretrained(path, more=more)
    else:
        save_course_model(model, path, more)
