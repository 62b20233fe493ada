"""The lab on what follows pre-training: SFT, DPO and GRPO on number words, and a reward that is gamed."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.config import TransformerConfig
from course_lib.generation import generate
from course_lib.training import after_training
from course_lib.training.after_training import (
    dpo_loss,
    group_advantages,
    grpo_loss,
    kl_estimate,
    pass_at_k,
    sequence_log_probs,
    token_log_probs,
)
from course_lib.transformer import LanguageModel
from coursework.corpora import spelled
from coursework.corpora.spelled import END, PAD, PROMPT, SYMBOLS, ZERO, answers, draw_numbers, pages, questions
from coursework.records import Claim
from experiments import experiment

LONGEST = 10  # tokens of an answer; a right one has at most seven
PAGE = 26
Reward = Callable[[Tensor, Tensor], Tensor]


def small_model(seed: int) -> LanguageModel:
    """Two layers, 72 thousand weights."""
    torch.manual_seed(seed)
    return LanguageModel(
        TransformerConfig(
            vocab_size=len(SYMBOLS), d_model=64, n_heads=4, d_ff=128, n_encoder_layers=0, n_decoder_layers=2,
            dropout=0.0, norm_place="pre", positions="rotary",
        )
    )  # fmt: skip


def fit(model: LanguageModel, rows: Tensor, first: int, steps: int, rate: float, seed: int) -> LanguageModel:
    """Predict each token of the rows from place `first` on; padding counts for nothing."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    for step in range(steps):
        batch = rows[torch.randint(len(rows), (32,), generator=generator)]
        targets = batch[:, 1:].masked_fill(batch[:, 1:] == PAD, -100)
        targets[:, : first - 1] = -100
        loss = F.cross_entropy(model(batch[:, :-1]).mT, targets, ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / steps)
        optimizer.step()
    return model


@functools.cache
def base(seed: int) -> LanguageModel:
    """After pre-training: it goes on as a book of numbers does."""
    return fit(small_model(seed), pages(draw_numbers(6000, seed=seed), PAGE, seed), 1, 500, 4e-3, seed)


def labelled(seed: int) -> Tensor:
    """The two hundred questions whose answers somebody wrote."""
    values = draw_numbers(200, seed=100 + seed)
    return torch.cat([questions(values), answers(values)], 1)


@functools.cache
def tuned(seed: int) -> LanguageModel:
    """After SFT: the loss is that of the answers' tokens."""
    return fit(copy.deepcopy(base(seed)), labelled(seed), PROMPT, 100, 2e-3, seed)


def tuned_more(seed: int, rate: float) -> LanguageModel:
    """A control: as many steps of SFT again as DPO makes, on the same two hundred answers."""
    return fit(copy.deepcopy(tuned(seed)), labelled(seed), PROMPT, 60, rate, seed + 1)


