"""Activation checkpointing changes what is kept, and nothing else."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from training_samples import losses, small_model, small_run, weights_hash

from course_lib.scaling import activation_bytes
from course_lib.training import recompute_activations
from course_lib.transformer import LanguageModel, TransformerConfig

CONFIG = TransformerConfig(d_model=32, n_heads=4, n_decoder_layers=8, vocab_size=32, dropout=0.1, norm_place="pre")


def pair(config):
    """A model, and the same one computing again."""
    torch.manual_seed(0)
    model = LanguageModel(config)
    return model, recompute_activations(copy.deepcopy(model))


def loss_of(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def test_gradients_are_equal_bit_for_bit_with_dropout():
    tokens = torch.randint(32, (3, 17), generator=torch.Generator().manual_seed(0))
    gradients = []
    for model in pair(CONFIG):
        torch.manual_seed(1)
        loss_of(model, tokens).backward()
        gradients.append([weight.grad for weight in model.parameters()])
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*gradients, strict=True))


def test_names_of_weights_stay():
    plain, again = pair(CONFIG)
    assert list(plain.state_dict()) == list(again.state_dict())


def test_what_is_kept_is_the_formula_without_the_layer_that_runs():
    config = TransformerConfig(d_model=32, n_heads=4, n_decoder_layers=8, vocab_size=32, dropout=0.0, norm_place="pre")
    tokens, kept = torch.randint(32, (3, 65)), []
    for model in pair(config):
        found = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, found=found: (found.setdefault(x.untyped_storage().data_ptr(), x), x)[1], lambda x: x
        ):
            loss_of(model, tokens)
        inputs = [*model.parameters(), tokens]
        known = {x.untyped_storage().data_ptr() for x in inputs}
        kept.append(sum(x.untyped_storage().nbytes() for place, x in found.items() if place not in known))
    whole = activation_bytes(config, 3, 64)
    stream = 3 * 64 * 32 * 4
    layer = (whole - activation_bytes(config, 3, 64, recompute=True) + 8 * stream) / 7
    assert kept[0] == pytest.approx(whole, rel=0.01)
    assert kept[1] == pytest.approx(activation_bytes(config, 3, 64, recompute=True) - layer, rel=0.02)
    assert kept[1] < kept[0] / 5


def test_a_run_is_the_same():
    runs = [small_run(recompute=again).train() for again in (False, True)]
    assert losses(runs[0]) == losses(runs[1])
    assert weights_hash(runs[0].model) == weights_hash(runs[1].model)


def test_layers_in_lists_inside_a_layer_go_with_it():
    model = recompute_activations(small_model())
    chosen = [name for name, module in model.named_modules() if "forward" in vars(module)]
    assert chosen == ["decoder.layers.0", "decoder.layers.1", "encoder.layers.0"]


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match=r"expected layers in an nn\.ModuleList"):
        recompute_activations(nn.Linear(2, 2))
