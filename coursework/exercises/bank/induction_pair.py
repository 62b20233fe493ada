"""Exercise: a previous-token head and an induction head, set by hand."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.modules import Unfit
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions


def causal_head(x, W_query, W_key, W_value, W_output):
    """The stream (T, D), a head -> what it adds (T, D), and its weights (T, T)"""
    query, key, value = x @ W_query, x @ W_key, x @ W_value
    later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    scores = (query @ key.T / math.sqrt(query.size(-1))).masked_fill(later, -math.inf)
    weights = scores.softmax(dim=-1)
    return weights @ value @ W_output, weights


def induction_pair(letter, position, note, answer):
    """(D, V), (D, P), (D, V), (D, V) -> two heads, each a tuple of four matrices"""
    before = 50 * position.roll(-1, dims=1)  # asks for the position before its own
    previous = before, position, letter, note.T
    induction = 50 * letter, note, letter, answer.T
    return previous, induction


def _model(shift="back", sharp="both", wrote="note", match="letter-note", took="letter", order="right"):
    """A pair of heads whose settings are the misconceptions."""

    def pair(letter, position, note, answer):
        steps = {"back": -1, "itself": 0, "ahead": 1, "two": -2}[shift]
        factor = {"both": (50, 50), "neither": (1, 1), "first": (50, 1), "second": (1, 50), "negative": (-50, -50)}
        one, two = factor[sharp]
        parts = {"letter": letter, "note": note, "answer": answer}
        into = parts[wrote].T
        previous = one * position.roll(steps, dims=1), position, letter, into
        asked, found = (parts[part] for part in match.split("-"))
        last = note if took == "to-note" else answer
        induction = two * asked, found, parts["note" if took == "note" else "letter"], last.T
        if order == "exchanged":
            return induction, previous
        return (previous, previous) if order == "twice" else (previous, induction)

    return pair


def _with_keys_that_move(letter, position, note, answer):
    after = position.roll(1, dims=1)  # each key says: I am the one before that position
    sharp = 8.0
    previous = sharp * position, sharp * after, letter, note.T
    return previous, (sharp * letter, sharp * note, letter, answer.T)


def _with_a_matrix(letter, position, note, answer):
    P = position.size(1)
    one_back = torch.zeros(P, P)
    for p in range(1, P):
        one_back[p, p - 1] = 60.0  # the query of position p is like the key of p - 1
    previous = position @ one_back, position, letter, note.T
    induction = letter, 60 * note, letter, answer.T
    return previous, induction


def _with_the_rows_of_the_stream(letter, position, note, answer):
    D, V = letter.shape
    P = position.size(1)
    before = torch.zeros(D, P)
    before[V + 1 : V + P, : P - 1] = 70 * torch.eye(P - 1)
    return (before, position, letter, note.T), (70 * letter, note, letter, answer.T)


def _stream(V, P, ids):
    letter, position, note, answer = torch.eye(3 * V + P).split([V, P, V, V], dim=1)
    x = F.one_hot(ids, V).float() @ letter.T + F.one_hot(torch.arange(len(ids)), P).float() @ position.T
    return x, (letter, position, note, answer)


def _run(induction_pair, V, P, ids):
    x, parts = _stream(V, P, ids)
    pair = induction_pair(*parts)
    heads = list(pair) if isinstance(pair, tuple | list) else []
    if len(heads) != 2 or not all(isinstance(head, tuple | list) and len(head) == 4 for head in heads):
        raise Unfit("Two heads are expected, each a tuple of four matrices.")
    found = []
    for number, head in enumerate(heads, 1):
        if not all(isinstance(W, torch.Tensor) for W in head):
            raise Unfit(f"The matrices of head {number} are no tensors.")
        try:
            added, weights = causal_head(x, *head)
            x = x + added
        except RuntimeError:
            shapes = [tuple(W.shape) for W in head]
            raise Unfit(f"The matrices of head {number} have shapes that do not fit: {shapes}.") from None
        found.append(weights)
    seen = ids[:, None] == ids  # (T, T)
    again = seen.tril(-1).any(dim=1)
    return {
        "where the first head looks": found[0][1:],
        "where the second head looks": found[1][again],
        "the answer": (x @ parts[3])[again],
    }


@maker
def _case(V, P, text):
    return V, P, torch.tensor([int(letter) for letter in text])


def _sample(draw):
    V = draw.integer(3, 7)
    ids = [0]
    for _ in range(draw.integer(1, 9)):
        ids.append(draw.choice([one for one in range(1, V) if one != ids[-1]]))
    return V, len(ids) + draw.integer(0, 3), torch.tensor(ids)


def _answers_in_an_unseen_text(pair) -> str | None:
    names = ".KQBZRM"
    text = ".KQBZRMK"
    found = pair(7, 9, torch.tensor([names.index(letter) for letter in text]))["the answer"][-1]
    if int(found.argmax()) == names.index("Q") and float(found.max()) > 0.9:
        return None
    return f"After .KQBZRMK the answer holds {float(found[names.index('Q')]):.2f} of Q, which followed K before."


EXERCISE = Exercise(
    title="Set an induction pair by hand",
    what="""Write `induction_pair(letter, position, note, answer)`, which returns two heads, each as a tuple `W_query,
W_key, W_value, W_output`. Each vector of the stream has four parts. V counts the letters, P the positions:

