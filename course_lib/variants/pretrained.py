"""Any model out of its folder, and into one."""

import os

import torch
from torch import nn

from course_lib.variants.checkpoint import CONFIG, locate, read_config
from course_lib.variants.own import MODELS, load_own, save_own


def from_pretrained(
    path_or_name: str | os.PathLike[str], *, dtype: torch.dtype | None = None, revision: str | None = None
) -> nn.Module:
    """Load the model of a folder, or of a name on the Hugging Face hub, in evaluation mode.

    Args:
        path_or_name: a folder with `config.json` and safetensors, or a name such as "openai-community/gpt2".
        dtype: of the parameters, that of the files unless given.
        revision: branch, tag or commit on the hub.

    Raises:
        FileNotFoundError: no such folder, file or model. ConnectionError: the hub cannot be reached.
        ValueError: a model_type that is not known here, or weights that do not fit the config, with tensor and file.
    """
    folder = locate(path_or_name, revision=revision)
    found = read_config(folder)
    if found["model_type"] in MODELS:
        return load_own(folder, found, dtype)
    raise ValueError(f"{folder / CONFIG}: expected a model_type of {sorted(MODELS)}, got {found['model_type']!r}")


def save_pretrained(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write `config.json` and the weights to a folder that holds the old model or the new one, never half of one."""
    save_own(model, path)
