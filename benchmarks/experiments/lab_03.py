"""The lab on long context: reading further than one was trained, sinks, and layers with a window."""

import functools
import inspect
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.attention import Options, record_weights
from course_lib.config import TransformerConfig
from course_lib.masks import causal_mask
from course_lib.rotary_scaling import LinearScaling, NTKScaling, YarnScaling
from course_lib.transformer import LanguageModel
from course_lib.variants.efficient import EfficientAttention
from coursework.corpora import notes
from coursework.corpora.notes import SYMBOLS, Asked, Split, echoes_in_text, notes_in_text
from coursework.records import Claim
from experiments import experiment

TRAINED, LONG = 64, 256  # places
SCALINGS = {
    "none": None,
    "linear": LinearScaling(4.0),
    "ntk": NTKScaling(4.0),
    "ntk twice": NTKScaling(8.0),
    "yarn": YarnScaling(4.0, TRAINED, fast_turns=4.0),
}


def small_model(seed: int, **switches) -> LanguageModel:
    """Four rotary heads of width 16 in each layer."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": len(SYMBOLS),
        "d_model": 64,
        "n_heads": 4,
        "d_ff": 128,
        "n_encoder_layers": 0,
        "dropout": 0.0,
    }
    return LanguageModel(
        TransformerConfig(**{**sizes, "n_decoder_layers": 2, "norm_place": "pre", "positions": "rotary", **switches})
    )


def losses(model: LanguageModel, drawn: Asked, mask: Tensor | None = None) -> Tensor:
    """The loss at each place, (N, T)."""
    return F.cross_entropy(model(drawn.tokens, mask=mask).mT, drawn.targets, reduction="none")


def fit(model: LanguageModel, draw, steps: int, rate: float, seed: int) -> LanguageModel:
    """Train on fresh batches, text and answers with equal weight; the rate rises over 20 steps and then falls."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20) * (1 - 0.9 * s / steps))
    for _ in range(steps):
        drawn = draw(generator)
        lost = losses(model.train(), drawn)
        loss = lost[~drawn.asked].mean() + lost[drawn.asked].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def short_pieces(generator: torch.Generator) -> Asked:
    """A batch of the trained length."""
    return notes_in_text(16, TRAINED, questions=4, generator=generator)


def long_pieces(generator: torch.Generator) -> Asked:
    """As many tokens, in pieces four times as long."""
    return notes_in_text(4, LONG, questions=12, generator=generator)


@functools.cache
def trained(seed: int, long: bool) -> LanguageModel:
    """The model before anything is changed, at 64 places or, to compare, at 256 from the start."""
    return fit(small_model(seed), long_pieces if long else short_pieces, 400, 4e-3, seed)


def changed(model: LanguageModel, scaling: str, window: int | None = None) -> LanguageModel:
    """The same weights with other clocks, or with a window."""
    new = LanguageModel(replace(model.config, rotary_scaling=SCALINGS[scaling], window=window))
    new.load_state_dict(model.state_dict())
    return new.eval()


@torch.no_grad()
def read_long(model: LanguageModel) -> dict[str, float]:
    """Loss on the text in each stretch of 32 places, and right answers by how far back the note stands."""
    drawn = notes_in_text(160, LONG, questions=12, split="test", generator=torch.Generator().manual_seed(9))
    logits = model(drawn.tokens)
    lost = F.cross_entropy(logits.mT, drawn.targets, reduction="none")
    right, place = (logits.argmax(-1) == drawn.targets).float(), torch.arange(LONG).expand_as(lost)
    found = {}
    for low in range(0, LONG, 32):
        found[f"text from {low}"] = lost[~drawn.asked & (place >= low) & (place < low + 32)].mean().item()
    for low, high in ((1, 32), (32, 64), (64, 128), (128, 256)):
        found[f"notes {low}-{high - 1} back"] = right[(drawn.back >= low) & (drawn.back < high)].mean().item()
    found["text beyond"] = lost[~drawn.asked & (place >= TRAINED)].mean().item()
    found["notes beyond"] = right[drawn.back >= TRAINED].mean().item()
    return found


@functools.cache
def untuned(seed: int, scaling: str, window: int | None, long: bool) -> dict[str, float]:
    """What the model can do with other clocks and no training."""
    return read_long(changed(trained(seed, long), scaling, window))


