"""`course assemble`: right answers become one module that needs nothing of the course."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pretended_device import another_device
from thorough import rounds
from typer.testing import CliRunner

from coursework import cli
from coursework.assembly import assemble as assembling
from coursework.assembly import judge, laws
from coursework.assembly.assemble import Assembled, assemble
from coursework.assembly.compose import Part, compose
from coursework.assembly.extract import Extract, Unusable, extract, renamed
from coursework.assembly.parts import FUNCTIONS, PARTS
from coursework.desk import isolated
from coursework.desk.store import Desk, DeskError
from coursework.exercises import registry
from coursework.exercises.engine.cells import cell_source, solved_cell_source


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    found = Desk(tmp_path / "mon école" / "my")
    found.private.mkdir(parents=True)
    return found


def solve(desk: Desk, *names: str) -> None:
    for one in names:
        desk.save_answer(one, solved_cell_source(registry.get(one)), "right", "1")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judging runs in this process, which is faster; answers here neither loop nor exit."""

    def run(command: list[str], seconds: float) -> tuple[int, str]:
        import json

        module, *arguments = command[command.index("-m") + 1 :]
        if module.endswith("judge"):
            judge.main(json.loads(Path(arguments[0]).read_text(encoding="utf-8")), Path(arguments[1]))
        else:
            laws.main(Path(arguments[0]), json.loads(arguments[1]), Path(arguments[2]))
        return 0, ""

    monkeypatch.setattr(isolated, "run", run)


