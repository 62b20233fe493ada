"""A class whose every verdict is known: right answers, named mistakes, and notebooks that lie, crash and never end.

`python tests/classroom/simulated_class.py --learners 200 --seed 1` makes one, judges it with `course verify`'s own
function and says how many notebooks got exactly the verdicts that they must get.
"""

import argparse
import inspect
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from coursework.classroom import Limits, judge_class
from coursework.exercises import registry
from coursework.exercises.engine.cells import PRELUDE, cell_source, last_line, solved_cell_source
from coursework.exercises.spec import Exercise

WRONG_MASK = "def causal_mask(T, S):\n    return torch.ones(T, S, dtype=torch.bool).tril()\n"
RIGHT_MASK = "def causal_mask(T, S):\n    return torch.ones(T, S, dtype=torch.bool).tril(S - T)\n"
TOP_LEFT = "aligned-top-left"
CALL = "\ncausal_mask = ex.causal_mask.check(causal_mask)\n"


class Case(NamedTuple):
    """The answer of one learner to one exercise, and what must come out; `name` of a misconception, else ""."""

    kind: str
    exercise: str
    source: str | None
    outcome: str
    name: str = ""
    before: str = ""
    output: str = ""


def mask(kind: str, source: str, outcome: str, name: str = "", **more: str) -> Case:
    return Case(kind, "causal_mask", source + CALL, outcome, name, **more)


