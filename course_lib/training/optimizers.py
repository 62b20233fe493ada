"""Optimizers: AdamW with its groups, and Muon for the matrices inside layers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from course_lib.checks import NotNegative, Share, Within, check_floating, check_integer, checked
from course_lib.training.config import TrainingConfig
from course_lib.training.distributed import gathered, sharded_like

__all__ = ["Muon", "build_optimizers", "newton_schulz", "parameter_groups"]

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@checked
def parameter_groups(model: nn.Module, weight_decay: NotNegative) -> list[dict[str, Any]]:
    """Split the trained parameters into matrices, which decay, and norms, biases and embeddings, which do not.

    A module whose own weights must not decay says so: `decays = False`. A head that is tied to an embedding is that
    embedding, and does not decay.
    """
    kept = [part for part in model.modules() if isinstance(part, nn.Embedding) or not getattr(part, "decays", True)]
    tables = {id(p) for part in kept for p in part.parameters(recurse=False)}
    trained = [p for p in model.parameters() if p.requires_grad]
    # A parameter (1, T, D) or (1, 1, D) is a table of positions or a class token, not a map.
    decays = {id(p) for p in trained if p.dim() >= 2 and p.size(0) > 1} - tables
    groups = [
        {"params": [p for p in trained if id(p) in decays], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in decays], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


@checked
def build_optimizers(model: nn.Module, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Return the optimizers that the config describes; a group's `rate_factor`, or 1, times the schedule is its rate.

    With "muon", the matrices of the linear maps inside layers (in an `nn.ModuleList`) go to Muon, and all else, the
    embeddings and the head among it, to AdamW.
    """
    matrices = _matrices_of_layers(model) if config.optimizer == "muon" else []
    if config.optimizer == "muon" and not matrices:
        raise ValueError("optimizer: 'muon' is for the linear maps inside an nn.ModuleList, and the model has none")
    taken = {id(p) for p in matrices}
    groups = parameter_groups(model, config.weight_decay)
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    groups = [group for group in groups if group["params"]]
    if not groups and not matrices:
        raise ValueError("model: it has no parameter that is trained")
    optimizers: list[torch.optim.Optimizer] = []
    if groups:
        fused = all(p.device.type in ("cpu", "cuda", "mps") for group in groups for p in group["params"])
        optimizers.append(
            torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=fused)
        )
    if matrices:
        factor = config.muon_learning_rate / config.learning_rate
        optimizers.append(
            Muon(
                [{"params": matrices, "rate_factor": factor}],
                lr=config.muon_learning_rate,
                momentum=config.muon_momentum,
                weight_decay=config.weight_decay,
                n_steps=config.muon_steps,
                dtype=torch.float32 if config.precision == "float32" else torch.bfloat16,
            )
        )
    return optimizers


def _matrices_of_layers(model: nn.Module) -> list[Tensor]:
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList)]
    maps = [part for layers in lists for part in layers.modules() if isinstance(part, nn.Linear)]
    return list({id(part.weight): part.weight for part in maps if part.weight.requires_grad}.values())


def newton_schulz(matrices: Tensor, n_steps: int = 5, *, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Bring all singular values of matrices (R, C) or (N, R, C) near 1 without computing them.

    A matrix U S V^T becomes about U V^T: after five steps its singular values lie between 0.7 and 1.2. Each step
    applies the odd polynomial a x + b x^3 + c x^5 to them, by matrix products alone.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks", the quintic iteration.
    """
    check_floating("matrices", matrices)
    check_integer("n_steps", n_steps, 0)
    a, b, c = _COEFFICIENTS
    if matrices.dim() == 2:
        return newton_schulz(matrices[None], n_steps, dtype=dtype)[0]
    if matrices.dim() != 3:
        raise ValueError(f"matrices: expected (R, C) or (N, R, C), got {tuple(matrices.shape)}")
    tall = matrices.size(-2) > matrices.size(-1)
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(n_steps):
        gram = x @ x.mT  # (N, R, C) @ (N, C, R) -> (N, R, R)
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)  # b gram + c gram^2
        x = torch.baddbmm(x, factor, x, beta=a)  # a x + factor x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum whose every update is made orthogonal: all directions of a matrix move equally far.

    Args:
        params: matrices (R, C) only; or groups of them.
        lr: the rate. An update has singular values near lr * sqrt(max(1, R / C)).
        momentum: decay of the average of gradients; the update looks one step ahead (Nesterov).
        weight_decay: decoupled, as in AdamW.
        n_steps: Newton-Schulz iterations.
        dtype: of the iterations. They need no more than bfloat16, but it makes roundings of the gradient visible.

    Source: Jordan et al. 2024. `torch.optim.Muon` computes the same, one matrix at a time.
    """

    @checked
    def __init__(
        self,
        params: Iterable[Any],
        lr: NotNegative = 0.02,
        *,
        momentum: Share = 0.95,
        weight_decay: NotNegative = 0.0,
        n_steps: Annotated[int, Within(1, 100)] = 5,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "n_steps": n_steps})
        self.dtype = dtype
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() != 2:
                    raise ValueError(f"params: expected matrices, got a parameter of shape {tuple(p.shape)}")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient; matrices of one shape go through the iteration together."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault(tuple(p.shape), []).append(p)
            for shape, parameters in alike.items():
                looks = [self._look_ahead(p, group["momentum"]) for p in parameters]
                full = torch.stack([gathered(look) for look in looks])  # N times (R, C) -> (N, R, C)
                updates = newton_schulz(full, group["n_steps"], dtype=self.dtype)
                rate = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(parameters, updates.unbind(), strict=True):
                    p.mul_(1.0 - group["lr"] * group["weight_decay"])
                    p.add_(sharded_like(update, p), alpha=-rate)
        return loss

    def _look_ahead(self, p: Tensor, momentum: float) -> Tensor:
        """Take the gradient into the average, and return the average as it would be one step on."""
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        state["momentum"].lerp_(p.grad, 1.0 - momentum)
        return p.grad.lerp(state["momentum"], momentum)  # type: ignore[union-attr]


def set_rate(optimizers: Sequence[torch.optim.Optimizer], rate: float) -> None:
    """Give every group its rate for the next update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group.get("rate_factor", 1.0)
