"""Take README's picture, `docs/course.png`: an explorer and an answer whose mistake is named, in JupyterLab.

    python docs/picture.py

Needs what the browser tests need: the extra `test` and Chromium or Chrome.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from browsers import FLAGS, find_chromium  # noqa: E402
from lab import PANEL, Lab, Notebook  # noqa: E402

WRONG = '''def causal_mask(T, S):
    """int, int -> bool (T, S), True where query i may attend to key j"""
    return torch.ones(T, S, dtype=torch.bool).tril()


causal_mask = ex.causal_mask.check(causal_mask)'''


def main() -> None:
    """Run chapter 01 with the wrong answer in place, and put the two outputs under each other."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        desk = Path(name) / "my"
        (desk / ".course").mkdir(parents=True)
        shutil.copy(ROOT / "notebooks" / "01_attention.ipynb", desk)
        lab = Lab(desk, Path(name) / "jupyter")
        try:
            browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 1400})
            notebook = Notebook(lab, page, "01_attention.ipynb")
            (explorer, *_) = notebook.find(lambda cell: "AttentionExplorer(query" in "".join(cell["source"]))
            (exercise,) = notebook.find(lambda cell: cell["metadata"].get("exercise") == "causal_mask")
            notebook.type_into(exercise, WRONG)
            notebook.run_all(600)
            page.evaluate(f"{PANEL}.content.activeCellIndex = {exercise}")
            parts = []
            for number in (explorer, exercise):
                cell = notebook.show(number)
                page.wait_for_timeout(1500)  # until what the output draws by itself stands
                parts.append(Image.open(io.BytesIO(cell.screenshot())).convert("RGB"))
            browser.close()
        finally:
            lab.stop()
    picture = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), "white")
    top = 0
    for part in parts:
        picture.paste(part, (0, top))
        top += part.height
    picture.quantize(128).save(ROOT / "docs" / "course.png", optimize=True)


if __name__ == "__main__":
    main()
