"""The law of devices: it notices what an accelerator would refuse, and the whole library obeys it."""

import copy
import importlib
import inspect
import pkgutil
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_attention import KINDS, H
from torch import nn

import course_lib
from course_lib import attention, data, decoder, encoder, layers, masks, norms, positions, testing, training
from course_lib.cache import KVCache
from course_lib.generation import beam_search, generate, pad_left, speculative_generate
from course_lib.multi_head import MultiHeadAttention
from course_lib.rotary_scaling import DynamicNTKScaling, Llama3Scaling, YarnScaling
from course_lib.scaling import count_parameters
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from course_lib.variants import EncoderModel, from_pretrained, save_pretrained
from course_lib.variants.experts import MixtureOfExperts, balance_loss
from course_lib.variants.int8 import quantize_
from course_lib.variants.latent import use_latent_attention
from course_lib.variants.lora import add_lora, merge_lora
from course_lib.variants.packed import pack_
from coursework.assembly.pretended_device import REAL, another_device, assert_follows_device
from coursework.export import FORMATS, export

sys.path += [str(Path(__file__).with_name(room)) for room in ("variants", "export")]  # whose lists these tests go over
import exported
import families
from test_efficient import CAUSAL, MAKERS

V, D, B, T = 23, 16, 2, 7
SIZES = {"d_model": D, "n_heads": 2, "n_encoder_layers": 2, "n_decoder_layers": 2, "vocab_size": V, "max_length": 40}


def ids(*shape):
    return torch.randint(3, V, shape or (B, T))


def vectors(*shape):
    return torch.randn(*(shape or (B, T, D)), requires_grad=True)


def config(**changes):
    return TransformerConfig(**{**SIZES, **changes})


# -- the law itself ----------------------------------------------------------------------------------------------------


class Forgetful(nn.Module):
    """Adds positions; `made` says where and how."""

    def __init__(self, made):
        super().__init__()
        self.table, self.made = nn.Embedding(9, 4), made

    def forward(self, tokens):
        return self.made(self, tokens)


WRONG = {
    "positions on the CPU": lambda m, x: m.table(x) + torch.arange(x.size(1))[:, None],
    "a table that is looked up with them": lambda m, x: m.table(x) + m.table(torch.arange(x.size(1))),
    "a mask on the CPU": lambda m, x: m.table(x).masked_fill(torch.ones(x.size(1), 1, dtype=torch.bool), 0),
    "joined": lambda m, x: torch.cat([m.table(x), torch.zeros(len(x), 1, 4)], dim=1),
    "written into a tensor of the CPU": lambda m, x: torch.zeros(2, 3, 4).add_(m.table(x)),
    "a sum of the CPU": lambda m, x: torch.zeros(()).add_(m.table(x).sum()),
    "an output on the CPU": lambda m, x: m.table(x).cpu(),
    "autocast for the CPU": lambda m, x: _under_autocast(lambda: m.table(x) * 2),
    "through NumPy": lambda m, x: torch.from_numpy(m.table(x).detach().numpy()),
    "drawn by a generator of the CPU": lambda m, x: m.table(x)
    + torch.randn(x.size(1), 4, device=x.device, generator=torch.Generator()),
}  # fmt: skip
RIGHT = {
    "positions where the tokens lie": lambda m, x: m.table(x) + torch.arange(x.size(1), device=x.device)[:, None],
    "a number of the CPU": lambda m, x: m.table(x) * torch.tensor(2.0),
    "moved": lambda m, x: m.table(x) + torch.zeros(3, 4).to(x.device),
    "copied into a tensor there": lambda m, x: m.table(x).new_zeros(2, 3).copy_(torch.ones(2, 3)) + x,
    "a way that depends on the data": lambda m, x: m.table(x) if x.sum().item() > 2 else m.table(x + 1),
    "like another": lambda m, x: torch.zeros_like(m.table(x)) + m.table(x).new_ones(4),
    "a look at the numbers": lambda m, x: m.table(x) * len(x.tolist()),
}


