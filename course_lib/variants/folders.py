"""Folders of weights: `config.json` and the tensors as safetensors, in one file or in shards with an index.

The layout is that of `transformers` and the Hugging Face hub. Pickled weights are never opened: unpickling runs code.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from course_lib.config import TransformerConfig
from course_lib.files import check_sums, finish_replacing, replace_together, write_atomic
from course_lib.reading import one_line, read_json, shown

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 2_000_000_000
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FILES = [CONFIG, "*.safetensors", INDEX, "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json"]


def locate(path_or_name: str | os.PathLike[str], *, revision: str | None = None) -> Path:
    """Return the folder of a model: the path if it is one, else that of the model of this name on the hub.

    The hub is asked through `huggingface_hub`, so its cache, its token and HF_HOME, HF_TOKEN, HF_HUB_OFFLINE hold.
    Raises FileNotFoundError if there is neither, ConnectionError if the hub cannot be reached.
    """
    folder = Path(path_or_name)
    if folder.is_dir():
        finish_replacing(folder)
        return folder
    name = str(path_or_name)
    if folder.exists():
        raise ValueError(f"path_or_name: expected a folder with {CONFIG}, got the file {name}")
    if not _HUB_NAME.fullmatch(name) or name.startswith("."):
        raise FileNotFoundError(f"path_or_name: no folder {name}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"path_or_name: no folder {name}, and no model of that name on the hub that this account may read"
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise ConnectionError(
            f"path_or_name: no folder {name}, no copy of it in the hub's cache, and the hub cannot be reached"
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """Read `config.json` as a dictionary. Raises FileNotFoundError or ValueError that names the file."""
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not there; a model's folder holds {CONFIG} and {WEIGHTS}")
    return read_json(path, {"model_type": str})


@contextlib.contextmanager
def reading_config(folder: Path) -> Iterator[None]:
    """Turn whatever goes wrong while a model is made of a folder's config into a ValueError that names the file."""
    path = folder / CONFIG
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{path}: expected an entry {error}") from error
    except (ArithmeticError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {one_line(error)}") from error


class Weights:
    """The tensors of a folder by name, each read from its file when it is asked for.

    Opening it refuses files that are not whole, or not those that were written; the tensors are not read yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file_of = _files_by_tensor(folder)
        self._open = {path: _open(path) for path in sorted(set(self.file_of.values()))}
        present = {path: set(file.keys()) for path, file in self._open.items()}
        for name, path in self.file_of.items():
            if name not in present[path]:
                raise ValueError(f"{path}: the tensor {name} is missing, which {INDEX} says is in this file")
        check_sums(folder, CONFIG, *(path.name for path in self._open))

    def check_sizes(self, config: TransformerConfig) -> None:
        """Raise ValueError for sizes that no weights here can have, before a model of that size is made."""
        layers, tensors = config.n_encoder_layers + config.n_decoder_layers, len(self.file_of)
        if layers > tensors:
            raise ValueError(f"expected layers for which there are weights, got {layers} and {tensors} tensors")
        numbers = sum(math.prod(self.shape(name)) for name in self.file_of)
        for name in ("d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "vocab_size", "target_vocab_size"):
            size = getattr(config, name)
            if layers and size is not None and size > numbers:
                raise ValueError(f"{name}: expected a size for which there are weights, got {shown(size)} of {numbers}")

    def read(self, name: str) -> Tensor:
        """A tensor; a copy, as the model must not depend on a file that may be replaced."""
        return self._open[self.file_of[name]].get_tensor(name).clone()

    def same(self, first: str, second: str) -> bool:
        """Whether two tensors hold the same numbers."""
        return self.shape(first) == self.shape(second) and torch.equal(self.read(first), self.read(second))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading it."""
        return tuple(self._open[self.file_of[name]].get_slice(name).get_shape())


def _files_by_tensor(folder: Path) -> dict[str, Path]:
    """Where each tensor lies."""
    single, index = folder / WEIGHTS, folder / INDEX
    if single.is_file():
        return dict.fromkeys(_open(single).keys(), single)
    if index.is_file():
        places = read_json(index, {"weight_map": {str: str}})["weight_map"]
        for name, file in places.items():
            if Path(file).name != file:
                raise ValueError(f"{index}: expected the name of a file in this folder for {name}, got {file}")
            if not (folder / file).is_file():
                raise FileNotFoundError(f"{folder / file}: not there; {INDEX} says that it holds {name}")
        return {name: folder / file for name, file in places.items()}
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ValueError(
            f"{folder / pickles[0]}: refused, unpickling runs code of whoever wrote the file; expected {WEIGHTS}"
        )
    raise FileNotFoundError(f"{single}: not there, nor {INDEX}")


def _open(path: Path) -> Any:
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path}: not a whole safetensors file ({one_line(error)}); it may be half downloaded, fetch it again"
        ) from error


def write_model(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    more: Mapping[str, str] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder that holds the old model or the new one, never half of one; other files in it stay.

    `more` are files that come and go with the model, their content by name. Raises OSError if it cannot be written.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"path: expected a folder, got the file {folder}")
    old = [INDEX, *(path.name for path in folder.glob("model*.safetensors"))]
    with replace_together(folder, obsolete=old) as staged:
        write_atomic(staged / CONFIG, json.dumps(dict(config), indent=2, sort_keys=True) + "\n")
        for name, content in (more or {}).items():
            if Path(name).name != name or not isinstance(content, str | bytes):
                raise ValueError(f"more: expected texts by the names of files in the folder, got {name!r}")
            write_atomic(staged / name, content)
        _write_weights(staged, tensors, shard_bytes)


def _write_weights(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int) -> None:
    shards: list[dict[str, Tensor]] = [{}]
    room = shard_bytes
    for name in sorted(tensors):
        tensor = tensors[name]
        if tensor.nbytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    places = {}
    for number, shard in enumerate(shards, start=1):
        file = WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        # Each on its own memory, once: safetensors refuses tensors that share it.
        whole = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in shard.items()}
        write_atomic(folder / file, save(whole, metadata={"format": "pt"}))
        places.update(dict.fromkeys(shard, file))
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": places}
        write_atomic(folder / INDEX, json.dumps(index, indent=2) + "\n")
