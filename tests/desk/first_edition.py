"""The notebooks of the first edition, without outputs: what learners who began early have in their desks.

`python tests/desk/first_edition.py COMMIT` writes them into `first_edition.json.gz` beside this file, from a commit's
notebooks; it was made from cc76513.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json.gz")
ROOT = Path(__file__).parents[2]


def first_edition() -> dict[str, Any]:
    """Return the notebooks by name."""
    return json.loads(gzip.decompress(FILE.read_bytes()))


def _of_commit(commit: str) -> dict[str, Any]:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=True, text=True).stdout

    found = {}
    for path in git("ls-tree", "-r", "--name-only", commit, "notebooks").split():
        if not path.endswith(".ipynb"):
            continue
        notebook = json.loads(git("show", f"{commit}:{path}"))
        notebook["metadata"].pop("drawn_with", None)
        for cell in notebook["cells"]:
            cell["source"] = "".join(cell["source"])
            if cell["cell_type"] == "code":
                cell |= {"outputs": [], "execution_count": None}
        found[path.removeprefix("notebooks/").removesuffix(".ipynb")] = notebook
    return found


if __name__ == "__main__":
    text = json.dumps(_of_commit(sys.argv[1]), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
