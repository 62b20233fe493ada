"""Exercise: find out why a mask of its own for each sentence is read as one for each head, and repair it."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import mask, normal


def masked_heads(query, key, value, mask):
    """(B, H, T, E), (B, H, S, E), (B, H, S, E'), bool (B, T, S) -> (B, H, T, E')"""
    scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, H, T, S)
    visible = mask[:, None]  # (B, T, S) -> (B, 1, T, S): the same for every head
    return scores.masked_fill(~visible, -math.inf).softmax(dim=-1) @ value


def _per_head():
    def masked_heads(query, key, value, mask):
        """(B, H, T, E), (B, H, S, E), (B, H, S, E'), bool (B, T, S) -> (B, H, T, E')"""
        scores = query @ key.mT / math.sqrt(query.size(-1))  # (B, H, T, S)
        visible = mask
        return scores.masked_fill(~visible, -math.inf).softmax(dim=-1) @ value

    return masked_heads


def _model(axis="heads", form="as-is", when="always", fill=-math.inf):
    """Masked heads whose settings are the misconceptions."""

    def attend(query, key, value, mask):
        B, H, T, E = query.shape
        S = key.size(2)
        scores = query @ key.mT / math.sqrt(E)
        seen = mask
        if form == "inverted":
            seen = ~seen
        elif form == "all-sentences":
            seen = seen.all(0, keepdim=True).expand(B, T, S)
        elif form == "any-sentence":
            seen = seen.any(0, keepdim=True).expand(B, T, S)
        elif form == "any-query":
            seen = seen.any(1, keepdim=True).expand(B, T, S)
        elif form == "first-query":
            seen = seen[:, :1].expand(B, T, S)
        elif form == "last-query":
            seen = seen[:, -1:].expand(B, T, S)
        elif form == "first-sentence":
            seen = seen[:1].expand(B, T, S)
        visible = {"heads": lambda: seen[:, None], "none": lambda: seen, "queries": lambda: seen[:, :, None],
                   "flat": lambda: _flat(seen, B, H)}[axis]()  # fmt: skip
        if when == "unless-equal" and B == H:
            visible = seen
        if when == "times":
            return (scores * visible).softmax(-1) @ value
        if when == "after":
            return (scores.softmax(-1) * visible) @ value
        if when == "never":
            return scores.softmax(-1) @ value
        return scores.masked_fill(~visible, fill).softmax(-1) @ value

    return attend


def _flat(seen, B, H):
    """As some libraries want it, one mask for each sentence and head, but in the order of heads within the batch."""
    return seen.repeat(H, 1, 1).reshape(B, H, *seen.shape[1:])


def _with_torch(query, key, value, mask):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.unsqueeze(1))


def _with_course(query, key, value, mask):
    from course_lib.attention import scaled_dot_product_attention

    return scaled_dot_product_attention(query, key, value, mask=mask[:, None])


def _sentence_by_sentence(query, key, value, mask):
    outputs = []
    for b in range(query.size(0)):
        scores = query[b] @ key[b].mT / math.sqrt(query.size(-1))  # (H, T, S)
        outputs.append(torch.where(mask[b], scores, -math.inf).softmax(dim=-1) @ value[b])
    return torch.stack(outputs)


def _visible(B, T, S, seed):
    seen = mask(B, T, S, seed=seed)
    seen[:, :, 0] = True  # no empty rows
    return seen


@maker
def _case(B, H, T, S, E, width, seed, dtype=torch.float32, scale=1.0):
    query, key = (
        normal(B, H, T, E, seed=seed, dtype=dtype, scale=scale),
        normal(B, H, S, E, seed=seed + 1, dtype=dtype),
    )
    return query, key, normal(B, H, S, width, seed=seed + 2, dtype=dtype), _visible(B, T, S, seed + 3)


def _low():
    query, key = torch.full((2, 3, 2, 4), 300.0), torch.full((2, 3, 5, 4), -300.0)
    seen = torch.tensor([[True, False, True, False, True], [True, True, False, True, False]])
    key[:, :, 1] = 0.0
    return query.requires_grad_(), key.requires_grad_(), normal(2, 3, 5, 2, seed=70), torch.stack([seen, seen.flip(0)])


def _sample(draw):
    B, H, T, S, E, width = (draw.integer(1, high) for high in (4, 4, 4, 5, 4, 4))
    dtype = draw.dtype()
    seen = draw.mask(B, T, S)
    seen[:, :, 0] = True
    query, key = draw.normal(B, H, T, E, dtype=dtype), draw.normal(B, H, S, E, dtype=dtype)
    return query, key, draw.normal(B, H, S, width, dtype=dtype), seen


def _other_sentences_are_irrelevant(attend) -> str | None:
    query, key, value, seen = _case(3, 3, 2, 5, 4, 2, seed=81)()
    before = attend(query, key, value, seen)
    changed = seen.clone()
    changed[2] = ~changed[2]
    changed[2, :, 0] = True
    after = attend(query, key, value, changed)
    for sentence in (0, 1):
        if not torch.allclose(before[sentence], after[sentence], atol=1e-5):
            changed_what = f"changing the mask of sentence 2 changed the output of sentence {sentence}"
            return f"With 3 sentences and 3 heads, {changed_what}."
    return None


EXERCISE = Exercise(
    title="A mask that lines up with the heads",
    kind="debug",
    what="""This function takes one mask per sentence, `(B, T, S)`, True = may attend, to be used in every head. It is
