"""The drawings of chapter 8: where parameters, operations and bytes are, how devices share them."""

from itertools import pairwise

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette

GREY = "#767676"


def matrices_of_a_layer() -> Drawing:
    """The six matrices of one layer as areas, D wide or 4 D wide."""
    picture = Drawing(
        250,
        alt="The matrices of one layer as areas. Attention has four squares, D by D: query, key, value and output. "
        "The feed-forward has two rectangles, each as large as four squares: D by 4 D and 4 D by D. Together they "
        "are twelve squares.",
        caption="Four squares for attention and eight for the feed-forward: twelve squares, 12 · D².",
    )
    side = 46.0
    for i, name in enumerate(("query", "key", "value", "output")):
        x = 48.0 + 60 * i
        picture.box((x, 96), (side, side), "D²", colour=palette.query)
        picture.text((x, 138), name, size=15)
    picture.text((138, 44), "attention", bold=True)
    picture.text((138, 182), "4 · D²", colour=palette.query, bold=True)
    for y, words in ((84.0, "D × 4 D"), (140.0, "4 D × D")):
        for k in range(4):
            picture.box((360 + side * k, y), (side, side), colour=palette.key)
        picture.text((530, y), words, anchor="start", size=15)
    picture.text((429, 44), "feed-forward", bold=True)
    picture.text((429, 182), "8 · D²", colour=palette.key, bold=True)
    picture.text((300, 224), "one layer: 12 · D²", bold=True, size=19)
    return picture


def six_operations() -> Drawing:
    """What one weight does for one token: two operations forward, four backward."""
    picture = Drawing(
        226,
        alt="Three boxes for one weight w and one token. Forward: x times w is added to the output, 2 operations. "
        "Backward, for the layer below: the output's gradient g times w is added, 2 operations. Backward, for the "
        "weight itself: g times x is added, 2 operations. Together 6.",
        caption="One weight and one token: one product and one sum forward, two of each backward. Together six "
        "operations.",
    )
    parts = (
        ("forward", ("output += x · w",), palette.query, "2 operations"),
        ("back, to the input", ("gradient of x", "+= g · w"), palette.key, "2 operations"),
        ("back, to the weight", ("gradient of w", "+= g · x"), palette.key, "2 operations"),
    )
    for i, (title, lines, colour, count) in enumerate(parts):
        x = 102.0 + 198 * i
        picture.text((x, 28), title, size=16, bold=True)
        picture.box((x, 86), (176, 66), lines, colour=colour)
        picture.text((x, 144), count)
        if i:
            picture.text((x - 99, 86), "+", size=22, bold=True)
    picture.text((300, 196), "6 for each parameter and each token", bold=True, size=19)
    return picture


def sixteen_bytes() -> Drawing:
    """The bytes of one parameter in training, in float32 and in mixed precision."""
    rows = (
        ("float32", (("weight", 4), ("gradient g", 4), ("mean of g", 4), ("mean of g²", 4))),
        ("mixed", (("weight", 2), ("g", 2), ("float32 copy", 4), ("mean of g", 4), ("mean of g²", 4))),
    )
    picture = Drawing(
        212,
        alt="Two bars of sixteen bytes. In float32: weight 4, gradient g 4, Adam's mean of g 4, its mean of g² 4. In "
        "mixed precision: weight 2, gradient 2, a float32 copy of the weight 4, and the two means 4 each.",
        caption="Sixteen bytes for each parameter, either way. Mixed precision saves time and activation memory, but "
        "not these bytes.",
    )
    unit = 32.0
    colours = {"weight": palette.query, "float32 copy": palette.query, "gradient g": palette.key, "g": palette.key}
    for row, (name, parts) in enumerate(rows):
        y, x = 52.0 + 84 * row, 80.0
        picture.text((8, y), name, anchor="start", size=16, bold=True)
        for what, size in parts:
            middle = x + unit * size / 2
            picture.box((middle, y), (unit * size - 4, 66), colour=colours.get(what, palette.value))
            picture.text((middle, y - 11), what, size=15)
            picture.text((middle, y + 12), f"{size}", size=16, bold=True)
            x += unit * size
    picture.text((80 + 8 * unit, 196), "16 bytes for each parameter", bold=True)
    return picture


