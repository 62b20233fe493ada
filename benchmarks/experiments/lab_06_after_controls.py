"""Controls for the lab on what follows pre-training: what SFT makes of the data that DPO and GRPO have."""

import copy

import torch

from course_lib.transformer import LanguageModel
from coursework.corpora.spelled import PAD, PROMPT, answers, draw_numbers, questions
from coursework.records import Claim, claim
from experiments import experiment, source_of
from experiments.lab_06_after_training import (
    ASKED,
    after_training_stages,
    files,
    fit,
    generator,
    labelled,
    log_prob,
    make_step,
    measured,
    pairs,
    tuned,
)


def with_rows(seed: int, rate: float, rows: torch.Tensor, steps: int) -> LanguageModel:
    """More SFT of the tuned model, on other rows."""
    return fit(copy.deepcopy(tuned(seed)), rows, PROMPT, steps, rate, seed + 1)


def own_right_answers(seed: int) -> torch.Tensor:
    """The preferred answers of the pairs, each with its question: the model wrote them, the verifier chose them."""
    every = pairs(seed)
    return torch.cat([every.asked, every.chosen], 1)


def asked_by_grpo(seed: int) -> torch.Tensor:
    """The questions that GRPO is asked in seventy steps, with the answers that its verifier holds."""
    values = draw_numbers(ASKED * 70, seed=300 + seed)
    return torch.cat([questions(values), answers(values)], 1)


def dpo_without_pairs(seed: int, rate: float) -> LanguageModel:
    """DPO with the loss of SFT beside it, without DPO: same batches, same steps, same rate."""
    model, every, draw = copy.deepcopy(tuned(seed)), pairs(seed), generator(seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    for step in range(60):
        rows = torch.randint(len(every.asked), (32,), generator=draw)
        chosen = log_prob(model, every.asked[rows], every.chosen[rows])
        make_step(optimizer, -chosen.sum() / (every.chosen[rows] != PAD).sum(), rate * min(1.0, (step + 1) / 10))
    return model


def controls_hold(record: Claim) -> bool:
    """Each sentence of the lab about these controls."""
    repeated, own, alone, many = record.arms
    stages, preferences = claim("after_training_stages"), claim("preferred_and_refused")
    start, grpo = ({m: stages.values(arm, m) for m in stages.measures} for arm in ("SFT", "GRPO"))
    dpo = preferences.values("beta 0.1, with SFT", "pass@1")

    def above(arm: str, other: list[float], measure: str) -> int:
        """With how many seeds the measure of `arm` exceeds the other values."""
        return sum(one > two for one, two in zip(record.values(arm, measure), other, strict=True))

    gains = zip(record.values(alone, "pass@1"), dpo, start["pass@1"], strict=True)
    return (
        above(repeated, start["pass@1"], "pass@1") == 5
        and 0 < above(repeated, grpo["pass@1"], "pass@1") < 5
        and above(repeated, grpo["likeliest answer"], "likeliest answer") == 0
        and above(own, grpo["pass@1"], "pass@1") == 4
        and above(own, grpo["likeliest answer"], "likeliest answer") == 4
        and above(own, grpo["pass@64"], "pass@64") == 5
        and sum(record.values(own, "pass@64")) >= sum(start["pass@64"])
        and above(alone, dpo, "pass@1") == 4
        and record.range(alone, "refused")[1] < 0
        and all(one - old > 0.9 * (two - old) for one, two, old in gains)
        and all(
            above(many, record.values(arm, measure), measure) == 5
            for arm in (repeated, own, alone)
            for measure in ("pass@1", "likeliest answer", "pass@64")
        )
        and above(many, grpo["pass@1"], "pass@1") == 5
    )


@experiment(
    claim="The loss of SFT beside DPO, left alone, makes nearly all of their gain or more; SFT on the model's own "
    "right answers is above GRPO with most seeds, and SFT on the answers that the verifier holds is above both.",
    arms={
        "SFT, 140 steps": {"kind": "same answers"},
        "SFT, own right answers": {"kind": "own"},
        "SFT, preferred only": {"kind": "preferred"},
        "SFT, 1120 answers": {"kind": "many answers"},
    },
    rates=(1e-3,),
    better="max pass@1",
    holds=controls_hold,
    sources=lambda: source_of(after_training_stages) + files(),
)
def after_training_controls(seed: int, rate: float, kind: str) -> dict[str, float]:
    """One control, measured as the stages are; the one that is to be held against DPO takes DPO's rate, a third."""
    if kind == "preferred":
        model = dpo_without_pairs(seed, rate / 3)
    elif kind == "own":
        model = with_rows(seed, rate, own_right_answers(seed), 60)
    elif kind == "many answers":
        model = with_rows(seed, rate, asked_by_grpo(seed), 140)
    else:
        model = with_rows(seed, rate, labelled(seed), 140)
    every = pairs(seed)
    with torch.no_grad():
        gains = {
            name: (log_prob(model, every.asked, some) - log_prob(tuned(seed), every.asked, some)).mean().item()
            for name, some in (("chosen", every.chosen), ("refused", every.refused))
        }
    return {**gains, **measured(model, tuned(seed), seed)}
