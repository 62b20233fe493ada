"""Exercise: from a published config to the model that it describes."""

import torch
from torch import nn
from torch.func import functional_call

from coursework.exercises.bank.gpt import GPT
from coursework.exercises.given_llama import LlamaLayer, RMSNorm
from coursework.exercises.spec import Alternative, Case, Exercise, Property, maker, misconceptions
from coursework.exercises.tensors import integers, normal


def build(config):
    """config.json of a Llama or Qwen3 as a dict -> GPT with new weights"""
    D, H = config["hidden_size"], config["num_attention_heads"]
    eps = config["rms_norm_eps"]
    layers = [
        LlamaLayer(
            D,
            H,
            n_kv_heads=config.get("num_key_value_heads", H),
            d_head=config.get("head_dim", D // H),
            d_ff=config["intermediate_size"],
            eps=eps,
            base=config["rope_theta"],
            bias=config.get("attention_bias", False),
            qk_norm=config["model_type"] == "qwen3",
        )
        for _ in range(config["num_hidden_layers"])
    ]
    model = GPT(config["vocab_size"], D, layers, dropout=0.0)
    model.norm = RMSNorm(D, eps)
    model.to_logits = nn.Linear(D, config["vocab_size"], bias=False)
    if config.get("tie_word_embeddings", False):
        model.to_logits.weight = model.embedding.weight
    return model


def _run(build, config, state, tokens):
    """The first weight that is not as it should be, or the logits; whether the head is tied, and the dropout."""
    model = build(dict(config)).eval()
    own = {name: tuple(one.shape) for name, one in model.state_dict().items()}
    expected = {name: tuple(one.shape) for name, one in state.items()}
    wrong = next((name for name in [*expected, *own] if own.get(name) != expected.get(name)), None)
    tied = model.to_logits.weight is model.embedding.weight
    if wrong is not None:
        return f"{wrong}: {own.get(wrong, 'missing')}", tied
    logits = functional_call(model, dict(state), (tokens,), tie_weights=False, strict=True)
    return logits, tied, model.dropout.p


def _model(
    kv="config", head="config", ff="config", eps="config", base="config", bias="config", qk="config", tie="config",
    norm="rms", out="plain", layers="own", dropout=0.0, last_eps="config",
):  # fmt: skip
    """A function whose settings are the misconceptions."""

    def built(config):
        D, H, V = config["hidden_size"], config["num_attention_heads"], config["vocab_size"]
        small = {"config": config["rms_norm_eps"], "default": 1e-6}

        def one_layer():
            n_kv_heads = config.get("num_key_value_heads", H) if kv == "config" else H
            d_head = config.get("head_dim", D // H) if head == "config" else D // H
            said = {"config": config.get("attention_bias", False), "never": False, "always": True}
            qwen = {"config": config["model_type"] == "qwen3", "never": False, "always": True}
            return LlamaLayer(
                D, H, n_kv_heads=n_kv_heads, d_head=d_head,
                d_ff={"config": config["intermediate_size"], "four": 4 * D}[ff], eps=small[eps],
                base=config["rope_theta"] if base == "config" else 10_000.0, bias=said[bias], qk_norm=qwen[qk],
            )  # fmt: skip

        n = config["num_hidden_layers"]
        many = [one_layer()] * n if layers == "shared" else [one_layer() for _ in range(n + (layers == "more"))]
        model = GPT(V, D, many, dropout=dropout)
        if norm == "rms":
            model.norm = RMSNorm(D, small["default" if eps == "default" else last_eps])
        if out == "plain":
            model.to_logits = nn.Linear(D, V, bias=False)
        if {"config": config.get("tie_word_embeddings", False), "never": False, "always": True}[tie]:
            model.to_logits.weight = model.embedding.weight
        return model

    return built


def _with_names(config):
    D, H, V = config["hidden_size"], config["num_attention_heads"], config["vocab_size"]
    same = {"d_ff": config["intermediate_size"], "eps": config["rms_norm_eps"], "base": config["rope_theta"]}
    same["n_kv_heads"] = config.get("num_key_value_heads", H)
    same["d_head"] = config.get("head_dim", D // H)
    same["bias"] = bool(config.get("attention_bias"))
    same["qk_norm"] = {"llama": False, "qwen3": True}[config["model_type"]]
    model = GPT(V, D, [LlamaLayer(D, H, **same) for _ in range(config["num_hidden_layers"])], 0.0)
    model.norm, model.to_logits = RMSNorm(D, same["eps"]), nn.Linear(D, V, bias=False)
    if config.get("tie_word_embeddings"):
        model.to_logits.weight = model.embedding.weight
    return model


def _with_defaults_first(config):
    H = config["num_attention_heads"]
    full = {"num_key_value_heads": H, "head_dim": config["hidden_size"] // H}
    full |= {"attention_bias": False, "tie_word_embeddings": False} | config
    layers = nn.ModuleList()
    while len(layers) < full["num_hidden_layers"]:
        layers.append(
            LlamaLayer(
                full["hidden_size"],
                H,
                n_kv_heads=full["num_key_value_heads"],
                d_head=full["head_dim"],
                d_ff=full["intermediate_size"],
                eps=full["rms_norm_eps"],
                base=full["rope_theta"],
                bias=full["attention_bias"],
                qk_norm=full["model_type"] != "llama",
            )
        )
    model = GPT(full["vocab_size"], full["hidden_size"], layers, dropout=0.0)
    model.norm = RMSNorm(full["hidden_size"], eps=full["rms_norm_eps"])
    model.to_logits = nn.Linear(full["hidden_size"], full["vocab_size"], bias=False)
    if full["tie_word_embeddings"]:
        model.to_logits.weight = model.embedding.weight
    return model


def _tied_the_other_way(config):
    model = _with_names(config | {"tie_word_embeddings": False})
    if config.get("tie_word_embeddings", False):
        model.embedding.weight = model.to_logits.weight
    return model


_BASE = {
    "model_type": "llama", "vocab_size": 7, "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1,
    "num_attention_heads": 2, "rms_norm_eps": 0.25, "rope_theta": 50.0,
}  # fmt: skip


def _made(config, B, T, make, ids):
    with torch.device("meta"):
        shapes = {name: tuple(one.shape) for name, one in build(config).state_dict().items()}
    state = {name: make(*shape) for name, shape in shapes.items()}
    if config.get("tie_word_embeddings", False):
        state["to_logits.weight"] = state["embedding.weight"]
    return {"config": config, "state": state, "tokens": ids(B, T)}


@maker
def _case(B, T, seed, **entries):
    count = iter(range(seed + 1, seed + 90))
    return _made(
        _BASE | entries,
        B,
        T,
        lambda *shape: normal(*shape, seed=next(count), scale=0.7),
        lambda *shape: integers(*shape, low=0, high=6, seed=seed),
    )


def _sample(draw):
    H = draw.choice((2, 4))
    config = _BASE | {"model_type": draw.choice(("llama", "qwen3")), "num_attention_heads": H, "hidden_size": 2 * H}
    config |= {"num_hidden_layers": draw.integer(1, 3), "intermediate_size": draw.integer(1, 5)}
    config |= {"num_key_value_heads": draw.choice((1, 2))} if draw.boolean() else {}
    config |= {"head_dim": 4} if draw.boolean() else {}
    config |= {"tie_word_embeddings": draw.boolean(), "attention_bias": draw.boolean()}
    return _made(
        config,
        draw.integer(1, 3),
        draw.integer(2, 5),
        lambda *shape: draw.normal(*shape, scale=0.7),
        lambda *shape: draw.integers(*shape, low=0, high=6),
    )


def _one_table(call) -> str | None:
    found = call(**_case(1, 3, seed=801, tie_word_embeddings=True)())
    return None if found[1] else "With `tie_word_embeddings` true, `to_logits.weight` is not `embedding.weight`."


EXERCISE = Exercise(
    title="From a config to a model",
    what="""Write `build(config)`, for the config of a Llama or a Qwen3, a dict: it returns a `GPT` without dropout,
with `num_hidden_layers` separate `LlamaLayer`s (`help(LlamaLayer)` shows what one takes). Use
`hidden_size`, `num_attention_heads`, `intermediate_size`, `vocab_size`, `rms_norm_eps` for all norms, and `rope_theta`.
Some entries may be absent: `num_key_value_heads` is then the number of heads, `head_dim` is D / heads,
`attention_bias` and `tie_word_embeddings` are false. `model_type` is "llama" or "qwen3"; the latter has norms on
queries and keys.

A fresh `GPT` ends in a LayerNorm, `model.norm`, and in a map with a bias, `model.to_logits`. Put an `RMSNorm` and a map
without a bias in their places. A tied model's `to_logits` shares its weight with `embedding`.""",
    why="Many programs that run published models start with this step.",
    difficulty=4,
    minutes=30,
    reference=build,
    parts={"GPT": GPT, "LlamaLayer": LlamaLayer, "RMSNorm": RMSNorm},
    run=_run,
    model=_model,
    misconceptions=misconceptions("""
as-many-heads (kv="all"): makes as many heads of keys and values as of queries
    Which entry says how many heads of keys and values there are?
width-over-heads (head="quotient"): computes the width of a head from `hidden_size`, whatever `head_dim` says
    How wide is a head of Qwen3-0.6B?
four-times-the-width (ff="four"): makes the feed-forward four times as wide as the stream
    Which entry is the inner width of the feed-forward?
eps-by-default (eps="default"): leaves the ε of the norms at its default
    Which entry is the ε of the norms?
last-eps-by-default (last_eps="default"): leaves the ε of the last norm at its default
    How many norms has the model outside of its layers?
base-of-the-paper (base="paper"): turns by a base of 10,000, whatever `rope_theta` says
    Which entry is the base of the rotary positions?
never-a-bias (bias="never"): makes no biases, whatever `attention_bias` says
    Which entry speaks of biases?
always-a-bias (bias="always"): always makes biases in the attention
    What holds if `attention_bias` is absent?
no-norm-of-queries (qk="never"): never norms queries and keys
    What does the name of the family say?
norm-of-queries-always (qk="always"): norms queries and keys in every family
    What does the name of the family say?
never-tied (tie="never"): never ties the head to the token table
    What does `tie_word_embeddings` ask for?
always-tied (tie="always"): always ties the head to the token table
    What holds if `tie_word_embeddings` is absent?
layer-norm-at-the-end (norm="layer"): keeps the LayerNorm at the end
    Which parts of a fresh GPT do not fit a Llama?
bias-in-the-head (out="bias"): keeps the bias of the last map
    Which parts of a fresh GPT do not fit a Llama?
one-layer-many-times (layers="shared"): uses one layer many times
    If you change a weight of the first layer, does that of the second change with it?
a-layer-too-many (layers="more"): makes one layer too many
    How many layers does your model have for `num_hidden_layers` = 1?
dropout-left-on (dropout=0.1): leaves dropout at the default of `GPT`
    What is the default of `dropout` in `GPT`?
"""),
    cases=[
        Case("a Llama of one layer", _case(1, 3, seed=1)),
        Case(
            "a Llama of two layers with grouped heads",
            _case(2, 3, seed=101, num_hidden_layers=2, num_key_value_heads=1),
        ),
        Case("a Qwen3 of one layer", _case(1, 4, seed=201, model_type="qwen3")),
        Case("heads that are wider than D / heads", _case(1, 3, seed=301, head_dim=6)),
        Case("with biases in the attention", _case(1, 3, seed=401, attention_bias=True)),
        Case("a tied Qwen3", _case(2, 5, seed=501, model_type="qwen3", tie_word_embeddings=True, num_hidden_layers=2)),
        Case(
            "everything said, nothing on",
            _case(2, 3, seed=601, attention_bias=False, tie_word_embeddings=False, num_key_value_heads=2, head_dim=2),
        ),
    ],
    properties=[Property("A tied model has one table, which reads and writes.", _one_table)],
    alternatives=[
        Alternative("with the arguments in a dict", _with_names),
        Alternative("with the defaults first", _with_defaults_first),
        Alternative("tied the other way round", _tied_the_other_way),
    ],
    hints=(
        "Write down the nine arguments of `LlamaLayer`. From which entry does each of them come?",
        "`config.get(name, default)` reads an entry that may be absent. Two parts of the fresh `GPT` are replaced.",
        """D, H = config["hidden_size"], config["num_attention_heads"]
rest = {"n_kv_heads": ..., "d_head": ...}  # and five more
layers = [LlamaLayer(D, H, **rest) for _ in range(...)]
model = GPT(config["vocab_size"], D, layers, dropout=0.0)
model.norm = RMSNorm(D, config["rms_norm_eps"])
model.to_logits = nn.Linear(D, config["vocab_size"], bias=False)
if config.get("tie_word_embeddings", False):
    ____""",
    ),
    sample=_sample,
    tolerance=(1e-3, 1e-4),
)
