"""The checks bite: an honest notebook passes, and each kind of lie planted in a copy is found where it stands."""

import base64
import hashlib
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import nbformat
import pytest
from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

HOOK = Path(__file__).resolve().parents[2] / "notebooks" / "conftest.py"
WHOLE = "notebook-as-a-whole"

TEXT = """
# %% [markdown] id="title"
# # Small and honest

# %% id="number"
print("loss 2.3457 after 120 steps")

# %% id="word"
print("attention is equivariant")
"a result"

# %% id="near" tags=["tol:0.001"]
print("loss 1.2345 after 120 steps")

# %% id="silent"
width = 64

# %% id="fails" tags=["raises-exception"]
import json
json.loads('{"width": }')

# %% id="small" tags=["atol:0.08"]
print("weight 0.04")

# %% id="ranked" tags=["atol:0.15"]
print("tied 0.62 right", "free 0.55 right", "none 0.31 right", sep="\\n")

# %% id="updated"
from IPython.display import clear_output, display

shown = display("step 1", display_id=True)
shown.update("step 2 of 2")
print("is cleared")
clear_output(wait=True)
display("is cleared, too")
clear_output()
shown = display("step 1", display_id=True)
shown.update("step 3 of 3")
"""

PICTURES = """
# %% id="bare"
import base64, io
import matplotlib.pyplot as plt
from IPython.display import HTML

def bars(height):
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.bar(["mat", "cat"], [1.0, height])
    ax.set_ylim(0, 2)
    ax.set_title("the cat gets 1.95", fontsize=9)
    return fig

fig = bars(1.5)

# %% id="framed"
raw = io.BytesIO()
bars(1.2).savefig(raw, format="png")
plt.close("all")
data = base64.b64encode(raw.getvalue()).decode()
alt = "Two bars: the second word gets more weight than the first one."
HTML(f'<figure><img alt="{alt}" src="data:image/png;base64,{data}"><figcaption>More weight.</figcaption></figure>')

# %% id="shown" tags=["picture:60"]
from coursework.pictures import show
from coursework.pictures.drawing import Drawing

show(bars(0.93), alt=alt, caption="Less weight.")
show(bars(1.93), alt=alt, caption="Most weight.")

# %% id="drawn" tags=["tol:0.1"]
pen = Drawing(80, alt=alt, caption="A loss.")
pen.text((300, 40), "loss 0.93")
pen.show()
"""

# The same with every result a little different: what the lies are made of.
OTHER = {
    "2.3457": "2.3557",
    "equivariant": "invariant",
    "1.2345": "1.2349",
    "bars(1.5)": "bars(1.53)",
    "bars(1.2)": "bars(1.22)",
    '"width": }': '"size": }',
}

Notebook = Any
Cell = Any


class Lie(NamedTuple):
    kind: str  # text or pictures
    where: str  # the cell, or the notebook as a whole; empty: no lie, must pass
    says: str  # part of the message
    plant: Callable[[Notebook, Notebook, Cell, Cell], None]  # changes the notebook, by its other version


