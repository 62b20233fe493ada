"""Exercise: turn targets into the decoder's input for teacher forcing."""

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import integers


def shift_right(targets, start_id):
    """integers (B, T), int -> the same shape and dtype: what the decoder reads"""
    start = torch.full_like(targets[:, :1], start_id)  # (B, 1)
    return torch.cat([start, targets[:, :-1]], dim=1)  # (B, 1) and (B, T - 1) -> (B, T)


def _model(direction="right", length="kept", first="start", rows="all"):
    """Shifting whose settings are the misconceptions."""

    def shift(targets, start_id):
        B, T = targets.shape
        start = targets.new_full((B, 1), start_id)
        if first == "zero":
            start = start * 0
        elif first == "repeated":
            start = targets[:, :1].clone()
        elif first == "wrapped":
            start = targets[:, -1:].clone()
        if direction == "left":
            moved = torch.cat([targets[:, 1:], start], dim=1)
        elif direction == "none":
            moved = targets.clone()
            moved[:, :1] = start
        elif direction == "down":
            moved = torch.cat([torch.full_like(targets[:1], start_id), targets[:-1]], dim=0)
        elif direction == "overwritten":
            moved = torch.cat([start, targets[:, :1].expand(B, T - 1)], dim=1)
        elif length == "longer":
            moved = torch.cat([start, targets], dim=1)
        elif length == "two":
            moved = torch.cat([start, start, targets], dim=1)[:, :T]
        else:
            moved = torch.cat([start, targets[:, :-1]], dim=1)
        if rows == "first":
            moved[1:, 0] = 0
        return moved

    return shift


def _with_roll(targets, start_id):
    rolled = targets.roll(1, dims=1)
    rolled[:, 0] = start_id
    return rolled


def _with_pad(targets, start_id):
    return F.pad(targets, (1, 0), value=start_id)[:, :-1]  # (B, T) -> (B, T + 1) -> (B, T)


def _with_loops(targets, start_id):
    rows = [[start_id, *row[:-1]] for row in targets.tolist()]
    return torch.tensor(rows, dtype=targets.dtype).reshape(targets.shape)


def _with_course(targets, start_id):
    from course_lib.decoder import shift_right

    return shift_right(targets, start_id)


def _case(name, rows, start_id):
    return Case(name, lambda: (torch.tensor(rows), start_id))


def _sample(draw):
    return draw.integers(draw.integer(1, 4), draw.integer(1, 7), low=3, high=9), draw.integer(0, 9)


def _nobody_reads_the_answer(shift) -> str | None:
    targets = torch.tensor([[5, 6, 7, 8]])
    for t in range(4):
        changed = targets.clone()
        changed[0, t] = 9
        before, after = shift(targets, 1), shift(changed, 1)
        moved = [place for place in range(before.size(1)) if before[0, place] != after[0, place]]
        if any(place <= t for place in moved):
            return (
                f"Changing target {t} changed the input at position {moved[0]}, where it is to be predicted or later."
            )
    return None


EXERCISE = Exercise(
    title="Shift the targets right",
    what="""Write `shift_right(targets, start_id)`. A decoder is to predict `targets`, integers `(B, T)`, all positions
at once. Return the decoder's input, of the same shape and dtype: `start_id` at position 0, and at every other position
the target of the position before. Do not change `targets`.""",
    why="""With this line and the causal mask a decoder can be trained at all positions at once. One that reads its
targets unshifted learns to copy its input: the loss looks wonderful, but it has learned nothing useful.""",
    difficulty=1,
    minutes=4,
    reference=shift_right,
    model=_model,
    misconceptions=misconceptions("""
shifts-left (direction="left"): moves the targets to the left, so that position t reads target t + 1
    Which target does your position 0 read, and is it known when target 0 is to be predicted?
does-not-shift (direction="none"): overwrites the first target and leaves the others where they are
    What does your position 2 read, and what is it to predict?
shifts-the-batch (direction="down"): moves whole sentences down the batch
    Which axis of (B, T) is time?
one-longer (length="longer"): keeps the last target, so that the result is one longer than the targets
    How many predictions are wanted, and how many positions does your input have?
shifts-twice (length="two"): shifts by two positions
    Which target does your position 2 read?
last-wraps-around (first="wrapped"): lets the last target come round to the front
    What may the decoder know before it has predicted anything?
first-target-repeated (first="repeated"): puts the first target itself in front
    What may the decoder know before it has predicted anything?
always-zero-in-front (first="zero"): puts 0 in front, whatever the start token is
    Where does your function use its second argument?
only-the-first-sentence-starts (rows="first"): gives the start token to the first sentence of the batch only
    What stands at position 0 of your second sentence?
overwritten-while-read (direction="overwritten"): copies each token from a position that was already overwritten
    When your loop reads position 1, what stands there?
"""),
    cases=[
        _case("one sentence of 3 targets", [[5, 6, 7]], 1),
        _case("2 sentences of 4 targets", [[5, 6, 7, 8], [9, 3, 3, 4]], 2),
        _case("one target", [[7]], 1),
        _case("3 sentences of one target", [[7], [8], [9]], 4),
        _case("equal targets", [[5, 5, 5, 5, 5], [6, 6, 6, 6, 6]], 3),
        Case("5 sentences of 7 targets", lambda: (integers(5, 7, low=3, high=20, seed=1), 1)),
    ],
    properties=[Property("No position reads its own target or a later one.", _nobody_reads_the_answer)],
    alternatives=[
        Alternative("by rolling, then overwriting what came round", _with_roll),
        Alternative("by padding in front", _with_pad),
        Alternative("row by row", _with_loops),
        Alternative("the course's own function, which also checks its argument", _with_course),
    ],
    hints=(
        "When target 0 is to be predicted nothing is known. What is known when target 1 is to be predicted?",
        "Every row loses its last token and gains one in front. Two pieces, joined along time.",
        """start = torch.full_like(targets[:, :1], start_id)  # (B, 1)
return torch.cat([start, ____], dim=1)""",
    ),
    sample=_sample,
    tries=("int32", "repeated", "far"),
    gradients=False,
)
