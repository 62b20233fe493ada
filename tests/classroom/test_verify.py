"""`course verify` and `course misconceptions`: verdicts that are known, folders of every kind, files that import."""

import csv
import gzip
import html.parser
import io
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from simulated_class import CALL, RIGHT_MASK, WRONG_MASK, Case, code, draw, mask, misjudged, write
from thorough import rounds
from typer.testing import CliRunner

from course_lib.reading import Unreadable
from coursework import classroom, cli
from coursework.classroom import grades, page, remarks, submissions, summary
from coursework.desk import judge, notebooks, pen
from coursework.desk.store import DeskError
from coursework.exercises import registry
from coursework.exercises.engine.cells import PRELUDE, cell_source

ROOT = Path(__file__).resolve().parents[2]
QUICK = {"os._exit(0)", "forged output", "patched engine", "patched engine in the call", "damaged notebook",
         "deleted cell", "forged report", "syntax error", "what another cell computes", "misconception", "right",
         "too deep to read", "100 MB of print", "memory hog", "patched check in another cell"}  # fmt: skip
TROUBLED = '<script>alert(1)</script> "Ada", =1+1'


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> tuple[dict, list[Case]]:
    """A class of one of each kind that needs no waiting, and a loop, which is ended."""
    cases = [case for case in draw(45, random.Random(3)) if case.kind in QUICK][:20]
    folder = tmp_path_factory.mktemp("class")
    write(folder, cases)
    return classroom.judge_class(folder, jobs=2, limits=classroom.Limits(seconds=60)), cases


def test_every_verdict_is_right(judged):
    report, cases = judged
    assert len({case.kind for case in cases}) >= len(QUICK) - 1
    assert not misjudged(report, cases)


def test_the_comparison_bites(judged):
    report, cases = judged
    wrong = [case._replace(outcome="fail" if case.outcome == "pass" else "pass") for case in cases]
    assert len(misjudged(report, wrong)) >= len(cases)


@pytest.mark.parametrize("forks", [True, False] if pen.FORKS else [False])
def test_an_answer_ends_at_its_limit_and_the_next_is_judged(tmp_path, monkeypatch, forks):
    """Also where processes are not forked."""
    monkeypatch.setattr(pen, "FORKS", forks)
    answers = ["import time\nwhile True:\n    time.sleep(0.1)\n" + RIGHT_MASK, RIGHT_MASK]
    write(tmp_path, [mask("", source, "") for source in answers])
    said = []
    with pen.Pen(pen.Limits()) as answering:
        for path, seconds in zip(sorted(tmp_path.rglob("*.ipynb")), (4, 60), strict=True):
            answering.limits = pen.Limits(seconds)
            said.append(judge.judge({"notebook": str(path), "numbers": [2], "exercise": "causal_mask"}, answering))
    assert "stopped after 4 s" in said[0]["problem"]
    assert said[1]["verdict"] == "right"


def notebook(path: Path, source: str = RIGHT_MASK) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [code("a", source + CALL, "causal_mask")]
    path.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}))


def test_downloads_of_moodle_and_canvas_are_understood(tmp_path):
    notebook(tmp_path / "Ada Lovelace_4711_assignsubmission_file_" / "01_attention.ipynb")
    notebook(tmp_path / "Emmy Noether_815_assignsubmission_file_01_attention.ipynb")
    notebook(tmp_path / "turingalan_LATE_99_1234_01_attention.ipynb")
    notebook(tmp_path / "turingalan_99_1235_02_multi_head.ipynb")
    notebook(tmp_path / "plain" / "deep" / "01_attention.ipynb")
    notebook(tmp_path / "plain" / ".course" / "base" / "01_attention-0.ipynb")
    notebook(tmp_path / "grace.ipynb")
    (tmp_path / "zipped.zip").write_bytes(b"")
    found = {(one.name, one.identifier): one for one in submissions.learners(tmp_path)}
    assert set(found) == {
        ("Ada Lovelace", "4711"), ("Emmy Noether", "815"), ("turingalan", "99"), ("plain", ""), ("grace", ""),
        ("zipped", ""),
    }  # fmt: skip
    assert len(found["turingalan", "99"].files) == 2
    assert len(found["plain", ""].files) == 1
    assert found["zipped", ""].problems == ["zipped.zip is not unpacked"]


def test_one_learners_folder_is_one_learner(tmp_path):
    notebook(tmp_path / "my" / "01_attention.ipynb")
    notebook(tmp_path / "my" / "labs" / "01_reach.ipynb")
    assert [(one.name, len(one.files)) for one in submissions.learners(tmp_path / "my")] == [("my", 2)]