| part | letter | position | note | answer |
|---|---|---|---|---|
| numbers | V | P | V | V |
| at first | a single 1 | a single 1 | zeros | zeros |

You get a matrix for each part: `x @ letter` reads the letters from the stream, and `found @ note.T` writes to the
notes.

| head | looks | writes the letter it finds there |
|---|---|---|
| first | one position back | to the note |
| second | where its own letter is noted | to the answer |

As above, multiply `position` by a shift matrix, and queries by 50: a head should give at least 0.95 of its weight to
where it looks. If a letter came several times before, the second head shares its weight among the positions right
after those. If the letter is new, the second head may look anywhere. The first position may look anywhere, too, because
each text begins with a start symbol that never recurs.""",
    why="The pair continues texts that it has never seen, and you know what each number in it does.",
    difficulty=4,
    minutes=20,
    reference=induction_pair,
    helpers=(causal_head,),
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
first-head-looks-at-itself (shift="itself"): lets the first head look at its own position
    Which number should a query at position 5 ask for, and which does yours ask for?
first-head-looks-ahead (shift="ahead"): lets the first head ask for the position after its own, which is hidden
    Which number should a query at position 5 ask for, and which does yours ask for?
first-head-looks-two-back (shift="two"): lets the first head look two positions back
    Which number should a query at position 5 ask for, and which does yours ask for?
scores-too-small (sharp="neither"): makes scores so small that both heads look nearly everywhere
    What does a softmax make of scores between 0 and 1?
second-head-too-soft (sharp="first"): makes scores of the second head so small that it looks nearly everywhere
    What does a softmax make of scores between 0 and 1?
first-head-too-soft (sharp="second"): makes scores of the first head so small that it looks nearly everywhere
    What does a softmax make of scores between 0 and 1?
scores-negative (sharp="negative"): gives the lowest scores where the heads should look
    Which score is larger, that of a match or that of no match?
note-written-to-the-letter (wrote="letter"): writes what the first head found over the letter itself
    After the first head, what does the stream say at the note, and what at the letter?
note-written-to-the-answer (wrote="answer"): writes what the first head found to the answer
    After the first head, what does the stream say at the note, and what at the answer?
second-head-compares-letters (match="letter-letter"): lets the second head look for its own letter, not for the note
    Where does the second head look then, and what stands there?
query-and-key-exchanged (match="note-letter"): lets the second head ask with the note and be found by the letter
    What does the last letter know about itself: what stands before it, or what came after it last time?
second-head-compares-notes (match="note-note"): lets the second head compare notes with notes
    Which of two letters needs to be noted at the other?
second-head-takes-the-note (took="note"): lets the second head take along the note of where it looks
    Where the note says K, what does the letter say?
answer-written-elsewhere (took="to-note"): writes what the second head found to the note, so that the answer is empty
    Which part of the stream is read at the end?
heads-exchanged (order="exchanged"): has the second head in the first layer
    What stands in the notes when your first head reads them?
previous-head-twice (order="twice"): has the previous-token head in both layers
    What does the second head have to find, and by what?
"""),
    cases=[
        Case("start, 1 2 1", _case(3, 5, "0121")),
        Case("start, 1 2 3 1 2", _case(4, 7, "012312")),
        Case("start, 3 1 4 2 3 1, more letters", _case(5, 8, "0314231")),
        Case("a letter that was followed by two others", _case(5, 9, "01213241")),
        Case("a list three times", _case(4, 11, "0321321321")),
        Case("8 letters, 13 positions", _case(8, 13, "0123456712345")),
    ],
    properties=[
        Property("In a new text, what followed before is what is answered.", _answers_in_an_unseen_text),
    ],
    alternatives=[
        Alternative("with keys that move and queries that stay", _with_keys_that_move),
        Alternative("with a matrix from positions to positions", _with_a_matrix),
        Alternative("with rows of the stream", _with_the_rows_of_the_stream),
    ],
    hints=(
        "For each head: by which part of the stream is it found, what does it ask for, and what does it take along?",
        "The query of the first head is its position moved by one, and `roll` moves the columns of a matrix. A match "
        "must score far above all others: multiply by a large number.",
        """previous = ...  # asks for a position, takes a letter, writes a note
induction = ____  # asks by its letter, is found by a note
return previous, induction""",
    ),
    sample=_sample,
    gradients=False,
    tolerance=(0.0, 0.05),
    equivalent_mutants=dict.fromkeys(
        ("50 -> 51", "50 -> 49", "50 -> 51 (2)", "50 -> 49 (2)"), "any large factor serves"
    ),
)
