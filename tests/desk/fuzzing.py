"""Mutated files, settings and texts thrown at every place where the course reads them.

    python tests/desk/fuzzing.py [--inputs 5000] [--seed 0] [--only TARGET]

An input is read well, or refused by an error of our own: one line that names the file or the setting. Anything else is
a crash: another exception, a message of several lines, more than `SECONDS`, or more memory than `MEMORY`. All follows
from the seed. Targets with a folder of their own change one file of it, and write the whole one back.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import typer
from desk_simulation import Course, Learner
from typer.testing import CliRunner

from course_lib.config import TransformerConfig
from course_lib.data import CharTokenizer, FastBPETokenizer, load_tokenizer
from course_lib.data.pairs import read_pairs
from course_lib.files import finish_replacing
from course_lib.reading import read_toml
from course_lib.training import RunFolder, save_checkpoint
from course_lib.training.checkpoints import read_checkpoint
from course_lib.training.logs import read_log
from course_lib.transformer import LanguageModel
from course_lib.variants import BERT, GPT, T5, EncoderModel, Gemma3, Llama, Qwen3, ViT, from_pretrained, save_pretrained
from coursework.cli import UNFORESEEN, app
from coursework.commands.checked import plainly
from coursework.commands.corpora import read_text
from coursework.commands.jobs import _same_run
from coursework.commands.tasks import TASKS
from coursework.commands.train import _set
from coursework.desk import copies
from coursework.desk.rescue import salvage
from coursework.desk.store import Desk, DeskError

SECONDS = 10
MEMORY = 3 * 2**30  # bytes that the whole program may map beyond what it has when the fuzzing begins

ODD: list[Any] = [None, True, False, -1, 0, 1, 3.5, 10**9, 3_000_000, 10**30, -(10**400), 1e9, 1e308, float("inf")]
ODD += [float("nan"), "", "text", "no", "1", "\0", "\ud800", "é" * 3, "a\nb", "../../x", "/", "x" * 5000, [], {}, [[]]]
ODD += [[None], ["a", 1], {"": None}, {"a": {"b": []}}, [0] * 3, [-1, 10**12], "<eos>", "default", "yarn"]
ODD_BYTES = [b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"[" * 5000, b'{"a":' * 5000, b"9" * 5000]
ODD_BYTES += [b"NaN", b"1e999", b"\r", b'"', b"\\", b"\\u", b"\\ud800", b"  ", b"]", b"}", b"=", b"[[a]]\n", b"#"]
ODD_SETTINGS = [
    "1e3",
    "true",
    "null",
    "[1,2]",
    "-5",
    "9" * 5000,
    "[" * 5000,
    '{"a":1}',
    "nan",
    "1e999",
    "1000000000000",
]


# -- mutations ---------------------------------------------------------------------------------------------------------


def of_bytes(draw: random.Random, data: bytes) -> bytes:
    """Flip, cut, double, drop or insert at a few places."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 5])):
        size = len(changed)
        at, end = sorted((draw.randrange(size + 1), draw.randrange(size + 1)))
        kind = draw.choice(["flip", "cut", "drop", "double", "odd", "noise"])
        if kind == "flip" and at < size:
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == "cut":
            del changed[at:]
        elif kind == "drop":
            del changed[at : min(end, at + 40)]
        elif kind == "double":
            changed[at:at] = changed[at : min(end, at + 400)]
        elif kind == "odd":
            changed[at:at] = draw.choice(ODD_BYTES)
        elif kind == "noise":
            changed[at : at + 4] = draw.randbytes(4)
    return bytes(changed)