@pytest.mark.skipif(os.name != "posix", reason="links and pipes")
def test_what_is_not_the_learners_own_is_not_read_and_said(tmp_path):
    notebook(tmp_path / "ada" / "01_attention.ipynb")
    (tmp_path / "folder").symlink_to("ada")
    (tmp_path / "file.ipynb").symlink_to("ada/01_attention.ipynb")
    for name in ("out", "own", "pipe", "loop"):
        (tmp_path / name).mkdir()
    (tmp_path / "out" / "01_attention.ipynb").symlink_to("../ada/01_attention.ipynb")
    os.mkfifo(tmp_path / "pipe" / "01_attention.ipynb")
    (tmp_path / "loop" / "01_attention.ipynb").symlink_to("01_attention.ipynb")
    notebook(tmp_path / "own" / "mine.ipynb")
    (tmp_path / "own" / "01_attention.ipynb").symlink_to("mine.ipynb")
    found = {one.name: (len(one.files), one.problems) for one in submissions.learners(tmp_path)}
    assert found.pop("ada") == (1, [])
    assert found.pop("own") == (2, [])
    assert all(files == 0 and len(problems) == 1 for files, problems in found.values()), found
    assert all("link out of" in found[name][1][0] for name in ("folder", "file", "out"))


def looked_at(answer: str, *above: str, exercise: str = "causal_mask") -> remarks.Remarks:
    cells = [code(f"c{n}", text) for n, text in enumerate((PRELUDE, *above))] + [code("answer", answer, exercise)]
    text = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})
    found = submissions.answers(Path("x"), notebooks.parse_notebook(text.encode(), "x"))
    return remarks.remarks(next(one for one in found if one.exercise == exercise))


FUNCTION = "def causal_mask(T, S):\n    return "


def borrowing():
    """The course's own code: each way to import it, each way to use it, in the answer's cell or above it."""
    imports = {
        "from course_lib.masks import causal_mask as f": "f",
        "from course_lib import masks as m": "m.causal_mask",
        "import course_lib.masks": "course_lib.masks.causal_mask",
        "from course_lib.masks import *": "causal_mask_of",
        "try:\n    from course_lib.masks import causal_mask as f\nexcept ImportError:\n    f = None": "f",
    }
    for text, name in imports.items():
        if name == "causal_mask_of":
            text, name = f"{text}\nkept = causal_mask", "kept"
        yield (FUNCTION + f"{name}(T, S)", text)
        yield (text + "\n\n" + FUNCTION + f"{name}(T, S)",)
        yield (FUNCTION + "helper(T, S)", f"{text}\n\n\ndef helper(T, S, f={name}):\n    return f(T, S)")
        yield (FUNCTION + "Box.make(T, S)", f"{text}\n\n\nclass Box:\n    make = staticmethod({name})")


@pytest.mark.parametrize("texts", list(borrowing()), ids=lambda texts: texts[-1].partition("\n")[0])
def test_borrowed_code_is_said_wherever_it_is_imported(texts):
    assert "it uses the course's own code" in " ".join(looked_at(*texts).texts)


HIDDEN = f"bytes.fromhex('{b'course_lib.masks.causal_mask'.hex()}').decode()"


@pytest.mark.parametrize(
    "way",
    ["pydoc.locate({})", "typing.get_type_hints({})", "operator.attrgetter({})", "torch.builtins.eval({})",
     "torch.fx.graph_module._forward_from_src({})", "random._os", "heapq.sys.modules[{}]", "np.load({})",
     "(lambda: 0).__globals__", "(x for x in ()).gi_frame.f_builtins", "getattr(torch, {})", "ex.causal_mask.spec",
     "'a text that is far longer than any that an answer has'", "__builtins__"],
)  # fmt: skip
@pytest.mark.parametrize("above", [False, True])
def test_words_that_no_answer_needs_are_said(way, above):
    """Whichever they are: what is known is what answers say, not what they must not."""
    source = way.format("'a' + 'b'")
    head = "import heapq, operator, pydoc, random, typing\nimport numpy as np\n"
    texts = (FUNCTION + "helper()", f"{head}def helper():\n    return {source}") if above else (FUNCTION + source, head)
    assert "look at the code" in " ".join(looked_at(*texts).texts)
    assert "look at the code" in " ".join(looked_at(FUNCTION + HIDDEN).texts)


