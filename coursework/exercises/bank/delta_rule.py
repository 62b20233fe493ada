"""Exercise: a memory of fixed size that is corrected at each token."""

import torch

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal, strided


def delta_rule(query, key, value, beta, gate):
    """query, key (B, T, E), value (B, T, E'), beta, gate (B, T)
    -> outputs (B, T, E'), last state (B, E', E)"""
    state = value.new_zeros(value.size(0), value.size(-1), key.size(-1))
    outputs = []
    for t in range(key.size(1)):
        state = gate[:, t, None, None] * state
        said = torch.einsum("bfe,be->bf", state, key[:, t])
        missing = beta[:, t, None] * (value[:, t] - said)
        state = state + missing[:, :, None] * key[:, t, None, :]
        outputs.append(torch.einsum("bfe,be->bf", state, query[:, t]))
    return torch.stack(outputs, dim=1), state


def _model(old="read", answer="after", fades="old", share="correction"):
    """The recurrence whose settings are the misconceptions."""

    def read(state, vector):
        return (state * vector[:, None, :]).sum(-1)

    def walk(query, key, value, beta, gate):
        state, outputs = value.new_zeros(value.size(0), value.size(-1), key.size(-1)), []
        for t in range(key.size(1)):
            q, k, v, b, g = (x[:, t] for x in (query, key, value, beta[..., None], gate[..., None, None]))
            faded = g * state if fades == "old" else state
            said = {
                "read": lambda faded=faded, k=k: read(faded, k),
                "query": lambda faded=faded, q=q: read(faded, q),
                "unfaded": lambda state=state, k=k: read(state, k),
                "nothing": lambda v=v: torch.zeros_like(v),
            }[old]()
            missing = b * v - said if share == "value" else b * (v - said)
            new = faded + missing[..., None] * k[:, None, :]
            new = g * new if fades == "all" else new
            outputs.append(read(faded if answer == "before" else new, q))
            state = new
        return torch.stack(outputs, 1), state

    return walk


def _with_one_factor(query, key, value, beta, gate):
    """What is erased and what fades are one factor: S becomes S g (1 - beta k kᵀ) + beta v kᵀ."""
    B, T, E = key.shape
    state, outputs = value.new_zeros(B, value.size(-1), E), []
    for t in range(T):
        k, b, g = key[:, t, :, None], beta[:, t, None, None], gate[:, t, None, None]  # (B, E, 1), (B, 1, 1) twice
        erase = torch.eye(E, dtype=key.dtype) - b * k @ k.mT  # (B, E, E)
        state = g * state @ erase + b * value[:, t, :, None] @ k.mT
        outputs.append((state @ query[:, t, :, None])[..., 0])
    return torch.stack(outputs, 1), state


def _all_at_once(query, key, value, beta, gate):
    """Each write depends on earlier writes alone: they solve a triangular system."""
    since = gate.log().cumsum(-1)  # (B, T)
    later = torch.ones(key.size(1), key.size(1), dtype=torch.bool).triu(1)
    left = (since[:, :, None] - since[:, None]).masked_fill(later, -torch.inf).exp()  # (B, T, T)
    system = beta[..., None] * (key @ key.mT) * left
    written = torch.linalg.solve_triangular(system, beta[..., None] * value, upper=False, unitriangular=True)
    outputs = (query @ key.mT * left) @ written
    return outputs, (left[:, -1, :, None] * written).mT @ key


def _with_course(query, key, value, beta, gate):
    from course_lib.variants.efficient import gated_delta_rule

    one_head = [x[:, None] for x in (query, key, value, beta, gate.log())]
    output, state = gated_delta_rule(*one_head)
    return output[:, 0], state[:, 0]


def _share(*shape, seed, dtype):
    """Between 0.1 and 0.9, with two decimals."""
    drawn = (normal(*shape, seed=seed, grad=False, dtype=dtype).sigmoid() * 0.8 + 0.1).mul(100).round() / 100
    return drawn.requires_grad_()


@maker
def _case(B, T, E, width, seed, dtype=torch.float32, beta=None, gate=None):
    query, key = (normal(B, T, E, seed=seed + i, dtype=dtype, scale=0.5) for i in range(2))
    value = normal(B, T, width, seed=seed + 2, dtype=dtype)
    shares = [
        _share(B, T, seed=seed + 3 + i, dtype=dtype) if fixed is None else torch.full((B, T), fixed, dtype=dtype)
        for i, fixed in enumerate((beta, gate))
    ]
    return query, key, value, *shares


def _moved():
    """One name, two rooms: the key (1, 0) with 5, then with 7."""
    key = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    return key.clone(), key, torch.tensor([[[5.0], [7.0]]]), torch.ones(1, 2), torch.ones(1, 2)


