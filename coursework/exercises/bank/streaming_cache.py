"""Exercise: which positions a cache with a window and a few first positions keeps."""

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def streaming_cache(n_seen, window, first):
    """int, int, int -> list of int, ascending: the positions kept after n_seen tokens"""
    return [place for place in range(n_seen) if place < first or place >= n_seen - window]


def _model(sinks="kept", size="window", shift=0, double=False, origin=0, early=False):
    """A cache whose settings are the misconceptions."""

    def kept(n_seen, window, first):
        recent = window - first if size == "total" else window
        latest = range(max(0, n_seen - max(recent + shift, 0)), n_seen)
        head = {
            "kept": range(first if early else min(first, n_seen)),
            "none": range(0),
            "one": range(min(1, n_seen)),
            "last": range(max(0, n_seen - max(recent + shift, 0) - first), max(0, n_seen - max(recent + shift, 0))),
        }[sinks]
        places = [*head, *latest]
        places = sorted(places) if double else sorted(set(places))
        return [place + origin for place in places]

    return kept


def _with_sets(n_seen, window, first):
    everything = range(n_seen)
    return sorted({*everything[:first], *everything[max(0, n_seen - window) :]})


def _with_two_ranges(n_seen, window, first):
    head = list(range(min(first, n_seen)))
    return head + list(range(max(len(head), n_seen - window), n_seen))


def _token_by_token(n_seen, window, first):
    cache = []
    for place in range(n_seen):
        cache.append(place)
        forgotten = place - window
        if forgotten >= first:
            cache.remove(forgotten)
    return cache


def _sample(draw):
    return draw.integer(0, 14), draw.integer(1, 7), draw.integer(0, 5)


def _size_is_bounded(streaming_cache) -> str | None:
    n = len(streaming_cache(50, 7, 3))
    said = f"After 50 tokens, with 3 first positions and a window of 7, the cache holds {n} positions."
    return None if n == 10 else said


def _the_latest_is_there(streaming_cache) -> str | None:
    places = streaming_cache(9, 2, 3)
    return None if 8 in places else f"After 9 tokens the latest position, 8, is not in {places}."


EXERCISE = Exercise(
    title="What a streaming cache keeps",
    what="""Write `streaming_cache(n_seen, window, first)`. A stream of tokens has the positions 0, 1, 2, …, and
`n_seen` of them have been read. The cache keeps the `first` earliest positions of the stream and, besides, the `window`
latest ones. Return the positions that it holds, in ascending order, each once; while the stream is short that is all of
them. `window` is at least 1.""",
    why="""With such a cache a model can read for ever in the same memory. Leaving out the first positions is the
mistake that this section is about.""",
    difficulty=1,
    minutes=6,
    reference=streaming_cache,
    model=_model,
    misconceptions=misconceptions("""
first-forgotten (sinks="none"): keeps the latest positions only
    After a long stream, where is position 0?
only-one-kept (sinks="one"): keeps a single position of the beginning, whatever `first` says
    With first = 3, how many positions of the beginning are kept?
before-the-window (sinks="last"): keeps the positions just before the window in place of those of the beginning
    First in what: in the stream, or in the part that is about to be forgotten?
first-inside-the-window (size="total"): counts the first positions as part of the window
    With first = 3 and window = 7, how many positions does a long stream leave in the cache?
one-too-many (shift=1): keeps one of the latest positions too many
    With a window of 1, which of the latest positions are kept?
one-too-few (shift=-1): keeps one of the latest positions too few
    With a window of 1, which of the latest positions are kept?
kept-twice (double=True): lists a position twice that is both early and late
    While the stream is shorter than window + first, do the two groups overlap?
counts-from-one (origin=1): counts positions from 1
    Which number has the first token of the stream?
not-seen-yet (early=True): lists first positions that have not been read yet
    After two tokens, which positions can a cache hold at all?
"""),
    cases=[
        Case("one token", lambda: (1, 2, 1)),
        Case("2 tokens, 3 first positions", lambda: (2, 4, 3)),
        Case("5 tokens, a window of 1, 2 first positions", lambda: (5, 1, 2)),
        Case("9 tokens, a window of 3, 2 first positions", lambda: (9, 3, 2)),
        Case("5 tokens, groups that overlap", lambda: (5, 4, 2)),
        Case("12 tokens, a window of 5, 3 first positions", lambda: (12, 5, 3)),
        Case("no first positions", lambda: (11, 4, 0)),
    ],
    properties=[
        Property("After a long stream the cache holds window + first positions.", _size_is_bounded),
        Property("The latest position is always there.", _the_latest_is_there),
    ],
    alternatives=[
        Alternative("with sets", _with_sets),
        Alternative("with two ranges", _with_two_ranges),
        Alternative("token by token", _token_by_token),
    ],
    gradients=False,
    hints=(
        "There are two reasons for which a position may be in the cache. What is each of them, as a comparison?",
        "Go through all the positions that were read, and keep one if at least one of two conditions holds. The latest "
        "position has the number n_seen − 1.",
        "return [position for position in range(n_seen) if position < first or ____]",
    ),
    sample=_sample,
)
