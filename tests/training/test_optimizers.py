"""Which parameters decay, which go to Muon, and that Muon is torch's."""

import pytest
import torch
from torch import nn
from training_samples import losses, small_model, small_run

from course_lib.training import Muon, TrainingConfig, build_optimizers, newton_schulz, parameter_groups


def names_of(model, parameters):
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)] for p in parameters}


def test_norms_biases_and_embeddings_do_not_decay():
    model = small_model(positions="learned", tie_embeddings=False)
    decayed, kept = parameter_groups(model, 0.1)
    assert decayed["weight_decay"] == 0.1
    assert kept["weight_decay"] == 0.0
    decayed, kept = names_of(model, decayed["params"]), names_of(model, kept["params"])
    assert decayed | kept == {name for name, _ in model.named_parameters()}
    assert not decayed & kept
    assert "head.weight" in decayed
    assert {name for name in kept if "norm" not in name and "bias" not in name} == {
        "embedding.tokens.weight",
        "embedding.positions.weight",
        "source_embedding.positions.weight",
    }


def test_frozen_parameters_are_left_out():
    model = small_model()
    for p in model.encoder.parameters():
        p.requires_grad_(False)
    taken = [p for group in parameter_groups(model, 0.1) for p in group["params"]]
    assert len(taken) == sum(p.requires_grad for p in model.parameters()) < len(list(model.parameters()))
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that is trained"):
        build_optimizers(model, TrainingConfig())


def test_muon_gets_the_matrices_inside_layers():
    model = small_model(tie_embeddings=False)
    adamw, muon = build_optimizers(model, TrainingConfig(optimizer="muon"))
    names = names_of(model, muon.param_groups[0]["params"])
    assert names == {n for n, p in model.named_parameters() if ".layers." in n and p.dim() == 2}
    others = names_of(model, [p for group in adamw.param_groups for p in group["params"]])
    assert others == {name for name, _ in model.named_parameters()} - names
    assert {"embedding.tokens.weight", "head.weight"} <= others
    with pytest.raises(ValueError, match="optimizer: 'muon'"):
        build_optimizers(nn.Linear(3, 3), TrainingConfig(optimizer="muon"))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24)])
def test_muon_is_torchs(shape, device):
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(shape, device=device))
    other = nn.Parameter(torch.randn(shape, device=device))
    theirs, theirs_other = (nn.Parameter(p.detach().clone()) for p in (ours, other))
    a = Muon([ours, other], lr=0.02, weight_decay=0.1)
    b = torch.optim.Muon([theirs, theirs_other], lr=0.02, weight_decay=0.1)
    for _ in range(5):
        for p, twin in ((ours, theirs), (other, theirs_other)):
            p.grad = torch.randn_like(p)
            twin.grad = p.grad.clone()
        a.step()
        b.step()
    # bfloat16 inside, and matrices of one shape in one product: equal to its rounding
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)
    torch.testing.assert_close(other, theirs_other, atol=2e-3, rtol=0)


def test_newton_schulz_brings_singular_values_near_one():
    torch.manual_seed(0)
    matrices = torch.randn(3, 16, 8)
    found = newton_schulz(matrices, dtype=torch.float32)
    values = torch.linalg.svdvals(found)
    assert ((values > 0.6) & (values < 1.3)).all()
    U, _, Vh = torch.linalg.svd(matrices, full_matrices=False)
    cosine = nn.functional.cosine_similarity(found.flatten(1), (U @ Vh).flatten(1))
    assert (cosine > 0.97).all()


def test_muon_learns_and_refuses_vectors():
    run = small_run(steps=40, optimizer="muon").train()
    assert losses(run)[-1] < losses(run)[0] - 0.3
    with pytest.raises(ValueError, match="expected matrices"):
        Muon([nn.Parameter(torch.zeros(3))])
    with pytest.raises(ValueError, match="momentum"):
        Muon([nn.Parameter(torch.zeros(3, 3))], momentum=-1)


def test_rates_follow_the_schedule_with_their_factors():
    run = small_run(steps=10, warmup=5, optimizer="muon", learning_rate=1e-3, muon_learning_rate=2e-2)
    run.train(until=2)
    adamw, muon = run.optimizers
    assert adamw.param_groups[0]["lr"] == pytest.approx(1e-3 * 2 / 5)
    assert muon.param_groups[0]["lr"] == pytest.approx(2e-2 * 2 / 5)
