"""`course generate`, `translate`, `classify` and `evaluate`: use a model that lies in a folder, and measure it."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib import data, generation, training
from course_lib.reading import read_text
from coursework.commands.tasks import TASKS
from coursework.commands.train import Device, plainly, say_figures
from coursework.corpora import own

__all__ = ["classify", "evaluate", "generate", "translate"]

Model = Annotated[str, typer.Argument(help="The folder of the model, or hf:NAME for one on the hub.", metavar="MODEL")]
Tokens = Annotated[int, typer.Option("--max-new-tokens", help="At most so many.", min=1)]
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

_WORTH_COMPILING = 10_000  # tokens; a token saves half a millisecond, and a second start takes some seconds


@plainly()
def generate(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="What to continue; otherwise read from the standard input.")] = "",
    max_new_tokens: Tokens = 200,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.", min=0.0)] = 0.8,
    top_k: Annotated[int | None, typer.Option(help="Only among the k most likely.", show_default=False)] = None,
    top_p: Annotated[float | None, typer.Option(help="Only among those of this mass.", show_default=False)] = None,
    seed: Annotated[int | None, typer.Option(help="For the same text again.", show_default=False)] = None,
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

    name = model_name(model)
    network, tokenizer = engines.open_model(name, device, int8=int8, bf16=bf16, rows=1)
    where = next(network.parameters()).device
    prompt = prompt or sys.stdin.read().rstrip("\n")
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


@plainly()
def translate(
    model: Model,
    texts: Annotated[list[str] | None, typer.Argument(help="Otherwise lines of the standard input.")] = None,
    beams: Annotated[int, typer.Option(help="More than 1: beam search.", min=1)] = 1,
    max_new_tokens: Tokens = 100,
    int8: Int8 = False,
    bf16: Bf16 = False,
    device: Device = None,
) -> None:
    """Translate texts with a trained encoder-decoder, a line for each.

    Example: course translate runs/translate "dreiundzwanzig" "3. Mai 1987"
    """
    from course_lib.transformer import Transformer
    from coursework.commands.engines import open_model
    from coursework.commands.measures import translate_texts

    network, tokenizer = open_model(model_name(model), device, int8=int8, bf16=bf16, rows=16)
    if not isinstance(network, Transformer):
        raise ValueError(f"{model}: expected an encoder-decoder, got a {type(network).__name__}")
    lines = texts or [line.rstrip("\n") for line in sys.stdin]
    for line in translate_texts(network, tokenizer, lines, beams=beams, max_new_tokens=max_new_tokens):
        typer.echo(line)


@plainly()
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
    if texts and len(texts) == 1 and Path(texts[0]).is_file():
        path = Path(texts[0])
        if path.suffix in own.KINDS:
            found = own.read_rows(path, ("text",), columns and columns.split(","))
            lines = [text for (text,) in found.rows]
            for problem in found.bad:
                typer.echo(f"course: left out, {problem}", err=True)
        else:
            lines = list(filter(None, map(str.strip, read_text(path).split("\n"))))
    elif texts and len(texts) == 1 and Path(texts[0]).suffix in own.KINDS and " " not in texts[0]:
        raise FileNotFoundError(f"FILE: there is no file {texts[0]}")
    else:
        lines = texts or list(filter(None, map(str.strip, sys.stdin)))
    shares = label_shares(network, tokenizer, lines).max(dim=-1) if lines else ()
    for line, share, label in zip(lines, *(part.tolist() for part in shares), strict=True):
        typer.echo(f"{labels[label]}\t{share:.3f}\t{line}")


@plainly()
def evaluate(
    model: Annotated[str, typer.Argument(help="A folder that `course train` has written.", metavar="MODEL")],
    name: Annotated[
        str | None,
        typer.Argument(help="As --data of its training; else the part that was held out then.", metavar="DATA"),
    ] = None,
    data_: Annotated[
        str | None, typer.Option("--data", help="DATA, as in training.", show_default=False)
    ] = None,
    columns: Annotated[str | None, typer.Option(help="The columns of a file.", show_default=False)] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read.")] = False,
    device: Device = None,
) -> None:
    """Measure a trained model, as its training did at the end.

    A language model: loss, perplexity and bits per byte, which compare models of other tokens. A classifier: accuracy.
    A translator: exact matches and BLEU. Of the data it was trained on only the held-out part counts; of others, all.

    Examples: course evaluate runs/mine · course evaluate runs/mine newer.csv
    """
    import torch

    from course_lib.variants import from_pretrained
    from coursework.commands.start import trained_recipe

    if None not in (name, data_):
        raise ValueError(f"--data: expected DATA once, got {name} and {data_}")
    name, was = name or data_, trained_recipe(model)
    kind = next(task for task in TASKS if task.name == was["task"])
    told: dict[str, object] = {"name": name, "columns": columns and columns.split(","), "skip_bad": skip_bad or None}
    given = {key: value for key, value in told.items() if value is not None}
    tables = {table: was[table] for table in ("data", "tokenizer", "batches", "model", "training", "result")}
    if name not in (None, was["data"]["name"]):  # how much of the old data was taken does not matter
        tables["data"] = {key: value for key, value in was["data"].items() if key not in own.SPLITS}
    task = kind(tables, {"data": given}, plain=True)
    task.known, task.tokenizer = was["labels"] or None, data.load_tokenizer(model)
    task.judging = name is not None
    task.read()
    task.load(task.tokenizer)
    same = name is None or task.fingerprints()["train"] == was["fingerprints"]["train"]
    if name is None and not same:
        raise ValueError(f"{task.recipe['data']['name']}: not the data any more that {model} was trained on")
    what = task.take(whole=task.whole and not same)
    for remark in (*task.parts, *task.remarks, f"Measured on {what}."):
        typer.echo(remark)
    network = from_pretrained(model).eval().to(training.chosen_device(device))
    with torch.no_grad():
        say_figures(task.measure(network))


def model_name(model: str) -> str:
    """Return the folder, or the name on the hub, that MODEL means. Raises FileNotFoundError for no such folder."""
    if not model.startswith("hf:") and not Path(model).exists():
        raise FileNotFoundError(f"MODEL: there is no folder {model}; a model on the hub is written hf:{model}")
    return model.removeprefix("hf:")
