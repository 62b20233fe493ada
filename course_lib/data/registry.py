"""The files that can be downloaded: where from, how large, with which checksum, under which terms."""

from typing import NamedTuple


class DownloadError(RuntimeError):
    """A file could not be had; the message is one line that says why and what to do instead."""


class DataFile(NamedTuple):
    """One file on the network. `offline` says what to use where there is no network."""

    name: str
    url: str
    sha256: str
    size: int  # bytes
    source: str
    terms: str
    offline: str


_MULTI30K = {
    "train.de.gz": (637_044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.en.gz": (568_929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "val.de.gz": (24_681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.en.gz": (21_650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "test_2016_flickr.de.gz": (22_890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
    "test_2016_flickr.en.gz": (21_077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
}

FILES: dict[str, DataFile] = {
    f"multi30k/{name}": DataFile(
        name=f"multi30k/{name}",
        url=f"https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/{name}",
        sha256=sha256,
        size=size,
        source=f"github.com/multi30k/dataset, data/task1/raw/{name} (Elliott et al. 2016, arXiv:1605.00459)",
        terms="captions of Flickr30K and their translations, published for research; the repository names no licence",
        offline="number words (num2words) and dates (babel) give German and English pairs without limit",
    )
    for name, (size, sha256) in _MULTI30K.items()
}
