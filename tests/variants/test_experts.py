"""Mixture of experts: equal to a loop over tokens, balanced when trained to be, bounded by capacity, lawful."""

import copy

import pytest
import torch
from torch import nn

from course_lib import testing as laws
from course_lib.transformer import LanguageModel, TransformerConfig
from course_lib.variants.experts import MixtureOfExperts, balance_loss, load_balancing_loss, route

D, F = 8, 12


def by_hand(moe, x):
    """Token by token, as the formula reads."""
    outputs = []
    for token in x.flatten(0, -2):
        probabilities = (moe.router.weight @ token).softmax(0)
        best = probabilities.argsort(descending=True)[: moe.top_k]
        weights = probabilities[best] / (probabilities[best].sum() if moe.top_k > 1 else 1.0)
        outputs.append(sum(w * moe.experts[int(i)](token) for w, i in zip(weights, best, strict=True)))
    return torch.stack(outputs).view_as(x)


@pytest.mark.parametrize("top_k", [1, 2, 4])
@pytest.mark.parametrize("gated", [False, True])
def test_equals_a_loop_over_tokens(top_k, gated, parity):
    moe = MixtureOfExperts(D, F, n_experts=4, top_k=top_k, activation="silu", gated=gated)
    parameters = [(p, p) for p in moe.parameters()]
    found = laws.assert_equivalent(moe, lambda x: by_hand(moe, x), torch.randn(2, 9, D), parameters=parameters)
    parity(f"mixture of experts, top {top_k}", "a loop over tokens", found)


def test_equals_mixtral():
    transformers = pytest.importorskip("transformers")
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = transformers.MixtralConfig(
        hidden_size=D, intermediate_size=F, num_local_experts=4, num_experts_per_tok=2, hidden_act="silu"
    )
    theirs = MixtralSparseMoeBlock(config)
    ours = MixtureOfExperts(D, F, n_experts=4, top_k=2, activation="silu", gated=True, bias=False)
    with torch.no_grad():
        for parameter in theirs.parameters():
            nn.init.normal_(parameter, std=0.3)
        ours.router.weight.copy_(theirs.gate.weight)
        for number, expert in enumerate(ours.experts):
            gate, up = theirs.experts.gate_up_proj[number].chunk(2)  # (2 F, D)
            expert.gate.weight.copy_(gate)
            expert.up.weight.copy_(up)
            expert.down.weight.copy_(theirs.experts.down_proj[number])
    laws.assert_equivalent(ours, theirs, torch.randn(2, 9, D), parameters=[(ours.router.weight, theirs.gate.weight)])


def test_one_expert_is_a_feed_forward():
    moe, x = MixtureOfExperts(D, F, n_experts=1, top_k=1), torch.randn(2, 9, D)
    torch.testing.assert_close(moe(x), moe.experts[0](x))


def test_biases_are_those_of_the_configs_feed_forward():
    config = TransformerConfig(d_model=D, n_heads=2, feed_forward_bias=False)
    assert all(expert.up.bias is None for expert in MixtureOfExperts.from_config(config).experts)


def test_counts():
    moe = MixtureOfExperts(D, F, n_experts=4, top_k=2, gated=True, bias=False)
    laws.assert_counts(moe, parameters=4 * 3 * D * F + 4 * D)


def test_balance_loss_is_one_when_even_and_n_experts_when_not():
    even = torch.full((6, 3), 1 / 3)
    assert load_balancing_loss(even, torch.tensor([[0], [1], [2]] * 2)).item() == pytest.approx(1.0)
    one = torch.tensor([[1.0, 0.0, 0.0]] * 6)
    assert load_balancing_loss(one, torch.zeros(6, 1, dtype=torch.long)).item() == pytest.approx(3.0)


