"""Prove that installing the course in Colab replaces nothing: `python .ci/colab.py`, with the Python that Colab has.

Makes an environment that says to hold what `tests/data/colab-2026-08.txt` lists, and asks pip what it would install.
"""

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FREEZE = ROOT / "tests" / "data" / "colab-2026-08.txt"


def canonical(name: str) -> str:
    """Return the name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    """Print what would be installed; return 1 if something that is there would be replaced."""
    pins = [line.split("==") for line in FREEZE.read_text(encoding="utf-8").splitlines() if "==" in line]
    there = {canonical(name): version for name, version in pins}
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = next(
            path for path in (Path(folder, "bin/python"), Path(folder, "Scripts/python.exe")) if path.exists()
        )
        asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        packages = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
        for name, version in there.items():
            known = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            known.mkdir()
            known.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", "utf-8")
        report = Path(folder, "report.json")
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--dry-run", "--report", report, str(ROOT)], check=True
        )
        wanted = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    replaced = [one for one in wanted if canonical(one["name"]) in there]
    for one in wanted:
        old = there.get(canonical(one["name"]))
        print(f"{one['name']} {one['version']}" + (f" in place of {old}" if old else ", new"))
    print(f"{len(there)} packages are there, {len(replaced)} would be replaced, {len(wanted) - len(replaced)} are new")
    return 1 if replaced else 0


if __name__ == "__main__":
    sys.exit(main())
