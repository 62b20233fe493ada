"""Run the steps of one job of a workflow here, as GitHub would: `python .ci/steps.py tests everything`.

What GitHub's own actions do is not done: the checkout is this folder, and Python and its environment are those that run
this. Choices of a matrix are the first ones for Linux. `--list` prints the commands and runs nothing.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the steps until one fails; return its exit code."""
    parser = argparse.ArgumentParser(description="Run the steps of a workflow's job in this folder.")
    parser.add_argument("workflow", help="its name in .github/workflows, as tests")
    parser.add_argument("job")
    parser.add_argument("--list", action="store_true", help="run nothing")
    options = parser.parse_args()
    path = ROOT / ".github" / "workflows" / f"{options.workflow}.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    job = workflow["jobs"][options.job]
    environment = {**os.environ, **workflow.get("env", {}), **job.get("env", {})}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for step in job["steps"]:
        if "run" not in step:
            print(f"not run here: {step['uses']}", flush=True)
            continue
        left = re.search(r"\$\{\{.*?\}\}", step["run"])
        if left:
            print(f"{step['run']}: {left[0]} is known to GitHub only", file=sys.stderr)
            return 2
        print(f"$ {step['run']}", flush=True)
        if options.list:
            continue
        begin = time.monotonic()
        ended = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=ROOT, env=environment, check=False).returncode
        print(f"{'done' if ended == 0 else f'exit code {ended}'} after {time.monotonic() - begin:.0f} s", flush=True)
        if ended:
            return ended
    return 0


if __name__ == "__main__":
    sys.exit(main())