def fetch_and_compute() -> Drawing:
    """Two timelines: one token a pass waits for weights, many tokens a pass keep the processor busy."""
    picture = Drawing(
        262,
        alt="Two timelines with two rows each, fetch and compute. Writing one token: fetching the weights takes the "
        "whole time, computing a sliver of it. Reading many tokens at once: the fetch is just as long, but computing "
        "takes several times longer.",
        caption="Either way the weights must be fetched, and that takes the same time. With one token there is little "
        "to do with them. With thousands, computing takes longer than the fetch.",
    )
    for top, title, fetch, compute in (
        (40.0, "one token: the processor waits for memory", 90.0, 6.0),
        (160.0, "thousands of tokens: the processor is busy", 90.0, 440.0),
    ):
        picture.text((110, top - 14), title, anchor="start", bold=True)
        for y, name, length, colour in (
            (top + 20, "fetch", fetch, palette.key),
            (top + 56, "compute", compute, palette.query),
        ):
            picture.text((100, y), name, anchor="end", size=15)
            picture.bar((110, y), (length, 26), colour=colour)
    picture.line([(110, 248), (560, 248)], colour=GREY)
    picture.text((580, 248), "time", size=15, colour=GREY)
    return picture


def split_states() -> Drawing:
    """Sharded data parallelism: a quarter of each layer lies on each device and is lent to the others."""
    picture = Drawing(
        262,
        alt="Sharded data parallelism. Each of four devices keeps one column of each layer and reads a text of its "
        "own. Before each layer the missing columns are sent to all, and afterwards they are dropped.",
        caption="Hatched cells lie on another device. Each device borrows the missing parts of a layer when it needs "
        "them, and then drops them.",
    )
    middles = [79.5 + 147 * device for device in range(4)]
    for device, x in enumerate(middles):
        picture.text((x, 18), f"device {device}", size=16, bold=True)
        picture.frame((x - 67.5, 34), (135, 138))
        picture.text((x, 52), f"text {'ABCD'[device]}", size=15, colour=palette.value)
        for layer in range(4):
            for column in range(4):
                at = (x - 36 + 24 * column, 82 + 24.0 * layer)
                picture.cell(at, 20, allowed=column == device)
    for left, right in pairwise(middles):
        way = [(left + 12, 174), (left + 12, 190), (right - 12, 190), (right - 12, 174)]
        picture.line(way, colour=palette.key)
    back = [(middles[3] + 12, 174), (middles[3] + 12, 204), (middles[0] - 12, 204), (middles[0] - 12, 174)]
    picture.line(back, colour=palette.key)
    picture.text((300, 226), "weights of one layer at a time, lent and dropped", colour=palette.key, bold=True)
    when = "before each layer, forward and backward; gradients after it"
    picture.text((300, 248), when, size=15, colour=GREY)
    return picture


