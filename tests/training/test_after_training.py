"""The losses of DPO and GRPO and pass@k: numbers by hand, laws, trl's own formulas where it is installed, refusals."""

import itertools
import math
from unittest.mock import MagicMock

import pytest
import torch

from course_lib.training import (
    dpo_loss,
    group_advantages,
    grpo_loss,
    kl_estimate,
    pass_at_k,
    sequence_log_probs,
    token_log_probs,
)


def drawn(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_log_probs_are_those_of_cross_entropy():
    logits, tokens = drawn(3, 5, 7), torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(1))
    found = token_log_probs(logits, tokens)
    wanted = -torch.nn.functional.cross_entropy(logits.mT, tokens, reduction="none")
    torch.testing.assert_close(found, wanted)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])
    sums = sequence_log_probs(logits, tokens, mask)
    torch.testing.assert_close(sums, torch.stack([wanted[0].sum(), wanted[1, :2].sum(), wanted[2, :0].sum()]))


def test_the_probabilities_of_all_answers_sum_to_one():
    logits = drawn(2, 3)  # two places, three tokens, each place independent of the other
    every = torch.tensor(list(itertools.product(range(3), repeat=2)))  # (9, 2)
    sums = sequence_log_probs(logits.expand(9, 2, 3), every, torch.ones(9, 2, dtype=torch.bool))
    assert sums.exp().sum() == pytest.approx(1.0)


def test_dpo_by_hand():
    # gains -0.5 and -2.5: a margin of 2, and with beta 0.5 a cost of -ln sigmoid(1)
    chosen, refused, frozen = torch.tensor([-2.5]), torch.tensor([-4.0]), torch.tensor([-2.0])
    loss = dpo_loss(chosen, refused, frozen, torch.tensor([-1.5]), beta=0.5)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-6)
    assert loss.item() == pytest.approx(0.3133, abs=1e-4)


def test_dpo_starts_at_ln_2_and_prefers():
    chosen, refused = drawn(4, seed=1).requires_grad_(), drawn(4, seed=2).requires_grad_()
    loss = dpo_loss(chosen, refused, chosen.detach(), refused.detach(), beta=0.3)
    assert loss.item() == pytest.approx(math.log(2))
    loss.backward()
    # half of beta for each pair, shared over four: the answers are pulled apart with equal force
    torch.testing.assert_close(chosen.grad, torch.full_like(chosen, -0.3 / 2 / 4))
    torch.testing.assert_close(refused.grad, torch.full_like(refused, 0.3 / 2 / 4))


def test_dpo_does_not_see_what_both_answers_lose():
    some = [drawn(5, seed=seed) for seed in range(4)]
    both_less = dpo_loss(some[0] - 9, some[1] - 9, some[2], some[3])
    torch.testing.assert_close(both_less, dpo_loss(*some))


def test_dpo_is_finite_for_large_margins():
    zero = torch.zeros(1)
    assert dpo_loss(zero - 1e4, zero, zero, zero, beta=1.0).item() == pytest.approx(1e4)
    assert dpo_loss(zero + 1e4, zero, zero, zero, beta=1.0).item() == 0.0


def test_advantages_by_hand():
    found = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5]]), eps=0.0 + 1e-9)
    torch.testing.assert_close(found, torch.tensor([[1.5, -0.5, -0.5, -0.5], [0.0, 0.0, 0.0, 0.0]]))
    plain = group_advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), scale=False)
    torch.testing.assert_close(plain, torch.tensor([[0.75, -0.25, -0.25, -0.25]]))


