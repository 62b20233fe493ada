"""What exercises and questions have in common: cells for the notebook, hints, solution, saved answers."""

from __future__ import annotations

from typing import Any

OFFERED = ("check", "answer", "hint", "cases", "solution", "reset", "restore", "title", "kind", "difficulty", "minutes")
KINDS = ("build", "debug", "predict", "measure")


class Entry:
    """The shared methods of `Exercise` and `Question`; the fields are declared there."""

    id: str
    chapter: int
    title: str
    kind: Any
    what: str
    why: str
    difficulty: int
    minutes: int
    hints: tuple[str, str, str]

    def validate_entry(self) -> None:
        """Reject fields that no exercise may have."""
        if not self.id.isidentifier():
            raise ValueError(f"id: expected an identifier, got {self.id!r}")
        if self.kind not in KINDS:
            raise ValueError(f"kind: expected one of {KINDS} in {self.id}, got {self.kind!r}")
        if not 1 <= self.chapter <= 8:
            raise ValueError(f"chapter: expected 1 to 8 in {self.id}, got {self.chapter}")
        if not 1 <= self.difficulty <= 5:
            raise ValueError(f"difficulty: expected 1 to 5 in {self.id}, got {self.difficulty}")
        if self.minutes < 1:
            raise ValueError(f"minutes: expected at least 1 in {self.id}, got {self.minutes}")
        if len(self.hints) != 3:
            raise ValueError(f"hints: expected three in {self.id} (question, pointer, skeleton), got {len(self.hints)}")

    def __repr__(self) -> str:
        """One line, without the solution and the mistakes that the fields hold."""
        return f"{self.id}: {self.title} ({self.kind}, difficulty {self.difficulty} of 5, about {self.minutes} min)"

    def __dir__(self) -> list[str]:
        """What a learner uses, for completion; the fields of the specification stay out of sight."""
        return [name for name in OFFERED if hasattr(self, name)]

    def prompt_markdown(self) -> str:
        """The text above the code cell."""
        from course_lib.exercises.engine.cells import prompt_markdown

        return prompt_markdown(self)

    def cell_source(self) -> str:
        """The code cell as the learner first meets it."""
        from course_lib.exercises.engine.cells import cell_source

        return cell_source(self)

    def solved_cell_source(self) -> str:
        """The same cell with the solution in place of the stub."""
        from course_lib.exercises.engine.cells import solved_cell_source

        return solved_cell_source(self)

    @property
    def edition(self) -> str:
        """A short hash that changes when the prompt, the stub, the probes or the misconceptions change."""
        from course_lib.exercises.engine.cells import edition

        return edition(self)

    def hint(self) -> None:
        """Print the next hint: a question, then a pointer, then a skeleton with one gap.

        After a recognised mistake, the question that leads out of that mistake comes first.
        """
        from course_lib.exercises.engine.session import hint

        hint(self)

    def solution(self, reveal: bool = False) -> None:
        """Print the solution, after one attempt or with reveal=True; after success also the other right ways."""
        from course_lib.exercises.engine.session import solution

        solution(self, reveal=reveal)

    def reset(self) -> None:
        """Give back the cell as it was at first; in a notebook it replaces the cell that calls this."""
        from course_lib.exercises.engine.session import reset

        reset(self)

    def restore(self) -> None:
        """Give back your latest saved answer; in a notebook it replaces the cell that calls this."""
        from course_lib.exercises.engine.session import restore

        restore(self)