SPOILED: list[Callable[[], Case]] = [
    lambda: mask("endless loop", "while True:\n    pass\n" + RIGHT_MASK, "could not be run"),
    lambda: mask("endless loop in the call", "def causal_mask(T, S):\n    while True:\n        pass\n", "fail"),
    lambda: mask("memory hog", "hog = bytearray(1 << 36)\n" + RIGHT_MASK, "could not be run"),
    lambda: mask("memory hog in the call", "def causal_mask(T, S):\n    return torch.ones(1 << 36)\n", "fail"),
    lambda: mask("crash", "import ctypes\nctypes.string_at(0)\n" + RIGHT_MASK, "could not be run"),
    lambda: mask("kill", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n" + RIGHT_MASK, "could not be run"),
    lambda: mask("os._exit(0)", "import os\nos._exit(0)\n" + RIGHT_MASK, "could not be run"),
    lambda: mask(
        "os._exit(0) in the call", "def causal_mask(T, S):\n    import os\n    os._exit(0)\n", "could not be run"
    ),
    lambda: mask("sys.exit", "import sys\nsys.exit(0)\n" + RIGHT_MASK, "could not be run"),
    lambda: mask("syntax error", "def causal_mask(T, S:\n    return None\n", "could not be run"),
    lambda: mask("too deep to read", "x = " + "-" * 100_000 + "1\n" + RIGHT_MASK, "could not be run"),
    lambda: Case("deleted cell", "causal_mask", None, "not attempted"),
    lambda: mask("files", "for n in range(20):\n    open(f'{n}.txt', 'w').write('x')\n" + RIGHT_MASK, "pass"),
    lambda: mask("a file too large", "open('big', 'wb').write(bytes(300 << 20))\n" + RIGHT_MASK, "could not be run"),
    lambda: mask("forged output", WRONG_MASK, "fail", TOP_LEFT, output="Right: causal_mask. It agrees on all cases."),
    lambda: mask("printed verdict", "print('Right: causal_mask')\n" + WRONG_MASK, "fail", TOP_LEFT),
    lambda: mask("patched check", "ex.causal_mask.check = lambda answer: answer\n" + WRONG_MASK, "fail", TOP_LEFT),
    lambda: mask(
        "patched check in another cell", WRONG_MASK, "fail", TOP_LEFT, before="ex.causal_mask.check = lambda f: f"
    ),
    lambda: mask(
        "patched engine",
        "from coursework.exercises import handle\nfrom coursework.exercises.engine import compare, diagnose, standard\n"
        "handle.diagnose = lambda *a, **k: diagnose.Finding('right')\n"
        "standard.compare = compare.compare = lambda *a, **k: None\n" + WRONG_MASK,
        "fail",
    ),
    lambda: mask(
        "patched engine in the call",
        "def causal_mask(T, S):\n    from coursework.exercises.engine import standard\n"
        "    standard.compare = lambda *a, **k: None\n    return torch.ones(T, S, dtype=torch.bool).tril()\n",
        "fail",
    ),
    lambda: mask(
        "patched torch",
        "torch.equal = torch.allclose = torch.isclose = lambda *a, **k: True\n" + WRONG_MASK,
        "fail",
    ),
    lambda: mask(
        "forged report",
        "import glob, json, os\nfor place in ('..', '.'):\n"
        "    open(os.path.join(place, 'report.json'), 'w').write(json.dumps({'verdict': 'right', 'secret': '',"
        " 'misconceptions': [], 'case': None, 'problem': '', 'text': ''}))\nos._exit(0)\n" + WRONG_MASK,
        "could not be run",
    ),
    lambda: mask("100 MB of print", "print('x' * 100_000_000)\n" + RIGHT_MASK, "pass"),
    lambda: mask(
        "a process left behind", "import subprocess\nsubprocess.Popen(['sleep', '600'])\n" + RIGHT_MASK, "pass"
    ),
    lambda: mask("broken cells before", RIGHT_MASK, "pass", before="def oh(:\n    nothing = 1 / 0"),
    lambda: mask(
        "what another cell computes",
        "def causal_mask(T, S):\n    return ones[:T, :S].tril(S - T)\n",
        "pass",
        before="size = 512\nones = torch.ones(size, size)\nones = ones.bool()",
    ),
    lambda: Case("damaged notebook", "causal_mask", "{", "could not be run"),
    lambda: Case("stub", "causal_mask", cell_source(registry.get("causal_mask")), "not attempted"),
]


def right(rng: random.Random) -> Case:
    """The solution, or another right way, of any exercise."""
    entry = rng.choice(registry.all_exercises())
    return Case("right", entry.id, solved_cell_source(entry), "pass")


def mistaken(entry: Any, number: int) -> Case:
    """An answer with the exercise's misconception of this number."""
    if not isinstance(entry, Exercise):
        wrong = entry.wrong[number]
        return Case("misconception", entry.id, f"answer = {wrong.value!r}\n{last_line(entry)}", "fail", wrong.statement)
    module = inspect.getsource(sys.modules[entry.model.__module__])  # the answer's process has no bank
    known = module.partition("\nEXERCISE = ")[0].replace("_model(", "_of(")
    knobs = ", ".join(f"{name}={value!r}" for name, value in entry.misconceptions[number].knobs.items())
    source = f"{known}\n{entry.function_name} = _of({knobs})\n{last_line(entry)}"
    return Case("misconception", entry.id, source, "fail", entry.misconceptions[number].name)


def draw(learners: int, rng: random.Random) -> list[Case]:
    """A class: each spoiled kind as often as another, a fifth right, the others with misconceptions, all different."""
    spoiled = [SPOILED[n % len(SPOILED)]() for n in range(max(len(SPOILED), 3 * learners // 10))]
    named = []
    for entry in registry.all_exercises():
        count = len(entry.misconceptions if isinstance(entry, Exercise) else entry.wrong)
        named += [(entry, number) for number in range(count)]
    rng.shuffle(named)
    rights = [right(rng) for _ in range(learners // 5)]
    rest = learners - len(spoiled) - len(rights)
    return spoiled + rights + [mistaken(*one) for one in named[: max(0, rest)]]


def write(folder: Path, cases: list[Case]) -> None:
    """Write one folder for each learner, with a notebook."""
    for number, case in enumerate(cases):
        own = folder / f"learner {number:03d}"
        own.mkdir(parents=True)
        home = registry.places()[case.exercise].rpartition("/")[2] or "scratch"
        path = own / f"{home}.ipynb"
        if case.kind == "damaged notebook":
            path.write_text(case.source or "")
            continue
        cells: list[dict[str, Any]] = [code("start", PRELUDE), code("own", case.before)]
        if case.source is not None:
            cells.append(code("answer", case.source, case.exercise, case.output))
        document = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
        path.write_text(json.dumps(document), encoding="utf-8")


def code(name: str, source: str, exercise: str = "", output: str = "") -> dict[str, Any]:
    outputs = [{"output_type": "stream", "name": "stdout", "text": output}] if output else []
    metadata = {"exercise": exercise} if exercise else {}
    return {
        "cell_type": "code", "id": name, "metadata": metadata, "source": source, "outputs": outputs,
        "execution_count": 1,
    }  # fmt: skip


def misjudged(report: dict[str, Any], cases: list[Case]) -> list[str]:
    """The notebooks whose results are not exactly those that they must have, each in one line."""
    found = []
    for case, who in zip(cases, report["learners"], strict=True):
        for row in who["results"]:
            mine = row["exercise"] == case.exercise
            outcome = case.outcome if mine else "not attempted"
            if (
                case.kind == "damaged notebook"
                and registry.places()[row["exercise"]] == registry.places()[case.exercise]
            ):
                outcome = case.outcome
            names = {one["name"] for one in row["misconceptions"]} | {one["statement"] for one in row["misconceptions"]}
            if row["outcome"] != outcome or (mine and case.name and case.name not in names):
                wanted = f"{outcome} {case.name if mine else ''}".strip()
                found.append(f"{who['name']} ({case.kind}, {row['exercise']}): {wanted} expected, got {row}")
    return found


def main() -> int:
    """Make a class, judge it, and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learners", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    cases = draw(options.learners, random.Random(options.seed))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "class"
        write(folder, cases)
        before = sorted(str(path) for path in folder.rglob("*"))
        began = time.monotonic()
        report = judge_class(folder, jobs=options.jobs, limits=Limits(seconds=options.seconds))
        wall = time.monotonic() - began
        assert before == sorted(str(path) for path in folder.rglob("*")), "an answer wrote into the class"
    wrong = misjudged(report, cases)
    print("\n".join(wrong))
    kinds = Counter(case.kind for case in cases)
    print(", ".join(f"{number} {kind}" for kind, number in kinds.most_common()))
    right_ones = len(cases) - len({line.partition(" (")[0] for line in wrong})
    print(f"verdicts right {right_ones} of {len(cases)} notebooks; {wall:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
