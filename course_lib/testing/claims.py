"""Claims and their evidence: what a chapter proves as it runs, and what a law has against a piece of code."""

from collections.abc import Callable
from typing import Any

proved: list[str] = []  # the claims that held, in order


def prove(claim: str, evidence: Any) -> None:
    """Remember the claim in `proved`; raise AssertionError with it if the evidence is false, or an empty text.

    Raises TypeError for a claim that is no text: the two exchanged would hold whatever the evidence says.
    """
    if not isinstance(claim, str):
        raise TypeError(f"claim: expected a sentence, then the evidence for it, got {type(claim).__name__}")
    if not evidence:
        raise AssertionError(claim)
    if claim not in proved:
        proved.append(claim)


def complaint(law: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Return what a law says about a piece of code: the text of its AssertionError, empty if the code obeys."""
    try:
        law(*args, **kwargs)
    except AssertionError as broken:
        return str(broken)
    return ""
