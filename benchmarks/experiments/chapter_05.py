"""What chapter 5 says about texts longer than those trained on, and about the size of embeddings."""

import functools
import re

import torch
import torch.nn.functional as F

from course_lib.decoder import shift_right
from course_lib.generation import generate
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from coursework.corpora import copy_task, reference_text
from coursework.records import Claim
from experiments import experiment

LENGTH = 128  # characters that the GPT is trained on


def text() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """The chapter's text as ids: the first nine tenths, the last one, and the alphabet."""
    whole = reference_text(each_once=True)[:300_000]
    alphabet = sorted(set(whole))
    ids = torch.tensor([alphabet.index(character) for character in whole])
    return ids[:270_000], ids[270_000:], alphabet


def windows(data: torch.Tensor, B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random pieces of text, and what follows each of their characters: (B, T) each."""
    start = torch.randint(len(data) - LENGTH - 1, (B, 1), generator=generator)
    piece = data[start + torch.arange(LENGTH + 1)]
    return piece[:, :-1], piece[:, 1:]


@functools.cache  # one GPT writes in both ways
def trained_gpt(seed: int, peak: float, steps: int = 600) -> LanguageModel:
    """The chapter's GPT."""
    training, _, alphabet = text()
    torch.manual_seed(seed)
    model = LanguageModel(
        TransformerConfig(
            vocab_size=len(alphabet), d_model=64, n_heads=4, n_decoder_layers=2, n_encoder_layers=0, positions="rotary",
            norm_place="pre", activation="gelu", scale_embeddings=False, dropout=0.0, init="normal", init_std=0.05,
            scale_residual_init=True,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps + 1):
        optimizer.param_groups[0]["lr"] = peak * min(1, (step + 1) / 20) * (1 - step / (steps + 1))
        inputs, targets = windows(training, 6, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def cropped(model: LanguageModel, tokens: torch.Tensor, n: int, generator: torch.Generator) -> torch.Tensor:
    """Write n tokens at temperature 0.5, from the newest 128 characters only, which are numbered from 0 each time."""
    for _ in range(n):
        chances = (model(tokens[:, -LENGTH:])[:, -1] / 0.5).softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)], dim=1)
    return tokens


def known_words(tokens: torch.Tensor, low: int, high: int, known: set[str], alphabet: list[str]) -> float:
    """Share of the whole words at these distances from the prompt of 16 that occur in the training text."""
    rows = ["".join(alphabet[i] for i in row[16 + low : 16 + high].tolist()) for row in tokens]
    words = [word for row in rows for word in re.findall(r"(?<=[^A-Za-z])[A-Za-z]{4,}(?=[^A-Za-z])", row)]
    return sum(word in known for word in words) / max(len(words), 1)


def crop_repairs(record: Claim) -> bool:
    """In every seed: a fall beyond the trained length without the crop, and none with it."""
    beyond, inside = "known words, 112 to 240", "known words, 56 to 112"
    whole, crop = ("all characters in sight", "the newest 128 in sight")
    falls = [a - b for a, b in zip(record.values(whole, inside), record.values(whole, beyond), strict=True)]
    kept = [a - b for a, b in zip(record.values(crop, inside), record.values(crop, beyond), strict=True)]
    return min(falls) > 0.12 and max(kept) < 0.12


@experiment(
    claim="Beyond the trained length words fall apart because of the positions: with the newest 128 in sight, not.",
    arms={"all characters in sight": {"crop": False}, "the newest 128 in sight": {"crop": True}},
    rates=(6e-3,),
    better="max known words, 112 to 240",
    holds=crop_repairs,
)
def long_texts(seed: int, rate: float, *, crop: bool) -> dict[str, float]:
    """Train the GPT, write 240 characters after 24 prompts, and count known words by distance."""
    training, held_out, alphabet = text()
    model = trained_gpt(seed, rate)
    known = set(re.findall(r"[A-Za-z]{4,}", "".join(alphabet[i] for i in training.tolist())))
    prompts = windows(held_out, 24, torch.Generator().manual_seed(5))[0][:, :16]
    generator = torch.Generator().manual_seed(seed)
    if crop:
        tokens = cropped(model, prompts, 240, generator)
    else:
        tokens = generate(model, prompts, max_new_tokens=240, temperature=0.5, generator=generator)
    reaches = ((0, 56), (56, 112), (112, 240))
    return {f"known words, {low} to {high}": known_words(tokens, low, high, known, alphabet) for low, high in reaches}


