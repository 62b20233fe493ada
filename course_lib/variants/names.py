"""From the tensors of a published model to the parameters here, and back: names, layouts, ties.

Every parameter of a model has one name in the folder, so that a missing tensor and one too many are both found.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from course_lib.multi_head import MultiHeadAttention
from course_lib.variants.folders import INDEX, WEIGHTS, Weights

_NUMBER = re.compile(r"(?<=\.layers\.)\d+(?=\.)")
_OLD_NAMES = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))  # of norms, before 2019


@dataclass(frozen=True)
class NameTable:
    """Our names of parameters and the published ones of a family.

    Args:
        table: our module or parameter -> the published one, with {} for the number of a layer; see `layer_names`. None
            stands for names that are the same.
        prefix: what whole models put before the names of their body; folders of the body alone lack it.
        transposed: modules in a layer whose weight is published as (in, out).
        renamed: (pattern, replacement) for other names of the same tensors in some folders.
        ignored: patterns of tensors in some folders that hold no weights, or those of a head that is not built here.
        heads: beginnings of the published names that belong to heads.
        ties: published name -> that of the tensor which it repeats, if it is in the folder at all.
        spare: names in `ties` whose numbers may differ from those they repeat: no model reads them.
    """

    table: Mapping[str, str] | None = None
    prefix: str = ""
    transposed: frozenset[str] = frozenset()
    renamed: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    spare: tuple[str, ...] = ()

    def published(self, name: str) -> str:
        """The published name of one of our parameters. Raises ValueError for one that the family does not have."""
        if self.table is None:
            return name
        number = found[0] if (found := _NUMBER.search(name)) else ""
        general = _NUMBER.sub("{}", name)
        module, _, kind = general.rpartition(".")
        if general in self.table:
            return self.table[general].format(number)
        if module not in self.table:
            raise ValueError(f"{name}: the family has no such parameter; merge and remove what was added to the layers")
        return f"{self.table[module].format(number)}.{kind}"

    def fused(self, stack: str) -> bool:
        """Whether queries, keys and values are one published tensor."""
        return self.table is None or f"{stack}.layers.{{}}.self_attention.qkv" in self.table

    def canonical(self, names: list[str]) -> dict[str, str]:
        """The names in a folder, spelled as `published` does -> as they stand in the files; without those ignored."""
        found: dict[str, str] = {}
        bare = self.prefix and not any(name.startswith(self.prefix) for name in names)
        outside = tuple(name for name in (self.table or {}).values() if not name.startswith(self.prefix))
        for name in names:
            whole = name
            for pattern, replacement in (*_OLD_NAMES, *self.renamed):
                whole = re.sub(pattern, replacement, whole)
            if bare and not whole.startswith(outside):
                whole = self.prefix + whole
            if any(re.search(pattern, whole) for pattern in self.ignored):
                continue
            if whole in found:
                raise ValueError(f"{found[whole]} and {name} are two names of one tensor")
            found[whole] = name
        return found

    def is_transposed(self, name: str) -> bool:
        """Whether our parameter is published as (in, out)."""
        return name.endswith(tuple(f".{module}.weight" for module in self.transposed))


def layer_names(stack: str, place: str, parts: Mapping[str, str]) -> dict[str, str]:
    """Rows of a `NameTable` for the layers of a stack, published at `place`, with {} for the number of a layer."""
    return {f"{stack}.layers.{{}}.{ours}": f"{place}.{theirs}" for ours, theirs in parts.items()}


def parameters_of(model: nn.Module, names: NameTable) -> dict[str, Tensor]:
    """The parameters by our name, those that are tied once; queries, keys and values as they are published."""
    found: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        module, _, kind = name.rpartition(".")
        attention = model.get_submodule(module.rpartition(".")[0]) if module.endswith(".qkv") else None
        if not isinstance(attention, MultiHeadAttention) or names.fused(module.split(".")[0]):
            found[name] = parameter
            continue
        for part, tensor in zip(("query", "key", "value"), attention.separate(parameter), strict=True):
            found[f"{module.removesuffix('qkv')}{part}.{kind}"] = tensor
    return found


def read_parameters(
    model: nn.Module,
    weights: Weights,
    names: NameTable,
    shapes: Mapping[str, tuple[int, ...]],
    optional: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """Read all parameters of a model, by our names.

    Args:
        model: may be on the meta device; its shapes are those asked for.
        weights: those of the folder.
        names: the family's.
        shapes: our parameter -> its published shape, where it differs and is not transposed.
        optional: beginnings of our names that may be missing, such as a head to be trained.

    Raises:
        ValueError: a tensor is missing, too many, or of another shape; names tensor and file.
    """
    try:
        in_file = names.canonical(list(weights.file_of))
    except ValueError as error:
        raise ValueError(f"{where(weights)}: {error}") from error
    all_in_file = dict(in_file)
    repeated = {original: repeated for repeated, original in names.ties.items() if repeated in in_file}
    found: dict[str, Tensor] = {}
    for name, parameter in parameters_of(model, names).items():
        theirs = names.published(name)
        if theirs not in in_file and theirs in repeated:
            theirs = repeated[theirs]
        if theirs not in in_file:
            if name.startswith(optional):
                continue
            shape = tuple(parameter.shape)
            raise ValueError(f"{where(weights)}: the tensor {theirs} is missing; the config asks for it, shape {shape}")
        stored = in_file.pop(theirs)
        transposed = names.is_transposed(name)
        shape = tuple(parameter.shape)[::-1] if transposed else shapes.get(name, tuple(parameter.shape))
        if weights.shape(stored) != shape:
            raise ValueError(
                f"{weights.file_of[stored]}: expected the tensor {stored} of shape {shape}, got {weights.shape(stored)}"
            )
        tensor = weights.read(stored)
        if not tensor.is_floating_point():
            raise ValueError(
                f"{weights.file_of[stored]}: expected floating-point numbers in the tensor {stored}, got {tensor.dtype}"
            )
        found[name] = tensor.T.contiguous() if transposed else tensor.reshape(parameter.shape)
    if optional:  # another head than the one in the files is asked for
        in_file = {name: stored for name, stored in in_file.items() if not name.startswith(names.heads)}
    _check_rest(in_file, all_in_file, weights, names)
    return found


def _check_rest(rest: dict[str, str], all_in_file: dict[str, str], weights: Weights, names: NameTable) -> None:
    """Refuse tensors that were not asked for, unless they repeat one that was."""
    unknown = []
    for name, stored in rest.items():
        original = all_in_file.get(names.ties.get(name, ""))
        if original is None:
            unknown.append(stored)
        elif name not in names.spare and not weights.same(stored, original):
            raise ValueError(
                f"{weights.file_of[stored]}: the tensor {stored} differs from {original}, to which the config ties it"
            )
    if unknown:
        first, *others = sorted(unknown)
        more = f" and {len(others)} more" if others else ""
        raise ValueError(f"{weights.file_of[first]}: holds the tensor {first}{more}, for which the config has no place")


def where(weights: Weights) -> str:
    """The file that says which tensors there are."""
    index = weights.folder / INDEX
    return str(index if not (weights.folder / WEIGHTS).is_file() else weights.folder / WEIGHTS)


def fill(model: nn.Module, tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> None:
    """Give a model on the meta device its parameters; those that were tied stay tied."""
    aliases: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.setdefault(parameter, []).append(name)
    groups = list(aliases.values())
    state = {name: tensor if dtype is None else tensor.to(dtype) for name, tensor in tensors.items()}
    model.load_state_dict(state, strict=False, assign=True)
    for first, *others in groups:
        parameter = model.get_parameter(first)
        if parameter.is_meta:
            raise ValueError(f"tensors: {first} is missing")
        for other in others:
            part, _, last = other.rpartition(".")
            setattr(model.get_submodule(part), last, parameter)


def published_tensors(
    model: nn.Module, names: NameTable, shapes: Mapping[str, tuple[int, ...]], *, bare: bool
) -> dict[str, Tensor]:
    """The parameters of a model under their published names and layouts; `bare` leaves the prefix out."""
    found = {}
    for name, parameter in parameters_of(model, names).items():
        tensor = parameter.detach()
        tensor = tensor.T if names.is_transposed(name) else tensor.reshape(shapes.get(name, tuple(tensor.shape)))
        theirs = names.published(name)
        found[theirs.removeprefix(names.prefix) if bare else theirs] = tensor
    return found
