"""Everything a training command needs to know, from three places: the defaults, a TOML file, and flags.

A recipe is a table of tables: [data], [start], [tokenizer], [batches], [model], [training] and [result]. The tables
[model] and [training] hold the fields of `TransformerConfig` and `TrainingConfig`, the others those of a class here. A
setting is declared once, as such a field: its type says what is allowed, the comment beside it what it means.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import psutil

from course_lib import training
from course_lib.checks import MOST, Count, CountOrZero, Share, Within, check_fields, declarations
from course_lib.training.config import FORMER_NAMES, TrainingConfig
from course_lib.training.recipe import FAST_BATCHES, FAST_MODEL, FAST_TRAINING

if TYPE_CHECKING:
    from course_lib.config import TransformerConfig

__all__ = [
    "FAST",
    "FOUND",
    "TEXTBOOK",
    "Recipe",
    "changes",
    "check_sizes",
    "fast_layer",
    "inner_width",
    "lay_over",
    "settings",
]

Recipe = dict[str, dict[str, Any]]
Part = Annotated[float, Within(above=0, below=1)]
Beams = Annotated[int, Within(1, 1000)]
NewTokens = Annotated[int, Within(1, 100_000)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is learned from."""

    name: str = ""  # a name, a file or a folder: --data
    columns: tuple[str, ...] | None = None  # names of the columns in a file, in the order of the task: --columns
    skip_bad: bool = False  # leave out rows that cannot be read, and count them: --skip-bad
    split_seed: CountOrZero = 0  # another one holds out other rows of a file
    validation_share: Part = 0.1  # of a file, held out; for pairs and labels as much again is the test
    source: str = "de"  # the language to translate from, of a set by name
    target: str = "en"  # ... and into
    languages: tuple[str, ...] = ()  # those to tell apart
    train: CountOrZero = 0  # examples to learn from; 0 takes all, as from files
    validation: CountOrZero = 0  # ... to watch the training by
    test: CountOrZero = 0  # ... to measure the result on


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """What is gone on from."""

    model: str | None = None  # the folder of a trained model, else new weights: --from
    lora: Count | None = None  # rank of an update to its attention, all weights unless given: --lora


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
    """How texts are cut."""

    kind: Literal["characters", "bpe"] = "characters"  # single characters, or pieces of words
    vocab_size: Annotated[int, Within(261, 1_000_000)] = 512  # pieces of words at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """How batches are cut."""

    length: Count = 128  # tokens of a window
    batch_size: Count = 16  # windows of a batch
    max_tokens: Count = 4096  # of a batch, padding included


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What is made of it at the end."""

    smoothing: Share = 0.0  # of the labels in training
    average: CountOrZero = 0  # the weights of so many last checkpoints are averaged; 0: those of the last step
    beams: Beams = 1  # of the search when the test is translated
    max_new_tokens: NewTokens = 100  # of a translation
    loss_rows: CountOrZero = 0  # rows of logits held at a time, against memory; 0: all
    share: Part = 0.15  # of tokens that are hidden


_ANY = {"columns": None, "skip_bad": False, "split_seed": 0, "validation_share": 0.1}  # of files
_START = {"model": None, "lora": None}
# Activations whose feed-forward is gated, and that of their gate.
_GATED = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}

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
            **_ANY,
        },
        "start": _START,
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
        "data": {"name": "tinyshakespeare", **_ANY},
        "start": _START,
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
            **_ANY,
        },
        "start": _START,
        "tokenizer": {"kind": "bpe", "vocab_size": 4096},
        "batches": {"max_tokens": 4096},
        "model": {**_SMALL, "n_encoder_layers": 1, "n_decoder_layers": 0, "dropout": 0.3},
        "training": {**_UPDATES, "steps": 300, "warmup": 30, "evaluate_every": 100},
        "result": {"smoothing": 0.0, "average": 0},
    },
    "mlm": {
        "data": {"name": "tinyshakespeare", **_ANY},
        "start": _START,
        "tokenizer": {"kind": "bpe", "vocab_size": 512},
        "batches": {"length": 128, "batch_size": 16},
        "model": {**_SMALL, "n_encoder_layers": 4, "n_decoder_layers": 0},
        "training": {**_UPDATES, "steps": 1000, "warmup": 50, "evaluate_every": 250},
        "result": {"share": 0.15, "average": 0},
    },
}

# What is laid over it unless `--plain` is given: the fastest measured for a CPU (`benchmarks/time_to_quality.py`). Its
# switches are Qwen3's, so that every engine of `course export` reads it; its rates belong to models about this wide.
# The other tasks only get bfloat16, where the processor has it: 100 updates of `classify` took 17 CPU seconds for 26,
# to the same accuracy, and with the settings of `lm` the loss was higher.
FAST: dict[str, dict[str, dict[str, Any]]] = {
    "lm": {
        "batches": FAST_BATCHES,
        "model": {name: value for name, value in FAST_MODEL.items() if TEXTBOOK["lm"]["model"].get(name) != value},
        "training": FAST_TRAINING,
    },
}


# What is laid over that on a GPU, which a small model and small batches leave idle: the sizes of nanoGPT's recipe for
# one. The rates are a choice, the only ones tried: with them a held-out loss of 1.46 takes 44 s on an H200
# (`benchmarks/results/gpu.md`).
ON_GPU: dict[str, dict[str, dict[str, Any]]] = {
    "lm": {
        "batches": {"length": 256, "batch_size": 64},
        "model": {"d_model": 384, "n_heads": 6, "n_decoder_layers": 6, "dropout": 0.2},
        "training": {"steps": 1500, "learning_rate": 0.005, "muon_learning_rate": 0.02, "warmup": 50},
    },
}


def fast_layer(task: str, device: str | None) -> dict[str, dict[str, Any]]:
    """Return what the fast recipe of a task sets on a device, the best there is unless given."""
    where = training.chosen_device(device)
    tables = {table: dict(values) for table, values in FAST.get(task, {}).items()}
    for table, values in ON_GPU.get(task, {}).items() if where.type == "cuda" else ():
        tables[table] |= values
    if training.has_bfloat16(where):
        tables.setdefault("training", {})["precision"] = "bfloat16"
    return tables


def inner_width(d_model: int) -> int:
    """Return the width inside the fast recipe's feed-forward: 5/2 D, in blocks of 32, which engines round together."""
    return 32 * max(1, (d_model * 5 + 32) // 64)


def changes(task: str, recipe: Recipe, fast: dict[str, dict[str, Any]]) -> str:
    """Say in one line in which settings a recipe follows the fast one, where that is not the textbook's."""
    said = [
        f"{name} {str(value).lower() if isinstance(value, bool) else value}"
        for table, values in fast.items()
        for name, value in values.items()
        if recipe[table].get(name) == value != TEXTBOOK[task][table].get(name)
    ]
    return f"Fast recipe (--plain for the textbook's): {', '.join(said)}" if said else ""


def lay_over(recipe: Recipe, layer: Mapping[str, Any]) -> None:
    """Put the tables of a layer over those of a recipe, in place.

    Raises ValueError that names a table, a setting or a choice that there is not.
    """
    for table, values in layer.items():
        if table not in recipe:
            raise ValueError(f"{table}: no table of a recipe; there are {', '.join(recipe)}")
        if not isinstance(values, Mapping):
            raise ValueError(f"{table}: expected a table, [{table}], got {values!r}")
        known = _known(recipe, table)
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"{name}: no setting of [{table}]; there are {', '.join(sorted(known))}")
            recipe[table][name] = value
            if name == "activation" and isinstance(value, str):
                recipe[table]["activation"] = _GATED.get(value, value)
                if value in _GATED or recipe[table].get("gated"):
                    recipe[table]["gated"] = values.get("gated", value in _GATED)
        if table not in ("model", "training"):  # those check themselves, when all layers lie over each other
            own = tables()[table]
            check_fields(own(**recipe[table]))


