"""The groups of the lab on width do what the authors of µP do, whose package writes the rules in another form.

mup 1.0.0 multiplies the input of the head by 1 / growth, and gives the head's weights the full rate. It needs
torchvision and is not in any extra; what it gave is kept here, and compared with it where it is installed.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coursework.exercises.bank.mup_groups import mup_groups
from coursework.exercises.tensors import integers, normal

TOKENS, RATE, STEPS = 11, 0.03, 8
NARROW, WIDE = (4, 8), (12, 40)  # width of the stream, and inside
LOSSES = (
    2.8349687763538,
    2.3143393980139,
    2.4137405486086,
    1.979408602961,
    1.843533839963,
    1.7722240210365,
    1.5416102549333,
    1.4452106496881,
)
SLOPES = (
    0.33776710571337,
    0.30020817769883,
    0.31818416741367,
    0.30277273099886,
    0.26756592427486,
    0.45676918460988,
    0.22314066803144,
    0.24209731975021,
)


class Small(nn.Module):
    """A table, a map up and one down, a norm and a head, in float64, with the same weights everywhere."""

    def __init__(self, width: int, inside: int, head: Callable[..., nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.token, self.up = nn.Embedding(TOKENS, width), nn.Linear(width, inside, bias=False)
        self.down, self.norm = nn.Linear(inside, width, bias=False), nn.RMSNorm(width)
        self.head = head(width, TOKENS, bias=False)
        self.double()
        for number, p in enumerate(self.parameters()):
            if p.dim() == 2:
                p.data = normal(*p.shape, seed=number, dtype=torch.float64, scale=p.size(1) ** -0.5, grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids)
        return self.head(self.norm(x + self.down(self.up(x).relu())))


def trained(model: Small, optimizer: torch.optim.Optimizer) -> tuple[list[float], list[float]]:
    """The loss of each step, and the length of the gradient of the map up."""
    losses, slopes = [], []
    for step in range(STEPS):
        ids = integers(16, low=0, high=TOKENS - 1, seed=100 + step)
        loss = F.cross_entropy(model(ids), (3 * ids + 1) % TOKENS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert model.up.weight.grad is not None
        losses.append(loss.item())
        slopes.append(model.up.weight.grad.norm().item())
    return losses, slopes


def ours() -> tuple[list[float], list[float]]:
    model = Small(*WIDE)
    groups = mup_groups(model, Small(*NARROW), RATE)
    return trained(model, torch.optim.Adam(groups, betas=(0.9, 0.95), eps=1e-14))


def theirs() -> tuple[list[float], list[float]]:
    mup = pytest.importorskip("mup", reason="pip install --no-deps mup==1.0.0")
    model = Small(*WIDE, head=mup.MuReadout)
    delta = Small(2 * NARROW[0], 2 * NARROW[1], head=mup.MuReadout)
    mup.set_base_shapes(model, Small(*NARROW, head=mup.MuReadout), delta=delta)
    return trained(model, mup.MuAdam(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-14))


def test_losses_and_gradients_are_those_of_mup():
    losses, slopes = ours()
    assert losses == pytest.approx(LOSSES, rel=1e-9)
    assert slopes == pytest.approx(SLOPES, rel=1e-9)


def test_what_is_kept_is_what_mup_gives():
    losses, slopes = theirs()
    assert losses == pytest.approx(LOSSES, rel=1e-12)
    assert slopes == pytest.approx(SLOPES, rel=1e-12)