def reads_further(record: Claim) -> bool:
    """Each sentence of the lab about reading at 256 what was trained at 64."""

    def paired(arm: str, other: str, measure: str, gap: float = 0.0) -> bool:
        """Whether the measure of `arm` exceeds that of `other` with every seed."""
        both = zip(record.values(arm, measure), record.values(other, measure), strict=True)
        return all(one > two + gap for one, two in both)

    window, text, near = "window of 64", "text beyond", "text from 32"
    far, tuned = "notes 128-255 back", "tuned notes 128-255 back"
    least = {arm: record.range(arm, far)[0] for arm in record.arms}
    return (
        paired("as trained", window, text, 0.03)
        and all(paired(arm, window, text) for arm in record.arms if arm != window)
        and paired("interpolated", "as trained", text)
        and paired("interpolated", "as trained", near, 0.05)
        and all(paired("as trained", arm, text) for arm in ("NTK", "NTK, factor 8", "YaRN"))
        and paired("NTK, factor 8", "NTK", far)
        and min(least["interpolated"], least["YaRN"]) >= 0.85
        and record.range("NTK", far)[1] <= 0.45
        and max(record.range(window, far)[1], record.range(window, tuned)[1]) <= 0.15
        and least["as trained"] >= 0.4
        and record.range("as trained", far)[1] <= 0.65
        and record.range("as trained", tuned)[1] <= 0.65
        and record.range("interpolated", tuned)[0] >= 0.8
        and record.range("YaRN", tuned)[0] >= 0.9
    )


@experiment(
    claim="A rotary model trained at 64 places fails at 256; changed clocks and a short training repair it, "
    "while a window repairs the text only.",
    arms={
        "as trained": {"scaling": "none"},
        "interpolated": {"scaling": "linear"},
        "NTK": {"scaling": "ntk"},
        "NTK, factor 8": {"scaling": "ntk twice"},
        "YaRN": {"scaling": "yarn"},
        "window of 64": {"scaling": "none", "window": TRAINED},
    },
    rates=(1e-3, 3e-3),
    better="min tuned text beyond",
    holds=reads_further,
    sources=lambda: inspect.getsource(notes),
)
def reading_further(
    seed: int, rate: float, scaling: str, window: int | None = None, long: bool = False
) -> dict[str, float]:
    """Read 256 places before and after 40 steps at that length."""
    before = untuned(seed, scaling, window, long)
    tuned = fit(changed(trained(seed, long), scaling, window), long_pieces, 40, rate, seed + 100)
    return {**before, **{f"tuned {name}": value for name, value in read_long(tuned).items()}}


class MayLookAtNothing(EfficientAttention):
    """A softmax over the keys and a score of 0 that belongs to none of them."""

    def weights(self, query: Tensor, key: Tensor, options: Options) -> Tensor:
        """(B, H, T, S), rows that sum to at most one."""
        scores = query @ key.mT * options.scale
        visible = causal_mask(query.size(-2), key.size(-2)) if options.mask is None else options.mask
        scores = scores.masked_fill(~visible, -torch.inf)
        return torch.cat([scores, torch.zeros_like(scores[..., :1])], dim=-1).softmax(-1)[..., :-1]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """The weighted sum."""
        return self.weights(query, key, options) @ value


