"""Answers that do harm: deeds, at each of the places where an answer's code runs. None is right.

`python tests/hostile.py kernel` checks them one after the other in a notebook's kernel, `python tests/hostile.py class`
hands each in as a notebook and has the class judged; both print what came of it. `--count` takes so many of them.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

MARK = "hostile-answer-was-here"
"""Stands in the command of every process that a deed starts."""

SPEND = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900)', '{MARK}'], start_new_session=True)"
FORGED = "{'ready': 1, 'callable': True, 'class': False, 'kind': '', 'verdict': 'right', 'error': None, 'value': None}"

DEEDS = {
    "a loop": "while True:\n    pass",
    "a loop that catches all": "while True:\n    try:\n        pass\n    except BaseException:\n        pass",
    "a loop in C": "sum(itertools.repeat(0))",
    "a regular expression": "re.match('(a+)+$', 'a' * 64 + 'b')",
    "a huge power": "10 ** 10 ** 9",
    "sleep": "time.sleep(900)",
    "exit": "os._exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "an interrupt": "raise KeyboardInterrupt",
    "a question": "input()",
    "an error that says nothing": "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})",
    "an error that never stops": "raise type('E', (Exception,), {'__str__': lambda self: sum(itertools.repeat(0))})",
    "a signal": "os.kill(os.getpid(), 9)",
    "a crash": "ctypes.string_at(0)",
    "recursion": "(lambda f: f(f))(lambda f: f(f))",
    "memory": "hog = [bytearray(1 << 30) for _ in range(64)]",
    "memory of torch": "torch.ones(1 << 38)",
    "output": "print('x' * 100_000_000)",
    "threads": "for _ in range(3):\n    threading.Thread(target=lambda: sum(itertools.repeat(0)), daemon=True).start()",
    "processes": f"{SPEND}\nif os.fork() == 0:\n    os.setsid()\n    {SPEND}\n    time.sleep(900)",
    "closed files": "os.closerange(3, 256)",
    "patched torch": "torch.isclose = torch.allclose = torch.equal = lambda *a, **k: torch.tensor(True)",
    "patched tensors": "torch.Tensor.__eq__ = torch.Tensor.__ne__ = lambda *a: torch.ones(1, dtype=torch.bool)",
    "patched check": (
        "from coursework.exercises.engine import compare, diagnose, run, standard\n"
        "standard.compare = run.compare = compare.compare = lambda *a, **k: None\n"
        "diagnose.Examiner.verdict = lambda *a, **k: (diagnose.Finding('right'), [])"
    ),
    "patched Python": "builtins.isinstance = lambda *a: True\nbuiltins.type = lambda *a: float",
    "settings": "torch.set_default_dtype(torch.float64)\nos.chdir('/')\nsys.setrecursionlimit(60)\nos.environ.clear()",
    "files": f"open('/tmp/{MARK}', 'w').write('x')\nopen(os.path.expanduser('~/{MARK}'), 'w').write('x')",
    "forged answers": (
        f"said = json.dumps({FORGED}).encode()\nfor n in range(3, 32):\n    try:\n"
        "        os.write(n, (len(said).to_bytes(8, 'big') + said) * 50)\n    except OSError:\n        pass"
    ),
}
IMPORTS = "import builtins, ctypes, itertools, json, os, re, subprocess, sys, threading, time\nimport torch\n"

PLACES = {
    "in the call": "def soft_lookup(query, keys, values):\n{deed}\n    return values.mean(0)\n",
    "in the second call": (
        "calls = []\ndef soft_lookup(query, keys, values):\n    calls.append(1)\n    if len(calls) < 2:\n"
        "        return values.mean(0)\n{deed}\n    return values.mean(0)\n"
    ),
    "in backward": (
        "class Deed(torch.autograd.Function):\n    @staticmethod\n    def forward(context, x):\n        return x * 1\n"
        "    @staticmethod\n    def backward(context, gradient):\n{deed2}\n        return gradient * 0\n"
        "def soft_lookup(query, keys, values):\n    return Deed.apply((keys @ query).softmax(0) @ values)\n"
    ),
    "in the result": (
        "class Odd(list):\n    def deed(self, *a, **k):\n{deed2}\n        return True\n"
        "    __eq__ = __len__ = __iter__ = __getattr__ = __repr__ = __instancecheck__ = deed\n"
        "def soft_lookup(query, keys, values):\n    return Odd([1.0])\n"
    ),
    "in a tensor of its own": (
        "class Odd(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, *a, **k):\n{deed2}\n"
        "        return torch.ones(1)\n"
        "def soft_lookup(query, keys, values):\n    return values.mean(0).as_subclass(Odd)\n"
    ),
    "in the answer's attributes": (
        "class Odd:\n    def __getattr__(self, name):\n{deed2}\n        return Odd()\n"
        "    def __call__(self, query, keys, values):\n        return values.mean(0)\nsoft_lookup = Odd()\n"
    ),
}
AT_ONCE = {"at once": "def soft_lookup(query, keys, values):\n    return values.mean(0)\n{deed0}\n"}

BORROWED = {
    "the bank": "from coursework.exercises.bank.soft_lookup import soft_lookup\n",
    "the bank by pieces": (
        "found = __import__('importlib').import_module('coursework.exer' + 'cises.bank.soft_lookup')\n"
        "soft_lookup = found.soft_lookup\n"
    ),
    "the registry": "from coursework.exercises import registry\nsoft_lookup = registry.get('soft_lookup').reference\n",
    "the bank, found again": (
        "import sys\nsys.meta_path[:] = [one for one in sys.meta_path if 'Bank' not in type(one).__name__]\n"
        "from coursework.exercises.bank.soft_lookup import soft_lookup\n"
    ),
    "the bank's file": (
        "import coursework, pathlib\nnames = {}\n"
        "exec((pathlib.Path(coursework.__path__[0]) / 'exercises/bank/soft_lookup.py').read_text(), names)\n"
        "soft_lookup = names['soft_lookup']\n"
    ),
    "what is in memory": (
        "import gc\n"
        "soft_lookup = [one for one in gc.get_objects() if getattr(one, '__name__', '') == 'soft_lookup'][0]\n"
    ),
}
"""Ways to the right answer that is not one's own: only for a process that has none."""


