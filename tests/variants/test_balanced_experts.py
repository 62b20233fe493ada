"""Experts balanced by a bias: against DeepSeek-V3's of transformers, their laws, and what the bias does."""

import pytest
import torch
from torch import nn

from course_lib import testing as laws
from course_lib.variants.balanced_experts import BalancedExperts, BiasRouter

D, F = 8, 12


def crooked(n_experts=6, top_k=2):
    """A router with weights and biases large enough to change the choice."""
    router = BiasRouter(D, n_experts, top_k)
    nn.init.normal_(router.scores.weight, std=0.3)
    router.bias.copy_(0.3 * torch.randn(n_experts))
    return router


@pytest.mark.parametrize(("n_shared", "top_k"), [(1, 2), (2, 3)])
def test_equals_deepseek_v3(n_shared, top_k, parity):
    transformers = pytest.importorskip("transformers")
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = transformers.DeepseekV3Config(
        hidden_size=D, moe_intermediate_size=F, n_routed_experts=6, num_experts_per_tok=top_k, n_group=1, topk_group=1,
        n_shared_experts=n_shared, norm_topk_prob=True, routed_scaling_factor=1.0, hidden_act="silu",
    )  # fmt: skip
    theirs, ours = DeepseekV3MoE(config), BalancedExperts(D, F, n_experts=6, top_k=top_k, n_shared=n_shared)
    ours.router = crooked(6, top_k)
    with torch.no_grad():
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.3)
        theirs.gate.weight.copy_(ours.router.scores.weight)
        theirs.gate.e_score_correction_bias.copy_(ours.router.bias)
        for number, expert in enumerate(ours.experts):
            gate, up = theirs.experts.gate_up_proj[number].chunk(2)  # (2 F, D)
            for mine, other in ((expert.gate, gate), (expert.up, up), (expert.down, theirs.experts.down_proj[number])):
                mine.weight.copy_(other)
        for name in ("gate", "up", "down"):
            getattr(ours.shared, name).weight.copy_(getattr(theirs.shared_experts, f"{name}_proj").weight)
    x = torch.randn(2, 9, D)
    unbiased = ours.router.scores(x.flatten(0, 1)).topk(top_k).indices.sort().values
    biased = ours.router(x.flatten(0, 1)).topk(top_k).indices.sort().values
    assert (unbiased != biased).any(), "the bias must change a choice, or the test says nothing about it"
    found = laws.assert_equivalent(ours, theirs, x, parameters=[(ours.router.scores.weight, theirs.gate.weight)])
    parity(f"experts with a bias, {n_shared} shared, top {top_k}", "transformers' DeepseekV3MoE", found)


def test_the_bias_chooses_and_does_not_weigh():
    router, tokens = crooked(), torch.randn(50, D)
    weights, scores = router(tokens), router.scores(tokens).sigmoid()
    router.bias += 0.7  # the same for all changes no choice, and so nothing
    torch.testing.assert_close(router(tokens), weights)
    chosen = weights > 0
    assert chosen.sum(-1).tolist() == [2] * 50
    shares = scores * chosen / (scores * chosen).sum(-1, keepdim=True)
    torch.testing.assert_close(weights, shares)


def test_update_moves_by_the_rate_towards_even_and_counts_anew():
    router = BiasRouter(D, 4, 1)
    router.counts.copy_(torch.tensor([7.0, 1.0, 0.0, 4.0]) - 0.0)
    router.counts[3] = 3.0  # the mean is 11/4
    router.update(0.5)
    assert router.bias.tolist() == [-0.5, 0.5, 0.5, -0.5]
    router.counts.fill_(3.0)
    router.update(0.5)
    assert router.bias.tolist() == [-0.5, 0.5, 0.5, -0.5], "an even load moves nothing"
    assert router.counts.tolist() == [0.0] * 4


def test_counts_in_training_only_and_over_micro_batches():
    router, tokens = crooked(), torch.randn(30, D)
    router.train()(tokens)
    whole = router.counts.clone()
    router.counts.zero_()
    for part in tokens.split(11):
        router(part)
    assert whole.sum() == 60
    torch.testing.assert_close(router.counts, whole)
    router.eval()(tokens)
    torch.testing.assert_close(router.counts, whole)


def test_updates_even_a_crooked_load():
    router, tokens = BiasRouter(D, 4, 1).train(), torch.randn(400, D) + 1.0
    with torch.no_grad():
        router.scores.weight[0] = 1.0  # expert 0 wins nearly always
    router(tokens)
    before = router.counts.max().item() / 400
    for _ in range(200):
        router.update(0.01)
        router(tokens)
    assert before > 0.8
    assert router.counts.max().item() / 400 < 0.4


def test_the_bias_is_saved_and_not_trained():
    layer = BalancedExperts(D, F, n_experts=4, top_k=2)
    assert "router.bias" in layer.state_dict()
    assert "router.bias" not in dict(layer.named_parameters())
    layer(torch.randn(3, D)).sum().backward()
    assert layer.router.scores.weight.grad is not None


def test_counts():
    layer = BalancedExperts(D, F, n_experts=5, top_k=2, n_shared=2)
    laws.assert_counts(layer, parameters=7 * 3 * D * F + 5 * D)


@pytest.mark.parametrize("n_shared", [0, 1])
def test_laws(n_shared, obeys):
    block = f"experts with a bias, {n_shared} shared"
    layer, x = BalancedExperts(D, F, n_experts=3, top_k=2, n_shared=n_shared), torch.randn(3, 20, D)
    laws.assert_gradients_flow(layer, x)
    obeys(block, "gradients")
    laws.assert_permutation_equivariant(layer, x)
    laws.assert_finite(layer, x)
    obeys(block, "finite")
    laws.assert_padding_invariant(lambda x, real: layer(x), x, module=layer)
    obeys(block, "padding")


def test_bad_input_names_the_argument():
    with pytest.raises(ValueError, match="top_k: expected an integer from 1 to 4, got 5"):
        BiasRouter(D, 4, 5)
    with pytest.raises(ValueError, match="n_shared: expected an integer of at least 0, got -1"):
        BalancedExperts(D, F, n_shared=-1)
    with pytest.raises(ValueError, match="x: expected"):
        BalancedExperts(D, F)(torch.randn(2, D + 1))
