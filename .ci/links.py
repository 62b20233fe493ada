"""Ask every address in the texts whether it is there: `python .ci/links.py`. The one program here that goes outside.

A site that refuses programs (401, 403, 429) counts as there; one that does not answer is asked three times.
"""

import re
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("*.md", "docs/**/*.md", "notebooks/sources/**/*.py", "course_lib/**/*.py", "benchmarks/**/*.md")
ADDRESS = re.compile(r"https?://[\w.-]+\.[a-z]{2,}(?:[/?#][^\s\"'`<>{}|\\^]*)?")
REFUSED = (401, 403, 405, 429)


def addresses() -> dict[str, list[str]]:
    """Return every address with the files that name it."""
    found = defaultdict(list)
    for path in sorted({path for pattern in TEXTS for path in ROOT.glob(pattern)}):
        for address in set(ADDRESS.findall(path.read_text(encoding="utf-8"))):
            address = address.rstrip(".,;:*")
            while address.endswith(")") and address.count("(") < address.count(")"):
                address = address[:-1].rstrip(".,;:*")
            found[address].append(path.relative_to(ROOT).as_posix())
    return found


def problem(address: str) -> str:
    """Return what is wrong with an address, or nothing."""
    said = ""
    for pause in (0, 5, 30):
        time.sleep(pause)
        try:
            with requests.get(address, timeout=30, stream=True, headers={"User-Agent": "link check"}) as answer:
                if answer.ok or answer.status_code in REFUSED:
                    return ""
                said = f"status {answer.status_code}"
        except requests.RequestException as error:
            said = type(error).__name__
    return said


def main() -> int:
    """Print the addresses that do not answer; return 1 if there are any."""
    found = addresses()
    with ThreadPoolExecutor(8) as pool:
        problems = {address: said for address, said in zip(found, pool.map(problem, found), strict=True) if said}
    for address, said in problems.items():
        print(f"{address}: {said} (in {', '.join(found[address])})")
    print(f"{len(found)} addresses asked, {len(problems)} not there")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