def _under_autocast(work):
    with torch.autocast("cpu", torch.bfloat16):
        return work()


@pytest.mark.skipif(bool(REAL), reason="on a device that there is, torch itself notices")
@pytest.mark.parametrize("name", WRONG)
def test_the_law_notices(name):
    with pytest.raises(AssertionError) as caught:
        assert_follows_device(Forgetful(WRONG[name]), torch.tensor([[1, 2, 3], [4, 5, 6]]))
    print(f"{name}: {caught.value}")
    assert "device" in str(caught.value) or "CPU" in str(caught.value)


@pytest.mark.parametrize("name", RIGHT)
def test_the_law_lets_pass(name):
    assert_follows_device(Forgetful(RIGHT[name]), torch.tensor([[1, 2, 3], [4, 5, 6]]))


def test_the_numbers_are_those_of_the_cpu_and_the_module_comes_back_as_it_was():
    model, tokens = LanguageModel(config(tie_embeddings=True)).eval(), ids()
    before, weights = model(tokens), copy.deepcopy(model.state_dict())
    with another_device(model) as device:
        there = model(tokens.to(device))
        assert there.device == device == model.head.weight.device
        assert model.head.weight is model.embedding.tokens.weight
        found = there.detach().cpu()
    torch.testing.assert_close(found, before)
    assert model.head.weight is model.embedding.tokens.weight
    assert all(type(p) is nn.Parameter and p.device.type == "cpu" and p.grad is None for p in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[name])
    assert torch.zeros(2, device="meta").is_meta


# -- the library obeys it ----------------------------------------------------------------------------------------------


def _kind(name):
    T, S, options, _ = KINDS[name]
    biased = {key: torch.randn(1, H, T, S) for key, value in options.items() if isinstance(value, str)}
    given = {**{key: value for key, value in options.items() if not isinstance(value, str)}, **biased}

    def run(query, key, value, tensors, backend):
        return attention.scaled_dot_product_attention(query, key, value, backend=backend, **tensors)

    for backend in ("auto", "explicit"):
        query, key, value = (torch.randn(2, H, n, 4, requires_grad=True) for n in (T, S, S))
        assert_follows_device(run, query, key, value, given, backend)


BLOCKS = {
    "SelfAttention": lambda: assert_follows_device(attention.SelfAttention(D), vectors()),
    "CausalSelfAttention": lambda: assert_follows_device(attention.CausalSelfAttention(D), vectors()),
    "CrossAttention": lambda: assert_follows_device(attention.CrossAttention(D), vectors(), vectors(B, 5, D)),
    "QKVProjection": lambda: assert_follows_device(attention.QKVProjection(D), vectors()),
    "MultiHeadAttention": lambda: assert_follows_device(
        lambda x, real: MULTI(x, causal=True, mask=real), vectors(), masks.length_mask([T, 3], T), module=MULTI
    ),
    "FeedForward": lambda: assert_follows_device(layers.FeedForward(D, gated=True), vectors()),
    "Residual": lambda: assert_follows_device(
        lambda x: RESIDUAL.add(x, RESIDUAL.read(x)), vectors(), module=RESIDUAL
    ),
    "TokenEmbedding": lambda: assert_follows_device(layers.TokenEmbedding(V, D), ids()),
    "EncoderLayer": lambda: assert_follows_device(encoder.EncoderLayer(config()), vectors()),
    "TransformerEncoder": lambda: assert_follows_device(encoder.TransformerEncoder(config()), vectors()),
    "DecoderLayer": lambda: assert_follows_device(decoder.DecoderLayer(config()), vectors(), vectors(B, 5, D)),
    "TransformerDecoder": lambda: assert_follows_device(
        decoder.TransformerDecoder(config()), vectors(), vectors(B, 5, D)
    ),
    "MixtureOfExperts": lambda: assert_follows_device(
        lambda x: (EXPERTS(x), balance_loss(EXPERTS)), vectors(), module=EXPERTS
    ),
    "shift_right": lambda: assert_follows_device(lambda x: decoder.shift_right(x, 1), ids()),
    "masks": lambda: assert_follows_device(_masks, ids()),
}  # fmt: skip
MULTI = MultiHeadAttention(D, 4, n_kv_heads=2, dropout=0.1, window=3)
RESIDUAL = layers.Residual(nn.LayerNorm(D), place="pre", dropout=0.1)
EXPERTS = MixtureOfExperts(D, n_experts=4, capacity=0.7)
# Bases of others, or tried with them below.
ELSEWHERE = {"Attention", "Stack", "Embedding", "LanguageModel", "Transformer", "PositionScheme"}