def of_tree(draw: random.Random, tree: Any) -> Any:
    """Replace, drop or double a few values of a JSON tree."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.choice([1, 1, 2, 4])):
        places: list[tuple[Any, Any]] = []
        left = [tree]
        while left:
            node = left.pop()
            inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
            for key, value in inner:
                places.append((node, key))
                left.append(value)
        if not places:
            return draw.choice(ODD)
        node, key = draw.choice(places)
        kind = draw.choice(["replace", "replace", "replace", "drop", "rename", "wrap"])
        if kind == "drop":
            del node[key]
        elif kind == "rename" and isinstance(node, dict):
            node[draw.choice(["", "x", "\ud800", str(key) + " "])] = node.pop(key)
        elif kind == "wrap":
            node[key] = draw.choice([[node[key]], {"a": node[key]}])
        else:
            node[key] = copy.deepcopy(draw.choice(ODD))
    return tree if draw.random() > 0.03 else draw.choice(ODD)


def of_json(draw: random.Random, data: bytes) -> bytes:
    """Mutate the tree, or the bytes."""
    if draw.random() < 0.3:
        return of_bytes(draw, data)
    return json.dumps(of_tree(draw, json.loads(data)), ensure_ascii=draw.random() < 0.9).encode(errors="surrogatepass")


# -- targets -----------------------------------------------------------------------------------------------------------


@dataclass
class Target:
    """A place that reads: what is mutated and how, what reads it, and what errors must name."""

    mutate: Callable[[random.Random, bytes], bytes]
    read: Callable[[bytes], object]
    whole: Callable[[random.Random], bytes]
    named: tuple[str, ...]
    restore: Callable[[], None] = field(default=lambda: None)


def _file(path: Path, mutate: Callable, read: Callable[[], object], also: tuple[str, ...] = ()) -> Target:
    whole = path.read_bytes()

    def mutated(data: bytes) -> object:
        path.write_bytes(data)
        return read()

    return Target(mutate, mutated, lambda draw: whole, (path.name, *also), lambda: path.write_bytes(whole) and None)


SIZES = {"d_model": 8, "n_heads": 2, "vocab_size": 29, "d_ff": 16, "max_length": 16}
DECODER, ENCODER = {"n_encoder_layers": 0, "n_decoder_layers": 1}, {"n_encoder_layers": 1, "n_decoder_layers": 0}


def models(folder: Path) -> dict[str, Target]:
    """Folders of weights of each family, their config, index, weights and checksums."""
    torch.manual_seed(0)
    vision = {name: SIZES[name] for name in ("d_model", "n_heads", "d_ff")}
    made: dict[str, torch.nn.Module] = {
        "course": LanguageModel(TransformerConfig(**SIZES, **DECODER, positions="alibi")),
        "course_encoder": EncoderModel(TransformerConfig(**SIZES, **ENCODER), head="classifier", n_classes=3),
        "bert": BERT(BERT.configure(**SIZES, **ENCODER)),
        "vit": ViT(ViT.configure(**vision, **ENCODER, max_length=5), image_size=8, patch_size=4),
        **{
            family.__name__.lower(): family(family.configure(**SIZES, **DECODER))
            for family in (GPT, Llama, Gemma3, Qwen3)
        },
        "t5": T5(T5.configure(**SIZES, n_encoder_layers=1, n_decoder_layers=1)),
    }
    found = {}
    for name, model in made.items():
        place = folder / name
        save_pretrained(model, place)
        sums = (place / "SHA256SUMS").read_bytes()
        (place / "SHA256SUMS").unlink()
        found[f"config of {name}"] = _file(
            place / "config.json", of_json, lambda place=place: from_pretrained(place), ("model.safetensors",)
        )
    place = folder / "with sums"
    shutil.copytree(folder / "llama", place)
    (place / "SHA256SUMS").write_bytes(sums)
    weights = ("model.safetensors", "config.json")
    found["SHA256SUMS"] = _file(place / "SHA256SUMS", of_bytes, lambda: from_pretrained(place), weights)
    place2 = folder / "weights"
    shutil.copytree(folder / "llama", place2)
    found["safetensors"] = _file(place2 / weights[0], of_safetensors, lambda: from_pretrained(place2))
    return found


def of_safetensors(draw: random.Random, data: bytes) -> bytes:
    """Mutate the header, or its length, or the numbers."""
    size = struct.unpack("<Q", data[:8])[0]
    kind = draw.choice(["length", "header", "header", "bytes"])
    if kind == "length":
        return struct.pack("<Q", draw.choice([0, 1, size - 1, size + 1, 2**31, 2**63, 2**64 - 1])) + data[8:]
    if kind == "bytes":
        return of_bytes(draw, data)
    header = of_json(draw, data[8 : 8 + size])
    return struct.pack("<Q", len(header)) + header + data[8 + size :]


def texts(folder: Path) -> dict[str, Target]:
    """Tokenizers, texts, pairs, recipes, logs, checkpoints and journals."""
    folder.mkdir()
    sentences = ["Once upon a time there was a cat.", "Größe 12 →", "once more upon the mat"]
    chars, bpe = folder / "chars", folder / "bpe"
    CharTokenizer.train(sentences).save(chars)
    FastBPETokenizer.train(sentences, 270).save(bpe)
    for place in (chars, bpe):
        (place / "SHA256SUMS").unlink(missing_ok=True)
    fast = load_tokenizer(bpe)

    def encode() -> object:
        text = read_text(str(folder / "text.txt"))
        return fast.decode(fast.encode(text)), CharTokenizer.train([text]).encode(text)

    (folder / "text.txt").write_text("\n".join(sentences) * 4)
    (folder / "pairs.tsv").write_text("drei\tthree\nvier\tfour\n")
    run = RunFolder(folder / "run")
    model = torch.nn.Linear(3, 2)
    save_checkpoint(run.checkpoints, 1, model, state={"position": 3})
    recipe = {"task": "lm", **{t: {} for t in ("data", "tokenizer", "batches", "model", "training", "fingerprints")}}
    recipe |= {"model": {"d_model": 8}, "training": {"seed": 0, "optimizer": "adamw"}}
    run.begun.write_text(json.dumps(recipe))
    run.log.write_text("".join(json.dumps({"step": n, "loss": 1.0 / n}) + "\n" for n in range(1, 5)))
    journal = folder / "journal" / ".commit" / "obsolete.json"

    def finish(data: bytes) -> None:
        shutil.rmtree(folder / "journal", ignore_errors=True)
        journal.parent.mkdir(parents=True)
        (journal.parent / "config.json").write_text("{}")
        journal.write_bytes(data)
        finish_replacing(folder / "journal")

    (folder / "settings.toml").write_text(
        'data = {name = "reference"}\n[model]\nd_model = 64\nn_heads = 4\ndropout = 0.1\npositions = "rotary"\n'
        '[training]\nsteps = 10\nlearning_rate = 1e-3\nbetas = [0.9, 0.99]\n[tokenizer]\nkind = "characters"\n'
    )

    def settings() -> object:
        tables = read_toml(folder / "settings.toml")
        return [_built(task, tables) for task in TASKS]

    points = folder / "points.json"
    points.write_text(json.dumps({"parameters": 3}))
    return {
        "characters": _file(chars / "tokenizer.json", of_json, lambda: load_tokenizer(chars).encode("a cat")),
        "pieces": _file(bpe / "tokenizer.json", of_json, lambda: load_tokenizer(bpe).encode("a cat")),
        "text": _file(folder / "text.txt", of_bytes, encode),
        "pairs": _file(folder / "pairs.tsv", of_bytes, lambda: read_pairs(folder / "pairs.tsv")),
        "recipe": _file(run.begun, of_json, lambda: _same_run(recipe, run), ("--resume", str(run))),
        "log": _file(run.log, of_bytes, lambda: read_log(run.log, 3)),
        "checkpoint": _file(
            run.checkpoints / "step-00000001.json", of_json, lambda: read_checkpoint(run.checkpoints), ("step-",)
        ),
        "journal": Target(of_json, finish, lambda draw: b'["old.bin", "model.safetensors"]', ("journal",)),
        "TOML": _file(folder / "settings.toml", of_bytes, lambda: as_a_command(settings), ("",)),
        "--set": Target(
            of_setting,
            lambda data: as_a_command(lambda: _from_flag(data)),
            a_setting,
            ("",),
        ),
    }


PLACES = ["model.d_model", "model.dropout", "model.positions", "model.n_decoder_layers", "training.steps", "data.name"]
PLACES += ["training.learning_rate", "training.betas", "training.clip", "tokenizer.vocab_size", "batches.length"]
PLACES += ["training.schedule", "model.window", "model.local_layers", "result.average", "training.final_rate"]


def a_setting(draw: random.Random) -> bytes:
    """Return a --set text that may be right."""
    value = draw.choice([*ODD_SETTINGS, *(json.dumps(one) for one in ODD if len(str(one)) < 400)])
    return f"{draw.choice(PLACES)}={value}".encode(errors="surrogatepass")


def of_setting(draw: random.Random, data: bytes) -> bytes:
    """Leave it, or mutate its bytes."""
    return data if draw.random() < 0.6 else of_bytes(draw, data)


def as_a_command(read: Callable[[], object]) -> None:
    """Read settings as `course train` does, and raise what it says."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), plainly():
            read()
    except typer.Exit:
        raise ValueError(said.getvalue().strip()) from None
    except TypeError as error:
        raise RuntimeError("the command did not foresee it") from error


