"""The model that the reader writes, as it stands after a chapter, in the notebook: `my = so_far(3)`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from coursework.assembly import laws
from coursework.assembly.assemble import NAME, Assembled, assemble, stand_in
from coursework.assembly.compose import compose
from coursework.assembly.parts import FUNCTIONS, up_to
from coursework.desk.finding import find_desk
from coursework.desk.store import DeskError


def so_far(chapter: int) -> Any:
    """Put the reader's right answers into `my_transformer.py`, say what stands there by now, and import it.

    The file goes at least to the end of the chapter. For parts that are open the course's stand in; where no answers
    are kept all of them do, and no file is written.
    """
    desk, done = find_desk(), None
    if desk is not None:
        try:
            done = assemble(desk, chapter, judged=False)
            module = laws.load(done.path)
        except (DeskError, OSError) as problem:
            print(f"Your answers could not be put together: {problem}")
            done = None
        except Exception as problem:  # whatever an answer raises when it is imported
            print(f"{NAME} could not be imported ({type(problem).__name__}: {problem}); `course assemble` says more.")
            done = None
    if done is None:
        done, module = _the_courses(chapter)
    _tell(done)
    return module


def _the_courses(chapter: int) -> tuple[Assembled, Any]:
    """The module of the course's parts alone; nothing is left of its file."""
    text = compose({one: stand_in(one) for one in up_to(chapter)}, chapter)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, NAME)
        path.write_text(text, encoding="utf-8")
        return Assembled(path, chapter, open=dict.fromkeys(up_to(chapter), ""), text=text), laws.load(path)


def _tell(done: Assembled) -> None:
    print(f"your model so far, {NAME}: {len(done.text.splitlines())} lines")
    for whose, parts in (("yours", done.own), ("the course's, until you solve them", done.open)):
        if parts:
            print(f"  {whose}: {', '.join(FUNCTIONS[one] for one in parts)}")
