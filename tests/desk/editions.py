"""The notebooks of earlier editions, without outputs: what learners who began early have in their desks.

`python tests/desk/editions.py NAME COMMIT` writes them into `NAME_edition.json.gz` beside this file, from a commit's
notebooks; `first` was made from cc76513, `second` from 7ef4cad.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

NAMES = ("first", "second")
ROOT = Path(__file__).parents[2]


def earlier(name: str) -> dict[str, Any]:
    """Return the notebooks of the first or the second edition, by name."""
    return json.loads(gzip.decompress(_file(name).read_bytes()))


def _file(name: str) -> Path:
    return Path(__file__).with_name(f"{name}_edition.json.gz")


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
    name, commit = sys.argv[1:]
    text = json.dumps(_of_commit(commit), ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    _file(name).write_bytes(gzip.compress(text.encode(), mtime=0))
