"""Claims about training: every experiment has a complete record that supports its claim, and that another would not."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from each import each

from coursework.records import Claim, claim
from coursework.records.claim import CLAIMS

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import claims
from experiments import EXPERIMENTS, Experiment, discover

ROOT = Path(__file__).parents[1]
ALL = discover()


def others(record: Claim) -> list[Claim]:
    """Records of worlds in which a claim should not hold: arms exchanged, no difference, nothing learned."""
    labels = list(record.arms)
    worlds = []
    for shift in range(1, len(labels)):
        new = dict(zip(labels, labels[shift:] + labels[:shift], strict=True))
        worlds.append([{**run, "arm": new[run["arm"]]} for run in record.runs])
    first = record.runs[0]["measures"]
    worlds += [[{**run, "measures": dict(first)} for run in record.runs]]
    worlds += [[{**run, "measures": dict.fromkeys(first, value)} for run in record.runs] for value in (0.0, 0.5, 1e3)]
    return [dataclasses.replace(record, runs=runs) for runs in worlds]


@each(sorted(ALL))
def test_the_record_supports_the_claim(name):
    experiment, record = ALL[name], claim(name)
    assert record.seeds >= 5
    assert record.arms == experiment.recorded_arms, f"run {record.command}"
    assert (record.rates, record.seeds, record.better) == (experiment.rates, experiment.seeds, experiment.better)
    assert record.claim == experiment.claim, f"run {record.command}"
    assert record.fingerprint == experiment.fingerprint, f"the experiment changed since; run {record.command}"
    assert record.better.split(" ", 1)[0] in ("max", "min")
    assert record.better.split(" ", 1)[1] in record.measures
    assert experiment.holds(record), str(record)
    assert not all(experiment.holds(other) for other in others(record)), f"{name}: no record could refute this claim"


def test_every_record_has_its_experiment():
    assert {path.stem for path in CLAIMS.glob("*.json")} == set(ALL)


def test_the_page_shows_every_record():
    page = (ROOT / "benchmarks/results/claims.md").read_text(encoding="utf-8")
    for name in ALL:
        assert claim(name).markdown() in page, "run python benchmarks/claims.py --table"


@pytest.fixture
def small(tmp_path):
    """An experiment of no cost, and its record."""

    def run(seed, rate, *, gain, steps):
        return {"accuracy": gain * rate + seed / 100, "loss": 1.0}

    arms = {"with": {"gain": 1.0, "steps": (1, 2)}, "without": {"gain": -1.0, "steps": (1, 2)}}
    options = {"claim": "It helps.", "rates": (0.1, 0.5), "seeds": 5, "better": "max accuracy"}
    experiment = Experiment("small", arms=arms, run=run, holds=bool, sources=str, **options)
    return experiment, tmp_path


def test_values_are_those_of_the_best_rate(small):
    record = claims.complete(*small)
    assert (record.best_rate("with"), record.best_rate("without")) == (0.5, 0.1)
    assert record.values("with", "accuracy") == [0.5, 0.51, 0.52, 0.53, 0.54]
    assert record.values("with", "accuracy", rate=0.1)[0] == 0.1
    assert record.range("without", "accuracy") == (-0.1, -0.1 + 0.04)
    assert record.rows[0] == {"arm": "with", "rate": 0.1, "seed": 0, "accuracy": 0.1, "loss": 1.0}
    for call in (("no", "accuracy"), ("with", "no"), ("with", "accuracy", 0.7)):
        with pytest.raises(ValueError, match="the claim 'small' has"):
            record.values(*call)


def test_it_is_shown_with_arms_rates_seeds_and_range(small):
    record = claims.complete(*small)
    for text in (str(record), record.markdown(), record._repr_html_()):
        for part in ("It helps.", "5 seeds", "0.1, 0.5", "without", "0.52 (0.5 … 0.54)", "benchmarks/claims.py small"):
            assert part in text
    assert "with: 0.5 to 0.54; without: -0.1 to -0.06" in record._repr_html_()


def test_a_run_that_was_interrupted_goes_on(small, monkeypatch):
    experiment, folder = small
    calls = []

    def run(seed, rate, **settings):
        calls.append((seed, rate))
        if len(calls) == 8:
            raise KeyboardInterrupt
        return experiment.run(seed, rate, **settings)

    slow = dataclasses.replace(experiment, run=run)
    with pytest.raises(KeyboardInterrupt):
        claims.complete(slow, folder)
    with pytest.raises(ValueError, match=r"7 of 20 runs; make it with: python benchmarks/claims.py small"):
        claim("small", folder)
    assert len(claims.complete(slow, folder).rows) == 20
    assert len(calls) == 21
    claims.complete(slow, folder)
    assert len(calls) == 21
    other = dataclasses.replace(slow, arms={**slow.arms, "with": {"gain": 2.0, "steps": (1, 2)}})
    assert claims.complete(other, folder).values("with", "accuracy")[0] == 1.0
    assert len(calls) == 31


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": "small"}'])
def test_a_damaged_record_says_what_to_do(small, damage):
    experiment, folder = small
    with pytest.raises(ValueError, match=r"there is no record of 'small'.*python benchmarks/claims.py small"):
        claim("small", folder)
    claims.complete(experiment, folder)
    (folder / "small.json").write_text(damage)
    with pytest.raises(ValueError, match=r"damaged.*python benchmarks/claims.py small"):
        claim("small", folder)
    assert len(claims.complete(experiment, folder).rows) == 20


def test_every_single_measure_is_a_number(small):
    experiment, folder = small
    claims.complete(experiment, folder)
    found = json.loads((folder / "small.json").read_text())
    found["runs"][3]["measures"]["loss"] = float("nan")
    (folder / "small.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match="no finite number"):
        claim("small", folder)
    broken = dataclasses.replace(experiment, run=lambda seed, rate, gain, steps: {"accuracy": float("inf")})
    with pytest.raises(ValueError, match="must be finite"):
        claims.complete(broken, folder / "new")


def test_the_fingerprint_follows_what_the_experiment_uses(tmp_path, monkeypatch):
    path = tmp_path / "made.py"
    text = "SIZE = 3\nOTHER = 4\ndef helper():\n    return SIZE\ndef run(seed):\n    return helper()\n"
    found = []
    for changed in (
        text,
        text.replace("OTHER = 4", "OTHER = 5"),
        text + "# more\n",
        text.replace("SIZE = 3", "SIZE = 4"),
    ):
        path.write_text(changed)
        names: dict = {}
        exec(compile(changed, str(path), "exec"), names)
        found.append(sys.modules["experiments"].source_of(names["run"]))
    assert found[0] == found[1] == found[2] != found[3]
    assert EXPERIMENTS is ALL
