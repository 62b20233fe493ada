"""Exercise: the loss of direct preference optimisation."""

import math

import torch
import torch.nn.functional as F

from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import normal


def dpo_loss(policy_chosen, policy_refused, reference_chosen, reference_refused, beta):
    """four times log-probabilities (N,), number -> mean loss, margins (N,)"""
    chosen = policy_chosen - reference_chosen  # (N,): by how much the preferred answers became likelier
    refused = policy_refused - reference_refused
    margins = chosen - refused
    return -F.logsigmoid(beta * margins).mean(), margins


def _model(reference="both", sign=1, at="inside", outer="log", reduce="mean", shown="plain"):
    """The loss whose settings are the misconceptions."""

    def loss(policy_chosen, policy_refused, reference_chosen, reference_refused, beta):
        if reference == "none":
            margin = policy_chosen - policy_refused
        elif reference == "added":
            margin = policy_chosen + reference_chosen - policy_refused - reference_refused
        elif reference == "chosen":
            margin = policy_chosen - reference_chosen - policy_refused
        elif reference == "quotient":
            margin = policy_chosen / reference_chosen - policy_refused / reference_refused
        elif reference == "ratio":
            margin = (policy_chosen - reference_chosen).exp() - (policy_refused - reference_refused).exp()
        else:
            margin = policy_chosen - reference_chosen - policy_refused + reference_refused
        margins = margin = sign * margin
        if reduce == "margin":
            margin = margin.mean()
        inner = beta * margin if at == "inside" else margin
        if outer == "sigmoid":
            cost = -inner.sigmoid()
        elif outer == "guarded":
            cost = -(inner.sigmoid() + 1e-8).log()
        elif outer == "naive":
            cost = -(1 / (1 + (-inner).exp())).log()
        else:
            cost = -F.logsigmoid(inner)
        if at == "outside":
            cost = beta * cost
        margins = beta * margins if shown == "times-beta" else margins
        cost = -cost if outer == "no-minus" else cost
        return (cost.sum() if reduce == "sum" else cost.mean()), margins

    return loss


def _with_softplus(policy_chosen, policy_refused, reference_chosen, reference_refused, beta):
    margin = (policy_chosen - policy_refused) - (reference_chosen - reference_refused)
    return F.softplus(-beta * margin).mean(), margin


def _as_a_choice_between_two(policy_chosen, policy_refused, reference_chosen, reference_refused, beta):
    chosen, refused = policy_chosen - reference_chosen, policy_refused - reference_refused
    rewards = beta * torch.stack([chosen, refused], dim=1)  # (N, 2)
    return -rewards.log_softmax(dim=1)[:, 0].mean(), chosen - refused


def _with_course(policy_chosen, policy_refused, reference_chosen, reference_refused, beta):
    from course_lib.training import dpo_loss

    margins = policy_chosen - reference_chosen - policy_refused + reference_refused
    return dpo_loss(policy_chosen, policy_refused, reference_chosen, reference_refused, beta), margins


@maker
def _case(N, *, beta=0.5, seed, scale=1.0, dtype=torch.float32):
    policy = [normal(N, seed=seed + i, scale=scale, dtype=dtype) for i in range(2)]
    frozen = [normal(N, seed=seed + 2 + i, scale=scale, dtype=dtype, grad=False) for i in range(2)]
    return (*policy, *frozen, beta)


def _sample(draw):
    N, dtype = draw.integer(1, 6), draw.dtype()
    # The reference is frozen: no gradient needs to reach it.
    some = [draw.normal(N, scale=draw.choice([0.5, 2.0]), dtype=dtype, grad=i < 2) for i in range(4)]
    return (*some, draw.choice([0.1, 0.5, 2.0]))


def _starts_at_ln_2(loss) -> str | None:
    a, b = normal(3, seed=91, grad=False), normal(3, seed=92, grad=False)
    value = float(loss(a, b, a, b, 0.3)[0])
    if math.isclose(value, math.log(2), rel_tol=1e-5):
        return None
    return f"Where the model is still its own reference, the loss is {value:.4f}; ln 2 is {math.log(2):.4f}."


def _falls_when_refused_falls(loss) -> str | None:
    zero = torch.zeros(2)
    before, after = (float(loss(zero, zero - some, zero, zero, 0.5)[0]) for some in (0, 2))
    if after < before:
        return None
    return f"When the refused answers became less likely, the loss went from {before:.4f} to {after:.4f}."