def test_answers_of_strangers_get_no_remark():
    """Of right answers that nobody here wrote, at most one in fifty."""
    with gzip.open(ROOT / "tests" / "exercises" / "unseen_answers.jsonl.gz", "rt", encoding="utf-8") as lines:
        right = [row for row in map(json.loads, lines) if row["kind"] == "right"]
    asked = random.Random(1).sample(right, rounds(50, len(right)))
    found = [(row["id"], looked_at(row["code"], exercise=row["exercise"]).texts) for row in asked]
    said = [one for one in found if one[1]]
    assert len(said) <= max(2, len(found) // 50), said


def test_an_answer_that_rests_on_what_the_learner_has_not_solved_says_so(tmp_path):
    uses = "def batched_attention(query, key, value):\n    return scaled(query[None], key[None], value[None])[0]\n"
    stub = cell_source(registry.get("scaled_dot_product_attention")).replace("attention = ex", "scaled = ex")
    assert "scaled = ex" in stub
    assert looked_at(uses, stub, exercise="batched_attention").stand_ins == {"scaled_dot_product_attention"}
    for name, mine in (("no", WRONG_MASK), ("yes", RIGHT_MASK)):
        cells = [code("a", PRELUDE), code("b", f"{mine}\nmask = ex.causal_mask.check(causal_mask)", "causal_mask")]
        cells.append(code("c", "def padding_mask(*a):\n    return mask(*a)\nex.padding_mask.check()", "padding_mask"))
        document = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
        (tmp_path / name).mkdir()
        (tmp_path / name / "01_attention.ipynb").write_text(json.dumps(document))
    report = classroom.judge_class(tmp_path, exercises=["causal_mask", "padding_mask"], jobs=1)
    said = {
        who["name"]: " ".join(who["results"][0]["remarks"] + who["results"][1]["remarks"]) for who in report["learners"]
    }
    assert "the course's own version of causal_mask, which this learner has not solved" in said["no"]
    assert not said["yes"]


@pytest.mark.parametrize(
    ("folder", "chapters", "exercises", "says"),
    [
        ("nowhere", (), (), "FOLDER must be a folder"),
        ("", (), (), "no learner in"),
        ("class", ("99",), (), "--chapter must be"),
        ("class", (), ("causal_mas",), "Did you mean causal_mask"),
    ],
)
def test_what_cannot_be_judged_is_said(tmp_path, folder, chapters, exercises, says):
    if folder == "class":
        (tmp_path / "class" / "ada").mkdir(parents=True)
    with pytest.raises(DeskError, match=says):
        classroom.judge_class(tmp_path / folder, chapters=chapters, exercises=exercises)


def report_of(*outcomes: str, name: str = "ada", identifier: str = "") -> dict:
    wrong = {"name": "aligned-top-left", "statement": "puts it <b>there</b>", "question": "Where?"}
    ids = ["causal_mask", "padding_mask"][: len(outcomes)]
    results = [
        {
            "exercise": one,
            "outcome": outcome,
            "misconceptions": [wrong] if outcome == "fail" else [],
            "reason": "it <raised>" if outcome == "could not be run" else "",
            "where": "",
            "remarks": [],
        }
        for one, outcome in zip(ids, outcomes, strict=True)
    ]
    return {
        "schema": "course-verify/1",
        "started": "now",
        "seconds": 1.0,
        "exercises": [{"id": one, "title": one, "notebook": "01_attention"} for one in ids],
        "learners": [{"name": name, "id": identifier, "problems": [], "results": results}],
    }


def test_grades_import_into_canvas():
    """As `gradebook_importer.rb` of Canvas reads it: Student, ID, Section by place, then assignments; points."""
    rows = list(csv.reader(io.StringIO(grades.canvas(report_of("pass", "fail", name="Ada L.", identifier="7")))))
    assert rows == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "01_attention"],
        ["    Points Possible", "", "", "", "", "2"],
        ["Ada L.", "7", "", "", "", "1"],
    ]


def test_a_roster_keeps_who_somebody_is(tmp_path):
    path = tmp_path / "roster.csv"
    path.write_text(
        "First name,Last name,ID number,Email address,Quiz (Real)\n"
        "Ada,Lovelace,17,ada@x.org,3\nAda,Other,18,b@x.org,4\n"
    )
    roster = grades.read_roster(path)
    report = report_of("pass", "fail", name="Ada Lovelace", identifier="4711")
    assert list(csv.reader(io.StringIO(grades.moodle(report, roster)))) == [
        ["First name", "Last name", "ID number", "Email address", "01_attention (percent)"],
        ["Ada", "Lovelace", "17", "ada@x.org", "50.00"],
    ]
    assert grades.unknown(report_of("pass", name="Ada"), roster) == ["Ada"]  # two are called so
    assert "'=1+1" in grades.moodle(report_of("pass", name="=1+1"))


