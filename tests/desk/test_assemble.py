"""`course assemble`: right answers become one module that needs nothing of the course."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from thorough import rounds
from torch.utils._pytree import tree_map_only
from typer.testing import CliRunner

from coursework import cli
from coursework.assembly import assemble as assembling
from coursework.assembly import judge, laws
from coursework.assembly.assemble import Assembled, assemble, stand_in
from coursework.assembly.compose import Part, compose
from coursework.assembly.extract import Extract, Unusable, extract, renamed
from coursework.assembly.parts import FUNCTIONS, LAST, PARTS, up_to
from coursework.assembly.pretended_device import another_device
from coursework.assembly.thread import so_far
from coursework.desk import isolated
from coursework.desk.store import Desk, DeskError
from coursework.exercises import registry
from coursework.exercises.engine.cells import edition, solved_cell_source


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
        module, *arguments = command[command.index("-m") + 1 :]
        if module.endswith("judge"):
            judge.main(json.loads(Path(arguments[0]).read_text(encoding="utf-8")), Path(arguments[1]))
        else:
            laws.main(Path(arguments[0]), int(arguments[1]), Path(arguments[2]))
        return 0, ""

    monkeypatch.setattr(isolated, "run", run)


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembling, "_check", lambda done, seconds: [])


def taken_as_it_is(patch: pytest.MonkeyPatch) -> None:
    """Answers are not judged, and the module is not checked."""
    patch.setattr(assembling, "_judge", lambda texts, seconds: dict.fromkeys(texts, ""))
    patch.setattr(assembling, "_check", lambda done, seconds: [])


@pytest.fixture
def unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_as_it_is(monkeypatch)


def states(done: Assembled) -> set[str]:
    return {state for state, _, _ in done.checks}


def modules_of(text: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {
        name.partition(".")[0] for name in [*names, *(node.module or "." for node in nodes if hasattr(node, "module"))]
    }


def test_all_solved_gives_a_module_that_obeys_the_laws_and_equals_torch(desk: Desk, monkeypatch) -> None:
    """In its own processes, as a learner runs it; of the answers, which are judged again in the module, some alone."""
    judge_all = assembling._judge

    def judge_some(texts: dict[str, str], seconds: float) -> dict[str, str]:
        some = {one: texts[one] for one in list(texts)[:: rounds(4, 1)]}
        return dict.fromkeys(texts, "") | judge_all(some, seconds)

    monkeypatch.setattr(assembling, "_judge", judge_some)
    solve(desk, *PARTS)
    result = CliRunner().invoke(cli.app, ["--folder", str(desk.folder), "assemble"])
    assert result.exit_code == 0, result.output
    states = [line.split()[0] for line in result.output.splitlines() if line[:5] in ("holds", "broke")]
    assert states == ["holds"] * len(laws.CLAIMS)
    assert f"From your own answers: {len(PARTS)} parts." in result.output
    text = (desk.folder / "my_transformer.py").read_text(encoding="utf-8")
    assert modules_of(text) <= {"torch", *sys.stdlib_module_names}
    assert not re.search("course_lib|coursework", text)
    assert text.count("# Your answer to ") == len(PARTS)
    assert len(text.splitlines()) <= 600
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,B", "-"]
    assert subprocess.run(ruff, input=text.encode(), capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    desk = Desk(tmp_path_factory.mktemp("whole"))
    desk.private.mkdir()
    solve(desk, *PARTS)
    with pytest.MonkeyPatch.context() as patch:
        taken_as_it_is(patch)
        return assemble(desk).path.read_text(encoding="utf-8")


@pytest.fixture
def module(desk: Desk, whole: str) -> Path:
    """The module of a learner who solved everything."""
    path = desk.folder / "my_transformer.py"
    path.write_text(whole, encoding="utf-8")
    return path


def run(module: Path, *arguments: str) -> str:
    """What the module says as a program of its own, in the folder above it, where the course is not installed."""
    blocked = "import sys\nsys.modules['course_lib'] = sys.modules['coursework'] = None\n"
    code = f"import runpy\nsys.argv[1:] = {arguments!r}\nrunpy.run_path({str(module)!r}, run_name='__main__')\n"
    done = subprocess.run(
        [sys.executable, "-I", "-c", blocked + code],
        cwd=module.parent,
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(said: str) -> list[float]:
    return [float(line.split()[-1]) for line in said.splitlines() if line.startswith("step")]


SMALL = ("--d-model", "32", "--n-layers", "1", "--device", "cpu")
STEPS = ("--steps", "60", "--evaluate-every", "20")


OTHER = ("--precision", "bfloat16", "--no-rotary", "--no-tied", "--accumulation", "2")
HOW = pytest.mark.parametrize("how", [(), pytest.param(OTHER, marks=pytest.mark.thorough)], ids=["as it is", "other"])
OTHERWISE = pytest.mark.parametrize("how", [pytest.param((), marks=pytest.mark.thorough), OTHER], ids=HOW.kwargs["ids"])


@HOW
def test_a_translator_learns_stays_and_translates_later(
    module: Path, capsys, monkeypatch, how: tuple[str, ...]
) -> None:
    numbers = "".join(f"{'abcdefghij'[n % 10]}{n // 10}\t{n // 10} {'abcdefghij'[n % 10]}\n" for n in range(200))
    (module.parent / "pairs.txt").write_text(numbers, encoding="utf-8")
    said = run(module, "translate", "--data", "pairs.txt", "--out", "mine", *STEPS, *SMALL, *how)
    assert losses(said)[-1] < 0.7 * losses(said)[0]
    assert "of 20 held-out texts are right in every character" in said
    use = ["use", "--out", "mine", "--text", "b7", "--device", "cpu"]
    later = run(module, *use)
    monkeypatch.chdir(module.parent)
    laws.load(module).main(use)
    assert later == capsys.readouterr().out != "\n"


@OTHERWISE
def test_a_language_model_learns_stays_and_writes_later(module: Path, how: tuple[str, ...]) -> None:
    (module.parent / "own.txt").write_text("ein Text, der sich wiederholt. " * 100, encoding="utf-8")
    said = run(module, "lm", "--data", "own.txt", "--out", "mine", *STEPS, *SMALL, *how)
    assert losses(said)[-1] < 0.8 * losses(said)[0]
    written = run(module, "use", "--out", "mine", "--text", "ein ", "--length", "30", "--device", "cpu")
    assert written.startswith("ein ")
    assert len(written) == 35


@pytest.mark.parametrize("task", ["translate", "lm"])
def test_the_module_trains_and_writes_on_another_device(module: Path, task: str, monkeypatch) -> None:
    my = laws.load(module)
    data = module.parent / "data.txt"
    data.write_text("".join(f"{n}\t{n * n}{'.' * 40}\n" for n in range(60)), encoding="utf-8")
    save = torch.save  # what the pretended device holds cannot be stored

    def saved(what: object, path: Path) -> None:
        save(tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), what), path)

    monkeypatch.setattr(torch, "save", saved)
    with another_device() as device:
        how = ["--steps", "2", "--d-model", "16", "--n-layers", "1", "--device", str(device), "--no-tied"]
        out = ["--out", str(module.parent / "mine")]
        my.main([task, "--data", str(data), *out, *how])
        my.main(["use", "--text", "12", "--length", "5", *out, "--device", str(device)])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["lm", "--data", "nowhere.txt"], "No such file"),
        (["lm", "--data", "short.txt"], "--data: expected at least 1280 characters, found 3"),
        (["translate", "--data", "short.txt"], '--data: expected at least 20 lines "source<tab>target", found 0'),
        (["lm", "--steps", "0"], "--steps: expected a multiple of --evaluate-every, got 0"),
        (["lm", "--steps", "150"], "--steps: expected a multiple of --evaluate-every, got 150"),
        (["use", "--out", "nowhere"], "No such file"),
    ],
)
def test_bad_input_to_the_module_gets_one_line(module, monkeypatch, arguments, says):
    my = laws.load(module)
    (module.parent / "short.txt").write_text("abc")
    monkeypatch.chdir(module.parent)
    with pytest.raises(SystemExit) as end:
        my.main(arguments)
    assert says in str(end.value.code)
    assert "\n" not in str(end.value.code)


def test_the_file_grows_with_what_is_solved_and_the_courses_parts_stand_in(desk: Desk, here: None) -> None:
    half = list(PARTS)[:7]  # up to the first of chapter 4
    solve(desk, *half)
    done = assemble(desk)
    assert done.chapter == 4
    assert done.own == half
    assert set(done.open) == set(up_to(4)) - set(half)
    assert set(done.open.values()) == {"not tried yet"}
    assert states(done) == {"holds"}
    assert done.text.count("# OPEN, the course's own stands in: ") == len(done.open)
    assert "class GPT" not in done.text

    whole = assemble(desk, LAST, judged=False)
    assert whole.backup is None  # nobody had edited it
    assert len(whole.open) == len(PARTS) - len(half)
    assert "class GPT" in whole.text
    assert assemble(desk, 1, judged=False).chapter == 4


def test_a_wrong_answer_is_not_taken_and_an_older_right_one_is(desk: Desk, here: None, unchecked: None) -> None:
    solve(desk, "merge_heads", "top_p_filter")
    wrong = "def merge_heads(x):\n    return 1.0\n"
    desk.save_answer("merge_heads", wrong, "wrong", "1")
    desk.save_answer("split_heads", "def split_heads(x, n_heads):\n    return x\n", "wrong", "1")
    desk.save_answer("causal_mask", "def causal_mask(T, S):\n    return T\n", "right", "0")  # a lie
    for judged in (True, False):
        done = assemble(desk, judged=judged)
        assert done.own == ["merge_heads", "top_p_filter"]
        assert "return 1.0" not in done.text
        assert done.open["split_heads"] == "no right answer yet, 1 tried"
        assert "does not pass the check of today" in done.open["causal_mask"]


def test_damaged_answers_are_named_and_do_no_harm(desk: Desk, here: None, unchecked: None) -> None:
    solve(desk, "causal_mask", "padding_mask", "split_heads")
    for one, content in (("causal_mask", b"\x00\xff\x80" * 50), ("split_heads", b"")):
        path = next((desk.answers / "history" / one).glob("*.py"))
        head = path.read_bytes().split(b"\n")[0] if one == "causal_mask" else b""
        path.write_bytes(head + b"\n" + content)
    done = assemble(desk, 2)
    assert done.own == ["padding_mask"]
    assert "cannot be taken" in done.open["causal_mask"]
    assert "split_heads" in done.open


def test_an_answer_that_loops_or_exits_is_named_and_the_others_are_judged() -> None:
    odd = "class Odd:\n    {}\n\n\ndef answer(T, S):\n    return Odd()\n"
    sources = {
        "causal_mask": odd.format("__import__('os')._exit(0)"),
        "split_heads": odd.format("__import__('time').sleep(600)"),
        "padding_mask": solved_cell_source(registry.get("padding_mask")).split("\n\n\n")[0],
    }
    assert assembling._judge(sources, seconds=10) == {
        "causal_mask": "it ends the whole process",
        "split_heads": "it does not come to an end",
        "padding_mask": "",
    }


def test_an_edited_module_is_kept(desk: Desk, unjudged: None) -> None:
    solve(desk, "causal_mask")
    path = assemble(desk).path
    assert assemble(desk).backup is None
    mine = path.read_text(encoding="utf-8") + "\n# my own line\n"
    path.write_text(mine, encoding="utf-8")
    solve(desk, "padding_mask")
    done = assemble(desk)
    assert done.backup is not None
    assert done.backup.read_text(encoding="utf-8") == mine
    assert done.backup.is_relative_to(desk.private / "backup")
    assert "my own line" not in path.read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_leaves_the_old_module(desk: Desk, unjudged: None, monkeypatch) -> None:
    solve(desk, "causal_mask")
    before = assemble(desk).path.read_bytes()
    solve(desk, "padding_mask")

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
    parts = {one: stand_in(one) for one in up_to(1)}
    sources = {
        "causal_mask": "from math import sqrt\ndef norm(x): return sqrt(x)\ndef causal_mask(x): return norm(x)",
        "padding_mask": "from torch import sqrt\ndef norm(x): return sqrt(x)\ndef padding_mask(x): return norm(x)",
    }
    parts |= {one: Part("a", extract(source, one, one, ())) for one, source in sources.items()}
    text = compose(parts, 1)
    assert "from torch import sqrt as sqrt_of_padding_mask" in text
    assert "def norm_of_padding_mask(x): return sqrt_of_padding_mask(x)" in text
    assert "def norm(x): return sqrt(x)" in text


def test_every_part_is_an_exercise_in_code_under_its_name():
    for one in PARTS:
        assert registry.get(one).function_name == FUNCTIONS[one]


@pytest.mark.parametrize("chapter", range(1, LAST + 1))
def test_at_each_chapter_the_file_is_whole(chapter: int) -> None:
    text = compose({one: stand_in(one) for one in up_to(chapter)}, chapter)
    assert "#:" not in text
    assert not re.search("course_lib|coursework", text)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length=120", "--select=E,F,B", "-"]
    assert subprocess.run(ruff, input=text.encode(), capture_output=True).returncode == 0


def test_so_far_puts_the_parts_in_and_says_what_stands_there(desk: Desk, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COURSE_DESK", str(desk.folder))
    monkeypatch.delenv("CI", raising=False)
    spec = registry.get("causal_mask")
    desk.save_answer("causal_mask", solved_cell_source(spec), "right", edition(spec))
    my = so_far(2)
    lines = len((desk.folder / "my_transformer.py").read_text(encoding="utf-8").splitlines())
    assert capsys.readouterr().out == (
        f"your model so far, my_transformer.py: {lines} lines\n  yours: causal_mask\n"
        "  the course's, until you solve them: attention, padding_mask, split_heads, merge_heads\n"
    )
    assert not hasattr(my, "Embedding")


def test_where_nothing_is_kept_so_far_writes_no_file(desk: Desk, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COURSE_DESK", str(desk.folder))
    monkeypatch.setenv("CI", "true")
    so_far(1)
    assert "yours" not in capsys.readouterr().out
    assert not (desk.folder / "my_transformer.py").exists()


def test_a_module_with_a_planted_fault_is_found_out(module: Path, tmp_path: Path, monkeypatch) -> None:
    """The checks bite: each fault, in the frame or in a part, breaks the claim it should."""
    right = module.read_text(encoding="utf-8")
    faults = {
        'cache["k"], cache["v"] = k, v': ('cache["k"], cache["v"] = v, k', "GPT: tokens fed through the cache"),
        "return self.encoder(source), padding_mask(source, PAD)": (
            "return self.encoder(source), padding_mask(source, -1)",
            "EncoderDecoder: padding behind the source",
        ),
        "causal_mask(read.size(1), read.size(1)).to(read.device)": (
            "causal_mask(read.size(1), read.size(1))",
            "make every tensor on the device",
        ),
        'group["decay"] * (p.dim() > 1)': ('group["decay"]', "AdamW equals torch's"),
        "self.random.get_state, self.random.set_state": (
            "self.random.get_state, lambda state: None",
            "a run that was stopped",
        ),
    }
    for old, (new, claim) in faults.items():
        assert right.count(old) == 1, old
        module.write_text(right.replace(old, new), encoding="utf-8")
        [of_interest] = [one for one in laws.CLAIMS if claim in one[1]]
        monkeypatch.setattr(laws, "CLAIMS", (of_interest,))
        laws.main(module, LAST, tmp_path / "report.json")
        monkeypatch.undo()
        [[state, said, _]] = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["lines"]
        assert state == "broken", said
