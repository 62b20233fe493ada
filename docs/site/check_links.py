"""Links of a built site that lead nowhere: files that are missing, and anchors that a page does not have."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from lxml import html


def broken_links(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (page, link) for each link, image, script and style sheet inside the site that leads nowhere."""
    trees = {
        path: html.parse(str(path)).getroot() for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts
    }
    anchors = {path: {*tree.xpath("//@id"), *tree.xpath("//a/@name"), "", "top"} for path, tree in trees.items()}
    for path, tree in trees.items():
        for link in tree.xpath("//@href | //@src"):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not there.is_file() or (there in anchors and unquote(parts.fragment) not in anchors[there]):
                yield path.relative_to(folder).as_posix(), link