def check_sizes(config: "TransformerConfig", recipe: Recipe, stacks: Sequence[str]) -> None:
    """Refuse stacks of layers that a task has no use for, or needs, and models that do not fit into memory."""
    for name in ("n_encoder_layers", "n_decoder_layers"):
        found = getattr(config, name)
        if (found > 0) != (name in stacks):
            raise ValueError(f"{name}: expected {'1 or more' if name in stacks else '0'} for this task, got {found}")
    D, layers = config.d_model, sum(getattr(config, name) for name in stacks)
    inner = config.n_heads * config.setting("d_head")
    weights = layers * D * (2 * inner + 2 * config.setting("d_ff")) + D * 300  # less than there will be
    weights += config.max_length * D if config.positions == "learned" else 0
    weights += config.relative_buckets * config.n_heads if config.positions == "relative" else 0
    weights += config.n_token_types * D
    there = psutil.virtual_memory().total
    if (needed := 16 * weights) > there:  # with gradients and the optimizer
        names = ("d_model", "n_heads", "d_head", "d_ff", "n_token_types", "max_length", "relative_buckets", *stacks)
        given = ", ".join(f"{name}={value}" for name in names if (value := getattr(config, name)) is not None)
        raise ValueError(f"model: {given} take {needed / 2**30:,.0f} GiB to train; there are {there / 2**30:,.0f}")


