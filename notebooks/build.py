"""Builds the notebooks: text sources in `sources/` become executed `.ipynb` files beside this script.

    python notebooks/build.py                 build all: chapters, then labs
    python notebooks/build.py 01 labs/03      build some
    python notebooks/build.py --check         execute nothing; prove that sources and notebooks agree
    python notebooks/build.py 01 --timings    name the five slowest cells too

A source is a jupytext percent file. Each cell names itself, `# %% id="five-steps" tags=["tol:0.001"]`; a line
`# %% exercise="causal_mask"` with nothing under it stands for an exercise: prompt and stub come from the registry, and
the place is written into the package's `places.json`. Sources in `sources/labs/` become notebooks in `labs/`.
Where `pyproject.toml` names the course's address (`Source` in `[project.urls]`), a folded cell before the first code cell
installs the package from there if it is missing, as on Colab.
A notebook is written only when every cell ran and the result obeys the rules of `conftest.py`; else the old one stays.
"""

import argparse
import importlib.util
import json
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from course_lib.files import write_atomic

NOTEBOOKS = Path(__file__).resolve().parent
PLACES = NOTEBOOKS.parent / "coursework" / "exercises" / "places.json"
KERNEL = "python3"
METADATA: dict[str, Any] = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": KERNEL},
    # Without the version of Python, which would change with the machine that builds.
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
CELL_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
MINUTES = "{minutes}"
"""In the first cell, the minutes that the notebook takes, as `course status` counts them, to the next five."""
EXERCISE = re.compile(r'^# %% exercise="(\w+)"', re.MULTILINE)

INSTALL = """\
# Installs the package of the course where it is missing, as on Colab; changes nothing where it is there
import importlib.util

if importlib.util.find_spec("coursework") is None:
    get_ipython().run_line_magic("pip", "install --quiet 'course-lib[course] @ git+{address}'")
    importlib.invalidate_caches()"""

FindExercise = Callable[[str], tuple[str, str]]  # from an exercise's id to its prompt and its stub


class BuildError(Exception):
    """A source or an execution that must not become a notebook; the message names the file and the cell."""


def _load_rules() -> Any:
    """Load `conftest.py`: the rules for a stored notebook live there, because that file must work alone."""
    spec = importlib.util.spec_from_file_location("notebook_rules", NOTEBOOKS / "conftest.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {NOTEBOOKS / 'conftest.py'}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


rules = _load_rules()


def registered_exercise(exercise_id: str) -> tuple[str, str]:
    """Return the prompt and the stub of an exercise of the course."""
    from coursework.exercises import registry  # only sources with exercises need it
    from coursework.exercises.engine import cells

    spec = registry.get(exercise_id)
    return cells.prompt_markdown(spec), cells.cell_source(spec)


def read_source(source: Path, find_exercise: FindExercise = registered_exercise) -> NotebookNode:
    """Turn a text source into a notebook without outputs, exercise markers expanded.

    Raises BuildError for a cell without id, a repeated or malformed id, an unknown option or tag, an empty cell, or an
    exercise that is not in the registry.
    """
    parsed = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent")
    cells: list[NotebookNode] = []
    for number, cell in enumerate(parsed.cells, start=1):
        where = f"{source.name}: cell {number} ({_first_line(cell)!r})"
        cell.metadata.pop("lines_to_next_cell", None)  # jupytext's note on blank lines
        unknown = set(cell.metadata) - {"id", "tags", "exercise"}
        if unknown:
            raise BuildError(f"{where}: expected the options id, tags, exercise; got {', '.join(sorted(unknown))}")
        if "exercise" in cell.metadata:
            cells += _expand(cell, where, find_exercise)
        else:
            cells.append(_plain_cell(cell, where))
    if address := _address(source):
        first = next((number for number, cell in enumerate(cells) if cell.cell_type == "code"), len(cells))
        folded = {"tags": [rules.FOLDED], "jupyter": {"source_hidden": True}}
        cells.insert(first, _new_cell("code", "install-course", INSTALL.format(address=address), folded))
    if cells and MINUTES in cells[0].source:
        from coursework.desk.chapters import total_minutes

        cells[0].source = cells[0].source.replace(MINUTES, str(5 * round(total_minutes(cells) / 5)))
    seen: set[str] = set()
    for cell in cells:
        if cell.id in seen:
            raise BuildError(f"{source.name}: two cells have the id {cell.id!r}; ids are unique in a notebook")
        seen.add(cell.id)
    notebook = nbformat.v4.new_notebook(cells=cells, metadata=METADATA)
    notebook.nbformat_minor = 5
    return notebook


def _address(source: Path) -> str:
    """Return where the project that holds `source` is published, or nothing if it does not say."""
    project = next(
        (found for folder in source.absolute().parents if (found := folder / "pyproject.toml").exists()), None
    )
    if project is None:
        return ""
    urls = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {}).get("urls", {})
    return str(urls.get("Source", ""))


