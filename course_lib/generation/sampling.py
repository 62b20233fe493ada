"""From logits to the next token: temperature, filters, penalties.

Shapes: B batch, V vocabulary. Filters take logits (..., V) and return them with -inf for what they forbid. They refuse
NaN on a CPU; elsewhere the look would make the host wait for the device, and `generation` looks now and then.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from course_lib.checks import (
    Checked,
    Count,
    NotNegative,
    Within,
    check_integer,
    check_kind,
    check_number,
    check_probability,
)


def check_logits(logits: Tensor) -> None:
    """Refuse what is not a row of finite floating-point numbers, -inf allowed beside them."""
    check_kind("logits", logits, Tensor)
    if logits.dim() < 1 or not logits.is_floating_point() or logits.size(-1) == 0:
        raise ValueError(f"logits: expected floating-point numbers (..., V), got {logits.dtype} {tuple(logits.shape)}")
    if logits.device.type == "cpu" and not is_usable(logits).all():
        raise ValueError("logits: expected numbers, got a row with NaN, with infinity, or with nothing but -inf")


def is_usable(logits: Tensor) -> Tensor:
    """Tell for each row (..., V) whether a token can be chosen from it: bool (...)."""
    return logits.amax(dim=-1).isfinite()  # NaN and inf win every maximum


def top_k_filter(logits: Tensor, k: int) -> Tensor:
    """Keep the k most likely tokens, and those as likely as the last of them.

    Source: Fan et al. 2018, section 5.4.
    """
    check_logits(logits)
    check_integer("top_k", k)
    least = logits.topk(min(k, logits.size(-1)), dim=-1).values[..., -1:]  # (..., 1)
    return logits.masked_fill(logits < least, -torch.inf)


def top_p_filter(logits: Tensor, p: float) -> Tensor:
    """Keep the fewest tokens, most likely first, that together have probability p or more.

    Source: Holtzman et al. 2020, section 3.1 (nucleus sampling).
    """
    check_logits(logits)
    check_probability("top_p", p, "(0, 1]")
    ordered, order = logits.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # what the more likely tokens have together
    drop = torch.empty_like(logits, dtype=torch.bool).scatter_(-1, order, before >= p)
    return logits.masked_fill(drop, -torch.inf)


def min_p_filter(logits: Tensor, p: float) -> Tensor:
    """Keep the tokens that are at least p times as likely as the most likely one.

    Source: Nguyen et al. 2024, section 3.
    """
    check_logits(logits)
    check_probability("min_p", p, "(0, 1]")
    probabilities = logits.softmax(dim=-1)
    return logits.masked_fill(probabilities < p * probabilities.amax(dim=-1, keepdim=True), -torch.inf)


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Make tokens seen before less likely: positive logits over the penalty, negative ones times it.

    `seen` is bool (B, V). Source: Keskar et al. 2019 (CTRL), section 4.1.
    """
    check_number("repetition_penalty", penalty, above=0)
    if seen.dtype != torch.bool or seen.shape != logits.shape:
        raise ValueError(f"seen: expected bool {tuple(logits.shape)} like logits, got {seen.dtype} {tuple(seen.shape)}")
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


@dataclass(frozen=True, kw_only=True)
class Sampling(Checked):
    """How the next token is chosen; applied in the order of the fields, the penalty first.

    A temperature of 0 takes the most likely token (greedy). Raises ValueError that names the field.
    """

    repetition_penalty: Annotated[float, Within(above=1e-6)] = 1.0
    temperature: NotNegative = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Within(above=0, most=1)] | None = None
    min_p: Annotated[float, Within(above=0, most=1)] | None = None

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        if 0 < self.temperature < 1e-6:
            raise ValueError(f"temperature: expected 0 (greedy) or at least 1e-06, got {self.temperature}")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits (..., V) into the distribution that the next token is drawn from, float32 (..., V)."""
        if self.temperature == 0:
            return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        logits = logits.float() / self.temperature
        if self.top_k is not None:
            logits = top_k_filter(logits, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            logits = top_p_filter(logits, self.top_p)
        if self.min_p is not None:
            logits = min_p_filter(logits, self.min_p)
        return logits.softmax(dim=-1)

    def choose(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Choose a token for each row: logits (B, V) -> int64 (B,)."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        return torch.multinomial(self.probabilities(logits), 1, generator=generator).squeeze(-1)  # (B, 1) -> (B,)
