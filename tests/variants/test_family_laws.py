"""Every family obeys the laws, starts near the loss of a guess, and takes what the rest of the package gives it."""

import math

import families
import pytest
import torch
from recorded import recorded
from tiny_models import insist_on_the_laws_of_a_language_model, insist_on_the_laws_of_an_encoder_decoder
from torch import nn

from course_lib import testing as laws
from course_lib.decoder import shift_right
from course_lib.generation import beam_search, generate
from course_lib.rotary_scaling import DynamicNTKScaling, LinearScaling, Llama3Scaling, NTKScaling, YarnScaling
from course_lib.transformer import LanguageModel
from course_lib.variants import BERT, GPT, T5, Llama, ViT, from_pretrained, patchify

B, T, S, V, PAD = 3, 9, 6, families.SMALL["vocab_size"], 0


def large(model):
    """With weights so large that attention is far from even."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
        elif name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    return model


DECODERS = {name: families.FAMILIES[name].tiny for name in families.DECODERS}
DECODERS["Llama 3"] = lambda **changes: families.FAMILIES["Llama"].tiny(
    **{"n_kv_heads": 1, "rotary_scaling": Llama3Scaling(), **changes}
)


def decoder(name, **changes):
    return large(DECODERS[name](**changes))


def tokens(*shape):
    return torch.randint(1, V, shape)


def t5(**changes):
    return large(families.tiny_t5(**changes))


def bert(**options):
    return large(families.tiny_bert(**options))


def vit(**options):
    return large(families.tiny_vit(**options))


@pytest.mark.parametrize("name", DECODERS)
def test_decoders(name, obeys):
    insist_on_the_laws_of_a_language_model(decoder(name), tokens(B, T), name, obeys, vocab_size=V)


@pytest.mark.parametrize("name", ["T5", "T5 1.1"])
def test_t5(name, obeys):
    model = t5(**(T5.version_1_1 if name == "T5 1.1" else {}))
    source, target = tokens(B, S), tokens(B, T)
    insist_on_the_laws_of_an_encoder_decoder(model, source, target, name, obeys, vocab_size=V, prefills=[0, 1, 5, 8])


@pytest.mark.parametrize("head", ["none", "masked_lm", "classifier", "sentences"])
def test_bert(head, obeys):
    options = {"head": "none" if head == "sentences" else head, "n_classes": 3 if head == "classifier" else None}
    model, ids, name = bert(**options), tokens(B, T), f"BERT, {head}"
    for_all = head in ("none", "masked_lm")

    def run(ids, real=None):
        if head == "sentences":
            return model.embed_sentences(ids, mask=real)
        return model(ids, mask=None if real is None else real[:, None, None])

    laws.assert_padding_invariant(run, ids, per_token=for_all, module=model, vocab_size=V)
    obeys(name, "padding")
    laws.assert_finite(run if head == "sentences" else model, ids)
    obeys(name, "finite")
    laws.assert_gradients_flow(run, ids, parameters=dict(model.named_parameters()))
    obeys(name, "gradients")


def test_padding_is_hidden_by_its_id():
    model, ids = bert(), tokens(B, T)
    ids[1, 4:] = PAD
    torch.testing.assert_close(model.eval()(ids)[1, :4], model(ids[1:2, :4])[0], rtol=1e-4, atol=1e-5)
    alone = model.embed_sentences(ids[1:2, :4])
    torch.testing.assert_close(model.embed_sentences(ids)[1:2], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"n_classes": 5}])
def test_vit(options, obeys):
    model, images = vit(**options), torch.randn(B, 2, 8, 12)
    assert model(images).shape == ((B, 5) if options else (B, 7, 16))
    laws.assert_finite(model, images)
    obeys("ViT", "finite")
    laws.assert_gradients_flow(model, images)
    obeys("ViT", "gradients")


def test_patches_are_cut_row_by_row():
    images = torch.arange(2 * 3 * 4 * 6).view(2, 3, 4, 6)
    patches = patchify(images, (2, 3))
    assert patches.shape == (2, 4, 18)
    assert torch.equal(patches[1, 2].view(3, 2, 3), images[1, :, 2:4, 0:3])
    assert torch.equal(patches[0, 1].view(3, 2, 3), images[0, :, 0:2, 3:6])


def test_weights_of_attention():
    model = vit().eval()
    vectors, *weights = recorded(model, torch.randn(B, 2, 8, 12), run=model.encode)
    assert vectors.shape == (B, 7, 16)
    assert [w.shape for w in weights] == [(B, 4, 7, 7)] * 2
    torch.testing.assert_close(weights[0].sum(-1), torch.ones(B, 4, 7))


@pytest.mark.parametrize("name", [*families.DECODERS, "T5", "T5 1.1", "BERT"])
def test_first_loss_is_near_that_of_a_guess(name):
    size = {"d_model": 128, "n_heads": 4, "d_ff": 512, "vocab_size": 1000}
    ids = torch.randint(1, 1000, (8, 33))
    inputs, labels = ids[:, :-1], ids[:, 1:]
    if name == "BERT":
        model = BERT(BERT.configure(**size, n_encoder_layers=2), head="masked_lm")
        inputs, labels = ids, ids.roll(5, dims=0)  # the tokens of another example cannot be known
    elif name.startswith("T5"):
        version = T5.version_1_1 if name == "T5 1.1" else {}
        model = T5(T5.configure(**size, n_encoder_layers=2, n_decoder_layers=2, **version))
    else:
        model = families.FAMILIES[name].tiny(**size)
    logits = model(ids.flip(0), shift_right(labels, PAD)) if name.startswith("T5") else model(inputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert math.log(1000) - 0.1 < loss < math.log(1000) + 1.2


def test_attention_of_a_new_t5_is_spread_out():
    """Nothing divides the scores, so the queries must start small; else each query would see one key alone."""
    model = T5(T5.configure(d_model=256, n_heads=2, d_head=128, vocab_size=100, n_encoder_layers=1)).eval()
    _, weights = recorded(model, torch.randint(1, 100, (4, 32)), run=model.encode)
    entropy = -(weights * weights.clamp(min=1e-9).log()).sum(-1).mean().item()
    assert entropy > 0.8 * math.log(32)


@pytest.mark.parametrize("name", DECODERS)
def test_generation_takes_a_loaded_model(name, tmp_path):
    model = decoder(name).eval()
    model.save_pretrained(tmp_path)
    other, prompt = from_pretrained(tmp_path), tokens(2, 4)
    assert isinstance(other, LanguageModel)
    options = {"max_new_tokens": 6, "temperature": 0}
    assert torch.equal(generate(other, prompt, **options), generate(model, prompt, **options))
    assert beam_search(other, prompt, n_beams=2, max_new_tokens=3).tokens.shape == (2, 1, 7)


@pytest.mark.parametrize(
    "scaling",
    [None, LinearScaling(4.0), NTKScaling(4.0), DynamicNTKScaling(4.0, 32), YarnScaling(4.0, 32, fast_turns=4.0)],
)
def test_every_scaling_survives_its_published_form(scaling, tmp_path):
    """NTK scaling is published as a larger base: another config, the same function."""
    model, ids = decoder("Llama", rotary_scaling=scaling).eval(), tokens(2, 60)
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(from_pretrained(tmp_path)(ids), model(ids), rtol=1e-4, atol=1e-5)


def test_dynamic_scaling_starts_beyond_the_trained_length():
    plain = decoder("Llama").eval()
    scaled = decoder("Llama", rotary_scaling=DynamicNTKScaling(4.0, 32)).eval()
    scaled.load_state_dict(plain.state_dict())
    ids = tokens(2, 33)
    assert torch.equal(plain(ids[:, :32]), scaled(ids[:, :32]))
    assert not torch.allclose(plain(ids), scaled(ids), atol=1e-4)
    assert torch.equal(plain(ids[:, :32]), scaled(ids[:, :32]))  # and the long text leaves no trace


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vit()(torch.randn(1, 3, 8, 12)), r"images: expected \(B, 2, 8, 12\), got \(1, 3, 8, 12\)"),
        (lambda: vit().pool(torch.randn(1, 7, 16)), "pooler: this model has none"),
        (lambda: vit(n_classes=0), "n_classes: expected an integer of at least 1, got 0"),
        (lambda: ViT(ViT.configure(), image_size=32), r"config: expected max_length=5, .*got 197"),
        (lambda: ViT(ViT.configure(), image_size=225), r"patch_size: expected a divisor of image_size=\(225, 225\)"),
        (lambda: ViT.configure(patch_size=0), "patch_size: expected an integer of at least 1"),
        (lambda: patchify(torch.ones(1, 3, 7, 8), (4, 4)), r"images: .*multiple of patches of \(4, 4\)"),
        (lambda: Llama.configure(d_model=10, n_heads=4), "d_model: expected a multiple of n_heads=4"),
        (lambda: GPT.configure(n_token_types=-1), "n_token_types: expected an integer of at least 0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
