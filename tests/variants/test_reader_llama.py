"""The model that chapter 7's reader builds from a config agrees with `transformers`, by the chapter's own names."""

import ast

import pytest
import torch
from notebook_files import FOLDER

from coursework.exercises import registry

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "rms_norm_eps": 1e-5}


def own_name(name: str) -> str:
    """The chapter's function of this name, out of its source."""
    tree = ast.parse((FOLDER / "sources" / "07_variants.py").read_text(encoding="utf-8"))
    found: dict = {}
    for node in tree.body:
        names = [getattr(target, "id", "") for target in getattr(node, "targets", ())]
        if getattr(node, "name", "") == "own_name" or names == ["NAMES"]:
            exec(compile(ast.Module([node], []), "07_variants", "exec"), found)
    return found["own_name"](name)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_the_readers_model_gives_the_logits_of_transformers(kind, tied):
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}Config")(**SIZES, tie_word_embeddings=tied)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(made).eval()
    for parameter in theirs.parameters():  # norms, too, with weights other than one
        torch.nn.init.normal_(parameter, std=0.5)
    config = SIZES | {"model_type": kind.lower(), "tie_word_embeddings": tied, "rope_theta": 10_000.0}
    model = registry.get("build_model").reference(config).eval()
    model.load_state_dict({own_name(name): tensor for name, tensor in theirs.state_dict().items()})
    tokens = torch.randint(31, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)
    assert sum(p.numel() for p in model.parameters()) == theirs.num_parameters()


def test_the_mended_converter_gives_a_llama_the_scores_of_pairs():
    """Cohere's models turn pairs (2i, 2i + 1), Llama's (i, i + E / 2): scores and gradients agree after the move."""
    from transformers.models.cohere import modeling_cohere as pairs
    from transformers.models.llama import modeling_llama as halves

    H, G, E, D, T = 4, 2, 8, 6, 5
    torch.manual_seed(0)
    state = {f"layers.0.{kind}.weight": torch.randn(n * E, D).double() for kind, n in (("query", H), ("key", G))}
    for weight in state.values():
        weight.requires_grad_()
    moved = registry.get("mend_converter").reference(state, H, G)
    x, config = torch.randn(1, T, D).double(), transformers.LlamaConfig(hidden_size=H * E, num_attention_heads=H)

    def scores(weights: dict, room: object, name: str) -> torch.Tensor:
        q, k = ((x @ weight.T).unflatten(-1, (-1, E)).transpose(1, 2) for weight in weights.values())
        turn = getattr(room, f"{name}RotaryEmbedding")(config)(x, torch.arange(T)[None])
        q, k = room.apply_rotary_pos_emb(q, k, *turn)
        return q @ k.repeat_interleave(H // G, dim=1).mT

    theirs, ours = scores(state, pairs, "Cohere"), scores(moved, halves, "Llama")
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    grade = torch.randn_like(theirs)
    for mine, its in zip(*(torch.autograd.grad((s * grade).sum(), list(state.values()), retain_graph=True)
                           for s in (ours, theirs)), strict=True):  # fmt: skip
        torch.testing.assert_close(mine, its, atol=1e-6, rtol=1e-6)