def answer(model: LanguageModel, asked: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """What the model writes, (N, LONGEST): the likeliest tokens, or with a generator a sample."""
    temperature = 0.0 if generator is None else 1.0
    rows = generate(
        model, asked, max_new_tokens=LONGEST, stop=END, pad_id=PAD, temperature=temperature, generator=generator
    )
    return F.pad(rows[:, PROMPT:], (0, LONGEST - rows.size(1) + PROMPT), value=PAD)


def answer_logits(model: LanguageModel, asked: Tensor, written: Tensor) -> Tensor:
    """The logits that predict the tokens of the answers, (N, LONGEST, V)."""
    return model(torch.cat([asked, written], 1)[:, :-1])[:, PROMPT - 1 :]


def is_right(written: Tensor, wanted: Tensor) -> Tensor:
    """The verifier: 1 where the digits and the end sign are those wanted, else 0."""
    return (written == wanted).all(-1).float()


def digits_right(written: Tensor, wanted: Tensor) -> Tensor:
    """A milder verifier: the digits up to the first other sign are right, whatever follows."""
    digit = (written >= ZERO) & (written < ZERO + 10)
    first = digit.cumprod(-1).bool()  # the digits that the answer begins with
    real = (wanted >= ZERO) & (wanted < ZERO + 10)
    return ((first == real) & ((written == wanted) | ~real)).all(-1).float()


def digits_found(written: Tensor, wanted: Tensor) -> Tensor:
    """A reward that can be gamed: the share of the wanted digits that occur anywhere in the answer."""
    digits = torch.arange(ZERO, ZERO + 10)
    said = (written[..., None] == digits).any(-2)
    asked = (wanted[..., None] == digits).any(-2)
    return (said & asked).sum(-1) / asked.sum(-1)


class Pairs(NamedTuple):
    """Questions (N, PROMPT) with a preferred and a refused answer each (N, LONGEST)."""

    asked: Tensor
    chosen: Tensor
    refused: Tensor


@functools.cache
def pairs(seed: int) -> Pairs:
    """Of eight samples of the tuned model: a right one is preferred to a wrong one, where there are both."""
    values = draw_numbers(800, seed=200 + seed)
    written = answer(tuned(seed), questions(values).repeat_interleave(8, 0), generator(seed)).view(800, 8, LONGEST)
    right = is_right(written, answers(values, LONGEST)[:, None]).bool()
    both, every = right.any(1) & ~right.all(1), torch.arange(800)
    chosen, refused = written[every, right.int().argmax(1)], written[every, right.int().argmin(1)]
    return Pairs(questions(values)[both], chosen[both], refused[both])


def generator(seed: int) -> torch.Generator:
    """One that draws the same again."""
    return torch.Generator().manual_seed(seed)


def log_prob(model: LanguageModel, asked: Tensor, written: Tensor) -> Tensor:
    """The log-probability of each answer, (N,)."""
    return sequence_log_probs(answer_logits(model, asked, written), written, written != PAD)


@functools.cache
def preferring(seed: int, rate: float, beta: float, sft: float) -> LanguageModel:
    """After sixty steps of DPO; `sft` is the weight of the loss of SFT on the preferred answers."""
    model, reference, every, draw = copy.deepcopy(tuned(seed)), tuned(seed), pairs(seed), generator(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    with torch.no_grad():
        known = [log_prob(reference, every.asked, some) for some in (every.chosen, every.refused)]
    for step in range(60):
        rows = torch.randint(len(every.asked), (32,), generator=draw)
        asked, both = every.asked[rows].repeat(2, 1), torch.cat([every.chosen[rows], every.refused[rows]])
        chosen, refused = log_prob(model, asked, both).chunk(2)
        loss = dpo_loss(chosen, refused, known[0][rows], known[1][rows], beta)
        loss = loss - sft * chosen.sum() / (every.chosen[rows] != PAD).sum()
        make_step(optimizer, loss, rate * min(1.0, (step + 1) / 10))
    return model


def make_step(optimizer: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    """One update, with the gradient clipped to length one."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()


REWARDS: dict[str, Reward] = {"exact": is_right, "digits found": digits_found}
ASKED, GROUP = 16, 8


@functools.cache
def reinforced(
    seed: int, rate: float, reward: str = "exact", shuffled: bool = False, steps: int = 70
) -> tuple[LanguageModel, list[dict[str, float]]]:
    """After GRPO, with what was measured on the samples of each step."""
    model, reference, draw, log = copy.deepcopy(tuned(seed)), tuned(seed), generator(seed), []
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    values = draw_numbers(ASKED * steps, seed=300 + seed)
    for step in range(steps):
        some = values[ASKED * step : ASKED * (step + 1)]
        asked = questions(some).repeat_interleave(GROUP, 0)
        wanted = answers(some, LONGEST).repeat_interleave(GROUP, 0)
        written = answer(model, asked, draw)
        real, paid = written != PAD, REWARDS[reward](written, wanted)
        credited = paid[torch.randperm(len(paid), generator=draw)] if shuffled else paid
        advantages = group_advantages(credited.view(ASKED, GROUP)).flatten()
        with torch.no_grad():
            logits = answer_logits(model, asked, written)
            old = token_log_probs(logits, written)
            frozen = token_log_probs(answer_logits(reference, asked, written), written)
        log.append(
            {
                "reward": paid.mean().item(),
                "exact match": is_right(written, wanted).mean().item(),
                "KL": kl_estimate(old, frozen)[real].mean().item(),
                "length": real.sum(1).float().mean().item(),
                "entropy": torch.special.entr(logits.softmax(-1)).sum(-1)[real].mean().item(),
                "useful groups": (credited.view(ASKED, GROUP).std(1) > 0).float().mean().item(),
            }
        )
        for _ in range(2):
            now = token_log_probs(answer_logits(model, asked, written), written)
            make_step(optimizer, grpo_loss(now, old, frozen, advantages, real), rate * min(1.0, (step + 1) / 10))
    return model, log


@torch.no_grad()
def measured(model: LanguageModel, reference: LanguageModel, seed: int, reward: str = "exact") -> dict[str, float]:
    """On a hundred questions of the test split, 64 samples each, and the likeliest answer of two hundred."""
    values, n = draw_numbers(200, "test", seed=9), 64
    asked, wanted = questions(values), answers(values, LONGEST)
    found = {"likeliest answer": is_right(answer(model, asked), wanted).mean().item()}
    asked, wanted = asked[:100].repeat_interleave(n, 0), wanted[:100].repeat_interleave(n, 0)
    written = answer(model, asked, generator(seed))
    found["reward"] = REWARDS[reward](written, wanted).mean().item()
    for name, judge in (("pass", is_right), ("digits", digits_right)):
        right = judge(written, wanted).view(100, n).sum(1).int().tolist()
        for k in (1, 4, 16, 64):
            found[f"{name}@{k}"] = sum(pass_at_k(n, count, k) for count in right) / 100
    some = torch.arange(0, len(written), 8)
    asked, written = asked[some], written[some]
    logits, real = answer_logits(model, asked, written), written != PAD
    frozen = token_log_probs(answer_logits(reference, asked, written), written)
    found["length"] = real.sum(1).float().mean().item()
    found["entropy"] = torch.special.entr(logits.softmax(-1)).sum(-1)[real].mean().item()
    found["KL"] = kl_estimate(token_log_probs(logits, written), frozen)[real].mean().item()
    return found


STAGES = {
    "base": {"stage": "base"},
    "SFT": {"stage": "SFT"},
    "SFT, more steps": {"stage": "more"},
    "DPO": {"stage": "DPO"},
    "GRPO": {"stage": "GRPO"},
    "GRPO, rewards shuffled": {"stage": "GRPO", "shuffled": True},
    "GRPO, digits found": {"stage": "GRPO", "reward": "digits found"},
}


def files() -> str:
    """The source of what the experiments use of the package and is theirs."""
    return inspect.getsource(spelled) + inspect.getsource(after_training)


def stages_hold(record: Claim) -> bool:
    """Each sentence of the lab about the stages."""

    def above(arm: str, other: str, measure: str, gap: float = 0.0) -> bool:
        """Whether the measure of `arm` exceeds that of `other` with every seed."""
        both = zip(record.values(arm, measure), record.values(other, measure), strict=True)
        return all(one > two + gap for one, two in both)

    gamed = "GRPO, digits found"
    rises = zip(*(record.values(arm, f"pass@{k}") for k in (1, 64) for arm in ("SFT", "GRPO")), strict=True)
    return (
        record.range("base", "pass@64")[1] == 0
        and record.range("base", "digits@64")[0] > 0.5
        and above("GRPO", "SFT", "pass@1", 0.05)
        and above("GRPO", "SFT, more steps", "pass@1")
        and above("SFT, more steps", "SFT", "pass@1")
        and above("SFT", "GRPO", "pass@64")
        and all(new - old > before - after for old, new, before, after in rises)
        and above("SFT", "GRPO", "entropy")
        and above("SFT", "GRPO, rewards shuffled", "pass@1", 0.05)
        and above("SFT", gamed, "pass@1", 0.05)
        and above(gamed, "GRPO", "KL")
        and record.range(gamed, "reward")[0] >= 0.9
    )


@experiment(
    claim="SFT makes a model answer; GRPO makes right answers likelier that it could find before, hardly any others; "
    "a reward for digits found anywhere is gamed.",
    arms=STAGES,
    rates=(1e-3,),
    better="max reward",
    holds=stages_hold,
    sources=files,
)
def after_training_stages(
    seed: int, rate: float, stage: str, reward: str = "exact", shuffled: bool = False
) -> dict[str, float]:
    """One stage, measured on questions that were never trained on; DPO takes a third of the rate."""
    if stage == "GRPO":
        return measured(reinforced(seed, rate, reward, shuffled)[0], tuned(seed), seed, reward)
    if stage == "DPO":
        return measured(preferring(seed, rate / 3, 1.0, 0.0), tuned(seed), seed)
    if stage == "more":
        return measured(tuned_more(seed, rate), tuned(seed), seed)
    return before(seed, stage)


@functools.cache
def before(seed: int, stage: str) -> dict[str, float]:
    """The two models that have no rate to be tried."""
    return measured(base(seed) if stage == "base" else tuned(seed), tuned(seed), seed)


def pairs_hold(record: Claim) -> bool:
    """Each sentence of the lab about preferred and refused answers."""
    small, large, both = (list(record.arms)[number] for number in range(3))
    exact = [record.values(arm, "pass@1") for arm in (small, large, both)]
    return (
        record.range(small, "chosen")[1] < -0.3
        and record.range(small, "chosen that fell")[0] > 0.5
        and all(record.range(arm, "refused")[1] < -1.5 for arm in record.arms)
        and all(record.range(arm, "pairs in order")[0] > 0.8 for arm in record.arms)
        and record.range(both, "chosen")[0] > 0.2
        and all(one < two < three for one, two, three in zip(*exact, strict=True))
    )


@experiment(
    claim="DPO with a small beta pushes refused answers down and takes the preferred ones along; a larger beta, or the "
    "loss of SFT beside it, keeps them.",
    arms={
        "beta 0.1": {"beta": 0.1},
        "beta 1": {"beta": 1.0},
        "beta 0.1, with SFT": {"beta": 0.1, "sft": 1.0},
    },
    rates=(1e-3 / 3,),
    better="max pass@1",
    holds=pairs_hold,
    sources=files,
)
def preferred_and_refused(seed: int, rate: float, beta: float, sft: float = 0.0) -> dict[str, float]:
    """What sixty steps of DPO do to the log-probabilities of the pairs, and to held-out questions."""
    model, reference, every = preferring(seed, rate, beta, sft), tuned(seed), pairs(seed)
    with torch.no_grad():
        moved = [
            log_prob(model, every.asked, some) - log_prob(reference, every.asked, some)
            for some in (every.chosen, every.refused)
        ]
    found = {
        "chosen": moved[0].mean().item(),
        "refused": moved[1].mean().item(),
        "chosen that fell": (moved[0] < 0).float().mean().item(),
        "pairs in order": (moved[0] > moved[1]).float().mean().item(),
        "pairs": float(len(every.asked)),
        "loss": dpo_loss(moved[0], moved[1], 0 * moved[0], 0 * moved[1], beta).item(),
    }
    return {**found, **measured(model, reference, seed)}


def course_holds(record: Claim) -> bool:
    """Each sentence of the lab about the course of GRPO."""

    def change(arm: str, name: str) -> list[float]:
        """The last ten steps against the first ten, for each seed."""
        last = record.values(arm, f"{name} from 60")
        return [one - two for one, two in zip(last, record.values(arm, f"{name} from 0"), strict=True)]

    exact, shuffled, gamed = record.arms
    return (
        min(change(exact, "reward")) > 0.03
        and max(change(exact, "entropy")) < 0
        and min(change(exact, "KL")) > 0.1
        and max(change(shuffled, "reward")) < 0
        and min(change(gamed, "reward")) > 0
        and max(change(gamed, "exact match")) < -0.05
    )


@experiment(
    claim="Rewarded for exact match, GRPO raises it step by step; with rewards shuffled it does not, and with a reward "
    "for digits found anywhere the reward rises while the exact match falls.",
    arms={label: settings for label, settings in STAGES.items() if settings["stage"] == "GRPO"},
    rates=(1e-3,),
    better="max reward at the end",
    holds=course_holds,
    sources=files,
)
def course_of_grpo(
    seed: int, rate: float, stage: str, reward: str = "exact", shuffled: bool = False
) -> dict[str, float]:
    """What the samples of training were like, in stretches of ten steps."""
    _, log = reinforced(seed, rate, reward, shuffled)
    found = {}
    for name in log[0]:
        found |= {
            f"{name} from {start}": sum(row[name] for row in log[start : start + 10]) / 10
            for start in range(0, len(log), 10)
        }
    return {**found, "reward at the end": found[f"reward from {len(log) - 10}"]}
