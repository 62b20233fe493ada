"""Everything a training command needs to know, from three places: the defaults, a TOML file, and flags.

A recipe is a table of tables: [data], [tokenizer], [batches], [model], [training] and [result]. The tables [model] and
[training] hold the fields of `TransformerConfig` and `TrainingConfig`.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["TASKS", "Recipe", "assemble", "default_recipe", "read_toml"]

Recipe = dict[str, dict[str, Any]]

_SMALL = {
    "d_model": 128,
    "n_heads": 4,
    "dropout": 0.1,
    "norm": "rms",
    "norm_place": "pre",
    "positions": "rotary",
    "activation": "gelu",
    "init": "normal",
    "scale_embeddings": False,
    "bias": False,
}
_UPDATES = {"checkpoint_every": 500, "log_every": 50, "keep": 3, "clip": 1.0}

TASKS: dict[str, Recipe] = {
    "translate": {
        "data": {
            "name": "numbers+dates",
            "source": "de",
            "target": "en",
            "train": 40_000,
            "validation": 1000,
            "test": 2000,
        },
        "tokenizer": {"kind": "bpe", "vocab_size": 512},
        "batches": {"max_tokens": 4096},
        "model": {**_SMALL, "n_encoder_layers": 2, "n_decoder_layers": 2, "share_vocabulary": True},
        "training": {
            **_UPDATES,
            "steps": 1000,
            "learning_rate": 2e-3,
            "warmup": 100,
            "schedule": "linear",
            "optimizer": "muon",
            "evaluate_every": 100,
        },
        "result": {"smoothing": 0.1, "average": 0, "beams": 1, "max_new_tokens": 100, "loss_rows": 0},
    },
    "lm": {
        "data": {"name": "tinyshakespeare", "validation_share": 0.1},
        "tokenizer": {"kind": "characters", "vocab_size": 512},
        "batches": {"length": 128, "batch_size": 16},
        "model": {**_SMALL, "n_decoder_layers": 4, "n_encoder_layers": 0, "tie_embeddings": False},
        "training": {
            **_UPDATES,
            "steps": 1000,
            "learning_rate": 2e-3,
            "warmup": 50,
            "betas": [0.9, 0.95],
            "eps": 1e-8,
            "evaluate_every": 250,
        },
        "result": {"average": 0, "loss_rows": 0},
    },
    "classify": {
        "data": {
            "name": "languages",
            "languages": ["de", "en", "es", "fr", "it", "nl", "pt", "sv"],
            "train": 8000,
            "validation": 800,
            "test": 2000,
        },
        "tokenizer": {"kind": "characters", "vocab_size": 512},
        "batches": {"max_tokens": 4096},
        "model": {**_SMALL, "n_encoder_layers": 2, "n_decoder_layers": 0},
        "training": {**_UPDATES, "steps": 300, "learning_rate": 2e-3, "warmup": 30, "evaluate_every": 100},
        "result": {"smoothing": 0.0, "average": 0},
    },
    "mlm": {
        "data": {"name": "tinyshakespeare", "validation_share": 0.1},
        "tokenizer": {"kind": "bpe", "vocab_size": 512},
        "batches": {"length": 128, "batch_size": 16},
        "model": {**_SMALL, "n_encoder_layers": 4, "n_decoder_layers": 0},
        "training": {**_UPDATES, "steps": 1000, "learning_rate": 2e-3, "warmup": 50, "evaluate_every": 250},
        "result": {"share": 0.15, "average": 0},
    },
}


def default_recipe(task: str) -> Recipe:
    """Return a copy of the defaults of a task."""
    if task not in TASKS:
        raise ValueError(f"task: expected one of {', '.join(TASKS)}, got {task!r}")
    return {table: dict(values) for table, values in TASKS[task].items()}


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a TOML file holds; errors name the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file, {error}") from None


def assemble(task: str, *layers: Mapping[str, Any]) -> Recipe:
    """Return the defaults of a task with the tables of each layer over them, the last one winning.

    Raises ValueError that names a table or a setting that there is not.
    """
    recipe = default_recipe(task)
    known = {table: set(values) for table, values in recipe.items()}
    known["model"] |= _fields("model")
    known["training"] |= _fields("training")
    for layer in layers:
        for table, values in layer.items():
            if table not in recipe:
                raise ValueError(f"{table}: no table of a recipe; there are {', '.join(recipe)}")
            if not isinstance(values, Mapping):
                raise ValueError(f"{table}: expected a table, [{table}], got {values!r}")
            for name, value in values.items():
                if name not in known[table]:
                    raise ValueError(f"{name}: no setting of [{table}]; there are {', '.join(sorted(known[table]))}")
                recipe[table][name] = value
    training = recipe["training"]
    if not any("warmup" in layer.get("training", {}) for layer in layers) and isinstance(training["steps"], int):
        training["warmup"] = min(training["warmup"], training["steps"] // 10)  # the default fits a run of any length
    return recipe


def _fields(table: str) -> set[str]:
    if table == "model":
        from course_lib.config import TransformerConfig

        return {field.name for field in dataclasses.fields(TransformerConfig)}
    from course_lib.training.config import FORMER_NAMES, TrainingConfig

    return {field.name for field in dataclasses.fields(TrainingConfig)} | set(FORMER_NAMES)
