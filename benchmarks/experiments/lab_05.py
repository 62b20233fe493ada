"""What the lab on looking inside a model says about its model of names: what is carried where, and what is readable."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.multi_head import MultiHeadAttention
from coursework.records import Claim
from experiments import experiment
from experiments.chapter_02 import names

LEVELS, FIRST, FAMILY, LAST = 4, 2, 3, 10  # levels of the stream; places in a prompt


class Start(nn.Module):
    """Letters -> the vectors with which the stream begins."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(26, width), nn.Parameter(torch.randn(24, width))

    def forward(self, letters: Tensor) -> Tensor:
        return self.letter(letters) + self.place[: letters.size(1)]


class Block(nn.Module):
    """Attention and a feed-forward, each reads a normed stream and adds to it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = MultiHeadAttention(width, 2, bias=False)
        up, down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.feed_forward = nn.Sequential(up, nn.ReLU(), down)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x), causal=True)
        return x + self.feed_forward(self.norm_2(x))


class SmallGPT(nn.Module):
    """Three layers of width 64 with two heads each."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.start, self.blocks = Start(width), nn.ModuleList(Block(width) for _ in range(LEVELS - 1))
        self.norm, self.table = nn.RMSNorm(width), nn.Linear(width, 26, bias=False)

    def streams(self, letters: Tensor, source: Tensor | None = None, level: int = 0, place: int = 0) -> Tensor:
        """The stream at each level, (levels, B, T, D); with a source, one vector is exchanged for its own."""
        found: list[Tensor] = []
        for number, part in enumerate([self.start, *self.blocks]):
            x = part(letters if number == 0 else found[-1])
            if source is not None and number == level:
                x = torch.cat([x[:, :place], source[level][:, place : place + 1], x[:, place + 1 :]], dim=1)
            found.append(x)
        return torch.stack(found)

    def read(self, stream: Tensor) -> Tensor:
        return self.table(self.norm(stream))

    def forward(self, letters: Tensor) -> Tensor:
        return self.read(self.streams(letters)[-1])


def prompts(B: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Five people and the second's first name again; the same with another first name before; the family name."""
    order = torch.rand(B, 26, generator=torch.Generator().manual_seed(seed)).argsort(1)
    first, family, stranger = order[:, :5], order[:, 5:10], order[:, 10]
    clean = torch.cat([torch.stack([first, family], 2).flatten(1), first[:, 1:2]], 1)
    corrupted = clean.clone()
    corrupted[:, FIRST] = stranger
    return clean, corrupted, family[:, 1]


def lead(logits: Tensor, answer: Tensor) -> Tensor:
    """How far the answer's logit lies above the mean of all 26."""
    return logits.gather(1, answer[:, None])[:, 0] - logits.mean(1)


def probed(vectors: Tensor, labels: Tensor) -> float:
    """The share of right labels of a linear probe, fitted on the first half of the texts, on the second."""
    half = len(vectors) // 2
    x = F.pad(F.layer_norm(vectors, vectors.shape[-1:]), (0, 1), value=1.0)
    learn, test = x[:half].flatten(0, 1), x[half:].flatten(0, 1)
    wanted = F.one_hot(labels[:half].flatten(), 26).float()
    probe = torch.linalg.solve(learn.T @ learn + torch.eye(x.size(-1)), learn.T @ wanted)
    return ((test @ probe).argmax(-1) == labels[half:].flatten()).float().mean().item()


def _holds(record: Claim) -> bool:
    def share(measure: str) -> list[float]:
        lost = record.values("trained", "lead lost")
        return [back / whole for back, whole in zip(record.values("trained", measure), lost, strict=True)]

    note = "predecessor read after layer 1"
    return (
        min(share("lead back, layer 1, family name")) > 0.9
        and min(share("lead back, layer 2, last place")) > 0.6
        and max(share("lead back, layer 2, family name")) < 0.35
        and max(share("most lead back from another prompt")) < 0.1
        and record.range("trained", note)[0] > record.range("untrained", note)[1] + 0.4
        and record.range("trained", f"{note}, shuffled")[1] < 0.1
        and record.range("untrained", "vowels read after layer 1")[0] > 0.95
    )


@experiment(
    claim="What names the answer stands at the first name, then as a note at the family name, then at the last place; "
    "the note is readable in the trained model only, vowels also in an untrained one.",
    arms={"trained": {"steps": 500}, "untrained": {"steps": 0}},
    rates=(3e-3, 6e-3),
    better="max right answers",
    holds=_holds,
)
def inside_names(seed: int, rate: float, steps: int) -> dict[str, float]:
    """Train three layers on names; read, patch and probe the stream."""
    torch.manual_seed(seed)
    model, generator = SmallGPT(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 50) * (1 - 0.9 * step / steps)
        batch, _ = names(32, generator)
        loss = F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.requires_grad_(False)
    clean, corrupted, answer = prompts(200, 5)
    sources = [model.streams(clean), model.streams(prompts(200, 6)[0])]
    below = lead(model(corrupted)[:, -1], answer).mean()

    def back(source: Tensor, level: int, place: int) -> float:
        changed = model.streams(corrupted, source, level, place)
        return (lead(model.read(changed[-1])[:, -1], answer).mean() - below).item()

    cells = [(level, place) for level in range(LEVELS) for place in range(LAST + 1)]
    own = {cell: back(sources[0], *cell) for cell in cells}
    path = {(0, FIRST), (1, FAMILY), (2, FAMILY), (2, LAST), (3, LAST)}
    seen = model.read(sources[0][:, :, -1])  # (levels, B, 26)
    texts, _ = names(600, torch.Generator().manual_seed(7))
    stream = model.streams(texts)
    before, after_1, after_2 = texts[:, :-1], stream[1][:, 1:], stream[2][:, 1:]
    mixed = before.flatten()[torch.randperm(before.numel(), generator=torch.Generator().manual_seed(1))].view_as(before)
    vowel = torch.isin(texts, torch.tensor([0, 4, 8, 14, 20])).long()
    coin = (torch.rand(26, generator=torch.Generator().manual_seed(2)).argsort() < 5).long()[texts]
    return {
        "right answers": (model(clean)[:, -1].argmax(-1) == answer).float().mean().item(),
        "right answers, corrupted": (model(corrupted)[:, -1].argmax(-1) == answer).float().mean().item(),
        "lead lost": (lead(model(clean)[:, -1], answer).mean() - below).item(),
        "lead back, layer 1, family name": own[1, FAMILY],
        "lead back, layer 2, family name": own[2, FAMILY],
        "lead back, layer 2, last place": own[2, LAST],
        "most lead back elsewhere": max(value for cell, value in own.items() if cell not in path),
        "most lead back from another prompt": max(back(sources[1], *cell) for cell in cells),
        **{
            f"lens names the answer after layer {level}": (seen[level].argmax(-1) == answer).float().mean().item()
            for level in (1, 2, 3)
        },
        "predecessor read before layer 1": probed(stream[0][:, 1:], before),
        "predecessor read after layer 1": probed(after_1, before),
        "predecessor read after layer 1, shuffled": probed(after_1, mixed),
        "predecessor read after layer 2": probed(after_2, before),
        "vowels read after layer 1": probed(stream[1], vowel),
        "five letters of a draw read after layer 1": probed(stream[1], coin),
    }
