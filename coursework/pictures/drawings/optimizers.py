"""The drawings of the optimizer: a narrow valley, one weight, singular values, schedules, a lost step."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from coursework.pictures.drawing import Drawing, Point
from coursework.pictures.style import palette

COLOURS = {"plain": palette.residual, "momentum": palette.key, "Adam": palette.query}


def _valley_path(
    kind: str, rate: float, steps: int = 30, steep: float = 50.0, start: Point = (-9.0, 1.0)
) -> list[Point]:
    """The points that an optimizer visits in the valley (x² + steep · y²) / 2, `start` the first of them."""
    at, m, v = np.array(start), np.zeros(2), np.zeros(2)
    points = [start]
    for t in range(1, steps + 1):
        gradient = at * (1.0, steep)
        if kind == "plain":
            step = gradient
        elif kind == "momentum":
            step = m = 0.8 * m + gradient
        else:
            m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
            step = (m / (1 - 0.9**t)) / np.sqrt(v / (1 - 0.98**t))
        at = at - rate * step
        points.append((float(at[0]), float(at[1])))
    return points


def narrow_valley(
    rates: tuple[float, float, float] = (0.036, 0.02, 0.4),
    steps: int = 30,
    kinds: Sequence[str] = ("plain", "momentum", "Adam"),
) -> Drawing:
    """One, two or three ways through the same narrow valley, seen from above.

    Args:
        rates: of plain descent, of momentum with beta 0.8, and of Adam.
        steps: of each.
        kinds: which of the three are drawn.
    """
    rate = dict(zip(COLOURS, rates, strict=True))
    paths = {kind: _valley_path(kind, rate[kind], steps) for kind in kinds}
    ends = {kind: math.dist(path[-1], (0, 0)) for kind, path in paths.items()}
    told = {
        "plain": "Plain descent jumps from wall to wall and is still {:.1f} away at the end.",
        "momentum": "With momentum the jumps shrink and the way along the valley gets faster; it ends {:.1f} away.",
        "Adam": "Adam goes along and across at one speed and ends {:.1f} away.",
    }
    rated = {"plain": "{:g} plain", "momentum": "{:g} with momentum (beta = 0.8)", "Adam": "{:g} for Adam"}
    times = ("", ", twice", ", three times")[len(kinds) - 1]
    suits = "Each has a rate that suits it" if len(kinds) > 1 else "The rate"
    picture = Drawing(
        15 + 155 * len(kinds),
        alt=f"A valley seen from above{times}: long from left to right, steep across, its lowest point marked by a "
        f"cross. The start is at the left, 9 from the lowest point; {steps} steps. "
        + " ".join(told[kind].format(ends[kind]) for kind in kinds),
        caption=f"The same valley, the same start, {steps} steps. {suits}: "
        + ", ".join(rated[kind].format(rate[kind]) for kind in kinds)
        + ".",
    )
    names = {"plain": "plain gradient descent", "momentum": "with momentum", "Adam": "Adam"}
    across, up = 30.0, 46.0  # pixels for a unit

    for row, (kind, path) in enumerate(paths.items()):
        middle = (300.0, 100.0 + 155 * row)
        for level in (1.0, 3.5, 6.5, 9.6):  # half lengths of the ellipses
            outline = [
                (middle[0] + across * level * math.cos(a), middle[1] + up * level / math.sqrt(50) * math.sin(a))
                for a in np.linspace(0, 2 * math.pi, 61)
            ]
            picture.line(outline, colour="#D5D5D5", width=1.5, arrow=False)
        picture.text((16, 26 + 155 * row), names[kind], anchor="start", bold=True, colour=COLOURS[kind])
        spots = [(middle[0] + across * x, middle[1] - up * y) for x, y in path]  # y upwards
        picture.line(spots, colour=COLOURS[kind], width=2, arrow=False)
        for spot in spots:
            picture.circle(spot, 3, colour=COLOURS[kind], filled=True)
        picture.circle(spots[-1], 6, colour=COLOURS[kind], width=3)
        for dx, dy in ((6, 6), (6, -6)):
            picture.line([(middle[0] - dx, middle[1] - dy), (middle[0] + dx, middle[1] + dy)], arrow=False, width=2.5)
    return picture


def adam_of_one_weight(gradient: float = 4.0, rate: float = 0.1, beta1: float = 0.9, beta2: float = 0.98) -> Drawing:
    """The first step of one weight: its gradient goes into two averages; one is divided by the root of the other."""
    m, v = (1 - beta1) * gradient, (1 - beta2) * gradient**2
    m_hat, v_hat = m / (1 - beta1), v / (1 - beta2)
    step = rate * m_hat / math.sqrt(v_hat)
    picture = Drawing(
        330,
        alt=f"The first step of Adam for one weight with gradient {gradient:g}. Above, the average of gradients: m is "
        f"{m:.2g}, corrected {m_hat:.2g}. Below, the average of squares: v is {v:.2g}, corrected {v_hat:.2g}, its root "
        f"{math.sqrt(v_hat):.2g}. The first divided by the root is {m_hat / math.sqrt(v_hat):.2g}; times the rate "
        f"{rate:g} this is the step, {step:.2g}.",
        caption=f"Adam's first step for a gradient of {gradient:g}. Divide the gradient by its own size and only the "
        "sign is left, so the step is as long as the rate.",
    )
    picture.box((56, 165), (92, 60), ["gradient", f"{gradient:g}"])
    for y, colour, name, first, second in (
        (70, palette.query, "average of gradients", f"m = {m:.2g}", f"m̂ = {m_hat:.2g}"),
        (260, palette.key, "average of squares", f"v = {v:.2g}", f"v̂ = {v_hat:.2g}"),
    ):
        picture.text((178, y - 42 if y < 165 else y + 42), name, size=16, colour=colour, bold=True)
        picture.line([(102, 165), (128, y)], colour=colour)
        picture.box((178, y), (98, 44), first, colour=colour)
        picture.line([(228, y), (274, y)], colour=colour)
        picture.box((325, y), (98, 44), second, colour=colour)
        picture.text((325, y + 40), "corrected", size=15)
    picture.box((325, 165), (98, 40), f"root = {math.sqrt(v_hat):.2g}", colour=palette.key)
    picture.line([(325, 238), (325, 187)], colour=palette.key)
    picture.box((450, 112), (100, 60), ["divide", f"{m_hat / math.sqrt(v_hat):.2g}"])
    picture.line([(374, 70), (408, 82)], colour=palette.query)
    picture.line([(374, 165), (408, 142)], colour=palette.key)
    picture.line([(430, 142), (430, 210)])
    picture.text((442, 176), f"times rate {rate:g}", anchor="start", size=15)
    picture.box((500, 236), (170, 48), f"step = {step:.2g}", filled=True, colour=palette.value)
    return picture


def two_decays(steep: float = 10.0, flat: float = 0.1, decay: float = 0.01, rate: float = 0.1) -> Drawing:
    """What two weights of 1 lose by decay: through Adam's division, and past it.

    Args:
        steep, flat: the root of v̂ of the two weights, the size of their gradients.
        decay, rate: of both optimizers.
    """
    # the decay is far smaller than the gradients, so it does not change their usual size
    lost = {"steep": rate * decay / steep, "flat": rate * decay / flat}
    equal = rate * decay
    picture = Drawing(
        290,
        alt=f"Two weights of 1; the gradients of one have the size {steep:g}, of the other {flat:g}. With the decay "
        f"inside the gradient they lose {lost['steep']:.3g} and {lost['flat']:.3g} in one step. With AdamW both lose "
        f"{equal:.3g}.",
        caption=f"Decay of two weights of 1 in one step, rate {rate:g} and decay {decay:g}. Put into the gradient, "
        "the decay gets divided as well. AdamW keeps the decay out of the division.",
    )
    rows = (
        ("decay in the gradient", palette.key, (lost["steep"], lost["flat"])),
        ("AdamW", palette.query, (equal, equal)),
    )
    scale = 100 / max(*lost.values(), equal)
    divided = ((f" / {steep:g}", f" / {flat:g}"), ("", ""))
    for block, (name, colour, amounts) in enumerate(rows):
        top = 28 + 140 * block
        picture.text((16, top), name, anchor="start", bold=True, colour=colour)
        for row, (size, amount, by) in enumerate(zip((steep, flat), amounts, divided[block], strict=True)):
            y = top + 40 + 42 * row
            picture.text((16, y), f"gradients of size {size:g}", anchor="start", size=16)
            picture.bar((200, y), (max(2.0, scale * amount), 26), colour=colour)
            picture.text(
                (210 + scale * amount, y), f"loses {rate:g} · {decay:g}{by} = {amount:.2g}", anchor="start", size=16
            )
    return picture


def singular_values_of_an_update(values: Sequence[float] = (1.0, 0.5, 0.25, 0.1, 0.05), steps: int = 5) -> Drawing:
    """The singular values of a matrix of momenta before and after Muon's iteration.

    Args:
        values: before, from the largest down.
        steps: of the iteration.
    """
    sizes = np.array(values) / math.sqrt(sum(value**2 for value in values))
    after = sizes.copy()
    for _ in range(steps):
        after = 3.4445 * after - 4.7750 * after**3 + 2.0315 * after**5

    def said(found: Sequence[float]) -> str:
        return ", ".join(f"{value:.2f}" for value in found)

    picture = Drawing(
        290,
        alt=f"Two groups of bars. On the left the singular values of the momentum, divided by their common length: "
        f"{said(sizes.tolist())}. On the right the same after {steps} steps of Newton and Schulz: "
        f"{said(after.tolist())}, all near the dashed line at 1.",
        caption=f"The singular values of an update before and after {steps} steps. The weaker a "
        "direction was, the more it grows: all five end near 1.",
    )
    base, unit = 240.0, 150.0
    for left, name, found, colour in (
        (50, "momentum, normalised", sizes, palette.residual),
        (330, "after Newton–Schulz", after, palette.value),
    ):
        picture.text((left + 115, 24), name, bold=True, colour=colour)
        dash = left
        while dash < left + 230:
            picture.line([(dash, base - unit), (min(dash + 8, left + 230), base - unit)], width=1.5, arrow=False)
            dash += 15
        picture.line([(left, base), (left + 230, base)], width=1.5, arrow=False)
        for number, value in enumerate(found):
            x = left + 24 + 46 * number
            picture.bar((x - 17, base - unit * value / 2), (34, max(2.0, unit * value)), colour=colour)
            picture.text((x, base + 20), f"{value:.2f}", size=16)
    picture.text((36, base - unit), "1", size=16)
    picture.text((316, base - unit), "1", size=16)
    return picture


def learning_rate_shapes(steps: int = 1000, warmup: int = 100, decay: int = 200) -> Drawing:
    """Four schedules with one peak and one warm-up in one picture.

    Args:
        steps: of the run. warmup: steps up. decay: steps of the fall of the one with a plateau.
    """
    begin = steps - decay  # of the fall after the plateau

    def share(step: int) -> float:
        """How much of the way from the end of the warm-up is done."""
        return (step - warmup) / (steps - warmup)

    falls: dict[str, tuple[str, Callable[[int], float]]] = {
        "plateau, then a line": (palette.value, lambda step: min(1.0, (steps - step) / (steps - begin))),
        "cosine": (palette.query, lambda step: (1 + math.cos(math.pi * share(step))) / 2),
        "linear": (palette.output, lambda step: 1 - share(step)),
        "Noam (2017)": (palette.key, lambda step: math.sqrt(warmup / step)),
    }

    def rate_of(name: str, step: int) -> float:
        return step / warmup if step < warmup else falls[name][1](step)

    halfway = {name: rate_of(name, steps // 2) for name in falls}
    picture = Drawing(
        350,
        alt=f"Four learning rates over {steps} steps. All rise in a line to one peak at step {warmup}. Then they "
        f"differ; at step {steps // 2} they have "
        + ", ".join(f"{name}: {100 * value:.0f} %" for name, value in halfway.items())
        + f" of the peak. At the last step only Noam is not near zero: {100 * rate_of('Noam (2017)', steps):.0f} %.",
        caption="Four schedules with the same warm-up and the same peak. They differ in when they fall, and in where "
        "they end.",
    )
    left, right, base, top = 60.0, 570.0, 296.0, 40.0

    def spot(step: int, value: float) -> Point:
        return left + (right - left) * step / steps, base - (base - top) * value

    picture.line([(left, base), (right, base)], width=1.5, arrow=False)
    picture.line([(left, base), (left, top - 10)], width=1.5, arrow=False)
    picture.text((left - 8, top), "peak", anchor="end", size=15)
    picture.text((left - 8, base), "0", anchor="end", size=15)
    for step in (0, warmup, steps // 2, steps):
        x = spot(step, 0)[0]
        picture.line([(x, base), (x, base + 6)], width=1.5, arrow=False)
        picture.text((min(x, 572), base + 20), str(step), size=15)
    picture.text((315, base + 40), "step", size=15)
    for name, (colour, _) in falls.items():
        marks = sorted({1, warmup, steps - decay, *range(1, steps + 1, 10), steps})
        picture.line([spot(step, rate_of(name, step)) for step in marks], colour=colour, width=3, arrow=False)
    for at, name in (
        ((452, 24), "plateau, then a line"),
        ((365, 116), "cosine"),
        ((262, 150), "linear"),
        ((215, 228), "Noam (2017)"),
    ):
        picture.text(at, name, size=16, bold=True, colour=falls[name][0])
    return picture


def lost_step(weight: float = 1.0, step: float = 1e-4) -> Drawing:
    """The numbers that bfloat16 has around 1, and a small step that ends between two of them."""
    below, above = 2.0**-8, 2.0**-7
    picture = Drawing(
        190,
        alt=f"A line of numbers with marks where bfloat16 has one: 1 − {below:.4f}, 1, 1 + {above:.4f}. The weight "
        f"{weight:g} less a step of {step:g} lies so close to 1 that it is rounded back to 1.",
        caption=f"Around 1 the numbers of bfloat16 stand {below:.4f} and {above:.4f} apart. A step of {step:g} is "
        "lost, and a thousand of them, one after another, are lost as well.",
    )
    pixels = 22_000.0
    one = 250.0
    picture.line([(20, 100), (580, 100)], width=2, arrow=False)
    for x, name in ((one - pixels * below, f"{1 - below:.4f}"), (one, "1"), (one + pixels * above, f"{1 + above:.4f}")):
        picture.line([(x, 86), (x, 114)], width=3, arrow=False)
        picture.text((x, 136), name, size=16)
    picture.circle((one - pixels * step, 100), 5, colour=palette.key, filled=True)
    picture.line([(one - 30, 52), (one - pixels * step, 92)], colour=palette.key)
    picture.text((one - 36, 38), f"{weight:g} − {step:g}", colour=palette.key, bold=True)
    picture.text((300, 168), "marks: all the numbers that bfloat16 has here", size=15)
    return picture