EXERCISE = Exercise(
    title="The loss of DPO",
    what="""Write `dpo_loss(policy_chosen, policy_refused, reference_chosen, reference_refused, beta)`. The four
tensors `(N,)` hold the log-probabilities of whole answers: the preferred and the refused one of each pair, under the
model that is trained (the policy) and under the frozen one (the reference). How far a pair has moved is its margin:
what the preferred answer has gained over the reference, minus what the refused answer has gained. A pair costs minus
the logarithm of the sigmoid of `beta` times its margin. Return two things: the mean of the costs over the pairs, and
the margins `(N,)`, without beta. The mean must stay finite for margins of several hundred. Gradients reach the policy
through both; the reference needs none.""",
    why="This is the whole of DPO: everything else is the training loop that you know.",
    difficulty=2,
    minutes=8,
    reference=dpo_loss,
    model=_model,
    misconceptions=misconceptions("""
no-reference (reference="none"): does not look at the reference
    What is the loss at the first step, when the model is still equal to the reference?
reference-added (reference="added"): adds the reference's log-probabilities where it should compare with them
    What does an answer gain if policy and reference give it the same probability?
reference-of-the-chosen-only (reference="chosen"): compares the preferred answer with the reference, but not the refused
        one
    What is the margin of a pair at the first step, when the model is still equal to the reference?
ratio-of-probabilities (reference="ratio"): compares ratios of probabilities and not their logarithms
    A difference of two logarithms: is it to be raised to a power before it is compared?
pair-swapped (sign=-1): rewards the refused answer
    If the preferred answer becomes likelier, should your loss rise or fall?
no-beta (at="none"): does not use beta
    Which value does your loss have for beta 0.1, and which for beta 10?
beta-outside (at="outside"): multiplies the finished loss with beta
    Does beta change how quickly the sigmoid saturates, or only the size of the loss?
no-logarithm (outer="sigmoid"): takes the sigmoid itself and not its logarithm
    What should a pair of margin 0 cost?
sigmoid-underflows (outer="naive"): takes the logarithm after the sigmoid, which is 0 for a large negative margin
    What is the sigmoid of -200 in float32, and what is its logarithm?
small-number-in-the-logarithm (outer="guarded"): adds a small number to the sigmoid before it takes the logarithm
    What does a pair cost in your function whose margin times beta is -200?
sum (reduce="sum"): returns the sum over the pairs
    Twice the same batch, one under the other: what should happen to the loss?
mean-of-margins (reduce="margin"): averages the margins first, so that one pair can pay for another
    One margin is 10 and another is -10: should that cost as much as two margins of 0?
margins-times-beta (shown="times-beta"): returns the margins multiplied by beta
    Which two things are returned, and in which of them is beta?
likelihood (outer="no-minus"): returns the loss with the opposite sign
    Of a probability below 1, which sign has minus its logarithm?
quotient-of-logarithms (reference="quotient"): divides log-probabilities by those of the reference
    The quotient of two probabilities: what is its logarithm?
"""),
    cases=[
        Case("one pair, beta 0.5", _case(1, seed=1)),
        Case("three pairs, beta 0.1", _case(3, beta=0.1, seed=11)),
        Case("four pairs, beta 2", _case(4, beta=2.0, seed=21)),
        Case("log-probabilities of size 400", _case(3, seed=31, scale=400.0)),
        Case("float64", _case(5, beta=0.25, seed=41, dtype=torch.float64)),
    ],
    properties=[
        Property("A model that is still its own reference costs ln 2.", _starts_at_ln_2),
        Property("The loss falls when the refused answers become less likely.", _falls_when_refused_falls),
    ],
    alternatives=[
        Alternative("with softplus", _with_softplus),
        Alternative("as a choice between two rewards", _as_a_choice_between_two),
        Alternative("the course's own function", _with_course),
    ],
    hints=(
        "What has each of the two answers gained over the reference, and which of the two gains should be larger?",
        "Logarithms of probabilities are compared by subtraction. torch has a function for the logarithm of a sigmoid "
        "that does not underflow.",
        """chosen = policy_chosen - reference_chosen
margins = chosen - (policy_refused - reference_refused)
return ____.mean(), margins""",
    ),
    sample=_sample,
    tries=("float64", "large", "zeros"),
)
