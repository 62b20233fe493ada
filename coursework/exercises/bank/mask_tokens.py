"""Exercise: make a masked-language-model example from a sentence."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers


def mask_tokens(tokens, special, chance, fate, others, mask_id):
    """ids (B, T), bool, two numbers in [0, 1), random ids, all (B, T); int
    -> inputs, labels (B, T) each"""
    chosen = (chance < 0.15) & ~special
    labels = tokens.masked_fill(~chosen, -100)  # -100 is what cross_entropy ignores
    inputs = tokens.masked_fill(chosen & (fate < 0.8), mask_id)
    replaced = chosen & (fate >= 0.8) & (fate < 0.9)
    return torch.where(replaced, others, inputs), labels


def _model(labelled="chosen", special_kept=True, rule="three", rate="15", order="right", ignore=-100, target="old"):
    """Masking whose settings are the misconceptions."""

    def make(tokens, special, chance, fate, others, mask_id):
        chosen = chance < {"15": 0.15, "85": 0.85, "all": 2.0}[rate]
        if rate == "late":
            chosen = chance >= 0.15
        chosen = chosen & ~special if special_kept is True else chosen
        masked, replaced = chosen & (fate < 0.8), chosen & (fate >= 0.8) & (fate < 0.9)
        if rule == "always-mask":
            masked, replaced = chosen, chosen & False
        if rule == "never-keep":
            replaced = chosen & (fate >= 0.8)
        if rule == "never-replace":
            replaced = chosen & False
        if rule == "replace-anywhere":
            replaced = (fate >= 0.8) & (fate < 0.9)
        if rule == "overwritten":
            replaced = chosen & (fate < 0.9)
        if order == "exchanged":
            masked, replaced = replaced, masked
        inputs = torch.where(replaced, others, tokens.masked_fill(masked, mask_id))
        if special_kept == "in the labels":
            chosen = chosen & ~special
        where = {"chosen": chosen, "changed": inputs != tokens, "masked": masked, "all": chosen | True,
                 "others": ~chosen, "not-special": ~special}[labelled]  # fmt: skip
        labels = (tokens if target == "old" else inputs).masked_fill(~where, ignore)
        return inputs, labels

    return make


def _with_where(tokens, special, chance, fate, others, mask_id):
    chosen = torch.where(special, torch.ones_like(chance), chance) < 0.15
    new = torch.where(fate < 0.8, torch.full_like(tokens, mask_id), torch.where(fate < 0.9, others, tokens))
    return torch.where(chosen, new, tokens), torch.where(chosen, tokens, torch.full_like(tokens, -100))


def _with_indexing(tokens, special, chance, fate, others, mask_id):
    inputs, labels = tokens.clone(), tokens.clone()
    chosen = (chance < 0.15) & ~special
    labels[~chosen] = -100
    inputs[chosen & (fate < 0.8)] = mask_id
    swap = chosen & (fate >= 0.8) & (fate < 0.9)
    inputs[swap] = others[swap]
    return inputs, labels


def _with_loops(tokens, special, chance, fate, others, mask_id):
    inputs, labels = tokens.clone(), torch.full_like(tokens, -100)
    for b in range(tokens.size(0)):
        for t in range(tokens.size(1)):
            if special[b, t] or chance[b, t] >= 0.15:
                continue
            labels[b, t] = tokens[b, t]
            if fate[b, t] < 0.8:
                inputs[b, t] = mask_id
            elif fate[b, t] < 0.9:
                inputs[b, t] = others[b, t]
    return inputs, labels


def _numbers(shape, seed, often):
    """Numbers in [0, 1) with two decimals, never on a limit; `often`: about half of them below 0.15."""
    hundredths = integers(*shape, low=0, high=29 if often else 99, seed=seed)
    return (hundredths + 0.5) / 100


@maker
def _case(B, T, seed, mask_id=4, often=True):
    tokens, others = integers(B, T, low=5, high=40, seed=seed), integers(B, T, low=5, high=40, seed=seed + 1)
    special = torch.zeros(B, T, dtype=torch.bool)
    special[:, 0] = True
    special[:, -1] = True
    chance, fate = _numbers((B, T), seed + 2, often), _numbers((B, T), seed + 3, False)
    return tokens, special, chance, fate, others, mask_id


def _each_fate():
    tokens, others = torch.tensor([[11, 12, 13, 14, 15, 16]]), torch.tensor([[21, 22, 23, 24, 25, 26]])
    special = torch.tensor([[True, False, False, False, False, False]])
    chance = torch.tensor([[0.05, 0.05, 0.1, 0.12, 0.5, 0.9]])
    return tokens, special, chance, torch.tensor([[0.1, 0.1, 0.85, 0.95, 0.1, 0.85]]), others, 4


def _kept():
    """A chosen token that stays as it is, and one that is replaced by itself: both are still predicted."""
    tokens = torch.tensor([[11, 12, 13]])
    chance, fate = torch.tensor([[0.05, 0.05, 0.7]]), torch.tensor([[0.95, 0.85, 0.3]])
    return tokens, torch.zeros(1, 3, dtype=torch.bool), chance, fate, torch.tensor([[31, 12, 33]]), 4


def _sample(draw):
    B, T = draw.integer(1, 4), draw.integer(1, 8)
    tokens, others = draw.integers(B, T, low=5, high=40), draw.integers(B, T, low=5, high=40)
    chance, fate = ((draw.integers(B, T, low=0, high=limit) + 0.5) / 100 for limit in (29, 99))
    return tokens, draw.mask(B, T), chance, fate, others, draw.integer(0, 4)


def _special_stay(mask_tokens) -> str | None:
    tokens, special, chance, fate, others, mask_id = _case(3, 8, seed=61)()
    inputs, labels = mask_tokens(tokens, special, torch.zeros_like(chance), fate, others, mask_id)
    if not torch.equal(inputs[special], tokens[special]):
        return "A special token, such as the separator, was changed."
    return None if (labels[special] == -100).all() else "A special token is to be predicted."


def _labels_hold_the_old(mask_tokens) -> str | None:
    tokens, special, chance, fate, others, mask_id = _case(3, 8, seed=71)()
    labels = mask_tokens(tokens, special, chance, fate, others, mask_id)[1]
    asked = labels != -100
    return None if torch.equal(labels[asked], tokens[asked]) else "A label is not the token that stood there."


EXERCISE = Exercise(
    title="Hide words and ask for them",
    what="""Write `mask_tokens(...)`, which makes BERT's training example out of a sentence. The random numbers are
