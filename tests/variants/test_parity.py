"""Each family against transformers: outputs, gradients and round trips, on configurations drawn by Hypothesis."""

import families
import pytest
import torch
from families import FAMILIES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from published import gradient_gap, shake, through_folder
from thorough import rounds
from transformers import LlamaConfig, LlamaForCausalLM

from course_lib import variants
from course_lib.positions import RotaryEmbedding
from course_lib.variants import from_pretrained, published_model
from coursework.pictures.registry import defined_in

EXAMPLES = rounds(12, 40)
LIMITS = {torch.float32: 1e-4, torch.float64: 1e-10}


def in_double(theirs, ours):
    """Both in float64; their norms freed of the cast to float32, and one set of float32 rotary frequencies for both."""
    theirs.double(), ours.double()
    for part in theirs.modules():
        if hasattr(part, "embed_scale"):
            part.embed_scale = torch.tensor(part.scalar_embed_scale, dtype=torch.float64)
        if type(part) in families.NORMS:
            part.forward = families.NORMS[type(part)].__get__(part)
    for part in ours.modules():
        if isinstance(part, RotaryEmbedding):
            kept = theirs.model.rotary_emb.named_buffers()
            alike = [
                buffer
                for name, buffer in kept
                if name.endswith("inv_freq")
                and "original" not in name
                and torch.allclose(part.values.double(), buffer, rtol=1e-6, atol=0)
            ]
            if not alike:  # theirs has none for a kind of layer that is not there
                continue
            frequencies = alike[0]
            part.values, part.dynamic = frequencies.float(), None
            assert torch.equal(part.values.double(), frequencies)


def compare(family, theirs, ours, inputs):
    """Largest difference of outputs, and of gradients relative to the largest gradient."""
    expected, found = family.theirs_of(theirs, *inputs), family.ours_of(ours, *inputs)
    assert found.shape == expected.shape
    direction = torch.randn_like(found)
    for model, output in ((theirs, expected), (ours, found)):
        model.zero_grad()
        output.backward(direction)
    return (found - expected).abs().max().item(), gradient_gap(theirs, ours)


def test_every_family_that_is_written_is_registered_and_has_a_sample():
    base = published_model.PublishedModel
    written = defined_in("course_lib.variants", lambda one: isinstance(one, type) and issubclass(one, base))
    del written[base.__name__]
    assert set(written) <= set(variants.__all__)
    assert set(families.SAMPLES) == set(published_model.FAMILIES.values()) == set(written.values())


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_transformers(name, parity):
    family, configs = FAMILIES[name], set()

    @given(theirs=family.draw, number=st.integers(0, 1000))
    @settings(
        deadline=None,
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    def each(theirs, number):
        torch.manual_seed(number)
        shake(theirs)
        ours = through_folder(theirs)
        assert type(ours) is family.ours
        configs.add(theirs.config.to_json_string())
        inputs = family.inputs(theirs.config)
        for dtype in LIMITS:
            if dtype == torch.float64:
                in_double(theirs, ours)
                inputs = [x.double() if x.is_floating_point() else x for x in inputs]
            gaps = compare(family, theirs, ours, inputs)
            assert max(gaps) <= LIMITS[dtype]
            parity(f"{name} from a folder", "transformers; gradients relative", gaps, dtype)

    each()
    assert len(configs) >= 0.8 * EXAMPLES


LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize("T", [5, 6, 7, 40])
@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, **LLAMA_3},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": False},
        {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 16, "attention_factor": 1.5},
    ],
    ids=lambda scaling: scaling["rope_type"],
)
def test_every_rotary_scaling(scaling, T):
    """Lengths below, at and beyond the six positions that the model was trained on."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 29, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 6}
    theirs = shake(LlamaForCausalLM(LlamaConfig(**sizes, **heads, rope_parameters={**scaling, "rope_theta": 100.0})))
    ours, ids = through_folder(theirs), torch.randint(0, 29, (2, T))
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-5)


def assert_same(found, expected, spare=()):
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert name in spare or torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("name", FAMILIES)
def test_round_trip(name, tmp_path_factory):
    """What we write, transformers opens without a complaint, to the last bit; and so do we."""
    family = FAMILIES[name]

    @given(theirs=family.draw)
    @settings(
        deadline=None,
        max_examples=rounds(5, 20),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def each(theirs):
        torch.manual_seed(0)
        shake(theirs)
        ours, folder = through_folder(theirs), tmp_path_factory.mktemp("m")
        ours.save_pretrained(folder)
        body = {"add_pooling_layer": False} if families.is_body(ours) and getattr(ours, "pooler", 1) is None else {}
        opened, report = type(theirs).from_pretrained(folder, output_loading_info=True, **body)
        assert not any(report.values()), report
        inputs = family.inputs(theirs.config)
        with torch.no_grad():
            spare = (
                () if getattr(theirs.config, "tie_word_embeddings", True) else ("cls.predictions.bias",)
            )  # theirs never uses it
            assert_same(opened.state_dict(), theirs.state_dict(), spare)
            close = {"rtol": 1e-5, "atol": 1e-6}  # the same numbers elsewhere in memory: another order of sums
            torch.testing.assert_close(family.theirs_of(opened, *inputs), family.theirs_of(theirs, *inputs), **close)
            again = from_pretrained(folder)
            assert again.config == ours.config
            assert_same(again.state_dict(), ours.state_dict())
            torch.testing.assert_close(family.ours_of(again, *inputs), family.ours_of(ours, *inputs), **close)
        for special in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
            assert getattr(opened.config, special, None) == getattr(theirs.config, special, None), special

    each()