def split_matrices() -> Drawing:
    """Tensor parallelism: each device multiplies a part of a vector with its rows of a matrix."""
    picture = Drawing(
        240,
        alt="Tensor parallelism with two devices. Device 0 multiplies its part h 1 of the inner vector with its rows "
        "W 1 of the matrix, device 1 multiplies h 2 with W 2. The two results are added, and the sum goes into the "
        "residual stream.",
        caption="Each device has a part of the vector h and the rows of W that multiply it. Only the results are sent.",
    )
    picture.stream((548, 30), (548, 176))
    for device, y in enumerate((62.0, 144.0)):
        number = "₁₂"[device]
        picture.text((12, y), f"device {device}", anchor="start", size=16, bold=True)
        picture.box((140, y), (76, 32), f"h{number}", colour=palette.value)
        picture.text((192, y), "·", size=22, bold=True)
        picture.box((252, y), (88, 60), f"W{number}", colour=palette.query)
        picture.text((312, y), "=", size=20, bold=True)
        picture.box((380, y), (96, 32), f"h{number} W{number}", colour=palette.key)
        end = 103 + (-13 if device == 0 else 13)
        picture.line([(430, y), (478, y), (478, end)], colour=palette.key)
    picture.line([(491, 103), (540, 103)], colour=palette.key)
    picture.plus((478, 103))
    picture.text((548, 18), "stream", size=15, colour=GREY)
    picture.text((300, 204), "partial results, added up", colour=palette.key, bold=True)
    picture.text((300, 226), "twice in each layer forward, and twice backward; all must wait", size=15, colour=GREY)
    return picture


def split_layers() -> Drawing:
    """Pipeline parallelism: which part of a batch each device works on, as time passes."""
    picture = Drawing(
        232,
        alt="A table of four devices over seven steps of time. Device 0 works on parts 1, 2, 3 and 4 of the batch and "
        "then waits for three steps. Each further device begins one step later and ends one step later, so each waits "
        "for three of seven steps.",
        caption="The forward pass: each device has a quarter of the layers and works on one part of the batch after "
        "the other. In the hatched cells it waits.",
    )
    for device in range(4):
        y = 24.0 + 44 * device
        picture.text((98, y), f"device {device}", anchor="end", size=16, bold=True)
        for step in range(7):
            x, part = 140.0 + 64 * step, step - device
            if 0 <= part < 4:
                picture.box((x, y), (56, 34), f"part {part + 1}", colour=palette.query)
            else:
                picture.cell((x, y), 30, allowed=False)
    picture.line([(112, 206), (552, 206)], colour=GREY)
    picture.text((572, 206), "time", size=15, colour=GREY)
    return picture


def ring_sum() -> Drawing:
    """A ring of three that adds up parts: who has the sum of which part after each step."""
    picture = Drawing(
        252,
        alt="Three devices with three parts each, a, b and c, in four columns. At the start each has its own "
        "numbers. After one step device 1 has a of two devices, device 2 b of two, device 0 c of two. After two "
        "steps each has one part summed over all three. After two more all have all sums. A double edge marks the "
        "part that a device sends next: a, b and c at first, then c, a and b, then the complete ones, b, c and a.",
        caption="Three devices, three parts. In each step each device sends the part with the double edge to the "
        "device below, and the last sends to the first. Two steps build the sums; two more pass them round. A "
        "filled cell holds the sum over all.",
    )
    titles = ("start", "1 step", "2 steps", "4 steps")
    counts = [[[1] * 3 for _ in range(3)]]
    for step in range(2):
        now = [list(row) for row in counts[-1]]
        for device in range(3):
            part = (device - step) % 3
            now[(device + 1) % 3][part] += counts[-1][device][part]
        counts.append(now)
    counts.append([[3] * 3 for _ in range(3)])
    for column, (title, found) in enumerate(zip(titles, counts, strict=True)):
        left = 92.0 + 130 * column
        picture.text((left + 51, 22), title, bold=True)
        for part, name in enumerate("abc"):
            picture.text((left + 17 + 34 * part, 48), name, size=15, colour=GREY)
        for device in range(3):
            if column == 0:
                picture.text((82, 82 + 44 * device), f"device {device}", anchor="end", size=15)
            for part in range(3):
                done, at = found[device][part] == 3, (left + 17 + 34 * part, 82.0 + 44 * device)
                if column < 3 and part == (device - column) % 3:  # is sent next
                    picture.box(at, (38, 42), colour=palette.query)
                picture.box(at, (30, 34), str(found[device][part]), colour=palette.key if done else INK, filled=done)
    picture.text((300, 228), "the number in a cell: how many devices' gradients it holds", size=15, colour=GREY)
    return picture
