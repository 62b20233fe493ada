"""Everything a training command needs to know, from three places: the defaults, a TOML file, and flags.

A recipe is a table of tables: [data], [tokenizer], [batches], [model], [training] and [result]. The tables [model] and
[training] hold the fields of `TransformerConfig` and `TrainingConfig`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from course_lib import training

__all__ = ["FAST", "TEXTBOOK", "Recipe", "changes", "fast_layer", "lay_over"]

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
_UPDATES = {"checkpoint_every": 500, "log_every": 50, "keep": 3, "clip": 1.0, "learning_rate": 2e-3}

# The recipe of each task as textbooks have it: `--plain`.
TEXTBOOK: dict[str, Recipe] = {
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
        "training": {**_UPDATES, "steps": 300, "warmup": 30, "evaluate_every": 100},
        "result": {"smoothing": 0.0, "average": 0},
    },
    "mlm": {
        "data": {"name": "tinyshakespeare", "validation_share": 0.1},
        "tokenizer": {"kind": "bpe", "vocab_size": 512},
        "batches": {"length": 128, "batch_size": 16},
        "model": {**_SMALL, "n_encoder_layers": 4, "n_decoder_layers": 0},
        "training": {**_UPDATES, "steps": 1000, "warmup": 50, "evaluate_every": 250},
        "result": {"share": 0.15, "average": 0},
    },
}

# What is laid over it unless `--plain` is given: the fastest measured for a CPU (`benchmarks/time_to_quality.py`). Its
# rates belong to models about this wide. The other tasks only get bfloat16, where the processor has it: 100 updates of
# `classify` took 17 CPU seconds for 26, to the same accuracy, and with the settings of `lm` the loss was higher.
FAST: dict[str, dict[str, dict[str, Any]]] = {
    "lm": {
        "batches": {"length": 64, "batch_size": 12},
        "model": {
            "dropout": 0.0,
            "norm": "unit",
            "rotary_base": 100.0,
            "activation": "relu2",
            "qk_norm": "unit",
            "zero_residual_init": True,
        },
        "training": {
            "steps": 500,
            "learning_rate": 0.015,
            "schedule": "linear",
            "warmup": 0,
            "optimizer": "muon",
            "muon_learning_rate": 0.025,
            "muon_momentum": 0.9,
            "weight_decay": 0.0,
            "betas": [0.9, 0.99],
        },
    },
}


def fast_layer(task: str, device: str | None) -> dict[str, dict[str, Any]]:
    """Return what the fast recipe of a task sets on a device, the best there is unless given."""
    tables = {table: dict(values) for table, values in FAST.get(task, {}).items()}
    if training.has_bfloat16(training.chosen_device(device)):
        tables.setdefault("training", {})["precision"] = "bfloat16"
    return tables


def changes(task: str, recipe: Recipe) -> str:
    """Say in one line in which settings a recipe follows the fast one, where that is not the textbook's."""
    fast = {**FAST.get(task, {})}
    fast["training"] = {**fast.get("training", {}), "precision": "bfloat16"}
    said = [
        f"{name} {str(value).lower() if isinstance(value, bool) else value}"
        for table, values in fast.items()
        for name, value in values.items()
        if recipe[table].get(name) == value != TEXTBOOK[task][table].get(name)
    ]
    return f"Fast recipe (--plain for the textbook's): {', '.join(said)}" if said else ""


def lay_over(recipe: Recipe, layer: Mapping[str, Any]) -> None:
    """Put the tables of a layer over those of a recipe, in place.

    Raises ValueError that names a table or a setting that there is not.
    """
    from course_lib.config import TransformerConfig
    from course_lib.training.config import FORMER_NAMES, TrainingConfig

    fields = {
        "model": {field.name for field in dataclasses.fields(TransformerConfig)},
        "training": {field.name for field in dataclasses.fields(TrainingConfig)} | FORMER_NAMES.keys(),
    }
    for table, values in layer.items():
        if table not in recipe:
            raise ValueError(f"{table}: no table of a recipe; there are {', '.join(recipe)}")
        if not isinstance(values, Mapping):
            raise ValueError(f"{table}: expected a table, [{table}], got {values!r}")
        known = recipe[table].keys() | fields.get(table, set())
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"{name}: no setting of [{table}]; there are {', '.join(sorted(known))}")
            recipe[table][name] = value
