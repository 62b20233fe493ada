"""Exercise: one step of learning byte-pair encoding."""

from collections import Counter
from itertools import pairwise

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions


def bpe_merge(words):
    """{word as a tuple: count} -> (pair, words joined)"""
    pairs = {}
    for word, count in words.items():
        for i in range(len(word) - 1):
            pairs[word[i : i + 2]] = pairs.get(word[i : i + 2], 0) + count
    best = min(pairs, key=lambda pair: (-pairs[pair], pair))
    merged = {}
    for word, count in words.items():
        tokens = []
        for token in word:
            if tokens and (tokens[-1], token) == best:
                tokens[-1] += token
            else:
                tokens.append(token)
        merged[tuple(tokens)] = count
    return best, merged


def _model(weight="count", once=False, tie="alphabet", side="left", where="all", choose="most", join="pair"):
    """One step of training whose settings are the misconceptions."""

    def merge(words):
        pairs = Counter()
        for word, count in words.items():
            found = list(pairwise(word))
            if once == "run":
                found = list(_apart(word))
            for pair in dict.fromkeys(found) if once is True else found:
                pairs[pair] += {"count": count, "one": 1, "length": count * len("".join(pair))}[weight]
        sign = -1 if choose == "most" else 1
        if tie == "alphabet":
            best = min(pairs, key=lambda pair: (sign * pairs[pair], pair))
        elif tie == "joined":
            best = min(pairs, key=lambda pair: (sign * pairs[pair], "".join(pair)))
        elif tie == "reverse":
            best = max(pairs, key=lambda pair: (-sign * pairs[pair], pair))
        else:
            best = min(pairs, key=lambda pair: sign * pairs[pair])
        return best, {tuple(joined(word, best)): count for word, count in words.items()}

    def joined(word, best):
        if join == "text":
            return " ".join(word).replace(" ".join(best), "".join(best)).split(" ")
        tokens = list(word)
        if join == "unordered":
            matches = lambda a, b: (a, b) == best or (b, a) == best  # noqa: E731
        elif join == "either":
            matches = lambda a, b: a == best[0]  # noqa: E731
        else:
            matches = lambda a, b: (a, b) == best  # noqa: E731
        i = 0 if side == "left" else len(tokens) - 2
        while 0 <= i < len(tokens) - 1:
            if matches(tokens[i], tokens[i + 1]):
                tokens[i : i + 2] = [tokens[i] + tokens[i + 1]]
                if where == "first":
                    break
                if side == "right":
                    i -= 1
                    i = min(i, len(tokens) - 2)
                    i -= tokens[i + 1 : i + 2] == ["".join(best)]
                    continue
            i += 1 if side == "left" else -1
        return tokens

    return merge


def _apart(word):
    """The pairs of neighbours, without those that share a token with the same pair before."""
    last, free = None, 0
    for i, pair in enumerate(pairwise(word)):
        if pair != last or i >= free:
            yield pair
            last, free = pair, i + 2


def _with_counter(words):
    pairs = Counter()
    for word, count in words.items():
        for i in range(len(word) - 1):
            pairs[word[i : i + 2]] += count
    best = sorted(pairs, key=lambda pair: (-pairs[pair], *pair))[0]

    def join(word):
        if len(word) < 2:
            return word
        if word[:2] == best:
            return (word[0] + word[1], *join(word[2:]))
        return (word[0], *join(word[1:]))

    return best, {join(word): count for word, count in words.items()}


def _with_an_index(words):
    pairs = Counter(pair for word, count in words.items() for pair in pairwise(word) for _ in range(count))
    highest = max(pairs.values())
    left, right = min(pair for pair, count in pairs.items() if count == highest)
    merged = {}
    for word, count in words.items():
        tokens, i = [], 0
        while i < len(word):
            step = 2 if word[i : i + 2] == (left, right) else 1
            tokens.append("".join(word[i : i + step]))
            i += step
        merged[tuple(tokens)] = count
    return (left, right), merged


def _with_course(words):
    from course_lib.data.bpe import merge_pair

    pairs = Counter()
    for word, count in words.items():
        for pair in pairwise(word):
            pairs[pair] += count
    best = min(pairs, key=lambda pair: (-pairs[pair], pair))
    return best, {tuple(merge_pair(word, best)): count for word, count in words.items()}


def _case(**words):
    return lambda: ({tuple(word): count for word, count in words.items()},)


def _parts(*words):
    return lambda: ({tuple(word.split("·")): count for word, count in words},)


def _sample(draw):
    words = {}
    for _ in range(draw.integer(1, 6)):
        word = tuple(draw.choice(["a", "b", "c", "ab"]) for _ in range(draw.integer(2, 7)))
        # Words that become equal after a merge are no words of one text.
        if "".join(word) not in {"".join(other) for other in words}:
            words[word] = draw.integer(1, 5)
    return (words,)


def _order_is_irrelevant(merge) -> str | None:
    words = {("d", "c"): 2, ("a", "b"): 2, ("b", "d"): 1}
    one, two = merge(words)[0], merge(dict(reversed(words.items())))[0]
    if tuple(one) == tuple(two):
        return None
    return f"The same words in another order gave {' '.join(two)} in place of {' '.join(one)}."


def _count_matters(merge) -> str | None:
    pair, _ = merge({("a", "b"): 1, ("a", "b", "a", "b"): 1, ("c", "d"): 9})
    if tuple(pair) == ("c", "d"):
        return None
    return f"A word of tokens c d that occurs 9 times gave the pair {' '.join(map(str, pair))}."


