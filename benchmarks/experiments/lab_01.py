"""What the labs on chapter 1 say about trained models."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib import masks
from course_lib.attention import SelfAttention
from course_lib.data import noise_floor, noise_tokens
from course_lib.records import Claim
from experiments import experiment

LEAK_VOCABULARY, LEAK_LENGTH = 11, 13


def learn(model: nn.Module, draw: Any, steps: int, rate: float) -> None:
    """Adam on fresh random examples; `draw` returns inputs and targets, targets last."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        *inputs, targets = draw(64)
        scores = model(*inputs)
        loss = F.cross_entropy(scores.flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# The leak detector ---------------------------------------------------------------------------------------------------


class NextToken(nn.Module):
    """Predicts the next token with one masked head."""

    def __init__(self, mask: Tensor | None, width: int = 32) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(LEAK_VOCABULARY, width), nn.Embedding(LEAK_LENGTH, width)
        self.attention, self.answer = SelfAttention(width), nn.Linear(width, LEAK_VOCABULARY)
        self.mask = mask

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) -> scores of the next one, (B, T, V)."""
        return self.answer(self.attention(self.token(tokens) + self.position.weight, mask=self.mask))  # (B, T, V)


def leak_mask(kind: str) -> Tensor | None:
    """Return one of the four masks of the lab."""
    mask = masks.causal_mask(LEAK_LENGTH)
    if kind == "one wrong cell":
        mask[0, 1] = True
    if kind == "off by one":
        mask = torch.ones_like(mask).tril(diagonal=1)
    return None if kind == "no mask" else mask


def leak_holds(record: Claim) -> bool:
    """The right mask stays at the floor; every other one goes below it, in every run."""
    leaks = {arm: record.range(arm, "below the floor")[0] for arm in record.arms if arm != "right"}
    return (
        record.range("right", "below the floor")[1] < 0.01
        and leaks["one wrong cell"] > 0.04
        and min(leaks["off by one"], leaks["no mask"]) > 1.5
    )


@experiment(
    claim="On noise a right causal mask does not beat ln V; a mask off by one, none, and one wrong cell do.",
    arms={name: {"mask": name} for name in ("right", "one wrong cell", "off by one", "no mask")},
    rates=(3e-3, 1e-2),
    better="min loss",
    holds=leak_holds,
)
def leak_detector(seed: int, rate: float, *, mask: str, steps: int = 100) -> dict[str, float]:
    """Train under a mask on tokens that nobody can predict; loss on new ones."""
    torch.manual_seed(seed)
    model, generator = NextToken(leak_mask(mask)), torch.Generator().manual_seed(seed)

    def draw(B: int) -> tuple[Tensor, ...]:
        tokens = noise_tokens(B, LEAK_LENGTH + 1, LEAK_VOCABULARY, generator=generator)
        return tokens[:, :-1], tokens[:, 1:]

    learn(model, draw, steps, rate)
    tokens, targets = draw(1000)
    with torch.no_grad():
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).item()
    return {"loss": loss, "below the floor": noise_floor(LEAK_VOCABULARY) - loss}