wrong, and yet it passed its tests. They tried one sentence, where the result is right, and as many sentences as heads,
where they looked only at the shape. Repair it. You may rely on at least one True for each query; scores may be of any
finite size, so go on filling with -inf, not with a large negative number.""",
    why="""With as many sentences as heads, no error points to this mistake: a model that has it trains, and looks where
it should not.""",
    difficulty=2,
    minutes=6,
    reference=masked_heads,
    given=_per_head(),
    model=_model,
    misconceptions=misconceptions("""
read-per-head (axis="none"): lets sentence b's mask meet head b
    Written under (B, H, T, S) and lined up from the right, where does the B of the mask stand?
axis-after-queries (axis="queries"): adds an axis between queries and keys
    Which axis of (B, H, T, S) has no counterpart in the mask, and where does it stand?
repeated-in-turn (axis="flat"): repeats the masks of all sentences in turn and then cuts them into heads
    With 2 sentences and 3 heads, which sentence's mask does your head 1 of sentence 0 get?
still-wrong-when-equal (when="unless-equal"): repairs the case that raised and leaves the silent one, as many sentences
        as heads
    What does your function do when B equals H?
one-mask-for-all (form="all-sentences"): hides from every sentence what any sentence hides
    Should the padding of one sentence have an effect on another?
any-row-for-all (form="any-query"): lets each query see what any query of its sentence may see
    May two queries of one sentence see different keys?
first-row-for-all (form="first-query"): uses the first row of a sentence's mask for all its queries
    May two queries of one sentence see different keys?
last-row-for-all (form="last-query"): uses the last row of a sentence's mask for all its queries
    May two queries of one sentence see different keys?
first-sentence-for-all (form="first-sentence"): uses the mask of the first sentence for all
    Does your output change when the mask of the last sentence changes?
mask-inverted (form="inverted"): hides the keys for which the mask is True
    What does True mean in this mask: may attend, or is hidden?
mask-after-softmax (when="after"): applies the mask after the softmax
    When a key is hidden, do the weights that are left in its row still sum to one?
mask-ignored (when="never"): does not use the mask
    Which line of your function would change its result if the mask hid all but one key?
fill-finite (fill=-1e4): gives hidden keys a finite score such as -10000
    What happens to your hidden keys when every visible score in the row is lower still?
scores-times-mask (when="times"): multiplies the scores by the mask, which leaves a score of zero
    Which share of the weight does a score of zero get beside negative scores?
mask-of-any-sentence (form="any-sentence"): lets every sentence see what is visible in any of them
    Which axis of the mask tells one sentence from another, and is it still there?
"""),
    cases=[
        Case("2 sentences, 3 heads", _case(2, 3, 2, 4, 2, 5, seed=1)),
        Case("2 sentences, 2 heads", _case(2, 2, 3, 4, 2, 5, seed=11)),
        Case("3 sentences, 3 heads, 2 queries, 5 keys", _case(3, 3, 2, 5, 7, 4, seed=21)),
        Case("1 sentence, 3 heads", _case(1, 3, 2, 5, 4, 2, seed=31)),
        Case("3 sentences, 1 head", _case(3, 1, 4, 5, 2, 7, seed=41)),
        Case("visible scores of -180000", _low),
        Case("float64", _case(2, 3, 4, 5, 2, 7, seed=51, dtype=torch.float64)),
    ],
    properties=[Property("The mask of one sentence has no effect on another.", _other_sentences_are_irrelevant)],
    alternatives=[
        Alternative("torch's own kernel", _with_torch),
        Alternative("the course's own function, which also refuses the mask as it came", _with_course),
        Alternative("sentence by sentence", _sentence_by_sentence),
    ],
    hints=(
        "Write (B, H, T, S) and, right under it, (B, T, S), aligned at the right. Which letters stand under which?",
        "The mask lacks the axis of the heads. An axis of length 1 at its position is read by every head.",
        """scores = query @ key.mT / math.sqrt(query.size(-1))
visible = ____  # the same for every head
return scores.masked_fill(~visible, -math.inf).softmax(dim=-1) @ value""",
    ),
    sample=_sample,
    tries=("float64", "zeros", "repeated"),
    equivalent_mutants={"query -> key (2)": "query and key have the same width"},
)