@experiment(
    claim="On seven letters the size of the embeddings beside the positions makes no difference in the end.",
    arms={
        "as the library draws them": {},
        "Xavier tables times √D": {"xavier": True},
        "Xavier tables": {"xavier": True, "scale": False},
    },
    rates=(5e-3,),
    better="max right letters",
    holds=lambda record: (
        all(record.range(arm, "right letters")[0] > 0.99 for arm in record.arms)
        and max(record.range(arm, "right letters, half way")[0] for arm in record.arms)
        < min(record.range(arm, "right letters, half way")[1] for arm in record.arms)
    ),
)
def sizes_of_embeddings(seed: int, rate: float, xavier: bool = False, scale: bool = True) -> dict[str, float]:
    """Train the chapter's translator of seven letters for 150 and 300 steps; right letters under teacher forcing."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 13, "d_model": 32, "n_heads": 2, "d_ff": 64, "n_encoder_layers": 2, "n_decoder_layers": 2}
    model = Transformer(TransformerConfig(**sizes, norm_place="pre", dropout=0.0, scale_embeddings=scale))
    if xavier:
        for name, parameter in model.named_parameters():
            if "embedding" in name:
                torch.nn.init.xavier_uniform_(parameter)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98))

    def batch(B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        source, target = copy_task(B, 7, 13, reverse=True, first_id=3, generator=generator)
        ends = [torch.full((B, 1), id) for id in (1, 2)]
        return source, torch.cat([ends[0], target], dim=1), torch.cat([target, ends[1]], dim=1)

    steps, right = 300, {}
    source, read, wanted = batch(500, torch.Generator().manual_seed(99))
    for step in range(steps + 1):
        if step in (150, 300):
            with torch.no_grad():
                right[step] = (model(source, read).argmax(-1) == wanted).float().mean().item()
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 30) * (1 - step / (steps + 1))
        sources, reads, answers = batch(32, generator)
        loss = F.cross_entropy(model(sources, reads).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"right letters": right[300], "right letters, half way": right[150]}


def reversed_words(B: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Four to eight letters (B, 8), 0 where none, and the same backwards with a stop sign (B, 9)."""
    n = torch.randint(4, 9, (B, 1), generator=generator)
    letters, t = torch.randint(3, 13, (B, 8), generator=generator), torch.arange(9)
    back = letters.gather(1, (n - 1 - t).clamp(min=0))
    target = torch.where(t < n, back, torch.where(t == n, 2, 0))
    return torch.where(t[:8] < n, letters, 0), target


def own_letters_hurt(record: Claim) -> bool:
    """Half trained, its own letters cost every model much at the seventh of eight; trained, nothing."""
    half, trained = (record.range(arm, "lost at letter 7") for arm in record.arms)
    at_first = [record.range(arm, "lost at letter 1") for arm in record.arms]
    return half[0] > 0.1 and max(map(abs, trained)) < 0.01 and all(low == high == 0 for low, high in at_first)


@experiment(
    claim="A half-trained model writes worse after letters of its own than after right ones; a trained one does not.",
    arms={"100 steps": {"steps": 100}, "300 steps": {"steps": 300}},
    rates=(5e-3,),
    better="max whole words right",
    holds=own_letters_hurt,
)
def own_letters(seed: int, rate: float, *, steps: int) -> dict[str, float]:
    """Write 4 to 8 letters backwards; share right of words of 8, letter by letter, after right and own letters."""
    torch.manual_seed(seed)
    model = Transformer(
        TransformerConfig(
            vocab_size=13, d_model=32, n_heads=2, n_encoder_layers=2, n_decoder_layers=2, norm_place="pre", dropout=0.0,
            positions="learned", max_length=9, activation="gelu", pad_id=0, scale_embeddings=False,
            tie_embeddings=False, head_bias=True,
        )
    )  # fmt: skip
    for table in (model.embedding, model.source_embedding):  # as torch draws them, and as the chapter's model has them
        for parameter in table.parameters():
            torch.nn.init.normal_(parameter)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.98))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 30) * (1 - step / steps)
        source, target = reversed_words(32, generator)
        logits = model(source, shift_right(target, 1))
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    source, target = reversed_words(1000, torch.Generator().manual_seed(99))
    with torch.no_grad():
        forced = model(source, shift_right(target, 1)).argmax(-1) == target
    start = torch.ones(1000, 1, dtype=torch.int64)
    written = generate(model, start, source=source, max_new_tokens=9, temperature=0)[:, 1:]
    free = written == target
    long = target[:, 7] > 2  # all eight letters
    lost = (forced[long].float() - free[long].float()).mean(0)
    right = {
        f"{name}, letter 7": part[long, 6].float().mean().item()
        for name, part in (("after right letters", forced), ("after its own", free))
    }
    return {
        **{f"lost at letter {i}": lost[i - 1].item() for i in (1, 2, 7)},
        **right,
        "whole words right": (free | (target == 0)).all(1).float().mean().item(),
    }