def settings(recipe: Recipe) -> Iterator[tuple[str, str, str, str]]:
    """Yield each setting of a recipe: "table.name", its value, what is allowed, and a line on it."""
    from course_lib.positions import SCHEMES

    for table in recipe:
        declared = tables()[table]
        defaults = {field.name: field.default for field in dataclasses.fields(declared)}
        lines = dict(re.findall(r"^    (\w+): .+?  # (.+)$", inspect.getsource(declared), re.MULTILINE))
        for name, kind in declarations(declared).items():
            if name not in _known(recipe, table):
                continue
            allowed = _allowed(kind)
            if name == "positions":
                allowed = ", ".join(SCHEMES)
            elif name == "activation":
                allowed = ", ".join([allowed, *_GATED])
            value = json.dumps(recipe[table].get(name, defaults[name]))
            yield f"{table}.{name}", value, allowed, lines.get(name, "")


FOUND = {"vocab_size", "target_vocab_size", "pad_id"}  # fields of a model that the tokenizer decides


def tables() -> dict[str, Any]:
    """What declares the settings of each table of a recipe."""
    from course_lib.config import TransformerConfig

    own = {"data": Data, "start": Start, "tokenizer": Tokens, "batches": Cut, "result": Result}
    return {**own, "model": TransformerConfig, "training": TrainingConfig}


def _known(recipe: Recipe, table: str) -> set[str]:
    """The names that a table of a recipe may hold; of the tables here, each task has its own."""
    if table not in ("model", "training"):
        return set(recipe[table])
    former = FORMER_NAMES if table == "training" else {}
    declared = declarations(tables()[table]).items()
    return {name for name, kind in declared if "Callable" not in str(kind) and name not in FOUND} | former.keys()


def _allowed(kind: Any) -> str:
    """What a declaration allows, in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        within, word = parts[1], _allowed(parts[0])
        low = within.least if within.least is not None else within.above
        edges = [f"{'from' if within.above is None else 'above'} {low}"] if low is not None else []
        edges += [f"below {within.below}"] if within.below is not None else []
        edges += [f"to {within.most}"] if within.most not in (None, MOST) else []
        return " ".join([word, *edges])
    if origin is Literal:
        return ", ".join(parts)
    if origin is tuple:
        return f"a list: {_allowed(parts[0])}"
    if parts:  # a union
        return " or ".join(_allowed(part) for part in parts)
    return {bool: "true, false", int: "an integer", float: "a number", str: "a text", type(None): "null"}[kind]
