"""Experts as in DeepSeek-V3: many small ones, some that every token uses, and a router that is balanced by a bias.

Shapes: N tokens (all positions of all examples), D model width, K experts that are chosen for a token.
Sources: Dai et al. 2024 (DeepSeekMoE), section 3; Wang et al. 2024 (auxiliary-loss-free balancing), algorithm 1;
DeepSeek-AI 2024 (DeepSeek-V3), section 2.1.2.
"""

import torch
from torch import Tensor, nn

from course_lib.checks import Count, check_floating, check_integer, check_width, checked
from course_lib.config import Activation
from course_lib.layers import FeedForward


class BiasRouter(nn.Module):
    """Choose the `top_k` experts with the largest sigmoid score plus bias; weigh them by their scores alone.

    Call `update` after each step of the optimizer: it raises the bias of experts that had fewer than the mean number
    of tokens since the last update, and lowers that of the others. The bias is a buffer, not a parameter: it is saved
    with the weights and has no gradient. Scores and weights are float32.

    Args:
        d_model: width D.
        n_experts: how many to choose from.
        top_k: K.

    Raises ValueError or TypeError that names the argument.
    """

    bias: Tensor
    counts: Tensor

    @checked
    def __init__(self, d_model: Count, n_experts: Count, top_k: int) -> None:
        super().__init__()
        check_integer("top_k", top_k, 1, n_experts)
        self.top_k = top_k
        self.scores = nn.Linear(d_model, n_experts, bias=False)
        self.register_buffer("bias", torch.zeros(n_experts))
        self.register_buffer("counts", torch.zeros(n_experts))

    def forward(self, tokens: Tensor) -> Tensor:
        """Weigh the experts: (N, D) -> (N, n_experts), which sum to one and are zero for those not chosen."""
        check_width("tokens", tokens, self.scores.in_features)
        scores = self.scores(tokens).float().sigmoid()
        chosen = (scores + self.bias).topk(self.top_k, dim=-1).indices  # (N, K)
        if self.training:
            self.counts += torch.bincount(chosen.flatten(), minlength=len(self.counts))
        weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
        return weights / (weights.sum(-1, keepdim=True) + 1e-20)  # where all scores are too small for float32

    @torch.no_grad()
    def update(self, rate: float = 0.001) -> None:
        """Move each bias by `rate` towards an even load, and count anew."""
        self.bias += rate * torch.sign(self.counts.mean() - self.counts)
        self.counts.zero_()


class BalancedExperts(nn.Module):
    """A drop-in feed-forward: `n_shared` experts that every token uses, and `top_k` of `n_experts` that it chooses.

    Args:
        d_model: width D.
        d_ff: width inside each expert.
        n_experts: how many to choose from.
        top_k: how many of them a token uses.
        n_shared: experts that every token uses beside them, computed as one that is so many times as wide.
        router: from tokens (N, D) to weights (N, n_experts), zero where not chosen; a `BiasRouter` unless given.
        activation, gated, bias: as `FeedForward`.

    Raises ValueError or TypeError that names the argument.
    """

    @checked
    def __init__(
        self,
        d_model: Count,
        d_ff: Count,
        *,
        n_experts: Count = 8,
        top_k: int = 2,
        n_shared: int = 0,
        router: nn.Module | None = None,
        activation: Activation = "silu",
        gated: bool = True,
        bias: bool = False,
    ) -> None:
        super().__init__()
        check_integer("n_shared", n_shared, 0)
        self.d_model = d_model
        self.router = BiasRouter(d_model, n_experts, top_k) if router is None else router
        self.experts = nn.ModuleList(
            FeedForward(d_model, d_ff, activation=activation, gated=gated, bias=bias) for _ in range(n_experts)
        )
        self.shared = (
            FeedForward(d_model, n_shared * d_ff, activation=activation, gated=gated, bias=bias) if n_shared else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Send each position through its experts: (..., D) -> (..., D)."""
        check_width("x", x, self.d_model)
        check_floating("x", x)
        tokens = x.flatten(0, -2)  # (..., D) -> (N, D)
        weights = self.router(tokens)  # (N, n_experts)
        output = torch.zeros_like(tokens) if self.shared is None else self.shared(tokens)
        for number, expert in enumerate(self.experts):
            rows = weights[:, number].nonzero()[:, 0]  # the tokens that chose it
            part = weights[rows, number, None] * expert(tokens[rows])
            output = output.index_add(0, rows, part.to(output.dtype))
        return output.view_as(x)  # (N, D) -> (..., D)
