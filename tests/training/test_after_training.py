"""The losses of DPO and GRPO and pass@k: numbers by hand, laws, trl's own formulas where it is installed, refusals."""

import itertools
import math

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


class _Bare:
    """A stand-in for a trainer of trl, with only the settings that its loss reads."""

    def __init__(self, **settings):
        self.__dict__.update(settings)


def test_dpo_is_that_of_trl():
    trl = pytest.importorskip("trl")
    some = [drawn(4, seed=seed).float() for seed in range(4)]
    trainer = _Bare(
        beta=0.2, loss_type="sigmoid", label_smoothing=0.0, reference_free=False, f_divergence_type=None,
        accelerator=_Bare(device=torch.device("cpu")), f_divergence_params=None,
    )  # fmt: skip
    if not hasattr(trl.DPOTrainer, "dpo_loss"):
        pytest.skip("this trl has no dpo_loss that can be called by itself")
    theirs = trl.DPOTrainer.dpo_loss(trainer, *some)[0]
    torch.testing.assert_close(dpo_loss(*some, beta=0.2), theirs.mean())


def test_kl_and_advantages_have_the_formulas_in_the_source_of_trl():
    pytest.importorskip("trl")
    inspect = pytest.importorskip("inspect")
    from trl import GRPOTrainer

    source = "".join(inspect.getsource(GRPOTrainer).split())
    assert "torch.exp(ref_per_token_logps-per_token_logps)-(ref_per_token_logps-per_token_logps)-1" in source
    assert "+1e-4" in source