def _from_flag(data: bytes) -> object:
    flags: dict[str, dict[str, Any]] = {}
    _set(flags, data.decode(errors="surrogateescape"))
    return [_built(task, flags) for task in TASKS]


def _built(task: type, tables: dict[str, Any]) -> object:
    """Lay settings over a task's defaults and make its configs; those of another task are refused."""
    return task(tables)


def desks(folder: Path) -> dict[str, Target]:
    """A learner's desk, through the commands that must go on whatever is damaged."""
    course, my = folder / "notebooks", folder / "my"
    course.mkdir(parents=True)
    os.environ["COURSE_NOTEBOOKS"] = str(course)
    for number, name in ((1, "01_attention"), (2, "02_heads")):
        edition = Course(random.Random(number)).first()
        (course / f"{name}.ipynb").write_text(json.dumps(edition, indent=1, sort_keys=True), encoding="utf-8")
    desk = copies.create(my).desk
    notebook = my / "01_attention.ipynb"
    learner = Learner(random.Random(3), json.loads(notebook.read_bytes()))
    learner.work()
    notebook.write_text(json.dumps(learner.notebook, indent=1, sort_keys=True), encoding="utf-8")
    desk.save_answer("causal_mask", "def causal_mask(T, S):\n    return None", "wrong", "e1")
    desk.save_answer("causal_mask", "def causal_mask(T, S):\n    return T", "right", "e1")
    desk.save_prediction("rotary_moved", "it stays")
    kept = {path: path.read_bytes() for path in my.rglob("*") if path.is_file() and path.name != "lock"}

    def restore() -> None:
        for path in my.rglob("*"):
            if path.is_file() and path.name != "lock" and path not in kept:
                path.unlink()
        for path, data in kept.items():
            path.write_bytes(data)

    def commands(*names: str) -> None:
        for name in names:
            arguments = ["start", "--folder", str(my)] if name == "start" else ["--folder", str(my), name]
            done = CliRunner().invoke(app, arguments)
            said = done.output.strip()
            if done.exit_code == UNFORESEEN or (done.exception and not isinstance(done.exception, SystemExit)):
                raise RuntimeError(f"course {name}: {done.exit_code} {done.exception!r} {said}")
            if "Traceback" in said or "stumbled" in said:
                raise RuntimeError(f"course {name}: {said}")

    def notebook_at(data: bytes) -> object:
        notebook.write_bytes(data)
        before = salvage(data)
        commands("start", "next", "update", "rescue")
        json.loads(notebook.read_bytes())  # after a rescue it can be read, and what was damaged is kept
        whole = [path.read_bytes() for path in (my / ".course" / "backup").rglob("*.ipynb")]
        if notebook.read_bytes() != data and data not in whole:
            raise RuntimeError("the damaged notebook is not kept")
        return before

    def at(path: Path, *names: str) -> Callable[[bytes], object]:
        def read(data: bytes) -> object:
            path.write_bytes(data)
            commands(*names)
            return Desk(my).progress(), Desk(my).predictions(), Desk(my).history("causal_mask")

        return read

    def target(path: Path, mutate: Callable, read: Callable[[bytes], object]) -> Target:
        return Target(mutate, read, lambda draw: kept[path], (path.name,), restore)

    progress, guesses = my / ".course" / "progress.json", my / "predictions.txt"
    entry, base = my / "answers/history/causal_mask/0001.py", next((my / ".course" / "base").glob("01*"))
    return {
        "notebook": target(notebook, of_json, notebook_at),
        "progress": target(progress, of_json, at(progress, "start", "next")),
        "predictions": target(guesses, of_bytes, at(guesses, "next")),
        "history": target(entry, of_bytes, at(entry, "next", "rescue")),
        "base copy": target(base, of_json, at(base, "update", "rescue")),
    }


