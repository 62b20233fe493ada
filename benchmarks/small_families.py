"""Three tasks in one form, a source and a target, and the families as small models of them; for `variants.py`."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from course_lib.config import TransformerConfig
from course_lib.decoder import shift_right
from course_lib.transformer import Transformer
from course_lib.variants import BERT, GPT, T5, Llama
from coursework.corpora import number_pairs, number_words, reference_text

PAD, START, END, MASK = 0, 1, 2, 3
LETTERS = [chr(code) for code in range(32, 127)] + list("äöüßéèêëîïôûùñáíóúçåøæãõâàìò\n")
ID = {letter: number + 4 for number, letter in enumerate(LETTERS)}
V = len(LETTERS) + 4
LANGUAGES = ("en", "de", "fr", "es", "it", "nl", "sv", "da")
WIDTH, HEADS, PARAMETERS, BATCH = 64, 4, 110_000, 32
Batch = tuple[Tensor, Tensor]  # source (B, S), target (B, T), ends with END, then PAD


def encode(text: str, length: int, end: bool = False) -> list[int]:
    """Letters to ids, padded or cut to the length."""
    ids = [ID.get(letter, ID["?"]) for letter in text] + ([END] if end else [])
    return (ids + [PAD] * length)[:length]


class Classify:
    """Which of eight languages is this number written in? One token to answer."""

    S, T, measure = 40, 1, "accuracy"

    def __init__(self, seed: int) -> None:
        self.data = {}
        for split, n in (("train", 600), ("test", 40)):
            rows = [
                (pair.source, number)
                for number, language in enumerate(LANGUAGES)
                for pair in number_pairs(n, split, source=language, target="en", largest=99_999, seed=seed)
            ]
            source = torch.tensor([encode(text, self.S) for text, _ in rows])
            self.data[split] = source, torch.tensor([[ID[str(number)]] for _, number in rows])

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Examples to train on."""
        return draw(self.data["train"], size, generator)

    def test(self) -> Batch:
        """Held-out numbers."""
        return self.data["test"]


class Translate(Classify):
    """German number words to digits: units stand before tens in one and after them in the other."""

    S, T, measure = 28, 4, "exact match"

    def __init__(self, seed: int) -> None:
        self.data = {}
        for split, n in (("train", 720), ("test", 80)):
            digits = {number_words(value, "de"): value for value in range(1000)}
            words = [pair.source for pair in number_pairs(n, split, source="de", target="en", largest=999, seed=seed)]
            values = [digits[word] for word in words]
            source = torch.tensor([encode(word, self.S) for word in words])
            self.data[split] = source, torch.tensor([encode(str(value), self.T, end=True) for value in values])


class Continue(Classify):
    """24 letters of English technical prose given, the next 24 to be predicted: nats a letter, lower is better."""

    S, T, measure = 24, 24, "nats a letter"

    def __init__(self, seed: int) -> None:
        ids = torch.tensor(encode(reference_text()[:400_000], 400_000))
        self.text, self.held_out = ids[:360_000], ids[360_000:]

    def batch(self, size: int, generator: torch.Generator) -> Batch:
        """Windows from anywhere in the training part."""
        starts = torch.randint(len(self.text) - 48, (size,), generator=generator)
        windows = self.text[starts[:, None] + torch.arange(48)]
        return windows[:, :24], windows[:, 24:]

    def test(self) -> Batch:
        """Windows of the held-out part, side by side."""
        windows = self.held_out[: 400 * 48].view(-1, 48)
        return windows[:, :24], windows[:, 24:]


TASKS = {"classify": Classify, "translate": Translate, "continue": Continue}


def draw(data: Batch, size: int, generator: torch.Generator) -> Batch:
    """Some examples, with repetition."""
    rows = torch.randint(len(data[0]), (size,), generator=generator)
    return data[0][rows], data[1][rows]


class Encoder(nn.Module):
    """Encoder alone: the source and a mask for each target place; all targets are predicted at once."""

    def __init__(self, d_ff: int) -> None:
        super().__init__()
        sizes = {"d_model": WIDTH, "n_heads": HEADS, "d_ff": d_ff, "vocab_size": V, "max_length": 80}
        config = BERT.configure(**sizes, n_encoder_layers=2, pad_id=None, dropout=0.0)
        self.model = BERT(config, head="masked_lm")

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the targets, (B, T, V)."""
        masks = torch.full_like(target, MASK)
        return self.model(torch.cat([source, masks], dim=1))[:, source.size(1) :]

    def generate(self, source: Tensor, T: int) -> Tensor:
        """The likeliest token of each place by itself."""
        return self(source, source.new_zeros(len(source), T)).argmax(-1)


class Decoder(nn.Module):
    """Decoder alone: the source, a start token, the target; each target from all before it."""

    def __init__(self, family: type[GPT] | type[Llama], d_ff: int) -> None:
        super().__init__()
        sizes = {"d_model": WIDTH, "n_heads": HEADS, "d_ff": d_ff, "vocab_size": V, "max_length": 80}
        self.model = family(family.configure(**sizes, n_decoder_layers=2, dropout=0.0, tie_embeddings=True))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the targets under teacher forcing, (B, T, V)."""
        tokens = torch.cat([source, shift_right(target, START)], dim=1)
        return self.model(tokens, last=target.size(1))

    def generate(self, source: Tensor, T: int) -> Tensor:
        """Greedy."""
        tokens = torch.cat([source, source.new_full((len(source), 1), START)], dim=1)
        for _ in range(T):
            tokens = torch.cat([tokens, self.model(tokens, last=1).argmax(-1)], dim=1)
        return tokens[:, -T:]


class Both(nn.Module):
    """Encoder and decoder, one layer each."""

    def __init__(self, name: str, d_ff: int) -> None:
        super().__init__()
        sizes = {"d_model": WIDTH, "n_heads": HEADS, "d_ff": d_ff, "vocab_size": V, "dropout": 0.0}
        layers = {"n_encoder_layers": 1, "n_decoder_layers": 1}
        if name == "T5":
            self.model: Transformer = T5(T5.configure(**sizes, **layers, d_head=WIDTH // HEADS, pad_id=None))
        else:
            self.model = Transformer(TransformerConfig(**sizes, **layers, share_vocabulary=True))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the targets under teacher forcing, (B, T, V)."""
        return self.model(source, shift_right(target, START))

    def generate(self, source: Tensor, T: int) -> Tensor:
        """Greedy."""
        context, tokens = self.model.encode(source), source.new_full((len(source), 1), START)
        for _ in range(T):
            tokens = torch.cat([tokens, self.model.decode(tokens, context, last=1).argmax(-1)], dim=1)
        return tokens[:, 1:]


FAMILIES: dict[str, Callable[[int], nn.Module]] = {
    "Transformer": partial(Both, "Transformer"),
    "BERT": Encoder,
    "GPT-2": partial(Decoder, GPT),
    "T5": partial(Both, "T5"),
    "Llama": partial(Decoder, Llama),
}
KIND = {"Transformer": "both", "BERT": "encoder", "GPT-2": "decoder", "T5": "both", "Llama": "decoder"}


def count(model: nn.Module) -> int:
    """Parameters, shared ones once."""
    return sum(p.numel() for p in model.parameters())


def equal_width(make: Callable[[int], nn.Module]) -> int:
    """The inner width that brings the model closest to PARAMETERS."""
    with torch.device("meta"):
        low, high = count(make(8)), count(make(16))
    return max(8, 8 + round((PARAMETERS - low) * 8 / (high - low)))
