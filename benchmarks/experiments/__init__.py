"""The registry of experiments about training, which `benchmarks/claims.py` runs."""

import ast
import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coursework.records import Claim


@dataclass(frozen=True)
class Experiment:
    """A function that trains once and measures, with all the ways in which it is to be run."""

    name: str
    claim: str
    run: Callable[..., dict[str, float]]
    arms: dict[str, dict[str, Any]]
    rates: tuple[float | None, ...]
    seeds: int
    better: str
    holds: Callable[[Claim], bool]
    sources: Callable[[], str]

    @property
    def recorded_arms(self) -> dict[str, dict[str, Any]]:
        """The arms as a record gives them back: JSON has lists for tuples."""
        return json.loads(json.dumps(self.arms))

    @cached_property
    def fingerprint(self) -> str:
        """Of the source of the function and of what it uses in its own file; comments do not count."""
        return hashlib.sha256((source_of(self.run) + self.sources()).encode()).hexdigest()[:16]


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    *,
    claim: str,
    arms: Mapping[str, Mapping[str, Any]],
    better: str,
    holds: Callable[[Claim], bool],
    rates: Sequence[float | None] = (None,),
    seeds: int = 5,
    sources: Callable[[], str] = str,
) -> Callable[[Callable[..., dict[str, float]]], Callable[..., dict[str, float]]]:
    """Register a function (seed, rate, **settings) -> measures as the experiment behind a claim, under its own name.

    One that trains with `Run`, which catches signals, raises KeyboardInterrupt if `run.interrupted`: else the measures
    of half a training would be recorded.

    Args:
        claim: one sentence that the record must support.
        arms: the settings by label; one of them is the control that could refute the claim.
        better: "max MEASURE" or "min MEASURE", by which the best rate of each arm is chosen.
        holds: whether a record supports the claim.
        rates: tried for each arm; (None,) if there is nothing to try.
        seeds: 0, 1, … below this number.
        sources: text of other files that the experiment runs, for its fingerprint.
    """

    def register(run: Callable[..., dict[str, float]]) -> Callable[..., dict[str, float]]:
        settings = {label: dict(chosen) for label, chosen in arms.items()}
        name = run.__name__
        if name in EXPERIMENTS:
            raise ValueError(f"two experiments have the name {name!r}")
        EXPERIMENTS[name] = Experiment(name, claim, run, settings, tuple(rates), seeds, better, holds, sources)
        return run

    return register


def discover() -> dict[str, Experiment]:
    """Import every file of this folder, and return the experiments by name."""
    for path in sorted(Path(__file__).parent.glob("[!_]*.py")):
        importlib.import_module(f"{__name__}.{path.stem}")
    return EXPERIMENTS


def source_of(function: Callable[..., Any]) -> str:
    """The lines of a function and of every name of its own file that it uses, without comments and decorators."""
    path = inspect.getsourcefile(function)
    text = Path(path or "").read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    defined: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
            defined |= {name: node for name in names if isinstance(name, str) and name not in defined}
    wanted, found = [function.__name__], {}
    while wanted:
        name = wanted.pop()
        if name in defined and name not in found:
            node = found[name] = defined[name]
            body = [*getattr(node, "body", [node]), *ast.walk(getattr(node, "args", node))]
            wanted += [part.id for top in body for part in ast.walk(top) if isinstance(part, ast.Name)]
    kept = [lines[node.lineno - 1 : node.end_lineno] for _, node in sorted(found.items())]
    return "\n".join(line for part in kept for line in part if line.strip() and not line.lstrip().startswith("#"))
