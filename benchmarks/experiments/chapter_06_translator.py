"""What chapter 6 says about its translator of number words: exact answers, and where it looks."""

import torch

from course_lib.attention import record_weights
from course_lib.data import FastBPETokenizer, TokenBatches, encode_pairs
from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.transformer import Transformer, TransformerConfig
from coursework.commands.measures import nearest_targets, translate_texts
from coursework.corpora import load_pairs, number_parts, number_words
from coursework.records import Claim
from experiments import experiment

SHAPE = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2, "norm_place": "pre"}
SHAPE |= {"positions": "rotary", "vocab_size": 360, "share_vocabulary": True, "pad_id": 0, "dropout": 0.0}
CROSSING = [n for n in range(120, 1000, 7) if n % 10 and n % 100 > 20 and "5" not in str(n)]  # "fünf" is two bytes more

FALL = ("300 steps", "300 steps, no fall")  # the arms with AdamW: the rate falls, the rate stays


def spans(words: list[str], text: str) -> list[tuple[int, int]]:
    """Where each word stands in a text."""
    found, at = [], 0
    for word in words:
        at = text.index(word, at)
        found.append((at, at + len(word)))
        at += len(word)
    return found


def touching(pieces: list[str], span: tuple[int, int]) -> list[int]:
    """The numbers of the pieces of a text that share a character with a span of it."""
    found, at = [], 0
    for number, piece in enumerate(pieces):
        if at < span[1] and span[0] < at + len(piece):
            found.append(number)
        at += len(piece)
    return found


@torch.no_grad()
def looks(model: Transformer, tokenizer: FastBPETokenizer, numbers: list[int]) -> dict[str, float]:
    """How much of the look lies on the German units and tens while the English tens and units are written."""
    sums = {f"{row} on {column}": 0.0 for row in ("tens", "units") for column in ("tens", "units")}
    for n in numbers:
        german, english = number_words(n, "de"), number_words(n, "en")
        source, target = tokenizer.encode(german, eos=True), tokenizer.encode(english, bos=True, eos=True)
        with record_weights(model.eval()) as maps:
            model(torch.tensor([source]), torch.tensor([target])[:, :-1])
        across = [weights for name, weights in maps.items() if name.endswith("cross_attention")]  # (B, H, T, S)
        look = torch.stack([weights[0].mean(0) for weights in across]).mean(0)  # (T, S)
        of_german, of_english = spans(number_parts(n, "de"), german), spans(number_parts(n, "en"), english)
        columns = {"units": of_german[-3], "tens": of_german[-1]}  # sieben und achtzig
        rows = {"tens": of_english[-2], "units": of_english[-1]}  # eighty seven
        for row, place in rows.items():
            first = touching(tokenizer.pieces(target[1:-1]), place)[0]
            for column, span in columns.items():
                seen = touching(tokenizer.pieces(source[:-1]), span)
                sums[f"{row} on {column}"] += look[first, seen].sum().item() / len(numbers)
    return sums


def crosses_and_is_exact(record: Claim) -> bool:
    """With every seed nearly all held-out numbers are right, the look crosses, and a falling rate leaves more right."""

    def each(measure: str) -> list[float]:
        return record.values("Muon", measure)

    return (
        min(each("exact")) > 0.97
        and max(each("nearest")) < 0.01
        and min(a - b for a, b in zip(each("tens on tens"), each("units on tens"), strict=True)) > 0.1
        and min(a - b for a, b in zip(each("units on units"), each("tens on units"), strict=True)) > 0.1
        and all(falls > stays for falls, stays in zip(*(record.values(arm, "exact") for arm in FALL), strict=True))
    )


@experiment(
    claim="After 500 updates nearly all held-out numbers are translated exactly, and the look of the decoder crosses. "
    "After 300 with AdamW, more are exact if the rate falls than if it stays at its peak.",
    arms={
        "Muon": {"optimizer": "muon"},
        "300 steps": {"optimizer": "adamw", "steps": 300},
        "300 steps, no fall": {"optimizer": "adamw", "steps": 300, "schedule": "constant"},
    },
    better="max exact",
    holds=crosses_and_is_exact,
)
def translator_of_numbers(
    seed: int, rate: float | None, *, optimizer: str, steps: int = 500, schedule: str = "cosine"
) -> dict[str, float]:
    """The chapter's translator: two layers on each side, 64 wide, 20,000 numbers below a million."""
    train, test = load_pairs("numbers", "train", 20_000), load_pairs("numbers", "test", 1000)
    tokenizer = FastBPETokenizer.train([text for pair in train[:4000] for text in pair], 360)
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(**SHAPE))
    batches = TokenBatches(encode_pairs(train, tokenizer), max_tokens=1000, seed=seed)
    settings = {"learning_rate": 5e-3, "warmup": steps // 10, "optimizer": optimizer, "schedule": schedule}
    config = TrainingConfig(steps=steps, log_every=steps, **settings)  # type: ignore[arg-type]
    run = Run(model, tasks.Translation(pad_id=0, smoothing=0.0), batches, config, shown=Silent()).train()
    if run.interrupted:
        raise KeyboardInterrupt
    answers = [pair.target for pair in test]
    found = translate_texts(model, tokenizer, [pair.source for pair in test])
    near = nearest_targets(train, [pair.source for pair in test])
    exact = {
        name: sum(a == b for a, b in zip(said, answers, strict=True)) / len(answers)
        for name, said in (("exact", found), ("nearest", near))
    }
    return exact | looks(model, tokenizer, CROSSING)