# -- running -----------------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """An input takes more than `SECONDS`."""


def _alarm(*_: object) -> None:
    raise TooLong


def crash_of(target: Target, data: bytes) -> str | None:
    """Read one input; return what was wrong with the way it ended, or None."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            target.read(data)
    except TooLong:
        return f"took more than {SECONDS} s"
    except (ValueError, TypeError, FileNotFoundError, DeskError) as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        said = str(error)
        if isinstance(error, UnicodeError) or not any(name in said for name in target.named):
            return f"{type(error).__name__} that names no file: {said}\n{_where(error)}"
        if len(said.splitlines()) != 1 or len(said) > 5000:
            return f"{len(said)} characters in {len(said.splitlines())} lines: {said[:500]}"
    except Exception as error:
        signal.setitimer(signal.ITIMER_REAL, 0)
        return f"{type(error).__name__}: {error}\n{_where(error)}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        target.restore()
    return None


def _where(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-3:])


def fuzz(inputs: int, seed: int, only: str = "") -> tuple[dict[str, int], list[str]]:
    """Try so many inputs, spread over the targets; return how many each had, and the crashes."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in ("CI", "COURSE_DESK"):
        os.environ.pop(name, None)
    tried: dict[str, int] = {}
    crashes: list[str] = []
    before = signal.signal(signal.SIGALRM, _alarm)
    try:
        with tempfile.TemporaryDirectory(prefix="course-fuzz-") as name:
            folder = Path(name)
            targets = {**models(folder / "models"), **texts(folder / "texts"), **desks(folder / "desk")}
            targets = {name: target for name, target in targets.items() if only in name}
            _limit_memory()
            for number in range(inputs):
                name, target = list(targets.items())[number % len(targets)]
                draw = random.Random(f"{seed} {number} {name}")
                data = target.mutate(draw, target.whole(draw))
                tried[name] = tried.get(name, 0) + 1
                if crash := crash_of(target, data):
                    crashes.append(f"input {number}, {name}: {crash}\n    {data[:300]!r}")
    finally:
        signal.signal(signal.SIGALRM, before)
        os.environ.pop("COURSE_NOTEBOOKS", None)
    return tried, crashes


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


def main() -> int:
    """Fuzz and say what was found; the exit code is 1 if anything crashed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets whose name has this in it")
    options = parser.parse_args()
    tried, crashes = fuzz(options.inputs, options.seed, options.only)
    print(*crashes, sep="\n")
    print(json.dumps({"inputs": sum(tried.values()), "crashes": len(crashes), "targets": tried}))
    return bool(crashes)


if __name__ == "__main__":
    sys.exit(main())
