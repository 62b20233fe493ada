"""Everything a training command needs to know, from three places: the defaults, a TOML file, and flags.

A recipe is a table of tables: [data], [tokenizer], [batches], [model], [training] and [result]. The tables [model] and
[training] hold the fields of `TransformerConfig` and `TrainingConfig`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["Recipe", "lay_over"]

Recipe = dict[str, dict[str, Any]]


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
