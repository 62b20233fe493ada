"""Exercise: several masks in one."""

import functools
import operator

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, misconceptions
from coursework.exercises.tensors import mask as random_mask
from coursework.exercises.tensors import strided


def combine_masks(*masks):
    """Boolean masks, or None for "all may attend" -> one bool mask, or None

    True = may attend. The result is None only if no mask but None was given.
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else combined & mask
    return combined


def _model(join="and", none="skip", nothing="none", used="all", inverted=False, empty="kept"):
    """A combination whose settings are the misconceptions."""

    def combine(*masks):
        if none == "stops" and any(mask is None for mask in masks):
            return None
        if none == "hides":
            masks = tuple(torch.tensor(False) if mask is None else mask for mask in masks)
        given = [mask for mask in masks if mask is not None]
        if not given:
            return {"none": None, "true": torch.tensor(True)}[nothing]
        given = {"all": given, "first": given[:1], "last": given[-1:], "two": given[:2]}[used]
        combined = functools.reduce(_JOINS[join], given)
        if empty == "opened":
            combined = combined | ~combined.any(dim=-1, keepdim=True)
        return ~combined if inverted else combined

    return combine


def _same_shape(left, right):
    return torch.stack([left, right]).all(dim=0)


def _in_place(left, right):
    left &= right
    return left


def _into_a_copy(left, right):
    left = left.clone()
    left &= right
    return left


_JOINS = {
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "sum": lambda left, right: left.int() + right.int(),
    "product": lambda left, right: left.int() * right.int(),
    "same-shape": _same_shape,
    "in-place": _in_place,
    "copy": _into_a_copy,
}


def _with_reduce(*masks):
    given = [mask for mask in masks if mask is not None]
    return functools.reduce(torch.logical_and, given) if given else None


def _with_hidden(*masks):
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    hidden = ~given[0]
    for mask in given[1:]:
        hidden = hidden | ~mask  # hidden by one is hidden
    return ~hidden


def _with_stack(*masks):
    given = [mask for mask in masks if mask is not None]
    return torch.stack(torch.broadcast_tensors(*given)).all(dim=0) if given else None


def _with_course(*masks):
    from course_lib import masks as course

    return course.combine_masks(*masks)


def _causal(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril(S - T)


def _padding():
    return torch.tensor([[True, True, True, True, True], [True, True, True, False, False]])[:, None, None, :]


def _sample(draw):
    B, T, S = draw.integer(1, 3), draw.integer(1, 4), draw.integer(1, 5)
    shapes = [(T, S), (B, 1, 1, S), (B, 1, T, S), (1, 1, T, S)]
    return tuple(draw.choice([None, draw.mask(*draw.choice(shapes))]) for _ in range(draw.integer(0, 4)))


def _allows_what_all_allow(combine) -> str | None:
    left = torch.tensor([[True, True, False, False]])
    right = torch.tensor([[True, False, True, False]])
    found = combine(left, right)
    wrong = (found != torch.tensor([[True, False, False, False]])).flatten()
    if wrong.any():
        key = int(wrong.nonzero()[0])
        one, other, yours = left[0, key].item(), right[0, key].item(), found[0, key].item()
        return f"One mask says {one} and the other {other}; yours says {yours}."
    return None


def _none_changes_nothing(combine) -> str | None:
    visible = _causal(2, 3)
    for masks in ((None, visible), (visible, None)):
        found = combine(*masks)
        if not isinstance(found, torch.Tensor) or not torch.equal(found, visible):
            return "Combining a mask with None gave something other than the mask."
    return None


def _order_does_not_matter(combine) -> str | None:
    if not torch.equal(combine(_causal(3, 5), _padding()), combine(_padding(), _causal(3, 5))):
        return "Exchanging the causal mask and the padding mask changed the result."
    return None


EXERCISE = Exercise(
    title="Both masks at once",
    what="""Write `combine_masks(*masks)` for any number of boolean masks, True = may attend. A key may be attended to
only if every mask allows it. The masks may have different shapes that broadcast with each other, such as `(T, S)` and
`(B, 1, 1, S)`. None stands for "all may attend" and is skipped; if nothing else is given, return None. Leave the
masks that you are given as they are.""",
    why="A decoder reads padded batches under a causal mask. Windows and prefixes join in the same way.",
    difficulty=2,
    minutes=6,
    reference=combine_masks,
    model=_model,
    misconceptions=misconceptions("""
