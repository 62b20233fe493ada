"""Going on from a trained model with other data: its settings, its weights, and updates of low rank."""

import os
from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from course_lib.reading import read_json, shown
from course_lib.training import RunFolder
from course_lib.training.state import load_model, model_tensors
from course_lib.variants import from_pretrained
from course_lib.variants.lora import add_lora
from coursework.commands.recipes import FOUND, Recipe

__all__ = ["begin_from", "start_layer", "train_updates"]

FINER = 0.2  # of the rates for new weights
LORA_RATE = 2e-3
HEADS = ("classifier.", "pooler.")


def start_layer(
    folder: str, task: str, stacks: Sequence[str], recipe: Recipe, lora: int | None
) -> dict[str, dict[str, Any]]:
    """Return the tables of a recipe that follow from the model gone on from: its own settings, and finer rates.

    Raises ValueError for a folder that `course train` did not write, and for a model of other stacks of layers.
    """
    was, config = trained_recipe(folder), read_json(RunFolder(folder).config, {"transformer": {str: object}})
    model = {name: value for name, value in config["transformer"].items() if name not in FOUND and value is not None}
    if any((model.get(name, 0) > 0) != (name in stacks) for name in ("n_encoder_layers", "n_decoder_layers")):
        raise ValueError(f"--from: expected a model that {task} can go on from, got one of {was['task']}")
    rates: dict[str, Any] = {"optimizer": "adamw", "learning_rate": LORA_RATE}
    if lora is None:
        names = {"learning_rate", "muon_learning_rate"} & recipe["training"].keys()
        rates = {name: recipe["training"][name] * FINER for name in names}
    same = {"batches": was["batches"]} if was["task"] == task else {}
    model |= {name: model.get(name) for name in ("window", "d_ff")}
    return {"model": model, "tokenizer": was["tokenizer"], "training": rates, **same}


def trained_recipe(folder: str) -> dict[str, Any]:
    """Read what `course train` was told; raises ValueError for a folder that it did not write."""
    path = RunFolder(folder).recipe
    if not os.path.isfile(path):
        raise ValueError(
            f"model: expected a folder that `course train` has written, got {shown(folder)}, without recipe.json"
        )
    tables: dict[str, Any] = {name: {str: object} for name in ("data", "tokenizer", "batches", "model", "training")}
    return read_json(path, {"task": str, "labels": [str], **tables}, "what a run was told")


def begin_from(model: nn.Module, folder: str, labels: Sequence[str]) -> set[str]:
    """Put the weights of a trained model into one of the same sizes; return the names of those that stay new.

    A head for other labels is new. Raises ValueError where the models differ.
    """
    found = from_pretrained(folder)
    if type(found) is not type(model):
        raise ValueError(f"--from: expected a {type(model).__name__}, got the {type(found).__name__} in {folder}")
    there, own = model_tensors(found), model_tensors(model)
    same = list(labels) == trained_recipe(folder)["labels"]
    new = {name for name in own if name.startswith(HEADS) and name not in there}
    new |= {name for name in own if name.startswith(HEADS[0]) and not same}
    old = {name: tensor for name, tensor in there.items() if name in own}
    load_model(model, {**old, **{name: own[name] for name in new}}, folder)
    return new


def train_updates(model: nn.Module, rank: int | None, also: Collection[str]) -> None:
    """Put updates of a rank beside the maps of attention, so that they and the weights called `also` are trained."""
    if rank is None:
        return
    add_lora(model, rank)
    for name, parameter in model.named_parameters():
        if name in also:
            parameter.requires_grad_(True)
