"""Kills at random steps of writing: on a learner's desk, in folders of checkpoints and of results; nothing is lost.

    python tests/desk/kills.py [--kills 240] [--seed 0]

Each trial runs in a forked process that SIGKILL ends at a random one of its calls that put something on the disk: open,
write, flush, change of mode, rename, removal. Then nothing that was there before may be missing, every file is the old
one or the new one as a whole, the same work done again ends well, and leaves no temporary file of the killed one. It
prints a line of JSON for each kind of work.
"""

import argparse
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from desk_simulation import Course, Learner
from desk_tools import edit, exercise_cells, load, save, texts

from course_lib.data import CharTokenizer, load_tokenizer
from course_lib.training import load_checkpoint, save_checkpoint
from course_lib.transformer import LanguageModel
from course_lib.variants import GPT, from_pretrained, save_pretrained
from coursework.desk import answers, copies, rescue, updates
from coursework.desk.notebooks import read_notebook
from coursework.desk.store import Desk

CALLS = ("open", "write", "fsync", "chmod", "replace", "unlink", "rmdir")


def steps(job: Callable[[], None], last: int | None) -> int:
    """Do a job in a forked process that is killed at its call number `last`; return its calls, 0 if killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        calls = 0

        def deadly(original: Callable) -> Callable:
            def call(*arguments, **options):
                nonlocal calls
                calls += 1
                if calls == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*arguments, **options)

            return call

        real_write = os.write
        sys.stdout = io.StringIO()
        for name in CALLS:
            setattr(os, name, deadly(getattr(os, name)))
        try:
            job()
            real_write(writer, str(calls).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return int(said or 0)


class Work:
    """One kind of work: made in a folder, done, and looked at afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self) -> None:
        """Write what is there before."""

    def job(self) -> None:
        """Do what is killed."""

    def well(self) -> bool:
        """Whether nothing is lost, and doing it again ends well."""
        raise NotImplementedError


class Answer(Work):
    """An answer is saved beside an earlier one."""

    def make(self) -> None:
        (self.folder / ".course").mkdir(parents=True)
        Desk(self.folder).save_answer("causal_mask", "old", "wrong", "e1")

    def job(self) -> None:
        Desk(self.folder).save_answer("causal_mask", "new", "right", "e1")

    def well(self) -> bool:
        desk = Desk(self.folder)
        kept = [body for _, body in desk.history("causal_mask")]
        whole = kept[0] == "old\n" and desk.latest_answer("causal_mask") in ("old\n", "new\n")
        self.job()
        return (
            whole and desk.progress()["causal_mask"]["attempts"] == 2 and desk.latest_answer("causal_mask") == "new\n"
        )


class Update(Work):
    """A new edition is merged into what a learner wrote."""

    def make(self) -> None:
        os.environ["COURSE_NOTEBOOKS"] = str(self.folder / "notebooks")
        (self.folder / "notebooks").mkdir(parents=True)
        rng = random.Random(7)
        for number, name in enumerate(("01_attention", "02_heads"), start=1):
            save(self.folder / "notebooks" / f"{name}.ipynb", Course(random.Random(number)).first())
        desk = copies.create(self.folder / "my").desk
        for number, name in enumerate(("01_attention", "02_heads"), start=1):
            learner = Learner(rng, read_notebook(desk.folder / f"{name}.ipynb"))
            learner.work()
            save(desk.folder / f"{name}.ipynb", learner.notebook)
            course = Course(rng)
            course.number = 1000 * number
            path = self.folder / "notebooks" / f"{name}.ipynb"
            save(path, course.next(load(path)))
        self.written = self.learners()

    def learners(self) -> set[str]:
        """What the learner wrote, in all notebooks."""
        found = {text for path in (self.folder / "my").glob("*.ipynb") for text in texts(path).values()}
        return {text for text in found if "by the learner" in text}

    def job(self) -> None:
        updates.update(Desk(self.folder / "my"))

    def well(self) -> bool:
        whole = self.learners() >= self.written
        self.job()
        return whole and self.learners() >= self.written and {r.outcome for r in self.again()} == {updates.UP_TO_DATE}

    def again(self) -> list[updates.Updated]:
        """Update once more: there must be nothing left to do."""
        return updates.update(Desk(self.folder / "my"))


