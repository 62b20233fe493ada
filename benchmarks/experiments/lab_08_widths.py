"""What the lab on width says: where the best rate lies in models of four widths, and by which rules it stays."""

import functools
import inspect
import statistics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.data import CharTokenizer
from course_lib.multi_head import MultiHeadAttention
from course_lib.training import Muon
from coursework.corpora import tiny_shakespeare
from coursework.exercises.bank.mup_groups import mup_groups
from coursework.records import Claim
from experiments import experiment

WIDTHS, BASE, WIDTH_OF_HEAD, LENGTH, ROWS, STEPS = (16, 32, 64, 128), 16, 8, 32, 16, 80
RATES = (0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
RATE_BESIDE_MUON = 0.032  # of Adam, for what is no matrix of a layer


class Block(nn.Module):
    """Attention and a feed-forward, each reads a normed stream and adds to it; wider ones have more heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = MultiHeadAttention(width, width // WIDTH_OF_HEAD, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x), causal=True)
        return x + self.down(self.up(self.norm_2(x)).relu())


class WideGPT(nn.Module):
    """Two layers, with the first weights that torch gives each part."""

    def __init__(self, width: int, vocab_size: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(vocab_size, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.place.weight[: ids.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@functools.cache
def text() -> tuple[Tensor, int]:
    """Shakespeare's characters as ids, and how many kinds there are."""
    plays = tiny_shakespeare()
    tokenizer = CharTokenizer.train([plays])
    return torch.tensor(tokenizer.encode(plays)), tokenizer.vocab_size


def loss_of(model: nn.Module, rows: Tensor) -> Tensor:
    """The mean over the tokens that follow others in rows (B, T + 1)."""
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def optimizers_of(model: nn.Module, vocab_size: int, rule: str, rate: float) -> list[torch.optim.Optimizer]:
    """Adam with one rate, or by width, or for all but the matrices of the layers, which Muon has at twice the rate."""
    groups: list[dict] = [{"params": list(model.parameters()), "lr": rate}]
    if rule != "standard":
        groups = mup_groups(model, WideGPT(BASE, vocab_size), RATE_BESIDE_MUON if rule == "Muon" else rate)
    matrices = [p for name, p in model.named_parameters() if rule == "Muon" and "layers" in name and p.dim() == 2]
    taken = {id(p) for p in matrices}
    groups = [group for group in groups if id(group["params"][0]) not in taken]
    adam = torch.optim.Adam(groups, betas=(0.9, 0.95), fused=True)
    return [adam, Muon(matrices, 2 * rate, dtype=torch.float32)] if matrices else [adam]


def _holds(record: Claim) -> bool:
    """The standard's best rate falls to a quarter; the others' moves by a step at most, and keeping it costs less."""

    def best(rule: str, width: int) -> float:
        return record.best_rate(f"{rule}, width {width}") or 0.0

    def lost(rule: str) -> list[float]:
        wide, tuned = f"{rule}, width 128", statistics.mean(record.values(f"{rule}, width 128", "loss"))
        return [value - tuned for value in record.values(wide, "loss", best(rule, BASE))]

    falls = best("standard", 128) < 0.3 * best("standard", BASE)
    stays = all(0.4 < best(rule, width) / best(rule, BASE) < 2.1 for rule in ("µP", "Muon") for width in WIDTHS)
    return falls and stays and min(lost("standard")) > max(lost("µP") + lost("Muon"))


@experiment(
    claim="With one rate for all parameters, a model eight times as wide needs at most a quarter of the rate; with µP "
    "and with Muon the best rate stays within a factor of two.",
    arms={
        f"{rule}, width {width}": {"rule": rule, "width": width}
        for rule in ("standard", "µP", "Muon")
        for width in WIDTHS
    },
    rates=RATES,
    better="min loss",
    holds=_holds,
    sources=lambda: inspect.getsource(mup_groups),
)
def rate_and_width(seed: int, rate: float, rule: str, width: int) -> dict[str, float]:
    """Train two layers of this width on Shakespeare's characters, and measure the loss on others."""
    ids, vocab_size = text()
    torch.manual_seed(seed)
    model = WideGPT(width, vocab_size)
    optimizers = optimizers_of(model, vocab_size, rule, rate)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    peaks, generator = [group["lr"] for group in groups], torch.Generator().manual_seed(seed)
    for step in range(STEPS):
        share = min(1, (step + 1) / (0.1 * STEPS), (STEPS - step) / (0.5 * STEPS))
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * share
        start = torch.randint(len(ids) * 9 // 10 - LENGTH, (ROWS, 1), generator=generator)
        loss = loss_of(model, ids[start + torch.arange(LENGTH + 1)])
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    held_out = ids[len(ids) * 95 // 100 :].unfold(0, LENGTH + 1, LENGTH)[:256]
    with torch.no_grad():
        return {"loss": loss_of(model, held_out).item()}