def test_advantages_do_not_depend_on_the_scale_or_on_other_questions():
    rewards = drawn(3, 6)
    found = group_advantages(rewards)
    torch.testing.assert_close(group_advantages(5 + 100 * rewards), found, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.sum(1), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(group_advantages(rewards[1:2]), found[1:2])


def test_kl_estimate_is_zero_only_where_both_agree_and_right_on_average():
    policy, frozen = drawn(5).log_softmax(0), drawn(5, seed=1).log_softmax(0)
    assert (kl_estimate(policy, frozen) >= 0).all()
    assert (kl_estimate(policy, policy) == 0).all()
    mean = (policy.exp() * kl_estimate(policy, frozen)).sum()  # over all outcomes of the policy
    exact = (policy.exp() * (policy - frozen)).sum()
    torch.testing.assert_close(mean, exact)


def test_grpo_by_hand():
    # ratios 1.5 and 0.5, clipped to 1.2 and 0.8; advantages 1 and -1; no KL
    ratio = torch.tensor([[1.5, 0.5], [1.5, 0.5]], dtype=torch.float64)
    zero, mask = torch.zeros_like(ratio), torch.ones_like(ratio, dtype=torch.bool)
    loss = grpo_loss(ratio.log(), zero, ratio.log(), torch.tensor([1.0, -1.0]).double(), mask, clip=0.2, beta=0.0)
    # min(1.5, 1.2) and min(0.5, 0.8); min(-1.5, -1.2) and min(-0.5, -0.8)
    assert loss.item() == pytest.approx(-((1.2 + 0.5) / 2 + (-1.5 - 0.8) / 2) / 2)


def test_grpo_at_its_first_update_is_the_policy_gradient():
    now = drawn(3, 4).requires_grad_()
    advantages, mask = drawn(3, seed=1), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    grpo_loss(now, now.detach(), now.detach(), advantages, mask, beta=0.7).backward()
    wanted = -advantages[:, None] * mask / mask.sum(1, keepdim=True) / 3
    torch.testing.assert_close(now.grad, wanted)


def test_grpo_stops_pushing_beyond_the_clip():
    old = torch.zeros(2, 1, dtype=torch.float64)
    now = torch.tensor([[math.log(1.3)], [math.log(0.7)]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 1, dtype=torch.bool)
    grpo_loss(now, old, old, torch.tensor([1.0, -1.0]).double(), mask, clip=0.2, beta=0.0).backward()
    assert (now.grad == 0).all()
    now.grad = None
    grpo_loss(now, old, old, torch.tensor([-1.0, 1.0]).double(), mask, clip=0.2, beta=0.0).backward()
    assert (now.grad != 0).all()  # against a mistake there is no limit


def test_grpo_ignores_padding():
    now, mask = drawn(2, 3), torch.tensor([[True, True, False], [True, False, False]])
    other = now.masked_fill(~mask, -1e5)
    loss = [grpo_loss(some, torch.zeros(2, 3).double(), now, drawn(2, seed=2), mask) for some in (now, other)]
    torch.testing.assert_close(*loss)


@pytest.mark.parametrize(("n", "right", "k"), [(5, 2, 1), (5, 2, 2), (6, 1, 3), (4, 0, 2), (4, 4, 3), (7, 3, 7)])
def test_pass_at_k_is_the_share_of_choices_with_a_right_one(n, right, k):
    choices = list(itertools.combinations([True] * right + [False] * (n - right), k))
    assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_k_is_unbiased_where_the_shortcut_is_not():
    p, n, k = 0.3, 6, 4
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(chance * pass_at_k(n, c, k) for c, chance in enumerate(chances))
    shortcut = sum(chance * (1 - (1 - c / n) ** k) for c, chance in enumerate(chances))
    assert mean == pytest.approx(1 - (1 - p) ** k)
    assert shortcut < mean - 0.01


REFUSED = [
    (lambda: dpo_loss(torch.zeros(2), torch.zeros(3), torch.zeros(2), torch.zeros(2)), ValueError, "policy_refused"),
    (lambda: dpo_loss(*[torch.zeros(2)] * 4, beta=0.0), ValueError, "beta"),
    (lambda: group_advantages(torch.zeros(4)), ValueError, "rewards"),
    (lambda: group_advantages(torch.zeros(4, 1)), ValueError, "rewards"),
    (lambda: group_advantages(torch.zeros(2, 2, dtype=torch.long)), TypeError, "rewards"),
    (lambda: token_log_probs(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.long)), ValueError, "tokens"),
    (lambda: sequence_log_probs(torch.zeros(1, 2, 5), torch.zeros(1, 2).long(), torch.ones(1, 2)), TypeError, "mask"),
    (lambda: grpo_loss(*[torch.zeros(2, 3)] * 3, torch.zeros(3), torch.ones(2, 3).bool()), ValueError, "advantages"),
    (lambda: grpo_loss(*[torch.zeros(2, 3)] * 3, torch.zeros(2), torch.ones(2, 2).bool()), ValueError, "mask"),
    (lambda: pass_at_k(4, 5, 1), ValueError, "right"),
    (lambda: pass_at_k(4, 1, 5), ValueError, "k"),
]


@pytest.mark.parametrize(("call", "error", "name"), REFUSED)
def test_what_does_not_fit_is_named(call, error, name):
    with pytest.raises(error, match=f"^{name}: expected"):
        call()


def stand_in(**settings):
    """In the place of a trainer of trl: with the settings that its loss reads, and a mock for all that it logs."""
    trainer = MagicMock(**settings)
    trainer.accelerator.device = torch.device("cpu")
    trainer.accelerator.gather = trainer.accelerator.gather_for_metrics = lambda tensor: tensor
    trainer.accelerator.reduce = lambda tensor, **_: tensor
    trainer.model.training = False
    return trainer


def test_dpo_is_that_of_trl():
    """Of trl 1.16, run on log-probabilities of single tokens; another version may have moved what is called here."""
    pytest.importorskip("trl")
    from trl import DPOTrainer

    some = [drawn(4, seed=seed).float() for seed in range(4)]
    trainer = stand_in(
        beta=0.2, loss_types=["sigmoid"], loss_weights=[1.0], label_smoothing=0.0, f_divergence_type="reverse_kl",
        ld_alpha=None, precompute_ref_logps=True, use_weighting=False, aux_loss_enabled=False,
    )  # fmt: skip
    policy = torch.cat(some[:2])[:, None]  # the preferred answers, then the refused ones, of one token each
    mask = torch.tensor([[0, 1]]).expand(8, 2)
    inputs = {
        "input_ids": torch.zeros(8, 2, dtype=torch.long),
        "completion_mask": mask,
        "ref_chosen_logps": some[2],
        "ref_rejected_logps": some[3],
    }
    zeros = torch.zeros(8, 1)
    outputs = MagicMock(log_probs=policy, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())
    if not hasattr(DPOTrainer, "_compute_loss"):
        pytest.skip("this version of trl computes its loss elsewhere")
    theirs = DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    torch.testing.assert_close(dpo_loss(*some, beta=0.2), theirs)


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_grpo_is_that_of_trl(beta):
    """As above, loss and gradient."""
    pytest.importorskip("trl")
    from trl import GRPOTrainer

    now, old, reference = (drawn(4, 5, seed=seed, scale=0.3) for seed in range(3))
    mask = torch.arange(5) < torch.tensor([[5], [3], [1], [4]])
    advantages = group_advantages(drawn(1, 4, seed=5)).flatten()
    trainer = stand_in(
        beta=beta, epsilon_low=0.2, epsilon_high=0.2, loss_type="grpo", importance_sampling_level="token",
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False, aux_loss_enabled=False, tools=None,
        entropy_coef=0.0, use_adaptive_entropy=False,
    )  # fmt: skip
    trainer.args.delta, trainer.args.use_bias_correction_kl = None, False
    ours, theirs = now.clone().requires_grad_(), now.clone().requires_grad_()
    trainer._get_per_token_logps_and_entropies.return_value = (theirs, torch.zeros(4, 5), None)
    inputs = {
        "prompt_ids": torch.zeros(4, 2, dtype=torch.long),
        "prompt_mask": torch.ones(4, 2, dtype=torch.long),
        "completion_ids": torch.zeros(4, 5, dtype=torch.long),
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    loss = grpo_loss(ours, old, reference, advantages, mask, beta=beta)
    if not hasattr(GRPOTrainer, "_compute_loss"):
        pytest.skip("this version of trl computes its loss elsewhere")
    of_trl = GRPOTrainer._compute_loss(trainer, MagicMock(), inputs)
    torch.testing.assert_close(loss, of_trl)
    loss.backward()
    of_trl.backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