def _masks(tokens):
    T, place = tokens.size(1), {"device": tokens.device}
    document = tokens // 8
    return [
        masks.padding_mask(tokens, 3),
        masks.combine_masks(masks.causal_mask(T, **place), masks.padding_mask(tokens, 3)),
        masks.sliding_window_mask(T, window=2, **place),
        masks.prefix_mask(T, prefix=2, **place),
        masks.length_mask([T, 2], T, **place),
        masks.length_mask(tokens[:, 0] % T, T),
        masks.document_mask(document),
        positions.document_positions(document),
    ]


@pytest.mark.parametrize("name", KINDS)
def test_attention(name):
    _kind(name)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name, obeys):
    BLOCKS[name]()
    obeys(name, "device")


def test_no_block_is_forgotten():
    rooms = (attention, layers, encoder, decoder, norms, importlib.import_module("course_lib.multi_head"))
    public = {
        name
        for room in rooms
        for name, one in inspect.getmembers(room, inspect.isclass)
        if one.__module__ == room.__name__ and issubclass(one, nn.Module) and not name.startswith("_")
    }
    assert public - BLOCKS.keys() - ELSEWHERE - {type(one).__name__ for one in NORMS.values()} == set()


NORMS = {kind: norms.build_norm(kind, D, eps=1e-5, bias=True) for kind in norms.NormKind.__args__}


@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind):
    assert_follows_device(NORMS[kind], vectors())


@pytest.mark.parametrize("scheme", positions.SCHEMES)
@pytest.mark.parametrize("built", [LanguageModel, Transformer, EncoderModel])
def test_position_schemes_in_models_that_train_and_write(scheme, built, obeys):
    model = built(config(positions=scheme, pad_id=0, window=None if built is EncoderModel else 4))
    if built is Transformer:
        assert_follows_device(model, ids(B, 5), ids())
    else:
        assert_follows_device(model, ids())
    if built is not EncoderModel:
        writes(model)
    obeys(f"{built.__name__}, {scheme}", "device")


@pytest.mark.parametrize(
    "scaling", [DynamicNTKScaling(2.0, original_length=4), Llama3Scaling(), YarnScaling(4.0, original_length=16)]
)
def test_rotary_scaling(scaling):
    writes(LanguageModel(config(positions="rotary", rotary_scaling=scaling)))


def writes(model, **changes):
    """Every way to generate, with prompts of different lengths."""
    others = copy.deepcopy(model).eval()
    with another_device(model.eval(), others) as device:
        tokens, real = pad_left([[3, 4, 5], [6], [7, 8]], 0, device=device)
        source = {"source": ids(3, 5).to(device)} if isinstance(model, Transformer) else {}
        one = {name: value[:1] for name, value in source.items()}
        options = {"max_new_tokens": 5, "prompt_mask": real, "stop": 22, "pad_id": 0, **source, **changes}
        found = [
            generate(model, tokens, temperature=0, **options),
            generate(model, tokens, temperature=0, use_cache=False, **options),
            generate(model, tokens, top_k=5, top_p=0.9, min_p=0.01, repetition_penalty=1.2, **options),
            *beam_search(model, tokens, n_beams=3, n_best=2, **options),
            speculative_generate(model, others, tokens[:1], max_new_tokens=6, n_guesses=2, stop=22, **one).tokens,
        ]
        assert all(tensor.device == device for tensor in found)