given, so that the answer is one. A token is **chosen** where `chance < 0.15` and it is not special. Of the chosen ones,
`fate < 0.8` are replaced by `mask_id`, `0.8 <= fate < 0.9` by the token of `others`, and the rest stay. The labels hold
the old token at **every** chosen place and -100 elsewhere. Return `(inputs, labels)`; leave `tokens` as they are.""",
    why="""The choice makes a bidirectional encoder trainable: it has to predict what it cannot see. The tenth that
stays and the tenth that lies teach it to doubt every word, since a [MASK] never occurs after pre-training.""",
    difficulty=2,
    minutes=8,
    reference=mask_tokens,
    model=_model,
    misconceptions=misconceptions("""
labels-everywhere (labelled="all"): asks for every token, also for those the model can see
    What would the model learn from a label at a place that it can read?
labels-elsewhere (labelled="others"): asks for the tokens that were not chosen
    Which tokens can the model see, and which should it predict?
labels-at-changes (labelled="changed"): asks only for tokens that look different now
    What is the label of a chosen token that stays as it is?
labels-at-masks (labelled="masked"): asks only for tokens that became the mask
    What is the label of a chosen token that was replaced by another?
labels-at-words (labelled="not-special"): asks for every token that is not special
    What would the model learn from a label at a place that it can read?
labels-are-the-inputs (target="new"): stores the new token as the label in place of the old one
    Which token should the model guess at a masked place?
special-chosen (special_kept=False): chooses special tokens too
    What may happen to the separator?
always-the-mask (rule="always-mask"): replaces every chosen token by the mask
    What happens to a chosen token whose fate is 0.95?
never-kept (rule="never-keep"): replaces by a random token wherever it does not mask
    What happens to a chosen token whose fate is 0.95?
never-replaced (rule="never-replace"): replaces nothing by random tokens
    What happens to a chosen token whose fate is 0.85?
replaced-anywhere (rule="replace-anywhere"): replaces tokens by random ones at places that were not chosen
    May a token change that is never asked for?
fates-exchanged (order="exchanged"): masks one token in ten and replaces eight
    Which is the usual fate of a chosen token?
most-are-chosen (rate="85"): chooses 85 in 100
    How many tokens of a sentence of twenty should be hidden?
all-are-chosen (rate="all"): chooses every token
    From what should the model guess if nothing is left to read?
labels-zero (ignore=0): marks places without a question by 0, which is the id of a token
    Which label does cross_entropy leave out?
mask-overwritten (rule="overwritten"): replaces the tokens that it had masked by those of `others`
    What stands after your last line at a chosen place whose fate is 0.1?
special-changed (special_kept="in the labels"): leaves special tokens out of the labels, but changes them in the inputs
    Where in your code is it asked whether a token is special, for the labels and for the inputs?
"""),
    cases=[
        Case("every fate once", _each_fate),
        Case("a chosen token that stays, and one replaced by itself", _kept),
        Case("2 sentences of 5 tokens", _case(2, 5, seed=1)),
        Case("3 sentences of 14 tokens", _case(3, 14, seed=11)),
        Case("2 sentences of 13 tokens, chances over the whole range", _case(2, 13, seed=21, mask_id=3, often=False)),
    ],
    properties=[
        Property("Special tokens are never chosen.", _special_stay),
        Property("A label is the token that stood there.", _labels_hold_the_old),
    ],
    alternatives=[
        Alternative("with nested where", _with_where),
        Alternative("by assignment to copies", _with_indexing),
        Alternative("token by token", _with_loops),
    ],
    gradients=False,
    hints=(
        "Which one boolean tensor decides both where something may change and where there is a label?",
        "Build `chosen` first. The labels need nothing else; the inputs need `chosen` together with two limits on "
        "`fate`.",
        """chosen = ____
labels = tokens.masked_fill(~chosen, -100)
inputs = tokens.masked_fill(chosen & (fate < 0.8), mask_id)
return torch.where(chosen & (fate >= 0.8) & (fate < 0.9), others, inputs), labels""",
    ),
    sample=_sample,
    tries=("zeros", "repeated", "far"),
    equivalent_mutants={
        "chance < 0.15 -> chance <= 0.15": "no case lies exactly on a limit, where rounding would decide",
        "fate < 0.9 -> fate <= 0.9": "no case lies exactly on a limit, where rounding would decide",
        "fate < 0.8 -> fate <= 0.8": "no case lies exactly on a limit, where rounding would decide",
        "fate >= 0.8 -> fate > 0.8": "no case lies exactly on a limit, where rounding would decide",
    },
)
