"""Exercise: what the decoder reads and what it must answer, one position apart."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def shift_targets(sentences, bos_id, eos_id, pad_id):
    """B lists, three ids -> read (B, T), labels (B, T)"""
    T = max(len(ids) for ids in sentences) + 1
    inputs = [[bos_id, *ids] + [pad_id] * (T - 1 - len(ids)) for ids in sentences]
    labels = [[*ids, eos_id] + [pad_id] * (T - 1 - len(ids)) for ids in sentences]
    return torch.tensor(inputs), torch.tensor(labels)


def _model(shift=1, start=True, end="after", side="right", fill="pad", width="longest", swap=False, keep_end=False):
    """Shifting whose settings are the misconceptions."""

    def pad(row, T, id):
        return row + [id] * (T - len(row)) if side == "right" else [id] * (T - len(row)) + row

    def shift_targets(sentences, bos_id, eos_id, pad_id):
        pairs = []
        for ids in sentences:
            ids = list(ids)
            first = [bos_id, *ids] if start else [*ids, eos_id]
            if shift == 0:
                second = list(first)
            elif shift == 2:
                second = [*ids[1:], eos_id] if ids else [eos_id]
            else:
                second = [*ids, eos_id]
            if end == "never":
                second = second[:-1]
            if shift == -1:
                second = [bos_id, *ids, eos_id]
            if keep_end is True:
                first = [*first, eos_id]
            pairs.append((first, second))
        T = max(max(len(first), len(second)) for first, second in pairs)
        if end == "never" or shift == 2:
            T = max(len(ids) for ids in sentences) + 1
        id = {"pad": pad_id, "eos": eos_id, "zero": 0}[fill]
        inputs = [pad(first, T, id) for first, _ in pairs]
        labels = [pad(second, T, id) for _, second in pairs]
        if end == "last":  # the end sign stands in the last column, after the padding
            labels = [[*pad(list(ids), T - 1, id), eos_id] for ids in sentences]
        if keep_end == "cut":  # the last column of (start, sentence, end, padding) is cut, whatever stands there
            inputs = [pad([*first, eos_id], T + 1, id)[:-1] for first, _ in pairs]
        both = torch.tensor(inputs), torch.tensor(labels)
        return both[::-1] if swap else both

    return shift_targets


def _of_one_tensor(sentences, bos_id, eos_id, pad_id):
    T = max(map(len, sentences)) + 2
    target = torch.full((len(sentences), T), pad_id)
    for row, ids in zip(target, sentences, strict=True):
        row[: len(ids) + 2] = torch.tensor([bos_id, *ids, eos_id])
    inputs, labels = target[:, :-1].clone(), target[:, 1:]
    for row, ids in zip(inputs, sentences, strict=True):
        row[len(ids) + 1 :] = pad_id  # the end sign is never read
    return inputs, labels


def _row_by_row(sentences, bos_id, eos_id, pad_id):
    longest = max(len(ids) for ids in sentences)
    inputs, labels = [], []
    for ids in sentences:
        padding = [pad_id] * (longest - len(ids))
        inputs.append([bos_id, *ids, *padding])
        labels.append([*ids, eos_id, *padding])
    return torch.tensor(inputs), torch.tensor(labels)


def _with_torch(sentences, bos_id, eos_id, pad_id):
    from torch.nn.utils.rnn import pad_sequence

    inputs = [torch.tensor([bos_id, *ids]) for ids in sentences]
    labels = [torch.tensor([*ids, eos_id]) for ids in sentences]
    return tuple(pad_sequence(rows, batch_first=True, padding_value=pad_id) for rows in (inputs, labels))


def _case(*sentences, bos_id=1, eos_id=2, pad_id=0):
    return lambda: ([list(ids) for ids in sentences], bos_id, eos_id, pad_id)


def _sample(draw):
    sentences = [[draw.integer(5, 30) for _ in range(draw.integer(0, 6))] for _ in range(draw.integer(1, 5))]
    return sentences, *draw.choice([(1, 2, 0), (3, 4, 2), (40, 41, 42)])


def _the_label_is_the_next_input(shift) -> str | None:
    inputs, labels = shift([[11, 12, 13], [14]], 1, 2, 0)
    for t in range(2):
        if inputs[0, t + 1] != labels[0, t]:
            return f"The label at position {t} is {int(labels[0, t])}, the next input is {int(inputs[0, t + 1])}."
    return None


def _one_label_for_each_input(shift) -> str | None:
    inputs, labels = shift([[11, 12, 13], [14]], 1, 2, 0)
    for row, (read, answered) in enumerate(zip((inputs > 0).sum(1), (labels > 0).sum(1), strict=True)):
        if read != answered:
            return f"Row {row} has {int(read)} inputs and {int(answered)} labels."
    return None


EXERCISE = Exercise(
    title="One position apart",
    what="""Write `shift_targets(sentences, bos_id, eos_id, pad_id)`. A sentence is a list of ids without any marks,