@pytest.mark.parametrize("name", families.FAMILIES)
def test_families(name, obeys):
    family = families.FAMILIES[name]
    model = family.tiny()
    inputs = {"T5": (ids(B, 5), ids()), "ViT": (torch.randn(B, 2, 8, 12),)}.get(name, (ids(),))
    assert_follows_device(model, *inputs)
    if isinstance(model, LanguageModel | Transformer):
        writes(model)
    obeys(name, "device")


@pytest.mark.parametrize("head", ["none", "masked_lm", "classifier"])
def test_encoders_with_heads(head):
    options = {"n_classes": 3} if head == "classifier" else {}
    model = EncoderModel(config(pad_id=0), head=head, **options)
    assert_follows_device(lambda tokens: model(tokens, mask=(tokens != 4)[:, None, None]), ids(), module=model)
    if head == "none":
        assert_follows_device(lambda tokens: model.embed_sentences(tokens), ids(), module=model)


@pytest.mark.parametrize("name", MAKERS)
def test_efficient_attention(name):
    inner = MAKERS[name]()
    query, key, value = (torch.randn(B, 2, 53, 8, requires_grad=True) for _ in range(3))
    for causal in (False, True)[: 1 + (name in CAUSAL)]:
        assert_follows_device(lambda q, k, v: inner(q, k, v, causal=causal), query, key, value, module=inner)  # noqa: B023
        assert inner(query, key, value, causal=causal).is_cpu  # what it kept of the other device does no harm


def test_latent_attention():
    model = LanguageModel(config(positions="rotary"))
    use_latent_attention(model.decoder, d_latent=8, d_rotary=4)
    assert_follows_device(model, ids())
    writes(model)


def test_changes_made_there():
    """What alters a model is called on one that has been moved."""
    for change in (
        lambda model: add_lora(model, 2),
        lambda model: (add_lora(model, 2), merge_lora(model)),
        lambda model: use_latent_attention(model.decoder, d_latent=8, d_rotary=4),
    ):
        model = LanguageModel(config(positions="rotary"))
        with another_device(model) as device:
            change(model)
            logits = model(ids().to(device))
            if logits.requires_grad:  # not once updates are merged
                logits.sum().backward()
    for change in (
        pack_,
        quantize_,
        lambda model: quantize_(model, round_inputs=True),
        lambda model: quantize_(model, bits=4, group=8),
    ):
        model = LanguageModel(config(positions="rotary")).eval()
        with another_device(model) as device:
            change(model)
            generate(model, ids().to(device), max_new_tokens=3, temperature=0)


def test_the_cache():
    for options in ({}, {"capacity": 9}, {"window": 3}):
        with another_device() as device:
            cache = KVCache(**options)
            for n in (4, 1, 2):
                keys, _ = cache.append(*(torch.randn(B, 2, n, 4).to(device) for _ in range(2)))
            cache.reorder(torch.tensor([1, 1]).to(device))
            assert keys.device == cache.keys.device == device


# -- losses and training -----------------------------------------------------------------------------------------------

TASKS = {
    "LanguageModelling": (LanguageModel, training.tasks.LanguageModelling(pad_id=0), lambda: {"tokens": ids()}),
    "LanguageModelling, in pieces": (
        LanguageModel,
        training.tasks.LanguageModelling(rows=3),
        lambda: {"tokens": ids()},
    ),
    "LanguageModelling, packed": (
        LanguageModel,
        training.tasks.LanguageModelling(),
        lambda: {"tokens": ids(), "documents": torch.tensor([[1, 1, 1, 2, 2, 2, 0]] * B)},
    ),
    "Translation": (Transformer, training.tasks.Translation(pad_id=0), lambda: {"source": ids(B, 5), "target": ids()}),
    "Translation, in pieces": (
        Transformer,
        training.tasks.Translation(pad_id=0, rows=3),
        lambda: {"source": ids(B, 5), "target": ids()},
    ),
    "Classification": (
        lambda c: EncoderModel(c, head="classifier", n_classes=3),
        training.tasks.Classification(smoothing=0.1),
        lambda: {"tokens": ids(), "labels": torch.tensor([0, 2])},
    ),
    "MaskedLanguageModelling": (
        lambda c: EncoderModel(c, head="masked_lm"),
        training.tasks.MaskedLanguageModelling(mask_id=1, vocab_size=V, pad_id=0, special_ids=(2,)),
        lambda: {"tokens": ids(B, 30)},
    ),
}


