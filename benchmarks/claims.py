"""What the course says about training, trained again: several seeds, several rates, and a control.

    python benchmarks/claims.py [NAME ...]    runs what is missing, and prints the tables
    python benchmarks/claims.py --list        the experiments, and what is recorded of each
    python benchmarks/claims.py --table       writes results/claims.md from all the records
    python benchmarks/claims.py --quick NAME  one seed; writes nothing

An experiment is a function in `benchmarks/experiments/`. Its record lies in the package, in
`coursework/records/claims/`, and is saved after each run, so that an interrupted command goes on where it was.
"""

import argparse
import itertools
import json
import math
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from experiments import Experiment, discover
from harness import RESULTS, environment

from course_lib.files import write_atomic
from coursework.records import Claim, claim
from coursework.records.claim import CLAIMS


def kept(found: dict, experiment: Experiment) -> list[dict]:
    """The runs of an earlier record that are still true: same source, same settings."""
    if found.get("fingerprint") != experiment.fingerprint:
        return []
    same = {label for label, settings in experiment.recorded_arms.items() if found["arms"].get(label) == settings}
    return [
        run
        for run in found["runs"]
        if run["arm"] in same and run["rate"] in experiment.rates and run["seed"] < experiment.seeds
    ]


def one_run(experiment: Experiment, arm: str, rate: float | None, seed: int) -> dict:
    """Train once; ValueError if a measure is no finite number."""
    began = time.process_time()
    measures = experiment.run(seed, rate, **experiment.arms[arm])
    if not all(math.isfinite(value) for value in measures.values()):
        raise ValueError(f"{experiment.name}, {arm}, rate {rate}, seed {seed}: measures must be finite, got {measures}")
    seconds = round(time.process_time() - began, 2)
    return {"arm": arm, "rate": rate, "seed": seed, "cpu_seconds": seconds, "measures": measures}


def complete(experiment: Experiment, folder: Path = CLAIMS) -> Claim:
    """Run what is missing, saving after each run, and return the record."""
    path = folder / f"{experiment.name}.json"
    try:
        runs = kept(json.loads(path.read_text(encoding="utf-8")), experiment)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or damaged: all again
        runs = []
    done = {(run["arm"], run["rate"], run["seed"]) for run in runs}
    every = list(itertools.product(experiment.arms, experiment.rates, range(experiment.seeds)))
    missing = [run for run in every if run not in done]
    where = environment() if missing else json.loads(path.read_text(encoding="utf-8"))["environment"]
    for arm, rate, seed in missing or [(None, None, None)]:
        if arm is not None:
            runs.append(one_run(experiment, arm, rate, seed))
            print(f"{experiment.name}: {len(runs)} of {len(every)}  {runs[-1]}", flush=True)
        runs.sort(key=lambda run: every.index((run["arm"], run["rate"], run["seed"])))
        record = {
            "name": experiment.name,
            "claim": experiment.claim,
            "arms": experiment.arms,
            "rates": experiment.rates,
            "seeds": experiment.seeds,
            "better": experiment.better,
            "runs": runs,
            "environment": {**where, "command": f"python benchmarks/claims.py {experiment.name}"},
            "fingerprint": experiment.fingerprint,
        }
        write_atomic(path, json.dumps(record, indent=1) + "\n")
    return claim(experiment.name, folder)


def page(records: list[Claim]) -> str:
    """All the tables."""
    lines = ["# What training was found to do", "", "Mean (least … greatest) over the seeds; * is the best rate."]
    for record in records:
        where = record.environment
        lines += ["", f"## {record.name}", "", record.markdown(), f"{where['device']}, torch {where['torch']}"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, list, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    experiments = discover()
    if unknown := set(options.names) - set(experiments):
        parser.error(f"no experiment {sorted(unknown)}; there are {sorted(experiments)}")
    for name in options.names or sorted(experiments):
        experiment = experiments[name]
        if options.list or options.table:
            if options.list:
                print(f"{name}: {experiment.claim}")
        elif options.quick:
            for arm, rate in itertools.product(experiment.arms, experiment.rates):
                print(one_run(experiment, arm, rate, 0), flush=True)
        else:
            record = complete(experiment)
            print(record, "" if experiment.holds(record) else "\nThe record does not support the claim.", sep="\n")
    if options.table:
        there = sorted(name for name in experiments if (CLAIMS / f"{name}.json").is_file())
        print("not run yet:", *(sorted(set(experiments) - set(there)) or ["none"]))
        write_atomic(RESULTS / "claims.md", page([claim(name) for name in there]))


if __name__ == "__main__":
    main()