def _pair_is_gone(merge) -> str | None:
    words = {("a", "b", "c", "a", "b"): 3, ("b", "a", "b"): 1}
    pair, merged = merge(words)
    for word in merged:
        if tuple(pair) in set(pairwise(word)):
            return f"The pair {' '.join(pair)} still stands in {' · '.join(word)}."
    return None


EXERCISE = Exercise(
    title="One merge",
    what="""Write `bpe_merge(words)`. `words` says how often each word occurs in a text; a word is a tuple of tokens.
Count each pair of neighbouring tokens, over the whole text: `a a a` holds the pair `(a, a)` twice. Take the most
frequent pair; of several equally frequent ones the first in alphabetical order, by its first token and, where that is
the same, by its second, as Python compares tuples. Return it, and the words with every occurrence of it joined to one
token, from left to right: with the pair `(a, a)`, the word `a a a` becomes `aa a`. There is always a pair, and no two
words become the same. The given dict must not change.""",
    why="The vocabulary of GPT-2 was made by fifty thousand such steps, on a large collection of web pages.",
    difficulty=3,
    minutes=15,
    reference=bpe_merge,
    model=_model,
    misconceptions=misconceptions("""
word-counts-ignored (weight="one"): counts every word once, however often it occurs
    Which is more frequent in a text: a pair in a word that occurs 9 times, or one in 2 rare words?
long-pairs-preferred (weight="length"): lets longer tokens count more
    Where does the length of a token enter the number of times that a pair occurs?
once-a-word (once=True): counts a pair once in a word that holds it twice
    How often do the neighbours a, b occur in the word a b a b?
rarest-pair (choose="least"): takes the rarest pair
    Which pair saves more tokens when it is joined: a frequent or a rare one?
first-seen-wins (tie="seen"): takes, of several equally frequent pairs, the one that it met first
    If the words came in another order, would your function choose the same pair?
last-in-the-alphabet (tie="reverse"): takes, of several equally frequent pairs, the last one in alphabetical order
    Of (a, b) and (c, d), equally frequent: which one does your function take?
joined-from-the-right (side="right"): joins from right to left
    What does your function make of a a a when the pair is (a, a)?
only-the-first (where="first"): joins only the first occurrence in a word
    Is the pair gone from a word that held it twice?
order-ignored (join="unordered"): also joins the two tokens in the opposite order
    Is b a an occurrence of the pair (a, b)?
second-token-ignored (join="either"): joins the first token of the pair with whatever follows it
    What does your function make of a c when the pair is (a, b)?
ties-by-the-joined-token (tie="joined"): compares equally frequent pairs by the token that they would become
    Of (a, z) and (ab, c), which pair comes first when first tokens are compared first?
overlapping-pairs-counted-once (once="run"): counts only pairs that do not overlap
    How many pairs of neighbours has `a a a`: what stands at positions 0 and 1, and what at 1 and 2?
replaces-in-the-text (join="text"): joins the tokens to a string and replaces there, so that parts of longer tokens are
        joined too
    Does the text `ca b` contain your pair `a b`, and does the word `(ca, b)`?
"""),
    cases=[
        Case("one word", _case(ab=1)),
        Case("a frequent word and two rare ones", _case(abe=1, abf=1, cd=5)),
        Case("a pair twice in one word", _case(abxab=2, yz=3)),
        Case("a pair that occurs in both orders", _case(abba=3, bca=1, acab=2)),
        Case("runs of one letter", _case(aaa=2, baaaa=1, aaaaab=1)),
        Case("two pairs equally frequent", _case(xy=2, pq=2, dc=1)),
        Case("tokens that were joined before", _parts(("ab·c·ab·c", 2), ("c·ab", 3), ("d·e", 4))),
        Case("equally frequent pairs of longer tokens", _parts(("a·z", 3), ("ab·c", 3))),
        Case("runs of one letter and a more frequent pair", _parts(("a·a·a", 2), ("x·y", 3))),
        Case("tokens that contain the pair", _parts(("a·b", 9), ("ca·b", 2), ("a·bc", 3))),
        Case("words that end alike", _case(xa=1, ya=1, za=1)),
        Case("a long pair and a more frequent short one", _parts(("abc·d", 4), ("x·y", 5))),
        Case("the words of the paper", _case(low=5, lower=2, newest=6, widest=3)),
    ],
    properties=[
        Property("The order of the words does not matter.", _order_is_irrelevant),
        Property("A pair counts as often as its word occurs.", _count_matters),
        Property("After the step the pair stands nowhere.", _pair_is_gone),
    ],
    alternatives=[
        Alternative("joining by recursion", _with_counter),
        Alternative("with an index that skips", _with_an_index),
        Alternative("with the course's function", _with_course),
    ],
    hints=(
        "How often does a pair occur in the text if its word occurs 5 times and holds it twice?",
        "Sort by the negative count first and by the pair second. When joining, look at the token that you wrote last.",
        """tokens = []
for token in word:
    if tokens and (tokens[-1], token) == best:
        ____
    else:
        tokens.append(token)""",
    ),
    sample=_sample,
    equivalent_mutants={
        "0 -> 1": "all pairs begin at the same number",
        "0 -> -1": "all pairs begin at the same number",
    },
    gradients=False,
)
