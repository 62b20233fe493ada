"""What the lab on padding says about classifiers that forget their mask, or never had one."""

import torch
import torch.nn.functional as F
from num2words import num2words
from torch import Tensor, nn

from course_lib.encoder import TransformerEncoder
from course_lib.masks import padding_mask
from course_lib.transformer import Embedding, TransformerConfig
from experiments import experiment

LANGUAGES = ["da", "de", "en", "es", "fi", "fr", "it", "no", "pl", "pt"]
CLS, UNKNOWN, FIRST = 1, 3, 4  # 0 is padding, 2 is [MASK], which never occurs


class Classifier(nn.Module):
    """Token ids -> scores of ten languages, read at the first token."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        config = TransformerConfig(
            d_model=48, n_heads=4, n_encoder_layers=2, vocab_size=vocab_size, max_length=128, positions="learned",
            norm_place="pre", activation="gelu", dropout=0.0,
        )  # fmt: skip
        self.embedding = Embedding(config, vocab_size)
        self.encoder = TransformerEncoder(config)
        self.answer = nn.Linear(48, 10)

    def forward(self, tokens: Tensor, *, masked: bool) -> Tensor:
        mask = padding_mask(tokens, 0) if masked else None
        return self.answer(self.encoder(self.embedding(tokens), mask=mask)[:, 0])


def languages() -> tuple[Tensor, Tensor, int]:
    """Token ids of 300 numbers to learn from and of 60 others, in ten languages; the size of the vocabulary."""
    numbers = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))[:360].tolist()
    texts = [num2words(number, lang=language) for number in numbers for language in LANGUAGES]
    ids = {character: FIRST + n for n, character in enumerate(sorted(set("".join(texts[:3000]))))}
    rows = [torch.tensor([CLS] + [ids.get(character, UNKNOWN) for character in text]) for text in texts]
    learn, held_out = (nn.utils.rnn.pad_sequence(part, batch_first=True) for part in (rows[:3000], rows[3000:]))
    return learn, held_out, FIRST + len(ids)


@experiment(
    claim="A model that had a padding mask in training and loses it changes answers with the padding; with the mask it "
    "changes none, and one that never had a mask changes few.",
    arms={
        "mask in training and in use": {"trained": True, "used": True},
        "mask in training only": {"trained": True, "used": False},
        "never a mask": {"trained": False, "used": False},
    },
    rates=(3e-3,),
    better="max accuracy, texts alone",
    holds=lambda record: (
        record.range("mask in training and in use", "answers changed by 32 pads")[1] < 0.001
        and record.range("mask in training only", "answers changed by 32 pads")[0] > 0.03
        and record.range("never a mask", "answers changed by 32 pads")[1] < 0.03
        and record.range("never a mask", "answers changed by 32 pads")[0] > 0.0
    ),
)
def forgotten_mask(seed: int, rate: float, *, trained: bool, used: bool) -> dict[str, float]:
    """Two layers, 200 updates, texts of about the same length in a batch; then pads behind texts that need none."""
    learn, held_out, vocab_size = languages()
    torch.manual_seed(seed)
    model, lengths = Classifier(vocab_size), (learn != 0).sum(dim=1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=200)
    labels, generator = torch.arange(10).repeat(300), torch.Generator().manual_seed(seed)
    for _ in range(200):
        pool = torch.randint(len(learn), (192,), generator=generator)
        pool = pool[lengths[pool].argsort()]
        start = 48 * int(torch.randint(4, (1,), generator=generator))
        rows = pool[start : start + 48]
        scores = model(learn[rows, : lengths[rows].max()], masked=trained)
        loss = F.cross_entropy(scores, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    sizes, right, changed = (held_out != 0).sum(dim=1), [], {4: [], 16: [], 32: []}
    answers = torch.arange(10).repeat(60)
    with torch.no_grad():
        for length in range(20, 51):
            alone = held_out[sizes == length, :length]
            own = model(alone, masked=used).argmax(-1)
            right.append(own == answers[sizes == length])
            for extra, found in changed.items():
                found.append(model(F.pad(alone, (0, extra)), masked=used).argmax(-1) != own)
    shares = {f"answers changed by {extra} pads": torch.cat(found) for extra, found in changed.items()}
    return {
        name: found.float().mean().item()
        for name, found in {"accuracy, texts alone": torch.cat(right), **shares}.items()
    }
