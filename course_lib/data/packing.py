"""Several documents in one row, so that no row of a batch is mostly padding."""

from collections.abc import Sequence

from course_lib.checks import Count, CountOrZero, checked, id_tensor

__all__ = ["pack"]


@checked
def pack(documents: Sequence[Sequence[int]], length: Count, *, pad_id: CountOrZero = 0) -> list[dict[str, list[int]]]:
    """Lay documents side by side in rows of `length` ids: examples for `TokenBatches`, with which document is where.

    Each document lies whole in the first row that has room for it, longest first; the rest of a row is padding.

    Args:
        documents: lists of ids.
        length: ids of a row.
        pad_id: fills rows up.

    Returns:
        Rows {"tokens": ids, "documents": numbers}, the documents of a row numbered from 1, padding 0.
        `course_lib.masks.document_mask` and `course_lib.positions.document_positions` keep them apart, and
        `LanguageModelling` uses both.

    Raises ValueError for a document that is empty or longer than a row. Source: Raffel et al. 2020 (T5), section 3.1.2
    packs; Krell et al. 2021 for the mask and the positions that start again.
    """
    rows: list[dict[str, list[int]]] = []
    counts: list[int] = []
    for number in sorted(range(len(documents)), key=lambda number: -len(documents[number])):
        document = list(documents[number])
        if not 0 < len(document) <= length:
            raise ValueError(f"documents: expected 1 to {length} ids in each, got {len(document)} in number {number}")
        id_tensor("documents", document)
        fits = (i for i, row in enumerate(rows) if len(row["tokens"]) + len(document) <= length)
        place = next(fits, len(rows))
        if place == len(rows):
            rows.append({"tokens": [], "documents": []})
            counts.append(0)
        counts[place] += 1
        rows[place]["tokens"] += document
        rows[place]["documents"] += [counts[place]] * len(document)
    for row in rows:
        rest = length - len(row["tokens"])
        row["tokens"] += [pad_id] * rest
        row["documents"] += [0] * rest
    return rows