def test_the_page_is_plain_and_safe():
    text = page.page(report_of("fail", "could not be run", name=TROUBLED))
    opened: list[str] = []
    reader = html.parser.HTMLParser()
    reader.handle_starttag = lambda tag, attrs: opened.append(tag)  # type: ignore[method-assign]
    reader.feed(text)
    assert not {"script", "link", "img", "b", "raised"} & set(opened)
    assert "http" not in text
    assert opened.count("caption") == opened.count("table") == 4
    assert 'scope="row"' in text
    assert '<html lang="en">' in text


def test_the_summary_names_the_section_to_teach_again():
    (one, other) = summary.summarise(report_of("fail", "could not be run"))
    assert (one.tried, one.passed, one.mistakes[0].name, one.mistakes[0].learners) == (1, 0, "aligned-top-left", 1)
    assert other.broken == 1
    (section,) = summary.again([one, other])
    assert section[0] == "01_attention"
    assert "Masks" in section[1]
    assert summary.again(summary.summarise(report_of("pass"))) == []


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_the_report_goes_where_it_is_meant_to_go(tmp_path, monkeypatch):
    """What lies in a learner's checkout leads it nowhere else, and is said before anything is judged."""
    notebook(tmp_path / "ada" / "01_attention.ipynb")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "ada")
    Path("verified").symlink_to("../other")
    Path("kept", "report.html").mkdir(parents=True)
    for arguments, says in (([], "a link in FOLDER"), (["--out", "kept"], "with a folder report.html")):
        done = CliRunner().invoke(cli.app, ["verify", ".", *arguments])
        assert done.exit_code == 2
        assert says in done.output
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other"}', '{"schema": "course-verify/1"}'])
def test_what_is_no_report_is_said(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    done = CliRunner().invoke(cli.app, ["misconceptions", str(tmp_path / "report.json")])
    assert done.exit_code == 2
    assert "report" in done.output


def damaged(value):
    """A value as JSON has it, damaged in every place: each part in turn is missing, or a number."""
    if isinstance(value, dict | list):
        for place in list(value) if isinstance(value, dict) else range(len(value)):
            kept = value.copy()
            del kept[place]
            yield kept
            for part in damaged(value[place]):
                changed = value.copy()
                changed[place] = part
                yield changed
    yield 5


def test_a_damaged_report_is_named(tmp_path):
    path, tried = tmp_path / "report.json", set()
    for report in damaged(report_of("fail", "pass")):
        path.write_text(json.dumps(report))
        done = CliRunner().invoke(cli.app, ["misconceptions", str(path)])
        assert done.exit_code in (0, 2), done.output
        assert done.exit_code == 0 or done.output.startswith(f"course: {path}"), done.output
        tried.add(done.exit_code)
    assert tried == {0, 2}


def test_options_that_exclude_each_other(tmp_path):
    write(tmp_path, [mask("", RIGHT_MASK, "pass")])
    with pytest.raises(DeskError, match="--exercise: expected one of the chapters 2, got causal_mask"):
        classroom.judge_class(tmp_path, chapters=["2"], exercises=["causal_mask"])
    with pytest.raises(Unreadable, match="expected a file, got a device"):
        grades.read_roster(Path("/dev/zero"))


@pytest.mark.skipif(os.name != "posix" or not shutil.which("bash"), reason="the steps are for bash")
def test_the_workflow_for_a_class_runs(tmp_path):
    """Its own steps, in a folder as the checkouts leave it; what GitHub does before and after is not run."""
    text = (ROOT / ".github" / "classroom" / "verify.yml").read_text(encoding="utf-8")
    job = yaml.safe_load(text)["jobs"]["verify"]
    notebook(tmp_path / "submissions" / "ada" / "01_attention.ipynb", WRONG_MASK)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "course"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m coursework.cli "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    said = {"PATH": path, "PYTHONPATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "CI": "true"}
    steps = [step for step in job["steps"] if "run" in step and step["name"] != "Install"]
    assert [step["name"] for step in steps] == ["Verify", "Summarise"]
    for step in steps:
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]], cwd=tmp_path, env={**os.environ, **said}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert "aligned-top-left" in (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert (tmp_path / "verified" / "report.html").exists()