class Rescue(Update):
    """A damaged notebook is rebuilt, and an answer put back."""

    def make(self) -> None:
        super().make()
        desk = Desk(self.folder / "my")
        updates.update(desk)
        path = desk.folder / "01_attention.ipynb"
        self.name, cell = next(iter(exercise_cells(path).items()))
        edit(
            path,
            cell,
            f"def {self.name}(x):\n    return 1  # by the learner\n\n\n{self.name} = ex.{self.name}.check({self.name})",
        )
        answers.reset(desk, [self.name])
        damaged = desk.folder / "02_heads.ipynb"
        damaged.write_bytes(damaged.read_bytes()[:-30])
        self.damaged = damaged.read_bytes()
        self.written = set()

    def learners(self) -> set[str]:
        """Nothing: the notebooks may be damaged."""
        return set()

    def job(self) -> None:
        rescue.rescue(Desk(self.folder / "my"))

    def again(self) -> list[updates.Updated]:
        """Nothing to update."""
        return []

    def well(self) -> bool:
        desk = Desk(self.folder / "my")
        history = [body for _, body in desk.history(self.name)]
        self.job()
        kept = [path.read_bytes() for path in (desk.private / "backup").rglob("*.damaged.ipynb")]
        source = answers.find(desk, self.name).source
        read_notebook(desk.folder / "02_heads.ipynb")
        return "by the learner" in source and any("by the learner" in one for one in history) and self.damaged in kept


class Checkpoints(Work):
    """A second checkpoint is written beside the first."""

    def model(self, seed: int) -> torch.nn.Module:
        """A model with weights of its own."""
        torch.manual_seed(seed)
        return torch.nn.Linear(5, 3)

    def make(self) -> None:
        save_checkpoint(self.folder, 1, self.model(1))

    def job(self) -> None:
        save_checkpoint(self.folder, 2, self.model(2))

    def well(self) -> bool:
        found = self.model(0)
        step = load_checkpoint(self.folder, found).step
        whole = torch.equal(found.weight, self.model(step).weight)
        self.job()
        return (
            whole and load_checkpoint(self.folder, found).step == 2 and torch.equal(found.weight, self.model(2).weight)
        )


class Results(Work):
    """A model with its tokenizer takes the place of another one, of another size and with another tokenizer."""

    def write(self, width: int) -> None:
        """Write a model that is told from others by its width, its weights and its tokenizer."""
        torch.manual_seed(width)
        sizes = {"d_model": width, "n_heads": 2, "vocab_size": 9, "max_length": 8, "n_encoder_layers": 0}
        model = GPT(GPT.configure(**sizes, n_decoder_layers=1))
        tokenizer = CharTokenizer.train(["abcdefgh"[: width // 4]])
        save_pretrained(model, self.folder, more={"tokenizer.json": tokenizer.to_text()})

    def make(self) -> None:
        self.write(8)

    def job(self) -> None:
        self.write(16)

    def width(self) -> int:
        """The width of the model that is there; its tokenizer must belong to it."""
        model = from_pretrained(self.folder)
        if not isinstance(model, LanguageModel):
            raise TypeError("another model")
        width = model.config.d_model
        return width if load_tokenizer(self.folder).vocab_size == 5 + width // 4 else 0

    def well(self) -> bool:
        whole = self.width() in (8, 16)
        self.job()
        return whole and self.width() == 16


WORKS: tuple[type[Work], ...] = (Answer, Update, Rescue, Checkpoints, Results)


def temporary(folder: Path) -> list[Path]:
    """Return what a killed process left in a folder."""
    return [path for path in folder.rglob(".*") if path.suffix == ".tmp" or path.name == ".commit"]


def kill(kind: type[Work], n: int, seed: int) -> dict[str, int]:
    """Kill one kind of work n times; return the kills, at how many different calls, the losses, and the litter.

    `left` counts the kills that left temporary files, `litter` those after which the same work done again left them.
    """
    draw, places, losses, left, litter = random.Random(seed), set(), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="course-kills-") as name:
        measured = kind(Path(name) / "measured")
        measured.make()
        calls = steps(measured.job, None)
        for number in range(n):
            work = kind(Path(name) / str(number))
            work.make()
            last = draw.randint(1, calls)
            if steps(work.job, last):
                raise RuntimeError(f"{kind.__name__}: call {last} of {calls} was not reached")
            places.add(last)
            left += bool(temporary(work.folder))
            try:
                losses += not work.well()
            except (OSError, ValueError, KeyError, IndexError) as error:
                print(f"{kind.__name__}, call {last}: {type(error).__name__}: {error}", file=sys.stderr)
                losses += 1
            litter += bool(temporary(work.folder))
            shutil.rmtree(work.folder)
    return {"kills": n, "places": len(places), "losses": losses, "left": left, "litter": litter}


def main() -> int:
    """Kill all kinds of work in turn; the exit code is 1 if anything was lost, or left lying about."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.pop("CI", None)
    lost = 0
    for kind in WORKS:
        found = kill(kind, -(-options.kills // len(WORKS)), options.seed)
        lost += found["losses"] + found["litter"]
        print(json.dumps([kind.__name__, found]), flush=True)
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