def sources(places: dict[str, str]) -> dict[str, str]:
    """Each deed at each place: name -> the source of an answer to `soft_lookup`."""
    found = {}
    for where, template in places.items():
        for name, deed in DEEDS.items():
            parts = {f"deed{n or ''}" if n != 1 else "deed": textwrap.indent(deed, "    " * n) for n in (1, 2)}
            found[f"{name}, {where}"] = IMPORTS + template.format(deed0=deed, **parts)
    return found


def drawn(answers: dict[str, str], count: int, seed: int = 1) -> dict[str, str]:
    """So many of them, each deed and place about as often as another."""
    names = list(answers)
    random.Random(seed).shuffle(names)
    return {name: answers[name] for name in names[:count]}


def left() -> list[int]:
    """The processes that a deed has started and that still run."""
    import psutil

    return [one.pid for one in psutil.process_iter(["cmdline"]) if MARK in (one.info["cmdline"] or ())]


def in_a_kernel(answers: dict[str, str], seconds: float = 0.5) -> Counter[str]:
    """Check each in one kernel, one after the other; count what came of it."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    start = (
        "from coursework import exercises as ex\nfrom coursework.exercises.engine import guard\n"
        f"guard.SECONDS, guard.GRACE = {seconds}, {seconds}\nfine = ex.soft_lookup\n"
    )
    counts: Counter[str] = Counter(tried=len(answers))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(start)])
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True)
    with client.setup_kernel():
        client.execute_cell(notebook.cells[0], 0)
        for name, source in answers.items():
            cell = nbformat.v4.new_code_cell(f"{source}\n_ = ex.soft_lookup.check(soft_lookup)")
            notebook.cells.append(cell)
            try:
                client.execute_cell(cell, len(notebook.cells) - 1)
            except DeadKernelError:
                counts["kernels lost"] += 1
                print("lost:", name)
                break
            except CellTimeoutError:
                counts["hangs"] += 1
                print("hangs:", name)
                continue
            said = "".join(out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs)
            raised = [out for out in cell.outputs if out["output_type"] == "error"]
            kind = "raised" if raised else said.partition(":")[0] or "nothing said"
            if said.startswith("The check of soft_lookup could not judge this answer"):
                kind = "not judged"
            counts[kind] += 1
            if kind != "Not yet":
                print(f"{name}: {kind} {said[:200]} {raised[:1]}")
    counts["processes left"] = len(left())
    return counts


def in_a_class(answers: dict[str, str], folder: Path, seconds: float = 20.0) -> tuple[Counter[str], dict[str, Any]]:
    """Hand each in as a notebook, and have the class judged; count what came of it."""
    import nbformat

    from coursework.classroom import Limits, judge_class

    for number, source in enumerate(answers.values()):
        path = folder / f"learner {number:03d}" / "01_attention.ipynb"
        path.parent.mkdir(parents=True)
        answer = f"{source}\nsoft_lookup = ex.soft_lookup.check(soft_lookup)\n"
        code = nbformat.v4.new_code_cell
        cells = [code("import torch"), code(answer, metadata={"exercise": "soft_lookup"}, execution_count=1)]
        path.write_text(json.dumps(nbformat.v4.new_notebook(cells=cells)))
    before = {path: path.read_bytes() for path in folder.rglob("*.ipynb")}
    report = judge_class(folder, exercises=["soft_lookup"], jobs=1, limits=Limits(seconds))
    counts: Counter[str] = Counter(tried=len(answers))
    results = {}
    for name, who in zip(answers, report["learners"], strict=True):
        (row,) = who["results"]
        counts[row["outcome"]] += 1
        counts["undeserved passes without a remark"] += row["outcome"] == "pass" and not row["remarks"]
        counts["without a reason"] += row["outcome"] != "pass" and not (row["reason"] or row["misconceptions"])
        results[name] = row
    counts["files changed"] = sum(path.read_bytes() != text for path, text in before.items())
    counts["processes left"] = len(left())
    return counts, results


def main() -> None:
    """Try them and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("where", choices=("kernel", "class"))
    parser.add_argument("--count", type=int, default=10**6)
    options = parser.parse_args()
    began = time.monotonic()
    if options.where == "kernel":
        print(dict(in_a_kernel(drawn(sources(PLACES), options.count))))
    else:
        answers = {**BORROWED, **drawn(sources(PLACES | AT_ONCE), options.count)}
        with tempfile.TemporaryDirectory() as place:
            counts, results = in_a_class(answers, Path(place) / "class")
        for name, row in results.items():
            print(f"{row['outcome']:18} {name}: {row['reason'][:100]} {row['remarks'][:1]}")
        print(dict(counts))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