def _plain_cell(cell: NotebookNode, where: str) -> NotebookNode:
    cell_id = cell.metadata.get("id")
    if cell_id is None:
        raise BuildError(f'{where}: has no id; write for instance # %% id="five-steps"')
    if not isinstance(cell_id, str) or not CELL_ID.fullmatch(cell_id) or len(cell_id) > 64:
        raise BuildError(f"{where}: expected an id of a-z, 0-9 and single hyphens, at most 64; got {cell_id!r}")
    tags = cell.metadata.get("tags", [])
    try:
        rules.read_tags(tags, only_known=True)
    except ValueError as error:
        raise BuildError(f"{where}: {error}") from None
    if cell.cell_type not in ("code", "markdown"):
        raise BuildError(f"{where}: expected a code or a markdown cell, got {cell.cell_type}")
    if not cell.source.strip():
        raise BuildError(f"{where}: the cell {cell_id!r} is empty")
    metadata: dict[str, Any] = {"tags": tags} if tags else {}
    if rules.FOLDED in tags:
        metadata["jupyter"] = {"source_hidden": True}  # how JupyterLab folds a cell
    return _new_cell(cell.cell_type, cell_id, cell.source, metadata)


def _expand(cell: NotebookNode, where: str, find_exercise: FindExercise) -> list[NotebookNode]:
    exercise_id = cell.metadata["exercise"]
    if set(cell.metadata) != {"exercise"} or cell.source.strip():
        raise BuildError(f"{where}: an exercise stands alone, without id, tags or text: prompt and stub are generated")
    try:
        prompt, stub = find_exercise(exercise_id)
    except Exception as error:
        raise BuildError(f"{where}: cannot load the exercise {exercise_id!r}: {error!r}") from error
    return [
        _new_cell("markdown", prompt_id(exercise_id), prompt.strip("\n"), {}),
        _new_cell("code", prompt_id(exercise_id).removesuffix("-prompt"), stub.strip("\n"), {"exercise": exercise_id}),
    ]


def prompt_id(exercise_id: str) -> str:
    """Return the id of the cell with an exercise's prompt; the answer's cell has it without "-prompt"."""
    return f"exercise-{exercise_id.replace('_', '-')}-prompt"


def _new_cell(kind: str, cell_id: str, source: str, metadata: dict[str, Any]) -> NotebookNode:
    make = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
    return make(source, id=cell_id, metadata=metadata)


def _first_line(cell: NotebookNode) -> str:
    return next((line for line in cell.source.splitlines() if line.strip()), "")[:60]


def execute(notebook: NotebookNode, name: str) -> dict[str, float]:
    """Run every cell in a fresh kernel, outputs into the notebook; return seconds for each cell id.

    Nothing is saved: the working directory is an empty one, and the environment says so to the course's exercises.
    Raises BuildError that names the cell if one fails, takes too long, or kills the kernel.
    """
    seconds: dict[str, float] = {}
    running = ""
    started = 0.0

    def begin(cell: NotebookNode, cell_index: int) -> None:
        nonlocal running, started
        running, started = cell.id, time.perf_counter()

    def end(cell: NotebookNode, cell_index: int, execute_reply: Any) -> None:
        seconds[cell.id] = time.perf_counter() - started

    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        client = NotebookClient(
            notebook,
            timeout=rules.CELL_TIMEOUT,
            kernel_name=KERNEL,
            resources={"metadata": {"path": folder}},
            store_widget_state=False,
            record_timing=False,
            skip_cells_with_tag="",  # every cell runs
            on_cell_start=begin,
            on_cell_executed=end,
        )
        log = Path(folder, "kernel.log")  # what the kernel itself says, of interest only when it dies
        try:
            with log.open("wb") as stream:
                client.execute(env=rules.kernel_environment(), stderr=stream)
        except AssertionError:
            # On an interrupt nbclient ends the kernel, and then stumbles over its being gone.
            if client.km is not None:
                raise
            raise KeyboardInterrupt from None
        except CellExecutionError as error:
            raise BuildError(f"{name}: cell {running!r} failed\n{error.traceback}") from None
        except (CellTimeoutError, DeadKernelError) as error:
            raise BuildError(f"{name}: cell {running!r}: {error}\n{log.read_text(errors='replace')[-2000:]}") from None
    return seconds


def clean(notebook: NotebookNode) -> None:
    """Remove from the outputs what differs from machine to machine and carries nothing for the reader."""
    notebook.metadata = nbformat.from_dict(METADATA | {"drawn_with": rules.drawing_library()})
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        cell.outputs = _joined(cell.outputs)
        for output in cell.outputs:
            if "metadata" in output:
                output.metadata = {}
            if output.output_type == "error":  # the frames of a traceback name the folders of this machine
                output.traceback = [f"{output.ename}: {output.evalue}"]


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join neighbouring pieces of one stream: where the kernel cuts it is chance."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last is not None and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def serialise(notebook: NotebookNode) -> str:
    """Return the text of the `.ipynb` file, equal for equal notebooks."""
    nbformat.validate(notebook)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def build(source: Path, target: Path, find_exercise: FindExercise = registered_exercise) -> dict[str, float]:
    """Build one notebook; return seconds for each cell id. Raises BuildError, and then `target` is as it was."""
    notebook = read_source(source, find_exercise)
    seconds = execute(notebook, source.name)
    clean(notebook)
    text = serialise(notebook)
    problems = rules.notebook_problems(notebook, len(text.encode()))
    if problems:
        raise BuildError("\n".join(f"{source.name}: {where}: {what}" for where, what in problems))
    write_atomic(target, text)
    return seconds


