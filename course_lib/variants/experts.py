"""Mixture of experts: many feed-forwards, of which a router lets each token use a few.

Shapes: N tokens (all positions of all examples), D model width, K experts a token uses.
Sources: Shazeer et al. 2017; Fedus et al. 2022 (Switch Transformer), sections 2.1 and 2.2; Jiang et al. 2024 (Mixtral).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks import Count, Positive, check_floating, check_integer, check_token_ids, check_width, checked
from course_lib.config import Activation, TransformerConfig
from course_lib.layers import FeedForward


class MixtureOfExperts(nn.Module):
    """A drop-in feed-forward: each token goes through the `top_k` experts that the router scores highest.

    The outputs are weighted by the router's softmax, over the chosen ones if `top_k` is 2 or more (Mixtral); with one
    expert its probability among all stays (Switch), for normed to 1 it would give the router no gradient.

    After each forward pass `balance_loss` holds the load-balancing loss of that pass, 1 for perfectly even use, and
    `load` (n_experts,) the share of choices that each expert got.

    Args:
        d_model: width D.
        d_ff: width inside each expert, 4 D unless given.
        n_experts: how many.
        top_k: K.
        capacity: in training an expert takes at most capacity * K * N / n_experts tokens, in order; the rest pass by
            on the residual connection alone. No limit unless given, and none in eval mode: under a limit a token
            depends on those before it in the batch, padding included.
        activation, gated, bias, dropout: as `FeedForward`.

    Raises ValueError or TypeError that names the argument.
    """

    balance_loss: Tensor
    load: Tensor

    @checked
    def __init__(
        self,
        d_model: int,
        d_ff: int | None = None,
        *,
        n_experts: Count = 8,
        top_k: int = 2,
        capacity: Positive | None = None,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_integer("top_k", top_k, 1, n_experts)
        self.n_experts, self.top_k, self.capacity = n_experts, top_k, capacity
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(
            FeedForward(d_model, d_ff, activation=activation, gated=gated, bias=bias, dropout=dropout)
            for _ in range(n_experts)
        )
        self.balance_loss = self.load = torch.zeros(())

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles take the value of the loss without its graph."""
        return {**self.__dict__, "balance_loss": self.balance_loss.detach()}

    @classmethod
    def from_config(
        cls, config: TransformerConfig, *, n_experts: int = 8, top_k: int = 2, capacity: float | None = None
    ) -> "MixtureOfExperts":
        """Experts like the feed-forward that a config describes.

        For the switch `feed_forward`: TransformerConfig(feed_forward=lambda c: MixtureOfExperts.from_config(c)).
        """
        return cls(
            config.d_model,
            config.setting("d_ff"),
            n_experts=n_experts,
            top_k=top_k,
            capacity=capacity,
            activation=config.activation,
            gated=config.gated,
            bias=config.setting("feed_forward_bias"),
            dropout=config.setting("activation_dropout"),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Send each position through its experts: (..., D) -> (..., D)."""
        check_width("x", x, self.router.in_features)
        tokens = x.flatten(0, -2)  # (..., D) -> (N, D)
        weights, chosen, probabilities = route(self.router(tokens), self.top_k)  # (N, K), (N, K), (N, n_experts)
        self.balance_loss = load_balancing_loss(probabilities, chosen)
        self.load = torch.bincount(chosen.flatten(), minlength=self.n_experts) / max(1, chosen.numel())
        limit = None
        if self.training and self.capacity is not None:
            limit = math.ceil(self.capacity * chosen.numel() / self.n_experts)
        output = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)  # in the order of the tokens
            rows, places = rows[:limit], places[:limit]
            part = expert(tokens[rows]) * weights[rows, places, None].to(tokens.dtype)
            output = output.index_add(0, rows, part.to(output.dtype))
        return output.view_as(x)  # (N, D) -> (..., D)


def route(scores: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choose experts: scores (N, n_experts) -> weights (N, K), chosen (N, K), probabilities (N, n_experts).

    Computed in float32. The weights of two or more sum to one; a single one is its probability among all.
    """
    check_floating("scores", scores)
    if scores.dim() != 2 or not 1 <= top_k <= scores.size(1):
        raise ValueError(f"scores: expected (N, n_experts) with at least top_k={top_k} experts, got {scores.shape}")
    probabilities = scores.float().softmax(dim=-1)
    weights, chosen = probabilities.topk(top_k, dim=-1)
    if top_k > 1:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, chosen, probabilities


def load_balancing_loss(probabilities: Tensor, chosen: Tensor) -> Tensor:
    """n_experts times the sum over experts of (share of choices) * (mean probability): 1 if both are even.

    probabilities (N, n_experts), chosen (N, K). The gradient flows through the probabilities only.
    Source: Fedus et al. 2022, equations 4 to 6.
    """
    check_token_ids("chosen", chosen)
    n_experts = probabilities.size(1)
    share = torch.bincount(chosen.flatten(), minlength=n_experts) / max(1, chosen.numel())
    return n_experts * (share * probabilities.mean(dim=0)).sum()


def balance_loss(model: nn.Module) -> Tensor:
    """The mean load-balancing loss of a model's mixtures in the last forward pass; add about 0.01 of it to the loss."""
    losses = [part.balance_loss for part in model.modules() if isinstance(part, MixtureOfExperts)]
    if not losses:
        raise ValueError("model: has no MixtureOfExperts")
    return torch.stack(losses).mean()
