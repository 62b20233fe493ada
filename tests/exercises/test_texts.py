"""What learners read: hints that help without giving away, prompts, stubs that match, ids that lead somewhere."""

import ast
import inspect
import re

import nbformat
from each import each
from notebook_files import NOTEBOOKS, name
from proofs import ENTRIES, EXERCISES, by_id

from coursework import exercises as ex
from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.spec import Exercise


def squeeze(text: str) -> str:
    """Code without comments and blanks, for comparison."""
    return re.sub(r"\s+", "", re.sub(r"#.*", "", text))


def solution_lines(exercise) -> list[str]:
    """The statements of the solution that are long enough to give it away."""
    source = inspect.getsource(exercise.reference)
    body = ast.parse(source).body[0].body
    code = [part for part in body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]
    found = [ast.unparse(node) for part in code for node in ast.walk(part) if isinstance(node, ast.stmt)]
    return [squeeze(line) for line in found if "\n" not in line and len(squeeze(line)) > 12]


@each(ENTRIES, by_id)
def test_three_hints_escalate_without_the_solution(entry):
    question, pointer, skeleton = (hint.strip() for hint in entry.hints)
    assert question.endswith("?")
    assert pointer
    assert len(question) > 20
    assert len(pointer) > 20
    assert skeleton.count(cells.BLANK) == 1
    assert len(set(entry.hints)) == 3
    if not isinstance(entry, Exercise):
        if not isinstance(entry.right, bool | str):
            assert repr(entry.right) not in "".join(entry.hints)
        return
    ast.parse(skeleton)
    lines = [line for line in solution_lines(entry) if line not in ("raiseNotImplementedError",)]
    for hint in (question, pointer):
        assert not [line for line in lines if line in squeeze(hint)]
    assert [line for line in lines if line not in squeeze(skeleton)], "the skeleton is the whole solution"


@each(EXERCISES, by_id)
def test_the_skeleton_lacks_the_decisive_line(exercise):
    gap = next(line for line in exercise.hints[2].splitlines() if cells.BLANK in line)
    before = squeeze(gap).split(cells.BLANK)[0]
    after = squeeze(gap).split(cells.BLANK)[1]
    solution = squeeze(inspect.getsource(exercise.reference))
    filled = re.search(re.escape(before) + "(.+?)" + re.escape(after), solution) if before else None
    if filled is not None:
        assert filled[1] not in squeeze(exercise.hints[0] + exercise.hints[1]) or len(filled[1]) < 6


@each(EXERCISES, by_id)
def test_statements_and_questions_read_well_and_keep_the_fix(exercise):
    texts = [misconception.statement for misconception in exercise.misconceptions]
    assert len(set(texts)) == len(texts)
    for misconception in exercise.misconceptions:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", misconception.name)
        assert misconception.statement[0].islower()
        assert misconception.statement[-1] not in ".!?"
        assert misconception.question.endswith("?")
        assert misconception.question[0].isupper() or misconception.question[0] == "`"
        for line in solution_lines(exercise):
            assert line not in squeeze(misconception.statement + misconception.question)
    for law in exercise.properties:
        assert law.law.endswith(".")


@each(ENTRIES, by_id)
def test_prose_is_plain(entry):
    texts = [entry.title, entry.what, entry.why, *entry.hints, cells.prompt_markdown(entry)]
    if isinstance(entry, Exercise):
        texts += [case.name for case in entry.cases]
        texts += [text for one in entry.misconceptions for text in (one.statement, one.question)]
    else:
        texts += [entry.explanation, *(text for wrong in entry.wrong for text in (wrong.statement, wrong.question))]
    for text in texts:
        assert text.strip()
        prose = re.sub(r"`[^`]*`", "", text)
        assert not re.search(r"[\U0001F300-\U0001FAFF\u2600-\u27BF]", prose)
        assert "!" not in prose.replace("!=", "")
    assert f"`ex.{entry.id}.hint()`" in cells.prompt_markdown(entry)
    assert "Why" in cells.prompt_markdown(entry)


@each(EXERCISES, by_id)
def test_the_stub_has_the_signature_and_docstring_of_the_solution(exercise):
    solved = _definition(cells.solved_cell_source(exercise), exercise.function_name)
    stub = _definition(cells.cell_source(exercise), exercise.function_name)
    assert ast.dump(stub.args) == ast.dump(solved.args) if isinstance(stub, ast.FunctionDef) else True
    assert ast.get_docstring(stub) == ast.get_docstring(solved)
    assert ast.get_docstring(stub)
    if exercise.given is None:
        assert "raise NotImplementedError  # your code here" in cells.cell_source(exercise)
        code = [line for line in solution_lines(exercise) if line in squeeze(cells.cell_source(exercise))]
        assert not code or exercise.blank or exercise.helpers


def _definition(source: str, name: str):
    return next(node for node in ast.parse(source).body if getattr(node, "name", "") == name)


def test_ids_are_unique_and_lead_to_their_exercise():
    ids = list(registry.places())
    assert ids == [entry.id for entry in ENTRIES]
    assert len(set(ids)) == len(ids)
    for entry in ENTRIES:
        assert getattr(ex, entry.id).spec is entry
        assert entry.id in dir(ex)
        assert registry.get(entry.id) is entry


@each(NOTEBOOKS, name)
def test_exercise_cells_of_the_notebooks_are_those_of_the_registry(path):
    notebook = nbformat.read(path, as_version=4)
    found = []
    for before, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
        if "exercise" not in cell.metadata:
            continue
        entry = registry.get(cell.metadata["exercise"])
        found.append(entry.id)
        assert cell.source.strip() == cells.cell_source(entry).strip()
        assert before.source.strip() == cells.prompt_markdown(entry).strip()
        assert cell.execution_count is not None
    assert len(set(found)) == len(found)
    assert found == [exercise_id for exercise_id, notebook in registry.places().items() if notebook == name(path)]


@each(registry.places())
def test_its_card_is_read_without_importing_it(name):
    card, entry = registry.card(name), registry.get(name)
    assert card == registry.Card(entry.id, entry.title, entry.kind, entry.difficulty, entry.minutes)