which may be empty; there is at least one sentence, and the three ids differ. The decoder reads the start sign and then
the sentence; its labels are the sentence and then the end sign, so that at each position the label is what comes next.
Return both as int64 tensors `(B, T)`, padded on the right with `pad_id`; T is the length of the longest sentence plus
one. Here the end sign goes into the labels only. Do not modify the lists.""",
    why="Without the shift the decoder copies its input and the loss goes to zero; shifted twice it skips a word.",
    difficulty=2,
    minutes=8,
    reference=shift_targets,
    model=_model,
    misconceptions=misconceptions("""
not-shifted (shift=0): gives the decoder its labels to read
    At position 1, has the decoder already read what it must answer there?
shifted-twice (shift=2): asks for the word after the next one
    Having read only the start sign, which word of the sentence is the decoder asked for?
start-sign-in-labels (shift=-1): lets the labels begin with the start sign
    Is the start sign something that the decoder should learn to say?
start-sign-missing (start=False): lets the decoder read the sentence without a start sign
    What does the decoder read when it must say the first word?
end-sign-missing (end="never"): never asks for the end sign
    How would a model trained on your labels know when to stop?
end-sign-after-padding (end="last"): puts the end sign into the last column, behind the padding
    In the shorter of two sentences, which label follows its last word?
end-sign-read (keep_end=True): lets the decoder read the end sign as well
    Is there anything left to say after the end sign?
padded-on-the-left (side="left"): pads on the left
    On which position does the start sign stand in each of your rows?
padded-with-end-signs (fill="eos"): fills the rows up with end signs
    Which id tells the loss that a position does not count?
padded-with-zero (fill="zero"): fills the rows up with 0, whatever the padding id is
    Which id stands for padding when `pad_id` is 7?
swapped (swap=True): returns the labels before the decoder input
    Which of the two tensors does the docstring name first?
end-sign-read-in-short-rows (keep_end="cut"): cuts the last column, so that shorter sentences keep their end sign in
        what is read
    In a row with padding, what stands in the column that you cut?
"""),
    cases=[
        Case("one sentence of two words", _case([11, 12])),
        Case("two sentences of different lengths", _case([11, 12, 13], [14])),
        Case("other marks", _case([11, 12, 13, 14, 15], [16, 17], [18], bos_id=5, eos_id=6, pad_id=7)),
        Case("an empty sentence beside another", _case([], [11, 12, 13, 14])),
        Case("only an empty sentence", _case([])),
    ],
    properties=[
        Property("A label is the input of the next position.", _the_label_is_the_next_input),
        Property("Each position that is read has a label.", _one_label_for_each_input),
    ],
    alternatives=[
        Alternative("cut twice from one tensor with both marks", _of_one_tensor),
        Alternative("row by row", _row_by_row),
        Alternative("with torch's padding", _with_torch),
    ],
    hints=(
        "Write both rows for the sentence A B under each other: what stands in each column?",
        "Both rows have one id more than the sentence: one begins with a mark, the other ends with one. Pad both.",
        "inputs.append([bos_id, *ids, *padding])\nlabels.append(____)",
    ),
    sample=_sample,
    gradients=False,
)
