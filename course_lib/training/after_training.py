"""What is made smaller after pre-training: the losses of DPO and GRPO, and pass@k, which measures what sampling finds.

They take logits and log-probabilities, so that they know no model. Shapes: N answers, T their tokens, V vocabulary,
B questions, G answers to each of them.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.checks import check_floating, check_integer, check_mask, check_number, check_token_ids

__all__ = [
    "dpo_loss",
    "group_advantages",
    "grpo_loss",
    "kl_estimate",
    "pass_at_k",
    "sequence_log_probs",
    "token_log_probs",
]


def token_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return how likely each token was said to be, as a logarithm: (..., T).

    Args:
        logits: (..., T, V), those that predict `tokens`, so already shifted.
        tokens: ids (..., T).

    Raises ValueError for shapes that do not fit, TypeError for logits that are no floating-point numbers.
    """
    check_floating("logits", logits)
    check_token_ids("tokens", tokens)
    if logits.shape[:-1] != tokens.shape:
        raise ValueError(
            f"tokens: expected {tuple(logits.shape[:-1])}, the shape of logits without V, got {tuple(tokens.shape)}"
        )
    # (..., T, V) -> (..., T, 1) -> (..., T)
    return logits.log_softmax(dim=-1).gather(-1, tokens[..., None]).squeeze(-1)


def sequence_log_probs(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the log-probability of each whole answer, the sum over its tokens: (...).

    Args:
        logits, tokens: as `token_log_probs`.
        mask: bool (..., T), True for the tokens of the answer; those of the question and padding are False.
    """
    found = token_log_probs(logits, tokens)
    _check_mask(mask, found)
    return found.masked_fill(~mask, 0.0).sum(dim=-1)  # (..., T) -> (...)


def dpo_loss(
    policy_chosen: Tensor,
    policy_refused: Tensor,
    reference_chosen: Tensor,
    reference_refused: Tensor,
    beta: float = 0.1,
) -> Tensor:
    """Return the loss of direct preference optimisation, the mean over N pairs.

    With the margin, (policy_chosen - reference_chosen) - (policy_refused - reference_refused), each pair costs
    -log sigmoid(beta * margin): log 2 where policy and reference agree.

    Args:
        policy_chosen, policy_refused: log-probabilities of the two answers under the model that is trained, (N,).
        reference_chosen, reference_refused: the same under the frozen model, (N,).
        beta: how much a step away from the reference counts.

    Source: Rafailov et al. 2023, "Direct Preference Optimization", equation 7.
    """
    check_number("beta", beta, above=0)
    for name, some in (
        ("policy_refused", policy_refused),
        ("reference_chosen", reference_chosen),
        ("reference_refused", reference_refused),
    ):
        if some.shape != policy_chosen.shape:
            raise ValueError(f"{name}: expected {tuple(policy_chosen.shape)} as policy_chosen, got {tuple(some.shape)}")
    margin = (policy_chosen - reference_chosen) - (policy_refused - reference_refused)
    return -F.logsigmoid(beta * margin).mean()


def group_advantages(rewards: Tensor, *, scale: bool = True, eps: float = 1e-4) -> Tensor:
    """Return how much better than its group each answer is: rewards (B, G) -> advantages (B, G).

    The mean of the group is taken away, and the rest is divided by the group's standard deviation (with G - 1 in its
    denominator) plus `eps`. In a group of equal rewards all advantages are 0.

    Args:
        rewards: of G answers to each of B questions; G at least 2.
        scale: False leaves out the division.

    Source: Shao et al. 2024, "DeepSeekMath", section 4.1.2; without the division: Liu et al. 2025, "Understanding
    R1-Zero-Like Training". The denominator and `eps` are those of the library trl.
    """
    check_floating("rewards", rewards)
    check_number("eps", eps, least=0)
    if rewards.dim() != 2 or rewards.size(1) < 2:
        raise ValueError(f"rewards: expected (B, G) with G of at least 2, got {tuple(rewards.shape)}")
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True) + eps) if scale else centred


def kl_estimate(log_probs: Tensor, reference: Tensor) -> Tensor:
    """Return for each sampled token an estimate of how far the policy is from the reference, at least 0.

    With x = reference - log_probs it is exp(x) - x - 1, whose mean over samples of the policy is the KL divergence.

    Source: Schulman 2020, "Approximating KL Divergence" (a blog post, estimator k3); Shao et al. 2024, equation 4.
    """
    difference = reference - log_probs
    return difference.exp() - difference - 1


def grpo_loss(
    log_probs: Tensor,
    old: Tensor,
    reference: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip: float = 0.2,
    beta: float = 0.04,
) -> Tensor:
    """Return the loss of group relative policy optimisation: the mean over each answer's tokens, then over answers.

    With the ratio exp(log_probs - old), a token earns the smaller of ratio * advantage and the same with the ratio kept
    within 1 - clip and 1 + clip; beta times `kl_estimate` is taken off. The loss is minus that.

    Args:
        log_probs: of the tokens of N answers under the model that is trained, (N, T).
        old: under the model that wrote them, without gradient, (N, T).
        reference: under the frozen model, (N, T).
        advantages: one for each answer, (N,).
        mask: bool (N, T), True for the tokens of the answer.

    Source: Shao et al. 2024, equation 3; the clipped ratio: Schulman et al. 2017, "Proximal Policy Optimization",
    equation 7.
    """
    check_number("clip", clip, above=0)
    check_number("beta", beta, least=0)
    _check_mask(mask, log_probs)
    for name, some in (("old", old), ("reference", reference)):
        if some.shape != log_probs.shape:
            raise ValueError(f"{name}: expected {tuple(log_probs.shape)} as log_probs, got {tuple(some.shape)}")
    if advantages.shape != log_probs.shape[:1]:
        raise ValueError(f"advantages: expected {tuple(log_probs.shape[:1])}, one for each answer, got "
                         f"{tuple(advantages.shape)}")  # fmt: skip
    ratio = (log_probs - old).masked_fill(~mask, 0.0).exp()
    gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages[:, None])
    earned = gain - beta * kl_estimate(log_probs, reference)
    by_answer = earned.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)  # (N, T) -> (N,)
    return -by_answer.mean()


def pass_at_k(n: int, right: int, k: int) -> float:
    """Return the chance that at least one of `k` answers is right, estimated from `n` of which `right` are.

    It is 1 - C(n - right, k) / C(n, k): of all ways to take k of the n answers, those with a right one.

    Raises ValueError unless 1 <= k <= n and 0 <= right <= n.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.
    """
    check_integer("n", n, 1)
    check_integer("right", right, 0, n)
    check_integer("k", k, 1, n)
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def _check_mask(mask: Tensor, tokens: Tensor) -> None:
    check_mask("mask", mask)
    if mask.shape != tokens.shape:
        raise ValueError(f"mask: expected {tuple(tokens.shape)}, one for each token, got {tuple(mask.shape)}")