def test_no_task_is_forgotten():
    assert {type(task).__name__ for _, task, _ in TASKS.values()} == set(training.tasks.__all__)


@pytest.mark.parametrize(("optimizer", "precision"), [("adamw", "float32"), ("muon", "bfloat16")])
@pytest.mark.parametrize("name", TASKS)
def test_training(name, optimizer, precision, obeys):
    build, task, batch = TASKS[name]
    model = build(config())
    before = copy.deepcopy(model.state_dict())
    with another_device(model) as device:
        told = training.TrainingConfig(optimizer=optimizer, precision=precision)
        optimizers = training.build_optimizers(model, told)
        for _ in range(2):  # `update` moves the batches
            training.update(model, task.loss, [batch(), batch()], optimizers, clip=0.1, precision=precision)
        training.evaluate(model, task.loss, [batch()], precision=precision)
        assert all(p.grad is None or p.grad.device == device for p in model.parameters())
    assert any(not torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    obeys(name, "device")


def test_a_run_trains_where_it_is_told(tmp_path):
    model, batches = LanguageModel(config()), [{"tokens": ids()} for _ in range(3)]
    told = training.TrainingConfig(steps=2, evaluate_every=1)
    with another_device() as device:
        processes = training.Processes(device=device)
        run = training.Run(
            model,
            training.tasks.LanguageModelling(),
            batches,
            told,
            evaluation=batches,
            processes=processes,
            folder=tmp_path,
        )
        run.train()
        assert next(model.parameters()).device == device
        model.cpu()
    assert len(run.history) == 2


@pytest.mark.parametrize("loss", [F.cross_entropy, training.cross_entropy, training.label_smoothed_cross_entropy])
def test_losses(loss):
    assert_follows_device(loss, torch.randn(6, V, requires_grad=True), ids(6))


def test_optimizers_and_averages_of_one_tensor():
    assert_follows_device(training.newton_schulz, torch.randn(4, 6, requires_grad=True))


# -- in and out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", FORMATS)
def test_models_are_exported_from_there(to, tmp_path, monkeypatch):
    pytest.importorskip({"gguf": "xllamacpp", "ctranslate2": "ctranslate2"}.get(to, "torch"))  # not beside every card
    graphs = []
    monkeypatch.setattr(torch.onnx, "export", lambda half, *_, **__: graphs.append(half))  # it takes long
    for family in ("GPT", "Llama"):
        model = exported.shaken(exported.FAMILIES[family])
        expected = exported.ours(model)
        with another_device(model):
            path = export(model, to=to, out=tmp_path / family)
        if to in exported.DECODE:
            assert exported.DECODE[to](path) == expected
    assert all(parameter.is_cpu for half in graphs for parameter in half.parameters())


def test_models_are_saved_from_there(tmp_path):
    model = LanguageModel(config())
    with another_device(model):
        save_pretrained(model, tmp_path)
    for key, tensor in from_pretrained(tmp_path).state_dict().items():
        assert torch.equal(tensor, model.state_dict()[key])


def test_numbers_are_counted_there():
    model = LanguageModel(config())
    with another_device(model):
        count_parameters(model.config)


def test_every_module_of_the_library_was_met():
    """A new room is looked at: it has its line above, or says here why it needs none."""
    rooms = {each.name for each in pkgutil.iter_modules(course_lib.__path__)}
    tried = {"attention", "cache", "decoder", "encoder", "generation", "layers", "masks", "multi_head", "norms"}
    tried |= {"positions", "rotary_scaling", "scaling", "testing", "training", "transformer", "variants"}
    without_tensors = {"checks", "config", "data", "files", "forwarding", "reading"}
    assert rooms == tried | without_tensors
    assert testing
    assert data
