"""Exercise: repair the positions of a batch that is padded on the left."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import mask


def padded_positions(real):
    """bool (B, T) -> int64 (B, T): position among the real tokens, 0 for padding"""
    counted = real.cumsum(dim=-1) - 1  # (B, T): real tokens so far, without itself
    return counted.masked_fill(~real, 0)


def _counts_columns():
    def padded_positions(real):
        """bool (B, T) -> int64 (B, T): position among the real tokens, 0 for padding"""
        B, T = real.shape
        return torch.arange(T).expand(B, T)

    return padded_positions


def _model(count="real", fill="zero", first=0, form="int"):
    """Positions whose settings are the misconceptions."""

    def place(real):
        B, T = real.shape
        counted = {
            "real": real.cumsum(-1) - 1,
            "unmasked": real.cumsum(-1) - 1,
            "clamped": (real.cumsum(-1) - 1).clamp(min=0),
            "columns-as-they-are": torch.arange(T).expand(B, T),
            "columns": torch.arange(T).expand(B, T),
            "backwards": real.flip(-1).cumsum(-1).flip(-1) - 1,
            "widest": (torch.arange(T) - (~real).sum(-1).min()).expand(B, T),
            "narrowest": (torch.arange(T) - (~real).sum(-1).max()).clamp(min=0).expand(B, T),
            "down": real.cumsum(0) - 1,
            "fewer-columns": torch.arange(T) - (~real).sum(-1, keepdim=True),
            "from-first-real": torch.arange(T) - real.int().argmax(-1, keepdim=True),
            "padding": (~real).cumsum(-1),
        }[count]
        counted = counted + first
        if fill == "zero" and count not in ("unmasked", "clamped", "columns-as-they-are"):
            counted = counted.masked_fill(~real, 0)
        elif fill == "one":
            counted = counted.masked_fill(~real, 1)
        return counted.float() if form == "float" else counted + 0

    return place


def _with_loops(real):
    positions = torch.zeros(real.shape, dtype=torch.int64)
    for b, row in enumerate(real.tolist()):
        place = 0
        for t, is_real in enumerate(row):
            if is_real:
                positions[b, t] = place
                place += 1
    return positions


def _with_where(real):
    return torch.where(real, real.long().cumsum(1) - real.long(), 0)


def _by_writing(real):
    positions = torch.zeros_like(real, dtype=torch.int64)
    for row, chosen in zip(positions, real, strict=True):
        row[chosen] = torch.arange(int(chosen.sum()))
    return positions


def _case(name, rows):
    return Case(name, lambda: (torch.tensor(rows, dtype=torch.bool),))


def _sample(draw):
    return (draw.mask(draw.integer(1, 4), draw.integer(1, 7)),)


def _padding_moves_nothing(place) -> str | None:
    alone = place(torch.tensor([[True, True, True]]))[0].tolist()
    padded = place(torch.tensor([[False, False, True, True, True]]))[0, 2:].tolist()
    if alone == padded:
        return None
    return f"Three tokens stand at {alone} alone, and at {padded} after two padding tokens."


EXERCISE = Exercise(
    title="Positions after padding",
    kind="debug",
    what="""Prompts of different lengths are padded on the left, so that all end in the same column and generation can
go on from there. `padded_positions(real)` gets a boolean table `(B, T)`, True = a real token, and must return int64
positions `(B, T)`: the first real token of each row stands at 0, the next at 1, and so on, whatever padding stands
before, behind or between. Padding itself gets 0. The version below counts columns. Repair it.""",
    why="""With the version below, the same prompt gets other positions when a longer one joins its batch. Nothing
fails; the answers get worse.""",
    difficulty=2,
    minutes=6,
    reference=padded_positions,
    given=_counts_columns(),
    model=_model,
    misconceptions=misconceptions("""
counts-columns (count="columns-as-they-are"): counts columns, padding included
    At which position does a prompt start that has two padding tokens before it?
counts-columns-but-clears-padding (count="columns"): counts columns and sets padding to zero
    At which position does a prompt start that has two padding tokens before it?
padding-below-zero (count="unmasked"): leaves a position at padding tokens that is not 0, in front even -1
    Which number do padding tokens get, in front of the prompt and behind it?
padding-behind-keeps-counting (count="clamped"): sets padding in front to 0 but not padding behind or between
    What do padding tokens get that stand after a real one?
padding-one (fill="one"): gives padding the position 1, as some libraries do
    Which number does the task ask for at padding tokens?
counts-from-one (first=1): starts at one
    Where did the first token of a prompt stand in training?
counts-backwards (count="backwards"): counts from the last token backwards
    Which of two real tokens in a row has the lower position?
one-offset-for-all-short (count="widest"): subtracts the padding of the longest prompt in every row
    Do all rows have the same amount of padding?
one-offset-for-all-long (count="narrowest"): subtracts the padding of the shortest prompt in every row
    Do all rows have the same amount of padding?
counts-down-the-batch (count="down"): counts real tokens along the batch, not along the row
    Which axis of the table is time?
counts-padding (count="padding"): counts padding tokens, not real ones
    What grows by one from each real token to the next?
not-integers (form="float"): returns floating-point numbers
    What does a table of positions need as its index?
number-of-padding-subtracted (count="fewer-columns"): subtracts the number of padding tokens in the row from the column
    Where must all padding of a row stand for this to be the position among the real tokens?
first-real-subtracted (count="from-first-real"): subtracts the column of the first real token from the column
    What happens behind a padding token in the middle of the row?
"""),
    cases=[
        _case("one row without padding", [[1, 1, 1]]),
        _case("one row with two padding tokens in front", [[0, 0, 1, 1, 1]]),
        _case("2 rows, the first with padding in front", [[0, 0, 1, 1], [1, 1, 1, 1]]),
        _case("3 rows, each with padding in front", [[0, 0, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 1]]),
        _case("padding behind", [[1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]),
        _case("padding between", [[0, 1, 0, 1, 1, 0, 1]]),
        _case("a row of padding alone", [[0, 0, 0], [0, 1, 1]]),
        Case("4 rows, 7 columns, at random", lambda: (mask(4, 7, seed=3),)),
    ],
    properties=[Property("Padding in front changes the position of no real token.", _padding_moves_nothing)],
    alternatives=[
        Alternative("with loops", _with_loops),
        Alternative("with torch.where", _with_where),
        Alternative("row by row, writing into the real positions", _by_writing),
    ],
    hints=(
        "How many real tokens stand before a given token in its row, and what is that number for the first one?",
        "A running count along a row does it. Then think of padding tokens, which the count passes over.",
        """counted = ____  # for each column: how many real tokens came before it in its row
return counted.masked_fill(~real, 0)""",
    ),
    sample=_sample,
    gradients=False,
)
