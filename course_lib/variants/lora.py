"""Low-rank adaptation: fine-tune a frozen linear map by training the product of two thin matrices beside it.

Source: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1, equation 3.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks import Finite, Share, check_integer, checked

ATTENTION = ("qkv", "query", "key", "value", "output")
"""The linear maps of an attention, by their names in `MultiHeadAttention`."""


class LoRALinear(nn.Module):
    """A frozen `nn.Linear` plus alpha / rank times up @ down: (..., D_in) -> (..., D_out).

    `up` starts at zero, so that the wrapped map starts as it was.

    Args:
        base: the map; its parameters are frozen.
        rank: r, rows of `down` (r, D_in) and columns of `up` (D_out, r).
        alpha: the update is multiplied by alpha / rank.
        dropout: probability of dropping an input of the update in training.
    """

    @checked
    def __init__(self, base: nn.Linear, rank: int, *, alpha: Finite | None = None, dropout: Share = 0.0) -> None:
        super().__init__()
        check_integer("rank", rank, 1, min(base.in_features, base.out_features))
        self.base, self.rank, self.dropout = base, rank, dropout
        self.alpha = float(rank if alpha is None else alpha)
        self.merged = False
        self.down = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))  # as nn.Linear starts
        for parameter in base.parameters():
            parameter.requires_grad_(False)

    @property
    def in_features(self) -> int:
        """D_in."""
        return self.base.in_features

    @property
    def out_features(self) -> int:
        """D_out."""
        return self.base.out_features

    @property
    def weight(self) -> Tensor:
        """The weight in force, (D_out, D_in)."""
        return self.base.weight if self.merged else self.base.weight + self.update()

    @property
    def bias(self) -> Tensor | None:
        """The bias of the base."""
        return self.base.bias

    def update(self) -> Tensor:
        """What is learned: alpha / rank * up @ down, (D_out, D_in)."""
        return self.up @ self.down * (self.alpha / self.rank)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D_in) -> (..., D_out); merged, at the cost of the base alone."""
        output = self.base(x)
        if self.merged:
            return output
        thin = F.linear(F.dropout(x, self.dropout, self.training), self.down)  # (..., D_in) -> (..., r)
        return output + F.linear(thin, self.up) * (self.alpha / self.rank)

    @torch.no_grad()
    def merge(self) -> None:
        """Add the update into the base; once only, however often it is called."""
        if not self.merged:
            self.base.weight += self.update()
            self.merged = True

    @torch.no_grad()
    def unmerge(self) -> None:
        """Take the update out again; the base is then as before up to rounding."""
        if self.merged:
            self.base.weight -= self.update()
            self.merged = False


@checked
def add_lora(
    model: nn.Module,
    rank: int,
    *,
    alpha: Finite | None = None,
    dropout: float = 0.0,
    targets: Sequence[str] = ATTENTION,
) -> list[str]:
    """Freeze a model and put a trainable update beside the linear maps called `targets`; return their full names.

    Raises ValueError if no map has such a name, or one shares its weight with another part of the model, such as a
    head tied to the token table: merging would change both.
    """
    if any(isinstance(part, LoRALinear) for part in model.modules()):
        raise ValueError("model: has updates already; unwrap it with `remove_lora` first")
    found = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and name.rpartition(".")[2] in targets
    ]
    if not found:
        raise ValueError(f"targets: no linear map of the model is called {' or '.join(map(repr, targets))}")
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for name in found:
        shared = owners[id(model.get_submodule(name).weight)]
        if len(shared) > 1:
            raise ValueError(f"targets: {name} shares its weight: {', '.join(shared)}")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name in found:
        base: nn.Linear = model.get_submodule(name)  # type: ignore[assignment]
        wrapped = LoRALinear(base, rank, alpha=alpha, dropout=dropout).train(base.training)
        model.set_submodule(name, wrapped)
    return found


def merge_lora(model: nn.Module) -> None:
    """Add every update into its base, for inference at the cost of the plain model; see `LoRALinear.merge`."""
    for part in _wrapped(model).values():
        part.merge()


def unmerge_lora(model: nn.Module) -> None:
    """Take every update out of its base again, to train on or to load another."""
    for part in _wrapped(model).values():
        part.unmerge()


def remove_lora(model: nn.Module, *, keep: bool = True) -> None:
    """Put plain linear maps back, with the updates added if `keep`; all their parameters are trainable again."""
    for name, part in _wrapped(model).items():
        part.merge() if keep else part.unmerge()
        model.set_submodule(name, part.base)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def _wrapped(model: nn.Module) -> dict[str, LoRALinear]:
    parts = {name: part for name, part in model.named_modules() if isinstance(part, LoRALinear)}
    if not parts:
        raise ValueError("model: has no updates; call add_lora first")
    return parts
