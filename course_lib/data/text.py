"""Real English text that is on every machine that runs Python."""

import functools


@functools.cache
def reference_text() -> str:
    """Return the Python language reference as one string: about half a million characters of technical prose.

    The topics of `pydoc_data.topics`, sorted by name and joined by blank lines. The text grows with each version of
    Python (465 thousand characters in 3.11, 511 thousand in 3.13): it is the same in every run on one machine, and
    nothing may depend on its exact size. Raises ImportError where Python was installed without it.

    Source: the CPython documentation, Python Software Foundation License 2.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ImportError(
            "pydoc_data: this Python was installed without the texts of help(); install its full standard library"
        ) from None
    return "\n\n".join(topics[name].strip() for name in sorted(topics))