def _strided():
    return tuple(strided(tensor) for tensor in _case(2, 3, 4, 5, seed=41)())


def _sample(draw):
    B, T, E, width = draw.integer(1, 3), draw.integer(1, 6), draw.integer(1, 5), draw.integer(1, 5)
    dtype = draw.dtype()
    shares = [(0.8 * draw.normal(B, T, dtype=dtype, grad=False).sigmoid() + 0.1).requires_grad_() for _ in range(2)]
    vectors = [draw.normal(B, T, size, dtype=dtype, scale=0.5) for size in (E, E, width)]
    return *vectors, *shares


def _replaced(delta_rule) -> str | None:
    query, key, value, beta, gate = _moved()
    said = delta_rule(query, key, value, beta, gate)[0][0, -1].item()
    return None if abs(said - 7) < 1e-4 else f"Under the key (1, 0) first 5 is written, then 7. It reads {said:.2f}."


def _heard(delta_rule) -> str | None:
    key, share, half = torch.ones(1, 1, 1), torch.ones(1, 1), torch.full((1, 1), 0.5)
    said = delta_rule(key, key.clone(), 4 * key, share, half)[0].item()
    return None if abs(said - 4) < 1e-4 else f"A token writes 4, asks for its own key, and hears {said:.2f}."


EXERCISE = Exercise(
    title="A memory that corrects itself",
    what="""Write `delta_rule(query, key, value, beta, gate)`: a memory S that is all zeros at first and reads B texts
token by token. At each token, in this order: S fades to g · S; what the faded S says under the key, S k, is read; β
times the difference v − S k is written under the key, S + β (v − S k) kᵀ; and the new S answers the query, S q.
Queries and keys are (B, T, E), values (B, T, E'), β and g (B, T), both above 0 and at most 1. Return all answers,
(B, T, E'), and the last S, (B, E', E). Change no argument, and let gradients flow through every step.""",
    why="""This loop is the memory of three layers in four of Qwen3-Next. It never grows, and a fact that changes is
replaced.""",
    difficulty=4,
    minutes=18,
    reference=delta_rule,
    model=_model,
    misconceptions=misconceptions("""
adds-only (old="nothing"): writes without looking at what stands under the key
    Under a key that says 5, write 7 with β = 1: what does the key say then?
reads-with-the-query (old="query"): reads with the query what it is going to correct
    Under which vector is the value going to be written?
reads-before-fading (old="unfaded"): takes the difference from what S said before it faded
    If 8 has faded to 4 and 8 is wanted again, how much is missing?
answers-before-writing (answer="before"): answers the query before the token is written
    A single token asks for its own key: what should it hear?
fades-what-is-new (fades="all"): lets the token's own value fade, too
    With g = 0.5, how much of a value that was written just now should be left?
share-of-the-value-only (share="value"): takes β times the value and subtracts all that was read
    With β near 0, what should a token change?
"""),
    cases=[
        Case("1 text, one key, 5 replaced by 7", _moved),
        Case("1 text of 1 token", _case(1, 1, 2, 3, seed=1)),
        Case("1 text of 2 tokens", _case(1, 2, 3, 2, seed=11)),
        Case("2 texts of 5 tokens", _case(2, 5, 3, 4, seed=21)),
        Case("nothing fades, all is corrected", _case(2, 4, 3, 5, seed=31, beta=1.0, gate=1.0)),
        Case("inputs that are not contiguous in memory", _strided),
        Case("float64", _case(2, 6, 4, 3, seed=61, dtype=torch.float64)),
    ],
    properties=[
        Property("A new value replaces the old one under the same key.", _replaced),
        Property("A token that asks for its own key hears its own value, if all is corrected.", _heard),
    ],
    alternatives=[
        Alternative("with one factor for fading and erasing", _with_one_factor),
        Alternative("all tokens at once, by a triangular system", _all_at_once),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "What has to be known before anything is written, and in which state must it be read?",
        "A column (B, E', 1) times a row (B, 1, E) is the matrix that one token adds.",
        """state = gate[:, t, None, None] * state
said = torch.einsum("bfe,be->bf", state, key[:, t])
missing = ____  # (B, E')
state = state + missing[:, :, None] * key[:, t, None, :]""",
    ),
    sample=_sample,
    tries=("float64",),
    equivalent_mutants={
        "value -> beta": "both have as many texts",
        "value -> beta (2)": "both have as many texts, and the numbers of both have one dtype",
        "key -> value (2)": "both have as many tokens",
        "gate[:, t, None, None] -> gate[:, None, t, None]": "the result has the same axes",
        "beta[:, t, None] -> beta[:, None, t]": "the result has the same axes",
        "key[:, t, None, :] -> key[:, None, t, :]": "the result has the same axes",
    },
)
