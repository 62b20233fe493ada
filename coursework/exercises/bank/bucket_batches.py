"""Exercise: batches of sentences of like length, cut by the number of ids that they take, padding included."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def bucket_batches(lengths, max_tokens):
    """list of N lengths, number -> list of batches, each a list of sentence numbers"""
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    batches, current = [], []
    for number in order:
        if current and (len(current) + 1) * lengths[number] > max_tokens:
            batches.append(current)
            current = []
        current.append(number)
    if current:
        batches.append(current)
    return batches


def _model(order="rising", count="padded", limit="within", last="kept", cut="before", reset=True, returns="numbers"):
    """Batching whose settings are the misconceptions."""

    def bucket(lengths, max_tokens):
        numbers = list(range(len(lengths)))
        if order != "given":
            if order == "equals-reversed":
                numbers.reverse()
            numbers.sort(key=lambda number: lengths[number], reverse=order == "falling")
        batches, current, real = [], [], 0
        for number in numbers:
            rows = len(current) + 1
            longest = max([lengths[n] for n in current] + [lengths[number]])
            shortest = min([lengths[n] for n in current] + [lengths[number]])
            size = {"padded": rows * longest, "real": real + lengths[number], "rows": rows,
                    "shortest": rows * shortest, "without-new": len(current) * longest}[count]  # fmt: skip
            full = size >= max_tokens if limit == "below" else size > max_tokens
            if cut == "after":  # the sentence that is too much still comes in
                current.append(number)
                real += lengths[number]
                if full:
                    batches.append(current)
                    current, real = [], 0
                continue
            if full and current:
                batches.append(current)
                current, real = ([], 0) if reset else ([], real)
            current.append(number)
            real += lengths[number]
        if (current or last == "even-if-empty") and last != "lost":
            batches.append(current)
        if returns == "lengths":
            return [[lengths[n] for n in batch] for batch in batches]
        return batches

    return bucket


def _from_the_end(lengths, max_tokens):
    batches = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        if batches and (len(batches[-1]) + 1) * lengths[number] <= max_tokens:
            batches[-1].append(number)
        else:
            batches.append([number])
    return batches


def _with_torch(lengths, max_tokens):
    import torch

    values, order = torch.tensor(lengths, dtype=torch.int64).sort(stable=True)
    batches, start = [], 0
    while start < len(lengths):
        rows = torch.arange(1, len(lengths) - start + 1)
        fits = (rows * values[start:] <= max_tokens).cumprod(0).sum()  # rows up to the first that is too much
        end = start + max(1, int(fits))
        batches.append(order[start:end].tolist())
        start = end
    return batches


def _with_pairs(lengths, max_tokens):
    batches, current = [], []
    for length, number in sorted((length, number) for number, length in enumerate(lengths)):
        if current and length * len(current) + length > max_tokens:
            batches, current = [*batches, current], []
        current = [*current, number]
    return [*batches, current] if current else batches


def _case(lengths, max_tokens):
    return lambda: (list(lengths), max_tokens)


def _sample(draw):
    lengths = [draw.integer(1, 12) for _ in range(draw.integer(0, 12))]
    return lengths, draw.integer(12, 40)


def _all_come_once(bucket) -> str | None:
    lengths = [7, 3, 11, 5, 2, 13, 3]
    numbers = sorted(number for batch in bucket(lengths, 20) for number in batch)
    return None if numbers == list(range(7)) else f"Of the sentences 0 to 6, the batches hold {numbers}."


def _none_is_too_large(bucket) -> str | None:
    lengths = [7, 3, 11, 5, 2, 13, 3]
    for batch in bucket(lengths, 20):
        size = len(batch) * max(lengths[number] for number in batch)
        if size > 20:
            return f"With at most 20 ids, the batch {batch} takes {size}, padding included."
    return None


EXERCISE = Exercise(
    title="Sentences of like length together",
    what="""Write `bucket_batches(lengths, max_tokens)`. Sort the sentences by length, shortest first, equals in their
given order. Fill a batch as long as its ids, *padding included*, are at most `max_tokens`: the number of rows times
the length of the longest. Then begin the next. Return the batches as lists of sentence numbers. `max_tokens` is a
whole number, and no sentence is empty or longer than that. Without sentences there are no batches: an empty list. The
given list must not change.""",
    why="A fixed number of rows wastes memory on short sentences and runs out of it on long ones.",
    difficulty=2,
    minutes=10,
    reference=bucket_batches,
    model=_model,
    misconceptions=misconceptions("""
not-sorted (order="given"): takes the sentences in their given order
    Which sentences stand in one batch when a short one follows a long one in the list?
longest-first (order="falling"): begins with the longest sentences
    Which sentence should stand first in the first batch?
padding-not-counted (count="real"): adds up the lengths and forgets the padding
    How many ids does a batch of two sentences of lengths 3 and 9 take in memory?
rows-counted (count="rows"): takes the limit for a number of sentences
    What does `max_tokens` count: rows, or ids?
shortest-counts (count="shortest"): multiplies the rows by the shortest length
    To which length are the rows of a batch padded?
new-row-not-counted (count="without-new"): checks the size of the batch without the sentence that comes in
    How many rows has the batch after your check?
limit-not-allowed (limit="below"): stops below the limit, although the limit itself is allowed
    May a batch of 4 rows of 5 stand under a limit of 20?
one-too-many (cut="after"): closes a batch only after the sentence that was too much
    Where should the sentence go that no longer fits?
last-batch-lost (last="lost"): loses the last batch
    What is in your current batch when the loop ends?
lengths-returned (returns="lengths"): returns lengths in place of sentence numbers
    How would a caller find the sentences of your batches?
equals-turned-round (order="equals-reversed"): takes sentences of equal length in the opposite order
    In which order do two sentences of the same length come in?
empty-batch (last="even-if-empty"): returns one empty batch when there are no sentences
    How many batches do no sentences need?
"""),
    cases=[
        Case("two sentences that fit together", _case([2, 3], 6)),
        Case("two sentences that do not", _case([2, 4], 6)),
        Case("four sentences", _case([5, 2, 4, 3], 7)),
        Case("a limit that is met exactly", _case([4, 4, 4, 5, 1], 12)),
        Case("equal lengths", _case([3, 1, 3, 3, 1, 3], 6)),
        Case("many rows of short sentences", _case([1, 1, 1, 1, 1, 1, 1, 2], 5)),
        Case("ten sentences", _case([7, 3, 11, 5, 2, 13, 3, 8, 8, 1], 20)),
        Case("a sentence as long as the limit", _case([13, 2], 13)),
        Case("no sentences", _case([], 10)),
    ],
    properties=[
        Property("Every sentence comes once.", _all_come_once),
        Property("No batch takes more ids than allowed.", _none_is_too_large),
    ],
    alternatives=[
        Alternative("growing the last batch of the list", _from_the_end),
        Alternative("finding each border with torch", _with_torch),
        Alternative("with pairs of length and number", _with_pairs),
    ],
    hints=(
        "When a sentence is about to come in, how many ids would the batch take with it?",
        "In sorted order the sentence that comes in is the longest so far. Mind what is left when the loop ends.",
        """for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
    if current and ____:
        ...  # close the batch and begin another
    current.append(number)
...""",
    ),
    sample=_sample,
    gradients=False,
)
