"""Exercise: find out why a sentence's vector depends on how much padding its batch needs, and repair it."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import normal


def sentence_vector(x, real):
    """(B, T, D), bool (B, T), True = a real token -> (B, D)"""
    kept = x * real[..., None]  # (B, T, D) * (B, T, 1): padding becomes zero
    return kept.sum(dim=1) / real.sum(dim=1, keepdim=True)  # (B, D) / (B, 1)


def _padding_counted():
    def sentence_vector(x, real):
        """(B, T, D), bool (B, T), True = a real token -> (B, D)"""
        kept = x * real[..., None]  # (B, T, D) * (B, T, 1): padding becomes zero
        return kept.mean(dim=1)

    return sentence_vector


def _model(top="real", divisor="own", take="mean"):
    """A mean over tokens whose settings are the misconceptions."""

    def pool(x, real):
        T = x.size(1)
        if top == "front":
            real = torch.arange(T) < real.sum(1, keepdim=True)
        seen = {"front": real, "real": real, "all": torch.ones_like(real), "padding": ~real}[top]
        number = {
            "own": real.sum(1, keepdim=True),
            "length": torch.tensor(T),
            "batch": real.sum() / len(real),
            "longest": real.sum(1).max(),
            "root": real.sum(1, keepdim=True).sqrt(),
            "one": torch.tensor(1),
            "all-real": real.sum(),
            "not-zero": (x * real[..., None] != 0).sum(1),
            "not-zero-tokens": ((x * real[..., None]) != 0).any(-1).sum(1, keepdim=True),
            "plus": real.sum(1, keepdim=True) + 1,
        }[divisor]
        if take == "first":
            return x[:, 0]
        if take == "largest":
            return x.masked_fill(~seen[..., None], -torch.inf).amax(1)
        return ((x * seen[..., None]).sum(1) / number).to(x.dtype)

    return pool


def _sentence_by_sentence(x, real):
    return torch.stack([sentence[seen].mean(dim=0) for sentence, seen in zip(x, real, strict=True)])


def _with_a_product(x, real):
    shares = real.to(x.dtype) / real.sum(dim=1, keepdim=True)  # (B, T): equal weights that sum to one
    return (shares[:, None] @ x)[:, 0]  # (B, 1, T) @ (B, T, D) -> (B, 1, D)


def _with_where(x, real):
    kept = torch.where(real.unsqueeze(-1), x, 0)
    return torch.einsum("btd->bd", kept) / real.count_nonzero(dim=1).unsqueeze(1)


def _lengths(lengths, T):
    return torch.arange(T) < torch.tensor(lengths)[:, None]  # (B, T)


def _case(lengths, T, D, seed, dtype=torch.float32):
    return lambda: (normal(len(lengths), T, D, seed=seed, dtype=dtype), _lengths(lengths, T))


def _left():
    return normal(2, 5, 3, seed=41), _lengths([2, 4], 5).flip(1)


def _with_zeros():
    x, real = _case([2, 3], 4, 3, seed=61)()
    x = x.detach().clone()
    x[0, 0, 1] = x[1, 2, 0] = 0.0
    return x.requires_grad_(), real


def _with_a_zero_token():
    x, real = _case([3, 2], 4, 2, seed=71)()
    x = x.detach().clone()
    x[0, 1] = 0.0
    return x.requires_grad_(), real


def _sample(draw):
    B, T, D = draw.integer(1, 3), draw.integer(1, 6), draw.integer(1, 4)
    dtype = draw.dtype()
    return draw.normal(B, T, D, dtype=dtype), _lengths([draw.integer(1, T) for _ in range(B)], T)


def _more_padding_changes_nothing(pool) -> str | None:
    x, real = _case([2, 3], 3, 2, seed=81)()
    longer = torch.cat([x, torch.zeros(2, 4, 2)], dim=1)
    before, after = pool(x, real), pool(longer, _lengths([2, 3], 7))
    moved = float((before - after).detach().abs().max())
    return f"Four more positions of padding changed a vector by {moved:.2f}." if moved > 1e-4 else None


def _content_of_padding_is_unread(pool) -> str | None:
    x, real = _case([2, 5], 5, 2, seed=91)()
    changed = torch.where(real[..., None], x, x + 3)
    moved = float((pool(x, real) - pool(changed, real)).detach().abs().max())
    return f"Changing the content of padding changed a vector by {moved:.2f}." if moved > 1e-4 else None


EXERCISE = Exercise(
    title="One vector for a sentence",
    kind="debug",
    what="""Sentence encoders often take the mean of the token vectors as the vector of the sentence. This function