def check(source: Path, target: Path, find_exercise: FindExercise = registered_exercise) -> list[str]:
    """Return where a notebook differs from its source, and which code cells are not executed; empty if all is right."""
    if not target.exists():
        return [f"{target.name}: missing; build it"]
    wanted = read_source(source, find_exercise).cells
    stored = nbformat.read(target, as_version=4)
    found = stored.cells
    problems = [f"{where}: {what}" for where, what in rules.notebook_problems(stored, target.stat().st_size)]
    wanted_ids, found_ids = [cell.id for cell in wanted], [cell.get("id") for cell in found]
    problems += [f"{cell_id}: in the source, not in the notebook" for cell_id in wanted_ids if cell_id not in found_ids]
    problems += [f"{cell_id}: in the notebook, not in the source" for cell_id in found_ids if cell_id not in wanted_ids]
    if not problems and wanted_ids != found_ids:
        problems.append("the cells stand in another order than in the source")
    by_id = {cell.get("id"): cell for cell in found}
    for cell in wanted:
        other = by_id.get(cell.id)
        if other is None:
            continue
        for field in ("cell_type", "source", "metadata"):
            if cell[field] != other[field]:
                problems.append(f"{cell.id}: {field} differs from the source; build again")
    counts = [cell.execution_count for cell in found if cell.cell_type == "code"]
    if counts != list(range(1, len(counts) + 1)):
        problems.append(f"execution counts are not 1 to {len(counts)} in order: the notebook was not run top to bottom")
    return [f"{target.name}: {problem}" for problem in problems]


def name_of(source: Path) -> str:
    """Return the notebook's name: "01_attention", or "labs/05_inside_a_model"."""
    return f"labs/{source.stem}" if source.parent.name == "labs" else source.stem


def sources(names: Sequence[str] = (), folder: Path = NOTEBOOKS) -> list[tuple[Path, Path]]:
    """Return (source, notebook) pairs in course order: all, or those whose name starts with one of `names`."""
    found = [*sorted((folder / "sources").glob("*.py")), *sorted((folder / "sources" / "labs").glob("*.py"))]
    pairs = [(path, folder / f"{name_of(path)}.ipynb") for path in found]
    for name in names:
        if not any(name_of(source).startswith(name) for source, _ in pairs):
            known = ", ".join(name_of(source) for source, _ in pairs) or "none"
            raise BuildError(f"no source is called {name!r}; there are: {known}")
    return [pair for pair in pairs if not names or name_of(pair[0]).startswith(tuple(names))]


def places(folder: Path = NOTEBOOKS) -> str:
    """Return the text of the package's `places.json`: by notebook, in course order, the ids of its exercises."""
    found = {name_of(source): EXERCISE.findall(source.read_text(encoding="utf-8")) for source, _ in sources((), folder)}
    return json.dumps(found, indent=1) + "\n"


def _build_and_report(source: Path, target: Path, timings: bool) -> bool:
    print(f"{name_of(source)} …", end=" ", flush=True)
    begin = time.perf_counter()
    try:
        seconds = build(source, target)
    except BuildError as error:
        print(f"not built, the old notebook stays\n{error}", file=sys.stderr)
        return False
    size = target.stat().st_size / 1000
    print(f"{time.perf_counter() - begin:.1f} s, {len(seconds)} code cells, {size:.0f} KB")
    if timings:
        for cell_id, spent in sorted(seconds.items(), key=lambda item: -item[1])[:5]:
            print(f"  {spent:6.1f} s  {cell_id}")
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if everything was built, or agrees."""
    parser = argparse.ArgumentParser(description="Build and execute the notebooks from their text sources.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="start of a source's name, as 01 (default: all)")
    parser.add_argument("--check", action="store_true", help="execute nothing; compare sources and notebooks")
    parser.add_argument("--timings", action="store_true", help="print the five slowest cells of each notebook")
    options = parser.parse_args(arguments)
    try:
        pairs = sources(options.names)
        if options.check:
            problems = [problem for source, target in pairs for problem in check(source, target)]
            if PLACES.read_text(encoding="utf-8") != places():
                problems.append(f"{PLACES.name}: exercises stand elsewhere in the sources; build again")
            print("\n".join(problems) or f"{len(pairs)} notebooks agree with their sources")
            return 1 if problems else 0
        if PLACES.exists():  # this script also builds notebooks in folders of their own
            write_atomic(PLACES, places())
        built = [_build_and_report(*pair, options.timings) for pair in pairs]  # a failure does not stop the others
        return 0 if all(built) else 1
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted, the old notebook stays", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