def stored_as_in_other(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    cell.outputs = other_cell.outputs


def edit(**changes: Any) -> Callable[[Notebook, Notebook, Cell, Cell], None]:
    def plant(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
        cell.update(changes)

    return plant


def tagged(*tags: str) -> Callable[[Notebook, Notebook, Cell, Cell], None]:
    return edit(metadata={"tags": list(tags)})


def replaced(old: str, new: str) -> Callable[[Notebook, Notebook, Cell, Cell], None]:
    """Change the first stored text that has `old`, whatever kind of output it is in."""

    def plant(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
        holders = [output.get("data", output) for output in cell.outputs]
        holder, key = next((h, k) for h in holders for k in h if isinstance(h[k], str) and old in h[k])
        holder[key] = holder[key].replace(old, new)

    return plant


def in_traceback(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    """Show another text than that of the exception, which is compared."""
    (output,) = cell.outputs
    output.traceback = [line.replace("Expecting value", "Expecting nothing") for line in output.traceback]


def other_last_state(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    cell.source = cell.source.replace("3 of 3", "4 of 4")


def other_digit(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    cell.source += '\ntitle = fig.axes[0].set_title("the cat gets 1.93", fontsize=9)'


def printed(text: str, name: str = "stdout") -> list[Any]:
    return [nbformat.v4.new_output("stream", name=name, text=text)]


def in_picture(change: Callable[[bytes], bytes]) -> Callable[[Notebook, Notebook, Cell, Cell], None]:
    """Change the bytes of the first picture or drawing of a cell."""

    def plant(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
        html = cell.outputs[0].data["text/html"]
        head, data, tail = re.split(r'(?<=;base64,)([^"]+)', html, maxsplit=1)
        new = base64.b64encode(change(base64.b64decode(data))).decode()
        cell.outputs[0].data["text/html"] = head + new + tail

    return plant


def painted(digest: bool, content: bool = True) -> Callable[[bytes], bytes]:
    """Write "loss 0" into an empty place of a picture; a forger who knows puts its digest right."""

    def change(data: bytes) -> bytes:
        before = Image.open(io.BytesIO(data))
        picture, out, chunks = before.convert("RGB"), io.BytesIO(), PngInfo()
        ImageDraw.Draw(picture).text((picture.width // 2, picture.height // 4), "loss 0", fill="black", font_size=20)
        right = hashlib.sha256(picture.tobytes()).hexdigest()[:16]
        for name, text in before.info.items() if content else ():
            if isinstance(text, str):
                chunks.add_text(name, right if digest and name == "Pixels" else text)
        picture.save(out, format="png", pnginfo=chunks)
        return out.getvalue()

    return change


def animated(data: bytes) -> bytes:
    """Show the picture for a moment, and then its mirror image."""
    before, out, chunks = Image.open(io.BytesIO(data)), io.BytesIO(), PngInfo()
    for name in ("Content", "Pixels"):
        chunks.add_text(name, before.info[name])
    frames = [before.convert("RGB"), before.convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT)]
    frames[0].save(out, format="png", save_all=True, append_images=frames[1:], duration=[10, 60_000], pnginfo=chunks)
    return out.getvalue()


def in_metadata(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}


def in_size(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    cell.source = "\n".join([cell.source, "# " + "long " * 500_000])


def in_prose(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    cell.source += "\n\n![map](map.png)"


def extra_output(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    cell.source += "\nprint('and more')"


def missing_output(notebook: Notebook, other: Notebook, cell: Cell, other_cell: Cell) -> None:
    cell.source = cell.source.replace('"a result"', "")


long_line = "x" * 250_000
lies = {
    "nothing in text": Lie("text", "", "", lambda *_: None),
    "nothing in pictures": Lie("pictures", "", "", lambda *_: None),
    "number": Lie("text", "number", "differ", stored_as_in_other),
    "number within tolerance": Lie(
        "text", "", "", lambda n, o, c, oc: stored_as_in_other(n, o, n.cells[3], o.cells[3])
    ),
    "number beyond tolerance": Lie("text", "near", "differ", replaced("1.2345", "1.2465")),
    "count beside a tolerated number": Lie("text", "near", "differ", replaced("120", "121")),
    "word": Lie("text", "word", "differ", stored_as_in_other),
    "word of an exception": Lie("text", "fails", "differ", stored_as_in_other),
    "text of a traceback": Lie("text", "fails", "more of a traceback", in_traceback),
    "frames in a picture": Lie("pictures", "shown", "more than pixels and text", in_picture(animated)),
    "order of numbers": Lie("text", "ranked", "order or distance", replaced("0.62", "0.47")),
    "tolerance larger than the value": Lie("text", "small", "differ", replaced("0.04", "0.11")),
    "last state of a display": Lie("text", "updated", "differ", other_last_state),
    "stored last state of a display": Lie("text", "updated", "differ", replaced("3 of 3", "2 of 3")),
    "text under a carriage return": Lie(
        "text", "silent", "carriage return", edit(source="print('100 %')", outputs=printed("99 % right\r100 %\n"))
    ),
    "text under a backspace": Lie(
        "text", "silent", "carriage return", edit(source="print('100 %')", outputs=printed("99\b\b100 %\n"))
    ),
    "digit in a picture": Lie("pictures", "bare", "a picture differs", other_digit),
    "bare picture": Lie("pictures", "bare", "a picture differs", stored_as_in_other),
    "picture in HTML": Lie("pictures", "framed", "a picture differs", stored_as_in_other),
    "painted into a picture": Lie("pictures", "shown", "not those that were drawn", in_picture(painted(digest=False))),
    "painted by one who knows": Lie("pictures", "shown", "a picture differs", in_picture(painted(digest=True))),
    "painted, and no more said": Lie("pictures", "shown", "does not keep", in_picture(painted(False, content=False))),
    "number in a drawing": Lie(
        "pictures", "drawn", "differ", in_picture(lambda data: data.replace(b"loss 0.93", b"loss 0.92"))
    ),
    "word beside a picture": Lie("pictures", "framed", "differ", replaced("More weight", "Less weight")),
    "order of outputs": Lie("text", "word", "another order", lambda n, o, c, oc: c.outputs.reverse()),
    "result of another run": Lie(
        "text", "word", "another run", lambda n, o, c, oc: c.outputs[1].update(execution_count=77)
    ),
    "edited after it ran": Lie("text", "number", "differ", edit(source='print("loss 2.3457 after 130 steps")')),
    "never ran": Lie("text", "number", "not executed", edit(execution_count=None, outputs=[])),
    "exception that no longer comes": Lie("text", "fails", "nothing was raised", edit(source="width = 1", outputs=[])),
    "exception nobody announced": Lie("text", "silent", "exception", edit(source="1 / 0")),
    "warning stored": Lie(
        "text",
        "silent",
        "stderr",
        edit(source="import sys; print('careful', file=sys.stderr)", outputs=printed("careful\n", "stderr")),
    ),
    "warning in a cell not compared": Lie(
        "text",
        "silent",
        "stderr",
        edit(source="import sys; print('careful', file=sys.stderr)", metadata={"tags": ["not-compared:clock"]}),
    ),
    "no alternative text": Lie("pictures", "framed", "alternative text", replaced("alt=", "title=")),
    "no alternative text in prose": Lie("text", WHOLE, "alternative text", in_prose),
    "oversized output": Lie(
        "text", "silent", "bytes long", edit(source="print('x' * 250_000)", outputs=printed(long_line + "\n"))
    ),
    "oversized notebook": Lie("text", WHOLE, "bytes long", in_size),
    "tag that skips": Lie("text", "number", "skipped in silence", tagged("nbval-skip")),
    "tag that ignores": Lie("text", "number", "skipped in silence", tagged("nbval-ignore-output")),
    "comment that ignores": Lie(
        "text", "silent", "skipped in silence", edit(source="# NBVAL_IGNORE_OUTPUT\nprint('anything')")
    ),
    "tolerance without a number": Lie("text", "near", "expected tol:", tagged("tol:small")),
    "tolerance for everything": Lie("text", "near", "expected tol:", tagged("tol:100")),
    "no reason for not comparing": Lie("text", "near", "the reason", tagged("not-compared:")),
    "path of one machine": Lie(
        "text", "silent", "path", edit(source="print('/home/ada/data')", outputs=printed("/home/ada/data\n"))
    ),
    "output not stored": Lie("text", "number", "differ", extra_output),
    "stored output that no longer comes": Lie("text", "word", "differ", missing_output),
    "widget state": Lie("text", WHOLE, "widget state", in_metadata),
}


def planted_together() -> dict[str, list[str]]:
    """File name -> lies: as many in a notebook as stand in cells of their own."""
    found: dict[str, list[str]] = {}
    for name, lie in lies.items():
        for others in found.values():
            places = [lie.where, *(lies[other].where for other in others)]
            if lies[others[0]].kind == lie.kind and len({*places} - {"", WHOLE}) == len(places):
                others.append(name)
                break
        else:
            found[name.replace(" ", "_") + ".ipynb"] = [name]
    return found


TOGETHER = planted_together()


def cell_of(notebook: Notebook, cell_id: str) -> Cell:
    """The cell of this id; for lies about the notebook as a whole, the last cell of prose or else the last one."""
    found = [cell for cell in notebook.cells if cell.id == cell_id]
    return found[0] if found else notebook.cells[0] if notebook.cells[0].cell_type == "markdown" else notebook.cells[-1]


@pytest.fixture(scope="module")
def honest(builder, tmp_path_factory) -> Path:
    """A folder with the honest notebooks and their other versions, all made by the builder."""
    folder = tmp_path_factory.mktemp("notebooks")
    (folder / "sources").mkdir()
    for name, text in (("text", TEXT), ("pictures", PICTURES)):
        changed = text
        for old, new in OTHER.items():
            changed = changed.replace(old, new)
        for stem, content in ((name, text), (f"other_{name}", changed)):
            source = folder / "sources" / f"{stem}.py"
            source.write_text(content.lstrip())
            builder.build(source, folder / f"{stem}.ipynb")
    shutil.copy(HOOK, folder)
    return folder


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest as an instructor would who has only the folder: no configuration of this repository."""
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def verdicts(honest, tmp_path_factory) -> dict[str, dict[str, str]]:
    """Plant the lies in copies, check all copies in one run; file name -> {failed item: message}."""
    folder = tmp_path_factory.mktemp("lies")
    shutil.copy(HOOK, folder)
    for name, names in TOGETHER.items():
        kind = lies[names[0]].kind
        notebook, other = (nbformat.read(honest / f"{prefix}{kind}.ipynb", 4) for prefix in ("", "other_"))
        for lie in map(lies.get, names):
            lie.plant(notebook, other, cell_of(notebook, lie.where), cell_of(other, lie.where))
        (folder / name).write_text(nbformat.writes(notebook))
    code, output = run_pytest(folder, "--color=no", "--junitxml=report.xml")
    assert code == 1, output
    found: dict[str, dict[str, str]] = {name: {} for name in TOGETHER}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        failed = case.find("failure")
        if failed is None:
            failed = case.find("error")
        if failed is not None:
            found[case.get("classname", "")][case.get("name", "")] = failed.text or ""
    return found


@pytest.mark.parametrize("name", TOGETHER)
def test_a_lie_is_found_where_it_stands_and_nowhere_else(name, verdicts):
    planted, failed = [lies[lie] for lie in TOGETHER[name]], verdicts[name]
    assert set(failed) == {lie.where for lie in planted} - {""}, failed
    assert all(lie.says in failed[lie.where] for lie in planted if lie.where), failed


def test_a_folder_elsewhere_is_checked_from_above_and_from_inside(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "notebooks", ignore=shutil.ignore_patterns("other_*", "sources"))
    code, output = run_pytest(tmp_path, "notebooks")
    assert code == 0, output
    assert "notebooks/text.ipynb" in output
    assert "53.8% of the outputs compared to the digit, 46.2% within the tolerance of their cell, 0.0% not" in output
    assert "4 pictures among them, 2 by what they say" in output
    code, output = run_pytest(tmp_path / "notebooks", "text.ipynb")
    assert code == 0, output
    assert "0 pictures among them, 0 by what they say" in output


def test_workers_report_to_the_table_and_too_little_compared_fails(honest, tmp_path):
    shutil.copytree(honest, tmp_path / "notebooks", ignore=shutil.ignore_patterns("other_*", "sources", "pictures*"))
    path = tmp_path / "notebooks" / "text.ipynb"
    notebook = nbformat.read(path, 4)
    cell_of(notebook, "number").metadata["tags"] = ["not-compared:clock"]
    path.write_text(nbformat.writes(notebook))
    code, output = run_pytest(tmp_path, "notebooks", "-n1", "--dist=loadfile")
    assert " failed" not in output.splitlines()[-1]
    assert "not compared, clock: 1 cell" in output
    assert "FAILED: at least 95%" in output
    assert code == 1, output
    # A cell, or one notebook of several, says nothing of the share of all.
    code, output = run_pytest(tmp_path, "notebooks/text.ipynb::number")
    assert code == 0, output
    shutil.copy(honest / "pictures.ipynb", tmp_path / "notebooks")
    code, output = run_pytest(tmp_path, "notebooks/text.ipynb")
    assert "95% of all notebooks' outputs must be compared; these are a part" in output
    assert code == 0, output


def test_pictures_of_another_library_are_named_with_both_versions(honest, rules, tmp_path):
    shutil.copytree(honest, tmp_path / "notebooks", ignore=shutil.ignore_patterns("other_*", "sources", "text*"))
    path = tmp_path / "notebooks" / "pictures.ipynb"
    path.write_text(path.read_text().replace(rules.drawing_library(), "matplotlib 3.0.0, FreeType 2.6.1"))
    output = run_pytest(tmp_path, "notebooks/pictures.ipynb::bare")[1]
    assert f"drawn with matplotlib 3.0.0, FreeType 2.6.1, here is {rules.drawing_library()}" in output
