"""`course generate`, `translate`, `classify` and `evaluate`: use a model that lies in a folder, and measure it."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib import data, generation, training
from course_lib.checks import MOST, NotNegative, Within
from course_lib.reading import decoded, one_line, read_text
from coursework.commands.recipes import Beams, NewTokens
from coursework.commands.tasks import TASKS
from coursework.commands.train import Device, say_figures
from coursework.corpora import own

__all__ = ["classify", "evaluate", "generate", "translate"]

Model = Annotated[str, typer.Argument(help="The folder of the model, or hf:NAME for one on the hub.", metavar="MODEL")]
Tokens = Annotated[NewTokens, typer.Option("--max-new-tokens", help="At most so many.")]
Int8 = Annotated[bool, typer.Option("--int8", help="Round the weights to 8 bits: faster and nearly the same.")]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="Compile the step [for 10,000 tokens and more].", show_default=False),
]
Engine = Annotated[
    str | None,
    typer.Option(help="ctranslate2, llama.cpp or course_lib [the fastest that is installed].", show_default=False),
]
Bf16 = Annotated[bool, typer.Option("--bf16", help="Compute in bfloat16: faster and less exact.")]

_LONGEST = 100_000  # characters of a text: attention takes the square of its length
_COLD = 1e-6  # below it scores over the temperature overflow, and the most likely token is all that is left
_WORTH_COMPILING = 10_000  # tokens; a token saves half a millisecond, and a second start takes some seconds


def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="What to continue; otherwise read from the standard input.")] = "",
    max_new_tokens: Tokens = 200,
    temperature: Annotated[NotNegative, typer.Option(help="0 takes the most likely token.")] = 0.8,
    top_k: Annotated[
        int | None, Within(1, MOST), typer.Option(help="Only among the k most likely.", show_default=False)
    ] = None,
    top_p: Annotated[
        float | None, Within(above=0, most=1), typer.Option(help="Only among those of this mass.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, Within(0, 2**32 - 1), typer.Option(help="For the same text again.", show_default=False)
    ] = None,
    int8: Int8 = False,
    bf16: Bf16 = False,
    compile: Compile = None,
    engine: Engine = None,
    device: Device = None,
) -> None:
    """Continue a text with a language model, as it is written.

    On a CPU the engine that is fastest writes it, of those that `pip install 'course-lib[engines]'` brings: with
    --temperature 0 the same tokens as the code of the course, which does it where none is installed.

    Example: course generate runs/lm "ROMEO:" --temperature 0.7
    """
    import torch

    from coursework.commands import engines

    temperature = 0.0 if temperature < _COLD else temperature
    name = model_name(model)
    network, tokenizer = engines.open_model(name, device, int8=int8, bf16=bf16, rows=1)
    where = next(network.parameters()).device
    prompt = prompt or standard_input().rstrip("\n")
    _refuse_long([prompt])
    ids = tokenizer.encode(prompt) or [tokenizer.bos_id]
    plain = not (int8 or bf16 or compile)
    tokens: Any = engines.written_by(
        engine, network, name, ids, hub=name != model, plain=plain, max_new_tokens=max_new_tokens,
        stop=tokenizer.eos_id, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p,
    )  # fmt: skip
    if tokens is None:
        generator = None if seed is None else torch.Generator(where).manual_seed(seed)
        if compile is None:
            compile = max_new_tokens >= _WORTH_COMPILING
        step = generation.compile_step(network) if compile else None
        if step is not None:
            typer.echo(f"course: compiled in {step.seconds:.0f} s; the next start finds most on the disk.", err=True)
        sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        tokens = generation.stream(
            network,
            torch.tensor([ids], device=where),
            max_new_tokens=max_new_tokens,
            stop=tokenizer.eos_id,
            generator=generator,
            compile=step is not None,
            **{name: value for name, value in sampling.items() if value is not None},
        )
    typer.echo(prompt, nl=False)
    written, new = "", []
    for token in tokens:
        if isinstance(token, str):
            typer.echo(token, nl=False)
            continue
        new.append(int(token))
        text = tokenizer.decode(new)
        if not text.endswith("\ufffd"):  # a character whose last byte is still to come
            typer.echo(text[len(written) :], nl=False)
            written = text
    typer.echo()


def translate(
    model: Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Or a file: a text a line, or the column source of a .csv or .jsonl; else standard input."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="The column of the file.", show_default=False)] = None,
    beams: Annotated[Beams, typer.Option(help="More than 1: beam search.")] = 1,
    max_new_tokens: Tokens = 100,
    int8: Int8 = False,
    bf16: Bf16 = False,
    device: Device = None,
) -> None:
    """Translate texts with a trained encoder-decoder, a line for each.

    Examples: course translate runs/translate "dreiundzwanzig" "3. Mai 1987" · course translate runs/mine new.txt
    """
    from course_lib.transformer import Transformer
    from coursework.commands.engines import open_model
    from coursework.commands.measures import translate_texts

    network, tokenizer = open_model(model_name(model), device, int8=int8, bf16=bf16, rows=16)
    if not isinstance(network, Transformer):
        raise ValueError(f"{model}: expected an encoder-decoder, got a {type(network).__name__}")
    lines = _texts(texts or [], columns, "source")
    _refuse_long(lines)
    written = translate_texts(network, tokenizer, list(filter(None, lines)), beams=beams, max_new_tokens=max_new_tokens)
    for line in _beside(lines, written):
        typer.echo(line)


def classify(
    model: Model,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Or a file: a text a line, or the column text of a .csv or .jsonl; else standard input."),
    ] = None,
    columns: Annotated[str | None, typer.Option(help="The column of the file.", show_default=False)] = None,
    device: Device = None,
) -> None:
    """Name the label of texts with a trained classifier, a line for each: label, share, text.

    Examples: course classify runs/classify "dreiundzwanzig" · course classify runs/mine new.csv --columns review
    """
    from course_lib.variants import EncoderModel
    from coursework.commands.engines import open_model
    from coursework.commands.measures import label_shares
    from coursework.commands.start import trained_recipe

    network, tokenizer = open_model(model_name(model), device, int8=False, bf16=False, rows=16)
    if not isinstance(network, EncoderModel) or network.n_classes is None:
        raise ValueError(f"{model}: expected a classifier, got a {type(network).__name__}")
    labels = trained_recipe(model)["labels"]
    lines = _texts(texts or [], columns)
    _refuse_long(lines)
    full = list(filter(None, lines))
    shares = label_shares(network, tokenizer, full).max(dim=-1) if full else ()
    found = zip(full, *(part.tolist() for part in shares), strict=True)
    for line in _beside(lines, (f"{labels[number]}\t{share:.3f}\t{text}" for text, share, number in found)):
        typer.echo(line)


def evaluate(
    model: Annotated[str, typer.Argument(help="A folder that `course train` has written.", metavar="MODEL")],
    name: Annotated[
        str | None,
        typer.Argument(help="As --data of its training; else the part that was held out then.", metavar="DATA"),
    ] = None,
    data_: Annotated[str | None, typer.Option("--data", help="DATA, as in training.", show_default=False)] = None,
    columns: Annotated[str | None, typer.Option(help="The columns of a file.", show_default=False)] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read.")] = False,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Only what a training on DATA holds out, to compare with such a model.")
    ] = False,
    device: Device = None,
) -> None:
    """Measure a trained model on what its training held out, or on other data.

    A language model: loss, perplexity and bits per byte, which compare models of other tokens. A classifier: accuracy.
    A translator: exact matches and BLEU. Of the data it was trained on only the held-out part counts; of others, all.

    Examples: course evaluate runs/mine · course evaluate runs/mine newer.csv
    """
    import torch

    from course_lib.variants import from_pretrained
    from coursework.commands.start import trained_recipe

    if None not in (name, data_):
        raise ValueError(f"--data: expected DATA once, got {name} and {data_}")
    name, was = name or data_, trained_recipe(model_name(model))
    kind = next(task for task in TASKS if task.name == was["task"])
    told: dict[str, object] = {"name": name, "columns": columns and columns.split(","), "skip_bad": skip_bad or None}
    given = {key: value for key, value in told.items() if value is not None}
    tables = {table: was[table] for table in ("data", "tokenizer", "batches", "model", "training", "result")}
    if name not in (None, was["data"]["name"]):  # how much of the old data was taken does not matter
        tables["data"] = {key: value for key, value in was["data"].items() if key not in own.SPLITS}
    if columns is None and name is not None and own.lacks_header(name, tables["data"].get("columns") or ()):
        tables["data"]["columns"] = None
    task = kind(tables, {"data": given}, plain=True)
    task.known, task.tokenizer = was["labels"] or None, data.load_tokenizer(model)
    task.judging = name is not None
    task.read()
    task.load(task.tokenizer)
    same = name is None or task.fingerprints()["train"] == was["fingerprints"]["train"]
    if name is None and not same:
        raise ValueError(f"{task.recipe['data']['name']}: not the data any more that {model} was trained on")
    what = task.take(whole=task.whole and not same and not held_out)
    for remark in (*task.parts, *task.remarks, f"Measured on {what}."):
        typer.echo(remark)
    network = from_pretrained(model).eval().to(training.chosen_device(device))
    with torch.no_grad():
        say_figures(task.measure(network))


def _beside(texts: list[str], answers: Iterable[str]) -> Iterator[str]:
    """Yield a line for each text: its answer, without line breaks; an empty one for an empty text."""
    rest = iter(answers)
    for text in texts:
        yield " ".join(next(rest).splitlines()) if text else ""


def _refuse_long(texts: list[str]) -> None:
    """Refuse a text that would take hours, before the others are read."""
    for number, text in enumerate(texts, 1):
        if len(text) > _LONGEST:
            raise ValueError(f"text {number}: expected at most {_LONGEST:,} characters, got {len(text):,}")


def _texts(given: list[str], columns: str | None, wanted: str = "text") -> list[str]:
    """Return the texts that were given, or those in the one file that was, or the lines of the standard input."""
    here = [one for one in given if own.is_own(one)]
    path = Path(given[0]) if here and len(given) == 1 else None
    if path is not None and path.suffix == ".tsv" and columns is None:  # whatever stands beside the first column
        return _lines(read_text(path), "\t")
    if path is not None and path.suffix in own.KINDS:
        found = own.read_rows(path, (wanted,), columns and columns.split(","))
        for problem in found.bad:
            typer.echo(f"course: left out, {problem}", err=True)
        return [text for (text,) in found.rows]
    if columns is not None:
        raise ValueError(f"--columns: expected one file {', '.join(own.KINDS)} beside it, got {len(given)} texts")
    if path is not None and path.is_dir():
        raise ValueError(f"TEXTS: expected texts or a file, got the folder {path}")
    if path is not None:
        return _lines(read_text(path))
    if here:
        raise ValueError(f"TEXTS: expected texts, or one file alone, got {here[0]} among {len(given)}")
    if len(given) == 1 and given[0].endswith(own.KINDS) and " " not in given[0]:
        raise ValueError(f"TEXTS: there is no file {one_line(given[0])}")
    return given or _lines(standard_input())


def _lines(text: str, until: str = "\n") -> list[str]:
    """The lines of a text, each until a sign; empty ones, too, but for what follows the last line break."""
    lines = [line.partition(until)[0].strip() for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def standard_input() -> str:
    """Read all of the standard input. Raises Unreadable for what is no UTF-8."""
    return decoded(sys.stdin.buffer.read(), "standard input", "text")


def model_name(model: str) -> str:
    """Return the folder, or the name on the hub, that MODEL means. Raises ValueError for no such folder."""
    if not model.startswith("hf:") and not os.path.isdir(model):
        if own.is_own(model):
            raise ValueError(f"MODEL: expected the folder of a model, got {model}, which is no folder")
        raise ValueError(f"MODEL: there is no folder {model}; a model on the hub is written hf:{model}")
    return model.removeprefix("hf:")
