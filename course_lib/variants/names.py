"""From the tensors of a published checkpoint to the parameters here, and back: names, layouts, ties.

Every parameter of a model has one name in the checkpoint, so that a missing tensor and one too many are both found.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from course_lib.multi_head import MultiHeadAttention
from course_lib.variants.checkpoint import INDEX, WEIGHTS, Weights

_LAYER = re.compile(r"(.*)\.layers\.(\d+)\.(.*)")
_OLD_NAMES = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))  # of norms, before 2019


@dataclass(frozen=True)
class NameMap:
    """The published names of a family.

    Args:
        prefix: what whole models put before the names of their body; checkpoints of the body alone lack it.
        top: module or parameter here -> there, outside the layers.
        layers: stack here -> (its layers there, with {} for the number, and module in a layer here -> there).
        transposed: modules in a layer whose weight is published as (in, out).
        renamed: (pattern, replacement) for other names of the same tensors in some checkpoints.
        ignored: patterns of tensors in some checkpoints that hold no weights, or those of a head that is not here.
        heads: beginnings of the names there that belong to heads.
        spare: names in `ties` that may differ from their original, which is then the one that counts.
        ties: name there -> name there of the tensor that it repeats, if it is there at all.
    """

    prefix: str
    top: Mapping[str, str]
    layers: Mapping[str, tuple[str, Mapping[str, str]]]
    transposed: frozenset[str] = frozenset()
    renamed: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)

    def there(self, name: str) -> str:
        """The published name of a parameter here. Raises ValueError for one that the family does not have."""
        if name in self.top:
            return self.top[name]
        module, _, kind = name.rpartition(".")
        if module in self.top:
            return f"{self.top[module]}.{kind}"
        stack, number, part = found.groups() if (found := _LAYER.fullmatch(module)) else ("", "", "")
        place, parts = self.layers.get(stack, ("", {}))
        if part not in parts:
            raise ValueError(f"{name}: the family has no such parameter; merge and remove what was added to the layers")
        return f"{place.format(number)}.{parts[part]}.{kind}"

    def fused(self, stack: str) -> bool:
        """Whether queries, keys and values are one tensor there."""
        return "self_attention.qkv" in self.layers[stack][1]

    def canonical(self, names: list[str]) -> dict[str, str]:
        """The names of a checkpoint as `there` gives them -> as they stand in the files, without those ignored."""
        found: dict[str, str] = {}
        bare = self.prefix and not any(name.startswith(self.prefix) for name in names)
        tops = tuple(top for top in self.top.values() if not top.startswith(self.prefix))
        for name in names:
            whole = name
            for pattern, replacement in (*_OLD_NAMES, *self.renamed):
                whole = re.sub(pattern, replacement, whole)
            if bare and not whole.startswith(tops):
                whole = self.prefix + whole
            if any(re.search(pattern, whole) for pattern in self.ignored):
                continue
            if whole in found:
                raise ValueError(f"{found[whole]} and {name} are two names of one tensor")
            found[whole] = name
        return found

    def is_transposed(self, name: str) -> bool:
        """Whether the weight is published as (in, out)."""
        found = _LAYER.fullmatch(name)
        return found is not None and name.endswith(".weight") and found[3].removesuffix(".weight") in self.transposed


def parameters_of(model: nn.Module, names: NameMap) -> dict[str, Tensor]:
    """The parameters by name here, those that are tied once; queries, keys and values as they are published."""
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
    names: NameMap,
    shapes: Mapping[str, tuple[int, ...]],
    optional: tuple[str, ...] = (),
) -> dict[str, Tensor]:
    """Read all parameters of a model, by their names here.

    Args:
        model: may be on the meta device; its shapes are those asked for.
        weights: the checkpoint.
        names: the family's.
        shapes: parameter here -> its published shape, where it differs and is not transposed.
        optional: beginnings of names here that may be missing, such as a head to be trained.

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
        there = names.there(name)
        if there not in in_file and there in repeated:
            there = repeated[there]
        if there not in in_file:
            if name.startswith(optional):
                continue
            shape = tuple(parameter.shape)
            raise ValueError(f"{where(weights)}: the tensor {there} is missing; the config asks for it, shape {shape}")
        stored = in_file.pop(there)
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


def _check_rest(rest: dict[str, str], all_in_file: dict[str, str], weights: Weights, names: NameMap) -> None:
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


def published_tensors(
    model: nn.Module, names: NameMap, shapes: Mapping[str, tuple[int, ...]], *, bare: bool
) -> dict[str, Tensor]:
    """The parameters of a model under their published names and layouts; `bare` leaves the prefix out."""
    found = {}
    for name, parameter in parameters_of(model, names).items():
        tensor = parameter.detach()
        tensor = tensor.T if names.is_transposed(name) else tensor.reshape(shapes.get(name, tuple(tensor.shape)))
        there = names.there(name)
        found[there.removeprefix(names.prefix) if bare else there] = tensor
    return found
