"""A position scheme is one class and one line of a registry: three that the package does not know, one a place."""

import pytest
import torch
import torch.nn.functional as F
from tiny_models import Loss, insist_on_the_laws_of_a_language_model
from torch import nn

from course_lib import testing as laws
from course_lib.generation import generate, pad_left
from course_lib.positions import SCHEMES, PositionScheme, Rotation
from course_lib.scaling import activation_bytes, count_parameters
from course_lib.training import parameter_groups
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig

B, T, S, D, H, V = 3, 7, 5, 12, 3, 11


class EvenOrOdd(PositionScheme):
    """A trained vector for even positions, another for odd ones."""

    acts_on = "input"
    fields = ("d_model",)

    def __init__(self, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, d_model))

    @classmethod
    def n_weights(cls, config):
        return 2 * config.d_model

    @classmethod
    def kept_bytes(cls, config, T):
        return T * 8

    def forward(self, positions):
        return F.embedding(positions % 2, self.weight)


class OneSpeed(PositionScheme):
    """Every pair of dimensions turns by half a radian a position."""

    acts_on = "queries and keys"

    @classmethod
    def kept_bytes(cls, config, T):
        return 2 * T * 4

    def forward(self, positions):
        angles = 0.5 * positions[..., None].float()  # (T, 1) or (B, T, 1)
        angles = angles[:, None] if angles.dim() == 3 else angles
        angles = angles.expand(*angles.shape[:-1], D // H // 2)
        return Rotation(angles.cos(), angles.sin(), "half")


class Nearness(PositionScheme):
    """Each score lowered by the distance."""

    acts_on = "scores"
    fields = ("n_heads",)

    def __init__(self, n_heads):
        super().__init__()
        self.n_heads = n_heads

    def forward(self, T, S, *, device):
        distance = torch.arange(S - T, S, device=device)[:, None] - torch.arange(S, device=device)  # (T, S)
        return -distance.abs().float().expand(1, self.n_heads, T, S)


@pytest.fixture(params=[EvenOrOdd, OneSpeed, Nearness], ids=lambda scheme: scheme.__name__)
def config(request, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setitem(SCHEMES, "new", request.param)
    return TransformerConfig(
        d_model=D, n_heads=H, n_encoder_layers=1, n_decoder_layers=2, vocab_size=V, positions="new", dropout=0.0
    )


def test_it_obeys_the_laws(config, obeys):
    model, ids = LanguageModel(config), torch.randint(V, (B, T))
    insist_on_the_laws_of_a_language_model(model, ids, "a new position scheme", obeys, vocab_size=V)


def test_order_matters(config):
    model, ids = LanguageModel(config).eval(), torch.randint(V, (B, T))
    other = torch.cat([ids[:, 1:2], ids[:, :1], ids[:, 2:]], dim=1)
    assert not torch.allclose(model(ids)[:, -1], model(other)[:, -1], atol=1e-3)


def test_it_generates(config):
    model = LanguageModel(config)
    prompts, real = pad_left([[1, 2, 3], [4]], 0)
    options = {"prompt_mask": real, "max_new_tokens": 6, "temperature": 0.0}
    cached = generate(model, prompts, **options)
    assert torch.equal(cached, generate(model, prompts, use_cache=False, **options))
    assert cached[1, 2:].tolist() == generate(model, prompts[1:, 2:], max_new_tokens=6, temperature=0.0)[0].tolist()


@pytest.mark.parametrize(("architecture", "build"), [("decoder", LanguageModel), ("encoder-decoder", Transformer)])
def test_it_is_counted(config, architecture, build):
    model, target, source = build(config), torch.randint(V, (B, T)), torch.randint(V, (B, S))
    laws.assert_counts(model, parameters=count_parameters(config, architecture).total())

    inputs = (target,) if architecture == "decoder" else (source, target)
    kept = activation_bytes(config, B, T, architecture=architecture, source_length=S)
    laws.assert_counts(Loss(model), *inputs, saved_bytes=kept, tolerance=0.02)


def test_its_weights_do_not_decay(config):
    model = LanguageModel(config)
    (decayed,) = (group["params"] for group in parameter_groups(model, 0.1) if group["weight_decay"])
    own = [p for part in model.modules() if isinstance(part, PositionScheme) for p in part.parameters()]
    assert len(own) == (SCHEMES["new"] is EvenOrOdd)
    assert not {id(p) for p in own} & {id(p) for p in decayed}


def test_it_is_exported(config):
    model, ids = LanguageModel(config).eval(), torch.randint(V, (B, T))
    exported = torch.export.export(model, (ids,)).module()
    torch.testing.assert_close(exported(ids), model(ids))
    with torch.device("meta"):
        assert LanguageModel(config)(ids.to("meta")).shape == (B, T, V)