@torch.no_grad()
def first_token(model: LanguageModel, drawn: Asked, window: int = 16) -> dict[str, float]:
    """How much weight the first token gets, and what the loss is when a window forgets it, or keeps the first four."""
    with record_weights(model) as maps:
        model(drawn.tokens)
    T = drawn.tokens.size(1)
    quiet = ~drawn.asked[:, T // 2 :]
    shares = [
        weights[:, head, T // 2 :, 0][quiet].mean().item()
        for weights in maps.values()
        for head in range(weights.size(1))
    ]
    place = torch.arange(T)
    near = (place[:, None] >= place) & (place[:, None] - place < window)
    first = (place[:, None] >= place) & (place < 4)
    found = {"weight on the first": max(shares), "mean over heads": sum(shares) / len(shares)}
    seen = ~drawn.asked[:, 2 * window :]
    for name, mask in (("full", None), ("window", near), ("window and first four", near | first)):
        lost = losses(model, drawn, mask)[:, 2 * window :]
        found[f"text, {name}"], found[f"answers, {name}"] = lost[seen].mean().item(), lost[~seen].mean().item()
    return found


def sinks_hold(record: Claim) -> bool:
    """Each sentence of the lab about the first token."""

    def added(arm: str, name: str) -> list[float]:
        """What the mask adds to the loss on text, for each seed."""
        both = zip(record.values(arm, f"text, {name}"), record.values(arm, "text, full"), strict=True)
        return [one - full for one, full in both]

    weight = {arm: record.range(arm, "weight on the first") for arm in record.arms}
    kept = "window and first four"
    return (
        weight["echoes"][0] >= 0.25
        and min(added("echoes", "window")) >= 0.05
        and max(map(abs, added("echoes", kept))) <= 0.01
        and weight["echoes, no start sign"][1] <= 0.03
        and max(map(abs, added("echoes, no start sign", "window"))) <= 0.01
        and weight["echoes, may look at nothing"][0] >= 0.1
        and min(added("echoes, may look at nothing", "window")) >= 0.02
        and max(max(added(arm, "window")) for arm in ("notes", "notes, two layers")) <= min(added("echoes", "window"))
        and min(weight["notes"][0], weight["notes, two layers"][0]) <= 0.1
    )


@experiment(
    claim="A head that has nothing to find rests on the start sign if there is one, and a window that forgets the sign "
    "then does harm.",
    arms={
        "echoes": {},
        "echoes, no start sign": {"start": False},
        "echoes, may look at nothing": {"nothing": True},
        "notes": {"task": "notes"},
        "notes, two layers": {"task": "notes", "n_layers": 2},
    },
    rates=(3e-3, 6e-3),
    better="min text, full",
    holds=sinks_hold,
    sources=lambda: inspect.getsource(notes),
)
def first_token_sink(
    seed: int, rate: float, start: bool = True, nothing: bool = False, task: str = "echoes", n_layers: int = 1
) -> dict[str, float]:
    """Heads that have something to find at questions, and little elsewhere."""

    def draw(n_examples: int, split: Split, generator: torch.Generator) -> Asked:
        if task == "notes":
            return notes_in_text(n_examples, TRAINED, split=split, generator=generator)
        return echoes_in_text(n_examples, TRAINED, start=start, split=split, generator=generator)

    model = small_model(seed, n_decoder_layers=n_layers, inner_attention=MayLookAtNothing if nothing else None)
    fit(model, lambda generator: draw(16, "train", generator), 400, rate, seed)
    return first_token(model, draw(200, "test", torch.Generator().manual_seed(9)))


WINDOW = 8
REACH = 3 * (WINDOW - 1)  # places that three layers with this window can look back


def mixes_hold(record: Claim) -> bool:
    """Each sentence of the lab about local and global layers."""
    beyond, within = "notes beyond the reach", "notes within the reach"
    return (
        record.range("3 local", beyond)[1] <= 0.15
        and record.range("2 local, 1 global", beyond)[0] >= 0.95
        and record.range("3 global", beyond)[0] >= 0.95
        and min(record.range(arm, within)[0] for arm in record.arms) >= 0.95
    )


@experiment(
    claim="Layers with a window cannot answer beyond their common reach; one global layer among three can.",
    arms={
        "3 local": {"local": [True, True, True]},
        "2 local, 1 global": {"local": [True, True, False]},
        "3 global": {"local": [False, False, False]},
    },
    rates=(2e-3, 4e-3),
    better="min text",
    holds=mixes_hold,
    sources=lambda: inspect.getsource(notes),
)
def local_and_global(seed: int, rate: float, local: tuple[bool, ...]) -> dict[str, float]:
    """Three layers, a window of 8 in the local ones, 64 places."""
    model = small_model(seed, n_decoder_layers=3, window=WINDOW, local_layers=tuple(local))
    fit(model, short_pieces, 250, rate, seed)
    drawn = notes_in_text(400, TRAINED, split="test", generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        logits = model(drawn.tokens)
    lost = F.cross_entropy(logits.mT, drawn.targets, reduction="none")
    right = (logits.argmax(-1) == drawn.targets).float()
    return {
        "text": lost[~drawn.asked].mean().item(),
        "notes within the window": right[(drawn.back >= 1) & (drawn.back < WINDOW)].mean().item(),
        "notes within the reach": right[(drawn.back >= WINDOW) & (drawn.back <= REACH)].mean().item(),
        "notes beyond the reach": right[drawn.back > REACH].mean().item(),
    }