gets vectors `x` (B, T, D) and which tokens are real, `real` (B, T). Its author made sure that the *content* of padding
never counts. Still the same sentence gets another vector when a longer one joins its batch. Find the reason and repair
it. Each sentence has at least one real token; padding may stand on either side.""",
    why="""A search index filled in batches of other lengths then holds vectors that do not compare by dot product or
distance (a cosine would not notice).""",
    difficulty=2,
    minutes=6,
    reference=sentence_vector,
    model=_model,
    given=_padding_counted(),
    misconceptions=misconceptions("""
padding-counted (divisor="length"): divides the sum of the real tokens by the length of the padded batch
    A sentence of 2 tokens is padded to 4: how many vectors are added up, and by what is divided?
padding-added (top="all"): adds up padding too, and divides by the number of real tokens
    Does the content of padding change your result?
only-padding (top="padding"): adds up padding instead of the real tokens
    What does True mean in `real`?
sum (divisor="one"): adds up the real tokens and does not divide
    How long is the vector of a sentence that says the same token twice?
divided-by-the-mean-length (divisor="batch"): divides by the mean length of the batch
    How many real tokens has each sentence of its own?
divided-by-the-longest (divisor="longest"): divides by the length of the longest sentence
    How many real tokens has each sentence of its own?
divided-by-the-root (divisor="root"): divides by the root of the number of real tokens
    What is the mean of four equal vectors?
one-too-many (divisor="plus"): divides by one more than the number of real tokens
    What is the mean of a single vector?
first-token (take="first"): takes the first position
    What stands first where padding is on the left?
largest (take="largest"): takes the largest of each component
    What is the mean of 1 and 3?
divided-by-all-real (divisor="all-real"): divides by the number of real tokens in the whole batch
    How many tokens were added up for one sentence?
zeros-not-counted (divisor="not-zero"): divides by the number of entries that are not zero
    May a real token have a zero in its vector?
zero-tokens-not-counted (divisor="not-zero-tokens"): leaves a real token out of the count if its vector is zero
    Which argument says which tokens are real?
padding-behind-assumed (top="front"): takes the first columns of each row as its real tokens
    On which side may padding stand?
"""),
    cases=[
        Case("1 sentence of 2 tokens, padded to 3", _case([2], 3, 2, seed=1)),
        Case("2 sentences of 1 and 3 tokens, padded to 5", _case([1, 3], 5, 2, seed=11)),
        Case("3 sentences of 2, 4 and 5 tokens", _case([2, 4, 5], 5, 3, seed=21)),
        Case("padding on the left", _left),
        Case("vectors with zeros in them", _with_zeros),
        Case("a real token whose vector is zero", _with_a_zero_token),
        Case("float64", _case([3, 2], 7, 5, seed=51, dtype=torch.float64)),
    ],
    properties=[
        Property("More padding changes nothing.", _more_padding_changes_nothing),
        Property("The content of padding changes nothing.", _content_of_padding_is_unread),
    ],
    alternatives=[
        Alternative("sentence by sentence", _sentence_by_sentence),
        Alternative("as a product with equal weights", _with_a_product),
        Alternative("with where and einsum", _with_where),
    ],
    hints=(
        "For a sentence of 2 tokens in a batch of length 4: which number stands above the line, and which below?",
        "Zeros add nothing to a sum, but `mean` counts them. Each sentence needs a divisor of its own.",
        """kept = x * real[..., None]  # (B, T, D)
return kept.sum(dim=1) / ____  # (B, D) over (B, 1)""",
    ),
    sample=_sample,
    tries=("float64", "large", "shifted", "zeros", "repeated"),
)
