"""The drawings of the lab on what follows pre-training: the stages, whose tokens count, a balance, a group."""

from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing, Point, tip
from coursework.pictures.style import palette

GOOD, BAD, QUIET = palette.value, palette.key, "#555555"


def after_training_path() -> Drawing:
    """Pre-training, SFT, and then DPO or GRPO, each with what it needs from people."""
    stages = (
        ("pre-training", "text, as much as there is", "a model that goes on with a text", INK),
        ("SFT", "questions with answers", "a model that answers", palette.query),
        ("DPO", "pairs: this one rather than that one", "answers that are preferred", GOOD),
        ("GRPO", "questions, and a reward for any answer", "answers that earn more", palette.output),
    )
    said = "; ".join(f"{name} needs {needs} and gives {gives}" for name, needs, gives, _ in stages)
    picture = Drawing(
        368,
        alt=f"A path from top to bottom that forks after the second stage. {said}. DPO and GRPO both begin from the "
        "model after SFT.",
        caption="The stages of this lab, with what each needs and what comes out. DPO and GRPO both begin where SFT "
        "ends; in practice one often follows the other.",
    )
    picture.text((95, 22), "stage", bold=True, size=16)
    picture.text((190, 22), "needs", bold=True, size=16, anchor="start")
    places = [66.0, 150.0, 234.0, 324.0]
    picture.line([(95, 88), (95, 128)], width=3)
    picture.line([(95, 172), (95, 212)], width=3)
    picture.line([(27, 150), (12, 150), (12, 324), (26, 324)], width=3)
    for y, (name, needs, gives, colour) in zip(places, stages, strict=True):
        picture.box((95, y), (136, 42), name, colour=colour)
        picture.text((190, y - 11), needs, anchor="start")
        picture.text((190, y + 13), f"gives {gives}", anchor="start", size=16, colour=QUIET)
    return picture


def answer_counts(question: Sequence[str], answer: Sequence[str]) -> Drawing:
    """One row of tokens: those of the answer count in the loss of SFT, those of the question do not.

    Args:
        question, answer: short words, at most nine together.
    """
    words = [*question, *answer]
    width = (Drawing.WIDTH - 24) / len(words)
    places = [12 + width * (number + 0.5) for number in range(len(words))]
    first = len(question)
    picture = Drawing(
        176,
        alt=f"A row of tokens: {' '.join(words)}. The first {first}, the question, are pale; the last {len(answer)}, "
        "the answer, are filled. From each token an arrow leads to the next; only arrows that end at a filled token "
        "count in the loss.",
        caption="The model reads the whole row, and at each token predicts the next one. In SFT only the predictions "
        "of the filled tokens, the answer, count in the loss.",
    )
    for number, (x, word) in enumerate(zip(places, words, strict=True)):
        counts = number >= first
        picture.box((x, 108), (width - 8, 42), word, colour=palette.query if counts else "#8A8A8A", filled=counts)
        if number:
            picture.curve(
                (places[number - 1], 84), (x, 84), lift=20, width=3 if counts else 1.5,
                colour=palette.query if counts else "#AAAAAA",
            )  # fmt: skip
    picture.text(((places[0] + places[first - 1]) / 2, 150), "question: read, not counted", size=16, colour=QUIET)
    picture.text((places[-1] + width / 2 - 4, 150), "answer: counts", size=16, colour=palette.query, anchor="end")
    picture.text(
        (places[-1] + width / 2 - 4, 30), "predictions in the loss", size=15, colour=palette.query, anchor="end"
    )
    return picture


def _balance(picture: Drawing, middle: Point, degrees: float, left: Sequence[str], right: Sequence[str]) -> None:
    """A beam on a post, turned by so much; what lies in its pans is written below them."""
    x, y = middle
    picture.line([(x, y), (x, y + 132)], width=5, arrow=False, colour=palette.residual)
    picture.line([(x - 40, y + 132), (x + 40, y + 132)], width=5, arrow=False, colour=palette.residual)
    ends = tip(middle, 88, -90 + degrees), tip(middle, 88, 90 + degrees)
    picture.line(list(ends), width=5, arrow=False)
    picture.circle(middle, 6, filled=True)
    for (px, py), words, colour in zip(ends, (left, right), (GOOD, BAD), strict=True):
        for side in (-34, 34):
            picture.line([(px, py), (px + side, py + 40)], width=1.5, arrow=False)
        picture.box((px, py + 56), (82, 32), words[0], colour=colour)
        picture.text((px, py + 88), words[1], size=15, colour=colour)


def preference_scales(gains: tuple[float, float]) -> Drawing:
    """The gains of a preferred and a refused answer on a balance: before the first step, and later.

    Args:
        gains: log-probabilities under the policy minus those under the reference, preferred and refused.
    """
    margin = gains[0] - gains[1]
    picture = Drawing(
        238,
        alt="Two balances. On the first, preferred and refused answer have both gained 0, and the beam is level. On "
        f"the second, the preferred one has gained {gains[0]:+.1f} and the refused one {gains[1]:+.1f}; the side of "
        f"the preferred one is lower, by a margin of {margin:.1f}.",
        caption="DPO looks only at the difference of the two gains. The beam tips to the preferred side although both "
        "gains are below zero: both answers became less likely, the refused one more so.",
    )
    for x, title, turned, (one, two) in (
        (150, "at the start", 0.0, (0.0, 0.0)),
        (450, f"later: margin {margin:+.1f}", -16.0, gains),
    ):
        picture.text((x, 24), title, bold=True)
        _balance(
            picture,
            (x, 84),
            turned,
            (f"{one:+.1f}" if one else "0", "preferred"),
            (f"{two:+.1f}" if two else "0", "refused"),
        )
    return picture


def group_of_answers(
    question: str, answers: Sequence[str], rewards: Sequence[float], advantages: Sequence[float]
) -> Drawing:
    """A question, some answers drawn from the model, the reward of each, and its advantage over the group."""
    mean = sum(rewards) / len(rewards)
    rows = "; ".join(
        f"{a}: reward {r:g}, advantage {d:+.1f}" for a, r, d in zip(answers, rewards, advantages, strict=True)
    )
    picture = Drawing(
        118 + 46 * len(answers),
        alt=f"The question {question} and {len(answers)} sampled answers. {rows}. The mean reward is {mean:g}. Bars to "
        "the right stand for advantages above zero, bars to the left for those below.",
        caption="A group: several answers to one question, drawn from the model itself. The advantage says how much "
        "better an answer is than its group. A bar to the right: made likelier. A bar to the left: made less likely.",
    )
    picture.text((20, 26), question, bold=True, anchor="start")
    for x, words in ((110, "sampled answer"), (252, "reward"), (440, "advantage")):
        picture.text((x, 62), words, size=16, colour=QUIET)
    bottom = 74 + 46 * len(answers)
    picture.line([(440, 80), (440, bottom)], width=1.5, arrow=False, colour=palette.residual)
    for number, (words, reward, advantage) in enumerate(zip(answers, rewards, advantages, strict=True)):
        y = 100 + 46 * number
        colour = GOOD if advantage > 0 else BAD
        picture.box((110, y), (170, 36), words, colour=colour)
        picture.text((252, y), f"{reward:g}", bold=True)
        length = 62 * abs(advantage)
        if length:
            picture.bar((440 if advantage > 0 else 440 - length, y), (length, 26), colour=colour)
        side = 1 if advantage > 0 else -1
        picture.text((440 + side * (length + 8), y), f"{advantage:+.1f}", anchor="start" if side > 0 else "end")
    picture.text((252, bottom + 18), f"mean {mean:g}", size=16, colour=QUIET)
    return picture