def test_balance_loss_evens_a_crooked_router():
    moe, x = MixtureOfExperts(D, F, n_experts=4, top_k=1), torch.randn(200, D) + 1.0
    with torch.no_grad():
        moe.router.weight[0] += 0.5  # expert 0 wins nearly always
        moe(x)
    crooked = moe.load.max().item()
    optimizer = torch.optim.Adam(moe.parameters(), lr=0.02)
    for _ in range(100):
        optimizer.zero_grad()
        moe(x)
        moe.balance_loss.backward()
        optimizer.step()
    assert crooked > 0.8
    assert moe.load.max().item() < 0.4


def test_capacity_holds_in_training_only():
    moe, x = MixtureOfExperts(D, F, n_experts=4, top_k=1, capacity=1.0), torch.randn(40, D)
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[2, 0] = 100.0
    x[:, 0] = 1.0  # everyone wants expert 2
    output = moe(x)
    assert (output != 0).any(-1).tolist() == [True] * 10 + [False] * 30  # capacity * N / n_experts = 10, in order
    assert (moe.eval()(x) != 0).any(-1).all()
    torch.testing.assert_close(moe(x)[:10], output[:10])


def test_a_single_expert_normed_to_one_would_starve_the_router():
    scores = torch.randn(5, 4, requires_grad=True)
    weights = route(scores, 1)[0]
    normed = weights / weights.sum(-1, keepdim=True)
    kept, starved = (torch.autograd.grad(w.sum(), scores, retain_graph=True)[0].abs().max() for w in (weights, normed))
    assert kept > 0.01
    assert starved < 1e-6


@pytest.mark.parametrize("top_k", [1, 2])
def test_laws(top_k, obeys):
    block = f"mixture of experts, top {top_k}"
    moe, x = MixtureOfExperts(D, F, n_experts=3, top_k=top_k), torch.randn(3, 20, D)
    laws.assert_gradients_flow(moe, x)
    obeys(block, "gradients")
    laws.assert_permutation_equivariant(moe, x)
    laws.assert_finite(moe, x)
    obeys(block, "finite")
    laws.assert_padding_invariant(lambda x, real: moe(x), x, module=moe)
    obeys(block, "padding")


def test_capacity_breaks_the_law_of_padding_in_training():
    """Known and documented: under a limit a token depends on those before it in the batch."""
    moe, x = MixtureOfExperts(D, F, n_experts=3, top_k=1, capacity=0.5).train(), torch.randn(3, 20, D)
    with pytest.raises(AssertionError, match="changing token"):
        laws.assert_causal(lambda x: moe(x.flip(1)).flip(1), x)


def test_drops_into_a_model():
    config = TransformerConfig(
        d_model=D,
        n_heads=2,
        n_decoder_layers=2,
        vocab_size=11,
        d_ff=F,
        dropout=0.0,
        scale_residual_init=True,
        feed_forward=lambda c: MixtureOfExperts.from_config(c, n_experts=3, top_k=2),
    )
    model, tokens = LanguageModel(config), torch.randint(11, (2, 15))
    logits = model(tokens)
    assert balance_loss(model).item() >= 0.99
    (logits.sum() + balance_loss(model)).backward()
    assert all(p.grad is not None for p in model.parameters())
    laws.assert_causal(model, tokens, vocab_size=11)
    copy.deepcopy(model)  # the loss that it holds does not stand in the way


def test_bad_input_names_the_argument():
    with pytest.raises(ValueError, match="n_experts: expected an integer of at least 1, got 0"):
        MixtureOfExperts(D, n_experts=0, top_k=0)
    with pytest.raises(ValueError, match="top_k: expected an integer from 1 to 2, got 3"):
        MixtureOfExperts(D, n_experts=2, top_k=3)
    with pytest.raises(ValueError, match="capacity: expected a positive number, got 0"):
        MixtureOfExperts(D, capacity=0)
    with pytest.raises(ValueError, match="model: has no MixtureOfExperts"):
        balance_loss(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="scores: expected"):
        route(torch.zeros(3, 2), 3)