@pytest.fixture
def unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is taken as it is, and the module is not checked."""
    monkeypatch.setattr(assembling, "_judge", lambda texts, wanted, solutions, seconds: dict.fromkeys(texts, ""))
    monkeypatch.setattr(assembling, "_check", lambda done, seconds: [])


def states(done: Assembled) -> set[str]:
    return {state for state, _, _ in done.checks}


def modules_of(text: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {
        name.partition(".")[0] for name in [*names, *(node.module or "." for node in nodes if hasattr(node, "module"))]
    }


def test_all_solved_gives_a_module_that_obeys_the_laws_and_equals_torch(desk: Desk) -> None:
    """In its own processes, as a learner runs it."""
    solve(desk, *PARTS)
    result = CliRunner().invoke(cli.app, ["--folder", str(desk.folder), "assemble"])
    assert result.exit_code == 0, result.output
    claims = 1 + len(laws.LAWS) + len(laws.PARITY)
    assert [line.split()[0] for line in result.output.splitlines() if line[:5] in ("holds", "broke", "waits")] == [
        "holds"
    ] * claims
    assert f"From your own answers: {len(PARTS)} parts." in result.output
    text = (desk.folder / "my_transformer.py").read_text(encoding="utf-8")
    assert modules_of(text) <= {"torch", *sys.stdlib_module_names}
    assert not re.search("course_lib|coursework", text)
    assert text.count("# Your answer to ") == len(PARTS)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,B", "-"]
    assert subprocess.run(ruff, input=text.encode(), capture_output=True).returncode == 0


def test_the_module_trains_where_the_course_is_not_installed(desk: Desk, unjudged: None, tmp_path: Path) -> None:
    solve(desk, *PARTS)
    path = assemble(desk).path
    (tmp_path / "own.txt").write_text("ein Text, der sich wiederholt. " * 100, encoding="utf-8")
    blocked = "import sys\nsys.modules['course_lib'] = sys.modules['coursework'] = None\n"
    run = f"import runpy\nrunpy.run_path({str(path)!r}, run_name='__main__')\n"
    for task, first_below in (("translate", 3.6), ("lm --data own.txt", 4.0)):
        code = f"{blocked}sys.argv[1:] = {[*task.split(), '--steps', '30']!r}\n{run}"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )
        assert done.returncode == 0, done.stderr
        losses = [float(line.split()[3]) for line in done.stdout.splitlines() if line.startswith("step")]
        assert losses[0] < first_below
        assert losses[-1] < 0.7 * losses[0], done.stdout


@pytest.mark.parametrize("task", ["translate", "lm"])
def test_the_module_trains_and_writes_on_another_device(desk: Desk, unjudged: None, task: str) -> None:
    solve(desk, *PARTS)
    my = laws._load(assemble(desk).path)
    with another_device() as device:
        try:
            assert len(my.main([task, "--steps", "2", "--device", str(device)])) == 2
        finally:
            torch.set_default_device(None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lm", "--data", "nowhere.txt"], "nowhere.txt cannot be read: No such file"),
        (["lm", "--data", "short.txt"], "short.txt: expected at least 1280 characters, found 3"),
        (["translate", "--data", "short.txt"], 'expected at least 20 lines "source<tab>target", found 0'),
        (["lm", "--steps", "0"], "--steps: expected at least 1, got 0"),
        (["lm", "--device", "quark"], "--device quark: "),
    ],
)
def test_bad_input_to_the_module_gets_one_line(desk, unjudged, tmp_path, monkeypatch, capsys, arguments, says):
    solve(desk, *PARTS)
    my = laws._load(assemble(desk).path)
    (tmp_path / "short.txt").write_text("abc")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        my.main(arguments)
    assert end.value.code not in (0, None)
    assert says in (end.value.code if isinstance(end.value.code, str) else capsys.readouterr().err)


def test_half_solved_leaves_parts_open_and_fill_marks_the_courses_own(desk: Desk, here: None) -> None:
    half = list(PARTS[: len(PARTS) // 2])
    solve(desk, *half)
    done = assemble(desk)
    assert done.own == half
    assert set(done.open) == set(PARTS) - set(half)
    assert set(done.open.values()) == {"not tried yet"}
    assert states(done) == {"holds", "waits"}
    module = laws._load(done.path)
    with pytest.raises(NotImplementedError, match="noam_rate is open: solve noam_rate, then run `course assemble`"):
        module.noam_rate(1, 2, 3)

    done = assemble(desk, fill=True)
    assert not done.open
    assert states(done) == {"holds"}
    assert done.backup is None  # nobody had edited it
    text = done.path.read_text(encoding="utf-8")
    assert text.count("# THE COURSE'S OWN VERSION of ") == len(PARTS) - len(half) == len(done.filled)


def test_a_wrong_answer_is_not_taken_and_an_older_right_one_is(desk: Desk, here: None) -> None:
    solve(desk, "noam_rate", "clip_gradients")
    wrong = "def noam_rate(step, d_model, warmup):\n    return 1.0\n"
    desk.save_answer("noam_rate", wrong, "wrong", "1")
    desk.save_answer("shift_right", "def shift_right(targets, start_id):\n    return targets\n", "wrong", "1")
    desk.save_answer("layer_norm", "def layer_norm(x, weight, bias, eps=1e-5):\n    return x\n", "right", "0")  # a lie
    done = assemble(desk)
    assert done.own == ["noam_rate", "clip_gradients"]
    assert "return 1.0" not in done.path.read_text(encoding="utf-8")
    assert done.open["shift_right"] == "no right answer yet, 1 tried"
    assert "does not pass the check of today" in done.open["layer_norm"]


def test_nothing_solved_writes_nothing_unless_filled(desk: Desk, here: None, monkeypatch) -> None:
    desk.save_answer("noam_rate", cell_source(registry.get("noam_rate")), "wrong", "1")
    with pytest.raises(DeskError, match="there is no right answer yet"):
        assemble(desk)
    assert not (desk.folder / "my_transformer.py").exists()
    monkeypatch.setattr(assembling, "_check", lambda done, seconds: [])
    assert len(assemble(desk, fill=True).filled) == len(PARTS)


def test_damaged_answers_are_named_and_do_no_harm(desk: Desk, here: None) -> None:
    solve(desk, "noam_rate", "clip_gradients", "layer_norm")
    for one, content in (("noam_rate", b"\x00\xff\x80" * 50), ("layer_norm", b"")):
        path = next((desk.answers / "history" / one).glob("*.py"))
        head = path.read_bytes().split(b"\n")[0] if one == "noam_rate" else b""
        path.write_bytes(head + b"\n" + content)
    done = assemble(desk)
    assert done.own == ["clip_gradients"]
    assert "cannot be taken" in done.open["noam_rate"]
    assert "layer_norm" in done.open


@pytest.mark.parametrize(
    ("first_line", "says"),
    [("while True: pass", "does not come to an end"), ("__import__('os')._exit(0)", "ends the whole process")],
    ids=["loops", "exits"],
)
def test_an_answer_that_loops_or_exits_is_named_and_the_others_are_judged(tmp_path, first_line, says):
    sources = {
        "noam_rate": f"class Odd:\n    {first_line}\n\n\ndef noam_rate(step, d_model, warmup):\n    return Odd()\n",
        "clip_gradients": solved_cell_source(registry.get("clip_gradients")).split("\n\n\n")[0],
    }
    verdicts = assembling._judge(sources, [], {}, seconds=20)
    assert says in verdicts["noam_rate"]
    assert verdicts["clip_gradients"] == ""


def test_an_edited_module_is_kept(desk: Desk, unjudged: None) -> None:
    solve(desk, "noam_rate")
    path = assemble(desk).path
    assert assemble(desk).backup is None
    mine = path.read_text(encoding="utf-8") + "\n# my own line\n"
    path.write_text(mine, encoding="utf-8")
    solve(desk, "layer_norm")
    done = assemble(desk)
    assert done.backup is not None
    assert done.backup.read_text(encoding="utf-8") == mine
    assert done.backup.is_relative_to(desk.private / "backup")
    assert "my own line" not in path.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_leaves_the_old_module(desk: Desk, unjudged: None, monkeypatch) -> None:
    solve(desk, "noam_rate")
    before = assemble(desk).path.read_bytes()
    solve(desk, "layer_norm")

    def refused(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(DeskError, match=r"my_transformer.py could not be written: Permission denied"):
        assemble(desk)
    assert (desk.folder / "my_transformer.py").read_bytes() == before


# -- what is cut out of an answer --------------------------------------------------------------------------------------


def cut(answer: str, before: str = "") -> Extract:
    return extract(answer, "noam_rate", "noam_rate", {"attention", "noam_rate"}, before)


def test_only_what_the_function_needs_is_taken():
    answer = """