either-is-enough (join="or"): lets a key through if any one of the masks allows it
    A padded token in the past: the causal mask allows it, the padding mask does not. May it be seen?
empty-rows-opened (empty="opened"): lets a query see everything when the masks together leave it nothing
    Which mask allows the keys that your function opens?
exclusive (join="xor"): lets a key through if the masks disagree about it
    What does your function return where both masks are True?
sum (join="sum"): adds the masks as numbers
    Which of your numbers means may attend, and of which type should a mask be?
product-of-numbers (join="product"): multiplies the masks as numbers and returns numbers
    What does `~` make of the number 1, and of the value True?
returns-hidden (inverted=True): returns True for what is hidden
    What does True mean in the masks that came in, and in the one that goes out?
only-the-first (used="first"): uses only the first mask that is not None
    Which line of your function reads the second mask?
only-the-last (used="last"): uses only the last mask that is not None
    What becomes of the result so far when your loop reaches the next mask?
only-two (used="two"): uses only the first two masks
    What happens to a third mask, such as a window?
none-hides-everything (none="hides"): treats None as a mask that hides everything
    A model without padding passes None for the padding mask: what should its tokens see?
none-wins (none="stops"): returns None as soon as one of the masks is None
    If the padding mask is None, does the causal mask still have to hold?
true-for-nothing (nothing="true"): returns the single value True when there is no mask
    What does the task ask you to return when there is nothing to combine?
same-shape-only (join="same-shape"): combines only masks of the same shape
    What are the shapes of a causal mask and of a padding mask?
shape-of-the-first (join="copy"): forces the result into the shape of the first mask
    Which shape has the combination of a mask (3, 5) and a mask (2, 1, 1, 5)?
changes-its-input (join="in-place"): writes the result into the first mask
    After your function has run, what does the caller's causal mask look like in the next batch?
"""),
    cases=[
        Case("two masks of shape (2, 3)", lambda: (_causal(2, 3), torch.tensor([[True, False, True]] * 2))),
        Case("a causal mask (3, 5) and a padding mask (2, 1, 1, 5)", lambda: (_causal(3, 5), _padding())),
        Case("the same two, the padding mask first", lambda: (_padding(), _causal(3, 5))),
        Case("a mask (2, 1, 3, 5) and a causal mask (3, 5)", lambda: (random_mask(2, 1, 3, 5, seed=4), _causal(3, 5))),
        Case("one mask", lambda: (_causal(2, 3),)),
        Case("None and a mask", lambda: (None, _causal(2, 3))),
        Case("a mask and None", lambda: (_padding(), None)),
        Case("two times None", lambda: (None, None)),
        Case("no mask at all", lambda: ()),
        Case("three masks", lambda: (_causal(3, 5), _padding(), random_mask(3, 5, seed=1))),
        Case("two masks with None between them", lambda: (_causal(3, 5), None, random_mask(2, 1, 3, 5, seed=2))),
        Case("not contiguous in memory", lambda: (strided(_causal(3, 5)), strided(random_mask(3, 5, seed=3)))),
    ],
    properties=[
        Property("A key may be attended to only if every mask allows it.", _allows_what_all_allow),
        Property("None changes nothing.", _none_changes_nothing),
        Property("The order of the masks does not matter.", _order_does_not_matter),
    ],
    alternatives=[
        Alternative("with functools.reduce", _with_reduce),
        Alternative("by what is hidden", _with_hidden),
        Alternative("with a stack of broadcast masks", _with_stack),
        Alternative("the course's own function, which also checks its arguments", _with_course),
    ],
    hints=(
        "If one mask allows a key and another hides it, may it be attended to, and which logical operation is that?",
        "Go through the masks, skip None, and keep a result that starts as None. Boolean tensors broadcast in logical "
        "operations as in arithmetic; an operation that returns a new tensor leaves its inputs alone.",
        """combined = None
for mask in masks:
    if mask is not None:
        combined = mask if combined is None else ____
return combined""",
    ),
    sample=_sample,
    gradients=False,
)