import math, numpy
from torch import sqrt as root
print("trying")
HALF = 0.5
unused = torch.rand(3)
# a remark of mine
def helper(x):
    return x ** HALF
def noam_rate(step, d_model, warmup):
    return helper(d_model) * math.pi + root(step)

noam_rate = ex.noam_rate.check(noam_rate)
"""
    found = cut(answer)
    assert found.imports == {"math": "import math", "root": "from torch import sqrt as root"}
    assert found.helpers == ["helper", "HALF"]
    assert "trying" not in found.source
    assert "unused" not in found.source
    assert "# a remark of mine\ndef helper" in found.source
    assert found.source.index("HALF = 0.5") < found.source.index("def noam_rate")


def test_a_notebooks_definitions_are_taken_and_the_modules_own_parts_are_not():
    answer = "def noam_rate(step):\n    return attention(step) + twice(step)\n"
    found = cut(answer, "def twice(x):\n    return 2 * x\n\ndef attention(x):\n    return 'of the notebook'\n")
    assert "def twice" in found.source
    assert "of the notebook" not in found.source


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("def noam_rate(", "line 1 is not Python"),
        ("def other(): pass", "defines no `noam_rate`"),
        ("def noam_rate():\n    return table[0]", "uses `table`, which it does not define"),
        ("import numpy as np\ndef noam_rate():\n    return np.pi", "imports numpy"),
        ("def noam_rate():\n    from course_lib import masks\n    return masks", "imports course_lib"),
        ("from .x import y\ndef noam_rate():\n    return y", "imports .x"),
    ],
)
def test_what_cannot_stand_alone_says_why(answer, says):
    with pytest.raises(Unusable, match=says.replace("(", r"\(")):
        cut(answer)


def test_renaming_spares_locals_arguments_and_attributes():
    source = """
def f(x):
    def inner(f):
        return f(x.f, f=1)
    return f(inner(x)) + sum(f for f in x) + g(f=f)
def g(x, f=3, *, y=lambda f: f):
    f = 2
    return f
class A:
    f = f
"""
    namespace = renamed(source, {"f": "other"})
    expected = source.replace("def f(x)", "def other(x)").replace("return f(inner(x))", "return other(inner(x))")
    assert namespace == expected.replace("g(f=f)", "g(f=other)").replace("f = f", "f = other")


def test_helpers_and_imports_with_one_name_are_told_apart():
    parts = {one: Part("open", None) for one in PARTS}
    parts["noam_rate"] = Part(
        "a", cut("from math import sqrt\ndef norm(x): return sqrt(x)\ndef noam_rate(x): return norm(x)")
    )
    other = extract(
        "from torch import sqrt\ndef norm(x): return sqrt(x)\ndef layer_norm(x): return norm(x)", "layer_norm", "x", ()
    )
    parts["layer_norm"] = Part("b", other)
    text = compose(parts)
    assert "from math import sqrt as sqrt_of_noam_rate" in text
    assert "def norm_of_noam_rate(x): return sqrt_of_noam_rate(x)" in text
    assert "def norm(x): return sqrt(x)" in text


def test_every_part_is_an_exercise_in_code_under_its_name():
    for one in PARTS:
        assert registry.get(one).function_name == FUNCTIONS[one]


def test_a_module_with_a_planted_fault_is_found_out(desk: Desk, here: None) -> None:
    """The checks bite: each fault, in the frame or in a part, breaks the claim it should."""
    solve(desk, *PARTS)
    path = assemble(desk).path
    right = path.read_text(encoding="utf-8")
    faults = {
        "x = block(x, cache=cache)": ("x = block(x)", "GPT: tokens fed through the cache"),
        "return self.read(self.embed(tokens), padding_mask(tokens, PAD))": (
            "return self.read(self.embed(tokens), None)",
            "EncoderDecoder: padding behind the source",
        ),
        "            x = block(x, mask)\n        return self.norm(x)\n": (
            "            x = block(x, None)\n        return self.norm(x)\n",
            "Encoder: what stands in padding",
        ),
        "return layer_norm(x, self.weight, self.bias)": ("return layer_norm(x, 1.0, self.bias)", "a gradient reaches"),
    }
    for old, (new, claim) in list(faults.items())[: rounds(1, 4)]:
        assert right.count(old) == 1, old
        path.write_text(right.replace(old, new), encoding="utf-8")
        broken = [said for state, said, _ in assembling._check(Assembled(path), 60) if state == "broken"]
        assert any(claim in said for said in broken), (old, broken)
